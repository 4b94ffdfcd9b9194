package seatctl_test

import (
	"encoding/json"
	"testing"
	"time"

	"holdfast/internal/booking/bookingtest"
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
				return run(t, "", append([]string{"rebuild", "--data", s.data, "--reason", "drill", "--confirm", bookingtest.Sale().Name}, args...)...)
			}
			got := rebuild()
			got.want(t, c.code, append(c.want, "2: 1 paid, 1 held", "refunded  0, ended because their money goes back", "Booking is closed")...)

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
