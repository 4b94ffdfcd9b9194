package reconcile_test

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"holdfast/internal/booking"
	"holdfast/internal/booking/bookingtest"
	"holdfast/internal/reconcile"
)

// These tests are the interleavings that broke an earlier text of the contract:
// one actor is stopped between two steps, others run, then it goes on. Holes 10
// and 25 are in package settle too; hole 29 is beside the rows it is about.

// doubt leaves an execute call of the payer in flight: no answer came, and the
// query said that the payment is open.
func (w *world) doubt(t *testing.T, b bookingtest.Booking) {
	t.Helper()
	w.Gateway.Finish(b.Payment.ID)
	w.Gateway.Next(bookingtest.Execute, b.Payment.ID, bookingtest.LostCall())
	wantErr(t, "return", w.settler.Return(t.Context(), b.Code, b.Attempt, b.Payment.ID), booking.ErrInDoubt)
	w.Want(t, b, booking.PhasePaying, booking.StateHeld)
}

// inBackground runs a sweep that the test stops somewhere.
func (w *world) inBackground(t *testing.T, r *reconcile.Reconciler) <-chan reconcile.Report {
	t.Helper()
	ended := make(chan reconcile.Report, 1)
	go func() {
		report, err := r.Sweep(t.Context())
		if err != nil {
			t.Errorf("sweep: %v", err)
		}
		ended <- report
	}()
	return ended
}

// Execute sent, no answer, the query says open, the end of 'paying' and the
// deadline pass: the seat is not released, whenever the money moves.
func TestHole1_ExecuteInFlightIsNeverReleased(t *testing.T) {
	t.Run("the first call was lost", func(t *testing.T) {
		w := inProcess(t)
		b := w.Held(t, 1, "N1")
		w.doubt(t, b)
		w.wantSweep(t, booking.DefaultHold, "confirmed")
		w.wantCalls(t, b, 2, 2)
		w.wantPaid(t, b)
	})
	t.Run("the first call arrives before the question", func(t *testing.T) {
		w := inProcess(t)
		b := w.Held(t, 1, "N1")
		w.doubt(t, b)
		w.Gateway.Complete(b.Payment.ID)
		w.wantSweep(t, booking.DefaultHold, "confirmed")
		w.wantCalls(t, b, 2, 1)
		w.wantPaid(t, b)
	})
	t.Run("the first call arrives after the question", func(t *testing.T) {
		w := inProcess(t)
		b := w.Held(t, 1, "N1")
		w.doubt(t, b)
		w.Clock.Advance(booking.DefaultHold)
		hold := bookingtest.NewHold()
		w.Gateway.Next(bookingtest.Query, b.Payment.ID, bookingtest.Late(hold))
		ended := w.inBackground(t, w.sweeper)
		<-hold.Arrived()
		w.Gateway.Complete(b.Payment.ID)
		hold.LetGo()
		if report := <-ended; report["doubt"] != 1 {
			t.Errorf("sweep: got %v, want a doubt", report)
		}
		w.Want(t, b, booking.PhasePaying, booking.StateHeld)
		w.wantSweep(t, 11*time.Minute, "confirmed")
		w.wantPaid(t, b)
	})
	t.Run("the first call arrives after everything", func(t *testing.T) {
		w := inProcess(t)
		b := w.Held(t, 1, "N1")
		w.doubt(t, b)
		w.Gateway.Always(bookingtest.Execute, b.Payment.ID, bookingtest.LostCall())
		w.Clock.Advance(booking.DefaultHold)
		for range 20 {
			w.wantSweep(t, 11*time.Minute, "doubt")
			w.Books.Check(t)
		}
		w.Gateway.Complete(b.Payment.ID)
		w.wantSweep(t, 11*time.Minute, "confirmed")
		w.wantPaid(t, b)
	})
}

// The reconciler asks only after its own begin-pay, and an old answer releases
// nothing that has moved since.
func TestHole2_OldAnswerReleasesNothing(t *testing.T) {
	t.Run("takes over before it asks", func(t *testing.T) {
		w := inProcess(t)
		b := w.Paying(t, 1, "N1", "p", payingLength)
		w.Faults.Before(bookingtest.OpTakeOverPay, func() { w.wantCalls(t, b, 0, 0) })
		w.wantSweep(t, payingLength, "unfinished")
	})
	t.Run("not taken over, not asked", func(t *testing.T) {
		w := inProcess(t)
		b := w.Paying(t, 1, "N1", "p", payingLength)
		w.Faults.Next(bookingtest.OpTakeOverPay, bookingtest.Kept)
		w.wantSweep(t, payingLength, "failed")
		w.wantCalls(t, b, 0, 0)
	})
	t.Run("settled while the answer was on its way", func(t *testing.T) {
		w := inProcess(t)
		b := w.Held(t, 1, "N1")
		w.Clock.Advance(booking.DefaultHold)
		hold := bookingtest.NewHold()
		w.Gateway.Next(bookingtest.Query, b.Payment.ID, bookingtest.Late(hold))
		ended := w.inBackground(t, w.sweeper)
		<-hold.Arrived() // the answer is: open
		w.Gateway.Complete(b.Payment.ID)
		if report, err := w.another(t).Sweep(t.Context()); err != nil || report["confirmed"] != 1 {
			t.Errorf("another runner: got %v, %v, want it confirmed", report, err)
		}
		w.Background.Wait()
		hold.LetGo()
		if report := <-ended; report["moved"] != 1 {
			t.Errorf("runner with the old answer: got %v, want that the row moved", report)
		}
		w.wantPaid(t, b)
	})
	t.Run("the payer cannot begin past the deadline", func(t *testing.T) {
		w := inProcess(t)
		b := w.Held(t, 1, "N1")
		w.Gateway.Finish(b.Payment.ID)
		w.Clock.Advance(booking.DefaultHold)
		hold := bookingtest.NewHold()
		w.Gateway.Next(bookingtest.Query, b.Payment.ID, bookingtest.Late(hold))
		ended := w.inBackground(t, w.sweeper)
		<-hold.Arrived()
		wantErr(t, "return", w.settler.Return(t.Context(), b.Code, b.Attempt, b.Payment.ID), booking.ErrDeadlinePassed)
		hold.LetGo()
		if report := <-ended; report["released"] != 1 {
			t.Errorf("sweep: got %v, want it released", report)
		}
		w.wantCalls(t, b, 1, 0)
		w.wantReleased(t, b, 1)
	})
}

// Release done, the runner pauses; the candidate books again and pays; the
// runner goes on: it ends its own attempt's record and no other.
func TestHole3_PausedRunnerEndsItsOwnRecordOnly(t *testing.T) {
	w := inProcess(t)
	old := w.Held(t, 1, "N1")
	var fresh bookingtest.Booking
	w.Faults.Before(bookingtest.OpReleaseRecord, func() {
		fresh = w.Held(t, 1, "N1")
		w.Gateway.Finish(fresh.Payment.ID)
		if err := w.settler.Return(t.Context(), fresh.Code, fresh.Attempt, fresh.Payment.ID); err != nil {
			t.Errorf("return: %v", err)
		}
	})
	w.wantSweep(t, booking.DefaultHold, "released")
	w.Want(t, old, "", booking.StateReleased)
	w.wantPaid(t, fresh)
}

// A record that was paid meanwhile is not ended, whoever thinks so.
func TestHole3_PaidRecordIsNotEnded(t *testing.T) {
	w := inProcess(t)
	b := w.Held(t, 1, "N1")
	w.pays(t, b)
	wantErr(t, "release record", w.settler.ReleaseRecord(t.Context(), b.Record, "late runner"), booking.ErrAlreadyPaid)
	w.wantPaid(t, b)
}

// The second of two releases finds nothing to write. Its answer must not count
// either while the replica is gone.
func TestHole7_RepeatedReleaseIsNotAcknowledgedEither(t *testing.T) {
	w := onPair(t)
	b := w.Held(t, 1, "N1")
	w.Clock.Advance(booking.DefaultHold)
	arrived, goOn := make(chan struct{}), make(chan struct{})
	w.Faults.Before(bookingtest.OpRelease, func() { close(arrived); <-goOn })
	w.Faults.Before(bookingtest.OpRelease, func() { // the replica was asked, and was there
		if err := w.pair.Replicas[0].Freeze(); err != nil {
			t.Error(err)
		}
	})
	ended := w.inBackground(t, w.sweeper)
	<-arrived
	if report, err := w.another(t).Sweep(t.Context()); err != nil || report["failed"] != 1 {
		t.Errorf("first release: got %v, %v, want it not acknowledged", report, err)
	}
	close(goOn)
	if report := <-ended; report["failed"] != 1 {
		t.Errorf("second release: got %v, want it not acknowledged", report)
	}
	w.Want(t, b, "", booking.StateHeld)
	wantErr(t, "third release", w.Ledger.Release(t.Context(), b.Code, b.Attempt), booking.ErrNotAcknowledged)
	w.Books.Check(t)
}

// A runner that has listed an attempt undoes that attempt, not the candidate's
// next one.
func TestHole10_StaleListingUndoesNothingNew(t *testing.T) {
	w := inProcess(t)
	w.Admit(t, 1, "N1")
	var fresh booking.Row
	w.Faults.Before(bookingtest.OpUndo, func() { fresh = w.Admit(t, 1, "N1") }) // takes over
	w.wantSweep(t, 2*time.Minute, "moved")
	if diff := cmp.Diff(fresh, w.Row(t, bookingtest.Code(1))); diff != "" {
		t.Errorf("row of the next attempt (-before +after):\n%s", diff)
	}
	if n := w.changed.Load(); n != 0 {
		t.Errorf("hints that a seat is free: got %d, want 0", n)
	}
	w.Books.CheckAtRest(t)
}

// The message is in the dead letters and the row says that it was queued: the row
// is looked at all the same, and its record is there before anything is decided.
func TestHole11_RowIsLookedAtWithoutItsMessage(t *testing.T) {
	w := inProcess(t)
	lapsed, paid := w.Unwritten(t, 1, "N1"), w.Unwritten(t, 2, "N1")
	w.Gateway.Complete(paid.Payment.ID)
	w.wantSweep(t, booking.DefaultHold, "released", "confirmed")
	w.Want(t, paid, booking.PhasePaid, booking.StatePaid)
	w.Write(t, lapsed) // redriven long after
	w.Write(t, paid)
	w.Want(t, paid, booking.PhasePaid, booking.StatePaid)
	w.wantReleased(t, lapsed, 1)
}

// The payment is in the row: a stash that has expired does not make it a seat
// without one.
func TestHole13_ExpiredStashIsNoSeatWithoutAPayment(t *testing.T) {
	w := inProcess(t)
	held, paid := w.Unwritten(t, 1, "N1"), w.Unwritten(t, 2, "N1")
	w.loseStash(t, held)
	w.loseStash(t, paid)
	w.Gateway.Complete(paid.Payment.ID)
	w.wantSweep(t, booking.DefaultHold, "released", "confirmed")
	w.wantCalls(t, held, 1, 0)
	w.Want(t, paid, booking.PhasePaid, booking.StatePaid)
	w.wantReleased(t, held, 1)
}

// Rows in doubt wait their ten minutes; the next sweep is the others'.
func TestHole21_DoubtsDoNotUseUpEverySweep(t *testing.T) {
	w := empty(t)
	sale := bookingtest.Sale()
	sale.Cap, sale.Levels[0].Cap = 20, 20
	w.Open(t, sale, 20)
	for i := range 12 {
		b := w.Paying(t, i+1, "N1", "p", payingLength)
		w.Gateway.Always(bookingtest.Execute, b.Payment.ID, bookingtest.Garbled())
	}
	if report := w.sweep(t, payingLength); report["doubt"] != 12 {
		t.Fatalf("first sweep: got %v, want 12 doubts", report)
	}
	other := w.Paying(t, 13, "N1", "p", payingLength)
	w.Gateway.Finish(other.Payment.ID)
	asked := w.Gateway.Calls(bookingtest.Query, "")
	w.wantSweep(t, payingLength, "confirmed")
	if n := w.Gateway.Calls(bookingtest.Query, "") - asked; n != 1 {
		t.Errorf("queries of the next sweep: got %d, want 1", n)
	}
	w.Want(t, other, booking.PhasePaid, booking.StatePaid)
	w.Books.CheckAtRest(t)
}

// The doubt of a row that was taken over is not forgotten: the payer cannot take
// it back, and it is not released at its deadline.
func TestHole25_DoubtIsNotForgotten(t *testing.T) {
	w := inProcess(t)
	b := w.Held(t, 1, "N1")
	w.doubt(t, b)
	w.Gateway.Next(bookingtest.Execute, b.Payment.ID, bookingtest.LostCall())
	w.wantSweep(t, payingLength, "doubt")
	wantErr(t, "payer's second return", w.settler.Return(t.Context(), b.Code, b.Attempt, b.Payment.ID), booking.ErrPaying)
	w.Want(t, b, booking.PhasePaying, booking.StateHeld)
	w.wantSweep(t, booking.DefaultHold-time.Minute)
	wantErr(t, "release past the deadline", w.Ledger.Release(t.Context(), b.Code, b.Attempt), booking.ErrPaying)
	w.Gateway.Complete(b.Payment.ID)
	w.wantSweep(t, 2*time.Minute, "confirmed")
	w.wantPaid(t, b)
}

// The sweep settles a paid row again, and writes nothing on an answer that was
// not acknowledged.
func TestHole26_PaidRowIsSettledAgainBeforeItIsWritten(t *testing.T) {
	w := onPair(t)
	b := w.Held(t, 1, "N1")
	w.Gateway.Complete(b.Payment.ID)
	w.Faults.Before(bookingtest.OpSettle, func() {
		if err := w.pair.Replicas[0].Freeze(); err != nil {
			t.Error(err)
		}
	})
	w.wantSweep(t, booking.DefaultHold, "failed")
	w.Want(t, b, booking.PhasePaid, booking.StateHeld)
	w.wantSweep(t, time.Minute, "failed")
	w.Want(t, b, booking.PhasePaid, booking.StateHeld)
	if n := w.Faults.Calls(bookingtest.OpMarkPaid); n != 0 {
		t.Errorf("writes of the paid record: got %d, want 0", n)
	}
	if n := len(w.Mailer.Sent()); n != 0 {
		t.Errorf("mails: got %d, want 0", n)
	}
	if err := w.pair.Replicas[0].Thaw(); err != nil {
		t.Fatal(err)
	}
	for range 20 { // until the replica has caught up
		if w.sweep(t, 0)["resumed"] == 1 {
			break
		}
	}
	w.wantPaid(t, b)
}

// Release, crash before the record was ended, message in the dead letters: the
// record was put before the release, so late money finds a trace.
func TestHole28_RecordIsThereBeforeTheRelease(t *testing.T) {
	for name, fault := range map[string]bookingtest.Fault{"the release was not acknowledged": bookingtest.Kept, "the runner died": bookingtest.Lost} {
		t.Run(name, func(t *testing.T) {
			w := inProcess(t)
			b := w.Unwritten(t, 1, "N1")
			w.Faults.Before(bookingtest.OpRelease, func() { w.Want(t, b, booking.PhaseHeld, booking.StateHeld) })
			if fault == bookingtest.Kept {
				w.Faults.Next(bookingtest.OpRelease, bookingtest.Kept)
			} else {
				w.Faults.Next(bookingtest.OpReleaseRecord, bookingtest.Lost)
			}
			w.wantSweep(t, booking.DefaultHold, "failed")
			w.Want(t, b, "", booking.StateHeld)
			hash, attempt, err := booking.ParseInvoice(b.Record.Invoice)
			if err != nil {
				t.Fatal(err)
			}
			rec, err := w.Store.Record(t.Context(), hash, attempt)
			if err != nil || rec.PaymentID != b.Payment.ID {
				t.Errorf("the invoice's record: got payment %q, %v, want %s", rec.PaymentID, err, b.Payment.ID)
			}
		})
	}
	t.Run("a record that cannot be put keeps the seat", func(t *testing.T) {
		w := inProcess(t)
		b := w.Unwritten(t, 1, "N1")
		w.Faults.Always(bookingtest.OpPutHeld, bookingtest.Lost)
		w.wantSweep(t, booking.DefaultHold, "failed")
		w.Want(t, b, booking.PhaseHeld, "")
		w.Faults.Always(bookingtest.OpPutHeld, bookingtest.None)
		w.wantSweep(t, time.Minute, "released")
		w.wantReleased(t, b, 1)
	})
}
