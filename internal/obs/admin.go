package obs

import (
	"context"
	"encoding/json"
	"log/slog"
	"net/http"
	"net/http/pprof"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// readyWithin bounds the question whether the process is ready.
const readyWithin = 2 * time.Second

// Admin serves /metrics, /ready and /debug/pprof/. It authenticates nobody and
// shows the inside of the process: listen on a loopback or private address,
// never behind the load balancer. The caller may add routes.
//
// /ready answers 200 {"ready":true}, or 503 with the error of ready as its
// "reason", on one line. ready may ask dependencies; it gets 2 s and must be safe for
// concurrent use.
func Admin(reg *prometheus.Registry, ready func(ctx context.Context) error) *http.ServeMux {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(reg, promhttp.HandlerOpts{Registry: reg}))
	mux.HandleFunc("GET /ready", func(w http.ResponseWriter, r *http.Request) {
		ctx, cancel := context.WithTimeout(r.Context(), readyWithin)
		defer cancel()
		if err := ready(ctx); err != nil {
			reply(w, http.StatusServiceUnavailable, readiness{Reason: strings.ReplaceAll(err.Error(), "\n", "; ")})
			return
		}
		reply(w, http.StatusOK, readiness{Ready: true})
	})
	mux.HandleFunc("/debug/pprof/", pprof.Index)
	mux.HandleFunc("/debug/pprof/cmdline", pprof.Cmdline)
	mux.HandleFunc("/debug/pprof/profile", pprof.Profile)
	mux.HandleFunc("/debug/pprof/symbol", pprof.Symbol)
	mux.HandleFunc("/debug/pprof/trace", pprof.Trace)
	return mux
}

type readiness struct {
	Ready  bool   `json:"ready"`
	Reason string `json:"reason,omitempty"`
}

// LevelHandler shows and changes the log level of a running process, for the
// admin listener: GET answers {"level":"INFO"}; PUT with ?level=debug sets it
// and answers the same, or 400 for a level that is none.
func LevelHandler(level *slog.LevelVar) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPut {
			if err := level.UnmarshalText([]byte(r.URL.Query().Get("level"))); err != nil {
				reply(w, http.StatusBadRequest, map[string]string{"error": err.Error()})
				return
			}
		}
		reply(w, http.StatusOK, map[string]*slog.LevelVar{"level": level})
	})
}

func reply(w http.ResponseWriter, status int, body any) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(body) // the caller has left
}
