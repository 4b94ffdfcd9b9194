// Package alarms judges a deployment's alerting rules without a Prometheus server:
// it scrapes the processes' /metrics into memory and evaluates a rules file over
// what it has seen, with Prometheus's own engine.
//
// Fail mode: closed. A rule that looks further back than this watch has seen, or
// asks for a metric that no process gives, is told as not judged, never as fine; a
// process that does not answer is named. Clock: the one given, for samples and rules
// alike.
package alarms

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"text/template"
	"time"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql"
)

// State is what is known of one alerting rule.
type State string

// The states; only StateFine says that nothing is wrong.
const (
	// StateFiring: its expression has held for as long as the rule wants.
	StateFiring State = "firing"
	// StatePending: it holds now, and not yet for as long as the rule wants, or over
	// less history than the rule looks at.
	StatePending State = "pending"
	// StateShort: it does not hold over what has been seen, which is less than the rule
	// looks at.
	StateShort State = "not enough history"
	// StateNoData: a metric it asks for has not been seen.
	StateNoData State = "no data"
	// StateFailed: it could not be evaluated.
	StateFailed State = "not evaluated"
	// StateFine: it was judged over all that it looks at, and does not hold.
	StateFine State = "fine"
)

// Alarm is one alerting rule, or one of the label sets for which its expression
// holds.
type Alarm struct {
	Name     string `json:"name"`
	Severity string `json:"severity,omitempty"`
	State    State  `json:"state"`
	// Since is when its expression began to hold; zero when it does not.
	Since time.Time `json:"since,omitzero"`
	// Labels tell the alarms of one rule apart.
	Labels  map[string]string `json:"labels,omitempty"`
	Summary string            `json:"summary,omitempty"`
	Runbook string            `json:"runbook,omitempty"`
	// Note says what was missing.
	Note string `json:"note,omitempty"`
}

// Target is one process, as the last scrape met it.
type Target struct {
	URL string `json:"url"`
	// Error says why it gave nothing; empty when it answered.
	Error string `json:"error,omitempty"`
}

// Sample is one value that a query gave.
type Sample struct {
	Labels map[string]string
	Value  float64
}

// Job is a kind of process, known by a metric that each of them gives.
type Job struct{ Name, Metric string }

// Options are what a Watch works with.
type Options struct {
	// Targets are the addresses of the processes' metrics, as URLs.
	Targets []string
	// Jobs gives processes the job labels that the rules know them by. One that gives
	// the metrics of several has the first as its label, and counts as up for each.
	Jobs []Job
	// Rules are Prometheus rules files, evaluated in that order.
	Rules [][]byte
	// Client fetches; each scrape of a process is given up after ScrapeTimeout.
	Client *http.Client
	Now    func() time.Time
}

const (
	// ScrapeTimeout is how long one process has to answer a scrape.
	ScrapeTimeout = 3 * time.Second
	// keep is how long samples are kept at most: a rule that looks further back is
	// never judged as fine.
	keep = time.Hour
	// lookback is how long a sample stands for its metric, as in Prometheus.
	lookback     = 5 * time.Minute
	queryTimeout = 10 * time.Second
	queryMost    = 10_000_000 // samples in one query
)

// Watch keeps samples and judges rules over them. It belongs to one goroutine.
type Watch struct {
	opts    Options
	rules   []rule
	store   *store
	engine  *promql.Engine
	targets []*target
}

// New reads the rules; its error names the rule that cannot be read.
func New(o Options) (*Watch, error) {
	rules, longest, err := parseRules(o.Rules...)
	if err != nil {
		return nil, err
	}
	w := &Watch{opts: o, rules: rules, store: newStore(min(max(longest, lookback), keep))}
	w.engine = promql.NewEngine(promql.EngineOpts{
		MaxSamples: queryMost, Timeout: queryTimeout, LookbackDelta: lookback,
		NoStepSubqueryIntervalFn: func(int64) int64 { return time.Minute.Milliseconds() },
	})
	for _, u := range o.Targets {
		w.targets = append(w.targets, &target{url: u, err: errNotScraped})
	}
	return w, nil
}

// Close frees the engine.
func (w *Watch) Close() error { return w.engine.Close() }

// Query evaluates an expression over what has been seen, now. No sample is no error.
func (w *Watch) Query(ctx context.Context, expr string) ([]Sample, error) {
	v, err := w.eval(ctx, expr, w.opts.Now())
	if err != nil {
		return nil, err
	}
	out := make([]Sample, 0, len(v))
	for _, s := range v {
		out = append(out, Sample{s.Metric.Map(), s.F})
	}
	return out, nil
}

func (w *Watch) eval(ctx context.Context, expr string, at time.Time) (promql.Vector, error) {
	q, err := w.engine.NewInstantQuery(ctx, w.store, nil, expr, at)
	if err != nil {
		return nil, fmt.Errorf("query %s: %w", expr, err)
	}
	defer q.Close()
	result := q.Exec(ctx)
	if result.Err != nil {
		return nil, fmt.Errorf("query %s: %w", expr, result.Err)
	}
	switch v := result.Value.(type) {
	case promql.Vector:
		return slices.Clone(v), nil // Close takes the slice back
	case promql.Scalar:
		return promql.Vector{{T: v.T, F: v.V}}, nil
	}
	return nil, fmt.Errorf("query %s gives a %s, and no vector", expr, result.Value.Type())
}

// seenFor is how long the processes that answer have all been seen.
func (w *Watch) seenFor(now time.Time) time.Duration {
	var since time.Time
	for _, t := range w.targets {
		if t.since.After(since) {
			since = t.since
		}
	}
	if since.IsZero() {
		return 0
	}
	return now.Sub(since)
}

// Judge evaluates every rule over what has been scraped, recording rules first to
// last as the file has them. Call it after each Scrape: how long an alarm has been
// pending is counted by these calls. Alarms come worst first.
func (w *Watch) Judge(ctx context.Context) []Alarm {
	now, seen := w.opts.Now(), w.seenFor(w.opts.Now())
	var out []Alarm
	for i := range w.rules {
		r := &w.rules[i]
		v, err := w.eval(ctx, r.Expr, now)
		if r.Record != "" {
			if err == nil {
				w.record(r, v, now)
			}
			continue
		}
		out = append(out, w.judge(r, v, err, seen, now)...)
	}
	slices.SortStableFunc(out, func(a, b Alarm) int {
		return cmp.Or(cmp.Compare(rank(a.State), rank(b.State)), cmp.Compare(a.Severity, b.Severity), cmp.Compare(a.Name, b.Name))
	})
	return out
}

func rank(s State) int {
	return slices.Index([]State{StateFiring, StatePending, StateFailed, StateNoData, StateShort, StateFine}, s)
}

// record keeps the result of a recording rule as a metric of its own.
func (w *Watch) record(r *rule, v promql.Vector, now time.Time) {
	seen := map[uint64]bool{}
	for _, s := range v {
		b := labels.NewBuilder(s.Metric).Set(model.MetricNameLabel, r.Record)
		for name, value := range r.Labels {
			b.Set(name, value)
		}
		l := b.Labels()
		seen[l.Hash()] = true
		w.store.add(l, now, s.F)
	}
	w.store.gone(r.recorded, seen, now)
	r.recorded = seen
}

func (w *Watch) judge(r *rule, v promql.Vector, err error, seen time.Duration, now time.Time) []Alarm {
	base := Alarm{Name: r.Alert, Severity: r.Labels["severity"], Runbook: r.runbook()}
	if err != nil {
		base.State, base.Note, base.Summary = StateFailed, err.Error(), r.Annotations["summary"]
		return []Alarm{base}
	}
	short := seen < r.needs
	held := map[uint64]time.Time{}
	var out []Alarm
	for _, s := range v {
		l := labels.NewBuilder(s.Metric).Del(model.MetricNameLabel).Labels()
		since, pending := r.active[l.Hash()]
		if !pending {
			since = now
		}
		held[l.Hash()] = since
		a := base
		a.State, a.Since, a.Labels, a.Summary = StateFiring, since, l.Map(), r.text(l, s.F)
		switch {
		case now.Sub(since) < time.Duration(r.For) && short: // true of too little yet
			a.State, a.Note = StateShort, fmt.Sprintf("it looks back %s, seen %s", r.needs, seen.Round(time.Second))
		case now.Sub(since) < time.Duration(r.For):
			a.State = StatePending
		case short:
			a.State, a.Note = StatePending, fmt.Sprintf("it looks back %s, seen %s", r.needs, seen.Round(time.Second))
		}
		out = append(out, a)
	}
	r.active = held
	if len(out) > 0 {
		return out
	}
	base.Summary = r.Annotations["summary"]
	missing := w.missing(r)
	switch {
	case len(missing) > 0:
		base.State, base.Note = StateNoData, "no process gives "+strings.Join(missing, ", ")
	case short:
		base.State, base.Note = StateShort, fmt.Sprintf("it looks back %s, seen %s", r.needs, seen.Round(time.Second))
	default:
		base.State = StateFine
	}
	return []Alarm{base}
}

// missing lists the metrics that a rule asks for and nobody has given. A rule about
// a metric's absence judges that itself.
func (w *Watch) missing(r *rule) []string {
	if r.absence {
		return nil
	}
	var names []string
	for _, name := range r.metrics {
		if !w.store.has(name) || name == upMetric && w.unknownJobs() {
			names = append(names, name)
		}
	}
	return names
}

// unknownJobs tells whether a process has never answered, so that nobody knows which
// job it would be up for.
func (w *Watch) unknownJobs() bool {
	return len(w.opts.Jobs) > 0 && slices.ContainsFunc(w.targets, func(t *target) bool { return t.err != nil && len(t.jobs) == 0 })
}

// text is the summary with its values filled in, or as it stands in the file when it
// uses what only a server knows.
func (r *rule) text(l labels.Labels, value float64) string {
	raw := r.Annotations["summary"]
	t, err := template.New(r.Alert).Funcs(template.FuncMap{
		"humanize":           func(v float64) string { return fmt.Sprintf("%.4g", v) },
		"humanizePercentage": func(v float64) string { return fmt.Sprintf("%.4g%%", v*100) },
		"humanizeDuration":   func(v float64) string { return time.Duration(v * float64(time.Second)).Round(time.Second).String() },
	}).Parse("{{$labels := .Labels}}{{$value := .Value}}" + raw)
	if err != nil {
		return raw
	}
	var b bytes.Buffer
	if err := t.Execute(&b, struct {
		Labels map[string]string
		Value  float64
	}{l.Map(), value}); err != nil {
		return raw
	}
	return b.String()
}

// Count counts alarms by state.
func Count(list []Alarm) map[State]int {
	n := map[State]int{}
	for _, a := range list {
		n[a.State]++
	}
	return n
}

// Targets tells how the last scrape met each process.
func (w *Watch) Targets() []Target {
	out := make([]Target, 0, len(w.targets))
	for _, t := range w.targets {
		one := Target{URL: t.url}
		if t.err != nil {
			one.Error = t.err.Error()
		}
		out = append(out, one)
	}
	return out
}

var errNotScraped = errors.New("not asked yet")

// sortedNames lists a set in order.
func sortedNames(set map[string]bool) []string { return slices.Sorted(maps.Keys(set)) }
