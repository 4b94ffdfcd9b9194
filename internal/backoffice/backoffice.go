// Package backoffice keeps the back office's copy of the paid bookings, a table in its
// own PostgreSQL: one row for each paid booking, for others to read. Nothing here
// decides about seats or money, and nothing is read back by the sale: it can be filled
// again from the paid records at any time, for a repeat changes nothing.
//
// Fail mode: closed. What PostgreSQL has not committed is an error, and the caller
// repeats it; a connection that broke while nobody used it is replaced once without
// troubling the caller. Clock: updated_at is PostgreSQL's own; every other time comes
// with the record.
package backoffice

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"holdfast/internal/booking"
)

var (
	// ErrTransactionTaken says of a paid record that the table has its transaction under
	// another booking. Nothing was overwritten; no repeat helps, a person must look.
	ErrTransactionTaken = errors.New("its transaction is another booking's in the back office: compare the two with the gateway's word, then correct the row by hand")
	// ErrNotPaid says of a record that it is none that belongs into the table.
	ErrNotPaid = errors.New("record is not a paid one")
)

// Outcome is what became of a paid record.
type Outcome string

// The outcomes of Put.
const (
	// Inserted: the candidate had no row of this sale.
	Inserted Outcome = "inserted"
	// Replaced: the candidate's row was of an earlier payment, or attempt.
	Replaced Outcome = "replaced"
	// Unchanged: the row is this booking's already.
	Unchanged Outcome = "unchanged"
	// Older: the row is of a later payment, or attempt, and stays.
	Older Outcome = "older"
)

// Booking is a row of the table.
type Booking struct {
	Sale, CandidateHash, Code, Attempt, Level string
	Amount                                    booking.Money
	Currency, PaymentID, Transaction          string
	PaidAt, UpdatedAt                         time.Time // to the microsecond, UTC
}

// Connect opens a connection to a database whose schema is there (Migrate). It is
// called again after a connection broke, so that it may look a password up anew.
type Connect func(ctx context.Context) (*pgx.Conn, error)

// Office is one sale's part of the table. It keeps one connection, which it opens when
// it is first needed, so that a fleet of small functions costs PostgreSQL one each.
// Safe for concurrent use, one write at a time.
type Office struct {
	sale    string
	connect Connect

	mu   sync.Mutex
	conn *pgx.Conn
}

// New makes the office of a sale, by the sale's name. The caller closes it.
func New(connect Connect, sale string) *Office { return &Office{sale: sale, connect: connect} }

// Close closes the connection. The office may be used again and opens a new one.
func (o *Office) Close(ctx context.Context) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.conn == nil {
		return nil
	}
	return o.conn.Close(ctx)
}

// Put writes a PAID record's row. It is safe to repeat and to call in any order: a
// candidate has one row for a sale, that of the latest paid_at (of two the same, the
// latest attempt), and a row that is there already is not touched, nor its updated_at.
// ErrNotPaid, ErrTransactionTaken: no repeat helps. Any other error is PostgreSQL's,
// and the caller repeats it. Errors name attempts, never a candidate's code.
func (o *Office) Put(ctx context.Context, rec booking.Record) (Outcome, error) {
	if err := rec.Validate(); err != nil {
		return "", fmt.Errorf("paid booking of %s: %w: %w", rec.Attempt, ErrNotPaid, err)
	}
	if rec.State != booking.StatePaid || rec.Transaction == "" || rec.PaidAt.IsZero() {
		return "", fmt.Errorf("paid booking of %s: %w: state %s, with transaction: %v, with paid_at: %v",
			rec.Attempt, ErrNotPaid, rec.State, rec.Transaction != "", !rec.PaidAt.IsZero())
	}
	var outcome Outcome
	err := o.use(ctx, func(c *pgx.Conn) (err error) {
		outcome, err = put(ctx, c, o.sale, rec)
		return err
	})
	if err != nil {
		return "", fmt.Errorf("paid booking of %s: %w", rec.Attempt, hint(err))
	}
	return outcome, nil
}

const (
	insertRow = `INSERT INTO paid_bookings
	(sale, candidate_hash, code, attempt, level, amount, currency, payment_id, transaction_id, paid_at)
	VALUES (@sale, @hash, @code, @attempt, @level, @amount, @currency, @payment, @transaction, @paid_at)
	ON CONFLICT (sale, candidate_hash) DO NOTHING`

	// The condition is in the write itself: of two writers the later payment stays,
	// whoever comes last.
	replaceRow = `UPDATE paid_bookings SET
	code = @code, attempt = @attempt, level = @level, amount = @amount, currency = @currency,
	payment_id = @payment, transaction_id = @transaction, paid_at = @paid_at, updated_at = now()
	WHERE sale = @sale AND candidate_hash = @hash
	AND (paid_at, attempt) < (@paid_at::timestamptz, @attempt::text COLLATE "C")`
)

func put(ctx context.Context, c *pgx.Conn, sale string, rec booking.Record) (Outcome, error) {
	row := pgx.NamedArgs{
		"sale": sale, "hash": rec.CandidateHash, "code": rec.Code, "attempt": rec.Attempt, "level": rec.Level,
		"amount": int64(rec.Amount), "currency": rec.Currency, "payment": rec.PaymentID,
		"transaction": rec.Transaction, "paid_at": rec.PaidAt.UTC(),
	}
	for _, write := range []struct {
		sql  string
		done Outcome
	}{{insertRow, Inserted}, {replaceRow, Replaced}} {
		tag, err := c.Exec(ctx, write.sql, row)
		switch {
		case transactionTaken(err):
			return takenBy(ctx, c, rec)
		case err != nil:
			return "", err
		case tag.RowsAffected() == 1:
			return write.done, nil
		}
	}
	var attempt string
	const there = `SELECT attempt FROM paid_bookings WHERE sale = $1 AND candidate_hash = $2`
	if err := c.QueryRow(ctx, there, sale, rec.CandidateHash).Scan(&attempt); err != nil {
		return "", err
	}
	if attempt != rec.Attempt {
		return Older, nil
	}
	return Unchanged, nil
}

// takenBy looks whose the transaction is. It may be this very booking's: written by a
// process that was faster by a moment, or under another name of the sale, since an
// attempt is of one sale for ever.
func takenBy(ctx context.Context, c *pgx.Conn, rec booking.Record) (Outcome, error) {
	var sale, attempt string
	const owner = `SELECT sale, attempt FROM paid_bookings WHERE transaction_id = $1`
	if err := c.QueryRow(ctx, owner, rec.Transaction).Scan(&sale, &attempt); err != nil {
		return "", err
	}
	if attempt == rec.Attempt {
		return Unchanged, nil
	}
	return "", fmt.Errorf("transaction %s is that of attempt %s in sale %s: %w", rec.Transaction, attempt, sale, ErrTransactionTaken)
}

// Paid reads the sale's rows, in the order of the candidate hash, on a connection of
// its own. An error ends it.
func (o *Office) Paid(ctx context.Context) iter.Seq2[Booking, error] {
	return func(yield func(Booking, error) bool) {
		bad := func(err error) { yield(Booking{}, fmt.Errorf("read the paid bookings: %w", hint(err))) }
		c, err := o.connect(ctx)
		if err != nil {
			bad(err)
			return
		}
		defer c.Close(context.WithoutCancel(ctx)) // says goodbye; nothing waits for it
		rows, err := c.Query(ctx, `SELECT sale, candidate_hash, code, attempt, level, amount, currency,
			payment_id, transaction_id, paid_at, updated_at
			FROM paid_bookings WHERE sale = $1 ORDER BY candidate_hash`, o.sale)
		if err != nil {
			bad(err)
			return
		}
		defer rows.Close()
		for rows.Next() {
			var b Booking
			err := rows.Scan(&b.Sale, &b.CandidateHash, &b.Code, &b.Attempt, &b.Level, &b.Amount, &b.Currency,
				&b.PaymentID, &b.Transaction, &b.PaidAt, &b.UpdatedAt)
			if err != nil {
				bad(err)
				return
			}
			b.PaidAt, b.UpdatedAt = b.PaidAt.UTC(), b.UpdatedAt.UTC()
			if !yield(b, nil) {
				return
			}
		}
		if err := rows.Err(); err != nil {
			bad(err)
		}
	}
}

// use gives f the connection. One that broke since it was last used (a function sleeps
// between its calls, PostgreSQL fails over) shows it at its next use only: then f runs
// once more on a new one, which it must bear.
func (o *Office) use(ctx context.Context, f func(*pgx.Conn) error) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if kept := o.conn; kept != nil && !kept.IsClosed() {
		err := f(kept)
		if err == nil || !kept.IsClosed() || ctx.Err() != nil {
			return err
		}
	}
	c, err := o.connect(ctx)
	if err != nil {
		return fmt.Errorf("connect to the back office: %w", err)
	}
	o.conn = c
	return f(c)
}

// Error codes of PostgreSQL that are told apart here; its manual, appendix A.
const (
	uniqueViolation = "23505"
	wrongPassword   = "28P01"
	wrongUser       = "28000"
	noDatabase      = "3D000"
	noTable         = "42P01"
	notAllowed      = "42501"
)

func transactionTaken(err error) bool {
	var pg *pgconn.PgError
	return errors.As(err, &pg) && pg.Code == uniqueViolation && pg.ConstraintName == "paid_bookings_transaction_id_key"
}

// hint adds what to do to an error that a person must end.
func hint(err error) error {
	var pg *pgconn.PgError
	if !errors.As(err, &pg) {
		return err
	}
	switch pg.Code {
	case wrongPassword, wrongUser:
		return fmt.Errorf("%w; check the back office's user and password", err)
	case noDatabase:
		return fmt.Errorf("%w; create the database, or correct its name", err)
	case noTable:
		return fmt.Errorf("%w; the schema is not there: run the migrations", err)
	case notAllowed:
		return fmt.Errorf("%w; grant this user what it needs, or migrate as the schema's owner", err)
	}
	return err
}
