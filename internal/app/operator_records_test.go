package app_test

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"holdfast/internal/app"
)

func TestOutbox_PurgesOldMailsAndNothingElse(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	now := time.Now()
	for name, age := range map[string]time.Duration{
		"old.eml": time.Hour, ".mail-1.tmp": time.Hour, "young.eml": 0, "notes.txt": time.Hour,
	} {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte("x"), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chtimes(path, now, now.Add(-age)); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Mkdir(filepath.Join(dir, "folder.eml"), 0o700); err != nil {
		t.Fatal(err)
	}
	before := now.Add(-time.Minute)
	if n, err := app.Outbox(dir).Count(before); err != nil || n != 2 {
		t.Errorf("count: got %d, %v, want 2", n, err)
	}
	for _, want := range []int{2, 0} {
		if n, err := app.Outbox(dir).Purge(before); err != nil || n != want {
			t.Errorf("purge: got %d, %v, want %d", n, err, want)
		}
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var left []string
	for _, e := range entries {
		left = append(left, e.Name())
	}
	if diff := cmp.Diff([]string{"folder.eml", "notes.txt", "young.eml"}, left); diff != "" {
		t.Errorf("what is left (-want +got):\n%s", diff)
	}
	if n, err := app.Outbox(filepath.Join(dir, "none")).Purge(before); err != nil || n != 0 {
		t.Errorf("purge of no folder: got %d, %v, want 0", n, err)
	}
}
