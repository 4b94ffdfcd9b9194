package saleops_test

import (
	"errors"
	"testing"
	"time"

	"holdfast/internal/booking"
	"holdfast/internal/booking/bookingtest"
)

// An execute call that was sent off just before Redis was lost is announced while
// a rebuild is at work: "not completed", which the gateway said before, gives no
// seat away. The rebuild stops, and repeated it knows of the call.
func TestRebuild_ExecuteAnnouncedMeanwhileKeepsItsSeat(t *testing.T) {
	w := open(t)
	b := w.Held(t, 1, "N1")
	w.lose(t)
	w.Clock.Advance(booking.DefaultHold + time.Second)
	w.Faults.Before(bookingtest.OpReleaseRecord, func() {
		if _, err := w.Store.StoreDriver.Announce(t.Context(), b.Record, w.Clock.Now()); err != nil {
			t.Error(err)
		}
	})
	if _, err := w.ops.Rebuild(t.Context(), big()); !errors.Is(err, booking.ErrAnnounced) {
		t.Errorf("rebuild: got %v, want %v", err, booking.ErrAnnounced)
	}
	if got := w.State(t, b); got != booking.StateHeld {
		t.Fatalf("record: got %s, want HELD", got)
	}
	out, err := w.ops.Rebuild(t.Context(), big())
	if err != nil || out.Doubtful != 1 || out.Held != 1 {
		t.Errorf("rebuild again: got %+v, %v, want one seat kept in doubt", out, err)
	}
	if row := w.Row(t, b.Code); !row.Doubt {
		t.Errorf("row: got %+v, want it in doubt", row)
	}
}
