// Package mockgateway stands in for the payment gateway: it serves the same
// wire protocol (token, create, execute, query, refund, search), the payer's
// page with its buttons, signed notifications, and addresses of its own under
// /mock/ for whoever runs a test. It serves unit tests, the local stack and load
// tests alike. It can have every fault that the real one has: docs/mockgateway.md.
//
// Where the gateway's public material is silent, the choice made here stands
// beside the code that makes it.
//
// Fail mode: with a data folder, nothing is answered before what it says is on
// disk; if the disk fails, every call that changes something is answered with
// HTTP 500 until the program is started again, and no notification is sent.
//
// Clock: Options.Now decides expiry, limits, lapses and what comes late;
// Options.At waits for it, for latency too. Only the time a webhook has for
// its answer is real time.
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
	// At is how time passes: the channel gets a value once Now has reached t. A
	// clock that a test moves needs one that goes with it. Default a timer of
	// real time.
	At func(t time.Time) <-chan time.Time
}

// Gateway is the mock as an http.Handler. Safe for concurrent use.
type Gateway struct {
	opts    Options
	mux     *http.ServeMux
	journal *journal // nil in memory
	webhook *http.Client
	sending chan struct{} // a place for each notification on its way

	ending context.Context // when it ends, so do the goroutines in work
	end    context.CancelFunc
	work   sync.WaitGroup
	hungUp chan struct{}
	hangUp func() // closes it, once

	signing sync.Mutex // signer; before mu if both are held
	signer  *signer    // nil until it is needed

	mu        sync.Mutex // all below; held for moments, never while waiting
	payments  map[string]*payment
	byInvoice map[string]*payment
	byTrx     map[string]*payment
	accounts  map[string]*account
	tokens    map[string]token
	prospects map[string]*prospect // by invoice
	tally     *tally
	settings  Settings
	notes     int64                   // made so far
	held      map[*notification]*gate // until they are overtaken
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
	if opts.At == nil {
		opts.At = func(t time.Time) <-chan time.Time { return time.After(t.Sub(opts.Now())) }
	}
	ctx := context.Background() // a Gateway lives until Close
	g := &Gateway{
		opts:      opts,
		mux:       http.NewServeMux(),
		payments:  map[string]*payment{},
		byInvoice: map[string]*payment{},
		byTrx:     map[string]*payment{},
		accounts:  map[string]*account{},
		tokens:    map[string]token{},
		prospects: map[string]*prospect{},
		tally:     &tally{counts: map[string]map[string]int{}},
		held:      map[*notification]*gate{},
		webhook:   newWebhookClient(),
		sending:   make(chan struct{}, maxSending),
		hungUp:    make(chan struct{}),
	}
	g.hangUp = sync.OnceFunc(func() { close(g.hungUp) })
	g.ending, g.end = context.WithCancel(ctx)
	g.routes()
	if opts.DataDir == "" {
		return g, nil
	}
	j, err := openJournal(ctx, opts.DataDir)
	if err != nil {
		return nil, err
	}
	g.journal, g.tally.journal = j, j
	if err := j.load(ctx, g.restore); err != nil {
		g.end()
		return nil, errors.Join(err, j.close())
	}
	g.resume()
	return g, nil
}

// resume takes up what a restart has interrupted.
func (g *Gateway) resume() {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, p := range g.payments {
		delete(g.prospects, p.Invoice)
		g.await(p)
		for _, t := range p.Transactions {
			if t.Note != nil {
				g.notes = max(g.notes, t.Note.Seq)
				g.dispatch(p, t.Note)
			}
		}
	}
}

// HangUp ends the calls that a fault keeps without an answer, and lets later
// ones end at once. It is for http.Server.RegisterOnShutdown: without it,
// Shutdown waits for their clients.
func (g *Gateway) HangUp() { g.hangUp() }

// Close stops sending notifications, writes what is still to be written and lets
// go of the data folder. Call it once, when no request is being served any more.
// With a data folder, the next Gateway on it sends what was not yet delivered.
func (g *Gateway) Close() error {
	g.HangUp()
	g.end()
	g.work.Wait()
	g.webhook.CloseIdleConnections()
	return g.journal.close()
}

// ServeHTTP marks the response as the mock's and serves the request.
func (g *Gateway) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set(Header, HeaderValue)
	g.mux.ServeHTTP(w, r)
}

func (g *Gateway) routes() {
	const checkout = "POST " + BasePath + "/tokenized/checkout"
	call := func(path, name string, h handler) {
		g.mux.HandleFunc(checkout+path, g.api(name, g.authorized(g.faulty(name, h))))
	}
	g.mux.HandleFunc(checkout+"/token/grant", g.api(CallGrant, g.faulty(CallGrant, g.grant)))
	g.mux.HandleFunc(checkout+"/token/refresh", g.api(CallRefresh, g.faulty(CallRefresh, g.refresh)))
	call("/create", CallCreate, g.create)
	call("/execute", CallExecute, g.execute)
	call("/payment/status", CallStatus, g.status)
	call("/payment/refund", CallRefund, g.refund)
	call("/general/searchTransaction", CallSearch, g.search)
	g.mux.HandleFunc("GET /pay/{payment}", g.showPage)
	g.mux.HandleFunc("POST /pay/{payment}", g.pressButton)
	g.mux.HandleFunc("GET /mock/settings", g.showSettings)
	g.mux.HandleFunc("PUT /mock/settings", g.putSettings)
	g.mux.HandleFunc("GET /mock/payments", g.listPayments)
	g.mux.HandleFunc("GET /mock/faults", g.showFaults)
	g.mux.HandleFunc("PUT /mock/faults", g.putFaults)
	g.mux.HandleFunc("POST /mock/notifications/subscribe", g.postSubscribe)
	g.mux.HandleFunc("GET /mock/sns/{file}", g.showCertificate)
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
