package ledgerstats_test

import (
	"context"
	"errors"
	"iter"
	"log/slog"
	"math"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"

	"holdfast/internal/booking"
	"holdfast/internal/ledgerstats"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// at is the ledger's time of every reading here.
var at = time.Date(2026, 12, 1, 4, 30, 0, 0, time.UTC)

// ledger answers what the test sets.
type ledger struct {
	mu      sync.Mutex
	figures booking.Figures
	rows    []booking.DueRow
	err     error // of ReadStatus
	scanErr error // after the rows
	reads   int
}

func (l *ledger) ReadStatus(context.Context) (booking.Figures, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.reads++
	return l.figures, l.err
}

func (l *ledger) Rows(context.Context) iter.Seq2[booking.DueRow, error] {
	return func(yield func(booking.DueRow, error) bool) {
		for _, d := range l.rows {
			if !yield(d, nil) {
				return
			}
		}
		if l.scanErr != nil {
			yield(booking.DueRow{}, l.scanErr)
		}
	}
}

func (l *ledger) set(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.err = err
}

func (l *ledger) count() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.reads
}

// page is a published status.json.
type page struct {
	made time.Time
	same bool
	err  error
}

func (p page) shown(context.Context, booking.Figures) (time.Time, bool, error) {
	return p.made, p.same, p.err
}

// logbook keeps the messages.
type logbook struct {
	mu    sync.Mutex
	lines []string
}

func (l *logbook) Enabled(context.Context, slog.Level) bool { return true }
func (l *logbook) WithAttrs([]slog.Attr) slog.Handler       { return l }
func (l *logbook) WithGroup(string) slog.Handler            { return l }
func (l *logbook) Handle(_ context.Context, r slog.Record) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lines = append(l.lines, r.Level.String()+" "+r.Message)
	return nil
}

func newStats(t *testing.T, l *ledger, p page, log slog.Handler) (*ledgerstats.Stats, *prometheus.Registry) {
	t.Helper()
	reg := prometheus.NewPedanticRegistry()
	s, err := ledgerstats.New(ledgerstats.Deps{Ledger: l, Shown: p.shown, Log: slog.New(log), Registerer: reg})
	if err != nil {
		t.Fatalf("New: got %v, want nil", err)
	}
	return s, reg
}

// gather is every series with its value.
func gather(t *testing.T, reg *prometheus.Registry) map[string]float64 {
	t.Helper()
	families, err := reg.Gather()
	if err != nil {
		t.Fatalf("Gather: got %v, want nil", err)
	}
	series := map[string]float64{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			name := strings.TrimPrefix(f.GetName(), "holdfast_")
			for _, l := range m.GetLabel() {
				name += "," + l.GetValue()
			}
			series[name] = m.GetGauge().GetValue() + m.GetCounter().GetValue()
		}
	}
	return series
}

// row is a row of that phase; its times are seconds before the reading.
func row(code string, p booking.Phase, change func(*booking.Row)) booking.DueRow {
	r := booking.Row{Attempt: "a-" + code, Level: "N1", Phase: p, Payment: "p-" + code, Hold: (10 * time.Minute).Milliseconds()}
	r.AdmittedAt, r.Deadline = ago(60), ago(-540)
	if change != nil {
		change(&r)
	}
	return booking.DueRow{Code: code, Row: r}
}

func ago(seconds int) int64 { return at.Add(-time.Duration(seconds) * time.Second).UnixMilli() }

func sale() booking.Figures {
	return booking.Figures{
		At: at, Open: true, Cap: 9, Total: 7,
		Levels: []booking.LevelFigures{{ID: "N1", Cap: 6, Admitted: 5}, {ID: "N2", Cap: 4, Admitted: -1}},
	}
}

func TestRead_ShowsWhatWaitsTooLong(t *testing.T) {
	t.Parallel()
	l := &ledger{figures: sale(), rows: []booking.DueRow{
		row("1", booking.PhaseNew, nil),
		row("2", booking.PhaseNew, func(r *booking.Row) { r.Deadline, r.AdmittedAt = 0, ago(721) }), // no payment, and over
		row("3", booking.PhaseNew, func(r *booking.Row) { r.Deadline, r.AdmittedAt = 0, ago(719) }),
		row("4", booking.PhaseHeld, func(r *booking.Row) { r.Deadline = ago(121) }),
		row("5", booking.PhaseHeld, func(r *booking.Row) { r.Deadline = ago(119) }),
		row("5", booking.PhaseHeld, func(r *booking.Row) { r.Deadline = ago(119) }),                    // told twice
		row("6", booking.PhasePaying, func(r *booking.Row) { r.Deadline = ago(700); r.Looks = 3 }),     // kept on purpose
		row("7", booking.PhasePaying, func(r *booking.Row) { r.Deadline = ago(7000); r.Looks = 4 }),    // and a person is called
		row("8", booking.PhaseHeld, func(r *booking.Row) { r.Doubt = true }),                           // rebuilt
		row("9", booking.PhasePaid, func(r *booking.Row) { r.PaidAt = ago(121); r.Deadline = ago(9) }), // neither
		row("a", booking.PhasePaid, func(r *booking.Row) { r.PaidAt, r.RecordDone = ago(121), true }),
		row("b", booking.PhasePaid, func(r *booking.Row) { r.PaidAt = ago(119); r.Looks = 3 }),
		row("c", booking.PhasePaid, func(r *booking.Row) { r.PaidAt, r.RecordDone, r.MailDone = ago(9000), true, true }),
		{Code: "d", Err: booking.ErrLedgerDamaged},
		row("e", "sold", nil),
	}}
	s, reg := newStats(t, l, page{made: at.Add(-7 * time.Second)}, slog.DiscardHandler)
	if err := s.Read(t.Context()); err != nil {
		t.Fatalf("Read: got %v, want nil", err)
	}
	want := map[string]float64{
		"ledger_rows,new": 3, "ledger_rows,payable": 0, "ledger_rows,held": 3, "ledger_rows,paying": 2,
		"ledger_rows,refused": 0, "ledger_rows,paid": 4, "ledger_rows,unreadable": 2,
		"seats_admitted,N1": 5, "seats_admitted,N2": -1, "seats_cap,N1": 6, "seats_cap,N2": 4,
		"sale_seats_admitted": 7, "sale_seats_cap": 9, "sale_open": 1,
		"holds_past_deadline": 2, "rows_in_doubt": 3, "rows_to_decide": 1,
		"paid_unfinished,record": 1, "paid_unfinished,mail": 2, "status_behind_seconds": 7,
		"ledger_reads_total,read": 1, "ledger_reads_total,unknown": 0, "ledger_reads_total,failed": 0,
	}
	if diff := cmp.Diff(want, gather(t, reg)); diff != "" {
		t.Errorf("series (-want +got):\n%s", diff)
	}
}

func TestRead_StatusIsBehindOnlyWhileItSaysSomethingElse(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name string
		page page
		want float64
	}{
		{"Same", page{made: at.Add(-time.Hour), same: true}, 0},
		{"Other", page{made: at.Add(-time.Hour)}, 3600},
		{"Newer", page{made: at.Add(time.Second)}, 0},
		{"None", page{}, math.Inf(1)},
		{"NoAnswer", page{made: at, same: true, err: errors.New("object store is asleep")}, math.Inf(1)},
	} {
		s, reg := newStats(t, &ledger{figures: sale()}, c.page, slog.DiscardHandler)
		if err := s.Read(t.Context()); err != nil {
			t.Errorf("%s: Read: got %v, want nil", c.name, err)
		}
		if got := gather(t, reg)["status_behind_seconds"]; got != c.want {
			t.Errorf("%s: got %v seconds behind, want %v", c.name, got, c.want)
		}
	}
}

func TestRead_WhatCouldNotBeReadIsNotShown(t *testing.T) {
	t.Parallel()
	asleep := errors.New("redis is asleep")
	for _, c := range []struct {
		name, outcome string
		damage        func(*ledger)
	}{
		{"NoAnswer", "failed", func(l *ledger) { l.err = asleep }},
		{"ScanBroke", "failed", func(l *ledger) { l.scanErr = asleep }},
		{"EmptyRedis", "unknown", func(l *ledger) { l.err = booking.ErrLedgerUnknown }},
	} {
		l := &ledger{figures: sale(), rows: []booking.DueRow{row("1", booking.PhaseHeld, nil)}}
		s, reg := newStats(t, l, page{same: true, made: at}, slog.DiscardHandler)
		if err := s.Read(t.Context()); err != nil {
			t.Errorf("%s: first reading: got %v, want nil", c.name, err)
		}
		if n := len(gather(t, reg)); n < 20 {
			t.Errorf("%s: first reading: got %d series, want all", c.name, n)
		}
		c.damage(l)
		if err := s.Read(t.Context()); err == nil {
			t.Errorf("%s: second reading: got nil, want an error", c.name)
		}
		want := map[string]float64{"ledger_reads_total,read": 1, "ledger_reads_total,unknown": 0, "ledger_reads_total,failed": 0}
		want["ledger_reads_total,"+c.outcome] = 1
		if diff := cmp.Diff(want, gather(t, reg)); diff != "" {
			t.Errorf("%s: series after the second reading (-want +got):\n%s", c.name, diff)
		}
	}
}

func TestRun_ReadsEveryTenSecondsAndShowsNothingAfterItsTerm(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := &ledger{figures: sale()}
		s, reg := newStats(t, l, page{same: true, made: at}, slog.DiscardHandler)
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() { ended <- s.Run(ctx) }()
		synctest.Wait()
		if got := l.count(); got != 1 {
			t.Errorf("readings at once: got %d, want 1", got)
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		if got := l.count(); got != 7 {
			t.Errorf("readings after a minute: got %d, want 7", got)
		}
		if _, there := gather(t, reg)["sale_open"]; !there {
			t.Error("figures while it runs: got none, want some")
		}
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("Run: got %v, want nil", err)
		}
		for name := range gather(t, reg) {
			if !strings.HasPrefix(name, "ledger_reads_total") {
				t.Errorf("after its term: got series %s, want none of the figures", name)
			}
		}
	})
}

func TestRun_SaysOnceThatItCannotReadAndOnceThatItCan(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		log := &logbook{}
		l := &ledger{figures: sale(), err: booking.ErrLedgerUnknown}
		s, _ := newStats(t, l, page{same: true, made: at}, log)
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() { ended <- s.Run(ctx) }()
		time.Sleep(time.Minute)
		l.set(nil)
		time.Sleep(time.Minute)
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("Run: got %v, want nil", err)
		}
		want := []string{
			"ERROR seat ledger cannot be read: its figures are not shown until it can",
			"INFO seat ledger can be read again",
		}
		if diff := cmp.Diff(want, log.lines); diff != "" {
			t.Errorf("log (-want +got):\n%s", diff)
		}
	})
}

func TestRead_AnEndedTermIsNoFailure(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	s, reg := newStats(t, &ledger{err: context.Canceled}, page{}, slog.DiscardHandler)
	if err := s.Read(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("Read: got %v, want %v", err, context.Canceled)
	}
	if got := gather(t, reg)["ledger_reads_total,failed"]; got != 0 {
		t.Errorf("failed readings: got %v, want 0", got)
	}
}

func TestNew_RefusesWhatIsMissing(t *testing.T) {
	t.Parallel()
	if _, err := ledgerstats.New(ledgerstats.Deps{}); err == nil {
		t.Error("New of nothing: got nil, want an error")
	}
}
