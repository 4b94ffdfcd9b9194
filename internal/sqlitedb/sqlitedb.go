// Package sqlitedb opens the SQLite files of the local drivers (booking store,
// queue, object store), so that durability, locking and schema versions are
// decided once. Several processes may have one file open.
//
// A write that has returned without error is on disk: write-ahead log,
// synchronous=FULL. Writes waiting in one process share a commit; nobody waits
// for company. Reads come from a pool of their own and see every commit made
// before they began, by any process.
//
// Fail mode: closed. A full disk, a file locked for longer than the lock
// time-out, a damaged file or a newer schema is an error and leaves the data as
// it was. It never repairs and never deletes. Clock: it needs none.
package sqlitedb

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/url"
	"path/filepath"
	"sync"
	"time"

	"modernc.org/sqlite"
	sqlite3 "modernc.org/sqlite/lib"
)

// How every file is written: a commit has been flushed to the disk when it returns.
const (
	JournalMode = "WAL"
	Synchronous = "FULL"
)

const (
	// lockTimeout is how long a write or an opening waits for another process's
	// transaction. Those take milliseconds.
	lockTimeout = 5 * time.Second
	// readers bounds the read pool; each connection has a page cache of its own.
	readers = 4
)

var (
	// ErrClosed says that the database was closed before the write was accepted.
	ErrClosed = errors.New("database is closed")
	// ErrNewerSchema says that a newer program has written the file's schema.
	ErrNewerSchema = errors.New("file has a newer schema than this program knows")
)

// Schema is the tables of one driver. Drivers with different names may share a
// file.
type Schema struct {
	// Name tells the drivers of one file apart; it never changes.
	Name string
	// Steps lead from an empty file to the tables as this program knows them.
	// The version is their number; a step that was released is never edited.
	Steps []string
}

// DB is an open file. Safe for concurrent use.
type DB struct {
	path  string
	write *sql.DB // one connection, used by the writer only
	read  *sql.DB

	mu      sync.Mutex
	waiting []*job
	closed  bool
	wake    chan struct{} // holds one token while jobs may be waiting
	done    chan struct{} // closed when the writer has returned
}

// Open opens or creates the file, whose folder must exist, and brings the
// schema up to date. Safe when several processes open a new file at once. The
// error is ErrNewerSchema when the file is ahead of this program. The caller
// closes the DB.
func Open(ctx context.Context, path string, schema Schema) (*DB, error) {
	if path == "" {
		return nil, errors.New("open database: path is empty")
	}
	abs, err := filepath.Abs(path)
	if err != nil {
		return nil, fmt.Errorf("open database %s: %w", path, err)
	}
	d := &DB{path: path, wake: make(chan struct{}, 1), done: make(chan struct{})}
	d.write, err = sql.Open("sqlite", dsn(abs, 0, "journal_mode("+JournalMode+")", "synchronous("+Synchronous+")", "journal_size_limit(67108864)"))
	if err != nil {
		return nil, fmt.Errorf("open database %s: %w", path, err)
	}
	d.write.SetMaxOpenConns(1)
	if err := d.prepare(ctx, schema); err != nil {
		_ = d.write.Close()
		return nil, fmt.Errorf("open database %s: %w", path, err)
	}
	d.read, err = sql.Open("sqlite", dsn(abs, lockTimeout, "query_only(1)"))
	if err != nil {
		_ = d.write.Close()
		return nil, fmt.Errorf("open database %s: %w", path, err)
	}
	d.read.SetMaxOpenConns(readers)
	d.read.SetMaxIdleConns(readers)
	go (&writer{db: d}).loop()
	return d, nil
}

// dsn names the file as a URI, in which any path can be written.
func dsn(abs string, wait time.Duration, pragmas ...string) string {
	q := url.Values{
		"_busy_timeout": {fmt.Sprint(wait.Milliseconds())},
		"_txlock":       {"immediate"}, // a deferred write could find its snapshot stale
		"_error_rc":     {"1"},         // an open error that names the real cause
		"_dqs":          {"0"},
		"_pragma":       pragmas,
	}
	return (&url.URL{Scheme: "file", Path: filepath.ToSlash(abs), RawQuery: q.Encode()}).String()
}

// prepare switches the file to a write-ahead log and creates what is missing.
// The switch does not wait for a lock by itself, so "busy" is tried again here.
func (d *DB) prepare(ctx context.Context, schema Schema) error {
	ctx, cancel := context.WithTimeout(ctx, lockTimeout)
	defer cancel()
	for {
		err := d.migrate(ctx, schema)
		if !busy(err) {
			return err
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(time.Duration(5+rand.IntN(20)) * time.Millisecond):
		}
	}
}

func (d *DB) migrate(ctx context.Context, schema Schema) error {
	tx, err := d.write.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }()
	if _, err := tx.ExecContext(ctx, `CREATE TABLE IF NOT EXISTS schema_versions (name TEXT PRIMARY KEY, version INTEGER NOT NULL) STRICT`); err != nil {
		return err
	}
	var version int
	err = tx.QueryRowContext(ctx, `SELECT version FROM schema_versions WHERE name = ?`, schema.Name).Scan(&version)
	if err != nil && !errors.Is(err, sql.ErrNoRows) {
		return err
	}
	switch {
	case version > len(schema.Steps):
		return fmt.Errorf("%s is at version %d, known is %d: %w", schema.Name, version, len(schema.Steps), ErrNewerSchema)
	case version == len(schema.Steps):
		return nil
	}
	for i, step := range schema.Steps[version:] {
		if _, err := tx.ExecContext(ctx, step); err != nil {
			return fmt.Errorf("%s, step %d: %w", schema.Name, version+i+1, err)
		}
	}
	if _, err := tx.ExecContext(ctx, `INSERT INTO schema_versions (name, version) VALUES (?, ?)
		ON CONFLICT (name) DO UPDATE SET version = excluded.version`, schema.Name, len(schema.Steps)); err != nil {
		return err
	}
	return tx.Commit()
}

// busy tells whether another connection's lock was in the way.
func busy(err error) bool {
	var e *sqlite.Error
	return errors.As(err, &e) && (e.Code()&0xff == sqlite3.SQLITE_BUSY || e.Code()&0xff == sqlite3.SQLITE_LOCKED)
}

// Reader is the read pool; it refuses writes.
func (d *DB) Reader() *sql.DB { return d.read }

// Close finishes the writes that were accepted, refuses later ones with
// ErrClosed, and closes the file. Safe to repeat.
func (d *DB) Close() error {
	d.mu.Lock()
	if !d.closed {
		d.closed = true
		close(d.wake)
	}
	d.mu.Unlock()
	<-d.done
	return errors.Join(d.read.Close(), d.write.Close())
}
