package seatctl_test

import (
	"database/sql"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"holdfast/internal/testenv"
)

// After Redis was lost nothing that was in it is told as zero or as none, and no file
// is written that would pass for what it was.
func TestSeatctl_ALostRedisIsUnknownAndNotEmpty(t *testing.T) {
	t.Parallel()
	s := stopped(t, 5*time.Minute)
	held, paid := s.two(t)
	s.serve(t, 0)
	if err := s.rdb.FlushAll(t.Context()).Err(); err != nil {
		t.Fatal(err)
	}

	got := run(t, "", "bookings", "show", paid.Code, "--no-gateway", "--data", s.data)
	got.want(t, 1, "epoch unknown", "e-mail  unknown", "seat    unknown", "attempt "+paid.Attempt+"\n", "PAID", "?", "NOT SEEN", "rebuild")
	if strings.Contains(got.stdout, "of another sale") || strings.Contains(got.stdout, "none") || strings.Contains(got.stdout, "\n!") {
		t.Errorf("bookings show: got %s, want nothing told as none, as another sale's or as a difference", got.stdout)
	}
	run(t, "", "bookings", "show", "C0005", "--no-gateway", "--data", s.data).want(t, 1, "seat    unknown", "NOT SEEN")
	var shown struct {
		Unknown []string `json:"unknown"`
		Queue   any      `json:"queue"`
	}
	got = run(t, "", "bookings", "show", held.Code, "--no-gateway", "--json", "--data", s.data)
	if err := json.Unmarshal([]byte(got.stdout), &shown); err != nil || len(shown.Unknown) != 4 || shown.Queue == nil {
		t.Errorf("bookings show --json: got %+v, %v, want what is unknown, and the queue", got, err)
	}

	got = run(t, "", "status", "--every", "1s", "--data", s.data)
	got.want(t, 1, "sale unknown", "rows        unknown: seat ledger has no epoch", "paid        unknown")
	if strings.Contains(got.stdout, "in doubt") {
		t.Errorf("status: got %s, want no figure of rows", got.stdout)
	}

	out := filepath.Join(t.TempDir(), "candidates.csv")
	for _, args := range [][]string{{"--out", out}, {"--out", out, "--json"}, nil} {
		got := run(t, "", append([]string{"candidates", "export", "--data", s.data}, args...)...)
		got.want(t, 1, "the allowlist is unknown, not empty", "no epoch", "load the candidates again")
		if got.stdout != "" {
			t.Errorf("candidates export %q: got %q on stdout, want nothing", args, got.stdout)
		}
	}
	if _, err := os.Stat(out); !os.IsNotExist(err) {
		t.Errorf("candidates export: got %v, want no file", err)
	}

	for want, args := range map[string][]string{
		"audit":                    {"audit"},
		"no sale is in force":      {"sale", "show"},
		"extend holds":             {"holds", "extend", "--by", "10m", "--reason", "drill", "--dry-run"},
		"purge":                    {"purge", "--reason", "drill", "--dry-run"},
		"reset":                    {"reset", "--reason", "drill", "--confirm", "x"},
		"seat ledger has no epoch": {"candidates", "show", held.Code},
		"rebuild":                  {"bookings", "resolve", held.Code, "--not-paid", "--reason", "drill", "--yes"},
	} {
		got := run(t, "", append(args, "--data", s.data)...)
		if got.code == 0 || got.stdout != "" || !strings.Contains(got.stderr, want) {
			t.Errorf("%q: got %+v, want an error that says %q, and no figure", args, got, want)
		}
	}
}

// An unreadable notification is told, and not taken for none.
func TestNotificationsList_WhatCannotBeReadIsNotNone(t *testing.T) {
	t.Parallel()
	s := stopped(t, 5*time.Minute)
	s.notify(t, "m1", time.Hour)
	s.serve(t, 0)
	db, err := sql.Open("sqlite", filepath.Join(s.data, "store.db"))
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	if _, err := db.ExecContext(t.Context(), `UPDATE notifications SET body = '{'`); err != nil {
		t.Fatal(err)
	}
	got := run(t, "", "notifications", "list", "--data", s.data)
	got.want(t, 1, "m1")
	if got.stdout != "" {
		t.Errorf("got %q on stdout, want nothing told as none", got.stdout)
	}
}

// A Redis that is away is told by the command's answer alone.
func TestSeatctl_OnlyTheAnswerIsWrittenWhileRedisIsAway(t *testing.T) {
	t.Parallel()
	s := stopped(t, 5*time.Minute)
	s.addr = testenv.FreeAddr(t) // where nobody listens
	s.serve(t, 0)
	p := testenv.StartProgram(t, "seatctl", []string{"sale", "show", "--data", s.data}, nil)
	if code := p.Wait(t); code != 1 {
		t.Errorf("sale show: got exit status %d, want that of an error", code)
	}
	said := p.Output()
	if !strings.Contains(said, "seatctl: read epoch: dial tcp") || strings.Contains(said, "redis: ") {
		t.Errorf("it said:\n%s\nwant its answer, and nothing of the client's own log", said)
	}
}
