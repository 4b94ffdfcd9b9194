package app_test

import (
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"

	"holdfast/internal/app"
	"holdfast/internal/app/functions"
	"holdfast/internal/booking"
	"holdfast/internal/config"
	"holdfast/internal/obs"
	"holdfast/internal/testenv"
)

// shown is one metric as a process exports it, or as the page says that it does.
type shown struct{ Type, Labels string }

// docs/metrics.md is the page that alerts, dashboard and runbooks lead to: what a
// process exports stands there, and nothing else does.
func TestMetrics_PageSaysWhatTheProcessesExport(t *testing.T) {
	t.Parallel()
	addr := testenv.Mini(t)
	f := newFleet(t, addr, "0", booking.Sale{
		Name: "metrics", Currency: "BDT", Cap: 2, Hold: 10 * time.Minute,
		Levels: []booking.Level{{ID: "N1", Name: "One", Cap: 2, Fee: 150000}},
	}, 0)
	f.addCandidates(t, 1)
	env := f.env(testenv.FreeAddr(t), addr, "0")
	env["HOLDFAST_NOTIFY_TOPIC"] = "arn:aws:sns:eu-west-1:123456789012:payments"
	cfg, err := config.LoadAPI(func(k string) string { return env[k] })
	if err != nil {
		t.Fatalf("settings: got %v, want nil", err)
	}
	log := slog.New(slog.DiscardHandler)
	api := obs.NewRegistry()
	a, err := app.NewAPI(t.Context(), cfg, app.Extras{InProcessRedis: true}, log, api)
	if err != nil {
		t.Fatalf("NewAPI: got %v, want nil", err)
	}
	defer func() {
		if err := a.Close(); err != nil {
			t.Errorf("Close: got %v, want nil", err)
		}
	}()
	worker := obs.NewRegistry()
	w, err := app.NewWorker(a.Drivers, time.Second, log, worker)
	if err != nil {
		t.Fatalf("NewWorker: got %v, want nil", err)
	}

	// A histogram without a value and figures that were not read have no type to see.
	srv := httptest.NewServer(a.Edge)
	defer srv.Close()
	if status, got, _, err := f.book(t.Context(), srv.URL, "P0000", "N1"); err != nil || status != http.StatusAccepted {
		t.Fatalf("book: got %d %+v, %v, want 202", status, got, err)
	}
	if err := a.Stats.Read(t.Context()); err != nil {
		t.Fatalf("read the ledger: got %v, want nil", err)
	}
	if _, err := a.Reconciler.CrossCheck(t.Context()); err != nil {
		t.Fatalf("cross-check: got %v, want nil", err)
	}
	if _, err := a.Refunds.Sweep(t.Context()); err != nil {
		t.Fatalf("sweep refunds: got %v, want nil", err)
	}
	if _, err := w.Drain(t.Context()); err != nil {
		t.Fatalf("drain the queue: got %v, want nil", err)
	}

	got := exported(t, api)
	for name, m := range exported(t, worker) {
		got[name] = m
	}
	got[functions.MetricName] = shown{"counter", "function, outcome"}
	if diff := cmp.Diff(got, documented(t)); diff != "" {
		t.Errorf("docs/metrics.md against what is exported (-exported +page):\n%s", diff)
	}
}

var described = regexp.MustCompile(`^Desc\{fqName: "(holdfast_[a-z_]+)", help: "(.*)", constLabels: \{(.*)\}, variableLabels: \{(.*)\}\}$`)

// exported are the metrics of ours in the registry.
func exported(t *testing.T, reg *prometheus.Registry) map[string]shown {
	t.Helper()
	types := map[string]string{}
	families, err := reg.Gather()
	if err != nil {
		t.Fatalf("Gather: got %v, want nil", err)
	}
	for _, f := range families {
		types[f.GetName()] = strings.ToLower(f.GetType().String())
	}
	descs := make(chan *prometheus.Desc)
	go func() { defer close(descs); reg.Describe(descs) }()
	all := map[string]shown{}
	for d := range descs {
		m := described.FindStringSubmatch(d.String())
		if m == nil {
			continue // the runtime's
		}
		name, kind := m[1], types[m[1]]
		if kind == "" && strings.HasSuffix(name, "_total") {
			kind = "counter" // without a child yet
		}
		var labels []string
		for _, l := range strings.Split(m[3]+","+m[4], ",") {
			if l, _, _ = strings.Cut(l, "="); l != "" {
				labels = append(labels, l)
			}
		}
		slices.Sort(labels)
		all[name] = shown{kind, strings.Join(labels, ", ")}
	}
	if len(all) == 0 {
		t.Fatal("metrics of ours: got none, want some: has prometheus changed how it writes a description?")
	}
	return all
}

// documented is the first table of docs/metrics.md.
func documented(t *testing.T) map[string]shown {
	t.Helper()
	text, err := os.ReadFile("../../docs/metrics.md")
	if err != nil {
		t.Fatalf("page: got %v, want nil", err)
	}
	page, _, _ := strings.Cut(string(text), "## Metrics of others")
	all := map[string]shown{}
	for line := range strings.Lines(page) {
		cells := strings.Split(line, "|")
		if len(cells) != 8 || !strings.HasPrefix(cells[1], " `holdfast_") {
			continue
		}
		for i := range cells {
			cells[i] = strings.TrimSpace(cells[i])
		}
		name := strings.Trim(cells[1], "`")
		if cells[4] == "" || cells[5] == "" {
			t.Errorf("%s: got exporter %q, meaning %q, want both", name, cells[4], cells[5])
		}
		if _, twice := all[name]; twice {
			t.Errorf("%s: got two rows, want one", name)
		}
		all[name] = shown{cells[2], strings.Trim(cells[3], "-")}
	}
	return all
}

// status.json says what the ledger says, whatever its version and age.
func TestMetrics_StatusIsBehindWhenItSaysSomethingElse(t *testing.T) {
	t.Parallel()
	addr := testenv.Mini(t)
	f := newFleet(t, addr, "0", booking.Sale{
		Name: "status", Currency: "BDT", Cap: 2, Hold: 10 * time.Minute,
		Levels: []booking.Level{{ID: "N1", Name: "One", Cap: 2, Fee: 150000}},
	}, 0)
	f.addCandidates(t, 1)
	env := f.env(testenv.FreeAddr(t), addr, "0")
	cfg, err := config.LoadAPI(func(k string) string { return env[k] })
	if err != nil {
		t.Fatalf("settings: got %v, want nil", err)
	}
	reg := obs.NewRegistry()
	a, err := app.NewAPI(t.Context(), cfg, app.Extras{InProcessRedis: true}, slog.New(slog.DiscardHandler), reg)
	if err != nil {
		t.Fatalf("NewAPI: got %v, want nil", err)
	}
	defer func() {
		if err := a.Close(); err != nil {
			t.Errorf("Close: got %v, want nil", err)
		}
	}()
	behind := func() string {
		t.Helper()
		if err := a.Stats.Read(t.Context()); err != nil {
			t.Fatalf("read the ledger: got %v, want nil", err)
		}
		families, err := reg.Gather()
		if err != nil {
			t.Fatalf("Gather: got %v, want nil", err)
		}
		for _, f := range families {
			if f.GetName() == "holdfast_status_behind_seconds" {
				switch v := f.GetMetric()[0].GetGauge().GetValue(); {
				case v == 0:
					return "current"
				case v > 1e6:
					return "none"
				}
				return "old"
			}
		}
		return "not shown"
	}
	want := func(when, want string) {
		t.Helper()
		if got := behind(); got != want {
			t.Errorf("status.json %s: got %s, want %s", when, got, want)
		}
	}
	want("before it was published", "none")
	if err := a.Publisher.Publish(t.Context()); err != nil {
		t.Fatalf("Publish: got %v, want nil", err)
	}
	want("as published", "current")
	if err := a.Gate.Close(t.Context()); err != nil {
		t.Fatalf("close booking: got %v, want nil", err)
	}
	want("after booking was closed", "old")
	if err := a.Publisher.Publish(t.Context()); err != nil { // a transition is published at once
		t.Fatalf("Publish: got %v, want nil", err)
	}
	want("published again", "current")
}
