package record

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"holdfast/internal/booking"
)

// What became of one delivery of one message.
const (
	outcomeCreated    = "created"    // its record was put
	outcomeHeld       = "held"       // a redelivery: the record was there
	outcomePaid       = "paid"       // the payer was faster
	outcomeReleased   = "released"   // the attempt is over
	outcomeUnreadable = "unreadable" // left: the message is no record of this version
	outcomeFailed     = "failed"     // left: the store answers but did not take this record
	outcomeBehind     = "behind"     // left: one before it in its group was left
	outcomeReturned   = "returned"   // given back: the worker stops
)

// metrics are the worker's. The queue's figures are vectors without a label: one that
// has not been read is no series, which a plain gauge cannot say.
type metrics struct {
	records          *prometheus.CounterVec
	depth, age, dead *prometheus.GaugeVec
	lastRead         prometheus.Gauge
}

func newMetrics(reg prometheus.Registerer) (metrics, error) {
	figure := func(name, help string) *prometheus.GaugeVec {
		return prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: name, Help: help}, nil)
	}
	m := metrics{
		records: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "holdfast_worker_records_total", Help: "Deliveries of queued bookings, by outcome.",
		}, []string{"outcome"}),
		depth: figure("holdfast_queue_depth", "Messages in the booking queue, waiting and in flight."),
		age:   figure("holdfast_queue_age_seconds", "Age of the oldest message in the booking queue."),
		dead:  figure("holdfast_dead_letters", "Messages in the booking queue's dead letters."),
		lastRead: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "holdfast_queue_last_success_timestamp_seconds",
			Help: "When this process last read the queue's figures, Unix seconds; 0 when it has not.",
		}),
	}
	for _, o := range []string{
		outcomeCreated, outcomeHeld, outcomePaid, outcomeReleased,
		outcomeUnreadable, outcomeFailed, outcomeBehind, outcomeReturned,
	} {
		m.records.WithLabelValues(o)
	}
	for _, c := range []prometheus.Collector{m.records, m.depth, m.age, m.dead, m.lastRead} {
		if err := reg.Register(c); err != nil {
			return metrics{}, err
		}
	}
	return m, nil
}

// show has the figures shown that were read at that time.
func (m metrics) show(s booking.QueueStats, at time.Time) {
	m.depth.WithLabelValues().Set(float64(s.Waiting + s.InFlight))
	m.age.WithLabelValues().Set(s.OldestAge.Seconds())
	m.dead.WithLabelValues().Set(float64(s.Dead))
	m.lastRead.Set(float64(at.UnixMilli()) / 1000)
}

// hide has none shown: nobody knows how the queue is now.
func (m metrics) hide() {
	for _, g := range []*prometheus.GaugeVec{m.depth, m.age, m.dead} {
		g.Reset()
	}
}
