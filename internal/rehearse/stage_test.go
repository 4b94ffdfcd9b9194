package rehearse_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"holdfast/internal/app"
	"holdfast/internal/booking"
	"holdfast/internal/mockgateway"
	"holdfast/internal/rehearse"
	"holdfast/internal/seatctl"
	"holdfast/internal/testenv"
)

const candidates = 600

func testSale() booking.Sale { return booking.Sale{Name: "stage-test"} }

const testSaleFile = `
title: "Stage"
currency: BDT
cap: 400
hold: 10m
levels:
  - {id: N1, name: "One", cap: 300, fee: "10.00"}
  - {id: N2, name: "Two", cap: 200, fee: "10.00"}
`

func runSeatctl(ctx context.Context, args []string, getenv func(string) string, stdin io.Reader, stdout, stderr io.Writer) int {
	return seatctl.Run(ctx, app.Local(), args, getenv, stdin, stdout, stderr)
}

func options(dir string, faults ...rehearse.Fault) rehearse.Options {
	return rehearse.Options{
		Seed: 1, Dir: dir, Faults: faults, Ctl: runSeatctl, Log: io.Discard, RushLatency: 2 * time.Millisecond,
	}.Complete()
}

// world is a stage and somebody who books there.
type world struct {
	*rehearse.Stage
	client *http.Client
	next   int // candidate who has not booked
}

func newWorld(t *testing.T, faults ...rehearse.Fault) *world {
	t.Helper()
	testenv.NeedServer(t)
	s, err := rehearse.StartLocal(t.Context(), options(t.TempDir(), faults...), testSale())
	if err != nil {
		t.Fatalf("StartLocal: got %v, want nil", err)
	}
	w := &world{Stage: s, client: &http.Client{
		Transport: &http.Transport{DisableKeepAlives: true}, Timeout: 20 * time.Second,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}
	t.Cleanup(func() {
		s.Close()
		if t.Failed() {
			for _, name := range []string{"api", "worker", "gateway"} {
				text, _ := os.ReadFile(filepath.Join(s.Logs, name+".log"))
				t.Logf("%s said:\n%s", name, text[max(0, len(text)-4000):])
			}
		}
	})
	return w
}

// open puts the sale into force by the operator's commands.
func (w *world) open(t *testing.T) {
	t.Helper()
	w.openAs(t, testSale().Name)
}

// openAs does so under another name.
func (w *world) openAs(t *testing.T, name string) {
	t.Helper()
	dir := t.TempDir()
	sale, list := filepath.Join(dir, "sale.yaml"), filepath.Join(dir, "candidates.csv")
	rows := "code,email\n"
	for i := range candidates {
		rows += fmt.Sprintf("%s,%s\n", code(i), email)
	}
	if err := errors.Join(os.WriteFile(sale, []byte("name: "+name+testSaleFile), 0o600), os.WriteFile(list, []byte(rows), 0o600)); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{
		{"sale", "apply", sale, "--yes"}, {"candidates", "load", list, "--yes"}, {"open", "--yes"},
	} {
		if out, said, code := w.Ctl(t.Context(), "", args...); code != 0 {
			t.Fatalf("seatctl %q: got exit status %d, want 0:\n%s%s", args, code, out, said)
		}
	}
}

const email = "candidate@example.org"

func code(i int) string { return fmt.Sprintf("AB-%06d", i) }

func (w *world) do(t *testing.T, method, target, contentType, body string) (int, http.Header, []byte, error) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, target, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Content-Type", contentType)
	resp, err := w.client.Do(r)
	if err != nil {
		return 0, nil, nil, err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	return resp.StatusCode, resp.Header, text, err
}

type answer struct {
	Error      string `json:"error"`
	PaymentURL string `json:"payment_url"`
	BookingURL string `json:"booking_url"`
	State      string `json:"state"`
}

// book has the next candidate ask for a seat.
func (w *world) book(t *testing.T) (status int, a answer, err error) {
	t.Helper()
	w.next++
	return w.bookAs(t, w.next)
}

func (w *world) bookAs(t *testing.T, candidate int) (status int, a answer, err error) {
	t.Helper()
	status, _, body, err := w.do(t, http.MethodPost, w.URL+"/book", "application/json", fmt.Sprintf(`{"code":%q,"email":%q,"level":"N1"}`, code(candidate), email))
	if err != nil {
		return 0, a, err
	}
	return status, a, json.Unmarshal(body, &a)
}

// wantSeat waits until the next candidate is admitted: a process that came back may need
// a moment.
func (w *world) wantSeat(t *testing.T) answer {
	t.Helper()
	w.next++
	var got answer
	testenv.Eventually(t, func() error {
		status, a, err := w.bookAs(t, w.next)
		if err == nil && status != http.StatusAccepted && (a.Error != "duplicate" || a.PaymentURL == "") {
			err = fmt.Errorf("book: got %d %+v, want a payment link", status, a)
		}
		got = a
		return err
	})
	return got
}

// pay pays on the payer's page and follows the browser home.
func (w *world) pay(t *testing.T, a answer) {
	t.Helper()
	status, header, body, err := w.do(t, http.MethodPost, a.PaymentURL, "application/x-www-form-urlencoded", url.Values{"outcome": {"success"}}.Encode())
	if err != nil || status != http.StatusSeeOther {
		t.Fatalf("pay: got %d %s, %v, want 303", status, body, err)
	}
	status, header, body, err = w.do(t, http.MethodGet, header.Get("Location"), "", "")
	if err != nil || status != http.StatusSeeOther || !strings.HasPrefix(header.Get("Location"), w.URL+"/result?booking=") {
		t.Fatalf("callback: got %d to %q, %s, %v, want 303 to the result", status, header.Get("Location"), body, err)
	}
}

func (w *world) wantState(t *testing.T, a answer, want string) {
	t.Helper()
	testenv.Eventually(t, func() error {
		_, _, body, err := w.do(t, http.MethodGet, a.BookingURL, "", "")
		if err != nil {
			return err
		}
		var got answer
		if err := json.Unmarshal(body, &got); err != nil {
			return fmt.Errorf("booking %s: %w", body, err)
		}
		if got.State != want {
			return fmt.Errorf("booking: got %s, want state %s", body, want)
		}
		return nil
	})
}

// wantSample waits for a sample that fits.
func (w *world) wantSample(t *testing.T, fits func(s rehearse.Sample) error) {
	t.Helper()
	testenv.Eventually(t, func() error {
		s, err := w.Sample(t.Context())
		if err != nil {
			return err
		}
		return fits(s)
	})
}

func (w *world) breakIt(t *testing.T, f rehearse.Fault) (heal func()) {
	t.Helper()
	mend, err := w.Break(t.Context(), f)
	if err != nil {
		t.Fatalf("Break(%s): got %v, want nil", f, err)
	}
	return func() {
		t.Helper()
		if err := mend(t.Context()); err != nil {
			t.Fatalf("heal %s: got %v, want nil", f, err)
		}
	}
}

// processes are this process's children, and what they were started as.
func processes(t *testing.T, parent int) map[int]string {
	t.Helper()
	tasks, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", parent))
	if err != nil {
		t.Fatal(err)
	}
	found := map[int]string{}
	for _, task := range tasks {
		list, err := os.ReadFile(task)
		if err != nil {
			continue // the thread has ended
		}
		for _, field := range strings.Fields(string(list)) {
			pid, err := strconv.Atoi(field)
			if err != nil {
				t.Fatal(err)
			}
			line, err := os.ReadFile("/proc/" + field + "/cmdline")
			if err == nil {
				found[pid] = strings.ReplaceAll(string(line), "\x00", " ")
			}
		}
	}
	return found
}

// running tells whether there is such a process that nobody has ended.
func running(pid int) bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	return err == nil && !strings.Contains(string(stat), ") Z ")
}

// On Linux only, because the pids of the children are.
func needProc(t *testing.T) {
	t.Helper()
	if _, err := os.Stat("/proc/self/stat"); err != nil {
		t.Skip("no /proc on this system")
	}
}

func TestStage_SellsAndStaysWholeThroughEveryFault(t *testing.T) {
	needProc(t)
	// What is set for another deployment must not reach the parts: with it they would
	// not start.
	t.Setenv("HOLDFAST_STORE", "dynamodb")
	w := newWorld(t, rehearse.Faults()...)
	w.open(t)
	paid := w.wantSeat(t)
	w.pay(t, paid)
	w.wantState(t, paid, "paid")
	held := w.wantSeat(t)

	t.Run("Sample", func(t *testing.T) {
		w.wantSample(t, func(s rehearse.Sample) error {
			if diff := cmp.Diff(map[string]int{"N1": 298, "N2": 200}, s.Left); diff != "" {
				return fmt.Errorf("Left (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(map[string]int{"paid": 1, "held": 1}, s.Phases); diff != "" {
				return fmt.Errorf("Phases (-want +got):\n%s", diff)
			}
			if s.QueueDepth != 0 || s.QueueAge != 0 {
				return fmt.Errorf("queue: got %d messages of %g s, want none", s.QueueDepth, s.QueueAge)
			}
			return nil
		})
		s, err := w.Sample(t.Context())
		if err != nil {
			t.Fatalf("Sample: got %v, want nil", err)
		}
		all := []string{"api", "gateway", "load", "redis_primary", "redis_replica", "worker"}
		if diff := cmp.Diff(all, slices.Sorted(maps.Keys(s.CPU))); diff != "" {
			t.Errorf("processes in CPU (-want +got):\n%s", diff)
		}
		if s.RedisMemory < 100<<10 {
			t.Errorf("RedisMemory: got %d, want what a server needs", s.RedisMemory)
		}
		total := w.CPU()
		for _, name := range all {
			if total[name] <= 0 || total[name] > 600 {
				t.Errorf("CPU of %s: got %g s, want what a start costs", name, total[name])
			}
		}
	})
	t.Run("Replies", func(t *testing.T) {
		heal := w.breakIt(t, rehearse.FaultReplies)
		lost := 0
		for range 100 {
			if status, a, err := w.book(t); err == nil && status == http.StatusBadGateway && a.Error == "payment_unavailable" {
				lost++
				break
			}
		}
		if lost == 0 {
			t.Error("creates whose answer was lost: got none in 100 bookings, want one in ten")
		}
		heal()
		if got := w.settings(t); len(got.Faults) != 0 {
			t.Errorf("the gateway's faults after heal: got %+v, want none", got.Faults)
		}
	})
	t.Run("API", func(t *testing.T) {
		heal := w.breakIt(t, rehearse.FaultAPI)
		if status, _, _, err := w.do(t, http.MethodGet, w.URL+"/health", "", ""); err == nil {
			t.Errorf("health of a killed API: got %d, want no answer", status)
		}
		before := w.CPU()["api"]
		heal()
		w.wantSeat(t)
		w.wantState(t, paid, "paid")
		w.wantSample(t, func(rehearse.Sample) error { return nil })
		if after := w.CPU()["api"]; after <= before {
			t.Errorf("the API's processor time over a restart: got %g s after %g s, want more", after, before)
		}
	})
	t.Run("Worker", func(t *testing.T) {
		w.wantEmptyQueue(t) // what a killed worker had in hand is hidden for a minute
		heal := w.breakIt(t, rehearse.FaultWorker)
		w.wantSeat(t)
		if s, err := w.Sample(t.Context()); err != nil || s.QueueDepth == 0 {
			t.Errorf("Sample without a worker: got depth %d, %v, want the message that nobody takes", s.QueueDepth, err)
		}
		heal()
		w.wantEmptyQueue(t)
	})
	t.Run("Gateway", func(t *testing.T) {
		heal := w.breakIt(t, rehearse.FaultGateway)
		if status, a, err := w.book(t); err != nil || status != http.StatusBadGateway || a.Error != "payment_unavailable" {
			t.Errorf("book without a gateway: got %d %+v, %v, want 502 payment_unavailable", status, a, err)
		}
		// Settings that come while it is out count when it is back.
		if err := w.SlowGateway(t.Context(), 300*time.Millisecond); err != nil {
			t.Errorf("SlowGateway while it is out: got %v, want nil", err)
		}
		heal()
		want := mockgateway.Latencies{"all": {P50: 30 * time.Millisecond, P99: 300 * time.Millisecond}}
		if diff := cmp.Diff(want, w.settings(t).LatencyMS); diff != "" {
			t.Errorf("latency after heal (-want +got):\n%s", diff)
		}
		w.pay(t, held) // it has not forgotten
		w.wantState(t, held, "paid")
	})
	t.Run("Redis", func(t *testing.T) {
		heal := w.breakIt(t, rehearse.FaultRedis)
		if status, a, err := w.book(t); err != nil || status != http.StatusServiceUnavailable || a.Error != "try_again" {
			t.Errorf("book without a primary: got %d %+v, %v, want 503 try_again", status, a, err)
		}
		if _, err := w.Sample(t.Context()); err == nil {
			t.Error("Sample without a primary: got no error, want one")
		}
		heal()
		w.wantSeat(t) // so a replica acknowledges
		w.wantState(t, paid, "paid")
		w.wantSample(t, func(s rehearse.Sample) error {
			if _, ok := s.CPU["redis_replica"]; !ok {
				return errors.New("no replica is sampled")
			}
			return nil
		})
	})
	t.Run("Queue", func(t *testing.T) {
		heal := w.breakIt(t, rehearse.FaultQueue)
		if status, a, err := w.book(t); err != nil || status != http.StatusServiceUnavailable || a.Error != "try_again" {
			t.Errorf("book without a queue: got %d %+v, %v, want 503 try_again", status, a, err)
		}
		heal()
		w.wantSeat(t)
		w.wantEmptyQueue(t)
	})
	t.Run("Close", func(t *testing.T) {
		// A queue that is out is no reason to stay.
		w.breakIt(t, rehearse.FaultQueue)
		children := processes(t, os.Getpid())
		if len(children) != 5 {
			t.Errorf("processes of the stage: got %v, want five", children)
		}
		for range 2 {
			if err := w.Close(); err != nil {
				t.Errorf("Close: got %v, want nil", err)
			}
		}
		for pid, what := range children {
			if running(pid) {
				t.Errorf("process %d is there after Close: %s", pid, what)
			}
		}
	})
}

func (w *world) wantEmptyQueue(t *testing.T) {
	t.Helper()
	w.wantSample(t, func(s rehearse.Sample) error {
		if s.QueueDepth != 0 {
			return fmt.Errorf("queue: got %d messages, want none", s.QueueDepth)
		}
		return nil
	})
}

func (w *world) settings(t *testing.T) (s mockgateway.Settings) {
	t.Helper()
	_, _, body, err := w.do(t, http.MethodGet, w.Gateway+"/mock/settings", "", "")
	if err != nil {
		t.Fatalf("settings of the gateway: got %v, want nil", err)
	}
	if s, err = mockgateway.ParseSettings(body); err != nil {
		t.Fatalf("settings of the gateway: got %v, want nil", err)
	}
	return s
}

func TestStage_PlainRunTellsOfAPartThatEnds(t *testing.T) {
	t.Parallel()
	needProc(t)
	w := newWorld(t)
	for _, f := range []rehearse.Fault{rehearse.FaultRedis, rehearse.FaultGateway, "flood"} {
		if _, err := w.Break(t.Context(), f); err == nil {
			t.Errorf("Break(%s) of a stage without faults: got no error, want one", f)
		}
	}
	worker := 0
	for pid, what := range processes(t, os.Getpid()) {
		if strings.Contains(what, "part worker") && w.isOurs(t, pid) {
			worker = pid
		}
	}
	if worker == 0 {
		t.Fatal("no process is a worker")
	}
	if err := syscall.Kill(worker, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	testenv.Eventually(t, func() error {
		if running(worker) {
			return errors.New("the worker is there")
		}
		return nil
	})
	want := filepath.Join(w.Logs, "worker.log")
	if err := w.Close(); err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("Close after a worker's end: got %v, want an error that names %s", err, want)
	}
}

// isOurs tells a stage's process from one of a stage beside it, by its log.
func (w *world) isOurs(t *testing.T, pid int) bool {
	t.Helper()
	to, err := os.Readlink(fmt.Sprintf("/proc/%d/fd/2", pid))
	return err == nil && strings.HasPrefix(to, w.Logs)
}

func TestStartLocal_RefusesAnothersFolder(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "store.db"), []byte("of a sale"), 0o600); err != nil {
		t.Fatal(err)
	}
	if s, err := rehearse.StartLocal(t.Context(), options(dir), testSale()); err == nil {
		s.Close()
		t.Error("StartLocal in a folder with a store: got no error, want one")
	}
}

// orphansDir tells the re-executed test program to start a stage there and to wait to be
// killed.
const orphansDir = "REHEARSE_TEST_ORPHANS_DIR"

func beOrphaned(dir string) int {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if _, err := rehearse.StartLocal(ctx, options(dir), testSale()); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	fmt.Println("started")
	<-ctx.Done()
	return 1
}

func TestStage_DiesWithAKilledParent(t *testing.T) {
	t.Parallel()
	needProc(t)
	testenv.NeedServer(t)
	parent := exec.CommandContext(t.Context(), os.Args[0])
	parent.Env = append(os.Environ(), orphansDir+"="+t.TempDir())
	parent.Stderr = os.Stderr
	out, err := parent.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := parent.Start(); err != nil {
		t.Fatalf("start the parent: got %v, want nil", err)
	}
	if line, err := bufio.NewReader(out).ReadString('\n'); err != nil {
		t.Fatalf("the parent's line: got %q, %v, want that it has started", line, err)
	}
	children := processes(t, parent.Process.Pid)
	if len(children) != 5 {
		t.Errorf("processes of the stage: got %v, want five", children)
	}
	if err := parent.Process.Kill(); err != nil {
		t.Fatalf("kill the parent: got %v, want nil", err)
	}
	_ = parent.Wait() // it was killed
	testenv.Eventually(t, func() error {
		for pid, what := range children {
			if running(pid) {
				return fmt.Errorf("process %d outlives its parent: %s", pid, what)
			}
		}
		return nil
	})
}
