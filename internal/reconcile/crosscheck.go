package reconcile

import (
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"iter"
	"slices"
	"strings"
	"sync"
	"time"

	"holdfast/internal/booking"
)

// Census reads the whole ledger for the cross-check. Rows, RowsOf, Looks and
// Count are plain reads, on which nothing rests; Settle and Close answer
// acknowledged.
type Census interface {
	Epoch(ctx context.Context) (string, error)
	Now(ctx context.Context) (time.Time, error)
	Rows(ctx context.Context) iter.Seq2[booking.DueRow, error]
	RowsOf(ctx context.Context, codes []string) (map[string]booking.DueRow, error)
	Looks(ctx context.Context, codes []string) (map[string]time.Time, error)
	Count(ctx context.Context) (rows, looks int, f booking.Figures, err error)
	Settle(ctx context.Context, code, attempt, payment, transaction string) (booking.Row, error)
	// Close closes booking, acknowledged or an error. Safe to repeat.
	Close(ctx context.Context) error
}

// Kind is a kind of difference between store and ledger.
type Kind string

// The kinds, which are also the labels of holdfast_ledger_mismatch.
const (
	// KindPaidRecord: a PAID record whose row is not paid, by an acknowledged
	// answer. Redis has lost time, and booking is closed.
	KindPaidRecord Kind = "paid_record_without_paid_row"
	// KindResetLost: the store has the mark of a later sale than the ledger's, by an
	// acknowledged answer. Redis has lost a reset, and booking is closed.
	KindResetLost Kind = "reset_lost"
	// KindForgotten: the row had forgotten a payment that its record knows, and
	// was settled again.
	KindForgotten Kind = "forgotten_payment"
	// KindHeldRecord: a HELD record whose attempt owns no row and that could not be
	// ended: money has moved, or may have.
	KindHeldRecord Kind = "held_record_without_row"
	// KindTwoLive: a live record beside the candidate's row, which another attempt owns.
	KindTwoLive Kind = "two_live_records"
	// KindNoRecord: a row with a payment and no record.
	KindNoRecord Kind = "row_without_record"
	// KindState: row and record of one attempt say different things.
	KindState Kind = "row_and_record_differ"
	// KindNotLooked: an unfinished row that nobody will look at.
	KindNotLooked Kind = "row_not_looked_at"
	// KindTooLate: an unfinished row that will be looked at, and later than any look
	// may be put off.
	KindTooLate Kind = "row_looked_at_too_late"
	// KindCounter: a counter is not what the rows add up to.
	KindCounter Kind = "counter_differs_from_rows"
	// KindOverCap: more seats than a cap.
	KindOverCap Kind = "over_cap"
	// KindUnreadable: a row or a record that cannot be read, or a row that no script
	// of this sale can have left.
	KindUnreadable Kind = "unreadable"
)

// Kinds lists them all.
func Kinds() []Kind {
	return []Kind{
		KindPaidRecord, KindResetLost, KindForgotten, KindHeldRecord, KindTwoLive, KindNoRecord, KindState, KindNotLooked,
		KindTooLate, KindCounter, KindOverCap, KindUnreadable,
	}
}

// certain kinds are not a glimpse of something on its way, and alarm at once.
func (k Kind) certain() bool {
	return k == KindPaidRecord || k == KindResetLost || k == KindForgotten || k == KindOverCap
}

const (
	checkEvery  = 5 * time.Minute
	checkBudget = 45 * time.Second
	// inFlight is the age below which a record or row says nothing of its other half.
	inFlight = 2 * time.Minute
	// checkPage is how many records or rows are compared at a time.
	checkPage = 500
	// restoreBudget leaves most of a check's time to the records and rows.
	restoreBudget = 15 * time.Second
	// rememberMost bounds the differences that are told one by one, and the payments
	// in doubt whose next question is noted: a ledger that has lost everything would
	// fill the log and the memory, and say no more.
	rememberMost = 1000
)

// Checked is what a cross-check found: how many differences of each kind, and
// what was done about records without a row and about ended attempts, by action.
type Checked struct {
	Found   map[Kind]int
	Actions Report
}

// CrossCheckNow asks for a cross-check at once: the primary may be another one
// than before. It never blocks; a hint that comes while one is waiting is the
// same hint. A check that does not finish whole is repeated until one does.
func (r *Reconciler) CrossCheckNow() {
	select {
	case r.hint <- struct{}{}:
	default:
	}
}

// memory is what one cross-check leaves for the next. Only CrossCheck uses it.
type memory struct {
	found map[string]bool      // differences; true once told
	ask   map[string]time.Time // attempts in doubt: not asked about before
}

// check is one cross-check at work.
type check struct {
	*Reconciler
	epoch  string
	now    time.Time
	before memory
	seed   maphash.Seed
	// recorded are the rows' attempts that have a record: at most as many as there
	// are seats, however many records the store has.
	recorded map[uint64]struct{}
	// ended are the attempts that are to be asked about again.
	ended []endedAttempt

	mu       sync.Mutex
	after    memory
	out      Checked
	untold   int
	failed   int // in a row
	problems error
	closed   bool // booking, by this check
}

// CrossCheck compares every record of the running sale with the ledger's rows,
// and the rows with their records and counters. What it may decide goes the way
// of a due row, by acknowledged answers; any other difference alarms if it is
// there on two checks in a row. Where money can move without our execute it then
// asks about attempts that have ended, of any sale; those that it does not reach,
// or gets no answer about, are the next check's. It must not run beside Sweep in
// one process. The error says why it could not look at everything; the next one
// does.
func (r *Reconciler) CrossCheck(ctx context.Context) (Checked, error) {
	r.round = r.newRound(ctx)
	c := &check{
		Reconciler: r, before: r.seen, seed: maphash.MakeSeed(), recorded: map[uint64]struct{}{},
		after: memory{found: map[string]bool{}, ask: map[string]time.Time{}},
		out:   Checked{Found: map[Kind]int{}, Actions: Report{}},
	}
	bounded, cancel := context.WithTimeout(ctx, checkBudget)
	defer cancel()
	err := c.run(bounded)
	if err != nil {
		// What was not looked at is not gone: only add to what is known.
		for key, told := range c.before.found {
			c.after.found[key] = c.after.found[key] || told
		}
		for attempt, at := range c.before.ask {
			if _, newer := c.after.ask[attempt]; !newer && len(c.after.ask) < rememberMost {
				c.after.ask[attempt] = at
			}
		}
		for _, kind := range Kinds() {
			c.out.Found[kind] = max(c.out.Found[kind], r.counted[kind])
		}
	}
	if c.untold > 0 {
		r.Log.ErrorContext(ctx, "store and ledger differ in more places than are told one by one: run the audit", "differences", c.untold)
	}
	r.seen, r.counted = c.after, c.out.Found
	r.metrics.checked(c.out.Found, err == nil)
	return c.out, err
}

func (c *check) run(ctx context.Context) error {
	// Before the ledger's epoch: a reset writes them the other way round.
	mark, err := c.Store.EpochMark(ctx)
	switch {
	case errors.Is(err, booking.ErrUnreadable):
		c.found(ctx, KindUnreadable, "mark", "error", err)
	case err != nil && !errors.Is(err, booking.ErrNotFound):
		return fmt.Errorf("cross-check: %w", err)
	}
	if c.epoch, err = c.Ledger.Epoch(ctx); err != nil {
		return fmt.Errorf("cross-check: %w", err)
	}
	if c.now, err = c.Ledger.Now(ctx); err != nil {
		return fmt.Errorf("cross-check: %w", err)
	}
	lost := mark.NewerThan(c.epoch)
	if lost {
		action, err := c.resetLost(ctx, mark)
		if err != nil {
			action = "failed"
		}
		c.did(action, err)
	}
	c.restore(ctx)
	if err := c.records(ctx); err != nil {
		return errors.Join(c.problems, err)
	}
	if err := c.rows(ctx); err != nil {
		return errors.Join(c.problems, err)
	}
	if !lost { // what has ended under another sale is not brought back into this one
		c.askEnded(ctx)
	}
	return c.problems
}

// resetLost closes booking in a sale that an acknowledged reset has ended, where a
// failover has brought it back: its seats may be the next sale's. It rests on an
// acknowledged answer, since an old primary does not know of the reset either.
func (c *check) resetLost(ctx context.Context, mark booking.EpochMark) (string, error) {
	if err := c.Ledger.Acknowledges(ctx); err != nil {
		return "", fmt.Errorf("look whether redis has lost a reset: %w", err)
	}
	if epoch, err := c.Ledger.Epoch(ctx); err != nil || epoch != c.epoch {
		return "moved", err
	}
	if c.found(ctx, KindResetLost, mark.Epoch, "epoch", c.epoch, "begun", mark.Epoch, "at", mark.At) {
		c.Log.ErrorContext(ctx, "redis has lost time: the sale in the ledger was ended by a reset; booking is being closed, and stays so until the ledger is rebuilt")
	}
	return "lost_time", c.close(ctx)
}

// restore has lists made again that a lost Redis has forgotten. Where it fails the
// rest is looked at all the same.
func (c *check) restore(ctx context.Context) {
	if c.Restore == nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, restoreBudget)
	defer cancel()
	if err := c.Restore(ctx); err != nil {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.problems = fmt.Errorf("cross-check: restore: %w", err)
	}
}

// found notes a difference; it counts, and is told, when it is certain or was
// there on the check before. It says whether it is told now for the first time.
func (c *check) found(ctx context.Context, kind Kind, key string, args ...any) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	key = string(kind) + "\n" + key
	told, again := c.before.found[key]
	counts := again || kind.certain()
	_, twice := c.after.found[key]
	if twice {
		return false
	}
	if len(c.after.found) >= rememberMost {
		if kind.certain() {
			c.out.Found[kind]++
			c.untold++
		}
		return false
	}
	c.after.found[key] = counts
	if !counts {
		return false
	}
	c.out.Found[kind]++
	if told {
		return false
	}
	c.Log.ErrorContext(ctx, "store and ledger differ", append([]any{"kind", string(kind)}, args...)...)
	return true
}

// did counts what became of a record without its row, and failures in a row.
func (c *check) did(action string, err error) {
	c.tried(action, err)
	if err != nil {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.problem(err)
	}
}

// tried is did for what the check was not asked for: that one cannot be decided is in
// the log, and makes the check no unfinished one unless nothing can be.
func (c *check) tried(action string, err error) {
	c.metrics.actions.WithLabelValues(action).Inc()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.out.Actions[action]++
	if err == nil {
		c.failed = 0
		return
	}
	if c.failed++; c.failed >= hopelessWidths*c.Width {
		c.problem(err)
	}
}

// problem is told once the check has ended; under the lock.
func (c *check) problem(err error) {
	if c.problems == nil {
		c.problems = fmt.Errorf("cross-check: %w", err) // the first is enough
	}
}

func (c *check) hash(attempt string) uint64 { return maphash.String(c.seed, attempt) }

// records looks at the running sale's records, a page at a time, each page
// against the rows as they are after it was read.
func (c *check) records(ctx context.Context) error {
	page := make([]booking.Record, 0, checkPage)
	for rec, err := range c.Store.Records(ctx) {
		if errors.Is(err, booking.ErrUnreadable) {
			c.found(ctx, KindUnreadable, rec.Attempt, "attempt", rec.Attempt, "error", err)
			c.recorded[c.hash(rec.Attempt)] = struct{}{} // there is one
			continue
		}
		if err != nil {
			return fmt.Errorf("cross-check: %w", err)
		}
		c.noteEnded(rec)
		if rec.Epoch != c.epoch {
			continue
		}
		if page = append(page, rec); len(page) == checkPage {
			if err := c.compare(ctx, page); err != nil {
				return err
			}
			page = page[:0]
		}
	}
	return c.compare(ctx, page)
}

func (c *check) compare(ctx context.Context, page []booking.Record) error {
	codes := make([]string, len(page))
	for i, rec := range page {
		codes[i] = rec.Code
	}
	rows, err := c.Ledger.RowsOf(ctx, codes)
	if err != nil {
		return fmt.Errorf("cross-check: %w", err)
	}
	var group sync.WaitGroup
	work := make(chan struct{}, c.Width)
	for _, rec := range page {
		d, there := rows[rec.Code]
		if there && d.Err != nil {
			continue // told with the rows
		}
		if there && d.Row.Attempt == rec.Attempt {
			c.recorded[c.hash(rec.Attempt)] = struct{}{}
		}
		if !c.suspicious(ctx, rec, d.Row) {
			continue
		}
		if ctx.Err() != nil {
			break
		}
		work <- struct{}{}
		group.Go(func() {
			defer func() { <-work }()
			// Begun, it comes to its end: a step that was made is also written down.
			own, cancel := context.WithTimeout(context.WithoutCancel(ctx), rowTimeout)
			defer cancel()
			c.decide(own, rec, d.Row)
		})
	}
	group.Wait()
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("cross-check: %w", err)
	}
	return nil
}

// suspicious tells whether the record asks for a decision; a mere difference is
// noted at once, and decides nothing.
func (c *check) suspicious(ctx context.Context, rec booking.Record, row booking.Row) bool {
	owns := row.Attempt == rec.Attempt
	if owns {
		c.sameOrder(ctx, rec, row)
	}
	switch {
	case rec.State == booking.StatePaid:
		return !owns || row.Phase != booking.PhasePaid || row.Payment != rec.PaymentID || row.Transaction != rec.Transaction
	case !owns:
		return rec.State == booking.StateHeld && c.now.Sub(rec.AdmittedAt) >= inFlight
	}
	differ := false
	switch row.Phase {
	case booking.PhasePaid:
		differ = c.now.Sub(time.UnixMilli(row.PaidAt)) >= inFlight // its record follows
	case booking.PhaseRefused:
		differ = row.Released && rec.State == booking.StateHeld
	case booking.PhaseNew:
	default:
		differ = rec.State == booking.StateReleased
	}
	if differ {
		c.found(ctx, KindState, rec.Attempt, "attempt", rec.Attempt, "row", string(row.Phase), "record", string(rec.State))
	}
	return false
}

// sameOrder compares what row and record of one attempt both know. None of it
// changes once there is a record, but for a deadline: the row's is extended first.
// A row that late money brought back was admitted anew, when it was paid.
func (c *check) sameOrder(ctx context.Context, rec booking.Record, row booking.Row) {
	anew := row.Phase == booking.PhasePaid && row.AdmittedAt == row.PaidAt
	var fields []string
	for _, f := range []struct {
		name    string
		differs bool
	}{
		{"payment", row.Payment != rec.PaymentID},
		{"level", row.Level != rec.Level},
		{"amount", row.Amount != rec.Amount},
		{"currency", row.Currency != rec.Currency},
		{"admitted_at", !anew && row.AdmittedAt != rec.AdmittedAt.UnixMilli()},
		{"deadline", !anew && row.Deadline < rec.Deadline.UnixMilli()},
	} {
		if f.differs {
			fields = append(fields, f.name)
		}
	}
	if len(fields) > 0 {
		c.found(ctx, KindState, rec.Attempt+" order", "attempt", rec.Attempt, "fields", strings.Join(fields, ", "))
	}
}

// decide does what a record without its row asks for. One that could not be
// decided is counted, and holds up no other.
func (c *check) decide(ctx context.Context, rec booking.Record, row booking.Row) {
	what := c.orphan
	if rec.State == booking.StatePaid {
		what = c.paid
	}
	action, err := what(ctx, rec)
	if err != nil {
		action = "failed"
		c.Log.WarnContext(ctx, "record without its row was not decided", "attempt", rec.Attempt, "error", err)
	}
	c.did(action, err)
	if rec.State == booking.StatePaid {
		return
	}
	switch action {
	case "released", "moved", "confirmed", refunded, putOff, "outage", "skipped":
		return
	}
	c.found(ctx, KindHeldRecord, rec.Attempt, "attempt", rec.Attempt, "payment", rec.PaymentID, "outcome", action)
	if row.Payment != "" {
		c.found(ctx, KindTwoLive, rec.Attempt, "attempt", rec.Attempt, "row", row.Attempt)
	}
}

// paid gets an acknowledged answer about a PAID record whose row does not look
// paid. What is not acknowledged changes nothing and is asked again by the next
// check.
func (c *check) paid(ctx context.Context, rec booking.Record) (string, error) {
	if c.hopeless() {
		return "skipped", nil
	}
	_, err := c.Ledger.Settle(ctx, rec.Code, rec.Attempt, rec.PaymentID, rec.Transaction)
	switch {
	case err == nil:
		c.found(ctx, KindForgotten, rec.Attempt, "attempt", rec.Attempt, "payment", rec.PaymentID)
		return "settled_again", nil
	case !booking.LedgerAnswered(err):
		return "", fmt.Errorf("settle a paid record again: %w", err)
	}
	// Another sale may have begun meanwhile, whose ledger never knew this record.
	if epoch, err := c.Ledger.Epoch(ctx); err != nil || epoch != c.epoch {
		return "moved", err
	}
	if c.found(ctx, KindPaidRecord, rec.Attempt, "attempt", rec.Attempt, "payment", rec.PaymentID, "error", err) {
		c.Log.ErrorContext(ctx, "redis has lost time: a paid seat is not in the ledger; booking is being closed, and stays so until the ledger is rebuilt")
	}
	return "lost_time", c.close(ctx)
}

// close closes booking, once a check, for as long as Redis has lost time.
func (c *check) close(ctx context.Context) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return nil
	}
	if err := c.Ledger.Close(ctx); err != nil {
		return fmt.Errorf("close booking, since redis has lost time: %w", err)
	}
	c.closed = true
	c.Changed()
	return nil
}

// orphan takes a HELD record whose attempt seems to own no row the way of a due
// held row, and names what became of it.
func (c *check) orphan(ctx context.Context, rec booking.Record) (string, error) {
	if c.waits(rec.Attempt) {
		c.keep(ctx, rec.CandidateHash, rec.Attempt) // it was in doubt before
		return "doubt", nil
	}
	if c.round.outage.Load() || c.hopeless() {
		return "skipped", nil // until the next check
	}
	end := "released"
	charge, err := c.query(ctx, rec.PaymentID)
	lapsed := c.now.Sub(rec.AdmittedAt) > c.Lapse+lapseMargin
	switch {
	case err != nil:
		// Without a row nobody asks again after the release: only a clear word ends it,
		// however old the payment is.
		return c.unanswered(ctx, rec, lapsed, err)
	case charge.Status == booking.ChargeCompleted:
		action, err := c.money(ctx, rec, charge)
		if action != refunded {
			return action, err
		}
		// For the seat it is not completed, and it is used up.
		end = refunded
	case !rec.ExecuteAt.IsZero() && !lapsed:
		// "Not completed" may have been said before that call came to its end.
		c.waitLonger(rec.Attempt)
		return "doubt", nil
	}
	if c.releasesPutOff() {
		return putOff, nil
	}
	switch err := c.Ledger.Release(ctx, rec.Code, rec.Attempt); {
	case err == nil:
		c.Changed()
	case errors.Is(err, booking.ErrNotOwner): // as expected, and acknowledged
	case booking.LedgerAnswered(err):
		return "moved", nil // it owns its row after all
	default:
		return "", err
	}
	action, err := c.releaseRecord(ctx, rec)
	if action == "released" {
		action = end
	}
	return action, err
}

// money confirms a completed payment. Its seat is gone, so it is late money: it
// gets a seat after all, or goes back.
func (c *check) money(ctx context.Context, rec booking.Record, charge booking.Charge) (string, error) {
	err := c.Settler.Confirm(ctx, rec.Code, rec, charge)
	switch {
	case errors.Is(err, booking.ErrRefunded) && errors.Is(err, booking.ErrSecondPayment):
		// The first has paid for the seat, which Redis has lost: for a person.
		c.waitLonger(rec.Attempt)
		return "doubt", nil
	case errors.Is(err, booking.ErrRefunded):
		return refunded, nil
	case errors.Is(err, booking.ErrInDoubt):
		c.waitLonger(rec.Attempt)
		return "doubt", nil
	case err != nil:
		return "", err
	}
	c.Changed()
	return "confirmed", nil
}

// unanswered keeps the record. An outage of the whole gateway is said once a
// check, and ends its questions. That nobody can execute a payment any more makes
// it no clearer whether somebody did, and time will not tell.
func (c *check) unanswered(ctx context.Context, rec booking.Record, lapsed bool, cause error) (string, error) {
	if errors.Is(cause, errNoTurn) {
		return "skipped", nil
	}
	if errors.Is(cause, booking.ErrNotSent) || errors.Is(cause, booking.ErrGatewayOutage) {
		if c.round.outage.CompareAndSwap(false, true) {
			c.Log.ErrorContext(ctx, "gateway cannot be reached: records without a row wait for its word", "error", cause)
		}
		return "outage", nil
	}
	if lapsed {
		c.Log.ErrorContext(ctx, "payment in doubt has lapsed: its record is kept until someone decides",
			"attempt", rec.Attempt, "payment", rec.PaymentID, "error", cause)
	}
	c.waitLonger(rec.Attempt)
	return "doubt", nil
}

// hopeless: something that all need is down.
func (c *check) hopeless() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.failed >= hopelessWidths*c.Width
}

// waits tells whether an attempt in doubt was asked about a short while ago, so
// that doubts leave the check's time to the others.
func (c *check) waits(attempt string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	at, noted := c.before.ask[attempt]
	if !noted || !c.now.Before(at) {
		return false
	}
	c.after.ask[attempt] = at
	return true
}

func (c *check) waitLonger(attempt string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.after.ask) < rememberMost {
		c.after.ask[attempt] = c.now.Add(doubtAgain)
	}
}

// rows looks at every row: has it a record, will someone look at it, do the
// counters count it.
func (c *check) rows(ctx context.Context) error {
	_, _, before, err := c.Ledger.Count(ctx)
	if err != nil {
		return fmt.Errorf("cross-check: %w", err)
	}
	levels := map[string]int{}
	page := make([]booking.DueRow, 0, checkPage)
	told := map[uint64]struct{}{} // a scan may tell a row twice
	for d, err := range c.Ledger.Rows(ctx) {
		if err != nil {
			return fmt.Errorf("cross-check: %w", err)
		}
		if _, twice := told[c.hash(d.Code)]; twice {
			continue
		}
		told[c.hash(d.Code)] = struct{}{}
		if d.Err != nil {
			c.found(ctx, KindUnreadable, "row "+booking.CandidateHash(d.Code), "candidate", booking.CandidateHash(d.Code)[:8], "error", d.Err)
			continue
		}
		levels[d.Row.Level]++ // also of one that makes no sense
		if wrong := c.misshapen(d.Row); wrong != "" {
			c.found(ctx, KindUnreadable, "row "+booking.CandidateHash(d.Code), "candidate", booking.CandidateHash(d.Code)[:8], "error", wrong)
		}
		if page = append(page, d); len(page) == checkPage {
			if err := c.look(ctx, page); err != nil {
				return err
			}
			page = page[:0]
		}
	}
	if err := c.look(ctx, page); err != nil {
		return err
	}
	rows, _, after, err := c.Ledger.Count(ctx)
	if err != nil {
		return fmt.Errorf("cross-check: %w", err)
	}
	c.counters(ctx, rows, levels, before, after)
	return nil
}

// misshapen says why no script of this sale can have left the row as it is; ""
// when one can. A rebuild keeps the sale's epoch, so its rows are no exception.
func (c *check) misshapen(row booking.Row) string {
	switch {
	case !slices.Contains(booking.Phases(), row.Phase):
		return fmt.Sprintf("phase %q is unknown", row.Phase)
	case booking.AttemptEpoch(row.Attempt) != c.epoch:
		return fmt.Sprintf("attempt %q is not one of this sale's", row.Attempt)
	}
	return ""
}

// look holds a page of rows against their records and their looks.
func (c *check) look(ctx context.Context, page []booking.DueRow) error {
	var open []string
	for _, d := range page {
		row := d.Row
		if unfinishedRow(row) {
			open = append(open, d.Code)
		}
		if row.Payment == "" || c.now.Sub(time.UnixMilli(row.AdmittedAt)) < inFlight {
			continue
		}
		if _, there := c.recorded[c.hash(row.Attempt)]; there {
			continue
		}
		switch _, err := c.Store.Record(ctx, booking.CandidateHash(d.Code), row.Attempt); {
		case errors.Is(err, booking.ErrNotFound):
			c.found(ctx, KindNoRecord, row.Attempt, "attempt", row.Attempt, "phase", string(row.Phase), "payment", row.Payment)
		case err != nil && !errors.Is(err, booking.ErrUnreadable):
			return fmt.Errorf("cross-check: %w", err)
		}
	}
	looks, err := c.Ledger.Looks(ctx, open)
	if err != nil {
		return fmt.Errorf("cross-check: %w", err)
	}
	for _, d := range page {
		if !unfinishedRow(d.Row) {
			continue
		}
		at, looked := looks[d.Code]
		switch {
		case !looked:
			c.found(ctx, KindNotLooked, d.Row.Attempt, "attempt", d.Row.Attempt, "phase", string(d.Row.Phase))
		case at.After(c.latestLook(d.Row)):
			c.found(ctx, KindTooLate, d.Row.Attempt, "attempt", d.Row.Attempt, "phase", string(d.Row.Phase), "look", at)
		}
	}
	return nil
}

// unfinishedRow: somebody must look at it again.
func unfinishedRow(row booking.Row) bool {
	return row.Phase != booking.PhasePaid || !row.RecordDone || !row.MailDone
}

// latestLook is the latest that anyone may look at an unfinished row: within the
// longest that a look is put off, from now or, where the end of the time to pay is
// waited for, from then. A damaged deadline puts that off no further than the hold.
func (c *check) latestLook(row booking.Row) time.Time {
	from := c.now
	if row.Phase == booking.PhaseHeld || row.Phase == booking.PhaseRefused {
		if end := time.UnixMilli(min(row.Deadline, row.AdmittedAt+row.Hold)); end.After(from) {
			from = end
		}
	}
	return from.Add(doubtAgain + inFlight) // now is a while ago
}

// counters holds the counters against the rows. Total and caps come from one
// reading; rows by level were counted while others admit, so a level differs
// only when it is outside what its counter was before and after, by the same
// number on two checks.
func (c *check) counters(ctx context.Context, rows int, levels map[string]int, before, after booking.Figures) {
	if after.Total != rows {
		c.found(ctx, KindCounter, "total", "counter", after.Total, "rows", rows)
	}
	if max(rows, after.Total) > after.Cap {
		c.found(ctx, KindOverCap, "total", "cap", after.Cap, "rows", rows, "counter", after.Total)
	}
	was := map[string]int{}
	for _, l := range before.Levels {
		was[l.ID] = l.Admitted
	}
	for _, l := range after.Levels {
		n := levels[l.ID]
		delete(levels, l.ID)
		if n < min(was[l.ID], l.Admitted) || n > max(was[l.ID], l.Admitted) || l.Admitted < 0 {
			c.found(ctx, KindCounter, fmt.Sprintf("%s %+d", l.ID, l.Admitted-n), "level", l.ID, "counter", l.Admitted, "rows", n)
		}
		if l.Admitted > l.Cap {
			c.found(ctx, KindOverCap, l.ID, "level", l.ID, "cap", l.Cap, "counter", l.Admitted)
		}
	}
	for level, n := range levels {
		c.found(ctx, KindCounter, level, "level", level, "rows", n, "counter", "none")
	}
}
