package seatctl_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"holdfast/internal/booking/bookingtest"
)

// demo is bookingtest.Sale as a file.
const demo = `name: demo
currency: BDT
cap: 5
levels:
  - {id: N1, name: "N1 Advanced", cap: 3, fee: "1500.00"}
  - {id: N2, name: "N2 Upper", cap: 3, fee: "1200.00"}
`

func (s *still) apply(t *testing.T, text, stdin string, args ...string) result {
	t.Helper()
	path := filepath.Join(t.TempDir(), "sale.yaml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return run(t, stdin, append([]string{"sale", "apply", path, "--data", s.data}, args...)...)
}

// config reads the sale past the scripts.
func (s *still) config(t *testing.T) map[string]string {
	t.Helper()
	m, err := s.rdb.HGetAll(t.Context(), "{sale}:sale:config").Result()
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func TestSaleApply_ShowsTheDifferenceAsksAndApplies(t *testing.T) {
	t.Parallel()
	s := stopped(t, time.Minute)
	s.two(t)
	s.serve(t, 0)
	s.apply(t, demo, "", "--dry-run").want(t, 0, "2 seats taken", "it is the sale in force", "sale demo fits: nothing was changed")
	more := strings.NewReplacer("cap: 5", "cap: 9", `fee: "1200.00"`, `fee: "1300.00"`, "N1 Advanced\", cap: 3", "N1 Top\", cap: 4").Replace(demo) +
		"  - {id: N3, cap: 2, fee: \"900.00\"}\n"
	for stdin, code := range map[string]int{"n\n": 1, "": 1} {
		s.apply(t, more, stdin).want(t, code, "cap    5 -> 9", "changed  3 -> 4", "1200.00 -> 1300.00", "N1 Advanced -> N1 Top", "N3     new      - -> 2", "[y/N]", "not agreed: nothing was changed")
	}
	if c := s.config(t); c["cap"] != "5" || c["cap:N1"] != "3" || c["cap:N3"] != "" {
		t.Fatalf("after a dry run and two noes: got %v, want the sale as it was", c)
	}
	s.apply(t, more, "y\n").want(t, 0, "sale demo is in force, epoch "+bookingtest.Epoch+", 2 seats taken")
	if c := s.config(t); c["cap"] != "9" || c["cap:N1"] != "4" || c["fee:N2"] != "130000" || c["cap:N3"] != "2" {
		t.Errorf("after a yes: got %v, want the file's sale", c)
	}
	got := s.apply(t, more, "", "--yes", "--json")
	var out struct {
		Applied, First bool
		Admitted       int
		Terms          []any
		Levels         []struct {
			ID, Change string
			Admitted   int
		}
	}
	if err := json.Unmarshal([]byte(got.stdout), &out); err != nil || !out.Applied || out.First || out.Admitted != 2 || len(out.Terms) != 0 ||
		len(out.Levels) != 3 || out.Levels[0].Change != "same" || out.Levels[0].Admitted != 2 {
		t.Errorf("again, --json: got %+v, %v, want it applied and nothing changed", got, err)
	}
	run(t, "", "log", "--data", s.data).want(t, 0, "sale apply", "demo")
	run(t, "", "sale", "show", "--data", s.data).want(t, 0, "sale demo, epoch "+bookingtest.Epoch, "cap 9, taken 2", "N1     4    2      1500.00 BDT  N1 Top", "N3     2    0")
	run(t, "", "sale", "show", "--data", s.data, "--json").want(t, 0, `"admitted": 2`)
}

// What would sell a seat twice, or take one away, is refused with the figures, and
// nothing is asked.
func TestSaleApply_RefusesWhatTheSeatsContradict(t *testing.T) {
	t.Parallel()
	s := stopped(t, time.Minute)
	s.two(t)
	s.serve(t, 0)
	before := s.config(t)
	for name, c := range map[string]struct {
		file string
		want []string
	}{
		"LevelCap": {strings.Replace(demo, `N1 Advanced", cap: 3`, `N1 Advanced", cap: 1`, 1), []string{"level N1: cap 1 is below the 2 seats that are taken"}},
		"TotalCap": {strings.Replace(demo, "cap: 5", "cap: 1", 1), []string{"cap 1 is below the 2 seats that are taken"}},
		"Removal":  {strings.Replace(demo, "id: N1", "id: N9", 1), []string{"level N1 would go and has 2 seats taken"}},
	} {
		for _, mode := range []string{"--dry-run", "--yes"} {
			got := s.apply(t, c.file, "", mode)
			got.want(t, 1, append(c.want, "REFUSED", "nothing was changed")...)
			if strings.Contains(got.stderr, "[y/N]") {
				t.Errorf("%s %s: it asked", name, mode)
			}
		}
	}
	after := s.config(t)
	if after["cap"] != before["cap"] || after["cap:N1"] != before["cap:N1"] {
		t.Errorf("the sale: got %v, want %v", after, before)
	}
	s.apply(t, "name: demo\ncap: many\n", "", "--yes").want(t, 1, "line 2", "nothing was changed")
	run(t, "", "sale", "apply", "none.yaml", "--data", s.data).want(t, 2, "no such file")
}

// An empty Redis gets its epoch by a first sale only where nothing was ever sold.
func TestSaleApply_TheFirstSaleWritesTheEpoch(t *testing.T) {
	t.Parallel()
	s := stopped(t, time.Minute)
	if err := s.rdb.FlushAll(t.Context()).Err(); err != nil {
		t.Fatal(err)
	}
	s.serve(t, 0)
	epoch := func() string { return s.rdb.Get(t.Context(), "{sale}:adm:epoch").Val() }
	run(t, "", "sale", "show", "--data", s.data).want(t, 1, "redis is empty")
	s.apply(t, demo, "", "--dry-run").want(t, 0, "would be the first", "sale demo fits")
	if got := epoch(); got != "" {
		t.Fatalf("epoch after a dry run: got %q, want none", got)
	}
	s.apply(t, demo, "y\n").want(t, 0, "sale demo is in force, epoch 1", "0 seats taken")
	first := epoch()
	if len(first) != 12 {
		t.Fatalf("epoch: got %q, want 12 characters", first)
	}
	s.apply(t, demo, "", "--yes").want(t, 0, "epoch "+first)
	if got := epoch(); got != first {
		t.Errorf("epoch after another: got %s, want %s", got, first)
	}
}

func TestSaleApply_ALostRedisIsNoFirstSale(t *testing.T) {
	t.Parallel()
	s := stopped(t, time.Minute)
	s.two(t)
	if err := s.rdb.FlushAll(t.Context()).Err(); err != nil {
		t.Fatal(err)
	}
	s.serve(t, 0)
	for _, mode := range []string{"--dry-run", "--yes"} {
		s.apply(t, demo, "", mode).want(t, 1, "restore it with seatctl rebuild", "nothing was changed")
	}
	if n := s.rdb.Exists(t.Context(), "{sale}:adm:epoch", "{sale}:sale:config").Val(); n != 0 {
		t.Errorf("redis: got %d of epoch and sale, want it as empty as it was", n)
	}
}
