package redistoken_test

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/redis/go-redis/v9"
	"go.uber.org/goleak"

	"holdfast/internal/paygate"
	"holdfast/internal/paygate/redistoken"
	"holdfast/internal/testenv"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const account = "shop"

// The account's keys; the tag begins the SHA-256 of its name.
const (
	tag        = "token:{8d9001d32c6a703d}:"
	currentKey = tag + "current"
	lockKey    = tag + "lock"
	grantsKey  = tag + "grants"
	pauseKey   = tag + "pause"
)

// fleet is a Redis, a clock that moves it and the processes, and a gateway.
type fleet struct {
	tb      testing.TB
	mini    *miniredis.Miniredis // nil when a real server is behind addr
	options *redis.Options
	gateway *gateway
	log     *lockedBuffer

	mu sync.Mutex
	at time.Time
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

// newFleet has a Redis whose clock the test moves.
func newFleet(tb testing.TB) *fleet {
	tb.Helper()
	m := miniredis.RunT(tb)
	f := &fleet{tb: tb, mini: m, options: &redis.Options{Addr: m.Addr()}, log: &lockedBuffer{},
		at: time.Date(2026, 12, 1, 4, 0, 0, 0, time.UTC)}
	m.SetTime(f.at)
	f.gateway = &gateway{now: f.now, lifetime: time.Hour}
	return f
}

// newRealFleet has a server of its own; its clock is the machine's.
func newRealFleet(tb testing.TB) *fleet {
	tb.Helper()
	f := &fleet{tb: tb, options: &redis.Options{Addr: testenv.Redis(tb).Addr()}, log: &lockedBuffer{}}
	f.gateway = &gateway{now: f.now, lifetime: time.Hour}
	return f
}

func (f *fleet) now() time.Time {
	if f.mini == nil {
		return time.Now()
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.at
}

func (f *fleet) advance(d time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.at = f.at.Add(d)
	f.mini.SetTime(f.at)
	f.mini.FastForward(d)
}

// process is one process of the fleet.
type process struct {
	*redistoken.Source
	rdb *redis.Client
	reg *prometheus.Registry
}

func (f *fleet) process(opts ...redistoken.Option) *process {
	f.tb.Helper()
	return f.processOf(account, opts...)
}

func (f *fleet) processOf(account string, opts ...redistoken.Option) *process {
	f.tb.Helper()
	o := *f.options
	o.MaxRetries = -1
	p := &process{rdb: redis.NewClient(&o), reg: prometheus.NewRegistry()}
	s, err := redistoken.New(p.rdb, f.gateway, account, f.now, slog.New(slog.NewJSONHandler(f.log, nil)), p.reg, opts...)
	if err != nil {
		f.tb.Fatalf("New: %v", err)
	}
	p.Source = s
	f.tb.Cleanup(func() {
		s.Close()
		_ = p.rdb.Close()
	})
	return p
}

// must gives the token of a call that must not fail.
func (p *process) must(tb testing.TB) string {
	tb.Helper()
	token, err := p.Token(tb.Context())
	if err != nil {
		tb.Errorf("Token: %v", err)
	}
	return token
}

// grants reads the process's metric.
func (p *process) grants(tb testing.TB) map[string]float64 {
	tb.Helper()
	families, err := p.reg.Gather()
	if err != nil {
		tb.Fatal(err)
	}
	got := map[string]float64{}
	for _, f := range families {
		for _, m := range f.Metric {
			if v := m.GetCounter().GetValue(); v != 0 {
				got[f.GetName()+" "+m.Label[0].GetValue()] = v
			}
		}
	}
	return got
}

// gateway counts what it is asked for.
type gateway struct {
	now      func() time.Time
	lifetime time.Duration

	mu     sync.Mutex
	calls  []time.Time
	inside int
	most   int                         // calls at once
	err    error                       // instead of a token
	during func(context.Context) error // while a call is being answered
}

func (g *gateway) Grant(ctx context.Context) (paygate.Grant, error) {
	g.mu.Lock()
	g.calls = append(g.calls, g.now())
	g.inside++
	g.most = max(g.most, g.inside)
	n, err, during := len(g.calls), g.err, g.during
	g.mu.Unlock()
	defer func() {
		g.mu.Lock()
		g.inside--
		g.mu.Unlock()
	}()
	if during != nil {
		if err := during(ctx); err != nil {
			return paygate.Grant{}, err
		}
	}
	if err != nil {
		return paygate.Grant{}, err
	}
	return paygate.Grant{IDToken: paygate.Secret(token(n)), RefreshToken: "refresh-secret", ExpiresIn: g.lifetime}, nil
}

// token is what the nth call is answered with.
func token(n int) string { return fmt.Sprintf("secret-%d", n) }

func (g *gateway) set(f func(*gateway)) {
	g.mu.Lock()
	defer g.mu.Unlock()
	f(g)
}

// asked tells how often the gateway was asked, and how often at once.
func (g *gateway) asked() (calls, most int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return len(g.calls), g.most
}

func (g *gateway) wantCalls(tb testing.TB, when string, want int) {
	tb.Helper()
	if got, most := g.asked(); got != want || most > 1 {
		tb.Errorf("%s: gateway asked %d times, at most %d at once; want %d times, one at once", when, got, most, want)
	}
}

// until polls for what another goroutine or process does, ten seconds at most.
func until(tb testing.TB, what string, so func() bool) {
	tb.Helper()
	ctx, cancel := context.WithTimeout(tb.Context(), 10*time.Second)
	defer cancel()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for !so() {
		select {
		case <-tick.C:
		case <-ctx.Done():
			tb.Fatalf("gave up waiting until %s", what)
		}
	}
}
