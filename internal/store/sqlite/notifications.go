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

// notificationTables is the schema's step that brought the notifications, in a
// table of their own as the refunds are.
const notificationTables = `
	CREATE TABLE notifications (
		id          TEXT PRIMARY KEY,
		received_at INTEGER NOT NULL, -- Unix ms
		open        INTEGER NOT NULL, -- 1 until it is closed
		body        TEXT NOT NULL
	) STRICT, WITHOUT ROWID;
	CREATE INDEX notifications_open ON notifications (received_at, id) WHERE open = 1;
`

// PutNotification puts the notification, which must be open, if there is none
// under its id, and tells stored. False when there is one, open or closed, which
// stays as it is: a redelivery changes nothing.
func (s *Store) PutNotification(ctx context.Context, n booking.Notification) (bool, error) {
	if err := validOpen(n); err != nil {
		return false, fmt.Errorf("put notification: %w", err)
	}
	stored, err := sqlitedb.Write(ctx, s.db, func(tx *sqlitedb.Tx) (bool, error) {
		if _, err := loadNotification(tx, n.ID); !errors.Is(err, booking.ErrNotFound) {
			return false, err
		}
		return true, saveNotification(tx, n)
	})
	if err != nil {
		return false, fmt.Errorf("put notification %s: %w", n.ID, err)
	}
	return stored, nil
}

func validOpen(n booking.Notification) error {
	if err := n.Validate(); err != nil {
		return err
	}
	if n.Outcome != "" || !n.ClosedAt.IsZero() {
		return errors.New("it is closed, want it open")
	}
	return nil
}

// Notification returns the notification as it is now, or ErrNotFound.
func (s *Store) Notification(ctx context.Context, id string) (booking.Notification, error) {
	var body string
	err := s.db.Reader().QueryRowContext(ctx, `SELECT body FROM notifications WHERE id = ?`, id).Scan(&body)
	if errors.Is(err, sql.ErrNoRows) {
		err = booking.ErrNotFound
	}
	if err != nil {
		return booking.Notification{}, fmt.Errorf("notification %s: %w", id, err)
	}
	return decodeNotification(id, body)
}

// OpenNotifications scans the notifications that are not closed, in pages, first
// received first; one put or closed meanwhile may be seen or not. One that cannot
// be read comes as an error that wraps booking.ErrUnreadable and names it, beside
// a notification with the id alone, and the scan goes on; any other error ends
// it.
func (s *Store) OpenNotifications(ctx context.Context) iter.Seq2[booking.Notification, error] {
	decode := func(i item) (booking.Notification, error) {
		n, err := decodeNotification(i.key, i.body)
		if err != nil {
			n = booking.Notification{ID: i.key}
		}
		return n, err
	}
	return scanItems(ctx, s, "scan open notifications", decode, `SELECT id, received_at, body FROM notifications
		WHERE open = 1 AND (received_at, id) > (?, ?) ORDER BY received_at, id LIMIT ?`)
}

// CloseNotification ends the notification's life with what became of its money.
// The first outcome stands: nil also when it is closed already, with whatever
// outcome. ErrNotFound when there is none.
func (s *Store) CloseNotification(ctx context.Context, id string, outcome booking.NotificationOutcome, at time.Time) error {
	switch outcome {
	case booking.NotifiedPaid, booking.NotifiedRefund, booking.NotifiedAnomaly:
	default:
		return fmt.Errorf("close notification %s: outcome %q is unknown", id, outcome)
	}
	if at.IsZero() {
		return fmt.Errorf("close notification %s: time is missing", id)
	}
	_, err := sqlitedb.Write(ctx, s.db, func(tx *sqlitedb.Tx) (struct{}, error) {
		n, err := loadNotification(tx, id)
		if err != nil || n.Outcome != "" {
			return struct{}{}, err
		}
		n.Outcome, n.ClosedAt = outcome, at
		return struct{}{}, saveNotification(tx, n)
	})
	if err != nil {
		return fmt.Errorf("close notification %s: %w", id, err)
	}
	return nil
}

// loadNotification reads a notification inside a write; ErrNotFound when there is
// none.
func loadNotification(tx *sqlitedb.Tx, id string) (booking.Notification, error) {
	var body string
	err := tx.QueryRow(`SELECT body FROM notifications WHERE id = ?`, []any{id}, &body)
	if errors.Is(err, sql.ErrNoRows) {
		return booking.Notification{}, booking.ErrNotFound
	}
	if err != nil {
		return booking.Notification{}, err
	}
	return decodeNotification(id, body)
}

// saveNotification writes a notification whole, times in UTC.
func saveNotification(tx *sqlitedb.Tx, n booking.Notification) error {
	for _, t := range []*time.Time{&n.ReceivedAt, &n.SentAt, &n.ClosedAt} {
		*t = t.Round(0).UTC()
	}
	body, err := json.Marshal(n)
	if err != nil {
		return err
	}
	_, err = tx.Exec(`INSERT INTO notifications (id, received_at, open, body) VALUES (?, ?, ?, ?)
		ON CONFLICT (id) DO UPDATE SET open = excluded.open, body = excluded.body`,
		n.ID, n.ReceivedAt.UnixMilli(), n.Outcome == "", string(body))
	return err
}

// decodeNotification reads a stored notification and holds it against its id.
func decodeNotification(id, body string) (booking.Notification, error) {
	var n booking.Notification
	err := json.Unmarshal([]byte(body), &n)
	if err == nil {
		err = n.Validate()
	}
	if err == nil && n.ID != id {
		err = errors.New("notification is another's")
	}
	if err != nil {
		return booking.Notification{}, fmt.Errorf("notification %s: %w: %w", id, booking.ErrUnreadable, err)
	}
	return n, nil
}
