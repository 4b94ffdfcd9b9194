package sqlite_test

import (
	"path/filepath"
	"testing"

	"go.uber.org/goleak"

	"holdfast/internal/objstore/objstoretest"
	"holdfast/internal/objstore/sqlite"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func open(t *testing.T, path string) *sqlite.Store {
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
	return s
}

func TestStore_KeepsTheContract(t *testing.T) {
	t.Parallel()
	objstoretest.Run(t, func(t *testing.T) (a, b objstoretest.Store) {
		path := filepath.Join(t.TempDir(), "objects.db")
		return open(t, path), open(t, path)
	})
}

func TestStore_SurvivesAReopening(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "objects.db")
	s, err := sqlite.Open(t.Context(), path)
	if err != nil {
		t.Fatalf("Open: %v", err)
	}
	etag, err := s.Put(t.Context(), "status.json", []byte("{}"), "application/json", "")
	if err != nil {
		t.Fatalf("Put: %v", err)
	}
	if err := s.Close(); err != nil {
		t.Fatalf("Close: %v", err)
	}
	body, got, err := open(t, path).Get(t.Context(), "status.json")
	if err != nil || string(body) != "{}" || got != etag {
		t.Errorf("Get after a reopening: got %q, %q, %v, want the object under %q", body, got, err, etag)
	}
}
