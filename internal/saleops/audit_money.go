package saleops

import (
	"context"
	"errors"
	"fmt"
	"time"

	"holdfast/internal/booking"
)

// signalOpen is how long a notification may be open: sweeps work on it long before,
// so what is older is for a person.
const signalOpen = time.Hour

// readMoney reads the refunds, and the notifications that are open.
func (o *Ops) readMoney(ctx context.Context, r *reading) error {
	for refund, err := range o.Store.Refunds(ctx) {
		switch {
		case errors.Is(err, booking.ErrUnreadable):
			r.bad(RuleUnreadable, "refund "+refund.Transaction, "refund of transaction %s: %v", refund.Transaction, err)
		case err != nil:
			return err
		default:
			r.refunds[refund.Transaction] = refund
		}
	}
	for n, err := range o.Store.OpenNotifications(ctx) {
		switch {
		case errors.Is(err, booking.ErrUnreadable):
			r.bad(RuleUnreadable, "notification "+n.ID, "notification %s: %v", n.ID, err)
		case err != nil:
			return err
		default:
			r.signals = append(r.signals, n)
		}
	}
	return nil
}

// returned holds refunds against seats: money that goes back pays for none, and a
// record that was released for a refund has one.
func (r *reading) returned() {
	rows := map[string]string{} // by transaction
	for code, row := range r.rows {
		if row.Phase == booking.PhasePaid {
			rows[row.Transaction] = fmt.Sprintf("row %s of %s is paid by it", row.Attempt, code)
		}
	}
	attempts := map[string]bool{}
	for transaction, refund := range r.refunds {
		attempts[refund.Attempt] = true
		for _, paid := range []string{rows[transaction], r.paidBy[transaction]} {
			if paid != "" {
				r.bad(RuleMoney, "both "+transaction, "transaction %s of attempt %s has a refund, which is %s, and %s", transaction, refund.Attempt, refund.State, paid)
				break
			}
		}
	}
	for _, rec := range r.records {
		goesBack := rec.Reason == booking.ReasonRefund || rec.Reason == booking.ReasonRefused+" "+booking.ReasonRefund
		if rec.State == booking.StateReleased && goesBack && !attempts[rec.Attempt] {
			r.bad(RuleMoney, "refund of "+rec.Attempt, "record %s of %s is RELEASED because its money goes back, and there is no refund of it", rec.Attempt, rec.Code)
		}
	}
}

// unworked finds the notifications that are open for too long.
func (r *reading) unworked() {
	for _, n := range r.signals {
		if age := r.now.Sub(n.ReceivedAt); age.Abs() > signalOpen {
			r.bad(RuleSignals, n.ID, "notification %s about transaction %q is open since %s", n.ID, n.Transaction, n.ReceivedAt.UTC().Format(time.RFC3339))
		}
	}
}

// refundFigure tells the refunds of all sales: money that is due is due.
func (r *reading) refundFigure() string {
	states := map[booking.RefundState]int{}
	var oldest time.Time
	for _, refund := range r.refunds {
		states[refund.State]++
		if refund.State != booking.RefundDone && (oldest.IsZero() || refund.DecidedAt.Before(oldest)) {
			oldest = refund.DecidedAt
		}
	}
	return fmt.Sprintf("%d due, %d sent, %d done", states[booking.RefundDue], states[booking.RefundSent], states[booking.RefundDone]) +
		r.since("the oldest open one", oldest)
}

func (r *reading) signalFigure() string {
	var oldest time.Time
	for _, n := range r.signals {
		if oldest.IsZero() || n.ReceivedAt.Before(oldest) {
			oldest = n.ReceivedAt
		}
	}
	return fmt.Sprintf("%d notifications open", len(r.signals)) + r.since("the oldest", oldest)
}

// since tells how old what began at that time is; nothing when nothing did.
func (r *reading) since(what string, t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return fmt.Sprintf(", %s for %s", what, max(0, r.now.Sub(t)).Round(time.Second))
}

// money holds the gateway's word against seats and refunds.
func (r *reading) money(charges map[string]booking.Charge, asked map[string]booking.Row) {
	r.answered = len(charges)
	for _, charge := range charges {
		if charge.Status == booking.ChargeCompleted {
			r.completed++
		}
	}
	ordered := map[string]bool{}
	for _, rec := range r.records {
		ordered[rec.PaymentID] = true
		r.charged(rec, charges, asked)
	}
	for code, row := range r.rows {
		if row.Payment != "" && !ordered[row.Payment] {
			r.charged(row.HeldRecord(code, "", ""), charges, asked)
		}
	}
}

// charged holds the gateway's word on one attempt against its seat and its refund.
// That it has not both, whatever the gateway says, is said by returned.
func (r *reading) charged(rec booking.Record, charges map[string]booking.Charge, asked map[string]booking.Row) {
	charge, answered := charges[rec.PaymentID]
	if !answered {
		return
	}
	key := rec.Attempt + " " + rec.PaymentID
	row := r.rows[rec.Code]
	owns := row.Attempt == rec.Attempt && row.Payment == rec.PaymentID
	if charge.Status != booking.ChargeCompleted {
		was := asked[rec.Code]
		if owns && row.Phase == booking.PhasePaid && was.Attempt == rec.Attempt && was.Phase == booking.PhasePaid {
			r.bad(RuleMoney, key, "row %s of %s is paid, and the gateway says that payment %s is %s", row.Attempt, rec.Code, rec.PaymentID, charge.Status)
		}
		return
	}
	// Money moves by an execute call, and the record says when one was last announced.
	since := rec.AdmittedAt
	if rec.ExecuteAt.After(since) {
		since = rec.ExecuteAt
	}
	wrong := charge.Check(rec)
	paid := owns && row.Phase == booking.PhasePaid && row.Transaction == charge.Transaction
	refund := r.refunds[charge.Transaction]
	back := charge.Transaction != "" && refund.PaymentID == rec.PaymentID
	switch {
	case wrong != nil && (paid || !errors.Is(wrong, booking.ErrOtherThanOrdered)):
		r.bad(RuleMoney, key, "attempt %s of %s: %v, and its row is %s", rec.Attempt, rec.Code, wrong, describe(row, row.Attempt == rec.Attempt))
	case back && (refund.Amount != charge.Amount || refund.Currency != charge.Currency):
		r.bad(RuleMoney, key, "transaction %s for attempt %s of %s moved %s %s, and its refund is of %s %s",
			charge.Transaction, rec.Attempt, rec.Code, charge.Amount, charge.Currency, refund.Amount, refund.Currency)
	case paid, back:
	case wrong != nil:
		r.badSince(since, RuleMoney, key, "attempt %s of %s: %v, and there is no refund of it", rec.Attempt, rec.Code, wrong)
	default:
		r.badSince(since, RuleMoney, key, "payment %s is completed by %s for attempt %s of %s, there is no refund of it, and its row is %s",
			rec.PaymentID, charge.Transaction, rec.Attempt, rec.Code, describe(row, row.Attempt == rec.Attempt))
	}
}
