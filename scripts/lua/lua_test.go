package lua_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// Every script says in its header what it touches, takes and answers.
func TestEveryScript_HasItsContractInTheHeader(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("*.lua")
	if err != nil || len(files) < 10 {
		t.Fatalf("found %d scripts, %v", len(files), err)
	}
	embedded, err := os.ReadFile("lua.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		src, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		var header []string
		for line := range strings.Lines(string(src)) {
			if !strings.HasPrefix(line, "--") {
				break
			}
			header = append(header, line)
		}
		want := []string{"-- " + file + ": ", "KEYS[", "ARGV[", "Clock:"}
		if file != "prelude.lua" {
			want = append(want, "Returns {")
		}
		for _, w := range want {
			if !strings.Contains(strings.Join(header, ""), w) {
				t.Errorf("%s: header lacks %q", file, w)
			}
		}
		if !strings.Contains(string(embedded), "//go:embed "+file+"\n") {
			t.Errorf("%s is not embedded", file)
		}
	}
}

// A script may touch only keys it was given: otherwise it breaks on a cluster.
func TestEveryScript_NamesNoKey(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("*.lua")
	if err != nil {
		t.Fatal(err)
	}
	call := regexp.MustCompile(`redis\.call\('[A-Z]+', *('[^']*')`)
	for _, file := range files {
		src, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if m := call.FindStringSubmatch(string(src)); m != nil {
			t.Errorf("%s: key %s is written out; pass it as a key", file, m[1])
		}
	}
}
