package dynamo_test

import (
	"regexp"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"
	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"holdfast/internal/store/dynamo"
)

func TestCreate_MakesTheTableThatTableDefines(t *testing.T) {
	t.Parallel()
	client, ctx := newEmulator(t).client(), t.Context()
	for range 2 { // safe to repeat
		if err := dynamo.Create(ctx, client, "bookings", dynamo.Options{WarmReads: 20000, WarmWrites: 9000}); err != nil {
			t.Fatalf("Create: %v", err)
		}
	}
	out, err := client.DescribeTable(ctx, &dynamodb.DescribeTableInput{TableName: aws.String("bookings")})
	if err != nil {
		t.Fatalf("describe the table: %v", err)
	}
	is := out.Table
	want := dynamo.Table("bookings")
	got := &dynamodb.CreateTableInput{
		TableName: is.TableName, AttributeDefinitions: is.AttributeDefinitions, KeySchema: is.KeySchema,
		BillingMode: is.BillingModeSummary.BillingMode, DeletionProtectionEnabled: is.DeletionProtectionEnabled,
		StreamSpecification: is.StreamSpecification,
	}
	for _, g := range is.GlobalSecondaryIndexes {
		got.GlobalSecondaryIndexes = append(got.GlobalSecondaryIndexes, types.GlobalSecondaryIndex{
			IndexName: g.IndexName, KeySchema: g.KeySchema, Projection: g.Projection,
		})
	}
	for _, l := range is.LocalSecondaryIndexes {
		got.LocalSecondaryIndexes = append(got.LocalSecondaryIndexes, types.LocalSecondaryIndex{
			IndexName: l.IndexName, KeySchema: l.KeySchema, Projection: l.Projection,
		})
	}
	if diff := cmp.Diff(want, got, sdkTypes()); diff != "" {
		t.Errorf("table (-want +got):\n%s", diff)
	}
	for what, warm := range map[string]struct{ reads, writes *int64 }{
		"table": {is.WarmThroughput.ReadUnitsPerSecond, is.WarmThroughput.WriteUnitsPerSecond},
		"index": {is.GlobalSecondaryIndexes[0].WarmThroughput.ReadUnitsPerSecond, is.GlobalSecondaryIndexes[0].WarmThroughput.WriteUnitsPerSecond},
	} {
		if r, w := aws.ToInt64(warm.reads), aws.ToInt64(warm.writes); r != 20000 || w != 9000 {
			t.Errorf("warm throughput of the %s: got %d and %d, want 20000 and 9000", what, r, w)
		}
	}
	ttl, err := client.DescribeTimeToLive(ctx, &dynamodb.DescribeTimeToLiveInput{TableName: is.TableName})
	if err != nil || ttl.TimeToLiveDescription.TimeToLiveStatus != types.TimeToLiveStatusEnabled ||
		aws.ToString(ttl.TimeToLiveDescription.AttributeName) != "ttl" {
		t.Errorf("TTL: got %+v, %v, want it enabled on ttl", ttl, err)
	}
	backups, err := client.DescribeContinuousBackups(ctx, &dynamodb.DescribeContinuousBackupsInput{TableName: is.TableName})
	if err != nil || backups.ContinuousBackupsDescription.PointInTimeRecoveryDescription.PointInTimeRecoveryStatus != types.PointInTimeRecoveryStatusEnabled {
		t.Errorf("point-in-time recovery: got %+v, %v, want it enabled", backups, err)
	}
}

// What production rests on, said once more in other words than the definition's.
func TestTable_HasWhatTheStoreRestsOn(t *testing.T) {
	t.Parallel()
	in := dynamo.Table("bookings")
	if in.BillingMode != types.BillingModePayPerRequest || !aws.ToBool(in.DeletionProtectionEnabled) ||
		in.StreamSpecification.StreamViewType != types.StreamViewTypeNewAndOldImages {
		t.Errorf("table: got %+v, want on demand, protected, a stream with both images", in)
	}
	if in.GlobalSecondaryIndexes[0].Projection.ProjectionType != types.ProjectionTypeKeysOnly {
		t.Errorf("payment index: got projection %s, want keys only, so that only a record's first write touches it",
			in.GlobalSecondaryIndexes[0].Projection.ProjectionType)
	}
	form := regexp.MustCompile(`^[a-zA-Z0-9_.-]{3,255}$`) // which the emulator does not ask for
	for _, index := range []string{dynamo.PaymentIndex, dynamo.ListedIndex, dynamo.AttemptIndex} {
		if !form.MatchString(index) {
			t.Errorf("index %q: want a name of the form %s", index, form)
		}
	}
	*in.TableName = "changed"
	if got := aws.ToString(dynamo.Table("bookings").TableName); got != "bookings" {
		t.Errorf("Table after a caller changed an earlier one: got %q, want its own", got)
	}
}

func sdkTypes() cmp.Option {
	return cmpopts.IgnoreUnexported(dynamodb.CreateTableInput{}, types.AttributeDefinition{}, types.KeySchemaElement{},
		types.GlobalSecondaryIndex{}, types.LocalSecondaryIndex{}, types.Projection{}, types.StreamSpecification{})
}
