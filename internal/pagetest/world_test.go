package pagetest_test

import (
	"bytes"
	"context"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"holdfast/internal/app"
	"holdfast/internal/booking"
	"holdfast/internal/config"
	"holdfast/internal/mockgateway"
	"holdfast/internal/obs"
	"holdfast/internal/redisproc"
	"holdfast/internal/snshook"
	"holdfast/internal/testenv"
)

// world is a sale of a test's own: the API as it runs in production with a worker
// beside it, the mock gateway, and a proxy in front that may answer instead.
type world struct {
	site    string // origin of page and API, by way of the proxy
	gateway string // origin of the payer's page
	api     *app.API
	mock    *mockgateway.Gateway
	clock   *testenv.Clock
	pair    *redisproc.Pair
	front   *front
	data    string
	log     lines
}

// setting is how a test's world differs from the usual one.
type setting struct {
	sale   booking.Sale
	closed bool // booking is left as a new sale has it: not open
	// ownRedis is for a test that breaks it.
	ownRedis bool
	// moves has money move by the payer's press, without our execute call.
	moves bool
	// env are settings of the API.
	env map[string]string
}

func level(id string, seats int) booking.Level {
	name := map[string]string{"N1": "N1 Advanced", "N2": "N2 Upper intermediate"}[id]
	return booking.Level{ID: id, Name: name, Cap: seats, Fee: booking.Money(map[string]int{"N1": 150000, "N2": 120000}[id])}
}

func saleOf(seats int, levels ...booking.Level) booking.Sale {
	return booking.Sale{Name: "demo-2026", Currency: "BDT", Cap: seats, Hold: 10 * time.Minute, Levels: levels}
}

const (
	candidates = 8
	lapsed     = 11 * time.Minute // longer than a hold, and than a look is put off
)

func code(i int) string  { return fmt.Sprintf("P%04d", i) }
func email(i int) string { return fmt.Sprintf("p%04d@example.org", i) }

// worlds numbers the key prefixes.
var worlds atomic.Int64

// newWorld opens a sale to P0000 and the next ones.
func newWorld(t testing.TB, s setting) *world {
	t.Helper()
	theBrowser(t)
	w := &world{clock: testenv.NewClock(), data: t.TempDir()}
	if w.pair = thePair(t); s.ownRedis {
		w.pair = testenv.Pair(t)
	}
	if s.sale.Cap == 0 {
		s.sale = saleOf(50, level("N1", 30), level("N2", 20))
	}
	w.startGateway(t, s.moves)
	w.startServer(t, s)
	w.published(t, func(body string) bool { return strings.Contains(body, `"open":`+fmt.Sprint(!s.closed)) })
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("the server said:\n%s", w.log.tail())
		}
	})
	return w
}

func (w *world) startGateway(t testing.TB, moves bool) {
	t.Helper()
	var err error
	w.mock, err = mockgateway.New(mockgateway.Options{GrantsPerHour: -1, TokenTTL: 24 * time.Hour, Now: w.clock.Now, At: w.clock.At})
	if err != nil {
		t.Fatal(err)
	}
	served := httptest.NewServer(w.mock)
	t.Cleanup(func() { w.mock.HangUp(); served.Close(); w.mock.Close() })
	w.gateway = served.URL
	if moves {
		w.change(t, func(s *mockgateway.Settings) { s.Capture = mockgateway.CapturePayer })
	}
}

// change changes the gateway's settings.
func (w *world) change(t testing.TB, how func(s *mockgateway.Settings)) {
	t.Helper()
	s := w.mock.Settings()
	how(&s)
	if err := w.mock.SetSettings(s); err != nil {
		t.Fatal(err)
	}
}

// faults gives every payment made from now on these faults; none takes them away.
func (w *world) faults(t testing.TB, faults ...mockgateway.Fault) {
	t.Helper()
	w.change(t, func(s *mockgateway.Settings) {
		s.Faults = nil
		for _, f := range faults {
			s.Faults = append(s.Faults, mockgateway.PlannedFault{Fault: f, Probability: 1})
		}
	})
}

func (w *world) startServer(t testing.TB, s setting) {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	w.startFront(t, ln.Addr().String())
	// The sale's keys and the gateway's token are this world's alone.
	id := worlds.Add(1)
	env := map[string]string{
		"HOLDFAST_ADDR": ln.Addr().String(), "HOLDFAST_ADMIN_ADDR": "off", "HOLDFAST_PUBLIC_URL": w.site,
		"HOLDFAST_DATA": w.data, "HOLDFAST_REDIS_ADDR": w.pair.Primary.Addr(), "HOLDFAST_REDIS_POOL": "16", "HOLDFAST_ACKS": "auto",
		"HOLDFAST_KEY_PREFIX": fmt.Sprintf("{page%d}:", id), "HOLDFAST_SEAL_KEY": strings.Repeat("5a", booking.SealKeySize),
		"HOLDFAST_GATEWAY_URL": w.gateway + mockgateway.BasePath, "HOLDFAST_GATEWAY_APP_KEY": fmt.Sprintf("page%d", id),
		"HOLDFAST_GATEWAY_APP_SECRET": "s", "HOLDFAST_GATEWAY_USERNAME": "u", "HOLDFAST_GATEWAY_PASSWORD": "p",
		"HOLDFAST_RECONCILE_EVERY": "1s", "HOLDFAST_LINGER": "0s", "HOLDFAST_EXECUTE_TIMEOUT": "3s",
	}
	for name, value := range s.env {
		env[name] = value
	}
	cfg, err := config.LoadAPI(func(name string) string { return env[name] })
	if err != nil {
		t.Fatal(err)
	}
	log := obs.NewLogger(&w.log, slog.LevelInfo)
	w.api, err = app.NewAPI(t.Context(), cfg, app.Extras{
		ClockOffset: w.clock.Added, Webhook: w.notifications(t),
		Terms: &booking.PaymentTerms{MovesAlone: s.moves, Lapse: 24 * time.Hour},
	}, log, obs.NewRegistry())
	if err != nil {
		t.Fatal(err)
	}
	w.prepare(t, s)
	drivers, err := app.OpenLocal(t.Context(), app.Needs{Data: w.data, Drivers: config.Drivers{Store: "sqlite", Queue: "sqlite"}})
	if err != nil {
		t.Fatal(err)
	}
	worker, err := app.NewWorker(drivers, time.Second, log, obs.NewRegistry())
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.WithoutCancel(t.Context()))
	ended := make(chan error, 2)
	go func() { ended <- w.api.Run(ctx, ln, nil) }()
	go func() { ended <- errors.Join(worker.Run(ctx), drivers.Close()) }()
	t.Cleanup(func() {
		stop()
		if err := errors.Join(<-ended, <-ended); err != nil {
			t.Errorf("end of the server: %v", err)
		}
	})
}

// prepare puts the sale into force and opens it.
func (w *world) prepare(t testing.TB, s setting) {
	t.Helper()
	list := make([]booking.Candidate, candidates)
	for i := range list {
		list[i] = booking.Candidate{Code: code(i), Email: email(i)}
	}
	_, err := w.api.Gate.ApplySale(t.Context(), s.sale, booking.NewEpoch(time.Now()), false)
	if err == nil {
		err = w.api.Gate.AddCandidates(t.Context(), list)
	}
	if err == nil && !s.closed {
		err = w.api.Gate.Open(t.Context())
	}
	if err != nil {
		t.Fatalf("prepare the sale: %v", err)
	}
}

// notifications are the mock's own, sent to this world's site.
func (w *world) notifications(t testing.TB) *snshook.Config {
	t.Helper()
	authority, err := w.mock.CAPEM()
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(authority)
	w.change(t, func(s *mockgateway.Settings) { s.Notifications.URL = w.site + "/payment/webhook" })
	return &snshook.Config{
		TopicARN: mockgateway.DefaultTopic, Roots: roots, Now: w.clock.Now,
		Fetch: func(context.Context, string) ([]byte, error) { return w.mock.CertificatePEM() },
	}
}

// front is the proxy before the server, as a CDN is one.
type front struct {
	next http.Handler

	mu      sync.Mutex
	instead func(w http.ResponseWriter, r *http.Request) bool
	seen    map[string]int
}

func (w *world) startFront(t testing.TB, server string) {
	t.Helper()
	transport := &http.Transport{DisableCompression: true}
	proxy := &httputil.ReverseProxy{
		Transport: transport,
		Rewrite: func(r *httputil.ProxyRequest) {
			r.SetURL(&url.URL{Scheme: "http", Host: server})
			r.Out.Host = r.In.Host
		},
		ErrorLog: slog.NewLogLogger(slog.DiscardHandler, slog.LevelError), // a tab that closed
	}
	w.front = &front{next: proxy, seen: map[string]int{}}
	served := httptest.NewServer(w.front)
	w.site = served.URL
	t.Cleanup(func() { served.CloseClientConnections(); served.Close(); transport.CloseIdleConnections() })
}

func (f *front) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	f.mu.Lock()
	f.seen[r.Method+" "+r.URL.Path]++
	instead := f.instead
	f.mu.Unlock()
	if instead == nil || !instead(w, r) {
		f.next.ServeHTTP(w, r)
	}
}

// answers has fn answer what it wants to, which it tells by true; nil leaves
// everything to the server.
func (f *front) answers(fn func(w http.ResponseWriter, r *http.Request) bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.instead = fn
}

// bookings is how often the page has asked for a seat.
func (f *front) bookings() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.seen["POST /book"]
}

// published waits until status.json is so.
func (w *world) published(t testing.TB, so func(body string) bool) {
	t.Helper()
	testenv.Eventually(t, func() error {
		status, _, body, err := w.get(t, "/status.json")
		if err == nil && (status != http.StatusOK || !so(body)) {
			err = fmt.Errorf("status.json: %d %s", status, body)
		}
		return err
	})
}

// get asks for a path of the site; headers are names and values in turn.
func (w *world) get(t testing.TB, path string, headers ...string) (int, http.Header, string, error) {
	t.Helper()
	return w.do(t, http.MethodGet, path, "", headers...)
}

// do asks on a connection of its own, follows and unpacks nothing, and reads the
// answer.
func (w *world) do(t testing.TB, method, path, body string, headers ...string) (int, http.Header, string, error) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, w.site+path, strings.NewReader(body))
	if err != nil {
		return 0, nil, "", err
	}
	for i := 0; i < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	c := &http.Client{
		Transport: &http.Transport{DisableKeepAlives: true, DisableCompression: true}, Timeout: 20 * time.Second,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	resp, err := c.Do(r)
	if err != nil {
		return 0, nil, "", err
	}
	defer resp.Body.Close()
	got, err := io.ReadAll(resp.Body)
	return resp.StatusCode, resp.Header, string(got), err
}

// takes books a seat for a candidate without a page, and gives the booking's token.
func (w *world) takes(t testing.TB, i int, level string) (token string) {
	t.Helper()
	status, _, body, err := w.do(t, http.MethodPost, "/book",
		fmt.Sprintf(`{"code":%q,"email":%q,"level":%q}`, code(i), email(i), level), "Content-Type", "application/json")
	if err != nil || status != http.StatusAccepted {
		t.Fatalf("book for %s: got %d %s %v, want 202", code(i), status, body, err)
	}
	var held struct {
		BookingURL string `json:"booking_url"`
	}
	if err := json.Unmarshal([]byte(body), &held); err != nil {
		t.Fatalf("book for %s: %v", code(i), err)
	}
	return held.BookingURL[strings.LastIndexByte(held.BookingURL, '/')+1:]
}

// wantSeats waits for these seats, and no others: "P0001 held".
func (w *world) wantSeats(t testing.TB, want ...string) {
	t.Helper()
	testenv.Eventually(t, func() error {
		var got []string
		for d, err := range w.api.Gate.Rows(t.Context()) {
			if err != nil {
				return err
			}
			got = append(got, d.Code+" "+string(d.Row.Phase))
		}
		slices.Sort(got)
		if !slices.Equal(got, want) {
			return fmt.Errorf("got seats %q, want %q", got, want)
		}
		return nil
	})
}

// wantMails waits for so many confirmations to lie in the outbox.
func (w *world) wantMails(t testing.TB, want int) {
	t.Helper()
	testenv.Eventually(t, func() error {
		files, err := filepath.Glob(filepath.Join(w.data, "outbox", "*.eml"))
		if err == nil && len(files) != want {
			err = fmt.Errorf("got %d mails, want %d", len(files), want)
		}
		return err
	})
}

// lines is a log; its end is shown when the test fails.
type lines struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *lines) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(b)
}

// tail is the end of it, without what comes every second.
func (l *lines) tail() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	var kept []string
	for line := range strings.Lines(l.text.String()) {
		if !strings.Contains(line, `sweep"`) && !strings.Contains(line, `"route":"/status.json"`) {
			kept = append(kept, line)
		}
	}
	return strings.Join(kept[max(0, len(kept)-20):], "")
}

// readFile reads a file of the project.
func readFile(t testing.TB, path string) []byte {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root(t), path))
	if err != nil {
		t.Fatal(err)
	}
	return text
}
