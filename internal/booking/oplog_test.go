package booking_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"holdfast/internal/booking"
)

// logSamples are the entries on the page that other readers go by.
func logSamples(t *testing.T) (samples []booking.LogEntry, texts []string) {
	t.Helper()
	page, err := os.ReadFile("../../docs/shapes.md")
	if err != nil {
		t.Fatal(err)
	}
	m := regexp.MustCompile("(?s)```json log\n(.*?)\n```").FindSubmatch(page)
	if m == nil {
		t.Fatal("docs/shapes.md: got no ```json log block, want one")
	}
	for line := range bytes.Lines(m[1]) {
		var e booking.LogEntry
		d := json.NewDecoder(bytes.NewReader(line))
		d.DisallowUnknownFields()
		if err := d.Decode(&e); err != nil {
			t.Fatalf("sample entry: got %v, want it to decode without unknown fields", err)
		}
		samples, texts = append(samples, e), append(texts, string(bytes.TrimSpace(line)))
	}
	return samples, texts
}

func TestLogEntry_IsWhatTheShapesPageShows(t *testing.T) {
	t.Parallel()
	samples, texts := logSamples(t)
	if len(samples) != 2 || samples[0].Outcome != booking.LogBegun || samples[1].Outcome != booking.LogDone {
		t.Fatalf("samples: got %+v, want the two entries of one change", samples)
	}
	if diff := cmp.Diff(samples[1], samples[0].End(samples[1].At, booking.LogDone, samples[1].After)); diff != "" {
		t.Errorf("the change's second entry (-page +End):\n%s", diff)
	}
	for i, e := range samples {
		if got, err := e.Encode(); err != nil || got != texts[i] {
			t.Errorf("encoded: got %s, %v\nwant %s", got, err, texts[i])
		}
		if got, err := booking.DecodeLogEntry(e.ID, texts[i]); err != nil || !cmp.Equal(got, e) {
			t.Errorf("decoded: %v (-want +got):\n%s", err, cmp.Diff(e, got))
		}
		if got := e.Change(); got != samples[0].ID {
			t.Errorf("change of %s: got %s, want %s", e.ID, got, samples[0].ID)
		}
	}
}

func TestLogEntry_EqualEntriesAreEqualTexts(t *testing.T) {
	t.Parallel()
	samples, texts := logSamples(t)
	odd := samples[0]
	odd.At = odd.At.In(time.FixedZone("far", 6*3600))
	odd.Before = json.RawMessage(" {\"to_extend\": 211,\n \"already\":0}")
	if got, err := odd.Encode(); err != nil || got != texts[0] {
		t.Errorf("the same in another zone and with spaces: got %s, %v, want %s", got, err, texts[0])
	}
}

func TestLogEntry_WhatIsNotOursIsRefused(t *testing.T) {
	t.Parallel()
	samples, _ := logSamples(t)
	for name, spoil := range map[string]func(*booking.LogEntry){
		"of a new version":     func(e *booking.LogEntry) { e.Version++ },
		"without an id":        func(e *booking.LogEntry) { e.ID = "" },
		"with another id":      func(e *booking.LogEntry) { e.ID = "x" + e.ID[1:] + "#" },
		"at no time":           func(e *booking.LogEntry) { e.At = time.Time{} },
		"of nobody":            func(e *booking.LogEntry) { e.Who = "" },
		"from nowhere":         func(e *booking.LogEntry) { e.From = "" },
		"of nothing":           func(e *booking.LogEntry) { e.What = "" },
		"without an outcome":   func(e *booking.LogEntry) { e.Outcome = "" },
		"with another outcome": func(e *booking.LogEntry) { e.Outcome = "well" },
		"ended at its begin":   func(e *booking.LogEntry) { e.Outcome = booking.LogDone },
		"begun at its end":     func(e *booking.LogEntry) { e.ID += booking.LogEnding },
		"with no JSON before":  func(e *booking.LogEntry) { e.Before = json.RawMessage("{") },
	} {
		e := samples[0]
		spoil(&e)
		if text, err := e.Encode(); err == nil {
			t.Errorf("entry %s: got %s, want an error", name, text)
		}
	}
}

func TestDecodeLogEntry_SaysWhichCannotBeRead(t *testing.T) {
	t.Parallel()
	samples, texts := logSamples(t)
	id := samples[0].ID
	for name, text := range map[string]string{
		"no JSON":         `{"v":1,`,
		"a later version": strings.Replace(texts[0], `"v":1`, `"v":2`, 1),
		"another's":       texts[1],
		"nothing":         "",
	} {
		e, err := booking.DecodeLogEntry(id, text)
		if !errors.Is(err, booking.ErrUnreadable) || !strings.Contains(err.Error(), id) || !cmp.Equal(e, booking.LogEntry{ID: id}) {
			t.Errorf("%s: got %+v, %v, want ErrUnreadable that names the id, beside it", name, e, err)
		}
	}
}

func TestLogID_SortsByTime(t *testing.T) {
	t.Parallel()
	start := time.Date(2026, 12, 1, 4, 0, 0, 0, time.UTC)
	var ids []string
	for i := range 50 {
		at := start.Add(time.Duration(i) * time.Millisecond)
		id := booking.NewLogID(at)
		if got, ok := booking.LogIDTime(id + booking.LogEnding); !ok || !got.Equal(at) {
			t.Errorf("time of id %s: got %s, %t, want %s", id, got, ok, at)
		}
		if from := booking.LogIDsFrom(at); from >= id || i > 0 && from <= ids[len(ids)-1] {
			t.Errorf("ids from %s: got %q, want it before %s and behind the ids of earlier milliseconds", at, from, id)
		}
		ids = append(ids, id, id+booking.LogEnding)
	}
	if !slices.IsSorted(ids) {
		t.Errorf("ids: got %q, want them sorted by time, each change's second entry behind its first", ids)
	}
	if from := booking.LogIDsFrom(time.Time{}); from >= booking.NewLogID(time.UnixMilli(0)) {
		t.Errorf("ids from the zero time: got %q, want it before every id", from)
	}
	for _, text := range []string{"", ".end", "01m8qw4tg04f8r2tqz9e6wn1b", "01M8QW4TG04F8R2TQZ9E6WN1BD", ids[0] + ".end.end"} {
		if at, ok := booking.LogIDTime(text); ok {
			t.Errorf("time of %q: got %s, want that it is no id", text, at)
		}
	}
}
