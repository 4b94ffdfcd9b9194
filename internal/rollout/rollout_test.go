// Package rollout_test replaces the API processes of a selling fleet one by one, as a
// deployment of a new version does, behind a real load balancer that keeps its
// connections to them alive. It is a test and nothing else: the programs are
// cmd/api, cmd/worker and HAProxy, on loopback, over one Redis pair, one data folder and
// one gateway, and they die with the test.
//
// It fails when an answer is lost. Real time passes: a roll-out is a race between the
// balancer's health checks and the process that ends.
package rollout_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"holdfast/internal/app"
	"holdfast/internal/booking"
	"holdfast/internal/config"
	"holdfast/internal/mockgateway"
	"holdfast/internal/saleops"
	"holdfast/internal/testenv"
)

func TestMain(m *testing.M) {
	// A process of this binary becomes the program that its arguments name.
	become := func(_ context.Context, args []string, _, _ io.Writer) error {
		return syscall.Exec(args[0], args, os.Environ())
	}
	testenv.BeProgram(testenv.Programs{"api": become, "worker": become, "haproxy": become})
	goleak.VerifyTestMain(m)
}

// build makes the programs as make build does: without the race detector, so that two
// busy cores can bear the load.
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

const (
	processes = 3
	restarts  = 4 // each process, and one of them again once all are new
	pace      = 5 * time.Second
	// linger is five times what the balancer takes to see that /health fails.
	linger = 5 * (checkEvery + (checksToFall-1)*checkAgain)

	offered = 1000 // requests a second
	// leastOffered is what the machine must manage for the result to mean anything:
	// with half of the load a process that ends still meets about a hundred requests
	// before the balancer knows, and several that want a seat are under way there. How
	// many are answered is not asserted but for one thing: seats are sold during every
	// restart.
	leastOffered = offered / 2

	// open has a seat for everyone who asks as long as the test may last; full has
	// none.
	open, full = "N1", "N2"
	newcomers  = 10_000 // candidates
	onlookers  = 100    // candidates who only ask for the full level
)

// fleet is the deployment under test.
type fleet struct {
	programs string // the folder of cmd/api and cmd/worker
	op       *app.Operator
	env      map[string]string // of an API process, but for its address
	addrs    []string
	procs    []*testenv.Program
	balancer *balancer
}

// newFleet starts it all and opens the sale. A process that was told to end lingers for
// that long; creating a payment takes that long at the gateway.
func newFleet(t *testing.T, linger, create time.Duration) *fleet {
	t.Helper()
	if testing.Short() {
		t.Skip("builds the programs, and rolls a fleet for 20 s")
	}
	balancerProgram := needHAProxy(t)
	pair := testenv.Pair(t)
	gw, err := mockgateway.New(mockgateway.Options{GrantsPerHour: -1, Latency: func(call string) time.Duration {
		if call == mockgateway.CallCreate {
			return create
		}
		return 0
	}})
	if err != nil {
		t.Fatal(err)
	}
	srv := httptest.NewServer(gw)
	t.Cleanup(func() { srv.Close(); gw.Close() })
	site := testenv.FreeAddr(t)
	f := &fleet{programs: build(t, "api", "worker"), env: map[string]string{
		"HOLDFAST_ADMIN_ADDR": "off", "HOLDFAST_PUBLIC_URL": "http://" + site, "HOLDFAST_LOG_LEVEL": "warn",
		"HOLDFAST_DATA": t.TempDir(), "HOLDFAST_REDIS_ADDR": pair.Primary.Addr(), "HOLDFAST_REDIS_POOL": "64",
		"HOLDFAST_SEAL_KEY": strings.Repeat("ab", booking.SealKeySize), "HOLDFAST_GATEWAY_URL": srv.URL + mockgateway.BasePath,
		"HOLDFAST_GATEWAY_APP_KEY": "k", "HOLDFAST_GATEWAY_APP_SECRET": "s", "HOLDFAST_GATEWAY_USERNAME": "u", "HOLDFAST_GATEWAY_PASSWORD": "p",
		"HOLDFAST_LINGER": linger.String(),
	}}
	testenv.StartProgram(t, "worker", []string{filepath.Join(f.programs, "worker")}, f.env)
	for i := range processes {
		f.addrs, f.procs = append(f.addrs, testenv.FreeAddr(t)), append(f.procs, nil)
		f.start(t, i)
	}
	f.balancer = startBalancer(t, balancerProgram, site, f.addrs)
	f.balancer.waitUp(t) // by now there is a store as well
	f.op = f.operator(t)
	f.openSale(t)
	return f
}

func (f *fleet) start(t *testing.T, i int) {
	t.Helper()
	env := map[string]string{"HOLDFAST_ADDR": f.addrs[i]}
	for k, v := range f.env {
		env[k] = v
	}
	f.procs[i] = testenv.StartProgram(t, "api", []string{filepath.Join(f.programs, "api")}, env)
}

func (f *fleet) operator(t *testing.T) *app.Operator {
	t.Helper()
	getenv := func(k string) string { return f.env[k] }
	cfg, err := config.LoadOperator(getenv)
	if err != nil {
		t.Fatal(err)
	}
	gateway, err := config.LoadGateway(getenv)
	if err != nil {
		t.Fatal(err)
	}
	op, err := app.OpenOperator(t.Context(), app.OpenLocal, cfg, &gateway, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := op.Close(); err != nil {
			t.Error(err)
		}
	})
	return op
}

func (f *fleet) openSale(t *testing.T) {
	t.Helper()
	sale := booking.Sale{Name: "rollout", Currency: "BDT", Cap: newcomers, Hold: 10 * time.Minute, Levels: []booking.Level{
		{ID: open, Name: "Open", Cap: newcomers, Fee: 150000}, {ID: full, Name: "Full", Cap: 0, Fee: 150000},
	}}
	if _, err := f.op.Gate.ApplySale(t.Context(), sale, booking.NewEpoch(time.Now()), false); err != nil {
		t.Fatal(err)
	}
	for first := 0; first < newcomers+onlookers; first += 500 {
		var some []booking.Candidate
		for i := first; i < min(first+500, newcomers+onlookers); i++ {
			some = append(some, booking.Candidate{Code: code(i), Email: email})
		}
		if err := f.op.Gate.AddCandidates(t.Context(), some); err != nil {
			t.Fatal(err)
		}
	}
	if err := f.op.Gate.Open(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// restart replaces one process: it is told to end, ends by itself, and another takes
// its place at the same address. It returns once the balancer uses the new one.
func (f *fleet) restart(t *testing.T, i int) {
	t.Helper()
	if code := f.procs[i].Stop(t, syscall.SIGTERM); code != 0 {
		t.Errorf("API process %d ended with %d after SIGTERM, want 0", i, code)
	}
	if s := f.balancer.status(t, i); s != "DOWN" {
		t.Errorf("API process %d has ended, and the balancer says it is %s: want it told before the process takes no more connections", i, s)
	}
	f.start(t, i)
	f.balancer.waitUp(t)
}

// Case 35: every 5 s one of three processes is replaced, under 1,000 requests a second
// through a balancer that keeps connections alive. Everyone hears a proper answer from
// a process of ours, and whoever has a seat knows of it.
func TestRollout_LosesNoAnswer(t *testing.T) {
	f := newFleet(t, linger, 0)
	crowd := newCrowd(t, f.balancer.site)
	stop := crowd.arrive(t, offered)
	testenv.Eventually(t, func() error {
		if crowd.sold.Load() == 0 {
			return errors.New("no seat is sold yet")
		}
		return nil
	})
	tick := time.NewTicker(pace)
	defer tick.Stop()
	for n := range restarts {
		before, began := crowd.sold.Load(), time.Now()
		f.restart(t, n%processes)
		sold := crowd.sold.Load() - before
		t.Logf("restart of process %d took %s; %d seats were sold meanwhile", n%processes, time.Since(began).Round(time.Millisecond), sold)
		if sold == 0 {
			t.Errorf("restart %d of process %d: got no seat sold meanwhile, want the others to go on selling", n, n%processes)
		}
		<-tick.C
	}
	rate := stop()
	crowd.askAgain(t)

	t.Logf("offered %.0f requests a second; heard: %v", rate, crowd.heard)
	switch {
	case rate < leastOffered:
		t.Errorf("offered rate: got %.0f/s, want at least %d/s; the machine is too busy for this test", rate, leastOffered)
	case rate < 0.98*offered:
		t.Logf("THE MACHINE COULD NOT OFFER %d/s: it offered %.0f/s", offered, rate)
	}
	f.wantEverySeatKnown(t, crowd)
	f.wantAuditHolds(t)
}

// A process that is told to end while it creates payments, and lingers no longer than
// that, ends when all of them are answered.
func TestRollout_EndsAfterTheCallsUnderWay(t *testing.T) {
	const buyers, create = 30, 2 * time.Second
	f := newFleet(t, 0, create)
	crowd := newCrowd(t, f.balancer.site)
	var asking sync.WaitGroup
	defer asking.Wait()
	for i := range buyers {
		asking.Go(func() { crowd.ask(code(i), open) })
	}
	testenv.Eventually(t, func() error {
		figures, err := f.op.Gate.ReadStatus(t.Context())
		if err == nil && figures.Total != buyers {
			err = fmt.Errorf("seats taken: got %d, want %d", figures.Total, buyers)
		}
		return err
	})
	if got := crowd.sold.Load(); got > 0 {
		t.Logf("THE MACHINE IS BUSY: %d calls are over before the process is told to end", got)
	}
	if code := f.procs[0].Stop(t, syscall.SIGTERM); code != 0 {
		t.Errorf("API process ended with %d after SIGTERM, want 0", code)
	}
	asking.Wait()
	crowd.askAgain(t)
	f.wantEverySeatKnown(t, crowd)
	f.wantAuditHolds(t)
}

// wantEverySeatKnown compares the ledger with what its candidates were told, and tells
// what nobody should have heard.
func (f *fleet) wantEverySeatKnown(t *testing.T, c *crowd) {
	t.Helper()
	for _, text := range c.improper {
		t.Error(text)
	}
	taken := map[string]booking.Row{}
	for d, err := range f.op.Gate.Rows(t.Context()) {
		if err := errors.Join(err, d.Err); err != nil {
			t.Fatal(err)
		}
		taken[d.Code] = d.Row
	}
	if len(taken) == 0 {
		t.Error("seats in the ledger: got none, want some")
	}
	for code, row := range taken {
		switch link := c.links[code]; {
		case link == "":
			t.Errorf("LOST ANSWER: %s has a seat (phase %s, payment %q) and was not told", code, row.Phase, row.Payment)
		case row.Payment == "" || !strings.Contains(link, row.Payment):
			t.Errorf("%s: got the link %s, want that of the seat's payment %q", code, link, row.Payment)
		}
	}
	for code := range c.links {
		if _, ok := taken[code]; !ok {
			t.Errorf("%s was told of a seat, and the ledger has none", code)
		}
	}
	// The audit leaves a seat two minutes to get its record; here the worker has caught
	// up when every queued one has. A row that is payable may wait for the next look: its
	// candidate was told to try again, and has the link by now.
	testenv.Eventually(t, func() error {
		recorded := map[string]bool{}
		for rec, err := range f.op.Ops.Store.Records(t.Context()) {
			if err != nil {
				return err
			}
			if taken[rec.Code].Attempt != rec.Attempt || rec.State != booking.StateHeld {
				return fmt.Errorf("record of attempt %s: got state %s, want HELD and an attempt that has a seat", rec.Attempt, rec.State)
			}
			recorded[rec.Code] = true
		}
		for code, row := range taken {
			if row.Phase != booking.PhasePayable && !recorded[code] {
				return fmt.Errorf("records: got none of %s, whose row is %s", code, row.Phase)
			}
		}
		return nil
	})
}

// wantAuditHolds runs `seatctl audit --gateway`.
func (f *fleet) wantAuditHolds(t *testing.T) {
	t.Helper()
	report, err := f.op.Ops.Audit(t.Context(), saleops.AuditOptions{Gateway: true, QueriesPerSecond: 1000, Status: f.op.Status})
	if err != nil {
		t.Fatalf("audit: got %v, want a report", err)
	}
	for _, rule := range report.Rules {
		if rule.Verdict != saleops.VerdictHolds {
			t.Errorf("audit: rule %s: got %s (%s) %q, want it to hold", rule.Code, rule.Verdict, rule.Figure, rule.Broken)
		}
	}
}
