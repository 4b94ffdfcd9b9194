// Package wall is the page for a screen in the operators' room: seats by level,
// admissions a minute, where the taken seats stand, and what waits too long. It is
// served on the admin port, GET /wall and GET /wall.json, and updates by itself.
//
// Every process can show it, and shows the whole fleet's figures, since all of them
// come from the seat ledger. They are read while somebody looks and for ninety seconds
// after: the counters every two seconds, all the rows every ten, by one goroutine,
// however many look. The elected process could keep them always instead; but nearly all
// of the last hour stands in the rows anyway, and a screen would have to find out who is
// elected. Only the holds by phase begin with the first look.
//
// No counter of the ledger only grows: seats are given back, and an order of admission is
// given again. So admissions are counted from the rows, by the time they were admitted,
// and the most that was ever counted for a time stands, since a hold that lapses takes
// nothing back of what happened. Of the time before the first look they are the seats
// that were still taken then; one that is given back before it is counted is none. A
// refused candidate's next attempt is one more. A new epoch (reset, rebuild) begins anew.
//
// Fail mode: open. What cannot be read stays as it was, with its age; nothing is decided
// by any of it. Nothing personal is told. Clocks: the ledger's own for what happened and
// when, the caller's for ages.
package wall

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"sync"
	"time"

	"holdfast/internal/booking"
)

const (
	readEvery  = 2 * time.Second
	readBudget = 2 * time.Second
	// countEach is how many readings of the counters one count of the rows goes with.
	countEach   = 5
	countBudget = 5 * time.Second
	// wantedFor exceeds the minute between two timers of a browser in the background.
	wantedFor = 90 * time.Second
	// freshFor is how old a reading may be before a look waits for the next one, and
	// patience for how long.
	freshFor = 6 * time.Second
	patience = 5 * time.Second
	// inTime is what the reconciler may take with a hold that lapsed, as in the metric
	// holdfast_holds_past_deadline.
	inTime = 2 * time.Minute

	stepsPerMinute = 6
	step           = time.Minute / stepsPerMinute
	minutesShown   = 60
	stepsShown     = 5 * stepsPerMinute
	stepsKept      = minutesShown * stepsPerMinute
)

// Ledger is what is read of the seat ledger, plainly. All are safe for concurrent use
// and to repeat. Epoch and ReadStatus are booking.ErrLedgerUnknown for a Redis without
// an epoch. Rows may tell a row twice, and goes on after one with an Err.
type Ledger interface {
	Epoch(ctx context.Context) (string, error)
	Sale(ctx context.Context) (booking.Sale, error)
	ReadStatus(ctx context.Context) (booking.Figures, error)
	Rows(ctx context.Context) iter.Seq2[booking.DueRow, error]
}

// What was wrong with the last reading, as View.Trouble says it.
const (
	// TroubleLedger: Redis is empty, or no sale was applied to it.
	TroubleLedger = "ledger_unknown"
	// TroubleSeats: the counters could not be read.
	TroubleSeats = "seats_unread"
	// TroubleRows: the counters were read, and the rows could not be.
	TroubleRows = "rows_unread"
	// TroubleStarting: nothing was read yet.
	TroubleStarting = "starting"
)

// Wall reads while somebody looks. Run is called once; the rest is safe for concurrent
// use.
type Wall struct {
	ledger Ledger
	now    func() time.Time
	wake   chan struct{} // holds one: somebody has asked

	mu      sync.Mutex
	asked   time.Time     // by whoever looked last
	tried   time.Time     // the last reading's end, well or not
	next    chan struct{} // closed at the end of the next reading
	trouble string
	seats   *booking.Figures
	readAt  time.Time // of seats
	rows    *count
	countAt time.Time // of rows
	history history
}

// New makes a wall over the ledger. now is for ages only.
func New(ledger Ledger, now func() time.Time) *Wall {
	return &Wall{
		ledger: ledger, now: now, wake: make(chan struct{}, 1), next: make(chan struct{}),
		trouble: TroubleStarting,
	}
}

// Run reads whenever somebody looks, until ctx ends, and returns nil.
func (w *Wall) Run(ctx context.Context) error {
	defer w.end()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-w.wake:
			w.watch(ctx)
		}
	}
}

// watch reads until nobody has looked for a while.
func (w *Wall) watch(ctx context.Context) {
	tick := time.NewTicker(readEvery)
	defer tick.Stop()
	for turns := 0; w.wanted(); turns-- {
		if w.read(ctx, turns <= 0) && turns <= 0 {
			turns = countEach
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

func (w *Wall) wanted() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.now().Sub(w.asked) < wantedFor
}

// end sends those away who wait for a reading, and whoever comes to wait for one.
func (w *Wall) end() {
	w.mu.Lock()
	defer w.mu.Unlock()
	close(w.next)
}

// read reads the counters, and the rows when it is their turn or when the counters say
// that the last count is of another time: more paid than taken, as after a reset. It
// tells whether the counters could be read.
func (w *Wall) read(ctx context.Context, all bool) bool {
	seats, readAt, trouble := w.readSeats(ctx)
	var rows *count
	if seats != nil && (all || w.outlived(*seats)) {
		if rows = w.readRows(ctx, seats.At); rows == nil {
			trouble = TroubleRows
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if ctx.Err() != nil {
		return false // the end of this process says nothing of the ledger
	}
	w.tried = w.now()
	if seats != nil {
		w.seats, w.readAt = seats, readAt
	}
	switch {
	case rows != nil:
		w.rows, w.countAt = rows, readAt
		w.history.add(rows)
	case trouble == "" && w.trouble == TroubleRows:
		trouble = TroubleRows // until they are counted
	}
	w.trouble = trouble
	close(w.next)
	w.next = make(chan struct{})
	return seats != nil
}

func (w *Wall) readSeats(ctx context.Context) (*booking.Figures, time.Time, string) {
	ctx, cancel := context.WithTimeout(ctx, readBudget)
	defer cancel()
	readAt := w.now()
	f, err := w.ledger.ReadStatus(ctx)
	switch {
	case errors.Is(err, booking.ErrLedgerUnknown):
		return nil, readAt, TroubleLedger
	case err != nil:
		return nil, readAt, TroubleSeats
	}
	return &f, readAt, ""
}

func (w *Wall) outlived(f booking.Figures) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.rows != nil && f.Total >= 0 && f.Total < w.rows.phases[booking.PhasePaid]
}

// readRows is nil when it could not be done.
func (w *Wall) readRows(ctx context.Context, at time.Time) *count {
	ctx, cancel := context.WithTimeout(ctx, countBudget)
	defer cancel()
	c, err := countRows(ctx, w.ledger, at)
	if err != nil {
		return nil
	}
	return c
}

// count is what the rows of one sale count to.
type count struct {
	epoch, sale string
	at          time.Time
	phases      map[booking.Phase]int
	paid        map[string]int // by level
	unreadable  int
	late        int // holds past their deadline
	doubt       int
	toDecide    int
	admittedIn  map[int64]int // by step of time
	paidIn      map[int64]int
}

var errOtherSale = errors.New("the sale was begun anew while its rows were counted")

func countRows(ctx context.Context, ledger Ledger, at time.Time) (*count, error) {
	epoch, err := ledger.Epoch(ctx)
	if err != nil {
		return nil, err
	}
	sale, err := ledger.Sale(ctx)
	if err != nil {
		return nil, err
	}
	c := &count{
		epoch: epoch, sale: sale.Name, at: at, phases: map[booking.Phase]int{}, paid: map[string]int{},
		admittedIn: map[int64]int{}, paidIn: map[int64]int{},
	}
	told := map[string]struct{}{}
	for d, err := range ledger.Rows(ctx) {
		if err != nil {
			return nil, err
		}
		if _, twice := told[d.Code]; !twice {
			told[d.Code] = struct{}{}
			c.add(d)
		}
	}
	switch again, err := ledger.Epoch(ctx); {
	case err != nil:
		return nil, err
	case again != epoch:
		return nil, fmt.Errorf("count rows: %w", errOtherSale)
	}
	return c, nil
}

func (c *count) add(d booking.DueRow) {
	row := d.Row
	if d.Err != nil || !slices.Contains(booking.Phases(), row.Phase) {
		c.unreadable++
		return
	}
	c.phases[row.Phase]++
	c.admittedIn[stepOf(row.AdmittedAt)]++
	if row.Phase == booking.PhasePaid {
		c.paid[row.Level]++
		c.paidIn[stepOf(row.PaidAt)]++
		return
	}
	if row.InDoubt() {
		c.doubt++
		if row.ForAPerson() {
			c.toDecide++
		}
		return // kept on purpose
	}
	deadline := row.Deadline
	if deadline == 0 { // no payment yet
		deadline = row.AdmittedAt + row.Hold
	}
	if deadline < c.at.Add(-inTime).UnixMilli() {
		c.late++
	}
}

// stepOf is the step of time that a Unix ms falls into.
func stepOf(ms int64) int64 { return ms / step.Milliseconds() }

// history is what is remembered of one sale, an hour of it.
type history struct {
	epoch    string
	since    time.Time
	admitted map[int64]int                   // by step: the most that was ever counted
	holds    map[int64]map[booking.Phase]int // by minute: the last count in it
}

func (h *history) add(c *count) {
	if c.epoch != h.epoch {
		*h = history{epoch: c.epoch, since: c.at, admitted: map[int64]int{}, holds: map[int64]map[booking.Phase]int{}}
	}
	for s, n := range c.admittedIn {
		h.admitted[s] = max(h.admitted[s], n)
	}
	now := stepOf(c.at.UnixMilli())
	h.holds[now/stepsPerMinute] = c.phases
	// What a clock that was put back left ahead goes too.
	for s := range h.admitted {
		if s <= now-stepsKept-stepsPerMinute || s > now+stepsPerMinute {
			delete(h.admitted, s)
		}
	}
	for m := range h.holds {
		if m <= now/stepsPerMinute-minutesShown || m > now/stepsPerMinute {
			delete(h.holds, m)
		}
	}
}
