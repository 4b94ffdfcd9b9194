package paygate_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"

	"holdfast/internal/booking"
	"holdfast/internal/mockgateway"
	"holdfast/internal/paygate"
)

func TestClient_PaysAgainstTheMock(t *testing.T) {
	t.Parallel()
	base, press := mock(t, mockgateway.Options{})
	g, err := paygate.NewGranter(base, credentials, httpClient(t))
	if err != nil {
		t.Fatal(err)
	}
	grant, err := g.Grant(t.Context())
	if err != nil || grant.ExpiresIn != time.Hour {
		t.Fatalf("Grant: got lifetime %s, %v; want 1h", grant.ExpiresIn, err)
	}
	b := newBench(t, base, httpClient(t))
	b.tokens.all = []string{string(grant.IDToken)}

	p, err := b.client.Create(t.Context(), seat)
	if err != nil {
		t.Fatalf("Create: %v", err)
	}
	if p.ID == "" || p.URL == "" || len(p.Signature) != 10 {
		t.Fatalf("Create: got %+v, want an id, an address and a signature of ten characters", p)
	}
	ch, err := b.client.Execute(t.Context(), p.ID)
	if want := (booking.Charge{Status: booking.ChargeUnfinished, PaymentID: p.ID, Code: "2060", Text: "Execute prerequisite is not met"}); err != nil || ch != want {
		t.Errorf("Execute before the payer: got %+v, %v; want %+v", ch, err, want)
	}
	ch, err = b.client.Query(t.Context(), p.ID)
	open := booking.Charge{Status: booking.ChargeOpen, PaymentID: p.ID, Invoice: "inv-1", Amount: 150000, Currency: "BDT", Code: "0000", Text: "Successful"}
	if err != nil || ch != open {
		t.Errorf("Query before the payer: got %+v, %v; want %+v", ch, err, open)
	}
	press(p.URL, url.Values{"outcome": {"success"}})
	paid, err := b.client.Execute(t.Context(), p.ID)
	if err != nil {
		t.Fatalf("Execute: %v", err)
	}
	if err := paid.Check(booking.Record{PaymentID: p.ID, Invoice: "inv-1", Amount: 150000, Currency: "BDT"}); err != nil || paid.Status != booking.ChargeCompleted {
		t.Errorf("Execute: got %+v, %v; want completed as ordered", paid, err)
	}
	ch, err = b.client.Query(t.Context(), p.ID)
	if err != nil || ch != paid {
		t.Errorf("Query after execute: got %+v, %v; want the same as execute: %+v", ch, err, paid)
	}
	ch, err = b.client.Execute(t.Context(), p.ID)
	if err != nil || ch.Status != booking.ChargeUnknown || ch.Code != "2117" {
		t.Errorf("second Execute: got %+v, %v; want unknown with code 2117", ch, err)
	}

	second := seat
	second.Invoice = "inv-2"
	p, err = b.client.Create(t.Context(), second)
	if err != nil {
		t.Fatal(err)
	}
	press(p.URL, url.Values{"outcome": {"failure"}})
	ch, err = b.client.Execute(t.Context(), p.ID)
	if err != nil || ch.Status != booking.ChargeRefused || ch.Code != "2023" {
		t.Errorf("Execute after failure: got %+v, %v; want refused with code 2023", ch, err)
	}
	wantNoSecret(t, "log", b.log.String())
	if strings.Contains(b.log.String(), string(grant.IDToken)) {
		t.Error("log contains the token")
	}
}

func TestCreate_SendsWhatTheGatewayWants(t *testing.T) {
	t.Parallel()
	var path, auth, key string
	var body map[string]any
	b := serving(t, func(w http.ResponseWriter, r *http.Request) {
		path, auth, key = r.URL.Path, r.Header.Get("Authorization"), r.Header.Get("X-APP-Key")
		if err := json.NewDecoder(r.Body).Decode(&body); err != nil {
			t.Errorf("create body: %v", err)
		}
		_, _ = io.WriteString(w, created(nil))
	})
	p, err := b.client.Create(t.Context(), seat)
	if want := (booking.Payment{ID: "TR1", URL: "https://pay.example/?paymentId=TR1&hash=h", Signature: "k3YOrG8qy6"}); err != nil || p != want {
		t.Errorf("Create: got %+v, %v; want %+v", p, err, want)
	}
	if path != "/tokenized/checkout/create" || auth != tokenOne || key != appKey {
		t.Errorf("create: path %q, token as sent %q, app key %q; want the create path, the bare token and the app key", path, auth, key)
	}
	want := map[string]any{
		"mode": "0011", "payerReference": "AB-1001", "callbackURL": seat.CallbackURL, "amount": "1500.00",
		"currency": "BDT", "intent": "sale", "merchantInvoiceNumber": "inv-1",
	}
	if diff := cmp.Diff(want, body); diff != "" {
		t.Errorf("create body: -want +got:\n%s", diff)
	}
}

// created is a create answer, changed by the pairs; a nil value takes the field
// away.
func created(change map[string]any) string {
	return object(map[string]any{
		"paymentID": "TR1", "bkashURL": "https://pay.example/?paymentId=TR1&hash=h",
		"successCallbackURL": seat.CallbackURL + "&paymentID=TR1&status=success&signature=k3YOrG8qy6",
		"amount":             "1500.00", "intent": "sale", "currency": "BDT", "transactionStatus": "Initiated",
		"paymentCreateTime": "2025-11-02T14:29:02:166 GMT+0600", "merchantInvoiceNumber": "inv-1",
		"statusCode": "0000", "statusMessage": "Successful",
	}, change)
}

func object(fields, change map[string]any) string {
	for k, v := range change {
		if v == nil {
			delete(fields, k)
		} else {
			fields[k] = v
		}
	}
	b, _ := json.Marshal(fields)
	return string(b)
}

func TestCreate_AcceptsWhatIsWhole(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]map[string]any{
		"as documented":           nil,
		"amount in other digits":  {"amount": "1500"},
		"amount as a number":      {"amount": 1500},
		"no echo":                 {"amount": nil, "currency": nil, "merchantInvoiceNumber": nil},
		"the other spelling":      {"merchantInvoiceNumber": nil, "merchantInvoice": "inv-1"},
		"code of the other shape": {"statusCode": nil, "statusMessage": nil, "errorCode": "0000"},
		"a signature of our own":  {"successCallbackURL": "https://shop.example/?signature=ours&signature=k3YOrG8qy6"},
	} {
		b := answering(t, 200, created(change))
		if p, err := b.client.Create(t.Context(), seat); err != nil || p.Signature != "k3YOrG8qy6" {
			t.Errorf("%s: got %+v, %v; want the payment", name, p, err)
		}
	}
}

func TestCreate_LessThanAPaymentIsInDoubt(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]map[string]any{
		"no id":                 {"paymentID": nil},
		"an id with a space":    {"paymentID": "TR 1"},
		"an id that is long":    {"paymentID": strings.Repeat("x", 200)},
		"no address":            {"bkashURL": nil},
		"a script as address":   {"bkashURL": "javascript:alert(1)"},
		"a path as address":     {"bkashURL": "/pay"},
		"no callback":           {"successCallbackURL": nil},
		"no signature":          {"successCallbackURL": "https://shop.example/?paymentID=TR1"},
		"empty signature":       {"successCallbackURL": "https://shop.example/?signature="},
		"callback not a URL":    {"successCallbackURL": "https://shop.example/%zz?signature=x"},
		"other amount":          {"amount": "1500.01"},
		"amount unreadable":     {"amount": "1e2"},
		"other currency":        {"currency": "USD"},
		"other invoice":         {"merchantInvoiceNumber": "inv-2"},
		"two invoices":          {"merchantInvoice": "inv-2"},
		"refused":               {"statusCode": "2031", "statusMessage": "Invalid merchant invoice number"},
		"refused, other shape":  {"statusCode": nil, "errorCode": "503", "errorMessage": "System is undergoing maintenance"},
		"two codes":             {"errorCode": "2001"},
		"no code":               {"statusCode": nil},
		"a message beside it":   {"message": "Endpoint request timed out"},
		"id of the wrong type":  {"paymentID": map[string]any{"a": 1}},
		"code of a strange one": {"statusCode": true},
	} {
		b := answering(t, 200, created(change))
		p, err := b.client.Create(t.Context(), seat)
		wantErr(t, name, err, booking.ErrInDoubt)
		if p != (booking.Payment{}) {
			t.Errorf("%s: got %+v beside the error, want nothing", name, p)
		}
	}
}

func TestEveryCall_UnusableAnswerIsInDoubt(t *testing.T) {
	t.Parallel()
	done := completed(nil)
	for name, tc := range map[string]struct {
		status int
		body   string
	}{
		"500":                            {500, done},
		"503 with a message":             {503, `{"message":"Service Unavailable"}`},
		"403 with a message":             {403, `{"message":"Forbidden"}`},
		"400 with a code":                {400, `{"statusCode":"2023"}`},
		"201":                            {201, done},
		"302":                            {302, done},
		"200 with a message":             {200, `{"message":"The incoming token has expired"}`},
		"200 with message and code":      {200, `{"message":"x","statusCode":"2023"}`},
		"401 with a code":                {401, `{"message":"Unauthorized","statusCode":"2023"}`},
		"401 without a message":          {401, `{}`},
		"401 with a page":                {401, `<html>`},
		"401 with nothing":               {401, ``},
		"nothing":                        {200, ``},
		"null":                           {200, `null`},
		"list":                           {200, `[]`},
		"text":                           {200, `"0000"`},
		"page":                           {200, `<!doctype html><title>Gateway</title>`},
		"cut short":                      {200, done[:len(done)-5]},
		"two values":                     {200, done + `{}`},
		"empty object":                   {200, `{}`},
		"status without code":            {200, `{"paymentID":"TR1","transactionStatus":"Completed"}`},
		"more than 64 KiB":               {200, done[:len(done)-1] + `,"x":"` + strings.Repeat("y", 64<<10) + `"}`},
		"more than 64 KiB, mostly space": {200, done + strings.Repeat(" ", 64<<10)},
		"code that is a list":            {200, `{"statusCode":["0000"]}`},
		"status that is an object":       {200, `{"statusCode":"0000","transactionStatus":{}}`},
		"two codes that differ":          {200, `{"statusCode":"2023","errorCode":"2060"}`},
		"two invoices that differ":       {200, `{"statusCode":"2023","merchantInvoice":"a","merchantInvoiceNumber":"b"}`},
		"about another payment":          {200, completed(map[string]any{"paymentID": "TR2"})},
		"refusal of another payment":     {200, `{"statusCode":"2023","paymentID":"TR2"}`},
		"completed without payment":      {200, completed(map[string]any{"paymentID": nil})},
		"completed without trx":          {200, completed(map[string]any{"trxID": nil})},
		"completed with a strange trx":   {200, completed(map[string]any{"trxID": "CK25 0N#RO"})},
		"completed without invoice":      {200, completed(map[string]any{"merchantInvoiceNumber": nil})},
		"completed without currency":     {200, completed(map[string]any{"currency": nil})},
		"completed without amount":       {200, completed(map[string]any{"amount": nil})},
		"completed, amount 1e2":          {200, completed(map[string]any{"amount": "1e2"})},
		"completed, amount negative":     {200, completed(map[string]any{"amount": -1500})},
		"completed, amount grouped":      {200, completed(map[string]any{"amount": "1,500.00"})},
	} {
		b := answering(t, tc.status, tc.body)
		for call, err := range b.calls(t.Context()) {
			wantErr(t, name+": "+call, err, booking.ErrInDoubt)
		}
		if got := b.tokens.reported(); got != nil {
			t.Errorf("%s: tokens %v reported as rejected, want none", name, got)
		}
	}
}

func completed(change map[string]any) string {
	return object(map[string]any{
		"paymentID": "TR1", "trxID": "CK250NROQ5", "transactionStatus": "Completed", "amount": "599.00", "currency": "BDT",
		"intent": "sale", "paymentExecuteTime": "2025-11-02T14:30:12:166 GMT+0600", "merchantInvoiceNumber": "inv-1",
		"payerType": "Customer", "payerReference": msisdn, "customerMsisdn": msisdn, "payerAccount": msisdn,
		"statusCode": "0000", "statusMessage": "Successful",
	}, change)
}

func TestCharge_ReadsWhatTheGatewayWrites(t *testing.T) {
	t.Parallel()
	want := booking.Charge{
		Status: booking.ChargeCompleted, PaymentID: "TR1", Invoice: "inv-1", Transaction: "CK250NROQ5",
		Amount: 59900, Currency: "BDT", Code: "0000", Text: "Successful",
	}
	for name, change := range map[string]map[string]any{
		"as documented":         nil,
		"amount without tail":   {"amount": "599"},
		"amount as a number":    {"amount": 599},
		"the other spelling":    {"merchantInvoiceNumber": nil, "merchantInvoice": "inv-1"},
		"both spellings":        {"merchantInvoice": "inv-1"},
		"the other shape":       {"statusCode": nil, "statusMessage": nil, "errorCode": "0000", "errorMessage": "Successful"},
		"both shapes":           {"errorCode": "0000", "errorMessage": "Successful"},
		"a time unreadable":     {"paymentExecuteTime": "yesterday"},
		"a field that is new":   {"couponAmount": map[string]any{"x": []int{1}}},
		"null where none is":    {"errorCode": json.RawMessage("null"), "message": json.RawMessage("null")},
		"an account field less": {"payerType": nil, "payerAccount": nil, "maxRefundableAmount": nil},
	} {
		b := answering(t, 200, completed(change))
		if got, err := b.client.Execute(t.Context(), "TR1"); err != nil || got != want {
			t.Errorf("%s: Execute: got %+v, %v; want %+v", name, got, err, want)
		}
		if got, err := b.client.Query(t.Context(), "TR1"); err != nil || got != want {
			t.Errorf("%s: Query: got %+v, %v; want %+v", name, got, err, want)
		}
	}
}

func TestCharge_CompletedOtherwiseThanOrderedIsToldAsItIs(t *testing.T) {
	t.Parallel()
	ordered := booking.Record{PaymentID: "TR1", Invoice: "inv-1", Amount: 59900, Currency: "BDT"}
	for name, change := range map[string]map[string]any{
		"amount":   {"amount": "599.01"},
		"currency": {"currency": "USD"},
		"invoice":  {"merchantInvoiceNumber": "inv-2"},
	} {
		b := answering(t, 200, completed(change))
		got, err := b.client.Query(t.Context(), "TR1")
		if err != nil || got.Status != booking.ChargeCompleted {
			t.Errorf("%s: got %+v, %v; want completed", name, got, err)
		}
		if err := got.Check(ordered); !errors.Is(err, booking.ErrOtherThanOrdered) {
			t.Errorf("%s: Check: got %v, want %v", name, err, booking.ErrOtherThanOrdered)
		}
	}
}

// What says nothing of one payment is an outage of the whole gateway.
func TestCharge_OutageIsToldApart(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		status int
		body   string
		outage bool
	}{
		"HTTP 500":         {500, "oops", true},
		"HTTP 503":         {503, `{"message":"Service Unavailable"}`, true},
		"throttled":        {429, `{"message":"Too Many Requests"}`, true},
		"not let in":       {403, `{"message":"Forbidden"}`, true},
		"a firewall page":  {403, "<html>", false},
		"request refused":  {400, `{"message":"Invalid request body"}`, false},
		"bare message":     {200, `{"message":"Internal server error"}`, true},
		"maintenance":      {200, `{"statusCode":"503","statusMessage":"maintenance"}`, true},
		"maintenance, old": {200, `{"errorCode":"503","errorMessage":"maintenance"}`, true},
		"not JSON":         {200, "<html>", false},
		"HTTP 400":         {400, `{"statusCode":"2002"}`, false},
		"no code":          {200, `{}`, false},
		"completed, torn":  {200, `{"statusCode":"0000","transactionStatus":"Completed"}`, false},
	} {
		b := answering(t, c.status, c.body)
		for call, f := range map[string]func(context.Context, string) (booking.Charge, error){"execute": b.client.Execute, "query": b.client.Query} {
			if _, err := f(t.Context(), "TR1"); !errors.Is(err, booking.ErrInDoubt) || errors.Is(err, booking.ErrGatewayOutage) != c.outage {
				t.Errorf("%s, %s: got %v, want in doubt, outage %v", call, name, err, c.outage)
			}
		}
	}
}

func TestCharge_EveryTransactionStatusHasItsMeaning(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		code, status string
		want         booking.ChargeStatus
	}{
		{"0000", "Completed", booking.ChargeCompleted},
		{"0000", "Initiated", booking.ChargeOpen},
		{"0000", "Cancelled", booking.ChargeOpen},
		{"0000", "Expired", booking.ChargeOpen},
		{"0000", "Declined", booking.ChargeOpen},
		{"0000", "Authorized", booking.ChargeUnknown},
		{"0000", "PendingAuthorized", booking.ChargeUnknown},
		{"0000", "completed", booking.ChargeUnknown},
		{"0000", "Completed ", booking.ChargeUnknown},
		{"0000", "Reversed", booking.ChargeUnknown},
		{"0000", "", booking.ChargeUnknown},
		// A code and a status that contradict each other.
		{"2023", "Completed", booking.ChargeUnknown},
		{"2023", "Authorized", booking.ChargeUnknown},
		{"2023", "PendingAuthorized", booking.ChargeUnknown},
		{"2060", "Completed", booking.ChargeUnknown},
		{"2062", "Completed", booking.ChargeUnknown},
		{"2117", "Completed", booking.ChargeUnknown},
	} {
		b := answering(t, 200, completed(map[string]any{"statusCode": tc.code, "transactionStatus": tc.status}))
		for name, call := range map[string]func(context.Context, string) (booking.Charge, error){"execute": b.client.Execute, "query": b.client.Query} {
			if got, err := call(t.Context(), "TR1"); err != nil || got.Status != tc.want {
				t.Errorf("%s answered %s %q: got %+v, %v; want %s", name, tc.code, tc.status, got, err, tc.want)
			}
		}
	}
}

func TestEveryCall_WithoutATokenIsNotSent(t *testing.T) {
	t.Parallel()
	var came atomic.Int32
	b := serving(t, func(http.ResponseWriter, *http.Request) { came.Add(1) })
	b.tokens.all, b.tokens.err = nil, errors.New("no grant for a while")
	for call, err := range b.calls(t.Context()) {
		wantErr(t, call, err, booking.ErrNotSent)
		if !errors.Is(err, b.tokens.err) {
			t.Errorf("%s: got %v, want the source's reason in it", call, err)
		}
	}
	if got := came.Load(); got != 0 {
		t.Errorf("%d requests came without a token, want 0", got)
	}
}

func TestEveryCall_WithItsTimeOverIsNotSent(t *testing.T) {
	t.Parallel()
	var came atomic.Int32
	b := serving(t, func(http.ResponseWriter, *http.Request) { came.Add(1) })
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for call, err := range b.calls(ctx) {
		wantErr(t, call, err, booking.ErrNotSent)
	}
	if got := came.Load(); got != 0 {
		t.Errorf("%d requests came after their time, want 0", got)
	}
}

func TestEveryCall_WithoutAConnectionIsNotSent(t *testing.T) {
	t.Parallel()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	refused := "http://" + ln.Addr().String()
	if err := ln.Close(); err != nil {
		t.Fatal(err)
	}
	for call, err := range newBench(t, refused, httpClient(t)).calls(t.Context()) {
		wantErr(t, "connection refused: "+call, err, booking.ErrNotSent)
	}

	over := make(chan struct{}) // the transport goes on dialling after the call has given up
	t.Cleanup(func() { close(over) })
	hanging := &http.Client{Transport: &http.Transport{DialContext: func(context.Context, string, string) (net.Conn, error) {
		<-over
		return nil, net.ErrClosed
	}}}
	short := func(c *paygate.Config) {
		c.CreateTimeout, c.ExecuteTimeout, c.QueryTimeout, c.RefundTimeout = soon, soon, soon, soon
	}
	for call, err := range newBench(t, "http://gateway.example", hanging, short).calls(t.Context()) {
		wantErr(t, "no answer to the dial: "+call, err, booking.ErrNotSent)
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("no answer to the dial: %s: got %v, want the deadline in it", call, err)
		}
	}

	plain := httptest.NewServer(http.NotFoundHandler())
	t.Cleanup(plain.Close)
	for call, err := range newBench(t, strings.Replace(plain.URL, "http:", "https:", 1), httpClient(t)).calls(t.Context()) {
		wantErr(t, "no TLS: "+call, err, booking.ErrNotSent)
	}
}

type failing struct{}

func (failing) RoundTrip(*http.Request) (*http.Response, error) { return nil, errors.New("broken") }

func TestEveryCall_TransportThatProvesNothingIsInDoubt(t *testing.T) {
	t.Parallel()
	for call, err := range newBench(t, "http://gateway.example", &http.Client{Transport: failing{}}).calls(t.Context()) {
		wantErr(t, call, err, booking.ErrInDoubt)
	}
}

func TestEveryCall_WithoutAnAnswerIsInDoubt(t *testing.T) {
	t.Parallel()
	for name, h := range map[string]http.HandlerFunc{
		"connection closed": func(w http.ResponseWriter, _ *http.Request) { panic(http.ErrAbortHandler) },
		"body cut": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "1000")
			_, _ = io.WriteString(w, completed(nil))
			panic(http.ErrAbortHandler)
		},
		"no answer in time": func(_ http.ResponseWriter, r *http.Request) { _, _ = io.Copy(io.Discard, r.Body); <-r.Context().Done() },
		"half a body, no more": func(w http.ResponseWriter, r *http.Request) {
			_, _ = io.Copy(io.Discard, r.Body)
			half(w)
			<-r.Context().Done()
		},
	} {
		b := serving(t, h, func(c *paygate.Config) {
			c.CreateTimeout, c.ExecuteTimeout, c.QueryTimeout, c.RefundTimeout = 4*soon, 4*soon, 4*soon, 4*soon
		})
		for call, err := range b.calls(t.Context()) {
			wantErr(t, name+": "+call, err, booking.ErrInDoubt)
		}
	}
}

func half(w http.ResponseWriter) {
	_, _ = io.WriteString(w, completed(nil)[:20])
	w.(http.Flusher).Flush()
}

func TestExecute_EarlierDeadlineCounts(t *testing.T) {
	t.Parallel()
	b := serving(t, func(_ http.ResponseWriter, r *http.Request) { _, _ = io.Copy(io.Discard, r.Body); <-r.Context().Done() })
	ctx, cancel := context.WithTimeout(t.Context(), 2*soon)
	defer cancel()
	began := time.Now()
	for call, err := range b.calls(ctx) { // the client's own would be 5 s at least
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%s: got %v, want the caller's deadline", call, err)
		}
	}
	if took := time.Since(began); took > 3*time.Second {
		t.Errorf("calls took %s, want no longer than the caller's deadline", took)
	}
}

func TestEveryCall_FollowsNoRedirect(t *testing.T) {
	t.Parallel()
	var stolen atomic.Int32
	other := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		stolen.Add(1)
		_, _ = io.WriteString(w, completed(nil))
	}))
	t.Cleanup(other.Close)
	for _, status := range []int{301, 302, 303, 307, 308} {
		b := serving(t, func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, other.URL, status) })
		for call, err := range b.calls(t.Context()) {
			wantErr(t, fmt.Sprintf("%d: %s", status, call), err, booking.ErrInDoubt)
		}
	}
	if got := stolen.Load(); got != 0 {
		t.Errorf("%d requests, tokens included, went to where a redirect pointed; want 0", got)
	}
}

// onlyAfter answers 401 to every token but the one it accepts.
func onlyAfter(accepted string, calls *atomic.Int32, body string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		calls.Add(1)
		if r.Header.Get("Authorization") != accepted {
			w.WriteHeader(http.StatusUnauthorized)
			_, _ = io.WriteString(w, `{"message":"The incoming token has expired"}`)
			return
		}
		_, _ = io.WriteString(w, body)
	}
}

func TestUnauthorized_IsTriedOnceMoreWithAFreshToken(t *testing.T) {
	t.Parallel()
	var calls atomic.Int32
	b := serving(t, onlyAfter(tokenTwo, &calls, created(nil)))
	if _, err := b.client.Create(t.Context(), seat); err != nil {
		t.Errorf("Create: %v", err)
	}
	if diff := cmp.Diff([]string{tokenOne}, b.tokens.reported()); diff != "" || calls.Load() != 2 {
		t.Errorf("%d requests, want 2; rejected tokens -want +got:\n%s", calls.Load(), diff)
	}
	b = serving(t, onlyAfter(tokenTwo, &calls, completed(nil)))
	if ch, err := b.client.Execute(t.Context(), "TR1"); err != nil || ch.Status != booking.ChargeCompleted {
		t.Errorf("Execute: got %+v, %v; want completed", ch, err)
	}
}

func TestUnauthorized_TwiceIsNotSent(t *testing.T) {
	t.Parallel()
	for call, run := range map[string]func(*bench) error{
		"create":  func(b *bench) error { _, err := b.client.Create(t.Context(), seat); return err },
		"execute": func(b *bench) error { _, err := b.client.Execute(t.Context(), "TR1"); return err },
		"query":   func(b *bench) error { _, err := b.client.Query(t.Context(), "TR1"); return err },
		"refund":  func(b *bench) error { _, err := b.client.Refund(t.Context(), refundOrder); return err },
		"search":  func(b *bench) error { _, err := b.client.Search(t.Context(), "CK250NROQ5"); return err },
	} {
		var calls atomic.Int32
		b := serving(t, onlyAfter("none", &calls, ""))
		wantErr(t, call, run(b), booking.ErrNotSent)
		if got := calls.Load(); got != 2 || len(b.tokens.reported()) != 1 {
			t.Errorf("%s: %d requests, tokens %v reported; want 2 and one", call, got, b.tokens.reported())
		}
	}
}

func TestUnauthorized_WithoutAnotherTokenIsNotSent(t *testing.T) {
	t.Parallel()
	for name, set := range map[string]func(*tokens){
		"the same again": func(s *tokens) { s.all = []string{tokenOne} },
		"none":           func(s *tokens) { s.all, s.err = []string{tokenOne}, errors.New("no grant for a while") },
	} {
		var calls atomic.Int32
		b := serving(t, onlyAfter("none", &calls, ""))
		set(b.tokens)
		_, err := b.client.Execute(t.Context(), "TR1")
		wantErr(t, name, err, booking.ErrNotSent)
		if got := calls.Load(); got != 1 {
			t.Errorf("%s: %d requests, want 1", name, got)
		}
	}
}

func TestNothingSecret_IsLoggedOrInAnError(t *testing.T) {
	t.Parallel()
	// What an answer may carry of its payer and of us, beside what it is about.
	payer := map[string]any{
		"customerMsisdn": msisdn, "payerAccount": msisdn, "payerReference": msisdn, "transactionReference": msisdn, "debitMSISDN": "88" + msisdn,
		"id_token": tokenOne, "refresh_token": tokenTwo, "organizationShortCode": "5ec2e7", "agreementID": "5ec2e7",
	}
	with := func(m map[string]any, k string, v any) map[string]any {
		m = maps.Clone(m)
		m[k] = v
		return m
	}
	// Everything that came in goes back out, in every text that can be.
	echo := func(status int, format string) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			var in map[string]string
			if err := json.NewDecoder(r.Body).Decode(&in); err != nil {
				t.Error(err)
			}
			w.WriteHeader(status)
			_, _ = fmt.Fprintf(w, format, strings.Join([]string{
				r.Header.Get("Authorization"), r.Header.Get("X-App-Key"), r.Header.Get("Username"), r.Header.Get("Password"), in["app_secret"],
				"eyJraWQiOiJmalhKQ29KMXpPMXVreENEaDJTN2VhZTJ5NmFyb3pVTSJ9.5ec2e7", msisdn, "+88 017-0000 0000", "+88 (0170) 000.0000",
			}, " "))
		}
	}
	for name, h := range map[string]http.HandlerFunc{
		"refusal":      echo(200, `{"statusCode":"2023","statusMessage":%q}`),
		"other shape":  echo(200, `{"errorCode":"9999","errorMessage":%q}`),
		"message":      echo(200, `{"message":%q}`),
		"unauthorized": echo(401, `{"message":%q}`),
		"error page":   echo(502, `<html>%s</html>`),
		"as ids":       echo(200, `{"statusCode":%[1]q,"statusMessage":"x","trxID":%[1]q,"merchantInvoice":%[1]q,"transactionStatus":%[1]q}`),
		"as type":      echo(200, `{"statusCode":[%q]}`),
		"completed":    func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, completed(payer)) },
		"found": func(w http.ResponseWriter, _ *http.Request) {
			_, _ = io.WriteString(w, completed(with(payer, "trxID", "CK00000000")))
		},
		"refunded": func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, refunded(payer)) },
		"refused": func(w http.ResponseWriter, _ *http.Request) {
			_, _ = io.WriteString(w, completed(with(payer, "statusCode", "2023")))
		},
		"created": func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, created(nil)) },
		"created, wrong": func(w http.ResponseWriter, _ *http.Request) {
			_, _ = io.WriteString(w, created(map[string]any{"bkashURL": msisdn}))
		},
	} {
		b := serving(t, h)
		for call, err := range b.calls(t.Context()) {
			wantNoSecret(t, name+": error of "+call, fmt.Sprint(err))
		}
		log := b.log.withoutClock()
		wantNoSecret(t, name+": log", log)
		for _, address := range []string{"shop.example", "pay.example", "k3YOrG8qy6", "017-0000", "0170"} {
			if strings.Contains(log, address) {
				t.Errorf("%s: log contains %q: %s", name, address, log)
			}
		}
		if strings.Contains(log, `"took"`) || strings.Contains(log, `"time"`) {
			t.Errorf("%s: got a time left in it: %s", name, log)
		}
		if got := strings.Count(log, "\n"); got != 6 {
			t.Errorf("%s: %d log lines for six calls, want 6: %s", name, got, log)
		}
		families, err := b.reg.Gather()
		if err != nil {
			t.Fatal(err)
		}
		if len(families) == 0 {
			t.Errorf("%s: no metrics", name)
		}
		wantNoSecret(t, name+": metrics", fmt.Sprint(families))

		srv := httptest.NewServer(h)
		g, err := paygate.NewGranter(srv.URL, credentials, httpClient(t))
		if err != nil {
			t.Fatal(err)
		}
		grant, err := g.Grant(t.Context())
		srv.Close()
		wantNoSecret(t, name+": error of grant", fmt.Sprint(err))
		wantNoSecret(t, name+": grant", fmt.Sprintf("%v %+v %#v", grant, grant, grant))
	}
}

func TestLog_IsEvidenceOfACall(t *testing.T) {
	t.Parallel()
	b := answering(t, 200, completed(nil))
	if _, err := b.client.Execute(t.Context(), "TR1"); err != nil {
		t.Fatal(err)
	}
	var line map[string]any
	if err := json.Unmarshal([]byte(b.log.String()), &line); err != nil {
		t.Fatal(err)
	}
	delete(line, "time")
	delete(line, "took")
	want := map[string]any{
		"level": "INFO", "msg": "gateway call", "call": "execute", "outcome": "completed", "payment": "TR1", "invoice": "inv-1",
		"code": "0000", "text": "Successful", "transaction_status": "Completed", "transaction": "CK250NROQ5",
		"executed_at": "2025-11-02T14:30:12.166+06:00",
	}
	if diff := cmp.Diff(want, line); diff != "" {
		t.Errorf("log line: -want +got:\n%s", diff)
	}
}

func TestSecrets_DoNotPrintThemselves(t *testing.T) {
	t.Parallel()
	for _, v := range []any{
		credentials, &credentials,
		paygate.Config{BaseURL: "https://pay.example", AppKey: appKey},
		paygate.Grant{IDToken: tokenOne, RefreshToken: tokenTwo, ExpiresIn: time.Hour},
	} {
		var out strings.Builder
		for _, h := range []slog.Handler{slog.NewTextHandler(&out, nil), slog.NewJSONHandler(&out, nil)} {
			slog.New(h).InfoContext(t.Context(), "x", "v", v)
		}
		j, err := json.Marshal(v)
		if err != nil {
			t.Error(err)
		}
		_, _ = fmt.Fprintf(&out, "%s %v %+v %#v %s", j, v, v, v, v)
		wantNoSecret(t, fmt.Sprintf("%T", v), out.String())
		if !strings.Contains(out.String(), "[secret]") {
			t.Errorf("%T: printed %s, want it to say that there is a secret", v, out.String())
		}
	}
}

func TestMetrics_LabelsAreFromClosedSets(t *testing.T) {
	t.Parallel()
	seen, begun := map[string]bool{}, map[string]bool{}
	note := func(b *bench, into map[string]bool, all bool) {
		families, err := b.reg.Gather()
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range families {
			for _, m := range f.Metric {
				name := f.GetName()
				for _, l := range m.Label {
					name += " " + l.GetValue()
				}
				if all || m.GetHistogram() == nil || m.GetHistogram().GetSampleCount() > 0 {
					into[name] = true
				}
			}
		}
	}
	for _, body := range []string{
		completed(nil), created(nil), refunded(nil), completed(map[string]any{"trxID": "CK00000000"}), `{"statusCode":"2001"}`, `{"statusCode":"2023"}`, `{"statusCode":"2033"}`,
		`{"statusCode":"2057"}`, `{"statusCode":"2060"}`, `{"statusCode":"junk","transactionStatus":"junk"}`, `junk`,
	} {
		b := newBenchAnswering(t, body, func(c *paygate.Config) { c.BreakerFailures = 2 })
		note(b, begun, true)
		b.calls(t.Context())
		b.tokens.all, b.tokens.err = nil, errors.New("none")
		for range 3 {
			b.calls(t.Context())
		}
		note(b, seen, false)
	}
	want := map[string]bool{"holdfast_gateway_breaker_open": true}
	for call, outcomes := range map[string][]string{
		"create":        {"created", "breaker_open"},
		"execute":       {"completed", "open", "refused", "unfinished", "unknown"},
		"query":         {"completed", "open", "refused", "unknown"},
		"refund":        {"done", "not_done"},
		"refund_status": {"done", "not_done"},
		"search":        {"found", "not_found"},
	} {
		for _, o := range append(outcomes, "our_fault", "in_doubt", "not_sent") {
			want["holdfast_gateway_request_seconds "+call+" "+o] = true
		}
	}
	if diff := cmp.Diff(want, seen); diff != "" {
		t.Errorf("series with a call: -want +got:\n%s", diff)
	}
	if diff := cmp.Diff(want, begun); diff != "" { // an alarm hears the first one only over a zero
		t.Errorf("series before the first call: -want +got:\n%s", diff)
	}
}

func TestNew_RefusesWhatCannotWork(t *testing.T) {
	t.Parallel()
	log, hc, src := slog.New(slog.DiscardHandler), httpClient(t), &tokens{}
	good := paygate.Config{BaseURL: "https://pay.example/v1", AppKey: appKey}
	with := func(f func(*paygate.Config)) paygate.Config {
		c := good
		f(&c)
		return c
	}
	for name, cfg := range map[string]paygate.Config{
		"no app key":        with(func(c *paygate.Config) { c.AppKey = "" }),
		"no base":           with(func(c *paygate.Config) { c.BaseURL = "" }),
		"no scheme":         with(func(c *paygate.Config) { c.BaseURL = "pay.example" }),
		"other scheme":      with(func(c *paygate.Config) { c.BaseURL = "ftp://pay.example" }),
		"a user":            with(func(c *paygate.Config) { c.BaseURL = "https://u:" + password + "@pay.example" }),
		"a query":           with(func(c *paygate.Config) { c.BaseURL = "https://pay.example?x=1" }),
		"negative time-out": with(func(c *paygate.Config) { c.ExecuteTimeout = -1 }),
		"negative refund":   with(func(c *paygate.Config) { c.RefundTimeout = -1 }),
		"negative pause":    with(func(c *paygate.Config) { c.BreakerPause = -1 }),
		"negative failures": with(func(c *paygate.Config) { c.BreakerFailures = -1 }),
	} {
		_, err := paygate.New(cfg, src, hc, log, prometheus.NewRegistry())
		if err == nil {
			t.Errorf("%s: got no error, want one", name)
		}
		wantNoSecret(t, name, fmt.Sprint(err))
	}
	reg := prometheus.NewRegistry()
	if _, err := paygate.New(good, src, hc, log, reg); err != nil {
		t.Errorf("New: %v", err)
	}
	for name, call := range map[string]func() error{
		"no source":     func() error { _, err := paygate.New(good, nil, hc, log, prometheus.NewRegistry()); return err },
		"no client":     func() error { _, err := paygate.New(good, src, nil, log, prometheus.NewRegistry()); return err },
		"no log":        func() error { _, err := paygate.New(good, src, hc, nil, prometheus.NewRegistry()); return err },
		"no registerer": func() error { _, err := paygate.New(good, src, hc, log, nil); return err },
		"twice":         func() error { _, err := paygate.New(good, src, hc, log, reg); return err },
	} {
		if call() == nil {
			t.Errorf("%s: got no error, want one", name)
		}
	}
}

func TestParseTime_ReadsTheColonBeforeTheMilliseconds(t *testing.T) {
	t.Parallel()
	got, err := paygate.ParseTime("2025-11-02T14:29:02:166 GMT+0600")
	if want := time.Date(2025, 11, 2, 8, 29, 2, 166e6, time.UTC); err != nil || !got.Equal(want) {
		t.Errorf("ParseTime: got %s, %v; want %s", got, err, want)
	}
	for _, s := range []string{"", "2025-11-02", "2025-11-02T14:29:02", "2025-11-02T14:29:02:166", "2025-11-02T14:29:02:166 +0600", "2025-13-02T14:29:02:166 GMT+0600", strings.Repeat(":", 30)} {
		if got, err := paygate.ParseTime(s); err == nil {
			t.Errorf("ParseTime(%q): got %s, want an error", s, got)
		}
	}
}
