package seatctl

import (
	"bytes"
	"context"

	"holdfast/internal/app"
)

// ChangeAnyway makes a change that waits for no log, and returns the exit code and what
// was said.
func ChangeAnyway(ctx context.Context, log app.OperatorLog, who func(context.Context) (string, error), do func(ctx context.Context) (any, error)) (code int, stderr string) {
	var errs bytes.Buffer
	s := &session{ctx: ctx, getenv: func(string) string { return "" }, stderr: &errs}
	err := s.anyway(log, who, mutation{What: "close", Subject: "demo", Reason: "drill", Anyway: true}, do)
	return end(&errs, err), errs.String()
}
