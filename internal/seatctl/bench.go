package seatctl

import "holdfast/internal/bench"

type benchCommand struct {
	Hotpath      hotpathCommand      `cmd:"" help:"Measure the rejection path against what it is built of."`
	Alternatives alternativesCommand `cmd:"" help:"Sell one hot level by our script and by other ways."`
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

type hotpathCommand struct{ benchFlags }

// Run is the command.
func (*hotpathCommand) Run(s *session) error {
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
