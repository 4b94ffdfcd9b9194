package seatctl_test

import (
	"encoding/json"
	"errors"
	"path/filepath"
	"testing"
	"time"

	"holdfast/internal/booking"
	"holdfast/internal/booking/bookingtest"
	store "holdfast/internal/store/sqlite"
)

// Refunds come back with the seats; one whose money pays for a seat is said, and no
// success.
func TestRebuild_TellsTheRefunds(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		both bool
		code int
		want []string
	}{
		"OfNoSeat":    {false, 0, []string{"refunds   1, and the ledger knows their decision again"}},
		"OfAPaidSeat": {true, 1, []string{"refunds   1, and", "BOTH      1 seats are paid by money that has a refund"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := stopped(t, 3*time.Minute)
			held, paid := s.two(t)
			s.owe(t, held, "TX9")
			if c.both {
				s.owe(t, paid, "TX1")
			}
			s.serve(t, 0)
			rebuild := func(args ...string) result {
				s.do(t, "DEL", "adm:epoch")
				s.do(t, "DEL", "adm:late")
				s.do(t, "DEL", "booking:open")
				return run(t, "", append([]string{"rebuild", "--data", s.data, "--reason", "drill", "--confirm", bookingtest.Sale().Name}, args...)...)
			}
			got := rebuild()
			got.want(t, c.code, append(c.want, "2: 1 paid, 1 held", "refunded  0, ended because their money goes back", "Booking is closed")...)
			wantLogged(t, s.data, ": rebuild "+bookingtest.Sale().Name+` (drill) begun {"epoch":""}`, "done {")

			got = rebuild("--json")
			var out struct{ Refunded, Decided, Contradicted int }
			if err := json.Unmarshal([]byte(got.stdout), &out); err != nil {
				t.Fatalf("rebuild --json: %v: %s", err, got.stdout)
			}
			if out.Decided != 1 || (out.Contradicted == 1) != c.both || got.code != c.code {
				t.Errorf("rebuild --json: got %+v, exit status %d, want one decided, contradicted %t, %d", out, got.code, c.both, c.code)
			}
		})
	}
}

// A Redis that was lost is not open; one that lost only its epoch would sell as soon as
// it has one again, with the allowlist that is still there.
func TestRebuild_RefusesWhileBookingIsOrWouldBeOpen(t *testing.T) {
	t.Parallel()
	s := stopped(t, 3*time.Minute)
	s.two(t)
	s.serve(t, 0)
	rebuild := func() result {
		return run(t, "", "rebuild", "--data", s.data, "--reason", "drill", "--confirm", bookingtest.Sale().Name)
	}
	noEpoch := func() {
		t.Helper()
		if epoch, err := s.gate.Epoch(t.Context()); !errors.Is(err, booking.ErrLedgerUnknown) {
			t.Errorf("epoch after a refused rebuild: got %q, %v, want none", epoch, err)
		}
	}
	s.do(t, "DEL", "adm:epoch")
	rebuild().want(t, 1, "would sell as soon as it is rebuilt", "nothing was changed")
	noEpoch()
	s.do(t, "DEL", "booking:open")
	s.do(t, "SET", "booking:opens_at", time.Now().Add(time.Hour).UnixMilli())
	rebuild().want(t, 1, "would sell as soon as it is rebuilt")
	noEpoch()
	if got := logged(t, s.data); len(got) != 0 {
		t.Errorf("operator's log: got %q, want nothing: nothing was begun", got)
	}
	s.do(t, "SET", "booking:open", "0") // closed, which wins over the time
	rebuild().want(t, 0, "rebuilt sale", "Booking is closed")

	// An earlier run whose end was not acknowledged is finished while it is closed.
	s.do(t, "SET", "adm:rebuild", "token")
	s.do(t, "SET", "booking:open", "1")
	rebuild().want(t, 1, "booking is open", "seatctl close")
	s.do(t, "SET", "booking:open", "0")
	rebuild().want(t, 0, "An earlier run")
	s.do(t, "SET", "booking:open", "1")
	rebuild().want(t, 1, "is not lost", "nothing was changed")
	wantLogged(t, s.data, "rebuild", "refused ")
}

// Redis has lost a reset and sold on: nobody but a person can say which sale runs, and
// the log has what was said.
func TestRebuild_TakesTheSaleThatIsNamed(t *testing.T) {
	t.Parallel()
	s, paid := ended(t, time.Hour)
	records, err := store.Open(t.Context(), filepath.Join(s.data, "store.db"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = records.Close() })
	begun := booking.NextEpoch(bookingtest.Epoch, s.Clock.Now())
	if err := records.MarkEpoch(t.Context(), booking.EpochMark{Version: booking.EpochMarkVersion, Epoch: begun, At: paid.Record.AdmittedAt.Add(-time.Second)}); err != nil {
		t.Fatal(err)
	}
	run(t, "", "audit", "--data", s.data).want(t, 1, "epoch", "Redis has lost that reset")
	rebuild := func(args ...string) result {
		return run(t, "", append([]string{"rebuild", "--data", s.data, "--reason", "reset lost", "--confirm", bookingtest.Sale().Name}, args...)...)
	}
	rebuild("--epoch", begun).want(t, 1, "is not lost", "nothing was changed")
	s.do(t, "DEL", "adm:epoch")
	s.do(t, "DEL", "adm:seen")
	rebuild().want(t, 1, "with --epoch", begun, bookingtest.Epoch, "nothing was changed")
	rebuild("--epoch", "1nmkmg0bbbbb").want(t, 1, "it has these: "+bookingtest.Epoch+", "+begun, "nothing was changed")
	rebuild("--epoch", bookingtest.Epoch, "--confirm", "other").want(t, 1, "What other sales have sold", "nothing was changed")
	if mark, err := records.EpochMark(t.Context()); err != nil || mark.Epoch != begun {
		t.Errorf("mark after refusals: got %+v, %v, want it as it was", mark, err)
	}
	rebuild("--epoch", bookingtest.Epoch).want(t, 0, "rebuilt sale demo, epoch "+bookingtest.Epoch, "1: 1 paid, 0 held")
	wantLogged(t, s.data, `{"chosen":"`+bookingtest.Epoch+`","epoch":""}`, "done {")
	s.audit(t)
}
