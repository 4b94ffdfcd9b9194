package wall_test

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"maps"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"holdfast/internal/booking"
	"holdfast/internal/statuspage"
	"holdfast/internal/wall"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// ledger is a seat ledger whose clock is the caller's, moved by off. What it lists is
// what the test sets; its counters are those of the rows.
type ledger struct {
	mu           sync.Mutex
	epoch        string
	name         string
	off          time.Duration
	rows         map[string]booking.Row
	damaged      int // rows that cannot be read
	figures      booking.Figures
	err, rowsErr error // of ReadStatus, and of Rows after the first row
	hang         bool
	scanned      func() // at the end of a scan
	reads, scans int
}

// n1 and n2 are the levels of the sale, of five seats and two.
func newLedger() *ledger {
	return &ledger{
		epoch: "e1", name: "demo", rows: map[string]booking.Row{},
		figures: booking.Figures{Open: true, Cap: 6, Levels: []booking.LevelFigures{
			{ID: "N1", Name: "N1 Advanced", Cap: 5}, {ID: "N2", Name: "N2 Basic", Cap: 2},
		}},
	}
}

func (l *ledger) Epoch(context.Context) (string, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.epoch, l.err
}

func (l *ledger) Sale(context.Context) (booking.Sale, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return booking.Sale{Name: l.name}, l.err
}

func (l *ledger) ReadStatus(ctx context.Context) (booking.Figures, error) {
	l.mu.Lock()
	l.reads++
	f, err, hang := l.figures, l.err, l.hang
	f.At = time.Now().Add(l.off)
	f.Levels = slices.Clone(f.Levels)
	for _, r := range l.rows {
		f.Total++
		for i := range f.Levels {
			if f.Levels[i].ID == r.Level {
				f.Levels[i].Admitted++
			}
		}
	}
	l.mu.Unlock()
	if hang {
		<-ctx.Done()
		return booking.Figures{}, ctx.Err()
	}
	return f, err
}

func (l *ledger) Rows(context.Context) iter.Seq2[booking.DueRow, error] {
	return func(yield func(booking.DueRow, error) bool) {
		l.mu.Lock()
		l.scans++
		rows, damaged, err, scanned := maps.Clone(l.rows), l.damaged, l.rowsErr, l.scanned
		l.mu.Unlock()
		for code, r := range rows {
			for range 2 { // a scan may tell a row twice
				if !yield(booking.DueRow{Code: code, Row: r}, nil) {
					return
				}
			}
		}
		for i := range damaged {
			if !yield(booking.DueRow{Code: fmt.Sprint("damaged", i), Err: booking.ErrLedgerDamaged}, nil) {
				return
			}
		}
		if err != nil {
			yield(booking.DueRow{}, err)
		}
		if scanned != nil {
			scanned()
		}
	}
}

func (l *ledger) do(change func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	change()
}

func (l *ledger) put(code string, p booking.Phase, change func(*booking.Row)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now().Add(l.off).UnixMilli()
	r := booking.Row{
		Attempt: "attempt-" + code, Level: "N1", Phase: p, AdmittedAt: now, Hold: 600_000,
		Deadline: now + 600_000, Payment: "payment-" + code,
	}
	if p == booking.PhasePaid {
		r.PaidAt = now
	}
	if change != nil {
		change(&r)
	}
	l.rows[code] = r
}

func (l *ledger) counted() (reads, scans int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.reads, l.scans
}

// running runs a wall over the ledger, for the rest of the bubble.
func running(t *testing.T, l *ledger) *wall.Wall {
	t.Helper()
	w := wall.New(l, time.Now)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- w.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("Run: got %v, want nil", err)
		}
	})
	return w
}

func mustLook(t *testing.T, w *wall.Wall) wall.View {
	t.Helper()
	v, there := w.Look(t.Context())
	if !there || v.Counts == nil {
		t.Fatalf("Look: got %+v, %t, want figures and counts", v, there)
	}
	return v
}

// watched looks every two seconds, as the page does, for so long by the bubble's clock.
func watched(t *testing.T, w *wall.Wall, d time.Duration) wall.View {
	t.Helper()
	for range d / (2 * time.Second) {
		w.Look(t.Context())
		<-time.After(2 * time.Second)
	}
	return mustLook(t, w)
}

// lastMinutes are the admissions of the last n minutes.
func lastMinutes(v wall.View, n int) []int {
	var got []int
	for _, m := range v.Series[len(v.Series)-n:] {
		got = append(got, m.Admitted)
	}
	return got
}

// aMoment is what a reading takes.
const aMoment = time.Millisecond

func TestRun_ReadsOnlyWhileSomebodyLooks(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := newLedger()
		w := running(t, l)
		time.Sleep(10 * time.Minute)
		if reads, scans := l.counted(); reads+scans != 0 {
			t.Errorf("before anybody looked: got %d readings and %d counts, want none", reads, scans)
		}
		mustLook(t, w)
		if reads, scans := l.counted(); reads != 1 || scans != 1 {
			t.Errorf("for the first look: got %d readings and %d counts, want 1 and 1", reads, scans)
		}
		time.Sleep(10 * time.Minute)
		reads, scans := l.counted()
		if reads != 45 || scans != 9 {
			t.Errorf("for one look: got %d readings and %d counts, want 45 and 9, in ninety seconds", reads, scans)
		}
		mustLook(t, w)
		if r, s := l.counted(); r != reads+1 || s != scans+1 {
			t.Errorf("for a look after that: got %d readings and %d counts, want one more of each", r, s)
		}
	})
}

func TestRun_ViewersDoNotMultiplyTheReadings(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := newLedger()
		w := running(t, l)
		var viewers sync.WaitGroup
		for i := range 50 {
			viewers.Go(func() {
				time.Sleep(time.Duration(i) * 37 * time.Millisecond)
				watched(t, w, time.Minute)
			})
		}
		viewers.Wait()
		reads, scans := l.counted()
		if reads < 30 || reads > 32 || scans < 6 || scans > 7 {
			t.Errorf("fifty viewers for a minute: got %d readings and %d counts, want 30 to 32 and 6 or 7", reads, scans)
		}
	})
}

func TestLook_AfterANapShowsNothingOld(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := newLedger()
		w := running(t, l)
		mustLook(t, w)
		time.Sleep(time.Hour)
		l.put("C1", booking.PhaseHeld, nil)
		v := mustLook(t, w)
		if *v.Total.Admitted != 1 || v.AgeSeconds != 0 || v.Phases[booking.PhaseHeld] != 1 {
			t.Errorf("after an hour: got %d admitted, %v s old, %d held, want 1, 0 s, 1", *v.Total.Admitted, v.AgeSeconds, v.Phases[booking.PhaseHeld])
		}
	})
}

// What a level has is what status.json says that it has, and the rest adds up.
func TestLook_SeatsOfEachLevel(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := newLedger()
		for i := range 4 {
			l.put(fmt.Sprint("A", i), booking.PhaseHeld, nil)
		}
		l.put("B1", booking.PhasePaid, func(r *booking.Row) { r.Level = "N2" })
		w := running(t, l)
		v := mustLook(t, w)
		n := func(n int) *int { return &n }
		want := []wall.Level{
			{ID: "N1", Name: "N1 Advanced", Seats: wall.Seats{Cap: 5, Admitted: n(4), Paid: n(0), Held: n(4), Left: n(1)}},
			{ID: "N2", Name: "N2 Basic", Seats: wall.Seats{Cap: 2, Admitted: n(1), Paid: n(1), Held: n(0), Left: n(1)}},
		}
		if diff := cmp.Diff(want, v.Levels); diff != "" {
			t.Errorf("levels (-want +got):\n%s", diff)
		}
		if diff := cmp.Diff(wall.Seats{Cap: 6, Admitted: n(5), Paid: n(1), Held: n(4), Left: n(1)}, v.Total); diff != "" {
			t.Errorf("total (-want +got):\n%s", diff)
		}
		l.put("B2", booking.PhasePaid, func(r *booking.Row) { r.Level = "N2" })
		time.Sleep(10*time.Second + aMoment)
		v = mustLook(t, w)
		f, err := l.ReadStatus(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		shown := statuspage.Compose(f)
		for i, level := range shown.Levels {
			if got := v.Levels[i].Left; got == nil || *got != level.Left || *got != 0 {
				t.Errorf("left of %s when all is sold: got %v, status.json says %d, want 0", level.ID, got, level.Left)
			}
		}
	})
}

func TestLook_DamagedCounterIsNoFigure(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := newLedger()
		l.figures.Total, l.figures.Levels[0].Admitted = -1, -1
		v := mustLook(t, running(t, l))
		if v.Total.Admitted != nil || v.Levels[0].Admitted != nil || v.Total.Left != nil || v.Levels[0].Left != nil {
			t.Errorf("got %+v, %+v, want neither admitted nor left", v.Total, v.Levels)
		}
		if is := v.Levels[1]; is.Admitted == nil || is.Left == nil || *is.Left != is.Cap-*is.Admitted {
			t.Errorf("a level with a counter of its own: got %+v, want what it has left", is)
		}
	})
}

func TestLook_SaysWhenBookingOpens(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := newLedger()
		at := time.Now().Add(time.Hour)
		l.figures.Open, l.figures.OpensAt, l.figures.Reason = false, at, "not_open"
		w := running(t, l)
		if v := mustLook(t, w); v.Open || !v.OpensAt.Equal(at) || v.Reason != "not_open" {
			t.Errorf("before: got open %t, opens at %v, %q, want %v", v.Open, v.OpensAt, v.Reason, at)
		}
		l.do(func() { l.figures.Open, l.figures.Reason = true, "sold_out" })
		time.Sleep(2*time.Second + aMoment)
		if v := mustLook(t, w); !v.Open || !v.OpensAt.IsZero() || v.Reason != "sold_out" {
			t.Errorf("after: got open %t, opens at %v, %q, want open, no time, sold_out", v.Open, v.OpensAt, v.Reason)
		}
	})
}

// By the same rules as the metrics holds_past_deadline, rows_in_doubt, rows_to_decide.
func TestLook_CountsWhatWaitsTooLong(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := newLedger()
		ago := func(s int) int64 { return time.Now().Add(-time.Duration(s) * time.Second).UnixMilli() }
		l.put("1", booking.PhaseHeld, func(r *booking.Row) { r.Deadline = ago(121) })
		l.put("2", booking.PhaseHeld, func(r *booking.Row) { r.Deadline = ago(119) })
		l.put("3", booking.PhaseNew, func(r *booking.Row) { r.Deadline, r.AdmittedAt = 0, ago(721) })
		l.put("4", booking.PhasePaying, func(r *booking.Row) { r.Deadline, r.Looks = ago(999), 1 })
		l.put("5", booking.PhasePaying, func(r *booking.Row) { r.Looks = booking.DoubtLooks + 1 })
		l.put("6", booking.PhasePaid, func(r *booking.Row) { r.Deadline = ago(999) })
		l.put("7", "sold", nil)
		l.damaged = 2
		v := mustLook(t, running(t, l))
		if v.PastDeadline != 2 || v.InDoubt != 2 || v.ToDecide != 1 || v.Unreadable != 3 {
			t.Errorf("got %d past the deadline, %d in doubt, %d to decide, %d unreadable, want 2, 2, 1, 3", v.PastDeadline, v.InDoubt, v.ToDecide, v.Unreadable)
		}
		want := map[booking.Phase]int{"new": 1, "payable": 0, "held": 2, "paying": 2, "refused": 0, "paid": 1}
		if diff := cmp.Diff(want, v.Phases); diff != "" {
			t.Errorf("phases (-want +got):\n%s", diff)
		}
	})
}

func TestLook_OutageKeepsTheFiguresAndTellsTheirAge(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := newLedger()
		l.put("C1", booking.PhasePaid, nil)
		w := running(t, l)
		if v := watched(t, w, 20*time.Second); v.Trouble != "" || v.AgeSeconds > 2 {
			t.Fatalf("before: got trouble %q, age %v, want none", v.Trouble, v.AgeSeconds)
		}
		for _, c := range []struct {
			trouble string
			breaks  func()
		}{
			{wall.TroubleSeats, func() { l.err = errors.New("redis is asleep") }},
			{wall.TroubleSeats, func() { l.hang = true }},
			{wall.TroubleLedger, func() { l.err = fmt.Errorf("snapshot: %w", booking.ErrLedgerUnknown) }},
		} {
			l.do(c.breaks)
			v := watched(t, w, time.Minute)
			if v.Trouble != c.trouble || v.AgeSeconds < 58 || v.AgeSeconds > 64 || v.CountedAgeSeconds < 58 || *v.Total.Paid != 1 {
				t.Errorf("in the outage: got trouble %q, ages %v and %v, %d paid, want %q, about 60 s, 1", v.Trouble, v.AgeSeconds, v.CountedAgeSeconds, *v.Total.Paid, c.trouble)
			}
			l.do(func() { l.err, l.hang = nil, false })
			if v := watched(t, w, 4*time.Second); v.Trouble != "" || v.AgeSeconds > 2 || v.CountedAgeSeconds > 4 {
				t.Errorf("after it: got trouble %q, ages %v and %v, want none", v.Trouble, v.AgeSeconds, v.CountedAgeSeconds)
			}
		}
	})
}

func TestLook_RowsThatCannotBeCountedStayAsTheyWere(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := newLedger()
		l.put("C1", booking.PhaseHeld, nil)
		w := running(t, l)
		mustLook(t, w)
		l.put("C2", booking.PhaseHeld, nil)
		l.do(func() { l.rowsErr = errors.New("redis is asleep") })
		v := watched(t, w, 44*time.Second)
		if v.Trouble != wall.TroubleRows || v.Phases[booking.PhaseHeld] != 1 || *v.Total.Admitted != 2 || v.AgeSeconds > 2 || v.CountedAgeSeconds < 38 {
			t.Errorf("got trouble %q, %d held, %d admitted, ages %v and %v, want %q, 1, 2, fresh and 44 s",
				v.Trouble, v.Phases[booking.PhaseHeld], *v.Total.Admitted, v.AgeSeconds, v.CountedAgeSeconds, wall.TroubleRows)
		}
		l.do(func() { l.rowsErr = nil })
		if v := watched(t, w, 12*time.Second); v.Trouble != "" || v.Phases[booking.PhaseHeld] != 2 {
			t.Errorf("after it: got trouble %q, %d held, want none, 2", v.Trouble, v.Phases[booking.PhaseHeld])
		}
	})
}

func TestLook_SaleBegunAnewWhileItWasCountedCountsForNothing(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := newLedger()
		l.put("C1", booking.PhaseHeld, nil)
		l.scanned = func() { l.do(func() { l.epoch += "+" }) }
		w := running(t, l)
		if v, there := w.Look(t.Context()); !there || v.Counts != nil || v.Trouble != wall.TroubleRows || v.Total.Paid != nil {
			t.Errorf("got %+v, %t, want the counters alone and %q", v, there, wall.TroubleRows)
		}
	})
}

func TestLook_WithoutAnyFigures(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := newLedger()
		l.err = booking.ErrLedgerUnknown
		w := running(t, l)
		if v, there := w.Look(t.Context()); there || v.Trouble != wall.TroubleLedger {
			t.Errorf("got %q, %t, want %q and no figures", v.Trouble, there, wall.TroubleLedger)
		}
	})
}

// A look is answered though nobody reads, in bounded time, and at once after the end.
func TestLook_DoesNotWaitForever(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := wall.New(newLedger(), time.Now)
		from := time.Now()
		if v, there := w.Look(t.Context()); there || v.Trouble != wall.TroubleStarting || time.Since(from) > 5*time.Second {
			t.Errorf("before Run: got %q, %t after %v, want %q in 5 s", v.Trouble, there, time.Since(from), wall.TroubleStarting)
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if err := w.Run(ctx); err != nil {
			t.Errorf("Run: got %v, want nil", err)
		}
		from = time.Now()
		if _, there := w.Look(t.Context()); there || time.Since(from) != 0 {
			t.Errorf("after Run: got %t after %v, want no figures at once", there, time.Since(from))
		}
	})
}

// An admission stays one when its hold lapses or is taken over.
func TestSeries_AdmissionsNeverFall(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := newLedger()
		w := running(t, l)
		mustLook(t, w)
		for i := range 4 {
			l.put(fmt.Sprint("C", i), booking.PhaseHeld, nil)
		}
		if got := lastMinutes(watched(t, w, 62*time.Second), 2); !slices.Equal(got, []int{4, 0}) {
			t.Errorf("after a minute: got %v, want [4 0]", got)
		}
		watched(t, w, 12*time.Second)
		l.do(func() { delete(l.rows, "C0"); delete(l.rows, "C1") })
		l.put("C2", booking.PhaseNew, nil) // a fresh attempt on a refused one's seat
		v := watched(t, w, time.Minute)
		if got := lastMinutes(v, 3); !slices.Equal(got, []int{4, 1, 0}) {
			t.Errorf("after two lapsed and one was taken over: got %v, want [4 1 0]", got)
		}
		if h := v.Series[len(v.Series)-1].Holds; h == nil || h.Held != 1 || h.New != 1 {
			t.Errorf("holds now: got %+v, want 1 held, 1 new", h)
		}
	})
}

func TestSeries_KnowsWhatWasBeforeTheFirstLook(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := newLedger()
		l.put("A", booking.PhaseHeld, nil)
		l.put("B", booking.PhasePaid, nil)
		time.Sleep(time.Minute)
		l.put("C", booking.PhasePaid, nil)
		time.Sleep(time.Minute)
		l.put("D", booking.PhaseHeld, nil)
		first := time.Now()
		v := mustLook(t, running(t, l))
		if got := lastMinutes(v, 4); !slices.Equal(got, []int{0, 2, 1, 1}) {
			t.Errorf("admissions: got %v, want [0 2 1 1]", got)
		}
		var paid []int
		var looked []bool
		for _, m := range v.Series[len(v.Series)-4:] {
			paid, looked = append(paid, m.Paid), append(looked, m.Holds != nil)
		}
		if !slices.Equal(paid, []int{0, 1, 2, 2}) || !slices.Equal(looked, []bool{false, false, false, true}) {
			t.Errorf("got paid %v, holds known %v, want [0 1 2 2] and the last one only", paid, looked)
		}
		if !v.Since.Equal(first) || !v.Series[len(v.Series)-1].At.Equal(first.Truncate(time.Minute)) {
			t.Errorf("got since %v, last minute %v, want %v", v.Since, v.Series[len(v.Series)-1].At, first)
		}
	})
}

func TestSeries_NobodyLookedIsAGap(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := newLedger()
		w := running(t, l)
		mustLook(t, w)
		time.Sleep(10 * time.Minute)
		v := mustLook(t, w)
		var looked []bool
		for _, m := range v.Series[len(v.Series)-12:] {
			looked = append(looked, m.Holds != nil)
		}
		if want := []bool{false, true, true, false, false, false, false, false, false, false, false, true}; !slices.Equal(looked, want) {
			t.Errorf("minutes with holds: got %v, want %v", looked, want)
		}
	})
}

// A reset is seen in the counters first; the last count must not outlive it.
func TestSeries_ResetBeginsAnew(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := newLedger()
		l.put("A", booking.PhasePaid, nil)
		l.put("B", booking.PhaseHeld, nil)
		w := running(t, l)
		mustLook(t, w)
		watched(t, w, 62*time.Second)
		l.do(func() { l.epoch, l.rows = "e2", map[string]booking.Row{} })
		time.Sleep(2*time.Second + aMoment)
		v := mustLook(t, w)
		if *v.Total.Admitted != 0 || *v.Total.Paid != 0 || !slices.Equal(lastMinutes(v, 3), []int{0, 0, 0}) || !v.Since.Equal(v.CountedAt) {
			t.Errorf("two seconds after a reset: got %d admitted, %d paid, minutes %v, since %v, want nothing, since now",
				*v.Total.Admitted, *v.Total.Paid, lastMinutes(v, 3), v.Since)
		}
	})
}

func TestSeries_PerMinuteIsOfTheLastFullSteps(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := newLedger()
		w := running(t, l)
		mustLook(t, w)
		for i := range 12 { // one every ten seconds, and two in the step that is not over
			l.put(fmt.Sprint("C", i), booking.PhaseHeld, nil)
			watched(t, w, 10*time.Second)
		}
		l.put("X", booking.PhaseHeld, nil)
		l.put("Y", booking.PhaseHeld, nil)
		v := watched(t, w, 8*time.Second)
		if v.PerMinute != 6 {
			t.Errorf("admissions a minute: got %d, want 6", v.PerMinute)
		}
		v = watched(t, w, 4*time.Second)
		if last := v.Recent[len(v.Recent)-3:]; v.PerMinute != 7 || last[0].Admitted != 1 || last[1].Admitted != 2 || last[2].Admitted != 0 {
			t.Errorf("when that step is over: got %d a minute, steps %+v, want 7 and 1, 2, 0", v.PerMinute, last)
		}
	})
}

// Another primary's clock may be behind.
func TestSeries_FollowsAClockThatIsPutBack(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := newLedger()
		l.off = time.Hour
		l.put("A", booking.PhaseHeld, nil)
		w := running(t, l)
		mustLook(t, w)
		l.do(func() { l.off = 0; l.rows = map[string]booking.Row{} })
		l.put("B", booking.PhaseHeld, nil)
		v := watched(t, w, 20*time.Second)
		if got := lastMinutes(v, 2); !slices.Equal(got, []int{0, 1}) || v.AgeSeconds < 0 || v.CountedAgeSeconds < 0 {
			t.Errorf("got %v, ages %v and %v, want [0 1] and no age below 0", got, v.AgeSeconds, v.CountedAgeSeconds)
		}
		time.Sleep(time.Hour)
		if got := lastMinutes(mustLook(t, w), 60); slices.Contains(got, 1) && got[0] != 1 {
			t.Errorf("an hour later: got %v, want nothing of the clock that was ahead", got)
		}
	})
}

func TestSeries_RemembersAnHourAndNoMore(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := newLedger()
		w := running(t, l)
		for i := range 3 * 360 {
			l.put(fmt.Sprint("C", i%7), booking.PhaseHeld, nil) // the others have lapsed
			if i%2 == 0 {
				w.Look(t.Context())
			}
			time.Sleep(10 * time.Second)
		}
		if v := mustLook(t, w); len(v.Series) != 60 || len(v.Recent) != 30 || v.Series[0].Holds == nil || v.Series[0].Admitted != 6 {
			t.Errorf("got %d minutes, %d steps, the first %+v, want 60, 30, and six admissions in it", len(v.Series), len(v.Recent), v.Series[0])
		}
		if steps, minutes := w.Remembered(); steps > 367 || minutes > 60 {
			t.Errorf("got %d steps and %d minutes remembered, want an hour", steps, minutes)
		}
	})
}
