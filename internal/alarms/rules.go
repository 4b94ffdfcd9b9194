package alarms

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql/parser"
	"go.yaml.in/yaml/v4"
)

// span is a duration as Prometheus writes it, such as 5m or 1d.
type span time.Duration

// UnmarshalYAML reads it.
func (s *span) UnmarshalYAML(n *yaml.Node) error {
	d, err := model.ParseDuration(n.Value)
	if err != nil {
		return fmt.Errorf("line %d: %w", n.Line, err)
	}
	*s = span(d)
	return nil
}

// rule is one rule of the file, with what this package works out of it. Fields that
// only a server needs are passed over.
type rule struct {
	Alert       string            `yaml:"alert"`
	Record      string            `yaml:"record"`
	Expr        string            `yaml:"expr"`
	For         span              `yaml:"for"`
	Labels      map[string]string `yaml:"labels"`
	Annotations map[string]string `yaml:"annotations"`

	// needs is how far it looks back, through recorded metrics too.
	needs time.Duration
	// metrics are the names that it asks for; absence: it is about their absence.
	metrics []string
	absence bool

	active   map[uint64]time.Time // label sets for which it holds, and since when
	recorded map[uint64]bool      // series of a recording rule's last result
}

// runbook is where the rule says what to do.
func (r *rule) runbook() string {
	for _, name := range []string{"runbook", "runbook_url"} {
		if text := r.Annotations[name]; text != "" {
			return text
		}
	}
	return ""
}

// parseRules reads rules files; longest is how far any of their rules looks back.
func parseRules(files ...[]byte) (rules []rule, longest time.Duration, err error) {
	p, recorded := parser.NewParser(parser.Options{}), map[string]*rule{}
	var errs []error
	for _, text := range files {
		var file struct {
			Groups []struct {
				Name  string `yaml:"name"`
				Rules []rule `yaml:"rules"`
			} `yaml:"groups"`
		}
		if err := yaml.Unmarshal(text, &file); err != nil {
			errs = append(errs, fmt.Errorf("rules file: %w", err))
			continue
		}
		for _, g := range file.Groups {
			for i := range g.Rules {
				r := &g.Rules[i]
				if (r.Alert == "") == (r.Record == "") || r.Expr == "" {
					errs = append(errs, fmt.Errorf("rules file: group %s, rule %d: want alert or record, and expr", g.Name, i+1))
					continue
				}
				if err := r.study(p, recorded); err != nil {
					errs = append(errs, fmt.Errorf("rules file: group %s, %s%s: %w", g.Name, r.Alert, r.Record, err))
					continue
				}
				if r.Record != "" {
					recorded[r.Record] = r
				}
				longest = max(longest, r.needs)
				rules = append(rules, *r)
			}
		}
	}
	if len(errs) == 0 && len(rules) == 0 {
		errs = append(errs, errors.New("rules file: it has no rule"))
	}
	return rules, longest, errors.Join(errs...)
}

// study works out what a rule looks at. Recording rules are known from where they
// stand in the file on, as their results are.
func (r *rule) study(p parser.Parser, recorded map[string]*rule) error {
	expr, err := p.ParseExpr(r.Expr)
	if err != nil {
		return err
	}
	names := map[string]bool{}
	parser.Inspect(expr, func(node parser.Node, path []parser.Node) error {
		if call, is := node.(*parser.Call); is && strings.HasPrefix(call.Func.Name, "absent") {
			r.absence = true
		}
		v, is := node.(*parser.VectorSelector)
		if !is {
			return nil
		}
		needs := v.OriginalOffset
		for _, above := range path {
			switch n := above.(type) {
			case *parser.MatrixSelector:
				needs += n.Range
			case *parser.SubqueryExpr:
				needs += n.Range + n.OriginalOffset
			}
		}
		name := metricName(v)
		if of := recorded[name]; of != nil {
			needs += of.needs
			r.absence = r.absence || of.absence
			for _, m := range of.metrics {
				names[m] = true
			}
		} else if name != "" {
			names[name] = true
		}
		r.needs = max(r.needs, needs)
		return nil
	})
	r.metrics = sortedNames(names)
	return nil
}

func metricName(v *parser.VectorSelector) string {
	if v.Name != "" {
		return v.Name
	}
	for _, m := range v.LabelMatchers {
		if m.Name == model.MetricNameLabel && m.Type == labels.MatchEqual {
			return m.Value
		}
	}
	return ""
}
