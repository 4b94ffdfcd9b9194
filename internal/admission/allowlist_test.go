package admission_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"holdfast/internal/booking"
	"holdfast/internal/testenv"
)

// candidates are C001 to the nth.
func candidates(n int) []booking.Candidate {
	var list []booking.Candidate
	for i := range n {
		list = append(list, booking.Candidate{Code: code(i + 1), Email: mail(i + 1)})
	}
	return list
}

// staged is a load that has staged these candidates as its first chunk.
func (l *ledger) staged(t *testing.T, token string, list []booking.Candidate) booking.AllowlistLoad {
	t.Helper()
	if turn, err := l.BeginAllowlist(t.Context(), token, "a test"); err != nil || turn.Token != token {
		t.Fatalf("begin: got %+v, %v, want the turn", turn, err)
	}
	if _, err := l.ClearAllowlist(t.Context(), token, false); err != nil {
		t.Fatalf("clear: %v", err)
	}
	load, err := l.StageAllowlist(t.Context(), token, 1, list)
	if err != nil {
		t.Fatalf("stage: %v", err)
	}
	return load
}

func TestAllowlist_EachStepRepeatedFindsItsOwnEffect(t *testing.T) {
	onEach(t, func(t *testing.T, fresh func(t *testing.T) *ledger) {
		l := fresh(t).open(t)
		if err := l.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
		list := candidates(30)
		list[4].Email = "another@example.org"
		want := l.staged(t, "A", list[:25])
		if want.Rows != 25 || want.Added != 5 || want.Changed != 1 || want.Unchanged != 19 || want.Removed() != 0 || want.Listed != 20 {
			t.Errorf("staged: got %+v, want 25 rows, 5 added, 1 changed, 19 unchanged", want)
		}
		twice := func(what string, call func() error) {
			t.Helper()
			before := ""
			for range 2 {
				if err := call(); err != nil {
					t.Fatalf("%s: %v", what, err)
				}
				l.rdb.HDel(t.Context(), l.prefix+"candidates:load", "until", "since") // they tell the time
				now := l.state(t)
				if before != "" && now != before {
					t.Errorf("%s: the repeat changed something:\n%s\nwas\n%s", what, now, before)
				}
				before = now
			}
		}
		stage := func(n int, chunk []booking.Candidate) func() error {
			return func() error { return second(l.StageAllowlist(t.Context(), "A", n, chunk)) }
		}
		twice("the first chunk", stage(1, list[:25]))
		twice("the second chunk", stage(2, list[25:]))
		wantErr(t, "the first chunk after the second", stage(1, list[:25])(), booking.ErrAllowlistTorn)
		wantErr(t, "a chunk after one that never came", stage(4, list[25:])(), booking.ErrAllowlistTorn)
		twice("swap", func() error { return second(l.SwapAllowlist(t.Context(), "A", 2, false)) })
		twice("end", func() error { return l.EndAllowlist(t.Context(), "A", false) })
		if got, listed, err := l.Candidate(t.Context(), code(5)); got.Email != "another@example.org" || !listed || err != nil {
			t.Errorf("changed candidate: got %+v, %t, %v", got, listed, err)
		}
	})
}

// A copy of any step that comes when another load has the turn, or none, changes
// nothing.
func TestAllowlist_StepOfAnotherLoadChangesNothing(t *testing.T) {
	onEach(t, func(t *testing.T, fresh func(t *testing.T) *ledger) {
		l := fresh(t).open(t)
		if err := l.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
		wantNothing := func(what string) {
			t.Helper()
			before := l.state(t)
			for name, call := range map[string]func() error{
				"stage": func() error { return second(l.StageAllowlist(t.Context(), "A", 2, candidates(40))) },
				"swap":  func() error { return second(l.SwapAllowlist(t.Context(), "A", 1, true)) },
				"clear": func() error { return second(l.ClearAllowlist(t.Context(), "A", false)) },
				"leave": func() error { return l.LeaveAllowlist(t.Context(), "A") },
			} {
				wantErr(t, what+": "+name, call(), booking.ErrAllowlistTurn)
			}
			if err := l.EndAllowlist(t.Context(), "A", false); err != nil {
				t.Errorf("%s: end: %v, want that another sees to it", what, err)
			}
			if after := l.state(t); after != before {
				t.Errorf("%s: something changed:\n%s\nwas\n%s", what, after, before)
			}
		}
		l.staged(t, "A", candidates(3))
		if turn, err := l.BeginAllowlist(t.Context(), "B", "another"); err != nil || turn.Token != "A" || turn.Who != "a test" || turn.Since.IsZero() {
			t.Errorf("begin beside it: got %+v, %v, want to hear whose turn it is", turn, err)
		}
		l.advance(31 * time.Second)
		l.staged(t, "B", candidates(21))
		wantNothing("another has staged")
		if _, err := l.SwapAllowlist(t.Context(), "B", 1, false); err != nil {
			t.Fatal(err)
		}
		wantNothing("another has swapped")
		if err := l.EndAllowlist(t.Context(), "B", false); err != nil {
			t.Fatal(err)
		}
		wantNothing("another has ended")

		// Another sale is no place for what was staged for this one.
		l.staged(t, "A", candidates(3))
		l.set(t, "adm:epoch", "another-epoch")
		wantNothing("the sale is another one")
		if turn, err := l.BeginAllowlist(t.Context(), "C", "another"); err != nil || turn.Token != "C" {
			t.Errorf("begin in another sale: got %+v, %v, want the turn at once", turn, err)
		}
	})
}

func TestAllowlist_UnknownChangesNothing(t *testing.T) {
	onEach(t, func(t *testing.T, fresh func(t *testing.T) *ledger) {
		l := fresh(t)
		for name, call := range map[string]func() error{
			"begin": func() error { return second(l.BeginAllowlist(t.Context(), "A", "a test")) },
			"stage": func() error { return second(l.StageAllowlist(t.Context(), "A", 1, candidates(3))) },
			"swap":  func() error { return second(l.SwapAllowlist(t.Context(), "A", 1, true)) },
			"clear": func() error { return second(l.ClearAllowlist(t.Context(), "A", false)) },
			"end":   func() error { return l.EndAllowlist(t.Context(), "A", false) },
			"leave": func() error { return l.LeaveAllowlist(t.Context(), "A") },
		} {
			wantErr(t, name, call(), booking.ErrLedgerUnknown)
		}
		if got := l.dump(t); strings.Contains(got, l.prefix) {
			t.Errorf("something was written:\n%s", got)
		}
	})
}

// As every change: whatever a step answers, it writes, so that WAIT proves something.
func TestAllowlist_EveryAnswerRaisesTheReplicationOffset(t *testing.T) {
	t.Parallel()
	rdb := connect(t, testenv.Pair(t).Primary.Addr())
	quiet(t, rdb)
	l := newLedger(t, rdb, 0).open(t)
	l.staged(t, "A", candidates(25))
	for name, call := range map[string]func() error{
		"running":         func() error { return second(l.BeginAllowlist(t.Context(), "B", "another")) },
		"superseded":      func() error { return l.LeaveAllowlist(t.Context(), "B") },
		"ended":           func() error { return l.EndAllowlist(t.Context(), "B", false) },
		"repeated":        func() error { return second(l.StageAllowlist(t.Context(), "A", 1, candidates(25))) },
		"torn":            func() error { return second(l.StageAllowlist(t.Context(), "A", 7, candidates(25))) },
		"swap while open": func() error { return second(l.SwapAllowlist(t.Context(), "A", 1, false)) },
	} {
		before := replicationOffset(t, rdb)
		_ = call() // some are refusals
		if after := replicationOffset(t, rdb); after <= before {
			t.Errorf("%s wrote nothing: its acknowledgement would prove nothing", name)
		}
	}
}

// From the moment a list is in force each of its candidates has an e-mail: the new ones
// had theirs before, when nobody was admitted by it.
func TestSwapAllowlist_EveryoneHasTheRightEmailAtOnce(t *testing.T) {
	onEach(t, func(t *testing.T, fresh func(t *testing.T) *ledger) {
		l := fresh(t).open(t)
		list := candidates(25)
		list[4].Email = "another@example.org"
		l.staged(t, "A", list[1:])
		ask := func(i int, email string, want error) {
			t.Helper()
			_, err := l.Admit(t.Context(), booking.Request{Code: code(i), Email: email, Level: "N1"}, suffix(), true)
			wantErr(t, fmt.Sprintf("candidate %d with %s", i, email), err, want)
		}
		ask(1, mail(1), booking.ErrWouldAdmit)
		ask(5, mail(5), booking.ErrWouldAdmit)
		ask(25, mail(25), booking.ErrInvalidCode)
		if _, err := l.SwapAllowlist(t.Context(), "A", 1, true); err != nil {
			t.Fatal(err)
		}
		ask(1, mail(1), booking.ErrInvalidCode)
		ask(5, mail(5), booking.ErrEmailMismatch)
		ask(5, "another@example.org", booking.ErrWouldAdmit)
		for i := 6; i <= 25; i++ {
			ask(i, mail(i), booking.ErrWouldAdmit)
		}
	})
}

func TestCandidates_EachOnceAndWithItsEmail(t *testing.T) {
	onEach(t, func(t *testing.T, fresh func(t *testing.T) *ledger) {
		l := fresh(t).open(t)
		want := candidates(1700)
		for part := range slices.Chunk(want, 400) {
			if err := l.AddCandidates(t.Context(), part); err != nil {
				t.Fatal(err)
			}
		}
		var got []booking.Candidate
		for c, err := range l.Candidates(t.Context()) {
			if err != nil {
				t.Fatal(err)
			}
			got = append(got, c)
		}
		byCode := func(a, b booking.Candidate) int { return strings.Compare(a.Code, b.Code) }
		slices.SortFunc(got, byCode)
		slices.SortFunc(want, byCode)
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("candidates (-want +got):\n%.2000s", diff)
		}
	})
}

func TestCandidates_OneWithoutEmailIsToldAndTheRestFollow(t *testing.T) {
	onEach(t, func(t *testing.T, fresh func(t *testing.T) *ledger) {
		l := fresh(t).open(t)
		l.rdb.Del(t.Context(), l.prefix+"candidate:email:"+code(7))
		n, broken := 0, []string{}
		for c, err := range l.Candidates(t.Context()) {
			n++
			if errors.Is(err, booking.ErrAllowlistBroken) {
				broken = append(broken, c.Code)
			} else if err != nil {
				t.Fatal(err)
			}
		}
		if n != 20 || !slices.Equal(broken, []string{code(7)}) {
			t.Errorf("got %d candidates, %v without e-mail, want 20 and %s", n, broken, code(7))
		}
	})
}

// A list that changes while it is read is no list that ever was in force.
func TestCandidates_AnotherListInForceEndsIt(t *testing.T) {
	onEach(t, func(t *testing.T, fresh func(t *testing.T) *ledger) {
		l := fresh(t).open(t)
		for part := range slices.Chunk(candidates(1700), 400) {
			if err := l.AddCandidates(t.Context(), part); err != nil {
				t.Fatal(err)
			}
		}
		var last error
		swapped := false
		pages := 0
		for _, err := range l.Candidates(t.Context()) {
			last = err
			if pages++; !swapped {
				swapped = true
				l.staged(t, "A", candidates(20))
				if _, err := l.SwapAllowlist(t.Context(), "A", 1, true); err != nil {
					t.Fatal(err)
				}
			}
		}
		// A server that gives all in one page has read it in one moment.
		if pages < 1700 {
			wantErr(t, "the end of it", last, booking.ErrAllowlistMoved)
		}
	})
}

func TestCandidate_OffTheList(t *testing.T) {
	onEach(t, func(t *testing.T, fresh func(t *testing.T) *ledger) {
		l := fresh(t).open(t)
		for i, want := range map[int]string{3: mail(3), 99: ""} {
			c, listed, err := l.Candidate(t.Context(), code(i))
			if c.Code != code(i) || c.Email != want || listed != (want != "") || err != nil {
				t.Errorf("candidate %d: got %+v, on the list %t, %v, want %q", i, c, listed, err, want)
			}
		}
	})
}

// A load that is not heard of keeps its turn for its lease, and each step renews it.
func TestBeginAllowlist_EveryStepRenewsTheLease(t *testing.T) {
	onEach(t, func(t *testing.T, fresh func(t *testing.T) *ledger) {
		l := fresh(t).open(t)
		l.staged(t, "A", candidates(20))
		turn := func(ctx context.Context) string {
			t.Helper()
			load, err := l.BeginAllowlist(ctx, "B", "another")
			if err != nil {
				t.Fatal(err)
			}
			return load.Token
		}
		for n := 2; n < 5; n++ {
			l.advance(25 * time.Second)
			if _, err := l.StageAllowlist(t.Context(), "A", n, candidates(n)); err != nil {
				t.Fatal(err)
			}
			if got := turn(t.Context()); got != "A" {
				t.Errorf("the turn after %d chunks: got %q's, want A's", n, got)
			}
		}
		l.advance(31 * time.Second)
		if got := turn(t.Context()); got != "B" {
			t.Errorf("the turn of one that is not heard of: got %q's, want B's", got)
		}
	})
}
