package saleops

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"

	"golang.org/x/sync/errgroup"

	"holdfast/internal/booking"
)

// refunds are the refund records as a rebuild finds them, by transaction. While the
// ledger has no epoch it decides nothing, so none is added meanwhile.
type refunds map[string]booking.Refund

// readRefunds reads every refund record. One that cannot be read is a decision that
// would be forgotten, and ends it.
func (o *Ops) readRefunds(ctx context.Context) (refunds, error) {
	all, unreadable := refunds{}, 0
	for r, err := range o.Store.Refunds(ctx) {
		switch {
		case errors.Is(err, booking.ErrUnreadable):
			unreadable++
			o.Log.ErrorContext(ctx, "refund cannot be read", "error", err)
		case err != nil:
			return nil, fmt.Errorf("scan refunds: %w", err)
		default:
			all[r.Transaction] = r
		}
	}
	if unreadable > 0 {
		return nil, fmt.Errorf("%d refunds cannot be read, and each is a decision about money: repair them first: %w", unreadable, booking.ErrUnreadable)
	}
	return all, nil
}

// of tells whether the transaction goes back, as money of the record's payment.
func (rs refunds) of(rec booking.Record, transaction string) bool {
	r, there := rs[transaction]
	return there && r.Attempt == rec.Attempt && r.PaymentID == rec.PaymentID
}

// unseated are the payments, by attempt, whose money was late and goes back: the
// ledger has said that their attempt has no seat, and an attempt never gets one
// again. A late payment that was decided as a second one says nothing of the seat.
func (rs refunds) unseated() map[string]string {
	payments := map[string]string{}
	for _, r := range rs {
		if r.Kind == booking.MoneyLate && r.Reason != string(booking.MoneySecond) {
			payments[r.Attempt] = r.PaymentID
		}
	}
	return payments
}

// restoreDecisions has a ledger that has its rows and its epoch decide again what
// the store's refunds say was decided. As second payments they go back whatever the
// rows say, but for the very transaction that a seat is paid by: then the store
// contradicts itself, and a person must look. Every decision is acknowledged.
// Repeated, the first ones stand.
func (o *Ops) restoreDecisions(ctx context.Context, all refunds, out *Rebuilt) error {
	if len(all) == 0 {
		return nil
	}
	codes := map[string]string{} // by candidate hash, of those who have a row
	for d, err := range o.Ledger.Rows(ctx) {
		if err != nil {
			return fmt.Errorf("restore late decisions: %w", err)
		}
		codes[booking.CandidateHash(d.Code)] = d.Code
	}
	var decided, contradicted atomic.Int64
	g, deciding := errgroup.WithContext(ctx)
	g.SetLimit(queryWidth)
	for _, r := range all {
		g.Go(func() error {
			rec := booking.Record{
				CandidateHash: r.CandidateHash, Code: codes[r.CandidateHash], Attempt: r.Attempt, Epoch: booking.AttemptEpoch(r.Attempt),
				Level: r.Level, Amount: r.Amount, Currency: r.Currency, PaymentID: r.PaymentID,
			}
			d, err := o.Ledger.Late(deciding, rec, r.Transaction, booking.MoneySecond)
			if err != nil {
				return fmt.Errorf("restore late decision about transaction %s: %w", r.Transaction, err)
			}
			if !d.Paid {
				decided.Add(1)
				return nil
			}
			contradicted.Add(1)
			o.Log.ErrorContext(deciding, "a seat is paid by money that has a refund record: it may be paid and given back; stop the refund, or give the seat back by hand",
				"transaction", r.Transaction, "attempt", r.Attempt, "payment", r.PaymentID, "refund", string(r.State))
			return nil
		})
	}
	if err := g.Wait(); err != nil {
		return err
	}
	out.Decided, out.Contradicted = int(decided.Load()), int(contradicted.Load())
	return nil
}
