package pagetest_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"holdfast/internal/mockgateway"
)

// said is what a language's file says.
type said struct {
	Answers map[string]struct{ Title, Message string } `json:"answers"`
}

func language(t testing.TB, lang string) said {
	t.Helper()
	var s said
	if err := json.Unmarshal(readFile(t, "internal/httpapi/web/texts/"+lang+".json"), &s); err != nil {
		t.Fatalf("texts of %s: %v", lang, err)
	}
	return s
}

func english(t testing.TB) said { t.Helper(); return language(t, "en") }

// withoutScripts opens the form in a browser that runs none.
func withoutScripts(t *testing.T, w *world) *tab {
	t.Helper()
	p := newPerson(t, w).newTab()
	p.scripts(false)
	p.open("/")
	return p
}

// sends fills in the form as a browser without scripts shows it, and sends it.
func (p *tab) sends(code, email, level string) {
	p.t.Helper()
	p.fill("#code", code)
	p.fill("#email", email)
	p.choose(level)
	p.click("#submit")
}

// The whole way without JavaScript: form, payment, and a result page that says what it
// cannot do.
func TestWithoutJavaScript_SeatIsPaid(t *testing.T) {
	t.Parallel()
	w := newWorld(t, setting{})
	p := withoutScripts(t, w)
	p.until("what is missing without scripts", `seen('noscript') || [...document.querySelectorAll('noscript *')].some(seen)`)
	p.look("noscript-form")
	p.sends(code(0), email(0), "N1")
	p.waitAtGateway()
	p.pays()
	p.waitAt(w.site + "/result")
	p.until("what is missing without scripts", `[...document.querySelectorAll('noscript *')].some(seen)`)
	p.look("noscript-result")
	w.wantSeats(t, "P0000 paid")
	w.wantMails(t, 1)
}

// Every answer is a page: a clear word, a way on, in the browser's language.
func TestWithoutJavaScript_EveryAnswerIsAPage(t *testing.T) {
	t.Parallel()
	sale := saleOf(3, level("N1", 1), level("N2", 3))
	for _, c := range []struct {
		slug  string
		code  string
		email string
		level string
		full  bool // has all that such a page can have: the others are the same with less
		// before brings the world into the state.
		before func(t *testing.T, w *world)
	}{
		{slug: "invalid_code", code: "X9999", email: email(0), level: "N2"},
		{slug: "email_mismatch", code: code(0), email: "a@example.org", level: "N2"},
		{slug: "duplicate_payable", code: code(0), email: email(0), level: "N2", full: true, before: func(t *testing.T, w *world) { w.takes(t, 0, "N2") }},
		{slug: "level_full", code: code(1), email: email(1), level: "N1", before: func(t *testing.T, w *world) { w.takes(t, 0, "N1") }},
		{slug: "sold_out", code: code(3), email: email(3), level: "N2", before: func(t *testing.T, w *world) {
			w.takes(t, 0, "N1")
			w.takes(t, 1, "N2")
			w.takes(t, 2, "N2")
		}},
		{slug: "not_open", code: code(0), email: email(0), level: "N2", before: func(t *testing.T, w *world) {
			if err := w.api.Gate.Close(t.Context()); err != nil {
				t.Fatal(err)
			}
		}},
		{slug: "payment_unavailable", code: code(0), email: email(0), level: "N2", full: true, before: func(t *testing.T, w *world) {
			w.faults(t, mockgateway.Fault{Name: mockgateway.FaultUnavailable, Calls: []string{mockgateway.CallCreate}, Times: -1})
		}},
	} {
		t.Run(c.slug, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, setting{sale: sale})
			p := withoutScripts(t, w)
			if c.before != nil {
				c.before(t, w)
			}
			p.sends(c.code, c.email, c.level)
			p.waitAt(w.site + "/book")
			want := english(t).Answers[c.slug]
			p.waitText("main", want.Title, want.Message)
			p.waitFor(`a[href="/"]`)
			state := "noscript-" + strings.ReplaceAll(c.slug, "_", "-")
			if !c.full {
				p.glimpse(state)
				return
			}
			p.look(state)
			if c.slug == "duplicate_payable" {
				p.click(fmt.Sprintf(`a[href^=%q]`, w.gateway))
				p.waitAtGateway()
			}
		})
	}
}

// Who has lost the way to their booking finds it, without a level, and takes no seat.
func TestWithoutJavaScript_FindsABooking(t *testing.T) {
	t.Parallel()
	w := newWorld(t, setting{})
	w.takes(t, 0, "N1")
	for i, slug := range []string{"duplicate_payable", "no_seat"} {
		p := withoutScripts(t, w)
		p.fill("#code", code(i))
		p.fill("#email", email(i))
		p.click("#find")
		p.waitAt(w.site + "/book")
		want := english(t).Answers[slug]
		p.waitText("main", want.Title, want.Message)
		p.glimpse("noscript-find-" + strings.ReplaceAll(slug, "_", "-"))
		if slug == "duplicate_payable" {
			p.waitFor(`a[href^="` + w.site + `/result?booking="]`)
		}
	}
	w.wantSeats(t, "P0000 held")
}

// A browser that asks for Bangla gets its answers in Bangla.
func TestWithoutJavaScript_AnswersInTheBrowsersLanguage(t *testing.T) {
	t.Parallel()
	w := newWorld(t, setting{})
	p := newPerson(t, w).newTab()
	p.speaks("bn-BD,bn,en")
	p.scripts(false)
	p.open("/")
	p.sends("X9999", email(0), "N1")
	p.waitAt(w.site + "/book")
	p.until("a page in Bangla", `document.documentElement.lang === 'bn'`)
	p.waitText("main", language(t, "bn").Answers["invalid_code"].Title)
	p.look("noscript-invalid-code")
}

// What a browser and a cache go by: the page is one request with a policy, can be asked
// for again without being sent again, and is small.
func TestHeaders_OfThePage(t *testing.T) {
	t.Parallel()
	w := newWorld(t, setting{})
	for _, path := range []string{"/", "/result?booking=abc"} {
		status, header, body, err := w.get(t, path)
		if err != nil || status != http.StatusOK {
			t.Fatalf("GET %s: got %d, %v, want 200", path, status, err)
		}
		policy := header.Get("Content-Security-Policy")
		for _, want := range []string{"default-src 'none'", "script-src 'sha256-", "style-src 'sha256-", "frame-ancestors 'none'"} {
			if !strings.Contains(policy, want) {
				t.Errorf("GET %s: got policy %q, want %q in it", path, policy, want)
			}
		}
		if strings.Contains(policy, "unsafe") {
			t.Errorf("GET %s: got policy %q, want nothing unsafe", path, policy)
		}
		if header.Get("X-Content-Type-Options") != "nosniff" || header.Get("Referrer-Policy") == "" {
			t.Errorf("GET %s: got header %v, want nosniff and a referrer policy", path, header)
		}
		if len(body) == 0 || !strings.HasPrefix(header.Get("Content-Type"), "text/html") {
			t.Errorf("GET %s: got %d bytes of %q, want HTML", path, len(body), header.Get("Content-Type"))
		}
		etag := header.Get("ETag")
		r := func(name, value string) (int, http.Header, string) {
			status, header, body, err := w.get(t, path, name, value)
			if err != nil {
				t.Fatal(err)
			}
			return status, header, body
		}
		if status, _, body := r("If-None-Match", etag); etag == "" || status != http.StatusNotModified || body != "" {
			t.Errorf("GET %s with its ETag %q: got %d and %d bytes, want 304 and none", path, etag, status, len(body))
		}
		_, header, packed := r("Accept-Encoding", "gzip")
		if header.Get("Content-Encoding") != "gzip" || !strings.Contains(header.Get("Vary"), "Accept-Encoding") {
			t.Errorf("GET %s with gzip: got header %v, want gzip, and Vary that says so", path, header)
		}
		if len(packed) >= 30<<10 {
			t.Errorf("GET %s with gzip: got %d bytes, want under 30 KB", path, len(packed))
		}
	}
}
