package obs_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"

	"holdfast/internal/obs"
)

func TestNewLogger_LevelCanBeChangedWhileRunning(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	var level slog.LevelVar
	log := obs.NewLogger(&out, &level)
	log.DebugContext(t.Context(), "unseen")
	level.Set(slog.LevelDebug)
	log.DebugContext(t.Context(), "seen", "n", 1)

	var line map[string]any
	if err := json.Unmarshal(out.Bytes(), &line); err != nil {
		t.Fatalf("log %q: got %v, want one JSON line", out.String(), err)
	}
	if line["msg"] != "seen" || line["n"] != 1.0 || line["level"] != "DEBUG" {
		t.Errorf("log line: got %v, want msg seen, n 1, level DEBUG", line)
	}
}

func TestEvent_HandlersBelowFillWhatTheMiddlewareWrites(t *testing.T) {
	t.Parallel()
	ctx, event := obs.WithEvent(t.Context())
	event.RequestID = "r1"
	handler := obs.EventFrom(ctx)
	handler.Candidate = func() string { return "0123456789abcdef" }
	handler.Level, handler.Attempt = "N1", "e-1"
	handler.Outcome, handler.Cause = "try_again", errors.New("redis is asleep")

	var out bytes.Buffer
	obs.NewLogger(&out, slog.LevelInfo).LogAttrs(ctx, slog.LevelInfo, "request", event.Attrs()...)
	var got map[string]any
	if err := json.Unmarshal(out.Bytes(), &got); err != nil {
		t.Fatalf("log %q: got %v, want one JSON line", out.String(), err)
	}
	delete(got, "time")
	want := map[string]any{
		"level": "INFO", "msg": "request", "request_id": "r1", "candidate": "01234567",
		"level_id": "N1", "attempt": "e-1", "outcome": "try_again",
		"error": "redis is asleep",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("log line (-want +got):\n%s", diff)
	}
}

func TestEvent_UnknownFieldsAreLeftOut(t *testing.T) {
	t.Parallel()
	_, event := obs.WithEvent(t.Context())
	event.Outcome = "closed"
	if got := event.Attrs(); len(got) != 1 || got[0].Key != "outcome" {
		t.Errorf("fields: got %v, want the outcome only", got)
	}
}

func TestEventFrom_WithoutAnEventIsOneThatNobodyWrites(t *testing.T) {
	t.Parallel()
	a, b := obs.EventFrom(t.Context()), obs.EventFrom(t.Context())
	a.Outcome = "lost"
	if a == b || b.Outcome != "" {
		t.Errorf("events of a bare context: got %+v shared, want two of their own", b)
	}
}

func TestCandidatePrefix_TakesShortTextAsItIs(t *testing.T) {
	t.Parallel()
	if got := obs.CandidatePrefix("abc"); got != "abc" {
		t.Errorf("prefix of abc: got %q, want abc", got)
	}
}

// ask sends one request.
func ask(t *testing.T, h http.Handler, method, target string) *httptest.ResponseRecorder {
	t.Helper()
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), method, target, nil))
	return w
}

func alwaysReady(context.Context) error { return nil }

func TestAdmin_ReadySaysWhyNot(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name   string
		ready  func(context.Context) error
		status int
		body   string
	}{
		{"Ready", alwaysReady, 200, `{"ready":true}`},
		{"NotReady", func(context.Context) error { return errors.New("maxmemory-policy is unknown") },
			503, `{"ready":false,"reason":"maxmemory-policy is unknown"}`},
		{"NotReadyTwice", func(context.Context) error {
			return errors.Join(errors.New("redis: asleep"), errors.New("queue: gone"))
		},
			503, `{"ready":false,"reason":"redis: asleep; queue: gone"}`},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			res := ask(t, obs.Admin(obs.NewRegistry(), c.ready), "GET", "/ready")
			if res.Code != c.status || strings.TrimSpace(res.Body.String()) != c.body {
				t.Errorf("/ready: got %d %s, want %d %s", res.Code, res.Body.String(), c.status, c.body)
			}
			if got := res.Header().Get("Cache-Control"); got != "no-store" {
				t.Errorf("Cache-Control: got %q, want no-store", got)
			}
		})
	}
}

func TestAdmin_ReadyHasABudget(t *testing.T) {
	t.Parallel()
	ask(t, obs.Admin(obs.NewRegistry(), func(ctx context.Context) error {
		if _, ok := ctx.Deadline(); !ok {
			t.Error("context of ready: got no deadline, want one")
		}
		return nil
	}), "GET", "/ready")
}

func TestAdmin_MetricsShowRuntimeBuildAndOwn(t *testing.T) {
	t.Parallel()
	reg := obs.NewRegistry()
	own := prometheus.NewCounter(prometheus.CounterOpts{Name: "holdfast_own_total", Help: "Own."})
	reg.MustRegister(own)
	own.Inc()
	res := ask(t, obs.Admin(reg, alwaysReady), "GET", "/metrics")
	if res.Code != http.StatusOK {
		t.Errorf("/metrics: got %d, want 200", res.Code)
	}
	for _, want := range []string{"go_goroutines", "process_", "holdfast_build_info{go=\"go", `,version="` + obs.Version() + `"} 1`, "holdfast_own_total 1"} {
		if !strings.Contains(res.Body.String(), want) {
			t.Errorf("/metrics: got no %s in\n%s", want, res.Body.String())
		}
	}
}

func TestNewRegistry_TwoServicesInOneProcess(t *testing.T) {
	t.Parallel()
	for range 2 { // a global registry would panic on the second
		if _, err := obs.NewRegistry().Gather(); err != nil {
			t.Errorf("Gather: got %v, want nil", err)
		}
	}
}

func TestAdmin_ServesProfiles(t *testing.T) {
	t.Parallel()
	admin := obs.Admin(obs.NewRegistry(), alwaysReady)
	for _, path := range []string{"/debug/pprof/", "/debug/pprof/goroutine?debug=1", "/debug/pprof/cmdline", "/debug/pprof/symbol"} {
		if res := ask(t, admin, "GET", path); res.Code != http.StatusOK {
			t.Errorf("%s: got %d, want 200", path, res.Code)
		}
	}
	if res := ask(t, admin, "GET", "/anything"); res.Code != http.StatusNotFound {
		t.Errorf("/anything: got %d, want 404", res.Code)
	}
}

func TestLevelHandler_ShowsAndChanges(t *testing.T) {
	t.Parallel()
	var level slog.LevelVar
	h := obs.LevelHandler(&level)
	for _, c := range []struct {
		method, target string
		status         int
		want           slog.Level
	}{
		{"GET", "/", 200, slog.LevelInfo},
		{"PUT", "/?level=debug", 200, slog.LevelDebug},
		{"PUT", "/?level=loud", 400, slog.LevelDebug},
		{"GET", "/?level=error", 200, slog.LevelDebug},
	} {
		res := ask(t, h, c.method, c.target)
		if res.Code != c.status || level.Level() != c.want {
			t.Errorf("%s %s: got %d, level %s, want %d, %s", c.method, c.target, res.Code, level.Level(), c.status, c.want)
		}
		if c.status == 200 && strings.TrimSpace(res.Body.String()) != `{"level":"`+c.want.String()+`"}` {
			t.Errorf("%s %s: got %s, want the level %s", c.method, c.target, res.Body.String(), c.want)
		}
	}
}
