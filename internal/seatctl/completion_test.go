package seatctl_test

import (
	"encoding/json"
	"os/exec"
	"strings"
	"testing"
)

func TestCompletion_PrintsWhatTheShellCanRead(t *testing.T) {
	t.Parallel()
	for _, shell := range []string{"bash", "zsh", "fish"} {
		got := run(t, "", "completion", shell)
		got.want(t, 0, "complete", "seatctl")
		// Where another shell is not installed, bash knows zsh's few lines, too.
		with := shell
		if _, err := exec.LookPath(shell); err != nil {
			if shell == "fish" {
				t.Log("fish is not installed: its code was printed, and not read by it")
				continue
			}
			with = "bash"
		}
		check := exec.CommandContext(t.Context(), with, "-n")
		check.Stdin = strings.NewReader(got.stdout)
		if out, err := check.CombinedOutput(); err != nil {
			t.Errorf("%s -n of the code for %s: got %v %s, want nil:\n%s", with, shell, err, out, got.stdout)
		}
		var doc struct{ Shell, Code string }
		asJSON := run(t, "", "completion", shell, "--json")
		if err := json.Unmarshal([]byte(asJSON.stdout), &doc); err != nil || doc.Shell != shell || doc.Code != got.stdout {
			t.Errorf("--json: got %s, %v, want the same code", asJSON.stdout, err)
		}
	}
	run(t, "", "completion", "csh").want(t, 2, "must be one of")
}

// The shell has the program itself complete a line, which it hands over in a variable.
func TestCompletion_CompletesCommandsAndFlags(t *testing.T) {
	for line, want := range map[string]string{
		"seatctl op":             "open\n",
		"seatctl open --a":       "--at\n",
		"seatctl bookings resol": "resolve\n",
		"seatctl completion z":   "zsh\n",
	} {
		t.Setenv("COMP_LINE", line)
		if got := run(t, ""); got.code != 0 || got.stdout != want {
			t.Errorf("%q: got %d %q, want %q", line, got.code, got.stdout, want)
		}
	}
}
