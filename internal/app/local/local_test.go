package local_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"mime/multipart"
	"net"
	"net/http"
	"net/mail"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"go.uber.org/goleak"

	"holdfast/internal/app/local"
	"holdfast/internal/testenv"
)

func TestMain(m *testing.M) {
	testenv.BeProgram(testenv.Programs{"local": local.Run})
	goleak.VerifyTestMain(m)
}

// onEach runs the test with a primary and a replica of its own, and without a
// redis-server on the PATH.
func onEach(t *testing.T, fn func(t *testing.T, env map[string]string)) {
	t.Run("OwnPair", func(t *testing.T) {
		t.Parallel()
		testenv.NeedServer(t)
		fn(t, nil)
	})
	t.Run("InProcessRedis", func(t *testing.T) {
		t.Parallel()
		fn(t, map[string]string{"PATH": t.TempDir()})
	})
}

// stack is a running local profile.
type stack struct {
	*testenv.Program
	base string
	data string
}

func start(t *testing.T, data, addr string, env map[string]string, args ...string) *stack {
	t.Helper()
	p := testenv.StartProgram(t, "local", append([]string{"-data", data, "-addr", addr}, args...), env)
	lines := p.Lines(t, 4)
	if lines[0] != "http://"+addr+"/" {
		t.Fatalf("first line is %q, want the page's address", lines[0])
	}
	s := &stack{Program: p, base: "http://" + addr, data: data}
	testenv.Eventually(t, func() error {
		if status, _, _ := s.get(t, s.base+"/health"); status != http.StatusOK {
			return fmt.Errorf("health answers %d", status)
		}
		return nil
	})
	return s
}

func do(t *testing.T, r *http.Request) (int, http.Header, []byte) {
	t.Helper()
	hc := &http.Client{
		Transport:     &http.Transport{DisableKeepAlives: true},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	resp, err := hc.Do(r)
	if err != nil {
		return 0, nil, []byte(err.Error())
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, resp.Header, body
}

func (s *stack) get(t *testing.T, target string) (int, http.Header, []byte) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, target, nil)
	if err != nil {
		t.Fatal(err)
	}
	return do(t, r)
}

type answer struct {
	Error      string `json:"error"`
	PaymentURL string `json:"payment_url"`
	BookingURL string `json:"booking_url"`
	Paid       bool   `json:"paid"`
	State      string `json:"state"`
	Level      string `json:"level"`
}

func decode(t *testing.T, body []byte) answer {
	t.Helper()
	var a answer
	if err := json.Unmarshal(body, &a); err != nil {
		t.Fatalf("%s: %v", body, err)
	}
	return a
}

func (s *stack) book(t *testing.T, code, email, level string) (int, answer) {
	t.Helper()
	body := fmt.Sprintf(`{"code":%q,"email":%q,"level":%q}`, code, email, level)
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, s.base+"/book", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Content-Type", "application/json")
	status, _, got := do(t, r)
	return status, decode(t, got)
}

// pay presses the wallet's button and follows the browser home.
func (s *stack) pay(t *testing.T, paymentURL string) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, paymentURL, strings.NewReader(url.Values{"outcome": {"success"}}.Encode()))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	status, header, body := do(t, r)
	if status != http.StatusSeeOther {
		t.Fatalf("pay: %d %s", status, body)
	}
	status, header, body = s.get(t, header.Get("Location"))
	if status != http.StatusSeeOther || !strings.HasPrefix(header.Get("Location"), s.base+"/result?booking=") {
		t.Fatalf("callback: %d to %q %s", status, header.Get("Location"), body)
	}
}

func (s *stack) state(t *testing.T, bookingURL string) string {
	t.Helper()
	status, _, body := s.get(t, bookingURL)
	if status != http.StatusOK {
		t.Fatalf("%s: %d %s", bookingURL, status, body)
	}
	return decode(t, body).State
}

// wantLeft waits for status.json, which is throttled, to say how many N1 seats
// are left.
func (s *stack) wantLeft(t *testing.T, taken int) {
	t.Helper()
	testenv.Eventually(t, func() error {
		_, _, body := s.get(t, s.base+"/status.json")
		var doc struct {
			Open   bool
			Total  struct{ Cap, Left int }
			Levels []struct {
				ID        string
				Cap, Left int
			}
		}
		if err := json.Unmarshal(body, &doc); err != nil {
			return fmt.Errorf("%s: %w", body, err)
		}
		if l := doc.Levels[0]; l.ID != "N1" || l.Cap-l.Left != taken || doc.Total.Cap-doc.Total.Left != taken || !doc.Open {
			return fmt.Errorf("status.json is %s, want %d seats of N1 gone", body, taken)
		}
		return nil
	})
}

// wantMails waits for that many mails in the outbox and reads one as a mail
// program does.
func (s *stack) wantMails(t *testing.T, n int, wants ...string) {
	t.Helper()
	var files []string
	testenv.Eventually(t, func() (err error) {
		files, err = filepath.Glob(filepath.Join(s.data, "outbox", "*.eml"))
		if err == nil && len(files) != n {
			err = fmt.Errorf("%d mails in the outbox, want %d", len(files), n)
		}
		return err
	})
	raw, err := os.ReadFile(files[0])
	if err != nil {
		t.Fatal(err)
	}
	m, err := mail.ReadMessage(bytes.NewReader(raw))
	if err != nil {
		t.Fatalf("the mail does not parse: %v", err)
	}
	media, params, err := mime.ParseMediaType(m.Header.Get("Content-Type"))
	if err != nil || media != "multipart/alternative" {
		t.Fatalf("content type %q: %v", media, err)
	}
	part, err := multipart.NewReader(m.Body, params["boundary"]).NextPart()
	if err != nil {
		t.Fatal(err)
	}
	text, err := io.ReadAll(part)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range wants {
		if !strings.Contains(string(text), want) {
			t.Errorf("the mail does not say %q:\n%s", want, text)
		}
	}
}

// The walk of the README, and everything still so after kill -9 on the same
// folder.
func TestLocal_BookedPaidKilledAndStillThere(t *testing.T) {
	onEach(t, func(t *testing.T, env map[string]string) {
		data, addr := t.TempDir(), testenv.FreeAddr(t)
		s := start(t, data, addr, env)
		if warned := strings.Contains(s.Output(), "no replica acknowledges"); warned != (env != nil) {
			t.Errorf("warned of missing acknowledgement: %v", warned)
		}
		status, paid := s.book(t, "AB-100001", "candidate100001@example.org", "N1")
		if status != http.StatusAccepted {
			t.Fatalf("book: %d %+v", status, paid)
		}
		s.pay(t, paid.PaymentURL)
		if got := s.state(t, paid.BookingURL); got != "paid" {
			t.Errorf("booking is %q, want paid", got)
		}
		status, held := s.book(t, "AB-100002", "candidate100002@example.org", "N1")
		if status != http.StatusAccepted {
			t.Fatalf("book: %d %+v", status, held)
		}
		check := func(s *stack) {
			t.Helper()
			if got := s.state(t, paid.BookingURL); got != "paid" {
				t.Errorf("booking is %q, want paid", got)
			}
			if status, again := s.book(t, "AB-100001", "candidate100001@example.org", "N1"); status != http.StatusConflict || again.Error != "duplicate" || !again.Paid {
				t.Errorf("paid candidate again: %d %+v, want 409 duplicate, paid", status, again)
			}
			if status, again := s.book(t, "AB-100002", "candidate100002@example.org", "N2"); status != http.StatusConflict || again.PaymentURL != held.PaymentURL {
				t.Errorf("held candidate again: %d %+v, want 409 with the link %s", status, again, held.PaymentURL)
			}
			s.wantLeft(t, 2)
			s.wantMails(t, 1, "N1 Advanced", "1500.00 BDT", "Booking:")
		}
		check(s)
		s.Kill()

		s = start(t, data, addr, env)
		check(s)
		if got := s.state(t, held.BookingURL); got != "held" {
			t.Errorf("held booking is %q after the restart, want held", got)
		}
		s.pay(t, held.PaymentURL)
		if got := s.state(t, held.BookingURL); got != "paid" {
			t.Errorf("held booking is %q after paying, want paid", got)
		}
		s.wantLeft(t, 2)
		s.wantMails(t, 2)

		second := testenv.StartProgram(t, "local", []string{"-data", data, "-addr", testenv.FreeAddr(t)}, env)
		if code := second.Wait(t); code != 1 || !strings.Contains(second.Output(), "runs on this data folder already") {
			t.Errorf("second start on the folder: exit %d, said %q", code, second.Output())
		}
		if code := s.Stop(t, syscall.SIGINT); code != 0 {
			t.Errorf("exit code after SIGINT is %d, want 0", code)
		}

		s = start(t, data, addr, env, "-closed")
		if status, a := s.book(t, "AB-100003", "candidate100003@example.org", "N1"); status != http.StatusServiceUnavailable || a.Error != "closed" {
			t.Errorf("started with -closed: %d %+v, want 503 closed", status, a)
		}
		if got := s.state(t, held.BookingURL); got != "paid" {
			t.Errorf("booking is %q after a third start, want paid", got)
		}
	})
}

// The gateway grants two tokens an hour; a developer starts more often.
func TestLocal_ManyStartsNeedOneGrant(t *testing.T) {
	t.Parallel()
	env := map[string]string{"PATH": t.TempDir()}
	data, addr := t.TempDir(), testenv.FreeAddr(t)
	for i := range 4 {
		s := start(t, data, addr, env)
		code := fmt.Sprintf("AB-10010%d", i)
		if status, a := s.book(t, code, "candidate"+code[3:]+"@example.org", "N2"); status != http.StatusAccepted {
			t.Fatalf("start %d: book: %d %+v", i+1, status, a)
		}
		s.Kill()
	}
}

// When one of its servers ends, the seats are gone: the run says so and ends, and
// the next start has them again.
func TestLocal_EndsWithItsRedis(t *testing.T) {
	t.Parallel()
	testenv.NeedServer(t)
	data, addr := t.TempDir(), testenv.FreeAddr(t)
	s := start(t, data, addr, nil)
	status, held := s.book(t, "AB-100001", "candidate100001@example.org", "N1")
	if status != http.StatusAccepted {
		t.Fatalf("book: %d %+v", status, held)
	}
	s.KillChild(t, "redis-server")
	if code := s.Wait(t); code != 1 || !strings.Contains(s.Output(), "a redis-server of this run has ended") {
		t.Errorf("exit code %d, said %q", code, s.Output())
	}
	s = start(t, data, addr, nil)
	if got := s.state(t, held.BookingURL); got != "held" {
		t.Errorf("booking is %q after the next start, want held", got)
	}
}

func TestLocal_RefusesWhatItCannotRun(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	sale := write("sale.yaml", "name: x\nunknown: 1\n")
	candidates := write("candidates.csv", "code,email\nAB-1001,not an address\n")
	for name, c := range map[string]struct {
		args []string
		want string
	}{
		"UnknownFlag":     {[]string{"-nonsense"}, "nonsense"},
		"Argument":        {[]string{"extra"}, "takes flags only"},
		"NotLoopback":     {[]string{"-addr", "0.0.0.0:8080"}, "loopback only"},
		"NoPort":          {[]string{"-addr", "127.0.0.1"}, "host:port"},
		"NoSaleFile":      {[]string{"-sale", filepath.Join(dir, "none.yaml")}, "sale file"},
		"WrongSaleFile":   {[]string{"-sale", sale}, "unknown"},
		"WrongCandidates": {[]string{"-candidates", candidates}, "line 2"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var stderr bytes.Buffer
			args := append([]string{"-data", t.TempDir(), "-addr", "127.0.0.1:0"}, c.args...)
			err := local.Run(t.Context(), args, io.Discard, &stderr)
			if err == nil || errors.Is(err, context.Canceled) || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want an error that says %q", err, c.want)
			}
		})
	}
}

// Another program may have the admin port meanwhile, to which nothing leads; the gateway's
// stays, since payment links lead there. Both are chosen where no system hands out ports.
func TestLocal_KeepsTheGatewaysPortAndGivesWayWithItsOwn(t *testing.T) {
	t.Parallel()
	env := map[string]string{"PATH": t.TempDir()}
	data, addr := t.TempDir(), testenv.FreeAddr(t)
	ports := func() (p struct{ Gateway, Admin string }) {
		t.Helper()
		text, err := os.ReadFile(filepath.Join(data, "ports.json"))
		if err == nil {
			err = json.Unmarshal(text, &p)
		}
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	s := start(t, data, addr, env)
	first := ports()
	s.Kill()
	for _, at := range []string{first.Gateway, first.Admin} {
		_, port, err := net.SplitHostPort(at)
		if n, _ := strconv.Atoi(port); err != nil || n < 10000 || n > 32767 {
			t.Errorf("port chosen: got %s, %v, want one of 10000 to 32767", at, err)
		}
	}
	other, err := net.Listen("tcp", first.Admin)
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	s = start(t, data, addr, env)
	if got := ports(); got.Gateway != first.Gateway || got.Admin == first.Admin {
		t.Errorf("ports of the second start: got %+v, want the gateway of %+v and another admin", got, first)
	}
	s.Kill()
}
