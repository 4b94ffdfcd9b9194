package seatctl

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"strings"
	"text/tabwriter"

	"github.com/prometheus/client_golang/prometheus"

	"holdfast/internal/app"
	"holdfast/internal/booking"
	"holdfast/internal/refund"
)

type refundsCommand struct {
	List   refundsListCommand   `cmd:"" help:"List the refunds that are not done."`
	Retry  refundsRetryCommand  `cmd:"" help:"Send a refund, or go on with it, now."`
	Settle refundsSettleCommand `cmd:"" help:"End a refund whose money has been given back otherwise."`
}

// refundService is what the commands do; see refund.Service.
type refundService interface {
	List(ctx context.Context) iter.Seq2[booking.Refund, error]
	Send(ctx context.Context, transaction string) (booking.Refund, error)
	SettleByHand(ctx context.Context, transaction, by, note string) (refund.Settled, error)
}

// refundsWork is what changes refunds, and who has it do so.
type refundsWork struct {
	svc refundService
	log app.OperatorLog
	by  string
}

// withRefunds has fn work on the deployment's refunds.
func (s *session) withRefunds(fn func(refundsWork) error) (err error) {
	o, err := s.open(true)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, o.Close()) }()
	by, err := s.who(o)
	if err != nil {
		return err
	}
	st, err := refundStore(o)
	if err != nil {
		return err
	}
	gateway, ok := o.Ops.Gateway.(booking.RefundGateway)
	if !ok {
		return errors.New("the gateway's client gives nothing back")
	}
	svc, err := refund.New(refund.Deps{Store: st, Gateway: gateway, Log: o.Ops.Log, Registerer: prometheus.NewRegistry()})
	if err != nil {
		return err
	}
	return fn(refundsWork{svc, o.Log(), by})
}

// refundStore is the driver behind the operator's narrower port.
func refundStore(o *app.Operator) (refund.Store, error) {
	st, ok := o.Ops.Store.(refund.Store)
	if !ok {
		return nil, errors.New("the booking store's driver keeps no refunds")
	}
	return st, nil
}

type refundsListCommand struct {
	JSON bool `help:"Print one JSON document."`
}

// Help is kong's detailed help.
func (*refundsListCommand) Help() string {
	return `Reads what is owed, oldest decision first, and asks the gateway nothing. A refund
is due, or sent: then the gateway is asked before anything is sent again. What
stands under TROUBLE is for a person to look at.

Exit status: 0 listed, if it is nothing, too; 1 a refund cannot be read, and the
others are listed; 2 it could not be run.

Example:
  seatctl refunds list --data data/local`
}

// Run is the command.
func (c *refundsListCommand) Run(s *session) (err error) {
	o, err := s.open(false)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, o.Close()) }()
	st, err := refundStore(o)
	if err != nil {
		return err
	}
	return s.listRefunds(st.OpenRefunds(s.ctx), c.JSON)
}

func (s *session) listRefunds(list iter.Seq2[booking.Refund, error], asJSON bool) error {
	open, unreadable, err := readRefunds(list)
	if err != nil {
		return err
	}
	if asJSON {
		err = s.printJSON(struct {
			Refunds []booking.Refund `json:"refunds"`
		}{open})
	} else if len(open) > 0 || len(unreadable) == 0 {
		err = s.printRefunds(open)
	}
	if err == nil && len(unreadable) > 0 {
		err = wrong(errors.Join(unreadable...))
	}
	return err
}

// readRefunds reads what is open, and says what cannot be read.
func readRefunds(list iter.Seq2[booking.Refund, error]) (open []booking.Refund, unreadable []error, err error) {
	open = []booking.Refund{} // a list in JSON, if it is empty, too
	for r, err := range list {
		switch {
		case errors.Is(err, booking.ErrUnreadable):
			unreadable = append(unreadable, err)
		case err != nil:
			return nil, nil, err
		default:
			open = append(open, r)
		}
	}
	return open, unreadable, nil
}

func (s *session) printRefunds(open []booking.Refund) error {
	if len(open) == 0 {
		_, err := fmt.Fprintln(s.stdout, "no refund is open")
		return err
	}
	var b strings.Builder
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "TRANSACTION\tPAYMENT\tAMOUNT\tLEVEL\tKIND\tREASON\tSTATE\tDECIDED\tSENT\tTROUBLE")
	for _, r := range open {
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n", r.Transaction, r.PaymentID, money(r), r.Level, r.Kind, r.Reason,
			r.State, when(r.DecidedAt), when(r.SentAt), orDash(strings.Join(strings.Fields(r.Trouble), " ")))
	}
	if err := w.Flush(); err != nil {
		return err
	}
	fmt.Fprintf(&b, "\n%d open: %s\n", len(open), sums(open))
	_, err := fmt.Fprint(s.stdout, b.String())
	return err
}

func money(r booking.Refund) string { return r.Amount.String() + " " + r.Currency }

// sums is what a list comes to; a sale has one currency.
func sums(list []booking.Refund) string {
	var (
		by    = map[string]booking.Money{}
		order []string
	)
	for _, r := range list {
		if _, ok := by[r.Currency]; !ok {
			order = append(order, r.Currency)
		}
		by[r.Currency] += r.Amount
	}
	for i, currency := range order {
		order[i] = by[currency].String() + " " + currency
	}
	return strings.Join(order, ", ")
}

func orDash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}

type refundsRetryCommand struct {
	Transaction string `arg:"" optional:"" help:"Transaction whose money goes back."`
	All         bool   `help:"All that are open, one after the other, oldest decision first."`
	JSON        bool   `help:"Print one JSON document."`
}

// Help is kong's detailed help.
func (*refundsRetryCommand) Help() string {
	return `Money goes back. One that was sent before is asked about first, and sent again only
if the gateway has made none; one that another process works on is left alone. Run
it as often as you like: no money goes back twice. --all ends when the gateway
cannot be reached.

Exit status: 0 done, now or before; 1 not done, and what is in the way is said; 2 it
could not be run.

Example:
  seatctl refunds retry CK250NROQ5 --data data/local
  seatctl refunds retry --all`
}

// Run is the command.
func (c *refundsRetryCommand) Run(s *session) error {
	if c.All == (c.Transaction != "") {
		return errors.New("name one TRANSACTION, or give --all")
	}
	return s.withRefunds(func(w refundsWork) error { return s.retryRefunds(c, w) })
}

// retried is what became of one refund.
type retried struct {
	Transaction string `json:"transaction"`
	Done        bool   `json:"done"`
	// Refund is as it now stands; absent where it could not be read.
	Refund *booking.Refund `json:"refund,omitempty"`
	Error  string          `json:"error,omitempty"`
}

func (s *session) retryRefunds(c *refundsRetryCommand, w refundsWork) error {
	todo, unreadable, err := readRefunds(w.svc.List(s.ctx))
	switch {
	case err != nil:
		return err
	case c.All:
		fmt.Fprintf(s.stderr, "%d refunds are open, %s: each is sent, or asked about.\n", len(todo), orDash(sums(todo)))
	default:
		todo, unreadable = []booking.Refund{openRefund(todo, c.Transaction)}, nil
		fmt.Fprintf(s.stderr, "The refund of transaction %s is sent, or asked about if it was sent before.\n", c.Transaction)
	}
	out, missed := []retried{}, unreadable
	for i, r := range todo {
		var did *attempted
		err := s.logged(w.log, w.by, mutation{
			What: "refunds retry", Subject: r.Transaction, Before: refundStanding(&r),
		}, func(ctx context.Context) (any, error) {
			did = retry(ctx, w.svc, r.Transaction)
			return refundStanding(did.Refund), did.err
		})
		switch {
		case did == nil && i == 0:
			return err
		case did == nil:
			missed = append(missed, err, fmt.Errorf("%d were not begun", len(todo)-i))
		case err != nil:
			missed = append(missed, fmt.Errorf("%s: %w", r.Transaction, err))
		}
		if did == nil {
			break
		}
		out = append(out, did.retried)
		if !c.JSON && did.Done {
			if _, err := fmt.Fprintf(s.stdout, "%s  done by %s, %s, refund transaction %s\n", r.Transaction, did.Refund.DoneBy, money(*did.Refund), orDash(did.Refund.RefundTransaction)); err != nil {
				return err
			}
		}
		if left := len(todo) - i - 1; left > 0 && (s.ctx.Err() != nil || unreachable(did.err)) {
			missed = append(missed, fmt.Errorf("%d more were not begun", left))
			break
		}
	}
	if c.JSON {
		if err := s.printJSON(struct {
			Refunds []retried `json:"refunds"`
		}{out}); err != nil {
			return err
		}
	}
	if len(missed) > 0 {
		return wrong(fmt.Errorf("not done: %w", errors.Join(missed...)))
	}
	return nil
}

// openRefund is the transaction's refund as it is listed; one that is not, because it
// is done or there is none, is its transaction alone.
func openRefund(open []booking.Refund, transaction string) booking.Refund {
	for _, r := range open {
		if r.Transaction == transaction {
			return r
		}
	}
	return booking.Refund{Transaction: transaction}
}

// refundStanding is what the operator's log has of a refund; nothing of one that is
// not known.
func refundStanding(r *booking.Refund) any {
	if r == nil || r.State == "" {
		return nil
	}
	return struct {
		State             booking.RefundState `json:"state"`
		Attempt           string              `json:"attempt"`
		Amount            string              `json:"amount"`
		DoneBy            string              `json:"done_by,omitempty"`
		RefundTransaction string              `json:"refund_transaction,omitempty"`
	}{r.State, r.Attempt, money(*r), r.DoneBy, r.RefundTransaction}
}

func unreachable(err error) bool {
	return errors.Is(err, booking.ErrGatewayOutage) || errors.Is(err, booking.ErrNotSent)
}

type attempted struct {
	retried
	err error
}

func retry(ctx context.Context, svc refundService, transaction string) *attempted {
	r, err := svc.Send(ctx, transaction)
	out := &attempted{retried{Transaction: transaction, Done: err == nil}, err}
	if r.Transaction != "" {
		out.Refund = &r
	}
	if errors.Is(err, refund.ErrBusy) {
		out.err = busyUntil(err, r)
	}
	if out.err != nil {
		out.Error = out.err.Error()
	}
	if errors.Is(err, refund.ErrBusy) {
		out.err = refused(out.err)
	}
	return out
}

// busyUntil says when a refund that another works on is free again.
func busyUntil(err error, r booking.Refund) error {
	if r.ClaimUntil.IsZero() {
		return err
	}
	return fmt.Errorf("%w, until %s at the latest", err, when(r.ClaimUntil))
}

type refundsSettleCommand struct {
	Transaction string `arg:"" help:"Transaction whose money has been given back otherwise."`
	Reason      string `help:"How the money was given back, and why so; kept with the refund. Name no person." required:"" placeholder:"TEXT"`
	Yes         bool   `help:"Do it without asking."`
	JSON        bool   `help:"Print one JSON document."`
}

// Help is kong's detailed help.
func (*refundsSettleCommand) Help() string {
	return `For money that has been given back past the gateway, or in its portal. The gateway
is asked first: if it has made the refund as ordered, that is how it ends.
Otherwise it ends by your word, under your name as the system knows it, and no
program sends it any more: check that the money is back.

Exit status: 0 settled; 1 refused, done before, or ended with a doubt that the
gateway left; 2 it could not be run.

Example:
  seatctl refunds settle CK250NROQ5 --reason "bank transfer 4711"`
}

// Run is the command.
func (c *refundsSettleCommand) Run(s *session) error {
	if strings.TrimSpace(c.Reason) == "" {
		return errors.New("--reason: say how and why")
	}
	return s.withRefunds(func(w refundsWork) error { return s.settleRefund(c, w) })
}

// settled is what the command tells.
type settled struct {
	Refund booking.Refund `json:"refund"`
	Doubt  string         `json:"doubt,omitempty"`
}

func (s *session) settleRefund(c *refundsSettleCommand, w refundsWork) error {
	if err := s.agreed(c.Yes, fmt.Sprintf("This ends the refund of transaction %s by the word of %s. Unless the gateway has\nmade it, no program gives this money back any more.", c.Transaction, w.by)); err != nil {
		return err
	}
	open, _, err := readRefunds(w.svc.List(s.ctx))
	if err != nil {
		return err
	}
	reason, before := strings.TrimSpace(c.Reason), openRefund(open, c.Transaction)
	var did *refund.Settled
	err = s.logged(w.log, w.by, mutation{
		What: "refunds settle", Subject: c.Transaction, Reason: reason, Before: refundStanding(&before),
	}, func(ctx context.Context) (any, error) {
		r, err := w.svc.SettleByHand(ctx, c.Transaction, w.by, reason)
		switch {
		case errors.Is(err, refund.ErrDone):
			err = refused(fmt.Errorf("%w, by %s at %s: nothing was changed", err, r.Refund.DoneBy, when(r.Refund.DoneAt)))
		case errors.Is(err, refund.ErrBusy):
			err = refused(fmt.Errorf("not settled: %w: repeat it then", busyUntil(err, r.Refund)))
		case err != nil:
			err = wrong(fmt.Errorf("not settled: %w", err))
		default:
			did = &r
		}
		return refundStanding(&r.Refund), err
	})
	if did == nil {
		return err
	}
	r := did.Refund
	if c.JSON {
		out := settled{Refund: r}
		if did.Doubt != nil {
			out.Doubt = did.Doubt.Error()
		}
		err = cmp.Or(err, s.printJSON(out))
	} else {
		_, told := fmt.Fprintf(s.stdout, "%s  done by %s, %s, refund transaction %s\n", r.Transaction, r.DoneBy, money(r), orDash(r.RefundTransaction))
		err = cmp.Or(err, told)
	}
	if err == nil && did.Doubt != nil {
		err = wrong(fmt.Errorf("it is settled, but %w: look in the gateway's portal whether the money has gone back twice", did.Doubt))
	}
	return err
}

// agreed says what will be done, and asks whether it should be unless that was told
// before; the answer is no unless somebody says yes. The error is the command's, and
// says that nothing was changed.
func (s *session) agreed(yes bool, what string) error {
	if yes {
		fmt.Fprintln(s.stderr, what)
		return nil
	}
	fmt.Fprint(s.stderr, what, " Go on? [y/N] ")
	line, err := s.readLine()
	if errors.Is(err, errInterrupted) {
		return err
	}
	switch strings.ToLower(strings.TrimSpace(line)) { // what did not come is no
	case "y", "yes":
		return nil
	}
	return wrong(errors.New("not agreed: nothing was changed"))
}
