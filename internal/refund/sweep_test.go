package refund_test

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"holdfast/internal/booking"
	"holdfast/internal/refund"
)

func (w *world) wantSweep(t *testing.T, want refund.Report) {
	t.Helper()
	got, err := w.Sweep(t.Context())
	if diff := cmp.Diff(want, got); diff != "" || err != nil {
		t.Errorf("Sweep: %v, -want +got:\n%s", err, diff)
	}
	if sum := got.Done + got.Person + got.Doubt + got.Busy + got.Failed + got.Left; sum != got.Open {
		t.Errorf("Sweep: %d of %d open refunds are told of", sum, got.Open)
	}
	w.wantDue(t, float64(want.Open-want.Done+want.Unreadable))
}

func (w *world) wantDue(t *testing.T, want float64) {
	t.Helper()
	families, err := w.reg.Gather()
	if err != nil || len(families) != 1 || families[0].GetName() != "holdfast_refunds_due" {
		t.Fatalf("metrics: got %v, %v, want holdfast_refunds_due alone", families, err)
	}
	if got := families[0].GetMetric()[0].GetGauge().GetValue(); got != want {
		t.Errorf("holdfast_refunds_due: got %v, want %v", got, want)
	}
}

func transactions(n int) []booking.Refund {
	var out []booking.Refund
	for i := range n {
		out = append(out, due(fmt.Sprintf("CK%d", i), start.Add(time.Duration(i)*time.Millisecond)))
	}
	return out
}

func TestSweep_SendsWhatIsOpenOldestFirst(t *testing.T) {
	t.Parallel()
	w := newWorld(t, func(d *refund.Deps) { d.Width = 1 })
	w.put(t, due("CK2", start.Add(time.Second)), due("CK1", start))
	w.wantSweep(t, refund.Report{Open: 2, Done: 2})
	w.wantCalls(t, "refund CK1", "refund CK2")
	w.wantSweep(t, refund.Report{})
	w.wantCalls(t)
}

func TestSweep_NotAutomaticCountsAndSendsNothing(t *testing.T) {
	t.Parallel()
	w := newWorld(t, func(d *refund.Deps) { d.Automatic = false })
	w.put(t, transactions(3)...)
	w.wantSweep(t, refund.Report{Open: 3, Left: 3})
	w.wantCalls(t)
	if _, err := w.Send(t.Context(), "CK1"); err != nil {
		t.Errorf("Send by hand: %v", err)
	}
	w.wantSweep(t, refund.Report{Open: 2, Left: 2})
}

func TestSweep_AsksAboutTroubleEvery10Minutes(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.put(t, due("CK1", start))
	w.gateway.set(refuses, clearly)
	w.wantSweep(t, refund.Report{Open: 1, Person: 1})
	w.wantCalls(t, "refund CK1")
	// Another process, which remembers nothing, has the record's word.
	other := newWorld(t, func(d *refund.Deps) { d.Store, d.Gateway, d.Now = w.store, w.gateway, w.clock.Now })
	w.clock.advance(10*time.Minute - time.Second)
	w.wantSweep(t, refund.Report{Open: 1, Left: 1})
	other.wantSweep(t, refund.Report{Open: 1, Left: 1})
	w.wantCalls(t)
	w.clock.advance(time.Second)
	w.gateway.set(refuses, notArrived) // trouble that leaves no new call in the record
	w.wantSweep(t, refund.Report{Open: 1, Doubt: 1})
	w.wantCalls(t, "status CK1")
	w.clock.advance(10*time.Minute - time.Second)
	w.wantSweep(t, refund.Report{Open: 1, Left: 1})
	w.clock.advance(time.Second)
	w.gateway.set(clearly, clearly)
	w.wantSweep(t, refund.Report{Open: 1, Done: 1})
	w.wantCalls(t, "status CK1", "refund CK1")
}

func TestSweep_LeavesWhatIsAnothers(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.put(t, due("CK1", start))
	if _, mine, err := w.store.ClaimRefund(t.Context(), "CK1", "another", start, start.Add(2*time.Minute)); err != nil || !mine {
		t.Fatal(mine, err)
	}
	w.wantSweep(t, refund.Report{Open: 1, Busy: 1})
	w.clock.advance(2 * time.Minute)
	w.wantSweep(t, refund.Report{Open: 1, Done: 1})
}

func TestSweep_EndsWithAnOutage(t *testing.T) {
	t.Parallel()
	for _, as := range []giving{outage, notSent} {
		w := newWorld(t, func(d *refund.Deps) { d.Width = 2 })
		w.put(t, transactions(50)...)
		w.gateway.set(as, as)
		got, err := w.Sweep(t.Context())
		if err != nil || !got.Outage || got.Doubt < 1 || got.Doubt > 4 || got.Doubt+got.Left != 50 {
			t.Errorf("%s: Sweep: got %+v, %v, want an outage that few refunds met", as, got, err)
		}
		w.gateway.set(clearly, clearly)
		w.clock.advance(10 * time.Minute)
		w.wantSweep(t, refund.Report{Open: 50, Done: 50})
		for _, r := range transactions(50) {
			if n := w.gateway.refunds(r.Transaction); n != 1 {
				t.Errorf("%s: %s was refunded %d times, want once", as, r.Transaction, n)
			}
		}
	}
}

func TestSweep_IsAsWideAsItMayBe(t *testing.T) {
	t.Parallel()
	const all, width = 12, 3
	w := newWorld(t, func(d *refund.Deps) { d.Width = width })
	w.put(t, transactions(all)...)
	came, leave := make(chan struct{}), make(chan struct{})
	w.gateway.during = func(string) { came <- struct{}{}; <-leave }
	most := make(chan int)
	go func() {
		inside, seen, left := 0, 0, all
		for left > 0 {
			out := leave
			if inside < min(width, left) {
				out = nil // nobody leaves before as many are in as may be
			}
			select {
			case <-came:
				inside++
				seen = max(seen, inside)
			case out <- struct{}{}:
				inside--
				left--
			}
		}
		most <- seen
	}()
	w.wantSweep(t, refund.Report{Open: all, Done: all})
	if n := <-most; n != width {
		t.Errorf("%d refunds at a time, want %d", n, width)
	}
}

func TestSweep_BeginsNoMoreThanItsRate(t *testing.T) {
	t.Parallel()
	w := newWorld(t, func(d *refund.Deps) { d.Width, d.PerSecond = 2, 0.001 })
	w.put(t, transactions(5)...)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	got, err := w.Sweep(ctx)
	if err != nil || got.Done != 2 || got.Left != 3 {
		t.Errorf("Sweep at a rate that allows 2 within its time: got %+v, %v, want 2 done and 3 left", got, err)
	}
}

func TestSweep_EndsWithItsCaller(t *testing.T) {
	t.Parallel()
	w := newWorld(t, func(d *refund.Deps) { d.Width = 1 })
	w.put(t, transactions(3)...)
	ctx, cancel := context.WithCancel(t.Context())
	w.gateway.during = func(string) { cancel() }
	got, err := w.Sweep(ctx)
	if !errors.Is(err, context.Canceled) || got.Done != 1 || got.Left != 2 {
		t.Errorf("Sweep: got %+v, %v, want 1 done, 2 left, and that it was cancelled", got, err)
	}
}

// list gives a list in place of the store's.
type list struct {
	refund.Store
	list func(yield func(booking.Refund, error) bool)
}

func (l list) OpenRefunds(context.Context) iter.Seq2[booking.Refund, error] { return l.list }

func TestSweep_GoesRoundWhatCannotBeRead(t *testing.T) {
	t.Parallel()
	w := newWorld(t, func(d *refund.Deps) {
		d.Store = list{d.Store, func(yield func(booking.Refund, error) bool) {
			_ = yield(booking.Refund{Transaction: "CK0"}, booking.ErrUnreadable) && yield(due("CK1", start), nil)
		}}
	})
	w.put(t, due("CK1", start))
	w.wantSweep(t, refund.Report{Open: 1, Done: 1, Unreadable: 1})
}

// A figure from before the store went down would say how many are due now.
func TestSweep_WithoutAListShowsNoFigure(t *testing.T) {
	t.Parallel()
	down := false
	w := newWorld(t, func(d *refund.Deps) {
		d.Automatic = false
		d.Store = list{d.Store, func(yield func(booking.Refund, error) bool) {
			if down {
				yield(booking.Refund{}, errLine)
				return
			}
			yield(due("CK1", start), nil)
		}}
	})
	shown := func(when string, want int) {
		t.Helper()
		families, err := w.reg.Gather()
		if err != nil || len(families) != want {
			t.Errorf("%s: got %v, %v, want %d figures", when, families, err, want)
		}
	}
	shown("before any sweep", 0)
	if _, err := w.Sweep(t.Context()); err != nil {
		t.Errorf("Sweep: got %v, want nil", err)
	}
	shown("after a sweep", 1)
	down = true
	if _, err := w.Sweep(t.Context()); !errors.Is(err, errLine) {
		t.Errorf("Sweep: got %v, want %v", err, errLine)
	}
	shown("the store is down", 0)
}

func TestSweep_WithoutAListChangesNothing(t *testing.T) {
	t.Parallel()
	down := errors.New("store is down")
	w := newWorld(t, func(d *refund.Deps) {
		d.Store = list{d.Store, func(yield func(booking.Refund, error) bool) {
			_ = yield(due("CK1", start), nil) && yield(booking.Refund{}, down)
		}}
	})
	w.put(t, due("CK1", start))
	got, err := w.Sweep(t.Context())
	if !errors.Is(err, down) {
		t.Errorf("Sweep: got %+v, %v, want %v", got, err, down)
	}
	w.wantCalls(t)
}
