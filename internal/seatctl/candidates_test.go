package seatctl_test

import (
	"bytes"
	"compress/gzip"
	"encoding/csv"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"unicode/utf16"

	"github.com/google/go-cmp/cmp"

	"holdfast/internal/saleops"
	"holdfast/internal/testenv"
)

// candidatesFile writes a file and returns its path.
func candidatesFile(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "candidates.csv")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// listed is candidates i to n-1 of the demo sale as a file, one of each a line.
func listed(from, n int) string {
	var b strings.Builder
	b.WriteString("code,email\n")
	for i := from; i < n; i++ {
		fmt.Fprintf(&b, "AB-%d,candidate%d@example.org\n", i, i)
	}
	return b.String()
}

// allowlist reads the list past the programs.
func (d *deployment) allowlist(t *testing.T) []string {
	t.Helper()
	codes, err := d.rdb.SMembers(t.Context(), "{sale}:candidates:valid").Result()
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(codes)
	return codes
}

func (d *deployment) set(t *testing.T, key, value string) {
	t.Helper()
	if err := d.rdb.Set(t.Context(), "{sale}:"+key, value, 0).Err(); err != nil {
		t.Fatal(err)
	}
}

// candidates runs a command of "candidates" against the deployment.
func (d *deployment) candidates(t *testing.T, stdin string, args ...string) result {
	t.Helper()
	return run(t, stdin, append([]string{"candidates", "--data", d.data}, args...)...)
}

// loaded is what --json tells.
type loaded struct {
	Sale   string
	File   string
	DryRun bool `json:"dry_run"`
	saleops.AllowlistReport
	Repeated int
	Wrong    int
	Errors   []struct {
		Line   int
		Reason string
	}
	Rejects       string
	Seconds       float64
	RowsPerSecond float64 `json:"rows_per_second"`
	PeakRSS       int64   `json:"peak_rss_bytes"`
	Error         string
}

func (r result) loaded(t *testing.T) loaded {
	t.Helper()
	var out loaded
	if err := json.Unmarshal([]byte(r.stdout), &out); err != nil {
		t.Fatalf("--json: %v in %+v", err, r)
	}
	return out
}

// A file as a spreadsheet saves it takes the list's place; what it changes is said and
// asked about; written out again it is the same list.
func TestCandidates_LoadShowExport(t *testing.T) {
	for name, env := range map[string]func(t *testing.T) map[string]string{
		"OwnPair":        func(t *testing.T) map[string]string { testenv.NeedServer(t); return nil },
		"InProcessRedis": func(t *testing.T) map[string]string { return map[string]string{"PATH": t.TempDir()} },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			loadShowExport(t, start(t, env(t)))
		})
	}
}

func loadShowExport(t *testing.T, d *deployment) {
	before := d.allowlist(t)
	// 100001 to 102000 are on the list: ten go, five come, one has another address, and
	// two are there twice.
	text := strings.ReplaceAll(listed(100011, 102006), ",", ";")
	text = strings.Replace(text, "candidate100020@", "\"other\"@", 1)
	text = strings.Replace(text, `"other"@example.org`, `"other@example.org"`, 1)
	text += " ab-100012 ; candidate100012@EXAMPLE.org;;\nAB-100013;candidate100013@example.org\n;;\n\n"
	var file bytes.Buffer
	for _, unit := range utf16.Encode([]rune("\ufeff" + strings.ReplaceAll(text, "\n", "\r\n"))) {
		file.Write([]byte{byte(unit), byte(unit >> 8)})
	}
	path := candidatesFile(t, file.String())

	d.candidates(t, "y\n", "load", path).want(t, 1, "close it first")
	d.set(t, "booking:open", "0")
	got := d.candidates(t, "", "load", path, "--dry-run", "--json").loaded(t)
	want := saleops.AllowlistReport{Rows: 1995, Added: 5, Removed: 10, Changed: 1, Unchanged: 1989}
	if diff := cmp.Diff(want, got.AllowlistReport); diff != "" || !got.DryRun || got.Repeated != 2 || got.Sale != "demo-2026" {
		t.Errorf("dry run: got %+v (-want +got):\n%s", got, diff)
	}
	d.candidates(t, "n\n", "load", path).want(t, 1, "10        removed", "1         with another e-mail", "2         rows were repeated", "[y/N]", "not agreed: nothing was changed")
	if diff := cmp.Diff(before, d.allowlist(t)); diff != "" {
		t.Fatalf("the list after a dry run and a no (-before +after):\n%s", diff)
	}
	d.candidates(t, "y\n", "load", path, "--reason", "late entries").want(t, 0, "takes the place of the allowlist of sale demo-2026", "1995 candidates", "in force, in ", "rows a second")
	if codes := d.allowlist(t); len(codes) != 1995 || codes[0] != "AB-100011" || codes[1994] != "AB-102005" {
		t.Fatalf("the list: got %d codes, %s to %s, want 1995, AB-100011 to AB-102005", len(codes), codes[0], codes[len(codes)-1])
	}
	run(t, "", "log", "--data", d.data).want(t, 0, "candidates load", "late entries")

	d.candidates(t, "", "show", "ab-100020").want(t, 0, "AB-100020 is on the allowlist", "o***@example.org", "seat    none")
	d.candidates(t, "", "show", "AB-100020", "--email").want(t, 0, "other@example.org")
	d.candidates(t, "", "show", "AB-100001").want(t, 1, "NOT on the allowlist")
	d.candidates(t, "", "show", "?").want(t, 2, "CODE")
	d.set(t, "booking:open", "1")
	d.book(t, 102005)
	d.candidates(t, "", "show", "AB-102005").want(t, 0, "on the allowlist", "seat    ", "level N1, attempt ")
	d.set(t, "booking:open", "0")

	out := filepath.Join(t.TempDir(), "out.csv")
	d.candidates(t, "", "export", "--out", out, "--json").want(t, 0, `"rows": 1995`)
	if info, err := os.Stat(out); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the export: got %v, %v, want mode 0600", info, err)
	}
	d.candidates(t, "", "export", "--out", out).want(t, 2, "exists")
	d.candidates(t, "", "export", "--json").want(t, 2, "--out")
	again := d.candidates(t, "", "load", out, "--yes", "--json").loaded(t)
	if want := (saleops.AllowlistReport{Rows: 1995, Unchanged: 1995, Applied: true}); cmp.Diff(want, again.AllowlistReport) != "" {
		t.Errorf("the export loaded: got %+v, want %+v", again.AllowlistReport, want)
	}
	if again.RowsPerSecond <= 0 || again.Seconds <= 0 || again.PeakRSS <= 0 {
		t.Errorf("figures: got %+v, want seconds, rows a second and a peak", again)
	}

	// From stdin, compressed, once.
	piped := d.candidates(t, "", "export")
	piped.want(t, 0, "code,email\n")
	var zipped bytes.Buffer
	z := gzip.NewWriter(&zipped)
	_, _ = z.Write([]byte(piped.stdout))
	_ = z.Close()
	d.candidates(t, zipped.String(), "load", "-").want(t, 2, "--yes")
	d.candidates(t, zipped.String(), "load", "-", "--yes").want(t, 0, "1995      as they were", "in force")
	d.candidates(t, zipped.String()[:zipped.Len()-9], "load", "-", "--yes").want(t, 1, "nothing was changed", "unexpected EOF")
}

// One wrong line, and the file is refused: told by its line, and written out for whoever
// mends it.
func TestCandidates_AWrongFileChangesNothing(t *testing.T) {
	t.Parallel()
	d := start(t, map[string]string{"PATH": t.TempDir()})
	d.set(t, "booking:open", "0")
	before := d.allowlist(t)
	path := candidatesFile(t, listed(100001, 100050)+"x,y@example.org\nAB-100001,other@example.org\nAB-100099,\"z@example.org\nAB-100100,a@example.org\n")
	rejects := filepath.Join(t.TempDir(), "rejects.csv")
	got := d.candidates(t, "", "load", path, "--allow-removals", "--yes", "--rejects", rejects)
	got.want(t, 1, "line 51: code: not a candidate code", "line 52: its code is on line 2 with another e-mail address", "line 53: column 11: the quotation mark is not closed", "the file is wrong: nothing was changed", rejects)
	if strings.Contains(got.stdout+got.stderr, "other@example.org") {
		t.Error("the terminal shows an address")
	}
	if diff := cmp.Diff(before, d.allowlist(t)); diff != "" {
		t.Fatalf("the list (-before +after):\n%s", diff)
	}
	info, err := os.Stat(rejects)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Fatalf("rejects: got %v, %v, want mode 0600", info, err)
	}
	f, err := os.Open(rejects)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	rows, err := csv.NewReader(f).ReadAll()
	if err != nil || len(rows) != 4 || !slices.Equal(rows[2], []string{"52", "its code is on line 2 with another e-mail address", "AB-100001,other@example.org"}) {
		t.Errorf("rejects: got %q, %v, want a header and three lines", rows, err)
	}
	out := d.candidates(t, "", "load", path, "--yes", "--json").loaded(t)
	if out.Wrong != 3 || len(out.Errors) != 3 || out.Errors[0].Line != 51 || out.Rows != 0 || out.Error == "" {
		t.Errorf("--json: got %+v, want three wrong lines and no figures of part of a file", out)
	}
	run(t, "", "log", "--data", d.data).want(t, 0, "refused")
	none := filepath.Join(t.TempDir(), "none.csv")
	d.candidates(t, "", "load", candidatesFile(t, listed(100001, 102001)), "--rejects", none).want(t, 0, "2000      as they were")
	if _, err := os.Stat(none); !os.IsNotExist(err) {
		t.Errorf("rejects of a file without any: got %v, want no file", err)
	}
	d.candidates(t, "", "load", none).want(t, 2, "no such file")
}

// What may not be dropped unasked is not, and who has a seat keeps it.
func TestCandidates_RemovalsNeedTheirFlag(t *testing.T) {
	t.Parallel()
	d := start(t, map[string]string{"PATH": t.TempDir()})
	d.book(t, 100001)
	d.candidates(t, "", "load", candidatesFile(t, listed(100002, 102001)), "--while-open", "--yes").want(t, 1,
		"1 of the removed have a live booking and keep its seat: attempts ", "--allow-removals")
	d.candidates(t, "", "load", candidatesFile(t, listed(100001, 101800)), "--while-open", "--yes").want(t, 1, "201 of 2000", "--allow-removals")
	if n := len(d.allowlist(t)); n != 2000 {
		t.Fatalf("the list: got %d, want it untouched", n)
	}
	d.candidates(t, "", "load", candidatesFile(t, listed(100002, 100502)), "--while-open", "--allow-removals", "--yes").want(t, 0, "1500      removed", "in force")
	d.candidates(t, "", "show", "AB-100001").want(t, 1, "NOT on the allowlist", "level N1, attempt ")
	// A new candidate's booking works at once; one who was dropped is not on the list.
	d.book(t, 100002)
	_, body := d.do(t, http.MethodPost, d.base+"/book", "application/json", `{"code":"AB-100900","email":"candidate100900@example.org","level":"N1"}`, http.StatusBadRequest)
	if !strings.Contains(string(body), "invalid_code") {
		t.Errorf("a dropped candidate: got %s, want invalid_code", body)
	}
}
