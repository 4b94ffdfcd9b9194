package cloudwatch_test

import (
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"holdfast/internal/app"
	"holdfast/internal/booking"
	"holdfast/internal/config"
	"holdfast/internal/obs"
	"holdfast/internal/testenv"
)

// The agent knows a counter's growth only from its second reading on: one that is made with
// its first event loses that event, which may be the only one.
func TestCounters_ThatAlarmsLookAtAreThereWhenTheProgramsStart(t *testing.T) {
	t.Parallel()
	env := map[string]string{
		"HOLDFAST_ADDR": "127.0.0.1:0", "HOLDFAST_ADMIN_ADDR": "off", "HOLDFAST_PUBLIC_URL": "https://seats.example.org",
		"HOLDFAST_DATA": t.TempDir(), "HOLDFAST_REDIS_ADDR": testenv.Mini(t), "HOLDFAST_ACKS": "0",
		"HOLDFAST_SEAL_KEY": strings.Repeat("ab", booking.SealKeySize), "HOLDFAST_GATEWAY_URL": "https://gateway.example.com",
		"HOLDFAST_GATEWAY_APP_KEY": "k", "HOLDFAST_GATEWAY_APP_SECRET": "s", "HOLDFAST_GATEWAY_USERNAME": "u", "HOLDFAST_GATEWAY_PASSWORD": "p",
		"HOLDFAST_NOTIFY_TOPIC": "arn:aws:sns:eu-west-1:123456789012:payments",
	}
	cfg, err := config.LoadAPI(func(name string) string { return env[name] })
	if err != nil {
		t.Fatalf("settings: got %v, want nil", err)
	}
	log := slog.New(slog.DiscardHandler)
	registries := map[string]*prometheus.Registry{"api": obs.NewRegistry(), "worker": obs.NewRegistry()}
	a, err := app.NewAPI(t.Context(), cfg, app.Extras{InProcessRedis: true}, log, registries["api"])
	if err != nil {
		t.Fatalf("NewAPI: got %v, want nil", err)
	}
	t.Cleanup(func() {
		if err := a.Close(); err != nil {
			t.Errorf("Close: got %v, want nil", err)
		}
	})
	if _, err := app.NewWorker(a.Drivers, time.Second, log, registries["worker"]); err != nil {
		t.Fatalf("NewWorker: got %v, want nil", err)
	}
	made := map[string]map[metric]bool{}
	for job, registry := range registries {
		made[job] = series(t, registry)
	}
	known, counters := documented(t), 0
	for m, job := range declared(t) {
		if known[m.name][0] != "counter" {
			continue // a gauge is as true in its first reading
		}
		counters++
		if !made[job][m] {
			t.Errorf("%s {%s}: got no such counter as %s starts, want it made in advance: its first event would not be counted", m.name, m.dimensions, job)
		}
	}
	if counters == 0 {
		t.Error("got no counter among the metrics of agent.json, want some")
	}
}

// series are those that a registry shows: each by its name alone, and with each one of its
// labels.
func series(t *testing.T, registry *prometheus.Registry) map[metric]bool {
	t.Helper()
	families, err := registry.Gather()
	if err != nil {
		t.Fatalf("Gather: got %v, want nil", err)
	}
	all := map[metric]bool{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			all[metric{f.GetName(), ""}] = true
			for _, l := range m.GetLabel() {
				all[metric{f.GetName(), l.GetName() + "=" + l.GetValue()}] = true
			}
		}
	}
	return all
}
