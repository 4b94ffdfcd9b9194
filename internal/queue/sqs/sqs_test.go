package sqs_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	api "github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"
	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"holdfast/internal/booking"
	"holdfast/internal/queue/queuetest"
	"holdfast/internal/queue/sqs"
	"holdfast/internal/testenv"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// emulated is a client of a new emulator, behind a front.
func emulated(t *testing.T) (*api.Client, *front) {
	t.Helper()
	own := &http.Transport{}
	t.Cleanup(own.CloseIdleConnections)
	f := &front{next: own}
	return client(t, testenv.AWS(t).Endpoint, &http.Client{Transport: f}), f
}

// set changes one attribute of a queue behind the driver's back.
func set(t *testing.T, c *api.Client, name string, attribute types.QueueAttributeName, value string) {
	t.Helper()
	out, err := c.GetQueueUrl(t.Context(), &api.GetQueueUrlInput{QueueName: &name})
	if err != nil {
		t.Fatalf("GetQueueUrl: %v", err)
	}
	_, err = c.SetQueueAttributes(t.Context(), &api.SetQueueAttributesInput{
		QueueUrl: out.QueueUrl, Attributes: map[string]string{string(attribute): value},
	})
	if err != nil {
		t.Fatalf("SetQueueAttributes: %v", err)
	}
}

func TestQueue_KeepsTheContract(t *testing.T) {
	t.Parallel()
	c, _ := emulated(t)
	var n atomic.Int64
	queuetest.Run(t, func(t *testing.T) queuetest.Harness {
		name := fmt.Sprint("bookings-", n.Add(1))
		if err := sqs.Create(t.Context(), c, name); err != nil {
			t.Fatalf("Create: %v", err)
		}
		return queuetest.Harness{
			Queue: open(t, c, name), Other: open(t, c, name),
			Visibility: sqs.Visibility, MaxReceives: sqs.MaxReceives, // no DedupWindow: nobody waits five minutes
			// moto's clock is the machine's.
			Pass:  func(d time.Duration) { <-time.After(d) },
			Slack: 2 * time.Second,
			Shorten: func(t *testing.T) time.Duration {
				main, _ := sqs.Names(name)
				set(t, c, main, types.QueueAttributeNameVisibilityTimeout, "4")
				return 4 * time.Second
			},
			Lacks: map[queuetest.Promise]string{
				queuetest.GroupDedup:     "moto compares deduplication ids across groups, whatever the queue's DeduplicationScope",
				queuetest.LastingDedup:   "moto compares them with the messages in the queue, and forgets a deleted one's",
				queuetest.ReceiptsExpire: "moto takes a message's old receipts too",
			},
		}
	})
}

func TestCreate_IsSafeToRepeatAndTellsOtherAttributes(t *testing.T) {
	t.Parallel()
	c, _ := emulated(t)
	for range 2 {
		if err := sqs.Create(t.Context(), c, "bookings"); err != nil {
			t.Fatalf("Create: %v", err)
		}
	}
	if err := open(t, c, "bookings").Ping(t.Context()); err != nil {
		t.Errorf("Ping: %v", err)
	}
	set(t, c, "bookings.fifo", types.QueueAttributeNameVisibilityTimeout, "30")
	if err := sqs.Create(t.Context(), c, "bookings"); err == nil || !strings.Contains(err.Error(), "other attributes") {
		t.Errorf("Create of a queue that is there otherwise: got %v, want an error that says so", err)
	}
}

func TestOpen_RefusesAQueueThatIsNotAsDefined(t *testing.T) {
	t.Parallel()
	c, _ := emulated(t)
	refused := func(c *api.Client, want ...string) {
		t.Helper()
		_, err := sqs.Open(t.Context(), c, "bookings")
		if err == nil {
			t.Fatalf("Open: got no error, want one that says %q", want)
		}
		for _, w := range want {
			if !strings.Contains(err.Error(), w) {
				t.Errorf("Open: got %q, want it to say %q", err, w)
			}
		}
	}
	refused(c, "bookings.fifo", "no such queue")
	if err := sqs.Create(t.Context(), c, "bookings"); err != nil {
		t.Fatalf("Create: %v", err)
	}
	set(t, c, "bookings.fifo", types.QueueAttributeNameFifoThroughputLimit, "perQueue")
	set(t, c, "bookings-dead.fifo", types.QueueAttributeNameMessageRetentionPeriod, "345600")
	refused(c,
		`bookings.fifo: FifoThroughputLimit is "perQueue", want "perMessageGroupId"`,
		`bookings-dead.fifo: MessageRetentionPeriod is "345600", want "1209600"`)

	unchecked := api.New(c.Options(), func(o *api.Options) { o.DisableMessageChecksumValidation = true })
	refused(unchecked, "MD5 check")
}

// Killed between putting a dead letter back and deleting it, Redrive has made a
// message that is in both places; the next one only deletes.
func TestRedrive_CrashBeforeTheDeleteMakesNoSecondMessage(t *testing.T) {
	t.Parallel()
	c, f := emulated(t)
	if err := sqs.Create(t.Context(), c, "bookings"); err != nil {
		t.Fatalf("Create: %v", err)
	}
	q := open(t, c, "bookings")
	if err := q.Send(t.Context(), "00aa", "id", []byte("body")); err != nil {
		t.Fatalf("Send: %v", err)
	}
	receive := func(want int) []booking.Delivery {
		t.Helper()
		got, err := q.Receive(t.Context(), 10, 0)
		if err != nil || len(got) != want {
			t.Fatalf("Receive: got %d messages, %v, want %d", len(got), err, want)
		}
		return got
	}
	for range sqs.MaxReceives {
		if err := q.Delay(t.Context(), receive(1)[0].Receipt, 0); err != nil {
			t.Fatalf("Delay: %v", err)
		}
	}
	receive(0)

	f.lose = func(op string) bool { return op == "DeleteMessage" }
	if n, err := q.Redrive(t.Context()); err == nil || n != 0 {
		t.Errorf("Redrive that cannot delete: got %d, %v, want 0 and an error", n, err)
	}
	f.lose = nil
	if n, err := q.Redrive(t.Context(), "id"); err != nil || n != 1 {
		t.Errorf("Redrive after that: got %d, %v, want 1: it was given back", n, err)
	}
	got := receive(1)
	if got[0].DedupID != "id" || got[0].Receives != 1 || string(got[0].Body) != "body" {
		t.Errorf("redriven: got id %s, receive %d, %s, want what was sent, receive 1", got[0].DedupID, got[0].Receives, got[0].Body)
	}
	if failed, err := q.Delete(t.Context(), []string{got[0].Receipt}); err != nil || len(failed) > 0 {
		t.Fatalf("Delete: got failed %q, %v", failed, err)
	}
	s, err := q.Stats(t.Context())
	if diff := cmp.Diff(booking.QueueStats{}, s); err != nil || diff != "" {
		t.Errorf("left after all: %v (-want +got):\n%s", err, diff)
	}
}

// fifo is what SQS does with a Send: a group's deduplication id is accepted once.
type fifo struct {
	mu       sync.Mutex
	accepted []string
}

func (f *fifo) send(c call) object {
	f.mu.Lock()
	defer f.mu.Unlock()
	key := c.text("MessageGroupId") + "/" + c.text("MessageDeduplicationId")
	for _, k := range f.accepted {
		if k == key {
			return object{"MessageId": "1", "MD5OfMessageBody": sum(c.text("MessageBody"))}
		}
	}
	f.accepted = append(f.accepted, key)
	return object{"MessageId": "1", "MD5OfMessageBody": sum(c.text("MessageBody"))}
}

// SQS has accepted the message and the answer is lost: once, and the SDK asks again;
// for good, and the caller does. Each time with the same group and id, so that it is
// one message.
func TestSend_LostReplyIsOneMessage(t *testing.T) {
	t.Parallel()
	for name, replies := range map[string]int{"Once": 1, "ForGood": 1000} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var f fifo
			var left atomic.Int64
			left.Store(int64(replies))
			w := &wire{answer: func(c call) any {
				if c.op != "SendMessage" {
					return nil
				}
				out := f.send(c)
				if left.Add(-1) >= 0 {
					return lost{}
				}
				return out
			}}
			q := onNetwork(t, w)
			err := q.Send(t.Context(), "00aa", "id", []byte("body"))
			if name == "ForGood" {
				if err == nil {
					t.Error("Send without an answer: got no error, want one")
				}
				left.Store(0)
				err = q.Send(t.Context(), "00aa", "id", []byte("body"))
			}
			if err != nil {
				t.Errorf("Send that is repeated: got %v, want nil", err)
			}
			if diff := cmp.Diff([]string{"00aa/id"}, f.accepted); diff != "" {
				t.Errorf("messages (-want +got):\n%s", diff)
			}
			if n := len(w.of("SendMessage")); n < 2 {
				t.Errorf("calls: got %d, want a repeat", n)
			}
		})
	}
}

func TestSend_ThrottledIsTriedAgainWithinTheCallersTime(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		refused int           // calls that are throttled
		within  time.Duration // what the caller allows
		want    string        // of the error; "" for none
	}{
		"Twice":    {2, 30 * time.Second, ""},
		"ForGood":  {1000, 30 * time.Second, "throttles"},
		"NoTime":   {1000, 50 * time.Millisecond, "deadline exceeded"},
		"Accepted": {0, time.Second, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				q := inBubble(t, &wire{answer: func(c call) any {
					if c.op == "SendMessage" && c.nth <= tt.refused {
						return refusal{http.StatusBadRequest, "RequestThrottled", "too many"}
					}
					return nil
				}})
				ctx, cancel := context.WithTimeout(t.Context(), tt.within)
				defer cancel()
				begun := time.Now()
				err := q.Send(ctx, "00aa", "id", []byte("body"))
				if took := time.Since(begun); took > tt.within {
					t.Errorf("Send took %s, want at most %s", took, tt.within)
				}
				if tt.want == "" && err != nil || tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)) {
					t.Errorf("Send: got %v, want %q", err, tt.want)
				}
			})
		})
	}
}

func TestSend_RefusesWhatIsNotText(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := &wire{}
		q := inBubble(t, w)
		for _, body := range []string{"\xff", "a\x00b", "a\x1fb", "a\uFFFEb", strings.Repeat("x", 1<<20)} {
			if err := q.Send(t.Context(), "00aa", "id", []byte(body)); err == nil {
				t.Errorf("Send of %.10q: got no error, want one", body)
			}
		}
		if n := len(w.of("SendMessage")); n > 0 {
			t.Errorf("calls: got %d, want none", n)
		}
		if err := q.Send(t.Context(), "00aa", "id", []byte("{\n\t\"name\":\"größe 😀\"}\r")); err != nil {
			t.Errorf("Send of text: got %v, want nil", err)
		}
	})
}

func TestErrors_SayWhatToDo(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		code string
		want string // of Delete's error
	}{
		{"AccessDeniedException", "allow its role sqs:DeleteMessage on"},
		{"AccessDenied", "allow its role sqs:DeleteMessage on"},
		{"ThrottlingException", "ask for a higher quota"},
		{"KmsThrottled", "ask for a higher quota"},
		{"OverLimit", "too many messages are in flight"},
		{"KmsDisabled", "kms:GenerateDataKey"},
		{"KMS.AccessDeniedException", "kms:GenerateDataKey"},
		{"QueueDoesNotExist", "no such queue in this account and region"},
		{"AWS.SimpleQueueService.NonExistentQueue", "no such queue in this account and region"},
		{"QueueDeletedRecently", "try again in a minute"},
		{"InvalidAddress", "delete 1 messages: operation error SQS"},
	} {
		t.Run(tt.code, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				q := inBubble(t, &wire{answer: func(c call) any {
					if c.op == "DeleteMessageBatch" {
						return refusal{http.StatusBadRequest, tt.code, "so it is"}
					}
					return nil
				}})
				_, err := q.Delete(t.Context(), []string{"r"})
				if err == nil || !strings.Contains(err.Error(), tt.want) || !strings.Contains(err.Error(), "so it is") {
					t.Errorf("got %v, want it to say %q and SQS's own words", err, tt.want)
				}
			})
		})
	}
}

// SQS answers 200 and names one of ten that it did not delete.
func TestDelete_NamesWhatSQSDidNotDelete(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		broken := true
		w := &wire{answer: func(c call) any {
			if c.op != "DeleteMessageBatch" {
				return nil
			}
			var done, failed []object
			for _, e := range c.entries() {
				if e["ReceiptHandle"] == "receipt-07" && broken {
					failed = append(failed, object{"Id": e["Id"], "Code": "InternalError", "SenderFault": false})
					continue
				}
				done = append(done, object{"Id": e["Id"]})
			}
			return object{"Successful": done, "Failed": failed}
		}}
		q := inBubble(t, w)
		var receipts []string
		for i := range 25 {
			receipts = append(receipts, fmt.Sprintf("receipt-%02d", i))
		}
		failed, err := q.Delete(t.Context(), receipts)
		if diff := cmp.Diff([]string{"receipt-07"}, failed); err != nil || diff != "" {
			t.Errorf("Delete: %v; failed (-want +got):\n%s", err, diff)
		}
		var sizes []int
		for _, c := range w.of("DeleteMessageBatch") {
			sizes = append(sizes, len(c.entries()))
		}
		if diff := cmp.Diff([]int{10, 10, 5}, sizes); diff != "" {
			t.Errorf("batches (-want +got):\n%s", diff)
		}
		broken = false
		if failed, err := q.Delete(t.Context(), failed); err != nil || len(failed) > 0 {
			t.Errorf("Delete of what was left: got failed %q, %v, want none", failed, err)
		}
	})
}

// The worker stops while a poll is at work, and a message comes after that: it is
// returned, not lost to everybody for a minute.
func TestReceive_StopDuringAPollLosesNothing(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		q := inBubble(t, &wire{answer: func(c call) any {
			if c.op != "ReceiveMessage" {
				return nil
			}
			select {
			case <-c.gone:
				t.Error("the poll was broken off")
			case <-time.After(3 * time.Second):
			}
			return messages("late")
		}})
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(time.Second, cancel)
		got, err := q.Receive(ctx, 10, 5*time.Second)
		if err != nil || len(got) != 1 || got[0].Receipt != "receipt-late" {
			t.Errorf("Receive: got %v, %v, want the message", got, err)
		}
		if got, err := q.Receive(ctx, 10, 5*time.Second); len(got) > 0 || !errors.Is(err, context.Canceled) {
			t.Errorf("Receive after the stop: got %v, %v, want the context's error at once", got, err)
		}
	})
}

// However long the caller would wait, a stop waits for one short poll.
func TestReceive_WaitsInShortPolls(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		wait, stop time.Duration
		want       []int // seconds of each poll; 0 is a short one
		took       time.Duration
	}{
		{wait: 12 * time.Second, want: []int{5, 5, 2}, took: 12 * time.Second},
		{wait: 1500 * time.Millisecond, want: []int{2}, took: 2 * time.Second},
		{wait: 0, want: []int{0}},
		{wait: -time.Second, want: []int{0}},
		{wait: 20 * time.Second, stop: 6 * time.Second, want: []int{5, 5}, took: 10 * time.Second},
		{wait: 5 * time.Second, stop: time.Second, want: []int{5}, took: 5 * time.Second},
	} {
		t.Run(fmt.Sprint(tt.wait, "/", tt.stop), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				var polls []int
				q := inBubble(t, &wire{answer: func(c call) any {
					if c.op == "ReceiveMessage" {
						s, _ := c.in["WaitTimeSeconds"].(float64)
						polls = append(polls, int(s))
						<-time.After(time.Duration(s) * time.Second)
					}
					return nil
				}})
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				if tt.stop > 0 {
					time.AfterFunc(tt.stop, cancel)
				}
				begun := time.Now()
				got, err := q.Receive(ctx, 10, tt.wait)
				if len(got) > 0 || errors.Is(err, context.Canceled) != (tt.stop > 0) || (err != nil) != (tt.stop > 0) {
					t.Errorf("Receive: got %v, %v", got, err)
				}
				if took := time.Since(begun); took != tt.took {
					t.Errorf("took %s, want %s", took, tt.took)
				}
				if diff := cmp.Diff(tt.want, polls); diff != "" {
					t.Errorf("polls in seconds (-want +got):\n%s", diff)
				}
			})
		})
	}
}

func TestReceive_UnansweredPollEnds(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		q := inBubble(t, &wire{answer: func(c call) any {
			if c.op == "ReceiveMessage" {
				<-c.gone
			}
			return nil
		}})
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(time.Second, cancel)
		begun := time.Now()
		got, err := q.Receive(ctx, 10, 5*time.Second)
		if len(got) > 0 || !errors.Is(err, context.Canceled) {
			t.Errorf("Receive: got %v, %v, want none and the context's error", got, err)
		}
		if took := time.Since(begun); took > 10*time.Second {
			t.Errorf("took %s, want at most 10 s", took)
		}
	})
}

// SQS gives the messages of a lost answer again to who asks under the same attempt
// id, and to nobody else for a minute.
func TestReceive_LostReplyStrandsNothing(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	handedOut := ""
	w := &wire{}
	w.answer = func(c call) any {
		if c.op != "ReceiveMessage" {
			return nil
		}
		mu.Lock()
		defer mu.Unlock()
		attempt := c.text("ReceiveRequestAttemptId")
		if handedOut == "" {
			handedOut = attempt
			return lost{}
		}
		if attempt == "" || attempt != handedOut {
			return object{}
		}
		return messages("one")
	}
	q := onNetwork(t, w)
	got, err := q.Receive(t.Context(), 10, time.Second)
	if err != nil || len(got) != 1 {
		t.Fatalf("Receive: got %v, %v, want the message of the lost answer", got, err)
	}
	want := booking.Delivery{
		Receipt: "receipt-one", Group: "00aa", DedupID: "one", Body: []byte("body-one"),
		Receives: 2, SentAt: time.UnixMilli(1796097600412).UTC(),
	}
	if diff := cmp.Diff(want, got[0]); diff != "" {
		t.Errorf("delivery (-want +got):\n%s", diff)
	}
	if got, err := q.Receive(t.Context(), 10, 0); err != nil || len(got) > 0 {
		t.Errorf("another Receive: got %v, %v, want none: it has an attempt of its own", got, err)
	}
}

func TestReceive_DamagedBodyIsAnError(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		q := inBubble(t, &wire{answer: func(c call) any {
			if c.op != "ReceiveMessage" {
				return nil
			}
			m := messages("one")
			m["Messages"].([]object)[0]["Body"] = "body-onf"
			return m
		}})
		if got, err := q.Receive(t.Context(), 10, 0); err == nil || len(got) > 0 {
			t.Errorf("Receive: got %v, %v, want an error", got, err)
		}
	})
}

func TestDelay_TellsASpentReceiptFromAWrongCall(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		refusal
		gone bool
	}{
		"Expired":     {refusal{400, "InvalidParameterValue", "Value x for parameter ReceiptHandle is invalid. Reason: The receipt handle has expired."}, true},
		"NotInFlight": {refusal{400, "AWS.SimpleQueueService.MessageNotInflight", ""}, true},
		"Invalid":     {refusal{400, "ReceiptHandleIsInvalid", ""}, true},
		"TooLong":     {refusal{400, "InvalidParameterValue", "Value 43200 for parameter VisibilityTimeout is invalid. Reason: Total VisibilityTimeout is beyond the limit"}, false},
		"Refused":     {refusal{403, "AccessDenied", ""}, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				q := inBubble(t, &wire{answer: func(c call) any {
					if c.op == "ChangeMessageVisibility" {
						return tt.refusal
					}
					return nil
				}})
				err := q.Delay(t.Context(), "r", time.Second)
				if err == nil || errors.Is(err, booking.ErrNotFound) != tt.gone {
					t.Errorf("Delay: got %v, want an error that is ErrNotFound: %t", err, tt.gone)
				}
			})
		})
	}
	synctest.Test(t, func(t *testing.T) {
		w := &wire{}
		q := inBubble(t, w)
		for _, d := range []time.Duration{-1, 13 * time.Hour} {
			if err := q.Delay(t.Context(), "r", d); err == nil {
				t.Errorf("Delay by %s: got no error, want one", d)
			}
		}
		if err := q.Delay(t.Context(), "r", 0); err != nil {
			t.Errorf("Delay by 0: %v", err)
		}
		calls := w.of("ChangeMessageVisibility")
		if len(calls) != 1 || calls[0].in["VisibilityTimeout"] != 0.0 {
			t.Errorf("calls: got %v, want one that says 0", calls)
		}
	})
}

// graveyard answers for dead letters that SQS has given other deduplication ids:
// each is handed out once, and then hidden.
func graveyard(pages ...object) func(call) any {
	return func(c call) any {
		if c.op == "ReceiveMessage" && c.dead() && c.nth <= len(pages) {
			return pages[c.nth-1]
		}
		return nil
	}
}

// givenBack lists the receipts whose time-out was set to 0.
func givenBack(w *wire) []string {
	var out []string
	for _, c := range w.of("ChangeMessageVisibilityBatch") {
		for _, e := range c.entries() {
			if e["VisibilityTimeout"] == 0.0 {
				out = append(out, fmt.Sprint(e["ReceiptHandle"]))
			}
		}
	}
	return out
}

func TestDeadLetters_KeepTheIDTheyWereSentWith(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := &wire{answer: graveyard(messages("a", "b"), messages("c"))}
		q := inBubble(t, w)
		got, err := q.DeadLetters(t.Context(), 100)
		var ids []string
		for _, d := range got {
			ids = append(ids, d.DedupID+d.Receipt)
		}
		if diff := cmp.Diff([]string{"a", "b", "c"}, ids); err != nil || diff != "" {
			t.Errorf("DeadLetters: %v; ids, and no receipts (-want +got):\n%s", err, diff)
		}
		if diff := cmp.Diff([]string{"receipt-a", "receipt-b", "receipt-c"}, givenBack(w)); diff != "" {
			t.Errorf("given back (-want +got):\n%s", diff)
		}
		if got, err := q.DeadLetters(t.Context(), 0); err != nil || len(got) > 0 || len(w.of("ReceiveMessage")) != 3 {
			t.Errorf("DeadLetters of none: got %v, %v, want none and no call", got, err)
		}
	})
}

func TestDeadLetters_StopGivesBack(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		pages := graveyard(messages("a"))
		ctx, cancel := context.WithCancel(t.Context())
		w := &wire{answer: func(c call) any {
			if c.op == "ReceiveMessage" {
				cancel()
			}
			return pages(c)
		}}
		got, err := inBubble(t, w).DeadLetters(ctx, 100)
		if len(got) > 0 || !errors.Is(err, context.Canceled) {
			t.Errorf("DeadLetters: got %v, %v, want the context's error", got, err)
		}
		if diff := cmp.Diff([]string{"receipt-a"}, givenBack(w)); diff != "" {
			t.Errorf("given back (-want +got):\n%s", diff)
		}
	})
}

func TestRedrive_FindsTheIDAsSentAndUsesAnother(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		// b dies again while the others are looked at.
		w := &wire{answer: graveyard(messages("a", "b", "c"), messages("b", "d"))}
		n, err := inBubble(t, w).Redrive(t.Context(), "b", "d", "nobody")
		if err != nil || n != 2 {
			t.Errorf("Redrive: got %d, %v, want 2", n, err)
		}
		type sent struct{ Queue, Group, ID, Original, Body string }
		var got []sent
		for _, c := range w.of("SendMessage") {
			original := c.in["MessageAttributes"].(object)["dedup_id"].(object)["StringValue"].(string)
			got = append(got, sent{c.text("QueueUrl"), c.text("MessageGroupId"), c.text("MessageDeduplicationId"), original, c.text("MessageBody")})
		}
		want := []sent{
			{wireURL, "00aa", "redriven-message-b", "b", "body-b"},
			{wireURL, "00aa", "redriven-message-d", "d", "body-d"},
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("sent (-want +got):\n%s", diff)
		}
		var deleted []string
		for _, c := range w.of("DeleteMessage") {
			if c.dead() {
				deleted = append(deleted, c.text("ReceiptHandle"))
			}
		}
		if diff := cmp.Diff([]string{"receipt-b", "receipt-d"}, deleted); diff != "" {
			t.Errorf("deleted (-want +got):\n%s", diff)
		}
		if diff := cmp.Diff([]string{"receipt-a", "receipt-c", "receipt-b"}, givenBack(w)); diff != "" {
			t.Errorf("given back (-want +got):\n%s", diff)
		}
	})
}

// A dead letter is deleted only after SQS has taken it back.
func TestRedrive_RefusedSendKeepsTheDeadLetter(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		pages := graveyard(messages("a", "b", "c"))
		w := &wire{answer: func(c call) any {
			if c.op == "SendMessage" && c.nth > 1 {
				return refusal{http.StatusForbidden, "AccessDenied", "no"}
			}
			return pages(c)
		}}
		n, err := inBubble(t, w).Redrive(t.Context())
		if n != 1 || err == nil || !strings.Contains(err.Error(), "sqs:SendMessage") {
			t.Errorf("Redrive: got %d, %v, want 1 and an error that names the permission", n, err)
		}
		if calls := w.of("DeleteMessage"); len(calls) != 1 || calls[0].text("ReceiptHandle") != "receipt-a" {
			t.Errorf("deleted: got %v, want the first alone", calls)
		}
		if diff := cmp.Diff([]string{"receipt-b", "receipt-c"}, givenBack(w)); diff != "" {
			t.Errorf("given back (-want +got):\n%s", diff)
		}
	})
}

func TestStats_CountsBothQueues(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		waiting := "7"
		w := &wire{}
		q := inBubble(t, w)
		w.answer = func(c call) any {
			a := object{"ApproximateNumberOfMessages": waiting, "ApproximateNumberOfMessagesNotVisible": "3"}
			if c.dead() {
				a = object{"ApproximateNumberOfMessages": "2", "ApproximateNumberOfMessagesNotVisible": "1"}
			}
			return object{"Attributes": a}
		}
		got, err := q.Stats(t.Context())
		if diff := cmp.Diff(booking.QueueStats{Waiting: 7, InFlight: 3, Dead: 3}, got); err != nil || diff != "" {
			t.Errorf("Stats: %v (-want +got):\n%s", err, diff)
		}
		waiting = ""
		if got, err := q.Stats(t.Context()); err == nil {
			t.Errorf("Stats without a figure: got %+v, want an error", got)
		}
	})
}

func TestPing_TellsThatTheQueueDoesNotAnswer(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := &wire{}
		q := inBubble(t, w, func(o *api.Options) { o.Retryer = aws.NopRetryer{} })
		if err := q.Ping(t.Context()); err != nil {
			t.Errorf("Ping: got %v, want nil", err)
		}
		w.answer = func(call) any { return lost{} }
		if err := q.Ping(t.Context()); err == nil {
			t.Error("Ping without an answer: got nil, want an error")
		}
	})
}
