package paygate

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/sony/gobreaker/v2"

	"holdfast/internal/booking"
)

var (
	// errOut is what Ready and Create say at once while the gateway is out.
	errOut = fmt.Errorf("%w: %w: %w: circuit breaker is open",
		booking.ErrPaymentUnavailable, booking.ErrNotSent, booking.ErrGatewayOutage)
	// errOrderRefused marks a refusal that is about one order: the gateway is well.
	errOrderRefused = errors.New("order refused")
)

// turnLasts is how long the one caller who may try a gateway that was out has
// to begin: an admission takes at most a second.
const turnLasts = 2 * time.Second

// breaker stands before Create alone. A run of creates without one that
// succeeds opens it; after a pause it lets one through, whose end closes it or
// begins the next pause. Execute, query and refund are about money that may have
// moved, so nothing stands before them.
type breaker struct {
	cb  *gobreaker.CircuitBreaker[booking.Payment]
	now func() time.Time
	// turn is when the turn that ready gave out ends, known by its pointer; nil:
	// none is out.
	turn atomic.Pointer[time.Time]
}

func newBreaker(cfg Config, now func() time.Time, log *slog.Logger, isOpen prometheus.Gauge) *breaker {
	b := &breaker{now: now}
	b.cb = gobreaker.NewCircuitBreaker[booking.Payment](gobreaker.Settings{
		MaxRequests: 1,
		Timeout:     cfg.BreakerPause,
		ReadyToTrip: func(c gobreaker.Counts) bool { return int64(c.ConsecutiveFailures) >= int64(cfg.BreakerFailures) },
		IsSuccessful: func(err error) bool {
			return err == nil || errors.Is(err, errOrderRefused)
		},
		// A caller that hung up says nothing of the gateway.
		IsExcluded: func(err error) bool { return errors.Is(err, context.Canceled) },
		OnStateChange: func(_ string, _, to gobreaker.State) {
			b.turn.Store(nil)
			ctx := context.Background() // a change is no one call's
			switch to {
			case gobreaker.StateOpen:
				isOpen.Set(1)
				log.ErrorContext(ctx, "gateway is out: no payments are created for now", "pause", cfg.BreakerPause)
			case gobreaker.StateHalfOpen:
				log.InfoContext(ctx, "gateway was out: the next payment tries it")
			case gobreaker.StateClosed:
				isOpen.Set(0)
				log.InfoContext(ctx, "gateway is back: payments are created")
			}
		},
	})
	return b
}

// create runs one create call, or answers errOut at once.
func (b *breaker) create(ctx context.Context, call func() (booking.Payment, error)) (booking.Payment, error) {
	if err := ctx.Err(); err != nil { // the caller's time was over before: not the gateway's doing
		return booking.Payment{}, fmt.Errorf("%w: %w", booking.ErrNotSent, err)
	}
	p, err := b.cb.Execute(call)
	if errors.Is(err, gobreaker.ErrOpenState) || errors.Is(err, gobreaker.ErrTooManyRequests) {
		return booking.Payment{}, errOut
	}
	return p, err
}

// ready gives leave to call create, and takes the turn where there is but one.
func (b *breaker) ready() (func(), error) {
	switch b.cb.State() {
	case gobreaker.StateClosed:
		return func() {}, nil
	case gobreaker.StateHalfOpen:
		if c := b.cb.Counts(); c.Requests > c.TotalExclusions { // one is being tried
			return nil, errOut
		}
		now := b.now()
		held, mine := b.turn.Load(), now.Add(turnLasts)
		if held != nil && now.Before(*held) || !b.turn.CompareAndSwap(held, &mine) {
			return nil, errOut
		}
		unused := func() { b.turn.CompareAndSwap(&mine, nil) }
		if b.cb.State() == gobreaker.StateOpen { // another's trial has failed meanwhile
			unused()
			return nil, errOut
		}
		return unused, nil
	}
	return nil, errOut
}
