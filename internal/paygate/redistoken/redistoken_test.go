package redistoken_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/redis/go-redis/v9"

	"holdfast/internal/booking"
	"holdfast/internal/paygate/redistoken"
)

// fleets runs a test on a Redis whose clock moves and on a real one.
func fleets(t *testing.T, test func(*testing.T, *fleet)) {
	t.Run("miniredis", func(t *testing.T) { t.Parallel(); test(t, newFleet(t)) })
	t.Run("redis-server", func(t *testing.T) { t.Parallel(); test(t, newRealFleet(t)) })
}

// stampede has n callers, spread over the processes, want a token at once; it
// calls during when all of them are about to ask.
func stampede(ctx context.Context, n int, ps []*process, call func(*process) (string, error), during func()) (tokens []string, errs []error) {
	var ready, done sync.WaitGroup
	tokens, errs = make([]string, n), make([]error, n)
	ready.Add(n)
	for i := range n {
		done.Go(func() {
			ready.Done()
			tokens[i], errs[i] = call(ps[i%len(ps)])
		})
	}
	ready.Wait()
	during()
	done.Wait()
	return tokens, errs
}

func wantAll(t *testing.T, when string, tokens []string, errs []error, want string) {
	t.Helper()
	for i := range tokens {
		if errs[i] != nil || tokens[i] != want {
			t.Fatalf("%s: caller %d got %q, %v; want %q", when, i, tokens[i], errs[i], want)
		}
	}
}

// Case 24: no token and a slow grant, a token rejected once, a failing grant.
func TestToken_StampedeCausesOneGrant(t *testing.T) {
	t.Parallel()
	fleets(t, func(t *testing.T, f *fleet) {
		ps := []*process{f.process(), f.process(), f.process()}
		answer := make(chan struct{})
		f.gateway.set(func(g *gateway) { g.during = func(context.Context) error { <-answer; return nil } })

		tokens, errs := stampede(t.Context(), 500, ps, func(p *process) (string, error) { return p.Token(t.Context()) }, func() {
			until(t, "a grant is at work", func() bool { n, _ := f.gateway.asked(); return n == 1 })
			// A caller waits no longer than its own deadline, and stops nothing.
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
			defer cancel()
			for _, p := range ps {
				if _, err := p.Token(ctx); !errors.Is(err, context.DeadlineExceeded) {
					t.Errorf("Token with a short deadline: got %v, want %v", err, context.DeadlineExceeded)
				}
			}
			close(answer)
		})
		wantAll(t, "first token", tokens, errs, token(1))
		f.gateway.wantCalls(t, "stampede without a token", 1)

		// All 500 are refused with 401 and say so, each before it asks again.
		tokens, errs = stampede(t.Context(), 500, ps, func(p *process) (string, error) {
			old, err := p.Token(t.Context())
			if err != nil || old != token(1) {
				return old, err
			}
			p.Rejected(t.Context(), old)
			return p.Token(t.Context())
		}, func() {})
		wantAll(t, "token after a rejection", tokens, errs, token(2))
		f.gateway.wantCalls(t, "stampede with a rejected token", 2)

		// The second is refused too: the hour's grants are used up, so it stays.
		tokens, errs = stampede(t.Context(), 500, ps, func(p *process) (string, error) {
			p.Rejected(t.Context(), token(2))
			return p.Token(t.Context())
		}, func() {})
		wantAll(t, "token after a second rejection", tokens, errs, token(2))
		f.gateway.wantCalls(t, "stampede with a second rejected token", 2)
	})
}

func TestToken_StampedeOnAFailingGrantCausesOneCall(t *testing.T) {
	t.Parallel()
	fleets(t, func(t *testing.T, f *fleet) {
		ps := []*process{f.process(), f.process(), f.process()}
		down := fmt.Errorf("gateway is down: %w", booking.ErrInDoubt)
		f.gateway.set(func(g *gateway) { g.err = down })
		_, errs := stampede(t.Context(), 500, ps, func(p *process) (string, error) { return p.Token(t.Context()) }, func() {})
		for i, err := range errs {
			if !errors.Is(err, down) && !errors.Is(err, redistoken.ErrGrantPaused) {
				t.Fatalf("caller %d: got %v, want the grant's failure, or that it has failed", i, err)
			}
		}
		f.gateway.wantCalls(t, "stampede on a failing grant", 1)
	})
}

func TestToken_ScriptsForgottenAreNoticedByNobody(t *testing.T) {
	t.Parallel()
	fleets(t, func(t *testing.T, f *fleet) {
		p := f.process()
		f.gateway.set(func(g *gateway) {
			g.during = func(ctx context.Context) error { return p.rdb.ScriptFlush(ctx).Err() }
		})
		if got := p.must(t); got != token(1) {
			t.Errorf("Token = %q, want %q", got, token(1))
		}
		if err := p.rdb.ScriptFlush(t.Context()).Err(); err != nil {
			t.Fatal(err)
		}
		p.Rejected(t.Context(), token(1))
		if got := p.must(t); got != token(2) {
			t.Errorf("Token after the rejection = %q, want %q", got, token(2))
		}
	})
}

func TestToken_IsRenewedEarlyAndUsedMeanwhile(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	p, other := f.process(), f.process()
	p.must(t)
	f.advance(50*time.Minute - time.Millisecond)
	if got := p.must(t); got != token(1) {
		t.Errorf("Token before minute 50 = %q, want %q", got, token(1))
	}
	f.gateway.wantCalls(t, "before minute 50", 1)

	answer := make(chan struct{})
	f.gateway.set(func(g *gateway) { g.during = func(context.Context) error { <-answer; return nil } })
	f.advance(10 * time.Second) // beyond what a process trusts by itself
	for _, q := range []*process{p, other, p, other} {
		if got := q.must(t); got != token(1) {
			t.Errorf("Token during the renewal = %q, want the old one", got)
		}
	}
	until(t, "the renewal is at work", func() bool { n, _ := f.gateway.asked(); return n == 2 })
	close(answer)
	until(t, "the new token is stored", func() bool { return f.mini.HGet(currentKey, "token") == token(2) })
	f.advance(10 * time.Second)
	for _, q := range []*process{p, other} {
		if got := q.must(t); got != token(2) {
			t.Errorf("Token after the renewal = %q, want %q", got, token(2))
		}
	}
	f.gateway.wantCalls(t, "after the renewal", 2)
}

func TestToken_OldOneIsUsedToItsEndWhenRenewalFails(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	p := f.process()
	p.must(t)
	f.gateway.set(func(g *gateway) { g.err = booking.ErrInDoubt })
	for minute := 1; minute < 60; minute++ {
		f.advance(time.Minute)
		if got := p.must(t); got != token(1) {
			t.Errorf("Token at minute %d = %q, want the old one", minute, got)
		}
		p.Wait(t)
	}
	f.gateway.wantCalls(t, "renewal at minute 50 failed, the ledger is full", 2)
	f.advance(time.Minute)
	if got, err := p.Token(t.Context()); !errors.Is(err, redistoken.ErrGrantLimit) {
		t.Errorf("Token at minute 60: got %q, %v; want %v", got, err, redistoken.ErrGrantLimit)
	}
	f.gateway.set(func(g *gateway) { g.err = nil })
	f.advance(time.Minute + time.Second) // the first grant has left the ledger
	if got := p.must(t); got != token(3) {
		t.Errorf("Token after minute 61 = %q, want a new one", got)
	}
}

func TestToken_IsTrustedForFiveSecondsWithoutRedis(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	p := f.process()
	p.must(t)
	before := f.mini.CommandCount()
	f.advance(5*time.Second - time.Millisecond)
	for range 1000 {
		p.must(t)
	}
	if got := f.mini.CommandCount() - before; got != 0 {
		t.Errorf("%d commands for 1000 tokens within five seconds, want 0", got)
	}
	f.advance(time.Millisecond)
	p.must(t)
	if got := f.mini.CommandCount() - before; got == 0 {
		t.Error("no command after five seconds, want Redis asked again")
	}
	// Never beyond the token's end.
	f.gateway.set(func(g *gateway) { g.lifetime = 2 * time.Second })
	p.Rejected(t.Context(), token(1))
	if got := p.must(t); got != token(2) {
		t.Fatalf("Token = %q, want %q", got, token(2))
	}
	f.advance(2 * time.Second)
	if got, err := p.Token(t.Context()); err == nil {
		t.Errorf("Token after its end = %q, want an error", got)
	}
}

func TestRejected_OfAnOldTokenChangesNothing(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	p := f.process()
	p.must(t)
	for _, old := range []string{"", "another", token(2)} {
		p.Rejected(t.Context(), old)
	}
	f.advance(6 * time.Second) // beyond what a process trusts by itself
	if got := p.must(t); got != token(1) {
		t.Errorf("Token = %q, want %q", got, token(1))
	}
	f.gateway.wantCalls(t, "after rejections of other tokens", 1)
}

func TestRejected_TokenIsUsedOnWhenTheGrantForAnotherFails(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	p, other := f.process(), f.process()
	p.must(t)
	f.gateway.set(func(g *gateway) { g.err = booking.ErrInDoubt })
	p.Rejected(t.Context(), token(1))
	for _, q := range []*process{p, other, p} {
		if got := q.must(t); got != token(1) {
			t.Errorf("Token = %q, want the rejected one: it is all there is", got)
		}
	}
	f.gateway.wantCalls(t, "after a failed re-grant", 2)
}

func TestGrant_NobodyTriesForAMinuteAfterAFailure(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	p, other := f.process(), f.process()
	f.gateway.set(func(g *gateway) { g.err = booking.ErrInDoubt })
	if _, err := p.Token(t.Context()); !errors.Is(err, booking.ErrInDoubt) {
		t.Errorf("Token: got %v, want the grant's failure", err)
	}
	for range 59 {
		f.advance(time.Second)
		for _, q := range []*process{p, other} {
			if _, err := q.Token(t.Context()); !errors.Is(err, redistoken.ErrGrantPaused) && !errors.Is(err, booking.ErrInDoubt) {
				t.Fatalf("Token within the minute: got %v, want %v", err, redistoken.ErrGrantPaused)
			}
		}
	}
	f.gateway.wantCalls(t, "within the minute", 1)
	f.gateway.set(func(g *gateway) { g.err = nil })
	f.advance(time.Second)
	f.advance(time.Second) // beyond what a process remembers of the refusal
	if got := other.must(t); got != token(2) {
		t.Errorf("Token after the minute = %q, want %q", got, token(2))
	}
}

func TestGrant_CallThatNeverLeftDoesNotCount(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	p := f.process()
	f.gateway.set(func(g *gateway) { g.err = fmt.Errorf("%w: connection refused", booking.ErrNotSent) })
	for i := range 5 {
		if _, err := p.Token(t.Context()); !errors.Is(err, booking.ErrNotSent) {
			t.Errorf("Token, attempt %d: got %v, want %v", i, err, booking.ErrNotSent)
		}
		f.advance(61 * time.Second)
	}
	f.gateway.set(func(g *gateway) { g.err = nil })
	if got := p.must(t); got != token(6) {
		t.Errorf("Token = %q, want %q", got, token(6))
	}
	want := map[string]float64{"holdfast_gateway_token_grants_total not_sent": 5, "holdfast_gateway_token_grants_total granted": 1}
	if diff := cmp.Diff(want, p.grants(t)); diff != "" {
		t.Errorf("grants by outcome: -want +got:\n%s", diff)
	}
}

func TestGrant_CallInDoubtCounts(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	p := f.process()
	f.gateway.set(func(g *gateway) { g.err = booking.ErrInDoubt })
	for range 10 {
		if _, err := p.Token(t.Context()); err == nil {
			t.Error("Token: got no error, want one")
		}
		f.advance(2 * time.Minute)
	}
	f.gateway.wantCalls(t, "within twenty minutes of failures", 2)
	if _, err := p.Token(t.Context()); !errors.Is(err, redistoken.ErrGrantLimit) {
		t.Errorf("Token: got %v, want %v", err, redistoken.ErrGrantLimit)
	}
	want := map[string]float64{"holdfast_gateway_token_grants_total failed": 2, "holdfast_gateway_token_grants_total limited": 9}
	if diff := cmp.Diff(want, p.grants(t)); diff != "" {
		t.Errorf("grants by outcome: -want +got:\n%s", diff)
	}
}

// A day of renewals, rejections, failures and restarts.
func TestGrant_NeverAThirdWithinAnHour(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	seed := rand.Uint64()
	rnd := rand.New(rand.NewPCG(seed, 0))
	ps := []*process{f.process(), f.process(), f.process()}
	for range 24 * 60 * 2 {
		f.advance(time.Duration(rnd.IntN(60_000)) * time.Millisecond)
		f.gateway.set(func(g *gateway) {
			g.err = nil
			if rnd.IntN(3) == 0 {
				g.err = booking.ErrInDoubt
			}
		})
		i := rnd.IntN(len(ps))
		got, err := ps[i].Token(t.Context())
		if err == nil && rnd.IntN(20) == 0 {
			ps[i].Rejected(t.Context(), got)
		}
		ps[i].Wait(t)
		if rnd.IntN(50) == 0 {
			ps[i] = f.process()
		}
	}
	f.gateway.mu.Lock()
	defer f.gateway.mu.Unlock()
	if len(f.gateway.calls) < 15 {
		t.Errorf("seed %d: %d grant calls in a day, want some: renewals alone make more", seed, len(f.gateway.calls))
	}
	for i := 2; i < len(f.gateway.calls); i++ {
		if took := f.gateway.calls[i].Sub(f.gateway.calls[i-2]); took <= time.Hour {
			t.Errorf("seed %d: three grant calls within %s, want more than an hour", seed, took)
		}
	}
}

func TestGrant_DeadRefreshersLockRunsOut(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	p := f.process()
	// Another process has entered its call and died.
	if err := f.mini.Set(lockKey, "dead"); err != nil {
		t.Fatal(err)
	}
	f.mini.SetTTL(lockKey, 45*time.Second)
	if _, err := f.mini.ZAdd(grantsKey, float64(f.now().UnixMilli()), "dead"); err != nil {
		t.Fatal(err)
	}
	got := make(chan string, 1)
	go func() { got <- p.must(t) }()
	before := f.mini.CommandCount()
	until(t, "the caller looks again", func() bool { return f.mini.CommandCount() >= before+2 })
	f.gateway.wantCalls(t, "while another's lock lives", 0)
	f.advance(45 * time.Second)
	if got := <-got; got != token(1) {
		t.Errorf("Token after the lock = %q, want %q", got, token(1))
	}
}

func TestGrant_LateAnswerReplacesNoNewerToken(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	p := f.process()
	f.gateway.set(func(g *gateway) {
		g.during = func(context.Context) error { // meanwhile the lock has run out and another has stored
			later := f.now().Add(time.Minute).UnixMilli()
			f.mini.HSet(currentKey, "token", "newer", "called_at", fmt.Sprint(later),
				"renew_at", fmt.Sprint(later+3_000_000), "expires_at", fmt.Sprint(later+3_600_000))
			return f.mini.Set(lockKey, "another's")
		}
	})
	p.must(t)
	if got := f.mini.HGet(currentKey, "token"); got != "newer" {
		t.Errorf("stored token = %q, want the newer one", got)
	}
	if got, _ := f.mini.Get(lockKey); got != "another's" {
		t.Errorf("lock = %q, want another's still there", got)
	}
	f.advance(6 * time.Second)
	if got := p.must(t); got != "newer" {
		t.Errorf("Token = %q, want the newer one", got)
	}
}

func TestGrant_GoesOnWhenTheCallerHasLeft(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	p := f.process()
	ctx, leave := context.WithCancel(t.Context())
	f.gateway.set(func(g *gateway) {
		g.during = func(ctx context.Context) error {
			leave()
			if d, ok := ctx.Deadline(); !ok || time.Until(d) > 30*time.Second || time.Until(d) < 25*time.Second {
				t.Errorf("deadline of the grant is in %s, want 30 s", time.Until(d))
			}
			return ctx.Err()
		}
	})
	// Which of the two is heard first does not matter.
	if _, err := p.Token(ctx); err != nil && !errors.Is(err, context.Canceled) {
		t.Errorf("Token: got %v, want the token or %v", err, context.Canceled)
	}
	until(t, "the token is stored", func() bool { return f.mini.HGet(currentKey, "token") == token(1) })
	f.gateway.wantCalls(t, "after a caller left", 1)
}

func TestClose_WaitsForTheGrantAtWork(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	p, other := f.process(), f.process()
	answer := make(chan struct{})
	f.gateway.set(func(g *gateway) { g.during = func(ctx context.Context) error { <-answer; return ctx.Err() } })
	for _, q := range []*process{p, other} {
		go func() { _, _ = q.Token(t.Context()) }()
	}
	until(t, "a grant is at work", func() bool { n, _ := f.gateway.asked(); return n == 1 })
	closed := make(chan struct{})
	go func() {
		p.Close()
		other.Close()
		close(closed)
	}()
	until(t, "both are closing", func() bool {
		_, err := p.Token(canceled(t))
		return errors.Is(err, redistoken.ErrClosed)
	})
	close(answer)
	<-closed
	if got := f.mini.HGet(currentKey, "token"); got != token(1) {
		t.Errorf("stored token = %q, want %q: a grant at work is finished", got, token(1))
	}
	if _, err := other.Token(t.Context()); !errors.Is(err, redistoken.ErrClosed) {
		t.Errorf("Token after Close: got %v, want %v", err, redistoken.ErrClosed)
	}
}

func canceled(t *testing.T) context.Context {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	return ctx
}

// faults breaks the nth script that a client runs: lost before it reached Redis,
// or run and its answer lost.
type faults struct {
	mu   sync.Mutex
	n    int
	at   int
	kept bool
}

func (h *faults) DialHook(next redis.DialHook) redis.DialHook { return next }
func (h *faults) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

var errLost = errors.New("connection lost")

func (h *faults) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if !strings.HasPrefix(cmd.Name(), "eval") {
			return next(ctx, cmd)
		}
		h.mu.Lock()
		h.n++
		hit := h.n == h.at
		h.mu.Unlock()
		if !hit {
			return next(ctx, cmd)
		}
		if h.kept {
			_ = next(ctx, cmd)
		}
		cmd.SetErr(errLost)
		return errLost
	}
}

func TestGrant_LostScriptCostsNoGrant(t *testing.T) {
	t.Parallel()
	for _, kept := range []bool{false, true} {
		for at := 1; at <= 2; at++ { // begin, then store
			t.Run(fmt.Sprintf("script %d, kept %v", at, kept), func(t *testing.T) {
				t.Parallel()
				f := newFleet(t)
				warm := f.processOf("warm") // so that the scripts are loaded
				warm.must(t)
				p := f.process()
				p.rdb.AddHook(&faults{at: at, kept: kept})
				got, err := p.Token(t.Context())
				if at == 1 {
					if !errors.Is(err, errLost) {
						t.Errorf("Token: got %q, %v; want the loss", got, err)
					}
					f.advance(2 * time.Second)
					got, err = p.Token(t.Context())
				}
				if err != nil || got != token(2) {
					t.Errorf("Token: got %q, %v; want %q", got, err, token(2))
				}
				if entries, err := f.mini.ZMembers(grantsKey); err != nil || len(entries) != 1 {
					t.Errorf("ledger has %d entries, %v; want one for one call", len(entries), err)
				}
				if f.mini.HGet(currentKey, "token") != token(2) || f.mini.Exists(lockKey) {
					t.Error("the token is not stored, or the lock still there")
				}
			})
		}
	}
}

func TestGrant_LostAnswerAfterTheLockRanOutCostsNoGrant(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	f.processOf("warm").must(t)
	p := f.process()
	if _, err := f.mini.ZAdd(grantsKey, float64(f.now().UnixMilli()), "the other of the hour"); err != nil {
		t.Fatal(err)
	}
	p.rdb.AddHook(&faults{at: 1, kept: true})
	if _, err := p.Token(t.Context()); !errors.Is(err, errLost) {
		t.Errorf("Token: got %v, want the loss", err)
	}
	f.advance(46 * time.Second)
	if got := p.must(t); got != token(2) {
		t.Errorf("Token = %q, want %q: an entry without a call does not count", got, token(2))
	}
}

func TestToken_RedisDownIsAnErrorAndHealsByItself(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	p := f.process()
	f.mini.SetError("LOADING Redis is loading the dataset in memory")
	if got, err := p.Token(t.Context()); err == nil {
		t.Errorf("Token without Redis = %q, want an error", got)
	}
	p.Rejected(t.Context(), token(1)) // must not hang or panic
	f.gateway.wantCalls(t, "without Redis", 0)
	f.mini.SetError("")
	f.advance(time.Second)
	if got := p.must(t); got != token(1) {
		t.Errorf("Token with Redis back = %q, want %q", got, token(1))
	}
}

func TestToken_DamagedStateIsNoToken(t *testing.T) {
	t.Parallel()
	for name, fields := range map[string][]string{
		"no times":     {"token", "x"},
		"no renewal":   {"token", "x", "expires_at", "1764565200000"}, // 2025: over
		"not a number": {"token", "x", "expires_at", "soon"},
	} {
		f := newFleet(t)
		p := f.process()
		f.mini.HSet(currentKey, fields...)
		if got, err := p.Token(t.Context()); err == nil && got == "x" {
			t.Errorf("%s: Token = %q, want another or an error", name, got)
		}
	}
}

func TestToken_IsByAccount(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	one, two := f.processOf("shop"), f.processOf("0177{0}618 ")
	if a, b := one.must(t), two.must(t); a == b {
		t.Errorf("two accounts share the token %q", a)
	}
	for _, key := range f.mini.Keys() {
		if !regexp.MustCompile(`^token:\{[0-9a-f]{16}\}:(current|grants)$`).MatchString(key) {
			t.Errorf("key %q, want token:, a hash of the account as hash tag, and no more of it", key)
		}
	}
	if got := f.mini.TTL(grantsKey); got <= 0 || got > 2*time.Hour {
		t.Errorf("the ledger lives %s, want it to go away by itself", got)
	}
	if got := f.mini.TTL(currentKey); got != time.Hour {
		t.Errorf("the token lives %s, want its own hour", got)
	}
}

func TestLog_HoldsNoToken(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	p := f.process()
	var said []string
	for range 3 {
		got, err := p.Token(t.Context())
		said = append(said, fmt.Sprint(err))
		p.Rejected(t.Context(), got)
		f.advance(20 * time.Minute)
	}
	f.gateway.set(func(g *gateway) { g.err = booking.ErrInDoubt })
	f.advance(2 * time.Hour)
	_, err := p.Token(t.Context())
	all := f.log.String() + strings.Join(append(said, fmt.Sprint(err)), "\n")
	if n := strings.Count(f.log.String(), "token grant"); n != 3 || !strings.Contains(all, "took") {
		t.Errorf("lines of grants: got %d, want one for each of 3 with how long it took: %s", n, all)
	}
	if !strings.Contains(all, "granted") || !strings.Contains(all, "rejected") {
		t.Errorf("log lacks what happened: %s", all)
	}
	if strings.Contains(all, "secret-") || strings.Contains(all, "refresh-secret") {
		t.Errorf("a token is in the log or an error: %s", all)
	}
	for _, key := range f.mini.Keys() {
		if key == currentKey {
			for _, v := range []string{"refresh_token", "refresh"} {
				if f.mini.HGet(key, v) != "" {
					t.Error("the refresh token is kept, and nobody needs it")
				}
			}
		}
	}
}

func TestNew_RefusesWhatCannotWork(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	rdb := redis.NewClient(f.options)
	t.Cleanup(func() { _ = rdb.Close() })
	log := slog.New(slog.DiscardHandler)
	reg := prometheus.NewRegistry()
	if s, err := redistoken.New(rdb, f.gateway, account, f.now, log, reg); err != nil {
		t.Errorf("New: %v", err)
	} else {
		s.Close()
	}
	for name, call := range map[string]func() (*redistoken.Source, error){
		"no Redis": func() (*redistoken.Source, error) {
			return redistoken.New(nil, f.gateway, account, f.now, log, prometheus.NewRegistry())
		},
		"no granter": func() (*redistoken.Source, error) {
			return redistoken.New(rdb, nil, account, f.now, log, prometheus.NewRegistry())
		},
		"no account": func() (*redistoken.Source, error) {
			return redistoken.New(rdb, f.gateway, "", f.now, log, prometheus.NewRegistry())
		},
		"no clock": func() (*redistoken.Source, error) {
			return redistoken.New(rdb, f.gateway, account, nil, log, prometheus.NewRegistry())
		},
		"no log": func() (*redistoken.Source, error) {
			return redistoken.New(rdb, f.gateway, account, f.now, nil, prometheus.NewRegistry())
		},
		"no registerer": func() (*redistoken.Source, error) { return redistoken.New(rdb, f.gateway, account, f.now, log, nil) },
		"twice":         func() (*redistoken.Source, error) { return redistoken.New(rdb, f.gateway, account, f.now, log, reg) },
	} {
		if _, err := call(); err == nil {
			t.Errorf("%s: got no error, want one", name)
		}
	}
}

// Changed credentials are tried beside a good token, which a failure leaves in use.
func TestAnew_ReplacesAGoodTokenOnlyByABetter(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	p, other := f.process(), f.process()
	p.must(t)
	wrong := errors.New("code 2001: invalid app secret")
	f.gateway.set(func(g *gateway) { g.err = fmt.Errorf("%w: %w", booking.ErrInDoubt, wrong) })
	if err := other.Anew(t.Context()); !errors.Is(err, wrong) {
		t.Errorf("Anew with a wrong secret: got %v, want the gateway's refusal", err)
	}
	f.gateway.wantCalls(t, "after a refusal", 2)
	f.advance(10 * time.Second) // beyond what is trusted without Redis
	if got := p.must(t); got != token(1) {
		t.Errorf("Token after a refusal = %q, want the old one in use", got)
	}
	f.gateway.set(func(g *gateway) { g.err = nil })
	f.advance(2 * time.Minute)
	if err := other.Anew(t.Context()); !errors.Is(err, redistoken.ErrGrantLimit) {
		t.Errorf("a third within the hour: got %v, want %v", err, redistoken.ErrGrantLimit)
	}
	f.advance(45 * time.Minute) // due, but not by that
	p.must(t)
	f.advance(14 * time.Minute) // the first two are out of the ledger
	if err := other.Anew(t.Context()); err != nil {
		t.Errorf("Anew: got %v, want a new token", err)
	}
	calls, _ := f.gateway.asked()
	f.advance(10 * time.Second)
	if got := p.must(t); got != token(calls) {
		t.Errorf("Token after Anew = %q, want %q in place for the fleet", got, token(calls))
	}
}

func TestAnew_AsksNotBesideAnother(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	p, other := f.process(), f.process()
	inside, goOn := make(chan struct{}), make(chan struct{})
	f.gateway.set(func(g *gateway) {
		g.during = func(context.Context) error { close(inside); <-goOn; return nil }
	})
	first := make(chan error, 1)
	go func() { first <- p.Anew(t.Context()) }()
	<-inside
	if err := other.Anew(t.Context()); !errors.Is(err, redistoken.ErrGrantBusy) {
		t.Errorf("Anew while another asks: got %v, want %v", err, redistoken.ErrGrantBusy)
	}
	close(goOn)
	if err := <-first; err != nil {
		t.Errorf("Anew: got %v, want a token", err)
	}
	f.gateway.wantCalls(t, "both", 1)
	other.Close()
	if err := other.Anew(t.Context()); !errors.Is(err, redistoken.ErrClosed) {
		t.Errorf("Anew of a closed source: got %v, want %v", err, redistoken.ErrClosed)
	}
}
