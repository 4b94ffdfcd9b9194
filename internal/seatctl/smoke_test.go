package seatctl_test

import (
	"encoding/json"
	"testing"

	"holdfast/internal/smoke"
)

func TestSmoke_SaysWhatItSawAndWhatItLeftOut(t *testing.T) {
	t.Parallel()
	d := start(t, map[string]string{"PATH": t.TempDir()}) // Redis in the process
	got := run(t, "", "smoke", "--target", d.base+"/", "--code", "AB-100001")
	got.want(t, 0, "This asks "+d.base+" up to 30 questions; it changes nothing and takes no seat.",
		"CHECK", "certificate          left out  plain http, on this machine", "book: other address  ok        400 email_mismatch",
		"balancer             left out  the edge is not asked about", "21 ok, 0 failed, 7 left out")

	var report smoke.Report
	asJSON := run(t, "", "smoke", "--target", d.base, "--json")
	if err := json.Unmarshal([]byte(asJSON.stdout), &report); err != nil || asJSON.code != 0 || len(report.Checks) != 28 || report.Requests == 0 {
		t.Errorf("--json: got %d %s, %v, want 28 checks", asJSON.code, asJSON.stdout, err)
	}

	// A candidate who is not on the list is bad news, and so is nobody at the address.
	run(t, "", "smoke", "--target", d.base, "--code", "ZZ-999999").want(t, 1, "FAILED", "1 failed", "book: other address:\n  load the list")
	d.Kill()
	run(t, "", "smoke", "--target", d.base).want(t, 2, "nobody answers at")
	run(t, "", "smoke", "--target", d.base, "--edge").want(t, 2, "it has no edge")
	run(t, "", "smoke", "--target", "http://seats.example.org").want(t, 2, "plain http is for this machine only")
	run(t, "", "smoke", "--target", "https://127.0.0.1:1", "--no-edge", "--timeout", "0s").want(t, 2, "--timeout 0s: want more than 0")
	run(t, "", "smoke").want(t, 2, "--target")
}
