package resolve_test

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"holdfast/internal/booking"
	"holdfast/internal/booking/bookingtest"
	"holdfast/internal/resolve"
)

// set writes a row past the scripts.
func (w *world) set(t *testing.T, code string, row booking.Row) {
	t.Helper()
	raw, err := json.Marshal(row)
	if err != nil {
		t.Fatal(err)
	}
	if err := w.rdb.HSet(t.Context(), prefix+"adm:seen", code, raw).Err(); err != nil {
		t.Fatal(err)
	}
}

func (w *world) run(t *testing.T, by, since time.Duration) resolve.Run {
	t.Helper()
	w.Clock.Advance(time.Millisecond) // what was admitted before was admitted before
	run, err := w.holds.NewRun(t.Context(), by, since)
	if err != nil {
		t.Fatal(err)
	}
	return run
}

// wantDeadline wants row and record to say the same.
func (w *world) wantDeadline(t *testing.T, b bookingtest.Booking, more time.Duration) {
	t.Helper()
	want := b.Record.Deadline.Add(more)
	if got := time.UnixMilli(w.Row(t, b.Code).Deadline).UTC(); !got.Equal(want) {
		t.Errorf("deadline of %s: got %s, want %s more", b.Code, got.Sub(b.Record.Deadline), more)
	}
	rec, err := w.Store.Record(t.Context(), b.Record.CandidateHash, b.Attempt)
	if err != nil {
		t.Errorf("record of %s: %v", b.Code, err)
		return
	}
	if rec.State == booking.StateHeld && !rec.Deadline.Equal(want) {
		t.Errorf("record of %s: got %s more, want %s", b.Code, rec.Deadline.Sub(b.Record.Deadline), more)
	}
}

func TestExtend_EveryoneWhoLostTimeOnce(t *testing.T) {
	w := open(t)
	missed := w.Held(t, 1, "N1") // over long before
	w.Clock.Advance(20*time.Minute + time.Second)
	past := w.Held(t, 2, "N1")
	w.Clock.Advance(12 * time.Minute)
	unwritten, refused := w.Unwritten(t, 3, "N2"), w.Refused(t, 4, "N2")
	run := w.run(t, 10*time.Minute, 0)
	late := w.Held(t, 5, "N2") // admitted while it runs

	want := resolve.Extended{Rows: 5, Extended: 3, Missed: 1, After: 1}
	if got, err := w.holds.Count(t.Context(), run); err != nil || got != want {
		t.Errorf("count: got %+v, %v, want %+v", got, err, want)
	}
	w.wantDeadline(t, past, 0)
	told := 0
	got, err := w.holds.Extend(t.Context(), run, func(resolve.Extended) { told++ })
	if err != nil || got != want || told != 5 {
		t.Errorf("extend: got %+v, %v, told %d times, want %+v", got, err, told, want)
	}
	want = resolve.Extended{Rows: 5, Already: 3, Missed: 1, After: 1}
	w.Clock.Advance(time.Minute)
	resumed, err := w.holds.Resume(t.Context(), run.ID)
	if diff := cmp.Diff(run, resumed); err != nil || diff != "" {
		t.Errorf("resume: %v (-want +got):\n%s", err, diff)
	}
	if got, err := w.holds.Extend(t.Context(), resumed, nil); err != nil || got != want {
		t.Errorf("repeated: got %+v, %v, want %+v", got, err, want)
	}
	for _, b := range []bookingtest.Booking{past, unwritten, refused} {
		w.wantDeadline(t, b, 10*time.Minute)
	}
	w.wantDeadline(t, missed, 0)
	w.wantDeadline(t, late, 0)

	// The time given is kept, and ends.
	w.sweep(t, 0)
	w.Want(t, past, booking.PhaseHeld, booking.StateHeld)
	w.Want(t, missed, "", booking.StateReleased)
	w.sweep(t, 20*time.Minute)
	w.Want(t, past, "", booking.StateReleased)
	w.Books.CheckAtRest(t)
}

// A run that broke off between ledger and record, or whose answers were not
// acknowledged, is finished by its repeat, and nobody gets the time twice.
func TestExtend_BrokenOffAndRepeated(t *testing.T) {
	t.Parallel()
	for name, breaks := range map[string]func(w *world, l *ledger) (heal func()){
		"LedgerLost": func(_ *world, l *ledger) func() {
			l.extend = func() (error, bool) { return booking.ErrNotAcknowledged, false }
			return func() { l.extend = nil }
		},
		"LedgerKept": func(_ *world, l *ledger) func() {
			l.extend = func() (error, bool) { return booking.ErrNotAcknowledged, true }
			return func() { l.extend = nil }
		},
		"RecordLost": func(w *world, _ *ledger) func() {
			w.Faults.Always(bookingtest.OpExtendRecord, bookingtest.Lost)
			return func() { w.Faults.Always(bookingtest.OpExtendRecord, bookingtest.None) }
		},
		"RecordKept": func(w *world, _ *ledger) func() {
			w.Faults.Always(bookingtest.OpExtendRecord, bookingtest.Kept)
			return func() { w.Faults.Always(bookingtest.OpExtendRecord, bookingtest.None) }
		},
		"PutLost": func(w *world, _ *ledger) func() {
			w.Faults.Always(bookingtest.OpPutHeld, bookingtest.Lost)
			return func() { w.Faults.Always(bookingtest.OpPutHeld, bookingtest.None) }
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := open(t)
			held, paying := w.Held(t, 1, "N1"), w.Paying(t, 2, "N1", "payer", payingFor)
			run := w.run(t, 10*time.Minute, 0)
			l := &ledger{Ledger: w.Ledger, gate: w.gate}
			w.holds.Ledger = l
			heal := breaks(w, l)
			got, err := w.holds.Extend(t.Context(), run, nil)
			if err != nil || got.Failed != 2 || got.Failure == "" {
				t.Errorf("broken: got %+v, %v, want 2 failed, and why", got, err)
			}
			heal()
			w.Clock.Advance(time.Minute)
			if got, err := w.holds.Extend(t.Context(), run, nil); err != nil || got.Failed != 0 || got.Extended+got.Already != 2 {
				t.Errorf("repeated: got %+v, %v, want both", got, err)
			}
			w.wantDeadline(t, held, 10*time.Minute)
			w.wantDeadline(t, paying, 10*time.Minute)
			w.Books.CheckAtRest(t)
		})
	}
}

// The record's message is on its way with the old deadline, and changes nothing.
func TestExtend_MessageThatComesLater(t *testing.T) {
	w := open(t)
	b := w.Unwritten(t, 1, "N1")
	if got, err := w.holds.Extend(t.Context(), w.run(t, time.Minute, 0), nil); err != nil || got.Extended != 1 {
		t.Fatalf("extend: got %+v, %v, want 1", got, err)
	}
	w.Write(t, b)
	w.wantDeadline(t, b, time.Minute)
	rec, err := w.Store.Record(t.Context(), b.Record.CandidateHash, b.Attempt)
	if err != nil || rec.PaymentURL != b.Payment.URL || rec.Signature != b.Payment.Signature {
		t.Errorf("record: got %+v, %v, want it with link and signature", rec, err)
	}
}

// Of two runs each gives its time; a repeat of the first after the second gives
// none.
func TestExtend_TwoRuns(t *testing.T) {
	w := open(t)
	b := w.Held(t, 1, "N1")
	first := w.run(t, time.Minute, 0)
	w.Clock.Advance(time.Second)
	second := w.run(t, 2*time.Minute, 0)
	for _, run := range []resolve.Run{first, second, first} {
		if _, err := w.holds.Extend(t.Context(), run, nil); err != nil {
			t.Fatal(err)
		}
	}
	w.wantDeadline(t, b, 3*time.Minute)
}

// A refused seat that its candidate took over meanwhile was admitted after the run
// began: its extension came along, and there is no second one.
func TestExtend_TakenOverBetweenRunAndRepeat(t *testing.T) {
	w := open(t)
	refused := w.Refused(t, 1, "N1")
	run := w.run(t, time.Minute, 0)
	if _, err := w.holds.Extend(t.Context(), run, nil); err != nil {
		t.Fatal(err)
	}
	w.Clock.Advance(time.Second)
	again := w.Held(t, 1, "N1")
	if got, err := w.holds.Extend(t.Context(), run, nil); err != nil || got.After != 1 {
		t.Errorf("repeated: got %+v, %v, want 1 admitted after", got, err)
	}
	if want := refused.Record.Deadline.Add(time.Minute); !again.Record.Deadline.Equal(want) {
		t.Errorf("deadline of the next attempt: got %s, want %s", again.Record.Deadline, want)
	}
}

func TestExtend_WhenNothingWorksItEnds(t *testing.T) {
	w := open(t)
	many := map[string]any{}
	row := booking.Row{Attempt: "a", Level: "N1", Phase: booking.PhaseHeld, AdmittedAt: 1, Hold: 1, Deadline: w.Clock.Now().Add(time.Hour).UnixMilli()}
	raw, err := json.Marshal(row)
	if err != nil {
		t.Fatal(err)
	}
	for i := range 400 {
		many[bookingtest.Code(i)] = raw
	}
	if err := w.rdb.HSet(t.Context(), prefix+"adm:seen", many).Err(); err != nil {
		t.Fatal(err)
	}
	got, err := w.holds.Extend(t.Context(), w.run(t, time.Minute, 0), nil)
	if err == nil || got.Failed < 64 || got.Failed > 200 {
		t.Errorf("damaged rows: got %+v, %v, want it ended soon after 64", got, err)
	}
	w.Faults.Next(bookingtest.OpRows, bookingtest.Lost)
	if _, err := w.holds.Extend(t.Context(), w.run(t, time.Minute, 0), nil); err == nil {
		t.Error("no scan: got nil, want an error")
	}
}

func TestRun_WhatIsRefused(t *testing.T) {
	w := open(t)
	for _, d := range []time.Duration{0, time.Millisecond, 1500 * time.Millisecond, -time.Minute, 25 * time.Hour} {
		if _, err := w.holds.NewRun(t.Context(), d, time.Minute); err == nil {
			t.Errorf("by %s: got nil, want an error", d)
		}
		if _, err := w.holds.NewRun(t.Context(), time.Minute, d); d != 0 && err == nil {
			t.Errorf("since %s: got nil, want an error", d)
		}
	}
	run := w.run(t, time.Minute, time.Hour)
	for _, id := range []string{"", "x", run.ID + "-x", strings.Replace(run.ID, "1m0s", "-1m", 1), strings.Replace(run.ID, "1m0s", "100h", 1), strings.Replace(run.ID, "1h0m0s", "1", 1)} {
		if _, err := w.holds.Resume(t.Context(), id); err == nil || errors.Is(err, resolve.ErrOtherLedger) {
			t.Errorf("resume %q: got %v, want that it is no run", id, err)
		}
	}
	_, err := w.holds.Resume(t.Context(), strings.Replace(run.ID, bookingtest.Epoch, "1nmkmg0bbbbb", 1))
	wantErr(t, "a run of another ledger", err, resolve.ErrOtherLedger)
	if err := w.rdb.Del(t.Context(), prefix+"adm:epoch").Err(); err != nil {
		t.Fatal(err)
	}
	_, err = w.holds.NewRun(t.Context(), time.Minute, 0)
	wantErr(t, "an empty ledger", err, booking.ErrLedgerUnknown)
}
