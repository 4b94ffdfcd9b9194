package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"holdfast/internal/admission"
	"holdfast/internal/app"
	"holdfast/internal/booking"
	"holdfast/internal/checkout"
	"holdfast/internal/flight"
	"holdfast/internal/httpapi"
	"holdfast/internal/obs"
	"holdfast/internal/redisproc"
)

// Names of the settings of Gateway.
const (
	FastGateway       = "fast"         // it answers at once
	SlowGateway       = "slow"         // it takes its time, slots are free
	SlowGatewayNoSlot = "slow_no_slot" // it takes its time, and every slot is taken
)

// GatewayResult is one run. Times are the medians of the rounds, ratios are
// medians of each round's own ratio; maps are by setting.
type GatewayResult struct {
	// P50MS and P99MS are of rejections, from the moment at which each was to be
	// sent to the end of its answer.
	P50MS map[string]float64 `json:"p50_ms"`
	P99MS map[string]float64 `json:"p99_ms"`

	SlowOverFastP99   float64 `json:"slow_over_fast_p99"`
	NoSlotOverFastP99 float64 `json:"no_slot_over_fast_p99"`

	// Rate and BookingRate are the rejections and the bookings that are sent each
	// second, whatever becomes of those before.
	Rate        int `json:"rate"`
	BookingRate int `json:"booking_rate"`
	// LatencyMS is what the slow gateway would take, CreateBudgetMS where checkout
	// cuts it off.
	LatencyMS      int64 `json:"latency_ms"`
	CreateBudgetMS int64 `json:"create_budget_ms"`
	// Slots is what there is of them, CallsInFlight the median of how many were at
	// the gateway while the rejections were measured.
	Slots         map[string]int `json:"slots"`
	CallsInFlight map[string]int `json:"calls_in_flight"`

	Rounds     int    `json:"rounds"`
	Engine     string `json:"engine"`
	GOMAXPROCS int    `json:"gomaxprocs"`
}

// GatewayOptions size a run.
type GatewayOptions struct {
	Rounds int
	// Rate and BookingRate are requests a second.
	Rate, BookingRate int
	// Each is one measurement, Warm what is sent before it and not counted.
	Each, Warm time.Duration
	// Latency is what the slow gateway takes.
	Latency time.Duration
	// Slots are plenty; with FewSlots the bookings want more than there are.
	Slots, FewSlots int
	Budgets         checkout.Budgets
}

// DefaultGateway is what the quoted figures come from; about two and a half
// minutes. The rate is a small part of what two cores reject, so that p99 tells
// of the server and not of a queue before it.
func DefaultGateway() GatewayOptions {
	return GatewayOptions{
		Rounds: 5, Rate: 2000, BookingRate: 50, Each: 5 * time.Second, Warm: time.Second,
		Latency: 10 * time.Second, Slots: 1000, FewSlots: 50, Budgets: checkout.DefaultBudgets(),
	}
}

// Gateway measures how long a rejection takes while the payment gateway is fast,
// slow, and slow with no slot free, in turn. It is POST /book as shipped, metrics
// and request log on, over a primary and a replica of its own; beside the
// rejections people book, at a rate of their own.
//
// The budgets are the shipped ones, so a gateway that takes 10 s is cut off after
// 5 s and its seat given back: that is what a server of ours does with such a
// gateway, and as long as it ever keeps a slot. With a longer budget the creates
// would come to their ends, and twice as many calls be in flight at the same
// rate; a rejection meets the same two things, slots that are taken and calls
// that wait, and neither is in its way or both are.
//
// The queue takes records at once. A booking through the fast gateway is queued
// and one through the slow one is not; a disk in one of them only would make the
// comparison look better than it is.
//
// It is an error when a request has another answer than the setting asks for, or
// when the slots were not as its name says. Not to be run beside another load.
func Gateway(ctx context.Context, o GatewayOptions, progress io.Writer) (res GatewayResult, err error) {
	dir, err := os.MkdirTemp("", "holdfast-bench-")
	if err != nil {
		return res, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	defer app.TuneGC(os.Getenv)() // as in the process that ships
	pair, err := redisproc.StartPair(ctx, dir, 1)
	if err != nil {
		return res, fmt.Errorf("the benchmark needs a redis-server on the PATH: %w", err)
	}
	defer pair.Stop()
	// The log goes where a service's log goes: to a file, a line a write.
	logFile, err := os.Create(filepath.Join(dir, "log"))
	if err != nil {
		return res, err
	}
	defer func() { err = errors.Join(err, logFile.Close()) }()
	b := &gatewayBench{GatewayOptions: o, log: obs.NewLogger(logFile, slog.LevelInfo), progress: progress}
	sale := booking.Sale{Name: "bench", Currency: "BDT", Cap: 10_000_000, Hold: time.Hour, Levels: []booking.Level{
		{ID: fullLevel, Name: "Full", Cap: 0, Fee: 100}, {ID: openLevel, Name: "Open", Cap: 10_000_000, Fee: 100},
	}}
	b.ground, err = openGround(ctx, pair.Primary.Addr(), sale, b.bookers()+rejected, nil, b.log)
	if err != nil {
		return res, err
	}
	defer func() { err = errors.Join(err, b.Close()) }()
	return b.run(ctx)
}

// rejected is how many candidates take turns in asking for the full level.
const rejected = 4096

type gatewayBench struct {
	GatewayOptions
	*ground
	log      *slog.Logger
	progress io.Writer
	// next is the next candidate who has not booked.
	next atomic.Int64
}

// bookers is how many will book, and a few more.
func (b *gatewayBench) bookers() int {
	n := 0
	for range b.Rounds + 1 {
		for _, s := range b.settings() {
			n += int((s.lead+b.Warm+b.Each).Seconds()*float64(b.BookingRate)) + b.BookingRate
		}
	}
	return n
}

// setting is one of the three ways to run the server.
type setting struct {
	name  string
	takes time.Duration // at the gateway
	slots int
	// lead is how long people book before the rejections begin, in all alike: until as
	// many calls of a slow gateway
	// end as begin.
	lead time.Duration
	// statuses are what a booking may be answered.
	statuses []int
	// fits tells whether that many calls in flight are what the setting is about.
	fits func(calls int) bool
}

func (b *gatewayBench) settings() []setting {
	lead := min(b.Latency, b.Budgets.Create) * 11 / 10
	return []setting{
		{FastGateway, 0, b.Slots, lead, []int{202}, func(calls int) bool { return calls < b.Slots }},
		{SlowGateway, b.Latency, b.Slots, lead, []int{202, 502}, func(calls int) bool { return calls > 0 && calls < b.Slots }},
		{SlowGatewayNoSlot, b.Latency, b.FewSlots, lead, []int{202, 502, 503}, func(calls int) bool { return calls == b.FewSlots }},
	}
}

func (b *gatewayBench) run(ctx context.Context) (GatewayResult, error) {
	res := GatewayResult{
		P50MS: map[string]float64{}, P99MS: map[string]float64{}, Slots: map[string]int{}, CallsInFlight: map[string]int{},
		Rate: b.Rate, BookingRate: b.BookingRate, LatencyMS: b.Latency.Milliseconds(), CreateBudgetMS: b.Budgets.Create.Milliseconds(),
		Rounds: b.Rounds, Engine: b.engine, GOMAXPROCS: runtime.GOMAXPROCS(0),
	}
	p50, p99, calls := map[string][]float64{}, map[string][]float64{}, map[string][]int{}
	settings := b.settings()
	if _, _, err := b.measure(ctx, settings[0]); err != nil { // warm up
		return res, fmt.Errorf("warm up: %w", err)
	}
	for round := range b.Rounds {
		for i := range settings {
			s := settings[(round+i)%len(settings)] // each is first in its turn
			took, inFlight, err := b.measure(ctx, s)
			if err != nil {
				return res, fmt.Errorf("%s, round %d: %w", s.name, round+1, err)
			}
			res.Slots[s.name] = s.slots
			calls[s.name] = append(calls[s.name], inFlight)
			p50[s.name] = append(p50[s.name], milliseconds(took, 50))
			p99[s.name] = append(p99[s.name], milliseconds(took, 99))
			fmt.Fprintf(b.progress, "round %d of %d  %-12s  p50 %6.2f ms  p99 %6.2f ms  %4d calls at the gateway\n",
				round+1, b.Rounds, s.name, p50[s.name][round], p99[s.name][round], inFlight)
		}
	}
	for _, s := range settings {
		res.P50MS[s.name], res.P99MS[s.name] = rounded(median(p50[s.name]), 3), rounded(median(p99[s.name]), 3)
		res.CallsInFlight[s.name] = middle(calls[s.name])
	}
	res.SlowOverFastP99 = rounded(median(ratios(p99[SlowGateway], p99[FastGateway])), 3)
	res.NoSlotOverFastP99 = rounded(median(ratios(p99[SlowGatewayNoSlot], p99[FastGateway])), 3)
	return res, nil
}

// milliseconds is a percentile of a sorted list.
func milliseconds(sorted []time.Duration, percent int) float64 {
	return float64(sorted[(len(sorted)-1)*percent/100].Nanoseconds()) / 1e6
}

// measure has a server of its own rejecting while people book, and returns the
// rejections' times, sorted, and how many calls were at the gateway meanwhile.
func (b *gatewayBench) measure(ctx context.Context, s setting) (took []time.Duration, calls int, err error) {
	gateway := &lateGateway{takes: s.takes, over: make(chan struct{})}
	edge, err := b.edge(gateway, s.slots)
	if err != nil {
		return nil, 0, err
	}
	srv, err := serve(ctx, edge, b.log)
	if err != nil {
		return nil, 0, err
	}
	defer func() { err = errors.Join(err, srv.http.Close()); <-srv.done }()

	enough := make(chan struct{})
	var waiting sync.WaitGroup
	var booked error
	waiting.Go(func() {
		booked = book(ctx, enough, srv.url(), b.BookingRate, s.statuses, func() int { return int(b.next.Add(1) - 1) })
	})
	var samples []int
	err = pause(ctx, s.lead)
	if err == nil {
		watching, stop := context.WithCancel(ctx)
		waiting.Go(func() {
			if pause(watching, b.Warm) == nil {
				samples = gateway.sample(watching)
			}
		})
		took, err = steady(ctx, srv.url(), b.Rate, b.Warm+b.Each, b.full)
		stop()
	}
	close(enough)
	close(gateway.over) // nobody is measured any more: calls need not come to their ends
	waiting.Wait()
	if err := errors.Join(err, booked); err != nil {
		return nil, 0, err
	}
	if len(samples) == 0 {
		return nil, 0, errors.New("nobody looked at the gateway: the measurement is too short")
	}
	if calls = middle(samples); !s.fits(calls) {
		return nil, 0, fmt.Errorf("%d calls at the gateway with %d slots: not what is to be measured", calls, s.slots)
	}
	took = took[int(float64(b.Rate)*b.Warm.Seconds()):]
	slices.Sort(took)
	return took, calls, nil
}

// full asks for the full level, with candidates who never book.
func (b *gatewayBench) full(buf []byte, n int) []byte {
	return bookAs(buf, b.candidates-1-n%rejected, fullLevel)
}

// edge is the hot path as shipped.
func (b *gatewayBench) edge(gateway checkout.Gateway, slots int) (*httpapi.Server, error) {
	reg := obs.NewRegistry()
	sealer, err := booking.NewSealer(make([]byte, booking.SealKeySize))
	if err != nil {
		return nil, err
	}
	desk, err := checkout.New(checkout.Deps{
		Ledger: b.gate, Gateway: gateway, Queue: atOnce{}, Slots: int64(slots), Budgets: b.Budgets,
		CallbackURL: "http://bench/payment/callback",
		BookingURL:  func(code, attempt string) string { return "http://bench/booking/" + sealer.Seal(code, attempt) },
		Log:         b.log, Registerer: reg,
	})
	if err != nil {
		return nil, err
	}
	return httpapi.New(httpapi.Deps{
		Booker: desk, Finder: nobody{}, Settler: nobody{}, Viewer: nobody{}, Sealer: sealer, Background: new(flight.Group),
		Codes: booking.DefaultCodeRule(), ResultURL: "http://bench/result", ReturnBudget: time.Second, Log: b.log, Registerer: reg,
	})
}

// atOnce is a queue that has taken every record already.
type atOnce struct{}

func (atOnce) Send(context.Context, string, string, []byte) error { return nil }

// lateGateway creates payments after a set time. It is never known to be out:
// what is measured is slowness.
type lateGateway struct {
	takes time.Duration
	over  chan struct{} // closed when calls need not wait any more
	calls atomic.Int64  // in flight
}

// Ready is checkout's question before a seat is taken.
func (*lateGateway) Ready() (func(), error) { return func() {}, nil }

// Create answers in time, or is cut off without an answer.
func (g *lateGateway) Create(ctx context.Context, o booking.Order) (booking.Payment, error) {
	g.calls.Add(1)
	defer g.calls.Add(-1)
	if g.takes > 0 {
		t := time.NewTimer(g.takes)
		defer t.Stop()
		select {
		case <-t.C:
		case <-ctx.Done():
			return booking.Payment{}, fmt.Errorf("create payment: %w: %w", booking.ErrInDoubt, ctx.Err())
		case <-g.over:
			return booking.Payment{}, fmt.Errorf("create payment: %w", booking.ErrInDoubt)
		}
	}
	return instant{}.Create(ctx, o)
}

// sampleEvery is how often the calls in flight are counted.
const sampleEvery = 10 * time.Millisecond

// sample counts the calls in flight until ctx ends.
func (g *lateGateway) sample(ctx context.Context) []int {
	tick := time.NewTicker(sampleEvery)
	defer tick.Stop()
	var seen []int
	for {
		select {
		case <-ctx.Done():
			return seen
		case <-tick.C:
			seen = append(seen, int(g.calls.Load()))
		}
	}
}

// ground is a seat ledger with a sale that is open.
type ground struct {
	rdb        *redis.Client
	gate       *admission.Gate
	keys       admission.Keys
	candidates int
	engine     string // and its version
}

// openGround applies the sale and lists that many candidates; the ledger's clock
// is moved by offset, unless it is nil. The caller closes it.
func openGround(ctx context.Context, addr string, sale booking.Sale, candidates int, offset func() time.Duration, log *slog.Logger) (_ *ground, err error) {
	g := &ground{rdb: admission.NewClient(admission.ClientConfig{Addr: addr, Pool: 300}), candidates: candidates}
	defer func() {
		if err != nil {
			err = errors.Join(err, g.Close())
		}
	}()
	if g.keys, err = admission.NewKeys(benchPrefix); err != nil {
		return nil, err
	}
	g.gate, err = admission.New(g.rdb, admission.Options{Keys: g.keys, Acks: 1, ClockOffset: offset, Log: log, Registerer: obs.NewRegistry()})
	if err != nil {
		return nil, err
	}
	if _, err := g.gate.ApplySale(ctx, sale, booking.NewEpoch(time.Now()), false); err != nil {
		return nil, err
	}
	for part := range slices.Chunk(numbers(candidates), 500) {
		list := make([]booking.Candidate, len(part))
		for i, n := range part {
			list[i] = booking.Candidate{Code: candidate(n), Email: benchEmail}
		}
		if err := g.gate.AddCandidates(ctx, list); err != nil {
			return nil, err
		}
	}
	if err := g.gate.Open(ctx); err != nil {
		return nil, err
	}
	info, err := g.rdb.InfoMap(ctx, "server").Result()
	if err != nil {
		return nil, err
	}
	g.engine = "redis " + info["Server"]["redis_version"]
	if v := info["Server"]["valkey_version"]; v != "" {
		g.engine = "valkey " + v
	}
	return g, nil
}

// benchEmail is every candidate's.
const benchEmail = "bench@example.org"

// Close closes the connections.
func (g *ground) Close() error { return g.rdb.Close() }
