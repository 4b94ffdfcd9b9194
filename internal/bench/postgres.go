package bench

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
)

// debianPostgres is where Debian keeps the server's programs, off the PATH.
const debianPostgres = "/usr/lib/postgresql/*/bin"

var errNoPostgres = errors.New("PostgreSQL is not on this machine: install its server (Debian: apt-get install postgresql)")

// findPostgres looks for the server's programs on the PATH, then in the folders
// that match, where it takes the newest version.
func findPostgres(folders string) (bin string, err error) {
	if path, err := exec.LookPath("postgres"); err == nil {
		// The PATH may have a link; initdb lies beside the program itself.
		if path, err = filepath.EvalSymlinks(path); err == nil && isProgram(filepath.Join(filepath.Dir(path), "initdb")) {
			return filepath.Dir(path), nil
		}
	}
	found, err := filepath.Glob(folders)
	if err != nil {
		return "", err
	}
	found = slices.DeleteFunc(found, func(bin string) bool {
		return !isProgram(filepath.Join(bin, "postgres")) || !isProgram(filepath.Join(bin, "initdb"))
	})
	if len(found) == 0 {
		return "", errNoPostgres
	}
	return slices.MaxFunc(found, func(a, b string) int { return versionOf(a) - versionOf(b) }), nil
}

// versionOf reads the major version off .../<version>/bin; 0 when there is none.
func versionOf(bin string) int {
	n, _ := strconv.Atoi(filepath.Base(filepath.Dir(bin)))
	return n
}

func isProgram(path string) bool {
	_, err := exec.LookPath(path)
	return err == nil
}

// postgres is a server of our own: a fresh cluster in a temporary folder, on
// loopback, with a password that nobody else knows, durable commits, and
// everything else as PostgreSQL sets it. On Linux it dies with this process, by
// the kernel's hand if need be; its folder then stays behind.
type postgres struct {
	addr, password, dir string

	cmd    *exec.Cmd
	log    string        // file
	exited chan struct{} // closed when the server is gone and reaped
}

// postgresTries is how many ports are tried: between asking for a free one and the
// server's bind, somebody else may take it.
const postgresTries = 3

// startPostgres starts a server for that many clients and returns when it
// answers. ctx bounds the start only. The caller must stop it.
func startPostgres(ctx context.Context, clients int) (*postgres, error) {
	bin, err := findPostgres(debianPostgres)
	if err != nil {
		return nil, err
	}
	p := &postgres{password: rand.Text()}
	// Not in a folder of the caller's: the server's user must get there.
	if p.dir, err = os.MkdirTemp("", "holdfast-postgres-"); err != nil {
		return nil, fmt.Errorf("make the folder of postgres: %w", err)
	}
	if err := p.start(ctx, bin, clients); err != nil {
		return nil, errors.Join(err, os.RemoveAll(p.dir))
	}
	return p, nil
}

func (p *postgres) start(ctx context.Context, bin string, clients int) error {
	attr, owner, err := serverProcess()
	if err != nil {
		return err
	}
	secret := filepath.Join(p.dir, "password")
	p.log = filepath.Join(p.dir, "log")
	for name, text := range map[string]string{secret: p.password, p.log: ""} {
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			return fmt.Errorf("prepare postgres: %w", err)
		}
	}
	if owner != nil {
		for _, name := range []string{secret, p.log, p.dir} {
			if err := os.Chown(name, owner.uid, owner.gid); err != nil {
				return fmt.Errorf("prepare postgres: %w", err)
			}
		}
	}
	data := filepath.Join(p.dir, "data")
	runtime.LockOSThread() // see launch
	defer runtime.UnlockOSThread()
	// No sync here: this cluster has nothing yet that must outlive a power cut.
	initdb := exec.CommandContext(ctx, filepath.Join(bin, "initdb"), "--pgdata", data, "--username", "postgres",
		"--pwfile", secret, "--auth", "scram-sha-256", "--encoding", "UTF8", "--locale", "C", "--no-sync")
	initdb.Dir, initdb.SysProcAttr = p.dir, attr
	if out, err := initdb.CombinedOutput(); err != nil {
		return fmt.Errorf("initdb: %w; it said:\n%s", err, out)
	}
	for range postgresTries {
		if err = p.launch(ctx, bin, data, clients, attr); !errors.Is(err, errPostgresEnded) {
			return err
		}
	}
	return err
}

var errPostgresEnded = errors.New("the server has ended")

// launch starts the server and waits until it answers.
func (p *postgres) launch(ctx context.Context, bin, data string, clients int, attr *syscall.SysProcAttr) error {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return fmt.Errorf("find a free port: %w", err)
	}
	p.addr = l.Addr().String()
	_, port, err := net.SplitHostPort(p.addr)
	if err := errors.Join(err, l.Close()); err != nil {
		return fmt.Errorf("find a free port: %w", err)
	}
	log, err := os.OpenFile(p.log, os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		return fmt.Errorf("open the log of postgres: %w", err)
	}
	defer log.Close()
	//nolint:noctx // the server outlives the context of its start
	p.cmd = exec.Command(filepath.Join(bin, "postgres"), "-D", data, "-p", port,
		"-c", "listen_addresses=127.0.0.1", "-c", "unix_socket_directories=",
		"-c", "max_connections="+strconv.Itoa(clients+10),
		"-c", "fsync=on", "-c", "synchronous_commit=on")
	p.cmd.Dir, p.cmd.SysProcAttr = p.dir, attr
	p.cmd.Stdout, p.cmd.Stderr = log, log
	p.exited = make(chan struct{})
	started := make(chan error)
	go func() {
		// The parent-death signal comes when the thread ends that made the child, so
		// one thread belongs to this goroutine for as long as the server lives.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		defer close(p.exited)
		err := p.cmd.Start()
		started <- err
		if err == nil {
			_ = p.cmd.Wait() // how it ended is told by its log
		}
	}()
	if err := <-started; err != nil {
		<-p.exited
		return fmt.Errorf("start postgres: %w", err)
	}
	if err := p.awaitAnswer(ctx); err != nil {
		p.end()
		return fmt.Errorf("start postgres: %w; its log ends:\n%s", err, p.lastWords())
	}
	return nil
}

func (p *postgres) awaitAnswer(ctx context.Context) error {
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		c, err := p.connect(ctx)
		if err == nil {
			return c.Close(ctx)
		}
		select {
		case <-p.exited:
			return errPostgresEnded
		case <-ctx.Done():
			return fmt.Errorf("%w: %w", ctx.Err(), err)
		case <-tick.C:
		}
	}
}

// connect opens one connection; the caller closes it.
func (p *postgres) connect(ctx context.Context) (*pgx.Conn, error) {
	host, port, err := net.SplitHostPort(p.addr)
	if err != nil {
		return nil, err
	}
	return pgx.Connect(ctx, fmt.Sprintf("host=%s port=%s user=postgres password=%s dbname=postgres sslmode=disable connect_timeout=5",
		host, port, p.password))
}

// lastWords is the end of the server's log.
func (p *postgres) lastWords() string {
	text, err := os.ReadFile(p.log)
	if err != nil {
		return err.Error()
	}
	return strings.ToValidUTF8(string(text[max(0, len(text)-4<<10):]), "?")
}

// end ends the server, which has nothing to keep, and returns when it is gone.
func (p *postgres) end() {
	_ = p.cmd.Process.Signal(syscall.SIGQUIT) // at once, and its children with it
	select {
	case <-p.exited:
	case <-time.After(5 * time.Second):
		_ = p.cmd.Process.Kill() // gone already is fine
		<-p.exited
	}
}

// stop ends the server and removes its folder.
func (p *postgres) stop() {
	p.end()
	_ = os.RemoveAll(p.dir) // at worst a folder is left among the temporary ones
}

// account is who the server runs as, when not as we do.
type account struct{ uid, gid int }
