package record_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"

	"holdfast/internal/booking"
	queue "holdfast/internal/queue/sqlite"
	"holdfast/internal/record"
	store "holdfast/internal/store/sqlite"
	"holdfast/internal/testenv"
)

func TestMain(m *testing.M) {
	testenv.BeProgram(testenv.Programs{"worker": workerProcess})
	goleak.VerifyTestMain(m)
}

var errDown = errors.New("connection refused")

// faultyQueue is the real queue behind a line that the test can break.
type faultyQueue struct {
	*queue.Queue
	cut         atomic.Bool  // every call is an error and does nothing
	receives    atomic.Int64 // calls of Receive
	maxReceives atomic.Int64 // the highest receive count handed out
	onDelete    func(receipts []string) (failed []string, err error)
}

func (q *faultyQueue) Receive(ctx context.Context, most int, wait time.Duration) ([]booking.Delivery, error) {
	if q.cut.Load() {
		return nil, errDown
	}
	q.receives.Add(1)
	ds, err := q.Queue.Receive(ctx, most, wait)
	for _, d := range ds {
		q.maxReceives.Store(max(q.maxReceives.Load(), int64(d.Receives)))
	}
	return ds, err
}

func (q *faultyQueue) Delete(ctx context.Context, receipts []string) ([]string, error) {
	if q.cut.Load() {
		return nil, errDown
	}
	if q.onDelete != nil {
		if failed, err := q.onDelete(receipts); err != nil || failed != nil {
			return failed, err
		}
	}
	return q.Queue.Delete(ctx, receipts)
}

func (q *faultyQueue) Delay(ctx context.Context, receipt string, d time.Duration) error {
	if q.cut.Load() {
		return errDown
	}
	return q.Queue.Delay(ctx, receipt, d)
}

func (q *faultyQueue) Stats(ctx context.Context) (booking.QueueStats, error) {
	if q.cut.Load() {
		return booking.QueueStats{}, errDown
	}
	return q.Queue.Stats(ctx)
}

// faultyStore is the real store behind a line that the test can break.
type faultyStore struct {
	*store.Store
	down   atomic.Bool
	full   atomic.Bool // takes no record for now, and answers otherwise
	kept   atomic.Bool // writes are carried out and reported lost, once a record
	slow   time.Duration
	bad    string         // an attempt that is never taken
	flaky  map[string]int // writes of an attempt that will fail
	mu     sync.Mutex
	tries  map[string]int
	asleep atomic.Int64 // writes at work
}

func (s *faultyStore) PutHeld(ctx context.Context, rec booking.Record) (booking.Record, bool, error) {
	s.asleep.Add(1)
	defer s.asleep.Add(-1)
	if s.slow > 0 {
		select {
		case <-time.After(s.slow):
		case <-ctx.Done():
			return booking.Record{}, false, ctx.Err()
		}
	}
	if s.full.Load() {
		return booking.Record{}, false, fmt.Errorf("throttled: %w", booking.ErrUnavailable)
	}
	if s.down.Load() || rec.Attempt == s.bad || s.fails(rec.Attempt) {
		return booking.Record{}, false, errDown
	}
	got, created, err := s.Store.PutHeld(ctx, rec)
	if s.kept.Load() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.tries[rec.Attempt]++; s.tries[rec.Attempt] == 1 {
			return booking.Record{}, false, errDown
		}
	}
	return got, created, err
}

func (s *faultyStore) fails(attempt string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.flaky[attempt]--
	return s.flaky[attempt] >= 0
}

func (s *faultyStore) Ping(ctx context.Context) error {
	if s.down.Load() {
		return errDown
	}
	return s.Store.Ping(ctx)
}

// bench is a worker on a queue and a store in files, in a bubble of time.
type bench struct {
	t     *testing.T
	queue *faultyQueue
	store *faultyStore
	reg   *prometheus.Registry
	log   bytes.Buffer
	deps  record.Deps
	n     int
}

// The files of a bench, in its folder.
const (
	queueFile = "queue.db"
	storeFile = "records.db"
)

// inBubble runs the test with a bench in a bubble.
func inBubble(t *testing.T, test func(t *testing.T, b *bench)) {
	t.Helper()
	t.Parallel()
	bubble(t, t.TempDir(), test)
}

// bubble runs the test with a bench in a bubble, on files that may be there.
func bubble(t *testing.T, dir string, test func(t *testing.T, b *bench)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		q, err := queue.Open(t.Context(), filepath.Join(dir, queueFile), queue.Options{})
		if err != nil {
			t.Fatalf("open queue: %v", err)
		}
		defer func() { _ = q.Close() }()
		s, err := store.Open(t.Context(), filepath.Join(dir, storeFile))
		if err != nil {
			t.Fatalf("open store: %v", err)
		}
		defer func() { _ = s.Close() }()
		b := &bench{t: t, queue: &faultyQueue{Queue: q}, store: &faultyStore{Store: s, tries: map[string]int{}, flaky: map[string]int{}}}
		b.deps = record.Deps{Queue: b.queue, Store: b.store, Now: time.Now}
		test(t, b)
	})
}

// worker makes a worker with metrics and a log of its own.
func (b *bench) worker() *record.Worker {
	b.t.Helper()
	b.reg = prometheus.NewRegistry()
	b.deps.Reg, b.deps.Log = b.reg, slog.New(slog.NewJSONHandler(&b.log, nil))
	w, err := record.New(b.deps)
	if err != nil {
		b.t.Fatalf("New: %v", err)
	}
	return w
}

// run starts a worker; stop ends it and waits, and tells how long that took.
func (b *bench) run() (stop func() time.Duration) {
	b.t.Helper()
	w := b.worker()
	ctx, cancel := context.WithCancel(b.t.Context())
	done := make(chan error, 1)
	go func() { done <- w.Run(ctx) }()
	return func() time.Duration {
		begun := time.Now()
		cancel()
		if err := <-done; err != nil {
			b.t.Errorf("Run: got %v, want nil", err)
		}
		return time.Since(begun)
	}
}

// booking is a new candidate's record as HELD.
func (b *bench) booking() booking.Record {
	b.n++
	at := time.Now()
	row := booking.Row{
		Attempt: booking.AttemptID(booking.NewEpoch(at), booking.NewAttemptSuffix(at)), Level: "N1", Amount: 150000, Currency: "BDT",
		Payment: fmt.Sprint("TR", b.n), AdmittedAt: at.UnixMilli(), Deadline: at.Add(booking.DefaultHold).UnixMilli(),
	}
	return row.HeldRecord(fmt.Sprintf("T-%05d", b.n), "https://gateway.example/pay", "signature")
}

// send queues the record, in a group of the test's choice or in its own.
func (b *bench) send(rec booking.Record, group string) booking.Record {
	b.t.Helper()
	body, err := json.Marshal(rec)
	if err != nil {
		b.t.Fatal(err)
	}
	b.sendBody(rec, group, body)
	return rec
}

func (b *bench) sendBody(rec booking.Record, group string, body []byte) {
	b.t.Helper()
	if group == "" {
		group = booking.QueueGroup(rec.CandidateHash)
	}
	if err := b.queue.Send(b.t.Context(), group, rec.Invoice, body); err != nil {
		b.t.Fatalf("Send: %v", err)
	}
}

func (b *bench) stats() booking.QueueStats {
	b.t.Helper()
	s, err := b.queue.Stats(b.t.Context())
	if err != nil {
		b.t.Fatalf("Stats: %v", err)
	}
	return s
}

// within waits, on the bubble's clock, until ok; else it ends the test.
func (b *bench) within(d time.Duration, what string, ok func() bool) {
	b.t.Helper()
	for end := time.Now().Add(d); !ok(); <-time.After(200 * time.Millisecond) {
		if time.Now().After(end) {
			b.t.Fatalf("%s: not so after %s; queue: %+v\n%s", what, d, b.stats(), b.log.String())
		}
	}
}

func (b *bench) emptied() bool { s := b.stats(); return s.Waiting+s.InFlight == 0 }

// held fails the test unless the records are in the store as they were queued.
func (b *bench) held(recs ...booking.Record) {
	b.t.Helper()
	for _, want := range recs {
		got, err := b.store.Record(b.t.Context(), want.CandidateHash, want.Attempt)
		if err != nil {
			b.t.Errorf("record of %s: %v", want.Code, err)
		} else if diff := cmp.Diff(want, got); diff != "" {
			b.t.Errorf("record of %s (-want +got):\n%s", want.Code, diff)
		}
	}
}

func (b *bench) dead() []string {
	b.t.Helper()
	ds, err := b.queue.DeadLetters(b.t.Context(), 1000)
	if err != nil {
		b.t.Fatalf("DeadLetters: %v", err)
	}
	var ids []string
	for _, d := range ds {
		ids = append(ids, d.DedupID)
	}
	return ids
}

// metric reads one sample; label is "" for a gauge.
func (b *bench) metric(name, label string) float64 {
	b.t.Helper()
	families, err := b.reg.Gather()
	if err != nil {
		b.t.Fatalf("Gather: %v", err)
	}
	for _, f := range families {
		if f.GetName() != name {
			continue
		}
		for _, m := range f.GetMetric() {
			if label == "" {
				return m.GetGauge().GetValue()
			}
			if m.GetLabel()[0].GetValue() == label {
				return m.GetCounter().GetValue()
			}
		}
	}
	b.t.Fatalf("metric %s{%s} is missing", name, label)
	return 0
}

func (b *bench) outcomes(want map[string]float64) {
	b.t.Helper()
	for _, o := range []string{"created", "held", "paid", "released", "unreadable", "failed", "behind", "returned"} {
		if got := b.metric("holdfast_worker_records_total", o); got != want[o] {
			b.t.Errorf("outcome %s: got %v, want %v", o, got, want[o])
		}
	}
}

func TestRun_PutsEachBookingOnce(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		stop := b.run()
		var recs []booking.Record
		for range 150 {
			recs = append(recs, b.send(b.booking(), ""))
		}
		b.within(2*time.Second, "queue empty", b.emptied)
		if took := stop(); took > time.Second {
			t.Errorf("stop of an idle worker: took %s, want no wait", took)
		}
		b.held(recs...)
		b.outcomes(map[string]float64{"created": 150})
	})
}

func TestRun_AttemptThatHasARecordIsDone(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		ctx := t.Context()
		held, paid, released := b.booking(), b.booking(), b.booking()
		for _, rec := range []booking.Record{held, released} {
			if _, _, err := b.store.PutHeld(ctx, rec); err != nil {
				t.Fatalf("PutHeld: %v", err)
			}
		}
		wantPaid, err := b.store.MarkPaid(ctx, booking.Paid{Record: paid, Transaction: "TX1", PaidAt: time.Now()})
		if err != nil {
			t.Fatalf("MarkPaid: %v", err)
		}
		if err := b.store.Release(ctx, released, "lapsed", time.Now()); err != nil {
			t.Fatalf("Release: %v", err)
		}
		wantReleased, err := b.store.Record(ctx, released.CandidateHash, released.Attempt)
		if err != nil {
			t.Fatalf("Record: %v", err)
		}
		for _, rec := range []booking.Record{held, paid, released} {
			b.send(rec, "")
		}
		stop := b.run()
		b.within(time.Second, "queue empty", b.emptied)
		stop()
		b.held(held, wantPaid, wantReleased)
		b.outcomes(map[string]float64{"held": 1, "paid": 1, "released": 1})
	})
}

func TestRun_WriteThatWasKeptButReportedLostIsDoneOnce(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		b.store.kept.Store(true)
		rec := b.send(b.booking(), "")
		stop := b.run()
		b.within(time.Second, "queue empty", b.emptied)
		stop()
		b.held(rec)
		b.outcomes(map[string]float64{"held": 1})
	})
}

func TestRun_UnreadableMessagesAreLeft(t *testing.T) {
	t.Parallel()
	edit := func(change func(m map[string]any)) func(booking.Record) []byte {
		return func(rec booking.Record) []byte {
			var m map[string]any
			body, err := json.Marshal(rec)
			if err == nil {
				err = json.Unmarshal(body, &m)
			}
			if err != nil {
				t.Error(err)
			}
			change(m)
			body, err = json.Marshal(m)
			if err != nil {
				t.Error(err)
			}
			return body
		}
	}
	for name, body := range map[string]func(booking.Record) []byte{
		"NotJSON":          func(booking.Record) []byte { return []byte("hello") },
		"NotAnObject":      func(booking.Record) []byte { return []byte("null") },
		"VersionUnknown":   edit(func(m map[string]any) { m["v"], m["new_field"] = 2, true }),
		"VersionMissing":   edit(func(m map[string]any) { delete(m, "v") }),
		"FieldUnknown":     edit(func(m map[string]any) { m["colour"] = "red" }),
		"FieldMissing":     edit(func(m map[string]any) { delete(m, "payment_id") }),
		"FieldOfOtherType": edit(func(m map[string]any) { m["amount"] = "1500.00" }),
		"HashOfAnother":    edit(func(m map[string]any) { m["code"] = "T-99999" }),
		"NotHeld":          edit(func(m map[string]any) { m["state"] = "PAID" }),
		"MoreBehindIt":     func(rec booking.Record) []byte { return append(edit(func(map[string]any) {})(rec), "{}"...) },
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, b *bench) {
				rec := b.booking()
				b.sendBody(rec, "", body(rec))
				stop := b.run()
				b.within(time.Second, "delivered", func() bool { return b.metric("holdfast_worker_records_total", "unreadable") == 1 })
				stop()
				b.outcomes(map[string]float64{"unreadable": 1})
				if s := b.stats(); s.Waiting+s.InFlight != 1 {
					t.Errorf("queue: got %+v, want the message still there", s)
				}
				if empty, err := b.store.Empty(t.Context()); err != nil || !empty {
					t.Errorf("store is empty: got %t, %v, want true", empty, err)
				}
				if !strings.Contains(b.log.String(), rec.Attempt) {
					t.Errorf("log does not name the attempt %s:\n%s", rec.Attempt, b.log.String())
				}
			})
		})
	}
}

func TestRun_OutageOfTheStoreSpendsNoDeliveries(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		b.deps.Pollers = 2
		var recs []booking.Record
		for range 60 {
			recs = append(recs, b.send(b.booking(), ""))
		}
		b.store.down.Store(true)
		stop := b.run()
		<-time.After(time.Minute)
		received := b.queue.receives.Load()
		<-time.After(20 * time.Minute)
		if got := b.queue.receives.Load(); got != received {
			t.Errorf("receives in 20 minutes of outage: got %d, want none", got-received)
		}
		if s := b.stats(); s.InFlight == 0 || s.Waiting == 0 {
			t.Errorf("queue in the outage: got %+v, want some in hand and the rest not touched", s)
		}
		b.store.down.Store(false)
		b.within(10*time.Second, "queue empty", b.emptied)
		stop()
		b.held(recs...)
		if got := b.queue.maxReceives.Load(); got != 1 {
			t.Errorf("most deliveries of one message: got %d, want 1", got)
		}
		b.outcomes(map[string]float64{"created": 60})
		if n := strings.Count(b.log.String(), "does not answer"); n != 1 {
			t.Errorf("log lines about the outage: got %d, want 1", n)
		}
	})
}

// A table whose index is throttled takes no record and answers every other question.
func TestRun_StoreThatTakesNoRecordsForNowSpendsNoDeliveries(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		b.deps.Pollers = 2
		var recs []booking.Record
		for range 60 {
			recs = append(recs, b.send(b.booking(), ""))
		}
		b.store.full.Store(true)
		stop := b.run()
		<-time.After(time.Minute)
		received := b.queue.receives.Load()
		<-time.After(20 * time.Minute)
		if got := b.queue.receives.Load(); got != received {
			t.Errorf("receives in 20 minutes: got %d, want none", got-received)
		}
		b.store.full.Store(false)
		b.within(10*time.Second, "queue empty", b.emptied)
		stop()
		b.held(recs...)
		if got := b.queue.maxReceives.Load(); got != 1 {
			t.Errorf("most deliveries of one message: got %d, want 1", got)
		}
		b.outcomes(map[string]float64{"created": 60})
		if n := strings.Count(b.log.String(), "does not answer"); n != 1 {
			t.Errorf("log lines about it: got %d, want 1", n)
		}
	})
}

func TestRun_StopFinishesWhatIsInHand(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		b.deps.Pollers, b.deps.DrainBudget = 2, 20*time.Second
		b.store.slow = 5 * time.Second
		for range 50 {
			b.send(b.booking(), "")
		}
		stop := b.run()
		b.within(time.Second, "writes at work", func() bool { return b.store.asleep.Load() > 0 })
		took := stop()
		s, done := b.stats(), int(b.metric("holdfast_worker_records_total", "created"))
		if done == 0 || s.Waiting != 50-done || s.InFlight != 0 {
			t.Errorf("after a stop: got %+v and %d done, want all in hand done and the rest waiting", s, done)
		}
		if took > 6*time.Second {
			t.Errorf("stop: took %s, want the 5 s of the writes in hand", took)
		}
	})
}

func TestRun_StopGivesBackWhatCannotBeFinished(t *testing.T) {
	for name, hinder := range map[string]func(b *bench){
		"StoreDown":    func(b *bench) { b.store.down.Store(true) },
		"StoreTooSlow": func(b *bench) { b.store.slow = 9 * time.Second },
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, b *bench) {
				b.deps.DrainBudget = 3 * time.Second
				hinder(b)
				for range 5 {
					b.send(b.booking(), "00aa")
				}
				stop := b.run()
				b.within(time.Second, "in hand", func() bool { return b.stats().InFlight == 5 })
				if took := stop(); took > 4*time.Second {
					t.Errorf("stop: took %s, want the drain budget of 3 s", took)
				}
				if s := b.stats(); s.Waiting != 5 || s.InFlight != 0 {
					t.Errorf("after a stop: got %+v, want all 5 waiting again", s)
				}
				b.outcomes(map[string]float64{"returned": 5})
			})
		})
	}
}

func TestRun_PartialDeletesAreTriedAgain(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		var recs []booking.Record
		for range 30 {
			recs = append(recs, b.send(b.booking(), ""))
		}
		tries := map[string]int{} // by the first receipt of a call
		var mu sync.Mutex
		b.queue.onDelete = func(receipts []string) ([]string, error) {
			// Not held over the queue's own call: who waits for a mutex keeps the
			// bubble's clock from moving, and the queue's writer sleeps by it.
			mu.Lock()
			tries[receipts[0]]++
			try := tries[receipts[0]]
			mu.Unlock()
			switch try {
			case 1: // one of them was not deleted; the others were
				failed, err := b.queue.Queue.Delete(context.Background(), receipts[1:])
				return append(failed, receipts[0]), err
			case 2:
				return nil, errDown
			}
			return nil, nil
		}
		stop := b.run()
		b.within(5*time.Second, "queue empty", b.emptied)
		stop()
		b.held(recs...)
		if got := b.queue.maxReceives.Load(); got != 1 {
			t.Errorf("most deliveries of one message: got %d, want 1", got)
		}
	})
}

func TestRun_QueueOutageEndsByItself(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		b.queue.cut.Store(true)
		rec := b.send(b.booking(), "")
		stop := b.run()
		<-time.After(10 * time.Minute)
		b.queue.cut.Store(false)
		b.within(10*time.Second, "queue empty", b.emptied)
		stop()
		b.held(rec)
		if n := strings.Count(b.log.String(), "receive bookings"); n > 8*10*60 {
			t.Errorf("log lines about the queue in ten minutes: got %d, want at most one a second and poller", n)
		}
	})
}

// A queue that is out for less time than messages stay hidden costs no second delivery:
// what was done is deleted once the queue is back.
func TestRun_WhatIsDoneIsDeletedAfterAnOutageOfTheQueue(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		rec := b.send(b.booking(), "")
		over := make(chan struct{})
		b.queue.onDelete = func([]string) ([]string, error) {
			select {
			case <-over:
				return nil, nil
			default:
				b.queue.cut.Store(true)
				return nil, errDown
			}
		}
		stop := b.run()
		<-time.After(30 * time.Second)
		close(over)
		b.queue.cut.Store(false)
		b.within(5*time.Second, "queue empty", b.emptied)
		stop()
		b.held(rec)
		if got := b.queue.maxReceives.Load(); got != 1 {
			t.Errorf("deliveries: got %d, want 1", got)
		}
	})
}

// A stop does not wait for a queue that is out for longer than it says.
func TestRun_StopWithTheQueueOut(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		rec := b.send(b.booking(), "")
		asked := make(chan struct{}, 1000)
		b.queue.onDelete = func([]string) ([]string, error) {
			asked <- struct{}{}
			return nil, errDown
		}
		stop := b.run()
		<-asked
		begun := time.Now()
		stop()
		if took := time.Since(begun); took > 6*time.Second {
			t.Errorf("a stop took %s, want 5 s, about: the work is done", took)
		}
		b.held(rec)
	})
}

// TestRun_KilledWorkersLoseAndDoubleNothing ends workers in turn by a stop and
// by cutting their line to the queue in the midst of their work, as a kill does.
func TestRun_KilledWorkersLoseAndDoubleNothing(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		b.deps.Pollers, b.store.slow = 4, 300*time.Millisecond
		var recs []booking.Record
		for range 250 {
			recs = append(recs, b.send(b.booking(), ""))
		}
		line := b.queue
		for i := range 6 {
			b.queue = &faultyQueue{Queue: line.Queue}
			b.deps.Queue = b.queue
			stop := b.run()
			<-time.After(time.Second + 100*time.Millisecond)
			b.queue.cut.Store(i%2 == 0)
			stop()
		}
		if b.emptied() {
			t.Fatal("queue is empty before the last worker: nothing was tested")
		}
		b.queue, b.deps.Queue = line, line
		stop := b.run()
		b.within(5*time.Minute, "queue empty", b.emptied)
		stop()
		b.held(recs...)
		n := 0
		for _, err := range b.store.Records(t.Context()) {
			if err != nil {
				t.Fatalf("scan: %v", err)
			}
			n++
		}
		if n != len(recs) || len(b.dead()) != 0 {
			t.Errorf("records and dead letters: got %d and %d, want %d and none", n, len(b.dead()), len(recs))
		}
	})
}

func TestRun_ShowsTheQueueInTheMetrics(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		b.store.down.Store(true)
		for range 3 {
			b.send(b.booking(), "")
		}
		stop := b.run()
		<-time.After(31 * time.Second)
		if depth, age := b.metric("holdfast_queue_depth", ""), b.metric("holdfast_queue_age_seconds", ""); depth != 3 || age < 25 || age > 31 {
			t.Errorf("depth and age after 31 s: got %v and %v, want 3 and about 30", depth, age)
		}
		b.store.down.Store(false)
		b.within(15*time.Second, "metrics show an empty queue", func() bool {
			return b.metric("holdfast_queue_depth", "") == 0 && b.metric("holdfast_queue_age_seconds", "") == 0
		})
		stop()
	})
}

// A figure from before the queue was cut off would say that all is well.
func TestRun_FiguresThatCannotBeReadAreNotShown(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		const last = "holdfast_queue_last_success_timestamp_seconds"
		shown := func() []string {
			families, err := b.reg.Gather()
			if err != nil {
				t.Fatalf("Gather: %v", err)
			}
			var names []string
			for _, f := range families {
				if name := f.GetName(); name != "holdfast_worker_records_total" && name != last {
					names = append(names, name)
				}
			}
			return names
		}
		want := func(when string, read bool) {
			t.Helper()
			var names []string
			if read {
				names = []string{"holdfast_dead_letters", "holdfast_queue_age_seconds", "holdfast_queue_depth"}
			}
			if diff := cmp.Diff(names, shown()); diff != "" {
				t.Errorf("%s: figures shown (-want +got):\n%s", when, diff)
			}
		}
		b.queue.cut.Store(true)
		stop := b.run()
		<-time.After(time.Second)
		want("never read", false)
		if at := b.metric(last, ""); at != 0 {
			t.Errorf("last reading: got %v, want none yet", at)
		}
		b.queue.cut.Store(false)
		<-time.After(10 * time.Second)
		want("read", true)
		read := b.metric(last, "")
		if ago := float64(time.Now().UnixNano())/1e9 - read; ago < 0 || ago > 6 {
			t.Errorf("last reading: got %v s ago, want 5 s at most", ago)
		}
		b.queue.cut.Store(true)
		<-time.After(10 * time.Second)
		want("cut off again", false)
		if at := b.metric(last, ""); at < read || at > read+6 {
			t.Errorf("last reading: got %v, want it where it ended, about %v", at, read)
		}
		stop()
	})
}

func TestRun_OneLogLinePerJobGivesNobodyAway(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		first := b.booking()
		first.RequestID = "b5m8i5hbpa35q"
		good, bad := b.send(first, ""), b.booking() // one without it, as from an older sender
		b.store.bad = bad.Attempt
		b.send(bad, "")
		stop := b.run()
		b.within(time.Second, "both delivered", func() bool {
			return b.metric("holdfast_worker_records_total", "created")+b.metric("holdfast_worker_records_total", "failed") == 2
		})
		stop()
		lines := map[string]map[string]any{}
		for line := range strings.Lines(b.log.String()) {
			var m map[string]any
			if err := json.Unmarshal([]byte(line), &m); err != nil {
				t.Fatalf("log line %s: %v", line, err)
			}
			if m["msg"] == "booking record" {
				lines[m["attempt"].(string)] = m
			}
			for _, secret := range []string{good.Code, bad.Code, good.CandidateHash, bad.CandidateHash} {
				if strings.Contains(line, secret) {
					t.Errorf("log line holds a code or a whole hash: %s", line)
				}
			}
		}
		if got := lines[good.Attempt]["request_id"]; got != good.RequestID {
			t.Errorf("log line: got request %v, want that of the message, %q", got, good.RequestID)
		}
		if got, ok := lines[bad.Attempt]["request_id"]; ok {
			t.Errorf("log line of a message without a request: got %v, want none", got)
		}
		if rec, err := b.store.Record(t.Context(), good.CandidateHash, good.Attempt); err != nil || rec.RequestID != good.RequestID {
			t.Errorf("record: got request %q, %v, want %q", rec.RequestID, err, good.RequestID)
		}
		for _, want := range []struct {
			rec            booking.Record
			outcome, level string
		}{{good, "created", "INFO"}, {bad, "failed", "WARN"}} {
			m := lines[want.rec.Attempt]
			if m["outcome"] != want.outcome || m["level"] != want.level || m["candidate"] != want.rec.CandidateHash[:8] || m["receives"] != 1.0 {
				t.Errorf("log line: got %v, want outcome %s at %s, the start of the hash and 1 receive", m, want.outcome, want.level)
			}
		}
	})
}

func TestDrain_EmptiesTheQueue(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		var recs []booking.Record
		for range 35 {
			recs = append(recs, b.send(b.booking(), ""))
		}
		// Some are in flight to a worker that is gone.
		if ds, err := b.queue.Queue.Receive(t.Context(), 10, 0); err != nil || len(ds) != 10 {
			t.Fatalf("Receive: got %d messages, %v, want 10", len(ds), err)
		}
		n, err := b.worker().Drain(t.Context())
		if err != nil || n != 35 {
			t.Errorf("Drain: got %d, %v, want 35", n, err)
		}
		if !b.emptied() {
			t.Errorf("queue after Drain: got %+v, want it empty", b.stats())
		}
		b.held(recs...)
	})
}

func TestDrain_EndsWithItsContext(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		b.store.down.Store(true)
		for range 3 {
			b.send(b.booking(), "")
		}
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
		defer cancel()
		n, err := b.worker().Drain(ctx)
		if !errors.Is(err, context.DeadlineExceeded) || n != 0 {
			t.Errorf("Drain with the store down: got %d, %v, want 0 and the context's error", n, err)
		}
		if s := b.stats(); s.Waiting != 3 {
			t.Errorf("queue after Drain gave up: got %+v, want 3 waiting", s)
		}
	})
}

func TestNew_RefusesWhatCannotWork(t *testing.T) {
	t.Parallel()
	full := record.Deps{
		Queue: &faultyQueue{}, Store: &faultyStore{}, Log: slog.New(slog.DiscardHandler), Reg: prometheus.NewRegistry(), Now: time.Now,
	}
	if _, err := record.New(full); err != nil {
		t.Errorf("New: got %v, want none", err)
	}
	if _, err := record.New(full); err == nil {
		t.Error("New on a registry that has the metrics: got no error, want one")
	}
	for name, spoil := range map[string]func(d *record.Deps){
		"no queue":          func(d *record.Deps) { d.Queue = nil },
		"no store":          func(d *record.Deps) { d.Store = nil },
		"no log":            func(d *record.Deps) { d.Log = nil },
		"no registry":       func(d *record.Deps) { d.Reg = nil },
		"no clock":          func(d *record.Deps) { d.Now = nil },
		"negative pollers":  func(d *record.Deps) { d.Pollers = -1 },
		"a tiny visibility": func(d *record.Deps) { d.Visibility = time.Millisecond },
		"negative receives": func(d *record.Deps) { d.MaxReceives = -1 },
		"a negative drain":  func(d *record.Deps) { d.DrainBudget = -1 },
	} {
		d := full
		d.Reg = prometheus.NewRegistry()
		spoil(&d)
		if _, err := record.New(d); err == nil {
			t.Errorf("New with %s: got no error, want one", name)
		}
	}
}
