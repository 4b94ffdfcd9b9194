package saleops_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"holdfast/internal/booking"
	"holdfast/internal/booking/bookingtest"
	"holdfast/internal/saleops"
)

// books is what the gateway knows of single transactions.
type books struct {
	answer booking.TransactionAnswer
	err    error
	asked  []string
}

func (b *books) Search(_ context.Context, transaction string) (booking.TransactionAnswer, error) {
	b.asked = append(b.asked, transaction)
	return b.answer, b.err
}

// notified puts a notification about a transaction that came so long ago.
func (w *world) notified(t *testing.T, id, transaction, invoice string, ago time.Duration) {
	t.Helper()
	at := w.Clock.Now().Add(-ago)
	n := booking.Notification{
		Version: booking.NotificationVersion, ID: id, ReceivedAt: at, SentAt: at,
		Transaction: transaction, Invoice: invoice, Amount: 150000, Currency: "BDT", Status: "Completed",
	}
	if transaction == "" {
		n.Unreadable = "the message is not a JSON object"
	}
	if _, err := w.Store.PutNotification(t.Context(), n); err != nil {
		t.Fatal(err)
	}
	if err := w.Ledger.NoticeLater(t.Context(), id, 0); err != nil {
		t.Fatal(err)
	}
}

func (w *world) notices() (*saleops.Notices, *books) {
	b := new(books)
	return &saleops.Notices{Store: w.Store, Ledger: w.Ledger, Gateway: b}, b
}

func (w *world) look(t *testing.T, n *saleops.Notices, id string) saleops.Closing {
	t.Helper()
	c, err := n.Look(t.Context(), id)
	if err != nil {
		t.Fatalf("look at %s: %v", id, err)
	}
	return c
}

func TestNotices_SayWhyTheyAreOpen(t *testing.T) {
	w := open(t)
	held, goesBack, paid := w.Held(t, 1, "N1"), w.refunded(t, 2), w.Held(t, 3, "N1")
	w.pays(t, paid)
	nobody := booking.Invoice(booking.CandidateHash("C9999"), held.Attempt)
	for i, c := range []struct {
		transaction, invoice string
		ago                  time.Duration
		why, objection       string
	}{
		{"", "", 9 * time.Hour, "it cannot be read as a payment: the message is not a JSON object", ""},
		{"T1", "", 8 * time.Hour, "it names no invoice", ""},
		{"T2", "till-7", 7 * time.Hour, "its invoice is not one of ours", ""},
		{"T3", nobody, 6 * time.Hour, "there is no record of it", ""},
		{"T4", nobody, 5 * time.Minute, "there is no record of it", "may be on its way"},
		{"T5", held.Record.Invoice, 4 * time.Minute, "its record is HELD", "seatctl bookings resolve " + held.Code + " --attempt " + held.Attempt + " --paid T5"},
		{"TX" + goesBack.Payment.ID, goesBack.Record.Invoice, 3 * time.Minute, "its money goes back, by a refund that is due", "the next look closes it"},
		{"TX" + paid.Payment.ID, paid.Record.Invoice, 2 * time.Minute, "its money is a paid seat", "the next look closes it"},
	} {
		w.notified(t, "m"+string(rune('0'+i)), c.transaction, c.invoice, c.ago)
		n, _ := w.notices()
		all, unreadable, err := n.Open(t.Context())
		if err != nil || len(unreadable) > 0 || len(all) != i+1 {
			t.Fatalf("open: got %d, %v, %v, want %d, first received first", len(all), unreadable, err, i+1)
		}
		got := all[i]
		if !strings.Contains(got.Why, c.why) || !strings.Contains(got.Objection, c.objection) || (got.Objection == "") != (c.objection == "") {
			t.Errorf("%s: got why %q, objection %q, want %q, %q", got.ID, got.Why, got.Objection, c.why, c.objection)
		}
		if late := got.Age - c.ago; late < 0 || late > time.Minute {
			t.Errorf("%s: got age %s, want %s", got.ID, got.Age, c.ago)
		}
	}
}

func TestNotices_OneThatCannotBeReadHidesNoOther(t *testing.T) {
	w := open(t)
	w.notified(t, "m1", "T1", "", time.Hour)
	w.notified(t, "m2", "T2", "", time.Minute)
	w.exec(t, `UPDATE notifications SET body = '{' WHERE id = 'm1'`)
	n, _ := w.notices()
	all, unreadable, err := n.Open(t.Context())
	if err != nil || len(all) != 1 || all[0].ID != "m2" || len(unreadable) != 1 || !errors.Is(unreadable[0], booking.ErrUnreadable) {
		t.Errorf("open: got %+v, %v, %v, want m2, and that one cannot be read", all, unreadable, err)
	}
	if _, err := n.Look(t.Context(), "m1"); !errors.Is(err, booking.ErrUnreadable) {
		t.Errorf("look: got %v, want that it cannot be read", err)
	}
	w.Faults.Always(bookingtest.OpScanNotifications, bookingtest.Lost)
	if _, _, err := n.Open(t.Context()); !errors.Is(err, bookingtest.ErrLost) {
		t.Errorf("open without a list: got %v, want %v", err, bookingtest.ErrLost)
	}
}

// Closed by hand, it is an anomaly, nobody looks at it again, and the rule holds.
func TestNotices_ClosedByHandTheAuditHolds(t *testing.T) {
	w := open(t)
	w.notified(t, "m1", "T1", "till-7", 2*time.Hour)
	wantBroken(t, w.audit(t, saleops.AuditOptions{}), saleops.RuleSignals)
	n, gateway := w.notices()
	c := w.look(t, n, "m1")
	if len(gateway.asked) != 1 || gateway.asked[0] != "T1" || c.Closed() || c.Objection != "" {
		t.Errorf("look: got %+v after %v was asked, want it open, and the gateway asked about T1", c, gateway.asked)
	}
	now, mine, off, err := n.Close(t.Context(), c, false)
	if err != nil || off != nil || !mine || now.Outcome != booking.NotifiedAnomaly || now.ClosedAt.IsZero() {
		t.Fatalf("close: got %+v, mine %t, %v, %v, want it closed as an anomaly", now, mine, off, err)
	}
	wantBroken(t, w.audit(t, saleops.AuditOptions{}))
	if due, err := w.Ledger.DueNotices(t.Context(), 10); err != nil || len(due) != 0 {
		t.Errorf("list of looks: got %v, %v, want it empty", due, err)
	}
	w.Clock.Advance(time.Minute)
	again, mine, _, err := n.Close(t.Context(), c, false)
	if err != nil || mine || !again.ClosedAt.Equal(now.ClosedAt) {
		t.Errorf("repeated: got %+v, mine %t, %v, want the first end", again, mine, err)
	}
	if c := w.look(t, n, "m1"); !c.Closed() || len(gateway.asked) != 1 {
		t.Errorf("look at a closed one: got %+v, asked %v, want no question", c, gateway.asked)
	}
}

// A sweep closes it between look and decision: its word stands.
func TestNotices_TheFirstOutcomeStands(t *testing.T) {
	w := open(t)
	w.notified(t, "m1", "T1", "till-7", 2*time.Hour)
	n, _ := w.notices()
	c := w.look(t, n, "m1")
	w.Faults.Before(bookingtest.OpCloseNotification, func() {
		if err := w.Store.StoreDriver.CloseNotification(t.Context(), "m1", booking.NotifiedRefund, w.Clock.Now()); err != nil {
			t.Error(err)
		}
	})
	now, mine, _, err := n.Close(t.Context(), c, false)
	if err != nil || mine || now.Outcome != booking.NotifiedRefund {
		t.Errorf("close: got %+v, mine %t, %v, want it closed as a refund by another", now, mine, err)
	}
}

func TestNotices_MoneyThatCanBeDecidedIsNotClosedWithoutForce(t *testing.T) {
	w := open(t)
	b := w.Held(t, 1, "N1")
	w.notified(t, "m1", "T1", b.Record.Invoice, 2*time.Hour)
	n, gateway := w.notices()
	gateway.err = booking.ErrInDoubt
	c := w.look(t, n, "m1")
	if !errors.Is(c.AskErr, booking.ErrInDoubt) {
		t.Errorf("look: got %v, want the gateway's doubt", c.AskErr)
	}
	if _, mine, _, err := n.Close(t.Context(), c, false); mine || !errors.Is(err, saleops.ErrNoticeObjection) {
		t.Errorf("close: got mine %t, %v, want the objection", mine, err)
	}
	if now, err := w.Store.Notification(t.Context(), "m1"); err != nil || now.Outcome != "" {
		t.Errorf("notification: got %+v, %v, want it open", now, err)
	}
	if _, mine, _, err := n.Close(t.Context(), c, true); !mine || err != nil {
		t.Errorf("close by force: got mine %t, %v, want it closed", mine, err)
	}
}

// The write lost, and kept and its reply lost: the same again ends it.
func TestNotices_CloseBrokenBothWays(t *testing.T) {
	t.Parallel()
	for name, fault := range map[string]bookingtest.Fault{"Lost": bookingtest.Lost, "Kept": bookingtest.Kept} {
		t.Run(name, func(t *testing.T) {
			w := open(t)
			w.notified(t, "m1", "T1", "", 2*time.Hour)
			n, _ := w.notices()
			c := w.look(t, n, "m1")
			w.Faults.Next(bookingtest.OpCloseNotification, fault)
			if _, mine, _, err := n.Close(t.Context(), c, false); mine || err == nil {
				t.Errorf("close: got mine %t, %v, want an error", mine, err)
			}
			now, _, _, err := n.Close(t.Context(), c, false)
			if err != nil || now.Outcome != booking.NotifiedAnomaly {
				t.Errorf("again: got %+v, %v, want it closed", now, err)
			}
		})
	}
}
