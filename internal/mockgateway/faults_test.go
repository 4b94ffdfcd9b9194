package mockgateway_test

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"holdfast/internal/mockgateway"
)

// lost makes a call that is to have no answer.
func (m *merchant) lost(ctx context.Context, path string, in any) {
	m.tb.Helper()
	if m.token == "" {
		m.token = m.grant().text("id_token")
	}
	body, err := json.Marshal(in)
	if err != nil {
		m.tb.Error(err) // not Fatal: goroutines come here too
	}
	a, err := m.do(ctx, http.MethodPost, checkout+path, map[string]string{"Authorization": m.token, "X-APP-Key": "app"}, string(body))
	if err == nil {
		m.tb.Errorf("%s: got HTTP %d %s, want no answer", path, a.status, a.body)
	}
}

// faults sets them through the admin API.
func (m *merchant) faults(invoice, faults string) {
	m.tb.Helper()
	a := m.must(http.MethodPut, "/mock/faults", nil, fmt.Sprintf(`{"merchantInvoiceNumber":%q,"faults":%s}`, invoice, faults))
	if a.status != http.StatusOK {
		m.tb.Fatalf("put faults %s: got HTTP %d %s", faults, a.status, a.body)
	}
}

// finished makes a payment with faults whose payer has pressed the button.
func (m *merchant) finished(invoice, faults string) (id string) {
	m.tb.Helper()
	m.faults(invoice, faults)
	id, page := m.create(invoice)
	m.press(page, "outcome=success")
	return id
}

func (m *merchant) paidBy(id string) (trx, status string) {
	m.tb.Helper()
	a := m.status(id)
	return a.text("trxID"), a.text("transactionStatus")
}

func (m *merchant) refund(id, trx, amount string) answered {
	m.tb.Helper()
	return m.call("/payment/refund", refundOf(id, trx, amount))
}

func refundOf(id, trx, amount string) map[string]string {
	return map[string]string{"paymentID": id, "trxID": trx, "amount": amount, "sku": "seat", "reason": "late"}
}

func wantCount(tb testing.TB, g *mockgateway.Gateway, name string, want map[string]int) {
	tb.Helper()
	got := g.FaultCounts()[name]
	if diff := cmp.Diff(want, got.ByPlace); diff != "" {
		tb.Errorf("count of %s: -want +got:\n%s", name, diff)
	}
	sum := 0
	for _, n := range want {
		sum += n
	}
	if got.Times != sum {
		tb.Errorf("count of %s: got %d times, want %d", name, got.Times, sum)
	}
}

func TestFault_NothingIsDone(t *testing.T) {
	t.Parallel()
	for fault, want := range map[string]string{
		"unauthorized": `{"message":"Unauthorized"}`,
		"unavailable":  `{"message":"Service Unavailable"}`,
		"maintenance":  `{"statusCode":"503","statusMessage":"System is undergoing maintenance. Please try again later"}`,
	} {
		t.Run(fault, func(t *testing.T) {
			t.Parallel()
			m, g := serveGateway(t, mockgateway.Options{})
			id := m.finished("inv-1", fmt.Sprintf(`[{"name":%q,"calls":["execute","refund"],"times":2}]`, fault))
			status := map[string]int{"unauthorized": 401, "unavailable": 503, "maintenance": 200}[fault]
			a := m.execute(id)
			if got := strings.TrimSpace(string(a.body)); a.status != status || got != want {
				t.Errorf("execute: got HTTP %d %s, want %d %s", a.status, got, status, want)
			}
			if trx, s := m.paidBy(id); s != "Initiated" {
				t.Errorf("status = %q, %q; want Initiated: nothing was done", s, trx)
			}
			m.refund(id, "x", "1") // the second of two times
			wantCode(t, "execute again", m.execute(id), "0000")
			wantCount(t, g, fault, map[string]int{"execute": 1, "refund": 1})
		})
	}
}

func TestFault_CutClosesTheConnectionAndDoesNothing(t *testing.T) {
	t.Parallel()
	m, g := serveGateway(t, mockgateway.Options{})
	id := m.finished("inv-1", `[{"name":"cut"}]`)
	m.lost(t.Context(), "/execute", map[string]string{"paymentID": id})
	wantCode(t, "execute again", m.execute(id), "0000")
	wantCount(t, g, "cut", map[string]int{"execute": 1})
}

func TestFault_NoAnswerKeepsTheConnectionUntilTheClientGivesUp(t *testing.T) {
	t.Parallel()
	m, g := serveGateway(t, mockgateway.Options{})
	id := m.finished("inv-1", `[{"name":"no_answer","calls":["execute","status"],"times":2}]`)
	for i, path := range []string{"/execute", "/payment/status"} {
		ctx, giveUp := context.WithCancel(t.Context())
		gone := m.kept(ctx, path, id)
		until(t, "the call has come in", func() bool { return g.FaultCounts()["no_answer"].Times > i })
		select {
		case <-gone:
			t.Errorf("%s: the connection was closed, want it kept open", path)
		default:
		}
		giveUp()
		<-gone
	}
	wantCode(t, "execute again", m.execute(id), "0000")
	wantCount(t, g, "no_answer", map[string]int{"execute": 1, "status": 1})
}

// kept makes a call about a payment that is to have no answer; the channel is
// closed when the call has ended.
func (m *merchant) kept(ctx context.Context, path, id string) <-chan struct{} {
	gone := make(chan struct{})
	go func() {
		defer close(gone)
		m.lost(ctx, path, map[string]string{"paymentID": id})
	}()
	return gone
}

func TestFault_NoAnswerEndsAfterItsDelay(t *testing.T) {
	t.Parallel()
	p := &probe{clock: clock{at: newClock().at}, asked: make(chan time.Duration, 1)}
	m := serve(t, mockgateway.Options{Now: p.Now, At: p.At})
	id := m.finished("inv-1", `[{"name":"no_answer","delay_ms":30000}]`)
	m.lost(t.Context(), "/execute", map[string]string{"paymentID": id})
	if got, want := <-p.asked, 30*time.Second; got != want {
		t.Errorf("the connection was kept for %s, want %s", got, want)
	}
	wantCode(t, "execute again", m.execute(id), "0000")
}

func TestFault_NoAnswerEndsWithTheGateway(t *testing.T) {
	t.Parallel()
	m, g := serveGateway(t, mockgateway.Options{})
	id := m.finished("inv-1", `[{"name":"no_answer"}]`)
	gone := m.kept(t.Context(), "/execute", id)
	until(t, "the call has come in", func() bool { return g.FaultCounts()["no_answer"].Times == 1 })
	g.HangUp()
	<-gone
	wantCode(t, "execute again", m.execute(id), "0000")
}

func TestFault_AnswerLostAfterTheMoneyMoved(t *testing.T) {
	t.Parallel()
	m, g := serveGateway(t, mockgateway.Options{})
	id := m.finished("inv-1", `[{"name":"answer_lost","calls":["execute","refund"],"times":2}]`)
	m.lost(t.Context(), "/execute", map[string]string{"paymentID": id})
	trx, s := m.paidBy(id)
	if s != "Completed" || trx == "" {
		t.Fatalf("status = %q, %q; want Completed with a transaction", s, trx)
	}
	wantCode(t, "execute again", m.execute(id), "2117")

	m.lost(t.Context(), "/payment/refund", refundOf(id, trx, "1500"))
	wantCode(t, "refund again", m.refund(id, trx, "1500"), "2034")
	if a := m.call("/payment/refund", map[string]string{"paymentID": id, "trxID": trx}); a.text("amount") != "1500" {
		t.Errorf("asking for the refund: got %s, want the one whose answer was lost", a.body)
	}
	wantCount(t, g, "answer_lost", map[string]int{"execute": 1, "refund": 1})
}

func TestFault_AnswerIsLostWhateverItWouldHaveSaid(t *testing.T) {
	t.Parallel()
	m := serve(t, mockgateway.Options{})
	id := m.finished("inv-1", `[{"name":"already_executed"},{"name":"already_refunded"},{"name":"answer_lost","calls":["execute","refund"],"times":2}]`)
	m.lost(t.Context(), "/execute", map[string]string{"paymentID": id})
	trx, s := m.paidBy(id)
	if s != "Completed" {
		t.Errorf("status = %q, want Completed", s)
	}
	m.lost(t.Context(), "/payment/refund", refundOf(id, trx, "1500"))
	wantCode(t, "asking for the refund", m.call("/payment/refund", map[string]string{"paymentID": id, "trxID": trx}), "0000")
}

func TestFault_AnswerIsNotLostWhereNothingWasDone(t *testing.T) {
	t.Parallel()
	m, g := serveGateway(t, mockgateway.Options{})
	m.faults("inv-1", `[{"name":"answer_lost"}]`)
	id, page := m.create("inv-1")
	wantCode(t, "execute before the payer", m.execute(id), "2060")
	wantCount(t, g, "answer_lost", nil)
	m.press(page, "outcome=success")
	m.lost(t.Context(), "/execute", map[string]string{"paymentID": id})
}

func TestFault_OfCreateIsSetBeforeThereIsAPayment(t *testing.T) {
	t.Parallel()
	m, g := serveGateway(t, mockgateway.Options{})
	m.faults("inv-1", `[{"name":"unauthorized","calls":["create"]},{"name":"answer_lost","calls":["create"]},{"name":"refused"}]`)
	if a := m.call("/create", order("inv-1")); a.status != http.StatusUnauthorized {
		t.Errorf("create: got HTTP %d, want 401", a.status)
	}
	m.lost(t.Context(), "/create", order("inv-1"))
	wantCode(t, "create again", m.call("/create", order("inv-1")), "2029")
	all, err := g.Payments("")
	if err != nil || len(all) != 1 {
		t.Fatalf("payments: got %v, %v; want the one whose answer was lost", all, err)
	}
	want := []mockgateway.Fault{
		{Name: "unauthorized", Calls: []string{"create"}, Applied: 1}, {Name: "answer_lost", Calls: []string{"create"}, Applied: 1}, {Name: "refused"},
	}
	if diff := cmp.Diff(want, all[0].Faults); diff != "" {
		t.Errorf("faults of the payment: -want +got:\n%s", diff)
	}
}

func TestFault_AlreadyExecuted(t *testing.T) {
	t.Parallel()
	m, g := serveGateway(t, mockgateway.Options{})
	paid := m.finished("inv-1", `[{"name":"already_executed"}]`)
	wantCode(t, "execute", m.execute(paid), "2117")
	if _, s := m.paidBy(paid); s != "Completed" {
		t.Errorf("already_executed: status = %q, want Completed", s)
	}
	unpaid := m.finished("inv-2", `[{"name":"already_executed_unpaid"}]`)
	wantCode(t, "execute", m.execute(unpaid), "2117")
	if _, s := m.paidBy(unpaid); s != "Initiated" {
		t.Errorf("already_executed_unpaid: status = %q, want Initiated", s)
	}
	wantCode(t, "execute once more", m.execute(unpaid), "0000")
	wantCount(t, g, "already_executed", map[string]int{"execute": 1})
	wantCount(t, g, "already_executed_unpaid", map[string]int{"execute": 1})
}

func TestFault_RefusedUsesThePaymentUp(t *testing.T) {
	t.Parallel()
	m := serve(t, mockgateway.Options{})
	id := m.finished("inv-1", `[{"name":"refused","code":"2015"}]`)
	wantCode(t, "execute", m.execute(id), "2015")
	wantCode(t, "execute again", m.execute(id), "2117")
	if _, s := m.paidBy(id); s != "Initiated" {
		t.Errorf("status = %q, want Initiated", s)
	}
}

func TestFault_CompletesLate(t *testing.T) {
	t.Parallel()
	c := newClock()
	m, g := serveGateway(t, mockgateway.Options{Now: c.Now, At: c.At})
	id := m.finished("inv-1", `[{"name":"completes_late","delay_ms":90000}]`)
	wantCode(t, "execute", m.execute(id), "2003")
	c.Advance(90*time.Second - time.Millisecond)
	if _, s := m.paidBy(id); s != "Initiated" {
		t.Errorf("status before its time = %q, want Initiated", s)
	}
	wantCode(t, "execute meanwhile", m.execute(id), "2117")
	c.Advance(time.Millisecond)
	a := m.status(id)
	if a.text("transactionStatus") != "Completed" || a.text("paymentExecuteTime") != "2026-12-01T10:01:30:000 GMT+0600" {
		t.Errorf("status at its time: got %s, want Completed at 10:01:30", a.body)
	}
	wantCode(t, "refund", m.refund(id, a.text("trxID"), "1500.00"), "0000")
	wantCount(t, g, "completes_late", map[string]int{"execute": 1})
}

func TestFault_OtherwiseThanOrdered(t *testing.T) {
	t.Parallel()
	m := serve(t, mockgateway.Options{})
	for _, tc := range []struct{ fault, amount, currency, invoice string }{
		{`{"name":"wrong_amount"}`, "1499.00", "BDT", "inv"},
		{`{"name":"wrong_amount","value":"1e2"}`, "1e2", "BDT", "inv"},
		{`{"name":"wrong_currency"}`, "1500.00", "USD", "inv"},
		{`{"name":"wrong_invoice","value":"other"}`, "1500.00", "BDT", "other"},
	} {
		invoice := "inv " + strings.ReplaceAll(tc.fault, `"`, "")
		wantInvoice := strings.Replace(tc.invoice, "inv", invoice, 1)
		id := m.finished(invoice, "["+tc.fault+"]")
		a := m.execute(id)
		if diff := cmp.Diff([]string{tc.amount, tc.currency, wantInvoice}, []string{a.text("amount"), a.text("currency"), a.text("merchantInvoiceNumber")}); diff != "" {
			t.Errorf("%s: execute: -want +got:\n%s", tc.fault, diff)
		}
		trx := a.text("trxID")
		a = m.status(id)
		if diff := cmp.Diff([]string{tc.amount, tc.currency, wantInvoice}, []string{a.text("amount"), a.text("currency"), a.text("merchantInvoice")}); diff != "" {
			t.Errorf("%s: status: -want +got:\n%s", tc.fault, diff)
		}
		a = m.call("/general/searchTransaction", map[string]string{"trxID": trx})
		if diff := cmp.Diff([]string{tc.amount, tc.currency}, []string{a.text("amount"), a.text("currency")}); diff != "" {
			t.Errorf("%s: search: -want +got:\n%s", tc.fault, diff)
		}
	}
}

func TestFault_WrongAmountThatMovedBoundsTheRefund(t *testing.T) {
	t.Parallel()
	m := serve(t, mockgateway.Options{})
	id := m.finished("inv-1", `[{"name":"wrong_amount","value":"10.00"}]`)
	trx := m.execute(id).text("trxID")
	wantCode(t, "refund of what was ordered", m.refund(id, trx, "1500.00"), "2026")
	wantCode(t, "refund of what was paid", m.refund(id, trx, "10.00"), "0000")
}

func TestFault_LieOfOneCallIsNotTheTruth(t *testing.T) {
	t.Parallel()
	m, g := serveGateway(t, mockgateway.Options{})
	id := m.finished("inv-1", `[{"name":"wrong_amount","calls":["execute","status"],"times":2}]`)
	if got := m.status(id).text("amount"); got != "1500.00" {
		t.Errorf("status before execute: amount = %q, want 1500.00", got)
	}
	if got := m.execute(id).text("amount"); got != "1499.00" {
		t.Errorf("execute: amount = %q, want 1499.00", got)
	}
	for i, want := range []string{"1499.00", "1500.00"} {
		if got := m.status(id).text("amount"); got != want {
			t.Errorf("status %d: amount = %q, want %s", i, got, want)
		}
	}
	all, err := g.Payments("")
	if err != nil || len(all) != 1 || len(all[0].Transactions) != 1 || all[0].Transactions[0].Amount != "1500.00" {
		t.Errorf("payments: got %+v, %v; want one transaction over 1500.00", all, err)
	}
	wantCount(t, g, "wrong_amount", map[string]int{"execute": 1, "status": 1})
}

func TestFault_TwoPayments(t *testing.T) {
	t.Parallel()
	c := newClock()
	m, g := serveGateway(t, mockgateway.Options{Now: c.Now, At: c.At})
	id := m.finished("inv-1", `[{"name":"two_payments","delay_ms":5000}]`)
	first := m.execute(id).text("trxID")
	c.Advance(5 * time.Second)
	if trx, _ := m.paidBy(id); trx != first {
		t.Errorf("status: trxID = %q, want the first, %q", trx, first)
	}
	all, err := g.Payments("")
	if err != nil || len(all) != 1 || len(all[0].Transactions) != 2 {
		t.Fatalf("payments: got %+v, %v; want one with two transactions", all, err)
	}
	second := all[0].Transactions[1].TrxID
	if second == first || second == "" {
		t.Errorf("second transaction = %q, want another than %q", second, first)
	}
	if a := m.call("/general/searchTransaction", map[string]string{"trxID": second}); a.text("trxID") != second || a.text("amount") != "1500.00" {
		t.Errorf("search: got %s, want the second transaction", a.body)
	}
	// Each has its own money to give back.
	wantCode(t, "refund of the second", m.refund(id, second, "1500.00"), "0000")
	wantCode(t, "refund of the second, again", m.refund(id, second, "1500.00"), "2034")
	wantCode(t, "refund of the first", m.refund(id, first, "1500.00"), "0000")
}

func TestFault_OfRefund(t *testing.T) {
	t.Parallel()
	m, g := serveGateway(t, mockgateway.Options{})
	id := m.finished("inv-1", `[{"name":"refund_refused"},{"name":"already_refunded"}]`)
	trx := m.execute(id).text("trxID")
	ask := func() answered {
		return m.call("/payment/refund", map[string]string{"paymentID": id, "trxID": trx})
	}
	wantCode(t, "refund", m.refund(id, trx, "1500.00"), "2023")
	wantCode(t, "asking after the refusal", ask(), "2033")
	wantCode(t, "refund again", m.refund(id, trx, "1500.00"), "2034")
	wantCode(t, "asking after that", ask(), "0000")
	wantCount(t, g, "refund_refused", map[string]int{"refund": 1})
	wantCount(t, g, "already_refunded", map[string]int{"refund": 1})
}

func TestFault_LockoutBlocksAsOneGrantTooMany(t *testing.T) {
	t.Parallel()
	c := newClock()
	m, g := serveGateway(t, mockgateway.Options{Now: c.Now})
	if err := g.SetAccountFaults("shop", mockgateway.Fault{Name: mockgateway.FaultLockout}); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if a := m.grant(); a.status != http.StatusTooManyRequests {
			t.Errorf("grant: got HTTP %d, want 429", a.status)
		}
	}
	c.Advance(time.Hour)
	wantCode(t, "grant after the block", m.grant(), "0000")
	wantCount(t, g, "lockout", map[string]int{"grant": 2})
}

func TestFault_OfGrant(t *testing.T) {
	t.Parallel()
	m, g := serveGateway(t, mockgateway.Options{})
	a := m.must(http.MethodPut, "/mock/faults", nil, `{"account":"shop","faults":[{"name":"answer_lost","calls":["grant"]},{"name":"unavailable","calls":["grant"]}]}`)
	if a.status != http.StatusOK {
		t.Fatalf("put faults: got HTTP %d %s", a.status, a.body)
	}
	if a := m.grant(); a.status != http.StatusServiceUnavailable {
		t.Errorf("first grant: got HTTP %d, want 503", a.status)
	}
	if a, err := m.do(t.Context(), http.MethodPost, checkout+"/token/grant", accountHeader, `{"app_key":"app","app_secret":"s"}`); err == nil {
		t.Errorf("second grant: got HTTP %d, want no answer", a.status)
	}
	wantCode(t, "third grant", m.grant(), "0000")
	if a := m.grant(); a.status != http.StatusTooManyRequests {
		t.Errorf("fourth grant: got HTTP %d, want 429: the one whose answer was lost counts", a.status)
	}
	wantCount(t, g, "answer_lost", map[string]int{"grant": 1})
}

func TestCapture_PayersPressMovesTheMoney(t *testing.T) {
	t.Parallel()
	m := serve(t, mockgateway.Options{})
	m.must(http.MethodPut, "/mock/settings", nil, `{"capture":"payer"}`)
	paid, page := m.create("inv-1")
	if got := m.press(page, "outcome=success").header.Get("Location"); !strings.Contains(got, "&status=success&") {
		t.Errorf("press leads to %q, want status=success", got)
	}
	if trx, s := m.paidBy(paid); s != "Completed" || trx == "" {
		t.Errorf("status after the press = %q, %q; want Completed", s, trx)
	}
	wantCode(t, "execute", m.execute(paid), "2062")

	cancelled, page := m.create("inv-2")
	m.press(page, "outcome=cancel")
	if _, s := m.paidBy(cancelled); s != "Initiated" {
		t.Errorf("status after cancel = %q, want Initiated", s)
	}
	m.faults("inv-3", `[{"name":"refused"}]`)
	refused, page := m.create("inv-3")
	if got := m.press(page, "outcome=success").header.Get("Location"); !strings.Contains(got, "&status=failure&") {
		t.Errorf("refused press leads to %q, want status=failure", got)
	}
	if _, s := m.paidBy(refused); s != "Initiated" {
		t.Errorf("status after a refused press = %q, want Initiated", s)
	}
}

func TestFault_CompletesAfterCancel(t *testing.T) {
	t.Parallel()
	for capture, tc := range map[string]struct {
		status, code string
		late         string
	}{
		"payer":   {status: "Initiated", code: "2117", late: "Completed"},
		"execute": {status: "Initiated", code: "0000", late: "Completed"},
	} {
		t.Run(capture, func(t *testing.T) {
			t.Parallel()
			c := newClock()
			m, g := serveGateway(t, mockgateway.Options{Now: c.Now, At: c.At})
			m.must(http.MethodPut, "/mock/settings", nil, `{"capture":"`+capture+`"}`)
			m.faults("inv-1", `[{"name":"completes_after_cancel","delay_ms":1000}]`)
			id, page := m.create("inv-1")
			if got := m.press(page, "outcome=cancel").header.Get("Location"); !strings.Contains(got, "&status=cancel&") {
				t.Errorf("cancel leads to %q, want status=cancel", got)
			}
			if _, s := m.paidBy(id); s != tc.status {
				t.Errorf("status after cancel = %q, want %q", s, tc.status)
			}
			wantCode(t, "execute", m.execute(id), tc.code)
			c.Advance(time.Second)
			if _, s := m.paidBy(id); s != tc.late {
				t.Errorf("status a second later = %q, want %q", s, tc.late)
			}
			wantCount(t, g, "completes_after_cancel", map[string]int{"press": 1})
		})
	}
}

func TestSettings_MaintenanceAnswersWithACode(t *testing.T) {
	t.Parallel()
	m, g := serveGateway(t, mockgateway.Options{})
	id, page := m.create("inv-1")
	m.press(page, "outcome=success")
	m.must(http.MethodPut, "/mock/settings", nil, `{"maintenance":true}`)
	wantCode(t, "execute", m.execute(id), "503")
	m.must(http.MethodPut, "/mock/settings", nil, `{}`)
	wantCode(t, "execute afterwards", m.execute(id), "0000")
	wantCount(t, g, "maintenance", map[string]int{"execute": 1})
}

func TestPlan_IsTheSameForTheSameSeedWhateverTheOrder(t *testing.T) {
	t.Parallel()
	draw := func(seed int, reverse bool) (map[string][]string, int) {
		m, g := serveGateway(t, mockgateway.Options{})
		m.token = m.grant().text("id_token") // before there are faults
		m.must(http.MethodPut, "/mock/settings", nil, fmt.Sprintf(`{"seed":%d,"faults":[
			{"name":"wrong_amount","probability":0.3},{"name":"refused","probability":0.5},{"name":"two_payments","probability":0},
			{"name":"lockout","probability":1},{"name":"answer_lost","calls":["refund"],"probability":1}]}`, seed))
		invoices := make([]string, 100)
		for i := range invoices {
			invoices[i] = fmt.Sprint("inv-", i)
		}
		if reverse {
			slices.Reverse(invoices)
		}
		for _, invoice := range invoices {
			m.create(invoice)
		}
		all, err := g.Payments("")
		if err != nil {
			t.Fatal(err)
		}
		got, n := map[string][]string{}, 0
		for _, p := range all {
			for _, f := range p.Faults {
				if f.Name == mockgateway.FaultLockout {
					t.Errorf("payment %s has %s, which is for token calls", p.Invoice, f.Name)
				}
				got[p.Invoice] = append(got[p.Invoice], f.Name)
				n++
			}
		}
		return got, n
	}
	first, n := draw(7, false)
	// 100 times 0.3 + 0.5 + 0 + 1, give or take.
	if n < 150 || n > 210 {
		t.Errorf("seed 7: %d faults on 100 payments, want about 180", n)
	}
	again, _ := draw(7, true)
	if diff := cmp.Diff(first, again); diff != "" {
		t.Errorf("seed 7 once more, in another order: -first +again:\n%s", diff)
	}
	if other, _ := draw(8, false); cmp.Equal(first, other) {
		t.Error("seed 8 draws the same as seed 7")
	}
}

func TestPlan_DrawsForTokenCalls(t *testing.T) {
	t.Parallel()
	run := func() (got []int) {
		m := serve(t, mockgateway.Options{})
		m.must(http.MethodPut, "/mock/settings", nil, `{"seed":3,"grants_per_hour":-1,"faults":[{"name":"unavailable","calls":["grant"],"probability":0.5}]}`)
		for range 40 {
			got = append(got, m.grant().status)
		}
		return got
	}
	first := run()
	if n := len(slices.DeleteFunc(slices.Clone(first), func(s int) bool { return s == http.StatusOK })); n < 8 || n > 32 {
		t.Errorf("%d of 40 grants refused, want about half", n)
	}
	if diff := cmp.Diff(first, run()); diff != "" {
		t.Errorf("the same seed: -first +again:\n%s", diff)
	}
}

func TestFaults_AreCountedEvenWhereThereAreNone(t *testing.T) {
	t.Parallel()
	m := serve(t, mockgateway.Options{})
	a := m.must(http.MethodGet, "/mock/faults", nil, "")
	for _, name := range mockgateway.Faults() {
		if diff := cmp.Diff(map[string]any{"times": 0.0}, a.fields[name]); diff != "" {
			t.Errorf("count of %s: -want +got:\n%s", name, diff)
		}
	}
	if got, want := len(a.fields), len(mockgateway.Faults()); got != want {
		t.Errorf("%d counts, want %d", got, want)
	}
}

func TestFaults_RefuseWhatTheyDoNotKnow(t *testing.T) {
	t.Parallel()
	m := serve(t, mockgateway.Options{})
	for _, body := range []string{
		``, `{"faults":[]}`, `{"merchantInvoiceNumber":"a","account":"b"}`, `{"paymentID":"TR0011none"}`,
		`{"merchantInvoiceNumber":"a","faults":[{"name":"nonsense"}]}`,
		`{"merchantInvoiceNumber":"a","faults":[{"name":"cut","calls":["pay"]}]}`,
		`{"merchantInvoiceNumber":"a","faults":[{"name":"cut","delay_ms":1}]}`,
		`{"merchantInvoiceNumber":"a","faults":[{"name":"refused","calls":["execute"]}]}`,
		`{"merchantInvoiceNumber":"a","faults":[{"name":"refused","code":"0000"}]}`,
		`{"merchantInvoiceNumber":"a","faults":[{"name":"no_answer","delay_ms":-1}]}`,
		`{"merchantInvoiceNumber":"a","faults":[{"name":"cut","value":"1"}]}`,
		`{"merchantInvoiceNumber":"a","faults":[{"name":"cut","code":"2023"}]}`,
		`{"merchantInvoiceNumber":"a","fault":[]}`,
	} {
		if a := m.must(http.MethodPut, "/mock/faults", nil, body); a.status != http.StatusBadRequest || a.text("message") == "" {
			t.Errorf("faults %s: got HTTP %d %s, want 400 with a message", body, a.status, a.body)
		}
	}
	for _, body := range []string{
		`{"capture":"never"}`, `{"faults":[{"name":"cut","probability":1.1}]}`, `{"faults":[{"name":"cut","probability":-0.1}]}`, `{"faults":[{"name":"x"}]}`,
		`{"latency_ms":{"all":{}}}`, `{"latency_ms":{"all":{"min":5}}}`, `{"latency_ms":{"all":{"min":5,"max":4}}}`, `{"latency_ms":{"all":{"p50":5,"p99":4}}}`,
		`{"latency_ms":{"all":{"p50":0,"p99":4}}}`, `{"latency_ms":{"all":{"p50":1,"p99":700000}}}`, `{"latency_ms":{"all":{"min":1,"max":2,"p50":1,"p99":2}}}`,
		`{"latency_ms":{"all":9223372036854775807}}`,
		`{"notifications":{"url":"shop.example"}}`, `{"notifications":{"topic_arn":"arn:aws:sqs:x:y:z"}}`, `{"notifications":{"signature_version":"3"}}`,
		`{"notifications":{"retry_ms":-1}}`, `{"notifications":{"timeout_ms":-1}}`,
	} {
		if a := m.must(http.MethodPut, "/mock/settings", nil, body); a.status != http.StatusBadRequest {
			t.Errorf("settings %s: got HTTP %d, want 400", body, a.status)
		}
	}
}

// probe records how long the gateway wanted to wait, and lets it go on at once.
type probe struct {
	clock
	asked chan time.Duration
}

func (p *probe) At(t time.Time) <-chan time.Time {
	p.asked <- t.Sub(p.Now())
	done := make(chan time.Time, 1)
	done <- t
	return done
}

func TestLatency_FollowsItsDistribution(t *testing.T) {
	t.Parallel()
	const n = 200
	run := func(seed int, latency string) []float64 {
		p := &probe{clock: clock{at: newClock().at}, asked: make(chan time.Duration, n)}
		m := serve(t, mockgateway.Options{Now: p.Now, At: p.At})
		id, _ := m.create("inv-1")
		body := fmt.Sprintf(`{"latency_ms":{"status":%s},"seed":%d}`, latency, seed)
		if a := m.must(http.MethodPut, "/mock/settings", nil, body); !strings.Contains(string(a.body), latency) {
			t.Fatalf("settings: got %s, want them to hold %s", a.body, latency)
		}
		for range n {
			m.status(id)
		}
		close(p.asked)
		var got []float64
		for d := range p.asked {
			got = append(got, float64(d)/float64(time.Millisecond))
		}
		if len(got) != n {
			t.Fatalf("%s: %d waits, want %d", latency, len(got), n)
		}
		return got
	}
	for _, d := range run(1, `70`) {
		if d != 70 {
			t.Errorf("fixed: waited %v ms, want 70", d)
		}
	}
	uniform := run(1, `{"min":10,"max":20}`)
	slices.Sort(uniform)
	if uniform[0] < 10 || uniform[n-1] > 20 || math.Abs(uniform[n/2]-15) > 2 {
		t.Errorf("uniform: from %v over %v to %v, want 10, about 15, 20", uniform[0], uniform[n/2], uniform[n-1])
	}
	const tail = `{"p50":80,"p99":3000}`
	long := run(1, tail)
	if diff := cmp.Diff(long, run(1, tail)); diff != "" {
		t.Errorf("the same seed: -first +again:\n%s", diff)
	}
	if cmp.Equal(long, run(2, tail)) {
		t.Error("another seed draws the same")
	}
	above := 0
	for _, d := range long {
		if d > 3000 {
			above++
		}
	}
	slices.Sort(long)
	if long[n/2] < 55 || long[n/2] > 115 || above < 1 || above > 8 {
		t.Errorf("long tail: median %v, %d of %d above p99; want about 80 and 2", long[n/2], above, n)
	}
}

func TestDocs_NameEveryFaultAndGiveExamplesThatWork(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../docs/mockgateway.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range mockgateway.Faults() {
		if !strings.Contains(string(text), "`"+name+"`") {
			t.Errorf("docs/mockgateway.md does not name the fault %s", name)
		}
	}
	m := serve(t, mockgateway.Options{})
	for _, kind := range []string{"settings", "faults"} {
		_, rest, _ := strings.Cut(string(text), "```json "+kind+"\n")
		example, _, found := strings.Cut(rest, "```")
		if !found {
			t.Errorf("docs/mockgateway.md has no example of %s", kind)
			continue
		}
		if a := m.must(http.MethodPut, "/mock/"+kind, nil, example); a.status != http.StatusOK {
			t.Errorf("example of %s: got HTTP %d %s, want 200", kind, a.status, a.body)
		}
	}
}
