package admission_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"holdfast/internal/booking"
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
