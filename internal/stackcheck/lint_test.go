package stackcheck_test

import (
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"holdfast/internal/stackcheck"
)

// linter is the command that checks templates, without its arguments. Without cfn-lint,
// which `make tools` puts into the project's cache, the test is skipped, or fails with
// CI=true.
func linter(t *testing.T) (python, packages string) {
	t.Helper()
	packages, err := filepath.Abs(filepath.Join(root, ".cache/cfn-lint"))
	if err != nil {
		t.Fatal(err)
	}
	python, err = exec.LookPath("python3")
	if _, missing := os.Stat(filepath.Join(packages, "bin/cfn-lint")); err == nil && missing == nil {
		return python, packages
	}
	if os.Getenv("CI") == "true" {
		t.Fatal("cfn-lint is not installed (`make tools` does it), and with CI=true this test must run")
	}
	t.Skip("TEMPLATES NOT LINTED: cfn-lint is not installed; `make tools` does it")
	return "", ""
}

// lint is what cfn-lint says of templates, as one line each.
func lint(t *testing.T, region string, paths ...string) string {
	t.Helper()
	python, packages := linter(t)
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	args := append([]string{filepath.Join(packages, "bin/cfn-lint"), "--regions", region, "--format", "parseable", "-t"}, paths...)
	cmd := exec.CommandContext(ctx, python, args...)
	cmd.Env = append(os.Environ(), "PYTHONPATH="+packages, "PYTHONDONTWRITEBYTECODE=1")
	cmd.Dir = t.TempDir() // where there is no configuration of it
	out, err := cmd.CombinedOutput()
	if err != nil && len(out) == 0 {
		t.Fatalf("cfn-lint: got %v without a word, want what it found", err)
	}
	return string(out)
}

func templatePaths(t *testing.T, names ...string) []string {
	t.Helper()
	var all []string
	for _, name := range names {
		path, err := filepath.Abs(filepath.Join(stacks, name+".yaml"))
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, path)
	}
	return all
}

// What a template lets the linter pass over has its reason in the template: the rule of
// exceptions looks.
func TestTemplates_AreWhatTheLinterTakes(t *testing.T) {
	t.Parallel()
	others := slices.DeleteFunc(stackcheck.Order(), func(name string) bool { return name == "edge" })
	if said := lint(t, region, templatePaths(t, others...)...); said != "" {
		t.Errorf("cfn-lint in %s: got this, want nothing:\n%s", region, said)
	}
	if said := lint(t, stackcheck.EdgeRegion, templatePaths(t, "edge")...); said != "" {
		t.Errorf("cfn-lint in %s: got this, want nothing:\n%s", stackcheck.EdgeRegion, said)
	}
}

func TestLinter_FindsWhatItLooksFor(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "broken.yaml")
	text := resource("SQS::Queue", "{FifoQueu: true}") + "Parameters: {Unused: {Type: String}}\n"
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	said := lint(t, region, path)
	for _, rule := range []string{"E3002", "W2001"} { // an unknown property, a parameter that nothing uses
		if !strings.Contains(said, rule) {
			t.Errorf("cfn-lint: got %q, want %s in it", said, rule)
		}
	}
}

// Which types take no tags is the schemas' to say, which the linter brings along.
func TestUntaggable_IsWhatTheSchemasSay(t *testing.T) {
	t.Parallel()
	_, packages := linter(t)
	schemas := filepath.Join(packages, "cfnlint/data/schemas")
	read := func(into any, path ...string) {
		t.Helper()
		text, err := os.ReadFile(filepath.Join(append([]string{schemas}, path...)...))
		if err != nil {
			t.Fatal(err)
		}
		if err := json.Unmarshal(text, into); err != nil {
			t.Fatalf("%v: %v", path, err)
		}
	}
	var files map[string]string
	read(&files, "providers", stackcheck.EdgeRegion+".json")
	types := map[string]bool{}
	for _, tpl := range parse(t, sources(t)) {
		for _, kind := range tpl.Resources() {
			types[kind] = true
		}
	}
	for _, kind := range stackcheck.Untaggable() {
		types[kind] = true
	}
	for kind := range types {
		var schema struct{ Properties map[string]any }
		read(&schema, "resources", files[kind]+".json")
		takes := slices.ContainsFunc([]string{"Tags", "TagSpecifications", "ResourceTags"}, func(name string) bool {
			return schema.Properties[name] != nil
		})
		if got := slices.Contains(stackcheck.Untaggable(), kind); got == takes {
			t.Errorf("%s: listed as one without tags: %v; by its schema it takes them: %v", kind, got, takes)
		}
	}
}
