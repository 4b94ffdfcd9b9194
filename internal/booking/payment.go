package booking

import (
	"errors"
	"fmt"
	"time"
)

// PaymentTerms are the two properties that a payment port states of its gateway.
type PaymentTerms struct {
	// MovesAlone: money can move without an execute call of ours, so also after the
	// attempt has ended, and then its notification may be the only word of it.
	MovesAlone bool
	// Lapse is how long after its creation a payment can still be executed.
	Lapse time.Duration
}

// Order is what a payment is created for.
type Order struct {
	Invoice     string
	Amount      Money
	Currency    string
	CallbackURL string
	// Reference is the merchant's own, and may be shown on the payer's page: never an
	// e-mail address or a phone number. The gateway tells it with each transaction of
	// the payment, so that money under a wrong invoice number, or under none as in old
	// notifications, is found by it.
	Reference string
}

// Payment is what the gateway made of an order.
type Payment struct {
	ID  string
	URL string
	// Signature is the value inside the callback URLs that creation returned. It
	// binds a callback to this payment; it proves no payment.
	Signature string
}

// ChargeStatus is what the gateway says of a payment, in the few words that
// decisions are made on.
type ChargeStatus string

// What the gateway can say.
const (
	// ChargeCompleted: money has moved.
	ChargeCompleted ChargeStatus = "completed"
	// ChargeRefused: this payment will never complete (wrong PIN, insufficient
	// balance, state of the payer's account).
	ChargeRefused ChargeStatus = "refused"
	// ChargeUnfinished: execute was called before the payer had finished.
	ChargeUnfinished ChargeStatus = "unfinished"
	// ChargeOpen: the payment exists and has not completed; not final.
	ChargeOpen ChargeStatus = "open"
	// ChargeUnknown: the answer is in doubt, or a value this program does not
	// know. Never treated as paid, never as final.
	ChargeUnknown ChargeStatus = "unknown"
)

// Charge is the gateway's answer about one payment.
type Charge struct {
	Status      ChargeStatus
	PaymentID   string
	Invoice     string
	Transaction string
	Amount      Money
	Currency    string
	// Code and Text are the gateway's own words, for logs.
	Code string
	Text string
}

// Errors of a gateway call, told apart by what may have happened.
var (
	// ErrNotSent: the call never left, so nothing happened at the gateway
	// (no token, no slot, no connection).
	ErrNotSent = errors.New("gateway was not reached")
	// ErrInDoubt: the call left and no usable answer came. It may have happened.
	ErrInDoubt = errors.New("gateway gave no usable answer")
	// ErrGatewayOutage: the gateway as a whole gives no answers now (an HTTP 5xx, a
	// bare message, maintenance). It comes beside ErrNotSent or ErrInDoubt, and says
	// nothing of one payment.
	ErrGatewayOutage = errors.New("gateway is out of service")
	// ErrOtherThanOrdered: money moved otherwise than ordered (amount, currency,
	// or invoice). It never pays for the seat.
	ErrOtherThanOrdered = errors.New("payment completed otherwise than ordered")
)

// Check compares a completed charge with what was ordered: invoice, amount in
// minor units and currency. Its error is ErrOtherThanOrdered and names the first
// difference; it is ErrInDoubt when the answer is about another payment, or names
// no transaction: nothing is known of this one's money then.
func (c Charge) Check(ordered Record) error {
	switch {
	case c.PaymentID != ordered.PaymentID:
		return fmt.Errorf("payment %s answered as %s: %w", ordered.PaymentID, c.PaymentID, ErrInDoubt)
	case c.Transaction == "":
		return fmt.Errorf("payment %s: completed without a transaction id: %w", ordered.PaymentID, ErrInDoubt)
	case c.Invoice != ordered.Invoice:
		return fmt.Errorf("payment %s: invoice differs: %w", ordered.PaymentID, ErrOtherThanOrdered)
	case c.Amount != ordered.Amount || c.Currency != ordered.Currency:
		return fmt.Errorf("payment %s: ordered %s %s, paid %s %s: %w",
			ordered.PaymentID, ordered.Amount, ordered.Currency, c.Amount, c.Currency, ErrOtherThanOrdered)
	}
	return nil
}
