package checkout_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"holdfast/internal/booking"
	"holdfast/internal/checkout"
)

// record is a store with one record, or an error.
type record struct {
	rec     booking.Record
	err     error
	refunds []booking.Refund
}

func (r record) RefundsOf(context.Context, string, string) ([]booking.Refund, error) {
	return r.refunds, r.err
}

func (r record) Record(_ context.Context, hash, attempt string) (booking.Record, error) {
	if r.err == nil && (hash != r.rec.CandidateHash || attempt != r.rec.Attempt) {
		return booking.Record{}, booking.ErrNotFound
	}
	return r.rec, r.err
}

const unknownAttempt = "1ngtsa07kq3m-01m8qw4tg04f8r2tqz9e6wn1bd"

func TestView_OwnRowTellsWhereItStands(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := inMemory(t, 1)
		held := b.mustBook(t, 1)
		v := &checkout.Viewer{Rows: b.ledger, Records: record{err: errDown}} // the row alone is enough
		for _, c := range []struct {
			phase booking.Phase
			want  booking.View
		}{
			{booking.PhaseNew, booking.View{State: booking.ViewHeld, Level: "N1", SecondsLeft: 600}},
			{booking.PhasePayable, booking.View{State: booking.ViewHeld, Level: "N1", SecondsLeft: 600, PaymentURL: held.PaymentURL}},
			{booking.PhaseHeld, booking.View{State: booking.ViewHeld, Level: "N1", SecondsLeft: 600, PaymentURL: held.PaymentURL}},
			{booking.PhasePaying, booking.View{State: booking.ViewPaying, Level: "N1", SecondsLeft: 600}},
			{booking.PhaseRefused, booking.View{State: booking.ViewRefused, Level: "N1", SecondsLeft: 600}},
			{booking.PhasePaid, booking.View{State: booking.ViewPaid, Level: "N1"}},
		} {
			b.ledger.seats.(*memory).set(code(1), func(r *booking.Row) { r.Phase = c.phase })
			got, err := v.View(t.Context(), code(1), held.Attempt)
			if err != nil {
				t.Errorf("%s: got %v, want nil", c.phase, err)
			}
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Errorf("%s (-want +got):\n%s", c.phase, diff)
			}
		}

		b.ledger.seats.(*memory).set(code(1), func(r *booking.Row) { r.Phase = booking.PhaseHeld })
		for _, f := range []struct {
			fault fault
			want  booking.View
			err   error
		}{
			{answers(booking.ErrNotFound), booking.View{State: booking.ViewHeld, Level: "N1", SecondsLeft: 600}, nil},
			{lost, booking.View{}, booking.ErrTryAgain},
		} {
			b.breaks("payment", f.fault)
			if got, err := v.View(t.Context(), code(1), held.Attempt); !errors.Is(err, f.err) || got != f.want {
				t.Errorf("link not at hand: got %+v, %v, want %+v, %v", got, err, f.want, f.err)
			}
		}

		time.Sleep(booking.DefaultHold)
		b.steps()
		got, err := v.View(t.Context(), code(1), held.Attempt)
		if want := (booking.View{State: booking.ViewHeld, Level: "N1"}); err != nil || got != want {
			t.Errorf("past the deadline: got %+v, %v, want %+v without a link", got, err, want)
		}
		if s := b.steps(); s != "" {
			t.Errorf("past the deadline: got steps %s, want no look for a link", s)
		}

		b.ledger.seats.(*memory).set(code(1), func(r *booking.Row) { r.Phase = "junk" })
		if _, err := v.View(t.Context(), code(1), held.Attempt); !errors.Is(err, booking.ErrTryAgain) || !errors.Is(err, booking.ErrLedgerDamaged) {
			t.Errorf("unknown phase: got %v, want ErrTryAgain and ErrLedgerDamaged", err)
		}
	})
}

func TestView_RefusedAttemptIsStillTheirsWhileAnotherTriesToPay(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := inMemory(t, 1)
		first := b.mustBook(t, 1)
		b.ledger.seats.(*memory).set(code(1), func(r *booking.Row) {
			r.Back = &booking.RefusedAttempt{Attempt: r.Attempt, Payment: r.Payment}
			r.Attempt, r.Payment, r.Phase = unknownAttempt, "", booking.PhaseNew
		})
		v := &checkout.Viewer{Rows: b.ledger, Records: record{err: errDown}}
		want := booking.View{State: booking.ViewRefused, Level: "N1", SecondsLeft: 600}
		if got, err := v.View(t.Context(), code(1), first.Attempt); err != nil || got != want {
			t.Errorf("refused attempt: got %+v, %v, want %+v", got, err, want)
		}
	})
}

// Before there is a payment there is no deadline either, and the time is not over.
func TestView_FirstRequestAtWorkHasItsTime(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := inMemory(t, 1)
		held := b.mustBook(t, 1)
		b.ledger.seats.(*memory).set(code(1), func(r *booking.Row) { r.Phase, r.Payment, r.Deadline = booking.PhaseNew, "", 0 })
		v := &checkout.Viewer{Rows: b.ledger, Records: record{err: errDown}}
		got, err := v.View(t.Context(), code(1), held.Attempt)
		if want := (booking.View{State: booking.ViewHeld, Level: "N1", SecondsLeft: 600}); err != nil || got != want {
			t.Errorf("view: got %+v, %v, want %+v", got, err, want)
		}
	})
}

// Why a payment was refused its record knows; that it was, the row.
func TestView_RefusedTellsWhy(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := inMemory(t, 1)
		held := b.mustBook(t, 1)
		row := b.wantSeat(t, 1, booking.PhaseHeld)
		rec := row.HeldRecord(code(1), "", "")
		b.ledger.seats.(*memory).set(code(1), func(r *booking.Row) { r.Phase = booking.PhaseRefused })
		words := func(code string) booking.Refusal { return booking.Refusal("<" + code + ">") }
		for name, c := range map[string]struct {
			reason  string
			state   booking.RecordState
			refusal func(string) booking.Refusal
			want    booking.Refusal
		}{
			"WithACode":           {"refused 2023", booking.StateReleased, words, "<2023>"},
			"NobodyReadsCodes":    {"refused 2023", booking.StateReleased, nil, ""},
			"MoneyGoesBack":       {"refused refund", booking.StateReleased, words, booking.RefusalRefund},
			"RecordNotYetMoved":   {"", booking.StateHeld, words, "<>"},
			"RecordOtherwiseOver": {"lapsed", booking.StateReleased, words, "<>"},
		} {
			rec.State, rec.Reason = c.state, c.reason
			v := &checkout.Viewer{Rows: b.ledger, Records: record{rec: rec}, Refusal: c.refusal}
			got, err := v.View(t.Context(), code(1), held.Attempt)
			if want := (booking.View{State: booking.ViewRefused, Refusal: c.want, Level: "N1", SecondsLeft: 600}); err != nil || got != want {
				t.Errorf("%s: got %+v, %v, want %+v", name, got, err, want)
			}
		}
	})
}

func TestView_WithoutARowTheRecordTells(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := inMemory(t, 1)
		mine, other := b.mustBook(t, 1), b.mustBook(t, 2)
		row := b.wantSeat(t, 1, booking.PhaseHeld)
		rec := row.HeldRecord(code(1), "", "")
		for _, c := range []struct {
			name   string
			state  booking.RecordState
			taken  bool                // another attempt of the candidate has the row
			refund booking.RefundState // of the attempt's money
			want   booking.ViewState
		}{
			{"Paid", booking.StatePaid, false, "", booking.ViewPaid},
			{"PaidTwice", booking.StatePaid, false, booking.RefundDue, booking.ViewPaid},
			{"PaidBesideAnotherAttempt", booking.StatePaid, true, "", booking.ViewPaid},
			{"Released", booking.StateReleased, false, "", booking.ViewReleased},
			{"ReleasedAndBookedAgain", booking.StateReleased, true, "", booking.ViewReleased},
			{"RefundDue", booking.StateReleased, false, booking.RefundDue, booking.ViewRefundDue},
			{"RefundSent", booking.StateReleased, true, booking.RefundSent, booking.ViewRefundDue},
			{"RefundDone", booking.StateReleased, false, booking.RefundDone, booking.ViewReleased},
			{"HeldAndBookedAgain", booking.StateHeld, true, "", booking.ViewReleased},
			{"HeldWithoutARow", booking.StateHeld, false, "", booking.ViewPaying},
		} {
			m := b.ledger.seats.(*memory)
			m.mu.Lock()
			delete(m.rows, code(1))
			if c.taken {
				again := row
				again.Attempt = other.Attempt
				m.rows[code(1)] = again
			}
			m.mu.Unlock()
			rec.State = c.state
			of := record{rec: rec}
			if c.refund != "" {
				of.refunds = []booking.Refund{{State: c.refund}}
			}
			v := &checkout.Viewer{Rows: b.ledger, Records: of}
			got, err := v.View(t.Context(), code(1), mine.Attempt)
			if want := (booking.View{State: c.want, Level: "N1"}); err != nil || got != want {
				t.Errorf("%s: got %+v, %v, want %+v", c.name, got, err, want)
			}
		}
	})
}

// hangingStore is a store that does not answer.
type hangingStore struct{ record }

func (hangingStore) Record(ctx context.Context, _, _ string) (booking.Record, error) {
	<-ctx.Done()
	return booking.Record{}, ctx.Err()
}

// The seat is still theirs, and the time to pay again runs.
func TestView_RefusedDoesNotWaitForAStoreThatHangs(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := inMemory(t, 1)
		held := b.mustBook(t, 1)
		b.ledger.seats.(*memory).set(code(1), func(r *booking.Row) { r.Phase = booking.PhaseRefused })
		v := &checkout.Viewer{Rows: b.ledger, Records: hangingStore{}}
		began := time.Now()
		got, err := v.View(t.Context(), code(1), held.Attempt)
		if err != nil || got.State != booking.ViewRefused || time.Since(began) > time.Second {
			t.Errorf("view: got %+v, %v after %s, want it refused within a second", got, err, time.Since(began))
		}
	})
}

// noRows is a ledger that answers every question with one error.
type noRows struct{ err error }

func (n noRows) Row(context.Context, string) (booking.Row, time.Time, error) {
	return booking.Row{}, time.Time{}, n.err
}
func (n noRows) PaymentOf(context.Context, string) (booking.Payment, error) {
	return booking.Payment{}, n.err
}

func TestView_TellsUnknownFromNotNow(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		v    checkout.Viewer
		want error
	}{
		"neither row nor record": {checkout.Viewer{Rows: noRows{booking.ErrNotFound}, Records: record{}}, booking.ErrNotFound},
		"ledger down":            {checkout.Viewer{Rows: noRows{errDown}, Records: record{}}, booking.ErrTryAgain},
		"ledger empty":           {checkout.Viewer{Rows: noRows{booking.ErrLedgerUnknown}, Records: record{}}, booking.ErrTryAgain},
		"store down":             {checkout.Viewer{Rows: noRows{booking.ErrNotFound}, Records: record{err: errDown}}, booking.ErrTryAgain},
		"record unreadable":      {checkout.Viewer{Rows: noRows{booking.ErrNotFound}, Records: record{err: booking.ErrUnreadable}}, booking.ErrTryAgain},
	} {
		got, err := c.v.View(t.Context(), code(1), unknownAttempt)
		if !errors.Is(err, c.want) || got != (booking.View{}) {
			t.Errorf("%s: got %+v, %v, want nothing and %v", name, got, err, c.want)
		}
	}
}

// The real row and record readers fit, and say the same.
func TestView_OfABookingJustMade(t *testing.T) {
	onEach(t, 1, func(t *testing.T, b *bench) {
		held := b.mustBook(t, 1)
		v := &checkout.Viewer{Rows: b.ledger.seats, Records: record{err: errDown}}
		got, err := v.View(t.Context(), code(1), held.Attempt)
		if err != nil || got.State != booking.ViewHeld || got.PaymentURL != held.PaymentURL || got.Level != "N1" || got.SecondsLeft < 590 {
			t.Errorf("view: got %+v, %v, want it held with the link %s", got, err, held.PaymentURL)
		}
		v.Records = record{}
		if _, err := v.View(t.Context(), code(2), unknownAttempt); !errors.Is(err, booking.ErrNotFound) {
			t.Errorf("view of nobody's booking: got %v, want ErrNotFound", err)
		}
	})
}
