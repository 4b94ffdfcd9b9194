package snshook

import (
	"fmt"

	"github.com/prometheus/client_golang/prometheus"
)

// What became of a delivery: a closed set.
const (
	outcomeStored       = "stored"
	outcomeUnreadable   = "unreadable"   // stored, but a person must read it at the gateway
	outcomeDuplicate    = "duplicate"    // stored before
	outcomeConfirmation = "confirmation" // an operator has something to do
	outcomeMalformed    = "malformed"
	outcomeTooLarge     = "too_large"
	outcomeForged       = "forged"
	outcomeUnproved     = "unproved"   // no certificate now, or it did not arrive in time
	outcomeNotStored    = "not_stored" // or stored and not on the list of looks; delivered again
)

func newCounter(reg prometheus.Registerer) (*prometheus.CounterVec, error) {
	c := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "holdfast_notifications_total",
		Help: "Deliveries to the gateway's webhook, by outcome.",
	}, []string{"outcome"})
	for _, o := range []string{
		outcomeStored, outcomeUnreadable, outcomeDuplicate, outcomeConfirmation, outcomeMalformed,
		outcomeTooLarge, outcomeForged, outcomeUnproved, outcomeNotStored,
	} {
		c.WithLabelValues(o)
	}
	if err := reg.Register(c); err != nil {
		return nil, fmt.Errorf("register notification metrics: %w", err)
	}
	return c, nil
}
