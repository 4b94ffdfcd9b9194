// Package sqlite keeps booking records, one per attempt, in a SQLite file: the
// local profile's booking store. Beside them are the refunds, one per transaction,
// the gateway's notifications, and the operator's log. Several processes may have the
// file open.
//
// A record is its JSON (docs/shapes.md) under its key; every change is one
// transaction that reads the record and writes it on condition of what it saw,
// and is on disk before the call returns. Records are never deleted: TTL is
// kept for the drivers whose housekeeping uses it. Refunds and notifications are
// kept in the same way.
//
// Fail mode: closed. What cannot be written or read is an error and changes
// nothing; a record that is there but cannot be read is booking.ErrUnreadable
// and is never overwritten. Clock: none of its own; times come with the calls.
package sqlite

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"time"

	"holdfast/internal/booking"
	"holdfast/internal/sqlitedb"
)

// scanPage is how many records a scan holds in memory.
const scanPage = 500

// Store is the booking store in one file. Safe for concurrent use; every method
// is safe to repeat. A call that returned an error may still have been carried
// out only if the error is of the commit: repeat it.
type Store struct{ db *sqlitedb.DB }

// Open opens or creates the file, whose folder must exist. A file written by a
// newer program is refused. The caller closes the store.
func Open(ctx context.Context, path string) (*Store, error) {
	db, err := sqlitedb.Open(ctx, path, schema())
	if err != nil {
		return nil, fmt.Errorf("booking store: %w", err)
	}
	return &Store{db: db}, nil
}

func schema() sqlitedb.Schema {
	return sqlitedb.Schema{Name: "booking store", Steps: []string{`
		CREATE TABLE records (
			candidate_hash TEXT NOT NULL,
			attempt        TEXT NOT NULL,
			payment_id     TEXT NOT NULL,
			body           TEXT NOT NULL,
			PRIMARY KEY (candidate_hash, attempt)
		) STRICT, WITHOUT ROWID;
		CREATE INDEX records_by_payment ON records (payment_id);
		CREATE TABLE probes (id INTEGER PRIMARY KEY, count INTEGER NOT NULL) STRICT;
	`, refundTables, notificationTables, logTable, epochTables}}
}

// Close closes the file when the writes at work are finished. Safe to repeat.
func (s *Store) Close() error {
	if err := s.db.Close(); err != nil {
		return fmt.Errorf("booking store: close: %w", err)
	}
	return nil
}

// PutHeld puts the HELD record if its attempt has none and tells created; else
// it returns the record that is there, whatever its state, untouched.
func (s *Store) PutHeld(ctx context.Context, rec booking.Record) (booking.Record, bool, error) {
	if err := validHeld(rec); err != nil {
		return booking.Record{}, false, fmt.Errorf("put held record: %w", err)
	}
	rec, body, err := encode(rec)
	if err != nil {
		return booking.Record{}, false, fmt.Errorf("put held record %s: %w", key(rec.CandidateHash, rec.Attempt), err)
	}
	type result struct {
		rec     booking.Record
		created bool
	}
	// This is the write there are most of, and nearly always the first of its
	// attempt: one statement then.
	r, err := sqlitedb.Write(ctx, s.db, func(tx *sqlitedb.Tx) (result, error) {
		res, err := tx.Exec(`INSERT INTO records (candidate_hash, attempt, payment_id, body) VALUES (?, ?, ?, ?)
			ON CONFLICT (candidate_hash, attempt) DO NOTHING`, rec.CandidateHash, rec.Attempt, rec.PaymentID, body)
		if err != nil {
			return result{}, err
		}
		if n, err := res.RowsAffected(); err != nil || n > 0 {
			return result{rec: rec, created: true}, err
		}
		have, err := load(tx, rec.CandidateHash, rec.Attempt)
		return result{rec: have}, err
	})
	if err != nil {
		return booking.Record{}, false, fmt.Errorf("put held record %s: %w", key(rec.CandidateHash, rec.Attempt), err)
	}
	return r.rec, r.created, nil
}

func validHeld(rec booking.Record) error {
	if err := rec.Validate(); err != nil {
		return err
	}
	if rec.State != booking.StateHeld {
		return fmt.Errorf("state is %s, want %s", rec.State, booking.StateHeld)
	}
	return nil
}

// MarkPaid makes the attempt's record PAID by this payment, from HELD or
// RELEASED, or puts it as PAID if there is none: transaction and paid_at are
// set, the TTL is removed and the mail falls due, unless it was sent, in one
// write; the reason of an earlier release stays. Repeated with the same
// transaction it returns the record as it is. The error is ErrOtherThanOrdered
// when the record carries another payment, and ErrSecondPayment, beside the
// record, when it is PAID by another transaction; the record is untouched then.
func (s *Store) MarkPaid(ctx context.Context, p booking.Paid) (booking.Record, error) {
	hash, attempt := p.Record.CandidateHash, p.Record.Attempt
	if err := p.Record.Validate(); err != nil {
		return booking.Record{}, fmt.Errorf("mark paid: %w", err)
	}
	if p.Transaction == "" || p.PaidAt.IsZero() {
		return booking.Record{}, fmt.Errorf("mark paid %s: transaction or time is missing", key(hash, attempt))
	}
	type result struct {
		rec    booking.Record
		second bool
	}
	r, err := sqlitedb.Write(ctx, s.db, func(tx *sqlitedb.Tx) (result, error) {
		rec, err := load(tx, hash, attempt)
		switch {
		case errors.Is(err, booking.ErrNotFound):
			rec = p.Record
		case err != nil:
			return result{}, err
		case rec.PaymentID != p.Record.PaymentID:
			return result{}, fmt.Errorf("record carries payment %s, not %s: %w", rec.PaymentID, p.Record.PaymentID, booking.ErrOtherThanOrdered)
		case rec.State == booking.StatePaid:
			return result{rec: rec, second: rec.Transaction != p.Transaction}, nil
		}
		rec.State, rec.Transaction, rec.PaidAt, rec.TTL = booking.StatePaid, p.Transaction, p.PaidAt, time.Time{}
		if rec.Mail != booking.MailSent {
			rec.Mail = booking.MailDue
		}
		rec, err = save(tx, rec)
		return result{rec: rec}, err
	})
	switch {
	case err != nil:
		return booking.Record{}, fmt.Errorf("mark paid %s: %w", key(hash, attempt), err)
	case r.second:
		return r.rec, fmt.Errorf("mark paid %s by transaction %s, paid by %s: %w", key(hash, attempt), p.Transaction, r.rec.Transaction, booking.ErrSecondPayment)
	}
	return r.rec, nil
}

// Announce notes on the attempt's HELD record that an execute call is about to
// be sent, putting the record if there is none, and returns the record as it is
// then. The time noted is never an earlier one, and is another for each
// announcement, since Release tells them apart by it; a repeat with the time that
// is noted changes nothing. The error is ErrAlreadyPaid, ErrNotOwner (the record
// is RELEASED) or ErrOtherThanOrdered (another payment), and the call must not be
// sent.
func (s *Store) Announce(ctx context.Context, rec booking.Record, at time.Time) (booking.Record, error) {
	if err := validHeld(rec); err != nil {
		return booking.Record{}, fmt.Errorf("announce execute: %w", err)
	}
	noted, err := sqlitedb.Write(ctx, s.db, func(tx *sqlitedb.Tx) (booking.Record, error) {
		have, err := load(tx, rec.CandidateHash, rec.Attempt)
		switch {
		case errors.Is(err, booking.ErrNotFound):
			have = rec
		case err != nil:
			return booking.Record{}, err
		case have.PaymentID != rec.PaymentID:
			return booking.Record{}, fmt.Errorf("record carries payment %s, not %s: %w", have.PaymentID, rec.PaymentID, booking.ErrOtherThanOrdered)
		case have.State == booking.StatePaid:
			return booking.Record{}, booking.ErrAlreadyPaid
		case have.State == booking.StateReleased:
			return booking.Record{}, booking.ErrNotOwner
		}
		if at.Before(have.ExecuteAt) { // by a clock that is behind
			at = have.ExecuteAt.Add(time.Millisecond)
		}
		have.ExecuteAt = at
		return save(tx, have)
	})
	if err != nil {
		return booking.Record{}, fmt.Errorf("announce execute of %s: %w", key(rec.CandidateHash, rec.Attempt), err)
	}
	return noted, nil
}

// Release moves a record from HELD to RELEASED, with the reason and with
// ReleasedTTL counted from at, if it still carries the payment and the execute_at
// that were seen. Nil also when it is RELEASED already, and then reason and TTL
// stay. Otherwise ErrNotFound, ErrOtherThanOrdered (another payment),
// ErrAlreadyPaid or ErrAnnounced (an execute call was announced since), and
// nothing changes.
func (s *Store) Release(ctx context.Context, seen booking.Record, reason string, at time.Time) error {
	_, err := sqlitedb.Write(ctx, s.db, func(tx *sqlitedb.Tx) (struct{}, error) {
		rec, err := load(tx, seen.CandidateHash, seen.Attempt)
		switch {
		case err != nil:
			return struct{}{}, err
		case rec.PaymentID != seen.PaymentID:
			return struct{}{}, fmt.Errorf("record carries payment %s, not %s: %w", rec.PaymentID, seen.PaymentID, booking.ErrOtherThanOrdered)
		case rec.State == booking.StatePaid:
			return struct{}{}, booking.ErrAlreadyPaid
		case rec.State == booking.StateReleased:
			return struct{}{}, nil
		case !rec.ExecuteAt.Equal(seen.ExecuteAt):
			return struct{}{}, booking.ErrAnnounced
		}
		rec.State, rec.Reason, rec.TTL = booking.StateReleased, reason, booking.ReleasedTTL(at)
		_, err = save(tx, rec)
		return struct{}{}, err
	})
	if err != nil {
		return fmt.Errorf("release record %s: %w", key(seen.CandidateHash, seen.Attempt), err)
	}
	return nil
}

// Asked notes on a RELEASED record when the gateway was asked about its payment, if
// it still carries the payment and the asked_at that were seen. Nil also when
// another time was noted since: that question counts, and is not moved, so that a
// repeat or a second runner changes nothing. Otherwise ErrNotFound,
// ErrOtherThanOrdered (another payment) or ErrAlreadyPaid, and nothing changes; a
// HELD record is an error, too.
func (s *Store) Asked(ctx context.Context, seen booking.Record, at time.Time) error {
	if at.IsZero() {
		return fmt.Errorf("note question about %s: time is missing", key(seen.CandidateHash, seen.Attempt))
	}
	_, err := sqlitedb.Write(ctx, s.db, func(tx *sqlitedb.Tx) (struct{}, error) {
		rec, err := load(tx, seen.CandidateHash, seen.Attempt)
		switch {
		case err != nil:
			return struct{}{}, err
		case rec.PaymentID != seen.PaymentID:
			return struct{}{}, fmt.Errorf("record carries payment %s, not %s: %w", rec.PaymentID, seen.PaymentID, booking.ErrOtherThanOrdered)
		case rec.State == booking.StatePaid:
			return struct{}{}, booking.ErrAlreadyPaid
		case rec.State != booking.StateReleased:
			return struct{}{}, fmt.Errorf("record is %s, want %s", rec.State, booking.StateReleased)
		case !rec.AskedAt.Equal(seen.AskedAt):
			return struct{}{}, nil
		}
		rec.AskedAt = at
		_, err = save(tx, rec)
		return struct{}{}, err
	})
	if err != nil {
		return fmt.Errorf("note question about %s: %w", key(seen.CandidateHash, seen.Attempt), err)
	}
	return nil
}

// Extend moves the deadline of a HELD record later, and its TTL, if it has one,
// with it. A deadline that is not later than the record's changes nothing, so
// that neither a repeat nor a delay takes time back. Nil also when there is no
// record yet, which is then put with the deadline it was queued with and extended
// by a repeat, and when the attempt has ended.
func (s *Store) Extend(ctx context.Context, candidateHash, attempt string, deadline time.Time) error {
	_, err := sqlitedb.Write(ctx, s.db, func(tx *sqlitedb.Tx) (struct{}, error) {
		rec, err := load(tx, candidateHash, attempt)
		switch {
		case errors.Is(err, booking.ErrNotFound):
			return struct{}{}, nil
		case err != nil:
			return struct{}{}, err
		case rec.State != booking.StateHeld || !deadline.After(rec.Deadline):
			return struct{}{}, nil
		}
		rec.Deadline = deadline
		if ttl := booking.HeldTTL(deadline); !rec.TTL.IsZero() && ttl.After(rec.TTL) {
			rec.TTL = ttl
		}
		_, err = save(tx, rec)
		return struct{}{}, err
	})
	if err != nil {
		return fmt.Errorf("extend record %s: %w", key(candidateHash, attempt), err)
	}
	return nil
}

// KeepHeld takes the TTL of a HELD record away. Nil also without a record, and when it
// is no longer HELD, which then stays as it is.
func (s *Store) KeepHeld(ctx context.Context, candidateHash, attempt string) error {
	_, err := sqlitedb.Write(ctx, s.db, func(tx *sqlitedb.Tx) (struct{}, error) {
		rec, err := load(tx, candidateHash, attempt)
		switch {
		case errors.Is(err, booking.ErrNotFound):
			return struct{}{}, nil
		case err != nil:
			return struct{}{}, err
		case rec.State != booking.StateHeld || rec.TTL.IsZero():
			return struct{}{}, nil
		}
		rec.TTL = time.Time{}
		_, err = save(tx, rec)
		return struct{}{}, err
	})
	if err != nil {
		return fmt.Errorf("keep record %s: %w", key(candidateHash, attempt), err)
	}
	return nil
}

// ClaimMail gives the claim the right to send the mail of a PAID record until
// the given time, if the mail is due and nobody else's claim is running at now.
// False when it is not to be sent by this claim, or there is no such record.
func (s *Store) ClaimMail(ctx context.Context, candidateHash, attempt, claim string, now, until time.Time) (bool, error) {
	if claim == "" {
		return false, errors.New("claim mail: claim is empty")
	}
	ok, err := sqlitedb.Write(ctx, s.db, func(tx *sqlitedb.Tx) (bool, error) {
		rec, err := load(tx, candidateHash, attempt)
		if errors.Is(err, booking.ErrNotFound) {
			return false, nil
		}
		if err != nil {
			return false, err
		}
		free := rec.MailClaim == "" || rec.MailClaim == claim || !now.Before(rec.MailClaimUntil)
		if rec.State != booking.StatePaid || rec.Mail != booking.MailDue || !free {
			return false, nil
		}
		rec.MailClaim, rec.MailClaimUntil = claim, until
		_, err = save(tx, rec)
		return true, err
	})
	if err != nil {
		return false, fmt.Errorf("claim mail of %s: %w", key(candidateHash, attempt), err)
	}
	return ok, nil
}

// MailSent writes down that the claim's holder has sent the mail, also after
// the claim's time. Nil also when it is marked as sent already. ErrNotFound
// without a record, ErrNotOwner when the claim is another's.
func (s *Store) MailSent(ctx context.Context, candidateHash, attempt, claim string) error {
	_, err := sqlitedb.Write(ctx, s.db, func(tx *sqlitedb.Tx) (struct{}, error) {
		rec, err := load(tx, candidateHash, attempt)
		switch {
		case err != nil:
			return struct{}{}, err
		case rec.Mail == booking.MailSent:
			return struct{}{}, nil
		case rec.Mail != booking.MailDue || rec.MailClaim != claim || claim == "":
			return struct{}{}, booking.ErrNotOwner
		}
		rec.Mail, rec.MailClaim, rec.MailClaimUntil = booking.MailSent, "", time.Time{}
		_, err = save(tx, rec)
		return struct{}{}, err
	})
	if err != nil {
		return fmt.Errorf("mark mail of %s as sent: %w", key(candidateHash, attempt), err)
	}
	return nil
}

// Record returns the attempt's record as it is now, or ErrNotFound.
func (s *Store) Record(ctx context.Context, candidateHash, attempt string) (booking.Record, error) {
	var body string
	err := s.db.Reader().QueryRowContext(ctx,
		`SELECT body FROM records WHERE candidate_hash = ? AND attempt = ?`, candidateHash, attempt).Scan(&body)
	if errors.Is(err, sql.ErrNoRows) {
		err = booking.ErrNotFound
	}
	if err != nil {
		return booking.Record{}, fmt.Errorf("record %s: %w", key(candidateHash, attempt), err)
	}
	return decode(candidateHash, attempt, body)
}

// RecordByPayment returns the record that carries the payment, or ErrNotFound.
func (s *Store) RecordByPayment(ctx context.Context, paymentID string) (booking.Record, error) {
	recs, err := s.list(ctx, `SELECT candidate_hash, attempt, body FROM records WHERE payment_id = ? LIMIT 1`, paymentID)
	if err == nil && len(recs) == 0 {
		err = booking.ErrNotFound
	}
	if err != nil {
		return booking.Record{}, fmt.Errorf("record of a payment: %w", err) // whose id may be a stranger's text
	}
	return recs[0].decode()
}

// RecordsOf returns every record of the candidate as it is now, oldest attempt
// first; none is no error. Records that cannot be read are left out and named
// by the error, which comes beside the others.
func (s *Store) RecordsOf(ctx context.Context, candidateHash string) ([]booking.Record, error) {
	rows, err := s.list(ctx, `SELECT candidate_hash, attempt, body FROM records WHERE candidate_hash = ? ORDER BY attempt`, candidateHash)
	if err != nil {
		return nil, fmt.Errorf("records of candidate %.8s: %w", candidateHash, err)
	}
	var out []booking.Record
	var errs []error
	for _, row := range rows {
		rec, err := row.decode()
		if err != nil {
			errs = append(errs, err)
			continue
		}
		out = append(out, rec)
	}
	return out, errors.Join(errs...)
}

// Records scans every record, in pages, in no promised order; a record put or
// changed meanwhile may be seen as it was before or after. A record that cannot
// be read comes as an error that wraps booking.ErrUnreadable and names its key,
// beside a record with the key alone, and the scan goes on; any other error
// ends it.
func (s *Store) Records(ctx context.Context) iter.Seq2[booking.Record, error] {
	return func(yield func(booking.Record, error) bool) {
		var hash, attempt string
		for {
			rows, err := s.list(ctx, `SELECT candidate_hash, attempt, body FROM records
				WHERE (candidate_hash, attempt) > (?, ?) ORDER BY candidate_hash, attempt LIMIT ?`, hash, attempt, scanPage)
			if err != nil {
				yield(booking.Record{}, fmt.Errorf("scan records: %w", err))
				return
			}
			for _, row := range rows {
				rec, err := row.decode()
				if err != nil {
					rec = booking.Record{CandidateHash: row.hash, Attempt: row.attempt}
				}
				if !yield(rec, err) {
					return
				}
			}
			if len(rows) < scanPage {
				return
			}
			hash, attempt = rows[len(rows)-1].hash, rows[len(rows)-1].attempt
		}
	}
}

// Empty tells whether the store has no record and no refund at all, readable or
// not: whether nothing was ever sold. Notifications, which come for payments that
// are not ours too, do not count.
func (s *Store) Empty(ctx context.Context) (bool, error) {
	var some bool
	if err := s.db.Reader().QueryRowContext(ctx, `SELECT EXISTS (SELECT 1 FROM records UNION ALL SELECT 1 FROM refunds)`).Scan(&some); err != nil {
		return false, fmt.Errorf("look for records: %w", err)
	}
	return !some, nil
}

// Ping tells whether the store takes writes now, by making one of its own.
func (s *Store) Ping(ctx context.Context) error {
	_, err := sqlitedb.Write(ctx, s.db, func(tx *sqlitedb.Tx) (struct{}, error) {
		_, err := tx.Exec(`INSERT INTO probes (id, count) VALUES (1, 1) ON CONFLICT (id) DO UPDATE SET count = count + 1`)
		return struct{}{}, err
	})
	if err != nil {
		return fmt.Errorf("booking store: ping: %w", err)
	}
	return nil
}

// row is one row as it was read.
type row struct{ hash, attempt, body string }

func (r row) decode() (booking.Record, error) { return decode(r.hash, r.attempt, r.body) }

func (s *Store) list(ctx context.Context, query string, args ...any) ([]row, error) {
	rows, err := s.db.Reader().QueryContext(ctx, query, args...)
	if err != nil {
		return nil, err
	}
	defer func() { _ = rows.Close() }()
	var out []row
	for rows.Next() {
		var r row
		if err := rows.Scan(&r.hash, &r.attempt, &r.body); err != nil {
			return nil, err
		}
		out = append(out, r)
	}
	return out, rows.Err()
}

// load reads a record inside a write; ErrNotFound when there is none.
func load(tx *sqlitedb.Tx, hash, attempt string) (booking.Record, error) {
	var body string
	err := tx.QueryRow(`SELECT body FROM records WHERE candidate_hash = ? AND attempt = ?`, []any{hash, attempt}, &body)
	if errors.Is(err, sql.ErrNoRows) {
		return booking.Record{}, booking.ErrNotFound
	}
	if err != nil {
		return booking.Record{}, err
	}
	return decode(hash, attempt, body)
}

// save writes a record whole and returns it as a later read will.
func save(tx *sqlitedb.Tx, rec booking.Record) (booking.Record, error) {
	rec, body, err := encode(rec)
	if err != nil {
		return booking.Record{}, err
	}
	_, err = tx.Exec(`INSERT INTO records (candidate_hash, attempt, payment_id, body) VALUES (?, ?, ?, ?)
		ON CONFLICT (candidate_hash, attempt) DO UPDATE SET payment_id = excluded.payment_id, body = excluded.body`,
		rec.CandidateHash, rec.Attempt, rec.PaymentID, body)
	return rec, err
}

// encode is a record as it is stored, times in UTC, and as a later read will return
// it.
func encode(rec booking.Record) (booking.Record, string, error) {
	for _, t := range []*time.Time{&rec.AdmittedAt, &rec.Deadline, &rec.ExecuteAt, &rec.PaidAt, &rec.AskedAt, &rec.MailClaimUntil, &rec.TTL} {
		*t = t.Round(0).UTC()
	}
	body, err := json.Marshal(rec)
	return rec, string(body), err
}

// decode reads a stored record and holds it against its key.
func decode(hash, attempt, body string) (booking.Record, error) {
	var rec booking.Record
	err := json.Unmarshal([]byte(body), &rec)
	if err == nil {
		err = rec.Validate()
	}
	if err == nil && (rec.CandidateHash != hash || rec.Attempt != attempt) {
		err = errors.New("record is another's")
	}
	if err != nil {
		return booking.Record{}, fmt.Errorf("record %s: %w: %w", key(hash, attempt), booking.ErrUnreadable, err)
	}
	return rec, nil
}

// key names a record in errors, which end up in logs: the attempt is unique by
// itself, and the whole hash would give away a short code.
func key(hash, attempt string) string { return fmt.Sprintf("%.8s/%s", hash, attempt) }
