package sqlitedb

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"time"
)

// maxBatch bounds the writes of one transaction, which other processes wait for.
const maxBatch = 256

// SQLite grants its lock to whoever asks in the right moment, and its own
// waiting asks ten times a second. So a busy writer leaves the lock free between
// turns, and a waiting one asks often: else one process could starve the others
// for seconds.
const (
	turnGap     = 200 * time.Microsecond
	maxRetryGap = 2 * time.Millisecond
)

// Tx is the transaction that a write runs in; good until the write returns.
type Tx struct{ w *writer }

// Exec runs a statement. It is prepared once per DB: the text is a constant.
func (t *Tx) Exec(query string, args ...any) (sql.Result, error) {
	s, err := t.w.prepare(query) //nolint:sqlclosecheck // kept: drop closes it
	if err != nil {
		return nil, err
	}
	return s.ExecContext(context.Background(), args...)
}

// Query runs a query, prepared once as in Exec. The caller closes the rows.
func (t *Tx) Query(query string, args ...any) (*sql.Rows, error) {
	s, err := t.w.prepare(query) //nolint:sqlclosecheck // kept: drop closes it
	if err != nil {
		return nil, err
	}
	return s.QueryContext(context.Background(), args...)
}

// QueryRow runs a query of one row at most, prepared once as in Exec, and scans
// the row into dest. The error is sql.ErrNoRows when there is none.
func (t *Tx) QueryRow(query string, args []any, dest ...any) error {
	s, err := t.w.prepare(query) //nolint:sqlclosecheck // kept: drop closes it
	if err != nil {
		return err
	}
	return s.QueryRowContext(context.Background(), args...).Scan(dest...)
}

// job is one write on its way to the writer.
type job struct {
	run func(*Tx) error
	// taken is set by whoever decides first: the writer, holding the file's
	// lock, to run it; or the caller, its context ended, to leave.
	taken  atomic.Bool
	result chan error // buffered: the writer never waits for a caller
}

// Write runs fn in a transaction that is on disk when Write returns nil; when
// it returns an error nothing of fn remains, except after an error of the
// commit itself, whose outcome is not known. The writes that wait at the same
// time share one transaction, and when one of them returns an error, or the
// commit fails, each is run again in a transaction of its own: fn may run more
// than once and must do everything through its Tx and its results.
//
// A context that ends while the write waits for its turn or for the file's lock
// ends the wait, and fn never runs; from then on the write is finished
// whatever the context does. A file that stays locked is an error after 5 s.
func Write[T any](ctx context.Context, d *DB, fn func(tx *Tx) (T, error)) (T, error) {
	var out, zero T
	j := &job{result: make(chan error, 1)}
	j.run = func(tx *Tx) error {
		var err error
		out, err = fn(tx)
		return err
	}
	if err := ctx.Err(); err != nil {
		return zero, err
	}
	if err := d.submit(j); err != nil {
		return zero, err
	}
	select {
	case err := <-j.result:
		if err != nil {
			return zero, err
		}
		return out, nil
	case <-ctx.Done():
		if j.taken.CompareAndSwap(false, true) {
			return zero, context.Cause(ctx)
		}
		if err := <-j.result; err != nil {
			return zero, err
		}
		return out, nil
	}
}

func (d *DB) submit(j *job) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return fmt.Errorf("%s: %w", d.path, ErrClosed)
	}
	d.waiting = append(d.waiting, j)
	select {
	case d.wake <- struct{}{}:
	default:
	}
	return nil
}

// take removes up to maxBatch jobs from the queue and claims those whose
// callers are still there.
func (d *DB) take() []*job {
	d.mu.Lock()
	defer d.mu.Unlock()
	n := min(len(d.waiting), maxBatch)
	batch := make([]*job, 0, n)
	for _, j := range d.waiting[:n] {
		if j.taken.CompareAndSwap(false, true) {
			batch = append(batch, j)
		}
	}
	d.waiting = append(d.waiting[:0:0], d.waiting[n:]...)
	return batch
}

func (d *DB) pending() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return len(d.waiting) > 0
}

// writer owns the write connection and runs the jobs. Its statements run
// without a context: an interrupted one would leave the batch in doubt.
type writer struct {
	db    *DB
	conn  *sql.Conn // nil until needed, and after trouble
	stmts map[string]*sql.Stmt
}

// loop runs until the DB is closed and what was submitted before is finished.
func (w *writer) loop() {
	defer close(w.db.done)
	defer w.drop()
	for range w.db.wake {
		for w.db.pending() {
			w.turn()
			if w.db.pending() {
				time.Sleep(turnGap)
			}
		}
	}
}

// turn takes the file's lock first and then whatever is waiting, so that a
// caller may leave, and others may come, while another process holds the lock.
func (w *writer) turn() {
	err := w.begin()
	batch := w.db.take()
	if err == nil {
		err = w.run(batch)
	} else {
		answer(batch, err)
		return
	}
	if err == nil || len(batch) == 1 {
		answer(batch, err)
		return
	}
	for i, j := range batch {
		if err := w.begin(); err != nil {
			answer(batch[i:], err)
			return
		}
		j.result <- w.run(batch[i : i+1])
	}
}

func answer(batch []*job, err error) {
	for _, j := range batch {
		j.result <- err
	}
}

func (w *writer) begin() error {
	if w.conn == nil {
		conn, err := w.db.write.Conn(context.Background())
		if err != nil {
			return fmt.Errorf("%s: %w", w.db.path, err)
		}
		w.conn, w.stmts = conn, map[string]*sql.Stmt{}
	}
	for begun := time.Now(); ; {
		err := w.exec("BEGIN IMMEDIATE")
		switch {
		case err == nil:
			return nil
		case !busy(err):
			w.drop()
			return fmt.Errorf("%s: %w", w.db.path, err)
		case time.Since(begun) > lockTimeout:
			return fmt.Errorf("%s: locked for %s: %w", w.db.path, lockTimeout, err)
		}
		time.Sleep(time.Duration(rand.Int64N(int64(maxRetryGap))))
	}
}

// run runs the batch in the transaction that has begun and ends it.
func (w *writer) run(batch []*job) error {
	tx := &Tx{w: w}
	for _, j := range batch {
		if err := j.run(tx); err != nil {
			w.rollback()
			return err
		}
	}
	if len(batch) == 0 {
		w.rollback()
		return nil
	}
	if err := w.exec("COMMIT"); err != nil {
		w.rollback()
		return fmt.Errorf("%s: commit: %w", w.db.path, err)
	}
	return nil
}

// rollback leaves no transaction open: some errors have ended it already, and
// then only a fresh connection is sure to be clean.
func (w *writer) rollback() {
	if err := w.exec("ROLLBACK"); err != nil {
		w.drop()
	}
}

// drop closes the connection for good; what it had not committed is gone.
func (w *writer) drop() {
	if w.conn == nil {
		return
	}
	for _, s := range w.stmts {
		_ = s.Close()
	}
	_ = w.conn.Raw(func(any) error { return driver.ErrBadConn })
	w.conn, w.stmts = nil, nil
}

// exec runs what has neither arguments nor results; it is prepared once, as in Tx.Exec.
func (w *writer) exec(query string) error {
	s, err := w.prepare(query) //nolint:sqlclosecheck // kept: drop closes it
	if err != nil {
		return err
	}
	_, err = s.ExecContext(context.Background())
	return err
}

func (w *writer) prepare(query string) (*sql.Stmt, error) {
	if s, ok := w.stmts[query]; ok {
		return s, nil
	}
	s, err := w.conn.PrepareContext(context.Background(), query)
	if err != nil {
		return nil, err
	}
	w.stmts[query] = s
	return s, nil
}
