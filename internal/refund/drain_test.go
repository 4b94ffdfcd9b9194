package refund_test

import (
	"context"
	"errors"
	"iter"
	"log/slog"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"holdfast/internal/booking"
	"holdfast/internal/refund"
)

// shelf is a store of refunds in memory, for tests whose time is not real. A write
// in slow takes as long as its caller bears, and is not made.
type shelf struct {
	mu      sync.Mutex
	refunds map[string]booking.Refund
	order   []string
	slow    map[string]bool // by method
	during  func(method string)
}

func newShelf(list ...booking.Refund) *shelf {
	s := &shelf{refunds: map[string]booking.Refund{}, slow: map[string]bool{}, during: func(string) {}}
	for _, r := range list {
		s.refunds[r.Transaction] = r
		s.order = append(s.order, r.Transaction)
	}
	return s
}

func (s *shelf) change(ctx context.Context, method, transaction string, to func(*booking.Refund)) (booking.Refund, error) {
	s.during(method)
	if s.slow[method] {
		<-ctx.Done()
		return booking.Refund{}, ctx.Err()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	r := s.refunds[transaction]
	to(&r)
	s.refunds[transaction] = r
	return r, nil
}

func (s *shelf) Refund(_ context.Context, transaction string) (booking.Refund, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.refunds[transaction], nil
}

func (s *shelf) OpenRefunds(context.Context) iter.Seq2[booking.Refund, error] {
	return func(yield func(booking.Refund, error) bool) {
		for _, transaction := range s.order {
			if r, _ := s.Refund(context.Background(), transaction); !yield(r, nil) {
				return
			}
		}
	}
}

func (s *shelf) ClaimRefund(ctx context.Context, transaction, claim string, _, until time.Time) (booking.Refund, bool, error) {
	r, err := s.change(ctx, "claim", transaction, func(r *booking.Refund) { r.Claim, r.ClaimUntil = claim, until })
	return r, err == nil, err
}

func (s *shelf) RefundSent(ctx context.Context, transaction, _ string, at time.Time) error {
	_, err := s.change(ctx, "sent", transaction, func(r *booking.Refund) { r.State, r.SentAt = booking.RefundSent, at })
	return err
}

func (s *shelf) RefundDone(ctx context.Context, transaction, by, refundTransaction, _ string, at time.Time) error {
	_, err := s.change(ctx, "done", transaction, func(r *booking.Refund) {
		r.State, r.DoneBy, r.RefundTransaction, r.DoneAt = booking.RefundDone, by, refundTransaction, at
	})
	return err
}

func (s *shelf) RefundTrouble(ctx context.Context, transaction, _, trouble string) error {
	_, err := s.change(ctx, "trouble", transaction, func(r *booking.Refund) { r.Trouble = trouble })
	return err
}

// slowGateway answers a refund call after a while, with no answer at all when the
// call's own time is over before.
type slowGateway struct {
	takes time.Duration
	began func(transaction string)

	mu    sync.Mutex
	calls []string
}

func (g *slowGateway) Refund(ctx context.Context, o booking.RefundOrder) (booking.RefundAnswer, error) {
	g.mu.Lock()
	g.calls = append(g.calls, o.Transaction)
	g.mu.Unlock()
	g.began(o.Transaction)
	select {
	case <-time.After(g.takes):
		return booking.RefundAnswer{Done: true, Transaction: "R" + o.Transaction, Amount: o.Amount, Currency: o.Currency}, nil
	case <-ctx.Done():
		return booking.RefundAnswer{}, errors.Join(booking.ErrInDoubt, ctx.Err())
	}
}

func (g *slowGateway) RefundStatus(context.Context, string, string) (booking.RefundAnswer, error) {
	return booking.RefundAnswer{}, nil
}

// drain is how long a process that ends waits for what is in flight, by default.
const drain = 35 * time.Second

// The caller ends when the first call has just begun. That call is not cut short,
// no other begins, and all of it is over before a drain is.
func TestSweep_EndsWithinADrain(t *testing.T) {
	t.Parallel()
	if refund.Outlasts >= drain || refund.CallTime > 30*time.Second {
		t.Fatalf("Outlasts %s, CallTime %s: want less than a drain's %s, and at most 30s", refund.Outlasts, refund.CallTime, drain)
	}
	for name, c := range map[string]struct {
		takes time.Duration
		slow  string // the write that hangs
		ends  time.Duration
		state booking.RefundState
	}{
		"the gateway hangs":                    {time.Hour, "", refund.CallTime, booking.RefundSent},
		"it answers at last":                   {29 * time.Second, "", 29 * time.Second, booking.RefundDone},
		"it answers at last, the store hangs":  {29999 * time.Millisecond, "done", refund.Outlasts, booking.RefundSent},
		"it answers at once, the store hangs":  {0, "done", 4 * time.Second, booking.RefundSent},
		"the caller ends as it is marked sent": {time.Hour, "", 0, booking.RefundSent},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithCancel(t.Context())
				store := newShelf(due("CK1", time.Now()), due("CK2", time.Now()), due("CK3", time.Now()))
				gateway := &slowGateway{takes: c.takes, began: func(string) { cancel() }}
				want := []string{"CK1"}
				if name == "the caller ends as it is marked sent" {
					store.during = func(method string) {
						if method == "sent" {
							cancel()
						}
					}
					want = nil
				}
				if c.slow != "" {
					store.slow[c.slow] = true
				}
				svc, err := refund.New(refund.Deps{
					Store: store, Gateway: gateway, Automatic: true, Width: 1, PerSecond: 1000,
					Log: slog.New(slog.DiscardHandler), Registerer: prometheus.NewRegistry(),
				})
				if err != nil {
					t.Fatal(err)
				}
				began := time.Now()
				report, err := svc.Sweep(ctx)
				took := time.Since(began)
				if !errors.Is(err, context.Canceled) || report.Open != 3 || report.Left < 2 {
					t.Errorf("Sweep: got %+v, %v, want that it was cancelled, and two left at least", report, err)
				}
				if late := (took - c.ends).Abs(); late > 10*time.Millisecond || took >= drain {
					t.Errorf("Sweep ended after %s, want %s, within a drain", took, c.ends)
				}
				if len(gateway.calls) != len(want) || len(want) == 1 && gateway.calls[0] != want[0] {
					t.Errorf("calls: got %v, want %v", gateway.calls, want)
				}
				if r, _ := store.Refund(t.Context(), "CK1"); r.State != c.state {
					t.Errorf("CK1: got %s, want %s", r.State, c.state)
				}
			})
		})
	}
}

// A call that has not begun is asked about, and made, by whoever claims the refund
// next.
func TestSweep_WhatWasMarkedAndNotSentIsSentLater(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		store, gateway := newShelf(due("CK1", time.Now())), &slowGateway{began: func(string) {}}
		store.during = func(method string) {
			if method == "sent" {
				cancel()
			}
		}
		svc, err := refund.New(refund.Deps{
			Store: store, Gateway: gateway, Automatic: true, Log: slog.New(slog.DiscardHandler), Registerer: prometheus.NewRegistry(),
		})
		if err != nil {
			t.Fatal(err)
		}
		if report, err := svc.Sweep(ctx); err == nil || report.Left != 1 || report.Outage {
			t.Errorf("Sweep: got %+v, %v, want one left, and no outage", report, err)
		}
		time.Sleep(2 * time.Minute) // the bubble's clock: the claim's time
		if report, err := svc.Sweep(t.Context()); err != nil || report.Done != 1 {
			t.Errorf("next Sweep: got %+v, %v, want it done", report, err)
		}
		if len(gateway.calls) != 1 {
			t.Errorf("calls: got %v, want one", gateway.calls)
		}
	})
}
