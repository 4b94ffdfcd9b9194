package seatctl

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"strings"
	"text/tabwriter"
	"time"

	"holdfast/internal/app"
	"holdfast/internal/booking"
	"holdfast/internal/config"
)

type logCommand struct {
	Since string `help:"Changes that began since then: how long ago, or a time with its zone. Without it all." placeholder:"24h|TIME"`
	What  string `help:"Changes by the commands whose name has this text in it." placeholder:"TEXT"`
	JSON  bool   `help:"Print one JSON document."`
}

// Help is kong's detailed help.
func (*logCommand) Help() string {
	return `Reads who changed what, when, from where and why, one change a line, the newest
last, with how its subject stood before and after in lines of their own. It changes
nothing, and needs the booking store alone. An outcome is

  done      made
  refused   nothing was changed
  failed    ended by an error; what "after" tells was changed before it
  unknown   its last step may have been made
  NO END    begun, and then cut off or still at work

Exit status: 0 listed, if it is nothing, too; 1 an entry cannot be read, and the
others are listed; 2 it could not be run.

Example:
  seatctl log --since 24h --data data/local
  seatctl log --since 2026-12-01T04:00:00Z --what refunds`
}

// The outcomes that a change is shown with and no entry has.
const (
	noEnd      = "NO END"
	unreadable = "unreadable"
)

// changed is one change of the operator's log, its entries put together.
type changed struct {
	ID      string    `json:"id"`
	BegunAt time.Time `json:"begun_at"`
	// EndedAt is zero while the change has no end.
	EndedAt time.Time       `json:"ended_at,omitzero"`
	Who     string          `json:"who"`
	From    string          `json:"from"`
	What    string          `json:"what"`
	Subject string          `json:"subject,omitempty"`
	Reason  string          `json:"reason,omitempty"`
	Before  json.RawMessage `json:"before,omitempty"`
	After   json.RawMessage `json:"after,omitempty"`
	// Outcome is "begun" while the change has no end, and "unreadable" where its end
	// cannot be read.
	Outcome booking.LogOutcome `json:"outcome"`
}

// Run is the command.
func (c *logCommand) Run(s *session) (err error) {
	since, err := c.since(time.Now())
	if err != nil {
		return err
	}
	log, closeLog, err := s.openLog()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, closeLog()) }()
	changes, unread, err := readChanges(log.Log(s.ctx, since), c.What)
	if err != nil {
		return err
	}
	if c.JSON {
		err = s.printJSON(struct {
			Changes []changed `json:"changes"`
		}{changes})
	} else {
		err = s.printChanges(changes)
	}
	if err == nil && len(unread) > 0 {
		err = wrong(errors.Join(unread...))
	}
	return err
}

func (c *logCommand) since(now time.Time) (time.Time, error) {
	if c.Since == "" {
		return time.Time{}, nil
	}
	if ago, err := time.ParseDuration(c.Since); err == nil && ago >= 0 {
		return now.Add(-ago), nil
	}
	at, err := time.Parse(time.RFC3339, c.Since)
	if err != nil {
		return time.Time{}, fmt.Errorf("--since %q: want how long ago, as 24h, or a time with its zone, as 2026-12-01T04:00:00Z", c.Since)
	}
	return at, nil
}

// openLog reaches the operator's log and nothing else of the deployment.
func (s *session) openLog() (app.OperatorLog, func() error, error) {
	getenv, err := s.settings()
	if err != nil {
		return nil, nil, err
	}
	if getenv, err = s.platform.Settings(s.ctx, getenv, config.Variables[config.Operator]()); err != nil {
		return nil, nil, err
	}
	cfg, err := config.LoadOperator(getenv)
	if err != nil {
		return nil, nil, fmt.Errorf("settings:\n%w", err)
	}
	return app.OpenLog(s.ctx, s.platform.Open, cfg)
}

// readChanges puts the entries of each change together, and says which entries cannot
// be read.
func readChanges(entries iter.Seq2[booking.LogEntry, error], what string) (changes []changed, unread []error, err error) {
	changes = []changed{} // a list in JSON, if it is empty, too
	for e, err := range entries {
		var last *changed // the change that this entry ends
		if n := len(changes); n > 0 && e.ID == changes[n-1].ID+booking.LogEnding {
			last = &changes[n-1]
		}
		switch {
		case errors.Is(err, booking.ErrUnreadable):
			unread = append(unread, err)
			if last != nil {
				last.Outcome = unreadable
			}
		case err != nil:
			return nil, nil, err
		case !strings.Contains(e.What, what):
		case last != nil:
			last.EndedAt, last.After, last.Outcome = e.At, e.After, e.Outcome
		default:
			changes = append(changes, newChanged(e))
		}
	}
	return changes, unread, nil
}

// newChanged is the change of an entry: its first, or its second where the first could
// not be read.
func newChanged(e booking.LogEntry) changed {
	c := changed{
		ID: e.Change(), BegunAt: e.At, Who: e.Who, From: e.From, What: e.What, Subject: e.Subject, Reason: e.Reason,
		Before: e.Before, After: e.After, Outcome: e.Outcome,
	}
	if e.Outcome != booking.LogBegun {
		c.BegunAt, _ = booking.LogIDTime(e.ID)
		c.EndedAt = e.At
	}
	return c
}

func (s *session) printChanges(changes []changed) error {
	if len(changes) == 0 {
		_, err := fmt.Fprintln(s.stdout, "no change is logged")
		return err
	}
	var table strings.Builder
	w := tabwriter.NewWriter(&table, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "BEGAN\tOUTCOME\tWHAT\tSUBJECT\tWHO\tFROM\tREASON")
	for _, c := range changes {
		outcome := string(c.Outcome)
		if c.Outcome == booking.LogBegun {
			outcome = noEnd
		}
		cells := []string{outcome, c.What, c.Subject, c.Who, c.From, c.Reason}
		for i, text := range cells {
			cells[i] = cmp.Or(printable(text), "-")
		}
		fmt.Fprintf(w, "%s\t%s\n", when(c.BegunAt), strings.Join(cells, "\t"))
	}
	if err := w.Flush(); err != nil {
		return err
	}
	// How a subject stood is as long as it needs to be, and would push the columns apart.
	var b strings.Builder
	i := -1 // the heading
	for row := range strings.Lines(table.String()) {
		b.WriteString(row)
		if i >= 0 {
			fmt.Fprintf(&b, "  before  %s\n  after   %s\n", cmp.Or(printable(string(changes[i].Before)), "-"), cmp.Or(printable(string(changes[i].After)), "-"))
		}
		i++
	}
	_, err := fmt.Fprint(s.stdout, b.String())
	return err
}
