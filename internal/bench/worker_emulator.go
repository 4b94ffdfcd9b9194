package bench

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	messages "github.com/aws/aws-sdk-go-v2/service/sqs"

	"holdfast/internal/booking"
	"holdfast/internal/queue/sqs"
	"holdfast/internal/store/dynamo"
)

// EmulatorResult is the measurement over SQS and DynamoDB as an emulator plays them:
// the same worker, drivers and checks as in production. The speed is the emulator's,
// which is a program in Python that is handed one request at a time; it says nothing
// about AWS. That every record is written once, on the condition that its attempt has
// none, and in the order of its group, is what the run shows.
type EmulatorResult struct {
	// EmulatorRecordsPerS is the median of the rounds: records over the time from the
	// worker's start to the answer to the deletion of the last message.
	EmulatorRecordsPerS float64   `json:"emulator_records_per_s"`
	EmulatorRoundsPerS  []float64 `json:"emulator_rounds_per_s"`
	// EmulatorRecords is how many were queued in each round, two of each candidate, so
	// that they are few and yet half of them are behind another.
	EmulatorRecords int `json:"emulator_records"`
	// EmulatorGroups and EmulatorBehind are as Groups and Behind.
	EmulatorGroups int `json:"emulator_groups"`
	EmulatorBehind int `json:"emulator_behind"`
}

const (
	// emulatorRecords is the most that a round queues: its time for a call grows with
	// what is in the queue.
	emulatorRecords = 200
	// emulatorEach is how many records of a round are one candidate's.
	emulatorEach = 2
	// emulatorTimeout bounds a request.
	emulatorTimeout = 5 * time.Second
	// emulatorPause is between two looks into a queue that had nothing.
	emulatorPause = 50 * time.Millisecond
)

// emulator is a running one, and the clients that it is called with.
type emulator struct {
	way    *http.Transport
	queues *messages.Client
	tables *dynamodb.Client
}

// reachEmulator makes the clients and calls once. They read nothing of the
// environment and have a made-up key, which AWS refuses.
func reachEmulator(ctx context.Context, endpoint string) (*emulator, error) {
	way := &http.Transport{}
	client := &http.Client{Transport: &oneAtATime{next: way}}
	key := credentials.NewStaticCredentialsProvider("emulator", "emulator", "")
	const region = "ap-south-1" // an emulator knows every region
	e := &emulator{
		way:    way,
		queues: messages.New(messages.Options{Region: region, BaseEndpoint: &endpoint, HTTPClient: client, Credentials: key}),
		tables: dynamodb.New(dynamodb.Options{Region: region, BaseEndpoint: &endpoint, HTTPClient: client, Credentials: key}),
	}
	ctx, cancel := context.WithTimeout(ctx, emulatorTimeout)
	defer cancel()
	if _, err := e.tables.ListTables(ctx, &dynamodb.ListTablesInput{Limit: aws.Int32(1)}); err != nil {
		e.close()
		return nil, fmt.Errorf("no AWS emulator answers at %s: start it as docs/benchmarks.md says and give its URL, such as http://127.0.0.1:5000: %w", endpoint, err)
	}
	return e, nil
}

func (e *emulator) close() { e.way.CloseIdleConnections() }

func (e *emulator) measure(ctx context.Context, o WorkerOptions, dir string, progress io.Writer) (*EmulatorResult, error) {
	place := workerPlace{name: "emulator", records: min(o.Records, emulatorRecords), each: emulatorEach, open: e.open}
	rounds, err := place.rounds(ctx, o, dir, progress)
	if err != nil {
		return nil, err
	}
	return &EmulatorResult{
		EmulatorRecordsPerS: median(rounds.worked), EmulatorRoundsPerS: rounds.worked,
		EmulatorRecords: place.records, EmulatorGroups: rounds.groups, EmulatorBehind: rounds.behind,
	}, nil
}

// open makes a queue and a table that nobody else has, and needs no folder.
func (e *emulator) open(ctx context.Context, _ string) (d workerDrivers, err error) {
	name := "holdfast-bench-" + rand.Text()
	if err := sqs.Create(ctx, e.queues, name); err != nil {
		return d, err
	}
	if err := dynamo.Create(ctx, e.tables, name, dynamo.Options{}); err != nil {
		return d, err
	}
	q, err := sqs.Open(ctx, e.queues, name)
	if err != nil {
		return d, err
	}
	return workerDrivers{queue: shortPolls{q}, store: dynamo.New(e.tables, name), close: func() error { return nil }}, nil
}

// oneAtATime lets one request be carried out at a time, also one whose caller leaves
// meanwhile. The emulator's threads lose messages when queues are called concurrently,
// and check the condition of a write before, and not while, they make it.
type oneAtATime struct {
	mu   sync.Mutex
	next http.RoundTripper
}

// RoundTrip is the next one's, with the whole answer.
func (o *oneAtATime) RoundTrip(r *http.Request) (*http.Response, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if err := r.Context().Err(); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(r.Context()), emulatorTimeout)
	defer cancel()
	resp, err := o.next.RoundTrip(r.WithContext(ctx))
	if err != nil {
		return nil, err
	}
	whole := resp.Body
	answer, err := io.ReadAll(whole)
	if err = errors.Join(err, whole.Close()); err != nil {
		return nil, err
	}
	resp.Body = io.NopCloser(bytes.NewReader(answer))
	return resp, nil
}

// shortPolls are long polls that end early: one at the emulator would keep every other
// request waiting.
type shortPolls struct{ *sqs.Queue }

// Receive is the queue's, but for the wait.
func (q shortPolls) Receive(ctx context.Context, most int, wait time.Duration) ([]booking.Delivery, error) {
	found, err := q.Queue.Receive(ctx, most, 0)
	if err == nil && len(found) == 0 {
		select {
		case <-ctx.Done():
		case <-time.After(min(wait, emulatorPause)):
		}
	}
	return found, err
}
