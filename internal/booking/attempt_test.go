package booking_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"holdfast/internal/booking"
)

var start = time.Date(2026, 12, 1, 4, 0, 0, 0, time.UTC)

func TestInvoice_LeadsBackToTheAttempt(t *testing.T) {
	t.Parallel()
	hash, epoch := booking.CandidateHash("AB-1001"), booking.NewEpoch(start)
	attempt := booking.AttemptID(epoch, booking.NewAttemptSuffix(start))
	if got := booking.AttemptEpoch(attempt); got != epoch {
		t.Errorf("epoch of %s: got %q, want %q", attempt, got, epoch)
	}
	gotHash, gotAttempt, err := booking.ParseInvoice(booking.Invoice(hash, attempt))
	if err != nil || gotHash != hash || gotAttempt != attempt {
		t.Errorf("invoice: got %q, %q, %v, want %q, %q", gotHash, gotAttempt, err, hash, attempt)
	}
}

// The gateway takes invoice numbers of up to 255 characters, the queue
// deduplication ids of up to 128.
func TestInvoice_FitsGatewayAndQueue(t *testing.T) {
	t.Parallel()
	invoice := booking.Invoice(booking.CandidateHash("AB-1001"), booking.AttemptID(booking.NewEpoch(start), booking.NewAttemptSuffix(start)))
	if len(invoice) > 128 || strings.Trim(invoice, "abcdefghijklmnopqrstuvwxyz0123456789-") != "" {
		t.Errorf("invoice %q: got %d characters, want at most 128 of a-z, 0-9 and -", invoice, len(invoice))
	}
}

func TestParseInvoice_RefusesWhatIsNotOurs(t *testing.T) {
	t.Parallel()
	hash := booking.CandidateHash("AB-1001")
	epoch, suffix := booking.NewEpoch(start), booking.NewAttemptSuffix(start)
	good := booking.Invoice(hash, booking.AttemptID(epoch, suffix))
	for name, in := range map[string]string{
		"empty":                "",
		"hash alone":           hash,
		"hash and a dash":      hash + "-",
		"attempt alone":        booking.AttemptID(epoch, suffix),
		"epoch alone":          hash + "-" + epoch,
		"no epoch":             hash + "-" + suffix,
		"short hash":           good[1:],
		"long hash":            "0" + good,
		"capital hash":         strings.ToUpper(hash) + good[64:],
		"hash not hex":         "g" + good[1:],
		"capital attempt":      hash + strings.ToUpper(good[64:]),
		"letter not in use":    good[:len(good)-1] + "i",
		"short attempt":        good[:len(good)-1],
		"long attempt":         good + "0",
		"something behind":     good + "-0",
		"space before":         " " + good,
		"line break behind":    good + "\n",
		"a shop's own":         "INV-2026-0001",
		"dashes":               strings.Repeat("-", 104),
		"a very long text":     strings.Repeat("a", 1<<20),
		"another one appended": good + good,
	} {
		if h, a, err := booking.ParseInvoice(in); err == nil || h != "" || a != "" {
			t.Errorf("%s: got %q, %q, %v, want an error", name, h, a, err)
		}
	}
}

func TestAttempts_SortByTimeAsText(t *testing.T) {
	t.Parallel()
	epoch := booking.NewEpoch(start)
	var ids, epochs []string
	for i := range 200 {
		// Steps that carry over through several digits.
		ids = append(ids, booking.AttemptID(epoch, booking.NewAttemptSuffix(start.Add(time.Duration(i*i*i)*time.Millisecond+time.Duration(i)*time.Millisecond))))
		epochs = append(epochs, booking.NewEpoch(start.Add(time.Duration(i*i*i+i)*time.Second)))
	}
	if !slices.IsSorted(ids) {
		t.Error("attempt ids made one after the other: got another order as text, want the same")
	}
	if !slices.IsSorted(epochs) {
		t.Error("epochs made one after the other: got another order as text, want the same")
	}
	later := booking.AttemptID(booking.NewEpoch(start.Add(24*time.Hour)), booking.NewAttemptSuffix(start.Add(24*time.Hour)))
	if ids[len(ids)-1] >= later {
		t.Errorf("attempts of two sales: got %s after %s, want before", ids[len(ids)-1], later)
	}
}

func TestAttempts_AreNeverTheSameTwice(t *testing.T) {
	t.Parallel()
	seen := map[string]bool{}
	for range 20_000 { // in one and the same millisecond
		s := booking.NewAttemptSuffix(start)
		if seen[s] {
			t.Fatalf("suffix %s: got it twice, want it once", s)
		}
		seen[s] = true
	}
	if a, b := booking.NewEpoch(start), booking.NewEpoch(start); a == b {
		t.Errorf("epochs of one second: got %s twice, want two", a)
	}
}
