package seatctl

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"text/tabwriter"
	"time"

	"holdfast/internal/saleops"
)

type purgeCommand struct {
	Reason         string        `help:"Why; kept in the operator's log. Name no person." required:"" placeholder:"TEXT"`
	OlderThan      time.Duration `help:"What ended longer ago than this goes; 48h at least." default:"720h" placeholder:"DURATION"`
	KeepCandidates bool          `help:"Leave allowlist and e-mail addresses: they are the next event's."`
	DryRun         bool          `help:"Say what would go, and change nothing."`
	Confirm        string        `help:"The sale's name, instead of typing it." placeholder:"NAME"`
	WithPaid       string        `help:"The sale's name and how many paid bookings are forgotten, instead of typing it: \"NAME COUNT\"." placeholder:"TEXT"`
	JSON           bool          `help:"Print one JSON document."`
}

// Help is kong's detailed help.
func (*purgeCommand) Help() string {
	return `Removes personal data after the event. What goes cannot be brought back: export what is
needed first (seatctl bookings export).

  the seats       the running sale's, as reset ends it, if all of it is old enough
  in Redis        the allowlist, the e-mail addresses, what was kept for payments
  records         paid and released ones, whole, with code and hash
  refunds         who they were for and what was noted; the money stays told
  notifications   whose payment they were of, and the payer's words
  mails           the files in the data folder, with the drivers of one machine

It refuses whatever reset refuses, while a refund is not done, and while a booking of
any sale is younger than --older-than: money for it may still come, and needs what Redis
keeps. With --keep-candidates Redis keeps it, and only the running sale's bookings must
be old enough. Records, refunds and notifications go one by one, by their own age. While
Redis is purged no allowlist can be loaded. It goes in small steps, and may be run again:
after an interruption it must be, half a minute later if it was killed.

What it cannot reach: the back office's table, mails that were sent, backups and
exports, the journal of the processes, and what the functions have given up on. The
operator's log stays; it names no candidate.

Exit status: 0 purged, acknowledged, or a dry run that nothing stands against; 1
refused, not confirmed, or not finished; 2 it could not be run.

Example:
  seatctl purge --reason "event is over" --dry-run --data data/local
  seatctl purge --reason "event is over" --confirm demo-2026 --with-paid "demo-2026 20700"`
}

// purgeTold is what the command tells.
type purgeTold struct {
	Sale   string `json:"sale"`
	Reason string `json:"reason"`
	DryRun bool   `json:"dry_run"`
	// Before: what ended before that goes.
	Before  time.Time `json:"before"`
	Against []string  `json:"against"`
	// Unmailed is how many of the paid bookings have no confirmation mail, and get none.
	Unmailed int `json:"unmailed"`
	saleops.Purged
}

// Run is the command.
func (c *purgeCommand) Run(s *session) (err error) {
	switch {
	case strings.TrimSpace(c.Reason) == "":
		return errors.New("--reason: say why")
	case c.OlderThan < saleops.PurgeAtLeast:
		return fmt.Errorf("--older-than: want %s at least: until then payments are asked about, and may be late", saleops.PurgeAtLeast)
	}
	o, err := s.open(false)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, o.Close()) }()
	p := o.Purger()
	opts := saleops.PurgeOptions{OlderThan: c.OlderThan, KeepCandidates: c.KeepCandidates}
	plan, err := p.Plan(s.ctx, opts)
	if err != nil {
		return err
	}
	out := purgeTold{Sale: plan.Sale, Reason: c.Reason, DryRun: c.DryRun, Before: plan.Before.UTC(), Against: append([]string{}, plan.Against...), Unmailed: plan.Unmailed, Purged: plan.Would}
	fmt.Fprintf(s.stderr, "sale %s, epoch %s, at %s: what ended before %s goes\n%s%s", plan.Sale, plan.Epoch, when(plan.At), when(plan.Before), tellPurged("would go", plan.Would), tellUnmailed(plan.ResetPlan))
	for _, text := range plan.Against {
		fmt.Fprintf(s.stderr, "  AGAINST IT: %s\n", text)
	}
	refusal := plan.Over()
	if c.DryRun {
		if c.JSON {
			err = s.printJSON(out)
		}
		if err == nil && refusal != nil {
			err = wrong(fmt.Errorf("it would be refused: %w", refusal))
		}
		return err
	}
	if refusal != nil {
		return wrong(fmt.Errorf("refused: %w: nothing was changed", refusal))
	}
	if err := s.typed(plan.Sale, c.Confirm, "What goes cannot be brought back."); err != nil {
		return err
	}
	if err := s.forgets(plan.ResetPlan, c.WithPaid); err != nil {
		return err
	}
	carried := false
	err = s.mutate(o, mutation{
		What: "purge", Subject: plan.Sale, Reason: c.Reason, Before: resetStanding{plan.Epoch, plan.Paid},
	}, func(ctx context.Context) (any, error) {
		did, err := p.Carry(ctx, plan, opts)
		switch {
		case err != nil && notEnded(err) && did == (saleops.Purged{}):
			return nil, refused(fmt.Errorf("refused: %w: nothing was changed", err))
		case err != nil:
			return did, wrong(fmt.Errorf("not finished: %w: run it again", err))
		}
		out.Purged, carried = did, true
		return did, nil
	})
	if !carried {
		return err
	}
	if c.JSON {
		return cmp.Or(err, s.printJSON(out))
	}
	_, told := fmt.Fprintf(s.stdout, "sale %s is purged, epoch %s: %s\n%s", out.Sale, out.Epoch, out.Reason, tellPurged("gone", out.Purged))
	return cmp.Or(err, told)
}

func tellPurged(what string, p saleops.Purged) string {
	var b strings.Builder
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	for _, line := range []struct {
		name string
		n    int
	}{
		{"seats", p.Seats}, {"e-mail addresses", p.Emails}, {"stashes of payments", p.Stashes}, {"lists of candidates", p.Lists}, {"records", p.Records},
		{"names in refunds", p.Refunds}, {"names in notifications", p.Notifications}, {"mails", p.Mails},
	} {
		fmt.Fprintf(w, "  %s\t%d %s\n", line.name, line.n, what)
	}
	fmt.Fprintf(w, "  younger\t%d kept\n", p.Kept)
	_ = w.Flush() // into memory
	return b.String()
}
