package bootstrap_test

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"
)

// cache keeps the root that the tests start from: making it takes a minute and the
// network, unpacking it two seconds.
const cache = "../../.cache/debootstrap"

// TestMain has the tests run as root, where they may: only root makes and enters a root.
func TestMain(m *testing.M) {
	sudo := exec.Command("sudo", append([]string{"-n", "-E", os.Args[0]}, os.Args[1:]...)...) //nolint:noctx // it is this whole run
	sudo.Stdin, sudo.Stdout, sudo.Stderr = os.Stdin, os.Stdout, os.Stderr
	if os.Geteuid() == 0 || exec.Command("sudo", "-n", "true").Run() != nil { //nolint:noctx // it answers at once
		os.Exit(m.Run())
	}
	if err := sudo.Run(); err != nil {
		os.Exit(1)
	}
}

// missing skips the test, or fails it with CI=true.
func missing(t *testing.T, what string) {
	t.Helper()
	if os.Getenv("CI") == "true" {
		t.Fatalf("%s, and with CI=true this test must run", what)
	}
	t.Skip("INSTALLATION NOT TESTED: " + what)
}

// base is the archive of a minimal Debian, made when there is none.
func base(t *testing.T) string {
	t.Helper()
	if os.Geteuid() != 0 {
		missing(t, "another root needs root, or sudo without a password")
	}
	program, err := exec.LookPath("debootstrap")
	if err != nil {
		if program, err = exec.LookPath("/usr/sbin/debootstrap"); err != nil {
			missing(t, "debootstrap is not installed (Debian's package debootstrap)")
		}
	}
	archive := filepath.Join(cache, "stable-minbase-"+runtime.GOARCH+".tar")
	if err := os.MkdirAll(cache, 0o755); err != nil {
		t.Fatal(err)
	}
	// Another run may be making it.
	lock, err := os.Create(archive + ".lock")
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Close()
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(archive); err == nil {
		return archive
	}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	root := filepath.Join(t.TempDir(), "root")
	if out, err := exec.CommandContext(ctx, program, "--variant=minbase", "stable", root).CombinedOutput(); err != nil {
		missing(t, "debootstrap "+err.Error()+": is the network there?\n"+tail(string(out)))
	}
	out, err := exec.CommandContext(ctx, "tar", "-C", root, "-cf", archive+".new",
		"--exclude=./var/cache/*", "--exclude=./var/lib/apt/*", "--exclude=./usr/share/doc/*",
		"--exclude=./usr/share/locale/*", "--exclude=./usr/share/man/*", ".").CombinedOutput()
	if err := errors.Join(err, os.Rename(archive+".new", archive)); err != nil {
		t.Fatalf("keep the root: %v\n%s", err, out)
	}
	return archive
}

func tail(text string) string { return text[max(0, len(text)-2000):] }

// machine is a root of its own in which everything is real but systemd, dnf, the AWS
// CLI and the agent: those stand in testdata.
type machine struct {
	t    *testing.T
	root string
}

func newMachine(t *testing.T) *machine {
	t.Helper()
	archive := base(t)
	m := &machine{t, t.TempDir()}
	if out, err := exec.CommandContext(t.Context(), "tar", "-C", m.root, "-xf", archive).CombinedOutput(); err != nil {
		t.Fatalf("unpack the root: %v\n%s", err, out)
	}
	for name, place := range map[string]string{
		"systemctl": "usr/bin/systemctl", "dnf": "usr/bin/dnf", "aws": "usr/bin/aws", "ctl": "srv/ctl",
	} {
		m.write(place, m.read(filepath.Join("testdata", name)), 0o755)
	}
	m.write("var/lib/cloud/data/instance-id", "i-0123456789abcdef0\n", 0o644)
	return m
}

// read is a file of this repository.
func (m *machine) read(path string) string {
	m.t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		m.t.Fatal(err)
	}
	return string(text)
}

func (m *machine) path(place string) string { return filepath.Join(m.root, place) }

// write puts a file into the machine, whatever was there.
func (m *machine) write(place, text string, mode fs.FileMode) {
	m.t.Helper()
	path := m.path(place)
	if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), mode), os.Chmod(path, mode)); err != nil {
		m.t.Fatal(err)
	}
}

// remove takes a file or a folder away.
func (m *machine) remove(place string) {
	m.t.Helper()
	if err := os.RemoveAll(m.path(place)); err != nil {
		m.t.Fatal(err)
	}
}

// run runs a program of the machine and returns what it said. env is all its
// environment but PATH.
func (m *machine) run(env []string, name string, args ...string) (string, error) {
	m.t.Helper()
	ctx, cancel := context.WithTimeout(m.t.Context(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir = "/"
	cmd.Env = append([]string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin"}, env...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Chroot: m.root}
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// calls are those of the stand-ins that change something, since the last time.
func (m *machine) calls() []string {
	m.t.Helper()
	text, err := os.ReadFile(m.path("srv/calls"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		m.t.Fatal(err)
	}
	m.remove("srv/calls")
	return strings.Split(strings.TrimSuffix(string(text), "\n"), "\n")
}

// file is a file's identity and the times of its content and of its place: whatever
// replaces it or writes to it changes them.
type file struct {
	Inode         uint64
	Size          int64
	Mode          fs.FileMode
	Written, Kept syscall.Timespec
}

// files are all that lie under places.
func (m *machine) files(places ...string) map[string]file {
	m.t.Helper()
	all := map[string]file{}
	for _, place := range places {
		err := filepath.WalkDir(m.path(place), func(path string, e fs.DirEntry, err error) error {
			if err != nil {
				return err
			}
			info, err := e.Info()
			if err != nil {
				return err
			}
			s := info.Sys().(*syscall.Stat_t)
			all[strings.TrimPrefix(path, m.root)] = file{s.Ino, s.Size, info.Mode(), s.Mtim, s.Ctim}
			return nil
		})
		if err != nil {
			m.t.Fatal(err)
		}
	}
	return all
}
