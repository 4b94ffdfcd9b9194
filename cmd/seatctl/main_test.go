// Package main_test runs what the operator's pages say, as they say it, with the real
// programs: the drill of docs/launch-day.md and the tour of scripts/tour.sh, each on a
// local profile of its own. What a command promises is proved in internal/seatctl; here
// a page that no longer fits its program is found before somebody needs it.
//
// Fail mode: without bash, curl or redis-server the tests are skipped, or fail with
// CI=true. Clock: real time, waited for by asking.
package main_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const repository = "../.."

// build makes the programs into a folder of the test's.
func build(t *testing.T, names ...string) (dir string) {
	t.Helper()
	dir = t.TempDir()
	args := []string{"build", "-ldflags=-w", "-o", dir + "/"}
	for _, name := range names {
		args = append(args, "holdfast/cmd/"+name)
	}
	cmd := exec.CommandContext(t.Context(), "go", args...)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("go %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return dir
}

// need skips the test where a program that the pages use is not installed.
func need(t *testing.T, programs ...string) {
	t.Helper()
	if testing.Short() {
		t.Skip("THE OPERATOR'S PAGES ARE NOT RUN: -short")
	}
	for _, name := range programs {
		if _, err := exec.LookPath(name); err == nil {
			continue
		}
		if os.Getenv("CI") == "true" {
			t.Fatalf("%s is not installed, and with CI=true this test must run", name)
		}
		t.Skipf("THE OPERATOR'S PAGES ARE NOT RUN: %s is not installed", name)
	}
}

// page reads a file of the repository.
func page(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(repository, path))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}
