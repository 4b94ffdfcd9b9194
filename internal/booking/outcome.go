package booking

import (
	"errors"
	"time"
)

// Outcomes a booking request can meet. httpapi has one table that turns each
// into a status and a slug; anything else is an opaque 500.
var (
	ErrInvalidRequest       = errors.New("request is malformed")
	ErrInvalidLevel         = errors.New("level is unknown")
	ErrInvalidCode          = errors.New("candidate code is not on the list")
	ErrEmailMismatch        = errors.New("e-mail is not the one on file")
	ErrDuplicate            = errors.New("candidate already has a seat")
	ErrLevelFull            = errors.New("level is full")
	ErrSoldOut              = errors.New("no seat is left")
	ErrNotOpen              = errors.New("booking is not open")
	ErrTryAgain             = errors.New("no answer can be given now")
	ErrPaymentUnavailable   = errors.New("the payment could not be created")
	ErrIdempotencyMismatch  = errors.New("idempotency key was used with another body")
	ErrBodyTooLarge         = errors.New("request body is too large")
	ErrUnsupportedMediaType = errors.New("content type is not supported")
	ErrNotFound             = errors.New("not found")
	ErrMethodNotAllowed     = errors.New("method is not allowed")
)

// Outcomes lists every sentinel a request can end with, for the test that
// holds httpapi's table complete.
func Outcomes() []error {
	return []error{
		ErrInvalidRequest, ErrInvalidLevel, ErrInvalidCode, ErrEmailMismatch, ErrDuplicate,
		ErrLevelFull, ErrSoldOut, ErrNotOpen, ErrTryAgain, ErrPaymentUnavailable,
		ErrIdempotencyMismatch, ErrBodyTooLarge, ErrUnsupportedMediaType, ErrNotFound,
		ErrMethodNotAllowed,
	}
}

var outcomes = Outcomes()

// IsOutcome tells whether a request can end with the error as it is. A bare
// sentinel, which most refusals are, costs a few comparisons.
func IsOutcome(err error) bool {
	for _, o := range outcomes {
		if err == o { //nolint:errorlint // the quick way; the loop below unwraps
			return true
		}
	}
	for _, o := range outcomes {
		if errors.Is(err, o) {
			return true
		}
	}
	return false
}

// Acknowledged answers of the seat ledger's scripts, other than success. A
// caller that gets one of these may rest an effect on it; an answer that was
// not acknowledged is ErrNotAcknowledged and says nothing.
var (
	ErrNotOwner       = errors.New("attempt does not own the seat")
	ErrHasPayment     = errors.New("seat already has a payment")
	ErrAlreadyPaid    = errors.New("seat is paid")
	ErrPaying         = errors.New("an execute call may be in flight")
	ErrRefused        = errors.New("payment was refused")
	ErrDeadlinePassed = errors.New("time to pay is over")
	ErrTooEarly       = errors.New("time to pay is not over")
	ErrTakenOver      = errors.New("reconciler has taken the payment over")
	ErrNoPayment      = errors.New("seat has no payment")
	ErrSecondPayment  = errors.New("seat is paid by another payment")
)

// ErrWouldAdmit is the answer of a check that takes nothing: a seat is free for
// this candidate.
var ErrWouldAdmit = errors.New("a seat would be admitted")

// LedgerAnswered tells whether an error is an acknowledged answer of the seat
// ledger, on which an effect may rest, and not the lack of one.
func LedgerAnswered(err error) bool {
	for _, a := range []error{
		ErrNotOwner, ErrHasPayment, ErrAlreadyPaid, ErrPaying, ErrRefused, ErrDeadlinePassed,
		ErrTooEarly, ErrTakenOver, ErrNoPayment, ErrSecondPayment,
	} {
		if errors.Is(err, a) {
			return true
		}
	}
	return false
}

// Refusals to put a sale into force.
var (
	// ErrCapBelowAdmitted: a cap would be below what is admitted.
	ErrCapBelowAdmitted = errors.New("cap is below the seats already admitted")
	// ErrLevelHasSeats: a level that has seats would go.
	ErrLevelHasSeats = errors.New("level has admitted seats and cannot be removed")
)

// ErrRefundedOtherwise says of a refund that it is done already, by another hand or
// with another transaction than is reported now: the money may have gone back
// twice, and a person must look.
var ErrRefundedOtherwise = errors.New("refund is done already, otherwise than reported")

// ErrNothingToPublish says that status.json is current, or that its throttle runs.
var ErrNothingToPublish = errors.New("nothing to publish")

// States in which the ledger gives no answer to rest on.
var (
	// ErrNotAcknowledged: too few replicas confirmed the step in time. Nothing
	// outside Redis may rest on it; the next signal or sweep repeats it.
	ErrNotAcknowledged = errors.New("not acknowledged by the replicas")
	// ErrLedgerUnknown: this Redis has no epoch. It is empty and decides nothing.
	ErrLedgerUnknown = errors.New("seat ledger has no epoch: run the sale's rebuild, or apply a first sale")
	// ErrLedgerDamaged: a counter or a row is missing or not what it must be.
	ErrLedgerDamaged = errors.New("seat ledger is damaged: run the audit")
)

// NotOpenError is ErrNotOpen with the scheduled opening.
type NotOpenError struct {
	// OpensAt is zero when no opening is scheduled.
	OpensAt time.Time
}

func (e *NotOpenError) Error() string { return ErrNotOpen.Error() }

// Unwrap makes errors.Is(err, ErrNotOpen) hold.
func (e *NotOpenError) Unwrap() error { return ErrNotOpen }

// DuplicateError is ErrDuplicate with what the candidate may be told of the
// seat they have.
type DuplicateError struct {
	Row Row
	// Now is the ledger's clock when it answered.
	Now time.Time
	// PaymentURL is set while the hold can be paid.
	PaymentURL string
	// BookingURL is set while the hold can be paid, once it is, and for somebody who
	// asked for it.
	BookingURL string
}

func (e *DuplicateError) Error() string { return ErrDuplicate.Error() }

// Unwrap makes errors.Is(err, ErrDuplicate) hold.
func (e *DuplicateError) Unwrap() error { return ErrDuplicate }
