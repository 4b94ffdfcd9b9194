package rehearse

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	mathrand "math/rand/v2"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"holdfast/internal/app"
	"holdfast/internal/booking"
	"holdfast/internal/config"
	"holdfast/internal/mockgateway"
	"holdfast/internal/redisproc"
)

const (
	// startWithin bounds the start of one part on a busy machine.
	startWithin = 30 * time.Second
	// Each exceeds what the part gives itself to drain: HOLDFAST_DRAIN and the mock's own.
	endWithin        = 40 * time.Second
	endGatewayWithin = 15 * time.Second
	// gatewaySlots are those of the launch's three instances; one stands for them here.
	gatewaySlots = 3000
	storeFile    = "store.db"
	queueFile    = "queue.db"
	settingsPath = "/mock/settings" // of the mock (docs/mockgateway.md)
)

// Stage is a deployment of a rehearsal's own, on loopback only: a Redis primary with a
// replica, the mock gateway, one API and one worker, each a process. The exported fields
// are not to be changed.
//
// The gateway sends no notifications: RunAPI proves them by the public authorities alone,
// and the mock signs with its own. So payments are confirmed by callback and by query.
type Stage struct {
	URL     string // of the site: scheme and host
	Gateway string // of the mock: its API lies under mockgateway.BasePath
	// Logs is the folder of the processes' logs, in Options.Dir.
	Logs string

	o        Options
	env      map[string]string // the operator's
	client   *http.Client
	sampling *sampling
	api      *part
	worker   *part
	gateway  *part
	front    *front // nil without FaultRedis: the plain run has nothing in its way
	data     string
	close    func() error

	mu          sync.Mutex // all below
	pair        *redisproc.Pair
	unlockQueue func() error // while the queue is out

	settingsMu   sync.Mutex // held over a change and what it takes to make it
	settings     mockgateway.Settings
	settingsFile string
}

// StartLocal starts a deployment in Options.Dir and returns when all of it answers; no
// sale is applied yet. Its keys have the sale's name for a prefix, so that nobody takes
// them for those of a real one. The gateway begins with Options.RushLatency.
//
// The folder is made if missing; one that has a booking store is another deployment's and
// is refused. While the stage runs, seatctl --data DIR reaches it from elsewhere. The
// processes die with this one. ctx bounds the start only; the caller closes the stage,
// and what was started before an error is ended. The error names the log to read.
func StartLocal(ctx context.Context, o Options, sale booking.Sale) (_ *Stage, err error) {
	dir, err := filepath.Abs(o.Dir)
	if err != nil {
		return nil, fmt.Errorf("folder of the rehearsal: %w", err)
	}
	s := &Stage{
		o: o, data: dir, Logs: filepath.Join(dir, "logs"), settingsFile: filepath.Join(dir, "gateway.json"),
		client:   &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: 5 * time.Second},
		sampling: newSampling(),
	}
	s.close = sync.OnceValue(s.end)
	if _, err := os.Stat(filepath.Join(dir, storeFile)); err == nil {
		return nil, fmt.Errorf("%s has a booking store already: a rehearsal wants a folder of its own", dir)
	}
	for _, d := range []string{dir, s.Logs, filepath.Join(dir, "redis")} {
		if err := os.MkdirAll(d, 0o700); err != nil {
			return nil, fmt.Errorf("folder of the rehearsal: %w", err)
		}
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.Close())
		}
	}()
	redisAddr, err := s.startRedis(ctx)
	if err != nil {
		return nil, err
	}
	if err := s.prepare(redisAddr, sale); err != nil {
		return nil, err
	}
	for _, start := range []func(context.Context) error{s.startGateway, s.startAPI, s.startWorker, s.openOperator} {
		if err := start(ctx); err != nil {
			return nil, err
		}
	}
	// The first sample begins here.
	return s, s.sampleProcesses(ctx, new(Sample))
}

// startRedis starts the pair, and returns the address at which the others find it.
func (s *Stage) startRedis(ctx context.Context) (string, error) {
	pair, err := redisproc.StartPair(ctx, filepath.Join(s.data, "redis"), 1)
	if errors.Is(err, redisproc.ErrNotInstalled) {
		return "", fmt.Errorf("a rehearsal needs a redis-server on the PATH: %w", err)
	}
	if err != nil {
		return "", err
	}
	s.pair = pair
	if !s.has(FaultRedis) {
		return pair.Primary.Addr(), nil
	}
	if s.front, err = newFront(pair.Primary.Addr()); err != nil {
		return "", fmt.Errorf("address of redis: %w", err)
	}
	return s.front.addr(), nil
}

// prepare decides addresses and settings, and makes the parts from them.
func (s *Stage) prepare(redisAddr string, sale booking.Sale) error {
	addrs := make([]string, 4)
	for i := range addrs {
		var err error
		if addrs[i], err = freeAddr(addrs); err != nil {
			return err
		}
	}
	site, gateway, apiAdmin, workerAdmin := addrs[0], addrs[1], addrs[2], addrs[3]
	s.URL, s.Gateway = "http://"+site, "http://"+gateway
	key := make([]byte, booking.SealKeySize)
	_, _ = rand.Read(key) // never fails since Go 1.24
	const account = "rehearsal"
	shared := map[string]string{
		"HOLDFAST_DATA":               s.data,
		"HOLDFAST_REDIS_ADDR":         redisAddr,
		"HOLDFAST_ACKS":               "auto",
		"HOLDFAST_KEY_PREFIX":         "{" + sale.Name + "}:",
		"HOLDFAST_GATEWAY_URL":        s.Gateway + mockgateway.BasePath,
		"HOLDFAST_GATEWAY_APP_KEY":    account,
		"HOLDFAST_GATEWAY_APP_SECRET": account,
		"HOLDFAST_GATEWAY_USERNAME":   account,
		"HOLDFAST_GATEWAY_PASSWORD":   account,
	}
	api := maps.Clone(shared)
	maps.Copy(api, map[string]string{
		"HOLDFAST_ADDR":            site,
		"HOLDFAST_ADMIN_ADDR":      apiAdmin,
		"HOLDFAST_PUBLIC_URL":      s.URL,
		"HOLDFAST_SEAL_KEY":        hex.EncodeToString(key),
		"HOLDFAST_GATEWAY_SLOTS":   strconv.Itoa(gatewaySlots),
		"HOLDFAST_RECONCILE_EVERY": "5s",
		"HOLDFAST_LINGER":          "0s", // no balancer is in front
		"HOLDFAST_REFUND_AUTO":     "true",
	})
	s.env = shared
	s.env["HOLDFAST_STATUS_URL"] = s.URL + "/status.json"
	s.env["HOLDFAST_METRICS_URLS"] = "http://" + apiAdmin + "/metrics,http://" + workerAdmin + "/metrics"

	s.api = s.newPart(partAPI, api)
	s.worker = s.newPart(partWorker, map[string]string{"HOLDFAST_DATA": s.data, "HOLDFAST_ADMIN_ADDR": workerAdmin})
	flags := []string{"-addr", gateway, "-settings", s.settingsFile}
	if s.has(FaultGateway) {
		// Only a gateway that is to be killed writes its payments to the disk: in a plain
		// run that would be time taken from what is measured.
		flags = append(flags, "-data", filepath.Join(s.data, "gateway"))
	}
	s.gateway = s.newPart(partGateway, nil, flags...)
	s.settings = mockgateway.Settings{Seed: s.o.Seed, LatencyMS: latencies(s.o.RushLatency)}
	return s.writeSettings()
}

// newPart hands on this process's environment without what may name another deployment.
func (s *Stage) newPart(name string, settings map[string]string, args ...string) *part {
	p := &part{name: name, args: args, log: filepath.Join(s.Logs, name+".log")}
	for _, v := range os.Environ() {
		if !strings.HasPrefix(v, "HOLDFAST_") && !strings.HasPrefix(v, "NOTIFY_SOCKET=") {
			p.env = append(p.env, v)
		}
	}
	for name, value := range settings {
		p.env = append(p.env, name+"="+value)
	}
	return p
}

// freeAddr is a loopback address that nobody has and that is none of those. Its port lies
// below those that the system gives to connections (on Linux from 32768): a part that is
// killed finds it free again.
func freeAddr(but []string) (string, error) {
	const first, last, tries = 10000, 32767, 100
	var taken error
	for range tries {
		addr := net.JoinHostPort("127.0.0.1", strconv.Itoa(first+mathrand.IntN(last-first+1)))
		if slices.Contains(but, addr) {
			continue
		}
		ln, err := net.Listen("tcp", addr)
		if err != nil {
			taken = err
			continue
		}
		return addr, ln.Close()
	}
	return "", fmt.Errorf("no free port on loopback: %w", taken)
}

func (s *Stage) startGateway(ctx context.Context) error {
	return s.startPart(ctx, s.gateway, func(ctx context.Context) error { return isMock(ctx, s.client, s.Gateway) })
}

func (s *Stage) startAPI(ctx context.Context) error {
	return s.startPart(ctx, s.api, func(ctx context.Context) error { return answers(ctx, s.client, s.URL+"/health") })
}

func (s *Stage) startWorker(ctx context.Context) error {
	_, metrics, _ := strings.Cut(s.env["HOLDFAST_METRICS_URLS"], ",")
	return s.startPart(ctx, s.worker, func(ctx context.Context) error { return answers(ctx, s.client, metrics) })
}

// startPart starts a part and waits until it does its work.
func (s *Stage) startPart(ctx context.Context, p *part, ready func(ctx context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, startWithin)
	defer cancel()
	if err := p.start(); err != nil {
		return err
	}
	return p.await(ctx, ready)
}

// answers is nil when a GET there is answered with 200.
func answers(ctx context.Context, client *http.Client, url string) error {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	resp, err := client.Do(r)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("%s answers %s", url, resp.Status)
	}
	return nil
}

// profile is the API's own, of its admin port.
func (s *Stage) profile(ctx context.Context, lasts time.Duration, to io.Writer) error {
	admin, _, _ := strings.Cut(s.env["HOLDFAST_METRICS_URLS"], "/metrics")
	seconds := max(1, int(lasts.Seconds()))
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, admin+"/debug/pprof/profile?seconds="+strconv.Itoa(seconds), nil)
	if err != nil {
		return err
	}
	resp, err := http.DefaultTransport.RoundTrip(r) // the stage's client would not wait for it
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("profile of the API: %s", resp.Status)
	}
	_, err = io.Copy(to, resp.Body)
	return err
}

// errNotMock says that money might move.
var errNotMock = errors.New("the gateway there does not say that it is the mock: a rehearsal runs against nothing else")

// isMock is nil when the mock gateway answers at that base URL, errNotMock when somebody
// else does.
func isMock(ctx context.Context, client *http.Client, gateway string) error {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, gateway+settingsPath, nil)
	if err != nil {
		return err
	}
	resp, err := client.Do(r)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.Header.Get(mockgateway.Header) != mockgateway.HeaderValue {
		return fmt.Errorf("%s: %w", gateway, errNotMock)
	}
	return nil
}

// openOperator reaches the deployment as seatctl does, for the samples, and writes down
// how.
func (s *Stage) openOperator(ctx context.Context) error {
	cfg, err := config.LoadOperator(s.getenv)
	if err != nil {
		return fmt.Errorf("settings:\n%w", err)
	}
	// What goes wrong in a reading is its error.
	if s.sampling.operator, err = app.OpenOperator(ctx, app.OpenLocal, cfg, nil, slog.New(slog.DiscardHandler)); err != nil {
		return err
	}
	if err := os.WriteFile(s.envFile(), config.FormatEnv(s.env), 0o600); err != nil {
		return fmt.Errorf("settings for seatctl: %w", err)
	}
	return nil
}

// has tells whether the stage was asked for a fault.
func (s *Stage) has(f Fault) bool { return slices.Contains(s.o.Faults, f) }

func (s *Stage) envFile() string { return filepath.Join(s.data, config.EnvFile) }

func (s *Stage) getenv(name string) string { return s.env[name] }

// Ctl runs one command of the operator's by Options.Ctl, in this process, with the
// stage's settings for its whole environment. Safe for concurrent use.
func (s *Stage) Ctl(ctx context.Context, stdin string, args ...string) (stdout, stderr []byte, code int) {
	var out, said bytes.Buffer
	code = s.o.Ctl(ctx, args, s.getenv, strings.NewReader(stdin), &out, &said)
	return out.Bytes(), said.Bytes(), code
}

// earlier is none: the folder is new.
func (s *Stage) earlier() (paid int, was bool) { return 0, false }

// prove has nothing to prove: it has set both sides itself.
func (s *Stage) prove(context.Context, string) error { return nil }

func (s *Stage) payments(ctx context.Context) ([]mockgateway.Listed, error) {
	return paymentsAt(ctx, s.Gateway)
}

// paymentsAt reads the mock's whole list, which is long and takes a while.
func paymentsAt(ctx context.Context, gateway string) ([]mockgateway.Listed, error) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, gateway+"/mock/payments", nil)
	if err != nil {
		return nil, err
	}
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := client.Do(r)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s answers %s", r.URL, resp.Status)
	}
	var list []mockgateway.Listed
	return list, json.NewDecoder(resp.Body).Decode(&list)
}

// left is nothing: it goes with its processes.
func (s *Stage) left(context.Context) string { return "" }

// SlowGateway has the gateway's answers take that long at the 99th percentile from now
// on, log-normally, with a median of a tenth of it. While the gateway is out it takes
// effect when it is back.
func (s *Stage) SlowGateway(ctx context.Context, p99 time.Duration) error {
	return s.setGateway(ctx, func(set *mockgateway.Settings) { set.LatencyMS = latencies(p99) })
}

// latencies are in whole ms, as the mock reads them.
func latencies(p99 time.Duration) mockgateway.Latencies {
	p99 = p99.Truncate(time.Millisecond)
	if p99 <= 0 {
		return nil
	}
	return mockgateway.Latencies{"all": {P50: max(p99/10, time.Millisecond), P99: p99}}
}

// setGateway changes the mock's settings; a mock that is not there starts with them.
func (s *Stage) setGateway(ctx context.Context, change func(*mockgateway.Settings)) error {
	s.settingsMu.Lock()
	defer s.settingsMu.Unlock()
	change(&s.settings)
	if err := s.writeSettings(); err != nil {
		return err
	}
	if !s.gateway.running() {
		return nil
	}
	return putSettings(ctx, s.client, s.Gateway, s.settings)
}

// putSettings replaces the mock's.
func putSettings(ctx context.Context, client *http.Client, gateway string, settings mockgateway.Settings) error {
	body, err := json.Marshal(settings)
	if err != nil {
		return fmt.Errorf("settings of the gateway: %w", err)
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodPut, gateway+settingsPath, bytes.NewReader(body))
	if err != nil {
		return fmt.Errorf("settings of the gateway: %w", err)
	}
	resp, err := client.Do(r)
	if err != nil {
		return fmt.Errorf("settings of the gateway: %w", err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		said, _ := io.ReadAll(io.LimitReader(resp.Body, 1<<10)) // as far as it comes
		return fmt.Errorf("settings of the gateway: %s: %s", resp.Status, bytes.TrimSpace(said))
	}
	return nil
}

func (s *Stage) writeSettings() error {
	body, err := json.Marshal(s.settings)
	if err == nil {
		err = os.WriteFile(s.settingsFile, body, 0o600)
	}
	if err != nil {
		return fmt.Errorf("settings of the gateway: %w", err)
	}
	return nil
}

// Close ends everything: the API, then the worker, which still writes what that queued,
// then the gateway, which a draining API asks, and Redis last. What does not end in time
// is killed. Nothing is left running whatever the error, which is about a part that had
// to be killed or had ended by itself, and names its log. Safe to repeat.
func (s *Stage) Close() error { return s.close() }

func (s *Stage) end() error {
	var errs []error
	s.mu.Lock()
	unlock := s.unlockQueue
	s.mu.Unlock()
	if unlock != nil { // a draining API writes to it
		errs = append(errs, unlock())
	}
	for _, e := range []struct {
		part   *part
		within time.Duration
	}{{s.api, endWithin}, {s.worker, endWithin}, {s.gateway, endGatewayWithin}} {
		if e.part != nil {
			errs = append(errs, e.part.end(syscall.SIGTERM, e.within), e.part.trouble())
		}
	}
	if s.sampling.operator != nil {
		errs = append(errs, s.sampling.operator.Close())
		if err := os.Remove(s.envFile()); !errors.Is(err, os.ErrNotExist) {
			errs = append(errs, err)
		}
	}
	if s.front != nil {
		s.front.close()
	}
	if s.pair != nil {
		s.pair.Stop()
	}
	s.client.CloseIdleConnections()
	return errors.Join(errs...)
}
