package seatctl_test

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"path/filepath"
	"strings"
	"testing"

	"holdfast/internal/app"
	"holdfast/internal/seatctl"
)

const unlogged = "THE OPERATOR'S LOG DOES NOT HAVE THIS, and it is done all the same"

func TestAnyway_IsMadeWithoutALogAndSaysSo(t *testing.T) {
	t.Parallel()
	alice := func(context.Context) (string, error) { return "alice", nil }
	cause := errors.New("no answer of a replica")
	for name, c := range map[string]struct {
		log     *oplog
		who     func(context.Context) (string, error)
		during  func(l *oplog)
		did     error
		code    int
		said    []string
		entries []string
	}{
		"Logged": {log: &oplog{}, entries: []string{"alice: close demo (drill) begun", "done 7"}},
		"LogIsAway": {
			log: &oplog{full: true}, code: 1,
			said: []string{unlogged + ": log is full", "it was done, but the operator's log does not have it (change "},
		},
		"LogComesBack": {
			log: &oplog{full: true}, during: func(l *oplog) { l.full = false },
			said: []string{unlogged, "the operator's log has it now"}, entries: []string{"alice: close demo (drill) begun", "done 7"},
		},
		"LogGoesAway": {
			log: &oplog{full: true, room: 1}, code: 1,
			said: []string{"it was done, but the operator's log does not have its end"}, entries: []string{"begun"},
		},
		"PlatformIsAway": {
			log: &oplog{}, who: func(context.Context) (string, error) { return "", errors.New("identity is away") }, code: 1,
			said: []string{unlogged + ": identity is away", "it was done, but the operator's log does not have it"},
		},
		"NotMade": {
			log: &oplog{full: true}, did: cause, code: 2,
			said: []string{unlogged, "no answer of a replica; and the operator's log does not have it"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			who, made := c.who, 0
			if who == nil {
				who = alice
			}
			code, said := seatctl.ChangeAnyway(t.Context(), c.log, who, func(context.Context) (any, error) {
				made++
				if c.during != nil {
					c.during(c.log)
				}
				return 7, c.did
			})
			if made != 1 || code != c.code {
				t.Errorf("got made %d times, exit status %d (%s), want once, %d", made, code, said, c.code)
			}
			for _, text := range c.said {
				if !strings.Contains(said, text) {
					t.Errorf("got %q, want it to say %q", said, text)
				}
			}
			if len(c.said) == 0 && said != "" {
				t.Errorf("got %q, want nothing said", said)
			}
			c.log.want(t, c.entries...)
		})
	}
}

// Whoever is not there for the first entry is not waited for with the sale open.
func TestAnyway_DoesNotWaitLongForALogThatHangs(t *testing.T) {
	t.Parallel()
	hangs := func(ctx context.Context) (string, error) {
		<-ctx.Done()
		return "", ctx.Err()
	}
	ctx, cancel := context.WithCancel(t.Context())
	if code, said := seatctl.ChangeAnyway(ctx, &oplog{}, hangs, func(ctx context.Context) (any, error) {
		if err := ctx.Err(); err != nil {
			t.Errorf("the change's context: got %v, want it to go on", err)
		}
		return nil, nil
	}); code != 1 || !strings.Contains(said, unlogged) {
		t.Errorf("got %d %q, want it made and not logged", code, said)
	}
	cancel()
	if code, said := seatctl.ChangeAnyway(ctx, &oplog{}, hangs, func(context.Context) (any, error) {
		t.Error("made after the operator's end, want it not to be")
		return nil, nil
	}); code != 2 || !strings.Contains(said, "nothing was changed") {
		t.Errorf("after an interruption: got %d %q, want 2 and nothing changed", code, said)
	}
}

// closed wants booking closed by the ledger.
func (s *still) closed(t *testing.T) {
	t.Helper()
	if f, err := s.gate.ReadStatus(t.Context()); err != nil || f.Open {
		t.Errorf("the ledger: got open %t, %v, want it closed", f.Open, err)
	}
}

func TestClose_ClosesWhileTheBookingStoreIsAway(t *testing.T) {
	t.Parallel()
	s := stopped(t, 0)
	s.serve(t, 0)
	db, err := sql.Open("sqlite", filepath.Join(s.data, "store.db"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = db.Close() }()
	if _, err := db.ExecContext(t.Context(), `ALTER TABLE operator_log RENAME TO away`); err != nil {
		t.Fatal(err)
	}
	run(t, "", "close", "--reason", "gateway is out", "--data", s.data).want(t, 1,
		unlogged, "is closed: gateway is out", "status.json     yes", "it was done, but the operator's log does not have it")
	s.closed(t)

	if err := s.gate.Open(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := db.ExecContext(t.Context(), `ALTER TABLE away RENAME TO operator_log`); err != nil {
		t.Fatal(err)
	}
	platform := app.Local()
	platform.Identity = func(context.Context, func(string) string, app.Needs) (string, error) {
		return "", errors.New("identity is away")
	}
	var out, errs bytes.Buffer
	code := seatctl.Run(t.Context(), platform, []string{"close", "--reason", "drill", "--data", s.data}, noEnv, strings.NewReader(""), &out, &errs)
	result{code, out.String(), errs.String()}.want(t, 1, unlogged+": identity is away", "is closed: drill", "does not have it")
	s.closed(t)
}
