package reconcile

import (
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

type metrics struct {
	actions     *prometheus.CounterVec
	lastSuccess prometheus.Gauge
	running     prometheus.Gauge
	mismatch    *prometheus.GaugeVec
}

func newMetrics(reg prometheus.Registerer) *metrics {
	f := promauto.With(reg)
	m := &metrics{
		actions: f.NewCounterVec(prometheus.CounterOpts{
			Name: "holdfast_reconciler_actions_total",
			Help: "What the reconciler did with rows that were due, records without a row and ended attempts, by action.",
		}, []string{"action"}),
		lastSuccess: f.NewGauge(prometheus.GaugeOpts{
			Name: "holdfast_reconciler_last_success_timestamp_seconds",
			Help: "When a sweep last looked at every due row, Unix seconds.",
		}),
		running: f.NewGauge(prometheus.GaugeOpts{
			Name: "holdfast_reconciler_running",
			Help: "1 in the process that is elected: what its sweeps and checks found is true of the sale, what another shows is old.",
		}),
		mismatch: f.NewGaugeVec(prometheus.GaugeOpts{
			Name: "holdfast_ledger_mismatch",
			Help: "Differences between booking store and seat ledger at the last cross-check, by kind.",
		}, []string{"kind"}),
	}
	for _, kind := range Kinds() {
		m.mismatch.WithLabelValues(string(kind))
	}
	return m
}
