package record_test

import (
	"context"
	"database/sql"
	"encoding/json"
	"log/slog"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"

	"holdfast/internal/admission"
	"holdfast/internal/booking"
	"holdfast/internal/booking/bookingtest"
	queue "holdfast/internal/queue/sqlite"
	"holdfast/internal/reconcile"
	"holdfast/internal/record"
	"holdfast/internal/settle"
	store "holdfast/internal/store/sqlite"
	"holdfast/internal/testenv"
)

// world is a sale with a worker's queue and a reconciler in it, in one folder.
type world struct {
	*bookingtest.World
	dir     string
	queue   *queue.Queue // by the world's clock
	settler *settle.Service
	sweeper *reconcile.Reconciler
}

// newWorld opens a sale of twelve seats.
func newWorld(t *testing.T) *world {
	t.Helper()
	t.Parallel()
	const prefix, executeTimeout, seats = "{sale}:", 20 * time.Second, 12
	w, clock, log := &world{dir: t.TempDir()}, new(bookingtest.Clock), slog.New(slog.DiscardHandler)
	rdb := admission.NewClient(admission.ClientConfig{Addr: testenv.Mini(t), Pool: 16})
	t.Cleanup(func() { _ = rdb.Close() })
	keys, err := admission.NewKeys(prefix)
	if err != nil {
		t.Fatal(err)
	}
	gate, err := admission.New(rdb, admission.Options{Keys: keys, ClockOffset: clock.Offset, Log: log, Registerer: prometheus.NewRegistry()})
	if err != nil {
		t.Fatal(err)
	}
	records, err := store.Open(t.Context(), filepath.Join(w.dir, storeFile))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = records.Close() })
	w.queue, err = queue.Open(t.Context(), filepath.Join(w.dir, queueFile), queue.Options{Now: clock.Now})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = w.queue.Close() })
	w.World = bookingtest.NewWorld(clock, gate, bookingtest.NewRedisSeats(rdb, prefix, gate), records)
	t.Cleanup(w.Background.Wait)
	w.settler, err = settle.New(settle.Deps{
		Ledger: w.Ledger, Gateway: w.Gateway, Store: w.Store, Mailer: w.Mailer, Sale: gate, Background: w.Background,
		BookingURL:     func(code, attempt string) string { return "https://sale.test/result?booking=" + code + attempt },
		ExecuteTimeout: executeTimeout, Now: clock.Now, Log: log, Registerer: prometheus.NewRegistry(),
	})
	if err != nil {
		t.Fatal(err)
	}
	w.sweeper, err = reconcile.New(reconcile.Deps{
		Ledger: w.Ledger, Gateway: w.Gateway, Settler: w.settler, Store: w.Store,
		Every: time.Second, Budget: time.Minute, Width: 8, QueriesPerSecond: 10_000, ExecuteTimeout: executeTimeout, Lapse: 24 * time.Hour,
		Changed: func() {}, Log: log, Registerer: prometheus.NewRegistry(),
	})
	if err != nil {
		t.Fatal(err)
	}
	sale := bookingtest.Sale()
	sale.Cap, sale.Levels = seats, sale.Levels[:1]
	sale.Levels[0].Cap = seats
	w.Open(t, sale, seats)
	return w
}

// accepted gives candidate i a seat that is held, its record on its way to the
// worker.
func (w *world) accepted(t *testing.T, i int) bookingtest.Booking {
	t.Helper()
	b := w.Unwritten(t, i, "N1")
	w.send(t, b)
	return b
}

func (w *world) send(t *testing.T, b bookingtest.Booking) {
	t.Helper()
	body, err := json.Marshal(b.Record)
	if err != nil {
		t.Fatal(err)
	}
	if err := w.queue.Send(t.Context(), booking.QueueGroup(b.Record.CandidateHash), b.Record.Invoice, body); err != nil {
		t.Fatalf("send %s: %v", b.Code, err)
	}
}

// work runs a worker until the queue is empty, and wants that many messages done.
func (w *world) work(t *testing.T, want int) {
	t.Helper()
	worker, err := record.New(record.Deps{
		Queue: w.queue, Store: w.Store, Log: slog.New(slog.DiscardHandler), Reg: prometheus.NewRegistry(), Now: w.Clock.Now,
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if done, err := worker.Drain(ctx); err != nil || done != want {
		t.Errorf("worker: got %d messages done, %v, want %d", done, err, want)
	}
}

// wantSweep lets time pass, has the reconciler look at what is due, and wants these
// actions.
func (w *world) wantSweep(t *testing.T, after time.Duration, want reconcile.Report) {
	t.Helper()
	w.Clock.Advance(after)
	got, err := w.sweeper.Sweep(t.Context())
	if err != nil {
		t.Fatalf("sweep: %v", err)
	}
	w.Background.Wait()
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("sweep after %s (-want +got):\n%s", after, diff)
	}
}

// check has everything compared, and returns what was done about records without a
// row.
func (w *world) check(t *testing.T) reconcile.Report {
	t.Helper()
	got, err := w.sweeper.CrossCheck(t.Context())
	if err != nil {
		t.Fatalf("cross-check: %v", err)
	}
	w.Background.Wait()
	return got.Actions
}

// pays has the payer pay and come back.
func (w *world) pays(t *testing.T, b bookingtest.Booking) {
	t.Helper()
	w.Gateway.Finish(b.Payment.ID)
	if err := w.settler.Return(t.Context(), b.Code, b.Attempt, b.Payment.ID); err != nil {
		t.Fatalf("return of %s: %v", b.Code, err)
	}
	w.Background.Wait()
	w.Want(t, b, booking.PhasePaid, booking.StatePaid)
}

// Case 28: an unreadable message and one that is never taken, each first in its group,
// and a thousand bookings behind them, in the same groups and in others. Other groups are done before either comes a second time;
// the two become dead letters, and those behind them are done; their seats stay, can
// be paid and are looked at.
func TestCase28_PoisonFirst(t *testing.T) {
	w := newWorld(t)
	unreadable, failing := w.Unwritten(t, 1, "N1"), w.Unwritten(t, 2, "N1")
	bubble(t, w.dir, func(t *testing.T, b *bench) {
		b.deps.Pollers = 2
		b.store.bad = failing.Attempt
		b.sendBody(unreadable.Record, "00aa", []byte(`{"v":1,"code":`))
		b.send(failing.Record, "00bb")
		var behind, others []booking.Record
		for range 20 {
			behind = append(behind, b.send(b.booking(), "00aa"), b.send(b.booking(), "00bb"))
		}
		for range 960 {
			others = append(others, b.send(b.booking(), ""))
		}
		stop := b.run()
		created := func() int { return int(b.metric("holdfast_worker_records_total", "created")) }
		b.within(4*time.Second, "other groups done", func() bool { return created() >= len(others) })
		b.held(others...)
		if n := created(); n != len(others) {
			t.Errorf("records after the first delivery of the two: got %d, want %d: those behind them wait", n, len(others))
		}
		b.within(5*time.Minute, "queue empty", b.emptied)
		b.within(10*time.Second, "dead letters in the metrics, which alarm", func() bool { return b.metric("holdfast_dead_letters", "") == 2 })
		stop()
		b.held(behind...)
		if n := b.metric("holdfast_worker_records_total", "failed"); n != 5 {
			t.Errorf("deliveries of the failing record: got %v, want 5", n)
		}
		want, got := []string{unreadable.Record.Invoice, failing.Record.Invoice}, b.dead()
		slices.Sort(want)
		slices.Sort(got)
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("dead letters (-want +got):\n%s", diff)
		}
	})
	w.Want(t, unreadable, booking.PhaseHeld, "")
	w.Want(t, failing, booking.PhaseHeld, "")
	w.pays(t, unreadable)
	w.wantSweep(t, booking.DefaultHold, reconcile.Report{"released": 1})
	w.Want(t, failing, "", booking.StateReleased)
	w.Books.Check(t)
}

// Case 30: no worker for the length of a hold, while one seat a minute is sold. Until
// it is back every seat is its candidate's: who returns pays, and at its deadline a
// seat goes by the gateway's word alone, record or no record.
func TestCase30_WorkerStoppedForAHold(t *testing.T) {
	w := newWorld(t)
	const returns, when = 3, 5 // who pays meanwhile, in which minute
	var bs []bookingtest.Booking
	for minute := range 10 {
		bs = append(bs, w.accepted(t, minute+1))
		w.check(t)
		w.wantSweep(t, 55*time.Second, reconcile.Report{})
		for i, b := range bs {
			if i != returns || minute <= when {
				w.Want(t, b, booking.PhaseHeld, "")
			}
		}
		if minute == when {
			w.pays(t, bs[returns])
		}
		w.Clock.Advance(5 * time.Second)
	}
	w.Gateway.Complete(bs[1].Payment.ID) // and nobody was told
	w.wantSweep(t, time.Second, reconcile.Report{"released": 1})
	w.wantSweep(t, time.Minute, reconcile.Report{"confirmed": 1})
	w.Want(t, bs[0], "", booking.StateReleased)
	w.Want(t, bs[1], booking.PhasePaid, booking.StatePaid)

	w.work(t, len(bs))
	w.Books.CheckAtRest(t)
	w.Want(t, bs[0], "", booking.StateReleased)
	for _, i := range []int{1, returns} {
		w.Want(t, bs[i], booking.PhasePaid, booking.StatePaid)
	}
	for _, i := range []int{2, 4, 5, 6, 7, 8, 9} {
		w.Want(t, bs[i], booking.PhaseHeld, booking.StateHeld)
		w.pays(t, bs[i])
	}
	w.Books.CheckAtRest(t)
}

// Case 31: the store does not take 3 of 25 records at first, and the queue does not
// delete one of each ten. All are done in the end, each once.
func TestCase31_PartialBatches(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		var recs []booking.Record
		for i := range 25 {
			recs = append(recs, b.send(b.booking(), ""))
			if i%10 == 3 {
				// Twice in a row while the store answers is the record's own fault:
				// the message is left, and comes again.
				b.store.flaky[recs[i].Attempt] = 2
			}
		}
		tried := map[string]bool{} // first receipts of a call
		refused := 0
		b.deps.Pollers = 1 // one call of Delete at a time
		b.queue.onDelete = func(receipts []string) ([]string, error) {
			first := receipts[0]
			if tried[first] {
				return nil, nil
			}
			tried[first] = true
			refused++
			failed, err := b.queue.Queue.Delete(context.Background(), receipts[1:])
			return append(failed, first), err
		}
		stop := b.run()
		b.within(10*time.Second, "queue empty", b.emptied)
		stop()
		b.held(recs...)
		b.outcomes(map[string]float64{"created": 25, "failed": 3})
		if refused < 3 {
			t.Errorf("messages that the queue did not delete at first: got %d, want one of each batch", refused)
		}
		if got := b.queue.maxReceives.Load(); got != 2 || len(b.dead()) > 0 {
			t.Errorf("most deliveries of one message: got %d, with %d dead letters, want 2 and none", got, len(b.dead()))
		}
	})
}

// Case 33, first half: the sender repeats itself when the queue has forgotten the
// deduplication id. Whatever has become of the attempt, its record stays as it is.
func TestCase33_RedeliveryAfterTheDeduplicationWindow(t *testing.T) {
	w := newWorld(t)
	lapsed := w.accepted(t, 1)
	w.work(t, 1)
	w.wantSweep(t, booking.DefaultHold, reconcile.Report{"released": 1})
	fresh, paid, held := w.accepted(t, 1), w.accepted(t, 2), w.accepted(t, 3)
	w.pays(t, paid)
	w.work(t, 3)
	w.Clock.Advance(6 * time.Minute)
	for _, b := range []bookingtest.Booking{lapsed, fresh, paid, held} {
		w.send(t, b)
	}
	w.work(t, 4)
	w.Want(t, lapsed, "", booking.StateReleased)
	w.Want(t, fresh, booking.PhaseHeld, booking.StateHeld)
	w.Want(t, paid, booking.PhasePaid, booking.StatePaid)
	w.Want(t, held, booking.PhaseHeld, booking.StateHeld)
	w.Books.CheckAtRest(t)
	if actions := w.check(t); len(actions) > 0 {
		t.Errorf("cross-check: got actions %v, want none", actions)
	}
}

// Case 33, second half: a dead letter goes back into the queue weeks after its attempt
// was released, and the seat is another's. Where housekeeping has deleted the record
// meanwhile the worker cannot know, and the next cross-check ends what it put.
func TestCase33_RedrivenDeadLetterOfAReleasedAttempt(t *testing.T) {
	for name, forgotten := range map[string]bool{"RecordThere": false, "RecordDeleted": true} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			old := w.accepted(t, 1)
			for range 5 { // to workers that die
				if ds, err := w.queue.Receive(t.Context(), 10, 0); err != nil || len(ds) != 1 {
					t.Fatalf("receive: got %d messages, %v, want 1", len(ds), err)
				}
				w.Clock.Advance(61 * time.Second)
			}
			w.work(t, 0)
			w.wantSweep(t, booking.DefaultHold, reconcile.Report{"released": 1})
			w.Want(t, old, "", booking.StateReleased)
			fresh := w.accepted(t, 1)
			w.work(t, 1)
			w.pays(t, fresh)

			w.Clock.Advance(20 * 24 * time.Hour)
			if forgotten {
				w.forget(t, old)
			}
			if n, err := w.queue.Redrive(t.Context()); err != nil || n != 1 {
				t.Fatalf("redrive: got %d, %v, want 1", n, err)
			}
			w.work(t, 1)
			if forgotten {
				w.Want(t, old, "", booking.StateHeld)
				if diff := cmp.Diff(reconcile.Report{"released": 1}, w.check(t)); diff != "" {
					t.Errorf("cross-check (-want +got):\n%s", diff)
				}
			}
			w.Want(t, old, "", booking.StateReleased)
			w.Want(t, fresh, booking.PhasePaid, booking.StatePaid)
			w.Books.CheckAtRest(t)
		})
	}
}

// forget deletes a record as housekeeping does once its TTL is over.
func (w *world) forget(t *testing.T, b bookingtest.Booking) {
	t.Helper()
	db, err := sql.Open("sqlite", filepath.Join(w.dir, storeFile))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = db.Close() }()
	res, err := db.ExecContext(t.Context(), `DELETE FROM records WHERE attempt = ?`, b.Attempt)
	if err != nil {
		t.Fatal(err)
	}
	if n, err := res.RowsAffected(); err != nil || n != 1 {
		t.Fatalf("forget %s: got %d rows, %v, want 1", b.Attempt, n, err)
	}
}
