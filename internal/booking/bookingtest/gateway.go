package bookingtest

import (
	"context"
	"fmt"
	"sync"
	"time"

	"holdfast/internal/booking"
)

// Call names a call of the gateway about a payment.
type Call string

// The calls that can be scripted.
const (
	Execute Call = "execute"
	Query   Call = "query"
)

// Answer is what becomes of one call. The zero value has no effect at the
// gateway and answers with a charge of no status.
type Answer struct {
	// Made: the call has its effect, when it arrives.
	Made bool
	// Hold keeps the reply back.
	Hold *Hold
	// Err is what the caller gets instead of a reply.
	Err error
	// Change alters the reply.
	Change func(*booking.Charge)
}

// Obey is the gateway at its best: the call is made, and its reply arrives.
func Obey() Answer { return Answer{Made: true} }

// NotSent is a call that never left.
func NotSent() Answer { return Answer{Err: booking.ErrNotSent} }

// LostCall is a call that left and was not made; no reply came.
func LostCall() Answer { return Answer{Err: booking.ErrInDoubt} }

// KeptCall is a call that was made; its reply is lost.
func KeptCall() Answer { return Answer{Made: true, Err: booking.ErrInDoubt} }

// Garbled is a reply that says nothing: an error inside the gateway.
func Garbled() Answer {
	return Answer{Change: func(c *booking.Charge) { c.Status, c.Code = booking.ChargeUnknown, "9999" }}
}

// Altered is a call that was made and whose reply is not what it should be.
func Altered(change func(*booking.Charge)) Answer { return Answer{Made: true, Change: change} }

// Late is a call that was made and whose reply is kept back.
func Late(h *Hold) Answer { return Answer{Made: true, Hold: h} }

// Hold keeps calls back until it is let go.
type Hold struct {
	arrived chan struct{}
	free    chan struct{}
	once    sync.Once
}

// NewHold makes a Hold.
func NewHold() *Hold { return &Hold{arrived: make(chan struct{}), free: make(chan struct{})} }

// Arrived is received from once for every call that has come.
func (h *Hold) Arrived() <-chan struct{} { return h.arrived }

// LetGo lets every call go on, those to come too. Safe to repeat.
func (h *Hold) LetGo() { h.once.Do(func() { close(h.free) }) }

// wait announces the call and returns when it is let go; the error is the
// context's.
func (h *Hold) wait(ctx context.Context) error {
	select {
	case h.arrived <- struct{}{}:
	case <-h.free:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
	select {
	case <-h.free:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// payment is one payment as the gateway has it.
type payment struct {
	order    booking.Order
	created  time.Time
	finished bool   // the payer has done their part
	refuse   string // the code that execute will answer
	executed bool   // it has had its one execution
	trx      string // money has moved
	again    string // by a second transaction, too
	divert   func(*booking.Charge)
}

// Gateway is a payment gateway that keeps the real one's rules: money moves by
// one execution of a payment that its payer has finished, within 24 hours, and a
// second execution only says that there was a first. Tests script the answers of
// single calls. Safe for concurrent use.
type Gateway struct {
	now func() time.Time

	mu       sync.Mutex
	payments map[string]*payment
	next     map[string][]Answer
	always   map[string]Answer
	calls    map[string]int
}

// NewGateway makes a gateway with the test's clock.
func NewGateway(now func() time.Time) *Gateway {
	return &Gateway{now: now, payments: map[string]*payment{}, next: map[string][]Answer{}, always: map[string]Answer{}, calls: map[string]int{}}
}

// Ready says that Create is tried.
func (g *Gateway) Ready() (func(), error) { return func() {}, nil }

// Create makes a payment; its payer has not finished.
func (g *Gateway) Create(_ context.Context, o booking.Order) (booking.Payment, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	id := fmt.Sprintf("TR%06d", len(g.payments)+1)
	g.payments[id] = &payment{order: o, created: g.now()}
	return booking.Payment{ID: id, URL: "http://gateway.test/pay/" + id, Signature: "sig" + id}, nil
}

// Finish has the payer do their part: the next execution moves the money.
func (g *Gateway) Finish(id string) { g.with(id, func(p *payment) { p.finished, p.refuse = true, "" }) }

// Refuse has the next execution end with a final refusal of that code.
func (g *Gateway) Refuse(id, code string) { g.with(id, func(p *payment) { p.refuse = code }) }

// Complete moves the money of a payment, as by an execution that reached the
// gateway late.
func (g *Gateway) Complete(id string) {
	g.with(id, func(p *payment) { p.executed, p.trx = true, "TX"+id })
}

// Divert has a payment complete otherwise than it was ordered. The change keeps
// payment and transaction as they are.
func (g *Gateway) Divert(id string, change func(*booking.Charge)) {
	g.with(id, func(p *payment) { p.divert = change })
}

// CompleteAgain moves the money of a payment by a second transaction, which no query
// about the payment tells of, and returns it.
func (g *Gateway) CompleteAgain(id string) booking.Charge {
	var again booking.Charge
	g.with(id, func(p *payment) {
		p.again = "TY" + id
		again = p.charge(id)
		again.Transaction = p.again
	})
	return again
}

func (g *Gateway) with(id string, do func(*payment)) {
	g.mu.Lock()
	defer g.mu.Unlock()
	do(g.payments[id])
}

// Next scripts the next calls about a payment, one answer each.
func (g *Gateway) Next(c Call, id string, answers ...Answer) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.next[key(c, id)] = append(g.next[key(c, id)], answers...)
}

// Always scripts every call about a payment, or, with id "", about any, that
// Next says nothing of.
func (g *Gateway) Always(c Call, id string, a Answer) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.always[key(c, id)] = a
}

// Calls counts the calls about a payment, or, with id "", about all, whatever
// became of them.
func (g *Gateway) Calls(c Call, id string) int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.calls[key(c, id)]
}

// Completed lists the transactions by which money has moved.
func (g *Gateway) Completed() []booking.Charge {
	g.mu.Lock()
	defer g.mu.Unlock()
	var out []booking.Charge
	for id, p := range g.payments {
		if p.trx != "" {
			out = append(out, p.charge(id))
		}
		if p.again != "" {
			c := p.charge(id)
			c.Transaction = p.again
			out = append(out, c)
		}
	}
	return out
}

// Execute moves the money of a finished payment, once.
func (g *Gateway) Execute(ctx context.Context, id string) (booking.Charge, error) {
	return g.call(ctx, Execute, id)
}

// Query tells what became of a payment.
func (g *Gateway) Query(ctx context.Context, id string) (booking.Charge, error) {
	return g.call(ctx, Query, id)
}

func (g *Gateway) call(ctx context.Context, c Call, id string) (booking.Charge, error) {
	if err := ctx.Err(); err != nil {
		return booking.Charge{}, fmt.Errorf("%s %s: %w: %w", c, id, booking.ErrNotSent, err)
	}
	a, charge := g.arrive(c, id)
	if a.Hold != nil {
		if err := a.Hold.wait(ctx); err != nil {
			return booking.Charge{}, fmt.Errorf("%s %s: %w: %w", c, id, booking.ErrInDoubt, err)
		}
	}
	if a.Err != nil {
		return booking.Charge{}, fmt.Errorf("%s %s: %w", c, id, a.Err)
	}
	if a.Change != nil {
		a.Change(&charge)
	}
	return charge, nil
}

func (g *Gateway) arrive(c Call, id string) (Answer, booking.Charge) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.calls[key(c, id)]++
	g.calls[key(c, "")]++
	a := g.answer(c, id)
	charge := booking.Charge{PaymentID: id, Code: "2002", Status: booking.ChargeUnknown}
	p := g.payments[id]
	if p == nil || !a.Made {
		return a, charge
	}
	code, status := "0000", booking.ChargeOpen
	if c == Execute {
		code, status = p.execute(id, g.now())
	} else if p.trx != "" {
		status = booking.ChargeCompleted
	}
	charge = p.charge(id)
	charge.Code, charge.Status = code, status
	return a, charge
}

func (g *Gateway) answer(c Call, id string) Answer {
	if list := g.next[key(c, id)]; len(list) > 0 {
		g.next[key(c, id)] = list[1:]
		return list[0]
	}
	for _, k := range []string{key(c, id), key(c, "")} {
		if a, ok := g.always[k]; ok {
			return a
		}
	}
	return Obey()
}

// lapse is how long after its creation a payment can be executed.
const lapse = 24 * time.Hour

func (p *payment) execute(id string, now time.Time) (string, booking.ChargeStatus) {
	switch {
	case p.executed:
		return "2117", booking.ChargeUnknown
	case now.Sub(p.created) >= lapse:
		return "2056", booking.ChargeUnknown
	case p.refuse != "":
		p.executed = true
		return p.refuse, booking.ChargeRefused
	case !p.finished:
		return "2060", booking.ChargeUnfinished
	}
	p.executed, p.trx = true, "TX"+id
	return "0000", booking.ChargeCompleted
}

func (p *payment) charge(id string) booking.Charge {
	c := booking.Charge{
		Status: booking.ChargeCompleted, PaymentID: id, Invoice: p.order.Invoice, Transaction: p.trx,
		Amount: p.order.Amount, Currency: p.order.Currency, Code: "0000",
	}
	if p.divert != nil {
		p.divert(&c)
	}
	return c
}

func key(c Call, id string) string { return string(c) + "\n" + id }
