package seatctl

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"time"

	"holdfast/internal/app"
	"holdfast/internal/booking"
)

type gatewayCommands struct {
	Check gatewayCheckCommand `cmd:"" help:"Try the payment gateway: token, a payment, a question about it."`
}

type gatewayCheckCommand struct {
	Callback string `help:"Callback address for the payment. Without it that of the deployment, by HOLDFAST_PUBLIC_URL or HOLDFAST_STATUS_URL." placeholder:"URL"`
	Yes      bool   `help:"Use one of the hour's few grants without asking, where there is no valid token."`
	Grant    bool   `help:"Ask for a new token although there is a valid one: proof of changed credentials. It uses one of the hour's few grants."`
	JSON     bool   `help:"Print one JSON document."`
}

// Help is kong's detailed help.
func (*gatewayCheckCommand) Help() string {
	return `Against the configured gateway, with the fleet's token: creates a payment of the
sale's smallest fee under an invoice number that is no booking's (CHECK-...) and
asks about it. Nothing executes it, so no money moves, and it lapses by itself.
A valid token is used as it is; only without one, and after it was agreed to, one
of the hour's few grants is used. With --grant a new token is asked for in any case:
a valid one says nothing of credentials that were changed since. The new one is the
fleet's then; if it is refused, the old one stays in use. At the end it says what a
person must try by hand.

Exit status: 0 every step went well; 1 one did not, or a grant was not agreed to;
2 it could not be run.

Example:
  seatctl gateway check --data data/local
  seatctl gateway check --grant --yes`
}

// checkStep is one step of the check.
type checkStep struct {
	Step   string `json:"step"`
	OK     bool   `json:"ok"`
	Detail string `json:"detail"`
}

// checked is what the command tells.
type checked struct {
	Gateway    string      `json:"gateway"`
	Callback   string      `json:"callback"`
	GrantsLeft int         `json:"grants_left"`
	Granted    bool        `json:"granted"`
	Invoice    string      `json:"invoice,omitempty"`
	Payment    string      `json:"payment,omitempty"`
	PaymentURL string      `json:"payment_url,omitempty"`
	Steps      []checkStep `json:"steps"`
	// ByHand is what a person must do; empty until there is a payment.
	ByHand []string `json:"by_hand"`
}

func (c *checked) step(name string, err error, format string, args ...any) error {
	detail := fmt.Sprintf(format, args...)
	if err != nil {
		detail = err.Error()
	}
	c.Steps = append(c.Steps, checkStep{name, err == nil, detail})
	return err
}

// Run is the command.
func (c *gatewayCheckCommand) Run(s *session) (err error) {
	getenv, err := s.settings()
	if err != nil {
		return err
	}
	callback, err := c.callback(getenv)
	if err != nil {
		return err
	}
	o, err := s.open(true)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, o.Close()) }()
	sale, err := o.Gate.Sale(s.ctx)
	if err != nil {
		return fmt.Errorf("the sale, for its smallest fee: %w", err)
	}
	out := &checked{Gateway: getenv("HOLDFAST_GATEWAY_URL"), Callback: callback, Steps: []checkStep{}, ByHand: []string{}}
	cause := s.checkGateway(c, o, sale, out)
	if c.JSON {
		err = s.printJSON(out)
	} else {
		err = s.printChecked(out)
	}
	if err != nil || cause == nil {
		return err
	}
	code := exitWrong
	var e *exitError
	if errors.As(cause, &e) { // what could not be logged was not tried
		code = e.code
	}
	return &exitError{code, fmt.Errorf("the gateway's check did not go well: %w", cause)}
}

func (c *gatewayCheckCommand) callback(getenv func(string) string) (string, error) {
	callback := c.Callback
	if callback == "" {
		base := strings.TrimRight(getenv("HOLDFAST_PUBLIC_URL"), "/")
		if base == "" {
			base, _ = strings.CutSuffix(getenv("HOLDFAST_STATUS_URL"), "/status.json")
		}
		if base == "" {
			return "", errors.New("where payers come back is not known: give --callback URL, or HOLDFAST_PUBLIC_URL")
		}
		callback = base + "/payment/callback"
	}
	if u, err := url.Parse(callback); err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		return "", fmt.Errorf("--callback %q: want http(s)://host/path", callback)
	}
	return callback, nil
}

// checkGateway goes from step to step until one does not go well.
func (s *session) checkGateway(c *gatewayCheckCommand, o *app.Operator, sale booking.Sale, out *checked) error {
	if err := s.checkToken(c, o, out); err != nil {
		return err
	}
	client, err := o.GatewayClient()
	if err != nil {
		return err
	}
	fee := sale.Levels[0].Fee
	for _, l := range sale.Levels {
		fee = min(fee, l.Fee)
	}
	out.Invoice = "CHECK-" + time.Now().UTC().Format("20060102T150405Z") + "-" + rand.Text()[:8]
	fmt.Fprintf(s.stderr, "A payment of %s %s, invoice %s, is created at %s, and asked about; nothing executes it.\n", fee, sale.Currency, out.Invoice, out.Gateway)
	var p booking.Payment
	err = s.mutate(o, mutation{What: "gateway check: create payment", Subject: out.Invoice}, func(ctx context.Context) (any, error) {
		var err error
		p, err = client.Create(ctx, booking.Order{
			Invoice: out.Invoice, Amount: fee, Currency: sale.Currency, CallbackURL: out.Callback, Reference: "CHECK",
		})
		if err != nil {
			return nil, err
		}
		return map[string]string{"payment": p.ID}, nil
	})
	out.Payment, out.PaymentURL = p.ID, p.URL
	if out.step("create", err, "payment %s of %s %s", p.ID, fee, sale.Currency) != nil {
		return err
	}
	err = s.checkQuery(s.ctx, client, out, fee, sale.Currency)
	out.ByHand = byHand(out)
	return err
}

// checkToken wants a valid token; it uses a grant only when there is none, and
// after it was agreed to.
func (s *session) checkToken(c *gatewayCheckCommand, o *app.Operator, out *checked) error {
	st, err := o.TokenState(s.ctx)
	out.GrantsLeft = st.GrantsLeft
	switch {
	case err != nil:
		return out.step("token", err, "")
	case !st.ValidUntil.IsZero() && !c.Grant:
		return out.step("token", nil, "valid until %s, %d of %d grants left this hour, none used", when(st.ValidUntil), st.GrantsLeft, st.GrantsAnHour)
	case st.GrantsLeft == 0:
		return out.step("token", fmt.Errorf("a new one cannot be had, the hour's %d grants are used up: next at %s", st.GrantsAnHour, when(st.NextGrant)), "")
	}
	why, grant := "There is no valid token.", o.GrantToken
	if c.Grant {
		why, grant = "A new token was asked for (--grant).", o.GrantTokenAnew
	}
	if err := s.agreed(c.Yes, fmt.Sprintf(why+" A new one uses 1 of the %d grants left of this hour's %d;\nthe fleet shares them.", st.GrantsLeft, st.GrantsAnHour)); err != nil {
		return out.step("token", fmt.Errorf("using a grant was not agreed to: %w", err), "")
	}
	grants := func(left int) map[string]int { return map[string]int{"grants_left": left} }
	after := st
	err = s.mutate(o, mutation{What: "gateway check: grant token", Before: grants(st.GrantsLeft)}, func(ctx context.Context) (any, error) {
		err := grant(ctx)
		now, stateErr := o.TokenState(ctx)
		if stateErr != nil {
			return nil, err
		}
		after = now
		out.Granted, out.GrantsLeft = err == nil && after.GrantsLeft < st.GrantsLeft, after.GrantsLeft
		return grants(after.GrantsLeft), err
	})
	return out.step("token", err, "granted, valid until %s, %d of %d grants left this hour", when(after.ValidUntil), out.GrantsLeft, st.GrantsAnHour)
}

// querier is the gateway asked about a payment.
type querier interface {
	Query(ctx context.Context, payment string) (booking.Charge, error)
}

// checkQuery wants the payment as it was ordered, and not paid.
func (s *session) checkQuery(ctx context.Context, q querier, out *checked, fee booking.Money, currency string) error {
	charge, err := q.Query(ctx, out.Payment)
	switch {
	case err != nil:
	case charge.Status != booking.ChargeOpen:
		err = fmt.Errorf("a payment that nobody has paid is %s, code %s", charge.Status, charge.Code)
	case charge.Invoice != "" && charge.Invoice != out.Invoice, charge.Amount != 0 && charge.Amount != fee, charge.Currency != "" && charge.Currency != currency:
		err = fmt.Errorf("it is told otherwise than ordered: invoice %s, %s %s", charge.Invoice, charge.Amount, charge.Currency)
	}
	return out.step("query", err, "payment %s is %s", out.Payment, charge.Status)
}

// byHand is what no program can try.
func byHand(c *checked) []string {
	host := c.Callback
	if u, err := url.Parse(c.Callback); err == nil {
		host = u.Scheme + "://" + u.Host
	}
	return []string{
		"Open " + c.PaymentURL + " and cancel. The browser must come back to " + c.Callback + " and end on " + host + "/result?error=unknown: the payment is no booking's. If it does not, the callback host cannot be reached from outside.",
		"Open it once more and pay with a test wallet. It must end on the same page. Nothing executes the payment, so no money may leave the wallet.",
		"In the merchant portal: the notification topic has a confirmed subscription to " + host + "/payment/webhook, and is the one of HOLDFAST_NOTIFY_TOPIC.",
		"Book a seat as a test candidate and pay it: the result page says paid, the mail comes, and so does the notification.",
		"Give that money back in the merchant portal: the wallet must have it again, and the account the right to refund.",
	}
}

func (s *session) printChecked(c *checked) error {
	var b strings.Builder
	fmt.Fprintf(&b, "gateway %s\n", c.Gateway)
	for _, st := range c.Steps {
		mark := "ok"
		if !st.OK {
			mark = "FAILED"
		}
		fmt.Fprintf(&b, "  %-8s%-8s%s\n", st.Step, mark, st.Detail)
	}
	if len(c.ByHand) > 0 {
		fmt.Fprint(&b, "\nby hand:\n")
		for i, text := range c.ByHand {
			fmt.Fprintf(&b, "  %d. %s\n", i+1, text)
		}
	}
	_, err := fmt.Fprint(s.stdout, b.String())
	return err
}
