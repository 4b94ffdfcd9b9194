package dynamo_test

import (
	"slices"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"

	"holdfast/internal/store/dynamo"
	"holdfast/internal/store/storetest"
)

func (s store) CorruptLog(t testing.TB, id string) {
	t.Helper()
	s.spoil(t, id, "body", number("2"))
}

func TestStore_KeepsTheOperatorsLog(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("NOT TESTED: the contract over an AWS emulator takes a minute")
	}
	e := newEmulator(t)
	storetest.RunLog(t, func(t *testing.T) storetest.LogDriver { return e.open(t) })
}

// Where it lies is a shape that later programs read, and it never goes by itself.
func TestItem_LogHasAPartitionAMonth(t *testing.T) {
	t.Parallel()
	s := newEmulator(t).open(t)
	for _, month := range []time.Month{time.November, time.December} {
		if err := s.AppendLog(t.Context(), storetest.LogBegun(time.Date(2026, month, 30, 23, 59, 0, 0, time.UTC))); err != nil {
			t.Fatalf("AppendLog: %v", err)
		}
	}
	out, err := s.client.Scan(t.Context(), &dynamodb.ScanInput{TableName: &s.table, ConsistentRead: aws.Bool(true)})
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, it := range out.Items {
		partition, _ := it[dynamo.PartitionKey].(*types.AttributeValueMemberS)
		got = append(got, partition.Value)
		if it[dynamo.TTLAttribute] != nil {
			t.Errorf("item of %s: got a ttl, want none", partition.Value)
		}
	}
	slices.Sort(got)
	if want := []string{"#log", "#log", "#log#2026-11", "#log#2026-12"}; !slices.Equal(got, want) {
		t.Errorf("partitions: got %q, want %q", got, want)
	}
}
