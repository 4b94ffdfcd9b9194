package testenv

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// programVar names the program that this test binary is to be.
const programVar = "HOLDFAST_TEST_PROGRAM"

// Programs are what a test binary can be besides a test: each is the body of a
// command's main, so that a process under test is built with the race detector
// and can be killed.
type Programs map[string]func(ctx context.Context, args []string, stdout, stderr io.Writer) error

// BeProgram makes this process the program it was started as, and ends it; it
// returns in a process that is just a test. Call it first in TestMain.
func BeProgram(programs Programs) {
	name := os.Getenv(programVar)
	if name == "" {
		return
	}
	run, ok := programs[name]
	if !ok {
		fmt.Fprintf(os.Stderr, "no program %q\n", name)
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	err := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

// Program is a running process. It is killed at the end of the test.
type Program struct {
	cmd    *exec.Cmd
	exited chan struct{}
	err    error

	mu     sync.Mutex
	output strings.Builder
	lines  []string
	more   chan struct{} // closed at the next line of stdout
}

// StartProgram starts this test binary as one of its programs. env adds to the
// test's own environment. stderr is shown if the test fails.
func StartProgram(t testing.TB, name string, args []string, env map[string]string) *Program {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	p := &Program{exited: make(chan struct{}), more: make(chan struct{})}
	// Not t.Context(): that ends before Cleanup, which shows what the program said.
	p.cmd = exec.CommandContext(context.Background(), self, args...)
	p.cmd.Env = append(os.Environ(), programVar+"="+name)
	for k, v := range env {
		p.cmd.Env = append(p.cmd.Env, k+"="+v)
	}
	stdout, err := p.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	p.cmd.Stderr = lockedWriter{p}
	if err := p.cmd.Start(); err != nil {
		t.Fatalf("start %s: %v", name, err)
	}
	go func() {
		for s := bufio.NewScanner(stdout); s.Scan(); {
			p.line(s.Text())
		}
		p.err = p.cmd.Wait()
		close(p.exited)
	}()
	t.Cleanup(func() {
		p.Kill()
		if t.Failed() {
			p.mu.Lock()
			defer p.mu.Unlock()
			t.Logf("%s said:\n%s", name, p.output.String())
		}
	})
	return p
}

type lockedWriter struct{ p *Program }

func (w lockedWriter) Write(b []byte) (int, error) {
	w.p.mu.Lock()
	defer w.p.mu.Unlock()
	return w.p.output.Write(b)
}

func (p *Program) line(text string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.lines = append(p.lines, text)
	close(p.more)
	p.more = make(chan struct{})
}

// Lines waits until the program has printed n lines, and returns them; it fails
// the test when the program ends before.
func (p *Program) Lines(t testing.TB, n int) []string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), startWithin)
	defer cancel()
	for {
		p.mu.Lock()
		lines, more := p.lines, p.more
		p.mu.Unlock()
		if len(lines) >= n {
			return lines
		}
		select {
		case <-more:
		case <-p.exited:
			t.Fatalf("the program ended (%v) after %d lines, want %d", p.err, len(lines), n)
		case <-ctx.Done():
			t.Fatalf("the program printed %d lines in %s, want %d", len(lines), startWithin, n)
		}
	}
}

// Output is what the program has written to stderr.
func (p *Program) Output() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.output.String()
}

// Kill ends the program as kill -9 does, and waits. Safe to repeat.
func (p *Program) Kill() {
	_ = p.cmd.Process.Kill() // gone already is fine
	<-p.exited
}

// KillChild kills one of the program's child processes by its name.
func (p *Program) KillChild(t testing.TB, name string) {
	t.Helper()
	tasks, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", p.cmd.Process.Pid))
	if err != nil {
		t.Fatal(err)
	}
	for _, task := range tasks {
		children, err := os.ReadFile(task)
		if err != nil {
			continue // the thread has ended
		}
		for _, child := range strings.Fields(string(children)) {
			comm, err := os.ReadFile("/proc/" + child + "/comm")
			if err != nil || strings.TrimSpace(string(comm)) != name {
				continue
			}
			pid, err := strconv.Atoi(child)
			if err != nil {
				t.Fatal(err)
			}
			if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
				t.Fatalf("kill %s: %v", name, err)
			}
			return
		}
	}
	t.Fatalf("the program has no child %s", name)
}

// Stop asks the program to end, waits, and returns its exit code.
func (p *Program) Stop(t testing.TB, sig os.Signal) int {
	t.Helper()
	if err := p.cmd.Process.Signal(sig); err != nil && !errors.Is(err, os.ErrProcessDone) {
		t.Fatalf("signal: %v", err)
	}
	return p.Wait(t)
}

// Wait waits for the program's own end and returns its exit code.
func (p *Program) Wait(t testing.TB) int {
	t.Helper()
	select {
	case <-p.exited:
		return p.cmd.ProcessState.ExitCode()
	case <-time.After(time.Minute):
		t.Fatal("the program did not end within a minute")
		return -1
	}
}

// FreeAddr is a loopback address that nobody listens on at the moment, for a program
// that must keep it over a restart. The system gives it to nobody in the meantime: its
// port lies below those that it hands out itself, to a listener on port 0 or to a
// connection (on Linux from 32768).
func FreeAddr(t testing.TB) string {
	t.Helper()
	const first, last, tries = 10000, 32767, 100
	var taken error
	for range tries {
		addr := net.JoinHostPort("127.0.0.1", strconv.Itoa(first+rand.IntN(last-first+1)))
		l, err := net.Listen("tcp", addr)
		if err != nil {
			taken = err
			continue
		}
		l.Close()
		return addr
	}
	t.Fatalf("no free port: %v", taken)
	return ""
}

// Eventually asks until the answer is nil; the last answer fails the test after
// half a minute. It is for what another process does in its own time.
func Eventually(t testing.TB, ask func() error) {
	t.Helper()
	EventuallyWithin(t, startWithin, ask)
}

// EventuallyWithin is Eventually for what takes longer by its nature.
func EventuallyWithin(t testing.TB, within time.Duration, ask func() error) {
	t.Helper()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	end := time.After(within)
	for {
		err := ask()
		if err == nil {
			return
		}
		select {
		case <-tick.C:
		case <-end:
			t.Fatalf("still not so after %s: %v", within, err)
		}
	}
}
