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
	"math"
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
	// noticeable is a wait that says that no processor is to spare.
	noticeable = 2 * time.Millisecond
	// fewest waits to judge by.
	fewest = 20
	// alwaysFree is how many may be under way whatever the readings are: so few are not
	// what keeps a process from its work.
	alwaysFree = 512
	// calmAfter looks without a refusal there is no limit any more.
	calmAfter = 20
	noLimit   = math.MaxInt64
	name      = "/sched/latencies:seconds"
)

// Guard decides what is refused. Safe for concurrent use.
type Guard struct {
	read    func() metrics.Float64Histogram
	last    []uint64
	calm    int
	counter prometheus.Counter

	limit          atomic.Int64 // how many may begin between two looks
	begun, refused atomic.Int64 // since the last look; the refused are among the begun
	share          atomic.Int64 // of those before it that were refused, in 1/1000
	underWay       atomic.Int64
	waiting        atomic.Int64 // what the last look found, ns
}

// New refuses nothing until Run runs.
func New(reg prometheus.Registerer) *Guard {
	g := &Guard{read: schedLatencies}
	g.limit.Store(noLimit)
	f := promauto.With(reg)
	f.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "holdfast_overload_refused_share",
		Help: "Share of new bookings that are refused because goroutines wait too long for a processor, 0 to 1.",
	}, func() float64 { return float64(g.share.Load()) / 1000 })
	g.counter = f.NewCounter(prometheus.CounterOpts{
		Name: "holdfast_overload_refused_total",
		Help: "Bookings that were refused before they began, because this process has too much to do.",
	})
	return g
}

// Enter asks whether a piece of work may begin: of those who come between two looks, the
// first do. If so, the caller calls leave at its end, once.
func (g *Guard) Enter() (leave func(), ok bool) {
	n := g.begun.Add(1)
	if g.underWay.Add(1) > alwaysFree && n > g.limit.Load() {
		g.underWay.Add(-1)
		g.refused.Add(1)
		g.counter.Inc()
		return nil, false
	}
	return g.leave, true
}

func (g *Guard) leave() { g.underWay.Add(-1) }

// Busy tells whether goroutines wait for a processor now, so that what can wait should.
func (g *Guard) Busy() bool { return time.Duration(g.waiting.Load()) > noticeable }

// Run watches until ctx ends, which is no error.
func (g *Guard) Run(ctx context.Context) error {
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			g.limit.Store(noLimit)
			g.waiting.Store(0)
			return nil
		case <-tick.C:
			g.look()
		}
	}
}

// look judges what was waited since the last look. A tenth fewer than have begun may begin
// until the next one when that was too long, since a queue that has formed only ends when
// less comes than is done; else a tenth more, until there is nothing to refuse.
func (g *Guard) look() {
	begun, refused := g.begun.Swap(0), g.refused.Swap(0)
	g.share.Store(refused * 1000 / max(1, begun))
	limit := g.limit.Load()
	waited := g.waited()
	g.waiting.Store(int64(waited))
	switch {
	case waited > tooLong:
		g.calm = 0
		limit = max(1, min(limit, begun-refused)*9/10)
	case limit == noLimit:
	default:
		limit += limit/10 + 1
		if g.calm++; refused > 0 {
			g.calm = 0
		}
		if g.calm >= calmAfter {
			limit = noLimit
		}
	}
	g.limit.Store(limit)
}

// waited is how long goroutines have waited since it was asked last.
func (g *Guard) waited() time.Duration {
	h := g.read()
	since := slices.Clone(h.Counts)
	known := len(g.last) == len(h.Counts)
	for i := range since {
		if known {
			since[i] -= g.last[i]
		}
	}
	g.last = append(g.last[:0], h.Counts...)
	if !known {
		return 0
	}
	return waited(since, h.Buckets)
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
