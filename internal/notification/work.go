package notification

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"regexp"
	"time"

	"holdfast/internal/booking"
)

// work reads the notification and looks at it. The outcome is one of Report's;
// without an error it is closed.
func (s *Service) work(ctx context.Context, id string, r *round) (string, error) {
	n, err := s.deps.Store.Notification(ctx, id)
	switch {
	case errors.Is(err, booking.ErrNotFound):
		s.deps.Log.WarnContext(ctx, "a notification on the list of looks is not in the store; taken off the list", "message_id", id)
		return s.off(ctx, id, lookClosed)
	case errors.Is(err, booking.ErrUnreadable):
		return s.later(ctx, booking.Notification{ID: id}, err)
	case err != nil:
		return s.failed(fmt.Errorf("read notification: %w", err))
	}
	return s.look(ctx, n, r)
}

// look brings the notification to its end, or has it looked at again.
func (s *Service) look(ctx context.Context, n booking.Notification, r *round) (string, error) {
	if n.Outcome != "" {
		return s.off(ctx, n.ID, lookClosed)
	}
	if n.Unreadable != "" {
		return s.anomaly(ctx, n, slog.LevelError, "a genuine notification cannot be read: look its money up at the gateway", slog.String("unreadable", n.Unreadable))
	}
	return s.by(ctx, n, r, n.Invoice, n.Reference)
}

// errForeign: none of the texts is an invoice number of ours.
var errForeign = errors.New("no invoice number of ours")

// record is that of the first of the invoice numbers that has one; the error is
// errForeign, booking.ErrNotFound when there is none, or the store's.
func (s *Service) record(ctx context.Context, invoices ...string) (booking.Record, error) {
	none := errForeign
	for _, invoice := range invoices {
		hash, attempt, err := booking.ParseInvoice(invoice)
		if err != nil {
			continue
		}
		rec, err := s.deps.Store.Record(ctx, hash, attempt)
		if !errors.Is(err, booking.ErrNotFound) {
			return rec, err
		}
		none = err
	}
	return booking.Record{}, none
}

// by works on the notification by the record that one of the texts leads to. None
// of them decides anything: they lead to a payment to ask about.
func (s *Service) by(ctx context.Context, n booking.Notification, r *round, invoices ...string) (string, error) {
	rec, err := s.record(ctx, invoices...)
	foreign, missing := errors.Is(err, errForeign), errors.Is(err, booking.ErrNotFound)
	switch {
	case err == nil, foreign, missing:
	case errors.Is(err, booking.ErrUnreadable):
		return s.later(ctx, n, err)
	default:
		return s.failed(fmt.Errorf("read record: %w", err))
	}
	if rec.State == booking.StatePaid && rec.Transaction == n.Transaction {
		return s.close(ctx, n, booking.NotifiedPaid)
	}
	switch _, err := s.deps.Store.Refund(ctx, n.Transaction); {
	case err == nil, errors.Is(err, booking.ErrUnreadable): // there is one
		return s.close(ctx, n, booking.NotifiedRefund)
	case !errors.Is(err, booking.ErrNotFound):
		return s.failed(fmt.Errorf("read refund: %w", err))
	}
	switch {
	case foreign:
		return s.foreign(ctx, n, r)
	case missing:
		return s.unrecorded(ctx, n, r)
	}
	return s.ask(ctx, n, rec, r)
}

// errNotInBooks: the gateway's books may lag behind its notifications.
var errNotInBooks = errors.New("the gateway does not know the transaction yet")

// foreign money comes under no invoice number of ours. The gateway knows by which
// reference it was ordered, so it waits for the gateway's word, however long; where
// that is not ours either a person decides whether the money is ours at all.
func (s *Service) foreign(ctx context.Context, n booking.Notification, r *round) (string, error) {
	found, err := s.search(ctx, n.Transaction, r)
	switch {
	case err != nil:
		return s.later(ctx, n, err)
	case !found.Found && s.age(n) < recordAfter:
		return s.later(ctx, n, errNotInBooks)
	case ours(found.Reference):
		return s.by(ctx, n, r, found.Reference)
	}
	text, level := "money came under an invoice number that is not ours", slog.LevelWarn
	if n.Invoice == "" {
		text, level = "money came without an invoice number: look its payment up at the gateway", slog.LevelError
	}
	return s.anomaly(ctx, n, level, text, said(found)...)
}

// unrecorded is money under an invoice number of ours with no record. The payer
// may have been faster than the worker, so it waits; then the gateway tells by which
// reference it was ordered, and if that has no record either a person must look.
func (s *Service) unrecorded(ctx context.Context, n booking.Notification, r *round) (string, error) {
	now := s.deps.Now()
	s.mu.Lock()
	since, seen := s.missing[n.ID]
	if !seen {
		if len(s.missing) >= rememberMost {
			clear(s.missing) // costs them one look more
		}
		s.missing[n.ID], since = now, now
	}
	s.mu.Unlock()
	if s.age(n) < recordAfter || now.Sub(since) < missingFor {
		return s.later(ctx, n, fmt.Errorf("no record of its invoice: %w", booking.ErrNotFound))
	}
	found, err := s.search(ctx, n.Transaction, r)
	if err != nil {
		return s.later(ctx, n, err)
	}
	switch _, err := s.record(ctx, found.Reference); {
	case err == nil, errors.Is(err, booking.ErrUnreadable): // there is one
		return s.by(ctx, n, r, found.Reference)
	case !errors.Is(err, errForeign) && !errors.Is(err, booking.ErrNotFound):
		return s.failed(fmt.Errorf("read record: %w", err))
	}
	return s.anomaly(ctx, n, slog.LevelError, "money came under an invoice number of ours that has no record: check it and give it back", said(found)...)
}

// ask decides by the gateway's word on the record's payment.
func (s *Service) ask(ctx context.Context, n booking.Notification, rec booking.Record, r *round) (string, error) {
	since := s.deps.Now().Sub(rec.ExecuteAt).Abs() // clocks of two servers
	if rec.State == booking.StateHeld && !rec.ExecuteAt.IsZero() && since < answerTime {
		return s.later(ctx, n, errAnswering)
	}
	charge, err := s.query(ctx, rec.PaymentID, r)
	switch {
	case err != nil:
		return s.later(ctx, n, err)
	case charge.Status != booking.ChargeCompleted:
		if clearly := charge.Status == booking.ChargeRefused || charge.Status == booking.ChargeOpen || charge.Status == booking.ChargeUnfinished; clearly && !claimsMoney(n) {
			return s.anomaly(ctx, n, slog.LevelWarn, "a notification tells of no money, and the gateway of no payment", slog.String("status", word(n.Status)))
		}
		return s.later(ctx, n, fmt.Errorf("payment %s is %s: %w", rec.PaymentID, charge.Status, booking.ErrInDoubt))
	case charge.Transaction != n.Transaction:
		return s.second(ctx, n, rec, charge, r)
	}
	return s.confirm(ctx, n, rec, charge)
}

// second is about a transaction that is not the one the payment was completed by.
func (s *Service) second(ctx context.Context, n booking.Notification, rec booking.Record, charge booking.Charge, r *round) (string, error) {
	// The payment's own money comes first: settled after the other, it would be the
	// second payment.
	if rec.State != booking.StatePaid || rec.Transaction != charge.Transaction {
		if err := s.deps.Settler.Confirm(ctx, rec.Code, rec, charge); err != nil && !errors.Is(err, booking.ErrRefunded) {
			return s.later(ctx, n, fmt.Errorf("confirm the payment's own transaction: %w", err))
		}
	}
	// It may be that money on its way back, which must not be given back again.
	switch back, err := s.deps.Store.Refund(ctx, charge.Transaction); {
	case errors.Is(err, booking.ErrNotFound):
	case errors.Is(err, booking.ErrUnreadable):
		return s.later(ctx, n, err)
	case err != nil:
		return s.failed(fmt.Errorf("read refund: %w", err))
	case back.RefundTransaction == n.Transaction:
		return s.close(ctx, n, booking.NotifiedRefund)
	case back.State == booking.RefundSent:
		return s.later(ctx, n, errors.New("a refund of its payment is on its way, by a transaction not known yet"))
	}
	if !claimsMoney(n) {
		return s.anomaly(ctx, n, slog.LevelWarn, "a notification tells of no money of a payment", slog.String("status", word(n.Status)))
	}
	found, err := s.search(ctx, n.Transaction, r)
	switch {
	case err != nil:
		return s.later(ctx, n, err)
	case !found.Found || !found.Completed || found.Transaction != n.Transaction:
		return s.later(ctx, n, fmt.Errorf("transaction is not known as completed (code %s): %w", found.Code, booking.ErrInDoubt))
	case ours(found.Reference) && found.Reference != booking.Invoice(rec.CandidateHash, rec.Attempt):
		return s.by(ctx, n, r, found.Reference) // the invoice number was another attempt's
	}
	return s.confirm(ctx, n, rec, booking.Charge{
		Status: booking.ChargeCompleted, PaymentID: rec.PaymentID, Invoice: n.Invoice, Transaction: found.Transaction,
		Amount: found.Amount, Currency: found.Currency, Code: found.Code, Text: found.Text,
	})
}

// confirm has completed money become a paid seat or a refund record, and closes.
func (s *Service) confirm(ctx context.Context, n booking.Notification, rec booking.Record, charge booking.Charge) (string, error) {
	if charge.Amount != n.Amount || charge.Currency != n.Currency {
		s.deps.Log.LogAttrs(ctx, slog.LevelWarn, "anomaly: the notification's amount is not the gateway's, which counts",
			append(about(n), slog.String("gateway", charge.Amount.String()+" "+word(charge.Currency)))...)
	}
	err := s.deps.Settler.Confirm(ctx, rec.Code, rec, charge)
	switch {
	case err == nil:
		return s.close(ctx, n, booking.NotifiedPaid)
	case errors.Is(err, booking.ErrRefunded):
		return s.close(ctx, n, booking.NotifiedRefund)
	}
	return s.later(ctx, n, fmt.Errorf("confirm: %w", err))
}

// ours tells whether the text is an invoice number of ours.
func ours(text string) bool {
	_, _, err := booking.ParseInvoice(text)
	return err == nil
}

// claimsMoney tells whether the notification says that money came, as all do that
// the gateway is known to send.
func claimsMoney(n booking.Notification) bool { return n.Status == "" || n.Status == "Completed" }

// query asks about a payment, search about a transaction.
func (s *Service) query(ctx context.Context, payment string, r *round) (booking.Charge, error) {
	return turn(ctx, s, r, func() (booking.Charge, error) { return s.deps.Gateway.Query(ctx, payment) })
}

func (s *Service) search(ctx context.Context, transaction string, r *round) (booking.TransactionAnswer, error) {
	return turn(ctx, s, r, func() (booking.TransactionAnswer, error) { return s.deps.Gateway.Search(ctx, transaction) })
}

// turn asks the gateway under the rate, unless the round has found it out of reach.
func turn[T any](ctx context.Context, s *Service, r *round, call func() (T, error)) (T, error) {
	var none T
	if r.outage.Load() {
		return none, errOutage
	}
	if err := s.deps.Rate.Wait(ctx); err != nil {
		return none, fmt.Errorf("no turn to ask the gateway: %w", err)
	}
	answer, err := call()
	if errors.Is(err, booking.ErrNotSent) || errors.Is(err, booking.ErrGatewayOutage) {
		r.outage.Store(true)
	}
	return answer, err
}

// anomaly closes what no seat and no refund can come of. The line comes before the
// end is written, so that it is never missing; it comes again only when writing
// fails.
func (s *Service) anomaly(ctx context.Context, n booking.Notification, level slog.Level, what string, more ...slog.Attr) (string, error) {
	s.deps.Log.LogAttrs(ctx, level, "notification is an anomaly", append(append(about(n), slog.String("what", what)), more...)...)
	return s.close(ctx, n, booking.NotifiedAnomaly)
}

// close writes the end, then takes the notification off the list. A list that
// cannot be written shows it once more, which does no harm.
func (s *Service) close(ctx context.Context, n booking.Notification, outcome booking.NotificationOutcome) (string, error) {
	if err := s.deps.Store.CloseNotification(ctx, n.ID, outcome, s.deps.Now()); err != nil {
		return s.failed(fmt.Errorf("close notification as %s: %w", outcome, err))
	}
	s.mu.Lock()
	delete(s.missing, n.ID)
	s.mu.Unlock()
	return s.off(ctx, n.ID, string(outcome))
}

func (s *Service) off(ctx context.Context, id, outcome string) (string, error) {
	if err := s.deps.Ledger.NoticeDone(ctx, id); err != nil {
		s.deps.Log.WarnContext(ctx, "a closed notification is still on the list of looks", "message_id", id, "error", err)
	}
	return outcome, nil
}

// later keeps the notification open and has it looked at again, after as long as
// it has been open, within bounds: each pause is twice the one before.
func (s *Service) later(ctx context.Context, n booking.Notification, cause error) (string, error) {
	age := s.age(n)
	if age >= loudAfter {
		s.mu.Lock()
		s.overdue.note(n, cause)
		s.mu.Unlock()
	}
	if err := s.deps.Ledger.NoticeLater(ctx, n.ID, min(max(age, firstPause), lastPause)); err != nil {
		cause = errors.Join(cause, fmt.Errorf("put off: %w", err)) // it is due still, or the cross-check finds it
	}
	return lookLater, cause
}

// failed leaves the notification due. What this process knew of records that are
// not there counts no longer: while the store fails, the worker writes none.
func (s *Service) failed(err error) (string, error) {
	s.mu.Lock()
	clear(s.missing)
	s.mu.Unlock()
	return lookFailed, err
}

func (s *Service) age(n booking.Notification) time.Duration { return s.deps.Now().Sub(n.ReceivedAt) }

// overdue is what has been open for long, since it was last told.
type overdue struct {
	told   time.Time
	ids    map[string]struct{}
	oldest booking.Notification
	cause  error // of the oldest
}

func (o *overdue) note(n booking.Notification, cause error) {
	if o.ids == nil {
		o.ids = map[string]struct{}{}
	}
	if len(o.ids) < rememberMost {
		o.ids[n.ID] = struct{}{}
	}
	if o.cause == nil || n.ReceivedAt.Before(o.oldest.ReceivedAt) || n.ID == o.oldest.ID {
		o.oldest, o.cause = n, cause
	}
}

// tell says, after a sweep, what needs a person: an outage each time, what has
// been open for long once in ten minutes.
func (s *Service) tell(ctx context.Context, r *round) {
	if r.outage.Load() {
		s.deps.Log.ErrorContext(ctx, "gateway cannot be reached: notifications wait for its word")
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.deps.Now()
	if len(s.overdue.ids) == 0 || now.Sub(s.overdue.told) < loudEvery {
		return
	}
	s.deps.Log.LogAttrs(ctx, slog.LevelError, "notifications are open for over an hour: money may have moved that is neither a seat nor a refund",
		append([]slog.Attr{slog.Int("notifications", len(s.overdue.ids))}, append(about(s.overdue.oldest), slog.Any("error", s.overdue.cause))...)...)
	s.overdue = overdue{told: now}
}

// wordForm is what the gateway's ids, currencies and kinds look like.
var wordForm = regexp.MustCompile(`^[0-9A-Za-z]{0,24}$`)

// word lets a text of the gateway into the log if it is a word: it may be anything.
func word(s string) string {
	if wordForm.MatchString(s) {
		return s
	}
	return "[cut]"
}

// about is what a log line says of a notification: no reference, which is the
// payer's free text, and of an invoice number the attempt.
func about(n booking.Notification) []slog.Attr {
	attrs := []slog.Attr{
		slog.String("message_id", n.ID), slog.String("transaction", word(n.Transaction)),
		slog.String("amount", n.Amount.String()), slog.String("currency", word(n.Currency)),
		slog.String("transaction_type", word(n.TransactionType)), slog.Time("received_at", n.ReceivedAt),
	}
	if n.SaleAmount != nil {
		attrs = append(attrs, slog.String("sale_amount", n.SaleAmount.String()))
	}
	if _, attempt, err := booking.ParseInvoice(n.Invoice); err == nil {
		attrs = append(attrs, slog.String("attempt", attempt))
	}
	return attrs
}

// said is what the gateway told of a transaction.
func said(t booking.TransactionAnswer) []slog.Attr {
	return []slog.Attr{
		slog.Bool("gateway_found", t.Found), slog.Bool("gateway_completed", t.Completed),
		slog.String("gateway_amount", t.Amount.String()), slog.String("gateway_currency", word(t.Currency)),
	}
}
