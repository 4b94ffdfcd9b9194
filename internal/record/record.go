// Package record is the worker: it takes queued bookings and puts each as HELD
// into the booking store if its attempt has no record yet. It never reads or
// touches counters or the seat ledger.
//
// A message is done when its attempt has a record in whatever state: put now,
// put by an earlier delivery, already paid, already released. Then it is
// deleted, in batches. Within a group messages are handled and deleted in order;
// groups do not wait for each other. Everything here may be repeated, so a
// worker may be killed at any moment.
//
// Fail mode: closed, by keeping. A message that cannot be read, or whose record
// cannot be written although the store answers, stays in the queue, which counts
// its deliveries and in the end makes it a dead letter; those behind it in its
// group wait, but for one that would become a dead letter along with it. While
// the store does not answer, no message is received, and those in hand are kept
// hidden and tried again, so that an outage of any length spends no deliveries.
// Clock: Deps.Now for ages and durations in logs, and for when the queue's figures were
// read, which are not shown while they cannot be; time-outs are real time.
package record

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"holdfast/internal/booking"
)

const (
	batch = 10 // messages of one receive, the most a queue gives
	// wait is the length of a long poll, which a driver that cannot break one off
	// lets end at a stop.
	wait = 5 * time.Second
	// callTimeout bounds one call of the store or the queue.
	callTimeout = 10 * time.Second
	// settleTimeout bounds deleting and giving back a batch. A stop takes the
	// drain budget and this.
	settleTimeout = 5 * time.Second
	// watchEvery is how old the queue's figures in the metrics get.
	watchEvery = 5 * time.Second
)

// Queue is what the worker needs of the booking queue; safe for concurrent use.
type Queue interface {
	// Receive takes up to max messages, in order within a group, and waits for
	// the first. When ctx ends it has taken nothing.
	Receive(ctx context.Context, max int, wait time.Duration) ([]booking.Delivery, error)
	// Delete removes messages and returns the receipts it could not use. Safe to
	// repeat.
	Delete(ctx context.Context, receipts []string) (failed []string, err error)
	// Delay hides a message in flight for d from now; 0 gives it back at once.
	Delay(ctx context.Context, receipt string, d time.Duration) error
	// Stats counts the queue.
	Stats(ctx context.Context) (booking.QueueStats, error)
}

// Store is what the worker needs of the booking store; safe for concurrent use
// and safe to repeat.
type Store interface {
	// PutHeld puts the record if its attempt has none (created), else returns the
	// one that is there. ErrUnreadable when that one cannot be read.
	PutHeld(ctx context.Context, rec booking.Record) (booking.Record, bool, error)
	// Ping tells whether the store takes writes now. After a PutHeld that failed
	// it tells an outage from a record that cannot be written.
	Ping(ctx context.Context) error
}

// Deps is what a Worker is made of. The first five are required.
type Deps struct {
	Queue Queue
	Store Store
	Log   *slog.Logger
	Reg   prometheus.Registerer
	Now   func() time.Time
	// Pollers is how many batches are in hand at most: the more, the more writes share
	// a flush of the disk. Default 8.
	Pollers int
	// Visibility and MaxReceives are the queue's settings. Default 60 s and 5.
	Visibility  time.Duration
	MaxReceives int
	// DrainBudget is how long Run works on what is in hand after its context has
	// ended. Default 20 s.
	DrainBudget time.Duration
}

// Worker moves bookings from the queue to the store. Safe for concurrent use.
type Worker struct {
	deps    Deps
	metrics metrics
	outage  outage
	tidying chan struct{}  // one a batch that is done and not yet deleted
	tidiers sync.WaitGroup // who delete them
}

// New makes a worker and registers its metrics. It starts nothing.
func New(d Deps) (*Worker, error) {
	if d.Queue == nil || d.Store == nil || d.Log == nil || d.Reg == nil || d.Now == nil {
		return nil, errors.New("record: queue, store, log, registry or clock is missing")
	}
	d.Pollers = cmp.Or(d.Pollers, 8)
	d.Visibility = cmp.Or(d.Visibility, time.Minute)
	d.MaxReceives = cmp.Or(d.MaxReceives, 5)
	d.DrainBudget = cmp.Or(d.DrainBudget, 20*time.Second)
	if d.Pollers < 1 || d.Visibility < time.Second || d.MaxReceives < 1 || d.DrainBudget < 0 {
		return nil, fmt.Errorf("record: %d pollers, visibility %s, %d receives, drain %s: out of range", d.Pollers, d.Visibility, d.MaxReceives, d.DrainBudget)
	}
	m, err := newMetrics(d.Reg)
	if err != nil {
		return nil, fmt.Errorf("record: %w", err)
	}
	return &Worker{deps: d, metrics: m, outage: outage{prober: make(chan struct{}, 1)}, tidying: make(chan struct{}, 2*d.Pollers)}, nil
}

// Run works until ctx ends. Then it stops receiving, finishes and deletes what
// is in hand within the drain budget, and gives the rest back to the queue. The
// error is always nil.
func (w *Worker) Run(ctx context.Context) error {
	// What is in hand is worth finishing after ctx has ended, for a while.
	work, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	stop := context.AfterFunc(ctx, func() {
		select {
		case <-work.Done():
		case <-time.After(w.deps.DrainBudget):
			cancel()
		}
	})
	defer stop()

	var wg sync.WaitGroup
	for range w.deps.Pollers {
		wg.Go(func() { w.poll(ctx, work) })
	}
	wg.Go(func() { w.watch(ctx) })
	wg.Wait()
	w.tidiers.Wait()
	return nil
}

// poll receives under ctx and handles under work.
func (w *Worker) poll(ctx, work context.Context) {
	for tries := 0; ctx.Err() == nil; {
		if w.outage.wait(ctx) != nil {
			return
		}
		ds, err := w.deps.Queue.Receive(ctx, batch, wait)
		if err != nil && ctx.Err() == nil {
			w.deps.Log.WarnContext(ctx, "receive bookings", "error", err)
			tries++
			sleep(ctx, backoff(tries))
		}
		if err == nil {
			tries = 0
		}
		w.handle(ctx, work, ds)
	}
}

// Drain works until the queue is empty, neither waiting nor in flight, and
// returns how many messages it has done. Dead letters do not count as in the
// queue. The error is the context's when that ends first, or the queue's.
func (w *Worker) Drain(ctx context.Context) (int, error) {
	defer w.tidiers.Wait()
	ctx, cancel := context.WithCancel(ctx) // what is still to be deleted does not outlast it for long
	defer cancel()
	done := 0
	for {
		if err := w.outage.wait(ctx); err != nil {
			return done, fmt.Errorf("drain queue: %w", err)
		}
		ds, err := w.deps.Queue.Receive(ctx, batch, time.Second)
		done += w.handle(ctx, ctx, ds)
		if err != nil {
			return done, fmt.Errorf("drain queue: %w", err)
		}
		if len(ds) > 0 {
			continue
		}
		s, err := w.stats(ctx)
		if err != nil {
			return done, fmt.Errorf("drain queue: %w", err)
		}
		if s.Waiting+s.InFlight == 0 {
			return done, nil
		}
	}
}

// handle works on one received batch, its groups side by side, and returns how
// many messages were done. When work ends it gives back what is not done; once stop has
// ended too, there is settleTimeout for telling the queue.
func (w *Worker) handle(stop, work context.Context, ds []booking.Delivery) int {
	if len(ds) == 0 {
		return 0
	}
	release := w.keep(work, ds)
	var order []string
	groups := map[string][]booking.Delivery{}
	for _, d := range ds {
		if groups[d.Group] == nil {
			order = append(order, d.Group)
		}
		groups[d.Group] = append(groups[d.Group], d)
	}
	results := make([]result, len(order))
	var wg sync.WaitGroup
	for i, g := range order {
		wg.Go(func() { results[i] = w.group(work, groups[g]) })
	}
	wg.Wait()
	release()

	// Past this point the work is done, and only telling the queue is left.
	telling, cancel := context.WithTimeout(context.WithoutCancel(work), settleTimeout)
	defer cancel()
	var done []string
	for _, r := range results {
		done = append(done, r.done...)
	}
	undeleted := w.remove(telling, done)
	for _, r := range results {
		for _, receipt := range r.left {
			if err := w.deps.Queue.Delay(telling, receipt, r.after); err != nil { // it comes back by itself, later
				w.deps.Log.WarnContext(telling, "give a booking back to the queue", "error", err)
			}
		}
	}
	w.removeLater(stop, undeleted)
	return len(done)
}

// result is what became of one group's messages, as receipts.
type result struct {
	done  []string
	left  []string
	after time.Duration // when what is left should come again
}

// group handles messages of one group in order. Behind one that fails the others
// wait for its next delivery, so that nothing is deleted out of order; but they
// are delivered along with it each time, and one on its last delivery would
// become a dead letter through no fault of its own: it is handled.
func (w *Worker) group(ctx context.Context, ds []booking.Delivery) result {
	var r result
	for _, d := range ds {
		j := job{Delivery: d, begun: w.deps.Now()}
		switch {
		case ctx.Err() != nil:
			j.outcome = outcomeReturned
		case len(r.left) > 0 && d.Receives < w.deps.MaxReceives:
			j.outcome = outcomeBehind
		default:
			w.do(ctx, &j)
		}
		w.report(ctx, j)
		switch j.outcome {
		case outcomeCreated, outcomeHeld, outcomePaid, outcomeReleased:
			r.done = append(r.done, d.Receipt)
			continue
		case outcomeUnreadable, outcomeFailed:
			r.after = max(r.after, w.retryAfter(d.Receives))
		}
		r.left = append(r.left, d.Receipt)
	}
	return r
}

// retryAfter spaces the deliveries of a failing message: 5 s, then twice as long
// each time, up to the visibility time-out.
func (w *Worker) retryAfter(receives int) time.Duration {
	return min(5*time.Second<<max(0, min(receives-1, 10)), w.deps.Visibility)
}

// job is one delivery and what became of it.
type job struct {
	booking.Delivery
	begun   time.Time
	rec     booking.Record
	outcome string
	err     error
}

func (w *Worker) do(ctx context.Context, j *job) {
	if j.rec, j.err = decode(j.Body); j.err != nil {
		j.outcome = outcomeUnreadable
		return
	}
	j.outcome, j.err = w.put(ctx, j.rec)
}

// report counts the job and writes its log line.
func (w *Worker) report(ctx context.Context, j job) {
	w.metrics.records.WithLabelValues(j.outcome).Inc()
	hash, attempt := j.rec.CandidateHash, j.rec.Attempt
	if attempt == "" { // the envelope may still tell whose it is
		hash, attempt, _ = booking.ParseInvoice(j.DedupID)
	}
	attrs := []slog.Attr{
		slog.String("outcome", j.outcome),
		slog.String("candidate", fmt.Sprintf("%.8s", hash)), // the whole hash of a short code gives it away
		slog.String("attempt", attempt),
		slog.String("level_id", j.rec.Level),
		slog.Int("receives", j.Receives),
		slog.Duration("age", j.begun.Sub(j.SentAt)),
		slog.Duration("took", w.deps.Now().Sub(j.begun)),
	}
	if j.rec.RequestID != "" {
		attrs = append(attrs, slog.String("request_id", j.rec.RequestID))
	}
	level := slog.LevelInfo
	if j.err != nil {
		level = slog.LevelWarn
		attrs = append(attrs, slog.String("error", j.err.Error()))
	}
	w.deps.Log.LogAttrs(ctx, level, "booking record", attrs...)
}

// decode reads a message. It must be one record of this version, as HELD, whole
// and nothing else; the error wraps booking.ErrUnreadable.
func decode(body []byte) (booking.Record, error) {
	var version struct {
		V int `json:"v"`
	}
	var rec booking.Record
	err := plain(json.Unmarshal(body, &version))
	if err == nil && version.V != booking.RecordVersion {
		err = fmt.Errorf("version %d: this program reads version %d", version.V, booking.RecordVersion)
	}
	if err == nil {
		strict := json.NewDecoder(bytes.NewReader(body))
		strict.DisallowUnknownFields() // a field that is dropped here is lost
		err = plain(strict.Decode(&rec))
	}
	if err == nil {
		err = rec.Validate()
	}
	if err == nil && rec.State != booking.StateHeld {
		err = fmt.Errorf("state is %s, want %s", rec.State, booking.StateHeld)
	}
	if err != nil {
		return booking.Record{}, fmt.Errorf("queue message: %w: %w", booking.ErrUnreadable, err)
	}
	return rec, nil
}

// plain is the decoder's error without its words, which quote the message.
func plain(err error) error {
	var syntax *json.SyntaxError
	var kind *json.UnmarshalTypeError
	switch {
	case err == nil:
		return nil
	case errors.As(err, &syntax):
		return fmt.Errorf("not JSON, at byte %d", syntax.Offset)
	case errors.As(err, &kind):
		return fmt.Errorf("a value is of another kind, before byte %d", kind.Offset)
	}
	return errors.New("it is not one record of the fields that this program knows")
}

// put writes one record, through outages of the store. The error belongs to
// outcomes failed and returned.
func (w *Worker) put(ctx context.Context, rec booking.Record) (string, error) {
	var made atomic.Bool // by the question that ended an outage
	for tries := 1; ; tries++ {
		have, created, err := w.write(ctx, rec)
		switch {
		case err == nil && (created || made.Load()):
			return outcomeCreated, nil
		case err == nil:
			return existing(have.State), nil
		case ctx.Err() != nil:
			return outcomeReturned, err
		case errors.Is(err, booking.ErrUnreadable):
			return outcomeFailed, err
		}
		ask := w.probe
		if errors.Is(err, booking.ErrUnavailable) {
			// Another write may go through meanwhile: this one tells when it is over.
			ask = func(ctx context.Context) error {
				_, created, err := w.write(ctx, rec)
				if errors.Is(err, booking.ErrUnavailable) {
					return err
				}
				made.Store(made.Load() || created)
				return nil
			}
		} else if pingErr := w.probe(ctx); pingErr != nil {
			err = errors.Join(err, pingErr)
		} else {
			// The store answers. Is it the store or this record? Twice in a row it is
			// the record.
			if tries > 1 {
				return outcomeFailed, err
			}
			continue
		}
		if ctx.Err() == nil && w.outage.begin(ask) {
			w.deps.Log.ErrorContext(ctx, "booking store does not answer: receiving has stopped", "error", err)
		}
		if w.outage.wait(ctx) != nil {
			return outcomeReturned, err
		}
		tries = 0 // what failed in an outage says nothing of the record
	}
}

func (w *Worker) write(ctx context.Context, rec booking.Record) (booking.Record, bool, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	return w.deps.Store.PutHeld(ctx, rec)
}

func (w *Worker) probe(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	return w.deps.Store.Ping(ctx)
}

func existing(state booking.RecordState) string {
	switch state {
	case booking.StatePaid:
		return outcomePaid
	case booking.StateReleased:
		return outcomeReleased
	default:
		return outcomeHeld
	}
}

// remove deletes messages that are done, tries again what the queue did not delete, and
// returns what stays.
func (w *Worker) remove(ctx context.Context, receipts []string) []string {
	var err error
	for tries := 1; len(receipts) > 0; tries++ {
		var failed []string
		failed, err = w.deps.Queue.Delete(ctx, receipts)
		if err == nil {
			receipts = failed
		}
		if tries == 3 || ctx.Err() != nil {
			break
		}
		if len(receipts) > 0 {
			sleep(ctx, backoff(tries))
		}
	}
	if len(receipts) > 0 {
		w.deps.Log.WarnContext(ctx, "delete bookings from the queue: some may come again", "left", len(receipts), "error", err)
	}
	return receipts
}

// removeLater goes on deleting beside the work, until the messages come again by
// themselves, or stop has ended and settleTimeout after it: an outage of the queue shorter
// than they are hidden then costs no second delivery, which would keep their groups
// waiting for it. What stays is delivered again and found done. Of more than an outage
// leaves in hand nothing is tried: then it is the deleting that does not work.
func (w *Worker) removeLater(stop context.Context, receipts []string) {
	if len(receipts) == 0 || stop.Err() != nil {
		return
	}
	select {
	case w.tidying <- struct{}{}:
	default:
		return
	}
	w.tidiers.Go(func() {
		defer func() { <-w.tidying }()
		ctx, cancel := context.WithTimeout(context.WithoutCancel(stop), w.deps.Visibility)
		defer cancel()
		defer context.AfterFunc(stop, func() {
			sleep(ctx, settleTimeout)
			cancel()
		})()
		for tries := 3; len(receipts) > 0 && sleep(ctx, backoff(tries)); tries++ {
			once, done := context.WithTimeout(ctx, settleTimeout)
			failed, err := w.deps.Queue.Delete(once, receipts)
			done()
			if err == nil {
				receipts = failed
			}
		}
	})
}

// keep hides the messages in hand for as long as they are worked on. The
// returned function ends that.
func (w *Worker) keep(ctx context.Context, ds []booking.Delivery) (release func()) {
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	wg.Go(func() {
		for sleep(ctx, w.deps.Visibility/3) {
			var errs []error
			for _, d := range ds {
				errs = append(errs, w.deps.Queue.Delay(ctx, d.Receipt, w.deps.Visibility))
			}
			if err := errors.Join(errs...); err != nil && ctx.Err() == nil { // they come again, and are found done
				w.deps.Log.WarnContext(ctx, "keep bookings in hand hidden", "error", err)
			}
		}
	})
	return func() { cancel(); wg.Wait() }
}

// watch keeps the queue's figures in the metrics.
func (w *Worker) watch(ctx context.Context) {
	for {
		if _, err := w.stats(ctx); err != nil && ctx.Err() == nil {
			w.deps.Log.WarnContext(ctx, "queue figures", "error", err)
		}
		if !sleep(ctx, watchEvery) {
			return
		}
	}
}

// stats reads the queue's figures and shows them, or none.
func (w *Worker) stats(ctx context.Context) (booking.QueueStats, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	s, err := w.deps.Queue.Stats(ctx)
	if err != nil {
		w.metrics.hide()
		return s, err
	}
	w.metrics.show(s, w.deps.Now())
	return s, nil
}

// backoff is the jittered wait before another try: about 0.2 s, doubling to 5 s.
func backoff(tries int) time.Duration {
	d := min(200*time.Millisecond<<min(tries-1, 10), 5*time.Second)
	return d/2 + rand.N(d/2)
}

// sleep waits; false when ctx ended first.
func sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return true
	}
}
