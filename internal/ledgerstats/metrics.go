package ledgerstats

import (
	"errors"
	"sync"

	"github.com/prometheus/client_golang/prometheus"

	"holdfast/internal/booking"
)

// What became of a reading: a closed set.
const (
	outcomeRead    = "read"
	outcomeUnknown = "unknown" // this Redis has no epoch: it is empty
	outcomeFailed  = "failed"
)

// What a paid row may lack: the label of holdfast_paid_unfinished.
const (
	missingRecord = "record"
	missingMail   = "mail"
)

// descriptions are the metrics of the figures. The labels are phases, levels of the
// sale, and the two words above.
type descriptions struct {
	rows, admitted, limit, saleAdmitted, saleLimit, saleOpen  *prometheus.Desc
	pastDeadline, inDoubt, toDecide, unfinished, statusBehind *prometheus.Desc
}

func describe() descriptions {
	d := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc("holdfast_"+name, help, labels, nil)
	}
	return descriptions{
		rows:         d("ledger_rows", "Rows of the seat ledger, by phase; unreadable is a row that nobody can read.", "phase"),
		admitted:     d("seats_admitted", "Seats admitted, held or paid, by level; -1 when the counter is damaged.", "level"),
		limit:        d("seats_cap", "Seats that may be admitted, by level.", "level"),
		saleAdmitted: d("sale_seats_admitted", "Seats admitted of the whole sale; -1 when the counter is damaged."),
		saleLimit:    d("sale_seats_cap", "Seats that may be admitted of the whole sale."),
		saleOpen:     d("sale_open", "1 while booking is open."),
		pastDeadline: d("holds_past_deadline", "Seats not paid whose time to pay ended over two minutes ago, those in doubt left out."),
		inDoubt:      d("rows_in_doubt", "Seats kept because nobody knows whether they are paid."),
		toDecide:     d("rows_to_decide", "Seats in doubt for so long that a person must decide."),
		unfinished:   d("paid_unfinished", "Seats paid over two minutes ago whose record is not written or whose mail is not sent.", "missing"),
		statusBehind: d("status_behind_seconds", "Age of status.json while it does not say what the ledger says; +Inf when it cannot be read."),
	}
}

// metrics is a prometheus.Collector: figures that are not there are no series, which a
// gauge cannot say.
type metrics struct {
	descriptions
	reads *prometheus.CounterVec

	mu  sync.Mutex
	now *figures
}

func newMetrics() *metrics {
	m := &metrics{
		descriptions: describe(),
		reads: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "holdfast_ledger_reads_total",
			Help: "Readings of the whole seat ledger by the elected process, by outcome: read, unknown (Redis is empty), failed.",
		}, []string{"outcome"}),
	}
	for _, o := range []string{outcomeRead, outcomeUnknown, outcomeFailed} {
		m.reads.WithLabelValues(o) // an alarm needs the zero
	}
	return m
}

func (m *metrics) count(err error) {
	outcome := outcomeRead
	switch {
	case errors.Is(err, booking.ErrLedgerUnknown):
		outcome = outcomeUnknown
	case err != nil:
		outcome = outcomeFailed
	}
	m.reads.WithLabelValues(outcome).Inc()
}

// show has these figures shown from now on; nil shows none.
func (m *metrics) show(f *figures) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.now = f
}

// Describe is prometheus.Collector's.
func (m *metrics) Describe(ch chan<- *prometheus.Desc) {
	m.reads.Describe(ch)
	for _, d := range []*prometheus.Desc{
		m.rows, m.admitted, m.limit, m.saleAdmitted, m.saleLimit, m.saleOpen,
		m.pastDeadline, m.inDoubt, m.toDecide, m.unfinished, m.statusBehind,
	} {
		ch <- d
	}
}

// Collect is prometheus.Collector's.
func (m *metrics) Collect(ch chan<- prometheus.Metric) {
	m.reads.Collect(ch)
	m.mu.Lock()
	f := m.now // never changed once it is shown
	m.mu.Unlock()
	if f == nil {
		return
	}
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	for _, p := range append(booking.Phases(), unreadable) {
		gauge(m.rows, float64(f.rows[p]), string(p))
	}
	for _, l := range f.sale.Levels {
		gauge(m.admitted, float64(l.Admitted), l.ID)
		gauge(m.limit, float64(l.Cap), l.ID)
	}
	open := 0.0
	if f.sale.Open {
		open = 1
	}
	gauge(m.saleAdmitted, float64(f.sale.Total))
	gauge(m.saleLimit, float64(f.sale.Cap))
	gauge(m.saleOpen, open)
	gauge(m.pastDeadline, float64(f.pastDeadline))
	gauge(m.inDoubt, float64(f.inDoubt))
	gauge(m.toDecide, float64(f.toDecide))
	gauge(m.unfinished, float64(f.withoutRecord), missingRecord)
	gauge(m.unfinished, float64(f.withoutMail), missingMail)
	gauge(m.statusBehind, f.statusBehind)
}
