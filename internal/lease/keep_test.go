package lease_test

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"holdfast/internal/lease"
	"holdfast/internal/testenv"
)

// Keep renews by real timers, so these terms are short.
const short = 300 * time.Millisecond

var quiet = slog.New(slog.DiscardHandler)

// keeping runs Keep until stop is called, which returns its result.
func keeping(t *testing.T, l *lease.Lease, fn func(context.Context) error) (stop func() error) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	result := make(chan error, 1)
	go func() { result <- l.Keep(ctx, quiet, fn) }()
	stop = sync.OnceValue(func() error {
		cancel()
		return <-result
	})
	t.Cleanup(func() { _ = stop() })
	return stop
}

// answers lets a test wait for that many calls to Redis to have returned.
func answers(t *testing.T, rdb *redis.Client) (wait func(n int)) {
	t.Helper()
	answered := make(chan struct{}, 1024)
	rdb.AddHook(after(func() { answered <- struct{}{} }))
	return func(n int) {
		for range n {
			<-answered
		}
	}
}

func TestKeep_HoldsTheTermPastItsLengthAndReleasesItAtTheEnd(t *testing.T) {
	t.Parallel()
	rdb := client(t, testenv.Redis(t).Addr())
	wait := answers(t, rdb)
	began := make(chan context.Context, 8)
	stop := keeping(t, lease.New(rdb, key, short, time.Now), func(ctx context.Context) error {
		began <- ctx
		<-ctx.Done()
		return ctx.Err()
	})
	work := <-began
	wait(10) // renewals come a third of the length apart: the first term is long over
	if err := context.Cause(work); err != nil {
		t.Errorf("context within a renewed term: got ended by %v, want alive", err)
	}
	if err := stop(); err != nil {
		t.Errorf("Keep after its context: got %v, want nil", err)
	}
	if n := rdb.Exists(t.Context(), key).Val(); n != 0 {
		t.Error("key after Keep: got it still there, want it released")
	}
}

func TestKeep_LockLostMidWorkEndsTheWorkAndStandsAgain(t *testing.T) {
	t.Parallel()
	rdb := client(t, testenv.Redis(t).Addr())
	began, ended := make(chan struct{}, 8), make(chan error, 8)
	keeping(t, lease.New(rdb, key, short, time.Now), func(ctx context.Context) error {
		began <- struct{}{}
		<-ctx.Done()
		ended <- context.Cause(ctx)
		return errors.New("half done")
	})
	<-began
	if err := rdb.Set(t.Context(), key, "another", short).Err(); err != nil {
		t.Fatalf("SET: got %v, want nil", err)
	}
	if err := <-ended; !errors.Is(err, lease.ErrLost) {
		t.Errorf("cause of the end: got %v, want ErrLost", err)
	}
	<-began // elected again once the other one's key has expired
}

func TestKeep_SilentRedisEndsTheWorkWithoutWaitingForIt(t *testing.T) {
	t.Parallel()
	server := testenv.Redis(t)
	rdb := client(t, server.Addr())
	began, ended := make(chan time.Time, 8), make(chan time.Time, 8)
	stop := keeping(t, lease.New(rdb, key, short, time.Now), func(ctx context.Context) error {
		began <- time.Now()
		<-ctx.Done()
		ended <- time.Now()
		return nil
	})
	start := <-began
	if err := server.Freeze(); err != nil {
		t.Fatalf("Freeze: got %v, want nil", err)
	}
	// A renewal waits for its answer up to the client's 5 s; trust does not.
	if got, most := (<-ended).Sub(start), 3*time.Second; got > most {
		t.Errorf("work went on for %s with Redis frozen, want less than %s", got, most)
	}
	if err := server.Thaw(); err != nil {
		t.Fatalf("Thaw: got %v, want nil", err)
	}
	if err := stop(); err != nil {
		t.Errorf("Keep after its context: got %v, want nil", err)
	}
}

func TestKeep_OneOfTwoWorksAtATime(t *testing.T) {
	t.Parallel()
	addr := testenv.Mini(t)
	var working atomic.Int64
	turns := make(chan struct{}, 64)
	turn := func(ctx context.Context) error {
		if n := working.Add(1); n != 1 {
			t.Errorf("at work at once: got %d, want 1", n)
		}
		defer working.Add(-1)
		turns <- struct{}{}
		<-ctx.Done()
		return nil
	}
	first := keeping(t, lease.New(client(t, addr), key, length, time.Now), turn)
	<-turns
	second := keeping(t, lease.New(client(t, addr), key, short, time.Now), turn)
	_ = first()
	<-turns // the second takes over without waiting for the first one's key to expire
	_ = second()
}

func TestKeep_ReturnsWhatTheWorkReturned(t *testing.T) {
	t.Parallel()
	m := miniredis.RunT(t)
	boom := errors.New("boom")
	for _, want := range []error{boom, nil} {
		err := lease.New(client(t, m.Addr()), key, short, time.Now).Keep(t.Context(), quiet,
			func(context.Context) error { return want })
		if !errors.Is(err, want) {
			t.Errorf("Keep: got %v, want %v", err, want)
		}
		if m.Exists(key) {
			t.Error("key after Keep: got it still there, want it released")
		}
	}
}

func TestKeep_UnreachableRedisIsOutlived(t *testing.T) {
	t.Parallel()
	m := miniredis.RunT(t)
	m.SetError("LOADING")
	rdb := client(t, m.Addr())
	wait := answers(t, rdb)
	began := make(chan struct{}, 8)
	stop := keeping(t, lease.New(rdb, key, short, time.Now), func(ctx context.Context) error {
		began <- struct{}{}
		<-ctx.Done()
		return nil
	})
	wait(3) // refused elections
	select {
	case <-began:
		t.Error("work began without Redis, want it to wait")
	default:
	}
	m.SetError("")
	<-began
	if err := stop(); err != nil {
		t.Errorf("Keep after its context: got %v, want nil", err)
	}
}
