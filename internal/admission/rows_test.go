package admission_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/redis/go-redis/v9"

	"holdfast/internal/booking"
	"holdfast/internal/testenv"
)

func TestRows_EveryRowIsTold(t *testing.T) {
	onEach(t, func(t *testing.T, fresh func(t *testing.T) *ledger) {
		l := fresh(t).open(t)
		want := map[string]booking.Row{code(1): l.mustHeld(t, 1, "N1"), code(2): l.mustPaid(t, 2, "N1")}
		many := []any{"BROKEN", "{"}
		for i := range 1500 { // several pages
			row := booking.Row{Attempt: fmt.Sprint(i), Level: "N1", Phase: booking.PhaseNew}
			want[fmt.Sprintf("M%04d", i)] = row
			many = append(many, fmt.Sprintf("M%04d", i), fmt.Sprintf(`{"attempt":"%d","level":"N1","phase":"new"}`, i))
		}
		if err := l.rdb.HSet(t.Context(), l.prefix+"adm:seen", many...).Err(); err != nil {
			t.Fatal(err)
		}
		got, unreadable := map[string]booking.Row{}, 0
		for d, err := range l.Rows(t.Context()) {
			if err != nil {
				t.Fatal(err)
			}
			if d.Err != nil {
				unreadable++
				if d.Code != "BROKEN" || !errors.Is(d.Err, booking.ErrLedgerDamaged) {
					t.Errorf("unreadable row: got %q, %v, want BROKEN as damage", d.Code, d.Err)
				}
				continue
			}
			got[d.Code] = d.Row
		}
		if diff := cmp.Diff(want, got); diff != "" || unreadable == 0 {
			t.Errorf("rows, and %d unreadable (-want +got):\n%s", unreadable, diff)
		}
		told := 0
		for _, err := range l.Rows(t.Context()) {
			if err != nil {
				t.Fatal(err)
			}
			told++
			break // a caller may stop
		}
		if told != 1 {
			t.Errorf("rows told to a caller that stops: got %d, want 1", told)
		}
	})
}

func TestRowsOf_AndLooks_AnswerWhatIsThere(t *testing.T) {
	onEach(t, func(t *testing.T, fresh func(t *testing.T) *ledger) {
		l := fresh(t).open(t)
		held, paid := l.mustHeld(t, 1, "N1"), l.mustPaid(t, 2, "N2")
		for _, done := range []func() error{
			func() error { return l.RecordDone(t.Context(), code(2), paid.Attempt) },
			func() error { return l.MailDone(t.Context(), code(2), paid.Attempt) },
		} {
			if err := done(); err != nil {
				t.Fatal(err)
			}
		}
		codes := []string{code(1), code(2), code(3), code(1)}
		rows, err := l.RowsOf(t.Context(), codes)
		if err != nil {
			t.Fatal(err)
		}
		want := map[string]booking.DueRow{
			code(1): {Code: code(1), Row: held},
			code(2): {Code: code(2), Row: l.mustRow(t, 2)},
		}
		if diff := cmp.Diff(want, rows); diff != "" {
			t.Errorf("rows (-want +got):\n%s", diff)
		}
		looks, err := l.Looks(t.Context(), codes)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(map[string]time.Time{code(1): time.UnixMilli(held.Deadline).UTC()}, looks); diff != "" {
			t.Errorf("looks: a finished row has none (-want +got):\n%s", diff)
		}
		for _, err := range []error{second(l.RowsOf(t.Context(), nil)), second(l.Looks(t.Context(), nil))} {
			if err != nil {
				t.Errorf("of no code: got %v, want nil", err)
			}
		}
	})
}

func second[T any](_ T, err error) error { return err }

func TestCount_CountersAreReadBesideTheRows(t *testing.T) {
	onEach(t, func(t *testing.T, fresh func(t *testing.T) *ledger) {
		l := fresh(t)
		if _, _, _, err := l.Count(t.Context()); !errors.Is(err, booking.ErrLedgerUnknown) {
			t.Errorf("before a sale: got %v, want %v", err, booking.ErrLedgerUnknown)
		}
		l.open(t)
		l.mustHeld(t, 1, "N1")
		l.mustHeld(t, 2, "N2")
		want := booking.Figures{Cap: demo.Cap, Total: 2}
		for _, level := range demo.Levels {
			want.Levels = append(want.Levels, booking.LevelFigures{ID: level.ID, Name: level.Name, Cap: level.Cap})
		}
		want.Levels[0].Admitted, want.Levels[1].Admitted = 1, 1
		check := func(what string) {
			t.Helper()
			rows, looks, f, err := l.Count(t.Context())
			if err != nil || rows != 2 || looks != 2 {
				t.Errorf("%s: got %d rows, %d looks, %v, want 2 and 2", what, rows, looks, err)
			}
			if diff := cmp.Diff(want, f); diff != "" {
				t.Errorf("%s (-want +got):\n%s", what, diff)
			}
		}
		check("two seats")
		for _, damage := range []string{"two", "-1", "1.5", ""} {
			l.set(t, "adm:level:N2", damage)
			want.Levels[1].Admitted = -1
			check("counter " + damage)
		}
		if err := l.rdb.Del(t.Context(), l.prefix+"adm:total").Err(); err != nil {
			t.Fatal(err)
		}
		want.Total = -1
		check("no total")
	})
}

// Another process changes the sale: this one's memory of its levels is old.
func TestCount_SeesLevelsThatAnotherProcessApplied(t *testing.T) {
	onEach(t, func(t *testing.T, fresh func(t *testing.T) *ledger) {
		l := fresh(t).open(t)
		if _, _, _, err := l.Count(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := l.rdb.HSet(t.Context(), l.prefix+"sale:config", "levels", "N1", "cap:N1", 7).Err(); err != nil {
			t.Fatal(err)
		}
		_, _, f, err := l.Count(t.Context())
		if err != nil || len(f.Levels) != 1 || f.Levels[0].Cap != 7 {
			t.Errorf("after the change: got %+v, %v, want one level of 7", f, err)
		}
		if err := l.rdb.HDel(t.Context(), l.prefix+"sale:config", "cap:N1").Err(); err != nil {
			t.Fatal(err)
		}
		if _, _, _, err := l.Count(t.Context()); !errors.Is(err, booking.ErrLedgerDamaged) {
			t.Errorf("a level without a cap: got %v, want %v", err, booking.ErrLedgerDamaged)
		}
	})
}

// Nobody can decide a row that is missing or cannot be read: its look is put off,
// so that it crowds out no other, and nothing else is changed.
func TestPostpone_PutsOffTheLookOfWhatCannotBeRead(t *testing.T) {
	onEach(t, func(t *testing.T, fresh func(t *testing.T) *ledger) {
		l := fresh(t).open(t)
		held := l.mustHeld(t, 1, "N1")
		for name, c := range map[string]struct {
			text    string // "" is no row
			attempt string // as the caller could read it
			want    error
		}{
			"missing":                      {"", "", booking.ErrNotOwner},
			"no JSON":                      {"{nothing", "", booking.ErrLedgerDamaged},
			"no row":                       {"{}", "", booking.ErrLedgerDamaged},
			"a phase that is none":         {`{"attempt":"a","level":"N1","phase":"gone"}`, "a", booking.ErrLedgerDamaged},
			"not readable for the program": {l.raw(t, code(1)), "", booking.ErrNotOwner},
		} {
			bad := "BAD " + name
			if c.text != "" {
				if err := l.rdb.HSet(t.Context(), l.prefix+"adm:seen", bad, c.text).Err(); err != nil {
					t.Fatal(err)
				}
			}
			if err := l.rdb.ZAdd(t.Context(), l.prefix+"adm:due", redis.Z{Score: 1, Member: bad}).Err(); err != nil {
				t.Fatal(err)
			}
			now, err := l.Now(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if err := l.Postpone(t.Context(), bad, c.attempt, booking.PhaseHeld, time.Hour, booking.CountLook); !errors.Is(err, c.want) {
				t.Errorf("%s: got %v, want %v", name, err, c.want)
			}
			looks, err := l.Looks(t.Context(), []string{bad})
			if by := looks[bad].Sub(now); err != nil || by < time.Hour-time.Second || by > time.Hour+time.Minute {
				t.Errorf("%s: got the next look in %s, %v, want it in an hour", name, by, err)
			}
			if got := l.raw(t, bad); got != c.text {
				t.Errorf("%s: got the row changed to %q, want %q", name, got, c.text)
			}
		}
		// A code that nobody looks at is not looked at from now on; another attempt's
		// look is not put off.
		if err := l.Postpone(t.Context(), code(2), "", booking.PhaseHeld, time.Hour, booking.CountNothing); !errors.Is(err, booking.ErrNotOwner) {
			t.Errorf("no look: got %v, want %v", err, booking.ErrNotOwner)
		}
		if err := l.Postpone(t.Context(), code(1), "another", booking.PhaseHeld, time.Hour, booking.CountNothing); !errors.Is(err, booking.ErrNotOwner) {
			t.Errorf("another attempt: got %v, want %v", err, booking.ErrNotOwner)
		}
		looks, err := l.Looks(t.Context(), []string{code(1), code(2)})
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(map[string]time.Time{code(1): time.UnixMilli(held.Deadline).UTC()}, looks); diff != "" {
			t.Errorf("looks of the others (-want +got):\n%s", diff)
		}
	})
}

// raw is the text of a code's row; "" when there is none.
func (l *ledger) raw(t *testing.T, code string) string {
	t.Helper()
	text, err := l.rdb.HGet(t.Context(), l.prefix+"adm:seen", code).Result()
	if err != nil && !errors.Is(err, redis.Nil) {
		t.Fatal(err)
	}
	return text
}

// One that has heard of no missing acknowledgement asks, and hears of the first.
func TestAcknowledges_TellsTheFirstThatIsMissing(t *testing.T) {
	t.Parallel()
	pair := testenv.Pair(t)
	l := newLedger(t, connect(t, pair.Primary.Addr()), 1)
	if err := l.Acknowledges(t.Context()); err != nil {
		t.Errorf("with a replica: got %v, want nil", err)
	}
	if err := pair.Replicas[0].Freeze(); err != nil {
		t.Fatal(err)
	}
	if err := l.Acknowledges(t.Context()); !errors.Is(err, booking.ErrNotAcknowledged) {
		t.Errorf("without: got %v, want %v", err, booking.ErrNotAcknowledged)
	}
	if err := pair.Replicas[0].Thaw(); err != nil {
		t.Fatal(err)
	}
}
