package dynamo_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws/retry"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"
	"github.com/aws/smithy-go"
	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"holdfast/internal/booking"
	"holdfast/internal/store/dynamo"
	"holdfast/internal/store/storetest"
)

// operation is what a request asks for.
func operation(r *http.Request) string {
	_, op, _ := strings.Cut(r.Header.Get("X-Amz-Target"), ".")
	return op
}

// sdkTries is how often the SDK makes a call before it gives up.
const sdkTries = retry.DefaultMaxAttempts

func isWrite(op string) bool { return op == "PutItem" || op == "UpdateItem" }

// watched hands each request to see, and what comes back to answer; either may be
// nil.
type watched struct {
	next   http.RoundTripper
	see    func(op string, body []byte)
	answer func(op string, res *http.Response) (*http.Response, error)
}

func (w *watched) RoundTrip(r *http.Request) (*http.Response, error) {
	op := operation(r)
	if w.see != nil {
		body, err := io.ReadAll(r.Body)
		_ = r.Body.Close()
		if err != nil {
			return nil, err
		}
		w.see(op, body)
		r = r.Clone(r.Context())
		r.Body = io.NopCloser(bytes.NewReader(body))
	}
	res, err := w.next.RoundTrip(r)
	if err != nil || w.answer == nil {
		return res, err
	}
	return w.answer(op, res)
}

// canned answers in DynamoDB's place.
type canned func(op string) (status int, body string)

func (c canned) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.Body != nil {
		_ = r.Body.Close()
	}
	status, body := c(operation(r))
	return &http.Response{
		StatusCode: status, Header: http.Header{"Content-Type": {"application/x-amz-json-1.0"}},
		Body: io.NopCloser(strings.NewReader(body)), Request: r,
	}, nil
}

// cannedStore is a store that nobody is behind.
func cannedStore(answers canned) *dynamo.Store {
	return dynamo.New(newClient("http://dynamodb.test", answers), "bookings")
}

// subject is what one case of the tests below works on.
type subject struct {
	rec    booking.Record
	refund booking.Refund
	note   booking.Notification
}

func newSubject() subject {
	rec := storetest.Held()
	return subject{
		rec: rec,
		refund: booking.NewRefund(rec, booking.Charge{Transaction: "TX" + rec.Attempt, PaymentID: rec.PaymentID, Amount: rec.Amount, Currency: rec.Currency},
			booking.MoneyLate, booking.Decision{Reason: "full", At: rec.Deadline}),
		note: booking.Notification{
			Version: booking.NotificationVersion, ID: "message-" + rec.Attempt, ReceivedAt: rec.Deadline, SentAt: rec.AdmittedAt,
			Transaction: "TX" + rec.Attempt, Amount: rec.Amount, Currency: rec.Currency,
		},
	}
}

// writes is every write of the store, by its name, and the writes that lead to it.
func writes(ctx context.Context) map[string]struct {
	after []string
	call  func(s *dynamo.Store, x subject) error
} {
	type write = struct {
		after []string
		call  func(s *dynamo.Store, x subject) error
	}
	refused := errors.New("it was refused")
	accept := func(ok bool, err error) error {
		if err == nil && !ok {
			return refused
		}
		return err
	}
	pay := func(s *dynamo.Store, x subject) error {
		_, err := s.MarkPaid(ctx, booking.Paid{Record: x.rec, Transaction: "TX1", PaidAt: x.rec.Deadline})
		return err
	}
	at := storetest.Held().Deadline
	return map[string]write{
		"PutHeld": {nil, func(s *dynamo.Store, x subject) error {
			_, _, err := s.PutHeld(ctx, x.rec)
			return err
		}},
		"PutBack": {nil, func(s *dynamo.Store, x subject) error {
			_, err := s.PutBack(ctx, x.rec)
			return err
		}},
		"MarkPaid":         {[]string{"PutHeld"}, pay},
		"MarkPaidOfNone":   {nil, pay},
		"MarkPaidReleased": {[]string{"PutHeld", "Release"}, pay},
		"Announce": {[]string{"PutHeld"}, func(s *dynamo.Store, x subject) error {
			_, err := s.Announce(ctx, x.rec, x.rec.AdmittedAt)
			return err
		}},
		"AnnounceOfNone": {nil, func(s *dynamo.Store, x subject) error {
			_, err := s.Announce(ctx, x.rec, x.rec.AdmittedAt)
			return err
		}},
		"Release": {[]string{"PutHeld"}, func(s *dynamo.Store, x subject) error {
			return s.Release(ctx, x.rec, "lapsed", x.rec.Deadline)
		}},
		"Asked": {[]string{"PutHeld", "Release"}, func(s *dynamo.Store, x subject) error {
			return s.Asked(ctx, x.rec, x.rec.Deadline)
		}},
		"Extend": {[]string{"PutHeld"}, func(s *dynamo.Store, x subject) error {
			return s.Extend(ctx, x.rec.CandidateHash, x.rec.Attempt, x.rec.Deadline.Add(time.Minute))
		}},
		"ClaimMail": {[]string{"MarkPaidOfNone"}, func(s *dynamo.Store, x subject) error {
			return accept(s.ClaimMail(ctx, x.rec.CandidateHash, x.rec.Attempt, "a", at, at.Add(time.Minute)))
		}},
		"MailSent": {[]string{"MarkPaidOfNone", "ClaimMail"}, func(s *dynamo.Store, x subject) error {
			return s.MailSent(ctx, x.rec.CandidateHash, x.rec.Attempt, "a")
		}},
		"PutRefund": {nil, func(s *dynamo.Store, x subject) error {
			_, _, err := s.PutRefund(ctx, x.refund)
			return err
		}},
		"ClaimRefund": {[]string{"PutRefund"}, func(s *dynamo.Store, x subject) error {
			_, ok, err := s.ClaimRefund(ctx, x.refund.Transaction, "a", at, at.Add(time.Minute))
			return accept(ok, err)
		}},
		"RefundSent": {[]string{"PutRefund", "ClaimRefund"}, func(s *dynamo.Store, x subject) error {
			return s.RefundSent(ctx, x.refund.Transaction, "a", at.Add(time.Second))
		}},
		"RefundDone": {[]string{"PutRefund", "ClaimRefund", "RefundSent"}, func(s *dynamo.Store, x subject) error {
			return s.RefundDone(ctx, x.refund.Transaction, "gateway", "RF1", "", at.Add(time.Second))
		}},
		"RefundTrouble": {[]string{"PutRefund", "ClaimRefund"}, func(s *dynamo.Store, x subject) error {
			return s.RefundTrouble(ctx, x.refund.Transaction, "a", "2073 late")
		}},
		"PutNotification": {nil, func(s *dynamo.Store, x subject) error {
			_, err := s.PutNotification(ctx, x.note)
			return err
		}},
		"CloseNotification": {[]string{"PutNotification"}, func(s *dynamo.Store, x subject) error {
			return s.CloseNotification(ctx, x.note.ID, booking.NotifiedPaid, at)
		}},
		"Ping": {nil, func(s *dynamo.Store, _ subject) error { return s.Ping(ctx) }},
	}
}

// end is what the store holds of the subject.
func end(t *testing.T, s *dynamo.Store, x subject) []any {
	t.Helper()
	recs, err := s.RecordsOf(t.Context(), x.rec.CandidateHash)
	if err != nil {
		t.Fatalf("RecordsOf: %v", err)
	}
	refunds, err := s.RefundsOf(t.Context(), x.rec.CandidateHash, x.rec.Attempt)
	if err != nil {
		t.Fatalf("RefundsOf: %v", err)
	}
	note, err := s.Notification(t.Context(), x.note.ID)
	if err != nil && !errors.Is(err, booking.ErrNotFound) {
		t.Fatalf("Notification: %v", err)
	}
	return []any{recs, refunds, note}
}

// The write is made, its reply is lost, and the SDK repeats it by itself: the caller
// hears that it went well, and the end is that of an undisturbed call. So it is when
// the reply to each of the SDK's tries is lost, and the caller repeats.
func TestWrites_LostRepliesChangeNothing(t *testing.T) {
	t.Parallel()
	e := newEmulator(t)
	calm := e.open(t)
	var mu sync.Mutex
	lose, lost, anyReply := 0, 0, false
	broken := &watched{next: e.way, answer: func(op string, res *http.Response) (*http.Response, error) {
		mu.Lock()
		defer mu.Unlock()
		if !isWrite(op) || lose == 0 || !anyReply && res.StatusCode != http.StatusOK {
			return res, nil
		}
		lose--
		lost++
		_ = res.Body.Close()
		return nil, errors.New("read: connection reset by peer")
	}}
	s := dynamo.New(newClient(e.endpoint, broken), e.table(t))
	all := writes(t.Context())
	for name, w := range all {
		for _, replies := range []int{1, sdkTries} {
			x := newSubject()
			for _, before := range w.after {
				for _, s := range []*dynamo.Store{s, calm.Store} {
					if err := all[before].call(s, x); err != nil {
						t.Fatalf("%s before %s: %v", before, name, err)
					}
				}
			}
			if err := w.call(calm.Store, x); err != nil {
				t.Fatalf("%s undisturbed: %v", name, err)
			}
			mu.Lock()
			lose, lost, anyReply = replies, 0, replies > 1
			mu.Unlock()
			err := w.call(s, x)
			if wantErr := replies == sdkTries; (err != nil) != wantErr {
				t.Errorf("%s, %d replies lost: got error %v, want one: %t", name, replies, err, wantErr)
			}
			if lost != replies {
				t.Errorf("%s: lost %d replies, want %d", name, lost, replies)
			}
			if err != nil {
				if err := w.call(s, x); err != nil {
					t.Errorf("%s repeated by the caller: got %v, want none", name, err)
				}
			}
			if diff := cmp.Diff(end(t, calm.Store, x), end(t, s, x)); diff != "" {
				t.Errorf("%s, %d replies lost: the end (-undisturbed +got):\n%s", name, replies, diff)
			}
		}
	}
}

// Of a put whose reply was lost the SDK's repeat finds an item there: its own.
func TestPuts_KnowTheirOwnItemWhenTheReplyWasLost(t *testing.T) {
	t.Parallel()
	e, ctx := newEmulator(t), t.Context()
	lose := false
	s := dynamo.New(newClient(e.endpoint, &watched{next: e.way, answer: func(op string, res *http.Response) (*http.Response, error) {
		if op != "PutItem" || !lose {
			return res, nil
		}
		lose = false
		_ = res.Body.Close()
		return nil, errors.New("read: connection reset by peer")
	}}), e.table(t))
	x, back := newSubject(), newSubject()
	for name, put := range map[string]func() (bool, error){
		"PutHeld":         func() (bool, error) { _, put, err := s.PutHeld(ctx, x.rec); return put, err },
		"PutBack":         func() (bool, error) { return s.PutBack(ctx, back.rec) },
		"PutRefund":       func() (bool, error) { _, put, err := s.PutRefund(ctx, x.refund); return put, err },
		"PutNotification": func() (bool, error) { return s.PutNotification(ctx, x.note) },
	} {
		for i, want := range []bool{true, false} { // another call's item is another's
			lose = true
			if got, err := put(); err != nil || got != want {
				t.Errorf("%s, call %d: got %t, %v, want %t", name, i+1, got, err, want)
			}
			if lose {
				t.Errorf("%s, call %d: no reply was lost", name, i+1)
			}
		}
	}
}

// An item that a later program has written is not touched, whatever the call and
// wherever the record stands.
func TestWrites_TouchNothingOfALaterProgram(t *testing.T) {
	t.Parallel()
	s := newEmulator(t).open(t)
	all := writes(t.Context())
	for name, w := range all {
		for _, stands := range [][]string{{"PutHeld"}, {"PutHeld", "Release"}, {"MarkPaidOfNone", "ClaimMail"}} {
			if strings.Contains(name, "Refund") || strings.Contains(name, "Notification") || name == "Ping" {
				continue // of no record
			}
			x := newSubject()
			for _, before := range stands {
				if err := all[before].call(s.Store, x); err != nil {
					t.Fatalf("%s before %s: %v", before, name, err)
				}
			}
			s.Corrupt(t, x.rec.CandidateHash, x.rec.Attempt)
			want := s.item(t, x.rec.Attempt)
			if err := w.call(s.Store, x); !errors.Is(err, booking.ErrUnreadable) {
				t.Errorf("%s after %v: got %v, want ErrUnreadable", name, stands, err)
			}
			if diff := cmp.Diff(want, s.item(t, x.rec.Attempt), values()); diff != "" {
				t.Errorf("%s after %v: the item (-want +got):\n%s", name, stands, diff)
			}
		}
	}
}

func values() cmp.Option {
	return cmpopts.IgnoreUnexported(types.AttributeValueMemberS{}, types.AttributeValueMemberN{})
}

// A mail that went out is not sent again because its record is paid once more.
func TestMarkPaid_MailThatWasSentStaysSent(t *testing.T) {
	t.Parallel()
	s, x, ctx := newEmulator(t).open(t), newSubject(), t.Context()
	for _, name := range []string{"PutHeld", "Release"} {
		if err := writes(ctx)[name].call(s.Store, x); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
	}
	s.spoil(t, x.rec.Attempt, "mail", text("sent"))
	got, err := s.MarkPaid(ctx, booking.Paid{Record: x.rec, Transaction: "TX1", PaidAt: x.rec.Deadline})
	if err != nil || got.Mail != booking.MailSent || got.State != booking.StatePaid {
		t.Errorf("MarkPaid: got %s with mail %q, %v, want PAID with mail sent", got.State, got.Mail, err)
	}
}

// Every write has a condition and asks for the item that did not meet it; whatever
// is read is read as it is now, except through the index by payment.
func TestCalls_EveryWriteIsConditionalEveryReadConsistent(t *testing.T) {
	t.Parallel()
	e := newEmulator(t)
	seen := map[string]int{}
	look := func(op string, body []byte) {
		var in struct {
			Key, Item                                                           map[string]map[string]any
			ConditionExpression, ReturnValuesOnConditionCheckFailure, IndexName string
			ConsistentRead                                                      bool
		}
		if err := json.Unmarshal(body, &in); err != nil {
			t.Errorf("%s: %v", op, err)
		}
		seen[op]++
		switch op {
		case "PutItem", "UpdateItem":
			if in.Key[dynamo.PartitionKey]["S"] != "#probe" && (in.ConditionExpression == "" || in.ReturnValuesOnConditionCheckFailure != "ALL_OLD") {
				t.Errorf("%s: got condition %q and %q, want one, and the old item: %s", op, in.ConditionExpression, in.ReturnValuesOnConditionCheckFailure, body)
			}
			if refund := strings.HasPrefix(fmt.Sprint(in.Item[dynamo.PartitionKey]["S"]), "#"); refund && in.Item["payment_id"] != nil {
				t.Errorf("%s: got an item beside the records in the index by payment: %s", op, body)
			}
		case "GetItem", "Scan", "Query":
			if in.ConsistentRead == (in.IndexName == dynamo.PaymentIndex) {
				t.Errorf("%s: got consistent=%t by index %q", op, in.ConsistentRead, in.IndexName)
			}
		default:
			t.Errorf("call %s: want single writes and reads only", op)
		}
	}
	s := dynamo.New(newClient(e.endpoint, &watched{next: e.way, see: look}), e.table(t))
	all := writes(t.Context())
	var last subject
	for name, w := range all {
		last = newSubject()
		for _, before := range append(w.after, name) {
			if err := all[before].call(s, last); err != nil {
				t.Fatalf("%s before %s: %v", before, name, err)
			}
		}
	}
	end(t, s, last)
	if _, err := s.RecordByPayment(t.Context(), last.rec.PaymentID); err != nil && !errors.Is(err, booking.ErrNotFound) {
		t.Errorf("RecordByPayment: %v", err)
	}
	if _, err := s.Empty(t.Context()); err != nil {
		t.Errorf("Empty: %v", err)
	}
	for _, err := range s.Records(t.Context()) {
		if err != nil {
			t.Errorf("Records: %v", err)
		}
	}
	for _, op := range []string{"PutItem", "UpdateItem", "GetItem", "Query", "Scan"} {
		if seen[op] == 0 {
			t.Errorf("calls: got no %s, want this test to have seen some", op)
		}
	}
}

func answer(code string) string {
	return `{"__type":"com.amazonaws.dynamodb.v20120810#` + code + `","message":"no"}`
}

// What the service says is told with what to do about it, by every kind of call.
func TestErrors_SayWhatToDo(t *testing.T) {
	t.Parallel()
	rec, ctx := storetest.Held(), t.Context()
	for code, want := range map[string]string{
		"ProvisionedThroughputExceededException": "warm throughput",
		"ThrottlingException":                    "warm throughput",
		"ResourceNotFoundException":              "create it",
		"AccessDeniedException":                  "role must allow",
		"UnrecognizedClientException":            "credentials are not accepted",
	} {
		s := cannedStore(func(string) (int, string) { return http.StatusBadRequest, answer(code) })
		for call, err := range map[string]error{
			"PutHeld": func() error { _, _, err := s.PutHeld(ctx, rec); return err }(),
			"Release": s.Release(ctx, rec, "lapsed", rec.Deadline),
			"Record":  func() error { _, err := s.Record(ctx, rec.CandidateHash, rec.Attempt); return err }(),
			"Empty":   func() error { _, err := s.Empty(ctx); return err }(),
			"Records": func() (last error) {
				for _, err := range s.Records(ctx) {
					last = err
				}
				return last
			}(),
			"Ping":    s.Ping(ctx),
			"PutBack": func() error { _, err := s.PutBack(ctx, rec); return err }(),
			"OpenRefs": func() (last error) {
				for _, err := range s.OpenRefunds(ctx) {
					last = err
				}
				return last
			}(),
			"OpenNots": func() (last error) {
				for _, err := range s.OpenNotifications(ctx) {
					last = err
				}
				return last
			}(),
		} {
			var said smithy.APIError
			if !errors.As(err, &said) || said.ErrorCode() != code {
				t.Errorf("%s answered %s: got %v, want the service's error", call, code, err)
			} else if !strings.Contains(err.Error(), want) {
				t.Errorf("%s answered %s: got %q, want it to say %q", call, code, err, want)
			}
			if errors.Is(err, booking.ErrNotFound) || errors.Is(err, booking.ErrUnreadable) {
				t.Errorf("%s answered %s: got %v, want it to say nothing of the record", call, code, err)
			}
		}
	}
}

func TestThrottling_IsRepeatedBeforeItIsAnError(t *testing.T) {
	t.Parallel()
	calls := 0
	s := cannedStore(func(string) (int, string) {
		if calls++; calls < sdkTries {
			return http.StatusBadRequest, answer("ThrottlingException")
		}
		return http.StatusOK, `{}`
	})
	if err := s.Ping(t.Context()); err != nil || calls != sdkTries {
		t.Errorf("Ping throttled twice: got %v after %d calls, want none after %d", err, calls, sdkTries)
	}
}

func TestErrors_DoNotGiveTheCandidateAway(t *testing.T) {
	t.Parallel()
	rec := storetest.Held()
	s := cannedStore(func(string) (int, string) {
		return http.StatusBadRequest, answer("ConditionalCheckFailedException") // by no item
	})
	err := s.Release(t.Context(), rec, "lapsed", rec.Deadline)
	if !errors.Is(err, booking.ErrNotFound) || !strings.Contains(err.Error(), rec.Attempt) {
		t.Errorf("Release without a record: got %v, want ErrNotFound that names the attempt", err)
	}
	if strings.Contains(err.Error(), rec.CandidateHash) || strings.Contains(err.Error(), rec.Code) {
		t.Errorf("error %q holds the candidate's hash or code", err)
	}
}

// A browser may bring anything; what cannot be a key is not asked for, since the
// service would call it an error of ours.
func TestRecordByPayment_WhatCannotBeAKeyIsNotFound(t *testing.T) {
	t.Parallel()
	calls := 0
	s := cannedStore(func(string) (int, string) {
		calls++
		return http.StatusBadRequest, answer("ValidationException")
	})
	for _, payment := range []string{"", strings.Repeat("x", 5000)} {
		if _, err := s.RecordByPayment(t.Context(), payment); !errors.Is(err, booking.ErrNotFound) || len(err.Error()) > 200 {
			t.Errorf("RecordByPayment of %d bytes: got %v, want ErrNotFound in few words", len(payment), err)
		}
	}
	if calls != 0 {
		t.Errorf("calls: got %d, want none", calls)
	}
}

// The index by payment lags: what it leads to may be gone, or be another's.
func TestRecordByPayment_LaggingIndexIsNotFound(t *testing.T) {
	t.Parallel()
	rec := storetest.Held()
	keys := `"candidate_hash":{"S":"` + rec.CandidateHash + `"},"attempt":{"S":"` + rec.Attempt + `"}`
	for what, got := range map[string]string{"gone": `{}`, "another's": `{"Item":` + wire(t, rec) + `}`} {
		s := cannedStore(func(op string) (int, string) {
			if op == "Query" {
				return http.StatusOK, `{"Items":[{` + keys + `}]}`
			}
			return http.StatusOK, got
		})
		if _, err := s.RecordByPayment(t.Context(), "TRother"); !errors.Is(err, booking.ErrNotFound) {
			t.Errorf("RecordByPayment when the record is %s: got %v, want ErrNotFound", what, err)
		}
	}
}

// wire is the record's item as the service sends it.
func wire(t *testing.T, rec booking.Record) string {
	t.Helper()
	out, err := json.Marshal(image(t, rec))
	if err != nil {
		t.Fatal(err)
	}
	return string(out)
}

// A table that refuses a condition which the item it shows meets is not asked for
// ever.
func TestWrites_EndThoughTheItemNeverHolds(t *testing.T) {
	t.Parallel()
	rec := storetest.Held()
	calls := 0
	s := cannedStore(func(string) (int, string) {
		calls++
		return http.StatusBadRequest, `{"__type":"com.amazonaws.dynamodb.v20120810#ConditionalCheckFailedException","message":"no","Item":` + wire(t, rec) + `}`
	})
	err := s.Release(t.Context(), rec, "lapsed", rec.Deadline)
	if err == nil || !strings.Contains(err.Error(), "repeat it") || calls != dynamo.Tries {
		t.Errorf("Release: got %v after %d calls, want an error that says what to do after %d", err, calls, dynamo.Tries)
	}
}
