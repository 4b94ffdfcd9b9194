package redistoken_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"holdfast/internal/booking"
	"holdfast/internal/paygate/redistoken"
)

// never is how often nothing happens within a test.
const never = time.Hour

// frozen is a process that stands still whenever it turns to Redis.
type frozen struct {
	mu   sync.Mutex
	gate chan struct{} // nil: it runs
}

func (h *frozen) DialHook(next redis.DialHook) redis.DialHook { return next }
func (h *frozen) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

func (h *frozen) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		h.mu.Lock()
		gate := h.gate
		h.mu.Unlock()
		if gate != nil {
			<-gate
		}
		return next(ctx, cmd)
	}
}

// freeze stops it; thaw lets it go on.
func (h *frozen) freeze() (thaw func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	gate := make(chan struct{})
	h.gate = gate
	return sync.OnceFunc(func() {
		h.mu.Lock()
		h.gate = nil
		h.mu.Unlock()
		close(gate)
	})
}

// answers has the nth call wait for the nth channel, and later ones for nothing.
func (g *gateway) answers(t *testing.T, waits ...chan struct{}) {
	g.set(func(g *gateway) {
		g.during = func(context.Context) error {
			n, _ := g.asked()
			if n <= len(waits) {
				select {
				case <-waits[n-1]:
				case <-t.Context().Done(): // the test has failed
				}
			}
			return nil
		}
	})
}

// ask has the process ask for a token; its answer comes later.
func (p *process) ask(t *testing.T) <-chan string {
	t.Helper()
	got := make(chan string, 1)
	go func() { got <- p.must(t) }()
	return got
}

// hear is what was asked for, within ten seconds.
func hear(t *testing.T, answer <-chan string) string {
	t.Helper()
	select {
	case got := <-answer:
		return got
	case <-time.After(10 * time.Second):
		t.Fatal("a caller has heard nothing within ten seconds")
		return ""
	}
}

// calls waits until the gateway was asked so often.
func (f *fleet) calls(t *testing.T, want int) {
	t.Helper()
	until(t, "the gateway is asked", func() bool { n, _ := f.gateway.asked(); return n >= want })
}

// looks waits until Redis was asked so many more times.
func (f *fleet) looks(t *testing.T, n int) {
	t.Helper()
	before := f.mini.CommandCount()
	until(t, "Redis is asked", func() bool { return f.mini.CommandCount() >= before+n })
}

// wantToken wants this token for the whole fleet, beyond what a process remembers.
func (f *fleet) wantToken(t *testing.T, when, want string, ps ...*process) {
	t.Helper()
	f.advance(6 * time.Second)
	for i, p := range ps {
		if got := p.must(t); got != want {
			t.Errorf("%s: process %d has %q, want %q", when, i, got, want)
		}
	}
}

func TestLock_IsHeldWhileTheGatewayAnswersSlowly(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	holder, other := f.process(redistoken.Every(time.Millisecond, never)), f.process()
	answer := make(chan struct{})
	f.gateway.answers(t, answer)
	got := holder.ask(t)
	f.calls(t, 1)
	waiting := other.ask(t)
	for range 7 {
		f.advance(5 * time.Second)
		until(t, "the lease is renewed", func() bool { return f.mini.TTL(lockKey) > 9*time.Second })
	}
	f.advance(3 * time.Second)
	f.looks(t, 5)
	if left := f.mini.TTL(lockKey); left > 7*time.Second {
		t.Errorf("after 38 s the lock has %s left, want no more than 45 s in all", left)
	}
	close(answer)
	if a, b := hear(t, got), hear(t, waiting); a != token(1) || b != token(1) {
		t.Errorf("tokens are %q and %q, want one for both", a, b)
	}
	f.gateway.wantCalls(t, "a grant of 38 s", 1)
}

func TestLock_EndsAfter45SecondsWhateverItsHolderDoes(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	holder := f.process(redistoken.Every(time.Millisecond, never))
	answer := make(chan struct{})
	f.gateway.answers(t, answer)
	got := holder.ask(t)
	f.calls(t, 1)
	for range 9 {
		f.looks(t, 3)
		f.advance(5 * time.Second)
	}
	if f.mini.Exists(lockKey) {
		t.Errorf("the lock has %s left after 45 s, want none", f.mini.TTL(lockKey))
	}
	until(t, "the holder notices", func() bool { return strings.Contains(f.log.String(), "lock was lost") })
	close(answer)
	hear(t, got)
}

// A process that was killed while the gateway answered it: its lock is gone within
// ten seconds, what it has asked for counts, and there is no third.
func TestLock_OfAKilledHolderIsGoneInTenSeconds(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	dead, other := f.process(redistoken.Every(never, never)), f.process()
	kill := new(frozen)
	dead.rdb.AddHook(kill)
	answer := make(chan struct{})
	f.gateway.answers(t, answer)
	_ = dead.ask(t)
	f.calls(t, 1)
	bury := kill.freeze()
	defer func() { // so that it does not outlive the test
		bury()
		dead.Wait(t)
	}()
	defer close(answer)

	waiting := other.ask(t)
	f.advance(10*time.Second - time.Millisecond)
	f.looks(t, 2)
	if n, _ := f.gateway.asked(); n != 1 {
		t.Errorf("within the lease: gateway asked %d times, want once", n)
	}
	f.advance(time.Millisecond)
	if got := hear(t, waiting); got != token(2) {
		t.Errorf("Token after the lease = %q, want %q", got, token(2))
	}
	if n := len(must(f.mini.ZMembers(grantsKey))(t)); n != 2 {
		t.Errorf("ledger has %d entries, want both calls", n)
	}
	other.Rejected(t.Context(), token(2))
	f.wantToken(t, "no third within the hour", token(2), other)
	if n, _ := f.gateway.asked(); n != 2 {
		t.Errorf("gateway asked %d times, want twice", n)
	}
}

func must[T any](v T, err error) func(testing.TB) T {
	return func(tb testing.TB) T {
		tb.Helper()
		if err != nil {
			tb.Fatal(err)
		}
		return v
	}
}

// A holder that stood still for longer than its lease: another has asked for a
// token meanwhile. Whoever of the two comes later, the later grant's token stays.
func TestLock_HeldUpHolderReplacesNoNewerToken(t *testing.T) {
	t.Parallel()
	for name, backFirst := range map[string]bool{"BackAfterTheOther": false, "BackWhileTheOtherAsks": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFleet(t)
			held, other := f.process(redistoken.Every(time.Millisecond, never)), f.process()
			stop := new(frozen)
			held.rdb.AddHook(stop)
			first, second := make(chan struct{}), make(chan struct{})
			f.gateway.answers(t, first, second)
			late := held.ask(t)
			f.calls(t, 1)
			thaw := stop.freeze()
			defer thaw()
			f.advance(10 * time.Second)
			waiting := other.ask(t)
			f.calls(t, 2)

			if backFirst {
				thaw()
				close(first)
				// It is a token while there is no better one.
				if got := hear(t, late); got != token(1) {
					t.Errorf("the late answer gives %q, want %q", got, token(1))
				}
				until(t, "the late token is stored", func() bool { return f.mini.HGet(currentKey, "token") == token(1) })
				if holder, err := f.mini.Get(lockKey); err != nil || holder == "" {
					t.Errorf("lock of the other: got %q, %v, want it still there", holder, err)
				}
				close(second)
				hear(t, waiting)
			} else {
				close(second)
				if got := hear(t, waiting); got != token(2) {
					t.Errorf("the other's token = %q, want %q", got, token(2))
				}
				thaw()
				close(first)
				if got := hear(t, late); got != token(2) {
					t.Errorf("the late holder gives %q, want the newer %q", got, token(2))
				}
			}
			f.wantToken(t, "afterwards", token(2), held, other)
			if n := len(must(f.mini.ZMembers(grantsKey))(t)); n != 2 {
				t.Errorf("ledger has %d entries, want both calls", n)
			}
			if f.mini.Exists(lockKey) {
				t.Error("a lock is left")
			}
		})
	}
}

// A failover may lose the lock and the ledger's entry. The entry is there again
// with the next renewal, so another process's grant is the hour's last one; the lock
// is not taken back.
func TestLock_LostByAFailoverIsNotTakenBackAndTheCallCounts(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	held, other := f.process(redistoken.Every(time.Millisecond, never)), f.process()
	stop := new(frozen)
	held.rdb.AddHook(stop)
	first := make(chan struct{})
	f.gateway.answers(t, first)
	late := held.ask(t)
	f.calls(t, 1)
	thaw := stop.freeze()
	defer thaw()
	f.mini.Del(lockKey)
	f.mini.Del(grantsKey)
	thaw()
	until(t, "the call is entered again", func() bool { return f.mini.Exists(grantsKey) })
	if f.mini.Exists(lockKey) {
		t.Error("the lock was taken back, want it left to others")
	}
	f.advance(time.Second)
	if got := other.must(t); got != token(2) {
		t.Errorf("the other's token = %q, want %q", got, token(2))
	}
	close(first)
	if got := hear(t, late); got != token(2) {
		t.Errorf("the late holder gives %q, want the newer %q", got, token(2))
	}
	other.Rejected(t.Context(), token(2))
	f.wantToken(t, "no third within the hour", token(2), held, other)
	if n, _ := f.gateway.asked(); n != 2 {
		t.Errorf("gateway asked %d times, want twice", n)
	}
}

// On a primary whose clock is behind: who has held the lock all the while has the
// newest token, whatever the clocks say.
func TestLock_HoldersTokenIsTheNewestWhateverTheClock(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	p := f.process()
	p.must(t)
	p.Rejected(t.Context(), token(1))
	f.advance(-5 * time.Second)
	if got := p.must(t); got != token(2) {
		t.Errorf("Token = %q, want %q", got, token(2))
	}
	if got := f.mini.HGet(currentKey, "token"); got != token(2) {
		t.Errorf("stored token = %q, want %q", got, token(2))
	}
}

// keep has Keep run in the process until the test ends.
func (p *process) keep(t *testing.T) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- p.Keep(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Keep: got %v, want nil", err)
		}
	})
	t.Cleanup(stop)
	return stop
}

// The late answer of a holder that stood still may be the later call at the gateway,
// which then refuses the token of the other: the late one is taken.
func TestLock_LateTokenReplacesARefusedOne(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	held, other := f.process(redistoken.Every(time.Millisecond, never)), f.process()
	stop := new(frozen)
	held.rdb.AddHook(stop)
	first, second := make(chan struct{}), make(chan struct{})
	f.gateway.answers(t, first, second)
	late := held.ask(t)
	f.calls(t, 1)
	thaw := stop.freeze()
	defer thaw()
	f.advance(10 * time.Second)
	waiting := other.ask(t)
	f.calls(t, 2)
	close(second)
	if got := hear(t, waiting); got != token(2) {
		t.Errorf("the other's token = %q, want %q", got, token(2))
	}
	other.Rejected(t.Context(), token(2))
	thaw()
	close(first)
	if got := hear(t, late); got != token(1) {
		t.Errorf("the late holder gives %q, want its own %q", got, token(1))
	}
	f.wantToken(t, "afterwards", token(1), held, other)
}

// A process that stood still between its turn and its call asks no more once another
// has had the turn.
func TestLock_WhoLostItBeforeTheCallDoesNotAsk(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	held, other := f.process(redistoken.Every(never, never), redistoken.KeepCopy(func(context.Context, []byte) error {
		if !f.mini.Exists(currentKey) { // before the call: it stands still for longer than the lease
			f.advance(11 * time.Second)
		}
		return nil
	})), f.process()
	if got, err := held.Token(t.Context()); err == nil {
		t.Errorf("the holder that lost its lock: got %q, want an error", got)
	}
	f.gateway.wantCalls(t, "the holder that lost its lock", 0)
	if got := other.must(t); got != token(1) {
		t.Errorf("the next in turn: got %q, want %q without a pause", got, token(1))
	}
	if n := len(must(f.mini.ZMembers(grantsKey))(t)); n != 1 {
		t.Errorf("ledger has %d entries, want the one call", n)
	}
}

func often() redistoken.Option { return redistoken.Every(never, 2*time.Millisecond) }

func TestKeep_HasATokenBeforeAnybodyAsks(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	for range 3 {
		f.process(often()).keep(t)
	}
	until(t, "a token is there", func() bool { return f.mini.HGet(currentKey, "token") == token(1) })
	f.looks(t, 30)
	f.gateway.wantCalls(t, "three keepers and no caller", 1)
}

// A renewal before the hour is over is the hour's last grant: who uses the token
// makes it, and keeps the old one if it fails. Once the hour is over the keeper does.
func TestKeep_LeavesTheEarlyRenewalToACaller(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	p := f.process(often())
	p.keep(t)
	until(t, "a token is there", func() bool { return f.mini.HGet(currentKey, "token") == token(1) })
	for range 60 {
		f.advance(time.Minute)
		f.looks(t, 3)
	}
	f.gateway.wantCalls(t, "an hour of keeping", 1)
	f.advance(time.Minute)
	until(t, "there is a token again", func() bool { return f.mini.HGet(currentKey, "token") == token(2) })
	f.advance(50 * time.Minute)
	f.looks(t, 30)
	f.gateway.wantCalls(t, "a token that is due", 2)
	if got := p.must(t); got != token(2) {
		t.Errorf("a caller's token = %q, want %q while it is good", got, token(2))
	}
	until(t, "a caller has it renewed", func() bool { return f.mini.HGet(currentKey, "token") == token(3) })
}

// A gateway that is out long before the opening costs the hour one grant, and the
// first who needs a token has the other.
func TestKeep_LeavesTheHoursLastGrantToACaller(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	p := f.process(often())
	f.gateway.set(func(g *gateway) { g.err = booking.ErrInDoubt })
	p.keep(t)
	f.calls(t, 1)
	for range 55 {
		f.advance(time.Minute)
		f.looks(t, 3)
	}
	f.gateway.wantCalls(t, "55 minutes of keeping", 1)
	f.gateway.set(func(g *gateway) { g.err = nil })
	if got := f.process().must(t); got != token(2) {
		t.Errorf("a caller's token = %q, want %q", got, token(2))
	}
}

func TestKeep_TriesAgainInAMinuteWhatNeverLeft(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	f.gateway.set(func(g *gateway) { g.err = booking.ErrNotSent })
	f.process(often()).keep(t)
	f.calls(t, 1)
	until(t, "the failure is noted", func() bool { return f.mini.Exists(pauseKey) })
	f.advance(59 * time.Second)
	f.looks(t, 10)
	f.gateway.wantCalls(t, "within the minute", 1)
	f.gateway.set(func(g *gateway) { g.err = nil })
	f.advance(time.Second)
	until(t, "a token is there", func() bool { return f.mini.HGet(currentKey, "token") == token(2) })
}

func TestKeep_LeavesARejectedTokenToWhoeverMetTheRefusal(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	p := f.process(often())
	p.keep(t)
	until(t, "a token is there", func() bool { return f.mini.HGet(currentKey, "token") == token(1) })
	p.Wait(t)
	p.Rejected(t.Context(), token(1))
	f.looks(t, 10)
	f.gateway.wantCalls(t, "after a rejection", 1)
}

func TestKeep_SurvivesRedisAndEndsWithTheSource(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	f.mini.SetError("LOADING Redis is loading the dataset in memory")
	p := f.process(often())
	ended := make(chan error, 1)
	go func() { ended <- p.Keep(t.Context()) }()
	until(t, "it complains", func() bool { return strings.Contains(f.log.String(), "have one ready") })
	f.mini.SetError("")
	until(t, "a token is there", func() bool { f.advance(time.Second); return f.mini.HGet(currentKey, "token") == token(1) })
	p.Close()
	if err := <-ended; err != nil {
		t.Errorf("Keep after Close: got %v, want nil", err)
	}
	if _, err := p.Token(t.Context()); !errors.Is(err, redistoken.ErrClosed) {
		t.Errorf("Token after Close: got %v, want %v", err, redistoken.ErrClosed)
	}
}
