package wall

import (
	"context"
	"time"

	"holdfast/internal/booking"
)

// View is wall.json. It has figures only: no codes, e-mails, attempts or payments.
type View struct {
	// At is when the counters were read, by the ledger's clock; AgeSeconds is how long
	// ago that is.
	At         time.Time `json:"at"`
	AgeSeconds float64   `json:"age_seconds"`
	// Trouble says what was wrong with the last reading, in one of the words above;
	// "" is nothing.
	Trouble string `json:"trouble,omitempty"`
	Open    bool   `json:"open"`
	// OpensAt is a scheduled opening, while booking is not open.
	OpensAt time.Time `json:"opens_at,omitzero"`
	// Reason says why nobody is admitted: not_open, or sold_out.
	Reason string  `json:"reason,omitempty"`
	Total  Seats   `json:"total"`
	Levels []Level `json:"levels"`
	// Counts are absent until the rows were counted.
	*Counts
}

// Seats are the seats of the sale, or of one level.
type Seats struct {
	Cap int `json:"cap"`
	// Admitted are held or paid; null when the counter is damaged.
	Admitted *int `json:"admitted"`
	// Paid and Held are absent until the rows were counted. Paid is as old as that
	// count, and Held is the rest of Admitted.
	Paid *int `json:"paid,omitempty"`
	Held *int `json:"held,omitempty"`
	// Left is never negative, and never more than the whole sale has left, if that is
	// known; null when the counter is damaged.
	Left *int `json:"left"`
}

// Level is one level's seats.
type Level struct {
	ID   string `json:"id"`
	Name string `json:"name"`
	Seats
}

// Counts are what the rows count to.
type Counts struct {
	Sale string `json:"sale"`
	// CountedAt is when, by the ledger's clock; CountedAgeSeconds is how long ago.
	CountedAt         time.Time `json:"counted_at"`
	CountedAgeSeconds float64   `json:"counted_age_seconds"`
	// Phases has every phase.
	Phases map[booking.Phase]int `json:"phases"`
	// Unreadable are rows that are damaged.
	Unreadable int `json:"unreadable"`
	// PastDeadline are holds whose time to pay ended over two minutes ago, without
	// those in doubt.
	PastDeadline int `json:"past_deadline"`
	// InDoubt are kept because nobody knows whether they are paid; ToDecide those of
	// them that only a person ends.
	InDoubt  int `json:"in_doubt"`
	ToDecide int `json:"to_decide"`
	// PerMinute is how many were admitted in the last six full steps of Recent.
	PerMinute int `json:"admissions_per_minute"`
	// Since is when this process first counted this sale.
	Since time.Time `json:"since"`
	// Series are the last 60 minutes, Recent the last five by ten seconds. The last one
	// of each is not over.
	Series []Minute `json:"series"`
	Recent []Step   `json:"recent"`
}

// Step is how many were admitted in a step of time that begins at At.
type Step struct {
	At       time.Time `json:"at"`
	Admitted int       `json:"admitted"`
}

// Minute is a minute of the sale.
type Minute struct {
	Step
	// Paid are all seats that were paid by its end.
	Paid int `json:"paid"`
	// Holds are absent where nobody looked.
	*Holds
}

// Holds are the seats that were taken and not paid at the last count of a minute.
type Holds struct {
	New     int `json:"new"`
	Payable int `json:"payable"`
	Held    int `json:"held"`
	Paying  int `json:"paying"`
	Refused int `json:"refused"`
}

// Look gives the last figures, and keeps them coming for a while. When they are not
// fresh it waits for the next reading, five seconds at most. Without any it is false,
// and the view has nothing but its Trouble.
func (w *Wall) Look(ctx context.Context) (View, bool) {
	w.mu.Lock()
	w.asked = w.now()
	next, wait := w.next, w.asked.Sub(w.tried) >= freshFor
	w.mu.Unlock()
	select {
	case w.wake <- struct{}{}:
	default:
	}
	if wait {
		bound := time.NewTimer(patience)
		defer bound.Stop()
		select {
		case <-next:
		case <-bound.C:
		case <-ctx.Done():
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.view()
}

func (w *Wall) view() (View, bool) {
	v := View{Trouble: w.trouble}
	if w.seats == nil {
		return v, false
	}
	f := w.seats
	v.At, v.AgeSeconds = f.At.UTC(), age(w.now(), w.readAt)
	v.Open, v.Reason = f.Open, f.Reason
	if !f.Open {
		v.OpensAt = f.OpensAt
	}
	v.Total = seats(f.Cap, f.Total, f.Cap)
	for _, l := range f.Levels {
		most := l.Cap
		if v.Total.Left != nil {
			most = *v.Total.Left
		}
		v.Levels = append(v.Levels, Level{l.ID, l.Name, seats(l.Cap, l.Admitted, most)})
	}
	if w.rows == nil {
		return v, true
	}
	v.Total.split(w.rows.phases[booking.PhasePaid])
	for i := range v.Levels {
		v.Levels[i].split(w.rows.paid[v.Levels[i].ID])
	}
	v.Counts = w.counts()
	return v, true
}

func age(now, then time.Time) float64 { return max(0, now.Sub(then).Seconds()) }

func seats(limit, admitted, most int) Seats {
	if admitted < 0 { // damaged: it sells nothing, and how many are left nobody knows
		return Seats{Cap: limit}
	}
	left := max(0, min(limit-admitted, most))
	return Seats{Cap: limit, Admitted: &admitted, Left: &left}
}

// split says how many of those admitted are paid. The count of paid may be of another
// moment.
func (s *Seats) split(paid int) {
	if s.Admitted == nil {
		s.Paid = &paid
		return
	}
	paid = min(paid, *s.Admitted)
	held := *s.Admitted - paid
	s.Paid, s.Held = &paid, &held
}

func (w *Wall) counts() *Counts {
	rows, h := w.rows, &w.history
	c := &Counts{
		Sale: rows.sale, CountedAt: rows.at.UTC(), CountedAgeSeconds: age(w.now(), w.countAt),
		Phases: map[booking.Phase]int{}, Unreadable: rows.unreadable, PastDeadline: rows.late,
		InDoubt: rows.doubt, ToDecide: rows.toDecide, Since: h.since.UTC(),
		Series: make([]Minute, minutesShown), Recent: make([]Step, stepsShown),
	}
	for _, p := range booking.Phases() {
		c.Phases[p] = rows.phases[p]
	}
	now := stepOf(rows.at.UnixMilli())
	for s := now - stepsPerMinute; s < now; s++ {
		c.PerMinute += h.admitted[s]
	}
	for i := range c.Recent {
		s := now - int64(stepsShown-1-i)
		c.Recent[i] = Step{At: time.UnixMilli(s * step.Milliseconds()).UTC(), Admitted: h.admitted[s]}
	}
	paid := rows.phases[booking.PhasePaid]
	for i := minutesShown - 1; i >= 0; i-- {
		m := now/stepsPerMinute - int64(minutesShown-1-i)
		first := m * stepsPerMinute
		is := Minute{Step: Step{At: time.UnixMilli(first * step.Milliseconds()).UTC()}, Paid: paid}
		for s := first; s < first+stepsPerMinute; s++ {
			is.Admitted += h.admitted[s]
			paid -= rows.paidIn[s]
		}
		if p := h.holds[m]; p != nil {
			is.Holds = &Holds{p[booking.PhaseNew], p[booking.PhasePayable], p[booking.PhaseHeld], p[booking.PhasePaying], p[booking.PhaseRefused]}
		}
		c.Series[i] = is
	}
	return c
}
