package k6test

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// kind is a metric's type, which says what a threshold may ask of it.
type kind string

const (
	counter kind = "Counter"
	gauge   kind = "Gauge"
	rate    kind = "Rate"
	trend   kind = "Trend"
)

// methods are the aggregations of each type; "p" stands for p(N).
var methods = map[kind][]string{
	counter: {"count", "rate"},
	gauge:   {"value"},
	rate:    {"rate"},
	trend:   {"avg", "min", "med", "max", "p"},
}

// builtin are k6's own metrics as far as they are measured here.
var builtin = map[string]kind{
	"http_reqs": counter, "http_req_duration": trend,
	"iterations": counter, "iteration_duration": trend, "dropped_iterations": counter,
}

// threshold is an expression of k6's threshold grammar: method, operator, value.
type threshold struct {
	source, method string
	percent        float64 // of p(N)
	op             string
	value          float64
	abort          bool
	delay          time.Duration // no abort before
}

var (
	expression = regexp.MustCompile(`^(count|rate|value|avg|min|med|max|p\(([0-9]+(?:\.[0-9]+)?)\)) *(<=|>=|===|==|!=|<|>) *([0-9]+(?:\.[0-9]+)?)$`)
	metricName = regexp.MustCompile(`^[a-zA-Z_][a-zA-Z0-9_]{0,127}$`)
)

func parseThreshold(source string) (threshold, error) {
	m := expression.FindStringSubmatch(source)
	if m == nil {
		return threshold{}, fmt.Errorf("threshold %q: want an aggregation, an operator and a number, such as p(99)<250", source)
	}
	t := threshold{source: source, method: m[1], op: m[3]}
	t.value, _ = strconv.ParseFloat(m[4], 64) // it is one, by the expression
	if m[2] != "" {
		t.method = "p"
		if t.percent, _ = strconv.ParseFloat(m[2], 64); t.percent > 100 {
			return threshold{}, fmt.Errorf("threshold %q: want a percentile of 100 at most", source)
		}
	}
	return t, nil
}

// holds tells whether a value passes.
func (t threshold) holds(v float64) bool {
	switch t.op {
	case "<":
		return v < t.value
	case "<=":
		return v <= t.value
	case ">":
		return v > t.value
	case ">=":
		return v >= t.value
	case "!=":
		return v != t.value
	default:
		return v == t.value
	}
}

// series are the values of a metric, or of those of its samples that have some tags.
type series struct {
	tags       map[string]string
	thresholds []threshold
	values     []float64
}

// aggregate is a method's value. Percentiles lie between the two nearest ranks.
func (s *series) aggregate(k kind, method string, percent float64, lasted time.Duration) float64 {
	sum, trues := 0.0, 0.0
	for _, v := range s.values {
		sum += v
		if v != 0 {
			trues++
		}
	}
	n := len(s.values)
	switch {
	case k == rate:
		return trues / float64(n)
	case method == "count":
		return sum
	case method == "rate":
		return sum / lasted.Seconds()
	case n == 0:
		return 0
	case method == "value":
		return s.values[n-1]
	case method == "avg":
		return sum / float64(n)
	}
	sorted := slices.Sorted(slices.Values(s.values))
	switch method {
	case "min":
		percent = 0
	case "med":
		percent = 50
	case "max":
		percent = 100
	}
	at := percent / 100 * float64(n-1)
	low := int(math.Floor(at))
	high := min(low+1, n-1)
	return sorted[low] + (sorted[high]-sorted[low])*(at-float64(low))
}

// metric is one by its name: all its samples, and the parts of them that thresholds name.
type metric struct {
	kind  kind
	parts map[string]*series // by what stands in braces; "" is all
}

// metrics are those of a run. Safe for concurrent use.
type metrics struct {
	mu  sync.Mutex
	all map[string]*metric
}

func newMetrics() *metrics {
	m := &metrics{all: map[string]*metric{}}
	for name, k := range builtin {
		m.all[name] = &metric{kind: k, parts: map[string]*series{"": {}}}
	}
	return m
}

// declare makes a script's own metric; every VU declares the same ones.
func (m *metrics) declare(name string, k kind) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !metricName.MatchString(name) {
		return fmt.Errorf("metric %q: want a name of letters, digits and _", name)
	}
	if _, ok := builtin[name]; ok {
		return fmt.Errorf("metric %s: k6 has one of this name", name)
	}
	if had, ok := m.all[name]; !ok {
		m.all[name] = &metric{kind: k, parts: map[string]*series{"": {}}}
	} else if had.kind != k {
		return fmt.Errorf("metric %s: it is a %s already", name, had.kind)
	}
	return nil
}

// judge takes the thresholds of the options. Each must name a metric that there is, and ask
// of it what its type has.
func (m *metrics) judge(thresholds map[string][]threshold) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	var errs []error
	for _, full := range slices.Sorted(maps.Keys(thresholds)) {
		name, part, tags, err := splitName(full)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		of, ok := m.all[name]
		if !ok {
			errs = append(errs, fmt.Errorf("thresholds: %s: the script has no such metric", full))
			continue
		}
		for _, t := range thresholds[full] {
			if !slices.Contains(methods[of.kind], t.method) {
				errs = append(errs, fmt.Errorf("thresholds: %s: %s: a %s has only %v", full, t.source, of.kind, methods[of.kind]))
			}
		}
		if of.parts[part] == nil {
			of.parts[part] = &series{tags: tags}
		}
		of.parts[part].thresholds = thresholds[full]
	}
	return errors.Join(errs...)
}

// splitName takes name{tag:value,tag:value} apart.
func splitName(full string) (name, part string, tags map[string]string, err error) {
	name, rest, braced := strings.Cut(full, "{")
	if !braced {
		return name, "", nil, nil
	}
	part, after, closed := strings.Cut(rest, "}")
	tags = map[string]string{}
	for pair := range strings.SplitSeq(part, ",") {
		tag, value, ok := strings.Cut(pair, ":")
		if !ok || !closed || after != "" || part == "" {
			return "", "", nil, fmt.Errorf("thresholds: %s: want metric{tag:value}", full)
		}
		tags[strings.TrimSpace(tag)] = strings.TrimSpace(value)
	}
	return name, part, tags, nil
}

// add notes a sample of a metric that was declared.
func (m *metrics) add(name string, value float64, tags map[string]string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, s := range m.all[name].parts {
		matches := true
		for tag, want := range s.tags {
			matches = matches && tags[tag] == want
		}
		if matches {
			s.values = append(s.values, value)
		}
	}
}

// crossed are the thresholds that do not hold. While the run lasts only those that end it
// are asked, and of no metric that has no sample yet; afterwards all. A Rate of nothing
// crosses none, as in k6.
func (m *metrics) crossed(lasted time.Duration, ended bool) []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	var found []string
	for name, of := range m.all {
		for part, s := range of.parts {
			full := name
			if part != "" {
				full += "{" + part + "}"
			}
			for _, t := range s.thresholds {
				if len(s.values) == 0 && (!ended || of.kind == rate) || !ended && (!t.abort || lasted < t.delay) {
					continue
				}
				if got := s.aggregate(of.kind, t.method, t.percent, lasted); !t.holds(got) {
					found = append(found, fmt.Sprintf("%s is %.4g, want %s", full, got, t.source))
				}
			}
		}
	}
	slices.Sort(found)
	return found
}
