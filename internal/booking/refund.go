package booking

import (
	"errors"
	"fmt"
	"time"
)

// RefundVersion is the version written into every refund record.
const RefundVersion = 1

// RefundState is how far the money has come on its way back.
type RefundState string

// The states of a refund. A refund that was sent is asked about before anything
// is sent again; one that is done is never touched again.
const (
	RefundDue  RefundState = "due"
	RefundSent RefundState = "sent"
	RefundDone RefundState = "done"
)

// ErrRefunded says that money pays for no seat and goes back: there is a refund
// record of it.
var ErrRefunded = errors.New("the money goes back: there is a refund record")

// MoneyKind says why completed money is no plain payment of its seat.
type MoneyKind string

// Money that goes through the ledger's late decision.
const (
	// MoneyLate: its attempt owns no seat any more.
	MoneyLate MoneyKind = "late"
	// MoneySecond: the seat is paid, by another transaction.
	MoneySecond MoneyKind = "second"
	// MoneyOther: it moved otherwise than ordered.
	MoneyOther MoneyKind = "other_than_ordered"
)

// Decision is what the ledger decided, once, of one transaction.
type Decision struct {
	// Paid: the attempt has its seat, paid by this transaction. Otherwise the money
	// goes back.
	Paid bool
	// Row is the paid seat; empty for a refund.
	Row Row
	// Reason is why the money goes back, one word of the late script; empty when paid.
	Reason string
	// At is the ledger's clock when it decided.
	At time.Time
}

// Refund is money that must go back, one for each transaction. Its key in the
// store is RefundKey. The JSON names and their meaning are docs/shapes.md.
type Refund struct {
	Version       int       `json:"v"`
	Transaction   string    `json:"transaction"`
	PaymentID     string    `json:"payment_id"`
	CandidateHash string    `json:"candidate_hash"`
	Attempt       string    `json:"attempt"`
	Level         string    `json:"level"`
	Amount        Money     `json:"amount"` // that moved, not what was ordered
	Currency      string    `json:"currency"`
	Kind          MoneyKind `json:"kind"`
	// Reason is the decision's word.
	Reason    string      `json:"reason"`
	State     RefundState `json:"state"`
	DecidedAt time.Time   `json:"decided_at"`
	// SentAt is when it was last about to be sent; Claim and ClaimUntil are the lease
	// of who does it.
	SentAt     time.Time `json:"sent_at,omitzero"`
	Claim      string    `json:"claim,omitempty"`
	ClaimUntil time.Time `json:"claim_until,omitzero"`
	// RefundTransaction is the gateway's own, of the money going back; DoneBy says
	// who ended it: "gateway", or the operator who settled it by hand, with Note.
	RefundTransaction string    `json:"refund_transaction,omitempty"`
	DoneAt            time.Time `json:"done_at,omitzero"`
	DoneBy            string    `json:"done_by,omitempty"`
	Note              string    `json:"note,omitempty"`
	// Trouble is the gateway's last word against it: a person must look.
	Trouble string `json:"trouble,omitempty"`
}

// RefundKey is the key of a transaction's refund record.
func RefundKey(transaction string) string { return "refund#" + transaction }

// NewRefund is the refund that a decision leaves.
func NewRefund(rec Record, c Charge, kind MoneyKind, d Decision) Refund {
	return Refund{
		Version: RefundVersion, Transaction: c.Transaction, PaymentID: c.PaymentID,
		CandidateHash: rec.CandidateHash, Attempt: rec.Attempt, Level: rec.Level,
		Amount: c.Amount, Currency: c.Currency, Kind: kind, Reason: d.Reason,
		State: RefundDue, DecidedAt: d.At.UTC(),
	}
}

// Order is the refund as the gateway takes it.
func (r Refund) Order() RefundOrder {
	return RefundOrder{
		PaymentID: r.PaymentID, Transaction: r.Transaction, Amount: r.Amount, Currency: r.Currency,
		SKU: "seat " + r.Level, Reason: "no seat: " + string(r.Kind),
	}
}

// Validate tells whether the refund can be one of ours; it says why not.
func (r Refund) Validate() error {
	switch {
	case r.Version != RefundVersion:
		return fmt.Errorf("refund version %d: this program reads version %d", r.Version, RefundVersion)
	case r.Transaction == "" || r.PaymentID == "":
		return errors.New("refund: transaction or payment is missing")
	case r.CandidateHash == "" || r.Attempt == "":
		return errors.New("refund: candidate_hash or attempt is missing")
	case r.Amount <= 0 || r.Currency == "":
		return errors.New("refund: amount or currency is missing")
	case r.State != RefundDue && r.State != RefundSent && r.State != RefundDone:
		return fmt.Errorf("refund: state %q is unknown", r.State)
	case r.DecidedAt.IsZero():
		return errors.New("refund: decided_at is missing")
	}
	return nil
}

// ClaimFor gives the claim the right to work on a refund that is not done until the
// given time, if nobody else's claim is running at now. False when it is not to be
// worked on by this claim. Repeated by the holder it renews. It is a step of the
// store's one conditional write, as are the three below: each tells whether it has
// changed anything, and says nothing of what is stored.
func (r *Refund) ClaimFor(claim string, now, until time.Time) (bool, error) {
	if claim == "" {
		return false, errors.New("claim is empty")
	}
	if r.State == RefundDone || r.Claim != "" && r.Claim != claim && now.Before(r.ClaimUntil) {
		return false, nil
	}
	r.Claim, r.ClaimUntil = claim, until
	return true, nil
}

// Send notes that the claim's holder is about to send it. SentAt becomes at, never an
// earlier time. ErrNotOwner when it is done, when the claim is another's, and when
// the claim's time is over at that time, since the next holder could then ask the
// gateway before our call has reached it.
func (r *Refund) Send(claim string, at time.Time) (bool, error) {
	switch {
	case at.IsZero():
		return false, errors.New("time is missing")
	case r.Claim != claim || !at.Before(r.ClaimUntil): // done, it has no lease
		return false, ErrNotOwner
	case r.State == RefundSent && !at.After(r.SentAt):
		return false, nil
	}
	r.State, r.SentAt = RefundSent, at
	return true, nil
}

// Finish ends it, whoever has claimed it; lease and trouble end with it. Done by the
// same hand with the same transaction it stays as it is, time and note too.
// ErrRefundedOtherwise when it is done by another hand or with another transaction:
// the money may have gone back twice, and a person must look.
func (r *Refund) Finish(by, refundTransaction, note string, at time.Time) (bool, error) {
	switch {
	case by == "" || at.IsZero() || refundTransaction == "" && note == "":
		return false, errors.New("who, when, or both transaction and note are missing")
	case r.State == RefundDone && r.RefundTransaction == refundTransaction && r.DoneBy == by:
		return false, nil
	case r.State == RefundDone:
		return false, fmt.Errorf("done with %q, not %q: %w", r.RefundTransaction, refundTransaction, ErrRefundedOtherwise)
	}
	r.State, r.DoneAt, r.DoneBy = RefundDone, at, by
	r.RefundTransaction, r.Note = refundTransaction, note
	r.Claim, r.ClaimUntil, r.Trouble = "", time.Time{}, ""
	return true, nil
}

// Hinder notes what stands against it and ends the claim's lease, also after its
// time; the state stays. ErrNotOwner when it is done or the claim is another's.
func (r *Refund) Hinder(claim, trouble string) (bool, error) {
	switch {
	case trouble == "":
		return false, errors.New("the trouble is missing")
	case r.Claim == "" && r.Trouble == trouble:
		return false, nil
	case claim == "" || r.Claim != claim: // done, it has neither trouble nor claim
		return false, ErrNotOwner
	}
	r.Trouble, r.Claim, r.ClaimUntil = trouble, "", time.Time{}
	return true, nil
}
