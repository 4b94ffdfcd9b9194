package saleops

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"holdfast/internal/booking"
)

// PurgeLedger is what a purge needs of the seat ledger; see admission.Gate.
type PurgeLedger interface {
	ResetLedger
	// CountPersonal counts the keys under candidates' names, PurgePersonal deletes them
	// in acknowledged steps. Safe to repeat.
	CountPersonal(ctx context.Context) (booking.PersonalKeys, error)
	PurgePersonal(ctx context.Context, epoch string) (booking.PersonalKeys, error)
}

// PurgeStore is what it needs of the booking store. Each step is safe to repeat.
type PurgeStore interface {
	ResetStore
	Refunds(ctx context.Context) iter.Seq2[booking.Refund, error]
	Notifications(ctx context.Context) iter.Seq2[booking.Notification, error]
	// PurgeRecord deletes a record that is over and as it was seen.
	PurgeRecord(ctx context.Context, seen booking.Record) error
	// PurgeRefund and PurgeNotification take the names out, and tell whether there was
	// anything.
	PurgeRefund(ctx context.Context, transaction string) (bool, error)
	PurgeNotification(ctx context.Context, id string) (bool, error)
}

// Outbox is a folder of mails, where the deployment has one.
type Outbox interface {
	// Count counts the mails written before that time, Purge removes them. Safe to
	// repeat.
	Count(before time.Time) (int, error)
	Purge(before time.Time) (int, error)
}

// Purger removes personal data after the event.
type Purger struct {
	Ledger PurgeLedger
	Store  PurgeStore
	Queue  Queue
	// Outbox is nil where mails leave no file.
	Outbox Outbox
}

// PurgeAtLeast is the least age of what may be purged: the gateway can execute a
// payment for a day, a day later the last question about an ended attempt is asked,
// and what Redis keeps for a hold's payment has gone by itself.
const PurgeAtLeast = 48 * time.Hour

// PurgeOptions say what goes.
type PurgeOptions struct {
	// OlderThan is how long ago what goes must have ended; PurgeAtLeast at least. What
	// Redis keeps goes whole, once the youngest booking of any sale is that old.
	OlderThan time.Duration
	// KeepCandidates leaves allowlist, e-mails and stashes: the first may be the next
	// event's.
	KeepCandidates bool
}

// PurgePlan is how a deployment stands before its purge. Its Against is of the purge.
type PurgePlan struct {
	ResetPlan
	// Before: what ended before that goes.
	Before time.Time
	// Would is what would go.
	Would Purged
}

// Purged is what a purge has removed, or would.
type Purged struct {
	// Seats of the ended sale; the ledger begins a new epoch if there were any.
	Seats int `json:"seats"`
	// Epoch is the ledger's now.
	Epoch string `json:"epoch"`
	// Lists are the allowlist and what loads left of others, Emails those on file,
	// Stashes what Redis kept for payments.
	Lists   int `json:"lists"`
	Emails  int `json:"emails"`
	Stashes int `json:"stashes"`
	// Records were deleted; out of Refunds and Notifications the names were taken.
	Records       int `json:"records"`
	Refunds       int `json:"refunds"`
	Notifications int `json:"notifications"`
	// Mails are files of the outbox.
	Mails int `json:"mails"`
	// Kept counts records, refunds and notifications that are younger.
	Kept int `json:"kept"`
}

// Plan reads how the deployment stands and what a purge would remove, and changes
// nothing. The error says why it could not be read.
func (p *Purger) Plan(ctx context.Context, opts PurgeOptions) (PurgePlan, error) {
	plan, _, err := p.look(ctx, opts)
	if err != nil {
		return PurgePlan{}, err
	}
	if plan.Would, err = p.walk(ctx, plan, opts, dryPurge{p}); err != nil {
		return PurgePlan{}, fmt.Errorf("purge: %w", err)
	}
	return plan, nil
}

// Carry purges what was shown: the running sale's seats first, as a reset ends
// them, then what Redis has under candidates' names, then the store. ErrNotOver,
// ErrSeenOtherwise and, of the ledger, booking.ErrNotEnded refuse it; where nothing was
// changed, nothing of Purged is set. After any other error what is told has gone, and
// the rest is there: run it again until it is done.
func (p *Purger) Carry(ctx context.Context, seen PurgePlan, opts PurgeOptions) (Purged, error) {
	plan, rows, err := p.look(ctx, opts)
	if err != nil {
		return Purged{}, err
	}
	if err := plan.Over(); err != nil {
		return Purged{}, fmt.Errorf("purge: %w", err)
	}
	if plan.Epoch != seen.Epoch || plan.Sale != seen.Sale || plan.Paid != seen.Paid {
		return Purged{}, fmt.Errorf("purge: %d bookings are paid in epoch %s, and %d in epoch %s were shown: %w", plan.Paid, plan.Epoch, seen.Paid, seen.Epoch, ErrSeenOtherwise)
	}
	out, err := p.walk(ctx, plan, opts, realPurge{p, rows})
	switch {
	case errors.Is(err, booking.ErrNotEnded) && out == (Purged{Epoch: plan.Epoch}): // by its first step
		return Purged{}, fmt.Errorf("purge: %w", err)
	case err != nil:
		return out, fmt.Errorf("purge: %w", err)
	}
	return out, nil
}

// look reads what stands against a purge: all that stands against the end of the
// sale, and what is too young or not finished.
func (p *Purger) look(ctx context.Context, opts PurgeOptions) (PurgePlan, int, error) {
	if opts.OlderThan < PurgeAtLeast {
		return PurgePlan{}, 0, fmt.Errorf("purge: what is younger than %s may still be asked about and paid for; %s is too short", PurgeAtLeast, opts.OlderThan)
	}
	r := Resetter{Ledger: p.Ledger, Store: p.Store, Queue: p.Queue}
	reset, rows, err := r.look(ctx)
	if err != nil {
		return PurgePlan{}, 0, fmt.Errorf("purge: %w", err)
	}
	plan := PurgePlan{ResetPlan: reset, Before: reset.At.Add(-opts.OlderThan)}
	var held places
	var last, youngest time.Time // booking of the running sale, of any sale
	for rec, err := range p.Store.Records(ctx) {
		switch {
		case errors.Is(err, booking.ErrUnreadable): // told already
		case err != nil:
			return PurgePlan{}, 0, fmt.Errorf("purge: %w", err)
		case rec.State == booking.StateHeld:
			if rec.Epoch != plan.Epoch { // the others are told already
				held.add(rec.Attempt)
			}
		default:
			if end := endOf(rec); end.After(youngest) {
				youngest = end
			}
			if end := endOf(rec); rec.Epoch == plan.Epoch && end.After(last) {
				last = end
			}
		}
	}
	if held.n > 0 {
		plan.Against = append(plan.Against, fmt.Sprintf("%d records of earlier sales are HELD: end them with seatctl bookings resolve (attempts %s)", held.n, &held))
	}
	against := func(end time.Time, format string) {
		plan.Against = append(plan.Against, fmt.Sprintf(format,
			end.UTC().Format(time.RFC3339), opts.OlderThan, end.Add(opts.OlderThan).UTC().Format(time.RFC3339)))
	}
	switch {
	case rows > 0 && !last.Before(plan.Before):
		against(last, "the running sale's last booking ended at %s, less than %s ago: it may be purged from %s on")
	case !opts.KeepCandidates && !youngest.Before(plan.Before):
		// Redis does not say which sale an e-mail or a stash is of.
		against(youngest, "a booking ended at %s, less than %s ago, and money for it may still come: what Redis keeps may be purged from %s on; what is older in the store goes now with --keep-candidates")
	}
	if plan.Refunds > 0 {
		plan.Against = append(plan.Against, fmt.Sprintf("%d refunds are not done: seatctl refunds list", plan.Refunds))
	}
	return plan, rows, nil
}

// endOf is when the record's booking was over.
func endOf(rec booking.Record) time.Time {
	if rec.State == booking.StatePaid {
		return rec.PaidAt
	}
	return rec.ReleasedAt()
}

// purgeSteps are a purge's steps, and what a dry one has in their place.
type purgeSteps interface {
	// seats ends the running sale, and returns the epoch that runs then.
	seats(ctx context.Context, plan PurgePlan) (epoch string, err error)
	names(ctx context.Context, epoch string) (booking.PersonalKeys, error)
	mails(before time.Time) (int, error)
	record(ctx context.Context, rec booking.Record) error
	refund(ctx context.Context, r booking.Refund) (bool, error)
	notification(ctx context.Context, n booking.Notification) (bool, error)
}

// walk takes the steps one after the other, and counts what they do.
func (p *Purger) walk(ctx context.Context, plan PurgePlan, opts PurgeOptions, steps purgeSteps) (out Purged, err error) {
	if out.Epoch, err = steps.seats(ctx, plan); err != nil {
		return out, err
	}
	out.Seats = plan.Paid
	if !opts.KeepCandidates {
		keys, err := steps.names(ctx, out.Epoch)
		out.Lists, out.Emails, out.Stashes = keys.Lists, keys.Emails, keys.Stashes
		if err != nil {
			return out, err
		}
	}
	if p.Outbox != nil {
		if out.Mails, err = steps.mails(plan.Before); err != nil {
			return out, err
		}
	}
	old := func(end time.Time) bool {
		if end.Before(plan.Before) {
			return true
		}
		out.Kept++
		return false
	}
	if err := each(ctx, p.Store.Records(ctx), &out.Records,
		func(rec booking.Record) bool { return rec.State != booking.StateHeld && old(endOf(rec)) },
		func(ctx context.Context, rec booking.Record) (bool, error) { return true, steps.record(ctx, rec) }); err != nil {
		return out, err
	}
	if err := each(ctx, p.Store.Refunds(ctx), &out.Refunds,
		func(r booking.Refund) bool { return r.State == booking.RefundDone && old(r.DoneAt) }, steps.refund); err != nil {
		return out, err
	}
	err = each(ctx, p.Store.Notifications(ctx), &out.Notifications,
		func(n booking.Notification) bool { return n.Outcome != "" && old(n.ClosedAt) }, steps.notification)
	return out, err
}

// each does a step for every item that is to go, several at a time, and counts those
// that it changed. The first error ends it; what cannot be read is an error at its
// end.
func each[T any](ctx context.Context, items iter.Seq2[T, error], n *int, goes func(T) bool, do func(context.Context, T) (bool, error)) error {
	var mu sync.Mutex
	g, working := errgroup.WithContext(ctx)
	g.SetLimit(queryWidth)
	var unreadable places
	var scan error
	for item, err := range items {
		if errors.Is(err, booking.ErrUnreadable) {
			unreadable.add(err.Error())
			continue
		}
		if err != nil {
			scan = err
			break
		}
		if working.Err() != nil {
			break
		}
		if !goes(item) {
			continue
		}
		g.Go(func() error {
			changed, err := do(working, item)
			if changed && err == nil {
				mu.Lock()
				*n++
				mu.Unlock()
			}
			return err
		})
	}
	err := errors.Join(g.Wait(), scan)
	if unreadable.n > 0 {
		err = errors.Join(err, fmt.Errorf("%d items cannot be read and stay: %s", unreadable.n, &unreadable))
	}
	return err
}

// realPurge takes the steps.
type realPurge struct {
	*Purger
	rows int
}

func (p realPurge) seats(ctx context.Context, plan PurgePlan) (string, error) {
	if p.rows == 0 {
		return plan.Epoch, nil
	}
	r := Resetter{Ledger: p.Ledger, Store: p.Store, Queue: p.Queue}
	did, err := r.Carry(ctx, plan.ResetPlan)
	return did.Begun, err
}

func (p realPurge) names(ctx context.Context, epoch string) (booking.PersonalKeys, error) {
	return p.Ledger.PurgePersonal(ctx, epoch)
}

func (p realPurge) mails(before time.Time) (int, error) { return p.Outbox.Purge(before) }

func (p realPurge) record(ctx context.Context, rec booking.Record) error {
	return p.Store.PurgeRecord(ctx, rec)
}

func (p realPurge) refund(ctx context.Context, r booking.Refund) (bool, error) {
	return p.Store.PurgeRefund(ctx, r.Transaction)
}

func (p realPurge) notification(ctx context.Context, n booking.Notification) (bool, error) {
	return p.Store.PurgeNotification(ctx, n.ID)
}

// dryPurge only says what each step would do.
type dryPurge struct{ *Purger }

func (p dryPurge) seats(_ context.Context, plan PurgePlan) (string, error) { return plan.Epoch, nil }

func (p dryPurge) names(ctx context.Context, _ string) (booking.PersonalKeys, error) {
	return p.Ledger.CountPersonal(ctx)
}

func (p dryPurge) mails(before time.Time) (int, error) { return p.Outbox.Count(before) }

func (p dryPurge) record(context.Context, booking.Record) error { return nil }

func (p dryPurge) refund(_ context.Context, r booking.Refund) (bool, error) { return r.Purge() }

func (p dryPurge) notification(_ context.Context, n booking.Notification) (bool, error) {
	return n.Purge()
}
