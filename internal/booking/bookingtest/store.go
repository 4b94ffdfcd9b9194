package bookingtest

import (
	"context"
	"fmt"
	"iter"
	"sync"
	"time"

	"holdfast/internal/booking"
)

// StoreDriver is the booking store as tests drive it; package storetest says
// what each method promises.
type StoreDriver interface {
	PutHeld(ctx context.Context, rec booking.Record) (booking.Record, bool, error)
	MarkPaid(ctx context.Context, p booking.Paid) (booking.Record, error)
	Announce(ctx context.Context, rec booking.Record, at time.Time) (booking.Record, error)
	Release(ctx context.Context, seen booking.Record, reason string, at time.Time) error
	Record(ctx context.Context, candidateHash, attempt string) (booking.Record, error)
	RecordByPayment(ctx context.Context, paymentID string) (booking.Record, error)
	RecordsOf(ctx context.Context, candidateHash string) ([]booking.Record, error)
	Records(ctx context.Context) iter.Seq2[booking.Record, error]
	Empty(ctx context.Context) (bool, error)
	Ping(ctx context.Context) error
	ClaimMail(ctx context.Context, candidateHash, attempt, claim string, now, until time.Time) (bool, error)
	MailSent(ctx context.Context, candidateHash, attempt, claim string) error
}

// Store is a booking store whose writes and scans can be broken.
type Store struct {
	StoreDriver
	Faults *Faults
}

// PutHeld can be broken.
func (s Store) PutHeld(ctx context.Context, rec booking.Record) (booking.Record, bool, error) {
	type put struct {
		rec     booking.Record
		created bool
	}
	p, err := do(s.Faults, OpPutHeld, ErrKept, func() (put, error) {
		rec, created, err := s.StoreDriver.PutHeld(ctx, rec)
		return put{rec, created}, err
	})
	return p.rec, p.created, err
}

// MarkPaid can be broken.
func (s Store) MarkPaid(ctx context.Context, p booking.Paid) (booking.Record, error) {
	return do(s.Faults, OpMarkPaid, ErrKept, func() (booking.Record, error) { return s.StoreDriver.MarkPaid(ctx, p) })
}

// Announce can be broken.
func (s Store) Announce(ctx context.Context, rec booking.Record, at time.Time) (booking.Record, error) {
	return do(s.Faults, OpAnnounce, ErrKept, func() (booking.Record, error) { return s.StoreDriver.Announce(ctx, rec, at) })
}

// Release can be broken.
func (s Store) Release(ctx context.Context, seen booking.Record, reason string, at time.Time) error {
	_, err := do(s.Faults, OpReleaseRecord, ErrKept, nothing(func() error { return s.StoreDriver.Release(ctx, seen, reason, at) }))
	return err
}

// ClaimMail can be broken.
func (s Store) ClaimMail(ctx context.Context, candidateHash, attempt, claim string, now, until time.Time) (bool, error) {
	return do(s.Faults, OpClaimMail, ErrKept, func() (bool, error) {
		return s.StoreDriver.ClaimMail(ctx, candidateHash, attempt, claim, now, until)
	})
}

// MailSent can be broken.
func (s Store) MailSent(ctx context.Context, candidateHash, attempt, claim string) error {
	_, err := do(s.Faults, OpMailSent, ErrKept, nothing(func() error {
		return s.StoreDriver.MailSent(ctx, candidateHash, attempt, claim)
	}))
	return err
}

// Records can be broken before its first record; it is then both times the same.
func (s Store) Records(ctx context.Context) iter.Seq2[booking.Record, error] {
	return func(yield func(booking.Record, error) bool) {
		if _, err := do(s.Faults, OpScan, ErrKept, nothing(func() error { return nil })); err != nil {
			yield(booking.Record{}, err)
			return
		}
		s.StoreDriver.Records(ctx)(yield)
	}
}

// Mailer hands mails over to the test. Safe for concurrent use.
type Mailer struct {
	Faults *Faults

	mu   sync.Mutex
	sent []booking.Mail
}

// Send can be broken.
func (m *Mailer) Send(_ context.Context, mail booking.Mail) error {
	if mail.To == "" || mail.Record.State != booking.StatePaid {
		return fmt.Errorf("mail to %q about a record that is %s", mail.To, mail.Record.State)
	}
	_, err := do(m.Faults, OpMail, ErrKept, nothing(func() error {
		m.mu.Lock()
		defer m.mu.Unlock()
		m.sent = append(m.sent, mail)
		return nil
	}))
	return err
}

// Sent lists what was handed over, in order.
func (m *Mailer) Sent() []booking.Mail {
	m.mu.Lock()
	defer m.mu.Unlock()
	return append([]booking.Mail(nil), m.sent...)
}
