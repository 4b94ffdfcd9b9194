package model_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync/atomic"
	"time"

	"holdfast/internal/admission"
	"holdfast/internal/booking"
	"holdfast/internal/booking/bookingtest"
)

// op names a call of a port, where an actor waits for its turn.
type op string

const (
	opAdmit    op = "admit"
	opAttach   op = "attach"
	opQueued   op = "queued"
	opUndo     op = "undo"
	opBeginPay op = "begin pay"
	opTakeOver op = "take over"
	opEndPay   op = "end pay"
	opSettle   op = "settle"
	opRelease  op = "release"
	opLate     op = "decide late"
	opDone     op = "done"
	opPostpone op = "postpone"
	opCreate   op = "create payment"
	opExecute  op = "execute"
	opQuery    op = "query"
	opSend     op = "send to queue"
	opPut      op = "put record"
	opPaid     op = "mark paid"
	opAnnounce op = "announce"
	opEnd      op = "release record"
	opRefund   op = "put refund"
	opClaim    op = "claim mail"
	opSent     op = "mark mail sent"
	opMail     op = "send mail"
)

// fate is what becomes of a call.
type fate int

const (
	pass    fate = iota
	lost         // not made
	kept         // made, its reply lost; of the ledger, not acknowledged
	late         // execute: no answer, and made later
	garbled      // gateway: an answer that says nothing
	outage       // gateway: the whole of it gives no answers
	unsent       // not made, and the caller knows
	dropped      // the process is gone before the call, for good
)

var fateNames = [...]string{"pass", "lost", "kept", "late", "garbled", "outage", "unsent", "dropped"}

func (f fate) String() string { return fateNames[f] }

// actor is a process at one piece of work.
type actor struct {
	name  string
	gate  *admission.Gate
	calls chan op   // the call it is about to make; closed when the work has ended
	turns chan fate // lets it make the call
	at    op
	// alone says that the work is one goroutine, which a dropped process takes
	// along; a sweep has several and hears errors instead.
	alone bool
	gone  atomic.Bool

	// token is that of the execute call it has announced, which may be sent until
	// then.
	token     string
	sendUntil time.Time

	due    []booking.DueRow // of a sweep, read once
	dueNow time.Time
	listed bool
}

type actorKey struct{}

func actorOf(ctx context.Context) *actor {
	a, _ := ctx.Value(actorKey{}).(*actor)
	return a
}

var errCrashed = errors.New("this process is gone")

// start runs fn until its first call.
func (m *model) start(name string, gate *admission.Gate, alone bool, fn func(ctx context.Context)) *actor {
	a := &actor{name: name, gate: gate, alone: alone, calls: make(chan op), turns: make(chan fate)}
	ctx := context.WithValue(m.ctx, actorKey{}, a)
	go func() {
		defer close(a.calls)
		fn(ctx)
	}()
	m.actors = append(m.actors, a)
	m.await(a)
	return a
}

// await returns when the actor is about to make its next call, or has ended.
func (m *model) await(a *actor) {
	next, more := <-a.calls
	if more {
		a.at = next
		return
	}
	a.at = ""
	for i := range m.actors {
		if m.actors[i] == a {
			m.actors = append(m.actors[:i:i], m.actors[i+1:]...)
			return
		}
	}
}

// turn lets the actor make one call, and checks the rules.
func (m *model) turn(a *actor, f fate) error {
	m.note("%s: %s %s", a.name, a.at, f)
	m.before, m.last = m.clock.Now(), call{}
	a.turns <- f
	m.await(a)
	if f == dropped {
		return nil
	}
	return m.check()
}

// dropAll takes every process away.
func (m *model) dropAll() {
	for len(m.actors) > 0 {
		_ = m.turn(m.actors[0], dropped) // nothing is checked then
	}
}

// turnOf waits for the turn to make a call. The model's own calls have it.
func turnOf(ctx context.Context, o op) (fate, error) {
	a := actorOf(ctx)
	if a == nil {
		return pass, nil
	}
	if a.gone.Load() {
		return dropped, errCrashed
	}
	a.calls <- o
	f := <-a.turns
	if f == dropped {
		a.gone.Store(true)
		if a.alone {
			runtime.Goexit()
		}
		return dropped, errCrashed
	}
	return f, nil
}

// made makes a call in its turn; reply is the error of one whose reply is lost.
func made[T any](ctx context.Context, o op, reply error, do func() (T, error)) (T, error) {
	var none T
	switch f, err := turnOf(ctx, o); {
	case err != nil:
		return none, err
	case f == lost || f == unsent:
		return none, fmt.Errorf("%s: %w", o, bookingtest.ErrLost)
	case f == pass:
		return do()
	default:
		_, _ = do()
		return none, fmt.Errorf("%s: %w", o, reply)
	}
}

func made0(ctx context.Context, o op, reply error, do func() error) error {
	_, err := made(ctx, o, reply, func() (struct{}, error) { return struct{}{}, do() })
	return err
}

// call is what the last turn asked of the ledger.
type call struct {
	op                   op
	code, attempt, token string
}

// about tells whether the call may change the candidate's row; that of a crowd is
// about everybody.
func (c call) about(code string) bool { return c.code == code || c == (call{op: opAdmit}) }

// copied is a call of the ledger that may come once more.
type copied struct {
	call
	do func(ctx context.Context, g *admission.Gate) error
}

// asked notes a call of the ledger that is made now.
func (m *model) asked(c call, do func(ctx context.Context, g *admission.Gate) error) {
	m.last = c
	m.copies = append(m.copies, copied{c, do})
}

// ledger is the gate of the actor that calls. Reads are the gate's own: an actor
// that rests on an old one is an actor that waits before its next call.
type ledger struct {
	*admission.Gate
	m *model
}

func (l ledger) of(ctx context.Context) *admission.Gate {
	if a := actorOf(ctx); a != nil {
		return a.gate
	}
	return l.Gate
}

type rowAt struct {
	row booking.Row
	now time.Time
}

func (l ledger) row(ctx context.Context, c call, do func(ctx context.Context, g *admission.Gate) (booking.Row, time.Time, error)) (booking.Row, time.Time, error) {
	r, err := made(ctx, c.op, booking.ErrNotAcknowledged, func() (rowAt, error) {
		l.m.asked(c, func(ctx context.Context, g *admission.Gate) error {
			_, _, err := do(ctx, g)
			return err
		})
		row, now, err := do(ctx, l.of(ctx))
		return rowAt{row, now}, err
	})
	return r.row, r.now, err
}

func (l ledger) do(ctx context.Context, c call, do func(ctx context.Context, g *admission.Gate) error) error {
	return made0(ctx, c.op, booking.ErrNotAcknowledged, func() error {
		l.m.asked(c, do)
		return do(ctx, l.of(ctx))
	})
}

func (l ledger) Admit(ctx context.Context, r booking.Request, suffix string, check bool) (booking.Seat, error) {
	return made(ctx, opAdmit, bookingtest.ErrKept, func() (booking.Seat, error) {
		l.m.last = call{op: opAdmit, code: r.Code}
		return l.of(ctx).Admit(ctx, r, suffix, check)
	})
}

func (l ledger) Attach(ctx context.Context, code, attempt string, p booking.Payment) (booking.Row, time.Time, error) {
	return l.row(ctx, call{op: opAttach, code: code, attempt: attempt}, func(ctx context.Context, g *admission.Gate) (booking.Row, time.Time, error) {
		return g.Attach(ctx, code, attempt, p)
	})
}

func (l ledger) Queued(ctx context.Context, code, attempt string) error {
	return l.do(ctx, call{op: opQueued, code: code, attempt: attempt}, func(ctx context.Context, g *admission.Gate) error { return g.Queued(ctx, code, attempt) })
}

func (l ledger) Undo(ctx context.Context, code, attempt string) error {
	return l.do(ctx, call{op: opUndo, code: code, attempt: attempt}, func(ctx context.Context, g *admission.Gate) error { return g.Undo(ctx, code, attempt) })
}

// announced notes until when the execute call may be sent: both callers count
// from before they announce it, however often they repeat that.
func (l ledger) announced(ctx context.Context, token string) {
	if a := actorOf(ctx); a != nil && a.token != token {
		a.token, a.sendUntil = token, l.m.clock.Now().Add(executeTimeout)
	}
}

func (l ledger) BeginPay(ctx context.Context, code, attempt, payment, token string, length time.Duration) (booking.Row, time.Time, error) {
	l.announced(ctx, token)
	return l.row(ctx, call{opBeginPay, code, attempt, token}, func(ctx context.Context, g *admission.Gate) (booking.Row, time.Time, error) {
		return g.BeginPay(ctx, code, attempt, payment, token, length)
	})
}

func (l ledger) TakeOverPay(ctx context.Context, code, attempt, payment, token string, length time.Duration) (booking.Row, time.Time, error) {
	l.announced(ctx, token)
	return l.row(ctx, call{opTakeOver, code, attempt, token}, func(ctx context.Context, g *admission.Gate) (booking.Row, time.Time, error) {
		return g.TakeOverPay(ctx, code, attempt, payment, token, length)
	})
}

func (l ledger) EndPay(ctx context.Context, code, attempt, token string, as booking.Phase) error {
	return l.do(ctx, call{opEndPay, code, attempt, token}, func(ctx context.Context, g *admission.Gate) error { return g.EndPay(ctx, code, attempt, token, as) })
}

func (l ledger) Settle(ctx context.Context, code, attempt, payment, transaction string) (booking.Row, error) {
	row, _, err := l.row(ctx, call{op: opSettle, code: code, attempt: attempt}, func(ctx context.Context, g *admission.Gate) (booking.Row, time.Time, error) {
		row, err := g.Settle(ctx, code, attempt, payment, transaction)
		return row, time.Time{}, err
	})
	return row, err
}

func (l ledger) Release(ctx context.Context, code, attempt string) error {
	return l.do(ctx, call{op: opRelease, code: code, attempt: attempt}, func(ctx context.Context, g *admission.Gate) error { return g.Release(ctx, code, attempt) })
}

func (l ledger) Late(ctx context.Context, rec booking.Record, transaction string, kind booking.MoneyKind) (booking.Decision, error) {
	return made(ctx, opLate, booking.ErrNotAcknowledged, func() (booking.Decision, error) {
		l.m.asked(call{op: opLate, code: rec.Code, attempt: rec.Attempt}, func(ctx context.Context, g *admission.Gate) error {
			d, err := g.Late(ctx, rec, transaction, kind)
			l.m.decides(transaction, d, err)
			return err
		})
		d, err := l.of(ctx).Late(ctx, rec, transaction, kind)
		l.m.decides(transaction, d, err)
		return d, err
	})
}

func (l ledger) RecordDone(ctx context.Context, code, attempt string) error {
	return l.do(ctx, call{op: opDone, code: code, attempt: attempt}, func(ctx context.Context, g *admission.Gate) error { return g.RecordDone(ctx, code, attempt) })
}

func (l ledger) MailDone(ctx context.Context, code, attempt string) error {
	return l.do(ctx, call{op: opDone, code: code, attempt: attempt}, func(ctx context.Context, g *admission.Gate) error { return g.MailDone(ctx, code, attempt) })
}

func (l ledger) RecordReleased(ctx context.Context, code, attempt string) error {
	return l.do(ctx, call{op: opDone, code: code, attempt: attempt}, func(ctx context.Context, g *admission.Gate) error { return g.RecordReleased(ctx, code, attempt) })
}

func (l ledger) Postpone(ctx context.Context, code, attempt string, seen booking.Phase, d time.Duration, count booking.Count) error {
	return l.do(ctx, call{op: opPostpone, code: code, attempt: attempt}, func(ctx context.Context, g *admission.Gate) error {
		return g.Postpone(ctx, code, attempt, seen, d, count)
	})
}

// Due is read once a sweep: its later reads, which run beside the last row's
// work, would make a sequence depend on the scheduler.
func (l ledger) Due(ctx context.Context, skip, limit int) ([]booking.DueRow, time.Time, error) {
	a := actorOf(ctx)
	if a == nil {
		return l.Gate.Due(ctx, skip, limit)
	}
	if a.listed {
		return a.due, a.dueNow, nil
	}
	var err error
	a.due, a.dueNow, err = a.gate.Due(ctx, skip, limit)
	a.listed = err == nil
	return a.due, a.dueNow, err
}

// ReleasesPutOff: of another process the breaker may be closed, so nothing may
// depend on it.
func (l ledger) ReleasesPutOff() bool { return false }

// Acknowledges: what is not acknowledged is drawn call by call.
func (l ledger) Acknowledges(context.Context) error { return nil }

// store is the booking store behind lines that break.
type store struct{ *records }

func (s store) PutHeld(ctx context.Context, rec booking.Record) (booking.Record, bool, error) {
	created := false
	rec, err := made(ctx, opPut, bookingtest.ErrKept, func() (booking.Record, error) {
		var err error
		rec, created, err = s.records.PutHeld(ctx, rec)
		return rec, err
	})
	return rec, created, err
}

func (s store) MarkPaid(ctx context.Context, p booking.Paid) (booking.Record, error) {
	return made(ctx, opPaid, bookingtest.ErrKept, func() (booking.Record, error) { return s.records.MarkPaid(ctx, p) })
}

func (s store) Announce(ctx context.Context, rec booking.Record, at time.Time) (booking.Record, error) {
	return made(ctx, opAnnounce, bookingtest.ErrKept, func() (booking.Record, error) { return s.records.Announce(ctx, rec, at) })
}

func (s store) Release(ctx context.Context, seen booking.Record, reason string, at time.Time) error {
	return made0(ctx, opEnd, bookingtest.ErrKept, func() error { return s.records.Release(ctx, seen, reason, at) })
}

func (s store) PutRefund(ctx context.Context, r booking.Refund) (booking.Refund, bool, error) {
	created := false
	r, err := made(ctx, opRefund, bookingtest.ErrKept, func() (booking.Refund, error) {
		var err error
		r, created, err = s.records.PutRefund(ctx, r)
		return r, err
	})
	return r, created, err
}

func (s store) ClaimMail(ctx context.Context, candidateHash, attempt, claim string, now, until time.Time) (bool, error) {
	return made(ctx, opClaim, bookingtest.ErrKept, func() (bool, error) {
		return s.records.ClaimMail(ctx, candidateHash, attempt, claim, now, until)
	})
}

func (s store) MailSent(ctx context.Context, candidateHash, attempt, claim string) error {
	return made0(ctx, opSent, bookingtest.ErrKept, func() error { return s.records.MailSent(ctx, candidateHash, attempt, claim) })
}

// mailer is the provider behind a line that breaks.
type mailer struct{ *bookingtest.Mailer }

func (s mailer) Send(ctx context.Context, mail booking.Mail) error {
	return made0(ctx, opMail, bookingtest.ErrKept, func() error { return s.Mailer.Send(ctx, mail) })
}

// queue keeps what was sent until the model delivers it.
type queue struct{ m *model }

func (q queue) Send(ctx context.Context, _, _ string, body []byte) error {
	return made0(ctx, opSend, bookingtest.ErrKept, func() error {
		q.m.queue = append(q.m.queue, body)
		return nil
	})
}

func (q queue) Stats(context.Context) (booking.QueueStats, error) {
	return booking.QueueStats{Waiting: len(q.m.queue)}, nil
}

// gateway is the payment gateway behind a line that breaks.
type gateway struct{ m *model }

func (g gateway) Ready() (func(), error) { return func() {}, nil }

func (g gateway) Create(ctx context.Context, o booking.Order) (booking.Payment, error) {
	return made(ctx, opCreate, bookingtest.ErrKept, func() (booking.Payment, error) {
		p, err := g.m.gateway.Create(ctx, o)
		if err != nil {
			return p, err
		}
		_, attempt, err := booking.ParseInvoice(o.Invoice)
		g.m.payments = append(g.m.payments, issued{id: p.ID, code: g.m.codes[o.Invoice[:64]], attempt: attempt})
		g.m.attemptOf[p.ID] = attempt
		return p, err
	})
}

func (g gateway) Execute(ctx context.Context, payment string) (booking.Charge, error) {
	f, err := turnOf(ctx, opExecute)
	if err != nil {
		return booking.Charge{}, fmt.Errorf("%w: %w", booking.ErrNotSent, err)
	}
	if a := actorOf(ctx); a != nil && !g.m.clock.Now().Before(a.sendUntil) {
		return booking.Charge{}, fmt.Errorf("the call's time was over: %w", booking.ErrNotSent)
	}
	switch f {
	case pass:
		return g.m.execute(ctx, payment)
	case kept:
		_, _ = g.m.execute(ctx, payment)
	case late:
		if !g.m.hasPaid(payment) { // else it has had its one execution
			g.m.inFlight[payment] = g.m.clock.Now().Add(flightMost)
		}
	case garbled:
		_, _ = g.m.execute(ctx, payment)
		return booking.Charge{PaymentID: payment, Status: booking.ChargeUnknown, Code: "9999"}, nil
	case outage:
		return booking.Charge{}, fmt.Errorf("%w: %w", booking.ErrInDoubt, booking.ErrGatewayOutage)
	case unsent:
		return booking.Charge{}, fmt.Errorf("execute: %w", booking.ErrNotSent)
	}
	return booking.Charge{}, fmt.Errorf("execute: %w", booking.ErrInDoubt)
}

func (g gateway) Query(ctx context.Context, payment string) (booking.Charge, error) {
	switch f, err := turnOf(ctx, opQuery); {
	case err != nil:
		return booking.Charge{}, fmt.Errorf("%w: %w", booking.ErrNotSent, err)
	case f == pass:
		return g.m.gateway.Query(ctx, payment)
	case f == garbled:
		return booking.Charge{PaymentID: payment, Status: booking.ChargeUnknown, Code: "9999"}, nil
	case f == outage:
		return booking.Charge{}, fmt.Errorf("%w: %w", booking.ErrInDoubt, booking.ErrGatewayOutage)
	}
	return booking.Charge{}, fmt.Errorf("query: %w", booking.ErrInDoubt)
}

// execute reaches the gateway: what it says for good ends every call in flight.
func (m *model) execute(ctx context.Context, payment string) (booking.Charge, error) {
	c, err := m.gateway.Execute(ctx, payment)
	if err == nil && c.Status != booking.ChargeUnfinished {
		delete(m.inFlight, payment)
	}
	return c, err
}

// inline runs the mail as the tail of the work that makes it due.
type inline struct{}

func (inline) Go(fn func()) bool { fn(); return true }
