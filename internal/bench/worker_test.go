package bench_test

import (
	"bytes"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"holdfast/internal/bench"
	"holdfast/internal/testenv"
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
	if r.EmulatorResult != nil {
		t.Errorf("got %+v, want nothing of an emulator that was not named", *r.EmulatorResult)
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

// counter stands before an emulator and counts what it is asked.
type counter struct {
	mu                              sync.Mutex
	now, most                       int // requests that are worked on
	puts, unconditional, longPolled int
}

func (c *counter) begin(op string, body []byte) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now++
	c.most = max(c.most, c.now)
	switch {
	case strings.HasSuffix(op, ".PutItem"):
		c.puts++
		if !bytes.Contains(body, []byte(`"ConditionExpression"`)) {
			c.unconditional++
		}
	case strings.HasSuffix(op, ".ReceiveMessage"):
		if bytes.Contains(body, []byte(`"WaitTimeSeconds"`)) {
			c.longPolled++
		}
	}
}

func (c *counter) end() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now--
}

func TestWorker_TheEmulatorIsAskedOneThingAtATime(t *testing.T) {
	t.Parallel()
	behind, err := url.Parse(testenv.AWS(t).Endpoint)
	if err != nil {
		t.Fatal(err)
	}
	var c counter
	proxy := httputil.NewSingleHostReverseProxy(behind)
	front := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			t.Errorf("read a request: %v", err)
		}
		r.Body = io.NopCloser(bytes.NewReader(body))
		answer := httptest.NewRecorder() // sent when this request has been counted out
		c.begin(r.Header.Get("X-Amz-Target"), body)
		proxy.ServeHTTP(answer, r)
		c.end()
		for name, values := range answer.Header() {
			w.Header()[name] = values
		}
		w.WriteHeader(answer.Code)
		_, _ = w.Write(answer.Body.Bytes()) // who has hung up needs none
	}))
	defer front.Close()

	r, err := bench.Worker(t.Context(), bench.WorkerOptions{Records: 40, Rounds: 2, Within: time.Minute, Emulator: front.URL}, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	e := r.EmulatorResult
	if e == nil || len(e.EmulatorRoundsPerS) != 2 || e.EmulatorRecordsPerS <= 0 {
		t.Fatalf("got %+v, want the rates of two rounds and their median", e)
	}
	if e.EmulatorRecords != 40 || e.EmulatorGroups+e.EmulatorBehind != 40 || e.EmulatorBehind < 20 {
		t.Errorf("got %d records in %d groups, %d behind another, want 40, and half of them behind", e.EmulatorRecords, e.EmulatorGroups, e.EmulatorBehind)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.most != 1 || c.longPolled != 0 {
		t.Errorf("got %d requests at a time and %d long polls, want 1 and 0", c.most, c.longPolled)
	}
	if c.puts != 80 || c.unconditional != 0 {
		t.Errorf("got %d puts, %d of them without a condition, want 80 and 0", c.puts, c.unconditional)
	}
}

func TestWorker_NoEmulatorIsToldBeforeTheFirstRound(t *testing.T) {
	t.Parallel()
	var said strings.Builder
	o := bench.WorkerOptions{Records: 10, Rounds: 1, Within: time.Minute, Emulator: "http://127.0.0.1:1"}
	if r, err := bench.Worker(t.Context(), o, &said); err == nil || !strings.Contains(err.Error(), "no AWS emulator answers") || said.Len() > 0 {
		t.Errorf("got %+v, %v after %q, want an error that says so, and no round", r, err, said.String())
	}
}
