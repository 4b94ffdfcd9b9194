package admission_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"holdfast/internal/booking"
)

// released gives the candidate a seat, lets it lapse and releases it, and returns
// the record that is left.
func (l *ledger) released(t *testing.T, i int, level string) booking.Record {
	t.Helper()
	row := l.mustHeld(t, i, level)
	l.advance(11 * time.Minute)
	if err := l.Release(t.Context(), code(i), row.Attempt); err != nil {
		t.Fatalf("release: %v", err)
	}
	return row.HeldRecord(code(i), "", "")
}

func (l *ledger) mustLate(t *testing.T, rec booking.Record, transaction string, kind booking.MoneyKind) booking.Decision {
	t.Helper()
	d, err := l.Late(t.Context(), rec, transaction, kind)
	if err != nil {
		t.Fatalf("late: %v", err)
	}
	return d
}

func wantRefund(t *testing.T, what string, d booking.Decision, reason string) {
	t.Helper()
	if d.Paid || d.Reason != reason {
		t.Errorf("%s: got paid %t, reason %q, want a refund because of %q", what, d.Paid, d.Reason, reason)
	}
}

// Case 13 at the ledger: late money gets the seat if it is free, and for ever the
// same answer.
func TestLate_SeatIsFree(t *testing.T) {
	onEach(t, func(t *testing.T, fresh func(t *testing.T) *ledger) {
		l := fresh(t).open(t)
		rec := l.released(t, 1, "N1")
		if _, err := l.Settle(t.Context(), rec.Code, rec.Attempt, rec.PaymentID, "TRX9"); !errors.Is(err, booking.ErrNotOwner) {
			t.Fatalf("settle: got %v, want not the owner", err)
		}
		if err := l.Close(t.Context()); err != nil { // late money after close counts all the same
			t.Fatal(err)
		}
		d := l.mustLate(t, rec, "TRX9", booking.MoneyLate)
		if !d.Paid || d.Row.Attempt != rec.Attempt || d.Row.Transaction != "TRX9" || d.Row.Amount != rec.Amount {
			t.Errorf("got %+v, want the attempt's seat, paid", d)
		}
		if again := l.mustLate(t, rec, "TRX9", booking.MoneyLate); !again.Paid || again.At != d.At {
			t.Errorf("again: got %+v, want %+v", again, d)
		}
		if row, err := l.Settle(t.Context(), rec.Code, rec.Attempt, rec.PaymentID, "TRX9"); err != nil || row.PaidAt != d.Row.PaidAt {
			t.Errorf("settle afterwards: got %+v, %v, want the same seat", row, err)
		}
		wantRefund(t, "another transaction of the payment", l.mustLate(t, rec, "TRX10", booking.MoneyLate), "second")
		if got := l.get(t, "adm:level:N1") + l.get(t, "adm:total"); got != "11" {
			t.Errorf("counters: got %s, want one seat each", got)
		}
		l.wantLook(t, 1, d.Row.PaidAt+60_000)
		l.check(t)
	})
}

func TestLate_SeatIsNotFree(t *testing.T) {
	onEach(t, func(t *testing.T, fresh func(t *testing.T) *ledger) {
		l := fresh(t).open(t)
		rec := l.released(t, 1, "N1")
		// The candidate booked again, and lost that too before the money was reported
		// a second time: the first decision stands.
		again := l.mustHeld(t, 1, "N2")
		wantRefund(t, "its candidate has another seat", l.mustLate(t, rec, "LATE1", booking.MoneyLate), "candidate")
		l.advance(11 * time.Minute)
		if err := l.Release(t.Context(), code(1), again.Attempt); err != nil {
			t.Fatal(err)
		}
		wantRefund(t, "reported again", l.mustLate(t, rec, "LATE1", booking.MoneyLate), "candidate")

		l.mustPaid(t, 2, "N1")
		l.mustPaid(t, 3, "N1")
		wantRefund(t, "level full", l.mustLate(t, rec, "LATE2", booking.MoneyLate), "full")
		other := rec
		other.Level = "N2"
		l.mustPaid(t, 4, "N2")
		wantRefund(t, "all full", l.mustLate(t, other, "LATE3", booking.MoneyLate), "full")
		other.Level = "N7"
		wantRefund(t, "level gone", l.mustLate(t, other, "LATE4", booking.MoneyLate), "level")
		other = rec
		other.Attempt = booking.AttemptID(booking.NewEpoch(time.Unix(1_700_000_000, 0)), suffix())
		wantRefund(t, "of another sale", l.mustLate(t, other, "LATE5", booking.MoneyLate), "epoch")
		l.check(t)
	})
}

// A second payment, and one otherwise than ordered, always go back, whoever owns
// the seat.
func TestLate_MoneyThatNeverPaysForASeat(t *testing.T) {
	onEach(t, func(t *testing.T, fresh func(t *testing.T) *ledger) {
		l := fresh(t).open(t)
		paid := l.mustPaid(t, 1, "N1")
		rec := paid.HeldRecord(code(1), "", "")
		wantRefund(t, "second", l.mustLate(t, rec, "TRX2", booking.MoneySecond), "second")
		wantRefund(t, "second, told as late", l.mustLate(t, rec, "TRX3", booking.MoneyLate), "second")
		if d := l.mustLate(t, rec, "TRX1", booking.MoneySecond); !d.Paid || d.Row.Attempt != paid.Attempt {
			t.Errorf("the seat's own transaction: got %+v, want paid", d)
		}
		held := l.mustHeld(t, 2, "N1")
		wantRefund(t, "otherwise than ordered", l.mustLate(t, held.HeldRecord(code(2), "", ""), "TRX4", booking.MoneyOther), "other_than_ordered")
		if row := l.mustRow(t, 2); row.Phase != booking.PhaseHeld {
			t.Errorf("its seat: got %s, want it held still", row.Phase)
		}
		l.check(t)
	})
}

// Once it is decided that a transaction goes back, no report of it pays for a seat,
// whatever that report says of it.
func TestSettle_MoneyThatGoesBackPaysForNoSeat(t *testing.T) {
	onEach(t, func(t *testing.T, fresh func(t *testing.T) *ledger) {
		l := fresh(t).open(t)
		held := l.mustHeld(t, 1, "N1")
		wantRefund(t, "otherwise than ordered", l.mustLate(t, held.HeldRecord(code(1), "", ""), "TRX1", booking.MoneyOther), "other_than_ordered")
		_, err := l.Settle(t.Context(), code(1), held.Attempt, held.Payment, "TRX1")
		wantErr(t, "the same transaction, as ordered this time", err, booking.ErrSecondPayment)
		if row := l.mustRow(t, 1); row.Phase != booking.PhaseHeld {
			t.Errorf("its seat: got %s, want held", row.Phase)
		}
		if _, err := l.Settle(t.Context(), code(1), held.Attempt, held.Payment, "TRX2"); err != nil {
			t.Errorf("another transaction of the payment: got %v, want the seat paid", err)
		}
		l.check(t)
	})
}

// For an attempt that owns its row it is settle, in every phase with a payment.
func TestLate_OwnerIsSettled(t *testing.T) {
	onEach(t, func(t *testing.T, fresh func(t *testing.T) *ledger) {
		for name, made := range map[string]func(t *testing.T, l *ledger) booking.Row{
			"payable": func(t *testing.T, l *ledger) booking.Row { return l.mustPayable(t, 1, "N1") },
			"held":    func(t *testing.T, l *ledger) booking.Row { return l.mustHeld(t, 1, "N1") },
			"paying":  func(t *testing.T, l *ledger) booking.Row { return l.mustPaying(t, 1, "N1", "tok") },
			"refused": func(t *testing.T, l *ledger) booking.Row { return l.mustRefused(t, 1, "N1") },
		} {
			t.Run(name, func(t *testing.T) {
				l := fresh(t).open(t)
				rec := made(t, l).HeldRecord(code(1), "", "")
				if d := l.mustLate(t, rec, "TRX1", booking.MoneyLate); !d.Paid || d.Row.Phase != booking.PhasePaid {
					t.Errorf("got %+v, want the seat paid", d)
				}
				l.check(t)
			})
		}
	})
}

// What cannot be decided leaves no decision behind.
func TestLate_DamageDecidesNothing(t *testing.T) {
	onEach(t, func(t *testing.T, fresh func(t *testing.T) *ledger) {
		l := fresh(t).open(t)
		rec := l.released(t, 1, "N1")
		for _, key := range []string{"adm:total", "adm:level:N1"} {
			was := l.get(t, key)
			l.set(t, key, "many")
			_, err := l.Late(t.Context(), rec, "TRX1", booking.MoneyLate)
			wantErr(t, "with "+key+" damaged", err, booking.ErrLedgerDamaged)
			l.set(t, key, was)
		}
		if d := l.mustLate(t, rec, "TRX1", booking.MoneyLate); !d.Paid {
			t.Errorf("repaired: got %+v, want the seat", d)
		}
		empty := fresh(t)
		_, err := empty.Late(t.Context(), rec, "TRX1", booking.MoneyLate)
		wantErr(t, "on an empty Redis", err, booking.ErrLedgerUnknown)
	})
}

func TestNotices_OldestFirstUntilDone(t *testing.T) {
	onEach(t, func(t *testing.T, fresh func(t *testing.T) *ledger) {
		l := fresh(t).open(t)
		for i, id := range []string{"third", "second", "first"} {
			if err := l.NoticeLater(t.Context(), id, time.Duration(3-i)*time.Minute); err != nil {
				t.Fatal(err)
			}
		}
		want := func(ids ...string) {
			t.Helper()
			got, err := l.DueNotices(t.Context(), 2)
			if err != nil || strings.Join(got, " ") != strings.Join(ids, " ") {
				t.Errorf("due: got %v, %v, want %v", got, err, ids)
			}
		}
		want()
		l.advance(10 * time.Minute)
		want("first", "second")
		for range 2 {
			if err := l.NoticeDone(t.Context(), "first"); err != nil {
				t.Fatal(err)
			}
		}
		if err := l.NoticeLater(t.Context(), "second", time.Hour); err != nil {
			t.Fatal(err)
		}
		want("third")
	})
}
