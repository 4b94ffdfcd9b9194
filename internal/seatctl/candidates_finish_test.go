package seatctl_test

import (
	"fmt"
	"path/filepath"
	"testing"
	"time"

	"holdfast/internal/booking"
	"holdfast/internal/booking/bookingtest"
	store "holdfast/internal/store/sqlite"
)

// cutOff leaves a load that died with its list in force: people 1 to 4, of 5 before it.
func (s *still) cutOff(t *testing.T) {
	t.Helper()
	if err := s.gate.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	var list []booking.Candidate
	for i := 1; i <= 4; i++ {
		list = append(list, booking.Candidate{Code: bookingtest.Code(i), Email: bookingtest.Email(i)})
	}
	if _, err := s.gate.BeginAllowlist(t.Context(), "A", "bob"); err != nil {
		t.Fatal(err)
	}
	if _, err := s.gate.ClearAllowlist(t.Context(), "A", true); err != nil {
		t.Fatal(err)
	}
	if _, err := s.gate.StageAllowlist(t.Context(), "A", 1, list); err != nil {
		t.Fatal(err)
	}
	if _, err := s.gate.SwapAllowlist(t.Context(), "A", 1, false); err != nil {
		t.Fatal(err)
	}
	if err := s.gate.LeaveAllowlist(t.Context(), "A"); err != nil {
		t.Fatal(err)
	}
}

func (s *still) logged(t *testing.T, parts ...string) {
	t.Helper()
	records, err := store.Open(t.Context(), filepath.Join(s.data, "store.db"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = records.Close() }()
	var got []string
	for e, err := range records.Log(t.Context(), time.Time{}) {
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, fmt.Sprintf("%s %s %s", e.What, e.Outcome, e.After))
	}
	wantLines(t, got, parts)
}

func TestCandidatesLoad_SaysAndLogsThatItFinishedAnEarlierLoad(t *testing.T) {
	t.Parallel()
	s := stopped(t, 0)
	s.serve(t, 0)
	load := func(stdin string, args ...string) result {
		return run(t, stdin, append([]string{"candidates", "load", "--data", s.data}, args...)...)
	}
	wrong, good := candidatesFile(t, "code,email\nnobody\n"), candidatesFile(t, "code,email\nC0001,c0001@example.org\nC0002,c0002@example.org\nC0003,c0003@example.org\nC0004,c0004@example.org\n")
	const finished = "an earlier load, of bob since "

	s.cutOff(t)
	load("", good, "--dry-run").want(t, 1, "of bob, since ", "must be finished first", "nothing was changed")
	s.logged(t)
	got := load("", wrong, "--yes", "--json")
	got.want(t, 1, finished, "was finished; of this list nothing was changed")
	if out := got.loaded(t); !out.Finished || out.FinishedOf != "bob" || out.FinishedSince.IsZero() || out.Rows != 0 {
		t.Errorf("--json: got %+v, want that bob's was finished, and no figures", out)
	}
	s.logged(t, "candidates load begun", `candidates load failed {"rows":0`)

	s.cutOff(t)
	load("n\n", good).want(t, 1, "of bob, since ", "This finishes it, and then compares. Go on?", "not agreed: nothing was changed")
	load("y\n", wrong).want(t, 1, finished)
	s.logged(t, "begun", "failed", "begun", `candidates load done {"rows":0`)

	s.cutOff(t)
	load("y\n", good).want(t, 0, finished, "in force, ")
	s.logged(t, "begun", "failed", "begun", "done", "begun", "done", "begun", `candidates load done {"rows":4`)
	load("", good, "--dry-run").want(t, 0, "dry run: nothing was changed")
}
