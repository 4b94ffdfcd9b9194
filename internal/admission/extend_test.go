package admission_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"holdfast/internal/booking"
	"holdfast/internal/testenv"
)

// extend is a run of ten minutes that began now, by the ledger's clock.
type extend struct {
	id            string
	missed, after time.Time
}

func (l *ledger) run(t *testing.T) extend {
	t.Helper()
	l.advance(time.Millisecond) // what was admitted before was admitted before
	now, err := l.Now(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return extend{fmt.Sprintf("%d", now.UnixMilli()), now.Add(-10 * time.Minute), now}
}

func (l *ledger) extend(t *testing.T, i int, attempt string, e extend, want string) booking.Row {
	t.Helper()
	row, word, err := l.Extend(t.Context(), code(i), attempt, e.id, 10*time.Minute, e.missed, e.after)
	if err != nil || word != want {
		t.Fatalf("extend %s: got %q, %v, want %q", code(i), word, err, want)
	}
	return row
}

func TestExtend_OnceARun(t *testing.T) {
	onEach(t, func(t *testing.T, fresh func(t *testing.T) *ledger) {
		const by = int64(10 * time.Minute / time.Millisecond)
		for name, c := range map[string]struct {
			made func(t *testing.T, l *ledger) booking.Row
			// look is where the row's look is wanted afterwards.
			look func(before int64, row booking.Row) int64
		}{
			"payable": {func(t *testing.T, l *ledger) booking.Row { return l.mustPayable(t, 1, "N1") }, func(before int64, _ booking.Row) int64 { return before }},
			"held":    {func(t *testing.T, l *ledger) booking.Row { return l.mustHeld(t, 1, "N1") }, func(_ int64, row booking.Row) int64 { return row.Deadline }},
			"paying":  {func(t *testing.T, l *ledger) booking.Row { return l.mustPaying(t, 1, "N1", "tok") }, func(_ int64, row booking.Row) int64 { return row.Ends }},
			"refused": {func(t *testing.T, l *ledger) booking.Row { return l.mustRefused(t, 1, "N1") }, func(_ int64, row booking.Row) int64 { return row.Deadline }},
			"refused, its record not ended": {func(t *testing.T, l *ledger) booking.Row {
				row := l.mustPaying(t, 1, "N1", "tok")
				if err := l.EndPay(t.Context(), code(1), row.Attempt, "tok", booking.PhaseRefused); err != nil {
					t.Fatal(err)
				}
				return l.mustRow(t, 1)
			}, func(before int64, _ booking.Row) int64 { return before }},
			"held, its look put off past the deadline": {func(t *testing.T, l *ledger) booking.Row {
				row := l.mustHeld(t, 1, "N1")
				l.advance(10*time.Minute + time.Second)
				if err := l.Postpone(t.Context(), code(1), row.Attempt, booking.PhaseHeld, 20*time.Second, booking.CountMiss); err != nil {
					t.Fatal(err)
				}
				return l.mustRow(t, 1)
			}, func(_ int64, row booking.Row) int64 { return row.Deadline }},
		} {
			t.Run(name, func(t *testing.T) {
				l := fresh(t).open(t)
				before := c.made(t, l)
				score, err := l.rdb.ZScore(t.Context(), l.prefix+"adm:due", code(1)).Result()
				if err != nil {
					t.Fatal(err)
				}
				e := l.run(t)
				row := l.extend(t, 1, before.Attempt, e, "extended")
				if row.Deadline != before.Deadline+by || row.Hold != before.Hold+by || row.Extended != e.id || row.Phase != before.Phase {
					t.Errorf("got %+v, want %+v with ten minutes more", row, before)
				}
				l.wantLook(t, 1, c.look(int64(score), row))
				l.advance(time.Minute)
				if again := l.extend(t, 1, before.Attempt, e, "already"); again.Deadline != row.Deadline {
					t.Errorf("repeated: got deadline %d, want %d", again.Deadline, row.Deadline)
				}
				later := l.run(t)
				later.after = e.after // of two runs, what counts here is their order
				if more := l.extend(t, 1, before.Attempt, later, "extended"); more.Deadline != before.Deadline+2*by {
					t.Errorf("a second run: got deadline %d, want %d", more.Deadline, before.Deadline+2*by)
				}
				if again := l.extend(t, 1, before.Attempt, e, "already"); again.Extended != later.id {
					t.Errorf("the first run repeated after the second: got %+v, want nothing changed", again)
				}
				l.check(t)
			})
		}
	})
}

// The extended time can be paid in, and nobody is released in it.
func TestExtend_TheSeatIsKeptAndCanBePaid(t *testing.T) {
	onEach(t, func(t *testing.T, fresh func(t *testing.T) *ledger) {
		l := fresh(t).open(t)
		row := l.mustHeld(t, 1, "N1")
		l.advance(11 * time.Minute)
		_, _, err := l.BeginPay(t.Context(), code(1), row.Attempt, row.Payment, "p", time.Minute)
		wantErr(t, "pay past the deadline", err, booking.ErrDeadlinePassed)
		l.extend(t, 1, row.Attempt, l.run(t), "extended")
		wantErr(t, "release in the extended time", l.Release(t.Context(), code(1), row.Attempt), booking.ErrTooEarly)
		if _, _, err := l.BeginPay(t.Context(), code(1), row.Attempt, row.Payment, "p", time.Minute); err != nil {
			t.Errorf("pay in the extended time: got %v, want nil", err)
		}
		if err := l.EndPay(t.Context(), code(1), row.Attempt, "p", booking.PhaseHeld); err != nil {
			t.Fatal(err)
		}
		l.advance(10 * time.Minute)
		if err := l.Release(t.Context(), code(1), row.Attempt); err != nil {
			t.Errorf("release after it: got %v, want nil", err)
		}
		l.check(t)
	})
}

func TestExtend_WhoLostNothingGetsNothing(t *testing.T) {
	onEach(t, func(t *testing.T, fresh func(t *testing.T) *ledger) {
		l := fresh(t).open(t)
		missed := l.mustHeld(t, 1, "N1")
		l.advance(20*time.Minute + time.Second)
		e := l.run(t)
		if row := l.extend(t, 1, missed.Attempt, e, "missed"); row.Deadline != missed.Deadline {
			t.Errorf("missed: got deadline %d, want %d", row.Deadline, missed.Deadline)
		}
		after := l.mustHeld(t, 2, "N1")
		if row := l.extend(t, 2, after.Attempt, e, "after"); row.Deadline != after.Deadline {
			t.Errorf("admitted after the run began: got deadline %d, want %d", row.Deadline, after.Deadline)
		}
		l.extend(t, 2, missed.Attempt, e, "moved")
		l.extend(t, 5, missed.Attempt, e, "moved")
		unpaid := l.mustAdmit(t, 3, "N2")
		l.extend(t, 3, unpaid.Attempt, l.run(t), "moved")
		if err := l.Undo(t.Context(), code(3), unpaid.Attempt); err != nil {
			t.Fatal(err)
		}
		paid := l.mustPaid(t, 3, "N2")
		l.extend(t, 3, paid.Attempt, l.run(t), "moved")
		l.check(t)

		if err := l.rdb.Del(t.Context(), l.prefix+"adm:epoch").Err(); err != nil {
			t.Fatal(err)
		}
		_, _, err := l.Extend(t.Context(), code(1), missed.Attempt, e.id, time.Minute, e.missed, e.after)
		wantErr(t, "an empty ledger", err, booking.ErrLedgerUnknown)
	})
}

// Each of its answers writes, so that it can be acknowledged.
func TestExtend_AnswersAreAcknowledged(t *testing.T) {
	t.Parallel()
	pair := testenv.Pair(t)
	l := newLedger(t, connect(t, pair.Primary.Addr()), 1).open(t)
	row := l.mustHeld(t, 1, "N1")
	e := l.run(t)
	l.extend(t, 1, row.Attempt, e, "extended")
	if err := pair.Replicas[0].Freeze(); err != nil {
		t.Fatal(err)
	}
	for _, attempt := range []string{row.Attempt, "another"} {
		_, word, err := l.Extend(t.Context(), code(1), attempt, e.id, time.Minute, e.missed, e.after)
		if !errors.Is(err, booking.ErrNotAcknowledged) {
			t.Errorf("extend %s without a replica: got %q, %v, want not acknowledged", attempt, word, err)
		}
	}
}
