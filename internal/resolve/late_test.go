package resolve_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"holdfast/internal/booking"
	"holdfast/internal/booking/bookingtest"
	"holdfast/internal/resolve"
)

// lost is candidate i, whose record is HELD and whose seat is gone, after an execute
// call of which nobody has heard, and about whose payment the gateway says nothing
// clear.
func (w *world) lost(t *testing.T, i int) bookingtest.Booking {
	t.Helper()
	b := w.Held(t, i, "N1")
	rec, err := w.Store.Announce(t.Context(), b.Record, w.Clock.Now())
	if err != nil {
		t.Fatal(err)
	}
	b.Record = rec
	w.Gateway.Always(bookingtest.Query, b.Payment.ID, bookingtest.Garbled())
	w.seats.Lose(t, b)
	w.Clock.Advance(payingFor + time.Minute)
	return b
}

// resold gives the lost one's candidate another seat.
func (w *world) resold(t *testing.T, i int) bookingtest.Booking {
	t.Helper()
	return w.Held(t, i, "N2")
}

func (w *world) planAbout(t *testing.T, b bookingtest.Booking, transaction string) resolve.Plan {
	t.Helper()
	p, err := w.resolver.Plan(t.Context(), b.Code, resolve.Decision{Attempt: b.Attempt, Transaction: transaction})
	if err != nil {
		t.Fatalf("plan: %v", err)
	}
	return p
}

func (w *world) carry(t *testing.T, p resolve.Plan) resolve.Done {
	t.Helper()
	done, err := w.resolver.Carry(t.Context(), p, false)
	if err != nil {
		t.Fatalf("carry: %v", err)
	}
	w.Background.Wait() // before the test moves the clock past a mail's lease
	return done
}

func TestLate_PaidGetsItsSeatAfterAll(t *testing.T) {
	w := open(t)
	b := w.lost(t, 1)
	w.Gateway.Complete(b.Payment.ID)
	w.wallet.has("TX"+b.Payment.ID, b.Record.Amount)
	p := w.plan(t, b, "TX"+b.Payment.ID) // without an attempt: it is the only one
	wantTexts(t, "objections", p.Objections)
	wantTexts(t, "warnings", p.Warnings, "is unknown, not completed")
	if p.Case.Owns() || !p.Case.InDoubt() || p.Case.Attempt != b.Attempt || p.Case.Payment() != b.Payment.ID {
		t.Errorf("case: got %+v, want the attempt in doubt, without a seat", p.Case)
	}
	done := w.carry(t, p)
	if done.Row.Phase != booking.PhasePaid || done.Record != booking.StatePaid || done.Refund != nil {
		t.Errorf("carry: got %+v, want its seat, paid", done)
	}
	if again := w.carry(t, p); again.Row.PaidAt != done.Row.PaidAt {
		t.Errorf("repeated: got %+v, want the same", again)
	}
	w.sweep(t, 2*time.Minute)
	w.Books.CheckAtRest(t)
}

// The seat is another's by now, or its candidate has another: that one stays, and
// the money goes back, once.
func TestLate_PaidGoesBackWhenTheSeatIsGone(t *testing.T) {
	for name, c := range map[string]struct {
		set    func(t *testing.T, w *world)
		reason string
	}{
		"the candidate has another seat": {func(t *testing.T, w *world) { w.resold(t, 1) }, "candidate"},
		"every seat is taken": {func(t *testing.T, w *world) {
			for i := 2; i <= 4; i++ {
				w.Held(t, i, "N1")
			}
		}, "full"},
	} {
		t.Run(name, func(t *testing.T) {
			w := open(t)
			b := w.lost(t, 1)
			c.set(t, w)
			before, err := w.Books.Seats.Rows(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			w.Gateway.Complete(b.Payment.ID)
			transaction := "TX" + b.Payment.ID
			p := w.planAbout(t, b, transaction)
			wantTexts(t, "objections", p.Objections)
			done := w.carry(t, p)
			if done.Refund == nil || done.Refund.Reason != c.reason || done.Record != booking.StateReleased || done.Row.Attempt != "" {
				t.Fatalf("carry: got %+v, want a refund, and the record RELEASED", done)
			}
			w.WantRefund(t, b, transaction, booking.MoneyLate, c.reason)
			after, err := w.Books.Seats.Rows(t.Context())
			if err != nil || len(after) != len(before) {
				t.Errorf("rows: got %d, %v, want the %d of before", len(after), err, len(before))
			}
			for code, row := range before {
				if after[code].Attempt != row.Attempt || after[code].Phase != row.Phase {
					t.Errorf("row of %s: got %+v, want it as it was", code, after[code])
				}
			}
			// The same word again is the same decision.
			if again := w.carry(t, w.planAbout(t, b, transaction)); again.Refund == nil || !again.Refund.DecidedAt.Equal(done.Refund.DecidedAt) {
				t.Errorf("repeated: got %+v, want the first decision", again.Refund)
			}
			w.Books.Check(t)
		})
	}
}

// What the gateway says has moved is what goes back.
func TestLate_OtherThanOrderedGoesBackAsItMoved(t *testing.T) {
	w := open(t)
	a, b := w.lost(t, 1), w.lost(t, 2)
	w.Gateway.Complete(a.Payment.ID)
	w.Gateway.Divert(a.Payment.ID, func(c *booking.Charge) { c.Amount = 7 })
	w.Gateway.Always(bookingtest.Query, a.Payment.ID, bookingtest.Obey())
	w.wallet.has("TX9", 9)
	for transaction, b := range map[string]bookingtest.Booking{"TX" + a.Payment.ID: a, "TX9": b} {
		p := w.planAbout(t, b, transaction)
		if !strings.Contains(strings.Join(p.Warnings, "\n"), "pays for no seat and goes back") || len(p.Objections) > 0 {
			t.Errorf("plan: got %q, %q, want a warning that it goes back", p.Objections, p.Warnings)
		}
		done := w.carry(t, p)
		want := map[string]booking.Money{"TX" + a.Payment.ID: 7, "TX9": 9}[transaction]
		if done.Refund == nil || done.Refund.Amount != want || done.Refund.Kind != booking.MoneyOther {
			t.Errorf("carry: got %+v, want a refund of %s", done.Refund, want)
		}
	}
}

func TestLate_NotPaidEndsTheRecord(t *testing.T) {
	w := open(t)
	b := w.lost(t, 1)
	other := w.resold(t, 1)
	p := w.planAbout(t, b, "")
	wantTexts(t, "objections", p.Objections)
	if p.Case.Seat.Attempt != other.Attempt {
		t.Errorf("case: got seat %+v, want that of %s", p.Case.Seat, other.Attempt)
	}
	done := w.carry(t, p)
	if done.Record != booking.StateReleased || done.Row.Attempt != "" {
		t.Errorf("carry: got %+v, want the record RELEASED", done)
	}
	w.Want(t, b, "", booking.StateReleased)
	w.Want(t, other, booking.PhaseHeld, booking.StateHeld)
	rec, err := w.Store.Record(t.Context(), b.Record.CandidateHash, b.Attempt)
	if err != nil || rec.Reason != "lapsed resolved" || rec.Refused() {
		t.Errorf("record: got reason %q, %v, want lapsed, which a rebuild gives no seat", rec.Reason, err)
	}
	w.carry(t, p) // repeated
	wantTexts(t, "objections to the same again", w.planAbout(t, b, "").Objections, "RELEASED already: lapsed resolved")
}

// The seat of the candidate is what a decision is about, unless the attempt is named.
func TestLook_WhichAttempt(t *testing.T) {
	w := open(t)
	a := w.lost(t, 1)
	b := w.resold(t, 1)
	p := w.plan(t, b, "")
	if p.Case.Attempt != b.Attempt || !p.Case.Owns() {
		t.Errorf("case: got attempt %s, want the seat's %s", p.Case.Attempt, b.Attempt)
	}
	wantTexts(t, "warnings", p.Warnings, "attempt "+a.Attempt+" of this candidate is HELD and owns no seat")
	w.seats.Lose(t, b)
	_, err := w.resolver.Plan(t.Context(), a.Code, resolve.Decision{})
	wantErr(t, "two without a seat", err, resolve.ErrWhichAttempt)
	if err == nil || !strings.Contains(err.Error(), a.Attempt) || !strings.Contains(err.Error(), b.Attempt) {
		t.Errorf("two without a seat: got %v, want both named", err)
	}
	w.carry(t, w.planAbout(t, a, ""))
	if p := w.plan(t, b, ""); p.Case.Attempt != b.Attempt {
		t.Errorf("case: got %s, want the one that is left, %s", p.Case.Attempt, b.Attempt)
	}
	_, err = w.resolver.Plan(t.Context(), a.Code, resolve.Decision{Attempt: "nothing"})
	wantErr(t, "no such attempt", err, booking.ErrNotFound)
}

func TestLate_WhatSpeaksAgainstIt(t *testing.T) {
	w := open(t)
	b := w.lost(t, 1)
	w.Gateway.Complete(b.Payment.ID)
	w.Gateway.Always(bookingtest.Query, b.Payment.ID, bookingtest.Obey())
	p := w.planAbout(t, b, "")
	wantTexts(t, "not paid, and it is", p.Objections, "is completed, by transaction TX"+b.Payment.ID)
	_, err := w.resolver.Carry(t.Context(), p, true)
	wantErr(t, "by force", err, resolve.ErrCompleted)
	p = w.planAbout(t, b, "TX9")
	wantTexts(t, "another transaction", p.Objections, "is completed by transaction TX"+b.Payment.ID+", not TX9")
	_, err = w.resolver.Carry(t.Context(), p, false)
	wantErr(t, "carry over an objection", err, resolve.ErrObjection)

	c := w.Held(t, 2, "N1")
	if _, err := w.Store.Announce(t.Context(), c.Record, w.Clock.Now()); err != nil {
		t.Fatal(err)
	}
	w.seats.Lose(t, c)
	p = w.planAbout(t, c, "")
	wantTexts(t, "execute in flight", p.Objections, "an execute call may be in flight until")
	_, err = w.resolver.Carry(t.Context(), p, true)
	wantErr(t, "execute in flight, by force", err, booking.ErrPaying)
	w.Want(t, c, "", booking.StateHeld)

	if err := w.Store.Release(t.Context(), w.record(t, c), booking.ReasonLapsed, w.Clock.Now()); err != nil {
		t.Fatal(err)
	}
	wantTexts(t, "over, and not completed", w.planAbout(t, c, "TX9").Objections, "its record is RELEASED (lapsed), and the gateway says")
	w.Want(t, b, "", booking.StateHeld)
}

func (w *world) record(t *testing.T, b bookingtest.Booking) booking.Record {
	t.Helper()
	rec, err := w.Store.Record(t.Context(), b.Record.CandidateHash, b.Attempt)
	if err != nil {
		t.Fatal(err)
	}
	return rec
}

// Late money of an attempt that is over, about which the gateway is silent.
func TestLate_MoneyOfAnAttemptThatIsOver(t *testing.T) {
	w := open(t)
	b := w.lost(t, 1)
	if err := w.Store.Release(t.Context(), w.record(t, b), booking.ReasonLapsed, w.Clock.Now()); err != nil {
		t.Fatal(err)
	}
	_, err := w.resolver.Plan(t.Context(), b.Code, resolve.Decision{Transaction: "TX9"})
	wantErr(t, "none is open", err, resolve.ErrWhichAttempt)
	p := w.planAbout(t, b, "TX9")
	wantTexts(t, "objections", p.Objections)
	if done := w.carry(t, p); done.Row.Phase != booking.PhasePaid || done.Record != booking.StatePaid {
		t.Errorf("carry: got %+v, want its seat after all", done)
	}
	// A PAID record whose seat is lost is nobody's to decide here.
	w.seats.Lose(t, b)
	wantTexts(t, "its own transaction", w.planAbout(t, b, "TX9").Objections, "PAID by transaction TX9")
	wantTexts(t, "not paid", w.planAbout(t, b, "").Objections, "PAID by transaction TX9")
	_, err = w.resolver.Carry(t.Context(), w.planAbout(t, b, ""), true)
	wantErr(t, "not paid, by force", err, booking.ErrAlreadyPaid)
}

// The seat came back, or an execute call was announced, between look and decision.
func TestLate_NotPaidIsConditional(t *testing.T) {
	w := open(t)
	b, c := w.lost(t, 1), w.lost(t, 2)
	pb, pc := w.planAbout(t, b, ""), w.planAbout(t, c, "")
	if _, err := w.gate.Late(t.Context(), b.Record, "TX9", booking.MoneyLate); err != nil {
		t.Fatal(err)
	}
	_, err := w.resolver.Carry(t.Context(), pb, true)
	wantErr(t, "it has its seat again", err, resolve.ErrObjection)
	w.Want(t, b, booking.PhasePaid, booking.StateHeld)
	if _, err := w.Store.Announce(t.Context(), c.Record, w.Clock.Now()); err != nil {
		t.Fatal(err)
	}
	_, err = w.resolver.Carry(t.Context(), pc, false)
	wantErr(t, "announced meanwhile", err, booking.ErrAnnounced)
	w.Want(t, c, "", booking.StateHeld)
}

// Each write lost, and each kept and its reply lost: the rules hold, and the same
// decision again finishes it.
func TestLate_EachWriteBrokenBothWays(t *testing.T) {
	t.Parallel()
	seat := []bookingtest.Op{bookingtest.OpSettle, bookingtest.OpLate, bookingtest.OpMarkPaid, bookingtest.OpRecordDone}
	back := []bookingtest.Op{bookingtest.OpPutRefund, bookingtest.OpReleaseRecord}
	over := []bookingtest.Op{bookingtest.OpQueued, "release of a record that is over"}
	for _, op := range slices.Concat(seat, back, over) {
		for name, fault := range map[string]bookingtest.Fault{"Lost": bookingtest.Lost, "Kept": bookingtest.Kept} {
			t.Run(string(op)+name, func(t *testing.T) {
				w := open(t)
				b := w.lost(t, 1)
				transaction := "TX" + b.Payment.ID
				if slices.Contains(over, op) {
					transaction = ""
				} else {
					w.Gateway.Complete(b.Payment.ID)
				}
				if slices.Contains(back, op) {
					w.resold(t, 1)
				}
				broken := op
				if op == over[1] {
					broken = bookingtest.OpReleaseRecord
				}
				p := w.planAbout(t, b, transaction)
				w.Faults.Always(broken, fault)
				if _, err := w.resolver.Carry(t.Context(), p, false); err == nil {
					t.Error("carry: got nil, want an error")
				}
				w.Books.Unseated[b.Payment.ID] = true // nothing may be decided yet
				w.Books.Check(t)
				delete(w.Books.Unseated, b.Payment.ID)
				w.Faults.Always(broken, bookingtest.None)
				done := w.carry(t, p)
				w.Books.Check(t)
				switch {
				case slices.Contains(seat, op):
					w.Want(t, b, booking.PhasePaid, booking.StatePaid)
				case slices.Contains(back, op):
					if done.Refund == nil {
						t.Errorf("carry: got %+v, want a refund", done)
					}
					w.Want(t, b, "", booking.StateReleased)
				default:
					w.Want(t, b, "", booking.StateReleased)
				}
			})
		}
	}
}

// No effect outside Redis rests on an answer that was not acknowledged: neither a
// refund nor the end of a record.
func TestLate_NothingWithoutAcknowledgement(t *testing.T) {
	w := onPair(t)
	b := w.lost(t, 1)
	other := w.resold(t, 1)
	paid, over := w.planAbout(t, b, "TX9"), w.planAbout(t, b, "")
	w.cut(t)
	for name, p := range map[string]resolve.Plan{"paid": paid, "not paid": over} {
		_, err := w.resolver.Carry(t.Context(), p, false)
		wantErr(t, name+" without a replica", err, booking.ErrNotAcknowledged)
	}
	w.Want(t, b, "", booking.StateHeld)
	if _, err := w.Store.Refund(t.Context(), "TX9"); err == nil {
		t.Error("refund: got one, want none without an acknowledged decision")
	}
	w.heal(t)
	if done := w.carry(t, paid); done.Refund == nil || done.Refund.Reason != "candidate" {
		t.Errorf("carry, healed: got %+v, want a refund", done)
	}
	w.Want(t, b, "", booking.StateReleased)
	w.Want(t, other, booking.PhaseHeld, booking.StateHeld)
}
