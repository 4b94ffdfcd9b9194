// Package journey_test follows bookings through the programs that ship, built as for
// production and started with the example settings of deploy/env: a Redis pair behind
// TLS, an AWS emulator, PostgreSQL and the gateway's stand-in around them, each a process
// or a server of its own. What one room promises its own tests prove; here it is shown
// that the rooms, wired and configured as they are shipped, keep it together.
//
// Fail mode: a surrounding that is not installed skips the tests, or fails them with
// CI=true. Clock: real time, waited for by asking; the one minute that SQS hides a
// message is passed by giving the message back.
package journey_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/aws/aws-lambda-go/lambda"
	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"
	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
	"go.uber.org/goleak"

	"holdfast/internal/app/functions"
	"holdfast/internal/backoffice"
	"holdfast/internal/booking"
	"holdfast/internal/store/dynamo"
	"holdfast/internal/testenv"
)

// TestMain gives the functions, which run in this process, credentials that the emulator
// takes.
func TestMain(m *testing.M) {
	for name, value := range map[string]string{
		"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test", "AWS_EC2_METADATA_DISABLED": "true",
	} {
		if err := os.Setenv(name, value); err != nil {
			panic(err)
		}
	}
	goleak.VerifyTestMain(m)
}

// How the example settings end the programs: the API stays for the linger, then both have
// the drain for what is in hand.
const (
	linger = 20 * time.Second
	drain  = 35 * time.Second
)

func TestPrograms(t *testing.T) {
	if testing.Short() {
		t.Skip("NOT FOLLOWED THROUGH THE REAL PROGRAMS: -short")
	}
	bin := build(t, "api", "worker", "seatctl")
	// They wait most of the time. t.Parallel would run only as many as there are
	// processors.
	var followed sync.WaitGroup
	defer followed.Wait()
	for _, c := range []struct {
		name string
		run  func(t *testing.T, bin string)
	}{
		{"BookingByFormAndByJSONReachesEveryStoreAndBothProgramsEndInOrder", bookingReachesEveryStore},
		{"LostRepliesAndAKilledWorkerNeitherDoubleNorLoseABooking", lostReplies},
		{"TTLFollowsTheBookingAndNeverTheOtherWayRound", ttl},
	} {
		followed.Go(func() { t.Run(c.name, func(t *testing.T) { c.run(t, bin) }) })
	}
}

// build makes the programs as make build does, but for the debugger's part, which takes
// the longest to link.
func build(t *testing.T, names ...string) (dir string) {
	t.Helper()
	dir = t.TempDir()
	args := []string{"build", "-trimpath", "-ldflags=-w", "-o", dir + "/"}
	for _, name := range names {
		args = append(args, "holdfast/cmd/"+name)
	}
	cmd := exec.CommandContext(t.Context(), "go", args...)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("go %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return dir
}

func saleOf(hold time.Duration, seats int, levels ...booking.Level) booking.Sale {
	return booking.Sale{Name: "journey-2026", Currency: "BDT", Cap: seats, Hold: hold, Levels: levels}
}

func level(id string, seats int) booking.Level {
	return booking.Level{ID: id, Name: "Level " + id, Cap: seats, Fee: 150000}
}

// One booking by the plain form and one by JSON, from the page to the back office.
func bookingReachesEveryStore(t *testing.T, bin string) {
	sale := saleOf(10*time.Minute, 5, level("N1", 3), level("N2", 2))
	w := newWorld(t, bin, sale)
	office := testenv.Postgres(t).Database(t)
	api, base := w.startAPI(t, w.endpoint)
	worker := w.startWorker(t, w.endpoint)

	// A seat each, and the worker writes the records.
	links := map[string]string{
		"P0001": w.bookByForm(t, base, "P0001", "N1"),
		"P0002": w.book(t, base, "P0002", "N2").PaymentURL,
	}
	for code := range links {
		if rec := w.awaitRecord(t, code, booking.StateHeld); rec.TTL.IsZero() {
			t.Errorf("record of %s: got no TTL, want one while it is HELD", code)
		}
	}
	w.awaitEmptyQueue(t)

	// Paid, and told so everywhere.
	paid := map[string]booking.Record{}
	for code, link := range links {
		w.awaitState(t, base, w.pay(t, base, link), "paid")
		paid[code] = w.awaitMailed(t, code)
		if a := w.told(t, base, code, "N1"); a.Status != http.StatusConflict || a.Error != "duplicate" || !a.Paid {
			t.Errorf("%s again: got %+v, want a duplicate that is paid", code, a)
		}
	}
	w.awaitLeft(t, map[string]int{"": 3, "N1": 2, "N2": 1})
	for code := range paid {
		if n := w.mailsTo(t, code); n != 1 {
			t.Errorf("mails to %s: got %d, want 1", code, n)
		}
	}

	// The table's stream carries the paid bookings to the back office, and a second
	// delivery of all of it changes nothing.
	env := map[string]string{"HOLDFAST_SALE": sale.Name, "HOLDFAST_BACKOFFICE_URL": office}
	var said bytes.Buffer
	copies, err := functions.Sync(t.Context(), func(name string) string { return env[name] }, &said)
	if err != nil {
		t.Fatalf("sync function: got %v, want it wired", err)
	}
	t.Cleanup(func() { _ = copies.Close(context.Background()) })
	for range 2 {
		handIn(t, copies, testenv.Stream(t, w.cfg, table), &said)
		checkOffice(t, office, sale.Name, paid)
	}

	w.audit(t, api)
	endInOrder(t, w, api, worker, base)
}

// handIn gives changes to a function as Lambda does; none may be left.
func handIn(t *testing.T, h *functions.Handler, changes []testenv.Change, said *bytes.Buffer) {
	t.Helper()
	payload, err := json.Marshal(map[string]any{"Records": changes})
	if err != nil {
		t.Fatal(err)
	}
	answer, err := lambda.NewHandler(h.Handle).Invoke(t.Context(), payload)
	if err != nil || strings.TrimSpace(string(answer)) != `{"batchItemFailures":null}` {
		t.Fatalf("function: got %s, %v, want no failures; it said:\n%s", answer, err, said)
	}
}

// checkOffice compares the back office's rows with the paid records.
func checkOffice(t *testing.T, url, sale string, paid map[string]booking.Record) {
	t.Helper()
	o := backoffice.New(func(ctx context.Context) (*pgx.Conn, error) { return pgx.Connect(ctx, url) }, sale)
	got, want := map[string]backoffice.Booking{}, map[string]backoffice.Booking{}
	for row, err := range o.Paid(t.Context()) {
		if err != nil {
			t.Fatalf("back office: got %v, want its rows", err)
		}
		row.UpdatedAt = time.Time{}
		got[row.Code] = row
	}
	for code, rec := range paid {
		want[code] = backoffice.Booking{
			Sale: sale, CandidateHash: rec.CandidateHash, Code: code, Attempt: rec.Attempt, Level: rec.Level, Amount: rec.Amount,
			Currency: rec.Currency, PaymentID: rec.PaymentID, Transaction: rec.Transaction, PaidAt: rec.PaidAt,
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("paid_bookings (-want +got):\n%s", diff)
	}
}

// endInOrder ends both programs as systemd does. The API goes on answering, with
// /health failing, until the balancer must have seen it; no seat is taken any more.
func endInOrder(t *testing.T, w *world, api, worker *program, base string) {
	t.Helper()
	began := time.Now()
	for _, p := range []*program{api, worker} {
		if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil {
			t.Fatal(err)
		}
	}
	testenv.Eventually(t, func() error { return w.want(t, base+"/health", http.StatusServiceUnavailable) })
	if a := w.ask(t, base, "P0003", "N1"); a.Status != http.StatusServiceUnavailable || a.Error != "try_again" || a.Retry == "" {
		t.Errorf("booking while it drains: got %+v, want try_again with Retry-After", a)
	}
	for name, c := range map[string]struct {
		p      *program
		within time.Duration
	}{"worker": {worker, drain}, "api": {api, linger + drain}} {
		select {
		case <-c.p.exited:
			if c.p.err != nil {
				t.Errorf("end of the %s: got %v, want exit status 0", name, c.p.err)
			}
		case <-time.After(time.Until(began.Add(c.within))):
			t.Errorf("end of the %s: got none within %s", name, c.within)
		}
	}
	if took := time.Since(began); took < linger {
		t.Errorf("end of the api: got %s after it was told, want at least its linger of %s", took, linger)
	}
	if n := len(w.records(t, "P0003")); n != 0 {
		t.Errorf("records of the candidate who came while it drained: got %d, want none", n)
	}
}

// Cases 26 and 27, and a worker that is killed: each level has one seat.
func lostReplies(t *testing.T, bin string) {
	w := newWorld(t, bin, saleOf(10*time.Minute, 6, level("N1", 1), level("N2", 1), level("N3", 1), level("N4", 1), level("N5", 1), level("N6", 1)))
	ofAPI, ofWorker := newWire(t, w.endpoint), newWire(t, w.endpoint)
	api, base := w.startAPI(t, ofAPI.url)
	worker := w.startWorker(t, ofWorker.url)
	// full checks that nobody else gets the level's one seat.
	full := func(t *testing.T, level string) {
		t.Helper()
		a := w.told(t, base, "P0009", level)
		if a.Status != http.StatusConflict || a.Error != "level_full" {
			t.Errorf("another candidate: got %+v, want level_full", a)
		}
	}
	// created is the worker's count of records that it put, held that of those it found.
	created := func() string { return worker.metric(t, w, `holdfast_worker_records_total{outcome="created"}`) }
	held := func() string { return worker.metric(t, w, `holdfast_worker_records_total{outcome="held"}`) }

	t.Run("SendAcceptedReplyLost_SentAgainUnderTheSameIDs", func(t *testing.T) {
		ofAPI.loseReplies(loss{op: opSend, next: 1})
		a := w.book(t, base, "P0001", "N1")
		if n := ofAPI.lostReplies(); n != 1 {
			t.Fatalf("lost replies: got %d, want 1", n)
		}
		full(t, "N1")
		w.awaitRecord(t, "P0001", booking.StateHeld)
		wantSameMessage(t, ofAPI, "P0001")
		w.awaitEmptyQueue(t)
		w.awaitState(t, base, w.pay(t, base, a.PaymentURL), "paid")
		w.awaitRecord(t, "P0001", booking.StatePaid)
		// The emulator forgets an id with its message, so the repeat may come as another
		// delivery, as in AWS after the five minutes: it finds the record.
		if c := created(); c != "1" {
			t.Errorf("the worker counts %s created, want 1", c)
		}
	})

	t.Run("SendAcceptedEveryReplyLost_SeatIsKeptAndCanBePaid", func(t *testing.T) {
		ofAPI.loseReplies(loss{op: opSend, next: always})
		var a answer
		testenv.Eventually(t, func() error {
			if a = w.ask(t, base, "P0002", "N2"); ofAPI.lostReplies() == 0 { // told no before a seat was taken
				return fmt.Errorf("book: %+v, want a message sent", a)
			}
			return nil
		})
		if a.Status != http.StatusServiceUnavailable || a.Error != "try_again" || a.Retry == "" {
			t.Errorf("book: got %+v, want try_again with Retry-After", a)
		}
		full(t, "N2")
		again := w.told(t, base, "P0002", "N2")
		if again.Status != http.StatusConflict || again.Error != "duplicate" || again.PaymentURL == "" {
			t.Errorf("the candidate again: got %+v, want a duplicate with the link", again)
		}
		ofAPI.loseReplies(loss{})
		w.awaitRecord(t, "P0002", booking.StateHeld)
		wantSameMessage(t, ofAPI, "P0002")
		w.awaitState(t, base, w.pay(t, base, again.PaymentURL), "paid")
		w.awaitEmptyQueue(t)
		w.awaitRecord(t, "P0002", booking.StatePaid)
		full(t, "N2")
	})

	t.Run("PutDoneReplyLost_RepeatSeesItsOwnRecord", func(t *testing.T) {
		before, heldBefore := created(), held()
		ofWorker.loseReplies(loss{op: opPut, next: 1})
		w.book(t, base, "P0003", "N3")
		w.awaitRecord(t, "P0003", booking.StateHeld)
		w.awaitEmptyQueue(t)
		if n := len(ofWorker.requests(opPut, booking.CandidateHash("P0003"))); n != 2 || ofWorker.lostReplies() != 1 {
			t.Errorf("puts: got %d with %d replies lost, want the put and its repeat", n, ofWorker.lostReplies())
		}
		if c, h := created(), held(); c != next(t, before) || h != heldBefore {
			t.Errorf("the worker counts %s created and %s held, was %s and %s: want one more created", c, h, before, heldBefore)
		}
		full(t, "N3")
	})

	t.Run("PutDoneEveryReplyOfTheCallLost_CountsAsDone", func(t *testing.T) {
		before, heldBefore := created(), held()
		ofWorker.loseReplies(loss{op: opPut, next: 3}) // all that the SDK tries in one call
		w.book(t, base, "P0004", "N4")
		w.awaitRecord(t, "P0004", booking.StateHeld)
		w.awaitEmptyQueue(t)
		if n := ofWorker.lostReplies(); n != 3 {
			t.Errorf("lost replies: got %d, want 3", n)
		}
		if c, h := created(), held(); c != before || h != next(t, heldBefore) {
			t.Errorf("the worker counts %s created and %s held, was %s and %s: want one more held", c, h, before, heldBefore)
		}
		w.awaitRecord(t, "P0004", booking.StateHeld)
		full(t, "N4")
	})

	t.Run("PaidWrittenReplyLost_OnePaidRecordAndOneMail", func(t *testing.T) {
		a := w.book(t, base, "P0005", "N5")
		w.awaitRecord(t, "P0005", booking.StateHeld)
		ofAPI.loseReplies(loss{op: opUpdate, containing: "REMOVE #ttl", next: 1})
		w.awaitState(t, base, w.pay(t, base, a.PaymentURL), "paid")
		w.awaitMailed(t, "P0005")
		if n := ofAPI.lostReplies(); n != 1 {
			t.Errorf("lost replies: got %d, want that to the write that paid", n)
		}
		if n := w.mailsTo(t, "P0005"); n != 1 {
			t.Errorf("mails: got %d, want 1", n)
		}
	})

	t.Run("WorkerKilledBetweenReceiveAndWrite_MessageComesAgain", func(t *testing.T) {
		ofWorker.keepBack(opPut)
		a := w.book(t, base, "P0006", "N6")
		select {
		case <-ofWorker.holding:
		case <-time.After(30 * time.Second):
			t.Fatal("put: got none within 30s, want the worker at it")
		}
		worker.kill()
		ofWorker.keepBack("")
		if n := len(w.records(t, "P0006")); n != 0 {
			t.Fatalf("records after the kill: got %d, want none", n)
		}
		// Nobody gave the message back: it would come again when SQS has hidden it for a
		// minute, which is passed here, once the polls are over that the dead left behind:
		// they would take it for nobody, and hide it for another minute.
		testenv.Eventually(t, func() error {
			if n := ofWorker.atWork(opReceive); n > 0 {
				return fmt.Errorf("polls of the killed worker: %d, want none", n)
			}
			return nil
		})
		if s, err := w.queue.Stats(t.Context()); err != nil || s.InFlight != 1 {
			t.Errorf("queue after the kill: got %+v, %v, want the message in flight", s, err)
		}
		if err := w.queue.Delay(t.Context(), ofWorker.lastReceipt(t), 0); err != nil {
			t.Fatalf("pass the minute: %v", err)
		}
		worker = w.startWorker(t, ofWorker.url)
		w.awaitRecord(t, "P0006", booking.StateHeld)
		w.awaitEmptyQueue(t)
		if c := created(); c != "1" {
			t.Errorf("the next worker counts %s created, want 1", c)
		}
		w.awaitState(t, base, w.pay(t, base, a.PaymentURL), "paid")
		w.awaitRecord(t, "P0006", booking.StatePaid)
	})

	w.awaitLeft(t, map[string]int{"": 0, "N1": 0, "N2": 0, "N3": 0, "N4": 0, "N5": 0, "N6": 0})
	w.audit(t, api)
}

// wantSameMessage checks that the candidate's message was sent more than once, each time
// under the same ids.
func wantSameMessage(t *testing.T, p *wire, code string) {
	t.Helper()
	sent := p.requests(opSend, booking.CandidateHash(code))
	if len(sent) < 2 {
		t.Errorf("sends: got %d, want a repeat", len(sent))
	}
	ids := map[string]int{}
	for _, body := range sent {
		var m struct {
			Group string `json:"MessageGroupId"`
			Dedup string `json:"MessageDeduplicationId"`
		}
		if err := json.Unmarshal([]byte(body), &m); err != nil || m.Group == "" || m.Dedup == "" {
			t.Fatalf("send: got %s, %v, want its ids", body, err)
		}
		ids[m.Group+" "+m.Dedup]++
	}
	if len(ids) != 1 {
		t.Errorf("ids of %d sends: got %v, want the same each time", len(sent), ids)
	}
}

// next is a count and one more.
func next(t *testing.T, count string) string {
	t.Helper()
	n, err := strconv.Atoi(count)
	if err != nil {
		t.Fatalf("count: got %q, want a number", count)
	}
	return strconv.Itoa(n + 1)
}

// Case 32: housekeeping decides nothing.
func ttl(t *testing.T, bin string) {
	const short, long = 12 * time.Second, 10 * time.Minute
	levels := []booking.Level{level("N1", 1), level("N2", 1)}
	w := newWorld(t, bin, saleOf(long, 2, levels...))
	api, base := w.startAPI(t, w.endpoint)
	w.startWorker(t, w.endpoint)
	yesterday := time.Now().Add(-24 * time.Hour)

	// Two records are expired by their TTL and present. This one's deadline comes soon; it
	// begins first, since it waits for a sweep.
	w.apply(t, saleOf(short, 2, levels...))
	w.book(t, base, "P0001", "N1")
	w.expire(t, w.awaitRecord(t, "P0001", booking.StateHeld), yesterday)
	w.apply(t, saleOf(long, 2, levels...))

	// The other's is far: still theirs to pay.
	link := w.book(t, base, "P0002", "N2").PaymentURL
	rec := w.awaitRecord(t, "P0002", booking.StateHeld)
	w.expire(t, rec, yesterday)
	if a := w.told(t, base, "P0003", "N2"); a.Status != http.StatusConflict || a.Error != "level_full" {
		t.Errorf("another candidate: got %+v, want level_full", a)
	}
	w.awaitState(t, base, w.pay(t, base, link), "paid")
	paid := w.awaitMailed(t, "P0002")
	wantTTLGoneWithPaid(t, testenv.Stream(t, w.cfg, table), rec.Attempt, yesterday)

	// The TTL service has deleted the paid record: it comes back as it was, and nobody
	// gets the seat.
	if _, err := w.tables.DeleteItem(t.Context(), &dynamodb.DeleteItemInput{TableName: aws.String(table), Key: keyOf(paid)}); err != nil {
		t.Fatalf("delete the record: %v", err)
	}
	env := map[string]string{"HOLDFAST_STORE_TABLE": table, "HOLDFAST_AWS_REGION": testenv.Region, "HOLDFAST_AWS_ENDPOINT": w.endpoint}
	var said bytes.Buffer
	expiry, err := functions.Expiry(t.Context(), func(name string) string { return env[name] }, &said)
	if err != nil {
		t.Fatalf("expiry function: got %v, want it wired", err)
	}
	changes := testenv.Stream(t, w.cfg, table)
	at := slices.IndexFunc(changes, func(c testenv.Change) bool {
		ch := readChange(t, c)
		return ch.EventName == "REMOVE" && ch.DynamoDB.OldImage["attempt"].S == paid.Attempt
	})
	if at < 0 {
		t.Fatal("stream: got no deletion, want that of the paid record")
	}
	handIn(t, expiry, []testenv.Change{testenv.ByTTLService(t, changes[at])}, &said)
	if diff := cmp.Diff([]booking.Record{paid}, w.records(t, "P0002")); diff != "" {
		t.Errorf("record after the TTL service's deletion (-want +got):\n%s", diff)
	}
	if !strings.Contains(said.String(), `"outcome":"restored_paid"`) {
		t.Errorf("function said %q, want it to count a paid record restored", said.String())
	}
	if row, _, err := w.gate.Row(t.Context(), "P0002"); err != nil || row.Phase != booking.PhasePaid || row.Attempt != paid.Attempt {
		t.Errorf("row: got %+v, %v, want it paid", row, err)
	}
	if a := w.told(t, base, "P0003", "N2"); a.Status != http.StatusConflict || a.Error != "level_full" {
		t.Errorf("another candidate: got %+v, want level_full", a)
	}

	// The first lapsed as any other: released and kept, and its seat can be had.
	lapsed := w.awaitRecord(t, "P0001", booking.StateReleased)
	if want := booking.ReleasedTTL(lapsed.Deadline); lapsed.Reason != booking.ReasonLapsed || lapsed.TTL.Before(want) {
		t.Errorf("lapsed record: got reason %q and TTL %s, want lapsed, and not before %s", lapsed.Reason, lapsed.TTL, want)
	}
	w.awaitLeft(t, map[string]int{"": 1, "N1": 1, "N2": 0})
	w.book(t, base, "P0003", "N1")
	w.awaitRecord(t, "P0003", booking.StateHeld)
	w.awaitEmptyQueue(t)
	w.awaitLeft(t, map[string]int{"": 0, "N1": 0, "N2": 0})
	w.audit(t, api)
}

// expire makes the TTL of a HELD record one that has passed; the service that would act
// on it may take days.
func (w *world) expire(t *testing.T, rec booking.Record, at time.Time) {
	t.Helper()
	_, err := w.tables.UpdateItem(t.Context(), &dynamodb.UpdateItemInput{
		TableName: aws.String(table), Key: keyOf(rec),
		UpdateExpression:         aws.String("SET #ttl = :at"),
		ConditionExpression:      aws.String("#state = :held"),
		ExpressionAttributeNames: map[string]string{"#ttl": dynamo.TTLAttribute, "#state": "state"},
		ExpressionAttributeValues: map[string]types.AttributeValue{
			":at":   &types.AttributeValueMemberN{Value: strconv.FormatInt(at.Unix(), 10)},
			":held": &types.AttributeValueMemberS{Value: string(booking.StateHeld)},
		},
	})
	if err != nil {
		t.Fatalf("expire the record of %s: %v", rec.Code, err)
	}
}

func keyOf(rec booking.Record) map[string]types.AttributeValue {
	return map[string]types.AttributeValue{
		dynamo.PartitionKey: &types.AttributeValueMemberS{Value: rec.CandidateHash},
		dynamo.SortKey:      &types.AttributeValueMemberS{Value: rec.Attempt},
	}
}

// streamed is what is looked at in a change.
type streamed struct {
	EventName string
	DynamoDB  struct {
		OldImage, NewImage map[string]struct{ S, N string }
	} `json:"dynamodb"`
}

func readChange(t *testing.T, c testenv.Change) streamed {
	t.Helper()
	var ch streamed
	if err := json.Unmarshal(c, &ch); err != nil {
		t.Fatalf("change: got %v, want JSON", err)
	}
	return ch
}

// wantTTLGoneWithPaid checks that the write that made the attempt's record PAID took its
// TTL away, and that no image of it that is PAID has one.
func wantTTLGoneWithPaid(t *testing.T, changes []testenv.Change, attempt string, before time.Time) {
	t.Helper()
	paying := 0
	for _, c := range changes {
		ch := readChange(t, c)
		if ch.DynamoDB.NewImage["attempt"].S != attempt || ch.DynamoDB.NewImage["state"].S != string(booking.StatePaid) {
			continue
		}
		if ttl, has := ch.DynamoDB.NewImage[dynamo.TTLAttribute]; has {
			t.Errorf("a PAID image: got TTL %s, want none", ttl.N)
		}
		if ch.DynamoDB.OldImage["state"].S == string(booking.StatePaid) {
			continue
		}
		paying++
		if got, want := ch.DynamoDB.OldImage[dynamo.TTLAttribute].N, strconv.FormatInt(before.Unix(), 10); got != want {
			t.Errorf("TTL before the write that paid: got %q, want %s", got, want)
		}
	}
	if paying != 1 {
		t.Errorf("writes that made it PAID: got %d, want 1", paying)
	}
}
