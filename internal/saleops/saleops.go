// Package saleops is what an operator may do to a sale: put it into force, load
// the allowlist, open and close booking, rebuild a lost seat ledger from the
// store. Every change in Redis is acknowledged, or reported as not made.
package saleops

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"holdfast/internal/booking"
)

// Ledger is what these operations need of the seat ledger; see admission.Gate.
type Ledger interface {
	Epoch(ctx context.Context) (string, error)
	ApplySale(ctx context.Context, sale booking.Sale, epoch string, checkOnly bool) (booking.Applied, error)
	BeginRebuild(ctx context.Context) (token string, err error)
	Restore(ctx context.Context, token string, rows []booking.RestoredRow) error
	FinishRebuild(ctx context.Context, sale booking.Sale, epoch, token string) (booking.Applied, error)
	ForgetRebuild(ctx context.Context, token string) error
	// Late decides once for each transaction; the answer is acknowledged.
	Late(ctx context.Context, rec booking.Record, transaction string, kind booking.MoneyKind) (booking.Decision, error)
	UnfinishedRebuild(ctx context.Context) (token string, err error)
	Now(ctx context.Context) (time.Time, error)
	Census
	Allowlist
}

// Store is read by audit and rebuild, and told the end of what lapsed. An item of a
// scan that cannot be read is an error that wraps booking.ErrUnreadable; the scan
// goes on.
type Store interface {
	// Empty tells whether there is neither a record nor a refund.
	Empty(ctx context.Context) (bool, error)
	Records(ctx context.Context) iter.Seq2[booking.Record, error]
	Refunds(ctx context.Context) iter.Seq2[booking.Refund, error]
	OpenNotifications(ctx context.Context) iter.Seq2[booking.Notification, error]
	Release(ctx context.Context, seen booking.Record, reason string, at time.Time) error
	// EpochMark is the latest epoch that a reset has begun, or the one that a person has
	// chosen since; booking.ErrNotFound.
	EpochMark(ctx context.Context) (booking.EpochMark, error)
}

// Queue tells whether every message has become a record.
type Queue interface {
	Stats(ctx context.Context) (booking.QueueStats, error)
}

// Lagging is a queue whose figures may be late by that time: that it is empty is
// believed once they have said so for as long.
type Lagging interface {
	FiguresLag() time.Duration
}

// looksAtALag is how many times the figures are asked for while they may be late.
const looksAtALag = 12

// drained is nil when the queue holds nothing, and ErrNotDrained with the figures when
// it does.
func (o *Ops) drained(ctx context.Context) error {
	var pause time.Duration
	if q, ok := o.Queue.(Lagging); ok {
		pause = q.FiguresLag() / looksAtALag
	}
	for look := 0; ; look++ {
		stats, err := o.Queue.Stats(ctx)
		switch {
		case err != nil:
			return err
		case stats.Waiting+stats.InFlight+stats.Dead > 0:
			return fmt.Errorf("%d waiting, %d in flight, %d dead: %w", stats.Waiting, stats.InFlight, stats.Dead, ErrNotDrained)
		case pause <= 0 || look == looksAtALag:
			return nil
		}
		t := time.NewTimer(pause)
		select {
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
			return fmt.Errorf("look whether the queue is empty: %w", ctx.Err())
		}
	}
}

// Gateway tells what became of a payment.
type Gateway interface {
	Query(ctx context.Context, payment string) (booking.Charge, error)
}

// Ops are the operations.
type Ops struct {
	Ledger  Ledger
	Store   Store
	Queue   Queue
	Gateway Gateway
	Log     *slog.Logger
}

// chunk is how many candidates or rows go to Redis at a time, so that no command
// blocks it.
const chunk = 500

// ErrNotDrained refuses a rebuild while messages are still on their way.
var ErrNotDrained = errors.New("queue and dead letters are not empty: a seat without its record would be lost; let the worker drain the queue and redrive the dead letters first")

// ErrTwoSales refuses a rebuild where two sales claim to be the running one.
var ErrTwoSales = errors.New("the store contradicts itself about the running sale")

// ErrNotLost refuses a rebuild of a ledger that is there.
var ErrNotLost = errors.New("the seat ledger has an epoch and is not lost")

// Rebuilt is what a rebuild did.
type Rebuilt struct {
	booking.Applied
	Paid, Held int
	// Released counts records past their deadline that the gateway says are not
	// paid; Doubtful those whose seats are kept because it gave no word, or because
	// an execute call had been announced.
	Released, Doubtful int
	// Refunded counts held records that were ended because the money of their payment
	// goes back, by a refund record.
	Refunded int
	// Decided counts refunds whose decision the ledger knows again, Contradicted those
	// whose very transaction pays for a seat: the store says both, and a person must
	// look.
	Decided, Contradicted int
	// Unreadable counts records that could not be read.
	Unreadable int
	// Earlier: an earlier run had done all of it and did not hear so. Of the
	// figures, those of the ledger as it is now are set.
	Earlier bool
}

// queryWidth is how many payments are asked about at a time.
const queryWidth = 32

// Rebuild restores an empty seat ledger from the store: records past their
// deadline first come to their end by the gateway's word, then rows and counters
// are written, then the epoch, and the late decisions of the refunds, which need
// one: before them, whoever decides finds the refund in the store. A completed
// payment past its deadline stays a held row, of which the reconciler makes a paid
// seat or a refund. A store with refunds alone is rebuilt without a seat. It refuses
// while the queue holds messages, when the ledger has an epoch, when a record or a
// refund cannot be read, and when a cap would be exceeded. Safe to repeat until it
// succeeds: a run that begins ends any other, and one that finds the epoch of a run
// whose last steps were not acknowledged repeats those.
func (o *Ops) Rebuild(ctx context.Context, sale booking.Sale) (Rebuilt, error) {
	var out Rebuilt
	switch epoch, err := o.Ledger.Epoch(ctx); {
	case err == nil:
		return o.acknowledge(ctx, sale, epoch)
	case !errors.Is(err, booking.ErrLedgerUnknown):
		return out, err
	}
	if err := o.drained(ctx); err != nil {
		return out, err
	}
	now, err := o.Ledger.Now(ctx)
	if err != nil {
		return out, err
	}
	back, err := o.readRefunds(ctx)
	if err != nil {
		return out, err
	}
	epoch, err := o.latestEpoch(ctx, back, &out)
	if err != nil {
		return out, err
	}
	if out.Unreadable > 0 {
		return out, fmt.Errorf("%d records cannot be read, and each may be a seat: repair them first: %w", out.Unreadable, booking.ErrUnreadable)
	}
	seats, err := o.seats(ctx, epoch, now, back, &out)
	if err != nil {
		return out, err
	}
	rows := make([]booking.RestoredRow, 0, len(seats))
	for _, rec := range seats {
		rows = append(rows, restoredRow(rec, now))
	}
	slices.SortFunc(rows, func(a, b booking.RestoredRow) int { return strings.Compare(a.Row.Attempt, b.Row.Attempt) })
	for i := range rows {
		rows[i].Row.Slot = int64(i + 1)
		if rows[i].Row.Phase == booking.PhasePaid {
			out.Paid++
		} else {
			out.Held++
		}
	}
	err = o.restore(ctx, sale, epoch, rows, back, &out)
	return out, err
}

// restore makes an empty Redis the sale's ledger, with these rows and decisions.
func (o *Ops) restore(ctx context.Context, sale booking.Sale, epoch string, rows []booking.RestoredRow, back refunds, out *Rebuilt) error {
	token, err := o.Ledger.BeginRebuild(ctx)
	if err != nil {
		return err
	}
	for part := range slices.Chunk(rows, chunk) {
		if err := o.Ledger.Restore(ctx, token, part); err != nil {
			return err
		}
	}
	return o.finish(ctx, sale, epoch, token, back, out)
}

// finish is the last steps: the epoch, then the late decisions. It forgets the token
// once all are acknowledged, so that the next run finishes what broke off.
func (o *Ops) finish(ctx context.Context, sale booking.Sale, epoch, token string, back refunds, out *Rebuilt) error {
	applied, err := o.Ledger.FinishRebuild(ctx, sale, epoch, token)
	if err != nil {
		return fmt.Errorf("rebuild: %w", err)
	}
	out.Applied = applied
	if err := o.restoreDecisions(ctx, back, out); err != nil {
		return fmt.Errorf("rebuild: %w", err)
	}
	if err := o.Ledger.ForgetRebuild(ctx, token); err != nil {
		// The rebuild stands. With its token left, a repeat would only say so again.
		o.Log.WarnContext(ctx, "token of a finished rebuild may be left", "error", err)
	}
	return nil
}

// acknowledge repeats the last steps of a rebuild that left its token with its
// epoch. Without a token the ledger is nobody's to rebuild.
func (o *Ops) acknowledge(ctx context.Context, sale booking.Sale, epoch string) (Rebuilt, error) {
	out := Rebuilt{Earlier: true}
	token, err := o.Ledger.UnfinishedRebuild(ctx)
	if err != nil {
		return out, err
	}
	if token == "" {
		return out, fmt.Errorf("rebuild: %w", ErrNotLost)
	}
	back, err := o.readRefunds(ctx)
	if err != nil {
		return out, err
	}
	if err := o.finish(ctx, sale, epoch, token, back, &out); err != nil {
		return out, err
	}
	paid := map[string]bool{} // by code: a scan may tell a row twice
	for row, err := range o.Ledger.Rows(ctx) {
		if err != nil {
			return out, err
		}
		paid[row.Code] = row.Row.Phase == booking.PhasePaid
	}
	for _, is := range paid {
		if is {
			out.Paid++
		} else {
			out.Held++
		}
	}
	return out, nil
}

// latestEpoch is the epoch of the newest attempt, or the one that a reset has begun
// since: the running sale's. A refund may outlive every record of its sale. Of what was
// there when a person chose a sale, that choice counts alone.
func (o *Ops) latestEpoch(ctx context.Context, back refunds, out *Rebuilt) (string, error) {
	mark, err := o.Store.EpochMark(ctx)
	if err != nil && !errors.Is(err, booking.ErrNotFound) {
		return "", err
	}
	epoch := mark.Epoch
	if !mark.Chosen {
		for _, r := range back {
			epoch = max(epoch, booking.AttemptEpoch(r.Attempt))
		}
	}
	for rec, err := range o.Store.Records(ctx) {
		if errors.Is(err, booking.ErrUnreadable) {
			out.Unreadable++
			o.Log.ErrorContext(ctx, "record cannot be read", "error", err)
			continue
		}
		if err != nil {
			return "", fmt.Errorf("scan records: %w", err)
		}
		if sold := latest(rec.AdmittedAt, rec.PaidAt); mark.NewerThan(rec.Epoch) && sold.After(mark.At) {
			// Redis lost the reset and went on with the sale that it ended.
			return "", fmt.Errorf("rebuild: epoch %s was begun at %s, and attempt %s of epoch %s got its seat at %s: a person must say which sale runs, with --epoch (docs/runbooks/rebuild.md): %w",
				mark.Epoch, mark.At.Format(time.RFC3339), rec.Attempt, rec.Epoch, sold.Format(time.RFC3339), ErrTwoSales)
		}
		if !mark.Chosen || rec.AdmittedAt.After(mark.At) {
			epoch = max(epoch, rec.Epoch)
		}
	}
	if epoch == "" && out.Unreadable == 0 {
		return "", errors.New("rebuild: the store has no record; apply the sale as a first one")
	}
	return epoch, nil
}

func latest(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}

// seats picks the record that is each candidate's seat: the paid one, else the
// newest that is held, or was refused while its seat is still within its time.
// Held ones past their deadline, or beside the seat, are ended by the gateway's
// word; those whose late money goes back without asking: the ledger has said that
// they are no seats, and a row of theirs may be one too many.
func (o *Ops) seats(ctx context.Context, epoch string, now time.Time, back refunds, out *Rebuilt) (map[string]booking.Record, error) {
	seats, unseated := map[string]booking.Record{}, back.unseated()
	var ask, over []booking.Record
	for rec, err := range o.Store.Records(ctx) {
		if err != nil {
			return nil, fmt.Errorf("scan records: %w", err)
		}
		if rec.Epoch != epoch || !mayHaveASeat(rec, now) {
			continue
		}
		if payment, is := unseated[rec.Attempt]; is && payment == rec.PaymentID && rec.State != booking.StatePaid {
			over = append(over, rec)
			continue
		}
		there, taken := seats[rec.Code]
		switch {
		case !taken:
			seats[rec.Code] = rec
		case there.State == booking.StatePaid && rec.State == booking.StatePaid:
			return nil, fmt.Errorf("candidate %.8s has two paid records, attempts %s and %s: give one back first", rec.CandidateHash, there.Attempt, rec.Attempt)
		case rec.State == booking.StatePaid || (there.State != booking.StatePaid && rec.Attempt > there.Attempt):
			seats[rec.Code] = rec
			ask = append(ask, there)
		default:
			ask = append(ask, rec)
		}
	}
	for _, rec := range seats {
		if rec.State == booking.StateHeld && !now.Before(rec.Deadline) {
			ask = append(ask, rec)
		}
	}
	for _, rec := range over {
		if rec.State != booking.StateHeld {
			continue
		}
		if err := o.Store.Release(ctx, rec, booking.ReasonRefund, now); err != nil {
			return nil, fmt.Errorf("release record: %w", err)
		}
		out.Refunded++
	}
	ended, err := o.end(ctx, ask, now, back, out)
	if err != nil {
		return nil, err
	}
	for _, rec := range ask {
		seat, its := seats[rec.Code], seats[rec.Code].Attempt == rec.Attempt
		switch {
		case its && ended[rec.Attempt]:
			delete(seats, rec.Code)
		case !its && rec.State == booking.StateHeld && !ended[rec.Attempt]:
			o.Log.ErrorContext(ctx, "a second record of one candidate may be paid: check it against the gateway",
				"attempt", rec.Attempt, "payment", rec.PaymentID, "seat", seat.Attempt)
		}
	}
	return seats, nil
}

// mayHaveASeat: a refused attempt's payment is over, its seat is not before the
// deadline.
func mayHaveASeat(rec booking.Record, now time.Time) bool {
	return rec.State != booking.StateReleased || (rec.Refused() && now.Before(rec.Deadline))
}

// end releases the held records that the gateway says are not paid, and tells
// which. It never does when an execute call had been announced: "not paid" may
// have been said before that call came to its end, so the reconciler takes those
// over, and asks again. Nor when there is no answer, or money has moved; but money
// otherwise than ordered, once its refund is on record, ends its payment, and for
// the seat it is not completed.
func (o *Ops) end(ctx context.Context, records []booking.Record, now time.Time, back refunds, out *Rebuilt) (map[string]bool, error) {
	var mu sync.Mutex
	ended := map[string]bool{}
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(queryWidth)
	for _, rec := range records {
		if rec.State != booking.StateHeld {
			continue
		}
		g.Go(func() error {
			charge, err := o.Gateway.Query(ctx, rec.PaymentID)
			unclear := err != nil || charge.Status == booking.ChargeUnknown
			completed := !unclear && charge.Status == booking.ChargeCompleted
			goesBack := completed && errors.Is(charge.Check(rec), booking.ErrOtherThanOrdered) && back.of(rec, charge.Transaction)
			if !goesBack && (unclear || completed || !rec.ExecuteAt.IsZero()) {
				mu.Lock()
				defer mu.Unlock()
				if !completed {
					out.Doubtful++
				}
				return nil
			}
			reason, count := booking.ReasonLapsed, &out.Released
			if goesBack {
				reason, count = booking.ReasonRefund, &out.Refunded
			}
			if err := o.Store.Release(ctx, rec, reason, now); err != nil {
				return fmt.Errorf("release record: %w", err)
			}
			mu.Lock()
			defer mu.Unlock()
			*count++
			ended[rec.Attempt] = true
			return nil
		})
	}
	return ended, g.Wait()
}

func restoredRow(rec booking.Record, now time.Time) booking.RestoredRow {
	r := booking.RestoredRow{
		Code: rec.Code,
		Row: booking.Row{
			Attempt:    rec.Attempt,
			Level:      rec.Level,
			Phase:      booking.PhaseHeld,
			AdmittedAt: rec.AdmittedAt.UnixMilli(),
			Hold:       rec.Deadline.Sub(rec.AdmittedAt).Milliseconds(),
			Amount:     rec.Amount,
			Currency:   rec.Currency,
			Deadline:   rec.Deadline.UnixMilli(),
			Payment:    rec.PaymentID,
			Doubt:      rec.State == booking.StateHeld && !rec.ExecuteAt.IsZero(),
		},
		Look:    rec.Deadline,
		Payment: booking.Payment{ID: rec.PaymentID, URL: rec.PaymentURL, Signature: rec.Signature},
	}
	switch rec.State {
	case booking.StateReleased:
		r.Row.Phase, r.Row.Released = booking.PhaseRefused, true
	case booking.StatePaid:
		r.Row.Phase = booking.PhasePaid
		r.Row.Transaction = rec.Transaction
		r.Row.PaidAt = rec.PaidAt.UnixMilli()
		r.Row.RecordDone = true
		r.Row.MailDone = rec.Mail == booking.MailSent
		r.Look = now
		if r.Row.MailDone {
			r.Look = time.Time{}
		}
	}
	return r
}

// Start puts a sale into force on an empty Redis: for the first time, with a new
// epoch, when store and queue are empty too, else by a rebuild from the store. A
// ledger that has an epoch is left as it is but for the sale.
func (o *Ops) Start(ctx context.Context, sale booking.Sale) (Rebuilt, error) {
	switch _, err := o.Ledger.Epoch(ctx); {
	case err == nil:
		applied, err := o.Ledger.ApplySale(ctx, sale, "", false)
		return Rebuilt{Applied: applied}, err
	case !errors.Is(err, booking.ErrLedgerUnknown):
		return Rebuilt{}, err
	}
	// The queue first: what leaves it meanwhile is in the store.
	if err := o.drained(ctx); err != nil {
		return Rebuilt{}, err
	}
	empty, err := o.Store.Empty(ctx)
	if err != nil {
		return Rebuilt{}, err
	}
	if !empty {
		return o.Rebuild(ctx, sale)
	}
	now, err := o.Ledger.Now(ctx)
	if err != nil {
		return Rebuilt{}, err
	}
	var out Rebuilt
	err = o.restore(ctx, sale, booking.NewEpoch(now), nil, nil, &out)
	return out, err
}
