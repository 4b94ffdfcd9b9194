package testenv

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

// debianPostgres is where Debian keeps the server's programs, off the PATH.
const debianPostgres = "/usr/lib/postgresql/*/bin"

// PostgresServer is a PostgreSQL server of a test's own. It listens on a Unix socket in
// a folder that nobody else may enter, so it needs no port and no password. It does not
// wait for the disk: what is in it need not outlive a power cut.
type PostgresServer struct {
	bin, dir  string
	attr      *syscall.SysProcAttr
	databases atomic.Int64

	cmd    *exec.Cmd
	exited chan struct{} // closed when the server is gone and reaped
}

// Postgres starts a server, empty; it costs about two seconds. It ends with the test.
// Where no server program is installed the test is skipped with a message, or fails
// with CI=true. A server does not run as root: root starts it as user postgres or
// nobody.
func Postgres(t testing.TB) *PostgresServer {
	t.Helper()
	bin, found := findPostgres()
	if !found {
		if os.Getenv("CI") == "true" {
			t.Fatal("postgresql is not installed (`make setup` does it), and with CI=true this test must run")
		}
		t.Skip("NOT TESTED AGAINST A REAL POSTGRESQL: it is not installed; `make setup` does it")
	}
	// Not t.TempDir: the server's user must get there, and a socket's path is short.
	dir, err := os.MkdirTemp("", "holdfast-postgres-") //nolint:usetesting // see above
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) }) // at worst a folder stays among the temporary ones
	p := &PostgresServer{bin: bin, dir: dir}
	if p.attr, err = serverProcess(dir); err != nil {
		t.Fatalf("prepare postgres: %v", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), startWithin)
	defer cancel()
	// The parent-death signal comes when the thread ends that made the child.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	initdb := exec.CommandContext(ctx, filepath.Join(bin, "initdb"), "--pgdata", filepath.Join(dir, "data"),
		"--username", "postgres", "--auth", "trust", "--encoding", "UTF8", "--locale", "C", "--no-sync")
	initdb.Dir, initdb.SysProcAttr = dir, p.attr
	if out, err := initdb.CombinedOutput(); err != nil {
		t.Fatalf("initdb: %v; it said:\n%s", err, out)
	}
	p.Start(t)
	t.Cleanup(p.Stop)
	return p
}

// Start starts the server again after Stop, with what it held, and returns when it
// answers.
func (p *PostgresServer) Start(t testing.TB) {
	t.Helper()
	log, err := os.OpenFile(filepath.Join(p.dir, "log"), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	//nolint:noctx // it lives as long as the test, and a test's context ends before its clean-up
	cmd := exec.Command(filepath.Join(p.bin, "postgres"), "-D", filepath.Join(p.dir, "data"),
		"-c", "listen_addresses=", "-c", "unix_socket_directories="+p.dir, "-c", "fsync=off")
	cmd.Dir, cmd.SysProcAttr, cmd.Stdout, cmd.Stderr = p.dir, p.attr, log, log
	started, exited := make(chan error), make(chan struct{})
	go func() {
		// One thread belongs to this goroutine for as long as the server lives; see Postgres.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		defer close(exited)
		err := cmd.Start()
		started <- err
		if err == nil {
			_ = cmd.Wait() // how it ended is told by its log
		}
	}()
	if err := <-started; err != nil {
		t.Fatalf("start postgres: %v", err)
	}
	p.cmd, p.exited = cmd, exited
	ctx, cancel := context.WithTimeout(t.Context(), startWithin)
	defer cancel()
	if err := p.awaitAnswer(ctx); err != nil {
		p.Stop()
		text, _ := os.ReadFile(log.Name())
		t.Fatalf("start postgres: %v; its log:\n%s", err, text)
	}
}

func (p *PostgresServer) awaitAnswer(ctx context.Context) error {
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		conn, err := pgx.Connect(ctx, p.url("postgres"))
		if err == nil {
			return conn.Close(ctx)
		}
		select {
		case <-p.exited:
			return errors.New("the server has ended")
		case <-ctx.Done():
			return fmt.Errorf("%w: %w", ctx.Err(), err)
		case <-tick.C:
		}
	}
}

// Stop ends the server at once, as a failover does: connections break. Safe to repeat.
func (p *PostgresServer) Stop() {
	_ = p.cmd.Process.Signal(syscall.SIGQUIT) // the children go first; gone already is fine
	select {
	case <-p.exited:
	case <-time.After(5 * time.Second):
		_ = p.cmd.Process.Kill()
		<-p.exited
	}
}

// Database makes a fresh, empty database and returns its connection string.
func (p *PostgresServer) Database(t testing.TB) string {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), p.url("postgres"))
	if err != nil {
		t.Fatalf("connect to postgres: %v", err)
	}
	defer conn.Close(context.WithoutCancel(t.Context()))
	name := "test_" + strconv.FormatInt(p.databases.Add(1), 10)
	if _, err := conn.Exec(t.Context(), "CREATE DATABASE "+name); err != nil {
		t.Fatalf("create database: %v", err)
	}
	return p.url(name)
}

func (p *PostgresServer) url(database string) string {
	return "postgres://postgres@/" + database + "?sslmode=disable&host=" + url.QueryEscape(p.dir)
}

// findPostgres looks for the server's programs on the PATH, then where Debian has them,
// and takes the newest.
func findPostgres() (bin string, ok bool) {
	if path, err := exec.LookPath("postgres"); err == nil {
		// The PATH may have a link; initdb lies beside the program itself.
		if path, err = filepath.EvalSymlinks(path); err == nil && isPostgres(filepath.Dir(path)) {
			return filepath.Dir(path), true
		}
	}
	found, _ := filepath.Glob(debianPostgres) // the pattern is well-formed
	found = slices.DeleteFunc(found, func(bin string) bool { return !isPostgres(bin) })
	if len(found) == 0 {
		return "", false
	}
	return slices.MaxFunc(found, func(a, b string) int { return postgresVersion(a) - postgresVersion(b) }), true
}

func isPostgres(bin string) bool {
	_, err1 := exec.LookPath(filepath.Join(bin, "postgres"))
	_, err2 := exec.LookPath(filepath.Join(bin, "initdb"))
	return err1 == nil && err2 == nil
}

// postgresVersion reads the major version off .../<version>/bin; 0 when there is none.
func postgresVersion(bin string) int {
	n, _ := strconv.Atoi(filepath.Base(filepath.Dir(bin)))
	return n
}
