package overload_test

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"holdfast/internal/flight"
	"holdfast/internal/overload"
)

// deferred is a Later at work over a group of flights.
type deferred struct {
	*overload.Later
	busy    atomic.Bool
	flights flight.Group
	end     func()

	mu    sync.Mutex
	begun []int
}

func deferring(t *testing.T) *deferred {
	t.Helper()
	d := new(deferred)
	d.Later = overload.NewLater(d.busy.Load, d.flights.Go)
	d.busy.Store(true)
	d.Go(d.piece(0))
	d.want(t, "before it runs", 0)
	d.busy.Store(false)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); _ = d.Run(ctx) }()
	synctest.Wait()
	d.begun = nil
	d.end = func() { cancel(); <-done }
	t.Cleanup(d.end)
	return d
}

// piece notes that it has begun.
func (d *deferred) piece(n int) func() {
	return func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		d.begun = append(d.begun, n)
	}
}

func (d *deferred) want(t *testing.T, when string, want ...int) {
	t.Helper()
	synctest.Wait()
	d.mu.Lock()
	defer d.mu.Unlock()
	if !slices.Equal(slices.Sorted(slices.Values(d.begun)), want) {
		t.Errorf("%s: got %v begun, want %v", when, d.begun, want)
	}
}

func TestLater_WaitsForACalmMomentAndNoLonger(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d := deferring(t)
		d.Go(d.piece(1))
		d.want(t, "calm", 1)
		d.busy.Store(true)
		d.Go(d.piece(2))
		d.Go(d.piece(3))
		time.Sleep(39 * time.Second)
		d.want(t, "busy", 1)
		time.Sleep(2 * time.Second)
		d.want(t, "busy for longer than that", 1, 2, 3)
		d.Go(d.piece(4))
		time.Sleep(time.Second)
		d.want(t, "busy again", 1, 2, 3)
		d.busy.Store(false)
		time.Sleep(250 * time.Millisecond)
		d.want(t, "calm again", 1, 2, 3, 4)
	})
}

func TestLater_FewAtOnceAndInTheirOrder(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d := deferring(t)
		goOn := make(chan struct{})
		for i := range 20 {
			d.Go(func() { d.piece(i)(); <-goOn })
		}
		d.want(t, "none has ended", 0, 1, 2, 3, 4, 5, 6, 7)
		goOn <- struct{}{}
		d.want(t, "one has ended", 0, 1, 2, 3, 4, 5, 6, 7, 8)
		close(goOn)
		synctest.Wait()
		if n := len(d.begun); n != 20 {
			t.Errorf("got %d begun, want all", n)
		}
	})
}

// A drain waits for what was promised, and refuses what comes too late.
func TestLater_WhatIsLeftBeginsAtTheEnd(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d := deferring(t)
		d.busy.Store(true)
		d.Go(d.piece(1))
		d.Go(d.piece(2))
		d.want(t, "busy")
		d.end()
		d.want(t, "the end", 1, 2)
		if !d.Go(d.piece(3)) {
			t.Error("while it drains: got a refusal, want it begun")
		}
		d.want(t, "while it drains", 1, 2, 3)
		if err := d.flights.Wait(t.Context()); err != nil {
			t.Fatal(err)
		}
		if d.Go(d.piece(4)) {
			t.Error("after the drain: got true, want a refusal")
		}
		d.want(t, "after the drain", 1, 2, 3)
	})
}

// What is refused holds up nothing that comes after it.
func TestLater_ARefusalTakesNoPlace(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var asked atomic.Int64
		l := overload.NewLater(func() bool { return false }, func(func()) bool { asked.Add(1); return false })
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { defer close(done); _ = l.Run(ctx) }()
		synctest.Wait()
		for range 30 {
			l.Go(func() {})
		}
		synctest.Wait()
		if n := asked.Load(); n != 30 {
			t.Errorf("got %d tried, want all", n)
		}
		cancel()
		<-done
	})
}
