package seatctl_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// The file of rejects is a new one: nothing is written over, the candidates file the
// least, and nothing is read before that is known.
func TestCandidates_RejectsAreWrittenIntoANewFileOnly(t *testing.T) {
	t.Parallel()
	d := start(t, map[string]string{"PATH": t.TempDir()})
	d.set(t, "booking:open", "0")
	const text = "code,email\nx,y@example.org\n"
	path := candidatesFile(t, text)
	link := filepath.Join(t.TempDir(), "link.csv")
	if err := os.Symlink(filepath.Join(t.TempDir(), "none"), link); err != nil {
		t.Fatal(err)
	}
	for _, there := range []string{path, candidatesFile(t, text), link} {
		for _, flags := range [][]string{{"--dry-run"}, {"--yes"}, {"--dry-run", "--json"}} {
			got := d.candidates(t, "", append([]string{"load", path, "--rejects", there}, flags...)...)
			got.want(t, 2, "--rejects", "file already exists", "name a new file")
			if strings.Contains(got.stderr, "takes the place") {
				t.Errorf("%s: got %s, want it refused before anything is read", there, got.stderr)
			}
		}
		if got, err := os.ReadFile(there); there != link && (err != nil || string(got) != text) {
			t.Fatalf("%s afterwards: got %q, %v, want it as it was", there, got, err)
		}
	}

	rejects := filepath.Join(t.TempDir(), "rejects.csv")
	many := candidatesFile(t, "code,email\n"+strings.Repeat("x,y@example.org\n", 10_001))
	d.candidates(t, "", "load", many, "--dry-run", "--rejects", rejects).want(t, 1, "the first 10,000 of 10,001 wrong lines are in "+rejects)
	kept, err := os.ReadFile(rejects)
	if got := strings.Count(string(kept), "\n"); err != nil || got != 10_001 {
		t.Errorf("rejects: got %d lines, %v, want a header and 10,000", got, err)
	}
}
