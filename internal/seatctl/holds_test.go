package seatctl_test

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"holdfast/internal/booking"
	"holdfast/internal/booking/bookingtest"
)

func (s *still) row(t *testing.T, b bookingtest.Booking) booking.Row {
	t.Helper()
	row, _, err := s.gate.Row(t.Context(), b.Code)
	if err != nil {
		t.Fatal(err)
	}
	return row
}

func TestHolds_LostTimeIsGivenBackOnce(t *testing.T) {
	t.Parallel()
	s := stopped(t, booking.DefaultHold+time.Minute)
	held, _ := s.two(t)
	s.serve(t, 0)
	extend := func(args ...string) result {
		return run(t, "", append([]string{"holds", "extend", "--data", s.data, "--reason", "drill"}, args...)...)
	}
	wantDeadline := func(more time.Duration) {
		t.Helper()
		rec, err := s.Store.Record(t.Context(), held.Record.CandidateHash, held.Attempt)
		if err != nil {
			t.Fatal(err)
		}
		want := held.Record.Deadline.Add(more)
		if row := s.row(t, held); row.Deadline != want.UnixMilli() || !rec.Deadline.Equal(want) {
			t.Errorf("deadline: got row %d, record %s, want %s", row.Deadline, rec.Deadline, want)
		}
	}

	extend("--by", "10m", "--dry-run").want(t, 0, "1 holds would be extended by 10m0s: drill", "1      do not wait for a payer")
	extend("--by", "10s").want(t, 0, "0 holds extended", "1      ended more than 10s before")
	wantDeadline(0)
	before := len(logged(t, s.data))
	extend("--by", "10m", "--dry-run").want(t, 0, "1 holds would be extended")
	if after := len(logged(t, s.data)); after != before {
		t.Errorf("operator's log after a dry run: got %d entries, want the %d before it", after, before)
	}
	got := extend("--by", "10m", "--json")
	var out struct {
		Run, By, Reason string
		Rows, Extended  int
	}
	if err := json.Unmarshal([]byte(got.stdout), &out); err != nil || out.Extended != 1 || out.Rows != 2 || out.By != "10m0s" || out.Reason != "drill" {
		t.Fatalf("--json: got %+v, %v, want 1 of 2 extended", got, err)
	}
	got.want(t, 0, "run "+out.Run, "1 holds get 10m0s more")
	wantLogged(t, s.data, `: holds extend `+out.Run+` (drill) begun {"already":0,"to_extend":1}`, `done {"already":0,"extended":1,"failed":0}`)
	wantDeadline(10 * time.Minute)
	extend("--run", out.Run).want(t, 0, "0 holds extended by 10m0s", "1      had been, by this run or a later one")
	wantDeadline(10 * time.Minute)

	extend("--run", out.Run, "--by", "5m").want(t, 2, "leave --by and --since out")
	extend("--run", strings.Replace(out.Run, bookingtest.Epoch, "1nmkmg0bbbbb", 1)).want(t, 1, "nobody knows whom it extended")
	extend("--run", "x").want(t, 2, "not one of ours")
	extend().want(t, 2, "--by")
	extend("--by", "1ms").want(t, 2, "whole seconds")
	run(t, "", "holds", "extend", "--data", s.data, "--by", "10m").want(t, 2, "--reason")
	run(t, "", "holds", "extend", "--data", s.data, "--by", "10m", "--reason", " ").want(t, 2, "say why")

	s.do(t, "HSET", "adm:seen", "C0005", "{}{")
	extend("--by", "10m").want(t, 1, "1 holds extended", "1 rows failed", "repeat it with --run")
	wantLogged(t, s.data, "begun", `failed {"already":0,"extended":1,"failed":1}`)
	wantDeadline(20 * time.Minute)
}

// What was given is no damage to an audit, and can be paid in.
func TestHolds_AuditHoldsAfterwards(t *testing.T) {
	t.Parallel()
	d := start(t, map[string]string{"PATH": t.TempDir()})
	paymentURL := d.book(t, 100001)
	run(t, "", "holds", "extend", "--data", d.data, "--by", "3h", "--reason", "drill").want(t, 0, "1 holds extended by 3h0m0s")
	run(t, "", "audit", "--gateway", "--data", d.data).want(t, 0, "every rule that was seen holds")
	d.pay(t, paymentURL)
	run(t, "", "audit", "--gateway", "--data", d.data).want(t, 0, "1 paid records, 1 paid rows", "every rule that was seen holds")
}
