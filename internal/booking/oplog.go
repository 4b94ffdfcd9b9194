package booking

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"
)

// LogEntryVersion is the version written into every entry of the operator's log.
const LogEntryVersion = 1

// LogOutcome is how far an operator's change has come.
type LogOutcome string

// The outcomes of an entry. The first entry of a change has LogBegun, the second
// one of the others; a change without a second entry was cut off, and nobody knows
// how far it came.
const (
	LogBegun   LogOutcome = "begun"
	LogDone    LogOutcome = "done"    // made
	LogRefused LogOutcome = "refused" // not made: nothing was changed
	LogFailed  LogOutcome = "failed"  // ended by an error: what was changed before stands under after
	LogUnknown LogOutcome = "unknown" // the last step may have been made
)

// ErrLogTaken refuses an entry under an id that another one has: the log is only
// added to.
var ErrLogTaken = errors.New("the operator's log has another entry under this id")

// LogEntry is one entry of the operator's log: who changed what, when, from where and
// why. Each change has two: one before anything is changed, one when it has ended.
// Subject, Before and After hold no candidate code, e-mail address, phone number or
// secret. The JSON names and their meaning are docs/shapes.md.
type LogEntry struct {
	Version int `json:"v"`
	// ID is the change's, sortable by the time at which it began; its second entry has
	// LogEnding behind it, and so comes next in the order of ids.
	ID string `json:"id"`
	// At is when the entry was made, by the clock of the operator's machine.
	At time.Time `json:"at"`
	// Who is the operator as the platform knows them, never as they call themselves.
	Who string `json:"who"`
	// From is the machine, and where its session comes from if that is told: a hint.
	From string `json:"from"`
	// What is the command, such as "holds extend".
	What string `json:"what"`
	// Subject is what it is done to: a sale, an attempt, a transaction.
	Subject string `json:"subject,omitempty"`
	// Reason is the operator's own words.
	Reason string `json:"reason,omitempty"`
	// Before and After are how the subject stood; JSON of the command's own.
	Before  json.RawMessage `json:"before,omitempty"`
	After   json.RawMessage `json:"after,omitempty"`
	Outcome LogOutcome      `json:"outcome"`
}

// LogEnding is behind the id of a change's second entry.
const LogEnding = ".end"

// NewLogID makes the id of a change that begins now: random, sortable by time to the
// millisecond.
func NewLogID(now time.Time) string { return NewAttemptSuffix(now) }

// LogIDsFrom is a text that sorts before every id made at that time or later, and
// behind every id made in an earlier millisecond. A time before 1970 is 1970's.
func LogIDsFrom(since time.Time) string {
	b := make([]byte, timeLen)
	base32Time(b, max(0, since.UnixMilli()))
	return string(b)
}

// LogIDTime is when the change of this id began, to the millisecond; false for a text
// that is no id.
func LogIDTime(id string) (time.Time, bool) {
	id = strings.TrimSuffix(id, LogEnding)
	if !isCrockford(id, suffixLen) {
		return time.Time{}, false
	}
	var ms int64
	for _, c := range []byte(id[:timeLen]) {
		ms = ms<<5 | int64(strings.IndexByte(crockford, c))
	}
	return time.UnixMilli(ms).UTC(), true
}

// End is the second entry of the change that this one begins: how it ended, and how
// the subject stands then.
func (e LogEntry) End(at time.Time, outcome LogOutcome, after json.RawMessage) LogEntry {
	e.ID, e.At, e.Outcome, e.After = e.ID+LogEnding, at, outcome, after
	return e
}

// Change is the id that both entries of a change have in common.
func (e LogEntry) Change() string { return strings.TrimSuffix(e.ID, LogEnding) }

// Validate tells whether the entry can be one of ours; it says why not.
func (e LogEntry) Validate() error {
	_, known := LogIDTime(e.ID)
	switch {
	case e.Version != LogEntryVersion:
		return fmt.Errorf("log entry version %d: this program reads version %d", e.Version, LogEntryVersion)
	case !known:
		return fmt.Errorf("log entry: id %.60q is not one of ours", e.ID)
	case e.At.IsZero():
		return errors.New("log entry: at is missing")
	case e.Who == "" || e.From == "" || e.What == "":
		return errors.New("log entry: who, from or what is missing")
	}
	switch e.Outcome {
	case LogBegun, LogDone, LogRefused, LogFailed, LogUnknown:
	default:
		return fmt.Errorf("log entry: outcome %q is unknown", e.Outcome)
	}
	if (e.Outcome == LogBegun) == strings.HasSuffix(e.ID, LogEnding) {
		return fmt.Errorf("log entry: outcome %s does not go with id %s", e.Outcome, e.ID)
	}
	return nil
}

// Encode writes the entry as it is stored, its time in UTC: equal entries are equal
// texts. An error for one that is not valid.
func (e LogEntry) Encode() (string, error) {
	if err := e.Validate(); err != nil {
		return "", err
	}
	e.At = e.At.Round(0).UTC()
	text, err := json.Marshal(e)
	if err != nil {
		return "", fmt.Errorf("log entry %s: %w", e.ID, err)
	}
	return string(text), nil
}

// DecodeLogEntry reads a stored entry and holds it against the id that it is stored
// under. The error wraps ErrUnreadable and names the id, and the entry beside it has
// the id alone.
func DecodeLogEntry(id, text string) (LogEntry, error) {
	var e LogEntry
	err := json.Unmarshal([]byte(text), &e)
	if err == nil {
		err = e.Validate()
	}
	if err == nil && e.ID != id {
		err = errors.New("it is another's")
	}
	if err != nil {
		return LogEntry{ID: id}, fmt.Errorf("log entry %s: %w: %w", id, ErrUnreadable, err)
	}
	return e, nil
}
