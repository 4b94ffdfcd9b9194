package record

import (
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

type metrics struct {
	records *prometheus.CounterVec
	depth   prometheus.Gauge
	age     prometheus.Gauge
	dead    prometheus.Gauge
}

func newMetrics(reg prometheus.Registerer) (metrics, error) {
	gauge := func(name, help string) prometheus.Gauge {
		return prometheus.NewGauge(prometheus.GaugeOpts{Name: name, Help: help})
	}
	m := metrics{
		records: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "holdfast_worker_records_total", Help: "Deliveries of queued bookings, by outcome.",
		}, []string{"outcome"}),
		depth: gauge("holdfast_queue_depth", "Messages in the booking queue, waiting and in flight."),
		age:   gauge("holdfast_queue_age_seconds", "Age of the oldest message in the booking queue."),
		dead:  gauge("holdfast_dead_letters", "Messages in the booking queue's dead letters."),
	}
	for _, o := range []string{
		outcomeCreated, outcomeHeld, outcomePaid, outcomeReleased,
		outcomeUnreadable, outcomeFailed, outcomeBehind, outcomeReturned,
	} {
		m.records.WithLabelValues(o)
	}
	for _, c := range []prometheus.Collector{m.records, m.depth, m.age, m.dead} {
		if err := reg.Register(c); err != nil {
			return metrics{}, err
		}
	}
	return m, nil
}

func (m metrics) show(s booking.QueueStats) {
	m.depth.Set(float64(s.Waiting + s.InFlight))
	m.age.Set(s.OldestAge.Seconds())
	m.dead.Set(float64(s.Dead))
}
