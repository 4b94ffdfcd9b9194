package adminapi_test

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"holdfast/internal/adminapi"
	"holdfast/internal/booking"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	token = "0123456789abcdef0123456789abcdef"
	file  = "code,email\nAB-0001,a@example.org\nAB-0002,b@example.org\n"
)

// loader takes a list as the real one does: all of it, or nothing.
type loader struct {
	mu     sync.Mutex
	loaded []booking.Candidate // what the last load that was applied brought
	loads  int
	got    adminapi.Options
	err    error         // instead of applying
	enter  chan struct{} // if set, it waits here with the list read
}

func (l *loader) Load(ctx context.Context, list iter.Seq2[booking.Candidate, error], o adminapi.Options) (adminapi.Report, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.loads++
	l.got = o
	var all []booking.Candidate
	for c, err := range list {
		if err != nil {
			return adminapi.Report{}, fmt.Errorf("allowlist: %w", err)
		}
		all = append(all, c)
	}
	report := adminapi.Report{Rows: len(all), Added: len(all), LiveAttempts: []string{"attempt-1"}}
	if l.enter != nil {
		select {
		case <-l.enter:
		case <-ctx.Done():
			return report, ctx.Err()
		}
	}
	if l.err != nil || o.DryRun {
		return report, l.err
	}
	l.loaded, report.Applied = all, true
	return report, nil
}

// journal keeps entries, and refuses those with that outcome.
type journal struct {
	mu      sync.Mutex
	entries []booking.LogEntry
	refuse  booking.LogOutcome
}

func (j *journal) AppendLog(_ context.Context, e booking.LogEntry) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	if _, err := e.Encode(); err != nil {
		return err
	}
	if e.Outcome == j.refuse {
		return errors.New("the store is away")
	}
	j.entries = append(j.entries, e)
	return nil
}

type world struct {
	loader  loader
	journal journal
	logged  bytes.Buffer
	url     string
}

func serve(t *testing.T, change func(*adminapi.Deps)) *world {
	t.Helper()
	w := new(world)
	d := adminapi.Deps{
		Token: token, Codes: booking.DefaultCodeRule(), Loader: &w.loader, Journal: &w.journal,
		Log: slog.New(slog.NewJSONHandler(&w.logged, nil)),
	}
	if change != nil {
		change(&d)
	}
	s := httptest.NewUnstartedServer(adminapi.NewCandidates(d))
	s.Config.ReadTimeout = 300 * time.Millisecond // as the admin listener has one, for requests that are small
	s.Start()
	t.Cleanup(s.Close)
	w.url = s.URL + "/admin/candidates"
	return w
}

type answer struct {
	status int
	header http.Header
	body   map[string]any
}

func (w *world) put(t *testing.T, query string, body io.Reader, set map[string]string) answer {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPut, w.url+query, body)
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Authorization", "Bearer "+token)
	r.Header.Set("Content-Type", "text/csv")
	for name, value := range set {
		if name == "Method" {
			r.Method = value
			continue
		}
		r.Header.Set(name, value)
	}
	hc := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := hc.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	a := answer{status: resp.StatusCode, header: resp.Header}
	if err := json.NewDecoder(resp.Body).Decode(&a.body); err != nil {
		t.Fatalf("answer %d: got %v, want JSON", resp.StatusCode, err)
	}
	if a.body["request_id"] == "" || a.header.Get("Cache-Control") != "no-store" {
		t.Errorf("answer: got %v, %v, want a request id and no-store", a.body, a.header)
	}
	return a
}

func (j *journal) outcomes() []booking.LogOutcome {
	j.mu.Lock()
	defer j.mu.Unlock()
	var out []booking.LogOutcome
	for _, e := range j.entries {
		out = append(out, e.Outcome)
	}
	return out
}

func TestPut_ReplacesTheListAndIsLogged(t *testing.T) {
	t.Parallel()
	w := serve(t, nil)
	want := []booking.Candidate{{Code: "AB-0001", Email: "a@example.org"}, {Code: "AB-0002", Email: "b@example.org"}}
	for range 2 { // it replaces: again is the same
		a := w.put(t, "?while_open=true&allow_removals=1", strings.NewReader(file+"AB-0001,a@example.org\n"), nil)
		if a.status != http.StatusOK || a.body["applied"] != true || a.body["rows"] != 2.0 || a.body["repeated"] != 1.0 || a.body["dry_run"] != false {
			t.Fatalf("got %d %v, want 200 and two rows applied", a.status, a.body)
		}
	}
	if diff := cmp.Diff(want, w.loader.loaded); diff != "" {
		t.Errorf("loaded (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(adminapi.Options{WhileOpen: true, AllowRemovals: true}, w.loader.got); diff != "" {
		t.Errorf("options (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]booking.LogOutcome{"begun", "done", "begun", "done"}, w.journal.outcomes()); diff != "" {
		t.Errorf("operator's log (-want +got):\n%s", diff)
	}
	e := w.journal.entries[1]
	if e.Who != "back office, token" || e.From != "127.0.0.1" || e.What != "candidates load" || !strings.Contains(string(e.After), `"rows":2`) {
		t.Errorf("entry: got %+v, want who, from, what and the report", e)
	}
	text, _ := json.Marshal(w.journal.entries)
	for _, personal := range []string{"AB-0001", "a@example.org", token} {
		if strings.Contains(string(text)+w.logged.String(), personal) {
			t.Errorf("%q stands in a log", personal)
		}
	}
}

func TestPut_DryRunChangesNothing(t *testing.T) {
	t.Parallel()
	w := serve(t, nil)
	a := w.put(t, "?dry_run=true", strings.NewReader(file), nil)
	if a.status != http.StatusOK || a.body["applied"] != false || a.body["dry_run"] != true || a.body["added"] != 2.0 {
		t.Errorf("got %d %v, want 200, the figures, and nothing applied", a.status, a.body)
	}
	if w.loader.loaded != nil || w.journal.outcomes() != nil {
		t.Errorf("got %v loaded and %v logged, want neither", w.loader.loaded, w.journal.outcomes())
	}
}

func TestPut_TakesEveryShape(t *testing.T) {
	t.Parallel()
	var zipped bytes.Buffer
	z := gzip.NewWriter(&zipped)
	_, _ = io.WriteString(z, file)
	_ = z.Close()
	for name, c := range map[string]struct {
		body string
		set  map[string]string
	}{
		"Semicolons":      {strings.ReplaceAll(file, ",", ";"), map[string]string{"Content-Type": "text/csv; charset=utf-8"}},
		"Gzip":            {zipped.String(), map[string]string{"Content-Type": "application/gzip"}},
		"ContentEncoding": {zipped.String(), map[string]string{"Content-Encoding": "gzip"}},
		"Tabs":            {strings.ReplaceAll(file, ",", "\t"), map[string]string{"Content-Type": "text/tab-separated-values"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := serve(t, nil)
			if a := w.put(t, "", strings.NewReader(c.body), c.set); a.status != http.StatusOK || len(w.loader.loaded) != 2 {
				t.Errorf("got %d %v, want both candidates loaded", a.status, a.body)
			}
		})
	}
}

func TestPut_RefusesBeforeItReads(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		query  string
		set    map[string]string
		deps   func(*adminapi.Deps)
		status int
		slug   string
	}{
		"Off":              {deps: func(d *adminapi.Deps) { d.Token = "" }, status: 404, slug: "not_found"},
		"OffWithoutHeader": {set: map[string]string{"Authorization": ""}, deps: func(d *adminapi.Deps) { d.Token = "" }, status: 404, slug: "not_found"},
		"NoToken":          {set: map[string]string{"Authorization": ""}, status: 401, slug: "unauthorized"},
		"OtherToken":       {set: map[string]string{"Authorization": "Bearer " + strings.Repeat("0", 32)}, status: 401, slug: "unauthorized"},
		"PartOfTheToken":   {set: map[string]string{"Authorization": "Bearer " + token[:31]}, status: 401, slug: "unauthorized"},
		"OtherScheme":      {set: map[string]string{"Authorization": "Basic " + token}, status: 401, slug: "unauthorized"},
		"Method":           {set: map[string]string{"Method": http.MethodPost}, status: 405, slug: "method_not_allowed"},
		"NoType":           {set: map[string]string{"Content-Type": ""}, status: 415, slug: "unsupported_media_type"},
		"Form":             {set: map[string]string{"Content-Type": "multipart/form-data; boundary=x"}, status: 415, slug: "unsupported_media_type"},
		"Encoding":         {set: map[string]string{"Content-Encoding": "br"}, status: 415, slug: "unsupported_media_type"},
		"Large":            {deps: func(d *adminapi.Deps) { d.MostBody = int64(len(file)) - 1 }, status: 413, slug: "body_too_large"},
		"Misspelt":         {query: "?while-open=true", status: 400, slug: "invalid_request"},
		"NoBoolean":        {query: "?dry_run=yes", status: 400, slug: "invalid_request"},
		"Twice":            {query: "?dry_run=true&dry_run=false", status: 400, slug: "invalid_request"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := serve(t, c.deps)
			a := w.put(t, c.query, strings.NewReader(file), c.set)
			if a.status != c.status || a.body["error"] != c.slug || a.body["message"] == "" || w.loader.loads != 0 {
				t.Errorf("got %d %v, %d loads, want %d %s and none", a.status, a.body, w.loader.loads, c.status, c.slug)
			}
			if c.status == 401 && !strings.HasPrefix(a.header.Get("WWW-Authenticate"), "Bearer") {
				t.Errorf("WWW-Authenticate: got %q, want Bearer", a.header.Get("WWW-Authenticate"))
			}
		})
	}
}

func TestPut_AWrongFileIsToldByItsLinesAndChangesNothing(t *testing.T) {
	t.Parallel()
	w := serve(t, nil)
	a := w.put(t, "", strings.NewReader(file+"x,c@example.org\nAB-0001,other@example.org\nAB-0004,d@example.org\n"), nil)
	want := []any{
		map[string]any{"line": 4.0, "reason": "code: not a candidate code"},
		map[string]any{"line": 5.0, "reason": "its code is on line 2 with another e-mail address"},
	}
	if diff := cmp.Diff(want, a.body["errors"]); diff != "" || a.status != http.StatusBadRequest || a.body["wrong"] != 2.0 || a.body["error"] != "file_wrong" {
		t.Errorf("got %d %v, want 400; errors (-want +got):\n%s", a.status, a.body, diff)
	}
	if _, told := a.body["added"]; told || w.loader.loaded != nil {
		t.Errorf("got %v, loaded %v, want no figures of half a file and nothing loaded", a.body, w.loader.loaded)
	}
	if diff := cmp.Diff([]booking.LogOutcome{"begun", "refused"}, w.journal.outcomes()); diff != "" {
		t.Errorf("operator's log (-want +got):\n%s", diff)
	}
	for name, body := range map[string]string{"Empty": "", "NoHeader": "AB-0001,a@example.org\n", "BrokenGzip": "\x1f\x8b\x08"} {
		if a := w.put(t, "", strings.NewReader(body), nil); a.status != http.StatusBadRequest || a.body["error"] != "file_wrong" {
			t.Errorf("%s: got %d %v, want 400 file_wrong", name, a.status, a.body)
		}
	}
}

func TestPut_SaysWhyTheLoaderDidNot(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		err     error
		status  int
		slug    string
		outcome booking.LogOutcome
	}{
		"Open":            {&adminapi.Refusal{Slug: "booking_open", Err: errors.New("close it")}, 409, "booking_open", "refused"},
		"Removals":        {fmt.Errorf("load: %w", &adminapi.Refusal{Slug: "removals", Err: errors.New("6 of 10")}), 409, "removals", "refused"},
		"NotAcknowledged": {fmt.Errorf("swap: %w", booking.ErrNotAcknowledged), 503, "try_again", "unknown"},
		"RedisAway":       {errors.New("dial tcp 10.0.0.7:6379: refused"), 503, "try_again", "unknown"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := serve(t, nil)
			w.loader.err = c.err
			a := w.put(t, "", strings.NewReader(file), nil)
			if a.status != c.status || a.body["error"] != c.slug || a.body["applied"] != false || a.body["rows"] != 2.0 {
				t.Errorf("got %d %v, want %d %s with the figures", a.status, a.body, c.status, c.slug)
			}
			if retry := a.header.Get("Retry-After"); (retry != "") != (c.status == 503) {
				t.Errorf("Retry-After: got %q with %d", retry, a.status)
			}
			if diff := cmp.Diff([]booking.LogOutcome{"begun", c.outcome}, w.journal.outcomes()); diff != "" {
				t.Errorf("operator's log (-want +got):\n%s", diff)
			}
			if text, _ := json.Marshal(a.body); strings.Contains(string(text), "10.0.0.7") {
				t.Errorf("the answer tells where Redis is: %s", text)
			}
		})
	}
}

func TestPut_WithoutTheLogNothingIsChanged(t *testing.T) {
	t.Parallel()
	w := serve(t, nil)
	w.journal.refuse = booking.LogBegun
	a := w.put(t, "", strings.NewReader(file), nil)
	if message, _ := a.body["message"].(string); a.status != 503 || w.loader.loads != 0 || !strings.Contains(message, "nothing was changed") {
		t.Errorf("the beginning refused: got %d %v, %d loads, want 503 and none", a.status, a.body, w.loader.loads)
	}
	w.journal.refuse = booking.LogDone
	a = w.put(t, "", strings.NewReader(file), nil)
	if message, _ := a.body["message"].(string); a.status != 503 || a.body["applied"] != true || !strings.Contains(message, "was replaced") {
		t.Errorf("the end refused: got %d %v, want 503 that says it was replaced", a.status, a.body)
	}
}

// A body that comes more slowly than the server's time-out for whole requests is read
// to its end, and the load may take longer than that too.
func TestPut_OutlivesTheServersTimeouts(t *testing.T) {
	t.Parallel()
	w := serve(t, nil)
	w.loader.enter = make(chan struct{})
	body, feed := io.Pipe()
	go func() {
		for line := range strings.Lines(file) {
			<-time.After(200 * time.Millisecond)
			_, _ = io.WriteString(feed, line)
		}
		_ = feed.Close()
		<-time.After(500 * time.Millisecond)
		close(w.loader.enter)
	}()
	if a := w.put(t, "", body, nil); a.status != http.StatusOK || a.body["applied"] != true {
		t.Errorf("got %d %v, want 200", a.status, a.body)
	}
}

// A connection that breaks before the file's end applies nothing, however whole the
// part before it looks.
func TestPut_ABrokenConnectionAppliesNothing(t *testing.T) {
	t.Parallel()
	for name, head := range map[string]string{
		"OfKnownLength": fmt.Sprintf("Content-Length: %d\r\n\r\n%s", len(file)+10, file),
		"InChunks":      fmt.Sprintf("Transfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n", len(file), file),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := serve(t, nil)
			addr := strings.TrimSuffix(strings.TrimPrefix(w.url, "http://"), "/admin/candidates")
			conn, err := net.Dial("tcp", addr) //nolint:noctx // it is cut in the next lines
			if err != nil {
				t.Fatal(err)
			}
			if _, err := fmt.Fprintf(conn, "PUT /admin/candidates HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer %s\r\nContent-Type: text/csv\r\n%s", token, head); err != nil {
				t.Fatal(err)
			}
			if err := conn.(*net.TCPConn).CloseWrite(); err != nil { // all it will ever send
				t.Fatal(err)
			}
			answer, err := io.ReadAll(conn)
			conn.Close()
			if err != nil || !strings.Contains(string(answer), " 400 ") && len(answer) > 0 {
				t.Errorf("got %q, %v, want 400 or nothing", answer, err)
			}
			w.loader.mu.Lock()
			defer w.loader.mu.Unlock()
			if w.loader.loads != 1 || w.loader.loaded != nil {
				t.Errorf("got %d loads, %v loaded, want one that applied nothing", w.loader.loads, w.loader.loaded)
			}
			if diff := cmp.Diff([]booking.LogOutcome{"begun", "refused"}, w.journal.outcomes()); diff != "" {
				t.Errorf("operator's log (-want +got):\n%s", diff)
			}
		})
	}
}

func TestPut_MoreThanTheBoundWithoutALengthIsRefused(t *testing.T) {
	t.Parallel()
	w := serve(t, func(d *adminapi.Deps) { d.MostBody = int64(len(file)) })
	a := w.put(t, "", io.MultiReader(strings.NewReader(file), strings.NewReader("AB-0003,c@example.org\n")), nil)
	if a.status != http.StatusRequestEntityTooLarge || a.body["error"] != "body_too_large" || w.loader.loaded != nil {
		t.Errorf("got %d %v, loaded %v, want 413 and nothing", a.status, a.body, w.loader.loaded)
	}
}
