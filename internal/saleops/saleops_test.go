package saleops_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/redis/go-redis/v9"
	"go.uber.org/goleak"
	"golang.org/x/sync/errgroup"

	"holdfast/internal/admission"
	"holdfast/internal/booking"
	"holdfast/internal/booking/bookingtest"
	queue "holdfast/internal/queue/sqlite"
	"holdfast/internal/reconcile"
	"holdfast/internal/saleops"
	"holdfast/internal/settle"
	store "holdfast/internal/store/sqlite"
	"holdfast/internal/testenv"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	prefix         = "{sale}:"
	executeTimeout = 20 * time.Second
)

// world is a Redis, a store and a queue, and the operations on them.
type world struct {
	*bookingtest.World
	ops     *saleops.Ops
	settler *settle.Service
	sweeper *reconcile.Reconciler
	queue   *queue.Queue
	rdb     *redis.Client
	path    string // of the booking store
	errors  *strings.Builder
}

// empty is an empty Redis, an empty store and an empty queue.
func empty(t *testing.T) *world {
	t.Helper()
	t.Parallel()
	clock, dir := new(bookingtest.Clock), t.TempDir()
	w := &world{path: filepath.Join(dir, "records.db"), errors: new(strings.Builder)}
	quiet := slog.New(slog.DiscardHandler)
	w.rdb = admission.NewClient(admission.ClientConfig{Addr: testenv.Mini(t), Pool: 16})
	t.Cleanup(func() { _ = w.rdb.Close() })
	keys, err := admission.NewKeys(prefix)
	if err != nil {
		t.Fatal(err)
	}
	gate, err := admission.New(w.rdb, admission.Options{
		Keys: keys, Acks: 0, ClockOffset: clock.Offset, Log: quiet, Registerer: prometheus.NewRegistry(),
	})
	if err != nil {
		t.Fatal(err)
	}
	records, err := store.Open(t.Context(), w.path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = records.Close() })
	w.queue, err = queue.Open(t.Context(), filepath.Join(dir, "queue.db"), queue.Options{Now: clock.Now, MaxReceives: 1})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = w.queue.Close() })
	w.World = bookingtest.NewWorld(clock, gate, bookingtest.NewRedisSeats(w.rdb, prefix, gate), records)
	w.ops = &saleops.Ops{
		Ledger: w.Ledger, Store: w.Store, Queue: w.queue, Gateway: w.Gateway,
		Log: slog.New(slog.NewTextHandler(w.errors, &slog.HandlerOptions{Level: slog.LevelError})),
	}
	t.Cleanup(w.Background.Wait)
	w.settler, err = settle.New(settle.Deps{
		Ledger: w.Ledger, Gateway: w.Gateway, Store: w.Store, Mailer: w.Mailer, Sale: gate, Background: w.Background,
		BookingURL:     func(code, attempt string) string { return code + attempt },
		ExecuteTimeout: executeTimeout, Now: clock.Now, Log: quiet, Registerer: prometheus.NewRegistry(),
	})
	if err != nil {
		t.Fatal(err)
	}
	w.sweeper, err = reconcile.New(reconcile.Deps{
		Ledger: w.Ledger, Gateway: w.Gateway, Settler: w.settler, Store: w.Store,
		Every: time.Second, Budget: time.Minute, Width: 8, QueriesPerSecond: 10000,
		ExecuteTimeout: executeTimeout, Lapse: 24 * time.Hour, Log: quiet, Registerer: prometheus.NewRegistry(),
	})
	if err != nil {
		t.Fatal(err)
	}
	return w
}

// big is the sale of these tests: more seats than they take.
func big() booking.Sale {
	sale := bookingtest.Sale()
	sale.Cap, sale.Levels[0].Cap, sale.Levels[1].Cap = 20, 20, 20
	return sale
}

// open is a sale that runs.
func open(t *testing.T) *world {
	t.Helper()
	w := empty(t)
	w.Open(t, big(), 20)
	return w
}

// lose empties Redis.
func (w *world) lose(t *testing.T) {
	t.Helper()
	if err := w.rdb.FlushAll(t.Context()).Err(); err != nil {
		t.Fatal(err)
	}
}

// resume is what an operator does after a rebuild.
func (w *world) resume(t *testing.T) {
	t.Helper()
	if _, err := w.ops.LoadAllowlist(t.Context(), list(bookingtest.Candidates(20)), saleops.AllowlistOptions{}); err != nil {
		t.Fatalf("load candidates: %v", err)
	}
	if err := w.Ledger.Open(t.Context()); err != nil {
		t.Fatalf("open: %v", err)
	}
}

func (w *world) mustRebuild(t *testing.T) saleops.Rebuilt {
	t.Helper()
	out, err := w.ops.Rebuild(t.Context(), big())
	if err != nil {
		t.Fatalf("rebuild: %v", err)
	}
	return out
}

func (w *world) pays(t *testing.T, b bookingtest.Booking) {
	t.Helper()
	w.Gateway.Finish(b.Payment.ID)
	if err := w.settler.Return(t.Context(), b.Code, b.Attempt, b.Payment.ID); err != nil {
		t.Errorf("return of %s: %v", b.Code, err)
	}
	w.Background.Wait()
}

func (w *world) sweep(t *testing.T, after time.Duration) {
	t.Helper()
	w.Clock.Advance(after)
	if _, err := w.sweeper.Sweep(t.Context()); err != nil {
		t.Fatalf("sweep: %v", err)
	}
	w.Background.Wait()
}

// wantLost wants the ledger still without an epoch.
func (w *world) wantLost(t *testing.T) {
	t.Helper()
	epoch, err := w.Ledger.Epoch(t.Context())
	if !errors.Is(err, booking.ErrLedgerUnknown) {
		t.Errorf("epoch: got %q, %v, want none", epoch, err)
	}
}

func list(cs []booking.Candidate) iter.Seq2[booking.Candidate, error] {
	return func(yield func(booking.Candidate, error) bool) {
		for _, c := range cs {
			if !yield(c, nil) {
				return
			}
		}
	}
}

func wantErr(t *testing.T, what string, got, want error) {
	t.Helper()
	if !errors.Is(got, want) {
		t.Errorf("%s: got %v, want %v", what, got, want)
	}
}

// Rebuild.

func TestRebuild_EveryKindOfRecord(t *testing.T) {
	w := open(t)
	lapsed, completed, silent := w.Held(t, 1, "N1"), w.Held(t, 2, "N1"), w.Held(t, 3, "N1")
	released := w.Held(t, 4, "N2")
	garbled := w.Held(t, 5, "N2")
	w.Clock.Advance(booking.DefaultHold - 2*time.Minute)
	paid, unmailed := w.Held(t, 6, "N1"), w.Held(t, 7, "N1")
	inTime, twice := w.Held(t, 8, "N1"), w.Refused(t, 9, "N2")
	second := w.Held(t, 9, "N2")
	w.pays(t, paid)
	w.Faults.Always(bookingtest.OpMail, bookingtest.Lost)
	w.pays(t, unmailed)
	w.Faults.Always(bookingtest.OpMail, bookingtest.None)
	before := map[string]booking.Row{}
	for _, b := range []bookingtest.Booking{lapsed, completed, silent, garbled, paid, unmailed, inTime, second} {
		row := w.Row(t, b.Code)
		row.Slot, row.Hold = 0, 0 // an order, and a length that only a first deadline needs
		before[b.Code] = row
	}
	if err := w.Store.Release(t.Context(), released.Record, "test", w.Clock.Now()); err != nil {
		t.Fatal(err)
	}
	w.Gateway.Complete(completed.Payment.ID)
	w.Gateway.Always(bookingtest.Query, silent.Payment.ID, bookingtest.LostCall())
	w.Gateway.Always(bookingtest.Query, garbled.Payment.ID, bookingtest.Garbled())
	w.Clock.Advance(4 * time.Minute) // the first five are past their deadline, by more than a call may take
	w.lose(t)

	out := w.mustRebuild(t)
	want := saleops.Rebuilt{
		Applied: booking.Applied{Epoch: bookingtest.Epoch, Total: 7, Admitted: map[string]int{"N1": 5, "N2": 2}},
		Paid:    2, Held: 5, Released: 1, Doubtful: 2,
	}
	if diff := cmp.Diff(want, out); diff != "" {
		t.Errorf("rebuilt (-want +got):\n%s", diff)
	}
	for _, b := range []bookingtest.Booking{paid, unmailed, inTime, second, released} {
		if n := w.Gateway.Calls(bookingtest.Query, b.Payment.ID); n != 0 {
			t.Errorf("queries about %s, which is paid, in time or over: got %d, want 0", b.Code, n)
		}
	}
	w.Want(t, lapsed, "", booking.StateReleased)
	w.Want(t, released, "", booking.StateReleased)
	w.Want(t, twice, "", booking.StateReleased)
	delete(before, lapsed.Code)
	rows, err := w.Books.Seats.Rows(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	slots := map[int64]bool{}
	for code, row := range rows {
		if row.Slot < 1 || row.Slot > 7 || slots[row.Slot] {
			t.Errorf("slot of %s: got %d, want one of its own from 1 to 7", code, row.Slot)
		}
		slots[row.Slot] = true
		row.Slot, row.Hold = 0, 0
		rows[code] = row
	}
	if diff := cmp.Diff(before, rows); diff != "" {
		t.Errorf("rows (-before the loss +after the rebuild):\n%s", diff)
	}
	w.Books.Check(t)

	// Booking is closed, and there are no candidates.
	_, err = w.Ledger.Admit(t.Context(), booking.Request{Code: bookingtest.Code(15), Email: bookingtest.Email(15), Level: "N1"}, booking.NewAttemptSuffix(time.Now()), false)
	wantErr(t, "a request after the rebuild", err, booking.ErrNotOpen)
	w.resume(t)

	// Then everything goes its way.
	if code, attempt, err := w.settler.Issued(t.Context(), second.Payment.ID, second.Payment.Signature); code != second.Code || attempt != second.Attempt || err != nil {
		t.Errorf("payment of a restored hold: got %s %s, %v, want %s %s", code, attempt, err, second.Code, second.Attempt)
	}
	w.pays(t, inTime)
	w.pays(t, second)
	w.sweep(t, 0)
	w.sweep(t, time.Minute)
	w.Want(t, completed, booking.PhasePaid, booking.StatePaid)
	w.Want(t, silent, booking.PhaseHeld, booking.StateHeld)
	w.Want(t, garbled, booking.PhaseHeld, booking.StateHeld)
	for range 3 { // the mail's claim has to end
		w.sweep(t, time.Minute)
	}
	w.Books.CheckAtRest(t)
	w.Gateway.Always(bookingtest.Query, silent.Payment.ID, bookingtest.Obey())
	w.Gateway.Always(bookingtest.Query, garbled.Payment.ID, bookingtest.Obey())
	w.sweep(t, 20*time.Minute)
	w.Want(t, silent, "", booking.StateReleased)
	w.Want(t, garbled, "", booking.StateReleased)
	w.Held(t, 1, "N1")
	w.Books.CheckAtRest(t)
}

// An execute call that was announced before the loss may still come to its end,
// whenever it was sent: "not paid" is not believed, in time or past the deadline.
func TestRebuild_AnnouncedExecuteIsNotEndedOnOneAnswer(t *testing.T) {
	for _, after := range []time.Duration{time.Minute, booking.DefaultHold + 10*time.Second, time.Hour} {
		t.Run(after.String(), func(t *testing.T) {
			w := open(t)
			moves, never := w.Paying(t, 1, "N1", "p", time.Minute), w.Paying(t, 2, "N1", "q", time.Minute)
			for _, b := range []bookingtest.Booking{moves, never} {
				if _, err := w.Store.Announce(t.Context(), b.Record, w.Clock.Now()); err != nil {
					t.Fatal(err)
				}
			}
			w.Clock.Advance(after)
			w.lose(t)
			if out := w.mustRebuild(t); out.Held != 2 || out.Released != 0 {
				t.Errorf("rebuilt: got %+v, want both seats kept", out)
			}
			w.resume(t)
			w.sweep(t, booking.DefaultHold) // asked, executed once more: not finished
			w.Want(t, moves, booking.PhasePaying, booking.StateHeld)
			w.Want(t, never, booking.PhasePaying, booking.StateHeld)
			w.Gateway.Complete(moves.Payment.ID) // the call comes to its end after all
			w.sweep(t, 6*time.Minute)
			w.sweep(t, time.Minute)
			w.Want(t, moves, booking.PhasePaid, booking.StatePaid)
			w.Want(t, never, "", booking.StateReleased)
			w.Books.CheckAtRest(t)
		})
	}
}

// Nobody announced an execute call, so none is on its way.
func TestRebuild_JustPastTheDeadlineIsEnded(t *testing.T) {
	w := open(t)
	b := w.Held(t, 1, "N1")
	w.Clock.Advance(booking.DefaultHold + time.Second)
	w.lose(t)
	if out := w.mustRebuild(t); out.Held != 0 || out.Released != 1 {
		t.Errorf("rebuilt: got %+v, want the seat free", out)
	}
	w.Want(t, b, "", booking.StateReleased)
	w.Books.CheckAtRest(t)
}

// A refused payment is over, its seat is not: the candidate books again.
func TestRebuild_RefusedSeatIsKeptUntilItsDeadline(t *testing.T) {
	w := open(t)
	b, late := w.Refused(t, 1, "N1"), w.Refused(t, 2, "N1")
	for _, b := range []bookingtest.Booking{b, late} {
		if err := w.Store.Release(t.Context(), b.Record, booking.ReasonRefused+" 2023", w.Clock.Now()); err != nil {
			t.Fatal(err)
		}
	}
	w.lose(t)
	if out := w.mustRebuild(t); out.Held != 2 {
		t.Errorf("rebuilt: got %+v, want both seats kept", out)
	}
	w.Want(t, b, booking.PhaseRefused, booking.StateReleased)
	w.resume(t)
	again := w.Held(t, 1, "N1")
	w.pays(t, again)
	w.sweep(t, booking.DefaultHold)
	for range 3 { // the mail's claim has to end
		w.sweep(t, time.Minute)
	}
	w.Want(t, again, booking.PhasePaid, booking.StatePaid)
	w.Want(t, late, "", booking.StateReleased)
	w.Books.CheckAtRest(t)

	w.lose(t)
	if out := w.mustRebuild(t); out.Held != 0 || out.Paid != 1 {
		t.Errorf("rebuilt past the deadline: got %+v, want the paid seat alone", out)
	}
}

func TestRebuild_TwoHeldRecordsOfOneCandidate(t *testing.T) {
	for _, c := range []struct {
		name     string
		complete bool
		state    booking.RecordState
	}{
		{"the older is not paid", false, booking.StateReleased},
		{"the older is paid", true, booking.StateHeld},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := open(t)
			old := w.Refused(t, 1, "N1")
			w.exec(t, `DELETE FROM records WHERE attempt = ?`, old.Attempt)
			w.Write(t, old) // its end was never written
			w.Clock.Advance(booking.DefaultHold - time.Second)
			fresh := w.Held(t, 1, "N1")
			if c.complete {
				w.Gateway.Complete(old.Payment.ID)
				w.Books.Unseated[old.Payment.ID] = true
			}
			w.Clock.Advance(2 * time.Minute)
			w.Gateway.Always(bookingtest.Query, fresh.Payment.ID, bookingtest.LostCall())
			w.lose(t)
			out := w.mustRebuild(t)
			if out.Total != 1 || out.Held != 1 {
				t.Errorf("rebuilt: got %+v, want one seat", out)
			}
			w.Want(t, fresh, booking.PhaseHeld, booking.StateHeld)
			if got := w.State(t, old); got != c.state {
				t.Errorf("older record: got %s, want %s", got, c.state)
			}
			if said := strings.Contains(w.errors.String(), old.Payment.ID); said != c.complete {
				t.Errorf("money without a seat said: got %t, want %t; log: %s", said, c.complete, w.errors)
			}
			w.Books.Check(t)
		})
	}
}

func TestRebuild_PaidRecordWinsOverANewerHeldOne(t *testing.T) {
	w := open(t)
	paid := w.Refused(t, 1, "N1")
	newer := w.Held(t, 1, "N1")
	if _, err := w.Store.MarkPaid(t.Context(), booking.Paid{Record: paid.Record, Transaction: "TX" + paid.Payment.ID, PaidAt: w.Clock.Now()}); err != nil {
		t.Fatal(err)
	}
	w.Gateway.Complete(paid.Payment.ID)
	w.Clock.Advance(booking.DefaultHold + 2*time.Minute)
	w.lose(t)
	if out := w.mustRebuild(t); out.Paid != 1 || out.Held != 0 || out.Total != 1 || out.Released != 1 {
		t.Errorf("rebuilt: got %+v, want the paid seat alone", out)
	}
	w.Want(t, paid, booking.PhasePaid, booking.StatePaid)
	w.Want(t, newer, "", booking.StateReleased)
	w.resume(t)
	w.sweep(t, time.Second)
	w.Books.CheckAtRest(t)
}

func TestRebuild_RecordsOfAnOlderEpochAreNoSeats(t *testing.T) {
	w := empty(t)
	old := booking.NewEpoch(time.Unix(1_700_000_000, 0))
	if _, err := w.Ledger.ApplySale(t.Context(), big(), old, false); err != nil {
		t.Fatal(err)
	}
	w.resume(t)
	held, paid := w.Held(t, 1, "N1"), w.Held(t, 2, "N1")
	w.pays(t, paid)
	w.lose(t)
	w.Open(t, big(), 20)
	b := w.Held(t, 1, "N2")
	w.lose(t)
	out := w.mustRebuild(t)
	if out.Epoch != booking.AttemptEpoch(b.Attempt) || out.Epoch == old || out.Total != 1 {
		t.Errorf("rebuilt: got %+v, want the newer sale's one seat", out)
	}
	w.Want(t, b, booking.PhaseHeld, booking.StateHeld)
	w.Want(t, held, "", booking.StateHeld)
	w.Want(t, paid, "", booking.StatePaid)
	if n := w.Gateway.Calls(bookingtest.Query, held.Payment.ID); n != 0 {
		t.Errorf("queries about the older sale: got %d, want 0", n)
	}
}

func TestRebuild_Refuses(t *testing.T) {
	send := func(t *testing.T, w *world) {
		t.Helper()
		if err := w.queue.Send(t.Context(), "0000", "id", []byte("{}")); err != nil {
			t.Fatal(err)
		}
	}
	receive := func(t *testing.T, w *world) {
		t.Helper()
		if _, err := w.queue.Receive(t.Context(), 1, 0); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct {
		name    string
		prepare func(t *testing.T, w *world) // two seats in N1, Redis lost
		want    error
		text    string
	}{
		{"a message waits", send, saleops.ErrNotDrained, "1 waiting"},
		{"a message is in flight", func(t *testing.T, w *world) { send(t, w); receive(t, w) }, saleops.ErrNotDrained, "1 in flight"},
		{"a message is dead", func(t *testing.T, w *world) {
			send(t, w)
			receive(t, w)
			w.Clock.Advance(2 * time.Minute)
			receive(t, w)
		}, saleops.ErrNotDrained, "1 dead"},
		{"a record cannot be read", func(t *testing.T, w *world) {
			w.exec(t, `UPDATE records SET body = '{' WHERE attempt = (SELECT min(attempt) FROM records)`)
		}, booking.ErrUnreadable, "1 records"},
		{"no record can be read", func(t *testing.T, w *world) {
			w.exec(t, `UPDATE records SET body = '{'`)
		}, booking.ErrUnreadable, "2 records"},
		{"the store has no record", func(t *testing.T, w *world) { w.exec(t, `DELETE FROM records`) }, nil, "no record"},
		{"the scan breaks off", func(_ *testing.T, w *world) { w.Faults.Next(bookingtest.OpScan, bookingtest.Lost) }, bookingtest.ErrLost, ""},
		{"the second scan breaks off", func(_ *testing.T, w *world) {
			w.Faults.Next(bookingtest.OpScan, bookingtest.None, bookingtest.Lost)
		}, bookingtest.ErrLost, ""},
		{"a lapsed record cannot be ended", func(_ *testing.T, w *world) {
			w.Clock.Advance(time.Hour)
			w.Faults.Next(bookingtest.OpReleaseRecord, bookingtest.Lost)
		}, bookingtest.ErrLost, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := open(t)
			w.Held(t, 1, "N1")
			b := w.Held(t, 2, "N1")
			w.lose(t)
			c.prepare(t, w)
			_, err := w.ops.Rebuild(t.Context(), big())
			if err == nil || (c.want != nil && !errors.Is(err, c.want)) || !strings.Contains(err.Error(), c.text) {
				t.Errorf("rebuild: got %v, want %v with %q in it", err, c.want, c.text)
			}
			w.wantLost(t)
			if row := w.Row(t, b.Code); row.Attempt != "" {
				t.Errorf("row of %s: got %+v, want none", b.Code, row)
			}
		})
	}
}

// exec changes the booking store behind its back.
func (w *world) exec(t *testing.T, statement string, args ...any) {
	t.Helper()
	db, err := sql.Open("sqlite", w.path)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = db.Close() }()
	res, err := db.ExecContext(t.Context(), statement, args...)
	if err != nil {
		t.Fatal(err)
	}
	if n, _ := res.RowsAffected(); n < 1 {
		t.Fatalf("%s: got %d rows, want some", statement, n)
	}
}

func TestRebuild_RefusesALedgerThatIsNotLost(t *testing.T) {
	w := open(t)
	b := w.Held(t, 1, "N1")
	before := w.Row(t, b.Code)
	if _, err := w.ops.Rebuild(t.Context(), big()); err == nil {
		t.Error("rebuild of a running ledger: got nil, want an error")
	}
	if diff := cmp.Diff(before, w.Row(t, b.Code)); diff != "" {
		t.Errorf("row changed (-before +after):\n%s", diff)
	}
	w.Books.CheckAtRest(t)
}

func TestRebuild_RefusesTwoPaidRecordsOfOneCandidate(t *testing.T) {
	w := open(t)
	first := w.Refused(t, 1, "N1")
	second := w.Held(t, 1, "N1")
	for _, b := range []bookingtest.Booking{first, second} {
		if _, err := w.Store.MarkPaid(t.Context(), booking.Paid{Record: b.Record, Transaction: "TX" + b.Payment.ID, PaidAt: w.Clock.Now()}); err != nil {
			t.Fatal(err)
		}
	}
	w.lose(t)
	_, err := w.ops.Rebuild(t.Context(), big())
	if err == nil || !strings.Contains(err.Error(), first.Attempt) || !strings.Contains(err.Error(), second.Attempt) {
		t.Errorf("rebuild: got %v, want an error that names both attempts", err)
	}
	w.wantLost(t)
}

func TestRebuild_RefusesToExceedACap(t *testing.T) {
	for _, c := range []struct {
		name  string
		spoil func(*booking.Sale)
		want  error
	}{
		{"a level's cap", func(s *booking.Sale) { s.Levels[0].Cap = 1 }, booking.ErrCapBelowAdmitted},
		{"the global cap", func(s *booking.Sale) { s.Cap = 2 }, booking.ErrCapBelowAdmitted},
		{"a level that is not sold", func(s *booking.Sale) { s.Levels = s.Levels[:1] }, booking.ErrLevelHasSeats},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := open(t)
			w.Held(t, 1, "N1")
			w.Held(t, 2, "N1")
			w.Held(t, 3, "N2")
			w.lose(t)
			small := big()
			c.spoil(&small)
			_, err := w.ops.Rebuild(t.Context(), small)
			wantErr(t, "rebuild", err, c.want)
			w.wantLost(t)
			if out := w.mustRebuild(t); out.Total != 3 {
				t.Errorf("rebuild with the right sale: got %+v, want three seats", out)
			}
			w.Books.CheckAtRest(t)
		})
	}
}

// A rebuild that breaks off is believed by nobody, and the next one starts from
// the store as it is then.
func TestRebuild_InterruptedIsRunAgain(t *testing.T) {
	for _, c := range []struct {
		name   string
		op     bookingtest.Op
		faults []bookingtest.Fault
	}{
		{"before it began", bookingtest.OpBeginRebuild, []bookingtest.Fault{bookingtest.Lost}},
		{"after the ledger was cleared", bookingtest.OpBeginRebuild, []bookingtest.Fault{bookingtest.Kept}},
		{"before the rows", bookingtest.OpRestore, []bookingtest.Fault{bookingtest.Lost}},
		{"after the rows", bookingtest.OpRestore, []bookingtest.Fault{bookingtest.Kept}},
		{"before the epoch", bookingtest.OpFinishRebuild, []bookingtest.Fault{bookingtest.Lost}},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := open(t)
			lapses, stays := w.Held(t, 1, "N1"), w.Held(t, 2, "N2")
			w.pays(t, stays)
			w.lose(t)
			w.Faults.Next(c.op, c.faults...)
			if out, err := w.ops.Rebuild(t.Context(), big()); err == nil {
				t.Fatalf("rebuild that breaks off: got %+v, want an error", out)
			}
			w.wantLost(t)
			_, err := w.Ledger.Admit(t.Context(), booking.Request{Code: bookingtest.Code(3), Email: bookingtest.Email(3), Level: "N1"}, booking.NewAttemptSuffix(time.Now()), false)
			wantErr(t, "a request between the two", err, booking.ErrTryAgain)
			w.Clock.Advance(booking.DefaultHold + 2*time.Minute)
			if out := w.mustRebuild(t); out.Total != 1 || out.Paid != 1 || out.Released != 1 {
				t.Errorf("second rebuild: got %+v, want the paid seat alone", out)
			}
			w.Want(t, lapses, "", booking.StateReleased)
			w.Want(t, stays, booking.PhasePaid, booking.StatePaid)
			w.Books.CheckAtRest(t)
		})
	}
}

// The last step was made and not acknowledged: the ledger is whole, and sells once
// it is opened. A second rebuild gets the acknowledgement, a third finds nothing to
// do.
func TestRebuild_FinishedButNotToldIsToldByTheNext(t *testing.T) {
	for _, c := range []struct {
		name  string
		again bookingtest.Fault
		sold  int
	}{
		{"at once", bookingtest.None, 0},
		{"not by the next, but by the one after", bookingtest.Kept, 0},
		{"after it has sold", bookingtest.None, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := open(t)
			held, paid := w.Held(t, 1, "N1"), w.Held(t, 2, "N2")
			w.pays(t, paid)
			w.lose(t)
			w.Faults.Next(bookingtest.OpFinishRebuild, bookingtest.Kept, c.again)
			_, err := w.ops.Rebuild(t.Context(), big())
			wantErr(t, "rebuild", err, booking.ErrNotAcknowledged)
			if c.sold > 0 {
				w.resume(t)
				w.Held(t, 3, "N1")
			}
			if c.again != bookingtest.None {
				_, err := w.ops.Rebuild(t.Context(), big())
				wantErr(t, "second rebuild", err, booking.ErrNotAcknowledged)
			}
			want := saleops.Rebuilt{
				Applied: booking.Applied{Epoch: bookingtest.Epoch, Total: 2 + c.sold, Admitted: map[string]int{"N1": 1 + c.sold, "N2": 1}},
				Paid:    1, Held: 1 + c.sold, Earlier: true,
			}
			if diff := cmp.Diff(want, w.mustRebuild(t)); diff != "" {
				t.Errorf("repeated (-want +got):\n%s", diff)
			}
			_, err = w.ops.Rebuild(t.Context(), big())
			wantErr(t, "rebuild once it is acknowledged", err, saleops.ErrNotLost)
			w.Want(t, held, booking.PhaseHeld, booking.StateHeld)
			w.Want(t, paid, booking.PhasePaid, booking.StatePaid)
			w.Books.CheckAtRest(t)
		})
	}
}

// Acknowledged is acknowledged: a token that could not be forgotten makes it no
// less so, and a repeat says so again.
func TestRebuild_TokenThatIsLeftDoesNotMakeItUndone(t *testing.T) {
	w := open(t)
	w.Held(t, 1, "N1")
	w.lose(t)
	w.Faults.Next(bookingtest.OpForgetRebuild, bookingtest.Lost)
	if out := w.mustRebuild(t); out.Earlier || out.Held != 1 {
		t.Errorf("rebuild: got %+v, want one held seat of this run", out)
	}
	if out := w.mustRebuild(t); !out.Earlier || out.Held != 1 {
		t.Errorf("repeat: got %+v, want one held seat of an earlier run", out)
	}
	_, err := w.ops.Rebuild(t.Context(), big())
	wantErr(t, "rebuild without a token left", err, saleops.ErrNotLost)
}

// A sale that is applied, acknowledged, is the acknowledgement too, and no rebuild
// may put the earlier one back.
func TestRebuild_IsOverOnceAnotherSaleIsApplied(t *testing.T) {
	w := open(t)
	w.Held(t, 1, "N1")
	w.lose(t)
	w.Faults.Next(bookingtest.OpFinishRebuild, bookingtest.Kept)
	_, err := w.ops.Rebuild(t.Context(), big())
	wantErr(t, "rebuild", err, booking.ErrNotAcknowledged)
	bigger := big()
	bigger.Levels[0].Cap = 25
	if out, err := w.ops.Start(t.Context(), bigger); err != nil || out.Total != 1 {
		t.Errorf("start: got %+v, %v, want one seat", out, err)
	}
	_, err = w.ops.Rebuild(t.Context(), big())
	wantErr(t, "rebuild with the earlier sale", err, saleops.ErrNotLost)
	if sale, err := w.Ledger.Sale(t.Context()); err != nil || sale.Levels[0].Cap != 25 {
		t.Errorf("sale in force: got %+v, %v, want cap 25", sale, err)
	}
	w.Books.CheckAtRest(t)
}

// Of two rebuilds at the same time the one that began last wins; whatever the
// other still sends changes nothing.
func TestRebuild_SecondOneEndsTheFirst(t *testing.T) {
	for _, op := range []bookingtest.Op{bookingtest.OpRestore, bookingtest.OpFinishRebuild} {
		for name, second := range map[string]func(t *testing.T, w *world){
			"begun": func(t *testing.T, w *world) {
				if _, err := w.Ledger.LedgerDriver.BeginRebuild(t.Context()); err != nil {
					t.Error(err)
				}
			},
			"finished, and selling": func(t *testing.T, w *world) {
				w.mustRebuild(t)
				w.resume(t)
				w.Held(t, 3, "N1")
			},
		} {
			t.Run(string(op)+"/"+name, func(t *testing.T) {
				w := open(t)
				w.Held(t, 1, "N1")
				w.lose(t)
				var before map[string]booking.Row
				w.Faults.Before(op, func() {
					second(t, w)
					var err error
					if before, err = w.Books.Seats.Rows(t.Context()); err != nil {
						t.Error(err)
					}
				})
				if out, err := w.ops.Rebuild(t.Context(), big()); err == nil {
					t.Errorf("first rebuild: got %+v, want an error", out)
				}
				rows, err := w.Books.Seats.Rows(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				if diff := cmp.Diff(before, rows); diff != "" {
					t.Errorf("rows of the second (-before the first's step +after it):\n%s", diff)
				}
				if name == "begun" {
					w.wantLost(t)
					return
				}
				w.Books.CheckAtRest(t)
			})
		}
	}
}

// Redis is emptied once more while rows go back: those that are left out are not
// counted as all there are.
func TestRebuild_RedisLostBetweenTwoSteps(t *testing.T) {
	for _, op := range []bookingtest.Op{bookingtest.OpRestore, bookingtest.OpFinishRebuild} {
		t.Run(string(op), func(t *testing.T) {
			w := open(t)
			w.Held(t, 1, "N1")
			w.lose(t)
			w.Faults.Before(op, func() { w.lose(t) })
			if out, err := w.ops.Rebuild(t.Context(), big()); err == nil {
				t.Errorf("rebuild: got %+v, want an error", out)
			}
			w.wantLost(t)
			if out := w.mustRebuild(t); out.Held != 1 {
				t.Errorf("second rebuild: got %+v, want one held seat", out)
			}
			w.Books.CheckAtRest(t)
		})
	}
}

// More rows than go to Redis at a time.
func TestRebuild_ManySeats(t *testing.T) {
	w := empty(t)
	const n = 1001
	now, recs := w.Clock.Now(), make([]booking.Record, n)
	for i := range n {
		code := bookingtest.Code(i + 1)
		row := booking.Row{
			Attempt: booking.AttemptID(bookingtest.Epoch, booking.NewAttemptSuffix(now)), Level: "N1", Amount: 100, Currency: "BDT",
			AdmittedAt: now.UnixMilli(), Deadline: now.Add(booking.DefaultHold).UnixMilli(), Payment: fmt.Sprintf("TR%06d", i),
		}
		recs[i] = row.HeldRecord(code, "url", "sig")
	}
	w.put(t, recs)
	sale := big()
	sale.Cap, sale.Levels[0].Cap = n, n
	out, err := w.ops.Rebuild(t.Context(), sale)
	if err != nil || out.Total != n || out.Held != n {
		t.Fatalf("rebuild: got %+v, %v, want %d held", out, err, n)
	}
	w.Books.CheckAtRest(t)
}

// put writes records side by side, since they then share commits.
func (w *world) put(t *testing.T, recs []booking.Record) {
	t.Helper()
	var g errgroup.Group
	g.SetLimit(100)
	for _, rec := range recs {
		g.Go(func() error {
			_, _, err := w.Store.PutHeld(t.Context(), rec)
			return err
		})
	}
	if err := g.Wait(); err != nil {
		t.Fatal(err)
	}
}

// Start.

func TestStart_FirstSaleRestartAndRunningLedger(t *testing.T) {
	w := empty(t)
	first, err := w.ops.Start(t.Context(), big())
	if err != nil || first.Epoch == "" || first.Total != 0 {
		t.Fatalf("first sale: got %+v, %v, want an epoch and no seat", first, err)
	}
	w.resume(t)
	b := w.Held(t, 1, "N1")

	bigger := big()
	bigger.Levels[0].Cap = 25
	running, err := w.ops.Start(t.Context(), bigger)
	if err != nil || running.Epoch != first.Epoch || running.Total != 1 {
		t.Errorf("running ledger: got %+v, %v, want the epoch %s and one seat", running, err, first.Epoch)
	}
	if sale, err := w.Ledger.Sale(t.Context()); err != nil || sale.Levels[0].Cap != 25 {
		t.Errorf("sale in force: got %+v, %v, want the new cap 25", sale, err)
	}
	w.Want(t, b, booking.PhaseHeld, booking.StateHeld)

	w.lose(t)
	again, err := w.ops.Start(t.Context(), bigger)
	if err != nil || again.Epoch != first.Epoch || again.Total != 1 || again.Held != 1 {
		t.Errorf("restart: got %+v, %v, want the epoch %s and one held seat", again, err, first.Epoch)
	}
	w.Want(t, b, booking.PhaseHeld, booking.StateHeld)
	w.resume(t)
	w.pays(t, b)
	w.Books.CheckAtRest(t)
}

func TestStart_RunningLedgerRefusesACapBelowItsSeats(t *testing.T) {
	w := open(t)
	w.Held(t, 1, "N1")
	small := big()
	small.Levels[0].Cap = 0
	_, err := w.ops.Start(t.Context(), small)
	wantErr(t, "start", err, booking.ErrCapBelowAdmitted)
	if sale, err := w.Ledger.Sale(t.Context()); err != nil || sale.Levels[0].Cap != big().Levels[0].Cap {
		t.Errorf("sale in force: got %+v, %v, want it as before", sale, err)
	}
	w.Books.CheckAtRest(t)
}

// An empty store with messages on their way is no first sale.
func TestStart_MessagesOnTheirWayAreNoFirstSale(t *testing.T) {
	w := empty(t)
	if err := w.queue.Send(t.Context(), "0000", "id", []byte("{}")); err != nil {
		t.Fatal(err)
	}
	_, err := w.ops.Start(t.Context(), big())
	wantErr(t, "start", err, saleops.ErrNotDrained)
	w.wantLost(t)
}

// slowFigures is a queue that notices a message late.
type slowFigures struct {
	saleops.Queue
	looks, from int
}

func (q *slowFigures) FiguresLag() time.Duration { return 24 * time.Millisecond }

func (q *slowFigures) Stats(ctx context.Context) (booking.QueueStats, error) {
	s, err := q.Queue.Stats(ctx)
	if q.looks++; q.looks >= q.from {
		s.Waiting++
	}
	return s, err
}

// A queue whose figures are late is empty once they have said so for as long as they
// may be: neither a first sale nor a rebuild rests on one look.
func TestStart_FiguresOfTheQueueThatAreLate(t *testing.T) {
	w := empty(t)
	late := &slowFigures{Queue: w.queue, from: 13}
	w.ops.Queue = late
	_, err := w.ops.Start(t.Context(), big())
	wantErr(t, "start", err, saleops.ErrNotDrained)
	_, err = w.ops.Rebuild(t.Context(), big())
	wantErr(t, "rebuild", err, saleops.ErrNotDrained)
	w.wantLost(t)
	late.looks, late.from = 0, 14
	if _, err := w.ops.Start(t.Context(), big()); err != nil || late.looks != 13 {
		t.Errorf("start: got %v after %d looks, want none after 13", err, late.looks)
	}
}

func TestStart_UnreadableRecordsAreNoFirstSale(t *testing.T) {
	w := open(t)
	w.Held(t, 1, "N1")
	w.exec(t, `UPDATE records SET body = '{'`)
	w.lose(t)
	_, err := w.ops.Start(t.Context(), big())
	wantErr(t, "start", err, booking.ErrUnreadable)
	w.wantLost(t)
}
