// Package queuetest is the contract of the booking queue: every driver runs it.
//
// It asks only what both a SQLite file and SQS FIFO (high-throughput mode) can
// promise: a receive may return fewer messages than there are, figures may lag,
// what a dead letter's deduplication id is after a redrive is the driver's own
// business. What an emulator cannot do its harness says, with the reason. Clock:
// the harness lets time pass, on a clock of its own or in earnest; the suite itself
// waits only for what may lag.
package queuetest

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"holdfast/internal/booking"
)

// Queue is what a driver promises, all of it safe for concurrent use.
type Queue interface {
	// Send accepts a message durably. A repeat of group and id within the
	// deduplication window is accepted and not delivered again.
	Send(ctx context.Context, group, dedupID string, body []byte) error
	// Receive takes up to max (1 to 10) messages, waiting for the first. Order
	// holds within a group; while a message is in flight its group is not handed
	// out. A context that ends takes nothing along.
	Receive(ctx context.Context, max int, wait time.Duration) ([]booking.Delivery, error)
	// Delete removes any number of delivered messages and returns the receipts it
	// could not use. Deleted already is no failure.
	Delete(ctx context.Context, receipts []string) (failed []string, err error)
	// Delay hides a message in flight for d (whole seconds) from now; 0 gives it
	// back at once.
	Delay(ctx context.Context, receipt string, d time.Duration) error
	// DeadLetters lists dead letters and leaves them.
	DeadLetters(ctx context.Context, max int) ([]booking.Delivery, error)
	// Redrive puts dead letters back, all or those named by deduplication id,
	// with a fresh receive count, and tells how many.
	Redrive(ctx context.Context, dedupIDs ...string) (int, error)
	// Stats counts; it may lag.
	Stats(ctx context.Context) (booking.QueueStats, error)
}

// Harness is an empty queue and what the suite must know of it.
type Harness struct {
	Queue Queue
	// Other is the same queue as another process sees it; Queue when nil.
	Other Queue
	// Visibility and MaxReceives are its settings. Visibility is whole seconds, at
	// least twice Slack.
	Visibility  time.Duration
	MaxReceives int
	// DedupWindow is zero when the test cannot wait for its end; those cases are
	// skipped.
	DedupWindow time.Duration
	// Pass lets time pass on the queue's clock.
	Pass func(d time.Duration)
	// Shorten, when set, makes the queue's visibility time-out short and returns it,
	// for the cases that wait for its end: where time passes in earnest.
	Shorten func(t *testing.T) time.Duration
	// Slack is how far from that end the suite looks, before and after. Default 1 s.
	Slack time.Duration
	// Lacks are promises that the queue's emulator does not keep and the real
	// service does, each with the reason. Just those are not asked for.
	Lacks map[Promise]string
}

// Promise is one that a harness may lack.
type Promise string

// What the emulators known so far differ in.
const (
	GroupDedup     Promise = "deduplication ids are of their group only"
	LastingDedup   Promise = "a deduplication id outlives its message"
	ReceiptsExpire Promise = "a receipt is good for its own delivery only"
)

// lacks tells whether the harness lacks a promise, and says in the log what was not
// tested.
func (h Harness) lacks(t *testing.T, p Promise) bool {
	t.Helper()
	reason, ok := h.Lacks[p]
	if ok {
		t.Logf("NOT TESTED that %s: %s", p, reason)
	}
	return ok
}

// patience is how long the suite waits for what must come.
const patience = 20 * time.Second

// Run holds the driver to the contract. open returns an empty queue, closed by
// the test's cleanup.
func Run(t *testing.T, open func(t *testing.T) Harness) {
	tests := []struct {
		name  string
		waits bool // for the end of a visibility time-out
		run   func(t *testing.T, h Harness)
	}{
		{"RoundTrip", true, roundTrip},
		{"BadMessagesAreRefused", false, badMessages},
		{"RepeatedSendIsDeliveredOnce", false, repeatedSend},
		{"DedupWindowEnds", false, dedupWindowEnds},
		{"GroupsKeepOrderAndDoNotWaitForEachOther", false, groups},
		{"VisibilityEnds", true, visibilityEnds},
		{"Delay", true, delay},
		{"DeadLettersAndRedrive", false, deadLetters},
		{"PartialDelete", true, partialDelete},
		{"LongPollWakes", false, longPollWakes},
		{"EndedReceiveStrandsNothing", false, endedReceive},
		{"BrokenCalls", true, brokenCalls},
		{"Stats", false, stats},
		{"ManyAtOnce", false, manyAtOnce},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if tt.waits {
				t.Parallel()
			}
			h := open(t)
			if h.Slack == 0 {
				h.Slack = time.Second
			}
			if tt.waits && h.Shorten != nil {
				h.Visibility = h.Shorten(t)
			}
			if h.Other == nil {
				h.Other = h.Queue
			}
			tt.run(t, h)
		})
	}
}

func roundTrip(t *testing.T, h Harness) {
	nothing(t, h.Queue)
	send(t, h.Queue, "00aa", "id-1", `{"v":1}`)
	d := receive(t, h.Queue, 1)[0]
	if d.Group != "00aa" || d.DedupID != "id-1" || string(d.Body) != `{"v":1}` || d.Receives != 1 || d.Receipt == "" || d.SentAt.IsZero() {
		t.Errorf("delivery: got %+v with body %s, want group 00aa, id-1, the body as sent, 1 receive, a receipt and a time", d, d.Body)
	}
	nothing(t, h.Queue)
	remove(t, h.Queue, d)
	h.Pass(h.Visibility + h.Slack)
	nothing(t, h.Queue)
}

func badMessages(t *testing.T, h Harness) {
	long := strings.Repeat("x", 129)
	for name, m := range map[string]struct {
		group, id string
		body      string
	}{
		"no group":           {"", "id", "x"},
		"long group":         {long, "id", "x"},
		"no id":              {"00aa", "", "x"},
		"long id":            {"00aa", long, "x"},
		"id with a space":    {"00aa", "i d", "x"},
		"empty body":         {"00aa", "id", ""},
		"body beyond 1 MiB":  {"00aa", "id", strings.Repeat("x", 1<<20+1)},
		"group not in ASCII": {"größe", "id", "x"},
	} {
		if err := h.Queue.Send(t.Context(), m.group, m.id, []byte(m.body)); err == nil {
			t.Errorf("Send with %s: got no error, want one", name)
		}
	}
	if _, err := h.Queue.Receive(t.Context(), 0, 0); err == nil {
		t.Error("Receive of 0 messages: got no error, want one")
	}
	nothing(t, h.Queue)
}

func repeatedSend(t *testing.T, h Harness) {
	send(t, h.Queue, "00aa", "id-1", "first")
	send(t, h.Other, "00aa", "id-1", "again")
	want := []string{"first"}
	if !h.lacks(t, GroupDedup) {
		send(t, h.Queue, "00bb", "id-1", "another group")
		want = []string{"another group", "first"}
	}
	got := receive(t, h.Queue, len(want))
	if diff := cmp.Diff(want, bodies(got)); diff != "" {
		t.Errorf("delivered after a repeated Send (-want +got):\n%s", diff)
	}
	send(t, h.Queue, "00aa", "id-1", "while in flight")
	remove(t, h.Queue, got...)
	if !h.lacks(t, LastingDedup) {
		send(t, h.Queue, "00aa", "id-1", "after the delete")
	}
	nothing(t, h.Queue)
}

func dedupWindowEnds(t *testing.T, h Harness) {
	if h.DedupWindow == 0 {
		t.Skip("the test cannot wait for the end of the deduplication window")
	}
	send(t, h.Queue, "00aa", "id-1", "first")
	remove(t, h.Queue, receive(t, h.Queue, 1)...)
	h.Pass(h.DedupWindow - time.Second)
	send(t, h.Queue, "00aa", "id-1", "repeat in time")
	nothing(t, h.Queue)
	h.Pass(2 * time.Second) // the repeat has not begun a window of its own
	send(t, h.Queue, "00aa", "id-1", "repeat after the window")
	if got := bodies(receive(t, h.Queue, 1)); got[0] != "repeat after the window" {
		t.Errorf("delivered after the window: got %q, want the repeat", got)
	}
}

func groups(t *testing.T, h Harness) {
	const n = 15
	var want, got []string
	for i := range n {
		want = append(want, fmt.Sprintf("a%02d", i))
		send(t, h.Queue, "00aa", "id-"+want[i], want[i])
	}
	for len(got) < n {
		first := receiveSome(t, h.Queue)
		got = append(got, bodiesInOrder(first)...)
		nothing(t, h.Other) // the group is out
		send(t, h.Queue, "00bb", fmt.Sprint("id-", len(got)), "other")
		other := receive(t, h.Other, 1)
		if other[0].Group != "00bb" {
			t.Fatalf("received group %s, want 00bb", other[0].Group)
		}
		remove(t, h.Other, other...)
		if k := len(first); k > 1 {
			remove(t, h.Queue, first[:k-1]...)
			nothing(t, h.Other) // one of the group is still out
		}
		remove(t, h.Queue, first[len(first)-1])
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("order within a group (-want +got):\n%s", diff)
	}
	nothing(t, h.Queue)
}

func visibilityEnds(t *testing.T, h Harness) {
	send(t, h.Queue, "00aa", "id-1", "one")
	old := receive(t, h.Queue, 1)[0]
	h.Pass(h.Visibility - h.Slack)
	nothing(t, h.Other)
	h.Pass(2 * h.Slack)
	again := receive(t, h.Other, 1)[0]
	if again.Receives != 2 || string(again.Body) != "one" || again.Receipt == old.Receipt {
		t.Errorf("redelivery: got %q, receive %d, receipt %s; want \"one\", receive 2, another receipt than %s",
			again.Body, again.Receives, again.Receipt, old.Receipt)
	}
	if !h.lacks(t, ReceiptsExpire) {
		failed, err := h.Queue.Delete(t.Context(), []string{old.Receipt})
		if err != nil || !slices.Equal(failed, []string{old.Receipt}) {
			t.Errorf("Delete by a stale receipt: got failed %q, %v, want the receipt", failed, err)
		}
	}
	h.Pass(h.Visibility + h.Slack)
	third := receive(t, h.Queue, 1)[0] // the stale delete took nothing
	if third.Receives != 3 {
		t.Errorf("receives after a stale delete: got %d, want 3", third.Receives)
	}
	remove(t, h.Queue, third)
	h.Pass(h.Visibility + h.Slack)
	nothing(t, h.Queue)
}

func delay(t *testing.T, h Harness) {
	ctx := t.Context()
	send(t, h.Queue, "00aa", "id-1", "one")
	d := receive(t, h.Queue, 1)[0]

	// Kept: from now, not added to what is left.
	h.Pass(h.Visibility - h.Slack)
	if err := h.Queue.Delay(ctx, d.Receipt, h.Visibility); err != nil {
		t.Fatalf("Delay to keep a message: %v", err)
	}
	h.Pass(h.Visibility - h.Slack)
	nothing(t, h.Other)
	h.Pass(2 * h.Slack)
	d = receive(t, h.Other, 1)[0]

	// Given back at once, and not remembered by the next delivery.
	if err := h.Queue.Delay(ctx, d.Receipt, 0); err != nil {
		t.Fatalf("Delay to give a message back: %v", err)
	}
	d = receive(t, h.Other, 1)[0]
	if d.Receives != 3 {
		t.Errorf("receives after a give-back: got %d, want 3", d.Receives)
	}
	h.Pass(h.Visibility - h.Slack)
	nothing(t, h.Queue)

	// The group waits until all of the delivery are back.
	send(t, h.Queue, "00bb", "id-2", "b1")
	send(t, h.Queue, "00bb", "id-3", "b2")
	batch := receiveSome(t, h.Queue)
	if len(batch) == 2 {
		if err := h.Queue.Delay(ctx, batch[0].Receipt, 0); err != nil {
			t.Fatalf("Delay: %v", err)
		}
		nothing(t, h.Other)
		if err := h.Queue.Delay(ctx, batch[1].Receipt, 0); err != nil {
			t.Fatalf("Delay: %v", err)
		}
		if got := bodiesInOrder(receiveSome(t, h.Other)); got[0] != "b1" {
			t.Errorf("first after a give-back: got %q, want b1", got[0])
		}
	}

	if err := h.Queue.Delay(ctx, "no receipt", 0); err == nil {
		t.Error("Delay by what is no receipt: got no error, want one")
	}
}

func deadLetters(t *testing.T, h Harness) {
	ctx := t.Context()
	// kill lets a message fail until its last delivery.
	kill := func(group, id string) {
		t.Helper()
		send(t, h.Queue, group, id, id)
		for i := 1; i <= h.MaxReceives; i++ {
			d := receive(t, h.Queue, 1)[0]
			if d.DedupID != id || d.Receives != i {
				t.Fatalf("delivery %d: got %s, receive %d", i, d.DedupID, d.Receives)
			}
			if i == h.MaxReceives {
				send(t, h.Queue, group, "after-"+id, "after-"+id)
			}
			if err := h.Queue.Delay(ctx, d.Receipt, 0); err != nil {
				t.Fatalf("Delay: %v", err)
			}
		}
		d := receive(t, h.Queue, 1)[0] // the group goes on
		if got := string(d.Body); got != "after-"+id || d.Receives != 1 {
			t.Fatalf("after the last delivery of %s: got %s, receive %d, want the next of its group", id, got, d.Receives)
		}
		remove(t, h.Queue, d)
	}
	dead := func(want ...string) {
		t.Helper()
		var got []string
		eventually(t, func() bool {
			list, err := h.Other.DeadLetters(ctx, 10)
			if err != nil {
				t.Fatalf("DeadLetters: %v", err)
			}
			for _, d := range list {
				if d.DedupID != string(d.Body) {
					t.Errorf("dead letter %s: got deduplication id %s, want the one that it was sent with", d.Body, d.DedupID)
				}
			}
			got = bodies(list)
			return slices.Equal(got, want)
		}, func() string { return fmt.Sprintf("dead letters: got %q, want %q", got, want) })
	}
	redrive := func(want int, ids ...string) {
		t.Helper()
		if n, err := h.Queue.Redrive(ctx, ids...); err != nil || n != want {
			t.Errorf("Redrive(%q): got %d, %v, want %d", ids, n, err, want)
		}
	}

	dead()
	redrive(0)
	kill("00aa", "bad-1")
	kill("00aa", "bad-2")
	dead("bad-1", "bad-2")
	dead("bad-1", "bad-2") // a look takes nothing
	counts(t, h, booking.QueueStats{Dead: 2})
	nothing(t, h.Queue)
	redrive(0, "bad-3")
	redrive(1, "bad-1", "bad-1")
	dead("bad-2")
	d := receive(t, h.Queue, 1)[0]
	if d.Group != "00aa" || string(d.Body) != "bad-1" || d.Receives != 1 {
		t.Errorf("redriven: got %s of group %s, receive %d, want bad-1 of 00aa, receive 1", d.Body, d.Group, d.Receives)
	}
	remove(t, h.Queue, d)
	redrive(1)
	dead()
	remove(t, h.Queue, receive(t, h.Queue, 1)...)
	redrive(0)
	nothing(t, h.Queue)
}

func partialDelete(t *testing.T, h Harness) {
	const n, kept = 25, 5
	for i := range n {
		send(t, h.Queue, fmt.Sprintf("%04x", i), fmt.Sprint("id-", i), fmt.Sprintf("%02d", i))
	}
	all := receive(t, h.Queue, n)
	slices.SortFunc(all, func(a, b booking.Delivery) int { return strings.Compare(string(a.Body), string(b.Body)) })
	var receipts []string
	for _, d := range all[kept:] {
		receipts = append(receipts, d.Receipt)
	}
	receipts = slices.Insert(receipts, 7, "no receipt")
	for _, which := range []string{"Delete", "repeated Delete"} {
		failed, err := h.Queue.Delete(t.Context(), receipts)
		if err != nil || !slices.Equal(failed, []string{"no receipt"}) {
			t.Errorf("%s of %d messages and a wrong receipt: got failed %q, %v, want the wrong one alone", which, n-kept, failed, err)
		}
	}
	h.Pass(h.Visibility + h.Slack)
	if diff := cmp.Diff(bodies(all[:kept]), bodies(receive(t, h.Queue, kept))); diff != "" {
		t.Errorf("left after a partial Delete (-want +got):\n%s", diff)
	}
	nothing(t, h.Queue)
	if failed, err := h.Queue.Delete(t.Context(), nil); err != nil || len(failed) != 0 {
		t.Errorf("Delete of nothing: got failed %q, %v, want none", failed, err)
	}
}

func longPollWakes(t *testing.T, h Harness) {
	begun := time.Now()
	got, err := h.Queue.Receive(t.Context(), 10, time.Second)
	if took := time.Since(begun); err != nil || len(got) != 0 || took < 900*time.Millisecond {
		t.Errorf("long poll of an empty queue: got %d messages, %v, after %s; want none after 1 s", len(got), err, took)
	}
	for name, sender := range map[string]Queue{"this": h.Queue, "another": h.Other} {
		type result struct {
			got  []booking.Delivery
			err  error
			took time.Duration
		}
		done := make(chan result, 1)
		go func() {
			begun := time.Now()
			got, err := h.Queue.Receive(t.Context(), 10, patience)
			done <- result{got, err, time.Since(begun)}
		}()
		send(t, sender, "00aa", "by-"+name, name)
		r := <-done
		if r.err != nil || len(r.got) != 1 || string(r.got[0].Body) != name || r.took > patience/2 {
			t.Errorf("long poll, sent by %s process: got %d messages, %v, after %s; want 1 soon", name, len(r.got), r.err, r.took)
		}
		remove(t, h.Queue, r.got...)
	}
}

func endedReceive(t *testing.T, h Harness) {
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	send(t, h.Queue, "ffff", "id", "id")
	if got, err := h.Queue.Receive(ended, 10, time.Second); err == nil || len(got) != 0 {
		t.Errorf("Receive with an ended context: got %d messages, %v, want none and an error", len(got), err)
	}
	const rounds = 30
	seen := map[string]int{}
	note := func(ds []booking.Delivery) {
		for _, d := range ds {
			seen[d.DedupID]++
			if d.Receives != 1 {
				t.Errorf("%s: got receive %d, want 1: an ended Receive had taken it along", d.DedupID, d.Receives)
			}
		}
	}
	for i := range rounds {
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		wg.Go(func() {
			got, err := h.Queue.Receive(ctx, 10, patience)
			if err != nil && (len(got) > 0 || !errors.Is(err, context.Canceled)) {
				t.Errorf("Receive whose context ended: got %d messages, %v", len(got), err)
			}
			note(got)
		})
		wg.Go(func() {
			if err := h.Other.Send(t.Context(), fmt.Sprintf("%04x", i), "id-"+fmt.Sprint(i), []byte("x")); err != nil {
				t.Errorf("Send: %v", err)
			}
			cancel()
		})
		wg.Wait()
	}
	if missing := rounds + 1 - len(seen); missing > 0 {
		note(receive(t, h.Queue, missing))
	}
	for id, n := range seen {
		if n != 1 {
			t.Errorf("%s: got %d deliveries, want 1", id, n)
		}
	}
}

// brokenCalls runs Send and Delete lost, and kept but reported lost, and repeats
// them as a caller would.
func brokenCalls(t *testing.T, h Harness) {
	for fault, times := range map[string]int{"Lost": 1, "Kept": 2} {
		for range times {
			send(t, h.Queue, "00aa", fault, fault)
		}
		got := receive(t, h.Queue, 1)
		if string(got[0].Body) != fault {
			t.Errorf("%s Send and its repeat: got %s, want %s", fault, got[0].Body, fault)
		}
		for range times {
			remove(t, h.Queue, got...)
		}
		nothing(t, h.Queue)
		h.Pass(h.Visibility + h.Slack)
		nothing(t, h.Queue)
	}
}

func stats(t *testing.T, h Harness) {
	counts(t, h, booking.QueueStats{})
	for i := range 3 {
		send(t, h.Queue, fmt.Sprintf("%04x", i), fmt.Sprint("id-", i), "x")
	}
	counts(t, h, booking.QueueStats{Waiting: 3})
	got := receive(t, h.Queue, 3)
	counts(t, h, booking.QueueStats{InFlight: 3})
	if err := h.Queue.Delay(t.Context(), got[0].Receipt, 0); err != nil {
		t.Fatalf("Delay: %v", err)
	}
	counts(t, h, booking.QueueStats{Waiting: 1, InFlight: 2})
	remove(t, h.Queue, got[1:]...)
	counts(t, h, booking.QueueStats{Waiting: 1})
}

// counts waits for these figures; the age is the driver's own test.
func counts(t *testing.T, h Harness, want booking.QueueStats) {
	t.Helper()
	var got booking.QueueStats
	eventually(t, func() bool {
		var err error
		if got, err = h.Other.Stats(t.Context()); err != nil {
			t.Fatalf("Stats: %v", err)
		}
		got.OldestAge = 0
		return got == want
	}, func() string { return fmt.Sprintf("stats: got %+v, want %+v", got, want) })
}

func manyAtOnce(t *testing.T, h Harness) {
	const senders, each = 10, 30
	var wg sync.WaitGroup
	for s := range senders {
		q := []Queue{h.Queue, h.Other}[s%2]
		wg.Go(func() {
			for i := range each {
				body := fmt.Sprintf("%02d-%03d", s, i)
				if err := q.Send(t.Context(), fmt.Sprintf("%04x", s), body, []byte(body)); err != nil {
					t.Errorf("Send: %v", err)
				}
			}
		})
	}

	var mu sync.Mutex
	out, got := map[string]bool{}, map[string][]string{}
	var left atomic.Int64
	left.Store(senders * each)
	ctx, cancel := context.WithTimeout(t.Context(), 3*patience)
	defer cancel()
	for r := range 4 {
		q := []Queue{h.Queue, h.Other}[r%2]
		wg.Go(func() {
			for left.Load() > 0 && ctx.Err() == nil {
				batch, err := q.Receive(ctx, 10, time.Second)
				if err != nil {
					t.Errorf("Receive: %v", err)
					return
				}
				mine := map[string]bool{}
				var receipts []string
				mu.Lock()
				for _, d := range batch {
					if out[d.Group] && !mine[d.Group] {
						t.Errorf("group %s was handed out while it was in flight", d.Group)
					}
					out[d.Group], mine[d.Group] = true, true
					got[d.Group] = append(got[d.Group], string(d.Body))
					receipts = append(receipts, d.Receipt)
				}
				mu.Unlock()
				if _, err := q.Stats(ctx); err != nil { // time for another to break in
					t.Errorf("Stats: %v", err)
				}
				mu.Lock()
				for group := range mine { // once deleted, others may have it
					delete(out, group)
				}
				mu.Unlock()
				if failed, err := q.Delete(ctx, receipts); err != nil || len(failed) > 0 {
					t.Errorf("Delete: got failed %q, %v", failed, err)
				}
				left.Add(-int64(len(batch)))
			}
		})
	}
	wg.Wait()
	for s := range senders {
		var want []string
		for i := range each {
			want = append(want, fmt.Sprintf("%02d-%03d", s, i))
		}
		if diff := cmp.Diff(want, got[fmt.Sprintf("%04x", s)]); diff != "" {
			t.Errorf("group %04x: each message once and in order (-want +got):\n%s", s, diff)
		}
	}
	if len(got) != senders {
		t.Errorf("groups: got %v, want %d", slices.Sorted(maps.Keys(got)), senders)
	}
	nothing(t, h.Queue)
}

func send(t *testing.T, q Queue, group, id, body string) {
	t.Helper()
	if err := q.Send(t.Context(), group, id, []byte(body)); err != nil {
		t.Fatalf("Send %s/%s: %v", group, id, err)
	}
}

// receive collects exactly n messages.
func receive(t *testing.T, q Queue, n int) []booking.Delivery {
	t.Helper()
	var got []booking.Delivery
	for end := time.Now().Add(patience); len(got) < n && time.Now().Before(end); {
		batch, err := q.Receive(t.Context(), 10, time.Second)
		if err != nil {
			t.Fatalf("Receive: %v", err)
		}
		got = append(got, batch...)
	}
	if len(got) != n {
		t.Fatalf("received %d messages %q, want %d", len(got), bodies(got), n)
	}
	return got
}

// receiveSome collects what one successful call gives.
func receiveSome(t *testing.T, q Queue) []booking.Delivery {
	t.Helper()
	for end := time.Now().Add(patience); time.Now().Before(end); {
		batch, err := q.Receive(t.Context(), 10, time.Second)
		if err != nil {
			t.Fatalf("Receive: %v", err)
		}
		if len(batch) > 0 {
			return batch
		}
	}
	t.Fatal("received nothing, want at least one message")
	return nil
}

func nothing(t *testing.T, q Queue) {
	t.Helper()
	if got, err := q.Receive(t.Context(), 10, 0); err != nil || len(got) != 0 {
		t.Fatalf("received %q, %v, want nothing", bodies(got), err)
	}
}

func remove(t *testing.T, q Queue, ds ...booking.Delivery) {
	t.Helper()
	var receipts []string
	for _, d := range ds {
		receipts = append(receipts, d.Receipt)
	}
	if failed, err := q.Delete(t.Context(), receipts); err != nil || len(failed) != 0 {
		t.Fatalf("Delete %q: got failed %q, %v", bodies(ds), failed, err)
	}
}

// bodies are sorted: groups come in any order.
func bodies(ds []booking.Delivery) []string { return slices.Sorted(slices.Values(bodiesInOrder(ds))) }

func bodiesInOrder(ds []booking.Delivery) []string {
	var out []string
	for _, d := range ds {
		out = append(out, string(d.Body))
	}
	return out
}

// eventually waits for what may lag.
func eventually(t *testing.T, ok func() bool, complaint func() string) {
	t.Helper()
	for end := time.Now().Add(patience); !ok(); {
		if time.Now().After(end) {
			t.Fatal(complaint())
		}
		select {
		case <-t.Context().Done():
			t.Fatal(complaint())
		case <-time.After(20 * time.Millisecond):
		}
	}
}
