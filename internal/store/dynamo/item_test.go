package dynamo_test

import (
	"crypto/rand"
	"encoding/json"
	"errors"
	"reflect"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-lambda-go/events"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"
	"github.com/google/go-cmp/cmp"

	"holdfast/internal/booking"
	"holdfast/internal/store/dynamo"
	"holdfast/internal/store/storetest"
)

// full is a valid record with something in every field.
func full(t testing.TB) booking.Record {
	t.Helper()
	rec := storetest.Held()
	rec.State, rec.Mail = booking.StatePaid, booking.MailDue
	v := reflect.ValueOf(&rec).Elem()
	for i := range v.NumField() {
		if f := v.Field(i); f.IsZero() {
			switch f.Interface().(type) {
			case string:
				f.SetString("some-" + v.Type().Field(i).Name)
			case time.Time:
				f.Set(reflect.ValueOf(rec.Deadline.Add(time.Duration(i)*time.Second + 123456789)))
			default:
				t.Fatalf("field %s: got an empty %s, which this test cannot fill", v.Type().Field(i).Name, f.Type())
			}
		}
	}
	rec.TTL = rec.TTL.Truncate(time.Second)
	return rec
}

// The item says what the record's JSON says, under the same names.
func TestItem_HasTheNamesOfTheShape(t *testing.T) {
	t.Parallel()
	rec := full(t)
	shape, err := json.Marshal(rec)
	if err != nil {
		t.Fatal(err)
	}
	var want map[string]any
	if err := json.Unmarshal(shape, &want); err != nil {
		t.Fatal(err)
	}
	want["ttl"] = float64(rec.TTL.Unix())
	got := map[string]any{}
	for name, v := range dynamo.Encode(rec) {
		switch v := v.(type) {
		case *types.AttributeValueMemberS:
			got[name] = v.Value
			// Times have all their decimals here.
			if at, err := time.Parse("2006-01-02T15:04:05.000000000Z", v.Value); err == nil {
				got[name] = at.Format(time.RFC3339Nano)
			}
		case *types.AttributeValueMemberN:
			n, err := strconv.ParseFloat(v.Value, 64)
			if err != nil {
				t.Errorf("attribute %s: %v", name, err)
			}
			got[name] = n
		default:
			t.Errorf("attribute %s: got a %T, want text or number", name, v)
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("item (-want +got):\n%s", diff)
	}
	back, err := dynamo.Decode(dynamo.Encode(rec))
	if diff := cmp.Diff(rec, back); err != nil || diff != "" {
		t.Errorf("decoded: got error %v; record (-want +got):\n%s", err, diff)
	}
}

// Conditions compare times as text.
func TestItem_TimesSortAsText(t *testing.T) {
	t.Parallel()
	rec := storetest.Held()
	at := time.Date(2026, 12, 1, 4, 0, 0, 0, time.UTC)
	last := ""
	for _, d := range []time.Duration{0, 1, time.Millisecond, 250 * time.Millisecond, time.Second, time.Second + 1, time.Hour} {
		rec.Deadline = at.Add(d).In(time.FixedZone("far", -5*3600))
		now := dynamo.Encode(rec)["deadline"].(*types.AttributeValueMemberS).Value
		if now <= last {
			t.Errorf("%s later: got %q, not behind %q", d, now, last)
		}
		last = now
	}
}

// The package comment tells what a scan costs, from this.
func TestItem_TakesAsMuchAsTheCommentSays(t *testing.T) {
	t.Parallel()
	rec := storetest.Held()
	rec.PaymentID = "TR0011mqN0nOK1796097600412"
	rec.PaymentURL = "https://gateway.example/redirect/tokenized/?paymentID=" + rec.PaymentID + "&hash=" + strings.Repeat("x", 40)
	rec.State, rec.Transaction, rec.PaidAt, rec.Mail, rec.TTL = booking.StatePaid, "CK250NROQ5", rec.Deadline, booking.MailSent, time.Time{}
	rec.ExecuteAt = rec.Deadline
	size := len("put_id") + len(rand.Text()) // names and values, as DynamoDB counts; a number takes a byte for two digits, and one
	for name, v := range dynamo.Encode(rec) {
		size += len(name)
		switch v := v.(type) {
		case *types.AttributeValueMemberS:
			size += len(v.Value)
		case *types.AttributeValueMemberN:
			size += len(v.Value)/2 + 1
		}
	}
	if size < 650 || size > 750 {
		t.Errorf("size of a paid record: got %d bytes, want the 700 or so of the package comment", size)
	}
}

// image is a stream's image of the record, as a function is handed it.
func image(t testing.TB, rec booking.Record) map[string]events.DynamoDBAttributeValue {
	t.Helper()
	out := map[string]events.DynamoDBAttributeValue{}
	for name, v := range dynamo.Encode(rec) {
		switch v := v.(type) {
		case *types.AttributeValueMemberS:
			out[name] = events.NewStringAttribute(v.Value)
		case *types.AttributeValueMemberN:
			out[name] = events.NewNumberAttribute(v.Value)
		}
	}
	return out
}

func TestRecordFromImage_ReadsWhatTheTableHolds(t *testing.T) {
	t.Parallel()
	rec := full(t)
	// As the service sends it.
	sent, err := json.Marshal(image(t, rec))
	if err != nil {
		t.Fatal(err)
	}
	var arrived map[string]events.DynamoDBAttributeValue
	if err := json.Unmarshal(sent, &arrived); err != nil {
		t.Fatal(err)
	}
	arrived["tags"] = events.NewStringSetAttribute([]string{"of", "somebody", "else"})
	got, err := dynamo.RecordFromImage(arrived)
	if diff := cmp.Diff(rec, got); err != nil || diff != "" {
		t.Errorf("RecordFromImage: got error %v; record (-want +got):\n%s", err, diff)
	}
}

func TestRecordFromImage_WrongItemsAreErrorsAndNoPanics(t *testing.T) {
	t.Parallel()
	for name := range dynamo.Encode(full(t)) {
		for what, v := range map[string]events.DynamoDBAttributeValue{
			"null": events.NewNullAttribute(), "true": events.NewBooleanAttribute(true), "bytes": events.NewBinaryAttribute([]byte("x")),
			"a list": events.NewListAttribute(nil), "nothing": {}, "empty": events.NewStringAttribute(""), "half": events.NewNumberAttribute("0.5"),
		} {
			if what == "empty" && name != "v" && name != "candidate_hash" {
				continue // no attribute is as good as an empty text where a field may be empty
			}
			img := image(t, full(t))
			img[name] = v
			if _, err := dynamo.RecordFromImage(img); !errors.Is(err, booking.ErrUnreadable) {
				t.Errorf("image whose %s is %s: got %v, want ErrUnreadable", name, what, err)
			}
		}
	}
	for _, img := range []map[string]events.DynamoDBAttributeValue{nil, {}, {"v": events.NewNumberAttribute("1")}} {
		if _, err := dynamo.RecordFromImage(img); !errors.Is(err, booking.ErrUnreadable) {
			t.Errorf("image %v: got %v, want ErrUnreadable", img, err)
		}
	}
	for _, partition := range []string{"#refunds", "#notifications#3", "#probe"} {
		img := map[string]events.DynamoDBAttributeValue{"candidate_hash": events.NewStringAttribute(partition), "attempt": events.NewStringAttribute("x")}
		if _, err := dynamo.RecordFromImage(img); !errors.Is(err, dynamo.ErrNotRecord) {
			t.Errorf("image of an item under %s: got %v, want ErrNotRecord", partition, err)
		}
	}
}
