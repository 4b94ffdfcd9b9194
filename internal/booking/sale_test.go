package booking_test

import (
	"strings"
	"testing"
	"time"

	"holdfast/internal/booking"
)

func goodSale() booking.Sale {
	return booking.Sale{
		Name: "demo-2026", Currency: "BDT", Cap: 20700, Hold: booking.DefaultHold,
		Levels: []booking.Level{{ID: "N1", Name: "N1 Advanced", Cap: 2400, Fee: 150000}, {ID: "N2", Name: "N2", Cap: 0, Fee: 1}},
	}
}

func TestSale_ValidateTellsEverythingAtOnce(t *testing.T) {
	t.Parallel()
	if err := goodSale().Validate(); err != nil {
		t.Errorf("good sale: got %v, want nil", err)
	}
	for _, hold := range []time.Duration{booking.MinHold, 10 * time.Minute, booking.MaxHold} {
		s := goodSale()
		s.Hold = hold
		if err := s.Validate(); err != nil {
			t.Errorf("hold of %s: got %v, want nil", hold, err)
		}
	}
	for want, spoil := range map[string]func(*booking.Sale){
		"name":             func(s *booking.Sale) { s.Name = "-x" },
		"currency":         func(s *booking.Sale) { s.Currency = "bdt" },
		"cap -1":           func(s *booking.Sale) { s.Cap = -1 },
		"cap 10000001":     func(s *booking.Sale) { s.Cap = 10_000_001 },
		"hold 0s":          func(s *booking.Sale) { s.Hold = 0 },
		"hold 999ms":       func(s *booking.Sale) { s.Hold = time.Second - time.Millisecond },
		"hold 25h":         func(s *booking.Sale) { s.Hold = 25 * time.Hour },
		"hold 1.0005s":     func(s *booking.Sale) { s.Hold = time.Second + 500*time.Microsecond },
		"at least one":     func(s *booking.Sale) { s.Levels = nil },
		"named twice":      func(s *booking.Sale) { s.Levels[1].ID = "N1" },
		`level "a b"`:      func(s *booking.Sale) { s.Levels[0].ID = "a b" },
		`level ""`:         func(s *booking.Sale) { s.Levels[0].ID = "" },
		`level "N1": cap`:  func(s *booking.Sale) { s.Levels[0].Cap = -1 },
		`level "N1": fee`:  func(s *booking.Sale) { s.Levels[0].Fee = 0 },
		`level "N1\n": wa`: func(s *booking.Sale) { s.Levels[0].ID = "N1\n" },
	} {
		s := goodSale()
		spoil(&s)
		if err := s.Validate(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("sale with bad %s: got %v, want it named", want, err)
		}
	}
	err := booking.Sale{}.Validate()
	for _, want := range []string{"name", "currency", "hold", "levels"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("empty sale: got %v, want %s among the problems", err, want)
		}
	}
}

func TestSale_LevelsAreFoundByID(t *testing.T) {
	t.Parallel()
	s := goodSale()
	if l, ok := s.Level("N2"); !ok || l.Fee != 1 {
		t.Errorf("level N2: got %+v, %v, want the second one", l, ok)
	}
	if _, ok := s.Level("n2"); ok {
		t.Error("level n2: got one, want none: ids are compared as they are")
	}
	if got := strings.Join(s.LevelIDs(), ","); got != "N1,N2" {
		t.Errorf("level ids: got %s, want N1,N2", got)
	}
}
