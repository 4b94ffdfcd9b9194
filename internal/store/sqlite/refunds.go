package sqlite

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"math"
	"strings"
	"time"

	"holdfast/internal/booking"
	"holdfast/internal/sqlitedb"
)

// refundTables is the schema's step that brought the refunds. They have a table
// of their own, so that no scan of records meets them.
const refundTables = `
	CREATE TABLE refunds (
		key            TEXT PRIMARY KEY,
		candidate_hash TEXT NOT NULL,
		attempt        TEXT NOT NULL,
		decided_at     INTEGER NOT NULL, -- Unix ms, as the ledger decides
		open           INTEGER NOT NULL, -- 1 until it is done
		body           TEXT NOT NULL
	) STRICT, WITHOUT ROWID;
	CREATE INDEX refunds_by_attempt ON refunds (candidate_hash, attempt, decided_at);
	CREATE INDEX refunds_by_decision ON refunds (decided_at, key);
	CREATE INDEX refunds_open ON refunds (decided_at, key) WHERE open = 1;
`

// PutRefund puts the refund, which must be due and claimed by nobody, if its
// transaction has none, and tells put; else it returns the refund that is there,
// however far it has come, untouched. A second report of the same money, or a
// repeat after a crash, so finds the first one's refund.
func (s *Store) PutRefund(ctx context.Context, r booking.Refund) (booking.Refund, bool, error) {
	if err := validDue(r); err != nil {
		return booking.Refund{}, false, fmt.Errorf("put refund: %w", err)
	}
	type result struct {
		refund booking.Refund
		put    bool
	}
	out, err := sqlitedb.Write(ctx, s.db, func(tx *sqlitedb.Tx) (result, error) {
		have, err := loadRefund(tx, r.Transaction)
		if !errors.Is(err, booking.ErrNotFound) {
			return result{refund: have}, err
		}
		put, err := saveRefund(tx, r)
		return result{refund: put, put: true}, err
	})
	if err != nil {
		return booking.Refund{}, false, fmt.Errorf("put refund of %s: %w", r.Transaction, err)
	}
	return out.refund, out.put, nil
}

func validDue(r booking.Refund) error {
	if err := r.Validate(); err != nil {
		return err
	}
	if r.State != booking.RefundDue || r.Claim != "" {
		return fmt.Errorf("state is %s, claim %q, want %s and none", r.State, r.Claim, booking.RefundDue)
	}
	return nil
}

// Refund returns the transaction's refund as it is now, or ErrNotFound.
func (s *Store) Refund(ctx context.Context, transaction string) (booking.Refund, error) {
	key := booking.RefundKey(transaction)
	var body string
	err := s.db.Reader().QueryRowContext(ctx, `SELECT body FROM refunds WHERE key = ?`, key).Scan(&body)
	if errors.Is(err, sql.ErrNoRows) {
		err = booking.ErrNotFound
	}
	if err != nil {
		return booking.Refund{}, fmt.Errorf("refund of %s: %w", transaction, err)
	}
	return decodeRefund(key, body)
}

// RefundsOf returns every refund of the attempt as it is now, oldest decision
// first; none is no error. Refunds that cannot be read are left out and named by
// the error, which comes beside the others.
func (s *Store) RefundsOf(ctx context.Context, candidateHash, attempt string) ([]booking.Refund, error) {
	rows, err := s.items(ctx, `SELECT key, decided_at, body FROM refunds
		WHERE candidate_hash = ? AND attempt = ? ORDER BY decided_at, key`, candidateHash, attempt)
	if err != nil {
		return nil, fmt.Errorf("refunds of %s: %w", key(candidateHash, attempt), err)
	}
	var out []booking.Refund
	var errs []error
	for _, row := range rows {
		r, err := decodeRefund(row.key, row.body)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		out = append(out, r)
	}
	return out, errors.Join(errs...)
}

// Refunds scans every refund, in pages, oldest decision first; a refund put or
// changed meanwhile may be seen as it was before or after. A refund that cannot
// be read comes as an error that wraps booking.ErrUnreadable and names it, beside
// a refund with the transaction alone, and the scan goes on; any other error
// ends it.
func (s *Store) Refunds(ctx context.Context) iter.Seq2[booking.Refund, error] {
	return scanItems(ctx, s, "scan refunds", refundOrKey, `SELECT key, decided_at, body FROM refunds
		WHERE (decided_at, key) > (?, ?) ORDER BY decided_at, key LIMIT ?`)
}

// OpenRefunds is Refunds without those that are done.
func (s *Store) OpenRefunds(ctx context.Context) iter.Seq2[booking.Refund, error] {
	return scanItems(ctx, s, "scan open refunds", refundOrKey, `SELECT key, decided_at, body FROM refunds
		WHERE open = 1 AND (decided_at, key) > (?, ?) ORDER BY decided_at, key LIMIT ?`)
}

// ClaimRefund gives the claim the right to work on a refund that is not done
// until the given time, if nobody else's claim is running at now, and returns the
// refund as it is then. False, beside the refund untouched, when it is not to be
// worked on by this claim; ErrNotFound without one. Repeated by the holder it
// renews. A claim is one worker's, used by nobody else: it alone tells two apart.
// State tells the holder what to do: one that is sent may have reached the
// gateway, which is asked before anything is sent again.
func (s *Store) ClaimRefund(ctx context.Context, transaction, claim string, now, until time.Time) (booking.Refund, bool, error) {
	r, claimed, err := s.changeRefund(ctx, transaction, func(r *booking.Refund) (bool, error) { return r.ClaimFor(claim, now, until) })
	if err != nil {
		return booking.Refund{}, false, fmt.Errorf("claim refund of %s: %w", transaction, err)
	}
	return r, claimed, nil
}

// RefundSent writes down that the claim's holder is about to send the refund;
// only when it has returned nil may the gateway be called. SentAt becomes at,
// never an earlier time, so a repeat with the same time changes nothing.
// ErrNotFound without a refund; ErrNotOwner when it is done, when the claim is
// another's, and when the claim's time is over at that time, since the next
// holder could then ask the gateway before our call has reached it.
func (s *Store) RefundSent(ctx context.Context, transaction, claim string, at time.Time) error {
	_, _, err := s.changeRefund(ctx, transaction, func(r *booking.Refund) (bool, error) { return r.Send(claim, at) })
	if err != nil {
		return fmt.Errorf("mark refund of %s as sent: %w", transaction, err)
	}
	return nil
}

// RefundDone ends the refund, whoever has claimed it: by is "gateway", or the
// operator who settled it by hand; the gateway's transaction of the money going
// back, or a note, must be there. Lease and trouble end with it. Nil also when it
// is done by the same hand with the same transaction, and then time and note
// stay. ErrNotFound without a refund; ErrRefundedOtherwise when it is done by
// another hand or with another transaction: the money may have gone back twice,
// and a person must look.
func (s *Store) RefundDone(ctx context.Context, transaction, by, refundTransaction, note string, at time.Time) error {
	_, _, err := s.changeRefund(ctx, transaction, func(r *booking.Refund) (bool, error) { return r.Finish(by, refundTransaction, note, at) })
	if err != nil {
		return fmt.Errorf("mark refund of %s as done: %w", transaction, err)
	}
	return nil
}

// RefundTrouble writes down what stands against the refund and ends the claim's
// lease, also after its time; the state stays. Nil also when this trouble is
// there and nobody holds the refund. ErrNotFound without a refund, ErrNotOwner
// when it is done or the claim is another's.
func (s *Store) RefundTrouble(ctx context.Context, transaction, claim, trouble string) error {
	_, _, err := s.changeRefund(ctx, transaction, func(r *booking.Refund) (bool, error) { return r.Hinder(claim, trouble) })
	if err != nil {
		return fmt.Errorf("mark trouble with refund of %s: %w", transaction, err)
	}
	return nil
}

// changeRefund is one conditional write: fn sees the refund as it is, and what it
// has made of it is saved when it answers true. It returns the refund as it is
// then.
func (s *Store) changeRefund(ctx context.Context, transaction string, fn func(r *booking.Refund) (bool, error)) (booking.Refund, bool, error) {
	type result struct {
		refund  booking.Refund
		changed bool
	}
	out, err := sqlitedb.Write(ctx, s.db, func(tx *sqlitedb.Tx) (result, error) {
		r, err := loadRefund(tx, transaction)
		if err != nil {
			return result{}, err
		}
		changed, err := fn(&r)
		if err == nil && changed {
			r, err = saveRefund(tx, r)
		}
		return result{refund: r, changed: changed}, err
	})
	return out.refund, out.changed, err
}

// loadRefund reads a refund inside a write; ErrNotFound when there is none.
func loadRefund(tx *sqlitedb.Tx, transaction string) (booking.Refund, error) {
	key := booking.RefundKey(transaction)
	var body string
	err := tx.QueryRow(`SELECT body FROM refunds WHERE key = ?`, []any{key}, &body)
	if errors.Is(err, sql.ErrNoRows) {
		return booking.Refund{}, booking.ErrNotFound
	}
	if err != nil {
		return booking.Refund{}, err
	}
	return decodeRefund(key, body)
}

// saveRefund writes a refund whole, times in UTC, and returns it as a later read
// will.
func saveRefund(tx *sqlitedb.Tx, r booking.Refund) (booking.Refund, error) {
	for _, t := range []*time.Time{&r.DecidedAt, &r.SentAt, &r.ClaimUntil, &r.DoneAt} {
		*t = t.Round(0).UTC()
	}
	body, err := json.Marshal(r)
	if err != nil {
		return booking.Refund{}, err
	}
	_, err = tx.Exec(`INSERT INTO refunds (key, candidate_hash, attempt, decided_at, open, body) VALUES (?, ?, ?, ?, ?, ?)
		ON CONFLICT (key) DO UPDATE SET open = excluded.open, body = excluded.body`,
		booking.RefundKey(r.Transaction), r.CandidateHash, r.Attempt, r.DecidedAt.UnixMilli(), r.State != booking.RefundDone, string(body))
	return r, err
}

// decodeRefund reads a stored refund and holds it against its key.
func decodeRefund(key, body string) (booking.Refund, error) {
	var r booking.Refund
	err := json.Unmarshal([]byte(body), &r)
	if err == nil {
		err = r.Validate()
	}
	if err == nil && booking.RefundKey(r.Transaction) != key {
		err = errors.New("refund is another's")
	}
	if err != nil {
		return booking.Refund{}, fmt.Errorf("refund of %s: %w: %w", transactionOf(key), booking.ErrUnreadable, err)
	}
	return r, nil
}

// refundOrKey is decodeRefund for a scan, which names what it could not read.
func refundOrKey(i item) (booking.Refund, error) {
	r, err := decodeRefund(i.key, i.body)
	if err != nil {
		r = booking.Refund{Transaction: transactionOf(i.key)}
	}
	return r, err
}

// transactionOf is the transaction that a key is of.
func transactionOf(key string) string { return strings.TrimPrefix(key, booking.RefundKey("")) }

// item is one row of refunds or notifications as it was read; at orders it.
type item struct {
	key  string
	at   int64
	body string
}

func (s *Store) items(ctx context.Context, query string, args ...any) ([]item, error) {
	rows, err := s.db.Reader().QueryContext(ctx, query, args...)
	if err != nil {
		return nil, err
	}
	defer func() { _ = rows.Close() }()
	var out []item
	for rows.Next() {
		var i item
		if err := rows.Scan(&i.key, &i.at, &i.body); err != nil {
			return nil, err
		}
		out = append(out, i)
	}
	return out, rows.Err()
}

// scanItems runs the query, whose arguments are the time and the key to go on
// behind and the length of a page, until nothing is left. What decode answers is
// handed on, its errors too; an error of the query ends the scan.
func scanItems[T any](ctx context.Context, s *Store, what string, decode func(item) (T, error), query string) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) {
		last := item{at: math.MinInt64}
		for {
			page, err := s.items(ctx, query, last.at, last.key, scanPage)
			if err != nil {
				var none T
				yield(none, fmt.Errorf("%s: %w", what, err))
				return
			}
			for _, last = range page {
				if !yield(decode(last)) {
					return
				}
			}
			if len(page) < scanPage {
				return
			}
		}
	}
}
