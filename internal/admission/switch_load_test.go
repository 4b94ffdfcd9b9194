package admission_test

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"holdfast/internal/booking"
)

// unfinished is what LoadUnfinished tells, but for the times themselves: whether there
// is a since and an until that is not over.
type unfinished struct {
	Who, Of              string
	Since, OfSince, Turn bool
	Left, Swapped, Half  bool
}

func (l *ledger) wantUnfinished(t *testing.T, when string, want unfinished) {
	t.Helper()
	load, err := l.LoadUnfinished(t.Context())
	if err != nil {
		t.Fatalf("%s: %v", when, err)
	}
	now, err := l.Now(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	got := unfinished{
		Who: load.Who, Of: load.Of, Since: !load.Since.IsZero(), OfSince: !load.OfSince.IsZero(), Turn: load.Until.After(now),
		Left: load.Left, Swapped: load.Swapped, Half: load.Half,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("%s (-want +got):\n%s", when, diff)
	}
}

// many are 501 candidates whose e-mails are all other ones than those of candidates.
func many() []booking.Candidate {
	list := candidates(501)
	for i := range list {
		list[i].Email = "new-" + list[i].Email
	}
	return list
}

func TestLoadUnfinished_TellsALoadAtWorkFromWhatADeadOneLeft(t *testing.T) {
	onEach(t, func(t *testing.T, fresh func(t *testing.T) *ledger) {
		l := fresh(t).open(t)
		if err := l.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
		take := func(token, who string) booking.AllowlistLoad {
			t.Helper()
			turn, err := l.BeginAllowlist(t.Context(), token, who)
			if err != nil || turn.Token != token {
				t.Fatalf("begin: got %+v, %v, want the turn", turn, err)
			}
			return turn
		}
		leave := func(token string) {
			t.Helper()
			if err := l.LeaveAllowlist(t.Context(), token); err != nil {
				t.Fatal(err)
			}
		}
		l.wantUnfinished(t, "no load", unfinished{})
		take("A", "alice")
		l.wantUnfinished(t, "a turn", unfinished{Who: "alice", Since: true, Turn: true})
		leave("A")
		l.wantUnfinished(t, "a turn given back", unfinished{})

		l.staged(t, "B", candidates(30))
		l.wantUnfinished(t, "staging", unfinished{Who: "a test", Since: true, Turn: true, Left: true})
		leave("B")
		l.wantUnfinished(t, "staged and left", unfinished{Who: "a test", Since: true, Left: true})
		if err := l.Open(t.Context()); err != nil {
			t.Errorf("open with what a dry run left: got %v, want nil", err)
		}
		if err := l.Close(t.Context()); err != nil {
			t.Fatal(err)
		}

		if err := l.AddCandidates(t.Context(), candidates(501)); err != nil {
			t.Fatal(err)
		}
		l.staged(t, "C", many())
		if _, err := l.SwapAllowlist(t.Context(), "C", 1, false); err != nil {
			t.Fatal(err)
		}
		half := unfinished{Who: "a test", Since: true, Turn: true, Left: true, Swapped: true, Half: true}
		l.wantUnfinished(t, "swapped, its e-mails not", half)
		wantErr(t, "open", l.Open(t.Context()), booking.ErrAllowlistHalf)
		l.advance(31 * time.Second)
		half.Turn = false
		l.wantUnfinished(t, "dead", half)

		// Whoever comes next is told whose it was, and the one after them, too.
		for _, who := range []string{"bob", "carol"} {
			if turn := take(who, who); turn.Of != "a test" || turn.OfSince.IsZero() || !turn.Swapped || !turn.Left {
				t.Errorf("%s: got %+v, want to hear of a test's load", who, turn)
			}
			leave(who)
			half.Who, half.Of, half.OfSince = who, "a test", true
			l.wantUnfinished(t, "left by "+who, half)
		}
		take("D", "dave")
		if cleared, err := l.ClearAllowlist(t.Context(), "D", true); err != nil || cleared.Of != "" {
			t.Errorf("clear: got %+v, %v, want nobody's load any more", cleared, err)
		}
		l.wantUnfinished(t, "cleared", unfinished{Who: "dave", Since: true, Turn: true})
		leave("D")
		l.wantUnfinished(t, "at the end", unfinished{})
	})
}

// What an earlier program or a person wrote there is read as far as it goes.
func TestLoadUnfinished_TimesThatAreNoneAreZero(t *testing.T) {
	onEach(t, func(t *testing.T, fresh func(t *testing.T) *ledger) {
		l := fresh(t).open(t)
		if err := l.rdb.HSet(t.Context(), l.prefix+"candidates:load", "who", "eve", "until", "soon").Err(); err != nil {
			t.Fatal(err)
		}
		l.wantUnfinished(t, "garbled", unfinished{Who: "eve"})
	})
}
