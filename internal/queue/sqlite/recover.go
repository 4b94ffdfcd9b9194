package sqlite

import (
	"context"
	"fmt"

	"holdfast/internal/sqlitedb"
)

// Recover makes every message in flight receivable at once. It is for a process
// that alone has the file and starts: whoever had them in hand is gone. Safe to
// repeat.
func (q *Queue) Recover(ctx context.Context) error {
	now := q.opts.Now().UnixMilli()
	_, err := sqlitedb.Write(ctx, q.db, func(tx *sqlitedb.Tx) (struct{}, error) {
		_, err := tx.Exec(`UPDATE messages SET visible_at = 0 WHERE dead = 0 AND visible_at > ?`, now)
		return struct{}{}, err
	})
	if err != nil {
		return fmt.Errorf("recover messages in flight: %w", err)
	}
	q.wake()
	return nil
}
