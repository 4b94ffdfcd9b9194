package booking_test

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"holdfast/internal/booking"
)

// The page of states holds every move that there is; these must never be there.
func TestPhase_SomeMovesWouldLoseASeatOrMoney(t *testing.T) {
	t.Parallel()
	const none = booking.Phase("")
	never := map[string][][2]booking.Phase{
		"a paid seat is never left": {{booking.PhasePaid, none}, {booking.PhasePaid, booking.PhaseNew}, {booking.PhasePaid, booking.PhaseRefused}, {booking.PhasePaid, booking.PhaseHeld}},
		"an execute call may be in flight: never released, never taken over by its candidate": {{booking.PhasePaying, none}, {booking.PhasePaying, booking.PhaseNew}, {booking.PhasePaying, booking.PhasePayable}},
		"a seat without a payment is not paid for":                                            {{booking.PhaseNew, booking.PhasePaying}, {booking.PhaseNew, booking.PhasePaid}, {booking.PhaseNew, booking.PhaseHeld}},
		"a live payment is not replaced by another":                                           {{booking.PhasePayable, booking.PhaseNew}, {booking.PhaseHeld, booking.PhaseNew}},
		"a refused payment is not paid again":                                                 {{booking.PhaseRefused, booking.PhasePaying}, {booking.PhaseRefused, booking.PhaseHeld}, {booking.PhaseRefused, booking.PhasePayable}},
		"a seat begins at its admission":                                                      {{none, booking.PhasePayable}, {none, booking.PhaseHeld}, {none, booking.PhasePaying}, {none, booking.PhaseRefused}},
		"a phase of the future is not known":                                                  {{"junk", none}, {"junk", booking.PhasePaid}, {booking.PhaseHeld, "junk"}},
	}
	for why, moves := range never {
		for _, m := range moves {
			if m[0].CanMove(m[1]) {
				t.Errorf("%q -> %q: got allowed, want refused: %s", m[0], m[1], why)
			}
		}
	}
}

func TestRecordState_PaidAndReleasedDoNotComeBackToLife(t *testing.T) {
	t.Parallel()
	for _, m := range [][2]booking.RecordState{
		{booking.StatePaid, booking.StateHeld}, {booking.StatePaid, booking.StateReleased}, {booking.StatePaid, ""},
		{booking.StateReleased, booking.StateHeld}, {"", booking.StateReleased}, {booking.StateHeld, ""}, {"junk", booking.StatePaid},
	} {
		if m[0].CanMove(m[1]) {
			t.Errorf("%q -> %q: got allowed, want refused", m[0], m[1])
		}
	}
}

func TestRow_LiveIsWhileAPaymentMayBeStarted(t *testing.T) {
	t.Parallel()
	deadline := start.Add(10 * time.Minute)
	for _, p := range booking.Phases() {
		row := booking.Row{Phase: p, Deadline: deadline.UnixMilli()}
		payable := p == booking.PhasePayable || p == booking.PhaseHeld
		if got := row.Live(deadline.Add(-time.Millisecond)); got != payable {
			t.Errorf("%s before its deadline: got live %v, want %v", p, got, payable)
		}
		if row.Live(deadline) {
			t.Errorf("%s at its deadline: got live, want not", p)
		}
	}
}

func TestSecondsLeft_AreWholeAndNeverNegative(t *testing.T) {
	t.Parallel()
	deadline := start.Add(10 * time.Minute).UnixMilli()
	for before, want := range map[time.Duration]int{
		10 * time.Minute: 600, 10*time.Minute - time.Millisecond: 599, time.Second: 1,
		999 * time.Millisecond: 0, 0: 0, -time.Hour: 0,
	} {
		if got := booking.SecondsLeft(deadline, time.UnixMilli(deadline).Add(-before)); got != want {
			t.Errorf("%s before the deadline: got %d, want %d", before, got, want)
		}
	}
}

func TestRow_HeldRecordIsValidAndMadeFromTheRowAlone(t *testing.T) {
	t.Parallel()
	row := booking.Row{
		Attempt: booking.AttemptID(booking.NewEpoch(start), booking.NewAttemptSuffix(start)),
		Level:   "N1", Phase: booking.PhasePayable, AdmittedAt: start.UnixMilli(), Hold: 600_000,
		Amount: 150000, Currency: "BDT", Deadline: start.Add(10 * time.Minute).UnixMilli(), Payment: "TR1",
	}
	got := row.HeldRecord("AB-1001", "https://gateway.example/pay/TR1", "sig")
	if err := got.Validate(); err != nil {
		t.Errorf("record of a row: got %v, want a valid one", err)
	}
	want := booking.Record{
		Version: 1, CandidateHash: booking.CandidateHash("AB-1001"), Attempt: row.Attempt, Epoch: row.Attempt[:12], Code: "AB-1001",
		Level: "N1", Amount: 150000, Currency: "BDT", PaymentID: "TR1", PaymentURL: "https://gateway.example/pay/TR1", Signature: "sig",
		Invoice: booking.CandidateHash("AB-1001") + "-" + row.Attempt, State: booking.StateHeld,
		AdmittedAt: start, Deadline: start.Add(10 * time.Minute), TTL: start.Add(10*time.Minute + 7*24*time.Hour),
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("record of a row (-want +got):\n%s", diff)
	}
}

// Ten minutes each: the look that ends the third extension calls a person.
func TestRow_APersonIsCalledAfterThreeExtensions(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		row               booking.Row
		inDoubt, decision bool
	}{
		{booking.Row{Phase: booking.PhasePaying}, false, false},
		{booking.Row{Phase: booking.PhasePaying, Looks: 1}, true, false},
		{booking.Row{Phase: booking.PhasePaying, Looks: booking.DoubtLooks}, true, false},
		{booking.Row{Phase: booking.PhasePaying, Looks: booking.DoubtLooks + 1}, true, true},
		{booking.Row{Phase: booking.PhaseHeld, Doubt: true}, true, false},
		{booking.Row{Phase: booking.PhasePaid, Looks: 9, Doubt: true}, false, false},
	} {
		if got := c.row.InDoubt(); got != c.inDoubt {
			t.Errorf("%+v: in doubt: got %t, want %t", c.row, got, c.inDoubt)
		}
		if got := c.row.ForAPerson(); got != c.decision {
			t.Errorf("%+v: for a person: got %t, want %t", c.row, got, c.decision)
		}
	}
}
