package admission

import (
	"errors"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"holdfast/internal/booking"
)

type metrics struct {
	admissions  *prometheus.CounterVec
	ackFailures *prometheus.CounterVec
}

func newMetrics(reg prometheus.Registerer) *metrics {
	f := promauto.With(reg)
	return &metrics{
		admissions: f.NewCounterVec(prometheus.CounterOpts{
			Name: "holdfast_admission_total",
			Help: "Admission decisions, by outcome: the admit script's word, unacknowledged, or error.",
		}, []string{"outcome"}),
		ackFailures: f.NewCounterVec(prometheus.CounterOpts{
			Name: "holdfast_ack_failures_total",
			Help: "Script answers that too few replicas acknowledged in time, by script.",
		}, []string{"script"}),
	}
}

func admissionOutcome(word string, err error) string {
	if errors.Is(err, booking.ErrNotAcknowledged) {
		return "unacknowledged"
	}
	return word
}
