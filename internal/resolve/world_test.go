package resolve_test

import (
	"context"
	"log/slog"
	"path/filepath"
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
	"holdfast/internal/resolve"
	"holdfast/internal/settle"
	store "holdfast/internal/store/sqlite"
	"holdfast/internal/testenv"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	prefix         = "{sale}:"
	executeTimeout = 20 * time.Second
	payingFor      = executeTimeout + 5*time.Second
)

// world is an open sale, who decides in it, and a reconciler for what is left to
// it.
type world struct {
	*bookingtest.World
	seats    bookingtest.RedisSeats
	gate     *admission.Gate
	pair     *redisproc.Pair // nil in-process
	rdb      *redis.Client
	wallet   *wallet
	resolver *resolve.Resolver
	holds    *resolve.Holds
	sweeper  *reconcile.Reconciler
}

// wallet is the gateway, and what it says of single transactions.
type wallet struct {
	*bookingtest.Gateway
	transactions map[string]booking.TransactionAnswer
	err          error
}

func (w *wallet) Search(_ context.Context, transaction string) (booking.TransactionAnswer, error) {
	return w.transactions[transaction], w.err
}

func (w *wallet) has(transaction string, amount booking.Money) {
	w.transactions[transaction] = booking.TransactionAnswer{
		Found: true, Completed: true, Transaction: transaction, Amount: amount, Currency: "BDT",
	}
}

// ledger is the world's, with the one call that only an operator makes.
type ledger struct {
	bookingtest.Ledger
	gate *admission.Gate
	// extend runs before each extension; nil is nothing. Its error is the call's,
	// which is then made all the same when kept.
	extend func() (err error, kept bool)
}

func (l *ledger) Extend(ctx context.Context, code, attempt, run string, by time.Duration, missed, after time.Time) (booking.Row, string, error) {
	if l.extend != nil {
		if err, kept := l.extend(); err != nil {
			if kept {
				_, _, _ = l.gate.Extend(ctx, code, attempt, run, by, missed, after)
			}
			return booking.Row{}, "", err
		}
	}
	return l.gate.Extend(ctx, code, attempt, run, by, missed, after)
}

// open is a world on a Redis inside the test, without replicas.
func open(t *testing.T) *world {
	t.Helper()
	t.Parallel()
	return openOn(t, testenv.Mini(t), 0)
}

// onPair is a world on a primary and a replica that must acknowledge.
func onPair(t *testing.T) *world {
	t.Helper()
	t.Parallel()
	pair := testenv.Pair(t)
	w := openOn(t, pair.Primary.Addr(), 1)
	w.pair = pair
	return w
}

// cut freezes the replica, so that nothing is acknowledged; heal undoes it.
func (w *world) cut(t *testing.T) {
	t.Helper()
	if err := w.pair.Replicas[0].Freeze(); err != nil {
		t.Fatal(err)
	}
}

// heal returns when the replica acknowledges again.
func (w *world) heal(t *testing.T) {
	t.Helper()
	if err := w.pair.Replicas[0].Thaw(); err != nil {
		t.Fatal(err)
	}
	testenv.Eventually(t, func() error { return w.gate.Acknowledges(t.Context()) })
}

func openOn(t *testing.T, addr string, acks int) *world {
	t.Helper()
	clock, log := new(bookingtest.Clock), slog.New(slog.DiscardHandler)
	rdb := admission.NewClient(admission.ClientConfig{Addr: addr, Pool: 32})
	t.Cleanup(func() { _ = rdb.Close() })
	keys, err := admission.NewKeys(prefix)
	if err != nil {
		t.Fatal(err)
	}
	gate, err := admission.New(rdb, admission.Options{
		Keys: keys, Acks: acks, ClockOffset: clock.Offset, Log: log, Registerer: prometheus.NewRegistry(),
	})
	if err != nil {
		t.Fatal(err)
	}
	records, err := store.Open(t.Context(), filepath.Join(t.TempDir(), "records.db"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = records.Close() })
	seats := bookingtest.NewRedisSeats(rdb, prefix, gate)
	w := &world{World: bookingtest.NewWorld(clock, gate, seats, records), seats: seats, gate: gate, rdb: rdb}
	w.Open(t, bookingtest.Sale(), 8)
	t.Cleanup(w.Background.Wait)
	w.wallet = &wallet{Gateway: w.Gateway, transactions: map[string]booking.TransactionAnswer{}}
	w.holds = &resolve.Holds{Ledger: &ledger{Ledger: w.Ledger, gate: gate}, Store: w.Store}
	settler, err := settle.New(settle.Deps{
		Ledger: w.Ledger, Gateway: w.Gateway, Store: w.Store, Mailer: w.Mailer, Sale: gate, Background: w.Background,
		BookingURL:     func(code, attempt string) string { return "https://sale.test/result?booking=" + code + attempt },
		ExecuteTimeout: executeTimeout, Now: clock.Now, Log: log, Registerer: prometheus.NewRegistry(),
	})
	if err != nil {
		t.Fatal(err)
	}
	w.resolver = &resolve.Resolver{Ledger: w.Ledger, Store: w.Store, Gateway: w.wallet, Settler: settler}
	w.sweeper, err = reconcile.New(reconcile.Deps{
		Ledger: w.Ledger, Gateway: w.Gateway, Settler: settler, Store: w.Store,
		Every: time.Second, Budget: time.Minute, Width: 8, QueriesPerSecond: 1000,
		ExecuteTimeout: executeTimeout, Lapse: 24 * time.Hour, Log: log, Registerer: prometheus.NewRegistry(),
	})
	if err != nil {
		t.Fatal(err)
	}
	return w
}

// sweep lets time pass, then the reconciler look at what is due.
func (w *world) sweep(t *testing.T, after time.Duration) {
	t.Helper()
	w.Clock.Advance(after)
	if _, err := w.sweeper.Sweep(t.Context()); err != nil {
		t.Fatalf("sweep: %v", err)
	}
	w.Background.Wait()
}

// doubt is candidate i, whose execute call was not answered, and about whose
// payment the gateway says nothing clear.
func (w *world) doubt(t *testing.T, i int) bookingtest.Booking {
	t.Helper()
	b := w.Paying(t, i, "N1", "payer", payingFor)
	w.Gateway.Always(bookingtest.Query, b.Payment.ID, bookingtest.Garbled())
	w.Gateway.Always(bookingtest.Execute, b.Payment.ID, bookingtest.Garbled())
	w.Clock.Advance(payingFor)
	return b
}

func (w *world) plan(t *testing.T, b bookingtest.Booking, transaction string) resolve.Plan {
	t.Helper()
	p, err := w.resolver.Plan(t.Context(), b.Code, resolve.Decision{Transaction: transaction})
	if err != nil {
		t.Fatalf("plan: %v", err)
	}
	return p
}
