package httpapi_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/go-chi/chi/v5"
	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"

	"holdfast/internal/booking"
	"holdfast/internal/httpapi"
)

// broken is an edge all of whose dependencies do the same.
func broken(t testing.TB, do func() error) *edge {
	t.Helper()
	return newEdge(t, func(d *httpapi.Deps) {
		d.Booker = booker(func(context.Context, booking.Request) (booking.Held, error) { return booking.Held{}, do() })
		d.Settler = settler{
			issued: func(context.Context, string, string) (string, string, error) { return "", "", do() },
			pay:    func(context.Context, string, string, string) error { return do() },
		}
		d.Viewer = viewer(func(context.Context, string, string) (booking.View, error) { return booking.View{}, do() })
		d.Pages = &httpapi.Pages{
			Objects: objects(func(context.Context, string) ([]byte, string, error) { return nil, "", do() }),
			Sales:   sales(func(context.Context) (booking.Sale, error) { return booking.Sale{}, do() }),
		}
	})
}

// walk sends a well-formed request to every route there is.
func (e *edge) walk(t *testing.T, visit func(route string, method, target string)) {
	t.Helper()
	err := chi.Walk(e.Routes(), func(method, route string, _ http.Handler, _ ...func(http.Handler) http.Handler) error {
		target := strings.ReplaceAll(route, "{token}", e.token())
		switch route {
		case "/payment/callback":
			target = goodReturn
		case "/result":
			target += "?booking=" + e.token()
		}
		visit(method+" "+route, method, target)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

func TestRoutes_EveryErrorHasTheSameShape(t *testing.T) {
	t.Parallel()
	const down = "connection refused: 10.0.0.7"
	for name, c := range map[string]struct {
		do   func() error
		want map[string]int
	}{
		"unknown error": {func() error { return errors.New(down) }, map[string]int{
			"POST /book": 500, "GET /payment/callback": 303, "GET /booking/{token}": 500, "GET /health": 200,
			"GET /": 503, "GET /result": 503, "GET /status.json": 503,
			"HEAD /": 503, "HEAD /result": 503, "HEAD /status.json": 503,
		}},
		"not found": {func() error { return booking.ErrNotFound }, map[string]int{
			"POST /book": 404, "GET /payment/callback": 303, "GET /booking/{token}": 404, "GET /health": 200,
			"GET /": 503, "GET /result": 503, "GET /status.json": 503,
			"HEAD /": 503, "HEAD /result": 503, "HEAD /status.json": 503,
		}},
		"panic": {func() error { panic(down) }, map[string]int{
			"POST /book": 500, "GET /payment/callback": 500, "GET /booking/{token}": 500, "GET /health": 200,
			"GET /": 500, "GET /result": 500, "GET /status.json": 500,
			"HEAD /": 500, "HEAD /result": 500, "HEAD /status.json": 500,
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e := broken(t, c.do)
			got := map[string]int{}
			e.walk(t, func(route, method, target string) {
				w := e.send(t, method, target, jsonType, goodBody)
				got[route] = w.Code
				if w.Code < 400 {
					return
				}
				slug := map[int]string{404: "not_found", 500: "internal", 503: "try_again"}[w.Code]
				if strings.Contains(w.Body.String(), down) {
					t.Errorf("%s: got the cause in the body, want it in the log only", route)
				}
				wantRefusal(t, route, w, w.Code, slug)
			})
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Errorf("statuses by route (-want +got):\n%s", diff)
			}
		})
	}
}

func TestRoutes_WrongMethodSaysWhichIsRight(t *testing.T) {
	t.Parallel()
	e := untouched(t)
	right := map[string][]string{}
	e.walk(t, func(_, method, target string) { right[target] = append(right[target], method) })
	for target, methods := range right {
		slices.Sort(methods)
		for _, wrong := range []string{http.MethodGet, http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete, http.MethodOptions, http.MethodHead, http.MethodTrace, "BREW"} {
			if slices.Contains(methods, wrong) {
				continue
			}
			w := e.send(t, wrong, target, jsonType, "{}")
			wantRefusal(t, wrong+" "+target, w, 405, "method_not_allowed")
			if got := w.Header().Values("Allow"); !slices.Equal(got, methods) {
				t.Errorf("%s %s: Allow: got %q, want %q", wrong, target, got, methods)
			}
		}
	}
}

func TestRoutes_AnythingElseIsNotFound(t *testing.T) {
	t.Parallel()
	e := untouched(t)
	for _, path := range []string{
		"/nowhere", "/book/", "/book/x", "/Book", "//book", "/booking", "/payment", "/payment/callback/", "/health/", "/metrics", "/ready",
		"/debug/pprof/", "/admin/candidates", "/status.json/x", "/..%2f..%2fetc/passwd", "/%00", "/book%2f", "/.env", "/" + strings.Repeat("x", 5000),
	} {
		for _, method := range []string{http.MethodGet, http.MethodPost} {
			wantRefusal(t, method+" "+path, e.send(t, method, path, jsonType, goodBody), 404, "not_found")
		}
	}
}

// What a person sees who sent a form to a wrong place.
func TestRoutes_FormGetsPages(t *testing.T) {
	t.Parallel()
	wantPage(t, "404", untouched(t).send(t, http.MethodPost, "/nowhere", formType, goodForm), 404, "not_found")
	wantPage(t, "405", untouched(t).send(t, http.MethodPost, "/health", formType, goodForm), 405, "method_not_allowed")
	wantPage(t, "panic", broken(t, func() error { panic("a bug") }).send(t, http.MethodPost, "/book", formType, goodForm), 500, "internal")
}

func TestRoutes_ProductionServesNoPages(t *testing.T) {
	t.Parallel()
	e := newEdge(t, func(d *httpapi.Deps) { d.Pages = nil })
	for _, path := range []string{"/", "/result", "/status.json"} {
		wantRefusal(t, path, e.send(t, http.MethodGet, path, "", ""), 404, "not_found")
	}
	if w := e.book(t, goodBody); w.Code != http.StatusAccepted {
		t.Errorf("/book: got %d, want 202", w.Code)
	}
}

func TestPanic_IsAnOpaque500AndALogLineWithItsCause(t *testing.T) {
	t.Parallel()
	e := broken(t, func() error { panic("nil map at 0x1234") })
	w := e.book(t, goodBody)
	if strings.Contains(w.Body.String(), "0x1234") {
		t.Errorf("body: got %s, want nothing of the cause", w.Body)
	}
	m := wantRefusal(t, "panic", w, 500, "internal")
	requests := e.log.lines(t, "request")
	if len(requests) != 1 || requests[0]["outcome"] != "internal" || requests[0]["level"] != "ERROR" || requests[0]["code"] != 500.0 {
		t.Fatalf("log: got %v, want the request's own line as an error", requests)
	}
	if r := requests[0]; r["error"] != "panic: a string" || r["request_id"] != m["request_id"] || !strings.Contains(fmt.Sprint(r["stack"]), "edge_test.go") {
		t.Errorf("log: got %v, want the panic without its value, its stack and the request id", r)
	}
	if got := e.metric(t, "holdfast_http_request_seconds", "code"); got["500"] != 1 {
		t.Errorf("metric: got %v, want one 500", got)
	}
	if w := e.send(t, http.MethodGet, "/health", "", ""); w.Code != http.StatusOK {
		t.Errorf("health after a panic: got %d, want 200", w.Code)
	}
}

// net/http's own way to break off an answer is not ours to catch.
func TestPanic_AbortIsPassedOn(t *testing.T) {
	t.Parallel()
	e := broken(t, func() error { panic(http.ErrAbortHandler) })
	defer func() {
		if err, ok := recover().(error); !ok || !errors.Is(err, http.ErrAbortHandler) {
			t.Errorf("recovered: got %v, want http.ErrAbortHandler", err)
		}
		if e.log.String() != "" {
			t.Errorf("log: got %s, want nothing", e.log)
		}
	}()
	e.book(t, goodBody)
	t.Error("aborted handler: got an answer, want a panic")
}

func TestMetrics_LabelsAreAClosedSet(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		e := newEdge(t, nil)
		for i := range 50 {
			for _, path := range []string{"/nowhere/%d", "/booking/%d/x", "/%d", "/booking/x%d", "/result?booking=%d", "/payment/callback?paymentID=%d"} {
				e.send(t, http.MethodGet, fmt.Sprintf(path, i), "", "")
			}
			e.send(t, fmt.Sprintf("METHOD%d", i), "/book", "", "")
			e.book(t, fmt.Sprintf(`{"code":"%d"}`, i))
		}
		e.walk(t, func(_, method, target string) { e.send(t, method, target, jsonType, goodBody) })
		e.book(t, botBody)
		got := e.metric(t, "holdfast_http_request_seconds", "route")
		var routes []string
		for route := range got {
			routes = append(routes, route)
		}
		slices.Sort(routes)
		want := []string{"/", "/book", "/booking/{token}", "/health", "/payment/callback", "/result", "/status.json", "unmatched"}
		if diff := cmp.Diff(want, routes); diff != "" {
			t.Errorf("routes (-want +got):\n%s", diff)
		}
		if got["unmatched"] != 200 {
			t.Errorf("unmatched: got %v requests, want 200", got["unmatched"])
		}
		codes := e.metric(t, "holdfast_http_request_seconds", "code")
		if diff := cmp.Diff([]string{"200", "202", "303", "400", "404", "405", "409", "413", "415", "422", "429", "500", "502", "503"}, sorted(codes)); diff != "" {
			t.Errorf("codes (-want +got):\n%s", diff)
		}
		families, err := e.reg.Gather()
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range families {
			if !strings.HasPrefix(f.GetName(), "holdfast_") {
				t.Errorf("metric %s: got it without the prefix holdfast_", f.GetName())
			}
			if n := len(f.GetMetric()); n > 24 {
				t.Errorf("metric %s: got %d series, want two dozen at most", f.GetName(), n)
			}
		}
	})
}

func sorted(m map[string]float64) []string {
	var out []string
	for k := range m {
		out = append(out, k)
	}
	slices.Sort(out)
	return out
}

func TestHealth_SaysWhetherThisProcessTakesTraffic(t *testing.T) {
	t.Parallel()
	e := broken(t, func() error {
		t.Error("dependency: got called for /health, want no call")
		return nil
	})
	w := e.send(t, http.MethodGet, "/health", "", "")
	if w.Code != http.StatusOK || w.Header().Get("Cache-Control") != "no-store" {
		t.Errorf("health: got %d, %v, want a 200 that nobody stores", w.Code, w.Header())
	}
	if diff := cmp.Diff(map[string]any{"status": "ok"}, decode(t, w.Body)); diff != "" {
		t.Errorf("health (-want +got):\n%s", diff)
	}
	e.Drain()
	e.Drain() // safe to repeat
	wantRefusal(t, "health when draining", e.send(t, http.MethodGet, "/health", "", ""), 503, "try_again")
}

func TestHealth_TellsTheVersion(t *testing.T) {
	t.Parallel()
	e := newEdge(t, func(d *httpapi.Deps) { d.Version = "v1.2.3" })
	w := e.send(t, http.MethodGet, "/health", "", "")
	if diff := cmp.Diff(map[string]any{"status": "ok", "version": "v1.2.3"}, decode(t, w.Body)); diff != "" {
		t.Errorf("health (-want +got):\n%s", diff)
	}
}

func TestRequestID_IsNewEveryTimeAndNotTheClients(t *testing.T) {
	t.Parallel()
	e := newEdge(t, nil)
	seen := map[string]bool{}
	for range 100 {
		id := e.send(t, http.MethodGet, "/health", "", "").Header().Get("X-Request-Id")
		if id == "" || seen[id] {
			t.Fatalf("X-Request-Id: got %q again, want a new one", id)
		}
		seen[id] = true
	}
}

func TestNew_ChecksItsDependencies(t *testing.T) {
	t.Parallel()
	for name, spoil := range map[string]func(*httpapi.Deps){
		"no booker":     func(d *httpapi.Deps) { d.Booker = nil },
		"no settler":    func(d *httpapi.Deps) { d.Settler = nil },
		"no viewer":     func(d *httpapi.Deps) { d.Viewer = nil },
		"no sealer":     func(d *httpapi.Deps) { d.Sealer = nil },
		"no background": func(d *httpapi.Deps) { d.Background = nil },
		"no code rule":  func(d *httpapi.Deps) { d.Codes = booking.CodeRule{} },
		"no result URL": func(d *httpapi.Deps) { d.ResultURL = "" },
		"no budget":     func(d *httpapi.Deps) { d.ReturnBudget = 0 },
		"no log":        func(d *httpapi.Deps) { d.Log = nil },
		"no registerer": func(d *httpapi.Deps) { d.Registerer = nil },
	} {
		d := newEdge(t, nil).deps()
		d.Registerer = prometheus.NewRegistry()
		spoil(&d)
		if _, err := httpapi.New(d); err == nil {
			t.Errorf("%s: got nil, want an error", name)
		}
	}
}
