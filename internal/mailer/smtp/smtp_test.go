package smtp_test

import (
	"bytes"
	"context"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"go.uber.org/goleak"

	"holdfast/internal/booking"
	"holdfast/internal/mailer"
	"holdfast/internal/mailer/smtp"
	"holdfast/internal/testenv"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	from      = "Exam Bookings <bookings@example.org>"
	recipient = "candidate100001@example.org"
	attempt   = "1hq8xk00aaaa-01kb8z5v00aaaaaaaaaaaaaaaa"
)

func now() time.Time { return time.Date(2026, 12, 1, 4, 6, 0, 0, time.UTC) }

func paid() booking.Mail {
	return booking.Mail{
		To: recipient, Sale: "demo-2026", LevelName: "N1 Advanced",
		BookingURL: "https://seats.example.org/result?booking=dG9rZW4",
		Record: booking.Record{
			Code: "AB-100001", Attempt: attempt, State: booking.StatePaid, Amount: 150000,
			Currency: "BDT", Transaction: "CK250NROQ5", PaidAt: now(),
		},
	}
}

// client is a mailer for the server, by the given name; change may spoil it.
func client(t *testing.T, addr string, change func(*smtp.Config)) *smtp.Mailer {
	t.Helper()
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		t.Fatal(err)
	}
	n, err := strconv.Atoi(port)
	if err != nil {
		t.Fatal(err)
	}
	cfg := smtp.Config{Host: host, Port: n, Encryption: smtp.Plain, From: from}
	if change != nil {
		change(&cfg)
	}
	m, err := smtp.New(cfg, now)
	if err != nil {
		t.Fatalf("New: got %v, want nil", err)
	}
	return m
}

// wantKept checks that the server kept these mails, byte for byte.
func wantKept(t *testing.T, got []testenv.SMTPMail, want ...booking.Mail) {
	t.Helper()
	if len(got) != len(want) {
		t.Fatalf("server kept %d mails, want %d", len(got), len(want))
	}
	for i, m := range want {
		content, err := mailer.Message(m, from, now())
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(string(content), string(got[i].Content)); diff != "" {
			t.Errorf("mail %d (-message +kept):\n%s", i, diff)
		}
	}
}

// wantSilent checks that an error tells nobody's address or code, nor what the
// server said.
func wantSilent(t *testing.T, err error) {
	t.Helper()
	for _, private := range []string{recipient, "candidate100001", "AB-100001", "mailbox", "s3cret"} {
		if err != nil && strings.Contains(err.Error(), private) {
			t.Errorf("error %q: got %q in it, want it kept out", err, private)
		}
	}
}

func TestSend_OverTLSWithALogin(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		server     testenv.SMTPOptions
		encryption smtp.Encryption
	}{
		"STARTTLS and PLAIN": {testenv.SMTPOptions{TLS: "starttls"}, smtp.STARTTLS},
		"by default, LOGIN":  {testenv.SMTPOptions{TLS: "starttls", NotOffered: []string{"PLAIN"}}, ""},
		"implicit and PLAIN": {testenv.SMTPOptions{TLS: "implicit"}, smtp.Implicit},
		"implicit and LOGIN": {testenv.SMTPOptions{TLS: "implicit", NotOffered: []string{"PLAIN"}}, smtp.Implicit},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c.server.User, c.server.Password = "relay", "s3cret pass"
			server := testenv.SMTP(t, c.server)
			m := client(t, server.Addr, func(cfg *smtp.Config) {
				cfg.Encryption, cfg.Host, cfg.Roots = c.encryption, "localhost", server.Roots
				cfg.Username, cfg.Password, cfg.Hello = "relay", smtp.NewSecret("s3cret pass"), "seats.example.org"
			})
			if err := m.Send(t.Context(), paid()); err != nil {
				t.Fatalf("Send: got %v, want nil", err)
			}
			kept := server.Stop()
			wantKept(t, kept, paid())
			want := testenv.SMTPMail{
				Hello: "seats.example.org", User: "relay", Encrypted: true, Open: 1,
				Sender: "bookings@example.org", Options: []string{"BODY=8BITMIME"}, Recipients: []string{recipient},
			}
			if diff := cmp.Diff(want, kept[0], cmpopts.IgnoreFields(want, "Content")); diff != "" {
				t.Errorf("envelope (-want +got):\n%s", diff)
			}
		})
	}
}

func TestSend_WithoutTheEncryptionAskedForNothingIsSent(t *testing.T) {
	t.Parallel()
	trusted := func(s *testenv.SMTPServer) *x509.CertPool { return s.Roots }
	for name, c := range map[string]struct {
		tls        string
		encryption smtp.Encryption
		host       string
		roots      func(*testenv.SMTPServer) *x509.CertPool
		want       string
	}{
		"no STARTTLS offered":     {"", smtp.STARTTLS, "localhost", trusted, "offers no STARTTLS"},
		"no TLS on the port":      {"", smtp.Implicit, "localhost", trusted, "greeting"},
		"unknown authority":       {"starttls", smtp.STARTTLS, "localhost", func(*testenv.SMTPServer) *x509.CertPool { return x509.NewCertPool() }, "certificate"},
		"unknown to the system":   {"implicit", smtp.Implicit, "localhost", func(*testenv.SMTPServer) *x509.CertPool { return nil }, "certificate"},
		"certificate of another":  {"starttls", smtp.STARTTLS, "127.0.0.1", trusted, "certificate"},
		"plain to one that wants": {"starttls", smtp.Plain, "localhost", trusted, "MAIL: the server answered 530"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := testenv.SMTP(t, testenv.SMTPOptions{TLS: c.tls, User: "relay", Password: "s3cret"})
			m := client(t, server.Addr, func(cfg *smtp.Config) {
				cfg.Encryption, cfg.Host, cfg.Roots = c.encryption, c.host, c.roots(server)
				if c.encryption != smtp.Plain {
					cfg.Username, cfg.Password = "relay", smtp.NewSecret("s3cret")
				}
			})
			err := m.Send(t.Context(), paid())
			if err == nil || !strings.Contains(err.Error(), c.want) || errors.Is(err, booking.ErrUnsendable) || errors.Is(err, smtp.ErrInDoubt) {
				t.Errorf("Send: got %v, want %q, to be tried again", err, c.want)
			}
			wantSilent(t, err)
			wantKept(t, server.Stop())
		})
	}
}

func TestSend_LoginThatDoesNotWork(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		server testenv.SMTPOptions
		want   string
	}{
		"wrong password": {testenv.SMTPOptions{Password: "another"}, "AUTH: the server answered 535 5.7.8"},
		"no mechanism":   {testenv.SMTPOptions{Password: "s3cret", NotOffered: []string{"PLAIN", "LOGIN"}}, "neither AUTH PLAIN nor LOGIN"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c.server.User = "relay"
			server := testenv.SMTP(t, c.server)
			m := client(t, server.Addr, func(cfg *smtp.Config) { cfg.Username, cfg.Password = "relay", smtp.NewSecret("s3cret") })
			err := m.Send(t.Context(), paid())
			if err == nil || !strings.Contains(err.Error(), c.want) || errors.Is(err, booking.ErrUnsendable) {
				t.Errorf("Send: got %v, want %q, to be tried again", err, c.want)
			}
			wantSilent(t, err)
			wantKept(t, server.Stop())
		})
	}
}

func TestSend_AnswersOfTheServer(t *testing.T) {
	t.Parallel()
	const retry, final = false, true
	for name, c := range map[string]struct {
		step, answer, want string
		unsendable         bool
	}{
		"server is closing":           {"CONNECT", "421 4.3.2 closing", "greeting: the server answered 421 4.3.2", retry},
		"server wants none of us":     {"CONNECT", "554 no", "greeting: the server answered 554", retry},
		"sender over quota":           {"MAIL", "451 4.7.0 later", "MAIL: the server answered 451 4.7.0", retry},
		"sender unknown":              {"MAIL", "550 5.1.8 sender", "MAIL: the server answered 550 5.1.8", retry},
		"recipient greylisted":        {"RCPT", "450 4.2.0 <" + recipient + "> greylisted", "RCPT: the server answered 450 4.2.0", retry},
		"recipient unknown":           {"RCPT", "550 5.1.1 <" + recipient + "> no such mailbox", "RCPT: the server answered 550 5.1.1", final},
		"recipient unknown, old form": {"RCPT", "550 no mailbox " + recipient, "RCPT: the server answered 550:", final},
		"recipient's syntax":          {"RCPT", "501 5.1.3 bad address", "501 5.1.3", final},
		"recipient's domain":          {"RCPT", "556 5.1.10 takes no mail", "556 5.1.10", final},
		"several lines":               {"RCPT", "550-5.1.1 no such mailbox\r\n550 5.1.1 " + recipient, "550 5.1.1", final},
		"we may not relay":            {"RCPT", "554 5.7.1 <" + recipient + "> relay access denied", "554 5.7.1", retry},
		"we must log in":              {"RCPT", "530 log in first", "530", retry},
		"our sender at RCPT":          {"RCPT", "550 5.1.8 sender", "550 5.1.8", retry},
		"out of order":                {"RCPT", "503 5.5.1 MAIL first", "503 5.5.1", retry},
		"no DATA now":                 {"DATA", "452 4.3.1 disk full", "DATA: the server answered 452 4.3.1", retry},
		"mail put off":                {"DOT", "451 4.3.0 later", "mail: the server answered 451 4.3.0", retry},
		"mail put off by a drain":     {"DOT", "421 4.3.2 closing", "mail: the server answered 421 4.3.2", retry},
		"mail refused as it is":       {"DOT", "554 rejected", "mail: the server answered 554", retry},
		"mail refused for its reader": {"DOT", "550 5.1.1 no such mailbox", "mail: the server answered 550 5.1.1", final},
		"not SMTP":                    {"RCPT", "mailbox " + recipient + " is unknown", "RCPT: the server's answer is not SMTP", retry},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := testenv.SMTP(t, testenv.SMTPOptions{Answers: map[string]string{c.step: c.answer}})
			err := client(t, server.Addr, nil).Send(t.Context(), paid())
			if err == nil || !strings.Contains(err.Error(), c.want) || errors.Is(err, smtp.ErrInDoubt) {
				t.Errorf("Send: got %v, want %q and no doubt", err, c.want)
			}
			if got := errors.Is(err, booking.ErrUnsendable); got != c.unsendable {
				t.Errorf("Send: got %v, ErrUnsendable %v, want %v", err, got, c.unsendable)
			}
			wantSilent(t, err)
			wantKept(t, server.Stop())
		})
	}
}

func TestSend_AnyGoodAnswerIsOne(t *testing.T) {
	t.Parallel()
	for step, answer := range map[string]string{"RCPT": "251 forwarded", "DOT": "252 taken"} {
		server := testenv.SMTP(t, testenv.SMTPOptions{Answers: map[string]string{step: answer}})
		if err := client(t, server.Addr, nil).Send(t.Context(), paid()); err != nil {
			t.Errorf("%s answered %s: got %v, want nil", step, answer, err)
		}
		wantKept(t, server.Stop(), paid())
	}
}

func TestSend_ServerDiesInTheMiddle(t *testing.T) {
	t.Parallel()
	for _, step := range []string{"CONNECT", "MAIL", "RCPT", "DATA", "DOT"} {
		t.Run(step, func(t *testing.T) {
			t.Parallel()
			server := testenv.SMTP(t, testenv.SMTPOptions{Dies: step})
			err := client(t, server.Addr, nil).Send(t.Context(), paid())
			if err == nil || errors.Is(err, booking.ErrUnsendable) {
				t.Errorf("Send: got %v, want an error after which it may be sent again", err)
			}
			wantSilent(t, err)
			kept := server.Stop()
			if got, want := errors.Is(err, smtp.ErrInDoubt), step == "DOT"; got != want || (len(kept) == 1) != want {
				t.Errorf("Send: got %v and %d mails kept, want doubt and a mail: %v", err, len(kept), want)
			}
		})
	}
}

func TestSend_ServerThatIsSlow(t *testing.T) {
	t.Parallel()
	for _, step := range []string{"CONNECT", "MAIL", "RCPT", "DATA", "DOT"} {
		t.Run(step, func(t *testing.T) {
			t.Parallel()
			server := testenv.SMTP(t, testenv.SMTPOptions{Slow: map[string]time.Duration{step: time.Minute}})
			m := client(t, server.Addr, func(cfg *smtp.Config) {
				cfg.Timeout = time.Second
				if step == "DOT" { // it must get so far
					cfg.Timeout, cfg.AnswerTimeout = time.Minute, time.Second
				}
			})
			began := time.Now()
			err := m.Send(t.Context(), paid())
			if took := time.Since(began); took > 20*time.Second {
				t.Errorf("Send: got an answer after %s, want it after a second or so", took)
			}
			var timeout net.Error
			if !errors.As(err, &timeout) || !timeout.Timeout() || errors.Is(err, booking.ErrUnsendable) {
				t.Errorf("Send: got %v, want a time-out", err)
			}
			if got, want := errors.Is(err, smtp.ErrInDoubt), step == "DOT"; got != want {
				t.Errorf("Send: got %v, in doubt %v, want %v", err, got, want)
			}
		})
	}
}

// A mail that was taken must not be counted as not sent because its caller had
// no more time.
func TestSend_CallerThatLeavesAtTheEndGetsTheAnswer(t *testing.T) {
	t.Parallel()
	server := testenv.SMTP(t, testenv.SMTPOptions{Slow: map[string]time.Duration{"DOT": time.Second}})
	m := client(t, server.Addr, nil)
	ctx, leave := context.WithCancel(t.Context())
	defer leave()
	answer := make(chan error, 1)
	go func() { answer <- m.Send(ctx, paid()) }()
	server.Await(t, 1)
	leave()
	if err := <-answer; err != nil {
		t.Errorf("Send: got %v, want nil", err)
	}
	wantKept(t, server.Stop(), paid())
}

func TestSend_CallerThatLeavesBeforeIsNotWaitedFor(t *testing.T) {
	t.Parallel()
	server := testenv.SMTP(t, testenv.SMTPOptions{Slow: map[string]time.Duration{"DATA": time.Minute}})
	m := client(t, server.Addr, func(cfg *smtp.Config) { cfg.Width = 1 })
	first, leave := context.WithCancel(t.Context())
	left := make(chan error, 1)
	go func() { left <- m.Send(first, paid()) }()
	second, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	for _, got := range []error{m.Send(second, paid()), func() error { leave(); return <-left }()} {
		if (!errors.Is(got, context.Canceled) && !errors.Is(got, context.DeadlineExceeded)) || errors.Is(got, smtp.ErrInDoubt) {
			t.Errorf("Send: got %v, want the end of the caller's context", got)
		}
	}
	wantKept(t, server.Stop())
}

func TestSend_ContentArrivesByteForByte(t *testing.T) {
	t.Parallel()
	server := testenv.SMTP(t, testenv.SMTPOptions{})
	m := client(t, server.Addr, nil)
	var mails []booking.Mail
	add := func(level string) {
		mail := paid()
		mail.LevelName = level
		mails = append(mails, mail)
	}
	// Quoted-printable breaks lines at 76, so that some begin with dots, and for
	// one length the last is a dot alone.
	for n := 310; n < 390; n++ {
		add(strings.Repeat(".", n))
	}
	add(strings.Repeat("উ", 130)) // long, and not ASCII
	add("Größe =20 =\t.\u200dখ")
	mails = slices.DeleteFunc(mails, func(m booking.Mail) bool { _, err := mailer.Message(m, from, now()); return err != nil })
	if len(mails) < 81 {
		t.Fatalf("mails that can be written: got %d, want nearly all", len(mails))
	}
	var dotsAlone, dotsFirst int
	for _, mail := range mails {
		if err := m.Send(t.Context(), mail); err != nil {
			t.Fatalf("Send: got %v, want nil", err)
		}
		content, _ := mailer.Message(mail, from, now())
		dotsAlone += bytes.Count(content, []byte("\r\n.\r\n"))
		dotsFirst += bytes.Count(content, []byte("\r\n."))
	}
	if dotsAlone == 0 || dotsFirst == 0 {
		t.Errorf("lines that begin with a dot: got %d, a dot alone %d, want both to occur", dotsFirst, dotsAlone)
	}
	wantKept(t, server.Stop(), mails...)
}

func TestSend_AddressesAsTheyAre(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		to, want   string
		ascii      bool
		unsendable bool
		options    []string
	}{
		"plain":                      {to: "A.B+c%d=e@Example.org", want: "a.b+c%d=e@example.org", options: []string{"BODY=8BITMIME"}},
		"not ASCII":                  {to: "zoë@example.org", want: "zoë@example.org", options: []string{"BODY=8BITMIME", "SMTPUTF8"}},
		"not ASCII, not taken there": {to: "zoë@example.org", ascii: true, unsendable: true},
		"no address":                 {to: "nobody", unsendable: true},
		"two lines":                  {to: "a@example.org\r\nRCPT TO:<b@example.org>", unsendable: true},
		"two addresses":              {to: "a@example.org>,<b@example.org", unsendable: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := testenv.SMTP(t, testenv.SMTPOptions{ASCII: c.ascii})
			mail := paid()
			mail.To = c.to
			err := client(t, server.Addr, nil).Send(t.Context(), mail)
			if got := errors.Is(err, booking.ErrUnsendable); got != c.unsendable || (err != nil) != c.unsendable {
				t.Fatalf("Send: got %v, want ErrUnsendable %v", err, c.unsendable)
			}
			kept := server.Stop()
			if c.unsendable {
				wantKept(t, kept)
				return
			}
			wantKept(t, kept, mail)
			if diff := cmp.Diff([]string{c.want}, kept[0].Recipients); diff != "" {
				t.Errorf("recipients (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(c.options, kept[0].Options); diff != "" {
				t.Errorf("options of MAIL (-want +got):\n%s", diff)
			}
			if kept[0].Hello != "[127.0.0.1]" {
				t.Errorf("HELO without a name: got %q, want the address", kept[0].Hello)
			}
		})
	}
}

func TestSend_AtMostSoManyAtATime(t *testing.T) {
	t.Parallel()
	const width, mails = 3, 24
	server := testenv.SMTP(t, testenv.SMTPOptions{TLS: "implicit", Slow: map[string]time.Duration{"RCPT": 20 * time.Millisecond}})
	m := client(t, server.Addr, func(cfg *smtp.Config) {
		cfg.Width, cfg.Encryption, cfg.Host, cfg.Roots = width, smtp.Implicit, "localhost", server.Roots
	})
	var sending sync.WaitGroup
	for range mails {
		sending.Go(func() {
			if err := m.Send(t.Context(), paid()); err != nil {
				t.Errorf("Send: got %v, want nil", err)
			}
		})
	}
	sending.Wait()
	kept, most := server.Stop(), 0
	for _, mail := range kept {
		most = max(most, mail.Open)
	}
	// The server may see one that ends a moment later than the client.
	if len(kept) != mails || most < 2 || most > 2*width {
		t.Errorf("server kept %d mails on up to %d connections, want %d on about %d", len(kept), most, mails, width)
	}
}

// The provider is away, and comes back.
func TestSend_OutageIsOverByItself(t *testing.T) {
	t.Parallel()
	server := testenv.SMTP(t, testenv.SMTPOptions{})
	network := testenv.Proxy(t, server.Addr)
	m := client(t, network.Addr(), func(cfg *smtp.Config) { cfg.Timeout = 10 * time.Second })
	network.Cut()
	for range 3 {
		if err := m.Send(t.Context(), paid()); err == nil || errors.Is(err, booking.ErrUnsendable) || errors.Is(err, smtp.ErrInDoubt) {
			t.Errorf("Send in the outage: got %v, want an error, to be tried again", err)
		}
	}
	network.Forward()
	if err := m.Send(t.Context(), paid()); err != nil {
		t.Errorf("Send after the outage: got %v, want nil", err)
	}
	wantKept(t, server.Stop(), paid())
	err := m.Send(t.Context(), paid())
	if err == nil || errors.Is(err, booking.ErrUnsendable) {
		t.Errorf("Send to nobody: got %v, want an error, to be tried again", err)
	}
}

func TestNew_TellsEverythingAtOnce(t *testing.T) {
	t.Parallel()
	good := smtp.Config{Host: "relay.example.net", From: from}
	if _, err := smtp.New(good, now); err != nil {
		t.Errorf("host and sender alone: got %v, want nil", err)
	}
	for want, spoil := range map[string]func(*smtp.Config){
		`sender "nobody"`:           func(c *smtp.Config) { c.From = "nobody" },
		`host ""`:                   func(c *smtp.Config) { c.Host = "" },
		`host "a b"`:                func(c *smtp.Config) { c.Host = "a b" },
		"port 65536":                func(c *smtp.Config) { c.Port = 65536 },
		"is not on this machine: m": func(c *smtp.Config) { c.Encryption = smtp.Plain },
		"is not on this machine: a": func(c *smtp.Config) {
			c.Encryption, c.Username, c.Password = smtp.PlainAnywhere, "relay", smtp.NewSecret("s3cret")
		},
		`encryption "tls"`:     func(c *smtp.Config) { c.Encryption = "tls" },
		"both or neither":      func(c *smtp.Config) { c.Username = "relay" },
		"both or":              func(c *smtp.Config) { c.Password = smtp.NewSecret("s3cret") },
		"name in HELO":         func(c *smtp.Config) { c.Hello = "a\r\nMAIL" },
		"time-outs 1m30s":      func(c *smtp.Config) { c.Timeout = 90 * time.Second },
		"time-outs 1m0s and -": func(c *smtp.Config) { c.AnswerTimeout = -1 },
		"width -1":             func(c *smtp.Config) { c.Width = -1 },
	} {
		c := good
		spoil(&c)
		if _, err := smtp.New(c, now); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
	}
	_, err := smtp.New(smtp.Config{Port: -1, Width: -1}, now)
	for _, want := range []string{"sender", "host", "port", "width"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("four mistakes: got %v, want %s among them", err, want)
		}
	}
	for _, c := range []smtp.Config{
		{Host: "mailpit", From: from, Encryption: smtp.PlainAnywhere},
		{Host: "::1", From: from, Encryption: smtp.Plain, Username: "relay", Password: smtp.NewSecret("s3cret")},
	} {
		if _, err := smtp.New(c, now); err != nil {
			t.Errorf("plain to %s: got %v, want nil", c.Host, err)
		}
	}
}

func TestSecret_DoesNotPrintItself(t *testing.T) {
	t.Parallel()
	cfg := smtp.Config{Host: "localhost", From: from, Username: "relay", Password: smtp.NewSecret("s3cret")}
	m, err := smtp.New(cfg, now)
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%d", "%x"} {
		fmt.Fprintf(&out, verb+verb+verb, cfg, m, cfg.Password)
	}
	for _, h := range []slog.Handler{slog.NewTextHandler(&out, nil), slog.NewJSONHandler(&out, nil)} {
		slog.New(h).InfoContext(t.Context(), "settings", "password", cfg.Password, "config", struct{ Password smtp.Secret }{cfg.Password})
	}
	text, err := json.Marshal(cfg.Password)
	if err != nil {
		t.Fatal(err)
	}
	out.Write(text)
	if strings.Contains(out.String(), "s3cret") || strings.Contains(out.String(), fmt.Sprintf("%x", "s3cret")) {
		t.Errorf("printed: got the secret in it:\n%s", out.String())
	}
	if !strings.Contains(out.String(), "[secret]") {
		t.Error("printed: got nothing of the secret's place, want [secret]")
	}
}
