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

type openCommand struct {
	At   string `help:"Open then, and not now: a time with its zone, as 2026-12-01T10:00:00+06:00." placeholder:"TIME"`
	Yes  bool   `help:"Do not ask."`
	JSON bool   `help:"Print one JSON document."`
}

// Help is kong's detailed help.
func (*openCommand) Help() string {
	return `Says what will be opened (the sale, its levels and caps, how many candidates are on
the allowlist) and looks at what must be right: the epoch, and that no reset was lost;
caps; an allowlist with all its e-mails, and no load of one at work; no rebuild
unfinished; replicas that acknowledge; Redis that evicts nothing; status.json; the
gateway's token; a sweep in the last two minutes; a worker; no dead letters. It refuses what would make the opening wrong, warns of the rest, and asks.
For a scheduled opening what can still come right until then only warns.

Then it moves the switch, acknowledged, if sale, epoch and switch are still as it has
shown them; else it is refused. It reads the ledger back, and waits a few seconds for
status.json to say so. A scheduled opening is kept by Redis and comes by its clock;
close forgets it. While booking is open an opening cannot be scheduled. It may be
repeated.

Exit status: 0 open, or scheduled, and both ledger and status.json say so; 1 refused,
not agreed, or it says what is missing; 2 it could not be run.

Example:
  seatctl open --at 2026-12-01T10:00:00+06:00 --data data/local`
}

// opened is what the command tells.
type opened struct {
	saleops.Opening
	Levels []openedLevel `json:"levels"`
	// Opened is nil when the switch was not touched.
	Opened *saleops.Switched `json:"opened,omitempty"`
}

type openedLevel struct {
	ID       string `json:"id"`
	Cap      int    `json:"cap"`
	Admitted int    `json:"admitted"`
}

// Run is the command.
func (c *openCommand) Run(s *session) (err error) {
	var at time.Time
	if c.At != "" {
		if at, err = time.Parse(time.RFC3339, c.At); err != nil {
			return fmt.Errorf("--at %q: want a time with its zone, as 2026-12-01T10:00:00+06:00", c.At)
		}
	}
	o, err := s.open(true)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, o.Close()) }()
	fleet, end, err := fleetOf(o)
	if err != nil {
		return err
	}
	defer end()
	sw := o.Switch(fleet)
	look, err := sw.Look(s.ctx, at)
	if err != nil {
		return err
	}
	out := opened{Opening: look}
	for _, l := range look.Was.Levels {
		out.Levels = append(out.Levels, openedLevel{l.ID, l.Cap, l.Admitted})
	}
	fmt.Fprint(s.stderr, tellOpening(look))
	err = s.openBooking(c, o, sw, &out)
	if c.JSON {
		err = errors.Join(err, s.printJSON(out))
	}
	return err
}

func (s *session) openBooking(c *openCommand, o *app.Operator, sw *saleops.Switch, out *opened) error {
	if out.Refused() {
		return wrong(errors.New("refused: nothing was changed"))
	}
	what := fmt.Sprintf("This opens booking of sale %s now.", out.Sale.Name)
	if !out.At.IsZero() {
		what = fmt.Sprintf("This opens booking of sale %s %s.", out.Sale.Name, whenIn(out.At, out.Now))
	}
	if out.Warned() {
		what += " There are warnings."
	}
	if err := s.agreed(c.Yes, what); err != nil {
		return err
	}
	m := mutation{What: "open", Subject: out.Sale.Name, Before: switchState(out.Was)}
	if err := s.mutate(o, m, func(ctx context.Context) (any, error) {
		did, err := sw.Open(ctx, out.Opening)
		out.Opened = &did
		switch {
		case errors.Is(err, booking.ErrNotAsShown):
			err = notAsShown()
		case errors.Is(err, booking.ErrAllowlistHalf):
			err = refused(fmt.Errorf("%w: nothing was changed", err))
		case errors.Is(err, booking.ErrNotAcknowledged):
			err = wrong(fmt.Errorf("%w: the switch may stand on the primary alone: repeat it, or close", err))
		case err != nil:
			err = wrong(err)
		}
		return struct {
			OpensAt time.Time `json:"opens_at,omitzero"`
			saleops.Switched
		}{out.At, did}, err
	}); err != nil {
		return err
	}
	if !c.JSON {
		if _, err := fmt.Fprintln(s.stdout, tellOpened(*out)); err != nil {
			return err
		}
	}
	if len(out.Opened.Missing) > 0 {
		return wrong(fmt.Errorf("missing: %s", strings.Join(out.Opened.Missing, "; ")))
	}
	return nil
}

// switchState is the switch for the operator's log.
func switchState(f booking.Figures) any {
	return struct {
		Open     bool      `json:"open"`
		OpensAt  time.Time `json:"opens_at,omitzero"`
		Admitted int       `json:"admitted"`
	}{f.Open, f.OpensAt, f.Total}
}

func tellOpening(o saleops.Opening) string {
	var b strings.Builder
	if o.Sale.Name != "" {
		fmt.Fprintf(&b, "sale %s, %d seats, %d admitted", o.Sale.Name, o.Was.Cap, o.Was.Total)
		if o.Allowlist >= 0 {
			fmt.Fprintf(&b, ", %d candidates on the allowlist", o.Allowlist)
		}
		switch {
		case o.Was.Open:
			fmt.Fprint(&b, "; booking is open")
		case !o.Was.OpensAt.IsZero():
			fmt.Fprintf(&b, "; an opening is scheduled %s", whenIn(o.Was.OpensAt, o.Now))
		default:
			fmt.Fprint(&b, "; booking is closed")
		}
		fmt.Fprintln(&b)
		for _, l := range o.Was.Levels {
			fmt.Fprintf(&b, "  %-16s %7d of %7d admitted  %s\n", l.ID, l.Admitted, l.Cap, l.Name)
		}
	}
	for _, c := range o.Checks {
		fmt.Fprintf(&b, "  %-8s %-13s %s\n", c.Verdict, c.Name, c.Text)
	}
	return b.String()
}

func tellOpened(o opened) string {
	did := o.Opened
	switch {
	case !did.Read:
		return "The switch was moved, acknowledged by the replicas."
	case o.At.IsZero(), !o.At.After(did.At):
		return fmt.Sprintf("Booking of sale %s is open, by the ledger at %s.", o.Sale.Name, when(did.At))
	}
	return fmt.Sprintf("Booking of sale %s opens %s.", o.Sale.Name, whenIn(o.At, did.At))
}

// whenIn prints a time in its own zone, in UTC, and how far it is from now.
func whenIn(t, now time.Time) string {
	text := t.Format(time.RFC3339)
	if utc := when(t); utc != text {
		text += " (" + utc + ")"
	}
	return text + ", " + fromNow(t.Sub(now))
}

// fromNow says how far away a time is, as one says it: in 3 h 12 min.
func fromNow(d time.Duration) string {
	if d < 0 {
		return about(-d) + " ago"
	}
	return "in " + about(d)
}

// about prints a length in its two largest units.
func about(d time.Duration) string {
	d = d.Round(time.Second)
	days, h, min, s := int(d.Hours())/24, int(d.Hours())%24, int(d.Minutes())%60, int(d.Seconds())%60
	switch {
	case days > 0:
		return fmt.Sprintf("%d d %d h", days, h)
	case h > 0:
		return fmt.Sprintf("%d h %d min", h, min)
	case min > 0:
		return fmt.Sprintf("%d min %d s", min, s)
	}
	return fmt.Sprintf("%d s", s)
}
