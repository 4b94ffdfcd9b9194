package bench_test

import (
	"io"
	"strings"
	"testing"
	"time"

	"holdfast/internal/bench"
)

func TestWorker_EveryFigureIsThere(t *testing.T) {
	t.Parallel()
	r, err := bench.Worker(t.Context(), bench.WorkerOptions{Records: 900, Rounds: 2, Within: time.Minute}, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	if len(r.RoundsPerS) != 2 || r.RecordsPerS <= 0 || r.QueuedPerS <= 0 || r.FlushMS <= 0 || r.GOMAXPROCS < 1 {
		t.Errorf("got %+v, want the rates of two rounds, their median, the queue's, a flush and GOMAXPROCS", r)
	}
	if r.Records != 900 || r.Groups < 1 || r.Groups+r.Behind != 900 {
		t.Errorf("got %d records in %d groups, %d behind another, want 900 and a sum of 900", r.Records, r.Groups, r.Behind)
	}
	if r.JournalMode != "WAL" || r.Synchronous != "FULL" {
		t.Errorf("got journal mode %s and synchronous %s, want WAL and FULL: a commit survives a power cut", r.JournalMode, r.Synchronous)
	}
}

func TestWorker_WhatCannotBeMeasuredIsAnError(t *testing.T) {
	t.Parallel()
	for want, o := range map[string]bench.WorkerOptions{
		"positive":            {Records: 0, Rounds: 1, Within: time.Minute},
		"not done within 1ms": {Records: 900, Rounds: 1, Within: time.Millisecond},
	} {
		if r, err := bench.Worker(t.Context(), o, io.Discard); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: got %+v, %v, want an error with %q", o, r, err, want)
		}
	}
}
