package saleops_test

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"holdfast/internal/booking"
	"holdfast/internal/booking/bookingtest"
	"holdfast/internal/saleops"
)

// die has a message received as often as it may be.
func (w *world) die(t *testing.T, dedup string, body []byte) {
	t.Helper()
	must(t, w.queue.Send(t.Context(), "0000", dedup, body))
	got, err := w.queue.Receive(t.Context(), 1, 0)
	if err != nil || len(got) != 1 {
		t.Fatalf("receive: got %v, %v, want the message", got, err)
	}
	w.Clock.Advance(10 * time.Minute) // its visibility is over
	if got, err := w.queue.Receive(t.Context(), 1, 0); err != nil || len(got) != 0 {
		t.Fatalf("receive again: got %v, %v, want that it is dead", got, err)
	}
}

func TestDeadLetters_SayWhatEachIsAndNobodysName(t *testing.T) {
	w := open(t)
	b := w.Unwritten(t, 1, "N1")
	body, err := json.Marshal(b.Record)
	must(t, err)
	w.die(t, b.Record.Invoice, body)
	w.die(t, "odd", []byte(`{"v":1,"code":"C0002 <c@example.org>"}`))
	w.die(t, "garbled", []byte(`{"v":1,"code":"C0003`))
	w.die(t, "typed", []byte(`{"v":"C0004"}`))
	last := "0"
	if strings.HasSuffix(b.Record.Invoice, last) {
		last = "1"
	}
	other := b.Record.Invoice[:len(b.Record.Invoice)-1] + last
	w.die(t, other, body)
	d := &saleops.DeadLetters{Queue: w.queue, Store: w.Store}
	list, err := d.List(t.Context(), 10)
	if err != nil || len(list) != 5 {
		t.Fatalf("list: got %+v, %v, want five", list, err)
	}
	if got := list[0]; got.ID != b.Attempt || got.Attempt != b.Attempt || got.Level != "N1" || got.Unreadable != "" || got.Record.State != "" ||
		got.Record.Unknown != "" || got.Receives != 1 || got.Bytes != len(body) || !got.Deadline.Equal(b.Record.Deadline) {
		t.Errorf("the record's: got %+v, want its attempt, without a record", got)
	}
	for _, l := range list[1:] {
		if l.Unreadable == "" || l.Attempt != "" || len(l.SHA256) != 64 || l.ID == "" || l.Record.Unknown == "" {
			t.Errorf("one that is no record: got %+v, want that it says so", l)
		}
	}
	text, err := json.Marshal(list)
	must(t, err)
	for _, name := range []string{"C000", bookingtest.Code(1), "@example.org", b.Record.CandidateHash} {
		if strings.Contains(string(text), name) {
			t.Errorf("the list has %q: %s", name, text)
		}
	}

	// The worker wrote the record meanwhile.
	w.Write(t, b)
	one, err := d.Find(t.Context(), 10, b.Attempt)
	if err != nil || len(one) != 1 || one[0].Record.State != booking.StateHeld {
		t.Errorf("find: got %+v, %v, want the one, whose record is HELD", one, err)
	}
	if _, err := d.Find(t.Context(), 10, b.Attempt, "x-none"); !errors.Is(err, saleops.ErrNoDeadLetter) || !strings.Contains(err.Error(), "x-none") {
		t.Errorf("find none: got %v, want ErrNoDeadLetter", err)
	}
	if most, err := d.List(t.Context(), 2); err != nil || len(most) != 2 {
		t.Errorf("list of two: got %d, %v, want 2", len(most), err)
	}

	for _, want := range []int{1, 0} { // repeated there is nothing left to do
		if n, err := d.Redrive(t.Context(), one); err != nil || n != want {
			t.Errorf("redrive of one: got %d, %v, want %d", n, err, want)
		}
	}
	if n, err := d.Redrive(t.Context(), nil); err != nil || n != 0 {
		t.Errorf("redrive of none: got %d, %v, want 0", n, err)
	}
	if n, err := d.RedriveAll(t.Context()); err != nil || n != 4 {
		t.Errorf("redrive of all: got %d, %v, want the other 4", n, err)
	}
	if stats, err := d.Stats(t.Context()); err != nil || stats.Dead != 0 || stats.Waiting != 5 {
		t.Errorf("figures: got %+v, %v, want five that wait", stats, err)
	}
}
