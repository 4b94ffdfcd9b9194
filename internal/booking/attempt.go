package booking

import (
	"crypto/rand"
	"fmt"
	"strings"
	"time"
)

// crockford is an alphabet in ASCII order, so that ids sort by time as text.
const crockford = "0123456789abcdefghjkmnpqrstvwxyz"

const (
	epochLen  = 7 + 5        // seconds, then 25 random bits
	suffixLen = timeLen + 16 // milliseconds, then 80 random bits
	timeLen   = 10
	hashLen   = 64
)

// NewEpoch makes the identity of one sale: sortable by time to the second,
// random beyond it. It is written to adm:epoch once and carried by every
// attempt made under it.
func NewEpoch(now time.Time) string {
	b := make([]byte, epochLen)
	base32Time(b[:7], now.Unix())
	base32Random(b[7:])
	return string(b)
}

// NewAttemptSuffix makes the part of an attempt id that the caller of admit
// chooses; the script puts the sale's epoch before it. It is random, sorts by
// time, and must be used for one call of admit only.
func NewAttemptSuffix(now time.Time) string {
	b := make([]byte, suffixLen)
	base32Time(b[:timeLen], now.UnixMilli())
	base32Random(b[timeLen:])
	return string(b)
}

// AttemptID joins an epoch and a suffix as the admit script does.
func AttemptID(epoch, suffix string) string { return epoch + "-" + suffix }

// AttemptEpoch tells the sale's epoch that an attempt id carries; "" when the
// text is not an attempt id.
func AttemptEpoch(attempt string) string {
	epoch, suffix, ok := strings.Cut(attempt, "-")
	if !ok || !isCrockford(epoch, epochLen) || !isCrockford(suffix, suffixLen) {
		return ""
	}
	return epoch
}

// Invoice is the merchant's invoice number of an attempt, unique for ever; the
// queue's deduplication id is the same text.
func Invoice(candidateHash, attempt string) string { return candidateHash + "-" + attempt }

// ParseInvoice takes an invoice number apart, which leads to the attempt's
// record by a consistent read. A text that is not one of ours is an error.
func ParseInvoice(invoice string) (candidateHash, attempt string, err error) {
	candidateHash, attempt, ok := strings.Cut(invoice, "-")
	if !ok || len(candidateHash) != hashLen || strings.Trim(candidateHash, "0123456789abcdef") != "" || AttemptEpoch(attempt) == "" {
		return "", "", fmt.Errorf("invoice number %.120q is not one of ours", invoice)
	}
	return candidateHash, attempt, nil
}

func base32Time(b []byte, v int64) {
	for i := len(b) - 1; i >= 0; i-- {
		b[i] = crockford[v&31]
		v >>= 5
	}
}

func base32Random(b []byte) {
	_, _ = rand.Read(b) // never fails since Go 1.24
	for i := range b {
		b[i] = crockford[b[i]&31]
	}
}

func isCrockford(s string, width int) bool {
	return len(s) == width && strings.Trim(s, crockford) == ""
}
