package sqlitedb_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"holdfast/internal/sqlitedb"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var notes = sqlitedb.Schema{Name: "notes", Steps: []string{
	`CREATE TABLE notes (id INTEGER PRIMARY KEY, text TEXT NOT NULL UNIQUE) STRICT`,
}}

func open(t *testing.T, path string, schema sqlitedb.Schema) *sqlitedb.DB {
	t.Helper()
	db, err := sqlitedb.Open(t.Context(), path, schema)
	if err != nil {
		t.Fatalf("Open: %v", err)
	}
	t.Cleanup(func() {
		if err := db.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
	})
	return db
}

func note(ctx context.Context, db *sqlitedb.DB, text string) error {
	_, err := sqlitedb.Write(ctx, db, func(tx *sqlitedb.Tx) (int, error) {
		_, err := tx.Exec(`INSERT INTO notes (text) VALUES (?)`, text)
		return 0, err
	})
	return err
}

func count(t *testing.T, db *sqlitedb.DB) int {
	t.Helper()
	var n int
	if err := db.Reader().QueryRowContext(t.Context(), `SELECT count(*) FROM notes`).Scan(&n); err != nil {
		t.Fatalf("count notes: %v", err)
	}
	return n
}

// occupy holds the file's write lock until the returned function is called.
func occupy(t *testing.T, db *sqlitedb.DB) (release func()) {
	t.Helper()
	held, free, done := make(chan struct{}), make(chan struct{}), make(chan error, 1)
	go func() {
		_, err := sqlitedb.Write(context.Background(), db, func(*sqlitedb.Tx) (int, error) {
			close(held)
			<-free
			return 0, nil
		})
		done <- err
	}()
	<-held
	release = sync.OnceFunc(func() {
		close(free)
		if err := <-done; err != nil {
			t.Errorf("write that held the lock: %v", err)
		}
	})
	t.Cleanup(release)
	return release
}

func TestOpen_ManyAtOnceMakeOneSchema(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "new file?#%.db")
	const n = 8
	dbs := make([]*sqlitedb.DB, n)
	errs := make([]error, n)
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() {
			if dbs[i], errs[i] = sqlitedb.Open(t.Context(), path, notes); errs[i] == nil {
				errs[i] = note(t.Context(), dbs[i], fmt.Sprint(i))
			}
		})
	}
	wg.Wait()
	for i := range n {
		if errs[i] != nil {
			t.Errorf("opener %d: got error %v, want none", i, errs[i])
		}
		if dbs[i] != nil {
			if i == 0 {
				if got := count(t, dbs[0]); got != n {
					t.Errorf("notes in the file: got %d, want %d", got, n)
				}
			}
			if err := dbs[i].Close(); err != nil {
				t.Errorf("Close: %v", err)
			}
		}
	}
	if _, err := os.Stat(path); err != nil {
		t.Errorf("file at the path as given: %v", err)
	}
}

func TestOpen_SettingsMakeCommitsDurable(t *testing.T) {
	t.Parallel()
	db := open(t, filepath.Join(t.TempDir(), "a.db"), notes)
	for pragma, want := range map[string]string{"journal_mode": "wal", "synchronous": "2"} {
		got, err := sqlitedb.Write(t.Context(), db, func(tx *sqlitedb.Tx) (string, error) {
			var v string
			err := tx.QueryRow("PRAGMA "+pragma, nil, &v)
			return v, err
		})
		if err != nil || got != want {
			t.Errorf("PRAGMA %s: got %q, %v, want %q", pragma, got, err, want)
		}
	}
}

func TestOpen_LaterStepsKeepTheData(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "a.db")
	old := open(t, path, notes)
	if err := note(t.Context(), old, "kept"); err != nil {
		t.Fatalf("write: %v", err)
	}
	next := notes
	next.Steps = append(append([]string{}, notes.Steps...), `ALTER TABLE notes ADD COLUMN author TEXT NOT NULL DEFAULT 'nobody'`)
	for range 2 {
		db := open(t, path, next)
		var author string
		if err := db.Reader().QueryRowContext(t.Context(), `SELECT author FROM notes WHERE text = 'kept'`).Scan(&author); err != nil || author != "nobody" {
			t.Errorf("author after the step: got %q, %v, want \"nobody\"", author, err)
		}
	}
}

func TestOpen_NewerSchemaIsRefused(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "a.db")
	next := sqlitedb.Schema{Name: notes.Name, Steps: append([]string{`CREATE TABLE later (id INTEGER)`}, notes.Steps...)}
	open(t, path, next)
	db, err := sqlitedb.Open(t.Context(), path, notes)
	if !errors.Is(err, sqlitedb.ErrNewerSchema) {
		t.Errorf("Open with an older program: got %v, want ErrNewerSchema", err)
	}
	if err == nil {
		_ = db.Close()
	}
}

func TestOpen_TwoSchemasShareAFile(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "a.db")
	open(t, path, notes)
	other := open(t, path, sqlitedb.Schema{Name: "other", Steps: []string{`CREATE TABLE other (id INTEGER)`, `CREATE TABLE more (id INTEGER)`}})
	if _, err := other.Reader().ExecContext(t.Context(), `SELECT id FROM more`); err != nil {
		t.Errorf("the second schema's table: %v", err)
	}
}

func TestOpen_RefusesWhatIsNotADatabase(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	text := filepath.Join(dir, "text.db")
	body := strings.Repeat("this is a letter, not a database\n", 100)
	if err := os.WriteFile(text, []byte(body), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, path := range map[string]string{
		"a text file": text, "a folder": dir, "a missing folder": filepath.Join(dir, "no", "a.db"), "an empty path": "",
	} {
		if db, err := sqlitedb.Open(t.Context(), path, notes); err == nil {
			_ = db.Close()
			t.Errorf("Open of %s: got no error, want one", name)
		}
	}
	if got, err := os.ReadFile(text); err != nil || string(got) != body {
		t.Errorf("the text file after it was refused: %d bytes, %v; want it untouched", len(got), err)
	}
}

func TestReader_RefusesWrites(t *testing.T) {
	t.Parallel()
	db := open(t, filepath.Join(t.TempDir(), "a.db"), notes)
	if _, err := db.Reader().ExecContext(t.Context(), `INSERT INTO notes (text) VALUES ('x')`); err == nil {
		t.Error("write through the read pool: got no error, want one")
	}
}

func TestWrite_OneThatErrsTakesNoOtherWithIt(t *testing.T) {
	t.Parallel()
	db := open(t, filepath.Join(t.TempDir(), "a.db"), notes)
	release := occupy(t, db)
	errMind := errors.New("changed my mind")
	const n = 20
	var wg sync.WaitGroup
	var mu sync.Mutex
	var wrong []string
	for i := range n {
		wg.Go(func() {
			_, err := sqlitedb.Write(t.Context(), db, func(tx *sqlitedb.Tx) (int, error) {
				if _, err := tx.Exec(`INSERT INTO notes (text) VALUES (?)`, fmt.Sprint(i)); err != nil {
					return 0, err
				}
				if i%5 == 0 {
					return 0, errMind
				}
				return 0, nil
			})
			if want := i%5 == 0; errors.Is(err, errMind) != want || (err != nil) != want {
				mu.Lock()
				wrong = append(wrong, fmt.Sprintf("write %d: got %v, want an error: %t", i, err, want))
				mu.Unlock()
			}
		})
	}
	release()
	wg.Wait()
	for _, w := range wrong {
		t.Error(w)
	}
	if got, want := count(t, db), n-n/5; got != want {
		t.Errorf("notes: got %d, want %d", got, want)
	}
}

func TestWrite_ContextEndsTheWaitForALockedFile(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "a.db")
	db, other := open(t, path, notes), open(t, path, notes)
	release := occupy(t, other)
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := note(ctx, db, "late"); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("write into a locked file: got %v, want the context's error", err)
	}
	release()
	if err := note(t.Context(), db, "in time"); err != nil {
		t.Errorf("write after the lock was released: %v", err)
	}
	if got := count(t, db); got != 1 {
		t.Errorf("notes: got %d, want 1: a write that was left must never run", got)
	}
}

func TestWrite_FileLockedForLongIsAnError(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("waits for the lock time-out of 5 s")
	}
	path := filepath.Join(t.TempDir(), "a.db")
	db, other := open(t, path, notes), open(t, path, notes)
	release := occupy(t, other)
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := note(t.Context(), db, "x"); err == nil || !strings.Contains(err.Error(), "locked") {
			t.Errorf("write into a file locked for long: got %v, want an error that says so", err)
		}
	})
	wg.Go(func() {
		if late, err := sqlitedb.Open(t.Context(), path, sqlitedb.Schema{Name: "other", Steps: notes.Steps}); err == nil {
			_ = late.Close()
			t.Error("Open of a file locked for long: got no error, want one")
		}
	})
	wg.Wait()
	release()
	if err := note(t.Context(), db, "y"); err != nil {
		t.Errorf("write after the lock was released: %v", err)
	}
}

func TestWrite_FullDiskIsAnErrorAndKeepsWhatWasWritten(t *testing.T) {
	t.Parallel()
	db := open(t, filepath.Join(t.TempDir(), "a.db"), notes)
	limit := func(pages int) {
		t.Helper()
		if _, err := sqlitedb.Write(t.Context(), db, func(tx *sqlitedb.Tx) (int, error) {
			var got int
			return 0, tx.QueryRow(fmt.Sprintf(`PRAGMA max_page_count = %d`, pages), nil, &got)
		}); err != nil {
			t.Fatalf("limit the file's size: %v", err)
		}
	}
	limit(16)
	written, long := 0, strings.Repeat("x", 2000)
	for ; written < 1000; written++ {
		if err := note(t.Context(), db, fmt.Sprint(written)+long); err != nil {
			break
		}
	}
	if written == 0 || written == 1000 {
		t.Fatalf("writes before the disk was full: got %d, want some and not all", written)
	}
	if got := count(t, db); got != written {
		t.Errorf("notes: got %d, want the %d that were reported as written", got, written)
	}
	limit(1 << 20)
	if err := note(t.Context(), db, "room again"); err != nil {
		t.Errorf("write when there is room again: %v", err)
	}
}

func TestClose_FinishesWhatWasAcceptedAndRefusesTheRest(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "a.db")
	db, err := sqlitedb.Open(t.Context(), path, notes)
	if err != nil {
		t.Fatalf("Open: %v", err)
	}
	var wg sync.WaitGroup
	errs := make([]error, 50)
	for i := range errs {
		wg.Go(func() { errs[i] = note(t.Context(), db, fmt.Sprint(i)) })
	}
	for range 2 {
		if err := db.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
	}
	wg.Wait()
	accepted := 0
	for i, err := range errs {
		switch {
		case err == nil:
			accepted++
		case !errors.Is(err, sqlitedb.ErrClosed):
			t.Errorf("write %d: got %v, want none or ErrClosed", i, err)
		}
	}
	if got := count(t, open(t, path, notes)); got != accepted {
		t.Errorf("notes in the file: got %d, want the %d accepted", got, accepted)
	}
	if err := note(t.Context(), db, "late"); !errors.Is(err, sqlitedb.ErrClosed) {
		t.Errorf("write after Close: got %v, want ErrClosed", err)
	}
}

func TestWrite_ReadsSeeWhatWasCommittedElsewhere(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "a.db")
	a, b := open(t, path, notes), open(t, path, notes)
	for i := range 50 {
		if err := note(t.Context(), a, fmt.Sprint(i)); err != nil {
			t.Fatalf("write: %v", err)
		}
		if got := count(t, b); got != i+1 {
			t.Fatalf("notes seen through the other opening: got %d, want %d", got, i+1)
		}
	}
	_, err := sqlitedb.Write(t.Context(), b, func(tx *sqlitedb.Tx) (int, error) {
		var id int
		return id, tx.QueryRow(`SELECT id FROM notes WHERE text = 'none'`, nil, &id)
	})
	if !errors.Is(err, sql.ErrNoRows) {
		t.Errorf("row that is not there: got %v, want sql.ErrNoRows", err)
	}
}
