package checkout_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"

	"holdfast/internal/booking"
	"holdfast/internal/checkout"
)

func TestBook_TakesEveryStepInItsOrder(t *testing.T) {
	onEach(t, 2, func(t *testing.T, b *bench) {
		held := b.mustBook(t, 1)
		if got := b.steps(); got != "admit create attach send queued" {
			t.Errorf("steps: got %s, want admit create attach send queued", got)
		}
		row := b.wantSeat(t, 1, booking.PhaseHeld)
		p, err := b.ledger.seats.PaymentOf(t.Context(), row.Attempt)
		if err != nil {
			t.Fatalf("payment of the attempt: %v", err)
		}
		if held.SecondsLeft < 590 || held.SecondsLeft > 600 {
			t.Errorf("seconds left: got %d, want 590 to 600", held.SecondsLeft)
		}
		want := booking.Held{
			PaymentID: row.Payment, PaymentURL: p.URL, BookingURL: bookingURL(code(1), row.Attempt), Level: "N1",
			Attempt: row.Attempt, ExpiresAt: time.UnixMilli(row.Deadline).UTC(), SecondsLeft: held.SecondsLeft,
		}
		if diff := cmp.Diff(want, held); diff != "" {
			t.Errorf("answer (-want +got):\n%s", diff)
		}
		record := row.HeldRecord(code(1), p.URL, p.Signature)
		record.RequestID = "r1" // the request's, beside what the row tells
		if diff := cmp.Diff([]booking.Record{record}, b.queued(t)); diff != "" {
			t.Errorf("queued (-want +got):\n%s", diff)
		}
		invoice := booking.Invoice(booking.CandidateHash(code(1)), row.Attempt)
		order := booking.Order{
			Invoice: invoice, Amount: 150000, Currency: "BDT",
			CallbackURL: "https://sale.test/payment/callback", Reference: invoice,
		}
		if diff := cmp.Diff([]booking.Order{order}, b.gateway.orders); diff != "" {
			t.Errorf("ordered (-want +got):\n%s", diff)
		}
		if n := b.taken("N1"); n != 1 || b.changed.Load() != 1 {
			t.Errorf("seats taken and changes told: got %d and %d, want 1 and 1", n, b.changed.Load())
		}
	})
}

func TestBook_FailedPaymentGivesTheSeatBackBeforeTheAnswer(t *testing.T) {
	onEach(t, 1, func(t *testing.T, b *bench) {
		for i, f := range []fault{lost, kept, answers(fmt.Errorf("create: %w", booking.ErrNotSent)), answers(fmt.Errorf("create: %w", booking.ErrInDoubt))} {
			b.breaks("create", f)
			b.mustRefuse(t, request(i), booking.ErrPaymentUnavailable)
			if got := b.steps(); got != "admit create undo" {
				t.Errorf("failure %d: got steps %s, want admit create undo", i, got)
			}
			b.wantSeat(t, i, "")
			if n := b.taken("N1"); n != 0 {
				t.Errorf("failure %d: got %d seats taken, want 0", i, n)
			}
		}
		if n := b.changed.Load(); n != 8 {
			t.Errorf("changes told: got %d, want each seat taken and given back", n)
		}
		b.mustBook(t, 0) // under a fresh attempt, since the gateway takes an invoice once
	})
}

// While the gateway is known to be out nobody's seat is taken to find out again;
// rejections and links that exist need no gateway.
func TestBook_GatewayThatIsOutTakesNoSeat(t *testing.T) {
	onEach(t, 1, func(t *testing.T, b *bench) {
		r := request(0)
		r.Key = "intent"
		if _, err := b.Book(t.Context(), r); err != nil {
			t.Fatal(err)
		}
		b.steps()
		b.gateway.setOut(fmt.Errorf("breaker: %w: %w", booking.ErrPaymentUnavailable, booking.ErrNotSent))
		b.mustRefuse(t, request(1), booking.ErrPaymentUnavailable)
		if got := b.steps(); got != "check" {
			t.Errorf("steps: got %s, want check alone", got)
		}
		b.wantSeat(t, 1, "")
		b.mustRefuse(t, request(0), booking.ErrDuplicate)
		if _, err := b.Book(t.Context(), r); err != nil {
			t.Errorf("a repeat, whose payment exists: got %v, want its link", err)
		}
		b.gateway.setOut(nil)
		b.mustBook(t, 1)
		if n := b.gateway.unused.Load(); n != 0 {
			t.Errorf("leaves given back: got %d, want none: each was used", n)
		}
		b.mustRefuse(t, request(1), booking.ErrDuplicate)
		if n := b.gateway.unused.Load(); n != 1 {
			t.Errorf("leaves given back: got %d, want the one of the duplicate", n)
		}
	})
}

func TestBook_PaymentThatCannotBePaidIsNone(t *testing.T) {
	onEach(t, 1, func(t *testing.T, b *bench) {
		whole := booking.Payment{ID: "TR1", URL: "https://gateway.test/pay/TR1", Signature: "sig"}
		noID, noURL, noSignature := whole, whole, whole
		noID.ID, noURL.URL, noSignature.Signature = "", "", ""
		for _, p := range []booking.Payment{noID, noURL, noSignature, {}} {
			b.gateway.instead = &p
			b.mustRefuse(t, request(1), booking.ErrPaymentUnavailable)
			if got := b.steps(); got != "admit create undo" {
				t.Errorf("payment %+v: got steps %s, want admit create undo", p, got)
			}
			b.wantSeat(t, 1, "")
		}
	})
}

func TestBook_UndoThatDoesNotGoThroughIsTheReconcilers(t *testing.T) {
	onEach(t, 1, func(t *testing.T, b *bench) {
		b.stays("create", lost)
		for i, f := range []fault{lost, kept, unacked, answers(booking.ErrLedgerUnknown), answers(booking.ErrNotOwner)} {
			b.breaks("undo", f)
			want := booking.ErrTryAgain // "no seat is held" is said of a seat that is known to be given back
			if i == 4 {
				want = booking.ErrPaymentUnavailable // it had been before
			}
			b.mustRefuse(t, request(i), want)
			if got := b.steps(); got != "admit create undo" {
				t.Errorf("undo %d: got steps %s, want one undo", i, got)
			}
		}
		b.wantSeat(t, 0, booking.PhaseNew) // taken over by the candidate's own next request
		b.stays("create", nil)
		b.mustRefuse(t, request(0), booking.ErrDuplicate)
		b.advance(16 * time.Second)
		b.mustBook(t, 0)
	})
}

func TestBook_FailedSecondPaymentLeavesTheRefusedSeat(t *testing.T) {
	onEach(t, 1, func(t *testing.T, b *bench) {
		first := b.mustBook(t, 1)
		if err := b.refuse(b.wantSeat(t, 1, booking.PhaseHeld), code(1)); err != nil {
			t.Fatal(err)
		}
		b.breaks("create", lost)
		b.mustRefuse(t, request(1), booking.ErrPaymentUnavailable)
		if row := b.wantSeat(t, 1, booking.PhaseRefused); row.Attempt != first.Attempt || row.Payment != first.PaymentID {
			t.Errorf("seat after the failed payment: got attempt %s, payment %s, want the refused ones", row.Attempt, row.Payment)
		}
		second := b.mustBook(t, 1)
		if second.Attempt == first.Attempt || second.PaymentID == first.PaymentID {
			t.Errorf("second payment: got %+v, want a fresh attempt and payment", second)
		}
		if !second.ExpiresAt.Equal(first.ExpiresAt) {
			t.Errorf("time to pay: got until %s, want until %s as before", second.ExpiresAt, first.ExpiresAt)
		}
		if n := b.taken("N1"); n != 1 {
			t.Errorf("seats taken: got %d, want 1", n)
		}
	})
}

func TestBook_AttachIsRepeatedOnce(t *testing.T) {
	onEach(t, 1, func(t *testing.T, b *bench) {
		for i, f := range []fault{unacked, kept, lost} {
			b.breaks("attach", f)
			held := b.mustBook(t, i)
			if got := b.steps(); got != "admit create attach attach send queued" {
				t.Errorf("attach broken by %d: got steps %s, want it twice", i, got)
			}
			if row := b.wantSeat(t, i, booking.PhaseHeld); row.Payment != held.PaymentID {
				t.Errorf("payment of the seat: got %s, want the answer's %s", row.Payment, held.PaymentID)
			}
		}
		if got := len(b.queued(t)); got != 3 {
			t.Errorf("messages: got %d, want 3", got)
		}
	})
}

func TestBook_WithoutAnAcknowledgedAttachNothingLeaves(t *testing.T) {
	onEach(t, 1, func(t *testing.T, b *bench) {
		b.stays("attach", unacked)
		b.mustRefuse(t, request(1), booking.ErrTryAgain)
		if got := b.steps(); got != "admit create attach attach undo" {
			t.Errorf("steps: got %s, want two attaches, no message, and an undo, which finds the payment there", got)
		}
		if got := b.queued(t); len(got) != 0 {
			t.Errorf("messages: got %d, want none", len(got))
		}
		b.wantSeat(t, 1, booking.PhasePayable)
		b.wantLink(t, 1)
		if n := b.taken("N1"); n != 1 {
			t.Errorf("seats taken: got %d, want 1: it has a payment and is kept", n)
		}
	})
}

func TestBook_AttemptThatLostItsSeatGoesNoFurther(t *testing.T) {
	onEach(t, 1, func(t *testing.T, b *bench) {
		for i, err := range []error{booking.ErrNotOwner, booking.ErrHasPayment} {
			b.breaks("attach", answers(fmt.Errorf("attach: %w", err)))
			b.mustRefuse(t, request(i), booking.ErrTryAgain)
			if got := b.steps(); got != "admit create attach" {
				t.Errorf("%v: got steps %s, want no repeat, no message, no undo", err, got)
			}
		}
	})
}

func TestBook_EnqueueIsRepeatedWithTheSameIDs(t *testing.T) {
	onEach(t, 1, func(t *testing.T, b *bench) {
		for i, f := range []fault{lost, kept, answers(context.DeadlineExceeded)} {
			b.breaks("send", f, f, f)
			b.mustBook(t, i)
			if got := b.steps(); got != "admit create attach send send send send queued" {
				t.Errorf("send broken by %d: got steps %s, want four sends", i, got)
			}
			b.wantSeat(t, i, booking.PhaseHeld)
			for _, d := range b.queue.sent {
				if diff := cmp.Diff(b.queue.sent[0], d); diff != "" {
					t.Errorf("repeated send (-first +repeat):\n%s", diff)
				}
			}
			b.queue.sent = nil
			if got := len(b.queued(t)); got != 1 {
				t.Errorf("messages: got %d, want 1", got)
			}
		}
	})
}

func TestBook_EnqueueInDoubtKeepsTheSeatPayable(t *testing.T) {
	onEach(t, 1, func(t *testing.T, b *bench) {
		for i, f := range []fault{lost, kept} {
			b.stays("send", f)
			began := time.Now()
			b.mustRefuse(t, request(i), booking.ErrTryAgain)
			if took := time.Since(began); took > checkout.DefaultBudgets().Request {
				t.Errorf("answer: got it after %s, want it within the request's budget", took)
			}
			if got := b.steps(); !strings.HasPrefix(got, "admit create attach send send send") || strings.Contains(got, "undo") || strings.Contains(got, "queued") {
				t.Errorf("steps: got %s, want sends until the budget ends and neither undo nor queued", got)
			}
			b.stays("send", nil)
			b.wantSeat(t, i, booking.PhasePayable)
			b.wantLink(t, i)
			b.steps()
		}
	})
}

func TestBook_AnswersAlsoWhenTheRowDoesNotMoveOn(t *testing.T) {
	onEach(t, 1, func(t *testing.T, b *bench) {
		for i, f := range []fault{lost, unacked, kept, answers(booking.ErrNotOwner)} {
			b.breaks("queued", f)
			held := b.mustBook(t, i)
			if got := b.steps(); got != "admit create attach send queued" {
				t.Errorf("queued broken by %d: got steps %s, want one try", i, got)
			}
			if row, _, err := b.ledger.Row(t.Context(), code(i)); err != nil || row.Payment != held.PaymentID || !row.Live(time.UnixMilli(row.AdmittedAt)) {
				t.Errorf("seat: got %+v, %v, want it payable or held by %s", row, err, held.PaymentID)
			}
			b.wantLink(t, i)
			b.steps()
		}
		if got := len(b.queued(t)); got != 4 {
			t.Errorf("messages: got %d, want 4", got)
		}
	})
}

func TestBook_UnacknowledgedAdmissionTakesNoSeat(t *testing.T) {
	onEach(t, 1, func(t *testing.T, b *bench) {
		b.breaks("admit", unacked)
		b.mustRefuse(t, request(1), booking.ErrTryAgain)
		if got := b.steps(); got != "admit" {
			t.Errorf("steps: got %s, want admit alone", got)
		}
		b.wantSeat(t, 1, "")
		b.mustBook(t, 1)
	})
}

// An admission whose reply was lost is somebody's: the candidate hears that it is
// at work, then takes it over. Never is there a second seat.
func TestBook_LostAdmissionIsTakenOverLater(t *testing.T) {
	onEach(t, 1, func(t *testing.T, b *bench) {
		b.breaks("admit", kept)
		b.mustRefuse(t, request(1), booking.ErrTryAgain)
		b.wantSeat(t, 1, booking.PhaseNew)
		_, err := b.Book(t.Context(), request(1))
		var dup *booking.DuplicateError
		if !errors.As(err, &dup) || dup.Row.Phase != booking.PhaseNew || dup.PaymentURL != "" {
			t.Errorf("at once: got %v, %+v, want a duplicate that is at work", err, dup)
		}
		b.advance(16 * time.Second)
		b.mustBook(t, 1)
		if n := b.taken("N1"); n != 1 {
			t.Errorf("seats taken: got %d, want 1", n)
		}
	})
}

func TestBook_ClosedTabDoesNotStopIt(t *testing.T) {
	onEach(t, 1, func(t *testing.T, b *bench) {
		for i, at := range []string{"before", "admit", "create", "attach", "send", "queued"} {
			ctx, closeTab := context.WithCancel(t.Context())
			b.on = func(step string) {
				if step == at {
					closeTab()
				}
			}
			if at == "before" {
				closeTab()
			}
			if _, err := b.Book(ctx, request(i)); err != nil {
				t.Errorf("tab closed at %s: got %v, want a seat", at, err)
			}
			b.wantSeat(t, i, booking.PhaseHeld)
			closeTab()
		}
		if got := len(b.queued(t)); got != 6 {
			t.Errorf("messages: got %d, want 6", got)
		}
	})
}

func TestBook_ClosedTabDoesNotStopTheUndo(t *testing.T) {
	onEach(t, 1, func(t *testing.T, b *bench) {
		ctx, closeTab := context.WithCancel(t.Context())
		b.on = func(step string) {
			if step == "create" {
				closeTab()
			}
		}
		b.breaks("create", lost)
		if _, err := b.Book(ctx, request(1)); !errors.Is(err, booking.ErrPaymentUnavailable) {
			t.Errorf("got %v, want ErrPaymentUnavailable", err)
		}
		b.wantSeat(t, 1, "")
	})
}

func TestBook_SameKeyGetsTheSameLinkFromAnyServer(t *testing.T) {
	onEach(t, 1, func(t *testing.T, b *bench) {
		r := request(1)
		r.Key = "intent-1"
		first, err := b.Book(t.Context(), r)
		if err != nil {
			t.Fatalf("book: %v", err)
		}
		b.steps()
		b.advance(100 * time.Second)
		again, err := b.another(t).Book(t.Context(), r)
		if err != nil {
			t.Fatalf("book again: got %v, want the same answer", err)
		}
		if got := b.steps(); got != "admit payment" {
			t.Errorf("steps of the repeat: got %s, want admit and the look-up alone", got)
		}
		if left := first.SecondsLeft - again.SecondsLeft; left < 99 || left > 105 {
			t.Errorf("seconds left: got %d then %d, want 100 less", first.SecondsLeft, again.SecondsLeft)
		}
		again.SecondsLeft = first.SecondsLeft
		if diff := cmp.Diff(first, again); diff != "" {
			t.Errorf("answers (-first +again):\n%s", diff)
		}
		other := r
		other.Level = "N2"
		b.mustRefuse(t, other, booking.ErrIdempotencyMismatch)
		other = request(1)
		other.Key = "intent-2"
		b.mustRefuse(t, other, booking.ErrDuplicate)
		if n := len(b.queued(t)); n != 1 || b.taken("N1") != 1 || b.changed.Load() != 1 {
			t.Errorf("messages, seats, changes: got %d, %d, %d, want 1 each", n, b.taken("N1"), b.changed.Load())
		}
	})
}

func TestBook_RepeatWhoseLinkIsNotAtHandIsToldToTryAgain(t *testing.T) {
	onEach(t, 1, func(t *testing.T, b *bench) {
		r := request(1)
		r.Key = "intent-1"
		if _, err := b.Book(t.Context(), r); err != nil {
			t.Fatal(err)
		}
		for _, f := range []fault{lost, answers(booking.ErrNotFound)} {
			b.breaks("payment", f)
			b.mustRefuse(t, r, booking.ErrTryAgain)
		}
		if _, err := b.Book(t.Context(), r); err != nil {
			t.Errorf("book again: got %v, want the same answer", err)
		}
	})
}

func TestBook_DuplicateCarriesLinksWhileItCanBePaid(t *testing.T) {
	onEach(t, 1, func(t *testing.T, b *bench) {
		b.mustBook(t, 1)
		b.wantLink(t, 1)
		b.breaks("payment", lost)
		_, err := b.Book(t.Context(), request(1))
		var dup *booking.DuplicateError
		if !errors.As(err, &dup) || dup.PaymentURL != "" || dup.BookingURL != "" {
			t.Errorf("link not at hand: got %v, %+v, want a duplicate without links", err, dup)
		}
		b.steps()
		b.advance(booking.DefaultHold)
		_, err = b.Book(t.Context(), request(1))
		if !errors.As(err, &dup) || dup.PaymentURL != "" || dup.BookingURL != "" {
			t.Errorf("past the deadline: got %v, %+v, want a duplicate without links", err, dup)
		}
		if got := b.steps(); got != "admit" {
			t.Errorf("past the deadline: got steps %s, want admit alone", got)
		}
	})
}

func TestBook_DuplicateOfAnotherPhaseHasNoLink(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := inMemory(t, 1)
		b.mustBook(t, 1)
		for _, phase := range []booking.Phase{booking.PhaseNew, booking.PhasePaying, booking.PhasePaid} {
			b.ledger.seats.(*memory).set(code(1), func(r *booking.Row) { r.Phase = phase })
			_, err := b.Book(t.Context(), request(1))
			var dup *booking.DuplicateError
			if !errors.As(err, &dup) || dup.Row.Phase != phase || dup.PaymentURL != "" || (dup.BookingURL != "") != (phase == booking.PhasePaid) {
				t.Errorf("%s: got %v, %+v, want a duplicate without links, but for the page of a paid one", phase, err, dup)
			}
		}
	})
}

func TestBook_LedgersOutcomesStand(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := inMemory(t, 1)
		for _, want := range booking.Outcomes() {
			b.breaks("admit", answers(fmt.Errorf("admit: %w", want)))
			b.mustRefuse(t, request(1), want)
		}
		at := time.Unix(1_800_000_000, 0)
		b.breaks("admit", answers(&booking.NotOpenError{OpensAt: at}))
		_, err := b.Book(t.Context(), request(1))
		var notOpen *booking.NotOpenError
		if !errors.As(err, &notOpen) || !notOpen.OpensAt.Equal(at) {
			t.Errorf("scheduled opening: got %v, want it passed on", err)
		}
		if strings.Contains(b.steps(), "create") {
			t.Error("rejected requests: got one that asked the gateway, want none")
		}
	})
}

func TestBook_WhatIsNoOutcomeIsTryAgain(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := inMemory(t, 1)
		for _, err := range []error{errDown, booking.ErrLedgerDamaged, booking.ErrLedgerUnknown, booking.ErrWouldAdmit, context.DeadlineExceeded} {
			b.breaks("admit", answers(err))
			b.mustRefuse(t, request(1), booking.ErrTryAgain)
			b.breaks("admit", answers(err))
			if _, got := b.Book(t.Context(), request(1)); !errors.Is(got, err) {
				t.Errorf("cause for the log: got %v, want %v in it", got, err)
			}
		}
	})
}

// Every step hangs in turn; the answer comes all the same.
func TestBook_EveryStepHasABudget(t *testing.T) {
	t.Parallel()
	budget := checkout.DefaultBudgets()
	for _, c := range []struct {
		name   string
		breaks map[string]fault
		want   error // nil: a seat
		took   time.Duration
		phase  booking.Phase
	}{
		{"Admit", map[string]fault{"admit": hangs}, booking.ErrTryAgain, budget.Redis, ""},
		{"AdmitTakesAllTheSame", map[string]fault{"admit": hangsKept}, booking.ErrTryAgain, budget.Redis, booking.PhaseNew},
		{"Create", map[string]fault{"create": hangs}, booking.ErrPaymentUnavailable, budget.Create, ""},
		{"CreatedAllTheSame", map[string]fault{"create": hangsKept}, booking.ErrPaymentUnavailable, budget.Create, ""},
		{"CreateAndUndo", map[string]fault{"create": hangs, "undo": hangs}, booking.ErrTryAgain, budget.Create + budget.Redis, booking.PhaseNew},
		{"Attach", map[string]fault{"attach": hangs}, booking.ErrTryAgain, 2 * budget.Redis, ""},
		{"AttachAndUndo", map[string]fault{"attach": hangs, "undo": hangs}, booking.ErrTryAgain, 3 * budget.Redis, booking.PhaseNew},
		{"AttachedAllTheSame", map[string]fault{"attach": hangsKept}, booking.ErrTryAgain, 2 * budget.Redis, booking.PhasePayable},
		{"Send", map[string]fault{"send": hangs}, booking.ErrTryAgain, budget.Enqueue, booking.PhasePayable},
		{"Queued", map[string]fault{"queued": hangs}, nil, budget.Redis, booking.PhasePayable},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				b := inMemory(t, 1)
				for step, f := range c.breaks {
					b.stays(step, f)
				}
				began := time.Now()
				_, err := b.Book(t.Context(), request(1))
				if !errors.Is(err, c.want) {
					t.Errorf("got %v, want %v", err, c.want)
				}
				if took := time.Since(began); took != c.took {
					t.Errorf("answer: got it after %s, want it after %s", took, c.took)
				}
				b.wantSeat(t, 1, c.phase)
			})
		})
	}
}

func TestBook_SlowStepsTogetherStayWithinTheRequestsBudget(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := inMemory(t, 1)
		slow := func(d time.Duration) fault {
			return func(ctx context.Context, call func() error) error {
				select {
				case <-ctx.Done():
					return ctx.Err()
				case <-time.After(d):
					return call()
				}
			}
		}
		for step, d := range map[string]time.Duration{"create": 4900 * time.Millisecond, "admit": 900 * time.Millisecond, "attach": 900 * time.Millisecond, "send": 900 * time.Millisecond, "queued": 900 * time.Millisecond} {
			b.stays(step, slow(d))
		}
		began := time.Now()
		held := b.mustBook(t, 1)
		if took := time.Since(began); took != 8*time.Second {
			t.Errorf("answer: got it after %s, want it after 8s, without waiting for the last step", took)
		}
		if held.SecondsLeft < 590 {
			t.Errorf("seconds left: got %d, want at least 590", held.SecondsLeft)
		}
	})
}

func TestBook_TakenOverByTheNextRequestWhileTheGatewayIsSlow(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := inMemory(t, 2)
		// The first call sleeps through everything, its own undo included.
		b.breaks("create", func(context.Context, func() error) error { time.Sleep(20 * time.Second); return errDown })
		first := make(chan error, 1)
		go func() {
			_, err := b.Book(t.Context(), request(1))
			first <- err
		}()
		time.Sleep(16 * time.Second)
		second := b.mustBook(t, 1)
		if err := <-first; !errors.Is(err, booking.ErrPaymentUnavailable) {
			t.Errorf("first call: got %v, want ErrPaymentUnavailable", err)
		}
		if row := b.wantSeat(t, 1, booking.PhaseHeld); row.Attempt != second.Attempt {
			t.Errorf("seat: got attempt %s, want the second's %s: the first undoes its own only", row.Attempt, second.Attempt)
		}
	})
}

// A panic of a dependency is a bug; it must not cost the process a slot.
func TestBook_PanicGivesTheSlotBack(t *testing.T) {
	t.Parallel()
	for _, at := range []string{"admit", "create", "attach"} {
		synctest.Test(t, func(t *testing.T) {
			b := inMemory(t, 1)
			b.breaks(at, func(context.Context, func() error) error { panic("a bug in " + at) })
			func() {
				defer func() {
					if recover() == nil {
						t.Errorf("panic at %s: got none, want it passed on", at)
					}
				}()
				_, _ = b.Book(t.Context(), request(1))
			}()
			b.mustBook(t, 2)
		})
	}
}

func TestBook_LogsNoNames(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := inMemory(t, 1)
		var log bytes.Buffer
		d := b.deps()
		d.Log, d.Registerer = slog.New(slog.NewJSONHandler(&log, nil)), prometheus.NewRegistry()
		s, err := checkout.New(d)
		if err != nil {
			t.Fatal(err)
		}
		b.breaks("queued", lost)
		held, err := s.Book(t.Context(), request(1))
		if err != nil {
			t.Fatal(err)
		}
		b.breaks("payment", lost)
		_, _ = s.Book(t.Context(), request(1))
		b.breaks("create", lost)
		b.breaks("undo", lost)
		_, _ = s.Book(t.Context(), request(2))
		// The last one's cause is in its error, which the request's line has.
		if n := strings.Count(log.String(), "\n"); n != 2 || strings.Count(log.String(), `"request_id":"r1"`) != 2 {
			t.Errorf("log: got %d lines, want 2 with their request's id:\n%s", n, log.String())
		}
		for _, private := range []string{request(1).Email, code(1), code(2), held.PaymentURL, held.BookingURL, "sig-"} {
			if strings.Contains(log.String(), private) {
				t.Errorf("log: got %q in it, want none of that:\n%s", private, log.String())
			}
		}
	})
}

func TestNew_ChecksItsDependencies(t *testing.T) {
	t.Parallel()
	good := inMemory(t, 1)
	for name, spoil := range map[string]func(*checkout.Deps){
		"no ledger":        func(d *checkout.Deps) { d.Ledger = nil },
		"no gateway":       func(d *checkout.Deps) { d.Gateway = nil },
		"no queue":         func(d *checkout.Deps) { d.Queue = nil },
		"no slots":         func(d *checkout.Deps) { d.Slots = 0 },
		"no callback":      func(d *checkout.Deps) { d.CallbackURL = "" },
		"no booking URL":   func(d *checkout.Deps) { d.BookingURL = nil },
		"no log":           func(d *checkout.Deps) { d.Log = nil },
		"no registerer":    func(d *checkout.Deps) { d.Registerer = nil },
		"no budgets":       func(d *checkout.Deps) { d.Budgets = checkout.Budgets{} },
		"nothing to wait":  func(d *checkout.Deps) { d.Budgets.Request = 7 * time.Second },
		"negative budget":  func(d *checkout.Deps) { d.Budgets.Redis = -time.Second },
		"beyond take-over": func(d *checkout.Deps) { d.Budgets.Request = 15 * time.Second },
	} {
		d := good.deps()
		d.Registerer = prometheus.NewRegistry()
		spoil(&d)
		if _, err := checkout.New(d); err == nil {
			t.Errorf("%s: got nil, want an error", name)
		}
	}
	d := good.deps()
	d.Registerer, d.Changed, d.Now = prometheus.NewRegistry(), nil, nil
	s, err := checkout.New(d)
	if err != nil {
		t.Fatalf("without Changed and Now: got %v, want nil", err)
	}
	if _, err := s.Book(t.Context(), request(1)); err != nil {
		t.Errorf("book without Changed and Now: got %v, want a seat", err)
	}
}

// More candidates than seats, each asking twice at once on two servers, with a
// gateway and a queue that fail now and then.
func TestBook_RushNeverSellsMoreThanThereIs(t *testing.T) {
	onEach(t, 8, func(t *testing.T, b *bench) {
		servers := []*bench{b, b.another(t)}
		for range 10 {
			b.breaks("create", nil, lost, kept)
			b.breaks("attach", nil, kept, nil, unacked)
			b.breaks("send", nil, lost, kept)
		}
		var mu sync.Mutex
		links := map[string]map[string]bool{} // by candidate
		var all sync.WaitGroup
		for i := range 30 {
			for s := range servers {
				all.Go(func() {
					held, err := servers[s].Book(t.Context(), request(i))
					var dup *booking.DuplicateError
					link := ""
					switch {
					case err == nil:
						link = held.PaymentURL
					case errors.As(err, &dup):
						link = dup.PaymentURL
					case errors.Is(err, booking.ErrLevelFull), errors.Is(err, booking.ErrPaymentUnavailable), errors.Is(err, booking.ErrTryAgain):
					default:
						t.Errorf("book %s: got %v, want a seat or a clean no", code(i), err)
					}
					if link == "" {
						return
					}
					mu.Lock()
					defer mu.Unlock()
					if links[code(i)] == nil {
						links[code(i)] = map[string]bool{}
					}
					links[code(i)][link] = true
				})
			}
		}
		all.Wait()
		if n := b.taken("N1"); n > 10 {
			t.Errorf("seats taken: got %d, want at most the cap of 10", n)
		}
		rows := map[string]booking.Row{}
		for i := range 30 {
			row, _, err := b.ledger.Row(t.Context(), code(i))
			if err != nil {
				if len(links[code(i)]) != 0 {
					t.Errorf("%s: got a link and no seat", code(i))
				}
				continue
			}
			rows[row.Attempt] = row
			if len(links[code(i)]) > 1 {
				t.Errorf("%s: got payment links %v, want one at most", code(i), links[code(i)])
			}
		}
		for _, rec := range b.queued(t) {
			if row := rows[rec.Attempt]; row.Payment != rec.PaymentID {
				t.Errorf("message of %s: got payment %s, want its seat's %q", rec.Attempt, rec.PaymentID, row.Payment)
			}
			delete(rows, rec.Attempt)
		}
		for _, row := range rows {
			if row.Phase == booking.PhaseHeld {
				t.Errorf("seat of %s: got it held without a message", row.Attempt)
			}
		}
	})
}
