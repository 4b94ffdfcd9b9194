package storetest

import (
	"context"
	"errors"
	"iter"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"holdfast/internal/booking"
)

// Purger is what a driver promises of the end of an event, and of the epoch that
// outlives its records.
type Purger interface {
	Driver
	// MarkEpoch keeps the later of two epochs; safe to repeat.
	MarkEpoch(ctx context.Context, m booking.EpochMark) error
	// ChooseEpoch writes a mark in place of the one that was seen, or of none, also for
	// an earlier epoch; nil also when it is there. ErrNotOwner when another one is.
	ChooseEpoch(ctx context.Context, seen, m booking.EpochMark) error
	// EpochMark is a consistent read; ErrNotFound.
	EpochMark(ctx context.Context) (booking.EpochMark, error)
	// PurgeRecord deletes a PAID or RELEASED record that is as it was seen; nil also
	// when it is gone. ErrNotOwner otherwise, and nothing changes.
	PurgeRecord(ctx context.Context, seen booking.Record) error
	// PurgeRefund takes out of a done refund who it was for, and tells whether there
	// was anything; ErrNotFound.
	PurgeRefund(ctx context.Context, transaction string) (bool, error)
	// Notifications scans all, open and closed, in no promised order.
	Notifications(ctx context.Context) iter.Seq2[booking.Notification, error]
	// PurgeNotification takes out of a closed notification whose payment it was of,
	// and tells whether there was anything; ErrNotFound.
	PurgeNotification(ctx context.Context, id string) (bool, error)
}

// RunPurger holds a driver to what Purger says. open returns an empty store, closed
// by the test's cleanup.
func RunPurger(t *testing.T, open func(t *testing.T) Purger) {
	for name, run := range map[string]func(t *testing.T, s Purger){
		"EpochMark":          epochMark,
		"ChosenEpoch":        chosenEpoch,
		"PurgeRecord":        purgeRecord,
		"PurgeUnreadable":    purgeUnreadable,
		"PurgeRefund":        purgeRefund,
		"PurgeNotification":  purgeNotification,
		"ScanNotifications":  scanNotifications,
		"PurgeLeavesTheMark": purgeLeavesTheMark,
	} {
		t.Run(name, func(t *testing.T) { run(t, open(t)) })
	}
}

func mark(at time.Time) booking.EpochMark {
	return booking.EpochMark{Version: booking.EpochMarkVersion, Epoch: booking.NewEpoch(at), At: at}
}

func epochMark(t *testing.T, s Purger) {
	ctx := t.Context()
	if got, err := s.EpochMark(ctx); !errors.Is(err, booking.ErrNotFound) {
		t.Errorf("mark of a new store: got %+v, %v, want ErrNotFound", got, err)
	}
	first, later := mark(start), mark(start.Add(time.Hour))
	for _, step := range []struct {
		put, want booking.EpochMark
	}{{first, first}, {first, first}, {later, later}, {first, later}} {
		if err := s.MarkEpoch(ctx, step.put); err != nil {
			t.Fatalf("MarkEpoch: got %v, want nil", err)
		}
		if got, err := s.EpochMark(ctx); err != nil || !cmp.Equal(got, step.want) {
			t.Errorf("mark after %s: got %+v, %v, want %+v", step.put.Epoch, got, err, step.want)
		}
	}
	for _, bad := range []booking.EpochMark{{}, {Version: 1, Epoch: "x", At: start}, {Version: 2, Epoch: later.Epoch, At: start}, {Version: 1, Epoch: later.Epoch}} {
		if err := s.MarkEpoch(ctx, bad); err == nil {
			t.Errorf("MarkEpoch of %+v: got nil, want an error", bad)
		}
	}
	if empty, err := s.Empty(ctx); err != nil || !empty {
		t.Errorf("Empty of a store with a mark alone: got %t, %v, want true", empty, err)
	}
}

func chosenEpoch(t *testing.T, s Purger) {
	ctx := t.Context()
	var none booking.EpochMark
	first, later := mark(start), mark(start.Add(time.Hour))
	first.Chosen = true
	again := first
	again.At = first.At.Add(time.Minute)
	for _, step := range []struct {
		what            string
		seen, put, want booking.EpochMark
		err             error
	}{
		{"in a new store", none, first, first, nil},
		{"once more", none, first, first, nil},
		{"over one that was not seen", none, later, first, booking.ErrNotOwner},
		{"a later one", first, later, later, nil},
		{"the earlier one again", later, first, first, nil},
		{"at another time", first, again, again, nil},
		{"over what was there before", first, later, again, booking.ErrNotOwner},
	} {
		if err := s.ChooseEpoch(ctx, step.seen, step.put); !errors.Is(err, step.err) {
			t.Errorf("ChooseEpoch %s: got %v, want %v", step.what, err, step.err)
		}
		if got, err := s.EpochMark(ctx); err != nil || !cmp.Equal(got, step.want) {
			t.Errorf("mark after ChooseEpoch %s: got %+v, %v, want %+v", step.what, got, err, step.want)
		}
	}
	if err := s.ChooseEpoch(ctx, again, none); err == nil {
		t.Error("ChooseEpoch of no mark: got nil, want an error")
	}
	if err := s.MarkEpoch(ctx, later); err != nil { // a reset goes on from what was chosen
		t.Errorf("MarkEpoch: got %v, want nil", err)
	}
	if got, err := s.EpochMark(ctx); err != nil || !cmp.Equal(got, later) {
		t.Errorf("mark after a reset: got %+v, %v, want %+v", got, err, later)
	}
}

func purgeRecord(t *testing.T, s Purger) {
	ctx := t.Context()
	held, over, sold := Held(), Held(), Held()
	for _, rec := range []booking.Record{held, over, sold} {
		if _, _, err := s.PutHeld(ctx, rec); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Release(ctx, over, "lapsed", releasedAt(over)); err != nil {
		t.Fatal(err)
	}
	if err := s.PurgeRecord(ctx, held); !errors.Is(err, booking.ErrNotOwner) {
		t.Errorf("purge of a HELD record: got %v, want ErrNotOwner", err)
	}
	if err := s.PurgeRecord(ctx, asReleased(held)); !errors.Is(err, booking.ErrNotOwner) {
		t.Errorf("purge of a HELD record that was seen RELEASED: got %v, want ErrNotOwner", err)
	}
	if _, err := s.MarkPaid(ctx, paid(sold)); err != nil {
		t.Fatal(err)
	}
	if err := s.PurgeRecord(ctx, asReleased(sold)); !errors.Is(err, booking.ErrNotOwner) {
		t.Errorf("purge of a PAID record that was seen RELEASED: got %v, want ErrNotOwner", err)
	}
	other := asPaid(sold)
	other.Transaction = "TXother"
	if err := s.PurgeRecord(ctx, other); !errors.Is(err, booking.ErrNotOwner) {
		t.Errorf("purge of a record that another transaction paid: got %v, want ErrNotOwner", err)
	}
	for range 2 { // repeated it finds them gone
		for _, rec := range []booking.Record{asReleased(over), asPaid(sold)} {
			if err := s.PurgeRecord(ctx, rec); err != nil {
				t.Errorf("purge of a %s record: got %v, want nil", rec.State, err)
			}
			if got, err := s.Record(ctx, rec.CandidateHash, rec.Attempt); !errors.Is(err, booking.ErrNotFound) {
				t.Errorf("record after its purge: got %+v, %v, want ErrNotFound", got, err)
			}
		}
	}
	if got, err := s.Record(ctx, held.CandidateHash, held.Attempt); err != nil || got.State != booking.StateHeld {
		t.Errorf("the HELD record: got %+v, %v, want it as it was", got, err)
	}
}

func purgeUnreadable(t *testing.T, s Purger) {
	c, can := s.(Corrupter)
	if !can {
		t.Skip("this store cannot spoil a record")
	}
	rec := Held()
	if _, err := s.MarkPaid(t.Context(), paid(rec)); err != nil {
		t.Fatal(err)
	}
	c.Corrupt(t, rec.CandidateHash, rec.Attempt)
	if err := s.PurgeRecord(t.Context(), asPaid(rec)); !errors.Is(err, booking.ErrUnreadable) {
		t.Errorf("purge of a record that cannot be read: got %v, want ErrUnreadable", err)
	}
}

func purgeRefund(t *testing.T, s Purger) {
	ctx := t.Context()
	due, done := Due(), Due()
	for _, r := range []booking.Refund{due, done} {
		if _, _, err := s.PutRefund(ctx, r); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.RefundDone(ctx, done.Transaction, "alice", "", "bank transfer to a person", doneAt); err != nil {
		t.Fatal(err)
	}
	if _, err := s.PurgeRefund(ctx, "TXnone"); !errors.Is(err, booking.ErrNotFound) {
		t.Errorf("purge of no refund: got %v, want ErrNotFound", err)
	}
	if changed, err := s.PurgeRefund(ctx, due.Transaction); err == nil || changed {
		t.Errorf("purge of a refund that is due: got %t, %v, want an error", changed, err)
	}
	for _, want := range []bool{true, false} {
		if changed, err := s.PurgeRefund(ctx, done.Transaction); err != nil || changed != want {
			t.Errorf("purge of a done refund: got %t, %v, want %t", changed, err, want)
		}
	}
	want := done
	want.State, want.DoneAt, want.DoneBy, want.CandidateHash = booking.RefundDone, doneAt, "operator", booking.Purged
	if got, err := s.Refund(ctx, done.Transaction); err != nil || !cmp.Equal(got, want) {
		t.Errorf("refund after its purge: %v (-want +got):\n%s", err, cmp.Diff(want, got))
	}
	if of, err := s.RefundsOf(ctx, done.CandidateHash, done.Attempt); err != nil || len(of) != 0 {
		t.Errorf("refunds of the candidate after the purge: got %+v, %v, want none", of, err)
	}
	if again, put, err := s.PutRefund(ctx, done); err != nil || put || again.State != booking.RefundDone {
		t.Errorf("the same money reported again: got %+v, %t, %v, want the done refund", again, put, err)
	}
}

func purgeNotification(t *testing.T, s Purger) {
	ctx := t.Context()
	open, over := notice(), notice()
	over.Invoice, over.Reference = Held().Invoice, "for my sister"
	for _, n := range []booking.Notification{open, over} {
		mustPutNotification(t, s, n)
	}
	if err := s.CloseNotification(ctx, over.ID, booking.NotifiedRefund, closedAt); err != nil {
		t.Fatal(err)
	}
	if _, err := s.PurgeNotification(ctx, "none"); !errors.Is(err, booking.ErrNotFound) {
		t.Errorf("purge of no notification: got %v, want ErrNotFound", err)
	}
	if changed, err := s.PurgeNotification(ctx, open.ID); err == nil || changed {
		t.Errorf("purge of an open notification: got %t, %v, want an error", changed, err)
	}
	for _, want := range []bool{true, false} {
		if changed, err := s.PurgeNotification(ctx, over.ID); err != nil || changed != want {
			t.Errorf("purge of a closed notification: got %t, %v, want %t", changed, err, want)
		}
	}
	want := closed(over)
	want.Invoice, want.Reference = "", ""
	notificationStored(t, s, want)
	if stored, err := s.PutNotification(ctx, over); err != nil || stored {
		t.Errorf("a redelivery after the purge: got %t, %v, want that it is known", stored, err)
	}
}

func scanNotifications(t *testing.T, s Purger) {
	want := map[string]booking.NotificationOutcome{}
	for i := range 20 {
		n := notice()
		mustPutNotification(t, s, n)
		if i%2 == 0 {
			if err := s.CloseNotification(t.Context(), n.ID, booking.NotifiedRefund, closedAt); err != nil {
				t.Fatal(err)
			}
			n.Outcome = booking.NotifiedRefund
		}
		want[n.ID] = n.Outcome
	}
	got := map[string]booking.NotificationOutcome{}
	for n, err := range s.Notifications(t.Context()) {
		if err != nil {
			t.Fatalf("scan: got %v, want nil", err)
		}
		if _, twice := got[n.ID]; twice {
			t.Errorf("scan: got %s twice, want once", n.ID)
		}
		got[n.ID] = n.Outcome
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("notifications (-want +got):\n%s", diff)
	}
	for _, err := range s.Notifications(t.Context()) {
		if err != nil {
			t.Errorf("scan that is left early: got %v, want nil", err)
		}
		break // leaving early is no trouble
	}
}

func purgeLeavesTheMark(t *testing.T, s Purger) {
	m, rec := mark(start), Held()
	if err := s.MarkEpoch(t.Context(), m); err != nil {
		t.Fatal(err)
	}
	if _, err := s.MarkPaid(t.Context(), paid(rec)); err != nil {
		t.Fatal(err)
	}
	for rec, err := range s.Records(t.Context()) {
		if err != nil {
			t.Fatalf("scan of records: got %v, want no error", err)
		}
		if err := s.PurgeRecord(t.Context(), rec); err != nil {
			t.Errorf("purge during a scan: got %v, want nil", err)
		}
	}
	if empty, err := s.Empty(t.Context()); err != nil || !empty {
		t.Errorf("Empty after the purge: got %t, %v, want true", empty, err)
	}
	if got, err := s.EpochMark(t.Context()); err != nil || !cmp.Equal(got, m) {
		t.Errorf("mark after the purge: got %+v, %v, want %+v", got, err, m)
	}
}
