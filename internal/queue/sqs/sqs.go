// Package sqs is the booking queue on SQS FIFO in high-throughput mode: a queue
// and its dead-letter queue, as Attributes and DeadAttributes define them.
//
// SQS keeps the order within a group, and while a message is in flight its group
// is not handed out; one Receive may bring up to ten of a group. A message that
// was received too often moves to the dead letters and its group goes on. On that
// move SQS gives it another deduplication id, so every message carries the id that
// it was sent with in an attribute too.
//
// SQS does not notice that somebody who waited for a message has hung up: what it
// hands out then is hidden from everybody, and its group with it. So a poll is
// never broken off. It lasts 5 s at most, and Receive returns what came although
// its context has ended. A poll whose answer is lost on the way is repeated by the
// SDK under its own attempt id and gets the same messages again.
//
// At 120,000 messages in flight SQS FIFO hands out nothing more and says nothing.
// All this is from the SQS Developer Guide (FIFO queues, dead-letter queues, quotas)
// and the API reference of ReceiveMessage.
//
// Fail mode: closed. A message whose Send has an error may or may not have been
// accepted, and is sent again with the same ids; one that cannot be deleted comes
// again. Bodies are compared by their MD5 both ways. Clock: SQS's own; time-outs
// are real time.
package sqs

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"
	"github.com/aws/smithy-go"

	"holdfast/internal/booking"
)

const (
	maxBatch = 10              // entries of one call
	maxID    = 128             // characters of a group or deduplication id
	maxBody  = 1<<20 - 1<<10   // bytes of a body: 1 MiB is for body and attributes together
	maxDelay = 12 * time.Hour  // of Delay
	maxPoll  = 5 * time.Second // one poll, which a stopping worker waits for
	// pollGrace is what one poll gets for the way, the SDK's repeats included.
	pollGrace = 5 * time.Second
	// deadHidden is how long a look at the dead letters hides them at most: it
	// gives them back at its end, and a crash leaves them hidden for this long.
	deadHidden = 2 * time.Minute
	// deadPoll is a long poll, because a short one may miss messages.
	deadPoll = time.Second
	// giveBackTimeout bounds giving messages back after a look, also an ended one.
	giveBackTimeout = 5 * time.Second
	// dedupAttribute is the message attribute with the deduplication id as sent.
	dedupAttribute = "dedup_id"
)

// Queue is one queue with its dead letters. Safe for concurrent use.
type Queue struct {
	client    *sqs.Client
	url, dead string
}

// Open finds the queue of that name and its dead-letter queue and checks that they
// are as they are defined here, because one that is not works too, but slower by far
// or without dead letters; the error tells all that is different. It needs
// sqs:GetQueueUrl and sqs:GetQueueAttributes on both. The client is the caller's,
// with its retries, and must check MD5 sums.
func Open(ctx context.Context, client *sqs.Client, name string) (*Queue, error) {
	if client.Options().DisableMessageChecksumValidation {
		return nil, fmt.Errorf("open queue %s: the client's MD5 check of messages is off: switch it on", name)
	}
	ctx, cancel := context.WithTimeout(ctx, openTimeout) // an endpoint may take the call and say nothing
	defer cancel()
	q := &Queue{client: client}
	main, dead := Names(name)
	for _, find := range []struct {
		name string
		url  *string
	}{{main, &q.url}, {dead, &q.dead}} {
		out, err := client.GetQueueUrl(ctx, &sqs.GetQueueUrlInput{QueueName: &find.name})
		if err != nil {
			return nil, fmt.Errorf("open queue %s: %w", find.name, explain(err))
		}
		*find.url = aws.ToString(out.QueueUrl)
	}
	if err := q.check(ctx, main, dead); err != nil {
		return nil, fmt.Errorf("open queue %s: %w", name, err)
	}
	return q, nil
}

// openTimeout bounds Open: a start that hangs is told from one that is slow.
const openTimeout = 10 * time.Second

// Ping tells whether the queue answers this process. It needs
// sqs:GetQueueAttributes.
func (q *Queue) Ping(ctx context.Context) error {
	if _, err := q.attributes(ctx, q.url, types.QueueAttributeNameQueueArn); err != nil {
		return fmt.Errorf("ping queue: %w", err)
	}
	return nil
}

// Send accepts a message: nil means that SQS has it. Within five minutes a repeat
// of the same group and id is accepted and not delivered again, also when the
// message has been deleted by then; so a Send whose outcome is unknown is safe to
// repeat with the same group and the same id, and the SDK does so a few times while
// ctx allows it. The body is text: valid UTF-8 of the characters that XML knows, up
// to 1 MiB less 1 KiB.
func (q *Queue) Send(ctx context.Context, group, dedupID string, body []byte) error {
	if !validID(group) || !validID(dedupID) {
		return fmt.Errorf("send: group %.40q and deduplication id %.200q: want 1 to %d visible ASCII characters", group, dedupID, maxID)
	}
	if len(body) == 0 || len(body) > maxBody {
		return fmt.Errorf("send %s: body of %d bytes: want 1 to %d", attempt(dedupID), len(body), maxBody)
	}
	text := string(body)
	if !utf8.ValidString(text) || strings.ContainsFunc(text, notText) {
		return fmt.Errorf("send %s: body is not text that SQS takes: want UTF-8 without control characters", attempt(dedupID))
	}
	if err := q.send(ctx, group, dedupID, dedupID, text); err != nil {
		return fmt.Errorf("send %s: %w", attempt(dedupID), err)
	}
	return nil
}

func validID(s string) bool {
	return 0 < len(s) && len(s) <= maxID && !strings.ContainsFunc(s, func(r rune) bool { return r <= ' ' || r > '~' })
}

// notText is a character that SQS refuses in a body.
func notText(r rune) bool {
	return r < ' ' && r != '\t' && r != '\n' && r != '\r' || r == 0xFFFE || r == 0xFFFF
}

// attempt is what an error may tell of an id: the hash before it would give a short
// code away.
func attempt(dedupID string) string {
	if _, attempt, ok := strings.Cut(dedupID, "-"); ok {
		return attempt
	}
	return dedupID
}

// send sends a message under dedupID that was sent first under original.
func (q *Queue) send(ctx context.Context, group, dedupID, original, body string) error {
	_, err := q.client.SendMessage(ctx, &sqs.SendMessageInput{
		QueueUrl: &q.url, MessageGroupId: &group, MessageDeduplicationId: &dedupID, MessageBody: &body,
		MessageAttributes: map[string]types.MessageAttributeValue{
			dedupAttribute: {DataType: aws.String("String"), StringValue: &original},
		},
	})
	return explain(err)
}

// Receive takes up to most messages (at most 10), in order within each group, and
// hides them and their groups for Visibility. It waits up to wait, in whole
// seconds, for the first one; none is no error, and with no wait SQS may miss some.
// When ctx ends it lets the poll at work end, which takes up to 5 s (10 s when SQS
// does not answer), and returns what that has taken without an error: the caller
// handles it or gives it back. With an error it has taken nothing, or what it took
// is lost on the way and comes again after Visibility.
func (q *Queue) Receive(ctx context.Context, most int, wait time.Duration) ([]booking.Delivery, error) {
	most = min(most, maxBatch)
	if most < 1 {
		return nil, fmt.Errorf("receive %d messages: want 1 to %d", most, maxBatch)
	}
	for ctx.Err() == nil {
		step := min(max(wait, 0), maxPoll)
		found, err := q.take(ctx, q.url, most, step, 0)
		if err != nil && ctx.Err() != nil {
			err = fmt.Errorf("%w: %w", ctx.Err(), err)
		}
		if err != nil {
			return nil, fmt.Errorf("receive: %w", err)
		}
		if wait -= step; len(found) > 0 || wait <= 0 && ctx.Err() == nil {
			var out []booking.Delivery
			for _, m := range found {
				out = append(out, m.Delivery)
			}
			return out, nil
		}
	}
	return nil, fmt.Errorf("receive: %w", ctx.Err())
}

// message is a delivery and SQS's own id of its message.
type message struct {
	booking.Delivery
	id string
}

// take receives from one of the two queues; 0 hidden is the queue's own visibility
// time-out. It does not end with ctx: hung up on, SQS would still hand messages out,
// to nobody.
func (q *Queue) take(ctx context.Context, url string, most int, wait, hidden time.Duration) ([]message, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), wait+pollGrace)
	defer cancel()
	attempt := rand.Text()
	res, err := q.client.ReceiveMessage(ctx, &sqs.ReceiveMessageInput{
		QueueUrl:                &url,
		MaxNumberOfMessages:     int32(most),
		WaitTimeSeconds:         seconds(wait),
		VisibilityTimeout:       seconds(hidden),
		ReceiveRequestAttemptId: &attempt,
		MessageSystemAttributeNames: []types.MessageSystemAttributeName{
			types.MessageSystemAttributeNameMessageGroupId,
			types.MessageSystemAttributeNameMessageDeduplicationId,
			types.MessageSystemAttributeNameApproximateReceiveCount,
			types.MessageSystemAttributeNameSentTimestamp,
		},
		MessageAttributeNames: []string{dedupAttribute},
	})
	if err != nil {
		return nil, explain(err)
	}
	var out []message
	for _, m := range res.Messages {
		// An attribute that cannot be read stays empty: an error would strand the
		// whole batch.
		system := func(n types.MessageSystemAttributeName) string { return m.Attributes[string(n)] }
		receives, _ := strconv.Atoi(system(types.MessageSystemAttributeNameApproximateReceiveCount))
		sent, _ := strconv.ParseInt(system(types.MessageSystemAttributeNameSentTimestamp), 10, 64)
		d := booking.Delivery{
			Receipt: aws.ToString(m.ReceiptHandle), Body: []byte(aws.ToString(m.Body)), Receives: receives,
			Group: system(types.MessageSystemAttributeNameMessageGroupId), SentAt: time.UnixMilli(sent).UTC(),
			DedupID: system(types.MessageSystemAttributeNameMessageDeduplicationId),
		}
		if a, ok := m.MessageAttributes[dedupAttribute]; ok {
			d.DedupID = aws.ToString(a.StringValue)
		}
		out = append(out, message{d, aws.ToString(m.MessageId)})
	}
	return out, nil
}

// seconds rounds up: a wait is not cut short.
func seconds(d time.Duration) int32 { return int32((d + time.Second - 1) / time.Second) }

// Delete removes delivered messages, ten in a call, and returns the receipts that
// SQS could not use: not a receipt, its visibility time-out has ended, or SQS had a
// failure of its own. Deleted already is no failure while the time-out runs, so a
// Delete whose outcome is unknown is safe to repeat. With an error some may have
// been deleted.
func (q *Queue) Delete(ctx context.Context, receipts []string) (failed []string, err error) {
	for part := range slices.Chunk(receipts, maxBatch) {
		var entries []types.DeleteMessageBatchRequestEntry
		for i := range part {
			entries = append(entries, types.DeleteMessageBatchRequestEntry{Id: aws.String(strconv.Itoa(i)), ReceiptHandle: &part[i]})
		}
		out, err := q.client.DeleteMessageBatch(ctx, &sqs.DeleteMessageBatchInput{QueueUrl: &q.url, Entries: entries})
		if err != nil {
			return nil, fmt.Errorf("delete %d messages: %w", len(receipts), explain(err))
		}
		done := make([]bool, len(part))
		for _, s := range out.Successful {
			if i, err := strconv.Atoi(aws.ToString(s.Id)); err == nil && 0 <= i && i < len(part) {
				done[i] = true
			}
		}
		for i, ok := range done {
			if !ok {
				failed = append(failed, part[i])
			}
		}
	}
	return failed, nil
}

// Delay hides a message that is in flight for d from now on, in whole seconds and
// at most 12 h since it was received: to keep it while the work goes on, or to give
// it back, at once with 0. It is not remembered for the next delivery.
// booking.ErrNotFound when the message is no longer in flight under this receipt.
func (q *Queue) Delay(ctx context.Context, receipt string, d time.Duration) error {
	if d < 0 || d > maxDelay {
		return fmt.Errorf("delay a message by %s: want 0 to %s", d, maxDelay)
	}
	_, err := q.client.ChangeMessageVisibility(ctx, &sqs.ChangeMessageVisibilityInput{
		QueueUrl: &q.url, ReceiptHandle: &receipt, VisibilityTimeout: seconds(d),
	})
	if err == nil {
		return nil
	}
	if spent(err) {
		err = fmt.Errorf("%w: %w", booking.ErrNotFound, err)
	}
	return fmt.Errorf("delay a message by %s: %w", d, explain(err))
}

// spent tells whether an error is about the receipt. One whose time has run out is
// InvalidParameterValue, which only its text tells from a delay beyond 12 h.
func spent(err error) bool {
	var api smithy.APIError
	if !errors.As(err, &api) {
		return false
	}
	switch code := api.ErrorCode(); {
	case strings.HasSuffix(code, "ReceiptHandleIsInvalid"), strings.HasSuffix(code, "MessageNotInflight"):
		return true
	default:
		return code == "InvalidParameterValue" && strings.Contains(api.ErrorMessage(), "ReceiptHandle")
	}
}

// FiguresLag is how late Stats may be: SQS counts on many servers and says so of its
// figures.
func (q *Queue) FiguresLag() time.Duration { return time.Minute }

// Stats counts the queue approximately; it may lag by FiguresLag. OldestAge is always
// 0: SQS tells it to CloudWatch only (ApproximateAgeOfOldestMessage).
func (q *Queue) Stats(ctx context.Context) (booking.QueueStats, error) {
	var s booking.QueueStats
	for _, ask := range []struct {
		url             string
		waiting, hidden *int
	}{{q.url, &s.Waiting, &s.InFlight}, {q.dead, &s.Dead, &s.Dead}} {
		const waiting, hidden = types.QueueAttributeNameApproximateNumberOfMessages, types.QueueAttributeNameApproximateNumberOfMessagesNotVisible
		have, err := q.attributes(ctx, ask.url, waiting, hidden)
		if err != nil {
			return booking.QueueStats{}, fmt.Errorf("queue stats: %w", err)
		}
		for name, sum := range map[types.QueueAttributeName]*int{waiting: ask.waiting, hidden: ask.hidden} {
			n, err := strconv.Atoi(have[string(name)])
			if err != nil {
				return booking.QueueStats{}, fmt.Errorf("queue stats: %s: %w", name, err)
			}
			*sum += n
		}
	}
	return s, nil
}

func (q *Queue) attributes(ctx context.Context, url string, names ...types.QueueAttributeName) (map[string]string, error) {
	out, err := q.client.GetQueueAttributes(ctx, &sqs.GetQueueAttributesInput{QueueUrl: &url, AttributeNames: names})
	if err != nil {
		return nil, explain(err)
	}
	return out.Attributes, nil
}
