// Package release_test runs the release script on a small module of the same layout, so
// that a release takes seconds, and looks at what it gives.
package release_test

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"compress/gzip"
	"debug/buildinfo"
	"debug/elf"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

const (
	tag       = "v1.2.3"
	committed = "2026-11-30T10:00:00Z"
)

// git runs git in the folder, as nobody in particular and at a fixed time.
func git(t *testing.T, dir string, args ...string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "git", args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "GIT_CONFIG_GLOBAL=/dev/null", "GIT_CONFIG_SYSTEM=/dev/null",
		"GIT_AUTHOR_NAME=Seats", "GIT_AUTHOR_EMAIL=seats@example.org", "GIT_AUTHOR_DATE="+committed,
		"GIT_COMMITTER_NAME=Seats", "GIT_COMMITTER_EMAIL=seats@example.org", "GIT_COMMITTER_DATE="+committed)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("git %s: %v\n%s", strings.Join(args, " "), err, out)
	}
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o600)); err != nil {
		t.Fatal(err)
	}
}

// module is a folder with a committed module: the script and all that it packs are the
// project's, the programs are empty.
func module(t *testing.T) string {
	t.Helper()
	for _, tool := range []string{"zip", "gzip", "git"} {
		if _, err := exec.LookPath(tool); err != nil {
			if os.Getenv("CI") == "true" {
				t.Fatalf("%s is not installed, and with CI=true this test must run", tool)
			}
			t.Skipf("RELEASE NOT TESTED: %s is not installed", tool)
		}
	}
	dir := t.TempDir()
	for _, command := range []string{"api", "worker", "seatctl", "sync-lambda", "expiry-lambda"} {
		write(t, filepath.Join(dir, "cmd", command, "main.go"), "package main\n\nfunc main() {}\n")
	}
	write(t, filepath.Join(dir, "go.mod"), "module holdfast\n\ngo 1.26\n")
	for _, pattern := range []string{"deploy/systemd/*.service", "deploy/cloudwatch/*", "deploy/bootstrap/install", "deploy/release/release"} {
		paths, err := filepath.Glob(filepath.Join("../..", pattern))
		if err != nil || len(paths) == 0 {
			t.Fatalf("%s: got %v, %v, want files", pattern, paths, err)
		}
		for _, path := range paths {
			text, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			to := filepath.Join(dir, strings.TrimPrefix(path, "../../"))
			write(t, to, string(text))
			if filepath.Ext(path) == "" { // the scripts
				if err := os.Chmod(to, 0o755); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	git(t, dir, "init", "-q")
	git(t, dir, "add", "-A")
	git(t, dir, "commit", "-q", "-m", "seats")
	git(t, dir, "tag", tag)
	return dir
}

// run runs the script in a module.
func run(t *testing.T, dir string, env ...string) (string, error) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), filepath.Join(dir, "deploy/release/release"))
	cmd.Env = append(os.Environ(), env...)
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// files are a folder's by their names.
func files(t *testing.T, dir string) map[string][]byte {
	t.Helper()
	all := map[string][]byte{}
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		text, err := os.ReadFile(filepath.Join(dir, e.Name()))
		if err != nil {
			t.Fatal(err)
		}
		all[e.Name()] = text
	}
	return all
}

func names(all map[string][]byte) []string {
	var names []string
	for name := range all {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

func TestRelease_SameCommitSameBytes(t *testing.T) {
	t.Parallel()
	first := module(t)
	if out, err := run(t, first, "TZ=Asia/Dhaka"); err != nil {
		t.Fatalf("got %v, want nil:\n%s", err, out)
	}
	// Elsewhere, later, under another umask, and in a shell that is set up otherwise.
	second := filepath.Join(t.TempDir(), "a", "longer", "path")
	git(t, ".", "clone", "-q", first, second)
	cmd := exec.CommandContext(t.Context(), "sh", "-c", `umask 077 && exec "$0"`, filepath.Join(second, "deploy/release/release"))
	cmd.Env = append(os.Environ(), "TZ=America/Lima", "LC_ALL=C.UTF-8", "GOFLAGS=-ldflags=-X=main.x=1", "GOAMD64=v3", "GOARCH=amd64", "TAR_OPTIONS=--owner=nobody", "GZIP=-1", "VERSION="+tag)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("second: got %v, want nil:\n%s", err, out)
	}
	got, want := files(t, filepath.Join(second, "dist", tag)), files(t, filepath.Join(first, "dist", tag))
	if diff := cmp.Diff(names(want), names(got)); diff != "" {
		t.Errorf("files (-first +second):\n%s", diff)
	}
	for name := range want {
		if !bytes.Equal(got[name], want[name]) {
			t.Errorf("%s: got other bytes the second time, want the same", name)
		}
	}

	// Once more in its place: it is compared and left alone; what differs is told.
	if out, err := run(t, first); err != nil || !strings.Contains(out, "dist/"+tag+" is what this commit gives") {
		t.Errorf("again: got %v, %q, want it compared", err, out)
	}
	write(t, filepath.Join(first, "dist", tag, "sync-lambda.zip"), "another")
	if out, err := run(t, first); err == nil || !strings.Contains(out, "sync-lambda.zip differ") {
		t.Errorf("with another file there: got %v, %q, want it told", err, out)
	}
	if left, err := filepath.Glob(filepath.Join(first, "dist", ".v*")); err != nil || len(left) > 0 {
		t.Errorf("dist: got %q (%v), want nothing left", left, err)
	}
}

func TestRelease_HoldsWhatAnInstanceNeeds(t *testing.T) {
	t.Parallel()
	dir := module(t)
	if out, err := run(t, dir); err != nil {
		t.Fatalf("got %v, want nil:\n%s", err, out)
	}
	all := files(t, filepath.Join(dir, "dist", tag))
	want := []string{"SHA256SUMS"}
	for _, arch := range []string{"amd64", "arm64"} {
		archive := "holdfast-" + tag + "-linux-" + arch + ".tar.gz"
		want = append(want, archive, archive+".sha256")
		for _, program := range []string{"api", "worker", "seatctl"} {
			want = append(want, program+"-linux-"+arch+".cdx.json")
		}
	}
	for _, function := range []string{"sync-lambda", "expiry-lambda"} {
		want = append(want, function+".zip", function+".zip.sha256", function+".cdx.json")
	}
	slices.Sort(want)
	if diff := cmp.Diff(want, names(all)); diff != "" {
		t.Errorf("files (-want +got):\n%s", diff)
	}

	machines := map[string]elf.Machine{"amd64": elf.EM_X86_64, "arm64": elf.EM_AARCH64}
	for arch, machine := range machines {
		checkArchive(t, all["holdfast-"+tag+"-linux-"+arch+".tar.gz"], machine)
	}
	for _, function := range []string{"sync-lambda", "expiry-lambda"} {
		z, err := zip.NewReader(bytes.NewReader(all[function+".zip"]), int64(len(all[function+".zip"])))
		if err != nil || len(z.File) != 1 || z.File[0].Name != "bootstrap" || z.File[0].Mode().Perm() != 0o755 {
			t.Fatalf("%s.zip: got %v, want bootstrap alone, to be executed", function, err)
		}
		r, err := z.File[0].Open()
		if err != nil {
			t.Fatal(err)
		}
		program, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		checkProgram(t, function, program, elf.EM_AARCH64, "lambda.norpc")
	}

	check := exec.CommandContext(t.Context(), "sh", "-c", "sha256sum --check --strict --quiet SHA256SUMS *.sha256")
	check.Dir = filepath.Join(dir, "dist", tag)
	if out, err := check.CombinedOutput(); err != nil {
		t.Errorf("checksums: got %v, want nil:\n%s", err, out)
	}
	if summed := strings.Count(string(all["SHA256SUMS"]), "\n"); summed != 12 {
		t.Errorf("SHA256SUMS: got %d lines, want each of the archives, the functions and the lists", summed)
	}

	var list struct {
		BomFormat string `json:"bomFormat"`
		Metadata  struct {
			Timestamp string `json:"timestamp"`
			Component struct {
				Name, Version string
			} `json:"component"`
		} `json:"metadata"`
	}
	if err := json.Unmarshal(all["api-linux-arm64.cdx.json"], &list); err != nil {
		t.Fatalf("list: got %v, want JSON", err)
	}
	if list.BomFormat != "CycloneDX" || list.Metadata.Timestamp != committed || list.Metadata.Component.Name != "holdfast" || list.Metadata.Component.Version != tag {
		t.Errorf("list: got %+v, want holdfast %s of the commit's time", list, tag)
	}
}

// checkArchive checks a release's archive: what is in it, whose and how old, and that
// its programs are for that machine.
func checkArchive(t *testing.T, archive []byte, machine elf.Machine) {
	t.Helper()
	z, err := gzip.NewReader(bytes.NewReader(archive))
	if err != nil {
		t.Fatal(err)
	}
	at, err := time.Parse(time.RFC3339, committed)
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]fs.FileMode{}
	for r := tar.NewReader(z); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		if h.Uid != 0 || h.Gid != 0 || h.Uname != "" && h.Uname != "root" || !h.ModTime.Equal(at) {
			t.Errorf("%s: got owner %d:%d %q of %s, want root's of %s", h.Name, h.Uid, h.Gid, h.Uname, h.ModTime, at)
		}
		if h.Typeflag == tar.TypeDir {
			continue
		}
		got[h.Name] = h.FileInfo().Mode()
		if program, ok := strings.CutPrefix(h.Name, "bin/"); ok {
			text, err := io.ReadAll(r)
			if err != nil {
				t.Fatal(err)
			}
			checkProgram(t, program, text, machine, "")
		}
	}
	want := map[string]fs.FileMode{
		"bin/api": 0o755, "bin/worker": 0o755, "bin/seatctl": 0o755, "install": 0o755,
		"systemd/holdfast-api.service": 0o644, "systemd/holdfast-worker.service": 0o644,
		"cloudwatch/agent.json": 0o644, "cloudwatch/prometheus.yaml": 0o644, "cloudwatch/holdfast-journal@.service": 0o644,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("%s archive (-want +got):\n%s", machine, diff)
	}
}

// checkProgram checks that a program is static, for that machine, of the tagged commit
// and without a path of the machine that built it.
func checkProgram(t *testing.T, name string, program []byte, machine elf.Machine, tags string) {
	t.Helper()
	f, err := elf.NewFile(bytes.NewReader(program))
	if err != nil {
		t.Fatalf("%s: got %v, want a program", name, err)
	}
	if f.Machine != machine {
		t.Errorf("%s: got %s, want %s", name, f.Machine, machine)
	}
	for _, p := range f.Progs {
		if p.Type == elf.PT_INTERP {
			t.Errorf("%s: got a program that needs a loader, want a static one", name)
		}
	}
	info, err := buildinfo.Read(bytes.NewReader(program))
	if err != nil {
		t.Fatalf("%s: got %v, want a Go program", name, err)
	}
	settings := map[string]string{}
	for _, s := range info.Settings {
		settings[s.Key] = s.Value
	}
	if info.Main.Version != tag || settings["vcs.modified"] != "false" || settings["-trimpath"] != "true" || settings["-tags"] != tags {
		t.Errorf("%s: got version %q and %v, want %s of a clean tree with tags %q", name, info.Main.Version, settings, tag, tags)
	}
	if bytes.Contains(program, []byte(os.TempDir()+"/")) {
		t.Errorf("%s: got the path of the building machine in it", name)
	}
}

func TestRelease_RefusesWhatIsNotTheCommit(t *testing.T) {
	t.Parallel()
	dir := module(t)
	if out, err := run(t, dir, "VERSION=v9.9.9"); err == nil || !strings.Contains(out, "VERSION is v9.9.9 and this commit has no such tag: tag it first") {
		t.Errorf("another version: got %v, %q, want it refused", err, out)
	}
	write(t, filepath.Join(dir, "cmd/api/new.go"), "package main\n")
	if out, err := run(t, dir); err == nil || !strings.Contains(out, "there are changes that are not committed") {
		t.Errorf("a changed tree: got %v, %q, want it refused", err, out)
	}
	if made, err := filepath.Glob(filepath.Join(dir, "dist*")); err != nil || len(made) > 0 {
		t.Errorf("dist: got %q (%v), want nothing made", made, err)
	}
}
