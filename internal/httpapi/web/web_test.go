package web_test

import (
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"html"
	"io"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"holdfast/examples"
	"holdfast/internal/booking"
	"holdfast/internal/httpapi/web"
	"holdfast/internal/salefile"
)

const hostile = `"><script>alert('x')</script>{{.}}<!--`

func demo(t *testing.T) booking.Sale {
	t.Helper()
	sale, err := salefile.Sale(bytes.NewReader(examples.Sale))
	if err != nil {
		t.Fatal(err)
	}
	return sale
}

func build(t *testing.T, sale booking.Sale) *web.Site {
	t.Helper()
	site, err := web.Build(sale)
	if err != nil {
		t.Fatalf("Build: %v", err)
	}
	return site
}

func answer(t *testing.T, l web.Language, d web.AnswerData) string {
	t.Helper()
	var b strings.Builder
	if err := web.Answer(&b, l, d); err != nil {
		t.Fatalf("Answer: %v", err)
	}
	return b.String()
}

// everyPage renders each page, also with values that try to break out.
func everyPage(t *testing.T) map[string]string {
	t.Helper()
	bad := build(t, booking.Sale{Name: hostile, Currency: hostile, Levels: []booking.Level{{ID: hostile, Name: hostile, Fee: 1}}})
	good := build(t, demo(t))
	pages := map[string]string{
		"index": string(good.Index.Body), "result": string(good.Result.Body),
		"hostile index": string(bad.Index.Body), "hostile result": string(bad.Result.Body),
	}
	for _, l := range web.Languages() {
		for _, words := range slugs {
			pages["answer "+string(l)+" "+words] = answer(t, l, web.AnswerData{
				Words: words, RetryAfter: 3,
				PaymentURL: "https://pay.example.org/?x=" + hostile, BookingURL: "/result?booking=" + hostile,
			})
		}
	}
	return pages
}

func TestPages_EscapeHostileValues(t *testing.T) {
	t.Parallel()
	for name, page := range everyPage(t) {
		if strings.Contains(page, "<script>alert") || strings.Contains(page, hostile) || strings.Contains(page, "</script>{{") {
			t.Errorf("%s: got a value that was not escaped", name)
		}
	}
	page := answer(t, web.English, web.AnswerData{Words: "duplicate_payable", PaymentURL: "javascript:alert(1)", BookingURL: "javascript:alert(1)"})
	if strings.Contains(page, `href="javascript:`) {
		t.Error("answer: got a link that is a script, want none")
	}
}

func TestPages_AskNobodyElse(t *testing.T) {
	t.Parallel()
	// An address with a host, as a value of src, href, url() or in a script.
	outside := regexp.MustCompile(`//[A-Za-z0-9].{0,40}`)
	block := regexp.MustCompile(`(?s)<(script|style)\b.*?</(script|style)>`)
	inline := regexp.MustCompile(`<[^<>]*\s(style|on[a-z]+)=`)
	for name, page := range everyPage(t) {
		rest := strings.ReplaceAll(page, "https://pay.example.org/", "") // given by the test
		if got := outside.FindString(rest); got != "" {
			t.Errorf("%s: got an address outside, %q", name, got)
		}
		if got := inline.FindString(block.ReplaceAllString(page, "")); got != "" {
			t.Errorf("%s: got %q, an inline style or handler, which the policy forbids", name, got)
		}
		if want := `name="viewport" content="width=device-width, initial-scale=1"`; !strings.Contains(page, want) {
			t.Errorf("%s: want %q in it", name, want)
		}
	}
}

// The first round trips on a slow line carry that much.
func TestBuild_FitsIntoTwentyFiveKilobytes(t *testing.T) {
	t.Parallel()
	for _, f := range build(t, demo(t)).Files() {
		t.Logf("%s: %d bytes, %d compressed", f.Name, len(f.Body), len(f.Gzip))
		if len(f.Gzip) >= 25_000 {
			t.Errorf("%s: got %d bytes compressed, want less than 25,000", f.Name, len(f.Gzip))
		}
		r, err := gzip.NewReader(bytes.NewReader(f.Gzip))
		if err != nil {
			t.Fatal(err)
		}
		if got, err := io.ReadAll(r); err != nil || !bytes.Equal(got, f.Body) {
			t.Errorf("%s: unpacked: got %d bytes, %v, want the page's %d", f.Name, len(got), err, len(f.Body))
		}
	}
}

func TestBuild_SameSaleSameBytes(t *testing.T) {
	t.Parallel()
	sale := demo(t)
	first := build(t, sale)
	for range 2 {
		for i, f := range build(t, sale).Files() {
			if g := first.Files()[i]; !bytes.Equal(f.Body, g.Body) || !bytes.Equal(f.Gzip, g.Gzip) || f.ETag != g.ETag {
				t.Fatalf("%s: built again: got other bytes, want the same", f.Name)
			}
		}
	}
	sale.Levels[0].Fee++
	other := build(t, sale)
	for i, f := range first.Files() {
		if g := other.Files()[i]; f.ETag == g.ETag {
			t.Errorf("%s: ETag: got %s for two fees, want another", f.Name, f.ETag)
		}
		if !regexp.MustCompile(`^W/"[0-9a-f]{24}"$`).MatchString(f.ETag) {
			t.Errorf("%s: ETag: got %s, want a weak one: two forms share it", f.Name, f.ETag)
		}
	}
	if first.Index.ETag == first.Result.ETag {
		t.Error("ETag: got the same for both pages")
	}
}

func TestBuild_PagesKnowTheirSale(t *testing.T) {
	t.Parallel()
	type level struct{ ID, Name, Fee string }
	type sale struct {
		Title  string
		Levels []level
	}
	selling := demo(t)
	selling.Title = "Exam & seats, December"
	want := sale{Title: selling.Title, Levels: []level{
		{"N1", "N1 Advanced", "1500.00 BDT"}, {"N2", "N2 Upper intermediate", "1400.00 BDT"}, {"N3", "N3 Intermediate", "1250.00 BDT"},
		{"N4", "N4 Elementary", "1100.00 BDT"}, {"N5", "N5 Beginner", "1000.00 BDT"},
	}}
	site := build(t, selling)
	for _, f := range site.Files() {
		if text := "<title>" + html.EscapeString(selling.Title); !strings.Contains(string(f.Body), text) {
			t.Errorf("%s: want %q in it", f.Name, text)
		}
		var got sale
		data(t, string(f.Body), "sale", &got)
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s: sale for its script (-want +got):\n%s", f.Name, diff)
		}
		if !web.Ours(f.Body) {
			t.Errorf("%s: Ours: got false for a page of ours", f.Name)
		}
		inPage := map[web.Language]language{}
		data(t, string(f.Body), "texts", &inPage)
		if diff := cmp.Diff(everyText(t), inPage); diff != "" {
			t.Errorf("%s: texts for its script (-want +got):\n%s", f.Name, diff)
		}
	}
	if web.Ours([]byte("<!DOCTYPE html><title>Somebody's</title>")) {
		t.Error("Ours: got true for a page of somebody else's")
	}
	for _, l := range want.Levels {
		for _, text := range []string{`value="` + l.ID + `"`, l.Name, l.Fee} {
			if !strings.Contains(string(site.Index.Body), text) {
				t.Errorf("index: want %q in it", text)
			}
		}
	}
}

// data reads what a page gives to its script.
func data(t *testing.T, page, id string, to any) {
	t.Helper()
	m := regexp.MustCompile(`(?s)<script type="application/json" id="` + id + `">(.*?)</script>`).FindStringSubmatch(page)
	if m == nil {
		t.Fatalf("page has no %s for its script", id)
	}
	if err := json.Unmarshal([]byte(m[1]), to); err != nil {
		t.Fatalf("%s: %v", id, err)
	}
}

func TestIndex_WorksAsAPlainForm(t *testing.T) {
	t.Parallel()
	page := string(build(t, demo(t)).Index.Body)
	form := regexp.MustCompile(`(?s)<form\b.*?</form>`).FindString(page)
	for _, want := range []string{`method="post"`, `action="/book"`, `name="code"`, `name="email"`, `name="website"`} {
		if !strings.Contains(form, want) {
			t.Errorf("form: want %q in it", want)
		}
	}
	if n := strings.Count(form, `type="radio"`); n != 5 {
		t.Errorf("form: got %d levels to choose from, want 5", n)
	}
	// Enter presses the first button of a form. The other looks for a booking, for which
	// no level need be chosen.
	buttons := regexp.MustCompile(`<button\b[^>]*type="submit"[^>]*>`).FindAllString(form, -1)
	if len(buttons) != 2 || !strings.Contains(buttons[0], `id="submit"`) || strings.Contains(buttons[0], "name=") {
		t.Fatalf("form: got the buttons %q, want first the one that books", buttons)
	}
	for _, want := range []string{`name="find"`, `value="1"`, " formnovalidate"} {
		if !strings.Contains(buttons[1], want) || strings.Contains(buttons[1], " hidden") {
			t.Errorf("form: got %s, want %s in it, and it seen", buttons[1], want)
		}
	}
	if regexp.MustCompile(`<(?:input|button|fieldset)[^>]*\sdisabled`).MatchString(form) {
		t.Error("form: got a part of it disabled, want it to work without a script")
	}
	if !strings.Contains(page, "<noscript>") {
		t.Error("index: want words for those without JavaScript")
	}
}

func TestResult_KnowsNoBooking(t *testing.T) {
	t.Parallel()
	page := string(build(t, demo(t)).Result.Body)
	if !strings.Contains(page, "<noscript>") {
		t.Error("result: want words for those without JavaScript")
	}
	if strings.Contains(page, `http-equiv="refresh"`) {
		t.Error("result: got a refresh, want none: it would show the same again")
	}
}

func TestCSP_NamesWhatThePagesHold(t *testing.T) {
	t.Parallel()
	var policy string
	for _, h := range web.SecurityHeaders() {
		if h.Name == "Content-Security-Policy" {
			policy = h.Value
		}
	}
	inline := map[string]*regexp.Regexp{
		"script-src": regexp.MustCompile(`(?s)<script>(.*?)</script>`),
		"style-src":  regexp.MustCompile(`(?s)<style>(.*?)</style>`),
	}
	for name, page := range everyPage(t) {
		found := 0
		for directive, re := range inline {
			for _, m := range re.FindAllStringSubmatch(page, -1) {
				found++
				sum := sha256.Sum256([]byte(m[1]))
				want := directive + " 'sha256-" + base64.StdEncoding.EncodeToString(sum[:]) + "';"
				if !strings.Contains(policy, want) {
					t.Errorf("%s: got policy %q, want %q in it", name, policy, want)
				}
			}
		}
		// A block of data is none that runs.
		all := regexp.MustCompile(`<(?:script|style)\b`).FindAllString(page, -1)
		if want := len(all) - strings.Count(page, `<script type="application/json"`); found != want || found == 0 {
			t.Errorf("%s: checked %d inline blocks, want %d", name, found, want)
		}
	}
	if strings.Contains(policy, "unsafe") {
		t.Errorf("policy: got %q, want nothing unsafe", policy)
	}
}

func TestPages_SayOfThemselvesWhatTheHeadersSay(t *testing.T) {
	t.Parallel()
	header := map[string]string{}
	for _, h := range web.SecurityHeaders() {
		if h.Value == "" || header[h.Name] != "" {
			t.Errorf("%s: got it twice or empty", h.Name)
		}
		header[h.Name] = h.Value
	}
	policy := regexp.MustCompile(`<meta http-equiv="Content-Security-Policy" content="([^"]*)">`)
	referrer := regexp.MustCompile(`<meta name="referrer" content="([^"]*)">`)
	for name, page := range everyPage(t) {
		m := policy.FindStringSubmatch(page)
		if m == nil || html.UnescapeString(m[1])+"; frame-ancestors 'none'" != header["Content-Security-Policy"] {
			t.Errorf("%s: got policy %q in the page, want the header's without frame-ancestors", name, m)
		}
		// Of two the later counts, and a page is parsed after its header.
		for _, m := range referrer.FindAllStringSubmatch(page, -1) {
			if m[1] != header["Referrer-Policy"] {
				t.Errorf("%s: got referrer policy %q in the page, %q in the header", name, m[1], header["Referrer-Policy"])
			}
		}
	}
}

func TestAnswer_EverySlugInBothLanguages(t *testing.T) {
	t.Parallel()
	all := everyText(t)
	for _, l := range web.Languages() {
		for _, key := range slugs {
			page := html.UnescapeString(answer(t, l, web.AnswerData{Words: key}))
			text := all[l].Answers[key]
			for _, want := range []string{text.Title, text.Message, `<html lang="` + string(l) + `"`} {
				if !strings.Contains(page, want) || want == "" {
					t.Errorf("%s, %s: want %q in it", l, key, want)
				}
			}
			// What only the script knows cannot be filled in here.
			if got := placeholder.FindString(text.Title + text.Message); got != "" {
				t.Errorf("%s, %s: got the placeholder %s in an answer to a form, want none", l, key, got)
			}
		}
	}
}

func TestAnswer_TellsTheTimeInWords(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		l    web.Language
		d    web.AnswerData
		want string
	}{
		{web.English, web.AnswerData{RetryAfter: 1}, "Try again in 1 second."},
		{web.English, web.AnswerData{RetryAfter: 60}, "Try again in 60 seconds."},
		{web.English, web.AnswerData{RetryAfter: 3, SecondsLeft: 119}, "You have 119 seconds to pay."},
		{web.English, web.AnswerData{SecondsLeft: 599}, "You have 9 minutes to pay."},
		{web.English, web.AnswerData{RetryAfter: 12, OpensIn: 7199}, "Opens in 119 minutes."},
		{web.English, web.AnswerData{OpensIn: 7200}, "Opens in 2 hours."},
		{web.English, web.AnswerData{OpensIn: 3600 + 86400 + 119}, "Opens in 25 hours 1 minute."},
		{web.English, web.AnswerData{OpensIn: 3*86400 + 3600}, "Opens in 3 days 1 hour."},
		{web.English, web.AnswerData{SecondsLeft: -1, OpensIn: -1}, ""},
		{web.Bangla, web.AnswerData{RetryAfter: 59}, "৫৯ সেকেন্ড"},
		{web.Bangla, web.AnswerData{SecondsLeft: 600}, "১০ মিনিট"},
		{web.Bangla, web.AnswerData{OpensIn: 2*86400 + 5*3600}, "২ দিন ৫ ঘণ্টা"},
	} {
		bare := answer(t, c.l, web.AnswerData{})
		if page := answer(t, c.l, c.d); !strings.Contains(page, c.want) || (c.want == "") != (page == bare) {
			t.Errorf("%s, %+v: want %q on the page:\n%s", c.l, c.d, c.want, page[strings.Index(page, "<body"):])
		}
	}
}

func TestAnswer_ShowsOnlyTheLinksThereAre(t *testing.T) {
	t.Parallel()
	full := answer(t, web.English, web.AnswerData{PaymentURL: "https://pay.example.org/1", BookingURL: "/result?booking=x"})
	bare := answer(t, web.English, web.AnswerData{})
	for _, part := range []string{`href="https://pay.example.org/1"`, `href="/result?booking=x"`} {
		if !strings.Contains(full, part) || strings.Contains(bare, part) {
			t.Errorf("got %s with both links %t, without %t, want true, false", part, strings.Contains(full, part), strings.Contains(bare, part))
		}
	}
	// Without a link to a booking there is the way to look for one.
	if find := `href="/#find"`; strings.Contains(full, find) || !strings.Contains(bare, find) {
		t.Errorf("got %s with both links %t, without %t, want false, true", find, strings.Contains(full, find), strings.Contains(bare, find))
	}
}

func TestAnswer_TellsTheWritersError(t *testing.T) {
	t.Parallel()
	gone := errors.New("client has left")
	if err := web.Answer(brokenWriter{gone}, web.Bangla, web.AnswerData{}); !errors.Is(err, gone) {
		t.Errorf("got error %v, want %v", err, gone)
	}
}

type brokenWriter struct{ err error }

func (w brokenWriter) Write([]byte) (int, error) { return 0, w.err }

func TestAccept_IsTheBrowsersLanguage(t *testing.T) {
	t.Parallel()
	for header, want := range map[string]web.Language{
		"":                                 web.English,
		"en":                               web.English,
		"bn":                               web.Bangla,
		"bn-BD":                            web.Bangla,
		"bn-BD,bn;q=0.9,en-US;q=0.8":       web.Bangla,
		"en-GB,en;q=0.9,bn;q=0.8":          web.English,
		"bn;q=0.1, en;q=0.9":               web.English,
		"fr-FR, fr;q=0.9":                  web.English,
		"fr, bn;q=0.2":                     web.Bangla,
		"bn;q=0":                           web.English,
		"*":                                web.English,
		"\x00,;;q=":                        web.English,
		strings.Repeat("bn-BD-x-", 50_000): web.English,
	} {
		if got := web.Accept(header); got != want {
			t.Errorf("Accept(%.40q): got %s, want %s", header, got, want)
		}
	}
	if got := web.Languages(); !slices.Equal(got, []web.Language{web.English, web.Bangla}) {
		t.Errorf("Languages: got %v, want English first", got)
	}
}
