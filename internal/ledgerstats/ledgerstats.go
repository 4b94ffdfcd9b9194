// Package ledgerstats shows the seat ledger to an operator: how many seats are sold,
// how many rows are in which phase, and how many of them wait for longer than they
// may. It reads the whole ledger every ten seconds, in the one process of the fleet
// that is elected, so that more processes do not read it more often.
//
// Fail mode: what could not be read is not shown. A process that is not elected, or
// whose last reading failed, has no figures; the count of readings says which. Nothing
// rests on any of it: the reads are plain ones. Clock: the ledger's own.
package ledgerstats

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"math"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"holdfast/internal/booking"
)

const (
	readEvery  = 10 * time.Second
	readBudget = 8 * time.Second
	// inTime is what a finished step of the reconciler may take: it passes a full wave
	// of lapsed holds in two minutes, and looks at a paid row again after one.
	inTime = 2 * time.Minute
)

// Ledger is what is read of the seat ledger, plainly. Both are safe for concurrent
// use and to repeat. ReadStatus is booking.ErrLedgerUnknown for a Redis without an
// epoch. Rows may tell a row twice, and goes on after one with an Err.
type Ledger interface {
	ReadStatus(ctx context.Context) (booking.Figures, error)
	Rows(ctx context.Context) iter.Seq2[booking.DueRow, error]
}

// Deps is what Stats is made of.
type Deps struct {
	Ledger Ledger
	// Shown tells when the published status.json was made, by the ledger's clock, and
	// whether it says what the figures say. Its error means that nobody knows; it is
	// called again by the next reading.
	Shown func(ctx context.Context, f booking.Figures) (made time.Time, same bool, err error)
	// Every is the time between two readings; 0 is 10 seconds.
	Every      time.Duration
	Log        *slog.Logger
	Registerer prometheus.Registerer
}

// Stats reads and shows. Read and Run belong to one goroutine.
type Stats struct {
	Deps
	metrics *metrics
	failing bool // and it was said
}

// New checks its dependencies and registers the metrics.
func New(d Deps) (*Stats, error) {
	if d.Ledger == nil || d.Shown == nil || d.Log == nil || d.Registerer == nil {
		return nil, errors.New("ledgerstats: a dependency is missing")
	}
	if d.Every <= 0 {
		d.Every = readEvery
	}
	s := &Stats{Deps: d, metrics: newMetrics()}
	if err := d.Registerer.Register(s.metrics); err != nil {
		return nil, fmt.Errorf("register ledger metrics: %w", err)
	}
	return s, nil
}

// Run reads at once and then again and again until ctx ends, and shows nothing
// afterwards: the figures are another process's then. It returns nil.
func (s *Stats) Run(ctx context.Context) error {
	defer s.metrics.show(nil)
	tick := time.NewTicker(s.Every)
	defer tick.Stop()
	for {
		err := s.Read(ctx)
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil && !s.failing:
			s.Log.ErrorContext(ctx, "seat ledger cannot be read: its figures are not shown until it can", "error", err)
		case err == nil && s.failing:
			s.Log.InfoContext(ctx, "seat ledger can be read again")
		}
		s.failing = err != nil
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

// Read reads once, for 8 s at most, and shows what it read. After an error nothing is
// shown, and a later call may do better.
func (s *Stats) Read(ctx context.Context) error {
	bounded, cancel := context.WithTimeout(ctx, readBudget)
	defer cancel()
	f, err := s.read(bounded)
	if ctx.Err() != nil { // the term is over: this reading says nothing of the ledger
		s.metrics.show(nil)
		return ctx.Err()
	}
	s.metrics.count(err)
	s.metrics.show(f)
	return err
}

// figures are what one reading found.
type figures struct {
	sale          booking.Figures
	rows          map[booking.Phase]int // unreadable ones too
	pastDeadline  int
	inDoubt       int
	toDecide      int
	withoutRecord int
	withoutMail   int
	statusBehind  float64 // seconds
}

func (s *Stats) read(ctx context.Context) (*figures, error) {
	sale, err := s.Ledger.ReadStatus(ctx)
	if err != nil {
		return nil, fmt.Errorf("read the seat ledger: %w", err)
	}
	f := &figures{sale: sale, rows: map[booking.Phase]int{}}
	told := map[string]struct{}{}
	for d, err := range s.Ledger.Rows(ctx) {
		if err != nil {
			return nil, fmt.Errorf("read the seat ledger: %w", err)
		}
		if _, twice := told[d.Code]; twice {
			continue
		}
		told[d.Code] = struct{}{}
		f.add(d)
	}
	f.statusBehind = s.behind(ctx, sale)
	return f, nil
}

// behind is how old status.json is when it does not say what the ledger says. In a
// rush it never does, and is young. One that cannot be read is as bad as none.
func (s *Stats) behind(ctx context.Context, f booking.Figures) float64 {
	made, same, err := s.Shown(ctx, f)
	switch {
	case err != nil || made.IsZero():
		return math.Inf(1)
	case same:
		return 0
	}
	return max(0, f.At.Sub(made).Seconds())
}

// unreadable stands beside the phases for rows that are none of them.
const unreadable booking.Phase = "unreadable"

func (f *figures) add(d booking.DueRow) {
	row, late := d.Row, f.sale.At.Add(-inTime).UnixMilli()
	if d.Err != nil || !slices.Contains(booking.Phases(), row.Phase) {
		f.rows[unreadable]++
		return
	}
	f.rows[row.Phase]++
	if row.Phase == booking.PhasePaid {
		if row.PaidAt < late && !row.RecordDone {
			f.withoutRecord++
		}
		if row.PaidAt < late && !row.MailDone {
			f.withoutMail++
		}
		return
	}
	if row.InDoubt() {
		f.inDoubt++
		if row.ForAPerson() {
			f.toDecide++
		}
		return // kept on purpose
	}
	deadline := row.Deadline
	if deadline == 0 { // no payment yet
		deadline = row.AdmittedAt + row.Hold
	}
	if deadline < late {
		f.pastDeadline++
	}
}
