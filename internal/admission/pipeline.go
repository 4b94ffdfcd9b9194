package admission

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

// What moves one seat on, or looks at one, travels with others of its kind when there
// are many: one pipeline, one WAIT. The first few go at once and alone; who comes while
// as many pipelines are under way as there may be waits for the next, which takes along
// all that wait by then. A connection and a WAIT each would have a machine with too much
// to do run out of connections, since each is then held for long, and a payment that was
// already made would find none.
const (
	pipelinesMost = 8   // of a kind under way, but for those that are stuck
	togetherMost  = 128 // calls in one
	// A pipeline that takes longer than stuckAfter lets another begin: it may have a
	// connection whose other end is gone without a word, and the next one too.
	stuckAfter = 100 * time.Millisecond
	stuckMost  = 64
)

// lane is one kind of call. The zero value is not ready: it needs send.
type lane struct {
	send func([]*errand) // brings each to its end; never called with none

	mu       sync.Mutex
	waiting  []*errand
	underWay int // but for those that are stuck
	stuck    int
}

// errand is one command on its way.
type errand struct {
	ctx    context.Context // the caller's, with a deadline; only its end matters
	args   []any           // of EVALSHA, or of a plain command
	source string          // of the script that args names at [1]; "" for a plain command

	taken bool // by a pipeline; under the lane's lock

	// Set before done is closed.
	cmd   *redis.Cmd
	acked bool
	done  chan struct{}
}

// run brings the errand to its end. When the time of its context is over it may still be
// sent, or be under way, and none of what it had may be used any more; so it was on a
// connection of its own. A context that is cancelled ends the wait of one that nobody has
// taken yet; the answer of one that is under way is still worth having.
func (l *lane) run(e *errand) error {
	e.done = make(chan struct{})
	l.mu.Lock()
	l.waiting = append(l.waiting, e)
	l.another()
	l.mu.Unlock()
	select {
	case <-e.done:
		return e.cmd.Err()
	case <-e.ctx.Done():
	}
	l.mu.Lock()
	underWay := e.taken
	l.mu.Unlock()
	if !underWay || errors.Is(e.ctx.Err(), context.DeadlineExceeded) {
		return e.ctx.Err()
	}
	<-e.done // within the pipeline's own time
	return e.cmd.Err()
}

// another begins a pipeline if somebody waits and one more may be; under the lock.
func (l *lane) another() {
	if len(l.waiting) > 0 && l.underWay < pipelinesMost {
		l.underWay++
		go l.drive()
	}
}

// drive sends those who wait until nobody does.
func (l *lane) drive() {
	for batch := l.take(); batch != nil; batch = l.take() {
		arrived, stuck := false, false // under the lock
		watch := time.AfterFunc(stuckAfter, func() {
			l.mu.Lock()
			defer l.mu.Unlock()
			if arrived || l.stuck >= stuckMost {
				return
			}
			stuck = true
			l.stuck++
			l.underWay--
			l.another()
		})
		l.bring(batch)
		watch.Stop()
		l.mu.Lock()
		arrived = true
		if stuck {
			l.stuck--
			l.underWay++ // one more than there may be, until one of them finds nobody waiting
		}
		l.mu.Unlock()
	}
}

// bring sends a batch. Whatever happens, each of it has an end: a panic here would be the
// whole process's, with every call that is under way in it.
func (l *lane) bring(batch []*errand) {
	defer func() {
		p := recover()
		for _, e := range batch {
			if p != nil {
				e.cmd, e.acked = redis.NewCmd(e.ctx), false
				e.cmd.SetErr(fmt.Errorf("panic in a pipeline: %v\n%s", p, debug.Stack()))
			}
			close(e.done)
		}
	}()
	l.send(batch)
}

// take is who travels together, without those whose callers have left; nil is nobody, and
// this pipeline is then no longer under way.
func (l *lane) take() []*errand {
	l.mu.Lock()
	defer l.mu.Unlock()
	for len(l.waiting) > 0 {
		n := min(len(l.waiting), togetherMost)
		batch := make([]*errand, 0, n)
		for _, e := range l.waiting[:n] {
			if e.ctx.Err() == nil {
				e.taken = true
				batch = append(batch, e)
			}
		}
		l.waiting = l.waiting[n:]
		if len(batch) > 0 {
			return batch
		}
	}
	l.waiting = nil
	l.underWay--
	return nil
}

// lastEnd is when nobody of them waits any more: every context has a deadline.
func lastEnd(batch []*errand) time.Time {
	var last time.Time
	for _, e := range batch {
		if end, _ := e.ctx.Deadline(); end.After(last) {
			last = end
		}
	}
	return last
}

// sendWrites sends the errands with one WAIT behind them.
func (g *Gate) sendWrites(batch []*errand) {
	acks := g.acks()
	wait := g.sendTogether(batch, func(ctx context.Context) *redis.IntCmd { return waitFor(ctx, acks) })
	if err := wait.Err(); notPrimary(err) {
		// The new primary may not have what was done here: do it there.
		g.cohorts.retire()
		for _, e := range batch {
			if e.cmd.Err() == nil {
				e.cmd.SetErr(err)
			}
		}
		return
	}
	// A time-out can leave a value and an error; the script's own word stands when it
	// came, and a WAIT that failed has acknowledged nothing.
	acked := acks == 0 || (wait.Err() == nil && wait.Val() >= int64(acks))
	wrote := false
	for _, e := range batch {
		e.acked = acked
		wrote = wrote || e.cmd.Err() == nil && !isUnknown(e.cmd.Val())
	}
	if acks > 0 && wrote {
		g.breaker.note(acked)
	}
}

// isUnknown is the answer of a ledger without an epoch, which writes nothing that could
// be acknowledged.
func isUnknown(answer any) bool {
	list, ok := answer.([]any)
	return ok && len(list) > 0 && list[0] == "unknown"
}

// sendReads sends the errands; nothing may rest on the answers.
func (g *Gate) sendReads(batch []*errand) { g.sendTogether(batch, nil) }

// sendTogether sends the errands in one pipeline, once more with their source those whose
// script the server had forgotten, and what is to follow behind them.
func (g *Gate) sendTogether(batch []*errand, follow func(context.Context) *redis.IntCmd) *redis.IntCmd {
	// Not a caller's context: a pipeline belongs to all of them, and ends with the last.
	ctx, cancel := context.WithDeadline(context.Background(), lastEnd(batch))
	defer cancel()
	conn := g.rdb.Conn()
	defer func() { _ = conn.Close() }() // gives the connection back to the pool
	exchange := func() (behind *redis.IntCmd) {
		pipe := conn.Pipeline()
		for _, e := range batch {
			if e.cmd == nil {
				e.cmd = redis.NewCmd(ctx, e.args...)
				_ = pipe.Process(ctx, e.cmd)
			}
		}
		if follow != nil {
			behind = follow(ctx)
			_ = pipe.Process(ctx, behind)
		}
		exec(ctx, pipe)
		return behind
	}
	behind := exchange()
	forgotten := map[string]bool{}
	for _, e := range batch {
		if e.source == "" || !noScript(e.cmd.Err()) {
			continue
		}
		if !forgotten[e.source] { // the first brings it for the others
			forgotten[e.source] = true
			e.args = append([]any{"EVAL", e.source}, e.args[2:]...)
		}
		e.cmd = nil
	}
	if len(forgotten) > 0 {
		behind = exchange()
	}
	return behind
}
