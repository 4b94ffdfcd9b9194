package sqs

import (
	"context"
	"fmt"
	"slices"
	"strconv"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"

	"holdfast/internal/booking"
)

// DeadLetters lists up to most dead letters, those of a group oldest first, and
// leaves them where they are. They have no receipt, SentAt is when they died, and
// Receives counts looks too. A look hides them from other looks while it lasts (for
// 2 minutes when it is killed), and sees ten of one group at most: SQS shows no more
// before those are gone.
func (q *Queue) DeadLetters(ctx context.Context, most int) ([]booking.Delivery, error) {
	var out []booking.Delivery
	var looked []string
	defer func() { q.giveBack(ctx, looked) }()
	for ctx.Err() == nil && len(out) < most {
		page, err := q.take(ctx, q.dead, min(most-len(out), maxBatch), deadPoll, deadHidden)
		if err != nil {
			return nil, fmt.Errorf("list dead letters: %w", err)
		}
		if len(page) == 0 {
			break
		}
		for _, m := range page {
			looked = append(looked, m.Receipt)
			m.Receipt = ""
			out = append(out, m.Delivery)
		}
	}
	if ctx.Err() != nil {
		return nil, fmt.Errorf("list dead letters: %w", ctx.Err())
	}
	return out, nil
}

// Redrive puts the dead letters with these deduplication ids, as they were sent, or
// all of them when none is named, at the end of the queue with a receive count of
// 0, and returns how many; with an error it has put back that many and left the
// rest. One that dies again meanwhile waits for the next Redrive, and so does one
// behind ten others of its group that are not named. Safe to repeat: a crash
// between putting one back and deleting it leaves it in both places, and another
// Redrive within five minutes only deletes it; after that it is delivered twice,
// which a conditional put bears.
//
// SQS has a task of its own that moves all dead letters. It cannot be told which,
// tells no exact figure and ends some time after the call, so it is not used.
func (q *Queue) Redrive(ctx context.Context, dedupIDs ...string) (int, error) {
	var left []string
	defer func() { q.giveBack(ctx, left) }()
	back := map[string]bool{}
	n := 0
	for ctx.Err() == nil {
		page, err := q.take(ctx, q.dead, maxBatch, deadPoll, deadHidden)
		if err != nil {
			return n, fmt.Errorf("redrive dead letters: %w", err)
		}
		if len(page) == 0 {
			return n, nil
		}
		for i, m := range page {
			if back[m.DedupID] || len(dedupIDs) > 0 && !slices.Contains(dedupIDs, m.DedupID) {
				left = append(left, m.Receipt)
				continue
			}
			if err := q.revive(ctx, m); err != nil {
				for _, m := range page[i:] {
					left = append(left, m.Receipt)
				}
				return n, fmt.Errorf("redrive dead letter %s: %w", attempt(m.DedupID), err)
			}
			back[m.DedupID] = true
			n++
		}
	}
	return n, fmt.Errorf("redrive dead letters: %w", ctx.Err())
}

// revive sends one dead letter and deletes it. Its own deduplication id may still be
// remembered from the first Send, and the repeat would be accepted and dropped; one
// made of SQS's id of this dead letter is the same in each try and nowhere else.
func (q *Queue) revive(ctx context.Context, m message) error {
	if err := q.send(ctx, m.Group, "redriven-"+m.id, m.DedupID, string(m.Body)); err != nil {
		return err
	}
	_, err := q.client.DeleteMessage(ctx, &sqs.DeleteMessageInput{QueueUrl: &q.dead, ReceiptHandle: &m.Receipt})
	return explain(err)
}

// giveBack shows dead letters again that a look has hidden, also when the caller has
// left. What it cannot give back comes back by itself after deadHidden.
func (q *Queue) giveBack(ctx context.Context, receipts []string) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), giveBackTimeout)
	defer cancel()
	for part := range slices.Chunk(receipts, maxBatch) {
		var entries []types.ChangeMessageVisibilityBatchRequestEntry
		for i := range part {
			entries = append(entries, types.ChangeMessageVisibilityBatchRequestEntry{Id: aws.String(strconv.Itoa(i)), ReceiptHandle: &part[i]})
		}
		_, _ = q.client.ChangeMessageVisibilityBatch(ctx, &sqs.ChangeMessageVisibilityBatchInput{QueueUrl: &q.dead, Entries: entries})
	}
}
