// Package checkout is the hot path: admit a candidate, create the payment,
// attach it to the seat, queue the record, answer. Nothing else happens here:
// no database, no mail, no file.
//
// It fails closed on the seat (nothing is answered that the ledger has not
// acknowledged) and gives back what it took when the payment cannot be made. A
// rejected request never waits for the gateway.
package checkout

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
	"golang.org/x/sync/semaphore"

	"holdfast/internal/booking"
)

// Ledger is what the hot path needs of the seat ledger. Every method is safe for
// concurrent use; an error that is booking.ErrNotAcknowledged says that nothing
// may rest on the call. The caller, not the ledger, repeats calls.
type Ledger interface {
	// Admit decides a request and takes the seat. Its errors are the
	// domain's outcomes; with check it takes nothing and a free seat is
	// booking.ErrWouldAdmit.
	Admit(ctx context.Context, r booking.Request, suffix string, check bool) (booking.Seat, error)
	// Attach gives an attempt its payment and returns the row with its deadline.
	// Safe to repeat.
	Attach(ctx context.Context, code, attempt string, p booking.Payment) (booking.Row, time.Time, error)
	// Queued says that the record is queued. Safe to repeat.
	Queued(ctx context.Context, code, attempt string) error
	// Undo gives back the seat of an attempt without a payment.
	Undo(ctx context.Context, code, attempt string) error
	// PaymentOf finds the payment of an attempt, or booking.ErrNotFound.
	PaymentOf(ctx context.Context, attempt string) (booking.Payment, error)
}

// Gateway creates payments. Any error means that the seat must be undone:
// nobody has the link, and execute is ours to call.
type Gateway interface {
	// Ready tells, without a call, whether Create would be tried now; its error is
	// booking.ErrPaymentUnavailable. unused gives the leave back when no Create follows.
	Ready() (unused func(), err error)
	Create(ctx context.Context, o booking.Order) (booking.Payment, error)
}

// Queue takes a record for the worker. A nil error means that it is kept. It may
// be called again with the same ids after any error.
type Queue interface {
	Send(ctx context.Context, group, dedupID string, body []byte) error
}

// Budgets bound one request. Redis, Create and Enqueue must add up to less than
// Request; the rest is what a request may wait for a gateway slot.
type Budgets struct {
	Request, Redis, Create, Enqueue time.Duration
}

// takeOver is the age at which the ledger gives an attempt without a payment to
// the candidate's next request; the call that made it must be over by then.
const takeOver = 15 * time.Second

// DefaultBudgets are those of the contract.
func DefaultBudgets() Budgets {
	return Budgets{Request: 8 * time.Second, Redis: time.Second, Create: 5 * time.Second, Enqueue: time.Second}
}

// Deps is what a Service is made of; every field but Changed and Now is required.
type Deps struct {
	Ledger  Ledger
	Gateway Gateway
	Queue   Queue
	// Slots is how many gateway calls this process may have in flight.
	Slots   int64
	Budgets Budgets
	// CallbackURL is where the gateway sends the browser back.
	CallbackURL string
	// BookingURL makes the booking URL of a candidate's attempt.
	BookingURL func(code, attempt string) string
	// Changed is called after a seat was taken or given back; it must not block.
	Changed    func()
	Now        func() time.Time
	Log        *slog.Logger
	Registerer prometheus.Registerer
}

// Service books. Safe for concurrent use.
type Service struct {
	Deps
	slots *semaphore.Weighted
	inUse prometheus.Gauge
}

// New checks its dependencies.
func New(d Deps) (*Service, error) {
	if d.Ledger == nil || d.Gateway == nil || d.Queue == nil || d.Slots < 1 || d.CallbackURL == "" || d.BookingURL == nil || d.Log == nil || d.Registerer == nil {
		return nil, errors.New("checkout: a dependency is missing")
	}
	b := d.Budgets
	if b.Redis <= 0 || b.Create <= 0 || b.Enqueue <= 0 || b.Redis+b.Create+b.Enqueue >= b.Request {
		return nil, fmt.Errorf("checkout: budgets redis %s + create %s + enqueue %s must be less than request %s", b.Redis, b.Create, b.Enqueue, b.Request)
	}
	if b.Request >= takeOver {
		return nil, fmt.Errorf("checkout: request budget %s must be less than the %s after which another request takes the seat over", b.Request, takeOver)
	}
	if d.Now == nil {
		d.Now = time.Now
	}
	if d.Changed == nil {
		d.Changed = func() {}
	}
	return &Service{Deps: d, slots: semaphore.NewWeighted(d.Slots), inUse: promauto.With(d.Registerer).NewGauge(prometheus.GaugeOpts{
		Name: "holdfast_gateway_slots_in_use",
		Help: "Bookings of this process that hold a gateway slot.",
	})}, nil
}

// Book runs one request to its end, whether or not ctx is cancelled meanwhile:
// a closed browser tab must not stop a booking half-way. It answers within the
// request budget. Errors are the domain's outcomes; with one, Held has the attempt, if
// this call made one, and nothing else.
func (s *Service) Book(ctx context.Context, r booking.Request) (booking.Held, error) {
	ctx = context.WithoutCancel(ctx)
	deadline := time.Now().Add(s.Budgets.Request)
	seat, release, err := s.seat(ctx, deadline, r)
	if err != nil {
		return booking.Held{}, s.refusal(ctx, r, err)
	}
	// Made once there is a seat: most requests end above, and each such context
	// costs them.
	ctx, cancel := context.WithDeadline(ctx, deadline)
	defer cancel()
	defer release() // also when a dependency panics
	if seat.Replay {
		release()
		return s.replay(ctx, r, seat)
	}
	s.Changed()
	payment, err := s.create(ctx, r, seat)
	release()
	if err != nil {
		return booking.Held{Attempt: seat.Row.Attempt}, err
	}
	h, err := s.finish(ctx, r, seat, payment)
	if err != nil {
		h = booking.Held{Attempt: seat.Row.Attempt}
	}
	return h, err
}

// seat takes a gateway slot and then the seat, in this order, so that a slow
// gateway never keeps seats in limbo. When no slot is free the request is
// checked at once, taking nothing: a rejection stands, and only one that would
// be admitted waits, first come first served.
func (s *Service) seat(ctx context.Context, deadline time.Time, r booking.Request) (booking.Seat, func(), error) {
	if !s.slots.TryAcquire(1) {
		seat, err := s.admit(ctx, deadline, r, true)
		if !errors.Is(err, booking.ErrWouldAdmit) {
			return seat, func() {}, err // a rejection, or a replay, which needs no slot
		}
		b := s.Budgets
		left := min(time.Until(deadline), b.Request) - b.Redis - b.Create - b.Enqueue
		wait, cancel := context.WithTimeout(ctx, left)
		defer cancel()
		if err := s.slots.Acquire(wait, 1); err != nil {
			return booking.Seat{}, nil, fmt.Errorf("no gateway slot in time: %w", booking.ErrTryAgain)
		}
	}
	s.inUse.Inc()
	admitted := false
	defer func() {
		if !admitted { // also when the ledger panics
			s.freeSlot()
		}
	}()
	unused, out := s.Gateway.Ready()
	// While the gateway is out no seat is taken: a rejection stands.
	seat, err := s.admit(ctx, deadline, r, out != nil)
	if out != nil {
		if errors.Is(err, booking.ErrWouldAdmit) {
			err = out
		}
		return seat, func() {}, err
	}
	if err != nil || seat.Replay {
		unused()
	}
	if err != nil {
		return seat, nil, err
	}
	admitted = true
	return seat, sync.OnceFunc(s.freeSlot), nil
}

func (s *Service) freeSlot() {
	s.inUse.Dec()
	s.slots.Release(1)
}

func (s *Service) admit(ctx context.Context, deadline time.Time, r booking.Request, check bool) (booking.Seat, error) {
	// No context with a deadline: it would be a good part of what a refusal costs.
	if r.Until = time.Now().Add(s.Budgets.Redis); r.Until.After(deadline) {
		r.Until = deadline
	}
	return s.Ledger.Admit(ctx, r, booking.NewAttemptSuffix(s.Now()), check)
}

// refusal completes a duplicate with its links, and turns what is no outcome
// into ErrTryAgain: the ledger did not decide.
func (s *Service) refusal(ctx context.Context, r booking.Request, err error) error {
	var dup *booking.DuplicateError
	if errors.As(err, &dup) {
		if dup.Row.Phase == booking.PhasePaid {
			dup.BookingURL = s.BookingURL(r.Code, dup.Row.Attempt)
		}
		if dup.Row.Live(dup.Now) {
			p, perr := s.payment(ctx, dup.Row.Attempt)
			if perr != nil {
				s.Log.WarnContext(ctx, "payment link of a live hold is not at hand", "request_id", r.RequestID, "attempt", dup.Row.Attempt, "error", perr)
				return dup
			}
			dup.PaymentURL, dup.BookingURL = p.URL, s.BookingURL(r.Code, dup.Row.Attempt)
		}
		return dup
	}
	if booking.IsOutcome(err) {
		return err
	}
	return fmt.Errorf("%w: %w", booking.ErrTryAgain, err)
}

func (s *Service) payment(ctx context.Context, attempt string) (booking.Payment, error) {
	ctx, cancel := context.WithTimeout(ctx, s.Budgets.Redis)
	defer cancel()
	return s.Ledger.PaymentOf(ctx, attempt)
}

func (s *Service) replay(ctx context.Context, r booking.Request, seat booking.Seat) (booking.Held, error) {
	p, err := s.payment(ctx, seat.Row.Attempt)
	if err != nil {
		return booking.Held{}, fmt.Errorf("payment of a repeated request: %w: %w", booking.ErrTryAgain, err)
	}
	return s.held(r.Code, seat.Row, seat.Now, p), nil
}

// create makes the payment, or gives the seat back before it answers.
func (s *Service) create(ctx context.Context, r booking.Request, seat booking.Seat) (booking.Payment, error) {
	call, cancel := context.WithTimeout(ctx, s.Budgets.Create)
	defer cancel()
	invoice := booking.Invoice(booking.CandidateHash(r.Code), seat.Row.Attempt)
	p, err := s.Gateway.Create(call, booking.Order{
		Invoice:     invoice,
		Amount:      seat.Row.Amount,
		Currency:    seat.Row.Currency,
		CallbackURL: s.CallbackURL,
		Reference:   invoice,
	})
	if err == nil && p.ID != "" && p.URL != "" && p.Signature != "" {
		return p, nil
	}
	if err == nil {
		err = errors.New("gateway created a payment without id, link or signature")
	}
	// Its own time: the request's may be over, and the seat must not wait for the
	// reconciler if it can be helped.
	defer s.Changed()
	undo, cancelUndo := context.WithTimeout(context.WithoutCancel(ctx), s.Budgets.Redis)
	defer cancelUndo()
	if uerr := s.Ledger.Undo(undo, r.Code, seat.Row.Attempt); uerr != nil && !errors.Is(uerr, booking.ErrNotOwner) {
		// Only a seat that was given back may be told so; this one is the reconciler's.
		return booking.Payment{}, fmt.Errorf("seat of a failed payment is left to the reconciler: %w: undo: %w: %w", booking.ErrTryAgain, uerr, err)
	}
	return booking.Payment{}, fmt.Errorf("create payment: %w: %w", booking.ErrPaymentUnavailable, err)
}

// finish attaches the payment and queues the record. From here on the seat has
// a payment: it is never undone, and whatever is missed is the reconciler's.
func (s *Service) finish(ctx context.Context, r booking.Request, seat booking.Seat, p booking.Payment) (booking.Held, error) {
	row, now, err := s.attach(ctx, r.Code, seat.Row.Attempt, p)
	if err != nil {
		if !booking.LedgerAnswered(err) { // else the seat is another call's by now
			err = errors.Join(err, s.undoUnattached(ctx, r.Code, seat.Row.Attempt))
		}
		return booking.Held{}, fmt.Errorf("attach payment: %w: %w", booking.ErrTryAgain, err)
	}
	if now.UnixMilli() >= row.Deadline {
		// A refused seat taken over in its last moment: a link nobody can pay by.
		return booking.Held{}, fmt.Errorf("time to pay ended meanwhile: %w", booking.ErrTryAgain)
	}
	rec := row.HeldRecord(r.Code, p.URL, p.Signature)
	rec.RequestID = r.RequestID
	if err := s.enqueue(ctx, rec); err != nil {
		return booking.Held{}, fmt.Errorf("queue record: %w: %w", booking.ErrTryAgain, err)
	}
	step, cancel := context.WithTimeout(ctx, s.Budgets.Redis)
	defer cancel()
	if err := s.Ledger.Queued(step, r.Code, row.Attempt); err != nil {
		// The record is queued and the seat is the candidate's; the sweep moves the row on.
		s.Log.WarnContext(ctx, "row stays payable until the next sweep", "request_id", r.RequestID, "attempt", row.Attempt, "error", err)
	}
	return s.held(r.Code, row, now, p), nil
}

// undoUnattached gives the seat back if the payment was never attached; nobody
// has its link, and execute is ours to call. A seat that has the payment after
// all is left to the reconciler. The error says why it was not given back.
func (s *Service) undoUnattached(ctx context.Context, code, attempt string) error {
	undo, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.Budgets.Redis)
	defer cancel()
	err := s.Ledger.Undo(undo, code, attempt)
	s.Changed()
	if err != nil {
		return fmt.Errorf("undo: %w", err)
	}
	return nil
}

// attach is tried twice, each time on its own time: it is safe to repeat, an
// answer that was not acknowledged is worth one more, and a seat whose payment
// exists must not be left half-way because the gateway took all of the request's.
func (s *Service) attach(ctx context.Context, code, attempt string, p booking.Payment) (booking.Row, time.Time, error) {
	var row booking.Row
	var now time.Time
	var err error
	for range 2 {
		step, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.Budgets.Redis)
		row, now, err = s.Ledger.Attach(step, code, attempt, p)
		cancel()
		if err == nil || errors.Is(err, booking.ErrNotOwner) || errors.Is(err, booking.ErrHasPayment) || ctx.Err() != nil {
			break
		}
	}
	return row, now, err
}

// enqueueRetry is the first pause between two sends with the same ids; it doubles.
const enqueueRetry = 20 * time.Millisecond

func (s *Service) enqueue(ctx context.Context, rec booking.Record) error {
	body, err := json.Marshal(rec)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, s.Budgets.Enqueue)
	defer cancel()
	for pause := enqueueRetry; ; pause *= 2 {
		err := s.Queue.Send(ctx, booking.QueueGroup(rec.CandidateHash), rec.Invoice, body)
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(pause):
		}
	}
}

func (s *Service) held(code string, row booking.Row, now time.Time, p booking.Payment) booking.Held {
	return booking.Held{
		PaymentID:   p.ID,
		PaymentURL:  p.URL,
		BookingURL:  s.BookingURL(code, row.Attempt),
		Level:       row.Level,
		Attempt:     row.Attempt,
		ExpiresAt:   time.UnixMilli(row.Deadline).UTC(),
		SecondsLeft: booking.SecondsLeft(row.Deadline, now),
	}
}
