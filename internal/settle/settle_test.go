package settle_test

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"

	"holdfast/internal/booking"
	"holdfast/internal/booking/bookingtest"
	queue "holdfast/internal/queue/sqlite"
	"holdfast/internal/record"
	"holdfast/internal/settle"
)

func TestNew_RefusesAMissingDependency(t *testing.T) {
	t.Parallel()
	if _, err := settle.New(settle.Deps{}); err == nil {
		t.Error("New without anything: got nil, want an error")
	}
}

func TestReturn_CompletedPaymentIsAPaidSeat(t *testing.T) {
	w := inProcess(t)
	b := w.Held(t, 1, "N1")
	if err := w.paysAndReturns(t, b); err != nil {
		t.Fatalf("return: %v", err)
	}
	w.wantExecutes(t, b, 1)
	if n := w.Gateway.Calls(bookingtest.Query, b.Payment.ID); n != 0 {
		t.Errorf("queries after a clear answer: got %d, want 0", n)
	}
	w.wantPaid(t, b)

	row, rec := w.Row(t, b.Code), w.record(t, b)
	want := b.Record
	if want.ExecuteAt = rec.ExecuteAt; want.ExecuteAt.IsZero() {
		t.Error("record: the execute call was not announced in it")
	}
	want.State, want.Transaction, want.PaidAt, want.Mail, want.TTL = booking.StatePaid, "TX"+b.Payment.ID, time.UnixMilli(row.PaidAt).UTC(), booking.MailSent, time.Time{}
	if diff := cmp.Diff(want, rec); diff != "" {
		t.Errorf("record (-want +got):\n%s", diff)
	}
	want.Mail = booking.MailDue
	mail := booking.Mail{
		To: bookingtest.Email(1), Sale: "demo", LevelName: "N1 Advanced",
		BookingURL: "https://sale.test/result?booking=" + b.Code + b.Attempt, Record: want,
	}
	if diff := cmp.Diff(mail, w.Mailer.Sent()[0]); diff != "" {
		t.Errorf("mail (-want +got):\n%s", diff)
	}
}

func TestReturn_PayerFasterThanTheWorker(t *testing.T) {
	w := inProcess(t)
	b := w.Unwritten(t, 1, "N1")
	q, worker := w.worker(t)
	body, err := json.Marshal(b.Record)
	if err != nil {
		t.Fatal(err)
	}
	if err := q.Send(t.Context(), booking.QueueGroup(b.Record.CandidateHash), b.Record.Invoice, body); err != nil {
		t.Fatal(err)
	}
	if err := w.paysAndReturns(t, b); err != nil {
		t.Fatalf("return: %v", err)
	}
	before := w.record(t, b)
	if n, err := worker.Drain(t.Context()); n != 1 || err != nil {
		t.Fatalf("drain: got %d, %v, want 1 message done", n, err)
	}
	if diff := cmp.Diff(before, w.record(t, b)); diff != "" {
		t.Errorf("the late message changed the record (-before +after):\n%s", diff)
	}
	w.wantPaid(t, b)
}

// worker is a queue and the worker that empties it.
func (w *world) worker(t *testing.T) (*queue.Queue, *record.Worker) {
	t.Helper()
	q, err := queue.Open(t.Context(), filepath.Join(t.TempDir(), "queue.db"), queue.Options{Now: w.Clock.Now})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = q.Close() })
	worker, err := record.New(record.Deps{
		Queue: q, Store: w.Store, Log: slog.New(slog.DiscardHandler), Reg: prometheus.NewRegistry(), Now: w.Clock.Now,
	})
	if err != nil {
		t.Fatal(err)
	}
	return q, worker
}

func (w *world) record(t *testing.T, b bookingtest.Booking) booking.Record {
	t.Helper()
	rec, err := w.Store.Record(t.Context(), b.Record.CandidateHash, b.Attempt)
	if err != nil {
		t.Fatalf("record of %s: %v", b.Code, err)
	}
	return rec
}

func TestReturn_RepeatedPaysOnce(t *testing.T) {
	w := inProcess(t)
	b := w.Held(t, 1, "N1")
	w.Gateway.Finish(b.Payment.ID)
	for i := range 2 {
		if err := w.returns(t, b); err != nil {
			t.Errorf("return %d: %v", i+1, err)
		}
	}
	before := w.Row(t, b.Code)
	w.Clock.Advance(48 * time.Hour)
	for range 10 {
		if err := w.returns(t, b); err != nil {
			t.Errorf("reloaded two days later: %v", err)
		}
	}
	if diff := cmp.Diff(before, w.Row(t, b.Code)); diff != "" {
		t.Errorf("reloading changed the row (-before +after):\n%s", diff)
	}
	w.wantExecutes(t, b, 1)
	w.wantPaid(t, b)
}

func TestReturn_FiftyAtOncePayOnce(t *testing.T) {
	w := inProcess(t)
	b := w.Held(t, 1, "N1")
	w.Gateway.Finish(b.Payment.ID)
	var all sync.WaitGroup
	for range 50 {
		all.Go(func() {
			err := w.settler.Return(t.Context(), b.Code, b.Attempt, b.Payment.ID)
			if err != nil && !errors.Is(err, booking.ErrPaying) {
				t.Errorf("return: got %v, want nil, or that another call is paying", err)
			}
		})
	}
	all.Wait()
	w.Background.Wait()
	w.wantExecutes(t, b, 1)
	w.wantPaid(t, b)
}

// What causes no call to the gateway: no money can move for a seat that is not
// the payer's any more.
func TestReturn_WithoutASeatNoExecute(t *testing.T) {
	for _, c := range []struct {
		name string
		make func(t *testing.T, w *world) bookingtest.Booking
		want error
	}{
		{"past the deadline", func(t *testing.T, w *world) bookingtest.Booking {
			b := w.Held(t, 1, "N1")
			w.Clock.Advance(booking.DefaultHold)
			return b
		}, booking.ErrDeadlinePassed},
		{"payable past the deadline", func(t *testing.T, w *world) bookingtest.Booking {
			b := w.Payable(t, 1, "N1")
			w.Clock.Advance(booking.DefaultHold)
			return b
		}, booking.ErrDeadlinePassed},
		{"released", func(t *testing.T, w *world) bookingtest.Booking {
			b := w.Held(t, 1, "N1")
			w.sweep(t, booking.DefaultHold)
			w.Want(t, b, "", booking.StateReleased)
			return b
		}, booking.ErrNotOwner},
		{"released, and booked again", func(t *testing.T, w *world) bookingtest.Booking {
			b := w.Held(t, 1, "N1")
			w.sweep(t, booking.DefaultHold)
			w.Held(t, 1, "N1")
			return b
		}, booking.ErrNotOwner},
		{"refused, and taken over by a request at work", func(t *testing.T, w *world) bookingtest.Booking {
			b := w.Refused(t, 1, "N1")
			w.Admit(t, 1, "N1")
			return b
		}, booking.ErrNotOwner},
		{"refused", func(t *testing.T, w *world) bookingtest.Booking { return w.Refused(t, 1, "N1") }, booking.ErrRefused},
		{"paying", func(t *testing.T, w *world) bookingtest.Booking { return w.Paying(t, 1, "N1", "other", time.Minute) }, booking.ErrPaying},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := inProcess(t)
			b := c.make(t, w)
			asked, state := w.Gateway.Calls(bookingtest.Query, ""), w.State(t, b)
			row := w.Row(t, b.Code)
			wantErr(t, "return", w.paysAndReturns(t, b), c.want)
			w.wantExecutes(t, b, 0)
			if n := w.Gateway.Calls(bookingtest.Query, "") - asked; n != 0 {
				t.Errorf("queries: got %d, want 0", n)
			}
			if diff := cmp.Diff(row, w.Row(t, b.Code)); diff != "" {
				t.Errorf("row changed (-before +after):\n%s", diff)
			}
			if got := w.State(t, b); got != state && state != "" {
				t.Errorf("record: got %q, want %q as before", got, state)
			}
			w.Books.Check(t)
		})
	}
}

func TestReturn_BrowserThatIsGoneStopsNothing(t *testing.T) {
	w := inProcess(t)
	b := w.Held(t, 1, "N1")
	w.Gateway.Finish(b.Payment.ID)
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	if err := w.settler.Return(gone, b.Code, b.Attempt, b.Payment.ID); err != nil {
		t.Fatalf("return: %v", err)
	}
	w.Background.Wait()
	w.wantPaid(t, b)
}

func TestReturn_PayableRecordIsThereBeforeMoneyCanMove(t *testing.T) {
	w := inProcess(t)
	b := w.Payable(t, 1, "N1")
	w.Faults.Before(bookingtest.OpBeginPay, func() { w.Want(t, b, booking.PhasePayable, booking.StateHeld) })
	if err := w.paysAndReturns(t, b); err != nil {
		t.Fatalf("return: %v", err)
	}
	w.wantPaid(t, b)
}

func TestReturn_PayableWithoutARecordIsNotExecuted(t *testing.T) {
	w := inProcess(t)
	b := w.Payable(t, 1, "N1")
	w.Faults.Next(bookingtest.OpPutHeld, bookingtest.Lost)
	wantErr(t, "return", w.paysAndReturns(t, b), bookingtest.ErrLost)
	w.wantExecutes(t, b, 0)
	w.Want(t, b, booking.PhasePayable, "")
	if err := w.returns(t, b); err != nil {
		t.Fatalf("return once the store answers: %v", err)
	}
	w.wantPaid(t, b)
}

func TestReturn_RefusedPaymentIsOverTheSeatIsNot(t *testing.T) {
	for _, c := range []struct {
		name string
		make func(w *world, t testing.TB, i int, level string) bookingtest.Booking
	}{
		{"record written", func(w *world, t testing.TB, i int, level string) bookingtest.Booking { return w.Held(t, i, level) }},
		{"record not written yet", func(w *world, t testing.TB, i int, level string) bookingtest.Booking { return w.Unwritten(t, i, level) }},
		{"record not queued", func(w *world, t testing.TB, i int, level string) bookingtest.Booking { return w.Payable(t, i, level) }},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := inProcess(t)
			first := c.make(w, t, 1, "N1")
			w.Gateway.Refuse(first.Payment.ID, "2023")
			if err := w.returns(t, first); err != nil {
				t.Fatalf("return: %v", err)
			}
			w.Want(t, first, booking.PhaseRefused, booking.StateReleased)
			if reason := w.record(t, first).Reason; reason != "refused 2023" {
				t.Errorf("reason: got %q, want refused 2023", reason)
			}
			w.Books.CheckAtRest(t)
			deadline := w.Row(t, first.Code).Deadline
			wantErr(t, "returned again", w.returns(t, first), booking.ErrRefused)
			w.wantExecutes(t, first, 1)
			w.Write(t, first) // the late message
			w.Want(t, first, booking.PhaseRefused, booking.StateReleased)

			w.Clock.Advance(time.Minute)
			second := w.Held(t, 1, "N1")
			if got := w.Row(t, second.Code).Deadline; got != deadline {
				t.Errorf("deadline after the take-over: got %d, want %d as before", got, deadline)
			}
			if err := w.paysAndReturns(t, second); err != nil {
				t.Fatalf("return of the second payment: %v", err)
			}
			w.Want(t, first, "", booking.StateReleased)
			w.wantPaid(t, second)
		})
	}
}

// A refusal that broke off half-way: until the sweep has finished it nobody takes
// the seat over, so that no record is left behind without a row.
func TestReturn_RefusedHalfWayIsFinishedByTheSweep(t *testing.T) {
	for _, c := range []struct {
		name   string
		op     bookingtest.Op
		faults []bookingtest.Fault
		state  booking.RecordState
	}{
		{"end-pay not acknowledged", bookingtest.OpEndPay, []bookingtest.Fault{bookingtest.Kept, bookingtest.Kept}, booking.StateHeld},
		{"record's end lost", bookingtest.OpReleaseRecord, []bookingtest.Fault{bookingtest.Lost}, booking.StateHeld},
		{"record's end kept", bookingtest.OpReleaseRecord, []bookingtest.Fault{bookingtest.Kept}, booking.StateReleased},
		{"the ledger not told", bookingtest.OpRecordReleased, []bookingtest.Fault{bookingtest.Lost}, booking.StateReleased},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := inProcess(t)
			b := w.Held(t, 1, "N1")
			w.Gateway.Refuse(b.Payment.ID, "2023")
			w.Faults.Next(c.op, c.faults...)
			if err := w.returns(t, b); err == nil {
				t.Error("return: got nil, want an error")
			}
			w.Want(t, b, booking.PhaseRefused, c.state)
			w.Books.Check(t)
			r := booking.Request{Code: b.Code, Email: bookingtest.Email(1), Level: "N1"}
			_, err := w.Ledger.Admit(t.Context(), r, booking.NewAttemptSuffix(w.Clock.Now()), false)
			wantErr(t, "candidate's next request", err, booking.ErrDuplicate)
			w.sweep(t, time.Minute)
			w.wantExecutes(t, b, 1)
			w.Want(t, b, booking.PhaseRefused, booking.StateReleased)
			if !w.record(t, b).Refused() {
				t.Errorf("reason: got %q, want a refusal", w.record(t, b).Reason)
			}
			w.Books.CheckAtRest(t)
			if err := w.paysAndReturns(t, w.Held(t, 1, "N1")); err != nil {
				t.Errorf("return of the second payment: %v", err)
			}
			w.Want(t, b, "", booking.StateReleased)
			w.Books.CheckAtRest(t)
		})
	}
}

func TestReturn_EndPayRepeatedFindsItsOwnEffect(t *testing.T) {
	for name, fault := range map[string]bookingtest.Fault{"lost": bookingtest.Lost, "kept": bookingtest.Kept} {
		t.Run(name, func(t *testing.T) {
			w := inProcess(t)
			refused, unfinished := w.Held(t, 1, "N1"), w.Held(t, 2, "N1")
			w.Gateway.Refuse(refused.Payment.ID, "2023")
			for _, b := range []bookingtest.Booking{refused, unfinished} {
				w.Faults.Next(bookingtest.OpEndPay, fault)
				if err := w.returns(t, b); err != nil {
					t.Errorf("return of %s: %v", b.Code, err)
				}
			}
			w.Want(t, refused, booking.PhaseRefused, booking.StateReleased)
			w.Want(t, unfinished, booking.PhaseHeld, booking.StateHeld)
			w.Books.CheckAtRest(t)
		})
	}
}

func TestReturn_PayerWhoHasNotFinishedMayGoOn(t *testing.T) {
	w := inProcess(t)
	b := w.Held(t, 1, "N1")
	if err := w.returns(t, b); err != nil {
		t.Fatalf("return before the payer finished: %v", err)
	}
	w.Want(t, b, booking.PhaseHeld, booking.StateHeld)
	w.Books.CheckAtRest(t)
	if err := w.paysAndReturns(t, b); err != nil {
		t.Fatalf("return: %v", err)
	}
	w.wantPaid(t, b)
}

func TestReturn_ExecuteNotSentGivesTheRowBack(t *testing.T) {
	w := inProcess(t)
	b := w.Held(t, 1, "N1")
	w.Gateway.Next(bookingtest.Execute, b.Payment.ID, bookingtest.NotSent())
	wantErr(t, "return", w.paysAndReturns(t, b), booking.ErrNotSent)
	w.Want(t, b, booking.PhaseHeld, booking.StateHeld)
	w.Books.CheckAtRest(t)
	if err := w.returns(t, b); err != nil {
		t.Fatalf("return once the gateway is reached: %v", err)
	}
	w.wantPaid(t, b)
}

func TestReturn_ExecuteNotSentAndTheRowNotGivenBackIsTheReconcilers(t *testing.T) {
	w := inProcess(t)
	b := w.Held(t, 1, "N1")
	w.Gateway.Next(bookingtest.Execute, b.Payment.ID, bookingtest.NotSent())
	w.Faults.Next(bookingtest.OpEndPay, bookingtest.Lost, bookingtest.Lost)
	wantErr(t, "return", w.paysAndReturns(t, b), booking.ErrNotSent)
	w.Want(t, b, booking.PhasePaying, booking.StateHeld)
	w.sweep(t, executeTimeout)
	w.Want(t, b, booking.PhasePaying, booking.StateHeld) // its end has not come
	w.sweep(t, settle.PayingMargin)
	w.wantPaid(t, b)
}

// The money has moved and nobody was told: the query tells.
func TestReturn_UnclearExecuteIsAskedAbout(t *testing.T) {
	for _, c := range []struct {
		name    string
		prepare func(w *world, id string)
	}{
		{"reply lost", func(w *world, id string) { w.Gateway.Next(bookingtest.Execute, id, bookingtest.KeptCall()) }},
		{"reply garbled", func(w *world, id string) {
			w.Gateway.Next(bookingtest.Execute, id, bookingtest.Altered(func(c *booking.Charge) { *c = booking.Charge{PaymentID: id, Status: booking.ChargeUnknown} }))
		}},
		{"already executed", func(w *world, id string) { w.Gateway.Complete(id) }},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := inProcess(t)
			b := w.Held(t, 1, "N1")
			w.Gateway.Finish(b.Payment.ID)
			c.prepare(w, b.Payment.ID)
			if err := w.returns(t, b); err != nil {
				t.Fatalf("return: %v", err)
			}
			w.wantExecutes(t, b, 1)
			if n := w.Gateway.Calls(bookingtest.Query, b.Payment.ID); n != 1 {
				t.Errorf("queries: got %d, want 1", n)
			}
			w.wantPaid(t, b)
		})
	}
}

func TestReturn_StillUnclearStaysPayingUntilTheReconciler(t *testing.T) {
	for _, c := range []struct {
		name           string
		execute, query bookingtest.Answer
		want           error
	}{
		{"money moved, both silent", bookingtest.KeptCall(), bookingtest.LostCall(), booking.ErrInDoubt},
		{"money not moved, both silent", bookingtest.LostCall(), bookingtest.LostCall(), booking.ErrInDoubt},
		{"money not moved yet, query says open", bookingtest.LostCall(), bookingtest.Obey(), booking.ErrInDoubt},
		{"money moved, query garbled", bookingtest.KeptCall(), bookingtest.Garbled(), booking.ErrInDoubt},
		{"money moved, query not sent", bookingtest.KeptCall(), bookingtest.NotSent(), booking.ErrNotSent},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := inProcess(t)
			b := w.Held(t, 1, "N1")
			w.Gateway.Next(bookingtest.Execute, b.Payment.ID, c.execute)
			w.Gateway.Next(bookingtest.Query, b.Payment.ID, c.query)
			wantErr(t, "return", w.paysAndReturns(t, b), c.want)
			w.Want(t, b, booking.PhasePaying, booking.StateHeld)
			w.wantMails(t, b, 0)
			w.Books.Check(t)
			wantErr(t, "returned again", w.returns(t, b), booking.ErrPaying)
			w.sweep(t, executeTimeout+settle.PayingMargin)
			w.wantPaid(t, b)
		})
	}
}

// The execute call may still be on its way when the query answers, so that a
// refusal it tells is not final yet.
func TestReturn_RefusalByQueryIsTheReconcilers(t *testing.T) {
	w := inProcess(t)
	b := w.Held(t, 1, "N1")
	w.Gateway.Next(bookingtest.Execute, b.Payment.ID, bookingtest.LostCall())
	w.Gateway.Always(bookingtest.Query, b.Payment.ID, bookingtest.Altered(func(c *booking.Charge) { c.Status, c.Code = booking.ChargeRefused, "2023" }))
	wantErr(t, "return", w.returns(t, b), booking.ErrInDoubt)
	w.Want(t, b, booking.PhasePaying, booking.StateHeld)
	w.sweep(t, executeTimeout+settle.PayingMargin)
	w.Want(t, b, booking.PhaseRefused, booking.StateReleased)
	w.Books.CheckAtRest(t)
}

func TestReturn_AnotherPaymentOfTheSeatIsNotExecuted(t *testing.T) {
	w := inProcess(t)
	b, other := w.Held(t, 1, "N1"), w.Held(t, 2, "N1")
	w.Gateway.Finish(other.Payment.ID)
	err := w.settler.Return(t.Context(), b.Code, b.Attempt, other.Payment.ID)
	wantErr(t, "return", err, booking.ErrNotOwner)
	w.wantExecutes(t, other, 0)
	w.Want(t, b, booking.PhaseHeld, booking.StateHeld)
	w.Want(t, other, booking.PhaseHeld, booking.StateHeld)
	w.Books.CheckAtRest(t)
}

func TestReturn_ExecuteThatHangsIsGivenUpBeforePayingEnds(t *testing.T) {
	w := inProcess(t)
	b := w.Held(t, 1, "N1")
	w.Gateway.Finish(b.Payment.ID)
	quick, err := settle.New(settle.Deps{
		Ledger: w.Ledger, Gateway: deadlines{w.Gateway, t}, Store: w.Store, Mailer: w.Mailer, Sale: w.Ledger, Background: w.Background,
		BookingURL: func(code, attempt string) string { return code + attempt }, ExecuteTimeout: 100 * time.Millisecond,
		Now: w.Clock.Now, Log: slog.New(slog.DiscardHandler), Registerer: prometheus.NewRegistry(),
	})
	if err != nil {
		t.Fatal(err)
	}
	hold := bookingtest.NewHold()
	w.Gateway.Next(bookingtest.Execute, b.Payment.ID, bookingtest.Late(hold))
	if err := quick.Return(t.Context(), b.Code, b.Attempt, b.Payment.ID); err != nil {
		t.Fatalf("return: %v", err)
	}
	w.Background.Wait()
	w.wantPaid(t, b)
}

// deadlines holds the end of an execute call against the time it was given.
type deadlines struct {
	*bookingtest.Gateway
	t *testing.T
}

func (d deadlines) Execute(ctx context.Context, payment string) (booking.Charge, error) {
	if end, ok := ctx.Deadline(); !ok || time.Until(end) > 100*time.Millisecond {
		d.t.Errorf("execute may take until %s (%t), want within 100 ms", end, ok)
	}
	return d.Gateway.Execute(ctx, payment)
}

func TestReturn_BeginPayRepeatedFindsItsOwnEffect(t *testing.T) {
	for name, fault := range map[string]bookingtest.Fault{"lost": bookingtest.Lost, "kept": bookingtest.Kept} {
		t.Run(name, func(t *testing.T) {
			w := inProcess(t)
			b := w.Held(t, 1, "N1")
			w.Faults.Next(bookingtest.OpBeginPay, fault)
			if err := w.paysAndReturns(t, b); err != nil {
				t.Fatalf("return: %v", err)
			}
			w.wantExecutes(t, b, 1)
			w.wantPaid(t, b)
		})
	}
}

func TestReturn_BeginPayNotAcknowledgedIsNotExecuted(t *testing.T) {
	w := onPair(t)
	b := w.Held(t, 1, "N1")
	w.cut(t)
	wantErr(t, "return", w.paysAndReturns(t, b), booking.ErrNotAcknowledged)
	w.wantExecutes(t, b, 0)
	w.Want(t, b, booking.PhaseHeld, booking.StateHeld)
	w.Books.Check(t)
	w.heal(t)
	if err := w.returns(t, b); err != nil {
		t.Fatalf("return once the replica is back: %v", err)
	}
	w.wantExecutes(t, b, 1)
	w.wantPaid(t, b)
}

func TestReturn_AnnouncedButNotAcknowledgedIsTheReconcilers(t *testing.T) {
	w := inProcess(t)
	b := w.Held(t, 1, "N1")
	w.Faults.Next(bookingtest.OpBeginPay, bookingtest.Kept, bookingtest.Kept)
	w.Faults.Next(bookingtest.OpEndPay, bookingtest.Lost, bookingtest.Lost)
	wantErr(t, "return", w.paysAndReturns(t, b), booking.ErrNotAcknowledged)
	w.wantExecutes(t, b, 0)
	w.Want(t, b, booking.PhasePaying, booking.StateHeld)
	w.sweep(t, executeTimeout+settle.PayingMargin)
	w.wantPaid(t, b)
}

// Hole 26: nothing is written on the word of a row that was not acknowledged.
func TestReturn_SettleNotAcknowledgedWritesNothing(t *testing.T) {
	w := onPair(t)
	b := w.Held(t, 1, "N1")
	w.Gateway.Finish(b.Payment.ID)
	hold := bookingtest.NewHold()
	w.Gateway.Next(bookingtest.Execute, b.Payment.ID, bookingtest.Late(hold))
	result := make(chan error, 1)
	go func() { result <- w.settler.Return(t.Context(), b.Code, b.Attempt, b.Payment.ID) }()
	<-hold.Arrived()
	w.cut(t)
	hold.LetGo()
	wantErr(t, "return", <-result, booking.ErrNotAcknowledged)
	w.Background.Wait()
	w.Want(t, b, booking.PhasePaid, booking.StateHeld)
	w.wantMails(t, b, 0)

	if report := w.sweep(t, time.Minute); report["failed"] != 1 {
		t.Errorf("sweep while the replica is gone: got %v, want one row that failed", report)
	}
	w.Want(t, b, booking.PhasePaid, booking.StateHeld)
	w.wantMails(t, b, 0)

	w.heal(t)
	w.sweep(t, 0)
	w.wantPaid(t, b)
}

// Each write on the way from the ledger's "paid" to the sent mail is lost, and
// kept but reported lost; sweeps finish what is missing.
func TestReturn_EveryWriteLostOrKept(t *testing.T) {
	for _, op := range []bookingtest.Op{
		bookingtest.OpSettle, bookingtest.OpMarkPaid, bookingtest.OpRecordDone, bookingtest.OpClaimMail,
		bookingtest.OpMail, bookingtest.OpMailSent, bookingtest.OpMailDone,
	} {
		for name, fault := range map[string]bookingtest.Fault{"lost": bookingtest.Lost, "kept": bookingtest.Kept} {
			t.Run(string(op)+" "+name, func(t *testing.T) {
				w := inProcess(t)
				b := w.Held(t, 1, "N1")
				w.Faults.Next(op, fault)
				// The provider's own answer was lost: this alone may send twice.
				w.Books.MailTwice = op == bookingtest.OpMail && fault == bookingtest.Kept
				_ = w.paysAndReturns(t, b) // what the browser hears is not what counts
				w.Books.Check(t)
				for range 4 { // the end of 'paying', a paid row's next look, the end of a claim
					w.sweep(t, time.Minute)
					w.Books.Check(t)
				}
				w.Want(t, b, booking.PhasePaid, booking.StatePaid)
				w.wantExecutes(t, b, 1)
				want := 1
				if w.Books.MailTwice {
					want = 2
				}
				w.wantMails(t, b, want)
				w.Books.CheckAtRest(t)
			})
		}
	}
}

func TestMail_ProviderDownForTenMinutesSendsOnce(t *testing.T) {
	w := inProcess(t)
	b := w.Held(t, 1, "N1")
	w.Faults.Always(bookingtest.OpMail, bookingtest.Lost)
	if err := w.paysAndReturns(t, b); err != nil {
		t.Fatalf("return: %v", err)
	}
	for range 10 {
		w.sweep(t, time.Minute)
		w.Books.Check(t)
	}
	w.wantMails(t, b, 0)
	if n := w.Faults.Calls(bookingtest.OpMail); n < 3 {
		t.Errorf("tries in ten minutes: got %d, want one at every end of a claim", n)
	}
	w.Faults.Always(bookingtest.OpMail, bookingtest.None)
	for range 3 {
		w.sweep(t, time.Minute)
	}
	w.wantPaid(t, b)
}

// patience tells how long each send may take.
type patience struct {
	*bookingtest.Mailer
	left chan time.Duration
}

func (p patience) Send(ctx context.Context, mail booking.Mail) error {
	until, limited := ctx.Deadline()
	if !limited {
		until = time.Now().Add(time.Hour)
	}
	p.left <- time.Until(until)
	return p.Mailer.Send(ctx, mail)
}

// A provider that hangs does not keep a worker of the sweep from the seats: it has
// less time than the rest of a row's work.
func TestMail_ProviderHasFiveSeconds(t *testing.T) {
	w := inProcess(t)
	b := w.Held(t, 1, "N1")
	w.Background.Drain()
	if err := w.paysAndReturns(t, b); err != nil {
		t.Fatalf("return: %v", err)
	}
	left := make(chan time.Duration, 1)
	s, err := settle.New(settle.Deps{
		Ledger: w.Ledger, Gateway: w.Gateway, Store: w.Store, Mailer: patience{w.Mailer, left}, Sale: w.Ledger, Background: w.Background,
		BookingURL:     func(code, attempt string) string { return code + attempt },
		ExecuteTimeout: executeTimeout, Now: w.Clock.Now, Log: slog.New(slog.DiscardHandler), Registerer: prometheus.NewRegistry(),
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.SendMail(t.Context(), b.Code, b.Attempt); err != nil {
		t.Fatalf("send mail: %v", err)
	}
	if got := <-left; got > 5*time.Second {
		t.Errorf("time of one send: got %s, want at most 5s", got)
	}
	w.wantPaid(t, b)
}

// A mail tells of a booking that is paid, by its record.
func TestMail_OfARecordThatIsNotPaidIsNotSent(t *testing.T) {
	w := inProcess(t)
	b := w.Held(t, 1, "N1")
	if err := w.settler.SendMail(t.Context(), b.Code, b.Attempt); err == nil {
		t.Error("mail of a held record: got nil, want an error")
	}
	w.wantMails(t, b, 0)
}

func TestMail_SenderThatDiedIsReplacedWhenItsClaimEnds(t *testing.T) {
	w := inProcess(t)
	b := w.Held(t, 1, "N1")
	w.Faults.Before(bookingtest.OpClaimMail, func() {
		now := w.Clock.Now()
		mine, err := w.Store.StoreDriver.ClaimMail(t.Context(), b.Record.CandidateHash, b.Attempt, "died", now, now.Add(2*time.Minute))
		if !mine || err != nil {
			t.Errorf("claim of the sender that dies: got %t, %v, want true", mine, err)
		}
	})
	if err := w.paysAndReturns(t, b); err != nil {
		t.Fatalf("return: %v", err)
	}
	w.sweep(t, time.Minute)
	w.wantMails(t, b, 0)
	w.Books.Check(t)
	w.sweep(t, time.Minute)
	w.wantPaid(t, b)
}

func TestMail_TwoSweepsAtOnceSendOne(t *testing.T) {
	w := inProcess(t)
	b := w.Held(t, 1, "N1")
	w.Faults.Next(bookingtest.OpMarkPaid, bookingtest.Lost)
	wantErr(t, "return", w.paysAndReturns(t, b), bookingtest.ErrLost)
	row := w.Row(t, b.Code)
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			if err := w.settler.Resume(t.Context(), b.Code, row); err != nil {
				t.Errorf("resume: %v", err)
			}
			if err := w.settler.SendMail(t.Context(), b.Code, b.Attempt); err != nil {
				t.Errorf("send mail: %v", err)
			}
		})
	}
	all.Wait()
	w.sweep(t, time.Minute)
	w.wantPaid(t, b)
}

func TestMail_DrainingLeavesItToTheSweep(t *testing.T) {
	w := inProcess(t)
	b := w.Held(t, 1, "N1")
	w.Background.Drain()
	if err := w.paysAndReturns(t, b); err != nil {
		t.Fatalf("return: %v", err)
	}
	w.Want(t, b, booking.PhasePaid, booking.StatePaid)
	w.wantMails(t, b, 0)
	w.sweep(t, time.Minute)
	w.wantPaid(t, b)
}

func TestMail_CandidateWithoutAnAddressIsPaidAllTheSame(t *testing.T) {
	w := inProcess(t)
	b := w.Held(t, 1, "N1")
	if err := w.rdb.Del(t.Context(), prefix+"candidate:email:"+b.Code).Err(); err != nil {
		t.Fatal(err)
	}
	if err := w.paysAndReturns(t, b); err != nil {
		t.Fatalf("return: %v", err)
	}
	w.Want(t, b, booking.PhasePaid, booking.StatePaid)
	w.Books.Check(t)
	if err := w.Ledger.AddCandidates(t.Context(), bookingtest.Candidates(1)); err != nil {
		t.Fatal(err)
	}
	w.sweep(t, time.Minute)
	w.wantPaid(t, b)
}

// A record that a runner ended on an old answer follows the ledger's word.
func TestConfirm_RecordFollowsTheLedgerFromReleased(t *testing.T) {
	w := inProcess(t)
	b := w.Refused(t, 1, "N1")
	w.Gateway.Complete(b.Payment.ID)
	charge, err := w.Gateway.Query(t.Context(), b.Payment.ID)
	if err != nil {
		t.Fatal(err)
	}
	if err := w.settler.Confirm(t.Context(), b.Code, b.Record, charge); err != nil {
		t.Fatalf("confirm: %v", err)
	}
	w.Background.Wait()
	w.wantPaid(t, b)
}

// What is known of a payment before its execute call was announced ends no record.
func TestReleaseRecord_NeverEndsWhatWasAnnouncedMeanwhile(t *testing.T) {
	w := inProcess(t)
	b := w.Held(t, 1, "N1")
	noted, err := w.Store.Announce(t.Context(), b.Record, w.Clock.Now())
	if err != nil {
		t.Fatal(err)
	}
	wantErr(t, "read before the announcement", w.settler.ReleaseRecord(t.Context(), b.Record, "test"), booking.ErrAnnounced)
	w.Want(t, b, booking.PhaseHeld, booking.StateHeld)
	if err := w.settler.ReleaseRecord(t.Context(), noted, "test"); err != nil {
		t.Errorf("read after it: got %v, want nil", err)
	}
}

func TestReleaseRecord_NeverEndsWhatIsPaidOrAnothers(t *testing.T) {
	w := inProcess(t)
	b := w.Held(t, 1, "N1")
	other := b.Record
	other.PaymentID = "TR999999"
	wantErr(t, "another payment", w.settler.ReleaseRecord(t.Context(), other, "test"), booking.ErrOtherThanOrdered)
	w.Want(t, b, booking.PhaseHeld, booking.StateHeld)
	if err := w.paysAndReturns(t, b); err != nil {
		t.Fatalf("return: %v", err)
	}
	wantErr(t, "paid", w.settler.ReleaseRecord(t.Context(), b.Record, "test"), booking.ErrAlreadyPaid)
	w.wantPaid(t, b)
}

func TestIssued_OnlyWithThePaymentsOwnSignature(t *testing.T) {
	for _, c := range []struct {
		name string
		lose bool // the stash is gone: the store knows
	}{{"from the stash", false}, {"from the store", true}} {
		t.Run(c.name, func(t *testing.T) {
			w := inProcess(t)
			b, other := w.Held(t, 1, "N1"), w.Held(t, 2, "N1")
			if c.lose {
				w.loseStash(t, b)
				w.loseStash(t, other)
			}
			code, attempt, err := w.settler.Issued(t.Context(), b.Payment.ID, b.Payment.Signature)
			if code != b.Code || attempt != b.Attempt || err != nil {
				t.Errorf("its own signature: got %s %s, %v, want %s %s", code, attempt, err, b.Code, b.Attempt)
			}
			for what, in := range map[string][2]string{
				"wrong signature":           {b.Payment.ID, "sigTR999999"},
				"empty signature":           {b.Payment.ID, ""},
				"another's signature":       {b.Payment.ID, other.Payment.Signature},
				"beginning of it":           {b.Payment.ID, b.Payment.Signature[:4]},
				"unknown payment":           {"TR999999", b.Payment.Signature},
				"unknown payment, no words": {"TR999999", ""},
				"nothing":                   {"", ""},
			} {
				code, attempt, err := w.settler.Issued(t.Context(), in[0], in[1])
				if code != "" || attempt != "" || !errors.Is(err, booking.ErrNotFound) {
					t.Errorf("%s: got %q %q, %v, want not found", what, code, attempt, err)
				}
			}
			if n := w.Gateway.Calls(bookingtest.Execute, "") + w.Gateway.Calls(bookingtest.Query, ""); n != 0 {
				t.Errorf("gateway calls: got %d, want 0", n)
			}
		})
	}
}

// awayStash is a Redis that does not answer for a payment.
type awayStash struct{ settle.Ledger }

func (awayStash) Issued(context.Context, string) (booking.Issued, error) {
	return booking.Issued{}, errors.New("i/o timeout")
}

// A payer who comes back while nobody can be asked may have a payment of ours: to call it
// unknown would end their way.
func TestIssued_WhenNobodyCanBeAskedIsNotUnknown(t *testing.T) {
	t.Run("Redis away, and the record not yet written", func(t *testing.T) {
		w := inProcess(t)
		b := w.Unwritten(t, 1, "N1")
		w.settler.Ledger = awayStash{w.settler.Ledger}
		if _, _, err := w.settler.Issued(t.Context(), b.Payment.ID, b.Payment.Signature); err == nil || errors.Is(err, booking.ErrNotFound) {
			t.Errorf("got %v, want that it cannot be told", err)
		}
	})
	t.Run("Redis empty, and the record not yet written", func(t *testing.T) {
		w := inProcess(t)
		b := w.Unwritten(t, 1, "N1")
		if err := w.rdb.FlushAll(t.Context()).Err(); err != nil {
			t.Fatal(err)
		}
		if _, _, err := w.settler.Issued(t.Context(), b.Payment.ID, b.Payment.Signature); !errors.Is(err, booking.ErrTryAgain) || errors.Is(err, booking.ErrNotFound) {
			t.Errorf("got %v, want that it cannot be told", err)
		}
	})
}

// loseStash is what the end of its TTL or a lost Redis does.
func (w *world) loseStash(t *testing.T, b bookingtest.Booking) {
	t.Helper()
	n, err := w.rdb.Del(t.Context(), prefix+"hold:attempt:"+b.Attempt, prefix+"hold:payment:"+b.Payment.ID).Result()
	if n != 2 || err != nil {
		t.Fatalf("lose the stash: got %d, %v, want 2 keys", n, err)
	}
}

// A record made without the stash carries no signature; no return can match it.
func TestIssued_PaymentWithoutASignatureIsNobodys(t *testing.T) {
	w := inProcess(t)
	b := w.Unwritten(t, 1, "N1")
	w.loseStash(t, b)
	b.Record.Signature = ""
	w.Write(t, b)
	_, _, err := w.settler.Issued(t.Context(), b.Payment.ID, "")
	wantErr(t, "empty signature", err, booking.ErrNotFound)
}

func TestStash_GoneOrUnreadableStopsNobodyFromPaying(t *testing.T) {
	for _, c := range []struct {
		name  string
		spoil func(t *testing.T, w *world, b bookingtest.Booking)
	}{
		{"gone", func(t *testing.T, w *world, b bookingtest.Booking) { w.loseStash(t, b) }},
		{"of a version to come", func(t *testing.T, w *world, b bookingtest.Booking) {
			for _, key := range []string{"hold:attempt:" + b.Attempt, "hold:payment:" + b.Payment.ID} {
				if err := w.rdb.Set(t.Context(), prefix+key, `{"v":2}`, 0).Err(); err != nil {
					t.Fatal(err)
				}
			}
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := inProcess(t)
			b := w.Held(t, 1, "N1")
			c.spoil(t, w, b)
			code, attempt, err := w.settler.Issued(t.Context(), b.Payment.ID, b.Payment.Signature)
			if code != b.Code || attempt != b.Attempt || err != nil {
				t.Errorf("issued: got %s %s, %v, want %s %s", code, attempt, err, b.Code, b.Attempt)
			}
			w.Faults.Next(bookingtest.OpMarkPaid, bookingtest.Lost) // so that the sweep reads it too
			wantErr(t, "return", w.paysAndReturns(t, b), bookingtest.ErrLost)
			w.sweep(t, time.Minute)
			w.wantPaid(t, b)
		})
	}
}

// Hole 10: what an old process still does for an attempt that is over changes
// nothing of the candidate's new one.
func TestHole10_StaleStepsOfAnOldAttempt(t *testing.T) {
	w := inProcess(t)
	old := w.Refused(t, 1, "N1")
	fresh := w.Held(t, 1, "N1")
	before := w.Row(t, fresh.Code)
	w.Gateway.Complete(old.Payment.ID)
	charge := w.asks(t, old)
	for what, err := range map[string]error{
		"return":  w.returns(t, old),
		"confirm": w.settler.Confirm(t.Context(), old.Code, old.Record, charge),
		"refuse":  w.settler.Refuse(t.Context(), old.Code, old.Record, "refused", "2023"),
		"queued":  w.Ledger.Queued(t.Context(), old.Code, old.Attempt),
		"undo":    w.Ledger.Undo(t.Context(), old.Code, old.Attempt),
		"release": w.Ledger.Release(t.Context(), old.Code, old.Attempt),
		"done":    w.Ledger.RecordDone(t.Context(), old.Code, old.Attempt),
	} {
		wantErr(t, "stale "+what, err, booking.ErrNotOwner)
	}
	if diff := cmp.Diff(before, w.Row(t, fresh.Code)); diff != "" {
		t.Errorf("stale steps changed the new row (-before +after):\n%s", diff)
	}
	if err := w.paysAndReturns(t, fresh); err != nil {
		t.Fatalf("return: %v", err)
	}
	w.WantRefund(t, old, charge.Transaction, booking.MoneyLate, "candidate")
	w.wantPaid(t, fresh)
}

// Hole 25: only the reconciler takes over a row that is paying past its end, and
// a doubt it took over is never forgotten as held.
func TestHole25_PayerCannotTakeOverAndForget(t *testing.T) {
	w := inProcess(t)
	b := w.Held(t, 1, "N1")
	w.Gateway.Next(bookingtest.Execute, b.Payment.ID, bookingtest.LostCall())
	w.Gateway.Next(bookingtest.Query, b.Payment.ID, bookingtest.LostCall())
	wantErr(t, "return", w.paysAndReturns(t, b), booking.ErrInDoubt)
	w.Clock.Advance(executeTimeout + settle.PayingMargin)
	wantErr(t, "second return, past the end", w.returns(t, b), booking.ErrPaying)
	w.wantExecutes(t, b, 1)

	if _, _, err := w.Ledger.TakeOverPay(t.Context(), b.Code, b.Attempt, b.Payment.ID, "reconciler", time.Minute); err != nil {
		t.Fatalf("take over: %v", err)
	}
	wantErr(t, "end as held", w.Ledger.EndPay(t.Context(), b.Code, b.Attempt, "reconciler", booking.PhaseHeld), booking.ErrTakenOver)
	w.Clock.Advance(booking.DefaultHold)
	wantErr(t, "release past the deadline", w.Ledger.Release(t.Context(), b.Code, b.Attempt), booking.ErrPaying)
	w.Gateway.Complete(b.Payment.ID) // the first call arrives after all
	w.sweep(t, 0)
	w.wantPaid(t, b)
}
