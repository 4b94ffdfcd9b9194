package testenv

import (
	"encoding/json"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodbstreams"
	"github.com/aws/aws-sdk-go-v2/service/dynamodbstreams/types"
)

// Change is one record of a table's stream as Lambda hands it to a function (AWS Lambda
// developer guide, "Using AWS Lambda with Amazon DynamoDB"). It stays JSON on the whole
// way, so that what reaches a destination can be compared byte by byte.
type Change = json.RawMessage

// Stream reads a table's stream from its beginning to its present end, every shard, in
// order within a shard. The stream must carry both images.
func Stream(t testing.TB, cfg aws.Config, table string) []Change {
	t.Helper()
	ctx := t.Context()
	described, err := dynamodb.NewFromConfig(cfg).DescribeTable(ctx, &dynamodb.DescribeTableInput{TableName: &table})
	if err != nil {
		t.Fatalf("describe the table: got %v, want nil", err)
	}
	streams, arn := dynamodbstreams.NewFromConfig(cfg), described.Table.LatestStreamArn
	stream, err := streams.DescribeStream(ctx, &dynamodbstreams.DescribeStreamInput{StreamArn: arn})
	if err != nil {
		t.Fatalf("describe the stream: got %v, want nil", err)
	}
	if got := stream.StreamDescription.StreamViewType; got != types.StreamViewTypeNewAndOldImages {
		t.Fatalf("stream: got view type %s, want both images", got)
	}
	var all []Change
	for _, shard := range stream.StreamDescription.Shards {
		at, err := streams.GetShardIterator(ctx, &dynamodbstreams.GetShardIteratorInput{
			StreamArn: arn, ShardId: shard.ShardId, ShardIteratorType: types.ShardIteratorTypeTrimHorizon,
		})
		if err != nil {
			t.Fatalf("shard iterator: got %v, want nil", err)
		}
		for next := at.ShardIterator; next != nil; {
			page, err := streams.GetRecords(ctx, &dynamodbstreams.GetRecordsInput{ShardIterator: next, Limit: aws.Int32(7)})
			if err != nil {
				t.Fatalf("read the stream: got %v, want nil", err)
			}
			if len(page.Records) == 0 {
				break
			}
			for _, r := range page.Records {
				all = append(all, asEvent(t, r, aws.ToString(arn)))
			}
			next = page.NextShardIterator
		}
	}
	return all
}

// ByTTLService makes a deletion that of the TTL service, which an emulator never makes:
// only the service's carry this identity (Amazon DynamoDB developer guide, "DynamoDB
// Streams and Time to Live").
func ByTTLService(t testing.TB, c Change) Change {
	t.Helper()
	var event map[string]any
	if err := json.Unmarshal(c, &event); err != nil {
		t.Fatalf("change: got %v, want JSON", err)
	}
	event["userIdentity"] = map[string]string{"type": "Service", "principalId": "dynamodb.amazonaws.com"}
	return asJSON(t, event)
}

func asEvent(t testing.TB, r types.Record, arn string) Change {
	t.Helper()
	event := map[string]any{
		"eventID": r.EventID, "eventName": r.EventName, "eventVersion": r.EventVersion,
		"eventSource": r.EventSource, "awsRegion": r.AwsRegion, "eventSourceARN": arn,
		"dynamodb": map[string]any{
			"ApproximateCreationDateTime": r.Dynamodb.ApproximateCreationDateTime.Unix(),
			"Keys":                        image(t, r.Dynamodb.Keys),
			"NewImage":                    image(t, r.Dynamodb.NewImage),
			"OldImage":                    image(t, r.Dynamodb.OldImage),
			"SequenceNumber":              r.Dynamodb.SequenceNumber,
			"SizeBytes":                   r.Dynamodb.SizeBytes,
			"StreamViewType":              r.Dynamodb.StreamViewType,
		},
	}
	if who := r.UserIdentity; who != nil {
		event["userIdentity"] = map[string]any{"type": who.Type, "principalId": who.PrincipalId}
	}
	return asJSON(t, event)
}

func image(t testing.TB, attributes map[string]types.AttributeValue) map[string]any {
	t.Helper()
	if len(attributes) == 0 {
		return nil
	}
	out := map[string]any{}
	for name, v := range attributes {
		switch v := v.(type) {
		case *types.AttributeValueMemberS:
			out[name] = map[string]any{"S": v.Value}
		case *types.AttributeValueMemberN:
			out[name] = map[string]any{"N": v.Value}
		case *types.AttributeValueMemberBOOL:
			out[name] = map[string]any{"BOOL": v.Value}
		default:
			t.Fatalf("attribute %s: got a %T, which no test here writes", name, v)
		}
	}
	return out
}

func asJSON(t testing.TB, event map[string]any) Change {
	t.Helper()
	text, err := json.Marshal(event)
	if err != nil {
		t.Fatal(err)
	}
	return text
}
