package overload

import (
	"context"
	"sync"
	"time"
)

const (
	// mostWait is how long a piece of work waits for a calmer moment: longer than the worst
	// of a rush, and short enough that, but for a long queue, it is done before the minute is over
	// after which the reconciler looks whether it was.
	mostWait = 40 * time.Second
	// lookAgain is from one look for a calmer moment to the next.
	lookAgain = 250 * time.Millisecond
	// atOnce is how much of it runs at one time: it is to fill what is free, and not to
	// bring the next rush.
	atOnce = 8
)

// Later runs work that can wait, in its order: at once while there are processors to
// spare, and else when there are or after 40 s, a few at a time. What has not begun when
// Run ends is begun then, and counted among what a drain waits for; before Run and after
// it, everything is begun at once. Safe for concurrent use.
type Later struct {
	busy func() bool
	run  func(fn func()) bool

	mu      sync.Mutex
	queue   []later
	running bool
	wake    chan struct{} // holds one token while something may be waiting
}

type later struct {
	fn    func()
	until time.Time // it waits no longer
}

// NewLater asks busy whether there is too much to do, and has run count and start what
// begins; run answers false when nothing may begin any more.
func NewLater(busy func() bool, run func(fn func()) bool) *Later {
	return &Later{busy: busy, run: run, wake: make(chan struct{}, 1)}
}

// Go has fn run sooner or later, and answers false, and does not, when nothing may begin
// any more.
func (l *Later) Go(fn func()) bool {
	l.mu.Lock()
	if !l.running {
		l.mu.Unlock()
		return l.run(fn)
	}
	l.queue = append(l.queue, later{fn, time.Now().Add(mostWait)})
	l.mu.Unlock()
	select {
	case l.wake <- struct{}{}:
	default:
	}
	return true
}

// Run has things wait until ctx ends, and then begins all that is left. It returns nil, and
// is called once.
func (l *Later) Run(ctx context.Context) error {
	l.mu.Lock()
	l.running = true
	l.mu.Unlock()
	defer l.end()
	slots := make(chan struct{}, atOnce)
	for {
		next, ok := l.first()
		var pause <-chan time.Time
		switch {
		case !ok: // until there is something
		case l.busy() && time.Now().Before(next.until):
			pause = time.After(lookAgain)
		default:
			select {
			case slots <- struct{}{}:
			case <-ctx.Done():
				return nil
			}
			l.drop()
			free := func() { <-slots }
			if !l.run(func() { defer free(); next.fn() }) {
				free()
			}
			continue
		}
		select {
		case <-ctx.Done():
			return nil
		case <-pause:
		case <-l.wake:
		}
	}
}

// first is what has waited longest.
func (l *Later) first() (later, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.queue) == 0 {
		return later{}, false
	}
	return l.queue[0], true
}

// drop takes the first from the queue.
func (l *Later) drop() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.queue[0] = later{}
	l.queue = l.queue[1:]
}

// end begins what is left, and has what comes later begin at once.
func (l *Later) end() {
	l.mu.Lock()
	left := l.queue
	l.queue, l.running = nil, false
	l.mu.Unlock()
	for _, w := range left {
		l.run(w.fn)
	}
}
