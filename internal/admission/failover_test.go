package admission_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"holdfast/internal/admission"
	"holdfast/internal/booking"
	"holdfast/internal/testenv"
)

// requestBudget is what a request gives to Redis.
const requestBudget = time.Second

// watched is a ledger that keeps count of its replicas, as in a running process.
func watched(t *testing.T, s *testenv.Shard) *ledger {
	t.Helper()
	l := newLedger(t, connect(t, s.Front.Addr()), admission.AcksAuto)
	if err := l.LearnReplicas(t.Context()); err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- l.Watch(ctx) }()
	t.Cleanup(func() {
		stop()
		if err := <-done; err != nil {
			t.Errorf("watch: %v", err)
		}
	})
	return l
}

// load is requests at a steady rate, each in a goroutine of its own and with a
// budget, as an API process has them. Whether they are answered does not slow it.
type load struct {
	*tally
	cancel context.CancelFunc
	wg     sync.WaitGroup
	flying atomic.Int64

	mu    sync.Mutex
	shots []shot
	ticks []tick
}

// shot is one request's life.
type shot struct {
	began, ended time.Time
	err          error
}

// tick is how many requests had been offered by then.
type tick struct {
	at      time.Time
	offered int
}

// A late tick offers what its time would have brought: no more of it at once than
// this, and, as the race detector bears no more than 8,000 goroutines, no more
// under way. What is left waits for the next tick.
const (
	offeredAtOnce = 200
	flyingMost    = 3000
)

// shoot offers that many requests a second until the load is ended.
func shoot(t *testing.T, l *ledger, perSecond int, nth func(n int) booking.Request) *load {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	d := &load{tally: newTally(), cancel: cancel}
	t.Cleanup(func() { d.end() })
	d.wg.Go(func() {
		clock := time.NewTicker(2 * time.Millisecond)
		defer clock.Stop()
		began := time.Now()
		for n := 0; ; {
			select {
			case <-ctx.Done():
				return
			case <-clock.C:
			}
			now := time.Now()
			due := int(now.Sub(began).Seconds() * float64(perSecond))
			for end := min(due, n+offeredAtOnce); n < end && d.flying.Load() < flyingMost; n++ {
				d.flying.Add(1)
				r := nth(n)
				d.wg.Go(func() {
					defer d.flying.Add(-1)
					s := shot{began: time.Now()}
					s.err = d.admit(l, r, requestBudget)
					s.ended = time.Now()
					d.mu.Lock()
					defer d.mu.Unlock()
					d.shots = append(d.shots, s)
				})
			}
			d.mu.Lock()
			d.ticks = append(d.ticks, tick{now, n})
			d.mu.Unlock()
		}
	})
	return d
}

// figures are what happened each second of a span of time.
type figures struct {
	span                              time.Duration
	offered, sent, answered, admitted float64
}

func (f figures) String() string {
	return fmt.Sprintf("%.0f requests/s offered, %.0f sent, %.0f answered, %.0f admitted, over %s",
		f.offered, f.sent, f.answered, f.admitted, f.span.Round(time.Millisecond))
}

// during gives the figures from the first tick to the last in that time. Answered,
// of what was sent in it, is what heard a word other than to try again.
func (d *load) during(from, to time.Time) (f figures) {
	d.mu.Lock()
	defer d.mu.Unlock()
	var in []tick
	for _, k := range d.ticks {
		if k.at.After(from) && k.at.Before(to) {
			in = append(in, k)
		}
	}
	if len(in) < 2 {
		return figures{}
	}
	first, last := in[0], in[len(in)-1]
	within := func(at time.Time) bool { return at.After(first.at) && !at.After(last.at) }
	f.span, f.offered = last.at.Sub(first.at), float64(last.offered-first.offered)
	for _, s := range d.shots {
		if !within(s.began) {
			continue
		}
		f.sent++
		if s.ended.After(to) {
			continue
		}
		if isAdmitted(s.err) {
			f.admitted++
		}
		if isAdmitted(s.err) || isFull(s.err) || errors.Is(s.err, booking.ErrDuplicate) {
			f.answered++
		}
	}
	for _, n := range []*float64{&f.offered, &f.sent, &f.answered, &f.admitted} {
		*n /= f.span.Seconds()
	}
	return f
}

// and adds the figures of another load in the same time.
func (f figures) and(o figures) figures {
	return figures{min(f.span, o.span), f.offered + o.offered, f.sent + o.sent, f.answered + o.answered, f.admitted + o.admitted}
}

// end stops the load, waits for what is under way, and returns it all.
func (d *load) end() []shot {
	d.cancel()
	d.wg.Wait()
	return d.between(time.Time{}, time.Now())
}

// between are the requests that began and ended in that time.
func (d *load) between(from, to time.Time) []shot {
	d.mu.Lock()
	defer d.mu.Unlock()
	var in []shot
	for _, s := range d.shots {
		if s.began.After(from) && s.ended.Before(to) {
			in = append(in, s)
		}
	}
	return in
}

// await waits until n requests that began after from have ended like that.
func (d *load) await(t *testing.T, from time.Time, n int, like func(error) bool) {
	t.Helper()
	testenv.Eventually(t, func() error {
		got, heard := 0, map[string]int{}
		for _, s := range d.between(from, time.Now()) {
			if like(s.err) {
				got++
			}
			heard[fmt.Sprint(s.err)]++
		}
		if got < n {
			return fmt.Errorf("%d requests ended as wanted, want %d; heard %v, %d under way", got, n, heard, d.flying.Load())
		}
		return nil
	})
}

func isAdmitted(err error) bool { return err == nil }
func isFull(err error) bool     { return errors.Is(err, booking.ErrLevelFull) }
func isAny(error) bool          { return true }

// Case 7: the replica goes under load. No admission is confirmed, everyone who
// would get a seat hears "try again" within the budget, rejections stay fast, and
// it goes on by itself when the replica is back.
func TestReplicaGone_UnderLoad(t *testing.T) {
	t.Parallel()
	testenv.OnEngines(t, func(t *testing.T, e testenv.Engine) {
		s := e.Shard(t, 1)
		l := watched(t, s)
		sale := l.sell(t, 6000, 6000, 0)
		takers := shoot(t, l, 500, func(n int) booking.Request { return request(1+n%5999, "N1") })
		rejected := shoot(t, l, 500, func(int) booking.Request { return request(0, "N2") })
		takers.await(t, time.Time{}, 200, isAdmitted)

		s.Links[0].Cut()
		cut := time.Now()
		testenv.Eventually(t, func() error {
			if !l.BreakerOpen() {
				return errors.New("the breaker is closed")
			}
			return nil
		})
		open := time.Now()
		takers.await(t, open, 100, isAny) // and nobody is under way who asked before
		settled := time.Now()
		takers.await(t, settled, 300, isAny)
		back := time.Now()
		s.Links[0].Forward()
		takers.await(t, back, 200, isAdmitted)
		takers.end()
		rejected.end()

		for _, shot := range takers.between(cut, back) {
			took := shot.ended.Sub(shot.began)
			if !errors.Is(shot.err, booking.ErrTryAgain) && !errors.Is(shot.err, booking.ErrDuplicate) || took > requestBudget {
				t.Errorf("without the replica: heard %v after %s, want try again within %s", shot.err, took, requestBudget)
			}
		}
		var took []time.Duration
		for _, shot := range rejected.between(settled, back) {
			if !isFull(shot.err) {
				t.Errorf("a rejection became %v", shot.err)
			}
			took = append(took, shot.ended.Sub(shot.began))
		}
		slices.Sort(took)
		if len(took) < 100 || took[len(took)/2] > 50*time.Millisecond {
			t.Errorf("rejections without the replica: got %d, median %s, want 100 at 50 ms or less", len(took), took[len(took)/2])
		}
		takers.wantRows(t, l.audit(t, sale))
		replica := l.another(t, connect(t, s.Replicas[0].Addr()), 0)
		takers.wantRows(t, replica.audit(t, sale))
	})
}

// Case 8: replication is blocked, five are admitted that nobody acknowledges, the
// primary dies and a replica takes its place. What was acknowledged is there, and
// the cap holds.
func TestFailover_WithReplicationBlockedSellsNothingTwice(t *testing.T) {
	t.Parallel()
	const seats = 5
	testenv.OnEngines(t, func(t *testing.T, e testenv.Engine) {
		for name, block := range map[string]func(t *testing.T, s *testenv.Shard){
			"CutOff": func(_ *testing.T, s *testenv.Shard) {
				for _, link := range s.Links {
					link.DropReplies()
				}
			},
			// What a frozen replica was sent waits for it, the undo as well.
			"Frozen": func(t *testing.T, s *testenv.Shard) {
				for _, r := range s.Replicas {
					if err := r.Freeze(); err != nil {
						t.Fatal(err)
					}
				}
			},
			"OneOfTwo": func(_ *testing.T, s *testenv.Shard) { s.Links[0].DropReplies() },
		} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				s := e.Shard(t, 2)
				l, c := watched(t, s), newTally()
				sale := l.sell(t, 200, seats)
				admit := func(i int) error { return c.admit(l, request(i, "N1"), requestBudget) }
				if err := errors.Join(admit(1), admit(2)); err != nil {
					t.Fatal(err)
				}
				block(t, s)
				for i := 3; i < 3+seats; i++ {
					wantErr(t, "admission that not every replica has", admit(i), booking.ErrTryAgain)
				}
				s.Primary.Kill()
				for _, r := range s.Replicas {
					if err := r.Thaw(); err != nil {
						t.Fatal(err)
					}
				}
				s.Promote(t)
				i := 10
				testenv.Eventually(t, func() error {
					i++
					if err := admit(i % 100); err != nil && !isFull(err) {
						return err
					}
					return nil
				})
				rush(20, 100, func(i int) { _ = admit(100 + i) }) // noted
				if len(c.seats) != seats {
					t.Errorf("acknowledged: got %d seats, want %d; %v, %v", len(c.seats), seats, c.heard, c.other)
				}
				c.other = nil // what was heard while the primary was dead
				c.wantRows(t, l.audit(t, sale))
			})
		}
	})
}

// The primary dies under 2,000 requests a second, a fifth of which get a seat, and
// the replica that has most takes its place behind the same address: admissions go
// on within 5 s without a restart, every one that was acknowledged is there, and the
// cap holds. So too when the old primary hangs with its connections open and comes
// back later. What is asserted of the rate is what was offered, before and after:
// how much of it is answered is the machine's.
func TestFailover_UnderLoad(t *testing.T) {
	t.Parallel()
	const seats, candidates, atLeast = 1200, 12000, 2000.0
	testenv.OnEngines(t, func(t *testing.T, e testenv.Engine) {
		for name, hangs := range map[string]bool{"Dies": false, "Hangs": true} {
			t.Run(name, func(t *testing.T) {
				s := e.Shard(t, 2)
				l := watched(t, s)
				sale := l.sell(t, candidates, seats, 0)
				takers := shoot(t, l, 420, func(n int) booking.Request { return request(1+n%(candidates-1), "N1") })
				others := shoot(t, l, 1680, func(int) booking.Request { return request(0, "N2") })
				began := time.Now()
				takers.await(t, time.Time{}, 500, isAdmitted)
				killed := time.Now()

				old := s.Primary
				var promoted time.Time
				if hangs {
					if err := old.Freeze(); err != nil {
						t.Fatal(err)
					}
					promoted = s.Promote(t)
				} else {
					promoted = s.Failover(t)
				}
				takers.await(t, promoted, 100, isAdmitted)
				first := time.Now()
				for _, shot := range takers.between(promoted, time.Now()) {
					if shot.err == nil && shot.ended.Before(first) {
						first = shot.ended
					}
				}
				took := first.Sub(promoted)
				if took > 5*time.Second {
					t.Errorf("the first admission came %s after the promotion, want within 5s", took)
				}
				if hangs {
					if err := old.Thaw(); err != nil {
						t.Fatal(err)
					}
				}
				takers.await(t, promoted, 500, isFull)
				ended := time.Now()
				shots := takers.end()
				others.end()

				rows := l.another(t, connect(t, s.Primary.Addr()), 0).audit(t, sale)
				takers.wantKept(t, rows)
				if len(rows) != seats {
					t.Errorf("seats taken: got %d, want all %d", len(rows), seats)
				}
				for code, row := range rows {
					if _, acked := takers.seats[code]; !acked && row.Phase != booking.PhaseNew {
						t.Errorf("%s: got %s, want a seat that nobody was told of to be new", code, row.Phase)
					}
				}
				for when, f := range map[string]figures{
					"before": takers.during(began, killed).and(others.during(began, killed)),
					"after":  takers.during(first, ended).and(others.during(first, ended)),
				} {
					t.Logf("%s: %s", when, f)
					if f.offered < atLeast || f.span < 500*time.Millisecond {
						t.Errorf("%s: got %.0f requests/s offered over %s, want %.0f over half a second or more", when, f.offered, f.span, atLeast)
					}
				}
				before := 0
				for _, shot := range shots {
					if shot.err == nil && shot.ended.Before(killed) {
						before++
					}
				}
				t.Logf("first admission %s after the promotion, which came %s after the loss; %d told of a seat before it, %d after; %d seats taken of %d",
					took.Round(time.Millisecond), promoted.Sub(killed).Round(time.Millisecond), before, len(takers.seats)-before, len(rows), seats)
			})
		}
	})
}
