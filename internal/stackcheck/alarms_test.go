package stackcheck_test

import (
	"encoding/json"
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

// shippedMetrics are the figures of a machine that the CloudWatch agent ships, and the
// namespace that it puts them into.
func shippedMetrics() (namespace string, names map[string]bool, err error) {
	text, err := os.ReadFile(filepath.Join(root, "deploy/cloudwatch/agent.json"))
	if err != nil {
		return "", nil, err
	}
	var agent struct {
		Metrics struct {
			Namespace string
			Collected map[string]struct{ Measurement []string } `json:"metrics_collected"`
		}
	}
	if err := json.Unmarshal(text, &agent); err != nil {
		return "", nil, fmt.Errorf("agent.json: %w", err)
	}
	names = map[string]bool{}
	for plugin, c := range agent.Metrics.Collected {
		for _, m := range c.Measurement {
			names[plugin+"_"+m] = true
		}
	}
	return agent.Metrics.Namespace, names, nil
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
	host, shipped, err := shippedMetrics()
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
	alarmed, heard := map[string]bool{}, map[metric]bool{}
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
			heard[m] = true
			switch {
			case m.namespace == functions.Namespace:
				ours = true
				if !metrics[m.name] {
					out = append(out, fmt.Sprintf("%s: no process exports %s", at, m.name))
				}
			case m.namespace == host:
				if !shipped[m.name] {
					out = append(out, fmt.Sprintf("%s: agent.json does not ship %s", at, m.name))
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
	for at := range d.Each("AWS::Lambda::EventSourceMapping") {
		for _, name := range []string{"OnFailureDestinationDeliveredEventCount", "DroppedEventCount"} {
			if !heard[metric{"AWS/Lambda", name, "EventSourceMappingUUID=" + stackcheck.Reference(at.Template, at.ID, "")}] {
				out = append(out, fmt.Sprintf("%s: no alarm hears its %s: what it gave up on", at, name))
			}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(known)) {
		if !alarmed[name] {
			out = append(out, fmt.Sprintf("alarms.yaml: no alarm for the alert %s", name))
		}
	}
	return out
}

// metric is one that an alarm looks at, its dimensions as name=value in their order.
type metric struct{ namespace, name, dimensions string }

// metricsOf are the metrics that an alarm looks at.
func metricsOf(p map[string]any) []metric {
	var all []metric
	add := func(of any) {
		if stackcheck.Get(of, "MetricName") == nil {
			return
		}
		var dimensions []string
		for _, d := range stackcheck.List(stackcheck.Get(of, "Dimensions")) {
			dimensions = append(dimensions, stackcheck.Text(stackcheck.Get(d, "Name"))+"="+stackcheck.Text(stackcheck.Get(d, "Value")))
		}
		all = append(all, metric{stackcheck.Text(stackcheck.Get(of, "Namespace")), stackcheck.Text(stackcheck.Get(of, "MetricName")), strings.Join(dimensions, " ")})
	}
	for _, m := range stackcheck.List(p["Metrics"]) {
		add(stackcheck.Get(m, "MetricStat", "Metric"))
	}
	add(p)
	return all
}
