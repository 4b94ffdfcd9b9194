package rehearse

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"time"

	"holdfast/internal/app"
	"holdfast/internal/mockgateway"
)

// The parts of a stage that are this program run again. What they are called is also the
// name of their log, and of their processor time in a Sample.
const (
	partAPI     = "api"
	partWorker  = "worker"
	partGateway = "gateway"
)

// Part is one process of a stage, for the program that was started with the arguments
// "rehearse-part NAME ...": the API, the worker or the mock gateway, each the very
// function that its own command runs. args is what follows NAME; a "--" at its head is
// not an argument. Settings come from getenv and the log goes to stderr. It runs until
// ctx ends, and drains.
func Part(ctx context.Context, name string, args []string, getenv func(string) string, _, stderr io.Writer) error {
	if len(args) > 0 && args[0] == "--" {
		args = args[1:]
	}
	switch name {
	case partAPI:
		return app.RunAPI(ctx, app.Local(), getenv, stderr)
	case partWorker:
		return app.RunWorker(ctx, app.Local(), getenv, stderr)
	case partGateway:
		return mockgateway.Run(ctx, args, stderr)
	}
	return fmt.Errorf("rehearse-part %q: want %s, %s or %s", name, partAPI, partWorker, partGateway)
}

// part is one of them as its stage sees it: one process at most, which may be killed and
// started again. Safe for concurrent use.
type part struct {
	name string
	args []string
	env  []string
	log  string // file

	mu      sync.Mutex
	process *os.Process      // nil while there is none
	exited  chan struct{}    // closed when the last one is gone
	asked   bool             // to end, by us
	state   *os.ProcessState // how the last one that is gone ended
	ended   error            // how one ended that was not asked to
	spent   time.Duration    // processor time of those that are gone
}

// errEnded says that a part is gone and nobody here had asked it to end.
var errEnded = errors.New("it has ended by itself")

// start starts the process, and returns before it is ready for anything.
func (p *part) start() error {
	exe, err := os.Executable()
	if err != nil {
		return fmt.Errorf("start %s: %w", p.name, err)
	}
	log, err := os.OpenFile(p.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("start %s: %w", p.name, err)
	}
	defer log.Close()
	args := []string{"rehearse-part", p.name}
	if len(p.args) > 0 {
		args = append(append(args, "--"), p.args...)
	}
	//nolint:noctx // it outlives the context of its start
	cmd := exec.Command(exe, args...)
	cmd.Env, cmd.Stdout, cmd.Stderr, cmd.SysProcAttr = p.env, log, log, dieWithParent()
	started := make(chan error)
	go func() {
		// The kernel sends the parent-death signal when the thread that made the child
		// ends, not the process: so one thread belongs to this goroutine for as long as
		// the child lives.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		if err := cmd.Start(); err != nil {
			started <- err
			return
		}
		gone := make(chan struct{})
		defer close(gone)
		p.mu.Lock()
		p.process, p.exited, p.asked = cmd.Process, gone, false
		p.mu.Unlock()
		started <- nil
		_ = cmd.Wait() // how it ended is in its state
		p.mu.Lock()
		defer p.mu.Unlock()
		p.process, p.state = nil, cmd.ProcessState
		p.spent += cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()
		if !p.asked {
			p.ended = fmt.Errorf("%s: %w (%s); its log is %s", p.name, errEnded, cmd.ProcessState, p.log)
		}
	}()
	if err := <-started; err != nil {
		return fmt.Errorf("start %s: %w", p.name, err)
	}
	return nil
}

// end sends the signal and waits for the process to be gone; one that is not by then is
// killed, which is an error, and so is one that says that it could not drain. nil also
// when there is none.
func (p *part) end(sig os.Signal, within time.Duration) error {
	p.mu.Lock()
	process, exited := p.process, p.exited
	p.asked = true
	p.mu.Unlock()
	if process == nil {
		return nil
	}
	_ = process.Signal(sig) // the only error is that it is gone
	limit := time.NewTimer(within)
	defer limit.Stop()
	select {
	case <-exited:
	case <-limit.C:
		_ = process.Kill()
		<-exited
		return fmt.Errorf("%s did not end within %s and was killed; its log is %s", p.name, within, p.log)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if sig != os.Kill && !p.state.Success() {
		return fmt.Errorf("%s did not drain (%s); its log is %s", p.name, p.state, p.log)
	}
	return nil
}

// kill is kill -9.
func (p *part) kill() { _ = p.end(os.Kill, time.Minute) }

// trouble is how a process of it ended by itself; nil when none did.
func (p *part) trouble() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.ended
}

// await asks until the answer is nil; it gives up when the process is gone or ctx ends.
func (p *part) await(ctx context.Context, ask func(ctx context.Context) error) error {
	p.mu.Lock()
	exited := p.exited
	p.mu.Unlock()
	tick := time.NewTicker(askEvery)
	defer tick.Stop()
	for {
		err := ask(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-exited:
			return fmt.Errorf("%s ended before it was ready; its log is %s", p.name, p.log)
		case <-ctx.Done():
			return fmt.Errorf("%s does not answer: %w; its log is %s", p.name, err, p.log)
		case <-tick.C:
		}
	}
}

// askEvery is how often a part that starts is asked whether it is ready.
const askEvery = 20 * time.Millisecond

// processorTime is what the process and those before it have used.
func (p *part) processorTime() time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.process == nil {
		return p.spent
	}
	now, err := processorTime(p.process.Pid)
	if err != nil { // no /proc on this system
		return p.spent
	}
	return p.spent + now
}

// processorTime is a process's time in user and kernel mode, of proc(5).
func processorTime(pid int) (time.Duration, error) {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, err
	}
	// The second field, the program's name in brackets, may hold anything.
	_, rest, _ := strings.Cut(string(stat[max(0, strings.LastIndex(string(stat), ")")):]), " ")
	fields := strings.Fields(rest)
	const utime, stime = 14 - 3, 15 - 3 // the first of these fields is the third of all
	if len(fields) <= stime {
		return 0, fmt.Errorf("/proc/%d/stat: %d fields", pid, len(fields))
	}
	var ticks int64
	for _, f := range []string{fields[utime], fields[stime]} {
		n, err := strconv.ParseInt(f, 10, 64)
		if err != nil {
			return 0, fmt.Errorf("/proc/%d/stat: %w", pid, err)
		}
		ticks += n
	}
	const perSecond = 100 // USER_HZ, on every Linux
	return time.Duration(ticks) * time.Second / perSecond, nil
}

// running tells whether there is a process.
func (p *part) running() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.process != nil
}
