package seatctl

import (
	"bytes"
	"context"
	"strings"

	"github.com/alecthomas/kong"

	"holdfast/internal/app"
)

// RefundService is what the refund commands work on.
type RefundService = refundService

// Refunds runs a command of "refunds" against a service, and returns the exit
// code and what it said. The operator is alice.
func Refunds(ctx context.Context, svc RefundService, log app.OperatorLog, stdin string, args ...string) (code int, stdout, stderr string) {
	var out, errs bytes.Buffer
	var c struct {
		Refunds refundsCommand `cmd:""`
	}
	parser, err := kong.New(&c, kong.Name("seatctl"), kong.Writers(&out, &errs))
	if err != nil {
		return exitNotRun, "", err.Error()
	}
	s := &session{ctx: ctx, getenv: func(string) string { return "" }, stdin: strings.NewReader(stdin), stdout: &out, stderr: &errs}
	work := refundsWork{svc, log, "alice"}
	parsed, err := parser.Parse(append([]string{"refunds"}, args...))
	if err == nil {
		switch name, _, _ := strings.Cut(strings.TrimPrefix(parsed.Command(), "refunds "), " "); name {
		case "list":
			err = s.listRefunds(svc.List(ctx), c.Refunds.List.JSON)
		case "retry":
			err = s.retryRefunds(&c.Refunds.Retry, work)
		case "settle":
			err = s.settleRefund(&c.Refunds.Settle, work)
		}
	}
	code = end(&errs, err)
	return code, out.String(), errs.String()
}

// RunRefunds runs a command of "refunds" as the command line does.
func RunRefunds(ctx context.Context, data, stdin string, args ...string) (code int, stdout, stderr string) {
	var out, errs bytes.Buffer
	var c struct {
		Refunds refundsCommand `cmd:""`
	}
	helped := false
	parser, err := kong.New(&c, kong.Name("seatctl"), kong.Writers(&out, &errs), kong.Exit(func(int) { helped = true }))
	if err != nil {
		return exitNotRun, "", err.Error()
	}
	parsed, err := parser.Parse(append([]string{"refunds"}, args...))
	if err == nil && !helped {
		err = parsed.Run(&session{ctx: ctx, platform: app.Local(), data: data, getenv: func(string) string { return "" }, stdin: strings.NewReader(stdin), stdout: &out, stderr: &errs})
	}
	if helped {
		err = nil
	}
	code = end(&errs, err)
	return code, out.String(), errs.String()
}

// Commands are all that can be run, as one types them.
func Commands() ([]string, error) {
	parser, err := kong.New(&commands{}, kong.Name("seatctl"))
	if err != nil {
		return nil, err
	}
	var out []string
	for _, leaf := range parser.Model.Leaves(true) {
		path := leaf.Name
		for n := leaf.Parent; n != nil && n.Type == kong.CommandNode; n = n.Parent {
			path = n.Name + " " + path
		}
		out = append(out, path)
	}
	return out, nil
}
