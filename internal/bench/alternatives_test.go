package bench_test

import (
	"encoding/json"
	"errors"
	"os"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"

	"holdfast/internal/bench"
	"holdfast/internal/testenv"
)

func TestAlternatives_EachSellsExactlyItsCap(t *testing.T) {
	t.Parallel()
	testenv.NeedServer(t)
	var progress strings.Builder
	got, err := bench.QuickAlternatives(t.Context(), &progress)
	if err != nil {
		t.Fatalf("alternatives: got %v, want nil; progress:\n%s", err, progress.String())
	}
	want := []string{bench.OurScript, bench.RedisWatch, bench.RedisLock, bench.RedisIncrDecr}
	if got.PostgreSQLMissing == "" {
		want = append(want, bench.SQLForUpdate, bench.SQLConditionalUpdate)
	}
	var names []string
	for _, a := range got.Alternatives {
		names = append(names, a.Name)
		if a.Sold != 60 || a.Cap != 60 {
			t.Errorf("%s: got %d sold of %d, want 60 of 60", a.Name, a.Sold, a.Cap)
		}
		if a.AdmissionsPerSecond <= 0 || a.RejectionsPerSecond <= 0 || a.P99 <= 0 || a.RejectionP99 <= 0 || a.CounterReads == 0 {
			t.Errorf("%s: got %+v, want every figure measured", a.Name, a)
		}
		if a.OverCapSightings != 0 && a.Name != bench.RedisIncrDecr {
			t.Errorf("%s: got %d sightings of more seats than there are, want 0", a.Name, a.OverCapSightings)
		}
	}
	if diff := cmp.Diff(want, names); diff != "" {
		t.Errorf("alternatives (-want +got):\n%s", diff)
	}
	if n := strings.Count(progress.String(), "round 1 of 1"); n != len(want) {
		t.Errorf("progress: got %d lines of rounds, want %d:\n%s", n, len(want), progress.String())
	}
	raw, err := json.Marshal(got)
	for _, field := range []string{`"ours_over_best_sql_rejections"`, `"rejections_per_second"`, `"over_cap_sightings"`} {
		if err != nil || !strings.Contains(string(raw), field) {
			t.Errorf("JSON: got %s, %v, want the field %s in it", raw, err, field)
		}
	}
	needPostgres(t, got.PostgreSQLMissing)
	if got.OursOverBestSQLRejections <= 0 || got.OursOverBestSQLAdmissions <= 0 {
		t.Errorf("ratios over SQL: got %v and %v, want both measured", got.OursOverBestSQLRejections, got.OursOverBestSQLAdmissions)
	}
	if !strings.Contains(got.PostgreSQL, "fsync on") {
		t.Errorf("postgres: got %q, want it to say that commits are durable", got.PostgreSQL)
	}
}

// needPostgres skips where the server is missing; continuous integration must
// have one.
func needPostgres(t *testing.T, missing string) {
	t.Helper()
	if missing == "" {
		return
	}
	if os.Getenv("CI") == "true" {
		t.Fatalf("%s; with CI=true this test must run", missing)
	}
	t.Skipf("NOT TESTED AGAINST POSTGRESQL: %s", missing)
}

func TestAlternatives_RoundFindsWhatWasSoldWrongly(t *testing.T) {
	t.Parallel()
	const seats = 20
	// store sells the first limit requests and shows off more than it sold.
	store := func(limit, extra, lost int64) error {
		var asked, sold atomic.Int64
		return bench.SellAlternative(t.Context(), func(string) bool {
			if asked.Add(1) > limit {
				return false
			}
			sold.Add(1)
			return true
		}, func() int { return int(sold.Load() + extra) }, func() int { return int(sold.Load() - lost) }, seats)
	}
	if err := store(seats, 0, 0); err != nil {
		t.Errorf("a right store: got %v, want nil", err)
	}
	for name, err := range map[string]error{
		"one seat too many":            store(seats+1, 0, 0),
		"one seat too few":             store(seats-1, 0, 0),
		"a counter that is too high":   store(seats, 1, 0),
		"a record that is lost":        store(seats, 0, 1),
		"a level that never gets full": store(1<<40, 0, 0),
	} {
		if err == nil {
			t.Errorf("%s: got nil, want an error", name)
		}
	}
}

func TestFindPostgres_SaysWhatToInstall(t *testing.T) {
	t.Setenv("PATH", "")
	_, err := bench.FindPostgres(t.TempDir() + "/*/bin")
	if !errors.Is(err, bench.PostgresNotInstalled()) || !strings.Contains(err.Error(), "apt-get install postgresql") {
		t.Errorf("no server anywhere: got %v, want an error that says what to install", err)
	}
}

func TestFindPostgres_TakesTheNewest(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("PATH", "")
	for _, name := range []string{"9/bin/postgres", "9/bin/initdb", "15/bin/postgres", "15/bin/initdb", "17/bin/postgres"} {
		path := dir + "/" + name
		if err := os.MkdirAll(path[:strings.LastIndexByte(path, '/')], 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte("#!/bin/sh\n"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	got, err := bench.FindPostgres(dir + "/*/bin")
	if want := dir + "/15/bin"; err != nil || got != want { // 17 is a client's folder, without initdb
		t.Errorf("postgres: got %q, %v, want %q", got, err, want)
	}
}
