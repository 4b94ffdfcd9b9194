package seatctl_test

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"holdfast/internal/booking"
	"holdfast/internal/booking/bookingtest"
)

// The gateway gives no answer all the while: this is when a person must decide.
func TestBookings_APersonEndsADoubt(t *testing.T) {
	t.Parallel()
	s := stopped(t, 5*time.Minute)
	paid, over := s.Paying(t, 1, "N1", "payer", time.Minute), s.Paying(t, 2, "N1", "payer", time.Minute)
	held, busy := s.Held(t, 3, "N1"), s.Paying(t, 4, "N2", "payer", time.Hour)
	s.serve(t, 0)
	decide := func(stdin, code string, args ...string) result {
		return run(t, stdin, append([]string{"bookings", "resolve", code, "--data", s.data, "--reason", "portal"}, args...)...)
	}
	want := func(b bookingtest.Booking, phase booking.Phase, state booking.RecordState) {
		t.Helper()
		if row, got := s.row(t, b), s.State(t, b); row.Phase != phase || got != state {
			t.Errorf("%s: got row %s, record %s, want %s, %s", b.Code, row.Phase, got, phase, state)
		}
	}

	decide("", paid.Code, "--paid", "TX9").want(t, 1, "candidate", "row ", "record ", "HELD", "gateway ", "no clear answer",
		"does not confirm transaction TX9", "Go on?", "not agreed: nothing was changed")
	decide("no\n", paid.Code, "--not-paid").want(t, 1, "not agreed: nothing was changed")
	want(paid, booking.PhasePaying, booking.StateHeld)
	decide("yes\n", "  c0001 ", "--paid", "TX9").want(t, 0, "payment TR000001 is PAID by transaction TX9: portal", "mail is sent by a sweep")
	wantLogged(t, s.data, ": bookings resolve "+paid.Attempt+` (portal) begun {"phase":"paying","record":"HELD","payment":"TR000001"}`,
		`done {"phase":"paid","record":"PAID","payment":"TR000001","transaction":"TX9"}`)
	want(paid, booking.PhasePaid, booking.StatePaid)
	decide("", paid.Code, "--paid", "TX9", "--yes").want(t, 0, "is PAID")
	decide("", paid.Code, "--not-paid", "--yes").want(t, 1, "OBJECTION", "it is paid, by transaction TX9")
	decide("", over.Code, "--paid", "TX9", "--yes", "--force").want(t, 1, "somebody else's")

	got := decide("", over.Code, "--not-paid", "--yes", "--json")
	var out struct {
		Code, Attempt, Reason, Follows string
		Paid, Forced                   bool
		Objections, Warnings           []string
		After                          struct{ Phase, Record string }
	}
	if err := json.Unmarshal([]byte(got.stdout), &out); err != nil || got.code != 0 || out.Paid || out.Forced || len(out.Warnings) != 2 ||
		out.After.Phase != "refused" || out.After.Record != "RELEASED" || out.Attempt != over.Attempt {
		t.Fatalf("--json: got %d %+v, %v, want it refused, with the gateway's silence as warnings", got.code, got, err)
	}
	got.want(t, 0, "may start another payment until", "without a clear answer it is kept")
	want(over, booking.PhaseRefused, booking.StateReleased)

	decide("", held.Code, "--not-paid", "--yes").want(t, 1, "OBJECTION", "not in doubt: it is held")
	want(held, booking.PhaseHeld, booking.StateHeld)
	decide("", held.Code, "--not-paid", "--yes", "--force").want(t, 0, "is NOT PAID")
	want(held, booking.PhaseRefused, booking.StateReleased)
	decide("", busy.Code, "--not-paid", "--yes", "--force").want(t, 1, "not finished", "an execute call may be in flight")
	wantLogged(t, s.data, ": bookings resolve "+busy.Attempt, "failed ")
	for _, line := range logged(t, s.data) {
		if strings.Contains(line, busy.Code) || strings.Contains(line, booking.CandidateHash(busy.Code)) {
			t.Errorf("operator's log: got %s, want no candidate in it", line)
		}
	}
	want(busy, booking.PhasePaying, booking.StateHeld)

	decide("", "C0005", "--not-paid").want(t, 1, "not found: nothing was changed")
	decide("", "C0001", "--paid", "T X").want(t, 2, "no transaction looks like this")
	decide("", "C0001").want(t, 2, "--paid")
	decide("", "C0001", "--paid", "TX9", "--not-paid").want(t, 2, "--not-paid")
	run(t, "", "bookings", "resolve", "C0001", "--not-paid", "--reason", " ", "--data", s.data).want(t, 2, "say why")
}

// The seat is gone, the record is not; the candidate may have another seat by now.
func TestBookings_APersonEndsADoubtWithoutASeat(t *testing.T) {
	t.Parallel()
	s := stopped(t, 5*time.Minute)
	seat, back, over := s.Held(t, 1, "N1"), s.Held(t, 2, "N1"), s.Held(t, 3, "N1")
	for _, b := range []bookingtest.Booking{seat, back, over} {
		s.lose(t, b)
	}
	other := s.Held(t, 2, "N2")
	s.serve(t, 0)
	decide := func(stdin, code string, args ...string) result {
		return run(t, stdin, append([]string{"bookings", "resolve", code, "--data", s.data, "--reason", "portal"}, args...)...)
	}
	want := func(b bookingtest.Booking, state booking.RecordState) {
		t.Helper()
		if got := s.State(t, b); got != state {
			t.Errorf("record of %s: got %s, want %s", b.Code, got, state)
		}
	}

	decide("", seat.Code, "--paid", "TX1").want(t, 1, "none of attempt "+seat.Attempt, "HELD", "no clear answer",
		"the ledger decides whether it gets one after all, or the money goes back", "not agreed: nothing was changed")
	want(seat, booking.StateHeld)
	decide("y\n", seat.Code, "--paid", "TX1").want(t, 0, "is PAID by transaction TX1: portal", "mail is sent by a sweep")
	wantLogged(t, s.data, `begun {"phase":"","record":"HELD"`, `done {"phase":"paid","record":"PAID"`)
	want(seat, booking.StatePaid)

	decide("", back.Code, "--not-paid", "--yes").want(t, 1, "attempt "+back.Attempt+" of this candidate is HELD and owns no seat", "not in doubt: it is held")
	got := decide("", back.Code, "--attempt", back.Attempt, "--paid", "TX2", "--yes", "--json")
	got.want(t, 0, "the candidate's seat is held, by attempt "+other.Attempt+": it stays as it is", "seatctl refunds retry TX2")
	var out struct {
		Refund *booking.Refund
		After  struct{ Phase, Record string }
	}
	if err := json.Unmarshal([]byte(got.stdout), &out); err != nil || out.Refund == nil || out.Refund.Reason != "candidate" || out.After.Phase != "" || out.After.Record != "RELEASED" {
		t.Errorf("--json: got %s, %v, want a refund, and the record RELEASED", got.stdout, err)
	}
	want(back, booking.StateReleased)
	if row := s.row(t, other); row.Attempt != other.Attempt || row.Phase != booking.PhaseHeld {
		t.Errorf("the other seat: got %+v, want it as it was", row)
	}
	run(t, "", "refunds", "list", "--data", s.data).want(t, 0, "TX2", "1 open")
	decide("", back.Code, "--attempt", back.Attempt, "--paid", "TX2", "--yes").want(t, 0, "No seat could be given for it (candidate)")

	decide("y\n", over.Code, "--not-paid").want(t, 0, "is NOT PAID, and ends its record: it owns no seat", "Its record is ended")
	want(over, booking.StateReleased)
	decide("", over.Code, "--not-paid", "--yes").want(t, 2, "--attempt", over.Attempt)
	decide("", over.Code, "--attempt", "nothing", "--not-paid", "--yes").want(t, 1, "not found: nothing was changed")
}
