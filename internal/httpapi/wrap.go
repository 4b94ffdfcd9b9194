package httpapi

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http"
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
	m := &metrics{
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
	// An alarm hears the first burst only over a zero: the answers of the two routes
	// that have an objective.
	begin := func(route string, status int) { m.requests.WithLabelValues(route, strconv.Itoa(status)) }
	for _, route := range []string{routeBook, routeReturn} {
		begin(route, http.StatusSeeOther)
		begin(route, internal.status)
	}
	begin(routeBook, http.StatusAccepted)
	for _, o := range outcomes {
		begin(routeBook, o.status)
	}
	return m
}

// requestID tells requests apart in logs; it is no secret.
func requestID() string {
	return strconv.FormatUint(rand.Uint64()|1<<63, 32) // 13 characters
}

type handler func(w http.ResponseWriter, r *http.Request) error

// unlogged is set on the event of a request that leaves no log line.
const unlogged = "honeypot"

// observe gives every request an id, one metric and one log line, and turns a
// panic into an opaque 500. The id is our own: one from outside would be whatever
// its sender likes to have in the log. The line names the route, never the path: a
// booking token in it would be a key to the booking.
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
				ev.Outcome, ev.Cause = internal.slug, obs.Panicked(p)
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
	var dropped, unread int64
	var ok bool
	switch {
	case ev.Keep:
	case refusals[ev.Outcome]:
		if ok, dropped = s.refusalLog.allow(time.Now()); !ok {
			return
		}
	case reads[pattern] && status < http.StatusBadRequest && ev.Cause == nil:
		if ok, unread = s.readLog.allow(time.Now()); !ok {
			return
		}
	}
	level := slog.LevelInfo
	if (status >= http.StatusInternalServerError && ev.Outcome == internal.slug) || panicked(ev.Cause) {
		level = slog.LevelError
	}
	if !s.Log.Enabled(ctx, level) {
		return
	}
	// From here on only for a line that is written: most are not.
	if !levelKnown[ev.Outcome] && ev.Attempt == "" {
		ev.Level = ""
	}
	attrs := append([]slog.Attr{
		slog.String("route", pattern), slog.String("method", methodOf(r)), slog.Int("code", status), slog.Duration("took", took),
	}, ev.Attrs()...)
	if s.Client != nil {
		if name := s.Client(r); name != "" {
			attrs = append(attrs, slog.String("client", name))
		}
	}
	if dropped > 0 {
		attrs = append(attrs, slog.Int64("refusals_not_logged", dropped))
	}
	if unread > 0 {
		attrs = append(attrs, slog.Int64("reads_not_logged", unread))
	}
	s.Log.LogAttrs(ctx, level, "request", attrs...)
}

// levelKnown are the outcomes behind which the ledger has found that there is such a
// level; before, it is what somebody typed, which may be their code.
var levelKnown = map[string]bool{
	admitted: true, "duplicate": true, "level_full": true, "closed": true, "email_mismatch": true,
	"idempotency_mismatch": true, "payment_unavailable": true,
}

// panicked tells whether a bug is behind it, also where the answer was none of 500.
func panicked(err error) bool {
	var p *obs.PanicError
	return err != nil && errors.As(err, &p)
}

// methodOf is the method if it is one: to a server any word will do.
func methodOf(r *http.Request) string {
	switch r.Method {
	case http.MethodGet, http.MethodHead, http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete, http.MethodOptions:
		return r.Method
	}
	return "other"
}

// refusals are the outcomes that come by the hundred thousand in a rush. Their log
// lines are sampled, their counters are not: in one second the first
// loggedPerSecond of a process are written, and the next line that is says how many
// were not. A refusal that comes after a seat was taken is always written.
var refusals = map[string]bool{"duplicate": true, "level_full": true, "closed": true, "try_again": true}

// reads are the routes that people look at while they wait, several times for each
// booking. What they answer when all is well is sampled in the same way; their objective
// is in the counters.
var reads = map[string]bool{"/": true, "/result": true, "/status.json": true, "/booking/{token}": true}

const loggedPerSecond = 100

type sampler struct {
	second, n, dropped atomic.Int64
}

// allow tells whether a line may be written, and how many were not since the last.
func (s *sampler) allow(now time.Time) (ok bool, dropped int64) {
	if second := now.Unix(); s.second.Swap(second) != second {
		s.n.Store(0)
	}
	if s.n.Add(1) > loggedPerSecond {
		s.dropped.Add(1)
		return false, 0
	}
	return true, s.dropped.Swap(0)
}

// answer tells a problem: a form gets a page, everyone else JSON.
func (s *Server) answer(w http.ResponseWriter, r *http.Request, p problem) error {
	if isForm(r) {
		return s.page(w, r, p)
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
			ev.Cause = errors.Join(ev.Cause, unaddressed(err))
		}
	}
}

// unaddressed is the error of a connection without the addresses of its ends, one of
// which is the client's.
func unaddressed(err error) error {
	var op *net.OpError
	if errors.As(err, &op) {
		return op.Err
	}
	return err
}
