package wall_test

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/evanw/esbuild/pkg/api"
	"github.com/google/go-cmp/cmp"

	"holdfast/internal/booking"
	"holdfast/internal/wall"
)

func serve(t *testing.T, h http.Handler) *httptest.ResponseRecorder {
	t.Helper()
	rec := httptest.NewRecorder()
	h.ServeHTTP(rec, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/", nil))
	return rec
}

func wantHeaders(t *testing.T, r *httptest.ResponseRecorder, status int, contentType string) {
	t.Helper()
	if r.Code != status {
		t.Errorf("status: got %d, want %d", r.Code, status)
	}
	for name, want := range map[string]string{
		"Content-Type": contentType, "Cache-Control": "no-store", "X-Content-Type-Options": "nosniff", "Referrer-Policy": "no-referrer",
	} {
		if got := r.Header().Get(name); got != want {
			t.Errorf("%s: got %q, want %q", name, got, want)
		}
	}
}

func TestPage_PolicyNamesWhatItHolds(t *testing.T) {
	t.Parallel()
	r := serve(t, wall.New(newLedger(), time.Now).Page())
	wantHeaders(t, r, http.StatusOK, "text/html; charset=utf-8")
	page := r.Body.String()
	policy := map[string]string{}
	for _, d := range strings.Split(r.Header().Get("Content-Security-Policy"), "; ") {
		name, value, _ := strings.Cut(d, " ")
		policy[name] = value
	}
	want := map[string]string{
		"default-src": "'none'", "connect-src": "'self'", "img-src": "data:", "base-uri": "'none'", "form-action": "'none'", "frame-ancestors": "'none'",
	}
	for directive, tag := range map[string]string{"script-src": "script", "style-src": "style"} {
		m := regexp.MustCompile(`(?s)<`+tag+`>(.*?)</`+tag+`>`).FindAllStringSubmatch(page, -1)
		if len(m) != 1 || len(m[0][1]) < 1000 || strings.Count(page, "<"+tag) != 1 {
			t.Fatalf("%s: got %d in the page, want one, ours", tag, len(m))
		}
		sum := sha256.Sum256([]byte(m[0][1]))
		want[directive] = "'sha256-" + base64.StdEncoding.EncodeToString(sum[:]) + "'"
	}
	if diff := cmp.Diff(want, policy); diff != "" {
		t.Errorf("policy (-want +got):\n%s", diff)
	}
	page = strings.ReplaceAll(page, "http://www.w3.org/2000/svg", "") // a name, not an address
	if got := regexp.MustCompile(`(?:[a-z]+:)?//[A-Za-z0-9]\S*`).FindAllString(page, -1); got != nil {
		t.Errorf("addresses outside: got %q, want none", got)
	}
	if got := regexp.MustCompile(` (?:style|on[a-z]+)=`).FindString(page); got != "" {
		t.Errorf("got an inline%s, which the policy forbids", got)
	}
}

// A browser from 2020 is what the screen's machine may have.
func TestPage_IsUnderstoodByChrome80(t *testing.T) {
	t.Parallel()
	old := []api.Engine{{Name: api.EngineChrome, Version: "80"}}
	for name, loader := range map[string]api.Loader{"wall.js": api.LoaderJS, "wall.css": api.LoaderCSS} {
		source, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		now := api.Transform(string(source), api.TransformOptions{Loader: loader, Target: api.ESNext})
		then := api.Transform(string(source), api.TransformOptions{Loader: loader, Target: api.ESNext, Engines: old})
		for _, m := range slices.Concat(now.Errors, now.Warnings, then.Errors, then.Warnings) {
			t.Errorf("%s: %s", name, m.Text)
		}
		if diff := cmp.Diff(strings.Split(string(then.Code), "\n"), strings.Split(string(now.Code), "\n")); diff != "" {
			t.Errorf("%s: for Chrome 80 (-), as it is (+):\n%s", name, diff)
		}
		newer := regexp.MustCompile(`\.(?:at|replaceAll|replaceChildren|findLast|toSorted|hasOwn)\(|AbortSignal\.|structuredClone|innerHTML|insertAdjacentHTML|eval\(|:is\(|:has\(|aspect-ratio:`)
		if got := newer.FindAll(now.Code, -1); got != nil {
			t.Errorf("%s: got %q, want nothing that came after Chrome 80, and text set as text", name, got)
		}
	}
}

func TestPage_NamesRunbooksThatExist(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"wall.js", "page.go"} {
		source, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		named := regexp.MustCompile(`(?:Runbook: |docs/runbooks/)([a-z-]+)`).FindAllSubmatch(source, -1)
		if len(named) < 2 {
			t.Errorf("%s: got %d runbooks named, want some", name, len(named))
		}
		for _, m := range named {
			if _, err := os.Stat(filepath.Join("..", "..", "docs", "runbooks", string(m[1])+".md")); err != nil {
				t.Errorf("%s: got runbook %s, %v, want one that exists", name, m[1], err)
			}
		}
	}
}

// keys are all names in a JSON value, each with where it is.
func keys(into map[string]bool, at string, v any) {
	switch v := v.(type) {
	case map[string]any:
		for k, inner := range v {
			into[at+k] = true
			keys(into, at+k+".", inner)
		}
	case []any:
		for _, inner := range v {
			keys(into, at, inner)
		}
	}
}

func TestFigures_ShapeAndNothingPersonal(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := newLedger()
		l.figures.Open, l.figures.Reason, l.figures.OpensAt = false, "not_open", time.Now().Add(time.Hour)
		l.put("CODE-SECRET", booking.PhasePaid, func(r *booking.Row) { r.Transaction = "transaction-SECRET" })
		l.put("CODE-HELD-SECRET", booking.PhasePaying, func(r *booking.Row) {
			r.Owner, r.Back = "owner-SECRET", &booking.RefusedAttempt{Attempt: "back-SECRET", Payment: "back-SECRET"}
		})
		w := running(t, l)
		mustLook(t, w)
		l.do(func() { l.err = errors.New("redis is asleep") })
		time.Sleep(10 * time.Second)
		r := serve(t, w.Figures())
		wantHeaders(t, r, http.StatusOK, "application/json; charset=utf-8")
		text := r.Body.String()
		for _, secret := range []string{"SECRET", "attempt-", "payment-", "@"} {
			if strings.Contains(text, secret) {
				t.Errorf("got %q in it, want figures only", secret)
			}
		}
		var v any
		if err := json.Unmarshal([]byte(text), &v); err != nil {
			t.Fatalf("JSON: %v", err)
		}
		all := map[string]bool{}
		keys(all, "", v)
		want := strings.Fields(`admissions_per_minute age_seconds at counted_age_seconds counted_at in_doubt
			levels levels.admitted levels.cap levels.held levels.id levels.left levels.name levels.paid
			open opens_at past_deadline phases phases.held phases.new phases.paid phases.payable phases.paying phases.refused
			reason recent recent.admitted recent.at sale series series.admitted series.at series.held series.new series.paid
			series.payable series.paying series.refused since to_decide total total.admitted total.cap total.held total.left total.paid
			trouble unreadable`)
		if diff := cmp.Diff(want, slices.Sorted(maps.Keys(all))); diff != "" {
			t.Errorf("names (-want +got):\n%s", diff)
		}
		if len(text) > 16<<10 {
			t.Errorf("got %d bytes, want little, since it is asked for every two seconds", len(text))
		}
	})
}

func TestFigures_WithoutAnyIsAnAnswerInWords(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		for err, slug := range map[error]string{booking.ErrLedgerUnknown: "ledger_unknown", errors.New("redis at 10.0.0.7 is asleep"): "seats_unread"} {
			l := newLedger()
			l.err = err
			r := serve(t, running(t, l).Figures())
			wantHeaders(t, r, http.StatusServiceUnavailable, "application/json; charset=utf-8")
			var got struct{ Error, Message string }
			if err := json.Unmarshal(r.Body.Bytes(), &got); err != nil {
				t.Fatal(err)
			}
			if got.Error != slug || !strings.Contains(got.Message, "Redis") || strings.Contains(got.Message, "10.0.0.7") || r.Header().Get("Retry-After") != "2" {
				t.Errorf("got %+v, Retry-After %q, want %s in words, and 2", got, r.Header().Get("Retry-After"), slug)
			}
		}
	})
}

// rush is an hour of a sale: most have paid, some hold, some wait too long.
func rush() *ledger {
	l := newLedger()
	l.name = "language-exam-2026"
	l.figures = booking.Figures{Open: true, Cap: 20700, Levels: []booking.LevelFigures{
		{ID: "N1", Name: "N1 Advanced", Cap: 2400}, {ID: "N2", Name: "N2 Upper intermediate", Cap: 3600}, {ID: "N3", Name: "N3 Intermediate", Cap: 4800},
		{ID: "N4", Name: "N4 Elementary", Cap: 5400}, {ID: "N5", Name: "N5 Beginner", Cap: 5200},
	}}
	n := 0
	for second := range 2400 {
		for range max(1, 20-second/60) {
			n++
			at := time.Now().Add(time.Duration(second-2400) * time.Second)
			phase := booking.PhasePaid
			switch {
			case n%5 == 0 && second > 1800:
				phase = booking.PhaseHeld
			case n%97 == 0:
				phase = booking.PhaseRefused
			case second > 2390:
				phase = booking.PhaseNew
			case second > 2380:
				phase = booking.PhasePayable
			}
			l.put(fmt.Sprint("R", n), phase, func(r *booking.Row) {
				r.Level, r.AdmittedAt, r.Deadline = []string{"N1", "N2", "N3", "N3", "N4", "N4", "N5"}[n%7], at.UnixMilli(), time.Now().Add(time.Hour).UnixMilli()
				if phase == booking.PhasePaid {
					r.PaidAt = min(time.Now().UnixMilli(), at.Add(time.Duration(60+n%300)*time.Second).UnixMilli())
				}
			})
		}
	}
	for i := range 3 {
		l.put(fmt.Sprint("D", i), booking.PhasePaying, func(r *booking.Row) { r.Looks = i + 2 })
		l.put(fmt.Sprint("L", i), booking.PhaseHeld, func(r *booking.Row) { r.Deadline = time.Now().Add(-3 * time.Minute).UnixMilli() })
	}
	return l
}

// The page as an operator sees it, in a real browser: it shows what the ledger has, it
// says so when it does not know any more, and axe-core finds nothing serious.
func TestPage_InABrowser(t *testing.T) {
	t.Parallel()
	b := newBrowser(t)
	l := rush()
	w := wall.New(l, time.Now)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- w.Run(ctx) }()
	mux := http.NewServeMux()
	mux.Handle("GET /wall", w.Page())
	mux.Handle("GET /wall.json", w.Figures())
	srv := httptest.NewServer(mux)
	defer func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("Run: got %v, want nil", err)
		}
		b.end()
		srv.Close()
	}()

	b.size(1920, 1080)
	b.open(srv.URL + "/wall")
	v := mustLook(t, w)
	b.until("the figures", fmt.Sprintf("text('#taken') === Number(%d).toLocaleString('en-GB') && text('#paid') === Number(%d).toLocaleString('en-GB')", *v.Total.Admitted, *v.Total.Paid))
	for selector, want := range map[string]string{
		"#sale": "language-exam-2026", "#state": "OPEN", "#cap": "of 20,700", "#age": "figures are", "#levels": "N2 Upper intermediate",
		"#waits": "ATTENTION: 3 past their deadline", "#counted": "counted", "#since": "are known since",
	} {
		b.until(fmt.Sprintf("%q in %s", want, selector), fmt.Sprintf("text(%q).includes(%q)", selector, want))
	}
	b.until("a word about each doubt", "text('#waits').includes('1 in doubt for a person') && text('#waits').includes('2 in doubt: looked at again')")
	// Each chart says its figures in words too, and has as many bars as it has figures.
	for id, words := range map[string]string{"hour": "admitted in the last full minute", "recent": "admitted in the last full ten seconds", "stack": "now, of 20,700 seats"} {
		b.until("words of chart "+id, fmt.Sprintf("$('#%s').getAttribute('aria-label').includes(%q)", id, words))
		b.until("bars of chart "+id, fmt.Sprintf("document.querySelectorAll('#%s rect').length > 20", id))
	}
	// Without a size, as before the style is there, nothing is drawn that cannot be.
	b.until("charts without a size", "$('main').style.display = 'none', dispatchEvent(new Event('resize')), $('#stack').clientWidth === 0")
	b.until("charts again", "$('main').style.display = '', dispatchEvent(new Event('resize')), document.querySelectorAll('#stack rect').length > 20")
	b.until("a screen that need not be scrolled", "document.querySelector('main').getBoundingClientRect().bottom <= 1080")
	b.look("rush", 1920, 1080)
	b.open(srv.URL + "/wall")
	b.press("summary")
	b.until("sixty minutes in the table", "document.querySelectorAll('#minutes tr').length === 60 && document.querySelector('#details').open")
	b.size(400, 800)
	b.until("no scrolling to the side", "document.documentElement.scrollWidth <= 400")
	b.look("rush-phone", 400, 800)
	b.size(320, 640)
	b.until("no scrolling to the side at 320", "document.documentElement.scrollWidth <= 320")

	b.size(1920, 1080)
	l.do(func() {
		l.figures.Open, l.figures.Reason, l.figures.OpensAt = false, "not_open", time.Now().Add(90*time.Minute)
	})
	b.until("the countdown", "text('#state').startsWith('OPENS ') && /^in 1:(29|30):\\d\\d$/.test(text('#countdown'))")
	l.do(func() { l.figures.Open, l.figures.Reason, l.figures.Levels[0].Cap = true, "sold_out", 10 })
	b.until("sold out", "text('#state') === 'SOLD OUT' && text('#countdown') === '' && text('#levels').includes('full')")
	l.do(func() { l.figures.Levels[1].Admitted, l.err = -1_000_000, nil })
	b.until("the damaged counter", "text('#levels').includes('counter damaged') && text('#state') === 'COUNTER DAMAGED'")

	l.do(func() { l.err = errors.New("redis is asleep") })
	b.until("the trouble", "seen('#trouble') && text('#trouble').includes('Redis does not answer')")
	b.until("the age", "$('#age').className === 'stale' && /figures are (9|\\d\\d) s old/.test(text('#age'))")
	b.look("outage", 1920, 1080)
	l.do(func() { l.err = nil })
	b.until("the end of the trouble", "!seen('#trouble') && $('#age').className === ''")
	if bad := b.wrongs(); bad != nil {
		t.Errorf("the page did what no page may: %q", bad)
	}
	srv.CloseClientConnections()
	srv.Listener.Close()
	b.until("that the process is silent", "seen('#trouble') && text('#trouble').includes('does not answer') && text('#taken') !== '–'")
}
