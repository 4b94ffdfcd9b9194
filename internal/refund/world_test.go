package refund_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"

	"holdfast/internal/booking"
	"holdfast/internal/refund"
	store "holdfast/internal/store/sqlite"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var start = time.Date(2026, 12, 1, 4, 0, 0, 0, time.UTC)

// clock is the time of a test, which alone moves it.
type clock struct {
	mu  sync.Mutex
	now time.Time
}

func (c *clock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

func (c *clock) advance(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(d)
}

// giving is what the gateway does with a refund call, or with a question.
type giving string

const (
	clearly    giving = ""         // it does it, and says so
	answerLost giving = "lost"     // it does it, and nobody hears
	notArrived giving = "cut"      // nothing happens, and nobody knows
	landsLate  giving = "late"     // nobody hears, and it happens a while later
	refuses    giving = "refused"  // nothing happens, clearly
	notSent    giving = "not sent" // it never left
	outage     giving = "outage"   // the gateway as a whole gives no answer
	givesLess  giving = "less"     // it gives back half, and says so
)

// gateway is a gateway that gives back as often as it is told to.
type gateway struct {
	clock *clock

	mu      sync.Mutex
	calls   []string // refund or status, and the transaction
	made    map[string][]booking.RefundAnswer
	landing map[string]time.Time
	onCall  giving                   // what refund calls meet
	onAsk   giving                   // what questions meet
	during  func(transaction string) // while a refund call is under way
	asking  func()                   // while a question is
}

func newGateway(c *clock) *gateway {
	return &gateway{clock: c, made: map[string][]booking.RefundAnswer{}, landing: map[string]time.Time{}}
}

func (g *gateway) set(call, ask giving) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.onCall, g.onAsk = call, ask
}

// land brings what was on its way.
func (g *gateway) land() {
	for transaction, at := range g.landing {
		if !g.clock.Now().Before(at) {
			delete(g.landing, transaction)
			g.give(booking.RefundOrder{Transaction: transaction, Amount: amount, Currency: "BDT"})
		}
	}
}

func (g *gateway) give(o booking.RefundOrder) booking.RefundAnswer {
	n := len(g.made[o.Transaction]) + 1
	a := booking.RefundAnswer{
		Done: true, Transaction: fmt.Sprintf("R%d%s", n, o.Transaction), Original: o.Transaction,
		Amount: o.Amount, Currency: o.Currency, Code: "0000", Text: "Successful",
	}
	g.made[o.Transaction] = append(g.made[o.Transaction], a)
	return a
}

func (g *gateway) Refund(ctx context.Context, o booking.RefundOrder) (booking.RefundAnswer, error) {
	if g.during != nil {
		g.during(o.Transaction)
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if err := ctx.Err(); err != nil {
		return booking.RefundAnswer{}, fmt.Errorf("%w: %w", booking.ErrNotSent, err)
	}
	g.calls = append(g.calls, "refund "+o.Transaction)
	return g.refund(o, g.onCall)
}

func (g *gateway) refund(o booking.RefundOrder, as giving) (booking.RefundAnswer, error) {
	switch as {
	case answerLost:
		g.give(o)
		return booking.RefundAnswer{}, booking.ErrInDoubt
	case notArrived:
		return booking.RefundAnswer{}, booking.ErrInDoubt
	case landsLate:
		g.landing[o.Transaction] = g.clock.Now().Add(time.Minute)
		return booking.RefundAnswer{}, booking.ErrInDoubt
	case refuses:
		return booking.RefundAnswer{Code: "2023", Text: "Insufficient Balance"}, nil
	case notSent:
		return booking.RefundAnswer{}, booking.ErrNotSent
	case outage:
		return booking.RefundAnswer{}, fmt.Errorf("%w: %w", booking.ErrInDoubt, booking.ErrGatewayOutage)
	case givesLess:
		o.Amount /= 2
	}
	return g.give(o), nil
}

func (g *gateway) RefundStatus(ctx context.Context, payment, transaction string) (booking.RefundAnswer, error) {
	if g.asking != nil {
		g.asking()
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if err := ctx.Err(); err != nil {
		return booking.RefundAnswer{}, fmt.Errorf("%w: %w", booking.ErrNotSent, err)
	}
	g.calls = append(g.calls, "status "+transaction)
	return g.status(transaction, g.onAsk)
}

func (g *gateway) status(transaction string, as giving) (booking.RefundAnswer, error) {
	g.land()
	switch as {
	case notArrived:
		return booking.RefundAnswer{}, booking.ErrInDoubt
	case notSent:
		return booking.RefundAnswer{}, booking.ErrNotSent
	case outage:
		return booking.RefundAnswer{}, fmt.Errorf("%w: %w", booking.ErrInDoubt, booking.ErrGatewayOutage)
	}
	if made := g.made[transaction]; len(made) > 0 {
		return made[len(made)-1], nil
	}
	return booking.RefundAnswer{Code: "2033", Text: "Not Found"}, nil
}

// refunds is how often the money of a transaction has gone back.
func (g *gateway) refunds(transaction string) int {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.land()
	return len(g.made[transaction])
}

func (g *gateway) called() []string {
	g.mu.Lock()
	defer g.mu.Unlock()
	out := g.calls
	g.calls = nil
	return out
}

const (
	amount = booking.Money(150000)
	code   = "AB-100001"
)

// due is a refund as the late decision leaves it.
func due(transaction string, decided time.Time) booking.Refund {
	return booking.Refund{
		Version: booking.RefundVersion, Transaction: transaction, PaymentID: "TR" + transaction,
		CandidateHash: booking.CandidateHash(code), Attempt: "1ngtsa07kq3m-01m8qw4tg04f8r2tqz9e6wn1bd", Level: "N1",
		Amount: amount, Currency: "BDT", Kind: booking.MoneyLate, Reason: "full", State: booking.RefundDue, DecidedAt: decided,
	}
}

// world is a store with refunds in it, a gateway, and a service between them.
type world struct {
	clock   *clock
	store   *store.Store
	gateway *gateway
	log     *bytes.Buffer
	reg     *prometheus.Registry
	*refund.Service
}

func newWorld(t *testing.T, set ...func(*refund.Deps)) *world {
	t.Helper()
	c := &clock{now: start}
	w := &world{clock: c, gateway: newGateway(c), log: new(bytes.Buffer), reg: prometheus.NewRegistry(), store: openStore(t)}
	d := refund.Deps{
		Store: w.store, Gateway: w.gateway, Automatic: true, PerSecond: 1000, Now: c.Now,
		Log: slog.New(slog.NewJSONHandler(w.log, nil)), Registerer: w.reg,
	}
	for _, f := range set {
		f(&d)
	}
	var err error
	if w.Service, err = refund.New(d); err != nil {
		t.Fatal(err)
	}
	return w
}

func openStore(t *testing.T) *store.Store {
	t.Helper()
	s, err := store.Open(t.Context(), filepath.Join(t.TempDir(), "store.db"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

func (w *world) put(t *testing.T, list ...booking.Refund) {
	t.Helper()
	for _, r := range list {
		if _, put, err := w.store.PutRefund(t.Context(), r); err != nil || !put {
			t.Fatalf("put refund of %s: got %v, %v", r.Transaction, put, err)
		}
	}
}

// wantCalls compares what the gateway was asked since the last time.
func (w *world) wantCalls(t *testing.T, want ...string) {
	t.Helper()
	if diff := cmp.Diff(want, w.gateway.called(), cmpopts.EquateEmpty()); diff != "" {
		t.Errorf("calls of the gateway, -want +got:\n%s", diff)
	}
}

// wantStored compares the stored refund with what a call returned, and returns it.
func (w *world) wantStored(t *testing.T, got booking.Refund) booking.Refund {
	t.Helper()
	r, err := w.store.Refund(t.Context(), got.Transaction)
	if diff := cmp.Diff(r, got, cmpopts.EquateApproxTime(0)); diff != "" || err != nil {
		t.Errorf("returned refund, -stored +returned: %v\n%s", err, diff)
	}
	return r
}

func wantError(t *testing.T, what string, got, want error) {
	t.Helper()
	if !errors.Is(got, want) || want == nil && got != nil {
		t.Errorf("%s: got %v, want %v", what, got, want)
	}
}
