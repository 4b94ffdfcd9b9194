package main_test

import (
	"bytes"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net"
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

	"github.com/redis/go-redis/v9"

	"holdfast/internal/booking"
	"holdfast/internal/config"
	_ "holdfast/internal/sqlitedb" // registers the driver of the store's file
	"holdfast/internal/testenv"
	"holdfast/scripts/lua"
)

// Operators' commands end in the middle: a terminal closes, a machine goes down, a
// colleague runs the same thing. Here they are real processes beside a running sale.
// The moment is one request of theirs, which a gatekeeper holds up: before the server
// has it, or when it is done and nobody has heard so.

const (
	rigSale = "demo-2026"
	rigRows = 30_000
	// rigPatience is how long the test itself waits for Redis.
	rigPatience = 30 * time.Second
)

// rig is a running local profile with booking closed.
type rig struct {
	bin, data string
	base      string // of page and API
	mock      string // of the gateway's own pages
	env       map[string]string
	rdb       *redis.Client
}

func newRig(t *testing.T, bin string) *rig {
	t.Helper()
	r := &rig{bin: bin, data: t.TempDir(), env: map[string]string{}}
	r.base = "http://" + testenv.FreeAddr(t)
	var said rigText
	local := exec.CommandContext(context.Background(), filepath.Join(bin, "local"), "-closed", "-data", r.data, "-addr", strings.TrimPrefix(r.base, "http://"))
	local.Stdout, local.Stderr = io.Discard, &said
	if err := local.Start(); err != nil {
		t.Fatal(err)
	}
	exited := make(chan struct{})
	go func() { _ = local.Wait(); close(exited) }() // how it ended it says itself
	t.Cleanup(func() {
		_ = local.Process.Signal(syscall.SIGTERM) // gone already is fine
		select {
		case <-exited:
		case <-time.After(30 * time.Second):
			_ = local.Process.Kill()
			<-exited
		}
		if t.Failed() {
			t.Logf("cmd/local said:\n%s", said.tail())
		}
	})
	testenv.Eventually(t, func() error {
		select {
		case <-exited:
			return fmt.Errorf("cmd/local has ended:\n%s", said.tail())
		default:
		}
		if status, _, body := r.get(t, r.base+"/health"); status != http.StatusOK {
			return fmt.Errorf("health: %d %s", status, body)
		}
		return nil
	})
	text, err := os.ReadFile(filepath.Join(r.data, config.EnvFile))
	if err != nil {
		t.Fatal(err)
	}
	getenv, err := config.ReadEnv(filepath.Join(r.data, config.EnvFile))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		if name, _, ok := strings.Cut(line, "="); ok {
			r.env[name] = getenv(name)
		}
	}
	gateway, err := url.Parse(r.env["HOLDFAST_GATEWAY_URL"])
	if err != nil {
		t.Fatal(err)
	}
	r.mock = "http://" + gateway.Host
	// What the test looks with may wait: how busy the machine is proves nothing.
	r.rdb = redis.NewClient(&redis.Options{Addr: r.env["HOLDFAST_REDIS_ADDR"], PoolSize: 4, DialTimeout: rigPatience, ReadTimeout: rigPatience, WriteTimeout: rigPatience})
	t.Cleanup(func() { _ = r.rdb.Close() })
	return r
}

// rigText is what a process writes.
type rigText struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (w *rigText) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.text.Write(p)
}

func (w *rigText) tail() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	b := w.text.Bytes()
	return string(b[max(0, len(b)-4000):])
}

// process is a seatctl at work.
type process struct {
	name           string
	cmd            *exec.Cmd
	stdout, stderr rigText
	ended          chan struct{}
}

// start begins a command, its requests to Redis and the gateway going past the keeper
// if there is one.
func (r *rig) start(t *testing.T, keeper *gatekeeper, args ...string) *process {
	t.Helper()
	env := maps.Clone(r.env)
	if keeper != nil {
		env[keeper.variable] = keeper.through(env[keeper.variable])
	}
	p := &process{name: "seatctl " + strings.Join(args, " "), ended: make(chan struct{})}
	p.cmd = exec.CommandContext(context.Background(), filepath.Join(r.bin, "seatctl"), args...)
	p.cmd.Env = os.Environ()
	for name, value := range env {
		p.cmd.Env = append(p.cmd.Env, name+"="+value)
	}
	p.cmd.Stdout, p.cmd.Stderr = &p.stdout, &p.stderr
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() { _ = p.cmd.Wait(); close(p.ended) }() // its code is looked at
	t.Cleanup(func() { _ = p.cmd.Process.Kill(); <-p.ended })
	return p
}

// code waits for the end.
func (p *process) code(t *testing.T) int {
	t.Helper()
	select {
	case <-p.ended:
	case <-time.After(time.Minute):
		t.Fatalf("%s did not end within a minute:\n%s", p.name, p.stderr.tail())
	}
	return p.cmd.ProcessState.ExitCode()
}

func (p *process) signal(t *testing.T, sig syscall.Signal) {
	t.Helper()
	if err := p.cmd.Process.Signal(sig); err != nil {
		t.Fatalf("signal %s: %v\n%s", p.name, err, p.stderr.tail())
	}
}

// want waits for the end, and for the code and what it must have said.
func (p *process) want(t *testing.T, code int, says ...string) {
	t.Helper()
	if got := p.code(t); got != code {
		t.Fatalf("%s: exit status %d, want %d\n%s\n%s", p.name, got, code, p.stdout.tail(), p.stderr.tail())
	}
	for _, text := range says {
		if said := p.stdout.tail() + p.stderr.tail(); !strings.Contains(said, text) {
			t.Errorf("%s: want it to say %q, it said:\n%s", p.name, text, said)
		}
	}
}

// must runs a command to its good end.
func (r *rig) must(t *testing.T, args ...string) *process {
	t.Helper()
	p := r.start(t, nil, args...)
	p.want(t, 0)
	return p
}

// gatekeeper is the way to a server, on which one request is held up.
type gatekeeper struct {
	variable string // the setting that names the server
	upstream string
	listener net.Listener
	// text marks the request, which is the nth with it; done lets the server have it,
	// and holds its answer up.
	text string
	nth  int
	done bool

	work  sync.WaitGroup
	mu    sync.Mutex
	conns []net.Conn
	seen  int
	held  chan struct{} // closed when the moment has come
	open  chan struct{} // closed when all may pass again
}

// hold makes a keeper of the way to Redis that holds up the nth run of a script.
func (r *rig) hold(t *testing.T, script string, nth int, done bool) *gatekeeper {
	t.Helper()
	return newGatekeeper(t, "HOLDFAST_REDIS_ADDR", r.env["HOLDFAST_REDIS_ADDR"], redis.NewScript(script).Hash(), nth, done)
}

func newGatekeeper(t *testing.T, variable, upstream, text string, nth int, done bool) *gatekeeper {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	k := &gatekeeper{
		variable: variable, upstream: upstream, listener: l, text: text, nth: nth, done: done,
		held: make(chan struct{}), open: make(chan struct{}),
	}
	k.work.Go(func() {
		for {
			client, err := l.Accept()
			if err != nil {
				return
			}
			k.work.Go(func() { k.serve(t.Context(), client) })
		}
	})
	t.Cleanup(func() {
		_ = l.Close()
		k.release()
		k.mu.Lock()
		for _, c := range k.conns {
			_ = c.Close()
		}
		k.mu.Unlock()
		k.work.Wait()
	})
	return k
}

// through is the setting with the keeper's address in place of the server's.
func (k *gatekeeper) through(setting string) string {
	return strings.Replace(setting, k.upstream, k.listener.Addr().String(), 1)
}

func (k *gatekeeper) serve(ctx context.Context, client net.Conn) {
	server, err := new(net.Dialer).DialContext(ctx, "tcp", k.upstream)
	if err != nil {
		_ = client.Close()
		return
	}
	k.mu.Lock()
	k.conns = append(k.conns, client, server)
	k.mu.Unlock()
	done := make(chan struct{})
	asked := false // by this connection, under the lock
	k.work.Go(func() {
		defer close(done)
		k.pass(server, client, func(request []byte) {
			k.mu.Lock()
			if k.seen < k.nth && bytes.Contains(request, []byte(k.text)) {
				if k.seen++; k.seen == k.nth {
					if asked = true; !k.done {
						close(k.held)
					}
				}
			}
			wait := k.seen == k.nth && (!asked || !k.done)
			k.mu.Unlock()
			if wait {
				<-k.open
			}
		})
	})
	k.pass(client, server, func([]byte) {
		k.mu.Lock()
		mine := asked && k.done
		k.mu.Unlock()
		if !mine {
			return
		}
		select {
		case <-k.held:
		default:
			close(k.held) // it has been answered
		}
		<-k.open
	})
	<-done
}

// pass hands on what comes, look having seen it, and closes both ways at its end.
func (k *gatekeeper) pass(to, from net.Conn, look func([]byte)) {
	defer func() { _, _ = to.Close(), from.Close() }()
	for b := make([]byte, 1<<18); ; {
		n, err := from.Read(b)
		if n > 0 {
			look(b[:n])
			if _, err := to.Write(b[:n]); err != nil {
				return
			}
		}
		if err != nil {
			return
		}
	}
}

// await waits for the moment.
func (k *gatekeeper) await(t *testing.T, p *process) {
	t.Helper()
	select {
	case <-k.held:
	case <-p.ended:
		t.Fatalf("%s came through (%d), want it held up\n%s\n%s", p.name, p.code(t), p.stdout.tail(), p.stderr.tail())
	case <-time.After(time.Minute):
		t.Fatalf("%s did not come to its moment within a minute\n%s", p.name, p.stderr.tail())
	}
}

// release lets everything pass. Safe to repeat.
func (k *gatekeeper) release() {
	k.mu.Lock()
	defer k.mu.Unlock()
	select {
	case <-k.open:
	default:
		close(k.open)
	}
}

// kill runs a command up to its moment and kills it there, and wants its change begun
// and without an end in the operator's log.
func (r *rig) kill(t *testing.T, keeper *gatekeeper, what string, args ...string) {
	t.Helper()
	p := r.start(t, keeper, args...)
	keeper.await(t, p)
	p.signal(t, syscall.SIGKILL)
	p.code(t)
	if got := r.lastOutcome(t, what); got != booking.LogBegun {
		t.Errorf("log of the killed %s: got %q, want it begun and without an end", p.name, got)
	}
}

// interrupt is kill by a SIGINT, after which the way is free: its end is in the log.
func (r *rig) interrupt(t *testing.T, keeper *gatekeeper, what string, args ...string) {
	t.Helper()
	p := r.start(t, keeper, args...)
	keeper.await(t, p)
	p.signal(t, syscall.SIGINT)
	keeper.release()
	code := p.code(t)
	if got := r.lastOutcome(t, what); got == booking.LogBegun || got == booking.LogDone != (code == 0) {
		t.Errorf("log of the interrupted %s, exit status %d: got %q, want its end\n%s", p.name, code, got, p.stderr.tail())
	}
}

// lastOutcome is the log's word on the latest change by a command.
func (r *rig) lastOutcome(t *testing.T, what string) booking.LogOutcome {
	t.Helper()
	var log struct {
		Changes []struct {
			What    string             `json:"what"`
			Outcome booking.LogOutcome `json:"outcome"`
		} `json:"changes"`
	}
	p := r.start(t, nil, "log", "--json", "--what", what)
	p.code(t)
	if err := json.Unmarshal(p.stdout.text.Bytes(), &log); err != nil {
		t.Fatalf("%s: %v\n%s", p.name, err, p.stderr.tail())
	}
	if len(log.Changes) == 0 {
		t.Fatalf("the log has no change by %s", what)
	}
	return log.Changes[len(log.Changes)-1].Outcome
}

func (r *rig) wantSound(t *testing.T) {
	t.Helper()
	r.must(t, "audit")
}

func (r *rig) key(name string) string { return r.env["HOLDFAST_KEY_PREFIX"] + name }

func (r *rig) epoch(t *testing.T) string {
	t.Helper()
	epoch, err := r.rdb.Get(t.Context(), r.key("adm:epoch")).Result()
	if err != nil {
		t.Fatal(err)
	}
	return epoch
}

// lapse ends the turn of a dead load or purge, if there is one, as half a minute does.
func (r *rig) lapse(t *testing.T) {
	t.Helper()
	if n, err := r.rdb.Exists(t.Context(), r.key("candidates:load")).Result(); err != nil {
		t.Fatal(err)
	} else if n == 0 {
		return
	}
	if err := r.rdb.HSet(t.Context(), r.key("candidates:load"), "until", "0").Err(); err != nil {
		t.Fatal(err)
	}
}

// people is a list of candidates and its file.
type people struct {
	name, file string
	emails     map[string]string
}

// newPeople are the candidates from one number on; the e-mail of every hundredth is
// the list's own, so that no two lists agree on it.
func (r *rig) newPeople(t *testing.T, name string, from int) people {
	t.Helper()
	l := people{name: name, file: filepath.Join(r.data, name+".csv"), emails: map[string]string{}}
	var text bytes.Buffer
	text.WriteString("code,email\n")
	for i := from; i < from+rigRows; i++ {
		code, email := fmt.Sprintf("AB-%06d", i), fmt.Sprintf("c%d@example.org", i)
		if i%100 == 0 {
			email = name + "-" + email
		}
		l.emails[code] = email
		fmt.Fprintf(&text, "%s,%s\n", code, email)
	}
	if err := os.WriteFile(l.file, text.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	return l
}

// inForce is which of the lists is in force, each candidate of it and nobody else, by
// the e-mail that is its own.
func (r *rig) inForce(t *testing.T, lists ...people) string {
	t.Helper()
	codes, err := r.rdb.SMembers(t.Context(), r.key("candidates:valid")).Result()
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]string{}
	for chunk := range slices.Chunk(codes, 1000) {
		keys := make([]string, len(chunk))
		for i, code := range chunk {
			keys[i] = r.key("candidate:email:" + code)
		}
		emails, err := r.rdb.MGet(t.Context(), keys...).Result()
		if err != nil {
			t.Fatal(err)
		}
		for i, email := range emails {
			got[chunk[i]], _ = email.(string)
		}
	}
	for _, l := range lists {
		if maps.Equal(got, l.emails) {
			return l.name
		}
	}
	return fmt.Sprintf("none of them: %d candidates", len(got))
}

// wantNothingLeft wants nothing of a load left beside its list.
func (r *rig) wantNothingLeft(t *testing.T) {
	t.Helper()
	var emails int
	for scan := r.rdb.Scan(t.Context(), 0, r.key("candidate:email:*"), 10_000).Iterator(); scan.Next(t.Context()); {
		emails++
	}
	left, err := r.rdb.Exists(t.Context(), r.key("candidates:load"), r.key("candidates:next"), r.key("candidates:next:email"),
		r.key("candidates:old"), r.key("candidates:changed")).Result()
	if err != nil || left != 0 || emails != rigRows {
		t.Errorf("left of the load: %d keys, %d e-mails, %v, want none and %d", left, emails, err, rigRows)
	}
}

func TestPrograms_KilledHalfWayOrTwiceAtOnce(t *testing.T) {
	if testing.Short() {
		t.Skip("builds and starts processes")
	}
	testenv.NeedServer(t)
	bin := build(t, "local", "seatctl")
	t.Run("Sale", func(t *testing.T) {
		t.Parallel()
		r := newRig(t, bin)
		a, b := r.newPeople(t, "a", 1), r.newPeople(t, "b", 301)
		r.must(t, "candidates", "load", a.file, "--yes", "--allow-removals")
		// In this order: each leaves what the next begins with.
		for _, part := range []struct {
			name string
			run  func(t *testing.T, r *rig, a, b people)
		}{
			{"KilledLoadLeavesOneListAndTheNextRunCompletes", killedLoad},
			{"InterruptedLoadGivesItsTurnUp", interruptedLoad},
			{"KilledSwitchIsRepeated", killedSwitch},
			{"KilledResetIsRepeated", killedReset},
			{"SecondLoadIsRefusedAndSaysByWhom", twoLoads},
			{"LoadAndOpenAtOnce", loadAndOpen},
			{"ResetAndOpenAtOnce", resetAndOpen},
			{"TwoResetsAtOnce", twoResets},
			{"ClosedTwiceAtOnce", closedTwice},
			{"KilledPurgeIsRepeated", killedPurge},
		} {
			if !t.Run(part.name, func(t *testing.T) { part.run(t, r, a, b); r.wantSound(t) }) {
				return // what follows would only fail too
			}
		}
	})
	t.Run("Money", func(t *testing.T) {
		t.Parallel()
		r := newRig(t, bin)
		for _, part := range []struct {
			name string
			run  func(t *testing.T, r *rig)
		}{
			{"KilledRebuildIsRepeated", killedRebuild},
			{"KilledRefundGivesBackOnce", killedRefund},
		} {
			if !t.Run(part.name, func(t *testing.T) { part.run(t, r); r.wantSound(t) }) {
				return
			}
		}
	})
}

func load(l people) []string {
	return []string{"candidates", "load", l.file, "--yes", "--reason", "drill"}
}

// killedLoad begins and ends with one of the lists in force.
func killedLoad(t *testing.T, r *rig, a, b people) {
	old, next := a, b
	for _, moment := range []struct {
		name, script string
		nth          int
		done         bool
	}{
		{"staging", lua.AllowlistStage, 1 + rand.IntN(rigRows/250), false},
		{"staging, done", lua.AllowlistStage, 1 + rand.IntN(rigRows/250), true},
		{"swap", lua.AllowlistSwap, 1, false},
		{"swap, done", lua.AllowlistSwap, 1, true},
		{"clearing the old list", lua.AllowlistEmails, 1, true},
		{"the end", lua.AllowlistTurn, 3, false},
	} {
		what := fmt.Sprintf("killed at %s %d", moment.name, moment.nth)
		r.kill(t, r.hold(t, moment.script, moment.nth, moment.done), "candidates load", load(next)...)
		swapped := moment.script != lua.AllowlistStage && (moment.script != lua.AllowlistSwap || moment.done)
		want := old.name
		if swapped {
			want = next.name
		}
		if got := r.inForce(t, old, next); got != want {
			t.Fatalf("%s: in force is list %q, want %q", what, got, want)
		}
		r.start(t, nil, load(next)...).want(t, 1, "another load of the allowlist is running", "by ")
		r.lapse(t)
		again := r.must(t, load(next)...)
		if finished := strings.Contains(again.stdout.tail(), "was finished first"); finished != swapped {
			t.Errorf("%s: the next run says that it finished an earlier one: %t, want %t", what, finished, swapped)
		}
		if got := r.inForce(t, old, next); got != next.name {
			t.Fatalf("%s, run again: in force is list %q, want %q", what, got, next.name)
		}
		r.wantNothingLeft(t)
		old, next = next, old
	}
}

func interruptedLoad(t *testing.T, r *rig, a, b people) {
	for _, script := range []string{lua.AllowlistStage, lua.AllowlistSwap} {
		next := b
		if r.inForce(t, a, b) == b.name {
			next = a
		}
		r.interrupt(t, r.hold(t, script, 1, false), "candidates load", load(next)...)
		if got := r.inForce(t, a, b); got != a.name && got != b.name {
			t.Fatalf("interrupted: in force is list %q", got)
		}
		r.must(t, load(next)...)
		if got := r.inForce(t, next); got != next.name {
			t.Fatalf("run again: in force is list %q, want %q", got, next.name)
		}
		r.wantNothingLeft(t)
	}
}

// switched is how the switch stands.
func (r *rig) switched(t *testing.T) string {
	t.Helper()
	v, err := r.rdb.Get(t.Context(), r.key("booking:open")).Result()
	if errors.Is(err, redis.Nil) {
		return "0" // nobody has opened it yet
	}
	if err != nil {
		t.Fatal(err)
	}
	return v
}

var (
	openArgs  = []string{"open", "--yes"}
	closeArgs = []string{"close", "--reason", "drill"}
	resetArgs = []string{"reset", "--reason", "drill", "--confirm", rigSale}
)

func killedSwitch(t *testing.T, r *rig, _, _ people) {
	for _, done := range []bool{false, true} {
		for _, c := range []struct {
			what, becomes, was string
			args               []string
		}{{"open", "1", "0", openArgs}, {"close", "0", "1", closeArgs}} {
			want := c.was
			if done {
				want = c.becomes
			}
			r.kill(t, r.hold(t, lua.Switch, 1, done), c.what, c.args...)
			if got := r.switched(t); got != want {
				t.Errorf("killed %s, done %t: the switch is %q, want %q", c.what, done, got, want)
			}
			r.must(t, c.args...)
			if got := r.switched(t); got != c.becomes {
				t.Errorf("%s run again: the switch is %q, want %q", c.what, got, c.becomes)
			}
		}
	}
	r.interrupt(t, r.hold(t, lua.Switch, 1, false), "open", openArgs...)
	r.must(t, openArgs...)
	r.interrupt(t, r.hold(t, lua.Switch, 1, false), "close", closeArgs...)
	r.must(t, closeArgs...)
}

func killedReset(t *testing.T, r *rig, _, _ people) {
	for _, done := range []bool{false, true} {
		before := r.epoch(t)
		r.kill(t, r.hold(t, lua.Reset, 1, done), "reset", resetArgs...)
		killed := r.epoch(t)
		if moved := killed != before; moved != done {
			t.Errorf("killed reset, done %t: the epoch moved: %t", done, moved)
		}
		r.must(t, resetArgs...)
		if got := r.epoch(t); got <= killed {
			t.Errorf("run again: the epoch is %s, want one after %s", got, killed)
		}
	}
	r.interrupt(t, r.hold(t, lua.Reset, 1, false), "reset", resetArgs...)
	r.must(t, resetArgs...)
}

func twoLoads(t *testing.T, r *rig, a, b people) {
	first := r.inForce(t, a, b)
	next, other := b, a
	if first == b.name {
		next, other = a, b
	}
	keeper := r.hold(t, lua.AllowlistStage, 20, false)
	one := r.start(t, keeper, load(next)...)
	keeper.await(t, one)
	two := r.start(t, nil, load(other)...)
	two.want(t, 1, "another load of the allowlist is running", "nothing was changed", fmt.Sprintf("(uid %d)", os.Getuid()))
	if got := r.lastOutcome(t, "candidates load"); got != booking.LogRefused {
		t.Errorf("log of the second load: got %q, want it refused", got)
	}
	keeper.release()
	one.want(t, 0)
	if got := r.inForce(t, a, b); got != next.name {
		t.Errorf("in force is list %q, want the first one's, %q", got, next.name)
	}
	r.wantNothingLeft(t)
}

// loadAndOpen: whichever comes first, an open sale never gets the list of a load that
// was not told to load it while booking is open.
func loadAndOpen(t *testing.T, r *rig, a, b people) {
	lists := map[string]people{a.name: b, b.name: a} // the other one, by name
	old := r.inForce(t, a, b)
	next := lists[old]
	staging := r.hold(t, lua.AllowlistStage, 20, false)
	loading := r.start(t, staging, load(next)...)
	staging.await(t, loading)
	opens := r.start(t, nil, openArgs...)
	opens.code(t)
	staging.release()
	r.wantOneOf(t, opens, loading, old, next.name, a, b)

	old = r.inForce(t, a, b)
	next = lists[old]
	opening, swapping := r.hold(t, lua.Switch, 1, false), r.hold(t, lua.AllowlistSwap, 1, false)
	opens = r.start(t, opening, openArgs...)
	opening.await(t, opens) // it has looked, and saw no load
	loading = r.start(t, swapping, load(next)...)
	swapping.await(t, loading)
	opening.release()
	opens.code(t)
	swapping.release()
	r.wantOneOf(t, opens, loading, old, next.name, a, b)

	if in := r.inForce(t, a, b); in != a.name {
		r.must(t, load(a)...)
	}
	r.wantNothingLeft(t)
}

// wantOneOf wants booking open with the old list and the load refused, or closed with
// the new list and the opening refused, or not made since it came too late. Then it
// closes booking.
func (r *rig) wantOneOf(t *testing.T, opens, loading *process, old, next string, lists ...people) {
	t.Helper()
	loading.code(t)
	switch in := r.inForce(t, lists...); {
	case r.switched(t) == "1" && in == old:
		loading.want(t, 1, "booking is open", "nothing was changed")
		opens.want(t, 0)
		r.must(t, closeArgs...)
	case r.switched(t) == "0" && in == next:
		loading.want(t, 0)
		opens.want(t, 1)
	default:
		t.Fatalf("the switch is %q and list %q in force: want booking open with list %q, or closed with %q\n%s\n%s",
			r.switched(t), in, old, next, opens.stderr.tail(), loading.stderr.tail())
	}
}

func resetAndOpen(t *testing.T, r *rig, _, _ people) {
	before := r.epoch(t)
	keeper := r.hold(t, lua.Reset, 1, false)
	resets := r.start(t, keeper, resetArgs...)
	keeper.await(t, resets)
	r.must(t, openArgs...)
	keeper.release()
	resets.want(t, 1, "nothing was changed")
	if got := r.epoch(t); got != before || r.switched(t) != "1" {
		t.Errorf("epoch %s, switch %q: want %s and open", got, r.switched(t), before)
	}
	r.must(t, closeArgs...)
}

func twoResets(t *testing.T, r *rig, _, _ people) {
	keeper := r.hold(t, lua.Reset, 1, false)
	one := r.start(t, keeper, resetArgs...)
	keeper.await(t, one)
	r.must(t, resetArgs...)
	second := r.epoch(t)
	keeper.release()
	one.want(t, 1, "nothing was changed")
	if got := r.epoch(t); got != second {
		t.Errorf("epoch %s, want the second one's, %s", got, second)
	}
	if got := r.lastOutcome(t, "reset"); got != booking.LogDone {
		t.Errorf("log of the latest reset: got %q, want it done", got)
	}
}

func closedTwice(t *testing.T, r *rig, _, _ people) {
	r.must(t, openArgs...)
	keeper := r.hold(t, lua.Switch, 1, false)
	one := r.start(t, keeper, closeArgs...)
	keeper.await(t, one)
	r.must(t, closeArgs...)
	keeper.release()
	one.want(t, 0, "is closed")
	if got := r.switched(t); got != "0" {
		t.Errorf("the switch is %q, want it closed", got)
	}
}

// killedPurge leaves nobody on the list.
func killedPurge(t *testing.T, r *rig, a, _ people) {
	args := []string{"purge", "--reason", "drill", "--confirm", rigSale}
	r.kill(t, r.hold(t, lua.Purge, 1, false), "purge", args...)
	if got := r.inForce(t, a); got != a.name {
		t.Errorf("killed at its first step: in force is list %q, want %q", got, a.name)
	}
	r.lapse(t)
	r.kill(t, r.hold(t, lua.Purge, 2+rand.IntN(rigRows/500-2), true), "purge", args...)
	if n, err := r.rdb.Exists(t.Context(), r.key("candidates:valid")).Result(); n != 0 || err != nil {
		t.Errorf("killed half-way: the allowlist is there (%d, %v), though its e-mails are not", n, err)
	}
	r.lapse(t)
	r.interrupt(t, r.hold(t, lua.Purge, 3, false), "purge", args...)
	r.must(t, args...)
	keys, _, err := r.rdb.Scan(t.Context(), 0, r.key("candidate*"), 1_000_000).Result()
	if keys = slices.DeleteFunc(keys, func(k string) bool { return k == r.key("candidates:swaps") }); len(keys) > 0 || err != nil {
		t.Errorf("after the purge: %d keys of candidates, %v, want none", len(keys), err)
	}
}

func (r *rig) request(t *testing.T, method, target, kind, body string) (int, http.Header, []byte) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, target, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	if kind != "" {
		req.Header.Set("Content-Type", kind)
	}
	hc := &http.Client{
		Transport:     &http.Transport{DisableKeepAlives: true},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	resp, err := hc.Do(req)
	if err != nil {
		return 0, nil, []byte(err.Error())
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, resp.Header, text
}

func (r *rig) get(t *testing.T, target string) (int, http.Header, []byte) {
	t.Helper()
	return r.request(t, http.MethodGet, target, "", "")
}

// bookAndPay has a candidate of the demo list book and pay.
func (r *rig) bookAndPay(t *testing.T, n int) {
	t.Helper()
	status, _, body := r.request(t, http.MethodPost, r.base+"/book", "application/json",
		fmt.Sprintf(`{"code":"AB-%d","email":"candidate%d@example.org","level":"N1"}`, 100000+n, 100000+n))
	var seat struct {
		PaymentURL string `json:"payment_url"`
	}
	if err := json.Unmarshal(body, &seat); err != nil || status != http.StatusAccepted {
		t.Fatalf("book: %d %s, %v", status, body, err)
	}
	status, header, body := r.request(t, http.MethodPost, seat.PaymentURL, "application/x-www-form-urlencoded", "outcome=success")
	if status != http.StatusSeeOther {
		t.Fatalf("pay: %d %s", status, body)
	}
	if status, _, body = r.get(t, header.Get("Location")); status != http.StatusSeeOther {
		t.Fatalf("callback: %d %s", status, body)
	}
}

// mockFaults gives every new payment these faults.
func (r *rig) mockFaults(t *testing.T, faults ...map[string]any) {
	t.Helper()
	_, _, body := r.get(t, r.mock+"/mock/settings")
	settings := map[string]any{}
	if err := json.Unmarshal(body, &settings); err != nil {
		t.Fatalf("%s: %v", body, err)
	}
	settings["faults"] = faults
	body, err := json.Marshal(settings)
	if err != nil {
		t.Fatal(err)
	}
	if status, _, said := r.request(t, http.MethodPut, r.mock+"/mock/settings", "application/json", string(body)); status/100 != 2 {
		t.Fatalf("settings of the gateway: %d %s", status, said)
	}
}

// openRefunds are the refunds that are not done.
func (r *rig) openRefunds(t *testing.T) []booking.Refund {
	t.Helper()
	var list struct {
		Refunds []booking.Refund `json:"refunds"`
	}
	p := r.must(t, "refunds", "list", "--json")
	if err := json.Unmarshal(p.stdout.text.Bytes(), &list); err != nil {
		t.Fatal(err)
	}
	return list.Refunds
}

// killedRefund: money that is not what was ordered goes back, and the gateway refuses
// that once, so that the processes leave it alone for ten minutes.
func killedRefund(t *testing.T, r *rig) {
	r.mockFaults(t, map[string]any{"name": "wrong_amount", "probability": 1}, map[string]any{"name": "refund_refused", "probability": 1})
	r.must(t, openArgs...)
	for i := range 3 {
		r.bookAndPay(t, 1+i)
	}
	r.must(t, closeArgs...)
	r.mockFaults(t)
	var open []booking.Refund
	testenv.Eventually(t, func() error {
		open = r.openRefunds(t)
		for _, refund := range open {
			if refund.Trouble == "" || refund.Claim != "" {
				return fmt.Errorf("refund %+v, want it with trouble and nobody's", refund)
			}
		}
		if len(open) != 3 {
			return fmt.Errorf("%d refunds, want 3", len(open))
		}
		return nil
	})
	gateway := strings.TrimPrefix(r.mock, "http://")
	keeper := func(nth int, done bool) *gatekeeper {
		// The first is the question whether it was made; the second makes it.
		return newGatekeeper(t, "HOLDFAST_GATEWAY_URL", gateway, "/payment/refund", nth, done)
	}
	for i, done := range []bool{false, true} {
		transaction := open[i].Transaction
		r.age(t, transaction)
		r.kill(t, keeper(2, done), "refunds retry", "refunds", "retry", transaction)
		r.start(t, nil, "refunds", "retry", transaction).want(t, 1, "until ")
		r.age(t, transaction)
		r.must(t, "refunds", "retry", transaction)
	}
	r.age(t, open[2].Transaction)
	r.interrupt(t, keeper(2, true), "refunds retry", "refunds", "retry", open[2].Transaction)
	r.age(t, open[2].Transaction)
	r.must(t, "refunds", "retry", open[2].Transaction)
	var made []struct {
		Transactions []struct {
			ID      string            `json:"trxID"`
			Refunds []json.RawMessage `json:"refunds"`
		} `json:"transactions"`
	}
	_, _, body := r.get(t, r.mock+"/mock/payments")
	if err := json.Unmarshal(body, &made); err != nil {
		t.Fatalf("%.500s: %v", body, err)
	}
	times := map[string]int{}
	for _, payment := range made {
		for _, transaction := range payment.Transactions {
			times[transaction.ID] = len(transaction.Refunds)
		}
	}
	for _, refund := range open {
		if n := times[refund.Transaction]; n != 1 {
			t.Errorf("transaction %s was given back %d times, want once", refund.Transaction, n)
		}
	}
}

// age makes a refund's last call and its claim five minutes older, so that nobody
// is at work on it any more.
func (r *rig) age(t *testing.T, transaction string) {
	t.Helper()
	db, err := sql.Open("sqlite", "file:"+filepath.Join(r.data, "store.db")+"?_pragma=busy_timeout(5000)")
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	if _, err := db.ExecContext(t.Context(),
		`UPDATE refunds SET body = json_remove(json_set(body, '$.sent_at', ?), '$.claim', '$.claim_until')
		WHERE open = 1 AND json_extract(body, '$.transaction') = ?`,
		time.Now().Add(-5*time.Minute).UTC().Format(time.RFC3339Nano), transaction); err != nil {
		t.Fatal(err)
	}
}

// empty loses everything of the sale. The gateway's token stays, since there are two
// in an hour, and so does the reconciler's term.
func (r *rig) empty(t *testing.T) {
	t.Helper()
	var keys []string
	for scan := r.rdb.Scan(t.Context(), 0, r.key("*"), 10_000).Iterator(); scan.Next(t.Context()); {
		if !strings.HasPrefix(scan.Val(), r.key("lock:")) {
			keys = append(keys, scan.Val())
		}
	}
	if err := r.rdb.Del(t.Context(), keys...).Err(); err != nil {
		t.Fatal(err)
	}
}

// killedRebuild: a Redis that was emptied gets its paid seats back.
func killedRebuild(t *testing.T, r *rig) {
	r.must(t, openArgs...)
	for i := range 3 {
		r.bookAndPay(t, 11+i)
	}
	r.must(t, closeArgs...)
	testenv.Eventually(t, func() error { // until all of it is written: that is all a reset wants, too
		p := r.start(t, nil, "reset", "--reason", "look", "--confirm", "another")
		p.want(t, 1)
		for line := range strings.Lines(p.stderr.tail()) {
			if strings.Contains(line, "AGAINST IT") && !strings.Contains(line, "notifications of the gateway") {
				return errors.New(line)
			}
		}
		return nil
	})
	args := []string{"rebuild", "--reason", "drill", "--confirm", rigSale, "--sale", filepath.Join(repository, "examples", "sale.yaml")}
	for _, moment := range []struct {
		script string
		nth    int
		done   bool
	}{{lua.Restore, 2, true}, {lua.ApplySale, 1, false}, {lua.ApplySale, 1, true}} {
		r.empty(t)
		r.kill(t, r.hold(t, moment.script, moment.nth, moment.done), "rebuild", args...)
		r.must(t, args...)
		total, err := r.rdb.Get(t.Context(), r.key("adm:total")).Result()
		rows, errRows := r.rdb.HLen(t.Context(), r.key("adm:seen")).Result()
		if err := errors.Join(err, errRows); err != nil || total != "3" || rows != 3 {
			t.Errorf("rebuilt after one killed at step %d: %s seats, %d rows, %v, want 3", moment.nth, total, rows, err)
		}
	}
	r.must(t, "candidates", "load", filepath.Join(repository, "examples", "candidates.csv"), "--yes")
}
