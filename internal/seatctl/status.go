package seatctl

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"golang.org/x/term"

	rulesfiles "holdfast/deploy/prometheus"
	"holdfast/internal/alarms"
	"holdfast/internal/saleops"
)

type statusCommand struct {
	Watch bool          `help:"Look again and again, until interrupted; on a terminal in place."`
	Every time.Duration `help:"Time between two looks." default:"2s" placeholder:"DURATION"`
	Rules []string      `help:"Rules files to judge alarms by, recording rules first, instead of those built in." placeholder:"FILE" type:"existingfile"`
	JSON  bool          `help:"Print one JSON document for each look, a line each with --watch."`
}

// Help is kong's detailed help.
func (*statusCommand) Help() string {
	return `Seats by level, admissions a minute, rows by phase and age, rows in doubt, paid seats,
refunds that are due, the queue's age and depth, dead letters, the last sweep,
acknowledgement failures, and the alarms. Redis, queue and store are asked directly;
the processes by their metrics, at HOLDFAST_METRICS_URLS. It changes nothing.

What could not be read is shown as unknown, never as 0. The alarms are those of the
rules in deploy/prometheus, judged over what this command itself has seen: two looks
alone judge few of them, a longer --watch more. One that looks further back is "not
enough history", one whose metric no process gives is "no data": neither is fine.

Exit status: 0 all was read and no alarm fires; 1 an alarm fires, or a part is unknown
(with --watch, interrupted: 0); 2 it could not be run.

Example:
  seatctl status --watch --data data/local`
}

// Run is the command.
func (c *statusCommand) Run(s *session) (err error) {
	if c.Every < time.Second {
		return errors.New("--every: want 1s or more")
	}
	rules := rulesfiles.Rules()
	if len(c.Rules) > 0 {
		rules = nil
		for _, path := range c.Rules {
			text, err := os.ReadFile(path)
			if err != nil {
				return fmt.Errorf("--rules: %w", err)
			}
			rules = append(rules, text)
		}
	}
	o, err := s.open(false)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, o.Close()) }()
	w, end, err := watchAlarms(o, rules...)
	if err != nil {
		return err
	}
	defer end()
	l := &looker{sighter: o.Sighter(), watch: w, now: time.Now}
	if c.Watch {
		return s.watchStatus(c, l)
	}
	return s.printStatus(c, l)
}

// printStatus looks twice, since one look has no rates.
func (s *session) printStatus(c *statusCommand, l *looker) error {
	l.look(s.ctx)
	if err := sleep(s.ctx, c.Every); err != nil {
		return err
	}
	v := l.look(s.ctx)
	var err error
	if c.JSON {
		err = s.printJSON(v)
	} else {
		width := 80
		if n, _, ok := terminal(s.stdout); ok {
			width = n
		}
		_, err = fmt.Fprint(s.stdout, screen{width: width, colour: s.colour()}.draw(v))
	}
	if err == nil && (len(v.Unknown) > 0 || v.firing() > 0) {
		err = wrong(nil)
	}
	return err
}

// watchStatus looks until it is interrupted: that is how it ends, and no error.
func (s *session) watchStatus(c *statusCommand, l *looker) (err error) {
	_, _, inPlace := terminal(s.stdout)
	if inPlace && !c.JSON {
		fmt.Fprint(s.stdout, hideCursor+clearScreen)
		defer fmt.Fprint(s.stdout, showCursor+"\n")
	}
	for {
		began := l.now()
		v := l.look(s.ctx)
		if s.ctx.Err() != nil {
			return nil
		}
		width, height, _ := terminal(s.stdout)
		switch {
		case c.JSON:
			err = json.NewEncoder(s.stdout).Encode(v)
		case inPlace:
			_, err = fmt.Fprint(s.stdout, screen{width: width, height: height, colour: s.colour()}.inPlace(v))
		default:
			_, err = fmt.Fprintln(s.stdout, screen{width: 80}.draw(v))
		}
		if err != nil {
			return err
		}
		if sleep(s.ctx, max(0, c.Every-l.now().Sub(began))) != nil {
			return nil
		}
	}
}

// sleep passes time by the clock; its error is ctx's.
func sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// terminal is the size of the terminal that w writes to; false when it is none.
func terminal(w io.Writer) (width, height int, ok bool) {
	f, is := w.(*os.File)
	if !is {
		return 0, 0, false
	}
	width, height, err := term.GetSize(int(f.Fd()))
	return width, height, err == nil && width > 0 && height > 0
}

// colour tells whether to use it: on a terminal, unless NO_COLOR says otherwise.
func (s *session) colour() bool {
	_, _, ok := terminal(s.stdout)
	return ok && s.getenv("NO_COLOR") == ""
}

// view is everything that status shows.
type view struct {
	At time.Time `json:"at"`
	saleops.Sight
	// AdmissionsAMinute counts seats given, those that came back besides; SeatsAMinute
	// is how the admitted seats grew. Both over OverSeconds; nil when unknown.
	AdmissionsAMinute *float64 `json:"admissions_a_minute"`
	SeatsAMinute      *float64 `json:"seats_a_minute"`
	OverSeconds       float64  `json:"over_seconds"`
	// LastSweep is when a reconciler last looked at every due row; nil when unknown.
	LastSweep *time.Time `json:"last_sweep"`
	// AckFailures counts since the processes began, AckFailuresRecent in the last
	// OverSeconds; nil when unknown.
	AckFailures       *float64 `json:"ack_failures"`
	AckFailuresRecent *float64 `json:"ack_failures_recent"`
	// Processes are those of HOLDFAST_METRICS_URLS.
	Processes []alarms.Target `json:"processes"`
	Alarms    []alarms.Alarm  `json:"alarms"`
}

func (v view) firing() int { return alarms.Count(v.Alarms)[alarms.StateFiring] }

const (
	partProcesses = "processes"
	partSweep     = "last sweep"
	partAdmitted  = "admissions"
	partAcks      = "acknowledgement failures"
	// rateOver is the time over which rates are told.
	rateOver = time.Minute
	// An API gives admissions from its start on, and failures from the first one on: so
	// a process that gives the one has none of the other.
	admittedQuery = `sum(holdfast_admission_total{outcome="admitted"})`
	acksQuery     = `sum(holdfast_ack_failures_total) or sum(holdfast_admission_total) * 0`
)

// looker makes one view after the other.
type looker struct {
	sighter *saleops.Sighter
	watch   *alarms.Watch // nil: nobody said where the processes are
	now     func() time.Time

	admitted, seats, acks history
}

// look asks everything once.
func (l *looker) look(ctx context.Context) view {
	v := view{Processes: []alarms.Target{}, Alarms: []alarms.Alarm{}}
	var scraping sync.WaitGroup
	if l.watch != nil {
		scraping.Go(func() { v.Processes = l.watch.Scrape(ctx) })
	}
	sight := l.sighter.Look(ctx)
	scraping.Wait()
	v.At, v.Sight = l.now(), sight
	if v.Seats != nil && v.Seats.Admitted != nil {
		l.seats.add(v.At, float64(*v.Seats.Admitted))
	}
	v.SeatsAMinute, v.OverSeconds = l.seats.perMinute(v.At)
	if l.watch == nil {
		for _, part := range []string{partProcesses, partSweep, partAdmitted, partAcks} {
			v.Unknown[part] = "HOLDFAST_METRICS_URLS does not say where the processes are"
		}
		return v
	}
	l.ask(ctx, &v)
	v.Alarms = l.watch.Judge(ctx)
	return v
}

// ask reads what the processes say.
func (l *looker) ask(ctx context.Context, v *view) {
	for _, t := range v.Processes {
		if t.Error != "" {
			v.Unknown[partProcesses] = "not all of them answer"
		}
	}
	ask := func(part, query string) (float64, bool) {
		value, ok, err := one(ctx, l.watch, query)
		switch {
		case err != nil:
			v.Unknown[part] = err.Error()
		case !ok:
			v.Unknown[part] = "no process says"
		}
		return value, ok && err == nil
	}
	if sweep, ok := ask(partSweep, sweepQuery); ok {
		if sweep > 0 {
			at := time.UnixMilli(int64(sweep * 1000)).UTC()
			v.LastSweep = &at
		} else {
			v.Unknown[partSweep] = "none since the processes began"
		}
	}
	if n, ok := ask(partAdmitted, admittedQuery); ok {
		l.admitted.add(v.At, n)
		v.AdmissionsAMinute, _ = l.admitted.perMinute(v.At)
	}
	if n, ok := ask(partAcks, acksQuery); ok {
		l.acks.add(v.At, n)
		v.AckFailures = &n
		if per, over := l.acks.perMinute(v.At); per != nil {
			recent := *per * over / 60
			v.AckFailuresRecent = &recent
		}
	}
}

// history is a count over the last minute.
type history struct{ points []counted }

type counted struct {
	at time.Time
	n  float64
}

// add forgets what is older than a minute, but for the last before it.
func (h *history) add(at time.Time, n float64) {
	h.points = append(h.points, counted{at, n})
	for len(h.points) > 2 && at.Sub(h.points[1].at) >= rateOver {
		h.points = h.points[1:]
	}
}

// perMinute is how the count grew, and over how many seconds; nil when there is no
// earlier count, or none of now.
func (h *history) perMinute(now time.Time) (*float64, float64) {
	if len(h.points) < 2 || !h.points[len(h.points)-1].at.Equal(now) {
		return nil, 0
	}
	first, last := h.points[0], h.points[len(h.points)-1]
	over := last.at.Sub(first.at)
	if over <= 0 {
		return nil, 0
	}
	grew := (last.n - first.n) / over.Minutes()
	return &grew, over.Seconds()
}
