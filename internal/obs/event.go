package obs

import (
	"context"
	"errors"
	"log/slog"
)

// Event is what handlers learn about one request or job. The middleware that
// made it writes it once, at the end, on one line. It carries no e-mail address,
// code or token. It belongs to the request's own goroutine: work that outlives
// the request must not touch it.
type Event struct {
	// RequestID is what the person was told.
	RequestID string
	// Candidate returns the candidate hash, of which the line gets the start: see
	// CandidatePrefix. It is called only when the line is written.
	Candidate func() string
	// Level is the level id.
	Level string
	// Attempt is the attempt id.
	Attempt string
	// Outcome is one word from a closed set: "admitted", "duplicate", ...
	Outcome string
	// Cause is the error behind the outcome, for operators only.
	Cause error
	// Keep has the line written although lines of its outcome are sampled.
	Keep bool
}

// candidatePrefix is enough to tell candidates of one sale apart in a log, and
// too little to find a code by.
const candidatePrefix = 8

// CandidatePrefix cuts a candidate hash for the log.
func CandidatePrefix(hash string) string {
	return hash[:min(len(hash), candidatePrefix)]
}

// Attrs lists the fields that were learnt, in a fixed order.
func (e *Event) Attrs() []slog.Attr {
	attrs, candidate := make([]slog.Attr, 0, 8), ""
	if e.Candidate != nil {
		candidate = CandidatePrefix(e.Candidate())
	}
	for _, f := range []struct{ key, value string }{
		{"request_id", e.RequestID}, {"candidate", candidate}, {"level_id", e.Level}, {"attempt", e.Attempt}, {"outcome", e.Outcome},
	} {
		if f.value != "" {
			attrs = append(attrs, slog.String(f.key, f.value))
		}
	}
	if e.Cause != nil {
		attrs = append(attrs, slog.String("error", e.Cause.Error()))
		var p *PanicError
		if errors.As(e.Cause, &p) {
			attrs = append(attrs, slog.String("stack", p.Stack))
		}
	}
	return attrs
}

type eventKey struct{}

// WithEvent starts an event: handlers below fill it through EventFrom.
func WithEvent(ctx context.Context) (context.Context, *Event) {
	c := &eventContext{Context: ctx}
	return c, &c.event
}

// eventContext holds the event itself: one allocation a request, not two.
type eventContext struct {
	context.Context
	event Event
}

// Value finds the event for its key.
func (c *eventContext) Value(key any) any {
	if key == (eventKey{}) {
		return &c.event
	}
	return c.Context.Value(key)
}

// EventFrom is the event of ctx. Without one it returns an event that nobody
// will write, so that callers need not ask.
func EventFrom(ctx context.Context) *Event {
	if e, ok := ctx.Value(eventKey{}).(*Event); ok {
		return e
	}
	return &Event{}
}
