package resolve

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"holdfast/internal/booking"
)

// records reads the attempt's record, and which of the candidate's others are open;
// an attempt that was not named is found here.
func (r *Resolver) records(ctx context.Context, c *Case) error {
	hash := booking.CandidateHash(c.Code)
	all, err := r.Store.RecordsOf(ctx, hash)
	if err != nil && !errors.Is(err, booking.ErrUnreadable) {
		return err
	}
	var open, ended []string
	for _, rec := range all {
		switch {
		case rec.Attempt == c.Row.Attempt || rec.Attempt == c.Seat.Attempt:
		case rec.State == booking.StateHeld:
			open = append(open, rec.Attempt)
		default:
			ended = append(ended, rec.Attempt)
		}
	}
	switch {
	case c.Attempt != "":
	case c.Row.Attempt != "":
		c.Attempt = c.Row.Attempt
	case len(open) == 1:
		c.Attempt = open[0]
	case len(open)+len(ended) > 0:
		return fmt.Errorf("%s has no seat, HELD records of attempts %s, and ended ones of %s: %w",
			c.Code, orNone(open), orNone(ended), ErrWhichAttempt)
	default:
		return fmt.Errorf("seat or record of %s: %w", c.Code, errors.Join(booking.ErrNotFound, err))
	}
	for _, attempt := range open {
		if attempt != c.Attempt {
			c.Beside = append(c.Beside, attempt)
		}
	}
	rec, err := r.Store.Record(ctx, hash, c.Attempt)
	switch {
	case err == nil:
		c.Record = &rec
	case c.Owns() && (errors.Is(err, booking.ErrNotFound) || errors.Is(err, booking.ErrUnreadable)):
		c.RecordErr = err
	default:
		return err
	}
	return nil
}

func orNone(list []string) string {
	if len(list) == 0 {
		return "none"
	}
	return strings.Join(list, ", ")
}

// planLate holds a decision about an attempt that owns no seat against what is seen.
func (r *Resolver) planLate(ctx context.Context, p *Plan) error {
	c, transaction := p.Case, p.Decision.Transaction
	rec := *c.Record
	over := rec.State == booking.StateReleased
	said := c.AskErr == nil && c.Charge.Status != booking.ChargeUnknown
	completed := c.AskErr == nil && c.Charge.Status == booking.ChargeCompleted
	switch {
	case rec.State == booking.StatePaid && (transaction == "" || transaction == rec.Transaction):
		p.object("its record is PAID by transaction %s, and the ledger has lost the seat: that is a rebuild's, see the audit", rec.Transaction)
	case over && transaction == "":
		p.object("its record is RELEASED already: %s", rec.Reason)
	case over && said && !completed:
		p.object("its record is RELEASED (%s), and the gateway says that payment %s is %s", rec.Reason, rec.PaymentID, c.Charge.Status)
	}
	if inFlight := rec.ExecuteAt.Add(payingFor); transaction == "" && c.Now.Before(inFlight) {
		p.object("an execute call may be in flight until %s", inFlight.UTC().Format(time.RFC3339))
	}
	switch {
	case c.AskErr != nil:
		p.warn("the gateway gives no clear answer about payment %s: %v", rec.PaymentID, c.AskErr)
	case transaction == "" && completed:
		p.object("the gateway says that payment %s is completed, by transaction %s: the cross-check decides about it by itself", rec.PaymentID, c.Charge.Transaction)
	case completed && c.Charge.Transaction != transaction:
		p.object("the gateway says that payment %s is completed by transaction %s, not %s", rec.PaymentID, c.Charge.Transaction, transaction)
	case transaction != "" && !completed:
		p.warn("the gateway says that payment %s is %s, not completed", rec.PaymentID, c.Charge.Status)
	}
	if transaction == "" {
		return nil
	}
	if err := r.unused(ctx, c, transaction); err != nil {
		return err
	}
	p.moved = booking.Charge{
		Status: booking.ChargeCompleted, PaymentID: rec.PaymentID, Invoice: rec.Invoice,
		Transaction: transaction, Amount: rec.Amount, Currency: rec.Currency,
	}
	// What the gateway says has moved is what goes back, if it does.
	t := r.search(ctx, p)
	switch {
	case completed && c.Charge.Transaction == transaction:
		p.moved = c.Charge
	case t.Completed:
		p.moved.Amount, p.moved.Currency = t.Amount, t.Currency
	}
	if err := p.moved.Check(rec); err != nil {
		p.warn("%v: it pays for no seat and goes back", err)
	}
	return nil
}

// late has the ledger decide about the money, once for its transaction: the seat
// after all, or a refund. Another attempt's seat stays as it is.
func (r *Resolver) late(ctx context.Context, p Plan) (Done, error) {
	var done Done
	transaction := p.Decision.Transaction
	err := r.Settler.Confirm(ctx, p.Case.Code, *p.Case.Record, p.moved)
	switch {
	case errors.Is(err, booking.ErrRefunded):
		refund, err := r.Store.Refund(ctx, transaction)
		if err != nil {
			return done, fmt.Errorf("it goes back, and its refund cannot be read: %w", err)
		}
		done.Refund = &refund
	case err != nil:
		return done, fmt.Errorf("decide about transaction %s: %w", transaction, err)
	}
	r.now(ctx, p.Case, &done)
	return done, nil
}

// endRecord ends the record of an attempt that, by an acknowledged answer, owns no
// seat. The gateway is asked once more after that: nobody can begin an execute call
// of it any more. Force does not reach into money that moves or has moved: it has to
// become a seat or a refund, and an ended record is not what leads there.
func (r *Resolver) endRecord(ctx context.Context, p Plan) (Done, error) {
	var done Done
	c, seen := p.Case, *p.Case.Record
	if c.Now.Before(seen.ExecuteAt.Add(payingFor)) {
		return done, fmt.Errorf("end the record of attempt %s: %w", c.Attempt, booking.ErrPaying)
	}
	err := r.step(ctx, func(ctx context.Context) error { return r.Ledger.Queued(ctx, c.Code, c.Attempt) })
	switch {
	case err == nil, booking.LedgerAnswered(err) && !errors.Is(err, booking.ErrNotOwner):
		return done, fmt.Errorf("attempt %s owns its seat, look again: %w", c.Attempt, ErrObjection)
	case !errors.Is(err, booking.ErrNotOwner):
		return done, fmt.Errorf("whether attempt %s owns a seat: %w", c.Attempt, err)
	}
	charge, err := r.ask(ctx, seen.PaymentID)
	switch {
	case err != nil:
		done.Warnings = append(done.Warnings, fmt.Sprintf("the gateway gave no clear answer: %v", err))
	case charge.Status == booking.ChargeCompleted:
		return done, fmt.Errorf("payment %s, by transaction %s: %w", seen.PaymentID, charge.Transaction, ErrCompleted)
	}
	if err := r.Store.Release(ctx, seen, booking.ReasonLapsed+" "+Reason, c.Now); err != nil {
		return done, fmt.Errorf("end the record of attempt %s: %w", c.Attempt, err)
	}
	r.now(ctx, c, &done)
	return done, nil
}

// now reads row and record again; what cannot be read is a warning.
func (r *Resolver) now(ctx context.Context, c Case, done *Done) {
	row, _, err := r.row(ctx, c.Code)
	switch {
	case err == nil && row.Attempt == c.Attempt:
		done.Row = row
	case err != nil && !errors.Is(err, booking.ErrNotFound):
		done.Warnings = append(done.Warnings, fmt.Sprintf("the row cannot be read again: %v", err))
	}
	rec, err := r.Store.Record(ctx, booking.CandidateHash(c.Code), c.Attempt)
	if err != nil {
		done.Warnings = append(done.Warnings, fmt.Sprintf("the record cannot be read again: %v", err))
		return
	}
	done.Record = rec.State
}
