package rehearse

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	mathrand "math/rand/v2"
	"net/http"
	"net/url"
	"os"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"holdfast/internal/app"
	"holdfast/internal/booking"
	"holdfast/internal/config"
	"holdfast/internal/mockgateway"
)

const (
	// provenWithin is more than status.json is behind, a cache before it included.
	provenWithin = 10 * time.Second
	provenEvery  = 200 * time.Millisecond
	// proofAhead keeps the opening that proves something from coming by itself; the second
	// within as long again is what nobody else has.
	proofAhead = 24 * time.Hour
	// afterwards is for what is put back or told when nobody waits any more.
	afterwards = 30 * time.Second
	documents  = 1 << 20 // bytes of status.json, or of settings
)

var (
	errNotOurs     = errors.New("a rehearsal kills nothing that it has not started: run one with faults without a target")
	errNoRoom      = errors.New("a rehearsal begins its sale anew, on a deployment that has no other: give it one with a HOLDFAST_KEY_PREFIX, a booking store and a queue of its own (HOLDFAST_STORE_TABLE and HOLDFAST_QUEUE_NAME, or HOLDFAST_DATA)")
	errAnotherSite = errors.New("the address does not show what was done by the operator's settings, so they are of another deployment: set HOLDFAST_* of the one at the address; nobody has booked")
)

// target is a deployment that is there, reached as its operator reaches it.
type target struct {
	url, gateway string // scheme and host; of the gateway, which is the mock, its root
	o            Options
	redis        config.Redis
	client       *http.Client
	sampling     *sampling

	was  bool // an earlier rehearsal's sale is in force
	paid int  // of its seats

	slowed  bool // the gateway, by us
	latency mockgateway.Latencies
}

// openTarget reaches Options.Target and looks at it: its gateway must be the mock, it must
// answer, and its sale must be none or one that bears the rehearsal's name and is over.
// Nothing is changed. The caller closes it.
func openTarget(ctx context.Context, o Options, sale string) (_ *target, err error) {
	if len(o.Faults) > 0 {
		return nil, errNotOurs
	}
	t := &target{o: o, client: &http.Client{
		Transport: &http.Transport{DisableKeepAlives: true}, Timeout: 5 * time.Second,
		// The crowd follows none either.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}
	u, err := url.Parse(o.Target)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || strings.TrimRight(o.Target, "/") != u.Scheme+"://"+u.Host {
		return nil, errors.New("want the address as http(s)://host, and nothing behind it")
	}
	t.url = u.Scheme + "://" + u.Host
	names := slices.Concat(config.Variables[config.Operator](), config.Variables[config.Gateway]())
	getenv, err := o.Platform.Settings(ctx, o.Getenv, names)
	if err != nil {
		return nil, err
	}
	gateway, gatewayErr := config.LoadGateway(getenv)
	operator, err := config.LoadOperator(getenv)
	if err := errors.Join(err, gatewayErr); err != nil {
		return nil, fmt.Errorf("settings:\n%w", err)
	}
	t.redis, t.gateway = operator.Redis, strings.TrimSuffix(gateway.GatewayURL, mockgateway.BasePath)
	if err := isMock(ctx, t.client, t.gateway); err != nil {
		return nil, fmt.Errorf("gateway of HOLDFAST_GATEWAY_URL: %w", err)
	}
	if err := answers(ctx, t.client, t.url+"/health"); err != nil {
		return nil, fmt.Errorf("look at the deployment: %w", err)
	}
	t.sampling = newSampling()
	t.sampling.ageless = operator.Queue == "sqs"
	// What goes wrong in a reading is its error.
	if t.sampling.operator, err = app.OpenOperator(ctx, o.Platform.Open, operator, nil, slog.New(slog.DiscardHandler)); err != nil {
		return nil, err
	}
	if err := t.look(ctx, sale); err != nil {
		return nil, errors.Join(err, t.Close())
	}
	return t, nil
}

// look is nil when nothing is lost by a new beginning.
func (t *target) look(ctx context.Context, name string) error {
	operator := t.sampling.operator
	sale, err := operator.Gate.Sale(ctx)
	switch {
	case errors.Is(err, booking.ErrNotFound):
		empty, err := operator.Ops.Store.Empty(ctx)
		if err == nil && !empty {
			err = fmt.Errorf("no sale is in force and the booking store has records: another sale's, or Redis was lost, and then seatctl rebuild restores it; %w", errNoRoom)
		}
		return err
	case err != nil:
		return fmt.Errorf("the sale in force: %w", err)
	case sale.Name != name:
		taken := ""
		if f, err := operator.Gate.ReadStatus(ctx); err == nil && f.Total >= 0 {
			taken = fmt.Sprintf(", %d of them taken", f.Total)
		}
		return fmt.Errorf("sale %s is in force: its %d seats%s, its terms and its list of candidates would be forgotten; %w", sale.Name, sale.Cap, taken, errNoRoom)
	}
	plan, err := operator.Resetter().Plan(ctx)
	if err != nil {
		return err
	}
	if err := plan.Over(); err != nil {
		return fmt.Errorf("an earlier rehearsal: %w", err)
	}
	t.was, t.paid = true, plan.Paid
	return nil
}

func (t *target) earlier() (paid int, was bool) { return t.paid, t.was }

// Ctl runs one command of the operator's by Options.Ctl, in this process, with the
// operator's settings. Safe for concurrent use.
func (t *target) Ctl(ctx context.Context, stdin string, args ...string) (stdout, stderr []byte, code int) {
	var out, said bytes.Buffer
	code = t.o.Ctl(ctx, args, t.o.Getenv, strings.NewReader(stdin), &out, &said)
	return out.Bytes(), said.Bytes(), code
}

// prove schedules an opening for a second that nobody else has, and wants to read it in
// the status.json of the address. What fails takes it back.
func (t *target) prove(ctx context.Context, epoch string) error {
	at := time.Now().UTC().Add(proofAhead + mathrand.N(proofAhead)).Truncate(time.Second)
	_, err := command(ctx, t, "open", "--at", at.Format(time.RFC3339), "--yes")
	if err == nil {
		err = t.await(ctx, at)
	}
	if err == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), afterwards)
	defer cancel()
	// Not the opening of another rehearsal that has begun meanwhile.
	if now, e := inForce(ctx, t); e == nil && now != epoch {
		return errors.Join(err, errBegunAnew)
	}
	_, undo := command(ctx, t, "close", "--reason", reason)
	return errors.Join(err, undo)
}

func (t *target) await(ctx context.Context, at time.Time) error {
	for end := time.Now().Add(provenWithin); ; {
		last := t.shows(ctx, at)
		switch {
		case last == nil:
			return nil
		case time.Now().After(end):
			return fmt.Errorf("%w (%w)", errAnotherSite, last)
		case !until(ctx, time.Now().Add(provenEvery)):
			return ctx.Err()
		}
	}
}

// shows is nil when status.json has an opening at that time.
func (t *target) shows(ctx context.Context, at time.Time) error {
	body, err := t.get(ctx, t.url+"/status.json")
	if err != nil {
		return err
	}
	var doc struct {
		OpensAt time.Time `json:"opens_at"`
	}
	if err := json.Unmarshal(body, &doc); err != nil {
		return fmt.Errorf("status.json: %w", err)
	}
	if !doc.OpensAt.Equal(at) {
		return fmt.Errorf("status.json does not have the opening at %s", at.Format(time.RFC3339))
	}
	return nil
}

func (t *target) get(ctx context.Context, address string) ([]byte, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
	if err != nil {
		return nil, err
	}
	resp, err := t.client.Do(r)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s answers %s", address, resp.Status)
	}
	return io.ReadAll(io.LimitReader(resp.Body, documents))
}

// Sample is a Stage's, without processes that are not this one. Safe for concurrent use.
func (t *target) Sample(ctx context.Context) (Sample, error) {
	return t.sampling.sample(ctx, t.sampleHere)
}

// sampleHere has no error: an operator's user need not be one who may ask Redis for its
// memory.
func (t *target) sampleHere(ctx context.Context, out *Sample) error {
	if own, err := processorTime(os.Getpid()); err == nil {
		out.CPU = t.sampling.account(map[string]string{processLoad: processLoad}, map[string]time.Duration{processLoad: own})
	}
	o := redis.Options{Addr: t.redis.RedisAddr, Username: t.redis.RedisUsername, Password: t.redis.RedisPassword.Reveal()}
	if t.redis.RedisTLS {
		o.TLSConfig = &tls.Config{MinVersion: tls.VersionTLS12}
	}
	if info, err := askRedis(ctx, o); err == nil {
		out.RedisMemory = info.memory
	}
	return nil
}

func (t *target) payments(ctx context.Context) ([]mockgateway.Listed, error) {
	return paymentsAt(ctx, t.gateway)
}

// CPU is the processor time of this process, as Stage.CPU has it. Safe for concurrent use.
func (t *target) CPU() map[string]float64 { return t.sampling.cpu() }

// SlowGateway is as Stage.SlowGateway. Close puts back what was set before the first call;
// what else is set there stays as it is.
func (t *target) SlowGateway(ctx context.Context, p99 time.Duration) error {
	return t.setLatency(ctx, latencies(p99))
}

func (t *target) setLatency(ctx context.Context, to mockgateway.Latencies) error {
	body, err := t.get(ctx, t.gateway+settingsPath)
	if err != nil {
		return fmt.Errorf("settings of the gateway: %w", err)
	}
	settings, err := mockgateway.ParseSettings(body)
	if err != nil {
		return fmt.Errorf("settings of the gateway: %w", err)
	}
	if reflect.DeepEqual(settings.LatencyMS, to) {
		return nil
	}
	if !t.slowed {
		t.slowed, t.latency = true, settings.LatencyMS // a change may be made though its answer is lost
	}
	settings.LatencyMS = to
	return putSettings(ctx, t.client, t.gateway, settings)
}

// Break refuses.
func (t *target) Break(context.Context, Fault) (func(context.Context) error, error) {
	return nil, errNotOurs
}

// profile is nobody's but the processes' own operator's.
func (*target) profile(context.Context, time.Duration, io.Writer) error {
	return errors.New("a rehearsal looks into no process that it has not started: run one with a profile without a target")
}

// left says how the sale stands, for whoever has interrupted its rehearsal.
func (t *target) left(ctx context.Context) string {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), sampleWithin)
	defer cancel()
	gate := t.sampling.operator.Gate
	sale, err := gate.Sale(ctx)
	if errors.Is(err, booking.ErrNotFound) {
		return "no sale is in force at " + t.url
	}
	f, statusErr := gate.ReadStatus(ctx)
	if err := errors.Join(err, statusErr); err != nil {
		return fmt.Sprintf("how the sale was left at %s cannot be read (%v): see seatctl status", t.url, err)
	}
	how := "closed"
	switch {
	case f.Open:
		how = "OPEN: end it with seatctl close"
	case !f.OpensAt.IsZero():
		how = "closed and opens at " + f.OpensAt.UTC().Format(time.RFC3339) + ": end that with seatctl close"
	}
	return fmt.Sprintf("sale %s at %s was left as it is, with %d of %d seats taken, and booking is %s", sale.Name, t.url, f.Total, f.Cap, how)
}

// Close puts the gateway's latency back. The deployment stays, its sale as it is. Safe to
// repeat.
func (t *target) Close() error {
	var errs []error
	if t.slowed {
		ctx, cancel := context.WithTimeout(context.Background(), afterwards)
		defer cancel()
		if err := t.setLatency(ctx, t.latency); err != nil {
			before, _ := json.Marshal(t.latency) // it came as JSON
			errs = append(errs, fmt.Errorf("put back the gateway's latency_ms, which was %s: %w", before, err))
		}
		t.slowed = false
	}
	t.client.CloseIdleConnections()
	return errors.Join(append(errs, t.sampling.operator.Close())...)
}
