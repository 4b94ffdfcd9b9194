package seatctl

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"

	"holdfast/internal/admission"
	"holdfast/internal/app"
	"holdfast/internal/booking"
	"holdfast/internal/salefile"
	"holdfast/internal/saleops"
)

type saleCommand struct {
	Apply saleApplyCommand `cmd:"" help:"Put a sale file into force: levels, caps, fees, hold."`
	Show  saleShowCommand  `cmd:"" help:"Show the sale in force, and how much of it is taken."`
}

type saleApplyCommand struct {
	File   string `arg:"" help:"Sale file (YAML)."`
	DryRun bool   `help:"Show the difference and what would be refused; change nothing."`
	Reason string `help:"Why, for the operator's log. Name no person." placeholder:"TEXT"`
	Yes    bool   `help:"Do it without asking."`
	JSON   bool   `help:"Print one JSON document."`
}

// Help is kong's detailed help.
func (*saleApplyCommand) Help() string {
	return `Shows what the file changes, level by level, with the seats that are taken; then one
acknowledged step puts it into force, if the sale is still the one that it was compared
with, and counts every level's seats from the ledger's own rows. Booking stays open or
closed as it is. A new fee is for seats admitted from then on.

Refused: a cap below the seats that are taken, and the removal of a level that has
any. The first sale of an empty Redis also writes the sale's epoch, and is refused
while the queue or the booking store holds anything: then Redis was lost, and
seatctl rebuild restores it.

Exit status: 0 in force, or compared and it fits; 1 refused, the file is wrong, not
agreed, or not acknowledged: run it again; 2 it could not be run.

Example:
  seatctl sale apply sale.yaml --dry-run --data data/local`
}

// saleTerms are a level's, for people.
type saleTerms struct {
	Name string `json:"name"`
	Cap  int    `json:"cap"`
	Fee  string `json:"fee"`
}

// levelChange is what a sale file does to one level.
type levelChange struct {
	ID       string     `json:"id"`
	Change   string     `json:"change"` // new, removed, changed or same
	Before   *saleTerms `json:"before,omitempty"`
	After    *saleTerms `json:"after,omitempty"`
	Admitted int        `json:"admitted"`
	Refused  string     `json:"refused,omitempty"`
}

// termChange is a change to the whole sale.
type termChange struct {
	What   string `json:"what"`
	Before string `json:"before"`
	After  string `json:"after"`
}

// saleChange is what the command tells.
type saleChange struct {
	Sale     string        `json:"sale"`
	First    bool          `json:"first"`
	DryRun   bool          `json:"dry_run"`
	Applied  bool          `json:"applied"` // acknowledged
	Epoch    string        `json:"epoch"`
	Admitted int           `json:"admitted"`
	Terms    []termChange  `json:"terms"`
	Levels   []levelChange `json:"levels"`
	Refused  []string      `json:"refused"`
	Error    string        `json:"error,omitempty"`

	shown      booking.Shown
	unreadable error // why the sale in force is not compared with
}

// starter puts a sale into force. saleops.Ops is one, with its real ledger or with
// one that only checks.
type starter interface {
	Start(ctx context.Context, sale booking.Sale) (saleops.Rebuilt, error)
}

// Run is the command.
func (c *saleApplyCommand) Run(s *session) (err error) {
	sale, err := readSaleFile(c.File)
	if err != nil {
		return err
	}
	o, err := s.open(false)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, o.Close()) }()
	out, err := planSale(s.ctx, o, sale)
	if err != nil {
		return err
	}
	out.DryRun = c.DryRun
	if err := s.showSaleChange(out); err != nil {
		return err
	}
	// Everything that would be refused is known before anybody is asked.
	over := shownLedger{o.Ops.Ledger, o.Gate, out.shown}
	out, err = out.put(s.ctx, checking(o.Ops, over), sale, "nothing was changed")
	if err != nil || c.DryRun {
		return c.tell(s, out, err)
	}
	if err := s.agreed(c.Yes, "This puts the sale into force."); err != nil {
		return err
	}
	err = s.mutate(o, mutation{What: "sale apply", Subject: sale.Name, Reason: c.Reason, Before: out.logged()}, func(ctx context.Context) (any, error) {
		var err error
		out, err = out.put(ctx, acting(o.Ops, over), sale, "not known to be in force, run it again")
		out.Applied = err == nil // acknowledged
		return map[string]any{"applied": out.Applied, "epoch": out.Epoch, "admitted": out.Admitted}, err
	})
	return c.tell(s, out, err)
}

// logged is what the operator's log has of it: what changes, not what stays.
func (c saleChange) logged() any {
	levels := []levelChange{}
	for _, l := range c.Levels {
		if l.Change != "same" {
			levels = append(levels, l)
		}
	}
	return struct {
		Epoch    string        `json:"epoch"`
		Admitted int           `json:"admitted"`
		Terms    []termChange  `json:"terms"`
		Levels   []levelChange `json:"levels"`
	}{c.Epoch, c.Admitted, c.Terms, levels}
}

func readSaleFile(path string) (booking.Sale, error) {
	f, err := os.Open(path)
	if err != nil {
		return booking.Sale{}, fmt.Errorf("sale file: %w", err)
	}
	defer func() { _ = f.Close() }() // only read
	sale, err := salefile.Sale(f)
	if err != nil {
		return booking.Sale{}, wrong(fmt.Errorf("%s: %w: nothing was changed", path, err))
	}
	return sale, nil
}

// acting puts it into force, a first sale only where nothing was ever sold.
func acting(ops *saleops.Ops, over shownLedger) starter {
	first := *ops
	first.Store, first.Ledger = emptyStore{ops.Store}, over
	return &first
}

// checking tells what acting would answer, and changes nothing.
func checking(ops *saleops.Ops, over shownLedger) starter {
	dry := *ops
	dry.Store, dry.Ledger = emptyStore{ops.Store}, checkedLedger{over}
	return &dry
}

// shownLedger is the ledger as the operator was shown it: what is decided about its
// epoch was decided then, and each step that changes something finds out whether it is
// still so.
type shownLedger struct {
	saleops.Ledger
	gate  *admission.Gate
	shown booking.Shown
}

// Epoch is the one that was shown.
func (l shownLedger) Epoch(context.Context) (string, error) {
	if l.shown.Epoch == "" {
		return "", booking.ErrLedgerUnknown
	}
	return l.shown.Epoch, nil
}

// ApplySale applies it over what was shown.
func (l shownLedger) ApplySale(ctx context.Context, sale booking.Sale, _ string, checkOnly bool) (booking.Applied, error) {
	did, err := l.gate.ApplySaleOver(ctx, l.shown, sale, checkOnly)
	if errors.Is(err, booking.ErrLedgerUnknown) { // it was there
		err = fmt.Errorf("%w: redis was emptied: %w", err, booking.ErrNotAsShown)
	}
	return did, err
}

// BeginRebuild is the first step of a first sale.
func (l shownLedger) BeginRebuild(ctx context.Context) (string, error) {
	token, err := l.Ledger.BeginRebuild(ctx)
	if errors.Is(err, admission.ErrHasEpoch) {
		err = fmt.Errorf("%w: %w", err, booking.ErrNotAsShown)
	}
	return token, err
}

// emptyStore is the booking store for a first sale: with anything in it there is no
// first sale.
type emptyStore struct{ saleops.Store }

var errNotFirst = errors.New("redis is empty and the booking store is not, so that redis was lost: restore it with seatctl rebuild")

// Empty is true, or errNotFirst.
func (s emptyStore) Empty(ctx context.Context) (bool, error) {
	empty, err := s.Store.Empty(ctx)
	if err == nil && !empty {
		err = errNotFirst
	}
	return empty, err
}

// checkedLedger is the ledger for a dry run.
type checkedLedger struct{ saleops.Ledger }

// ApplySale only checks.
func (l checkedLedger) ApplySale(ctx context.Context, sale booking.Sale, epoch string, _ bool) (booking.Applied, error) {
	return l.Ledger.ApplySale(ctx, sale, epoch, true)
}

// BeginRebuild begins nothing.
func (checkedLedger) BeginRebuild(context.Context) (string, error) { return "", nil }

// FinishRebuild is a first sale's last step: an empty ledger takes any.
func (checkedLedger) FinishRebuild(_ context.Context, sale booking.Sale, _, _ string) (booking.Applied, error) {
	return booking.Applied{}, sale.Validate()
}

// ForgetRebuild has nothing to forget.
func (checkedLedger) ForgetRebuild(context.Context, string) error { return nil }

// put has it put into force, or checked; the error is the command's, and unsure what it
// says when nobody knows more.
func (c saleChange) put(ctx context.Context, by starter, sale booking.Sale, unsure string) (saleChange, error) {
	did, err := by.Start(ctx, sale)
	switch {
	case err == nil:
		c.Admitted, c.Epoch = did.Total, cmp.Or(did.Epoch, c.Epoch)
		return c, nil
	case errors.Is(err, booking.ErrNotAsShown):
		return c, notAsShown()
	case errors.Is(err, booking.ErrCapBelowAdmitted), errors.Is(err, booking.ErrLevelHasSeats), errors.Is(err, errNotFirst), errors.Is(err, saleops.ErrNotDrained):
		if len(c.Refused) > 0 {
			err = fmt.Errorf("%w (%s)", err, strings.Join(c.Refused, "; "))
		} else if did.Total > 0 { // taken since they were counted
			err = fmt.Errorf("%w (%d seats are taken: %v)", err, did.Total, did.Admitted)
		}
		return c, refused(fmt.Errorf("refused: %w: nothing was changed", err))
	}
	return c, wrong(fmt.Errorf("%s: %w", unsure, err))
}

// planSale compares the file's sale with the one in force.
func planSale(ctx context.Context, o *app.Operator, sale booking.Sale) (saleChange, error) {
	stored, err := o.Gate.SaleFields(ctx) // before what is shown of it
	if err != nil {
		return saleChange{}, err
	}
	epoch, err := o.Gate.Epoch(ctx)
	first := errors.Is(err, booking.ErrLedgerUnknown)
	if err != nil && !first {
		return saleChange{}, err
	}
	var admitted map[string]int
	if !first {
		if admitted, err = admittedByLevel(ctx, o); err != nil {
			return saleChange{}, err
		}
	}
	before, err := o.Gate.Sale(ctx)
	var unreadable error
	switch {
	case errors.Is(err, booking.ErrLedgerDamaged):
		unreadable = err // to apply a sale is how it is mended
	case err != nil && !errors.Is(err, booking.ErrNotFound):
		return saleChange{}, err
	}
	c := compareSales(before, sale, admitted)
	c.First, c.Epoch, c.unreadable = first, epoch, unreadable
	c.shown = booking.Shown{Epoch: epoch, Sale: stored}
	return c, nil
}

// admittedByLevel counts the ledger's rows.
func admittedByLevel(ctx context.Context, o *app.Operator) (map[string]int, error) {
	level := map[string]string{} // by code: a scan may tell a row twice
	for row, err := range o.Gate.Rows(ctx) {
		switch {
		case err != nil:
			return nil, fmt.Errorf("count the seats: %w", err)
		case row.Err != nil:
			return nil, fmt.Errorf("count the seats: %w: run seatctl audit", row.Err)
		}
		level[row.Code] = row.Row.Level
	}
	admitted := map[string]int{}
	for _, id := range level {
		admitted[id]++
	}
	return admitted, nil
}

// compareSales is the difference; a before without a name is no sale.
func compareSales(before, after booking.Sale, admitted map[string]int) saleChange {
	c := saleChange{Sale: after.Name, Terms: []termChange{}, Refused: []string{}}
	term := func(what, was, is string) {
		if before.Name == "" {
			was = ""
		}
		if was != is {
			c.Terms = append(c.Terms, termChange{what, was, is})
		}
	}
	term("name", before.Name, after.Name)
	term("title", before.Title, after.Title)
	term("currency", before.Currency, after.Currency)
	term("cap", strconv.Itoa(before.Cap), strconv.Itoa(after.Cap))
	term("hold", before.Hold.String(), after.Hold.String())
	for _, n := range admitted {
		c.Admitted += n
	}
	if c.Admitted > after.Cap {
		c.Refused = append(c.Refused, fmt.Sprintf("cap %d is below the %d seats that are taken", after.Cap, c.Admitted))
	}
	ids := after.LevelIDs()
	for _, id := range slices.Concat(before.LevelIDs(), slices.Sorted(maps.Keys(admitted))) {
		if !slices.Contains(ids, id) {
			ids = append(ids, id)
		}
	}
	for _, id := range ids {
		l := levelChange{ID: id, Before: termsOf(before, id), After: termsOf(after, id), Admitted: admitted[id]}
		switch {
		case l.After == nil:
			l.Change = "removed"
			if l.Admitted > 0 {
				l.Refused = fmt.Sprintf("level %s would go and has %d seats taken", id, l.Admitted)
			}
		case l.Before == nil:
			l.Change = "new"
		case *l.Before == *l.After:
			l.Change = "same"
		default:
			l.Change = "changed"
		}
		if l.After != nil && l.Admitted > l.After.Cap {
			l.Refused = fmt.Sprintf("level %s: cap %d is below the %d seats that are taken", id, l.After.Cap, l.Admitted)
		}
		if l.Refused != "" {
			c.Refused = append(c.Refused, l.Refused)
		}
		c.Levels = append(c.Levels, l)
	}
	return c
}

func termsOf(sale booking.Sale, id string) *saleTerms {
	l, ok := sale.Level(id)
	if !ok {
		return nil
	}
	return &saleTerms{Name: l.Name, Cap: l.Cap, Fee: l.Fee.String()}
}

// showSaleChange says what the file changes, before anything is done.
func (s *session) showSaleChange(c saleChange) error {
	w := tabwriter.NewWriter(s.stderr, 0, 0, 2, ' ', 0)
	switch {
	case c.First:
		fmt.Fprintf(w, "sale %s would be the first of an empty Redis\n", c.Sale)
	case c.unreadable != nil:
		fmt.Fprintf(w, "sale %s; the one in force cannot be compared with: %v\n", c.Sale, c.unreadable)
	default:
		fmt.Fprintf(w, "sale %s, epoch %s, %d seats taken\n", c.Sale, c.Epoch, c.Admitted)
	}
	same := len(c.Terms) == 0
	for _, t := range c.Terms {
		fmt.Fprintf(w, "%s\t%s\n", t.What, turned(t.Before, t.After))
	}
	fmt.Fprintln(w, "level\t\tcap\tfee\tname\ttaken")
	for _, l := range c.Levels {
		was, is := l.Before, l.After
		same = same && l.Change == "same"
		if was == nil {
			was = &saleTerms{}
		}
		if is == nil {
			is = &saleTerms{}
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%d\n", l.ID, l.Change, turned(capText(l.Before), capText(l.After)), turned(was.Fee, is.Fee), turned(was.Name, is.Name), l.Admitted)
	}
	if same {
		fmt.Fprintln(w, "it is the sale in force: to apply it counts the seats again and changes nothing else")
	}
	for _, text := range c.Refused {
		fmt.Fprintf(w, "REFUSED\t%s\n", text)
	}
	return w.Flush()
}

func capText(t *saleTerms) string {
	if t == nil {
		return ""
	}
	return strconv.Itoa(t.Cap)
}

// turned is a value, or what it becomes.
func turned(was, is string) string {
	if was == is {
		return is
	}
	return orDash(was) + " -> " + orDash(is)
}

func (c *saleApplyCommand) tell(s *session, out saleChange, err error) error {
	if err != nil {
		out.Error = err.Error()
	}
	if c.JSON {
		return errors.Join(err, s.printJSON(out))
	}
	switch {
	case err != nil:
		return err
	case c.DryRun:
		_, err = fmt.Fprintf(s.stdout, "sale %s fits: nothing was changed\n", out.Sale)
	default:
		_, err = fmt.Fprintf(s.stdout, "sale %s is in force, epoch %s, %d seats taken\n", out.Sale, out.Epoch, out.Admitted)
	}
	return err
}

type saleShowCommand struct {
	JSON bool `help:"Print one JSON document."`
}

// Help is kong's detailed help.
func (*saleShowCommand) Help() string {
	return `Reads the sale as it runs, from Redis, with its counters, and changes nothing.

Exit status: 0 shown; 1 no sale is in force; 2 it could not be run.

Example:
  seatctl sale show --data data/local`
}

// shownSale is what the command tells.
type shownSale struct {
	Name     string       `json:"name"`
	Title    string       `json:"title,omitempty"`
	Epoch    string       `json:"epoch"`
	Currency string       `json:"currency"`
	Hold     string       `json:"hold"`
	Cap      int          `json:"cap"`
	Admitted int          `json:"admitted"` // -1: the counter is damaged
	Levels   []shownLevel `json:"levels"`
}

type shownLevel struct {
	ID string `json:"id"`
	saleTerms
	Admitted int `json:"admitted"` // -1: the counter is damaged
}

// Run is the command.
func (c *saleShowCommand) Run(s *session) (err error) {
	o, err := s.open(false)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, o.Close()) }()
	epoch, err := o.Gate.Epoch(s.ctx)
	if errors.Is(err, booking.ErrLedgerUnknown) {
		return wrong(errors.New("no sale is in force: redis is empty"))
	}
	if err != nil {
		return err
	}
	sale, err := o.Gate.Sale(s.ctx)
	if errors.Is(err, booking.ErrNotFound) {
		return wrong(errors.New("no sale is in force: apply one with seatctl sale apply"))
	}
	if err != nil {
		return err
	}
	figures, err := o.Gate.ReadStatus(s.ctx)
	if err != nil {
		return err
	}
	out := shownSale{Name: sale.Name, Title: sale.Title, Epoch: epoch, Currency: sale.Currency, Hold: sale.Hold.String(), Cap: sale.Cap, Admitted: figures.Total}
	for _, l := range sale.Levels {
		shown := shownLevel{ID: l.ID, saleTerms: saleTerms{l.Name, l.Cap, l.Fee.String()}, Admitted: -1}
		for _, f := range figures.Levels {
			if f.ID == l.ID {
				shown.Admitted = f.Admitted
			}
		}
		out.Levels = append(out.Levels, shown)
	}
	if c.JSON {
		return s.printJSON(out)
	}
	return s.printSale(out)
}

func (s *session) printSale(sale shownSale) error {
	taken := func(n int) string {
		if n < 0 {
			return "UNKNOWN: the counter is damaged"
		}
		return strconv.Itoa(n)
	}
	w := tabwriter.NewWriter(s.stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintf(w, "sale %s, epoch %s, %s to pay, cap %d, taken %s\n", sale.Name, sale.Epoch, sale.Hold, sale.Cap, taken(sale.Admitted))
	if sale.Title != "" {
		fmt.Fprintln(w, sale.Title)
	}
	fmt.Fprintln(w, "level\tcap\ttaken\tfee\tname")
	for _, l := range sale.Levels {
		fmt.Fprintf(w, "%s\t%d\t%s\t%s %s\t%s\n", l.ID, l.Cap, taken(l.Admitted), l.Fee, sale.Currency, l.Name)
	}
	return w.Flush()
}
