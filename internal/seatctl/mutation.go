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

// hurryTimeout is for the first entry of a change that is made all the same.
const hurryTimeout = 2 * time.Second

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
	// Anyway: it is made also where it cannot be logged, and ends with exit status 1 then.
	// That is for what stops a sale, which waits for neither store nor platform.
	Anyway bool
}

// refused says of a change that it was not made and that nothing was changed, for a
// reason that the operator can see to: exit status 1, and "refused" in the log.
func refused(err error) error { return wrong(&refusal{err}) }

// notAsShown says of a change that it was not made over something else than its operator
// was shown.
func notAsShown() error {
	return refused(fmt.Errorf("refused: %w: nothing was changed", booking.ErrNotAsShown))
}

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
	if m.Anyway {
		return s.anyway(o.Log(), func(ctx context.Context) (string, error) { return o.Who(ctx, s.platform, s.getenv) }, m, do)
	}
	who, err := s.who(o)
	if err != nil {
		return err
	}
	return s.logged(o.Log(), who, m, do)
}

// anyway is mutate for a change of Anyway. Its operator is told at once that it is not
// logged, and its first entry is tried again once the change has ended.
func (s *session) anyway(log app.OperatorLog, who func(ctx context.Context) (string, error), m mutation, do func(ctx context.Context) (after any, err error)) error {
	entry, err := s.entry(m)
	if err != nil {
		return notBegun(err)
	}
	begin := func(ctx context.Context) (err error) {
		if entry.Who, err = who(ctx); err != nil {
			return err
		}
		return log.AppendLog(ctx, entry)
	}
	ctx, cancel := context.WithTimeout(s.ctx, hurryTimeout)
	missing := begin(ctx)
	cancel()
	if missing != nil && s.ctx.Err() != nil {
		return notBegun(missing)
	}
	if missing != nil {
		fmt.Fprintf(s.stderr, "THE OPERATOR'S LOG DOES NOT HAVE THIS, and it is done all the same: %v\n", missing)
	}
	state, did := do(s.ctx)
	after, logErr := logJSON(state)
	ctx, cancel = context.WithTimeout(context.WithoutCancel(s.ctx), logTimeout)
	defer cancel()
	if missing != nil {
		if err := begin(ctx); err != nil {
			return notLogged(did, "it", entry, err)
		}
		fmt.Fprintln(s.stderr, "the operator's log has it now")
	}
	logErr = errors.Join(logErr, log.AppendLog(ctx, entry.End(time.Now().UTC(), outcome(did), after)))
	return notLogged(did, "its end", entry, logErr)
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
	entry, err := s.entry(m)
	if err != nil {
		return notBegun(err)
	}
	entry.Who = who
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
	return notLogged(did, "its end", entry, logErr)
}

// entry is the change's first one, for whoever makes it.
func (s *session) entry(m mutation) (booking.LogEntry, error) {
	before, err := logJSON(m.Before)
	now := time.Now()
	return booking.LogEntry{
		Version: booking.LogEntryVersion, ID: booking.NewLogID(now), At: now.UTC(), From: s.from(),
		What: m.What, Subject: m.Subject, Reason: m.Reason, Before: before, Outcome: booking.LogBegun,
	}, err
}

// notLogged is how a change ended, and that the log lacks it, or its end, unless it does
// not.
func notLogged(did error, lacks string, entry booking.LogEntry, logErr error) error {
	switch {
	case logErr == nil:
		return did
	case did == nil:
		return wrong(fmt.Errorf("it was done, but the operator's log does not have %s (change %s): %w", lacks, entry.ID, logErr))
	}
	code := exitNotRun
	var e *exitError
	if errors.As(did, &e) {
		code = e.code
	}
	return &exitError{code, fmt.Errorf("%w; and the operator's log does not have %s (change %s): %w", did, lacks, entry.ID, logErr)}
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
		switch {
		case errors.Is(err, errInterrupted):
			return err
		case err != nil && line == "":
			return wrong(errors.New("the sale's name was not typed: nothing was changed"))
		}
		given = strings.TrimSpace(line)
	}
	if given != word {
		return wrong(fmt.Errorf("the sale's name is %s, not %q: nothing was changed", word, given))
	}
	return nil
}

// errInterrupted ends a question that the operator does not answer.
var errInterrupted = errors.New("interrupted: nothing was changed")

// readLine reads one line and nothing of the next, which may answer another question;
// errInterrupted when somebody ends the command instead. The reading is then left
// behind, and what it reads is lost.
func (s *session) readLine() (string, error) {
	type answer struct {
		line string
		err  error
	}
	read := make(chan answer, 1)
	go func() {
		line, err := readLine(s.stdin)
		read <- answer{line, err}
	}()
	select {
	case a := <-read:
		if s.ctx.Err() == nil {
			return a.line, a.err
		}
	case <-s.ctx.Done():
	}
	fmt.Fprintln(s.stderr)
	return "", errInterrupted
}

func readLine(from io.Reader) (string, error) {
	var line []byte
	for one := make([]byte, 1); ; {
		n, err := from.Read(one)
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
