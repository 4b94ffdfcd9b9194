package record_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"

	"holdfast/internal/booking"
	queue "holdfast/internal/queue/sqlite"
	"holdfast/internal/record"
	store "holdfast/internal/store/sqlite"
	"holdfast/internal/testenv"
)

// soon is the visibility time-out of killed workers: what they had in hand comes
// again while the others flow.
const soon = 3 * time.Second

// started is what a worker process says once a signal is its to answer.
const started = "started"

// workerProcess is a worker on the files in the folder that its argument names.
func workerProcess(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	q, err := queue.Open(ctx, filepath.Join(args[0], queueFile), queue.Options{Visibility: soon})
	if err != nil {
		return err
	}
	s, err := store.Open(ctx, filepath.Join(args[0], storeFile))
	if err != nil {
		return err
	}
	w, err := record.New(record.Deps{
		Queue: q, Store: s, Reg: prometheus.NewRegistry(), Now: time.Now, Visibility: soon,
		Log: slog.New(slog.NewJSONHandler(stderr, &slog.HandlerOptions{Level: slog.LevelWarn})),
	})
	if err != nil {
		return err
	}
	_, _ = fmt.Fprintln(stdout, started)
	return errors.Join(w.Run(ctx), q.Close(), s.Close())
}

// Case 29: a worker process is ended every two seconds, by TERM and by KILL in turn,
// while 5,000 bookings flow; every tenth payer was faster than the worker. In the end
// each booking has its one record, and no redelivery has undone a payment.
func TestCase29_WorkerKilledEveryTwoSeconds(t *testing.T) {
	if testing.Short() {
		t.Skip("starts processes")
	}
	t.Parallel()
	const bookings, senders, paidEvery, lives, life = 5000, 16, 10, 6, 2 * time.Second
	dir := t.TempDir()
	q, err := queue.Open(t.Context(), filepath.Join(dir, queueFile), queue.Options{Visibility: soon})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = q.Close() }()
	s, err := store.Open(t.Context(), filepath.Join(dir, storeFile))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = s.Close() }()
	b := &bench{t: t, queue: &faultyQueue{Queue: q}, store: &faultyStore{Store: s}}

	var mu sync.Mutex
	want := make(map[string]booking.Record, bookings)
	var sent atomic.Int64
	ctx, stop := context.WithCancel(t.Context())
	begun := time.Now()
	flow := func(i int) {
		select {
		case <-time.After(time.Until(begun.Add(lives * life * time.Duration(i) / bookings))):
		case <-ctx.Done():
			return
		}
		mu.Lock()
		rec := b.booking()
		mu.Unlock()
		body, err := json.Marshal(rec)
		if err == nil && i%paidEvery == 0 {
			rec, err = s.MarkPaid(ctx, booking.Paid{Record: rec, Transaction: fmt.Sprint("TX", i), PaidAt: time.Now()})
		}
		if err == nil {
			err = q.Send(ctx, booking.QueueGroup(rec.CandidateHash), rec.Invoice, body)
		}
		if err != nil {
			t.Errorf("booking %d: %v", i, err)
		}
		mu.Lock()
		want[rec.Attempt] = rec
		mu.Unlock()
		sent.Add(1)
	}
	var flowed sync.WaitGroup
	for first := range senders {
		flowed.Go(func() {
			for i := first; i < bookings; i += senders {
				flow(i)
			}
		})
	}
	defer func() { stop(); flowed.Wait() }()
	left := func() (int, booking.QueueStats) {
		n := sent.Load() // first: what is sent since is in the figures, and only hides progress
		stats := b.stats()
		return int(n) - stats.Waiting - stats.InFlight, stats
	}

	for i := range lives {
		before, _ := left()
		p := testenv.StartProgram(t, "worker", []string{dir}, nil)
		p.Lines(t, 1)
		over := time.After(life)
		testenv.Eventually(t, func() error {
			// All may be done before its turn comes, on a machine that starts programs slowly.
			if done, stats := left(); done <= before && done < bookings {
				return fmt.Errorf("%d done before this worker, %d now: %+v", before, done, stats)
			}
			return nil
		})
		<-over
		if i%2 == 1 {
			p.Kill()
		} else if code := p.Stop(t, syscall.SIGTERM); code != 0 {
			t.Errorf("worker after TERM: got exit status %d, want 0", code)
		}
	}
	flowed.Wait()
	p := testenv.StartProgram(t, "worker", []string{dir}, nil)
	p.Lines(t, 1) // there may be nothing left to see it at work by
	testenv.Eventually(t, func() error {
		if _, stats := left(); stats.Waiting+stats.InFlight > 0 {
			return fmt.Errorf("queue: %+v, want it empty", stats)
		}
		return nil
	})
	if code := p.Stop(t, syscall.SIGTERM); code != 0 {
		t.Errorf("last worker after TERM: got exit status %d, want 0", code)
	}

	n := 0
	for got, err := range s.Records(t.Context()) {
		if err != nil {
			t.Fatalf("scan: %v", err)
		}
		if got != want[got.Attempt] {
			t.Errorf("record of %s (-want +got):\n%s", got.Code, cmp.Diff(want[got.Attempt], got))
		}
		n++
	}
	if n != bookings || len(b.dead()) != 0 {
		t.Errorf("records and dead letters: got %d and %d, want %d and none", n, len(b.dead()), bookings)
	}
}
