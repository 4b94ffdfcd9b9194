package notification

import (
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"holdfast/internal/booking"
)

type metrics struct {
	open *prometheus.GaugeVec // without a label: no series while nobody knows
	work *prometheus.CounterVec
}

func newMetrics(reg prometheus.Registerer) *metrics {
	f := promauto.With(reg)
	m := &metrics{
		open: f.NewGaugeVec(prometheus.GaugeOpts{
			Name: "holdfast_notifications_open",
			Help: "Notifications of the gateway without an outcome, when the store was last gone through.",
		}, nil),
		work: f.NewCounterVec(prometheus.CounterOpts{
			Name: "holdfast_notification_work_total",
			Help: "Looks at notifications, by outcome: paid, refund, anomaly, closed (it was before), later, failed.",
		}, []string{"outcome"}),
	}
	for _, o := range []string{
		string(booking.NotifiedPaid), string(booking.NotifiedRefund), string(booking.NotifiedAnomaly),
		lookClosed, lookLater, lookFailed,
	} {
		m.work.WithLabelValues(o)
	}
	return m
}
