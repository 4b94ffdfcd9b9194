// Package seatctl is the operator's command line. A command opens the deployment
// that the settings name, runs one operation of package saleops or one
// benchmark, and says what came of it: as text, or with --json as one document
// on stdout. What it asks and how far it is goes to stderr.
//
// Fail mode: closed. What could not be read is no good news: it is said, or the
// command ends with another code than 0. Clock: the ledger's, where a time
// decides anything.
package seatctl

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"path/filepath"

	"github.com/alecthomas/kong"
	kongcompletion "github.com/jotaen/kong-completion"

	"holdfast/internal/app"
	"holdfast/internal/config"
	"holdfast/internal/obs"
)

// The exit codes.
const (
	exitDone   = 0 // done, and nothing is wrong
	exitWrong  = 1 // a rule is broken, or the operation was refused
	exitNotRun = 2 // it could not be run: arguments, settings, no answer, an interrupted question
)

// commands are what the command line can say.
type commands struct {
	Data string `help:"Folder of a local run, whose holdfast.env names the deployment. Without it the HOLDFAST_* variables do." placeholder:"DIR"`

	Sale          saleCommand          `cmd:"" help:"The sale: put it into force, show it."`
	Candidates    candidatesCommand    `cmd:"" help:"The allowlist: load it from a file, look somebody up, write it out."`
	Open          openCommand          `cmd:"" help:"Open booking, now or at a time, after a look at what must be right."`
	Close         closeCommand         `cmd:"" help:"Close booking, and show that nobody is admitted any more."`
	Status        statusCommand        `cmd:"" help:"The sale as it runs: seats, holds, queue, money, processes, alarms; --watch for a live view."`
	Audit         auditCommand         `cmd:"" help:"Compare ledger, store, queue and status.json, and prove or break each rule."`
	Rebuild       rebuildCommand       `cmd:"" help:"Restore the seat ledger of an empty Redis from the booking store."`
	Holds         holdsCommand         `cmd:"" help:"Holds: give lost time back."`
	Bookings      bookingsCommand      `cmd:"" help:"Bookings: show one, write them out, end a payment in doubt."`
	Refunds       refundsCommand       `cmd:"" help:"Refunds: list, retry, settle."`
	Notifications notificationsCommand `cmd:"" help:"Notifications of the gateway: list, close."`
	DLQ           dlqCommand           `cmd:"" name:"dlq" help:"Dead letters: list, show, have them delivered again."`
	Reset         resetCommand         `cmd:"" help:"Begin the sale anew: no seat is taken, under a new epoch."`
	Purge         purgeCommand         `cmd:"" help:"Remove personal data after the event."`
	Gateway       gatewayCommands      `cmd:"" help:"The payment gateway: try it."`
	Page          pageCommand          `cmd:"" help:"The booking page: write it out for a bucket."`
	Smoke         smokeCommand         `cmd:"" help:"Ask a deployment from outside for what it must show, after every deploy."`
	Log           logCommand           `cmd:"" help:"Who changed what, when, from where, and why."`
	Rehearse      rehearseCommand      `cmd:"" help:"Rehearse the launch on this machine, at full rate, and report."`
	RehearsePart  rehearsePartCommand  `cmd:"" hidden:""`
	Completion    completionCommand    `cmd:"" help:"Have a shell complete commands and flags."`
	Bench         benchCommand         `cmd:"" help:"Measure this machine: the hot path, its alternatives, a slow gateway, a wave of lapsed holds, the worker."`
}

const description = `The operator's tool of a Holdfast sale.

Exit status: 0 done, and nothing is wrong; 1 a rule is broken, or the operation
was refused; 2 it could not be run, or was interrupted at a question. A second
interruption ends it at once.

Example:
  seatctl --data data/local audit`

// session is what a command runs with.
type session struct {
	ctx            context.Context
	platform       app.Platform
	data           string
	getenv         func(string) string
	stdin          io.Reader
	stdout, stderr io.Writer
}

// exitError ends a command with a code; a nil err says nothing more.
type exitError struct {
	code int
	err  error
}

func (e *exitError) Error() string {
	if e.err == nil {
		return fmt.Sprintf("exit status %d", e.code)
	}
	return e.err.Error()
}

func (e *exitError) Unwrap() error { return e.err }

func wrong(err error) error { return &exitError{exitWrong, err} }

// Run runs one command on that platform and returns its exit code.
func Run(ctx context.Context, p app.Platform, args []string, getenv func(string) string, stdin io.Reader, stdout, stderr io.Writer) int {
	app.Quiet()
	var c commands
	helped := false
	parser, err := kong.New(&c,
		kong.Name("seatctl"), kong.Description(description), kong.UsageOnError(),
		kong.ConfigureHelp(kong.HelpOptions{Compact: true}),
		kong.Writers(stdout, stderr), kong.Exit(func(int) { helped = true }))
	if err != nil {
		return end(stderr, err)
	}
	// A shell that asks for completions runs the program with its line in COMP_LINE.
	kongcompletion.Register(parser)
	if helped {
		return exitDone
	}
	parsed, err := parser.Parse(args)
	if helped {
		return exitDone
	}
	if err != nil {
		return end(stderr, fmt.Errorf("%w; see seatctl --help", err))
	}
	s := &session{ctx: ctx, platform: p, data: c.Data, getenv: getenv, stdin: stdin, stdout: stdout, stderr: stderr}
	return end(stderr, parsed.Run(s))
}

func end(stderr io.Writer, err error) int {
	if err == nil {
		return exitDone
	}
	code := exitNotRun
	var e *exitError
	if errors.As(err, &e) {
		code, err = e.code, e.err
	}
	if err != nil {
		fmt.Fprintf(stderr, "seatctl: %v\n", err)
	}
	return code
}

// settings are the variables that name the deployment, references as they are.
func (s *session) settings() (getenv func(string) string, err error) {
	if s.data == "" {
		return s.getenv, nil
	}
	if getenv, err = config.ReadEnv(filepath.Join(s.data, config.EnvFile)); err != nil {
		return nil, fmt.Errorf("--data %s: %w: is cmd/local running on this folder", s.data, err)
	}
	return getenv, nil
}

// open reaches the deployment; with gateway its commands can ask that too.
func (s *session) open(gateway bool) (*app.Operator, error) {
	getenv, err := s.settings()
	if err != nil {
		return nil, err
	}
	names := config.Variables[config.Operator]()
	if gateway {
		names = append(names, config.Variables[config.Gateway]()...)
	}
	if getenv, err = s.platform.Settings(s.ctx, getenv, names); err != nil {
		return nil, err
	}
	cfg, err := config.LoadOperator(getenv)
	if err != nil {
		return nil, fmt.Errorf("settings:\n%w", err)
	}
	var pay *config.Gateway
	if gateway {
		g, err := config.LoadGateway(getenv)
		if err != nil {
			return nil, fmt.Errorf("settings:\n%w", err)
		}
		pay = &g
	}
	return app.OpenOperator(s.ctx, s.platform.Open, cfg, pay, obs.NewLogger(s.stderr, max(cfg.LogLevel, slog.LevelWarn)))
}

// printJSON writes one document.
func (s *session) printJSON(v any) error {
	enc := json.NewEncoder(s.stdout)
	enc.SetIndent("", "  ")
	return enc.Encode(v)
}
