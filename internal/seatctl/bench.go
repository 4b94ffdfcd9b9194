package seatctl

import (
	"errors"
	"fmt"
	"os"
	"runtime/pprof"
	"time"

	"holdfast/internal/bench"
)

type benchCommand struct {
	Hotpath      hotpathCommand      `cmd:"" help:"Measure the rejection path against what it is built of."`
	Alternatives alternativesCommand `cmd:"" help:"Sell one hot level by our script and by other ways."`
	Gateway      gatewayCommand      `cmd:"" help:"Measure rejections while the payment gateway is slow."`
	Wave         waveCommand         `cmd:"" help:"Let many holds fall due within a minute and see them settled."`
	Worker       workerCommand       `cmd:"" help:"Measure the worker, from the durable queue to the durable store."`
}

// benchFlags: the figures have one form, which --json names for scripts.
type benchFlags struct {
	JSON bool `help:"Print one JSON document. It is the only form."`
}

// Help is kong's detailed help.
func (benchFlags) Help() string {
	return `Starts servers of its own on free loopback ports and touches no deployment. How
far it is goes to stderr, the figures as one JSON document to stdout.

Exit status: 0 measured; 2 it could not be run.

Example:
  seatctl bench hotpath --json > hotpath.json`
}

type hotpathCommand struct {
	benchFlags
	Profile string `help:"Write this process's processor profile into this file, for go tool pprof." placeholder:"FILE"`
}

// Run is the command.
func (c *hotpathCommand) Run(s *session) (err error) {
	if c.Profile != "" {
		out, err := os.Create(c.Profile)
		if err != nil {
			return fmt.Errorf("--profile: %w", err)
		}
		if err := pprof.StartCPUProfile(out); err != nil {
			return errors.Join(err, out.Close())
		}
		defer func() {
			pprof.StopCPUProfile()
			_ = out.Close() // StopCPUProfile has no error either
		}()
	}
	r, err := bench.Hotpath(s.ctx, s.stderr)
	if err != nil {
		return err
	}
	return s.printJSON(r)
}

type alternativesCommand struct{ benchFlags }

// Run is the command.
func (*alternativesCommand) Run(s *session) error {
	r, err := bench.Alternatives(s.ctx, s.stderr)
	if err != nil {
		return err
	}
	return s.printJSON(r)
}

type gatewayCommand struct{ benchFlags }

// Run is the command.
func (*gatewayCommand) Run(s *session) error {
	r, err := bench.Gateway(s.ctx, bench.DefaultGateway(), s.stderr)
	if err != nil {
		return err
	}
	return s.printJSON(r)
}

type waveCommand struct {
	benchFlags
	Holds   int           `help:"How many holds fall due." default:"20000"`
	Latency time.Duration `help:"What the gateway takes for an answer." default:"100ms"`
}

// Help is kong's detailed help.
func (waveCommand) Help() string {
	return `Starts servers of its own on free loopback ports and touches no deployment. How
far it is goes to stderr, the figures as one JSON document to stdout.

Exit status: 0 every hold was settled within two minutes, oldest first and under
the query rate; 1 not so, and stderr says what; 2 it could not be run.

Example:
  seatctl bench wave --holds 2000 --json > wave.json`
}

// Run is the command.
func (c *waveCommand) Run(s *session) error {
	o := bench.DefaultWave()
	o.Holds, o.Latency = c.Holds, c.Latency
	r, err := bench.Wave(s.ctx, o, s.stderr)
	if err != nil {
		return err
	}
	if err := s.printJSON(r); err != nil {
		return err
	}
	if err := r.Check(); err != nil {
		return wrong(err)
	}
	return nil
}

type workerCommand struct {
	benchFlags
	Records  int    `help:"How many records are queued before each round." default:"10000"`
	Emulator string `help:"Measure over the AWS emulator at this URL too, with 200 records at most." placeholder:"URL"`
}

// Help is kong's detailed help.
func (workerCommand) Help() string {
	return `Works in a folder of its own for temporary files, which must be on a disk, and
touches no deployment. How far it is goes to stderr, the figures as one JSON
document to stdout.

--emulator measures the drivers of SQS and DynamoDB too, over a running emulator;
docs/benchmarks.md says how to start one. Those figures, emulator_*, tell the
emulator's speed and not that of AWS. What is made there, a queue and a table each
round, stays until the emulator ends.

Exit status: 0 measured, every record written once and in the order of its group;
2 not so, or it could not be run.

Example:
  seatctl bench worker --json > worker.json
  seatctl bench worker --emulator http://127.0.0.1:5000 --json`
}

// Run is the command.
func (c *workerCommand) Run(s *session) error {
	o := bench.DefaultWorker()
	o.Records, o.Emulator = c.Records, c.Emulator
	r, err := bench.Worker(s.ctx, o, s.stderr)
	if err != nil {
		return err
	}
	return s.printJSON(r)
}
