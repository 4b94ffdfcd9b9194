package booking_test

import (
	"encoding/json"
	"os"
	"strings"
	"testing"
	"time"

	"holdfast/internal/booking"
)

func TestNextEpoch_SortsBehindTheOneBefore(t *testing.T) {
	t.Parallel()
	at := time.Unix(1_800_000_000, 0)
	before := booking.NewEpoch(at)
	for name, now := range map[string]time.Time{
		"later": at.Add(time.Hour), "the same second": at, "put back": at.Add(-24 * time.Hour), "put back far": time.Unix(1, 0),
	} {
		for range 100 { // the end is random
			if got := booking.NextEpoch(before, now); got <= before {
				t.Fatalf("%s: got %s, want one behind %s", name, got, before)
			}
		}
	}
	if got, want := booking.NextEpoch("", at)[:7], before[:7]; got != want {
		t.Errorf("the first epoch: got the time %s, want %s", got, want)
	}
	if got, want := booking.NextEpoch(before, at.Add(time.Hour))[:7], booking.NewEpoch(at.Add(time.Hour))[:7]; got != want {
		t.Errorf("an hour later: got the time %s, want %s", got, want)
	}
}

func TestPurge_LeavesWhatIsNotOver(t *testing.T) {
	t.Parallel()
	for _, state := range []booking.RefundState{booking.RefundDue, booking.RefundSent} {
		r := booking.Refund{State: state, CandidateHash: "hash", Note: "note"}
		was := r
		if changed, err := r.Purge(); err == nil || changed || r != was {
			t.Errorf("refund that is %s: got %+v, %t, %v, want an error and no change", state, r, changed, err)
		}
	}
	n := booking.Notification{Invoice: "invoice", Reference: "words"}
	if changed, err := n.Purge(); err == nil || changed || n.Invoice == "" {
		t.Errorf("open notification: got %+v, %t, %v, want an error and no change", n, changed, err)
	}
}

func TestPurge_TakesOutTheNamesAndKeepsTheMoney(t *testing.T) {
	t.Parallel()
	for by, want := range map[string]string{"gateway": "gateway", "alice": "operator"} {
		r := booking.Refund{State: booking.RefundDone, Transaction: "TX", Amount: 5, CandidateHash: "hash", Note: "for Bob", DoneBy: by}
		changed, err := r.Purge()
		if err != nil || !changed || r.CandidateHash != booking.Purged || r.Note != "" || r.DoneBy != want || r.Transaction != "TX" || r.Amount != 5 {
			t.Errorf("refund done by %s: got %+v, %t, %v, want no name in it, done by %s", by, r, changed, err, want)
		}
		if changed, err := r.Purge(); err != nil || changed {
			t.Errorf("purged again: got %t, %v, want no change", changed, err)
		}
	}
}

// What docs/shapes.md shows is what is stored.
func TestEpochMark_IsAsDocumented(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../docs/shapes.md")
	if err != nil {
		t.Fatal(err)
	}
	_, sample, _ := strings.Cut(string(page), "```json epoch\n")
	sample, _, _ = strings.Cut(sample, "\n")
	var m booking.EpochMark
	if err := json.Unmarshal([]byte(sample), &m); err != nil || m.Validate() != nil {
		t.Fatalf("sample %q: got %+v, %v, %v, want a valid mark", sample, m, err, m.Validate())
	}
	if text, err := json.Marshal(m); err != nil || string(text) != sample {
		t.Errorf("mark: got %s, %v, want %s", text, err, sample)
	}
}
