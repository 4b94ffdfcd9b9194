package sqs_test

import (
	"bytes"
	"context"
	"crypto/md5"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"
	api "github.com/aws/aws-sdk-go-v2/service/sqs"

	"holdfast/internal/queue/sqs"
	"holdfast/internal/testenv"
)

// Where the scripted queue and its dead letters are said to be.
const (
	wireURL  = "https://sqs.example/1/bookings.fifo"
	wireDead = "https://sqs.example/1/bookings-dead.fifo"
	wireARN  = "arn:aws:sqs:ap-south-1:1:bookings-dead.fifo"
)

type object = map[string]any

// call is one request as SQS gets it.
type call struct {
	op  string
	in  object
	nth int // of its op, from 1
	// gone is closed when the caller has hung up.
	gone <-chan struct{}
}

func (c call) text(name string) string { s, _ := c.in[name].(string); return s }

// dead tells whether the call is for the dead letters.
func (c call) dead() bool { return c.text("QueueUrl") == wireDead }

// entries are a batch's.
func (c call) entries() []object {
	var out []object
	for _, e := range c.in["Entries"].([]any) {
		out = append(out, e.(object))
	}
	return out
}

// refusal is an error as SQS words it; lost is an answer that never arrives,
// although the call was carried out.
type (
	refusal struct {
		status     int
		code, text string
	}
	lost struct{}
)

// wire is SQS's side of its JSON protocol, answering as the test says. What the test
// does not answer (nil) it answers with an empty object, and Open's questions by the
// definition.
type wire struct {
	t      *testing.T
	answer func(c call) any

	mu    sync.Mutex
	calls []call
}

// of lists the calls of one operation.
func (w *wire) of(op string) []call {
	w.mu.Lock()
	defer w.mu.Unlock()
	var out []call
	for _, c := range w.calls {
		if c.op == op {
			out = append(out, c)
		}
	}
	return out
}

func (w *wire) ServeHTTP(rw http.ResponseWriter, r *http.Request) {
	c := call{op: strings.TrimPrefix(r.Header.Get("X-Amz-Target"), "AmazonSQS."), nth: 1, gone: r.Context().Done()}
	if err := json.NewDecoder(r.Body).Decode(&c.in); err != nil {
		w.t.Errorf("%s: request is no JSON: %v", c.op, err)
	}
	w.mu.Lock()
	for _, before := range w.calls {
		if before.op == c.op {
			c.nth++
		}
	}
	w.calls = append(w.calls, c)
	w.mu.Unlock()
	var out any
	if w.answer != nil {
		out = w.answer(c)
	}
	if out == nil {
		out = defined(c)
	}
	rw.Header().Set("Content-Type", "application/x-amz-json-1.0")
	switch a := out.(type) {
	case lost:
		panic(http.ErrAbortHandler)
	case refusal:
		rw.Header().Set("X-Amzn-Query-Error", a.code+";Sender")
		rw.WriteHeader(a.status)
		out = object{"__type": "com.amazonaws.sqs#" + a.code, "message": a.text}
	}
	if err := json.NewEncoder(rw).Encode(out); err != nil {
		w.t.Errorf("%s: answer: %v", c.op, err)
	}
}

// defined answers as a queue that is as it should be. Its redrive policy is spelled
// in another way than ours.
func defined(c call) any {
	switch {
	case c.op == "GetQueueUrl" && strings.Contains(c.text("QueueName"), "-dead"):
		return object{"QueueUrl": wireDead}
	case c.op == "GetQueueUrl":
		return object{"QueueUrl": wireURL}
	case c.op == "GetQueueAttributes" && c.dead():
		a := sqs.DeadAttributes()
		a["QueueArn"] = wireARN
		return object{"Attributes": a}
	case c.op == "GetQueueAttributes":
		a := sqs.Attributes(wireARN)
		a["RedrivePolicy"] = `{ "maxReceiveCount": "5", "deadLetterTargetArn": "` + wireARN + `" }`
		return object{"Attributes": a}
	}
	return object{}
}

// Do lets the wire be an HTTP client without a network, for tests in a bubble of
// time.
func (w *wire) Do(r *http.Request) (resp *http.Response, err error) {
	defer func() {
		if p := recover(); p != nil {
			resp, err = nil, fmt.Errorf("read answer: %w", syscall.ECONNRESET)
		}
	}()
	rec := httptest.NewRecorder()
	w.ServeHTTP(rec, r)
	if err := r.Context().Err(); err != nil {
		return nil, err
	}
	return rec.Result(), nil
}

// client is an SDK client that speaks to endpoint by way of h; nil is a plain one
// that is closed with the test.
func client(t *testing.T, endpoint string, h aws.HTTPClient, opts ...func(*api.Options)) *api.Client {
	t.Helper()
	if h == nil {
		own := &http.Transport{}
		t.Cleanup(own.CloseIdleConnections)
		h = &http.Client{Transport: own}
	}
	return api.New(api.Options{
		Region: testenv.Region, BaseEndpoint: &endpoint, HTTPClient: h,
		Credentials: credentials.NewStaticCredentialsProvider("test", "test", ""),
	}, opts...)
}

// inBubble opens a queue whose client speaks to the wire without a network.
func inBubble(t *testing.T, w *wire, opts ...func(*api.Options)) *sqs.Queue {
	t.Helper()
	w.t = t
	return open(t, client(t, "https://sqs.example", w, opts...), "bookings")
}

// onNetwork opens a queue whose client speaks to the wire over a real connection.
func onNetwork(t *testing.T, w *wire) *sqs.Queue {
	t.Helper()
	w.t = t
	srv := httptest.NewServer(w)
	t.Cleanup(srv.Close)
	return open(t, client(t, srv.URL, nil), "bookings")
}

func open(t *testing.T, c *api.Client, name string) *sqs.Queue {
	t.Helper()
	q, err := sqs.Open(t.Context(), c, name)
	if err != nil {
		t.Fatalf("Open: %v", err)
	}
	return q
}

// messages are an answer to ReceiveMessage: one for each id, its receipt being
// "receipt-" and the id.
func messages(ids ...string) object {
	var out []object
	for _, id := range ids {
		out = append(out, object{
			"MessageId": "message-" + id, "ReceiptHandle": "receipt-" + id, "Body": "body-" + id, "MD5OfBody": sum("body-" + id),
			"Attributes": object{
				"MessageGroupId": "00aa", "ApproximateReceiveCount": "2", "SentTimestamp": "1796097600412",
				// What SQS makes of the id when a message dies.
				"MessageDeduplicationId": "message-" + id,
			},
			"MessageAttributes": object{"dedup_id": object{"DataType": "String", "StringValue": id}},
		})
	}
	return object{"Messages": out}
}

func sum(text string) string {
	h := md5.Sum([]byte(text))
	return hex.EncodeToString(h[:])
}

// pollEvery is the pause between the short polls that a long one is made of.
const pollEvery = 50 * time.Millisecond

// front stands before moto, whose queues bear only one call at a time and which
// spins through a long poll: calls wait for each other, and a long poll is a row of
// short ones. lose, when set, tells of which operations the call is refused.
type front struct {
	next http.RoundTripper
	lose func(op string) bool

	mu sync.Mutex
}

func (f *front) RoundTrip(r *http.Request) (*http.Response, error) {
	op := strings.TrimPrefix(r.Header.Get("X-Amz-Target"), "AmazonSQS.")
	if f.lose != nil && f.lose(op) {
		return nil, fmt.Errorf("dial: %w", syscall.ECONNREFUSED)
	}
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return nil, err
	}
	var wait time.Duration
	if op == "ReceiveMessage" {
		var in struct{ WaitTimeSeconds int }
		if err := json.Unmarshal(body, &in); err != nil {
			return nil, err
		}
		wait = time.Duration(in.WaitTimeSeconds) * time.Second
		body = bytes.Replace(body, fmt.Appendf(nil, `"WaitTimeSeconds":%d`, in.WaitTimeSeconds), []byte(`"WaitTimeSeconds":0`), 1)
	}
	for end := time.Now().Add(wait); ; {
		resp, some, err := f.once(r, body)
		if err != nil || some || !time.Now().Before(end) {
			return resp, err
		}
		select {
		case <-r.Context().Done():
			return nil, r.Context().Err()
		case <-time.After(pollEvery):
		}
	}
}

// once passes one call on. As with SQS, a caller who hangs up meanwhile ends
// nothing.
func (f *front) once(r *http.Request, body []byte) (resp *http.Response, some bool, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	again := r.Clone(context.WithoutCancel(r.Context()))
	again.Body, again.ContentLength = io.NopCloser(bytes.NewReader(body)), int64(len(body))
	if resp, err = f.next.RoundTrip(again); err != nil {
		return nil, false, err
	}
	answer, err := io.ReadAll(resp.Body)
	_ = resp.Body.Close()
	if err != nil {
		return nil, false, err
	}
	resp.Body = io.NopCloser(bytes.NewReader(answer))
	return resp, bytes.Contains(answer, []byte("ReceiptHandle")), nil
}
