package booking

import (
	"context"
	"errors"
	"fmt"
	"time"
	"unicode/utf8"
)

// RefundOrder is the money of one transaction that is to be given back.
type RefundOrder struct {
	PaymentID   string
	Transaction string // that moved the money
	Amount      Money
	// Currency does not travel; the answer is compared with it.
	Currency string
	// SKU says what was sold, the level say, and Reason why the money goes back.
	// The gateway wants both, with at most 255 bytes each; neither names a person.
	SKU    string
	Reason string
}

// maxRefundText is what the gateway takes of a refund's two texts.
const maxRefundText = 255

// Validate tells whether the order can be sent at all. With amount and texts
// missing it would not be a refund but a question about one.
func (o RefundOrder) Validate() error {
	switch {
	case o.PaymentID == "" || o.Transaction == "":
		return errors.New("refund order: payment or transaction is missing")
	case o.Amount <= 0:
		return fmt.Errorf("refund order: amount %s is not above zero", o.Amount)
	case o.Currency == "":
		return errors.New("refund order: currency is missing")
	}
	for _, s := range []string{o.SKU, o.Reason} {
		if s == "" || len(s) > maxRefundText || !utf8.ValidString(s) {
			return fmt.Errorf("refund order: SKU and reason must be text of 1 to %d bytes", maxRefundText)
		}
	}
	return nil
}

// RefundAnswer is the gateway's clear word on a refund.
type RefundAnswer struct {
	// Done: the money has gone back, by Transaction. The fields down to
	// CompletedAt are set only then.
	//
	// Not done has a different weight for each call. From Refund: this call gave
	// nothing back, and the same order will not fare better; a person must look
	// (Code says at what). From RefundStatus: the gateway has no refund of this
	// transaction, so it may be sent.
	Done        bool
	Transaction string // of the refund
	Original    string // the transaction that was given back, if the answer names it
	Amount      Money
	Currency    string
	CompletedAt time.Time // zero when it could not be read; decides nothing
	// Code and Text are the gateway's own words, for logs.
	Code string
	Text string
}

// Check compares a refund that is done with what was ordered, in minor units. Its
// error names the difference: money went back otherwise than ordered, and a
// person must look.
func (a RefundAnswer) Check(ordered RefundOrder) error {
	switch {
	case !a.Done || a.Transaction == "":
		return fmt.Errorf("refund of %s: not done, or without a transaction of its own", ordered.Transaction)
	case a.Original != "" && a.Original != ordered.Transaction:
		return fmt.Errorf("refund of %s: %s was given back", ordered.Transaction, a.Original)
	case a.Amount != ordered.Amount || a.Currency != ordered.Currency:
		return fmt.Errorf("refund of %s: ordered %s %s, given back %s %s",
			ordered.Transaction, ordered.Amount, ordered.Currency, a.Amount, a.Currency)
	}
	return nil
}

// TransactionAnswer is what the gateway says of one transaction of the
// merchant's wallet, whoever began it and however.
type TransactionAnswer struct {
	// Found: the gateway knows the transaction. Not final when false: its books
	// may lag behind its notifications.
	Found bool
	// Completed: the money has moved. Any other state, known or not, is not paid
	// and not final.
	Completed   bool
	Transaction string
	Amount      Money
	Currency    string
	CompletedAt time.Time // zero when it could not be read; decides nothing
	// Reference is the Order.Reference of its payment where that is an invoice number
	// of ours, else empty: on money that came otherwise it is the payer's free text.
	// It leads to a payment to ask about, and decides nothing.
	Reference string
	// Code and Text are the gateway's own words, for logs.
	Code string
	Text string
}

// RefundGateway gives money back and tells what became of it. Errors are those
// of every gateway call: ErrNotSent (nothing happened) and ErrInDoubt (it may
// have happened), beside ErrGatewayOutage where the gateway as a whole is out.
// Safe for concurrent use.
type RefundGateway interface {
	// Refund sends the order, once. It is not safe to repeat. Before it is called
	// "sent" must be durable; after ErrInDoubt, and after a crash that left
	// "sent" behind, RefundStatus is asked, and the order is sent again only when
	// that says not done. After ErrNotSent it may be sent again. The gateway
	// takes refunds for about 15 days after the payment.
	Refund(ctx context.Context, o RefundOrder) (RefundAnswer, error)
	// RefundStatus asks what became of the refund of a transaction. It changes
	// nothing and is safe to repeat. A refund that a call has only just sent may
	// not be known yet: leave it at least that call's time before believing "not
	// done".
	RefundStatus(ctx context.Context, paymentID, transaction string) (RefundAnswer, error)
}
