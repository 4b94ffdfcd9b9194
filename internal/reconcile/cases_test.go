package reconcile_test

import (
	"testing"
	"time"

	"holdfast/internal/booking"
	"holdfast/internal/booking/bookingtest"
)

// Case 15 in three: execute times out but money moved; already executed; no answer
// from execute nor query.

func TestCase15_MoneyMovedAndNobodyWasTold(t *testing.T) {
	for name, prepare := range map[string]func(w *world, id string){
		"execute times out":             func(w *world, id string) { w.Gateway.Next(bookingtest.Execute, id, bookingtest.KeptCall()) },
		"execute says already executed": func(w *world, id string) { w.Gateway.Complete(id) },
	} {
		t.Run(name, func(t *testing.T) {
			w := inProcess(t)
			b := w.Held(t, 1, "N1")
			w.Gateway.Finish(b.Payment.ID)
			prepare(w, b.Payment.ID)
			if err := w.settler.Return(t.Context(), b.Code, b.Attempt, b.Payment.ID); err != nil {
				t.Errorf("return: got %v, want it paid after the query", err)
			}
			w.Background.Wait()
			w.wantCalls(t, b, 1, 1)
			w.wantPaid(t, b)
		})
	}
}

func TestCase15_NoAnswerKeepsTheSeatAndCallsAHumanAfterThreeExtensions(t *testing.T) {
	w := inProcess(t)
	b := w.Held(t, 1, "N1")
	w.Gateway.Finish(b.Payment.ID)
	w.Gateway.Always(bookingtest.Execute, b.Payment.ID, bookingtest.KeptCall())
	w.Gateway.Always(bookingtest.Query, b.Payment.ID, bookingtest.LostCall())
	wantErr(t, "return", w.settler.Return(t.Context(), b.Code, b.Attempt, b.Payment.ID), booking.ErrInDoubt)
	w.log.take()
	extensions := 0
	for range 12 {
		if w.sweep(t, 11*time.Minute)["doubt"] == 1 {
			extensions++
		}
		calls := loud(w.log.take())
		if want := min(1, max(0, extensions-3)); calls > want {
			t.Errorf("calls for a human after %d extensions: got %d, want %d", extensions, calls, want)
		}
		if extensions == 4 && calls == 1 {
			break
		}
		w.Want(t, b, booking.PhasePaying, booking.StateHeld)
		w.Books.Check(t)
	}
	if extensions != 4 {
		t.Errorf("extensions when a human was called: got %d, want it after the third", extensions)
	}
	w.Gateway.Always(bookingtest.Query, b.Payment.ID, bookingtest.Obey())
	w.wantSweep(t, 11*time.Minute, "confirmed")
	w.wantPaid(t, b)
}

// Case 23: the money of an old attempt never pays or revives the candidate's new
// booking; a first report counts however late it is.
func TestCase23_OldMoneyNeverPaysForTheNewBooking(t *testing.T) {
	w := inProcess(t)
	old := w.Held(t, 1, "N1")
	w.wantSweep(t, booking.DefaultHold, "released")
	fresh := w.Held(t, 1, "N1")
	w.Gateway.Complete(old.Payment.ID)
	row := w.Row(t, fresh.Code)
	for range 2 {
		charge, err := w.Gateway.Query(t.Context(), old.Payment.ID)
		if err != nil {
			t.Fatal(err)
		}
		wantErr(t, "old money", w.settler.Confirm(t.Context(), old.Code, old.Record, charge), booking.ErrRefunded)
		w.Clock.Advance(time.Minute)
	}
	w.WantRefund(t, old, "TX"+old.Payment.ID, booking.MoneyLate, "candidate")
	if got := w.Row(t, fresh.Code); got != row {
		t.Errorf("row of the new booking: got %+v, want %+v as before", got, row)
	}
	w.pays(t, fresh)

	late := w.Held(t, 2, "N1")
	w.sweep(t, booking.DefaultHold)
	w.Clock.Advance(20 * 24 * time.Hour)
	w.Gateway.Complete(late.Payment.ID)
	charge, err := w.Gateway.Query(t.Context(), late.Payment.ID)
	if err != nil {
		t.Fatal(err)
	}
	if err := w.settler.Confirm(t.Context(), late.Code, late.Record, charge); err != nil {
		t.Errorf("a genuine first report, weeks late: %v", err)
	}
	w.Background.Wait()
	w.wantPaid(t, late)
}
