package prometheus_test

import (
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/prometheus/promql/parser"

	"holdfast/internal/app"
	"holdfast/internal/booking"
	"holdfast/internal/config"
	"holdfast/internal/obs"
	"holdfast/internal/testenv"
)

// burst is what has never happened since the processes began, and then happens 400
// times between two scrapes, with the alert of that severity that must hear it.
type burst struct {
	alert, severity string
	series          []string
}

// answered are the series of answers to a route that took no longer than these buckets;
// without any they were slower than an objective wants.
func answered(route, code string, buckets ...string) []string {
	out := []string{fmt.Sprintf(`holdfast_http_request_seconds_count{code="%s", route="%s"}`, code, route)}
	for _, le := range buckets {
		out = append(out, fmt.Sprintf(`holdfast_http_request_seconds_bucket{code="%s", le="%s", route="%s"}`, code, le, route))
	}
	return out
}

func called(call, outcome string) string {
	return fmt.Sprintf(`holdfast_gateway_request_seconds_count{call="%s", outcome="%s"}`, call, outcome)
}

func counted(name, label, value string) string {
	return fmt.Sprintf(`%s{%s="%s"}`, name, label, value)
}

// bursts are one for each series that an alert counts the growth of.
func bursts() []burst {
	all := []burst{
		{"BookingErrors", "page", answered("/book", "500", "8")},
		{"BookingErrors", "page", answered("/book", "202")}, // all of them too slow
		{"BookingErrors", "ticket", answered("/book", "500", "8")},
		{"BookingsTurnedAway", "page", answered("/book", "502", "8")},
		{"BookingsTurnedAway", "page", answered("/book", "503", "8")},
		{"BookingsTurnedAway", "ticket", answered("/book", "503", "8")},
		{"ReturnsSlow", "page", answered("/payment/callback", "500", "8")},
		{"ReturnsSlow", "page", answered("/payment/callback", "303")},
		{"ReturnsSlow", "ticket", answered("/payment/callback", "500", "8")},
		{"LedgerUnknown", "page", []string{counted("holdfast_ledger_reads_total", "outcome", "unknown")}},
		{"AcknowledgementsMissing", "ticket", []string{counted("holdfast_ack_failures_total", "script", "admit")}},
		{"GatewayTokenFailing", "page", []string{counted("holdfast_gateway_token_grants_total", "outcome", "limited")}},
	}
	for _, code := range []string{"400", "409", "413", "415", "422", "429"} {
		all = append(all,
			burst{"RefusalsSlow", "page", answered("/book", code)},
			burst{"RefusalsSlow", "ticket", answered("/book", code)})
	}
	for _, script := range []string{"begin_pay", "end_pay", "settle", "late"} {
		all = append(all, burst{"AcknowledgementsMissing", "page", []string{counted("holdfast_ack_failures_total", "script", script)}})
	}
	for _, call := range []string{"create", "execute", "query", "refund", "refund_status", "search"} {
		for _, outcome := range []string{"our_fault", "not_sent", "breaker_open", "in_doubt"} {
			if outcome == "breaker_open" && call != "create" {
				continue // only creating is paused
			}
			all = append(all,
				burst{"GatewayFailing", "page", []string{called(call, outcome)}},
				burst{"GatewayFailing", "ticket", []string{called(call, outcome)}})
		}
	}
	for _, outcome := range []string{"failed", "not_sent"} {
		all = append(all, burst{"GatewayTokenFailing", "ticket", []string{counted("holdfast_gateway_token_grants_total", "outcome", outcome)}})
	}
	for _, outcome := range []string{"failed", "unreadable"} {
		all = append(all, burst{"WorkerCannotWrite", "ticket", []string{counted("holdfast_worker_records_total", "outcome", outcome)}})
	}
	for _, outcome := range []string{"unproved", "not_stored", "unreadable", "confirmation"} {
		all = append(all, burst{"WebhookFailing", "ticket", []string{counted("holdfast_notifications_total", "outcome", outcome)}})
	}
	return all
}

// A series that comes into being with its first event has no growth that rate and
// increase could see: so whatever an alert counts is there, as 0, from the start.
func TestAlerts_WhatTheyCountBeginsAtZero(t *testing.T) {
	t.Parallel()
	there := begun(t)
	tested := map[string]bool{}
	for _, b := range bursts() {
		tested[b.alert+" "+b.severity] = true
		for _, s := range b.series {
			if !there[s] {
				t.Errorf("%s %s: got no %s in a process that has just begun, want it as 0", b.alert, b.severity, s)
			}
		}
	}
	recorded := map[string]string{}
	for _, r := range rules(t, "recording.yml") {
		recorded[r.Record] = r.Expr
	}
	for _, a := range alerts(t) {
		if a.Alert == "NoAdmissions" || a.Alert == "LedgerUnread" {
			continue // they are about what does not grow
		}
		if key := a.Alert + " " + a.Labels["severity"]; growing(t, a.Expr, recorded) && !tested[key] {
			t.Errorf("%s: got no burst among those here, want one: it counts growth", key)
		}
	}
}

// growing tells whether an expression looks at the growth of a metric of ours.
func growing(t *testing.T, expr string, recorded map[string]string) bool {
	t.Helper()
	e, err := parser.NewParser(parser.Options{}).ParseExpr(expr)
	if err != nil {
		t.Fatalf("%s: got %v, want an expression", expr, err)
	}
	found := false
	parser.Inspect(e, func(n parser.Node, path []parser.Node) error {
		v, is := n.(*parser.VectorSelector)
		if !is {
			return nil
		}
		if inner, is := recorded[v.Name]; is {
			found = found || growing(t, inner, recorded)
			return nil
		}
		for _, above := range path {
			call, is := above.(*parser.Call)
			found = found || is && (call.Func.Name == "increase" || call.Func.Name == "rate") && strings.HasPrefix(v.Name, "holdfast_")
		}
		return nil
	})
	return found
}

// The first burst of each alert, between two scrapes, over nothing but what a process
// that has just begun gives.
func TestAlerts_HearTheFirstBurst(t *testing.T) {
	t.Parallel()
	there, asked := begun(t), map[string]bool{}
	here, err := filepath.Abs(".")
	if err != nil {
		t.Fatalf("rules: got %v, want nil", err)
	}
	var file strings.Builder
	fmt.Fprintf(&file, "rule_files: [%s/recording.yml, %s/alerts.yml]\nevaluation_interval: 30s\ntests:\n", here, here)
	for _, b := range bursts() {
		key := b.alert + " " + b.severity
		if asked[key] {
			continue
		}
		asked[key] = true
		heard := "6m" // the burst is at 1 min: a page rings within five, a ticket within twenty
		if b.severity == "ticket" {
			heard = "21m"
		}
		fmt.Fprintf(&file, "  - name: '%s: %s'\n    interval: 15s\n    input_series:\n", key, b.series[0])
		for _, s := range b.series {
			begin := "_x4"
			if there[s] {
				begin = "0x3"
			}
			fmt.Fprintf(&file, "      - {series: '%s', values: '%s 400x90'}\n", s, begin)
		}
		fmt.Fprintf(&file, `    promql_expr_test:
      - expr: max_over_time((count by (alertname, severity) (ALERTS{alertname="%s", severity="%s", alertstate="firing"}))[%s:30s])
        eval_time: %s
        exp_samples: [{labels: '{alertname="%s", severity="%s"}', value: 1}]
`, b.alert, b.severity, heard, heard, b.alert, b.severity)
	}
	name := filepath.Join(t.TempDir(), "bursts.yml")
	if err := os.WriteFile(name, []byte(file.String()), 0o600); err != nil {
		t.Fatalf("write the test: got %v, want nil", err)
	}
	promtool(t, "test", "rules", name)
}

// begun are the series of an api and a worker that have done nothing yet.
func begun(t *testing.T) map[string]bool {
	t.Helper()
	addr := testenv.Mini(t)
	env := map[string]string{
		"HOLDFAST_ADDR": testenv.FreeAddr(t), "HOLDFAST_ADMIN_ADDR": "off", "HOLDFAST_PUBLIC_URL": "http://localhost",
		"HOLDFAST_DATA": t.TempDir(), "HOLDFAST_REDIS_ADDR": addr, "HOLDFAST_ACKS": "0",
		"HOLDFAST_SEAL_KEY": strings.Repeat("ab", booking.SealKeySize), "HOLDFAST_GATEWAY_URL": "http://localhost/gateway",
		"HOLDFAST_GATEWAY_APP_KEY": "k", "HOLDFAST_GATEWAY_APP_SECRET": "s", "HOLDFAST_GATEWAY_USERNAME": "u", "HOLDFAST_GATEWAY_PASSWORD": "p",
		"HOLDFAST_NOTIFY_TOPIC": "arn:aws:sns:eu-west-1:123456789012:payments",
	}
	cfg, err := config.LoadAPI(func(k string) string { return env[k] })
	if err != nil {
		t.Fatalf("settings: got %v, want nil", err)
	}
	log, reg := slog.New(slog.DiscardHandler), obs.NewRegistry()
	a, err := app.NewAPI(t.Context(), cfg, app.Extras{InProcessRedis: true}, log, reg)
	if err != nil {
		t.Fatalf("NewAPI: got %v, want nil", err)
	}
	t.Cleanup(func() {
		if err := a.Close(); err != nil {
			t.Errorf("Close: got %v, want nil", err)
		}
	})
	worker := obs.NewRegistry()
	if _, err := app.NewWorker(a.Drivers, time.Second, log, worker); err != nil {
		t.Fatalf("NewWorker: got %v, want nil", err)
	}
	all := map[string]bool{}
	for _, r := range []*prometheus.Registry{reg, worker} {
		families, err := r.Gather()
		if err != nil {
			t.Fatalf("Gather: got %v, want nil", err)
		}
		for _, f := range families {
			for _, m := range f.GetMetric() {
				h := m.GetHistogram()
				if h == nil {
					all[spelled(f.GetName(), m.GetLabel(), "")] = true
					continue
				}
				all[spelled(f.GetName()+"_count", m.GetLabel(), "")] = true
				for _, b := range h.GetBucket() {
					all[spelled(f.GetName()+"_bucket", m.GetLabel(), fmt.Sprint(b.GetUpperBound()))] = true
				}
			}
		}
	}
	return all
}

// spelled writes a series with its labels in order.
func spelled(name string, labels []*dto.LabelPair, le string) string {
	var parts []string
	for _, l := range labels {
		parts = append(parts, fmt.Sprintf(`%s="%s"`, l.GetName(), l.GetValue()))
	}
	if le != "" {
		parts = append(parts, fmt.Sprintf(`le="%s"`, le))
	}
	slices.Sort(parts)
	return name + "{" + strings.Join(parts, ", ") + "}"
}
