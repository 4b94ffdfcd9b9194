package saleops

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"sync"
	"time"

	"holdfast/internal/booking"
)

// SightLedger is what a live view needs of the seat ledger.
type SightLedger interface {
	// Epoch is booking.ErrLedgerUnknown in an empty Redis, of which Rows tells none.
	Epoch(ctx context.Context) (string, error)
	Sale(ctx context.Context) (booking.Sale, error)
	ReadStatus(ctx context.Context) (booking.Figures, error)
	Rows(ctx context.Context) iter.Seq2[booking.DueRow, error]
	Now(ctx context.Context) (time.Time, error)
	Acknowledges(ctx context.Context) error
}

// OpenRefunds lists the refunds that are not done.
type OpenRefunds interface {
	OpenRefunds(ctx context.Context) iter.Seq2[booking.Refund, error]
}

// Ages are the bounds of PhaseCount.ByAge.
func Ages() []time.Duration {
	return []time.Duration{2 * time.Minute, 10 * time.Minute, 30 * time.Minute}
}

// PhaseCount is how many rows are in a phase.
type PhaseCount struct {
	Phase booking.Phase `json:"phase"`
	Rows  int           `json:"rows"`
	// ByAge counts them by the time since admission: younger than each of Ages, and
	// older than all of them.
	ByAge []int `json:"by_age"`
	// OldestSeconds is the age of the oldest.
	OldestSeconds int64 `json:"oldest_seconds"`
}

// RowCount is the ledger's rows by phase and age.
type RowCount struct {
	// At is when they were counted, by the ledger's clock.
	At     time.Time    `json:"at"`
	Rows   int          `json:"rows"`
	Phases []PhaseCount `json:"phases"`
	// PastDeadline counts holds whose time to pay is over.
	PastDeadline int `json:"past_deadline"`
	// InDoubt counts rows in doubt; ForAPerson those of them that only a person ends.
	InDoubt    int `json:"in_doubt"`
	ForAPerson int `json:"for_a_person"`
	// Unreadable counts rows that cannot be read.
	Unreadable int `json:"unreadable"`
}

// Paid is how many seats are paid.
func (c RowCount) Paid() int {
	for _, p := range c.Phases {
		if p.Phase == booking.PhasePaid {
			return p.Rows
		}
	}
	return 0
}

// QueueSight is the queue's figures.
type QueueSight struct {
	Waiting       int     `json:"waiting"`
	InFlight      int     `json:"in_flight"`
	Dead          int     `json:"dead_letters"`
	OldestSeconds float64 `json:"oldest_seconds"`
}

// RefundSight is how many refunds are not done.
type RefundSight struct {
	Due int `json:"due"`
	// More: counting ended at so many, and there may be more.
	More       bool `json:"more"`
	Unreadable int  `json:"unreadable"`
}

// LevelSight is one level's seats.
type LevelSight struct {
	ID   string `json:"id"`
	Name string `json:"name"`
	Cap  int    `json:"cap"`
	// Admitted is nil when the counter is damaged.
	Admitted *int `json:"admitted"`
}

// SeatSight is the switch and the counters, by the ledger.
type SeatSight struct {
	At   time.Time `json:"at"`
	Open bool      `json:"open"`
	// OpensAt is a scheduled opening.
	OpensAt time.Time `json:"opens_at,omitzero"`
	// Reason says why nobody is admitted: not_open, or sold_out.
	Reason string `json:"reason,omitempty"`
	Cap    int    `json:"cap"`
	// Admitted is nil when the counter is damaged.
	Admitted *int         `json:"admitted"`
	Levels   []LevelSight `json:"levels"`
}

// Sight is one look at a running sale. A part that could not be read is nil, and
// Unknown says why: it is never 0.
type Sight struct {
	Sale    string       `json:"sale,omitempty"`
	Seats   *SeatSight   `json:"seats"`
	Rows    *RowCount    `json:"rows"`
	Queue   *QueueSight  `json:"queue"`
	Refunds *RefundSight `json:"refunds"`
	// Acknowledged: the replicas acknowledge what is written now.
	Acknowledged *bool `json:"acknowledged"`
	// Published: status.json says of the switch what the ledger says.
	Published *bool `json:"published"`
	// Unknown says by part why it was not seen.
	Unknown map[string]string `json:"unknown,omitempty"`
}

// The parts of a Sight that can be unknown.
const (
	PartSale      = "sale"
	PartSeats     = "seats"
	PartRows      = "rows"
	PartQueue     = "queue"
	PartRefunds   = "refunds"
	PartReplicas  = "replicas"
	PartPublished = "status.json"
)

const (
	// rowsEvery is how old a count of the rows may be: it reads all of them.
	rowsEvery = 10 * time.Second
	// refundsMost is how many open refunds are counted.
	refundsMost = 1000
	partTimeout = 3 * time.Second
	rowsTimeout = 8 * time.Second
)

// Sighter looks at a running sale, again and again. It belongs to one goroutine.
type Sighter struct {
	Ledger  SightLedger
	Queue   Queue
	Refunds OpenRefunds
	// Status reads status.json as people get it.
	Status func(ctx context.Context) ([]byte, error)

	rows    *RowCount // the last count
	refunds *RefundSight
	counted time.Time // when both were counted, by the ledger's clock
	epoch   string    // of the sale that they are of
}

// Look reads every part once, all at the same time, each within a few seconds. Rows
// and refunds, which are many, are counted at most every ten seconds, and otherwise
// told as they were; rows only of a sale that is there before and after. It changes
// nothing but the key by which replicas are asked.
func (s *Sighter) Look(ctx context.Context) Sight {
	out := Sight{Unknown: map[string]string{}}
	var mu sync.Mutex
	var parts sync.WaitGroup
	part := func(name string, timeout time.Duration, read func(ctx context.Context) error) {
		parts.Go(func() {
			ctx, cancel := context.WithTimeout(ctx, timeout)
			defer cancel()
			if err := read(ctx); err != nil {
				mu.Lock()
				defer mu.Unlock()
				out.Unknown[name] = err.Error()
			}
		})
	}
	part(PartSale, partTimeout, func(ctx context.Context) error {
		sale, err := s.Ledger.Sale(ctx)
		out.Sale = sale.Name
		return err
	})
	part(PartQueue, partTimeout, func(ctx context.Context) error {
		q, err := s.Queue.Stats(ctx)
		if err == nil {
			out.Queue = &QueueSight{q.Waiting, q.InFlight, q.Dead, q.OldestAge.Seconds()}
		}
		return err
	})
	part(PartReplicas, partTimeout, func(ctx context.Context) error {
		err := s.Ledger.Acknowledges(ctx)
		if err == nil || errors.Is(err, booking.ErrNotAcknowledged) {
			is := err == nil
			out.Acknowledged, err = &is, nil
		}
		return err
	})
	var figures booking.Figures
	part(PartSeats, partTimeout, func(ctx context.Context) (err error) {
		if figures, err = s.Ledger.ReadStatus(ctx); err == nil {
			out.Seats = seatSight(figures)
		}
		return err
	})
	var body []byte
	part(PartPublished, partTimeout, func(ctx context.Context) (err error) {
		body, err = s.Status(ctx)
		return err
	})
	s.count(ctx, &out, part)
	parts.Wait()
	if out.Seats == nil && out.Unknown[PartPublished] == "" {
		out.Unknown[PartPublished] = "there is nothing to compare it with"
	}
	if out.Unknown[PartPublished] == "" {
		there := &Switch{Status: func(context.Context) ([]byte, error) { return body, nil }}
		is := there.unpublished(ctx, figures) == ""
		out.Published = &is
	}
	s.rows, s.refunds = out.Rows, out.Refunds
	return out
}

// count counts rows and refunds, or tells them as they were.
func (s *Sighter) count(ctx context.Context, out *Sight, part func(string, time.Duration, func(context.Context) error)) {
	call, cancel := context.WithTimeout(ctx, partTimeout)
	defer cancel()
	now, err := s.Ledger.Now(call)
	epoch := ""
	if err == nil {
		epoch, err = s.Ledger.Epoch(call)
	}
	if err != nil {
		part(PartRows, partTimeout, func(context.Context) error { return err })
		part(PartRefunds, partTimeout, func(ctx context.Context) (err error) {
			out.Refunds, err = countRefunds(ctx, s.Refunds)
			return err
		})
		return
	}
	if s.rows != nil && s.refunds != nil && epoch == s.epoch && now.Sub(s.counted) < rowsEvery && !now.Before(s.counted) {
		out.Rows, out.Refunds = s.rows, s.refunds
		return
	}
	s.counted, s.epoch = now, epoch
	part(PartRows, rowsTimeout, func(ctx context.Context) error {
		rows, err := countRows(ctx, s.Ledger, now)
		if err != nil {
			return err
		}
		switch again, err := s.Ledger.Epoch(ctx); {
		case err != nil:
			return err
		case again != epoch:
			return errors.New("the sale was begun anew while they were counted")
		}
		out.Rows = rows
		return nil
	})
	part(PartRefunds, partTimeout, func(ctx context.Context) (err error) {
		out.Refunds, err = countRefunds(ctx, s.Refunds)
		return err
	})
}

func seatSight(f booking.Figures) *SeatSight {
	known := func(n int) *int {
		if n < 0 {
			return nil
		}
		return &n
	}
	out := &SeatSight{At: f.At.UTC(), Open: f.Open, OpensAt: f.OpensAt, Reason: f.Reason, Cap: f.Cap, Admitted: known(f.Total)}
	for _, l := range f.Levels {
		out.Levels = append(out.Levels, LevelSight{l.ID, l.Name, l.Cap, known(l.Admitted)})
	}
	return out
}

// countRows counts every row once. A row that moves meanwhile is counted in one of its
// phases.
func countRows(ctx context.Context, ledger SightLedger, now time.Time) (*RowCount, error) {
	out := &RowCount{At: now.UTC()}
	ages := Ages()
	byPhase := map[booking.Phase]*PhaseCount{}
	for _, p := range booking.Phases() {
		byPhase[p] = &PhaseCount{Phase: p, ByAge: make([]int, len(ages)+1)}
	}
	seen := map[string]bool{} // a scan may tell a row twice
	for d, err := range ledger.Rows(ctx) {
		if err != nil {
			return nil, err
		}
		if seen[d.Code] {
			continue
		}
		seen[d.Code] = true
		out.Rows++
		p := byPhase[d.Row.Phase]
		if d.Err != nil || p == nil {
			out.Unreadable++
			continue
		}
		age := max(0, now.Sub(time.UnixMilli(d.Row.AdmittedAt)))
		p.Rows++
		p.OldestSeconds = max(p.OldestSeconds, int64(age.Seconds()))
		i := 0
		for i < len(ages) && age >= ages[i] {
			i++
		}
		p.ByAge[i]++
		out.look(d.Row, now)
	}
	for _, p := range booking.Phases() {
		out.Phases = append(out.Phases, *byPhase[p])
	}
	return out, nil
}

func (c *RowCount) look(row booking.Row, now time.Time) {
	if row.Phase == booking.PhasePaid {
		return
	}
	if row.Phase != booking.PhaseNew && row.Deadline > 0 && now.UnixMilli() >= row.Deadline {
		c.PastDeadline++
	}
	if row.InDoubt() {
		c.InDoubt++
	}
	if row.ForAPerson() {
		c.ForAPerson++
	}
}

func countRefunds(ctx context.Context, store OpenRefunds) (*RefundSight, error) {
	out := new(RefundSight)
	for _, err := range store.OpenRefunds(ctx) {
		switch {
		case errors.Is(err, booking.ErrUnreadable):
			out.Unreadable++
		case err != nil:
			return nil, fmt.Errorf("count refunds: %w", err)
		default:
			out.Due++
		}
		if out.Due+out.Unreadable == refundsMost {
			out.More = true
			break
		}
	}
	return out, nil
}
