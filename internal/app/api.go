// Package app wires the processes together: it turns settings into adapters,
// adapters into use cases, and runs them until told to stop. It decides nothing
// about seats or money.
package app

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/redis/go-redis/v9"
	"golang.org/x/sync/errgroup"

	"holdfast/internal/admission"
	"holdfast/internal/booking"
	"holdfast/internal/checkout"
	"holdfast/internal/config"
	"holdfast/internal/flight"
	"holdfast/internal/httpapi"
	"holdfast/internal/lease"
	"holdfast/internal/ledgerstats"
	"holdfast/internal/notification"
	"holdfast/internal/obs"
	"holdfast/internal/overload"
	"holdfast/internal/paygate"
	"holdfast/internal/paygate/redistoken"
	"holdfast/internal/reconcile"
	"holdfast/internal/refund"
	"holdfast/internal/settle"
	"holdfast/internal/snshook"
	"holdfast/internal/statuspage"
	"holdfast/internal/wall"
)

const (
	reconcilerTerm = 15 * time.Second // a dead runner is replaced after this
	sweepBudget    = 45 * time.Second
)

// Server time-outs. Idle exceeds the balancer's idle time-out of 60 s, so that
// the balancer, not the server, closes a connection; write exceeds the request
// budget.
const (
	readHeaderTimeout = 5 * time.Second
	readTimeout       = 10 * time.Second
	writeTimeout      = 20 * time.Second
	idleTimeout       = 90 * time.Second
	maxHeader         = 16 << 10
)

// Extras are what the local profile and tests give instead of settings.
type Extras struct {
	// Drivers that the caller opened and closes, all of them; nil opens the configured
	// ones.
	Drivers *Drivers
	// Open opens the configured ones; nil is OpenLocal.
	Open Opener
	// InProcessRedis exempts a Redis that cannot tell its eviction policy.
	InProcessRedis bool
	// KeepToken is given the gateway token's state after every grant, before the
	// token is used; nil keeps no copy. The local profile's Redis forgets it, the
	// gateway's two grants an hour do not.
	KeepToken func(ctx context.Context, state []byte) error
	// Webhook says how notifications are proved, instead of by the configured topic
	// and the public authorities; nil does not.
	Webhook *snshook.Config
	// Terms are the gateway's properties, where it is not the real one; nil are the
	// real one's.
	Terms *booking.PaymentTerms
	// ClockOffset moves the ledger's clock and this process's, as if both machines'
	// time had passed; tests only.
	ClockOffset func() time.Duration
}

// API is the API process: the edge, the reconciler and the publisher.
type API struct {
	Gate       *admission.Gate
	Gateway    *paygate.Client
	Token      *redistoken.Source
	Drivers    *Drivers
	Reconciler *reconcile.Reconciler
	Refunds    *refund.Service
	Notices    *notification.Service
	Stats      *ledgerstats.Stats
	Publisher  *statuspage.Publisher
	Edge       *httpapi.Server

	cfg     config.API
	log     *slog.Logger
	reg     *prometheus.Registry
	rdb     *redis.Client
	lease   *lease.Lease
	flights *flight.Group
	codes   booking.CodeRule
	wall    *wall.Wall
	// entrance and mails are at work from Run on.
	entrance *overload.Guard
	mails    *overload.Later
	extras   Extras
	closers  []func() error
}

// NewAPI wires an API process. The caller runs it with Run, or closes it.
func NewAPI(ctx context.Context, cfg config.API, x Extras, log *slog.Logger, reg *prometheus.Registry) (_ *API, err error) {
	a := &API{cfg: cfg, log: log, reg: reg, extras: x, flights: new(flight.Group)}
	defer func() {
		if err != nil {
			err = errors.Join(err, a.Close())
		}
	}()
	if err := a.openLedger(ctx); err != nil {
		return nil, err
	}
	if err := a.openDrivers(ctx); err != nil {
		return nil, err
	}
	if err := a.openGateway(); err != nil {
		return nil, err
	}
	return a, a.wire()
}

// now is the process's clock.
func (a *API) now() time.Time {
	if a.extras.ClockOffset == nil {
		return time.Now()
	}
	return time.Now().Add(a.extras.ClockOffset())
}

func (a *API) openLedger(ctx context.Context) error {
	c := a.cfg.Redis
	client := admission.ClientConfig{Addr: c.RedisAddr, Username: c.RedisUsername, Password: c.RedisPassword.Reveal(), Pool: c.RedisPool}
	if c.RedisTLS {
		host, _, err := net.SplitHostPort(c.RedisAddr)
		if err != nil {
			return fmt.Errorf("redis address: %w", err)
		}
		client.TLS = &tls.Config{ServerName: host, MinVersion: tls.VersionTLS12}
	}
	a.rdb = admission.NewClient(client)
	a.closers = append(a.closers, a.rdb.Close)
	keys, err := admission.NewKeys(c.KeyPrefix)
	if err != nil {
		return err
	}
	a.Gate, err = admission.New(a.rdb, admission.Options{
		Keys: keys, Acks: int(c.Acks), ClockOffset: a.extras.ClockOffset, Log: a.log, Registerer: a.reg,
		OnPrimaryChanged: func() { // what was acknowledged may be missing there
			if a.Reconciler != nil {
				a.Reconciler.CrossCheckNow()
			}
		},
	})
	if err != nil {
		return err
	}
	a.lease = lease.New(a.rdb, keys.Lock(), reconcilerTerm, time.Now)
	if c.Acks == config.AcksNone && !a.extras.InProcessRedis {
		a.log.WarnContext(ctx, "no replica acknowledgement is asked for: only an engine that logs every write durably may run like this")
	}
	if err := a.checkEviction(ctx); errors.Is(err, admission.ErrEviction) {
		return err // any other error is "not ready", and may pass
	}
	if err := a.Gate.LearnReplicas(ctx); err != nil {
		a.log.WarnContext(ctx, "replicas cannot be counted yet: one must acknowledge", "error", err)
	}
	return nil
}

func (a *API) checkEviction(ctx context.Context) error {
	if a.extras.InProcessRedis {
		return nil
	}
	return a.Gate.CheckEviction(ctx)
}

func (a *API) openDrivers(ctx context.Context) error {
	if a.extras.Drivers != nil {
		a.Drivers = a.extras.Drivers
		return nil
	}
	open := a.extras.Open
	if open == nil {
		open = OpenLocal
	}
	d, err := open(ctx, Needs{Data: a.cfg.Data, Drivers: a.cfg.Drivers, Published: a.cfg.Published, Mail: a.cfg.Mail, Now: a.now})
	if err != nil {
		return err
	}
	a.Drivers = d
	a.closers = append(a.closers, d.Close)
	return nil
}

func (a *API) openGateway() error {
	c := a.cfg.Gateway
	secret := func(s config.Secret) paygate.Secret { return paygate.Secret(s.Reveal()) }
	hc := paygate.NewHTTPClient(c.GatewaySlots)
	a.closers = append(a.closers, func() error { hc.CloseIdleConnections(); return nil })
	granter, err := paygate.NewGranter(c.GatewayURL, paygate.Credentials{
		AppKey: secret(c.GatewayAppKey), AppSecret: secret(c.GatewayAppSecret),
		Username: secret(c.GatewayUsername), Password: secret(c.GatewayPassword),
	}, hc)
	if err != nil {
		return err
	}
	var opts []redistoken.Option
	if a.extras.KeepToken != nil {
		opts = append(opts, redistoken.KeepCopy(a.extras.KeepToken))
	}
	a.Token, err = redistoken.New(a.rdb, granter, c.GatewayAppKey.Reveal(), a.now, a.log, a.reg, opts...)
	if err != nil {
		return err
	}
	a.closers = append(a.closers, func() error { a.Token.Close(); return nil })
	a.Gateway, err = paygate.New(paygate.Config{
		BaseURL: c.GatewayURL, AppKey: secret(c.GatewayAppKey),
		CreateTimeout: a.cfg.CreateBudget, ExecuteTimeout: a.cfg.ExecuteTimeout, RefundTimeout: refund.CallTime,
	}, a.Token, hc, a.log, a.reg)
	return err
}

func (a *API) wire() error {
	sealer, err := booking.NewSealer(a.cfg.SealKeyBytes())
	if err != nil {
		return err
	}
	if a.codes, err = booking.NewCodeRule(a.cfg.CodePattern); err != nil {
		return err
	}
	bookingURL := func(code, attempt string) string { return a.cfg.PublicURL + "/booking/" + sealer.Seal(code, attempt) }
	resultURL := func(code, attempt string) string {
		return a.cfg.PublicURL + "/result?booking=" + url.QueryEscape(sealer.Seal(code, attempt))
	}
	a.Publisher = statuspage.New(a.Gate, a.Drivers.Objects, a.log, a.reg)
	book, err := checkout.New(checkout.Deps{
		Ledger: a.Gate, Gateway: a.Gateway, Queue: a.Drivers.Queue, Slots: int64(a.cfg.GatewaySlots),
		Budgets: checkout.Budgets{
			Request: a.cfg.RequestBudget, Redis: a.cfg.RedisBudget, Create: a.cfg.CreateBudget, Enqueue: a.cfg.EnqueueBudget,
		},
		CallbackURL: a.cfg.PublicURL + "/payment/callback", BookingURL: bookingURL,
		Changed: a.Publisher.Changed, Now: a.now, Log: a.log, Registerer: a.reg,
	})
	if err != nil {
		return err
	}
	// In the rush a confirmation is what can wait.
	a.entrance = overload.New(a.reg)
	a.mails = overload.NewLater(a.entrance.Busy, a.flights.Go)
	settler, err := settle.New(settle.Deps{
		Ledger: a.Gate, Gateway: a.Gateway, Store: a.Drivers.Store, Mailer: a.Drivers.Mailer, Sale: a.Gate, Background: a.mails,
		BookingURL: resultURL, ExecuteTimeout: a.cfg.ExecuteTimeout, Now: a.now, Log: a.log, Registerer: a.reg,
	})
	if err != nil {
		return err
	}
	a.Refunds, err = refund.New(refund.Deps{
		Store: a.Drivers.Store, Gateway: a.Gateway, Automatic: a.cfg.RefundAuto, PerSecond: float64(a.cfg.RefundRate),
		Now: a.now, Log: a.log, Registerer: a.reg,
	})
	if err != nil {
		return err
	}
	terms := paymentTerms()
	if a.extras.Terms != nil {
		terms = *a.extras.Terms
	}
	var ended reconcile.Ended
	if terms.MovesAlone {
		ended = a.Drivers.Store
	}
	a.Reconciler, err = reconcile.New(reconcile.Deps{
		Ledger: a.Gate, Gateway: a.Gateway, Settler: settler, Store: a.Drivers.Store,
		Every: a.cfg.ReconcileEvery, Budget: sweepBudget, Width: a.cfg.ReconcileWidth, QueriesPerSecond: float64(a.cfg.QueryRate),
		ExecuteTimeout: a.cfg.ExecuteTimeout, Lapse: terms.Lapse, Keeper: a.Drivers.Store, Ended: ended, Changed: a.Publisher.Changed, Log: a.log, Registerer: a.reg,
		AfterSweep: []reconcile.Work{
			{Name: "notification sweep", Do: func(ctx context.Context) (map[string]int, error) { return a.Notices.Sweep(ctx) }},
			{Name: "refund sweep", Do: func(ctx context.Context) (map[string]int, error) {
				report, err := a.Refunds.Sweep(ctx)
				return report.Figures(), err
			}},
		},
		Restore: func(ctx context.Context) error { _, err := a.Notices.Restore(ctx); return err },
	})
	if err != nil {
		return err
	}
	a.Stats, err = ledgerstats.New(ledgerstats.Deps{
		Ledger: a.Gate, Shown: a.shown, Log: a.log, Registerer: a.reg,
	})
	if err != nil {
		return err
	}
	a.wall = wall.New(a.Gate, a.now)
	a.Notices, err = notification.New(notification.Deps{
		Store: a.Drivers.Store, Ledger: a.Gate, Gateway: a.Gateway, Settler: settler, Background: a.flights,
		Rate: a.Reconciler, Width: a.cfg.ReconcileWidth, Now: a.now, Log: a.log, Registerer: a.reg,
	})
	if err != nil {
		return err
	}
	webhook, err := a.webhook()
	if err != nil {
		return err
	}
	clients, err := obs.NewClients(a.cfg.SealKeyBytes(), a.cfg.TrustedHops, a.now)
	if err != nil {
		return err
	}
	var pages *httpapi.Pages
	if a.cfg.Pages {
		pages = &httpapi.Pages{Objects: a.Drivers.Objects, Sales: a.Gate}
	}
	a.Edge, err = httpapi.New(httpapi.Deps{
		Booker: book, Finder: &checkout.Finder{Seats: a.Gate, BookingURL: bookingURL}, Settler: settler, Viewer: &checkout.Viewer{Rows: a.Gate, Records: a.Drivers.Store, Refusal: paygate.RefusalOf},
		Sealer: sealer, Background: a.flights, Entrance: a.entrance, Codes: a.codes,
		Pages: pages, Webhook: webhook, Version: obs.Version(),
		ResultURL: a.cfg.PublicURL + "/result", ReturnBudget: returnBudget(a.cfg.RequestBudget),
		Client: clients.Name, Log: a.log, Registerer: a.reg,
	})
	return err
}

// webhook is the route of the gateway's notifications; nil when there is no topic.
func (a *API) webhook() (http.Handler, error) {
	cfg := snshook.Config{TopicARN: a.cfg.NotifyTopic}
	if a.extras.Webhook != nil {
		cfg = *a.extras.Webhook
	}
	if cfg.TopicARN == "" {
		return nil, nil
	}
	verifier, err := snshook.New(cfg)
	if err != nil {
		return nil, fmt.Errorf("webhook: %w", err)
	}
	return snshook.NewHandler(snshook.Deps{
		Verifier: verifier, Keeper: a.Notices, Arrived: a.Notices.Arrived, Log: a.log, Registerer: a.reg,
	})
}

// returnBudget leaves the redirect itself within what the browser waits.
func returnBudget(request time.Duration) time.Duration { return request - request/16 }

// Ready tells whether the process can do its work now; the error names everything
// that is missing, one line each.
func (a *API) Ready(ctx context.Context) error {
	return missing(ctx, []check{
		{"redis", a.checkEviction},
		{"seat ledger", func(ctx context.Context) error { _, err := a.Gate.Epoch(ctx); return err }},
		{"booking store", a.Drivers.Store.Ping},
		{"queue", asked(a.Drivers.Queue)},
		{"status page", func(ctx context.Context) error {
			_, _, err := a.Drivers.Objects.Get(ctx, statuspage.Key)
			if errors.Is(err, booking.ErrNotFound) { // not published yet
				err = nil
			}
			return err
		}},
	})
}

// check is one thing that a process needs.
type check struct {
	what string
	ask  func(ctx context.Context) error
}

// missing asks all at the same time, so that one that hangs hides no other.
func missing(ctx context.Context, checks []check) error {
	errs := make([]error, len(checks))
	var asking sync.WaitGroup
	for i, c := range checks {
		asking.Go(func() {
			if err := c.ask(ctx); err != nil {
				errs[i] = fmt.Errorf("%s: %w", c.what, err)
			}
		})
	}
	asking.Wait()
	return errors.Join(errs...)
}

func asked(q Queue) func(ctx context.Context) error {
	return func(ctx context.Context) error { _, err := q.Stats(ctx); return err }
}

// Run serves on ln, and the admin routes on admin if it is not nil, until ctx
// ends; then it drains: no new bookings, what is in flight goes on for the
// configured time, the rest is the reconciler's. It closes the API.
//
// TimeoutStopSec of deploy/systemd > linger + drain; drain > the longest call in flight,
// which is an execute call or, with 34 s, a refund (refund.Outlasts).
func (a *API) Run(ctx context.Context, ln, admin net.Listener) error {
	defer func() { _ = a.Close() }()
	// Background work ends after the drain, so that what drains is still published.
	work, stopWork := context.WithCancel(context.WithoutCancel(ctx))
	defer stopWork()
	g, failed := errgroup.WithContext(work)
	edge := NewServer(a.Edge, a.log)
	g.Go(func() error { return serve(edge, ln) })
	var adminServer *http.Server
	if admin != nil {
		adminServer = NewServer(a.admin(), a.log)
		adminServer.WriteTimeout = 0 // a profile takes as long as it was asked to
		g.Go(func() error { return serve(adminServer, admin) })
	}
	g.Go(func() error { return a.Gate.Watch(failed) })
	g.Go(func() error { return a.Publisher.Run(failed) })
	g.Go(func() error { trim(failed); return nil })
	g.Go(func() error { return a.entrance.Run(failed) })
	sweeping, stopSweeping := context.WithCancel(failed)
	defer stopSweeping()
	g.Go(func() error { return a.lease.Keep(sweeping, a.log, a.elected) })
	g.Go(func() error { return a.Token.Keep(sweeping) })
	g.Go(func() error { return a.wall.Run(sweeping) })
	mailed := make(chan struct{}) // those that wait have begun
	g.Go(func() error { defer close(mailed); return a.mails.Run(sweeping) })

	select {
	case <-ctx.Done():
	case <-failed.Done():
	}
	// First the balancer must learn it, while connections are still accepted; what
	// Shutdown does at once would be resets.
	a.Edge.Drain()
	select {
	case <-time.After(a.cfg.Linger):
	case <-failed.Done():
	}
	a.log.InfoContext(ctx, "draining", "calls_in_flight", a.flights.InFlight(), "at_most", a.cfg.Drain.String())
	stopSweeping()
	drain, cancel := context.WithTimeout(context.WithoutCancel(ctx), a.cfg.Drain)
	defer cancel()
	edge.SetKeepAlivesEnabled(false)
	err := edge.Shutdown(drain)
	<-mailed
	a.flights.Close()
	err = errors.Join(err, a.flights.Wait(drain))
	stopWork()
	if adminServer != nil {
		err = errors.Join(err, adminServer.Close())
	}
	return errors.Join(err, g.Wait())
}

// Close closes what NewAPI opened. Safe to repeat.
func (a *API) Close() error {
	closers := a.closers
	a.closers = nil
	return closeAll(closers)
}

// NewServer is an HTTP server with the settings that every process here serves with.
func NewServer(h http.Handler, log *slog.Logger) *http.Server {
	return &http.Server{
		Handler:           h,
		ReadHeaderTimeout: readHeaderTimeout,
		ReadTimeout:       readTimeout,
		WriteTimeout:      writeTimeout,
		IdleTimeout:       idleTimeout,
		MaxHeaderBytes:    maxHeader,
		ErrorLog:          slog.NewLogLogger(log.Handler(), slog.LevelWarn),
	}
}

func serve(s *http.Server, ln net.Listener) error {
	if err := s.Serve(ln); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve %s: %w", ln.Addr(), err)
	}
	return nil
}

// listen opens a listener first, so that "started" means "accepting".
func listen(ctx context.Context, addr string) (net.Listener, error) {
	if addr == "" {
		return nil, nil
	}
	ln, err := (&net.ListenConfig{}).Listen(ctx, "tcp", addr)
	if err != nil {
		return nil, fmt.Errorf("listen: %w", err)
	}
	return ln, nil
}

// RunAPI is the whole API process on that platform: settings from getenv, logs to
// stderr. It ends when ctx does.
func RunAPI(ctx context.Context, p Platform, getenv func(string) string, stderr io.Writer) error {
	Quiet()
	values, err := p.Settings(ctx, getenv, config.Variables[config.API]())
	if err != nil {
		return err
	}
	cfg, err := config.LoadAPI(values)
	if err != nil {
		return fmt.Errorf("settings:\n%w", err)
	}
	defer TuneGC(getenv)()
	log := obs.NewLogger(stderr, cfg.LogLevel)
	ln, err := listen(ctx, cfg.Addr)
	if err != nil {
		return err
	}
	defer func() { _ = ln.Close() }()
	admin, err := listen(ctx, cfg.AdminAddr)
	if err != nil {
		return err
	}
	if admin != nil {
		defer func() { _ = admin.Close() }()
	}
	a, err := NewAPI(ctx, cfg, Extras{Open: p.Open}, log, obs.NewRegistry())
	if err != nil {
		return err
	}
	log.InfoContext(ctx, "serving", "version", obs.Version(), "addr", ln.Addr().String(), "admin", cfg.AdminAddr)
	if err := tellStarted(ctx, getenv); err != nil {
		log.WarnContext(ctx, "the service manager does not know that this process has started, and may end it", "error", err)
	}
	return a.Run(ctx, ln, admin)
}
