package mailer_test

import (
	"bytes"
	"encoding/xml"
	"errors"
	"io"
	"mime"
	"mime/multipart"
	"mime/quotedprintable"
	"net/mail"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

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

const (
	plain = "text/plain; charset=utf-8"
	html  = "text/html; charset=utf-8"
)

func TestMessage_SaysTheSameInBothLanguagesAndBothParts(t *testing.T) {
	t.Parallel()
	got := parse(t, mustMessage(t, paid()))
	if len(got.bodies) != 2 {
		t.Fatalf("parts: got %d, want 2", len(got.bodies))
	}
	facts := []string{
		"N1 Advanced", "1500.00 BDT", "AB-100001", "demo-2026",
		attempt, "CK250NROQ5", "https://seats.example.org/result?booking=dG9rZW4",
	}
	english := append([]string{"Your seat is confirmed", "1 December 2026, 04:05 UTC", "Transaction"}, facts...)
	bangla := append([]string{"আপনার আসন নিশ্চিত হয়েছে", "১ ডিসেম্বর ২০২৬, ০৪:০৫ UTC", "লেনদেন"}, facts...)
	for kind, border := range map[string]string{plain: "\r\n" + strings.Repeat("-", 72) + "\r\n", html: `<div lang="bn">`} {
		first, second, both := strings.Cut(got.bodies[kind], border)
		if !both {
			t.Errorf("%s: got %q, want %q between two languages", kind, got.bodies[kind], border)
		}
		for language, want := range map[string][]string{"English": english, "Bangla": bangla} {
			half := first
			if language == "Bangla" {
				half = second
			}
			for _, want := range want {
				if !strings.Contains(half, want) {
					t.Errorf("%s, %s: got %q, want %q in it", kind, language, half, want)
				}
			}
		}
		if strings.Contains(second, "Your seat") || strings.Contains(second, "December") {
			t.Errorf("%s: got %q, want no English in the second half", kind, second)
		}
	}
}

// Every month has its own Bangla name, in the order of the year.
func TestMessage_NamesEveryMonthInBangla(t *testing.T) {
	t.Parallel()
	for month, want := range []string{
		"জানুয়ারি", "ফেব্রুয়ারি", "মার্চ", "এপ্রিল", "মে", "জুন",
		"জুলাই", "আগস্ট", "সেপ্টেম্বর", "অক্টোবর", "নভেম্বর", "ডিসেম্বর",
	} {
		m := paid()
		m.Record.PaidAt = time.Date(2027, time.Month(month+1), 28, 23, 59, 0, 0, time.UTC)
		if body := parse(t, mustMessage(t, m)).bodies[plain]; !strings.Contains(body, "২৮ "+want+" ২০২৭, ২৩:৫৯ UTC") {
			t.Errorf("month %d: got %q, want %s in it", month+1, body, want)
		}
	}
}

// Not even a mistake in the text may go out as one that was read: whoever has read
// it says so in words.go, and here.
func TestMessage_BanglaIsMarkedUnreviewed(t *testing.T) {
	t.Parallel()
	if mailer.BanglaReview != "unreviewed" {
		t.Errorf("review of the Bangla text: got %q, want unreviewed until a speaker has read it", mailer.BanglaReview)
	}
}

func TestMessage_TextFitsANarrowWindow(t *testing.T) {
	t.Parallel()
	for line := range strings.SplitSeq(parse(t, mustMessage(t, paid())).bodies[plain], "\r\n") {
		if n := utf8.RuneCountInString(line); n > 72 {
			t.Errorf("text part: got a line of %d characters, want at most 72: %q", n, line)
		}
		if strings.TrimRight(line, " ") != line {
			t.Errorf("text part: got %q, want no spaces at its end", line)
		}
	}
}

// element is a piece of the HTML part: an element's name and its attributes.
type element struct {
	name  string
	attrs map[string]string
	text  string
}

// elements reads the HTML part as strictly as XML, which it is, too: mail programs
// guess differently about what is left open.
func elements(t *testing.T, body string) []element {
	t.Helper()
	d := xml.NewDecoder(strings.NewReader(body))
	var all []element
	open := false // the last element, with nothing in it yet but text
	for {
		token, err := d.Token()
		if errors.Is(err, io.EOF) {
			return all
		}
		if err != nil {
			t.Fatalf("HTML part is not well formed: %v in %q", err, body)
		}
		switch token := token.(type) {
		case xml.StartElement:
			e := element{name: token.Name.Local, attrs: map[string]string{}}
			for _, a := range token.Attr {
				e.attrs[a.Name.Local] = a.Value
			}
			all, open = append(all, e), true
		case xml.EndElement:
			open = false
		case xml.CharData:
			if open {
				all[len(all)-1].text += string(token)
			}
		}
	}
}

func TestMessage_HTMLIsWellFormedAndLoadsNothing(t *testing.T) {
	t.Parallel()
	m := paid()
	m.LevelName, m.Sale = `<b>N1 & "N2"`, `</table></div>'`
	all := elements(t, parse(t, mustMessage(t, m)).bodies[html])
	count := map[string]int{}
	var titles, languages []string
	for _, e := range all {
		count[e.name]++
		switch {
		case e.name == "title":
			titles = append(titles, e.text)
		case e.attrs["lang"] != "":
			languages = append(languages, e.name+" "+e.attrs["lang"])
		case e.name == "a" && e.attrs["href"] != m.BookingURL:
			t.Errorf("link: got %q, want %q", e.attrs["href"], m.BookingURL)
		}
		for name, value := range e.attrs {
			if name == "src" || name == "background" || strings.Contains(value, "url(") || strings.Contains(value, "color:") {
				t.Errorf("<%s>: got %s=%q, want nothing remote and no colour that a dark scheme breaks", e.name, name, value)
			}
		}
	}
	if diff := cmp.Diff([]string{"Your seat is confirmed / আপনার আসন নিশ্চিত হয়েছে"}, titles); diff != "" {
		t.Errorf("title (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{"html en", "div en", "div bn"}, languages); diff != "" {
		t.Errorf("languages (-want +got):\n%s", diff)
	}
	want := map[string]int{
		"html": 1, "head": 1, "meta": 3, "title": 1, "body": 1, "div": 2, "h1": 2, "p": 4, "a": 2,
		"table": 2, "tr": 14, "th": 14, "td": 14, "hr": 1,
	}
	if diff := cmp.Diff(want, count); diff != "" {
		t.Errorf("elements (-want +got):\n%s", diff)
	}
}

func TestMessage_Headers(t *testing.T) {
	t.Parallel()
	got := map[string]string{}
	header := parse(t, mustMessage(t, paid())).header
	for k := range header {
		got[k] = header.Get(k)
	}
	subject, err := new(mime.WordDecoder).DecodeHeader(got["Subject"])
	if err != nil {
		t.Errorf("subject: %v", err)
	}
	got["Subject"] = subject
	want := map[string]string{
		"From":             `"Bookings" <bookings@example.org>`,
		"To":               "<candidate100001@example.org>",
		"Subject":          "Your seat is confirmed / আপনার আসন নিশ্চিত হয়েছে: N1 Advanced",
		"Date":             "Tue, 01 Dec 2026 04:06:00 +0000",
		"Message-Id":       "<" + attempt + "@example.org>",
		"Auto-Submitted":   "auto-generated",
		"Content-Language": "en, bn",
		"Mime-Version":     "1.0",
		"Content-Type":     `multipart/alternative; boundary="=_` + attempt + `"`,
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
		if len(line) > 77 {
			t.Errorf("line of %d bytes, want at most 77: %q", len(line), line)
		}
		if strings.ContainsFunc(line, func(r rune) bool { return r > 126 || r < 32 }) {
			t.Errorf("line is not plain ASCII: %q", line)
		}
	}
	got := parse(t, message)
	subject, err := new(mime.WordDecoder).DecodeHeader(got.header.Get("Subject"))
	if err != nil || !strings.HasSuffix(subject, ": "+m.LevelName) {
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
	subject, err := new(mime.WordDecoder).DecodeHeader(got.header.Get("Subject"))
	if err != nil || !strings.HasSuffix(subject, ": N1") {
		t.Errorf("subject: got %q (%v), want the level's id in it", subject, err)
	}
}

func TestMessage_EscapesHTML(t *testing.T) {
	t.Parallel()
	m := paid()
	m.LevelName = `<script>alert("x")</script>`
	m.BookingURL = `https://seats.example.org/result?booking="><script>`
	got := parse(t, mustMessage(t, m))
	if body := got.bodies[html]; strings.Contains(body, "<script") {
		t.Errorf("HTML part: got %q, want no script element", body)
	}
	if text := got.bodies[plain]; !strings.Contains(text, m.LevelName) {
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
		if len(got.header) != 9 || len(got.bodies) != 2 {
			t.Errorf("got %d headers and %d parts, want 9 and 2", len(got.header), len(got.bodies))
		}
		want, _ := booking.NormalizeEmail(to)
		if list, err := got.header.AddressList("To"); err != nil || len(list) != 1 || list[0].Address != want {
			t.Errorf("recipients: got %v (%v), want %q alone", list, err, want)
		}
	})
}
