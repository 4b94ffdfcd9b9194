package dynamo_test

import (
	"net/http"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/aws/ratelimit"
	"github.com/aws/aws-sdk-go-v2/aws/retry"
	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"
	"go.uber.org/goleak"

	"holdfast/internal/booking"
	"holdfast/internal/store/dynamo"
	"holdfast/internal/store/storetest"
	"holdfast/internal/testenv"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// oneAtATime lets one request be carried out at a time. An item of DynamoDB has its
// condition checked and its write made in one step; the emulator's threads make two of
// it, and between them another's request fits.
type oneAtATime struct {
	mu   sync.Mutex
	next http.RoundTripper
}

func (o *oneAtATime) RoundTrip(r *http.Request) (*http.Response, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.next.RoundTrip(r)
}

// emulator is one server for all tables of a test.
type emulator struct {
	endpoint string
	way      http.RoundTripper
	tables   atomic.Int64
}

func newEmulator(t *testing.T) *emulator {
	t.Helper()
	server := testenv.AWS(t)
	way := &http.Transport{}
	t.Cleanup(way.CloseIdleConnections)
	return &emulator{endpoint: server.Endpoint, way: &oneAtATime{next: way}}
}

// newClient makes a client that repeats as the SDK does, without the pauses.
func newClient(endpoint string, way http.RoundTripper) *dynamodb.Client {
	return dynamodb.New(dynamodb.Options{
		Region: testenv.Region, BaseEndpoint: &endpoint, HTTPClient: &http.Client{Transport: way},
		Credentials: credentials.NewStaticCredentialsProvider("test", "test", ""),
		Retryer: retry.NewStandard(func(o *retry.StandardOptions) {
			o.Backoff = retry.BackoffDelayerFunc(func(int, error) (time.Duration, error) { return 0, nil })
			o.RateLimiter = ratelimit.None // a test breaks more calls than a process should repeat
		}),
	})
}

func (e *emulator) client() *dynamodb.Client { return newClient(e.endpoint, e.way) }

// table makes an empty table.
func (e *emulator) table(t *testing.T) string {
	t.Helper()
	table := "holdfast-" + strconv.FormatInt(e.tables.Add(1), 10)
	if err := dynamo.Create(t.Context(), e.client(), table, dynamo.Options{}); err != nil {
		t.Fatalf("Create: %v", err)
	}
	return table
}

// store is a Store whose items the test can read and spoil.
type store struct {
	*dynamo.Store
	client *dynamodb.Client
	table  string
}

func (e *emulator) open(t *testing.T) store {
	t.Helper()
	table, client := e.table(t), e.client()
	return store{Store: dynamo.New(client, table), client: client, table: table}
}

func text(s string) types.AttributeValue   { return &types.AttributeValueMemberS{Value: s} }
func number(s string) types.AttributeValue { return &types.AttributeValueMemberN{Value: s} }

// item finds the one item with the sort key.
func (s store) item(t testing.TB, sort string) map[string]types.AttributeValue {
	t.Helper()
	out, err := s.client.Scan(t.Context(), &dynamodb.ScanInput{
		TableName: &s.table, ConsistentRead: aws.Bool(true), FilterExpression: aws.String("attempt = :sort"),
		ExpressionAttributeValues: map[string]types.AttributeValue{":sort": text(sort)},
	})
	if err != nil || len(out.Items) != 1 {
		t.Fatalf("item %s: got %+v, %v, want one", sort, out, err)
	}
	return out.Items[0]
}

func (s store) spoil(t testing.TB, sort, attribute string, value types.AttributeValue) {
	t.Helper()
	it := s.item(t, sort)
	_, err := s.client.UpdateItem(t.Context(), &dynamodb.UpdateItemInput{
		TableName:        &s.table,
		Key:              map[string]types.AttributeValue{dynamo.PartitionKey: it[dynamo.PartitionKey], dynamo.SortKey: it[dynamo.SortKey]},
		UpdateExpression: aws.String("SET #a = :v"), ExpressionAttributeNames: map[string]string{"#a": attribute},
		ExpressionAttributeValues: map[string]types.AttributeValue{":v": value},
	})
	if err != nil {
		t.Fatalf("spoil %s: %v", sort, err)
	}
}

func (s store) Corrupt(t testing.TB, _, attempt string) {
	t.Helper()
	s.spoil(t, attempt, "v", number("2")) // of a later program
}

func (s store) CorruptRefund(t testing.TB, transaction string) {
	t.Helper()
	s.spoil(t, booking.RefundKey(transaction), "body", text(`{"v":1,`))
}

func (s store) CorruptNotification(t testing.TB, id string) {
	t.Helper()
	s.spoil(t, "ntf#"+id, "body", text(`{"v":2}`))
}

func TestStore_KeepsTheContract(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("NOT TESTED: the contract over an AWS emulator takes a minute")
	}
	e := newEmulator(t)
	storetest.RunDriver(t, func(t *testing.T) storetest.Driver { return e.open(t) })
}

func TestStore_TwoProcessesRaceToOneEnd(t *testing.T) {
	t.Parallel()
	e := newEmulator(t)
	table := e.table(t)
	a, b := dynamo.New(e.client(), table), dynamo.New(e.client(), table)
	storetest.Race(t, a, b, 20)
	storetest.RaceMoney(t, a, b, 5)
}

// What the expiry function does when housekeeping has deleted a HELD record.
func TestPutBack_PutsWithoutTTLOnlyWhatIsGone(t *testing.T) {
	t.Parallel()
	s, rec, ctx := newEmulator(t).open(t), storetest.Held(), t.Context()
	kept := rec
	kept.TTL = time.Time{}
	for i, want := range []bool{true, false} {
		if put, err := s.PutBack(ctx, rec); err != nil || put != want {
			t.Errorf("PutBack, call %d: got %t, %v, want %t", i+1, put, err, want)
		}
		if got, err := s.Record(ctx, rec.CandidateHash, rec.Attempt); err != nil || got != kept {
			t.Errorf("record after PutBack: got %+v, %v, want %+v", got, err, kept)
		}
	}
	paid, err := s.MarkPaid(ctx, booking.Paid{Record: rec, Transaction: "TX1", PaidAt: rec.Deadline})
	if err != nil {
		t.Fatalf("MarkPaid: %v", err)
	}
	if put, err := s.PutBack(ctx, rec); err != nil || put {
		t.Errorf("PutBack over a PAID record: got %t, %v, want false", put, err)
	}
	if got, err := s.Record(ctx, rec.CandidateHash, rec.Attempt); err != nil || got != paid {
		t.Errorf("paid record after PutBack: got %+v, %v, want %+v", got, err, paid)
	}
	if _, err := s.PutBack(ctx, paid); err == nil {
		t.Error("PutBack of a PAID record: got no error, want one")
	}
}

// Removed by the write that pays; a record whose time is over is judged as any other.
func TestItem_TTLIsThereOnlyWhileARecordMayGo(t *testing.T) {
	t.Parallel()
	s, rec, ctx := newEmulator(t).open(t), storetest.Held(), t.Context()
	ttl := func(when string, want types.AttributeValue) {
		t.Helper()
		got := s.item(t, rec.Attempt)[dynamo.TTLAttribute]
		if g, w := numberIn(got), numberIn(want); g != w {
			t.Errorf("ttl of a record that is %s: got %q, want %q", when, g, w)
		}
	}
	seconds := func(at time.Time) types.AttributeValue { // rounded up
		return number(strconv.FormatInt(at.Add(time.Second-1).Unix(), 10))
	}
	rec.TTL = rec.AdmittedAt.Add(time.Hour + time.Millisecond).UTC() // long over: it is judged all the same
	if _, _, err := s.PutHeld(ctx, rec); err != nil {
		t.Fatalf("PutHeld: %v", err)
	}
	ttl("HELD", seconds(rec.TTL))
	if _, created, err := s.PutHeld(ctx, rec); err != nil || created {
		t.Errorf("PutHeld over a record whose time is over: got %t, %v, want false", created, err)
	}
	if err := s.Release(ctx, rec, "lapsed", rec.Deadline); err != nil {
		t.Fatalf("Release: %v", err)
	}
	ttl("RELEASED", seconds(booking.ReleasedTTL(rec.Deadline)))
	if _, err := s.MarkPaid(ctx, booking.Paid{Record: rec, Transaction: "TX1", PaidAt: rec.Deadline}); err != nil {
		t.Fatalf("MarkPaid: %v", err)
	}
	ttl("PAID", nil)
}

func numberIn(v types.AttributeValue) string {
	if n, ok := v.(*types.AttributeValueMemberN); ok {
		return n.Value
	}
	return ""
}
