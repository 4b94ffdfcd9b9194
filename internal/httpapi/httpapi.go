// Package httpapi is the HTTP edge: routes, decoding, the one table from
// outcomes to statuses, and one log line per request. Handlers return errors; one
// wrapper answers and logs them, once.
//
// A user's input never causes a 5xx or a panic: what is not understood is a 4xx
// that says what to change. It holds no state but counters, and the last pages that it
// built where it serves them itself.
package httpapi

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-chi/chi/v5"
	"github.com/prometheus/client_golang/prometheus"

	"holdfast/internal/booking"
)

// Booker books; see checkout.Service. It answers within its own budget, also
// when the request's context ends. With an error the booking holds the attempt, if
// one was made, and nothing else.
type Booker interface {
	Book(ctx context.Context, r booking.Request) (booking.Held, error)
}

// Finder tells candidates of the seat they have, as an error, and takes none; see
// checkout.Finder.
type Finder interface {
	Find(ctx context.Context, code, email string) error
}

// Settler brings a payment to its end; see settle.Service.
type Settler interface {
	Issued(ctx context.Context, payment, signature string) (code, attempt string, err error)
	Return(ctx context.Context, code, attempt, payment string) error
}

// Viewer tells a candidate about their booking; see checkout.Viewer.
type Viewer interface {
	View(ctx context.Context, code, attempt string) (booking.View, error)
}

// Sealer reads booking tokens and makes them; see booking.Sealer.
type Sealer interface {
	Seal(code, attempt string) string
	Open(token string) (code, attempt string, err error)
}

// Entrance lets bookings begin, or not, when the process has more to do than it can; see
// overload.Guard. Who is let in says when they leave.
type Entrance interface {
	Enter() (leave func(), ok bool)
}

// Background runs work that must not end with its request and that a drain
// waits for. It refuses when draining.
type Background interface {
	Go(fn func()) bool
}

// Objects is where status.json lies.
type Objects interface {
	Get(ctx context.Context, key string) (body []byte, etag string, err error)
}

// Sales tells the running sale, for the page.
type Sales interface {
	Sale(ctx context.Context) (booking.Sale, error)
}

// Deps is what the edge is made of.
type Deps struct {
	Booker     Booker
	Finder     Finder
	Settler    Settler
	Viewer     Viewer
	Sealer     Sealer
	Background Background
	// Entrance may refuse a booking before it is read; nil lets everybody in.
	Entrance Entrance
	Codes    booking.CodeRule
	// Pages are what the local profile serves itself; nil where S3 and the CDN do.
	Pages *Pages
	// Webhook takes the gateway's notifications; nil where none is set up.
	Webhook http.Handler
	// ResultURL is the path of the result page, before ?booking=.
	ResultURL string
	// ReturnBudget is how long a browser that comes back from the gateway waits.
	ReturnBudget time.Duration
	// Client names where a request comes from, for its log line, or gives ""; it is
	// called for lines that are written only. Nil: no line has it.
	Client func(r *http.Request) string
	// Version is told by /health; "" is not.
	Version    string
	Log        *slog.Logger
	Registerer prometheus.Registerer
}

// Server is the edge as an http.Handler.
type Server struct {
	Deps
	router     *chi.Mux
	handler    http.Handler // the router, observed
	matches    sync.Pool    // of *chi.Context
	metrics    *metrics
	draining   atomic.Bool
	decoy      decoy
	built      builtPages
	refusalLog sampler
	readLog    sampler
	shown      newest
}

// New checks its dependencies and builds the routes.
func New(d Deps) (*Server, error) {
	if d.Booker == nil || d.Finder == nil || d.Settler == nil || d.Viewer == nil || d.Sealer == nil || d.Background == nil ||
		d.Codes == (booking.CodeRule{}) || d.ResultURL == "" || d.ReturnBudget <= 0 || d.Log == nil || d.Registerer == nil {
		return nil, errors.New("httpapi: a dependency is missing")
	}
	s := &Server{Deps: d, metrics: newMetrics(d.Registerer)}
	if d.Pages != nil {
		s.shown.get = d.Pages.Objects.Get
	}
	s.matches.New = func() any { return chi.NewRouteContext() }
	s.router = s.routes()
	s.handler = s.observe(s.router)
	return s, nil
}

// Routes are all that there are, for whoever compares them with what stands before this
// server. They are not to be changed.
func (s *Server) Routes() chi.Routes { return s.router }

// The routes that have an objective: candidates who book, payers who come back.
const (
	routeBook   = "/book"
	routeReturn = "/payment/callback"
)

// routes is every route there is.
func (s *Server) routes() *chi.Mux {
	r := chi.NewRouter()
	r.NotFound(s.wrap(func(http.ResponseWriter, *http.Request) error { return booking.ErrNotFound }))
	r.MethodNotAllowed(s.wrap(func(w http.ResponseWriter, req *http.Request) error {
		for _, method := range []string{http.MethodGet, http.MethodHead, http.MethodPost} {
			if r.Match(chi.NewRouteContext(), method, req.URL.Path) {
				w.Header().Add("Allow", method)
			}
		}
		return booking.ErrMethodNotAllowed
	}))
	r.Post(routeBook, s.wrap(s.book))
	r.Get(routeReturn, s.wrap(s.callback))
	if s.Webhook != nil {
		r.Method(http.MethodPost, "/payment/webhook", s.Webhook)
	}
	r.Get("/booking/{token}", s.wrap(s.view))
	r.Get("/health", s.wrap(s.health))
	if s.Pages != nil {
		for _, method := range []string{http.MethodGet, http.MethodHead} {
			r.Method(method, "/", s.wrap(s.index))
			r.Method(method, "/result", s.wrap(s.result))
			r.Method(method, "/status.json", s.wrap(s.status))
		}
	}
	return r
}

// ServeHTTP makes Server an http.Handler.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) { s.handler.ServeHTTP(w, r) }

// Drain makes /health fail and new bookings answer try_again; what is in flight
// goes on.
func (s *Server) Drain() { s.draining.Store(true) }

type health struct {
	Status  string `json:"status"`
	Version string `json:"version,omitempty"`
}

// health touches no dependency: an outage of Redis must not have the balancer
// take away every server at once.
func (s *Server) health(w http.ResponseWriter, _ *http.Request) error {
	if s.draining.Load() {
		return fmt.Errorf("draining: %w", booking.ErrTryAgain)
	}
	return reply(w, http.StatusOK, health{Status: "ok", Version: s.Version})
}
