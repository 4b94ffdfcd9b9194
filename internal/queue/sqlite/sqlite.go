// Package sqlite is a FIFO queue in a SQLite file with the semantics of SQS FIFO
// in high-throughput mode: the local profile's queue. Several processes may have
// the file open.
//
// A message that was accepted is on disk. Within a group messages come in order,
// and while one of them is in flight no other is handed out; groups do not wait
// for each other. A message that was received too often moves to the dead
// letters and its group goes on. Concurrent calls of one process share a commit.
//
// Fail mode: closed. A message that cannot be written was not accepted; one that
// cannot be read or deleted stays and is delivered again. Clock: Options.Now
// decides visibility, deduplication and ages, and the processes of one file
// share it; the length of a long poll is real time.
package sqlite

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"holdfast/internal/booking"
	"holdfast/internal/sqlitedb"
)

// Limits of SQS, kept here so that what works locally works there.
const (
	maxBatch  = 10                    // messages of one Receive
	maxID     = 128                   // characters of a group or deduplication id
	maxBody   = 1 << 20               // bytes of a body
	maxDelay  = 12 * time.Hour        // of Delay
	pollLeast = 50 * time.Millisecond // a long poll looks for other processes' work
	pollMore  = 50 * time.Millisecond // this often, give or take
)

// Options are the queue's settings; the processes of one file use the same.
type Options struct {
	// Visibility is how long a received message is hidden from others. Default 60 s.
	Visibility time.Duration
	// MaxReceives is how often a message is delivered before it goes to the dead
	// letters. Default 5.
	MaxReceives int
	// DedupWindow is how long a deduplication id is remembered in its group,
	// from its first use on. Default 5 min.
	DedupWindow time.Duration
	// Now is the clock. Default time.Now.
	Now func() time.Time
}

// Queue is the queue in one file. Safe for concurrent use.
type Queue struct {
	db   *sqlitedb.DB
	opts Options

	mu    sync.Mutex
	waker chan struct{} // closed when something may have become receivable
}

// Open opens or creates the file, whose folder must exist. A file written by a
// newer program is refused. The caller closes the queue.
func Open(ctx context.Context, path string, opts Options) (*Queue, error) {
	opts.Visibility = cmp.Or(opts.Visibility, time.Minute)
	opts.MaxReceives = cmp.Or(opts.MaxReceives, 5)
	opts.DedupWindow = cmp.Or(opts.DedupWindow, 5*time.Minute)
	if opts.Now == nil {
		opts.Now = time.Now
	}
	if opts.Visibility < time.Millisecond || opts.MaxReceives < 1 || opts.DedupWindow < 0 {
		return nil, fmt.Errorf("queue: visibility %s, max receives %d, deduplication window %s: want more than 0",
			opts.Visibility, opts.MaxReceives, opts.DedupWindow)
	}
	db, err := sqlitedb.Open(ctx, path, schema())
	if err != nil {
		return nil, fmt.Errorf("queue: %w", err)
	}
	return &Queue{db: db, opts: opts, waker: make(chan struct{})}, nil
}

// schema: a message waits while its visible_at is past, is in flight while it is
// to come, and its receipt is good while receives is what it was at delivery.
// Ids grow in order of acceptance and are never used again.
func schema() sqlitedb.Schema {
	return sqlitedb.Schema{Name: "queue", Steps: []string{`
		CREATE TABLE messages (
			id         INTEGER PRIMARY KEY AUTOINCREMENT,
			grp        TEXT    NOT NULL,
			dedup      TEXT    NOT NULL,
			body       BLOB    NOT NULL,
			sent_at    INTEGER NOT NULL, -- Unix ms, like every time here
			receives   INTEGER NOT NULL DEFAULT 0,
			visible_at INTEGER NOT NULL DEFAULT 0,
			dead       INTEGER NOT NULL DEFAULT 0
		) STRICT;
		CREATE INDEX messages_by_group ON messages (grp, visible_at) WHERE dead = 0;
		CREATE INDEX messages_dead ON messages (dedup) WHERE dead = 1;
		CREATE TABLE dedups (
			id    INTEGER PRIMARY KEY,
			grp   TEXT    NOT NULL,
			dedup TEXT    NOT NULL,
			until INTEGER NOT NULL,
			UNIQUE (grp, dedup)
		) STRICT;
		CREATE INDEX dedups_by_until ON dedups (until);
	`}}
}

// Close closes the file when the writes at work are finished; a long poll then
// ends with an error. Safe to repeat.
func (q *Queue) Close() error {
	if err := q.db.Close(); err != nil {
		return fmt.Errorf("queue: close: %w", err)
	}
	q.wake()
	return nil
}

// Send accepts a message: nil means it is on disk. Within the deduplication
// window a repeat of the same group and id is accepted and not delivered again,
// so a Send whose outcome is unknown is safe to repeat with the same ids.
func (q *Queue) Send(ctx context.Context, group, dedupID string, body []byte) error {
	if !validID(group) || !validID(dedupID) {
		return fmt.Errorf("send: group %.40q and deduplication id %.200q: want 1 to %d visible ASCII characters", group, dedupID, maxID)
	}
	if len(body) == 0 || len(body) > maxBody {
		return fmt.Errorf("send %s: body of %d bytes: want 1 to %d", dedupID, len(body), maxBody)
	}
	_, err := sqlitedb.Write(ctx, q.db, func(tx *sqlitedb.Tx) (struct{}, error) {
		now := q.opts.Now()
		// Each send takes away more old ids than it adds.
		if _, err := tx.Exec(`DELETE FROM dedups WHERE id IN (SELECT id FROM dedups WHERE until <= ? ORDER BY until LIMIT 2)`, now.UnixMilli()); err != nil {
			return struct{}{}, err
		}
		res, err := tx.Exec(`INSERT INTO dedups (grp, dedup, until) VALUES (?, ?, ?)
			ON CONFLICT (grp, dedup) DO UPDATE SET until = excluded.until WHERE until <= ?`,
			group, dedupID, now.Add(q.opts.DedupWindow).UnixMilli(), now.UnixMilli())
		if err != nil {
			return struct{}{}, err
		}
		if n, err := res.RowsAffected(); err != nil || n == 0 {
			return struct{}{}, err
		}
		_, err = tx.Exec(`INSERT INTO messages (grp, dedup, body, sent_at) VALUES (?, ?, ?, ?)`, group, dedupID, body, now.UnixMilli())
		return struct{}{}, err
	})
	if err != nil {
		return fmt.Errorf("send %s: %w", dedupID, err)
	}
	q.wake()
	return nil
}

func validID(s string) bool {
	return 0 < len(s) && len(s) <= maxID && strings.IndexFunc(s, func(r rune) bool { return r <= ' ' || r > '~' }) < 0
}

// Receive takes up to max messages (at most 10), in order within each group, and
// hides them and their groups for the visibility time-out. It waits up to wait
// for the first one; none is no error. When ctx ends it returns its error and
// has taken nothing.
func (q *Queue) Receive(ctx context.Context, most int, wait time.Duration) ([]booking.Delivery, error) {
	most = min(most, maxBatch)
	if most < 1 {
		return nil, fmt.Errorf("receive %d messages: want 1 to %d", most, maxBatch)
	}
	end := time.NewTimer(wait)
	defer end.Stop()
	for {
		woken := q.woken() // before looking, so that nothing is missed in between
		got, err := q.look(ctx, most)
		if err != nil {
			return nil, fmt.Errorf("receive: %w", err)
		}
		if len(got) > 0 || wait <= 0 {
			return got, nil
		}
		poll := time.NewTimer(pollLeast + rand.N(pollMore))
		select {
		case <-ctx.Done():
			err = fmt.Errorf("receive: %w", context.Cause(ctx))
		case <-end.C:
			wait = 0 // one last look
		case <-woken:
		case <-poll.C:
		}
		poll.Stop()
		if err != nil {
			return nil, err
		}
	}
}

// receivable is the condition of a message that may be handed out: it waits, and
// no other of its group is in flight.
const receivable = `m.dead = 0 AND m.visible_at <= ?1 AND NOT EXISTS (
	SELECT 1 FROM messages AS f WHERE f.dead = 0 AND f.grp = m.grp AND f.visible_at > ?1)`

// look takes what may be taken. It reads first: an idle queue takes no lock.
func (q *Queue) look(ctx context.Context, most int) ([]booking.Delivery, error) {
	var some bool
	err := q.db.Reader().QueryRowContext(ctx, `SELECT EXISTS (SELECT 1 FROM messages AS m WHERE `+receivable+`)`, q.opts.Now().UnixMilli()).Scan(&some)
	if err != nil || !some {
		return nil, err
	}
	return sqlitedb.Write(ctx, q.db, func(tx *sqlitedb.Tx) ([]booking.Delivery, error) { return q.take(tx, most) })
}

func (q *Queue) take(tx *sqlitedb.Tx, most int) ([]booking.Delivery, error) {
	now := q.opts.Now()
	for {
		found, ids, err := candidates(tx, now, most)
		if err != nil || len(found) == 0 {
			return nil, err
		}
		var out []booking.Delivery
		for i, d := range found {
			if d.Receives >= q.opts.MaxReceives {
				if _, err := tx.Exec(`UPDATE messages SET dead = 1 WHERE id = ?`, ids[i]); err != nil {
					return nil, err
				}
				continue
			}
			if _, err := tx.Exec(`UPDATE messages SET receives = receives + 1, visible_at = ? WHERE id = ?`,
				now.Add(q.opts.Visibility).UnixMilli(), ids[i]); err != nil {
				return nil, err
			}
			d.Receives++
			d.Receipt = receipt{id: ids[i], receives: d.Receives}.String()
			out = append(out, d)
		}
		if len(out) > 0 {
			return out, nil
		}
	}
}

// candidates reads what may be handed out, oldest first, with the messages' ids.
func candidates(tx *sqlitedb.Tx, now time.Time, most int) ([]booking.Delivery, []int64, error) {
	rows, err := tx.Query(`SELECT m.id, m.grp, m.dedup, m.body, m.sent_at, m.receives FROM messages AS m
		WHERE `+receivable+` ORDER BY m.id LIMIT ?2`, now.UnixMilli(), most)
	if err != nil {
		return nil, nil, err
	}
	return scan(rows)
}

func scan(rows *sql.Rows) (found []booking.Delivery, ids []int64, err error) {
	defer func() { _ = rows.Close() }()
	for rows.Next() {
		var d booking.Delivery
		var id, sent int64
		if err := rows.Scan(&id, &d.Group, &d.DedupID, &d.Body, &sent, &d.Receives); err != nil {
			return nil, nil, err
		}
		d.SentAt = time.UnixMilli(sent).UTC()
		found, ids = append(found, d), append(ids, id)
	}
	return found, ids, rows.Err()
}

// Delete removes delivered messages, all in one commit, and returns the receipts
// that it could not use: not a receipt, or the message has been delivered again
// since or is a dead letter. A message that is gone already is no failure, so a
// Delete whose outcome is unknown is safe to repeat. With an error nothing was
// deleted, or it is not known.
func (q *Queue) Delete(ctx context.Context, receipts []string) (failed []string, err error) {
	if len(receipts) == 0 {
		return nil, nil
	}
	failed, err = sqlitedb.Write(ctx, q.db, func(tx *sqlitedb.Tx) ([]string, error) {
		var failed []string
		for _, text := range receipts {
			r, ok := parseReceipt(text)
			if !ok {
				failed = append(failed, text)
				continue
			}
			res, err := tx.Exec(`DELETE FROM messages WHERE id = ? AND receives = ? AND dead = 0`, r.id, r.receives)
			if err != nil {
				return nil, err
			}
			n, err := res.RowsAffected()
			if err != nil {
				return nil, err
			}
			if n > 0 {
				continue
			}
			var there bool
			if err := tx.QueryRow(`SELECT EXISTS (SELECT 1 FROM messages WHERE id = ?)`, []any{r.id}, &there); err != nil {
				return nil, err
			}
			if there {
				failed = append(failed, text)
			}
		}
		return failed, nil
	})
	if err != nil {
		return nil, fmt.Errorf("delete %d messages: %w", len(receipts), err)
	}
	q.wake()
	return failed, nil
}

// Delay hides a message that is in flight for d from now on, at most 12 h: to
// keep it while the work goes on, or to give it back, at once with 0. It is not
// remembered for the next delivery. ErrNotFound when the message is no longer in
// flight under this receipt.
func (q *Queue) Delay(ctx context.Context, receipt string, d time.Duration) error {
	r, ok := parseReceipt(receipt)
	if !ok || d < 0 || d > maxDelay {
		return fmt.Errorf("delay %.40q by %s: not a receipt, or not 0 to %s", receipt, d, maxDelay)
	}
	_, err := sqlitedb.Write(ctx, q.db, func(tx *sqlitedb.Tx) (struct{}, error) {
		now := q.opts.Now()
		res, err := tx.Exec(`UPDATE messages SET visible_at = ? WHERE id = ? AND receives = ? AND dead = 0 AND visible_at > ?`,
			now.Add(d).UnixMilli(), r.id, r.receives, now.UnixMilli())
		if err != nil {
			return struct{}{}, err
		}
		n, err := res.RowsAffected()
		if err == nil && n == 0 {
			err = booking.ErrNotFound
		}
		return struct{}{}, err
	})
	if err != nil {
		return fmt.Errorf("delay %s: %w", receipt, err)
	}
	q.wake()
	return nil
}

// DeadLetters lists up to most dead letters, oldest first, and leaves them where
// they are. They have no receipt.
func (q *Queue) DeadLetters(ctx context.Context, most int) ([]booking.Delivery, error) {
	rows, err := q.db.Reader().QueryContext(ctx, `SELECT id, grp, dedup, body, sent_at, receives FROM messages
		WHERE dead = 1 ORDER BY id LIMIT ?`, max(most, 0))
	if err != nil {
		return nil, fmt.Errorf("list dead letters: %w", err)
	}
	found, _, err := scan(rows)
	if err != nil {
		return nil, fmt.Errorf("list dead letters: %w", err)
	}
	return found, nil
}

// Redrive puts the dead letters with these deduplication ids, or all of them
// when none is named, at the end of the queue with a receive count of 0, and
// returns how many there were. Deduplication does not hold them back. Safe to
// repeat.
func (q *Queue) Redrive(ctx context.Context, dedupIDs ...string) (int, error) {
	n, err := sqlitedb.Write(ctx, q.db, func(tx *sqlitedb.Tx) (int, error) {
		const revive = `INSERT INTO messages (grp, dedup, body, sent_at) SELECT grp, dedup, body, ? FROM messages WHERE dead = 1`
		const remove = `DELETE FROM messages WHERE dead = 1`
		now := q.opts.Now().UnixMilli()
		if len(dedupIDs) == 0 {
			if _, err := tx.Exec(revive+` ORDER BY id`, now); err != nil {
				return 0, err
			}
			return affected(tx.Exec(remove))
		}
		total := 0
		for _, id := range slices.Compact(slices.Sorted(slices.Values(dedupIDs))) {
			if _, err := tx.Exec(revive+` AND dedup = ? ORDER BY id`, now, id); err != nil {
				return 0, err
			}
			n, err := affected(tx.Exec(remove+` AND dedup = ?`, id))
			if err != nil {
				return 0, err
			}
			total += n
		}
		return total, nil
	})
	if err != nil {
		return 0, fmt.Errorf("redrive dead letters: %w", err)
	}
	q.wake()
	return n, nil
}

func affected(res sql.Result, err error) (int, error) {
	if err != nil {
		return 0, err
	}
	n, err := res.RowsAffected()
	return int(n), err
}

// Stats counts the queue as it is now.
func (q *Queue) Stats(ctx context.Context) (booking.QueueStats, error) {
	now := q.opts.Now()
	var s booking.QueueStats
	var oldest sql.NullInt64
	err := q.db.Reader().QueryRowContext(ctx, `SELECT
		(SELECT count(*) FROM messages WHERE dead = 0 AND visible_at <= ?1),
		(SELECT count(*) FROM messages WHERE dead = 0 AND visible_at > ?1),
		(SELECT count(*) FROM messages WHERE dead = 1),
		(SELECT sent_at FROM messages WHERE dead = 0 ORDER BY id LIMIT 1)`, now.UnixMilli()).
		Scan(&s.Waiting, &s.InFlight, &s.Dead, &oldest)
	if err != nil {
		return booking.QueueStats{}, fmt.Errorf("queue stats: %w", err)
	}
	if oldest.Valid {
		s.OldestAge = max(0, now.Sub(time.UnixMilli(oldest.Int64)))
	}
	return s, nil
}

// receipt names one delivery of one message.
type receipt struct {
	id       int64
	receives int
}

func (r receipt) String() string { return fmt.Sprintf("%d.%d", r.id, r.receives) }

func parseReceipt(text string) (receipt, bool) {
	id, receives, ok := strings.Cut(text, ".")
	i, err1 := strconv.ParseInt(id, 10, 64)
	n, err2 := strconv.Atoi(receives)
	return receipt{id: i, receives: n}, ok && errors.Join(err1, err2) == nil
}

func (q *Queue) woken() <-chan struct{} {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.waker
}

// wake lets every long poll of this process look again.
func (q *Queue) wake() {
	q.mu.Lock()
	defer q.mu.Unlock()
	close(q.waker)
	q.waker = make(chan struct{})
}
