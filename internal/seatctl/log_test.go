package seatctl_test

import (
	"database/sql"
	"encoding/json"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"holdfast/internal/booking"
	store "holdfast/internal/store/sqlite"
)

func TestLog_ShowsEachChangeAndHowItsSubjectStood(t *testing.T) {
	t.Parallel()
	s := stopped(t, time.Minute)
	s.serve(t, 0)
	list := func(args ...string) result {
		return run(t, "", append([]string{"log", "--data", s.data}, args...)...)
	}
	list().want(t, 0, "no change is logged")
	list("--json").want(t, 0, `"changes": []`)

	st, err := store.Open(t.Context(), filepath.Join(s.data, "store.db"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = st.Close() })
	add := func(e booking.LogEntry) booking.LogEntry {
		t.Helper()
		if err := st.AppendLog(t.Context(), e); err != nil {
			t.Fatal(err)
		}
		return e
	}
	begun := func(ago time.Duration, what, subject string) booking.LogEntry {
		t.Helper()
		at := time.Now().Add(-ago).UTC()
		return add(booking.LogEntry{
			Version: booking.LogEntryVersion, ID: booking.NewLogID(at), At: at, Who: "duty (uid 1000)", From: "host",
			What: what, Subject: subject, Reason: "drill\n\x1b[2J", Before: json.RawMessage(`{"n":1}`), Outcome: booking.LogBegun,
		})
	}
	old := begun(48*time.Hour, "rebuild", "demo")
	add(old.End(old.At.Add(time.Second), booking.LogRefused, nil))
	cut := begun(3*time.Hour, "holds extend", "run")
	last := begun(time.Minute, "refunds retry", "CK1")
	end := add(last.End(last.At.Add(time.Second), booking.LogDone, json.RawMessage(`{"n":2}`)))

	got := list()
	got.want(t, 0, "BEGAN", "duty (uid 1000)", "drill??[2J")
	lines := strings.Split(strings.TrimSpace(got.stdout), "\n")
	for i, want := range [][]string{
		{"BEGAN", "OUTCOME", "WHO", "REASON"},
		{old.At.Format(time.RFC3339), "refused", "rebuild", "demo", "host"},
		{"  before  {\"n\":1}"},
		{"  after   -"},
		{cut.At.Format(time.RFC3339), "NO END", "holds extend", "run"},
		{"  before  {\"n\":1}"},
		{"  after   -"},
		{last.At.Format(time.RFC3339), "done", "refunds retry", "CK1"},
		{"  before  {\"n\":1}"},
		{"  after   {\"n\":2}"},
	} {
		for _, text := range want {
			if len(lines) != 10 || !strings.Contains(lines[i], text) {
				t.Fatalf("line %d: it does not say %q:\n%s", i, text, got.stdout)
			}
		}
	}
	list("--since", "24h").want(t, 0, "NO END", "CK1")
	if got := list("--since", "24h").stdout; strings.Contains(got, "rebuild") {
		t.Errorf("--since 24h: got %s, want nothing older", got)
	}
	for since, changes := range map[string]int{
		cut.At.Format(time.RFC3339): 2, last.At.Add(time.Second).In(time.FixedZone("far", 6*3600)).Format(time.RFC3339): 0, "72h": 3,
	} {
		var out struct {
			Changes []struct {
				ID, Who, Outcome, What string
				BegunAt                time.Time `json:"begun_at"`
				EndedAt                time.Time `json:"ended_at"`
				After                  struct{ N int }
			}
		}
		got := list("--since", since, "--json")
		if err := json.Unmarshal([]byte(got.stdout), &out); err != nil || got.code != 0 || len(out.Changes) != changes {
			t.Fatalf("--since %s --json: got %d %s, %v, want %d changes", since, got.code, got.stdout, err, changes)
		}
		if changes == 0 {
			continue
		}
		c := out.Changes[len(out.Changes)-1]
		if c.ID != last.ID || c.Outcome != "done" || !c.EndedAt.Equal(end.At) || !c.BegunAt.Equal(last.At) || c.After.N != 2 || c.Who != last.Who {
			t.Errorf("the newest change: got %+v, want %s, done", c, last.ID)
		}
		if c := out.Changes[len(out.Changes)-2]; c.Outcome != "begun" || !c.EndedAt.IsZero() {
			t.Errorf("the change that was cut off: got %+v, want it begun without an end", c)
		}
	}
	list("--what", "refunds").want(t, 0, "CK1")
	if got := list("--what", "refunds").stdout; strings.Contains(got, "NO END") {
		t.Errorf("--what refunds: got %s, want nothing else", got)
	}
	list("--since", "yesterday").want(t, 2, "want how long ago")
	list("--since=-1h").want(t, 2, "want how long ago")
	list("--since", "2026-12-01 04:00").want(t, 2, "a time with its zone")
	run(t, "", "log", "--data", t.TempDir()).want(t, 2, "is cmd/local running on this folder")

	// What cannot be read is said, and hides nothing.
	db, err := sql.Open("sqlite", filepath.Join(s.data, "store.db"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = db.Close() }()
	for _, id := range []string{old.ID, end.ID} {
		if _, err := db.ExecContext(t.Context(), `UPDATE operator_log SET body = '{' WHERE id = ?`, id); err != nil {
			t.Fatal(err)
		}
	}
	list().want(t, 1, "rebuild", "refused", "NO END", "unreadable", "log entry "+old.ID, "log entry "+end.ID)
}

// It is needed most when something is down.
func TestLog_NeedsNoRedis(t *testing.T) {
	t.Parallel()
	s := stopped(t, time.Minute)
	s.addr = "127.0.0.1:1"
	s.serve(t, 0)
	run(t, "", "log", "--data", s.data).want(t, 0, "no change is logged")
}
