package booking_test

import (
	"bytes"
	"encoding/json"
	"os"
	"regexp"
	"testing"
	"time"

	"holdfast/internal/booking"
)

// notificationSamples are the notifications on the page that other readers go by.
func notificationSamples(t *testing.T) (samples []booking.Notification, texts []string) {
	t.Helper()
	page, err := os.ReadFile("../../docs/shapes.md")
	if err != nil {
		t.Fatal(err)
	}
	m := regexp.MustCompile("(?s)```json notification\n(.*?)\n```").FindSubmatch(page)
	if m == nil {
		t.Fatal("docs/shapes.md: got no ```json notification block, want one")
	}
	for line := range bytes.Lines(m[1]) {
		var n booking.Notification
		d := json.NewDecoder(bytes.NewReader(line))
		d.DisallowUnknownFields()
		if err := d.Decode(&n); err != nil {
			t.Fatalf("sample notification: got %v, want it to decode without unknown fields", err)
		}
		samples, texts = append(samples, n), append(texts, string(bytes.TrimSpace(line)))
	}
	return samples, texts
}

func TestNotification_IsWhatTheShapesPageShows(t *testing.T) {
	t.Parallel()
	samples, texts := notificationSamples(t)
	if len(samples) != 2 {
		t.Fatalf("sample notifications: got %d, want one that could be read and one that could not", len(samples))
	}
	for i, n := range samples {
		if err := n.Validate(); err != nil {
			t.Errorf("sample %d: got %v, want a valid one", i, err)
		}
		if readable := n.Unreadable == ""; readable != (i == 0) {
			t.Errorf("sample %d: got readable %v, want %v", i, readable, i == 0)
		}
		got, err := json.Marshal(n)
		if err != nil || string(got) != texts[i] {
			t.Errorf("sample %d encoded again: got\n%s (%v), want\n%s", i, got, err, texts[i])
		}
	}
	if _, _, err := booking.ParseInvoice(samples[0].Invoice); err != nil {
		t.Errorf("sample's invoice: got %v, want one of ours", err)
	}
}

func TestNotification_ValidateNamesWhatIsWrong(t *testing.T) {
	t.Parallel()
	for name, spoil := range map[string]func(*booking.Notification){
		"version of the future": func(n *booking.Notification) { n.Version = 2 },
		"no version":            func(n *booking.Notification) { n.Version = 0 },
		"no id":                 func(n *booking.Notification) { n.ID = "" },
		"not received":          func(n *booking.Notification) { n.ReceivedAt = time.Time{} },
		"not sent":              func(n *booking.Notification) { n.SentAt = time.Time{} },
		"negative amount":       func(n *booking.Notification) { n.Amount = -1 },
		"no transaction":        func(n *booking.Notification) { n.Transaction = "" },
		"no currency":           func(n *booking.Notification) { n.Currency = "" },
	} {
		samples, _ := notificationSamples(t)
		n := samples[0]
		spoil(&n)
		if n.Validate() == nil {
			t.Errorf("%s: got nil, want an error", name)
		}
	}
}
