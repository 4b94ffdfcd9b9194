package seatctl_test

import (
	"bytes"
	"encoding/json"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"holdfast/internal/httpapi/web"
)

// folder is what lies in a folder, by name.
func folder(t *testing.T, dir string) map[string]string {
	t.Helper()
	list, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	files := map[string]string{}
	for _, entry := range list {
		body, err := os.ReadFile(filepath.Join(dir, entry.Name()))
		if err != nil {
			t.Fatal(err)
		}
		files[entry.Name()] = string(body)
	}
	return files
}

// What the CDN serves in production is what the local profile serves.
func TestPageExport_WritesTheBytesThatAreServed(t *testing.T) {
	t.Parallel()
	d := start(t, map[string]string{"PATH": t.TempDir()}) // Redis in the process
	dir := filepath.Join(t.TempDir(), "a", "page")
	got := run(t, "", "page", "export", dir, "--data", d.data, "--json")
	got.want(t, 0, `nobody who speaks the language has reviewed the texts in "bn"`)
	var out struct {
		Sale  string
		Files []struct {
			File, Path, ETag string
			Bytes            int
			Compressed       int    `json:"compressed_bytes"`
			ContentType      string `json:"content_type"`
			CacheControl     string `json:"cache_control"`
		}
		Headers    []web.Header
		Unreviewed []string
	}
	if err := json.Unmarshal([]byte(got.stdout), &out); err != nil || out.Sale != "demo-2026" || len(out.Files) != 2 {
		t.Fatalf("--json: got %s, %v, want two files of the sale", got.stdout, err)
	}
	if diff := cmp.Diff([]string{"bn"}, out.Unreviewed); diff != "" {
		t.Errorf("unreviewed (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(web.SecurityHeaders(), out.Headers); diff != "" {
		t.Errorf("headers (-want +got):\n%s", diff)
	}
	for i, path := range []string{"/", "/result"} {
		f := out.Files[i]
		body, err := os.ReadFile(f.File)
		if err != nil {
			t.Fatal(err)
		}
		header, served := d.do(t, http.MethodGet, d.base+path, "", "", http.StatusOK)
		if f.Path != path || !bytes.Equal(body, served) || f.Bytes != len(served) {
			t.Errorf("%s: got %+v, %d bytes written, want the %d that are served at %s", f.File, f, len(body), len(served), path)
		}
		for name, told := range map[string]string{"ETag": f.ETag, "Content-Type": f.ContentType, "Cache-Control": f.CacheControl} {
			if got := header.Get(name); got != told {
				t.Errorf("%s: %s: it says %q, served is %q", f.File, name, told, got)
			}
		}
		for _, h := range out.Headers {
			if got := header.Get(h.Name); got != h.Value {
				t.Errorf("%s: %s: it says %q, served is %q", f.File, h.Name, h.Value, got)
			}
		}
		if f.Compressed <= 0 || f.Compressed >= f.Bytes {
			t.Errorf("%s: got %d bytes compressed of %d", f.File, f.Compressed, f.Bytes)
		}
	}
	// The sale's file makes the same pages, without asking anybody.
	other := t.TempDir()
	run(t, "", "page", "export", other, "--sale", saleFile(t)).want(t, 0)
	if diff := cmp.Diff(folder(t, dir), folder(t, other)); diff != "" {
		t.Errorf("from the running sale, and from its file:\n%s", diff)
	}
	if log := run(t, "", "log", "--data", d.data); strings.Contains(log.stdout, "page") {
		t.Errorf("log: got %s, want nothing of what changes nothing", log.stdout)
	}
}

func TestPageExport_SaysHowToServeWhatItWrote(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	got := run(t, "", "page", "export", dir, "--sale", saleFile(t))
	got.want(t, 0, filepath.Join(dir, "index.html"), filepath.Join(dir, "result"), "/result", "text/html; charset=utf-8", "public, max-age=20", `W/"`,
		"This writes the pages of sale demo-2026 into "+dir)
	for _, h := range web.SecurityHeaders() {
		got.want(t, 0, "  "+h.Name+": "+h.Value)
	}
	// The help has the values in commands to copy.
	run(t, "", "page", "export", "--help").want(t, 0, "--content-type 'text/html; charset=utf-8' --cache-control 'public, max-age=20'")
}

func TestPageExport_RepeatsAndTakesOverANewSale(t *testing.T) {
	t.Parallel()
	dir, sale := t.TempDir(), saleFile(t)
	run(t, "", "page", "export", dir, "--sale", sale).want(t, 0)
	first := folder(t, dir)
	run(t, "", "page", "export", dir, "--sale", sale).want(t, 0)
	if diff := cmp.Diff(first, folder(t, dir)); diff != "" {
		t.Errorf("written again (-first +again):\n%s", diff)
	}
	text, err := os.ReadFile(sale)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(sale, bytes.Replace(text, []byte(`"1500.00"`), []byte(`"1600.00"`), 1), 0o600); err != nil {
		t.Fatal(err)
	}
	run(t, "", "page", "export", dir, "--sale", sale).want(t, 0)
	for name, page := range folder(t, dir) {
		if !strings.Contains(page, "1600.00 BDT") || strings.Contains(page, "1500.00 BDT") {
			t.Errorf("%s: want the new fee in it and not the old one", name)
		}
	}
	for _, name := range []string{"index.html", "result"} {
		info, err := os.Stat(filepath.Join(dir, name))
		if err != nil || info.Mode() != 0o644 {
			t.Errorf("%s: got mode %v, %v, want one that everybody may read", name, info.Mode(), err)
		}
	}
}

// Somebody else's site may lie there: neither page is written then.
func TestPageExport_LeavesWhatIsNotItsOwn(t *testing.T) {
	t.Parallel()
	sale := saleFile(t)
	for name, lay := range map[string]func(path string) error{
		"another page": func(path string) error { return os.WriteFile(path, []byte("<title>Welcome</title>"), 0o600) },
		"an empty one": func(path string) error { return os.WriteFile(path, nil, 0o600) },
		"a folder":     func(path string) error { return os.Mkdir(path, 0o700) },
		"a link":       func(path string) error { return os.Symlink(sale, path) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			path := filepath.Join(dir, "result")
			if err := lay(path); err != nil {
				t.Fatal(err)
			}
			before, err := os.Lstat(path)
			if err != nil {
				t.Fatal(err)
			}
			run(t, "", "page", "export", dir, "--sale", sale).want(t, 1, path+" is there and is no page of Holdfast's")
			after, err := os.Lstat(path)
			if err != nil || before.ModTime() != after.ModTime() || before.Mode() != after.Mode() || before.Size() != after.Size() {
				t.Errorf("%s: got %v, %v, want it untouched", path, after, err)
			}
			if list, err := os.ReadDir(dir); err != nil || len(list) != 1 {
				t.Errorf("folder: got %v, %v, want nothing written", list, err)
			}
		})
	}
}

func TestPageExport_SaysWhyItCannot(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	bad := filepath.Join(dir, "sale.yaml")
	if err := os.WriteFile(bad, []byte("name: demo\ncap: many\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	out := filepath.Join(dir, "page")
	run(t, "", "page", "export", out, "--sale", bad).want(t, 1, "line 2")
	run(t, "", "page", "export", out, "--sale", filepath.Join(dir, "none.yaml")).want(t, 2, "no such file")
	run(t, "", "page", "export", out).want(t, 2, "data folder")
	run(t, "", "page", "export", filepath.Join(bad, "x"), "--sale", saleFile(t)).want(t, 2, "not a directory")
	s := stopped(t, time.Minute)
	if err := s.rdb.FlushAll(t.Context()).Err(); err != nil {
		t.Fatal(err)
	}
	s.serve(t, 0)
	run(t, "", "page", "export", out, "--data", s.data).want(t, 1, "no sale is in force")
	if _, err := os.Stat(out); !os.IsNotExist(err) {
		t.Errorf("%s: got %v, want nothing made", out, err)
	}
}
