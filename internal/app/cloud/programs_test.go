package cloud_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"holdfast/internal/admission"
	"holdfast/internal/booking"
	"holdfast/internal/mockgateway"
	"holdfast/internal/testenv"
)

// What the programs that ship promise on a machine of their own.
const (
	startsWithin = time.Second
	idleMemory   = 60e6
	idleAfter    = 30 * time.Second // from the start, with the pools warm
)

// program is a running program that ships.
type program struct {
	cmd    *exec.Cmd
	began  time.Time
	said   *bytes.Buffer
	took   time.Duration // from its start until it took work
	exited chan struct{}
	err    error // once it has exited
}

// startProgram starts a built program and waits until it tells that it takes work, as
// it tells systemd.
func startProgram(t *testing.T, path string, env map[string]string) *program {
	t.Helper()
	socket, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: filepath.Join(t.TempDir(), "notify"), Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	defer socket.Close()
	p := &program{cmd: exec.CommandContext(context.WithoutCancel(t.Context()), path), said: new(bytes.Buffer), exited: make(chan struct{})}
	p.cmd.Env = append(os.Environ(), "NOTIFY_SOCKET="+socket.LocalAddr().String())
	for name, value := range env {
		p.cmd.Env = append(p.cmd.Env, name+"="+value)
	}
	p.cmd.Stderr = p.said
	p.began = time.Now()
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		p.err = p.cmd.Wait()
		close(p.exited)
	}()
	t.Cleanup(p.kill)
	if err := socket.SetReadDeadline(p.began.Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	heard := make([]byte, 64)
	n, err := socket.Read(heard)
	if p.took = time.Since(p.began); err != nil || string(heard[:n]) != "READY=1" {
		p.kill()
		t.Fatalf("%s told %q, %v, want READY=1; it ended with %v and said:\n%s", path, heard[:n], err, p.err, p.said)
	}
	return p
}

// stop ends the program as systemd does; it must end well and in order.
func (p *program) stop(t *testing.T) {
	t.Helper()
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Error(err)
	}
	select {
	case <-p.exited:
		if p.err != nil {
			t.Errorf("end after SIGTERM: got %v, want nil; it said:\n%s", p.err, p.said)
		}
	case <-time.After(time.Minute):
		p.kill()
		t.Errorf("end after SIGTERM: got none in a minute; it said:\n%s", p.said)
	}
}

// kill ends the program and waits. Safe to repeat.
func (p *program) kill() {
	_ = p.cmd.Process.Kill() // gone already is fine
	<-p.exited
}

// resident is how much of the program is in memory, in bytes.
func (p *program) resident() (int, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.cmd.Process.Pid))
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(text)) {
		if value, ok := strings.CutPrefix(line, "VmRSS:"); ok {
			kib, err := strconv.Atoi(strings.TrimSuffix(strings.TrimSpace(value), " kB"))
			return kib << 10, err
		}
	}
	return 0, errors.New("no VmRSS")
}

// wantSmall wants the program to be as small as promised when it has run for as long
// as the promise allows.
func (p *program) wantSmall(t *testing.T, name string) {
	t.Helper()
	<-time.After(time.Until(p.began.Add(idleAfter)))
	got, err := p.resident()
	if err != nil {
		t.Fatalf("memory of %s: got %v, want its size", name, err)
	}
	t.Logf("%s: %.1f MB resident after %s, started in %s", name, float64(got)/1e6, time.Since(p.began).Round(time.Second), p.took)
	if got >= idleMemory {
		t.Errorf("memory of idle %s: got %.1f MB, want less than %.0f MB", name, float64(got)/1e6, idleMemory/1e6)
	}
}

// build makes the programs as make build does.
func build(t *testing.T, names ...string) (dir string) {
	t.Helper()
	dir = t.TempDir()
	args := []string{"build", "-trimpath", "-o", dir + "/"}
	for _, name := range names {
		args = append(args, "holdfast/cmd/"+name)
	}
	cmd := exec.CommandContext(t.Context(), "go", args...)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("go %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return dir
}

// openSale opens a sale with n candidates, P0000 and on, in that Redis.
func openSale(t *testing.T, addr string, n int) {
	t.Helper()
	rdb := admission.NewClient(admission.ClientConfig{Addr: addr, Pool: 4})
	defer rdb.Close()
	keys, err := admission.NewKeys(admission.DefaultPrefix)
	if err != nil {
		t.Fatal(err)
	}
	gate, err := admission.New(rdb, admission.Options{Keys: keys, Log: slog.New(slog.DiscardHandler), Registerer: prometheus.NewRegistry()})
	if err != nil {
		t.Fatal(err)
	}
	list := make([]booking.Candidate, n)
	for i := range list {
		list[i] = booking.Candidate{Code: fmt.Sprintf("P%04d", i), Email: "x@example.org"}
	}
	_, applied := gate.ApplySale(t.Context(), booking.Sale{
		Name: "demo", Currency: "BDT", Cap: n, Hold: 10 * time.Minute, Levels: []booking.Level{{ID: "N1", Name: "One", Cap: n, Fee: 150000}},
	}, booking.NewEpoch(time.Now()), false)
	if err := errors.Join(applied, gate.AddCandidates(t.Context(), list), gate.Open(t.Context())); err != nil {
		t.Fatal(err)
	}
}

// The programs that ship start in under a second and need under 60 MB when they have
// worked and are idle; they say their version and what is missing; they end in order.
func TestPrograms_StartAtOnceStaySmallAndEndInOrder(t *testing.T) {
	if _, err := os.Stat("/proc/self/status"); err != nil {
		t.Skip("MEMORY NOT MEASURED: there is no /proc")
	}
	const bookings, clients = 200, 32
	bin := build(t, "api", "worker")
	pair, endpoint := testenv.Pair(t), account(t)
	openSale(t, pair.Primary.Addr(), bookings)
	gateway, err := mockgateway.New(mockgateway.Options{GrantsPerHour: -1})
	if err != nil {
		t.Fatal(err)
	}
	served := httptest.NewServer(gateway)
	t.Cleanup(func() { gateway.HangUp(); served.Close(); gateway.Close() })

	addr, admin, workerAdmin := testenv.FreeAddr(t), testenv.FreeAddr(t), testenv.FreeAddr(t)
	shared := map[string]string{
		"HOLDFAST_STORE": "dynamodb", "HOLDFAST_STORE_TABLE": table, "HOLDFAST_QUEUE": "sqs", "HOLDFAST_QUEUE_NAME": queueName,
		"HOLDFAST_AWS_REGION": testenv.Region, "HOLDFAST_AWS_ENDPOINT": endpoint, "HOLDFAST_DATA": "/nonexistent",
		"HOLDFAST_ADMIN_ADDR": workerAdmin,
	}
	env := maps.Clone(shared)
	maps.Copy(env, map[string]string{
		"HOLDFAST_ADDR": addr, "HOLDFAST_ADMIN_ADDR": admin, "HOLDFAST_PUBLIC_URL": "http://" + addr, "HOLDFAST_LINGER": "0s",
		"HOLDFAST_REQUEST_BUDGET": "14s", "HOLDFAST_ENQUEUE_BUDGET": "6s", // the emulator is no AWS
		"HOLDFAST_REDIS_ADDR": pair.Primary.Addr(), "HOLDFAST_OBJECTS": "s3", "HOLDFAST_OBJECTS_BUCKET": bucket,
		"HOLDFAST_MAIL": "ses", "HOLDFAST_MAIL_FROM": from, "HOLDFAST_PAGES": "false",
		"HOLDFAST_SEAL_KEY_REF": "ssm:/holdfast/seal-key", "HOLDFAST_GATEWAY_URL": served.URL + mockgateway.BasePath,
		"HOLDFAST_GATEWAY_APP_KEY": "k", "HOLDFAST_GATEWAY_APP_SECRET_REF": "secretsmanager:holdfast/gateway#app_secret",
		"HOLDFAST_GATEWAY_USERNAME": "u", "HOLDFAST_GATEWAY_PASSWORD_REF": "secretsmanager:holdfast/gateway#password",
	})

	// The machine has other work: the best of some starts is the program's own time.
	start := func(name string, env map[string]string) *program {
		t.Helper()
		path := filepath.Join(bin, name)
		var best time.Duration
		for range 5 {
			p := startProgram(t, path, env)
			if p.took < startsWithin {
				return p
			}
			if best == 0 || p.took < best {
				best = p.took
			}
			p.stop(t)
		}
		t.Errorf("start of %s: got %s, want less than %s", name, best, startsWithin)
		return startProgram(t, path, env)
	}
	api, worker := start("api", env), start("worker", shared)

	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 64}, Timeout: 30 * time.Second}
	t.Cleanup(client.CloseIdleConnections)
	get := func(url string) (int, string) {
		t.Helper()
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := client.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		body, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		return resp.StatusCode, string(body)
	}
	if status, body := get("http://" + addr + "/health"); status != http.StatusOK || !strings.HasPrefix(body, `{"status":"ok","version":"`) {
		t.Errorf("/health: got %d %s, want 200 with the version", status, body)
	}
	if status, _ := get("http://" + addr + "/"); status != http.StatusNotFound {
		t.Errorf("/ with HOLDFAST_PAGES=false: got %d, want 404", status)
	}
	for _, base := range []string{admin, workerAdmin} {
		if status, body := get("http://" + base + "/ready"); status != http.StatusOK {
			t.Errorf("/ready: got %d %s, want 200", status, body)
		}
		if _, body := get("http://" + base + "/metrics"); !strings.Contains(body, "holdfast_build_info{") || !strings.Contains(body, `version="`) {
			t.Error("/metrics: got no holdfast_build_info with a version")
		}
	}

	// Work warms the pools.
	var bookers sync.WaitGroup
	codes := make(chan string)
	for range clients {
		bookers.Go(func() {
			for code := range codes {
				r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+addr+"/book",
					strings.NewReader(`{"code":"`+code+`","email":"x@example.org","level":"N1"}`))
				if err != nil {
					t.Error(err)
					continue
				}
				r.Header.Set("Content-Type", "application/json")
				resp, err := client.Do(r)
				if err != nil {
					t.Error(err)
					continue
				}
				body, _ := io.ReadAll(resp.Body)
				resp.Body.Close()
				if resp.StatusCode != http.StatusAccepted {
					t.Errorf("book %s: got %d %s, want 202", code, resp.StatusCode, body)
				}
			}
		})
	}
	for i := range bookings {
		codes <- fmt.Sprintf("P%04d", i)
	}
	close(codes)
	bookers.Wait()
	testenv.Eventually(t, func() error {
		_, body := get("http://" + workerAdmin + "/metrics")
		if want := fmt.Sprintf(`holdfast_worker_records_total{outcome="created"} %d`, bookings); !strings.Contains(body, want) {
			return fmt.Errorf("the worker's metrics do not say %s", want)
		}
		return nil
	})
	api.wantSmall(t, "api")
	worker.wantSmall(t, "worker")

	// What is missing is told, each thing once, and only there.
	pair.Primary.Kill()
	if status, body := get("http://" + admin + "/ready"); status != http.StatusServiceUnavailable ||
		!strings.Contains(body, "redis: ") || !strings.Contains(body, "; seat ledger: ") || strings.Contains(body, "queue: ") {
		t.Errorf("/ready without Redis: got %d %s, want 503 that names redis and seat ledger", status, body)
	}
	if status, _ := get("http://" + addr + "/health"); status != http.StatusOK {
		t.Errorf("/health without Redis: got %d, want 200: the process is fine", status)
	}
	api.stop(t)
	worker.stop(t)
}
