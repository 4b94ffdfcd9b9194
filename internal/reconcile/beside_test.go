package reconcile_test

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"holdfast/internal/booking"
	"holdfast/internal/booking/bookingtest"
	"holdfast/internal/reconcile"
)

// Work after a sweep: it hangs, and the rows have their sweeps all the same; it
// fails, and the next of it has its turn; none of it runs twice at once.
func TestAfterSweep_KeepsNothingFromItsTurn(t *testing.T) {
	w := inProcess(t)
	b := w.Held(t, 1, "N1")
	w.Clock.Advance(booking.DefaultHold)
	var (
		mu     sync.Mutex
		order  []string
		atWork atomic.Int32
		hangs  = make(chan struct{})
		freed  = make(chan struct{})
		rounds = make(chan struct{})
		broken = errors.New("mail of the refunds is out")
		begin  = func(name string) { mu.Lock(); order = append(order, name); mu.Unlock() }
		alone  = func() func() {
			if atWork.Add(1) > 1 {
				t.Error("work after a sweep: got two at once, want one")
			}
			return func() { atWork.Add(-1) }
		}
	)
	first := sync.OnceFunc(func() { close(hangs); <-freed })
	w.deps.Changed = func() { close(freed) } // by the sweep that releases the seat
	w.deps.AfterSweep = []reconcile.Work{
		{Name: "hanging work", Do: func(ctx context.Context) (map[string]int, error) {
			defer alone()()
			if end, limited := ctx.Deadline(); !limited || time.Until(end) > w.deps.Budget {
				t.Errorf("time of the work: got until %s, want at most the sweep's budget", end)
			}
			begin("hangs")
			first()
			return map[string]int{"done": 1}, broken
		}},
		{Name: "next work", Do: func(context.Context) (map[string]int, error) {
			defer alone()()
			begin("next")
			mu.Lock()
			defer mu.Unlock()
			if len(order) == 6 {
				close(rounds)
			}
			return nil, nil
		}},
	}
	// The first sweeps find no row: the seat is looked at when the work has hung for
	// some of them.
	w.rdb.ZRem(t.Context(), prefix+"adm:due", b.Code)
	swept := make(chan struct{})
	for range 4 {
		w.Faults.Before(bookingtest.OpDue, func() { swept <- struct{}{} })
	}
	runner := w.another(t)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	ended := make(chan error, 1)
	go func() { ended <- runner.Run(ctx) }()
	<-swept
	<-hangs
	for range 3 {
		<-swept
	}
	w.due(t, b)
	select {
	case <-rounds:
	case <-ctx.Done():
		t.Error("rounds of work: got fewer than three in 20 s")
	}
	cancel()
	if err := <-ended; err != nil {
		t.Errorf("run: got %v, want nil", err)
	}
	if n := atWork.Load(); n != 0 {
		t.Errorf("work after the end of Run: got %d at work, want none", n)
	}
	w.Want(t, b, "", booking.StateReleased)
	mu.Lock()
	defer mu.Unlock()
	for i, name := range order {
		if want := []string{"hangs", "next"}[i%2]; name != want {
			t.Errorf("order: got %v, want each after the other", order)
			break
		}
	}
	if got := w.log.take(); !slices.Contains(got, "hanging work") {
		t.Errorf("errors in the log: got %q, want the work that failed", got)
	}
}

// A sweep that broke off is followed by the other work too; a run that ends waits for
// what is at work, and begins none.
func TestAfterSweep_RunsAfterABrokenSweepAndNotAfterTheEnd(t *testing.T) {
	w := inProcess(t)
	w.Faults.Next(bookingtest.OpDue, bookingtest.Lost)
	w.deps.Every = time.Hour
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	begun, goOn := make(chan struct{}), make(chan struct{})
	w.deps.AfterSweep = []reconcile.Work{
		{Name: "work", Do: func(context.Context) (map[string]int, error) { close(begun); <-goOn; return nil, nil }},
		{Name: "work after the end", Do: func(context.Context) (map[string]int, error) {
			t.Error("work after the end: got a call, want none")
			return nil, nil
		}},
	}
	runner := w.another(t)
	ended := make(chan error, 1)
	go func() { ended <- runner.Run(ctx) }()
	<-begun
	cancel()
	for range 200 { // long enough, nearly always, for a Run that does not wait
		if _, err := w.Ledger.Now(t.Context()); err != nil {
			t.Error(err)
		}
	}
	select {
	case err := <-ended:
		t.Fatalf("run: got its end, %v, with work still going on, want it to wait", err)
	default:
	}
	close(goOn)
	if err := <-ended; err != nil {
		t.Errorf("run: got %v, want nil", err)
	}
}
