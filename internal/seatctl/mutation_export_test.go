package seatctl

import (
	"bytes"
	"context"
	"io"

	"holdfast/internal/app"
)

// Refused says of a change that it was not made.
func Refused(err error) error { return refused(err) }

// Change has alice make a change, and returns the exit code and what was said.
func Change(ctx context.Context, log app.OperatorLog, getenv func(string) string, before any, do func(ctx context.Context) (any, error)) (code int, stderr string) {
	var errs bytes.Buffer
	s := &session{ctx: ctx, getenv: getenv, stderr: &errs}
	err := s.logged(log, "alice", mutation{What: "sale apply", Subject: "demo", Reason: "drill", Before: before}, do)
	return end(&errs, err), errs.String()
}

// Typed asks for the sale's name twice, and returns the exit code and what was said.
func Typed(stdin io.Reader, name, given string) (code int, stderr string) {
	var errs bytes.Buffer
	s := &session{ctx: context.Background(), stdin: stdin, stderr: &errs}
	err := s.typed(name, given, "This resets the sale.")
	if err == nil {
		err = s.typed(name, given, "Once more.")
	}
	return end(&errs, err), errs.String()
}
