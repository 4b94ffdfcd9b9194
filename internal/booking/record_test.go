package booking_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"holdfast/internal/booking"
)

// sample is the record on the page that other readers of records go by.
func sample(t *testing.T) (booking.Record, []byte) {
	t.Helper()
	page, err := os.ReadFile("../../docs/shapes.md")
	if err != nil {
		t.Fatal(err)
	}
	m := regexp.MustCompile("(?s)```json record\n(.*?)\n```").FindSubmatch(page)
	if m == nil {
		t.Fatal("docs/shapes.md: got no ```json record block, want one")
	}
	var rec booking.Record
	d := json.NewDecoder(bytes.NewReader(m[1]))
	d.DisallowUnknownFields()
	if err := d.Decode(&rec); err != nil {
		t.Fatalf("sample record: got %v, want it to decode without unknown fields", err)
	}
	return rec, m[1]
}

func TestRecord_IsWhatTheShapesPageShows(t *testing.T) {
	t.Parallel()
	rec, text := sample(t)
	if err := rec.Validate(); err != nil {
		t.Errorf("sample record: got %v, want a valid one", err)
	}
	got, err := json.Marshal(rec)
	if err != nil || string(got) != string(text) {
		t.Errorf("sample record encoded again: got\n%s (%v), want\n%s", got, err, text)
	}
	if rec.RequestID = ""; rec.Validate() != nil {
		t.Error("record of before there was a request_id: got it refused, want it read")
	}
	if want := booking.HeldTTL(rec.Deadline); !rec.TTL.Equal(want) {
		t.Errorf("sample record's ttl: got %s, want %s", rec.TTL, want)
	}
}

func TestRecord_ValidateNamesWhatIsWrong(t *testing.T) {
	t.Parallel()
	other := booking.AttemptID(booking.NewEpoch(start), booking.NewAttemptSuffix(start))
	for name, spoil := range map[string]func(*booking.Record){
		"version of the future":     func(r *booking.Record) { r.Version = 2 },
		"no version":                func(r *booking.Record) { r.Version = 0 },
		"another candidate's hash":  func(r *booking.Record) { r.CandidateHash = booking.CandidateHash("AB-1002") },
		"another code":              func(r *booking.Record) { r.Code = "AB-1002" },
		"no attempt":                func(r *booking.Record) { r.Attempt = "" },
		"another attempt":           func(r *booking.Record) { r.Attempt = other },
		"another epoch":             func(r *booking.Record) { r.Epoch = booking.NewEpoch(start) },
		"another attempt's invoice": func(r *booking.Record) { r.Invoice = booking.Invoice(r.CandidateHash, other) },
		"no invoice":                func(r *booking.Record) { r.Invoice = "" },
		"a request id of two words": func(r *booking.Record) { r.RequestID = "a b" },
		"a request id of 65":        func(r *booking.Record) { r.RequestID = strings.Repeat("a", 65) },
		"no payment":                func(r *booking.Record) { r.PaymentID = "" },
		"no level":                  func(r *booking.Record) { r.Level = "" },
		"no amount":                 func(r *booking.Record) { r.Amount = 0 },
		"negative amount":           func(r *booking.Record) { r.Amount = -1 },
		"no currency":               func(r *booking.Record) { r.Currency = "" },
		"no admission":              func(r *booking.Record) { r.AdmittedAt = time.Time{} },
		"no deadline":               func(r *booking.Record) { r.Deadline = time.Time{} },
		"no state":                  func(r *booking.Record) { r.State = "" },
		"unknown state":             func(r *booking.Record) { r.State = "held" },
	} {
		rec, _ := sample(t)
		spoil(&rec)
		if err := rec.Validate(); err == nil {
			t.Errorf("%s: got nil, want an error", name)
		}
	}
	for _, state := range []booking.RecordState{booking.StateHeld, booking.StatePaid, booking.StateReleased} {
		rec, _ := sample(t)
		rec.State = state
		if err := rec.Validate(); err != nil {
			t.Errorf("state %s: got %v, want nil", state, err)
		}
	}
}

func TestCharge_CheckFindsEveryDifference(t *testing.T) {
	t.Parallel()
	ordered, _ := sample(t)
	paid := booking.Charge{
		Status: booking.ChargeCompleted, PaymentID: ordered.PaymentID, Invoice: ordered.Invoice,
		Transaction: "TRX1", Amount: ordered.Amount, Currency: ordered.Currency,
	}
	if err := paid.Check(ordered); err != nil {
		t.Errorf("charge as ordered: got %v, want nil", err)
	}
	for name, spoil := range map[string]func(*booking.Charge){
		"another invoice":     func(c *booking.Charge) { c.Invoice += "x" },
		"no invoice":          func(c *booking.Charge) { c.Invoice = "" },
		"one unit less":       func(c *booking.Charge) { c.Amount-- },
		"one unit more":       func(c *booking.Charge) { c.Amount++ },
		"major as minor":      func(c *booking.Charge) { c.Amount /= 100 },
		"nothing":             func(c *booking.Charge) { c.Amount = 0 },
		"negative":            func(c *booking.Charge) { c.Amount = -c.Amount },
		"another currency":    func(c *booking.Charge) { c.Currency = "USD" },
		"small-case currency": func(c *booking.Charge) { c.Currency = "bdt" },
		"no currency":         func(c *booking.Charge) { c.Currency = "" },
	} {
		c := paid
		spoil(&c)
		if err := c.Check(ordered); !errors.Is(err, booking.ErrOtherThanOrdered) {
			t.Errorf("%s: got %v, want ErrOtherThanOrdered", name, err)
		}
	}
	// Nothing is known of this payment's money then: nothing may rest on it.
	for name, spoil := range map[string]func(*booking.Charge){
		"another payment": func(c *booking.Charge) { c.PaymentID = "TR2" },
		"no payment":      func(c *booking.Charge) { c.PaymentID = "" },
		"no transaction":  func(c *booking.Charge) { c.Transaction = "" },
	} {
		c := paid
		spoil(&c)
		c.Amount++ // and that does not make it a refund
		if err := c.Check(ordered); !errors.Is(err, booking.ErrInDoubt) || errors.Is(err, booking.ErrOtherThanOrdered) {
			t.Errorf("%s: got %v, want ErrInDoubt", name, err)
		}
	}
}

// An hour and a day after its release, each once; what else becomes of the record
// or the clock asks no more often than that.
func TestRecord_EndedAttemptIsAskedAboutTwice(t *testing.T) {
	t.Parallel()
	rec, _ := sample(t)
	released := rec.Deadline.Add(20 * time.Second)
	rec.State, rec.TTL = booking.StateReleased, booking.ReleasedTTL(released)
	if got := rec.ReleasedAt(); !got.Equal(released) {
		t.Errorf("released at: got %s, want %s", got, released)
	}
	const day = 24 * time.Hour
	never := -time.Hour // before the release, so not noted
	for _, tt := range []struct {
		at, asked time.Duration // after the release
		want      bool
	}{
		{0, never, false},
		{time.Hour - time.Second, never, false},
		{time.Hour, never, true},
		{day - time.Second, never, true},
		{time.Hour, time.Hour, false},
		{day - time.Second, time.Hour, false},
		{day, time.Hour, true},
		{day, day - time.Second, true},
		{day, day, false},
		{29 * day, day, false},
		{29 * day, never, true},                     // by a fleet that stood still
		{29*day + time.Minute, 29 * day, false},     // and that was both questions
		{2 * time.Hour, 3*time.Hour - 1, false},     // a clock that differs a little
		{2 * time.Hour, 3*time.Hour + 1, true},      // one that was put back
		{2 * time.Hour, 3 * day, true},              // by days
		{time.Hour - time.Second, 3 * day, false},   // the hour is not over all the same
		{-3 * day, never, false},                    // released by a clock that was ahead
		{day + time.Minute, day + time.Hour, false}, // asked, by a clock a little ahead
	} {
		r := rec
		if tt.asked != never {
			r.AskedAt = released.Add(tt.asked)
		}
		if got := r.AskAgain(released.Add(tt.at)); got != tt.want {
			t.Errorf("%s after the release, asked after %s: got %t, want %t", tt.at, tt.asked, got, tt.want)
		}
	}
	for _, state := range []booking.RecordState{booking.StateHeld, booking.StatePaid} {
		r := rec
		r.State = state
		if r.AskAgain(released.Add(2 * day)) {
			t.Errorf("%s: got it asked about, want only what has ended", state)
		}
	}
	rec.TTL = time.Time{}
	if got := rec.ReleasedAt(); !got.Equal(rec.Deadline) {
		t.Errorf("released at, without a TTL: got %s, want the deadline, %s", got, rec.Deadline)
	}
}
