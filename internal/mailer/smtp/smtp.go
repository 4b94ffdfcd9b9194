// Package smtp is the mail adapter that hands each confirmation to an SMTP
// server, usually a provider's relay.
//
// It fails closed: Send answers nil only when the server has taken the mail, and
// without the encryption that was asked for nothing is sent. A server that is
// away or says "later" is an error that the caller repeats. No address, no code
// and none of the server's own words, which quote them, get into an error.
//
// The clock, which dates the mails, is passed in; time-outs run on the wall
// clock.
package smtp

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/mail"
	"net/textproto"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	gomail "github.com/wneessen/go-mail/smtp"

	"holdfast/internal/booking"
	"holdfast/internal/mailer"
)

// ErrInDoubt says that a mail was sent whole and the server's answer was lost:
// it may have been taken. Sent again, it may arrive twice; both carry one
// Message-ID.
var ErrInDoubt = errors.New("mail was sent and the server's answer is not known")

// Encryption is how a connection is protected.
type Encryption string

// STARTTLS is the default: a server that does not offer it gets nothing. Plain
// is accepted for loopback hosts only; PlainAnywhere is for a mail catcher in a
// network of its own.
const (
	STARTTLS      Encryption = "starttls"
	Implicit      Encryption = "implicit"
	Plain         Encryption = "plain"
	PlainAnywhere Encryption = "plain-anywhere"
)

// Defaults of Config. One process sends 20,700 mails in an hour as long as a
// mail takes less than 1.4 s, eight at a time.
const (
	DefaultTimeout       = time.Minute
	DefaultAnswerTimeout = 30 * time.Second
	DefaultWidth         = 8
)

// maxTimeouts keeps a Send shorter than the claim that its caller has on the
// mail, two minutes: after that another sender may take it.
const maxTimeouts = 110 * time.Second

// Config is where and how mails are sent.
type Config struct {
	// Host is the server's name or address; its certificate must be for it.
	// Required.
	Host string
	// Port is 587 by default, 465 with Implicit.
	Port int
	// Encryption is STARTTLS by default.
	Encryption Encryption
	// Roots are the authorities that may sign the server's certificate; nil are
	// the system's.
	Roots *x509.CertPool
	// Username logs in, by AUTH PLAIN or, where only that is offered, LOGIN; ""
	// does not.
	Username string
	// Password belongs to Username. It never leaves the machine unencrypted.
	Password Secret
	// From is the sender's address, with or without a name; bounces go there.
	// Required.
	From string
	// Hello is the name that this machine gives itself; by default its address,
	// as SMTP has it for a machine without a name.
	Hello string
	// Timeout bounds a Send up to the end of the mail, the wait for its turn
	// included. Default DefaultTimeout.
	Timeout time.Duration
	// AnswerTimeout is how long the server may think about a whole mail; when it
	// ends the mail is in doubt. With Timeout at most 110 s. Default
	// DefaultAnswerTimeout.
	AnswerTimeout time.Duration
	// Width is how many mails are sent at a time. Default DefaultWidth.
	Width int
}

// Mailer sends mails, each on a connection of its own. Safe for concurrent use.
type Mailer struct {
	cfg    Config
	sender *mail.Address
	tls    *tls.Config
	slots  chan struct{}
	now    func() time.Time
}

// New checks the settings and tells all that is wrong with them at once. It
// does not connect.
func New(cfg Config, now func() time.Time) (*Mailer, error) {
	if cfg.Encryption == "" {
		cfg.Encryption = STARTTLS
	}
	if cfg.Port == 0 {
		cfg.Port = 587
		if cfg.Encryption == Implicit {
			cfg.Port = 465
		}
	}
	if cfg.Timeout == 0 {
		cfg.Timeout = DefaultTimeout
	}
	if cfg.AnswerTimeout == 0 {
		cfg.AnswerTimeout = DefaultAnswerTimeout
	}
	if cfg.Width == 0 {
		cfg.Width = DefaultWidth
	}
	sender, err := mailer.Sender(cfg.From)
	if err := errors.Join(err, cfg.check()); err != nil {
		return nil, fmt.Errorf("smtp: %w", err)
	}
	return &Mailer{
		cfg: cfg, sender: &mail.Address{Address: sender.Address}, now: now,
		tls: &tls.Config{
			ServerName: cfg.Host, RootCAs: cfg.Roots, MinVersion: tls.VersionTLS12,
			// A connection for each mail, but not a handshake from scratch.
			ClientSessionCache: tls.NewLRUClientSessionCache(cfg.Width),
		},
		slots: make(chan struct{}, cfg.Width),
	}, nil
}

// word is what a host or the name in HELO can be.
var word = regexp.MustCompile(`^[!-~]{1,255}$`)

func (c Config) check() error {
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if !word.MatchString(c.Host) {
		bad("host %.80q: want a name or an address", c.Host)
	}
	if c.Port < 1 || c.Port > 65535 {
		bad("port %d: want 1 to 65535", c.Port)
	}
	switch c.Encryption {
	case STARTTLS, Implicit:
	case Plain:
		if !loopback(c.Host) {
			bad("host %.80q is not on this machine: mails to it are encrypted, or %s is asked for", c.Host, PlainAnywhere)
		}
	case PlainAnywhere:
		if c.Username != "" && !loopback(c.Host) {
			bad("host %.80q is not on this machine: a password is not sent there unencrypted", c.Host)
		}
	default:
		bad("encryption %.80q: want %s, %s, %s or %s", string(c.Encryption), STARTTLS, Implicit, Plain, PlainAnywhere)
	}
	if (c.Username == "") != (c.Password.reveal() == "") {
		bad("user name and password: want both or neither")
	}
	if c.Hello != "" && !word.MatchString(c.Hello) {
		bad("name in HELO %.80q: want one word", c.Hello)
	}
	if c.Timeout <= 0 || c.AnswerTimeout <= 0 || c.Timeout+c.AnswerTimeout > maxTimeouts {
		bad("time-outs %s and %s: want more than 0, and together at most %s", c.Timeout, c.AnswerTimeout, maxTimeouts)
	}
	if c.Width < 1 {
		bad("width %d: want at least 1", c.Width)
	}
	return errors.Join(errs...)
}

func loopback(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

// Send hands the mail to the server. booking.ErrUnsendable is final: no message
// can be made of it, or the server refuses this recipient for good. ErrInDoubt
// says that it may have been taken. After any other error it was not taken, and
// may be sent again. From its last byte on, the end of ctx does not cut the wait
// for the answer short: a mail that was taken must not be counted as not sent.
func (m *Mailer) Send(ctx context.Context, msg booking.Mail) error {
	content, err := mailer.Message(msg, m.cfg.From, m.now())
	if err != nil {
		return fmt.Errorf("smtp: %w", err)
	}
	to, err := booking.NormalizeEmail(msg.To)
	if err != nil { // Message has looked at it
		return fmt.Errorf("smtp: recipient is not an address: %w", booking.ErrUnsendable)
	}
	ctx, cancel := context.WithTimeout(ctx, m.cfg.Timeout)
	defer cancel()
	select {
	case m.slots <- struct{}{}:
		defer func() { <-m.slots }()
	case <-ctx.Done():
		return fmt.Errorf("smtp: wait for a turn: %w", ctx.Err())
	}
	if err := m.deliver(ctx, &mail.Address{Address: to}, content); err != nil {
		if cause := ctx.Err(); cause != nil && !errors.Is(err, ErrInDoubt) && !errors.Is(err, cause) {
			err = fmt.Errorf("%w: %w", cause, err)
		}
		return fmt.Errorf("smtp: %w", err)
	}
	return nil
}

// deliver is one connection and one mail.
func (m *Mailer) deliver(ctx context.Context, to *mail.Address, content []byte) error {
	conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", net.JoinHostPort(m.cfg.Host, strconv.Itoa(m.cfg.Port)))
	if err != nil {
		return fmt.Errorf("connect: %w", err)
	}
	defer conn.Close()
	// The end of ctx wakes whoever waits for the server.
	asleep := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
	defer asleep()

	c, err := m.open(conn)
	if err != nil {
		return err
	}
	defer func() {
		if ctx.Err() == nil {
			m.bye(c)
		}
	}()
	if slices.ContainsFunc(content, func(b byte) bool { return b >= 0x80 }) {
		if ok, _ := c.Extension("SMTPUTF8"); !ok {
			return fmt.Errorf("address is not in ASCII and the server takes no other: %w", booking.ErrUnsendable)
		}
	} else {
		c.SkipSMTPUTF8(true) // asked for, it must be offered all the way
	}
	if err := c.Mail(m.sender.String()); err != nil {
		return said("MAIL", err)
	}
	if err := c.Rcpt(to.String()); err != nil {
		return refused("RCPT", err, true)
	}
	w, err := c.Data()
	if err != nil {
		return said("DATA", err)
	}
	if _, err := w.Write(content); err != nil {
		return said("content", err)
	}
	// Until its last dot is sent, a mail that breaks off is none.
	if !asleep() {
		return fmt.Errorf("content: %w", ctx.Err())
	}
	if err := c.UpdateDeadline(m.cfg.AnswerTimeout); err != nil {
		return said("content", err)
	}
	err = w.Close()
	var reply *textproto.Error
	switch {
	case err == nil:
		return nil
	case errors.As(err, &reply) && reply.Code/100 == 2: // 250 is the usual one
		return nil
	case errors.As(err, &reply):
		return refused("mail", err, false)
	default:
		return fmt.Errorf("%w: %w", ErrInDoubt, said("answer", err))
	}
}

// open greets the server, encrypts and logs in.
func (m *Mailer) open(conn net.Conn) (*gomail.Client, error) {
	hello := m.cfg.Hello
	if hello == "" {
		hello = literal(conn.LocalAddr())
	}
	if m.cfg.Encryption == Implicit {
		conn = tls.Client(conn, m.tls)
	}
	c, err := gomail.NewClient(conn, m.cfg.Host)
	if err != nil {
		return nil, said("greeting", err)
	}
	if err := c.Hello(hello); err != nil {
		return nil, said("EHLO", err)
	}
	if m.cfg.Encryption == STARTTLS {
		if ok, _ := c.Extension("STARTTLS"); !ok {
			return nil, errors.New("the server offers no STARTTLS, and without it nothing is sent")
		}
		if err := c.StartTLS(m.tls); err != nil {
			return nil, said("STARTTLS", err)
		}
	}
	if m.cfg.Username == "" {
		return c, nil
	}
	_, offered := c.Extension("AUTH")
	var auth gomail.Auth
	// Where the connection is plain, New has seen that it does not leave the machine.
	switch mechanisms := strings.Fields(offered); {
	case slices.Contains(mechanisms, "PLAIN"):
		auth = gomail.PlainAuth("", m.cfg.Username, m.cfg.Password.reveal(), m.cfg.Host, true)
	case slices.Contains(mechanisms, "LOGIN"):
		auth = gomail.LoginAuth(m.cfg.Username, m.cfg.Password.reveal(), m.cfg.Host, true)
	default:
		return nil, errors.New("the server offers neither AUTH PLAIN nor LOGIN")
	}
	if err := c.Auth(auth); err != nil {
		return nil, said("AUTH", err)
	}
	return c, nil
}

// byeTimeout is what politeness may cost.
const byeTimeout = time.Second

// bye ends the session in the open: some servers count a connection that is just
// closed as an attack. Its answer changes nothing.
func (m *Mailer) bye(c *gomail.Client) {
	if c.UpdateDeadline(byeTimeout) == nil {
		_ = c.Quit()
	}
}

// literal is an address as HELO names it.
func literal(addr net.Addr) string {
	host, _, err := net.SplitHostPort(addr.String())
	if err != nil {
		return "localhost"
	}
	host, _, _ = strings.Cut(host, "%") // no zone
	if strings.Contains(host, ":") {
		return "[IPv6:" + host + "]"
	}
	return "[" + host + "]"
}

// status is an enhanced status code (RFC 3463) at the start of a reply.
var status = regexp.MustCompile(`^[245]\.\d{1,3}\.\d{1,3}\b`)

// said makes an error of a step of what came back, without the server's words.
func said(step string, err error) error {
	var reply *textproto.Error
	var garbled textproto.ProtocolError
	switch {
	case errors.As(err, &reply):
		return fmt.Errorf("%s: the server answered %s", step, strings.TrimSpace(strconv.Itoa(reply.Code)+" "+status.FindString(reply.Msg)))
	case errors.As(err, &garbled), errors.Is(err, gomail.ErrUnexpectedServerResponse):
		return fmt.Errorf("%s: the server's answer is not SMTP", step)
	default:
		return fmt.Errorf("%s: %w", step, err)
	}
}

// refused is said, and booking.ErrUnsendable when the answer is final and about
// the recipient.
func refused(step string, err error, toRecipient bool) error {
	var reply *textproto.Error
	if errors.As(err, &reply) && reply.Code/100 == 5 && aboutRecipient(reply, toRecipient) {
		return fmt.Errorf("%w: %w", said(step, err), booking.ErrUnsendable)
	}
	return said(step, err)
}

// aboutRecipient reads a final refusal. The enhanced code says whom it is about:
// an address (x.1) or a mailbox (x.2), unless it is the sender's; protocol (x.5)
// and policy (x.7) are about us, and cured by mending our account, after which
// every mail must go. Without such a code, what was refused is the recipient if
// that is what was named, unless the server wants a log-in or another order of
// commands.
func aboutRecipient(reply *textproto.Error, named bool) bool {
	switch code := status.FindString(reply.Msg); {
	case code == "5.1.7", code == "5.1.8":
		return false
	case strings.HasPrefix(code, "5.1."), strings.HasPrefix(code, "5.2."):
		return true
	case strings.HasPrefix(code, "5.5."), strings.HasPrefix(code, "5.7."):
		return false
	}
	switch reply.Code {
	case 503, 530, 534, 535, 538:
		return false
	}
	return named
}
