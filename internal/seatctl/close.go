package seatctl

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"holdfast/internal/app"
	"holdfast/internal/booking"
	"holdfast/internal/saleops"
)

type closeCommand struct {
	Reason string        `help:"Why; kept in the operator's log." required:"" placeholder:"TEXT"`
	Wait   time.Duration `help:"How long to wait for what is missing." default:"30s" placeholder:"DURATION"`
	JSON   bool          `help:"Print one JSON document."`
}

// Help is kong's detailed help.
func (*closeCommand) Help() string {
	return `Closes booking at once, and forgets a scheduled opening. Seats that are held can
still be paid.

It is done when no further admission is possible, which is: the replicas have
acknowledged the switch, so that every later request is refused by its script, and
two counts after it show no further seat; and when status.json says that booking is
closed. While one of the two is missing it tries again for as long as --wait says,
then tells which. It says what it does and does not ask: it is how a sale is stopped
in a hurry, and open takes it back. So it also closes where the operator's log does
not take it (the booking store is away, say), tells so, and tries that again at its
end. It may be repeated.

Exit status: 0 both; 1 it says what is missing, or closed and not in the log; 2 it
could not be run.

Example:
  seatctl close --reason "gateway is out" --data data/local`
}

// closed is what the command tells.
type closed struct {
	Sale   string `json:"sale"`
	Reason string `json:"reason"`
	// WasOpen and Forgot say how the switch stood.
	WasOpen *bool     `json:"was_open"` // nil: it could not be read
	Forgot  time.Time `json:"forgot_opening_at,omitzero"`
	saleops.Switched
}

// Run is the command.
func (c *closeCommand) Run(s *session) (err error) {
	switch {
	case strings.TrimSpace(c.Reason) == "":
		return errors.New("--reason: say why")
	case c.Wait < 0:
		return errors.New("--wait: want 0s or more")
	}
	o, err := s.open(false)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, o.Close()) }()
	return s.closeBooking(c, o, o.Switch(nil))
}

func (s *session) closeBooking(c *closeCommand, o *app.Operator, sw *saleops.Switch) error {
	// What cannot be read is no reason not to close.
	out := closed{Reason: c.Reason, Sale: "(unknown)"}
	if sale, err := o.Gate.Sale(s.ctx); err == nil {
		out.Sale = sale.Name
	}
	var before any // nothing, of a switch that nobody has read
	was, err := o.Gate.ReadStatus(s.ctx)
	switch {
	case errors.Is(err, booking.ErrLedgerUnknown):
		return wrong(fmt.Errorf("%w: it sells nothing, and has nothing to close", err))
	case err != nil:
		fmt.Fprintf(s.stderr, "how the switch stands cannot be read: %v\n", err)
	default:
		before, out.WasOpen, out.Forgot = switchState(was), &was.Open, was.OpensAt
	}
	what := fmt.Sprintf("This closes booking of sale %s, which is open, with %d seats admitted.", out.Sale, was.Total)
	switch {
	case err != nil:
		what = fmt.Sprintf("This closes booking of sale %s.", out.Sale)
	case !was.OpensAt.IsZero():
		what = fmt.Sprintf("This forgets the opening of sale %s that is scheduled %s.", out.Sale, whenIn(was.OpensAt, was.At))
	case !was.Open:
		what = fmt.Sprintf("Booking of sale %s is closed; this closes it once more.", out.Sale)
	}
	fmt.Fprintln(s.stderr, what)
	m := mutation{What: "close", Subject: out.Sale, Reason: c.Reason, Before: before, Anyway: true}
	err = s.mutate(o, m, func(ctx context.Context) (any, error) {
		out.Switched, err = sw.Close(ctx, c.Wait)
		switch {
		case err == nil && !out.Acknowledged:
			err = fmt.Errorf("close booking: %w", booking.ErrNotAcknowledged)
		case err == nil && len(out.Missing) > 0:
			err = errMissing
		}
		return out.Switched, err
	})
	if c.JSON {
		err = errors.Join(err, s.printJSON(out))
	} else if out.Acknowledged {
		fmt.Fprint(s.stdout, tellClosed(out))
	}
	if len(out.Missing) > 0 {
		text := fmt.Errorf("missing: %s: repeat it", strings.Join(out.Missing, "; "))
		// More than that something is missing is told too: that the log has no end, say.
		if err != nil && err != errMissing { //nolint:errorlint // as it is, with nothing around it
			text = fmt.Errorf("%w; %w", text, err)
		}
		return wrong(text)
	}
	return err
}

var errMissing = errors.New("booking is closed, and not all of it is shown")

func tellClosed(c closed) string {
	var b strings.Builder
	fmt.Fprintf(&b, "booking of sale %s is closed: %s\n", c.Sale, c.Reason)
	if !c.Forgot.IsZero() {
		fmt.Fprintf(&b, "  forgotten       the opening that was scheduled for %s\n", when(c.Forgot))
	}
	mark := map[bool]string{true: "yes", false: "NO"}
	fmt.Fprintf(&b, "  acknowledged    %s\n", mark[c.Acknowledged])
	fmt.Fprintf(&b, "  none admitted   %s, %d seats at %s\n", mark[c.NoneAdmitted], c.Admitted, when(c.At))
	fmt.Fprintf(&b, "  status.json     %s\n", mark[c.Published])
	return b.String()
}
