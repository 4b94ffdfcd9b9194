package sqlite_test

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"holdfast/internal/booking"
	"holdfast/internal/queue/queuetest"
	"holdfast/internal/queue/sqlite"
)

// childPath is the variable that turns this test's binary into the other
// process: it sends into the file it names until it is killed.
const childPath = "HOLDFAST_TEST_QUEUE"

func TestMain(m *testing.M) {
	if path := os.Getenv(childPath); path != "" {
		if err := child(path); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	goleak.VerifyTestMain(m)
}

// clock is one that the test moves, for every opening of a file.
type clock struct{ ms atomic.Int64 }

func newClock() *clock {
	c := &clock{}
	c.ms.Store(time.Date(2026, 12, 1, 4, 0, 0, 0, time.UTC).UnixMilli())
	return c
}

func (c *clock) now() time.Time       { return time.UnixMilli(c.ms.Load()) }
func (c *clock) pass(d time.Duration) { c.ms.Add(d.Milliseconds()) }

func open(t testing.TB, path string, c *clock) *sqlite.Queue {
	t.Helper()
	q, err := sqlite.Open(t.Context(), path, sqlite.Options{Now: c.now})
	if err != nil {
		t.Fatalf("Open: %v", err)
	}
	t.Cleanup(func() {
		if err := q.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
	})
	return q
}

func TestQueue_KeepsTheContract(t *testing.T) {
	t.Parallel()
	for name, two := range map[string]bool{"OneOpening": false, "TwoOpenings": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			queuetest.Run(t, func(t *testing.T) queuetest.Harness {
				path, c := filepath.Join(t.TempDir(), "queue.db"), newClock()
				h := queuetest.Harness{
					Queue: open(t, path, c), Visibility: time.Minute, MaxReceives: 5, DedupWindow: 5 * time.Minute, Pass: c.pass,
				}
				if two {
					h.Other = open(t, path, c)
				}
				return h
			})
		})
	}
}

func TestStats_AgeIsOfTheOldestMessageNotDeleted(t *testing.T) {
	t.Parallel()
	c := newClock()
	q := open(t, filepath.Join(t.TempDir(), "queue.db"), c)
	age := func(want time.Duration) {
		t.Helper()
		if s, err := q.Stats(t.Context()); err != nil || s.OldestAge != want {
			t.Errorf("oldest age: got %s, %v, want %s", s.OldestAge, err, want)
		}
	}
	age(0)
	send(t, q, "00aa", "id-1")
	c.pass(3 * time.Second)
	send(t, q, "00bb", "id-2")
	c.pass(4 * time.Second)
	age(7 * time.Second)
	got, err := q.Receive(t.Context(), 1, 0)
	if err != nil || len(got) != 1 {
		t.Fatalf("Receive: got %d, %v, want 1", len(got), err)
	}
	age(7 * time.Second) // in flight is not deleted
	if _, err := q.Delete(t.Context(), []string{got[0].Receipt}); err != nil {
		t.Fatalf("Delete: %v", err)
	}
	age(4 * time.Second)
	c.pass(-time.Minute)
	age(0) // a clock set back makes no negative age
}

func TestReceive_WokenBySendsOfItsOwnAndOtherProcesses(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "queue.db")
		var qs [2]*sqlite.Queue
		for i := range qs {
			q, err := sqlite.Open(t.Context(), path, sqlite.Options{})
			if err != nil {
				t.Fatalf("Open: %v", err)
			}
			defer func() { _ = q.Close() }()
			qs[i] = q
		}
		for _, tt := range []struct {
			name   string
			sender *sqlite.Queue
			atMost time.Duration
		}{
			{name: "own", sender: qs[0], atMost: 10 * time.Millisecond},
			{name: "other", sender: qs[1], atMost: 100 * time.Millisecond},
		} {
			done := make(chan []booking.Delivery, 1)
			go func() {
				got, err := qs[0].Receive(t.Context(), 10, 20*time.Second)
				if err != nil {
					t.Errorf("Receive: %v", err)
				}
				done <- got
			}()
			synctest.Wait() // the long poll waits
			begun := time.Now()
			send(t, tt.sender, "00aa", tt.name)
			got := <-done
			if took := time.Since(begun); len(got) != 1 || took > tt.atMost {
				t.Fatalf("long poll woken by its %s process: got %d messages after %s, want 1 within %s", tt.name, len(got), took, tt.atMost)
			}
			if _, err := qs[0].Delete(t.Context(), []string{got[0].Receipt}); err != nil {
				t.Fatalf("Delete: %v", err)
			}
		}
	})
}

func TestRecover_GivesBackWhatWasInFlight(t *testing.T) {
	t.Parallel()
	q := open(t, filepath.Join(t.TempDir(), "queue.db"), newClock())
	send(t, q, "00aa", "id-1")
	send(t, q, "00aa", "id-2")
	if got, err := q.Receive(t.Context(), 10, 0); err != nil || len(got) != 2 {
		t.Fatalf("Receive: got %d, %v, want 2", len(got), err)
	}
	for range 2 {
		if err := q.Recover(t.Context()); err != nil {
			t.Fatalf("Recover: %v", err)
		}
	}
	got, err := q.Receive(t.Context(), 10, 0)
	if err != nil || len(got) != 2 || got[0].DedupID != "id-1" || got[0].Receives != 2 {
		t.Errorf("Receive after Recover: got %+v, %v, want both, in order, for the second time", got, err)
	}
}

func TestClose_EndsALongPoll(t *testing.T) {
	t.Parallel()
	q, err := sqlite.Open(t.Context(), filepath.Join(t.TempDir(), "queue.db"), sqlite.Options{})
	if err != nil {
		t.Fatalf("Open: %v", err)
	}
	done := make(chan error, 1)
	go func() {
		_, err := q.Receive(context.Background(), 10, time.Hour)
		done <- err
	}()
	if err := q.Close(); err != nil {
		t.Errorf("Close: %v", err)
	}
	if err := <-done; err == nil {
		t.Error("Receive of a queue that was closed: got no error, want one")
	}
	if err := q.Send(t.Context(), "00aa", "id", []byte("x")); err == nil {
		t.Error("Send after Close: got no error, want one")
	}
}

func TestOpen_RefusesSettingsThatMakeNoSense(t *testing.T) {
	t.Parallel()
	for name, o := range map[string]sqlite.Options{
		"visibility": {Visibility: -time.Second}, "receives": {MaxReceives: -1}, "window": {DedupWindow: -time.Second},
	} {
		if q, err := sqlite.Open(t.Context(), filepath.Join(t.TempDir(), "queue.db"), o); err == nil {
			_ = q.Close()
			t.Errorf("Open with a negative %s: got no error, want one", name)
		}
	}
}

// TestSend_WhatWasAcceptedOutlivesTheProcess kills a process that sends and
// looks for every message it was told was accepted, while this process receives
// from the same file.
func TestSend_WhatWasAcceptedOutlivesTheProcess(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("starts a process")
	}
	path := filepath.Join(t.TempDir(), "queue.db")
	q, err := sqlite.Open(t.Context(), path, sqlite.Options{})
	if err != nil {
		t.Fatalf("Open: %v", err)
	}
	defer func() { _ = q.Close() }()
	got := map[string]int{}
	receive := func() int {
		batch, err := q.Receive(t.Context(), 10, 0)
		if err != nil {
			t.Fatalf("Receive: %v", err)
		}
		var receipts []string
		for _, d := range batch {
			got[d.DedupID]++
			receipts = append(receipts, d.Receipt)
		}
		if failed, err := q.Delete(t.Context(), receipts); err != nil || len(failed) > 0 {
			t.Fatalf("Delete: got failed %q, %v", failed, err)
		}
		return len(batch)
	}

	for range 3 {
		cmd := exec.CommandContext(t.Context(), os.Args[0])
		cmd.Env = append(os.Environ(), childPath+"="+path)
		cmd.Stderr = os.Stderr
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatalf("start the other process: %v", err)
		}
		var accepted []string
		lines := bufio.NewScanner(out)
		for lines.Scan() {
			if accepted = append(accepted, lines.Text()); len(accepted) == 200 {
				if err := cmd.Process.Kill(); err != nil {
					t.Fatalf("kill the other process: %v", err)
				}
			}
			if len(accepted)%20 == 0 {
				receive()
			}
		}
		_ = cmd.Wait() // killed
		for receive() > 0 {
		}
		if len(accepted) < 200 {
			t.Fatalf("the other process accepted %d messages, want at least 200", len(accepted))
		}
		for _, id := range accepted {
			if got[id] != 1 {
				t.Errorf("message %s was accepted: got %d deliveries, want 1", id, got[id])
			}
		}
	}
}

// child sends from several goroutines and prints each id that was accepted.
func child(path string) error {
	q, err := sqlite.Open(context.Background(), path, sqlite.Options{})
	if err != nil {
		return err
	}
	var mu sync.Mutex
	var wg sync.WaitGroup
	errs := make(chan error, 8)
	for g := range 8 {
		wg.Go(func() {
			for i := range 10_000 {
				id := fmt.Sprintf("%d-%d-%d", os.Getpid(), g, i)
				if err := q.Send(context.Background(), fmt.Sprintf("%02x", i%64), id, []byte("x")); err != nil {
					errs <- err
					return
				}
				mu.Lock()
				fmt.Println(id)
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	close(errs)
	return errors.Join(<-errs, q.Close())
}

func send(t testing.TB, q *sqlite.Queue, group, id string) {
	t.Helper()
	if err := q.Send(t.Context(), group, id, []byte("body of "+id)); err != nil {
		t.Fatalf("Send %s/%s: %v", group, id, err)
	}
}

// BenchmarkSend is the rate at which concurrent requests have bookings accepted.
func BenchmarkSend(b *testing.B) {
	q := open(b, filepath.Join(b.TempDir(), "queue.db"), newClock())
	body := []byte(strings.Repeat("x", 800))
	var n atomic.Int64
	b.SetParallelism(64)
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			hash := booking.CandidateHash(fmt.Sprint(n.Add(1)))
			if err := q.Send(context.Background(), booking.QueueGroup(hash), hash, body); err != nil {
				b.Error(err)
			}
		}
	})
}

// BenchmarkReceiveDelete takes a backlog of 20,000 messages apart, ten at a time.
func BenchmarkReceiveDelete(b *testing.B) {
	const backlog = 20_000
	q := open(b, filepath.Join(b.TempDir(), "queue.db"), newClock())
	body := []byte(strings.Repeat("x", 800))
	sent := 0
	fill := func() {
		var wg sync.WaitGroup
		for w := range 64 {
			wg.Go(func() {
				for i := w; i < backlog; i += 64 {
					hash := booking.CandidateHash(string(binary.AppendVarint(nil, int64(sent+i))))
					if err := q.Send(context.Background(), booking.QueueGroup(hash), hash, body); err != nil {
						b.Error(err)
					}
				}
			})
		}
		wg.Wait()
		sent += backlog
	}
	fill()
	left := backlog
	for b.Loop() {
		if left < 10 {
			b.StopTimer()
			fill()
			left += backlog
			b.StartTimer()
		}
		got, err := q.Receive(context.Background(), 10, time.Second)
		if err != nil {
			b.Fatal(err)
		}
		receipts := make([]string, len(got))
		for i, d := range got {
			receipts[i] = d.Receipt
		}
		if _, err := q.Delete(context.Background(), receipts); err != nil {
			b.Fatal(err)
		}
		left -= len(got)
	}
}
