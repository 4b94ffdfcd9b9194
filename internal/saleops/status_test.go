package saleops_test

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"holdfast/internal/booking"
	"holdfast/internal/saleops"
)

// sightWorld is a switchWorld with rows and refunds.
type sightWorld struct {
	*switchWorld
	rows      []booking.DueRow
	rowsErr   error
	refunds   int
	unread    int
	refundErr error
	scans     int
	epochNow  string // "" is the switchWorld's
	onScan    func() // when a scan has told all rows
}

func (w *sightWorld) Epoch(ctx context.Context) (string, error) {
	if w.epochNow != "" {
		return w.epochNow, w.epoch
	}
	return w.switchWorld.Epoch(ctx)
}

func (w *sightWorld) Rows(context.Context) iter.Seq2[booking.DueRow, error] {
	return func(yield func(booking.DueRow, error) bool) {
		w.scans++
		for _, r := range w.rows {
			if !yield(r, nil) {
				return
			}
		}
		if w.onScan != nil {
			w.onScan()
		}
		if w.rowsErr != nil {
			yield(booking.DueRow{}, w.rowsErr)
		}
	}
}

func (w *sightWorld) OpenRefunds(context.Context) iter.Seq2[booking.Refund, error] {
	return func(yield func(booking.Refund, error) bool) {
		for range w.unread {
			if !yield(booking.Refund{}, booking.ErrUnreadable) {
				return
			}
		}
		for range w.refunds {
			if !yield(booking.Refund{}, nil) {
				return
			}
		}
		if w.refundErr != nil {
			yield(booking.Refund{}, w.refundErr)
		}
	}
}

func (w *sightWorld) sighter() *saleops.Sighter {
	return &saleops.Sighter{Ledger: w, Queue: w, Refunds: w, Status: w.status}
}

// row adds a row of that age.
func (w *sightWorld) row(phase booking.Phase, age time.Duration, change ...func(*booking.Row)) {
	r := booking.Row{Phase: phase, AdmittedAt: w.now.Add(-age).UnixMilli()}
	for _, c := range change {
		c(&r)
	}
	w.rows = append(w.rows, booking.DueRow{Code: fmt.Sprintf("C%d", len(w.rows)), Row: r})
}

func TestSighter_CountsRowsByPhaseAndAge(t *testing.T) {
	t.Parallel()
	w := &sightWorld{switchWorld: newSwitchWorld(), refunds: 3, unread: 1}
	w.stats = booking.QueueStats{Waiting: 4, InFlight: 2, Dead: 1, OldestAge: 1500 * time.Millisecond}
	w.open, w.total, w.level = true, 8, 8
	due := func(in time.Duration) func(*booking.Row) {
		return func(r *booking.Row) { r.Deadline = w.now.Add(in).UnixMilli() }
	}
	w.row(booking.PhaseHeld, 2*time.Minute-time.Millisecond, due(time.Millisecond))
	w.row(booking.PhaseHeld, 2*time.Minute, due(0))
	w.row(booking.PhaseHeld, 10*time.Minute, due(-time.Second))
	w.row(booking.PhasePaying, 31*time.Minute, func(r *booking.Row) { r.Looks = 3 })
	w.row(booking.PhasePaying, 40*time.Minute, func(r *booking.Row) { r.Looks = 4 })
	w.row(booking.PhaseHeld, time.Hour, func(r *booking.Row) { r.Doubt = true })
	w.row(booking.PhasePaid, time.Hour, due(-time.Hour), func(r *booking.Row) { r.Looks = 9 })
	w.row(booking.PhaseNew, -time.Second)
	w.rows = append(w.rows, w.rows[0], booking.DueRow{Code: "X", Err: booking.ErrLedgerDamaged}, booking.DueRow{Code: "Y", Row: booking.Row{Phase: "odd"}})

	got := w.sighter().Look(t.Context())
	phase := func(p booking.Phase, oldest int64, ages ...int) saleops.PhaseCount {
		sum := 0
		for _, n := range ages {
			sum += n
		}
		return saleops.PhaseCount{Phase: p, Rows: sum, ByAge: ages, OldestSeconds: oldest}
	}
	yes, eight := true, 8
	want := saleops.Sight{
		Sale: "exam",
		Seats: &saleops.SeatSight{At: w.now, Open: true, Cap: 10, Admitted: &eight,
			Levels: []saleops.LevelSight{{ID: "N1", Name: "N1", Cap: 10, Admitted: &eight}}},
		Rows: &saleops.RowCount{
			At: w.now, Rows: 10, PastDeadline: 2, InDoubt: 3, ForAPerson: 1, Unreadable: 2,
			Phases: []saleops.PhaseCount{
				phase(booking.PhaseNew, 0, 1, 0, 0, 0), phase(booking.PhasePayable, 0, 0, 0, 0, 0), phase(booking.PhaseHeld, 3600, 1, 1, 1, 1),
				phase(booking.PhasePaying, 2400, 0, 0, 0, 2), phase(booking.PhaseRefused, 0, 0, 0, 0, 0), phase(booking.PhasePaid, 3600, 0, 0, 0, 1),
			},
		},
		Queue:        &saleops.QueueSight{Waiting: 4, InFlight: 2, Dead: 1, OldestSeconds: 1.5},
		Refunds:      &saleops.RefundSight{Due: 3, Unreadable: 1},
		Acknowledged: &yes, Published: &yes, Unknown: map[string]string{},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("sight (-want +got):\n%s", diff)
	}
	if got.Rows.Paid() != 1 {
		t.Errorf("paid: got %d, want 1", got.Rows.Paid())
	}
}

func TestSighter_CountsManyThingsAtMostEveryTenSeconds(t *testing.T) {
	t.Parallel()
	w := &sightWorld{switchWorld: newSwitchWorld(), refunds: 2000}
	s := w.sighter()
	first := s.Look(t.Context())
	if first.Refunds == nil || first.Refunds.Due != 1000 || !first.Refunds.More {
		t.Errorf("2000 refunds: got %+v, want 1000 or more", first.Refunds)
	}
	w.row(booking.PhaseHeld, 0)
	w.now = w.now.Add(9999 * time.Millisecond)
	if got := s.Look(t.Context()); got.Rows.Rows != 0 || w.scans != 1 || !got.Rows.At.Equal(first.Rows.At) {
		t.Errorf("after a moment: got %+v by %d counts, want the first count with its time", got.Rows, w.scans)
	}
	w.now = w.now.Add(time.Millisecond)
	if got := s.Look(t.Context()); got.Rows.Rows != 1 || w.scans != 2 {
		t.Errorf("after ten seconds: got %+v by %d counts, want another count", got.Rows, w.scans)
	}
}

func TestSighter_WhatCannotBeReadIsUnknownAndNeverNothing(t *testing.T) {
	t.Parallel()
	down := errors.New("down")
	w := &sightWorld{switchWorld: newSwitchWorld(), rowsErr: down, refundErr: down}
	w.readErr, w.saleErr, w.acks, w.pageErr = down, down, down, down
	got := w.sighter().Look(t.Context())
	want := map[string]string{
		saleops.PartSale: "down", saleops.PartSeats: "down", saleops.PartRows: "down",
		saleops.PartRefunds: "count refunds: down", saleops.PartReplicas: "down", saleops.PartPublished: "down",
	}
	if diff := cmp.Diff(want, got.Unknown); diff != "" {
		t.Errorf("unknown (-want +got):\n%s", diff)
	}
	if got.Seats != nil || got.Rows != nil || got.Refunds != nil || got.Acknowledged != nil || got.Published != nil {
		t.Errorf("got %+v, want no figure of what was not read", got)
	}

	// A counter that is no number, replicas that do not acknowledge, another page: known.
	w = &sightWorld{switchWorld: newSwitchWorld()}
	w.total, w.level, w.acks, w.page = -1, -1, booking.ErrNotAcknowledged, `{"open":true}`
	got = w.sighter().Look(t.Context())
	if len(got.Unknown) > 0 || got.Seats.Admitted != nil || got.Seats.Levels[0].Admitted != nil || *got.Acknowledged || *got.Published {
		t.Errorf("got %+v, want damaged counters, no acknowledgement, and a page that says otherwise", got)
	}
}

// An empty Redis has no row, and so it has none of nothing that it knows: what is
// counted in it is not what the sale has.
func TestSighter_RowsOfALedgerWithoutAnEpochAreUnknown(t *testing.T) {
	t.Parallel()
	for name, lose := range map[string]func(w *sightWorld){
		"Before": func(w *sightWorld) { w.epoch = booking.ErrLedgerUnknown },
		"Amid":   func(w *sightWorld) { w.onScan = func() { w.epoch = booking.ErrLedgerUnknown } },
		"Anew":   func(w *sightWorld) { w.onScan = func() { w.epochNow = "e2" } },
	} {
		w := &sightWorld{switchWorld: newSwitchWorld()}
		lose(w)
		got := w.sighter().Look(t.Context())
		if got.Rows != nil || got.Unknown[saleops.PartRows] == "" {
			t.Errorf("%s: got rows %+v, unknown %q, want rows unknown", name, got.Rows, got.Unknown)
		}
	}

	// Nor is what was counted a moment ago.
	w := &sightWorld{switchWorld: newSwitchWorld()}
	w.row(booking.PhasePaid, time.Hour)
	s := w.sighter()
	if got := s.Look(t.Context()); got.Rows.Paid() != 1 {
		t.Fatalf("before: got %+v, want one paid", got.Rows)
	}
	w.epoch = booking.ErrLedgerUnknown
	if got := s.Look(t.Context()); got.Rows != nil || got.Refunds == nil {
		t.Errorf("lost: got rows %+v, refunds %+v, want rows unknown, refunds counted", got.Rows, got.Refunds)
	}
	w.epoch, w.epochNow, w.rows = nil, "e2", nil
	if got := s.Look(t.Context()); got.Rows == nil || got.Rows.Rows != 0 {
		t.Errorf("begun anew: got %+v, want another count", got.Rows)
	}
}
