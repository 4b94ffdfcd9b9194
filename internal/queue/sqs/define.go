package sqs

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"
)

// What the queue is: the worker, its tests and the stacks go by these.
const (
	// Visibility is how long a received message is hidden from others.
	Visibility = time.Minute
	// MaxReceives is how often a message is delivered before it goes to the dead
	// letters.
	MaxReceives = 5
	// Retention is how long SQS keeps a message, the longest it can; for a dead
	// letter of a FIFO queue it begins anew.
	Retention = 14 * 24 * time.Hour
)

// Names are the full names of the queue and its dead-letter queue; a FIFO queue's
// must end in .fifo.
func Names(name string) (queue, dead string) { return name + ".fifo", name + "-dead.fifo" }

// Attributes are the queue's, as SQS spells them.
func Attributes(deadARN string) map[string]string {
	a := DeadAttributes()
	a[string(types.QueueAttributeNameRedrivePolicy)] = fmt.Sprintf(`{"deadLetterTargetArn":%q,"maxReceiveCount":%d}`, deadARN, MaxReceives)
	return a
}

// DeadAttributes are the dead-letter queue's, which must be FIFO too.
func DeadAttributes() map[string]string {
	of := func(d time.Duration) string { return strconv.Itoa(int(d.Seconds())) }
	return map[string]string{
		string(types.QueueAttributeNameFifoQueue):                 "true",
		string(types.QueueAttributeNameContentBasedDeduplication): "false",
		// These two together are high-throughput mode; either alone is not.
		string(types.QueueAttributeNameDeduplicationScope):     "messageGroup",
		string(types.QueueAttributeNameFifoThroughputLimit):    "perMessageGroupId",
		string(types.QueueAttributeNameVisibilityTimeout):      of(Visibility),
		string(types.QueueAttributeNameMessageRetentionPeriod): of(Retention),
		string(types.QueueAttributeNameMaximumMessageSize):     strconv.Itoa(1 << 20),
		// The SDK leaves a wait of 0 out, and this is what SQS takes then.
		string(types.QueueAttributeNameReceiveMessageWaitTimeSeconds): "0",
	}
}

// Create makes the queue and its dead-letter queue where CloudFormation does not: in
// tests and against an emulator. Safe to repeat; a queue that is there with other
// attributes is an error.
func Create(ctx context.Context, client *sqs.Client, name string) error {
	main, dead := Names(name)
	out, err := client.CreateQueue(ctx, &sqs.CreateQueueInput{QueueName: &dead, Attributes: DeadAttributes()})
	if err != nil {
		return fmt.Errorf("create queue %s: %w", dead, explain(err))
	}
	have, err := (&Queue{client: client}).attributes(ctx, aws.ToString(out.QueueUrl), types.QueueAttributeNameQueueArn)
	if err != nil {
		return fmt.Errorf("create queue %s: %w", dead, err)
	}
	arn := have[string(types.QueueAttributeNameQueueArn)]
	if _, err := client.CreateQueue(ctx, &sqs.CreateQueueInput{QueueName: &main, Attributes: Attributes(arn)}); err != nil {
		return fmt.Errorf("create queue %s: %w", main, explain(err))
	}
	return nil
}

// check compares both queues with their definition and tells all differences.
func (q *Queue) check(ctx context.Context, main, dead string) error {
	haveDead, err := q.attributes(ctx, q.dead, types.QueueAttributeNameAll)
	if err != nil {
		return fmt.Errorf("%s: %w", dead, err)
	}
	have, err := q.attributes(ctx, q.url, types.QueueAttributeNameAll)
	if err != nil {
		return fmt.Errorf("%s: %w", main, err)
	}
	var errs []error
	compare := func(queue string, want, have map[string]string) {
		for _, k := range slices.Sorted(maps.Keys(want)) {
			if want[k] != have[k] {
				errs = append(errs, fmt.Errorf("%s: %s is %q, want %q: correct the queue", queue, k, have[k], want[k]))
			}
		}
	}
	// SQS spells the policy in its own way.
	const policy = string(types.QueueAttributeNameRedrivePolicy)
	have[policy] = canonical(have[policy])
	compare(main, Attributes(haveDead[string(types.QueueAttributeNameQueueArn)]), have)
	compare(dead, DeadAttributes(), haveDead)
	return errors.Join(errs...)
}

// canonical writes a redrive policy as Attributes does; another text stays as it is.
func canonical(policy string) string {
	var p struct {
		Target   string      `json:"deadLetterTargetArn"`
		Receives json.Number `json:"maxReceiveCount"` // as a number or as a text
	}
	if json.Unmarshal([]byte(policy), &p) != nil {
		return policy
	}
	return fmt.Sprintf(`{"deadLetterTargetArn":%q,"maxReceiveCount":%s}`, p.Target, p.Receives)
}
