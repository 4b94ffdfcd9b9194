package notification_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/redis/go-redis/v9"
	"go.uber.org/goleak"

	"holdfast/internal/admission"
	"holdfast/internal/booking"
	"holdfast/internal/booking/bookingtest"
	"holdfast/internal/notification"
	"holdfast/internal/settle"
	"holdfast/internal/snshook"
	store "holdfast/internal/store/sqlite"
	"holdfast/internal/testenv"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var _ snshook.Keeper = (*notification.Service)(nil)

// The calls that can be broken.
const (
	opPut     = "put notification"
	opRead    = "read notification"
	opOpen    = "list open notifications"
	opClose   = "close notification"
	opRecord  = "read record"
	opRefund  = "read refund"
	opLater   = "look later"
	opDone    = "look done"
	opDue     = "list due"
	opQuery   = "query"
	opSearch  = "search"
	opConfirm = "confirm"
)

// fault is what becomes of a call: made or not, and the error it ends with.
type fault struct {
	made bool
	err  error
}

var (
	errLost = errors.New("connection refused")
	errKept = errors.New("connection reset before the reply")
	lost    = fault{err: errLost}
	kept    = fault{made: true, err: errKept}
)

// faults breaks calls: the next ones, or all.
type faults struct {
	mu     sync.Mutex
	next   map[string][]fault
	always map[string]fault
	calls  map[string]int
}

func (f *faults) break1(op string, what fault) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.next[op] = append(f.next[op], what)
}

// breakAll breaks every call; with the zero fault it heals them.
func (f *faults) breakAll(op string, what fault) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.always[op] = what
}

func (f *faults) count(op string) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.calls[op]
}

func (f *faults) take(op string) fault {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.calls[op]++
	if list := f.next[op]; len(list) > 0 {
		f.next[op] = list[1:]
		return list[0]
	}
	return f.always[op]
}

func call[T any](f *faults, op string, made func() (T, error)) (T, error) {
	what := f.take(op)
	var none T
	if what.err != nil && !what.made {
		return none, fmt.Errorf("%s: %w", op, what.err)
	}
	v, err := made()
	if what.err != nil {
		return none, fmt.Errorf("%s: %w", op, what.err)
	}
	return v, err
}

func call0(f *faults, op string, made func() error) error {
	_, err := call(f, op, func() (struct{}, error) { return struct{}{}, made() })
	return err
}

// shelf is the real store on a line that can be broken.
type shelf struct {
	*store.Store
	f *faults
}

func (s shelf) PutNotification(ctx context.Context, n booking.Notification) (bool, error) {
	return call(s.f, opPut, func() (bool, error) { return s.Store.PutNotification(ctx, n) })
}

func (s shelf) Notification(ctx context.Context, id string) (booking.Notification, error) {
	return call(s.f, opRead, func() (booking.Notification, error) { return s.Store.Notification(ctx, id) })
}

func (s shelf) OpenNotifications(ctx context.Context) iter.Seq2[booking.Notification, error] {
	return func(yield func(booking.Notification, error) bool) {
		if err := call0(s.f, opOpen, func() error { return nil }); err != nil {
			yield(booking.Notification{ID: "unread"}, err)
			if !errors.Is(err, booking.ErrUnreadable) {
				return
			}
		}
		s.Store.OpenNotifications(ctx)(yield)
	}
}

func (s shelf) CloseNotification(ctx context.Context, id string, o booking.NotificationOutcome, at time.Time) error {
	return call0(s.f, opClose, func() error { return s.Store.CloseNotification(ctx, id, o, at) })
}

func (s shelf) Record(ctx context.Context, hash, attempt string) (booking.Record, error) {
	return call(s.f, opRecord, func() (booking.Record, error) { return s.Store.Record(ctx, hash, attempt) })
}

func (s shelf) Refund(ctx context.Context, transaction string) (booking.Refund, error) {
	return call(s.f, opRefund, func() (booking.Refund, error) { return s.Store.Refund(ctx, transaction) })
}

// index is the real ledger's, on a line that can be broken.
type index struct {
	*admission.Gate
	f *faults
}

func (i index) NoticeLater(ctx context.Context, id string, in time.Duration) error {
	return call0(i.f, opLater, func() error { return i.Gate.NoticeLater(ctx, id, in) })
}

func (i index) NoticeDone(ctx context.Context, id string) error {
	return call0(i.f, opDone, func() error { return i.Gate.NoticeDone(ctx, id) })
}

func (i index) DueNotices(ctx context.Context, limit int) ([]string, error) {
	return call(i.f, opDue, func() ([]string, error) { return i.Gate.DueNotices(ctx, limit) })
}

// desk is the gateway, which also knows transactions.
type desk struct {
	*bookingtest.Gateway
	f    *faults
	mu   sync.Mutex
	back map[string]bool // transactions of money that went back
	// silent: it does not tell by which reference a payment was ordered.
	silent bool
}

func (d *desk) Query(ctx context.Context, payment string) (booking.Charge, error) {
	return call(d.f, opQuery, func() (booking.Charge, error) { return d.Gateway.Query(ctx, payment) })
}

func (d *desk) Search(_ context.Context, transaction string) (booking.TransactionAnswer, error) {
	return call(d.f, opSearch, func() (booking.TransactionAnswer, error) {
		d.mu.Lock()
		defer d.mu.Unlock()
		for _, c := range d.Completed() {
			if c.Transaction == transaction {
				found := booking.TransactionAnswer{
					Found: true, Completed: true, Transaction: transaction, Amount: c.Amount, Currency: c.Currency, Code: "0000",
				}
				if !d.silent {
					found.Reference = c.Invoice
				}
				return found, nil
			}
		}
		if d.back[transaction] {
			return booking.TransactionAnswer{Found: true, Completed: true, Transaction: transaction, Amount: 1, Currency: "BDT"}, nil
		}
		return booking.TransactionAnswer{Code: "2033"}, nil
	})
}

// till is the real settler on a line that can be broken.
type till struct {
	*settle.Service
	f *faults
}

func (k till) Confirm(ctx context.Context, code string, rec booking.Record, charge booking.Charge) error {
	what := k.f.take(opConfirm)
	if what.err != nil && !what.made {
		return what.err
	}
	return errors.Join(k.Service.Confirm(ctx, code, rec, charge), what.err)
}

// seats reads the ledger past its scripts.
type seats struct {
	*admission.Gate
	rdb *redis.Client
}

const prefix = "{sale}:"

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

// journal is a log that several write to.
type journal struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (j *journal) Write(p []byte) (int, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.text.Write(p)
}

// lines counts the lines that hold every one of the texts.
func (j *journal) lines(texts ...string) int {
	j.mu.Lock()
	defer j.mu.Unlock()
	n := 0
next:
	for line := range strings.Lines(j.text.String()) {
		for _, text := range texts {
			if !strings.Contains(line, text) {
				continue next
			}
		}
		n++
	}
	return n
}

// turns counts the turns taken, and can have none.
type turns struct {
	mu  sync.Mutex
	n   int
	err error
}

func (r *turns) Wait(context.Context) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.n++
	return r.err
}

// world is an open sale and a service that works on its notifications.
type world struct {
	*bookingtest.World
	service *notification.Service
	faults  *faults
	records *store.Store
	gate    *admission.Gate
	rdb     *redis.Client
	desk    *desk
	till    till
	rate    *turns
	log     journal
	reg     *prometheus.Registry
}

const width = 4

// inProcess is a world on a Redis inside the test.
func inProcess(t *testing.T) *world {
	t.Helper()
	return open(t, testenv.Mini(t))
}

// onRedis is a world on a real Redis.
func onRedis(t *testing.T) *world {
	t.Helper()
	return open(t, testenv.Redis(t).Addr())
}

func open(t *testing.T, addr string) *world {
	t.Helper()
	clock := new(bookingtest.Clock)
	rdb := admission.NewClient(admission.ClientConfig{Addr: addr, Pool: 16})
	t.Cleanup(func() { _ = rdb.Close() })
	keys, err := admission.NewKeys(prefix)
	if err != nil {
		t.Fatal(err)
	}
	gate, err := admission.New(rdb, admission.Options{
		Keys: keys, ClockOffset: clock.Offset, Log: slog.New(slog.DiscardHandler), Registerer: prometheus.NewRegistry(),
	})
	if err != nil {
		t.Fatal(err)
	}
	records, err := store.Open(t.Context(), filepath.Join(t.TempDir(), "records.db"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = records.Close() })
	f := &faults{next: map[string][]fault{}, always: map[string]fault{}, calls: map[string]int{}}
	w := &world{
		World:  bookingtest.NewWorld(clock, gate, seats{gate, rdb}, records),
		faults: f, records: records, gate: gate, rdb: rdb, rate: new(turns), reg: prometheus.NewRegistry(),
	}
	w.desk = &desk{Gateway: w.Gateway, f: f, back: map[string]bool{}}
	w.Open(t, bookingtest.Sale(), 8)
	t.Cleanup(w.Background.Wait)
	settler, err := settle.New(settle.Deps{
		Ledger: w.Ledger, Gateway: w.Gateway, Store: w.Store, Mailer: w.Mailer, Sale: gate, Background: w.Background,
		BookingURL:     func(code, attempt string) string { return "https://sale.test/result?booking=" + code + attempt },
		ExecuteTimeout: 20 * time.Second, Now: clock.Now, Log: slog.New(slog.DiscardHandler), Registerer: prometheus.NewRegistry(),
	})
	if err != nil {
		t.Fatal(err)
	}
	w.till = till{settler, f}
	w.service, err = notification.New(w.deps())
	if err != nil {
		t.Fatal(err)
	}
	return w
}

func (w *world) deps() notification.Deps {
	return notification.Deps{
		Store: shelf{w.records, w.faults}, Ledger: index{w.gate, w.faults}, Gateway: w.desk, Settler: w.till,
		Background: w.Background, Rate: w.rate, Width: width, Now: w.Clock.Now,
		Log: slog.New(slog.NewJSONHandler(&w.log, nil)), Registerer: w.reg,
	}
}

// restart is another process in place of this one.
func (w *world) restart(t *testing.T) {
	t.Helper()
	w.reg = prometheus.NewRegistry()
	var err error
	if w.service, err = notification.New(w.deps()); err != nil {
		t.Fatal(err)
	}
}

// note is a notification about the booking's payment, received now.
func (w *world) note(b bookingtest.Booking, id string, set ...func(*booking.Notification)) booking.Notification {
	now := w.Clock.Now().UTC()
	n := booking.Notification{
		Version: booking.NotificationVersion, ID: id, ReceivedAt: now, SentAt: now,
		Transaction: "TX" + b.Payment.ID, Invoice: b.Record.Invoice, Amount: b.Record.Amount, Currency: b.Record.Currency,
		TransactionType: "10002294", Status: "Completed",
	}
	for _, f := range set {
		f(&n)
	}
	return n
}

// deliver is one delivery by the webhook, until what it began is done.
func (w *world) deliver(t *testing.T, n booking.Notification) {
	t.Helper()
	stored, err := w.service.Store(t.Context(), n)
	if err != nil {
		t.Fatalf("store %s: %v", n.ID, err)
	}
	if stored {
		w.service.Arrived(n)
		w.Background.Wait()
	}
}

// sweep lets time pass, then looks at what is due.
func (w *world) sweep(t *testing.T, after time.Duration) notification.Report {
	t.Helper()
	w.Clock.Advance(after)
	report, err := w.service.Sweep(t.Context())
	if err != nil {
		t.Fatalf("sweep: %v", err)
	}
	return report
}

// outcome is what became of a notification; "" while it is open.
func (w *world) outcome(t *testing.T, id string) booking.NotificationOutcome {
	t.Helper()
	n, err := w.records.Notification(t.Context(), id)
	if err != nil {
		t.Fatalf("notification %s: %v", id, err)
	}
	return n.Outcome
}

func (w *world) wantOutcome(t *testing.T, id string, want booking.NotificationOutcome) {
	t.Helper()
	if got := w.outcome(t, id); got != want {
		t.Errorf("notification %s: got %q, want %q", id, got, want)
	}
}

// wantIndexed wants that many on the list of looks.
func (w *world) wantIndexed(t *testing.T, want int64) {
	t.Helper()
	if got := w.rdb.ZCard(t.Context(), prefix+"ntf:due").Val(); got != want {
		t.Errorf("on the list of looks: got %d, want %d", got, want)
	}
}

func (w *world) wantCalls(t *testing.T, op string, want int) {
	t.Helper()
	if got := w.faults.count(op); got != want {
		t.Errorf("calls of %s: got %d, want %d", op, got, want)
	}
}

func (w *world) wantLines(t *testing.T, want int, texts ...string) {
	t.Helper()
	if got := w.log.lines(texts...); got != want {
		t.Errorf("lines of the log with %q: got %d, want %d\n%s", texts, got, want, w.log.text.String())
	}
}

// wantPaid wants one change: a paid seat, one mail, no refund.
func (w *world) wantPaid(t *testing.T, b bookingtest.Booking) {
	t.Helper()
	w.Background.Wait()
	w.Want(t, b, booking.PhasePaid, booking.StatePaid)
	w.wantRefunds(t, b)
	w.Books.CheckAtRest(t)
}

// wantRefunds wants the attempt's refund records to be of these transactions.
func (w *world) wantRefunds(t *testing.T, b bookingtest.Booking, transactions ...string) {
	t.Helper()
	refunds, err := w.records.RefundsOf(t.Context(), b.Record.CandidateHash, b.Attempt)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, r := range refunds {
		got = append(got, r.Transaction)
	}
	if strings.Join(got, " ") != strings.Join(transactions, " ") {
		t.Errorf("refunds of %s: got %v, want %v", b.Code, got, transactions)
	}
}

// lapse lets the time to pay pass, then releases the bookings' seats and ends their
// records, as the reconciler does.
func (w *world) lapse(t *testing.T, bookings ...bookingtest.Booking) {
	t.Helper()
	w.Clock.Advance(11 * time.Minute)
	for _, b := range bookings {
		w.release(t, b)
	}
}

func (w *world) release(t *testing.T, b bookingtest.Booking) {
	t.Helper()
	if err := w.gate.Release(t.Context(), b.Code, b.Attempt); err != nil {
		t.Fatalf("release: %v", err)
	}
	if err := w.records.Release(t.Context(), b.Record, booking.ReasonLapsed, w.Clock.Now()); err != nil {
		t.Fatalf("release record: %v", err)
	}
}

// complete moves the money of the booking's payment.
func (w *world) complete(b bookingtest.Booking) { w.Gateway.Complete(b.Payment.ID) }

// callback is what the browser's return does once execute has answered.
func (w *world) callback(t *testing.T, b bookingtest.Booking) error {
	t.Helper()
	charge, err := w.Gateway.Query(t.Context(), b.Payment.ID)
	if err != nil {
		t.Fatal(err)
	}
	return w.till.Service.Confirm(t.Context(), b.Code, b.Record, charge)
}

// wantMetric wants the metric's samples to be these lines.
func (w *world) wantMetric(t *testing.T, name, kind, help string, samples ...string) {
	t.Helper()
	want := fmt.Sprintf("# HELP %s %s\n# TYPE %s %s\n%s\n", name, help, name, kind, strings.Join(samples, "\n"))
	if err := testutil.GatherAndCompare(w.reg, strings.NewReader(want), name); err != nil {
		t.Error(err)
	}
}
