package seatctl

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"strings"
	"time"

	"holdfast/internal/app"
	"holdfast/internal/booking"
)

// logTimeout is for one entry of the operator's log. The last one of a change is made
// on a time of its own: an interrupted command still says how far it came.
const logTimeout = 5 * time.Second

// mutation is a change that a command makes, as the operator's log has it. Subject and
// Before hold no candidate code, e-mail address, phone number or secret.
type mutation struct {
	// What is the command: "holds extend".
	What string
	// Subject is what it is done to: a sale, an attempt, a transaction.
	Subject string
	// Reason is the operator's words.
	Reason string
	// Before is how the subject stands; it is stored as JSON.
	Before any
}

// refused says of a change that it was not made and that nothing was changed, for a
// reason that the operator can see to: exit status 1, and "refused" in the log.
func refused(err error) error { return wrong(&refusal{err}) }

type refusal struct{ err error }

func (r *refusal) Error() string { return r.err.Error() }
func (r *refusal) Unwrap() error { return r.err }

// mutate logs that the change begins, makes it, and logs what came of it; without the
// first line the change is not made. What do answers as after is logged beside its
// error too, and mutate returns that error as it is: one of refused is logged as
// refused, one after which the last step may have been made (booking.ErrInDoubt,
// booking.ErrNotAcknowledged, a cut connection, an interruption) as unknown, any other
// as failed. A change whose end could not be logged is made all the same, so that its
// command still tells of it, and ends with exit status 1.
func (s *session) mutate(o *app.Operator, m mutation, do func(ctx context.Context) (after any, err error)) error {
	who, err := s.who(o)
	if err != nil {
		return err
	}
	return s.logged(o.Log(), who, m, do)
}

// who is the operator by the platform; an error says that nothing was changed.
func (s *session) who(o *app.Operator) (string, error) {
	who, err := o.Who(s.ctx, s.platform, s.getenv)
	if err != nil {
		return "", notBegun(err)
	}
	return who, nil
}

// logged is mutate for an operator who is known.
func (s *session) logged(log app.OperatorLog, who string, m mutation, do func(ctx context.Context) (after any, err error)) error {
	before, err := logJSON(m.Before)
	if err != nil {
		return notBegun(err)
	}
	now := time.Now()
	entry := booking.LogEntry{
		Version: booking.LogEntryVersion, ID: booking.NewLogID(now), At: now.UTC(), Who: who, From: s.from(),
		What: m.What, Subject: m.Subject, Reason: m.Reason, Before: before, Outcome: booking.LogBegun,
	}
	ctx, cancel := context.WithTimeout(s.ctx, logTimeout)
	err = log.AppendLog(ctx, entry)
	cancel()
	if err != nil {
		return notBegun(err)
	}
	state, did := do(s.ctx)
	after, logErr := logJSON(state)
	// However the change ended, it has: the log must say so though nobody waits any more.
	ctx, cancel = context.WithTimeout(context.WithoutCancel(s.ctx), logTimeout)
	defer cancel()
	logErr = errors.Join(logErr, log.AppendLog(ctx, entry.End(time.Now().UTC(), outcome(did), after)))
	switch {
	case logErr == nil:
		return did
	case did == nil:
		return wrong(fmt.Errorf("it was done, but the operator's log does not have its end (change %s): %w", entry.ID, logErr))
	}
	code := exitNotRun
	var e *exitError
	if errors.As(did, &e) {
		code = e.code
	}
	return &exitError{code, fmt.Errorf("%w; and the operator's log does not have its end (change %s): %w", did, entry.ID, logErr)}
}

// notBegun says that the change was not made, since nobody would know who made it.
func notBegun(err error) error {
	return &exitError{exitNotRun, fmt.Errorf("nothing was changed, because it could not be logged: %w", err)}
}

func logJSON(v any) (json.RawMessage, error) {
	if v == nil {
		return nil, nil
	}
	text, err := json.Marshal(v)
	if err != nil {
		return nil, fmt.Errorf("write what stands as JSON: %w", err)
	}
	return text, nil
}

// outcome is the log's word for how a change ended.
func outcome(err error) booking.LogOutcome {
	var refusal *refusal
	switch {
	case err == nil:
		return booking.LogDone
	case errors.As(err, &refusal):
		return booking.LogRefused
	case errors.Is(err, booking.ErrInDoubt), errors.Is(err, booking.ErrNotAcknowledged), cutOff(err):
		return booking.LogUnknown
	}
	return booking.LogFailed
}

// cutOff tells whether somebody stopped waiting, or a connection ended, while a call
// was under way. One that was never made carries nothing out.
func cutOff(err error) bool {
	for _, end := range []error{context.Canceled, context.DeadlineExceeded, io.EOF, io.ErrUnexpectedEOF, net.ErrClosed} {
		if errors.Is(err, end) {
			return true
		}
	}
	var op *net.OpError
	return errors.As(err, &op) && op.Op != "dial"
}

// from is this machine, and where its session comes from if a variable says so: that
// is a hint, since whoever runs this can set it.
func (s *session) from() string {
	host, err := os.Hostname()
	if err != nil || host == "" {
		host = "a machine without a name"
	}
	client, _, _ := strings.Cut(s.getenv("SSH_CONNECTION"), " ")
	if addr, err := netip.ParseAddr(client); err == nil {
		return fmt.Sprintf("%s, by SSH from %s as its environment says", host, addr)
	}
	return host
}

// typed says what will be done, and has the operator type the word (the sale's name),
// unless given already says it. The error says that nothing was changed.
func (s *session) typed(word, given, what string) error {
	fmt.Fprintln(s.stderr, what)
	if given == "" {
		fmt.Fprint(s.stderr, "Type the sale's name: ")
		line, err := s.readLine()
		if err != nil && line == "" {
			return wrong(errors.New("the sale's name was not typed: nothing was changed"))
		}
		given = strings.TrimSpace(line)
	}
	if given != word {
		return wrong(fmt.Errorf("the sale's name is %s, not %q: nothing was changed", word, given))
	}
	return nil
}

// readLine reads one line and nothing of the next, which may answer another question.
func (s *session) readLine() (string, error) {
	var line []byte
	for one := make([]byte, 1); ; {
		n, err := s.stdin.Read(one)
		if n > 0 && one[0] == '\n' {
			return string(line), nil
		}
		line = append(line, one[:n]...)
		if err != nil {
			return string(line), err
		}
	}
}

// when prints a time with its zone, which is UTC; "-" when there is none.
func when(t time.Time) string {
	if t.IsZero() {
		return "-"
	}
	return t.UTC().Format(time.RFC3339)
}
