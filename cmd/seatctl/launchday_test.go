package main_test

import (
	"bytes"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"holdfast/examples"
	_ "holdfast/internal/sqlitedb" // registers the driver of the store's file
	"holdfast/internal/testenv"
)

func TestLaunchDay(t *testing.T) {
	t.Parallel()
	need(t, "bash", "curl")
	testenv.NeedServer(t)
	bin := build(t, "local", "seatctl")
	t.Run("NamesEveryCommandAndNoOther", func(t *testing.T) { commandsAreNamed(t, bin) })
	t.Run("EveryBlockRunsAsWritten", func(t *testing.T) {
		d := startDrill(t, bin)
		d.work(t, blocks(t, page(t, "docs/launch-day.md")))
	})
}

// drill is the page being worked through, against a local profile.
type drill struct {
	dir, data     string
	env           []string
	settings      string // the page's first block, which every terminal begins with
	base, gateway string

	bookings []booked // of launch day
}

// booked is what a candidate was told.
type booked struct {
	PaymentURL string `json:"payment_url"`
	PaymentID  string `json:"payment_id"`
	BookingURL string `json:"booking_url"`
}

// hold is short, so that what is abandoned lapses while the test waits; lost is the
// outage of the page.
const (
	hold = 8 * time.Second
	lost = 2 * time.Second
)

const saleFile = `name: demo-2026
currency: BDT
cap: 12
hold: %s
levels:
  - {id: N1, name: "N1 Advanced", cap: 3, fee: "1500.00"}
  - {id: N2, name: "N2 Upper intermediate", cap: 12, fee: "1400.00"}
`

func startDrill(t *testing.T, bin string) *drill {
	t.Helper()
	d := &drill{dir: t.TempDir(), data: t.TempDir()}
	d.write(t, "sale.yaml", fmt.Sprintf(saleFile, hold))
	// One candidate of the demo's is gone, and one has another address.
	list := bytes.TrimSpace(examples.Candidates)
	d.write(t, "candidates.csv", mended(string(list[:bytes.LastIndexByte(list, '\n')+1]), 10))

	addresses := startLocal(t, filepath.Join(bin, "local"), "-closed", "-data", d.data, "-addr", "127.0.0.1:0")
	d.base, d.gateway = strings.TrimSuffix(addresses[0], "/"), strings.TrimSuffix(addresses[2], "/mock/payments")
	d.env = []string{
		"PATH=" + bin + string(os.PathListSeparator) + os.Getenv("PATH"), "HOME=" + d.dir,
		"HOLDFAST_ENV=" + filepath.Join(d.data, "holdfast.env"), "LOST=" + lost.String(),
	}
	d.notifyLater(t)
	return d
}

// notifyLater has the gateway's notifications come a moment after the payer, as they do.
// One that is there while the payer's return is still worked on stays open for a while.
func (d *drill) notifyLater(t *testing.T) {
	t.Helper()
	_, text := d.do(t, http.MethodGet, d.gateway+"/mock/settings", "", "")
	var settings map[string]any
	if err := json.Unmarshal(text, &settings); err != nil {
		t.Fatalf("settings: %s: %v", text, err)
	}
	settings["faults"] = []map[string]any{{"name": "notification_late", "delay_ms": 1000, "probability": 1}}
	text, err := json.Marshal(settings)
	if err != nil {
		t.Fatal(err)
	}
	if code, answer := d.do(t, http.MethodPut, d.gateway+"/mock/settings", "application/json", string(text)); code/100 != 2 {
		t.Fatalf("settings: got %d %s, want 2xx", code, answer)
	}
}

func (d *drill) write(t *testing.T, name, text string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(d.dir, name), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// mended gives a candidate of the file another address.
func mended(list string, i int) string {
	return strings.Replace(list, email(i), "mended."+email(i), 1)
}

// startLocal starts the local profile, and returns its addresses when it serves. It is
// ended as Ctrl-C ends it, with the test.
func startLocal(t *testing.T, program string, args ...string) []string {
	t.Helper()
	var out, said output
	cmd := exec.CommandContext(context.Background(), program, args...) // a test's context ends before its clean-up
	cmd.Stdout, cmd.Stderr = &out, &said
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	exited := make(chan error, 1)
	go func() { exited <- cmd.Wait() }()
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGINT) // gone already is told by its end
		select {
		case err := <-exited:
			if err != nil {
				t.Errorf("the local profile's end: got %v, want none", err)
			}
		case <-time.After(time.Minute):
			_ = cmd.Process.Kill()
			t.Errorf("the local profile's end: got none within a minute of being told to, want one (%v)", <-exited)
		}
		if t.Failed() {
			t.Logf("the local profile said:\n%s", said.String())
		}
	})
	testenv.Eventually(t, func() error {
		if n := strings.Count(out.String(), "\n"); n < 4 {
			return fmt.Errorf("it has printed %d addresses, want 4", n)
		}
		return nil
	})
	return strings.Fields(out.String())
}

// output is what a program has said so far.
type output struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.Write(p)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.String()
}

// work runs every block, and before some of them what people do meanwhile.
func (d *drill) work(t *testing.T, list []block) {
	t.Helper()
	before := map[string]func(*testing.T){
		"rehearsal": d.rehearse, "hour": d.schedule, "mended": d.mend, "close": d.payOtherwise,
		"evening": d.lapse, "by-hand": d.nameTransaction,
	}
	if len(list) == 0 || list[0].name != "settings" {
		t.Fatal("the page's first block: want the settings, which every terminal begins with")
	}
	for _, c := range list[0].commands {
		d.settings += c.text + "\n"
	}
	for _, b := range list[1:] {
		if do, ok := before[b.name]; ok {
			began := time.Now()
			do(t)
			delete(before, b.name)
			t.Logf("before %-8s %4.1f s", b.name, time.Since(began).Seconds())
		}
		d.block(t, b)
	}
	for name := range before {
		t.Errorf("the page has no block %q, before which something is to happen", name)
	}
}

// block runs its lines one by one, so that each ends as the page says.
func (d *drill) block(t *testing.T, b block) {
	t.Helper()
	began := time.Now()
	set, said := d.settings, ""
	for _, c := range b.commands {
		if assignment.MatchString(c.text) {
			set += c.text + "\n"
			continue
		}
		text, code := d.run(t, set, c)
		said += text
		questions := strings.Count(text, "Go on? [y/N]") + strings.Count(text, "Type the sale's name")
		switch {
		case code != c.exit:
			t.Fatalf("docs/launch-day.md:%d: %s\ngot exit status %d, want %d; it said:\n%s", c.line, c.text, code, c.exit, text)
		case questions != len(c.answers):
			t.Fatalf("docs/launch-day.md:%d: %s\ngot %d questions, want %d; it said:\n%s", c.line, c.text, questions, len(c.answers), text)
		}
	}
	for _, want := range b.want {
		if !says(said, want) {
			t.Fatalf("block %s does not say %q; it said:\n%s", b.name, want, said)
		}
	}
	t.Logf("%-15s %4.1f s", b.name, time.Since(began).Seconds())
}

// run runs one line in a terminal of its own, and answers what it asks.
func (d *drill) run(t *testing.T, set string, c command) (said string, code int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var out output
	cmd := exec.CommandContext(ctx, "bash", "-euo", "pipefail", "-c", set+c.text)
	cmd.Dir, cmd.Env, cmd.Stdout, cmd.Stderr = d.dir, d.env, &out, &out
	cmd.Stdin = strings.NewReader(strings.Join(append(c.answers, ""), "\n"))
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if c.interrupt {
		d.opening(t, &out)
		if err := syscall.Kill(-cmd.Process.Pid, syscall.SIGINT); err != nil {
			t.Fatalf("%s: Ctrl-C: %v", c.text, err)
		}
	}
	err := cmd.Wait()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatalf("%s: %v, it said:\n%s", c.text, err, out.String())
	}
	return out.String(), cmd.ProcessState.ExitCode()
}

// opening is the minute itself: booking opens by the ledger's clock, the rush comes, some
// pay, some give up, and the watch shows it.
func (d *drill) opening(t *testing.T, watch *output) {
	t.Helper()
	shown := func(want string) {
		testenv.Eventually(t, func() error {
			if !says(watch.String(), want) {
				return fmt.Errorf("the watch does not show %q:\n%s", want, watch.String())
			}
			return nil
		})
	}
	if got := d.book(t, 1, "N2", http.StatusServiceUnavailable); got != (booked{}) {
		t.Fatalf("before the time: got %+v, want that booking is not open", got)
	}
	shown("sale demo-2026 OPEN")
	var rush sync.WaitGroup
	codes := make(chan int, 5)
	for i := 2; i <= 6; i++ {
		rush.Go(func() { codes <- d.post(t, i, "N1", nil) })
	}
	rush.Wait()
	close(codes)
	got := map[int]int{}
	for code := range codes {
		got[code]++
	}
	if got[http.StatusAccepted] != 3 || got[http.StatusConflict] != 2 {
		t.Fatalf("five candidates for the three seats of N1: got %v, want three 202 and two 409", got)
	}
	d.bookings = []booked{d.book(t, 1, "N2", http.StatusAccepted), d.book(t, 7, "N2", http.StatusAccepted), d.book(t, 8, "N2", http.StatusAccepted)}
	d.pay(t, d.bookings[0], "success")
	d.pay(t, d.bookings[1], "cancel")
	shown("N1 [########################################] 3 / 3 0 left")
	d.mailed(t, 1)
}

// rehearse is the day before's: two test candidates book and pay.
func (d *drill) rehearse(t *testing.T) {
	t.Helper()
	for i := 1; i <= 2; i++ {
		d.pay(t, d.book(t, i, "N1", http.StatusAccepted), "success")
	}
	d.mailed(t, 1)
	d.mailed(t, 2)
	testenv.Eventually(t, func() error {
		_, text := d.do(t, http.MethodGet, d.gateway+"/mock/payments", "", "")
		var list []struct {
			Transactions []struct{ Notification struct{ Done bool } }
		}
		if err := json.Unmarshal(text, &list); err != nil {
			return fmt.Errorf("payments: %s: %w", text, err)
		}
		done := 0
		for _, p := range list {
			for _, t := range p.Transactions {
				if t.Notification.Done {
					done++
				}
			}
		}
		if done != 2 {
			return fmt.Errorf("notifications that are delivered: got %d, want 2", done)
		}
		return nil
	})
	testenv.Eventually(t, func() error {
		if text := d.seatctl(t, "notifications", "list"); !says(text, "no notification is open") {
			return errors.New(text)
		}
		return nil
	})
}

// schedule has booking open in a few seconds, told in the page's own zone.
func (d *drill) schedule(t *testing.T) {
	t.Helper()
	at := time.Now().Add(10 * time.Second).In(time.FixedZone("Dhaka", 6*60*60))
	d.env = append(d.env, "OPEN_AT="+at.Format(time.RFC3339))
}

func (d *drill) mend(t *testing.T) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(d.dir, "candidates.csv"))
	if err != nil {
		t.Fatal(err)
	}
	d.write(t, "candidates.csv", mended(string(text), 11))
}

// payOtherwise has a candidate pay another amount than was ordered, which the gateway
// will not give back.
func (d *drill) payOtherwise(t *testing.T) {
	t.Helper()
	b := d.book(t, 9, "N2", http.StatusAccepted)
	d.bookings = append(d.bookings, b)
	faults := fmt.Sprintf(`{"paymentID":%q,"faults":[{"name":"wrong_amount","value":"1.00"},{"name":"refund_refused","times":-1},{"name":"notification_late","delay_ms":1000}]}`, b.PaymentID)
	if code, text := d.do(t, http.MethodPut, d.gateway+"/mock/faults", "application/json", faults); code/100 != 2 {
		t.Fatalf("faults: got %d %s, want 2xx", code, text)
	}
	d.pay(t, b, "success")
}

// lapse waits until nobody can pay any more.
func (d *drill) lapse(t *testing.T) {
	t.Helper()
	testenv.Eventually(t, func() error {
		for _, b := range d.bookings {
			_, text := d.do(t, http.MethodGet, b.BookingURL, "", "")
			var is struct{ State string }
			if err := json.Unmarshal(text, &is); err != nil {
				return fmt.Errorf("a booking: %s: %w", text, err)
			}
			if !slices.Contains([]string{"paid", "released", "refund_due"}, is.State) {
				return fmt.Errorf("a booking: got %s, want it paid, released or refund_due", text)
			}
		}
		if text := d.seatctl(t, "bookings", "export", "--state", "HELD"); strings.Count(text, "\n") > 1 {
			return fmt.Errorf("some are held:\n%s", text)
		}
		return nil
	})
}

// nameTransaction reads the refund's transaction off the list, as the page has one do.
// Hours have passed since it was last sent, so that the gateway's word on it counts.
func (d *drill) nameTransaction(t *testing.T) {
	t.Helper()
	var list struct {
		Refunds []struct{ Transaction string }
	}
	text := d.seatctl(t, "refunds", "list", "--json")
	if err := json.Unmarshal([]byte(text), &list); err != nil || len(list.Refunds) != 1 {
		t.Fatalf("refunds: got %s, %v, want one", text, err)
	}
	d.env = append(d.env, "TRANSACTION="+list.Refunds[0].Transaction)
	db, err := sql.Open("sqlite", "file:"+filepath.Join(d.data, "store.db")+"?_pragma=busy_timeout(5000)")
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	if _, err := db.ExecContext(t.Context(), `UPDATE refunds SET body = json_set(body, '$.sent_at', ?)`,
		time.Now().Add(-2*time.Hour).UTC().Format(time.RFC3339)); err != nil {
		t.Fatal(err)
	}
}

// mailed waits until a candidate's booking is paid and all is done about it.
func (d *drill) mailed(t *testing.T, i int) {
	t.Helper()
	testenv.Eventually(t, func() error {
		if text := d.seatctl(t, "bookings", "show", code(i)); !says(text, "seat paid, ") || !says(text, "mail sent sent") {
			return errors.New(text)
		}
		return nil
	})
}

// seatctl runs one command beside the page.
func (d *drill) seatctl(t *testing.T, args ...string) string {
	t.Helper()
	text, _ := d.run(t, d.settings, command{text: "seatctl " + strings.Join(args, " ")})
	return text
}

// code and email are of the demo's candidate i.
func code(i int) string  { return fmt.Sprintf("AB-%d", 100_000+i) }
func email(i int) string { return fmt.Sprintf("candidate%d@example.org", 100_000+i) }

// book has a candidate of the demo's ask for a seat, and wants that answer.
func (d *drill) book(t *testing.T, i int, level string, want int) (b booked) {
	t.Helper()
	if got := d.post(t, i, level, &b); got != want {
		t.Fatalf("%s for %s: got %d, want %d", code(i), level, got, want)
	}
	return b
}

func (d *drill) post(t *testing.T, i int, level string, b *booked) int {
	body := fmt.Sprintf(`{"code":%q,"email":%q,"level":%q}`, code(i), email(i), level)
	status, text := d.do(t, http.MethodPost, d.base+"/book", "application/json", body)
	if b != nil {
		if err := json.Unmarshal(text, b); err != nil {
			t.Errorf("%s: %v", text, err)
		}
	}
	return status
}

// pay presses a button of the gateway's page, and follows the browser home.
func (d *drill) pay(t *testing.T, b booked, outcome string) {
	t.Helper()
	if got, text := d.do(t, http.MethodPost, b.PaymentURL, "application/x-www-form-urlencoded", url.Values{"outcome": {outcome}}.Encode()); got != http.StatusOK {
		t.Fatalf("pay: got %d %s, want 200", got, text)
	}
}

func (d *drill) do(t *testing.T, method, target, contentType, body string) (int, []byte) {
	r, err := http.NewRequestWithContext(t.Context(), method, target, strings.NewReader(body))
	if err != nil {
		t.Error(err)
		return 0, nil
	}
	r.Header.Set("Content-Type", contentType)
	hc := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := hc.Do(r)
	if err != nil {
		t.Error(err)
		return 0, nil
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Error(err)
	}
	return resp.StatusCode, text
}
