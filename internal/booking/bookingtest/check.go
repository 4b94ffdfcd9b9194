package bookingtest

import (
	"context"
	"fmt"
	"iter"
	"sort"
	"testing"

	"holdfast/internal/booking"
)

// Seats is the seat ledger as the check reads it.
type Seats interface {
	// Rows is every row by candidate code.
	Rows(ctx context.Context) (map[string]booking.Row, error)
	// Looks is when someone must look at each code's row next, in Unix ms.
	Looks(ctx context.Context) (map[string]int64, error)
	// ReadStatus is the counters and the caps.
	ReadStatus(ctx context.Context) (booking.Figures, error)
}

// Records is the booking store as the check reads it.
type Records interface {
	Records(ctx context.Context) iter.Seq2[booking.Record, error]
}

// Refunds is the money that goes back, as the check reads it.
type Refunds interface {
	Refunds(ctx context.Context) iter.Seq2[booking.Refund, error]
}

// Books is everything that must agree.
type Books struct {
	Seats   Seats
	Records Records
	// Refunds are all there are; nil when no money goes back.
	Refunds Refunds
	// Completed lists the transactions by which money has moved.
	Completed func() []booking.Charge
	// Sent lists the mails handed over; nil leaves them unchecked.
	Sent func() []booking.Mail
	// Unseated are payments whose money may be neither a paid seat nor a refund, for a
	// reason that the test is about: nobody has been told of it yet, or the gateway's
	// word on it is nonsense. It is never both all the same.
	Unseated map[string]bool
	// MailTwice allows a booking's mail to be sent again: the provider's own answer
	// was lost.
	MailTwice bool
}

// Check holds what must be true at any moment: in each level admitted and free
// seats add up to the cap, the counters are what the rows say, every row that is
// not finished will be looked at, records follow the ledger, nobody who paid has
// lost the seat without a refund, nobody has both, or either for nothing, nobody
// gets two mails.
func (b Books) Check(t testing.TB) {
	t.Helper()
	b.report(t, false)
}

// CheckAtRest is Check, and what must be true once the queue is empty and nobody
// is at work: ledger and live records name the same attempts, every completed
// transaction is a paid seat or has one refund record, and of a paid seat the
// record is written and the mail sent.
func (b Books) CheckAtRest(t testing.TB) {
	t.Helper()
	b.report(t, true)
}

func (b Books) report(t testing.TB, atRest bool) {
	t.Helper()
	problems, err := b.Problems(t.Context(), atRest)
	if err != nil {
		t.Fatalf("check the sale: %v", err)
	}
	for _, p := range problems {
		t.Errorf("check the sale: %s", p)
	}
}

// books is one reading of everything.
type books struct {
	Books
	rows     map[string]booking.Row
	byTry    map[string]booking.Row // by attempt
	looks    map[string]int64
	figures  booking.Figures
	records  map[string]booking.Record // by attempt
	refunds  map[string]booking.Refund // by transaction
	problems []string
}

func (b *books) bad(format string, args ...any) {
	b.problems = append(b.problems, fmt.Sprintf(format, args...))
}

// Problems is what Check or CheckAtRest finds; the error says what could not be
// read.
func (b Books) Problems(ctx context.Context, atRest bool) ([]string, error) {
	r := &books{Books: b, byTry: map[string]booking.Row{}, records: map[string]booking.Record{}, refunds: map[string]booking.Refund{}}
	var err error
	if r.rows, err = b.Seats.Rows(ctx); err != nil {
		return nil, fmt.Errorf("rows: %w", err)
	}
	if r.looks, err = b.Seats.Looks(ctx); err != nil {
		return nil, fmt.Errorf("looks: %w", err)
	}
	if r.figures, err = b.Seats.ReadStatus(ctx); err != nil {
		return nil, fmt.Errorf("figures: %w", err)
	}
	for rec, err := range b.Records.Records(ctx) {
		if err != nil {
			return nil, fmt.Errorf("records: %w", err)
		}
		r.records[rec.Attempt] = rec
	}
	if err := r.readRefunds(ctx); err != nil {
		return nil, err
	}
	r.seats()
	r.paidRecords()
	r.money(atRest)
	if b.Sent != nil {
		r.mails(atRest)
	}
	if atRest {
		r.liveRecords()
	}
	sort.Strings(r.problems)
	return r.problems, nil
}

func (b *books) readRefunds(ctx context.Context) error {
	if b.Refunds == nil {
		return nil
	}
	for refund, err := range b.Refunds.Refunds(ctx) {
		if err != nil {
			return fmt.Errorf("refunds: %w", err)
		}
		if _, twice := b.refunds[refund.Transaction]; twice {
			b.bad("transaction %s has two refunds", refund.Transaction)
		}
		b.refunds[refund.Transaction] = refund
	}
	return nil
}

// seats compares rows, counters, caps and looks.
func (b *books) seats() {
	byLevel := map[string]int{}
	for code, row := range b.rows {
		byLevel[row.Level]++
		if other, twice := b.byTry[row.Attempt]; twice {
			b.bad("attempt %s has two rows, %s and %s", row.Attempt, other.Phase, row.Phase)
		}
		b.byTry[row.Attempt] = row
		finished := row.Phase == booking.PhasePaid && row.RecordDone && row.MailDone
		if _, looked := b.looks[code]; looked == finished {
			b.bad("row of %s is %s: will be looked at %t, finished %t", code, row.Phase, looked, finished)
		}
	}
	for code := range b.looks {
		if _, there := b.rows[code]; !there {
			b.bad("%s will be looked at and has no row", code)
		}
	}
	known := map[string]bool{}
	for _, l := range b.figures.Levels {
		known[l.ID] = true
		if l.Admitted != byLevel[l.ID] {
			b.bad("level %s: the counter says %d, the rows %d", l.ID, l.Admitted, byLevel[l.ID])
		}
		if byLevel[l.ID] > l.Cap {
			b.bad("level %s: %d admitted, cap %d", l.ID, byLevel[l.ID], l.Cap)
		}
	}
	for level, n := range byLevel {
		if !known[level] {
			b.bad("level %s: %d admitted, and it is not sold", level, n)
		}
	}
	if b.figures.Total != len(b.rows) {
		b.bad("all levels: the counter says %d, the rows %d", b.figures.Total, len(b.rows))
	}
	if len(b.rows) > b.figures.Cap {
		b.bad("all levels: %d admitted, cap %d", len(b.rows), b.figures.Cap)
	}
}

// paidRecords holds PAID records against paid rows, both ways.
func (b *books) paidRecords() {
	for _, rec := range b.records {
		if rec.State != booking.StatePaid {
			continue
		}
		row := b.byTry[rec.Attempt]
		if row.Phase != booking.PhasePaid || row.Payment != rec.PaymentID || row.Transaction != rec.Transaction {
			b.bad("record of %s is PAID by %s, its row is %q by %s", rec.Attempt, rec.Transaction, row.Phase, row.Transaction)
		}
	}
	for _, row := range b.rows {
		if row.Phase != booking.PhasePaid || !row.RecordDone {
			continue
		}
		rec := b.records[row.Attempt]
		if rec.State != booking.StatePaid {
			b.bad("row of %s is paid, record and all, and the record is %q", row.Attempt, rec.State)
		}
		if row.MailDone && rec.Mail != booking.MailSent {
			b.bad("row of %s says that the mail was sent, the record says %q", row.Attempt, rec.Mail)
		}
	}
}

// money holds the gateway's completed transactions against seats and refunds.
func (b *books) money(atRest bool) {
	moved := map[string]bool{}
	for _, c := range b.Completed() {
		moved[c.Transaction] = true
		row, kept := b.rowOf(c.PaymentID)
		paid := kept && row.Phase == booking.PhasePaid && row.Transaction == c.Transaction
		refund, back := b.refunds[c.Transaction]
		switch {
		case paid && back:
			b.bad("transaction %s of payment %s is a paid seat and goes back", c.Transaction, c.PaymentID)
		case paid || b.Unseated[c.PaymentID]:
		case back:
			if refund.PaymentID != c.PaymentID || refund.Amount != c.Amount || refund.Currency != c.Currency {
				b.bad("transaction %s moved %s %s of payment %s, its refund is %s %s of payment %s", c.Transaction,
					c.Amount, c.Currency, c.PaymentID, refund.Amount, refund.Currency, refund.PaymentID)
			}
		case !kept:
			b.bad("payment %s is completed, its seat is gone, and its money does not go back", c.PaymentID)
		case atRest:
			b.bad("payment %s is completed by %s, its row is %s by %q, and its money does not go back", c.PaymentID, c.Transaction, row.Phase, row.Transaction)
		}
	}
	for _, row := range b.rows {
		if row.Phase == booking.PhasePaid && !moved[row.Transaction] {
			b.bad("row of %s is paid by %s, of which the gateway knows nothing", row.Attempt, row.Transaction)
		}
	}
	for _, rec := range b.records {
		if _, back := b.refunds[rec.Transaction]; back && rec.State == booking.StatePaid {
			b.bad("record of %s is PAID by %s, which goes back", rec.Attempt, rec.Transaction)
		}
	}
	for transaction, refund := range b.refunds {
		if !moved[transaction] && !b.Unseated[refund.PaymentID] {
			b.bad("refund of %s, of which the gateway knows nothing", transaction)
		}
	}
}

func (b *books) rowOf(payment string) (booking.Row, bool) {
	for _, row := range b.rows {
		if row.Payment == payment {
			return row, true
		}
	}
	return booking.Row{}, false
}

func (b *books) mails(atRest bool) {
	count := map[string]int{}
	for _, m := range b.Sent() {
		count[m.Record.Attempt]++
	}
	for attempt, n := range count {
		if b.byTry[attempt].Phase != booking.PhasePaid {
			b.bad("attempt %s is not paid and got a mail", attempt)
		}
		if n > 1 && !b.MailTwice {
			b.bad("attempt %s got %d mails", attempt, n)
		}
	}
	for _, row := range b.rows {
		if row.Phase != booking.PhasePaid {
			continue
		}
		if n := count[row.Attempt]; n == 0 && (atRest || row.MailDone) {
			b.bad("attempt %s is paid and got no mail", row.Attempt)
		}
	}
}

// liveRecords holds the rows that live against the records that live.
func (b *books) liveRecords() {
	for attempt, rec := range b.records {
		row, owns := b.byTry[attempt]
		live := owns && row.Phase != booking.PhaseNew && row.Phase != booking.PhaseRefused
		if rec.State != booking.StateReleased && !live {
			b.bad("record of %s is %s, and its attempt has no live seat", attempt, rec.State)
		}
	}
	for _, row := range b.rows {
		rec, there := b.records[row.Attempt]
		switch row.Phase {
		case booking.PhaseNew, booking.PhaseRefused:
			continue // no payment yet, or a payment that is over
		case booking.PhasePaid:
			if !row.RecordDone || !row.MailDone {
				b.bad("row of %s is paid: record written %t, mail sent %t", row.Attempt, row.RecordDone, row.MailDone)
			}
		default:
			if !there || rec.State != booking.StateHeld {
				b.bad("row of %s is %s, its record is %q", row.Attempt, row.Phase, rec.State)
			}
		}
	}
}
