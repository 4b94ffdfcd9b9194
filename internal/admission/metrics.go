package admission

import (
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

type metrics struct {
	admissions  *prometheus.CounterVec
	outcomes    map[string]prometheus.Counter // of admissions: looked up for every request
	ackFailures *prometheus.CounterVec
	batchSize   prometheus.Histogram
	breakerOpen prometheus.Gauge
}

func newMetrics(reg prometheus.Registerer) *metrics {
	f := promauto.With(reg)
	m := &metrics{
		admissions: f.NewCounterVec(prometheus.CounterOpts{
			Name: "holdfast_admission_total",
			Help: "Admission decisions, by outcome: the admit script's word, unacknowledged, breaker, or error.",
		}, []string{"outcome"}),
		ackFailures: f.NewCounterVec(prometheus.CounterOpts{
			Name: "holdfast_ack_failures_total",
			Help: "Script answers that too few replicas acknowledged in time, by script.",
		}, []string{"script"}),
		batchSize: f.NewHistogram(prometheus.HistogramOpts{
			Name:    "holdfast_admission_batch_size",
			Help:    "Admissions that travelled in one pipeline.",
			Buckets: []float64{1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024},
		}),
		breakerOpen: f.NewGauge(prometheus.GaugeOpts{
			Name: "holdfast_breaker_open",
			Help: "1 while replicas do not acknowledge and admissions are refused at once.",
		}),
		outcomes: map[string]prometheus.Counter{},
	}
	// An alarm sees the first of an outcome only over a zero.
	for _, outcome := range []string{"level_full", "sold_out", "duplicate", "not_open", "invalid_code", "email_mismatch", "admitted", "unacknowledged", "breaker", "error"} {
		m.outcomes[outcome] = m.admissions.WithLabelValues(outcome)
	}
	// As above.
	for _, s := range []*script{
		admitScript, attachScript, queuedScript, undoScript, beginPayScript, endPayScript, settleScript, releaseScript, lateScript, doneScript,
	} {
		m.ackFailures.WithLabelValues(s.name)
	}
	return m
}

// admitted counts one decision.
func (m *metrics) admitted(outcome string) prometheus.Counter {
	if c, ok := m.outcomes[outcome]; ok {
		return c
	}
	return m.admissions.WithLabelValues(outcome)
}
