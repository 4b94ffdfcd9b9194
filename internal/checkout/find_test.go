package checkout_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"holdfast/internal/booking"
	"holdfast/internal/checkout"
)

// oneSeat is one candidate's seat as the ledger tells it.
type oneSeat struct {
	email                    string
	row                      booking.Row
	link                     string
	emailErr, rowErr, payErr error
	closed                   bool
}

func (s oneSeat) Email(context.Context, string) (string, error) { return s.email, s.emailErr }

func (s oneSeat) Row(context.Context, string) (booking.Row, time.Time, error) {
	return s.row, foundAt, s.rowErr
}

func (s oneSeat) PaymentOf(context.Context, string) (booking.Payment, error) {
	return booking.Payment{URL: s.link}, s.payErr
}

func (s oneSeat) ReadStatus(context.Context) (booking.Figures, error) {
	return booking.Figures{Open: !s.closed}, nil
}

var foundAt = time.Date(2026, 12, 1, 4, 0, 0, 0, time.UTC)

func TestFind_TellsTheSeatInWhateverPhaseItIs(t *testing.T) {
	t.Parallel()
	for phase, payable := range map[booking.Phase]bool{
		booking.PhaseNew: false, booking.PhasePayable: true, booking.PhaseHeld: true, booking.PhasePaying: false,
		booking.PhaseRefused: false, booking.PhasePaid: false,
	} {
		row := booking.Row{Attempt: unknownAttempt, Level: "N1", Phase: phase, Payment: "TR1", Deadline: foundAt.Add(time.Minute).UnixMilli()}
		f := checkout.Finder{Seats: oneSeat{email: "a@example.org", row: row, link: "https://pay.test/1"}, BookingURL: bookingURL}
		var dup *booking.DuplicateError
		if err := f.Find(t.Context(), "C1", "a@example.org"); !errors.As(err, &dup) {
			t.Fatalf("%s: got %v, want where the seat is", phase, err)
		}
		if dup.BookingURL != bookingURL("C1", row.Attempt) || (dup.PaymentURL != "") != payable || dup.Row != row || !dup.Now.Equal(foundAt) {
			t.Errorf("%s: got %+v, want the booking's page, and the payment's %t", phase, dup, payable)
		}
	}
}

func TestFind_WithoutTheLinkThereIsStillThePage(t *testing.T) {
	t.Parallel()
	row := booking.Row{Attempt: unknownAttempt, Phase: booking.PhaseHeld, Payment: "TR1", Deadline: foundAt.Add(time.Minute).UnixMilli()}
	f := checkout.Finder{Seats: oneSeat{email: "a@example.org", row: row, payErr: errDown}, BookingURL: bookingURL}
	var dup *booking.DuplicateError
	if err := f.Find(t.Context(), "C1", "a@example.org"); !errors.As(err, &dup) || dup.BookingURL == "" || dup.PaymentURL != "" {
		t.Errorf("got %v, %+v, want the booking's page and no link", err, dup)
	}
}

func TestFind_TellsNobodyElse(t *testing.T) {
	t.Parallel()
	row := booking.Row{Attempt: unknownAttempt, Phase: booking.PhaseHeld}
	for name, c := range map[string]struct {
		seats oneSeat
		want  error
	}{
		"another's e-mail":         {oneSeat{email: "b@example.org", row: row}, booking.ErrEmailMismatch},
		"unknown code":             {oneSeat{emailErr: booking.ErrNotFound, rowErr: booking.ErrNotFound}, booking.ErrInvalidCode},
		"no seat":                  {oneSeat{email: "a@example.org", rowErr: booking.ErrNotFound}, booking.ErrNotFound},
		"another's e-mail, closed": {oneSeat{email: "b@example.org", row: row, closed: true}, booking.ErrNotFound},
		"unknown code, closed":     {oneSeat{emailErr: booking.ErrNotFound, rowErr: booking.ErrNotFound, closed: true}, booking.ErrNotFound},
		"Redis down":               {oneSeat{emailErr: errDown}, booking.ErrTryAgain},
		"Redis empty":              {oneSeat{emailErr: booking.ErrNotFound, rowErr: booking.ErrLedgerUnknown}, booking.ErrTryAgain},
	} {
		f := checkout.Finder{Seats: c.seats, BookingURL: bookingURL}
		if err := f.Find(t.Context(), "C1", "a@example.org"); !errors.Is(err, c.want) || errors.Is(err, booking.ErrDuplicate) {
			t.Errorf("%s: got %v, want %v", name, err, c.want)
		}
	}
}
