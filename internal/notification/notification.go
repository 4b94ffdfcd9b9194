// Package notification works on what the gateway says on its own account. A
// notification is stored, and on the list of looks, before it is answered for, and
// stays open until its money is a paid seat, a refund record or a recorded anomaly. It is a hint: the
// gateway's own word on the payment decides, and by its amount, not the
// notification's.
//
// The gateway asks not to be queried on the happy path. So nothing is asked about
// money that the store shows as a paid seat or a refund, nor while the browser's
// return may still be hearing the answer of its execute call.
//
// Fail mode: stays open. What cannot be decided now is looked at again, in pauses
// that grow with its age from 20 seconds to 10 minutes, for ever; after an hour it
// is loud. Redis holds the order of the looks only: while it cannot be written the
// sender is asked to deliver again, and what it has lost Restore makes again from
// the store. Every step is safe to repeat, by any process. Clock: the injected
// one; the looks are timed by Redis's.
package notification

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"

	"holdfast/internal/booking"
)

// Store keeps notifications, records and refunds. Reads are consistent, every
// method is safe to repeat, and booking.ErrNotFound says that there is none.
type Store interface {
	// PutNotification puts it if its id has none, and tells whether it did.
	PutNotification(ctx context.Context, n booking.Notification) (stored bool, err error)
	Notification(ctx context.Context, id string) (booking.Notification, error)
	// OpenNotifications lists those without an outcome. One that cannot be read
	// comes with its id and booking.ErrUnreadable, and does not end the list.
	OpenNotifications(ctx context.Context) iter.Seq2[booking.Notification, error]
	// CloseNotification gives it its outcome; the first one stays.
	CloseNotification(ctx context.Context, id string, outcome booking.NotificationOutcome, at time.Time) error
	Record(ctx context.Context, candidateHash, attempt string) (booking.Record, error)
	Refund(ctx context.Context, transaction string) (booking.Refund, error)
}

// Ledger keeps the order in which open notifications are looked at. No decision rests
// on it, and what it loses Restore finds again; every method is safe to repeat.
type Ledger interface {
	NoticeLater(ctx context.Context, id string, in time.Duration) error
	NoticeDone(ctx context.Context, id string) error
	// DueNotices are the ids to look at now, oldest look first.
	DueNotices(ctx context.Context, limit int) ([]string, error)
}

// Gateway tells what became of a payment, and of a transaction.
// booking.ErrNotSent and booking.ErrGatewayOutage say nothing of either.
type Gateway interface {
	Query(ctx context.Context, payment string) (booking.Charge, error)
	Search(ctx context.Context, transaction string) (booking.TransactionAnswer, error)
}

// Settler makes a completed charge a paid seat (nil), or leaves a refund record
// (booking.ErrRefunded): late money, a second payment, or money otherwise than
// ordered. After any other error it is called again. Safe to repeat.
type Settler interface {
	Confirm(ctx context.Context, code string, rec booking.Record, charge booking.Charge) error
}

// Background runs work that a drain waits for. It refuses when draining.
type Background interface {
	Go(fn func()) bool
}

// Rate gives turns to ask the gateway; a *rate.Limiter is one. Its error says that
// there is no turn within the context's time.
type Rate interface {
	Wait(ctx context.Context) error
}

// Deps is what a Service is made of; every field but Now is required.
type Deps struct {
	Store      Store
	Ledger     Ledger
	Gateway    Gateway
	Settler    Settler
	Background Background
	Rate       Rate
	// Width is how many notifications a sweep works on at a time, and how many that
	// have just arrived are worked on beside it.
	Width      int
	Now        func() time.Time
	Log        *slog.Logger
	Registerer prometheus.Registerer
}

// Service works on notifications. Safe for concurrent use, by several processes
// too.
type Service struct {
	deps    Deps
	metrics *metrics
	arrived chan struct{} // a place for each one worked on since it arrived

	mu sync.Mutex
	// missing is since when a notification's record is known not to be there. Only
	// this process's own looks count.
	missing map[string]time.Time
	overdue overdue
}

const (
	firstPause  = 20 * time.Second // shorter than any: until a sweep looks after an arrival
	lastPause   = 10 * time.Minute
	loudAfter   = time.Hour        // open for so long, it is for a person too
	loudEvery   = 10 * time.Minute // between two lines about those
	recordAfter = time.Hour        // no record comes later than that
	// missingFor is how long, without a failure of the store, this process must have
	// seen that there is no record: after an outage the worker is behind.
	missingFor = 5 * time.Minute
	// answerTime is how long the answer of an execute call may take to become a
	// paid record, on the happy path.
	answerTime = 20 * time.Second

	indexTimeout = 2 * time.Second  // of an arrival, which the gateway waits for
	workTimeout  = 30 * time.Second // one notification

	// A list call reads this many widths of ids, and mostIDs at most, which is what
	// one script can answer. After hopelessWidths widths of failures in a row a sweep
	// gives up, since something that all need is down.
	pageWidths, mostIDs, hopelessWidths = 4, 4000, 2

	rememberMost = 10_000 // ids, in each of the memories
)

// The outcomes of one look, beside those of booking.NotificationOutcome.
const (
	lookClosed = "closed" // it was before
	lookLater  = "later"  // it stays open and is looked at again
	lookFailed = "failed" // by the store; it is still due
)

// errAnswering says why nothing is asked yet.
var errAnswering = errors.New("the browser's return may be hearing the answer just now")

// errOutage says why nothing more is asked in a sweep.
var errOutage = errors.New("the gateway could not be reached a moment ago")

// New checks its dependencies.
func New(d Deps) (*Service, error) {
	if d.Store == nil || d.Ledger == nil || d.Gateway == nil || d.Settler == nil || d.Background == nil ||
		d.Rate == nil || d.Log == nil || d.Registerer == nil {
		return nil, errors.New("notification: a dependency is missing")
	}
	if d.Width < 1 {
		return nil, errors.New("notification: width must be positive")
	}
	if d.Now == nil {
		d.Now = time.Now
	}
	return &Service{
		deps: d, metrics: newMetrics(d.Registerer),
		arrived: make(chan struct{}, d.Width), missing: map[string]time.Time{},
	}, nil
}

// Store keeps a genuine notification: put if its id has none, which it tells, and
// then put on the list of looks. An error means that it must be delivered again;
// one of the list leaves it stored, the next delivery puts it on the list, and
// should none come, so does Restore. Safe to repeat.
func (s *Service) Store(ctx context.Context, n booking.Notification) (stored bool, err error) {
	stored, err = s.deps.Store.PutNotification(ctx, n)
	if err != nil {
		return false, fmt.Errorf("keep notification: %w", err)
	}
	step, cancel := context.WithTimeout(ctx, indexTimeout)
	defer cancel()
	// Also when it was there: the first delivery may have broken off here.
	if err := s.deps.Ledger.NoticeLater(step, n.ID, firstPause); err != nil {
		if kept, kerr := s.deps.Store.Notification(step, n.ID); !stored && kerr == nil && kept.Outcome != "" {
			return false, nil // a repeat of one that is closed: nobody need look
		}
		return stored, fmt.Errorf("notification is stored, and not on the list of looks: %w", err)
	}
	return stored, nil
}

// Arrived works, in the background, on a notification that was stored just now.
// It returns at once; with too many at work, or draining, it leaves it to a sweep.
func (s *Service) Arrived(n booking.Notification) {
	select {
	case s.arrived <- struct{}{}:
	default:
		return
	}
	if !s.deps.Background.Go(func() {
		defer func() { <-s.arrived }()
		ctx, cancel := context.WithTimeout(context.Background(), workTimeout)
		defer cancel()
		if outcome, err := s.count(s.look(ctx, n, new(round))); outcome == lookFailed {
			s.deps.Log.WarnContext(ctx, "notification is left to a sweep", "message_id", n.ID, "error", err)
		}
	}) {
		<-s.arrived
	}
}

// Work looks at a notification now. nil says that it is closed, or that there is
// none; an error, why it is still open, and then it is looked at again later.
// Nothing is decided but by the gateway's word. Safe to repeat.
func (s *Service) Work(ctx context.Context, id string) error {
	_, err := s.count(s.work(ctx, id, new(round)))
	return err
}

// round is what one sweep has learnt that holds for all of it.
type round struct {
	outage atomic.Bool
	failed atomic.Int64 // in a row
}

// Report counts what became of the notifications a sweep looked at: closed as
// paid, refund or anomaly, "closed" before, "later", or "failed".
type Report map[string]int

// Sweep looks at every notification that is due, oldest look first. When ctx ends
// it begins no more; those at work finish on contexts of their own, since money
// may become a seat in them. The error says why the sweep could not go on; the
// next one does.
func (s *Service) Sweep(ctx context.Context) (Report, error) {
	var (
		mu     sync.Mutex
		report = Report{}
		looked = map[string]bool{}
		r      = new(round)
		page   = min(pageWidths*s.deps.Width, mostIDs)
		limit  = page
	)
	defer s.tell(ctx, r)
	one := func(id string) {
		own, cancel := context.WithTimeout(context.WithoutCancel(ctx), workTimeout)
		defer cancel()
		outcome, err := s.count(s.work(own, id, r))
		if outcome == lookFailed {
			r.failed.Add(1)
			s.deps.Log.WarnContext(ctx, "notification was not looked at", "message_id", id, "error", err)
		} else {
			r.failed.Store(0)
		}
		mu.Lock()
		defer mu.Unlock()
		report[outcome]++
	}
	for {
		ids, err := s.deps.Ledger.DueNotices(ctx, limit)
		if err != nil {
			return report, fmt.Errorf("list due notifications: %w", err)
		}
		var group errgroup.Group
		group.SetLimit(s.deps.Width)
		known := 0
		for _, id := range ids {
			if looked[id] {
				known++ // failed, or could not be put off
				continue
			}
			if ctx.Err() != nil || s.hopeless(r) {
				break
			}
			looked[id] = true
			group.Go(func() error { one(id); return nil })
		}
		_ = group.Wait()
		switch {
		case ctx.Err() != nil:
			return report, fmt.Errorf("sweep notifications: %w", ctx.Err())
		case s.hopeless(r):
			return report, fmt.Errorf("sweep notifications: %d in a row failed", r.failed.Load())
		case known == len(ids) && (known < limit || limit == mostIDs):
			return report, nil
		}
		limit = min(known+page, mostIDs)
	}
}

func (s *Service) hopeless(r *round) bool {
	return r.failed.Load() >= int64(hopelessWidths*s.deps.Width)
}

// Restore has every open notification of the store looked at now, and counts
// them. It is for an index that may have lost some: with each cross-check, and
// after Redis was lost. Safe to repeat.
func (s *Service) Restore(ctx context.Context) (open int, err error) {
	var unread int
	var first, index error
	for n, err := range s.deps.Store.OpenNotifications(ctx) {
		switch {
		case errors.Is(err, booking.ErrUnreadable):
			open++
			if unread++; first == nil {
				first = err
			}
			continue
		case err != nil:
			s.metrics.open.Reset() // nobody knows how many there are
			return open, fmt.Errorf("list open notifications: %w", err)
		}
		open++
		if index == nil { // the others are counted all the same
			index = s.deps.Ledger.NoticeLater(ctx, n.ID, 0)
		}
	}
	s.metrics.open.WithLabelValues().Set(float64(open))
	if unread > 0 {
		s.deps.Log.ErrorContext(ctx, "stored notifications cannot be read: repair them, or settle their money by hand",
			"notifications", unread, "first", first)
	}
	if index != nil {
		return open, fmt.Errorf("put open notifications on the list of looks: %w", index)
	}
	return open, nil
}

func (s *Service) count(outcome string, err error) (string, error) {
	s.metrics.work.WithLabelValues(outcome).Inc()
	return outcome, err
}
