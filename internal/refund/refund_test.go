package refund_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"holdfast/internal/booking"
	"holdfast/internal/refund"
)

func TestSend_GivesBackOnceAndSaysSo(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.put(t, due("CK1", start))
	r, err := w.Send(t.Context(), "CK1")
	wantError(t, "Send", err, nil)
	w.wantCalls(t, "refund CK1")
	if r := w.wantStored(t, r); r.State != booking.RefundDone || r.DoneBy != refund.ByGateway || r.RefundTransaction != "R1CK1" || !r.DoneAt.Equal(start) {
		t.Errorf("refund: got %+v, want it done by the gateway with R1CK1", r)
	}
	again, err := w.Send(t.Context(), "CK1")
	wantError(t, "Send of one that is done", err, nil)
	w.wantStored(t, again)
	w.wantCalls(t)
	_, err = w.Send(t.Context(), "CK2")
	wantError(t, "Send of one that is not there", err, booking.ErrNotFound)
}

func TestSend_WithoutAnAnswerIsAskedAboutBeforeAnythingIsSent(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		first giving
		calls []string
	}{
		"it was made":     {answerLost, []string{"status CK1"}},
		"it never came":   {notArrived, []string{"status CK1", "refund CK1"}},
		"it is made late": {landsLate, []string{"status CK1"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.put(t, due("CK1", start))
			w.gateway.set(tc.first, clearly)
			r, err := w.Send(t.Context(), "CK1")
			wantError(t, "Send", err, booking.ErrInDoubt)
			if r := w.wantStored(t, r); r.State != booking.RefundSent || r.Trouble != "" {
				t.Errorf("refund in doubt: got %+v, want it sent, for nobody to look at yet", r)
			}
			w.wantCalls(t, "refund CK1")

			w.gateway.set(clearly, clearly)
			_, err = w.Send(t.Context(), "CK1")
			wantError(t, "Send within the claim's time", err, refund.ErrBusy)
			w.wantCalls(t)

			w.clock.advance(2 * time.Minute)
			r, err = w.Send(t.Context(), "CK1")
			wantError(t, "Send after it", err, nil)
			w.wantStored(t, r)
			w.wantCalls(t, tc.calls...)
			if n := w.gateway.refunds("CK1"); n != 1 {
				t.Errorf("%d refunds were made, want 1", n)
			}
		})
	}
}

func TestSend_RefusedIsForAPersonAndGoesOnWhenTheyHaveActed(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.put(t, due("CK1", start))
	w.gateway.set(refuses, clearly)
	r, err := w.Send(t.Context(), "CK1")
	wantError(t, "Send", err, refund.ErrPerson)
	if r := w.wantStored(t, r); r.State != booking.RefundSent || !strings.Contains(r.Trouble, "2023") || r.Claim != "" {
		t.Errorf("refused refund: got %+v, want it sent, its trouble the gateway's code, and claimed by nobody", r)
	}
	w.wantCalls(t, "refund CK1")

	// The account has money again. The gateway's "no such refund" is no answer yet.
	w.gateway.set(clearly, clearly)
	r, err = w.Send(t.Context(), "CK1")
	wantError(t, "Send at once", err, booking.ErrInDoubt)
	if r := w.wantStored(t, r); !strings.Contains(r.Trouble, "2023") {
		t.Errorf("trouble: got %q, want what is known", r.Trouble)
	}
	w.wantCalls(t, "status CK1")
	w.clock.advance(2 * time.Minute)
	r, err = w.Send(t.Context(), "CK1")
	wantError(t, "Send", err, nil)
	w.wantStored(t, r)
	w.wantCalls(t, "status CK1", "refund CK1")
	if r.Trouble != "" {
		t.Errorf("trouble of a refund that is done: got %q, want none", r.Trouble)
	}
}

func TestSend_ThatDidNotLeaveOrIsNotToldStaysSentWithItsTrouble(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		call, ask giving
		first     error
		second    error
	}{
		"not sent, then not told":    {notSent, notArrived, booking.ErrNotSent, booking.ErrInDoubt},
		"not sent, then not asked":   {notSent, notSent, booking.ErrNotSent, booking.ErrNotSent},
		"refused, then out of reach": {refuses, outage, refund.ErrPerson, booking.ErrGatewayOutage},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.put(t, due("CK1", start))
			w.gateway.set(tc.call, tc.ask)
			for _, want := range []error{tc.first, tc.second} {
				r, err := w.Send(t.Context(), "CK1")
				wantError(t, "Send", err, want)
				if r := w.wantStored(t, r); r.State != booking.RefundSent || r.Trouble != err.Error() {
					t.Errorf("refund: got %+v, want it sent with trouble %q", r, err)
				}
				w.clock.advance(2 * time.Minute)
			}
			w.wantCalls(t, "refund CK1", "status CK1")
		})
	}
}

func TestSend_GivenBackOtherwiseThanOrderedIsForAPersonAndNotSentAgain(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.put(t, due("CK1", start))
	w.gateway.set(givesLess, clearly)
	for _, call := range []string{"refund CK1", "status CK1"} {
		r, err := w.Send(t.Context(), "CK1")
		wantError(t, "Send", err, refund.ErrPerson)
		if r := w.wantStored(t, r); r.State != booking.RefundSent || !strings.Contains(r.Trouble, "given back 750.00 BDT") {
			t.Errorf("refund: got %+v, want it sent, its trouble the difference", r)
		}
		w.wantCalls(t, call)
		w.clock.advance(2 * time.Minute)
	}
}

func TestSend_OneThatMakesNoOrderIsForAPerson(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	r := due("CK1", start)
	r.Level = strings.Repeat("N", 300)
	w.put(t, r)
	r, err := w.Send(t.Context(), "CK1")
	wantError(t, "Send", err, refund.ErrPerson)
	if r := w.wantStored(t, r); r.State != booking.RefundDue || r.Trouble == "" {
		t.Errorf("refund: got %+v, want it due with its trouble", r)
	}
	w.wantCalls(t)
}

func TestSend_ManyAtOnceAreOne(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.put(t, due("CK1", start))
	others := make([]*refund.Service, 3) // processes
	for i := range others {
		others[i] = newWorld(t, func(d *refund.Deps) { d.Store, d.Gateway, d.Now = w.store, w.gateway, w.clock.Now }).Service
	}
	var (
		wg   sync.WaitGroup
		done atomic.Int32
	)
	for i := range 30 {
		wg.Go(func() {
			_, err := others[i%len(others)].Send(t.Context(), "CK1")
			switch {
			case err == nil:
				done.Add(1)
			case !errors.Is(err, refund.ErrBusy):
				t.Errorf("Send beside others: got %v, want %v", err, refund.ErrBusy)
			}
		})
	}
	wg.Wait()
	w.wantCalls(t, "refund CK1")
	if done.Load() == 0 {
		t.Error("nobody was told that it is done")
	}
}

func TestSend_EndsWithItsCallerOnlyBeforeItSends(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.put(t, due("CK1", start), due("CK2", start))
	ctx, cancel := context.WithCancel(t.Context())
	w.gateway.during = func(string) { cancel() }
	r, err := w.Send(ctx, "CK1")
	wantError(t, "Send whose caller goes while it sends", err, nil)
	w.wantStored(t, r)
	if _, err = w.Send(ctx, "CK2"); err == nil {
		t.Error("Send for a caller who has gone: got nil, want an error")
	}
	w.wantCalls(t, "refund CK1")
	if r, err := w.store.Refund(t.Context(), "CK2"); err != nil || r.State != booking.RefundDue || r.Trouble != "" {
		t.Errorf("its refund: got %+v, %v, want it due without trouble", r, err)
	}
}

func TestSend_LogsEachStepAndNoPerson(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.put(t, due("CK1", start))
	if _, err := w.Send(t.Context(), "CK1"); err != nil {
		t.Fatal(err)
	}
	got := w.log.String()
	if n := strings.Count(got, "\n"); n != 2 {
		t.Errorf("%d lines, want one that it is sent and one that it is done:\n%s", n, got)
	}
	for _, want := range []string{`"transaction":"CK1"`, `"payment":"TRCK1"`, `"attempt":"1ngtsa07kq3m-`, `"amount":"1500.00 BDT"`, `"kind":"late"`, `"refund":"R1CK1"`} {
		if !strings.Contains(got, want) {
			t.Errorf("log lacks %s:\n%s", want, got)
		}
	}
	for _, person := range []string{code, booking.CandidateHash(code)} {
		if strings.Contains(got, person) {
			t.Errorf("log names the candidate, %s:\n%s", person, got)
		}
	}
}

func TestSettleByHand_EndsItWithWhoAndWhy(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.put(t, due("CK1", start))
	got, err := w.SettleByHand(t.Context(), "CK1", "alice", "bank transfer 4711")
	wantError(t, "SettleByHand", err, nil)
	w.wantCalls(t, "status CK1")
	if r := w.wantStored(t, got.Refund); r.State != booking.RefundDone || r.DoneBy != "alice" || r.Note != "bank transfer 4711" || got.Doubt != nil {
		t.Errorf("SettleByHand: got %+v, want it done by alice with her note and without doubt", got)
	}
	if _, err := w.Send(t.Context(), "CK1"); err != nil {
		t.Errorf("Send after it: got %v, want nil", err)
	}
	got, err = w.SettleByHand(t.Context(), "CK1", "bob", "again")
	wantError(t, "SettleByHand again", err, refund.ErrDone)
	if got.Refund.DoneBy != "alice" {
		t.Errorf("it is done by %q, want alice", got.Refund.DoneBy)
	}
	w.wantCalls(t)
}

func TestSettleByHand_GatewaysRefundCountsFirst(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.put(t, due("CK1", start))
	w.gateway.set(answerLost, clearly)
	_, err := w.Send(t.Context(), "CK1")
	wantError(t, "Send", err, booking.ErrInDoubt)
	_, err = w.SettleByHand(t.Context(), "CK1", "alice", "by hand")
	wantError(t, "SettleByHand while a call may be under way", err, refund.ErrBusy)
	w.clock.advance(2 * time.Minute)
	got, err := w.SettleByHand(t.Context(), "CK1", "alice", "by hand")
	wantError(t, "SettleByHand", err, nil)
	if r := w.wantStored(t, got.Refund); r.DoneBy != refund.ByGateway || r.RefundTransaction != "R1CK1" || r.Note != "" || got.Doubt != nil {
		t.Errorf("SettleByHand: got %+v, want it done by the gateway", got)
	}
}

func TestSettleByHand_SaysWhatTheGatewayLeavesOpen(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		call, ask   giving
		doubt       string
		transaction string
	}{
		"out of reach":         {refuses, outage, "could not be asked", ""},
		"given back otherwise": {givesLess, clearly, "given back 750.00 BDT", "R1CK1"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.put(t, due("CK1", start))
			w.gateway.set(tc.call, tc.ask)
			_, err := w.Send(t.Context(), "CK1")
			wantError(t, "Send", err, refund.ErrPerson)
			got, err := w.SettleByHand(t.Context(), "CK1", "alice", "the rest in cash")
			wantError(t, "SettleByHand", err, nil)
			r := w.wantStored(t, got.Refund)
			if r.DoneBy != "alice" || r.RefundTransaction != tc.transaction || got.Doubt == nil || !strings.Contains(got.Doubt.Error(), tc.doubt) {
				t.Errorf("SettleByHand: got %+v, want it done by alice, refund transaction %q, and doubt that %q", got, tc.transaction, tc.doubt)
			}
		})
	}
}

func TestSettleByHand_WaitsForACallThatMayStillLand(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.put(t, due("CK1", start))
	w.gateway.set(refuses, clearly)
	_, err := w.Send(t.Context(), "CK1")
	wantError(t, "Send", err, refund.ErrPerson)
	_, err = w.SettleByHand(t.Context(), "CK1", "alice", "cash")
	wantError(t, "SettleByHand at once", err, booking.ErrInDoubt)
	if r, err := w.store.Refund(t.Context(), "CK1"); err != nil || r.State != booking.RefundSent {
		t.Errorf("refund: got %+v, %v, want it sent", r, err)
	}
}

// slow is a store in which writing "sent" takes its time.
type slow struct {
	refund.Store
	sent func()
}

func (s slow) RefundSent(ctx context.Context, transaction, claim string, at time.Time) error {
	defer s.sent()
	return s.Store.RefundSent(ctx, transaction, claim, at)
}

// A process that stood still may have lost its claim: what it knew counts no more.
func TestSend_AfterStandingStillSendsNothing(t *testing.T) {
	t.Parallel()
	var c *clock
	w := newWorld(t, func(d *refund.Deps) { d.Store = slow{d.Store, func() { c.advance(time.Minute) }} })
	c = w.clock
	w.put(t, due("CK1", start))
	_, err := w.Send(t.Context(), "CK1")
	wantError(t, "Send", err, booking.ErrNotSent)
	w.wantCalls(t)
}

func TestSettleByHand_AfterStandingStillSettlesNothing(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.put(t, due("CK1", start))
	w.gateway.asking = func() { w.clock.advance(2 * time.Minute) }
	_, err := w.SettleByHand(t.Context(), "CK1", "alice", "cash")
	wantError(t, "SettleByHand", err, refund.ErrBusy)
	if r, err := w.store.Refund(t.Context(), "CK1"); err != nil || r.State != booking.RefundDue {
		t.Errorf("refund: got %+v, %v, want it due", r, err)
	}
}

func TestSettleByHand_WantsWhoAndWhy(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.put(t, due("CK1", start))
	for _, who := range [][2]string{{"", "why"}, {"alice", ""}, {refund.ByGateway, "why"}} {
		if _, err := w.SettleByHand(t.Context(), "CK1", who[0], who[1]); err == nil {
			t.Errorf("SettleByHand by %q because %q: got nil, want an error", who[0], who[1])
		}
	}
	w.wantCalls(t)
}
