// Package paygate speaks the HTTP API of the payment gateway, a redirect-type
// wallet with tokenized checkout: grant a token, create a payment, execute it,
// ask about it, refund it, search a transaction. Money moves by execute alone,
// and a payment can no longer be executed after 24 h. What each status code
// means for each call is one table, in codes.go.
//
// Fail mode: closed. A call ends with what the gateway said, or with an error
// that wraps booking.ErrNotSent (it had no effect) or booking.ErrInDoubt (it
// may have had one); nothing that is half said is taken for said. Redirects
// are not followed and answers are cut at 64 KiB. While the gateway is out, a
// circuit breaker refuses Create at once, and Ready says so before a seat is
// taken; nothing stands before the other calls.
//
// Clock: the context's deadlines, and the process's own for the breaker's pause;
// the gateway's times decide nothing.
//
// Logs: one line a call with the ids of payment, invoice and transaction and
// the gateway's code, as evidence for both sides; at level error where the
// gateway says that we are in the wrong. Tokens, keys, callback
// addresses, wallet numbers and bodies are in no log line and no error.
package paygate

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"holdfast/internal/booking"
)

const (
	pathCreate  = "/tokenized/checkout/create"
	pathExecute = "/tokenized/checkout/execute"
	pathQuery   = "/tokenized/checkout/payment/status"
	pathRefund  = "/tokenized/checkout/payment/refund" // and the question about one
	pathSearch  = "/tokenized/checkout/general/searchTransaction"

	modeCheckoutURL = "0011" // pay on the gateway's page, without an agreement
	intentSale      = "sale" // money moves at execute, not later
)

// Config is what the client needs to know of the gateway.
type Config struct {
	// BaseURL is the API's address, version included, such as
	// https://tokenized.sandbox.bka.sh/v1.2.0-beta.
	BaseURL string
	// AppKey goes with every call, beside the token.
	AppKey Secret
	// CreateTimeout bounds Create, the wait for a token included. Default 5 s.
	CreateTimeout time.Duration
	// ExecuteTimeout bounds Execute; the caller's deadline, if earlier, counts.
	// Default 30 s, as the gateway asks.
	ExecuteTimeout time.Duration
	// QueryTimeout bounds Query, RefundStatus and Search. Default 10 s: a
	// question moves no money, so giving up early costs nothing.
	QueryTimeout time.Duration
	// RefundTimeout bounds Refund. Default 30 s, as the gateway asks.
	RefundTimeout time.Duration
	// BreakerFailures is how many creates in a row must fail for Create to be
	// refused at once from then on. Default 10.
	BreakerFailures int
	// BreakerPause is how long Create is then refused before one may try the
	// gateway again. Default 5 s.
	BreakerPause time.Duration
}

func (c Config) withDefaults() (Config, error) {
	if c.AppKey == "" {
		return c, errors.New("payment gateway: no app key")
	}
	for _, d := range []struct {
		name string
		v    *time.Duration
		def  time.Duration
	}{
		{"create", &c.CreateTimeout, 5 * time.Second},
		{"execute", &c.ExecuteTimeout, 30 * time.Second},
		{"query", &c.QueryTimeout, 10 * time.Second},
		{"refund", &c.RefundTimeout, 30 * time.Second},
		{"breaker", &c.BreakerPause, 5 * time.Second},
	} {
		if *d.v < 0 {
			return c, fmt.Errorf("payment gateway: %s time %s is negative", d.name, *d.v)
		}
		if *d.v == 0 {
			*d.v = d.def
		}
	}
	if c.BreakerFailures < 0 {
		return c, fmt.Errorf("payment gateway: %d failures for the breaker is negative", c.BreakerFailures)
	}
	c.BreakerFailures = cmp.Or(c.BreakerFailures, 10)
	return c, nil
}

// TokenSource gives the token that goes with every call. Both methods are safe
// for concurrent use and are called once a call, or twice after a refusal.
type TokenSource interface {
	// Token waits for a usable token within ctx. Its error carries no secret.
	Token(ctx context.Context) (string, error)
	// Rejected tells that the gateway refused this token with 401. The source
	// decides whether a new one may be had; the next Token waits for that one or
	// gives the old one again.
	Rejected(ctx context.Context, token string)
}

// Client calls the gateway for one merchant account. Safe for concurrent use.
type Client struct {
	wire    wire
	cfg     Config
	tokens  TokenSource
	log     *slog.Logger
	seconds *prometheus.HistogramVec
	breaker *breaker
	now     func() time.Time // measures calls
}

var _ booking.RefundGateway = (*Client)(nil)

// New checks the configuration and registers the client's metrics. hc is copied;
// the copy follows no redirects. NewHTTPClient makes a fit one.
func New(cfg Config, tokens TokenSource, hc *http.Client, log *slog.Logger, reg prometheus.Registerer) (*Client, error) {
	if tokens == nil || log == nil || reg == nil {
		return nil, errors.New("payment gateway: token source, logger or registerer is missing")
	}
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	w, err := newWire(cfg.BaseURL, hc)
	if err != nil {
		return nil, err
	}
	seconds, err := newRequestSeconds(reg)
	if err != nil {
		return nil, err
	}
	isOpen, err := newBreakerOpen(reg)
	if err != nil {
		return nil, err
	}
	return &Client{wire: w, cfg: cfg, tokens: tokens, log: log, seconds: seconds,
		breaker: newBreaker(cfg, time.Now, log, isOpen), now: time.Now}, nil
}

type createBody struct {
	Mode           string `json:"mode"`
	PayerReference string `json:"payerReference"`
	CallbackURL    string `json:"callbackURL"`
	Amount         string `json:"amount"`
	Currency       string `json:"currency"`
	Intent         string `json:"intent"`
	Invoice        string `json:"merchantInvoiceNumber"`
}

type paymentBody struct {
	PaymentID string `json:"paymentID"`
}

type refundBody struct {
	PaymentID string `json:"paymentID"`
	TrxID     string `json:"trxID"`
	// With these three left out the call is a question.
	Amount string `json:"amount,omitempty"`
	SKU    string `json:"sku,omitempty"`
	Reason string `json:"reason,omitempty"`
}

type searchBody struct {
	TrxID string `json:"trxID"`
}

// Ready tells whether Create would be tried now; ask before a seat is taken. Its
// error is what Create would answer at once, and wraps
// booking.ErrPaymentUnavailable and booking.ErrNotSent. When a gateway that was
// out is to be tried again, one caller at a time gets leave and has two seconds
// to begin its Create; one that will not begin it (nobody was admitted) calls
// unused, so that the next may. Calling unused otherwise, or twice, does
// nothing. It costs no call and does not wait.
func (c *Client) Ready() (unused func(), err error) { return c.breaker.ready() }

// Create makes a payment for an order. Success means an id, an address for the
// payer and a signature; anything less is an error that wraps
// booking.ErrNotSent or booking.ErrInDoubt, a plain refusal by the gateway
// among the latter: nobody has the link, and execute is ours to call, so a
// payment that was made after all does no harm. Create is not retried and not
// safe to repeat with the same invoice number. While the gateway is out it fails
// at once, as Ready does.
func (c *Client) Create(ctx context.Context, o booking.Order) (booking.Payment, error) {
	ctx, cancel := context.WithTimeout(ctx, c.cfg.CreateTimeout)
	defer cancel()
	began := c.now()
	var a answer
	p, err := c.breaker.create(ctx, func() (booking.Payment, error) {
		var err error
		a, err = c.call(ctx, pathCreate, createBody{
			Mode:           modeCheckoutURL,
			PayerReference: o.Reference,
			CallbackURL:    o.CallbackURL,
			Amount:         o.Amount.String(),
			Currency:       o.Currency,
			Intent:         intentSale,
			Invoice:        o.Invoice,
		})
		if err != nil {
			return booking.Payment{}, err
		}
		return a.payment(o)
	})
	c.record(ctx, callCreate, outcomeOr(outcomeCreated, err), began, a,
		slog.String("payment", only(idForm, p.ID)), slog.String("invoice", short(only(idForm, o.Invoice))))
	if err != nil {
		return booking.Payment{}, fmt.Errorf("create payment for invoice %s: %w", short(o.Invoice), err)
	}
	return p, nil
}

// Execute asks the gateway to move the money of a payment that its payer has
// finished. The gateway executes a payment at most once, so repeating the call
// is safe, but its second answer only says that there was a first: after
// booking.ChargeUnknown, and after an error that wraps booking.ErrInDoubt, ask
// Query. An error that wraps booking.ErrNotSent means that nothing happened.
func (c *Client) Execute(ctx context.Context, paymentID string) (booking.Charge, error) {
	return c.charge(ctx, callExecute, pathExecute, paymentID, c.cfg.ExecuteTimeout)
}

// Query asks what has become of a payment. It changes nothing and is safe to
// repeat; the gateway does not want it where execute has given an answer.
// Errors as for Execute.
func (c *Client) Query(ctx context.Context, paymentID string) (booking.Charge, error) {
	return c.charge(ctx, callQuery, pathQuery, paymentID, c.cfg.QueryTimeout)
}

func (c *Client) charge(ctx context.Context, call, path, paymentID string, timeout time.Duration) (booking.Charge, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	began := c.now()
	a, err := c.call(ctx, path, paymentBody{PaymentID: paymentID})
	var ch booking.Charge
	if err == nil {
		ch, err = a.charge(call, paymentID)
	}
	c.record(ctx, call, outcomeOr(string(ch.Status), err), began, a,
		slog.String("payment", only(idForm, paymentID)), slog.String("invoice", short(only(idForm, a.invoice()))))
	if err != nil {
		return booking.Charge{}, fmt.Errorf("%s payment %s: %w", call, paymentID, err)
	}
	return ch, nil
}

// Refund is booking.RefundGateway's: one call, never repeated by itself. An
// order that is not whole is booking.ErrNotSent. Done must still be compared
// with the order (Check).
func (c *Client) Refund(ctx context.Context, o booking.RefundOrder) (booking.RefundAnswer, error) {
	if err := o.Validate(); err != nil {
		return booking.RefundAnswer{}, fmt.Errorf("%w: %w", booking.ErrNotSent, err)
	}
	return c.refund(ctx, callRefund, c.cfg.RefundTimeout, refundBody{
		PaymentID: o.PaymentID, TrxID: o.Transaction, Amount: o.Amount.String(), SKU: o.SKU, Reason: o.Reason,
	})
}

// RefundStatus is booking.RefundGateway's: the same path, with the payment and
// the transaction alone.
func (c *Client) RefundStatus(ctx context.Context, paymentID, transaction string) (booking.RefundAnswer, error) {
	return c.refund(ctx, callRefundStatus, c.cfg.QueryTimeout, refundBody{PaymentID: paymentID, TrxID: transaction})
}

func (c *Client) refund(ctx context.Context, call string, timeout time.Duration, body refundBody) (booking.RefundAnswer, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	began := c.now()
	a, err := c.call(ctx, pathRefund, body)
	var r booking.RefundAnswer
	if err == nil {
		r, err = a.refund(call, body.PaymentID, body.TrxID)
	}
	outcome := outcomeNotDone
	if r.Done {
		outcome = outcomeDone
	}
	c.record(ctx, call, outcomeOr(outcome, err), began, a,
		slog.String("payment", only(idForm, body.PaymentID)), slog.String("refund_of", only(idForm, body.TrxID)),
		slog.String("refund", only(idForm, string(a.RefundTrxID))))
	if err != nil {
		return booking.RefundAnswer{}, fmt.Errorf("%s of transaction %s: %w", call, body.TrxID, err)
	}
	return r, nil
}

// Search asks for a transaction of the merchant's wallet by its id, for money of
// which no payment id is known. It changes nothing and is safe to repeat. Errors
// as for Execute.
func (c *Client) Search(ctx context.Context, transaction string) (booking.TransactionAnswer, error) {
	ctx, cancel := context.WithTimeout(ctx, c.cfg.QueryTimeout)
	defer cancel()
	began := c.now()
	a, err := c.call(ctx, pathSearch, searchBody{TrxID: transaction})
	var t booking.TransactionAnswer
	if err == nil {
		t, err = a.transaction(transaction)
	}
	outcome := outcomeNotFound
	if t.Found {
		outcome = outcomeFound
	}
	c.record(ctx, callSearch, outcomeOr(outcome, err), began, a, slog.String("sought", only(idForm, transaction)))
	if err != nil {
		return booking.TransactionAnswer{}, fmt.Errorf("search transaction %s: %w", transaction, err)
	}
	return t, nil
}

// call posts with a token. A token that the gateway refuses is reported, and
// the call made once more if the source has another: a 401 comes from what
// stands before the gateway, so the first call had no effect.
func (c *Client) call(ctx context.Context, path string, in any) (answer, error) {
	refused := ""
	for {
		token, err := c.tokens.Token(ctx)
		if err != nil {
			return answer{}, fmt.Errorf("%w: %w", booking.ErrNotSent, err)
		}
		if token == refused {
			return answer{}, fmt.Errorf("%w: %w", booking.ErrNotSent, errUnauthorized)
		}
		status, body, err := c.wire.post(ctx, path, http.Header{
			"Authorization": {token}, // bare, as the gateway's own plug-in sends it
			"X-App-Key":     {string(c.cfg.AppKey)},
		}, in)
		if err != nil {
			return answer{}, err
		}
		a, err := decode(status, body, token, string(c.cfg.AppKey))
		if !errors.Is(err, errUnauthorized) {
			return a, err
		}
		if refused != "" {
			return answer{}, fmt.Errorf("%w: %w", booking.ErrNotSent, err)
		}
		c.tokens.Rejected(ctx, token)
		refused = token
	}
}

// payment takes from a create answer what a payment needs.
func (a answer) payment(o booking.Order) (booking.Payment, error) {
	if a.code() != codeSuccess {
		if v := a.verdict(callCreate); v == refused || v == bug {
			return booking.Payment{}, fmt.Errorf("%w: %w", errOrderRefused, a.inDoubt())
		}
		return booking.Payment{}, a.inDoubt()
	}
	u, err := url.Parse(string(a.BkashURL))
	if err != nil || (u.Scheme != "https" && u.Scheme != "http") || u.Host == "" {
		return booking.Payment{}, fmt.Errorf("%w: no address for the payer", booking.ErrInDoubt)
	}
	p := booking.Payment{ID: string(a.PaymentID), URL: string(a.BkashURL), Signature: signature(string(a.SuccessCallbackURL))}
	if !idForm.MatchString(p.ID) || !idForm.MatchString(p.Signature) {
		return booking.Payment{}, fmt.Errorf("%w: no payment id, or no signature in the callback address", booking.ErrInDoubt)
	}
	// An echo that differs would let the payer pay for something else.
	if amount, err := booking.ParseMoney(string(a.Amount)); a.Amount != "" && (err != nil || amount != o.Amount) ||
		a.Currency != "" && string(a.Currency) != o.Currency || a.invoice() != "" && a.invoice() != o.Invoice {
		return booking.Payment{}, fmt.Errorf("%w: payment %s was created otherwise than ordered", booking.ErrInDoubt, p.ID)
	}
	return p, nil
}

// signature is the value that the gateway appended to our callback address;
// the last one, should that address hold one of its own.
func signature(callback string) string {
	u, err := url.Parse(callback)
	if err != nil {
		return ""
	}
	all := u.Query()["signature"]
	if len(all) == 0 {
		return ""
	}
	return all[len(all)-1]
}

func outcomeOr(answered string, err error) string {
	switch {
	case err == nil:
		return answered
	case errors.Is(err, errOut):
		return outcomeBreakerOpen
	case errors.Is(err, booking.ErrNotSent):
		return outcomeNotSent
	}
	return outcomeInDoubt
}

// short leaves of an invoice number what tells attempts apart: its first part is
// the hash of a candidate code, which gives a short code away.
func short(invoice string) string {
	if hash, attempt, err := booking.ParseInvoice(invoice); err == nil {
		return hash[:8] + "-" + attempt
	}
	return invoice
}

func (c *Client) record(ctx context.Context, call, outcome string, began time.Time, a answer, ids ...slog.Attr) {
	took := c.now().Sub(began)
	level := slog.LevelInfo
	if a.code() != codeSuccess && a.verdict(call).ours() {
		outcome, level = outcomeOurFault, slog.LevelError
	}
	c.seconds.WithLabelValues(call, outcome).Observe(took.Seconds())
	attrs := append([]slog.Attr{slog.String("call", call), slog.String("outcome", outcome), slog.Duration("took", took)}, ids...)
	if a.code() != "" {
		attrs = append(attrs, slog.String("code", only(codeForm, a.code())), slog.String("text", a.words()),
			slog.String("transaction_status", only(wordForm, string(a.TransactionStatus))))
	}
	if id := only(idForm, string(a.TrxID)); id != "" {
		attrs = append(attrs, slog.String("transaction", id))
	}
	if at, err := ParseTime(string(a.PaymentExecuteTime)); err == nil {
		attrs = append(attrs, slog.Time("executed_at", at))
	}
	c.log.LogAttrs(ctx, level, "gateway call", attrs...)
}
