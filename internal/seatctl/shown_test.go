package seatctl_test

import (
	"bytes"
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"holdfast/internal/app"
	"holdfast/internal/booking"
	"holdfast/internal/booking/bookingtest"
	"holdfast/internal/config"
	"holdfast/internal/seatctl"
	"holdfast/internal/testenv"
)

// meanwhile is a terminal at which something happens between question and answer.
type meanwhile struct {
	happens func()
	answer  io.Reader
}

func (m *meanwhile) Read(p []byte) (int, error) {
	if m.happens != nil {
		m.happens()
		m.happens = nil
	}
	return m.answer.Read(p)
}

// runMeanwhile runs a command that asks, and has happens come before the answer.
func runMeanwhile(t *testing.T, answer string, happens func(), args ...string) result {
	t.Helper()
	return runAt(t.Context(), &meanwhile{happens, strings.NewReader(answer)}, args...)
}

func runAt(ctx context.Context, stdin io.Reader, args ...string) result {
	var out, errs bytes.Buffer
	code := seatctl.Run(ctx, app.Local(), args, func(string) string { return "" }, stdin, &out, &errs)
	return result{code, out.String(), errs.String()}
}

// The switch is moved over what was shown, or not at all: an operator who said yes to
// something else has not said yes to this.
func TestOpen_IsRefusedOverWhatWasNotShown(t *testing.T) {
	t.Parallel()
	d := start(t, map[string]string{"PATH": t.TempDir()}) // in-process Redis
	another := filepath.Join(t.TempDir(), "another.yaml")
	if err := os.WriteFile(another, bytes.Replace(examplesSale(t), []byte("cap: 20700"), []byte("cap: 20701"), 1), 0o600); err != nil {
		t.Fatal(err)
	}
	ctl := func(args ...string) { run(t, "", append(args, "--data", d.data)...).want(t, 0) }
	closing := func() { ctl("close", "--reason", "drill") }
	later := time.Now().Add(time.Hour).UTC().Format(time.RFC3339)
	sooner := time.Now().Add(30 * time.Minute).UTC().Format(time.RFC3339)
	for _, c := range []struct {
		name    string
		args    []string
		happens func()
		open    bool
	}{
		{"OpenedWhileScheduling", []string{"--at", later}, func() { ctl("open", "--yes") }, true},
		{"ScheduledWhileOpening", nil, func() { ctl("open", "--at", sooner, "--yes") }, false},
		{"ScheduledWhileScheduling", []string{"--at", later}, func() { ctl("open", "--at", sooner, "--yes") }, false},
		{"OpenedWhileOpening", nil, func() { ctl("open", "--yes") }, true},
		{"AnotherSale", nil, func() { closing(); ctl("sale", "apply", another, "--yes") }, false},
		{"AnotherEpoch", nil, func() { ctl("reset", "--reason", "drill", "--confirm", "demo-2026") }, false},
	} {
		closing()
		got := runMeanwhile(t, "y\n", c.happens, append([]string{"open", "--data", d.data}, c.args...)...)
		if got.code != 1 || !strings.Contains(got.stderr, "refused: not as shown") || !strings.Contains(got.stderr, "nothing was changed") {
			t.Errorf("%s: got %d %s, want it refused as not as shown", c.name, got.code, got.stderr)
		}
		entries := logged(t, d.data)
		if last := entries[len(entries)-1]; !strings.Contains(last, ": open demo-2026 refused") {
			t.Errorf("%s: operator's log ends with %q, want the refused opening", c.name, last)
		}
		status, err := d.rdb.Get(t.Context(), "{sale}:booking:open").Result()
		if open := err == nil && status == "1"; open != c.open {
			t.Errorf("%s: booking open: got %v, want %v", c.name, open, c.open)
		}
	}
	// Seats that are taken meanwhile are no other sale.
	closing()
	runMeanwhile(t, "y\n", func() {
		ctl("holds", "extend", "--by", "1s", "--reason", "drill")
	}, "open", "--data", d.data).want(t, 0, "Booking of sale demo-2026 is open")
	got := runMeanwhile(t, "y\n", closing, "open", "--data", d.data)
	got.want(t, 1, "refused: not as shown")
}

func examplesSale(t *testing.T) []byte {
	t.Helper()
	text, err := os.ReadFile(saleFile(t))
	if err != nil {
		t.Fatal(err)
	}
	return text
}

func TestSaleApply_IsRefusedOverASaleThatWasNotShown(t *testing.T) {
	t.Parallel()
	s := stopped(t, time.Minute)
	s.serve(t, 0)
	mine := strings.Replace(demo, "cap: 5", "cap: 6", 1)
	others := strings.Replace(demo, "cap: 5", "cap: 7", 1)
	path := filepath.Join(t.TempDir(), "sale.yaml")
	if err := os.WriteFile(path, []byte(mine), 0o600); err != nil {
		t.Fatal(err)
	}
	apply := func(happens func(), want ...string) {
		t.Helper()
		got := runMeanwhile(t, "y\n", happens, "sale", "apply", path, "--data", s.data, "--json")
		got.want(t, 1, append(want, "refused: not as shown", "nothing was changed", `"applied": false`)...)
	}
	apply(func() { s.apply(t, others, "", "--yes").want(t, 0) }, "5 -> 6")
	if c := s.config(t); c["cap"] != "7" {
		t.Errorf("cap: got %s, want the other's 7", c["cap"])
	}
	wantLogged(t, s.data, "begun", `refused {"admitted":0,"applied":false,`)
	// The same sale, which somebody else has put into force.
	apply(func() { s.apply(t, mine, "", "--yes").want(t, 0) }, "7 -> 6")
	// A first sale, when somebody else's was.
	if err := s.rdb.FlushAll(t.Context()).Err(); err != nil {
		t.Fatal(err)
	}
	apply(func() { s.apply(t, others, "", "--yes").want(t, 0) }, "would be the first")
	if c := s.config(t); c["cap"] != "7" {
		t.Errorf("cap after a first sale: got %s, want the other's 7", c["cap"])
	}
	// Another of it, when Redis was lost.
	apply(func() {
		if err := s.rdb.FlushAll(t.Context()).Err(); err != nil {
			t.Error(err)
		}
	}, "7 -> 6")
	if n := s.rdb.Exists(t.Context(), "{sale}:adm:epoch", "{sale}:sale:config").Val(); n != 0 {
		t.Errorf("redis: got %d of epoch and sale, want it as empty as it was", n)
	}
	// One that cannot be read is mended by another.
	s.Open(t, bookingtest.Sale(), 0)
	s.do(t, "HSET", "sale:config", "cap", "many")
	s.apply(t, mine, "", "--yes").want(t, 0, "cannot be compared with", "is in force")
}

// What is told to be applied was acknowledged.
func TestSaleApply_AppliedIsWhatWasAcknowledged(t *testing.T) {
	t.Parallel()
	s := stopped(t, time.Minute)
	s.two(t)
	s.serve(t, 0)
	path := filepath.Join(t.TempDir(), "sale.yaml")
	if err := os.WriteFile(path, []byte(strings.Replace(demo, `N1 Advanced", cap: 3`, `N1 Advanced", cap: 2`, 1)), 0o600); err != nil {
		t.Fatal(err)
	}
	args := []string{"sale", "apply", path, "--data", s.data, "--json"}
	applied := func(r result) bool {
		t.Helper()
		var out struct{ Applied bool }
		if err := json.Unmarshal([]byte(r.stdout), &out); err != nil {
			t.Fatalf("%+v: %v", r, err)
		}
		return out.Applied
	}
	got := runMeanwhile(t, "y\n", func() { s.Held(t, 3, "N1") }, args...)
	if got.code != 1 || applied(got) {
		t.Errorf("refused by the script: got %+v, want it not applied", got)
	}
	wantLogged(t, s.data, "begun", `refused {"admitted":2,"applied":false,`)

	s.unacknowledged(t)
	if err := os.WriteFile(path, []byte(demo), 0o600); err != nil {
		t.Fatal(err)
	}
	// The check before the question is not acknowledged either: it has none to lose.
	got = runMeanwhile(t, "y\n", nil, args...)
	if got.code != 1 || applied(got) || !strings.Contains(got.stderr, "not acknowledged") {
		t.Errorf("not acknowledged: got %+v, want it not known to be applied", got)
	}
}

// unacknowledged has the commands want a replica, of which there is none.
func (s *still) unacknowledged(t *testing.T) {
	t.Helper()
	s.setting(t, "HOLDFAST_ACKS", "1")
}

// setting changes one in holdfast.env.
func (s *still) setting(t *testing.T, name, value string) {
	t.Helper()
	path := filepath.Join(s.data, config.EnvFile)
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	for line := range strings.Lines(string(text)) {
		if strings.HasPrefix(line, name+"=") {
			line = name + "=" + value + "\n"
		}
		out.WriteString(line)
	}
	if err := os.WriteFile(path, []byte(out.String()), 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestHolds_WhatWasNotAcknowledgedIsUnknown(t *testing.T) {
	t.Parallel()
	s := stopped(t, time.Minute)
	held, _ := s.two(t)
	s.serve(t, 0)
	s.unacknowledged(t)
	got := run(t, "", "holds", "extend", "--data", s.data, "--by", "10m", "--reason", "drill")
	got.want(t, 1, "0 holds extended", "1      perhaps extended, or could not be", "1 rows are perhaps extended, or could not be", "not acknowledged", "repeat it with --run")
	wantLogged(t, s.data, "begun", `unknown {"already":0,"extended":0,"failed":1}`)
	if row := s.row(t, held); row.Deadline == held.Record.Deadline.UnixMilli() {
		t.Error("the row's deadline has not moved: the test shows nothing")
	}
}

func TestClose_LogsNoStateThatItHasNotRead(t *testing.T) {
	t.Parallel()
	s := stopped(t, time.Minute)
	s.serve(t, 0)
	s.setting(t, "HOLDFAST_REDIS_ADDR", testenv.FreeAddr(t))
	got := run(t, "", "close", "--data", s.data, "--reason", "drill", "--wait", "0s", "--json")
	got.want(t, 1, "how the switch stands cannot be read", `"was_open": null`)
	entries := logged(t, s.data)
	if begun := entries[len(entries)-2]; !strings.HasSuffix(begun, "begun ") {
		t.Errorf("operator's log: got %q, want nothing of how the switch stood", begun)
	}
}

// What is missing, and that the log has no end of it, are both told.
func TestClose_SaysWhatIsMissingAndThatTheLogHasNoEnd(t *testing.T) {
	t.Parallel()
	s := stopped(t, time.Minute)
	s.serve(t, 0)
	db, err := sql.Open("sqlite", filepath.Join(s.data, "store.db"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = db.Close() }()
	page := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if _, err := db.ExecContext(r.Context(), `ALTER TABLE operator_log RENAME TO away`); err != nil {
			t.Error(err)
		}
		w.WriteHeader(http.StatusNotFound)
	}))
	defer page.Close()
	s.setting(t, "HOLDFAST_STATUS_URL", page.URL)
	run(t, "", "close", "--data", s.data, "--reason", "drill", "--wait", "0s").want(t, 1, "missing: ", "status.json cannot be read", "does not have its end")
}

func TestResolve_IsRefusedOverWhatWasNotShown(t *testing.T) {
	t.Parallel()
	s := stopped(t, 20*time.Minute)
	held, _ := s.two(t)
	s.serve(t, 0)
	for i, c := range []struct {
		word    []string
		happens func()
	}{
		{[]string{"--paid", "TX7"}, func() { s.owe(t, held, "TX7") }},
		{[]string{"--paid", "TX8"}, func() { s.settle(t, held) }},
	} {
		got := runMeanwhile(t, "y\n", c.happens, append([]string{"bookings", "resolve", held.Code, "--reason", "drill", "--force", "--data", s.data}, c.word...)...)
		got.want(t, 1, "nothing was changed")
		entries := logged(t, s.data)
		if last := entries[len(entries)-1]; !strings.Contains(last, " refused ") {
			t.Errorf("%d: operator's log ends with %q, want it refused", i, last)
		}
	}
	if row := s.row(t, held); row.Phase != booking.PhasePaid || row.Transaction != "TX1" {
		t.Errorf("row: got %+v, want it paid as it was", row)
	}
}

// A run that goes on with an earlier one's ledger does so while booking is closed.
func TestRebuild_IsRefusedOnceBookingIsOpen(t *testing.T) {
	t.Parallel()
	s := stopped(t, time.Minute)
	if err := s.gate.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	s.do(t, "SET", "adm:rebuild", "token")
	s.serve(t, 0)
	got := runMeanwhile(t, "demo\n", func() {
		if err := s.gate.Open(t.Context()); err != nil {
			t.Error(err)
		}
	}, "rebuild", "--reason", "drill", "--data", s.data)
	got.want(t, 1, "booking is open", "nothing was changed")
	wantLogged(t, s.data, "begun", "refused")
}

func TestNotificationsClose_IsRefusedOverWhatWasNotShown(t *testing.T) {
	t.Parallel()
	s := stopped(t, 5*time.Minute)
	held, _ := s.two(t)
	s.serve(t, 0)
	s.notify(t, "m1", time.Hour)
	got := runMeanwhile(t, "y\n", func() { s.owe(t, held, "TX9") }, "notifications", "close", "m1", "--reason", "shop till", "--data", s.data)
	got.want(t, 1, "refused: not as shown", "nothing was changed")
	run(t, "", "notifications", "list", "--data", s.data).want(t, 0, "m1", "1 open")
}

// An interrupted question is no answer, and nobody waits for one.
func TestQuestions_AnInterruptionEndsThem(t *testing.T) {
	t.Parallel()
	s := stopped(t, time.Minute)
	if err := s.gate.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	s.serve(t, 0)
	path := filepath.Join(t.TempDir(), "sale.yaml")
	if err := os.WriteFile(path, []byte(strings.Replace(demo, "cap: 5", "cap: 6", 1)), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{
		{"sale", "apply", path},
		{"reset", "--reason", "drill"},
	} {
		ctx, interrupt := context.WithCancel(t.Context())
		terminal, keyboard := io.Pipe()
		done := make(chan result, 1)
		go func() {
			done <- runAt(ctx, &meanwhile{interrupt, terminal}, append(args, "--data", s.data)...)
		}()
		select {
		case got := <-done:
			got.want(t, 2, "interrupted: nothing was changed")
		case <-time.After(30 * time.Second):
			t.Errorf("%s: it still waits for an answer", fmt.Sprint(args))
		}
		_ = keyboard.Close()
		interrupt()
	}
	if c := s.config(t); c["cap"] != "5" {
		t.Errorf("cap: got %s, want 5", c["cap"])
	}
	if got := logged(t, s.data); len(got) != 0 {
		t.Errorf("operator's log: got %q, want nothing", got)
	}
}
