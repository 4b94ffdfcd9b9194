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

// refundSamples are the refunds on the page that other readers go by.
func refundSamples(t *testing.T) (samples []booking.Refund, texts []string) {
	t.Helper()
	page, err := os.ReadFile("../../docs/shapes.md")
	if err != nil {
		t.Fatal(err)
	}
	m := regexp.MustCompile("(?s)```json refund\n(.*?)\n```").FindSubmatch(page)
	if m == nil {
		t.Fatal("docs/shapes.md: got no ```json refund block, want one")
	}
	for line := range bytes.Lines(m[1]) {
		var r booking.Refund
		d := json.NewDecoder(bytes.NewReader(line))
		d.DisallowUnknownFields()
		if err := d.Decode(&r); err != nil {
			t.Fatalf("sample refund: got %v, want it to decode without unknown fields", err)
		}
		samples, texts = append(samples, r), append(texts, string(bytes.TrimSpace(line)))
	}
	return samples, texts
}

func TestRefund_IsWhatTheShapesPageShows(t *testing.T) {
	t.Parallel()
	samples, texts := refundSamples(t)
	if len(samples) != 2 || samples[0].State != booking.RefundDue || samples[1].State != booking.RefundDone {
		t.Fatalf("sample refunds: got %d, want one that is due and one that is done", len(samples))
	}
	for i, r := range samples {
		if err := r.Validate(); err != nil {
			t.Errorf("sample %d: got %v, want a valid one", i, err)
		}
		if err := r.Order().Validate(); err != nil {
			t.Errorf("sample %d as an order: got %v, want one that can be sent", i, err)
		}
		got, err := json.Marshal(r)
		if err != nil || string(got) != texts[i] {
			t.Errorf("sample %d encoded again: got\n%s (%v), want\n%s", i, got, err, texts[i])
		}
	}
	rec, _ := sample(t)
	charge := booking.Charge{Transaction: samples[0].Transaction, PaymentID: rec.PaymentID, Amount: rec.Amount, Currency: rec.Currency}
	got := booking.NewRefund(rec, charge, booking.MoneyLate, booking.Decision{
		Reason: "full", At: samples[0].DecidedAt.In(time.FixedZone("far", 6*3600)),
	})
	if got != samples[0] {
		t.Errorf("refund of the sample record: got %+v, want the first sample %+v", got, samples[0])
	}
}

func TestRefund_ValidateNamesWhatIsWrong(t *testing.T) {
	t.Parallel()
	for name, spoil := range map[string]func(*booking.Refund){
		"version of the future": func(r *booking.Refund) { r.Version = 2 },
		"no version":            func(r *booking.Refund) { r.Version = 0 },
		"no transaction":        func(r *booking.Refund) { r.Transaction = "" },
		"no payment":            func(r *booking.Refund) { r.PaymentID = "" },
		"no candidate":          func(r *booking.Refund) { r.CandidateHash = "" },
		"no attempt":            func(r *booking.Refund) { r.Attempt = "" },
		"no amount":             func(r *booking.Refund) { r.Amount = 0 },
		"negative amount":       func(r *booking.Refund) { r.Amount = -1 },
		"no currency":           func(r *booking.Refund) { r.Currency = "" },
		"no state":              func(r *booking.Refund) { r.State = "" },
		"unknown state":         func(r *booking.Refund) { r.State = "DUE" },
		"no decision":           func(r *booking.Refund) { r.DecidedAt = time.Time{} },
	} {
		samples, _ := refundSamples(t)
		r := samples[0]
		spoil(&r)
		if r.Validate() == nil {
			t.Errorf("%s: got nil, want an error", name)
		}
	}
	for _, state := range []booking.RefundState{booking.RefundDue, booking.RefundSent, booking.RefundDone} {
		samples, _ := refundSamples(t)
		r := samples[0]
		r.State = state
		if err := r.Validate(); err != nil {
			t.Errorf("state %s: got %v, want nil", state, err)
		}
	}
}
