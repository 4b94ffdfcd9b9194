package resolve_test

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"holdfast/internal/booking"
	"holdfast/internal/booking/bookingtest"
	"holdfast/internal/resolve"
)

func wantTexts(t *testing.T, what string, got []string, want ...string) {
	t.Helper()
	if len(got) != len(want) {
		t.Errorf("%s: got %q, want %d with %q", what, got, len(want), want)
		return
	}
	for i := range want {
		if !strings.Contains(got[i], want[i]) {
			t.Errorf("%s: got %q, want %q in it", what, got[i], want[i])
		}
	}
}

func wantErr(t *testing.T, what string, got, want error) {
	t.Helper()
	if !errors.Is(got, want) {
		t.Errorf("%s: got %v, want %v", what, got, want)
	}
}

func TestPaid_SeatRecordAndMail(t *testing.T) {
	w := open(t)
	b := w.doubt(t, 1)
	w.Gateway.Complete(b.Payment.ID)
	w.wallet.has("TX"+b.Payment.ID, b.Record.Amount)
	p := w.plan(t, b, "TX"+b.Payment.ID)
	wantTexts(t, "objections", p.Objections)
	wantTexts(t, "warnings", p.Warnings, "is unknown, not completed")
	if !p.Case.InDoubt() || p.Case.Record == nil || p.Case.Row.Attempt != b.Attempt {
		t.Errorf("case: got %+v, want the seat in doubt, with its record", p.Case)
	}
	done, err := w.resolver.Carry(t.Context(), p, false)
	if err != nil || done.Row.Phase != booking.PhasePaid || done.Record != booking.StatePaid {
		t.Fatalf("carry: got %+v, %v, want paid", done, err)
	}
	w.Want(t, b, booking.PhasePaid, booking.StatePaid)
	if n := len(w.Mailer.Sent()); n != 0 {
		t.Errorf("mails at once: got %d, want 0: they are the sweep's", n)
	}
	if again, err := w.resolver.Carry(t.Context(), p, false); err != nil || again.Row.PaidAt != done.Row.PaidAt {
		t.Errorf("repeated: got %+v, %v, want the same", again, err)
	}
	wantTexts(t, "objections to the same word again", w.plan(t, b, "TX"+b.Payment.ID).Objections)
	w.sweep(t, 2*time.Minute)
	w.Books.CheckAtRest(t)
}

func TestPaid_WhatSpeaksAgainstIt(t *testing.T) {
	w := open(t)
	b := w.doubt(t, 1)
	w.wallet.err = booking.ErrInDoubt
	wantTexts(t, "no answer about the transaction", w.plan(t, b, "TX9").Warnings, "is unknown", "does not confirm transaction TX9")
	w.wallet.err = nil
	wantTexts(t, "unknown transaction", w.plan(t, b, "TX9").Warnings, "is unknown", "does not know it")
	w.wallet.transactions["TX9"] = booking.TransactionAnswer{Found: true, Transaction: "TX9"}
	wantTexts(t, "unfinished transaction", w.plan(t, b, "TX9").Warnings, "is unknown", "has not completed")
	w.wallet.has("TX9", b.Record.Amount-1)
	wantTexts(t, "another amount", w.plan(t, b, "TX9").Objections, "moved 1499.99 BDT, and the seat costs 1500.00 BDT")

	w.Gateway.Always(bookingtest.Query, b.Payment.ID, bookingtest.Obey())
	w.Gateway.Complete(b.Payment.ID)
	w.wallet.has("TX9", b.Record.Amount)
	p := w.plan(t, b, "TX9")
	wantTexts(t, "another transaction", p.Objections, "completed by transaction TX"+b.Payment.ID+", not TX9")
	_, err := w.resolver.Carry(t.Context(), p, false)
	wantErr(t, "carry over an objection", err, resolve.ErrObjection)
	w.Gateway.Always(bookingtest.Query, b.Payment.ID, bookingtest.Altered(func(c *booking.Charge) { c.Amount++ }))
	wantTexts(t, "otherwise than ordered", w.plan(t, b, "TX"+b.Payment.ID).Objections, "otherwise than ordered")
	w.Want(t, b, booking.PhasePaying, booking.StateHeld)
}

// One transaction pays for one seat, and money that goes back for none.
func TestPaid_TransactionOfAnotherIsRefusedEvenByForce(t *testing.T) {
	w := open(t)
	a, b := w.doubt(t, 1), w.doubt(t, 2)
	if _, err := w.resolver.Carry(t.Context(), w.plan(t, a, "TX9"), false); err != nil {
		t.Fatal(err)
	}
	_, err := w.resolver.Plan(t.Context(), b.Code, resolve.Decision{Transaction: "TX9"})
	wantErr(t, "a transaction that paid for another", err, resolve.ErrTransactionUsed)
	refund := booking.NewRefund(a.Record, booking.Charge{Transaction: "TX8", PaymentID: a.Payment.ID, Amount: 1, Currency: "BDT"}, booking.MoneySecond, booking.Decision{Reason: "second", At: w.Clock.Now()})
	if _, _, err := w.Store.PutRefund(t.Context(), refund); err != nil {
		t.Fatal(err)
	}
	_, err = w.resolver.Plan(t.Context(), b.Code, resolve.Decision{Transaction: "TX8"})
	wantErr(t, "a transaction that goes back", err, resolve.ErrTransactionUsed)
	w.Want(t, b, booking.PhasePaying, booking.StateHeld)
}

func TestNotPaid_PaymentIsOverAndTheSeatWaitsForItsDeadline(t *testing.T) {
	w := open(t)
	b := w.doubt(t, 1)
	p := w.plan(t, b, "")
	wantTexts(t, "objections", p.Objections)
	done, err := w.resolver.Carry(t.Context(), p, false)
	if err != nil || done.Row.Phase != booking.PhaseRefused || !done.Row.Released || done.Record != booking.StateReleased {
		t.Fatalf("carry: got %+v, %v, want refused, its record ended", done, err)
	}
	w.Want(t, b, booking.PhaseRefused, booking.StateReleased)
	rec, err := w.Store.Record(t.Context(), b.Record.CandidateHash, b.Attempt)
	if err != nil || rec.Reason != "refused resolved" || !rec.Refused() {
		t.Errorf("record: got reason %q, %v, want refused, resolved", rec.Reason, err)
	}
	w.Books.Check(t)
	// The candidate may start another until the deadline.
	if row := w.Admit(t, 1, "N1"); row.Back == nil || row.Back.Attempt != b.Attempt {
		t.Errorf("next request: got %+v, want the seat taken over from the refused attempt", row)
	}
	if err := w.gate.Undo(t.Context(), b.Code, w.Row(t, b.Code).Attempt); err != nil {
		t.Fatal(err)
	}
	w.Gateway.Always(bookingtest.Query, b.Payment.ID, bookingtest.Obey())
	w.sweep(t, booking.DefaultHold)
	w.Want(t, b, "", booking.StateReleased)
	w.Books.CheckAtRest(t)
}

// A doubt of a rebuilt row, whose record is nowhere, has no paying to end.
func TestNotPaid_RebuiltRowWithoutARecord(t *testing.T) {
	w := open(t)
	b := w.Unwritten(t, 1, "N1")
	row := w.Row(t, b.Code)
	row.Doubt = true
	w.set(t, b.Code, row)
	if _, err := w.resolver.Carry(t.Context(), w.plan(t, b, ""), false); err != nil {
		t.Fatal(err)
	}
	w.Want(t, b, booking.PhaseRefused, booking.StateReleased)
	if w.Row(t, b.Code).Doubt {
		t.Error("row: got it in doubt still, want the doubt ended")
	}
	w.Books.Check(t)
}

func TestNotPaid_RefusedWhenTheMoneyHasMoved(t *testing.T) {
	w := open(t)
	b := w.doubt(t, 1)
	w.Gateway.Complete(b.Payment.ID)
	w.Gateway.Always(bookingtest.Query, b.Payment.ID, bookingtest.Obey())
	p := w.plan(t, b, "")
	wantTexts(t, "objections", p.Objections, "is completed, by transaction TX"+b.Payment.ID)
	_, err := w.resolver.Carry(t.Context(), p, false)
	wantErr(t, "carry", err, resolve.ErrObjection)
	w.Want(t, b, booking.PhasePaying, booking.StateHeld)

	// Forced, it is over; the reconciler finds the money at the deadline all the same.
	if _, err := w.resolver.Carry(t.Context(), p, true); err != nil {
		t.Fatal(err)
	}
	w.Want(t, b, booking.PhaseRefused, booking.StateReleased)
	w.sweep(t, booking.DefaultHold)
	w.sweep(t, 2*time.Minute)
	w.Want(t, b, booking.PhasePaid, booking.StatePaid)
	w.Books.CheckAtRest(t)
}

// The gateway said nothing clear when the person decided; the money moved, or was
// heard to have, before the row was theirs. Hole 2.
func TestNotPaid_AsksAgainWhenTheRowIsItsOwn(t *testing.T) {
	w := open(t)
	b := w.doubt(t, 1)
	p := w.plan(t, b, "")
	w.Gateway.Complete(b.Payment.ID)
	w.Gateway.Always(bookingtest.Query, b.Payment.ID, bookingtest.Obey())
	_, err := w.resolver.Carry(t.Context(), p, false)
	wantErr(t, "carry", err, resolve.ErrCompleted)
	w.Want(t, b, booking.PhasePaying, booking.StateHeld)
	w.sweep(t, 2*time.Minute) // its own end has passed
	w.sweep(t, 2*time.Minute)
	w.Want(t, b, booking.PhasePaid, booking.StatePaid)
	w.Books.CheckAtRest(t)
}

func TestPlan_ASeatThatIsNotInDoubt(t *testing.T) {
	w := open(t)
	held, paying, refused := w.Held(t, 1, "N1"), w.Paying(t, 2, "N1", "payer", payingFor), w.Refused(t, 3, "N1")
	paid := w.Held(t, 4, "N2")
	if _, err := w.gate.Settle(t.Context(), paid.Code, paid.Attempt, paid.Payment.ID, "TX7"); err != nil {
		t.Fatal(err)
	}
	for want, b := range map[string]bookingtest.Booking{
		"it is held, until": held, "an execute call may be in flight until": paying, "it is refused, until": refused, "it is paid, by transaction TX7": paid,
	} {
		p := w.plan(t, b, "")
		if len(p.Objections) != 1 || !strings.Contains(p.Objections[0], want) {
			t.Errorf("objections: got %q, want %q alone", p.Objections, want)
		}
		if _, err := w.resolver.Carry(t.Context(), p, false); !errors.Is(err, resolve.ErrObjection) {
			t.Errorf("carry where %s: got %v, want the objection", want, err)
		}
	}
	// Force does not reach into an execute call, nor past what is over.
	_, err := w.resolver.Carry(t.Context(), w.plan(t, paying, ""), true)
	wantErr(t, "force while paying", err, booking.ErrPaying)
	_, err = w.resolver.Carry(t.Context(), w.plan(t, paid, ""), true)
	wantErr(t, "force once paid", err, booking.ErrAlreadyPaid)
	_, err = w.resolver.Carry(t.Context(), w.plan(t, paid, "TX6"), true)
	wantErr(t, "force another transaction", err, booking.ErrSecondPayment)
	if _, err := w.resolver.Carry(t.Context(), w.plan(t, held, ""), true); err != nil {
		t.Errorf("force while held: got %v, want nil", err)
	}
	w.Want(t, held, booking.PhaseRefused, booking.StateReleased)

	_, err = w.resolver.Plan(t.Context(), bookingtest.Code(7), resolve.Decision{})
	wantErr(t, "no seat", err, booking.ErrNotFound)
	w.Admit(t, 5, "N2")
	_, err = w.resolver.Plan(t.Context(), bookingtest.Code(5), resolve.Decision{})
	wantErr(t, "no payment", err, booking.ErrNoPayment)
}

// The seat has gone to another attempt since the person looked.
func TestCarry_TheAttemptHasGone(t *testing.T) {
	w := open(t)
	a, b := w.doubt(t, 1), w.doubt(t, 2)
	pa, pb := w.plan(t, a, ""), w.plan(t, b, "TX9")
	for _, x := range []bookingtest.Booking{a, b} {
		row := w.Row(t, x.Code)
		row.Attempt = booking.AttemptID(bookingtest.Epoch, booking.NewAttemptSuffix(w.Clock.Now()))
		w.set(t, x.Code, row)
	}
	_, err := w.resolver.Carry(t.Context(), pa, false)
	wantErr(t, "not paid", err, booking.ErrNotOwner)
	_, err = w.resolver.Carry(t.Context(), pb, false)
	wantErr(t, "paid", err, booking.ErrNotOwner)
	if got := w.State(t, a); got != booking.StateHeld {
		t.Errorf("record: got %s, want it untouched", got)
	}
}

// Each write lost, and each kept and its reply lost: the rules hold, and who decides
// the same again, or a sweep, finishes it.
func TestCarry_EachWriteBrokenBothWays(t *testing.T) {
	t.Parallel()
	paid := []bookingtest.Op{bookingtest.OpSettle, bookingtest.OpMarkPaid, bookingtest.OpRecordDone}
	notPaid := []bookingtest.Op{bookingtest.OpTakeOverPay, bookingtest.OpPutHeld, bookingtest.OpEndPay, bookingtest.OpReleaseRecord, bookingtest.OpRecordReleased}
	for _, op := range slices.Concat(paid, notPaid) {
		for name, fault := range map[string]bookingtest.Fault{"Lost": bookingtest.Lost, "Kept": bookingtest.Kept} {
			t.Run(string(op)+name, func(t *testing.T) {
				w := open(t)
				b := w.doubt(t, 1)
				transaction := ""
				if slices.Contains(paid, op) {
					transaction = "TX" + b.Payment.ID
					w.Gateway.Complete(b.Payment.ID)
				}
				p := w.plan(t, b, transaction)
				w.Faults.Always(op, fault)
				_, err := w.resolver.Carry(t.Context(), p, false)
				if warned := op == bookingtest.OpRecordDone || op == bookingtest.OpRecordReleased; (err == nil) != warned {
					t.Errorf("carry: got %v, want an error %t", err, !warned)
				}
				w.Books.Check(t)
				w.Faults.Always(op, bookingtest.None)
				w.Clock.Advance(2 * time.Minute)
				if p := w.plan(t, b, transaction); len(p.Objections) == 0 {
					if _, err := w.resolver.Carry(t.Context(), p, false); err != nil {
						t.Errorf("the same again: got %v, want nil", err)
					}
				}
				w.Gateway.Always(bookingtest.Query, b.Payment.ID, bookingtest.Obey())
				for range 2 {
					w.sweep(t, booking.DefaultHold)
				}
				if transaction != "" {
					w.Want(t, b, booking.PhasePaid, booking.StatePaid)
				} else {
					w.Want(t, b, "", booking.StateReleased)
				}
				w.Books.CheckAtRest(t)
			})
		}
	}
}
