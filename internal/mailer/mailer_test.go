package mailer_test

import (
	"bytes"
	"errors"
	"io"
	"mime"
	"mime/multipart"
	"mime/quotedprintable"
	"net/mail"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"holdfast/internal/booking"
	"holdfast/internal/mailer"
)

const (
	from    = "Bookings <bookings@example.org>"
	attempt = "1hq8xk00aaaa-01kb8z5v00aaaaaaaaaaaaaaaa"
)

var date = time.Date(2026, 12, 1, 4, 6, 0, 0, time.UTC)

func paid() booking.Mail {
	return booking.Mail{
		To:         "candidate100001@example.org",
		Sale:       "demo-2026",
		LevelName:  "N1 Advanced",
		BookingURL: "https://seats.example.org/result?booking=dG9rZW4",
		Record: booking.Record{
			Code: "AB-100001", Attempt: attempt, State: booking.StatePaid, Level: "N1",
			Amount: 150000, Currency: "BDT", Transaction: "CK250NROQ5",
			PaidAt: time.Date(2026, 12, 1, 10, 5, 0, 0, time.FixedZone("", 6*3600)),
		},
	}
}

// parsed is a message as a mail program sees it.
type parsed struct {
	header mail.Header
	bodies map[string]string // by content type
}

func parse(t *testing.T, message []byte) parsed {
	t.Helper()
	m, err := mail.ReadMessage(bytes.NewReader(message))
	if err != nil {
		t.Fatalf("message cannot be read: %v", err)
	}
	kind, params, err := mime.ParseMediaType(m.Header.Get("Content-Type"))
	if err != nil || kind != "multipart/alternative" {
		t.Fatalf("content type: got %q (%v), want multipart/alternative", kind, err)
	}
	got := parsed{header: m.Header, bodies: map[string]string{}}
	parts := multipart.NewReader(m.Body, params["boundary"])
	for {
		// A raw part: NextPart would undo the encoding and hide its absence.
		part, err := parts.NextRawPart()
		if errors.Is(err, io.EOF) {
			return got
		}
		if err != nil {
			t.Fatalf("part: %v", err)
		}
		if enc := part.Header.Get("Content-Transfer-Encoding"); enc != "quoted-printable" {
			t.Errorf("part's encoding: got %q, want quoted-printable", enc)
		}
		body, err := io.ReadAll(quotedprintable.NewReader(part))
		if err != nil {
			t.Fatalf("part: %v", err)
		}
		got.bodies[part.Header.Get("Content-Type")] = string(body)
	}
}

func mustMessage(t *testing.T, m booking.Mail) []byte {
	t.Helper()
	message, err := mailer.Message(m, from, date)
	if err != nil {
		t.Fatalf("Message: got error %v, want none", err)
	}
	return message
}

func TestMessage_NamesLevelAmountAndBookingInBothParts(t *testing.T) {
	t.Parallel()
	got := parse(t, mustMessage(t, paid()))
	if len(got.bodies) != 2 {
		t.Fatalf("parts: got %d, want 2", len(got.bodies))
	}
	for _, kind := range []string{"text/plain; charset=utf-8", "text/html; charset=utf-8"} {
		for _, want := range []string{
			"N1 Advanced", "1500.00 BDT", "1 December 2026, 04:05 UTC", "AB-100001", "demo-2026",
			attempt, "CK250NROQ5", "https://seats.example.org/result?booking=dG9rZW4",
		} {
			if !strings.Contains(got.bodies[kind], want) {
				t.Errorf("%s: got %q, want %q in it", kind, got.bodies[kind], want)
			}
		}
	}
}

func TestMessage_Headers(t *testing.T) {
	t.Parallel()
	got := map[string]string{}
	header := parse(t, mustMessage(t, paid())).header
	for k := range header {
		got[k] = header.Get(k)
	}
	want := map[string]string{
		"From":           `"Bookings" <bookings@example.org>`,
		"To":             "<candidate100001@example.org>",
		"Subject":        "Your seat is confirmed: N1 Advanced",
		"Date":           "Tue, 01 Dec 2026 04:06:00 +0000",
		"Message-Id":     "<" + attempt + "@example.org>",
		"Auto-Submitted": "auto-generated",
		"Mime-Version":   "1.0",
		"Content-Type":   `multipart/alternative; boundary="=_` + attempt + `"`,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("headers (-want +got):\n%s", diff)
	}
}

func TestMessage_RepeatIsRecognisable(t *testing.T) {
	t.Parallel()
	first := mustMessage(t, paid())
	if again := mustMessage(t, paid()); !bytes.Equal(first, again) {
		t.Errorf("same mail and date: got other bytes, want the same")
	}
	later, err := mailer.Message(paid(), from, date.Add(time.Hour))
	if err != nil {
		t.Fatal(err)
	}
	got, want := parse(t, later).header.Get("Message-ID"), parse(t, first).header.Get("Message-ID")
	if got != want || want == "" {
		t.Errorf("Message-ID of a later repeat: got %q, want %q", got, want)
	}
}

func TestMessage_CarriesOtherScripts(t *testing.T) {
	t.Parallel()
	m := paid()
	m.LevelName = strings.Repeat("উচ্চ ", 8) + "র\u200d্যাঙ্ক"
	message, err := mailer.Message(m, "Büro <bookings@example.org>", date)
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.SplitSeq(string(message), "\r\n") {
		if len(line) > 78 {
			t.Errorf("line of %d bytes, want at most 78: %q", len(line), line)
		}
		if strings.ContainsFunc(line, func(r rune) bool { return r > 126 || r < 32 }) {
			t.Errorf("line is not plain ASCII: %q", line)
		}
	}
	got := parse(t, message)
	subject, err := new(mime.WordDecoder).DecodeHeader(got.header.Get("Subject"))
	if err != nil || subject != "Your seat is confirmed: "+m.LevelName {
		t.Errorf("subject: got %q (%v), want the level's name in it", subject, err)
	}
	if addr, err := got.header.AddressList("From"); err != nil || addr[0].Name != "Büro" {
		t.Errorf("sender: got %v (%v), want the name Büro", addr, err)
	}
	for kind, body := range got.bodies {
		if !strings.Contains(body, m.LevelName) {
			t.Errorf("%s: got %q, want the level's name in it", kind, body)
		}
	}
}

func TestMessage_LevelWithoutANameIsCalledByItsID(t *testing.T) {
	t.Parallel()
	m := paid()
	m.LevelName = ""
	got := parse(t, mustMessage(t, m))
	if subject := got.header.Get("Subject"); subject != "Your seat is confirmed: N1" {
		t.Errorf("subject: got %q, want the level's id in it", subject)
	}
}

func TestMessage_EscapesHTML(t *testing.T) {
	t.Parallel()
	m := paid()
	m.LevelName = `<script>alert("x")</script>`
	m.BookingURL = `https://seats.example.org/result?booking="><script>`
	got := parse(t, mustMessage(t, m))
	if html := got.bodies["text/html; charset=utf-8"]; strings.Contains(html, "<script") {
		t.Errorf("HTML part: got %q, want no script element", html)
	}
	if text := got.bodies["text/plain; charset=utf-8"]; !strings.Contains(text, m.LevelName) {
		t.Errorf("text part: got %q, want the name as it is", text)
	}
}

func TestMessage_RefusesWhatCannotBeSent(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(*booking.Mail){
		"not paid":                   func(m *booking.Mail) { m.Record.State = booking.StateHeld },
		"released":                   func(m *booking.Mail) { m.Record.State = booking.StateReleased },
		"paid at no time":            func(m *booking.Mail) { m.Record.PaidAt = time.Time{} },
		"no recipient":               func(m *booking.Mail) { m.To = "" },
		"two recipients":             func(m *booking.Mail) { m.To = "a@example.org, b@example.org" },
		"line break in recipient":    func(m *booking.Mail) { m.To = "a@example.org\r\nBcc: b@example.org" },
		"recipient no header holds":  func(m *booking.Mail) { m.To = "a@exa[mple.org" },
		"line break in level":        func(m *booking.Mail) { m.LevelName = "N1\r\nBcc: b@example.org" },
		"newline in level":           func(m *booking.Mail) { m.LevelName = "N1\nBcc: b@example.org" },
		"line separator in level":    func(m *booking.Mail) { m.LevelName = "N1\u2028N2" },
		"right-to-left override":     func(m *booking.Mail) { m.LevelName = "N1 \u202eN2" },
		"broken UTF-8 in level":      func(m *booking.Mail) { m.LevelName = "N1\xff" },
		"no level":                   func(m *booking.Mail) { m.LevelName, m.Record.Level = "", "" },
		"endless level":              func(m *booking.Mail) { m.LevelName = strings.Repeat("x", 401) },
		"line break in sale":         func(m *booking.Mail) { m.Sale = "demo\r\n" },
		"line break in transaction":  func(m *booking.Mail) { m.Record.Transaction = "CK\n" },
		"attempt that is not one":    func(m *booking.Mail) { m.Record.Attempt = "../../etc/passwd" },
		"no amount":                  func(m *booking.Mail) { m.Record.Amount = 0 },
		"no currency":                func(m *booking.Mail) { m.Record.Currency = "" },
		"booking URL is a script":    func(m *booking.Mail) { m.BookingURL = "javascript:alert(1)" },
		"booking URL is not one":     func(m *booking.Mail) { m.BookingURL = "/result" },
		"line break in booking URL":  func(m *booking.Mail) { m.BookingURL = "https://example.org/\r\nx" },
		"booking URL without a host": func(m *booking.Mail) { m.BookingURL = "https:///result" },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := paid()
			change(&m)
			got, err := mailer.Message(m, from, date)
			if !errors.Is(err, mailer.ErrUnsendable) || got != nil {
				t.Errorf("got %q and error %v, want ErrUnsendable", got, err)
			}
		})
	}
}

func TestMessage_RefusesASenderThatBreaksOut(t *testing.T) {
	t.Parallel()
	for _, from := range []string{
		"", "bookings", "a@example.org, b@example.org",
		"a@example.org\r\nBcc: b@example.org", "\"A\r\nBcc: x\" <a@example.org>",
		"=?utf-8?q?A=0D=0ABcc:_x?= <a@example.org>",
	} {
		if got, err := mailer.Message(paid(), from, date); !errors.Is(err, mailer.ErrUnsendable) {
			t.Errorf("from %q: got %q and error %v, want ErrUnsendable", from, got, err)
		}
	}
}

func FuzzMessage(f *testing.F) {
	f.Add("a@example.org", "N1 Advanced", "https://example.org/?booking=x")
	f.Add("ü@exämple.org", "উচ্চ\r\nBcc: x", "https://example.org/\n")
	f.Fuzz(func(t *testing.T, to, level, url string) {
		m := paid()
		m.To, m.LevelName, m.BookingURL = to, level, url
		message, err := mailer.Message(m, from, date)
		if err != nil {
			return
		}
		got := parse(t, message)
		if len(got.header) != 8 || len(got.bodies) != 2 {
			t.Errorf("got %d headers and %d parts, want 8 and 2", len(got.header), len(got.bodies))
		}
		want, _ := booking.NormalizeEmail(to)
		if list, err := got.header.AddressList("To"); err != nil || len(list) != 1 || list[0].Address != want {
			t.Errorf("recipients: got %v (%v), want %q alone", list, err, want)
		}
	})
}
