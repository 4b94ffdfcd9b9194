// Package functions is the two functions behind the booking table's stream, wired: sync
// copies PAID records into the back office's PostgreSQL, expiry puts back what the TTL
// service should not have deleted. Both are called by Lambda's event source for DynamoDB
// streams, see Handler.
//
// Fail mode: closed. A change that was not worked off is reported, and the event source
// brings it again; what it gives up on goes to its on-failure destination, which must
// keep whole records (an S3 bucket does, a queue or topic gets metadata only) and
// alarm. Clock: the one passed in, for metrics only.
//
// Nothing scrapes a function, and it may be gone a moment later; so its metric is a log
// line in CloudWatch's embedded metric format, of which CloudWatch Logs makes
// holdfast_functions_records_total{function,outcome} without a call, an agent or a
// permission. An alarm sums it: see Namespace.
package functions

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"runtime/debug"
	"time"

	"github.com/aws/aws-lambda-go/events"
)

// changeBudget bounds the work on one change: a dependency that hangs is a failure to
// report, rather than the function's own time-out, after which the whole batch comes
// again.
const changeBudget = 10 * time.Second

// ErrOtherKind is Decode's answer for an item of the table that is no booking record.
var ErrOtherKind = errors.New("item is no booking record")

// What became of a change, beside what is particular to a function.
const (
	outcomeIgnored    = "ignored"    // not this function's
	outcomeUnreadable = "unreadable" // reported: its image is no record that this program knows
	outcomeFailed     = "failed"     // reported: not done, a repeat may help
	outcomePanic      = "panic"      // reported: a fault of this program
)

// errUnreadable marks an image that Decode does not know.
var errUnreadable = errors.New("record cannot be read")

// Handler works off batches of one shard's changes, in order, for one function. Handle
// is what lambda.Start takes.
//
// A change that fails ends its batch, and the event source is told so in the one way
// that leaves it alone with its failure. Not the first of its batch: it is reported by
// its sequence number, what is before it is done, and the next batch begins with it. The
// first of several: the call fails, which makes the event source halve the batch
// (BisectBatchOnFunctionError; for a reported failure it would split at that number and
// retry all the rest, and at last give up on all the rest). Alone: it is reported until
// its retries or its age end, and then it alone goes to the destination. Both settings
// (ReportBatchItemFailures too) are the event source's and must be on. Batches are
// repeated in part by all this; the work bears it.
type Handler struct {
	name  string
	work  func(ctx context.Context, change events.DynamoDBEventRecord) (outcome string, err error)
	log   *slog.Logger
	out   io.Writer
	now   func() time.Time
	close func(ctx context.Context) error
}

// Handle works off a batch. The error is the first change's own, as the type says; it
// names no candidate. A panic is a change's failure.
func (h *Handler) Handle(ctx context.Context, batch events.DynamoDBEvent) (events.DynamoDBEventResponse, error) {
	counts := map[string]int{}
	defer func() { writeCounts(h.out, h.now(), h.name, counts) }()
	for i, change := range batch.Records {
		outcome, err := h.try(ctx, change)
		counts[outcome]++
		if err == nil {
			continue
		}
		h.log.ErrorContext(ctx, "change was not worked off; it comes again, and in the end goes to the function's destination",
			"function", h.name, "outcome", outcome, "event", change.EventName, "event_id", change.EventID,
			"sequence_number", change.Change.SequenceNumber, "of_batch", len(batch.Records), "cause", err)
		if i == 0 && len(batch.Records) > 1 {
			return events.DynamoDBEventResponse{}, fmt.Errorf("%s: first of %d changes: %w", h.name, len(batch.Records), err)
		}
		return events.DynamoDBEventResponse{BatchItemFailures: []events.DynamoDBBatchItemFailure{
			{ItemIdentifier: change.Change.SequenceNumber},
		}}, nil
	}
	return events.DynamoDBEventResponse{}, nil
}

// Close frees what the handler holds.
func (h *Handler) Close(ctx context.Context) error {
	if h.close == nil {
		return nil
	}
	return h.close(ctx)
}

func (h *Handler) try(ctx context.Context, change events.DynamoDBEventRecord) (outcome string, err error) {
	ctx, cancel := context.WithTimeout(ctx, changeBudget)
	defer cancel()
	defer func() {
		if p := recover(); p != nil {
			h.log.ErrorContext(ctx, "panic", "function", h.name, "stack", string(debug.Stack()))
			outcome, err = outcomePanic, fmt.Errorf("panic: %v", p)
		}
	}()
	outcome, err = h.work(ctx, change)
	if err != nil && outcome == "" {
		outcome = outcomeFailed
		if errors.Is(err, errUnreadable) {
			outcome = outcomeUnreadable
		}
	}
	return outcome, err
}
