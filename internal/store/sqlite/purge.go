package sqlite

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"iter"

	"holdfast/internal/booking"
	"holdfast/internal/sqlitedb"
)

// epochTables is the schema's step that brought the epoch's mark: one row.
const epochTables = `
	CREATE TABLE epochs (id INTEGER PRIMARY KEY CHECK (id = 1), body TEXT NOT NULL) STRICT;
`

// MarkEpoch writes down that the sale of this epoch has begun. A later one that is
// there stays. Safe to repeat.
func (s *Store) MarkEpoch(ctx context.Context, m booking.EpochMark) error {
	return s.putMark(ctx, m, func(have booking.EpochMark) (bool, error) { return m.NewerThan(have.Epoch), nil })
}

// ChooseEpoch writes a mark, also one of an earlier epoch, in place of the one that was
// seen, or the zero one where there was none. Nil also when this very mark is there. An
// error that wraps ErrNotOwner when another is. Safe to repeat.
func (s *Store) ChooseEpoch(ctx context.Context, seen, m booking.EpochMark) error {
	return s.putMark(ctx, m, func(have booking.EpochMark) (bool, error) { return have.Chooses(seen, m) })
}

// putMark puts the mark where there is none, or where replaces says so of the one that
// is there.
func (s *Store) putMark(ctx context.Context, m booking.EpochMark, replaces func(have booking.EpochMark) (bool, error)) error {
	m.At = m.At.Round(0).UTC()
	if err := m.Validate(); err != nil {
		return fmt.Errorf("mark epoch: %w", err)
	}
	body, err := json.Marshal(m)
	if err != nil {
		return fmt.Errorf("mark epoch %s: %w", m.Epoch, err)
	}
	_, err = sqlitedb.Write(ctx, s.db, func(tx *sqlitedb.Tx) (struct{}, error) {
		var there string
		err := tx.QueryRow(`SELECT body FROM epochs WHERE id = 1`, nil, &there)
		if err == nil {
			have, err := decodeMark(there)
			if err != nil {
				return struct{}{}, err
			}
			if put, err := replaces(have); err != nil || !put {
				return struct{}{}, err
			}
		} else if !errors.Is(err, sql.ErrNoRows) {
			return struct{}{}, err
		}
		_, err = tx.Exec(`INSERT INTO epochs (id, body) VALUES (1, ?) ON CONFLICT (id) DO UPDATE SET body = excluded.body`, string(body))
		return struct{}{}, err
	})
	if err != nil {
		return fmt.Errorf("mark epoch %s: %w", m.Epoch, err)
	}
	return nil
}

// EpochMark returns the mark of the latest epoch, or ErrNotFound when none was ever
// marked.
func (s *Store) EpochMark(ctx context.Context) (booking.EpochMark, error) {
	var body string
	err := s.db.Reader().QueryRowContext(ctx, `SELECT body FROM epochs WHERE id = 1`).Scan(&body)
	if errors.Is(err, sql.ErrNoRows) {
		err = booking.ErrNotFound
	}
	if err != nil {
		return booking.EpochMark{}, fmt.Errorf("epoch mark: %w", err)
	}
	return decodeMark(body)
}

func decodeMark(body string) (booking.EpochMark, error) {
	var m booking.EpochMark
	err := json.Unmarshal([]byte(body), &m)
	if err == nil {
		err = m.Validate()
	}
	if err != nil {
		return booking.EpochMark{}, fmt.Errorf("epoch mark: %w: %w", booking.ErrUnreadable, err)
	}
	return m, nil
}

// PurgeRecord deletes a record that is over, PAID or RELEASED, if it is in the
// state and of the transaction that were seen. Nil also when it is gone. An error
// that wraps ErrNotOwner when it has changed since; a HELD one is never deleted.
func (s *Store) PurgeRecord(ctx context.Context, seen booking.Record) error {
	_, err := sqlitedb.Write(ctx, s.db, func(tx *sqlitedb.Tx) (struct{}, error) {
		rec, err := load(tx, seen.CandidateHash, seen.Attempt)
		switch {
		case errors.Is(err, booking.ErrNotFound):
			return struct{}{}, nil
		case err != nil:
			return struct{}{}, err
		case rec.State == booking.StateHeld:
			return struct{}{}, fmt.Errorf("it is %s, which is not over: %w", rec.State, booking.ErrNotOwner)
		case rec.State != seen.State || rec.Transaction != seen.Transaction:
			return struct{}{}, fmt.Errorf("it has changed since it was read: %w", booking.ErrNotOwner)
		}
		_, err = tx.Exec(`DELETE FROM records WHERE candidate_hash = ? AND attempt = ?`, seen.CandidateHash, seen.Attempt)
		return struct{}{}, err
	})
	if err != nil {
		return fmt.Errorf("purge record %s: %w", key(seen.CandidateHash, seen.Attempt), err)
	}
	return nil
}

// PurgeRefund takes out of a refund that is done who it was for (booking.Refund.Purge),
// and tells whether there was anything. Safe to repeat.
func (s *Store) PurgeRefund(ctx context.Context, transaction string) (bool, error) {
	type result struct{ changed bool }
	out, err := sqlitedb.Write(ctx, s.db, func(tx *sqlitedb.Tx) (result, error) {
		r, err := loadRefund(tx, transaction)
		if err != nil {
			return result{}, err
		}
		changed, err := r.Purge()
		if err != nil || !changed {
			return result{}, err
		}
		if _, err := saveRefund(tx, r); err != nil {
			return result{}, err
		}
		// The column is what refunds are found by; a save leaves it as it was put.
		_, err = tx.Exec(`UPDATE refunds SET candidate_hash = ? WHERE key = ?`, r.CandidateHash, booking.RefundKey(transaction))
		return result{changed: true}, err
	})
	if err != nil {
		return false, fmt.Errorf("purge refund of %s: %w", transaction, err)
	}
	return out.changed, nil
}

// Notifications scans every notification, open and closed, in pages, in no promised
// order; see OpenNotifications.
func (s *Store) Notifications(ctx context.Context) iter.Seq2[booking.Notification, error] {
	decode := func(i item) (booking.Notification, error) {
		n, err := decodeNotification(i.key, i.body)
		if err != nil {
			n = booking.Notification{ID: i.key}
		}
		return n, err
	}
	return scanItems(ctx, s, "scan notifications", decode, `SELECT id, 0, body FROM notifications
		WHERE (0, id) > (?, ?) ORDER BY id LIMIT ?`)
}

// PurgeNotification takes out of a closed notification whose payment it was of
// (booking.Notification.Purge), and tells whether there was anything. Safe to repeat.
func (s *Store) PurgeNotification(ctx context.Context, id string) (bool, error) {
	changed, err := sqlitedb.Write(ctx, s.db, func(tx *sqlitedb.Tx) (bool, error) {
		n, err := loadNotification(tx, id)
		if err != nil {
			return false, err
		}
		changed, err := n.Purge()
		if err != nil || !changed {
			return false, err
		}
		return true, saveNotification(tx, n)
	})
	if err != nil {
		return false, fmt.Errorf("purge notification %s: %w", id, err)
	}
	return changed, nil
}
