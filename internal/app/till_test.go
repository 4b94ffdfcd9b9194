package app_test

import (
	"bytes"
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"holdfast/internal/app"
	"holdfast/internal/booking"
	"holdfast/internal/config"
	"holdfast/internal/mockgateway"
	"holdfast/internal/obs"
	"holdfast/internal/saleops"
	"holdfast/internal/snshook"
	"holdfast/internal/testenv"
)

// till is an API over a real pair, a worker and a gateway, under one clock. Nobody
// sweeps but the test, and the gateway's notifications come to the test, which
// delivers them.
type till struct {
	*fleet
	pair  *testenv.FaultyProxy // in front of the primary
	clock *testenv.Clock
	mock  *mockgateway.Gateway
	front *front // before the mock
	post  *postOffice
	roots *x509.CertPool // trusted to vouch for notifications
	certs *certificateHost
	api   *app.API
	reg   *prometheus.Registry
	log   *lines
}

const (
	fee    = "1500.00"
	lapsed = 11 * time.Minute // longer than a hold, and than a look is put off
)

func tillSale(seats int) booking.Sale {
	return booking.Sale{Name: "till", Currency: "BDT", Cap: seats, Hold: 10 * time.Minute,
		Levels: []booking.Level{{ID: "N1", Name: "One", Cap: seats, Fee: 150000}}}
}

// newTill opens a sale of so many seats, to P0000 to P0009. more are settings.
func newTill(t *testing.T, seats int, more ...string) *till {
	t.Helper()
	b := &till{
		fleet: &fleet{data: t.TempDir(), client: &http.Client{
			Transport:     &http.Transport{MaxIdleConnsPerHost: 64},
			Timeout:       30 * time.Second,
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		}},
		pair: testenv.Proxy(t, testenv.Pair(t).Primary.Addr()), clock: testenv.NewClock(), post: &postOffice{}, log: &lines{},
	}
	t.Cleanup(b.client.CloseIdleConnections)
	office := httptest.NewServer(b.post)
	t.Cleanup(office.Close)
	var err error
	// The token outlives what a case takes; its count of grants has tests of its own.
	b.mock, err = mockgateway.New(mockgateway.Options{GrantsPerHour: -1, TokenTTL: 24 * time.Hour, Now: b.clock.Now, At: b.clock.At})
	if err != nil {
		t.Fatal(err)
	}
	b.certs = newCertificateHost(t, b.mock)
	b.roots = x509.NewCertPool()
	authority, err := b.mock.CAPEM()
	if err != nil {
		t.Fatal(err)
	}
	b.roots.AppendCertsFromPEM(authority)
	b.front = &front{next: b.mock, refused: map[string]bool{}}
	served := httptest.NewServer(b.front)
	t.Cleanup(func() { b.mock.HangUp(); served.Close(); b.mock.Close() })
	b.gateway = served.URL
	b.set(t, mockgateway.Settings{Notifications: mockgateway.Notifications{URL: office.URL}})

	drivers, err := app.OpenLocal(t.Context(), app.Needs{Data: b.data, Drivers: config.Drivers{Store: "sqlite", Queue: "sqlite"}})
	if err != nil {
		t.Fatal(err)
	}
	worker, err := app.NewWorker(drivers, time.Second, obs.NewLogger(b.log, slog.LevelInfo), obs.NewRegistry())
	if err != nil {
		t.Fatal(err)
	}
	working, stop := context.WithCancel(context.WithoutCancel(t.Context()))
	ended := make(chan error, 1)
	go func() { ended <- errors.Join(worker.Run(working), drivers.Close()) }()
	t.Cleanup(func() {
		stop()
		if err := <-ended; err != nil {
			t.Errorf("worker: %v", err)
		}
	})
	b.open(t, more...)
	b.gate = b.api.Gate
	if _, err := b.gate.ApplySale(t.Context(), tillSale(seats), booking.NewEpoch(time.Now()), false); err != nil {
		t.Fatal(err)
	}
	if err := b.gate.Open(t.Context()); err != nil {
		t.Fatal(err)
	}
	b.addCandidates(t, 10)
	return b
}

// env is what an API at addr is told; more are names and values in turn.
func (b *till) env(addr string, more ...string) map[string]string {
	env := b.fleet.env(addr, b.pair.Addr(), "auto")
	env["HOLDFAST_EXECUTE_TIMEOUT"] = "3s"
	for i := 0; i < len(more); i += 2 {
		env[more[i]] = more[i+1]
	}
	return env
}

// open starts an API in the test, in place of the one before.
func (b *till) open(t *testing.T, more ...string) {
	t.Helper()
	var url string
	b.api, b.reg, url = b.start(t, more...)
	b.apis = []string{url}
}

// start starts an API in the test and returns its address, too.
func (b *till) start(t *testing.T, more ...string) (*app.API, *prometheus.Registry, string) {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	env := b.env(ln.Addr().String(), more...)
	cfg, err := config.LoadAPI(func(name string) string { return env[name] })
	if err != nil {
		t.Fatal(err)
	}
	reg := obs.NewRegistry()
	api, err := app.NewAPI(t.Context(), cfg, app.Extras{ClockOffset: b.clock.Added, Webhook: &snshook.Config{
		TopicARN: mockgateway.DefaultTopic, Roots: b.roots, Now: b.clock.Now, Fetch: snshook.NewFetch(b.certs),
	}}, obs.NewLogger(b.log, slog.LevelInfo), reg)
	if err != nil {
		t.Fatal(err)
	}
	srv := httptest.NewUnstartedServer(api.Edge)
	srv.Listener.Close()
	srv.Listener = ln
	srv.Start()
	t.Cleanup(func() {
		srv.Close()
		if err := api.Close(); err != nil {
			t.Errorf("close the API: %v", err)
		}
	})
	return api, reg, srv.URL
}

func (b *till) set(t *testing.T, s mockgateway.Settings) {
	t.Helper()
	if err := b.mock.SetSettings(s); err != nil {
		t.Fatal(err)
	}
}

// change changes the gateway's settings.
func (b *till) change(t *testing.T, how func(s *mockgateway.Settings)) {
	t.Helper()
	s := b.mock.Settings()
	how(&s)
	b.set(t, s)
}

// payerMoves has money move by the payer's press, without our execute call.
func payerMoves(s *mockgateway.Settings) { s.Capture = mockgateway.CapturePayer }

// faults are those of one payment, in place of what it had.
func (b *till) faults(t *testing.T, h hold, faults ...mockgateway.Fault) {
	t.Helper()
	if err := b.mock.SetFaults(h.payment, faults...); err != nil {
		t.Fatal(err)
	}
}

// lines is a log.
type lines struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *lines) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(b)
}

func (l *lines) count(text string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Count(l.text.String(), text)
}

// postOffice keeps what the gateway posts.
type postOffice struct {
	mu   sync.Mutex
	kept [][]byte
	// arrived is called with what comes; nil is not.
	arrived func(letter []byte)
}

func (p *postOffice) ServeHTTP(_ http.ResponseWriter, r *http.Request) {
	letter, err := io.ReadAll(r.Body)
	if err != nil {
		return // it is sent again
	}
	p.mu.Lock()
	p.kept = append(p.kept, letter)
	arrived := p.arrived
	p.mu.Unlock()
	if arrived != nil {
		arrived(letter)
	}
}

// letters waits until so many have come.
func (p *postOffice) letters(t *testing.T, n int) [][]byte {
	t.Helper()
	var kept [][]byte
	testenv.Eventually(t, func() error {
		p.mu.Lock()
		defer p.mu.Unlock()
		if kept = slices.Clone(p.kept); len(kept) < n {
			return fmt.Errorf("%d notifications, want %d", len(kept), n)
		}
		return nil
	})
	return kept
}

// deliver posts a notification and returns the answer's status.
func (b *till) deliver(t *testing.T, letter []byte) int { return b.deliverTo(t, b.apis[0], letter) }

func (b *till) deliverTo(t *testing.T, base string, letter []byte) int {
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, base+"/payment/webhook", bytes.NewReader(letter))
	if err != nil {
		t.Error(err)
		return 0
	}
	r.Header.Set("Content-Type", "text/plain; charset=UTF-8")
	status, _, _, err := b.do(r)
	if err != nil {
		t.Errorf("deliver: %v", err)
	}
	return status
}

func (b *till) delivers(t *testing.T, what string, letter []byte, want int) {
	t.Helper()
	if got := b.deliver(t, letter); got != want {
		t.Errorf("%s: got %d, want %d", what, got, want)
	}
}

// hold is a booking as its candidate knows it.
type hold struct {
	code, link, payment, page string
}

func (b *till) holds(t *testing.T, i int) hold {
	t.Helper()
	h, err := b.held(t.Context(), b.apis[0], i)
	if err != nil {
		t.Fatal(err)
	}
	return h
}

func (b *till) held(ctx context.Context, base string, i int) (hold, error) {
	code := fmt.Sprintf("P%04d", i)
	status, a, _, err := b.book(ctx, base, code, "N1")
	if err != nil || status != http.StatusAccepted {
		return hold{}, fmt.Errorf("book %s: %d %+v %w", code, status, a, err)
	}
	u, err := url.Parse(a.PaymentURL)
	if err != nil {
		return hold{}, err
	}
	return hold{code: code, link: a.PaymentURL, page: a.BookingURL, payment: u.Path[strings.LastIndex(u.Path, "/")+1:]}, nil
}

// press is a button on the gateway's page; it returns where the browser is sent.
func (b *till) press(t *testing.T, h hold, outcome string) string {
	t.Helper()
	back, err := b.pressed(t.Context(), h, outcome)
	if err != nil {
		t.Fatal(err)
	}
	return back
}

func (b *till) pressed(ctx context.Context, h hold, outcome string) (back string, err error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, h.link, strings.NewReader(url.Values{"outcome": {outcome}}.Encode()))
	if err != nil {
		return "", err
	}
	r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	status, body, header, err := b.do(r)
	if err != nil || status != http.StatusSeeOther {
		return "", fmt.Errorf("press %s: %d %s %w", outcome, status, body, err)
	}
	return header.Get("Location"), nil
}

// come is the browser coming back; it returns where it is sent.
func (b *till) come(t *testing.T, back string) string {
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, back, nil)
	if err != nil {
		t.Error(err)
		return ""
	}
	status, body, header, err := b.do(r)
	if err != nil || status != http.StatusSeeOther {
		t.Errorf("return: %d %s %v", status, body, err)
	}
	return header.Get("Location")
}

func (b *till) pays(t *testing.T, h hold) { b.come(t, b.press(t, h, "success")) }

// after lets time pass, and sweeps once.
func (b *till) after(t *testing.T, d time.Duration) {
	t.Helper()
	b.pass(t, d)
	b.sweep(t)
}

// pass lets time pass once all that is under way has ended: else a mail that is
// being sent would be one of a sender that stood still for longer than its lease.
func (b *till) pass(t *testing.T, d time.Duration) {
	t.Helper()
	testenv.Eventually(t, func() error {
		if n := b.api.InFlight(); n > 0 {
			return fmt.Errorf("%d in flight", n)
		}
		return nil
	})
	b.clock.Add(d)
}

func (b *till) sweep(t *testing.T) {
	t.Helper()
	if _, err := b.api.Reconciler.Sweep(t.Context()); err != nil {
		t.Errorf("sweep: %v", err)
	}
	if _, err := b.api.Notices.Sweep(t.Context()); err != nil {
		t.Errorf("sweep notifications: %v", err)
	}
	if _, err := b.api.Refunds.Sweep(t.Context()); err != nil {
		t.Errorf("sweep refunds: %v", err)
	}
}

// books is who has which seat and what goes back, and how many notifications are
// open: "P0001 paid", "P0002 late" for a refund.
func (b *till) books(t *testing.T) []string {
	t.Helper()
	var got []string
	codes := map[string]string{} // by candidate hash
	for rec, err := range b.api.Drivers.Store.Records(t.Context()) {
		if err != nil {
			t.Fatal(err)
		}
		codes[rec.CandidateHash] = rec.Code
	}
	for d, err := range b.gate.Rows(t.Context()) {
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, d.Code+" "+string(d.Row.Phase))
	}
	for r, err := range b.api.Drivers.Store.Refunds(t.Context()) {
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, fmt.Sprintf("%s %s", codes[r.CandidateHash], r.Kind))
	}
	for n, err := range b.api.Drivers.Store.OpenNotifications(t.Context()) {
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, "open notification of "+n.Transaction)
	}
	slices.Sort(got)
	return got
}

// want waits for these books, and no others, then does the ledger check.
func (b *till) want(t *testing.T, books ...string) {
	t.Helper()
	b.wantBooks(t, books...)
	b.ledger(t)
}

func (b *till) wantBooks(t *testing.T, books ...string) {
	t.Helper()
	slices.Sort(books)
	testenv.Eventually(t, func() error {
		if got := b.books(t); !slices.Equal(got, books) {
			return fmt.Errorf("got books %q, want %q", got, books)
		}
		return nil
	})
}

// ledger is the ledger check: the audit, with the gateway's word, and that every
// transaction that moved is a paid seat or one refund, never both, never neither,
// also when its notification never came.
func (b *till) ledger(t *testing.T) {
	t.Helper()
	b.drained(t)
	ops := saleops.Ops{Ledger: b.gate, Store: b.api.Drivers.Store, Queue: b.api.Drivers.Queue, Gateway: b.api.Gateway, Log: slog.New(slog.DiscardHandler)}
	report, err := ops.Audit(t.Context(), saleops.AuditOptions{
		Gateway: true, QueriesPerSecond: 1000, Wait: func(context.Context, time.Duration) error { return nil },
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range report.Rules {
		if r.Verdict != saleops.VerdictHolds && r.Code != saleops.RuleStatus {
			t.Errorf("audit: %s is %s: %s %q", r.Code, r.Verdict, r.Figure, r.Broken)
		}
	}
	seats := map[string]int{}
	for d, err := range b.gate.Rows(t.Context()) {
		if err != nil {
			t.Fatal(err)
		}
		if d.Row.Phase == booking.PhasePaid {
			seats[d.Row.Transaction]++
		}
	}
	payments, err := b.mock.Payments("")
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range payments {
		for _, m := range p.Transactions {
			_, err := b.api.Drivers.Store.Refund(t.Context(), m.TrxID)
			if err != nil && !errors.Is(err, booking.ErrNotFound) {
				t.Fatal(err)
			}
			if back := err == nil; back == (seats[m.TrxID] == 1) || seats[m.TrxID] > 1 {
				t.Errorf("transaction %s of payment %s: refund %v, seats %d, want one of the two", m.TrxID, p.PaymentID, back, seats[m.TrxID])
			}
		}
	}
}

// wantMails waits for so many mails to have been sent, by this API.
func (b *till) wantMails(t *testing.T, want int) {
	t.Helper()
	testenv.Eventually(t, func() error {
		if got := b.metric(t, "holdfast_mail_total", "sent"); got != want {
			return fmt.Errorf("%d mails sent, want %d", got, want)
		}
		return nil
	})
	if files, err := filepath.Glob(filepath.Join(b.data, "outbox", "*.eml")); err != nil || len(files) != want {
		t.Errorf("%d mails in the outbox, %v, want %d", len(files), err, want)
	}
}

func (b *till) metric(t *testing.T, name, label string) int {
	t.Helper()
	families, err := b.reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	sum := 0.0
	for _, f := range families {
		for _, m := range f.GetMetric() {
			if f.GetName() == name && m.GetLabel()[0].GetValue() == label {
				sum += m.GetCounter().GetValue()
			}
		}
	}
	return int(sum)
}

// payment is what the gateway has of one.
func (b *till) paymentOf(t *testing.T, h hold) mockgateway.Listed {
	t.Helper()
	all, err := b.mock.Payments("")
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range all {
		if p.PaymentID == h.payment {
			return p
		}
	}
	t.Fatalf("the gateway has no payment %s", h.payment)
	return mockgateway.Listed{}
}

// drained waits until every message is a record.
func (b *till) drained(t *testing.T) {
	t.Helper()
	testenv.Eventually(t, func() error {
		s, err := b.api.Drivers.Queue.Stats(t.Context())
		if err == nil && s.Waiting+s.InFlight > 0 {
			err = fmt.Errorf("queue: %+v", s)
		}
		return err
	})
}

// wantOpen wants so many notifications without an end.
func (b *till) wantOpen(t *testing.T, want int) {
	t.Helper()
	open := 0
	for _, err := range b.api.Drivers.Store.OpenNotifications(t.Context()) {
		if err != nil {
			t.Fatal(err)
		}
		open++
	}
	if open != want {
		t.Errorf("%d notifications are open, want %d", open, want)
	}
}

// process starts an API as a process of its own, to be killed, and leads the
// payers to it; its clock is real. The test's own API is the one that is left.
func (b *till) process(t *testing.T, more ...string) *testenv.Program {
	t.Helper()
	addr := testenv.FreeAddr(t)
	// No sweep of its own comes in the way.
	p := testenv.StartProgram(t, "api", nil, b.env(addr, append(more, "HOLDFAST_RECONCILE_EVERY", "1h", "HOLDFAST_EXECUTE_TIMEOUT", "25s")...))
	base := "http://" + addr
	testenv.Eventually(t, func() error {
		status, _, err := b.get(t.Context(), base+"/health")
		if err == nil && status != http.StatusOK {
			err = fmt.Errorf("health: %d", status)
		}
		return err
	})
	b.apis[0] = base
	return p
}

// dies has a payer come back to a process that is killed while the condition
// holds.
func (b *till) dies(t *testing.T, p *testenv.Program, back string, when func() error) {
	t.Helper()
	ctx, hangUp := context.WithCancel(t.Context())
	defer hangUp()
	var browser sync.WaitGroup
	browser.Go(func() {
		_, _, err := b.get(ctx, back)
		if err == nil {
			t.Error("the killed process has answered")
		}
	})
	testenv.Eventually(t, when)
	p.Kill()
	browser.Wait()
}
