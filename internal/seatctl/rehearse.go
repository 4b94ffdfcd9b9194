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
	Faults     []string      `help:"What breaks meanwhile, in this order: api, worker, redis, gateway, queue, replies; or all." placeholder:"FAULT"`
	Out        string        `help:"Write the report into this file." default:"rehearsal.html" placeholder:"FILE"`
	Keep       string        `help:"Keep the deployment's files and logs in this new folder." placeholder:"DIR"`
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

It needs a redis-server on the PATH. At scale 1 it takes about six minutes and all of
two cores; 0.05 takes less than one.

Exit status: 0 every rule holds; 1 one does not, and the report says which; 2 it could
not be run.

Example:
  seatctl rehearse --scale 0.05 --out rehearsal.html`
}

// Run is the command.
func (c *rehearseCommand) Run(s *session) (err error) {
	if s.data != "" {
		return errors.New("--data: a rehearsal starts a deployment of its own")
	}
	o := rehearse.Options{
		Seed: c.Seed, Scale: c.Scale, Rate: c.Rate, For: c.For, Hold: c.Hold, Candidates: c.Candidates, RushLatency: c.Latency,
		Log: s.stderr, Dir: c.Keep,
		Ctl: func(ctx context.Context, args []string, getenv func(string) string, stdin io.Reader, stdout, stderr io.Writer) int {
			return Run(ctx, s.platform, args, getenv, stdin, stdout, stderr)
		},
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
	if o.Dir == "" {
		if o.Dir, err = os.MkdirTemp("", "holdfast-rehearsal-"); err != nil {
			return err
		}
	} else if err := os.Mkdir(o.Dir, 0o700); err != nil {
		return fmt.Errorf("--keep: %w: want a folder that is not there yet", err)
	}
	// Asked for before six minutes have gone by.
	out, err := os.Create(c.Out)
	if err != nil {
		return fmt.Errorf("--out: %w", err)
	}
	defer func() { err = errors.Join(err, out.Close()) }()
	r, err := rehearse.Run(s.ctx, o)
	if err != nil {
		return fmt.Errorf("%w; its files and logs are in %s", err, o.Dir)
	}
	if err := rehearse.Page(out, r); err != nil {
		return fmt.Errorf("write %s: %w", c.Out, err)
	}
	holds := r.Verdict == rehearse.VerdictHolds
	if c.Keep == "" && holds {
		if err := os.RemoveAll(o.Dir); err != nil {
			fmt.Fprintf(s.stderr, "%v\n", err)
		}
	} else {
		fmt.Fprintf(s.stderr, "files and logs: %s\n", o.Dir)
	}
	fmt.Fprintf(s.stderr, "report: %s\n", c.Out)
	if c.JSON {
		err = s.printJSON(r)
	} else {
		err = tellRehearsal(s.stdout, r)
	}
	if err == nil && !holds {
		err = wrong(nil)
	}
	return err
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
