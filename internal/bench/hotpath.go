package bench

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-chi/chi/v5"
	json "github.com/go-json-experiment/json"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/redis/go-redis/v9"

	"holdfast/internal/admission"
	"holdfast/internal/app"
	"holdfast/internal/booking"
	"holdfast/internal/checkout"
	"holdfast/internal/flight"
	"holdfast/internal/httpapi"
	"holdfast/internal/obs"
	queue "holdfast/internal/queue/sqlite"
	"holdfast/internal/redisproc"
	"holdfast/scripts/lua"
)

// HotpathResult is one run. Rates are requests per second, the median of the
// rounds; the ratios are medians of each round's own ratio.
type HotpathResult struct {
	NullRPS               float64            `json:"null_rps"`
	PingRPS               float64            `json:"ping_rps"`
	OnePipelineRPS        float64            `json:"one_pipeline_rps"`
	RejectFullRPS         float64            `json:"reject_full_rps"`
	RejectDuplicateRPS    float64            `json:"reject_duplicate_rps"`
	AdmitRPS              float64            `json:"admit_rps"`
	RedisCeilingRPS       float64            `json:"redis_ceiling_rps"`
	RejectOverNull        float64            `json:"reject_over_null"`
	RejectOverOnePipeline float64            `json:"reject_over_one_pipeline"`
	P99MS                 map[string]float64 `json:"p99_ms"`
	AllocsPerRejection    float64            `json:"allocs_per_rejection"`
	LowLoad               LowLoad            `json:"low_load"`
	Engine                string             `json:"engine"`
	GOMAXPROCS            int                `json:"gomaxprocs"`
	Rounds                int                `json:"rounds"`
	Connections           int                `json:"connections"`
}

// LowLoad compares a lone request's median time with one plain pipeline of
// script and WAIT, over interleaved runs, both without HTTP.
type LowLoad struct {
	AdmitMicros    float64 `json:"admit_us"`
	PipelineMicros float64 `json:"pipeline_us"`
	Ratio          float64 `json:"ratio"`
	Runs           int     `json:"runs"`
}

// HotpathOptions size a run.
type HotpathOptions struct {
	Rounds      int
	Connections int
	Each        time.Duration // one measurement
	Candidates  int
	LowLoadRuns int
	LowLoadEach int
	// CPUProfile, if set, gets a profile of the full rejections alone.
	Profile func() (stop func())
}

// DefaultHotpath is what the quoted figures come from; about two minutes.
func DefaultHotpath() HotpathOptions {
	return HotpathOptions{Rounds: 5, Connections: 128, Each: 2 * time.Second, Candidates: 120_000, LowLoadRuns: 20, LowLoadEach: 200}
}

// Hotpath measures the hot path as shipped, metrics and request log on, beside
// what it is built of. It starts a primary and a replica of its own.
func Hotpath(ctx context.Context, progress io.Writer) (HotpathResult, error) {
	return RunHotpath(ctx, DefaultHotpath(), progress)
}

// RunHotpath is Hotpath of another size.
func RunHotpath(ctx context.Context, o HotpathOptions, progress io.Writer) (res HotpathResult, err error) {
	dir, err := os.MkdirTemp("", "holdfast-bench-")
	if err != nil {
		return res, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	defer app.TuneGC(os.Getenv)() // as in the process that ships, for all measurements alike
	pair, err := redisproc.StartPair(ctx, dir, 1)
	if err != nil {
		return res, fmt.Errorf("the benchmark needs a redis-server on the PATH: %w", err)
	}
	defer pair.Stop()
	b := &hotpath{HotpathOptions: o, addr: pair.Primary.Addr(), dir: dir, progress: progress}
	if err := b.prepare(ctx); err != nil {
		return res, errors.Join(err, b.close())
	}
	res, err = b.run(ctx)
	return res, errors.Join(err, b.close())
}

type hotpath struct {
	HotpathOptions
	addr, dir string
	progress  io.Writer

	rdb     *redis.Client
	gate    *admission.Gate
	queue   *queue.Queue
	logFile *os.File
	engine  string
	handler http.Handler
	servers map[string]*server
	// next is the next candidate who has no seat.
	next atomic.Int64
}

type server struct {
	http *http.Server
	addr string
	done chan error
}

func (s *server) url() string { return "http://" + s.addr + "/book" }

const benchPrefix = "{bench}:"

// Levels of the bench's sale: one that is full, one that never is.
const (
	fullLevel = "FULL"
	openLevel = "OPEN"
	heldCount = 1000 // candidates with a live hold, for duplicates
)

func candidate(i int) string { return fmt.Sprintf("BN-%07d", i) }

func (b *hotpath) prepare(ctx context.Context) error {
	b.rdb = admission.NewClient(admission.ClientConfig{Addr: b.addr, Pool: 300})
	keys, err := admission.NewKeys(benchPrefix)
	if err != nil {
		return err
	}
	// The log goes where a service's log goes: to a file, a line a write.
	if b.logFile, err = os.Create(filepath.Join(b.dir, "log")); err != nil {
		return err
	}
	log, reg := obs.NewLogger(b.logFile, slog.LevelInfo), obs.NewRegistry()
	if b.gate, err = admission.New(b.rdb, admission.Options{Keys: keys, Acks: 1, Log: log, Registerer: reg}); err != nil {
		return err
	}
	sale := booking.Sale{Name: "bench", Currency: "BDT", Cap: 10_000_000, Hold: time.Hour, Levels: []booking.Level{
		{ID: fullLevel, Name: "Full", Cap: 0, Fee: 100}, {ID: openLevel, Name: "Open", Cap: 10_000_000, Fee: 100},
	}}
	if _, err := b.gate.ApplySale(ctx, sale, booking.NewEpoch(time.Now()), false); err != nil {
		return err
	}
	for part := range slices.Chunk(numbers(b.Candidates), 500) {
		list := make([]booking.Candidate, len(part))
		for i, n := range part {
			list[i] = booking.Candidate{Code: candidate(n), Email: "bench@example.org"}
		}
		if err := b.gate.AddCandidates(ctx, list); err != nil {
			return err
		}
	}
	if err := b.gate.Open(ctx); err != nil {
		return err
	}
	info, err := b.rdb.InfoMap(ctx, "server").Result()
	if err != nil {
		return err
	}
	b.engine = "redis " + info["Server"]["redis_version"]
	if v := info["Server"]["valkey_version"]; v != "" {
		b.engine = "valkey " + v
	}
	if b.queue, err = queue.Open(ctx, filepath.Join(b.dir, "queue.db"), queue.Options{}); err != nil {
		return err
	}
	edge, err := b.edge(log, reg)
	if err != nil {
		return err
	}
	b.handler = edge
	b.servers = map[string]*server{}
	for name, h := range map[string]http.Handler{
		"null": bare(nil), "ping": bare(b.ping), "one_pipeline": bare(b.onePipeline), "book": edge,
	} {
		if b.servers[name], err = serve(ctx, h, log); err != nil {
			return err
		}
	}
	return b.hold(ctx)
}

func numbers(n int) []int {
	out := make([]int, n)
	for i := range out {
		out[i] = i
	}
	return out
}

// edge is the hot path as shipped over a gateway that answers at once.
func (b *hotpath) edge(log *slog.Logger, reg prometheus.Registerer) (http.Handler, error) {
	sealer, err := booking.NewSealer(make([]byte, booking.SealKeySize))
	if err != nil {
		return nil, err
	}
	book, err := checkout.New(checkout.Deps{
		Ledger: b.gate, Gateway: instant{}, Queue: b.queue, Slots: 1000, Budgets: checkout.DefaultBudgets(),
		CallbackURL: "http://bench/payment/callback",
		BookingURL:  func(code, attempt string) string { return "http://bench/booking/" + sealer.Seal(code, attempt) },
		Log:         log, Registerer: reg,
	})
	if err != nil {
		return nil, err
	}
	return httpapi.New(httpapi.Deps{
		Booker: book, Finder: nobody{}, Settler: nobody{}, Viewer: nobody{}, Sealer: sealer, Background: new(flight.Group),
		Codes: booking.DefaultCodeRule(), ResultURL: "http://bench/result", ReturnBudget: time.Second, Log: log, Registerer: reg,
	})
}

// instant is a gateway without latency.
type instant struct{}

func (instant) Ready() (func(), error) { return func() {}, nil }

func (instant) Create(_ context.Context, o booking.Order) (booking.Payment, error) {
	id := "TR0011" + o.Invoice[len(o.Invoice)-26:]
	return booking.Payment{ID: id, URL: "http://gateway.bench/pay/" + id, Signature: "k3YOrG8qy6"}, nil
}

// nobody stands for what the hot path never calls.
type nobody struct{}

func (nobody) Find(context.Context, string, string) error { return booking.ErrNotFound }

func (nobody) Issued(context.Context, string, string) (string, string, error) {
	return "", "", booking.ErrNotFound
}
func (nobody) Return(context.Context, string, string, string) error { return booking.ErrNotFound }
func (nobody) View(context.Context, string, string) (booking.View, error) {
	return booking.View{}, booking.ErrNotFound
}

type form struct {
	Code    string `json:"code"`
	Email   string `json:"email"`
	Level   string `json:"level"`
	Website string `json:"website"`
}

// bare is a chi route without middleware that decodes the body of POST /book, does
// one thing, and answers a constant.
func bare(do func(ctx context.Context, f form) error) http.Handler {
	r := chi.NewRouter()
	r.Post("/book", func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, 8<<10))
		var f form
		if err == nil {
			err = json.Unmarshal(body, &f, json.RejectUnknownMembers(true))
		}
		if err == nil && do != nil {
			err = do(r.Context(), f)
		}
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		w.Header().Set("Content-Type", "application/json; charset=utf-8")
		w.WriteHeader(http.StatusConflict)
		_, _ = io.WriteString(w, `{"error":"level_full","message":"This level is full: choose another, or try later, when unpaid seats come back.","request_id":"AAAAAAAAAAAAAAAAAAAAAAAAAA","level":"FULL"}`+"\n")
	})
	return r
}

func (b *hotpath) ping(ctx context.Context, _ form) error { return b.rdb.Ping(ctx).Err() }

// admitSHA is the digest of the admit script, which the gate has loaded.
var admitSHA = redis.NewScript(lua.Admit).Hash()

// onePipeline is the same decision with a pipeline of its own: script and WAIT.
func (b *hotpath) onePipeline(ctx context.Context, f form) error {
	conn := b.rdb.Conn()
	defer func() { _ = conn.Close() }() // gives the connection back to the pool
	pipe := conn.Pipeline()
	script := pipe.EvalSha(ctx, admitSHA, admitKeys(f.Code, f.Level),
		0, 1, 1, f.Level, f.Code, f.Email, 1, "take 0 "+booking.NewAttemptSuffix(time.Now())+" 0 -")
	_ = pipe.Process(ctx, redis.NewIntCmd(ctx, "WAIT", 1, 200))
	_, err := pipe.Exec(ctx)
	if err != nil {
		return err
	}
	return wantWord(script, "level_full")
}

func wantWord(cmd *redis.Cmd, want string) error {
	if list, err := cmd.Slice(); err != nil || len(list) != 3 || list[1] != want {
		return fmt.Errorf("admit answered %v (%w)", list, err)
	}
	return nil
}

func admitKeys(code, level string) []string {
	const p = benchPrefix
	return []string{
		p + "adm:epoch", p + "adm:seen", p + "adm:due", p + "adm:mark", p + "sale:config", p + "booking:open", p + "booking:opens_at",
		p + "candidates:valid", p + "adm:total", p + "candidate:email:" + code, p + "adm:level:" + level,
	}
}

func serve(ctx context.Context, h http.Handler, log *slog.Logger) (*server, error) {
	ln, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	s := &server{http: app.NewServer(h, log), addr: ln.Addr().String(), done: make(chan error, 1)}
	go func() { s.done <- s.http.Serve(ln) }()
	return s, nil
}

func (b *hotpath) close() error {
	var errs []error
	for _, s := range b.servers {
		errs = append(errs, s.http.Close())
		if err := <-s.done; !errors.Is(err, http.ErrServerClosed) {
			errs = append(errs, err)
		}
	}
	if b.queue != nil {
		errs = append(errs, b.queue.Close())
	}
	if b.rdb != nil {
		errs = append(errs, b.rdb.Close())
	}
	if b.logFile != nil {
		errs = append(errs, b.logFile.Close())
	}
	return errors.Join(errs...)
}

// hold books the candidates who will ask twice.
func (b *hotpath) hold(ctx context.Context) error {
	_, err := drive(ctx, b.servers["book"].url(), b.Connections, time.Minute, heldCount/b.Connections*b.Connections, http.StatusAccepted, b.fresh())
	return err
}

// fresh books with the next candidate who has no seat.
func (b *hotpath) fresh() body {
	return func(buf []byte, _, _ int) []byte { return bookAs(buf, int(b.next.Add(1)-1), openLevel) }
}

func bookAs(buf []byte, i int, level string) []byte {
	buf = append(buf, `{"code":"BN-`...)
	for d := 1_000_000; d > 0; d /= 10 {
		buf = append(buf, byte('0'+i/d%10))
	}
	buf = append(buf, `","email":"bench@example.org","level":"`...)
	buf = append(buf, level...)
	return append(buf, `"}`...)
}

// full asks for the full level, with candidates who have no seat.
func (b *hotpath) full(buf []byte, worker, n int) []byte {
	return bookAs(buf, b.Candidates-1-(worker*7919+n)%(b.Candidates/4), fullLevel)
}

// twice asks again for a seat that is held.
func (b *hotpath) twice(buf []byte, worker, n int) []byte {
	return bookAs(buf, (worker*131+n)%(heldCount/b.Connections*b.Connections), openLevel)
}

const plenty = 400_000 // requests at most in one measurement

func (b *hotpath) run(ctx context.Context) (HotpathResult, error) {
	res := HotpathResult{P99MS: map[string]float64{}, Engine: b.engine, GOMAXPROCS: runtime.GOMAXPROCS(0), Rounds: b.Rounds, Connections: b.Connections}
	rates, p99 := map[string][]float64{}, map[string][]float64{}
	perRound := b.Candidates / 2 / b.Rounds // of those who can still be admitted
	for round := range b.Rounds + 1 {
		for _, m := range []struct {
			name, server string
			status, most int
			make         body
		}{
			{"null", "null", http.StatusConflict, plenty, b.full},
			{"ping", "ping", http.StatusConflict, plenty, b.full},
			{"one_pipeline", "one_pipeline", http.StatusConflict, plenty, b.full},
			{"reject_full", "book", http.StatusConflict, plenty, b.full},
			{"reject_duplicate", "book", http.StatusConflict, plenty, b.twice},
			{"admit", "book", http.StatusAccepted, perRound, b.fresh()},
		} {
			each := b.Each
			if round == 0 {
				each, m.most = b.Each/4, min(m.most, b.Connections) // warm up
			}
			stop := func() {}
			if m.name == "reject_full" && b.Profile != nil && round > 0 {
				stop = b.Profile()
			}
			l, err := drive(ctx, b.servers[m.server].url(), b.Connections, each, m.most, m.status, m.make)
			stop()
			if err != nil {
				return res, fmt.Errorf("%s: %w", m.name, err)
			}
			if round == 0 {
				continue
			}
			rates[m.name] = append(rates[m.name], l.rps)
			p99[m.name] = append(p99[m.name], float64(l.p99.Microseconds())/1000)
			_, _ = fmt.Fprintf(b.progress, "round %d: %-16s %8.0f/s  p99 %6.2f ms\n", round, m.name, l.rps, p99[m.name][len(p99[m.name])-1])
		}
		if round > 0 {
			ceiling, err := b.ceiling(ctx)
			if err != nil {
				return res, fmt.Errorf("redis ceiling: %w", err)
			}
			rates["ceiling"] = append(rates["ceiling"], ceiling)
		}
	}
	for name, values := range p99 {
		res.P99MS[name] = median(values)
	}
	res.NullRPS, res.PingRPS, res.OnePipelineRPS = median(rates["null"]), median(rates["ping"]), median(rates["one_pipeline"])
	res.RejectFullRPS, res.RejectDuplicateRPS, res.AdmitRPS = median(rates["reject_full"]), median(rates["reject_duplicate"]), median(rates["admit"])
	res.RedisCeilingRPS = median(rates["ceiling"])
	res.RejectOverNull = median(ratios(rates["reject_full"], rates["null"]))
	res.RejectOverOnePipeline = median(ratios(rates["reject_full"], rates["one_pipeline"]))
	res.AllocsPerRejection = b.allocs()
	var err error
	res.LowLoad, err = b.lowLoad(ctx)
	return res, err
}

// allocs counts what a rejection allocates in the handler and below, without
// client and connection.
func (b *hotpath) allocs() float64 {
	const requests = 20_000
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	var wg sync.WaitGroup
	for w := range b.Connections {
		wg.Go(func() {
			var buf []byte
			for n := range requests / b.Connections {
				buf = b.full(buf[:0], w, n)
				r := &http.Request{
					Method: http.MethodPost, URL: &url.URL{Path: "/book"}, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
					Header: http.Header{"Content-Type": {"application/json"}}, Body: io.NopCloser(bytes.NewReader(buf)), ContentLength: int64(len(buf)),
				}
				b.handler.ServeHTTP(&discard{header: http.Header{}}, r.WithContext(context.Background()))
			}
		})
	}
	wg.Wait()
	runtime.ReadMemStats(&after)
	return float64(after.Mallocs-before.Mallocs)/float64(requests/b.Connections*b.Connections) - requestAllocs
}

// requestAllocs is what making the request above allocates.
const requestAllocs = 11

type discard struct{ header http.Header }

func (d *discard) Header() http.Header         { return d.header }
func (d *discard) Write(p []byte) (int, error) { return len(p), nil }
func (d *discard) WriteHeader(int)             {}

// ceiling is the rate of the admit script itself, in one deep pipeline.
func (b *hotpath) ceiling(ctx context.Context) (float64, error) {
	const depth, times = 2000, 10
	conn := b.rdb.Conn()
	defer func() { _ = conn.Close() }() // gives the connection back to the pool
	began := time.Now()
	for range times {
		pipe := conn.Pipeline()
		var last *redis.Cmd
		for i := range depth {
			code := candidate(b.Candidates - 1 - i)
			last = pipe.EvalSha(ctx, admitSHA, admitKeys(code, fullLevel), 0, 1, 1, fullLevel, code, "bench@example.org", 1, "take 0 x 0 -")
		}
		if _, err := pipe.Exec(ctx); err != nil {
			return 0, err
		}
		if err := wantWord(last, "level_full"); err != nil {
			return 0, err
		}
	}
	return depth * times / time.Since(began).Seconds(), nil
}

// lowLoad asks one at a time, in turn through the gate and through a pipeline of
// its own, and compares the medians.
func (b *hotpath) lowLoad(ctx context.Context) (LowLoad, error) {
	// As on the hot path, the context has a deadline.
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	var gate, plain, ratio []float64
	for range b.LowLoadRuns {
		var g, p []float64
		for range b.LowLoadEach {
			code := candidate(int(b.next.Load()))
			began := time.Now()
			_, err := b.gate.Admit(ctx, booking.Request{Code: code, Email: "bench@example.org", Level: fullLevel}, booking.NewAttemptSuffix(began), false)
			g = append(g, float64(time.Since(began).Nanoseconds())/1000)
			if !errors.Is(err, booking.ErrLevelFull) {
				return LowLoad{}, fmt.Errorf("low load: %w", err)
			}
			began = time.Now()
			err = b.onePipeline(ctx, form{Code: code, Email: "bench@example.org", Level: fullLevel})
			p = append(p, float64(time.Since(began).Nanoseconds())/1000)
			if err != nil {
				return LowLoad{}, err
			}
		}
		gate, plain = append(gate, median(g)), append(plain, median(p))
		ratio = append(ratio, median(g)/median(p))
	}
	return LowLoad{AdmitMicros: median(gate), PipelineMicros: median(plain), Ratio: median(ratio), Runs: b.LowLoadRuns}, nil
}

func ratios(a, b []float64) []float64 {
	out := make([]float64, len(a))
	for i := range a {
		out[i] = a[i] / b[i]
	}
	return out
}

func median(v []float64) float64 {
	v = slices.Sorted(slices.Values(v))
	if len(v) == 0 {
		return 0
	}
	return v[len(v)/2]
}
