package overload

import (
	"context"
	"math"
	"runtime/metrics"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// waits are what goroutines have waited, as the runtime counts it.
type waits struct{ counts [4]uint64 }

func (w *waits) read() metrics.Float64Histogram {
	return metrics.Float64Histogram{Counts: append([]uint64(nil), w.counts[:]...), Buckets: []float64{math.Inf(-1), 0.001, 0.02, 0.2, math.Inf(1)}}
}

func guard(t *testing.T) (*Guard, *waits) {
	t.Helper()
	w := new(waits)
	g := New(prometheus.NewRegistry())
	g.read, g.draw = w.read, func() float64 { return 0.5 }
	g.look() // the first reading is what was before
	return g, w
}

func enter(g *Guard, n int) (entered int) {
	for range n {
		if _, ok := g.Enter(); ok {
			entered++
		}
	}
	return entered
}

func TestGuard_RefusesWhileGoroutinesWait(t *testing.T) {
	t.Parallel()
	g, w := guard(t)
	enter(g, alwaysFree)
	if got := enter(g, 10); got != 10 {
		t.Errorf("at rest: got %d of 10, want all", got)
	}
	for range 6 {
		w.counts[0] += 880
		w.counts[3] += 120 // more than one in ten
		g.look()
	}
	if got := enter(g, 10); got != 0 {
		t.Errorf("after 6 looks at too long a queue: got %d of 10, want none at a draw of a half", got)
	}
	for range 6 {
		w.counts[0] += 920
		w.counts[3] += 80
		g.look()
	}
	if got := enter(g, 10); got != 10 {
		t.Errorf("after 6 looks at a short queue: got %d of 10, want all at a draw of a half", got)
	}
	for range 40 {
		g.look()
	}
	if got := g.share(); got != 0 {
		t.Errorf("after a rest: got a refused share of %v, want none", got)
	}
}

func TestGuard_NeverRefusesTheFewAndJudgesByNoFew(t *testing.T) {
	t.Parallel()
	g, w := guard(t)
	g.draw = func() float64 { return 0 }
	for range 20 {
		w.counts[3] += fewest - 1
		g.look()
	}
	if got := g.share(); got != 0 {
		t.Errorf("of too few waits: got a refused share of %v, want none", got)
	}
	for range 20 {
		w.counts[3] += fewest
		g.look()
	}
	if got := g.share(); got != 1 {
		t.Errorf("of enough: got a refused share of %v, want all", got)
	}
	var leave func()
	for i := range alwaysFree {
		l, ok := g.Enter()
		if !ok {
			t.Fatalf("number %d: refused, want the first %d to enter", i+1, alwaysFree)
		}
		leave = l
	}
	if _, ok := g.Enter(); ok {
		t.Error("one more: it entered, want it refused")
	}
	leave()
	if _, ok := g.Enter(); !ok {
		t.Error("after one has left: refused, want it to enter")
	}
}

func TestGuard_WithoutAReadingNothingIsRefused(t *testing.T) {
	t.Parallel()
	g, _ := guard(t)
	g.draw, g.read = func() float64 { return 0 }, func() metrics.Float64Histogram { return metrics.Float64Histogram{} }
	for range 5 {
		g.look()
	}
	if got := enter(g, alwaysFree+1); got != alwaysFree+1 {
		t.Errorf("got %d to enter, want all %d", got, alwaysFree+1)
	}
}

func TestGuard_WatchesUntilItsEnd(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g, w := guard(t)
		g.read = func() metrics.Float64Histogram { w.counts[3] += 100; return w.read() }
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- g.Run(ctx) }()
		time.Sleep(20 * every)
		synctest.Wait()
		if got := g.share(); got < 0.9 {
			t.Errorf("under load: got a refused share of %v, want it near all", got)
		}
		cancel()
		if err := <-done; err != nil || g.share() != 0 {
			t.Errorf("ended: got %v and a share of %v, want nil and none", err, g.share())
		}
	})
}

func TestGuard_TheRuntimeHasTheReading(t *testing.T) {
	t.Parallel()
	h := schedLatencies()
	if len(h.Counts) == 0 || len(h.Buckets) != len(h.Counts)+1 {
		t.Errorf("%s: got %d counts and %d bounds, want a histogram", name, len(h.Counts), len(h.Buckets))
	}
}
