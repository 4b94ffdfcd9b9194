// Package overload tells when a process has more to do than its processors can, so that
// work that has not begun can be refused while that is still cheap.
//
// Without it a server falls from a height: each step of a request waits behind every
// other request's, so that a request of ten steps waits ten times, and all of them end
// too late for those who asked, who ask again. What is measured is the very cause, how
// long goroutines that could run have waited for a processor (runtime/metrics,
// /sched/latencies:seconds), and not how long answers take, which a slow gateway decides
// as well.
//
// Fail mode: without a reading nothing is refused. Clock: a ticker of Run's.
package overload

import (
	"context"
	"math/rand/v2"
	"runtime/metrics"
	"slices"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

const (
	every = 50 * time.Millisecond
	// tooLong is a wait for a processor that one in ten exceeds only when there is too
	// much to do: with processors to spare it is microseconds, and a garbage collection
	// or a neighbour on the machine takes a few milliseconds.
	tooLong = 100 * time.Millisecond
	// fewest waits to judge by.
	fewest = 20
	// The refused share goes up fast, since a queue that has formed only ends when less
	// comes than is done, and down slowly, so that it settles.
	up, down = 0.10, 0.05
	// alwaysFree is how many may be under way whatever the readings are: so few are not
	// what keeps a process from its work.
	alwaysFree = 512
	name       = "/sched/latencies:seconds"
)

// Guard decides what is refused. Safe for concurrent use.
type Guard struct {
	read     func() metrics.Float64Histogram
	last     []uint64
	refused  atomic.Int64 // the share, in 1/1000
	underWay atomic.Int64
	draw     func() float64
	counter  prometheus.Counter
}

// New refuses nothing until Run runs.
func New(reg prometheus.Registerer) *Guard {
	g := &Guard{read: schedLatencies, draw: rand.Float64}
	f := promauto.With(reg)
	f.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "holdfast_overload_refused_share",
		Help: "Share of new bookings that are refused because goroutines wait too long for a processor, 0 to 1.",
	}, g.share)
	g.counter = f.NewCounter(prometheus.CounterOpts{
		Name: "holdfast_overload_refused_total",
		Help: "Bookings that were refused before they began, because this process has too much to do.",
	})
	return g
}

// Enter asks whether a piece of work may begin. If so, the caller calls leave at its end,
// once.
func (g *Guard) Enter() (leave func(), ok bool) {
	if n := g.underWay.Add(1); n > alwaysFree {
		if share := g.share(); share > 0 && g.draw() < share {
			g.underWay.Add(-1)
			g.counter.Inc()
			return nil, false
		}
	}
	return g.leave, true
}

func (g *Guard) leave() { g.underWay.Add(-1) }

func (g *Guard) share() float64 { return float64(g.refused.Load()) / 1000 }

// Run watches until ctx ends, which is no error.
func (g *Guard) Run(ctx context.Context) error {
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			g.refused.Store(0)
			return nil
		case <-tick.C:
			g.look()
		}
	}
}

// look judges what was waited since the last look.
func (g *Guard) look() {
	h := g.read()
	first := len(g.last) != len(h.Counts)
	since := slices.Clone(h.Counts)
	for i := range g.last {
		if !first {
			since[i] -= g.last[i]
		}
	}
	g.last = append(g.last[:0], h.Counts...)
	if first {
		return
	}
	share := g.share()
	if waited(since, h.Buckets) > tooLong {
		share = min(1, share+up)
	} else {
		share = max(0, share-down)
	}
	g.refused.Store(int64(share*1000 + 0.5))
}

// waited is the 90th percentile, not overstated: the lower bound of its bucket; 0 of too
// few.
func waited(counts []uint64, buckets []float64) time.Duration {
	var all uint64
	for _, n := range counts {
		all += n
	}
	if all < fewest {
		return 0
	}
	over := all / 10
	for i, n := range slices.Backward(counts) {
		if n > over {
			return time.Duration(max(0, buckets[i]) * float64(time.Second))
		}
		over -= n
	}
	return 0
}

func schedLatencies() metrics.Float64Histogram {
	s := []metrics.Sample{{Name: name}}
	metrics.Read(s)
	if s[0].Value.Kind() != metrics.KindFloat64Histogram {
		return metrics.Float64Histogram{}
	}
	return *s[0].Value.Float64Histogram()
}
