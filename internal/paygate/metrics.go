package paygate

import (
	"fmt"

	"github.com/prometheus/client_golang/prometheus"
)

// The calls and outcomes that label the room's one metric: closed sets.
const (
	callCreate  = "create"
	callExecute = "execute"
	callQuery   = "query"

	outcomeCreated = "created"
	outcomeNotSent = "not_sent"
	outcomeInDoubt = "in_doubt"
	// Execute and query otherwise end with a booking.ChargeStatus.
)

func newRequestSeconds(reg prometheus.Registerer) (*prometheus.HistogramVec, error) {
	h := prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name:    "holdfast_gateway_request_seconds",
		Help:    "Time of calls to the payment gateway, the wait for its token included, by call and outcome.",
		Buckets: []float64{.01, .025, .05, .1, .25, .5, 1, 2, 3, 5, 8, 15, 30},
	}, []string{"call", "outcome"})
	if err := reg.Register(h); err != nil {
		return nil, fmt.Errorf("register gateway metrics: %w", err)
	}
	return h, nil
}
