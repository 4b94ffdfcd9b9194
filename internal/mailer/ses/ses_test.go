package ses_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/service/sesv2"
	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"holdfast/internal/booking"
	"holdfast/internal/mailer"
	"holdfast/internal/mailer/ses"
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

// content is the message as the adapters hand it over.
func content(t *testing.T) []byte {
	t.Helper()
	m, err := mailer.Message(paid(), from, now())
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// client is a client of SES at an endpoint, with connections of its own.
func client(t *testing.T, endpoint string, transport *http.Transport) *sesv2.Client {
	t.Helper()
	t.Cleanup(transport.CloseIdleConnections)
	return sesv2.New(sesv2.Options{
		Region: testenv.Region, BaseEndpoint: &endpoint, HTTPClient: &http.Client{Transport: transport},
		Credentials: credentials.NewStaticCredentialsProvider("key", "secret", ""),
	})
}

func mailerAt(t *testing.T, endpoint string, cfg ses.Config) *ses.Mailer {
	t.Helper()
	return mailerOver(t, client(t, endpoint, &http.Transport{}), cfg)
}

func mailerOver(t *testing.T, c *sesv2.Client, cfg ses.Config) *ses.Mailer {
	t.Helper()
	cfg.From = from
	m, err := ses.New(c, cfg, now)
	if err != nil {
		t.Fatalf("New: got %v, want nil", err)
	}
	return m
}

// service is a stand-in for SES: handle answers, calls counts.
func service(t *testing.T, handle http.HandlerFunc) (endpoint string, calls *atomic.Int64) {
	t.Helper()
	calls = new(atomic.Int64)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		calls.Add(1)
		handle(w, r)
	}))
	t.Cleanup(server.Close)
	return server.URL, calls
}

func taken(w http.ResponseWriter) {
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write([]byte(`{"MessageId":"0100"}`))
}

func refuse(w http.ResponseWriter, status int, code, text string) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("X-Amzn-Errortype", code)
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(map[string]string{"message": text})
}

// wantSilent checks that an error tells nobody's address or code, nor what SES said.
func wantSilent(t *testing.T, err error) {
	t.Helper()
	for _, private := range []string{recipient, "candidate100001", "AB-100001", "bookings@", "said so"} {
		if err != nil && strings.Contains(err.Error(), private) {
			t.Errorf("error %q: got %q in it, want it kept out", err, private)
		}
	}
}

// wantKind checks of what kind an error is; a plain one is neither final nor doubtful.
func wantKind(t *testing.T, err error, unsendable, inDoubt bool) {
	t.Helper()
	if err == nil || errors.Is(err, booking.ErrUnsendable) != unsendable || errors.Is(err, ses.ErrInDoubt) != inDoubt {
		t.Errorf("Send: got %v, want an error, ErrUnsendable %v, ErrInDoubt %v", err, unsendable, inDoubt)
	}
	wantSilent(t, err)
}

func TestSend_HandsOverTheMessageAsItIs(t *testing.T) {
	t.Parallel()
	type request struct {
		Content              struct{ Raw struct{ Data []byte } }
		Destination          struct{ ToAddresses []string }
		ConfigurationSetName string
		FromEmailAddress     string
	}
	for _, set := range []string{"", "bounces"} {
		var got request
		endpoint, _ := service(t, func(w http.ResponseWriter, r *http.Request) {
			if r.Method != http.MethodPost || r.URL.Path != "/v2/email/outbound-emails" {
				t.Errorf("request: got %s %s, want POST /v2/email/outbound-emails", r.Method, r.URL.Path)
			}
			if err := json.NewDecoder(r.Body).Decode(&got); err != nil {
				t.Errorf("request: %v", err)
			}
			taken(w)
		})
		if err := mailerAt(t, endpoint, ses.Config{ConfigurationSet: set}).Send(t.Context(), paid()); err != nil {
			t.Fatalf("Send: got %v, want nil", err)
		}
		want := request{ConfigurationSetName: set}
		want.Content.Raw.Data, want.Destination.ToAddresses = content(t), []string{recipient}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("request (-want +got):\n%s", diff)
		}
	}
}

// kept are the mails that the emulator took.
func kept(t *testing.T, endpoint string, transport *http.Transport) (sources, contents []string) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, endpoint+"/moto-api/data.json", http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := (&http.Client{Transport: transport}).Do(r)
	if err != nil {
		t.Fatalf("mails kept: %v", err)
	}
	defer resp.Body.Close()
	var data struct {
		SES struct {
			RawMessage []struct {
				Source string `json:"source"`
				Data   string `json:"raw_data"`
			}
		} `json:"ses"`
	}
	if err := json.NewDecoder(resp.Body).Decode(&data); err != nil {
		t.Fatalf("mails kept: %v", err)
	}
	for _, m := range data.SES.RawMessage {
		sources, contents = append(sources, m.Source), append(contents, m.Data)
	}
	return sources, contents
}

func TestSend_OverAnEmulatorOfAWS(t *testing.T) {
	t.Parallel()
	endpoint := testenv.AWS(t).Endpoint
	transport := &http.Transport{}
	c := client(t, endpoint, transport)
	m := mailerOver(t, c, ses.Config{})

	err := m.Send(t.Context(), paid())
	wantKind(t, err, false, false)
	if err == nil || !strings.Contains(err.Error(), "sender or account must be verified") {
		t.Errorf("Send from a sender not verified: got %v, want to be told what to mend", err)
	}
	if _, contents := kept(t, endpoint, transport); contents != nil {
		t.Errorf("mails kept: got %d, want none", len(contents))
	}

	if _, err := c.CreateEmailIdentity(t.Context(), &sesv2.CreateEmailIdentityInput{EmailIdentity: aws.String("bookings@example.org")}); err != nil {
		t.Fatalf("create identity: %v", err)
	}
	if err := m.Send(t.Context(), paid()); err != nil {
		t.Fatalf("Send: got %v, want nil", err)
	}
	sources, contents := kept(t, endpoint, transport)
	if diff := cmp.Diff([]string{"bookings@example.org"}, sources); diff != "" {
		t.Errorf("senders (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{string(content(t))}, contents); diff != "" {
		t.Errorf("mails (-want +got):\n%s", diff)
	}
}

func TestSend_AnswersOfSES(t *testing.T) {
	t.Parallel()
	const (
		retry = iota
		final
		doubt
	)
	for name, c := range map[string]struct {
		status           int
		code, text, want string
		kind             int
	}{
		"content refused":             {400, "MessageRejected", "Transaction failed: said so " + recipient, "SES answered 400 MessageRejected", final},
		"sender not verified":         {400, "MessageRejected", "Email address is not verified. The following identities failed the check in region X: bookings@example.org", "must be verified", retry},
		"account paused, old form":    {400, "MessageRejected", "Sending paused for this account. said so", "must be verified", retry},
		"address":                     {400, "BadRequestException", "Illegal address " + recipient, "400 BadRequestException", final},
		"address's domain":            {400, "BadRequestException", "Domain contains illegal character", "400 BadRequestException", final},
		"address's end":               {400, "BadRequestException", "Missing final '@domain'", "400 BadRequestException", final},
		"our sender's address":        {400, "BadRequestException", "Invalid From address: said so", "400 BadRequestException", retry},
		"configuration set's name":    {400, "BadRequestException", "Configuration set name is not valid", "400 BadRequestException", retry},
		"no configuration set":        {404, "NotFoundException", "said so", "is not there", retry},
		"too many a second":           {429, "TooManyRequestsException", "said so", "used up", retry},
		"too many a day":              {400, "ThrottlingException", "Daily message quota exceeded", "used up", retry},
		"limit":                       {400, "LimitExceededException", "said so", "used up", retry},
		"paused":                      {400, "SendingPausedException", "said so", "sending is paused", retry},
		"suspended":                   {400, "AccountSuspendedException", "said so", "suspended", retry},
		"MAIL FROM":                   {400, "MailFromDomainNotVerifiedException", "said so", "MAIL FROM", retry},
		"not allowed":                 {403, "AccessDeniedException", "User is not authorized on " + recipient, "SES answered 403 AccessDeniedException", retry},
		"a code that is none":         {400, "to " + recipient, "said so", "SES answered 400 without a code", retry},
		"internal error":              {500, "InternalServiceErrorException", "said so " + recipient, "SES answered 500 InternalServiceErrorException", doubt},
		"unavailable":                 {503, "ServiceUnavailable", "said so", "SES answered 503", doubt},
		"message rejected by a relay": {502, "MessageRejected", "said so", "SES answered 502", doubt},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			endpoint, calls := service(t, func(w http.ResponseWriter, _ *http.Request) { refuse(w, c.status, c.code, c.text) })
			err := mailerAt(t, endpoint, ses.Config{}).Send(t.Context(), paid())
			wantKind(t, err, c.kind == final, c.kind == doubt)
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("Send: got %v, want %q", err, c.want)
			}
			if got := calls.Load(); got != 1 {
				t.Errorf("requests: got %d, want 1: SES does not know a repeat", got)
			}
		})
	}
}

func TestSend_NoAnswerIsDoubt(t *testing.T) {
	t.Parallel()
	for name, handle := range map[string]http.HandlerFunc{
		"connection lost": func(_ http.ResponseWriter, r *http.Request) {
			_, _ = io.Copy(io.Discard, r.Body)
			panic(http.ErrAbortHandler)
		},
		"not an answer": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			_, _ = w.Write([]byte("<html>said so"))
		},
		"no answer in time": func(_ http.ResponseWriter, r *http.Request) {
			_, _ = io.Copy(io.Discard, r.Body)
			<-r.Context().Done()
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			endpoint, calls := service(t, handle)
			began := time.Now()
			err := mailerAt(t, endpoint, ses.Config{Timeout: 500 * time.Millisecond}).Send(t.Context(), paid())
			wantKind(t, err, false, true)
			if took := time.Since(began); took > 20*time.Second {
				t.Errorf("Send: got an answer after %s, want it after a second or so", took)
			}
			if got := calls.Load(); got != 1 {
				t.Errorf("requests: got %d, want 1", got)
			}
			if name == "no answer in time" && !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("Send: got %v, want a time-out", err)
			}
		})
	}
}

func TestSend_NobodyThereIsNoDoubt(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	endpoint := "http://" + l.Addr().String()
	l.Close()
	wantKind(t, mailerAt(t, endpoint, ses.Config{}).Send(t.Context(), paid()), false, false)
}

// A mail that was taken must not be counted as not sent because its caller had no more
// time.
func TestSend_CallerThatLeavesAtTheEndGetsTheAnswer(t *testing.T) {
	t.Parallel()
	arrived, left := make(chan struct{}), make(chan struct{})
	endpoint, _ := service(t, func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		close(arrived)
		<-left
		taken(w)
	})
	ctx, leave := context.WithCancel(t.Context())
	answer := make(chan error, 1)
	m := mailerAt(t, endpoint, ses.Config{})
	go func() { answer <- m.Send(ctx, paid()) }()
	<-arrived
	leave()
	select {
	case err := <-answer:
		t.Errorf("Send: got %v when its caller left, want the wait to go on", err)
		close(left)
	case <-time.After(200 * time.Millisecond):
		close(left)
		if err := <-answer; err != nil {
			t.Errorf("Send: got %v, want nil", err)
		}
	}
}

func TestSend_CallerThatLeavesBeforeIsNotWaitedFor(t *testing.T) {
	t.Parallel()
	dialling := make(chan struct{})
	ctx, leave := context.WithCancel(t.Context())
	c := client(t, "http://127.0.0.1:1", &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		close(dialling)
		<-ctx.Done()
		return nil, ctx.Err()
	}})
	answer := make(chan error, 1)
	m := mailerOver(t, c, ses.Config{Timeout: time.Minute})
	go func() { answer <- m.Send(ctx, paid()) }()
	<-dialling
	leave()
	began := time.Now()
	err := <-answer
	if took := time.Since(began); took > 20*time.Second {
		t.Errorf("Send: came back %s after its caller left, want at once", took)
	}
	wantKind(t, err, false, false)
	if !errors.Is(err, context.Canceled) {
		t.Errorf("Send: got %v, want the end of the caller's context", err)
	}
}

func TestSend_RateMakesMailsWaitForTheirTurn(t *testing.T) {
	t.Parallel()
	endpoint, calls := service(t, func(w http.ResponseWriter, _ *http.Request) { taken(w) })
	m := mailerAt(t, endpoint, ses.Config{Rate: 0.001})
	if err := m.Send(t.Context(), paid()); err != nil {
		t.Fatalf("first mail: got %v, want nil", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	err := m.Send(ctx, paid()) // its turn is in a quarter of an hour
	wantKind(t, err, false, false)
	if err == nil || !strings.Contains(err.Error(), "wait for a turn") || calls.Load() != 1 {
		t.Errorf("second mail: got %v after %d requests, want no request", err, calls.Load())
	}
	unlimited := mailerAt(t, endpoint, ses.Config{})
	for range 20 {
		if err := unlimited.Send(ctx, paid()); err != nil {
			t.Fatalf("without a rate: got %v, want nil", err)
		}
	}
}

func TestSend_UnsendableAsksNobody(t *testing.T) {
	t.Parallel()
	endpoint, calls := service(t, func(w http.ResponseWriter, _ *http.Request) { taken(w) })
	m := mailerAt(t, endpoint, ses.Config{})
	for name, change := range map[string]func(*booking.Mail){
		"not paid":              func(m *booking.Mail) { m.Record.State = booking.StateHeld },
		"no recipient":          func(m *booking.Mail) { m.To = "" },
		"recipient beyond SES":  func(m *booking.Mail) { m.To = "জন@example.org" },
		"domain not in ASCII":   func(m *booking.Mail) { m.To = "a@exämple.org" },
		"attempt that is no id": func(m *booking.Mail) { m.Record.Attempt = "x" },
	} {
		mail := paid()
		change(&mail)
		if err := m.Send(t.Context(), mail); !errors.Is(err, booking.ErrUnsendable) {
			t.Errorf("%s: got %v, want ErrUnsendable", name, err)
		}
	}
	if got := calls.Load(); got != 0 {
		t.Errorf("requests: got %d, want none", got)
	}
}

func TestNew_TellsAllThatIsWrongAtOnce(t *testing.T) {
	t.Parallel()
	c := client(t, "http://127.0.0.1:1", &http.Transport{})
	_, err := ses.New(c, ses.Config{From: "bookings@exämple.org", Timeout: 111 * time.Second, Rate: math.NaN()}, now)
	for _, want := range []string{"Punycode", "time-out 1m51s", "rate NaN"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("New: got %v, want %q in it", err, want)
		}
	}
	if _, err := ses.New(c, ses.Config{From: "nobody"}, now); !errors.Is(err, mailer.ErrUnsendable) {
		t.Errorf("New: got %v, want ErrUnsendable", err)
	}
	for _, bad := range []ses.Config{{From: from, Timeout: -1}, {From: from, Rate: -1}} {
		if _, err := ses.New(c, bad, now); err == nil {
			t.Errorf("New with %s: got nil, want an error", fmt.Sprint(bad))
		}
	}
}
