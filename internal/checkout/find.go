package checkout

import (
	"context"
	"errors"
	"fmt"
	"time"

	"holdfast/internal/booking"
)

// findWithin bounds one look for a candidate's seat.
const findWithin = 2 * time.Second

// Seats is what finding a candidate's seat needs of the ledger; it only reads.
type Seats interface {
	// Email is the candidate's address on file, or booking.ErrNotFound.
	Email(ctx context.Context, code string) (string, error)
	Row(ctx context.Context, code string) (booking.Row, time.Time, error)
	PaymentOf(ctx context.Context, attempt string) (booking.Payment, error)
	ReadStatus(ctx context.Context) (booking.Figures, error)
}

// Finder finds the seat of somebody who has lost the way to it. It takes none.
type Finder struct {
	Seats Seats
	// BookingURL makes the booking URL of a candidate's attempt.
	BookingURL func(code, attempt string) string
}

// Find tells a candidate who gives code and e-mail of the seat they have, by the error
// that a second booking of theirs would hear: *booking.DuplicateError, with the booking's
// URL whatever its phase, and the payment's while it can be paid. Without a seat it is
// booking.ErrNotFound; booking.ErrInvalidCode and booking.ErrEmailMismatch as for a
// booking, while booking is open; booking.ErrTryAgain when it cannot be told now. Never nil, and safe to repeat.
func (f *Finder) Find(ctx context.Context, code, email string) error {
	ctx, cancel := context.WithTimeout(ctx, findWithin)
	defer cancel()
	// The row first: an empty Redis says so there, and has nobody's address either.
	row, now, err := f.Seats.Row(ctx, code)
	if err != nil && !errors.Is(err, booking.ErrNotFound) {
		return fmt.Errorf("find a seat: %w: %w", booking.ErrTryAgain, err)
	}
	seated := err == nil
	onFile, err := f.Seats.Email(ctx, code)
	switch {
	case errors.Is(err, booking.ErrNotFound):
		return f.whileOpen(ctx, booking.ErrInvalidCode)
	case err != nil:
		return fmt.Errorf("find a seat: %w: %w", booking.ErrTryAgain, err)
	case onFile != email:
		return f.whileOpen(ctx, booking.ErrEmailMismatch)
	case !seated:
		return booking.ErrNotFound
	}
	dup := &booking.DuplicateError{Row: row, Now: now, BookingURL: f.BookingURL(code, row.Attempt)}
	if row.Live(now) {
		// Without the link the booking's own page still has it.
		if p, err := f.Seats.PaymentOf(ctx, row.Attempt); err == nil {
			dup.PaymentURL = p.URL
		}
	}
	return dup
}

// whileOpen is that refusal, which a booking hears too while booking is open; else no
// more than that there is no seat: nobody learns who is on the list.
func (f *Finder) whileOpen(ctx context.Context, refusal error) error {
	figures, err := f.Seats.ReadStatus(ctx)
	switch {
	case err != nil:
		return fmt.Errorf("find a seat: %w: %w", booking.ErrTryAgain, err)
	case !figures.Open:
		return booking.ErrNotFound
	}
	return refusal
}
