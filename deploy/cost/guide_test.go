package cost_test

import (
	"bytes"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"holdfast/internal/app"
	"holdfast/internal/seatctl"
)

// Pages that are held to the tree, by their path from the root.
const (
	guide    = "deploy/README.md"
	security = "docs/security.md"
	costs    = "deploy/cost/README.md"
)

func page(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(root + name)
	if err != nil {
		t.Fatalf("read: got %v, want nil", err)
	}
	return string(text)
}

var (
	fence  = regexp.MustCompile("(?ms)^```sh[^\n]*\n(.*?)^```$")
	ticked = regexp.MustCompile("`([^`\n]+)`")
	link   = regexp.MustCompile(`\]\(([^)\s]+)\)`)
)

// blocks are a page's commands, one block a text, continued lines joined.
func blocks(text string) []string {
	var out []string
	for _, m := range fence.FindAllStringSubmatch(text, -1) {
		out = append(out, strings.ReplaceAll(m[1], "\\\n", " "))
	}
	return out
}

// anchors are the names under which a page's headings are reached.
func anchors(text string) map[string]bool {
	out := map[string]bool{}
	for _, m := range regexp.MustCompile(`(?m)^#+ (.+)$`).FindAllStringSubmatch(text, -1) {
		name := regexp.MustCompile(`[^\p{L}\p{N} _-]`).ReplaceAllString(strings.ToLower(m[1]), "")
		out[strings.ReplaceAll(name, " ", "-")] = true
	}
	return out
}

func TestPages_LinksLeadToWhatIsThere(t *testing.T) {
	t.Parallel()
	for _, name := range []string{guide, security, costs} {
		text := page(t, name)
		for _, m := range link.FindAllStringSubmatch(text, -1) {
			target, anchor, _ := strings.Cut(m[1], "#")
			if strings.Contains(target, "://") {
				continue
			}
			file, to := name, text
			if target != "" {
				file = filepath.Join(filepath.Dir(name), target)
				if _, err := os.Stat(root + file); err != nil {
					t.Errorf("%s: link %s: got no such file, want one", name, m[1])
					continue
				}
				if anchor != "" {
					to = page(t, file)
				}
			}
			if anchor != "" && !anchors(to)[anchor] {
				t.Errorf("%s: link %s: got no heading of that name in %s, want one", name, m[1], file)
			}
		}
		for _, m := range ticked.FindAllStringSubmatch(text, -1) {
			if !regexp.MustCompile(`^(cmd|cloudformation|deploy|docs|examples|internal|k6|scripts)/[\w./-]+$`).MatchString(m[1]) {
				continue
			}
			if _, err := os.Stat(root + m[1]); err != nil {
				t.Errorf("%s: got %s and no such file, want one", name, m[1])
			}
		}
	}
}

func TestPages_CommandsAreBash(t *testing.T) {
	t.Parallel()
	bash, err := exec.LookPath("bash")
	if err != nil {
		t.Fatalf("look for bash: got %v, want one", err)
	}
	for _, block := range blocks(page(t, guide)) {
		cmd := exec.CommandContext(t.Context(), bash, "-n")
		cmd.Stdin = strings.NewReader(block)
		if said, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("%s: got %v: %s, want commands that bash can read:\n%s", guide, err, said, block)
		}
	}
}

func TestPages_MakeTargetsAreThere(t *testing.T) {
	t.Parallel()
	makefile := page(t, "Makefile")
	for _, name := range []string{guide, security, costs} {
		for _, m := range regexp.MustCompile("(?m)(?:^|`)make ([a-z][a-z-]*)").FindAllStringSubmatch(page(t, name), -1) {
			if !regexp.MustCompile(`(?m)^` + m[1] + `:`).MatchString(makefile) {
				t.Errorf("%s: got make %s and no such target, want one", name, m[1])
			}
		}
	}
}

// help is what seatctl says of a command line, and whether it knows the command.
func help(t *testing.T, words ...string) (text string, ok bool) {
	t.Helper()
	var out, errs bytes.Buffer
	code := seatctl.Run(t.Context(), app.Platform{}, append(words, "--help"), func(string) string { return "" }, strings.NewReader(""), &out, &errs)
	return out.String(), code == 0
}

// commandLines are the seatctl commands of a page, in blocks and between ticks.
func commandLines(text string) []string {
	var out []string
	for _, block := range blocks(text) {
		for line := range strings.Lines(block) {
			if _, line, found := strings.Cut(" "+line, " seatctl "); found && !strings.HasPrefix(strings.TrimSpace(line), "#") {
				out = append(out, strings.TrimSpace(regexp.MustCompile(`\s+#.*`).ReplaceAllString(line, "")))
			}
		}
	}
	for _, m := range ticked.FindAllStringSubmatch(fence.ReplaceAllString(text, ""), -1) {
		if line, found := strings.CutPrefix(m[1], "seatctl "); found {
			out = append(out, line)
		}
	}
	return out
}

func TestPages_OperatorsCommandsAndFlagsAreThere(t *testing.T) {
	all, ok := help(t)
	if !ok {
		t.Fatal("seatctl --help: got an error, want its commands")
	}
	flag := regexp.MustCompile(`--[a-z][a-z-]*`)
	for _, name := range []string{guide, security, costs} {
		for _, line := range commandLines(page(t, name)) {
			words := strings.Fields(line)
			command := words[:1]
			if len(words) > 1 && regexp.MustCompile(`(?m)^  `+regexp.QuoteMeta(words[0]+" "+words[1])+`\b`).MatchString(all) {
				command = words[:2]
			} else if !regexp.MustCompile(`(?m)^  ` + regexp.QuoteMeta(words[0]) + `\b`).MatchString(all) {
				t.Errorf("%s: seatctl %s: got no such command, want one", name, line)
				continue
			}
			said, ok := help(t, command...)
			if !ok {
				t.Errorf("%s: seatctl %s: got no help for %q, want some", name, line, command)
			}
			known := flag.FindAllString(said, -1)
			for _, f := range flag.FindAllString(line, -1) {
				if !slices.Contains(known, f) {
					t.Errorf("%s: seatctl %s: got no flag %s of that command, want it", name, line, f)
				}
			}
		}
	}
}

func TestPages_StacksHaveTheParametersThatAreGiven(t *testing.T) {
	t.Parallel()
	created := map[string]bool{}
	for _, block := range blocks(page(t, guide)) {
		for line := range strings.Lines(block) {
			m := regexp.MustCompile(`^\s*stack ([a-z]+)(.*)$`).FindStringSubmatch(strings.TrimRight(line, "\n"))
			if m == nil {
				continue
			}
			tpl, given := read(t, m[1]), map[string]bool{"Deployment": true}
			named := regexp.MustCompile(`\$\([^()]*\)`).ReplaceAllString(m[2], "") // other commands have names of their own
			for _, p := range regexp.MustCompile(`(?:^|\s)([A-Z][A-Za-z0-9]*)=`).FindAllStringSubmatch(named, -1) {
				given[p[1]] = true
				if _, known := tpl.Parameters[p[1]]; !known {
					t.Errorf("%s: stack %s: got parameter %s, which the template has not", guide, m[1], p[1])
				}
			}
			if created[m[1]] {
				continue
			}
			created[m[1]] = true
			for p, node := range tpl.Parameters {
				if find(&node, "Default") == nil && !given[p] {
					t.Errorf("%s: stack %s is created without %s, want it: it has no default", guide, m[1], p)
				}
			}
		}
	}
	for _, part := range stacks() {
		if !created[part] {
			t.Errorf("%s: got no command that creates the stack %s, want one", guide, part)
		}
	}
}

func TestPages_ExportsAndOutputsAreThere(t *testing.T) {
	t.Parallel()
	exports := map[string]bool{}
	for _, part := range stacks() {
		for _, output := range read(t, part).Outputs {
			if name := find(&output, "Export", "Name"); name != nil {
				exports[strings.TrimPrefix(name.Value, "${Deployment}:")] = true
			}
		}
	}
	edge := read(t, "edge").Outputs
	text := strings.Join(blocks(page(t, guide)), "\n")
	for _, m := range regexp.MustCompile(`(?:export_of|secret_of|put_secret) ([A-Z][A-Za-z]+)`).FindAllStringSubmatch(text, -1) {
		if m[1] != "NAME" && !exports[m[1]] {
			t.Errorf("%s: got export %s, want one of %q", guide, m[1], slices.Sorted(maps.Keys(exports)))
		}
	}
	for _, m := range regexp.MustCompile(`edge_of ([A-Z][A-Za-z]+)`).FindAllStringSubmatch(text, -1) {
		if _, found := edge[m[1]]; m[1] != "NAME" && !found {
			t.Errorf("%s: got output %s of the edge, want one of %q", guide, m[1], slices.Sorted(maps.Keys(edge)))
		}
	}
}

// In the table of the contract, what stands behind `part`: is in that template.
func TestPages_ResourcesOfTheContractAreThere(t *testing.T) {
	t.Parallel()
	_, table, found := strings.Cut(page(t, guide), "\n## Each sentence of the contract")
	if !found {
		t.Fatalf("%s: got no table of the contract, want one", guide)
	}
	part := regexp.MustCompile("`(" + strings.Join(stacks(), "|") + ")`:")
	seen := 0
	for line := range strings.Lines(table) {
		for segment := range strings.SplitSeq(line, ";") {
			m := part.FindStringSubmatch(segment)
			if m == nil {
				continue
			}
			tpl := read(t, m[1])
			_, names, _ := strings.Cut(segment, m[0])
			for _, n := range ticked.FindAllStringSubmatch(names, -1) {
				if !regexp.MustCompile(`^[A-Z][A-Za-z0-9]+$`).MatchString(n[1]) {
					continue
				}
				seen++
				_, resource := tpl.Resources[n[1]]
				if _, parameter := tpl.Parameters[n[1]]; !resource && !parameter && n[1] != "Sizes" && !strings.Contains(page(t, "cloudformation/"+m[1]+".yaml"), "Sid: "+n[1]+"\n") {
					t.Errorf("%s: got %s of the stack %s, which has no such resource, parameter or statement", guide, n[1], m[1])
				}
			}
		}
	}
	if seen < 60 {
		t.Errorf("%s: got %d resources in the table of the contract, want all of it", guide, seen)
	}
}
