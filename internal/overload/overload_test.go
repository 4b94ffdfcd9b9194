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
	return metrics.Float64Histogram{Counts: append([]uint64(nil), w.counts[:]...), Buckets: []float64{math.Inf(-1), 0.001, 0.003, 0.2, math.Inf(1)}}
}

func guard(t *testing.T) (*Guard, *waits) {
	t.Helper()
	w := new(waits)
	g := New(prometheus.NewRegistry())
	g.read = w.read
	g.look() // the first reading is what was before
	return g, w
}

// enter has so many come; the first of them enter, or some did whom another has kept out.
func enter(t *testing.T, g *Guard, n int) (entered int) {
	t.Helper()
	for i := range n {
		if _, ok := g.Enter(); ok {
			entered++
			if entered != i+1 {
				t.Errorf("number %d entered after another was refused, want first come, first served", i+1)
			}
		}
	}
	return entered
}

func TestGuard_RefusesWhileGoroutinesWait(t *testing.T) {
	t.Parallel()
	g, w := guard(t)
	enter(t, g, alwaysFree)
	g.look()
	if got := enter(t, g, 1000); got != 1000 {
		t.Errorf("at rest: got %d of 1000, want all", got)
	}
	for _, most := range []int{900, 810, 729} {
		w.counts[0] += 880
		w.counts[3] += 120 // more than one in ten
		g.look()
		if got := enter(t, g, 1000); got != most {
			t.Errorf("after a look at too long a queue: got %d of 1000, want %d", got, most)
		}
	}
	if got := g.share.Load(); got != 190 {
		t.Errorf("refused share: got %d/1000, want 190", got)
	}
	for i, most := range []int{802, 883, 972, 1000} {
		w.counts[0] += 920
		w.counts[3] += 80
		g.look()
		if got := enter(t, g, 1000); got != most {
			t.Errorf("look %d at a short queue: got %d of 1000, want %d", i+1, got, most)
		}
	}
	for range calmAfter + 1 {
		g.look()
	}
	if got := g.limit.Load(); got != noLimit {
		t.Errorf("after a rest: got a limit of %d, want none", got)
	}
}

func TestGuard_BusyBeforeItRefuses(t *testing.T) {
	t.Parallel()
	g, w := guard(t)
	for i, c := range []struct {
		none, short, noticed, long uint64
		busy                       bool
	}{
		{1000, 0, 0, 0, false}, {800, 0, 200, 0, true}, {950, 0, 50, 0, false}, {800, 0, 0, 200, true},
		{0, 0, 5, 0, false}, {0, 1000, 0, 0, false}, {1000, 0, 0, 0, false},
	} {
		w.counts[0] += c.none
		w.counts[1] += c.short   // 1 to 3 ms
		w.counts[2] += c.noticed // 3 to 200 ms
		w.counts[3] += c.long
		g.look()
		if got := g.Busy(); got != c.busy {
			t.Errorf("look %d: got busy %t, want %t", i+1, got, c.busy)
		}
	}
}

func TestGuard_NeverRefusesTheFewAndJudgesByNoFew(t *testing.T) {
	t.Parallel()
	g, w := guard(t)
	for range 20 {
		w.counts[3] += fewest - 1
		g.look()
	}
	if got := g.limit.Load(); got != noLimit {
		t.Errorf("of too few waits: got a limit of %d, want none", got)
	}
	for range 20 {
		w.counts[3] += fewest
		g.look()
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
	g.read = func() metrics.Float64Histogram { return metrics.Float64Histogram{} }
	for range 5 {
		g.look()
	}
	if got := enter(t, g, alwaysFree+1); got != alwaysFree+1 {
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
		if got := g.limit.Load(); got != 1 {
			t.Errorf("under load: got a limit of %d, want the least", got)
		}
		cancel()
		if err := <-done; err != nil || g.limit.Load() != noLimit {
			t.Errorf("ended: got %v and a limit of %d, want nil and none", err, g.limit.Load())
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
