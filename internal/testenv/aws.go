package testenv

import (
	"bufio"
	_ "embed"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

//go:embed moto.py
var moto string

// Region is the region that the emulator's callers name. It knows every region; the
// resources of one are not seen in another.
const Region = "ap-south-1"

// AWSEmulator is a running emulator of the AWS services that are used here, not one of
// ours: moto. docs/emulators.md says where it differs from AWS.
type AWSEmulator struct {
	// Endpoint is its base URL, the same for every service.
	Endpoint string

	cmd   *exec.Cmd
	stdin *os.File
	once  sync.Once
}

// AWS starts an emulator on the loopback interface, empty. It ends with the test. It
// takes any access key. Without moto, which `make setup` puts into the project's
// cache, the test is skipped with a message, or fails with CI=true.
func AWS(t testing.TB) *AWSEmulator {
	t.Helper()
	python, packages := needPython(t, "moto", "NOT TESTED AGAINST AN AWS EMULATOR")
	// Its end of this pipe closes with this process, and so it dies with it.
	theirs, ours, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = theirs.Close() }()
	complaints, err := os.Create(filepath.Join(t.TempDir(), "moto.log"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = complaints.Close() }()
	e := &AWSEmulator{cmd: exec.Command(python, "-c", moto, packages), stdin: ours} //nolint:noctx // it lives as long as the test, and a test's context ends before its clean-up
	e.cmd.Stdin, e.cmd.Stderr = theirs, complaints
	stdout, err := e.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := e.cmd.Start(); err != nil {
		t.Fatalf("start moto: %v", err)
	}
	t.Cleanup(e.Stop)
	said := func() string {
		text, _ := os.ReadFile(complaints.Name())
		return string(text)
	}
	t.Cleanup(func() {
		if t.Failed() && said() != "" {
			t.Logf("moto said:\n%s", said())
		}
	})
	port := make(chan string, 1)
	go func() {
		line, _ := bufio.NewReader(stdout).ReadString('\n') // an end without a line is no port
		port <- strings.TrimSpace(line)
	}()
	select {
	case n := <-port:
		if n == "" {
			t.Fatalf("moto ended before it listened:\n%s", said())
		}
		e.Endpoint = "http://" + net.JoinHostPort("127.0.0.1", n)
	case <-time.After(startWithin):
		t.Fatalf("moto did not listen within %s:\n%s", startWithin, said())
	}
	return e
}

// Stop ends the emulator as a crash does; what it held is gone. Safe to repeat.
func (e *AWSEmulator) Stop() {
	e.once.Do(func() {
		_ = e.cmd.Process.Kill() // the only error is that it is gone already
		_ = e.cmd.Wait()         // killed
		_ = e.stdin.Close()
	})
}

// needPython finds a Python and the folder of the project's cache that holds the
// package of that name.
func needPython(t testing.TB, name, untested string) (python, packages string) {
	t.Helper()
	python, err := exec.LookPath("python3")
	if root, ok := moduleRoot(); ok && err == nil {
		packages = filepath.Join(root, ".cache", name)
		if _, err := os.Stat(filepath.Join(packages, name)); err == nil {
			return python, packages
		}
	}
	if os.Getenv("CI") == "true" {
		t.Fatalf("%s is not installed (`make setup` does it), and with CI=true this test must run", name)
	}
	t.Skipf("%s: %s is not installed; `make setup` does it", untested, name)
	return "", ""
}
