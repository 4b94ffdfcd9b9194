package saleops_test

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"holdfast/internal/booking"
)

// What the look has shown is what the opening is made over, not what stands by then.
func TestSwitchOpen_OpensOverWhatItsLookHasShown(t *testing.T) {
	t.Parallel()
	w := newSwitchWorld()
	at := w.now.Add(2 * time.Hour)
	w.opensAt = at
	look, err := w.sw().Look(t.Context(), w.now.Add(time.Hour))
	if err != nil {
		t.Fatal(err)
	}
	w.open, w.opensAt, w.sale.Name = true, time.Time{}, "another"
	if _, err := w.sw().Open(t.Context(), look); err != nil {
		t.Fatal(err)
	}
	want := booking.Shown{Epoch: "e1", OpensAt: at, Sale: map[string]string{"name": "exam"}}
	if diff := cmp.Diff(want, w.over); diff != "" {
		t.Errorf("opened over (-want +got):\n%s", diff)
	}
}
