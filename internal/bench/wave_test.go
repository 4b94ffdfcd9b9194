package bench_test

import (
	"io"
	"strings"
	"testing"
	"time"

	"holdfast/internal/bench"
	"holdfast/internal/testenv"
)

func TestWave_EveryHoldIsSettledUnderTheRules(t *testing.T) {
	testenv.NeedServer(t)
	r, err := bench.Wave(t.Context(), bench.WaveOptions{Holds: 300, Latency: 10 * time.Millisecond, Within: time.Minute}, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	if err := r.Check(); err != nil {
		t.Errorf("rules: got %v, want them kept", err)
	}
	if r.Released != 270 || r.Paid != 30 || r.Left != 0 {
		t.Errorf("got %d released, %d paid, %d left, want 270, 30 and 0", r.Released, r.Paid, r.Left)
	}
	if r.Seconds <= 0 || r.Queries < 300 || r.PeakQueriesPerS < 1 || r.QueryRate < 1 || r.Burst < 1 || r.InversionMostMS <= 0 {
		t.Errorf("got %+v, want a time, a query for each hold, a rate and a burst", r)
	}
	if r.StoreWrites < 2*300 || r.Engine == "" || r.GOMAXPROCS < 1 {
		t.Errorf("got %+v, want two writes for each hold at least, an engine and GOMAXPROCS", r)
	}
}

// A wave that is not over in time is a figure, and breaks a rule.
func TestWave_WhatIsLeftIsTold(t *testing.T) {
	testenv.NeedServer(t)
	r, err := bench.Wave(t.Context(), bench.WaveOptions{Holds: 300, Latency: 10 * time.Millisecond, Within: 200 * time.Millisecond}, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	if r.Left == 0 || r.Left != r.Holds-r.Released-r.Paid {
		t.Errorf("got %d released, %d paid, %d left of %d, want some left", r.Released, r.Paid, r.Left, r.Holds)
	}
	if err := r.Check(); err == nil {
		t.Error("rules: got nil, want an error that tells what is left")
	}
}

func TestWaveResult_CheckTellsEachRule(t *testing.T) {
	t.Parallel()
	kept := bench.WaveResult{Holds: 10, Released: 9, Paid: 1, Seconds: 120, OldestFirst: true, PeakQueriesPerS: 284, QueryRate: 200, Burst: 64}
	if err := kept.Check(); err != nil {
		t.Errorf("at every limit: got %v, want nil", err)
	}
	for want, broken := range map[string]func(*bench.WaveResult){
		"2 of 10 holds are left": func(r *bench.WaveResult) { r.Left = 2 },
		"more than 2m0s":         func(r *bench.WaveResult) { r.Seconds = 120.1 },
		"285 queries":            func(r *bench.WaveResult) { r.PeakQueriesPerS = 285 },
		"due 700 ms earlier":     func(r *bench.WaveResult) { r.OldestFirst, r.LargestInversionMS = false, 700 },
	} {
		r := kept
		broken(&r)
		if err := r.Check(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want an error with %q", err, want)
		}
	}
}
