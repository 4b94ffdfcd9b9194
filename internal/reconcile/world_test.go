package reconcile_test

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/redis/go-redis/v9"
	"go.uber.org/goleak"

	"holdfast/internal/admission"
	"holdfast/internal/booking"
	"holdfast/internal/booking/bookingtest"
	"holdfast/internal/reconcile"
	"holdfast/internal/redisproc"
	"holdfast/internal/settle"
	store "holdfast/internal/store/sqlite"
	"holdfast/internal/testenv"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	executeTimeout = 20 * time.Second
	payingLength   = executeTimeout + 5*time.Second
	prefix         = "{sale}:"
)

// world is a sale with a reconciler in it.
type world struct {
	*bookingtest.World
	settler *settle.Service
	sweeper *reconcile.Reconciler
	deps    reconcile.Deps
	log     *logbook
	changed atomic.Int64 // hints that a seat was given back
	rdb     *redis.Client
	pair    *redisproc.Pair // nil in-process
	path    string          // of the booking store
}

// logbook keeps the messages that were logged as errors and as warnings.
type logbook struct {
	mu       sync.Mutex
	errors   []string
	warnings []string
}

func (l *logbook) Enabled(context.Context, slog.Level) bool { return true }
func (l *logbook) WithAttrs([]slog.Attr) slog.Handler       { return l }
func (l *logbook) WithGroup(string) slog.Handler            { return l }
func (l *logbook) Handle(_ context.Context, r slog.Record) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch r.Level {
	case slog.LevelError:
		l.errors = append(l.errors, r.Message)
	case slog.LevelWarn:
		l.warnings = append(l.warnings, r.Message)
	}
	return nil
}

// takeWarnings returns the warnings since the last call of this or of take.
func (l *logbook) takeWarnings() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	out := l.warnings
	l.warnings = nil
	return out
}

// take returns the errors since the last call.
func (l *logbook) take() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	out := l.errors
	l.errors, l.warnings = nil, nil
	return out
}

// seats reads the ledger past its scripts.
type seats struct {
	*admission.Gate
	rdb *redis.Client
}

func (s seats) Rows(ctx context.Context) (map[string]booking.Row, error) {
	raw, err := s.rdb.HGetAll(ctx, prefix+"adm:seen").Result()
	if err != nil {
		return nil, err
	}
	rows := map[string]booking.Row{}
	for code, text := range raw {
		var row booking.Row
		if err := json.Unmarshal([]byte(text), &row); err != nil {
			return nil, fmt.Errorf("row of %s: %w", code, err)
		}
		rows[code] = row
	}
	return rows, nil
}

func (s seats) Looks(ctx context.Context) (map[string]int64, error) {
	all, err := s.rdb.ZRangeWithScores(ctx, prefix+"adm:due", 0, -1).Result()
	looks := map[string]int64{}
	for _, z := range all {
		code, _ := z.Member.(string)
		looks[code] = int64(z.Score)
	}
	return looks, err
}

// inProcess is an open sale on a Redis inside the test, without replicas.
func inProcess(t *testing.T) *world {
	t.Helper()
	w := empty(t)
	w.Open(t, bookingtest.Sale(), 8)
	return w
}

// empty has no sale in force.
func empty(t *testing.T) *world {
	t.Helper()
	t.Parallel()
	return wire(t, testenv.Mini(t), 0)
}

// onPair is an open sale on a primary and a replica that must acknowledge.
func onPair(t *testing.T) *world {
	t.Helper()
	t.Parallel()
	pair := testenv.Pair(t)
	w := wire(t, pair.Primary.Addr(), 1)
	w.pair = pair
	w.Open(t, bookingtest.Sale(), 8)
	return w
}

func wire(t *testing.T, addr string, acks int) *world {
	t.Helper()
	clock := new(bookingtest.Clock)
	w := &world{log: new(logbook), path: filepath.Join(t.TempDir(), "records.db")}
	log := slog.New(w.log)
	w.rdb = admission.NewClient(admission.ClientConfig{Addr: addr, Pool: 72})
	t.Cleanup(func() { _ = w.rdb.Close() })
	keys, err := admission.NewKeys(prefix)
	if err != nil {
		t.Fatal(err)
	}
	gate, err := admission.New(w.rdb, admission.Options{
		Keys: keys, Acks: acks, ClockOffset: clock.Offset, Log: log, Registerer: prometheus.NewRegistry(),
	})
	if err != nil {
		t.Fatal(err)
	}
	records, err := store.Open(t.Context(), w.path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = records.Close() })
	w.World = bookingtest.NewWorld(clock, gate, seats{gate, w.rdb}, records)
	// A failed test must not leave a mail at work behind.
	t.Cleanup(w.Background.Wait)
	w.settler, err = settle.New(settle.Deps{
		Ledger: w.Ledger, Gateway: w.Gateway, Store: w.Store, Mailer: w.Mailer, Sale: gate, Background: w.Background,
		BookingURL:     func(code, attempt string) string { return "https://sale.test/result?booking=" + code + attempt },
		ExecuteTimeout: executeTimeout, Now: clock.Now, Log: log, Registerer: prometheus.NewRegistry(),
	})
	if err != nil {
		t.Fatal(err)
	}
	w.deps = reconcile.Deps{
		Ledger: w.Ledger, Gateway: w.Gateway, Settler: w.settler, Store: w.Store,
		Every: time.Millisecond, Budget: time.Minute, Width: 8, QueriesPerSecond: 10000,
		ExecuteTimeout: executeTimeout, Lapse: 24 * time.Hour, Changed: func() { w.changed.Add(1) }, Log: log,
	}
	w.sweeper = w.another(t)
	return w
}

// another is a reconciler of another process, with w.deps.
func (w *world) another(t *testing.T) *reconcile.Reconciler {
	t.Helper()
	d := w.deps
	d.Registerer = prometheus.NewRegistry()
	r, err := reconcile.New(d)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// sweep lets time pass, then the reconciler look at what is due.
func (w *world) sweep(t *testing.T, after time.Duration) reconcile.Report {
	t.Helper()
	w.Clock.Advance(after)
	report, err := w.sweeper.Sweep(t.Context())
	if err != nil {
		t.Fatalf("sweep: %v", err)
	}
	w.Background.Wait()
	return report
}

// wantSweep sweeps, and wants these actions and no others.
func (w *world) wantSweep(t *testing.T, after time.Duration, want ...string) {
	t.Helper()
	var got []string
	for action, n := range w.sweep(t, after) {
		for range n {
			got = append(got, action)
		}
	}
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Errorf("sweep after %s: got %v, want %v", after, got, want)
	}
}

// wantCalls wants that many queries and executes for the booking so far.
func (w *world) wantCalls(t *testing.T, b bookingtest.Booking, queries, executes int) {
	t.Helper()
	q, x := w.Gateway.Calls(bookingtest.Query, b.Payment.ID), w.Gateway.Calls(bookingtest.Execute, b.Payment.ID)
	if q != queries || x != executes {
		t.Errorf("gateway calls for %s: got %d queries and %d executes, want %d and %d", b.Code, q, x, queries, executes)
	}
}

// wantPaid wants the booking paid, finished, and everything in agreement.
func (w *world) wantPaid(t *testing.T, b bookingtest.Booking) {
	t.Helper()
	w.Want(t, b, booking.PhasePaid, booking.StatePaid)
	w.Books.CheckAtRest(t)
}

// wantReleased wants the seat free, its record ended, and the candidate able to
// book again and pay.
func (w *world) wantReleased(t *testing.T, b bookingtest.Booking, i int) {
	t.Helper()
	w.Want(t, b, "", booking.StateReleased)
	w.Books.CheckAtRest(t)
	w.pays(t, w.Held(t, i, "N1"))
	w.Want(t, b, "", booking.StateReleased)
}

// pays has the payer pay and come back.
func (w *world) pays(t *testing.T, b bookingtest.Booking) {
	t.Helper()
	w.Gateway.Finish(b.Payment.ID)
	if err := w.settler.Return(t.Context(), b.Code, b.Attempt, b.Payment.ID); err != nil {
		t.Fatalf("return of %s: %v", b.Code, err)
	}
	w.Background.Wait()
	w.wantPaid(t, b)
}

// due has the row looked at now.
func (w *world) due(t *testing.T, b bookingtest.Booking) {
	t.Helper()
	if err := w.rdb.ZAdd(t.Context(), prefix+"adm:due", redis.Z{Score: 1, Member: b.Code}).Err(); err != nil {
		t.Fatal(err)
	}
}

// loseStash is what the end of its TTL does.
func (w *world) loseStash(t *testing.T, b bookingtest.Booking) {
	t.Helper()
	n, err := w.rdb.Del(t.Context(), prefix+"hold:attempt:"+b.Attempt, prefix+"hold:payment:"+b.Payment.ID).Result()
	if n != 2 || err != nil {
		t.Fatalf("lose the stash: got %d, %v, want 2 keys", n, err)
	}
}

// exec changes the booking store behind its back.
func (w *world) exec(t *testing.T, statement string, args ...any) {
	t.Helper()
	db, err := sql.Open("sqlite", w.path)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = db.Close() }()
	res, err := db.ExecContext(t.Context(), statement, args...)
	if err != nil {
		t.Fatal(err)
	}
	if n, _ := res.RowsAffected(); n != 1 {
		t.Fatalf("%s: got %d rows, want 1", statement, n)
	}
}

func wantErr(t *testing.T, what string, got, want error) {
	t.Helper()
	if !errors.Is(got, want) {
		t.Errorf("%s: got %v, want %v", what, got, want)
	}
}
