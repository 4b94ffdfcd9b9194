package sqlite_test

import (
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"holdfast/internal/booking"
	"holdfast/internal/sqlitedb"
	"holdfast/internal/store/sqlite"
	"holdfast/internal/store/storetest"
)

func (s store) CorruptLog(t testing.TB, id string) {
	t.Helper()
	s.spoil(t, `UPDATE operator_log SET body = json_set(body, '$.v', 2) WHERE id = ?`, id)
}

func TestStore_KeepsTheOperatorsLog(t *testing.T) {
	t.Parallel()
	storetest.RunLog(t, func(t *testing.T) storetest.LogDriver {
		return open(t, filepath.Join(t.TempDir(), "records.db"))
	})
}

// The log is there in a file from before it, and after its process is gone.
func TestStore_LogOutlivesItsProcess(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "records.db")
	old, err := sqlitedb.Open(t.Context(), path, sqlite.SchemaBefore(3))
	if err != nil {
		t.Fatalf("open as before: %v", err)
	}
	if err := old.Close(); err != nil {
		t.Fatalf("Close: %v", err)
	}
	e := storetest.LogBegun(time.Date(2026, 12, 1, 4, 0, 0, 0, time.UTC))
	s, err := sqlite.Open(t.Context(), path)
	if err != nil {
		t.Fatalf("Open: %v", err)
	}
	if err := s.AppendLog(t.Context(), e); err != nil {
		t.Errorf("AppendLog: %v", err)
	}
	if err := s.Close(); err != nil {
		t.Fatalf("Close: %v", err)
	}
	var got []booking.LogEntry
	for e, err := range open(t, path).Log(t.Context(), time.Time{}) {
		if err != nil {
			t.Errorf("Log: %v", err)
		}
		got = append(got, e)
	}
	if diff := cmp.Diff([]booking.LogEntry{e}, got); diff != "" {
		t.Errorf("log after a reopening (-want +got):\n%s", diff)
	}
}
