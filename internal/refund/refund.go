// Package refund gives money back: what a refund record says is owed goes to
// the gateway once, whatever crashes, and the record says how it ended.
//
// Before a refund is sent, "sent" is durable; from then on the gateway is asked
// first, and its "no" is believed only when the call can no longer be under way.
// A claim in the record keeps two processes from one refund. What neither we nor
// the gateway can decide stays open, with its trouble noted for a person.
//
// Fail mode: closed. In doubt nothing is sent; a refund that waits costs time,
// one that is sent twice costs money. One gap is left to the gateway, which gives
// back no more than was paid: a process that stands still, for longer than its
// claim, between its last look at the clock and the call itself.
//
// Clock: Now, for claims and times in the record; calls also end by the
// process's own clock. Claims bear half a minute's difference between clocks.
package refund

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
	"golang.org/x/time/rate"

	"holdfast/internal/booking"
)

// Store keeps the refund records. Every change is one conditional write, durable
// before the call returns, and safe to repeat; after any other error than the
// named ones it may have been made. booking.ErrNotFound says that there is no
// such refund.
type Store interface {
	// Refund reads one, as it is now.
	Refund(ctx context.Context, transaction string) (booking.Refund, error)
	// OpenRefunds lists those that are not done, oldest decision first. One that
	// cannot be read comes as an error that wraps booking.ErrUnreadable, beside a
	// refund with the transaction alone, and the list goes on; any other error ends it.
	OpenRefunds(ctx context.Context) iter.Seq2[booking.Refund, error]
	// ClaimRefund gives the claim the sole right to work on a refund that is not
	// done until the given time, unless another's claim runs at now. It returns the
	// refund as it is then, and whether the claim has it.
	ClaimRefund(ctx context.Context, transaction, claim string, now, until time.Time) (booking.Refund, bool, error)
	// RefundSent makes the refund sent, at that time. booking.ErrNotOwner when the
	// claim is another's or over, or the refund done.
	RefundSent(ctx context.Context, transaction, claim string, at time.Time) error
	// RefundDone ends the refund, its trouble and its claim, whosever that is.
	// booking.ErrRefundedOtherwise when it was ended by another hand or with another
	// transaction of the gateway's; that stays.
	RefundDone(ctx context.Context, transaction, by, refundTransaction, note string, at time.Time) error
	// RefundTrouble notes what is wrong, in place of what was noted before, and ends
	// the claim. booking.ErrNotOwner when the claim is another's, or the refund done.
	RefundTrouble(ctx context.Context, transaction, claim, trouble string) error
}

// ByGateway is who ended a refund that the gateway made. No person has this name.
const ByGateway = "gateway"

// What keeps a refund from being done. Beside these a call ends with the store's
// errors, and with booking.ErrInDoubt or booking.ErrNotSent of the gateway's.
var (
	// ErrPerson: the gateway says clearly that it gave nothing back, or that it gave
	// back otherwise than ordered, or the record makes no order. Trouble says what.
	ErrPerson = errors.New("a person must look at the refund")
	// ErrBusy: another works on it, or began to and did not finish. Its claim ends at
	// the refund's ClaimUntil.
	ErrBusy = errors.New("the refund is being worked on")
	// ErrDone: it was done before; nothing was changed.
	ErrDone = errors.New("the refund is done already")
)

const (
	// CallTime bounds one refund call: as long as the gateway asks for, and no
	// longer, since the end of a process waits for a call that has begun.
	CallTime = 30 * time.Second
	// Outlasts is how long Send and Sweep may go on after their context has ended:
	// a call that had begun, and what is written down of it. A drain is longer.
	Outlasts = CallTime + noteTime
)

const (
	storeTimeout = 5 * time.Second
	askTimeout   = 12 * time.Second
	// noteTime is for writing down what a call came to, all tries together: what is
	// not written is asked about later, so that little is lost by giving up.
	noteTime  = 4 * time.Second
	noteTry   = 2 * time.Second
	doneTries = 3

	// workTime is when the last call under a claim must have ended, counted from
	// before the claim: claim, question, "sent" and refund at their slowest.
	workTime = time.Minute
	// lease is how long a claim runs: longer than the work, by what clocks may differ
	// and the last call may still need at the gateway.
	lease = 2 * time.Minute
	// settleTime is how old a refund call must be before "no such refund" is
	// believed. A claim that lapses finds it passed.
	settleTime = 90 * time.Second
	// troubleAgain is how often a sweep asks about a refund with trouble.
	troubleAgain = 10 * time.Minute

	maxTrouble = 300 // characters
)

// Deps is what a Service is made of; every field but Automatic, Width,
// PerSecond and Now is required.
type Deps struct {
	Store   Store
	Gateway booking.RefundGateway
	// Automatic: Sweep sends what is open. Otherwise it only counts.
	Automatic bool
	// Width is how many refunds a sweep works on at a time. Default 4.
	Width int
	// PerSecond is how many refunds a sweep begins in a second; each is at most two
	// calls of the gateway. Default 5.
	PerSecond  float64
	Now        func() time.Time
	Log        *slog.Logger
	Registerer prometheus.Registerer
}

// Service gives money back. Safe for concurrent use.
type Service struct {
	Deps
	limit *rate.Limiter
	due   *prometheus.GaugeVec // without a label: no series while nobody knows

	mu    sync.Mutex
	again map[string]time.Time // by transaction: when a sweep may look again
}

// New checks its dependencies.
func New(d Deps) (*Service, error) {
	if d.Store == nil || d.Gateway == nil || d.Log == nil || d.Registerer == nil || d.Width < 0 || d.PerSecond < 0 {
		return nil, errors.New("refund: a dependency is missing, or width or rate is negative")
	}
	if d.Now == nil {
		d.Now = time.Now
	}
	if d.Width == 0 {
		d.Width = 4
	}
	if d.PerSecond == 0 {
		d.PerSecond = 5
	}
	return &Service{
		Deps:  d,
		limit: rate.NewLimiter(rate.Limit(d.PerSecond), d.Width),
		due: promauto.With(d.Registerer).NewGaugeVec(prometheus.GaugeOpts{
			Name: "holdfast_refunds_due",
			Help: "Refunds that are not done, at the end of the last sweep; none when it could not read them.",
		}, nil),
		again: map[string]time.Time{},
	}, nil
}

// List gives the refunds that are not done; see Store.OpenRefunds.
func (s *Service) List(ctx context.Context) iter.Seq2[booking.Refund, error] {
	return s.Store.OpenRefunds(ctx)
}

// Send brings the refund of a transaction to its end, or as far as the gateway
// allows, and returns it as it then stands. A nil error says that it is done, by
// this call or before. After any other, ErrPerson too, a later call goes on from
// where this one ended: safe to repeat, and from several processes at once. When
// ctx ends no call is begun any more; one that has begun keeps its own deadline,
// since money moves in it, so that Send outlasts ctx by Outlasts at most.
func (s *Service) Send(ctx context.Context, transaction string) (booking.Refund, error) {
	w, err := s.begin(ctx, transaction)
	if errors.Is(err, ErrDone) {
		return w.refund, nil
	}
	if err != nil {
		return w.refund, err
	}
	order := w.refund.Order()
	if err := order.Validate(); err != nil {
		return s.trouble(ctx, w, fmt.Errorf("%w: %w", ErrPerson, err))
	}
	if w.refund.State == booking.RefundSent || !w.refund.SentAt.IsZero() {
		answer, err := s.ask(ctx, w)
		switch {
		case err != nil && ctx.Err() != nil: // the caller has ended, and the claim will
			return w.refund, err
		case err != nil:
			return s.trouble(ctx, w, err)
		case answer.Done:
			return s.given(ctx, w, order, answer)
		case s.underWay(w.refund):
			return w.refund, errUnderWay
		}
	}
	return s.send(ctx, w, order)
}

// errUnderWay is "no such refund" to a question that came too early.
var errUnderWay = fmt.Errorf("%w: the refund was sent moments ago and is not known yet; ask again in two minutes", booking.ErrInDoubt)

// underWay tells whether the last call was made so shortly before that the
// gateway need not know of it yet.
func (s *Service) underWay(r booking.Refund) bool { return s.Now().Before(r.SentAt.Add(settleTime)) }

// work is what is done on one refund under one claim.
type work struct {
	refund booking.Refund
	claim  string
	began  time.Time // by Now, before the claim
	end    time.Time // of the last call, by the process's own clock
	log    *slog.Logger
}

// begin claims a refund. The error is ErrDone or ErrBusy, beside the refund, or
// the store's.
func (s *Service) begin(ctx context.Context, transaction string) (work, error) {
	w := work{claim: rand.Text(), began: s.Now(), end: time.Now().Add(workTime)}
	ctx, cancel := context.WithTimeout(ctx, storeTimeout)
	defer cancel()
	r, mine, err := s.Store.ClaimRefund(ctx, transaction, w.claim, w.began.UTC(), w.began.Add(lease).UTC())
	if err != nil {
		return w, fmt.Errorf("claim refund of %s: %w", transaction, err)
	}
	w.refund = r
	switch {
	case r.State == booking.RefundDone:
		return w, ErrDone
	case !mine:
		return w, ErrBusy
	}
	w.log = s.Log.With("transaction", r.Transaction, "payment", r.PaymentID, "attempt", r.Attempt,
		"amount", r.Amount.String()+" "+r.Currency, "kind", string(r.Kind))
	return w, nil
}

func (s *Service) ask(ctx context.Context, w work) (booking.RefundAnswer, error) {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	return s.Gateway.RefundStatus(ctx, w.refund.PaymentID, w.refund.Transaction)
}

// send sends the order, once. The call runs on a context of its own, since money
// moves in it, and does not begin when ctx has ended or when it might not end
// within the claim.
func (s *Service) send(ctx context.Context, w work, order booking.RefundOrder) (booking.Refund, error) {
	if ctx.Err() != nil {
		return w.refund, ended(ctx, order)
	}
	at := s.Now().UTC()
	if err := s.sent(ctx, w, at); err != nil {
		return w.refund, err
	}
	w.refund.State, w.refund.SentAt = booking.RefundSent, at
	if ctx.Err() != nil { // whoever claims it after this claim's time asks, and sends it
		return w.refund, ended(ctx, order)
	}
	if s.Now().After(w.began.Add(workTime - CallTime)) {
		return s.trouble(ctx, w, fmt.Errorf("%w: too little of the claim's time is left", booking.ErrNotSent))
	}
	w.log.InfoContext(ctx, "refund is sent")
	call, cancel := context.WithDeadline(context.WithoutCancel(ctx), w.end)
	defer cancel()
	call, cancelCall := context.WithTimeout(call, CallTime)
	defer cancelCall()
	answer, err := s.Gateway.Refund(call, order)
	switch {
	case errors.Is(err, booking.ErrNotSent):
		return s.trouble(ctx, w, err)
	case err != nil:
		// Whoever claims it after this claim's time asks.
		w.log.WarnContext(ctx, "refund is in doubt, it is asked about later", "error", err)
		return w.refund, err
	case !answer.Done:
		return s.trouble(ctx, w, fmt.Errorf("%w: refused with code %s %q", ErrPerson, answer.Code, answer.Text))
	}
	return s.given(ctx, w, order, answer)
}

// errEnded says that nothing was sent because the caller's time was over.
var errEnded = errors.New("nothing was sent: no call begins any more")

func ended(ctx context.Context, o booking.RefundOrder) error {
	return fmt.Errorf("refund of %s: %w: %w", o.Transaction, errEnded, ctx.Err())
}

func (s *Service) sent(ctx context.Context, w work, at time.Time) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), storeTimeout)
	defer cancel()
	err := s.Store.RefundSent(ctx, w.refund.Transaction, w.claim, at)
	if errors.Is(err, booking.ErrNotOwner) {
		return fmt.Errorf("%w: %w", ErrBusy, err)
	}
	if err != nil {
		return fmt.Errorf("mark refund of %s as sent: %w", w.refund.Transaction, err)
	}
	return nil
}

// given ends a refund that the gateway says it has made, if it made the one that
// was ordered.
func (s *Service) given(ctx context.Context, w work, order booking.RefundOrder, answer booking.RefundAnswer) (booking.Refund, error) {
	if err := answer.Check(order); err != nil {
		return s.trouble(ctx, w, fmt.Errorf("%w: %w", ErrPerson, err))
	}
	return s.done(ctx, w, ByGateway, answer.Transaction, "")
}

// done writes the end down. It is tried more than once, since the money is back
// already. booking.ErrRefundedOtherwise, beside the refund as it is, when another
// has ended it while this process stood still for longer than its claim.
func (s *Service) done(ctx context.Context, w work, by, refundTransaction, note string) (booking.Refund, error) {
	var (
		r   = w.refund
		at  = s.Now().UTC()
		err error
	)
	all, cancel := context.WithTimeout(context.WithoutCancel(ctx), noteTime)
	defer cancel()
	for range doneTries {
		err = s.writeDone(all, r.Transaction, by, refundTransaction, note, at)
		if err == nil || errors.Is(err, booking.ErrRefundedOtherwise) || all.Err() != nil {
			break
		}
	}
	log := w.log.With("by", by, "refund", refundTransaction)
	switch {
	case err == nil:
		log.InfoContext(ctx, "refund is done")
		r.State, r.DoneAt, r.DoneBy, r.RefundTransaction, r.Note = booking.RefundDone, at, by, refundTransaction, note
		r.Claim, r.ClaimUntil, r.Trouble = "", time.Time{}, ""
		return r, nil
	case errors.Is(err, booking.ErrRefundedOtherwise):
		log.ErrorContext(ctx, "refund was ended in two ways: money may have gone back twice", "error", err)
		if now, err := s.Store.Refund(all, r.Transaction); err == nil {
			r = now
		}
	default:
		log.WarnContext(ctx, "refund is made and not written down, it is asked about later", "error", err)
	}
	return r, fmt.Errorf("mark refund of %s as done: %w", r.Transaction, err)
}

func (s *Service) writeDone(ctx context.Context, transaction, by, refundTransaction, note string, at time.Time) error {
	ctx, cancel := context.WithTimeout(ctx, noteTry)
	defer cancel()
	return s.Store.RefundDone(ctx, transaction, by, refundTransaction, note, at)
}

// trouble notes what kept the refund from being done, and returns that. A note
// that cannot be written loses nothing: the next look meets the same trouble.
func (s *Service) trouble(ctx context.Context, w work, cause error) (booking.Refund, error) {
	if errors.Is(cause, ErrPerson) {
		w.log.ErrorContext(ctx, "refund needs a person", "error", cause)
	} else {
		w.log.WarnContext(ctx, "refund is not done, it is asked about later", "error", cause)
	}
	w.refund.Trouble = fmt.Sprintf("%.*s", maxTrouble, cause.Error())
	w.refund.Claim, w.refund.ClaimUntil = "", time.Time{}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), noteTime)
	defer cancel()
	if err := s.Store.RefundTrouble(ctx, w.refund.Transaction, w.claim, w.refund.Trouble); err != nil {
		cause = errors.Join(cause, fmt.Errorf("note its trouble: %w", err))
	}
	return w.refund, cause
}

// Settled is how a refund was ended by hand.
type Settled struct {
	// Refund is as it now stands. Its DoneBy is ByGateway where the gateway had given
	// the money back as ordered all along.
	Refund booking.Refund
	// Doubt is what the gateway's word leaves open: it could not be asked, or it has
	// given back otherwise than ordered, under Refund.RefundTransaction. Nil when it
	// gave nothing back, or all of it.
	Doubt error
}

// SettleByHand ends a refund because a person says that the money has been given
// back otherwise; by is who, from the platform, and note why. The gateway is
// asked first: where it has made the refund as ordered, that is how it ends; where
// it gives no answer, the person's word counts all the same and Doubt says so.
// ErrDone, beside the refund, when it was done before; ErrBusy, and
// booking.ErrInDoubt, while a call may still be under way. Safe to repeat.
func (s *Service) SettleByHand(ctx context.Context, transaction, by, note string) (Settled, error) {
	if by == "" || by == ByGateway || note == "" {
		return Settled{}, errors.New("settle refund: who and why are needed, and who is not the gateway")
	}
	w, err := s.begin(ctx, transaction)
	if err != nil {
		return Settled{Refund: w.refund}, err
	}
	var (
		out         = Settled{Refund: w.refund}
		order       = w.refund.Order()
		backAlready string
	)
	answer, err := s.ask(ctx, w)
	switch {
	case err != nil && ctx.Err() != nil:
		return out, err
	case err != nil:
		out.Doubt = fmt.Errorf("the gateway could not be asked: %w", err)
	case !answer.Done && s.underWay(w.refund):
		return out, errUnderWay
	case answer.Done && answer.Check(order) == nil:
		out.Refund, err = s.done(ctx, w, ByGateway, answer.Transaction, "")
		return out, err
	case answer.Done:
		out.Doubt, backAlready = answer.Check(order), answer.Transaction
	}
	// What the gateway said holds while nobody else can send.
	if s.Now().After(w.began.Add(workTime)) {
		return out, fmt.Errorf("%w: the gateway's answer took too long, try again", ErrBusy)
	}
	out.Refund, err = s.done(ctx, w, by, backAlready, note)
	return out, err
}
