package main_test

import (
	"context"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
)

var (
	listed = regexp.MustCompile(`(?m)^  ([a-z]+(?: [a-z]+)?)  +[A-Z]`)
	fenced = regexp.MustCompile("(?ms)^```[^\n]*\n(.*?)^```$")
	span   = regexp.MustCompile("`([^`]+)`")
	called = regexp.MustCompile(`^(?:bin/|go run \./cmd/)?seatctl ([^#|]*)`)
)

// mention is a command line that a page has somewhere.
type mention struct{ page, text string }

// commandsAreNamed wants every command of the program in launch-day.md or a runbook, and
// every command and flag that a page for operators names in the program.
func commandsAreNamed(t *testing.T, bin string) {
	help := func(args ...string) string {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		out, err := exec.CommandContext(ctx, filepath.Join(bin, "seatctl"), append(args, "--help")...).Output()
		if err != nil {
			t.Fatalf("seatctl %v --help: %v", args, err)
		}
		return string(out)
	}
	flags := map[string]string{} // the help of each command that is there
	for _, m := range listed.FindAllStringSubmatch(help(), -1) {
		flags[m[1]] = ""
	}
	if len(flags) < 25 {
		t.Fatalf("commands: got %d, want 25 at least", len(flags))
	}

	runbooks, err := filepath.Glob(filepath.Join(repository, "docs/runbooks/*.md"))
	if err != nil || len(runbooks) == 0 {
		t.Fatalf("runbooks: got %q, %v, want some", runbooks, err)
	}
	pages := []string{"docs/launch-day.md"}
	for _, path := range runbooks {
		pages = append(pages, "docs/runbooks/"+filepath.Base(path))
	}
	named := map[string]bool{}
	for i, path := range append(pages, "README.md", "scripts/tour.sh", "docs/tour.txt") {
		for _, m := range mentions(path, page(t, path)) {
			words := strings.Fields(m.text)
			name := ""
			for n := min(2, len(words)); n > 0 && name == ""; n-- {
				if _, ok := flags[strings.Join(words[:n], " ")]; ok {
					name = strings.Join(words[:n], " ")
				}
			}
			if name == "" {
				if len(words) > 0 && !strings.HasPrefix(words[0], "-") && !isGroup(flags, words[0], len(words)) {
					t.Errorf("%s: seatctl %s: got a command that does not exist", m.page, m.text)
				}
				continue
			}
			if i < len(pages) {
				named[name] = true
			}
			if flags[name] == "" {
				flags[name] = help(strings.Fields(name)...)
			}
			for _, word := range words {
				if flag, _, _ := strings.Cut(word, "="); strings.HasPrefix(flag, "--") && flag != "--help" && !regexp.MustCompile(regexp.QuoteMeta(flag)+`\b`).MatchString(flags[name]) {
					t.Errorf("%s: seatctl %s: got flag %s, which %s does not have", m.page, m.text, flag, name)
				}
			}
		}
	}
	for name := range flags {
		// They are no part of running a sale.
		if named[name] || strings.HasPrefix(name, "bench ") || name == "completion" {
			continue
		}
		t.Errorf("seatctl %s: got no page that names it, want it in docs/launch-day.md or a runbook", name)
	}
}

// isGroup tells whether a word alone stands for several commands.
func isGroup(commands map[string]string, word string, words int) bool {
	if words != 1 {
		return false
	}
	for name := range commands {
		if strings.HasPrefix(name, word+" ") {
			return true
		}
	}
	return false
}

// mentions reads the command lines off a page: lines of blocks, spans of code, or, where
// the page is no Markdown, its lines.
func mentions(path, text string) (list []mention) {
	var lines []string
	if strings.HasSuffix(path, ".md") {
		for _, m := range fenced.FindAllStringSubmatch(text, -1) {
			lines = slices.AppendSeq(lines, strings.SplitSeq(m[1], "\n"))
		}
		for _, m := range span.FindAllStringSubmatch(fenced.ReplaceAllString(text, ""), -1) {
			lines = append(lines, strings.ReplaceAll(m[1], "\n", " "))
		}
	} else {
		for line := range strings.SplitSeq(text, "\n") {
			line = strings.TrimPrefix(strings.TrimPrefix(line, "$ "), "run '")
			lines = append(lines, strings.TrimSuffix(line, "'"))
		}
	}
	for _, line := range lines {
		if m := called.FindStringSubmatch(strings.TrimSpace(line)); m != nil {
			list = append(list, mention{path, m[1]})
		}
	}
	return list
}
