// Package mockgateway stands in for the payment gateway: it serves the same
// wire protocol (token, create, execute, query, refund, search), the payer's
// page with its buttons, and two addresses of its own under /mock/ for whoever
// runs a test. It serves unit tests, the local stack and load tests alike.
//
// Where the gateway's public material is silent, the choice made here stands
// beside the code that makes it.
//
// Fail mode: with a data folder, nothing is answered before what it says is on
// disk; if the disk fails, every call that changes something is answered with
// HTTP 500 until the program is started again.
//
// Clock: Options.Now decides expiry, limits and lapses; latency is real time.
package mockgateway

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"
)

// BasePath is where the gateway's API begins; a client's base URL is the mock's
// address followed by it.
const BasePath = "/v1.2.0-beta"

// Header and HeaderValue are in every response, so that a rehearsal can refuse
// to run against anything else.
const (
	Header      = "X-Mock-Gateway"
	HeaderValue = "holdfast"
)

// Options configure a Gateway. The zero value is a gateway in memory with the
// real one's limits and no latency.
type Options struct {
	// DataDir keeps payments, tokens and grant counts; it is made if missing and
	// belongs to one process at a time. "" keeps them in memory.
	DataDir string
	// BaseURL is what addresses of payer's pages start with. "" takes the host
	// of the request that creates the payment.
	BaseURL string
	// Now is the clock. Default time.Now.
	Now func() time.Time
	// TokenTTL is the life of a token. Default 1 h.
	TokenTTL time.Duration
	// GrantsPerHour is how many token calls an account has in any hour; one more
	// blocks it for an hour. 0 is the real limit of 2; negative is no limit.
	GrantsPerHour int
	// Latency is how long the answer to a call (see Calls) is kept back, unless
	// the settings say otherwise. nil is no latency.
	Latency func(call string) time.Duration
}

// Gateway is the mock as an http.Handler. Safe for concurrent use.
type Gateway struct {
	opts    Options
	mux     *http.ServeMux
	journal *journal // nil in memory

	mu        sync.Mutex // all below; held for moments, never while waiting
	payments  map[string]*payment
	byInvoice map[string]*payment
	byTrx     map[string]*payment
	accounts  map[string]*account
	tokens    map[string]token
	settings  settings
}

// New opens the data folder, if there is one, and takes up the state in it.
func New(opts Options) (*Gateway, error) {
	if opts.Now == nil {
		opts.Now = time.Now
	}
	if opts.TokenTTL == 0 {
		opts.TokenTTL = time.Hour
	}
	if opts.GrantsPerHour == 0 {
		opts.GrantsPerHour = 2
	}
	if opts.BaseURL != "" {
		u, err := url.Parse(opts.BaseURL)
		if err != nil || (u.Scheme != "http" && u.Scheme != "https") || u.Host == "" {
			return nil, fmt.Errorf("mock gateway: public URL %q: want http(s)://host", opts.BaseURL)
		}
		opts.BaseURL = strings.TrimRight(opts.BaseURL, "/")
	}
	g := &Gateway{
		opts:      opts,
		mux:       http.NewServeMux(),
		payments:  map[string]*payment{},
		byInvoice: map[string]*payment{},
		byTrx:     map[string]*payment{},
		accounts:  map[string]*account{},
		tokens:    map[string]token{},
	}
	g.routes()
	if opts.DataDir == "" {
		return g, nil
	}
	ctx := context.Background() // opening takes as long as the state is large
	j, err := openJournal(ctx, opts.DataDir)
	if err != nil {
		return nil, err
	}
	g.journal = j
	if err := j.load(ctx, g.restore); err != nil {
		return nil, errors.Join(err, j.close())
	}
	return g, nil
}

// Close writes what is still to be written and lets go of the data folder. Call
// it once, when no request is being served any more.
func (g *Gateway) Close() error { return g.journal.close() }

// ServeHTTP marks the response as the mock's and serves the request.
func (g *Gateway) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set(Header, HeaderValue)
	g.mux.ServeHTTP(w, r)
}

func (g *Gateway) routes() {
	const checkout = "POST " + BasePath + "/tokenized/checkout"
	g.mux.HandleFunc(checkout+"/token/grant", g.api(CallGrant, g.grant))
	g.mux.HandleFunc(checkout+"/token/refresh", g.api(CallRefresh, g.refresh))
	g.mux.HandleFunc(checkout+"/create", g.api(CallCreate, g.authorized(g.create)))
	g.mux.HandleFunc(checkout+"/execute", g.api(CallExecute, g.authorized(g.execute)))
	g.mux.HandleFunc(checkout+"/payment/status", g.api(CallStatus, g.authorized(g.status)))
	g.mux.HandleFunc(checkout+"/payment/refund", g.api(CallRefund, g.authorized(g.refund)))
	g.mux.HandleFunc(checkout+"/general/searchTransaction", g.api(CallSearch, g.authorized(g.search)))
	g.mux.HandleFunc("GET /pay/{payment}", g.showPage)
	g.mux.HandleFunc("POST /pay/{payment}", g.pressButton)
	g.mux.HandleFunc("GET /mock/settings", g.showSettings)
	g.mux.HandleFunc("PUT /mock/settings", g.putSettings)
	g.mux.HandleFunc("GET /mock/payments", g.listPayments)
}

// baseURL is what addresses given to this request's caller start with.
func (g *Gateway) baseURL(r *http.Request) string {
	if g.opts.BaseURL != "" {
		return g.opts.BaseURL
	}
	if r.TLS != nil {
		return "https://" + r.Host
	}
	return "http://" + r.Host
}
