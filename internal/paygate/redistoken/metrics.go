package redistoken

import (
	"fmt"

	"github.com/prometheus/client_golang/prometheus"
)

// The outcomes of a wish for a new token: a closed set.
const (
	outcomeGranted = "granted"
	outcomeFailed  = "failed"   // asked, or perhaps asked; counted in the ledger
	outcomeNotSent = "not_sent" // the gateway was not asked
	outcomeLimited = "limited"  // the ledger is full: not asked
)

func newGrants(reg prometheus.Registerer) (*prometheus.CounterVec, error) {
	c := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "holdfast_gateway_token_grants_total",
		Help: "Attempts of this process to have the payment gateway grant a token, by outcome.",
	}, []string{"outcome"})
	if err := reg.Register(c); err != nil {
		return nil, fmt.Errorf("register token metrics: %w", err)
	}
	for _, o := range []string{outcomeGranted, outcomeFailed, outcomeNotSent, outcomeLimited} {
		c.WithLabelValues(o) // an alarm needs the zero
	}
	return c, nil
}
