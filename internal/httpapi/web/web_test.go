package web_test

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"html"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"holdfast/internal/httpapi/web"
)

// slugs are all that POST /book can answer, "closed" and "duplicate" by what
// else they say.
var slugs = []string{
	"invalid_request", "invalid_level", "invalid_code", "email_mismatch",
	"duplicate", "duplicate_payable", "duplicate_working", "duplicate_paid",
	"level_full", "sold_out", "not_open", "try_again", "payment_unavailable",
	"idempotency_mismatch", "body_too_large", "unsupported_media_type",
	"method_not_allowed", "not_found", "internal",
}

// states are all that GET /booking/ can answer, and the two in which there is
// no answer.
var states = []string{"held", "paying", "refused", "paid", "released", "refund_due", "unknown", ""}

const hostile = `"><script>alert('x')</script>`

func index(t *testing.T, d web.IndexData) string {
	t.Helper()
	var b strings.Builder
	if err := web.Index(&b, d); err != nil {
		t.Fatalf("Index: %v", err)
	}
	return b.String()
}

func result(t *testing.T, d web.ResultData) string {
	t.Helper()
	var b strings.Builder
	if err := web.Result(&b, d); err != nil {
		t.Fatalf("Result: %v", err)
	}
	return b.String()
}

func answer(t *testing.T, d web.AnswerData) string {
	t.Helper()
	var b strings.Builder
	if err := web.Answer(&b, d); err != nil {
		t.Fatalf("Answer: %v", err)
	}
	return b.String()
}

func open() web.IndexData {
	return web.IndexData{
		Fresh: true, Open: true, Left: 9,
		Levels: []web.Level{
			{ID: "N1", Name: "N1 Advanced", Fee: "1500.00 BDT", Left: 9},
			{ID: "N2", Name: "N2 Basic", Fee: "1000.00 BDT", Left: 0},
			{ID: "N3", Name: "N3 New", Fee: "900.00 BDT", Left: -1},
		},
	}
}

// everyPage renders each page with values that try to break out.
func everyPage(t *testing.T) map[string]string {
	t.Helper()
	pages := map[string]string{
		"index": index(t, web.IndexData{
			Fresh: true, Open: true, Left: 1,
			Levels: []web.Level{{ID: hostile, Name: hostile, Fee: hostile, Left: 1}},
		}),
		"stored index": index(t, web.IndexData{}),
		"answer": answer(t, web.AnswerData{
			Status: 409, Title: hostile, Message: hostile, RetryAfter: 3,
			PaymentURL: "https://pay.example.org/?x=" + hostile, BookingURL: "/result?booking=" + hostile,
		}),
	}
	for _, state := range states {
		pages["result "+state] = result(t, web.ResultData{
			Token: hostile, State: state, Level: hostile, SecondsLeft: 90, PaymentURL: "https://pay.example.org/?x=" + hostile,
		})
	}
	return pages
}

func TestPages_EscapeHostileValues(t *testing.T) {
	t.Parallel()
	for name, page := range everyPage(t) {
		if strings.Contains(page, "<script>alert") || strings.Contains(page, hostile) {
			t.Errorf("%s: got a value that was not escaped", name)
		}
	}
	for name, page := range map[string]string{
		"answer": answer(t, web.AnswerData{PaymentURL: "javascript:alert(1)", BookingURL: "javascript:alert(1)"}),
		"result": result(t, web.ResultData{State: "held", PaymentURL: "javascript:alert(1)"}),
	} {
		if strings.Contains(page, `href="javascript:`) {
			t.Errorf("%s: got a link that is a script", name)
		}
	}
}

func TestPages_AreSmallAndSelfContained(t *testing.T) {
	t.Parallel()
	// An address with a host, as a value of src, href, url() or in a script.
	outside := regexp.MustCompile(`(?:[a-z]+:)?//[A-Za-z0-9]`)
	for name, page := range everyPage(t) {
		if len(page) >= 30_000 {
			t.Errorf("%s: got %d bytes, want less than 30,000", name, len(page))
		}
		rest := strings.ReplaceAll(page, "https://pay.example.org/", "") // given by the test
		if got := outside.FindString(rest); got != "" {
			t.Errorf("%s: got an address outside, %q", name, got)
		}
		if strings.Contains(page, " style=") || regexp.MustCompile(` on[a-z]+=`).MatchString(page) {
			t.Errorf("%s: got an inline style or handler, which the policy forbids", name)
		}
		for _, want := range []string{`<html lang="en">`, `name="viewport" content="width=device-width, initial-scale=1"`, "prefers-color-scheme: dark"} {
			if !strings.Contains(page, want) {
				t.Errorf("%s: want %q in it", name, want)
			}
		}
	}
}

func TestCSP_NamesWhatThePagesHold(t *testing.T) {
	t.Parallel()
	inline := map[string]*regexp.Regexp{
		"script-src": regexp.MustCompile(`(?s)<script>(.*?)</script>`),
		"style-src":  regexp.MustCompile(`(?s)<style>(.*?)</style>`),
	}
	meta := regexp.MustCompile(`<meta http-equiv="Content-Security-Policy" content="([^"]*)">`)
	for name, page := range everyPage(t) {
		found := 0
		for directive, re := range inline {
			for _, m := range re.FindAllStringSubmatch(page, -1) {
				found++
				sum := sha256.Sum256([]byte(m[1]))
				want := directive + " 'sha256-" + base64.StdEncoding.EncodeToString(sum[:]) + "';"
				if !strings.Contains(web.CSP, want) {
					t.Errorf("%s: got policy %q, want %q in it", name, web.CSP, want)
				}
			}
		}
		if want := strings.Count(page, "<script>") + strings.Count(page, "<style>"); found != want || found == 0 {
			t.Errorf("%s: checked %d inline blocks, want %d", name, found, want)
		}
		m := meta.FindStringSubmatch(page)
		if m == nil || html.UnescapeString(m[1])+"; frame-ancestors 'none'" != web.CSP {
			t.Errorf("%s: got policy %q in the page, want the header's without frame-ancestors", name, m)
		}
	}
	if strings.Contains(web.CSP, "unsafe") {
		t.Errorf("policy: got %q, want nothing unsafe", web.CSP)
	}
}

// textsOf reads the words that a page gives to its script.
func textsOf(t *testing.T, page string) map[string]web.Text {
	t.Helper()
	m := regexp.MustCompile(`(?s)<script type="application/json" id="texts">(.*?)</script>`).FindStringSubmatch(page)
	if m == nil {
		t.Fatal("page has no texts for its script")
	}
	var got map[string]web.Text
	if err := json.Unmarshal([]byte(m[1]), &got); err != nil {
		t.Fatalf("texts: %v", err)
	}
	return got
}

func TestSay_EverySlugAndStateHasItsOwnWords(t *testing.T) {
	t.Parallel()
	inPage := textsOf(t, index(t, open()))
	if diff := cmp.Diff(inPage, textsOf(t, result(t, web.ResultData{}))); diff != "" {
		t.Errorf("texts of index and result differ:\n%s", diff)
	}
	known := map[string]bool{"checking": true}
	for _, key := range append(append([]string{}, slugs...), states...) {
		if key == "" {
			key = "checking"
		}
		known[key] = true
		got := web.Say(key)
		if got.Title == "" || got.Message == "" {
			t.Errorf("%s: got %+v, want a title and a message", key, got)
		}
		if key != "internal" && got == web.Say("internal") {
			t.Errorf("%s: got the words of internal, want its own", key)
		}
		if diff := cmp.Diff(got, inPage[key]); diff != "" {
			t.Errorf("%s: page and Say differ:\n%s", key, diff)
		}
	}
	for key := range inPage {
		if !known[key] {
			t.Errorf("%s: has words and is no slug or state", key)
		}
	}
	if got := web.Say("nonsense"); got != web.Say("internal") {
		t.Errorf("unknown slug: got %+v, want the words of internal", got)
	}
}

func TestIndex_WorksAsAPlainForm(t *testing.T) {
	t.Parallel()
	page := index(t, open())
	for _, want := range []string{
		`<form method="post" action="/book">`,
		`<label for="code">`, `id="code" name="code"`,
		`<label for="email">`, `id="email" name="email"`,
		`id="website" name="website" type="text" tabindex="-1" autocomplete="off"`,
		`role="status"`, "Booking is open.",
		`value="N1" required><span class="name">N1 Advanced</span> <span class="fee">1500.00 BDT</span> <span class="left">9 left</span>`,
		`value="N2" required disabled><span class="name">N2 Basic</span> <span class="fee">1000.00 BDT</span> <span class="left">full</span>`,
		`value="N3" required><span class="name">N3 New</span> <span class="fee">900.00 BDT</span> <span class="left"></span>`,
	} {
		if !strings.Contains(page, want) {
			t.Errorf("index: want %q in it", want)
		}
	}
}

func TestIndex_SaysWhereTheSaleStands(t *testing.T) {
	t.Parallel()
	full := open()
	for i := range full.Levels {
		full.Levels[i].Left = 0
	}
	none := open()
	none.Left = 0
	at := time.Date(2026, 12, 1, 10, 0, 0, 0, time.FixedZone("", 6*3600))
	for name, tt := range map[string]struct {
		in   web.IndexData
		want string
	}{
		"open":               {open(), "Booking is open."},
		"every level full":   {full, "Every seat is taken."},
		"no seat left":       {none, "Every seat is taken."},
		"closed":             {web.IndexData{Fresh: true, Left: 5}, "Booking is not open."},
		"scheduled":          {web.IndexData{Fresh: true, OpensAt: at}, `Booking opens on <time datetime="2026-12-01T04:00:00Z">1 December 2026, 04:00 UTC</time>.`},
		"stored, not looked": {web.IndexData{Open: true, Left: -1}, "<noscript><p>Without JavaScript this page cannot show how many seats are left."},
	} {
		state := regexp.MustCompile(`(?s)<p id="state".*?<form`).FindString(index(t, tt.in))
		if !strings.Contains(state, tt.want) {
			t.Errorf("%s: got %q, want %q in it", name, state, tt.want)
		}
	}
}

func TestResult_RendersEveryState(t *testing.T) {
	t.Parallel()
	const refresh = `<noscript><meta http-equiv="refresh" content="10"></noscript>`
	for _, tt := range []struct {
		state                     string
		refresh, time, pay, again bool
	}{
		{state: "held", refresh: true, time: true, pay: true},
		{state: "paying", refresh: true},
		{state: "refused", refresh: true, time: true, again: true},
		{state: "paid"},
		{state: "released", again: true},
		{state: "refund_due"},
		{state: "unknown", again: true},
		{state: "", refresh: true},
		{state: "nonsense", refresh: true},
	} {
		t.Run(tt.state, func(t *testing.T) {
			t.Parallel()
			d := web.ResultData{Token: "dG9rZW4", State: tt.state, Level: "N1", SecondsLeft: 425}
			if tt.pay {
				d.PaymentURL = "https://pay.example.org/1"
			}
			page := result(t, d)
			text := web.Say(tt.state)
			if tt.state == "" || tt.state == "nonsense" {
				text = web.Say("checking")
			}
			for _, want := range []string{
				`<h1 id="title">` + text.Title + "</h1>", `<p id="message">` + html.EscapeString(text.Message) + "</p>",
				"<title>" + text.Title + "</title>", `data-booking="dG9rZW4"`, `<strong id="level-name">N1</strong>`,
			} {
				if !strings.Contains(page, want) {
					t.Errorf("want %q in it", want)
				}
			}
			for what, c := range map[string]struct{ got, want bool }{
				"refreshes":    {strings.Contains(page, refresh), tt.refresh},
				"time":         {strings.Contains(page, "You have 7 minutes to pay."), tt.time},
				"payment link": {strings.Contains(page, `<a id="pay" class="button" href="https://pay.example.org/1">`), tt.pay},
				"way back":     {strings.Contains(page, `<p id="again"><a href="/">`), tt.again},
			} {
				if c.got != c.want {
					t.Errorf("%s: got %t, want %t", what, c.got, c.want)
				}
			}
		})
	}
}

func TestResult_StoredPageDoesNotReload(t *testing.T) {
	t.Parallel()
	page := result(t, web.ResultData{})
	if strings.Contains(page, `http-equiv="refresh"`) {
		t.Error("a page that knows no booking: got a refresh, want none")
	}
	if want := `data-booking="" data-state="checking"`; !strings.Contains(page, want) {
		t.Errorf("want %q in it", want)
	}
}

func TestAnswer_ShowsOnlyWhatThereIs(t *testing.T) {
	t.Parallel()
	full := answer(t, web.AnswerData{
		Status: 409, Title: "You already hold a seat", Message: "Finish the payment.", RetryAfter: 1,
		PaymentURL: "https://pay.example.org/1", BookingURL: "/result?booking=x",
	})
	bare := answer(t, web.AnswerData{Status: 400, Title: "Title", Message: "Message."})
	for _, part := range []string{"Try again in 1 second.", `href="https://pay.example.org/1"`, `href="/result?booking=x"`} {
		if !strings.Contains(full, part) {
			t.Errorf("full answer: want %q in it", part)
		}
	}
	for _, part := range []string{"Try again", "Continue to payment", "See your booking"} {
		if strings.Contains(bare, part) {
			t.Errorf("bare answer: got %q in it, want it absent", part)
		}
	}
}

func TestPages_TellTheWritersError(t *testing.T) {
	t.Parallel()
	gone := errors.New("client has left")
	for name, err := range map[string]error{
		"index":  web.Index(brokenWriter{gone}, open()),
		"result": web.Result(brokenWriter{gone}, web.ResultData{}),
		"answer": web.Answer(brokenWriter{gone}, web.AnswerData{}),
	} {
		if !errors.Is(err, gone) {
			t.Errorf("%s: got error %v, want %v", name, err, gone)
		}
	}
}

type brokenWriter struct{ err error }

func (w brokenWriter) Write([]byte) (int, error) { return 0, w.err }

// The script must run in the browsers people have: no syntax newer than async
// functions. And what it says must be among the words.
func TestScript_IsPlain(t *testing.T) {
	t.Parallel()
	m := regexp.MustCompile(`(?s)<script>(.*?)</script>`).FindStringSubmatch(index(t, open()))
	if m == nil {
		t.Fatal("index has no script")
	}
	for _, recent := range []string{`\?\.[A-Za-z(\[]`, `\?\?`, `catch \{`, `\.\.\.`, `\*\*`, `=>`, "`"} {
		if got := regexp.MustCompile(recent).FindString(m[1]); got != "" {
			t.Errorf("script: got %q, want none of it", got)
		}
	}
	for _, key := range regexp.MustCompile(`texts\.([a-z_]+)|slug = '([a-z_]+)'|state: '([a-z_]+)'`).FindAllStringSubmatch(m[1], -1) {
		if name := key[1] + key[2] + key[3]; name != "internal" && web.Say(name) == web.Say("internal") {
			t.Errorf("script: says %q, which has no words", name)
		}
	}
	if strings.Contains(m[1], "innerHTML") || strings.Contains(m[1], "eval(") {
		t.Error("script: got innerHTML or eval, want text set as text")
	}
}
