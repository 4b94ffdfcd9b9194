package rehearse_test

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"holdfast/internal/app"
	"holdfast/internal/rehearse"
	"holdfast/internal/seatctl"
	"holdfast/internal/testenv"
)

// How busy the machine is decides these, and no test measures it.
var ofTheMachine = map[string]bool{"sold": true, "rate": true, "rejections": true, "queue": true}

// The whole drill, a twentieth of the launch, by the operator's own commands.
func TestRun_SellsAndEveryRuleOfTheContractHolds(t *testing.T) {
	if testing.Short() {
		t.Skip("starts processes and takes a minute")
	}
	t.Parallel()
	testenv.NeedServer(t)
	dir := t.TempDir()
	var said strings.Builder
	var profile bytes.Buffer
	r, err := rehearse.Run(t.Context(), rehearse.Options{
		Seed: 7, Scale: 0.05, Dir: dir, Log: &said, Profile: &profile,
		Ctl: func(ctx context.Context, args []string, getenv func(string) string, stdin io.Reader, stdout, stderr io.Writer) int {
			return seatctl.Run(ctx, app.Local(), args, getenv, stdin, stdout, stderr)
		},
	})
	if err != nil {
		t.Fatalf("rehearse: %v\n%s", err, said.String())
	}
	if r.Cap != 1035 || r.Sold == 0 || r.HoldsCreated <= r.Sold || r.Answers["202"] < r.HoldsCreated {
		t.Errorf("got %d of %d sold over %d holds and %d admissions told, want a sale with lapses", r.Sold, r.Cap, r.HoldsCreated, r.Answers["202"])
	}
	// Profiles are gzip files (github.com/google/pprof/proto).
	if !bytes.HasPrefix(profile.Bytes(), []byte{0x1f, 0x8b}) {
		t.Errorf("profile: got %d bytes, want one", profile.Len())
	}
	if r.Oversold != 0 || r.DoubleBooked != 0 || r.UnaccountedPayments != 0 || r.Leaked != 0 || r.ServerErrors != 0 {
		t.Errorf("got %d oversold, %d double booked, %d unaccounted, %d leaked, %d server errors, want none",
			r.Oversold, r.DoubleBooked, r.UnaccountedPayments, r.Leaked, r.ServerErrors)
	}
	seen := map[string]bool{}
	for _, rule := range r.Rules {
		seen[rule.Name] = true
		switch {
		case rule.Holds:
		case ofTheMachine[rule.Name]:
			t.Logf("on this machine now: %s: %s", rule.Name, rule.Figure)
		default:
			t.Errorf("%s: got %s, want it to hold: %s", rule.Name, rule.Figure, rule.Text)
		}
	}
	for _, name := range []string{"caps", "one-live-booking", "money", "paid-records", "told", "oversold", "leaked", "sold", "rate", "rejections"} {
		if !seen[name] {
			t.Errorf("rules: got none called %q", name)
		}
	}
	sampled := 0
	for _, s := range r.Seconds {
		if s.Sample != nil {
			sampled++
		}
	}
	if sampled < len(r.Seconds)/4 || len(r.CPU) < 5 {
		t.Errorf("samples: got %d of %d seconds and processor time of %d processes, want a run that can be looked at", sampled, len(r.Seconds), len(r.CPU))
	}
	page, err := os.Create(filepath.Join(dir, "report.html"))
	if err != nil {
		t.Fatal(err)
	}
	defer page.Close()
	if err := rehearse.Page(page, r); err != nil {
		t.Errorf("page: %v", err)
	}
	if _, err := json.Marshal(r); err != nil {
		t.Errorf("JSON: %v", err)
	}
	if t.Failed() {
		t.Log(said.String())
	}
}
