package mockgateway_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"holdfast/internal/mockgateway"
)

func TestGrant_GivesATokenWithItsLifetime(t *testing.T) {
	t.Parallel()
	m := serve(t, mockgateway.Options{})
	a := m.grant()
	wantCode(t, "grant", a, "0000")
	if a.text("id_token") == "" || a.text("refresh_token") == "" || a.text("token_type") != "Bearer" || a.fields["expires_in"] != 3600.0 {
		t.Errorf("grant: got %s, want id_token, refresh_token, Bearer and 3600", a.body)
	}
}

func TestGrant_WantsCredentialsWhereTheGatewayWantsThem(t *testing.T) {
	t.Parallel()
	m := serve(t, mockgateway.Options{})
	for name, tc := range map[string]struct {
		header map[string]string
		body   string
		status int
		code   string
	}{
		"no headers":  {nil, `{"app_key":"app","app_secret":"s","username":"shop","password":"pw"}`, 400, ""},
		"no password": {map[string]string{"username": "shop"}, `{"app_key":"app","app_secret":"s"}`, 400, ""},
		"no secret":   {accountHeader, `{"app_key":"app"}`, 200, "2065"},
		"no JSON":     {accountHeader, `app_key=app`, 200, "2025"},
	} {
		a := m.must(http.MethodPost, checkout+"/token/grant", tc.header, tc.body)
		if a.status != tc.status || a.text("statusCode") != tc.code || (tc.code == "") != (a.text("message") != "") {
			t.Errorf("%s: got HTTP %d %s, want HTTP %d with code %q", name, a.status, a.body, tc.status, tc.code)
		}
	}
	// None of these was a token call: the two of the hour are still there.
	for range 2 {
		wantCode(t, "grant afterwards", m.grant(), "0000")
	}
}

func TestGrant_OneCallTooManyBlocksForAnHour(t *testing.T) {
	t.Parallel()
	c := newClock()
	m := serve(t, mockgateway.Options{Now: c.Now})
	first := m.grant()
	c.Advance(30 * time.Minute)
	refresh := fmt.Sprintf(`{"app_key":"app","app_secret":"s","refresh_token":%q}`, first.text("refresh_token"))
	second := m.must(http.MethodPost, checkout+"/token/refresh", accountHeader, refresh)
	wantCode(t, "refresh", second, "0000")
	if got, want := second.text("refresh_token"), first.text("refresh_token"); got != want {
		t.Errorf("refresh: refresh_token = %q, want the same %q", got, want)
	}
	if second.text("id_token") == first.text("id_token") {
		t.Error("refresh: id_token is the old one, want a new one")
	}

	refused := func(when string) {
		t.Helper()
		a := m.grant()
		if a.status != http.StatusTooManyRequests || a.text("message") == "" || a.text("id_token") != "" {
			t.Errorf("grant %s: got HTTP %d %s, want HTTP 429 with a message", when, a.status, a.body)
		}
	}
	c.Advance(29 * time.Minute)
	refused("third within the hour")
	c.Advance(30 * time.Minute)
	refused("while blocked")
	c.Advance(30*time.Minute - time.Second)
	refused("a second before the block ends")
	c.Advance(time.Second)
	wantCode(t, "grant after the block", m.grant(), "0000")
}

func TestGrant_LimitCanBeSetAndLifted(t *testing.T) {
	t.Parallel()
	for limit, allowed := range map[int]int{1: 1, 3: 3, -1: 10} {
		m := serve(t, mockgateway.Options{GrantsPerHour: limit})
		got := 0
		for range 10 {
			if m.grant().status == http.StatusOK {
				got++
			}
		}
		if got != allowed {
			t.Errorf("limit %d: %d of 10 grants allowed, want %d", limit, got, allowed)
		}
	}
}

func TestRefresh_WantsAKnownRefreshToken(t *testing.T) {
	t.Parallel()
	m := serve(t, mockgateway.Options{GrantsPerHour: -1})
	id := m.grant().text("id_token")
	for _, token := range []string{"nobody's", id} {
		a := m.must(http.MethodPost, checkout+"/token/refresh", accountHeader,
			fmt.Sprintf(`{"app_key":"app","app_secret":"s","refresh_token":%q}`, token))
		if a.status != http.StatusUnauthorized || a.text("message") == "" {
			t.Errorf("refresh with %q: got HTTP %d %s, want HTTP 401 with a message", token, a.status, a.body)
		}
	}
}

func TestCall_NeedsALiveTokenAndItsAppKey(t *testing.T) {
	t.Parallel()
	c := newClock()
	m := serve(t, mockgateway.Options{Now: c.Now, TokenTTL: time.Minute})
	granted := m.grant()
	id := granted.text("id_token")
	try := func(auth, key string) answered {
		return m.must(http.MethodPost, checkout+"/payment/status", map[string]string{"Authorization": auth, "X-APP-Key": key}, `{"paymentID":"x"}`)
	}
	wantCode(t, "bare token", try(id, "app"), "2002")
	wantCode(t, "Bearer token", try("Bearer "+id, "app"), "2002")
	for name, a := range map[string]answered{
		"no token":         try("", "app"),
		"unknown token":    try("Bearer nobody's", "app"),
		"no app key":       try(id, ""),
		"other app's key":  try(id, "other"),
		"refresh token":    try(granted.text("refresh_token"), "app"),
		"token as refresh": try("Bearer "+granted.text("refresh_token"), "app"),
	} {
		if diff := cmp.Diff(map[string]any{"message": "Unauthorized"}, a.fields); a.status != http.StatusUnauthorized || diff != "" {
			t.Errorf("%s: HTTP %d, want 401; body -want +got:\n%s", name, a.status, diff)
		}
	}
	c.Advance(time.Minute)
	a := try(id, "app")
	if diff := cmp.Diff(map[string]any{"message": "The incoming token has expired"}, a.fields); a.status != http.StatusUnauthorized || diff != "" {
		t.Errorf("expired token: HTTP %d, want 401; body -want +got:\n%s", a.status, diff)
	}
}

func TestCreate_AnswersAsTheGatewayDoes(t *testing.T) {
	t.Parallel()
	c := newClock()
	m := serve(t, mockgateway.Options{Now: c.Now, BaseURL: "https://pay.example/"})
	a := m.call("/create", order("inv-1"))
	id, sig := a.text("paymentID"), ""
	if !regexp.MustCompile(`^TR0011[A-Za-z0-9]+\d{13}$`).MatchString(id) {
		t.Errorf("paymentID = %q, want TR0011, letters and the time in ms", id)
	}
	if u, err := url.Parse(a.text("successCallbackURL")); err == nil {
		sig = u.Query().Get("signature")
	}
	if !regexp.MustCompile(`^[A-Za-z0-9]{10}$`).MatchString(sig) {
		t.Errorf("signature = %q, want ten letters and digits", sig)
	}
	if !strings.HasPrefix(a.text("bkashURL"), "https://pay.example/pay/"+id+"?hash=") {
		t.Errorf("bkashURL = %q, want the payer's page under the public URL", a.text("bkashURL"))
	}
	back := func(status string) string {
		return "https://shop.example/payment/callback?sale=1&paymentID=" + id + "&status=" + status + "&signature=" + sig
	}
	delete(a.fields, "bkashURL")
	want := map[string]any{
		"paymentID": id, "callbackURL": "https://shop.example/payment/callback?sale=1",
		"successCallbackURL": back("success"), "failureCallbackURL": back("failure"), "cancelledCallbackURL": back("cancel"),
		"amount": "1500.00", "intent": "sale", "currency": "BDT", "paymentCreateTime": "2026-12-01T10:00:00:000 GMT+0600",
		"transactionStatus": "Initiated", "merchantInvoiceNumber": "inv-1", "statusCode": "0000", "statusMessage": "Successful",
	}
	if diff := cmp.Diff(want, a.fields); diff != "" {
		t.Errorf("create: -want +got:\n%s", diff)
	}
}

func TestCreate_EchoesTheAmountAsGiven(t *testing.T) {
	t.Parallel()
	m := serve(t, mockgateway.Options{})
	for i, amount := range []string{"500", "500.5", "500.50"} {
		o := order(fmt.Sprint("inv-", i))
		o["amount"] = amount
		a := m.call("/create", o)
		if got := a.text("amount"); got != amount {
			t.Errorf("create: amount = %q, want %q", got, amount)
		}
		if got := m.status(a.text("paymentID")).text("amount"); got != amount {
			t.Errorf("status: amount = %q, want %q", got, amount)
		}
	}
}

func TestCreate_CallbackWithoutQueryGetsOne(t *testing.T) {
	t.Parallel()
	m := serve(t, mockgateway.Options{})
	o := order("inv-1")
	o["callbackURL"] = "http://127.0.0.1:8080/payment/callback"
	a := m.call("/create", o)
	if got, want := a.text("cancelledCallbackURL"), "http://127.0.0.1:8080/payment/callback?paymentID="; !strings.HasPrefix(got, want) {
		t.Errorf("cancelledCallbackURL = %q, want it to begin with %q", got, want)
	}
}

func TestCreate_RefusesWhatTheGatewayRefuses(t *testing.T) {
	t.Parallel()
	m := serve(t, mockgateway.Options{})
	for _, tc := range []struct{ field, value, code string }{
		{"mode", "", "2065"}, {"mode", "0001", "2063"},
		{"intent", "authorization", "2008"}, {"currency", "EUR", "2007"},
		{"amount", "", "2065"}, {"amount", "0", "2006"}, {"amount", "-5", "2006"}, {"amount", "1.234", "2006"}, {"amount", "1e2", "2006"},
		{"merchantInvoiceNumber", "", "2065"}, {"merchantInvoiceNumber", "a<b", "2031"}, {"merchantInvoiceNumber", "a>b", "2031"},
		{"merchantInvoiceNumber", "a&b", "2031"}, {"merchantInvoiceNumber", strings.Repeat("x", 256), "2031"},
		{"payerReference", "a&b", "2048"}, {"payerReference", strings.Repeat("x", 256), "2048"},
		{"callbackURL", "/payment/callback", "2049"}, {"callbackURL", "javascript:alert(1)", "2049"}, {"callbackURL", "https://shop.example/#x", "2049"},
	} {
		o := order("inv-1")
		o[tc.field] = tc.value
		wantCode(t, fmt.Sprintf("create with %s %.20q", tc.field, tc.value), m.call("/create", o), tc.code)
	}
	wantCode(t, "create with an amount that is a number", m.call("/create", map[string]any{"amount": 5}), "2025")
	m.create("inv-1")
	wantCode(t, "create with an invoice number used before", m.call("/create", order("inv-1")), "2029")
	long := order(strings.Repeat("x", 255))
	wantCode(t, "create with the longest invoice number", m.call("/create", long), "0000")
}

func TestExecute_MovesTheMoneyOnce(t *testing.T) {
	t.Parallel()
	c := newClock()
	m := serve(t, mockgateway.Options{Now: c.Now})
	id, page := m.create("inv-1")

	wantCode(t, "execute before the payer has finished", m.execute(id), "2060")
	m.press(page, "outcome=cancel")
	wantCode(t, "execute after cancel", m.execute(id), "2060")
	m.press(page, "outcome=success")
	if got := m.status(id).text("transactionStatus"); got != "Initiated" {
		t.Errorf("status after the payer has finished = %q, want Initiated: execute is what moves money", got)
	}
	c.Advance(70 * time.Second)
	a := m.execute(id)
	trx := a.text("trxID")
	if !regexp.MustCompile(`^[A-Z0-9]{10}$`).MatchString(trx) {
		t.Errorf("trxID = %q, want ten capitals and digits", trx)
	}
	want := map[string]any{
		"paymentID": id, "trxID": trx, "transactionStatus": "Completed", "amount": "1500.00", "currency": "BDT", "intent": "sale",
		"paymentExecuteTime": "2026-12-01T10:01:10:000 GMT+0600", "merchantInvoiceNumber": "inv-1", "payerType": "Customer",
		"payerReference": "AB-1001", "customerMsisdn": "01700000000", "payerAccount": "01700000000", "maxRefundableAmount": "1500.00",
		"statusCode": "0000", "statusMessage": "Successful",
	}
	if diff := cmp.Diff(want, a.fields); diff != "" {
		t.Errorf("execute: -want +got:\n%s", diff)
	}
	wantCode(t, "second execute", m.execute(id), "2117")

	a = m.status(id)
	want = map[string]any{
		"paymentID": id, "mode": "0011", "trxID": trx, "transactionStatus": "Completed", "amount": "1500.00", "currency": "BDT",
		"intent": "sale", "paymentCreateTime": "2026-12-01T10:00:00:000 GMT+0600", "paymentExecuteTime": "2026-12-01T10:01:10:000 GMT+0600",
		"merchantInvoice": "inv-1", "payerReference": "AB-1001", "customerMsisdn": "01700000000", "payerAccount": "01700000000",
		"statusCode": "0000", "statusMessage": "Successful",
	}
	if diff := cmp.Diff(want, a.fields); diff != "" {
		t.Errorf("status: -want +got:\n%s", diff)
	}
}

func TestExecute_ManyAtOnceCompleteOnce(t *testing.T) {
	t.Parallel()
	m := serve(t, mockgateway.Options{DataDir: t.TempDir()})
	id, page := m.create("inv-1")
	m.press(page, "outcome=success")
	codes := make([]string, 50)
	var wg sync.WaitGroup
	for i := range codes {
		wg.Go(func() { codes[i] = m.execute(id).text("statusCode") })
	}
	wg.Wait()
	count := map[string]int{}
	for _, c := range codes {
		count[c]++
	}
	if diff := cmp.Diff(map[string]int{"0000": 1, "2117": 49}, count); diff != "" {
		t.Errorf("codes of 50 executes: -want +got:\n%s", diff)
	}
}

func TestExecute_RefusalUsesThePaymentUp(t *testing.T) {
	t.Parallel()
	m := serve(t, mockgateway.Options{})
	for name, tc := range map[string]struct {
		form []string
		code string
	}{
		"failure":             {[]string{"outcome=failure"}, "2023"},
		"success with refuse": {[]string{"outcome=success", "refuse=2015"}, "2015"},
	} {
		id, page := m.create("inv " + name)
		m.press(page, tc.form...)
		wantCode(t, name+": execute", m.execute(id), tc.code)
		if got := m.status(id).text("transactionStatus"); got != "Initiated" {
			t.Errorf("%s: status = %q, want Initiated", name, got)
		}
		a := m.press(page, "outcome=success")
		if got := a.header.Get("Location"); !strings.Contains(got, "&status=failure&") {
			t.Errorf("%s: paying a payment that is over leads to %q, want status=failure", name, got)
		}
		wantCode(t, name+": second execute", m.execute(id), "2117")
	}
}

func TestExecute_PayerMayComeBackAfterFailure(t *testing.T) {
	t.Parallel()
	m := serve(t, mockgateway.Options{})
	id, page := m.create("inv-1")
	m.press(page, "outcome=failure")
	m.press(page, "outcome=success")
	wantCode(t, "execute", m.execute(id), "0000")
}

func TestExecute_PaymentLapsesAfterADay(t *testing.T) {
	t.Parallel()
	c := newClock()
	m := serve(t, mockgateway.Options{Now: c.Now, TokenTTL: 100 * time.Hour})
	late, latePage := m.create("inv-1")
	m.press(latePage, "outcome=success")
	paid, paidPage := m.create("inv-2")
	m.press(paidPage, "outcome=success")

	c.Advance(24*time.Hour - time.Second)
	wantCode(t, "execute a second before the end", m.execute(paid), "0000")
	c.Advance(time.Second)
	wantCode(t, "execute at the end", m.execute(late), "2056")
	for id, want := range map[string]string{late: "Expired", paid: "Completed"} {
		if got := m.status(id).text("transactionStatus"); got != want {
			t.Errorf("status = %q, want %q", got, want)
		}
	}
	for outcome, want := range map[string]string{"success": "failure", "failure": "failure", "cancel": "cancel"} {
		if got := m.press(latePage, "outcome="+outcome).header.Get("Location"); !strings.Contains(got, "&status="+want+"&") {
			t.Errorf("%s on a lapsed payment leads to %q, want status=%s", outcome, got, want)
		}
	}
}

func TestPaymentCalls_WantAKnownPayment(t *testing.T) {
	t.Parallel()
	m := serve(t, mockgateway.Options{})
	for _, path := range []string{"/execute", "/payment/status", "/payment/refund"} {
		wantCode(t, path+" of an unknown payment", m.call(path, map[string]string{"paymentID": "TR0011x"}), "2002")
		wantCode(t, path+" without an id", m.call(path, map[string]string{}), "2065")
		wantCode(t, path+" with a body that is no object", m.call(path, []string{"TR0011x"}), "2025")
	}
}

func TestButtons_SendTheBrowserBackWithASignature(t *testing.T) {
	t.Parallel()
	m := serve(t, mockgateway.Options{})
	a := m.call("/create", order("inv-1"))
	u, err := url.Parse(a.text("bkashURL"))
	if err != nil {
		t.Fatal(err)
	}
	for outcome, field := range map[string]string{
		"cancel": "cancelledCallbackURL", "failure": "failureCallbackURL", "success": "successCallbackURL",
	} {
		got := m.press(u.RequestURI(), "outcome="+outcome)
		if want := a.text(field) + "&apiVersion=1.2.0-beta/"; got.status != http.StatusSeeOther || got.header.Get("Location") != want {
			t.Errorf("%s: got HTTP %d to %q, want 303 to %q", outcome, got.status, got.header.Get("Location"), want)
		}
	}
	for _, form := range []string{"", "outcome=paid", "outcome=success&refuse=0000", "outcome=success&refuse=abc", "outcome=cancel&refuse=2023"} {
		if got := m.press(u.RequestURI(), form); got.status != http.StatusBadRequest {
			t.Errorf("form %q: got HTTP %d, want 400", form, got.status)
		}
	}
	if got := m.press(u.Path+"?hash=guess", "outcome=success"); got.status != http.StatusNotFound {
		t.Errorf("wrong hash: got HTTP %d, want 404", got.status)
	}
}

func TestPage_WorksWithoutScriptAndEscapes(t *testing.T) {
	t.Parallel()
	m := serve(t, mockgateway.Options{})
	o := order(strings.Repeat("0123456789", 10))
	o["payerReference"] = `"'` + "`" + `{{x}}` // < > & cannot get in
	a := m.call("/create", o)
	u, err := url.Parse(a.text("bkashURL"))
	if err != nil {
		t.Fatal(err)
	}
	get := func() string {
		t.Helper()
		p := m.must(http.MethodGet, u.RequestURI(), nil, "")
		if p.status != http.StatusOK || !strings.HasPrefix(p.header.Get("Content-Type"), "text/html") {
			t.Fatalf("page: got HTTP %d %s, want 200 text/html", p.status, p.header.Get("Content-Type"))
		}
		if csp := p.header.Get("Content-Security-Policy"); !strings.HasPrefix(csp, "default-src 'none'") {
			t.Errorf("Content-Security-Policy = %q, want default-src 'none'", csp)
		}
		return string(p.body)
	}
	html := get()
	for _, want := range []string{
		"1500.00 BDT", "01234567…23456789", `<form method="post">`, "&#34;&#39;`{{x}}",
		`name="outcome" value="success"`, `name="outcome" value="cancel"`, `name="outcome" value="failure"`,
	} {
		if !strings.Contains(html, want) {
			t.Errorf("page lacks %q", want)
		}
	}
	for _, bad := range []string{"<script", "http://", "https://", "src=", "href=", "url("} {
		if strings.Contains(html, bad) {
			t.Errorf("page contains %q, want no script and nothing from elsewhere", bad)
		}
	}
	m.press(u.RequestURI(), "outcome=success")
	m.execute(a.text("paymentID"))
	if html := get(); strings.Contains(html, "Cancel") || !strings.Contains(html, "complete") {
		t.Error("page of a completed payment still offers to pay or cancel")
	}
	if p := m.must(http.MethodGet, u.Path+"?hash=guess", nil, ""); p.status != http.StatusNotFound || strings.Contains(string(p.body), "1500") {
		t.Errorf("page with a wrong hash: got HTTP %d, want 404 that tells nothing", p.status)
	}
}

func TestRefund_GivesBackNoMoreThanWasPaid(t *testing.T) {
	t.Parallel()
	m := serve(t, mockgateway.Options{})
	id, page := m.create("inv-1")
	m.press(page, "outcome=success")
	refund := func(trx, amount string) answered {
		in := map[string]string{"paymentID": id, "trxID": trx}
		if amount != "" {
			in["amount"], in["sku"], in["reason"] = amount, "seat", "late"
		}
		return m.call("/payment/refund", in)
	}
	wantCode(t, "refund before execute", refund("ABCDEFGHIJ", "1"), "2028")
	trx := m.execute(id).text("trxID")
	wantCode(t, "refund of another transaction", refund("ABCDEFGHIJ", "1"), "2028")
	wantCode(t, "asking before there is one", refund(trx, ""), "2033")
	wantCode(t, "without reason", m.call("/payment/refund", map[string]string{"paymentID": id, "trxID": trx, "amount": "1"}), "2065")
	wantCode(t, "no amount of money", refund(trx, "-1"), "2006")
	wantCode(t, "too much", refund(trx, "1500.01"), "2026")
	first := refund(trx, "500")
	wantCode(t, "part", first, "0000")
	if first.text("originalTrxID") != trx || first.text("refundTrxID") == "" || first.text("transactionStatus") != "Completed" || first.text("amount") != "500" {
		t.Errorf("refund: got %s, want it to name both transactions and the amount", first.body)
	}
	wantCode(t, "more than is left", refund(trx, "1000.01"), "2026")
	wantCode(t, "the rest", refund(trx, "1000.00"), "0000")
	wantCode(t, "once more", refund(trx, "1"), "2034")
	if got := refund(trx, ""); got.text("amount") != "1000.00" {
		t.Errorf("asking: got %s, want the last refund", got.body)
	}
}

func TestSearch_FindsByTransaction(t *testing.T) {
	t.Parallel()
	m := serve(t, mockgateway.Options{})
	id, page := m.create("inv-1")
	m.press(page, "outcome=success")
	trx := m.execute(id).text("trxID")
	a := m.call("/general/searchTransaction", map[string]string{"trxID": trx})
	if a.text("trxID") != trx || a.text("transactionStatus") != "Completed" || a.text("amount") != "1500.00" || a.text("currency") != "BDT" {
		t.Errorf("search: got %s, want the completed transaction", a.body)
	}
	wantCode(t, "unknown transaction", m.call("/general/searchTransaction", map[string]string{"trxID": "ABCDEFGHIJ"}), "2033")
	wantCode(t, "no transaction", m.call("/general/searchTransaction", map[string]string{}), "2065")
}

func TestSettings_DownRefusesEveryCallAndDoesNothing(t *testing.T) {
	t.Parallel()
	m := serve(t, mockgateway.Options{})
	id, page := m.create("inv-1")
	m.press(page, "outcome=success")
	if a := m.must(http.MethodPut, "/mock/settings", nil, `{"down":true}`); a.status != http.StatusOK || a.fields["down"] != true {
		t.Fatalf("put settings: got HTTP %d %s, want 200 and the settings", a.status, a.body)
	}
	for _, path := range []string{"/token/grant", "/token/refresh", "/create", "/execute", "/payment/status", "/payment/refund", "/general/searchTransaction"} {
		a := m.call(path, map[string]string{"paymentID": id})
		if a.status != http.StatusServiceUnavailable || a.text("message") == "" {
			t.Errorf("%s: got HTTP %d %s, want 503 with a message", path, a.status, a.body)
		}
	}
	m.must(http.MethodPut, "/mock/settings", nil, `{}`)
	if got := m.status(id).text("transactionStatus"); got != "Initiated" {
		t.Errorf("status after the outage = %q, want Initiated", got)
	}
}

func TestSettings_RefuseWhatTheyDoNotKnow(t *testing.T) {
	t.Parallel()
	m := serve(t, mockgateway.Options{})
	for _, body := range []string{"", "[]", `{"up":true}`, `{"latency_ms":{"pay":1}}`, `{"latency_ms":-1}`, `{"latency_ms":"1s"}`, `{"latency_ms":700000}`, `{} {}`} {
		if a := m.must(http.MethodPut, "/mock/settings", nil, body); a.status != http.StatusBadRequest {
			t.Errorf("settings %q: got HTTP %d, want 400", body, a.status)
		}
	}
	for body, want := range map[string]string{
		`{"latency_ms":250}`:                         `{"latency_ms":{"all":250},"down":false}`,
		`{"latency_ms":{"all":5,"execute":3000}}`:    `{"latency_ms":{"all":5,"execute":3000},"down":false}`,
		`{"latency_ms":null,"down":true}`:            `{"latency_ms":null,"down":true}`,
		`{"latency_ms":{"create":0},"down":false}  `: `{"latency_ms":{"create":0},"down":false}`,
	} {
		m.must(http.MethodPut, "/mock/settings", nil, body)
		if got := strings.TrimSpace(string(m.must(http.MethodGet, "/mock/settings", nil, "").body)); got != want {
			t.Errorf("settings after %s = %s, want %s", body, got, want)
		}
	}
}

func TestLatency_AnswerThatComesTooLateHasHadItsEffect(t *testing.T) {
	t.Parallel()
	m := serve(t, mockgateway.Options{Latency: func(call string) time.Duration {
		if call == mockgateway.CallExecute {
			return time.Hour
		}
		return 0
	}})
	id, page := m.create("inv-1")
	m.press(page, "outcome=success")
	ctx, hangUp := context.WithCancel(t.Context())
	gone := make(chan error, 1)
	go func() {
		_, err := m.do(ctx, http.MethodPost, checkout+"/execute",
			map[string]string{"Authorization": m.token, "X-APP-Key": "app"}, fmt.Sprintf(`{"paymentID":%q}`, id))
		gone <- err
	}()
	until(t, "execute has its effect", func() bool { return m.status(id).text("transactionStatus") == "Completed" })
	hangUp()
	if err := <-gone; err == nil {
		t.Error("execute: got an answer, want it kept back until the client hung up")
	}
	// Settings go before the option, and only for what they name.
	m.must(http.MethodPut, "/mock/settings", nil, `{"latency_ms":{"execute":0}}`)
	wantCode(t, "execute without latency", m.execute(id), "2117")
}

func TestPayments_AreListedOldestFirst(t *testing.T) {
	t.Parallel()
	c := newClock()
	m := serve(t, mockgateway.Options{Now: c.Now})
	first, page := m.create("inv-1")
	c.Advance(time.Second)
	second, _ := m.create("inv-2")
	m.press(page, "outcome=success")
	trx := m.execute(first).text("trxID")
	m.execute(first)

	var got []struct {
		PaymentID, MerchantInvoiceNumber, TransactionStatus, TrxID, BkashURL string
		PayerFinished                                                        bool
		ExecuteCalls                                                         int
	}
	if err := json.Unmarshal(m.must(http.MethodGet, "/mock/payments", nil, "").body, &got); err != nil {
		t.Fatal(err)
	}
	if len(got) != 2 || got[0].PaymentID != first || got[1].PaymentID != second {
		t.Fatalf("payments: got %+v, want %s before %s", got, first, second)
	}
	if p := got[0]; p.TrxID != trx || p.TransactionStatus != "Completed" || !p.PayerFinished || p.ExecuteCalls != 2 || p.MerchantInvoiceNumber != "inv-1" || p.BkashURL != m.base+page {
		t.Errorf("payments: got %+v, want the completed payment with two execute calls", p)
	}
}

func TestEveryResponse_CarriesTheMocksMark(t *testing.T) {
	t.Parallel()
	m := serve(t, mockgateway.Options{})
	for path, want := range map[string]int{ // must checks the header
		"/nowhere": 404, "/pay/nothing": 404, checkout + "/create": 405, "/mock/payments": 200,
	} {
		if a := m.must(http.MethodGet, path, nil, ""); a.status != want {
			t.Errorf("GET %s: got HTTP %d, want %d", path, a.status, want)
		}
	}
	big := m.must(http.MethodPost, checkout+"/token/grant", accountHeader, strings.Repeat(" ", 65<<10))
	if big.status != http.StatusRequestEntityTooLarge {
		t.Errorf("body of 65 KiB: got HTTP %d, want 413", big.status)
	}
}

func TestState_SurvivesReopen(t *testing.T) {
	t.Parallel()
	c := newClock()
	dir := filepath.Join(t.TempDir(), "new?#% folder")
	open := func() (*merchant, func()) {
		g, err := mockgateway.New(mockgateway.Options{DataDir: dir, Now: c.Now})
		if err != nil {
			t.Fatalf("New: %v", err)
		}
		srv := newServer(t, g)
		return newMerchant(t, srv.URL), func() {
			srv.Close()
			if err := g.Close(); err != nil {
				t.Fatalf("Close: %v", err)
			}
		}
	}
	m, closeIt := open()
	paid, page := m.create("inv-1")
	m.press(page, "outcome=success")
	trx := m.execute(paid).text("trxID")
	finished, page := m.create("inv-2")
	m.press(page, "outcome=success")
	unfinished, _ := m.create("inv-3")
	m.grant() // the second of the hour
	token := m.token
	closeIt()

	m, closeIt = open()
	defer closeIt()
	m.token = token
	if a := m.status(paid); a.text("transactionStatus") != "Completed" || a.text("trxID") != trx {
		t.Errorf("status of the paid payment: got %s, want Completed by %s", a.body, trx)
	}
	wantCode(t, "search", m.call("/general/searchTransaction", map[string]string{"trxID": trx}), "0000")
	wantCode(t, "second execute", m.execute(paid), "2117")
	wantCode(t, "execute of the finished one", m.execute(finished), "0000")
	wantCode(t, "execute of the unfinished one", m.execute(unfinished), "2060")
	wantCode(t, "an invoice used before", m.call("/create", order("inv-3")), "2029")
	if a := m.grant(); a.status != http.StatusTooManyRequests {
		t.Errorf("third grant: got HTTP %d, want 429", a.status)
	}
	info, err := os.Stat(filepath.Join(dir, "mockgateway.db"))
	if err != nil {
		t.Fatal(err)
	}
	if got := info.Mode().Perm(); got != 0o600 {
		t.Errorf("mode of the file that holds tokens = %o, want 600", got)
	}
}

// program runs this test binary as cmd/mockgateway and waits until it listens.
func program(t *testing.T, dir string) (base string, kill func()) {
	t.Helper()
	cmd := exec.CommandContext(context.WithoutCancel(t.Context()), os.Args[0], "-addr", "127.0.0.1:0", "-data", dir)
	cmd.Env = append(os.Environ(), asProgram+"=1")
	stderr, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	kill = sync.OnceFunc(func() {
		_ = cmd.Process.Kill()
		_, _ = io.Copy(io.Discard, stderr)
		_ = cmd.Wait()
	})
	t.Cleanup(kill)
	lines := bufio.NewScanner(stderr)
	url := regexp.MustCompile(`url=(http://127\.0\.0\.1:\d+)/`)
	for lines.Scan() {
		if m := url.FindStringSubmatch(lines.Text()); m != nil {
			return m[1], kill
		}
		t.Log(lines.Text())
	}
	t.Fatal("the mock gateway ended before it listened")
	return "", nil
}

func TestState_SurvivesAKilledProcess(t *testing.T) {
	if testing.Short() {
		t.Skip("starts and kills processes")
	}
	t.Parallel()
	dir := t.TempDir()
	base, kill := program(t, dir)
	m := newMerchant(t, base)
	id, page := m.create("inv-1")
	m.press(page, "outcome=success")
	trx := m.execute(id).text("trxID")
	other, page := m.create("inv-2")
	m.press(page, "outcome=success")
	kill()

	base, _ = program(t, dir)
	again := newMerchant(t, base)
	again.token = m.token
	if a := again.status(id); a.text("transactionStatus") != "Completed" || a.text("trxID") != trx {
		t.Errorf("status of the paid payment: got %s, want Completed by %s", a.body, trx)
	}
	wantCode(t, "execute of the finished one", again.execute(other), "0000")
	again.grant()
	if a := again.grant(); a.status != http.StatusTooManyRequests {
		t.Errorf("third grant, one of them before the kill: got HTTP %d, want 429", a.status)
	}
}

func TestNew_FolderBelongsToOneProcess(t *testing.T) {
	if testing.Short() {
		t.Skip("starts a process")
	}
	t.Parallel()
	dir := t.TempDir()
	program(t, dir)
	g, err := mockgateway.New(mockgateway.Options{DataDir: dir})
	if err == nil {
		_ = g.Close()
		t.Fatal("New on a folder in use: got no error, want one")
	}
	if !strings.Contains(err.Error(), "another mock gateway") {
		t.Errorf("New on a folder in use: got %q, want it to name the likely reason", err)
	}
}

func TestAnswer_IsNotGivenWithoutTheDisk(t *testing.T) {
	t.Parallel()
	g, err := mockgateway.New(mockgateway.Options{DataDir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	m := newMerchant(t, newServer(t, g).URL)
	id, page := m.create("inv-1")
	if err := g.Close(); err != nil {
		t.Fatal(err)
	}
	if a := m.call("/create", order("inv-2")); a.status != http.StatusInternalServerError || a.text("paymentID") != "" {
		t.Errorf("create: got HTTP %d %s, want 500 without a payment", a.status, a.body)
	}
	if a := m.press(page, "outcome=success"); a.status != http.StatusInternalServerError {
		t.Errorf("press: got HTTP %d, want 500", a.status)
	}
	if a := m.status(id); a.status != http.StatusInternalServerError {
		t.Errorf("status of a payment whose last change is not on disk: got HTTP %d, want 500", a.status)
	}
}

func TestNew_RefusesABadPublicURL(t *testing.T) {
	t.Parallel()
	for _, u := range []string{"pay.example", "ftp://pay.example", "https://", "://"} {
		if _, err := mockgateway.New(mockgateway.Options{BaseURL: u}); err == nil {
			t.Errorf("New with public URL %q: got no error, want one", u)
		}
	}
}
