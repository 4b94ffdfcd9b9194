package reconcile

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"holdfast/internal/booking"
)

const (
	// endedBudget leaves most of a check's time to the records and rows, and lets the
	// sweeps go on soon; what is not reached is asked about by the next check.
	endedBudget = 15 * time.Second
	// silenceLimit is how many questions without an answer end the asking. Before the
	// first answer no more than these are under way.
	silenceLimit = 3
)

// endedAttempt names an attempt that is to be asked about again.
type endedAttempt struct{ hash, attempt string }

// What becomes of an ended attempt, beside confirmed, refunded, doubt and failed.
const (
	asked      = "asked"      // and nothing has moved
	unanswered = "unanswered" // asked again by the next check
)

// noteEnded keeps what must be asked about, from the scan that is made anyway:
// nothing more is read of a record whose time has not come.
func (c *check) noteEnded(rec booking.Record) {
	if c.Ended != nil && rec.AskAgain(c.now) {
		c.ended = append(c.ended, endedAttempt{rec.CandidateHash, rec.Attempt})
	}
}

// askEnded asks about the attempts whose time has come, in no order, so that none
// that gets no answer stands before the others. It is the last thing of a check,
// and what it leaves is no failure of the check: the record says so, and the next
// check goes on. A ledger that has lost time gives nobody a seat, so with that one
// nothing is asked.
func (c *check) askEnded(ctx context.Context) {
	if len(c.ended) == 0 || c.round.outage.Load() || c.out.Found[KindPaidRecord] > 0 {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, endedBudget)
	defer cancel()
	rand.Shuffle(len(c.ended), func(i, j int) { c.ended[i], c.ended[j] = c.ended[j], c.ended[i] })
	var silent, open atomic.Int64
	left := c.ended
	for width := min(silenceLimit, c.Width); len(left) > 0; width = min(2*width, c.Width) {
		if silent.Load() >= silenceLimit || c.hopeless() {
			break
		}
		n := c.askSome(ctx, left[:min(width, len(left))], &silent, &open)
		left = left[n:]
		if n == 0 {
			break // there is no turn within the time
		}
	}
	if n := len(left) + int(open.Load()); n > 0 {
		c.Log.WarnContext(ctx, "ended attempts are still to be asked about: the next cross-check goes on",
			"attempts", n, "without_an_answer", silent.Load())
	}
}

// askSome asks about some at a time, each in a turn of the fleet's rate, waits for
// the end of all, and returns for how many there was a turn. open counts those that
// are to be asked about again.
func (c *check) askSome(ctx context.Context, some []endedAttempt, silent, open *atomic.Int64) int {
	var group sync.WaitGroup
	defer group.Wait()
	for i, e := range some {
		if c.limit.Wait(ctx) != nil {
			return i
		}
		group.Go(func() {
			// Begun, it comes to its end: money that is found is also decided.
			own, cancel := context.WithTimeout(context.WithoutCancel(ctx), rowTimeout)
			defer cancel()
			action, err := c.askAgain(own, e)
			if err != nil {
				action = "failed"
				c.Log.WarnContext(own, "ended attempt was not decided", "attempt", e.attempt, "error", err)
			}
			switch action {
			case unanswered:
				silent.Add(1)
				fallthrough
			case "doubt", "failed":
				open.Add(1)
			}
			c.tried(action, err)
		})
	}
	return len(some)
}

// askAgain asks about one ended attempt and names what became of it. Money that has
// moved is late money: decided once for its transaction, a seat after all or one
// refund record. The question is noted when that is written, so a crash before
// repeats it. No answer and doubt are not noted.
func (c *check) askAgain(ctx context.Context, e endedAttempt) (string, error) {
	rec, err := c.Store.Record(ctx, e.hash, e.attempt)
	switch {
	case errors.Is(err, booking.ErrNotFound):
		return "moved", nil // housekeeping was faster
	case err != nil:
		return "", err
	case !rec.AskAgain(c.now):
		return "moved", nil // paid, or another runner was faster
	}
	did := asked
	charge, err := c.ask(ctx, rec.PaymentID)
	switch {
	case err != nil && charge.Status == "":
		return unanswered, nil
	case err != nil:
		return "doubt", nil
	case charge.Status == booking.ChargeCompleted:
		err := c.Settler.Confirm(ctx, rec.Code, rec, charge)
		switch {
		case err == nil:
			c.Changed()
			return "confirmed", nil // its record is PAID
		case errors.Is(err, booking.ErrRefunded):
			did = refunded
		case errors.Is(err, booking.ErrInDoubt):
			return "doubt", nil
		default:
			return "", err
		}
	}
	err = c.Ended.Asked(ctx, rec, c.now)
	if errors.Is(err, booking.ErrAlreadyPaid) || errors.Is(err, booking.ErrNotFound) {
		return "moved", nil
	}
	return did, err
}
