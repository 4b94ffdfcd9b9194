package seatctl_test

import (
	"os"
	"path/filepath"
	"testing"
)

func TestRehearse_RefusesWhatGoesNotTogether(t *testing.T) {
	t.Parallel()
	out := filepath.Join(t.TempDir(), "report.html")
	const there = "http://127.0.0.1:1"
	for name, c := range map[string]struct {
		args []string
		want string
	}{
		"FaultsOfOthers":  {[]string{"--target", there, "--faults", "api"}, "--faults: a rehearsal breaks nothing that it has not started"},
		"ProfileOfOthers": {[]string{"--target", there, "--profile", out + ".pprof"}, "--profile: a rehearsal looks into no process that it has not started"},
		"DataAlone":       {[]string{"--data", t.TempDir()}, "--data: a rehearsal starts a deployment of its own: give --target URL too"},
		"DataOfNobody":    {[]string{"--target", there, "--data", t.TempDir()}, "is cmd/local running on this folder"},
		"NoSettings":      {[]string{"--target", there}, "HOLDFAST_GATEWAY_URL: required"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			run(t, "", append([]string{"rehearse", "--out", out}, c.args...)...).want(t, 2, c.want)
		})
	}
}

// A deployment with a real sale is told from one to rehearse on, by the settings that
// --data names.
func TestRehearse_LeavesAnotherSaleAlone(t *testing.T) {
	t.Parallel()
	d := start(t, nil)
	d.book(t, 100001)
	shown := func() string { return run(t, "", "sale", "show", "--data", d.data).stdout }
	before := shown()
	out := filepath.Join(t.TempDir(), "report.html")
	if err := os.WriteFile(out, []byte("of the rehearsal before"), 0o600); err != nil {
		t.Fatal(err)
	}
	run(t, "", "rehearse", "--target", d.base+"/", "--data", d.data, "--scale", "0.01", "--out", out).
		want(t, 2, d.base, "sale demo-2026 is in force", "1 of them taken", "nothing was changed there")
	if after := shown(); after != before {
		t.Errorf("the sale: got %q, want it as before, %q", after, before)
	}
	if text, err := os.ReadFile(out); err != nil || string(text) != "of the rehearsal before" {
		t.Errorf("the earlier report: got %q, %v, want it as it was", text, err)
	}
}
