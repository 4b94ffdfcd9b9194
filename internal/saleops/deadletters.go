package saleops

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"holdfast/internal/booking"
)

// DeadQueue is what the dead letters need of the queue.
type DeadQueue interface {
	Queue
	// DeadLetters shows at most that many, and leaves them where they are.
	DeadLetters(ctx context.Context, most int) ([]booking.Delivery, error)
	// Redrive has those with these deduplication ids delivered again, or all of them,
	// and returns how many. Safe to repeat.
	Redrive(ctx context.Context, dedupIDs ...string) (int, error)
}

// RecordReader reads one record; booking.ErrNotFound.
type RecordReader interface {
	Record(ctx context.Context, candidateHash, attempt string) (booking.Record, error)
}

// DeadLetters are the messages that the worker has given up on.
type DeadLetters struct {
	Queue DeadQueue
	Store RecordReader
}

// DeadLetter is one of them. It has no candidate code: what cannot be read is told by
// its size and hash alone.
type DeadLetter struct {
	// ID names it for Redrive: its attempt, or, where it has none, a text made of its
	// deduplication id.
	ID string `json:"id"`
	// Receives counts how often it was delivered; with SQS looks count, too.
	Receives int       `json:"receives"`
	SentAt   time.Time `json:"sent_at"`
	Bytes    int       `json:"bytes"`
	SHA256   string    `json:"sha256"`
	// Unreadable says why it is no record; then the fields below are empty.
	Unreadable string            `json:"unreadable,omitempty"`
	Attempt    string            `json:"attempt,omitempty"`
	Level      string            `json:"level,omitempty"`
	Payment    string            `json:"payment_id,omitempty"`
	AdmittedAt time.Time         `json:"admitted_at,omitzero"`
	Deadline   time.Time         `json:"deadline,omitzero"`
	Record     DeadLettersRecord `json:"record"`

	dedup string
}

// DeadLettersRecord is what the store has of a dead letter's attempt.
type DeadLettersRecord struct {
	// State is empty when there is no record: redriven, the worker puts it.
	State booking.RecordState `json:"state,omitempty"`
	// Unknown says why nobody knows.
	Unknown string `json:"unknown,omitempty"`
}

// ErrNoDeadLetter says that no dead letter that can be seen has this id.
var ErrNoDeadLetter = errors.New("no dead letter that can be seen has this id")

// List shows at most that many, in the queue's order, and changes nothing.
func (d *DeadLetters) List(ctx context.Context, most int) ([]DeadLetter, error) {
	found, err := d.Queue.DeadLetters(ctx, most)
	if err != nil {
		return nil, err
	}
	out := make([]DeadLetter, 0, len(found))
	for _, m := range found {
		out = append(out, d.describe(ctx, m))
	}
	return out, nil
}

func (d *DeadLetters) describe(ctx context.Context, m booking.Delivery) DeadLetter {
	sum := sha256.Sum256(m.Body)
	l := DeadLetter{
		ID: nameOf(m.DedupID), Receives: m.Receives, SentAt: m.SentAt.UTC(), Bytes: len(m.Body), SHA256: hex.EncodeToString(sum[:]), dedup: m.DedupID,
	}
	var rec booking.Record
	var invalid *json.SyntaxError
	err := json.Unmarshal(m.Body, &rec)
	switch {
	case errors.As(err, &invalid):
		l.Unreadable = fmt.Sprintf("it is not JSON from byte %d on", invalid.Offset)
	case err != nil:
		l.Unreadable = "its JSON is not a record's" // the cause may quote what it holds
	default:
		if err := rec.Validate(); err != nil {
			l.Unreadable = err.Error()
		} else if rec.Invoice != m.DedupID {
			l.Unreadable = "it was not sent under its own invoice number"
		}
	}
	if l.Unreadable != "" {
		l.Record.Unknown = "the message cannot be read"
		return l
	}
	l.Attempt, l.Level, l.Payment = rec.Attempt, rec.Level, rec.PaymentID
	l.AdmittedAt, l.Deadline = rec.AdmittedAt.UTC(), rec.Deadline.UTC()
	switch have, err := d.Store.Record(ctx, rec.CandidateHash, rec.Attempt); {
	case err == nil:
		l.Record.State = have.State
	case !errors.Is(err, booking.ErrNotFound):
		l.Record.Unknown = err.Error()
	}
	return l
}

// nameOf is how a dead letter is called: an attempt is short, unique and no
// candidate's.
func nameOf(dedup string) string {
	if _, attempt, err := booking.ParseInvoice(dedup); err == nil {
		return attempt
	}
	sum := sha256.Sum256([]byte(dedup))
	return "x-" + hex.EncodeToString(sum[:8])
}

// Find picks those with these ids out of at most that many, in the order of the ids.
// ErrNoDeadLetter names the first that is not there.
func (d *DeadLetters) Find(ctx context.Context, most int, ids ...string) ([]DeadLetter, error) {
	all, err := d.List(ctx, most)
	if err != nil {
		return nil, err
	}
	var out []DeadLetter
	for _, id := range ids {
		i := slices.IndexFunc(all, func(l DeadLetter) bool { return l.ID == id })
		if i < 0 {
			return nil, fmt.Errorf("%s: %w", id, ErrNoDeadLetter)
		}
		out = append(out, all[i])
	}
	return out, nil
}

// Redrive has these delivered again, and returns how many; beside an error it is how
// many were before it. A record that is there already ends its message, so that a
// repeat does no harm.
func (d *DeadLetters) Redrive(ctx context.Context, letters []DeadLetter) (int, error) {
	if len(letters) == 0 {
		return 0, nil // none named means all to the queue
	}
	ids := make([]string, 0, len(letters))
	for _, l := range letters {
		ids = append(ids, l.dedup)
	}
	return d.Queue.Redrive(ctx, ids...)
}

// RedriveAll is Redrive of all there are.
func (d *DeadLetters) RedriveAll(ctx context.Context) (int, error) { return d.Queue.Redrive(ctx) }

// Stats are the queue's figures.
func (d *DeadLetters) Stats(ctx context.Context) (booking.QueueStats, error) {
	return d.Queue.Stats(ctx)
}
