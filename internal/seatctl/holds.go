package seatctl

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"holdfast/internal/app"
	"holdfast/internal/booking"
	"holdfast/internal/resolve"
)

type holdsCommand struct {
	Extend holdsExtendCommand `cmd:"" help:"Give payers back the time that an outage took from them."`
}

type holdsExtendCommand struct {
	By     time.Duration `help:"How much more time each gets, in whole seconds." placeholder:"DURATION"`
	Since  time.Duration `help:"How long before now a deadline may have passed; without it as --by." placeholder:"DURATION"`
	Reason string        `help:"Why; kept in the operator's log." required:"" placeholder:"TEXT"`
	Again  string        `name:"run" help:"Go on with a run that broke off: the id that it printed." placeholder:"ID"`
	DryRun bool          `help:"Count, and change nothing."`
	JSON   bool          `help:"Print one JSON document."`
}

// Help is kong's detailed help.
func (*holdsExtendCommand) Help() string {
	return `Every seat that waits for its payer, whose deadline is in the future or passed
within --since, gets a deadline later by --by, in the ledger, acknowledged, and
in its record. Who was admitted after the run began has lost nothing. It says who
would get time, then gives it.

A run prints its id first. Repeated with --run ID it finishes what is missing and
gives nobody the time twice; a new run gives it again.

Exit status: 0 done, or counted; 1 some rows were not done: repeat the run; 2 it
could not be run.

Example:
  seatctl holds extend --by 10m --reason "replicas down 09:10 to 09:18" --data data/local`
}

// extendedHolds is what the command tells.
type extendedHolds struct {
	Run    string `json:"run"`
	By     string `json:"by"`
	Since  string `json:"since"`
	Reason string `json:"reason"`
	DryRun bool   `json:"dry_run"`
	resolve.Extended
}

// Run is the command.
func (c *holdsExtendCommand) Run(s *session) (err error) {
	switch {
	case strings.TrimSpace(c.Reason) == "":
		return errors.New("--reason: say why")
	case c.Again == "" && c.By == 0:
		return errors.New("--by: say how much time, or go on with --run ID")
	}
	o, err := s.open(false)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, o.Close()) }()
	return s.extendHolds(c, o)
}

func (c *holdsExtendCommand) run(s *session, h *resolve.Holds) (resolve.Run, error) {
	if c.Again == "" {
		return h.NewRun(s.ctx, c.By, c.Since)
	}
	run, err := h.Resume(s.ctx, c.Again)
	switch {
	case errors.Is(err, resolve.ErrOtherLedger):
		return run, wrong(fmt.Errorf("%w: nothing was changed", err))
	case err == nil && (c.By != 0 && c.By != run.By || c.Since != 0 && c.Since != run.Since):
		return run, fmt.Errorf("run %s is one of %s, since %s: leave --by and --since out", run.ID, run.By, run.Since)
	}
	return run, err
}

func (s *session) extendHolds(c *holdsExtendCommand, o *app.Operator) error {
	h := o.Holds()
	run, err := c.run(s, h)
	if err != nil {
		return err
	}
	out := extendedHolds{Run: run.ID, By: run.By.String(), Since: run.Since.String(), Reason: c.Reason, DryRun: c.DryRun}
	if out.Extended, err = h.Count(s.ctx, run); err != nil {
		return err
	}
	if c.DryRun {
		if err := s.tellExtended(c, out); err != nil {
			return err
		}
		if err := out.failed(); err != nil {
			return wrong(err)
		}
		return nil
	}
	before := out.Extended
	fmt.Fprintf(s.stderr, "run %s\n%d holds get %s more; if it breaks off, repeat it with --run\n", run.ID, before.Extended, run.By)
	begun := false
	err = s.mutate(o, mutation{
		What: "holds extend", Subject: run.ID, Reason: c.Reason,
		Before: map[string]int{"to_extend": before.Extended, "already": before.Already},
	}, func(ctx context.Context) (any, error) {
		begun = true
		err := s.extend(ctx, h, run, &out, before)
		if err != nil {
			err = wrong(fmt.Errorf("%w: repeat it with --run %s", err, run.ID))
		}
		return map[string]int{"extended": out.Extended.Extended, "already": out.Already, "failed": out.Failed}, err
	})
	if begun { // then what was done is told, however it ended
		err = cmp.Or(err, s.tellExtended(c, out))
	}
	return err
}

// extend runs the run; out is how far it came, whatever the error.
func (s *session) extend(ctx context.Context, h *resolve.Holds, run resolve.Run, out *extendedHolds, before resolve.Extended) error {
	told := time.Now()
	var err error
	out.Extended, err = h.Extend(ctx, run, func(e resolve.Extended) {
		if time.Since(told) >= time.Second {
			told = time.Now()
			fmt.Fprintf(s.stderr, "%d of %d rows, %d holds extended, %d failed\n", e.Rows, before.Rows, e.Extended, e.Failed)
		}
	})
	return cmp.Or(err, out.failed())
}

// failed says which rows were not done, or could not be counted.
func (e *extendedHolds) failed() error {
	switch {
	case e.Failed == 0:
		return nil
	case e.Doubt != nil:
		return &perhapsExtended{fmt.Sprintf("%d rows are perhaps extended, or could not be, the first: %s", e.Failed, e.Failure), e.Doubt}
	}
	return fmt.Errorf("%d rows failed, the first: %s", e.Failed, e.Failure)
}

// perhapsExtended is of rows of which nobody knows whether they have a later deadline.
type perhapsExtended struct {
	text  string
	cause error
}

func (e *perhapsExtended) Error() string   { return e.text }
func (e *perhapsExtended) Unwrap() []error { return []error{e.cause, booking.ErrInDoubt} }

// tellExtended prints what was done or counted.
func (s *session) tellExtended(c *holdsExtendCommand, out extendedHolds) error {
	if c.JSON {
		if err := s.printJSON(out); err != nil {
			return err
		}
	} else {
		verb := "extended"
		if c.DryRun {
			verb = "would be extended"
		}
		var b strings.Builder
		fmt.Fprintf(&b, "%d holds %s by %s: %s\n", out.Extended.Extended, verb, out.By, out.Reason)
		fmt.Fprintf(&b, "  %-6d had been, by this run or a later one\n", out.Already)
		fmt.Fprintf(&b, "  %-6d ended more than %s before it began\n", out.Missed, out.Since)
		fmt.Fprintf(&b, "  %-6d admitted after it began\n", out.After)
		fmt.Fprintf(&b, "  %-6d do not wait for a payer\n", out.Moved)
		if out.Doubt != nil {
			fmt.Fprintf(&b, "  %-6d perhaps extended, or could not be: repeat the run\n", out.Failed)
		} else {
			fmt.Fprintf(&b, "  %-6d failed\n", out.Failed)
		}
		if _, err := fmt.Fprint(s.stdout, b.String()); err != nil {
			return err
		}
	}
	return nil
}
