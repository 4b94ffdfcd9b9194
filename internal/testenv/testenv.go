// Package testenv gives tests what the system runs against: real Redis servers,
// an in-process one, and a network that fails on demand. It is imported by
// tests only.
//
// Every call starts servers of its own, empty and stopped with the test: a
// server costs 20 ms and a pair 0.2 s, and a test may then freeze or kill what
// it was given. Where no server program is installed such tests are skipped
// with a message; with CI=true in the environment they fail instead, so that a
// missing server cannot pass unseen. OnEngines runs a test on both engines that
// matter; everything else takes the redis-server on the PATH.
package testenv

import (
	"os"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"

	"holdfast/internal/redisproc"
)

// startWithin bounds the start of servers on a busy machine.
const startWithin = 30 * time.Second

// anyEngine is what tests run on that do not care.
func anyEngine(t testing.TB) Engine {
	t.Helper()
	NeedServer(t)
	path, _ := redisproc.Find()
	return Engine{Name: "redis", program: path}
}

// Redis starts a single server without replicas.
func Redis(t testing.TB) *redisproc.Server {
	t.Helper()
	return anyEngine(t).Redis(t)
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
	return anyEngine(t).Replicated(t, replicas)
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

// NeedServer skips the test where no server program is on the PATH, and fails it
// there with CI=true.
func NeedServer(t testing.TB) {
	t.Helper()
	if _, ok := redisproc.Find(); !ok {
		missing(t, "redis-server")
	}
}

func missing(t testing.TB, what string) {
	t.Helper()
	if os.Getenv("CI") == "true" {
		t.Fatalf("%s is not installed (`make setup` does it), and with CI=true this test must run", what)
	}
	t.Skipf("NOT TESTED AGAINST A REAL REDIS: %s is not installed; `make setup` does it", what)
}
