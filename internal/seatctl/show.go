package seatctl

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"text/tabwriter"

	"holdfast/internal/booking"
	"holdfast/internal/saleops"
)

type bookingsShowCommand struct {
	Code      string `arg:"" help:"Candidate code."`
	Attempt   string `help:"This attempt alone." placeholder:"ID"`
	NoGateway bool   `help:"Do not ask the gateway."`
	Email     bool   `help:"Show the e-mail address on file whole."`
	JSON      bool   `help:"Print one JSON document."`
}

// Help is kong's detailed help.
func (*bookingsShowCommand) Help() string {
	return `Everything that is known of one candidate's bookings, side by side: the seat's row,
the record, what Redis keeps for the payment, and the gateway's word, for each
attempt, newest first; with the mail, the refunds, the open notifications and what
operators have changed of it. Where two places should say the same and do not, the
line begins with a "!". What could not be read it says, and shows as unknown or "?",
never as none. It changes nothing, and asks the gateway once about each payment,
unless --no-gateway.

What it shows is personal: the e-mail address is masked unless --email.

Exit status: 0 shown, and nothing differs; 1 something differs or could not be read,
or the candidate has no booking; 2 it could not be run.

Example:
  seatctl bookings show AB-1001 --data data/local`
}

// Run is the command.
func (c *bookingsShowCommand) Run(s *session) (err error) {
	rule, err := booking.NewCodeRule(`.+`) // one that is no code has no booking
	if err != nil {
		return err
	}
	code, err := rule.Normalize(c.Code)
	if err != nil {
		return fmt.Errorf("CODE: %w", err)
	}
	o, err := s.open(!c.NoGateway)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, o.Close()) }()
	b, err := o.Shower().Show(s.ctx, code, c.Attempt)
	switch {
	case errors.Is(err, booking.ErrNotFound):
		return wrong(fmt.Errorf("%s has no such booking: %w", code, err))
	case err != nil:
		return err
	}
	if !c.Email {
		b.Email = masked(b.Email)
	}
	if c.JSON {
		err = s.printJSON(struct {
			Code string `json:"code"`
			saleops.ShownBooking
		}{code, b})
	} else {
		_, err = fmt.Fprint(s.stdout, tellBooking(code, b, !c.NoGateway))
	}
	if err == nil && (b.Differs() || len(b.NotSeen) > 0) {
		err = wrong(nil)
	}
	return err
}

func tellBooking(code string, b saleops.ShownBooking, asked bool) string {
	var out strings.Builder
	told := func(part, text string) string {
		if slices.Contains(b.Unknown, part) {
			return "unknown"
		}
		return text
	}
	fmt.Fprintf(&out, "%s at %s, epoch %s\n", code, when(b.At), told(saleops.UnknownEpoch, orDash(b.Epoch)))
	w := tabwriter.NewWriter(&out, 0, 0, 2, ' ', 0)
	fmt.Fprintf(w, "  e-mail\t%s\n", told(saleops.UnknownEmail, orDash(printable(b.Email))))
	if seat := b.Seat; seat != nil {
		fmt.Fprintf(w, "  seat\t%s, level %s, slot %d, by attempt %s\n", seat.Phase, seat.Level, seat.Slot, seat.Attempt)
		look := "never: nothing is left to do"
		if !b.Look.IsZero() {
			look = when(b.Look)
		}
		fmt.Fprintf(w, "  looked at\t%s\n", told(saleops.UnknownLook, look))
	} else {
		fmt.Fprintf(w, "  seat\t%s\n", told(saleops.UnknownSeat, "none"))
	}
	if q := b.Queue; q != nil {
		fmt.Fprintf(w, "  queue\t%d waiting, %d in flight, %d dead\n", q.Waiting, q.InFlight, q.Dead)
	} else {
		fmt.Fprintf(w, "  queue\tunknown\n")
	}
	for _, attempt := range b.Dead {
		fmt.Fprintf(w, "! dead letter\tof attempt %s: seatctl dlq show %s\n", attempt, attempt)
	}
	_ = w.Flush() // into memory
	for _, a := range b.Attempts {
		out.WriteString(tellAttempt(a, asked))
	}
	for _, text := range b.NotSeen {
		fmt.Fprintf(&out, "NOT SEEN  %s\n", printable(text))
	}
	return out.String()
}

func tellAttempt(a saleops.ShownAttempt, asked bool) string {
	var out strings.Builder
	what := ""
	switch {
	case a.Owns:
		what = ", which owns the seat"
	case a.Earlier:
		what = ", of another sale"
	}
	fmt.Fprintf(&out, "\nattempt %s%s\n", a.Attempt, what)
	w := tabwriter.NewWriter(&out, 0, 0, 2, ' ', 0)
	gateway := "GATEWAY"
	if !asked {
		gateway += " (not asked)"
	}
	fmt.Fprintf(w, "  \tROW\tRECORD\tSTASH\t%s\n", gateway)
	told := func(place, text string) string {
		if text == "" && slices.Contains(a.Unknown, place) {
			return "?"
		}
		return orDash(printable(text))
	}
	for _, f := range a.Fields {
		mark := " "
		if f.Differs {
			mark = "!"
		}
		fmt.Fprintf(w, "%s %s\t%s\t%s\t%s\t%s\n", mark, f.Name,
			told(saleops.UnknownRow, f.Row), told(saleops.UnknownRecord, f.Record), told(saleops.UnknownStash, f.Stash), told(saleops.UnknownGateway, f.Gateway))
	}
	_ = w.Flush() // into memory
	for _, r := range a.Refunds {
		fmt.Fprintf(&out, "  refund        %s %s, %s, because %s, decided at %s\n", r.Transaction, money(r), r.State, r.Reason, when(r.DecidedAt))
	}
	for _, n := range a.Notifications {
		fmt.Fprintf(&out, "  notification  %s is open since %s, transaction %s\n", printable(n.ID), when(n.ReceivedAt), orDash(printable(n.Transaction)))
	}
	for _, e := range a.History {
		fmt.Fprintf(&out, "  history       %s %s: %s, %s: %s\n", when(e.At), e.What, e.Outcome, printable(e.Who), printable(e.Reason))
	}
	return out.String()
}
