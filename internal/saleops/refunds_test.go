package saleops_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"holdfast/internal/booking"
	"holdfast/internal/booking/bookingtest"
	"holdfast/internal/saleops"
)

// goesBack wants the ledger to know that the booking's late money goes back, though
// a seat is free.
func (w *world) goesBack(t *testing.T, b bookingtest.Booking) {
	t.Helper()
	d, err := w.Ledger.LedgerDriver.Late(t.Context(), b.Record, w.charge(t, b).Transaction, booking.MoneyLate)
	if err != nil || d.Paid {
		t.Errorf("late money of %s: got %+v, %v, want that it goes back", b.Code, d, err)
	}
}

func TestRebuild_LateDecisionsComeBack(t *testing.T) {
	w := open(t)
	backs := []bookingtest.Booking{w.refunded(t, 1), w.refunded(t, 2)}
	paid := w.Held(t, 3, "N1")
	w.pays(t, paid)
	w.lose(t)
	out := w.mustRebuild(t)
	if out.Decided != 2 || out.Contradicted != 0 || out.Refunded != 0 || out.Paid != 1 {
		t.Errorf("rebuilt: got %+v, want two decisions and a paid seat", out)
	}
	for _, b := range backs {
		w.goesBack(t, b)
		w.Want(t, b, "", booking.StateReleased)
	}
	w.Clock.Advance(3 * time.Minute)
	r := w.audit(t, withGateway())
	if got := rule(t, r, saleops.RuleMoney); got.Verdict != saleops.VerdictHolds {
		t.Errorf("money: got %s, %q, want holds", got.Verdict, got.Broken)
	}
}

// What breaks off among the decisions is finished by the next run, also when the
// sale has been opened meanwhile.
func TestRebuild_DecisionsThatBreakOffAreRunAgain(t *testing.T) {
	for name, c := range map[string]struct {
		op    bookingtest.Op
		fault bookingtest.Fault
		sold  int
	}{
		"not made":             {bookingtest.OpLate, bookingtest.Lost, 0},
		"not acknowledged":     {bookingtest.OpLate, bookingtest.Kept, 0},
		"after it has sold":    {bookingtest.OpLate, bookingtest.Lost, 1},
		"the rows do not come": {bookingtest.OpRows, bookingtest.Lost, 0},
	} {
		t.Run(name, func(t *testing.T) {
			w := open(t)
			back := w.refunded(t, 1)
			w.lose(t)
			w.Faults.Next(c.op, c.fault)
			if out, err := w.ops.Rebuild(t.Context(), big()); err == nil {
				t.Fatalf("rebuild: got %+v, want an error", out)
			}
			if c.sold > 0 {
				w.resume(t)
				w.Held(t, 3, "N1")
			}
			out := w.mustRebuild(t)
			want := saleops.Rebuilt{
				Applied: booking.Applied{Epoch: bookingtest.Epoch, Total: 1 + c.sold, Admitted: map[string]int{"N1": c.sold, "N2": 1}},
				Held:    1 + c.sold, Decided: 1, Earlier: true,
			}
			if diff := cmp.Diff(want, out); diff != "" {
				t.Errorf("repeated (-want +got):\n%s", diff)
			}
			w.goesBack(t, back)
			_, err := w.ops.Rebuild(t.Context(), big())
			wantErr(t, "rebuild once it is acknowledged", err, saleops.ErrNotLost)
			w.Books.CheckAtRest(t)
		})
	}
}

// Paid and given back: nobody who paid loses the seat, and a person is called.
func TestRebuild_RefundOfAPaidSeatIsSaid(t *testing.T) {
	w := open(t)
	back := w.refunded(t, 2)
	paid := w.Held(t, 1, "N1")
	w.pays(t, paid)
	w.owe(t, paid, "TX"+paid.Payment.ID, booking.MoneyLate)
	w.lose(t)
	if out := w.mustRebuild(t); out.Decided != 1 || out.Contradicted != 1 || out.Paid != 1 {
		t.Errorf("rebuilt: got %+v, want one decision and one contradiction", out)
	}
	if !strings.Contains(w.errors.String(), "TX"+paid.Payment.ID) {
		t.Errorf("log: got %s, want the transaction", w.errors)
	}
	w.Want(t, paid, booking.PhasePaid, booking.StatePaid)
	w.goesBack(t, back)
}

// The refund was written, and the attempt's record not ended any more: a row made of
// it would be paid by the money that goes back.
func TestRebuild_AttemptWhoseMoneyGoesBackHasNoSeat(t *testing.T) {
	for name, after := range map[string]time.Duration{"in time": time.Minute, "past the deadline": time.Hour} {
		t.Run(name, func(t *testing.T) {
			w := open(t)
			held, refused, otherPayment := w.Held(t, 1, "N1"), w.Refused(t, 2, "N1"), w.Held(t, 3, "N1")
			if err := w.Store.Release(t.Context(), refused.Record, booking.ReasonRefused, w.Clock.Now()); err != nil {
				t.Fatal(err)
			}
			for _, b := range []bookingtest.Booking{held, refused} {
				w.Gateway.Complete(b.Payment.ID)
				w.Books.Unseated[b.Payment.ID] = true
				w.owe(t, b, "TX"+b.Payment.ID, booking.MoneyLate)
			}
			stranger := otherPayment // the attempt's, of another payment than its seat's
			var err error
			if stranger.Payment, err = w.Gateway.Create(t.Context(), booking.Order{Amount: 150000, Currency: "BDT"}); err != nil {
				t.Fatal(err)
			}
			w.Gateway.Complete(stranger.Payment.ID)
			w.Books.Unseated[stranger.Payment.ID] = true
			w.owe(t, stranger, "TX"+stranger.Payment.ID, booking.MoneyLate)
			w.pays(t, otherPayment)
			w.Clock.Advance(after)
			w.lose(t)
			if out := w.mustRebuild(t); out.Refunded != 1 || out.Decided != 3 || out.Held != 0 || out.Paid != 1 {
				t.Errorf("rebuilt: got %+v, want one record ended and the paid seat alone", out)
			}
			rec, err := w.Store.Record(t.Context(), held.Record.CandidateHash, held.Attempt)
			if err != nil || rec.State != booking.StateReleased || rec.Reason != booking.ReasonRefund {
				t.Errorf("record: got %s %q, %v, want RELEASED for its refund", rec.State, rec.Reason, err)
			}
			w.resume(t)
			w.sweep(t, booking.DefaultHold)
			w.Want(t, held, "", booking.StateReleased)
			w.Want(t, refused, "", booking.StateReleased)
			for range 3 { // the mail's claim has to end
				w.sweep(t, time.Minute)
			}
			w.Books.CheckAtRest(t)
			wantBroken(t, w.audit(t, withGateway()))
		})
	}
}

// Of money that is not late, of a late payment that came second, and of another
// payment than the seat's, the refund says nothing of the seat.
func TestRebuild_RefundBesideASeatLeavesTheSeat(t *testing.T) {
	w := open(t)
	other, second, late := w.Held(t, 1, "N1"), w.Held(t, 2, "N1"), w.Held(t, 3, "N1")
	w.owe(t, other, "TX1", booking.MoneyOther)
	w.owe(t, second, "TX2", booking.MoneySecond)
	elsewhere := w.Held(t, 4, "N1")
	stranger := elsewhere
	stranger.Payment.ID = "TR9"
	w.owe(t, stranger, "TX9", booking.MoneyLate)
	charge := booking.Charge{Transaction: "TX3", PaymentID: late.Payment.ID, Amount: late.Record.Amount, Currency: late.Record.Currency}
	refund := booking.NewRefund(late.Record, charge, booking.MoneyLate, booking.Decision{Reason: "second", At: w.Clock.Now()})
	if _, _, err := w.Store.PutRefund(t.Context(), refund); err != nil {
		t.Fatal(err)
	}
	w.lose(t)
	if out := w.mustRebuild(t); out.Held != 4 || out.Refunded != 0 || out.Decided != 4 {
		t.Errorf("rebuilt: got %+v, want four held seats and four decisions", out)
	}
	for _, b := range []bookingtest.Booking{other, second, late, elsewhere} {
		w.Want(t, b, booking.PhaseHeld, booking.StateHeld)
	}
}

// Past its deadline and completed: the rebuild leaves the row to the sweep, and the
// money ends as a seat or as a refund, never both, never neither.
func TestRebuild_CompletedPaymentEndsAsASeatOrARefund(t *testing.T) {
	for _, c := range []struct {
		name           string
		other, decided bool // otherwise than ordered; its refund is on record
		announced      bool
		held, refunded int
		phase          booking.Phase
		state          booking.RecordState
		refund         booking.MoneyKind
	}{
		{"as ordered", false, false, false, 1, 0, booking.PhasePaid, booking.StatePaid, ""},
		{"as ordered, announced", false, false, true, 1, 0, booking.PhasePaid, booking.StatePaid, ""},
		{"otherwise", true, false, false, 1, 0, "", booking.StateReleased, booking.MoneyOther},
		{"otherwise, announced", true, false, true, 1, 0, "", booking.StateReleased, booking.MoneyOther},
		{"otherwise, its refund is on record", true, true, false, 0, 1, "", booking.StateReleased, booking.MoneyOther},
		{"otherwise, announced, its refund is on record", true, true, true, 0, 1, "", booking.StateReleased, booking.MoneyOther},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := open(t)
			b := w.Held(t, 1, "N1")
			w.Gateway.Complete(b.Payment.ID)
			if c.other {
				w.otherwise(b)
			}
			if c.decided {
				w.confirm(t, b, booking.ErrRefunded)
			}
			if c.announced {
				if _, err := w.Store.Announce(t.Context(), b.Record, w.Clock.Now()); err != nil {
					t.Fatal(err)
				}
			}
			w.Clock.Advance(booking.DefaultHold + time.Minute)
			w.lose(t)
			if out := w.mustRebuild(t); out.Held != c.held || out.Refunded != c.refunded || out.Released != 0 || out.Doubtful != 0 {
				t.Errorf("rebuilt: got %+v, want %d held, %d refunded, none released or doubtful", out, c.held, c.refunded)
			}
			w.resume(t)
			w.sweep(t, time.Second)
			for range 3 {
				w.sweep(t, time.Minute)
			}
			w.Want(t, b, c.phase, c.state)
			refunds, err := w.Store.RefundsOf(t.Context(), b.Record.CandidateHash, b.Attempt)
			if err != nil {
				t.Fatal(err)
			}
			var kinds []booking.MoneyKind
			for _, r := range refunds {
				kinds = append(kinds, r.Kind)
			}
			var want []booking.MoneyKind
			if c.refund != "" {
				want = append(want, c.refund)
			}
			if diff := cmp.Diff(want, kinds); diff != "" {
				t.Errorf("refunds (-want +got):\n%s", diff)
			}
			w.Books.CheckAtRest(t)
			wantBroken(t, w.audit(t, withGateway()))
		})
	}
}

func TestRebuild_RefusesRefundsThatItCannotRead(t *testing.T) {
	w := open(t)
	w.refunded(t, 1)
	w.lose(t)
	w.Faults.Next(bookingtest.OpScanRefunds, bookingtest.Lost)
	_, err := w.ops.Rebuild(t.Context(), big())
	wantErr(t, "rebuild whose scan breaks off", err, bookingtest.ErrLost)
	w.exec(t, `UPDATE refunds SET body = '{'`)
	_, err = w.ops.Rebuild(t.Context(), big())
	wantErr(t, "rebuild", err, booking.ErrUnreadable)
	w.wantLost(t)
}

// A refund may outlive every record of its sale: it is no first sale then, the sale
// is the refund's, without a seat, and the decision stands.
func TestStart_RefundsAloneAreNoFirstSale(t *testing.T) {
	for name, start := range map[string]func(ctx context.Context, w *world) (saleops.Rebuilt, error){
		"start":   func(ctx context.Context, w *world) (saleops.Rebuilt, error) { return w.ops.Start(ctx, big()) },
		"rebuild": func(ctx context.Context, w *world) (saleops.Rebuilt, error) { return w.ops.Rebuild(ctx, big()) },
	} {
		t.Run(name, func(t *testing.T) {
			w := open(t)
			back := w.refunded(t, 1)
			w.exec(t, `DELETE FROM records`)
			w.lose(t)
			out, err := start(t.Context(), w)
			want := saleops.Rebuilt{Applied: booking.Applied{Epoch: bookingtest.Epoch, Admitted: map[string]int{"N1": 0, "N2": 0}}, Decided: 1}
			if diff := cmp.Diff(want, out); err != nil || diff != "" {
				t.Errorf("got %v (-want +got):\n%s", err, diff)
			}
			w.goesBack(t, back)
		})
	}
}

// Notifications come for payments that are not ours too: they are no sale.
func TestStart_NotificationsAloneAreAFirstSale(t *testing.T) {
	w := empty(t)
	if _, err := w.Store.PutNotification(t.Context(), booking.Notification{
		Version: booking.NotificationVersion, ID: "m1", ReceivedAt: w.Clock.Now(), SentAt: w.Clock.Now(), Transaction: "TX1", Currency: "BDT",
	}); err != nil {
		t.Fatal(err)
	}
	if out, err := w.ops.Start(t.Context(), big()); err != nil || out.Epoch == "" {
		t.Errorf("start: got %+v, %v, want a new epoch", out, err)
	}
}
