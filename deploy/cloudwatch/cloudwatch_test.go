// Package cloudwatch_test holds the CloudWatch agent's files and the alarms of
// cloudformation/alarms.yaml to each other, to the alerts that the alarms come from, and
// to the metrics and log lines that the programs really have. Whether an expression means
// what it should only CloudWatch can tell.
package cloudwatch_test

import (
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.yaml.in/yaml/v4"

	"holdfast/internal/app/functions"
)

const root = "../.."

func read(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path) //nolint:gosec // the project's own files
	if err != nil {
		t.Fatalf("read: got %v, want nil", err)
	}
	return string(text)
}

// metric is a metric of one deployment in namespace Holdfast: its name, and its dimensions
// but for the deployment as name=value.
type metric struct{ name, dimensions string }

// alarm is one of the template's, with its intrinsics cut down to their text.
type alarm struct {
	Name, Alert, Suffix, Description string
	Threshold                        string
	Numbers                          string // threshold and expressions, in which an alert's figures stand
	Missing                          string
	Lasts                            time.Duration
	Metrics                          []query
	Own                              []metric
}

// query is one entry of an alarm's Metrics.
type query struct {
	ID, Expression, Namespace, Name string
	Dimensions                      []string // name=value
	Returned                        bool
}

// field is the value of a mapping's key; nil when there is none.
func field(n *yaml.Node, path ...string) *yaml.Node {
	for _, key := range path {
		var next *yaml.Node
		if n != nil && n.Kind == yaml.MappingNode {
			for i := 0; i < len(n.Content); i += 2 {
				if n.Content[i].Value == key {
					next = n.Content[i+1]
				}
			}
		}
		n = next
	}
	return n
}

// text is a scalar as written: an intrinsic gives what it is applied to.
func text(n *yaml.Node) string {
	if n == nil {
		return ""
	}
	if imported := field(n, "Fn::ImportValue"); imported != nil {
		return imported.Value
	}
	if n.Kind == yaml.SequenceNode && len(n.Content) > 0 { // !Sub with a map
		return n.Content[0].Value
	}
	return n.Value
}

func resources(t *testing.T) *yaml.Node {
	t.Helper()
	var doc yaml.Node
	if err := yaml.Load([]byte(read(t, root+"/cloudformation/alarms.yaml")), &doc); err != nil {
		t.Fatalf("alarms.yaml: got %v, want nil", err)
	}
	found := field(doc.Content[0], "Resources")
	if found == nil {
		t.Fatal("alarms.yaml: got no Resources, want some")
	}
	return found
}

// each are the properties of the resources of a type, by their logical ids.
func each(t *testing.T, kind string) map[string]*yaml.Node {
	t.Helper()
	all := map[string]*yaml.Node{}
	found := resources(t).Content
	for i := 0; i < len(found); i += 2 {
		if text(field(found[i+1], "Type")) == kind {
			all[found[i].Value] = field(found[i+1], "Properties")
		}
	}
	if len(all) == 0 {
		t.Fatalf("alarms.yaml: got no %s, want some", kind)
	}
	return all
}

var named = regexp.MustCompile(`^\$\{Deployment\}-([A-Za-z]+)(-warning|-nat|-database|-disk|-given-up)?$`)

func alarms(t *testing.T) []alarm {
	t.Helper()
	var all []alarm
	for id, p := range each(t, "AWS::CloudWatch::Alarm") {
		a := alarm{
			Name: text(field(p, "AlarmName")), Description: text(field(p, "AlarmDescription")),
			Threshold: text(field(p, "Threshold")), Missing: text(field(p, "TreatMissingData")),
		}
		m := named.FindStringSubmatch(a.Name)
		if m == nil {
			t.Fatalf("%s: got name %q, want the deployment, the alert and no more than a known suffix", id, a.Name)
		}
		a.Alert, a.Suffix, a.Numbers = m[1], m[2], a.Threshold
		periods := map[string]bool{}
		list := field(p, "Metrics")
		if list == nil {
			t.Fatalf("%s: got no Metrics, want some", id)
		}
		for _, n := range list.Content {
			if n.Tag == "!If" {
				n = n.Content[1]
			}
			q := query{
				ID: text(field(n, "Id")), Expression: text(field(n, "Expression")), Returned: text(field(n, "ReturnData")) == "true",
				Namespace: text(field(n, "MetricStat", "Metric", "Namespace")), Name: text(field(n, "MetricStat", "Metric", "MetricName")),
			}
			if dims := field(n, "MetricStat", "Metric", "Dimensions"); dims != nil {
				for _, d := range dims.Content {
					q.Dimensions = append(q.Dimensions, text(field(d, "Name"))+"="+text(field(d, "Value")))
				}
			}
			slices.Sort(q.Dimensions)
			for _, period := range []string{text(field(n, "MetricStat", "Period")), text(field(n, "Period"))} {
				if period != "" {
					periods[period] = true
				}
			}
			a.Numbers += " " + q.Expression
			a.Metrics = append(a.Metrics, q)
			if q.Namespace == functions.Namespace {
				rest := slices.DeleteFunc(slices.Clone(q.Dimensions), func(d string) bool { return d == "deployment=Deployment" })
				a.Own = append(a.Own, metric{q.Name, strings.Join(rest, " ")})
			}
		}
		if len(periods) != 1 {
			t.Errorf("%s: got periods %v, want one: CloudWatch takes no others in one alarm", a.Name, periods)
		}
		for period := range periods {
			seconds, err := strconv.Atoi(period)
			if err != nil {
				t.Fatalf("%s: period: got %v, want nil", a.Name, err)
			}
			points := field(p, "DatapointsToAlarm")
			if points == nil {
				points = field(p, "EvaluationPeriods")
			}
			times, err := strconv.Atoi(text(points))
			if err != nil {
				t.Fatalf("%s: periods until it sounds: got %v, want nil", a.Name, err)
			}
			a.Lasts = time.Duration(times*seconds) * time.Second
		}
		all = append(all, a)
	}
	return all
}

type rule struct {
	Alert, Expr, For string
	Labels           map[string]string
	Annotations      map[string]string
}

func rules(t *testing.T) []rule {
	t.Helper()
	var file struct{ Groups []struct{ Rules []rule } }
	if err := yaml.Load([]byte(read(t, root+"/deploy/prometheus/alerts.yml")), &file); err != nil {
		t.Fatalf("alerts.yml: got %v, want nil", err)
	}
	var all []rule
	for _, g := range file.Groups {
		all = append(all, g.Rules...)
	}
	if len(all) == 0 {
		t.Fatal("alerts.yml: got no rules, want some")
	}
	return all
}

// suffixes are what an alarm has behind its alert's name, by alert and severity: the
// ticket of an alert that pages too is its warning.
func suffixes(all []rule) map[string]string {
	pages := map[string]bool{}
	for _, r := range all {
		pages[r.Alert] = pages[r.Alert] || r.Labels["severity"] == "page"
	}
	found := map[string]string{}
	for _, r := range all {
		key := r.Alert + " " + r.Labels["severity"]
		found[key] = ""
		if r.Labels["severity"] == "ticket" && pages[r.Alert] {
			found[key] = "-warning"
		}
	}
	return found
}

func TestAlarms_EachAlertHasItsOwnWithSeverityAndRunbook(t *testing.T) {
	t.Parallel()
	suffix := suffixes(rules(t))
	want := map[string]string{ // of AWS's own metrics and the agent's, beside those of the alerts
		"${Deployment}-GatewayFailing-nat":      "ticket docs/runbooks/gateway-failing.md",
		"${Deployment}-FunctionBehind-database": "ticket docs/runbooks/function-behind.md",
		"${Deployment}-FunctionErrors-given-up": "ticket docs/runbooks/function-errors.md",
		"${Deployment}-InstanceDown-disk":       "ticket docs/runbooks/instance-down.md",
	}
	for _, r := range rules(t) {
		severity := r.Labels["severity"]
		want["${Deployment}-"+r.Alert+suffix[r.Alert+" "+severity]] = severity + " " + r.Annotations["runbook"]
	}
	got := map[string]string{}
	for _, a := range alarms(t) {
		severity, _, _ := strings.Cut(a.Description, ": ")
		_, runbook, _ := strings.Cut(a.Description, ". ${RunbookBase}")
		got[a.Name] = severity + " " + runbook
		if _, err := os.Stat(filepath.Join(root, runbook)); err != nil || runbook == "" {
			t.Errorf("%s: got %v, want the runbook that its description leads to", a.Name, err)
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("alarms (-alerts.yml +alarms.yaml):\n%s", diff)
	}
}

func TestAlarms_AreToldToTheTopicAndSayWhatMissingDataMeans(t *testing.T) {
	t.Parallel()
	for id, p := range each(t, "AWS::CloudWatch::Alarm") {
		actions := field(p, "AlarmActions")
		if actions == nil || len(actions.Content) != 1 || actions.Content[0].Value != "Topic" {
			t.Errorf("%s: got actions %v, want the topic", id, actions)
		}
	}
	source := read(t, root+"/cloudformation/alarms.yaml")
	for _, a := range alarms(t) {
		if a.Missing != "breaching" && a.Missing != "notBreaching" {
			t.Errorf("%s: got TreatMissingData %q, want breaching or notBreaching", a.Name, a.Missing)
		}
		above, _, _ := strings.Cut(source, "AlarmName: !Sub '"+a.Name+"'")
		comment := above[strings.LastIndex(above, "\n\n"):]
		if !strings.Contains(comment, "Missing: ") {
			t.Errorf("%s: got no comment above it that says what missing data means, want one", a.Name)
		}
		returned := 0
		for _, q := range a.Metrics {
			if q.Returned {
				returned++
			}
		}
		if returned != 1 {
			t.Errorf("%s: got %d entries that are the alarm's, want 1", a.Name, returned)
		}
	}
	// Who must not fall silent: where no data is what they are about.
	for _, name := range []string{"ReconcilerStopped", "LedgerUnchecked", "LedgerUnread", "QueueUnread", "InstanceDown", "TargetsUnhealthy", "StatusStale", "RefundsDue", "NotificationsOpen"} {
		for _, a := range alarms(t) {
			if a.Alert == name && a.Suffix == "" && a.Missing != "breaching" {
				t.Errorf("%s: got TreatMissingData %s, want breaching", a.Name, a.Missing)
			}
		}
	}
}

var (
	id         = regexp.MustCompile(`^[a-z]\w*$`)
	identifier = regexp.MustCompile(`\b[a-z]\w*\b`)
)

// CloudWatch takes ten metrics in an alarm, and ids of small letters first. An id that
// nobody has, or that nothing asks for, is a slip that no linter finds.
func TestAlarms_ExpressionsNameWhatIsThere(t *testing.T) {
	t.Parallel()
	for _, a := range alarms(t) {
		have, asked, metrics := map[string]bool{}, map[string]bool{}, 0
		everything := false
		for _, q := range a.Metrics {
			if !id.MatchString(q.ID) || have[q.ID] {
				t.Errorf("%s: got id %q, want its own, with a small letter first", a.Name, q.ID)
			}
			have[q.ID] = true
			if q.Name != "" {
				metrics++
			}
		}
		for _, q := range a.Metrics {
			if strings.HasPrefix(q.Expression, "SELECT ") {
				continue
			}
			everything = everything || strings.Contains(q.Expression, "METRICS()")
			for _, name := range identifier.FindAllString(q.Expression, -1) {
				asked[name] = true
				if !have[name] {
					t.Errorf("%s: got %s in %q, want an id of the alarm's", a.Name, name, q.Expression)
				}
			}
		}
		for _, q := range a.Metrics {
			if !q.Returned && !asked[q.ID] && !everything {
				t.Errorf("%s: got %s, which nothing asks for, want it used or gone", a.Name, q.ID)
			}
		}
		if metrics > 10 {
			t.Errorf("%s: got %d metrics, want at most the 10 that CloudWatch takes", a.Name, metrics)
		}
	}
}

// figures are the numbers in an alert's rule and those in its alarm that stand for them:
// an alarm has products worked out, and shares of Redis in per cent.
func figures() map[string]struct{ rule, alarm []string } {
	type both = struct{ rule, alarm []string }
	same := func(all ...string) both { return both{all, all} }
	burn := func(budget, product, traffic string) both {
		return both{[]string{"14.4", budget, traffic}, []string{product, traffic}}
	}
	return map[string]both{
		"BookingErrors page": burn("0.001", "0.0144", "100"), "BookingErrors ticket": same("0.001"),
		"BookingsTurnedAway page": burn("0.01", "0.144", "100"), "BookingsTurnedAway ticket": same("0.01"),
		"RefusalsSlow page": burn("0.01", "0.144", "100"), "RefusalsSlow ticket": same("0.01"),
		"ReturnsSlow page": burn("0.01", "0.144", "20"), "ReturnsSlow ticket": same("0.01"),
		"RowsInDoubt page": same("20"), "LedgerUnchecked page": same("900"), "ReconcilerStopped page": same("120"), "QueueUnread page": same("120"),
		"AcknowledgementsMissing page": same("5"), "AcknowledgementsMissing ticket": same("10"), "BalancerErrors page": same("20"),
		"RedisCpuHigh ticket": {[]string{"0.6"}, []string{"60"}}, "RedisMemoryHigh ticket": {[]string{"0.7"}, []string{"70"}},
		"RedisConnectionsHigh ticket": same("2000"), "RedisReplicationLag ticket": same("5"),
		"QueueBehind page": same("300"), "QueueBehind ticket": same("60", "5000"), "FunctionBehind ticket": same("300000"),
		"GatewayFailing page": same("0.5", "20"), "GatewayFailing ticket": {[]string{"0.1"}, []string{"10"}},
		"StatusStale page": same("300"), "StatusStale ticket": same("30"),
	}
}

func TestAlarms_HaveTheFiguresOfTheirAlerts(t *testing.T) {
	t.Parallel()
	suffix, want := suffixes(rules(t)), figures()
	by := map[string]alarm{}
	for _, a := range alarms(t) {
		by[a.Alert+a.Suffix] = a
	}
	for _, r := range rules(t) {
		key := r.Alert + " " + r.Labels["severity"]
		a := by[r.Alert+suffix[key]]
		for _, figure := range want[key].rule {
			if !hasNumber(r.Expr, figure) {
				t.Errorf("%s: got no %s in the alert's rule, want it there: has it changed?", key, figure)
			}
		}
		for _, figure := range want[key].alarm {
			if !hasNumber(a.Numbers, figure) {
				t.Errorf("%s: got %q, want %s in it, as the alert has", a.Name, a.Numbers, figure)
			}
		}
		delete(want, key)
		if r.For == "" {
			continue
		}
		if atLeast, err := time.ParseDuration(r.For); err != nil || a.Lasts < atLeast {
			t.Errorf("%s: got an alarm after %s (%v), want it no sooner than the alert's %s", a.Name, a.Lasts, err, r.For)
		}
	}
	for key := range want {
		t.Errorf("%s: got figures, want an alert of that severity", key)
	}
}

func hasNumber(expr, figure string) bool {
	return regexp.MustCompile(`(^|[^0-9.])` + regexp.QuoteMeta(figure) + `($|[^0-9.])`).MatchString(expr)
}

// agent is what of agent.json is looked at here.
type agent struct {
	Metrics struct {
		Namespace string `json:"namespace"`
		Collected map[string]struct {
			Measurement []string          `json:"measurement"`
			Resources   []string          `json:"resources"`
			DropDevice  bool              `json:"drop_device"`
			Dimensions  map[string]string `json:"append_dimensions"`
		} `json:"metrics_collected"`
	} `json:"metrics"`
	Logs struct {
		Collected struct {
			Files struct {
				List []struct {
					Path   string `json:"file_path"`
					Group  string `json:"log_group_name"`
					Stream string `json:"log_stream_name"`
				} `json:"collect_list"`
			} `json:"files"`
		} `json:"logs_collected"`
		Metrics struct {
			Prometheus struct {
				Path      string `json:"prometheus_config_path"`
				Group     string `json:"log_group_name"`
				Processor struct {
					Namespace    string `json:"metric_namespace"`
					Declarations []struct {
						Labels     []string   `json:"source_labels"`
						Matcher    string     `json:"label_matcher"`
						Dimensions [][]string `json:"dimensions"`
						Selectors  []string   `json:"metric_selectors"`
					} `json:"metric_declaration"`
				} `json:"emf_processor"`
			} `json:"prometheus"`
		} `json:"metrics_collected"`
	} `json:"logs"`
}

func readAgent(t *testing.T) agent {
	t.Helper()
	var a agent
	if err := json.Unmarshal([]byte(read(t, "agent.json")), &a); err != nil {
		t.Fatalf("agent.json: got %v, want nil", err)
	}
	return a
}

var (
	selector = regexp.MustCompile(`^\^(holdfast_)\(([a-z_|]+)\)\$$`)
	matcher  = regexp.MustCompile(`^\^(api|worker)(?:;\(([a-z_|]+)\))?\$$`)
)

// declared are the metrics that agent.json makes, each with the job that it comes from.
func declared(t *testing.T) map[metric]string {
	t.Helper()
	all := map[metric]string{}
	for _, d := range readAgent(t).Logs.Metrics.Prometheus.Processor.Declarations {
		m := matcher.FindStringSubmatch(d.Matcher)
		if m == nil || len(d.Labels) == 0 || d.Labels[0] != "job" || len(d.Dimensions) != 1 {
			t.Fatalf("agent.json: got labels %v, matcher %s, dimensions %v, want a job, at most one label and one set of dimensions", d.Labels, d.Matcher, d.Dimensions)
		}
		values := []string{""}
		want := []string{"deployment"}
		if m[2] != "" {
			values = nil
			for _, v := range strings.Split(m[2], "|") {
				values = append(values, d.Labels[1]+"="+v)
			}
			want = append(want, d.Labels[1])
		}
		if diff := cmp.Diff(want, d.Dimensions[0]); diff != "" {
			t.Errorf("agent.json: dimensions of %s (-want +got):\n%s", d.Matcher, diff)
		}
		for _, s := range d.Selectors {
			names := selector.FindStringSubmatch(s)
			if names == nil {
				t.Fatalf("agent.json: got selector %s, want whole names", s)
			}
			for _, name := range strings.Split(names[2], "|") {
				for _, v := range values {
					key := metric{names[1] + name, v}
					if all[key] != "" {
						t.Errorf("agent.json: got %v twice, want it once", key)
					}
					all[key] = m[1]
				}
			}
		}
	}
	return all
}

// fromLambda tells whether the functions write a metric by themselves.
func fromLambda(m metric) bool { return m.name == functions.MetricName }

func TestAgent_DeclaresWhatTheAlarmsUseAndNoMore(t *testing.T) {
	t.Parallel()
	used := map[metric]bool{}
	for _, a := range alarms(t) {
		for _, m := range a.Own {
			if !fromLambda(m) {
				used[m] = true
			}
		}
	}
	got := declared(t)
	for m := range used {
		if got[m] == "" {
			t.Errorf("%s {%s}: got an alarm on it and no declaration in agent.json, want both", m.name, m.dimensions)
		}
	}
	for m := range got {
		if !used[m] {
			t.Errorf("%s {%s}: got a declaration and no alarm on it, want none: it is paid for", m.name, m.dimensions)
		}
	}
	if said := fmt.Sprintf("they are %d a deployment", len(got)); !strings.Contains(strings.ReplaceAll(read(t, "prometheus.yaml"), "\n# ", " "), said) {
		t.Errorf("prometheus.yaml: got no %q, want the number of paid metrics", said)
	}
}

// The agent gives a disk's figures the dimensions fstype and path, and the device unless it
// is dropped, whose name is the machine's. An alarm names them all or finds nothing.
func TestAgent_ShipsOfTheMachinesWhatTheAlarmsUseAndNoMore(t *testing.T) {
	t.Parallel()
	shipped, used := map[metric]bool{}, map[metric]bool{}
	a := readAgent(t).Metrics
	for plugin, c := range a.Collected {
		if plugin != "disk" || !c.DropDevice || c.Dimensions["deployment"] != "@DEPLOYMENT@" {
			t.Errorf("%s: got %+v, want disks without their devices, by deployment", plugin, c)
		}
		for _, m := range c.Measurement {
			for _, path := range c.Resources {
				shipped[metric{plugin + "_" + m, "deployment=Deployment fstype=xfs path=" + path}] = true
			}
		}
	}
	for _, alarm := range alarms(t) {
		for _, q := range alarm.Metrics {
			if q.Namespace == a.Namespace {
				used[metric{q.Name, strings.Join(q.Dimensions, " ")}] = true
			}
		}
	}
	if diff := cmp.Diff(used, shipped, cmp.AllowUnexported(metric{})); diff != "" || len(used) == 0 {
		t.Errorf("figures of the machines in %s (-alarms +agent.json), want some:\n%s", a.Namespace, diff)
	}
}

// documented are the metrics of docs/metrics.md, which a test of internal/app holds to
// what the programs export: kind, labels and exporter.
func documented(t *testing.T) map[string][3]string {
	t.Helper()
	page, _, _ := strings.Cut(read(t, root+"/docs/metrics.md"), "## Metrics of others")
	all := map[string][3]string{}
	for line := range strings.Lines(page) {
		cells := strings.Split(line, "|")
		if len(cells) == 8 && strings.HasPrefix(cells[1], " `holdfast_") {
			all[strings.Trim(cells[1], " `")] = [3]string{strings.TrimSpace(cells[2]), strings.TrimSpace(cells[3]), strings.TrimSpace(cells[4])}
		}
	}
	if len(all) == 0 {
		t.Fatal("docs/metrics.md: got no metrics, want some")
	}
	return all
}

func TestMetrics_TheProgramsExportThem(t *testing.T) {
	t.Parallel()
	known := documented(t)
	jobs := declared(t)
	for _, a := range alarms(t) {
		for _, m := range a.Own {
			k, ok := known[m.name]
			if !ok {
				t.Errorf("%s: got %s, want a metric of docs/metrics.md", a.Name, m.name)
				continue
			}
			if k[0] == "histogram" {
				t.Errorf("%s: got %s, want no histogram: the agent drops them", a.Name, m.name)
			}
			for _, d := range strings.Fields(m.dimensions) {
				name, _, _ := strings.Cut(d, "=")
				if !slices.Contains(strings.Split(k[1], ", "), name) {
					t.Errorf("%s: got dimension %s of %s, want one of its labels %q", a.Name, name, m.name, k[1])
				}
			}
			want := jobs[m]
			if fromLambda(m) {
				want = "functions"
			}
			if !strings.Contains(k[2], want) {
				t.Errorf("%s: got %s from %s, want it from %s", a.Name, m.name, want, k[2])
			}
		}
	}
	source := sources(t)
	for m := range jobs {
		if _, value, ok := strings.Cut(m.dimensions, "="); ok && !strings.Contains(source, `"`+value+`"`) {
			t.Errorf("%s: got {%s}, want a word that the programs have", m.name, m.dimensions)
		}
	}
}

// sources is the programs' text, in which their words are.
func sources(t *testing.T) string {
	t.Helper()
	var all strings.Builder
	err := filepath.WalkDir(root+"/internal", func(path string, _ fs.DirEntry, err error) error {
		if err != nil || filepath.Ext(path) != ".go" || strings.HasSuffix(path, "_test.go") {
			return err
		}
		all.WriteString(read(t, path))
		return nil
	})
	if err != nil {
		t.Fatalf("source: got %v, want nil", err)
	}
	return all.String()
}

var (
	logField = regexp.MustCompile(`\$\.(\w+)`)
	logWord  = regexp.MustCompile(`"([^"]+)"`)
)

func TestFilters_EachFeedsAnAlarmAndAsksForWhatTheLogHas(t *testing.T) {
	t.Parallel()
	made := map[string]bool{}
	page, source := read(t, root+"/docs/logs.md"), sources(t)
	for id, p := range each(t, "AWS::Logs::MetricFilter") {
		to := field(p, "MetricTransformations").Content[0]
		made[text(field(to, "MetricNamespace"))+" "+text(field(to, "MetricName"))] = true
		if got := text(field(to, "DefaultValue")); got != "0" {
			t.Errorf("%s: got DefaultValue %q, want 0: a share needs the minutes without a fault", id, got)
		}
		pattern := text(field(p, "FilterPattern"))
		for _, m := range logField.FindAllStringSubmatch(pattern, -1) {
			if m[1] != "msg" && !strings.Contains(page, "`"+m[1]+"`") {
				t.Errorf("%s: got $.%s, want a field of docs/logs.md", id, m[1])
			}
		}
		for _, m := range logWord.FindAllStringSubmatch(pattern, -1) {
			if !strings.Contains(source, `"`+m[1]+`"`) && !strings.Contains(source, "(\""+m[1]) {
				t.Errorf("%s: got %q, want a word that the programs write", id, m[1])
			}
		}
	}
	used := map[string]bool{}
	for _, a := range alarms(t) {
		for _, q := range a.Metrics {
			if q.Namespace == "Holdfast/${Deployment}" {
				used[q.Namespace+" "+q.Name] = true
			}
		}
	}
	if diff := cmp.Diff(used, made); diff != "" {
		t.Errorf("metrics of the log (-alarms +filters):\n%s", diff)
	}
}

// The scrape configuration keeps what agent.json declares: the rest would be paid for as
// log lines that nobody reads.
func TestScrape_KeepsWhatIsDeclaredOnThePortsOfTheProcesses(t *testing.T) {
	t.Parallel()
	var scrape struct {
		Global struct {
			Interval string `yaml:"scrape_interval"`
		}
		Configs []struct {
			Job    string `yaml:"job_name"`
			Static []struct {
				Targets []string
				Labels  map[string]string
			} `yaml:"static_configs"`
			Relabel []struct{ Action, Regex string } `yaml:"metric_relabel_configs"`
		} `yaml:"scrape_configs"`
	}
	if err := yaml.Load([]byte(read(t, "prometheus.yaml")), &scrape); err != nil {
		t.Fatalf("prometheus.yaml: got %v, want nil", err)
	}
	if scrape.Global.Interval != "30s" {
		t.Errorf("scrape_interval: got %s, want 30s, by which InstanceDown divides", scrape.Global.Interval)
	}
	want := map[string]map[string]bool{}
	for m, job := range declared(t) {
		if want[job] == nil {
			want[job] = map[string]bool{}
		}
		want[job][m.name] = true
	}
	got := map[string]map[string]bool{}
	for _, c := range scrape.Configs {
		if len(c.Static) != 1 || len(c.Relabel) != 1 || c.Relabel[0].Action != "keep" {
			t.Fatalf("job %s: got %+v, want one static configuration and one rule that keeps", c.Job, c)
		}
		if diff := cmp.Diff([]string{adminAddr(t, c.Job)}, c.Static[0].Targets); diff != "" {
			t.Errorf("job %s: targets (-setting's default +got):\n%s", c.Job, diff)
		}
		if c.Static[0].Labels["deployment"] != "@DEPLOYMENT@" {
			t.Errorf("job %s: got labels %v, want the deployment, which every declaration has as a dimension", c.Job, c.Static[0].Labels)
		}
		names, ok := strings.CutPrefix(c.Relabel[0].Regex, "holdfast_(")
		if !ok {
			t.Fatalf("job %s: got %s, want whole names", c.Job, c.Relabel[0].Regex)
		}
		got[c.Job] = map[string]bool{}
		for _, name := range strings.Split(strings.TrimSuffix(names, ")"), "|") {
			got[c.Job]["holdfast_"+name] = true
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("kept metrics (-agent.json +prometheus.yaml):\n%s", diff)
	}
}

// adminAddr is where a process has its admin port when nothing is said.
func adminAddr(t *testing.T, process string) string {
	t.Helper()
	m := regexp.MustCompile(`HOLDFAST_ADMIN_ADDR=(\S+)`).FindStringSubmatch(read(t, root+"/deploy/env/"+process+".env.example"))
	if m == nil {
		t.Fatalf("%s: got no HOLDFAST_ADMIN_ADDR in its example, want one", process)
	}
	return m[1]
}

const journal = "holdfast-journal@.service"

func TestAgent_ShipsEachJournalToTheGroupOfItsProcess(t *testing.T) {
	t.Parallel()
	unit := read(t, journal)
	a := readAgent(t)
	got := map[string]string{}
	for _, f := range a.Logs.Collected.Files.List {
		got[f.Path] = f.Group
		if f.Stream != "{instance_id}" {
			t.Errorf("%s: got stream %s, want the instance's own", f.Path, f.Stream)
		}
	}
	want := map[string]string{"/var/log/holdfast/api.log": "/holdfast/@DEPLOYMENT@/api", "/var/log/holdfast/worker.log": "/holdfast/@DEPLOYMENT@/worker"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("files (-want +got):\n%s", diff)
	}
	for path := range got {
		program := strings.TrimSuffix(filepath.Base(path), ".log")
		if !strings.Contains(strings.ReplaceAll(unit, "%i", program), ">>"+path+";") {
			t.Errorf("%s: got nobody who writes it, want %s", path, journal)
		}
		if _, err := os.Stat(root + "/deploy/systemd/holdfast-" + program + ".service"); err != nil {
			t.Errorf("%s: got %v, want the unit whose journal it is", path, err)
		}
	}
	if p := a.Logs.Metrics.Prometheus; p.Group != "/holdfast/@DEPLOYMENT@/metrics" || filepath.Base(p.Path) != "prometheus.yaml" || p.Processor.Namespace != functions.Namespace {
		t.Errorf("metrics: got %s, %s, namespace %s, want the group metrics, prometheus.yaml and the functions' namespace", p.Group, p.Path, p.Processor.Namespace)
	}
}

func TestJournalUnit_IsWhatSystemdTakesAndLeavesLittleOpen(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "holdfast-journal@api.service")
	if err := os.WriteFile(path, []byte(read(t, journal)), 0o600); err != nil {
		t.Fatal(err)
	}
	if said := analyze(t, "verify", "--man=no", path); strings.TrimSpace(said) != "" {
		t.Errorf("verify: got %q, want nothing said", said)
	}
	m := regexp.MustCompile(`Overall exposure level for \S+: ([0-9.]+) `).FindStringSubmatch(analyze(t, "security", "--offline=true", "--no-pager", path))
	if m == nil {
		t.Fatal("security: got no exposure level, want one")
	}
	if got, err := strconv.ParseFloat(m[1], 64); err != nil || got >= 3 {
		t.Errorf("security: got exposure %s (%v), want less than 3", m[1], err)
	}
}

// The unit's own script, in folders of the test and with a journal of the test, whose
// second reading goes wrong: so the script ends.
func TestJournalUnit_WritesWhatTheJournalHasAndMovesALargeFileAside(t *testing.T) {
	t.Parallel()
	m := regexp.MustCompile(`(?m)^ExecStart=/bin/sh -c "(.*)"$`).FindStringSubmatch(read(t, journal))
	if m == nil {
		t.Fatal("got no script in ExecStart, want one")
	}
	logs, state, bin := t.TempDir(), t.TempDir(), t.TempDir()
	script := strings.NewReplacer("/var/log/holdfast", logs, "/var/lib/holdfast-journal", state, "%i", "api").Replace(m[1])
	for name, body := range map[string]string{
		"journalctl": "echo \"$*\" >>" + state + "/asked\ntest ! -e " + state + "/said || exit 1\ntouch " + state + "/said\necho '{\"msg\":\"request\"}'\n",
		"sleep":      "echo \"$*\" >>" + state + "/slept\n",
	} {
		if err := os.WriteFile(filepath.Join(bin, name), []byte("#!/bin/sh\n"+body), 0o755); err != nil { //nolint:gosec // programs of the test
			t.Fatal(err)
		}
	}
	full := filepath.Join(logs, "api.log")
	for _, path := range []string{full, filepath.Join(logs, "worker.log")} {
		if err := os.WriteFile(path, []byte("before\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Truncate(path, 102<<20); err != nil {
			t.Fatal(err)
		}
	}
	run := exec.CommandContext(t.Context(), "/bin/sh", "-c", script) //nolint:gosec // the unit's own script
	run.Env = []string{"PATH=" + bin + ":/usr/bin:/bin"}
	if out, err := run.CombinedOutput(); err != nil || len(out) > 0 {
		t.Fatalf("script: got %v, %s, want it quiet", err, out)
	}
	if got := read(t, full); got != "{\"msg\":\"request\"}\n" {
		t.Errorf("api.log: got %d bytes, want the journal's line alone", len(got))
	}
	if got := read(t, full+".old"); !strings.HasPrefix(got, "before\n") {
		t.Errorf("api.log.old: got %d bytes, want what was there before", len(got))
	}
	if _, err := os.Stat(filepath.Join(logs, "worker.log.old")); err == nil {
		t.Error("worker.log: got it moved, want it left to its own unit")
	}
	want := "--quiet --output=cat --unit=holdfast-api.service --cursor-file=" + state + "/api\n"
	if diff := cmp.Diff(want+want, read(t, state+"/asked")); diff != "" {
		t.Errorf("asked of the journal (-want +got):\n%s", diff)
	}
	if got := read(t, state+"/slept"); got != "5\n" {
		t.Errorf("sleeps: got %q, want one of 5 s between two readings", got)
	}
}

// analyze runs systemd-analyze. Without it the test is skipped, or fails with CI=true.
func analyze(t *testing.T, args ...string) string {
	t.Helper()
	path, err := exec.LookPath("systemd-analyze")
	if err != nil {
		if os.Getenv("CI") == "true" {
			t.Fatal("systemd-analyze is not installed (Debian's package systemd has it), and with CI=true this test must run")
		}
		t.Skip("UNIT NOT VERIFIED: systemd-analyze is not installed; Debian's package systemd has it")
	}
	out, err := exec.CommandContext(t.Context(), path, args...).CombinedOutput() //nolint:gosec // the test's own program and files
	if err != nil {
		t.Errorf("systemd-analyze %s: got %v, want nil:\n%s", strings.Join(args, " "), err, out)
	}
	return string(out)
}
