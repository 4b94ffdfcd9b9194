package functions_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"maps"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-lambda-go/events"
	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"holdfast/internal/app/functions"
	"holdfast/internal/backoffice"
	"holdfast/internal/booking"
	"holdfast/internal/expiry"
	"holdfast/internal/store/dynamo"
	"holdfast/internal/store/storetest"
	"holdfast/internal/testenv"
)

func TestMain(m *testing.M) {
	testenv.BeProgram(programs)
	goleak.VerifyTestMain(m)
}

var now = time.Date(2026, 12, 1, 4, 30, 0, 0, time.UTC)

// tools make a function whose log and metric can be read.
func tools(log, out *bytes.Buffer) functions.Tools {
	return functions.Tools{
		Decode: decode, Log: slog.New(slog.NewTextHandler(log, nil)), Out: out,
		Now: func() time.Time { return now },
	}
}

func decode(image map[string]events.DynamoDBAttributeValue) (booking.Record, error) {
	rec, err := dynamo.RecordFromImage(image)
	if errors.Is(err, dynamo.ErrNotRecord) {
		return rec, functions.ErrOtherKind
	}
	return rec, err
}

// office is a back office that is told what to answer, by attempt.
type office struct {
	rows   map[string]booking.Record
	answer map[string]func() (backoffice.Outcome, error)
}

func newOffice() *office {
	return &office{rows: map[string]booking.Record{}, answer: map[string]func() (backoffice.Outcome, error){}}
}

func (o *office) Put(ctx context.Context, rec booking.Record) (backoffice.Outcome, error) {
	if _, ok := ctx.Deadline(); !ok {
		return "", errors.New("no deadline")
	}
	if answer := o.answer[rec.Attempt]; answer != nil {
		return answer()
	}
	o.rows[rec.Attempt] = rec
	return backoffice.Inserted, nil
}

// text and number are attribute values of an image.
func text(s string) events.DynamoDBAttributeValue { return events.NewStringAttribute(s) }
func number(n int64) events.DynamoDBAttributeValue {
	return events.NewNumberAttribute(strconv.FormatInt(n, 10))
}

func imageOf(rec booking.Record) map[string]events.DynamoDBAttributeValue {
	image := map[string]events.DynamoDBAttributeValue{
		"v": number(int64(rec.Version)), "candidate_hash": text(rec.CandidateHash), "attempt": text(rec.Attempt),
		"epoch": text(rec.Epoch), "code": text(rec.Code), "level": text(rec.Level), "amount": number(int64(rec.Amount)),
		"currency": text(rec.Currency), "payment_id": text(rec.PaymentID), "invoice": text(rec.Invoice), "state": text(string(rec.State)),
		"admitted_at": text(rec.AdmittedAt.Format(time.RFC3339Nano)), "deadline": text(rec.Deadline.Format(time.RFC3339Nano)),
	}
	if rec.State == booking.StatePaid {
		image["paid_at"], image["transaction"] = text(rec.PaidAt.Format(time.RFC3339Nano)), text(rec.Transaction)
	}
	if !rec.TTL.IsZero() {
		image["ttl"] = number(rec.TTL.Unix())
	}
	return image
}

func paid() booking.Record {
	rec := storetest.Held()
	rec.PaymentURL, rec.Signature = "", ""
	rec.State, rec.Transaction, rec.PaidAt, rec.TTL = booking.StatePaid, "TX"+rec.Attempt, rec.AdmittedAt.Add(time.Minute), time.Time{}
	return rec
}

// written is a change that left the record behind.
func written(n int, rec booking.Record) events.DynamoDBEventRecord {
	return events.DynamoDBEventRecord{
		EventID: "e" + strconv.Itoa(n), EventName: "MODIFY",
		Change: events.DynamoDBStreamRecord{SequenceNumber: strconv.Itoa(n), NewImage: imageOf(rec)},
	}
}

// expired is the TTL service's deletion of the record.
func expired(n int, rec booking.Record) events.DynamoDBEventRecord {
	return events.DynamoDBEventRecord{
		EventID: "e" + strconv.Itoa(n), EventName: "REMOVE",
		UserIdentity: &events.DynamoDBUserIdentity{Type: "Service", PrincipalID: "dynamodb.amazonaws.com"},
		Change:       events.DynamoDBStreamRecord{SequenceNumber: strconv.Itoa(n), OldImage: imageOf(rec)},
	}
}

func batch(changes ...events.DynamoDBEventRecord) events.DynamoDBEvent {
	return events.DynamoDBEvent{Records: changes}
}

func reported(r events.DynamoDBEventResponse) (ids []string) {
	for _, f := range r.BatchItemFailures {
		ids = append(ids, f.ItemIdentifier)
	}
	return ids
}

func TestHandler_FailureEndsItsBatchInTheWayThatLeavesItAlone(t *testing.T) {
	t.Parallel()
	recs := []booking.Record{paid(), paid(), paid()}
	boom := errors.New("no answer")
	for name, c := range map[string]struct {
		fail     int // which of the batch
		size     int
		reported []string
		err      error
		done     int
	}{
		"none":             {fail: -1, size: 3, done: 3},
		"empty batch":      {fail: -1, size: 0, done: 0},
		"first of several": {fail: 0, size: 3, err: boom, done: 0},
		"in the middle":    {fail: 1, size: 3, reported: []string{"101"}, done: 1},
		"last":             {fail: 2, size: 3, reported: []string{"102"}, done: 2},
		"alone":            {fail: 0, size: 1, reported: []string{"100"}, done: 0},
	} {
		var log, out bytes.Buffer
		o, in := newOffice(), batch()
		for i, rec := range recs[:c.size] {
			in.Records = append(in.Records, written(100+i, rec))
			if i == c.fail {
				o.answer[rec.Attempt] = func() (backoffice.Outcome, error) { return "", boom }
			}
		}
		got, err := functions.NewSync(o, tools(&log, &out)).Handle(t.Context(), in)
		if !errors.Is(err, c.err) || c.err == nil && err != nil {
			t.Errorf("%s: got %v, want %v", name, err, c.err)
		}
		if diff := cmp.Diff(c.reported, reported(got)); diff != "" {
			t.Errorf("%s: reported (-want +got):\n%s", name, diff)
		}
		if len(o.rows) != c.done {
			t.Errorf("%s: got %d changes worked off, want %d", name, len(o.rows), c.done)
		}
	}
}

func TestHandler_PanicIsTheChangesFailure(t *testing.T) {
	t.Parallel()
	var log, out bytes.Buffer
	o, good, bad := newOffice(), paid(), paid()
	o.answer[bad.Attempt] = func() (backoffice.Outcome, error) { panic("a fault") }
	got, err := functions.NewSync(o, tools(&log, &out)).Handle(t.Context(), batch(written(1, good), written(2, bad)))
	if diff := cmp.Diff([]string{"2"}, reported(got)); diff != "" || err != nil || len(o.rows) != 1 {
		t.Errorf("panic in the second: got %v, %v, %d done, want the second reported and one done", reported(got), err, len(o.rows))
	}
	if !strings.Contains(log.String(), "a fault") || !strings.Contains(log.String(), "functions_test.go") {
		t.Errorf("log: got %q, want the panic and where it was", log.String())
	}
}

func TestHandler_CloseIsTheCallersAndNeedsNothing(t *testing.T) {
	t.Parallel()
	var log, out bytes.Buffer
	if err := functions.NewSync(newOffice(), tools(&log, &out)).Close(t.Context()); err != nil {
		t.Errorf("Close: got %v, want nil", err)
	}
}

func TestSync_TakesWhatIsPaidAndNothingElse(t *testing.T) {
	t.Parallel()
	var log, out bytes.Buffer
	o, rec := newOffice(), paid()
	held, released := storetest.Held(), storetest.Held()
	released.State = booking.StateReleased
	removed := expired(5, rec) // a paid record's deletion leaves its row
	refund := written(6, rec)
	refund.Change.NewImage = map[string]events.DynamoDBAttributeValue{
		"candidate_hash": text("#refund"), "attempt": text("refund#TX1"), "body": text("{}"), "state": text("due"),
	}
	tocome := written(8, storetest.Held()) // by a later program: not paid, so it needs no reading
	tocome.Change.NewImage["v"] = number(99)
	inserted := written(7, paid())
	inserted.EventName = "INSERT" // the payer was faster than the worker
	got, err := functions.NewSync(o, tools(&log, &out)).Handle(t.Context(),
		batch(written(1, held), written(2, released), written(3, rec), removed, refund, inserted, tocome))
	if err != nil || reported(got) != nil {
		t.Errorf("Handle: got %v, %v, want all done; log:\n%s", reported(got), err, log.String())
	}
	if _, ok := o.rows[rec.Attempt]; !ok || len(o.rows) != 2 {
		t.Errorf("back office: got %d rows, with the paid one %v, want the two paid ones", len(o.rows), ok)
	}
	if diff := cmp.Diff(map[string]int{"inserted": 2, "ignored": 5}, counts(t, &out, "sync")); diff != "" {
		t.Errorf("metric (-want +got):\n%s", diff)
	}
}

func TestSync_UnreadableImageIsReportedAndCounted(t *testing.T) {
	t.Parallel()
	for name, spoil := range map[string]func(image map[string]events.DynamoDBAttributeValue){
		"another version":   func(i map[string]events.DynamoDBAttributeValue) { i["v"] = number(99) },
		"amount is a text":  func(i map[string]events.DynamoDBAttributeValue) { i["amount"] = text("1500") },
		"state is a number": func(i map[string]events.DynamoDBAttributeValue) { i["state"] = number(1) },
		"state is a map":    func(i map[string]events.DynamoDBAttributeValue) { i["state"] = events.NewMapAttribute(nil) },
		"state is missing":  func(i map[string]events.DynamoDBAttributeValue) { delete(i, "state") },
		"no transaction":    func(i map[string]events.DynamoDBAttributeValue) { delete(i, "transaction") },
		"code is a list":    func(i map[string]events.DynamoDBAttributeValue) { i["code"] = events.NewListAttribute(nil) },
	} {
		var log, out bytes.Buffer
		o, bad := newOffice(), written(9, paid())
		o.answer[bad.Change.NewImage["attempt"].String()] = func() (backoffice.Outcome, error) { return "", backoffice.ErrNotPaid }
		spoil(bad.Change.NewImage)
		got, err := functions.NewSync(o, tools(&log, &out)).Handle(t.Context(), batch(written(8, paid()), bad))
		if diff := cmp.Diff([]string{"9"}, reported(got)); diff != "" || err != nil || len(o.rows) != 1 {
			t.Errorf("%s: got %v, %v, %d done, want it reported alone; log:\n%s", name, reported(got), err, len(o.rows), log.String())
		}
		if got := counts(t, &out, "sync"); got["unreadable"] != 1 || got["inserted"] != 1 {
			t.Errorf("%s: metric: got %v, want one unreadable and one inserted", name, got)
		}
	}
}

func TestSync_AnomaliesAreLoudAndNotOverwritten(t *testing.T) {
	t.Parallel()
	var log, out bytes.Buffer
	o, taken, older := newOffice(), paid(), paid()
	o.answer[taken.Attempt] = func() (backoffice.Outcome, error) { return "", backoffice.ErrTransactionTaken }
	o.answer[older.Attempt] = func() (backoffice.Outcome, error) { return backoffice.Older, nil }
	got, err := functions.NewSync(o, tools(&log, &out)).Handle(t.Context(), batch(written(1, older), written(2, taken)))
	if diff := cmp.Diff([]string{"2"}, reported(got)); diff != "" || err != nil {
		t.Errorf("transaction of another booking: got %v, %v, want it reported, so that its destination keeps it", reported(got), err)
	}
	if diff := cmp.Diff(map[string]int{"older": 1, "anomaly": 1}, counts(t, &out, "sync")); diff != "" {
		t.Errorf("metric (-want +got):\n%s", diff)
	}
	for _, want := range []string{"two paid attempts", "level=WARN", "level=ERROR", older.Attempt} {
		if !strings.Contains(log.String(), want) {
			t.Errorf("log: got %q, want %q in it", log.String(), want)
		}
	}
	for _, code := range []string{taken.Code, older.Code} {
		if strings.Contains(log.String(), code) {
			t.Errorf("log: got the candidate code %s in it, want none", code)
		}
	}
}

// table is a booking store of one function's test.
type table struct{ back []booking.Record }

func (s *table) PutBack(_ context.Context, rec booking.Record) (bool, error) {
	s.back = append(s.back, rec)
	return true, nil
}

func (s *table) MarkPaid(_ context.Context, p booking.Paid) (booking.Record, error) {
	s.back = append(s.back, p.Record)
	return p.Record, nil
}

func TestExpiry_OnlyTheTTLServicesDeletionsMatter(t *testing.T) {
	t.Parallel()
	held := storetest.Held()
	with := func(f func(c *events.DynamoDBEventRecord)) events.DynamoDBEventRecord {
		c := expired(1, held)
		f(&c)
		return c
	}
	for name, c := range map[string]events.DynamoDBEventRecord{
		"by a person":           with(func(c *events.DynamoDBEventRecord) { c.UserIdentity = nil }),
		"by another service":    with(func(c *events.DynamoDBEventRecord) { c.UserIdentity.PrincipalID = "replication.example" }),
		"by a user of the name": with(func(c *events.DynamoDBEventRecord) { c.UserIdentity.Type = "User" }),
		"no deletion":           with(func(c *events.DynamoDBEventRecord) { c.EventName = "MODIFY" }),
		"another kind": with(func(c *events.DynamoDBEventRecord) {
			maps.Copy(c.Change.OldImage, map[string]events.DynamoDBAttributeValue{"candidate_hash": text("#refund")})
		}),
	} {
		var log, out bytes.Buffer
		tl, store := tools(&log, &out), &table{}
		got, err := functions.NewExpiry(expiry.New(store, tl.Log), tl).Handle(t.Context(), batch(c))
		if err != nil || reported(got) != nil || len(store.back) != 0 || log.Len() != 0 {
			t.Errorf("%s: got %v, %v, %d put back, log %q; want nothing", name, reported(got), err, len(store.back), log.String())
		}
		if diff := cmp.Diff(map[string]int{"ignored": 1}, counts(t, &out, "expiry")); diff != "" {
			t.Errorf("%s: metric (-want +got):\n%s", name, diff)
		}
	}
}

func TestExpiry_ReleasedGoesAndUnreadableIsReported(t *testing.T) {
	t.Parallel()
	var log, out bytes.Buffer
	tl, store := tools(&log, &out), &table{}
	released := storetest.Held()
	released.State = booking.StateReleased
	bad := expired(3, storetest.Held())
	bad.Change.OldImage["v"] = number(99)
	got, err := functions.NewExpiry(expiry.New(store, tl.Log), tl).Handle(t.Context(),
		batch(expired(1, released), expired(2, paid()), bad))
	if diff := cmp.Diff([]string{"3"}, reported(got)); diff != "" || err != nil {
		t.Errorf("Handle: got %v, %v, want the unreadable one reported", reported(got), err)
	}
	if len(store.back) != 1 || store.back[0].State != booking.StatePaid {
		t.Errorf("put back: got %+v, want the paid one", store.back)
	}
	if diff := cmp.Diff(map[string]int{"ended": 1, "restored_paid": 1, "unreadable": 1}, counts(t, &out, "expiry")); diff != "" {
		t.Errorf("metric (-want +got):\n%s", diff)
	}
}

// counts reads the metric's lines as CloudWatch does and adds them up by outcome.
func counts(t *testing.T, out *bytes.Buffer, function string) map[string]int {
	t.Helper()
	all := map[string]int{}
	for line := range strings.Lines(out.String()) {
		var document map[string]json.RawMessage
		if err := json.Unmarshal([]byte(line), &document); err != nil {
			t.Fatalf("line %q: got %v, want one JSON object a line", line, err)
		}
		raw, ok := document["_aws"]
		if !ok {
			continue // a line of the log
		}
		var meta struct {
			Timestamp         int64
			CloudWatchMetrics []struct {
				Namespace  string
				Dimensions [][]string
				Metrics    []struct{ Name, Unit string }
			}
		}
		if err := json.Unmarshal(raw, &meta); err != nil {
			t.Fatalf("metadata %s: got %v, want it readable", raw, err)
		}
		if meta.Timestamp == 0 || len(meta.CloudWatchMetrics) != 1 || meta.CloudWatchMetrics[0].Namespace != functions.Namespace ||
			len(meta.CloudWatchMetrics[0].Metrics) != 1 || meta.CloudWatchMetrics[0].Metrics[0] != (struct{ Name, Unit string }{functions.MetricName, "Count"}) {
			t.Fatalf("metadata: got %s, want the one metric", raw)
		}
		// What the metadata names must be at the root.
		member := func(name string, into any) {
			if err := json.Unmarshal(document[name], into); err != nil {
				t.Fatalf("member %s of %s: got %v, want it there", name, line, err)
			}
		}
		var n int
		member(meta.CloudWatchMetrics[0].Metrics[0].Name, &n)
		values := map[string]string{}
		for _, d := range meta.CloudWatchMetrics[0].Dimensions[0] {
			var v string
			member(d, &v)
			values[d] = v
		}
		if values["function"] != function {
			t.Errorf("function of the metric: got %q, want %q", values["function"], function)
		}
		all[values["outcome"]] += n
	}
	return all
}
