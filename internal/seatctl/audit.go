package seatctl

import (
	"errors"
	"fmt"
	"strings"
	"text/tabwriter"
	"time"

	"holdfast/internal/saleops"
)

type auditCommand struct {
	Gateway bool    `help:"Ask the payment gateway about every attempt with a payment."`
	Rate    float64 `help:"Questions to the gateway a second, beside the fleet's own." default:"50"`
	JSON    bool    `help:"Print one JSON document."`
}

// Help is kong's detailed help.
func (*auditCommand) Help() string {
	return `Reads everything and changes nothing. Each rule of the sale is printed with the
figure that proves or breaks it, and the codes of the candidates where it is
broken: keep the output as you keep the candidates. A difference counts when it
is older than two minutes, where its age can be told, and is there in each of
three readings; the others are "in flight". What was not looked at is said.

Rule "money" looks at refunds always, and at the gateway's word with --gateway: a
transaction that pays for a seat has no refund, and one that completed without a
seat, or otherwise than ordered, has one. Its figure tells the refunds that are
due, sent and done. Rule "signals" is broken by a notification of the gateway that
is open for more than an hour: see the logs for why its payment got neither seat
nor refund.

Exit status: 0 every rule that was asked about holds; 1 a rule is broken, or one
that was asked about is NOT SEEN, since gateway or status.json gave no answer; 2
the audit could not be made.

Example:
  seatctl audit --gateway --data data/local`
}

// Run is the command.
func (c *auditCommand) Run(s *session) (err error) {
	o, err := s.open(c.Gateway)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, o.Close()) }()
	report, err := o.Ops.Audit(s.ctx, saleops.AuditOptions{Gateway: c.Gateway, QueriesPerSecond: c.Rate, Status: o.Status})
	if err != nil {
		return err
	}
	if c.JSON {
		err = s.printJSON(report)
	} else {
		err = s.printReport(report)
	}
	if err == nil && (report.Broken() || report.Unseen()) {
		err = wrong(nil)
	}
	return err
}

func (s *session) printReport(r saleops.Report) error {
	var b strings.Builder
	state := "closed"
	if r.Open {
		state = "open"
	}
	fmt.Fprintf(&b, "sale %s, epoch %s, %s, read %s\n\n", r.Sale, r.Epoch, state, r.At.UTC().Format(time.RFC3339))
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "RULE\tVERDICT\tFIGURE\tIN FLIGHT\tWHAT")
	broken, unseen := 0, 0
	for _, rule := range r.Rules {
		fmt.Fprintf(w, "%s\t%s\t%s\t%d\t%s\n", rule.Code, rule.Verdict, rule.Figure, rule.InFlight, rule.Text)
		switch rule.Verdict {
		case saleops.VerdictBroken:
			broken++
		case saleops.VerdictNotSeen:
			unseen++
		case saleops.VerdictHolds, saleops.VerdictNotAsked:
		}
	}
	if err := w.Flush(); err != nil {
		return err
	}
	for _, rule := range r.Rules {
		if len(rule.Broken) == 0 {
			continue
		}
		fmt.Fprintf(&b, "\n%s: %s, but in %d places:\n", rule.Code, rule.Text, rule.Count)
		for _, text := range rule.Broken {
			fmt.Fprintf(&b, "  %s\n", text)
		}
		if more := rule.Count - len(rule.Broken); more > 0 {
			fmt.Fprintf(&b, "  and %d more\n", more)
		}
	}
	if len(r.NotSeen) > 0 {
		fmt.Fprintf(&b, "\nnot seen:\n  %s\n", strings.Join(r.NotSeen, "\n  "))
	}
	if broken > 0 {
		fmt.Fprintf(&b, "\nBROKEN: %d rules\n", broken)
	}
	if unseen > 0 {
		fmt.Fprintf(&b, "\nNOT SEEN: %d rules: nobody knows whether they hold\n", unseen)
	}
	if broken+unseen == 0 {
		fmt.Fprintln(&b, "\nevery rule that was seen holds")
	}
	_, err := fmt.Fprint(s.stdout, b.String())
	return err
}
