// Package testenv gives tests what the system runs against: real Redis servers,
// an in-process one, and a network that fails on demand. It is imported by
// tests only.
//
// Every call starts servers of its own, empty and stopped with the test: a
// server costs 20 ms and a pair 0.2 s, and a test may then freeze or kill what
// it was given. Where no server program is installed such tests are skipped
// with a message; with CI=true in the environment they fail instead, so that a
// missing server cannot pass unseen. To test another version or Valkey, put its
// redis-server first on the PATH.
package testenv

import (
	"context"
	"os"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"

	"holdfast/internal/redisproc"
)

// startWithin bounds the start of servers on a busy machine.
const startWithin = 30 * time.Second

// Redis starts a single server without replicas.
func Redis(t testing.TB) *redisproc.Server {
	t.Helper()
	NeedServer(t)
	ctx, cancel := context.WithTimeout(t.Context(), startWithin)
	defer cancel()
	s, err := redisproc.Start(ctx, redisproc.Options{Dir: t.TempDir()})
	if err != nil {
		t.Fatalf("start redis: %v", err)
	}
	t.Cleanup(s.Stop)
	return s
}

// Pair starts a primary and one replica that is online.
func Pair(t testing.TB) *redisproc.Pair {
	t.Helper()
	return Replicated(t, 1)
}

// Replicated starts a primary and that many replicas, all online; production
// has two.
func Replicated(t testing.TB, replicas int) *redisproc.Pair {
	t.Helper()
	NeedServer(t)
	ctx, cancel := context.WithTimeout(t.Context(), startWithin)
	defer cancel()
	p, err := redisproc.StartPair(ctx, t.TempDir(), replicas)
	if err != nil {
		t.Fatalf("start a redis primary with %d replicas: %v", replicas, err)
	}
	t.Cleanup(p.Stop)
	return p
}

// Mini starts an in-process Redis and returns its address. It has no
// replication: WAIT means nothing there.
func Mini(t testing.TB) string {
	t.Helper()
	m := miniredis.NewMiniRedis()
	if err := m.Start(); err != nil {
		t.Fatalf("start in-process redis: %v", err)
	}
	t.Cleanup(m.Close)
	return m.Addr()
}

// NeedServer skips the test where no server program is installed, and fails it
// there with CI=true.
func NeedServer(t testing.TB) {
	t.Helper()
	if _, ok := redisproc.Find(); ok {
		return
	}
	const what = "redis-server is not on the PATH: `make setup` installs it"
	if os.Getenv("CI") == "true" {
		t.Fatalf("%s, and with CI=true this test must run", what)
	}
	t.Skipf("NOT TESTED AGAINST A REAL REDIS: %s", what)
}
