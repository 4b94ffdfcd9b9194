// Package settle is where a payment becomes a seat: the browser's return, and
// what the reconciler learns, end here. Each signal is a hint; the gateway's own
// word on this payment decides, and it is compared with what was ordered.
//
// It never releases a seat. When it cannot know, it changes nothing and leaves
// the row to the reconciler. What it does is safe to repeat: the ledger is told
// first, acknowledged, then the record, then the mail.
package settle

import (
	"context"
	"crypto/rand"
	"crypto/subtle"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"holdfast/internal/booking"
)

// Ledger is what settling needs of the seat ledger. Answers are acknowledged;
// booking.ErrNotAcknowledged says that nothing may rest on the call, and the next
// signal or sweep repeats it. Every method is safe to repeat.
type Ledger interface {
	Row(ctx context.Context, code string) (booking.Row, time.Time, error)
	BeginPay(ctx context.Context, code, attempt, payment, token string, length time.Duration) (booking.Row, time.Time, error)
	EndPay(ctx context.Context, code, attempt, token string, as booking.Phase) error
	Settle(ctx context.Context, code, attempt, payment, transaction string) (booking.Row, error)
	// Late decides, once for each transaction, about money that is no plain payment
	// of its seat.
	Late(ctx context.Context, rec booking.Record, transaction string, kind booking.MoneyKind) (booking.Decision, error)
	RecordDone(ctx context.Context, code, attempt string) error
	MailDone(ctx context.Context, code, attempt string) error
	// RecordReleased lets the candidate of a refused attempt start another.
	RecordReleased(ctx context.Context, code, attempt string) error
	// Issued finds a payment we issued, or booking.ErrNotFound.
	Issued(ctx context.Context, payment string) (booking.Issued, error)
	// Email is the address on file, or booking.ErrNotFound.
	Email(ctx context.Context, code string) (string, error)
}

// Gateway moves money and tells what became of a payment. booking.ErrNotSent
// says that nothing happened; any other error, that it may have.
type Gateway interface {
	Execute(ctx context.Context, payment string) (booking.Charge, error)
	Query(ctx context.Context, payment string) (booking.Charge, error)
}

// Store keeps the records. Every method is conditional and safe to repeat.
type Store interface {
	PutHeld(ctx context.Context, r booking.Record) (booking.Record, bool, error)
	MarkPaid(ctx context.Context, p booking.Paid) (booking.Record, error)
	// Announce returns the record with the execute_at that this call gave it.
	Announce(ctx context.Context, r booking.Record, at time.Time) (booking.Record, error)
	// Release is booking.ErrAnnounced when the record's execute_at is not the seen one.
	Release(ctx context.Context, seen booking.Record, reason string, at time.Time) error
	PutRefund(ctx context.Context, r booking.Refund) (booking.Refund, bool, error)
	Refund(ctx context.Context, transaction string) (booking.Refund, error)
	Record(ctx context.Context, candidateHash, attempt string) (booking.Record, error)
	RecordByPayment(ctx context.Context, payment string) (booking.Record, error)
	ClaimMail(ctx context.Context, candidateHash, attempt, claim string, now, until time.Time) (bool, error)
	MailSent(ctx context.Context, candidateHash, attempt, claim string) error
}

// Mailer sends the confirmation. A nil error means that it is handed over;
// after an error it is sent again.
type Mailer interface {
	Send(ctx context.Context, m booking.Mail) error
}

// Sale tells the running sale, for the mail's words.
type Sale interface {
	Sale(ctx context.Context) (booking.Sale, error)
}

// Background runs work that must not end with the request that started it, at once or when
// there is time for it, and that a drain waits for. It refuses when draining.
type Background interface {
	Go(fn func()) bool
}

// Deps is what a Service is made of; every field but Now is required.
type Deps struct {
	Ledger     Ledger
	Gateway    Gateway
	Store      Store
	Mailer     Mailer
	Sale       Sale
	Background Background
	// BookingURL makes the booking URL of a candidate's attempt, for the mail.
	BookingURL func(code, attempt string) string
	// ExecuteTimeout bounds one execute call; 'paying' lasts longer than it.
	ExecuteTimeout time.Duration
	Now            func() time.Time
	Log            *slog.Logger
	Registerer     prometheus.Registerer
}

// Service settles. Safe for concurrent use.
type Service struct {
	Deps
	mails *prometheus.CounterVec
}

// PayingMargin is how much longer 'paying' lasts than the execute call in it.
const PayingMargin = 5 * time.Second

const (
	stepTimeout = 2 * time.Second  // one ledger step, retries included
	workTimeout = 10 * time.Second // record and mail of one booking
	sendTimeout = 5 * time.Second  // the mail provider's answer
	mailLease   = 2 * time.Minute

	mailSentTries = 3
)

// The outcomes of a mail.
const (
	mailSent      = "sent"
	mailFailed    = "failed"
	mailNoAddress = "no_address"
)

// New checks its dependencies.
func New(d Deps) (*Service, error) {
	if d.Ledger == nil || d.Gateway == nil || d.Store == nil || d.Mailer == nil || d.Sale == nil || d.Background == nil ||
		d.BookingURL == nil || d.ExecuteTimeout <= 0 || d.Log == nil || d.Registerer == nil {
		return nil, errors.New("settle: a dependency is missing")
	}
	if d.Now == nil {
		d.Now = time.Now
	}
	mails := promauto.With(d.Registerer).NewCounterVec(prometheus.CounterOpts{
		Name: "holdfast_mail_total",
		Help: "Confirmation mails, by outcome: sent, failed, no_address.",
	}, []string{"outcome"})
	for _, outcome := range []string{mailSent, mailFailed, mailNoAddress} {
		mails.WithLabelValues(outcome) // an alarm sees the first failure only over a zero
	}
	return &Service{Deps: d, mails: mails}, nil
}

// noCode is no candidate's.
const noCode = "-"

// Issued finds the payment of a browser's return and checks its signature in
// constant time. booking.ErrNotFound for a payment that we did not issue or a
// wrong signature: such a return causes no call to the gateway.
func (s *Service) Issued(ctx context.Context, payment, signature string) (code, attempt string, err error) {
	is, stashErr := s.Ledger.Issued(ctx, payment)
	if stashErr != nil {
		// The stash has lapsed, Redis was lost or is away, or another version wrote
		// it: the record knows, if it has been written by now.
		rec, err := s.Store.RecordByPayment(ctx, payment)
		if errors.Is(err, booking.ErrNotFound) && !errors.Is(stashErr, booking.ErrNotFound) {
			err = stashErr // who may have issued it was not to be asked
		} else if errors.Is(err, booking.ErrNotFound) {
			// Nor does an empty Redis know: there nothing is "not there".
			if _, _, look := s.row(ctx, noCode); !errors.Is(look, booking.ErrNotFound) {
				err = errors.Join(booking.ErrTryAgain, look)
			}
		}
		if err != nil {
			return "", "", err
		}
		is = booking.Issued{Code: rec.Code, Attempt: rec.Attempt, Payment: booking.Payment{Signature: rec.Signature}}
	}
	want := is.Payment.Signature
	if want == "" || subtle.ConstantTimeCompare([]byte(want), []byte(signature)) != 1 {
		return "", "", booking.ErrNotFound
	}
	return is.Code, is.Attempt, nil
}

// Return brings a payment to its end after its payer came back with success. It
// runs on a context of its own, since money may move in it: call it in the
// background, and wait as long as the browser may wait. What it cannot decide it
// leaves to the reconciler.
func (s *Service) Return(ctx context.Context, code, attempt, payment string) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.ExecuteTimeout+PayingMargin+workTimeout)
	defer cancel()
	row, _, err := s.row(ctx, code)
	if errors.Is(err, booking.ErrNotFound) || (err == nil && (row.Attempt != attempt || row.Payment != payment)) {
		return fmt.Errorf("return of a payer: %w", booking.ErrNotOwner) // not executed, so no money moves
	}
	if err != nil {
		return err
	}
	if row.Phase == booking.PhasePaid {
		return nil // the sweep writes what may be missing
	}
	rec, err := s.orderedRecord(ctx, code, row)
	if err != nil {
		return err
	}
	if row.Phase == booking.PhasePayable {
		// The queue may never have taken the record: it must exist before money can.
		if _, _, err := s.Store.PutHeld(ctx, rec); err != nil {
			return fmt.Errorf("put record before paying: %w", err)
		}
	}
	// The call's end is counted from before 'paying' began, so that it always comes
	// before the end of 'paying', however long the announcement or a pause of this
	// process took.
	token, end := rand.Text(), time.Now().Add(s.ExecuteTimeout)
	err = s.beginPay(ctx, code, attempt, payment, token)
	switch {
	case errors.Is(err, booking.ErrAlreadyPaid):
		return nil
	case err != nil:
		return err
	}
	// The record outlives a lost Redis: a rebuild must know that money may move.
	noted, err := s.Store.Announce(ctx, rec, s.Now())
	if err != nil {
		return errors.Join(fmt.Errorf("announce execute: %w", err), s.endPay(ctx, code, attempt, token, booking.PhaseHeld))
	}
	rec.ExecuteAt = noted.ExecuteAt
	// From here money may move: the row is 'paying' until its end, whatever
	// becomes of this process.
	call, cancelCall := context.WithDeadline(ctx, end)
	defer cancelCall()
	charge, err := s.Gateway.Execute(call, payment)
	if errors.Is(err, booking.ErrNotSent) {
		return errors.Join(err, s.endPay(ctx, code, attempt, token, booking.PhaseHeld))
	}
	if err != nil || charge.Status == booking.ChargeUnknown || charge.Status == booking.ChargeOpen {
		s.Log.WarnContext(ctx, "execute gave no clear answer, asking", "payment", payment, "gateway_code", charge.Code, "error", err)
		if charge, err = s.Gateway.Query(ctx, payment); err != nil {
			return fmt.Errorf("query after execute: %w", err)
		}
		if charge.Status != booking.ChargeCompleted {
			return fmt.Errorf("payment %s is %s after execute: left to the reconciler: %w", payment, charge.Status, booking.ErrInDoubt)
		}
	}
	switch charge.Status {
	case booking.ChargeCompleted:
		err := s.Confirm(ctx, code, rec, charge)
		if errors.Is(err, booking.ErrRefunded) && !errors.Is(err, booking.ErrSecondPayment) {
			// For the seat it is not completed, and the payment is used up: it is over.
			return errors.Join(err, s.Refuse(ctx, code, rec, token, booking.ReasonRefund))
		}
		return err
	case booking.ChargeRefused:
		return s.Refuse(ctx, code, rec, token, charge.Code)
	case booking.ChargeUnfinished:
		return s.endPay(ctx, code, attempt, token, booking.PhaseHeld)
	}
	return fmt.Errorf("payment %s: charge status %q: %w", payment, charge.Status, booking.ErrInDoubt)
}

// Refuse ends a payment that the gateway finally refused: the row, acknowledged,
// then the record, and only then may the candidate start another. The seat stays
// theirs until the deadline. Safe to repeat with the same token: a sweep finishes
// what broke off, without the gateway's code. rec is as it was read before the
// gateway's answer; see ReleaseRecord.
func (s *Service) Refuse(ctx context.Context, code string, rec booking.Record, token, gatewayCode string) error {
	if err := s.endPay(ctx, code, rec.Attempt, token, booking.PhaseRefused); err != nil {
		return err
	}
	reason := booking.ReasonRefused
	if gatewayCode != "" {
		reason += " " + gatewayCode
	}
	if err := s.ReleaseRecord(ctx, rec, reason); err != nil {
		return err
	}
	step, cancel := context.WithTimeout(ctx, stepTimeout)
	defer cancel()
	if err := s.Ledger.RecordReleased(step, code, rec.Attempt); err != nil {
		return fmt.Errorf("mark record of a refused payment ended: %w", err)
	}
	return nil
}

// ReleaseRecord ends the record of an attempt that, by an acknowledged answer,
// owns no seat or whose payment is over. A record that the worker has not
// written yet is put first, so that the late message finds it ended. A record
// that is paid or carries another payment is left as it is, and said so; one whose
// execute_at is not rec's too, as booking.ErrAnnounced: what the caller knows is
// older than an announced execute call. Safe to repeat.
func (s *Service) ReleaseRecord(ctx context.Context, rec booking.Record, reason string) error {
	err := s.Store.Release(ctx, rec, reason, s.Now())
	if errors.Is(err, booking.ErrNotFound) {
		if _, _, err := s.Store.PutHeld(ctx, rec); err != nil {
			return fmt.Errorf("put record to release: %w", err)
		}
		err = s.Store.Release(ctx, rec, reason, s.Now())
	}
	if err != nil {
		return fmt.Errorf("release record: %w", err)
	}
	return nil
}

// Confirm makes a completed charge a paid seat: compared with what was ordered,
// settled in the ledger, acknowledged, then written, then mailed in the
// background. Money that is late, a second payment or otherwise than ordered is
// decided once for its transaction: late money may get its seat after all;
// booking.ErrRefunded says that it goes back and its refund is on record, with
// booking.ErrOtherThanOrdered beside it when that is why. The seat, if the attempt
// still has one, is as it was then, and this payment will not pay for it. After any
// other error nothing is decided; booking.ErrInDoubt is for a person: an answer
// about another payment or without a transaction, money that cannot be given back,
// or a ledger that has forgotten a PAID record. Safe to repeat.
func (s *Service) Confirm(ctx context.Context, code string, rec booking.Record, charge booking.Charge) error {
	wrong := charge.Check(rec)
	switch {
	case charge.Status != booking.ChargeCompleted:
		return fmt.Errorf("confirm payment %s, which is %s: %w", rec.PaymentID, charge.Status, booking.ErrInDoubt)
	case wrong != nil && !errors.Is(wrong, booking.ErrOtherThanOrdered):
		s.Log.ErrorContext(ctx, "gateway says completed, and not of what: ask it about this payment by hand",
			"payment", rec.PaymentID, "attempt", rec.Attempt, "transaction", charge.Transaction, "error", wrong)
		return wrong
	}
	// What is on record was decided, also when the ledger was lost since, and
	// whatever the gateway says of that money now.
	switch refund, err := s.Store.Refund(ctx, charge.Transaction); {
	case err == nil:
		return s.refunded(ctx, rec, refund)
	case !errors.Is(err, booking.ErrNotFound):
		return fmt.Errorf("refund of %s: %w", charge.Transaction, err)
	}
	if wrong != nil {
		return s.late(ctx, code, rec, charge, booking.MoneyOther)
	}
	row, err := s.settle(ctx, code, rec, charge)
	switch {
	case errors.Is(err, booking.ErrNotOwner):
		return s.late(ctx, code, rec, charge, booking.MoneyLate)
	case errors.Is(err, booking.ErrSecondPayment):
		return s.late(ctx, code, rec, charge, booking.MoneySecond)
	case err != nil:
		return err
	}
	return s.paid(ctx, code, rec, charge.Transaction, row)
}

func (s *Service) settle(ctx context.Context, code string, rec booking.Record, charge booking.Charge) (booking.Row, error) {
	ctx, cancel := context.WithTimeout(ctx, stepTimeout)
	defer cancel()
	row, err := s.Ledger.Settle(ctx, code, rec.Attempt, rec.PaymentID, charge.Transaction)
	if err != nil {
		return booking.Row{}, fmt.Errorf("settle payment %s: %w", rec.PaymentID, err)
	}
	return row, nil
}

// late has the ledger decide about money that pays for no seat as it stands, and
// follows the decision: the seat, or a refund record, and with it the end of the
// attempt's own record.
func (s *Service) late(ctx context.Context, code string, rec booking.Record, charge booking.Charge, kind booking.MoneyKind) error {
	if charge.Amount <= 0 || charge.Currency == "" {
		return fmt.Errorf("payment %s: completed with %s %q, which nobody can give back: %w", rec.PaymentID, charge.Amount, charge.Currency, booking.ErrInDoubt)
	}
	switch have, err := s.Store.Record(ctx, rec.CandidateHash, rec.Attempt); {
	case errors.Is(err, booking.ErrNotFound):
	case err != nil:
		return fmt.Errorf("record of late money: %w", err)
	case have.State == booking.StatePaid && have.Transaction == charge.Transaction:
		// It has paid for its seat, whatever is said of it now: nobody gives it back.
		row, err := s.settle(ctx, code, rec, charge)
		if booking.LedgerAnswered(err) {
			err = fmt.Errorf("record is PAID, and the ledger does not know it: %w: %w", booking.ErrInDoubt, err)
		}
		if err != nil {
			return err
		}
		return s.paid(ctx, code, rec, charge.Transaction, row)
	case have.State == booking.StatePaid && kind == booking.MoneyLate:
		kind = booking.MoneySecond // the seat was paid for, also if the ledger has lost it
	}
	step, cancel := context.WithTimeout(ctx, stepTimeout)
	defer cancel()
	d, err := s.Ledger.Late(step, rec, charge.Transaction, kind)
	if err != nil {
		return fmt.Errorf("decide about transaction %s: %w", charge.Transaction, err)
	}
	if d.Paid {
		return s.paid(ctx, code, rec, charge.Transaction, d.Row)
	}
	refund, first, err := s.Store.PutRefund(ctx, booking.NewRefund(rec, charge, kindOf(d), d))
	if err != nil {
		return fmt.Errorf("put refund of %s: %w", charge.Transaction, err)
	}
	if first {
		s.Log.WarnContext(ctx, "money pays for no seat and goes back", "transaction", charge.Transaction, "payment", rec.PaymentID,
			"attempt", rec.Attempt, "kind", string(refund.Kind), "reason", d.Reason, "paid", charge.Amount.String(), "ordered", rec.Amount.String(), "currency", charge.Currency)
	}
	return s.refunded(ctx, rec, refund)
}

// kindOf is the kind of money that a decision was made about: the first one's,
// however the money is reported now.
func kindOf(d booking.Decision) booking.MoneyKind {
	switch kind := booking.MoneyKind(d.Reason); kind {
	case booking.MoneySecond, booking.MoneyOther:
		return kind
	}
	return booking.MoneyLate
}

// refunded follows a refund that is on record.
func (s *Service) refunded(ctx context.Context, rec booking.Record, refund booking.Refund) error {
	if refund.Attempt != rec.Attempt || refund.PaymentID != rec.PaymentID {
		return fmt.Errorf("transaction %s of payment %s is on record as a refund of payment %s: %w",
			refund.Transaction, rec.PaymentID, refund.PaymentID, booking.ErrInDoubt)
	}
	why := booking.ErrOtherThanOrdered
	switch refund.Kind {
	case booking.MoneySecond:
		why = booking.ErrSecondPayment
	case booking.MoneyLate:
		why = booking.ErrNotOwner
		if err := s.endRefunded(ctx, rec); err != nil {
			return err
		}
	}
	return fmt.Errorf("transaction %s: %w: %w", refund.Transaction, booking.ErrRefunded, why)
}

// endRefunded ends the record of an attempt that, by an acknowledged decision, has
// no seat. An execute call that was announced since changes nothing: a payment is
// executed at most once, and this one has been.
func (s *Service) endRefunded(ctx context.Context, rec booking.Record) error {
	for range 2 {
		now, err := s.Store.Record(ctx, rec.CandidateHash, rec.Attempt)
		switch {
		case err == nil:
			rec = now
		case errors.Is(err, booking.ErrNotFound):
			rec.State, rec.Reason = booking.StateHeld, "" // as it is put
		default:
			return fmt.Errorf("record of refunded money: %w", err)
		}
		if rec.State == booking.StatePaid {
			return nil // by another transaction
		}
		err = s.ReleaseRecord(ctx, rec, booking.ReasonRefund)
		if !errors.Is(err, booking.ErrAnnounced) {
			return err
		}
	}
	return fmt.Errorf("record of refunded money: %w", booking.ErrAnnounced)
}

// paid writes a seat that the ledger says is paid, and has its mail sent.
func (s *Service) paid(ctx context.Context, code string, rec booking.Record, transaction string, row booking.Row) error {
	rec.State = booking.StateHeld
	paid := booking.Paid{Record: rec, Transaction: transaction, PaidAt: time.UnixMilli(row.PaidAt).UTC()}
	if err := s.record(ctx, code, paid); err != nil {
		return err
	}
	if !s.Background.Go(func() {
		mail, cancel := context.WithTimeout(context.WithoutCancel(ctx), workTimeout)
		defer cancel()
		_ = s.SendMail(mail, code, rec.Attempt) // what failed is sent by a later sweep
	}) {
		s.Log.InfoContext(ctx, "draining: confirmation mail is sent by a later sweep", "attempt", rec.Attempt)
	}
	return nil
}

// Resume writes the record of a paid row: it settles again, so that the answer is
// acknowledged. Its mail, if it is missing, is SendMail's. Safe to repeat.
func (s *Service) Resume(ctx context.Context, code string, row booking.Row) error {
	step, cancel := context.WithTimeout(ctx, stepTimeout)
	defer cancel()
	row, err := s.Ledger.Settle(step, code, row.Attempt, row.Payment, row.Transaction)
	if err != nil {
		return fmt.Errorf("settle again: %w", err)
	}
	rec, err := s.orderedRecord(ctx, code, row)
	if err != nil {
		return err
	}
	paid := booking.Paid{Record: rec, Transaction: row.Transaction, PaidAt: time.UnixMilli(row.PaidAt).UTC()}
	return s.record(ctx, code, paid)
}

func (s *Service) record(ctx context.Context, code string, p booking.Paid) error {
	if _, err := s.Store.MarkPaid(ctx, p); err != nil {
		return fmt.Errorf("write paid record: %w", err)
	}
	if err := s.Ledger.RecordDone(ctx, code, p.Record.Attempt); err != nil {
		return fmt.Errorf("mark record written: %w", err)
	}
	return nil
}

// SendMail sends the confirmation of a record that is PAID, if it has not been
// sent, under a lease in the record, so that two processes do not both send it,
// and tells the ledger. nil also while another sender is at work. An error that is
// booking.ErrUnsendable is for a person; after any other a later call sends it. It
// writes the one log line of it.
func (s *Service) SendMail(ctx context.Context, code, attempt string) error {
	began := s.Now()
	outcome, requestID, err := s.mail(ctx, code, attempt)
	attrs, level := []slog.Attr{slog.String("attempt", attempt)}, slog.LevelInfo
	if requestID != "" {
		attrs = append(attrs, slog.String("request_id", requestID))
	}
	switch {
	case errors.Is(err, booking.ErrUnsendable):
		outcome, level = "unsendable", slog.LevelError
		attrs = append(attrs, slog.String("do", "mend the address on file"))
	case err != nil:
		outcome, level = "failed", slog.LevelWarn
	}
	attrs = append(attrs, slog.String("outcome", outcome), slog.Duration("took", s.Now().Sub(began)))
	if err != nil {
		attrs = append(attrs, slog.Any("error", err))
	}
	s.Log.LogAttrs(ctx, level, "mail", attrs...)
	return err
}

// mail does it and names what it found or did: "sent" now, "sent_before", or
// "claimed" by another sender.
func (s *Service) mail(ctx context.Context, code, attempt string) (outcome, requestID string, err error) {
	rec, err := s.Store.Record(ctx, booking.CandidateHash(code), attempt)
	switch {
	case err != nil:
		return "", "", fmt.Errorf("read the record's mail state: %w", err)
	case rec.State != booking.StatePaid:
		return "", rec.RequestID, fmt.Errorf("mail of a record that is %s", rec.State)
	}
	outcome = "sent_before"
	if rec.Mail != booking.MailSent {
		mine, err := s.send(ctx, code, rec)
		if err != nil {
			return "", rec.RequestID, err
		}
		if !mine {
			return "claimed", rec.RequestID, nil // the next look sees its end
		}
		outcome = "sent"
	}
	if err := s.Ledger.MailDone(ctx, code, attempt); err != nil {
		return "", rec.RequestID, fmt.Errorf("mark mail done: %w", err)
	}
	return outcome, rec.RequestID, nil
}

func (s *Service) send(ctx context.Context, code string, rec booking.Record) (mine bool, err error) {
	to, err := s.Ledger.Email(ctx, code)
	if errors.Is(err, booking.ErrNotFound) {
		s.mails.WithLabelValues(mailNoAddress).Inc()
		return false, fmt.Errorf("no address on file: %w", booking.ErrUnsendable)
	}
	if err != nil {
		return false, fmt.Errorf("address on file: %w", err)
	}
	sale, err := s.Sale.Sale(ctx)
	if err != nil {
		return false, fmt.Errorf("sale for the mail: %w", err)
	}
	level, _ := sale.Level(rec.Level)
	claim, now := rand.Text(), s.Now()
	mine, err = s.Store.ClaimMail(ctx, rec.CandidateHash, rec.Attempt, claim, now, now.Add(mailLease))
	if err != nil || !mine {
		return false, err
	}
	call, cancel := context.WithTimeout(ctx, sendTimeout) // a provider that hangs holds up no seat
	defer cancel()
	err = s.Mailer.Send(call, booking.Mail{
		To: to, Sale: sale.Called(), LevelName: level.Name, BookingURL: s.BookingURL(code, rec.Attempt), Record: rec,
	})
	if err != nil {
		s.mails.WithLabelValues(mailFailed).Inc()
		return true, fmt.Errorf("send mail: %w", err)
	}
	s.mails.WithLabelValues(mailSent).Inc()
	if err := s.mailSent(ctx, rec, claim); err != nil {
		return true, fmt.Errorf("mark mail sent: %w", err)
	}
	return true, nil
}

// mailSent is tried more than once: a mail whose sending is not written down is
// sent again when its claim ends.
func (s *Service) mailSent(ctx context.Context, rec booking.Record, claim string) error {
	var err error
	for range mailSentTries {
		err = s.Store.MailSent(ctx, rec.CandidateHash, rec.Attempt, claim)
		if err == nil || errors.Is(err, booking.ErrNotOwner) || errors.Is(err, booking.ErrNotFound) {
			return err
		}
	}
	return err
}

func (s *Service) row(ctx context.Context, code string) (booking.Row, time.Time, error) {
	ctx, cancel := context.WithTimeout(ctx, stepTimeout)
	defer cancel()
	return s.Ledger.Row(ctx, code)
}

// orderedRecord is the record as it was ordered, made from the row and the
// stash; without a stash that can be read it lacks link and signature, which
// decide nothing.
func (s *Service) orderedRecord(ctx context.Context, code string, row booking.Row) (booking.Record, error) {
	is, err := s.Ledger.Issued(ctx, row.Payment)
	if err != nil && !errors.Is(err, booking.ErrNotFound) && !errors.Is(err, booking.ErrUnreadable) {
		return booking.Record{}, err
	}
	return row.HeldRecord(code, is.Payment.URL, is.Payment.Signature), nil
}

// beginPay repeats an announcement that got no answer, which its token makes
// safe. When there is none, execute is not sent and the row is given back to the
// payer; if that does not go through either, the reconciler takes it over.
func (s *Service) beginPay(ctx context.Context, code, attempt, payment, token string) error {
	var err error
	for range 2 {
		step, cancel := context.WithTimeout(ctx, stepTimeout)
		_, _, err = s.Ledger.BeginPay(step, code, attempt, payment, token, s.ExecuteTimeout+PayingMargin)
		cancel()
		if err == nil || booking.LedgerAnswered(err) {
			return err
		}
	}
	return errors.Join(err, s.endPay(ctx, code, attempt, token, booking.PhaseHeld))
}

// endPay repeats a call that got no answer, which its token makes safe: a refusal
// that is not noted has used up the payment's one execution, and would be a doubt
// until the payment lapses.
func (s *Service) endPay(ctx context.Context, code, attempt, token string, as booking.Phase) error {
	var err error
	for range 2 {
		step, cancel := context.WithTimeout(ctx, stepTimeout)
		err = s.Ledger.EndPay(step, code, attempt, token, as)
		cancel()
		if err == nil {
			return nil
		}
		if booking.LedgerAnswered(err) {
			break
		}
	}
	return fmt.Errorf("end of paying as %s: %w", as, err)
}
