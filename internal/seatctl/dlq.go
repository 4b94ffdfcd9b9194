package seatctl

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"text/tabwriter"
	"time"

	"holdfast/internal/booking"
	"holdfast/internal/saleops"
)

type dlqCommand struct {
	List    dlqListCommand    `cmd:"" help:"List the messages that the worker has given up on."`
	Show    dlqShowCommand    `cmd:"" help:"Show one of them."`
	Redrive dlqRedriveCommand `cmd:"" help:"Have them delivered again."`
}

type dlqListCommand struct {
	Most int  `help:"How many at most." default:"100" placeholder:"N"`
	JSON bool `help:"Print one JSON document."`
}

// Help is kong's detailed help.
func (*dlqListCommand) Help() string {
	return `Each dead letter is a record that the worker could not write in five tries: its
attempt, when it was sent, and where its record stands now. One that cannot be read
is shown by its size and hash. It changes nothing; with SQS a look counts as a
delivery, and shows ten of one group at most.

Exit status: 0 listed, if it is nothing, too; 2 it could not be run.

Example:
  seatctl dlq list --data data/local`
}

// Run is the command.
func (c *dlqListCommand) Run(s *session) (err error) {
	if c.Most < 1 {
		return errors.New("--most: want 1 or more")
	}
	o, err := s.open(false)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, o.Close()) }()
	d := o.DeadLetters()
	list, err := d.List(s.ctx, c.Most)
	if err != nil {
		return err
	}
	stats, err := d.Stats(s.ctx)
	if err != nil {
		return err
	}
	if c.JSON {
		return s.printJSON(struct {
			DeadLetters []saleops.DeadLetter `json:"dead_letters"`
			Queue       queueFigures         `json:"queue"`
		}{list, figuresOf(stats)})
	}
	_, err = fmt.Fprint(s.stdout, tellDead(list, stats), tellQueue(stats))
	return err
}

// queueFigures are the queue's figures as the commands tell them.
type queueFigures struct {
	Waiting       int   `json:"waiting"`
	InFlight      int   `json:"in_flight"`
	Dead          int   `json:"dead"`
	OldestSeconds int64 `json:"oldest_seconds"`
}

func figuresOf(q booking.QueueStats) queueFigures {
	return queueFigures{q.Waiting, q.InFlight, q.Dead, int64(q.OldestAge / time.Second)}
}

func tellQueue(q booking.QueueStats) string {
	return fmt.Sprintf("queue: %d waiting, %d in flight, %d dead, the oldest for %s\n", q.Waiting, q.InFlight, q.Dead, q.OldestAge.Round(time.Second))
}

func tellDead(list []saleops.DeadLetter, q booking.QueueStats) string {
	switch {
	case len(list) == 0 && q.Dead > 0:
		return fmt.Sprintf("none of the %d dead letters can be seen now: another look, or a redrive, has them; look again in a minute\n", q.Dead)
	case len(list) == 0:
		return "there are no dead letters\n"
	}
	var b strings.Builder
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "ID\tSENT\tRECEIVES\tLEVEL\tDEADLINE\tRECORD NOW")
	for _, l := range list {
		fmt.Fprintf(w, "%s\t%s\t%d\t%s\t%s\t%s\n", l.ID, when(l.SentAt), l.Receives, orDash(printable(l.Level)), when(l.Deadline), recordNow(l))
	}
	_ = w.Flush() // into memory
	return b.String()
}

func recordNow(l saleops.DeadLetter) string {
	switch {
	case l.Unreadable != "":
		return fmt.Sprintf("cannot be read (%d bytes, SHA-256 %.12s): %s", l.Bytes, l.SHA256, printable(l.Unreadable))
	case l.Record.Unknown != "":
		return "not known: " + printable(l.Record.Unknown)
	case l.Record.State == "":
		return "none: redriven, it is put"
	}
	return string(l.Record.State) + ": redriven, it changes nothing"
}

type dlqShowCommand struct {
	ID   string `arg:"" help:"Id, as the list tells it."`
	JSON bool   `help:"Print one JSON document."`
}

// Help is kong's detailed help.
func (*dlqShowCommand) Help() string {
	return `Shows one dead letter as the list does, with all that is known of it. What it holds
is not shown, since it names a candidate. It changes nothing.

Exit status: 0 shown; 1 no dead letter that can be seen has this id; 2 it could not
be run.

Example:
  seatctl dlq show 1ngtsa07kq3m-01m8qw4tg04f8r2tqz9e6wn1bd --data data/local`
}

// deadSeen is how many dead letters are looked through for those that are named.
const deadSeen = 10_000

// Run is the command.
func (c *dlqShowCommand) Run(s *session) (err error) {
	o, err := s.open(false)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, o.Close()) }()
	found, err := o.DeadLetters().Find(s.ctx, deadSeen, c.ID)
	switch {
	case errors.Is(err, saleops.ErrNoDeadLetter):
		return wrong(err)
	case err != nil:
		return err
	}
	l := found[0]
	if c.JSON {
		return s.printJSON(l)
	}
	var b strings.Builder
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	fmt.Fprintf(w, "id\t%s\n", l.ID)
	fmt.Fprintf(w, "sent\t%s, delivered %d times\n", when(l.SentAt), l.Receives)
	fmt.Fprintf(w, "size\t%d bytes, SHA-256 %s\n", l.Bytes, l.SHA256)
	if l.Unreadable == "" {
		fmt.Fprintf(w, "level\t%s\n", printable(l.Level))
		fmt.Fprintf(w, "payment\t%s\n", printable(l.Payment))
		fmt.Fprintf(w, "admitted\t%s\n", when(l.AdmittedAt))
		fmt.Fprintf(w, "deadline\t%s\n", when(l.Deadline))
	}
	fmt.Fprintf(w, "record\t%s\n", recordNow(l))
	_ = w.Flush() // into memory
	_, err = fmt.Fprint(s.stdout, b.String())
	return err
}

type dlqRedriveCommand struct {
	ID   []string `arg:"" optional:"" help:"Ids, as the list tells them."`
	All  bool     `help:"All there are."`
	Yes  bool     `help:"Do it without asking."`
	JSON bool     `help:"Print one JSON document."`
}

// Help is kong's detailed help.
func (*dlqRedriveCommand) Help() string {
	return `Puts dead letters at the end of the queue again, as they were sent, and says how many
are left. First see to it that the worker can write them (docs/runbooks): what it
cannot write dies again. One whose record is there by now changes nothing, so that it
may be repeated, and must be after an error. With SQS, one that is behind ten others
of its group is seen by the next run.

Exit status: 0 redriven, if it is none, too; 1 not agreed, one was not found, or not
finished; 2 it could not be run.

Example:
  seatctl dlq redrive --all --data data/local`
}

// redriven is what the command tells.
type redriven struct {
	Redriven int          `json:"redriven"`
	Queue    queueFigures `json:"queue"`
}

// Run is the command.
func (c *dlqRedriveCommand) Run(s *session) (err error) {
	if c.All == (len(c.ID) > 0) {
		return errors.New("name each ID, or give --all")
	}
	o, err := s.open(false)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, o.Close()) }()
	d := o.DeadLetters()
	before, err := d.Stats(s.ctx)
	if err != nil {
		return err
	}
	letters, n, subject := []saleops.DeadLetter(nil), before.Dead, "all"
	if !c.All {
		letters, err = d.Find(s.ctx, deadSeen, c.ID...)
		switch {
		case errors.Is(err, saleops.ErrNoDeadLetter):
			return wrong(fmt.Errorf("%w: nothing was changed", err))
		case err != nil:
			return err
		}
		n, subject = len(letters), strings.Join(c.ID, " ")
	}
	if err := s.agreed(c.Yes, fmt.Sprintf("This has %d of %d dead letters delivered again.", n, before.Dead)); err != nil {
		return err
	}
	var out redriven
	err = s.mutate(o, mutation{What: "dlq redrive", Subject: subject, Before: figuresOf(before)}, func(ctx context.Context) (any, error) {
		var err error
		if c.All {
			out.Redriven, err = d.RedriveAll(ctx)
		} else {
			out.Redriven, err = d.Redrive(ctx, letters)
		}
		if err != nil {
			err = wrong(fmt.Errorf("%d were redriven, then: %w: repeat it", out.Redriven, err))
		}
		return map[string]int{"redriven": out.Redriven}, err
	})
	after, statsErr := d.Stats(s.ctx)
	if statsErr != nil {
		return errors.Join(err, fmt.Errorf("%d were redriven; how many are left is not known: %w", out.Redriven, statsErr))
	}
	out.Queue = figuresOf(after)
	if c.JSON {
		return cmp.Or(err, s.printJSON(out))
	}
	_, told := fmt.Fprintf(s.stdout, "%d redriven\n%s", out.Redriven, tellQueue(after))
	return cmp.Or(err, told)
}
