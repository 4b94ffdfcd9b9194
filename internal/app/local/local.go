// Package local runs all of Holdfast in one process on a laptop: page, API,
// worker, reconciler and mock payment gateway, over a Redis of its own.
//
// Everything that must survive a restart lies in the data folder: records and
// queue (SQLite), the mock gateway's payments, the sealing key, the gateway's
// token, the outbox. Redis is empty at every start and is rebuilt from the store,
// as after a loss in production.
package local

import (
	"context"
	"crypto/rand"
	"crypto/x509"
	"encoding/hex"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	mathrand "math/rand/v2"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/alicebob/miniredis/v2"
	"golang.org/x/sync/errgroup"

	"holdfast/internal/admission"
	"holdfast/internal/app"
	"holdfast/internal/booking"
	"holdfast/internal/config"
	"holdfast/internal/mockgateway"
	"holdfast/internal/objstore/memory"
	"holdfast/internal/obs"
	"holdfast/internal/redisproc"
	"holdfast/internal/snshook"
)

// settings are the command's flags.
type settings struct {
	addr, data, sale, candidates string
	closed                       bool
}

func parse(args []string, stderr io.Writer) (settings, error) {
	var s settings
	f := flag.NewFlagSet("local", flag.ContinueOnError)
	f.SetOutput(stderr)
	f.StringVar(&s.addr, "addr", "127.0.0.1:8080", "address of page and API")
	f.StringVar(&s.data, "data", "data/local", "folder for everything that survives a restart")
	f.StringVar(&s.sale, "sale", "", "sale file (default: the demo sale, examples/sale.yaml)")
	f.StringVar(&s.candidates, "candidates", "", "candidates file (default: examples/candidates.csv)")
	f.BoolVar(&s.closed, "closed", false, "start with booking closed")
	if err := f.Parse(args); err != nil {
		return s, err
	}
	if f.NArg() > 0 {
		return s, fmt.Errorf("unexpected argument %q: this command takes flags only", f.Arg(0))
	}
	host, port, err := net.SplitHostPort(s.addr)
	if err != nil || port == "" {
		return s, fmt.Errorf("-addr %q: want host:port, such as 127.0.0.1:8080", s.addr)
	}
	if ip := net.ParseIP(host); host != "localhost" && (ip == nil || !ip.IsLoopback()) {
		return s, fmt.Errorf("-addr %q: the local profile has a gateway that gives seats away for a click; it listens on loopback only", s.addr)
	}
	return s, nil
}

// Run starts everything, prints the URLs to open, one a line, and runs until ctx
// ends; then it drains and returns nil. A second start on the same folder is
// refused.
func Run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	app.Quiet()
	s, err := parse(args, stderr)
	if errors.Is(err, flag.ErrHelp) {
		return nil
	}
	if err != nil {
		return err
	}
	log := obs.NewLogger(stderr, slog.LevelInfo)
	if err := os.MkdirAll(s.data, 0o700); err != nil {
		return fmt.Errorf("data folder: %w", err)
	}
	unlock, err := lock(filepath.Join(s.data, "lock"))
	if err != nil {
		return err
	}
	defer unlock()
	return run(ctx, s, log, stdout)
}

// run is everything after the folder is ours. Parts are stopped in the reverse
// order of their start: the API before the worker, the worker before what it
// writes to, the gateway and Redis last, since a draining API needs them.
func run(ctx context.Context, s settings, log *slog.Logger, stdout io.Writer) (err error) {
	var closers []func() error
	defer func() {
		for i := len(closers) - 1; i >= 0; i-- {
			err = errors.Join(err, closers[i]())
		}
	}()
	closing := func(c func() error) { closers = append(closers, c) }

	ports, err := openPorts(ctx, s)
	if err != nil {
		return err
	}
	closing(ports.close)
	seats, err := startRedis(ctx, s, log)
	if err != nil {
		return err
	}
	closing(func() error { seats.stop(); return nil })
	ctx, end := context.WithCancelCause(ctx)
	var watching sync.WaitGroup
	closing(func() error { end(nil); watching.Wait(); return nil })
	for _, gone := range seats.gone {
		watching.Go(func() {
			select {
			case <-ctx.Done():
			case <-gone:
				end(errRedisGone)
			}
		})
	}

	gateway, err := mockgateway.New(mockgateway.Options{DataDir: filepath.Join(s.data, "gateway"), BaseURL: ports.gatewayURL()})
	if err != nil {
		return err
	}
	closing(gateway.Close)
	gatewayServer := &http.Server{
		Handler: gateway, ReadHeaderTimeout: 5 * time.Second, IdleTimeout: 2 * time.Minute,
		ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelWarn),
	}
	serving := new(errgroup.Group)
	serving.Go(func() error {
		if err := gatewayServer.Serve(ports.gateway); !errors.Is(err, http.ErrServerClosed) {
			return fmt.Errorf("serve mock gateway: %w", err)
		}
		return nil
	})
	closing(func() error { return errors.Join(gatewayServer.Close(), serving.Wait()) })

	env, err := environment(s, ports, seats)
	if err != nil {
		return err
	}
	cfg, err := config.LoadAPI(func(name string) string { return env[name] })
	if err != nil {
		return err
	}
	drivers, err := app.OpenLocal(ctx, app.Needs{Data: s.data, Drivers: cfg.Drivers, Mail: cfg.Mail, Now: time.Now})
	if err != nil {
		return err
	}
	closing(drivers.Close)
	drivers.Objects = memory.New()
	reg := obs.NewRegistry()
	token := filepath.Join(s.data, "gateway-token.json")
	webhook, err := notify(gateway, cfg.PublicURL)
	if err != nil {
		return err
	}
	api, err := app.NewAPI(ctx, cfg, app.Extras{
		Drivers: drivers, InProcessRedis: seats.inProcess, Webhook: webhook, Terms: mockTerms(),
		KeepToken: func(_ context.Context, state []byte) error { return writeFile(token, state) },
	}, log, reg)
	if err != nil {
		return err
	}
	closing(api.Close)
	worker, err := app.NewWorker(drivers, cfg.Drain, log, reg)
	if err != nil {
		return err
	}
	if err := prepare(ctx, s, api, worker, token, log); err != nil {
		return err
	}
	forget, err := tellOperator(s, env)
	if err != nil {
		return err
	}
	closing(forget)
	if _, err := fmt.Fprintf(stdout, "%s/\n%s/status.json\n%s/mock/payments\nhttp://%s/metrics\nhttp://%s/wall\n",
		cfg.PublicURL, cfg.PublicURL, ports.gatewayURL(), ports.admin.Addr(), ports.admin.Addr()); err != nil {
		return fmt.Errorf("print addresses: %w", err)
	}

	// The worker outlives the API, so that what a draining API queued is written.
	working, stopWorking := context.WithCancel(context.WithoutCancel(ctx))
	defer stopWorking()
	workers := new(errgroup.Group)
	workers.Go(func() error { return worker.Run(working) })
	apiErr := api.Run(ctx, ports.api, ports.admin)
	stopWorking()
	err = errors.Join(apiErr, workers.Wait())
	if cause := context.Cause(ctx); errors.Is(cause, errRedisGone) {
		err = errors.Join(err, cause)
	}
	return err
}

// mockTerms are the mock gateway's: told to, it takes money by itself.
func mockTerms() *booking.PaymentTerms {
	return &booking.PaymentTerms{MovesAlone: true, Lapse: 24 * time.Hour}
}

// notify has the gateway notify this run of payments, and says how that is proved:
// by the gateway's own authority, its certificate handed over instead of fetched.
func notify(gateway *mockgateway.Gateway, publicURL string) (*snshook.Config, error) {
	authority, err := gateway.CAPEM()
	if err != nil {
		return nil, err
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(authority) {
		return nil, errors.New("the mock gateway's authority is no certificate")
	}
	settings := gateway.Settings()
	settings.Notifications.URL = publicURL + "/payment/webhook"
	if err := gateway.SetSettings(settings); err != nil {
		return nil, err
	}
	return &snshook.Config{
		TopicARN: mockgateway.DefaultTopic, Roots: roots,
		Fetch: func(context.Context, string) ([]byte, error) { return gateway.CertificatePEM() },
	}, nil
}

// environment is what this run would be told as separate processes.
func environment(s settings, p *ports, r *seatsRedis) (map[string]string, error) {
	key, err := sealKey(filepath.Join(s.data, "seal.key"))
	if err != nil {
		return nil, err
	}
	acks := "auto"
	if r.inProcess {
		acks = "0"
	}
	return map[string]string{
		"HOLDFAST_ADDR":               p.api.Addr().String(),
		"HOLDFAST_PUBLIC_URL":         "http://" + p.api.Addr().String(),
		"HOLDFAST_DATA":               s.data,
		"HOLDFAST_REDIS_ADDR":         r.addr,
		"HOLDFAST_ACKS":               acks,
		"HOLDFAST_SEAL_KEY":           key,
		"HOLDFAST_GATEWAY_URL":        p.gatewayURL() + mockgateway.BasePath,
		"HOLDFAST_GATEWAY_APP_KEY":    "local",
		"HOLDFAST_GATEWAY_APP_SECRET": "local",
		"HOLDFAST_GATEWAY_USERNAME":   "local",
		"HOLDFAST_GATEWAY_PASSWORD":   "local",
		"HOLDFAST_RECONCILE_EVERY":    "5s",
		"HOLDFAST_LINGER":             "0s", // no balancer is in front
		"HOLDFAST_REFUND_AUTO":        "true",
		"HOLDFAST_METRICS_URLS":       "http://" + p.admin.Addr().String() + "/metrics",
	}, nil
}

// tellOperator writes what seatctl needs to find this run, and forgets it at the
// run's end: the address of Redis may be another program's by then.
func tellOperator(s settings, env map[string]string) (forget func() error, err error) {
	data, err := filepath.Abs(s.data)
	if err != nil {
		return nil, fmt.Errorf("data folder: %w", err)
	}
	told := map[string]string{
		"HOLDFAST_DATA":       data,
		"HOLDFAST_KEY_PREFIX": admission.DefaultPrefix,
		"HOLDFAST_STATUS_URL": env["HOLDFAST_PUBLIC_URL"] + "/status.json",
	}
	for _, name := range []string{
		"HOLDFAST_REDIS_ADDR", "HOLDFAST_ACKS", "HOLDFAST_GATEWAY_URL", "HOLDFAST_GATEWAY_APP_KEY",
		"HOLDFAST_GATEWAY_APP_SECRET", "HOLDFAST_GATEWAY_USERNAME", "HOLDFAST_GATEWAY_PASSWORD", "HOLDFAST_METRICS_URLS",
	} {
		told[name] = env[name]
	}
	path := filepath.Join(s.data, config.EnvFile)
	if err := writeFile(path, config.FormatEnv(told)); err != nil {
		return nil, fmt.Errorf("settings for seatctl: %w", err)
	}
	return func() error { return os.Remove(path) }, nil
}

// sealKey keeps the sealing key in the data folder, so that booking links still
// open after a restart.
func sealKey(path string) (string, error) {
	text, err := os.ReadFile(path)
	if err == nil {
		return string(text), nil
	}
	if !errors.Is(err, os.ErrNotExist) {
		return "", fmt.Errorf("sealing key: %w", err)
	}
	key := make([]byte, booking.SealKeySize)
	_, _ = rand.Read(key) // never fails since Go 1.24
	if err := writeFile(path, []byte(hex.EncodeToString(key))); err != nil {
		return "", fmt.Errorf("sealing key: %w", err)
	}
	return hex.EncodeToString(key), nil
}

// writeFile replaces a file whole, readable by its owner only.
func writeFile(path string, content []byte) error {
	f, err := os.CreateTemp(filepath.Dir(path), filepath.Base(path)+".*.tmp")
	if err != nil {
		return err
	}
	defer func() { _ = os.Remove(f.Name()) }() // gone already when all went well
	_, err = f.Write(content)
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		return err
	}
	return os.Rename(f.Name(), path)
}

// ports are the listeners. Gateway and admin get a free port once and keep it in
// the data folder: a payment link must still lead somewhere after a restart. They are
// chosen below those that systems hand out to connections, one of which could have it
// when this run starts again. To admin nothing leads but holdfast.env, which is written
// anew: it gives way.
type ports struct{ api, gateway, admin net.Listener }

type savedPorts struct {
	Gateway string `json:"gateway"`
	Admin   string `json:"admin"`
}

func openPorts(ctx context.Context, s settings) (_ *ports, err error) {
	path := filepath.Join(s.data, "ports.json")
	var saved savedPorts
	if text, err := os.ReadFile(path); err == nil {
		if err := json.Unmarshal(text, &saved); err != nil {
			return nil, fmt.Errorf("%s: %w; remove the file to have new ports chosen", path, err)
		}
	} else if !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	p := new(ports)
	defer func() {
		if err != nil {
			err = errors.Join(err, p.close())
		}
	}()
	for _, l := range []struct {
		name, addr string
		into       *net.Listener
	}{{"page and API (-addr)", s.addr, &p.api}, {"mock gateway (" + path + ")", saved.Gateway, &p.gateway}, {"admin (" + path + ")", saved.Admin, &p.admin}} {
		if *l.into, err = listen(ctx, l.addr); errors.Is(err, syscall.EADDRINUSE) && l.into == &p.admin {
			*l.into, err = listen(ctx, "")
		}
		if err != nil {
			*l.into = nil
			return nil, fmt.Errorf("%s: %w: another program has this address", l.name, err)
		}
	}
	text, err := json.Marshal(savedPorts{Gateway: p.gateway.Addr().String(), Admin: p.admin.Addr().String()})
	if err != nil {
		return nil, err
	}
	return p, writeFile(path, text)
}

// listen takes that address; of none a port of its choice.
func listen(ctx context.Context, addr string) (net.Listener, error) {
	if addr != "" {
		return (&net.ListenConfig{}).Listen(ctx, "tcp", addr)
	}
	const first, last, tries = 10000, 32767, 100 // IANA's range begins at 49152, Linux's at 32768
	var taken error
	for range tries {
		ln, err := (&net.ListenConfig{}).Listen(ctx, "tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(first+mathrand.IntN(last-first+1))))
		if err == nil || !errors.Is(err, syscall.EADDRINUSE) {
			return ln, err
		}
		taken = err
	}
	return nil, taken
}

func (p *ports) gatewayURL() string { return "http://" + p.gateway.Addr().String() }

func (p *ports) close() error {
	var errs []error
	for _, l := range []net.Listener{p.api, p.gateway, p.admin} {
		if l == nil {
			continue
		}
		if err := l.Close(); !errors.Is(err, net.ErrClosed) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// seatsRedis is the Redis that holds the seats of this run.
type seatsRedis struct {
	addr      string
	inProcess bool
	stop      func()
	gone      []<-chan struct{} // each closed when a server has ended
}

// errRedisGone ends a run whose seats are lost: the next start rebuilds them.
var errRedisGone = errors.New("a redis-server of this run has ended and the seats with it; start again, and they are rebuilt from the store")

// startRedis starts a primary and a replica of its own where a server is
// installed; else it runs Redis in this process, and says what that lacks.
func startRedis(ctx context.Context, s settings, log *slog.Logger) (*seatsRedis, error) {
	if _, ok := redisproc.Find(); ok {
		// A killed run leaves its servers' empty working folders.
		dir := filepath.Join(s.data, "redis")
		if err := errors.Join(os.RemoveAll(dir), os.MkdirAll(dir, 0o700)); err != nil {
			return nil, fmt.Errorf("redis working folder: %w", err)
		}
		pair, err := redisproc.StartPair(ctx, dir, 1)
		if err != nil {
			return nil, err
		}
		return &seatsRedis{
			addr: pair.Primary.Addr(), stop: pair.Stop,
			gone: []<-chan struct{}{pair.Primary.Exited(), pair.Replicas[0].Exited()},
		}, nil
	}
	log.WarnContext(ctx, "redis-server is not on the PATH: seats are kept inside this process and no replica acknowledges them; good enough for a look, not for a sale")
	m := miniredis.NewMiniRedis()
	if err := m.Start(); err != nil {
		return nil, fmt.Errorf("start in-process redis: %w", err)
	}
	// Keys of the in-process server expire only when it is told that time passes.
	ageing, end := context.WithCancel(context.WithoutCancel(ctx))
	var age sync.WaitGroup
	age.Go(func() {
		tick := time.NewTicker(ageEvery)
		defer tick.Stop()
		for last := time.Now(); ; {
			select {
			case <-ageing.Done():
				return
			case now := <-tick.C:
				m.FastForward(now.Sub(last))
				last = now
			}
		}
	})
	return &seatsRedis{addr: m.Addr(), inProcess: true, stop: func() { end(); age.Wait(); m.Close() }}, nil
}

// ageEvery is how late a key of the in-process Redis expires.
const ageEvery = 100 * time.Millisecond
