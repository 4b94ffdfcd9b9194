// Package expiry is the safety net under the booking store's housekeeping. The store's
// TTL service deletes what nobody needs any more, and nothing else; but a record that it
// took while the seat was HELD, or after it was PAID, was needed, and the net puts it
// back as it was, without a TTL, and raises an alarm: something set a TTL that was
// wrong, or a seat was held for longer than any hold may last.
//
// It reads no ledger and never releases: whose seat it is the reconciler decides, who
// finds the record in its place. Fail mode: closed; a record that could not be put back
// is an error, and the caller repeats it. It reads no clock.
package expiry

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"holdfast/internal/booking"
)

// Store is what the net needs of the booking store, all of it safe to repeat and for
// concurrent use.
type Store interface {
	// PutBack puts the HELD record without a TTL if its attempt has none, and tells; a
	// record that is there is not touched.
	PutBack(ctx context.Context, rec booking.Record) (created bool, err error)
	// MarkPaid puts the record as PAID, without a TTL, or makes the one that is there
	// PAID. booking.ErrOtherThanOrdered, booking.ErrSecondPayment: another payment's is.
	MarkPaid(ctx context.Context, p booking.Paid) (booking.Record, error)
}

// Outcome is what became of a deletion.
type Outcome string

// The outcomes of Deleted. All but Ended are worth an alarm.
const (
	// Ended: the record was RELEASED. Housekeeping is for those.
	Ended Outcome = "ended"
	// RestoredHeld: it was HELD, and is back.
	RestoredHeld Outcome = "restored_held"
	// RestoredPaid: it was PAID, and there is a PAID record, perhaps since an earlier try.
	RestoredPaid Outcome = "restored_paid"
	// Present: it was HELD, and the attempt has a record again, by an earlier try or by
	// another hand, which was left alone.
	Present Outcome = "present"
)

// Net puts records back.
type Net struct {
	store Store
	log   *slog.Logger
}

// New makes the net.
func New(store Store, log *slog.Logger) *Net { return &Net{store: store, log: log} }

// Deleted takes a record as it was when the TTL service deleted it. Safe to repeat;
// after an error the caller does.
func (n *Net) Deleted(ctx context.Context, rec booking.Record) (Outcome, error) {
	if rec.State == booking.StateReleased {
		return Ended, nil
	}
	outcome, err := n.restore(ctx, rec)
	if err != nil {
		return "", fmt.Errorf("put back the record of %s that TTL deleted: %w", rec.Attempt, err)
	}
	if outcome == Present {
		n.log.WarnContext(ctx, "TTL deleted a record that was needed, and it is there again",
			"attempt", rec.Attempt, "state", rec.State, "ttl", rec.TTL)
		return outcome, nil
	}
	n.log.ErrorContext(ctx, "TTL deleted a record that was needed; it was put back: look why it had a TTL, or was held so long",
		"attempt", rec.Attempt, "state", rec.State, "ttl", rec.TTL)
	return outcome, nil
}

func (n *Net) restore(ctx context.Context, rec booking.Record) (Outcome, error) {
	if rec.State == booking.StatePaid {
		// Not only if absent: if somebody has put it as HELD since, it is PAID all the same,
		// as the ledger had said before there was this record.
		_, err := n.store.MarkPaid(ctx, booking.Paid{Record: rec, Transaction: rec.Transaction, PaidAt: rec.PaidAt})
		return RestoredPaid, err
	}
	rec.TTL = time.Time{}
	created, err := n.store.PutBack(ctx, rec)
	if !created {
		return Present, err
	}
	return RestoredHeld, err
}
