package admission

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
)

// A bug in what a pipeline does is its callers' error, and not the process's end.
func TestLane_APanicIsItsCallersError(t *testing.T) {
	t.Parallel()
	broken := true
	l := &lane{send: func(batch []*errand) {
		if broken {
			panic("a bug")
		}
		for _, e := range batch {
			e.cmd = redis.NewCmd(e.ctx)
		}
	}}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	if err := l.run(&errand{ctx: ctx}); err == nil || !strings.Contains(err.Error(), "a bug") {
		t.Errorf("got %v, want the panic", err)
	}
	broken = false
	if err := l.run(&errand{ctx: ctx}); err != nil {
		t.Errorf("the next one: got %v, want nil", err)
	}
}

// Pipelines that are stuck take no places from others, up to a bound, and give none twice.
func TestLane_StuckOnesLetOthersBegin(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		sending, most := 0, 0
		goOn := make(chan struct{})
		l := new(lane)
		l.send = func(batch []*errand) {
			l.mu.Lock()
			sending++
			most = max(most, sending)
			l.mu.Unlock()
			<-goOn
			l.mu.Lock()
			sending--
			l.mu.Unlock()
			for _, e := range batch {
				e.cmd = redis.NewCmd(e.ctx)
			}
		}
		const many = 40 * togetherMost
		ended := make(chan error, 2*many)
		call := func() {
			ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
			defer cancel()
			ended <- l.run(&errand{ctx: ctx})
		}
		for i, want := range []int{pipelinesMost, 2 * pipelinesMost, 3 * pipelinesMost} {
			for range many {
				if i == 0 {
					go call()
				}
			}
			synctest.Wait()
			l.mu.Lock()
			got := sending
			l.mu.Unlock()
			if got != want {
				t.Errorf("after %d times %s: got %d under way, want %d", i, stuckAfter, got, want)
			}
			time.Sleep(stuckAfter)
		}
		synctest.Wait()
		close(goOn)
		for range many {
			if err := <-ended; err != nil {
				t.Errorf("got %v, want nil", err)
			}
		}
		synctest.Wait()
		if l.underWay != 0 || l.stuck != 0 || len(l.waiting) != 0 {
			t.Errorf("at rest: got %d under way, %d stuck and %d waiting, want none", l.underWay, l.stuck, len(l.waiting))
		}
		if most > pipelinesMost+stuckMost {
			t.Errorf("most at once: got %d, want %d", most, pipelinesMost+stuckMost)
		}
	})
}
