package stackcheck_test

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"go.yaml.in/yaml/v4"

	"holdfast/internal/app/functions"
	"holdfast/internal/stackcheck"
)

// alert is one of deploy/prometheus/alerts.yml by the name that its alarm has.
type alert struct{ runbook string }

// alerts are those of Prometheus. One that pages and is a ticket too has two alarms, and
// the ticket's ends in -warning.
func alerts() (map[string]alert, error) {
	text, err := os.ReadFile(filepath.Join(root, "deploy/prometheus/alerts.yml"))
	if err != nil {
		return nil, err
	}
	var file struct {
		Groups []struct {
			Rules []struct {
				Alert       string
				Labels      map[string]string
				Annotations map[string]string
			}
		}
	}
	if err := yaml.Unmarshal(text, &file); err != nil {
		return nil, err
	}
	pages := map[string]bool{}
	for _, g := range file.Groups {
		for _, r := range g.Rules {
			pages[r.Alert] = pages[r.Alert] || r.Labels["severity"] == "page"
		}
	}
	all := map[string]alert{}
	for _, g := range file.Groups {
		for _, r := range g.Rules {
			name := r.Alert
			if r.Labels["severity"] != "page" && pages[name] {
				name += "-warning"
			}
			all[name] = alert{r.Annotations["runbook"]}
		}
	}
	return all, nil
}

// metricNames are the metrics of our processes: a test of internal/app holds the table of
// docs/metrics.md to what they export.
func metricNames() (map[string]bool, error) {
	text, err := os.ReadFile(filepath.Join(root, "docs/metrics.md"))
	if err != nil {
		return nil, err
	}
	all := map[string]bool{functions.MetricName: true}
	for _, m := range metricRow.FindAllStringSubmatch(string(text), -1) {
		all[m[1]] = true
	}
	return all, nil
}

var (
	metricRow  = regexp.MustCompile("(?m)^\\| `(holdfast_[a-z_]+)` \\|")
	runbook    = regexp.MustCompile(`docs/runbooks/[a-z-]+\.md`)
	loggedWord = regexp.MustCompile(`\$\.msg = "([^"]+)"`)
)

func alarmProblems(d *stackcheck.Deployment) []string {
	known, err := alerts()
	if err != nil {
		return []string{err.Error()}
	}
	metrics, err := metricNames()
	if err != nil {
		return []string{err.Error()}
	}
	logs, err := os.ReadFile(filepath.Join(root, "docs/logs.md"))
	if err != nil {
		return []string{err.Error()}
	}
	// An alarm speaks to a topic of its own region: the alarms stack's, or the edge's.
	topics := map[string]string{"alarms": exportedValue(d, "Topic"), "edge": stackcheck.Reference("edge", "AlarmTopic", "")}
	filtered := map[string]bool{}
	var out []string
	for at, r := range d.Each("AWS::Logs::MetricFilter") {
		for _, m := range stackcheck.List(r.Properties["MetricTransformations"]) {
			filtered[stackcheck.Text(stackcheck.Get(m, "MetricNamespace"))+" "+stackcheck.Text(stackcheck.Get(m, "MetricName"))] = true
		}
		for _, m := range loggedWord.FindAllStringSubmatch(stackcheck.Text(r.Properties["FilterPattern"]), -1) {
			if !strings.Contains(string(logs), "`"+m[1]+"`") {
				out = append(out, fmt.Sprintf("%s: looks for the line %q, which docs/logs.md does not know", at, m[1]))
			}
		}
	}
	alarmed := map[string]bool{}
	for at, r := range d.Each("AWS::CloudWatch::Alarm") {
		full := stackcheck.Text(r.Properties["AlarmName"])
		_, name, _ := strings.Cut(full, "-")
		alarmed[name] = true
		path := runbook.FindString(stackcheck.Text(r.Properties["AlarmDescription"]))
		if _, err := os.Stat(filepath.Join(root, path)); path == "" || err != nil {
			out = append(out, fmt.Sprintf("%s: AlarmDescription names no runbook that there is (%q)", at, path))
		}
		ours := false
		for _, m := range metricsOf(r.Properties) {
			switch {
			case m.namespace == functions.Namespace:
				ours = true
				if !metrics[m.name] {
					out = append(out, fmt.Sprintf("%s: no process exports %s", at, m.name))
				}
			case strings.HasPrefix(m.namespace, functions.Namespace+"/"):
				ours = true
				if !filtered[m.namespace+" "+m.name] {
					out = append(out, fmt.Sprintf("%s: no filter makes %s of %s", at, m.name, m.namespace))
				}
			case !strings.HasPrefix(m.namespace, "AWS/"):
				out = append(out, fmt.Sprintf("%s: nobody reports into the namespace %s", at, m.namespace))
			}
		}
		want, isAlert := known[name]
		switch {
		case isAlert && want.runbook != path:
			out = append(out, fmt.Sprintf("%s: its runbook is %s, want %s as the alert %s has", at, path, want.runbook, name))
		case !isAlert && ours:
			out = append(out, fmt.Sprintf("%s: there is no alert %s in deploy/prometheus/alerts.yml", at, name))
		}
		if !slices.Equal(stackcheck.List(r.Properties["AlarmActions"]), []any{topics[at.Template]}) {
			out = append(out, fmt.Sprintf("%s: AlarmActions is not the topic: nobody would hear it", at))
		}
		if r.Properties["TreatMissingData"] == nil {
			out = append(out, fmt.Sprintf("%s: does not say what missing data means", at))
		}
	}
	for _, name := range slices.Sorted(maps.Keys(known)) {
		if !alarmed[name] {
			out = append(out, fmt.Sprintf("alarms.yaml: no alarm for the alert %s", name))
		}
	}
	return out
}

type metric struct{ namespace, name string }

// metricsOf are the metrics that an alarm looks at.
func metricsOf(p map[string]any) []metric {
	var all []metric
	for _, m := range stackcheck.List(p["Metrics"]) {
		if stat := stackcheck.Get(m, "MetricStat", "Metric"); stat != nil {
			all = append(all, metric{stackcheck.Text(stackcheck.Get(stat, "Namespace")), stackcheck.Text(stackcheck.Get(stat, "MetricName"))})
		}
	}
	if p["MetricName"] != nil {
		all = append(all, metric{stackcheck.Text(p["Namespace"]), stackcheck.Text(p["MetricName"])})
	}
	return all
}
