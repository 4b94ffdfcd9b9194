package dynamo

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/aws/aws-lambda-go/events"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"

	"holdfast/internal/booking"
)

// ErrNotRecord says of a stream's image that it is of an item of another kind: a
// refund, a notification, or the store's own probe.
var ErrNotRecord = errors.New("item is not a booking record")

// instantForm is RFC 3339 with all decimals: as text it sorts by time.
const instantForm = "2006-01-02T15:04:05.000000000Z07:00"

// item is an item's attributes by name, or values by the name they have in an
// expression.
type item = map[string]types.AttributeValue

func textValue(s string) types.AttributeValue { return &types.AttributeValueMemberS{Value: s} }

func numberValue(n int64) types.AttributeValue {
	return &types.AttributeValueMemberN{Value: strconv.FormatInt(n, 10)}
}

func instantValue(t time.Time) types.AttributeValue { return textValue(t.UTC().Format(instantForm)) }

// ttlValue rounds up: nothing may go before its time.
func ttlValue(t time.Time) types.AttributeValue {
	return numberValue(t.Add(time.Second - time.Nanosecond).Unix())
}

// attributes is a record's item while it is written or read. An empty value is no
// attribute.
type attributes struct {
	item    item
	reading bool
	errs    []error
}

// fields names every attribute of a record, as its JSON does.
func (a *attributes) fields(r *booking.Record) {
	number(a, "v", &r.Version)
	text(a, PartitionKey, &r.CandidateHash)
	text(a, SortKey, &r.Attempt)
	text(a, "epoch", &r.Epoch)
	text(a, "code", &r.Code)
	text(a, "level", &r.Level)
	number(a, "amount", &r.Amount)
	text(a, "currency", &r.Currency)
	text(a, paymentID, &r.PaymentID)
	text(a, "payment_url", &r.PaymentURL)
	text(a, "signature", &r.Signature)
	text(a, "invoice", &r.Invoice)
	text(a, "request_id", &r.RequestID)
	text(a, "state", &r.State)
	a.instant("admitted_at", &r.AdmittedAt)
	a.instant("deadline", &r.Deadline)
	a.instant("execute_at", &r.ExecuteAt)
	a.instant("paid_at", &r.PaidAt)
	text(a, "transaction", &r.Transaction)
	text(a, "reason", &r.Reason)
	a.instant("asked_at", &r.AskedAt)
	text(a, "mail", &r.Mail)
	text(a, "mail_claim", &r.MailClaim)
	a.instant("mail_claim_until", &r.MailClaimUntil)
	a.ttl(&r.TTL)
}

func text[T ~string](a *attributes, name string, v *T) {
	switch {
	case a.reading:
		*v = T(a.text(name))
	case *v != "":
		a.item[name] = textValue(string(*v))
	}
}

func number[T ~int | ~int64](a *attributes, name string, v *T) {
	if a.reading {
		*v = T(a.number(name))
		return
	}
	a.item[name] = numberValue(int64(*v))
}

func (a *attributes) instant(name string, v *time.Time) {
	if !a.reading {
		if !v.IsZero() {
			a.item[name] = instantValue(*v)
		}
		return
	}
	said := a.text(name)
	if said == "" {
		return
	}
	at, err := time.Parse(time.RFC3339Nano, said)
	if err != nil {
		a.errs = append(a.errs, fmt.Errorf("attribute %s: %w", name, err))
		return
	}
	*v = at.UTC()
}

func (a *attributes) ttl(v *time.Time) {
	switch {
	case !a.reading && !v.IsZero():
		a.item[TTLAttribute] = ttlValue(*v)
	case a.reading && a.item[TTLAttribute] != nil:
		*v = time.Unix(a.number(TTLAttribute), 0).UTC()
	}
}

func (a *attributes) text(name string) string {
	switch v := a.item[name].(type) {
	case nil:
	case *types.AttributeValueMemberS:
		return v.Value
	default:
		a.errs = append(a.errs, fmt.Errorf("attribute %s is not a text", name))
	}
	return ""
}

func (a *attributes) number(name string) int64 {
	v, ok := a.item[name].(*types.AttributeValueMemberN)
	if !ok {
		a.errs = append(a.errs, fmt.Errorf("attribute %s is not a number", name))
		return 0
	}
	n, err := strconv.ParseInt(v.Value, 10, 64)
	if err != nil {
		a.errs = append(a.errs, fmt.Errorf("attribute %s is not a whole number", name))
	}
	return n
}

// encode makes a record's item.
func encode(rec booking.Record) item {
	a := attributes{item: item{}}
	a.fields(&rec)
	return a.item
}

// decode reads a record's item.
func decode(it item) (booking.Record, error) {
	var rec booking.Record
	a := attributes{item: it, reading: true}
	a.fields(&rec)
	err := errors.Join(a.errs...)
	if err == nil {
		err = rec.Validate()
	}
	if err != nil {
		return booking.Record{}, fmt.Errorf("record %s: %w: %w", name(keyOf(it)), booking.ErrUnreadable, err)
	}
	return rec, nil
}

// recordOrKey is decode for a scan, which names what it could not read.
func recordOrKey(it item) (booking.Record, error) {
	rec, err := decode(it)
	if err != nil {
		rec.CandidateHash, rec.Attempt = keyOf(it)
	}
	return rec, err
}

// keyOf is an item's key, which a table's item always has.
func keyOf(it item) (partition, sort string) {
	a := attributes{item: it}
	return a.text(PartitionKey), a.text(SortKey)
}

// name names a record in errors, which end up in logs: the attempt is unique by
// itself, and the whole hash would give away a short code.
func name(hash, attempt string) string { return fmt.Sprintf("%.8s/%s", hash, attempt) }

// otherKind begins the partition key of everything that is not a record.
const otherKind = "#"

// RecordFromImage reads the record in a stream's image, old or new, as it is, also
// one whose TTL is over. The error is ErrNotRecord for an item of another kind, and
// wraps booking.ErrUnreadable for what cannot be read; it never panics.
func RecordFromImage(image map[string]events.DynamoDBAttributeValue) (booking.Record, error) {
	it := make(item, len(image))
	for name, v := range image {
		// The event's own accessors panic when a value is of another type.
		switch v.DataType() {
		case events.DataTypeString:
			it[name] = textValue(v.String())
		case events.DataTypeNumber:
			it[name] = &types.AttributeValueMemberN{Value: v.Number()}
		default: // of no attribute of a record
			it[name] = &types.UnknownUnionMember{Tag: name}
		}
	}
	if partition, _ := keyOf(it); strings.HasPrefix(partition, otherKind) {
		return booking.Record{}, ErrNotRecord
	}
	return decode(it)
}
