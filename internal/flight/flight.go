// Package flight counts work that has to be finished once it is begun: the
// calls that run on a context of their own because money or a seat may already
// have moved. Nobody's request waits for them any more, so a process that ends
// has to.
//
// A drain is: stop taking requests, Close, Wait within the drain's budget. What
// is still at work when the budget ends is told in Wait's error and left to the
// reconciler. The package starts no work by itself, reads no clock and cannot
// fail otherwise.
package flight

import (
	"context"
	"fmt"
	"sync"
)

// Group is a set of detached calls. The zero value is ready. Safe for
// concurrent use; must not be copied after first use.
type Group struct {
	mu     sync.Mutex
	n      int
	closed bool
	idle   chan struct{} // made by the first waiter; closed when n is 0 and the group closed
}

// Track counts one piece of work that the caller runs itself. When ok, the
// caller must call done at its end; calling it again changes nothing. When the
// group is closed ok is false, done does nothing, and the work must not begin.
func (g *Group) Track() (done func(), ok bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed {
		return func() {}, false
	}
	g.n++
	return sync.OnceFunc(g.done), true
}

// Go runs fn on a goroutine of its own and counts it until it returns. It
// answers false, and does not run fn, once the group is closed: work already in
// flight therefore finishes its own steps itself and does not hand them to Go.
func (g *Group) Go(fn func()) bool {
	done, ok := g.Track()
	if !ok {
		return false
	}
	go func() {
		defer done()
		fn()
	}()
	return true
}

// Close refuses new work from now on. Safe to repeat.
func (g *Group) Close() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.closed = true
	g.wake()
}

// Wait closes the group and returns nil when nothing is in flight any more, or
// an error that wraps the context's and says how much was left. Safe to repeat
// and to call from several goroutines.
func (g *Group) Wait(ctx context.Context) error {
	g.mu.Lock()
	if g.idle == nil {
		g.idle = make(chan struct{})
	}
	idle := g.idle
	g.closed = true
	g.wake()
	g.mu.Unlock()

	select {
	case <-idle:
		return nil
	default: // an idle group is idle even when the context has ended
	}
	select {
	case <-idle:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("wait for calls in flight (%d left): %w", g.InFlight(), ctx.Err())
	}
}

// InFlight is how much is being worked on now.
func (g *Group) InFlight() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.n
}

func (g *Group) done() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.n--
	g.wake()
}

// wake lets the waiters go once nothing is, or can come, in flight. Since a
// closed group takes no more work, it happens once.
func (g *Group) wake() {
	if !g.closed || g.n > 0 || g.idle == nil {
		return
	}
	select {
	case <-g.idle:
	default:
		close(g.idle)
	}
}
