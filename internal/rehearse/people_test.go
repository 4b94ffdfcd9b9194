package rehearse_test

import (
	"testing"
	"time"

	"holdfast/internal/booking"
	"holdfast/internal/rehearse"
)

func TestNewCrowd_SameSeedSameCrowd(t *testing.T) {
	t.Parallel()
	o := rehearse.Options{Seed: 7, Scale: 0.05}
	one, other := rehearse.NewCrowd(o, saleAt(0.05)), rehearse.NewCrowd(o, saleAt(0.05))
	if !one.SameAs(other) {
		t.Error("got two crowds of one seed, want the same one twice")
	}
	o.Seed = 8
	if one.SameAs(rehearse.NewCrowd(o, saleAt(0.05))) {
		t.Error("got the same crowd of two seeds, want two")
	}
}

func TestNewCrowd_IsTheLaunch(t *testing.T) {
	t.Parallel()
	sale := saleAt(1)
	c := rehearse.NewCrowd(rehearse.Options{Seed: 1}, sale)
	plan := c.Plan()
	between := func(what string, least, most int) {
		t.Helper()
		if n := plan[what]; n < least || n > most {
			t.Errorf("%s: got %d, want %d to %d", what, n, least, most)
		}
	}
	between("slots", 50_000, 50_000)
	between("late", 3600, 4400)
	between("first", 40_000-plan["late"], 40_000-plan["late"])
	between("beside late", plan["late"], plan["late"])
	between("beside second", 1450, 1750)
	between("beside hang up", 700, 900)
	between("beside mistyped", 1050, 1350)
	between("beside stranger", 800, 800)
	between("beside bot", 400, 400)
	for _, l := range sale.Levels {
		between("wish "+l.ID, l.Cap*3/2, l.Cap*5/2)
	}
}

// Also with the smallest crowd that is promised to finish, everybody is there.
func TestNewCrowd_HasEveryHabitWhenSmall(t *testing.T) {
	t.Parallel()
	for seed := range uint64(20) {
		plan := rehearse.NewCrowd(rehearse.Options{Seed: seed, Scale: 0.05}, saleAt(0.05)).Plan()
		for _, what := range []string{"beside late", "beside second", "beside hang up", "beside mistyped", "beside stranger", "beside bot"} {
			if plan[what] < 10 {
				t.Errorf("seed %d: got %d of %q, want at least 10", seed, plan[what], what)
			}
		}
	}
}

// Who finds no place in a short rush comes after it, and nobody comes twice as a newcomer.
func TestNewCrowd_EverybodyComes(t *testing.T) {
	t.Parallel()
	for _, o := range []rehearse.Options{
		{Rate: 10, For: time.Second, Candidates: 100},
		{Rate: 1000, For: time.Second, Candidates: 100},
		{Rate: 10, For: time.Second, Candidates: 1},
	} {
		plan := rehearse.NewCrowd(o, saleAt(1)).Plan()
		if n := plan["first"] + plan["beside late"]; n != o.Candidates {
			t.Errorf("rate %.0f: got %d first bookings, want one of each of %d", o.Rate, n, o.Candidates)
		}
	}
}

func TestCandidates_AreAListThatCanBeLoaded(t *testing.T) {
	t.Parallel()
	list := rehearse.NewCrowd(rehearse.Options{Candidates: 3000}, saleAt(1)).Candidates()
	if len(list) != 3000 || list[0] != (booking.Candidate{Code: "AB-100001", Email: "candidate100001@example.org"}) {
		t.Fatalf("got %d, the first %v", len(list), list[0])
	}
	seen := map[string]bool{}
	for _, c := range list {
		code, err := booking.DefaultCodeRule().Normalize(c.Code)
		if err != nil || code != c.Code || seen[code] {
			t.Fatalf("%s: got %q (%v), want a code as it is, once", c.Code, code, err)
		}
		if mail, err := booking.NormalizeEmail(c.Email); err != nil || mail != c.Email {
			t.Fatalf("%s: got %q (%v), want an address as it is", c.Email, mail, err)
		}
		seen[code] = true
	}
}
