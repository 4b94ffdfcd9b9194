package reconcile_test

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/redis/go-redis/v9"

	"holdfast/internal/booking"
	"holdfast/internal/booking/bookingtest"
	"holdfast/internal/reconcile"
)

func TestNew_RefusesWhatCannotWork(t *testing.T) {
	w := empty(t)
	for name, spoil := range map[string]func(*reconcile.Deps){
		"no gateway":     func(d *reconcile.Deps) { d.Gateway = nil },
		"no registry":    func(d *reconcile.Deps) { d.Registerer = nil },
		"width 0":        func(d *reconcile.Deps) { d.Width = 0 },
		"no rate":        func(d *reconcile.Deps) { d.QueriesPerSecond = 0 },
		"no lapse":       func(d *reconcile.Deps) { d.Lapse = 0 },
		"no budget":      func(d *reconcile.Deps) { d.Budget = 0 },
		"no interval":    func(d *reconcile.Deps) { d.Every = 0 },
		"no call's time": func(d *reconcile.Deps) { d.ExecuteTimeout = 0 },
	} {
		d := w.deps
		d.Registerer = prometheus.NewRegistry()
		spoil(&d)
		if _, err := reconcile.New(d); err == nil {
			t.Errorf("%s: got nil, want an error", name)
		}
	}
}

// Row "new": one request was creating the payment.

func TestNew_UndoneAfterTwoMinutes(t *testing.T) {
	w := inProcess(t)
	w.Admit(t, 1, "N1")
	w.wantSweep(t, 2*time.Minute-time.Second)
	if row := w.Row(t, bookingtest.Code(1)); row.Phase != booking.PhaseNew {
		t.Errorf("a second early: got %q, want the row still there", row.Phase)
	}
	w.wantSweep(t, time.Second, "undone")
	if row := w.Row(t, bookingtest.Code(1)); row.Phase != "" {
		t.Errorf("after two minutes: got %q, want no row", row.Phase)
	}
	if n := w.changed.Load(); n != 1 {
		t.Errorf("hints that a seat is free: got %d, want 1", n)
	}
	if n := w.Gateway.Calls(bookingtest.Query, ""); n != 0 {
		t.Errorf("queries: got %d, want 0: there is no payment", n)
	}
	w.Books.CheckAtRest(t)
	w.pays(t, w.Held(t, 1, "N2"))
}

// Hole 29: the seat of a refused payment is within its time; a take-over that
// came to nothing does not give it away.
func TestHole29_UndoneTakeOverGoesBackToRefused(t *testing.T) {
	w := inProcess(t)
	b := w.Refused(t, 1, "N1")
	refused := w.Row(t, b.Code)
	w.Clock.Advance(time.Minute)
	w.Admit(t, 1, "N1")
	w.wantSweep(t, 2*time.Minute, "undone")
	refused.EndedBy = "" // whose end-pay it was is told to nobody any more
	if diff := cmp.Diff(refused, w.Row(t, b.Code)); diff != "" {
		t.Errorf("row after the undo (-before the take-over +after):\n%s", diff)
	}
	w.Books.CheckAtRest(t)
	w.Clock.Advance(time.Minute)
	w.pays(t, w.Held(t, 1, "N1"))
}

// The seat of a take-over that came to nothing near the deadline is not kept for
// ever either.
func TestNew_TakeOverUndonePastTheDeadlineIsReleased(t *testing.T) {
	w := inProcess(t)
	b := w.Refused(t, 1, "N1")
	w.Clock.Advance(booking.DefaultHold - time.Second)
	w.Admit(t, 1, "N1")
	w.wantSweep(t, 2*time.Minute, "undone", "released")
	w.wantReleased(t, b, 1)
}

// Row "payable": a payment is attached, the record not known to be queued.

func TestPayable_GetsItsRecordAndIsHeld(t *testing.T) {
	w := inProcess(t)
	b := w.Payable(t, 1, "N1")
	w.wantSweep(t, time.Minute-time.Second)
	w.wantSweep(t, time.Second, "queued")
	w.Want(t, b, booking.PhaseHeld, booking.StateHeld)
	w.wantCalls(t, b, 0, 0)
	rec, err := w.Store.Record(t.Context(), b.Record.CandidateHash, b.Attempt)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(b.Record, rec); diff != "" {
		t.Errorf("record (-as queued +as put by the sweep):\n%s", diff)
	}
	w.Books.CheckAtRest(t)
	w.pays(t, b)
}

func TestPayable_PastTheDeadlineIsAskedAbout(t *testing.T) {
	w := inProcess(t)
	unpaid, paid := w.Payable(t, 1, "N1"), w.Payable(t, 2, "N1")
	w.Gateway.Complete(paid.Payment.ID)
	w.wantSweep(t, booking.DefaultHold, "released", "confirmed")
	w.Want(t, paid, booking.PhasePaid, booking.StatePaid)
	w.wantReleased(t, unpaid, 1)
}

// Rows "held" and "refused": the payer has until the deadline.

func TestHeld_ReleasedOnTimeAndBookedAgain(t *testing.T) {
	w := inProcess(t)
	b := w.Held(t, 1, "N1")
	w.wantSweep(t, booking.DefaultHold-time.Second)
	w.Want(t, b, booking.PhaseHeld, booking.StateHeld)
	w.wantCalls(t, b, 0, 0)
	w.wantSweep(t, time.Second, "released")
	w.wantCalls(t, b, 1, 0)
	if n := w.changed.Load(); n != 1 {
		t.Errorf("hints that a seat is free: got %d, want 1", n)
	}
	w.wantReleased(t, b, 1)
}

func TestHeld_CallbackThatNeverComesIsPaid(t *testing.T) {
	w := inProcess(t)
	b := w.Held(t, 1, "N1")
	w.Gateway.Complete(b.Payment.ID)
	w.wantSweep(t, booking.DefaultHold, "confirmed")
	w.wantCalls(t, b, 1, 0)
	if n := w.changed.Load(); n != 0 {
		t.Errorf("hints that a seat is free: got %d, want 0", n)
	}
	w.wantPaid(t, b)
}

func TestRefused_PastTheDeadlineIsAskedOnceMore(t *testing.T) {
	w := inProcess(t)
	unpaid, paid := w.Refused(t, 1, "N1"), w.Refused(t, 2, "N1")
	w.Gateway.Complete(paid.Payment.ID)
	w.wantSweep(t, booking.DefaultHold-time.Second)
	w.wantSweep(t, time.Second, "released", "confirmed")
	w.Want(t, paid, booking.PhasePaid, booking.StatePaid)
	w.wantReleased(t, unpaid, 1)
}

// A refused row whose record is not known to be ended: nothing is written on its
// word alone, but on an answer that was acknowledged.
func TestRefused_RecordIsEndedOnAnAcknowledgedAnswerOnly(t *testing.T) {
	w := inProcess(t)
	b := w.Paying(t, 1, "N1", "payer", payingLength)
	if err := w.Ledger.EndPay(t.Context(), b.Code, b.Attempt, "payer", booking.PhaseRefused); err != nil {
		t.Fatal(err)
	}
	w.wantSweep(t, 59*time.Second)
	w.Faults.Always(bookingtest.OpEndPay, bookingtest.Kept)
	w.wantSweep(t, time.Second, "failed")
	w.Want(t, b, booking.PhaseRefused, booking.StateHeld)
	w.Faults.Always(bookingtest.OpEndPay, bookingtest.None)
	w.wantSweep(t, 20*time.Second, "refused")
	w.Want(t, b, booking.PhaseRefused, booking.StateReleased)
	w.wantCalls(t, b, 0, 0)
	w.Books.CheckAtRest(t)
	w.wantSweep(t, time.Minute) // until its deadline nobody looks again
	w.pays(t, w.Held(t, 1, "N1"))
}

// Row "paying": an execute call may have been in flight.

func TestPaying_IsLeftAloneUntilItsEnd(t *testing.T) {
	w := inProcess(t)
	b := w.Paying(t, 1, "N1", "payer", payingLength)
	w.wantSweep(t, payingLength-time.Second)
	w.wantCalls(t, b, 0, 0)
	w.Want(t, b, booking.PhasePaying, booking.StateHeld)
}

func TestPaying_PastItsEnd(t *testing.T) {
	says := func(s booking.ChargeStatus, code string) bookingtest.Answer {
		return bookingtest.Answer{Change: func(c *booking.Charge) { c.Status, c.Code = s, code }}
	}
	for _, c := range []struct {
		name              string
		prepare           func(g *bookingtest.Gateway, id string)
		action            string
		phase             booking.Phase
		state             booking.RecordState
		queries, executes int
		look              time.Duration // until the next look; 0 is not checked
	}{
		{
			"query completed", func(g *bookingtest.Gateway, id string) { g.Complete(id) },
			"confirmed", booking.PhasePaid, booking.StatePaid, 1, 0, 0,
		},
		{
			"query refused", func(g *bookingtest.Gateway, id string) {
				g.Always(bookingtest.Query, id, says(booking.ChargeRefused, "2023"))
			},
			"refused", booking.PhaseRefused, booking.StateReleased, 1, 0, 0,
		},
		{
			"open, execute completes", func(g *bookingtest.Gateway, id string) { g.Finish(id) },
			"confirmed", booking.PhasePaid, booking.StatePaid, 1, 1, 0,
		},
		{
			"open, execute refused", func(g *bookingtest.Gateway, id string) { g.Refuse(id, "2023") },
			"refused", booking.PhaseRefused, booking.StateReleased, 1, 1, 0,
		},
		{
			"open, payer not finished", func(*bookingtest.Gateway, string) {},
			"unfinished", booking.PhasePaying, booking.StateHeld, 1, 1, 5 * time.Minute,
		},
		{
			"open, execute in doubt", func(g *bookingtest.Gateway, id string) { g.Always(bookingtest.Execute, id, bookingtest.Garbled()) },
			"doubt", booking.PhasePaying, booking.StateHeld, 1, 1, 10 * time.Minute,
		},
		{
			"open, execute silent", func(g *bookingtest.Gateway, id string) { g.Always(bookingtest.Execute, id, bookingtest.LostCall()) },
			"doubt", booking.PhasePaying, booking.StateHeld, 1, 1, 10 * time.Minute,
		},
		{
			"open, execute says open", func(g *bookingtest.Gateway, id string) {
				g.Always(bookingtest.Execute, id, says(booking.ChargeOpen, "0000"))
			},
			"doubt", booking.PhasePaying, booking.StateHeld, 1, 1, 10 * time.Minute,
		},
		{
			"open, execute not sent", func(g *bookingtest.Gateway, id string) { g.Always(bookingtest.Execute, id, bookingtest.NotSent()) },
			"outage", booking.PhasePaying, booking.StateHeld, 1, 1, time.Minute,
		},
		{
			"query silent", func(g *bookingtest.Gateway, id string) { g.Always(bookingtest.Query, id, bookingtest.LostCall()) },
			"missed", booking.PhasePaying, booking.StateHeld, 1, 0, 20 * time.Second,
		},
		{
			"query garbled", func(g *bookingtest.Gateway, id string) { g.Always(bookingtest.Query, id, bookingtest.Garbled()) },
			"missed", booking.PhasePaying, booking.StateHeld, 1, 0, 20 * time.Second,
		},
		{
			"query not sent", func(g *bookingtest.Gateway, id string) { g.Always(bookingtest.Query, id, bookingtest.NotSent()) },
			"outage", booking.PhasePaying, booking.StateHeld, 1, 0, time.Minute,
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := inProcess(t)
			b := w.Paying(t, 1, "N1", "payer", payingLength)
			c.prepare(w.Gateway, b.Payment.ID)
			before, err := w.Ledger.Now(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			before = before.Truncate(time.Millisecond) // as the ledger counts
			w.wantSweep(t, payingLength, c.action)
			w.Want(t, b, c.phase, c.state)
			w.wantCalls(t, b, c.queries, c.executes)
			if c.look > 0 {
				looks, err := w.Books.Seats.Looks(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				// The clock runs on a little while the sweep is at work.
				got := time.UnixMilli(looks[b.Code]).Sub(before.Add(payingLength))
				if got < c.look || got > c.look+10*time.Second {
					t.Errorf("next look: got in %s, want in %s", got, c.look)
				}
			}
			w.Books.Check(t)
			if row := w.Row(t, b.Code); c.phase == booking.PhasePaying && !row.TakenOver {
				t.Error("row does not say that it was taken over")
			}
			if n := w.changed.Load(); n != 0 {
				t.Errorf("hints that a seat is free: got %d, want 0", n)
			}
		})
	}
}

func TestPaying_RefusedSeatIsTheCandidatesUntilTheDeadline(t *testing.T) {
	w := inProcess(t)
	b := w.Paying(t, 1, "N1", "payer", payingLength)
	w.Gateway.Refuse(b.Payment.ID, "2023")
	w.wantSweep(t, payingLength, "refused")
	w.Books.CheckAtRest(t)
	w.Clock.Advance(time.Minute)
	w.pays(t, w.Held(t, 1, "N1"))
	w.Want(t, b, "", booking.StateReleased)
}

// It never releases in the step that took the row over: a refused row past its
// deadline is asked about again.
func TestPaying_RefusedPastTheDeadlineIsAskedAgainBeforeItsRelease(t *testing.T) {
	w := inProcess(t)
	b := w.Paying(t, 1, "N1", "payer", payingLength)
	w.Gateway.Refuse(b.Payment.ID, "2023")
	w.wantSweep(t, booking.DefaultHold, "refused", "released")
	w.wantCalls(t, b, 2, 1)
	w.wantReleased(t, b, 1)
}

func TestPaying_UnfinishedTwiceFiveMinutesApartIsFinal(t *testing.T) {
	w := inProcess(t)
	b := w.Paying(t, 1, "N1", "payer", payingLength)
	w.wantSweep(t, payingLength, "unfinished")
	w.wantSweep(t, 5*time.Minute-5*time.Second)
	w.wantSweep(t, 10*time.Second, "refused")
	w.Want(t, b, booking.PhaseRefused, booking.StateReleased)
	w.wantCalls(t, b, 2, 2)
	w.Books.CheckAtRest(t)
}

func TestPaying_UnfinishedTwiceWithinFiveMinutesIsNotFinal(t *testing.T) {
	w := inProcess(t)
	b := w.Paying(t, 1, "N1", "payer", payingLength)
	w.wantSweep(t, payingLength, "unfinished")
	w.due(t, b)
	w.wantSweep(t, payingLength, "unfinished") // somebody had it looked at earlier
	w.Want(t, b, booking.PhasePaying, booking.StateHeld)
	w.wantSweep(t, 6*time.Minute, "refused")
	w.Books.CheckAtRest(t)
}

func TestPaying_UnfinishedThenCompletes(t *testing.T) {
	w := inProcess(t)
	b := w.Paying(t, 1, "N1", "payer", payingLength)
	w.wantSweep(t, payingLength, "unfinished")
	w.Gateway.Finish(b.Payment.ID)
	w.wantSweep(t, 6*time.Minute, "confirmed")
	w.wantPaid(t, b)
}

// Between two "not finished" anything may happen but a clear answer.
func TestPaying_UnfinishedDoubtUnfinishedIsFinal(t *testing.T) {
	w := inProcess(t)
	b := w.Paying(t, 1, "N1", "payer", payingLength)
	w.wantSweep(t, payingLength, "unfinished")
	w.Gateway.Next(bookingtest.Execute, b.Payment.ID, bookingtest.LostCall())
	w.wantSweep(t, 6*time.Minute, "doubt")
	w.wantSweep(t, 11*time.Minute, "refused", "released")
	w.wantReleased(t, b, 1)
}

func TestPaying_LapsedPaymentIsOver(t *testing.T) {
	const lapsed = 24*time.Hour + 2*time.Minute
	t.Run("not completed", func(t *testing.T) {
		w := inProcess(t)
		b := w.Paying(t, 1, "N1", "payer", payingLength)
		w.Gateway.Always(bookingtest.Execute, b.Payment.ID, bookingtest.LostCall())
		w.wantSweep(t, payingLength, "doubt")
		w.wantCalls(t, b, 1, 1)
		w.wantSweep(t, lapsed, "refused", "released")
		w.wantCalls(t, b, 3, 1) // asked before either step, not executed
		w.wantReleased(t, b, 1)
	})
	t.Run("completed", func(t *testing.T) {
		w := inProcess(t)
		b := w.Paying(t, 1, "N1", "payer", payingLength)
		w.Gateway.Complete(b.Payment.ID)
		w.wantSweep(t, lapsed, "confirmed")
		w.wantPaid(t, b)
	})
	t.Run("no answer", func(t *testing.T) {
		w := inProcess(t)
		b := w.Paying(t, 1, "N1", "payer", payingLength)
		w.Gateway.Always(bookingtest.Query, b.Payment.ID, bookingtest.LostCall())
		w.wantSweep(t, lapsed, "missed")
		w.Want(t, b, booking.PhasePaying, booking.StateHeld)
		w.wantCalls(t, b, 1, 0)
	})
	t.Run("an unclear answer", func(t *testing.T) {
		w := inProcess(t)
		b := w.Paying(t, 1, "N1", "payer", payingLength)
		w.Gateway.Next(bookingtest.Query, b.Payment.ID, bookingtest.Garbled())
		w.wantSweep(t, lapsed, "refused", "released")
		w.wantReleased(t, b, 1)
	})
}

func TestLapsed_ReleasesArePutOffWhileReplicasDoNotAcknowledge(t *testing.T) {
	w := inProcess(t)
	b, paid := w.Held(t, 1, "N1"), w.Held(t, 2, "N1")
	w.Gateway.Complete(paid.Payment.ID)
	usual := w.sweeper
	w.deps.Ledger = resting{w.Ledger}
	w.sweeper = w.another(t)
	w.wantSweep(t, booking.DefaultHold, "confirmed", "put_off")
	w.Want(t, b, booking.PhaseHeld, booking.StateHeld)
	w.sweeper = usual
	w.wantSweep(t, 0, "released")
	w.Want(t, b, "", booking.StateReleased)
}

// resting is a ledger whose replicas do not acknowledge.
type resting struct{ reconcile.Ledger }

func (resting) ReleasesPutOff() bool { return true }

// unheard is a ledger of a process that has heard of no missing acknowledgement,
// and whose replicas do not acknowledge so many times that it asks.
type unheard struct {
	reconcile.Ledger
	times, asked atomic.Int64
}

func (u *unheard) Acknowledges(context.Context) error {
	if u.asked.Add(1) <= u.times.Load() {
		return booking.ErrNotAcknowledged
	}
	return nil
}

func (*unheard) ReleasesPutOff() bool { return false }

func TestLapsed_ReplicasAreAskedOnceASweepBeforeAnythingIsReleased(t *testing.T) {
	w := inProcess(t)
	all := []bookingtest.Booking{w.Held(t, 1, "N1"), w.Held(t, 2, "N1"), w.Held(t, 3, "N2")}
	u := &unheard{Ledger: w.Ledger}
	u.times.Store(1)
	w.deps.Ledger = u
	w.sweeper = w.another(t)
	w.wantSweep(t, 0)
	if n := u.asked.Load(); n != 0 {
		t.Errorf("questions to the replicas of a sweep without a release: got %d, want 0", n)
	}
	w.wantSweep(t, booking.DefaultHold, "put_off", "put_off", "put_off")
	for _, b := range all {
		w.Want(t, b, booking.PhaseHeld, booking.StateHeld)
	}
	if n := u.asked.Load(); n != 1 {
		t.Errorf("questions to the replicas: got %d, want 1", n)
	}
	if got := w.log.take(); len(got) != 1 || !strings.Contains(got[0], "replicas do not acknowledge") {
		t.Errorf("errors in the log: got %q, want one that says so", got)
	}
	w.wantSweep(t, 0, "released", "released", "released")
	if n := u.asked.Load(); n != 2 {
		t.Errorf("questions to the replicas after the next sweep: got %d, want 2", n)
	}
}

// The same of a real pair: this process has admitted, released and heard nothing
// since its replica went.
func TestLapsed_NothingIsReleasedWithoutAReplica(t *testing.T) {
	w := onPair(t)
	b := w.Held(t, 1, "N1")
	if err := w.pair.Replicas[0].Freeze(); err != nil {
		t.Fatal(err)
	}
	w.wantSweep(t, booking.DefaultHold, "put_off")
	w.Want(t, b, booking.PhaseHeld, booking.StateHeld)
	if n := w.Faults.Calls(bookingtest.OpRelease); n != 0 {
		t.Errorf("releases tried: got %d, want 0", n)
	}
	if err := w.pair.Replicas[0].Thaw(); err != nil {
		t.Fatal(err)
	}
}

func TestPaying_AnnouncesItsExecuteCall(t *testing.T) {
	w := inProcess(t)
	b := w.Paying(t, 1, "N1", "payer", payingLength)
	w.Faults.Next(bookingtest.OpAnnounce, bookingtest.Lost)
	w.wantSweep(t, payingLength, "failed")
	w.wantCalls(t, b, 1, 0) // not announced, not executed
	w.wantSweep(t, payingLength, "unfinished")
	w.wantCalls(t, b, 2, 1)
}

func TestPaid_UnsendableMailIsLoudAndDoesNotCrowdTheSweeps(t *testing.T) {
	w := inProcess(t)
	b := w.Held(t, 1, "N1")
	w.Gateway.Complete(b.Payment.ID)
	address := prefix + "candidate:email:" + b.Code
	w.rdb.Del(t.Context(), address)
	w.wantSweep(t, booking.DefaultHold, "confirmed")
	w.log.take()
	w.wantSweep(t, time.Minute, "unsendable")
	if got := w.log.take(); len(got) != 1 || got[0] != "mail" {
		t.Errorf("errors in the log: got %q, want the mail's", got)
	}
	w.wantSweep(t, 9*time.Minute)
	w.wantSweep(t, time.Minute, "unsendable")
	w.Want(t, b, booking.PhasePaid, booking.StatePaid)
	w.rdb.Set(t.Context(), address, bookingtest.Email(1), 0)
	w.wantSweep(t, 10*time.Minute, "resumed")
	w.wantPaid(t, b)
}

// Doubt.

// loud tells how often a human was called.
func loud(messages []string) int {
	n := 0
	for _, m := range messages {
		if strings.HasPrefix(m, "payment in doubt") {
			n++
		}
	}
	return n
}

func TestDoubt_AfterThreeExtensionsCallsAHumanAndKeepsTheSeat(t *testing.T) {
	w := inProcess(t)
	b := w.Paying(t, 1, "N1", "payer", payingLength)
	w.Gateway.Always(bookingtest.Execute, b.Payment.ID, bookingtest.Garbled())
	w.wantSweep(t, payingLength, "doubt")
	for range 2 {
		w.wantSweep(t, 9*time.Minute)
		w.wantSweep(t, time.Minute+5*time.Second, "doubt")
	}
	if n := loud(w.log.take()); n != 0 {
		t.Errorf("calls for a human before the fourth doubt: got %d, want 0", n)
	}
	for range 12 { // two hours
		w.wantSweep(t, 10*time.Minute+5*time.Second, "doubt")
		if n := loud(w.log.take()); n != 1 {
			t.Errorf("calls for a human: got %d, want 1 at every look", n)
		}
		w.Want(t, b, booking.PhasePaying, booking.StateHeld)
		w.Books.CheckAtRest(t)
	}
	w.Gateway.Complete(b.Payment.ID)
	w.wantSweep(t, 11*time.Minute, "confirmed")
	w.wantPaid(t, b)
}

// What is in doubt is never housekeeping's: its record has no TTL once a person is
// called.
func TestDoubt_RecordIsKeptFromHousekeeping(t *testing.T) {
	w := inProcess(t)
	w.deps.Keeper = w.Store
	w.sweeper = w.another(t)
	b := w.Paying(t, 1, "N1", "payer", payingLength)
	w.Gateway.Always(bookingtest.Execute, b.Payment.ID, bookingtest.Garbled())
	ttl := func() time.Time {
		rec, err := w.Store.Record(t.Context(), b.Record.CandidateHash, b.Attempt)
		if err != nil || rec.State != booking.StateHeld {
			t.Fatalf("record: got %+v, %v, want it HELD", rec, err)
		}
		return rec.TTL
	}
	w.wantSweep(t, payingLength, "doubt")
	for range 2 {
		w.wantSweep(t, 10*time.Minute+5*time.Second, "doubt")
		if ttl().IsZero() {
			t.Error("TTL before a person is called: got none, want it still there")
		}
	}
	w.wantSweep(t, 10*time.Minute+5*time.Second, "doubt")
	if got := ttl(); !got.IsZero() {
		t.Errorf("TTL of a record in doubt: got %s, want none", got)
	}
}

func TestHeld_ThreeMissingAnswersAreADoubt(t *testing.T) {
	for name, silent := range map[string]bookingtest.Answer{"silent": bookingtest.LostCall(), "garbled": bookingtest.Garbled()} {
		t.Run(name, func(t *testing.T) {
			w := inProcess(t)
			b := w.Held(t, 1, "N1")
			w.Gateway.Always(bookingtest.Query, b.Payment.ID, silent)
			deadline := w.Row(t, b.Code).Deadline
			w.wantSweep(t, booking.DefaultHold, "missed")
			for range 3 {
				w.wantSweep(t, 25*time.Second, "missed")
				w.wantSweep(t, 25*time.Second, "doubt")
				w.wantSweep(t, 9*time.Minute)
				w.wantSweep(t, 2*time.Minute, "missed")
			}
			w.wantSweep(t, 25*time.Second, "missed")
			if n := loud(w.log.take()); n != 0 {
				t.Errorf("calls for a human before the fourth doubt: got %d, want 0", n)
			}
			w.wantSweep(t, 25*time.Second, "doubt")
			if n := loud(w.log.take()); n != 1 {
				t.Errorf("calls for a human: got %d, want 1", n)
			}
			w.Want(t, b, booking.PhaseHeld, booking.StateHeld)
			if got := w.Row(t, b.Code).Deadline; got != deadline {
				t.Errorf("time to pay: got until %d, want %d as before", got, deadline)
			}
			wantErr(t, "payer's return", w.settler.Return(t.Context(), b.Code, b.Attempt, b.Payment.ID), booking.ErrDeadlinePassed)
			w.Books.CheckAtRest(t)
			w.Gateway.Always(bookingtest.Query, b.Payment.ID, bookingtest.Obey())
			w.wantSweep(t, 11*time.Minute, "released")
			w.wantReleased(t, b, 1)
		})
	}
}

func TestGatewayUnreachable_CountsAndReleasesNothing(t *testing.T) {
	w := inProcess(t)
	all := []bookingtest.Booking{w.Held(t, 1, "N1"), w.Refused(t, 2, "N1"), w.Paying(t, 3, "N2", "payer", payingLength), w.Held(t, 4, "N2")}
	w.Gateway.Always(bookingtest.Query, "", bookingtest.NotSent())
	w.Gateway.Always(bookingtest.Execute, "", bookingtest.NotSent())
	w.wantSweep(t, booking.DefaultHold, "outage", "outage", "outage", "outage")
	for range 30 {
		w.wantSweep(t, 65*time.Second, "outage", "outage", "outage", "outage")
		if got := w.log.take(); len(got) == 0 {
			t.Error("an outage of the gateway: got no error logged, want it said")
		}
	}
	for _, b := range all {
		if row := w.Row(t, b.Code); row.Looks != 0 || row.Misses != 0 {
			t.Errorf("row of %s: got %d extensions and %d misses, want nothing counted", b.Code, row.Looks, row.Misses)
		}
	}
	w.Want(t, all[0], booking.PhaseHeld, booking.StateHeld)
	w.Want(t, all[1], booking.PhaseRefused, booking.StateReleased)
	w.Want(t, all[2], booking.PhasePaying, booking.StateHeld)
	w.Books.CheckAtRest(t)

	w.Gateway.Always(bookingtest.Query, "", bookingtest.Obey())
	w.Gateway.Always(bookingtest.Execute, "", bookingtest.Obey())
	w.Gateway.Complete(all[0].Payment.ID)
	w.wantSweep(t, 65*time.Second, "confirmed", "released", "unfinished", "released")
	w.Want(t, all[0], booking.PhasePaid, booking.StatePaid)
	w.Books.CheckAtRest(t)
}

// One outage is one alarm, however many rows wait for it.
func TestGatewayUnreachable_IsSaidOnceASweep(t *testing.T) {
	w := inProcess(t)
	for i := range 3 {
		w.Held(t, i+1, "N1")
	}
	w.Gateway.Always(bookingtest.Query, "", bookingtest.NotSent())
	for i, after := range []time.Duration{booking.DefaultHold, 65 * time.Second} {
		w.wantSweep(t, after, "outage", "outage", "outage")
		if got := w.log.take(); len(got) != 1 {
			t.Errorf("sweep %d: got errors %q, want one", i+1, got)
		}
	}
}

func TestUnknownAnswer_NeverReleases(t *testing.T) {
	for name, answer := range map[string]bookingtest.Answer{
		"silent": bookingtest.LostCall(), "garbled": bookingtest.Garbled(), "not sent": bookingtest.NotSent(),
		"a word nobody knows": {Change: func(c *booking.Charge) { c.Status = booking.ChargeUnknown; c.Code = "0000" }},
	} {
		t.Run(name, func(t *testing.T) {
			w := inProcess(t)
			held, refused, payable := w.Held(t, 1, "N1"), w.Refused(t, 2, "N1"), w.Payable(t, 3, "N1")
			paying := w.Paying(t, 4, "N2", "payer", payingLength)
			w.Gateway.Always(bookingtest.Query, "", answer)
			w.Gateway.Always(bookingtest.Execute, "", answer)
			w.Clock.Advance(booking.DefaultHold)
			for range 20 {
				report := w.sweep(t, 5*time.Minute)
				if report["released"]+report["undone"]+report["refused"] > 0 {
					t.Fatalf("sweep: got %v, want nothing given back", report)
				}
			}
			w.Want(t, held, booking.PhaseHeld, booking.StateHeld)
			w.Want(t, refused, booking.PhaseRefused, booking.StateReleased)
			w.Want(t, payable, booking.PhasePayable, booking.StateHeld)
			w.Want(t, paying, booking.PhasePaying, booking.StateHeld)
			w.Books.CheckAtRest(t)
		})
	}
}

// Money otherwise than ordered goes back, and is "not completed" for the seat: a
// hold that has lapsed is released, a payment at work is over and its seat is not.
func TestCompletedOtherwiseThanOrdered_GoesBack(t *testing.T) {
	for _, c := range []struct {
		name   string
		make   func(w *world, t *testing.T) bookingtest.Booking
		after  time.Duration
		action string
		phase  booking.Phase
	}{
		{"held", func(w *world, t *testing.T) bookingtest.Booking { return w.Held(t, 1, "N1") }, booking.DefaultHold, "released", ""},
		{"payable", func(w *world, t *testing.T) bookingtest.Booking { return w.Payable(t, 1, "N1") }, booking.DefaultHold, "released", ""},
		{"refused", func(w *world, t *testing.T) bookingtest.Booking { return w.Refused(t, 1, "N1") }, booking.DefaultHold, "released", ""},
		{"paying", func(w *world, t *testing.T) bookingtest.Booking { return w.Paying(t, 1, "N1", "p", payingLength) }, payingLength, "refused", booking.PhaseRefused},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := inProcess(t)
			b := c.make(w, t)
			w.Gateway.Divert(b.Payment.ID, func(c *booking.Charge) { c.Amount = 100 })
			w.Gateway.Complete(b.Payment.ID)
			w.wantSweep(t, c.after, c.action)
			w.Want(t, b, c.phase, booking.StateReleased)
			w.WantRefund(t, b, "TX"+b.Payment.ID, booking.MoneyOther, "other_than_ordered")
			w.Books.CheckAtRest(t)
			w.pays(t, w.Held(t, 1, "N1"))
		})
	}
}

// Each step of that can break off, lost or kept; later sweeps end it the same way.
func TestCompletedOtherwiseThanOrdered_EveryStepLostOrKept(t *testing.T) {
	for _, op := range []bookingtest.Op{
		bookingtest.OpLate, bookingtest.OpPutRefund, bookingtest.OpEndPay, bookingtest.OpReleaseRecord, bookingtest.OpRecordReleased,
	} {
		for name, fault := range map[string]bookingtest.Fault{"lost": bookingtest.Lost, "kept": bookingtest.Kept} {
			t.Run(string(op)+" "+name, func(t *testing.T) {
				w := inProcess(t)
				b := w.Paying(t, 1, "N1", "p", payingLength)
				w.Gateway.Divert(b.Payment.ID, func(c *booking.Charge) { c.Currency = "USD" })
				w.Gateway.Complete(b.Payment.ID)
				w.Faults.Next(op, fault, fault)
				w.sweep(t, payingLength)
				w.Books.Check(t)
				for range 3 {
					w.sweep(t, time.Minute)
					w.Books.Check(t)
				}
				w.Want(t, b, booking.PhaseRefused, booking.StateReleased)
				w.WantRefund(t, b, "TX"+b.Payment.ID, booking.MoneyOther, "other_than_ordered")
				w.Books.CheckAtRest(t)
			})
		}
	}
}

// Money of which only a person can say what it is: the seat is kept, and after
// three extensions somebody is called.
func TestCompletedNonsense_IsADoubt(t *testing.T) {
	for name, change := range map[string]func(*booking.Charge){
		"another payment": func(c *booking.Charge) { c.PaymentID = "TR999999" },
		"no transaction":  func(c *booking.Charge) { c.Transaction = "" },
		"nothing paid":    func(c *booking.Charge) { c.Amount = 0 },
	} {
		t.Run(name, func(t *testing.T) {
			w := inProcess(t)
			held, paying := w.Held(t, 1, "N1"), w.Paying(t, 2, "N1", "p", booking.DefaultHold)
			for _, b := range []bookingtest.Booking{held, paying} {
				w.Gateway.Complete(b.Payment.ID)
				w.Gateway.Always(bookingtest.Query, b.Payment.ID, bookingtest.Altered(change))
			}
			w.wantSweep(t, booking.DefaultHold+time.Second, "doubt", "doubt")
			for range 3 {
				w.log.take()
				w.wantSweep(t, 11*time.Minute, "doubt", "doubt")
			}
			if n := loud(w.log.take()); n != 2 {
				t.Errorf("calls for a human after three extensions: got %d, want 2", n)
			}
			w.Want(t, held, booking.PhaseHeld, booking.StateHeld)
			w.Want(t, paying, booking.PhasePaying, booking.StateHeld)
			for _, b := range []bookingtest.Booking{held, paying} {
				w.Gateway.Always(bookingtest.Query, b.Payment.ID, bookingtest.Obey())
			}
			w.wantSweep(t, 11*time.Minute, "confirmed", "confirmed")
			w.wantPaid(t, held)
		})
	}
}

// A failover or a rebuild brought the row of money back that goes back already: it
// is released, not asked about for ever.
func TestLapsed_RowWhoseMoneyWentBackIsReleased(t *testing.T) {
	for _, phase := range []booking.Phase{booking.PhaseHeld, booking.PhasePaying} {
		t.Run(string(phase), func(t *testing.T) {
			w := inProcess(t)
			b := w.Paying(t, 1, "N1", "p", payingLength)
			row := w.Row(t, b.Code)
			w.pays(t, w.Held(t, 2, "N1"))
			w.pays(t, w.Held(t, 3, "N1"))
			w.lose(t, b)
			full := w.Held(t, 4, "N1")
			w.Gateway.Complete(b.Payment.ID)
			w.wantCheck(t, 3*time.Minute, []string{"refunded"})
			w.WantRefund(t, b, "TX"+b.Payment.ID, booking.MoneyLate, "full")
			w.Want(t, b, "", booking.StateReleased)
			w.lose(t, full)
			w.wantCheck(t, 0, []string{"released"})

			if row.Phase = phase; phase == booking.PhaseHeld {
				row.Owner, row.Ends = "", 0
			}
			w.regain(t, b, row)
			for range 3 {
				w.sweep(t, booking.DefaultHold)
				w.Books.Check(t)
			}
			w.Want(t, b, "", booking.StateReleased)
			w.Books.CheckAtRest(t)
		})
	}
}

// Row "paid": what is missing is finished.

func TestPaid_FinishesRecordAndMail(t *testing.T) {
	for op, action := range map[bookingtest.Op]string{
		bookingtest.OpMarkPaid: "failed", bookingtest.OpRecordDone: "failed",
		bookingtest.OpMail: "resumed", // another sender's claim is not over, for all it knows
	} {
		t.Run(string(op), func(t *testing.T) {
			w := inProcess(t)
			b := w.Held(t, 1, "N1")
			w.Gateway.Finish(b.Payment.ID)
			w.Faults.Always(op, bookingtest.Lost)
			_ = w.settler.Return(t.Context(), b.Code, b.Attempt, b.Payment.ID) // the sweep finishes it
			w.Background.Wait()
			w.wantSweep(t, 59*time.Second)
			w.wantSweep(t, 6*time.Second, action)
			w.Books.Check(t)
			w.Faults.Always(op, bookingtest.None)
			for range 3 { // a mail's claim may have to end first
				w.sweep(t, 65*time.Second)
			}
			w.wantPaid(t, b)
			w.wantSweep(t, 24*time.Hour) // nobody looks again
		})
	}
}

// What is not acknowledged, and what fails half-way.

func TestRelease_NotAcknowledgedLeavesTheRecord(t *testing.T) {
	w := onPair(t)
	b := w.Held(t, 1, "N1")
	w.Faults.Before(bookingtest.OpRelease, func() {
		if err := w.pair.Replicas[0].Freeze(); err != nil {
			t.Error(err)
		}
	})
	w.wantSweep(t, booking.DefaultHold, "failed")
	// The primary has let the seat go, and a failover may bring it back: the record
	// says HELD until the cross-check has an acknowledged answer.
	w.Want(t, b, "", booking.StateHeld)
	w.wantSweep(t, time.Minute)
	w.Want(t, b, "", booking.StateHeld)
	w.Books.Check(t)
}

func TestUndo_NotAcknowledgedFreesTheSeatAllTheSame(t *testing.T) {
	w := inProcess(t)
	w.Admit(t, 1, "N1")
	w.Faults.Next(bookingtest.OpUndo, bookingtest.Kept)
	w.wantSweep(t, 2*time.Minute, "failed")
	w.wantSweep(t, time.Minute)
	w.Books.CheckAtRest(t)
}

// The seat is free and the record says HELD, with its payment: nobody's row any
// more, so no later sweep looks at it. It waits for the cross-check.
func TestRelease_RecordThatCannotBeEndedStaysAsATrace(t *testing.T) {
	w := inProcess(t)
	b := w.Held(t, 1, "N1")
	w.Faults.Next(bookingtest.OpReleaseRecord, bookingtest.Lost)
	w.wantSweep(t, booking.DefaultHold, "failed")
	w.Want(t, b, "", booking.StateHeld)
	w.wantSweep(t, 24*time.Hour)
	w.Want(t, b, "", booking.StateHeld)
	w.Books.Check(t)
	rec, err := w.Store.RecordByPayment(t.Context(), b.Payment.ID)
	if err != nil || rec.Attempt != b.Attempt {
		t.Errorf("record of the payment: got %s, %v, want %s: late money must find it", rec.Attempt, err, b.Attempt)
	}
	w.Write(t, w.Held(t, 1, "N1")) // the candidate is not kept from booking
	w.Books.Check(t)
}

// Every write of every row's way, lost and kept but reported lost: the rules hold
// after each sweep, and the row comes to its end. What a release leaves behind in
// the store is the cross-check's.
func TestEveryWriteLostOrKept(t *testing.T) {
	held := func(w *world, t *testing.T) bookingtest.Booking { return w.Held(t, 1, "N1") }
	unwritten := func(w *world, t *testing.T) bookingtest.Booking { return w.Unwritten(t, 1, "N1") }
	payable := func(w *world, t *testing.T) bookingtest.Booking { return w.Payable(t, 1, "N1") }
	paying := func(w *world, t *testing.T) bookingtest.Booking { return w.Paying(t, 1, "N1", "p", payingLength) }
	nothing := func(*bookingtest.Gateway, string) {}
	finish := func(g *bookingtest.Gateway, id string) { g.Finish(id) }
	complete := func(g *bookingtest.Gateway, id string) { g.Complete(id) }
	refuse := func(g *bookingtest.Gateway, id string) { g.Refuse(id, "2023") }
	silent := func(g *bookingtest.Gateway, id string) { g.Next(bookingtest.Query, id, bookingtest.LostCall()) }
	for _, c := range []struct {
		op      bookingtest.Op
		row     string
		make    func(w *world, t *testing.T) bookingtest.Booking
		gateway func(g *bookingtest.Gateway, id string)
		phase   booking.Phase
		state   booking.RecordState
		trace   bookingtest.Fault // this fault leaves a HELD record to the cross-check
	}{
		{bookingtest.OpQueued, "payable", payable, nothing, "", booking.StateReleased, bookingtest.None},
		{bookingtest.OpPutHeld, "payable", payable, nothing, "", booking.StateReleased, bookingtest.None},
		{bookingtest.OpPutHeld, "unwritten and paid", unwritten, complete, booking.PhasePaid, booking.StatePaid, bookingtest.None},
		{bookingtest.OpRelease, "held", held, nothing, "", booking.StateReleased, bookingtest.Kept},
		{bookingtest.OpReleaseRecord, "held", held, nothing, "", booking.StateReleased, bookingtest.Lost},
		{bookingtest.OpPostpone, "held and silent", held, silent, "", booking.StateReleased, bookingtest.None},
		{bookingtest.OpSettle, "held and paid", held, complete, booking.PhasePaid, booking.StatePaid, bookingtest.None},
		{bookingtest.OpMarkPaid, "held and paid", held, complete, booking.PhasePaid, booking.StatePaid, bookingtest.None},
		{bookingtest.OpTakeOverPay, "paying and finished", paying, finish, booking.PhasePaid, booking.StatePaid, bookingtest.None},
		{bookingtest.OpSettle, "paying and finished", paying, finish, booking.PhasePaid, booking.StatePaid, bookingtest.None},
		{bookingtest.OpEndPay, "paying and refused", paying, refuse, "", booking.StateReleased, bookingtest.None},
		{bookingtest.OpReleaseRecord, "paying and refused", paying, refuse, "", booking.StateReleased, bookingtest.None},
		{bookingtest.OpRecordReleased, "paying and refused", paying, refuse, "", booking.StateReleased, bookingtest.None},
		{bookingtest.OpPostpone, "paying and unfinished", paying, nothing, "", booking.StateReleased, bookingtest.None},
	} {
		for name, fault := range map[string]bookingtest.Fault{"lost": bookingtest.Lost, "kept": bookingtest.Kept} {
			t.Run(fmt.Sprintf("%s: %s %s", c.row, c.op, name), func(t *testing.T) {
				w := inProcess(t)
				b := c.make(w, t)
				c.gateway(w.Gateway, b.Payment.ID)
				w.Faults.Next(c.op, fault)
				for range 15 {
					w.sweep(t, time.Minute)
					w.Books.Check(t)
				}
				if fault == c.trace {
					w.Want(t, b, c.phase, booking.StateHeld)
					return
				}
				w.Want(t, b, c.phase, c.state)
				w.Books.CheckAtRest(t)
			})
		}
	}
}

// A refusal that was never noted has used up the payment's one execution: from
// then on the gateway only says that there was one, until nothing can be executed
// any more.
func TestPaying_RefusalThatWasNotNotedIsADoubtUntilThePaymentLapses(t *testing.T) {
	w := inProcess(t)
	b := w.Paying(t, 1, "N1", "p", payingLength)
	w.Gateway.Refuse(b.Payment.ID, "2023")
	w.Faults.Next(bookingtest.OpEndPay, bookingtest.Lost, bookingtest.Lost)
	w.wantSweep(t, payingLength, "failed")
	for range 20 {
		w.wantSweep(t, 11*time.Minute, "doubt")
		w.Want(t, b, booking.PhasePaying, booking.StateHeld)
	}
	w.wantSweep(t, 24*time.Hour, "refused", "released")
	w.wantReleased(t, b, 1)
}

// What cannot be read.

func TestUnreadableRow_DoesNotStopTheOthers(t *testing.T) {
	w := inProcess(t)
	b := w.Held(t, 1, "N1")
	w.Held(t, 2, "N1")
	if err := w.rdb.HSet(t.Context(), prefix+"adm:seen", bookingtest.Code(2), "{nothing").Err(); err != nil {
		t.Fatal(err)
	}
	w.wantSweep(t, booking.DefaultHold, "released", "damaged")
	if got := w.State(t, b); got != booking.StateReleased {
		t.Errorf("record of the readable one: got %s, want RELEASED", got)
	}
	w.wantSweep(t, 9*time.Minute)
	w.wantSweep(t, time.Minute, "damaged")
}

// However many due rows are missing or damaged, and however long they have been
// due, the others are looked at in the same sweep.
func TestDamagedRows_DoNotStarveTheOthers(t *testing.T) {
	w := inProcess(t)
	b := w.Held(t, 1, "N1")
	w.log.take()
	const n = 40 // more in a row than end a sweep
	for i := range n {
		code := fmt.Sprintf("X%03d", i)
		if i%2 == 0 {
			text := []string{"{nothing", `{}`, `{"attempt":"a","level":"N1","phase":"held","deadline":"soon"}`, `{"attempt":"a","level":"N1","phase":"gone"}`}[i/2%4]
			w.rdb.HSet(t.Context(), prefix+"adm:seen", code, text)
		}
		w.rdb.ZAdd(t.Context(), prefix+"adm:due", redis.Z{Score: 1, Member: code})
	}
	report := w.sweep(t, booking.DefaultHold)
	if want := (reconcile.Report{"damaged": n, "released": 1}); !maps.Equal(want, report) {
		t.Errorf("sweep: got %v, want %v", report, want)
	}
	if got := w.State(t, b); got != booking.StateReleased {
		t.Errorf("record of the readable one: got %s, want RELEASED", got)
	}
	if got := w.log.take(); len(got) != 1 || !strings.Contains(got[0], "run the audit") {
		t.Errorf("errors in the log: got %q, want one for all of them", got)
	}
	if got := w.sweep(t, 9*time.Minute); len(got) != 0 {
		t.Errorf("sweep nine minutes later: got %v, want nothing due", got)
	}
	if got := w.sweep(t, time.Minute); got["damaged"] != n {
		t.Errorf("sweep ten minutes later: got %v, want them looked at again", got)
	}
}

// Rows damaged beyond what the scripts say: the seat of a level that is not sold.
func TestDamagedRow_OfALevelThatIsNotSoldIsSetAside(t *testing.T) {
	w := inProcess(t)
	held, fresh := w.Held(t, 1, "N1"), w.Admit(t, 2, "N1")
	for code, row := range map[string]booking.Row{held.Code: w.Row(t, held.Code), bookingtest.Code(2): fresh} {
		row.Level = "N9"
		w.putRow(t, code, row)
	}
	w.wantSweep(t, booking.DefaultHold, "damaged", "damaged")
	w.wantSweep(t, 9*time.Minute)
	w.wantSweep(t, time.Minute+time.Second, "damaged", "damaged")
}

// What was learnt of a payment before its execute call was announced ends no
// record.
func TestLapsed_RecordAnnouncedMeanwhileIsKept(t *testing.T) {
	w := inProcess(t)
	b := w.Held(t, 1, "N1")
	w.Faults.Before(bookingtest.OpReleaseRecord, func() { w.announce(t, b) })
	w.wantSweep(t, booking.DefaultHold, "moved")
	w.Want(t, b, "", booking.StateHeld)
	w.Books.Check(t)
	w.check(t, time.Minute) // which knows of the announcement
	w.Want(t, b, "", booking.StateHeld)
}

// A payment that was announced, and whose payer had not finished, is released at
// its deadline all the same: the answer is younger than the announcement.
func TestLapsed_RecordAnnouncedBeforeIsEnded(t *testing.T) {
	w := inProcess(t)
	b := w.Held(t, 1, "N1")
	if err := w.settler.Return(t.Context(), b.Code, b.Attempt, b.Payment.ID); err != nil {
		t.Fatal(err)
	}
	w.Want(t, b, booking.PhaseHeld, booking.StateHeld)
	w.wantSweep(t, booking.DefaultHold, "released")
	w.wantReleased(t, b, 1)
}

// A refusal whose record was announced meanwhile is finished by the next look,
// which reads the record again.
func TestRefused_RecordAnnouncedMeanwhileIsReadAgain(t *testing.T) {
	w := inProcess(t)
	b := w.Paying(t, 1, "N1", "payer", payingLength)
	w.Gateway.Refuse(b.Payment.ID, "2023")
	w.Faults.Before(bookingtest.OpReleaseRecord, func() { w.Clock.Advance(time.Second); w.announce(t, b) })
	w.wantSweep(t, payingLength, "moved")
	w.Want(t, b, booking.PhaseRefused, booking.StateHeld)
	w.wantSweep(t, time.Minute, "refused")
	w.Want(t, b, booking.PhaseRefused, booking.StateReleased)
	w.Books.CheckAtRest(t)
}

// A mail provider that is down holds up no seat, however many mails it owes.
func TestPaid_MailOutageHoldsUpNoRelease(t *testing.T) {
	w := inProcess(t)
	w.deps.Width = 1
	w.sweeper = w.another(t)
	w.Faults.Always(bookingtest.OpMail, bookingtest.Lost)
	var paid []bookingtest.Booking
	for i := range 4 {
		b := w.Held(t, i+1, []string{"N1", "N2"}[i%2])
		w.Gateway.Finish(b.Payment.ID)
		if err := w.settler.Return(t.Context(), b.Code, b.Attempt, b.Payment.ID); err != nil {
			t.Fatal(err)
		}
		paid = append(paid, b)
	}
	w.Background.Wait()
	lapsed := w.Held(t, 5, "N2")
	tried := w.Faults.Calls(bookingtest.OpMail)
	w.log.take()
	// The mails have been due for longer than the seat.
	w.wantSweep(t, booking.DefaultHold, "mail_failed", "mail_put_off", "mail_put_off", "mail_put_off", "released")
	w.Want(t, lapsed, "", booking.StateReleased)
	if n := w.Faults.Calls(bookingtest.OpMail) - tried; n != 1 {
		t.Errorf("mails tried by one worker: got %d, want 1", n)
	}
	if got := w.log.takeWarnings(); !slices.Equal(got, []string{"mail"}) {
		t.Errorf("warnings: got %q, want one for the mail that was tried", got)
	}
	if got := w.log.take(); len(got) != 0 {
		t.Errorf("errors in the log: got %q, want none", got)
	}
	w.wantSweep(t, 50*time.Second) // each mail waits, and nothing else
	w.Faults.Always(bookingtest.OpMail, bookingtest.None)
	for range 4 { // claims must end
		w.sweep(t, time.Minute)
	}
	for _, b := range paid {
		w.Want(t, b, booking.PhasePaid, booking.StatePaid)
	}
	w.Books.CheckAtRest(t)
}

// A record that cannot be read keeps no seat: five are free all the same, loudly.
func TestUnreadableRecord_KeepsNoSeat(t *testing.T) {
	w := inProcess(t)
	var all []bookingtest.Booking
	for i := range 5 {
		all = append(all, w.Held(t, i+1, []string{"N1", "N2"}[i%2]))
	}
	w.exec(t, `UPDATE records SET body = '{"v":2}' WHERE attempt = ?`, all[0].Attempt)
	w.log.take()
	w.wantSweep(t, time.Hour, "failed", "released", "released", "released", "released")
	if got := w.log.take(); len(got) == 0 {
		t.Error("a record that cannot be read: got no error logged, want it said")
	}
	f, err := w.Ledger.ReadStatus(t.Context())
	if err != nil || f.Total != 0 {
		t.Errorf("seats admitted: got %d, %v, want 0", f.Total, err)
	}
	for _, b := range all[1:] {
		w.Want(t, b, "", booking.StateReleased)
	}
}

func TestUnreadableStash_KeepsNoSeat(t *testing.T) {
	w := inProcess(t)
	b := w.Unwritten(t, 1, "N1")
	if err := w.rdb.Set(t.Context(), prefix+"hold:attempt:"+b.Attempt, `{"v":2}`, 0).Err(); err != nil {
		t.Fatal(err)
	}
	w.wantSweep(t, booking.DefaultHold, "released")
	w.wantReleased(t, b, 1)
}

// The sweep itself.

func TestSweep_RowsThatHangHoldUpNoOther(t *testing.T) {
	w := empty(t)
	const rows, hanging = 300, 12
	freed := make(chan struct{}, rows)
	w.deps.Width, w.deps.Changed = 64, func() { freed <- struct{}{} }
	sweeper := w.another(t)
	hold := bookingtest.NewHold()
	now := w.Clock.Now()
	all := make([]booking.RestoredRow, rows)
	for i := range all {
		code, attempt := bookingtest.Code(i+1), booking.AttemptID(bookingtest.Epoch, booking.NewAttemptSuffix(now))
		p, err := w.Gateway.Create(t.Context(), booking.Order{Invoice: booking.Invoice(booking.CandidateHash(code), attempt)})
		if err != nil {
			t.Fatal(err)
		}
		at := now.Add(time.Duration(i) * time.Millisecond)
		all[i] = booking.RestoredRow{Code: code, Look: at, Payment: p, Row: booking.Row{
			Attempt: attempt, Level: "N1", Slot: int64(i + 1), Phase: booking.PhaseHeld, AdmittedAt: at.Add(-booking.DefaultHold).UnixMilli(),
			Hold: booking.DefaultHold.Milliseconds(), Amount: 100, Currency: "BDT", Deadline: at.UnixMilli(), Payment: p.ID,
		}}
		if i < hanging { // the oldest
			w.Gateway.Next(bookingtest.Query, p.ID, bookingtest.Late(hold))
		}
	}
	sale := bookingtest.Sale()
	sale.Cap, sale.Levels[0].Cap = rows, rows
	token, err := w.Ledger.BeginRebuild(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := w.Ledger.Restore(t.Context(), token, all); err != nil {
		t.Fatal(err)
	}
	if _, err := w.Ledger.FinishRebuild(t.Context(), sale, bookingtest.Epoch, token); err != nil {
		t.Fatal(err)
	}
	w.Clock.Advance(time.Minute)

	type result struct {
		report reconcile.Report
		err    error
	}
	ended := make(chan result, 1)
	go func() {
		report, err := sweeper.Sweep(t.Context())
		ended <- result{report, err}
	}()
	for range hanging {
		<-hold.Arrived()
	}
	for range rows - hanging {
		<-freed
	}
	f, err := w.Ledger.ReadStatus(t.Context())
	if err != nil || f.Total != hanging {
		t.Errorf("seats while %d hang: got %d, %v, want those alone", hanging, f.Total, err)
	}
	hold.LetGo()
	r := <-ended
	if r.err != nil || r.report["released"] != rows || len(r.report) != 1 {
		t.Errorf("sweep: got %v, %v, want %d released", r.report, r.err, rows)
	}
	w.Books.CheckAtRest(t)
}

func TestSweep_AfterItsEndStartsNoMoreAndFinishesWhatIsAtWork(t *testing.T) {
	w := inProcess(t)
	w.deps.Width = 1
	first, second := w.Held(t, 1, "N1"), w.Held(t, 2, "N1")
	w.Clock.Advance(booking.DefaultHold + time.Second)
	hold := bookingtest.NewHold()
	w.Gateway.Next(bookingtest.Query, first.Payment.ID, bookingtest.Late(hold))
	sweep, end := context.WithCancel(t.Context())
	defer end()
	ended := make(chan error, 1)
	go func() {
		_, err := w.another(t).Sweep(sweep)
		ended <- err
	}()
	<-hold.Arrived()
	end()
	hold.LetGo()
	wantErr(t, "sweep", <-ended, context.Canceled)
	w.Want(t, first, "", booking.StateReleased)
	w.Want(t, second, booking.PhaseHeld, booking.StateHeld)
	w.wantSweep(t, 0, "released")
	w.Books.CheckAtRest(t)
}

func TestSweep_LedgerThatDoesNotAnswerIsAnError(t *testing.T) {
	w := inProcess(t)
	w.Held(t, 1, "N1")
	w.Faults.Next(bookingtest.OpDue, bookingtest.Lost)
	_, err := w.sweeper.Sweep(t.Context())
	wantErr(t, "sweep", err, bookingtest.ErrLost)
	w.wantSweep(t, booking.DefaultHold, "released")
}

func TestSweep_LedgerWithoutAnEpochChangesNothing(t *testing.T) {
	w := empty(t)
	_, err := w.sweeper.Sweep(t.Context())
	wantErr(t, "sweep", err, booking.ErrLedgerUnknown)
}

// The fleet's own rate says nothing of a payment: a row that had no turn stays
// due and counts no missing answer.
func TestSweep_RowWithoutATurnToAskCountsNothing(t *testing.T) {
	w := inProcess(t)
	w.deps.QueriesPerSecond, w.deps.Width = 0.001, 1
	w.sweeper = w.another(t)
	first, second := w.Held(t, 1, "N1"), w.Held(t, 2, "N1")
	w.wantSweep(t, booking.DefaultHold+time.Second, "released", "failed")
	w.Want(t, first, "", booking.StateReleased)
	w.Want(t, second, booking.PhaseHeld, booking.StateHeld)
	if row := w.Row(t, second.Code); row.Misses != 0 || row.Looks != 0 {
		t.Errorf("row without a turn: got %d misses and %d extensions, want none", row.Misses, row.Looks)
	}
	w.wantCalls(t, second, 0, 0)
	w.Books.CheckAtRest(t)
}

func TestSweep_TwoProcessesAtOnceChangeNothingTwice(t *testing.T) {
	w := inProcess(t)
	w.Admit(t, 1, "N1")
	released, confirmed := w.Held(t, 2, "N1"), w.Held(t, 3, "N1")
	executed, payable := w.Paying(t, 4, "N2", "p", payingLength), w.Payable(t, 5, "N2")
	w.Gateway.Complete(confirmed.Payment.ID)
	w.Gateway.Finish(executed.Payment.ID)
	w.Clock.Advance(booking.DefaultHold)
	runners := []*reconcile.Reconciler{w.sweeper, w.another(t), w.another(t)}
	for range 3 {
		var all sync.WaitGroup
		for _, r := range runners {
			all.Go(func() {
				if _, err := r.Sweep(t.Context()); err != nil {
					t.Errorf("sweep: %v", err)
				}
			})
		}
		all.Wait()
		w.Background.Wait()
		w.Books.Check(t)
		w.Clock.Advance(time.Minute)
	}
	w.Want(t, released, "", booking.StateReleased)
	w.Want(t, payable, "", booking.StateReleased)
	w.Want(t, confirmed, booking.PhasePaid, booking.StatePaid)
	w.Want(t, executed, booking.PhasePaid, booking.StatePaid)
	w.wantCalls(t, executed, w.Gateway.Calls(bookingtest.Query, executed.Payment.ID), 1)
	w.Books.CheckAtRest(t)
}

func TestRun_GoesOnAfterAnErrorUntilItsContextEnds(t *testing.T) {
	w := inProcess(t)
	b := w.Held(t, 1, "N1")
	freed := make(chan struct{})
	w.deps.Changed = func() { close(freed) }
	w.Faults.Next(bookingtest.OpDue, bookingtest.Lost)
	w.Clock.Advance(booking.DefaultHold)
	run, end := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	sweeper := w.another(t)
	go func() { ended <- sweeper.Run(run) }()
	<-freed
	end()
	if err := <-ended; err != nil {
		t.Errorf("run: got %v, want nil", err)
	}
	w.Want(t, b, "", booking.StateReleased)
	if got := w.log.take(); !slices.Contains(got, "sweep") {
		t.Errorf("errors logged: got %q, want the sweep that broke off", got)
	}
}

func TestMetrics_SilenceIsWhatAlarms(t *testing.T) {
	w := inProcess(t)
	reg := prometheus.NewRegistry()
	d := w.deps
	d.Registerer = reg
	sweeper, err := reconcile.New(d)
	if err != nil {
		t.Fatal(err)
	}
	last := func() float64 {
		families, err := reg.Gather()
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range families {
			if f.GetName() == "holdfast_reconciler_last_success_timestamp_seconds" {
				return f.GetMetric()[0].GetGauge().GetValue()
			}
		}
		t.Fatal("the gauge of the last success is missing")
		return 0
	}
	w.Faults.Next(bookingtest.OpDue, bookingtest.Lost)
	if _, err := sweeper.Sweep(t.Context()); err == nil || last() != 0 {
		t.Errorf("after a sweep that broke off: got %v and a last success at %v, want an error and none", err, last())
	}
	if _, err := sweeper.Sweep(t.Context()); err != nil || last() == 0 {
		t.Errorf("after a sweep: got %v and a last success at %v, want one", err, last())
	}
}
