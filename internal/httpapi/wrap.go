package httpapi

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"runtime/debug"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/go-chi/chi/v5"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"holdfast/internal/obs"
)

type metrics struct {
	requests *prometheus.HistogramVec
	honeypot prometheus.Counter
}

func newMetrics(reg prometheus.Registerer) *metrics {
	f := promauto.With(reg)
	return &metrics{
		requests: f.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "holdfast_http_request_seconds",
			Help:    "Requests by route pattern and status.",
			Buckets: []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 8, 10},
		}, []string{"route", "code"}),
		honeypot: f.NewCounter(prometheus.CounterOpts{
			Name: "holdfast_honeypot_total",
			Help: "Bookings with the hidden field filled in; answered like real ones, without touching anything.",
		}),
	}
}

// requestID tells requests apart in logs; it is no secret.
func requestID() string {
	return strconv.FormatUint(rand.Uint64()|1<<63, 32) // 13 characters
}

type handler func(w http.ResponseWriter, r *http.Request) error

// unlogged is set on the event of a request that leaves no log line.
const unlogged = "honeypot"

// observe gives every request an id, one metric and one log line, and turns a
// panic into an opaque 500. The line names the route, never the path: a booking
// token in it would be a key to the booking.
func (s *Server) observe(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		start := time.Now()
		ctx, ev := obs.WithEvent(r.Context())
		ev.RequestID = requestID()
		// The router takes a route context that is there; one copy of the request for
		// both, and the pattern at hand afterwards.
		route := s.matches.Get().(*chi.Context)
		route.Reset()
		route.Routes = s.router
		ctx = context.WithValue(ctx, chi.RouteCtxKey, route)
		ww := &statusWriter{ResponseWriter: w}
		ww.Header()["X-Request-Id"] = []string{ev.RequestID} // spelled as the map keeps it
		defer func() {
			if p := recover(); p != nil {
				if err, ok := p.(error); ok && errors.Is(err, http.ErrAbortHandler) {
					panic(p)
				}
				s.Log.ErrorContext(ctx, "handler panicked", "request_id", ev.RequestID, "panic", p, "stack", string(debug.Stack()))
				ev.Outcome, ev.Cause = internal.slug, fmt.Errorf("panic: %v", p)
				if ww.status == 0 {
					_ = s.answer(ww, r, describe(ev.Cause, ev.Level, ev.RequestID))
				}
			}
			s.finish(ctx, r, ww, ev, route.RoutePattern(), time.Since(start))
			s.matches.Put(route)
		}()
		next.ServeHTTP(ww, r.WithContext(ctx))
	})
}

// statusWriter remembers the status that was written; 0 is none yet.
type statusWriter struct {
	http.ResponseWriter
	status int
}

// WriteHeader notes the first status.
func (w *statusWriter) WriteHeader(status int) {
	if w.status == 0 && status >= http.StatusOK { // a 1xx is not the answer
		w.status = status
	}
	w.ResponseWriter.WriteHeader(status)
}

// Write is a 200 when no status was written.
func (w *statusWriter) Write(b []byte) (int, error) {
	if w.status == 0 {
		w.status = http.StatusOK
	}
	return w.ResponseWriter.Write(b)
}

// Unwrap lets http.ResponseController reach what it needs.
func (w *statusWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

func (s *Server) finish(ctx context.Context, r *http.Request, ww *statusWriter, ev *obs.Event, pattern string, took time.Duration) {
	if pattern == "" {
		pattern = "unmatched"
	}
	status := ww.status
	if status == 0 {
		status = http.StatusOK
	}
	s.metrics.requests.WithLabelValues(pattern, strconv.Itoa(status)).Observe(took.Seconds())
	if ev.Outcome == unlogged {
		return
	}
	var dropped int64
	if refusals[ev.Outcome] {
		var ok bool
		if ok, dropped = s.refusalLog.allow(time.Now()); !ok {
			return
		}
	}
	level := slog.LevelInfo
	if status >= http.StatusInternalServerError && ev.Outcome == internal.slug {
		level = slog.LevelError
	}
	attrs := append([]slog.Attr{
		slog.String("route", pattern), slog.String("method", r.Method), slog.Int("code", status), slog.Float64("took_ms", float64(took.Microseconds())/1000),
	}, ev.Attrs()...)
	if dropped > 0 {
		attrs = append(attrs, slog.Int64("refusals_not_logged", dropped))
	}
	s.Log.LogAttrs(ctx, level, "request", attrs...)
}

// refusals are the outcomes that come by the hundred thousand in a rush. Their log
// lines are sampled, their counters are not: in one second the first
// refusalsLogged of a process are written, and the next line that is says how many
// were not.
var refusals = map[string]bool{"duplicate": true, "level_full": true, "closed": true, "try_again": true}

const refusalsLogged = 100

type sampler struct {
	second, n, dropped atomic.Int64
}

// allow tells whether a line may be written, and how many were not since the last.
func (s *sampler) allow(now time.Time) (ok bool, dropped int64) {
	if second := now.Unix(); s.second.Swap(second) != second {
		s.n.Store(0)
	}
	if s.n.Add(1) > refusalsLogged {
		s.dropped.Add(1)
		return false, 0
	}
	return true, s.dropped.Swap(0)
}

// answer tells a problem: a form gets a page, everyone else JSON.
func (s *Server) answer(w http.ResponseWriter, r *http.Request, p problem) error {
	if isForm(r) {
		return s.page(w, p)
	}
	return p.write(w)
}

// wrap answers what a handler returns as an error.
func (s *Server) wrap(h handler) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		err := h(w, r)
		if err == nil {
			return
		}
		ev := obs.EventFrom(r.Context())
		p := describe(err, ev.Level, ev.RequestID)
		ev.Outcome, ev.Cause = p.Error, err
		if err := s.answer(w, r, p); err != nil && !errors.Is(err, context.Canceled) {
			ev.Cause = errors.Join(ev.Cause, err)
		}
	}
}
