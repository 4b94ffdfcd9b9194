package sqlite_test

import (
	"context"
	"database/sql"
	"errors"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"holdfast/internal/booking"
	"holdfast/internal/sqlitedb"
	"holdfast/internal/store/sqlite"
	"holdfast/internal/store/storetest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// store is a Store whose file the test can spoil.
type store struct {
	*sqlite.Store
	path string
}

func (s store) Corrupt(t testing.TB, candidateHash, attempt string) {
	t.Helper()
	s.spoil(t, `UPDATE records SET body = '{"v":1,' WHERE candidate_hash = ? AND attempt = ?`, candidateHash, attempt)
}

func (s store) spoil(t testing.TB, update string, args ...any) {
	t.Helper()
	db, err := sql.Open("sqlite", s.path)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = db.Close() }()
	res, err := db.ExecContext(t.Context(), update, args...)
	if err != nil {
		t.Fatalf("spoil a row: %v", err)
	}
	if n, _ := res.RowsAffected(); n != 1 {
		t.Fatalf("spoil a row: got %d rows, want 1", n)
	}
}

func open(t *testing.T, path string) store {
	t.Helper()
	s, err := sqlite.Open(t.Context(), path)
	if err != nil {
		t.Fatalf("Open: %v", err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
	})
	return store{Store: s, path: path}
}

func TestStore_KeepsTheContract(t *testing.T) {
	t.Parallel()
	storetest.RunDriver(t, func(t *testing.T) storetest.Driver {
		return open(t, filepath.Join(t.TempDir(), "records.db"))
	})
}

func TestStore_TwoProcessesRaceToOneEnd(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "records.db")
	storetest.Race(t, open(t, path), open(t, path), 200)
}

func TestStore_SurvivesAReopening(t *testing.T) {
	t.Parallel()
	path, rec := filepath.Join(t.TempDir(), "records.db"), storetest.Held()
	s, err := sqlite.Open(t.Context(), path)
	if err != nil {
		t.Fatalf("Open: %v", err)
	}
	if _, _, err := s.PutHeld(t.Context(), rec); err != nil {
		t.Fatalf("PutHeld: %v", err)
	}
	if err := s.Close(); err != nil {
		t.Fatalf("Close: %v", err)
	}
	if _, _, err := s.PutHeld(t.Context(), storetest.Held()); !errors.Is(err, sqlitedb.ErrClosed) {
		t.Errorf("PutHeld after Close: got %v, want ErrClosed", err)
	}
	if _, err := open(t, path).Record(t.Context(), rec.CandidateHash, rec.Attempt); err != nil {
		t.Errorf("record after a reopening: %v", err)
	}
}

func TestStore_LockedFileIsAnErrorAndChangesNothing(t *testing.T) {
	t.Parallel()
	path, rec := filepath.Join(t.TempDir(), "records.db"), storetest.Held()
	s := open(t, path)
	db, err := sql.Open("sqlite", path)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = db.Close() }()
	db.SetMaxOpenConns(1)
	if _, err := db.ExecContext(t.Context(), `BEGIN IMMEDIATE`); err != nil {
		t.Fatalf("take the lock: %v", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, _, err := s.PutHeld(ctx, rec); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("PutHeld into a locked file: got %v, want the context's error", err)
	}
	ctx, cancel = context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := s.Ping(ctx); err == nil {
		t.Error("Ping of a locked file: got no error, want one: it takes no writes")
	}
	if empty, err := s.Empty(t.Context()); err != nil || !empty {
		t.Errorf("Empty while the file is locked: got %t, %v, want true: reads need no lock", empty, err)
	}
	if _, err := db.ExecContext(t.Context(), `ROLLBACK`); err != nil {
		t.Fatalf("release the lock: %v", err)
	}
	if _, created, err := s.PutHeld(t.Context(), rec); err != nil || !created {
		t.Errorf("PutHeld after the lock was released: got created=%t, %v, want true", created, err)
	}
}

func TestStore_ErrorsDoNotGiveTheCandidateAway(t *testing.T) {
	t.Parallel()
	s, rec := open(t, filepath.Join(t.TempDir(), "records.db")), storetest.Held()
	err := s.Release(t.Context(), rec, "lapsed", rec.Deadline)
	if !errors.Is(err, booking.ErrNotFound) || !strings.Contains(err.Error(), rec.Attempt) {
		t.Errorf("Release without a record: got %v, want ErrNotFound that names the attempt", err)
	}
	if strings.Contains(err.Error(), rec.CandidateHash) || strings.Contains(err.Error(), rec.Code) {
		t.Errorf("error %q holds the candidate's hash or code", err)
	}
}
