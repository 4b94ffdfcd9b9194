package paygate_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"holdfast/internal/booking"
	"holdfast/internal/paygate"
)

// answerer answers a call, or says why there is no answer.
type answerer func(http.ResponseWriter, *http.Request) error

// line is a transport without a network, for tests in a bubble: what it does
// with a call can be changed at any time.
type line struct {
	mu    sync.Mutex
	do    answerer
	calls atomic.Int32
}

func (l *line) set(do answerer) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.do = do
}

func (l *line) RoundTrip(r *http.Request) (*http.Response, error) {
	l.calls.Add(1)
	l.mu.Lock()
	do := l.do
	l.mu.Unlock()
	w := httptest.NewRecorder()
	if err := do(w, r); err != nil {
		return nil, err
	}
	return w.Result(), nil
}

func says(status int, body string) answerer {
	return func(w http.ResponseWriter, _ *http.Request) error {
		w.WriteHeader(status)
		_, err := io.WriteString(w, body)
		return err
	}
}

func silent(_ http.ResponseWriter, r *http.Request) error {
	<-r.Context().Done()
	return r.Context().Err()
}

func unreachable(_ http.ResponseWriter, r *http.Request) error {
	httptrace.ContextClientTrace(r.Context()).GetConn("gateway.example:443")
	return errors.New("connection refused")
}

// newLine is a client on a line that works, with a breaker that opens after
// three failures for ten seconds.
func newLine(t *testing.T) (*bench, *line) {
	t.Helper()
	l := &line{do: says(200, created(nil))}
	return newBench(t, "http://gateway.example", &http.Client{Transport: l}, func(c *paygate.Config) {
		c.BreakerFailures, c.BreakerPause = 3, 10*time.Second
	}), l
}

func (b *bench) create(t *testing.T) error {
	t.Helper()
	_, err := b.client.Create(t.Context(), seat)
	return err
}

// wantOpen tells whether Ready says no, and whether the gauge knows.
func (b *bench) wantOpen(t *testing.T, when string, want bool) {
	t.Helper()
	unused, err := b.client.Ready()
	if err == nil {
		unused()
	}
	if got := err != nil; got != want {
		t.Errorf("%s: Ready says %v, want open %v", when, err, want)
	}
	if got := b.gauge(t, "holdfast_gateway_breaker_open"); want != (got == 1) {
		t.Errorf("%s: holdfast_gateway_breaker_open is %v, want open %v", when, got, want)
	}
}

func (b *bench) gauge(t *testing.T, name string) float64 {
	t.Helper()
	families, err := b.reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() == name {
			return f.Metric[0].GetGauge().GetValue()
		}
	}
	t.Fatalf("no metric %s", name)
	return 0
}

// wantFast is what a call and Ready say while the breaker is open.
func wantFast(t *testing.T, what string, err error) {
	t.Helper()
	for _, want := range []error{booking.ErrPaymentUnavailable, booking.ErrNotSent, booking.ErrGatewayOutage} {
		if !errors.Is(err, want) {
			t.Errorf("%s: got %v, want %v in it", what, err, want)
		}
	}
	if errors.Is(err, booking.ErrInDoubt) {
		t.Errorf("%s: got %v, want nothing in doubt", what, err)
	}
}

func TestBreaker_DeadGatewayMeansFastRefusals(t *testing.T) {
	t.Parallel()
	for name, dead := range map[string]answerer{
		"no answer":      silent,
		"no connection":  unreachable,
		"HTTP 500":       says(500, ""),
		"HTTP 503":       says(503, `{"message":"Service Unavailable"}`),
		"throttled":      says(429, `{"message":"Too Many Requests"}`),
		"maintenance":    says(200, `{"statusCode":"503","statusMessage":"maintenance"}`),
		"internal error": says(200, `{"statusCode":"9999"}`),
		"a page":         says(200, `<html>`),
		"token refused":  says(401, `{"message":"Unauthorized"}`),
		"bad app key":    says(200, `{"statusCode":"2001"}`),
		"half a payment": says(200, created(map[string]any{"bkashURL": nil})),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				b, l := newLine(t)
				l.set(dead)
				for i := range 3 {
					b.wantOpen(t, "before it is known", false)
					if err := b.create(t); err == nil || errors.Is(err, booking.ErrPaymentUnavailable) {
						t.Errorf("create %d: got %v, want the gateway's own failure", i, err)
					}
				}
				b.wantOpen(t, "after three failures", true)
				began, calls := time.Now(), l.calls.Load()
				for range 100 {
					wantFast(t, "Create", b.create(t))
				}
				_, err := b.client.Ready()
				wantFast(t, "Ready", err)
				if took, got := time.Since(began), l.calls.Load()-calls; took != 0 || got != 0 {
					t.Errorf("100 creates took %s and %d calls, want none of either", took, got)
				}
			})
		})
	}
}

func TestBreaker_NoTokenOpensIt(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b, l := newLine(t)
		b.tokens.all, b.tokens.err = nil, errors.New("no grant for a while")
		for range 3 {
			wantErr(t, "Create", b.create(t), booking.ErrNotSent)
		}
		b.wantOpen(t, "without a token", true)
		if got := l.calls.Load(); got != 0 {
			t.Errorf("%d calls without a token, want 0", got)
		}
	})
}

func TestBreaker_AnswersAreNoFailures(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b, l := newLine(t)
		for _, code := range []string{"2006", "2023", "2029", "2031", "2048", "2049", "2065"} {
			l.set(says(200, `{"statusCode":"`+code+`"}`))
			for range 4 {
				if err := b.create(t); err == nil {
					t.Errorf("create refused with %s: got no error, want one", code)
				}
			}
			b.wantOpen(t, "after refusals with "+code, false)
		}
		// Failures count only in a row.
		for range 3 {
			l.set(says(500, ""))
			_, _ = b.create(t), b.create(t)
			l.set(says(200, created(nil)))
			if err := b.create(t); err != nil {
				t.Errorf("Create: %v", err)
			}
		}
		b.wantOpen(t, "after failures that were not in a row", false)
	})
}

func TestBreaker_CallerWhoHungUpSaysNothingOfTheGateway(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b, l := newLine(t)
		l.set(silent)
		for range 5 {
			ctx, cancel := context.WithCancel(t.Context())
			go func() {
				time.Sleep(time.Second)
				cancel()
			}()
			_, err := b.client.Create(ctx, seat) // hung up under way
			wantErr(t, "Create", err, booking.ErrInDoubt)
			_, err = b.client.Create(ctx, seat) // before it began
			wantErr(t, "Create", err, booking.ErrNotSent)
			over, cancel := context.WithTimeout(t.Context(), 0)
			_, err = b.client.Create(over, seat)
			cancel()
			wantErr(t, "Create", err, booking.ErrNotSent)
		}
		b.wantOpen(t, "after callers hung up", false)
	})
}

func TestBreaker_TriesOneAndThenLetsAllThrough(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b, l := newLine(t)
		l.set(says(500, ""))
		for range 3 {
			_ = b.create(t)
		}
		time.Sleep(10*time.Second + time.Nanosecond)

		// One of a crowd may take a seat and try; it fails, and all wait again.
		began := l.calls.Load()
		if got := b.crowd(t, 100); got != 1 {
			t.Errorf("%d of 100 were let through, want 1", got)
		}
		if got := l.calls.Load() - began; got != 1 {
			t.Errorf("%d calls, want 1", got)
		}
		b.wantOpen(t, "after the trial failed", true)

		// The trial is slow: meanwhile nobody else.
		time.Sleep(10*time.Second + time.Nanosecond)
		answer := make(chan struct{})
		l.set(func(w http.ResponseWriter, r *http.Request) error { <-answer; return says(200, created(nil))(w, r) })
		if _, err := b.client.Ready(); err != nil {
			t.Errorf("Ready after the pause: %v", err)
		}
		trial := make(chan error, 1)
		go func() { trial <- b.create(t) }()
		synctest.Wait()
		time.Sleep(3 * time.Second) // longer than the turn
		if _, err := b.client.Ready(); err == nil {
			t.Error("Ready during the trial: got leave, want none")
		}
		wantFast(t, "Create during the trial", b.create(t))
		close(answer)
		if err := <-trial; err != nil {
			t.Errorf("trial: %v", err)
		}
		b.wantOpen(t, "after the trial succeeded", false)
		if got := b.crowd(t, 100); got != 100 {
			t.Errorf("%d of 100 were let through, want all", got)
		}
	})
}

// crowd has n callers ask and, with leave, create; it tells how many had leave.
func (b *bench) crowd(t *testing.T, n int) int32 {
	t.Helper()
	var leave atomic.Int32
	var wg sync.WaitGroup
	for range n {
		wg.Go(func() {
			if _, err := b.client.Ready(); err == nil {
				leave.Add(1)
				_ = b.create(t)
			}
		})
	}
	wg.Wait()
	return leave.Load()
}

func TestBreaker_TurnIsGivenBackOrRunsOut(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b, l := newLine(t)
		l.set(says(500, ""))
		for range 3 {
			_ = b.create(t)
		}
		time.Sleep(10*time.Second + time.Nanosecond)
		ready := func(when string, want bool) func() {
			t.Helper()
			unused, err := b.client.Ready()
			if (err == nil) != want {
				t.Errorf("%s: Ready says %v, want leave %v", when, err, want)
			}
			return unused
		}
		first := ready("after the pause", true)
		ready("while another has the turn", false)
		first()
		second := ready("after the turn was given back", true)
		first() // twice: it is another's by now
		ready("while the second has the turn", false)
		time.Sleep(2*time.Second - time.Nanosecond)
		ready("before the turn runs out", false)
		time.Sleep(time.Nanosecond)
		third := ready("after the turn ran out", true)
		second()
		ready("while the third has the turn", false)
		third()

		// A trial whose caller hung up decides nothing: the next one may.
		l.set(silent)
		ready("for the one who hangs up", true)
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		go func() {
			time.Sleep(time.Second)
			cancel()
		}()
		_, err := b.client.Create(ctx, seat)
		wantErr(t, "Create", err, booking.ErrInDoubt)
		time.Sleep(2 * time.Second)
		ready("after the trial's caller hung up", true)()

		// So does a refusal of the one order: the gateway has answered.
		l.set(says(200, `{"statusCode":"2031"}`))
		_ = b.create(t)
		b.wantOpen(t, "after the trial was answered", false)
	})
}

func TestBreaker_TurnEndsWithItsTrial(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := &line{do: says(500, "")}
		b := newBench(t, "http://gateway.example", &http.Client{Transport: l}, func(c *paygate.Config) {
			c.BreakerFailures, c.BreakerPause = 1, 100*time.Millisecond // shorter than a turn
		})
		_ = b.create(t)
		for range 3 {
			time.Sleep(100*time.Millisecond + time.Nanosecond)
			if got := b.crowd(t, 10); got != 1 {
				t.Errorf("%d of 10 were let through after the pause, want 1", got)
			}
		}
	})
}

func TestBreaker_StandsBeforeCreateAlone(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b, l := newLine(t)
		// Failures of the others do not open it.
		l.set(says(500, ""))
		for range 5 {
			_, _ = b.client.Execute(t.Context(), "TR1")
			_, _ = b.client.Query(t.Context(), "TR1")
			_, _ = b.client.Refund(t.Context(), refundOrder)
		}
		b.wantOpen(t, "after failures of other calls", false)
		for range 3 {
			_ = b.create(t)
		}
		b.wantOpen(t, "after failed creates", true)
		// Nor does it keep them, and their successes do not close it.
		l.set(says(200, completed(nil)))
		if ch, err := b.client.Execute(t.Context(), "TR1"); err != nil || ch.Status != booking.ChargeCompleted {
			t.Errorf("Execute: got %+v, %v; want completed", ch, err)
		}
		if ch, err := b.client.Query(t.Context(), "TR1"); err != nil || ch.Status != booking.ChargeCompleted {
			t.Errorf("Query: got %+v, %v; want completed", ch, err)
		}
		if a, err := b.client.Search(t.Context(), "CK250NROQ5"); err != nil || !a.Completed {
			t.Errorf("Search: got %+v, %v; want completed", a, err)
		}
		l.set(says(200, refunded(nil)))
		if a, err := b.client.Refund(t.Context(), refundOrder); err != nil || !a.Done {
			t.Errorf("Refund: got %+v, %v; want done", a, err)
		}
		if a, err := b.client.RefundStatus(t.Context(), "TR1", "CK250NROQ5"); err != nil || !a.Done {
			t.Errorf("RefundStatus: got %+v, %v; want done", a, err)
		}
		b.wantOpen(t, "after successes of other calls", true)
		if got := strings.Count(b.log.String(), "gateway is out"); got != 1 {
			t.Errorf("log says %d times that the gateway is out, want once", got)
		}
	})
}

func TestBreaker_DefaultsAreTenFailuresAndFiveSeconds(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := &line{do: unreachable}
		b := newBench(t, "http://gateway.example", &http.Client{Transport: l})
		for range 9 {
			_ = b.create(t)
		}
		b.wantOpen(t, "after nine failures", false)
		_ = b.create(t)
		b.wantOpen(t, "after ten failures", true)
		time.Sleep(5 * time.Second)
		if _, err := b.client.Ready(); err == nil {
			t.Error("Ready within the pause: got leave, want none")
		}
		time.Sleep(time.Nanosecond)
		if _, err := b.client.Ready(); err != nil {
			t.Errorf("Ready after the pause: %v", err)
		}
	})
}
