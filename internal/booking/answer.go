package booking

import "time"

// Held is the answer to an admitted request: a seat, and where to pay for it.
type Held struct {
	PaymentID   string
	PaymentURL  string
	BookingURL  string
	Level       string
	Attempt     string
	ExpiresAt   time.Time
	SecondsLeft int
}

// ViewState is what a candidate is told of their own booking.
type ViewState string

// What a booking can be to its candidate.
const (
	ViewHeld      ViewState = "held"
	ViewPaying    ViewState = "paying"
	ViewRefused   ViewState = "refused"
	ViewPaid      ViewState = "paid"
	ViewReleased  ViewState = "released"
	ViewRefundDue ViewState = "refund_due"
)

// Refusal is why a payment was refused, as far as it helps the payer.
type Refusal string

// Why a payment is refused; none of them when it is not known. No money has moved,
// but for the last.
const (
	// RefusalBalance: the payer's account holds too little.
	RefusalBalance Refusal = "balance"
	// RefusalCredentials: a PIN or one-time code was wrong or too late.
	RefusalCredentials Refusal = "credentials"
	// RefusalAccount: the payer's account may not pay.
	RefusalAccount Refusal = "account"
	// RefusalRefund: money came otherwise than ordered, and goes back.
	RefusalRefund Refusal = "refund"
)

// Refusals are all of them.
func Refusals() []Refusal {
	return []Refusal{RefusalBalance, RefusalCredentials, RefusalAccount, RefusalRefund}
}

// View is a booking as its candidate sees it.
type View struct {
	State ViewState
	// Refusal is told of a refused one, if it is known.
	Refusal     Refusal
	Level       string
	SecondsLeft int
	// PaymentURL is set while it can be paid.
	PaymentURL string
}

// SecondsLeft is the whole seconds from now to a deadline in Unix ms; never
// negative.
func SecondsLeft(deadline int64, now time.Time) int {
	return int(max(0, deadline-now.UnixMilli()) / 1000)
}
