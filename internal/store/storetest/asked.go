package storetest

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"holdfast/internal/booking"
)

// askedAt is when the suite's ended attempts are asked about.
var askedAt = start.Add(2 * time.Hour)

// asAsked is what Asked makes of the record.
func asAsked(rec booking.Record, at time.Time) booking.Record {
	rec.AskedAt = at
	return rec
}

// ended puts a record and releases it.
func ended(t *testing.T, s Driver) booking.Record {
	t.Helper()
	rec := Held()
	mustPut(t, s, rec)
	mustRelease(t, s, rec)
	return asReleased(rec)
}

func asked(t *testing.T, s Driver) {
	ctx := t.Context()

	t.Run("TwiceAndRepeated", func(t *testing.T) {
		rec := ended(t, s)
		note := func(what string, seen booking.Record, at time.Time, want booking.Record) {
			t.Helper()
			if err := s.Asked(ctx, seen, at); err != nil {
				t.Errorf("%s: got %v, want none", what, err)
			}
			stored(t, s, want)
		}
		first, second := asAsked(rec, askedAt), asAsked(rec, askedAt.Add(24*time.Hour))
		note("first question", rec, first.AskedAt.In(time.FixedZone("far", 6*3600)), first)
		if got, err := s.Record(ctx, rec.CandidateHash, rec.Attempt); err != nil || got.AskedAt.Location() != time.UTC {
			t.Errorf("asked_at in the store: got %s, %v, want it in UTC", got.AskedAt, err)
		}
		note("its repeat", rec, first.AskedAt, first)
		note("another runner's, who saw none", rec, first.AskedAt.Add(time.Minute), first)
		note("second question", first, second.AskedAt, second)
		note("its repeat", first, second.AskedAt, second)
		note("one that came late", rec, first.AskedAt, second)
		// A clock that had been put forward noted a time to come.
		note("question by a clock that was put back", second, first.AskedAt, first)
		for rec, err := range s.Records(ctx) {
			if err != nil || (rec.Attempt == first.Attempt && !cmp.Equal(rec, first, toTheSecond())) {
				t.Errorf("scan: got %+v, %v, want the record as it was noted", rec, err)
			}
		}
	})
	t.Run("OnlyOfWhatHasEnded", func(t *testing.T) {
		none := Held()
		if err := s.Asked(ctx, asReleased(none), askedAt); !errors.Is(err, booking.ErrNotFound) {
			t.Errorf("without a record: got %v, want ErrNotFound", err)
		}
		absent(t, s, none)

		held := Held()
		mustPut(t, s, held)
		if err := s.Asked(ctx, held, askedAt); err == nil {
			t.Error("of a HELD record: got no error, want one")
		}
		stored(t, s, held)

		paid := Held()
		mustPay(t, s, paid)
		if err := s.Asked(ctx, asReleased(paid), askedAt); !errors.Is(err, booking.ErrAlreadyPaid) {
			t.Errorf("of a PAID record: got %v, want ErrAlreadyPaid", err)
		}
		stored(t, s, asPaid(paid))

		rec := ended(t, s)
		other := rec
		other.PaymentID = "TRother"
		if err := s.Asked(ctx, other, askedAt); !errors.Is(err, booking.ErrOtherThanOrdered) {
			t.Errorf("of another payment: got %v, want ErrOtherThanOrdered", err)
		}
		if err := s.Asked(ctx, rec, time.Time{}); err == nil {
			t.Error("without a time: got no error, want one")
		}
		stored(t, s, rec)
	})
	t.Run("LateMoneyStillPaysIt", func(t *testing.T) {
		rec := ended(t, s)
		if err := s.Asked(ctx, rec, askedAt); err != nil {
			t.Fatalf("Asked: %v", err)
		}
		want := asAsked(asPaid(rec), askedAt)
		got, err := s.MarkPaid(ctx, paid(rec))
		check(t, "MarkPaid of a record that was asked about", got, err, want)
		stored(t, s, want)
	})
	t.Run("EndedContextOrUnreadable", func(t *testing.T) {
		rec := ended(t, s)
		over, cancel := context.WithCancel(ctx)
		cancel()
		if err := s.Asked(over, rec, askedAt); err == nil || errors.Is(err, booking.ErrNotFound) || errors.Is(err, booking.ErrUnreadable) {
			t.Errorf("with an ended context: got %v, want an error that says nothing of the record", err)
		}
		stored(t, s, rec)
		c, ok := s.(Corrupter)
		if !ok {
			t.Skip("this driver's test cannot make a record unreadable")
		}
		c.Corrupt(t, rec.CandidateHash, rec.Attempt)
		if err := s.Asked(ctx, rec, askedAt); !errors.Is(err, booking.ErrUnreadable) {
			t.Errorf("of an unreadable record: got %v, want ErrUnreadable", err)
		}
	})
}

// Of runners who saw the record alike one notes its time, and none is told of an
// error.
func askedManyAtOnce(t *testing.T, s Driver) {
	rec := ended(t, s)
	const n = 20
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() {
			if err := s.Asked(t.Context(), rec, askedAt.Add(time.Duration(i)*time.Second)); err != nil {
				t.Errorf("Asked by %d of %d at once: got %v, want none", i, n, err)
			}
		})
	}
	wg.Wait()
	got, err := s.Record(t.Context(), rec.CandidateHash, rec.Attempt)
	since := got.AskedAt.Sub(askedAt)
	if err != nil || since < 0 || since >= n*time.Second || since%time.Second != 0 {
		t.Fatalf("after %d at once: got asked_at %s, %v, want one of theirs", n, got.AskedAt, err)
	}
	check(t, "record", got, nil, asAsked(rec, got.AskedAt))
}

// Lost, kept but reported lost, or whole: repeated, the end is the same.
func brokenAsked(t *testing.T, s Driver) {
	for fault, through := range faults() {
		t.Run(fault, func(t *testing.T) {
			rec := ended(t, s)
			call := func() error { return s.Asked(t.Context(), rec, askedAt) }
			if err := through(call); err != nil && !errors.Is(err, errLost) {
				t.Fatalf("first call: %v", err)
			}
			for range 2 {
				if err := call(); err != nil {
					t.Errorf("repeat: got %v, want none", err)
				}
				stored(t, s, asAsked(rec, askedAt))
			}
		})
	}
}
