package seatctl

import (
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"os"
	"strings"

	"holdfast/internal/booking"
	"holdfast/internal/saleops"
)

type bookingsExportCommand struct {
	State string `help:"Those in this state: ${enum}." enum:"PAID,HELD,RELEASED,all" default:"PAID"`
	Out   string `help:"Write it into this new file, readable by its owner only; without it to stdout." placeholder:"FILE"`
	JSON  bool   `help:"Print one JSON document about the file; needs --out."`
}

// Help is kong's detailed help.
func (*bookingsExportCommand) Help() string {
	return `Writes the booking store's records as CSV, one line a booking, in no promised order;
docs/shapes.md says what its columns are. It reads and writes them one by one,
however many there are, and changes nothing.

A value that a spreadsheet would take for a formula has an apostrophe before it; what
reads the file for anything else takes one off. There are no e-mail addresses in it.
It is personal data all the same, of all sales that the store still has: keep it no
longer than it is needed. Nothing is left under --out unless it is whole.

Exit status: 0 written, whole; 1 written, without records that cannot be read, and
those are named; 2 it could not be run, or what was written is not whole.

Example:
  seatctl bookings export --state PAID --out paid.csv --data data/local`
}

// Run is the command.
func (c *bookingsExportCommand) Run(s *session) (err error) {
	if c.JSON && c.Out == "" {
		return errors.New("--json tells of the file: give --out FILE")
	}
	o, err := s.open(false)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, o.Close()) }()
	state := booking.RecordState(c.State)
	if c.State == "all" {
		state = ""
	}
	write := func(w io.Writer) (saleops.ExportDone, error) { return saleops.Export(s.ctx, o.Records(), state, w) }
	if c.Out == "" {
		done, err := write(s.stdout)
		if err != nil {
			return err
		}
		return c.unreadable(done)
	}
	fmt.Fprintf(s.stderr, "This writes the %s bookings into %s.\n", c.State, c.Out)
	done, err := exportInto(c.Out, write)
	if err != nil {
		return err
	}
	if c.JSON {
		err = s.printJSON(map[string]any{"file": c.Out, "state": c.State, "bookings": done.Bookings, "unreadable": append([]string{}, done.Unreadable...)})
	} else {
		_, err = fmt.Fprintf(s.stdout, "%d bookings are in %s\n", done.Bookings, c.Out)
	}
	return errors.Join(err, c.unreadable(done))
}

func (*bookingsExportCommand) unreadable(done saleops.ExportDone) error {
	if len(done.Unreadable) == 0 {
		return nil
	}
	return wrong(fmt.Errorf("%d records cannot be read and are not in it: attempts %s", len(done.Unreadable), strings.Join(done.Unreadable, ", ")))
}

// absent is an error when something has that path; "" is none.
func absent(path string) error {
	if path == "" {
		return nil
	}
	if _, err := os.Lstat(path); err == nil {
		return fmt.Errorf("%s: %w: name a new file", path, os.ErrExist)
	}
	return nil
}

// newFile makes a file that its owner only reads. Another's file, or one that others
// may read, is not written over.
func newFile(path string) (*os.File, error) {
	return os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
}

// exportInto writes a new file, or leaves none.
func exportInto(path string, write func(io.Writer) (saleops.ExportDone, error)) (saleops.ExportDone, error) {
	f, err := newFile(path)
	if err != nil {
		return saleops.ExportDone{}, fmt.Errorf("--out: %w", err)
	}
	done, err := write(f)
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return done, errors.Join(err, os.Remove(path))
	}
	return done, nil
}

// listLedger is the allowlist, and the sale that it is of.
type listLedger interface {
	Epoch(ctx context.Context) (string, error)
	Candidates(ctx context.Context) iter.Seq2[booking.Candidate, error]
}

// listOf is the allowlist of the sale in force. An empty Redis has no candidate, which
// is not the list: that is an error, at the end too when Redis was lost meanwhile.
func listOf(ctx context.Context, l listLedger) (iter.Seq2[booking.Candidate, error], error) {
	began, err := l.Epoch(ctx)
	if err != nil {
		return nil, unknownList(err)
	}
	return func(yield func(booking.Candidate, error) bool) {
		for c, err := range l.Candidates(ctx) {
			if !yield(c, err) {
				return
			}
		}
		switch now, err := l.Epoch(ctx); {
		case err != nil:
			yield(booking.Candidate{}, unknownList(err))
		case now != began:
			yield(booking.Candidate{}, booking.ErrAllowlistMoved)
		}
	}, nil
}

func unknownList(err error) error {
	if errors.Is(err, booking.ErrLedgerUnknown) {
		return wrong(fmt.Errorf("the allowlist is unknown, not empty: %w; then load the candidates again", err))
	}
	return err
}
