package settle_test

import (
	"bytes"
	"context"
	"crypto/x509"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/redis/go-redis/v9"

	"holdfast/internal/admission"
	"holdfast/internal/app"
	"holdfast/internal/booking"
	"holdfast/internal/config"
	"holdfast/internal/mockgateway"
	"holdfast/internal/obs"
	"holdfast/internal/saleops"
	"holdfast/internal/snshook"
	"holdfast/internal/testenv"
)

var soakSeed = flag.Uint64("soak.seed", 0, "seed of the soak's payers and of the gateway's faults; 0 takes one by chance")

// soakFull is the environment variable that makes the soak a long one.
const soakFull = "HOLDFAST_SOAK"

// soakSize is how much a soak does.
type soakSize struct {
	bookings int // admissions with a payment
	wave     int // visits between two steps of the clock
	late     int // visits while money moves by the payer's press
	faults   int // how often each fault of the gateway acts, at least
}

// Thousands of bookings over HTTP, by payers who do everything that payers do, at
// a gateway that has every fault it knows, while the clock moves over days. At the
// end every transaction that moved is a paid seat or one refund, nobody has two
// seats, no cap is exceeded, and nothing is left open.
//
// The two APIs are in this process, each with a listener, drivers, Redis
// connections and metrics of its own: what they share is what two machines would
// share (Redis, data folder, gateway), and the clock, which a process of its own
// could not be told. Processes that are killed are in internal/app.
func TestSoak(t *testing.T) {
	size := soakSize{bookings: 200, wave: 50, late: 50, faults: 1}
	if os.Getenv(soakFull) == "full" {
		size = soakSize{bookings: 5000, wave: 250, late: 500, faults: 20}
	}
	seed := *soakSeed
	if seed == 0 {
		seed = rand.Uint64()
	}
	t.Logf("seed: -soak.seed=%d", seed)
	s := newSoak(t, seed, size)
	s.ordinaryDays()
	s.moneyWithoutUs()
	s.everyFault()
	s.lockouts()
	s.drain()
	s.check()
}

// soakLevels: three for which there are seats enough, and two for which there
// never are, the last of them for those who come when money moves without us.
func soakLevels(size soakSize) []booking.Level {
	return []booking.Level{
		{ID: "N1", Name: "One", Cap: size.bookings/2 + 100, Fee: 150000},
		{ID: "N2", Name: "Two", Cap: size.bookings/2 + 100, Fee: 120000},
		{ID: "N3", Name: "Three", Cap: size.bookings/2 + 100, Fee: 90000},
		{ID: "N4", Name: "Four", Cap: 10 + size.bookings/100, Fee: 70000},
		{ID: "N5", Name: "Five", Cap: size.late / 10, Fee: 50000},
	}
}

// soakPlan is how often a payment has which fault while money moves by our
// execute call.
func soakPlan() []mockgateway.PlannedFault {
	one := func(p float64, name string, calls ...string) mockgateway.PlannedFault {
		return mockgateway.PlannedFault{Probability: p, Fault: mockgateway.Fault{Name: name, Calls: calls}}
	}
	in := func(d time.Duration, f mockgateway.PlannedFault) mockgateway.PlannedFault {
		f.DelayMS = d.Milliseconds()
		return f
	}
	plan := []mockgateway.PlannedFault{
		// The client gives up after 1 s and 2 s; elsewhere it would after 10 s or 30 s.
		one(.003, mockgateway.FaultNoAnswer, mockgateway.CallCreate),
		one(.006, mockgateway.FaultNoAnswer, mockgateway.CallExecute),
		in(200*time.Millisecond, one(.05, mockgateway.FaultNoAnswer, mockgateway.CallStatus, mockgateway.CallRefund, mockgateway.CallSearch)),

		one(.01, mockgateway.FaultRefused),
		one(.01, mockgateway.FaultAlreadyExecuted),
		one(.01, mockgateway.FaultAlreadyExecutedUnpaid),
		in(45*time.Minute, one(.01, mockgateway.FaultCompletesLate)),
		one(.2, mockgateway.FaultCompletesAfterCancel),
		one(.008, mockgateway.FaultTwoPayments),
		one(.008, mockgateway.FaultWrongAmount),
		one(.008, mockgateway.FaultWrongCurrency),
		one(.008, mockgateway.FaultWrongInvoice),
		one(.01, mockgateway.FaultWrongAmount, "notification"),
		one(.01, mockgateway.FaultWrongInvoice, "notification"),
		one(.3, mockgateway.FaultRefundRefused),
		one(.3, mockgateway.FaultAlreadyRefunded),
		in(15*time.Minute, one(.02, mockgateway.FaultNotificationLate)),
		one(.02, mockgateway.FaultNotificationDoubled),
		one(.02, mockgateway.FaultNotificationOutOfOrder),
		one(.02, mockgateway.FaultNotificationNever),
	}
	// Nobody learns what became of these until the sale is over.
	silent := one(.003, mockgateway.FaultCut, mockgateway.CallExecute, mockgateway.CallStatus)
	silent.Times = -1
	plan = append(plan, silent)
	for _, name := range []string{
		mockgateway.FaultCut, mockgateway.FaultAnswerLost, mockgateway.FaultUnauthorized, mockgateway.FaultMaintenance, mockgateway.FaultUnavailable,
	} {
		plan = append(plan,
			one(.004, name, mockgateway.CallCreate), one(.01, name, mockgateway.CallExecute),
			one(.03, name, mockgateway.CallStatus), one(.1, name, mockgateway.CallRefund, mockgateway.CallSearch))
	}
	return plan
}

// soakPayerPlan is for payments whose money moves without our call. Such money is
// heard of only by its notification once the seat is gone, so none is kept back
// for good: of the gateway that is sold with, money moves by execute alone.
func soakPayerPlan() []mockgateway.PlannedFault {
	after := func(p float64, name string, d time.Duration) mockgateway.PlannedFault {
		return mockgateway.PlannedFault{Probability: p, Fault: mockgateway.Fault{Name: name, DelayMS: d.Milliseconds()}}
	}
	return []mockgateway.PlannedFault{
		after(.6, mockgateway.FaultCompletesAfterCancel, 15*time.Minute),
		after(.1, mockgateway.FaultCompletesLate, 20*time.Minute),
		after(.05, mockgateway.FaultTwoPayments, time.Hour),
		after(.1, mockgateway.FaultNotificationLate, 30*time.Minute),
		after(.1, mockgateway.FaultNotificationDoubled, 0),
		after(.05, mockgateway.FaultNotificationOutOfOrder, 0),
		after(.05, mockgateway.FaultWrongAmount, 0),
	}
}

// soak is two APIs, a worker and a gateway, and the payers' doings.
type soak struct {
	t       *testing.T
	size    soakSize
	seed    uint64
	dice    *rand.Rand // the test's own goroutine's
	clock   *testenv.Clock
	gateway *mockgateway.Gateway
	rdb     *redis.Client
	apis    []*app.API
	regs    []*prometheus.Registry
	urls    []string
	data    string
	client  *http.Client

	visits, codes int
	waves         int
	later         map[int][]func() // by wave

	mu      sync.Mutex
	booked  int
	answers map[string]int
	did     map[string]int
	again   []string // candidates who went away without a seat
}

func newSoak(t *testing.T, seed uint64, size soakSize) *soak {
	t.Helper()
	s := &soak{
		t: t, size: size, seed: seed, dice: rand.New(rand.NewPCG(seed, 0)), data: t.TempDir(),
		clock: testenv.NewClock(),
		later: map[int][]func(){}, answers: map[string]int{}, did: map[string]int{},
		client: &http.Client{
			Transport:     &http.Transport{MaxIdleConnsPerHost: 64},
			Timeout:       30 * time.Second,
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		},
	}
	t.Cleanup(s.client.CloseIdleConnections)
	var err error
	s.gateway, err = mockgateway.New(mockgateway.Options{Now: s.clock.Now, At: s.clock.At})
	if err != nil {
		t.Fatal(err)
	}
	served := httptest.NewServer(s.gateway)
	t.Cleanup(func() {
		s.gateway.HangUp()
		served.Close()
		if err := s.gateway.Close(); err != nil {
			t.Errorf("close the gateway: %v", err)
		}
	})
	addr := testenv.Pair(t).Primary.Addr()
	s.rdb = admission.NewClient(admission.ClientConfig{Addr: addr, Pool: 2})
	t.Cleanup(func() { s.rdb.Close() })

	log := s.log()
	drivers, err := app.OpenLocal(t.Context(), app.Needs{Data: s.data, Drivers: config.Drivers{Store: "sqlite", Queue: "sqlite"}})
	if err != nil {
		t.Fatal(err)
	}
	worker, err := app.NewWorker(drivers, 5*time.Second, log, obs.NewRegistry())
	if err != nil {
		t.Fatal(err)
	}
	s.run(func(ctx context.Context) error { return errors.Join(worker.Run(ctx), drivers.Close()) })
	for range 2 {
		s.start(addr, served.URL, log)
	}
	s.settings(mockgateway.CaptureExecute, soakPlan())
	sale := booking.Sale{Name: "soak", Currency: "BDT", Hold: 10 * time.Minute, Levels: soakLevels(size)}
	for _, l := range sale.Levels {
		sale.Cap += l.Cap
	}
	gate := s.apis[0].Gate
	if _, err := gate.ApplySale(t.Context(), sale, booking.NewEpoch(time.Now()), false); err != nil {
		t.Fatal(err)
	}
	if err := gate.Open(t.Context()); err != nil {
		t.Fatal(err)
	}
	return s
}

// log is kept with -artifacts.
func (s *soak) log() *slog.Logger {
	f, err := os.Create(filepath.Join(s.t.ArtifactDir(), "soak.log"))
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { f.Close() })
	return obs.NewLogger(f, slog.LevelInfo)
}

// run has something run until the test's end.
func (s *soak) run(work func(context.Context) error) {
	ctx, end := context.WithCancel(context.WithoutCancel(s.t.Context()))
	ended := make(chan error, 1)
	go func() { ended <- work(ctx) }()
	s.t.Cleanup(func() {
		end()
		if err := <-ended; err != nil {
			s.t.Errorf("a process ended with %v", err)
		}
	})
}

// start starts an API on a listener of its own; the first hears the gateway's
// notifications.
func (s *soak) start(redisAddr, gateway string, log *slog.Logger) {
	s.t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		s.t.Fatal(err)
	}
	base := "http://" + ln.Addr().String()
	env := map[string]string{
		"HOLDFAST_ADDR": ln.Addr().String(), "HOLDFAST_PUBLIC_URL": base, "HOLDFAST_DATA": s.data,
		"HOLDFAST_REDIS_ADDR": redisAddr, "HOLDFAST_REDIS_POOL": "64",
		"HOLDFAST_SEAL_KEY": strings.Repeat("ab", booking.SealKeySize), "HOLDFAST_GATEWAY_URL": gateway + mockgateway.BasePath,
		"HOLDFAST_GATEWAY_APP_KEY": "k", "HOLDFAST_GATEWAY_APP_SECRET": "s", "HOLDFAST_GATEWAY_USERNAME": soakAccount, "HOLDFAST_GATEWAY_PASSWORD": "p",
		"HOLDFAST_CREATE_BUDGET": "1s", "HOLDFAST_REQUEST_BUDGET": "4s", "HOLDFAST_EXECUTE_TIMEOUT": "2s",
		"HOLDFAST_RECONCILE_EVERY": "100ms", "HOLDFAST_QUERY_RATE": "2000", "HOLDFAST_REFUND_AUTO": "true", "HOLDFAST_LINGER": "0s", "HOLDFAST_DRAIN": "10s",
	}
	cfg, err := config.LoadAPI(func(name string) string { return env[name] })
	if err != nil {
		s.t.Fatal(err)
	}
	authority, err := s.gateway.CAPEM()
	if err != nil {
		s.t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(authority)
	reg := obs.NewRegistry()
	api, err := app.NewAPI(s.t.Context(), cfg, app.Extras{ClockOffset: s.clock.Added, Webhook: &snshook.Config{
		TopicARN: mockgateway.DefaultTopic, Roots: roots, Now: s.clock.Now,
		Fetch: func(context.Context, string) ([]byte, error) { return s.gateway.CertificatePEM() },
	}}, log, reg)
	if err != nil {
		s.t.Fatal(err)
	}
	s.apis, s.regs, s.urls = append(s.apis, api), append(s.regs, reg), append(s.urls, base)
	s.run(func(ctx context.Context) error { return api.Run(ctx, ln, nil) })
}

const soakAccount = "u"

func (s *soak) settings(capture string, plan []mockgateway.PlannedFault) {
	s.t.Helper()
	err := s.gateway.SetSettings(mockgateway.Settings{
		Capture: capture, Seed: s.seed, Faults: plan,
		Notifications: mockgateway.Notifications{URL: s.urls[0] + "/payment/webhook", RetryMS: 1000},
	})
	if err != nil {
		s.t.Fatal(err)
	}
}

// ordinaryDays is the sale at a gateway where money moves by our call.
func (s *soak) ordinaryDays() {
	for s.bookings() < s.size.bookings-s.size.late {
		s.arrive(s.size.wave, false)
		s.wave()
		if s.waves > 4*s.size.bookings/s.size.wave {
			s.t.Fatalf("%d bookings after %d waves: %v", s.bookings(), s.waves, s.answers)
		}
	}
	s.finishVisits()
}

// moneyWithoutUs is the sale at a gateway where money moves by the payer's press,
// so that it comes late, to seats that are gone.
func (s *soak) moneyWithoutUs() {
	s.settings(mockgateway.CapturePayer, soakPayerPlan())
	for enough := s.bookings() + s.size.late; s.bookings() < enough; {
		s.arrive(s.size.wave, true)
		s.wave()
	}
	s.finishVisits()
	s.settings(mockgateway.CaptureExecute, nil)
}

func (s *soak) finishVisits() {
	for range 4 { // no visit takes longer
		s.wave()
	}
}

func (s *soak) bookings() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.booked
}

// wave lets everybody act whose turn it is, sixteen at a time, and moves the
// clock.
func (s *soak) wave() {
	s.t.Helper()
	acts := s.later[s.waves]
	delete(s.later, s.waves)
	s.waves++
	work := make(chan func())
	var payers sync.WaitGroup
	for range 16 {
		payers.Go(func() {
			for act := range work {
				act()
			}
		})
	}
	for _, act := range acts {
		work <- act
	}
	close(work)
	payers.Wait()
	s.step(4*time.Minute + time.Duration(s.dice.IntN(420))*time.Second)
}

// at has something done in a later wave.
func (s *soak) at(wave int, act func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.later[wave] = append(s.later[wave], act)
}

// step moves the clock and waits until all that is due has been looked at.
func (s *soak) step(d time.Duration) {
	s.t.Helper()
	s.mailed()
	s.move(d)
	for _, api := range s.apis {
		api.Reconciler.CrossCheckNow()
	}
	s.until("what is due is looked at", func() error {
		gate := s.apis[0].Gate
		rows, _, err := gate.Due(s.t.Context(), 0, 1)
		if err != nil || len(rows) > 0 {
			return fmt.Errorf("rows are due: %v, %w", rows, err)
		}
		notices, err := gate.DueNotices(s.t.Context(), 1)
		if err != nil || len(notices) > 0 {
			return fmt.Errorf("notifications are due: %v, %w", notices, err)
		}
		stats, err := s.apis[0].Drivers.Queue.Stats(s.t.Context())
		if err != nil || stats.Waiting+stats.InFlight > 0 {
			return fmt.Errorf("messages wait: %+v, %w", stats, err)
		}
		return nil
	})
}

// mailed gives the mails that are being sent a moment to go out: a step of the
// clock is longer than a sender's lease, and would be a sender that stood still.
func (s *soak) mailed() {
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for end := time.After(3 * time.Second); ; {
		sending := false
		for d, err := range s.apis[0].Gate.Rows(s.t.Context()) {
			if err != nil {
				s.t.Fatal(err)
			}
			sending = sending || d.Row.Phase == booking.PhasePaid && !d.Row.MailDone
		}
		if !sending {
			return
		}
		select {
		case <-tick.C:
		case <-end:
			return
		}
	}
}

// until asks until the answer is nil.
func (s *soak) until(what string, ask func() error) {
	s.t.Helper()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	end := time.After(90 * time.Second)
	for {
		err := ask()
		if err == nil {
			return
		}
		select {
		case <-tick.C:
		case <-end:
			s.t.Fatalf("%s: not so after 90 s: %v", what, err)
		}
	}
}

// move moves the clock, and with it the gateway token's keys, whose times are by
// Redis's own clock. The gateway's count of grants, two an hour as the real one's,
// judges by the clock that was moved.
func (s *soak) move(d time.Duration) {
	s.t.Helper()
	s.clock.Add(d)
	ctx := s.t.Context()
	keys, err := s.rdb.Keys(ctx, "token:*").Result()
	for _, key := range keys {
		switch key[strings.LastIndex(key, ":")+1:] {
		case "current":
			for _, field := range []string{"called_at", "renew_at", "expires_at"} {
				err = errors.Join(err, s.rdb.HIncrBy(ctx, key, field, -d.Milliseconds()).Err())
			}
		case "grants":
			for _, call := range s.rdb.ZRange(ctx, key, 0, -1).Val() {
				err = errors.Join(err, s.rdb.ZIncrBy(ctx, key, -float64(d.Milliseconds()), call).Err())
			}
		default: // the lock, and the pause after a failed grant
			err = errors.Join(err, s.rdb.PExpire(ctx, key, s.rdb.PTTL(ctx, key).Val()-d).Err())
		}
	}
	if err != nil {
		s.t.Fatal(err)
	}
}

// arrive has people visit in the next wave: new ones, and some who were there.
func (s *soak) arrive(n int, payerMoves bool) {
	var fresh []booking.Candidate
	for range n {
		s.visits++
		v := &soakVisit{soak: s, dice: rand.New(rand.NewPCG(s.seed, uint64(s.visits))), wave: s.waves, payerMoves: payerMoves}
		s.mu.Lock()
		if len(s.again) > 0 && s.dice.IntN(4) == 0 {
			i := s.dice.IntN(len(s.again))
			v.code = s.again[i]
			s.again = slices.Delete(s.again, i, i+1)
		}
		s.mu.Unlock()
		if v.code == "" {
			v.code = s.candidate()
			fresh = append(fresh, booking.Candidate{Code: v.code, Email: soakEmail})
		}
		v.level = fmt.Sprintf("N%d", 1+s.dice.IntN(3))
		switch chance := s.dice.IntN(100); {
		case payerMoves && chance < 75:
			v.level = "N5"
		case !payerMoves && chance < 10:
			v.level = "N4"
		}
		s.at(s.waves, v.begin)
	}
	s.load(fresh)
}

const soakEmail = "payer@example.org"

func (s *soak) candidate() string {
	s.codes++
	return fmt.Sprintf("C%05d", s.codes)
}

func (s *soak) load(list []booking.Candidate) {
	s.t.Helper()
	for some := range slices.Chunk(list, 500) {
		if err := s.apis[0].Gate.AddCandidates(s.t.Context(), some); err != nil {
			s.t.Fatal(err)
		}
	}
}

// soakVisit is one candidate's coming and going.
type soakVisit struct {
	*soak
	dice        *rand.Rand
	code, level string
	wave        int
	payerMoves  bool
	held        soakAnswer
}

type soakAnswer struct {
	Error      string `json:"error"`
	Reason     string `json:"reason"`
	PaymentURL string `json:"payment_url"`
	PaymentID  string `json:"payment_id"`
	BookingURL string `json:"booking_url"`
	State      string `json:"state"`
	Paid       bool   `json:"paid"`
}

// begin books, and does with the link what this payer does.
func (v *soakVisit) begin() {
	if !v.book() {
		v.goAway()
		return
	}
	habits := soakHabits
	if v.payerMoves {
		habits = soakPayerHabits
	}
	n := 0
	for _, h := range habits {
		n += h.weight
	}
	n = v.dice.IntN(n)
	for _, h := range habits {
		if n -= h.weight; n < 0 {
			v.mu.Lock()
			v.did[h.name]++
			v.mu.Unlock()
			h.do(v)
			return
		}
	}
}

type soakHabit struct {
	name   string
	weight int
	do     func(v *soakVisit)
}

var soakHabits = []soakHabit{
	{"pays at once", 50, func(v *soakVisit) { v.come(v.press("success", ""), 1) }},
	{"pays late", 8, func(v *soakVisit) { v.at(v.wave+1, func() { v.come(v.press("success", ""), 1) }) }},
	{"cancels", 6, func(v *soakVisit) { v.come(v.press("cancel", ""), 1); v.goAway() }},
	{"cancels, then pays", 4, func(v *soakVisit) {
		v.come(v.press("cancel", ""), 1)
		v.at(v.wave+1, func() { v.come(v.press("success", ""), 1) })
	}},
	{"fails, then pays", 8, func(v *soakVisit) {
		v.come(v.press("failure", ""), 1)
		v.come(v.press("success", ""), 1)
	}},
	{"is refused, then books again", 5, func(v *soakVisit) {
		v.come(v.press("success", "2023"), 1)
		if v.book() {
			v.come(v.press("success", ""), 1)
		}
	}},
	{"closes the tab", 7, func(v *soakVisit) { v.press("success", ""); v.goAway() }},
	{"reloads ten times", 6, func(v *soakVisit) { v.come(v.press("success", ""), 10) }},
	// Three steps are over twelve minutes.
	{"comes back after the hold", 6, func(v *soakVisit) {
		v.at(v.wave+3, func() { v.come(v.press("success", ""), 1); v.goAway() })
	}},
}

var soakPayerHabits = []soakHabit{
	{"pays at once", 25, func(v *soakVisit) { v.come(v.press("success", ""), 1) }},
	{"closes the tab", 20, func(v *soakVisit) { v.press("success", "") }},
	{"cancels", 20, func(v *soakVisit) { v.come(v.press("cancel", ""), 1); v.goAway() }},
	{"pays after the hold", 20, func(v *soakVisit) { v.at(v.wave+3, func() { v.come(v.press("success", ""), 1) }) }},
	{"pays after the hold and closes the tab", 15, func(v *soakVisit) { v.at(v.wave+3, func() { v.press("success", "") }) }},
}

func (v *soakVisit) goAway() {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.again = append(v.again, v.code)
}

// book tells whether there is a payment link now: a new one or the candidate's own.
func (v *soakVisit) book() bool {
	body := fmt.Sprintf(`{"code":%q,"email":%q,"level":%q}`, v.code, soakEmail, v.level)
	status, got, _ := v.call(http.MethodPost, v.urls[v.dice.IntN(len(v.urls))]+"/book", "application/json", body)
	var a soakAnswer
	if err := json.Unmarshal(got, &a); err != nil {
		v.t.Errorf("book: %d %s", status, got)
		return false
	}
	word := strings.TrimSpace(fmt.Sprint(status, " ", a.Error, " ", a.Reason))
	v.mu.Lock()
	v.answers[word]++
	if status == http.StatusAccepted {
		v.booked++
	}
	v.mu.Unlock()
	switch word {
	case "202":
	case "409 duplicate", "409 level_full", "429 closed sold_out", "502 payment_unavailable", "503 try_again":
	default:
		v.t.Errorf("book %s: %d %s", v.code, status, got)
	}
	v.held = a
	return a.PaymentURL != ""
}

// press is a button on the gateway's page; it returns where the browser is sent.
func (v *soakVisit) press(outcome, refuse string) string {
	form := url.Values{"outcome": {outcome}}
	if refuse != "" && !v.payerMoves {
		form.Set("refuse", refuse)
	}
	status, got, header := v.call(http.MethodPost, v.held.PaymentURL, "application/x-www-form-urlencoded", form.Encode())
	if status != http.StatusSeeOther {
		v.t.Errorf("press %s: %d %s", outcome, status, got)
	}
	return header.Get("Location")
}

// come is the browser coming back, so many times at once. Where the page then
// offers to continue, one who wanted to pay does.
func (v *soakVisit) come(back string, times int) {
	one := func() {
		if status, got, _ := v.call(http.MethodGet, back, "", ""); status != http.StatusSeeOther {
			v.t.Errorf("return: %d %s", status, got)
		}
	}
	var browsers sync.WaitGroup
	for range times {
		browsers.Go(one)
	}
	browsers.Wait()
	if v.held.BookingURL == "" || !strings.Contains(back, "status=success") {
		return
	}
	status, got, _ := v.call(http.MethodGet, v.held.BookingURL, "", "")
	var a soakAnswer
	if err := json.Unmarshal(got, &a); err != nil || status != http.StatusOK && status < http.StatusInternalServerError {
		v.t.Errorf("booking: %d %s", status, got)
	}
	if a.State == "held" {
		one()
	}
}

func (s *soak) call(method, target, contentType, body string) (int, []byte, http.Header) {
	r, err := http.NewRequestWithContext(s.t.Context(), method, target, strings.NewReader(body))
	if err != nil {
		s.t.Error(err)
		return 0, nil, http.Header{}
	}
	if contentType != "" {
		r.Header.Set("Content-Type", contentType)
	}
	resp, err := s.client.Do(r)
	if err != nil {
		s.t.Error(err)
		return 0, nil, http.Header{}
	}
	defer resp.Body.Close()
	got, err := io.ReadAll(resp.Body)
	if err != nil {
		s.t.Error(err)
	}
	return resp.StatusCode, got, resp.Header
}

// everyFault has those faults act that chance has not called often enough.
func (s *soak) everyFault() {
	for range 5 {
		missing := 0
		for name, n := range s.faultCounts() {
			for ; n < s.size.faults && name != mockgateway.FaultLockout; n++ {
				missing++
				s.provoke(name)
			}
		}
		if missing == 0 {
			return
		}
		s.wave()
		s.wave()
	}
}

func (s *soak) faultCounts() map[string]int {
	counts := map[string]int{}
	for name, c := range s.gateway.FaultCounts() {
		counts[name] = c.Times
	}
	return counts
}

// provoke has a candidate pay, and a fault in the way.
func (s *soak) provoke(name string) {
	s.visits++
	v := &soakVisit{soak: s, dice: rand.New(rand.NewPCG(s.seed, uint64(s.visits))), code: s.candidate(), level: "N1"}
	s.load([]booking.Candidate{{Code: v.code, Email: soakEmail}})
	s.at(s.waves, func() {
		if !v.book() {
			return
		}
		faults := []mockgateway.Fault{{Name: name}}
		if name == mockgateway.FaultRefundRefused || name == mockgateway.FaultAlreadyRefunded {
			faults = append(faults, mockgateway.Fault{Name: mockgateway.FaultWrongAmount})
		}
		if err := s.gateway.SetFaults(v.held.PaymentID, faults...); err != nil {
			s.t.Error(err)
		}
		outcome := "success"
		if name == mockgateway.FaultCompletesAfterCancel {
			outcome = "cancel"
		}
		v.come(v.press(outcome, ""), 1)
	})
}

// lockouts has the gateway lock our account out: nobody gets a payment, and an
// hour later everybody does.
func (s *soak) lockouts() {
	for range s.size.faults {
		acted := s.gateway.FaultCounts()[mockgateway.FaultLockout].Times
		if err := s.gateway.SetAccountFaults(soakAccount, mockgateway.Fault{Name: mockgateway.FaultLockout}); err != nil {
			s.t.Fatal(err)
		}
		s.move(2 * time.Hour) // the token ends, and another may be had
		v := &soakVisit{soak: s, dice: s.dice, code: s.candidate(), level: "N1"}
		s.load([]booking.Candidate{{Code: v.code, Email: soakEmail}})
		if v.book() || v.held.Error != "payment_unavailable" && v.held.Error != "try_again" {
			s.t.Errorf("booked while the gateway had locked us out: %+v", v.held)
		}
		// A grant under way when the clock moves on would be locked out an hour from then.
		s.until("the gateway locks us out, and nobody asks it", func() error {
			pauses, err := s.rdb.Keys(s.t.Context(), "token:*:pause").Result()
			if err != nil {
				return err
			}
			if now := s.gateway.FaultCounts()[mockgateway.FaultLockout].Times; now == acted || len(pauses) == 0 {
				return fmt.Errorf("locked out %d times, %d before, pauses %v", now, acted, pauses)
			}
			return nil
		})
		s.move(2 * time.Hour)
		s.until("payments are made again", func() error {
			if !v.book() {
				return fmt.Errorf("got %+v", v.held)
			}
			return nil
		})
		v.come(v.press("success", ""), 1)
		s.step(0)
	}
}

// drain lets everything lapse and waits until nothing is left to be done.
func (s *soak) drain() {
	s.t.Helper()
	payments, err := s.gateway.Payments("")
	if err != nil {
		s.t.Fatal(err)
	}
	for _, p := range payments { // what has not acted by now would act on the audit
		if err := s.gateway.SetFaults(p.PaymentID); err != nil {
			s.t.Fatal(err)
		}
	}
	for begin := s.clock.Added(); ; {
		switch gone := s.clock.Added() - begin; {
		case gone < time.Hour, gone > 26*time.Hour:
			s.step(11 * time.Minute) // longer than anything is put off
		default:
			s.step(time.Hour)
		}
		s.until("refunds are sent", func() error { return s.refunds(func(r booking.Refund) bool { return r.State == booking.RefundDue }) })
		err := s.unfinished()
		if err == nil {
			return
		}
		if s.clock.Added()-begin > 36*time.Hour {
			s.t.Fatalf("not drained: %v", err)
		}
	}
}

func (s *soak) refunds(open func(booking.Refund) bool) error {
	for r, err := range s.apis[0].Drivers.Store.OpenRefunds(s.t.Context()) {
		if err != nil || open(r) {
			return fmt.Errorf("refund is open: %+v, %w", r, err)
		}
	}
	return nil
}

// unfinished says what is not.
func (s *soak) unfinished() error {
	store := s.apis[0].Drivers.Store
	for d, err := range s.apis[0].Gate.Rows(s.t.Context()) {
		if err != nil || d.Row.Phase != booking.PhasePaid || !d.Row.RecordDone || !d.Row.MailDone {
			return fmt.Errorf("row is unfinished: %+v, %w", d, err)
		}
	}
	for rec, err := range store.Records(s.t.Context()) {
		if err != nil || rec.State == booking.StateHeld {
			return fmt.Errorf("record is held: %+v, %w", rec, err)
		}
	}
	for n, err := range store.OpenNotifications(s.t.Context()) {
		if err != nil || n.Outcome == "" {
			return fmt.Errorf("notification is open: %+v, %w", n, err)
		}
	}
	return s.refunds(func(r booking.Refund) bool { return r.Trouble == "" })
}

// check is the ledger check: the product's own audit, and one that rests on the
// gateway's books and knows nothing of the audit.
func (s *soak) check() {
	s.t.Helper()
	counts := s.faultCounts()
	for _, name := range mockgateway.Faults() {
		if counts[name] < s.size.faults {
			s.t.Errorf("fault %s has acted %d times, want %d", name, counts[name], s.size.faults)
		}
	}
	s.audit()
	s.books()
	s.t.Logf("bookings %d by %d visits of %d candidates, over %s\nanswers %v\npayers %v\nfaults %v",
		s.bookings(), s.visits, s.codes, s.clock.Added().Round(time.Minute), s.answers, s.did, counts)
}

func (s *soak) audit() {
	s.t.Helper()
	api := s.apis[1]
	ops := saleops.Ops{Ledger: api.Gate, Store: api.Drivers.Store, Queue: api.Drivers.Queue, Gateway: api.Gateway, Log: slog.New(slog.DiscardHandler)}
	report, err := ops.Audit(s.t.Context(), saleops.AuditOptions{
		Gateway: true, QueriesPerSecond: 5000,
		Status: func(context.Context) ([]byte, error) {
			_, body, _ := s.call(http.MethodGet, s.urls[1]+"/status.json", "", "")
			return body, nil
		},
	})
	if err != nil {
		s.t.Fatal(err)
	}
	var told bytes.Buffer
	for _, r := range report.Rules {
		fmt.Fprintf(&told, "%s %s: %s %q\n", r.Verdict, r.Code, r.Figure, r.Broken)
		if r.Verdict != saleops.VerdictHolds {
			s.t.Errorf("audit: %s is %s: %s %q", r.Code, r.Verdict, r.Figure, r.Broken)
		}
	}
	s.t.Logf("audit:\n%s", told.String())
}

// books compares the gateway's transactions with seats and refunds.
func (s *soak) books() {
	s.t.Helper()
	ctx, api := s.t.Context(), s.apis[0]
	rows, records, refunds, orders := map[string]booking.Row{}, map[string]booking.Record{}, map[string]booking.Refund{}, map[string]booking.Record{}
	levels, seats, states := map[string]int{}, map[string]string{}, map[booking.RecordState]int{}
	for d, err := range api.Gate.Rows(ctx) {
		if err != nil {
			s.t.Fatal(err)
		}
		levels[d.Row.Level]++
		if other, twice := rows[d.Row.Transaction]; twice {
			s.t.Errorf("transaction %s pays for attempts %s and %s", d.Row.Transaction, other.Attempt, d.Row.Attempt)
		}
		rows[d.Row.Transaction] = d.Row
	}
	for rec, err := range api.Drivers.Store.Records(ctx) {
		if err != nil {
			s.t.Fatal(err)
		}
		states[rec.State]++
		orders[rec.PaymentID] = rec
		if rec.State != booking.StatePaid {
			continue
		}
		if other := seats[rec.Code]; other != "" {
			s.t.Errorf("%s has two seats: %s and %s", rec.Code, other, rec.Attempt)
		}
		seats[rec.Code], records[rec.Transaction] = rec.Attempt, rec
	}
	kinds, troubles := map[booking.MoneyKind]int{}, 0
	for r, err := range api.Drivers.Store.Refunds(ctx) {
		if err != nil {
			s.t.Fatal(err)
		}
		refunds[r.Transaction] = r
		kinds[r.Kind]++
		if r.State != booking.RefundDone {
			troubles++
		}
	}
	for _, l := range soakLevels(s.size) {
		if levels[l.ID] > l.Cap {
			s.t.Errorf("level %s has %d seats, its cap is %d", l.ID, levels[l.ID], l.Cap)
		}
	}
	payments, err := s.gateway.Payments("")
	if err != nil {
		s.t.Fatal(err)
	}
	moved := map[string]bool{}
	for _, p := range payments {
		rec, ordered := orders[p.PaymentID]
		for i, t := range p.Transactions {
			moved[t.TrxID] = true
			row, paid := rows[t.TrxID]
			r, back := refunds[t.TrxID]
			what := fmt.Sprintf("transaction %d of payment %s, %s %s", i+1, p.PaymentID, t.Amount, t.Currency)
			switch {
			case t.Notification != nil && !t.Notification.Done:
				s.t.Errorf("%s: its notification is still on its way", what)
			case !ordered:
				s.t.Errorf("%s has no record", what)
			case paid && back:
				s.t.Errorf("%s is both a seat and a refund: %+v, %+v", what, row, r)
			case paid:
				s.paid(what, p, t, row, records[t.TrxID])
			case back:
				s.back(what, t, r)
			default:
				s.t.Errorf("%s is neither a seat nor a refund: record %+v", what, rec)
			}
		}
	}
	for transaction, row := range rows {
		if !moved[transaction] {
			s.t.Errorf("row %+v is paid by a transaction that the gateway does not have", row)
		}
	}
	for transaction, r := range refunds {
		if !moved[transaction] {
			s.t.Errorf("refund %+v is of a transaction that the gateway does not have", r)
		}
	}
	if len(rows) != len(records) {
		s.t.Errorf("%d paid rows and %d PAID records", len(rows), len(records))
	}
	// A step of the clock that overtakes a mail on its way makes its sender one that
	// stood still for longer than its lease, and it is sent again: rare, and no more.
	mails, err := filepath.Glob(filepath.Join(s.data, "outbox", "*.eml"))
	if sent := s.metric("holdfast_mail_total", "sent"); err != nil || len(mails) != len(records) || sent < len(records) || sent > len(records)+1+len(records)/100 {
		s.t.Errorf("%d mails, %v, sent %d times, for %d paid seats", len(mails), err, sent, len(records))
	}
	s.t.Logf("payments %d, transactions %d: seats %d, refunds %v of which open with trouble %d; records %v; rows in doubt were put off %d times",
		len(payments), len(moved), len(rows), kinds, troubles, states, s.metric("holdfast_reconciler_actions_total", "doubt"))
}

func (s *soak) paid(what string, p mockgateway.Listed, t mockgateway.ListedTransaction, row booking.Row, rec booking.Record) {
	s.t.Helper()
	if rec.State != booking.StatePaid || rec.Attempt != row.Attempt || rec.PaymentID != p.PaymentID || row.Payment != p.PaymentID {
		s.t.Errorf("%s pays for row %+v, and the record is %+v", what, row, rec)
	}
	if t.Amount != row.Amount.String() || t.Currency != row.Currency || t.Invoice != rec.Invoice {
		s.t.Errorf("%s pays for a seat that was ordered otherwise: %+v", what, row)
	}
	if len(t.Refunds) > 0 {
		s.t.Errorf("%s pays for a seat, and went back: %+v", what, t.Refunds)
	}
}

func (s *soak) back(what string, t mockgateway.ListedTransaction, r booking.Refund) {
	s.t.Helper()
	if r.Amount.String() != t.Amount || r.Currency != t.Currency {
		s.t.Errorf("%s: its refund is of %s %s", what, r.Amount, r.Currency)
	}
	switch {
	case r.State == booking.RefundDone && (len(t.Refunds) != 1 || t.Refunds[0].Amount != t.Amount || t.Refunds[0].RefundTrxID != r.RefundTransaction):
		s.t.Errorf("%s: its refund is done, and what went back is %+v", what, t.Refunds)
	case r.State != booking.RefundDone && len(t.Refunds) > 0:
		s.t.Errorf("%s: its refund is %s, and it went back: %+v", what, r.State, t.Refunds)
	}
}

// metric adds up a counter of one label over both APIs.
func (s *soak) metric(name, label string) int {
	s.t.Helper()
	sum := 0.0
	for _, reg := range s.regs {
		families, err := reg.Gather()
		if err != nil {
			s.t.Fatal(err)
		}
		for _, f := range families {
			for _, m := range f.GetMetric() {
				if f.GetName() == name && m.GetLabel()[0].GetValue() == label {
					sum += m.GetCounter().GetValue()
				}
			}
		}
	}
	return int(sum)
}
