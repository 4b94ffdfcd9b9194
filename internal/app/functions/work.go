package functions

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"time"

	"github.com/aws/aws-lambda-go/events"

	"holdfast/internal/backoffice"
	"holdfast/internal/booking"
	"holdfast/internal/expiry"
)

// Decode reads a record from an image in the stream; see dynamo.RecordFromImage.
// ErrOtherKind for an item that is none; any other error says that the image cannot be
// read. It must not panic on values of a wrong type.
type Decode func(image map[string]events.DynamoDBAttributeValue) (booking.Record, error)

// Office is what sync needs of the back office: see backoffice.Office.
type Office interface {
	Put(ctx context.Context, rec booking.Record) (backoffice.Outcome, error)
}

// Tools are what both functions are made with.
type Tools struct {
	Decode Decode
	Log    *slog.Logger
	// Out takes the metric's lines. It must go where the log goes, to CloudWatch Logs,
	// and each write of it must be a line of its own there.
	Out io.Writer
	Now func() time.Time
}

// NewSync makes the function that copies PAID records into the back office.
func NewSync(office Office, t Tools) *Handler {
	s := &syncer{office: office, decode: t.Decode, log: t.Log}
	return &Handler{name: "sync", work: s.work, log: t.Log, out: t.Out, now: t.Now}
}

// outcomeAnomaly: the back office has the transaction under another booking.
const outcomeAnomaly = "anomaly"

type syncer struct {
	office Office
	decode Decode
	log    *slog.Logger
}

// work takes every change that leaves a PAID record behind, whatever it was before: a
// later change of a paid record (its mail) repairs what an earlier one could not do.
func (s *syncer) work(ctx context.Context, change events.DynamoDBEventRecord) (string, error) {
	image := change.Change.NewImage
	if state := stateOf(image); len(image) == 0 || state == booking.StateHeld || state == booking.StateReleased {
		return outcomeIgnored, nil
	}
	rec, err := decode(s.decode, image)
	if errors.Is(err, ErrOtherKind) {
		return outcomeIgnored, nil
	}
	if err != nil {
		return "", err
	}
	outcome, err := s.office.Put(ctx, rec)
	switch {
	case errors.Is(err, backoffice.ErrTransactionTaken):
		return outcomeAnomaly, err
	case errors.Is(err, backoffice.ErrNotPaid):
		return outcomeUnreadable, err
	case err != nil:
		return "", err
	case outcome == backoffice.Replaced || outcome == backoffice.Older:
		// A candidate has one paid attempt in a sale; the table shows the later one.
		s.log.WarnContext(ctx, "a candidate has two paid attempts: run the audit",
			"attempt", rec.Attempt, "outcome", outcome)
	}
	return string(outcome), nil
}

// NewExpiry makes the function that puts back what TTL should not have deleted.
func NewExpiry(net *expiry.Net, t Tools) *Handler {
	k := &keeper{net: net, decode: t.Decode}
	return &Handler{name: "expiry", work: k.work, log: t.Log, out: t.Out, now: t.Now}
}

type keeper struct {
	net    *expiry.Net
	decode Decode
}

func (k *keeper) work(ctx context.Context, change events.DynamoDBEventRecord) (string, error) {
	if !byTTL(change) {
		return outcomeIgnored, nil
	}
	image := change.Change.OldImage
	if stateOf(image) == booking.StateReleased {
		return string(expiry.Ended), nil // most of them; nothing else of them matters
	}
	rec, err := decode(k.decode, image)
	if errors.Is(err, ErrOtherKind) {
		return outcomeIgnored, nil
	}
	if err != nil {
		return "", err
	}
	outcome, err := k.net.Deleted(ctx, rec)
	return string(outcome), err
}

// byTTL tells a deletion by the TTL service from one by a person or program: only it
// carries this identity (Amazon DynamoDB developer guide, "DynamoDB Streams and Time to
// Live").
func byTTL(change events.DynamoDBEventRecord) bool {
	who := change.UserIdentity
	return change.EventName == string(events.DynamoDBOperationTypeRemove) &&
		who != nil && who.Type == "Service" && who.PrincipalID == "dynamodb.amazonaws.com"
}

// stateOf is the image's state, or "" when that is no text: then decode judges.
func stateOf(image map[string]events.DynamoDBAttributeValue) booking.RecordState {
	v, ok := image["state"]
	if !ok || v.DataType() != events.DataTypeString {
		return ""
	}
	return booking.RecordState(v.String())
}

func decode(d Decode, image map[string]events.DynamoDBAttributeValue) (booking.Record, error) {
	rec, err := d(image)
	if err != nil && !errors.Is(err, ErrOtherKind) {
		err = fmt.Errorf("%w: %w", errUnreadable, err)
	}
	return rec, err
}
