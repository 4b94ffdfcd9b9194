// Package grafana_test holds the dashboard to what Grafana and the metrics can give: it
// reads the file as it lies there and starts nothing.
package grafana_test

import (
	"bytes"
	"encoding/json"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/prometheus/prometheus/promql/parser"

	"holdfast/internal/obs"
)

// dashboard is what is looked at of Grafana's model.
type dashboard struct {
	UID           string
	Title         string
	SchemaVersion int
	Templating    struct {
		List []struct{ Name, Type, Query string }
	}
	Panels []panel
}

type source struct{ Type, UID string }

type panel struct {
	ID          int
	Type        string
	Title       string
	Description string
	Datasource  source
	GridPos     struct{ X, Y, W, H int }
	Targets     []struct {
		RefID        string
		Expr         string
		LegendFormat string
		Datasource   source
	}
	FieldConfig struct {
		Defaults struct{ Unit string }
	}
}

func load(t *testing.T) dashboard {
	t.Helper()
	text, err := os.ReadFile("holdfast.json")
	if err != nil {
		t.Fatalf("dashboard: got %v, want nil", err)
	}
	var d dashboard
	if err := json.NewDecoder(bytes.NewReader(text)).Decode(&d); err != nil {
		t.Fatalf("dashboard: got %v, want JSON", err)
	}
	return d
}

// The model of Grafana 12 is version 41 and later ones take it in; below 36 a data
// source was a bare name.
func TestDashboard_IsOneThatGrafanaLoads(t *testing.T) {
	t.Parallel()
	d := load(t)
	if d.UID == "" || d.Title == "" || d.SchemaVersion < 36 {
		t.Errorf("dashboard: got uid %q, title %q, schema %d, want all, and schema 36 or later", d.UID, d.Title, d.SchemaVersion)
	}
	if v := d.Templating.List; len(v) == 0 || v[0].Name != "datasource" || v[0].Type != "datasource" || v[0].Query != "prometheus" {
		t.Errorf("variables: got %+v, want the data source first", v)
	}
	ids, titles, cells := map[int]bool{}, map[string]bool{}, map[[2]int]string{}
	for _, p := range d.Panels {
		if p.Title == "" || ids[p.ID] || titles[p.Title] {
			t.Errorf("panel %d %q: got no title, or one of another panel, or its id", p.ID, p.Title)
		}
		ids[p.ID], titles[p.Title] = true, true
		for x := p.GridPos.X; x < p.GridPos.X+p.GridPos.W; x++ {
			for y := p.GridPos.Y; y < p.GridPos.Y+p.GridPos.H; y++ {
				if over := cells[[2]int{x, y}]; over != "" || x >= 24 {
					t.Fatalf("panel %q: got it over %q or the edge, at column %d, want a place of its own", p.Title, over, x)
				}
				cells[[2]int{x, y}] = p.Title
			}
		}
		if p.Type == "row" {
			continue
		}
		want := source{"prometheus", "${datasource}"}
		if p.Datasource != want || len(p.Targets) == 0 || p.Description == "" || p.FieldConfig.Defaults.Unit == "" {
			t.Errorf("panel %q: got data source %+v, %d targets, description %q, unit %q, want the variable and all of them",
				p.Title, p.Datasource, len(p.Targets), p.Description, p.FieldConfig.Defaults.Unit)
		}
		refs := map[string]bool{}
		for _, target := range p.Targets {
			if target.Datasource != want || target.LegendFormat == "" || refs[target.RefID] {
				t.Errorf("panel %q, target %q: got data source %+v, legend %q, want the variable, a legend and a letter of its own",
					p.Title, target.RefID, target.Datasource, target.LegendFormat)
			}
			refs[target.RefID] = true
		}
	}
}

func TestDashboard_AsksForMetricsThatThereAre(t *testing.T) {
	t.Parallel()
	known, shown := metrics(t), map[string]bool{}
	p := parser.NewParser(parser.Options{})
	for _, panel := range load(t).Panels {
		for _, target := range panel.Targets {
			e, err := p.ParseExpr(strings.ReplaceAll(target.Expr, "$__rate_interval", "1m"))
			if err != nil {
				t.Errorf("panel %q: %s: got %v, want an expression", panel.Title, target.Expr, err)
				continue
			}
			parser.Inspect(e, func(n parser.Node, _ []parser.Node) error {
				v, ok := n.(*parser.VectorSelector)
				if !ok {
					return nil
				}
				name := v.Name
				if _, there := known[name]; !there {
					name = histogram.ReplaceAllString(name, "")
				}
				if _, there := known[name]; !there {
					t.Errorf("panel %q: got %s, want a metric of docs/metrics.md or of the Go runtime", panel.Title, v.Name)
				}
				shown[name] = true
				return nil
			})
		}
	}
	for name, ours := range known {
		// The functions' counter comes under CloudWatch's name.
		if ours && !shown[name] && name != "holdfast_functions_records_total" {
			t.Errorf("%s: got no panel that shows it, want one", name)
		}
	}
}

// histogram is what a histogram or summary appends to its name.
var histogram = regexp.MustCompile(`_(bucket|count|sum)$`)

// metrics are the names that may be asked for; true are the processes' own.
func metrics(t *testing.T) map[string]bool {
	t.Helper()
	all := map[string]bool{}
	families, err := obs.NewRegistry().Gather()
	if err != nil {
		t.Fatalf("runtime's metrics: got %v, want nil", err)
	}
	for _, f := range families {
		all[f.GetName()] = false
	}
	text, err := os.ReadFile("../../docs/metrics.md")
	if err != nil {
		t.Fatalf("metrics page: got %v, want nil", err)
	}
	ours, others, there := strings.Cut(string(text), "## Metrics of others")
	if !there {
		t.Fatal("metrics page: got no \"Metrics of others\", want it")
	}
	row := regexp.MustCompile("(?m)^\\| `([a-z0-9_]+)` \\|")
	for _, m := range row.FindAllStringSubmatch(others, -1) {
		all[m[1]] = false
	}
	for _, m := range row.FindAllStringSubmatch(ours, -1) {
		all[m[1]] = true
	}
	return all
}
