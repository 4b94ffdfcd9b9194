// Package workflowtest checks .github without GitHub: that no workflow runs what is not
// pinned, has more rights than it needs, waits for ever or lets a stranger's words into a
// script, that what it calls is there, and that the scripts do what they say against an
// AWS that only writes down what it is asked. What only GitHub can tell stays untold:
// whether a pinned commit is the version that its comment says.
package workflowtest

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.yaml.in/yaml/v4"
)

// root is the repository as a test here sees it.
const root = "../.."

// workflow is what is used of GitHub's workflow syntax. A field that is not here is a
// mistake in the file, or a check that is missing.
type workflow struct {
	Name        string            `yaml:"name"`
	On          map[string]any    `yaml:"on"`
	Permissions map[string]string `yaml:"permissions"`
	Concurrency map[string]any    `yaml:"concurrency"`
	Jobs        map[string]job    `yaml:"jobs"`
}

type job struct {
	Uses        string            `yaml:"uses"`
	Needs       any               `yaml:"needs"`
	If          string            `yaml:"if"`
	RunsOn      string            `yaml:"runs-on"`
	Timeout     int               `yaml:"timeout-minutes"`
	Environment string            `yaml:"environment"`
	Permissions map[string]string `yaml:"permissions"`
	Steps       []step            `yaml:"steps"`
}

type step struct {
	Name string            `yaml:"name"`
	If   string            `yaml:"if"`
	Uses string            `yaml:"uses"`
	With map[string]string `yaml:"with"`
	Run  string            `yaml:"run"`
	Env  map[string]string `yaml:"env"`
}

// allowed are the rights that a job may have beside reading the repository.
var allowed = map[string][]string{
	"cloud.yml/change-sets": {"id-token"},
	"release.yml/publish":   {"attestations", "contents", "id-token"},
}

// longestJob is how many minutes a job may take: one that hangs costs no more.
const longestJob = 60

var (
	used    = regexp.MustCompile(`(?m)^\s*(?:- )?uses: +(\S+)(?: +# (.*))?$`)
	commit  = regexp.MustCompile(`^[\w.-]+/[\w./-]+@[0-9a-f]{40}$`)
	version = regexp.MustCompile(`^v\d+(\.\d+){0,2}$`)
	made    = regexp.MustCompile(`\bmake +([a-z-]+)`)
	ours    = regexp.MustCompile(`(?:^|\s)(\.(?:ci|github)/[\w-]+)`)
	target  = regexp.MustCompile(`(?m)^([a-z-]+):`)
)

// problems says what is wrong with a workflow's text. there tells whether a file of the
// repository is there, and targets are those of its Makefile.
func problems(name, text string, there func(path string) bool, targets []string) (list []string) {
	bad := func(format string, args ...any) { list = append(list, name+": "+fmt.Sprintf(format, args...)) }
	var w workflow
	if err := yaml.Load([]byte(text), &w, yaml.WithKnownFields()); err != nil {
		bad("%v", err)
		return list
	}
	if _, has := w.On["pull_request_target"]; has {
		bad("pull_request_target runs with the repository's rights on a stranger's code")
	}
	if diff := cmp.Diff(map[string]string{"contents": "read"}, w.Permissions); diff != "" {
		bad("permissions of all jobs (-want +got):\n%s", diff)
	}
	if w.Concurrency["group"] == nil || w.Concurrency["cancel-in-progress"] == nil {
		bad("concurrency: want a group, and whether the newer run ends the older")
	}
	uses := 0
	for id, j := range w.Jobs {
		if j.Uses != "" {
			uses++
		} else if j.Timeout < 1 || j.Timeout > longestJob {
			bad("%s: time-out of %d minutes, want 1 to %d", id, j.Timeout, longestJob)
		}
		for right, level := range j.Permissions {
			if level != "read" && (level != "write" || !slices.Contains(allowed[name+"/"+id], right)) {
				bad("%s: %s: %s, want no more than the table of this test allows", id, right, level)
			}
		}
		for _, s := range j.Steps {
			if s.Uses != "" {
				uses++
			}
			for _, p := range s.problems(j, there, targets) {
				bad("%s: %s", id, p)
			}
		}
	}
	found := used.FindAllStringSubmatch(text, -1)
	if len(found) != uses {
		bad("%d uses are read and %d are written: write each on a line of its own", uses, len(found))
	}
	for _, m := range found {
		switch action, comment := m[1], m[2]; {
		case strings.HasPrefix(action, "./"):
			if !there(action[2:]) {
				bad("%s is not there", action)
			}
		case commit.MatchString(action):
			if !version.MatchString(comment) {
				bad("%s # %s: want the commit's version behind it", action, comment)
			}
		case !strings.HasPrefix(comment, "pin: "):
			bad("%s: want a commit of 40 digits, or # pin: and why it is not known", action)
		}
	}
	return list
}

func (s step) problems(j job, there func(string) bool, targets []string) (list []string) {
	bad := func(format string, args ...any) { list = append(list, fmt.Sprintf(format, args...)) }
	if strings.Contains(s.Run, "${{") {
		bad("%q: an expression becomes part of the script, whatever is in it: give it by env", s.Run)
	}
	for name, value := range s.Env {
		secret := strings.Contains(value, "secrets.")
		if secret && j.Environment == "" {
			bad("%s is a secret without an environment that guards it", name)
		}
		printed := regexp.MustCompile(`\b(?:echo|printf|cat)\b[^\n]*\$\{?` + name + `\b`)
		if (secret || strings.Contains(value, "github.token")) && printed.MatchString(s.Run) {
			bad("%s is printed", name)
		}
	}
	if strings.Contains(s.Run, "set -x") || strings.Contains(s.Run, "printenv") {
		bad("%q: it prints what it is given", s.Run)
	}
	if strings.HasPrefix(s.Uses, "actions/checkout@") && s.With["persist-credentials"] != "false" {
		bad("checkout leaves its token in the folder: persist-credentials: false")
	}
	if strings.HasPrefix(s.Uses, "aws-actions/") {
		if j.Permissions["id-token"] != "write" || j.Environment == "" {
			bad("credentials of AWS want id-token: write and an environment that the role trusts")
		}
		for input := range s.With {
			if strings.Contains(input, "access-key") || strings.Contains(input, "session-token") {
				bad("%s: a key that lasts; want role-to-assume", input)
			}
		}
	}
	for _, m := range made.FindAllStringSubmatch(s.Run, -1) {
		if !slices.Contains(targets, m[1]) {
			bad("make %s: the Makefile has no such target", m[1])
		}
	}
	for _, m := range ours.FindAllStringSubmatch(s.Run, -1) {
		if !there(m[1]) {
			bad("%s is not there", m[1])
		}
	}
	return list
}

func read(t *testing.T, path string) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(root, path))
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func makeTargets(t *testing.T) (list []string) {
	for _, m := range target.FindAllStringSubmatch(read(t, "Makefile"), -1) {
		list = append(list, m[1])
	}
	return list
}

func isThere(path string) bool {
	_, err := os.Stat(filepath.Join(root, path))
	return err == nil
}

func TestWorkflows_AreSafeToRun(t *testing.T) {
	t.Parallel()
	paths, err := filepath.Glob(filepath.Join(root, ".github/workflows/*.y*ml"))
	if err != nil || len(paths) < 4 {
		t.Fatalf("workflows: got %q, %v, want four at least", paths, err)
	}
	for _, path := range paths {
		name := filepath.Base(path)
		for _, p := range problems(name, read(t, ".github/workflows/"+name), isThere, makeTargets(t)) {
			t.Error(p)
		}
	}
}

// sound is a workflow without a problem.
const sound = `name: sound
on:
  push:
permissions:
  contents: read
concurrency:
  group: sound
  cancel-in-progress: true
jobs:
  publish:
    runs-on: ubuntu-24.04
    timeout-minutes: 10
    environment: release
    permissions:
      id-token: write
    steps:
      - uses: actions/checkout@0123456789012345678901234567890123456789 # v1.2.3
        with:
          persist-credentials: false
      - uses: aws-actions/login@0123456789012345678901234567890123456789 # v1
        with:
          role-to-assume: r
      - run: make here && .ci/here
        env:
          TOKEN: ${{ github.token }}
`

// The checks above are worth what they find.
func TestWorkflows_ChecksFindWhatTheyLookFor(t *testing.T) {
	t.Parallel()
	there := func(path string) bool { return strings.HasSuffix(path, "here") }
	for _, c := range []struct{ old, with, want string }{
		{"", "", ""},
		{"  push:", "  pull_request_target:", "stranger's code"},
		{"permissions:\n  contents: read\n", "", "permissions of all jobs"},
		{"  contents: read", "  contents: write", "permissions of all jobs"},
		{"  contents: read", "  contents: read\n  packages: read", "permissions of all jobs"},
		{"  cancel-in-progress: true", "", "concurrency"},
		{"    timeout-minutes: 10\n", "", "time-out of 0 minutes"},
		{"timeout-minutes: 10", "timeout-minutes: 300", "time-out of 300 minutes"},
		{"      id-token: write", "      id-token: write\n      packages: write", "packages: write"},
		{"      id-token: write", "      id-token: read", "credentials of AWS"},
		{"    environment: release\n", "", "credentials of AWS"},
		{"          role-to-assume: r", "          aws-access-key-id: r", "a key that lasts"},
		{"checkout@0123456789012345678901234567890123456789 # v1.2.3", "checkout@v1", "want a commit of 40 digits"},
		{"checkout@0123456789012345678901234567890123456789 # v1.2.3", "checkout@v1 # pin: not known here", ""},
		{"6789 # v1.2.3", "6789", "want the commit's version"},
		{"6789 # v1.2.3", "6789 # main", "want the commit's version"},
		{"- uses: actions/checkout", "- name: n\n        'uses': actions/checkout", "write each on a line of its own"},
		{"uses: actions/checkout@0123456789012345678901234567890123456789 # v1.2.3\n        with:\n          persist-credentials: false", "uses: ./gone.yml", "./gone.yml is not there"},
		{"          persist-credentials: false", "          fetch-depth: '1'", "leaves its token"},
		{"make here", "make nothing", "no such target"},
		{".ci/here", ".ci/nothing", ".ci/nothing is not there"},
		{"make here", "echo ${{ github.event.pull_request.title }}", "an expression becomes part of the script"},
		{"make here", `echo "$TOKEN"`, "TOKEN is printed"},
		{"make here", "set -x", "it prints what it is given"},
		{"${{ github.token }}", "${{ secrets.KEY }}", ""},
		{"    runs-on: ubuntu-24.04", "    runs_on: ubuntu-24.04", "runs_on"},
	} {
		if !strings.Contains(sound, c.old) {
			t.Fatalf("%q: it is not in the sound workflow", c.old)
		}
		got := problems("release.yml", strings.Replace(sound, c.old, c.with, 1), there, []string{"here"})
		if all := strings.Join(got, "\n"); (all == "") != (c.want == "") || !strings.Contains(all, c.want) {
			t.Errorf("%q for %q: got %q, want %q", c.with, c.old, got, c.want)
		}
	}
}

func scripts(t *testing.T) []string {
	t.Helper()
	paths, err := filepath.Glob(filepath.Join(root, ".github/*"))
	if err != nil {
		t.Fatal(err)
	}
	return slices.DeleteFunc(paths, func(p string) bool { return filepath.Ext(p) != "" || filepath.Base(p) == "workflows" })
}

func TestScripts_CanBeRead(t *testing.T) {
	t.Parallel()
	list := scripts(t)
	if len(list) != 3 {
		t.Fatalf("scripts: got %q, want three", list)
	}
	for _, path := range list {
		if info, err := os.Stat(path); err != nil || info.Mode()&0o111 == 0 {
			t.Errorf("%s: got %v, %v, want a program", path, info.Mode(), err)
		}
		if out, err := exec.CommandContext(t.Context(), "bash", "-n", path).CombinedOutput(); err != nil {
			t.Errorf("bash -n %s: got %v %s, want nil", path, err, out)
		}
		if text := read(t, strings.TrimPrefix(path, root+"/")); !strings.Contains(text, "\nset -euo pipefail\n") {
			t.Errorf("%s: want it to end at the first error", path)
		}
	}
}

// Nothing here changes a stack.
func TestWorkflows_ChangeNoStack(t *testing.T) {
	t.Parallel()
	workflows, err := filepath.Glob(filepath.Join(root, ".github/workflows/*"))
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range append(scripts(t), workflows...) {
		text := read(t, strings.TrimPrefix(path, root+"/"))
		for _, call := range []string{"execute-change-set", "cloudformation deploy", "create-stack", "update-stack", "delete-stack"} {
			if strings.Contains(text, call) {
				t.Errorf("%s: got %q, want nothing that changes a stack", path, call)
			}
		}
	}
}
