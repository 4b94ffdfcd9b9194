package saleops

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"time"

	"holdfast/internal/booking"
)

// NoticeStore keeps the notifications, and what became of their money. Reads are
// consistent, booking.ErrNotFound says that there is none, and the first outcome of
// a notification stays.
type NoticeStore interface {
	Notification(ctx context.Context, id string) (booking.Notification, error)
	OpenNotifications(ctx context.Context) iter.Seq2[booking.Notification, error]
	CloseNotification(ctx context.Context, id string, outcome booking.NotificationOutcome, at time.Time) error
	Record(ctx context.Context, candidateHash, attempt string) (booking.Record, error)
	Refund(ctx context.Context, transaction string) (booking.Refund, error)
}

// NoticeLedger has the clock, and the list of looks.
type NoticeLedger interface {
	Now(ctx context.Context) (time.Time, error)
	NoticeDone(ctx context.Context, id string) error
}

// NoticeGateway tells what it knows of a transaction.
type NoticeGateway interface {
	Search(ctx context.Context, transaction string) (booking.TransactionAnswer, error)
}

// Notices are the gateway's notifications as an operator works on them: those that
// no sweep can bring to an end are closed by hand. Safe for concurrent use.
type Notices struct {
	Store  NoticeStore
	Ledger NoticeLedger
	// Gateway is asked before one is closed; without one that is said.
	Gateway NoticeGateway
}

const (
	noticeAsk = 15 * time.Second
	// recordLate is how old a notification must be before its record is not on its
	// way any more.
	recordLate = time.Hour
)

var (
	// ErrNoticeObjection refuses to close a notification by hand whose money may
	// still be decided about.
	ErrNoticeObjection = errors.New("there is an objection to closing the notification")
	errNoGateway       = errors.New("the gateway was not asked")
)

// Notice is an open notification, and why it is open.
type Notice struct {
	booking.Notification
	Age time.Duration
	// Why it is open, for a person.
	Why string
	// Objection says why nobody should close it by hand; empty when nothing can come
	// of it.
	Objection string
}

// Open lists the open notifications, first received first, and says which cannot be
// read. It changes nothing and asks the gateway nothing.
func (n *Notices) Open(ctx context.Context) (open []Notice, unreadable []error, err error) {
	now, err := n.Ledger.Now(ctx)
	if err != nil {
		return nil, nil, fmt.Errorf("list open notifications: %w", err)
	}
	open = []Notice{}
	for one, err := range n.Store.OpenNotifications(ctx) {
		switch {
		case errors.Is(err, booking.ErrUnreadable):
			unreadable = append(unreadable, err)
			continue
		case err != nil:
			return nil, nil, fmt.Errorf("list open notifications: %w", err)
		}
		notice, err := n.notice(ctx, one, now)
		if err != nil {
			return nil, nil, fmt.Errorf("list open notifications: %w", err)
		}
		open = append(open, notice)
	}
	return open, unreadable, nil
}

// notice says why a notification is open, by what store and clock say now.
func (n *Notices) notice(ctx context.Context, one booking.Notification, now time.Time) (Notice, error) {
	out := Notice{Notification: one, Age: max(0, now.Sub(one.ReceivedAt))}
	const itself = "the next look closes it"
	if one.Transaction != "" {
		switch refund, err := n.Store.Refund(ctx, one.Transaction); {
		case err == nil:
			out.Why, out.Objection = fmt.Sprintf("its money goes back, by a refund that is %s", refund.State), itself
			return out, nil
		case errors.Is(err, booking.ErrUnreadable):
			out.Why, out.Objection = "its money goes back, by a refund that cannot be read", itself
			return out, nil
		case !errors.Is(err, booking.ErrNotFound):
			return out, err
		}
	}
	hash, attempt, foreign := booking.ParseInvoice(one.Invoice)
	switch {
	case one.Unreadable != "":
		out.Why = "it cannot be read as a payment: " + one.Unreadable
		return out, nil
	case one.Invoice == "":
		out.Why = "it names no invoice"
		return out, nil
	case foreign != nil:
		out.Why = "its invoice is not one of ours"
		return out, nil
	}
	rec, err := n.Store.Record(ctx, hash, attempt)
	switch {
	case errors.Is(err, booking.ErrNotFound):
		out.Why = "its invoice is one of ours, and there is no record of it"
		if out.Age < recordLate {
			out.Objection = "its record may be on its way for an hour"
		}
	case errors.Is(err, booking.ErrUnreadable):
		out.Why, out.Objection = "its record cannot be read", "repair the record of attempt "+attempt
	case err != nil:
		return out, err
	case rec.State == booking.StatePaid && rec.Transaction == one.Transaction:
		out.Why, out.Objection = "its money is a paid seat", itself
	default:
		out.Why = fmt.Sprintf("its record is %s, and the gateway has not confirmed the transaction", rec.State)
		out.Objection = fmt.Sprintf("its money can be decided: seatctl bookings resolve %s --attempt %s --paid %s", rec.Code, attempt, one.Transaction)
	}
	return out, nil
}

// Closing is one notification, and the gateway's present word on its transaction.
type Closing struct {
	Notice
	Answer booking.TransactionAnswer
	// AskErr says why there is no answer.
	AskErr error
}

// Closed tells whether it was closed before the look.
func (c Closing) Closed() bool { return c.Outcome != "" }

// Look gathers what is known of a notification. booking.ErrNotFound when there is
// none. It changes nothing.
func (n *Notices) Look(ctx context.Context, id string) (Closing, error) {
	var c Closing
	one, err := n.Store.Notification(ctx, id)
	if err != nil {
		return c, err
	}
	c.Notification = one
	if c.Closed() {
		return c, nil
	}
	now, err := n.Ledger.Now(ctx)
	if err != nil {
		return c, fmt.Errorf("age of notification %s: %w", id, err)
	}
	if c.Notice, err = n.notice(ctx, one, now); err != nil {
		return c, fmt.Errorf("notification %s: %w", id, err)
	}
	if n.Gateway == nil || one.Transaction == "" {
		c.AskErr = errNoGateway
		return c, nil
	}
	call, cancel := context.WithTimeout(ctx, noticeAsk)
	defer cancel()
	c.Answer, c.AskErr = n.Gateway.Search(call, one.Transaction)
	return c, nil
}

// Close closes it as an anomaly, if it is still open, and returns it as it then is;
// mine tells whether this call did it. ErrNoticeObjection when something speaks
// against it and it is not forced. Safe to repeat. Off says why it is still on the
// list of looks, which takes it off at the next.
func (n *Notices) Close(ctx context.Context, c Closing, force bool) (now booking.Notification, mine bool, off, err error) {
	if c.Objection != "" && !force {
		return c.Notification, false, nil, fmt.Errorf("%w: %s", ErrNoticeObjection, c.Objection)
	}
	at, err := n.Ledger.Now(ctx)
	if err != nil {
		return c.Notification, false, nil, fmt.Errorf("close notification %s: %w", c.ID, err)
	}
	if err := n.Store.CloseNotification(ctx, c.ID, booking.NotifiedAnomaly, at); err != nil {
		return c.Notification, false, nil, err
	}
	if now, err = n.Store.Notification(ctx, c.ID); err != nil {
		return c.Notification, false, nil, fmt.Errorf("it is closed, and cannot be read again: %w", err)
	}
	mine = now.Outcome == booking.NotifiedAnomaly && now.ClosedAt.Equal(at)
	return now, mine, n.Ledger.NoticeDone(ctx, c.ID), nil
}
