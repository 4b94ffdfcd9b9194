package refund_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"pgregory.net/rapid"

	"holdfast/internal/booking"
	"holdfast/internal/refund"
	store "holdfast/internal/store/sqlite"
)

// What may become of a step of a process.
const (
	fine        = "fine"
	lostBefore  = "lost before" // a write that was not made, and fails
	lostAfter   = "lost after"  // a write that was made, and fails
	crashBefore = "crash before"
	crashAfter  = "crash after"
)

var errLine = errors.New("the line is broken")

// process is a service that takes each of its steps when the model lets it.
type process struct {
	svc   *refund.Service
	want  chan string // the step it wants to take
	do    chan string // what becomes of it
	ended chan struct{}

	at      string // the step it waits at; empty when it is idle
	arrived time.Time
	byHand  bool            // what it works on
	settled *refund.Settled // by hand, without an error
}

func (p *process) step(name string) string {
	p.want <- name
	f := <-p.do
	if f == crashBefore {
		runtime.Goexit()
	}
	return f
}

func (p *process) write(name string, fn func() error) error {
	f := p.step(name)
	if f == lostBefore {
		return errLine
	}
	err := fn()
	switch f {
	case lostAfter:
		return errLine
	case crashAfter:
		runtime.Goexit()
	}
	return err
}

// steps is the store and the gateway as a process reaches them.
type steps struct {
	*store.Store
	p *process
	g *gateway
}

func (s steps) ClaimRefund(ctx context.Context, transaction, claim string, now, until time.Time) (r booking.Refund, mine bool, err error) {
	err = s.p.write("claim", func() (err error) {
		r, mine, err = s.Store.ClaimRefund(ctx, transaction, claim, now, until)
		return err
	})
	return r, mine, err
}

func (s steps) RefundSent(ctx context.Context, transaction, claim string, at time.Time) error {
	return s.p.write("sent", func() error { return s.Store.RefundSent(ctx, transaction, claim, at) })
}

func (s steps) RefundDone(ctx context.Context, transaction, by, refundTransaction, note string, at time.Time) error {
	return s.p.write("done", func() error {
		return s.Store.RefundDone(ctx, transaction, by, refundTransaction, note, at)
	})
}

func (s steps) RefundTrouble(ctx context.Context, transaction, claim, trouble string) error {
	return s.p.write("trouble", func() error { return s.Store.RefundTrouble(ctx, transaction, claim, trouble) })
}

func (s steps) Refund(ctx context.Context, transaction string) (booking.Refund, error) {
	return s.Store.Refund(ctx, transaction)
}

// calls is the gateway of a process.
type calls steps

func (c calls) Refund(_ context.Context, o booking.RefundOrder) (booking.RefundAnswer, error) {
	f := c.p.step("refund")
	a, err := c.g.refund(o, giving(f))
	if f == crashAfter {
		runtime.Goexit()
	}
	return a, err
}

func (c calls) RefundStatus(_ context.Context, _, transaction string) (booking.RefundAnswer, error) {
	f := c.p.step("status")
	a, err := c.g.status(transaction, giving(f))
	if f == crashAfter {
		runtime.Goexit()
	}
	return a, err
}

// model is one refund, and processes that work on it.
type model struct {
	clock       *clock
	store       *store.Store
	gateway     *gateway
	processes   []*process
	transaction string
}

func newModel(t *rapid.T, st *store.Store, transaction string) *model {
	c := &clock{now: start}
	m := &model{clock: c, store: st, gateway: newGateway(c), transaction: transaction}
	for range 3 {
		p := &process{want: make(chan string), do: make(chan string), ended: make(chan struct{})}
		s := steps{Store: st, p: p, g: m.gateway}
		var err error
		p.svc, err = refund.New(refund.Deps{
			Store: s, Gateway: calls(s), Now: c.Now, Log: slog.New(slog.DiscardHandler), Registerer: prometheus.NewRegistry(),
		})
		if err != nil {
			t.Fatal(err)
		}
		m.processes = append(m.processes, p)
	}
	return m
}

// begin has an idle process work on the refund, up to its first step.
func (m *model) begin(p *process, byHand bool) {
	p.byHand = byHand
	go func() {
		defer func() { p.ended <- struct{}{} }() // after a crash, too
		if !byHand {
			_, _ = p.svc.Send(context.Background(), m.transaction)
			return
		}
		out, err := p.svc.SettleByHand(context.Background(), m.transaction, "alice", "in cash")
		if err == nil {
			p.settled = &out
		}
	}()
	m.await(p)
}

func (m *model) await(p *process) {
	select {
	case p.at = <-p.want:
		p.arrived = m.clock.Now()
	case <-p.ended:
		p.at = ""
	}
}

func (m *model) let(p *process, f string) {
	p.do <- f
	m.await(p)
}

// pick draws with equal chances, and shrinks to the first.
func pick[E any](t *rapid.T, name string, from ...E) E {
	return rapid.Custom(func(t *rapid.T) E {
		i := 0
		for range 8 { // rapid's own choice among many prefers the first
			i *= 2
			if rapid.Bool().Draw(t, "bit") {
				i++
			}
		}
		return from[i%len(from)]
	}).Draw(t, name)
}

// mayBecome is what may become of a step.
func mayBecome(at string) []string {
	switch at {
	case "refund":
		return []string{string(clearly), string(landsLate), string(answerLost), string(notArrived), string(refuses), string(notSent), string(outage), crashBefore, crashAfter}
	case "status":
		return []string{string(clearly), string(clearly), string(clearly), string(notArrived), string(notSent), string(outage), crashBefore, crashAfter}
	}
	return []string{fine, fine, fine, fine, fine, fine, lostBefore, lostAfter, crashBefore, crashAfter}
}

// advance moves the clock, but not past the end of a call that ends by its own
// deadline and has an effect whoever holds the claim. Everything else may stand
// still for ever.
func (m *model) advance(d time.Duration) {
	for _, p := range m.processes {
		var longest time.Duration
		switch {
		case p.at == "refund":
			longest = 35 * time.Second
		case p.at == "done" && p.byHand:
			longest = 5 * time.Second
		default:
			continue
		}
		d = min(d, p.arrived.Add(longest).Sub(m.clock.Now()))
	}
	m.clock.advance(d)
}

func (m *model) check(t *rapid.T) {
	if n := m.gateway.refunds(m.transaction); n > 1 {
		t.Fatalf("refunded %d times", n)
	}
	r, err := m.store.Refund(context.Background(), m.transaction)
	if err != nil {
		t.Fatal(err)
	}
	if r.State == booking.RefundDone && r.DoneBy == refund.ByGateway && m.gateway.refunds(m.transaction) != 1 {
		t.Fatalf("done by the gateway, which made no refund: %+v", r)
	}
}

// Whatever three processes, a person and the gateway do to one refund, its money
// goes back once; and when all goes well from some time on, it ends.
func TestSend_NeverRefundsTwiceWhateverCrashes(t *testing.T) {
	t.Parallel()
	st, n := openStore(t), 0
	rapid.Check(t, func(t *rapid.T) {
		n++
		transaction := fmt.Sprintf("CK%d", n)
		if _, put, err := st.PutRefund(context.Background(), due(transaction, start)); err != nil || !put {
			t.Fatal(put, err)
		}
		m := newModel(t, st, transaction)
		defer func() {
			for _, p := range m.processes {
				if p.at != "" {
					m.let(p, crashBefore)
				}
			}
		}()
		refusing := pick(t, "the gateway", "gives back", "gives back", "gives back", "refuses") == "refuses"
		for range 50 {
			who := pick(t, "who", 0, 1, 2, 3)
			if who == 0 {
				m.advance(time.Duration(pick(t, "seconds", 2, 10, 30, 45, 95, 125, 600)) * time.Second)
				m.check(t)
				continue
			}
			if p := m.processes[who-1]; p.at == "" {
				m.begin(p, pick(t, "how", "send", "send", "send", "by hand") == "by hand")
			} else {
				f := pick(t, p.at, mayBecome(p.at)...)
				if refusing && p.at == "refund" && f == string(clearly) {
					f = string(refuses)
				}
				m.let(p, f)
			}
			m.check(t)
		}
		m.end(t, refusing)
	})
}

// end has every process crash, and a last one meet no fault.
func (m *model) end(t *rapid.T, refusing bool) {
	for _, p := range m.processes {
		if p.at != "" {
			m.let(p, crashBefore)
		}
	}
	for range 3 {
		m.clock.advance(2 * time.Minute)
		p := m.processes[0]
		for m.begin(p, false); p.at != ""; {
			f := string(clearly)
			if refusing && p.at == "refund" {
				f = string(refuses)
			}
			m.let(p, f)
		}
		m.check(t)
	}
	r, err := m.store.Refund(context.Background(), m.transaction)
	if err != nil {
		t.Fatal(err)
	}
	made := m.gateway.refunds(m.transaction)
	switch {
	case r.State != booking.RefundDone && made > 0, r.State != booking.RefundDone && !refusing:
		t.Fatalf("refunds made: %d, and it is not done: %+v", made, r)
	case r.State != booking.RefundDone && r.Trouble == "":
		t.Fatalf("not done, and no person is told: %+v", r)
	}
	// A person's word stands beside no refund of the gateway's, unless they were told
	// that its word is missing.
	byHand := slices.ContainsFunc(m.processes, func(p *process) bool {
		return p.settled != nil && p.settled.Doubt == nil && p.settled.Refund.DoneBy == "alice"
	})
	if byHand && made > 0 {
		t.Fatalf("settled by hand without doubt, and the gateway made a refund: %+v", r)
	}
}
