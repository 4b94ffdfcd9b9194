package booking

import "time"

// Phase is where a seat stands in the seat ledger.
type Phase string

// The phases of a row; docs/states.md draws their moves.
const (
	// PhaseNew: admitted; one request is creating the payment.
	PhaseNew Phase = "new"
	// PhasePayable: a payment is attached, its record is not known to be queued.
	PhasePayable Phase = "payable"
	// PhaseHeld: the record is queued; the payer has until the deadline.
	PhaseHeld Phase = "held"
	// PhasePaying: an execute call may be in flight.
	PhasePaying Phase = "paying"
	// PhaseRefused: the gateway finally refused this payment; the candidate may
	// start another until the deadline.
	PhaseRefused Phase = "refused"
	// PhasePaid: paid by the row's payment. Never left.
	PhasePaid Phase = "paid"
)

// Phases lists every phase, in the order of a seat's life.
func Phases() []Phase {
	return []Phase{PhaseNew, PhasePayable, PhaseHeld, PhasePaying, PhaseRefused, PhasePaid}
}

// phaseMoves are the moves that one script can make; leaving the ledger
// altogether (undo, release) is written as the empty phase.
var phaseMoves = map[Phase][]Phase{
	"":           {PhaseNew, PhasePaid},
	PhaseNew:     {PhasePayable, PhaseRefused, ""},
	PhasePayable: {PhaseHeld, PhasePaying, PhasePaid, ""},
	PhaseHeld:    {PhasePaying, PhasePaid, ""},
	PhasePaying:  {PhaseHeld, PhaseRefused, PhasePaid},
	PhaseRefused: {PhaseNew, PhasePaid, ""},
	PhasePaid:    {},
}

// CanMove tells whether a row may go from one phase to the other. The empty
// phase stands for "no row".
func (p Phase) CanMove(to Phase) bool {
	for _, q := range phaseMoves[p] {
		if q == to {
			return true
		}
	}
	return false
}

// Row is one taken seat: the value of adm:seen under the candidate's code. It
// moves only by script. The JSON names are fixed by docs/shapes.md.
type Row struct {
	// Attempt owns the seat; every move is conditional on it.
	Attempt string `json:"attempt"`
	// Level is the level whose seat this is.
	Level string `json:"level"`
	// Slot is the order of admission, for logs; not unique after a release.
	Slot int64 `json:"slot"`
	// Phase is where the seat stands.
	Phase Phase `json:"phase"`
	// AdmittedAt is when this attempt took or took over the seat, Unix ms.
	AdmittedAt int64 `json:"admitted_at"`
	// Hold is how long the payer has from admission, in ms.
	Hold int64 `json:"hold"`
	// Amount and Currency are what was ordered, in minor units.
	Amount   Money  `json:"amount"`
	Currency string `json:"currency"`
	// Deadline is the end of the time to pay, Unix ms; 0 before a payment exists.
	Deadline int64 `json:"deadline,omitempty"`
	// Payment is the gateway's payment id; "" before one is attached.
	Payment string `json:"payment,omitempty"`
	// Owner and Ends belong to PhasePaying: who executes, and the Unix ms after
	// which the reconciler may take over. TakenOver says that it has.
	Owner     string `json:"owner,omitempty"`
	Ends      int64  `json:"ends,omitempty"`
	TakenOver bool   `json:"taken_over,omitempty"`
	// EndedBy is the token whose end-pay left the row refused or held, so that a
	// repeat finds its own effect.
	EndedBy string `json:"ended_by,omitempty"`
	// Released says of PhaseRefused that the attempt's record is known to be ended;
	// before that nobody may take the seat over.
	Released bool `json:"released,omitempty"`
	// Doubt says that the row was rebuilt and that an execute call had been
	// announced for it: it is never released on one answer.
	Doubt bool `json:"doubt,omitempty"`
	// Transaction is the gateway's transaction id of a paid row.
	Transaction string `json:"transaction,omitempty"`
	// PaidAt is when the ledger first said paid, Unix ms.
	PaidAt int64 `json:"paid_at,omitempty"`
	// RecordDone and MailDone say what of a paid seat's after-work is finished.
	RecordDone bool `json:"record_done,omitempty"`
	MailDone   bool `json:"mail_done,omitempty"`
	// Looks counts the reconciler's extensions of this phase; Misses the
	// gateway's answers that never came since the last extension.
	Looks  int `json:"looks,omitempty"`
	Misses int `json:"misses,omitempty"`
	// UnfinishedAt is when the gateway first said "payer not finished" to the
	// reconciler in this phase, Unix ms.
	UnfinishedAt int64 `json:"unfinished_at,omitempty"`
	// Extended is the last run of `holds extend` that made the deadline later.
	Extended string `json:"extended,omitempty"`
	// Back is the refused attempt this one took the seat over from; undo goes
	// back to it.
	Back *RefusedAttempt `json:"back,omitempty"`
}

// RefusedAttempt is what a row needs to be what it was before a take-over.
type RefusedAttempt struct {
	Attempt    string `json:"attempt"`
	Payment    string `json:"payment"`
	AdmittedAt int64  `json:"admitted_at"`
}

// Live tells whether the row's payment may still be started at that time.
func (r Row) Live(now time.Time) bool {
	return (r.Phase == PhasePayable || r.Phase == PhaseHeld) && now.UnixMilli() < r.Deadline
}

// DoubtLooks is how many extensions in doubt a row gets, ten minutes each, before a
// person is called.
const DoubtLooks = 3

// InDoubt tells whether the seat is kept because nobody knows whether it is paid.
func (r Row) InDoubt() bool { return r.Phase != PhasePaid && (r.Looks > 0 || r.Doubt) }

// ForAPerson tells whether the seat is still in doubt when its three extensions are
// over. The look that finds it so alarms, and extends it once more.
func (r Row) ForAPerson() bool { return r.InDoubt() && r.Looks > DoubtLooks }

// HeldRecord is the record that the row's attempt leaves in the store when it
// is put there: what the queue message carries, made from the row alone, so
// that it can always be written again. Payment URL and signature, which only
// the stash has, are given by the caller and may be empty.
func (r Row) HeldRecord(code, paymentURL, signature string) Record {
	hash := CandidateHash(code)
	return Record{
		Version:       RecordVersion,
		CandidateHash: hash,
		Attempt:       r.Attempt,
		Epoch:         AttemptEpoch(r.Attempt),
		Code:          code,
		Level:         r.Level,
		Amount:        r.Amount,
		Currency:      r.Currency,
		PaymentID:     r.Payment,
		PaymentURL:    paymentURL,
		Signature:     signature,
		Invoice:       Invoice(hash, r.Attempt),
		State:         StateHeld,
		AdmittedAt:    time.UnixMilli(r.AdmittedAt).UTC(),
		Deadline:      time.UnixMilli(r.Deadline).UTC(),
		Mail:          MailNone,
		TTL:           HeldTTL(time.UnixMilli(r.Deadline)),
	}
}
