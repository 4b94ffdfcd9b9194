package reconcile

import (
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

type metrics struct {
	actions     *prometheus.CounterVec
	lastSuccess prometheus.Gauge
}

func newMetrics(reg prometheus.Registerer) *metrics {
	f := promauto.With(reg)
	return &metrics{
		actions: f.NewCounterVec(prometheus.CounterOpts{
			Name: "holdfast_reconciler_actions_total",
			Help: "What the reconciler did with rows that were due, by action.",
		}, []string{"action"}),
		lastSuccess: f.NewGauge(prometheus.GaugeOpts{
			Name: "holdfast_reconciler_last_success_timestamp_seconds",
			Help: "When a sweep last looked at every due row, Unix seconds.",
		}),
	}
}
