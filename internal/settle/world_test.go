package settle_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
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
	"holdfast/internal/settle"
	store "holdfast/internal/store/sqlite"
	"holdfast/internal/testenv"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// executeTimeout bounds an execute call; it is real time, and only tests in which
// a call hangs wait for it.
const executeTimeout = 20 * time.Second

// world is an open sale, a settler in it, and a reconciler for what the settler
// leaves.
type world struct {
	*bookingtest.World
	settler *settle.Service
	sweeper *reconcile.Reconciler
	rdb     *redis.Client
	addr    string
	acks    int
	pair    *redisproc.Pair // nil in-process
}

const prefix = "{sale}:"

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

// inProcess is a world on a Redis inside the test, without replicas.
func inProcess(t *testing.T) *world {
	t.Helper()
	t.Parallel()
	return open(t, testenv.Mini(t), 0, bookingtest.Sale(), 8)
}

// onPair is a world on a primary and a replica that must acknowledge.
func onPair(t *testing.T) *world {
	t.Helper()
	t.Parallel()
	pair := testenv.Pair(t)
	w := open(t, pair.Primary.Addr(), 1, bookingtest.Sale(), 8)
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
	conn := w.rdb.Conn()
	defer func() { _ = conn.Close() }()
	if err := conn.Set(t.Context(), "healed", "1", 0).Err(); err != nil {
		t.Fatal(err)
	}
	for t.Context().Err() == nil {
		if n, err := conn.Wait(t.Context(), 1, 500*time.Millisecond).Result(); err == nil && n == 1 {
			return
		}
	}
	t.Fatal("the replica does not come back")
}

// open is a world with this sale, open, and candidates 1 to n.
func open(t *testing.T, addr string, acks int, sale booking.Sale, n int) *world {
	t.Helper()
	clock := new(bookingtest.Clock)
	w := &world{addr: addr, acks: acks}
	gate, rdb := w.gate(t, clock)
	records, err := store.Open(t.Context(), filepath.Join(t.TempDir(), "records.db"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = records.Close() })
	w.World, w.rdb = bookingtest.NewWorld(clock, gate, seats{gate, rdb}, records), rdb
	w.Open(t, sale, n)
	// A failed test must not leave a mail at work behind.
	t.Cleanup(w.Background.Wait)
	w.settler, w.sweeper = w.process(t, w.Ledger)
	return w
}

// gate is one process's way to the seat ledger.
func (w *world) gate(t *testing.T, clock *bookingtest.Clock) (*admission.Gate, *redis.Client) {
	t.Helper()
	rdb := admission.NewClient(admission.ClientConfig{Addr: w.addr, Pool: 16})
	t.Cleanup(func() { _ = rdb.Close() })
	keys, err := admission.NewKeys(prefix)
	if err != nil {
		t.Fatal(err)
	}
	gate, err := admission.New(rdb, admission.Options{
		Keys: keys, Acks: w.acks, ClockOffset: clock.Offset, Log: slog.New(slog.DiscardHandler), Registerer: prometheus.NewRegistry(),
	})
	if err != nil {
		t.Fatal(err)
	}
	return gate, rdb
}

// process is a settler and a reconciler on that way.
func (w *world) process(t *testing.T, ledger bookingtest.Ledger) (*settle.Service, *reconcile.Reconciler) {
	t.Helper()
	log := slog.New(slog.DiscardHandler)
	settler, err := settle.New(settle.Deps{
		Ledger: ledger, Gateway: w.Gateway, Store: w.Store, Mailer: w.Mailer, Sale: ledger, Background: w.Background,
		BookingURL:     func(code, attempt string) string { return "https://sale.test/result?booking=" + code + attempt },
		ExecuteTimeout: executeTimeout, Now: w.Clock.Now, Log: log, Registerer: prometheus.NewRegistry(),
	})
	if err != nil {
		t.Fatal(err)
	}
	sweeper, err := reconcile.New(reconcile.Deps{
		Ledger: ledger, Gateway: w.Gateway, Settler: settler, Store: w.Store,
		Every: time.Second, Budget: time.Minute, Width: 8, QueriesPerSecond: 10000,
		ExecuteTimeout: executeTimeout, Lapse: 24 * time.Hour, Log: log, Registerer: prometheus.NewRegistry(),
	})
	if err != nil {
		t.Fatal(err)
	}
	return settler, sweeper
}

// another is a process of its own, with its own connections.
func (w *world) another(t *testing.T) (*settle.Service, *reconcile.Reconciler) {
	t.Helper()
	gate, _ := w.gate(t, w.Clock)
	return w.process(t, bookingtest.Ledger{LedgerDriver: gate, Faults: w.Faults})
}

// asks is the gateway's word on the booking's payment.
func (w *world) asks(t *testing.T, b bookingtest.Booking) booking.Charge {
	t.Helper()
	charge, err := w.Gateway.Query(t.Context(), b.Payment.ID)
	if err != nil {
		t.Fatal(err)
	}
	return charge
}

// notified is a report of the booking's payment, which is asked about and, when it
// is completed, confirmed, until its mail is sent.
func (w *world) notified(t *testing.T, b bookingtest.Booking) error {
	t.Helper()
	charge := w.asks(t, b)
	if charge.Status != booking.ChargeCompleted {
		return nil
	}
	err := w.settler.Confirm(t.Context(), b.Code, b.Record, charge)
	w.Background.Wait()
	return err
}

// wantBack wants the report to say that the money goes back, why, and its refund on
// record.
func (w *world) wantBack(t *testing.T, what string, err error, b bookingtest.Booking, kind booking.MoneyKind, reason string) {
	t.Helper()
	wantErr(t, what, err, booking.ErrRefunded)
	wantErr(t, what, err, map[booking.MoneyKind]error{
		booking.MoneyLate: booking.ErrNotOwner, booking.MoneySecond: booking.ErrSecondPayment, booking.MoneyOther: booking.ErrOtherThanOrdered,
	}[kind])
	w.WantRefund(t, b, "TX"+b.Payment.ID, kind, reason)
}

// returns is the payer's return with success, until its mail is sent.
func (w *world) returns(t *testing.T, b bookingtest.Booking) error {
	t.Helper()
	err := w.settler.Return(t.Context(), b.Code, b.Attempt, b.Payment.ID)
	w.Background.Wait()
	return err
}

// paysAndReturns is a payer who pays and comes back.
func (w *world) paysAndReturns(t *testing.T, b bookingtest.Booking) error {
	t.Helper()
	w.Gateway.Finish(b.Payment.ID)
	return w.returns(t, b)
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

// wantPaid wants the booking paid, finished, and everything in agreement.
func (w *world) wantPaid(t *testing.T, b bookingtest.Booking) {
	t.Helper()
	w.Want(t, b, booking.PhasePaid, booking.StatePaid)
	w.wantMails(t, b, 1)
	w.Books.CheckAtRest(t)
}

func (w *world) wantMails(t *testing.T, b bookingtest.Booking, want int) {
	t.Helper()
	n := 0
	for _, m := range w.Mailer.Sent() {
		if m.Record.Attempt == b.Attempt {
			n++
		}
	}
	if n != want {
		t.Errorf("mails to %s: got %d, want %d", b.Code, n, want)
	}
}

func (w *world) wantExecutes(t *testing.T, b bookingtest.Booking, want int) {
	t.Helper()
	if got := w.Gateway.Calls(bookingtest.Execute, b.Payment.ID); got != want {
		t.Errorf("execute calls for %s: got %d, want %d", b.Code, got, want)
	}
}

func wantErr(t *testing.T, what string, got, want error) {
	t.Helper()
	if !errors.Is(got, want) {
		t.Errorf("%s: got %v, want %v", what, got, want)
	}
}
