package snshook_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"holdfast/internal/booking"
	"holdfast/internal/snshook"
)

// keeper keeps notifications in memory, put if absent, and can be down: before the
// write, or after it.
type keeper struct {
	mu         sync.Mutex
	kept       map[string]booking.Notification
	lost, said error // instead of the write; after it
	wait       bool  // until ctx ends
}

func (k *keeper) Store(ctx context.Context, n booking.Notification) (bool, error) {
	if k.wait {
		<-ctx.Done()
		return false, ctx.Err()
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.lost != nil {
		return false, k.lost
	}
	if err := n.Validate(); err != nil {
		return false, err
	}
	if _, there := k.kept[n.ID]; there {
		return false, k.said
	}
	if k.kept == nil {
		k.kept = map[string]booking.Notification{}
	}
	k.kept[n.ID] = n
	return true, k.said
}

// hook is a handler with all that it touches.
type hook struct {
	*snshook.Handler
	keeper    keeper
	network   network
	arrived   []booking.Notification
	confirmed []snshook.Message
	reg       *prometheus.Registry
	log       bytes.Buffer
}

func newHook(tb testing.TB, set ...func(*snshook.Deps)) *hook {
	tb.Helper()
	h := &hook{reg: prometheus.NewRegistry()}
	d := snshook.Deps{
		Verifier: verifier(tb, &h.network), Keeper: &h.keeper,
		Arrived:    func(n booking.Notification) { h.arrived = append(h.arrived, n) },
		Confirm:    func(_ context.Context, m snshook.Message) { h.confirmed = append(h.confirmed, m) },
		Log:        slog.New(slog.NewJSONHandler(&h.log, nil)),
		Registerer: h.reg,
	}
	for _, f := range set {
		f(&d)
	}
	var err error
	if h.Handler, err = snshook.NewHandler(d); err != nil {
		tb.Fatalf("NewHandler: got %v, want nil", err)
	}
	return h
}

func (h *hook) post(tb testing.TB, body []byte) *httptest.ResponseRecorder {
	tb.Helper()
	r := httptest.NewRequestWithContext(tb.Context(), http.MethodPost, "/payment/webhook", bytes.NewReader(body))
	r.Header.Set("Content-Type", "text/plain; charset=UTF-8")
	w := httptest.NewRecorder()
	w.Header().Set("X-Request-Id", "r1")
	h.ServeHTTP(w, r)
	return w
}

func (h *hook) count(outcome string) float64 {
	all, err := h.reg.Gather()
	if err != nil {
		panic(err)
	}
	for _, m := range all[0].GetMetric() {
		if m.GetLabel()[0].GetValue() == outcome {
			return m.GetCounter().GetValue()
		}
	}
	return -1
}

func TestHandler_AnswersByWhatBecameOfTheDelivery(t *testing.T) {
	t.Parallel()
	down := errors.New("store is down")
	for name, c := range map[string]struct {
		body    []byte
		set     func(*hook)
		status  int
		slug    string
		outcome string
		stored  int
	}{
		"payment":              {body: note().signed("1").body(), status: 200, outcome: "stored", stored: 1},
		"payment of no one":    {body: note().with("Message", `{"trxID":"4J420ANOXC","amount":"1","currency":"BDT"}`).signed("1").body(), status: 200, outcome: "stored", stored: 1},
		"unreadable":           {body: note().with("Message", "Hello").signed("1").body(), status: 200, outcome: "unreadable", stored: 1},
		"subscription":         {body: confirmation("SubscriptionConfirmation").signed("1").body(), status: 200, outcome: "confirmation"},
		"unsubscription":       {body: confirmation("UnsubscribeConfirmation").signed("2").body(), status: 200, outcome: "confirmation"},
		"changed":              {body: note().signed("1").with("MessageId", "x").body(), status: 403, slug: "forbidden", outcome: "forged"},
		"another topic":        {body: note().with("TopicArn", topic+"x").signed("1").body(), status: 403, slug: "forbidden", outcome: "forged"},
		"another host":         {body: note().with("SigningCertURL", "https://evil.example/x.pem").signed("1").body(), status: 403, slug: "forbidden", outcome: "forged"},
		"malformed":            {body: []byte("{}"), status: 400, slug: "invalid_request", outcome: "malformed"},
		"raw":                  {body: []byte(payment), status: 400, slug: "invalid_request", outcome: "malformed"},
		"empty":                {status: 400, slug: "invalid_request", outcome: "malformed"},
		"too large":            {body: make([]byte, 256<<10+1), status: 413, slug: "body_too_large", outcome: "too_large"},
		"store down":           {body: note().signed("1").body(), set: func(h *hook) { h.keeper.lost = down }, status: 503, slug: "try_again", outcome: "not_stored"},
		"stored, reply lost":   {body: note().signed("1").body(), set: func(h *hook) { h.keeper.said = down }, status: 503, slug: "try_again", outcome: "not_stored"},
		"certificate not had":  {body: note().signed("1").body(), set: func(h *hook) { h.network.answer = unreachable }, status: 503, slug: "try_again", outcome: "unproved"},
		"no such certificate":  {body: note().signed("1").body(), set: func(h *hook) { h.network.answer = nothingThere }, status: 403, slug: "forbidden", outcome: "forged"},
		"link-local subscribe": {body: confirmation("SubscriptionConfirmation").with("SubscribeURL", "http://169.254.169.254/").signed("1").body(), status: 403, slug: "forbidden", outcome: "forged"},
	} {
		h := newHook(t)
		if c.set != nil {
			c.set(h)
		}
		w := h.post(t, c.body)
		if w.Code != c.status {
			t.Errorf("%s: got HTTP %d (%s), want %d", name, w.Code, w.Body, c.status)
		}
		if got := h.count(c.outcome); got != 1 {
			t.Errorf("%s: got %v deliveries counted as %s, want 1", name, got, c.outcome)
		}
		if got, want := w.Header().Get("Cache-Control"), "no-store"; got != want {
			t.Errorf("%s: got Cache-Control %q, want %q", name, got, want)
		}
		if got, want := w.Header().Get("Retry-After") != "", c.status == 503; got != want {
			t.Errorf("%s: got a Retry-After %v, want %v", name, got, want)
		}
		if got := len(h.arrived); got != c.stored {
			t.Errorf("%s: got %d hints, want %d", name, got, c.stored)
		}
		var body map[string]any
		if err := json.Unmarshal(w.Body.Bytes(), &body); err != nil {
			t.Errorf("%s: got body %q, want JSON", name, w.Body)
		}
		if c.slug == "" && len(body) != 0 || c.slug != "" && (body["error"] != c.slug || body["message"] == "" || body["request_id"] != "r1" || len(body) != 3) {
			t.Errorf("%s: got body %s, want error %q", name, w.Body, c.slug)
		}
		if text := h.log.String() + w.Body.String(); strings.Contains(text, payer) || strings.Contains(text, payer[3:]) {
			t.Errorf("%s: got the payer's number in log or answer: %s", name, text)
		}
		h.network.wantOnlyOurHost(t)
	}
}

func unreachable(*http.Request) (*http.Response, error) { return nil, errors.New("no route to host") }

func nothingThere(*http.Request) (*http.Response, error) {
	return response(http.StatusNotFound, nil), nil
}

func TestHandler_StoresWhatTheGatewaySaidWithoutThePayer(t *testing.T) {
	t.Parallel()
	h := newHook(t)
	if w := h.post(t, note().signed("1").body()); w.Code != http.StatusOK {
		t.Fatalf("got HTTP %d, want 200", w.Code)
	}
	want := booking.Notification{
		Version: 1, ID: "22b80b92-fdea-4c2c-8f9d-bdfb0c7bf324", ReceivedAt: noon, SentAt: time.Date(2026, 12, 1, 4, 3, 20, 655_000_000, time.UTC),
		Transaction: "4J420ANOXC", Invoice: invoice, Amount: 150000, Currency: "BDT", TransactionType: "10002294", Status: "Completed", Reference: "38a16dd0ed2f7ecb",
	}
	if diff := cmp.Diff([]booking.Notification{want}, h.arrived); diff != "" {
		t.Errorf("told of another notification (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(map[string]booking.Notification{want.ID: want}, h.keeper.kept); diff != "" {
		t.Errorf("stored another notification (-want +got):\n%s", diff)
	}
	if !strings.Contains(h.log.String(), `"attempt":"1ngtsa07kq3m-01m8qw4tg04f8r2tqz9e6wn1bd"`) || strings.Contains(h.log.String(), invoice) {
		t.Errorf("log: got %s, want the attempt and not the candidate's hash", h.log.String())
	}
}

func TestHandler_RedeliveryAfterAFaultIsAcceptedOnce(t *testing.T) {
	t.Parallel()
	body := note().signed("2").body()
	down := errors.New("down")
	for name, c := range map[string]struct {
		fault   func(*hook)
		repair  func(*hook)
		outcome string
		hints   int
	}{
		"write lost":          {func(h *hook) { h.keeper.lost = down }, func(h *hook) { h.keeper.lost = nil }, "stored", 1},
		"write kept":          {func(h *hook) { h.keeper.said = down }, func(h *hook) { h.keeper.said = nil }, "duplicate", 0},
		"certificate not had": {func(h *hook) { h.network.answer = unreachable }, func(h *hook) { h.network.answer = nil }, "stored", 1},
	} {
		h := newHook(t)
		c.fault(h)
		if w := h.post(t, body); w.Code != http.StatusServiceUnavailable {
			t.Errorf("%s: got HTTP %d, want 503", name, w.Code)
		}
		c.repair(h)
		if w := h.post(t, body); w.Code != http.StatusOK || h.count(c.outcome) != 1 {
			t.Errorf("%s, redelivered: got HTTP %d and %v counted as %s, want 200 and 1", name, w.Code, h.count(c.outcome), c.outcome)
		}
		for range 3 {
			if w := h.post(t, body); w.Code != http.StatusOK {
				t.Errorf("%s, again: got HTTP %d, want 200", name, w.Code)
			}
		}
		if len(h.keeper.kept) != 1 || len(h.arrived) != c.hints {
			t.Errorf("%s: got %d stored and %d hints, want 1 and %d", name, len(h.keeper.kept), len(h.arrived), c.hints)
		}
	}
}

func TestHandler_LateNotificationStillCounts(t *testing.T) {
	t.Parallel()
	h := newHook(t)
	if w := h.post(t, note().with("Timestamp", "2026-11-20T00:00:00.000Z").signed("1").body()); w.Code != http.StatusOK || len(h.arrived) != 1 {
		t.Fatalf("eleven days late: got HTTP %d and %d hints, want 200 and 1", w.Code, len(h.arrived))
	}
	if got, want := h.arrived[0].SentAt, time.Date(2026, 11, 20, 0, 0, 0, 0, time.UTC); !got.Equal(want) {
		t.Errorf("sent at: got %s, want %s", got, want)
	}
}

func TestHandler_GenuineConfirmationGoesToTheOperatorAndNowhereElse(t *testing.T) {
	t.Parallel()
	for _, kind := range []string{"SubscriptionConfirmation", "UnsubscribeConfirmation"} {
		h := newHook(t)
		h.post(t, confirmation(kind).signed("1").body())
		if len(h.confirmed) != 1 || h.confirmed[0].Type != kind || h.confirmed[0].SubscribeURL != confirm {
			t.Errorf("%s: got %d handed on, want 1 with its link", kind, len(h.confirmed))
		}
		var line map[string]any
		if err := json.Unmarshal(h.log.Bytes(), &line); err != nil {
			t.Fatalf("%s: got log %q, want one line", kind, h.log.String())
		}
		if line["subscribe_url"] != confirm || line["type"] != kind || line["level"] != "WARN" {
			t.Errorf("%s: got log line %v, want a warning with the link", kind, line)
		}
		if got, want := h.network.requests(), []string{certURL}; !slices.Equal(got, want) {
			t.Errorf("%s: got requests %q, want %q only: nobody but an operator opens the link", kind, got, want)
		}
		if len(h.keeper.kept) != 0 {
			t.Errorf("%s: got %d stored, want none", kind, len(h.keeper.kept))
		}
	}
}

func TestHandler_ForgedConfirmationTellsNobody(t *testing.T) {
	t.Parallel()
	h := newHook(t)
	h.post(t, confirmation("SubscriptionConfirmation").signedBy(pki().otherKey, "1").body())
	h.post(t, confirmation("SubscriptionConfirmation").with("TopicArn", topic+"x").signed("1").body())
	if len(h.confirmed) != 0 || strings.Contains(h.log.String(), token) {
		t.Errorf("forged: got %d handed on and log %s, want none and no link", len(h.confirmed), h.log.String())
	}
}

func TestHandler_AnswersWithinItsTimeWhateverHangs(t *testing.T) {
	t.Parallel()
	body := note().signed("2").body()
	for name, hang := range map[string]func(*hook){
		"store": func(h *hook) { h.keeper.wait = true },
		"certificate host": func(h *hook) {
			h.network.answer = func(r *http.Request) (*http.Response, error) {
				<-r.Context().Done()
				return nil, r.Context().Err()
			}
		},
	} {
		synctest.Test(t, func(t *testing.T) {
			h := newHook(t)
			hang(h)
			began := time.Now()
			if w := h.post(t, body); w.Code != http.StatusServiceUnavailable {
				t.Errorf("%s hangs: got HTTP %d, want 503", name, w.Code)
			}
			if took := time.Since(began); took > 8*time.Second {
				t.Errorf("%s hangs: got an answer after %s, want it within 8s", name, took)
			}
		})
	}
}

func TestHandler_SenderThatStallsIsAnswered(t *testing.T) {
	t.Parallel()
	h := newHook(t, func(d *snshook.Deps) { d.Timeout = 50 * time.Millisecond })
	srv := httptest.NewServer(h)
	defer srv.Close()
	conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", srv.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := io.WriteString(conn, "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{"); err != nil {
		t.Fatal(err)
	}
	answer, err := io.ReadAll(conn)
	if err != nil || !strings.HasPrefix(string(answer), "HTTP/1.1 503 ") {
		t.Errorf("stalled body: got %q, %v, want a 503", answer, err)
	}
}

func TestHandler_ConnectionServesTheNextDelivery(t *testing.T) {
	t.Parallel()
	h := newHook(t, func(d *snshook.Deps) { d.Timeout = 5 * time.Second })
	srv := httptest.NewServer(h)
	defer srv.Close()
	for i, body := range [][]byte{note().signed("1").body(), note().signed("1").body(), []byte("{}")} {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, srv.URL, bytes.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		resp, err := srv.Client().Do(req)
		if err != nil {
			t.Fatalf("delivery %d: got %v, want an answer", i, err)
		}
		if err := resp.Body.Close(); err != nil {
			t.Error(err)
		}
		if want := []int{200, 200, 400}[i]; resp.StatusCode != want {
			t.Errorf("delivery %d: got HTTP %d, want %d", i, resp.StatusCode, want)
		}
	}
}

func TestHandler_CountsOnlyKnownOutcomes(t *testing.T) {
	t.Parallel()
	h := newHook(t)
	before, err := testutil.GatherAndCount(h.reg)
	if err != nil {
		t.Fatal(err)
	}
	for _, body := range []string{"", "x", payment, string(note().signed("1").body()), string(note().with("Type", "New").body())} {
		h.post(t, []byte(body))
	}
	if after, err := testutil.GatherAndCount(h.reg); err != nil || after != before {
		t.Errorf("series: got %d (%v) after junk, want %d as before", after, err, before)
	}
}

func TestNewHandler_WantsItsDependencies(t *testing.T) {
	t.Parallel()
	for name, spoil := range map[string]func(*snshook.Deps){
		"no verifier":   func(d *snshook.Deps) { d.Verifier = nil },
		"no keeper":     func(d *snshook.Deps) { d.Keeper = nil },
		"no log":        func(d *snshook.Deps) { d.Log = nil },
		"no registerer": func(d *snshook.Deps) { d.Registerer = nil },
		"too slow":      func(d *snshook.Deps) { d.Timeout = 10 * time.Second },
		"negative":      func(d *snshook.Deps) { d.Timeout = -1 },
	} {
		d := snshook.Deps{Verifier: verifier(t, &network{}), Keeper: &keeper{}, Log: slog.New(slog.DiscardHandler), Registerer: prometheus.NewRegistry()}
		spoil(&d)
		if _, err := snshook.NewHandler(d); err == nil {
			t.Errorf("%s: got nil, want an error", name)
		}
	}
}

func TestPayment_IsReadAsTheGatewayWritesIt(t *testing.T) {
	t.Parallel()
	money := func(m booking.Money) *booking.Money { return &m }
	base := booking.Notification{
		Version: 1, ID: "22b80b92-fdea-4c2c-8f9d-bdfb0c7bf324", ReceivedAt: noon, SentAt: time.Date(2026, 12, 1, 4, 3, 20, 655_000_000, time.UTC),
	}
	paid := base
	paid.Transaction, paid.Invoice, paid.Amount, paid.Currency = "4J420ANOXC", invoice, 150000, "BDT"
	paid.TransactionType, paid.Status, paid.Reference = "10002294", "Completed", "38a16dd0ed2f7ecb"
	change := func(from, to string) string {
		if !strings.Contains(payment, from) {
			t.Fatalf("sample message: got no %s in it", from)
		}
		return strings.Replace(payment, from, to, 1)
	}
	for name, c := range map[string]struct {
		text string
		want func(*booking.Notification)
	}{
		"whole":              {payment, func(*booking.Notification) {}},
		"amount as digits":   {change(`"1500.00"`, `"1500"`), func(*booking.Notification) {}},
		"amount as a number": {change(`"1500.00"`, `1500`), func(*booking.Notification) {}},
		"no invoice":         {change(`,"merchantInvoiceNumber":"`+invoice+`"`, ""), func(n *booking.Notification) { n.Invoice = "" }},
		"another's invoice":  {change(invoice, "orderId1233"), func(n *booking.Notification) { n.Invoice = "orderId1233" }},
		"coupon": {change(`"currency"`, `"couponAmount":"100","merchantShareAmount":"40.50","saleAmount":"1600","currency"`), func(n *booking.Notification) {
			n.CouponAmount, n.MerchantShare, n.SaleAmount = money(10000), money(4050), money(160000)
		}},
		"no coupon, said with empty texts": {change(`"currency"`, `"couponAmount":"","saleAmount":null,"currency"`), func(*booking.Notification) {}},
		"exponent":                         {change(`"1500.00"`, `1.5e3`), unread(0, "amount is not an amount")},
		"exponent as a text":               {change(`"1500.00"`, `"15e2"`), unread(0, "amount is not an amount")},
		"negative":                         {change(`"1500.00"`, `"-1500.00"`), unread(0, "amount is not an amount")},
		"negative number":                  {change(`"1500.00"`, `-1500`), unread(0, "amount is not an amount")},
		"amount as an object":              {change(`"1500.00"`, `{}`), unread(0, "amount is not an amount")},
		"no amount":                        {change(`"amount":"1500.00",`, ""), unread(0, "amount is missing")},
		"bad coupon":                       {change(`"currency"`, `"couponAmount":"ten","currency"`), unread(150000, "couponAmount is not an amount")},
		"no transaction": {change(`"trxID":"4J420ANOXC",`, ""), func(n *booking.Notification) {
			n.Transaction, n.Unreadable = "", "trxID is missing"
		}},
		"no currency":             {change(`"currency":"BDT",`, ""), func(n *booking.Notification) { n.Currency, n.Unreadable = "", "currency is missing" }},
		"status with a line feed": {change(`"Completed"`, `"Completed\n"`), func(*booking.Notification) {}}, // trimmed
		"status with two lines":   {change(`"Completed"`, `"a\nb"`), func(n *booking.Notification) { n.Status, n.Unreadable = "", "transactionStatus is not a plain text" }},
		"long reference": {change(`38a16dd0ed2f7ecb"`, strings.Repeat("x", 256)+`"`), func(n *booking.Notification) {
			n.Reference, n.Unreadable = "", "transactionReference is not a plain text"
		}},
		"payer's number, abroad":    {change(`"38a16dd0ed2f7ecb"`, `"+880 1700-000001 rent"`), func(n *booking.Notification) { n.Reference = "" }},
		"payer's number, at home":   {change(`"38a16dd0ed2f7ecb"`, `"01700000001"`), func(n *booking.Notification) { n.Reference = "" }},
		"payer's number, bare":      {change(`"38a16dd0ed2f7ecb"`, `"1700000001"`), func(n *booking.Notification) { n.Reference = "" }},
		"another's number":          {change(`"38a16dd0ed2f7ecb"`, `"for 01912 345678"`), func(n *booking.Notification) { n.Reference = "" }},
		"payer's number as invoice": {change(invoice, payer), func(n *booking.Notification) { n.Invoice = "" }},
		"no payer":                  {change(`"debitMSISDN":"`+payer+`",`, ""), func(*booking.Notification) {}},
		"repeated member":           {change(`{`, `{"amount":"1",`), only("a member of the message is repeated")},
		"no object":                 {`"` + payer + `"`, only("the message is not a JSON object")},
		"a list":                    {"[" + payment + "]", only("the message is not a JSON object")},
		"no JSON":                   {"Dear merchant, " + payer + " paid", only("the message is not a JSON object")},
		"nothing":                   {"", only("the message is not a JSON object")},
	} {
		h := newHook(t)
		if w := h.post(t, note().with("Message", c.text).signed("2").body()); w.Code != http.StatusOK || len(h.arrived) != 1 {
			t.Errorf("%s: got HTTP %d and %d stored, want a genuine message to be stored", name, w.Code, len(h.arrived))
			continue
		}
		want := paid
		c.want(&want)
		if diff := cmp.Diff(want, h.arrived[0]); diff != "" {
			t.Errorf("%s: read as another notification (-want +got):\n%s", name, diff)
		}
		stored, err := json.Marshal(h.arrived[0])
		if err != nil {
			t.Fatal(err)
		}
		for _, number := range []string{"1700000001", "1700-000001", "01912"} {
			if strings.Contains(string(stored)+h.log.String(), number) {
				t.Errorf("%s: got a wallet's number in store or log:\n%s\n%s", name, stored, h.log.String())
			}
		}
	}
}

// unread is a payment of which the amount read so far is kept, and why it is no more.
func unread(amount booking.Money, reason string) func(*booking.Notification) {
	return func(n *booking.Notification) { n.Amount, n.Unreadable = amount, reason }
}

// only is a notification of which nothing could be read.
func only(reason string) func(*booking.Notification) {
	return func(n *booking.Notification) {
		*n = booking.Notification{Version: n.Version, ID: n.ID, ReceivedAt: n.ReceivedAt, SentAt: n.SentAt, Unreadable: reason}
	}
}
