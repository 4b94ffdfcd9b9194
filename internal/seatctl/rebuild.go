package seatctl

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"

	"holdfast/internal/app"
	"holdfast/internal/booking"
	"holdfast/internal/salefile"
	"holdfast/internal/saleops"
)

type rebuildCommand struct {
	Reason  string `help:"Why; kept in the operator's log." required:"" placeholder:"TEXT"`
	Sale    string `help:"Sale file. Without it the sale that Redis still has." placeholder:"FILE"`
	Epoch   string `help:"The sale that runs, by its epoch, where the store has two that claim to: for the person who has decided it." placeholder:"EPOCH"`
	Confirm string `help:"The sale's name, instead of typing it." placeholder:"NAME"`
	JSON    bool   `help:"Print one JSON document."`
}

// Help is kong's detailed help.
func (*rebuildCommand) Help() string {
	return `For a Redis that was lost: it has no epoch, says "unknown", and sells nothing.
First every record past its deadline comes to its end by the gateway's word;
then rows and counters are restored from the booking store, then the epoch and what
was decided about late money. It refuses while messages are on their way, when the
ledger is there, while booking is open or would open by itself, when a record or a
refund cannot be read, and when a cap would be exceeded. Booking stays closed, and
the candidates must be loaded again.

When Redis had lost a reset and the sale that it ended went on, the store has two sales
that claim to be the running one: it refuses, and a person must say which, with --epoch.
The other's seats are then nobody's, and people who have paid for them need their money
back. What was said stays said, for later rebuilds too.

Run it again until it says "rebuilt": it starts anew, and of two runs at the same
time only the one that began last goes on. A run whose last steps were not all
acknowledged leaves a ledger that sells once it is opened; the next run finds it,
finishes it, and says so.

Exit status: 0 rebuilt, by this run or an earlier one, and acknowledged; 1 refused,
or not finished, or rebuilt and a seat is paid by money that has a refund; 2 it
could not be run.

Example:
  seatctl rebuild --reason "primary and replica lost" --sale sale.yaml
  seatctl rebuild --reason "reset lost, nothing was sold after it" --epoch 1ngtsa07kq3m`
}

// rebuilt is what the command tells.
type rebuilt struct {
	Sale     string         `json:"sale"`
	Reason   string         `json:"reason"`
	Epoch    string         `json:"epoch"`
	Total    int            `json:"total"`
	Admitted map[string]int `json:"admitted"`
	Paid     int            `json:"paid"`
	Held     int            `json:"held"`
	Released int            `json:"released"`
	Doubtful int            `json:"doubtful"`
	// Refunded, Decided and Contradicted are those of saleops.Rebuilt.
	Refunded     int `json:"refunded"`
	Decided      int `json:"decided"`
	Contradicted int `json:"contradicted"`
	// Earlier: an earlier run did it; this one had it acknowledged, and knows
	// nothing of what that one released and doubted.
	Earlier bool `json:"earlier"`
}

// Run is the command.
func (c *rebuildCommand) Run(s *session) (err error) {
	if strings.TrimSpace(c.Reason) == "" {
		return errors.New("--reason: say why")
	}
	o, err := s.open(true)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, o.Close()) }()
	sale, err := c.sale(s, o)
	if err != nil {
		return err
	}
	epoch, err := c.shut(s, o)
	if err != nil {
		return err
	}
	what := fmt.Sprintf("This restores the seats of sale %s into an empty Redis, from the booking store,\nand releases what is past its deadline and not paid.", sale.Name)
	before := map[string]string{"epoch": epoch}
	if c.Epoch != "" {
		what += fmt.Sprintf("\nIt takes the sale of epoch %s because you say so. What other sales have sold is\nthen nobody's seat, and this cannot be taken back.", c.Epoch)
		before["chosen"] = c.Epoch
	}
	if err := s.typed(sale.Name, c.Confirm, what); err != nil {
		return err
	}
	var out *rebuilt
	err = s.mutate(o, mutation{
		What: "rebuild", Subject: sale.Name, Reason: c.Reason, Before: before,
	}, func(ctx context.Context) (any, error) {
		// Somebody may have opened booking of an earlier run's ledger since.
		switch now, err := c.shut(s, o); {
		case err != nil:
			return nil, err
		case now != epoch:
			return nil, notAsShown()
		}
		if err := c.choose(ctx, o); err != nil {
			return nil, err
		}
		did, err := o.Ops.Rebuild(ctx, sale)
		figures := tellRebuilt(sale.Name, c.Reason, did)
		switch {
		case errors.Is(err, saleops.ErrNotLost), errors.Is(err, saleops.ErrNotDrained), errors.Is(err, saleops.ErrTwoSales):
			return nil, refused(fmt.Errorf("%w: nothing was changed", err))
		case err != nil:
			return figures, wrong(fmt.Errorf("rebuild not finished: %w", err))
		}
		out = &figures
		return figures, nil
	})
	if out == nil {
		return err
	}
	if c.JSON {
		err = cmp.Or(err, s.printJSON(out))
	} else {
		err = cmp.Or(err, s.printRebuilt(*out))
	}
	if err == nil && out.Contradicted > 0 {
		err = wrong(nil)
	}
	return err
}

// choose writes down which sale is rebuilt, where the operator says so.
func (c *rebuildCommand) choose(ctx context.Context, o *app.Operator) error {
	if c.Epoch == "" {
		return nil
	}
	switch err := o.Resetter().Choose(ctx, c.Epoch); {
	case errors.Is(err, saleops.ErrNotLost), errors.Is(err, saleops.ErrNotDrained), errors.Is(err, saleops.ErrNoSuchEpoch):
		return refused(fmt.Errorf("%w: nothing was changed", err))
	case err != nil:
		return wrong(fmt.Errorf("rebuild not finished: %w", err))
	}
	return nil
}

func tellRebuilt(sale, reason string, did saleops.Rebuilt) rebuilt {
	return rebuilt{
		Sale: sale, Reason: reason, Epoch: did.Epoch, Total: did.Total, Admitted: did.Admitted,
		Paid: did.Paid, Held: did.Held, Released: did.Released, Doubtful: did.Doubtful,
		Refunded: did.Refunded, Decided: did.Decided, Contradicted: did.Contradicted, Earlier: did.Earlier,
	}
}

// shut tells the ledger's epoch, if it has one. It refuses a Redis that would sell as
// soon as it has one, and to go on with an earlier run while booking is open: without
// an epoch nobody can switch, so that what is seen here stays.
func (c *rebuildCommand) shut(s *session, o *app.Operator) (epoch string, err error) {
	epoch, err = o.Gate.Epoch(s.ctx)
	if err != nil && !errors.Is(err, booking.ErrLedgerUnknown) {
		return "", err
	}
	unfinished, err := o.Gate.UnfinishedRebuild(s.ctx)
	if err != nil || epoch != "" && unfinished == "" { // not lost: the rebuild says so
		return epoch, err
	}
	switch opens, err := o.Gate.Opens(s.ctx); {
	case err != nil:
		return "", err
	case opens && epoch == "":
		return "", refused(errors.New("this Redis has lost its epoch but not its switch, and would sell as soon as it is rebuilt: it did not come back empty; empty it, then rebuild: nothing was changed"))
	case opens:
		return "", refused(errors.New("booking is open, or will open by itself: run seatctl close, then rebuild: nothing was changed"))
	}
	return epoch, nil
}

func (c *rebuildCommand) sale(s *session, o *app.Operator) (booking.Sale, error) {
	if c.Sale == "" {
		sale, err := o.Gate.Sale(s.ctx)
		if errors.Is(err, booking.ErrNotFound) {
			err = errors.New("redis has lost the sale too: give --sale FILE")
		}
		return sale, err
	}
	f, err := os.Open(c.Sale)
	if err != nil {
		return booking.Sale{}, fmt.Errorf("sale file: %w", err)
	}
	defer func() { _ = f.Close() }() // only read
	sale, err := salefile.Sale(f)
	if err != nil {
		return booking.Sale{}, fmt.Errorf("sale file %s: %w", c.Sale, err)
	}
	return sale, nil
}

func (s *session) printRebuilt(r rebuilt) error {
	var b strings.Builder
	fmt.Fprintf(&b, "rebuilt sale %s, epoch %s: %s\n", r.Sale, r.Epoch, r.Reason)
	fmt.Fprintf(&b, "  seats     %d: %d paid, %d held\n", r.Total, r.Paid, r.Held)
	for _, level := range slices.Sorted(maps.Keys(r.Admitted)) {
		fmt.Fprintf(&b, "    %-8s%d\n", level, r.Admitted[level])
	}
	if !r.Earlier {
		fmt.Fprintf(&b, "  released  %d, past their deadline and not paid\n", r.Released)
		fmt.Fprintf(&b, "  refunded  %d, ended because their money goes back\n", r.Refunded)
		fmt.Fprintf(&b, "  in doubt  %d, kept\n", r.Doubtful)
	}
	fmt.Fprintf(&b, "  refunds   %d, and the ledger knows their decision again\n", r.Decided)
	if r.Contradicted > 0 {
		fmt.Fprintf(&b, "  BOTH      %d seats are paid by money that has a refund: see the log and seatctl audit\n", r.Contradicted)
	}
	if r.Earlier {
		fmt.Fprintln(&b, "An earlier run restored them and wrote the epoch; now all of it is acknowledged.")
		fmt.Fprintln(&b, "Run seatctl audit. Unless that is done, load the candidates, then open.")
	} else {
		fmt.Fprintln(&b, "Booking is closed. Run seatctl audit, load the candidates, then open.")
	}
	_, err := fmt.Fprint(s.stdout, b.String())
	return err
}
