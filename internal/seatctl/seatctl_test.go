package seatctl_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/redis/go-redis/v9"
	"go.uber.org/goleak"

	"holdfast/examples"
	"holdfast/internal/app"
	"holdfast/internal/app/local"
	"holdfast/internal/config"
	queue "holdfast/internal/queue/sqlite"
	"holdfast/internal/saleops"
	"holdfast/internal/seatctl"
	"holdfast/internal/testenv"
)

func TestMain(m *testing.M) {
	testenv.BeProgram(testenv.Programs{"local": local.Run, "seatctl": command})
	goleak.VerifyTestMain(m)
}

// command is seatctl as a program, but for its exit code: 0 or 1.
func command(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	if code := seatctl.Run(ctx, app.Local(), args, os.Getenv, strings.NewReader(""), stdout, stderr); code != 0 {
		return fmt.Errorf("exit status %d", code)
	}
	return nil
}

// deployment is a running local profile, as its operator reaches it.
type deployment struct {
	*testenv.Program
	base, data string
	rdb        *redis.Client
}

func start(t *testing.T, env map[string]string) *deployment {
	t.Helper()
	d := &deployment{data: t.TempDir()}
	addr := testenv.FreeAddr(t)
	d.Program = testenv.StartProgram(t, "local", []string{"-data", d.data, "-addr", addr}, env)
	d.Lines(t, 4)
	d.base = "http://" + addr
	getenv, err := config.ReadEnv(filepath.Join(d.data, config.EnvFile))
	if err != nil {
		t.Fatal(err)
	}
	d.rdb = redis.NewClient(&redis.Options{Addr: getenv("HOLDFAST_REDIS_ADDR"), Protocol: 2})
	t.Cleanup(func() { d.rdb.Close() })
	return d
}

func (d *deployment) do(t *testing.T, method, target, contentType, body string, want int) (http.Header, []byte) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, target, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Content-Type", contentType)
	hc := &http.Client{
		Transport:     &http.Transport{DisableKeepAlives: true},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	resp, err := hc.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	got, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != want {
		t.Fatalf("%s %s: got %d %s, %v, want %d", method, target, resp.StatusCode, got, err, want)
	}
	return resp.Header, got
}

// book gives a candidate of the demo sale a seat, and returns where to pay.
func (d *deployment) book(t *testing.T, i int) string {
	t.Helper()
	body := fmt.Sprintf(`{"code":"AB-%d","email":"candidate%d@example.org","level":"N1"}`, i, i)
	_, got := d.do(t, http.MethodPost, d.base+"/book", "application/json", body, http.StatusAccepted)
	var a struct {
		PaymentURL string `json:"payment_url"`
	}
	if err := json.Unmarshal(got, &a); err != nil {
		t.Fatalf("%s: %v", got, err)
	}
	return a.PaymentURL
}

func (d *deployment) pay(t *testing.T, paymentURL string) {
	t.Helper()
	header, _ := d.do(t, http.MethodPost, paymentURL, "application/x-www-form-urlencoded", url.Values{"outcome": {"success"}}.Encode(), http.StatusSeeOther)
	d.do(t, http.MethodGet, header.Get("Location"), "", "", http.StatusSeeOther)
}

// result is what a command did.
type result struct {
	code           int
	stdout, stderr string
}

func run(t *testing.T, stdin string, args ...string) result {
	t.Helper()
	var out, errs bytes.Buffer
	code := seatctl.Run(t.Context(), app.Local(), args, func(string) string { return "" }, strings.NewReader(stdin), &out, &errs)
	return result{code, out.String(), errs.String()}
}

func (r result) want(t *testing.T, code int, texts ...string) {
	t.Helper()
	if r.code != code {
		t.Errorf("exit code: got %d, want %d", r.code, code)
	}
	for _, text := range texts {
		if !strings.Contains(r.stdout+r.stderr, text) {
			t.Errorf("it does not say %q", text)
		}
	}
	if t.Failed() {
		t.Fatalf("it said:\n%s\n%s", r.stdout, r.stderr)
	}
}

func saleFile(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "sale.yaml")
	if err := os.WriteFile(path, examples.Sale, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// A running sale is audited, damaged, audited, lost, rebuilt, audited.
func TestSeatctl_AgainstARunningSale(t *testing.T) {
	for name, env := range map[string]func(t *testing.T) map[string]string{
		"OwnPair":        func(t *testing.T) map[string]string { testenv.NeedServer(t); return nil },
		"InProcessRedis": func(t *testing.T) map[string]string { return map[string]string{"PATH": t.TempDir()} },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			walk(t, start(t, env(t)))
		})
	}
}

func walk(t *testing.T, d *deployment) {
	info, err := os.Stat(filepath.Join(d.data, config.EnvFile))
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Fatalf("%s: got mode %v, %v, want 0600", config.EnvFile, info.Mode(), err)
	}
	d.pay(t, d.book(t, 100001))
	d.book(t, 100002)

	run(t, "", "audit", "--gateway", "--data", d.data).want(t, 0,
		"sale demo-2026", "all 2/20700", "1 completed, 0 without a clear answer", "every rule that was seen holds")
	var report saleops.Report
	got := run(t, "", "--data", d.data, "audit", "--json")
	if err := json.Unmarshal([]byte(got.stdout), &report); err != nil || report.Broken() || len(report.Rules) != 13 || got.code != 0 {
		t.Fatalf("audit --json: got %d %+v, %v, want 13 rules that hold", got.code, got, err)
	}

	if err := d.rdb.Incr(t.Context(), "{sale}:adm:total").Err(); err != nil {
		t.Fatal(err)
	}
	run(t, "", "audit", "--data", d.data).want(t, 1, "counters", "BROKEN", "all levels: the counter says 3, there are 2 rows")
	if err := d.rdb.Decr(t.Context(), "{sale}:adm:total").Err(); err != nil {
		t.Fatal(err)
	}

	sale := saleFile(t)
	rebuild := func(stdin string, args ...string) result {
		return run(t, stdin, append([]string{"rebuild", "--data", d.data, "--reason", "drill"}, args...)...)
	}
	rebuild("", "--confirm", "demo-2026").want(t, 1, "is not lost")
	if err := d.rdb.FlushAll(t.Context()).Err(); err != nil {
		t.Fatal(err)
	}
	run(t, "", "audit", "--data", d.data).want(t, 2, "no epoch")
	rebuild("").want(t, 2, "give --sale FILE")
	rebuild("", "--sale", sale).want(t, 1, "was not typed")
	rebuild("", "--sale", sale, "--confirm", "demo-2025").want(t, 1, "nothing was changed")

	// A message on its way is a seat that the store does not know yet.
	q, err := queue.Open(t.Context(), filepath.Join(d.data, "queue.db"), queue.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer q.Close()
	if err := q.Send(t.Context(), "0000", "no-record", []byte("{}")); err != nil {
		t.Fatal(err)
	}
	rebuild("", "--sale", sale, "--confirm", "demo-2026").want(t, 1, "queue and dead letters are not empty")
	if _, err := d.rdb.Get(t.Context(), "{sale}:adm:epoch").Result(); err != redis.Nil { //nolint:errorlint // the client's own sentinel
		t.Fatalf("epoch after a refused rebuild: got %v, want none", err)
	}
	testenv.Eventually(t, func() error { return dropMessages(t.Context(), q) })

	rebuild("demo-2026\n", "--sale", sale).want(t, 0, "Type the sale's name", "rebuilt sale demo-2026", ": drill", "2: 1 paid, 1 held", "Booking is closed")
	rebuild("", "--confirm", "demo-2026").want(t, 1, "is not lost", "nothing was changed")
	// As a run leaves it whose last step was not acknowledged.
	if err := d.rdb.Set(t.Context(), "{sale}:adm:rebuild", "token", 0).Err(); err != nil {
		t.Fatal(err)
	}
	rebuild("", "--confirm", "demo-2026").want(t, 0, "rebuilt sale demo-2026", "2: 1 paid, 1 held", "An earlier run", "now all of it is acknowledged")
	rebuild("", "--confirm", "demo-2026").want(t, 1, "is not lost", "nothing was changed")
	run(t, "", "audit", "--data", d.data).want(t, 0, "closed, read", "all 2/20700", "every rule that was seen holds")

	if code := d.Stop(t, syscall.SIGTERM); code != 0 {
		t.Errorf("the run ended with %d, want 0", code)
	}
	if _, err := os.Stat(filepath.Join(d.data, config.EnvFile)); !os.IsNotExist(err) {
		t.Errorf("%s after the run's end: got %v, want that it is gone", config.EnvFile, err)
	}
	run(t, "", "audit", "--data", d.data).want(t, 2, "is cmd/local running on this folder")
}

// dropMessages takes what nobody can read out of the queue, once the worker has
// left it.
func dropMessages(ctx context.Context, q *queue.Queue) error {
	if err := q.Recover(ctx); err != nil {
		return err
	}
	list, err := q.Receive(ctx, 1, 0)
	if err != nil {
		return err
	}
	for _, m := range list {
		if _, err := q.Delete(ctx, []string{m.Receipt}); err != nil {
			return err
		}
	}
	stats, err := q.Stats(ctx)
	if n := stats.Waiting + stats.InFlight + stats.Dead; err == nil && n > 0 {
		err = fmt.Errorf("%d messages are left", n)
	}
	return err
}

func TestSeatctl_HelpHasAnExampleAndExitCodes(t *testing.T) {
	t.Parallel()
	all, err := seatctl.Commands()
	if err != nil || len(all) < 10 {
		t.Fatalf("commands: got %q, %v, want ten at least", all, err)
	}
	for _, command := range all {
		run(t, "", append(strings.Fields(command), "--help")...).want(t, 0, "--json", "Example:", "Exit status: 0 ", "seatctl "+command)
	}
	run(t, "", "--help").want(t, 0, "Example:", "Exit status: 0 ")
}

func TestSeatctl_SaysWhyItCannotRun(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, config.EnvFile), []byte("nonsense\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		args []string
		want string
	}{
		"NoCommand":     {nil, "expected one of"},
		"WrongCommand":  {[]string{"audti"}, "audti"},
		"WrongFlag":     {[]string{"audit", "--gatway"}, "gatway"},
		"NoReason":      {[]string{"rebuild"}, "--reason"},
		"BlankReason":   {[]string{"rebuild", "--reason", " "}, "say why"},
		"NoFolder":      {[]string{"audit", "--data", filepath.Join(dir, "none")}, "holdfast.env"},
		"WrongFile":     {[]string{"audit", "--data", dir}, "want NAME=value"},
		"NoGateway":     {[]string{"audit", "--gateway"}, "HOLDFAST_GATEWAY_URL: required"},
		"NoDeployment":  {[]string{"audit"}, "data folder"},
		"RebuildNoData": {[]string{"rebuild", "--reason", "x"}, "HOLDFAST_GATEWAY_URL: required"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			run(t, "", c.args...).want(t, 2, c.want)
		})
	}
}
