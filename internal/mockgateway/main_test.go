package mockgateway_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/signal"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"holdfast/internal/mockgateway"
)

// asProgram makes this test binary behave as cmd/mockgateway, so that a test can
// kill it.
const asProgram = "HOLDFAST_TEST_RUN_MOCKGATEWAY"

func TestMain(m *testing.M) {
	if os.Getenv(asProgram) != "" {
		ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
		defer stop()
		if err := mockgateway.Run(ctx, os.Args[1:], os.Stderr); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	goleak.VerifyTestMain(m)
}

// clock is a clock the test moves.
type clock struct {
	mu      sync.Mutex
	at      time.Time
	waiting []waiter
}

type waiter struct {
	until time.Time
	done  chan time.Time
}

func newClock() *clock { return &clock{at: time.Date(2026, 12, 1, 4, 0, 0, 0, time.UTC)} }

func (c *clock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.at
}

func (c *clock) At(t time.Time) <-chan time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	done := make(chan time.Time, 1)
	c.waiting = append(c.waiting, waiter{t, done})
	c.wake()
	return done
}

func (c *clock) Advance(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.at = c.at.Add(d)
	c.wake()
}

func (c *clock) wake() {
	c.waiting = slices.DeleteFunc(c.waiting, func(w waiter) bool {
		if c.at.Before(w.until) {
			return false
		}
		w.done <- c.at
		return true
	})
}

// merchant talks to a mock as a merchant does and keeps its token.
type merchant struct {
	tb    testing.TB
	base  string // without the API's path
	hc    *http.Client
	token string
}

// serve starts a mock and a merchant beside it.
func serve(tb testing.TB, opts mockgateway.Options) *merchant {
	tb.Helper()
	m, _ := serveGateway(tb, opts)
	return m
}

func serveGateway(tb testing.TB, opts mockgateway.Options) (*merchant, *mockgateway.Gateway) {
	tb.Helper()
	g, err := mockgateway.New(opts)
	if err != nil {
		tb.Fatalf("New: %v", err)
	}
	tb.Cleanup(func() {
		if err := g.Close(); err != nil {
			tb.Errorf("Close: %v", err)
		}
	})
	srv := httptest.NewServer(g)
	tb.Cleanup(srv.Close)
	tb.Cleanup(g.HangUp)
	return newMerchant(tb, srv.URL), g
}

func newMerchant(tb testing.TB, base string) *merchant {
	tb.Helper()
	tr := &http.Transport{MaxIdleConnsPerHost: 64}
	tb.Cleanup(tr.CloseIdleConnections)
	return &merchant{tb: tb, base: base, hc: &http.Client{
		Transport:     tr,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}
}

// answered is an HTTP answer taken apart.
type answered struct {
	status int
	header http.Header
	body   []byte
	fields map[string]any
}

func (a answered) text(field string) string {
	s, _ := a.fields[field].(string)
	return s
}

func (m *merchant) do(ctx context.Context, method, path string, header map[string]string, body string) (answered, error) {
	req, err := http.NewRequestWithContext(ctx, method, m.base+path, strings.NewReader(body))
	if err != nil {
		return answered{}, err
	}
	for k, v := range header {
		req.Header.Set(k, v)
	}
	resp, err := m.hc.Do(req)
	if err != nil {
		return answered{}, err
	}
	defer resp.Body.Close()
	a := answered{status: resp.StatusCode, header: resp.Header}
	if a.body, err = io.ReadAll(resp.Body); err != nil {
		return answered{}, err
	}
	if bytes.HasPrefix(a.body, []byte("{")) {
		if err := json.Unmarshal(a.body, &a.fields); err != nil {
			return answered{}, err
		}
	}
	return a, nil
}

func (m *merchant) must(method, path string, header map[string]string, body string) answered {
	m.tb.Helper()
	a, err := m.do(m.tb.Context(), method, path, header, body)
	if err != nil {
		m.tb.Errorf("%s %s: %v", method, path, err) // not Fatal: goroutines come here too
		return answered{}
	}
	if got := a.header.Get(mockgateway.Header); got != mockgateway.HeaderValue {
		m.tb.Errorf("%s %s: header %s = %q, want %q", method, path, mockgateway.Header, got, mockgateway.HeaderValue)
	}
	return a
}

const checkout = mockgateway.BasePath + "/tokenized/checkout"

var accountHeader = map[string]string{"username": "shop", "password": "pw"}

func (m *merchant) grant() answered {
	m.tb.Helper()
	return m.must(http.MethodPost, checkout+"/token/grant", accountHeader, `{"app_key":"app","app_secret":"s"}`)
}

func (m *merchant) call(path string, in any) answered {
	m.tb.Helper()
	if m.token == "" {
		m.token = m.grant().text("id_token")
	}
	body, err := json.Marshal(in)
	if err != nil {
		m.tb.Error(err)
	}
	return m.must(http.MethodPost, checkout+path, map[string]string{"Authorization": m.token, "X-APP-Key": "app"}, string(body))
}

func order(invoice string) map[string]string {
	return map[string]string{
		"mode": "0011", "payerReference": "AB-1001", "callbackURL": "https://shop.example/payment/callback?sale=1",
		"amount": "1500.00", "currency": "BDT", "intent": "sale", "merchantInvoiceNumber": invoice,
	}
}

// create makes a payment and returns its id and the address of its page.
func (m *merchant) create(invoice string) (id, page string) {
	m.tb.Helper()
	a := m.call("/create", order(invoice))
	if a.text("statusCode") != "0000" {
		m.tb.Errorf("create %s: got %s, want code 0000", invoice, a.body)
		return "", ""
	}
	u, err := url.Parse(a.text("bkashURL"))
	if err != nil {
		m.tb.Errorf("create %s: bkashURL: %v", invoice, err)
		return "", ""
	}
	return a.text("paymentID"), u.RequestURI()
}

func (m *merchant) press(page string, form ...string) answered {
	m.tb.Helper()
	return m.must(http.MethodPost, page, map[string]string{"Content-Type": "application/x-www-form-urlencoded"}, strings.Join(form, "&"))
}

func (m *merchant) execute(id string) answered {
	m.tb.Helper()
	return m.call("/execute", map[string]string{"paymentID": id})
}

func (m *merchant) status(id string) answered {
	m.tb.Helper()
	return m.call("/payment/status", map[string]string{"paymentID": id})
}

func wantCode(tb testing.TB, what string, a answered, code string) {
	tb.Helper()
	if a.status != http.StatusOK || a.text("statusCode") != code {
		tb.Errorf("%s: got HTTP %d %s, want HTTP 200 with code %s", what, a.status, a.body, code)
	}
}

// until asks a running server again and again, for ten seconds at most.
func until(tb testing.TB, what string, so func() bool) {
	tb.Helper()
	ctx, cancel := context.WithTimeout(tb.Context(), 10*time.Second)
	defer cancel()
	for !so() {
		select {
		case <-ctx.Done():
			tb.Fatalf("gave up waiting until %s", what)
		case <-time.After(time.Millisecond):
		}
	}
}
