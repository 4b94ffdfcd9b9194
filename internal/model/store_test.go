package model_test

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"holdfast/internal/booking"
	"holdfast/internal/store/storetest"
)

// records is a booking store in memory: a file on disk would take most of a
// sequence's time. It passes the suite of the drivers.
type records struct {
	mu      sync.Mutex
	all     map[string]booking.Record // by candidate hash and attempt
	refunds map[string]booking.Refund // by transaction
}

func newRecords() *records {
	return &records{all: map[string]booking.Record{}, refunds: map[string]booking.Refund{}}
}

func TestRecords_AreABookingStore(t *testing.T) {
	t.Parallel()
	storetest.Run(t, func(*testing.T) storetest.Store { return newRecords() })
}

func TestRecords_FirstRefundOfATransactionStays(t *testing.T) {
	t.Parallel()
	s := newRecords()
	if _, err := s.Refund(t.Context(), "TRX1"); !errors.Is(err, booking.ErrNotFound) {
		t.Errorf("refund that is not there: got %v, want %v", err, booking.ErrNotFound)
	}
	first := booking.Refund{
		Version: booking.RefundVersion, Transaction: "TRX1", PaymentID: "TR1", CandidateHash: "hash", Attempt: "attempt",
		Amount: 1, Currency: "BDT", Kind: booking.MoneyLate, Reason: "full", State: booking.RefundDue, DecidedAt: time.Unix(1, 0),
	}
	other := first
	other.Reason = "candidate"
	for i, r := range []booking.Refund{first, other, first} {
		got, created, err := s.PutRefund(t.Context(), r)
		if err != nil || got != first || created != (i == 0) {
			t.Errorf("put %d: got %+v, created %t, %v, want the first", i+1, got, created, err)
		}
	}
	if got, err := s.Refund(t.Context(), "TRX1"); err != nil || got != first {
		t.Errorf("read: got %+v, %v, want the first", got, err)
	}
	other.Transaction, other.State = "TRX2", booking.RefundDone
	if _, _, err := s.PutRefund(t.Context(), other); err == nil {
		t.Error("a refund that begins as done: got no error, want one")
	}
}

// change makes one conditional write.
func (s *records) change(ctx context.Context, hash, attempt string, fn func(have booking.Record, there bool) (booking.Record, error)) (booking.Record, error) {
	if err := ctx.Err(); err != nil {
		return booking.Record{}, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	have, there := s.all[hash+attempt]
	rec, err := fn(have, there)
	if err != nil {
		return rec, err
	}
	for _, t := range []*time.Time{&rec.AdmittedAt, &rec.Deadline, &rec.ExecuteAt, &rec.PaidAt, &rec.MailClaimUntil, &rec.TTL} {
		*t = t.Round(0).UTC()
	}
	s.all[hash+attempt] = rec
	return rec, nil
}

func validHeld(rec booking.Record) error {
	if err := rec.Validate(); err != nil {
		return err
	}
	if rec.State != booking.StateHeld {
		return fmt.Errorf("record to put is %s", rec.State)
	}
	return nil
}

func (s *records) PutHeld(ctx context.Context, rec booking.Record) (booking.Record, bool, error) {
	if err := validHeld(rec); err != nil {
		return booking.Record{}, false, err
	}
	created := false
	rec, err := s.change(ctx, rec.CandidateHash, rec.Attempt, func(have booking.Record, there bool) (booking.Record, error) {
		if created = !there; there {
			return have, nil
		}
		return rec, nil
	})
	return rec, created, err
}

func (s *records) MarkPaid(ctx context.Context, p booking.Paid) (booking.Record, error) {
	if err := p.Record.Validate(); err != nil {
		return booking.Record{}, err
	}
	if p.Transaction == "" || p.PaidAt.IsZero() {
		return booking.Record{}, errors.New("mark paid: transaction or time is missing")
	}
	return s.change(ctx, p.Record.CandidateHash, p.Record.Attempt, func(rec booking.Record, there bool) (booking.Record, error) {
		switch {
		case !there:
			rec = p.Record
		case rec.PaymentID != p.Record.PaymentID:
			return booking.Record{}, booking.ErrOtherThanOrdered
		case rec.State == booking.StatePaid && rec.Transaction != p.Transaction:
			return rec, booking.ErrSecondPayment
		case rec.State == booking.StatePaid:
			return rec, nil
		}
		rec.State, rec.Transaction, rec.PaidAt, rec.TTL = booking.StatePaid, p.Transaction, p.PaidAt, time.Time{}
		if rec.Mail != booking.MailSent {
			rec.Mail = booking.MailDue
		}
		return rec, nil
	})
}

func (s *records) Announce(ctx context.Context, rec booking.Record, at time.Time) (booking.Record, error) {
	if err := validHeld(rec); err != nil {
		return booking.Record{}, err
	}
	return s.change(ctx, rec.CandidateHash, rec.Attempt, func(have booking.Record, there bool) (booking.Record, error) {
		switch {
		case !there:
			have = rec
		case have.PaymentID != rec.PaymentID:
			return booking.Record{}, booking.ErrOtherThanOrdered
		case have.State == booking.StatePaid:
			return booking.Record{}, booking.ErrAlreadyPaid
		case have.State == booking.StateReleased:
			return booking.Record{}, booking.ErrNotOwner
		}
		if at.Before(have.ExecuteAt) {
			at = have.ExecuteAt.Add(time.Millisecond)
		}
		have.ExecuteAt = at
		return have, nil
	})
}

func (s *records) Release(ctx context.Context, seen booking.Record, reason string, at time.Time) error {
	_, err := s.change(ctx, seen.CandidateHash, seen.Attempt, func(rec booking.Record, there bool) (booking.Record, error) {
		switch {
		case !there:
			return rec, booking.ErrNotFound
		case rec.PaymentID != seen.PaymentID:
			return rec, booking.ErrOtherThanOrdered
		case rec.State == booking.StatePaid:
			return rec, booking.ErrAlreadyPaid
		case rec.State == booking.StateReleased:
			return rec, nil
		case !rec.ExecuteAt.Equal(seen.ExecuteAt):
			return rec, booking.ErrAnnounced
		}
		rec.State, rec.Reason, rec.TTL = booking.StateReleased, reason, booking.ReleasedTTL(at)
		return rec, nil
	})
	return err
}

func (s *records) PutRefund(ctx context.Context, r booking.Refund) (booking.Refund, bool, error) {
	if err := errors.Join(ctx.Err(), r.Validate()); err != nil {
		return booking.Refund{}, false, err
	}
	if r.State != booking.RefundDue {
		return booking.Refund{}, false, fmt.Errorf("refund to put is %s", r.State)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if have, there := s.refunds[r.Transaction]; there {
		return have, false, nil
	}
	s.refunds[r.Transaction] = r
	return r, true, nil
}

func (s *records) Refund(ctx context.Context, transaction string) (booking.Refund, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	r, there := s.refunds[transaction]
	if !there {
		return r, errors.Join(ctx.Err(), booking.ErrNotFound)
	}
	return r, ctx.Err()
}

// Refunds scans as Records does.
func (s *records) Refunds(ctx context.Context) iter.Seq2[booking.Refund, error] {
	return func(yield func(booking.Refund, error) bool) {
		s.mu.Lock()
		all := slices.Collect(maps.Values(s.refunds))
		s.mu.Unlock()
		slices.SortFunc(all, func(a, b booking.Refund) int { return strings.Compare(a.Transaction, b.Transaction) })
		for _, r := range all {
			if !yield(r, ctx.Err()) {
				return
			}
		}
	}
}

// OpenNotifications are none: the model tells of money itself.
func (s *records) OpenNotifications(context.Context) iter.Seq2[booking.Notification, error] {
	return func(func(booking.Notification, error) bool) {}
}

func (s *records) ClaimMail(ctx context.Context, candidateHash, attempt, claim string, now, until time.Time) (bool, error) {
	if claim == "" {
		return false, errors.New("claim mail: claim is empty")
	}
	_, err := s.change(ctx, candidateHash, attempt, func(rec booking.Record, _ bool) (booking.Record, error) {
		free := rec.MailClaim == "" || rec.MailClaim == claim || !now.Before(rec.MailClaimUntil)
		if rec.State != booking.StatePaid || rec.Mail != booking.MailDue || !free {
			return rec, booking.ErrNotOwner
		}
		rec.MailClaim, rec.MailClaimUntil = claim, until
		return rec, nil
	})
	if errors.Is(err, booking.ErrNotOwner) {
		return false, nil
	}
	return err == nil, err
}

func (s *records) MailSent(ctx context.Context, candidateHash, attempt, claim string) error {
	_, err := s.change(ctx, candidateHash, attempt, func(rec booking.Record, there bool) (booking.Record, error) {
		switch {
		case !there:
			return rec, booking.ErrNotFound
		case rec.Mail == booking.MailSent:
			return rec, nil
		case rec.Mail != booking.MailDue || rec.MailClaim != claim || claim == "":
			return rec, booking.ErrNotOwner
		}
		rec.Mail, rec.MailClaim, rec.MailClaimUntil = booking.MailSent, "", time.Time{}
		return rec, nil
	})
	return err
}

func (s *records) Record(ctx context.Context, candidateHash, attempt string) (booking.Record, error) {
	all, err := s.list(ctx, func(r booking.Record) bool { return r.CandidateHash == candidateHash && r.Attempt == attempt })
	if err == nil && len(all) == 0 {
		err = booking.ErrNotFound
	}
	if err != nil {
		return booking.Record{}, err
	}
	return all[0], nil
}

func (s *records) RecordByPayment(ctx context.Context, paymentID string) (booking.Record, error) {
	all, err := s.list(ctx, func(r booking.Record) bool { return r.PaymentID == paymentID })
	if err == nil && len(all) == 0 {
		err = booking.ErrNotFound
	}
	if err != nil {
		return booking.Record{}, err
	}
	return all[0], nil
}

func (s *records) RecordsOf(ctx context.Context, candidateHash string) ([]booking.Record, error) {
	return s.list(ctx, func(r booking.Record) bool { return r.CandidateHash == candidateHash })
}

func (s *records) Records(ctx context.Context) iter.Seq2[booking.Record, error] {
	return func(yield func(booking.Record, error) bool) {
		all, err := s.list(ctx, func(booking.Record) bool { return true })
		if err != nil {
			yield(booking.Record{}, err)
			return
		}
		for _, r := range all {
			if !yield(r, nil) {
				return
			}
		}
	}
}

func (s *records) Empty(ctx context.Context) (bool, error) {
	all, err := s.list(ctx, func(booking.Record) bool { return true })
	return len(all) == 0 && len(s.refunds) == 0, err
}

// have tells whether there is a record of that sale.
func (s *records) have(epoch string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, r := range s.all {
		if r.Epoch == epoch {
			return true
		}
	}
	return false
}

func (s *records) Ping(ctx context.Context) error { return ctx.Err() }

// list gives what matches, oldest attempt first.
func (s *records) list(ctx context.Context, match func(booking.Record) bool) ([]booking.Record, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []booking.Record
	for _, r := range s.all {
		if match(r) {
			out = append(out, r)
		}
	}
	slices.SortFunc(out, func(a, b booking.Record) int { return strings.Compare(a.Attempt, b.Attempt) })
	return out, nil
}

// EpochMark: no sale of the model is reset.
func (s *records) EpochMark(context.Context) (booking.EpochMark, error) {
	return booking.EpochMark{}, booking.ErrNotFound
}
