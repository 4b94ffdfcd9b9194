// Package redisproc starts real Redis servers as child processes on the
// loopback interface: a primary and its replicas for the local profile, and
// servers that tests may freeze, kill and promote.
//
// The servers keep nothing on disk: no snapshots, no append-only file, and a
// fresh working folder each. A server that ends has lost its data, which is
// what the rest of the system expects of Redis. They die with the process that started
// them: on Linux the kernel sees to it even if that process is killed;
// elsewhere only Stop does. Readiness is polled on the wall clock and bounded
// by the caller's context.
package redisproc

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"time"
)

// ErrNotInstalled says that no server program was found.
var ErrNotInstalled = errors.New("no redis-server or valkey-server on this machine")

// Find looks for a server program on the PATH: Redis 6 or newer, or Valkey.
func Find() (path string, ok bool) {
	for _, name := range []string{"redis-server", "valkey-server"} {
		if path, err := exec.LookPath(name); err == nil {
			return path, true
		}
	}
	return "", false
}

// Options say how to start a server.
type Options struct {
	// Program is the server program; "" is the one that Find finds.
	Program string
	// Dir is where the server gets a working folder of its own, removed with
	// it. It must exist; "" is the system's folder for temporary files.
	Dir string
	// ReplicaOf is the address of the primary to follow; "" starts a primary.
	ReplicaOf string
	// Args are more arguments, such as "--maxmemory", "64mb". They win over
	// the package's own.
	Args []string
}

// Server is a running child. Its methods are safe for concurrent use.
type Server struct {
	addr   string
	cmd    *exec.Cmd
	log    *tail
	exited chan struct{} // closed when the child is gone and reaped
}

// Exited is closed when the server is gone, whoever ended it.
func (s *Server) Exited() <-chan struct{} { return s.exited }

// startTries is how many ports are tried: between asking the kernel for a free
// one and the child's bind, somebody else may take it.
const startTries = 5

// Start runs a server on a free loopback port and returns when it answers and,
// for a replica, when its primary counts it as online, so that a WAIT on the
// primary is acknowledged from then on. ctx bounds the start only. The caller
// must Stop the server. The error carries the last lines of the server's log,
// or is ErrNotInstalled.
func Start(ctx context.Context, o Options) (*Server, error) {
	path := o.Program
	if path == "" {
		found, ok := Find()
		if !ok {
			return nil, ErrNotInstalled
		}
		path = found
	}
	s, err := startOnFreePort(ctx, path, o)
	if err != nil {
		return nil, err
	}
	if o.ReplicaOf != "" {
		if err := s.Follow(ctx, o.ReplicaOf); err != nil {
			s.Stop()
			return nil, err
		}
	}
	return s, nil
}

// errExited says that the child is gone; before its first answer the likely
// reason is that its port was taken.
var errExited = errors.New("the server has ended")

func startOnFreePort(ctx context.Context, path string, o Options) (*Server, error) {
	var s *Server
	var err error
	for range startTries {
		if s, err = launch(path, o); err != nil {
			return nil, err
		}
		if err = s.awaitAnswer(ctx); err == nil {
			return s, nil
		}
		s.Stop()
		err = fmt.Errorf("start %s: %w; its log ends:\n%s", filepath.Base(path), err, s.log)
		if !errors.Is(err, errExited) {
			break
		}
	}
	return nil, err
}

// launch starts the child and the goroutine that owns it.
func launch(path string, o Options) (*Server, error) {
	port, err := freePort()
	if err != nil {
		return nil, fmt.Errorf("find a free port: %w", err)
	}
	work, err := os.MkdirTemp(o.Dir, "redis-")
	if err != nil {
		return nil, fmt.Errorf("make the server's working folder: %w", err)
	}
	s := &Server{
		addr:   net.JoinHostPort("127.0.0.1", strconv.Itoa(port)),
		log:    &tail{max: 4 << 10},
		exited: make(chan struct{}),
	}
	//nolint:noctx // the child outlives the context of its start
	s.cmd = exec.Command(path, append(arguments(port), o.Args...)...)
	s.cmd.Dir = work
	s.cmd.Stdout, s.cmd.Stderr = s.log, s.log
	s.cmd.SysProcAttr = dieWithParent()
	// A child that feeds a replica may hold the log's pipe open for a moment.
	s.cmd.WaitDelay = time.Second

	started := make(chan error)
	go func() {
		// The kernel sends the parent-death signal when the thread that made
		// the child ends, not the process, and Go ends idle threads when it
		// likes. So one thread belongs to this goroutine, and both live as
		// long as the child.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		defer close(s.exited)
		defer os.RemoveAll(work) // at worst an empty folder is left behind
		err := s.cmd.Start()
		started <- err
		if err == nil {
			_ = s.cmd.Wait() // how it ended is told by its log
		}
	}()
	if err := <-started; err != nil {
		<-s.exited
		return nil, fmt.Errorf("start %s: %w", path, err)
	}
	return s, nil
}

func arguments(port int) []string {
	return []string{
		"--bind", "127.0.0.1", "--port", strconv.Itoa(port),
		"--daemonize", "no", "--logfile", "",
		// Whole or empty: nothing may come back from a disk.
		"--save", "", "--appendonly", "no", "--maxmemory-policy", "noeviction",
		// A replica is fed from a file, not through the socket, which would
		// leave it unacknowledged for up to a second; the file goes at once.
		"--repl-diskless-sync", "no", "--rdb-del-sync-files", "yes",
		"--repl-diskless-load", "swapdb",
	}
}

func freePort() (int, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, err
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port, nil
}

// Addr is host:port of the server.
func (s *Server) Addr() string { return s.addr }

// Stop ends the server and returns when it is gone. It is not asked first:
// there is nothing to save, and one that is frozen or waits for a replica would
// not listen. Safe to repeat.
func (s *Server) Stop() {
	_ = s.cmd.Process.Kill() // the only error is that it is gone already
	<-s.exited
}

// Kill is Stop where a test means a crash: clients see their connections reset
// and the data is gone.
func (s *Server) Kill() { s.Stop() }

// Received is how far a replica is in its primary's stream of writes: of two
// replicas the one with the larger figure has what the other has, and perhaps
// more. 0 before the first synchronisation. An error on a primary.
func (s *Server) Received(ctx context.Context) (int64, error) {
	info, err := command(ctx, s.addr, "INFO replication")
	if err != nil {
		return 0, fmt.Errorf("ask redis at %s how much it received: %w", s.addr, err)
	}
	n, err := strconv.ParseInt(field(info, "slave_repl_offset"), 10, 64)
	if err != nil {
		return 0, fmt.Errorf("redis at %s is not a replica", s.addr)
	}
	return n, nil
}

// Freeze suspends the server: connections stay open and nothing answers, as
// with a stalled host. Thaw lets it go on. Freezing a primary also keeps its
// replicas waiting.
func (s *Server) Freeze() error {
	if err := freeze(s.cmd.Process); err != nil {
		return fmt.Errorf("freeze redis at %s: %w", s.addr, err)
	}
	return nil
}

// Thaw undoes Freeze. Safe to repeat.
func (s *Server) Thaw() error {
	if err := thaw(s.cmd.Process); err != nil {
		return fmt.Errorf("thaw redis at %s: %w", s.addr, err)
	}
	return nil
}

// Promote makes a replica a primary. Nothing else follows by itself: other
// replicas need Follow, clients a new address.
func (s *Server) Promote(ctx context.Context) error {
	if _, err := command(ctx, s.addr, "REPLICAOF NO ONE"); err != nil {
		return fmt.Errorf("promote redis at %s: %w", s.addr, err)
	}
	return nil
}

// Follow makes the server a replica of the primary at addr, whatever it was
// before, and returns when the primary counts it as online. Its own data is
// replaced. Safe to repeat.
func (s *Server) Follow(ctx context.Context, addr string) error {
	if err := s.follow(ctx, addr); err != nil {
		return fmt.Errorf("redis at %s follows %s: %w; its log ends:\n%s", s.addr, addr, err, s.log)
	}
	return nil
}

func (s *Server) follow(ctx context.Context, addr string) error {
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		return err
	}
	// Told at run time it connects at once; told by an argument it would wait
	// for its next periodic task, up to a second later.
	if _, err := command(ctx, s.addr, "REPLICAOF "+host+" "+port); err != nil {
		return err
	}
	_, own, err := net.SplitHostPort(s.addr)
	if err != nil {
		return err
	}
	return s.poll(ctx, func() error {
		link, err := command(ctx, s.addr, "INFO replication")
		if err != nil {
			return err
		}
		if field(link, "master_link_status") != "up" {
			return errors.New("master link is not up")
		}
		// The link is up some time before the primary counts the replica in.
		seen, err := command(ctx, addr, "INFO replication")
		if err != nil {
			return err
		}
		if !strings.Contains(seen, "port="+own+",state=online") {
			return errors.New("the primary does not count it as online")
		}
		return nil
	})
}

// awaitAnswer waits until this child, and not another server that got the port
// first, answers.
func (s *Server) awaitAnswer(ctx context.Context) error {
	pid := strconv.Itoa(s.cmd.Process.Pid)
	return s.poll(ctx, func() error {
		info, err := command(ctx, s.addr, "INFO server")
		if err != nil {
			return err
		}
		if got := field(info, "process_id"); got != pid {
			return fmt.Errorf("process %s answers on the port, not %s", got, pid)
		}
		return nil
	})
}

const pollEvery = 5 * time.Millisecond

// poll repeats check until it is content, the child has ended, or ctx has.
func (s *Server) poll(ctx context.Context, check func() error) error {
	tick := time.NewTicker(pollEvery)
	defer tick.Stop()
	for {
		err := check()
		if err == nil {
			return nil
		}
		select {
		case <-s.exited:
			return errExited
		case <-ctx.Done():
			return fmt.Errorf("%w: %w", ctx.Err(), err)
		case <-tick.C:
		}
	}
}

// field finds one line of an INFO answer.
func field(info, name string) string {
	for line := range strings.Lines(info) {
		if v, ok := strings.CutPrefix(line, name+":"); ok {
			return strings.TrimSpace(v)
		}
	}
	return ""
}

// command holds one short conversation: it sends a line and returns the status
// or bulk string that answers it. A client library would be more than is
// needed, and would log and back off while a starting server refuses.
func command(ctx context.Context, addr, line string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	var d net.Dialer
	conn, err := d.DialContext(ctx, "tcp", addr)
	if err != nil {
		return "", err
	}
	defer conn.Close()
	deadline, _ := ctx.Deadline()
	if err := conn.SetDeadline(deadline); err != nil {
		return "", err
	}
	if _, err := conn.Write([]byte(line + "\r\n")); err != nil {
		return "", err
	}
	r := bufio.NewReader(conn)
	head, err := r.ReadString('\n')
	if err != nil {
		return "", err
	}
	kind, head := head[0], strings.TrimSpace(head[1:])
	switch kind {
	case '+':
		return head, nil
	case '$':
		n, err := strconv.Atoi(head)
		if err != nil || n < 0 {
			return "", fmt.Errorf("length %q of a bulk string", head)
		}
		body := make([]byte, n)
		_, err = io.ReadFull(r, body)
		return string(body), err
	default:
		return "", errors.New(head)
	}
}

// tail keeps the last bytes written to it.
type tail struct {
	mu  sync.Mutex
	max int
	buf []byte
}

func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.buf = append(t.buf, p...)
	if over := len(t.buf) - t.max; over > 0 {
		t.buf = append(t.buf[:0], t.buf[over:]...)
	}
	return len(p), nil
}

func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return string(t.buf)
}
