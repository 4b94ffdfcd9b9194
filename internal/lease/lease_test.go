package lease_test

import (
	"context"
	"errors"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
	"go.uber.org/goleak"

	"holdfast/internal/lease"
	"holdfast/internal/testenv"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	key    = "{sale}:lock:reconciler"
	length = 10 * time.Second
	trust  = 8 * time.Second // length minus the margin of a fifth
)

func client(t *testing.T, addr string) *redis.Client {
	t.Helper()
	rdb := redis.NewClient(&redis.Options{
		Addr: addr, Protocol: 2, DisableIdentity: true, MaxRetries: -1, DialerRetries: 1,
		PipelinePoolSize: -1, ContextTimeoutEnabled: true,
		DialTimeout: time.Second, ReadTimeout: 5 * time.Second,
		MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
	})
	t.Cleanup(func() { _ = rdb.Close() })
	return rdb
}

// clock is a time that moves by hand.
type clock struct {
	mu sync.Mutex
	at time.Time
}

func newClock() *clock { return &clock{at: time.Unix(1_800_000_000, 0)} }

func (c *clock) now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.at
}

func (c *clock) advance(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.at = c.at.Add(d)
}

// after is called behind every answer of Redis.
type after func()

func (f after) DialHook(next redis.DialHook) redis.DialHook { return next }

func (f after) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		err := next(ctx, cmd)
		f()
		return err
	}
}

func (f after) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

// onBoth runs the test on the in-process server and on a real one.
func onBoth(t *testing.T, test func(t *testing.T, rdb *redis.Client)) {
	t.Helper()
	t.Run("Miniredis", func(t *testing.T) { test(t, client(t, testenv.Mini(t))) })
	t.Run("Redis", func(t *testing.T) { test(t, client(t, testenv.Redis(t).Addr())) })
}

func mustAcquire(t *testing.T, l *lease.Lease) lease.Term {
	t.Helper()
	term, ok, err := l.Acquire(t.Context())
	if err != nil || !ok {
		t.Fatalf("Acquire: got %v, %v, want elected", ok, err)
	}
	return term
}

func TestTerm_EdgesOfTrust(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name  string
		after time.Duration // since the attempt began
		want  bool
	}{
		{"when the attempt began", 0, true},
		{"just before the margin", trust - time.Nanosecond, true},
		{"at the margin", trust, false},
		{"while only the key stands", length - time.Nanosecond, false},
		{"when the key is gone", length, false},
	} {
		for _, answer := range []time.Duration{0, 3 * time.Second} {
			clk := newClock()
			began := clk.now()
			rdb := client(t, testenv.Mini(t))
			rdb.AddHook(after(func() { clk.advance(answer) }))
			term := mustAcquire(t, lease.New(rdb, key, length, clk.now))
			at := began.Add(c.after)
			if got := term.Valid(at); got != c.want {
				t.Errorf("term %s, answered after %s: got valid %v, want %v", c.name, answer, got, c.want)
			}
			if got := term.Left(at); (got > 0) != c.want {
				t.Errorf("term %s, answered after %s: got %s left, want it to agree with valid %v", c.name, answer, got, c.want)
			}
		}
	}
	if (lease.Term{}).Valid(time.Unix(0, 0)) {
		t.Error("zero term: got valid, want never valid")
	}
}

func TestAcquire_OnlyOneIsElectedUntilReleased(t *testing.T) {
	t.Parallel()
	onBoth(t, func(t *testing.T, rdb *redis.Client) {
		a := lease.New(rdb, key, length, time.Now)
		b := lease.New(rdb, key, length, time.Now)
		term := mustAcquire(t, a)
		if _, ok, err := b.Acquire(t.Context()); ok || err != nil {
			t.Errorf("Acquire of a held lease: got %v, %v, want refused without an error", ok, err)
		}
		if _, ok, err := a.Acquire(t.Context()); ok || err != nil {
			t.Errorf("second Acquire by the same process: got %v, %v, want refused without an error", ok, err)
		}
		for range 2 {
			if err := a.Release(t.Context(), term); err != nil {
				t.Errorf("Release: got %v, want nil, also repeated", err)
			}
		}
		mustAcquire(t, b)
	})
}

func TestRenew_GivesKeyAndTrustTheirWholeLengthAgain(t *testing.T) {
	t.Parallel()
	onBoth(t, func(t *testing.T, rdb *redis.Client) {
		clk := newClock()
		l := lease.New(rdb, key, length, clk.now)
		term := mustAcquire(t, l)
		if err := rdb.PExpire(t.Context(), key, time.Second).Err(); err != nil {
			t.Fatalf("PEXPIRE: got %v, want nil", err)
		}
		clk.advance(trust - time.Second)
		renewed, err := l.Renew(t.Context(), term)
		if err != nil {
			t.Fatalf("Renew: got %v, want nil", err)
		}
		if got := renewed.Left(clk.now()); got != trust {
			t.Errorf("trust after Renew: got %s, want %s", got, trust)
		}
		ttl, err := rdb.PTTL(t.Context(), key).Result()
		if err != nil || ttl < trust || ttl > length {
			t.Errorf("life of the key after Renew: got %s, %v, want up to %s", ttl, err, length)
		}
	})
}

func TestLost_NeitherRenewsNorEndsAnothersTerm(t *testing.T) {
	t.Parallel()
	for name, lose := range map[string]func(context.Context, *redis.Client, *lease.Lease) error{
		"Expired": func(ctx context.Context, rdb *redis.Client, _ *lease.Lease) error {
			return rdb.Del(ctx, key).Err()
		},
		"Another's": func(ctx context.Context, rdb *redis.Client, other *lease.Lease) error {
			if err := rdb.Del(ctx, key).Err(); err != nil {
				return err
			}
			_, _, err := other.Acquire(ctx)
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			onBoth(t, func(t *testing.T, rdb *redis.Client) {
				l := lease.New(rdb, key, length, time.Now)
				term := mustAcquire(t, l)
				if err := lose(t.Context(), rdb, lease.New(rdb, key, length, time.Now)); err != nil {
					t.Fatalf("lose the key: got %v, want nil", err)
				}
				before := rdb.Get(t.Context(), key).Val()
				got, err := l.Renew(t.Context(), term)
				if !errors.Is(err, lease.ErrLost) {
					t.Errorf("Renew of a lost term: got %v, want ErrLost", err)
				}
				if got.Valid(time.Now()) {
					t.Error("term after ErrLost: got valid, want not")
				}
				if err := l.Release(t.Context(), term); err != nil {
					t.Errorf("Release of a lost term: got %v, want nil", err)
				}
				if after := rdb.Get(t.Context(), key).Val(); after != before {
					t.Errorf("key after Renew and Release of a lost term: got %q, want it untouched: %q", after, before)
				}
			})
		})
	}
}

func TestAcquire_KeyExpiresByItself(t *testing.T) {
	t.Parallel()
	m := miniredis.RunT(t)
	l := lease.New(client(t, m.Addr()), key, length, time.Now)
	mustAcquire(t, l)
	m.FastForward(length - time.Millisecond)
	if _, ok, err := l.Acquire(t.Context()); ok || err != nil {
		t.Errorf("Acquire just before the key expires: got %v, %v, want refused", ok, err)
	}
	m.FastForward(time.Millisecond)
	mustAcquire(t, l)
}

// The client repeats a command whose reply was lost. The repeat must find that
// the key is its own.
func TestAcquire_RepeatAfterALostReplyIsElected(t *testing.T) {
	t.Parallel()
	p := testenv.Proxy(t, testenv.Redis(t).Addr())
	rdb := redis.NewClient(&redis.Options{
		Addr: p.Addr(), Protocol: 2, DisableIdentity: true, MaxRetries: 3,
		PipelinePoolSize: -1, ReadTimeout: 100 * time.Millisecond,
		MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
		Dialer: func(ctx context.Context, network, addr string) (net.Conn, error) {
			p.Forward() // the repeat comes over a new connection
			return (&net.Dialer{}).DialContext(ctx, network, addr)
		},
	})
	t.Cleanup(func() { _ = rdb.Close() })
	l := lease.New(rdb, key, length, time.Now)
	other := lease.New(rdb, "other", length, time.Now)
	mustAcquire(t, other) // the script is known, the connection is open
	p.DropReplies()
	mustAcquire(t, l)
	if ttl := rdb.PTTL(t.Context(), key).Val(); ttl <= 0 || ttl > length {
		t.Errorf("life of the key: got %s, want up to %s", ttl, length)
	}
}

func TestWithoutRedis_NobodyIsElectedAndTheTermStandsUntilItsEnd(t *testing.T) {
	t.Parallel()
	m := miniredis.RunT(t)
	l := lease.New(client(t, m.Addr()), key, length, time.Now)
	term := mustAcquire(t, l)
	m.SetError("LOADING")
	if _, ok, err := l.Acquire(t.Context()); ok || err == nil {
		t.Errorf("Acquire without Redis: got %v, %v, want an error", ok, err)
	}
	got, err := l.Renew(t.Context(), term)
	if err == nil || errors.Is(err, lease.ErrLost) {
		t.Errorf("Renew without Redis: got %v, want an error other than ErrLost", err)
	}
	if got != term {
		t.Errorf("term after a Renew that was not answered: got %v, want it unchanged: %v", got, term)
	}
	if err := l.Release(t.Context(), term); err == nil {
		t.Error("Release without Redis: got nil, want an error")
	}
}
