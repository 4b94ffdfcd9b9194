package reconcile

import (
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

type metrics struct {
	actions     *prometheus.CounterVec
	lastSuccess prometheus.Gauge
	running     prometheus.Gauge
	mismatch    *prometheus.GaugeVec // a kind that nobody has looked for is no series
	lastCheck   prometheus.Gauge
}

func newMetrics(reg prometheus.Registerer) *metrics {
	f := promauto.With(reg)
	return &metrics{
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
			Help: "Differences between booking store and seat ledger at the last cross-check, by kind; after one that could not look at everything only those that are known.",
		}, []string{"kind"}),
		lastCheck: f.NewGauge(prometheus.GaugeOpts{
			Name: "holdfast_cross_check_last_success_timestamp_seconds",
			Help: "When a cross-check last looked at everything, Unix seconds; 0 when none has.",
		}),
	}
}

// checked shows what a cross-check found. One that was not whole says nothing of what
// it did not find: a difference that is known stays, a zero is taken away.
func (m *metrics) checked(found map[Kind]int, whole bool) {
	for _, kind := range Kinds() {
		if n := found[kind]; n > 0 || whole {
			m.mismatch.WithLabelValues(string(kind)).Set(float64(n))
		} else {
			m.mismatch.DeleteLabelValues(string(kind))
		}
	}
	if whole {
		m.lastCheck.SetToCurrentTime()
	}
}
