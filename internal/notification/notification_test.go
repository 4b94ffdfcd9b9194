package notification_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"holdfast/internal/booking"
	"holdfast/internal/booking/bookingtest"
	"holdfast/internal/notification"
)

func TestNew_WantsEveryDependency(t *testing.T) {
	t.Parallel()
	w := inProcess(t)
	for name, drop := range map[string]func(*notification.Deps){
		"store":      func(d *notification.Deps) { d.Store = nil },
		"ledger":     func(d *notification.Deps) { d.Ledger = nil },
		"gateway":    func(d *notification.Deps) { d.Gateway = nil },
		"settler":    func(d *notification.Deps) { d.Settler = nil },
		"background": func(d *notification.Deps) { d.Background = nil },
		"rate":       func(d *notification.Deps) { d.Rate = nil },
		"width":      func(d *notification.Deps) { d.Width = 0 },
		"log":        func(d *notification.Deps) { d.Log = nil },
		"registerer": func(d *notification.Deps) { d.Registerer = nil },
	} {
		d := w.deps()
		drop(&d)
		if _, err := notification.New(d); err == nil {
			t.Errorf("without %s: got nil, want an error", name)
		}
	}
}

// Case 22: what cannot be stored, or not put on the list of looks, is delivered
// again.
func TestStore_StoredOrDeliveredAgain(t *testing.T) {
	t.Parallel()
	w := inProcess(t)
	b := w.Held(t, 1, "N1")
	w.complete(b)
	n := w.note(b, "m1")
	w.faults.break1(opPut, lost)
	if _, err := w.service.Store(t.Context(), n); !errors.Is(err, errLost) {
		t.Errorf("with the store down: got %v, want its error", err)
	}
	w.faults.break1(opLater, lost)
	if stored, err := w.service.Store(t.Context(), n); !stored || !errors.Is(err, errLost) {
		t.Errorf("with redis down: got %t, %v, want it stored and its error", stored, err)
	}
	w.wantIndexed(t, 0)
	if stored, err := w.service.Store(t.Context(), n); stored || err != nil {
		t.Errorf("delivered again: got %t, %v, want it there", stored, err)
	}
	w.wantIndexed(t, 1) // the first delivery may have broken off before it
	w.sweep(t, time.Minute)
	w.wantOutcome(t, "m1", booking.NotifiedPaid)
	w.wantPaid(t, b)
	w.faults.break1(opLater, lost)
	if stored, err := w.service.Store(t.Context(), n); stored || err != nil {
		t.Errorf("closed, and redis down: got %t, %v, want it there, with nothing to look at", stored, err)
	}
}

// The payer closed the browser: the notification alone makes the seat paid.
func TestArrived_CompletedPaymentIsAPaidSeat(t *testing.T) {
	t.Parallel()
	w := onRedis(t)
	b := w.Held(t, 1, "N1")
	w.complete(b)
	w.deliver(t, w.note(b, "m1"))
	w.wantOutcome(t, "m1", booking.NotifiedPaid)
	w.wantPaid(t, b)
	w.wantIndexed(t, 0)
	w.wantCalls(t, opQuery, 1)
	w.wantMetric(t, "holdfast_notification_work_total", "counter",
		"Looks at notifications, by outcome: paid, refund, anomaly, closed (it was before), later, failed.",
		`holdfast_notification_work_total{outcome="anomaly"} 0`, `holdfast_notification_work_total{outcome="closed"} 0`,
		`holdfast_notification_work_total{outcome="failed"} 0`, `holdfast_notification_work_total{outcome="later"} 0`,
		`holdfast_notification_work_total{outcome="paid"} 1`, `holdfast_notification_work_total{outcome="refund"} 0`)
}

// The gateway asks not to be queried on the happy path: what the store shows as a
// paid seat or a refund is closed without a question.
func TestWork_WhatTheStoreShowsIsNotAskedAbout(t *testing.T) {
	t.Parallel()
	w := inProcess(t)
	paid, late := w.Held(t, 1, "N1"), w.Held(t, 2, "N1")
	w.complete(paid)
	if err := w.callback(t, paid); err != nil {
		t.Fatal(err)
	}
	w.complete(late)
	w.lapse(t, late)
	again := w.Held(t, 2, "N2")
	if err := w.callback(t, late); !errors.Is(err, booking.ErrRefunded) {
		t.Fatalf("late money: got %v, want a refund", err)
	}
	before := w.faults.count(opConfirm)
	w.deliver(t, w.note(paid, "m1"))
	w.deliver(t, w.note(late, "m2"))
	w.wantOutcome(t, "m1", booking.NotifiedPaid)
	w.wantOutcome(t, "m2", booking.NotifiedRefund)
	w.wantCalls(t, opQuery, 0)
	w.wantCalls(t, opSearch, 0)
	w.wantCalls(t, opConfirm, before)
	w.Want(t, again, booking.PhaseHeld, booking.StateHeld)
}

// The notification often overtakes the answer of the execute call that the browser's
// return is waiting for.
func TestWork_ExecuteIsBeingAnswered(t *testing.T) {
	t.Parallel()
	w := inProcess(t)
	paid, crashed := w.Held(t, 1, "N1"), w.Held(t, 2, "N1")
	for _, b := range []bookingtest.Booking{paid, crashed} {
		if _, err := w.records.Announce(t.Context(), b.Record, w.Clock.Now()); err != nil {
			t.Fatal(err)
		}
		w.complete(b)
		w.deliver(t, w.note(b, "m"+b.Code))
	}
	w.wantCalls(t, opQuery, 0)
	if err := w.callback(t, paid); err != nil {
		t.Fatal(err)
	}
	w.sweep(t, 21*time.Second)
	w.wantOutcome(t, "m"+paid.Code, booking.NotifiedPaid)
	w.wantOutcome(t, "m"+crashed.Code, booking.NotifiedPaid) // its return died: asked after all
	w.wantCalls(t, opQuery, 1)
	w.wantPaid(t, crashed)
}

// Case 16: whatever the order of the browser's return, a notification, its
// repetition and one two days later, it is one change.
func TestEveryOrderOfSignals_OneChange(t *testing.T) {
	t.Parallel()
	type signal struct {
		name string
		do   func(t *testing.T, w *world, b bookingtest.Booking)
	}
	signals := []signal{
		{"return", func(t *testing.T, w *world, b bookingtest.Booking) {
			if err := w.callback(t, b); err != nil {
				t.Errorf("confirm: got %v, want nil", err)
			}
		}},
		{"notice", func(t *testing.T, w *world, b bookingtest.Booking) { w.deliver(t, w.note(b, "m1")) }},
		{"again", func(t *testing.T, w *world, b bookingtest.Booking) { w.deliver(t, w.note(b, "m1")) }},
		{"days later", func(t *testing.T, w *world, b bookingtest.Booking) {
			w.Clock.Advance(48 * time.Hour)
			w.deliver(t, w.note(b, "m2"))
		}},
	}
	for _, order := range permutations(len(signals)) {
		var names []string
		for _, i := range order {
			names = append(names, signals[i].name)
		}
		t.Run(strings.Join(names, ","), func(t *testing.T) {
			t.Parallel()
			w := inProcess(t)
			b := w.Held(t, 1, "N1")
			w.complete(b)
			for _, i := range order {
				signals[i].do(t, w, b)
			}
			first := w.Row(t, b.Code)
			w.sweep(t, time.Hour)
			w.deliver(t, w.note(b, "m1"))
			w.sweep(t, time.Hour)
			w.wantPaid(t, b)
			w.wantOutcome(t, "m1", booking.NotifiedPaid)
			w.wantOutcome(t, "m2", booking.NotifiedPaid)
			w.wantIndexed(t, 0)
			if diff := cmp.Diff(first, w.Row(t, b.Code)); diff != "" {
				t.Errorf("row changed afterwards (-then +now):\n%s", diff)
			}
		})
	}
}

func permutations(n int) [][]int {
	if n == 0 {
		return [][]int{nil}
	}
	var out [][]int
	for _, p := range permutations(n - 1) {
		for at := range n {
			q := append(append(append([]int{}, p[:at]...), n-1), p[at:]...)
			out = append(out, q)
		}
	}
	return out
}

// Case 16 all at once.
func TestManyAtOnce_OneChange(t *testing.T) {
	t.Parallel()
	w := onRedis(t)
	b := w.Held(t, 1, "N1")
	w.complete(b)
	var group sync.WaitGroup
	for i := range 50 {
		group.Go(func() {
			n := w.note(b, fmt.Sprintf("m%02d", i/2)) // each twice
			if stored, err := w.service.Store(t.Context(), n); err != nil {
				t.Errorf("store: %v", err)
			} else if stored {
				w.service.Arrived(n)
			}
		})
		group.Go(func() {
			if err := w.callback(t, b); err != nil {
				t.Errorf("confirm: %v", err)
			}
		})
	}
	group.Wait()
	w.Background.Wait()
	w.sweep(t, time.Minute)
	w.wantPaid(t, b)
	for i := range 25 {
		w.wantOutcome(t, fmt.Sprintf("m%02d", i), booking.NotifiedPaid)
	}
	w.wantIndexed(t, 0)
}

// Case 13: paid late. The seat is given if it is free, else there is one refund,
// however often it is told.
func TestLateMoney(t *testing.T) {
	t.Parallel()
	w := inProcess(t)
	free, taken := w.Held(t, 1, "N1"), w.Held(t, 2, "N2")
	w.complete(free)
	w.complete(taken)
	w.lapse(t, free, taken)
	for i := 3; i <= 5; i++ { // the level is full
		w.Held(t, i, "N2")
	}
	for i := range 2 {
		w.deliver(t, w.note(free, fmt.Sprintf("free%d", i)))
		w.deliver(t, w.note(taken, fmt.Sprintf("taken%d", i)))
		w.wantOutcome(t, fmt.Sprintf("free%d", i), booking.NotifiedPaid)
		w.wantOutcome(t, fmt.Sprintf("taken%d", i), booking.NotifiedRefund)
	}
	w.wantPaid(t, free)
	w.Want(t, taken, "", booking.StateReleased)
	w.wantRefunds(t, taken, "TX"+taken.Payment.ID)
	w.wantCalls(t, opQuery, 2)
}

// Case 23: an old genuine notification after the same candidate has booked again.
func TestOldNotification_NeverTouchesTheNewBooking(t *testing.T) {
	t.Parallel()
	for _, paid := range []bool{false, true} {
		t.Run(fmt.Sprintf("old payment completed %t", paid), func(t *testing.T) {
			t.Parallel()
			w := onRedis(t)
			old := w.Held(t, 1, "N1")
			n := w.note(old, "m1")
			w.lapse(t, old)
			renewed := w.Held(t, 1, "N1")
			row := w.Row(t, renewed.Code)
			want := booking.NotificationOutcome("")
			if paid {
				w.complete(old)
				want = booking.NotifiedRefund
			}
			for i := range 3 { // under its own id, and as a first delivery under others
				w.deliver(t, n)
				n.ID = fmt.Sprintf("other%d", i)
				w.deliver(t, n)
				w.sweep(t, time.Minute)
				w.wantOutcome(t, n.ID, want)
				n.ID = "m1"
			}
			w.wantOutcome(t, "m1", want)
			if diff := cmp.Diff(row, w.Row(t, renewed.Code)); diff != "" {
				t.Errorf("row of the new booking (-before +now):\n%s", diff)
			}
			w.Want(t, renewed, booking.PhaseHeld, booking.StateHeld)
			if got := w.State(t, old); got != booking.StateReleased {
				t.Errorf("old record: got %s, want it released", got)
			}
			if paid {
				w.wantRefunds(t, old, "TX"+old.Payment.ID)
			} else {
				w.wantRefunds(t, old)
			}
			w.Books.Check(t)
		})
	}
}

// by makes a notification one about another transaction.
func by(transaction string) func(*booking.Notification) {
	return func(n *booking.Notification) { n.Transaction = transaction }
}

// Case 17: a second transaction for one payment goes back.
func TestSecondTransaction_IsARefund(t *testing.T) {
	t.Parallel()
	for _, settled := range []bool{true, false} {
		t.Run(fmt.Sprintf("first one settled %t", settled), func(t *testing.T) {
			t.Parallel()
			w := inProcess(t)
			b := w.Held(t, 1, "N1")
			w.complete(b)
			before := 0
			if settled {
				before = 1
				if err := w.callback(t, b); err != nil {
					t.Fatal(err)
				}
			}
			other := "TY" + b.Payment.ID
			w.deliver(t, w.note(b, "m2", by(other)))
			w.wantOutcome(t, "m2", "") // the gateway does not know it yet
			w.wantRefunds(t, b)
			w.wantCalls(t, opConfirm, 1-before)
			w.Gateway.CompleteAgain(b.Payment.ID)
			w.sweep(t, 41*time.Second)
			w.wantOutcome(t, "m2", booking.NotifiedRefund)
			w.deliver(t, w.note(b, "m1"))
			w.wantOutcome(t, "m1", booking.NotifiedPaid)
			w.Want(t, b, booking.PhasePaid, booking.StatePaid)
			if got := w.Row(t, b.Code).Transaction; got != "TX"+b.Payment.ID {
				t.Errorf("seat is paid by %s, want the payment's own transaction", got)
			}
			w.wantRefunds(t, b, other)
			w.Books.Check(t)
		})
	}
}

// Money that came under an invoice number that is not ours, under none, or under
// that of another attempt is led to its own by the reference of its order, which the
// notification or the gateway's search tells.
func TestWrongInvoice_LedByTheReference(t *testing.T) {
	t.Parallel()
	wrong := map[string]func(own, others string) string{
		"foreign": func(own, _ string) string { return own[:len(own)-1] + "?" },
		"none":    func(string, string) string { return "" },
		"unknown": func(own, _ string) string {
			return booking.Invoice(own[:64], booking.AttemptID(booking.NewEpoch(time.Now()), booking.NewAttemptSuffix(time.Now())))
		},
		"another's": func(_, others string) string { return others },
	}
	for name, invoice := range wrong {
		for _, told := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s, told %t", name, told), func(t *testing.T) {
				t.Parallel()
				w := inProcess(t)
				b, other := w.Held(t, 1, "N1"), w.Held(t, 2, "N1")
				w.complete(b)
				w.complete(other)
				again := w.Gateway.CompleteAgain(b.Payment.ID).Transaction
				as := func(n *booking.Notification) {
					n.Invoice = invoice(n.Invoice, other.Record.Invoice)
					if told && name != "another's" {
						n.Reference = b.Record.Invoice
					}
				}
				w.deliver(t, w.note(b, "m1", as))
				w.deliver(t, w.note(b, "m2", as, by(again)))
				w.deliver(t, w.note(other, "m3"))
				if name == "unknown" && !told { // it waits for the worker first
					w.wantOutcome(t, "m1", "")
					w.sweep(t, 59*time.Minute)
					w.sweep(t, 11*time.Minute)
				}
				w.wantOutcome(t, "m1", booking.NotifiedPaid)
				w.wantOutcome(t, "m2", booking.NotifiedRefund)
				w.wantOutcome(t, "m3", booking.NotifiedPaid)
				w.Want(t, b, booking.PhasePaid, booking.StatePaid)
				w.Want(t, other, booking.PhasePaid, booking.StatePaid)
				w.wantRefunds(t, b, again)
				w.wantRefunds(t, other)
				w.wantLines(t, 0, "is an anomaly")
				w.Books.Check(t)
			})
		}
	}
}

// A second transaction waits for the payment's own to be settled.
func TestSecondTransaction_OwnMoneyFirst(t *testing.T) {
	t.Parallel()
	w := inProcess(t)
	b := w.Held(t, 1, "N1")
	w.complete(b)
	other := w.Gateway.CompleteAgain(b.Payment.ID).Transaction
	w.faults.break1(opConfirm, lost)
	w.deliver(t, w.note(b, "m2", by(other)))
	w.wantOutcome(t, "m2", "")
	w.wantCalls(t, opSearch, 0)
	w.Want(t, b, booking.PhaseHeld, booking.StateHeld)
}

// Money on its way back is not given back again.
func TestRefundsOwnTransaction_IsNoPayment(t *testing.T) {
	t.Parallel()
	w := inProcess(t)
	b := w.Held(t, 1, "N1")
	w.complete(b)
	w.lapse(t, b)
	w.Held(t, 1, "N2")
	if err := w.callback(t, b); !errors.Is(err, booking.ErrRefunded) {
		t.Fatalf("late money: got %v, want a refund", err)
	}
	if _, ok, err := w.records.ClaimRefund(t.Context(), "TX"+b.Payment.ID, "c1", w.Clock.Now(), w.Clock.Now().Add(time.Hour)); !ok || err != nil {
		t.Fatalf("claim refund: %t, %v", ok, err)
	}
	if err := w.records.RefundSent(t.Context(), "TX"+b.Payment.ID, "c1", w.Clock.Now()); err != nil {
		t.Fatal(err)
	}
	w.desk.back["TXBACK"] = true
	w.deliver(t, w.note(b, "m1", by("TXBACK")))
	w.wantOutcome(t, "m1", "")
	if err := w.records.RefundDone(t.Context(), "TX"+b.Payment.ID, "gateway", "TXBACK", "", w.Clock.Now()); err != nil {
		t.Fatal(err)
	}
	w.sweep(t, 41*time.Second)
	w.wantOutcome(t, "m1", booking.NotifiedRefund)
	w.wantRefunds(t, b, "TX"+b.Payment.ID)
	w.wantCalls(t, opSearch, 0)
}

// Case 20: it is the gateway's amount that counts.
func TestAmounts_GatewaysCounts(t *testing.T) {
	t.Parallel()
	w := inProcess(t)
	b, less := w.Held(t, 1, "N1"), w.Held(t, 2, "N1")
	w.complete(b)
	w.complete(less)
	w.Gateway.Divert(less.Payment.ID, func(c *booking.Charge) { c.Amount = 100 })
	w.deliver(t, w.note(b, "m1", func(n *booking.Notification) { n.Amount = 1 }))
	w.deliver(t, w.note(less, "m2"))
	w.wantOutcome(t, "m1", booking.NotifiedPaid)
	w.wantOutcome(t, "m2", booking.NotifiedRefund)
	w.wantLines(t, 2, "anomaly: the notification's amount")
	w.wantPaid(t, b)
	w.Want(t, less, booking.PhaseHeld, booking.StateHeld)
	w.wantRefunds(t, less, "TX"+less.Payment.ID)
}

// Case 18: a notification that tells of no money frees no seat, and paid beats
// failed.
func TestNotificationsOfNoMoney(t *testing.T) {
	t.Parallel()
	w := inProcess(t)
	b := w.Held(t, 1, "N1")
	with := func(status, transaction string) func(*booking.Notification) {
		return func(n *booking.Notification) { n.Status, n.Transaction = status, transaction }
	}
	w.deliver(t, w.note(b, "failed", with("Failed", "TXNONE")))
	w.wantOutcome(t, "failed", booking.NotifiedAnomaly)
	w.Want(t, b, booking.PhaseHeld, booking.StateHeld)

	w.complete(b)
	w.deliver(t, w.note(b, "paid"))
	w.deliver(t, w.note(b, "refunded", with("Refunded", "TXBACK")))
	w.deliver(t, w.note(b, "late failed", with("Failed", "TX"+b.Payment.ID)))
	w.wantOutcome(t, "paid", booking.NotifiedPaid)
	w.wantOutcome(t, "refunded", booking.NotifiedAnomaly)
	w.wantOutcome(t, "late failed", booking.NotifiedPaid)
	w.wantPaid(t, b)
	w.wantCalls(t, opSearch, 0)
}

func TestAnomalies_ToldOnceAndClosed(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		set   func(*booking.Notification)
		level string
	}{
		"unreadable": {func(n *booking.Notification) { n.Unreadable, n.Amount = "amount is not an amount", 0 }, "ERROR"},
		"no invoice": {func(n *booking.Notification) { n.Invoice, n.Reference = "", "rent" }, "ERROR"},
		"other shop": {func(n *booking.Notification) { n.Invoice = "orderId1233" }, "WARN"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := inProcess(t)
			w.desk.silent = true
			b := w.Held(t, 1, "N1")
			w.complete(b)
			w.Books.Unseated[b.Payment.ID] = true
			w.deliver(t, w.note(b, "m1", tt.set))
			w.deliver(t, w.note(b, "m1", tt.set))
			w.sweep(t, time.Hour)
			w.wantOutcome(t, "m1", booking.NotifiedAnomaly)
			w.wantIndexed(t, 0)
			w.wantLines(t, 1, "anomaly", tt.level, `"transaction":"TX`+b.Payment.ID)
			w.wantLines(t, 0, "rent")
			w.wantLines(t, 0, b.Record.CandidateHash)
			w.wantCalls(t, opQuery, 0)
			w.Want(t, b, booking.PhaseHeld, booking.StateHeld)
		})
	}
}

// Only an answered search ends such money as one for a person: what no answer came
// to stays open, however long the gateway, its books or the store are behind, and is
// led home after it.
func TestWrongInvoice_WaitsForTheGatewaysWord(t *testing.T) {
	t.Parallel()
	unknown := func(own string) string {
		return booking.Invoice(own[:64], booking.AttemptID(booking.NewEpoch(time.Now()), booking.NewAttemptSuffix(time.Now())))
	}
	none := func(string) string { return "" }
	for name, tc := range map[string]struct {
		invoice func(own string) string
		behind  func(w *world, b bookingtest.Booking)
		good    func(w *world, b bookingtest.Booking)
	}{
		"none, no answer":        {none, breakSearch, mendSearch},
		"unknown, no answer":     {unknown, breakSearch, mendSearch},
		"none, not in the books": {none, nothing, func(w *world, b bookingtest.Booking) { w.complete(b) }},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := inProcess(t)
			b := w.Held(t, 1, "N1")
			tc.behind(w, b)
			w.deliver(t, w.note(b, "m1", func(n *booking.Notification) { n.Invoice = tc.invoice(n.Invoice) }))
			for range 6 {
				w.sweep(t, 9*time.Minute)
			}
			w.wantOutcome(t, "m1", "")
			if name != "none, not in the books" { // those are asked for an hour
				w.sweep(t, 3*time.Hour)
				w.sweep(t, 11*time.Minute)
				w.wantOutcome(t, "m1", "")
			}
			tc.good(w, b)
			w.sweep(t, 11*time.Minute)
			w.wantOutcome(t, "m1", booking.NotifiedPaid)
			w.wantLines(t, 0, "is an anomaly")
		})
	}
}

// What the gateway's books do not have after an hour either is for a person.
func TestForeignMoney_NeverInTheBooks(t *testing.T) {
	t.Parallel()
	w := inProcess(t)
	b := w.Held(t, 1, "N1")
	w.deliver(t, w.note(b, "m1", func(n *booking.Notification) { n.Invoice = "" }))
	w.sweep(t, 59*time.Minute)
	w.wantOutcome(t, "m1", "")
	w.sweep(t, 11*time.Minute)
	w.wantOutcome(t, "m1", booking.NotifiedAnomaly)
	w.wantLines(t, 1, "anomaly", "ERROR", `"gateway_found":false`)
}

// The store that fails between the search and the record it leads to ends nothing.
func TestWrongInvoice_StoreFailsAfterTheSearch(t *testing.T) {
	t.Parallel()
	w := inProcess(t)
	b := w.Held(t, 1, "N1")
	w.complete(b)
	w.deliver(t, w.note(b, "m1", func(n *booking.Notification) {
		n.Invoice = booking.Invoice(n.Invoice[:64], booking.AttemptID(booking.NewEpoch(time.Now()), booking.NewAttemptSuffix(time.Now())))
	}))
	w.sweep(t, 59*time.Minute)
	w.faults.break1(opRecord, fault{}) // the wrong number's: there is none
	w.faults.break1(opRecord, lost)
	if report := w.sweep(t, 11*time.Minute); report["failed"] != 1 {
		t.Errorf("store away: got %v, want one failed", report)
	}
	w.wantOutcome(t, "m1", "")
	w.sweep(t, time.Minute)
	w.sweep(t, 11*time.Minute)
	w.wantOutcome(t, "m1", booking.NotifiedPaid)
}

func nothing(*world, bookingtest.Booking) {}

func breakSearch(w *world, b bookingtest.Booking) {
	w.complete(b)
	w.faults.breakAll(opSearch, fault{err: booking.ErrInDoubt})
}

func mendSearch(w *world, _ bookingtest.Booking) { w.faults.breakAll(opSearch, fault{}) }

// The payer was faster than the worker.
func TestNoRecordYet_WaitsForTheWorker(t *testing.T) {
	t.Parallel()
	w := inProcess(t)
	b := w.Unwritten(t, 1, "N1")
	w.complete(b)
	w.deliver(t, w.note(b, "m1"))
	w.wantOutcome(t, "m1", "")
	w.wantCalls(t, opQuery, 0)
	w.Write(t, b)
	w.sweep(t, 21*time.Second)
	w.wantOutcome(t, "m1", booking.NotifiedPaid)
	w.wantPaid(t, b)
}

func TestNoRecord_IsForAPersonAfterAnHour(t *testing.T) {
	t.Parallel()
	w := inProcess(t)
	b := w.Unwritten(t, 1, "N1")
	w.Books.Unseated[b.Payment.ID] = true
	w.complete(b)
	w.deliver(t, w.note(b, "m1"))
	w.sweep(t, 59*time.Minute)
	w.wantOutcome(t, "m1", "")
	w.sweep(t, 11*time.Minute)
	w.wantOutcome(t, "m1", booking.NotifiedAnomaly)
	w.wantLines(t, 1, "anomaly", "ERROR", "has no record", b.Attempt)
	w.wantIndexed(t, 0)
}

// While the store was away the worker wrote nothing: the hour is not enough then.
func TestNoRecord_NotBelievedRightAfterAnOutage(t *testing.T) {
	t.Parallel()
	for _, how := range []string{"outage", "restart"} {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			w := inProcess(t)
			b := w.Unwritten(t, 1, "N1")
			w.complete(b)
			w.deliver(t, w.note(b, "m1"))
			if how == "outage" {
				w.faults.break1(opRead, lost)
				if report := w.sweep(t, 2*time.Hour); report["failed"] != 1 {
					t.Errorf("store away: got %v, want one failed", report)
				}
			} else {
				w.Clock.Advance(2 * time.Hour)
				w.restart(t)
			}
			w.sweep(t, 0)
			w.wantOutcome(t, "m1", "")
			w.Write(t, b) // the worker has caught up
			w.sweep(t, 11*time.Minute)
			w.wantOutcome(t, "m1", booking.NotifiedPaid)
			w.wantPaid(t, b)
		})
	}
}

// What the gateway does not call completed stays open, in growing pauses, and is
// loud after an hour, once in ten minutes.
func TestDoubt_StaysOpenAndGetsLoud(t *testing.T) {
	t.Parallel()
	for name, set := range map[string]func(w *world, b bookingtest.Booking){
		"open": func(*world, bookingtest.Booking) {},
		"unknown": func(w *world, b bookingtest.Booking) {
			w.Gateway.Always(bookingtest.Query, b.Payment.ID, bookingtest.Garbled())
		},
		"doubt":   func(w *world, b bookingtest.Booking) { w.faults.breakAll(opQuery, fault{err: booking.ErrInDoubt}) },
		"no turn": func(w *world, _ bookingtest.Booking) { w.rate.err = context.DeadlineExceeded },
		"not acknowledged": func(w *world, b bookingtest.Booking) {
			w.complete(b)
			w.faults.breakAll(opConfirm, fault{err: booking.ErrNotAcknowledged})
		},
		"record cannot be read": func(w *world, _ bookingtest.Booking) {
			w.faults.breakAll(opRecord, fault{err: booking.ErrUnreadable})
		},
		"cannot be read": func(w *world, _ bookingtest.Booking) {
			w.faults.breakAll(opRecord, fault{err: booking.ErrUnreadable})
			w.faults.breakAll(opRead, fault{err: booking.ErrUnreadable})
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := inProcess(t)
			b := w.Held(t, 1, "N1")
			set(w, b)
			w.deliver(t, w.note(b, "m1"))
			looks, first := 0, 0
			for minute := range 3 * 60 {
				n := w.sweep(t, time.Minute)["later"]
				if looks += n; minute < 59 {
					first += n
				}
			}
			if name != "cannot be read" && (first < 6 || first > 12) {
				t.Errorf("looks in the first hour: got %d, want growing pauses", first)
			}
			if looks-first < 9 || looks-first > 13 {
				t.Errorf("looks in the next two hours: got %d, want one in ten minutes", looks-first)
			}
			w.wantOutcome(t, "m1", "")
			w.wantIndexed(t, 1)
			if got := w.log.lines("open for over an hour", `"notifications":1`, "m1"); got < 9 || got > 18 {
				t.Errorf("loud lines: got %d, want one in ten minutes", got)
			}
			if name == "not acknowledged" {
				return
			}
			w.Want(t, b, booking.PhaseHeld, booking.StateHeld)
			if err := w.service.Work(t.Context(), "m1"); err == nil {
				t.Error("work: got nil, want why it is open")
			}
		})
	}
}

func TestManyInDoubt_AreOneLine(t *testing.T) {
	t.Parallel()
	w := inProcess(t)
	b := w.Held(t, 1, "N1")
	for i := range 10 {
		if _, err := w.service.Store(t.Context(), w.note(b, fmt.Sprintf("m%02d", i))); err != nil {
			t.Fatal(err)
		}
		w.Clock.Advance(time.Second)
	}
	w.sweep(t, 2*time.Hour)
	w.wantLines(t, 1, "open for over an hour")
	w.wantLines(t, 1, "open for over an hour", `"notifications":10`, `"message_id":"m00"`)
	old := w.note(b, "old")
	old.ReceivedAt = old.ReceivedAt.Add(-3 * time.Hour)
	if _, err := w.service.Store(t.Context(), old); err != nil {
		t.Fatal(err)
	}
	if report := w.sweep(t, 5*time.Minute); report["later"] != 1 {
		t.Errorf("five minutes later: got %v, want one look", report)
	}
	w.wantLines(t, 1, "open for over an hour") // not again within ten minutes
	w.sweep(t, 5*time.Minute)
	w.wantLines(t, 1, "open for over an hour", `"notifications":11`, `"message_id":"old"`)
}

// An outage of the whole gateway is said once a sweep, which then asks no more.
func TestOutage_IsSaidOnceAndAskedOnce(t *testing.T) {
	t.Parallel()
	w := inProcess(t)
	b := w.Held(t, 1, "N1")
	w.faults.breakAll(opQuery, fault{err: errors.Join(booking.ErrInDoubt, booking.ErrGatewayOutage)})
	for i := range 24 {
		if _, err := w.service.Store(t.Context(), w.note(b, fmt.Sprintf("m%02d", i))); err != nil {
			t.Fatal(err)
		}
	}
	if report := w.sweep(t, time.Minute); report["later"] != 24 {
		t.Errorf("got %v, want all put off", report)
	}
	w.wantLines(t, 1, "gateway cannot be reached")
	if got := w.faults.count(opQuery); got > width {
		t.Errorf("queries: got %d, want at most the %d that were at work", got, width)
	}
	w.faults.breakAll(opQuery, fault{})
	w.complete(b)
	if report := w.sweep(t, 20*time.Minute); report["paid"] != 24 {
		t.Errorf("healed: got %v, want all closed", report)
	}
	w.wantPaid(t, b)
}

// A crash, or a reply that is lost, at every step: in the end it is closed, and
// the money counted once.
func TestBrokenAtEveryStep_OneChangeInTheEnd(t *testing.T) {
	t.Parallel()
	stories := map[string]struct {
		ops     []string
		begin   func(t *testing.T, w *world) (b bookingtest.Booking, n booking.Notification)
		outcome booking.NotificationOutcome
	}{
		"paid": {[]string{opPut, opRead, opClose, opRecord, opRefund, opLater, opDone, opQuery, opConfirm},
			func(t *testing.T, w *world) (bookingtest.Booking, booking.Notification) {
				b := w.Held(t, 1, "N1")
				w.complete(b)
				return b, w.note(b, "m1")
			}, booking.NotifiedPaid},
		"late": {[]string{opPut, opRead, opClose, opRecord, opRefund, opLater, opDone, opQuery, opConfirm},
			func(t *testing.T, w *world) (bookingtest.Booking, booking.Notification) {
				b := w.Held(t, 1, "N1")
				w.complete(b)
				w.lapse(t, b)
				w.Held(t, 1, "N2")
				return b, w.note(b, "m1")
			}, booking.NotifiedRefund},
		"second": {[]string{opPut, opRead, opClose, opRecord, opRefund, opLater, opDone, opQuery, opSearch, opConfirm},
			func(t *testing.T, w *world) (bookingtest.Booking, booking.Notification) {
				b := w.Held(t, 1, "N1")
				w.complete(b)
				return b, w.note(b, "m1", by(w.Gateway.CompleteAgain(b.Payment.ID).Transaction))
			}, booking.NotifiedRefund},
		"anomaly": {[]string{opPut, opClose, opLater, opDone, opRefund, opSearch},
			func(t *testing.T, w *world) (bookingtest.Booking, booking.Notification) {
				b := w.Held(t, 1, "N1")
				w.complete(b)
				w.desk.silent = true
				return b, w.note(b, "m1", func(n *booking.Notification) { n.Invoice = "" })
			}, booking.NotifiedAnomaly},
	}
	for name, story := range stories {
		for _, op := range story.ops {
			for how, what := range map[string]fault{"lost": lost, "kept": kept} {
				calls := 1
				if op == opLater || op == opRefund || op == opConfirm {
					calls = 2 // of which the first is broken, or the second
				}
				for at := range calls {
					t.Run(fmt.Sprintf("%s/%s/%s/%d", name, op, how, at), func(t *testing.T) {
						t.Parallel()
						w := inProcess(t)
						b, n := story.begin(t, w)
						if at == 1 {
							w.faults.break1(op, fault{})
						}
						w.faults.break1(op, what)
						for {
							stored, err := w.service.Store(t.Context(), n)
							if err != nil {
								continue // a 503: delivered again
							}
							if stored {
								w.service.Arrived(n)
								w.Background.Wait()
							}
							break
						}
						for range 4 {
							w.restart(t)
							w.sweep(t, 5*time.Minute)
							if _, err := w.service.Restore(t.Context()); err != nil {
								t.Logf("restore: %v; the next one does", err)
							}
						}
						w.sweep(t, 5*time.Minute)
						w.wantOutcome(t, "m1", story.outcome)
						w.wantIndexed(t, 0)
						switch name {
						case "paid":
							w.wantPaid(t, b)
						case "late":
							w.wantRefunds(t, b, n.Transaction)
						case "second":
							w.wantRefunds(t, b, n.Transaction)
							w.Want(t, b, booking.PhasePaid, booking.StatePaid)
						case "anomaly":
							w.Want(t, b, booking.PhaseHeld, booking.StateHeld)
							if got := w.log.lines("notification is an anomaly"); got < 1 || got > 2 {
								t.Errorf("lines about it: got %d, want one, or two if its end was not written", got)
							}
						}
					})
				}
			}
		}
	}
}

func TestArrived_TooManyIsTheSweepsWork(t *testing.T) {
	t.Parallel()
	w := inProcess(t)
	b := w.Held(t, 1, "N1")
	w.complete(b)
	hold := bookingtest.NewHold()
	w.Gateway.Always(bookingtest.Query, b.Payment.ID, bookingtest.Late(hold))
	for i := range width + 3 {
		n := w.note(b, fmt.Sprintf("m%d", i))
		if _, err := w.service.Store(t.Context(), n); err != nil {
			t.Fatal(err)
		}
		w.service.Arrived(n)
		if i < width {
			<-hold.Arrived()
		}
	}
	w.wantCalls(t, opQuery, width)
	hold.LetGo()
	w.Background.Wait()
	if report := w.sweep(t, time.Minute); report["paid"] != 3 {
		t.Errorf("sweep: got %v, want the three that were left", report)
	}
	w.wantPaid(t, b)
	w.wantIndexed(t, 0)
}

// refusing is a background that is draining for a while.
type refusing struct {
	*bookingtest.Background
	n int
}

func (r *refusing) Go(fn func()) bool {
	if r.n--; r.n >= 0 {
		return false
	}
	return r.Background.Go(fn)
}

func TestArrived_RefusedKeepsNoPlace(t *testing.T) {
	t.Parallel()
	w := inProcess(t)
	b := w.Held(t, 1, "N1")
	w.complete(b)
	d := w.deps()
	d.Background, d.Registerer = &refusing{w.Background, 2 * width}, prometheus.NewRegistry()
	s, err := notification.New(d)
	if err != nil {
		t.Fatal(err)
	}
	n := w.note(b, "m1")
	if _, err := s.Store(t.Context(), n); err != nil {
		t.Fatal(err)
	}
	for range 2 * width {
		s.Arrived(n)
	}
	w.wantOutcome(t, "m1", "")
	s.Arrived(n)
	w.Background.Wait()
	w.wantOutcome(t, "m1", booking.NotifiedPaid)
	w.wantPaid(t, b)
}

func TestSweep_AllThatIsDueOldestFirst(t *testing.T) {
	t.Parallel()
	w := onRedis(t)
	b := w.Held(t, 1, "N1")
	d := w.deps()
	d.Width, d.Registerer = 1, prometheus.NewRegistry()
	one, err := notification.New(d)
	if err != nil {
		t.Fatal(err)
	}
	const many = 50 // several pages
	for i := range many {
		n := w.note(b, fmt.Sprintf("m%02d", many-1-i), func(n *booking.Notification) { n.Unreadable = "x" })
		if _, err := one.Store(t.Context(), n); err != nil {
			t.Fatal(err)
		}
		w.Clock.Advance(time.Second)
	}
	w.Clock.Advance(time.Minute)
	report, err := one.Sweep(t.Context())
	if err != nil || report["anomaly"] != many {
		t.Errorf("got %v, %v, want all %d", report, err, many)
	}
	w.wantIndexed(t, 0)
	var got []string
	for line := range strings.Lines(w.log.text.String()) {
		if _, id, ok := strings.Cut(line, `"message_id":"`); ok {
			got = append(got, id[:3])
		}
	}
	for i, id := range got {
		if want := fmt.Sprintf("m%02d", many-1-i); id != want {
			t.Fatalf("look %d was at %s, want %s", i, id, want)
		}
	}
	if w.rate.n != 0 {
		t.Errorf("turns taken for what nobody is asked about: got %d, want none", w.rate.n)
	}
}

func TestSweep_EndsWhenTheStoreIsDownAndComesBack(t *testing.T) {
	t.Parallel()
	w := inProcess(t)
	b := w.Held(t, 1, "N1")
	w.complete(b)
	for i := range 24 {
		if _, err := w.service.Store(t.Context(), w.note(b, fmt.Sprintf("m%02d", i))); err != nil {
			t.Fatal(err)
		}
	}
	w.Clock.Advance(time.Minute)
	w.faults.breakAll(opRead, lost)
	report, err := w.service.Sweep(t.Context())
	if err == nil || report["failed"] < 2*width || report["failed"] > 3*width {
		t.Errorf("store down: got %v, %v, want an error soon", report, err)
	}
	w.faults.breakAll(opRead, fault{})
	w.faults.breakAll(opDue, lost)
	if _, err := w.service.Sweep(t.Context()); !errors.Is(err, errLost) {
		t.Errorf("redis down: got %v, want its error", err)
	}
	w.faults.breakAll(opDue, fault{})
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if report, err := w.service.Sweep(ended); err == nil || len(report) != 0 {
		t.Errorf("with an ended context: got %v, %v, want nothing begun", report, err)
	}
	if report := w.sweep(t, 0); report["paid"] != 24 {
		t.Errorf("healed: got %v, want all closed", report)
	}
}

// What cannot be taken off the list or put off on it does not keep a sweep going.
func TestSweep_EndsWhenTheListCannotBeWritten(t *testing.T) {
	t.Parallel()
	w := inProcess(t)
	paid, doubt := w.Held(t, 1, "N1"), w.Held(t, 2, "N1")
	w.complete(paid)
	for i := range 20 {
		for _, b := range []bookingtest.Booking{paid, doubt} {
			if _, err := w.service.Store(t.Context(), w.note(b, fmt.Sprintf("%s-%02d", b.Code, i))); err != nil {
				t.Fatal(err)
			}
		}
	}
	w.faults.breakAll(opLater, lost)
	w.faults.breakAll(opDone, lost)
	if report := w.sweep(t, time.Minute); report["paid"] != 20 || report["later"] != 20 {
		t.Errorf("got %v, want each looked at once", report)
	}
	w.wantIndexed(t, 40)
	w.faults.breakAll(opLater, fault{})
	w.faults.breakAll(opDone, fault{})
	if report := w.sweep(t, time.Minute); report["closed"] != 20 || report["later"] != 20 {
		t.Errorf("healed: got %v, want the closed ones taken off", report)
	}
	w.wantIndexed(t, 20)
}

// An id on the list without a notification is taken off it.
func TestSweep_NothingUnderTheID(t *testing.T) {
	t.Parallel()
	w := inProcess(t)
	if err := w.gate.NoticeLater(t.Context(), "gone", 0); err != nil {
		t.Fatal(err)
	}
	if report := w.sweep(t, time.Second); report["closed"] != 1 {
		t.Errorf("got %v, want it taken off", report)
	}
	w.wantIndexed(t, 0)
	if err := w.service.Work(t.Context(), "gone"); err != nil {
		t.Errorf("work: got %v, want nil", err)
	}
}

// After a lost Redis the store's open notifications are on the list again.
func TestRestore_FindsWhatTheListHasLost(t *testing.T) {
	t.Parallel()
	w := onRedis(t)
	paid, doubt := w.Held(t, 1, "N1"), w.Held(t, 2, "N1")
	w.deliver(t, w.note(doubt, "m1"))
	w.deliver(t, w.note(paid, "m2"))
	w.deliver(t, w.note(paid, "m3", func(n *booking.Notification) { n.Unreadable = "amount is not an amount" }))
	if err := w.rdb.Del(t.Context(), prefix+"ntf:due").Err(); err != nil {
		t.Fatal(err)
	}
	w.complete(paid)
	for range 2 {
		if open, err := w.service.Restore(t.Context()); open != 2 || err != nil {
			t.Errorf("restore: got %d, %v, want the two that are open", open, err)
		}
	}
	w.wantIndexed(t, 2)
	w.sweep(t, time.Second)
	w.wantOutcome(t, "m2", booking.NotifiedPaid)
	w.wantIndexed(t, 1)

	w.faults.break1(opLater, lost)
	if open, err := w.service.Restore(t.Context()); open != 1 || !errors.Is(err, errLost) {
		t.Errorf("redis down: got %d, %v, want them counted, and the error", open, err)
	}
	w.wantMetric(t, "holdfast_notifications_open", "gauge",
		"Notifications of the gateway without an outcome, when the store was last gone through.", "holdfast_notifications_open 1")
	w.faults.break1(opOpen, lost)
	if _, err := w.service.Restore(t.Context()); !errors.Is(err, errLost) {
		t.Errorf("store down: got %v, want its error", err)
	}
	if n, err := testutil.GatherAndCount(w.reg, "holdfast_notifications_open"); n != 0 || err != nil {
		t.Errorf("store down: got %d series of open notifications, %v, want none: nobody knows", n, err)
	}
	w.faults.break1(opOpen, fault{made: true, err: booking.ErrUnreadable})
	if open, err := w.service.Restore(t.Context()); open != 2 || err != nil {
		t.Errorf("one cannot be read: got %d, %v, want it counted and the other on the list", open, err)
	}
	w.wantLines(t, 1, "notifications cannot be read", "ERROR")
}
