package checkout_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"

	"holdfast/internal/admission"
	"holdfast/internal/booking"
	"holdfast/internal/checkout"
	"holdfast/internal/mockgateway"
	"holdfast/internal/paygate"
	queue "holdfast/internal/queue/sqlite"
	"holdfast/internal/testenv"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var (
	sale = booking.Sale{
		Name: "demo", Currency: "BDT", Cap: 12, Hold: booking.DefaultHold,
		Levels: []booking.Level{
			{ID: "N1", Name: "N1", Cap: 10, Fee: 150000},
			{ID: "N2", Name: "N2", Cap: 10, Fee: 120000},
			{ID: "N9", Name: "N9", Cap: 0, Fee: 100000},
		},
	}
	epoch   = booking.NewEpoch(time.Unix(1_800_000_000, 0))
	errDown = errors.New("connection reset by peer")
)

func code(i int) string { return fmt.Sprintf("C%03d", i) }

func request(i int) booking.Request {
	return booking.Request{Code: code(i), Email: strings.ToLower(code(i)) + "@example.org", Level: "N1", RequestID: fmt.Sprint("r", i)}
}

func bookingURL(code, attempt string) string {
	return "https://sale.test/booking/" + code + "." + attempt
}

// A fault decides what becomes of one call.
type fault func(ctx context.Context, call func() error) error

// lost: the call was not made. kept: it was made, and its reply lost. unacked: it
// was made and the replicas did not confirm it. hangs: it was not made, and
// nobody says so before the caller's time is over; hangsKept: the same, made.
func lost(context.Context, func() error) error        { return errDown }
func kept(_ context.Context, call func() error) error { _ = call(); return errDown }
func hangs(ctx context.Context, _ func() error) error { <-ctx.Done(); return ctx.Err() }
func answers(err error) fault                         { return func(context.Context, func() error) error { return err } }
func unacked(_ context.Context, call func() error) error {
	_ = call()
	return booking.ErrNotAcknowledged
}

func hangsKept(ctx context.Context, call func() error) error {
	_ = call()
	<-ctx.Done()
	return ctx.Err()
}

// wires lead from services to ledger, gateway and queue. They note every call
// and break as told.
type wires struct {
	mu     sync.Mutex
	calls  []string
	faults map[string][]fault
	always map[string]fault
	on     func(step string)
}

// breaks has the next calls of a step meet these faults, one each.
func (w *wires) breaks(step string, faults ...fault) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.faults[step] = append(w.faults[step], faults...)
}

// stays has all calls of a step meet this fault; nil mends it.
func (w *wires) stays(step string, f fault) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.always[step] = f
}

func (w *wires) call(ctx context.Context, step string, do func() error) error {
	w.mu.Lock()
	w.calls = append(w.calls, step)
	on, f := w.on, w.always[step]
	if next := w.faults[step]; len(next) > 0 {
		f, w.faults[step] = next[0], next[1:]
	}
	w.mu.Unlock()
	if on != nil {
		on(step)
	}
	if f == nil {
		return do()
	}
	return f(ctx, do)
}

// steps are the calls since the last time it was asked.
func (w *wires) steps() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	s := strings.Join(w.calls, " ")
	w.calls = nil
	return s
}

// seats is a seat ledger: the real one, or the one in memory.
type seats interface {
	checkout.Ledger
	checkout.Rows
}

type ledger struct {
	seats
	wires *wires
}

func (l ledger) Admit(ctx context.Context, r booking.Request, suffix string, check bool) (booking.Seat, error) {
	ctx, cancel := context.WithDeadline(ctx, r.Until) // as the real one keeps to it
	defer cancel()
	step, undo := "admit", false
	if check {
		step = "check"
	}
	var seat booking.Seat
	err := l.wires.call(ctx, step, func() (err error) {
		seat, err = l.seats.Admit(ctx, r, suffix, check)
		undo = err == nil && !seat.Replay
		return err
	})
	if errors.Is(err, booking.ErrNotAcknowledged) { // undone on its own connection, as the ledger promises
		if undo {
			_ = l.seats.Undo(ctx, r.Code, seat.Row.Attempt)
		}
		err = fmt.Errorf("%w: %w", booking.ErrTryAgain, err)
	}
	if err != nil {
		return booking.Seat{}, err
	}
	return seat, nil
}

func (l ledger) Attach(ctx context.Context, code, attempt string, p booking.Payment) (row booking.Row, now time.Time, err error) {
	err = l.wires.call(ctx, "attach", func() (err error) {
		row, now, err = l.seats.Attach(ctx, code, attempt, p)
		return err
	})
	if err != nil {
		return booking.Row{}, time.Time{}, err
	}
	return row, now, nil
}

func (l ledger) Queued(ctx context.Context, code, attempt string) error {
	return l.wires.call(ctx, "queued", func() error { return l.seats.Queued(ctx, code, attempt) })
}

func (l ledger) Undo(ctx context.Context, code, attempt string) error {
	return l.wires.call(ctx, "undo", func() error { return l.seats.Undo(ctx, code, attempt) })
}

func (l ledger) PaymentOf(ctx context.Context, attempt string) (p booking.Payment, err error) {
	err = l.wires.call(ctx, "payment", func() (err error) {
		p, err = l.seats.PaymentOf(ctx, attempt)
		return err
	})
	return p, err
}

// Ready says what the test set as out.
func (g *gateway) Ready() (func(), error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return func() { g.unused.Add(1) }, g.out
}

func (g *gateway) setOut(err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.out = err
}

// gateway notes what was ordered and made of it. With instead it answers that.
type gateway struct {
	checkout.Gateway
	wires   *wires
	mu      sync.Mutex
	orders  []booking.Order
	instead *booking.Payment
	out     error
	unused  atomic.Int64
}

func (g *gateway) Create(ctx context.Context, o booking.Order) (p booking.Payment, err error) {
	g.mu.Lock()
	g.orders = append(g.orders, o)
	instead := g.instead
	g.mu.Unlock()
	err = g.wires.call(ctx, "create", func() (err error) {
		p, err = g.Gateway.Create(ctx, o)
		return err
	})
	if err == nil && instead != nil {
		p = *instead
	}
	return p, err
}

// ordered lists the candidates for whom a payment was ordered, in that order.
func (g *gateway) ordered(t *testing.T) []string {
	t.Helper()
	g.mu.Lock()
	defer g.mu.Unlock()
	var codes []string
	for _, o := range g.orders {
		hash, _, err := booking.ParseInvoice(o.Invoice)
		if err != nil {
			t.Fatal(err)
		}
		for i := range candidates {
			if booking.CandidateHash(code(i)) == hash {
				codes = append(codes, code(i))
			}
		}
	}
	return codes
}

// cashier is a gateway that makes every payment.
type cashier struct{ made atomic.Int64 }

// Ready says that Create is tried.
func (c *cashier) Ready() (func(), error) { return func() {}, nil }

// Create makes every payment.
func (c *cashier) Create(_ context.Context, o booking.Order) (booking.Payment, error) {
	id := fmt.Sprintf("TR%06d", c.made.Add(1))
	return booking.Payment{ID: id, URL: "https://gateway.test/pay/" + id, Signature: "sig-" + id}, nil
}

// inbox is a queue.
type inbox interface {
	checkout.Queue
	Receive(ctx context.Context, most int, wait time.Duration) ([]booking.Delivery, error)
}

// sends notes every send, those that are lost among them.
type sends struct {
	inbox
	wires *wires
	mu    sync.Mutex
	sent  []booking.Delivery
}

func (q *sends) Send(ctx context.Context, group, dedupID string, body []byte) error {
	q.mu.Lock()
	q.sent = append(q.sent, booking.Delivery{Group: group, DedupID: dedupID, Body: body})
	q.mu.Unlock()
	return q.wires.call(ctx, "send", func() error { return q.inbox.Send(ctx, group, dedupID, body) })
}

// messages is a queue in memory.
type messages struct {
	mu   sync.Mutex
	kept []booking.Delivery
}

func (m *messages) Send(_ context.Context, group, dedupID string, body []byte) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !slices.ContainsFunc(m.kept, func(d booking.Delivery) bool { return d.DedupID == dedupID && d.Group == group }) {
		m.kept = append(m.kept, booking.Delivery{Group: group, DedupID: dedupID, Body: slices.Clone(body)})
	}
	return nil
}

func (m *messages) Receive(_ context.Context, most int, _ time.Duration) ([]booking.Delivery, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	n := min(most, len(m.kept))
	out := m.kept[:n]
	m.kept = m.kept[n:]
	return out, nil
}

// bench is one server, or several, over one ledger, gateway and queue.
type bench struct {
	*checkout.Service
	*wires
	ledger  ledger
	gateway *gateway
	queue   *sends
	changed *atomic.Int64
	reg     *prometheus.Registry
	slots   int64
	// taken counts a level's seats as the ledger does.
	taken func(level string) int
	// refuse has the gateway refuse the payment of a held row.
	refuse func(row booking.Row, code string) error
	// advance lets time pass for the ledger.
	advance func(d time.Duration)
}

func newBench(t *testing.T, s seats, g checkout.Gateway, q inbox, slots int64) *bench {
	t.Helper()
	w := &wires{faults: map[string][]fault{}, always: map[string]fault{}}
	b := &bench{
		wires: w, ledger: ledger{s, w}, gateway: &gateway{Gateway: g, wires: w}, queue: &sends{inbox: q, wires: w},
		changed: new(atomic.Int64), slots: slots,
	}
	b.serve(t)
	return b
}

// serve starts a server.
func (b *bench) serve(t *testing.T) {
	t.Helper()
	var err error
	b.reg = prometheus.NewRegistry()
	b.Service, err = checkout.New(b.deps())
	if err != nil {
		t.Fatal(err)
	}
	reg := b.reg
	t.Cleanup(func() {
		if n := slotsInUse(t, reg); n != 0 {
			t.Errorf("gateway slots in use when nobody is at work: got %v, want 0", n)
		}
	})
}

func (b *bench) deps() checkout.Deps {
	return checkout.Deps{
		Ledger: b.ledger, Gateway: b.gateway, Queue: b.queue, Slots: b.slots, Budgets: checkout.DefaultBudgets(),
		CallbackURL: "https://sale.test/payment/callback", BookingURL: bookingURL, Changed: func() { b.changed.Add(1) },
		Log: slog.New(slog.DiscardHandler), Registerer: b.reg,
	}
}

// another is a second server over the same ledger, gateway and queue.
func (b *bench) another(t *testing.T) *bench {
	t.Helper()
	other := *b
	other.serve(t)
	return &other
}

func slotsInUse(t *testing.T, reg *prometheus.Registry) float64 {
	t.Helper()
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() == "holdfast_gateway_slots_in_use" {
			return f.GetMetric()[0].GetGauge().GetValue()
		}
	}
	t.Fatal("holdfast_gateway_slots_in_use: got no such metric")
	return 0
}

const candidates = 60

// inMemory is a bench whose parts are all in memory, for a bubble of time.
func inMemory(t *testing.T, slots int64) *bench {
	t.Helper()
	m := newMemory()
	b := newBench(t, m, &cashier{}, &messages{}, slots)
	b.taken, b.refuse = m.taken, m.refuse
	return b
}

// onEach runs the test on parts in memory, in a bubble, and on the real ledger
// with a replica that must acknowledge, the gateway's client and mock, and a
// queue in a file.
func onEach(t *testing.T, slots int64, fn func(t *testing.T, b *bench)) {
	t.Helper()
	t.Parallel()
	t.Run("InMemory", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			b := inMemory(t, slots)
			b.advance = func(d time.Duration) { time.Sleep(d) }
			fn(t, b)
		})
	})
	t.Run("Real", func(t *testing.T) { fn(t, inEarnest(t, slots)) })
}

func inEarnest(t *testing.T, slots int64) *bench {
	t.Helper()
	rdb := admission.NewClient(admission.ClientConfig{Addr: testenv.Pair(t).Primary.Addr(), Pool: 64})
	t.Cleanup(func() { rdb.Close() })
	keys, err := admission.NewKeys(admission.DefaultPrefix)
	if err != nil {
		t.Fatal(err)
	}
	var offset atomic.Int64
	log := slog.New(slog.DiscardHandler)
	gate, err := admission.New(rdb, admission.Options{
		Keys: keys, Acks: 1, Log: log, Registerer: prometheus.NewRegistry(),
		ClockOffset: func() time.Duration { return time.Duration(offset.Load()) },
	})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := gate.ApplySale(t.Context(), sale, epoch, false); err != nil {
		t.Fatal(err)
	}
	var list []booking.Candidate
	for i := range candidates {
		list = append(list, booking.Candidate{Code: request(i).Code, Email: request(i).Email})
	}
	if err := errors.Join(gate.AddCandidates(t.Context(), list), gate.Open(t.Context())); err != nil {
		t.Fatal(err)
	}
	q, err := queue.Open(t.Context(), filepath.Join(t.TempDir(), "queue.db"), queue.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { q.Close() })
	b := newBench(t, gate, newPaygate(t, log), q, slots)
	b.advance = func(d time.Duration) { offset.Add(int64(d)) }
	b.taken = func(level string) int {
		f, err := gate.ReadStatus(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for _, l := range f.Levels {
			if l.ID == level {
				return l.Admitted
			}
		}
		return -1
	}
	b.refuse = func(row booking.Row, code string) error {
		if _, _, err := gate.BeginPay(t.Context(), code, row.Attempt, row.Payment, "payer", time.Minute); err != nil {
			return err
		}
		if err := gate.EndPay(t.Context(), code, row.Attempt, "payer", booking.PhaseRefused); err != nil {
			return err
		}
		return gate.RecordReleased(t.Context(), code, row.Attempt)
	}
	return b
}

// oneToken is a token for the length of a test.
type oneToken string

func (s oneToken) Token(context.Context) (string, error) { return string(s), nil }
func (s oneToken) Rejected(context.Context, string)      {}

func newPaygate(t *testing.T, log *slog.Logger) *paygate.Client {
	t.Helper()
	mock, err := mockgateway.New(mockgateway.Options{})
	if err != nil {
		t.Fatal(err)
	}
	srv := httptest.NewServer(mock)
	t.Cleanup(func() { srv.Close(); mock.Close() })
	base := srv.URL + mockgateway.BasePath
	granter, err := paygate.NewGranter(base, paygate.Credentials{AppKey: "k", AppSecret: "s", Username: "u", Password: "p"}, srv.Client())
	if err != nil {
		t.Fatal(err)
	}
	grant, err := granter.Grant(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	client, err := paygate.New(paygate.Config{BaseURL: base, AppKey: "k"}, oneToken(grant.IDToken), srv.Client(), log, prometheus.NewRegistry())
	if err != nil {
		t.Fatal(err)
	}
	return client
}

func (b *bench) mustBook(t *testing.T, i int) booking.Held {
	t.Helper()
	held, err := b.Book(t.Context(), request(i))
	if err != nil {
		t.Fatalf("book %s: got %v, want a seat", code(i), err)
	}
	return held
}

// mustRefuse books and gets want for an answer.
func (b *bench) mustRefuse(t *testing.T, r booking.Request, want error) {
	t.Helper()
	held, err := b.Book(t.Context(), r)
	if !errors.Is(err, want) {
		t.Fatalf("book %s: got %v, want %v", r.Code, err, want)
	}
	if held != (booking.Held{Attempt: held.Attempt}) {
		t.Errorf("book %s: got %+v beside %v, want nothing but an attempt", r.Code, held, err)
	}
}

// wantSeat checks that a candidate's seat is in a phase, "" for none.
func (b *bench) wantSeat(t *testing.T, i int, want booking.Phase) booking.Row {
	t.Helper()
	row, _, err := b.ledger.Row(t.Context(), code(i))
	if err != nil && !errors.Is(err, booking.ErrNotFound) {
		t.Fatalf("row of %s: %v", code(i), err)
	}
	if row.Phase != want {
		t.Errorf("seat of %s: got phase %q, want %q", code(i), row.Phase, want)
	}
	return row
}

// wantLink checks that the next request of a candidate hears duplicate, with the
// link of the seat's own payment.
func (b *bench) wantLink(t *testing.T, i int) {
	t.Helper()
	row, _, err := b.ledger.Row(t.Context(), code(i))
	if err != nil {
		t.Fatalf("row of %s: %v", code(i), err)
	}
	_, err = b.Book(t.Context(), request(i))
	var dup *booking.DuplicateError
	if !errors.As(err, &dup) {
		t.Fatalf("book %s again: got %v, want a duplicate", code(i), err)
	}
	p, err := b.ledger.seats.PaymentOf(t.Context(), row.Attempt)
	if err != nil {
		t.Fatalf("payment of %s: %v", row.Attempt, err)
	}
	if p.ID != row.Payment || dup.PaymentURL != p.URL || dup.BookingURL != bookingURL(code(i), row.Attempt) {
		t.Errorf("book %s again: got links %q and %q, want %q and %q", code(i), dup.PaymentURL, dup.BookingURL, p.URL, bookingURL(code(i), row.Attempt))
	}
}

// queued takes every message out of the queue and returns the records in them.
func (b *bench) queued(t *testing.T) []booking.Record {
	t.Helper()
	var out []booking.Record
	for {
		ds, err := b.queue.Receive(t.Context(), 10, 0)
		if err != nil {
			t.Fatalf("receive: %v", err)
		}
		if len(ds) == 0 {
			return out
		}
		for _, d := range ds {
			var rec booking.Record
			dec := json.NewDecoder(strings.NewReader(string(d.Body)))
			dec.DisallowUnknownFields()
			if err := dec.Decode(&rec); err != nil {
				t.Errorf("message %s: got %v, want a record", d.Body, err)
			}
			if err := rec.Validate(); err != nil || rec.State != booking.StateHeld {
				t.Errorf("message: got %v, state %q, want a valid HELD record", err, rec.State)
			}
			if d.DedupID != rec.Invoice || d.Group != booking.QueueGroup(rec.CandidateHash) {
				t.Errorf("message of %s: got group %s, deduplication id %s, want %s and the invoice", rec.Attempt, d.Group, d.DedupID, booking.QueueGroup(rec.CandidateHash))
			}
			out = append(out, rec)
		}
	}
}
