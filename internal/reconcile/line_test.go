package reconcile_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"holdfast/internal/booking"
	"holdfast/internal/booking/bookingtest"
	"holdfast/internal/reconcile"
)

// page is a log that is read while it is written.
type page struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (p *page) Write(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.text.Write(b)
}

// lines are those with that message.
func (p *page) lines(t *testing.T, msg string) (out []map[string]any) {
	t.Helper()
	p.mu.Lock()
	defer p.mu.Unlock()
	for text := range strings.Lines(p.text.String()) {
		var line map[string]any
		if err := json.Unmarshal([]byte(text), &line); err != nil {
			t.Fatalf("line %s: %v", text, err)
		}
		if line["msg"] == msg {
			out = append(out, line)
		}
	}
	return out
}

// Each job of the runner has one line: what, how long, what it did, what came of it.
func TestRun_OneLineForEachJob(t *testing.T) {
	w := inProcess(t)
	b := w.Held(t, 1, "N1")
	log := new(page)
	w.deps.Log = slog.New(slog.NewJSONHandler(log, nil))
	w.deps.Every = time.Hour // one sweep, one check, one other job
	ctx, end := context.WithCancel(t.Context())
	defer end()
	w.deps.AfterSweep = []reconcile.Work{
		{Name: "first work", Do: func(context.Context) (map[string]int, error) { return map[string]int{"sent": 2, "failed": 0}, nil }},
		{Name: "second work", Do: func(context.Context) (map[string]int, error) { return nil, errors.New("out of ink") }},
		{Name: "last work", Do: func(ctx context.Context) (map[string]int, error) { end(); return nil, ctx.Err() }},
	}
	w.Clock.Advance(booking.DefaultHold)
	if err := w.another(t).Run(ctx); err != nil {
		t.Errorf("run: got %v, want nil", err)
	}
	w.Want(t, b, "", booking.StateReleased)
	for _, want := range []struct {
		msg, outcome, level string
		did                 string
		err                 bool
	}{
		{"sweep", "done", "INFO", `{"released":1}`, false},
		{"first work", "done", "INFO", `{"sent":2}`, false},
		{"second work", "failed", "ERROR", `null`, true},
		{"last work", "stopped", "INFO", `null`, true},
	} {
		lines := log.lines(t, want.msg)
		if len(lines) != 1 {
			t.Errorf("lines of %s: got %v, want one", want.msg, lines)
			continue
		}
		line := lines[0]
		did, _ := json.Marshal(line["did"])
		_, told := line["error"]
		if _, took := line["took"]; !took || line["outcome"] != want.outcome || line["level"] != want.level || string(did) != want.did || told != want.err {
			t.Errorf("line: got %v, want %s at %s, did %s, an error: %t, and how long it took", line, want.outcome, want.level, want.did, want.err)
		}
	}
	if n := len(log.lines(t, "cross-check")); n > 1 {
		t.Errorf("lines of the cross-check: got %d, want one at most", n)
	}
}

// A sweep that broke off says why, once.
func TestRun_LineOfASweepThatBrokeOff(t *testing.T) {
	w := inProcess(t)
	log := new(page)
	w.deps.Log = slog.New(slog.NewJSONHandler(log, nil))
	w.deps.Every = time.Hour
	ctx, end := context.WithCancel(t.Context())
	defer end()
	w.deps.AfterSweep = []reconcile.Work{{Name: "end", Do: func(context.Context) (map[string]int, error) { end(); return nil, nil }}}
	w.Faults.Next(bookingtest.OpDue, bookingtest.Lost)
	if err := w.another(t).Run(ctx); err != nil {
		t.Errorf("run: got %v, want nil", err)
	}
	lines := log.lines(t, "sweep")
	if len(lines) != 1 || lines[0]["outcome"] != "failed" || lines[0]["level"] != "ERROR" || lines[0]["error"] == nil {
		t.Errorf("lines: got %v, want one of a sweep that failed", lines)
	}
}
