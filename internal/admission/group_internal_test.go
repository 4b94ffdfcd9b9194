package admission

import (
	"slices"
	"testing"
	"time"
)

// In a stall thousands wait, and each that the tick wakes for nothing stands in the way
// of the one who could end it.
func TestTick_WakesThoseWhoseTimeIsOverAndNobodyElse(t *testing.T) {
	t.Parallel()
	q := group{most: waitingMost, led: true}
	over, soon := time.Now(), time.Now().Add(time.Hour)
	wait := func(until time.Time) *job {
		j := &job{ctx: t.Context(), until: until, signal: make(chan signal, 1)}
		if at, err := q.join(j); err != nil || at.lead {
			t.Fatalf("join: got %+v, %v, want a place in the queue", at, err)
		}
		return j
	}
	first, lost := wait(over), wait(over)
	patient := wait(soon)
	batch := q.take()
	if want := []*job{first, lost, patient}; !slices.Equal(batch, want) {
		t.Fatalf("taken: got %d jobs, want the three that wait, in order", len(batch))
	}
	leads := wait(over)
	q.pass(q.turn)
	waits, answered, stays := wait(over), wait(over), wait(soon)
	q.finish(answered, outcome{})

	q.tick()
	for name, c := range map[string]struct {
		job  *job
		told bool
	}{
		"at work, over": {lost, true}, "at work, in time": {patient, false},
		"waits, over": {waits, true}, "waits, in time": {stays, false},
	} {
		if got := len(c.job.signal) > 0; got != c.told || c.job.gone != c.told {
			t.Errorf("%s: woken is %t and given up %t, want both %t", name, got, c.job.gone, c.told)
		}
	}
	if s := <-lost.signal; !s.over {
		t.Errorf("at work, over: got %+v, want that its time is over", s)
	}
	if s := <-leads.signal; !s.lead || leads.gone {
		t.Errorf("who has the turn: got %+v, given up %t, want the turn and nothing else", s, leads.gone)
	}
	if s := <-answered.signal; s.lead || s.over {
		t.Errorf("who has an outcome: got %+v, want the outcome and nothing else", s)
	}
	if slices.Contains(q.waiting, waits) || !slices.Contains(q.waiting, stays) {
		t.Error("in the queue: want those in time and nobody whose time is over")
	}
	if q.finish(lost, outcome{}) {
		t.Error("an outcome was given to one who had been told that the time is over")
	}
	if !q.ticking {
		t.Error("somebody waits, and no tick will come")
	}
	q.done(batch)
	if len(q.atWork) > 0 {
		t.Errorf("at work: got %d batches after the only one's end, want none", len(q.atWork))
	}
}

// A turn that took long has too much to do behind it, not Redis: those who wait must not
// each wait for a turn of thirty-two.
func TestTake_TakesAlongAllOnceSomebodyHasWaitedForLong(t *testing.T) {
	t.Parallel()
	const wait = 3 * runMost
	taken := func(since time.Duration) int {
		q := group{most: waitingMost, led: true}
		for range wait {
			if _, err := q.join(&job{ctx: t.Context(), until: time.Now().Add(time.Hour), signal: make(chan signal, 1)}); err != nil {
				t.Fatal(err)
			}
		}
		q.mu.Lock()
		for _, j := range q.waiting {
			j.joined = time.Now().Add(-since)
		}
		q.mu.Unlock()
		defer func() { // and no tick after the next
			q.mu.Lock()
			defer q.mu.Unlock()
			q.waiting, q.atWork = nil, nil
		}()
		return len(q.take())
	}
	if n := taken(-time.Hour); n != runMost {
		t.Errorf("nobody has waited for long: got %d taken, want %d", n, runMost)
	}
	if n := taken(longWait + time.Millisecond); n != wait {
		t.Errorf("somebody has waited for long: got %d taken, want all %d", n, wait)
	}
	q := group{most: waitingMost, led: true}
	if n := len(q.take()); n != 0 {
		t.Errorf("nobody waits: got %d taken", n)
	}
}
