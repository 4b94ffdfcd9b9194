package testenv_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
	"go.uber.org/goleak"

	"holdfast/internal/testenv"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// echo answers every line with itself and counts the lines it got.
type echo struct {
	addr  string
	lines atomic.Int64
	got   chan string
}

func newEcho(t *testing.T) *echo {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatalf("listen: got %v, want nil", err)
	}
	e := &echo{addr: l.Addr().String(), got: make(chan string, 16)}
	var work sync.WaitGroup
	work.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			work.Go(func() {
				defer c.Close()
				r := bufio.NewReader(c)
				for {
					line, err := r.ReadString('\n')
					if err != nil {
						return
					}
					e.lines.Add(1)
					e.got <- line
					if _, err := io.WriteString(c, line); err != nil {
						return
					}
				}
			})
		}
	})
	t.Cleanup(func() {
		l.Close()
		work.Wait()
	})
	return e
}

// caller is a client connection with a deadline on everything.
type caller struct {
	t *testing.T
	net.Conn
	r *bufio.Reader
}

func call(t *testing.T, addr string) *caller {
	t.Helper()
	var d net.Dialer
	c, err := d.DialContext(t.Context(), "tcp", addr)
	if err != nil {
		t.Fatalf("connect: got %v, want nil", err)
	}
	t.Cleanup(func() { c.Close() })
	return &caller{t: t, Conn: c, r: bufio.NewReader(c)}
}

func (c *caller) ask(line string, patience time.Duration) (string, error) {
	c.t.Helper()
	if err := c.SetDeadline(time.Now().Add(patience)); err != nil {
		c.t.Fatalf("set deadline: got %v, want nil", err)
	}
	if _, err := io.WriteString(c, line+"\n"); err != nil {
		return "", err
	}
	got, err := c.r.ReadString('\n')
	return strings.TrimSpace(got), err
}

func (c *caller) mustAsk(line string) {
	c.t.Helper()
	if got, err := c.ask(line, 10*time.Second); err != nil || got != line {
		c.t.Errorf("reply to %q: got %q, %v, want the line back", line, got, err)
	}
}

func TestProxy_Forwards(t *testing.T) {
	t.Parallel()
	e := newEcho(t)
	c := call(t, testenv.Proxy(t, e.addr).Addr())
	c.mustAsk("one")
	c.mustAsk("two")
}

func TestProxy_DelayHoldsTheReplyNotTheRequest(t *testing.T) {
	t.Parallel()
	e := newEcho(t)
	p := testenv.Proxy(t, e.addr)
	c := call(t, p.Addr())
	p.Delay(time.Hour)
	if got, err := c.ask("one", 50*time.Millisecond); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("delayed reply: got %q, %v, want a timeout", got, err)
	}
	if line := <-e.got; line != "one\n" {
		t.Errorf("request upstream: got %q, want one", line)
	}
	p.Forward()
	if err := c.SetDeadline(time.Now().Add(10 * time.Second)); err != nil {
		t.Fatalf("set deadline: got %v, want nil", err)
	}
	if got, err := c.r.ReadString('\n'); err != nil || got != "one\n" {
		t.Errorf("reply once the delay is over: got %q, %v, want one", got, err)
	}
}

func TestProxy_DelayPassesTheReplyOnInTheEnd(t *testing.T) {
	t.Parallel()
	e := newEcho(t)
	p := testenv.Proxy(t, e.addr)
	p.Delay(20 * time.Millisecond)
	began := time.Now()
	call(t, p.Addr()).mustAsk("one")
	if took := time.Since(began); took < 20*time.Millisecond {
		t.Errorf("reply under a 20 ms delay: got it after %s", took)
	}
}

func TestProxy_CutEndsOpenConnectionsAndNewOnes(t *testing.T) {
	t.Parallel()
	e := newEcho(t)
	p := testenv.Proxy(t, e.addr)
	open := call(t, p.Addr())
	open.mustAsk("one")
	p.Cut()
	for name, c := range map[string]*caller{"open": open, "new": call(t, p.Addr())} {
		got, err := c.ask("two", 10*time.Second)
		if err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("%s connection after Cut: got %q, %v, want it closed", name, got, err)
		}
	}
	p.Forward()
	call(t, p.Addr()).mustAsk("three")
	if n := e.lines.Load(); n != 2 {
		t.Errorf("requests upstream: got %d, want 2 (none while cut)", n)
	}
}

func TestProxy_DropRepliesLetsTheRequestThrough(t *testing.T) {
	t.Parallel()
	e := newEcho(t)
	p := testenv.Proxy(t, e.addr)
	c := call(t, p.Addr())
	p.DropReplies()
	if got, err := c.ask("one", 50*time.Millisecond); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("dropped reply: got %q, %v, want a timeout", got, err)
	}
	if line := <-e.got; line != "one\n" {
		t.Errorf("request upstream: got %q, want one", line)
	}
}

func TestProxy_ConnectionThatLostAReplyStaysDeaf(t *testing.T) {
	t.Parallel()
	e := newEcho(t)
	p := testenv.Proxy(t, e.addr)
	c := call(t, p.Addr())
	p.DropReplies()
	if _, err := c.ask("one", 50*time.Millisecond); err == nil {
		t.Error("dropped reply: got an answer, want a timeout")
	}
	p.Forward()
	// Else the reply to "two" would be taken for that to "one".
	if got, err := c.ask("two", 50*time.Millisecond); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("the same connection after Forward: got %q, %v, want a timeout", got, err)
	}
	call(t, p.Addr()).mustAsk("three")
}

func TestProxy_UpstreamThatIsGoneClosesTheClient(t *testing.T) {
	t.Parallel()
	p := testenv.Proxy(t, "127.0.0.1:1")
	got, err := call(t, p.Addr()).ask("one", 10*time.Second)
	if err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("request to a missing upstream: got %q, %v, want the connection closed", got, err)
	}
}

func client(t *testing.T, addr string) *redis.Client {
	t.Helper()
	rdb := redis.NewClient(&redis.Options{
		Addr: addr, Protocol: 2, DisableIdentity: true,
		MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
	})
	t.Cleanup(func() { _ = rdb.Close() })
	return rdb
}

func TestServers_AreEmptyAndSeparate(t *testing.T) {
	t.Parallel()
	addrs := map[string]string{
		"mini": testenv.Mini(t), "another mini": testenv.Mini(t),
		"single": testenv.Redis(t).Addr(), "pair": testenv.Pair(t).Primary.Addr(),
	}
	for want := range int64(2) {
		for name, addr := range addrs {
			rdb := client(t, addr)
			if n, err := rdb.DBSize(t.Context()).Result(); err != nil || n != want {
				t.Errorf("keys of %s after %d writes: got %d, %v, want %d", name, want, n, err, want)
			}
			if err := rdb.Set(t.Context(), name, "1", 0).Err(); err != nil {
				t.Errorf("SET on %s: got %v, want nil", name, err)
			}
		}
	}
}

func TestReplicated_EveryReplicaAcknowledges(t *testing.T) {
	t.Parallel()
	p := testenv.Replicated(t, 2)
	if n := len(p.Replicas); n != 2 {
		t.Fatalf("replicas: got %d, want 2", n)
	}
	conn := client(t, p.Primary.Addr()).Conn()
	defer conn.Close()
	if err := conn.Set(t.Context(), "a", "1", 0).Err(); err != nil {
		t.Errorf("SET: got %v, want nil", err)
	}
	if n, err := conn.Wait(t.Context(), 2, 5*time.Second).Result(); err != nil || n != 2 {
		t.Errorf("WAIT: got %d, %v, want 2", n, err)
	}
}

// A machine without a server must be seen: skipped by hand, failed in CI.
func TestRedis_MissingServerSkipsByHandAndFailsInCI(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	for _, c := range []struct {
		ci      string
		skipped bool
	}{{"", true}, {"true", false}} {
		t.Setenv("CI", c.ci)
		r := record(t, func(tb testing.TB) { testenv.Redis(tb) })
		if r.skipped != c.skipped || r.failed == c.skipped {
			t.Errorf("CI=%q without a server: got skipped %v, failed %v, want skipped %v",
				c.ci, r.skipped, r.failed, c.skipped)
		}
	}
}

// recorder is a testing.TB that notes how a test would have ended.
type recorder struct {
	testing.TB
	skipped, failed bool
}

func record(t *testing.T, fn func(testing.TB)) *recorder {
	r := &recorder{TB: t}
	done := make(chan struct{})
	go func() { // Goexit below ends this goroutine, not the test
		defer close(done)
		fn(r)
	}()
	select {
	case <-done:
	case <-t.Context().Done():
		t.Fatal(context.Cause(t.Context()))
	}
	return r
}

func (r *recorder) Helper() {}

func (r *recorder) Skipf(string, ...any) {
	r.skipped = true
	runtime.Goexit()
}

func (r *recorder) Fatalf(string, ...any) {
	r.failed = true
	runtime.Goexit()
}

// What the system hands out by itself it may hand out again before the program that is
// meant to listen there has started.
func TestFreeAddr_IsNoneOfThoseThatTheSystemHandsOut(t *testing.T) {
	t.Parallel()
	handedOut, err := os.ReadFile("/proc/sys/net/ipv4/ip_local_port_range")
	if err != nil {
		t.Skipf("only Linux says which they are: %v", err)
	}
	var first, last int
	if _, err := fmt.Sscan(string(handedOut), &first, &last); err != nil {
		t.Fatal(err)
	}
	for range 100 {
		_, port, err := net.SplitHostPort(testenv.FreeAddr(t))
		if err != nil {
			t.Fatal(err)
		}
		if n, _ := strconv.Atoi(port); n < 1024 || first <= n && n <= last {
			t.Fatalf("port: got %s, want one of neither the system's own %d to %d nor those that need rights", port, first, last)
		}
	}
}
