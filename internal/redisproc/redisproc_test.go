package redisproc_test

import (
	"context"
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
	"go.uber.org/goleak"

	"holdfast/internal/redisproc"
)

func TestMain(m *testing.M) {
	// The re-executed child of the parent-death test runs no tests.
	if dir := os.Getenv(orphanDir); dir != "" {
		os.Exit(beOrphaned(dir))
	}
	goleak.VerifyTestMain(m)
}

// needServer skips where no server program is installed; continuous
// integration must have one.
func needServer(t *testing.T) {
	t.Helper()
	if _, ok := redisproc.Find(); ok {
		return
	}
	if os.Getenv("CI") == "true" {
		t.Fatal("no redis-server on the PATH, and CI=true")
	}
	t.Skip("no redis-server on the PATH")
}

// budget bounds everything that waits for a process.
func budget(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	t.Cleanup(cancel)
	return ctx
}

func start(t *testing.T, o redisproc.Options) *redisproc.Server {
	t.Helper()
	needServer(t)
	if o.Dir == "" {
		o.Dir = t.TempDir()
	}
	s, err := redisproc.Start(budget(t), o)
	if err != nil {
		t.Fatalf("Start: got %v, want a running server", err)
	}
	t.Cleanup(s.Stop)
	return s
}

func client(t *testing.T, s *redisproc.Server) *redis.Client {
	t.Helper()
	rdb := redis.NewClient(&redis.Options{
		Addr: s.Addr(), Protocol: 2, PipelinePoolSize: -1, MaxRetries: -1, DialerRetries: 1,
		ReadTimeout: 2 * time.Second, ContextTimeoutEnabled: true, DisableIdentity: true,
		MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
	})
	t.Cleanup(func() { _ = rdb.Close() })
	return rdb
}

func TestStart_ServerKeepsNothingOnDisk(t *testing.T) {
	t.Parallel()
	s := start(t, redisproc.Options{})
	rdb := client(t, s)
	ctx := budget(t)
	for name, want := range map[string]string{
		"save": "", "appendonly": "no", "maxmemory-policy": "noeviction",
	} {
		got, err := rdb.ConfigGet(ctx, name).Result()
		if err != nil || got[name] != want {
			t.Errorf("config %s: got %q, %v, want %q", name, got[name], err, want)
		}
	}
}

func TestStop_LeavesNothingInTheFolder(t *testing.T) {
	t.Parallel()
	needServer(t)
	dir := t.TempDir()
	p, err := redisproc.StartPair(budget(t), dir, 1)
	if err != nil {
		t.Fatalf("StartPair: got %v, want a running pair", err)
	}
	t.Cleanup(p.Stop)
	if n := acked(t, p.Primary, 1, 5*time.Second); n != 1 {
		t.Errorf("acknowledgements: got %d, want 1", n)
	}
	p.Stop()
	left, err := os.ReadDir(dir)
	if err != nil || len(left) != 0 {
		t.Errorf("folder after the servers: got %v, %v, want it empty", left, err)
	}
}

func TestStart_ArgumentsWinOverDefaults(t *testing.T) {
	t.Parallel()
	s := start(t, redisproc.Options{Args: []string{"--maxmemory-policy", "allkeys-lru"}})
	got, err := client(t, s).ConfigGet(budget(t), "maxmemory-policy").Result()
	if err != nil || got["maxmemory-policy"] != "allkeys-lru" {
		t.Errorf("maxmemory-policy: got %v, %v, want allkeys-lru", got, err)
	}
}

func TestStart_RefusedArgumentIsToldWithTheServersOwnWords(t *testing.T) {
	t.Parallel()
	needServer(t)
	_, err := redisproc.Start(budget(t), redisproc.Options{
		Dir: t.TempDir(), Args: []string{"--no-such-setting", "1"},
	})
	if err == nil || !strings.Contains(err.Error(), "no-such-setting") {
		t.Errorf("Start with an unknown setting: got %v, want an error that quotes the log", err)
	}
}

func TestStart_EndsWithItsContext(t *testing.T) {
	t.Parallel()
	needServer(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := redisproc.Start(ctx, redisproc.Options{Dir: t.TempDir()})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("Start with a cancelled context: got %v, want it to wrap context.Canceled", err)
	}
}

func TestStop_IsSafeToRepeatAndEndsAFrozenServer(t *testing.T) {
	t.Parallel()
	s := start(t, redisproc.Options{})
	if err := s.Freeze(); err != nil {
		t.Fatalf("Freeze: got %v, want nil", err)
	}
	s.Stop()
	s.Stop()
	s.Kill()
	if err := dialOnce(budget(t), s.Addr()); err == nil {
		t.Error("connect after Stop: got a connection, want an error")
	}
	if err := s.Freeze(); err == nil {
		t.Error("Freeze after Stop: got nil, want an error")
	}
}

func pair(t *testing.T, replicas int) *redisproc.Pair {
	t.Helper()
	needServer(t)
	p, err := redisproc.StartPair(budget(t), t.TempDir(), replicas)
	if err != nil {
		t.Fatalf("StartPair: got %v, want a running pair", err)
	}
	t.Cleanup(p.Stop)
	return p
}

// acked writes one key and says how many replicas acknowledged it within limit.
func acked(t *testing.T, s *redisproc.Server, replicas int, limit time.Duration) int64 {
	t.Helper()
	conn := client(t, s).Conn()
	defer conn.Close()
	if err := conn.Incr(budget(t), "n").Err(); err != nil {
		t.Fatalf("INCR: got %v, want nil", err)
	}
	n, err := conn.Wait(budget(t), replicas, limit).Result()
	if err != nil {
		t.Fatalf("WAIT: got %v, want nil", err)
	}
	return n
}

func TestStartPair_FirstWriteIsAcknowledgedByEveryReplica(t *testing.T) {
	t.Parallel()
	p := pair(t, 2)
	if n := acked(t, p.Primary, 2, 5*time.Second); n != 2 {
		t.Errorf("acknowledgements: got %d, want 2", n)
	}
}

func TestFreeze_StopsAcknowledgementsUntilThaw(t *testing.T) {
	t.Parallel()
	p := pair(t, 1)
	if err := p.Replicas[0].Freeze(); err != nil {
		t.Fatalf("Freeze: got %v, want nil", err)
	}
	if n := acked(t, p.Primary, 1, 100*time.Millisecond); n != 0 {
		t.Errorf("acknowledgements from a frozen replica: got %d, want 0", n)
	}
	if err := p.Replicas[0].Thaw(); err != nil {
		t.Fatalf("Thaw: got %v, want nil", err)
	}
	if n := acked(t, p.Primary, 1, 5*time.Second); n != 1 {
		t.Errorf("acknowledgements after Thaw: got %d, want 1", n)
	}
}

func TestPromote_ReplicaTakesOverWithTheData(t *testing.T) {
	t.Parallel()
	p := pair(t, 2)
	if n := acked(t, p.Primary, 2, 5*time.Second); n != 2 {
		t.Fatalf("acknowledgements: got %d, want 2", n)
	}
	p.Primary.Kill()
	heir, other := p.Replicas[0], p.Replicas[1]
	if err := client(t, heir).Set(budget(t), "a", "1", 0).Err(); err == nil {
		t.Error("SET on a replica: got nil, want READONLY")
	}
	if err := heir.Promote(budget(t)); err != nil {
		t.Fatalf("Promote: got %v, want nil", err)
	}
	if got, err := client(t, heir).Get(budget(t), "n").Result(); err != nil || got != "1" {
		t.Errorf("the acknowledged key after the failover: got %q, %v, want 1", got, err)
	}
	if err := other.Follow(budget(t), heir.Addr()); err != nil {
		t.Fatalf("Follow: got %v, want nil", err)
	}
	if n := acked(t, heir, 1, 5*time.Second); n != 1 {
		t.Errorf("acknowledgements for the new primary: got %d, want 1", n)
	}
}

func TestStartPair_UnreachablePrimaryIsAnError(t *testing.T) {
	t.Parallel()
	needServer(t)
	ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
	defer cancel()
	_, err := redisproc.Start(ctx, redisproc.Options{Dir: t.TempDir(), ReplicaOf: "127.0.0.1:1"})
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Start of a replica without a primary: got %v, want it to wrap context.DeadlineExceeded", err)
	}
}
