// Package bookingtest is what tests of the use cases share: a small sale, a
// clock that the test moves, a payment gateway and a mailer that behave as told,
// a seat ledger and a booking store whose calls can be lost or kept, and the
// check that the sale's rules hold.
//
// A call that is "lost" was not made; one that is "kept" was made and its reply
// lost. Both look alike to the caller. Clock: the test's, an offset to the wall
// clock; nothing here waits for time to pass.
package bookingtest

import (
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"holdfast/internal/booking"
)

// Sale is small enough to fill; its level caps exceed the global cap.
func Sale() booking.Sale {
	return booking.Sale{
		Name: "demo", Currency: "BDT", Cap: 5, Hold: booking.DefaultHold,
		Levels: []booking.Level{
			{ID: "N1", Name: "N1 Advanced", Cap: 3, Fee: 150000},
			{ID: "N2", Name: "N2 Upper", Cap: 3, Fee: 120000},
		},
	}
}

// Epoch is the identity of the sale of these tests.
const Epoch = "1nmkmg0aaaaa"

// Code is the code of candidate i.
func Code(i int) string { return fmt.Sprintf("C%04d", i) }

// Email is the address on file of candidate i.
func Email(i int) string { return fmt.Sprintf("c%04d@example.org", i) }

// Candidates are the candidates 1 to n.
func Candidates(n int) []booking.Candidate {
	list := make([]booking.Candidate, n)
	for i := range list {
		list[i] = booking.Candidate{Code: Code(i + 1), Email: Email(i + 1)}
	}
	return list
}

// Clock is the wall clock and an offset. The zero value has none. Safe for
// concurrent use.
type Clock struct{ offset atomic.Int64 }

// Advance moves the clock.
func (c *Clock) Advance(d time.Duration) { c.offset.Add(int64(d)) }

// Offset is how far the clock was moved: admission.Options.ClockOffset.
func (c *Clock) Offset() time.Duration { return time.Duration(c.offset.Load()) }

// Now is the moved time.
func (c *Clock) Now() time.Time { return time.Now().Add(c.Offset()) }

// Background runs work on goroutines that the test waits for. The zero value
// takes work. Safe for concurrent use.
type Background struct {
	draining atomic.Bool
	work     sync.WaitGroup
}

// Go runs fn, or answers false when draining.
func (b *Background) Go(fn func()) bool {
	if b.draining.Load() {
		return false
	}
	b.work.Go(fn)
	return true
}

// Drain refuses work from now on.
func (b *Background) Drain() { b.draining.Store(true) }

// Wait returns when no work is left.
func (b *Background) Wait() { b.work.Wait() }
