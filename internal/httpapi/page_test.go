package httpapi_test

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"html"
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"holdfast/internal/booking"
	"holdfast/internal/httpapi"
	"holdfast/internal/httpapi/web"
)

// received is an answer as it came over the wire.
type received struct {
	status int
	header http.Header
	length int64 // that was announced; -1 is none
	body   []byte
}

// wire is an edge behind a real server, with a client that unpacks nothing by itself.
func wire(t *testing.T, e *edge) func(method, target string, header map[string]string, body string) received {
	t.Helper()
	srv := httptest.NewServer(e)
	t.Cleanup(srv.Close)
	hc := &http.Client{
		Transport:     &http.Transport{DisableCompression: true, DisableKeepAlives: true},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	return func(method, target string, header map[string]string, body string) received {
		t.Helper()
		r, err := http.NewRequestWithContext(t.Context(), method, srv.URL+target, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		for name, value := range header {
			r.Header.Set(name, value)
		}
		resp, err := hc.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		got, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		return received{resp.StatusCode, resp.Header, resp.ContentLength, got}
	}
}

// sale is what newEdge sells.
func sale(t testing.TB) booking.Sale {
	t.Helper()
	s, err := newEdge(t, nil).Pages.Sales.Sale(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func site(t testing.TB, s booking.Sale) *web.Site {
	t.Helper()
	built, err := web.Build(s)
	if err != nil {
		t.Fatal(err)
	}
	return built
}

// served is what a header table holds an answer to.
type served struct {
	Status                                   int
	Type, CacheControl, ETag, Vary, Encoding string
	Secured                                  bool // has every header of a page
	Referrer                                 string
}

func seen(got received) served {
	h := got.header
	s := served{
		Status: got.status, Type: h.Get("Content-Type"), CacheControl: h.Get("Cache-Control"), ETag: h.Get("ETag"),
		Vary: h.Get("Vary"), Encoding: h.Get("Content-Encoding"), Referrer: h.Get("Referrer-Policy"), Secured: true,
	}
	for _, want := range web.SecurityHeaders() {
		s.Secured = s.Secured && h.Get(want.Name) == want.Value
	}
	return s
}

func TestHeaders_EachKindOfAnswer(t *testing.T) {
	t.Parallel()
	const (
		htmlType  = "text/html; charset=utf-8"
		jsonReply = "application/json; charset=utf-8"
		short     = "public, max-age=20"
	)
	built := site(t, sale(t))
	yes, no := newEdge(t, nil), refuses(t, booking.ErrInvalidCode)
	for _, c := range []struct {
		name           string
		e              *edge
		method, target string
		header         map[string]string
		body           string
		want           served
	}{
		{"form's page", yes, "GET", "/", nil, "",
			served{200, htmlType, short, built.Index.ETag, "Accept-Encoding", "", true, "no-referrer"}},
		{"form's page, gzip", yes, "GET", "/", map[string]string{"Accept-Encoding": "gzip, deflate, br"}, "",
			served{200, htmlType, short, built.Index.ETag, "Accept-Encoding", "gzip", true, "no-referrer"}},
		{"form's page, not changed", yes, "GET", "/", map[string]string{"Accept-Encoding": "gzip", "If-None-Match": built.Index.ETag}, "",
			served{304, "", short, built.Index.ETag, "Accept-Encoding", "", true, "no-referrer"}},
		{"result page", yes, "GET", "/result?booking=" + yes.token(), nil, "",
			served{200, htmlType, short, built.Result.ETag, "Accept-Encoding", "", true, "no-referrer"}},
		{"result page, gzip", yes, "GET", "/result?error=busy", map[string]string{"Accept-Encoding": "gzip"}, "",
			served{200, htmlType, short, built.Result.ETag, "Accept-Encoding", "gzip", true, "no-referrer"}},
		{"status document", yes, "GET", "/status.json", map[string]string{"Accept-Encoding": "gzip"}, "",
			served{200, jsonReply, "no-cache", `"e1"`, "", "", false, ""}},
		{"status document, not changed", yes, "GET", "/status.json", map[string]string{"If-None-Match": `"e1"`}, "",
			served{304, "", "no-cache", `"e1"`, "", "", false, ""}},
		{"booking", yes, "GET", "/booking/" + yes.token(), nil, "",
			served{200, jsonReply, "no-store", "", "", "", false, "no-referrer"}},
		{"admitted", yes, "POST", "/book", map[string]string{"Content-Type": jsonType}, goodBody,
			served{202, jsonReply, "no-store", "", "", "", false, ""}},
		{"refused", no, "POST", "/book", map[string]string{"Content-Type": jsonType}, goodBody,
			served{400, jsonReply, "no-store", "", "", "", false, ""}},
		{"form admitted", yes, "POST", "/book", map[string]string{"Content-Type": formType}, goodForm,
			served{303, "", "no-store", "", "", "", false, ""}},
		{"form refused", no, "POST", "/book", map[string]string{"Content-Type": formType, "Accept-Encoding": "gzip"}, goodForm,
			served{400, htmlType, "no-store", "", "Accept-Language", "", true, "no-referrer"}},
		{"health", yes, "GET", "/health", nil, "",
			served{200, jsonReply, "no-store", "", "", "", false, ""}},
		{"nothing here", yes, "GET", "/nowhere", nil, "",
			served{404, jsonReply, "no-store", "", "", "", false, ""}},
	} {
		answer := wire(t, c.e)(c.method, c.target, c.header, c.body)
		if diff := cmp.Diff(c.want, seen(answer)); diff != "" {
			t.Errorf("%s: %s %s (-want +got):\n%s", c.name, c.method, c.target, diff)
		}
		if got := answer.header.Get("X-Content-Type-Options"); got != "nosniff" && c.want.Status != 303 {
			t.Errorf("%s: X-Content-Type-Options: got %q, want nosniff", c.name, got)
		}
	}
}

func TestPages_AreTheBytesThatAreExported(t *testing.T) {
	t.Parallel()
	get := wire(t, newEdge(t, nil))
	for _, f := range site(t, sale(t)).Files() {
		plain := get("GET", f.Path, map[string]string{"Accept-Encoding": "identity"}, "")
		if !bytes.Equal(plain.body, f.Body) || plain.length != int64(len(f.Body)) {
			t.Errorf("%s: got %d bytes of %d, want the built page's %d", f.Path, len(plain.body), plain.length, len(f.Body))
		}
		packed := get("GET", f.Path, map[string]string{"Accept-Encoding": "gzip"}, "")
		r, err := gzip.NewReader(bytes.NewReader(packed.body))
		if err != nil {
			t.Fatalf("%s: %v", f.Path, err)
		}
		if got, err := io.ReadAll(r); err != nil || !bytes.Equal(got, f.Body) || packed.length != int64(len(packed.body)) {
			t.Errorf("%s, gzip: got %d bytes unpacked, %v, want the page", f.Path, len(got), err)
		}
	}
}

// A booking's result page is the same as everybody's: only its script knows which.
func TestPages_ResultAsksNobody(t *testing.T) {
	t.Parallel()
	e := untouched(t)
	want := site(t, sale(t)).Result.Body
	for _, query := range []string{"", "?booking=" + e.token(), "?booking=junk", "?error=unknown", "?error=busy", "?booking=%3Cscript%3E"} {
		w := e.send(t, http.MethodGet, "/result"+query, "", "")
		if w.Code != http.StatusOK || !bytes.Equal(w.Body.Bytes(), want) {
			t.Errorf("/result%s: got %d with %d bytes, want the page that is everybody's", query, w.Code, w.Body.Len())
		}
	}
}

func TestPages_HeadIsGetWithoutItsBody(t *testing.T) {
	t.Parallel()
	do := wire(t, newEdge(t, nil))
	for _, target := range []string{"/", "/result", "/status.json"} {
		for _, header := range []map[string]string{{"Accept-Encoding": "identity"}, {"Accept-Encoding": "gzip"}, {"If-None-Match": "*"}} {
			get, head := do("GET", target, header, ""), do("HEAD", target, header, "")
			for _, h := range []http.Header{get.header, head.header} {
				if h.Get("X-Request-Id") == "" {
					t.Errorf("%s: X-Request-Id: got none, want one", target)
				}
				h.Del("X-Request-Id")
				h.Del("Date")
			}
			if diff := cmp.Diff(get.header, head.header); diff != "" || get.status != head.status || len(head.body) > 0 {
				t.Errorf("%s %v: got %d, %d bytes, want %d and the same headers (-GET +HEAD):\n%s", target, header, head.status, len(head.body), get.status, diff)
			}
		}
	}
}

func TestPages_GzipOnlyWhereItIsAccepted(t *testing.T) {
	t.Parallel()
	e := newEdge(t, nil)
	for accept, want := range map[string]bool{
		"gzip": true, "GZIP": true, "br, gzip": true, "gzip;q=0.1": true, "gzip; q=1.0": true, "*": true, "br;q=1, *;q=0.5": true,
		"": false, "br": false, "identity": false, "gzip;q=0": false, "gzip;q=0.000": false, "gzip; Q=0": false, "*;q=0": false,
		"gzip;q=0, *": false, "*, gzip;q=0": false, "gzip;q=x": false, "gzip;q": false, "x-gzipped": false,
	} {
		r := newRequest(t, http.MethodGet, "/", "")
		if accept != "" {
			r.Header.Set("Accept-Encoding", accept)
		}
		w := serve(e, r)
		if got := w.Header().Get("Content-Encoding") == "gzip"; got != want || bytes.HasPrefix(w.Body.Bytes(), []byte{0x1f, 0x8b}) != want {
			t.Errorf("Accept-Encoding %q: got gzip %t, want %t", accept, got, want)
		}
	}
	r := newRequest(t, http.MethodGet, "/", "")
	r.Header["Accept-Encoding"] = []string{"br", "gzip"}
	if got := serve(e, r).Header().Get("Content-Encoding"); got != "gzip" {
		t.Errorf("Accept-Encoding over two lines: got %q, want gzip", got)
	}
}

func TestPages_NotModifiedForWhoHasIt(t *testing.T) {
	t.Parallel()
	e := newEdge(t, nil)
	etag := site(t, sale(t)).Index.ETag
	for tag, want := range map[string]int{
		etag: 304, strings.TrimPrefix(etag, "W/"): 304, `"other", ` + etag: 304, `"other",` + etag + `,"x"`: 304, "*": 304,
		"": 200, `"other"`: 200, strings.Trim(etag, `W/"`): 200, etag + "x": 200,
	} {
		for _, encoding := range []string{"identity", "gzip"} {
			r := newRequest(t, http.MethodGet, "/", "")
			r.Header.Set("If-None-Match", tag)
			r.Header.Set("Accept-Encoding", encoding)
			if w := serve(e, r); w.Code != want || (want == 304) != (w.Body.Len() == 0) {
				t.Errorf("If-None-Match %s, %s: got %d with %d bytes, want %d", tag, encoding, w.Code, w.Body.Len(), want)
			}
		}
	}
}

func TestPages_AreBuiltAnewOnlyWhenTheSaleChanged(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		selling, looks := sale(t), 0
		e := newEdge(t, func(d *httpapi.Deps) {
			d.Pages.Sales = sales(func(context.Context) (booking.Sale, error) { looks++; return selling, nil })
		})
		etag := func() string { return e.send(t, http.MethodGet, "/", "", "").Header().Get("ETag") }
		first := etag()
		for range 50 {
			if got := etag(); got != first {
				t.Fatalf("ETag: got %s, then %s for the same sale", first, got)
			}
			e.send(t, http.MethodGet, "/result", "", "")
		}
		if looks != 1 {
			t.Errorf("looks at the sale within a second: got %d, want 1", looks)
		}
		selling.Levels = []booking.Level{{ID: "N1", Name: "N1 Advanced", Cap: 10, Fee: 160000}}
		if got := etag(); got != first {
			t.Errorf("ETag within the second: got %s, want %s still", got, first)
		}
		time.Sleep(time.Second)
		if got, want := etag(), site(t, selling).Index.ETag; got != want || got == first {
			t.Errorf("ETag after the fee changed: got %s, want %s", got, want)
		}
		selling.Title = "Seats in December"
		time.Sleep(time.Second)
		if got, want := etag(), site(t, selling).Index.ETag; got != want {
			t.Errorf("ETag after the title changed: got %s, want %s", got, want)
		}
		if looks != 3 {
			t.Errorf("looks at the sale: got %d, want 3", looks)
		}
	})
}

func TestPages_StayUpWithoutTheLedger(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		down := errors.New("i/o timeout")
		cause, looks := down, 0
		e := newEdge(t, func(d *httpapi.Deps) {
			up := d.Pages.Sales
			d.Pages.Sales = sales(func(ctx context.Context) (booking.Sale, error) {
				if looks++; cause != nil {
					return booking.Sale{}, cause
				}
				return up.Sale(ctx)
			})
		})
		get := func() *httptest.ResponseRecorder { return e.send(t, http.MethodGet, "/", "", "") }
		for range 100 {
			wantRefusal(t, "no page yet", get(), 503, "try_again")
		}
		if looks != 1 {
			t.Errorf("looks at a ledger that is down, within a second: got %d, want 1", looks)
		}
		time.Sleep(time.Second)
		cause = nil
		built := get()
		if built.Code != http.StatusOK {
			t.Fatalf("ledger back: got %d, want 200", built.Code)
		}
		time.Sleep(time.Second)
		cause = down
		for range 100 {
			if w := get(); w.Code != http.StatusOK || w.Header().Get("ETag") != built.Header().Get("ETag") {
				t.Fatalf("ledger down again: got %d %s, want the last page", w.Code, w.Body)
			}
		}
		told := 0
		for _, line := range e.log.lines(t, "request") {
			if text, _ := line["error"].(string); strings.Contains(text, down.Error()) && line["code"] == 200.0 {
				told++
			}
		}
		if looks != 3 || told != 1 {
			t.Errorf("ledger down again: got %d looks and %d log lines with the cause, want 3 and 1", looks, told)
		}
	})
}

// Who hangs up while the sale is looked at spoils nothing for those who wait with them.
func TestPages_OneLookForAllWhoComeAtOnce(t *testing.T) {
	t.Parallel()
	want := sale(t)
	var looks atomic.Int32
	looking, answer := make(chan struct{}), make(chan struct{})
	e := newEdge(t, func(d *httpapi.Deps) {
		d.Pages.Sales = sales(func(ctx context.Context) (booking.Sale, error) {
			if looks.Add(1) == 1 {
				close(looking)
			}
			<-answer
			return want, ctx.Err()
		})
	})
	var wg sync.WaitGroup
	gone, hangUp := context.WithCancel(t.Context())
	wg.Go(func() { serve(e, httptest.NewRequestWithContext(gone, http.MethodGet, "/", nil)) })
	<-looking
	for range 50 {
		wg.Go(func() {
			if w := e.send(t, http.MethodGet, "/", "", ""); w.Code != http.StatusOK {
				t.Errorf("got %d %s, want the page", w.Code, w.Body)
			}
		})
	}
	hangUp()
	close(answer)
	wg.Wait()
	if n := looks.Load(); n != 1 {
		t.Errorf("looks: got %d, want 1", n)
	}
}

func TestStatus_IsServedAsItLies(t *testing.T) {
	t.Parallel()
	e := newEdge(t, nil)
	w := e.send(t, http.MethodGet, "/status.json", "", "")
	if w.Code != http.StatusOK || w.Header().Get("ETag") != `"e1"` || w.Header().Get("Cache-Control") != "no-cache" || !strings.HasPrefix(w.Body.String(), `{"version":1,`) {
		t.Errorf("got %d %v %s, want the document with its ETag", w.Code, w.Header(), w.Body)
	}
	for etag, want := range map[string]int{`"e1"`: 304, `W/"e1"`: 304, `"e0"`: 200, "e1": 200} {
		r := newRequest(t, http.MethodGet, "/status.json", "")
		r.Header.Set("If-None-Match", etag)
		if w := serve(e, r); w.Code != want || (want == 304) != (w.Body.Len() == 0) {
			t.Errorf("If-None-Match %s: got %d with %d bytes, want %d", etag, w.Code, w.Body.Len(), want)
		}
	}
}

// Every row of the table of outcomes, in every language.
func TestForm_SpeaksTheBrowsersLanguage(t *testing.T) {
	t.Parallel()
	for accept, l := range map[string]web.Language{"": "en", "bn-BD,bn;q=0.9,en;q=0.8": "bn", "en, bn;q=0.5": "en", "fr": "en"} {
		for _, o := range booking.Outcomes() {
			e := refuses(t, o)
			asJSON := decode(t, e.book(t, goodBody).Body)
			key, _ := asJSON["error"].(string)
			if reason, ok := asJSON["reason"].(string); ok {
				key = reason
			}
			r := newRequest(t, http.MethodPost, "/book", goodForm)
			r.Header.Set("Content-Type", formType)
			if accept != "" {
				r.Header.Set("Accept-Language", accept)
			}
			w := serve(e, r)
			text := web.Say(l, key)
			if key != "internal" && text == web.Say(l, "internal") {
				t.Errorf("%s, %s: got no words of its own, want some", l, key)
			}
			for _, want := range []string{`<html lang="` + string(l) + `"`, text.Title} {
				if !strings.Contains(html.UnescapeString(w.Body.String()), want) {
					t.Errorf("Accept-Language %q, %s: want %q on the page:\n%s", accept, key, want, w.Body)
				}
			}
			if w.Header().Get("Vary") != "Accept-Language" {
				t.Errorf("Accept-Language %q, %s: Vary: got %q, want Accept-Language", accept, key, w.Header().Get("Vary"))
			}
			seconds, _ := strconv.Atoi(w.Header().Get("Retry-After"))
			if seconds > 1 && l == web.English && !strings.Contains(w.Body.String(), strconv.Itoa(seconds)+" seconds") {
				t.Errorf("%s: want the %d seconds of Retry-After in words:\n%s", key, seconds, w.Body)
			}
		}
	}
}

// Without JavaScript nothing counts down: the answer says how long there is.
func TestForm_TellsHowLong(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		held := booking.Row{Phase: booking.PhaseHeld, Deadline: time.Now().Add(5 * time.Minute).UnixMilli()}
		for want, err := range map[string]error{
			"You have 5 minutes to pay.":  &booking.DuplicateError{Row: held, Now: time.Now(), PaymentURL: payURL, BookingURL: "https://sale.test/booking/x"},
			"Opens in 3 hours 5 minutes.": &booking.NotOpenError{OpensAt: time.Now().Add(3*time.Hour + 5*time.Minute)},
		} {
			if w := refuses(t, err).send(t, http.MethodPost, "/book", formType, goodForm); !strings.Contains(w.Body.String(), want) {
				t.Errorf("%v: want %q on the page:\n%s", err, want, w.Body)
			}
		}
	})
}

// Under no-referrer a browser names no origin when it sends a form.
func TestForm_ComesWithoutAnOrigin(t *testing.T) {
	t.Parallel()
	r := newRequest(t, http.MethodPost, "/book", goodForm)
	r.Header.Set("Content-Type", formType)
	r.Header.Set("Origin", "null")
	r.Header.Set("Sec-Fetch-Site", "same-origin")
	if w := serve(newEdge(t, nil), r); w.Code != http.StatusSeeOther || w.Header().Get("Location") != payURL {
		t.Errorf("got %d to %q, want 303 to the payment", w.Code, w.Header().Get("Location"))
	}
}
