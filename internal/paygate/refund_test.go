package paygate_test

import (
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"holdfast/internal/booking"
	"holdfast/internal/mockgateway"
	"holdfast/internal/paygate"
)

// refunded is a refund answer, changed by the pairs; a nil value takes the field
// away.
func refunded(change map[string]any) string {
	return object(map[string]any{
		"originalTrxID": "CK250NROQ5", "refundTrxID": "CR250NROQ5", "transactionStatus": "Completed", "amount": "599.00",
		"currency": "BDT", "charge": "0.00", "completedTime": "2025-11-02T15:00:00:001 GMT+0600",
		"statusCode": "0000", "statusMessage": "Successful",
	}, change)
}

func TestRefund_AgainstTheMock(t *testing.T) {
	t.Parallel()
	base, press := mock(t, mockgateway.Options{})
	g, err := paygate.NewGranter(base, credentials, httpClient(t))
	if err != nil {
		t.Fatal(err)
	}
	grant, err := g.Grant(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	b := newBench(t, base, httpClient(t))
	b.tokens.all = []string{string(grant.IDToken)}
	p, err := b.client.Create(t.Context(), seat)
	if err != nil {
		t.Fatal(err)
	}
	press(p.URL, url.Values{"outcome": {"success"}})
	paid, err := b.client.Execute(t.Context(), p.ID)
	if err != nil {
		t.Fatal(err)
	}

	found, err := b.client.Search(t.Context(), paid.Transaction)
	if err != nil || !found.Found || !found.Completed || found.Amount != seat.Amount || found.Currency != "BDT" || found.CompletedAt.IsZero() {
		t.Errorf("Search: got %+v, %v; want it found, completed, as paid", found, err)
	}
	if found, err := b.client.Search(t.Context(), "NONE000000"); err != nil || found.Found {
		t.Errorf("Search of a transaction that is not there: got %+v, %v; want it not found", found, err)
	}

	order := booking.RefundOrder{PaymentID: p.ID, Transaction: paid.Transaction, Amount: paid.Amount, Currency: "BDT", SKU: "N5", Reason: "late"}
	if got, err := b.client.RefundStatus(t.Context(), p.ID, paid.Transaction); err != nil || got.Done || got.Code != "2033" {
		t.Errorf("RefundStatus before the refund: got %+v, %v; want not done with code 2033", got, err)
	}
	more := order
	more.Amount++
	if got, err := b.client.Refund(t.Context(), more); err != nil || got.Done || got.Code != "2026" {
		t.Errorf("Refund of too much: got %+v, %v; want not done with code 2026", got, err)
	}
	other := order
	other.Transaction = "NONE000000"
	if got, err := b.client.Refund(t.Context(), other); err != nil || got.Done || got.Code != "2028" {
		t.Errorf("Refund of another transaction: got %+v, %v; want not done with code 2028", got, err)
	}
	done, err := b.client.Refund(t.Context(), order)
	if err != nil || done.Check(order) != nil || done.CompletedAt.IsZero() {
		t.Errorf("Refund: got %+v, %v; want done as ordered", done, err)
	}
	if got, err := b.client.RefundStatus(t.Context(), p.ID, paid.Transaction); err != nil || got != done {
		t.Errorf("RefundStatus after the refund: got %+v, %v; want %+v", got, err, done)
	}
	// Already reversed says that there is a refund, not which: ask.
	_, err = b.client.Refund(t.Context(), order)
	wantErr(t, "second Refund", err, booking.ErrInDoubt)
	wantNoSecret(t, "log", b.log.String())
}

func TestRefund_SendsWhatTheGatewayWants(t *testing.T) {
	t.Parallel()
	var path string
	var body map[string]any
	b := serving(t, func(w http.ResponseWriter, r *http.Request) {
		path, body = r.URL.Path, nil
		if err := json.NewDecoder(r.Body).Decode(&body); err != nil {
			t.Errorf("body: %v", err)
		}
		_, _ = io.WriteString(w, refunded(nil))
	})
	want := booking.RefundAnswer{
		Done: true, Transaction: "CR250NROQ5", Original: "CK250NROQ5", Amount: 59900, Currency: "BDT",
		CompletedAt: time.Date(2025, 11, 2, 9, 0, 0, 1e6, time.UTC), Code: "0000", Text: "Successful",
	}
	got, err := b.client.Refund(t.Context(), refundOrder)
	if diff := cmp.Diff(want, got); diff != "" || err != nil {
		t.Errorf("Refund: %v, -want +got:\n%s", err, diff)
	}
	sent := map[string]any{"paymentID": "TR1", "trxID": "CK250NROQ5", "amount": "599.00", "sku": "N5", "reason": "second payment"}
	if diff := cmp.Diff(sent, body); diff != "" || path != "/tokenized/checkout/payment/refund" {
		t.Errorf("refund went to %s: -want +got:\n%s", path, diff)
	}
	got, err = b.client.RefundStatus(t.Context(), "TR1", "CK250NROQ5")
	if diff := cmp.Diff(want, got); diff != "" || err != nil {
		t.Errorf("RefundStatus: %v, -want +got:\n%s", err, diff)
	}
	if diff := cmp.Diff(map[string]any{"paymentID": "TR1", "trxID": "CK250NROQ5"}, body); diff != "" || path != "/tokenized/checkout/payment/refund" {
		t.Errorf("refund status went to %s: -want +got:\n%s", path, diff)
	}
}

func TestRefund_ThatIsNotWholeIsNotSent(t *testing.T) {
	t.Parallel()
	var came atomic.Int32
	b := serving(t, func(http.ResponseWriter, *http.Request) { came.Add(1) })
	// Without its amount it would be a question, and the answer be taken for a refund.
	_, err := b.client.Refund(t.Context(), booking.RefundOrder{PaymentID: "TR1", Transaction: "CK250NROQ5", Currency: "BDT", SKU: "N5", Reason: "late"})
	wantErr(t, "Refund of nothing", err, booking.ErrNotSent)
	if got := came.Load(); got != 0 {
		t.Errorf("%d requests came, want 0", got)
	}
}

func TestRefund_WithoutAnAnswerIsAskedAboutNotSentAgain(t *testing.T) {
	t.Parallel()
	var refunds atomic.Int32
	b := serving(t, func(w http.ResponseWriter, r *http.Request) {
		var body map[string]string
		_ = json.NewDecoder(r.Body).Decode(&body)
		if body["amount"] != "" {
			refunds.Add(1)
			panic(http.ErrAbortHandler) // done, and nobody hears
		}
		_, _ = io.WriteString(w, refunded(nil))
	})
	_, err := b.client.Refund(t.Context(), refundOrder)
	wantErr(t, "Refund", err, booking.ErrInDoubt)
	if got, err := b.client.RefundStatus(t.Context(), "TR1", "CK250NROQ5"); err != nil || got.Check(refundOrder) != nil {
		t.Errorf("RefundStatus: got %+v, %v; want done as ordered", got, err)
	}
	if got := refunds.Load(); got != 1 {
		t.Errorf("%d refunds came, want 1", got)
	}
}

func TestRefund_LessThanARefundIsInDoubt(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]map[string]any{
		"no transaction":       {"refundTrxID": nil},
		"a strange one":        {"refundTrxID": "CR 1"},
		"another's":            {"originalTrxID": "CK250NROQ6"},
		"another payment's":    {"paymentID": "TR2"},
		"no status":            {"transactionStatus": nil},
		"begun":                {"transactionStatus": "Initiated"},
		"no currency":          {"currency": nil},
		"no amount":            {"amount": nil},
		"amount 1e2":           {"amount": "1e2"},
		"amount a number, 1e2": {"amount": json.RawMessage("1e2")},
		"amount negative":      {"amount": "-599.00"},
		"refused, but done":    {"statusCode": "2026"},
		"no code":              {"statusCode": nil},
		"v2 errors":            {"statusCode": nil, "statusMessage": nil, "internalCode": "refund_failed", "errorMessageEn": "words"},
	} {
		b := answering(t, 200, refunded(change))
		got, err := b.client.Refund(t.Context(), refundOrder)
		wantErr(t, name+": Refund", err, booking.ErrInDoubt)
		status, serr := b.client.RefundStatus(t.Context(), "TR1", "CK250NROQ5")
		wantErr(t, name+": RefundStatus", serr, booking.ErrInDoubt)
		if got != (booking.RefundAnswer{}) || status != (booking.RefundAnswer{}) {
			t.Errorf("%s: got %+v and %+v beside the errors, want nothing", name, got, status)
		}
	}
}

func TestSearch_ReadsWhatTheGatewayWrites(t *testing.T) {
	t.Parallel()
	body := func(change map[string]any) string {
		return object(map[string]any{
			"trxID": "CK250NROQ5", "transactionStatus": "Completed", "transactionType": "10002294", "amount": "599", "currency": "BDT",
			"customerMsisdn": msisdn, "completedTime": "2025-11-02T15:00:00:001 GMT+0600", "statusCode": "0000", "statusMessage": "Successful",
		}, change)
	}
	whole := booking.TransactionAnswer{
		Found: true, Completed: true, Transaction: "CK250NROQ5", Amount: 59900, Currency: "BDT",
		CompletedAt: time.Date(2025, 11, 2, 9, 0, 0, 1e6, time.UTC), Code: "0000", Text: "Successful",
	}
	begun := whole
	begun.Completed = false
	untimed := whole
	untimed.CompletedAt = time.Time{}
	ordered := whole
	ordered.Reference = booking.Invoice(booking.CandidateHash("P0001"), booking.AttemptID(booking.NewEpoch(time.Now()), booking.NewAttemptSuffix(time.Now())))
	for name, tc := range map[string]struct {
		change map[string]any
		want   booking.TransactionAnswer
	}{
		"as documented":     {nil, whole},
		"not completed":     {map[string]any{"transactionStatus": "Initiated"}, begun},
		"a word nobody has": {map[string]any{"transactionStatus": "Reversed"}, begun},
		"time unreadable":   {map[string]any{"completedTime": "yesterday"}, untimed},
		"reference of ours": {map[string]any{"transactionReference": ordered.Reference}, ordered},
		"payer's own words": {map[string]any{"transactionReference": "rent, " + msisdn}, whole},
	} {
		got, err := answering(t, 200, body(tc.change)).client.Search(t.Context(), "CK250NROQ5")
		if diff := cmp.Diff(tc.want, got); diff != "" || err != nil {
			t.Errorf("%s: %v, -want +got:\n%s", name, err, diff)
		}
	}
	for name, change := range map[string]map[string]any{
		"another transaction":    {"trxID": "CK250NROQ6"},
		"no transaction":         {"trxID": nil},
		"no amount":              {"amount": nil},
		"amount 1e2":             {"amount": "1e2"},
		"amount negative":        {"amount": "-599"},
		"no currency":            {"currency": nil},
		"unknown, but completed": {"statusCode": "2033"},
	} {
		_, err := answering(t, 200, body(change)).client.Search(t.Context(), "CK250NROQ5")
		wantErr(t, name, err, booking.ErrInDoubt)
	}
}

// Case 20: an amount is compared in minor units, and one that can be read in two
// ways is no amount.
func TestAmounts_AreComparedInMinorUnits(t *testing.T) {
	t.Parallel()
	ordered := booking.Record{PaymentID: "TR1", Invoice: "inv-1", Amount: 10000, Currency: "BDT"}
	for _, tc := range []struct {
		amount string // as JSON
		want   error
	}{
		{`"100"`, nil},
		{`"100.0"`, nil},
		{`"100.00"`, nil},
		{`100`, nil},
		{`100.00`, nil},
		{`"1.00"`, booking.ErrOtherThanOrdered},
		{`"100.01"`, booking.ErrOtherThanOrdered},
		{`"99.99"`, booking.ErrOtherThanOrdered},
		{`"10000"`, booking.ErrOtherThanOrdered},
		{`"0"`, booking.ErrOtherThanOrdered},
		{`"1e2"`, booking.ErrInDoubt},
		{`1e2`, booking.ErrInDoubt},
		{`1E+2`, booking.ErrInDoubt},
		{`"-100"`, booking.ErrInDoubt},
		{`-100.00`, booking.ErrInDoubt},
		{`"+100"`, booking.ErrInDoubt},
		{`"100.001"`, booking.ErrInDoubt},
		{`"1,00"`, booking.ErrInDoubt},
		{`" 100"`, booking.ErrInDoubt},
		{`"BDT 100"`, booking.ErrInDoubt},
		{`""`, booking.ErrInDoubt},
		{`null`, booking.ErrInDoubt},
		{`true`, booking.ErrInDoubt},
	} {
		b := answering(t, 200, completed(map[string]any{"amount": json.RawMessage(tc.amount)}))
		for call, f := range map[string]func() (booking.Charge, error){
			"execute": func() (booking.Charge, error) { return b.client.Execute(t.Context(), "TR1") },
			"query":   func() (booking.Charge, error) { return b.client.Query(t.Context(), "TR1") },
		} {
			ch, err := f()
			if err == nil {
				err = ch.Check(ordered)
			}
			if !errors.Is(err, tc.want) || tc.want == nil && err != nil {
				t.Errorf("%s, amount %s: got %v, want %v", call, tc.amount, err, tc.want)
			}
		}
	}
	for _, amount := range []booking.Money{-10000, 0, 100, 9999, 10001, 1000000} {
		c := booking.Charge{Status: booking.ChargeCompleted, PaymentID: "TR1", Invoice: "inv-1", Transaction: "CK1", Amount: amount, Currency: "BDT"}
		if err := c.Check(ordered); !errors.Is(err, booking.ErrOtherThanOrdered) || !strings.Contains(err.Error(), amount.String()) {
			t.Errorf("Check of %s against 100.00: got %v, want %v with the amount", amount, err, booking.ErrOtherThanOrdered)
		}
	}
}
