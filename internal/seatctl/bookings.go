package seatctl

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"text/tabwriter"
	"time"

	"holdfast/internal/app"
	"holdfast/internal/booking"
	"holdfast/internal/resolve"
)

type bookingsCommand struct {
	Show    bookingsShowCommand    `cmd:"" help:"Everything that is known of one candidate's bookings, side by side."`
	Export  bookingsExportCommand  `cmd:"" help:"Write the bookings out as CSV."`
	Resolve bookingsResolveCommand `cmd:"" help:"End a payment in doubt as paid or not paid."`
}

type bookingsResolveCommand struct {
	Code    string `arg:"" help:"Candidate code."`
	Paid    string `help:"It is paid, by this transaction of the gateway." xor:"word" required:"" placeholder:"TRANSACTION"`
	NotPaid bool   `help:"It is not paid, and will not be." xor:"word" required:""`
	Attempt string `help:"Which attempt. Without it the candidate's seat, or else the only attempt whose record is HELD." placeholder:"ID"`
	Reason  string `help:"Why; kept in the operator's log. Name no person." required:"" placeholder:"TEXT"`
	Force   bool   `help:"Against the objections that it names."`
	Yes     bool   `help:"Do it without asking."`
	JSON    bool   `help:"Print one JSON document."`
}

// Help is kong's detailed help.
func (*bookingsResolveCommand) Help() string {
	return `For a seat that is kept because nobody knows whether it was paid, and for an attempt
that is in doubt and owns no seat. It shows the row, the record and the gateway's
present word, and what speaks against your decision, before it does anything.

--paid settles the seat with the transaction; the record follows, the mail is a
sweep's. --not-paid ends the payment as a refused one; it never gives the seat
back: that is done at its deadline, when the gateway has said once more that
there is no money. Refused, unless --force: a seat that is not in doubt, and what
the gateway contradicts. A transaction that paid for another seat or goes back is
refused always.

Without a seat, --paid has the ledger decide once about the money of the transaction:
the attempt gets a seat after all, if one is free and its candidate has none, or
there is a refund. --not-paid ends the record. A seat that the candidate has by
another attempt stays as it is.

Exit status: 0 decided, as a refund, too; 1 refused, not agreed, or not finished; 2 it
could not be run.

Example:
  seatctl bookings resolve AB-1001 --paid CK250NROQ5 --reason "merchant portal, ticket 12" --data data/local
  seatctl bookings resolve AB-1001 --attempt 1ngtsa07kq3m-01m8qw4tg04f8r2tqz9e6wn1bd --not-paid --reason "portal"`
}

// resolved is what the command tells.
type resolved struct {
	Code    string `json:"code"`
	Attempt string `json:"attempt"`
	Payment string `json:"payment"`
	Paid    bool   `json:"paid"`
	// Refund is set when the money found no seat and goes back.
	Refund      *booking.Refund `json:"refund,omitempty"`
	Transaction string          `json:"transaction,omitempty"`
	Reason      string          `json:"reason"`
	Forced      bool            `json:"forced"`
	Objections  []string        `json:"objections"`
	Warnings    []string        `json:"warnings"`
	Before      standing        `json:"before"`
	After       standing        `json:"after"`
	// Follows is what happens next, by itself.
	Follows string `json:"follows"`
}

// standing is where row and record stand; no phase is no seat.
type standing struct {
	Phase  booking.Phase       `json:"phase"`
	Record booking.RecordState `json:"record"`
}

// transactionForm is what a transaction of the gateway looks like.
var transactionForm = regexp.MustCompile(`^[0-9A-Za-z._~-]{1,128}$`)

// Run is the command.
func (c *bookingsResolveCommand) Run(s *session) (err error) {
	rule, err := booking.NewCodeRule(`.+`) // one that is no code has no seat
	if err != nil {
		return err
	}
	code, err := rule.Normalize(c.Code)
	switch {
	case err != nil:
		return fmt.Errorf("CODE: %w", err)
	case strings.TrimSpace(c.Reason) == "":
		return errors.New("--reason: say why")
	case !c.NotPaid && !transactionForm.MatchString(c.Paid):
		return fmt.Errorf("--paid %q: no transaction looks like this", c.Paid)
	}
	o, err := s.open(true)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, o.Close()) }()
	return s.resolve(c, o, code)
}

func (s *session) resolve(c *bookingsResolveCommand, o *app.Operator, code string) error {
	by, err := s.who(o)
	if err != nil {
		return err
	}
	r, err := o.Resolver()
	if err != nil {
		return err
	}
	p, err := r.Plan(s.ctx, code, resolve.Decision{Attempt: c.Attempt, Transaction: c.Paid})
	if p.Case.Owns() || p.Case.Record != nil {
		if err := s.showCase(p); err != nil {
			return err
		}
	}
	switch {
	case errors.Is(err, booking.ErrNotFound), errors.Is(err, booking.ErrNoPayment), errors.Is(err, resolve.ErrTransactionUsed),
		errors.Is(err, booking.ErrUnreadable):
		return wrong(fmt.Errorf("%w: nothing was changed", err))
	case errors.Is(err, resolve.ErrWhichAttempt):
		return fmt.Errorf("--attempt: %w", err)
	case err != nil:
		return err
	case len(p.Objections) > 0 && !c.Force:
		return wrong(fmt.Errorf("refused: %s: nothing was changed", strings.Join(p.Objections, "; ")))
	}
	word := "NOT PAID"
	if c.Paid != "" {
		word = "PAID by transaction " + c.Paid
	}
	if err := s.agreed(c.Yes, fmt.Sprintf("This decides, by the word of %s, that payment %s is %s%s.", by, p.Case.Payment(), word, follow(p))); err != nil {
		return err
	}
	out := resolved{
		Code: code, Attempt: p.Case.Attempt, Payment: p.Case.Payment(), Paid: c.Paid != "", Transaction: c.Paid, Reason: c.Reason,
		Forced: len(p.Objections) > 0, Objections: append([]string{}, p.Objections...), Before: standing{Phase: p.Case.Row.Phase},
	}
	if p.Case.Record != nil {
		out.Before.Record = p.Case.Record.State
	}
	var done *resolve.Done
	err = s.mutate(o, mutation{
		What: "bookings resolve", Subject: out.Attempt, Reason: c.Reason,
		Before: decided{standing: out.Before, Payment: out.Payment},
	}, func(ctx context.Context) (any, error) {
		if !c.Yes {
			if err := s.asShown(ctx, r, p); err != nil {
				return nil, err
			}
		}
		did, err := r.Carry(ctx, p, c.Force)
		out.Warnings = append(append([]string{}, p.Warnings...), did.Warnings...)
		out.After, out.Refund, out.Follows = standing{did.Row.Phase, did.Record}, did.Refund, follows(p, did)
		after := decided{out.After, out.Payment, c.Paid, out.Forced, out.Refund != nil}
		switch {
		case err != nil && out.After == (standing{}): // not known
			return nil, wrong(fmt.Errorf("not finished: %w", err))
		case err != nil:
			return after, wrong(fmt.Errorf("not finished: %w", err))
		}
		done = &did
		return after, nil
	})
	if done == nil {
		return err
	}
	if c.JSON {
		return cmp.Or(err, s.printJSON(out))
	}
	for _, w := range done.Warnings {
		fmt.Fprintf(s.stderr, "warning: %s\n", w)
	}
	_, told := fmt.Fprintf(s.stdout, "%s: payment %s is %s: %s\n%s\n", code, out.Payment, word, c.Reason, out.Follows)
	return cmp.Or(err, told)
}

// asShown looks once more before the decision is carried out: whoever answers a question
// may take an hour, and the transaction may be another's by then.
func (s *session) asShown(ctx context.Context, r *resolve.Resolver, p resolve.Plan) error {
	shown := p.Case
	again, err := r.Plan(ctx, shown.Code, resolve.Decision{Attempt: shown.Attempt, Transaction: p.Decision.Transaction})
	now := again.Case
	switch {
	case errors.Is(err, resolve.ErrTransactionUsed), errors.Is(err, booking.ErrNotFound), errors.Is(err, booking.ErrNoPayment):
		return refused(fmt.Errorf("refused: %w: %w: nothing was changed", booking.ErrNotAsShown, err))
	case err != nil:
		return wrong(fmt.Errorf("nothing was changed: %w", err))
	case now.Row.Phase != shown.Row.Phase, now.Row.Transaction != shown.Row.Transaction, now.Payment() != shown.Payment(),
		recordState(now) != recordState(shown), len(again.Objections) > len(p.Objections):
		return notAsShown()
	}
	return nil
}

func recordState(c resolve.Case) booking.RecordState {
	if c.Record == nil {
		return ""
	}
	return c.Record.State
}

// decided is what the operator's log has of a decision.
type decided struct {
	standing
	Payment string `json:"payment"`
	// Transaction is the one that it is said to be paid by, none if not paid.
	Transaction string `json:"transaction,omitempty"`
	Forced      bool   `json:"forced,omitempty"`
	Refund      bool   `json:"refund,omitempty"`
}

// showCase says what is known, before anything is decided.
func (s *session) showCase(p resolve.Plan) error {
	c, row := p.Case, p.Case.Row
	w := tabwriter.NewWriter(s.stderr, 0, 0, 2, ' ', 0)
	level, amount, currency := row.Level, row.Amount, row.Currency
	if !c.Owns() && c.Record != nil {
		level, amount, currency = c.Record.Level, c.Record.Amount, c.Record.Currency
	}
	fmt.Fprintf(w, "candidate\t%s, level %s, %s %s, now %s\n", c.Code, level, amount, currency, c.Now.UTC().Format(time.RFC3339))
	if c.Owns() {
		fmt.Fprintf(w, "row\t%s, attempt %s, payment %s, deadline %s\n", row.Phase, row.Attempt, orDash(row.Payment), millis(row.Deadline))
	} else {
		fmt.Fprintf(w, "row\tnone of attempt %s, payment %s\n", c.Attempt, orDash(c.Payment()))
	}
	if c.Seat.Attempt != "" {
		fmt.Fprintf(w, "\tthe candidate's seat is %s, by attempt %s: it stays as it is\n", c.Seat.Phase, c.Seat.Attempt)
	}
	switch row.Phase {
	case booking.PhasePaying:
		fmt.Fprintf(w, "\tpaying until %s, looked at %d times in doubt\n", millis(row.Ends), row.Looks)
	case booking.PhasePaid:
		fmt.Fprintf(w, "\tby transaction %s at %s\n", row.Transaction, millis(row.PaidAt))
	case booking.PhaseNew, booking.PhasePayable, booking.PhaseHeld, booking.PhaseRefused:
		fmt.Fprintf(w, "\tlooked at %d times in doubt, rebuilt in doubt %t\n", row.Looks, row.Doubt)
	}
	if rec := c.Record; rec != nil {
		fmt.Fprintf(w, "record\t%s, payment %s, execute announced %s, transaction %s, reason %s\n",
			rec.State, rec.PaymentID, when(rec.ExecuteAt), orDash(rec.Transaction), orDash(rec.Reason))
	} else {
		fmt.Fprintf(w, "record\tnone: %v\n", c.RecordErr)
	}
	if c.AskErr != nil {
		fmt.Fprintf(w, "gateway\tno clear answer: %v\n", c.AskErr)
	} else {
		fmt.Fprintf(w, "gateway\t%s, code %s, transaction %s, %s %s\n", c.Charge.Status, orDash(c.Charge.Code), orDash(c.Charge.Transaction), c.Charge.Amount, c.Charge.Currency)
	}
	for _, text := range p.Objections {
		fmt.Fprintf(w, "OBJECTION\t%s\n", text)
	}
	for _, text := range p.Warnings {
		fmt.Fprintf(w, "warning\t%s\n", text)
	}
	return w.Flush()
}

func millis(ms int64) string {
	if ms == 0 {
		return "-"
	}
	return time.UnixMilli(ms).UTC().Format(time.RFC3339)
}

// follow is what the decision will do, where that is not plain.
func follow(p resolve.Plan) string {
	switch {
	case p.Case.Owns():
		return ""
	case p.Decision.Transaction == "":
		return ", and ends its record: it owns no seat"
	}
	return ". It owns no seat:\nthe ledger decides whether it gets one after all, or the money goes back"
}

// follows says what happens by itself after the decision.
func follows(p resolve.Plan, done resolve.Done) string {
	if r := done.Refund; r != nil {
		return fmt.Sprintf("No seat could be given for it (%s): %s go back. The refund is %s; it is sent by itself where that is set, else by seatctl refunds retry %s.",
			r.Reason, money(*r), r.State, r.Transaction)
	}
	if !p.Case.Owns() && p.Decision.Transaction == "" {
		return "Its record is ended. A notification of the gateway about its money would still be followed."
	}
	if p.Decision.Transaction != "" {
		return "The confirmation mail is sent by a sweep, within about a minute."
	}
	const then = "the gateway is asked once more: a clear answer other than completed gives the seat back, completed gives it to its payer after all, and without a clear answer it is kept."
	if p.Case.Now.UnixMilli() >= done.Row.Deadline {
		return "Its deadline has passed. At the next sweep " + then
	}
	return "The candidate may start another payment until " + millis(done.Row.Deadline) + ". Then " + then
}
