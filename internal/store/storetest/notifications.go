package storetest

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"holdfast/internal/booking"
)

// Notifications is what a driver promises of notifications, all of it safe for
// concurrent use and safe to repeat. No scan of records meets one.
type Notifications interface {
	// PutNotification puts an open notification if there is none under its id, and
	// tells it; else the one that is there stays.
	PutNotification(ctx context.Context, n booking.Notification) (bool, error)
	// Notification is a consistent read; ErrNotFound.
	Notification(ctx context.Context, id string) (booking.Notification, error)
	// OpenNotifications scans those that are not closed in pages, first received
	// first. An unreadable one is an error that wraps ErrUnreadable, beside a
	// notification with the id alone; the scan goes on. Any other error ends it.
	OpenNotifications(ctx context.Context) iter.Seq2[booking.Notification, error]
	// CloseNotification closes an open one; of one that is closed it changes nothing
	// and is nil, whatever the outcome. ErrNotFound.
	CloseNotification(ctx context.Context, id string, outcome booking.NotificationOutcome, at time.Time) error
}

// closedAt is when the notifications of the suite are closed.
var closedAt = start.Add(2 * time.Hour)

// notice makes a valid notification of a message of its own, each received later
// than the one before.
func notice() booking.Notification {
	n := serial.Add(1)
	coupon := booking.Money(500)
	return booking.Notification{
		Version: booking.NotificationVersion, ID: fmt.Sprintf("message-%08d", n),
		ReceivedAt: start.Add(time.Duration(n)*time.Millisecond + 250*time.Microsecond), SentAt: start.Add(time.Duration(n-1) * time.Millisecond),
		Transaction: fmt.Sprintf("TX%08d", n), Amount: 149500, Currency: "BDT", Status: "Completed", CouponAmount: &coupon,
	}
}

// closed is what CloseNotification makes of the notification.
func closed(n booking.Notification) booking.Notification {
	n.Outcome, n.ClosedAt = booking.NotifiedRefund, closedAt
	return n
}

func putNotification(t *testing.T, s Driver) {
	ctx, n := t.Context(), notice()
	noNotification(t, s, n)
	odd := n
	odd.ReceivedAt = odd.ReceivedAt.In(time.FixedZone("far", 6*3600))
	mustPutNotification(t, s, odd)
	notificationStored(t, s, n)
	redelivered := n
	redelivered.ReceivedAt = n.ReceivedAt.Add(time.Hour)
	again := func(want booking.Notification) {
		t.Helper()
		if stored, err := s.PutNotification(ctx, redelivered); err != nil || stored {
			t.Errorf("PutNotification of a redelivery: got %t, %v, want false", stored, err)
		}
		notificationStored(t, s, want)
	}
	again(n)
	mustClose(t, s, n)
	again(closed(n))

	forAPerson := booking.Notification{
		Version: booking.NotificationVersion, ID: notice().ID, ReceivedAt: start, SentAt: start, Unreadable: "the message is not a JSON object",
	}
	mustPutNotification(t, s, forAPerson)
	notificationStored(t, s, forAPerson)

	for name, spoil := range map[string]func(*booking.Notification){
		"is closed":           func(n *booking.Notification) { *n = closed(*n) },
		"is of a new version": func(n *booking.Notification) { n.Version++ },
		"has no id":           func(n *booking.Notification) { n.ID = "" },
		"has no transaction":  func(n *booking.Notification) { n.Transaction = "" },
	} {
		n := notice()
		spoil(&n)
		if _, err := s.PutNotification(ctx, n); err == nil {
			t.Errorf("PutNotification of one that %s: got no error, want one", name)
		}
		noNotification(t, s, n)
	}
}

func closeNotification(t *testing.T, s Driver) {
	ctx, n := t.Context(), notice()
	if err := s.CloseNotification(ctx, n.ID, booking.NotifiedPaid, closedAt); !errors.Is(err, booking.ErrNotFound) {
		t.Errorf("CloseNotification without one: got %v, want ErrNotFound", err)
	}
	noNotification(t, s, n)
	mustPutNotification(t, s, n)
	for name, call := range map[string]func() error{
		"without an outcome":      func() error { return s.CloseNotification(ctx, n.ID, "", closedAt) },
		"with an unknown outcome": func() error { return s.CloseNotification(ctx, n.ID, "forgotten", closedAt) },
		"at no time":              func() error { return s.CloseNotification(ctx, n.ID, booking.NotifiedPaid, time.Time{}) },
	} {
		if err := call(); err == nil {
			t.Errorf("CloseNotification %s: got no error, want one", name)
		}
	}
	notificationStored(t, s, n)
	mustClose(t, s, n)
	notificationStored(t, s, closed(n))
	for _, outcome := range []booking.NotificationOutcome{booking.NotifiedRefund, booking.NotifiedPaid, booking.NotifiedAnomaly} {
		if err := s.CloseNotification(ctx, n.ID, outcome, closedAt.Add(time.Hour)); err != nil {
			t.Errorf("CloseNotification as %s of one that is closed: got %v, want none", outcome, err)
		}
		notificationStored(t, s, closed(n))
	}
}

func notificationScan(t *testing.T, s Driver) {
	ctx := t.Context()
	for _, err := range s.OpenNotifications(ctx) {
		t.Errorf("scan of an empty store: got a notification or error %v, want none", err)
	}
	const n, workers = 1100, 20 // more than two pages
	all := make([]booking.Notification, n)
	for i := range all {
		all[i] = notice()
		// Several are received in one millisecond; the first received has the last id
		// and is put last.
		all[i].ReceivedAt = start.Add(time.Duration((n-i)/3) * time.Millisecond)
	}
	var next atomic.Int64
	var wg sync.WaitGroup
	for range workers {
		wg.Go(func() {
			for i := next.Add(1) - 1; i < n; i = next.Add(1) - 1 {
				if _, err := s.PutNotification(ctx, all[i]); err != nil {
					t.Errorf("PutNotification: %v", err)
					return
				}
				if i%50 != 0 {
					continue
				}
				if err := s.CloseNotification(ctx, all[i].ID, booking.NotifiedRefund, closedAt); err != nil {
					t.Errorf("CloseNotification: %v", err)
					return
				}
				all[i] = closed(all[i])
			}
		})
	}
	wg.Wait()
	want := slices.DeleteFunc(all, func(n booking.Notification) bool { return n.Outcome != "" })
	var got []booking.Notification
	for n, err := range s.OpenNotifications(ctx) {
		if err != nil {
			t.Fatalf("scan: %v", err)
		}
		if len(got) > 0 && n.ReceivedAt.Before(got[len(got)-1].ReceivedAt) {
			t.Errorf("scan: got one received at %s after %s, want the first received first", n.ReceivedAt, got[len(got)-1].ReceivedAt)
		}
		got = append(got, n)
	}
	// Among those of one millisecond no order is promised.
	slices.SortFunc(got, func(a, b booking.Notification) int { return strings.Compare(a.ID, b.ID) })
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("scan of %d notifications (-want +got):\n%s", len(want), diff)
	}
	seen := 0
	for _, err := range s.OpenNotifications(ctx) {
		if err != nil {
			t.Errorf("scan that is left: %v", err)
		}
		if seen++; seen == 3 {
			break
		}
	}
	if seen != 3 {
		t.Errorf("scan that was left: got %d notifications, want 3", seen)
	}
}

// notificationCalls is every call about one notification.
func notificationCalls(ctx context.Context, s Driver, n booking.Notification) map[string]func() error {
	return map[string]func() error{
		"Notification":    func() error { _, err := s.Notification(ctx, n.ID); return err },
		"PutNotification": func() error { _, err := s.PutNotification(ctx, n); return err },
		"CloseNotification": func() error {
			return s.CloseNotification(ctx, n.ID, booking.NotifiedRefund, closedAt)
		},
	}
}

func notificationUnreadable(t *testing.T, s Driver) {
	c, ok := s.(MoneyCorrupter)
	if !ok {
		t.Skip("this driver's test cannot make a notification unreadable")
	}
	ctx := t.Context()
	all := []booking.Notification{notice(), notice(), notice()}
	for _, n := range all {
		mustPutNotification(t, s, n)
	}
	bad := all[1]
	c.CorruptNotification(t, bad.ID)
	var got []booking.Notification
	complaints := 0
	for n, err := range s.OpenNotifications(ctx) {
		if err == nil {
			got = append(got, n)
			continue
		}
		complaints++
		if !errors.Is(err, booking.ErrUnreadable) || !strings.Contains(err.Error(), bad.ID) {
			t.Errorf("scan: got %v, want ErrUnreadable that names the message", err)
		}
		if want := (booking.Notification{ID: bad.ID}); !cmp.Equal(n, want) {
			t.Errorf("scan: notification beside the error: got %+v, want its id alone", n)
		}
	}
	if diff := cmp.Diff([]booking.Notification{all[0], all[2]}, got); diff != "" || complaints != 1 {
		t.Errorf("scan: got %d unreadable, want 1; the others (-want +got):\n%s", complaints, diff)
	}
	// No call may take it for absent, nor write over it.
	for range 2 {
		for name, call := range notificationCalls(ctx, s, bad) {
			if err := call(); !errors.Is(err, booking.ErrUnreadable) {
				t.Errorf("%s of an unreadable notification: got %v, want ErrUnreadable", name, err)
			}
		}
	}
}

func notificationsManyAtOnce(t *testing.T, s Driver) {
	raceForNotification(t, []Driver{s}, notice())
}

// raceForNotification delivers a message many times at once, and then ends it in
// as many ways.
func raceForNotification(t *testing.T, openings []Driver, n booking.Notification) {
	ctx := t.Context()
	s := func(i int) Driver { return openings[i%len(openings)] }
	firstOf(t, "PutNotification", func(i int) (bool, error) { return s(i).PutNotification(ctx, n) })
	firstOf(t, "CloseNotification", func(i int) (bool, error) {
		at := closedAt.Add(time.Duration(i) * time.Second)
		if err := s(i).CloseNotification(ctx, n.ID, booking.NotifiedRefund, at); err != nil {
			return false, err
		}
		got, err := s(i).Notification(ctx, n.ID)
		return got.ClosedAt.Equal(at), err
	})
	for i := range openings {
		want, err := s(0).Notification(ctx, n.ID)
		if err != nil {
			t.Fatalf("notification at the end: %v", err)
		}
		notificationStored(t, s(i), want)
	}
}

func notificationEndedContext(t *testing.T, s Driver) {
	n, unput := notice(), notice()
	mustPutNotification(t, s, n)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	calls := notificationCalls(ctx, s, n)
	calls["PutNotification"] = func() error { _, err := s.PutNotification(ctx, unput); return err }
	calls["OpenNotifications"] = func() error { return onlyError(t, "OpenNotifications", s.OpenNotifications(ctx)) }
	for name, call := range calls {
		if err := call(); err == nil || errors.Is(err, booking.ErrNotFound) || errors.Is(err, booking.ErrUnreadable) {
			t.Errorf("%s with an ended context: got %v, want an error that says nothing of the notification", name, err)
		}
	}
	notificationStored(t, s, n)
	noNotification(t, s, unput)
}

// brokenNotificationWrites runs each write lost, kept but reported lost, and
// whole, as brokenWrites does.
func brokenNotificationWrites(t *testing.T, s Driver) {
	for fault, through := range faults() {
		t.Run(fault, func(t *testing.T) {
			n := notice()
			calls := notificationCalls(t.Context(), s, n)
			for _, w := range []struct {
				call string
				want booking.Notification
			}{{"PutNotification", n}, {"CloseNotification", closed(n)}, {"PutNotification", closed(n)}} {
				if err := through(calls[w.call]); err != nil && !errors.Is(err, errLost) {
					t.Fatalf("%s, first call: %v", w.call, err)
				}
				for _, which := range []string{"repeat", "repeat of the repeat"} {
					if err := calls[w.call](); err != nil {
						t.Errorf("%s, %s: got %v, want none", w.call, which, err)
					}
					notificationStored(t, s, w.want)
				}
			}
		})
	}
}

func mustPutNotification(t *testing.T, s Driver, n booking.Notification) {
	t.Helper()
	if stored, err := s.PutNotification(t.Context(), n); err != nil || !stored {
		t.Fatalf("PutNotification: got %t, %v, want true", stored, err)
	}
}

func mustClose(t *testing.T, s Driver, n booking.Notification) {
	t.Helper()
	if err := s.CloseNotification(t.Context(), n.ID, booking.NotifiedRefund, closedAt); err != nil {
		t.Fatalf("CloseNotification: %v", err)
	}
}

func notificationStored(t *testing.T, s Driver, want booking.Notification) {
	t.Helper()
	got, err := s.Notification(t.Context(), want.ID)
	if err != nil {
		t.Errorf("notification in the store: %v", err)
		return
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("notification in the store (-want +got):\n%s", diff)
	}
}

func noNotification(t *testing.T, s Driver, n booking.Notification) {
	t.Helper()
	if got, err := s.Notification(t.Context(), n.ID); !errors.Is(err, booking.ErrNotFound) {
		t.Errorf("notification that was never put: got %+v, %v, want ErrNotFound", got, err)
	}
}
