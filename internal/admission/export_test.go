package admission

import "time"

// HoldTurn keeps everybody waiting until the returned function is called, which
// sends all that wait as one batch.
func (g *Gate) HoldTurn() (release func()) {
	g.group.mu.Lock()
	defer g.group.mu.Unlock()
	if g.group.led {
		panic("somebody has the turn")
	}
	g.group.led, g.group.lone = true, false
	turn := g.group.turn
	return func() { g.group.pass(turn) }
}

// Waiting is how many admissions wait for a turn.
func (g *Gate) Waiting() int {
	g.group.mu.Lock()
	defer g.group.mu.Unlock()
	return len(g.group.waiting)
}

// AtRest tells whether nobody waits, leads or is led, and nothing is kept of those who
// were.
func (g *Gate) AtRest() bool {
	g.group.mu.Lock()
	defer g.group.mu.Unlock()
	return !g.group.led && len(g.group.waiting)+len(g.group.atWork)+len(g.group.ends) == 0
}

// SetWaitingMost changes how many may.
func (g *Gate) SetWaitingMost(n int) {
	g.group.mu.Lock()
	defer g.group.mu.Unlock()
	g.group.most = n
}

// BreakerOpen tells whether the breaker is open.
func (g *Gate) BreakerOpen() bool { return g.breaker.isOpen() }

// SetBreakerClock moves the breaker's clock.
func (g *Gate) SetBreakerClock(now func() time.Time) {
	g.breaker.mu.Lock()
	defer g.breaker.mu.Unlock()
	g.breaker.now = now
}

// SetBreakerRun changes how many missing acknowledgements open the breaker.
func (g *Gate) SetBreakerRun(n int) {
	g.breaker.mu.Lock()
	defer g.breaker.mu.Unlock()
	g.breaker.run = n
}
