package main_test

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"holdfast/internal/testenv"
)

// milestones of the tour, in their order.
var milestones = []string{
	"sale tour-2026 fits: nothing was changed",
	"sale tour-2026 is in force, epoch …, 0 seats taken",
	"in force, in … s: …",
	"Booking of sale tour-2026 is open, by the ledger at …",
	`{"payment_url":…"level":"N1"}`,
	`{"error":"level_full",…}`,
	`{"payment_url":…"level":"N2"}`,
	`{"state":"paid",…}`,
	"sale tour-2026 OPEN, SOLD OUT …",
	"none admitted yes, 3 seats at …",
	"every rule that was seen holds",
	"… done close tour-2026 …",
}

func TestTour_LoadsOpensWatchesClosesAndAudits(t *testing.T) {
	t.Parallel()
	need(t, "bash", "curl")
	testenv.NeedServer(t)
	temporary := t.TempDir()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, filepath.Join(repository, "scripts/tour.sh"))
	cmd.Env = append(os.Environ(), "TMPDIR="+temporary)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("the tour: got %v, want exit status 0; it said:\n%s", err, out)
	}
	passed(t, "the tour", string(out))
	if left, err := os.ReadDir(temporary); err != nil || len(left) > 0 {
		t.Errorf("what the tour left: got %v, %v, want nothing", left, err)
	}

	recorded := page(t, "docs/tour.txt")
	passed(t, "docs/tour.txt", recorded)
	if diff := cmp.Diff(typed(string(out)), typed(recorded)); diff != "" {
		t.Errorf("docs/tour.txt is of another tour (-tour +recorded):\n%s", diff)
	}
}

// passed wants every milestone, each after the one before.
func passed(t *testing.T, what, said string) {
	t.Helper()
	lines := strings.Split(said, "\n")
	for _, want := range milestones {
		for len(lines) > 0 && !says(lines[0], want) {
			lines = lines[1:]
		}
		if len(lines) == 0 {
			t.Fatalf("%s does not say %q in its turn; it said:\n%s", what, want, said)
		}
		lines = lines[1:]
	}
}

// typed are the commands and the words of a tour, without what they answer.
func typed(said string) (list []string) {
	for line := range strings.SplitSeq(said, "\n") {
		if strings.HasPrefix(line, "$ ") || strings.HasPrefix(line, "# ") {
			list = append(list, line)
		}
	}
	return list
}
