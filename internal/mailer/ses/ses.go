// Package ses is the mail adapter that hands each confirmation to Amazon SES, by the
// API's version 2, as the MIME message that package mailer wrote. SES puts its own
// Date and Message-ID over ours (SES Developer Guide, "Amazon SES header fields"), so
// a mail that was sent twice is recognised by the attempt in its text.
//
// It fails closed: Send answers nil only when SES has taken the mail. What SES refuses
// because of our account, sender or quota is an error that the caller repeats: once it
// is mended every mail must still go. No address and none of SES's own words, which
// quote them, get into an error.
//
// The clock, which dates the mails, is passed in; time-outs and the rate run on the
// wall clock.
package ses

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptrace"
	"regexp"
	"sync/atomic"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/sesv2"
	"github.com/aws/aws-sdk-go-v2/service/sesv2/types"
	"github.com/aws/smithy-go"
	smithyhttp "github.com/aws/smithy-go/transport/http"
	"golang.org/x/time/rate"

	"holdfast/internal/booking"
	"holdfast/internal/mailer"
)

// ErrInDoubt says that a mail may have reached SES and the answer is not known. Sent
// again, it may arrive twice.
var ErrInDoubt = errors.New("mail may have been taken by SES: its answer is not known")

// DefaultTimeout is how long SES has for an answer, which it usually gives within a second.
const DefaultTimeout = 10 * time.Second

// maxTimeout keeps a Send shorter than the claim that its caller has on the mail, two
// minutes: after that another sender may take it.
const maxTimeout = 110 * time.Second

// Config is how mails are sent.
type Config struct {
	// From is the sender's address, with or without a name, of an identity that SES has
	// verified. Required.
	From string
	// ConfigurationSet names the set whose rules and event destinations apply; "" is
	// the identity's own.
	ConfigurationSet string
	// Rate is how many mails a second this process hands over at most: its share of the
	// account's maximum send rate, beyond which SES refuses. 0 is no limit.
	Rate float64
	// Timeout bounds a call, at most 110 s. Default DefaultTimeout.
	Timeout time.Duration
}

// Mailer sends mails. Safe for concurrent use.
type Mailer struct {
	client *sesv2.Client
	cfg    Config
	turns  *rate.Limiter
	now    func() time.Time
}

// New makes a Mailer over the caller's client, checks the settings and tells all that
// is wrong with them at once. It does not connect.
func New(client *sesv2.Client, cfg Config, now func() time.Time) (*Mailer, error) {
	if cfg.Timeout == 0 {
		cfg.Timeout = DefaultTimeout
	}
	sender, err := mailer.Sender(cfg.From)
	errs := []error{err}
	if err == nil && !ascii([]byte(sender.Address)) {
		errs = append(errs, errors.New("sender's address: want ASCII, SES takes no other; a domain can be written in Punycode"))
	}
	if cfg.Timeout < 0 || cfg.Timeout > maxTimeout {
		errs = append(errs, fmt.Errorf("time-out %s: want more than 0 and at most %s", cfg.Timeout, maxTimeout))
	}
	if !(cfg.Rate >= 0) { // nor NaN
		errs = append(errs, fmt.Errorf("rate %g: want 0 or more mails a second", cfg.Rate))
	}
	if err := errors.Join(errs...); err != nil {
		return nil, fmt.Errorf("ses: %w", err)
	}
	limit := rate.Inf
	if cfg.Rate > 0 {
		limit = rate.Limit(cfg.Rate)
	}
	return &Mailer{client: client, cfg: cfg, turns: rate.NewLimiter(limit, 1), now: now}, nil
}

// Send hands the mail to SES, once. booking.ErrUnsendable is final: no message can be
// made of it, or SES refuses its address or its content. ErrInDoubt says that it may
// have been taken. After any other error it was not taken, and may be sent again. From
// the moment that the request goes out, the end of ctx does not cut the wait for the
// answer short: a mail that was taken must not be counted as not sent.
func (m *Mailer) Send(ctx context.Context, msg booking.Mail) error {
	content, err := mailer.Message(msg, m.cfg.From, m.now())
	if err != nil {
		return fmt.Errorf("ses: %w", err)
	}
	to, err := booking.NormalizeEmail(msg.To)
	if err != nil { // Message has looked at it
		return fmt.Errorf("ses: recipient is not an address: %w", booking.ErrUnsendable)
	}
	if !ascii(content) { // only an address can be that
		return fmt.Errorf("ses: address is not in ASCII and SES takes no other: %w", booking.ErrUnsendable)
	}
	if err := m.turns.Wait(ctx); err != nil {
		return fmt.Errorf("ses: wait for a turn: %w", err)
	}
	in := &sesv2.SendEmailInput{
		Content:     &types.EmailContent{Raw: &types.RawMessage{Data: content}},
		Destination: &types.Destination{ToAddresses: []string{to}},
		// The sender is in the message; named here as well, it could lose its display name.
	}
	if m.cfg.ConfigurationSet != "" {
		in.ConfigurationSetName = &m.cfg.ConfigurationSet
	}
	if err := m.deliver(ctx, in); err != nil {
		return fmt.Errorf("ses: %w", err)
	}
	return nil
}

// deliver is one request.
func (m *Mailer) deliver(ctx context.Context, in *sesv2.SendEmailInput) error {
	call, cancel := context.WithTimeout(context.WithoutCancel(ctx), m.cfg.Timeout)
	defer cancel()
	asleep := context.AfterFunc(ctx, cancel)
	defer asleep()
	var out atomic.Bool // once there is a connection, nobody knows how much of the request got through
	trace := &httptrace.ClientTrace{GotConn: func(httptrace.GotConnInfo) {
		out.Store(true)
		asleep()
	}}
	_, err := m.client.SendEmail(call, in, func(o *sesv2.Options) {
		o.Retryer = aws.NopRetryer{} // SES knows no repeat from a second mail
		o.HTTPClient = traced{o.HTTPClient, trace}
	})
	if err == nil {
		return nil
	}
	var answer *smithyhttp.ResponseError
	status := 0
	if errors.As(err, &answer) {
		status = answer.HTTPStatusCode()
	}
	var word smithy.APIError
	known := errors.As(err, &word)
	switch {
	case known && status/100 == 4:
		return refused(status, word)
	case known: // its text may quote an address
		err = said(status, word)
	}
	if out.Load() {
		return fmt.Errorf("%w: %w", ErrInDoubt, err)
	}
	if cause := ctx.Err(); cause != nil && !errors.Is(err, cause) {
		return fmt.Errorf("%w: %w", cause, err)
	}
	return err
}

// traced watches the requests to SES and no others, as a trace in the context would:
// the credentials may need some of their own.
type traced struct {
	sesv2.HTTPClient
	trace *httptrace.ClientTrace
}

func (t traced) Do(r *http.Request) (*http.Response, error) {
	return t.HTTPClient.Do(r.WithContext(httptrace.WithClientTrace(r.Context(), t.trace)))
}

// name is what an error code looks like.
var name = regexp.MustCompile(`^[A-Za-z0-9]{1,80}$`)

func said(status int, word smithy.APIError) error {
	code := word.ErrorCode()
	if !name.MatchString(code) {
		code = "without a code"
	}
	return fmt.Errorf("SES answered %d %s", status, code)
}

var (
	// aboutUs is in a rejection that is no fault of the mail: "Email address is not
	// verified" is said of the sender, and of everybody while the account is in the
	// sandbox. SES Developer Guide, "Amazon SES email sending errors".
	aboutUs = regexp.MustCompile(`(?i)verified|authori[sz]|authority|paused|suspended`)
	// aboutAddress is in a bad request because of an address, such as "Illegal address",
	// "Domain contains illegal character" or "Missing local name".
	aboutAddress = regexp.MustCompile(`(?i)\b(address|domain|local name)\b`)
	aboutSender  = regexp.MustCompile(`(?i)\b(from|sender|source|reply)`)
)

// mend is what a person does about an error that is no fault of the mail.
var mend = map[string]string{
	"TooManyRequestsException": "the account's rate or daily quota is used up",
	"ThrottlingException":      "the account's rate or daily quota is used up",
	"LimitExceededException":   "the account's rate or daily quota is used up",

	"MessageRejected":                    "sender or account must be verified, and out of the sandbox, in this region",
	"MailFromDomainNotVerifiedException": "the MAIL FROM domain must be verified",
	"SendingPausedException":             "sending is paused for the account or the configuration set",
	"AccountSuspendedException":          "AWS has suspended sending for the account",
	"NotFoundException":                  "the configuration set or the identity is not there",
}

// refused reads a definite no: nothing was taken.
func refused(status int, word smithy.APIError) error {
	err, text := said(status, word), word.ErrorMessage()
	switch code := word.ErrorCode(); {
	case code == "MessageRejected" && !aboutUs.MatchString(text),
		code == "BadRequestException" && aboutAddress.MatchString(text) && !aboutSender.MatchString(text):
		return fmt.Errorf("%w: %w", err, booking.ErrUnsendable)
	case mend[code] != "":
		return fmt.Errorf("%w: %s", err, mend[code])
	}
	return err
}

func ascii(text []byte) bool {
	for _, b := range text {
		if b >= 0x80 {
			return false
		}
	}
	return true
}
