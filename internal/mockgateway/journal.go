package mockgateway

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"sync"

	_ "modernc.org/sqlite" // the driver "sqlite"
)

// journal keeps the latest state of every item in a SQLite file. Changes made
// while one commit is on its way to disk share the next one, so that the price
// of synchronous=FULL is paid a few hundred times a second at most, however
// many calls come in. A nil journal keeps nothing and is always done.
type journal struct {
	db   *sql.DB
	wake chan struct{}
	done chan struct{}

	mu     sync.Mutex
	next   *batch
	failed error // the first failure; nothing is written after it
	closed bool
}

// batch is a set of changes that become durable together.
type batch struct {
	rows []row
	done chan struct{}
	err  error // to be read when done is closed
}

type row struct {
	kind, key string
	body      []byte
}

// wait returns when the batch is on disk, or with the reason why it is not.
func (b *batch) wait() error {
	if b == nil {
		return nil
	}
	<-b.done
	return b.err
}

var errJournalClosed = errors.New("mock gateway is closed")

func openJournal(ctx context.Context, dir string) (*journal, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("mock gateway data folder: %w", err)
	}
	file, err := filepath.Abs(filepath.Join(dir, "mockgateway.db"))
	if err != nil {
		return nil, fmt.Errorf("mock gateway data folder: %w", err)
	}
	// The file holds tokens; SQLite gives its log the mode of its database.
	f, err := os.OpenFile(file, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("mock gateway data folder: %w", err)
	}
	if err := f.Close(); err != nil {
		return nil, fmt.Errorf("mock gateway data folder: %w", err)
	}
	// Exclusive: the state lives in this process's memory, so a second process
	// on the same folder would undo its work. The system drops the lock of a
	// process that is killed.
	dsn := url.URL{Scheme: "file", Path: file, RawQuery: url.Values{"_pragma": {
		"locking_mode(EXCLUSIVE)", "journal_mode(WAL)", "synchronous(FULL)",
	}}.Encode()}
	db, err := sql.Open("sqlite", dsn.String())
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", file, err)
	}
	db.SetMaxOpenConns(1)
	_, err = db.ExecContext(ctx, `CREATE TABLE IF NOT EXISTS items (
		kind TEXT NOT NULL,
		key  TEXT NOT NULL,
		body BLOB NOT NULL,
		PRIMARY KEY (kind, key)
	) WITHOUT ROWID`)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("open %s (is another mock gateway running on it?): %w", file, err), db.Close())
	}
	j := &journal{db: db, wake: make(chan struct{}, 1), done: make(chan struct{}), next: newBatch()}
	go j.run()
	return j, nil
}

func newBatch() *batch { return &batch{done: make(chan struct{})} }

// load hands every item to take, in no particular order.
func (j *journal) load(ctx context.Context, take func(kind, key string, body []byte) error) error {
	rows, err := j.db.QueryContext(ctx, `SELECT kind, key, body FROM items`)
	if err != nil {
		return fmt.Errorf("load mock gateway state: %w", err)
	}
	defer rows.Close()
	for rows.Next() {
		var r row
		if err := rows.Scan(&r.kind, &r.key, &r.body); err != nil {
			return fmt.Errorf("load mock gateway state: %w", err)
		}
		if err := take(r.kind, r.key, r.body); err != nil {
			return fmt.Errorf("load mock gateway state: %s %s: %w", r.kind, r.key, err)
		}
	}
	if err := rows.Err(); err != nil {
		return fmt.Errorf("load mock gateway state: %w", err)
	}
	return nil
}

// add takes the item's state as it is now; changes to one item must be added in
// the order in which they were made. Wait for the batch before telling anyone.
func (j *journal) add(kind, key string, v any) *batch {
	if j == nil {
		return nil
	}
	body, err := json.Marshal(v)
	j.mu.Lock()
	defer j.mu.Unlock()
	if err == nil && j.closed {
		err = errJournalClosed
	}
	if err != nil {
		b := newBatch()
		b.err = err
		close(b.done)
		return b
	}
	j.next.rows = append(j.next.rows, row{kind, key, body})
	select {
	case j.wake <- struct{}{}:
	default:
	}
	return j.next
}

// run is the one writer; it ends when the journal is closed and written.
func (j *journal) run() {
	defer close(j.done)
	for range j.wake {
		j.flush()
	}
	j.flush()
}

func (j *journal) flush() {
	j.mu.Lock()
	b := j.next
	j.next = newBatch()
	j.mu.Unlock()
	if len(b.rows) > 0 && j.failed == nil {
		j.failed = j.write(b.rows)
	}
	b.err = j.failed
	close(b.done)
}

func (j *journal) write(rows []row) error {
	// A batch is many callers' work: no one of them can call it off.
	ctx := context.Background()
	tx, err := j.db.BeginTx(ctx, nil)
	if err != nil {
		return fmt.Errorf("write mock gateway state: %w", err)
	}
	defer tx.Rollback() // after Commit it has nothing to do
	put, err := tx.PrepareContext(ctx, `INSERT INTO items (kind, key, body) VALUES (?, ?, ?)
		ON CONFLICT (kind, key) DO UPDATE SET body = excluded.body`)
	if err != nil {
		return fmt.Errorf("write mock gateway state: %w", err)
	}
	defer put.Close()
	for _, r := range rows {
		if _, err := put.ExecContext(ctx, r.kind, r.key, r.body); err != nil {
			return fmt.Errorf("write mock gateway state: %w", err)
		}
	}
	if err := tx.Commit(); err != nil {
		return fmt.Errorf("write mock gateway state: %w", err)
	}
	return nil
}

func (j *journal) close() error {
	if j == nil {
		return nil
	}
	j.mu.Lock()
	j.closed = true
	j.mu.Unlock()
	close(j.wake)
	<-j.done
	return errors.Join(j.failed, j.db.Close())
}
