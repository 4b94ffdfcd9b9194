package httpapi_test

import (
	"context"
	"errors"
	"fmt"
	"html"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"holdfast/internal/booking"
	"holdfast/internal/httpapi"
	"holdfast/internal/httpapi/web"
)

func TestOutcomes_EverySentinelHasAStatus(t *testing.T) {
	t.Parallel()
	for _, outcome := range booking.Outcomes() {
		w := refuses(t, fmt.Errorf("book: %w", outcome)).book(t, goodBody)
		if m := decode(t, w.Body); w.Code == http.StatusInternalServerError || m["error"] == "internal" {
			t.Errorf("%v: got %d %v, want a status and a word of its own", outcome, w.Code, m["error"])
		}
	}
}

func TestOutcomes_AnythingElseIsAnOpaque500(t *testing.T) {
	t.Parallel()
	for _, err := range []error{errors.New("dial tcp 10.0.0.7: refused"), booking.ErrLedgerDamaged, booking.ErrNotAcknowledged, booking.ErrWouldAdmit, context.Canceled} {
		e := refuses(t, err)
		w := e.book(t, goodBody)
		if strings.Contains(w.Body.String(), err.Error()) {
			t.Errorf("%v: got it in the body, want it in the log only", err)
		}
		m := wantRefusal(t, err.Error(), w, 500, "internal")
		lines := e.log.lines(t, "request")
		if len(lines) != 1 || lines[0]["level"] != "ERROR" || lines[0]["error"] != err.Error() || lines[0]["request_id"] != m["request_id"] {
			t.Errorf("%v: log: got %v, want one ERROR line with the cause and the request id", err, lines)
		}
	}
}

// What could not be found out is no answer, whatever it was that stood in the way.
func TestOutcomes_TryAgainGoesBeforeItsCause(t *testing.T) {
	t.Parallel()
	for _, cause := range booking.Outcomes() {
		w := refuses(t, fmt.Errorf("payment of a repeated request: %w: %w", booking.ErrTryAgain, cause)).book(t, goodBody)
		wantRefusal(t, "try_again because of "+cause.Error(), w, 503, "try_again")
	}
}

func TestBook_AdmittedAnswer(t *testing.T) {
	t.Parallel()
	var got booking.Request
	var e *edge
	e = newEdge(t, func(d *httpapi.Deps) {
		d.Booker = booker(func(_ context.Context, r booking.Request) (booking.Held, error) {
			got = r
			return e.held(), nil
		})
	})
	w := e.book(t, goodBody)
	if w.Code != http.StatusAccepted || w.Header().Get("Cache-Control") != "no-store" || w.Header().Get("Content-Type") != "application/json; charset=utf-8" {
		t.Errorf("got %d, %v, want 202, JSON that nobody stores", w.Code, w.Header())
	}
	want := map[string]any{
		"payment_url": payURL, "payment_id": payment, "booking_url": "https://sale.test/booking/" + e.token(),
		"expires_at": "2026-12-01T04:10:00Z", "seconds_left": 599.0, "level": "N1",
	}
	if diff := cmp.Diff(want, decode(t, w.Body)); diff != "" {
		t.Errorf("body (-want +got):\n%s", diff)
	}
	if id := w.Header().Get("X-Request-Id"); got.RequestID != id || id == "" {
		t.Errorf("request id as booked: got %q, want the answer's, %q", got.RequestID, id)
	}
	got.RequestID = ""
	if diff := cmp.Diff(want1, got); diff != "" {
		t.Errorf("request as booked (-want +got):\n%s", diff)
	}
	lines := e.log.lines(t, "request")
	if len(lines) != 1 || lines[0]["outcome"] != "admitted" || lines[0]["attempt"] != attempt || lines[0]["level_id"] != "N1" ||
		lines[0]["candidate"] != booking.CandidateHash(code)[:8] || lines[0]["route"] != "/book" || lines[0]["code"] != 202.0 {
		t.Errorf("log: got %v, want one line with route, code, outcome, attempt, level and the start of the hash", lines)
	}
}

func TestBook_EveryRefusalOfTheContract(t *testing.T) {
	t.Parallel()
	now, deadline := started, started.Add(10*time.Minute)
	row := func(phase booking.Phase) booking.Row {
		return booking.Row{Attempt: attempt, Level: "N1", Phase: phase, Deadline: deadline.UnixMilli()}
	}
	links := booking.DuplicateError{Row: row(booking.PhaseHeld), Now: now.Add(time.Second), PaymentURL: payURL, BookingURL: "https://sale.test/booking/tok"}
	ending := links
	ending.Now = deadline.Add(-time.Millisecond)
	for _, c := range []struct {
		name   string
		err    error
		status int
		slug   string
		fields map[string]any // beside error, message, request_id
		retry  [2]int         // the least and the most; zero: none
	}{
		{"InvalidRequest", booking.ErrInvalidRequest, 400, "invalid_request", nil, [2]int{}},
		{"InvalidLevel", booking.ErrInvalidLevel, 400, "invalid_level", nil, [2]int{}},
		{"InvalidCode", booking.ErrInvalidCode, 400, "invalid_code", nil, [2]int{}},
		{"EmailMismatch", booking.ErrEmailMismatch, 400, "email_mismatch", nil, [2]int{}},
		{"DuplicatePayable", &links, 409, "duplicate", map[string]any{"payment_url": payURL, "booking_url": "https://sale.test/booking/tok", "level": "N1", "seconds_left": 599.0}, [2]int{}},
		{"DuplicateEnding", &ending, 409, "duplicate", map[string]any{"payment_url": payURL, "booking_url": "https://sale.test/booking/tok", "level": "N1", "seconds_left": 0.0}, [2]int{}},
		{"DuplicateAtWork", &booking.DuplicateError{Row: row(booking.PhaseNew), Now: now}, 409, "duplicate", nil, [2]int{2, 5}},
		{"DuplicatePaid", &booking.DuplicateError{Row: row(booking.PhasePaid), Now: now}, 409, "duplicate", map[string]any{"paid": true}, [2]int{}},
		{"DuplicatePaying", &booking.DuplicateError{Row: row(booking.PhasePaying), Now: now}, 409, "duplicate", nil, [2]int{}},
		{"DuplicateLapsed", &booking.DuplicateError{Row: row(booking.PhaseHeld), Now: deadline}, 409, "duplicate", nil, [2]int{}},
		{"LevelFull", booking.ErrLevelFull, 409, "level_full", map[string]any{"level": "N1"}, [2]int{}},
		{"IdempotencyMismatch", booking.ErrIdempotencyMismatch, 422, "idempotency_mismatch", nil, [2]int{}},
		{"SoldOut", booking.ErrSoldOut, 429, "closed", map[string]any{"reason": "sold_out"}, [2]int{30, 59}},
		{"NotOpen", &booking.NotOpenError{}, 503, "closed", map[string]any{"reason": "not_open"}, [2]int{10, 29}},
		{"Scheduled", &booking.NotOpenError{OpensAt: started}, 503, "closed", map[string]any{"reason": "not_open", "opens_at": "2026-12-01T04:00:00Z"}, [2]int{10, 29}},
		{"ScheduledElsewhere", &booking.NotOpenError{OpensAt: started.In(time.FixedZone("", 6*3600))}, 503, "closed", map[string]any{"reason": "not_open", "opens_at": "2026-12-01T04:00:00Z"}, [2]int{10, 29}},
		{"TryAgain", booking.ErrTryAgain, 503, "try_again", nil, [2]int{1, 4}},
		{"PaymentUnavailable", fmt.Errorf("%w: %w", booking.ErrPaymentUnavailable, booking.ErrInDoubt), 502, "payment_unavailable", nil, [2]int{3, 7}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			e := refuses(t, fmt.Errorf("book: %w", c.err))
			seen := map[string]bool{}
			for range 60 {
				w := e.book(t, goodBody)
				m := wantRefusal(t, "answer", w, c.status, c.slug)
				want := map[string]any{"error": m["error"], "message": m["message"], "request_id": m["request_id"]}
				for k, v := range c.fields {
					want[k] = v
				}
				if diff := cmp.Diff(want, m); diff != "" {
					t.Fatalf("body (-want +got):\n%s", diff)
				}
				retry := w.Header().Get("Retry-After")
				seen[retry] = true
				if n, err := strconv.Atoi(retry); c.retry == [2]int{} && retry != "" || c.retry != [2]int{} && (err != nil || n < c.retry[0] || n > c.retry[1]) {
					t.Fatalf("Retry-After: got %q, want %d to %d", retry, c.retry[0], c.retry[1])
				}
			}
			if c.retry != [2]int{} && len(seen) < 2 {
				t.Errorf("Retry-After of 60 answers: got %v, want them spread", seen)
			}
		})
	}
}

func TestBook_Draining(t *testing.T) {
	t.Parallel()
	e := untouched(t)
	e.Drain()
	wantRefusal(t, "draining", e.book(t, goodBody), 503, "try_again")
	wantRefusal(t, "malformed while draining", e.book(t, `{}`), 400, "invalid_request")
}

func pad(size int) string {
	return goodBody + strings.Repeat(" ", size-len(goodBody))
}

func TestBook_BadInputIsToldAndNotBooked(t *testing.T) {
	t.Parallel()
	const bad = "invalid_request"
	field := func(name, value string) string {
		fields := map[string]string{"code": `"AB-1001"`, "email": `"a@example.org"`, "level": `"N1"`}
		fields[name] = value
		return fmt.Sprintf(`{"code":%s,"email":%s,"level":%s}`, fields["code"], fields["email"], fields["level"])
	}
	for _, c := range []struct {
		name, contentType, body string
		status                  int
		slug                    string
	}{
		{"EmptyBody", jsonType, "", 400, bad},
		{"Spaces", jsonType, "   ", 400, bad},
		{"Null", jsonType, "null", 400, bad},
		{"Array", jsonType, "[" + goodBody + "]", 400, bad},
		{"Text", jsonType, `"code"`, 400, bad},
		{"Number", jsonType, "1", 400, bad},
		{"EmptyObject", jsonType, "{}", 400, bad},
		{"Cut", jsonType, goodBody[:len(goodBody)-1], 400, bad},
		{"TrailingComma", jsonType, `{"code":"AB-1001","email":"a@example.org","level":"N1",}`, 400, bad},
		{"SingleQuotes", jsonType, strings.ReplaceAll(goodBody, `"`, `'`), 400, bad},
		{"Comment", jsonType, "/**/" + goodBody, 400, bad},
		{"ByteOrderMark", jsonType, "\ufeff" + goodBody, 400, bad},
		{"TwoDocuments", jsonType, goodBody + goodBody, 400, bad},
		{"TwoLines", jsonType, goodBody + "\n" + goodBody, 400, bad},
		{"Form", jsonType, goodForm, 400, bad},
		{"NoCode", jsonType, `{"email":"a@example.org","level":"N1"}`, 400, bad},
		{"NoEmail", jsonType, `{"code":"AB-1001","level":"N1"}`, 400, bad},
		{"NoLevel", jsonType, `{"code":"AB-1001","email":"a@example.org"}`, 400, bad},
		{"CodeNull", jsonType, field("code", "null"), 400, bad},
		{"EmailNull", jsonType, field("email", "null"), 400, bad},
		{"LevelNull", jsonType, field("level", "null"), 400, bad},
		{"CodeNumber", jsonType, field("code", "1001"), 400, bad},
		{"EmailArray", jsonType, field("email", `["a@example.org"]`), 400, bad},
		{"LevelObject", jsonType, field("level", `{"id":"N1"}`), 400, bad},
		{"LevelTrue", jsonType, field("level", "true"), 400, bad},
		{"UnknownField", jsonType, `{"amount":1,` + goodBody[1:], 400, bad},
		{"Prototype", jsonType, `{"__proto__":{"level":"N2"},` + goodBody[1:], 400, bad},
		{"DuplicateKey", jsonType, `{"code":"AB-1001",` + goodBody[1:], 400, bad},
		{"DuplicateKeyEscaped", jsonType, `{"\u0063ode":"AB-1001",` + goodBody[1:], 400, bad},
		{"OtherCaseKey", jsonType, strings.Replace(goodBody, `"code"`, `"Code"`, 1), 400, bad},
		{"OtherCaseKeyBeside", jsonType, `{"CODE":"AB-1002",` + goodBody[1:], 400, bad},
		{"WebsiteNumber", jsonType, `{"website":1,` + goodBody[1:], 400, bad},
		{"InvalidUTF8", jsonType, field("email", "\"a\xff@example.org\""), 400, bad},
		{"InvalidUTF8Key", jsonType, "{\"co\xffde\":\"AB-1001\"," + goodBody[1:], 400, bad},
		{"LoneSurrogate", jsonType, field("email", `"a\ud800@example.org"`), 400, bad},
		{"RawNUL", jsonType, field("code", "\"AB-\x001001\""), 400, bad},
		{"RawNewline", jsonType, field("code", "\"AB-\n1001\""), 400, bad},
		{"NULBehind", jsonType, goodBody + "\x00", 400, bad},
		{"DeepArrays", jsonType, strings.Repeat("[", 8000), 400, bad},
		{"DeepObjects", jsonType, strings.Repeat(`{"a":`, 1600), 400, bad},
		{"DeepField", jsonType, field("code", strings.Repeat("[", 4000)+strings.Repeat("]", 4000)), 400, bad},
		{"BigNumber", jsonType, field("code", strings.Repeat("9", 8000)), 400, bad},
		{"UTF16", jsonType, "{\x00\"\x00c\x00", 400, bad},
		{"EmailTwoAt", jsonType, field("email", `"a@b@example.org"`), 400, bad},
		{"EmailEmpty", jsonType, field("email", `""`), 400, bad},
		{"EmailLong", jsonType, field("email", `"a@`+strings.Repeat("b", 253)+`"`), 400, bad},
		{"EmailNewline", jsonType, field("email", `"a@example.org\r\nBcc: b@example.org"`), 400, bad},

		{"CodeEmpty", jsonType, field("code", `""`), 400, "invalid_code"},
		{"CodeSpaces", jsonType, field("code", `"    "`), 400, "invalid_code"},
		{"CodeShort", jsonType, field("code", `"AB1"`), 400, "invalid_code"},
		{"CodeLong", jsonType, field("code", `"`+strings.Repeat("A", 33)+`"`), 400, "invalid_code"},
		{"CodeNUL", jsonType, field("code", `"AB-1001\u0000"`), 400, "invalid_code"},
		{"CodeDotlessI", jsonType, field("code", `"AB-\u0131001"`), 400, "invalid_code"},
		{"CodeInjection", jsonType, field("code", `"AB\r\nSET x 1"`), 400, "invalid_code"},
		{"LevelEmpty", jsonType, field("level", `""`), 400, "invalid_level"},
		{"LevelSpace", jsonType, field("level", `" N1"`), 400, "invalid_level"},
		{"LevelLong", jsonType, field("level", `"`+strings.Repeat("N", 17)+`"`), 400, "invalid_level"},
		{"LevelKey", jsonType, field("level", `"N1:x"`), 400, "invalid_level"},
		{"LevelNewline", jsonType, field("level", `"N1\n"`), 400, "invalid_level"},

		{"OneByteTooMany", jsonType, pad(8<<10 + 1), 413, "body_too_large"},
		{"MegabyteOfSpaces", jsonType, strings.Repeat(" ", 1<<20), 413, "body_too_large"},
		{"MegabyteOfField", jsonType, field("code", `"`+strings.Repeat("A", 1<<20)+`"`), 413, "body_too_large"},

		{"NoContentType", "", goodBody, 415, "unsupported_media_type"},
		{"PlainText", "text/plain", goodBody, 415, "unsupported_media_type"},
		{"Multipart", "multipart/form-data; boundary=x", goodBody, 415, "unsupported_media_type"},
		{"XML", "application/xml", goodBody, 415, "unsupported_media_type"},
		{"JSONSuffix", "application/problem+json", goodBody, 415, "unsupported_media_type"},
		{"BrokenContentType", "application/json; charset", goodBody, 415, "unsupported_media_type"},
		{"TwoTypes", "application/json, text/plain", goodBody, 415, "unsupported_media_type"},
		{"TypeGoesBeforeSize", "text/plain", strings.Repeat(" ", 1<<20), 415, "unsupported_media_type"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			w := untouched(t).send(t, http.MethodPost, "/book", c.contentType, c.body)
			m := wantRefusal(t, "answer", w, c.status, c.slug)
			if len(m) != 3 {
				t.Errorf("body: got %v, want error, message and request_id", keys(m))
			}
		})
	}
}

func TestBook_GoodInputHoweverItIsWritten(t *testing.T) {
	t.Parallel()
	for name, c := range map[string][2]string{
		"as it is":               {jsonType, goodBody},
		"exactly 8 KiB":          {jsonType, pad(8 << 10)},
		"charset":                {"application/json; charset=utf-8", goodBody},
		"capitals in the type":   {"Application/JSON", goodBody},
		"spaces around":          {jsonType, "\n\t " + goodBody + "\r\n"},
		"spaces in the values":   {jsonType, `{"code":" ab-1001 ","email":"\tA.B@example.org\n","level":"N1"}`},
		"escaped":                {jsonType, `{"\u0063ode":"\u0041B-1001","email":"a.b\u0040example.org","level":"N1"}`},
		"empty website":          {jsonType, `{"website":"",` + goodBody[1:]},
		"website null":           {jsonType, `{"website":null,` + goodBody[1:]},
		"form":                   {formType, goodForm},
		"form without website":   {formType, strings.TrimSuffix(goodForm, "&website=")},
		"form with a charset":    {formType + "; charset=UTF-8", goodForm},
		"form of exactly 8 KiB":  {formType, "email=a.b@example.org&level=N1&code=ab-1001" + strings.Repeat("+", 8<<10-len("email=a.b@example.org&level=N1&code=ab-1001"))},
		"form in another order":  {formType, "level=N1&website=&email=a.b@example.org&code=AB-1001"},
		"form, trailing newline": {formType, "level=N1&email=a.b@example.org&code=AB-1001%0D%0A"},
	} {
		var got []booking.Request
		var e *edge
		e = newEdge(t, func(d *httpapi.Deps) {
			d.Booker = booker(func(_ context.Context, r booking.Request) (booking.Held, error) {
				r.RequestID = ""
				got = append(got, r)
				return e.held(), nil
			})
		})
		w := e.send(t, http.MethodPost, "/book", c[0], c[1])
		if w.Code != http.StatusAccepted && w.Code != http.StatusSeeOther {
			t.Errorf("%s: got %d %s, want it booked", name, w.Code, w.Body)
		}
		if diff := cmp.Diff([]booking.Request{want1}, got); diff != "" {
			t.Errorf("%s: booked (-want +got):\n%s", name, diff)
		}
	}
}

func TestBook_IdempotencyKey(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		keys []string
		want string // "" is a refusal
	}{
		"one character":  {[]string{"x"}, "x"},
		"128 characters": {[]string{strings.Repeat("k", 128)}, strings.Repeat("k", 128)},
		"any visible":    {[]string{`!"#$%&'()*+,-./:;<=>?@[\]^_{|}~` + "`"}, `!"#$%&'()*+,-./:;<=>?@[\]^_{|}~` + "`"},
		"empty":          {[]string{""}, ""},
		"129 characters": {[]string{strings.Repeat("k", 129)}, ""},
		"space inside":   {[]string{"a b"}, ""},
		"space alone":    {[]string{" "}, ""},
		"tab inside":     {[]string{"a\tb"}, ""},
		"non-ASCII":      {[]string{"clé"}, ""},
		"latin-1":        {[]string{"cl\xe9"}, ""},
		"NUL":            {[]string{"a\x00"}, ""},
		"DEL":            {[]string{"a\x7f"}, ""},
		"twice":          {[]string{"a", "a"}, ""},
		"twice, empty":   {[]string{"a", ""}, ""},
	} {
		var got []booking.Request
		var e *edge
		e = newEdge(t, func(d *httpapi.Deps) {
			d.Booker = booker(func(_ context.Context, r booking.Request) (booking.Held, error) {
				got = append(got, r)
				return e.held(), nil
			})
		})
		r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/book", strings.NewReader(goodBody))
		r.Header.Set("Content-Type", jsonType)
		r.Header["Idempotency-Key"] = c.keys
		w := httptest.NewRecorder()
		e.ServeHTTP(w, r)
		if c.want == "" {
			wantRefusal(t, name, w, 400, "invalid_request")
			if len(got) != 0 {
				t.Errorf("%s: got it booked, want it refused", name)
			}
			continue
		}
		if w.Code != http.StatusAccepted || len(got) != 1 || got[0].Key != c.want {
			t.Errorf("%s: got %d, booked %v, want 202 with key %q", name, w.Code, got, c.want)
		}
	}
}

// The candidate's tab being closed is the use case's business: it gets the
// request's own context.
func TestBook_HandsItsContextOn(t *testing.T) {
	t.Parallel()
	gone, leave := context.WithCancel(t.Context())
	leave()
	e := newEdge(t, func(d *httpapi.Deps) {
		d.Booker = booker(func(ctx context.Context, _ booking.Request) (booking.Held, error) {
			if !errors.Is(ctx.Err(), context.Canceled) {
				t.Errorf("context: got %v, want the request's, which is over", ctx.Err())
			}
			return booking.Held{}, booking.ErrTryAgain
		})
	})
	r := httptest.NewRequestWithContext(gone, http.MethodPost, "/book", strings.NewReader(goodBody))
	r.Header.Set("Content-Type", jsonType)
	w := httptest.NewRecorder()
	e.ServeHTTP(w, r)
	wantRefusal(t, "answer to nobody", w, 503, "try_again")
}

func TestForm_AdmittedGoesToThePayment(t *testing.T) {
	t.Parallel()
	w := newEdge(t, nil).send(t, http.MethodPost, "/book", formType, goodForm)
	if w.Code != http.StatusSeeOther || w.Header().Get("Location") != payURL || w.Header().Get("Cache-Control") != "no-store" {
		t.Errorf("got %d to %q, %q, want 303 to the payment, not stored", w.Code, w.Header().Get("Location"), w.Header().Get("Cache-Control"))
	}
}

// wantPage holds an answer to a form to the words of that key; "" is any words.
func wantPage(t testing.TB, what string, w *httptest.ResponseRecorder, status int, words string) {
	t.Helper()
	title := "<title>"
	if words != "" {
		title = web.Say(web.English, words).Title
	}
	if w.Code != status || !strings.Contains(html.UnescapeString(w.Body.String()), title) {
		t.Errorf("%s: got %d %s, want %d and %q", what, w.Code, w.Body, status, title)
	}
	want := append(web.SecurityHeaders(), web.Header{Name: "Content-Type", Value: "text/html; charset=utf-8"}, web.Header{Name: "Cache-Control", Value: "no-store"})
	for _, h := range want {
		if got := w.Header().Get(h.Name); got != h.Value {
			t.Errorf("%s: %s: got %q, want %q", what, h.Name, got, h.Value)
		}
	}
	if w.Header().Get("X-Request-Id") == "" {
		t.Errorf("%s: X-Request-Id: got none, want one", what)
	}
}

func TestForm_RefusalsArePagesWithTheSameStatus(t *testing.T) {
	t.Parallel()
	held := booking.Row{Phase: booking.PhaseHeld, Deadline: started.Add(time.Minute).UnixMilli()}
	words := map[error]string{
		booking.ErrSoldOut:                      "sold_out",
		booking.ErrNotOpen:                      "not_open",
		booking.ErrDuplicate:                    "duplicate",
		errors.New("a bug"):                     "internal",
		&booking.NotOpenError{OpensAt: started}: "not_open",
		&booking.DuplicateError{Row: booking.Row{Phase: booking.PhaseNew}}:                                                    "duplicate_working",
		&booking.DuplicateError{Row: booking.Row{Phase: booking.PhasePaid}}:                                                   "duplicate_paid",
		&booking.DuplicateError{Row: held, Now: started, PaymentURL: payURL, BookingURL: "https://sale.test/booking/to-k_en"}: "duplicate_payable",
	}
	for _, o := range booking.Outcomes() {
		if words[o] == "" {
			words[o] = ""
		}
	}
	for err, key := range words {
		e := refuses(t, err)
		asJSON := e.book(t, goodBody)
		w := e.send(t, http.MethodPost, "/book", formType, goodForm)
		if key == "" {
			key, _ = decode(t, asJSON.Body)["error"].(string)
		}
		wantPage(t, err.Error(), w, asJSON.Code, key)
		if (w.Header().Get("Retry-After") == "") != (asJSON.Header().Get("Retry-After") == "") {
			t.Errorf("%v: Retry-After: got %q on the page, %q as JSON, want it on both or none", err, w.Header().Get("Retry-After"), asJSON.Header().Get("Retry-After"))
		}
		if key == "duplicate_payable" {
			for _, link := range []string{`href="https://pay.test/pay/` + payment, `href="/result?booking=to-k_en"`} {
				if !strings.Contains(w.Body.String(), link) {
					t.Errorf("%v: got no %s on the page, want the link:\n%s", err, link, w.Body)
				}
			}
		}
	}
}

func TestForm_BadInputIsAPage(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		body   string
		status int
		words  string
	}{
		"empty":                {"", 400, "invalid_request"},
		"unknown field":        {goodForm + "&amount=1", 400, "invalid_request"},
		"field of other case":  {strings.Replace(goodForm, "code", "Code", 1), 400, "invalid_request"},
		"field twice":          {goodForm + "&code=AB-1002", 400, "invalid_request"},
		"field twice, equal":   {goodForm + "&level=N1", 400, "invalid_request"},
		"honeypot twice":       {goodForm + "&website=x", 400, "invalid_request"},
		"no level":             {"code=ab-1001&email=a@example.org", 400, "invalid_request"},
		"JSON":                 {goodBody, 400, "invalid_request"},
		"semicolons":           {"code=ab-1001;email=a@example.org;level=N1", 400, "invalid_request"},
		"bad escape":           {"code=%zz&email=a@example.org&level=N1", 400, "invalid_request"},
		"e-mail not UTF-8":     {"code=ab-1001&email=a%ff@example.org&level=N1", 400, "invalid_request"},
		"code with NUL":        {"code=ab-1001%00&email=a@example.org&level=N1", 400, "invalid_code"},
		"level of another one": {"code=ab-1001&email=a@example.org&level=N1+N2", 400, "invalid_level"},
		"one byte too many":    {goodForm + strings.Repeat("+", 8<<10+1-len(goodForm)), 413, "body_too_large"},
	} {
		w := untouched(t).send(t, http.MethodPost, "/book", formType, c.body)
		wantPage(t, name, w, c.status, c.words)
	}
}

// On the wire, where the body's length is not known before it is read.
func TestBook_OnTheWire(t *testing.T) {
	t.Parallel()
	e := newEdge(t, nil)
	srv := httptest.NewServer(e)
	t.Cleanup(srv.Close)
	for name, c := range map[string]struct {
		body   string
		key    string
		status int
		slug   string
	}{
		"chunked, good":               {goodBody, "", 202, ""},
		"chunked, 8 KiB":              {pad(8 << 10), "", 202, ""},
		"chunked, one byte too many":  {pad(8<<10 + 1), "", 413, "body_too_large"},
		"chunked, megabytes":          {strings.Repeat(" ", 4<<20), "", 413, "body_too_large"},
		"chunked, empty":              {"", "", 400, "invalid_request"},
		"key with spaces around it":   {goodBody, "  intent-1  ", 202, ""},
		"key of spaces":               {goodBody, "   ", 400, "invalid_request"},
		"key that is longer than 128": {goodBody, strings.Repeat("k", 129), 400, "invalid_request"},
	} {
		// A reader of no known length is sent in chunks.
		r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, srv.URL+"/book", struct{ *strings.Reader }{strings.NewReader(c.body)})
		if err != nil {
			t.Fatal(err)
		}
		r.ContentLength = -1
		r.Header.Set("Content-Type", jsonType)
		if c.key != "" {
			r.Header.Set("Idempotency-Key", c.key)
		}
		resp, err := srv.Client().Do(r)
		if err != nil {
			t.Errorf("%s: got %v, want an answer", name, err)
			continue
		}
		if c.slug == "" {
			if resp.StatusCode != c.status {
				t.Errorf("%s: got %d, want %d", name, resp.StatusCode, c.status)
			}
		} else {
			wantProblem(t, name, resp.StatusCode, resp.Header, resp.Body, c.status, c.slug)
		}
		resp.Body.Close()
	}
}
