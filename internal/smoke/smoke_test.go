package smoke_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"holdfast/internal/smoke"
)

// named gives the checks of a report that ended in that state.
func named(r smoke.Report, s smoke.State) (list []string) {
	for _, c := range r.Checks {
		if c.State == s {
			list = append(list, c.Name)
		}
	}
	return list
}

func find(t *testing.T, r smoke.Report, name string) smoke.Check {
	t.Helper()
	i := slices.IndexFunc(r.Checks, func(c smoke.Check) bool { return c.Name == name })
	if i < 0 {
		t.Fatalf("check %q: got none of that name", name)
	}
	return r.Checks[i]
}

func look(t *testing.T, o smoke.Options) smoke.Report {
	t.Helper()
	r, err := smoke.Run(t.Context(), o)
	if err != nil {
		t.Fatalf("run: got %v, want a report", err)
	}
	return r
}

// on is a flaw of the answers to one path.
func on(path string, how func(resp *http.Response)) flaw {
	return flaw{response: func(resp *http.Response) {
		if resp.Request.URL.Path == path {
			how(resp)
		}
	}}
}

// header has one header of the answers to a path replaced; "" removes it.
func header(path, name, value string) flaw {
	return on(path, func(resp *http.Response) {
		resp.Header.Del(name)
		if value != "" {
			resp.Header.Set(name, value)
		}
	})
}

// text has some of the answers to a path replaced.
func text(path, old, with string) flaw {
	return on(path, func(resp *http.Response) {
		change(resp, func(b []byte) []byte { return regexp.MustCompile(old).ReplaceAll(b, []byte(with)) })
	})
}

// when answers the requests whose method, path, type and body fit the expression.
func when(expression string, status int, slug string) flaw {
	fits := regexp.MustCompile(expression)
	return flaw{answer: func(w http.ResponseWriter, r *http.Request) bool {
		body, err := io.ReadAll(r.Body)
		r.Body = io.NopCloser(bytes.NewReader(body))
		all := r.Method + " " + r.URL.Path + " " + r.Header.Get("Content-Type") + " " + string(body)
		if err != nil || !fits.MatchString(all) {
			return false
		}
		if status == http.StatusServiceUnavailable {
			w.Header().Set("Retry-After", "5")
		}
		w.Header().Set("Cache-Control", "no-store")
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(status)
		fmt.Fprintf(w, `{"error":%q,"message":"m","request_id":"r"}`, slug)
		return true
	}}
}

// broken are flaws, and the check that must find each.
var broken = []struct {
	check, name string
	flaw        flaw
	want        string // in what is said
}{
	{"certificate", "expired", flaw{certificate: func(c *x509.Certificate) { c.NotAfter = time.Now().Add(-time.Hour) }}, "expired"},
	{"certificate", "of another name", flaw{certificate: func(c *x509.Certificate) { c.DNSNames = []string{"other.example.org"} }}, "other.example.org"},
	{"certificate", "of nobody known", flaw{options: func(o *smoke.Options) { o.Roots = x509.NewCertPool() }}, "unknown authority"},
	{"certificate", "ends soon", flaw{certificate: func(c *x509.Certificate) { c.NotAfter = time.Now().Add(13 * 24 * time.Hour) }}, "want 14 days at least"},
	{"old TLS", "1.1 is spoken", flaw{tls: func(c *tls.Config) { c.MinVersion = tls.VersionTLS10 }}, "got a connection with TLS 1.1"},
	{"https only", "page over http", flaw{plain: welcome}, "got 200, want 301"},
	{"https only", "to another site", flaw{plain: func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, site+".example.com/", http.StatusMovedPermanently)
	}}, `to "https://seats.example.org.example.com/"`},
	{"https only", "nobody on port 80", flaw{dial: func(addr string) error {
		if strings.HasSuffix(addr, ":80") {
			return errors.New("connection refused")
		}
		return nil
	}}, "connection refused"},
	{"health", "draining", when(`^GET /health`, 503, "try_again"), "got 503 try_again, want 200"},
	{"health", "another site", text("/health", `.*`, "<html>"), "want the status ok"},
	{"clock", "behind", header("/health", "Date", time.Now().Add(-time.Hour).UTC().Format(http.TimeFormat)), "clock is -"},
	{"clock", "ahead", header("/health", "Date", time.Now().Add(time.Hour).UTC().Format(http.TimeFormat)), "want 5s at most"},
	{"page", "not there", flaw{answer: func(w http.ResponseWriter, r *http.Request) bool {
		if r.Method == http.MethodGet && r.URL.Path == "/" {
			forbidden(w, r)
			return true
		}
		return false
	}}, "GET /: got 403, want 200"},
	{"page", "somebody else's", text("/", `id="sale"`, ""), "want the page that seatctl page export writes"},
	{"page", "saved as a file", header("/", "Content-Type", "binary/octet-stream"), "binary/octet-stream"},
	{"page", "no policy", header("/", "Content-Security-Policy", ""), "Content-Security-Policy with "},
	{"page", "policy of another version", text("/", `<script>`, "<script>\n"), "with script-src"},
	{"page", "policy that allows anything", on("/", func(resp *http.Response) {
		h := resp.Header.Get("Content-Security-Policy")
		resp.Header.Set("Content-Security-Policy", strings.Replace(h, "style-src", "style-src 'unsafe-inline'", 1))
	}), "with style-src"},
	{"page", "framed", on("/", func(resp *http.Response) {
		h := resp.Header.Get("Content-Security-Policy")
		resp.Header.Set("Content-Security-Policy", strings.Replace(h, "frame-ancestors 'none'", "", 1))
	}), "with frame-ancestors"},
	{"page", "referrer", header("/", "Referrer-Policy", "origin"), `got Referrer-Policy "origin", want "no-referrer"`},
	{"page", "sniffed", header("/", "X-Content-Type-Options", ""), "X-Content-Type-Options"},
	{"page", "kept for a day", header("/", "Cache-Control", "public, max-age=86400"), "want a max-age of 60 at most"},
	{"result page", "not there", text("/result", `id="sale"`, ""), "GET /result: got"},
	{"strict transport", "none", header("/", "Strict-Transport-Security", ""), "want max-age=15724800 at least"},
	{"strict transport", "an hour", header("/result", "Strict-Transport-Security", "max-age=3600"), "GET /result: got Strict-Transport-Security"},
	{"status.json", "not there", when(`^GET /status.json`, 404, "not_found"), "got 404 not_found, want 200"},
	{"status.json", "no JSON", text("/status.json", `^`, "x"), "want JSON"},
	{"status.json", "more left than the cap", text("/status.json", `"left":20700`, `"left":20701`), "left from 0 to the cap"},
	{"status.json", "less than nothing left", text("/status.json", `"left":20700`, `"left":-1`), "left from 0 to the cap"},
	{"status.json", "without open", text("/status.json", `"open":true,`, ``), "open is not there"},
	{"status.json", "without a version", text("/status.json", `"version":\d+,`, ``), "version is 0"},
	{"status.json", "without a time", text("/status.json", `"updated_at":"[^"]+",`, ``), "updated_at is not there"},
	{"status.json", "of tomorrow", text("/status.json", `"updated_at":"\d+-`, `"updated_at":"2999-`), "ahead of this machine's clock"},
	{"status.json", "without levels", text("/status.json", `"levels":\[.*\]`, `"levels":[]`), "there are no levels"},
	{"status.json", "full with seats left", text("/status.json", `"full":false`, `"full":true`), "full when none is left"},
	{"status.json", "cached", header("/status.json", "Cache-Control", "public, max-age=60"), "want figures of now"},
	{"status.json", "from a cache", header("/status.json", "Age", "30"), `Age "30", want figures of now`},
	{"book: malformed", "other refusal", when(`{"code":$`, 400, "invalid_code"), "got 400 invalid_code, want 400 invalid_request"},
	{"book: malformed", "a page of somebody else's", on("/book", func(resp *http.Response) {
		if resp.StatusCode == http.StatusBadRequest && resp.Request.ContentLength == int64(len(`{"code":`)) {
			resp.Header.Set("Content-Type", "text/html")
		}
	}), "want JSON with error, message and request_id"},
	{"book: no code", "other refusal", when(`json .*"not a code!"`, 400, "invalid_request"), "want 400 invalid_code"},
	{"book: no level", "other refusal", when(`"no such level!"`, 400, "invalid_request"), "want 400 invalid_level"},
	{"book: unknown code", "no Redis", when(`SMOKE-.*"level":"N."}$`, 503, "try_again"), "got 503 try_again, want 400"},
	{"book: unknown code", "closed all the same", when(`SMOKE-.*"level":"N."}$`, 503, "closed"), "want it open as status.json says"},
	{"book: other address", "not on the list", when(listed, 400, "invalid_code"), "want 400 email_mismatch"},
	{"book: hidden field", "seen through", when(`"website":"https`, 400, "invalid_request"), "got 400 invalid_request, want 202"},
	{"book: hidden field", "answered unlike a seat", text("/book", `"payment_id":"[^"]+",`, ``), "want what a seat is answered with"},
	{"book: hidden field", "of another address", text("/book", `"booking_url":"https://seats`, `"booking_url":"https://other`), "got a booking_url of another address"},
	{"book: hidden field", "a real seat", when(`^GET /booking/\S{40}`, 200, "x"), "its link: GET /booking/"},
	{"book: too large", "read", when(`A{900}`, 400, "invalid_request"), "got 400 invalid_request, want 413"},
	{"book: too large", "taken at the edge", flaw{answer: func(w http.ResponseWriter, r *http.Request) bool {
		if r.ContentLength > 8<<10 {
			welcome(w, r)
		}
		return r.ContentLength > 8<<10
	}}, "got 200, want 413 or 403"},
	{"book: other type", "taken", when(`text/plain code$`, 400, "invalid_request"), "want 415"},
	{"book: form", "answered as JSON", when(`x-www-form-urlencoded`, 400, "invalid_code"), `of type "application/json", want a page`},
	{"book: form", "cut off", when(`x-www-form-urlencoded`, 415, "unsupported_media_type"), "got 415 unsupported_media_type, want 400"},
	{"booking: unknown", "found", when(`^GET /booking/\S{26} `, 200, "x"), "got 200 x, want 404"},
	{"callback: unknown", "other end", header("/payment/callback", "Location", site+"/result?booking=x"), "got 303 to"},
	{"callback: unknown", "without its query", when(`^GET /payment/callback`, 404, "not_found"), "want 303"},
	{"webhook: unsigned", "taken", when(`^POST /payment/webhook`, 200, "x"), "got 200 x, want 403"},
	{"webhook: unsigned", "not there", when(`^POST /payment/webhook`, 404, "not_found"), "got 404 not_found, want 403"},
	{"webhook: unsigned", "refused by somebody else", flaw{answer: func(w http.ResponseWriter, r *http.Request) bool {
		if r.URL.Path == "/payment/webhook" {
			forbidden(w, r)
			return true
		}
		return false
	}}, "it is no answer of the API"},
	{"methods", "GET books", when(`^GET /book `, 200, "x"), "GET /book: got 200 x, want 405 or 403"},
	{"methods", "without Allow", header("/book", "Allow", ""), "405 without Allow"},
	{"unknown path", "there", when(`^GET /smoke-`, 200, "x"), "want 404 or 403"},
	{"admin port", "metrics", when(`^GET /metrics`, 200, "x"), "GET /metrics: got 200 x, want 404"},
	{"admin port", "profiles", when(`^GET /debug/pprof/`, 200, "x"), "GET /debug/pprof/: got 200"},
	{"admin port", "a sealed door is a door", when(`^GET /admin/candidates`, 401, "x"), "GET /admin/candidates: got 401"},
	{"not cached", "kept", header("/health", "Cache-Control", "max-age=60"), `GET /health has Cache-Control "max-age=60"`},
	{"not cached", "from a cache", header("/payment/callback", "Age", "3"), "GET /payment/callback came from a cache, 3 s old"},
	{"not cached", "a hit", header("/health", "X-Cache", "Hit from cloudfront"), "GET /health came from a cache: Hit from cloudfront"},
	{"AWS headers", "of the bucket", header("/", "X-Amz-Version-Id", "3"), "X-Amz-Version-Id of GET /"},
	{"AWS headers", "of the balancer", header("/health", "X-Amzn-Trace-Id", "3"), "X-Amzn-Trace-Id of GET /health"},
	{"distribution", "serves", flaw{bare: welcome}, distribution + ": GET /health: got 200, want 403"},
	{"balancer", "serves", flaw{behind: welcome}, balancer + ": GET /health: got 200, want 403"},
	{"balancer", "takes the request and hangs", flaw{
		behind:  func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() },
		options: func(o *smoke.Options) { o.Timeout = 5 * time.Second },
	}, "Client.Timeout exceeded"},
	{"balancer", "no such name", flaw{dial: func(addr string) error {
		if strings.HasPrefix(addr, balancer) {
			return &net.OpError{Op: "dial", Err: &net.DNSError{Err: "no such host", Name: balancer, IsNotFound: true}}
		}
		return nil
	}}, "want the balancer's name"},
}

func TestRun_AgainstADeployment(t *testing.T) {
	t.Parallel()
	upstream := deployed(t)
	before, err := status(t.Context(), upstream)
	if err != nil {
		t.Fatal(err)
	}
	t.Run("WholeEdge", func(t *testing.T) {
		e := newEdge(t, upstream, flaw{})
		r := look(t, e.Options)
		if got := named(r, smoke.StateOK); len(got) != len(r.Checks) {
			t.Errorf("checks: got %+v, want all of them ok", r.Checks)
		}
		if r.Target != site || r.Version == "" || r.At.IsZero() {
			t.Errorf("report: got %q, version %q at %s, want all three", r.Target, r.Version, r.At)
		}
		if got := find(t, r, "book: too large").Seen; got != "413 body_too_large" {
			t.Errorf("too large: got %q, want the API's own refusal", got)
		}
		if r.Requests > smoke.Most || int64(r.Requests) != e.requests.Load()+2 { // port 80 and the balancer are servers of their own
			t.Errorf("requests: got %d, %d of them at the edge, want %d at most, all but two at the edge", r.Requests, e.requests.Load(), smoke.Most)
		}
		if e.most.Load() != 1 {
			t.Errorf("requests at a time: got %d, want 1", e.most.Load())
		}
		for close(e.agents); len(e.agents) > 0; {
			if got := <-e.agents; got != smoke.UserAgent {
				t.Fatalf("user agent: got %q, want %q", got, smoke.UserAgent)
			}
		}
		found := map[string]bool{}
		for _, b := range broken {
			found[b.check] = true
		}
		for _, c := range r.Checks {
			if !found[c.Name] {
				t.Errorf("check %q: got no flaw that it finds", c.Name)
			}
		}
	})
	t.Run("Flaws", func(t *testing.T) {
		for _, b := range broken {
			t.Run(b.check+"/"+b.name, func(t *testing.T) {
				t.Parallel()
				r := look(t, newEdge(t, upstream, b.flaw).Options)
				if diff := cmp.Diff([]string{b.check}, named(r, smoke.StateFailed)); diff != "" {
					t.Errorf("failed checks (-want +got):\n%s%+v", diff, r.Checks)
				}
				c := find(t, r, b.check)
				if !strings.Contains(c.Seen, b.want) || c.Next == "" {
					t.Errorf("got %q, next %q, want %q in it, and what to do", c.Seen, c.Next, b.want)
				}
			})
		}
	})
	t.Run("WhatTheEdgeMayDoItself", func(t *testing.T) {
		t.Parallel()
		refuse := func(w http.ResponseWriter, r *http.Request) bool {
			switch own := map[string]bool{"/book": true, "/booking": true, "/payment": true, "/health": true, "/result": true, "/status.json": true}; {
			case r.ContentLength > 8<<10, r.Method == http.MethodPost && r.URL.Path == "/":
			case r.URL.Path == "/" || own[r.URL.Path] || own["/"+strings.Split(r.URL.Path, "/")[1]]:
				return false
			}
			forbidden(w, r)
			return true
		}
		f := on("/status.json", func(resp *http.Response) {
			resp.Header.Set("Cache-Control", "public, max-age=1, stale-if-error=600")
			resp.Header.Set("X-Cache", "Hit from cloudfront")
			resp.Header.Set("Age", "1")
		})
		f.answer = refuse
		r := look(t, newEdge(t, upstream, f).Options)
		if got := named(r, smoke.StateFailed); got != nil {
			t.Errorf("failed: got %q of %+v, want none: the firewall, the CDN and the bucket say 403", got, r.Checks)
		}
		if got := find(t, r, "book: too large").Seen; got != "403 at the edge" {
			t.Errorf("too large: got %q, want 403 at the edge", got)
		}
	})
	t.Run("BalancerOutOfReach", func(t *testing.T) {
		t.Parallel()
		f := flaw{dial: func(addr string) error {
			if strings.HasPrefix(addr, balancer) {
				return &net.OpError{Op: "dial", Err: errors.New("no route to host")}
			}
			return nil
		}}
		if c := find(t, look(t, newEdge(t, upstream, f).Options), "balancer"); c.State != smoke.StateOK || !strings.Contains(c.Seen, "cannot be reached") {
			t.Errorf("balancer: got %+v, want it ok and out of reach", c)
		}
	})
	t.Run("OnThisMachine", func(t *testing.T) {
		t.Parallel()
		r := look(t, smoke.Options{Target: upstream})
		want := []string{"certificate", "old TLS", "https only", "strict transport", "book: other address", "AWS headers", "distribution", "balancer"}
		if diff := cmp.Diff(want, named(r, smoke.StateLeftOut)); diff != "" {
			t.Errorf("left out (-want +got):\n%s", diff)
		}
		if got := named(r, smoke.StateFailed); got != nil {
			t.Errorf("failed: got %q of %+v, want none", got, r.Checks)
		}
		for _, c := range r.Checks {
			if c.State == smoke.StateLeftOut && c.Seen == "" {
				t.Errorf("%s: got no reason why it is left out", c.Name)
			}
		}
	})
	t.Run("Interrupted", func(t *testing.T) {
		t.Parallel()
		ctx, cancel := context.WithCancel(t.Context())
		f := flaw{answer: func(http.ResponseWriter, *http.Request) bool { cancel(); return false }}
		if r, err := smoke.Run(ctx, newEdge(t, upstream, f).Options); !errors.Is(err, context.Canceled) || r.Checks != nil {
			t.Errorf("got %+v, %v, want no report and %v", r, err, context.Canceled)
		}
	})
	t.Cleanup(func() {
		// The test's own context has ended by now.
		if after, err := status(context.WithoutCancel(t.Context()), upstream); after != before {
			t.Errorf("status.json: got %s, %v, want it as before, %s: a run changes nothing", after, err, before)
		}
	})
}

// Before the opening nobody is looked up, and that is not held against the deployment.
func TestRun_BeforeBookingOpens(t *testing.T) {
	t.Parallel()
	upstream := deployed(t, "-closed")
	r := look(t, newEdge(t, upstream, flaw{}).Options)
	if got := named(r, smoke.StateFailed); got != nil {
		t.Errorf("failed: got %q of %+v, want none", got, r.Checks)
	}
	if c := find(t, r, "book: unknown code"); c.State != smoke.StateOK || !strings.Contains(c.Seen, "503 closed") {
		t.Errorf("unknown code: got %+v, want 503 closed to be right", c)
	}
	if c := find(t, r, "book: other address"); c.State != smoke.StateLeftOut {
		t.Errorf("other address: got %+v, want it left out", c)
	}
	r = look(t, newEdge(t, upstream, header("/book", "Retry-After", "")).Options)
	if c := find(t, r, "book: unknown code"); c.State != smoke.StateFailed || !strings.Contains(c.Seen, "without Retry-After") {
		t.Errorf("unknown code: got %+v, want it to miss Retry-After", c)
	}
}

func TestRun_SaysWhyItCannot(t *testing.T) {
	t.Parallel()
	nobody := func(context.Context, string, string) (net.Conn, error) { return nil, errors.New("connection refused") }
	for name, c := range map[string]struct {
		o    smoke.Options
		want string
	}{
		"NoTarget":         {smoke.Options{}, "want https://host"},
		"APath":            {smoke.Options{Target: site + "/book"}, "and nothing behind it"},
		"APassword":        {smoke.Options{Target: "https://me:secret@seats.example.org"}, "and nothing behind it"},
		"OtherScheme":      {smoke.Options{Target: "ftp://seats.example.org"}, "want https://host"},
		"PlainAbroad":      {smoke.Options{Target: "http://seats.example.org"}, "plain http is for this machine only"},
		"EdgeOfThis":       {smoke.Options{Target: "http://127.0.0.1:8080", Edge: true}, "it has no edge"},
		"BalancerOfThis":   {smoke.Options{Target: "http://localhost:8080", Balancer: balancer}, "it has no edge"},
		"DistributionsURL": {smoke.Options{Target: site, Distribution: "https://" + distribution}, "want a bare host name"},
		"Nobody":           {smoke.Options{Target: site, Dial: nobody}, "nobody answers at seats.example.org: connection refused"},
		"NobodyHere":       {smoke.Options{Target: "http://127.0.0.1:8080", Dial: nobody}, "nobody answers at 127.0.0.1:8080"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r, err := smoke.Run(t.Context(), c.o)
			if err == nil || !strings.Contains(err.Error(), c.want) || r.Checks != nil {
				t.Errorf("got %+v, %v, want no report and %q", r, err, c.want)
			}
		})
	}
}

// status is what the deployment shows of its sale.
func status(ctx context.Context, upstream string) (string, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, upstream+"/status.json", http.NoBody)
	if err != nil {
		return "", err
	}
	resp, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}).Do(r)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("status.json: got %d %s, want 200", resp.StatusCode, b)
	}
	return string(b), err
}
