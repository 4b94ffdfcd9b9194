package functions_test

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-lambda-go/lambda"
	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"
	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"

	"holdfast/internal/app/functions"
	"holdfast/internal/backoffice"
	"holdfast/internal/booking"
	"holdfast/internal/expiry"
	"holdfast/internal/store/dynamo"
	"holdfast/internal/store/storetest"
	"holdfast/internal/testenv"
)

const (
	sale      = "demo-2026"
	tableName = "bookings"
)

// bookings is a booking table at an AWS emulator, and its stream.
type bookings struct {
	cfg    aws.Config
	client *dynamodb.Client
	store  *dynamo.Store
}

func newBookings(t *testing.T) bookings {
	t.Helper()
	cfg := aws.Config{
		Region: testenv.Region, BaseEndpoint: aws.String(testenv.AWS(t).Endpoint),
		Credentials: credentials.NewStaticCredentialsProvider("test", "test", ""),
	}
	client := dynamodb.NewFromConfig(cfg)
	if err := dynamo.Create(t.Context(), client, tableName, dynamo.Options{}); err != nil {
		t.Fatalf("create the table: got %v, want nil", err)
	}
	return bookings{cfg: cfg, client: client, store: dynamo.New(client, tableName)}
}

func (b bookings) held(t *testing.T) booking.Record {
	t.Helper()
	rec, created, err := b.store.PutHeld(t.Context(), storetest.Held())
	if err != nil || !created {
		t.Fatalf("PutHeld: got %v, %v, want a new record", created, err)
	}
	return rec
}

func (b bookings) paid(t *testing.T, rec booking.Record) booking.Record {
	t.Helper()
	rec, err := b.store.MarkPaid(t.Context(), booking.Paid{
		Record: rec, Transaction: "TX" + rec.Attempt, PaidAt: rec.AdmittedAt.Add(2*time.Minute + 125*time.Millisecond),
	})
	if err != nil {
		t.Fatalf("MarkPaid: got %v, want nil", err)
	}
	return rec
}

func key(rec booking.Record) map[string]types.AttributeValue {
	return map[string]types.AttributeValue{
		dynamo.PartitionKey: &types.AttributeValueMemberS{Value: rec.CandidateHash},
		dynamo.SortKey:      &types.AttributeValueMemberS{Value: rec.Attempt},
	}
}

// spoil makes a record one of a program to come.
func (b bookings) spoil(t *testing.T, rec booking.Record) {
	t.Helper()
	_, err := b.client.UpdateItem(t.Context(), &dynamodb.UpdateItemInput{
		TableName: aws.String(tableName), Key: key(rec), UpdateExpression: aws.String("SET #v = :v"),
		ExpressionAttributeNames:  map[string]string{"#v": "v"},
		ExpressionAttributeValues: map[string]types.AttributeValue{":v": &types.AttributeValueMemberN{Value: "99"}},
	})
	if err != nil {
		t.Fatalf("spoil a record: got %v, want nil", err)
	}
}

func (b bookings) remove(t *testing.T, rec booking.Record) {
	t.Helper()
	if _, err := b.client.DeleteItem(t.Context(), &dynamodb.DeleteItemInput{TableName: aws.String(tableName), Key: key(rec)}); err != nil {
		t.Fatalf("delete a record: got %v, want nil", err)
	}
}

// openOffice is the back office at a real PostgreSQL.
func openOffice(t *testing.T, url string) *backoffice.Office {
	t.Helper()
	o := backoffice.New(func(ctx context.Context) (*pgx.Conn, error) {
		c, err := pgx.Connect(ctx, url)
		if err != nil {
			return nil, err
		}
		return c, backoffice.Migrate(ctx, c)
	}, sale)
	t.Cleanup(func() { _ = o.Close(context.Background()) })
	return o
}

func rowOf(rec booking.Record) backoffice.Booking {
	return backoffice.Booking{
		Sale: sale, CandidateHash: rec.CandidateHash, Code: rec.Code, Attempt: rec.Attempt, Level: rec.Level, Amount: rec.Amount,
		Currency: rec.Currency, PaymentID: rec.PaymentID, Transaction: rec.Transaction, PaidAt: rec.PaidAt,
	}
}

func checkRows(t *testing.T, when string, o *backoffice.Office, paid ...booking.Record) {
	t.Helper()
	var want, got []backoffice.Booking
	for _, rec := range paid {
		want = append(want, rowOf(rec))
	}
	slices.SortFunc(want, func(a, b backoffice.Booking) int { return strings.Compare(a.CandidateHash, b.CandidateHash) })
	for b, err := range o.Paid(t.Context()) {
		if err != nil {
			t.Fatalf("%s: Paid: got %v, want nil", when, err)
		}
		b.UpdatedAt = time.Time{}
		got = append(got, b)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("%s: rows (-want +got):\n%s", when, diff)
	}
}

func TestSync_FromTheStreamIntoPostgreSQL(t *testing.T) {
	t.Parallel()
	server := testenv.Postgres(t)
	b := newBookings(t)
	ctx := t.Context()

	first, second, fast := b.paid(t, b.held(t)), b.paid(t, b.held(t)), b.paid(t, storetest.Held())
	over := b.held(t)
	if err := b.store.Release(ctx, over, booking.ReasonLapsed, over.Deadline); err != nil {
		t.Fatalf("Release: got %v, want nil", err)
	}
	b.held(t)
	until := first.PaidAt.Add(time.Minute)
	if ok, err := b.store.ClaimMail(ctx, first.CandidateHash, first.Attempt, "sender", first.PaidAt, until); !ok || err != nil {
		t.Fatalf("ClaimMail: got %v, %v, want the claim", ok, err)
	}
	if err := b.store.MailSent(ctx, first.CandidateHash, first.Attempt, "sender"); err != nil {
		t.Fatalf("MailSent: got %v, want nil", err)
	}
	refund := key(first)
	refund[dynamo.PartitionKey] = &types.AttributeValueMemberS{Value: "#refund"}
	refund["state"] = &types.AttributeValueMemberS{Value: "due"}
	if _, err := b.client.PutItem(ctx, &dynamodb.PutItemInput{TableName: aws.String(tableName), Item: refund}); err != nil {
		t.Fatalf("put an item of another kind: got %v, want nil", err)
	}
	whole := testenv.Stream(t, b.cfg, tableName)
	if len(whole) < 11 {
		t.Fatalf("stream: got %d changes, want one for each write", len(whole))
	}

	t.Run("PaidTwiceAndOutOfOrderIsOneRow", func(t *testing.T) {
		var log, out bytes.Buffer
		o := openOffice(t, server.Database(t))
		p := newPump(functions.NewSync(o, tools(&log, &out)))
		backwards := slices.Clone(whole)
		slices.Reverse(backwards)
		for when, shard := range map[string][]change{"in order": whole, "backwards": backwards, "twice": slices.Concat(whole, whole)} {
			p.run(t, shard)
			checkRows(t, when, o, first, second, fast)
		}
		if len(p.abandoned) != 0 {
			t.Errorf("destination: got %d batches, want none; log:\n%s", len(p.abandoned), log.String())
		}
		if got := counts(t, &out, "sync"); got["inserted"] != 3 || got["unchanged"] == 0 || got["replaced"]+got["older"] != 0 {
			t.Errorf("metric: got %v, want three inserted and the rest unchanged or ignored", got)
		}
	})

	t.Run("LaterAttemptStaysInEitherOrder", func(t *testing.T) {
		again := second
		again.AdmittedAt = again.AdmittedAt.Add(time.Hour)
		again.Attempt = booking.AttemptID(again.Epoch, booking.NewAttemptSuffix(again.AdmittedAt))
		again.Invoice, again.PaymentID = booking.Invoice(again.CandidateHash, again.Attempt), "TR"+again.Attempt
		again.State, again.Transaction, again.PaidAt = booking.StateHeld, "", time.Time{}
		again = b.paid(t, again)
		after := testenv.Stream(t, b.cfg, tableName)
		backwards := slices.Clone(after)
		slices.Reverse(backwards)
		for when, shard := range map[string][]change{"in order": after, "backwards": backwards} {
			var log, out bytes.Buffer
			o := openOffice(t, server.Database(t))
			newPump(functions.NewSync(o, tools(&log, &out))).run(t, shard)
			checkRows(t, when, o, first, again, fast)
			if !strings.Contains(log.String(), "two paid attempts") {
				t.Errorf("%s: log: got %q, want a word of the two paid attempts", when, log.String())
			}
		}
	})
}

func TestSync_PoisonReachesItsDestinationWholeAndTheShardMovesOn(t *testing.T) {
	t.Parallel()
	server := testenv.Postgres(t)
	b := newBookings(t)
	var good []booking.Record
	for range 6 {
		good = append(good, b.paid(t, b.held(t)))
	}
	poison := b.paid(t, b.held(t))
	b.spoil(t, poison)
	for range 9 {
		good = append(good, b.paid(t, b.held(t)))
	}
	good = append(good, poison) // as it was before
	shard := testenv.Stream(t, b.cfg, tableName)
	at := slices.IndexFunc(shard, func(c change) bool { return strings.Contains(string(c), `"NewImage"`) && newVersion(t, c) == "99" })
	if at < 0 {
		t.Fatal("stream: got no change by a program to come, want one")
	}
	// Wherever the batches are cut: the poison first in one, in the middle, last, alone.
	for _, size := range []int{1, 2, 3, 5, at, at + 1, len(shard)} {
		var log, out bytes.Buffer
		o := openOffice(t, server.Database(t))
		p := newPump(functions.NewSync(o, tools(&log, &out)))
		p.batch = size
		p.run(t, shard)
		checkRows(t, "after the poison", o, good...)
		if diff := cmp.Diff([][]change{{shard[at]}}, p.abandoned); diff != "" {
			t.Errorf("batches of %d: destination (-want +got):\n%s", size, diff)
		}
		if got := counts(t, &out, "sync")["unreadable"]; got < p.retries+1 {
			t.Errorf("batches of %d: metric: got %d unreadable, want one for each of at least %d tries", size, got, p.retries+1)
		}
		if most := 2*len(shard) + 40; p.calls > most {
			t.Errorf("batches of %d: got %d calls, want at most %d", size, p.calls, most)
		}
	}
}

func newVersion(t *testing.T, c change) string {
	t.Helper()
	var event struct {
		DynamoDB struct {
			NewImage map[string]struct{ N string }
		} `json:"dynamodb"`
	}
	if err := json.Unmarshal(c, &event); err != nil {
		t.Fatalf("change: got %v, want JSON", err)
	}
	return event.DynamoDB.NewImage["v"].N
}

func TestSync_WhatAnOutageAbandonedCanBeHandedInAgain(t *testing.T) {
	t.Parallel()
	server := testenv.Postgres(t)
	b := newBookings(t)
	before, during := b.paid(t, b.held(t)), b.paid(t, b.held(t))
	shard := testenv.Stream(t, b.cfg, tableName)
	var log, out bytes.Buffer
	o := openOffice(t, server.Database(t))
	p := newPump(functions.NewSync(o, tools(&log, &out)))
	p.run(t, shard[:2])
	checkRows(t, "before the outage", o, before)

	server.Stop()
	p.run(t, shard[2:])
	if len(p.abandoned) != 1 || len(p.abandoned[0]) != 1 {
		t.Fatalf("destination: got %d batches, want the one paid record: what is not paid needs no back office", len(p.abandoned))
	}
	server.Start(t)
	p.run(t, p.abandoned[0])
	checkRows(t, "after the outage", o, before, during)
}

func TestExpiry_FromTheStreamBackIntoTheTable(t *testing.T) {
	t.Parallel()
	b := newBookings(t)
	for name, c := range map[string]struct {
		make func(t *testing.T) booking.Record
		back bool
	}{
		"held": {b.held, true},
		"paid": {func(t *testing.T) booking.Record { return b.paid(t, b.held(t)) }, true},
		"released": {func(t *testing.T) booking.Record {
			rec := b.held(t)
			if err := b.store.Release(t.Context(), rec, booking.ReasonLapsed, rec.Deadline); err != nil {
				t.Fatalf("Release: got %v, want nil", err)
			}
			return rec
		}, false},
	} {
		t.Run(name, func(t *testing.T) {
			var log, out bytes.Buffer
			tl := tools(&log, &out)
			p := newPump(functions.NewExpiry(expiry.New(b.store, tl.Log), tl))
			rec := c.make(t)
			b.remove(t, rec)
			shard := testenv.Stream(t, b.cfg, tableName)
			last := len(shard) - 1

			p.run(t, shard) // deleted by a person, so far
			if got, err := b.store.RecordsOf(t.Context(), rec.CandidateHash); len(got) != 0 || err != nil {
				t.Fatalf("after a person's deletion: got %d records, %v, want none", len(got), err)
			}
			shard[last] = testenv.ByTTLService(t, shard[last])
			for range 2 { // delivered twice
				p.run(t, shard)
				got, err := b.store.RecordsOf(t.Context(), rec.CandidateHash)
				if err != nil {
					t.Fatalf("RecordsOf: got %v, want nil", err)
				}
				rec.TTL = time.Time{}
				var want []booking.Record
				if c.back {
					want = []booking.Record{rec}
				}
				if diff := cmp.Diff(want, got); diff != "" {
					t.Errorf("after the TTL service's deletion (-want +got):\n%s", diff)
				}
			}
			if len(p.abandoned) != 0 {
				t.Errorf("destination: got %d batches, want none; log:\n%s", len(p.abandoned), log.String())
			}
			if alarmed := strings.Contains(log.String(), "level=ERROR"); alarmed != c.back {
				t.Errorf("alarm in the log: got %v, want %v:\n%s", alarmed, c.back, log.String())
			}
		})
	}
}

func TestExpiry_UnreadableImageReachesItsDestinationWhole(t *testing.T) {
	t.Parallel()
	b := newBookings(t)
	bad, good := b.held(t), b.held(t)
	b.spoil(t, bad)
	b.remove(t, bad)
	b.remove(t, good)
	shard := testenv.Stream(t, b.cfg, tableName)
	for i := range shard {
		shard[i] = testenv.ByTTLService(t, shard[i]) // of a change that is no deletion it means nothing
	}
	var log, out bytes.Buffer
	tl := tools(&log, &out)
	p := newPump(functions.NewExpiry(expiry.New(b.store, tl.Log), tl))
	p.run(t, shard)
	if diff := cmp.Diff([][]change{{shard[len(shard)-2]}}, p.abandoned); diff != "" {
		t.Errorf("destination (-want +got):\n%s", diff)
	}
	if got, err := b.store.Record(t.Context(), good.CandidateHash, good.Attempt); err != nil || got.State != booking.StateHeld {
		t.Errorf("record behind the poison: got %s, %v, want it back as HELD", got.State, err)
	}
}

// The event has the form that the documentation gives for a deletion by TTL.
func TestExpiry_ReadsADeletionByTTLAsDocumented(t *testing.T) {
	t.Parallel()
	payload, err := os.ReadFile("testdata/ttl_deletion.json")
	if err != nil {
		t.Fatal(err)
	}
	var log, out bytes.Buffer
	tl, store := tools(&log, &out), &table{}
	answer, err := lambda.NewHandler(functions.NewExpiry(expiry.New(store, tl.Log), tl).Handle).Invoke(t.Context(), payload)
	if err != nil || strings.TrimSpace(string(answer)) != `{"batchItemFailures":null}` {
		t.Errorf("Handle: got %s, %v, want no failures; log:\n%s", answer, err, log.String())
	}
	if len(store.back) != 1 || store.back[0].State != booking.StateHeld || !store.back[0].TTL.IsZero() || store.back[0].Code != "AB-1001" {
		t.Errorf("put back: got %+v, want the held record of the event, without a TTL", store.back)
	}
}
