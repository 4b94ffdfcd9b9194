// Package resolve is what a person decides about single seats: it ends a payment
// in doubt as paid or not paid, whether its attempt still has its seat or not, and
// gives payers back the time that an outage took from them. A person who decides sees the row, the record and the gateway's
// present word first, and is contradicted where these say otherwise.
//
// Fail mode: closed. The ledger, acknowledged, comes before the record; what was
// not acknowledged is an error, and repeating the call is safe. No seat is given
// back here: that stays the reconciler's, at the deadline. Clock: the ledger's.
package resolve

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"iter"
	"time"

	"holdfast/internal/booking"
)

// Ledger is what a decision needs of the seat ledger. Row and PaymentOf only read;
// the others are acknowledged or an error, and safe to repeat.
type Ledger interface {
	Row(ctx context.Context, code string) (booking.Row, time.Time, error)
	PaymentOf(ctx context.Context, attempt string) (booking.Payment, error)
	// Queued changes nothing on a row further on than payable; booking.ErrNotOwner
	// when the attempt owns none.
	Queued(ctx context.Context, code, attempt string) error
	Settle(ctx context.Context, code, attempt, payment, transaction string) (booking.Row, error)
	TakeOverPay(ctx context.Context, code, attempt, payment, token string, length time.Duration) (booking.Row, time.Time, error)
	EndPay(ctx context.Context, code, attempt, token string, as booking.Phase) error
	RecordDone(ctx context.Context, code, attempt string) error
	RecordReleased(ctx context.Context, code, attempt string) error
}

// Store keeps records and refunds. Writes are conditional and safe to repeat.
type Store interface {
	Record(ctx context.Context, candidateHash, attempt string) (booking.Record, error)
	// RecordsOf are the candidate's; those that cannot be read are named by an error
	// that wraps booking.ErrUnreadable, which comes beside the others.
	RecordsOf(ctx context.Context, candidateHash string) ([]booking.Record, error)
	Records(ctx context.Context) iter.Seq2[booking.Record, error]
	Refund(ctx context.Context, transaction string) (booking.Refund, error)
	PutHeld(ctx context.Context, r booking.Record) (booking.Record, bool, error)
	MarkPaid(ctx context.Context, p booking.Paid) (booking.Record, error)
	Release(ctx context.Context, seen booking.Record, reason string, at time.Time) error
}

// Gateway is asked; nothing here has it move money.
type Gateway interface {
	Query(ctx context.Context, payment string) (booking.Charge, error)
	Search(ctx context.Context, transaction string) (booking.TransactionAnswer, error)
}

// Settler makes a completed charge a paid seat (nil), or leaves a refund record
// (booking.ErrRefunded). After any other error it is called again. Safe to repeat.
type Settler interface {
	Confirm(ctx context.Context, code string, rec booking.Record, charge booking.Charge) error
}

// Resolver carries out decisions; every field is required. Safe for concurrent use.
type Resolver struct {
	Ledger  Ledger
	Store   Store
	Gateway Gateway
	// Settler decides about money whose attempt owns no seat.
	Settler Settler
}

// Reason is the reason of a record that a person ended: after
// booking.ReasonRefused where its attempt has its seat, which as with every refused
// payment stays the candidate's until the deadline, else after
// booking.ReasonLapsed.
const Reason = "resolved"

const (
	// payingFor is how long the row is kept from others while its payment is asked
	// about; if this process dies, the reconciler has it afterwards.
	payingFor = time.Minute
	stepTime  = 2 * time.Second
	askTime   = 15 * time.Second
	stepTries = 3
)

var (
	// ErrObjection refuses a decision that the books or the gateway speak against.
	ErrObjection = errors.New("there is an objection to this decision")
	// ErrTransactionUsed refuses a transaction that belongs to another booking or
	// goes back; nothing overrides it.
	ErrTransactionUsed = errors.New("this transaction's money is somebody else's, or goes back")
	// ErrCompleted refuses "not paid" when the gateway, asked when no execute call
	// could be in flight any more, says that the money has moved. The reconciler
	// decides about it by itself.
	ErrCompleted = errors.New("the gateway says that the money has moved")
	// ErrWhichAttempt asks for the attempt: the candidate has no seat, and not just
	// one attempt that is open. The error names them.
	ErrWhichAttempt = errors.New("the attempt must be named")
)

// Case is what is known of a candidate's attempt.
type Case struct {
	Code    string
	Attempt string
	// Row is the attempt's seat; the zero Row when it owns none. Seat is then the
	// candidate's by another attempt, which nothing here touches, or zero.
	Row, Seat booking.Row
	// Now is the ledger's clock.
	Now time.Time
	// Record is nil when there is none, or none that can be read; RecordErr says why.
	Record    *booking.Record
	RecordErr error
	// Beside are the candidate's other attempts that own no seat and whose record is
	// HELD.
	Beside []string
	// Charge is the gateway's present word; without one AskErr says why.
	Charge booking.Charge
	AskErr error
}

// Owns tells whether the attempt has its seat.
func (c Case) Owns() bool { return c.Row.Attempt != "" }

// Payment is the attempt's; "" when it has none.
func (c Case) Payment() string {
	if !c.Owns() && c.Record != nil {
		return c.Record.PaymentID
	}
	return c.Row.Payment
}

// InDoubt tells whether there is a doubt to end: an execute call whose outcome
// nobody has heard, a rebuilt row that may have had one, or one whose reconciler
// has put it off; or a record that is HELD, and its attempt owns no seat.
func (c Case) InDoubt() bool {
	if !c.Owns() {
		return c.Record != nil && c.Record.State == booking.StateHeld
	}
	if c.Row.Phase == booking.PhasePaid || c.Row.Phase == booking.PhaseNew {
		return false
	}
	return c.Row.Phase == booking.PhasePaying && c.Now.UnixMilli() >= c.Row.Ends || c.Row.Doubt || c.Row.Looks >= 1
}

// Decision is a person's word on a doubt.
type Decision struct {
	// Attempt is what it is about; "" is the candidate's seat, or without one the
	// only attempt whose record is HELD.
	Attempt string
	// Transaction is what paid; "" for not paid.
	Transaction string
}

// Plan is a decision, what is known, and what speaks against it.
type Plan struct {
	Case     Case
	Decision Decision
	// Objections refuse the decision unless it is forced; warnings are for the person
	// to weigh.
	Objections, Warnings []string
	// moved is the money of a decision about an attempt without a seat.
	moved booking.Charge
}

func (p *Plan) object(format string, args ...any) {
	p.Objections = append(p.Objections, fmt.Sprintf(format, args...))
}

func (p *Plan) warn(format string, args ...any) {
	p.Warnings = append(p.Warnings, fmt.Sprintf(format, args...))
}

// Look gathers what is known of the attempt; see Decision for an empty one.
// booking.ErrNotFound when there is no such attempt, ErrWhichAttempt when it must be
// named. It changes nothing.
func (r *Resolver) Look(ctx context.Context, code, attempt string) (Case, error) {
	c := Case{Code: code, Attempt: attempt}
	var err error
	c.Row, c.Now, err = r.row(ctx, code)
	if err != nil && !errors.Is(err, booking.ErrNotFound) {
		return c, fmt.Errorf("seat of %s: %w", code, err)
	}
	if attempt != "" && c.Row.Attempt != attempt {
		c.Row, c.Seat = booking.Row{}, c.Row
	}
	if err := r.records(ctx, &c); err != nil {
		return c, err
	}
	if c.Payment() == "" {
		c.AskErr = booking.ErrNoPayment
		return c, nil
	}
	c.Charge, c.AskErr = r.ask(ctx, c.Payment())
	return c, nil
}

func (r *Resolver) row(ctx context.Context, code string) (booking.Row, time.Time, error) {
	ctx, cancel := context.WithTimeout(ctx, stepTime)
	defer cancel()
	return r.Ledger.Row(ctx, code)
}

// ask wants a clear answer about this payment.
func (r *Resolver) ask(ctx context.Context, payment string) (booking.Charge, error) {
	ctx, cancel := context.WithTimeout(ctx, askTime)
	defer cancel()
	charge, err := r.Gateway.Query(ctx, payment)
	if err == nil && charge.PaymentID != payment {
		err = fmt.Errorf("it answered about payment %q: %w", charge.PaymentID, booking.ErrInDoubt)
	}
	return charge, err
}

// Plan looks, and holds the decision against what it sees. ErrTransactionUsed when
// the transaction's money is spoken for. It changes nothing.
func (r *Resolver) Plan(ctx context.Context, code string, d Decision) (Plan, error) {
	c, err := r.Look(ctx, code, d.Attempt)
	p := Plan{Case: c, Decision: d}
	if err != nil {
		return p, err
	}
	for _, attempt := range c.Beside {
		p.warn("attempt %s of this candidate is HELD and owns no seat: decide about it by itself", attempt)
	}
	if !c.Owns() {
		return p, r.planLate(ctx, &p)
	}
	if c.Row.Payment == "" {
		return p, fmt.Errorf("seat of %s: %w: there is nothing to decide", code, booking.ErrNoPayment)
	}
	again := d.Transaction != "" && c.Row.Phase == booking.PhasePaid && c.Row.Transaction == d.Transaction
	if !c.InDoubt() && !again {
		p.object("the seat is not in doubt: %s", standing(c))
	}
	completed := c.AskErr == nil && c.Charge.Status == booking.ChargeCompleted
	switch {
	case c.AskErr != nil:
		p.warn("the gateway gives no clear answer about payment %s: %v", c.Row.Payment, c.AskErr)
	case d.Transaction == "" && completed:
		p.object("the gateway says that payment %s is completed, by transaction %s: the reconciler confirms it by itself", c.Row.Payment, c.Charge.Transaction)
	case d.Transaction != "" && completed:
		if err := c.Charge.Check(c.ordered()); err != nil {
			p.object("%v", err)
		} else if c.Charge.Transaction != d.Transaction {
			p.object("the gateway says that payment %s is completed by transaction %s, not %s", c.Row.Payment, c.Charge.Transaction, d.Transaction)
		}
	case d.Transaction != "":
		p.warn("the gateway says that payment %s is %s, not completed", c.Row.Payment, c.Charge.Status)
	}
	if d.Transaction == "" {
		return p, nil
	}
	if err := r.unused(ctx, c, d.Transaction); err != nil {
		return p, err
	}
	t := r.search(ctx, &p)
	if t.Completed && (t.Amount != c.Row.Amount || t.Currency != c.Row.Currency) {
		p.object("transaction %s moved %s %s, and the seat costs %s %s", d.Transaction, t.Amount, t.Currency, c.Row.Amount, c.Row.Currency)
	}
	return p, nil
}

// search wants the gateway's word on the transaction; what it does not confirm is
// a warning, and then the answer is empty.
func (r *Resolver) search(ctx context.Context, p *Plan) booking.TransactionAnswer {
	ctx, cancel := context.WithTimeout(ctx, askTime)
	defer cancel()
	transaction := p.Decision.Transaction
	t, err := r.Gateway.Search(ctx, transaction)
	switch {
	case err != nil:
		p.warn("the gateway does not confirm transaction %s: %v", transaction, err)
	case !t.Found:
		p.warn("the gateway does not confirm transaction %s: it does not know it", transaction)
	case !t.Completed:
		p.warn("the gateway does not confirm transaction %s: it has not completed", transaction)
	case t.Transaction != transaction:
		p.warn("the gateway does not confirm transaction %s: it answered about another", transaction)
	default:
		return t
	}
	return booking.TransactionAnswer{}
}

// ordered is what a completed charge is compared with.
func (c Case) ordered() booking.Record { return c.Row.HeldRecord(c.Code, "", "") }

// standing says where the seat stands, for a person.
func standing(c Case) string {
	switch c.Row.Phase {
	case booking.PhasePaid:
		return "it is paid, by transaction " + c.Row.Transaction
	case booking.PhasePaying:
		return "an execute call may be in flight until " + time.UnixMilli(c.Row.Ends).UTC().Format(time.RFC3339)
	}
	return fmt.Sprintf("it is %s, until %s", c.Row.Phase, time.UnixMilli(c.Row.Deadline).UTC().Format(time.RFC3339))
}

// unused wants the transaction to be nobody else's: one payment, one seat.
func (r *Resolver) unused(ctx context.Context, c Case, transaction string) error {
	refund, err := r.Store.Refund(ctx, transaction)
	switch {
	case err == nil && !c.Owns() && refund.Attempt == c.Attempt && refund.PaymentID == c.Payment():
		return nil // decided before: the same decision again
	case err == nil:
		return fmt.Errorf("transaction %s has a refund record: %w", transaction, ErrTransactionUsed)
	case !errors.Is(err, booking.ErrNotFound):
		return fmt.Errorf("refund of %s: %w", transaction, err)
	}
	for rec, err := range r.Store.Records(ctx) {
		switch {
		case errors.Is(err, booking.ErrUnreadable):
			continue // the audit names it
		case err != nil:
			return fmt.Errorf("look for transaction %s: %w", transaction, err)
		case rec.Transaction == transaction && rec.Attempt != c.Attempt:
			return fmt.Errorf("transaction %s paid for attempt %s: %w", transaction, rec.Attempt, ErrTransactionUsed)
		}
	}
	return nil
}

// Done is what a decision came to.
type Done struct {
	// Row and Record are as they are now.
	Row    booking.Row
	Record booking.RecordState
	// Refund is set when the money found no seat and goes back.
	Refund *booking.Refund
	// Warnings came up on the way.
	Warnings []string
}

// Carry carries the plan out, conditional on the attempt it was made about.
// ErrObjection when something speaks against it and it is not forced. Safe to
// repeat.
func (r *Resolver) Carry(ctx context.Context, p Plan, force bool) (Done, error) {
	if len(p.Objections) > 0 && !force {
		return Done{}, ErrObjection
	}
	switch {
	case !p.Case.Owns() && p.Decision.Transaction != "":
		return r.late(ctx, p)
	case !p.Case.Owns():
		return r.endRecord(ctx, p)
	case p.Decision.Transaction != "":
		return r.paid(ctx, p)
	}
	return r.notPaid(ctx, p, force)
}

// paid settles; what the record or the mail still lacks is the sweep's.
func (r *Resolver) paid(ctx context.Context, p Plan) (Done, error) {
	var done Done
	was := p.Case.Row
	rec, err := r.record(ctx, p.Case)
	if err != nil {
		return done, err
	}
	err = r.step(ctx, func(ctx context.Context) (err error) {
		done.Row, err = r.Ledger.Settle(ctx, p.Case.Code, was.Attempt, was.Payment, p.Decision.Transaction)
		return err
	})
	switch {
	case errors.Is(err, booking.ErrNotOwner):
		return done, fmt.Errorf("the seat is not this attempt's any more, so its money is late: the reconciler decides about it: %w", err)
	case err != nil:
		return done, fmt.Errorf("settle payment %s: %w", was.Payment, err)
	}
	paid, err := r.Store.MarkPaid(ctx, booking.Paid{
		Record: rec, Transaction: p.Decision.Transaction, PaidAt: time.UnixMilli(done.Row.PaidAt).UTC(),
	})
	if err != nil {
		return done, fmt.Errorf("the seat is paid, and a sweep writes its record: %w", err)
	}
	done.Record = paid.State
	err = r.step(ctx, func(ctx context.Context) error { return r.Ledger.RecordDone(ctx, p.Case.Code, was.Attempt) })
	if err != nil {
		done.Warnings = append(done.Warnings, fmt.Sprintf("a sweep looks at its record once more: %v", err))
	}
	return done, nil
}

// record is the attempt's record as it was ordered, as HELD.
func (r *Resolver) record(ctx context.Context, c Case) (booking.Record, error) {
	p, err := r.Ledger.PaymentOf(ctx, c.Row.Attempt)
	if err != nil && !errors.Is(err, booking.ErrNotFound) && !errors.Is(err, booking.ErrUnreadable) {
		return booking.Record{}, err
	}
	return c.Row.HeldRecord(c.Code, p.URL, p.Signature), nil
}

// notPaid ends the payment. It asks again once the row is its own: an answer from
// before may be older than an execute call that has ended since.
func (r *Resolver) notPaid(ctx context.Context, p Plan, force bool) (Done, error) {
	var done Done
	was, code, token := p.Case.Row, p.Case.Code, rand.Text()
	err := r.step(ctx, func(ctx context.Context) (err error) {
		done.Row, _, err = r.Ledger.TakeOverPay(ctx, code, was.Attempt, was.Payment, token, payingFor)
		return err
	})
	if err != nil {
		return done, fmt.Errorf("take over payment %s: %w", was.Payment, err)
	}
	rec, err := r.record(ctx, p.Case)
	if err != nil {
		return done, err
	}
	there, _, err := r.Store.PutHeld(ctx, rec)
	if err != nil {
		return done, fmt.Errorf("record of the payment: %w", err)
	}
	rec.ExecuteAt = there.ExecuteAt
	charge, err := r.ask(ctx, was.Payment)
	switch {
	case err != nil:
		done.Warnings = append(done.Warnings, fmt.Sprintf("the gateway gave no clear answer: %v", err))
	case charge.Status == booking.ChargeCompleted && !force:
		return done, fmt.Errorf("payment %s, by transaction %s: %w", was.Payment, charge.Transaction, ErrCompleted)
	}
	err = r.step(ctx, func(ctx context.Context) error {
		return r.Ledger.EndPay(ctx, code, was.Attempt, token, booking.PhaseRefused)
	})
	if err != nil {
		return done, fmt.Errorf("end payment %s: %w", was.Payment, err)
	}
	if err := r.Store.Release(ctx, rec, booking.ReasonRefused+" "+Reason, p.Case.Now); err != nil {
		return done, fmt.Errorf("the payment is ended, and a sweep ends its record: %w", err)
	}
	done.Record = booking.StateReleased
	err = r.step(ctx, func(ctx context.Context) error { return r.Ledger.RecordReleased(ctx, code, was.Attempt) })
	if err != nil {
		done.Warnings = append(done.Warnings, fmt.Sprintf("a sweep looks at its record once more: %v", err))
	}
	row, _, err := r.row(ctx, code)
	if err != nil {
		done.Warnings = append(done.Warnings, fmt.Sprintf("the row cannot be read again: %v", err))
		return done, nil
	}
	done.Row = row
	return done, nil
}

// step repeats a call that got no answer; each of them finds its own effect.
func (r *Resolver) step(ctx context.Context, call func(ctx context.Context) error) error {
	var err error
	for range stepTries {
		once, cancel := context.WithTimeout(ctx, stepTime)
		err = call(once)
		cancel()
		if err == nil || booking.LedgerAnswered(err) || ctx.Err() != nil {
			return err
		}
	}
	return err
}
