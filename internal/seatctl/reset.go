package seatctl

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"holdfast/internal/booking"
	"holdfast/internal/saleops"
)

type resetCommand struct {
	Reason   string `help:"Why; kept in the operator's log. Name no person." required:"" placeholder:"TEXT"`
	Confirm  string `help:"The sale's name, instead of typing it." placeholder:"NAME"`
	WithPaid string `help:"The sale's name and how many paid bookings are forgotten, instead of typing it: \"NAME COUNT\"." placeholder:"TEXT"`
	JSON     bool   `help:"Print one JSON document."`
}

// Help is kong's detailed help.
func (*resetCommand) Help() string {
	return `Begins the sale anew: no seat is taken, under a new epoch. For the end of a rehearsal,
and before the next event on the same system. Booking is closed and stays so.

It refuses while booking is open or scheduled to open, while a rebuild or a load of
the allowlist is not finished, while a message is on its way or dead, while any seat
is held and not paid or its record is not written, while a record is HELD, while a
notification is open, and while ledger and store differ: it says each time what to do.
With paid bookings it asks twice; those people's seats are free again, their records,
their money and the back office's rows stay as they are.

What stays: the sale, the allowlist, every record, the refunds and what was decided
about late money, the operator's log. Money of the ended sale that comes later goes
back. Run it again when it was not finished: the new sale has sold nothing by then, and
another begins in its place.

Exit status: 0 the sale begins anew, acknowledged; 1 refused, not confirmed, or not
known to be finished; 2 it could not be run.

Example:
  seatctl reset --reason "rehearsal is over" --data data/local
  seatctl reset --reason "drill" --confirm demo-2026 --with-paid "demo-2026 41"`
}

// resetTold is what the command tells.
type resetTold struct {
	Sale   string `json:"sale"`
	Reason string `json:"reason"`
	// Ended and Epoch are the epochs before and now.
	Ended string `json:"ended"`
	Epoch string `json:"epoch"`
	// Forgotten is how many seats were paid; Candidates and Refunds stay.
	Forgotten  int       `json:"forgotten"`
	Candidates int       `json:"candidates"`
	Refunds    int       `json:"open_refunds"`
	At         time.Time `json:"at"`
}

// resetStanding is what the operator's log has of the sale.
type resetStanding struct {
	Epoch string `json:"epoch"`
	Paid  int    `json:"paid"`
}

// Run is the command.
func (c *resetCommand) Run(s *session) (err error) {
	if strings.TrimSpace(c.Reason) == "" {
		return errors.New("--reason: say why")
	}
	o, err := s.open(false)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, o.Close()) }()
	r := o.Resetter()
	plan, err := r.Plan(s.ctx)
	if err != nil {
		return err
	}
	fmt.Fprint(s.stderr, tellReset(plan))
	if err := plan.Over(); err != nil {
		return wrong(fmt.Errorf("refused: %w: nothing was changed", err))
	}
	if err := s.typed(plan.Sale, c.Confirm, fmt.Sprintf("This begins sale %s anew: no seat is taken, and booking is closed.", plan.Sale)); err != nil {
		return err
	}
	if err := s.forgets(plan, c.WithPaid); err != nil {
		return err
	}
	var did *saleops.ResetDone
	err = s.mutate(o, mutation{
		What: "reset", Subject: plan.Sale, Reason: c.Reason, Before: resetStanding{plan.Epoch, plan.Paid},
	}, func(ctx context.Context) (any, error) {
		done, err := r.Carry(ctx, plan)
		switch {
		case err != nil && notEnded(err):
			return nil, refused(fmt.Errorf("refused: %w: nothing was changed", err))
		case err != nil:
			return resetStanding{Epoch: done.Begun}, wrong(fmt.Errorf("not known to be finished: %w: run it again", err))
		}
		did = &done
		return resetStanding{Epoch: done.Begun}, nil
	})
	if did == nil {
		return err
	}
	out := resetTold{
		Sale: plan.Sale, Reason: c.Reason, Ended: did.Ended, Epoch: did.Begun, Forgotten: did.Forgotten,
		Candidates: plan.Candidates, Refunds: plan.Refunds, At: did.At.UTC(),
	}
	if c.JSON {
		return cmp.Or(err, s.printJSON(out))
	}
	_, told := fmt.Fprintf(s.stdout, `sale %s begins anew, epoch %s: %s
  ended       epoch %s, with %d paid bookings
  allowlist   %d candidates, as before
  refunds     %d open, which go on
Booking is closed. Run seatctl audit, then open.
`, out.Sale, out.Epoch, out.Reason, out.Ended, out.Forgotten, out.Candidates, out.Refunds)
	return cmp.Or(err, told)
}

// notEnded tells an error after which the sale is as it was.
func notEnded(err error) bool {
	return errors.Is(err, saleops.ErrNotOver) || errors.Is(err, saleops.ErrSeenOtherwise) || errors.Is(err, booking.ErrNotEnded)
}

// tellUnmailed says that people who have paid were never written to, and will not be.
func tellUnmailed(p saleops.ResetPlan) string {
	if p.Unmailed == 0 {
		return ""
	}
	return fmt.Sprintf("  %d of the paid bookings have no confirmation mail yet, and would get none\n", p.Unmailed)
}

func tellReset(p saleops.ResetPlan) string {
	var b strings.Builder
	fmt.Fprintf(&b, "sale %s, epoch %s, at %s: %d paid bookings, %d candidates\n", p.Sale, p.Epoch, when(p.At), p.Paid, p.Candidates)
	b.WriteString(tellUnmailed(p))
	if p.Refunds > 0 {
		fmt.Fprintf(&b, "  %d refunds are open; they go on\n", p.Refunds)
	}
	if p.Unmarked {
		fmt.Fprintln(&b, "  An earlier reset did not come to its end: the store does not know this epoch. This run does.")
	}
	for _, text := range p.Against {
		fmt.Fprintf(&b, "  AGAINST IT: %s\n", text)
	}
	return b.String()
}

// forgets asks a second time, for what only somebody who has read the first answer
// can say: how many paid bookings there are.
func (s *session) forgets(p saleops.ResetPlan, given string) error {
	if p.Paid == 0 {
		return nil
	}
	word := fmt.Sprintf("%s %d", p.Sale, p.Paid)
	fmt.Fprintf(s.stderr, "%d people have paid for a seat of this sale. Their seats are forgotten; their money is not given back by this.\n", p.Paid)
	if given == "" {
		fmt.Fprint(s.stderr, "Type the sale's name and how many paid bookings are forgotten: ")
		line, err := s.readLine()
		switch {
		case errors.Is(err, errInterrupted):
			return err
		case err != nil && line == "":
			return wrong(errors.New("that paid bookings are forgotten was not confirmed: nothing was changed"))
		}
		given = strings.TrimSpace(line)
	}
	if given != word {
		return wrong(fmt.Errorf("that %d paid bookings are forgotten was not confirmed: want %q, got %q: nothing was changed", p.Paid, word, given))
	}
	return nil
}
