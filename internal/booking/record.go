package booking

import (
	"errors"
	"fmt"
	"strings"
	"time"
)

// RecordVersion is the version written into every record and queue message.
const RecordVersion = 1

// RecordState is where an attempt's record in the booking store stands.
type RecordState string

// The states of a record. HELD becomes PAID or RELEASED; RELEASED becomes PAID
// only because the ledger, acknowledged, has said paid.
const (
	StateHeld     RecordState = "HELD"
	StatePaid     RecordState = "PAID"
	StateReleased RecordState = "RELEASED"
)

var stateMoves = map[RecordState][]RecordState{
	"":            {StateHeld, StatePaid},
	StateHeld:     {StatePaid, StateReleased},
	StateReleased: {StatePaid},
	StatePaid:     {},
}

// CanMove tells whether a record may go from one state to the other. The empty
// state stands for "no record".
func (s RecordState) CanMove(to RecordState) bool {
	for _, q := range stateMoves[s] {
		if q == to {
			return true
		}
	}
	return false
}

// MailState says what is known of a paid booking's mail.
type MailState string

// The states of a booking's mail.
const (
	MailNone MailState = ""     // not owed: the booking is not paid
	MailDue  MailState = "due"  // owed, perhaps being sent under a claim
	MailSent MailState = "sent" // handed to the mail provider
)

// Record is one attempt in the booking store, and, in state HELD, the queue's
// message. The JSON names and their meaning are docs/shapes.md.
type Record struct {
	Version       int    `json:"v"`
	CandidateHash string `json:"candidate_hash"`
	Attempt       string `json:"attempt"`
	Epoch         string `json:"epoch"`
	Code          string `json:"code"`
	Level         string `json:"level"`
	Amount        Money  `json:"amount"`
	Currency      string `json:"currency"`
	PaymentID     string `json:"payment_id"`
	PaymentURL    string `json:"payment_url,omitempty"`
	Signature     string `json:"signature,omitempty"`
	Invoice       string `json:"invoice"`
	// RequestID is the id of the HTTP request that took the seat, for the log; "" where
	// the record was made without it, from the ledger's row.
	RequestID  string      `json:"request_id,omitempty"`
	State      RecordState `json:"state"`
	AdmittedAt time.Time   `json:"admitted_at"`
	Deadline   time.Time   `json:"deadline"`
	// ExecuteAt is when an execute call was last announced: from then on money may
	// move, and only the gateway's clear word ends the attempt.
	ExecuteAt   time.Time `json:"execute_at,omitzero"`
	PaidAt      time.Time `json:"paid_at,omitzero"`
	Transaction string    `json:"transaction,omitempty"`
	Reason      string    `json:"reason,omitempty"`
	// AskedAt is when the gateway was last asked about a payment whose attempt had
	// ended, and answered; zero when it was not since. AskAgain goes by it.
	AskedAt time.Time `json:"asked_at,omitzero"`
	Mail    MailState `json:"mail,omitempty"`
	// MailClaim and MailClaimUntil are the lease of the sender at work.
	MailClaim      string    `json:"mail_claim,omitempty"`
	MailClaimUntil time.Time `json:"mail_claim_until,omitzero"`
	// TTL is when housekeeping may delete the record; zero means never.
	TTL time.Time `json:"ttl,omitzero"`
}

// Validate tells whether the record can be one of ours; it says why not.
func (r Record) Validate() error {
	switch {
	case r.Version != RecordVersion:
		return fmt.Errorf("record version %d: this program reads version %d", r.Version, RecordVersion)
	case r.CandidateHash != CandidateHash(r.Code):
		return errors.New("record: candidate_hash is not the hash of code")
	case AttemptEpoch(r.Attempt) == "" || AttemptEpoch(r.Attempt) != r.Epoch:
		return errors.New("record: attempt and epoch do not belong together")
	case r.Invoice != Invoice(r.CandidateHash, r.Attempt):
		return errors.New("record: invoice does not belong to the attempt")
	case !requestIDForm(r.RequestID):
		return errors.New("record: request_id is not up to 64 letters, digits, - and _")
	case r.PaymentID == "":
		return errors.New("record: payment_id is missing")
	case r.Level == "" || r.Amount <= 0 || r.Currency == "":
		return errors.New("record: level, amount or currency is missing")
	case r.AdmittedAt.IsZero() || r.Deadline.IsZero():
		return errors.New("record: admitted_at or deadline is missing")
	case r.State != StateHeld && r.State != StatePaid && r.State != StateReleased:
		return errors.New("record: state is none of HELD, PAID and RELEASED")
	}
	return nil
}

// requestIDForm tells whether the text is fit for a log line as it is; none is.
func requestIDForm(s string) bool {
	return len(s) <= 64 && strings.Trim(s, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_") == ""
}

// HeldTTL is when a HELD record may be deleted: a week after its deadline,
// which is more than a day past anything that could still matter (the gateway
// executes a payment within 24 h, notifications are open for days).
func HeldTTL(deadline time.Time) time.Time { return deadline.Add(7 * 24 * time.Hour).UTC() }

// releasedKept is how long a RELEASED record is kept.
const releasedKept = 30 * 24 * time.Hour

// ReleasedTTL is when a RELEASED record may be deleted: 30 days after release.
func ReleasedTTL(released time.Time) time.Time { return released.Add(releasedKept).UTC() }

// ReleasedAt is when a RELEASED record was released, which its TTL tells; of one
// without a TTL it is the deadline.
func (r Record) ReleasedAt() time.Time {
	if r.TTL.IsZero() {
		return r.Deadline
	}
	return r.TTL.Add(-releasedKept)
}

// How long after its end an attempt is asked about again where money can move
// without our execute (PaymentTerms.MovesAlone): once, and once more.
const (
	askFirst  = time.Hour
	askSecond = 24 * time.Hour
)

// AskAgain tells whether the payment of a RELEASED record is to be asked about at
// that time: an hour after the release, and again a day after it, each once. A
// first question that comes after the day is both. The end is the release and not
// the deadline, which of a refused attempt may be older than what `holds extend`
// gave its seat. A question noted for a time to come was by a clock that has been
// put back since, and does not count.
func (r Record) AskAgain(now time.Time) bool {
	if r.State != StateReleased {
		return false
	}
	asked := r.AskedAt
	if asked.After(now.Add(askFirst)) {
		asked = time.Time{}
	}
	for _, after := range []time.Duration{askFirst, askSecond} {
		if due := r.ReleasedAt().Add(after); !now.Before(due) && asked.Before(due) {
			return true
		}
	}
	return false
}

// Reasons of a RELEASED record.
const (
	// ReasonRefused: the gateway finally refused the payment. Its code may follow.
	ReasonRefused = "refused"
	// ReasonLapsed: the time to pay was over.
	ReasonLapsed = "lapsed"
	// ReasonRefund: money came when the seat was gone, and goes back.
	ReasonRefund = "refund"
)

// ErrAnnounced says of a record's release that an execute call was announced
// after the record was read: what was learnt of the payment before may no longer
// be true. The caller reads the record, and asks, again.
var ErrAnnounced = errors.New("an execute call was announced after the record was read")

// Refused tells whether the record was released because its payment was refused:
// the seat stays the candidate's until the deadline.
func (r Record) Refused() bool {
	return r.State == StateReleased && (r.Reason == ReasonRefused || strings.HasPrefix(r.Reason, ReasonRefused+" "))
}

// RefusalDetail is what stands behind "refused": the gateway's code, ReasonRefund, a
// person's word, or nothing. "" for a record that is not Refused.
func (r Record) RefusalDetail() string {
	if !r.Refused() {
		return ""
	}
	return strings.TrimPrefix(strings.TrimPrefix(r.Reason, ReasonRefused), " ")
}

// Paid is the fact that moves a record to PAID: the ledger, acknowledged, has
// said that this payment paid for this attempt.
type Paid struct {
	Record      Record // as HELD; put as PAID if the store has none
	Transaction string
	PaidAt      time.Time
}
