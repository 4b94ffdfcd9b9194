package saleops

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"maps"
	"slices"
	"strings"
	"time"

	"holdfast/internal/booking"
)

// ResetLedger is what the end of a sale needs of the seat ledger; see admission.Gate.
type ResetLedger interface {
	Epoch(ctx context.Context) (string, error)
	Sale(ctx context.Context) (booking.Sale, error)
	Now(ctx context.Context) (time.Time, error)
	Rows(ctx context.Context) iter.Seq2[booking.DueRow, error]
	Ending(ctx context.Context) (booking.Ending, error)
	// Reset makes a ledger of that many rows, all paid, an empty one of the next epoch,
	// in one acknowledged step. After booking.ErrNotEnded nothing was changed; after any
	// other error it may have been. Safe to repeat.
	Reset(ctx context.Context, epoch, next string, seen int) error
}

// ResetStore is what it needs of the booking store.
type ResetStore interface {
	Records(ctx context.Context) iter.Seq2[booking.Record, error]
	OpenRefunds(ctx context.Context) iter.Seq2[booking.Refund, error]
	OpenNotifications(ctx context.Context) iter.Seq2[booking.Notification, error]
	// EpochMark is the latest epoch that was begun; booking.ErrNotFound.
	EpochMark(ctx context.Context) (booking.EpochMark, error)
	// MarkEpoch keeps the later of two epochs, ChooseEpoch puts any in place of the one
	// that was seen, or none; booking.ErrNotOwner. Safe to repeat.
	MarkEpoch(ctx context.Context, m booking.EpochMark) error
	ChooseEpoch(ctx context.Context, seen, m booking.EpochMark) error
}

// Resetter begins a sale anew.
type Resetter struct {
	Ledger ResetLedger
	Store  ResetStore
	Queue  Queue
}

// ErrNotOver refuses the end of a sale in which something is not finished.
var ErrNotOver = errors.New("the sale is not over")

// ErrSeenOtherwise refuses a change when what was shown is not so any more.
var ErrSeenOtherwise = errors.New("it is not as it was shown any more: look again, and decide anew")

// againstMost is how many places of one kind are named.
const againstMost = 5

// ResetPlan is how a sale stands before it ends.
type ResetPlan struct {
	Sale  string
	Epoch string
	// At is when this was read, by the ledger's clock.
	At time.Time
	// Paid is how many bookings are paid: their seats are forgotten, and free again.
	Paid int
	// Unmailed are those of them whose confirmation is not known to be sent; none
	// would be after the reset.
	Unmailed int
	// Refunds is how many are not done. They go on.
	Refunds int
	// Candidates is how many are on the allowlist, which stays.
	Candidates int
	// Unmarked: the store's mark does not name this epoch, though there are records of
	// earlier ones. So it is when a reset broke off after the ledger's change.
	Unmarked bool
	// Against says what stands against the end of the sale, and what to do about it.
	Against []string
	// latest is the latest epoch of a record: not the running one when a person has
	// chosen an earlier sale.
	latest string
}

// Over is nil when nothing stands against the end of the sale; else ErrNotOver.
func (p ResetPlan) Over() error {
	if len(p.Against) == 0 {
		return nil
	}
	errs := make([]error, len(p.Against))
	for i, text := range p.Against {
		errs[i] = errors.New(text)
	}
	return fmt.Errorf("%w:\n%w", ErrNotOver, errors.Join(errs...))
}

// Plan reads how the sale stands, and changes nothing. The error says why it could
// not be read.
func (r *Resetter) Plan(ctx context.Context) (ResetPlan, error) {
	p, _, err := r.look(ctx)
	return p, err
}

// look is Plan, with the number of rows.
func (r *Resetter) look(ctx context.Context) (p ResetPlan, rows int, err error) {
	if p.Epoch, err = r.Ledger.Epoch(ctx); err != nil {
		return p, 0, fmt.Errorf("reset: %w", err)
	}
	sale, err := r.Ledger.Sale(ctx)
	if err != nil {
		return p, 0, fmt.Errorf("reset: the running sale: %w", err)
	}
	p.Sale = sale.Name
	if p.At, err = r.Ledger.Now(ctx); err != nil {
		return p, 0, fmt.Errorf("reset: %w", err)
	}
	against := func(format string, args ...any) { p.Against = append(p.Against, fmt.Sprintf(format, args...)) }
	quiet, err := r.Ledger.Ending(ctx)
	if err != nil {
		return p, 0, fmt.Errorf("reset: %w", err)
	}
	p.Candidates = quiet.Candidates
	switch {
	case quiet.Open:
		against("booking is open: close it (seatctl close)")
	case !quiet.OpensAt.IsZero():
		against("booking is scheduled to open at %s: close it (seatctl close)", quiet.OpensAt.UTC().Format(time.RFC3339))
	}
	if quiet.UnderWay {
		against("a rebuild or a load of the allowlist has begun and is not finished: finish it first; the turn of a load or a purge that was killed lapses within 30 s")
	}
	// The queue first: what leaves it meanwhile is in the store.
	switch err := (&Ops{Queue: r.Queue}).drained(ctx); {
	case errors.Is(err, ErrNotDrained):
		against("%v", err)
	case err != nil:
		return p, 0, fmt.Errorf("reset: %w", err)
	}
	records, err := r.records(ctx, &p, against)
	if err != nil {
		return p, 0, fmt.Errorf("reset: %w", err)
	}
	if rows, err = r.rows(ctx, &p, records, against); err != nil {
		return p, 0, fmt.Errorf("reset: %w", err)
	}
	if err := r.loose(ctx, &p, against); err != nil {
		return p, 0, fmt.Errorf("reset: %w", err)
	}
	return p, rows, nil
}

// places collects where something is so, and names the first few.
type places struct {
	n     int
	named []string
}

func (p *places) add(name string) {
	if p.n++; p.n <= againstMost {
		p.named = append(p.named, name)
	}
}

func (p *places) String() string {
	text := ""
	for i, name := range p.named {
		if i > 0 {
			text += ", "
		}
		text += name
	}
	if more := p.n - len(p.named); more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return text
}

// records returns the transaction of every PAID record of the running sale, by
// attempt.
func (r *Resetter) records(ctx context.Context, p *ResetPlan, against func(string, ...any)) (map[string]string, error) {
	paid, earlier := map[string]string{}, false
	var held, unreadable places
	for rec, err := range r.Store.Records(ctx) {
		p.latest = max(p.latest, booking.AttemptEpoch(rec.Attempt))
		switch {
		case errors.Is(err, booking.ErrUnreadable):
			unreadable.add(rec.Attempt)
		case err != nil:
			return nil, err
		case rec.Epoch != p.Epoch:
			earlier = earlier || rec.Epoch < p.Epoch
		case rec.State == booking.StateHeld:
			held.add(rec.Attempt)
		case rec.State == booking.StatePaid:
			paid[rec.Attempt] = rec.Transaction
		}
	}
	if held.n > 0 {
		against("%d records are HELD, so their payments are not over: the reconciler ends them after their deadline, and seatctl bookings resolve those in doubt (attempts %s)", held.n, &held)
	}
	if unreadable.n > 0 {
		against("%d records cannot be read, and each may be a payment that is not over: repair them (attempts %s)", unreadable.n, &unreadable)
	}
	mark, err := r.Store.EpochMark(ctx)
	if err != nil && !errors.Is(err, booking.ErrNotFound) {
		return nil, err
	}
	p.Unmarked = earlier && mark.Epoch < p.Epoch
	if mark.NewerThan(p.Epoch) {
		against("the store says that epoch %s was begun at %s, and Redis has the earlier %s: it has lost time, so rebuild it", mark.Epoch, mark.At.Format(time.RFC3339), p.Epoch)
	}
	return paid, nil
}

// rows holds every row against its record, and returns how many rows there are.
func (r *Resetter) rows(ctx context.Context, p *ResetPlan, records map[string]string, against func(string, ...any)) (int, error) {
	codes := map[string]struct{}{} // a scan may tell a row twice
	var live, doubt, differ, unwritten, unreadable places
	var last time.Time
	for d, err := range r.Ledger.Rows(ctx) {
		if err != nil {
			return 0, err
		}
		if _, twice := codes[d.Code]; twice {
			continue
		}
		codes[d.Code] = struct{}{}
		row := d.Row
		switch {
		case d.Err != nil:
			unreadable.add("candidate " + booking.CandidateHash(d.Code)[:8])
		case row.Phase != booking.PhasePaid && (row.Phase == booking.PhasePaying || row.Doubt || row.Looks > 0):
			doubt.add(row.Attempt)
		case row.Phase != booking.PhasePaid:
			live.add(row.Attempt)
			if end := time.UnixMilli(max(row.Deadline, row.AdmittedAt+row.Hold)); end.After(last) {
				last = end
			}
		case !row.RecordDone:
			unwritten.add(row.Attempt)
		default:
			p.Paid++
			if !row.MailDone {
				p.Unmailed++
			}
			if transaction, there := records[row.Attempt]; !there || transaction != row.Transaction {
				differ.add(row.Attempt)
			}
		}
		delete(records, row.Attempt)
	}
	for attempt := range records {
		differ.add(attempt)
	}
	if live.n > 0 {
		against("%d seats are held and not paid, and somebody may be paying: wait until %s, when the last of them lapses, and then for a sweep (attempts %s)", live.n, last.UTC().Format(time.RFC3339), &live)
	}
	if doubt.n > 0 {
		against("%d seats are being paid or in doubt: end them with seatctl bookings resolve (attempts %s)", doubt.n, &doubt)
	}
	if unwritten.n > 0 {
		against("%d paid seats are not known to have their record: the next sweep sees to it (attempts %s)", unwritten.n, &unwritten)
	}
	if differ.n > 0 {
		against("%d paid seats and PAID records do not go together: run seatctl audit (attempts %s)", differ.n, &differ)
	}
	if unreadable.n > 0 {
		against("%d rows cannot be read: run seatctl audit (%s)", unreadable.n, &unreadable)
	}
	return len(codes), nil
}

// loose looks at money that is on its way.
func (r *Resetter) loose(ctx context.Context, p *ResetPlan, against func(string, ...any)) error {
	for _, err := range r.Store.OpenRefunds(ctx) {
		if err != nil && !errors.Is(err, booking.ErrUnreadable) {
			return err
		}
		p.Refunds++
	}
	var open places
	for n, err := range r.Store.OpenNotifications(ctx) {
		if err != nil && !errors.Is(err, booking.ErrUnreadable) {
			return err
		}
		open.add(n.ID)
	}
	if open.n > 0 {
		against("%d notifications of the gateway are open, and may tell of this sale's money: let the sweeps work them off, or close them (seatctl notifications list; messages %s)", open.n, &open)
	}
	return nil
}

// ResetDone is what a reset has done.
type ResetDone struct {
	// Ended and Begun are the epochs.
	Ended, Begun string
	// Forgotten is how many seats were paid.
	Forgotten int
	// At is when the new sale's ledger began, by the ledger's clock.
	At time.Time
}

// Carry ends the sale as it was seen, and begins it anew: the ledger first, by one
// acknowledged step, then its mark in the store, so that a rebuild does not bring
// the ended sale back. ErrNotOver, ErrSeenOtherwise and, of the ledger itself,
// booking.ErrNotEnded refuse it: nothing was changed, and nothing of ResetDone is set.
// After any other error Begun, if set, may have begun: run it again. A run that breaks
// off between the two steps leaves a ledger that is whole; the next run ends that one,
// which has sold nothing, in the same way.
func (r *Resetter) Carry(ctx context.Context, seen ResetPlan) (ResetDone, error) {
	p, rows, err := r.look(ctx)
	if err != nil {
		return ResetDone{}, err
	}
	if err := p.Over(); err != nil {
		return ResetDone{}, fmt.Errorf("reset: %w", err)
	}
	if p.Epoch != seen.Epoch || p.Sale != seen.Sale || p.Paid != seen.Paid {
		return ResetDone{}, fmt.Errorf("reset: %d bookings are paid in epoch %s, and %d in epoch %s were shown: %w", p.Paid, p.Epoch, seen.Paid, seen.Epoch, ErrSeenOtherwise)
	}
	next := booking.NextEpoch(max(p.Epoch, p.latest), p.At)
	out := ResetDone{Ended: p.Epoch, Begun: next, Forgotten: p.Paid}
	switch err := r.Ledger.Reset(ctx, p.Epoch, next, rows); {
	case errors.Is(err, booking.ErrNotEnded):
		return ResetDone{}, err
	case err != nil:
		return out, err
	}
	if out.At, err = r.Ledger.Now(ctx); err != nil {
		return out, fmt.Errorf("the ledger is reset, the store does not know it yet: run it again: %w", err)
	}
	if err := r.Store.MarkEpoch(ctx, booking.EpochMark{Version: booking.EpochMarkVersion, Epoch: next, At: out.At}); err != nil {
		return out, fmt.Errorf("the ledger is reset, the store does not know it yet: run it again: %w", err)
	}
	return out, nil
}

// ErrNoSuchEpoch refuses to choose a sale that the store knows nothing of.
var ErrNoSuchEpoch = errors.New("the store has no record and no mark of this epoch")

// Choose writes down which sale a person says is the running one, for a Redis that is
// lost: a rebuild takes it, this one and any later one, until a reset begins another.
// What other sales have sold by now is then nobody's seat. It refuses with ErrNotLost
// while the ledger is another sale's, with ErrNotDrained, and with ErrNoSuchEpoch; then
// nothing was changed. Safe to repeat, also while the ledger is that very sale's.
func (r *Resetter) Choose(ctx context.Context, epoch string) error {
	switch there, err := r.Ledger.Epoch(ctx); {
	case err == nil && there == epoch:
		return nil // an earlier run has come so far
	case err == nil:
		return fmt.Errorf("choose epoch %s: it is of epoch %s: %w", epoch, there, ErrNotLost)
	case !errors.Is(err, booking.ErrLedgerUnknown):
		return fmt.Errorf("choose epoch %s: %w", epoch, err)
	}
	if err := (&Ops{Queue: r.Queue}).drained(ctx); err != nil {
		return fmt.Errorf("choose epoch %s: %w", epoch, err)
	}
	mark, err := r.Store.EpochMark(ctx)
	if err != nil && !errors.Is(err, booking.ErrNotFound) {
		return fmt.Errorf("choose epoch %s: %w", epoch, err)
	}
	known := map[string]struct{}{}
	if mark.Epoch != "" {
		known[mark.Epoch] = struct{}{}
	}
	for rec, err := range r.Store.Records(ctx) {
		switch {
		case err == nil:
			known[rec.Epoch] = struct{}{}
		case !errors.Is(err, booking.ErrUnreadable): // the rebuild tells of those
			return fmt.Errorf("choose epoch %s: %w", epoch, err)
		}
	}
	if _, is := known[epoch]; !is {
		return fmt.Errorf("choose epoch %.40q: %w; it has these: %s", epoch, ErrNoSuchEpoch, strings.Join(slices.Sorted(maps.Keys(known)), ", "))
	}
	now, err := r.Ledger.Now(ctx)
	if err != nil {
		return fmt.Errorf("choose epoch %s: %w", epoch, err)
	}
	return r.Store.ChooseEpoch(ctx, mark, booking.EpochMark{Version: booking.EpochMarkVersion, Epoch: epoch, At: now, Chosen: true})
}
