package seatctl

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"text/tabwriter"
	"time"
	"unicode"

	"holdfast/internal/app"
	"holdfast/internal/booking"
	"holdfast/internal/saleops"
)

type notificationsCommand struct {
	List  notificationsListCommand  `cmd:"" help:"List the notifications of the gateway that are open."`
	Close notificationsCloseCommand `cmd:"" help:"Close one of which neither seat nor refund can come."`
}

type notificationsListCommand struct {
	JSON bool `help:"Print one JSON document."`
}

// Help is kong's detailed help.
func (*notificationsListCommand) Help() string {
	return `Reads the notifications that are open, first received first, and says why each of
them is. It changes nothing and asks the gateway nothing. Sweeps work on them; what
is open for more than an hour is for a person, and breaks rule "signals" of the
audit.

Exit status: 0 listed, if it is nothing, too; 1 one cannot be read, and the others
are listed; 2 it could not be run.

Example:
  seatctl notifications list --data data/local`
}

// Run is the command.
func (c *notificationsListCommand) Run(s *session) (err error) {
	o, err := s.open(false)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, o.Close()) }()
	open, unreadable, err := o.Notices().Open(s.ctx)
	if err != nil {
		return err
	}
	if c.JSON {
		list := []notice{}
		for _, n := range open {
			list = append(list, tellNotice(n))
		}
		err = s.printJSON(struct {
			Notifications []notice `json:"notifications"`
		}{list})
	} else if len(open) > 0 || len(unreadable) == 0 {
		err = s.printNotices(open)
	}
	if err == nil && len(unreadable) > 0 {
		err = wrong(errors.Join(unreadable...))
	}
	return err
}

// notice is a notification as the commands tell it: no reference, which is the
// payer's free text.
type notice struct {
	ID          string        `json:"id"`
	ReceivedAt  time.Time     `json:"received_at"`
	AgeSeconds  int64         `json:"age_seconds"`
	Transaction string        `json:"transaction,omitempty"`
	Amount      booking.Money `json:"amount"`
	Currency    string        `json:"currency,omitempty"`
	Invoice     string        `json:"invoice,omitempty"`
	Why         string        `json:"why"`
	Objection   string        `json:"objection,omitempty"`
}

func tellNotice(n saleops.Notice) notice {
	return notice{
		ID: n.ID, ReceivedAt: n.ReceivedAt.UTC(), AgeSeconds: int64(n.Age / time.Second), Transaction: n.Transaction,
		Amount: n.Amount, Currency: n.Currency, Invoice: n.Invoice, Why: n.Why, Objection: n.Objection,
	}
}

func (s *session) printNotices(open []saleops.Notice) error {
	if len(open) == 0 {
		_, err := fmt.Fprintln(s.stdout, "no notification is open")
		return err
	}
	var b strings.Builder
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "MESSAGE\tRECEIVED\tAGE\tTRANSACTION\tAMOUNT\tINVOICE\tWHY IT IS OPEN")
	for _, n := range open {
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\t%s\n", printable(n.ID), when(n.ReceivedAt), n.Age.Round(time.Second),
			orDash(printable(n.Transaction)), moved(n.Notification), orDash(printable(n.Invoice)), printable(n.Why))
	}
	if err := w.Flush(); err != nil {
		return err
	}
	fmt.Fprintf(&b, "\n%d open, the oldest for %s\n", len(open), open[0].Age.Round(time.Second))
	_, err := fmt.Fprint(s.stdout, b.String())
	return err
}

func moved(n booking.Notification) string {
	return strings.TrimSpace(n.Amount.String() + " " + printable(n.Currency))
}

// printable keeps what strangers wrote from a terminal's control codes.
func printable(text string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}
		return '?'
	}, text)
}

type notificationsCloseCommand struct {
	ID     string `arg:"" help:"Message id, as the list tells it."`
	Reason string `help:"What its money is, and why nothing comes of it; kept in the operator's log. Name no person." required:"" placeholder:"TEXT"`
	Force  bool   `help:"Against the objection that it names."`
	Yes    bool   `help:"Do it without asking."`
	JSON   bool   `help:"Print one JSON document."`
}

// Help is kong's detailed help.
func (*notificationsCloseCommand) Help() string {
	return `For a notification of money that is nobody's here, or that a person has seen to. It
shows the notification, why it is open and what the gateway says of its transaction
now, and closes it as an anomaly if it is still open then, for the same reason. No
seat and no refund is made of it and no sweep looks at it again. Refused, unless
--force: one that a look can still close, or whose money can be decided with bookings
resolve.

Exit status: 0 closed as an anomaly, now or before; 1 refused, not agreed, or it was
closed as paid or refund; 2 it could not be run.

Example:
  seatctl notifications close 22b80b92-fdea-4c2c-8f9d-bdfb0c7bf324 --reason "shop till, not a booking"`
}

// closedNotice is what the command tells.
type closedNotice struct {
	notice
	Reason   string                      `json:"reason"`
	Forced   bool                        `json:"forced"`
	Outcome  booking.NotificationOutcome `json:"outcome"`
	ClosedAt time.Time                   `json:"closed_at"`
	// Closed: by this command; otherwise it was before.
	Closed bool `json:"closed"`
}

// Run is the command.
func (c *notificationsCloseCommand) Run(s *session) (err error) {
	c.Reason = strings.TrimSpace(c.Reason)
	if c.Reason == "" {
		return errors.New("--reason: say why")
	}
	o, err := s.open(true)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, o.Close()) }()
	return s.closeNotice(c, o)
}

func (s *session) closeNotice(c *notificationsCloseCommand, o *app.Operator) error {
	by, err := s.who(o)
	if err != nil {
		return err
	}
	notices := o.Notices()
	look, err := notices.Look(s.ctx, c.ID)
	switch {
	case errors.Is(err, booking.ErrNotFound), errors.Is(err, booking.ErrUnreadable):
		return wrong(fmt.Errorf("%w: nothing was changed", err))
	case err != nil:
		return err
	case look.Closed():
		return s.tellClosed(c, look, look.Notification, false)
	}
	if err := s.showNotice(look); err != nil {
		return err
	}
	if look.Objection != "" && !c.Force {
		return wrong(fmt.Errorf("refused: %s: nothing was changed", look.Objection))
	}
	if err := s.agreed(c.Yes, fmt.Sprintf("This closes it as an anomaly by the word of %s: nothing comes of its money here.", by)); err != nil {
		return err
	}
	var (
		now    booking.Notification
		mine   bool
		closed bool
	)
	err = s.mutate(o, mutation{
		What: "notifications close", Subject: look.ID, Reason: c.Reason,
		Before: closing{Transaction: look.Transaction},
	}, func(ctx context.Context) (any, error) {
		// Whoever answers a question may take an hour: a record or a refund may be there now.
		if again, err := notices.Look(ctx, c.ID); err != nil {
			return nil, wrong(fmt.Errorf("nothing was changed: %w", err))
		} else if !again.Closed() && (again.Why != look.Why || again.Objection != look.Objection) {
			return nil, refused(fmt.Errorf("refused: %w: why it is open: %s: nothing was changed", booking.ErrNotAsShown, printable(again.Why)))
		}
		var off, err error
		now, mine, off, err = notices.Close(ctx, look, c.Force)
		after := closing{look.Transaction, now.Outcome, mine && look.Objection != ""}
		switch {
		case err != nil:
			return after, wrong(fmt.Errorf("not known to be closed, repeat it: %w", err))
		case off != nil:
			fmt.Fprintf(s.stderr, "warning: a sweep takes it off its list at the next look: %v\n", off)
		}
		closed = true
		if now.Outcome != booking.NotifiedAnomaly {
			return after, refused(closedOtherwise(now))
		}
		return after, nil
	})
	if closed {
		err = cmp.Or(err, s.tellClosed(c, look, now, mine))
	}
	return err
}

// closing is what the operator's log has of a notification; no outcome is an open one.
type closing struct {
	Transaction string                      `json:"transaction,omitempty"`
	Outcome     booking.NotificationOutcome `json:"outcome,omitempty"`
	Forced      bool                        `json:"forced,omitempty"`
}

// tellClosed says how the notification has ended, by this command or before.
func (s *session) tellClosed(c *notificationsCloseCommand, look saleops.Closing, now booking.Notification, mine bool) error {
	at := now.ClosedAt.UTC()
	var err error
	if c.JSON {
		err = s.printJSON(closedNotice{
			notice: tellNotice(look.Notice), Reason: c.Reason, Forced: mine && look.Objection != "",
			Outcome: now.Outcome, ClosedAt: at, Closed: mine,
		})
	} else if mine {
		_, err = fmt.Fprintf(s.stdout, "%s  closed as anomaly at %s: %s\n", printable(now.ID), when(at), c.Reason)
	} else if now.Outcome == booking.NotifiedAnomaly {
		_, err = fmt.Fprintf(s.stdout, "%s  was closed as anomaly at %s: nothing was changed\n", printable(now.ID), when(at))
	}
	if err == nil && now.Outcome != booking.NotifiedAnomaly {
		err = wrong(closedOtherwise(now))
	}
	return err
}

func closedOtherwise(n booking.Notification) error {
	return fmt.Errorf("it was closed as %s at %s: nothing was changed", n.Outcome, when(n.ClosedAt))
}

// showNotice says what is known, before anything is decided.
func (s *session) showNotice(c saleops.Closing) error {
	w := tabwriter.NewWriter(s.stderr, 0, 0, 2, ' ', 0)
	fmt.Fprintf(w, "message\t%s, received %s, open for %s\n", printable(c.ID), when(c.ReceivedAt), c.Age.Round(time.Second))
	fmt.Fprintf(w, "money\t%s, transaction %s, invoice %s\n", moved(c.Notification), orDash(printable(c.Transaction)), orDash(printable(c.Invoice)))
	fmt.Fprintf(w, "why\t%s\n", printable(c.Why))
	switch a := c.Answer; {
	case c.AskErr != nil:
		fmt.Fprintf(w, "gateway\tno clear answer: %v\n", c.AskErr)
	case !a.Found:
		fmt.Fprintf(w, "gateway\tit does not know the transaction, code %s\n", orDash(a.Code))
	case a.Completed:
		fmt.Fprintf(w, "gateway\tcompleted, %s %s\n", a.Amount, a.Currency)
	default:
		fmt.Fprintf(w, "gateway\tnot completed, code %s\n", orDash(a.Code))
	}
	if c.Objection != "" {
		fmt.Fprintf(w, "OBJECTION\t%s\n", c.Objection)
	}
	return w.Flush()
}
