package storetest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"holdfast/internal/booking"
)

// Log is what a driver promises of the operator's log, all of it safe for concurrent
// use and safe to repeat. No scan of records meets an entry.
type Log interface {
	// AppendLog adds an entry; nil also when this very entry is there. ErrLogTaken when
	// another one is under its id.
	AppendLog(ctx context.Context, e booking.LogEntry) error
	// Log reads the entries of the changes that began at that time or later, in the
	// order of their ids. An unreadable one is an error that wraps ErrUnreadable, beside
	// an entry with the id alone; the list goes on. Any other error ends it.
	Log(ctx context.Context, since time.Time) iter.Seq2[booking.LogEntry, error]
}

// LogDriver is a driver with the operator's log. CorruptLog makes an entry unreadable
// behind its back.
type LogDriver interface {
	Log
	PutHeld(ctx context.Context, rec booking.Record) (booking.Record, bool, error)
	Records(ctx context.Context) iter.Seq2[booking.Record, error]
	Empty(ctx context.Context) (bool, error)
	CorruptLog(t testing.TB, id string)
}

// RunLog holds a driver to the contract of the operator's log. open returns an empty
// store, closed by the test's cleanup.
func RunLog(t *testing.T, open func(t *testing.T) LogDriver) {
	tests := []struct {
		name string
		run  func(t *testing.T, s LogDriver)
	}{
		{"AppendLog", appendLog},
		{"LogIsInOrder", logIsInOrder},
		{"LogSince", logSince},
		{"LogIsNoRecord", logIsNoRecord},
		{"LogUnreadable", logUnreadable},
		{"LogManyAtOnce", logManyAtOnce},
		{"LogEndedContext", logEndedContext},
		{"BrokenLogWrites", brokenLogWrites},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) { tt.run(t, open(t)) })
	}
}

// LogBegun makes the first entry of a change of its own, begun at that time.
func LogBegun(at time.Time) booking.LogEntry {
	return booking.LogEntry{
		Version: booking.LogEntryVersion, ID: booking.NewLogID(at), At: at, Who: "duty (uid 1000)", From: "host",
		What: "holds extend", Subject: fmt.Sprintf("run-%d", serial.Add(1)), Reason: "drill",
		Before: json.RawMessage(`{"to_extend":2}`), Outcome: booking.LogBegun,
	}
}

func logEnded(e booking.LogEntry) booking.LogEntry {
	return e.End(e.At.Add(time.Second), booking.LogDone, json.RawMessage(`{"extended":2}`))
}

func appendLog(t *testing.T, s LogDriver) {
	ctx, e := t.Context(), LogBegun(start)
	wantLog(t, s, time.Time{})
	odd := e
	odd.At = odd.At.In(time.FixedZone("far", 6*3600))
	for _, which := range []string{"first call", "repeat"} {
		if err := s.AppendLog(ctx, odd); err != nil {
			t.Errorf("AppendLog, %s: got %v, want none", which, err)
		}
		wantLog(t, s, time.Time{}, e)
	}
	other := e
	other.Reason = "another"
	for range 2 {
		if err := s.AppendLog(ctx, other); !errors.Is(err, booking.ErrLogTaken) || !strings.Contains(err.Error(), e.ID) {
			t.Errorf("AppendLog of another entry under the id: got %v, want ErrLogTaken that names it", err)
		}
		wantLog(t, s, time.Time{}, e)
	}
	invalid := LogBegun(start)
	invalid.Who = ""
	if err := s.AppendLog(ctx, invalid); err == nil {
		t.Error("AppendLog of an entry of nobody: got no error, want one")
	}
	mustLog(t, s, logEnded(e))
	wantLog(t, s, time.Time{}, e, logEnded(e))
}

// logIsInOrder has more than two pages, over three months of two years, put in any
// order.
func logIsInOrder(t *testing.T, s LogDriver) {
	var want, put []booking.LogEntry
	for i := range 550 {
		e := LogBegun(start.Add(time.Duration(i) * 3 * time.Hour))
		want = append(want, e, logEnded(e))
		put = append(put, logEnded(e), e)
	}
	slices.Reverse(put)
	var wg sync.WaitGroup
	for part := range slices.Chunk(put, 110) {
		wg.Go(func() {
			for _, e := range part {
				if err := s.AppendLog(t.Context(), e); err != nil {
					t.Errorf("AppendLog: %v", err)
					return
				}
			}
		})
	}
	wg.Wait()
	wantLog(t, s, time.Time{}, want...)
	wantLog(t, s, want[700].At, want[700:]...)
	seen := 0
	for _, err := range s.Log(t.Context(), time.Time{}) {
		if err != nil {
			t.Errorf("list that is left: %v", err)
		}
		if seen++; seen == 3 {
			break
		}
	}
	if seen != 3 {
		t.Errorf("list that was left: got %d entries, want 3", seen)
	}
}

// logSince: it is the change's beginning that counts, to the millisecond; its end
// comes with it.
func logSince(t *testing.T, s LogDriver) {
	newYear := time.Date(2027, 1, 1, 0, 0, 0, 0, time.UTC)
	old, last, first := LogBegun(newYear.AddDate(0, -2, 0)), LogBegun(newYear.Add(-time.Millisecond)), LogBegun(newYear)
	for _, e := range []booking.LogEntry{old, last, logEnded(last), first} {
		mustLog(t, s, e)
	}
	for _, c := range []struct {
		since time.Time
		want  []booking.LogEntry
	}{
		{time.Time{}, []booking.LogEntry{old, last, logEnded(last), first}},
		{old.At, []booking.LogEntry{old, last, logEnded(last), first}},
		{old.At.Add(time.Millisecond), []booking.LogEntry{last, logEnded(last), first}},
		{last.At, []booking.LogEntry{last, logEnded(last), first}},
		{newYear, []booking.LogEntry{first}},
		{newYear.In(time.FixedZone("far", 6*3600)), []booking.LogEntry{first}},
		{newYear.Add(time.Millisecond), nil},
		{newYear.AddDate(1, 0, 0), nil},
	} {
		wantLog(t, s, c.since, c.want...)
	}
}

// logIsNoRecord: nothing is sold by an entry.
func logIsNoRecord(t *testing.T, s LogDriver) {
	mustLog(t, s, LogBegun(start))
	if empty, err := s.Empty(t.Context()); err != nil || !empty {
		t.Errorf("Empty of a store with a log alone: got %t, %v, want true", empty, err)
	}
	for rec, err := range s.Records(t.Context()) {
		t.Errorf("scan of records: got %+v, %v, want none", rec, err)
	}
	if _, _, err := s.PutHeld(t.Context(), Held()); err != nil {
		t.Fatalf("PutHeld: %v", err)
	}
	for e, err := range s.Log(t.Context(), time.Time{}) {
		if err != nil || e.What == "" {
			t.Errorf("log beside a record: got %+v, %v, want its entry", e, err)
		}
	}
}

func logUnreadable(t *testing.T, s LogDriver) {
	var all []booking.LogEntry
	for i := range 3 {
		all = append(all, LogBegun(start.Add(time.Duration(i)*time.Second)))
		mustLog(t, s, all[i])
	}
	bad := all[1]
	s.CorruptLog(t, bad.ID)
	var got []booking.LogEntry
	complaints := 0
	for e, err := range s.Log(t.Context(), time.Time{}) {
		if err == nil {
			got = append(got, e)
			continue
		}
		complaints++
		if !errors.Is(err, booking.ErrUnreadable) || !strings.Contains(err.Error(), bad.ID) {
			t.Errorf("list: got %v, want ErrUnreadable that names the entry", err)
		}
		if want := (booking.LogEntry{ID: bad.ID}); !cmp.Equal(e, want) {
			t.Errorf("list: entry beside the error: got %+v, want its id alone", e)
		}
	}
	if diff := cmp.Diff([]booking.LogEntry{all[0], all[2]}, got); diff != "" || complaints != 1 {
		t.Errorf("list: got %d unreadable, want 1; the others (-want +got):\n%s", complaints, diff)
	}
	// It must not be taken for absent, nor written over.
	if err := s.AppendLog(t.Context(), bad); !errors.Is(err, booking.ErrLogTaken) {
		t.Errorf("AppendLog over an unreadable entry: got %v, want ErrLogTaken", err)
	}
}

func logManyAtOnce(t *testing.T, s LogDriver) {
	e := LogBegun(start)
	var wg sync.WaitGroup
	for range 20 {
		wg.Go(func() {
			if err := s.AppendLog(t.Context(), e); err != nil {
				t.Errorf("AppendLog of one entry at once: got %v, want none", err)
			}
		})
	}
	wg.Wait()
	wantLog(t, s, time.Time{}, e)
	end := logEnded(e)
	firstOf(t, "AppendLog", func(i int) (bool, error) {
		mine := end
		mine.Reason = fmt.Sprint(i)
		err := s.AppendLog(t.Context(), mine)
		if errors.Is(err, booking.ErrLogTaken) {
			return false, nil
		}
		return err == nil, err
	})
}

func logEndedContext(t *testing.T, s LogDriver) {
	e := LogBegun(start)
	mustLog(t, s, e)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for name, call := range map[string]func() error{
		"AppendLog": func() error { return s.AppendLog(ctx, LogBegun(start)) },
		"Log":       func() error { return onlyError(t, "Log", s.Log(ctx, time.Time{})) },
	} {
		if err := call(); err == nil || errors.Is(err, booking.ErrLogTaken) || errors.Is(err, booking.ErrUnreadable) {
			t.Errorf("%s with an ended context: got %v, want an error that says nothing of the log", name, err)
		}
	}
	wantLog(t, s, time.Time{}, e)
}

func brokenLogWrites(t *testing.T, s LogDriver) {
	var want []booking.LogEntry
	at := start
	for fault, through := range faults() {
		at = at.Add(time.Second)
		e := LogBegun(at)
		want = append(want, e)
		call := func() error { return s.AppendLog(t.Context(), e) }
		if err := through(call); err != nil && !errors.Is(err, errLost) {
			t.Fatalf("%s: AppendLog, first call: %v", fault, err)
		}
		for range 2 {
			if err := call(); err != nil {
				t.Errorf("%s: AppendLog, repeat: got %v, want none", fault, err)
			}
			wantLog(t, s, time.Time{}, want...)
		}
	}
}

func mustLog(t *testing.T, s LogDriver, e booking.LogEntry) {
	t.Helper()
	if err := s.AppendLog(t.Context(), e); err != nil {
		t.Fatalf("AppendLog: %v", err)
	}
}

func wantLog(t *testing.T, s LogDriver, since time.Time, want ...booking.LogEntry) {
	t.Helper()
	var got []booking.LogEntry
	for e, err := range s.Log(t.Context(), since) {
		if err != nil {
			t.Errorf("log since %s: %v", since, err)
			continue
		}
		got = append(got, e)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("log since %s (-want +got):\n%s", since, diff)
	}
}
