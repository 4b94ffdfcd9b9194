package seatctl

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"holdfast/internal/rehearse"
)

type rehearseCommand struct {
	Seed       uint64        `help:"Who comes and what they do; the same seed, the same crowd. Without it one by chance." placeholder:"N"`
	Scale      float64       `help:"Of candidates, seats and rate together; 1 is the launch of the design." default:"1" placeholder:"X"`
	Rate       float64       `help:"Bookings a second in the rush; without it 2,000 times the scale." placeholder:"N"`
	For        time.Duration `help:"How long the rush lasts." default:"25s" placeholder:"DURATION"`
	Hold       time.Duration `help:"Time to pay; without it a minute, or 10 s below scale 0.2." placeholder:"DURATION"`
	Candidates int           `help:"How many are on the list; without it 40,000 times the scale." placeholder:"N"`
	Latency    time.Duration `name:"gateway-latency" help:"The gateway's in the rush, at the 99th percentile." default:"4.1s" placeholder:"DURATION"`
	Faults     []string      `help:"What breaks meanwhile, in this order: api, worker, redis, gateway, queue, replies; or all. Not with --target." placeholder:"FAULT"`
	Target     string        `help:"Rehearse on the deployment at this address, whose gateway must be the mock, and not on one of its own." placeholder:"URL"`
	Out        string        `help:"Write the report into this file." default:"rehearsal.html" placeholder:"FILE"`
	Keep       string        `help:"Keep the rehearsal's files in this new folder, and its own deployment's and the logs." placeholder:"DIR"`
	Profile    string        `help:"Write the API's processor profile of the rush into this file, for go tool pprof." placeholder:"FILE"`
	JSON       bool          `help:"Print the report as one JSON document."`
}

// Help is kong's detailed help.
func (*rehearseCommand) Help() string {
	return `Runs a launch on this machine, on a deployment of its own that it starts and ends: a
Redis pair, the mock gateway, the API and the worker. By the operator's own commands it
applies a sale, begins it anew, loads the list, opens; then a crowd books at a rate that
does not wait for the answers, pays, abandons, comes back, tries what it may not, until
everybody has paid or given up; then it closes, waits for the last hold, audits with the
gateway's word, and writes a report to look at. It touches no other deployment.

It needs a redis-server on the PATH. At scale 1 it takes about four minutes and all of
two cores; 0.05 takes less than one.

With --target it runs the same day on a deployment that is there, by its operator's
settings: the HOLDFAST_* variables, or --data. It begins the sale there anew. So it
refuses, with nothing changed: a gateway at HOLDFAST_GATEWAY_URL that does not say that it
is the mock; a sale of another name than "rehearsal"; a booking store that has records and
no sale; an earlier rehearsal that is not over. Before anybody books, the address must show
what the settings did; a payment link that leads elsewhere than to a mock ends it. The
mock's latency is put back at the end. Sale, list and bookings stay, closed; interrupted,
it says how it left them. Have the deployment send its mail nowhere: each paid seat has a
confirmation, to an address of example.org.

Exit status: 0 every rule holds; 1 one does not, and the report says which; 2 it could
not be run, or what it has started or changed was not ended.

Example:
  seatctl rehearse --scale 0.05 --out rehearsal.html
  seatctl rehearse --target https://rehearsal.example.org --scale 0.2`
}

// Run is the command.
func (c *rehearseCommand) Run(s *session) (err error) {
	switch {
	case c.Target == "" && s.data != "":
		return errors.New("--data: a rehearsal starts a deployment of its own: give --target URL too, to rehearse on that one")
	case c.Target != "" && len(c.Faults) > 0:
		return errors.New("--faults: a rehearsal breaks nothing that it has not started: leave --target out")
	case c.Target != "" && c.Profile != "":
		return errors.New("--profile: a rehearsal looks into no process that it has not started: leave --target out")
	}
	o := rehearse.Options{
		Seed: c.Seed, Scale: c.Scale, Rate: c.Rate, For: c.For, Hold: c.Hold, Candidates: c.Candidates, RushLatency: c.Latency,
		Log: s.stderr, Dir: c.Keep, Target: strings.TrimRight(c.Target, "/"), Platform: s.platform,
		Ctl: func(ctx context.Context, args []string, getenv func(string) string, stdin io.Reader, stdout, stderr io.Writer) int {
			return Run(ctx, s.platform, args, getenv, stdin, stdout, stderr)
		},
	}
	if c.Target != "" {
		if o.Getenv, err = s.settings(); err != nil {
			return err
		}
		o.Ctl = func(ctx context.Context, args []string, _ func(string) string, stdin io.Reader, stdout, stderr io.Writer) int {
			// As this very command was given, so that the operator's log has the same person.
			if s.data != "" {
				args = append([]string{"--data", s.data}, args...)
			}
			return Run(ctx, s.platform, args, s.getenv, stdin, stdout, stderr)
		}
	}
	if c.Scale <= 0 || c.Rate < 0 || c.For <= 0 || c.Hold < 0 || c.Candidates < 0 || c.Latency < 0 {
		return errors.New("--scale and --for: want more than 0; --rate, --hold, --candidates and --gateway-latency: want no less")
	}
	if o.Seed == 0 {
		o.Seed = rand.Uint64()
	}
	for _, name := range c.Faults {
		switch {
		case name == "all":
			o.Faults = append(o.Faults, rehearse.Faults()...)
		case slices.Contains(rehearse.Faults(), rehearse.Fault(name)):
			o.Faults = append(o.Faults, rehearse.Fault(name))
		default:
			return fmt.Errorf("--faults %q: want api, worker, redis, gateway, queue, replies or all", name)
		}
	}
	// Asked for before minutes have gone by.
	out, err := os.OpenFile(c.Out, os.O_WRONLY|os.O_CREATE, 0o644) // an earlier report stays until there is another
	if err != nil {
		return fmt.Errorf("--out: %w", err)
	}
	defer func() { err = errors.Join(err, out.Close()) }()
	if c.Profile != "" {
		profile, err := os.Create(c.Profile)
		if err != nil {
			return fmt.Errorf("--profile: %w", err)
		}
		defer func() { _ = profile.Close() }() // a profile that is cut short tells pprof so
		o.Profile = profile
	}
	if o.Dir == "" {
		if o.Dir, err = os.MkdirTemp("", "holdfast-rehearsal-"); err != nil {
			return err
		}
	} else if err := os.Mkdir(o.Dir, 0o700); err != nil {
		return fmt.Errorf("--keep: %w: want a folder that is not there yet", err)
	}
	r, trouble := rehearse.Run(s.ctx, o)
	if r.Verdict == "" {
		if os.Remove(o.Dir) == nil { // it was empty
			return trouble
		}
		return fmt.Errorf("%w; its files are in %s", trouble, o.Dir)
	}
	if err := errors.Join(out.Truncate(0), rehearse.Page(out, r)); err != nil {
		return fmt.Errorf("write %s: %w", c.Out, err)
	}
	holds := r.Verdict == rehearse.VerdictHolds
	if c.Keep == "" && holds && trouble == nil {
		if err := os.RemoveAll(o.Dir); err != nil {
			fmt.Fprintf(s.stderr, "%v\n", err)
		}
	} else {
		fmt.Fprintf(s.stderr, "files: %s\n", o.Dir)
	}
	fmt.Fprintf(s.stderr, "report: %s\n", c.Out)
	if c.JSON {
		err = s.printJSON(r)
	} else {
		err = tellRehearsal(s.stdout, r)
	}
	switch {
	case err != nil || trouble != nil:
		return errors.Join(err, trouble)
	case !holds:
		return wrong(nil)
	}
	return nil
}

func tellRehearsal(out io.Writer, r rehearse.Report) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintf(w, "%s\tseed %d, scale %g\n", strings.ToUpper(r.Verdict), r.Seed, r.Scale)
	fmt.Fprintf(w, "bookings\t%.0f a second of %.0f\n", r.RateAchieved, r.RateTarget)
	fmt.Fprintf(w, "sold\t%d of %d, over %d holds\n", r.Sold, r.Cap, r.HoldsCreated)
	for _, rule := range r.Rules {
		verdict := "holds"
		if !rule.Holds {
			verdict = "BROKEN"
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\n", verdict, rule.Name, rule.Figure, rule.Text)
	}
	return w.Flush()
}

// rehearsePartCommand is one process of a rehearsal, started by it.
type rehearsePartCommand struct {
	Name string   `arg:"" enum:"api,worker,gateway"`
	Args []string `arg:"" optional:""`
}

// Run is the command.
func (c *rehearsePartCommand) Run(s *session) error {
	return rehearse.Part(s.ctx, c.Name, c.Args, s.getenv, s.stdout, s.stderr)
}
