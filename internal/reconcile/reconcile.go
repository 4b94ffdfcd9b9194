// Package reconcile decides what lapsed and what was paid when nobody else
// will. One runner of the fleet at a time is elected, but nothing here depends
// on there being one only: every step is conditional in the ledger, and
// everything outside Redis rests on acknowledged answers.
//
// It alone gives back a seat that has a payment, and only after the gateway has
// said that the payment is not completed. In doubt it keeps the seat, looks
// again, and after a while says so loudly.
package reconcile

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/time/rate"

	"holdfast/internal/booking"
)

// Ledger is what the reconciler needs of the seat ledger. Due only reads; every
// other answer is acknowledged or booking.ErrNotAcknowledged, on which nothing
// rests: the row is still due and the next sweep repeats the step.
type Ledger interface {
	Due(ctx context.Context, skip, limit int) ([]booking.DueRow, time.Time, error)
	Undo(ctx context.Context, code, attempt string) error
	Queued(ctx context.Context, code, attempt string) error
	TakeOverPay(ctx context.Context, code, attempt, payment, token string, length time.Duration) (booking.Row, time.Time, error)
	Release(ctx context.Context, code, attempt string) error
	Postpone(ctx context.Context, code, attempt string, seen booking.Phase, d time.Duration, count booking.Count) error
	PaymentOf(ctx context.Context, attempt string) (booking.Payment, error)
	// ReleasesPutOff: as far as this process has heard, replicas do not acknowledge,
	// or only just do again, so payers may not have been able to pay.
	ReleasesPutOff() bool
	// Acknowledges asks the replicas by a write of its own; booking.ErrNotAcknowledged
	// when too few confirm it.
	Acknowledges(ctx context.Context) error
	Census
}

// Gateway answers what became of a payment, and executes one at most once.
// booking.ErrNotSent says that nothing happened.
type Gateway interface {
	Execute(ctx context.Context, payment string) (booking.Charge, error)
	Query(ctx context.Context, payment string) (booking.Charge, error)
}

// Settler is where payments end; see package settle. Every method is safe to
// repeat.
type Settler interface {
	// Confirm is booking.ErrRefunded when the money goes back: the payment pays for no
	// seat. booking.ErrInDoubt is for a person.
	Confirm(ctx context.Context, code string, rec booking.Record, charge booking.Charge) error
	Refuse(ctx context.Context, code string, rec booking.Record, token, gatewayCode string) error
	// ReleaseRecord is booking.ErrAnnounced, as Refuse may be, when the record's
	// execute_at is not rec's.
	ReleaseRecord(ctx context.Context, rec booking.Record, reason string) error
	// Resume writes a paid row's record.
	Resume(ctx context.Context, code string, row booking.Row) error
	// SendMail sends a paid row's mail, and logs what came of it. booking.ErrUnsendable:
	// a person must act; after any other error a later call sends it.
	SendMail(ctx context.Context, code, attempt string) error
}

// Store puts a record if the attempt has none, and notes execute calls in it.
// Safe to repeat. The cross-check scans its records.
type Store interface {
	Announce(ctx context.Context, r booking.Record, at time.Time) (booking.Record, error)
	PutHeld(ctx context.Context, r booking.Record) (booking.Record, bool, error)
	Record(ctx context.Context, candidateHash, attempt string) (booking.Record, error)
	Records(ctx context.Context) iter.Seq2[booking.Record, error]
	// EpochMark is the latest epoch that a reset has begun; booking.ErrNotFound.
	EpochMark(ctx context.Context) (booking.EpochMark, error)
}

// Ended notes in a RELEASED record when the gateway was asked about its payment, on
// condition of the record as it was seen. booking.ErrAlreadyPaid and
// booking.ErrNotFound say that there is nothing to note any more. Safe to repeat.
type Ended interface {
	Asked(ctx context.Context, seen booking.Record, at time.Time) error
}

// Keeper takes the TTL of a HELD record away, since what is in doubt is never
// housekeeping's. Nil also when it is no longer HELD, or gone. Safe to repeat.
type Keeper interface {
	KeepHeld(ctx context.Context, candidateHash, attempt string) error
}

// Deps is what a Reconciler is made of.
type Deps struct {
	Ledger  Ledger
	Gateway Gateway
	Settler Settler
	Store   Store
	// Every is the time between two sweeps, Budget what one may take.
	Every, Budget time.Duration
	// CheckEvery is the time between two cross-checks; 0 is 5 minutes.
	CheckEvery time.Duration
	// Width is how many rows are worked on at a time.
	Width int
	// Restore has what is open in the store, and only listed in Redis, listed again;
	// nil when there is nothing such. Every cross-check calls it once.
	Restore func(ctx context.Context) error
	// AfterSweep is other work of the elected runner: after a sweep each is called,
	// one at a time and at most Budget long, beside the next sweeps, which do not wait
	// for it. A sweep that ends meanwhile calls none.
	AfterSweep []Work
	// QueriesPerSecond bounds the status queries of the fleet; since one runner is
	// elected, the bound is this process's.
	QueriesPerSecond float64
	// ExecuteTimeout bounds one execute call; Lapse is how long after creation the
	// gateway may still execute a payment.
	ExecuteTimeout, Lapse time.Duration
	// Keeper is the booking store once more; nil leaves a TTL on what is in doubt.
	Keeper Keeper
	// Ended is the booking store once more, where money can move without our execute
	// (booking.PaymentTerms): every cross-check then also asks about attempts that
	// have ended. nil where it cannot, and nobody asks.
	Ended Ended
	// Changed is called after a seat was given back; it must not block.
	Changed    func()
	Log        *slog.Logger
	Registerer prometheus.Registerer
}

// Reconciler sweeps and cross-checks. Of Sweep, CrossCheck and Run only one may
// run at a time in one process.
type Reconciler struct {
	Deps
	limit   *rate.Limiter
	metrics *metrics
	round   *round // the sweep or check at work
	hint    chan struct{}
	seen    memory       // of the last cross-check
	counted map[Kind]int // by the last cross-check
}

const (
	payingMargin = 5 * time.Second  // 'paying' outlasts its execute call by this
	rowTimeout   = 15 * time.Second // one row, beside its execute call
	retrySoon    = 20 * time.Second // after an answer that never came
	retryOutage  = time.Minute      // after the whole gateway could not be reached
	doubtAgain   = 10 * time.Minute // in doubt, and after three answers that never came
	lapseMargin  = time.Minute      // a payment is created within this after admission
	probeTimeout = 2 * time.Second  // whether the replicas acknowledge
	missLimit    = 3

	// A list call reads this many widths of rows; after that many widths of failures
	// in a row a sweep gives up, since something that all rows need is down.
	pageWidths, hopelessWidths = 4, 2

	unfinished = 5 * time.Minute // between two "payer not finished" that are final together
)

// New checks its dependencies.
func New(d Deps) (*Reconciler, error) {
	if d.Ledger == nil || d.Gateway == nil || d.Settler == nil || d.Store == nil || d.Log == nil || d.Registerer == nil {
		return nil, errors.New("reconcile: a dependency is missing")
	}
	if d.Every <= 0 || d.Budget <= 0 || d.Width < 1 || d.QueriesPerSecond <= 0 || d.ExecuteTimeout <= 0 || d.Lapse <= 0 {
		return nil, errors.New("reconcile: every, budget, width, query rate, execute timeout and lapse must be positive")
	}
	if d.Changed == nil {
		d.Changed = func() {}
	}
	if d.CheckEvery <= 0 {
		d.CheckEvery = checkEvery
	}
	return &Reconciler{
		Deps:    d,
		hint:    make(chan struct{}, 1),
		limit:   rate.NewLimiter(rate.Limit(d.QueriesPerSecond), d.Width),
		metrics: newMetrics(d.Registerer),
	}, nil
}

// Run sweeps and cross-checks until the context ends, one after the other; it
// begins with both, since a change of the runner is often a change of much else.
// It returns nil, when the work beside the sweeps has ended too.
func (r *Reconciler) Run(ctx context.Context) error {
	r.metrics.running.Set(1)
	defer r.metrics.running.Set(0)
	tick, checks := time.NewTicker(r.Every), time.NewTicker(r.CheckEvery)
	defer tick.Stop()
	defer checks.Stop()
	var beside sync.WaitGroup
	defer beside.Wait()
	var busy atomic.Bool
	sweep := func() {
		began := time.Now()
		report, err := r.Sweep(ctx)
		r.line(ctx, "sweep", began, report, err)
		if len(r.AfterSweep) > 0 && busy.CompareAndSwap(false, true) {
			beside.Go(func() {
				defer busy.Store(false)
				r.afterSweep(ctx)
			})
		}
	}
	// A check that could not finish, because a new primary has no replica yet for
	// example, has not done what it was asked for: it is owed until one has.
	owed := false
	check := func() {
		began := time.Now()
		out, err := r.CrossCheck(ctx)
		owed = err != nil || out.Actions[putOff] > 0
		r.line(ctx, "cross-check", began, out.Actions, err, figures("found", out.Found))
	}
	sweep()
	check()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
			sweep()
			if owed {
				check()
			}
		case <-checks.C:
			check()
		case <-r.hint:
			check()
		}
	}
}

// afterSweep does the runner's other work. None of it keeps another, or the rows,
// from their turn.
func (r *Reconciler) afterSweep(ctx context.Context) {
	for _, work := range r.AfterSweep {
		if ctx.Err() != nil {
			return
		}
		own, cancel := context.WithTimeout(ctx, r.Budget)
		began := time.Now()
		did, err := work.Do(own)
		cancel()
		r.line(ctx, work.Name, began, did, err)
	}
}

// Report counts what a sweep did, by action.
type Report map[string]int

// Actions that more than one place knows.
const (
	putOff     = "put_off"
	damaged    = "damaged"
	mailFailed = "mail_failed"
)

// round is what one sweep or check has learnt that holds for all of it.
type round struct {
	outage atomic.Bool // of the gateway, and it was said
	// acknowledged asks the replicas, the first time it is called.
	acknowledged func() error
	unsent       atomic.Int64 // mails in a row

	mu       sync.Mutex
	troubles map[string]trouble // by action
}

// trouble is what befell many and is said once.
type trouble struct {
	n     int
	first error
}

func (r *Reconciler) newRound(ctx context.Context) *round {
	return &round{troubles: map[string]trouble{}, acknowledged: sync.OnceValue(func() error {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), probeTimeout)
		defer cancel()
		err := r.Ledger.Acknowledges(ctx)
		if err != nil {
			r.Log.ErrorContext(ctx, "replicas do not acknowledge: seats past their deadline are kept meanwhile", "error", err)
		}
		return err
	})}
}

func (r *round) note(action string, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	t := r.troubles[action]
	if t.n++; t.first == nil {
		t.first = err
	}
	r.troubles[action] = t
}

// tell says what was noted.
func (r *Reconciler) tell(ctx context.Context) {
	if t := r.round.troubles[damaged]; t.n > 0 {
		r.Log.ErrorContext(ctx, "due rows are missing or cannot be read: run the audit", "rows", t.n, "first", t.first)
	}
}

// releasesPutOff tells whether held seats must be kept now. It has the replicas
// asked, since this process may have admitted nobody, or have just begun.
func (r *Reconciler) releasesPutOff() bool {
	return r.round.acknowledged() != nil || r.Ledger.ReleasesPutOff()
}

// Sweep looks at every row that is due, the oldest look first. After the
// sweep's budget it starts no more; rows at work finish on contexts of their
// own, since money may move in them. A row that fails stays due, holds up no
// other, and is counted in the report as "failed"; many in a row end the sweep. A
// row that is damaged or whose mail fails says nothing of the others: it is looked
// at again later. The error says why the sweep itself could not go on.
func (r *Reconciler) Sweep(ctx context.Context) (Report, error) {
	sweep, cancel := context.WithTimeout(ctx, r.Budget)
	defer cancel()
	r.round = r.newRound(ctx)
	var (
		mu     sync.Mutex
		report = Report{}
		looked = map[string]bool{}
		busy   = map[string]bool{} // by code
		ended  = make(chan struct{}, r.Width)
		atWork = 0
		page   = pageWidths * r.Width
		limit  = page
		failed int
	)
	work := func(d booking.DueRow, now time.Time) {
		own, cancel := context.WithTimeout(context.WithoutCancel(ctx), r.ExecuteTimeout+rowTimeout)
		defer cancel()
		action, err := r.row(own, d, now)
		if errors.Is(err, booking.ErrLedgerDamaged) {
			action, err = r.setAside(own, d, err)
		}
		if err != nil {
			action = "failed"
			r.Log.WarnContext(ctx, "row was not finished", "attempt", d.Row.Attempt, "phase", string(d.Row.Phase), "error", err)
		}
		r.metrics.actions.WithLabelValues(action).Inc()
		mu.Lock()
		defer mu.Unlock()
		report[action]++
		delete(busy, d.Code)
		switch {
		case err != nil:
			failed++
		case action != damaged:
			failed = 0
		}
	}
	hopeless := func() bool {
		mu.Lock()
		defer mu.Unlock()
		return failed >= hopelessWidths*r.Width
	}
	// begin tells whether nobody is at work on the code: a row that has moved may be
	// due again before its step has come to its end.
	begin := func(code string) bool {
		mu.Lock()
		defer mu.Unlock()
		there := busy[code]
		busy[code] = true
		return !there
	}
	wait := func() { <-ended; atWork-- }
	finish := func(err error) (Report, error) {
		for atWork > 0 {
			wait()
		}
		r.tell(ctx)
		return report, err
	}
	for {
		due, now, err := r.Ledger.Due(sweep, 0, limit)
		if err != nil {
			return finish(fmt.Errorf("list due rows: %w", err))
		}
		known := 0
		for _, d := range due {
			key := d.Code + "\n" + d.Row.Attempt + "\n" + string(d.Row.Phase)
			if looked[key] {
				known++ // at work, or failed in this sweep
				continue
			}
			for atWork >= r.Width {
				wait()
			}
			if !begin(d.Code) {
				known++ // listed again when that has ended
				continue
			}
			looked[key] = true
			if sweep.Err() != nil {
				return finish(fmt.Errorf("sweep: %w", sweep.Err()))
			}
			if hopeless() {
				return finish(fmt.Errorf("sweep: %d rows in a row failed", hopelessWidths*r.Width))
			}
			atWork++
			go func() { work(d, now); ended <- struct{}{} }()
		}
		switch {
		case known < len(due):
		case atWork > 0:
			wait()
		case len(due) < limit:
			r.metrics.lastSuccess.SetToCurrentTime()
			return finish(nil)
		}
		limit = known + page
	}
}

// row does what its phase asks for and names it.
func (r *Reconciler) row(ctx context.Context, d booking.DueRow, now time.Time) (string, error) {
	if d.Err != nil {
		return "", d.Err
	}
	row := d.Row
	if row.Payment == "" {
		return r.undo(ctx, d)
	}
	if row.Phase == booking.PhasePaid {
		return r.resume(ctx, d)
	}
	rec, err := r.record(ctx, d)
	if err != nil {
		return "", err
	}
	switch row.Phase {
	case booking.PhasePayable:
		if now.UnixMilli() < row.Deadline {
			return "queued", r.Ledger.Queued(ctx, d.Code, row.Attempt)
		}
		return r.lapsed(ctx, d, rec, now)
	case booking.PhaseRefused:
		if now.UnixMilli() < row.Deadline {
			// Its record is not known to be ended; the row's own token gets the answer
			// acknowledged again.
			return r.refuse(ctx, d, rec, row.EndedBy, "")
		}
		return r.lapsed(ctx, d, rec, now)
	case booking.PhaseHeld:
		return r.lapsed(ctx, d, rec, now)
	case booking.PhasePaying:
		return r.paying(ctx, d, rec, now)
	}
	return "", fmt.Errorf("row is %q: %w", row.Phase, booking.ErrLedgerDamaged)
}

// setAside has a row that nobody can decide looked at later, so that it does not
// crowd out the others.
func (r *Reconciler) setAside(ctx context.Context, d booking.DueRow, cause error) (string, error) {
	r.round.note(damaged, cause)
	err := r.postpone(ctx, d, doubtAgain, booking.CountNothing)
	if errors.Is(err, booking.ErrLedgerDamaged) {
		err = nil // its look is put off all the same
	}
	return damaged, err
}

// resume finishes what is missing of a paid row. When so many mails have failed
// in a row that the provider must be down, this round tries no more: a seat past
// its deadline does not wait for mails.
func (r *Reconciler) resume(ctx context.Context, d booking.DueRow) (string, error) {
	if err := r.Settler.Resume(ctx, d.Code, d.Row); err != nil {
		return "", err
	}
	// The row is looked at again in a minute, unless its mail is done now.
	if r.round.unsent.Load() >= int64(r.Width) {
		return "mail_put_off", nil
	}
	err := r.Settler.SendMail(ctx, d.Code, d.Row.Attempt)
	switch {
	case err == nil:
		r.round.unsent.Store(0)
		return "resumed", nil
	case errors.Is(err, booking.ErrUnsendable):
		return "unsendable", r.postpone(ctx, d, doubtAgain, booking.CountNothing)
	}
	r.round.unsent.Add(1)
	return mailFailed, nil
}

func (r *Reconciler) undo(ctx context.Context, d booking.DueRow) (string, error) {
	err := r.Ledger.Undo(ctx, d.Code, d.Row.Attempt)
	if errors.Is(err, booking.ErrNotOwner) || errors.Is(err, booking.ErrHasPayment) {
		return "moved", nil // someone else was faster
	}
	if err == nil {
		r.Changed()
	}
	return "undone", err
}

// record puts the attempt's record if there is none, so that no payment can be
// without a trace, and returns the record as it was ordered, with the execute_at
// that it has now: what is asked of the gateway afterwards is younger than that.
func (r *Reconciler) record(ctx context.Context, d booking.DueRow) (booking.Record, error) {
	p, err := r.Ledger.PaymentOf(ctx, d.Row.Attempt)
	if err != nil && !errors.Is(err, booking.ErrNotFound) && !errors.Is(err, booking.ErrUnreadable) {
		return booking.Record{}, err
	}
	rec := d.Row.HeldRecord(d.Code, p.URL, p.Signature)
	there, _, err := r.Store.PutHeld(ctx, rec)
	switch {
	case errors.Is(err, booking.ErrUnreadable):
		// There is one, so the payment has its trace. It keeps no seat.
		r.Log.ErrorContext(ctx, "record cannot be read: repair it; its seat goes the way of the row",
			"attempt", rec.Attempt, "payment", rec.PaymentID, "error", err)
	case err != nil:
		return booking.Record{}, fmt.Errorf("put record: %w", err)
	}
	rec.ExecuteAt = there.ExecuteAt
	return rec, nil
}

// lapsed asks the gateway once about a row past its deadline: completed is
// confirmed, anything else that is an answer gives the seat back. A rebuilt row
// whose execute call had been announced goes the way of a paying one: an answer
// that was true before the call ended says nothing.
func (r *Reconciler) lapsed(ctx context.Context, d booking.DueRow, rec booking.Record, now time.Time) (string, error) {
	if d.Row.Doubt {
		return r.paying(ctx, d, rec, now)
	}
	charge, err := r.query(ctx, rec.PaymentID)
	if err != nil {
		return r.missed(ctx, d, err)
	}
	if charge.Status == booking.ChargeCompleted {
		action, err := r.confirm(ctx, d, rec, charge)
		if action != refunded {
			return action, err
		}
		// For the seat it is not completed.
	}
	if r.releasesPutOff() {
		return putOff, nil
	}
	switch err := r.Ledger.Release(ctx, d.Code, d.Row.Attempt); {
	case err == nil:
		r.Changed()
	case errors.Is(err, booking.ErrNotOwner): // given back before
	case booking.LedgerAnswered(err):
		return "moved", nil // paid or being paid meanwhile
	default:
		return "", err
	}
	return r.releaseRecord(ctx, rec)
}

// releaseRecord ends the record of a seat that was given back. An execute call
// that was announced since the record was read leaves it as it is: the cross-check
// looks again.
func (r *Reconciler) releaseRecord(ctx context.Context, rec booking.Record) (string, error) {
	err := r.Settler.ReleaseRecord(ctx, rec, booking.ReasonLapsed)
	if errors.Is(err, booking.ErrAnnounced) {
		r.Log.WarnContext(ctx, "record is kept: an execute call was announced meanwhile", "attempt", rec.Attempt, "error", err)
		return "moved", nil
	}
	return "released", err
}

// refuse ends a payment that is over. When an execute call was announced since its
// record was read, the row's next look reads it again.
func (r *Reconciler) refuse(ctx context.Context, d booking.DueRow, rec booking.Record, token, gatewayCode string) (string, error) {
	err := r.Settler.Refuse(ctx, d.Code, rec, token, gatewayCode)
	if errors.Is(err, booking.ErrAnnounced) {
		return "moved", nil
	}
	return "refused", err
}

// paying takes over a row whose execute call must have ended, then asks. It
// never releases in the same step.
func (r *Reconciler) paying(ctx context.Context, d booking.DueRow, rec booking.Record, now time.Time) (string, error) {
	token, end := rand.Text(), time.Now().Add(r.ExecuteTimeout)
	row, _, err := r.Ledger.TakeOverPay(ctx, d.Code, d.Row.Attempt, rec.PaymentID, token, r.ExecuteTimeout+payingMargin)
	if err != nil {
		if booking.LedgerAnswered(err) {
			return "moved", nil
		}
		return "", err
	}
	d.Row = row
	lapsed := now.Sub(time.UnixMilli(row.AdmittedAt)) > r.Lapse+lapseMargin
	charge, err := r.query(ctx, rec.PaymentID)
	switch {
	case lapsed && charge.Status == booking.ChargeUnknown: // an answer, and not Completed; its release asks again
		return r.refuse(ctx, d, rec, token, charge.Code)
	case err != nil:
		return r.missed(ctx, d, err)
	case charge.Status == booking.ChargeCompleted:
		return r.confirmPaying(ctx, d, rec, token, charge)
	case charge.Status == booking.ChargeRefused || lapsed:
		return r.refuse(ctx, d, rec, token, charge.Code)
	}
	// The gateway executes a payment at most once, so executing again ends most
	// doubts: it pays, is refused, or hears that the payer has not finished.
	noted, err := r.Store.Announce(ctx, rec, now)
	if err != nil {
		if errors.Is(err, booking.ErrAlreadyPaid) || errors.Is(err, booking.ErrNotOwner) || errors.Is(err, booking.ErrOtherThanOrdered) {
			return r.doubt(ctx, d, fmt.Errorf("record and row disagree: %w", err))
		}
		return "", fmt.Errorf("announce execute: %w", err)
	}
	rec.ExecuteAt = noted.ExecuteAt
	call, cancel := context.WithDeadline(ctx, end)
	defer cancel()
	charge, err = r.Gateway.Execute(call, rec.PaymentID)
	switch {
	case errors.Is(err, booking.ErrNotSent), errors.Is(err, booking.ErrGatewayOutage):
		return r.missed(ctx, d, err)
	case err != nil:
		return r.doubt(ctx, d, err)
	case charge.Status == booking.ChargeCompleted:
		return r.confirmPaying(ctx, d, rec, token, charge)
	case charge.Status == booking.ChargeRefused:
		return r.refuse(ctx, d, rec, token, charge.Code)
	case charge.Status == booking.ChargeUnfinished:
		first := row.UnfinishedAt
		if first > 0 && now.Sub(time.UnixMilli(first)) >= unfinished {
			return r.refuse(ctx, d, rec, token, charge.Code)
		}
		return "unfinished", r.Ledger.Postpone(ctx, d.Code, row.Attempt, booking.PhasePaying, unfinished, booking.CountUnfinished)
	}
	return r.doubt(ctx, d, fmt.Errorf("execute answered %s: %w", charge.Code, booking.ErrInDoubt))
}

// refunded is money that goes back: for the seat, if the attempt still has it, its
// payment is not completed.
const refunded = "refunded"

// confirm settles a completed payment. An answer that only a person understands
// keeps the row in doubt.
func (r *Reconciler) confirm(ctx context.Context, d booking.DueRow, rec booking.Record, charge booking.Charge) (string, error) {
	err := r.Settler.Confirm(ctx, d.Code, rec, charge)
	switch {
	case errors.Is(err, booking.ErrRefunded) && errors.Is(err, booking.ErrSecondPayment):
		// The first has paid for the seat, also if Redis has lost that since.
		return r.doubt(ctx, d, err)
	case errors.Is(err, booking.ErrRefunded):
		return refunded, nil
	case errors.Is(err, booking.ErrInDoubt):
		return r.doubt(ctx, d, err)
	}
	return "confirmed", err
}

// confirmPaying is confirm for a row that this sweep has taken over: a payment
// whose money goes back is over, as a refused one is.
func (r *Reconciler) confirmPaying(ctx context.Context, d booking.DueRow, rec booking.Record, token string, charge booking.Charge) (string, error) {
	action, err := r.confirm(ctx, d, rec, charge)
	if action != refunded {
		return action, err
	}
	action, err = r.refuse(ctx, d, rec, token, booking.ReasonRefund)
	if booking.LedgerAnswered(err) {
		return refunded, nil // the row is not this payment's any more
	}
	return action, err
}

// missed postpones after an answer that never came: briefly, and after three in
// a row as a doubt. An outage of the whole gateway counts against no row and is
// said once a sweep.
func (r *Reconciler) missed(ctx context.Context, d booking.DueRow, cause error) (string, error) {
	if ctx.Err() != nil || errors.Is(cause, errNoTurn) {
		return "", cause
	}
	if errors.Is(cause, booking.ErrNotSent) || errors.Is(cause, booking.ErrGatewayOutage) {
		if r.round.outage.CompareAndSwap(false, true) {
			r.Log.ErrorContext(ctx, "gateway cannot be reached: seats past their deadline wait for its word", "error", cause)
		}
		return "outage", r.postpone(ctx, d, retryOutage, booking.CountNothing)
	}
	if d.Row.Misses+1 >= missLimit {
		return r.doubt(ctx, d, cause)
	}
	return "missed", r.postpone(ctx, d, retrySoon, booking.CountMiss)
}

// doubt keeps the seat and looks again later; after three extensions it calls a
// human, and goes on asking.
func (r *Reconciler) doubt(ctx context.Context, d booking.DueRow, cause error) (string, error) {
	if ctx.Err() != nil {
		return "", ctx.Err()
	}
	if d.Row.Looks >= booking.DoubtLooks {
		r.Log.ErrorContext(ctx, "payment in doubt: its seat is kept until someone decides",
			"attempt", d.Row.Attempt, "payment", d.Row.Payment, "extensions", d.Row.Looks, "error", cause)
		r.keep(ctx, booking.CandidateHash(d.Code), d.Row.Attempt)
	}
	return "doubt", r.postpone(ctx, d, doubtAgain, booking.CountLook)
}

// keep keeps a record in doubt from housekeeping; what fails is tried at the next look.
func (r *Reconciler) keep(ctx context.Context, hash, attempt string) {
	if r.Keeper == nil {
		return
	}
	if err := r.Keeper.KeepHeld(ctx, hash, attempt); err != nil {
		r.Log.WarnContext(ctx, "record in doubt still has a TTL", "attempt", attempt, "error", err)
	}
}

func (r *Reconciler) postpone(ctx context.Context, d booking.DueRow, by time.Duration, count booking.Count) error {
	err := r.Ledger.Postpone(ctx, d.Code, d.Row.Attempt, d.Row.Phase, by, count)
	if errors.Is(err, booking.ErrNotOwner) {
		return nil // moved meanwhile
	}
	return err
}

// errNoTurn says that the fleet's rate left no time to ask: the row stays due.
var errNoTurn = errors.New("no turn to ask the gateway in time")

// query asks under the fleet's rate. An answer that is not clear is an error, too,
// beside the charge as it was told.
func (r *Reconciler) query(ctx context.Context, payment string) (booking.Charge, error) {
	if err := r.limit.Wait(ctx); err != nil {
		return booking.Charge{}, fmt.Errorf("%w: %w", errNoTurn, err)
	}
	return r.ask(ctx, payment)
}

// ask is query when the turn is taken.
func (r *Reconciler) ask(ctx context.Context, payment string) (booking.Charge, error) {
	c, err := r.Gateway.Query(ctx, payment)
	if err != nil {
		return c, err
	}
	switch c.Status {
	case booking.ChargeCompleted, booking.ChargeRefused, booking.ChargeUnfinished, booking.ChargeOpen:
		return c, nil
	}
	return c, fmt.Errorf("query answered %q, code %s: %w", c.Status, c.Code, booking.ErrInDoubt)
}
