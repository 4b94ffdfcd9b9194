package saleops

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"iter"
	"time"

	"holdfast/internal/booking"
)

// Allowlist is what a load needs of the seat ledger; see admission.Gate, which says
// what each step promises. Every step carries the load's token, is acknowledged or an
// error, is safe to repeat, and has done so for some seconds before it gives up for a
// reason that passes.
type Allowlist interface {
	BeginAllowlist(ctx context.Context, token, who string) (booking.AllowlistLoad, error)
	ClearAllowlist(ctx context.Context, token string, keep bool) (booking.AllowlistLoad, error)
	StageAllowlist(ctx context.Context, token string, number int, chunk []booking.Candidate) (booking.AllowlistLoad, error)
	SwapAllowlist(ctx context.Context, token string, chunks int, whileOpen bool) (booking.AllowlistLoad, error)
	EndAllowlist(ctx context.Context, token string, keep bool) error
	LeaveAllowlist(ctx context.Context, token string) error
	LeavingRows(ctx context.Context, swapped bool) iter.Seq2[booking.DueRow, error]
	KeptEmails(ctx context.Context) (int, error)
}

// What a load of the allowlist is refused for.
var (
	// ErrBookingOpen is the ledger's own word.
	ErrBookingOpen = booking.ErrAllowlistOpen
	ErrLoadRunning = errors.New("another load of the allowlist is running: wait for its end; one that has died gives up its turn by itself")
	// ErrLoadUnfinished refuses a dry run, which changes nothing.
	ErrLoadUnfinished = errors.New("an earlier load was cut off with its list in force, and must be finished first: a load that is no dry run does that")
	ErrRemovals       = errors.New("the list leaves out more of the candidates on the list in force than may go unasked: check that it is whole, then load it with --allow-removals")
)

const (
	// listChunk is how many rows are staged in one step, which takes Redis less than
	// a millisecond.
	listChunk = 250
	// One candidate in this many may be removed unasked: 5 %.
	removedShare = 20
	// attemptsTold is how many bookings of removed candidates are named.
	attemptsTold = 10
	// leaveWithin bounds the last word of a load that breaks off.
	leaveWithin = 2 * time.Second
)

// AllowlistOptions are what the operator allows.
type AllowlistOptions struct {
	// WhileOpen allows it while booking is open.
	WhileOpen bool
	// AllowRemovals allows it to remove more than 5 % of the list in force, and
	// candidates who have a live booking.
	AllowRemovals bool
	// Who is told to whoever finds this load running; "" is "someone".
	Who string
	// Progress hears how many rows were read so far; nil is none.
	Progress func(done int)
}

// AllowlistReport is what a load did, or would do.
type AllowlistReport struct {
	// Rows are the candidates of the list, each once: Added are not on the list in
	// force, Changed are there with another e-mail. Removed are those that it leaves out.
	Rows      int `json:"rows"`
	Added     int `json:"added"`
	Removed   int `json:"removed"`
	Changed   int `json:"changed"`
	Unchanged int `json:"unchanged"`
	// LiveRemoved counts the removed who have a booking, LiveAttempts names the first
	// few. They keep seat and e-mail whatever becomes of the list.
	LiveRemoved  int      `json:"live_removed"`
	LiveAttempts []string `json:"live_attempts,omitempty"`
	// Kept, of a load that was applied to its end, are all candidates off the list whose
	// e-mail is kept, by this load or an earlier one: for their booking, or for late
	// money that may still make one.
	Kept int `json:"kept"`
	// Finished: an earlier load had been cut off with its list in force already, and was
	// finished first, which is a change; the figures compare with its list. FinishedOf is
	// whose it was, FinishedSince since when.
	Finished      bool      `json:"finished_earlier"`
	FinishedOf    string    `json:"finished_of,omitempty"`
	FinishedSince time.Time `json:"finished_since,omitzero"`
	// Applied: the list is in force, acknowledged.
	Applied bool `json:"applied"`
}

// NothingChanged says of a load that was refused what it changed all the same.
func (r AllowlistReport) NothingChanged() string {
	if !r.Finished {
		return "nothing was changed"
	}
	return fmt.Sprintf("an earlier load, of %s since %s, was finished; of this list nothing was changed", r.FinishedOf, r.FinishedSince.Format(time.RFC3339))
}

// EarlierOnly leaves of a report that an earlier load was finished: the figures of a
// list of which only a part was read mean nothing.
func (r AllowlistReport) EarlierOnly() AllowlistReport {
	return AllowlistReport{Finished: r.Finished, FinishedOf: r.FinishedOf, FinishedSince: r.FinishedSince}
}

// LoadAllowlist puts a list in force in place of the one that is: all of it or
// nothing. The list is read once, chunk by chunk, and staged where nobody is admitted
// by it; when it has ended without an error the guards are asked, and one step swaps
// it in. An error of the list, a refusal or a crash before that leaves the list in
// force as it was; what was staged is forgotten, at the latest by the next load. A load
// that had died with its list in force is finished first, also where this one is
// refused later: the report says so, and the error's text.
// After it, with report.Applied, an error says that the old list is not yet cleared
// away: run it again, as whenever an error does not say that it was refused.
//
// Errors: ErrBookingOpen, ErrLoadRunning (saying whose and since when), ErrRemovals
// and booking.ErrAllowlistMany with the figures filled in, booking.ErrLedgerUnknown
// before anything was staged, and the list's own. A candidate who is removed while
// booking is open and books in the moment before the swap is counted in LiveRemoved.
func (o *Ops) LoadAllowlist(ctx context.Context, list iter.Seq2[booking.Candidate, error], opts AllowlistOptions) (AllowlistReport, error) {
	return o.stageAllowlist(ctx, list, opts, false, func(l *allowlistLoad) error { return l.swap(ctx) })
}

// DryRunAllowlist tells the figures of LoadAllowlist and its refusals. It stages the
// list in the same way, has the turn meanwhile, and forgets it at the end. It finishes
// no dead load whose list is in force: that is a change, so it refuses with
// ErrLoadUnfinished, saying whose and since when.
func (o *Ops) DryRunAllowlist(ctx context.Context, list iter.Seq2[booking.Candidate, error], opts AllowlistOptions) (AllowlistReport, error) {
	return o.stageAllowlist(ctx, list, opts, true, func(l *allowlistLoad) error { return l.forget(ctx, nil) })
}

// FinishAllowlist finishes a load that was cut off with its list in force, and loads
// none; the report says whether there was one. Errors: ErrBookingOpen, unless
// opts.WhileOpen, ErrLoadRunning, booking.ErrLedgerUnknown. Safe to repeat.
func (o *Ops) FinishAllowlist(ctx context.Context, opts AllowlistOptions) (AllowlistReport, error) {
	l := o.newLoad(opts)
	err := l.begin(ctx)
	if err == nil {
		err = l.forget(ctx, nil)
	}
	l.report = l.report.EarlierOnly()
	if err != nil {
		return l.report, fmt.Errorf("finish an earlier load of the allowlist: %w", err)
	}
	return l.report, nil
}

// allowlistLoad is one load at work.
type allowlistLoad struct {
	*Ops
	opts   AllowlistOptions
	dry    bool
	token  string
	chunks int
	report AllowlistReport
	// unheard: a step was given up without the ledger's word on it.
	unheard bool
	// half: it has begun to finish an earlier load, and has not.
	half bool
}

func (o *Ops) newLoad(opts AllowlistOptions) *allowlistLoad {
	l := &allowlistLoad{Ops: o, opts: opts, token: rand.Text()}
	if l.opts.Who == "" {
		l.opts.Who = "someone"
	}
	if l.opts.Progress == nil {
		l.opts.Progress = func(int) {}
	}
	return l
}

func (o *Ops) stageAllowlist(ctx context.Context, list iter.Seq2[booking.Candidate, error], opts AllowlistOptions, dry bool, conclude func(*allowlistLoad) error) (AllowlistReport, error) {
	if dry && opts.Who == "" {
		opts.Who = "a dry run"
	}
	l := o.newLoad(opts)
	l.dry = dry
	if err := l.begin(ctx); err != nil {
		return l.report, fmt.Errorf("load the allowlist: %w", l.unchanged(err))
	}
	if err := l.stage(ctx, list); err != nil {
		return l.report, fmt.Errorf("load the allowlist: %w", l.unchanged(l.forget(ctx, err)))
	}
	if err := l.guard(ctx); err != nil {
		return l.report, fmt.Errorf("load the allowlist: %w", l.unchanged(l.forget(ctx, err)))
	}
	if err := conclude(l); err != nil {
		return l.report, fmt.Errorf("load the allowlist: %w", err)
	}
	return l.report, nil
}

// unchanged says of an error that it left the list in force as it was.
func (l *allowlistLoad) unchanged(err error) error {
	if l.half {
		return fmt.Errorf("of this list nothing was changed, and an earlier one is not finished yet: run it again: %w", err)
	}
	return fmt.Errorf("%s: %w", l.report.NothingChanged(), err)
}

// keep tells whether e-mails of removed candidates stay: unless nobody has had an
// attempt, money may still come for one. Who cannot be asked may know of some.
func (l *allowlistLoad) keep(ctx context.Context) bool {
	// The queue first: what leaves it meanwhile is in the store.
	stats, err := l.Queue.Stats(ctx)
	if err == nil && stats.Waiting+stats.InFlight+stats.Dead == 0 {
		var empty bool
		if empty, err = l.Store.Empty(ctx); err == nil && empty {
			return false
		}
	}
	if err != nil {
		l.Log.WarnContext(ctx, "it cannot be seen whether anybody has booked: e-mails of removed candidates are kept", "error", err)
	}
	return true
}

// begin takes the turn and clears away what a dead load has left.
func (l *allowlistLoad) begin(ctx context.Context) error {
	turn, err := l.Ledger.BeginAllowlist(ctx, l.token, l.opts.Who)
	switch {
	case err != nil:
		l.leave(ctx) // it may have been taken
		return err
	case turn.Token != l.token:
		return fmt.Errorf("by %s, since %s, its turn until %s unless it goes on: %w",
			turn.Who, turn.Since.Format(time.RFC3339), turn.Until.Format(time.RFC3339), ErrLoadRunning)
	case turn.Open && !l.opts.WhileOpen:
		l.leave(ctx) // to clear anything away might be to finish an earlier load
		return ErrBookingOpen
	}
	l.half = turn.Left && turn.Swapped
	if l.half && l.dry {
		l.half = false
		l.leave(ctx)
		return fmt.Errorf("of %s, since %s: %w", turn.Of, turn.OfSince.Format(time.RFC3339), ErrLoadUnfinished)
	}
	cleared, err := l.Ledger.ClearAllowlist(ctx, l.token, l.keep(ctx))
	if err != nil {
		l.leave(ctx)
		return fmt.Errorf("clear away what an earlier load has left: %w", err)
	}
	if l.half {
		l.half, l.report.Finished, l.report.FinishedOf, l.report.FinishedSince = false, true, turn.Of, turn.OfSince
	}
	l.count(cleared)
	return nil
}

// stage reads the list and keeps no more of it than a chunk.
func (l *allowlistLoad) stage(ctx context.Context, list iter.Seq2[booking.Candidate, error]) error {
	read, batch := 0, make([]booking.Candidate, 0, listChunk)
	flush := func() error {
		l.chunks++
		staged, err := l.Ledger.StageAllowlist(ctx, l.token, l.chunks, batch)
		if err != nil {
			l.unheard = !errors.Is(err, booking.ErrAllowlistRow) && !errors.Is(err, booking.ErrAllowlistTorn) && !errors.Is(err, booking.ErrAllowlistTurn)
			return fmt.Errorf("rows %d to %d: %w", read-len(batch)+1, read, err)
		}
		l.count(staged)
		batch = batch[:0]
		l.opts.Progress(read)
		return nil
	}
	for c, err := range list {
		if err != nil {
			return err
		}
		read++
		if batch = append(batch, c); len(batch) == listChunk {
			if err := flush(); err != nil {
				return err
			}
		}
	}
	if len(batch) == 0 {
		return nil
	}
	return flush()
}

func (l *allowlistLoad) count(load booking.AllowlistLoad) {
	l.report.Rows, l.report.Added, l.report.Removed = load.Rows, load.Added, load.Removed()
	l.report.Changed, l.report.Unchanged = load.Changed, load.Unchanged
}

// guard looks whom the list leaves out, once it has all been read.
func (l *allowlistLoad) guard(ctx context.Context) error {
	if err := l.leaving(ctx, false); err != nil {
		return err
	}
	listed := l.report.Removed + l.report.Changed + l.report.Unchanged
	if l.opts.AllowRemovals || (l.report.Removed*removedShare <= listed && l.report.LiveRemoved == 0) {
		return nil
	}
	return fmt.Errorf("%d of %d, %d with a live booking: %w", l.report.Removed, listed, l.report.LiveRemoved, ErrRemovals)
}

// leaving counts the bookings of removed candidates.
func (l *allowlistLoad) leaving(ctx context.Context, swapped bool) error {
	if l.report.Removed == 0 {
		return nil
	}
	seen := map[string]bool{} // by code: a scan may tell a row twice
	var attempts []string
	for row, err := range l.Ledger.LeavingRows(ctx, swapped) {
		if err != nil {
			return fmt.Errorf("look for bookings of removed candidates: %w", err)
		}
		if seen[row.Code] {
			continue
		}
		seen[row.Code] = true
		switch {
		case len(attempts) == attemptsTold:
		case row.Err != nil:
			attempts = append(attempts, "(a row that cannot be read)")
		default:
			attempts = append(attempts, row.Row.Attempt)
		}
	}
	l.report.LiveRemoved, l.report.LiveAttempts = len(seen), attempts
	return nil
}

// swap puts the list in force and clears the old one away.
func (l *allowlistLoad) swap(ctx context.Context) error {
	_, err := l.Ledger.SwapAllowlist(ctx, l.token, l.chunks, l.opts.WhileOpen)
	switch {
	case errors.Is(err, booking.ErrAllowlistOpen), errors.Is(err, booking.ErrAllowlistMany), errors.Is(err, booking.ErrAllowlistTorn):
		return l.unchanged(l.forget(ctx, err))
	case errors.Is(err, booking.ErrAllowlistTurn):
		return l.unchanged(err)
	case err != nil:
		l.leave(ctx)
		return fmt.Errorf("nobody knows whether the list is in force, run it again: %w", err)
	}
	l.report.Applied = true
	// Who booked while the list was swapped has lost nothing, and is told.
	err = l.leaving(ctx, true)
	if err == nil {
		err = l.Ledger.EndAllowlist(ctx, l.token, l.keep(ctx))
	}
	if err == nil {
		l.report.Kept, err = l.Ledger.KeptEmails(ctx)
	}
	if err != nil {
		l.leave(ctx)
		return fmt.Errorf("the list is in force, but what is left of the old one is not cleared away: run it again: %w", err)
	}
	return nil
}

// forget ends a load that changes nothing and gives its error back. What cannot be
// forgotten now is left to the next load; so is all of it after a step that got no
// answer, since the steps of forgetting would wait for one as long again.
func (l *allowlistLoad) forget(ctx context.Context, why error) error {
	if l.unheard {
		l.leave(ctx)
		return why
	}
	if err := l.Ledger.EndAllowlist(ctx, l.token, l.keep(ctx)); err != nil {
		l.leave(ctx)
		if why == nil {
			return fmt.Errorf("forget what was staged, which nobody is admitted by; the next load does: %w", err)
		}
	}
	return why
}

// leave gives the turn up when a load breaks off; where that fails too it lapses.
func (l *allowlistLoad) leave(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), leaveWithin)
	defer cancel()
	if err := l.Ledger.LeaveAllowlist(ctx, l.token); err != nil && !errors.Is(err, booking.ErrAllowlistTurn) {
		l.Log.WarnContext(ctx, "the turn to load the allowlist could not be given back; it lapses by itself", "error", err)
	}
}
