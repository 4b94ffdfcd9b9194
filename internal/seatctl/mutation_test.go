package seatctl_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"holdfast/internal/booking"
	"holdfast/internal/seatctl"
	store "holdfast/internal/store/sqlite"
)

// oplog is an operator's log in memory; a full one has room for so many more entries.
type oplog struct {
	mu      sync.Mutex
	full    bool
	room    int
	entries []booking.LogEntry
}

func (l *oplog) AppendLog(ctx context.Context, e booking.LogEntry) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := ctx.Err(); err != nil {
		return err
	}
	if _, err := e.Encode(); err != nil {
		return err
	}
	if l.full && l.room == 0 {
		return errors.New("log is full")
	}
	l.room--
	l.entries = append(l.entries, e)
	return nil
}

func (l *oplog) Log(context.Context, time.Time) iter.Seq2[booking.LogEntry, error] {
	return func(yield func(booking.LogEntry, error) bool) {
		for _, e := range l.entries {
			if !yield(e, nil) {
				return
			}
		}
	}
}

// tell is an entry in one line, with how its subject stands in it.
func tell(e booking.LogEntry) string {
	line := fmt.Sprintf("%s: %s %s", e.Who, e.What, e.Subject)
	if e.Reason != "" {
		line += " (" + e.Reason + ")"
	}
	stands := e.Before
	if e.Outcome != booking.LogBegun {
		stands = e.After
	}
	return fmt.Sprintf("%s %s %s", line, e.Outcome, stands)
}

// want holds the log to these entries, of each of which a part is told.
func (l *oplog) want(t *testing.T, parts ...string) {
	t.Helper()
	var got []string
	for _, e := range l.entries {
		got = append(got, tell(e))
	}
	wantLines(t, got, parts)
}

func wantLines(t *testing.T, got, parts []string) {
	t.Helper()
	same := len(got) == len(parts)
	for i := range got {
		same = same && strings.Contains(got[i], parts[i])
	}
	if !same {
		t.Errorf("operator's log: got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(parts, "\n"))
	}
}

func noEnv(string) string { return "" }

func TestMutate_LogsBeforeAndAfterTheChange(t *testing.T) {
	t.Parallel()
	var log oplog
	code, said := seatctl.Change(t.Context(), &log, noEnv, map[string]int{"cap": 1}, func(context.Context) (any, error) {
		log.want(t, `alice: sale apply demo (drill) begun {"cap":1}`)
		return map[string]int{"cap": 2}, nil
	})
	if code != 0 || said != "" {
		t.Errorf("change: got %d %q, want 0 and nothing", code, said)
	}
	log.want(t, `begun {"cap":1}`, `alice: sale apply demo (drill) done {"cap":2}`)
	begun, end := log.entries[0], log.entries[1]
	if end.ID != begun.ID+".end" || end.Change() != begun.ID || end.At.Before(begun.At) || begun.At.Location() != time.UTC {
		t.Errorf("entries: got %+v and %+v, want one change, its end behind its begin", begun, end)
	}
}

func TestMutate_WithoutItsFirstLineTheChangeIsNotMade(t *testing.T) {
	t.Parallel()
	log := &oplog{full: true}
	made := func(context.Context) (any, error) {
		t.Error("the change was made, want it not to be")
		return nil, nil
	}
	for name, before := range map[string]any{"log is full": nil, "write what stands as JSON": func() {}} {
		if code, said := seatctl.Change(t.Context(), log, noEnv, before, made); code != 2 || !strings.Contains(said, "nothing was changed") || !strings.Contains(said, name) {
			t.Errorf("change: got %d %q, want 2, nothing was changed: %s", code, said, name)
		}
	}
}

func TestMutate_SaysThatItsEndIsNotLogged(t *testing.T) {
	t.Parallel()
	cause := errors.New("no such level")
	for name, c := range map[string]struct {
		err  error
		code int
		want []string
	}{
		"Done":    {nil, 1, []string{"it was done, but the operator's log does not have its end"}},
		"Refused": {seatctl.Refused(cause), 1, []string{"no such level", "and the operator's log does not have its end"}},
		"Failed":  {cause, 2, []string{"no such level", "and the operator's log does not have its end"}},
	} {
		log := &oplog{full: true, room: 1}
		code, said := seatctl.Change(t.Context(), log, noEnv, nil, func(context.Context) (any, error) { return nil, c.err })
		for _, text := range append(c.want, "log is full", log.entries[0].ID) {
			if code != c.code || !strings.Contains(said, text) {
				t.Errorf("%s: got %d %q, want %d %q", name, code, said, c.code, text)
			}
		}
	}
	log := &oplog{}
	code, said := seatctl.Change(t.Context(), log, noEnv, nil, func(context.Context) (any, error) { return func() {}, nil })
	if code != 1 || !strings.Contains(said, "it was done") {
		t.Errorf("after that is no JSON: got %d %q, want 1, it was done", code, said)
	}
	log.want(t, "begun", "done")
}

func TestMutate_TellsHowTheChangeEnded(t *testing.T) {
	t.Parallel()
	dial := &net.OpError{Op: "dial", Err: syscall.ECONNREFUSED}
	read := &net.OpError{Op: "read", Err: syscall.ECONNRESET}
	for name, c := range map[string]struct {
		err  error
		want booking.LogOutcome
		code int
	}{
		"nothing wrong":     {nil, booking.LogDone, 0},
		"refused":           {seatctl.Refused(booking.ErrCapBelowAdmitted), booking.LogRefused, 1},
		"refused, wrapped":  {fmt.Errorf("apply: %w", seatctl.Refused(booking.ErrCapBelowAdmitted)), booking.LogRefused, 1},
		"an error":          {booking.ErrCapBelowAdmitted, booking.LogFailed, 2},
		"in doubt":          {fmt.Errorf("send: %w", booking.ErrInDoubt), booking.LogUnknown, 2},
		"not acknowledged":  {fmt.Errorf("apply: %w", booking.ErrNotAcknowledged), booking.LogUnknown, 2},
		"connection cut":    {fmt.Errorf("apply: %w", read), booking.LogUnknown, 2},
		"connection ended":  {fmt.Errorf("apply: %w", io.EOF), booking.LogUnknown, 2},
		"time was over":     {fmt.Errorf("apply: %w", context.DeadlineExceeded), booking.LogUnknown, 2},
		"nobody was there":  {fmt.Errorf("apply: %w", dial), booking.LogFailed, 2},
		"gateway not asked": {fmt.Errorf("send: %w", booking.ErrNotSent), booking.LogFailed, 2},
	} {
		var log oplog
		code, _ := seatctl.Change(t.Context(), &log, noEnv, nil, func(context.Context) (any, error) { return 7, c.err })
		if got := log.entries[len(log.entries)-1]; got.Outcome != c.want || string(got.After) != "7" || code != c.code {
			t.Errorf("%s: got %s, after %s, exit status %d, want %s, 7, %d", name, got.Outcome, got.After, code, c.want, c.code)
		}
	}
}

func TestMutate_AnInterruptedChangeHasItsEnd(t *testing.T) {
	t.Parallel()
	ctx, interrupt := context.WithCancel(t.Context())
	var log oplog
	seatctl.Change(ctx, &log, noEnv, nil, func(ctx context.Context) (any, error) {
		interrupt()
		return "half", ctx.Err()
	})
	log.want(t, "begun", `unknown "half"`)
	made := false
	code, _ := seatctl.Change(ctx, &log, noEnv, nil, func(context.Context) (any, error) { made = true; return nil, nil })
	if code != 2 || made {
		t.Errorf("change after the interruption: got %d, made %t, want 2, and not made", code, made)
	}
}

func TestMutate_SaysWhereItComesFrom(t *testing.T) {
	t.Parallel()
	host, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	for ssh, want := range map[string]string{
		"":                              host,
		"203.0.113.9 50312 10.0.1.5 22": host + ", by SSH from 203.0.113.9 as its environment says",
		"2001:db8::1 50312 ::1 22":      host + ", by SSH from 2001:db8::1 as its environment says",
		"\x1b[31mroot 1 2 3":            host, // no address
	} {
		var log oplog
		seatctl.Change(t.Context(), &log, func(name string) string {
			if name == "SSH_CONNECTION" {
				return ssh
			}
			return "made up"
		}, nil, func(context.Context) (any, error) { return nil, nil })
		if got := log.entries[0].From; got != want {
			t.Errorf("SSH_CONNECTION %q: got from %q, want %q", ssh, got, want)
		}
	}
}

// Two questions are answered by two lines, however they come.
func TestTyped_WantsTheSalesName(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		stdin, given string
		code         int
		want         string
	}{
		"typed twice":     {"demo\n demo \n", "", 0, "Once more."},
		"without newline": {"demo\ndemo", "", 0, "Type the sale's name"},
		"given":           {"", "demo", 0, "This resets the sale."},
		"typed once":      {"demo\n", "", 1, "was not typed: nothing was changed"},
		"another's":       {"demo\nother\n", "", 1, `the sale's name is demo, not "other": nothing was changed`},
		"another's given": {"demo\n", "other", 1, "nothing was changed"},
		"return":          {"\n", "", 1, "nothing was changed"},
		"nobody":          {"", "", 1, "was not typed"},
	} {
		code, said := seatctl.Typed(strings.NewReader(c.stdin), "demo", c.given)
		if code != c.code || !strings.Contains(said, c.want) {
			t.Errorf("%s: got %d %q, want %d %q", name, code, said, c.code, c.want)
		}
	}
}

// logged is the operator's log in a data folder.
func logged(t *testing.T, data string) []string {
	t.Helper()
	st, err := store.Open(t.Context(), filepath.Join(data, "store.db"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = st.Close() }()
	var got []string
	for e, err := range st.Log(t.Context(), time.Time{}) {
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, tell(e))
	}
	return got
}

// wantLogged holds the last entries of the operator's log in a data folder to these.
func wantLogged(t *testing.T, data string, parts ...string) {
	t.Helper()
	got := logged(t, data)
	wantLines(t, got[max(0, len(got)-len(parts)):], parts)
}
