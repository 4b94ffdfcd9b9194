package bookingtest_test

import (
	"context"
	"errors"
	"iter"
	"path/filepath"
	"testing"
	"time"

	"holdfast/internal/booking"
	"holdfast/internal/booking/bookingtest"
	"holdfast/internal/store/sqlite"
	"holdfast/internal/store/storetest"
)

// first is the error that a scan begins with.
func first[T any](scan iter.Seq2[T, error]) error {
	for _, err := range scan {
		return err
	}
	return nil
}

// Each call is broken by its own name, and by no other; a lost one is not made, a
// kept one is. Made in this order, each changes what the one before left.
func TestStore_RefundsAndNotificationsBreakAsTold(t *testing.T) {
	t.Parallel()
	driver, err := sqlite.Open(t.Context(), filepath.Join(t.TempDir(), "records.db"))
	if err != nil {
		t.Fatalf("Open: %v", err)
	}
	t.Cleanup(func() { _ = driver.Close() })
	faults := new(bookingtest.Faults)
	s := bookingtest.Store{StoreDriver: driver, Faults: faults}
	rec, r := storetest.Held(), storetest.Due()
	now := r.DecidedAt
	n := booking.Notification{Version: booking.NotificationVersion, ID: "m", ReceivedAt: now, SentAt: now, Transaction: "TX", Currency: "BDT"}
	if _, _, err := s.PutHeld(t.Context(), rec); err != nil {
		t.Fatalf("PutHeld: %v", err)
	}
	// look is all that the calls can change.
	type view struct {
		rec    booking.Record
		refund booking.Refund
		notice booking.Notification
	}
	look := func() (v view) {
		var errs [3]error
		v.rec, errs[0] = s.Record(t.Context(), rec.CandidateHash, rec.Attempt)
		v.refund, errs[1] = s.Refund(t.Context(), r.Transaction)
		v.notice, errs[2] = s.Notification(t.Context(), n.ID)
		for _, err := range errs {
			if err != nil && !errors.Is(err, booking.ErrNotFound) {
				t.Fatalf("look: %v", err)
			}
		}
		return v
	}
	for _, c := range []struct {
		op    bookingtest.Op
		reads bool
		call  func(ctx context.Context) error
	}{
		{bookingtest.OpExtendRecord, false, func(ctx context.Context) error {
			return s.Extend(ctx, rec.CandidateHash, rec.Attempt, rec.Deadline.Add(time.Minute))
		}},
		{bookingtest.OpPutRefund, false, func(ctx context.Context) error { _, _, err := s.PutRefund(ctx, r); return err }},
		{bookingtest.OpScanRefunds, true, func(ctx context.Context) error { return first(s.Refunds(ctx)) }},
		{bookingtest.OpScanRefunds, true, func(ctx context.Context) error { return first(s.OpenRefunds(ctx)) }},
		{bookingtest.OpClaimRefund, false, func(ctx context.Context) error {
			_, _, err := s.ClaimRefund(ctx, r.Transaction, "a", now, now.Add(time.Minute))
			return err
		}},
		{bookingtest.OpRefundSent, false, func(ctx context.Context) error { return s.RefundSent(ctx, r.Transaction, "a", now) }},
		{bookingtest.OpRefundTrouble, false, func(ctx context.Context) error { return s.RefundTrouble(ctx, r.Transaction, "a", "2073") }},
		{bookingtest.OpRefundDone, false, func(ctx context.Context) error {
			return s.RefundDone(ctx, r.Transaction, "gateway", "RF", "", now)
		}},
		{bookingtest.OpPutNotification, false, func(ctx context.Context) error { _, err := s.PutNotification(ctx, n); return err }},
		{bookingtest.OpScanNotifications, true, func(ctx context.Context) error { return first(s.OpenNotifications(ctx)) }},
		{bookingtest.OpCloseNotification, false, func(ctx context.Context) error {
			return s.CloseNotification(ctx, n.ID, booking.NotifiedRefund, now)
		}},
	} {
		before, calls := look(), faults.Calls(c.op)
		faults.Next(c.op, bookingtest.Lost, bookingtest.Kept)
		if err := c.call(t.Context()); !errors.Is(err, bookingtest.ErrLost) {
			t.Errorf("%s, lost: got %v, want ErrLost", c.op, err)
		}
		if after := look(); after != before {
			t.Errorf("%s, lost: got %+v, want it as before: %+v", c.op, after, before)
		}
		if err := c.call(t.Context()); !errors.Is(err, bookingtest.ErrKept) {
			t.Errorf("%s, kept: got %v, want ErrKept", c.op, err)
		}
		kept := look()
		if made := kept != before; made == c.reads {
			t.Errorf("%s, kept: changed something %t, want %t", c.op, made, !c.reads)
		}
		if err := c.call(t.Context()); err != nil {
			t.Errorf("%s, whole: got %v, want none", c.op, err)
		}
		if after := look(); after != kept {
			t.Errorf("%s, repeated: got %+v, want it as the kept one left it: %+v", c.op, after, kept)
		}
		if got := faults.Calls(c.op) - calls; got != 3 {
			t.Errorf("%s: got %d calls counted, want 3", c.op, got)
		}
	}
}
