package checkout

import (
	"context"
	"errors"
	"fmt"
	"time"

	"holdfast/internal/booking"
)

// Rows is what a view needs of the seat ledger; it only reads.
type Rows interface {
	Row(ctx context.Context, code string) (booking.Row, time.Time, error)
	PaymentOf(ctx context.Context, attempt string) (booking.Payment, error)
}

// Records finds an attempt's record, or booking.ErrNotFound, and its refunds.
type Records interface {
	Record(ctx context.Context, candidateHash, attempt string) (booking.Record, error)
	RefundsOf(ctx context.Context, candidateHash, attempt string) ([]booking.Refund, error)
}

// Viewer tells candidates about their own bookings. It changes nothing.
type Viewer struct {
	Rows    Rows
	Records Records
	// Refusal reads the gateway's code of a refused payment; "" for one that it does
	// not know. Nil: nobody is told why.
	Refusal func(code string) booking.Refusal
}

// View tells where a candidate's attempt stands. booking.ErrNotFound when there
// is no such booking; booking.ErrTryAgain when it cannot be told now.
func (v *Viewer) View(ctx context.Context, code, attempt string) (booking.View, error) {
	row, now, err := v.Rows.Row(ctx, code)
	if err != nil && !errors.Is(err, booking.ErrNotFound) {
		return booking.View{}, fmt.Errorf("view booking: %w: %w", booking.ErrTryAgain, err)
	}
	if err == nil && row.Attempt == attempt {
		return v.live(ctx, code, row, now)
	}
	if err == nil && row.Back != nil && row.Back.Attempt == attempt {
		// Another attempt is taking the seat over; until it has a payment, undo may
		// give the seat back to this one.
		return v.refused(ctx, code, attempt, booking.View{Level: row.Level, SecondsLeft: booking.SecondsLeft(row.Deadline, now)}), nil
	}
	taken := err == nil
	rec, err := v.Records.Record(ctx, booking.CandidateHash(code), attempt)
	if errors.Is(err, booking.ErrNotFound) {
		return booking.View{}, err
	}
	if err != nil {
		return booking.View{}, fmt.Errorf("view record: %w: %w", booking.ErrTryAgain, err)
	}
	view := booking.View{Level: rec.Level}
	switch {
	case rec.State == booking.StatePaid:
		view.State = booking.ViewPaid
	case rec.State == booking.StateReleased || taken:
		view.State, err = v.released(ctx, rec)
	default:
		view.State = booking.ViewPaying // its end is being decided
	}
	return view, err
}

// released tells money that is on its way back from a booking that simply ended.
func (v *Viewer) released(ctx context.Context, rec booking.Record) (booking.ViewState, error) {
	refunds, err := v.Records.RefundsOf(ctx, rec.CandidateHash, rec.Attempt)
	if err != nil {
		return "", fmt.Errorf("view refunds: %w: %w", booking.ErrTryAgain, err)
	}
	for _, r := range refunds {
		if r.State != booking.RefundDone {
			return booking.ViewRefundDue, nil
		}
	}
	return booking.ViewReleased, nil
}

// whyWithin is how long a candidate waits to hear why their payment was refused.
const whyWithin = 500 * time.Millisecond

// refused adds why, which the record knows. That the payment was refused the row says
// already: a record that cannot be read, now or at all, takes nothing of it.
func (v *Viewer) refused(ctx context.Context, code, attempt string, view booking.View) booking.View {
	view.State = booking.ViewRefused
	ctx, cancel := context.WithTimeout(ctx, whyWithin)
	defer cancel()
	rec, err := v.Records.Record(ctx, booking.CandidateHash(code), attempt)
	if err != nil {
		return view
	}
	switch detail := rec.RefusalDetail(); {
	case detail == booking.ReasonRefund:
		view.Refusal = booking.RefusalRefund
	case v.Refusal != nil:
		view.Refusal = v.Refusal(detail)
	}
	return view
}

func (v *Viewer) live(ctx context.Context, code string, row booking.Row, now time.Time) (booking.View, error) {
	deadline := row.Deadline
	if row.Phase == booking.PhaseNew && deadline == 0 {
		deadline = row.AdmittedAt + row.Hold // as it will be, once there is a payment
	}
	view := booking.View{Level: row.Level, SecondsLeft: booking.SecondsLeft(deadline, now)}
	switch row.Phase {
	case booking.PhaseNew, booking.PhasePayable, booking.PhaseHeld:
		view.State = booking.ViewHeld
		if !row.Live(now) {
			return view, nil
		}
		p, err := v.Rows.PaymentOf(ctx, row.Attempt)
		if err != nil && !errors.Is(err, booking.ErrNotFound) {
			return booking.View{}, fmt.Errorf("view payment link: %w: %w", booking.ErrTryAgain, err)
		}
		view.PaymentURL = p.URL
	case booking.PhasePaying:
		view.State = booking.ViewPaying
	case booking.PhaseRefused:
		return v.refused(ctx, code, row.Attempt, view), nil
	case booking.PhasePaid:
		view.State, view.SecondsLeft = booking.ViewPaid, 0
	default:
		return booking.View{}, fmt.Errorf("row is %q: %w: %w", row.Phase, booking.ErrTryAgain, booking.ErrLedgerDamaged)
	}
	return view, nil
}
