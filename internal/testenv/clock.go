package testenv

import (
	"sync"
	"time"
)

// Clock is real time and what the test adds to it, for parts that share one clock
// with servers of their own. Safe for concurrent use.
type Clock struct {
	mu      sync.Mutex
	added   time.Duration
	waiting map[*waiter]struct{}
}

type waiter struct {
	until time.Time
	done  chan time.Time
	timer *time.Timer
}

// NewClock is a clock that tells real time.
func NewClock() *Clock { return &Clock{waiting: map[*waiter]struct{}{}} }

// Added is what was added so far.
func (c *Clock) Added() time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.added
}

// Now is the time.
func (c *Clock) Now() time.Time { return time.Now().Add(c.Added()) }

// At gives a channel that gets a value once Now has reached t, by real time or by
// Add.
func (c *Clock) At(t time.Time) <-chan time.Time {
	w := &waiter{until: t, done: make(chan time.Time, 1)}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.waiting[w] = struct{}{}
	w.timer = time.AfterFunc(c.left(w), func() { c.ring(w) })
	return w.done
}

// Add moves the clock forward.
func (c *Clock) Add(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.added += d
	for w := range c.waiting {
		w.timer.Reset(c.left(w))
	}
}

func (c *Clock) left(w *waiter) time.Duration { return w.until.Sub(time.Now().Add(c.added)) }

func (c *Clock) ring(w *waiter) {
	c.mu.Lock()
	defer c.mu.Unlock()
	left := c.left(w)
	if left > 0 {
		w.timer.Reset(left)
		return
	}
	if _, waits := c.waiting[w]; waits { // Add may have rung it twice
		delete(c.waiting, w)
		w.done <- time.Now().Add(c.added)
	}
}
