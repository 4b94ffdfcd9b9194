// Package prometheus_test holds the rules to what they promise: every alert fires and
// is quiet where it should be, has a runbook that a stranger can follow, and asks only
// for metrics that somebody exports.
package prometheus_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/prometheus/promql/parser"
	"go.yaml.in/yaml/v4"

	"holdfast/internal/app"
	"holdfast/internal/config"
	"holdfast/internal/seatctl"
)

const root = "../.."

// promtool is Debian's, from the PATH or from where .ci/setup puts it. Without one the
// test is skipped, with CI=true it fails.
func promtool(t *testing.T, args ...string) {
	t.Helper()
	path, err := exec.LookPath("promtool")
	if err != nil {
		path, err = filepath.Abs(root + "/.cache/prometheus/promtool")
		if err == nil {
			_, err = os.Stat(path)
		}
	}
	if err != nil {
		const say = "promtool is not installed: run .ci/setup, or install Debian's package prometheus"
		if os.Getenv("CI") == "true" {
			t.Fatal(say)
		}
		t.Skip(say)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	out, err := exec.CommandContext(ctx, path, args...).CombinedOutput() //nolint:gosec // the test's own program and files
	if err != nil {
		t.Errorf("promtool %s: got %v, want it to pass:\n%s", strings.Join(args, " "), err, out)
	}
}

func TestRules_PromtoolPassesThem(t *testing.T) {
	t.Parallel()
	t.Run("Rules", func(t *testing.T) { t.Parallel(); promtool(t, "check", "rules", "alerts.yml", "recording.yml") })
	t.Run("Config", func(t *testing.T) { t.Parallel(); promtool(t, "check", "config", "prometheus.yml") })
	for _, name := range testFiles(t) {
		t.Run(filepath.Base(name), func(t *testing.T) { t.Parallel(); promtool(t, "test", "rules", name) })
	}
}

func testFiles(t *testing.T) []string {
	t.Helper()
	names, err := filepath.Glob("tests/*.yml")
	if err != nil || len(names) == 0 {
		t.Fatalf("tests of the rules: got %v, %v, want some", names, err)
	}
	return names
}

// rule is one rule of a file.
type rule struct {
	Record, Alert string
	Expr          string
	For           string
	Labels        map[string]string
	Annotations   map[string]string
}

func load(t *testing.T, name string, into any) {
	t.Helper()
	text, err := os.ReadFile(name) //nolint:gosec // the test's own files
	if err == nil {
		err = yaml.Load(text, into)
	}
	if err != nil {
		t.Fatalf("%s: got %v, want nil", name, err)
	}
}

func rules(t *testing.T, name string) []rule {
	t.Helper()
	var file struct{ Groups []struct{ Rules []rule } }
	load(t, name, &file)
	var all []rule
	for _, g := range file.Groups {
		all = append(all, g.Rules...)
	}
	if len(all) == 0 {
		t.Fatalf("%s: got no rules, want some", name)
	}
	return all
}

func alerts(t *testing.T) []rule {
	t.Helper()
	return rules(t, "alerts.yml")
}

func TestAlerts_EachIsTestedFiringAndQuiet(t *testing.T) {
	t.Parallel()
	fires, quiet := map[string]bool{}, map[string]bool{}
	asks := regexp.MustCompile(`ALERTS\{alertname="(\w+)", severity="(\w+)", alertstate="firing"\}`)
	for _, name := range testFiles(t) {
		var file struct {
			Tests []struct {
				Expr []struct {
					Expr    string
					Samples []struct{} `yaml:"exp_samples"`
				} `yaml:"promql_expr_test"`
			}
		}
		load(t, name, &file)
		for _, c := range file.Tests {
			for _, e := range c.Expr {
				m := asks.FindStringSubmatch(e.Expr)
				if m == nil {
					t.Errorf("%s: got %s, want a question after one alert of one severity", name, e.Expr)
					continue
				}
				key := m[1] + " " + m[2]
				fires[key] = fires[key] || len(e.Samples) > 0
				quiet[key] = quiet[key] || len(e.Samples) == 0
			}
		}
	}
	for _, a := range alerts(t) {
		key := a.Alert + " " + a.Labels["severity"]
		if !fires[key] || !quiet[key] {
			t.Errorf("%s: got a test that fires %t, that is quiet %t, want both", key, fires[key], quiet[key])
		}
		delete(fires, key)
	}
	for key := range fires {
		t.Errorf("%s: got a test, want the alert too", key)
	}
}

func TestAlerts_EachSaysWhatAndLeadsToItsRunbook(t *testing.T) {
	t.Parallel()
	seen := map[string]bool{}
	for _, a := range alerts(t) {
		severity := a.Labels["severity"]
		if severity != "page" && severity != "ticket" {
			t.Errorf("%s: got severity %q, want page or ticket", a.Alert, severity)
		}
		if key := a.Alert + severity; seen[key] {
			t.Errorf("%s: got two rules of severity %s, want one", a.Alert, severity)
		} else {
			seen[key] = true
		}
		if want := "docs/runbooks/" + kebab(a.Alert) + ".md"; a.Annotations["runbook"] != want {
			t.Errorf("%s: got runbook %q, want %s", a.Alert, a.Annotations["runbook"], want)
		}
		for _, what := range []string{"summary", "description"} {
			if len(a.Annotations[what]) < 15 {
				t.Errorf("%s: got %s %q, want a sentence", a.Alert, what, a.Annotations[what])
			}
		}
		if _, err := os.Stat(filepath.Join(root, a.Annotations["runbook"])); err != nil {
			t.Errorf("%s: got %v, want its runbook", a.Alert, err)
		}
	}
}

// kebab writes CamelCase as a file's name.
func kebab(name string) string {
	var b strings.Builder
	for i, r := range name {
		if unicode.IsUpper(r) && i > 0 {
			b.WriteByte('-')
		}
		b.WriteRune(unicode.ToLower(r))
	}
	return b.String()
}

// headings are what somebody who was woken wants to know, in this order.
var headings = []string{
	"What it means", "How to confirm", "What to do", "What not to do", "What is degraded meanwhile", "Whom to call",
}

// runbooks are the pages' texts by file name.
func runbooks(t *testing.T) map[string]string {
	t.Helper()
	names, err := filepath.Glob(root + "/docs/runbooks/*.md")
	if err != nil || len(names) == 0 {
		t.Fatalf("runbooks: got %v, %v, want some", names, err)
	}
	all := map[string]string{}
	for _, name := range names {
		text, err := os.ReadFile(name) //nolint:gosec // the test's own files
		if err != nil {
			t.Fatalf("runbook: got %v, want nil", err)
		}
		all[filepath.Base(name)] = string(text)
	}
	return all
}

func TestRunbooks_AnAlertsHasItsSixHeadings(t *testing.T) {
	t.Parallel()
	pages := runbooks(t)
	heading := regexp.MustCompile(`(?m)^## (.+)$`)
	for _, a := range alerts(t) {
		name := filepath.Base(a.Annotations["runbook"])
		var got []string
		for _, m := range heading.FindAllStringSubmatch(pages[name], -1) {
			got = append(got, m[1])
		}
		if diff := cmp.Diff(headings, got); diff != "" {
			t.Errorf("%s: headings (-want +got):\n%s", name, diff)
		}
		if !strings.Contains(pages[name], "`"+a.Alert+"`") {
			t.Errorf("%s: got no `%s`, want the alert's own name, by which it is searched for", name, a.Alert)
		}
	}
}

var link = regexp.MustCompile(`\]\(([^)#:]+\.md)(?:#[^)]*)?\)`)

func TestRunbooks_EachIsLedToAndLeadsSomewhere(t *testing.T) {
	t.Parallel()
	led := map[string]bool{}
	for _, a := range alerts(t) {
		led[filepath.Base(a.Annotations["runbook"])] = true
	}
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		switch {
		case errors.Is(err, fs.ErrNotExist): // a scratch file of another test
			return nil
		case err != nil:
			return err
		case d.IsDir() && path != root && strings.HasPrefix(d.Name(), "."):
			return fs.SkipDir
		case filepath.Ext(path) != ".md":
			return nil
		}
		text, err := os.ReadFile(path) //nolint:gosec // the project's own files
		if err != nil {
			return err
		}
		for _, m := range link.FindAllStringSubmatch(string(text), -1) {
			to := filepath.Join(filepath.Dir(path), m[1])
			if filepath.Base(filepath.Dir(to)) != "runbooks" {
				continue
			}
			led[filepath.Base(to)] = true
			if _, err := os.Stat(to); err != nil {
				t.Errorf("%s: got %v, want the page that it links", path, err)
			}
		}
		return nil
	})
	if err != nil {
		t.Errorf("look for links: got %v, want nil", err)
	}
	for name := range runbooks(t) {
		if !led[name] {
			t.Errorf("%s: got no alert and no page that leads to it, want one", name)
		}
	}
}

var (
	codeBlock = regexp.MustCompile("(?s)```.*?```")
	codeSpan  = regexp.MustCompile("`([^`]+)`")
	word      = regexp.MustCompile(`"[^"]*"|\S+`)
)

// commandLines are the seatctl commands of a page, each as its words.
func commandLines(text string) [][]string {
	var lines [][]string
	add := func(s string) {
		words := word.FindAllString(strings.TrimSpace(s), -1)
		if len(words) == 0 || words[0] != "seatctl" {
			return
		}
		for i := range words {
			words[i] = strings.Trim(words[i], `"`)
		}
		lines = append(lines, words[1:])
	}
	for _, block := range codeBlock.FindAllString(text, -1) {
		for line := range strings.Lines(block) {
			add(line)
		}
	}
	for _, m := range codeSpan.FindAllStringSubmatch(codeBlock.ReplaceAllString(text, ""), -1) {
		add(strings.ReplaceAll(m[1], "\n", " "))
	}
	return lines
}

// A command that is asked for its help is parsed as it stands, and does nothing.
func TestRunbooks_TheirCommandsExist(t *testing.T) {
	t.Parallel()
	understood := func(words []string) string {
		var out bytes.Buffer
		code := seatctl.Run(t.Context(), app.Local(), append(slices.Clone(words), "--help"),
			func(string) string { return "" }, strings.NewReader(""), &out, &out)
		if code != 0 {
			return out.String()
		}
		return ""
	}
	for _, wrong := range [][]string{{"sell"}, {"audit", "--no-such-flag"}, {"refunds", "steal"}} {
		if understood(wrong) == "" {
			t.Errorf("seatctl %v: got its help, want an error, or this test finds nothing", wrong)
		}
	}
	for name, text := range runbooks(t) {
		for _, words := range commandLines(text) {
			if said := understood(words); said != "" {
				t.Errorf("%s: seatctl %s: got\n%s\nwant a command that there is", name, strings.Join(words, " "), said)
			}
		}
	}
}

// What a runbook quotes is searched for and copied at night: panels of the dashboard,
// settings, texts of the log.
func TestRunbooks_WhatTheyQuoteIsThere(t *testing.T) {
	t.Parallel()
	var board struct{ Panels []struct{ Title string } }
	text, err := os.ReadFile(root + "/deploy/grafana/holdfast.json")
	if err == nil {
		err = json.Unmarshal(text, &board)
	}
	if err != nil {
		t.Fatalf("dashboard: got %v, want nil", err)
	}
	panels := map[string]bool{}
	for _, p := range board.Panels {
		panels[p.Title] = true
	}
	settings := map[string]bool{}
	for _, process := range []func() []string{
		config.Variables[config.API], config.Variables[config.Worker], config.Variables[config.Operator],
	} {
		for _, name := range process() {
			settings[name] = true
		}
	}
	texts := logTexts(t)
	fields := statusFields(t)
	panel, setting := regexp.MustCompile(`\*([^*]+)\*`), regexp.MustCompile(`HOLDFAST_[A-Z_]+`)
	said := regexp.MustCompile(`^[a-z.:]+ [a-z:. ]+$`)
	pages := runbooks(t)
	for _, a := range alerts(t) {
		name := filepath.Base(a.Annotations["runbook"])
		text := bold.ReplaceAllString(strings.ReplaceAll(pages[name], "\n   ", " "), "")
		for _, m := range panel.FindAllStringSubmatch(text, -1) {
			if !panels[m[1]] {
				t.Errorf("%s: got panel %q, want one of the dashboard's", name, m[1])
			}
		}
		for _, m := range setting.FindAllString(text, -1) {
			if !settings[m] {
				t.Errorf("%s: got setting %s, want one that there is", name, m)
			}
		}
		for _, m := range codeSpan.FindAllStringSubmatch(text, -1) {
			if command, _, _ := strings.Cut(m[1], " "); command == "seatctl" || command == "systemctl" {
				continue
			}
			if said.MatchString(m[1]) && !strings.Contains(texts, m[1]) {
				t.Errorf("%s: got the log's text %q, want one that the programs write", name, m[1])
			}
			if one.MatchString(m[1]) && !strings.Contains(texts, `"`+m[1]+`"`) && !strings.Contains(texts, `"`+m[1]+`,omitempty"`) {
				t.Errorf("%s: got the word `%s`, want one that a program, a label or a field has", name, m[1])
			}
		}
	}
	for name, text := range pages {
		for _, item := range items.Split(text, -1) {
			if !strings.Contains(item, "`seatctl status") {
				continue
			}
			found := bold.FindAllStringSubmatch(item, -1)
			if len(found) == 0 {
				t.Errorf("%s: got %q, want it to say in bold which line of the screen to look at", name, item)
			}
			for _, m := range found {
				if !fields[m[1]] {
					t.Errorf("%s: got line %q of seatctl status, want one that it has", name, m[1])
				}
			}
		}
		for _, m := range auditRule.FindAllStringSubmatch(text, -1) {
			if !strings.Contains(texts, `= "`+m[1]+`"`) {
				t.Errorf("%s: got rule `%s` of the audit, want one that it has", name, m[1])
			}
		}
	}
}

var (
	bold      = regexp.MustCompile(`\*\*([^*]+)\*\*`)
	items     = regexp.MustCompile(`\n\n|\n *(?:\d+\.|-) `)
	auditRule = regexp.MustCompile("rule `([^`]+)`")
	one       = regexp.MustCompile(`^[a-z_]+$`)
)

// statusFields are the names in front of the lines that seatctl status draws.
func statusFields(t *testing.T) map[string]bool {
	t.Helper()
	text, err := os.ReadFile(root + "/internal/seatctl/status_screen.go")
	if err != nil {
		t.Fatalf("screen: got %v, want its source", err)
	}
	all := map[string]bool{}
	for _, m := range regexp.MustCompile(`p\.(?:field|unknown)\(\w+, "([^"]+)"`).FindAllStringSubmatch(string(text), -1) {
		all[m[1]] = true
	}
	if !all["reconciler"] || !all["seats"] {
		t.Fatalf("screen: got lines %v, want the reconciler's and the seats' among them", all)
	}
	return all
}

// logTexts is the programs' source, in which their texts are.
func logTexts(t *testing.T) string {
	t.Helper()
	var all strings.Builder
	err := filepath.WalkDir(root+"/internal", func(path string, _ fs.DirEntry, err error) error {
		if err != nil || filepath.Ext(path) != ".go" || strings.HasSuffix(path, "_test.go") {
			return err
		}
		text, err := os.ReadFile(path) //nolint:gosec // the project's own source
		all.Write(text)
		return err
	})
	if err != nil {
		t.Fatalf("source: got %v, want nil", err)
	}
	return all.String()
}

// metricsOf are the names of the series in an expression, recorded ones resolved.
func metricsOf(t *testing.T, expr string, recorded map[string]string) map[string]bool {
	t.Helper()
	found := map[string]bool{}
	e, err := parser.NewParser(parser.Options{}).ParseExpr(expr)
	if err != nil {
		t.Errorf("%s: got %v, want an expression", expr, err)
		return found
	}
	parser.Inspect(e, func(n parser.Node, _ []parser.Node) error {
		v, ok := n.(*parser.VectorSelector)
		if !ok {
			return nil
		}
		if inner, ok := recorded[v.Name]; ok {
			for name := range metricsOf(t, inner, recorded) {
				found[name] = true
			}
			return nil
		}
		found[series.ReplaceAllString(v.Name, "$1")] = true
		return nil
	})
	return found
}

// series cuts what a histogram of ours appends to its name.
var series = regexp.MustCompile(`^(holdfast_.*_seconds|holdfast_admission_batch_size)_(?:bucket|count|sum)$`)

// page is docs/metrics.md: the alerts of each metric, ours and others'.
func page(t *testing.T) map[string][]string {
	t.Helper()
	text, err := os.ReadFile(root + "/docs/metrics.md")
	if err != nil {
		t.Fatalf("page: got %v, want nil", err)
	}
	all := map[string][]string{}
	for line := range strings.Lines(string(text)) {
		cells := strings.Split(strings.TrimSpace(line), "|")
		if len(cells) < 6 || !strings.HasPrefix(cells[1], " `") {
			continue
		}
		var alerts []string
		for _, a := range strings.Split(cells[len(cells)-2], ",") {
			if a = strings.Trim(a, " -"); a != "" {
				alerts = append(alerts, a)
			}
		}
		all[strings.Trim(cells[1], " `")] = alerts
	}
	return all
}

func TestAlerts_MetricsPageSaysWhichUseWhat(t *testing.T) {
	t.Parallel()
	recorded := map[string]string{}
	for _, r := range rules(t, "recording.yml") {
		recorded[r.Record] = r.Expr
	}
	want, unused := map[string][]string{}, map[string]bool{}
	for name := range recorded {
		unused[name] = true
	}
	for _, a := range alerts(t) {
		for name := range recorded {
			if strings.Contains(a.Expr, name) {
				delete(unused, name)
			}
		}
		for name := range metricsOf(t, a.Expr, recorded) {
			if !slices.Contains(want[name], a.Alert) {
				want[name] = append(want[name], a.Alert)
			}
		}
	}
	for name := range unused {
		t.Errorf("%s: got a recorded series that no alert uses, want none", name)
	}
	// The functions' own counter reaches Prometheus under CloudWatch's name.
	want["holdfast_functions_records_total"] = want["holdfast_holdfast_functions_records_total_sum"]
	got := page(t)
	for name, alerts := range got {
		slices.Sort(alerts)
		if len(alerts) == 0 && want[name] == nil {
			delete(got, name)
		}
	}
	for _, alerts := range want {
		slices.Sort(alerts)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("alerts of each metric (-rules +docs/metrics.md):\n%s", diff)
	}
}
