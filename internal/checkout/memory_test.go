package checkout_test

import (
	"context"
	"sync"
	"time"

	"holdfast/internal/booking"
)

// memory is a seat ledger that keeps the contract, in memory. Its clock is the
// bubble's.
type memory struct {
	mu       sync.Mutex
	rows     map[string]booking.Row
	payments map[string]booking.Payment // by attempt
	keys     map[string]entry
	slot     int64
}

type entry struct {
	attempt string
	body    booking.Request
}

func newMemory() *memory {
	return &memory{rows: map[string]booking.Row{}, payments: map[string]booking.Payment{}, keys: map[string]entry{}}
}

func (m *memory) taken(level string) int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.count(level)
}

func (m *memory) count(level string) int {
	n := 0
	for _, row := range m.rows {
		if row.Level == level || level == "" {
			n++
		}
	}
	return n
}

// set changes a row behind everybody's back.
func (m *memory) set(code string, change func(*booking.Row)) {
	m.mu.Lock()
	defer m.mu.Unlock()
	row := m.rows[code]
	change(&row)
	m.rows[code] = row
}

func (m *memory) refuse(_ booking.Row, code string) error {
	m.set(code, func(r *booking.Row) { r.Phase, r.Released = booking.PhaseRefused, true })
	return nil
}

func (m *memory) Admit(_ context.Context, r booking.Request, suffix string, check bool) (booking.Seat, error) {
	r.Until = time.Time{} // is no part of what was asked for
	m.mu.Lock()
	defer m.mu.Unlock()
	now, attempt := time.Now(), booking.AttemptID(epoch, suffix)
	level, ok := sale.Level(r.Level)
	if !ok {
		return booking.Seat{}, booking.ErrInvalidLevel
	}
	mail := ""
	for i := range candidates {
		if code(i) == r.Code {
			mail = request(i).Email
		}
	}
	body := r
	body.Key = ""
	take := func(row booking.Row) (booking.Seat, error) {
		if check {
			return booking.Seat{}, booking.ErrWouldAdmit
		}
		m.rows[r.Code] = row
		if r.Key != "" {
			m.keys[r.Code+" "+r.Key] = entry{attempt, body}
		}
		return booking.Seat{Row: row, Now: now}, nil
	}
	row, has := m.rows[r.Code]
	if has && mail == r.Email {
		open := row.Deadline == 0 || now.UnixMilli() < row.Deadline
		if e := m.keys[r.Code+" "+r.Key]; r.Key != "" && e.attempt == row.Attempt && row.Phase != booking.PhaseRefused {
			if e.body != body {
				return booking.Seat{}, booking.ErrIdempotencyMismatch
			}
			if open && (row.Phase == booking.PhaseHeld || row.Phase == booking.PhasePaying) {
				return booking.Seat{Row: row, Now: now, Replay: true}, nil
			}
		}
		lost := row.Phase == booking.PhaseNew && now.UnixMilli()-row.AdmittedAt >= 15_000
		refused := row.Phase == booking.PhaseRefused && row.Released
		if row.Level != r.Level || !open || !lost && !refused {
			return booking.Seat{}, &booking.DuplicateError{Row: row, Now: now}
		}
		fresh := booking.Row{
			Attempt: attempt, Level: row.Level, Slot: row.Slot, Phase: booking.PhaseNew, AdmittedAt: now.UnixMilli(),
			Hold: row.Hold, Amount: row.Amount, Currency: row.Currency, Deadline: row.Deadline, Back: row.Back,
		}
		if row.Phase == booking.PhaseRefused {
			fresh.Back = &booking.RefusedAttempt{Attempt: row.Attempt, Payment: row.Payment, AdmittedAt: row.AdmittedAt}
		}
		return take(fresh)
	}
	switch {
	case mail == "":
		return booking.Seat{}, booking.ErrInvalidCode
	case mail != r.Email:
		return booking.Seat{}, booking.ErrEmailMismatch
	case m.count(r.Level) >= level.Cap:
		return booking.Seat{}, booking.ErrLevelFull
	case m.count("") >= sale.Cap:
		return booking.Seat{}, booking.ErrSoldOut
	}
	if !check {
		m.slot++
	}
	return take(booking.Row{
		Attempt: attempt, Level: r.Level, Slot: m.slot, Phase: booking.PhaseNew, AdmittedAt: now.UnixMilli(),
		Hold: sale.Hold.Milliseconds(), Amount: level.Fee, Currency: sale.Currency,
	})
}

func (m *memory) Attach(_ context.Context, code, attempt string, p booking.Payment) (booking.Row, time.Time, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	row, now := m.rows[code], time.Now()
	switch {
	case row.Attempt != attempt:
		return booking.Row{}, now, booking.ErrNotOwner
	case row.Payment == p.ID:
		return row, now, nil
	case row.Payment != "" || row.Phase != booking.PhaseNew:
		return booking.Row{}, now, booking.ErrHasPayment
	}
	row.Payment, row.Phase, row.Back = p.ID, booking.PhasePayable, nil
	if row.Deadline == 0 {
		row.Deadline = row.AdmittedAt + row.Hold
	}
	m.rows[code], m.payments[attempt] = row, p
	return row, now, nil
}

func (m *memory) Queued(_ context.Context, code, attempt string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	row := m.rows[code]
	switch {
	case row.Attempt != attempt:
		return booking.ErrNotOwner
	case row.Payment == "":
		return booking.ErrNoPayment
	case row.Phase == booking.PhasePayable:
		row.Phase = booking.PhaseHeld
		m.rows[code] = row
	}
	return nil
}

func (m *memory) Undo(_ context.Context, code, attempt string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	row := m.rows[code]
	switch {
	case row.Attempt != attempt:
		return booking.ErrNotOwner
	case row.Payment != "" || row.Phase != booking.PhaseNew:
		return booking.ErrHasPayment
	case row.Back == nil:
		delete(m.rows, code)
		return nil
	}
	row.Attempt, row.Payment, row.AdmittedAt = row.Back.Attempt, row.Back.Payment, row.Back.AdmittedAt
	row.Phase, row.Back, row.Released = booking.PhaseRefused, nil, true
	m.rows[code] = row
	return nil
}

func (m *memory) Row(_ context.Context, code string) (booking.Row, time.Time, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	row, ok := m.rows[code]
	if !ok {
		return booking.Row{}, time.Now(), booking.ErrNotFound
	}
	return row, time.Now(), nil
}

func (m *memory) PaymentOf(_ context.Context, attempt string) (booking.Payment, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	p, ok := m.payments[attempt]
	if !ok {
		return booking.Payment{}, booking.ErrNotFound
	}
	return p, nil
}
