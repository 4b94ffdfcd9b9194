package functions_test

import (
	"context"
	"encoding/json"
	"slices"
	"testing"
	"time"

	"github.com/aws/aws-lambda-go/lambda"

	"holdfast/internal/app/functions"
	"holdfast/internal/testenv"
)

type change = testenv.Change

// pump does with a shard's changes what Lambda's event source mapping does, with
// ReportBatchItemFailures and BisectBatchOnFunctionError on, as its developer guide
// says: a call that fails halves its batch without costing a retry; a reported sequence
// number is where the batch is cut, what is before it is done, and the rest comes
// again; a batch that fails without being cut costs a retry, and after the last of them
// goes to the destination as a whole. Between tries it does not wait.
type pump struct {
	batch, retries int
	invoke         func(ctx context.Context, payload []byte) ([]byte, error)

	calls     int
	abandoned [][]change // the destination: batches given up on, whole
}

func newPump(h *functions.Handler) *pump {
	return &pump{batch: 100, retries: 3, invoke: lambda.NewHandler(h.Handle).Invoke}
}

func (p *pump) run(t *testing.T, shard []change) {
	t.Helper()
	for batch := range slices.Chunk(shard, p.batch) {
		p.deliver(t, batch)
	}
}

func (p *pump) deliver(t *testing.T, batch []change) {
	t.Helper()
	for tries := 0; ; {
		done, failed := p.call(t, batch)
		switch {
		case done == len(batch):
			return
		case failed && len(batch) > 1:
			p.deliver(t, batch[:len(batch)/2])
			p.deliver(t, batch[len(batch)/2:])
			return
		case done > 0:
			batch, tries = batch[done:], 0
			continue
		}
		if tries++; tries > p.retries {
			p.abandoned = append(p.abandoned, batch)
			return
		}
	}
}

// call hands a batch over. done is how many changes from its start need not come again;
// failed says that the call itself did.
func (p *pump) call(t *testing.T, batch []change) (done int, failed bool) {
	t.Helper()
	p.calls++
	payload, err := json.Marshal(map[string]any{"Records": batch})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	answer, err := p.invoke(ctx, payload)
	if err != nil {
		return 0, true
	}
	var response struct {
		BatchItemFailures []struct {
			ItemIdentifier *string `json:"itemIdentifier"`
		} `json:"batchItemFailures"`
	}
	if err := json.Unmarshal(answer, &response); err != nil {
		t.Fatalf("answer %s: got %v, want JSON", answer, err)
	}
	done = len(batch)
	for _, f := range response.BatchItemFailures {
		at := slices.IndexFunc(batch, func(c change) bool { return f.ItemIdentifier != nil && sequence(t, c) == *f.ItemIdentifier })
		if at < 0 {
			return 0, true // Lambda takes an identifier that it does not know for a failed call
		}
		done = min(done, at)
	}
	return done, false
}

func sequence(t *testing.T, c change) string {
	t.Helper()
	var head struct {
		DynamoDB struct{ SequenceNumber string } `json:"dynamodb"`
	}
	if err := json.Unmarshal(c, &head); err != nil {
		t.Fatalf("change: got %v, want JSON", err)
	}
	return head.DynamoDB.SequenceNumber
}
