package composetest

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/cookiejar"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"

	"holdfast/internal/redisproc"
	"holdfast/internal/testenv"
)

// buildLine is how the Dockerfile builds the programs, and cgoOff that they are static,
// which they must be in an image with nothing else in it.
var (
	buildLine = regexp.MustCompile(`RUN go (build .*?)-o /out/ ((?:\./\S+ ?)+)`)
	cgoOff    = regexp.MustCompile(`(?m)^ENV .*\bCGO_ENABLED=0\b`)
)

// build builds the programs as the Dockerfile does, but for cgo, and returns their
// folder. Without cgo it would compile all that they import once more than the other
// tests do.
func build(t *testing.T) string {
	t.Helper()
	file := read(t, "build/Dockerfile")
	line := buildLine.FindStringSubmatch(file)
	if line == nil || !cgoOff.MatchString(file) {
		t.Fatal("build/Dockerfile: want ENV CGO_ENABLED=0 and a line RUN go build … -o /out/ ./…")
	}
	bin := t.TempDir()
	args := append(strings.Fields(line[1]), "-o", bin+string(filepath.Separator))
	cmd := exec.CommandContext(t.Context(), "go", append(args, strings.Fields(line[2])...)...)
	cmd.Dir = root
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", line[0], err, out)
	}
	return bin
}

// oneShot bounds a program that ends by itself, on a busy machine.
const oneShot = 2 * time.Minute

// profile is the middle profile on this machine.
type profile struct {
	project
	bin       string
	addresses map[string]string // of the file, to those here
	smtp      string            // host:port
	work      string            // the programs' working folder, which must stay empty
}

// start runs a service's command as its container does; more is put after it.
func (p *profile) start(t *testing.T, name string, command ...string) *process {
	t.Helper()
	s := p.Services[name]
	if command == nil {
		command = s.Command
	}
	here := p.onThisMachine(t, s, p.addresses)
	var args, env []string
	for _, arg := range command {
		args = append(args, here.Replace(arg))
	}
	for variable, value := range s.Environment {
		switch variable {
		case "HOLDFAST_SMTP_HOST":
			value, _, _ = net.SplitHostPort(p.smtp)
		case "HOLDFAST_SMTP_PORT":
			_, value, _ = net.SplitHostPort(p.smtp)
		default:
			value = here.Replace(value)
		}
		env = append(env, variable+"="+value)
	}
	for service := range p.Services {
		if said := strings.Join(append(args, env...), " "); regexp.MustCompile(`\b` + service + `:\d`).MatchString(said) {
			t.Fatalf("%s: got an address of %s that this test does not know: %s", name, service, said)
		}
	}
	// The environment is the file's and nothing else, as in a container.
	return run(t, name, p.work, filepath.Join(p.bin, s.Build.Target), args, env)
}

// healthy waits until a service's own health check succeeds.
func (p *profile) healthy(t *testing.T, name string) {
	t.Helper()
	s := p.Services[name]
	here := p.onThisMachine(t, s, p.addresses)
	var args []string
	for _, arg := range s.Healthcheck.Test[2:] {
		args = append(args, here.Replace(arg))
	}
	testenv.Eventually(t, func() error {
		cmd := exec.CommandContext(t.Context(), filepath.Join(p.bin, s.Healthcheck.Test[1]), args...)
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("health check of %s: %w: %s", name, err, out)
		}
		return nil
	})
}

// process is a running program. It is killed at the end of the test.
type process struct {
	name   string
	cmd    *exec.Cmd
	out    output
	exited chan struct{}
}

type output struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (o *output) Write(b []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.Write(b)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.String()
}

func run(t *testing.T, name, dir, program string, args, env []string) *process {
	t.Helper()
	p := &process{name: name, exited: make(chan struct{})}
	p.cmd = exec.Command(program, args...) //nolint:noctx // a test's context ends before its clean-up, which shows what the program said
	p.cmd.Dir, p.cmd.Env = dir, env
	p.cmd.Stdout, p.cmd.Stderr = &p.out, &p.out
	if err := p.cmd.Start(); err != nil {
		t.Fatalf("start %s: %v", name, err)
	}
	go func() {
		defer close(p.exited)
		_ = p.cmd.Wait() // its code is asked for below
	}()
	t.Cleanup(func() {
		_ = p.cmd.Process.Kill() // gone already is fine
		<-p.exited
		if t.Failed() {
			t.Logf("%s said:\n%s", name, p.out.String())
		}
	})
	return p
}

// ended waits for the program's own end, which must be a good one.
func (p *process) ended(t *testing.T, within time.Duration) {
	t.Helper()
	select {
	case <-p.exited:
		if code := p.cmd.ProcessState.ExitCode(); code != 0 {
			t.Fatalf("%s: got exit code %d, want 0", p.name, code)
		}
	case <-time.After(within):
		t.Fatalf("%s: still runs after %s", p.name, within)
	}
}

// redisPair is a primary and a replica with the password and the settings that the
// containers have.
func (p *profile) redisPair(t *testing.T) *redisproc.Pair {
	t.Helper()
	valkey := testenv.Engines()[1] // the engine of the containers
	pair := valkey.Pair(t)
	password := strings.TrimSpace(read(t, p.Secrets["redis_password"].File))
	for _, server := range append([]*redisproc.Server{pair.Primary}, pair.Replicas...) {
		c := redis.NewClient(&redis.Options{
			Addr: server.Addr(), MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
		})
		defer c.Close()
		for line := range strings.Lines(read(t, "build/redis.conf")) {
			name, value, ok := strings.Cut(strings.TrimSpace(line), " ")
			if !ok || name == "#" {
				continue
			}
			if err := c.ConfigSet(t.Context(), name, strings.Trim(value, `"`)).Err(); err != nil {
				t.Errorf("build/redis.conf: %s: got %v, want a setting of the server", strings.TrimSpace(line), err)
			}
		}
		for _, name := range []string{"masterauth", "requirepass"} {
			if err := c.ConfigSet(t.Context(), name, password).Err(); err != nil {
				t.Fatalf("%s: %v", name, err)
			}
		}
	}
	return pair
}

// The whole profile at work: everything starts in the order of the file and becomes
// healthy by its own check, a candidate books and pays, the mail arrives, the audit
// finds every rule kept, Prometheus would be answered, and all ends as it is told.
func TestProfile_SellsASeatAndEnds(t *testing.T) {
	if testing.Short() {
		t.Skip("builds and starts the whole middle profile")
	}
	p := &profile{project: load(t), bin: build(t), work: t.TempDir()}
	mails := testenv.SMTP(t, testenv.SMTPOptions{})
	p.smtp = mails.Addr
	page, payer := testenv.FreeAddr(t), testenv.FreeAddr(t)
	p.addresses = map[string]string{
		"redis-primary:6379": p.redisPair(t).Primary.Addr(),
		"aws:5000":           strings.TrimPrefix(testenv.AWS(t).Endpoint, "http://"),
		"0.0.0.0:8080":       page, "127.0.0.1:8080": page,
		"0.0.0.0:8090": payer, "127.0.0.1:8090": payer, "mockgateway:8090": payer,
		"api:9090": testenv.FreeAddr(t), "worker:9091": testenv.FreeAddr(t),
		"postgres://backoffice@postgres:5432/backoffice?sslmode=disable": testenv.Postgres(t).Database(t),
	}

	gateway := p.start(t, "mockgateway")
	p.healthy(t, "mockgateway")
	p.start(t, "setup").ended(t, oneShot)
	p.start(t, "setup").ended(t, oneShot) // safe to repeat
	api, worker := p.start(t, "api"), p.start(t, "worker")
	p.healthy(t, "api")
	p.healthy(t, "worker")

	c := newBrowser(t)
	booked := c.book(t, "http://"+page, "AB-100001", "candidate100001@example.org", "N1")
	c.pay(t, booked.PaymentURL)
	testenv.Eventually(t, func() error {
		var seat struct{ State string }
		if err := c.get(t, booked.BookingURL, &seat); err != nil || seat.State != "paid" {
			return fmt.Errorf("booking: got %q, %w, want paid", seat.State, err)
		}
		return nil
	})
	mails.Await(t, 1)
	for _, admin := range []string{"api:9090", "worker:9091"} {
		if err := c.get(t, "http://"+p.addresses[admin]+"/metrics", nil); err != nil {
			t.Errorf("metrics at %s: %v", admin, err)
		}
	}
	p.start(t, "seatctl").ended(t, oneShot)

	for _, process := range []*process{api, worker, gateway} {
		if err := process.cmd.Process.Signal(syscall.SIGTERM); err != nil {
			t.Errorf("%s: got %v, want it to run until it is told to end", process.name, err)
		}
		process.ended(t, p.Services[process.name].StopGracePeriod)
	}
	left, err := os.ReadDir(p.work)
	if err != nil || len(left) > 0 {
		t.Errorf("working folder: got %v, %v, want nothing written: the root file system is read-only", left, err)
	}
}

// browser is a candidate's.
type browser struct{ http.Client }

func newBrowser(t *testing.T) *browser {
	t.Helper()
	jar, err := cookiejar.New(nil)
	if err != nil {
		t.Fatal(err)
	}
	transport := &http.Transport{}
	t.Cleanup(transport.CloseIdleConnections)
	return &browser{http.Client{Transport: transport, Jar: jar, Timeout: 15 * time.Second}}
}

type answer struct {
	PaymentURL string `json:"payment_url"`
	BookingURL string `json:"booking_url"`
}

func (b *browser) book(t *testing.T, site, code, email, level string) answer {
	t.Helper()
	body, err := json.Marshal(map[string]string{"code": code, "email": email, "level": level})
	if err != nil {
		t.Fatal(err)
	}
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, site+"/book", bytes.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Content-Type", "application/json")
	var a answer
	if err := b.do(r, http.StatusAccepted, &a); err != nil {
		t.Fatalf("book: %v", err)
	}
	return a
}

// pay presses the button on the gateway's page and follows it home.
func (b *browser) pay(t *testing.T, page string) {
	t.Helper()
	form := url.Values{"outcome": {"success"}}.Encode()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, page, strings.NewReader(form))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	if err := b.do(r, http.StatusOK, nil); err != nil {
		t.Fatalf("pay: %v", err)
	}
}

func (b *browser) get(t *testing.T, url string, into any) error {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	return b.do(r, http.StatusOK, into)
}

func (b *browser) do(r *http.Request, want int, into any) error {
	resp, err := b.Do(r)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		return err
	}
	if resp.StatusCode != want {
		return fmt.Errorf("%s: got %s, want %d: %s", r.URL, resp.Status, want, body)
	}
	if into == nil {
		return nil
	}
	return json.Unmarshal(body, into)
}
