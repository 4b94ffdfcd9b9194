package admission_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"holdfast/internal/admission"
	"holdfast/internal/booking"
	"holdfast/internal/testenv"
	"holdfast/scripts/lua"
)

// lateWire is a network that, once told, keeps every script back that a client
// sends, also when the client has long gone, until it delivers them all.
type lateWire struct {
	listener net.Listener
	work     sync.WaitGroup

	mu       sync.Mutex
	keeps    bool
	hangUp   bool // on the client whose script is kept back
	late     sync.WaitGroup
	deliver  chan struct{}
	upstream string
}

func newLateWire(t *testing.T, upstream string) *lateWire {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	w, ctx := &lateWire{listener: ln, upstream: upstream, deliver: make(chan struct{})}, t.Context()
	w.work.Go(func() {
		for {
			client, err := ln.Accept()
			if err != nil {
				return
			}
			w.work.Go(func() { w.serve(ctx, client) })
		}
	})
	t.Cleanup(func() {
		ln.Close()
		w.mu.Lock()
		select {
		case <-w.deliver:
		default:
			close(w.deliver)
		}
		w.mu.Unlock()
		w.work.Wait()
	})
	return w
}

func (w *lateWire) addr() string { return w.listener.Addr().String() }

// keep begins to keep scripts back; with hangUp their clients hear at once that
// the connection has ended.
func (w *lateWire) keep(hangUp bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.keeps, w.hangUp = true, hangUp
}

// deliverAll delivers what was kept back and returns when the server has answered
// it all; it tells whether there was anything.
func (w *lateWire) deliverAll(t *testing.T, server *redis.Client) {
	t.Helper()
	before := scripts(t, server)
	w.mu.Lock()
	w.keeps = false
	close(w.deliver)
	w.mu.Unlock()
	w.late.Wait()
	if after := scripts(t, server); after <= before {
		t.Errorf("scripts that ran late: got %d, want some", after-before)
	}
}

// scripts is how many scripts the server was sent, on any connection.
func scripts(t *testing.T, rdb *redis.Client) (n int) {
	t.Helper()
	info, err := rdb.InfoMap(t.Context(), "commandstats").Result()
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"cmdstat_evalsha", "cmdstat_eval"} {
		calls := 0
		if _, err := fmt.Sscanf(info["Commandstats"][name], "calls=%d", &calls); err == nil {
			n += calls
		}
	}
	return n
}

func (w *lateWire) serve(ctx context.Context, client net.Conn) {
	defer client.Close()
	var d net.Dialer
	server, err := d.DialContext(ctx, "tcp", w.upstream)
	if err != nil {
		return
	}
	defer server.Close()
	w.work.Go(func() {
		_, _ = io.Copy(client, server) // either end may go at any time
		client.Close()
	})
	buf := make([]byte, 1<<20)
	for {
		n, err := client.Read(buf)
		if n > 0 && !w.pass(client, server, buf[:n]) {
			return
		}
		if err != nil {
			return
		}
	}
}

// pass sends a request on, at once or late. A late one is the connection's last.
func (w *lateWire) pass(client, server net.Conn, request []byte) bool {
	w.mu.Lock()
	if !w.keeps || !bytes.Contains(request, []byte("EVAL")) {
		w.mu.Unlock()
		_, err := server.Write(request)
		return err == nil
	}
	w.late.Add(1)
	defer w.late.Done()
	if w.hangUp {
		client.Close()
	}
	w.mu.Unlock()
	<-w.deliver
	if _, err := server.Write(request); err != nil {
		return false
	}
	// The server has read it all, and answered, once it ends the connection.
	_ = server.(*net.TCPConn).CloseWrite()
	_, _ = io.Copy(io.Discard, server)
	return false
}

// rebuiltRow is a held seat of candidate i that a rebuild puts back.
func rebuiltRow(i int, now time.Time) booking.RestoredRow {
	p := payment()
	return booking.RestoredRow{Code: code(i), Payment: p, Look: now.Add(time.Minute), Row: booking.Row{
		Attempt: booking.AttemptID(epoch, suffix()), Level: "N1", Slot: int64(i), Phase: booking.PhaseHeld, Payment: p.ID,
		AdmittedAt: now.UnixMilli(), Deadline: now.Add(time.Minute).UnixMilli(), Hold: 60_000, Amount: 150000, Currency: "BDT",
	}}
}

func (l *ledger) mustBegin(t *testing.T) string {
	t.Helper()
	token, err := l.BeginRebuild(t.Context())
	if err != nil {
		t.Fatalf("begin rebuild: %v", err)
	}
	return token
}

func (l *ledger) mustRestore(t *testing.T, token string, rows ...booking.RestoredRow) {
	t.Helper()
	if err := l.Restore(t.Context(), token, rows); err != nil {
		t.Fatalf("restore: %v", err)
	}
}

func (l *ledger) mustFinish(t *testing.T, token string) booking.Applied {
	t.Helper()
	did, err := l.FinishRebuild(t.Context(), demo, epoch, token)
	if err != nil {
		t.Fatalf("finish rebuild: %v", err)
	}
	return did
}

// unfinished is whose turn it is to rebuild.
func (l *ledger) unfinished(t *testing.T) string {
	t.Helper()
	token, err := l.UnfinishedRebuild(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return token
}

// state is the ledger but for what every script writes.
func (l *ledger) state(t *testing.T) string {
	t.Helper()
	l.rdb.Del(t.Context(), l.prefix+"adm:mark")
	return l.dump(t)
}

// A change that a stall delivers late undoes none that was made since: neither
// when its client has waited in vain, nor when its connection ended at once.
func TestChange_DeliveredLateChangesNothing(t *testing.T) {
	t.Parallel()
	smaller := demo
	smaller.Cap = 2
	changes := map[string]struct {
		lost        bool // the ledger has no epoch
		late, since func(ctx context.Context, l *ledger) error
	}{
		"Open": {
			late:  func(ctx context.Context, l *ledger) error { return l.Open(ctx) },
			since: func(ctx context.Context, l *ledger) error { return l.Close(ctx) },
		},
		"Close": {
			late:  func(ctx context.Context, l *ledger) error { return l.Close(ctx) },
			since: func(ctx context.Context, l *ledger) error { return l.Open(ctx) },
		},
		"OpenAt": {
			late:  func(ctx context.Context, l *ledger) error { return l.OpenAt(ctx, time.Unix(1, 0)) },
			since: func(ctx context.Context, l *ledger) error { return l.Close(ctx) },
		},
		"ApplySale": {
			late:  func(ctx context.Context, l *ledger) error { return second(l.ApplySale(ctx, demo, "", false)) },
			since: func(ctx context.Context, l *ledger) error { return second(l.ApplySale(ctx, smaller, "", false)) },
		},
		"AddCandidates": {
			late: func(ctx context.Context, l *ledger) error {
				return l.AddCandidates(ctx, []booking.Candidate{{Code: code(1), Email: "old@example.org"}})
			},
			since: func(ctx context.Context, l *ledger) error {
				return l.AddCandidates(ctx, []booking.Candidate{{Code: code(1), Email: "new@example.org"}})
			},
		},
		"FirstSale": {
			lost:  true,
			late:  func(ctx context.Context, l *ledger) error { return second(l.ApplySale(ctx, demo, epoch, false)) },
			since: func(ctx context.Context, l *ledger) error { return second(l.ApplySale(ctx, smaller, epoch, false)) },
		},
		"BeginRebuild": {
			lost: true,
			late: func(ctx context.Context, l *ledger) error { return second(l.BeginRebuild(ctx)) },
			since: func(ctx context.Context, l *ledger) error {
				token, err := l.BeginRebuild(ctx)
				if err != nil {
					return err
				}
				return l.Restore(ctx, token, []booking.RestoredRow{rebuiltRow(1, time.Now())})
			},
		},
		"BeginRebuildOfALiveOne": {
			lost: true,
			late: func(ctx context.Context, l *ledger) error { return second(l.BeginRebuild(ctx)) },
			since: func(ctx context.Context, l *ledger) error {
				token, err := l.BeginRebuild(ctx)
				if err != nil {
					return err
				}
				return errors.Join(
					l.Restore(ctx, token, []booking.RestoredRow{rebuiltRow(1, time.Now())}),
					second(l.FinishRebuild(ctx, demo, epoch, token)), l.ForgetRebuild(ctx, token))
			},
		},
	}
	testenv.OnEngines(t, func(t *testing.T, e testenv.Engine) {
		addr := e.Pair(t).Primary.Addr()
		for name, c := range changes {
			for how, hangUp := range map[string]bool{"NoAnswer": false, "ConnectionEnded": true} {
				t.Run(name+"/"+how, func(t *testing.T) {
					t.Parallel()
					l := newLedger(t, connect(t, addr), 1)
					if !c.lost {
						l.open(t)
					}
					wire := newLateWire(t, addr)
					far := l.another(t, connect(t, wire.addr()), 1)
					wire.keep(hangUp)
					ctx, cancel := context.WithTimeout(t.Context(), 600*time.Millisecond)
					defer cancel()
					err := c.late(ctx, far)
					if err == nil || errors.Is(err, admission.ErrExpired) {
						t.Fatalf("a change without an answer: got %v, want an error that does not say it was not made", err)
					}
					if err := c.since(t.Context(), l); err != nil {
						t.Fatalf("the change made since: %v", err)
					}
					before := l.state(t)
					wire.deliverAll(t, l.rdb)
					if after := l.state(t); after != before {
						t.Errorf("the late change was made:\n%s\nwas\n%s", after, before)
					}
				})
			}
		}
	})
}

// A client whose first try got no answer, and whose second did, has made a change
// that its first try must not make again.
func TestChange_FirstTryDeliveredAfterTheSecondChangesNothing(t *testing.T) {
	t.Parallel()
	testenv.OnEngines(t, func(t *testing.T, e testenv.Engine) {
		addr := e.Pair(t).Primary.Addr()
		for how, hangUp := range map[string]bool{"NoAnswer": false, "ConnectionEnded": true} {
			t.Run(how, func(t *testing.T) {
				t.Parallel()
				l := newLedger(t, connect(t, addr), 1).open(t)
				wire := newLateWire(t, addr)
				rdb := connect(t, wire.addr())
				tried := 0
				rdb.AddHook(onPipeline(func() {
					if tried++; tried == 2 {
						wire.mu.Lock()
						wire.keeps = false
						wire.mu.Unlock()
					}
				}))
				far := l.another(t, rdb, 1)
				wire.keep(hangUp)
				if err := far.Open(t.Context()); err != nil || tried != 2 {
					t.Fatalf("open: got %v after %d tries, want it done by the second", err, tried)
				}
				if err := l.Close(t.Context()); err != nil {
					t.Fatal(err)
				}
				wire.deliverAll(t, l.rdb)
				_, err := l.Admit(t.Context(), request(1, "N1"), suffix(), false)
				wantErr(t, "after the close", err, booking.ErrNotOpen)
			})
		}
	})
}

// onPipeline is called before each pipeline.
type onPipeline func()

func (h onPipeline) DialHook(next redis.DialHook) redis.DialHook          { return next }
func (h onPipeline) ProcessHook(next redis.ProcessHook) redis.ProcessHook { return next }
func (h onPipeline) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		if strings.HasPrefix(cmds[0].Name(), "eval") {
			h()
		}
		return next(ctx, cmds)
	}
}

// Less time than an acknowledgement may take: nothing is changed, and the caller
// hears exactly that.
func TestChange_TooLateSaysThatItWasNotMade(t *testing.T) {
	onEach(t, func(t *testing.T, fresh func(t *testing.T) *ledger) {
		l, lost := fresh(t).open(t), fresh(t)
		token := lost.mustBegin(t)
		hurry := func(call func(ctx context.Context) error) error {
			ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
			defer cancel()
			return call(ctx)
		}
		before, beforeLost := l.state(t), lost.state(t)
		for name, call := range map[string]func(ctx context.Context) error{
			"open":    l.Open,
			"close":   l.Close,
			"open at": func(ctx context.Context) error { return l.OpenAt(ctx, time.Unix(1, 0)) },
			"apply":   func(ctx context.Context) error { return second(l.ApplySale(ctx, demo, "", false)) },
			"candidates": func(ctx context.Context) error {
				return l.AddCandidates(ctx, []booking.Candidate{{Code: "X", Email: "x@example.org"}})
			},
			"begin": func(ctx context.Context) error { return second(lost.BeginRebuild(ctx)) },
			"restore": func(ctx context.Context) error {
				return lost.Restore(ctx, token, []booking.RestoredRow{rebuiltRow(1, time.Now())})
			},
			"finish": func(ctx context.Context) error { return second(lost.FinishRebuild(ctx, demo, epoch, token)) },
			"forget": func(ctx context.Context) error { return l.ForgetRebuild(ctx, token) },
		} {
			wantErr(t, name, hurry(call), admission.ErrExpired)
		}
		if after := l.state(t); after != before {
			t.Errorf("something changed:\n%s\nwas\n%s", after, before)
		}
		if after := lost.state(t); after != beforeLost {
			t.Errorf("something changed in the ledger that is rebuilt:\n%s\nwas\n%s", after, beforeLost)
		}
	})
}

// Redis's clock decides, whatever this machine's says and however a test moves the
// ledger's.
func TestChange_LedgersOffsetMakesNothingLate(t *testing.T) {
	onEach(t, func(t *testing.T, fresh func(t *testing.T) *ledger) {
		for _, by := range []time.Duration{time.Hour, -time.Hour} {
			l := fresh(t)
			l.advance(by)
			token := l.mustBegin(t)
			l.mustRestore(t, token, rebuiltRow(1, time.Now()))
			l.mustFinish(t, token)
			l.open(t)
			l.check(t)
		}
	})
}

func TestRestore_IsBelievedOnlyOnceTheEpochIsWritten(t *testing.T) {
	onEach(t, func(t *testing.T, fresh func(t *testing.T) *ledger) {
		l := fresh(t)
		now, err := l.Now(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		token, row := l.mustBegin(t), rebuiltRow(1, now)
		done := rebuiltRow(2, now)
		done.Row.Phase, done.Row.Transaction, done.Row.RecordDone, done.Row.MailDone = booking.PhasePaid, "TRX1", true, true
		done.Look = time.Time{}
		l.mustRestore(t, token, row)
		l.mustRestore(t, token, done)
		l.mustRestore(t, token, done) // safe to repeat
		_, _, err = l.Row(t.Context(), code(1))
		wantErr(t, "before the epoch", err, booking.ErrLedgerUnknown)
		if _, err := l.ApplySale(t.Context(), demo, epoch, false); err == nil {
			t.Error("a first sale believed the rows of an unfinished rebuild")
		}
		for range 2 { // safe to repeat
			if did := l.mustFinish(t, token); did.Epoch != epoch || did.Total != 2 || did.Admitted["N1"] != 2 {
				t.Errorf("finished: got %+v, want two seats in N1", did)
			}
		}
		for _, r := range []booking.RestoredRow{row, done} {
			if got, _, err := l.Row(t.Context(), r.Code); err != nil || got != r.Row {
				t.Errorf("restored row is %+v, %v, want %+v", got, err, r.Row)
			}
			if is, err := l.Issued(t.Context(), r.Payment.ID); err != nil || is.Payment != r.Payment || is.Attempt != r.Row.Attempt || is.Code != r.Code {
				t.Errorf("restored payment is %+v, %v", is, err)
			}
			if p, err := l.PaymentOf(t.Context(), r.Row.Attempt); err != nil || p != r.Payment {
				t.Errorf("payment of the restored attempt is %+v, %v", p, err)
			}
		}
		l.wantLook(t, 1, row.Look.UnixMilli())
		l.check(t)
	})
}

// Whatever a rebuild sends once it is over, by another rebuild or by its own end,
// changes nothing.
func TestRebuild_OnlyTheOneThatBeganLastChangesAnything(t *testing.T) {
	onEach(t, func(t *testing.T, fresh func(t *testing.T) *ledger) {
		l := fresh(t)
		over := l.mustBegin(t)
		l.mustRestore(t, over, rebuiltRow(1, time.Now()))
		token := l.mustBegin(t)
		if n := l.rdb.Exists(t.Context(), l.prefix+"adm:seen", l.prefix+"adm:due").Val(); n != 0 {
			t.Errorf("%d keys of the earlier rebuild's rows are left, want none", n)
		}
		wantNothing := func(what string) {
			t.Helper()
			before := l.state(t)
			if err := l.Restore(t.Context(), over, []booking.RestoredRow{rebuiltRow(3, time.Now())}); err == nil {
				t.Errorf("%s: rows of a rebuild that is over were taken", what)
			}
			if did, err := l.FinishRebuild(t.Context(), demo, "another-epoch", over); err == nil {
				t.Errorf("%s: a rebuild that is over was finished: %+v", what, did)
			}
			if err := l.ForgetRebuild(t.Context(), over); err != nil {
				t.Errorf("%s: forget: %v", what, err)
			}
			if after := l.state(t); after != before {
				t.Errorf("%s: something changed:\n%s\nwas\n%s", what, after, before)
			}
		}
		wantNothing("another has begun")
		l.mustRestore(t, token, rebuiltRow(2, time.Now()))
		wantNothing("another has put rows back")
		if err := l.ForgetRebuild(t.Context(), token); err != nil || l.unfinished(t) != token {
			t.Errorf("forgotten without an epoch: got %v, token %q, want it kept", err, l.unfinished(t))
		}
		l.mustFinish(t, token)
		wantNothing("another is finished")
		if err := l.ForgetRebuild(t.Context(), token); err != nil || l.unfinished(t) != "" {
			t.Errorf("forget: got %v, token %q, want none", err, l.unfinished(t))
		}
		over = token
		l.open(t)
		l.mustAdmit(t, 4, "N2")
		wantNothing("it is finished and sells")
		before := l.state(t)
		if token, err := l.BeginRebuild(t.Context()); err == nil {
			t.Errorf("a rebuild of a ledger with an epoch has begun: %s", token)
		}
		if after := l.state(t); after != before {
			t.Errorf("something changed:\n%s\nwas\n%s", after, before)
		}
		l.check(t)
	})
}

// The script itself, whatever the time: a copy of a first step that arrives after
// its own repeat, or after another rebuild's first step, removes no row.
func TestRebuild_CopyOfItsBeginRemovesNothing(t *testing.T) {
	onEach(t, func(t *testing.T, fresh func(t *testing.T) *ledger) {
		l := fresh(t)
		begin := func(token, follows string) string {
			t.Helper()
			var keys []string
			for _, k := range []string{"adm:epoch", "adm:seen", "adm:due", "adm:mark", "adm:rebuild"} {
				keys = append(keys, l.prefix+k)
			}
			v, err := l.rdb.Eval(t.Context(), lua.Restore, keys, 0, time.Now().Add(time.Hour).UnixMilli(), token, "begin", follows).Slice()
			if err != nil {
				t.Fatal(err)
			}
			return fmt.Sprint(v[0])
		}
		want := func(what, got, want string, rows int64) {
			t.Helper()
			if n := l.rdb.HLen(t.Context(), l.prefix+"adm:seen").Val(); got != want || n != rows {
				t.Errorf("%s: got %q and %d rows, want %q and %d", what, got, n, want, rows)
			}
		}
		want("first", begin("A", ""), "begun", 0)
		l.mustRestore(t, "A", rebuiltRow(1, time.Now()))
		want("its copy", begin("A", ""), "begun", 1)
		want("the next", begin("B", "A"), "begun", 0)
		l.mustRestore(t, "B", rebuiltRow(2, time.Now()))
		want("the first one's copy", begin("A", ""), "superseded", 1)
		l.mustFinish(t, "B")
		want("the first one's copy, after the epoch", begin("A", ""), "not_lost", 1)
		want("the second one's copy, after the epoch", begin("B", "A"), "not_lost", 1)
		l.open(t)
		want("the second one's copy, forgotten", begin("B", ""), "not_lost", 1)
		l.check(t)
	})
}

// Every step of a rebuild is acknowledged or an error, the last one too: its token
// stays until it is, and a repeat gets what the first try did not.
func TestRebuild_EveryStepIsAcknowledged(t *testing.T) {
	t.Parallel()
	testenv.OnEngines(t, func(t *testing.T, e testenv.Engine) {
		pair := e.Pair(t)
		l := newLedger(t, connect(t, pair.Primary.Addr()), 1)
		unheard := func(what string, call func() error) {
			t.Helper()
			if err := pair.Replicas[0].Freeze(); err != nil {
				t.Fatal(err)
			}
			wantErr(t, what+", replica frozen", call(), booking.ErrNotAcknowledged)
			if err := pair.Replicas[0].Thaw(); err != nil {
				t.Fatal(err)
			}
		}
		unheard("begin", func() error { return second(l.BeginRebuild(t.Context())) })
		token := l.mustBegin(t)
		row := rebuiltRow(1, time.Now())
		unheard("restore", func() error { return l.Restore(t.Context(), token, []booking.RestoredRow{row}) })
		unheard("restore nothing", func() error { return l.Restore(t.Context(), token, nil) })
		l.mustRestore(t, token, row)
		unheard("finish", func() error { return second(l.FinishRebuild(t.Context(), demo, epoch, token)) })
		if got := l.unfinished(t); got != token {
			t.Fatalf("token of a rebuild whose end was not acknowledged: got %q, want %q", got, token)
		}
		if did := l.mustFinish(t, token); did.Total != 1 || did.Epoch != epoch {
			t.Errorf("finished again: got %+v, want one seat", did)
		}
		unheard("forget", func() error { return l.ForgetRebuild(t.Context(), token) })
		l.open(t)
		unheard("candidates", func() error {
			return l.AddCandidates(t.Context(), []booking.Candidate{{Code: code(1), Email: mail(1)}})
		})
		unheard("open", func() error { return l.Open(t.Context()) })
		l.check(t)
	})
}

// As every script but admit: whatever it answers, it writes, so that WAIT proves
// something of the effect it found.
func TestChange_EveryAnswerRaisesTheReplicationOffset(t *testing.T) {
	t.Parallel()
	rdb := connect(t, testenv.Pair(t).Primary.Addr())
	quiet(t, rdb)
	l, lost := newLedger(t, rdb, 0).open(t), newLedger(t, rdb, 0)
	token := lost.mustBegin(t)
	for name, call := range map[string]func(ctx context.Context) error{
		"switched": l.Close,
		"applied":  func(ctx context.Context) error { return second(l.ApplySale(ctx, demo, "", false)) },
		"fits":     func(ctx context.Context) error { return second(l.ApplySale(ctx, demo, "", true)) },
		"added": func(ctx context.Context) error {
			return l.AddCandidates(ctx, []booking.Candidate{{Code: code(1), Email: mail(1)}})
		},
		"not lost":   func(ctx context.Context) error { return second(l.BeginRebuild(ctx)) },
		"superseded": func(ctx context.Context) error { return lost.Restore(ctx, "another", nil) },
		"rebuilding": func(ctx context.Context) error { return second(lost.ApplySale(ctx, demo, epoch, false)) },
		"restored":   func(ctx context.Context) error { return lost.Restore(ctx, token, nil) },
		"forgotten":  func(ctx context.Context) error { return l.ForgetRebuild(ctx, token) },
	} {
		before := replicationOffset(t, rdb)
		if err := call(t.Context()); errors.Is(err, booking.ErrLedgerUnknown) || errors.Is(err, admission.ErrExpired) {
			t.Fatalf("%s: %v", name, err)
		}
		if after := replicationOffset(t, rdb); after <= before {
			t.Errorf("%s wrote nothing: its acknowledgement would prove nothing", name)
		}
	}
}
