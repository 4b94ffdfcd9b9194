package paygate_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"

	"holdfast/internal/booking"
	"holdfast/internal/mockgateway"
	"holdfast/internal/paygate"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// Secrets of these tests, none of which may turn up in a log or an error.
const (
	appKey    = "appkey-5ec2e7"
	appSecret = "appsecret-5ec2e7"
	username  = "01755555555"
	password  = "password-5ec2e7"
	tokenOne  = "token-one-5ec2e7"
	tokenTwo  = "token-two-5ec2e7"
	msisdn    = "01700000000"
)

func secrets() []string {
	return []string{appKey, appSecret, username, password, tokenOne, tokenTwo, msisdn, "5ec2e7"}
}

var credentials = paygate.Credentials{AppKey: appKey, AppSecret: appSecret, Username: username, Password: password}

// tokens hands out its tokens one after the other; the next one comes when the
// current one is reported as rejected.
type tokens struct {
	mu       sync.Mutex
	all      []string
	rejected []string
	err      error // instead of a token
}

func (s *tokens) Token(ctx context.Context) (string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.all) == 0 {
		return "", s.err
	}
	return s.all[0], nil
}

func (s *tokens) Rejected(_ context.Context, token string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.rejected = append(s.rejected, token)
	if len(s.all) > 1 || s.err != nil {
		s.all = s.all[1:]
	}
}

func (s *tokens) reported() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.rejected)
}

// bench is a client on a test's own server, with its log.
type bench struct {
	client *paygate.Client
	tokens *tokens
	reg    *prometheus.Registry
	log    *lockedBuffer
}

type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// withoutClock is what was logged but for times and durations, whose digits are as they
// fall and could be anybody's.
func (l *lockedBuffer) withoutClock() string {
	return clock.ReplaceAllString(l.String(), "")
}

var clock = regexp.MustCompile(`"time":"[^"]*",|"took":[0-9]+,`)

func httpClient(tb testing.TB) *http.Client {
	tb.Helper()
	hc := paygate.NewHTTPClient(16)
	tb.Cleanup(hc.CloseIdleConnections)
	return hc
}

func newBench(tb testing.TB, base string, hc *http.Client, set ...func(*paygate.Config)) *bench {
	tb.Helper()
	b := &bench{tokens: &tokens{all: []string{tokenOne, tokenTwo}}, reg: prometheus.NewRegistry(), log: &lockedBuffer{}}
	cfg := paygate.Config{BaseURL: base, AppKey: appKey}
	for _, f := range set {
		f(&cfg)
	}
	c, err := paygate.New(cfg, b.tokens, hc, slog.New(slog.NewJSONHandler(b.log, nil)), b.reg)
	if err != nil {
		tb.Fatalf("New: %v", err)
	}
	b.client = c
	return b
}

// answering is a client on a server that gives every call the same answer.
func answering(tb testing.TB, status int, body string) *bench {
	tb.Helper()
	return serving(tb, func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(status)
		_, _ = w.Write([]byte(body))
	})
}

// newBenchAnswering is answering with another configuration.
func newBenchAnswering(tb testing.TB, body string, set ...func(*paygate.Config)) *bench {
	tb.Helper()
	return serving(tb, func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte(body)) }, set...)
}

func serving(tb testing.TB, h http.HandlerFunc, set ...func(*paygate.Config)) *bench {
	tb.Helper()
	srv := httptest.NewServer(h)
	tb.Cleanup(srv.Close)
	return newBench(tb, srv.URL, httpClient(tb), set...)
}

var seat = booking.Order{
	Invoice: "inv-1", Amount: 150000, Currency: "BDT",
	CallbackURL: "https://shop.example/payment/callback?sale=demo&x=1", Reference: "AB-1001",
}

var refundOrder = booking.RefundOrder{
	PaymentID: "TR1", Transaction: "CK250NROQ5", Amount: 59900, Currency: "BDT", SKU: "N5", Reason: "second payment",
}

// calls runs every method against a client, for what must hold for each.
func (b *bench) calls(ctx context.Context) map[string]error {
	_, create := b.client.Create(ctx, seat)
	_, execute := b.client.Execute(ctx, "TR1")
	_, query := b.client.Query(ctx, "TR1")
	_, refund := b.client.Refund(ctx, refundOrder)
	_, status := b.client.RefundStatus(ctx, refundOrder.PaymentID, refundOrder.Transaction)
	_, search := b.client.Search(ctx, "CK00000000") // which completed() is not about
	return map[string]error{"create": create, "execute": execute, "query": query, "refund": refund, "refund_status": status, "search": search}
}

func wantErr(tb testing.TB, what string, err, want error) {
	tb.Helper()
	other := booking.ErrInDoubt
	if errors.Is(want, booking.ErrInDoubt) {
		other = booking.ErrNotSent
	}
	if !errors.Is(err, want) || errors.Is(err, other) {
		tb.Errorf("%s: got error %v, want one that is %q only", what, err, want)
	}
}

func wantNoSecret(tb testing.TB, what, text string) {
	tb.Helper()
	for _, s := range secrets() {
		if strings.Contains(text, s) {
			tb.Errorf("%s contains %q: %s", what, s, text)
		}
	}
}

// mock starts the mock gateway and returns the base URL of its API and a
// function that presses a button on a payer's page.
func mock(tb testing.TB, opts mockgateway.Options) (base string, press func(pageURL string, form url.Values)) {
	tb.Helper()
	g, err := mockgateway.New(opts)
	if err != nil {
		tb.Fatal(err)
	}
	srv := httptest.NewServer(g)
	tb.Cleanup(func() {
		srv.Close()
		if err := g.Close(); err != nil {
			tb.Error(err)
		}
	})
	return srv.URL + mockgateway.BasePath, func(pageURL string, form url.Values) {
		tb.Helper()
		hc := &http.Client{
			Transport:     srv.Client().Transport,
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		}
		req, err := http.NewRequestWithContext(tb.Context(), http.MethodPost, pageURL, strings.NewReader(form.Encode()))
		if err != nil {
			tb.Fatal(err)
		}
		req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		resp, err := hc.Do(req)
		if err != nil {
			tb.Fatal(err)
		}
		if err := resp.Body.Close(); err != nil || resp.StatusCode != http.StatusSeeOther {
			tb.Fatalf("press %v: HTTP %d, %v; want 303", form, resp.StatusCode, err)
		}
	}
}

const soon = 50 * time.Millisecond
