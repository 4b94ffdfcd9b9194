package dynamo

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"
)

// The table's attributes that keys, indexes and housekeeping are made of.
const (
	// PartitionKey is a record's candidate hash.
	PartitionKey = "candidate_hash"
	// SortKey is a record's attempt.
	SortKey = "attempt"
	// TTLAttribute is when housekeeping may delete an item, in Unix seconds.
	TTLAttribute = "ttl"
	// PaymentIndex is the global index by payment_id, which only records have: keys
	// alone, since the item is read again from the table.
	PaymentIndex = "by_payment"
	// ListedIndex is the local index that orders refunds and open notifications.
	ListedIndex = "listed"
	// AttemptIndex is the local index of refunds by the invoice number of their attempt.
	AttemptIndex = "by_attempt"
)

const (
	paymentID = "payment_id"
	listedAt  = "listed_at"
	ofAttempt = "of_attempt"
)

// Table defines the table: keys, indexes, on-demand capacity, a stream with both
// images, deletion protection. TTL and point-in-time recovery are not part of a
// creation: Create switches them on. The result is the caller's to change.
func Table(name string) *dynamodb.CreateTableInput {
	text := func(name string) types.AttributeDefinition {
		return types.AttributeDefinition{AttributeName: aws.String(name), AttributeType: types.ScalarAttributeTypeS}
	}
	keys := func(partition string, sort ...string) []types.KeySchemaElement {
		out := []types.KeySchemaElement{{AttributeName: aws.String(partition), KeyType: types.KeyTypeHash}}
		for _, s := range sort {
			out = append(out, types.KeySchemaElement{AttributeName: aws.String(s), KeyType: types.KeyTypeRange})
		}
		return out
	}
	local := func(name, sort string) types.LocalSecondaryIndex {
		return types.LocalSecondaryIndex{
			IndexName: aws.String(name), KeySchema: keys(PartitionKey, sort),
			Projection: &types.Projection{ProjectionType: types.ProjectionTypeAll},
		}
	}
	return &dynamodb.CreateTableInput{
		TableName:            aws.String(name),
		AttributeDefinitions: []types.AttributeDefinition{text(PartitionKey), text(SortKey), text(paymentID), text(listedAt), text(ofAttempt)},
		KeySchema:            keys(PartitionKey, SortKey),
		GlobalSecondaryIndexes: []types.GlobalSecondaryIndex{{
			IndexName: aws.String(PaymentIndex), KeySchema: keys(paymentID),
			Projection: &types.Projection{ProjectionType: types.ProjectionTypeKeysOnly},
		}},
		LocalSecondaryIndexes:     []types.LocalSecondaryIndex{local(ListedIndex, listedAt), local(AttemptIndex, ofAttempt)},
		BillingMode:               types.BillingModePayPerRequest,
		DeletionProtectionEnabled: aws.Bool(true),
		StreamSpecification: &types.StreamSpecification{
			StreamEnabled: aws.Bool(true), StreamViewType: types.StreamViewTypeNewAndOldImages,
		},
	}
}

// Options are Create's settings.
type Options struct {
	// WarmReads and WarmWrites are the units a second that table and payment index can
	// take from the first second on. 0 leaves DynamoDB's own, 12,000 and 4,000; both
	// are set or neither. Paid for once, never lowered.
	WarmReads, WarmWrites int64
}

// How long Create waits for a table, and between two looks.
const (
	createTimeout = 10 * time.Minute
	createPause   = time.Second
)

// Create makes the table and waits until it can be used, with TTL and
// point-in-time recovery on. Safe to repeat: a table that is there keeps its
// definition and gets what was missing of the other two.
func Create(ctx context.Context, client *dynamodb.Client, name string, o Options) error {
	if err := create(ctx, client, name, o); err != nil {
		return fmt.Errorf("create table %s: %w", name, explain(name, err))
	}
	return nil
}

func create(ctx context.Context, client *dynamodb.Client, name string, o Options) error {
	ctx, cancel := context.WithTimeout(ctx, createTimeout)
	defer cancel()
	in := Table(name)
	if o.WarmReads > 0 || o.WarmWrites > 0 {
		in.WarmThroughput = &types.WarmThroughput{ReadUnitsPerSecond: aws.Int64(o.WarmReads), WriteUnitsPerSecond: aws.Int64(o.WarmWrites)}
		in.GlobalSecondaryIndexes[0].WarmThroughput = in.WarmThroughput
	}
	var there *types.ResourceInUseException
	if _, err := client.CreateTable(ctx, in); err != nil && !errors.As(err, &there) {
		return err
	}
	waiter := dynamodb.NewTableExistsWaiter(client, func(w *dynamodb.TableExistsWaiterOptions) { w.MinDelay = createPause })
	if err := waiter.Wait(ctx, &dynamodb.DescribeTableInput{TableName: in.TableName}, createTimeout); err != nil {
		return err
	}
	if err := expire(ctx, client, in.TableName); err != nil {
		return err
	}
	return recoverable(ctx, client, in.TableName)
}

// expire switches TTL on; to switch on what is on would be an error.
func expire(ctx context.Context, client *dynamodb.Client, table *string) error {
	is, err := client.DescribeTimeToLive(ctx, &dynamodb.DescribeTimeToLiveInput{TableName: table})
	if err != nil {
		return err
	}
	if d := is.TimeToLiveDescription; d != nil &&
		(d.TimeToLiveStatus == types.TimeToLiveStatusEnabled || d.TimeToLiveStatus == types.TimeToLiveStatusEnabling) {
		if got := aws.ToString(d.AttributeName); got != TTLAttribute {
			return fmt.Errorf("its TTL goes by the attribute %q, want %q: switch it off, and an hour later on again", got, TTLAttribute)
		}
		return nil
	}
	_, err = client.UpdateTimeToLive(ctx, &dynamodb.UpdateTimeToLiveInput{
		TableName:               table,
		TimeToLiveSpecification: &types.TimeToLiveSpecification{AttributeName: aws.String(TTLAttribute), Enabled: aws.Bool(true)},
	})
	return err
}

// recoverable switches point-in-time recovery on, for which a table that was just
// made is not ready at once.
func recoverable(ctx context.Context, client *dynamodb.Client, table *string) error {
	for {
		_, err := client.UpdateContinuousBackups(ctx, &dynamodb.UpdateContinuousBackupsInput{
			TableName:                        table,
			PointInTimeRecoverySpecification: &types.PointInTimeRecoverySpecification{PointInTimeRecoveryEnabled: aws.Bool(true)},
		})
		var early *types.ContinuousBackupsUnavailableException
		if !errors.As(err, &early) {
			return err
		}
		select {
		case <-ctx.Done():
			return errors.Join(err, ctx.Err())
		case <-time.After(createPause):
		}
	}
}
