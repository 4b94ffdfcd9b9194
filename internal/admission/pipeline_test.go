package admission_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"holdfast/internal/admission"
	"holdfast/internal/booking"
	"holdfast/internal/testenv"
)

// Many who come while Redis is slow have no connection and no WAIT each.
func TestPipelines_CarryManyCallsWithOneWait(t *testing.T) {
	t.Parallel()
	for name, kind := range map[string]struct {
		call  func(ctx context.Context, l *ledger) error
		word  string
		want  error // the stub has no row
		waits bool
	}{
		"writes": {func(ctx context.Context, l *ledger) error { return l.Queued(ctx, code(1), "a") }, "queued", booking.ErrLedgerDamaged, true},
		"looks":  {func(ctx context.Context, l *ledger) error { _, _, err := l.Row(ctx, code(1)); return err }, "none", booking.ErrNotFound, false},
		"reads":  {func(ctx context.Context, l *ledger) error { _, err := l.PaymentOf(ctx, "a"); return err }, "", booking.ErrNotFound, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			goOn := make(chan struct{})
			let := sync.OnceFunc(func() { close(goOn) })
			s := newStub(t, func(_ int, args []string) string {
				switch strings.ToUpper(args[0]) {
				case "WAIT":
					return ":1\r\n"
				case "GET":
					<-goOn
					return "$-1\r\n"
				}
				<-goOn
				return word(kind.word)
			})
			rdb := admission.NewClient(admission.ClientConfig{Addr: s.addr, Pool: 300})
			t.Cleanup(func() { _ = rdb.Close() })
			l := newLedger(t, rdb, 1)
			defer let() // else the stub would wait for ever
			const many = 2000
			ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
			defer cancel()
			var calls sync.WaitGroup
			var begun atomic.Int64
			for range many {
				calls.Go(func() {
					begun.Add(1)
					if err := kind.call(ctx, l); !errors.Is(err, kind.want) {
						t.Errorf("got %v, want %v", err, kind.want)
					}
				})
			}
			testenv.Eventually(t, func() error {
				if n := begun.Load(); n != many {
					return fmt.Errorf("%d calls have begun, want %d", n, many)
				}
				return nil
			})
			let()
			calls.Wait()
			waits := s.count("WAIT")
			if kind.waits && (waits == 0 || waits > many/10) || !kind.waits && waits != 0 {
				t.Errorf("WAIT for %d calls: got %d, want 1 to %d of writes and none of reads", many, waits, many/10)
			}
			s.mu.Lock()
			defer s.mu.Unlock()
			if s.conns > many/10 {
				t.Errorf("connections for %d calls: got %d, want %d at most", many, s.conns, many/10)
			}
		})
	}
}

// Connections whose other end is gone without a word hold up who has taken one, and
// nobody else.
func TestPipelines_DeadConnectionsHoldUpNobodyElse(t *testing.T) {
	t.Parallel()
	const dead = 60
	var silent atomic.Bool
	s := newStub(t, func(conn int, args []string) string {
		switch {
		case silent.Load() && conn <= dead:
			return silence
		case strings.EqualFold(args[0], "WAIT"):
			return ":1\r\n"
		case strings.EqualFold(args[0], "PING"):
			return "+PONG\r\n"
		}
		return word("queued")
	})
	rdb := admission.NewClient(admission.ClientConfig{Addr: s.addr, Pool: 300})
	t.Cleanup(func() { _ = rdb.Close() })
	l := newLedger(t, rdb, 1)
	conns := make([]*redis.Conn, dead)
	for i := range conns {
		conns[i] = rdb.Conn()
		if err := conns[i].Ping(t.Context()).Err(); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range conns {
		_ = c.Close()
	}
	silent.Store(true)
	// One after the other, or eight at a time, they would take more than this.
	ctx, cancel := context.WithTimeout(t.Context(), 6*time.Second)
	defer cancel()
	var calls sync.WaitGroup
	for range 200 {
		calls.Go(func() {
			for {
				budget, end := context.WithTimeout(ctx, time.Second)
				err := l.Queued(budget, code(1), "a")
				end()
				switch {
				case errors.Is(err, booking.ErrLedgerDamaged): // the stub has no row
					return
				case ctx.Err() != nil:
					t.Errorf("got %v at the end, want an answer", err)
					return
				}
			}
		})
	}
	calls.Wait()
}

// Case 10, for what moves a seat on: the server forgets its scripts under a pipeline.
func TestPipelines_ScriptsForgotten(t *testing.T) {
	onEach(t, func(t *testing.T, fresh func(t *testing.T) *ledger) {
		l := fresh(t)
		const many = 40
		sale := l.sell(t, many+1, many)
		rows := make([]booking.Row, many)
		for i := range many {
			rows[i] = l.mustAdmit(t, i+1, "N1")
		}
		for range 3 {
			if err := l.rdb.ScriptFlush(t.Context()).Err(); err != nil {
				t.Fatal(err)
			}
			var calls sync.WaitGroup
			for i, row := range rows {
				calls.Go(func() {
					if _, _, err := l.Row(t.Context(), code(i+1)); err != nil {
						t.Errorf("row %d: %v", i+1, err)
					}
					_, _, err := l.Attach(t.Context(), code(i+1), row.Attempt, booking.Payment{ID: fmt.Sprint("P", i), URL: "u", Signature: "s"})
					if err != nil {
						t.Errorf("attach %d: %v", i+1, err)
					}
				})
			}
			calls.Wait()
		}
		l.audit(t, sale)
	})
}

// When many wait a turn takes along all of them, in several runs of the script and with one WAIT: the
// longer turns take, on a machine with too much to do, the more each does.
func TestBatch_TakesAlongAllWhoWait(t *testing.T) {
	onEach(t, func(t *testing.T, fresh func(t *testing.T) *ledger) {
		l := fresh(t)
		const many, seats = 300, 250
		sale := l.sell(t, many, seats)
		before := l.pipelines(t)
		c, release, heard := newTally(), l.HoldTurn(), make(chan struct{})
		go func() {
			defer close(heard)
			rush(many, many, func(i int) { _ = c.admit(l, request(i, "N1"), 10*time.Second) }) // noted
		}()
		testenv.Eventually(t, func() error {
			if n := l.Waiting(); n != many {
				return fmt.Errorf("%d wait, want %d", n, many)
			}
			return nil
		})
		release()
		<-heard
		if len(c.seats) != seats || c.heard[booking.ErrLevelFull] != many-seats {
			t.Errorf("got %d seats, %v, want %d and level full for the rest", len(c.seats), c.heard, seats)
		}
		if n := l.pipelines(t) - before; n != 1 {
			t.Errorf("pipelines: got %d, want 1", n)
		}
		l.audit(t, sale)
	})
}

// pipelines is how many have carried admissions.
func (l *ledger) pipelines(t *testing.T) int {
	t.Helper()
	families, err := l.reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() == "holdfast_admission_batch_size" {
			return int(f.GetMetric()[0].GetHistogram().GetSampleCount())
		}
	}
	t.Fatal("no metric of the batches' size")
	return 0
}
