package bench

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"holdfast/internal/admission"
	"holdfast/internal/app"
	"holdfast/internal/booking"
	"holdfast/internal/config"
	"holdfast/internal/flight"
	"holdfast/internal/lease"
	"holdfast/internal/mailer/outbox"
	"holdfast/internal/obs"
	"holdfast/internal/reconcile"
	"holdfast/internal/redisproc"
	"holdfast/internal/settle"
	"holdfast/internal/store/sqlite"
)

// WaveResult is one run.
type WaveResult struct {
	Holds     int   `json:"holds"`
	LatencyMS int64 `json:"latency_ms"`
	// Seconds are from the first sweep to the last record that came to its end, or
	// to the time limit.
	Seconds float64 `json:"seconds"`
	// OldestFirst: the largest inversion is at most InversionMostMS. An inversion is
	// by how much a hold's deadline was later than that of another of which the
	// gateway was asked after it.
	OldestFirst        bool    `json:"oldest_first"`
	LargestInversionMS float64 `json:"largest_inversion_ms"`
	InversionMostMS    float64 `json:"inversion_most_ms"`
	// PeakQueriesPerS is the most queries that came to the gateway within one second.
	PeakQueriesPerS int `json:"peak_queries_per_s"`
	// QueryRate is the fleet's, Burst how many more may come at once after a pause.
	QueryRate int `json:"query_rate"`
	Burst     int `json:"burst"`
	// Queries, with those that were repeated, and StoreWrites are sums.
	Queries     int `json:"queries"`
	StoreWrites int `json:"store_writes"`
	// Released and Paid are records in these states, Left all others.
	Released int `json:"released"`
	Paid     int `json:"paid"`
	Left     int `json:"left"`

	Engine     string `json:"engine"`
	GOMAXPROCS int    `json:"gomaxprocs"`
}

const (
	// waveWithin is how long a wave may take, whatever its size.
	waveWithin = 2 * time.Minute
	// queryLate is how much later than it was let go a query may be counted, on a
	// machine that has other work: so much more than a second may seem to be one.
	queryLate = 100 * time.Millisecond
)

// Check tells which rules the wave broke; nil when it kept them all.
func (r WaveResult) Check() error {
	var errs []error
	if r.Left > 0 {
		errs = append(errs, fmt.Errorf("%d of %d holds are left", r.Left, r.Holds))
	}
	if r.Seconds > waveWithin.Seconds() {
		errs = append(errs, fmt.Errorf("it took %.1f s, more than %s", r.Seconds, waveWithin))
	}
	if r.PeakQueriesPerS > r.QueryRate+r.Burst+int(float64(r.QueryRate)*queryLate.Seconds()) {
		errs = append(errs, fmt.Errorf("%d queries in one second, more than %d and a burst of %d", r.PeakQueriesPerS, r.QueryRate, r.Burst))
	}
	if !r.OldestFirst {
		errs = append(errs, fmt.Errorf("a hold was asked about before one that was due %.0f ms earlier", r.LargestInversionMS))
	}
	return errors.Join(errs...)
}

// WaveOptions size a run. What is not here is as shipped.
type WaveOptions struct {
	// Holds fall due, their deadlines spread evenly over a minute.
	Holds int
	// Latency is what the gateway takes for an answer.
	Latency time.Duration
	// Within ends the run; what is not settled by then is left.
	Within time.Duration
}

// DefaultWave is what the quoted figures come from.
func DefaultWave() WaveOptions {
	return WaveOptions{Holds: 20_000, Latency: 100 * time.Millisecond, Within: waveWithin + 10*time.Second}
}

const (
	waveSpread = time.Minute
	waveHold   = 10 * time.Minute
	// One payment in paidEvery was completed by its payer, who never came back.
	paidEvery = 10
	// makers is how many holds are made at a time.
	makers = 16
	// As the wiring of the API process has them.
	waveBudget = 45 * time.Second
	waveLapse  = 24 * time.Hour
	waveTerm   = 15 * time.Second
	// settledAfter bounds what is under way when the run ends.
	settledAfter = 30 * time.Second
)

// Wave lets many holds fall due within one minute and measures how the reconciler
// settles them: the real one, as the API process builds and runs it, with the
// settings it has when nobody sets any, over a primary and a replica of its own
// and a booking store on disk. The holds are made through the scripts, minutes
// ago by the ledger's clock, and are all past their deadlines when the first
// sweep begins. The gateway is a stand-in that answers after a set time: most
// payments are open, every tenth is completed and must end paid.
//
// The error says why there is no figure; whether the rules were kept is the
// result's Check. A release without its record, a payment that was executed or a
// ledger that does not agree with the store is an error. Not to be run beside
// another load.
func Wave(ctx context.Context, o WaveOptions, progress io.Writer) (res WaveResult, err error) {
	if o.Holds < 1 || o.Latency < 0 || o.Within <= 0 {
		return res, errors.New("wave: holds and time must be positive")
	}
	cfg, err := shipped()
	if err != nil {
		return res, fmt.Errorf("settings: %w", err)
	}
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
	logFile, err := os.Create(filepath.Join(dir, "log"))
	if err != nil {
		return res, err
	}
	defer func() { err = errors.Join(err, logFile.Close()) }()
	w := &wave{
		WaveOptions: o, cfg: cfg, log: obs.NewLogger(logFile, slog.LevelInfo), progress: progress, dir: dir,
		made: make([]booking.Record, o.Holds), start: time.Now(),
	}
	sale := booking.Sale{Name: "bench", Currency: "BDT", Cap: o.Holds, Hold: waveHold, Levels: []booking.Level{
		{ID: openLevel, Name: "Open", Cap: o.Holds, Fee: 100},
	}}
	w.ground, err = openGround(ctx, pair.Primary.Addr(), sale, o.Holds, w.clockOffset, w.log)
	if err != nil {
		return res, err
	}
	defer func() { err = errors.Join(err, w.Close()) }()
	records, err := sqlite.Open(ctx, filepath.Join(dir, "store.db"))
	if err != nil {
		return res, err
	}
	defer func() { err = errors.Join(err, records.Close()) }()
	w.store = &watchedStore{Store: records, want: o.Holds, ended: map[string]bool{}, all: make(chan struct{})}
	if err := w.makeHolds(ctx); err != nil {
		return res, fmt.Errorf("make holds: %w", err)
	}
	return w.run(ctx)
}

// shipped are the settings of an API process of which only what is required was
// set.
func shipped() (config.API, error) {
	required := map[string]string{
		"HOLDFAST_PUBLIC_URL": "http://bench", "HOLDFAST_GATEWAY_URL": "http://gateway.bench",
		"HOLDFAST_SEAL_KEY":        hex.EncodeToString(make([]byte, booking.SealKeySize)),
		"HOLDFAST_GATEWAY_APP_KEY": "bench", "HOLDFAST_GATEWAY_APP_SECRET": "bench",
		"HOLDFAST_GATEWAY_USERNAME": "bench", "HOLDFAST_GATEWAY_PASSWORD": "bench",
	}
	return config.LoadAPI(func(name string) string { return required[name] })
}

type wave struct {
	WaveOptions
	*ground
	cfg      config.API
	log      *slog.Logger
	progress io.Writer
	dir      string
	store    *watchedStore

	start  time.Time
	offset atomic.Int64 // of the ledger's clock
	mu     sync.Mutex
	next   int // hold to make
	made   []booking.Record
}

func (w *wave) clockOffset() time.Duration { return time.Duration(w.offset.Load()) }

// standAt moves the ledger's clock to that long after the start.
func (w *wave) standAt(at time.Duration) { w.offset.Store(int64(at - time.Since(w.start))) }

// turn gives the next hold to make, and moves the ledger's clock to its minute's
// share, however quickly the holds are made.
func (w *wave) turn() (i int, ok bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.next == w.Holds {
		return 0, false
	}
	i = w.next
	w.next++
	w.standAt(waveSpread * time.Duration(i) / time.Duration(w.Holds))
	return i, true
}

// makeHolds makes them as a booking does, up to the record that the worker writes,
// and leaves the ledger's clock past the last deadline.
func (w *wave) makeHolds(ctx context.Context) error {
	fmt.Fprintf(w.progress, "making %d holds\n", w.Holds)
	g, ctx := errgroup.WithContext(ctx)
	for range makers {
		g.Go(func() error {
			for ctx.Err() == nil {
				i, more := w.turn()
				if !more {
					return nil
				}
				if err := w.makeHold(ctx, i); err != nil {
					return err
				}
			}
			return ctx.Err()
		})
	}
	if err := g.Wait(); err != nil {
		return err
	}
	if w.gate.ReleasesPutOff() {
		return errors.New("the replica is too slow for this machine's load, and seats would be kept: not what is to be measured")
	}
	w.standAt(waveSpread + waveHold + time.Second)
	return nil
}

func (w *wave) makeHold(ctx context.Context, i int) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	code := candidate(i)
	var row booking.Row
	if err := acknowledged(ctx, func() error {
		seat, err := w.gate.Admit(ctx, booking.Request{Code: code, Email: benchEmail, Level: openLevel}, booking.NewAttemptSuffix(time.Now()), false)
		row = seat.Row
		return err
	}); err != nil {
		return err
	}
	pay := booking.Payment{ID: fmt.Sprintf("%s%07d", wavePayment, i), URL: "http://gateway.bench/pay/" + code, Signature: "k3YOrG8qy6"}
	attempt := row.Attempt
	if err := acknowledged(ctx, func() (err error) {
		row, _, err = w.gate.Attach(ctx, code, attempt, pay)
		return err
	}); err != nil {
		return err
	}
	if err := acknowledged(ctx, func() error { return w.gate.Queued(ctx, code, attempt) }); err != nil {
		return err
	}
	w.made[i] = row.HeldRecord(code, pay.URL, pay.Signature)
	_, _, err := w.store.PutHeld(ctx, w.made[i])
	return err
}

// acknowledged repeats a step that the replica was too slow for.
func acknowledged(ctx context.Context, step func() error) error {
	for {
		err := step()
		if !errors.Is(err, booking.ErrNotAcknowledged) || pause(ctx, 10*time.Millisecond) != nil {
			return err
		}
	}
}

// wavePayment stands before the number of the hold in a payment's id.
const wavePayment = "TR0011"

func (w *wave) run(ctx context.Context) (WaveResult, error) {
	gateway := &waveGateway{made: w.made, takes: w.Latency}
	flights := new(flight.Group)
	rec, err := w.reconciler(gateway, flights)
	if err != nil {
		return WaveResult{}, err
	}
	w.store.writes.Store(0)
	running, stop := context.WithCancel(ctx)
	defer stop()
	g, failed := errgroup.WithContext(running)
	began := time.Now()
	g.Go(func() error { return w.gate.Watch(failed) })
	g.Go(func() error {
		return lease.New(w.rdb, w.keys.Lock(), waveTerm, time.Now).Keep(failed, w.log, rec.Run)
	})
	w.await(failed, began)
	took := time.Since(began)
	stop()
	err = errors.Join(g.Wait(), ctx.Err())
	flights.Close()
	ending, cancel := context.WithTimeout(context.WithoutCancel(ctx), settledAfter)
	defer cancel()
	if err := errors.Join(err, flights.Wait(ending)); err != nil {
		return WaveResult{}, err
	}
	if last, all := w.store.last(); all {
		took = last.Sub(began)
	}
	return w.result(ctx, gateway, took)
}

// await waits for the last hold, or for the time limit.
func (w *wave) await(ctx context.Context, began time.Time) {
	ctx, cancel := context.WithDeadline(ctx, began.Add(w.Within))
	defer cancel()
	tick := time.NewTicker(5 * time.Second)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-w.store.all:
			return
		case <-tick.C:
			fmt.Fprintf(w.progress, "%3.0f s: %d of %d settled\n", time.Since(began).Seconds(), w.store.count(), w.Holds)
		}
	}
}

// reconciler is the API process's, with a stand-in for the gateway and without the
// work beside the sweeps: there are no notifications and no refunds.
func (w *wave) reconciler(gateway *waveGateway, flights *flight.Group) (*reconcile.Reconciler, error) {
	reg := obs.NewRegistry()
	mail, err := outbox.New(filepath.Join(w.dir, "outbox"), w.cfg.MailFrom, time.Now)
	if err != nil {
		return nil, err
	}
	settler, err := settle.New(settle.Deps{
		Ledger: w.gate, Gateway: gateway, Store: w.store, Mailer: mail, Sale: w.gate, Background: flights,
		BookingURL:     func(code, _ string) string { return w.cfg.PublicURL + "/result?booking=" + code },
		ExecuteTimeout: w.cfg.ExecuteTimeout, Log: w.log, Registerer: reg,
	})
	if err != nil {
		return nil, err
	}
	return reconcile.New(reconcile.Deps{
		Ledger: w.gate, Gateway: gateway, Settler: settler, Store: w.store,
		Every: w.cfg.ReconcileEvery, Budget: waveBudget, Width: w.cfg.ReconcileWidth, QueriesPerSecond: float64(w.cfg.QueryRate),
		ExecuteTimeout: w.cfg.ExecuteTimeout, Lapse: waveLapse, Log: w.log, Registerer: reg,
	})
}

// result reads store and ledger when nothing moves any more.
func (w *wave) result(ctx context.Context, gateway *waveGateway, took time.Duration) (WaveResult, error) {
	queries, inversion, executed := gateway.seen()
	res := WaveResult{
		Holds: w.Holds, LatencyMS: w.Latency.Milliseconds(), Seconds: rounded(took.Seconds(), 2),
		LargestInversionMS: rounded(float64(inversion.Microseconds())/1000, 1),
		PeakQueriesPerS:    peak(queries), QueryRate: w.cfg.QueryRate, Burst: w.cfg.ReconcileWidth, Queries: len(queries),
		StoreWrites: int(w.store.writes.Load()), Engine: w.engine, GOMAXPROCS: runtime.GOMAXPROCS(0),
	}
	// Rows are worked on in their order, a width of them at a time. Twice as many
	// is what may lie between two that change places on the way to the gateway.
	most := 2 * waveSpread * time.Duration(w.cfg.ReconcileWidth) / time.Duration(w.Holds)
	res.InversionMostMS = rounded(float64(most.Microseconds())/1000, 1)
	res.OldestFirst = inversion <= most
	for rec, err := range w.store.Records(ctx) {
		if err != nil {
			return res, err
		}
		switch rec.State {
		case booking.StatePaid:
			res.Paid++
		case booking.StateReleased:
			res.Released++
		}
	}
	res.Left = w.Holds - res.Released - res.Paid
	rows, _, figures, err := w.gate.Count(ctx)
	switch {
	case err != nil:
		return res, err
	case executed > 0:
		return res, fmt.Errorf("%d payments were executed: their payers never came back", executed)
	case rows != res.Paid+res.Left || figures.Total != rows:
		return res, fmt.Errorf("%d rows and a counter of %d beside %d records that are paid or left", rows, figures.Total, res.Paid+res.Left)
	case res.Left == 0 && res.Paid != (w.Holds+paidEvery-1)/paidEvery:
		return res, fmt.Errorf("%d of %d completed payments ended paid", res.Paid, (w.Holds+paidEvery-1)/paidEvery)
	}
	return res, nil
}

// peak is the most that happened within one second; times are in order.
func peak(times []time.Time) int {
	most, first := 0, 0
	for i, t := range times {
		for t.Sub(times[first]) >= time.Second {
			first++
		}
		most = max(most, i-first+1)
	}
	return most
}

// waveGateway answers after a set time, and notes who was asked about and when.
type waveGateway struct {
	made  []booking.Record // by number
	takes time.Duration

	mu       sync.Mutex
	times    []time.Time
	order    []int // by the first query of each
	asked    map[int]bool
	executed int
}

// Query tells what became of a payment.
func (g *waveGateway) Query(ctx context.Context, payment string) (booking.Charge, error) {
	var i int
	if _, err := fmt.Sscanf(payment, wavePayment+"%07d", &i); err != nil || i < 0 || i >= len(g.made) {
		return booking.Charge{}, fmt.Errorf("query of payment %q, which was never made", payment)
	}
	g.note(i)
	if err := pause(ctx, g.takes); err != nil {
		return booking.Charge{}, fmt.Errorf("query: %w: %w", booking.ErrInDoubt, err)
	}
	rec := g.made[i]
	charge := booking.Charge{Status: booking.ChargeOpen, PaymentID: payment, Invoice: rec.Invoice, Amount: rec.Amount, Currency: rec.Currency}
	if i%paidEvery == 0 {
		charge.Status, charge.Transaction = booking.ChargeCompleted, "TX"+payment
	}
	return charge, nil
}

func (g *waveGateway) note(i int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.times = append(g.times, time.Now())
	if g.asked == nil {
		g.asked = map[int]bool{}
	}
	if !g.asked[i] {
		g.asked[i] = true
		g.order = append(g.order, i)
	}
}

// Execute is for payers who came back.
func (g *waveGateway) Execute(context.Context, string) (booking.Charge, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.executed++
	return booking.Charge{}, fmt.Errorf("execute: %w", booking.ErrNotSent)
}

// seen returns when queries came, by how much a deadline that was asked about was
// at most later than one that was asked about after it, and the execute calls.
func (g *waveGateway) seen() (queries []time.Time, inversion time.Duration, executed int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	var latest time.Time
	for _, i := range g.order {
		if d := g.made[i].Deadline; d.After(latest) {
			latest = d
		} else {
			inversion = max(inversion, latest.Sub(d))
		}
	}
	return g.times, inversion, g.executed
}

// watchedStore counts writes and notes when records come to their ends.
type watchedStore struct {
	*sqlite.Store
	want   int
	writes atomic.Int64
	all    chan struct{} // closed when as many records as are wanted have ended

	mu    sync.Mutex
	ended map[string]bool // by attempt
	at    time.Time       // of the last one
}

func (s *watchedStore) end(attempt string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended[attempt] {
		return
	}
	s.ended[attempt], s.at = true, time.Now()
	if len(s.ended) == s.want {
		close(s.all)
	}
}

func (s *watchedStore) count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.ended)
}

// last tells when the last record ended, and whether it was the last of all.
func (s *watchedStore) last() (at time.Time, all bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.at, len(s.ended) == s.want
}

// PutHeld is the store's.
func (s *watchedStore) PutHeld(ctx context.Context, r booking.Record) (booking.Record, bool, error) {
	s.writes.Add(1)
	return s.Store.PutHeld(ctx, r)
}

// Announce is the store's.
func (s *watchedStore) Announce(ctx context.Context, r booking.Record, at time.Time) (booking.Record, error) {
	s.writes.Add(1)
	return s.Store.Announce(ctx, r, at)
}

// MarkPaid is the store's.
func (s *watchedStore) MarkPaid(ctx context.Context, p booking.Paid) (booking.Record, error) {
	s.writes.Add(1)
	rec, err := s.Store.MarkPaid(ctx, p)
	if err == nil {
		s.end(p.Record.Attempt)
	}
	return rec, err
}

// Release is the store's.
func (s *watchedStore) Release(ctx context.Context, seen booking.Record, reason string, at time.Time) error {
	s.writes.Add(1)
	err := s.Store.Release(ctx, seen, reason, at)
	if err == nil {
		s.end(seen.Attempt)
	}
	return err
}

// ClaimMail is the store's.
func (s *watchedStore) ClaimMail(ctx context.Context, candidateHash, attempt, claim string, now, until time.Time) (bool, error) {
	s.writes.Add(1)
	return s.Store.ClaimMail(ctx, candidateHash, attempt, claim, now, until)
}

// MailSent is the store's.
func (s *watchedStore) MailSent(ctx context.Context, candidateHash, attempt, claim string) error {
	s.writes.Add(1)
	return s.Store.MailSent(ctx, candidateHash, attempt, claim)
}

// As the reconciler asks of its ports.
var (
	_ reconcile.Store  = (*watchedStore)(nil)
	_ settle.Store     = (*watchedStore)(nil)
	_ reconcile.Ledger = (*admission.Gate)(nil)
)
