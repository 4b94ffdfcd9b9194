package testenv

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"holdfast/internal/redisproc"
)

// Engine is a server program that plays Redis. Those that matter differ in what
// WAIT says of a connection that wrote nothing: up to Redis 7.0 it waits for
// every earlier write, since 7.2 and on Valkey for none.
type Engine struct {
	// Name is for subtests: Redis or Valkey.
	Name string
	// program is its path; "" when it is not installed.
	program string
}

// Engines are what every promise of the seat ledger is tested on: the
// redis-server on the PATH, which Debian has at 7.0, and the Valkey that `make
// setup` puts into the project's cache or, failing that, a valkey-server on the
// PATH.
func Engines() []Engine {
	redis := Engine{Name: "Redis"}
	if path, err := exec.LookPath("redis-server"); err == nil {
		redis.program = path
	}
	return []Engine{redis, {Name: "Valkey", program: valkeyServer()}}
}

// valkeyServer looks in the cache of the module that holds the working folder,
// which is where go test runs a test.
func valkeyServer() string {
	if root, ok := moduleRoot(); ok {
		if path, err := exec.LookPath(filepath.Join(root, ".cache", "valkey", "valkey-server")); err == nil {
			return path
		}
	}
	if path, err := exec.LookPath("valkey-server"); err == nil {
		return path
	}
	return ""
}

func moduleRoot() (string, bool) {
	dir, err := os.Getwd()
	if err != nil {
		return "", false
	}
	for {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return dir, true
		}
		parent := filepath.Dir(dir)
		if parent == dir {
			return "", false
		}
		dir = parent
	}
}

// OnEngines runs the test once on each engine, one after the other. On a machine
// without one of them that run is skipped with a message, or fails with CI=true.
func OnEngines(t *testing.T, fn func(t *testing.T, e Engine)) {
	t.Helper()
	for _, e := range Engines() {
		t.Run(e.Name, func(t *testing.T) {
			e.Need(t)
			fn(t, e)
		})
	}
}

// Need skips the test where the engine is not installed, and fails it there with
// CI=true.
func (e Engine) Need(t testing.TB) {
	t.Helper()
	if e.program == "" {
		missing(t, e.Name)
	}
}

// Redis starts a single server without replicas.
func (e Engine) Redis(t testing.TB) *redisproc.Server {
	t.Helper()
	e.Need(t)
	return e.start(t, "")
}

// Pair starts a primary and one replica that is online.
func (e Engine) Pair(t testing.TB) *redisproc.Pair {
	t.Helper()
	return e.Replicated(t, 1)
}

// Replicated starts a primary and that many replicas, all online; production
// has two.
func (e Engine) Replicated(t testing.TB, replicas int) *redisproc.Pair {
	t.Helper()
	e.Need(t)
	ctx, cancel := context.WithTimeout(t.Context(), startWithin)
	defer cancel()
	p, err := redisproc.StartPairOf(ctx, redisproc.Options{Program: e.program, Dir: t.TempDir()}, replicas)
	if err != nil {
		t.Fatalf("start a primary with %d replicas on %s: %v", replicas, e.Name, err)
	}
	t.Cleanup(p.Stop)
	return p
}

func (e Engine) start(t testing.TB, replicaOf string) *redisproc.Server {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), startWithin)
	defer cancel()
	s, err := redisproc.Start(ctx, redisproc.Options{Program: e.program, Dir: t.TempDir(), ReplicaOf: replicaOf})
	if err != nil {
		t.Fatalf("start %s: %v", e.Name, err)
	}
	t.Cleanup(s.Stop)
	return s
}
