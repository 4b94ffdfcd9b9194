package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"iter"
	"time"

	"holdfast/internal/booking"
	"holdfast/internal/sqlitedb"
)

// logTable is the schema's step that brought the operator's log. Ids sort by time.
const logTable = `
	CREATE TABLE operator_log (
		id   TEXT PRIMARY KEY,
		body TEXT NOT NULL
	) STRICT, WITHOUT ROWID;
`

// AppendLog adds an entry to the operator's log. Nil also when this very entry is
// there already, so that it is safe to repeat; ErrLogTaken when another one is under
// its id, which stays. Entries are never changed and never deleted.
func (s *Store) AppendLog(ctx context.Context, e booking.LogEntry) error {
	body, err := e.Encode()
	if err != nil {
		return fmt.Errorf("append to the operator's log: %w", err)
	}
	_, err = sqlitedb.Write(ctx, s.db, func(tx *sqlitedb.Tx) (struct{}, error) {
		var there string
		switch err := tx.QueryRow(`SELECT body FROM operator_log WHERE id = ?`, []any{e.ID}, &there); {
		case errors.Is(err, sql.ErrNoRows):
			_, err = tx.Exec(`INSERT INTO operator_log (id, body) VALUES (?, ?)`, e.ID, body)
			return struct{}{}, err
		case err != nil:
			return struct{}{}, err
		case there != body:
			return struct{}{}, booking.ErrLogTaken
		}
		return struct{}{}, nil
	})
	if err != nil {
		return fmt.Errorf("append %s to the operator's log: %w", e.ID, err)
	}
	return nil
}

// Log scans the entries of the changes that began at that time or later, in pages,
// in the order of their ids: oldest change first, and its second entry behind its
// first one. An entry that cannot be read comes as an error that wraps
// booking.ErrUnreadable and names it, beside an entry with the id alone, and the scan
// goes on; any other error ends it.
func (s *Store) Log(ctx context.Context, since time.Time) iter.Seq2[booking.LogEntry, error] {
	return func(yield func(booking.LogEntry, error) bool) {
		last := booking.LogIDsFrom(since)
		for {
			page, err := s.items(ctx, `SELECT id, 0, body FROM operator_log WHERE id > ? ORDER BY id LIMIT ?`, last, scanPage)
			if err != nil {
				yield(booking.LogEntry{}, fmt.Errorf("read the operator's log: %w", err))
				return
			}
			for _, i := range page {
				last = i.key
				if !yield(booking.DecodeLogEntry(i.key, i.body)) {
					return
				}
			}
			if len(page) < scanPage {
				return
			}
		}
	}
}
