package booking

import (
	"errors"
	"fmt"
	"time"
)

// NotificationVersion is the version written into every notification.
const NotificationVersion = 1

// Notification is what the gateway said, on its own account, of one payment into
// the merchant's wallet: a genuine message, stored under its id before it is
// answered for. It is a hint to go and ask, and proves no payment. It comes for
// every payment, ours or not. The payer's number has no field here and is in none
// of them. The JSON names and their meaning are docs/shapes.md.
type Notification struct {
	Version int `json:"v"`
	// ID is the message id, the same in every redelivery.
	ID string `json:"id"`
	// ReceivedAt is our clock when the message was verified.
	ReceivedAt time.Time `json:"received_at"`
	// SentAt is the topic's own time stamp, which is signed: how late this came.
	SentAt time.Time `json:"sent_at"`
	// Transaction is the gateway's id of the money's movement.
	Transaction string `json:"transaction,omitempty"`
	// Invoice leads to the attempt's record. Empty when the gateway named none: then
	// the transaction has to be looked up.
	Invoice string `json:"invoice,omitempty"`
	// Amount is what the payer paid, coupons taken off.
	Amount   Money  `json:"amount,omitzero"`
	Currency string `json:"currency,omitempty"`
	// TransactionType tells a payment by our API from one by code, bank or voucher.
	TransactionType string `json:"transaction_type,omitempty"`
	// Status is the gateway's word, "Completed" for all that is known to be sent.
	Status string `json:"status,omitempty"`
	// Reference is the payment's reference; empty when it held a wallet's number.
	Reference string `json:"reference,omitempty"`
	// SaleAmount, CouponAmount and MerchantShare come with a coupon: the price before
	// it, what it was worth, and the merchant's part of that. Nil otherwise.
	SaleAmount    *Money `json:"sale_amount,omitempty"`
	CouponAmount  *Money `json:"coupon_amount,omitempty"`
	MerchantShare *Money `json:"merchant_share,omitempty"`
	// Unreadable says why the message could not be read as a payment, in words of
	// ours; the fields that could be read are set all the same. A person must look.
	Unreadable string `json:"unreadable,omitempty"`
	// Outcome and ClosedAt end its life: what its money became, in one word of
	// NotificationOutcome. Without one it is open, and sweeps work on it.
	Outcome  NotificationOutcome `json:"outcome,omitempty"`
	ClosedAt time.Time           `json:"closed_at,omitzero"`
}

// NotificationOutcome is what became of a notification's money.
type NotificationOutcome string

// How a notification's life ends.
const (
	NotifiedPaid    NotificationOutcome = "paid"    // its payment is a paid seat
	NotifiedRefund  NotificationOutcome = "refund"  // there is a refund record
	NotifiedAnomaly NotificationOutcome = "anomaly" // no money of ours, or for a person: see its log line
)

// Validate tells whether the notification can be one of ours; it says why not.
// One that is unreadable is valid: it is kept for a person.
func (n Notification) Validate() error {
	switch {
	case n.Version != NotificationVersion:
		return fmt.Errorf("notification version %d: this program reads version %d", n.Version, NotificationVersion)
	case n.ID == "":
		return errors.New("notification: id is missing")
	case n.ReceivedAt.IsZero() || n.SentAt.IsZero():
		return errors.New("notification: received_at or sent_at is missing")
	case n.Amount < 0:
		return errors.New("notification: amount is negative")
	case n.Unreadable == "" && (n.Transaction == "" || n.Currency == ""):
		return errors.New("notification: transaction or currency is missing, and it is not marked as unreadable")
	}
	return nil
}
