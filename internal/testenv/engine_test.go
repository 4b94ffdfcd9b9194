package testenv_test

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"holdfast/internal/testenv"
)

func TestProxy_RetargetLeadsNewConnectionsElsewhere(t *testing.T) {
	t.Parallel()
	first, second := newEcho(t), newEcho(t)
	p := testenv.Proxy(t, first.addr)
	open := call(t, p.Addr())
	open.mustAsk("one")
	p.Retarget(second.addr)
	open.mustAsk("two")
	call(t, p.Addr()).mustAsk("three")
	p.Reset()
	if got, err := open.ask("four", 10*time.Second); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("after Reset: got %q, %v, want the connection closed", got, err)
	}
	if a, b := first.lines.Load(), second.lines.Load(); a != 2 || b != 1 {
		t.Errorf("lines: got %d at the first upstream and %d at the second, want 2 and 1", a, b)
	}
}

func TestOnEngines_EachRunsItsOwnProgram(t *testing.T) {
	t.Parallel()
	var names []string
	testenv.OnEngines(t, func(t *testing.T, e testenv.Engine) {
		names = append(names, e.Name)
		info, err := client(t, e.Redis(t).Addr()).InfoMap(t.Context(), "server").Result()
		if err != nil {
			t.Fatalf("INFO: got %v, want nil", err)
		}
		if got := info["Server"]["server_name"] == "valkey"; got != (e.Name == "Valkey") {
			t.Errorf("%s: got server_name %q", e.Name, info["Server"]["server_name"])
		}
	})
	if got := strings.Join(names, " "); got != "Redis Valkey" {
		t.Errorf("engines: got %s, want Redis Valkey", got)
	}
}

func TestEngine_MissingSkipsByHandAndFailsInCI(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	t.Chdir(t.TempDir()) // no module, so no cache
	for _, e := range testenv.Engines() {
		for ci, skipped := range map[string]bool{"": true, "true": false} {
			t.Setenv("CI", ci)
			r := record(t, func(tb testing.TB) { e.Shard(tb, 1) })
			if r.skipped != skipped || r.failed == skipped {
				t.Errorf("%s with CI=%q: got skipped %v, failed %v, want skipped %v", e.Name, ci, r.skipped, r.failed, skipped)
			}
		}
	}
}

// wantAcks writes a key through the front until that many replicas acknowledge
// it, and no more.
func wantAcks(t *testing.T, s *testenv.Shard, want int64) {
	t.Helper()
	rdb := client(t, s.Front.Addr())
	testenv.Eventually(t, func() error {
		conn := rdb.Conn()
		defer conn.Close()
		if err := conn.Incr(t.Context(), "n").Err(); err != nil {
			return err
		}
		if n, err := conn.Wait(t.Context(), int(want)+1, 100*time.Millisecond).Result(); err != nil || n != want {
			return errors.Join(fmt.Errorf("acknowledged by %d, want %d", n, want), err)
		}
		return nil
	})
}

func TestShard_LinkCutsOneReplicaOff(t *testing.T) {
	t.Parallel()
	testenv.OnEngines(t, func(t *testing.T, e testenv.Engine) {
		s := e.Shard(t, 2)
		wantAcks(t, s, 2)
		s.Links[0].Cut()
		wantAcks(t, s, 1)
		s.Links[0].Forward()
		wantAcks(t, s, 2)
		s.Links[1].DropReplies() // attached still, and told nothing
		wantAcks(t, s, 1)
	})
}

func TestShard_FailoverPromotesTheReplicaThatHasMost(t *testing.T) {
	t.Parallel()
	testenv.OnEngines(t, func(t *testing.T, e testenv.Engine) {
		s := e.Shard(t, 2)
		old := s.Primary
		s.Links[0].Cut()
		wantAcks(t, s, 1) // a write that only the second replica has
		n := client(t, s.Front.Addr()).Get(t.Context(), "n").Val()
		heir := s.Replicas[1]
		s.Failover(t)
		if s.Primary != heir || len(s.Replicas) != 1 || len(s.Links) != 1 {
			t.Fatalf("after the failover: got primary %s with %d replicas, want %s with 1", s.Primary.Addr(), len(s.Replicas), heir.Addr())
		}
		select {
		case <-old.Exited():
		default:
			t.Error("the old primary lives on")
		}
		rdb := client(t, s.Front.Addr())
		if got, err := rdb.Get(t.Context(), "n").Result(); err != nil || got != n {
			t.Errorf("acknowledged write after the failover: got %q, %v, want %q", got, err, n)
		}
		if replica := client(t, s.Replicas[0].Addr()); replica.Get(t.Context(), "n").Val() != n {
			t.Error("the other replica does not follow the new primary")
		}
		wantAcks(t, s, 1)
	})
}
