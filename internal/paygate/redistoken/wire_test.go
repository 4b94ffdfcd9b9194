package redistoken_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/redis/go-redis/v9"

	"holdfast/internal/booking"
	"holdfast/internal/paygate"
	"holdfast/internal/paygate/redistoken"
	"holdfast/internal/testenv"
)

// wireGateway is a gateway on the network: it counts grants, and takes the token
// of the last one until it is told to forget it.
type wireGateway struct {
	mu     sync.Mutex
	grants int
	inside int
	most   int           // grants at once
	hold   chan struct{} // a grant waits for it
	fail   bool          // a grant is answered with HTTP 500
	good   string        // the token that calls are let in with
	calls  int           // other than grants
}

func (g *wireGateway) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if !strings.HasSuffix(r.URL.Path, "/token/grant") {
		g.mu.Lock()
		g.calls++
		in := r.Header.Get("Authorization") == g.good
		g.mu.Unlock()
		if !in {
			w.WriteHeader(http.StatusUnauthorized)
			_, _ = io.WriteString(w, `{"message":"Unauthorized"}`)
			return
		}
		_, _ = io.WriteString(w, `{"statusCode":"0000","paymentID":"TR1","transactionStatus":"Initiated"}`)
		return
	}
	g.mu.Lock()
	g.grants++
	g.inside++
	g.most = max(g.most, g.inside)
	hold := g.hold
	g.mu.Unlock()
	<-hold
	g.mu.Lock()
	defer g.mu.Unlock()
	g.inside--
	if g.fail {
		w.WriteHeader(http.StatusInternalServerError)
		return
	}
	g.good = token(g.grants)
	_, _ = fmt.Fprintf(w, `{"statusCode":"0000","id_token":%q,"token_type":"Bearer","expires_in":3600,"refresh_token":"refresh-secret"}`, g.good)
}

// begin sets what the next grant meets; the grant waits until release is called.
func (g *wireGateway) begin(fail bool) (release func()) {
	g.mu.Lock()
	defer g.mu.Unlock()
	hold := make(chan struct{})
	g.hold, g.fail = hold, fail
	return func() { close(hold) }
}

func (g *wireGateway) figures() (grants, most, calls int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.grants, g.most, g.calls
}

func (g *wireGateway) wantGrants(t *testing.T, when string, want int) {
	t.Helper()
	if got, most, _ := g.figures(); got != want || most > 1 {
		t.Errorf("%s: %d grants, at most %d at once; want %d, one at once", when, got, most, want)
	}
}

// instance is one process of the fleet with the real client before it.
func (g *wireGateway) instance(t *testing.T, redisAddr, base string) *paygate.Client {
	t.Helper()
	hc := paygate.NewHTTPClient(200)
	rdb := redis.NewClient(&redis.Options{Addr: redisAddr})
	granter, err := paygate.NewGranter(base, paygate.Credentials{AppKey: "app-key", AppSecret: "app-word", Username: "user", Password: "pass-word"}, hc)
	if err != nil {
		t.Fatal(err)
	}
	log := slog.New(slog.DiscardHandler)
	source, err := redistoken.New(rdb, granter, account, time.Now, log, prometheus.NewRegistry())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		source.Close()
		_ = rdb.Close()
		hc.CloseIdleConnections()
	})
	c, err := paygate.New(paygate.Config{BaseURL: base, AppKey: "app-key"}, source, hc, log, prometheus.NewRegistry())
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// callers have n questions asked over the instances at once. Every tenth is in a
// hurry: its deadline is short.
func callers(t *testing.T, n int, clients []*paygate.Client, during func()) (patient, hurried []error) {
	t.Helper()
	const hurry = 250 * time.Millisecond
	errs := make([]error, n)
	took := make([]time.Duration, n)
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() {
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
			defer cancel()
			if i%10 == 0 {
				ctx, cancel = context.WithTimeout(ctx, hurry)
				defer cancel()
			}
			began := time.Now()
			_, errs[i] = clients[i%len(clients)].Query(ctx, "TR1")
			took[i] = time.Since(began)
		})
	}
	during()
	wg.Wait()
	for i, err := range errs {
		if i%10 != 0 {
			patient = append(patient, err)
			continue
		}
		hurried = append(hurried, err)
		if took[i] > hurry+5*time.Second { // far below the patient ones' deadline; a busy machine may add to it
			t.Errorf("caller %d took %s, want no more than its deadline of %s", i, took[i], hurry)
		}
	}
	return patient, hurried
}

// wantNone: the patient hear that nothing was sent; the hurried that, or their
// deadline.
func wantNone(t *testing.T, when string, patient, hurried []error) {
	t.Helper()
	for i, err := range patient {
		if !errors.Is(err, booking.ErrNotSent) || errors.Is(err, booking.ErrInDoubt) {
			t.Fatalf("%s: patient caller %d got %v, want nothing sent", when, i, err)
		}
	}
	for i, err := range hurried {
		if !errors.Is(err, booking.ErrNotSent) && !errors.Is(err, context.DeadlineExceeded) {
			t.Fatalf("%s: hurried caller %d got %v, want nothing sent or the deadline", when, i, err)
		}
	}
}

// Case 24 over the wire, on a real Redis: no token and a slow grant, then a
// token that the gateway refuses with 401 and a grant that fails, then callers
// who would all like a third.
func TestTokenStampede_OverTheWire(t *testing.T) {
	t.Parallel()
	g := &wireGateway{}
	srv := httptest.NewServer(g)
	t.Cleanup(srv.Close)
	addr := testenv.Redis(t).Addr()
	clients := []*paygate.Client{g.instance(t, addr, srv.URL), g.instance(t, addr, srv.URL), g.instance(t, addr, srv.URL)}

	release := g.begin(false)
	patient, hurried := callers(t, 500, clients, func() {
		until(t, "a grant is at work", func() bool { n, _, _ := g.figures(); return n == 1 })
		// Slow: those in a hurry are gone before it ends.
		hold := time.NewTimer(time.Second)
		defer hold.Stop()
		<-hold.C
		release()
	})
	for i, err := range patient {
		if err != nil {
			t.Fatalf("slow grant: patient caller %d got %v, want an answer", i, err)
		}
	}
	for i, err := range hurried {
		if !errors.Is(err, booking.ErrNotSent) || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("slow grant: hurried caller %d got %v, want its deadline, and nothing sent", i, err)
		}
	}
	g.wantGrants(t, "no token", 1)

	// The gateway forgets the token. All are refused, one asks for another, in
	// vain; each ends as not sent, and none makes its call more than twice.
	g.mu.Lock()
	g.good = "forgotten"
	before := g.calls
	g.mu.Unlock()
	release = g.begin(true)
	patient, hurried = callers(t, 500, clients, func() {
		until(t, "a second grant is at work", func() bool { n, _, _ := g.figures(); return n == 2 })
		release()
	})
	wantNone(t, "failing grant", patient, hurried)
	g.wantGrants(t, "a token refused and a failing grant", 2)
	if _, _, calls := g.figures(); calls-before > 2*500 {
		t.Errorf("%d calls of 500 callers, want no more than two each", calls-before)
	}

	// The gateway would grant again, and must not be asked within the hour, also
	// when the pause after the failure is over.
	rdb := redis.NewClient(&redis.Options{Addr: addr})
	defer rdb.Close()
	if n, err := rdb.Del(t.Context(), pauseKey).Result(); err != nil || n != 1 {
		t.Fatalf("end the pause: %d keys, %v; want one", n, err)
	}
	release = g.begin(false)
	release()
	patient, hurried = callers(t, 500, clients, func() {})
	wantNone(t, "a third wish", patient, hurried)
	g.wantGrants(t, "a third within the hour", 2)
}
