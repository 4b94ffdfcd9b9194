package mockgateway_test

import (
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"holdfast/internal/mockgateway"
)

// posted is a message as a webhook received it.
type posted struct {
	header http.Header
	fields map[string]string
}

// about is what the message tells of the transaction.
func (p posted) about(tb testing.TB) map[string]string {
	tb.Helper()
	var m map[string]string
	if err := json.Unmarshal([]byte(p.fields["Message"]), &m); err != nil {
		tb.Fatalf("Message %q: %v", p.fields["Message"], err)
	}
	return m
}

// webhook receives messages; it answers with the next of its statuses, and with
// 200 once they are used up. 0 is no answer.
type webhook struct {
	url string

	mu       sync.Mutex
	statuses []int
	got      []posted
}

func newWebhook(tb testing.TB, statuses ...int) *webhook {
	tb.Helper()
	w := &webhook{statuses: statuses}
	srv := newServer(tb, w)
	w.url = srv.URL + "/notify"
	return w
}

func (h *webhook) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	p := posted{header: r.Header}
	if err == nil {
		err = json.Unmarshal(body, &p.fields)
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusTeapot)
		return
	}
	h.mu.Lock()
	h.got = append(h.got, p)
	status := http.StatusOK
	if len(h.statuses) > 0 {
		status, h.statuses = h.statuses[0], h.statuses[1:]
	}
	h.mu.Unlock()
	if status == 0 {
		panic(http.ErrAbortHandler)
	}
	if status == http.StatusFound {
		w.Header().Set("Location", "/elsewhere")
	}
	w.WriteHeader(status)
}

func (h *webhook) all() []posted {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.got[:len(h.got):len(h.got)]
}

// notified starts a mock that notifies a webhook; more goes into its settings.
func notified(tb testing.TB, opts mockgateway.Options, h *webhook, more string) (*merchant, *mockgateway.Gateway) {
	tb.Helper()
	m, g := serveGateway(tb, opts)
	m.notifications(h, more)
	return m, g
}

func (m *merchant) notifications(h *webhook, more string) {
	m.tb.Helper()
	a := m.must(http.MethodPut, "/mock/settings", nil, fmt.Sprintf(`{"notifications":{"url":%q%s}}`, h.url, more))
	if a.status != http.StatusOK {
		m.tb.Fatalf("settings: got HTTP %d %s", a.status, a.body)
	}
}

// notes are the notifications of every transaction, in order of payment.
func notes(tb testing.TB, g *mockgateway.Gateway) []mockgateway.ListedNotification {
	tb.Helper()
	all, err := g.Payments("")
	if err != nil {
		tb.Fatal(err)
	}
	var got []mockgateway.ListedNotification
	for _, p := range all {
		for _, t := range p.Transactions {
			if t.Notification != nil {
				got = append(got, *t.Notification)
			}
		}
	}
	return got
}

func done(tb testing.TB, g *mockgateway.Gateway, n int) {
	tb.Helper()
	until(tb, fmt.Sprintf("%d notifications are done", n), func() bool {
		all := notes(tb, g)
		for _, note := range all {
			if !note.Done {
				return false
			}
		}
		return len(all) == n
	})
}

// verify is what a careful receiver does with the certificate.
func (m *merchant) verify(p posted, now time.Time) error {
	u, err := url.Parse(p.fields["SigningCertURL"])
	if err != nil {
		return err
	}
	if !regexp.MustCompile(`^https://sns\.ap-southeast-1\.amazonaws\.com/SimpleNotificationService-[0-9a-f]{32}\.pem$`).MatchString(u.String()) {
		return fmt.Errorf("SigningCertURL = %q", u)
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(m.must(http.MethodGet, "/mock/sns/ca.pem", nil, "").body) {
		return fmt.Errorf("no CA certificate")
	}
	block, _ := pem.Decode(m.must(http.MethodGet, "/mock/sns"+u.Path, nil, "").body)
	if block == nil {
		return fmt.Errorf("no certificate at %s", u.Path)
	}
	cert, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		return err
	}
	if cert.Subject.CommonName != "sns.amazonaws.com" {
		return fmt.Errorf("certificate is for %q", cert.Subject.CommonName)
	}
	if _, err := cert.Verify(x509.VerifyOptions{Roots: roots, DNSName: "sns.amazonaws.com", CurrentTime: now}); err != nil {
		return err
	}
	names := []string{"Message", "MessageId", "Subject", "Timestamp", "TopicArn", "Type"}
	if p.fields["Type"] != "Notification" {
		names = []string{"Message", "MessageId", "SubscribeURL", "Timestamp", "Token", "TopicArn", "Type"}
	}
	var text strings.Builder
	for _, name := range names {
		if v, ok := p.fields[name]; ok {
			text.WriteString(name + "\n" + v + "\n")
		}
	}
	algorithm := map[string]x509.SignatureAlgorithm{"1": x509.SHA1WithRSA, "2": x509.SHA256WithRSA}[p.fields["SignatureVersion"]]
	signature, err := base64.StdEncoding.DecodeString(p.fields["Signature"])
	if err != nil {
		return err
	}
	return cert.CheckSignature(algorithm, []byte(text.String()), signature)
}

func TestNotification_IsSignedAndTellsOfTheTransaction(t *testing.T) {
	t.Parallel()
	for version, more := range map[string]string{"1": "", "2": `,"signature_version":"2","subject":"Paid","topic_arn":"arn:aws:sns:ap-southeast-1:123456789012:bpt_x"`} {
		t.Run(version, func(t *testing.T) {
			t.Parallel()
			c, h := newClock(), newWebhook(t)
			m, g := notified(t, mockgateway.Options{Now: c.Now, At: c.At}, h, more)
			id := m.finished("inv-1", `[]`)
			trx := m.execute(id).text("trxID")
			done(t, g, 1)
			p := h.all()[0]
			if err := m.verify(p, c.Now()); err != nil {
				t.Errorf("verify: %v", err)
			}
			if got := p.fields["SignatureVersion"]; got != version {
				t.Errorf("SignatureVersion = %q, want %s", got, version)
			}
			forged := posted{header: p.header, fields: map[string]string{}}
			for k, v := range p.fields {
				forged.fields[k] = v
			}
			forged.fields["MessageId"] = "other"
			if err := m.verify(forged, c.Now()); err == nil {
				t.Error("a changed message id passes, want it refused")
			}
			for name, want := range map[string]string{
				"Content-Type": "text/plain; charset=UTF-8", "User-Agent": "Amazon Simple Notification Service Agent",
				"X-Amz-Sns-Message-Type": "Notification", "X-Amz-Sns-Topic-Arn": p.fields["TopicArn"], "X-Amz-Sns-Message-Id": p.fields["MessageId"],
			} {
				if got := p.header.Get(name); got != want {
					t.Errorf("header %s = %q, want %q", name, got, want)
				}
			}
			want := map[string]string{
				"dateTime": "20261201100000", "debitMSISDN": "8801700000000", "creditOrganizationName": "Mock merchant", "creditShortCode": "50000",
				"trxID": trx, "transactionStatus": "Completed", "transactionType": "10002294", "amount": "1500.00", "currency": "BDT",
				"transactionReference": "AB-1001", "merchantInvoiceNumber": "inv-1",
			}
			if diff := cmp.Diff(want, p.about(t)); diff != "" {
				t.Errorf("message: -want +got:\n%s", diff)
			}
			want200 := []mockgateway.ListedNotification{{
				MessageID: p.fields["MessageId"], Done: true, Attempts: []mockgateway.Attempt{{At: c.Now(), Status: 200}},
			}}
			if diff := cmp.Diff(want200, notes(t, g)); diff != "" {
				t.Errorf("list: -want +got:\n%s", diff)
			}
		})
	}
}

func TestNotification_IsRetriedWhereTheServiceRetries(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		statuses []int
		more     string
		want     []int
	}{
		"an error, then well":    {[]int{500}, "", []int{500, 200}},
		"no answer, then well":   {[]int{0}, "", []int{0, 200}},
		"given up after four":    {[]int{503, 503, 503, 503, 503}, "", []int{503, 503, 503, 503}},
		"given up after two":     {[]int{503, 503, 503}, `,"retries":1`, []int{503, 503}},
		"not retried at all":     {[]int{503, 503}, `,"retries":-1`, []int{503}},
		"refusal is delivered":   {[]int{403}, "", []int{403}},
		"redirect is delivered":  {[]int{302}, "", []int{302}},
		"accepted is delivered":  {[]int{202}, "", []int{202}},
		"not found is delivered": {[]int{404}, "", []int{404}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c, h := newClock(), newWebhook(t, tc.statuses...)
			m, g := notified(t, mockgateway.Options{Now: c.Now, At: c.At}, h, tc.more)
			m.execute(m.finished("inv-1", `[]`))
			for i := range tc.want {
				until(t, "the next attempt is made", func() bool {
					all := notes(t, g)
					return len(all) == 1 && len(all[0].Attempts) == i+1
				})
				c.Advance(20 * time.Second)
			}
			done(t, g, 1)
			var got []int
			ids := map[string]bool{}
			for i, a := range notes(t, g)[0].Attempts {
				got = append(got, a.Status)
				if (a.Status == 0) != (a.Error != "") {
					t.Errorf("attempt %d: got %+v, want an error exactly where there was no answer", i, a)
				}
				if want := newClock().Now().Add(time.Duration(i) * 20 * time.Second); !a.At.Equal(want) {
					t.Errorf("attempt %d at %s, want %s", i, a.At, want)
				}
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("statuses: -want +got:\n%s", diff)
			}
			for _, p := range h.all() {
				ids[p.fields["MessageId"]] = true
			}
			if len(ids) != 1 || len(h.all()) != len(tc.want) {
				t.Errorf("%d posts under %d message ids, want %d under one", len(h.all()), len(ids), len(tc.want))
			}
		})
	}
}

func TestNotification_Late(t *testing.T) {
	t.Parallel()
	c, h := newClock(), newWebhook(t)
	m, g := notified(t, mockgateway.Options{Now: c.Now, At: c.At}, h, "")
	m.execute(m.finished("inv-1", `[{"name":"notification_late","delay_ms":3600000}]`))
	m.execute(m.finished("inv-2", `[]`))
	until(t, "the other one has arrived", func() bool { return len(h.all()) == 1 })
	c.Advance(time.Hour)
	done(t, g, 2)
	all := h.all()
	if len(all) != 2 || all[1].about(t)["merchantInvoiceNumber"] != "inv-1" {
		t.Errorf("got %v, want inv-1 an hour after inv-2", all)
	}
	wantCount(t, g, "notification_late", map[string]int{"notification": 1})
}

func TestNotification_DoubledHasOneMessageID(t *testing.T) {
	t.Parallel()
	h := newWebhook(t, 500)
	c := newClock()
	m, g := notified(t, mockgateway.Options{Now: c.Now, At: c.At}, h, "")
	m.execute(m.finished("inv-1", `[{"name":"notification_doubled"}]`))
	until(t, "the first attempt is made", func() bool { return len(notes(t, g)[0].Attempts) == 1 })
	c.Advance(20 * time.Second)
	done(t, g, 1)
	all := h.all()
	if len(all) != 3 || all[1].fields["MessageId"] != all[2].fields["MessageId"] || all[1].fields["Message"] != all[2].fields["Message"] {
		t.Errorf("got %v, want one refused and two of the same", all)
	}
}

func TestNotification_OutOfOrderIsOvertaken(t *testing.T) {
	t.Parallel()
	c, h := newClock(), newWebhook(t)
	m, g := notified(t, mockgateway.Options{Now: c.Now, At: c.At}, h, "")
	m.execute(m.finished("inv-1", `[{"name":"notification_out_of_order"}]`))
	wantCount(t, g, "notification_out_of_order", nil)
	m.execute(m.finished("inv-2", `[]`))
	done(t, g, 2)
	var got []string
	for _, p := range h.all() {
		got = append(got, p.about(t)["merchantInvoiceNumber"])
	}
	if diff := cmp.Diff([]string{"inv-2", "inv-1"}, got); diff != "" {
		t.Errorf("order: -want +got:\n%s", diff)
	}
	wantCount(t, g, "notification_out_of_order", map[string]int{"notification": 1})

	// Without a later one it is only late.
	m.execute(m.finished("inv-3", `[{"name":"notification_out_of_order"}]`))
	c.Advance(time.Minute)
	done(t, g, 3)
	wantCount(t, g, "notification_out_of_order", map[string]int{"notification": 1})
}

func TestNotification_Never(t *testing.T) {
	t.Parallel()
	h := newWebhook(t)
	m, g := notified(t, mockgateway.Options{}, h, "")
	m.execute(m.finished("inv-1", `[{"name":"notification_never"}]`))
	m.execute(m.finished("inv-2", `[]`))
	done(t, g, 2)
	if all := h.all(); len(all) != 1 || all[0].about(t)["merchantInvoiceNumber"] != "inv-2" {
		t.Errorf("got %v, want inv-2 alone", all)
	}
	if n := notes(t, g)[0]; !n.Never || len(n.Attempts) != 0 {
		t.Errorf("list: got %+v, want one that is never sent", n)
	}
}

func TestNotification_OfBothOfTwoPayments(t *testing.T) {
	t.Parallel()
	h := newWebhook(t)
	m, g := notified(t, mockgateway.Options{}, h, "")
	id := m.finished("inv-1", `[{"name":"two_payments"},{"name":"wrong_amount","calls":["notification"],"value":"-5"}]`)
	m.execute(id)
	done(t, g, 2)
	trxs, amounts := map[string]bool{}, map[string]int{}
	for _, p := range h.all() {
		about := p.about(t)
		trxs[about["trxID"]], amounts[about["amount"]] = true, amounts[about["amount"]]+1
		if about["merchantInvoiceNumber"] != "inv-1" {
			t.Errorf("got %v, want both for inv-1", about)
		}
	}
	if len(trxs) != 2 {
		t.Errorf("transactions notified: %v, want two", trxs)
	}
	if diff := cmp.Diff(map[string]int{"-5": 1, "1500.00": 1}, amounts); diff != "" {
		t.Errorf("amounts: -want +got:\n%s", diff)
	}
}

func TestNotification_ComesForMoneyThatNobodyAsksFor(t *testing.T) {
	t.Parallel()
	c, h := newClock(), newWebhook(t)
	m, _ := notified(t, mockgateway.Options{Now: c.Now, At: c.At}, h, "")
	m.execute(m.finished("inv-1", `[{"name":"completes_late"}]`))
	c.Advance(time.Minute)
	until(t, "it has arrived", func() bool { return len(h.all()) == 1 })

	m.must(http.MethodPut, "/mock/settings", nil, fmt.Sprintf(`{"capture":"payer","notifications":{"url":%q}}`, h.url))
	m.finished("inv-2", `[]`)
	until(t, "it has arrived", func() bool { return len(h.all()) == 2 })
}

func TestSubscribe_SendsASignedConfirmation(t *testing.T) {
	t.Parallel()
	h := newWebhook(t, 200, 503, 0)
	m := serve(t, mockgateway.Options{})
	if a := m.must(http.MethodPost, "/mock/notifications/subscribe", nil, ""); a.status != http.StatusBadRequest {
		t.Errorf("subscribe without a webhook: got HTTP %d, want 400", a.status)
	}
	m.notifications(h, "")
	for i, want := range []struct{ http, status int }{{200, 200}, {200, 503}, {502, 0}} {
		a := m.must(http.MethodPost, "/mock/notifications/subscribe", nil, "")
		if status, _ := a.fields["status"].(float64); a.status != want.http || int(status) != want.status {
			t.Errorf("subscribe %d: got HTTP %d %s, want %d with status %d", i, a.status, a.body, want.http, want.status)
		}
	}
	p := h.all()[0]
	if err := m.verify(p, time.Now()); err != nil {
		t.Errorf("verify: %v", err)
	}
	u, err := url.Parse(p.fields["SubscribeURL"])
	if err != nil {
		t.Fatal(err)
	}
	q := u.Query()
	if u.Host != "sns.ap-southeast-1.amazonaws.com" || q.Get("Action") != "ConfirmSubscription" || q.Get("TopicArn") != mockgateway.DefaultTopic || q.Get("Token") != p.fields["Token"] {
		t.Errorf("SubscribeURL = %q, want a confirmation of the topic with the token", u)
	}
	if got := p.header.Get("x-amz-sns-message-type"); got != "SubscriptionConfirmation" || p.fields["Type"] != got {
		t.Errorf("type = %q, in the header %q; want SubscriptionConfirmation", p.fields["Type"], got)
	}
}

func TestCertificate_OfAnotherNameIsNotThere(t *testing.T) {
	t.Parallel()
	m := serve(t, mockgateway.Options{})
	if a := m.must(http.MethodGet, "/mock/sns/SimpleNotificationService-00.pem", nil, ""); a.status != http.StatusNotFound {
		t.Errorf("got HTTP %d, want 404", a.status)
	}
}

func TestState_WhatIsPendingSurvivesReopen(t *testing.T) {
	t.Parallel()
	c, h := newClock(), newWebhook(t, 503)
	dir := filepath.Join(t.TempDir(), "gateway")
	open := func() (*merchant, *mockgateway.Gateway, func()) {
		g, err := mockgateway.New(mockgateway.Options{DataDir: dir, Now: c.Now, At: c.At})
		if err != nil {
			t.Fatalf("New: %v", err)
		}
		srv := httptest.NewServer(g)
		return newMerchant(t, srv.URL), g, func() {
			srv.Close()
			if err := g.Close(); err != nil {
				t.Fatalf("Close: %v", err)
			}
		}
	}
	m, g, closeIt := open()
	m.notifications(h, "")
	trx := m.execute(m.finished("inv-1", `[{"name":"two_payments","delay_ms":60000}]`)).text("trxID")
	late := m.finished("inv-2", `[{"name":"completes_late","delay_ms":60000}]`)
	m.execute(late)
	m.faults("inv-3", `[{"name":"refused"}]`)
	until(t, "the first attempt has failed", func() bool { return len(notes(t, g)[0].Attempts) == 1 })
	before := g.FaultCounts()
	ca, err := g.CAPEM()
	if err != nil {
		t.Fatal(err)
	}
	token := m.token
	closeIt()

	m, g, closeIt = open()
	defer closeIt()
	m.token = token
	if diff := cmp.Diff(before, g.FaultCounts()); diff != "" {
		t.Errorf("counts: -before +after:\n%s", diff)
	}
	if again, err := g.CAPEM(); err != nil || string(again) != string(ca) {
		t.Errorf("CA: got another one (%v), want the same", err)
	}
	c.Advance(20 * time.Second)
	until(t, "the notification is sent again", func() bool { return len(h.all()) == 2 })
	first, second := h.all()[0], h.all()[1]
	if first.fields["MessageId"] != second.fields["MessageId"] || second.about(t)["trxID"] != trx {
		t.Errorf("got %v, then %v; want the same message", first.fields, second.fields)
	}
	if err := m.verify(second, c.Now()); err != nil {
		t.Errorf("verify: %v", err)
	}
	id, page := m.create("inv-3")
	m.press(page, "outcome=success")
	wantCode(t, "execute with a fault set before", m.execute(id), "2023")
	// The settings are gone, and with them the webhook. Nobody asks, and the
	// money moves all the same: two more transactions, two more notifications.
	m.notifications(h, "")
	c.Advance(time.Minute)
	until(t, "what was to come is notified", func() bool { return len(h.all()) == 4 })
	if _, s := m.paidBy(late); s != "Completed" {
		t.Errorf("status of the late one = %q, want Completed", s)
	}
	all, err := g.Payments("")
	if err != nil {
		t.Fatal(err)
	}
	moved := map[string]int{}
	for _, p := range all {
		moved[p.Invoice] = len(p.Transactions)
	}
	if diff := cmp.Diff(map[string]int{"inv-1": 2, "inv-2": 1, "inv-3": 0}, moved); diff != "" {
		t.Errorf("transactions by invoice: -want +got:\n%s", diff)
	}
}
