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
	Asked(ctx context.Context, seen booking.Record, at time.Time) error
	Record(ctx context.Context, candidateHash, attempt string) (booking.Record, error)
	RecordByPayment(ctx context.Context, paymentID string) (booking.Record, error)
	RecordsOf(ctx context.Context, candidateHash string) ([]booking.Record, error)
	Records(ctx context.Context) iter.Seq2[booking.Record, error]
	Empty(ctx context.Context) (bool, error)
	EpochMark(ctx context.Context) (booking.EpochMark, error)
	Ping(ctx context.Context) error
	ClaimMail(ctx context.Context, candidateHash, attempt, claim string, now, until time.Time) (bool, error)
	MailSent(ctx context.Context, candidateHash, attempt, claim string) error
	KeepHeld(ctx context.Context, candidateHash, attempt string) error
	Extend(ctx context.Context, candidateHash, attempt string, deadline time.Time) error

	PutRefund(ctx context.Context, r booking.Refund) (booking.Refund, bool, error)
	Refund(ctx context.Context, transaction string) (booking.Refund, error)
	RefundsOf(ctx context.Context, candidateHash, attempt string) ([]booking.Refund, error)
	Refunds(ctx context.Context) iter.Seq2[booking.Refund, error]
	OpenRefunds(ctx context.Context) iter.Seq2[booking.Refund, error]
	ClaimRefund(ctx context.Context, transaction, claim string, now, until time.Time) (booking.Refund, bool, error)
	RefundSent(ctx context.Context, transaction, claim string, at time.Time) error
	RefundDone(ctx context.Context, transaction, by, refundTransaction, note string, at time.Time) error
	RefundTrouble(ctx context.Context, transaction, claim, trouble string) error

	PutNotification(ctx context.Context, n booking.Notification) (bool, error)
	Notification(ctx context.Context, id string) (booking.Notification, error)
	OpenNotifications(ctx context.Context) iter.Seq2[booking.Notification, error]
	CloseNotification(ctx context.Context, id string, outcome booking.NotificationOutcome, at time.Time) error
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

// Asked can be broken.
func (s Store) Asked(ctx context.Context, seen booking.Record, at time.Time) error {
	_, err := do(s.Faults, OpAsked, ErrKept, nothing(func() error { return s.StoreDriver.Asked(ctx, seen, at) }))
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
	return scan(s.Faults, OpScan, s.StoreDriver.Records(ctx))
}

// scan is a scan that can be broken before its first item.
func scan[T any](f *Faults, op Op, items iter.Seq2[T, error]) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) {
		if _, err := do(f, op, ErrKept, nothing(func() error { return nil })); err != nil {
			var none T
			yield(none, err)
			return
		}
		items(yield)
	}
}

// Extend can be broken.
func (s Store) Extend(ctx context.Context, candidateHash, attempt string, deadline time.Time) error {
	_, err := do(s.Faults, OpExtendRecord, ErrKept, nothing(func() error {
		return s.StoreDriver.Extend(ctx, candidateHash, attempt, deadline)
	}))
	return err
}

// refundCall is do for a call that answers with a refund and whether it was the
// one to change it.
func refundCall(f *Faults, op Op, call func() (booking.Refund, bool, error)) (booking.Refund, bool, error) {
	type answer struct {
		refund booking.Refund
		mine   bool
	}
	a, err := do(f, op, ErrKept, func() (answer, error) {
		r, mine, err := call()
		return answer{r, mine}, err
	})
	return a.refund, a.mine, err
}

// PutRefund can be broken.
func (s Store) PutRefund(ctx context.Context, r booking.Refund) (booking.Refund, bool, error) {
	return refundCall(s.Faults, OpPutRefund, func() (booking.Refund, bool, error) { return s.StoreDriver.PutRefund(ctx, r) })
}

// ClaimRefund can be broken.
func (s Store) ClaimRefund(ctx context.Context, transaction, claim string, now, until time.Time) (booking.Refund, bool, error) {
	return refundCall(s.Faults, OpClaimRefund, func() (booking.Refund, bool, error) {
		return s.StoreDriver.ClaimRefund(ctx, transaction, claim, now, until)
	})
}

// RefundSent can be broken.
func (s Store) RefundSent(ctx context.Context, transaction, claim string, at time.Time) error {
	_, err := do(s.Faults, OpRefundSent, ErrKept, nothing(func() error {
		return s.StoreDriver.RefundSent(ctx, transaction, claim, at)
	}))
	return err
}

// RefundDone can be broken.
func (s Store) RefundDone(ctx context.Context, transaction, by, refundTransaction, note string, at time.Time) error {
	_, err := do(s.Faults, OpRefundDone, ErrKept, nothing(func() error {
		return s.StoreDriver.RefundDone(ctx, transaction, by, refundTransaction, note, at)
	}))
	return err
}

// RefundTrouble can be broken.
func (s Store) RefundTrouble(ctx context.Context, transaction, claim, trouble string) error {
	_, err := do(s.Faults, OpRefundTrouble, ErrKept, nothing(func() error {
		return s.StoreDriver.RefundTrouble(ctx, transaction, claim, trouble)
	}))
	return err
}

// Refunds can be broken as Records can.
func (s Store) Refunds(ctx context.Context) iter.Seq2[booking.Refund, error] {
	return scan(s.Faults, OpScanRefunds, s.StoreDriver.Refunds(ctx))
}

// OpenRefunds can be broken as Records can.
func (s Store) OpenRefunds(ctx context.Context) iter.Seq2[booking.Refund, error] {
	return scan(s.Faults, OpScanRefunds, s.StoreDriver.OpenRefunds(ctx))
}

// PutNotification can be broken.
func (s Store) PutNotification(ctx context.Context, n booking.Notification) (bool, error) {
	return do(s.Faults, OpPutNotification, ErrKept, func() (bool, error) { return s.StoreDriver.PutNotification(ctx, n) })
}

// CloseNotification can be broken.
func (s Store) CloseNotification(ctx context.Context, id string, outcome booking.NotificationOutcome, at time.Time) error {
	_, err := do(s.Faults, OpCloseNotification, ErrKept, nothing(func() error {
		return s.StoreDriver.CloseNotification(ctx, id, outcome, at)
	}))
	return err
}

// OpenNotifications can be broken as Records can.
func (s Store) OpenNotifications(ctx context.Context) iter.Seq2[booking.Notification, error] {
	return scan(s.Faults, OpScanNotifications, s.StoreDriver.OpenNotifications(ctx))
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
