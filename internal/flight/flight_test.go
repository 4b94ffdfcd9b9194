package flight_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"holdfast/internal/flight"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestWait_ReturnsOnlyWhenTheLastCallHasEnded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var g flight.Group
		release := make(chan struct{})
		if !g.Go(func() { <-release }) {
			t.Fatal("Go on an open group: got refused, want started")
		}
		done, ok := g.Track()
		if !ok {
			t.Fatal("Track on an open group: got refused, want tracked")
		}

		waited := make(chan error, 1)
		go func() { waited <- g.Wait(t.Context()) }()
		synctest.Wait()
		close(release)
		synctest.Wait()
		select {
		case err := <-waited:
			t.Fatalf("Wait returned %v with one call in flight, want it to wait", err)
		default:
		}

		done()
		if err := <-waited; err != nil {
			t.Errorf("Wait after the last call: got %v, want nil", err)
		}
	})
}

func TestWait_GivesUpWithItsContextAndSaysWhatIsLeft(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var g flight.Group
		done, _ := g.Track()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		err := g.Wait(ctx)
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Wait past its deadline: got %v, want it to wrap context.DeadlineExceeded", err)
		}
		if err != nil && !strings.Contains(err.Error(), "1 left") {
			t.Errorf("Wait's error: got %q, want it to say 1 left", err)
		}
		done()
		if err := g.Wait(ctx); err != nil {
			t.Errorf("Wait on an idle group with an ended context: got %v, want nil", err)
		}
	})
}

func TestClosed_RefusesNewWork(t *testing.T) {
	for name, end := range map[string]func(*flight.Group){
		"Close": (*flight.Group).Close,
		"Wait": func(g *flight.Group) {
			if err := g.Wait(t.Context()); err != nil {
				t.Errorf("Wait on an idle group: got %v, want nil", err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			var g flight.Group
			end(&g)
			end(&g)
			if g.Go(func() { t.Error("the refused work ran") }) {
				t.Error("Go on a closed group: got started, want refused")
			}
			done, ok := g.Track()
			if ok {
				t.Error("Track on a closed group: got tracked, want refused")
			}
			done()
			if n := g.InFlight(); n != 0 {
				t.Errorf("in flight after refused work: got %d, want 0", n)
			}
		})
	}
}

func TestTrack_DoneTwiceCountsOnce(t *testing.T) {
	var g flight.Group
	first, _ := g.Track()
	_, _ = g.Track()
	first()
	first()
	if n := g.InFlight(); n != 1 {
		t.Errorf("in flight after one done of two, called twice: got %d, want 1", n)
	}
}

func TestGroup_NothingRunsAfterWaitUnderContention(t *testing.T) {
	var g flight.Group
	var after atomic.Bool
	var started atomic.Int64
	var callers sync.WaitGroup
	for range 8 {
		callers.Go(func() {
			for g.Go(func() {
				if after.Load() {
					t.Error("work ran after Wait had returned")
				}
			}) {
				started.Add(1)
			}
		})
	}
	for started.Load() < 100 {
		done, _ := g.Track()
		done()
	}
	if err := g.Wait(t.Context()); err != nil {
		t.Errorf("Wait: got %v, want nil", err)
	}
	after.Store(true)
	callers.Wait()
}
