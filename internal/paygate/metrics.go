package paygate

import (
	"fmt"

	"github.com/prometheus/client_golang/prometheus"

	"holdfast/internal/booking"
)

// The calls and outcomes that label the room's histogram: closed sets.
const (
	callCreate       = "create"
	callExecute      = "execute"
	callQuery        = "query"
	callRefund       = "refund"
	callRefundStatus = "refund_status"
	callSearch       = "search"

	outcomeCreated     = "created"
	outcomeDone        = "done"         // refund: money has gone back
	outcomeNotDone     = "not_done"     // refund: the gateway said no, or has none
	outcomeFound       = "found"        // search
	outcomeNotFound    = "not_found"    // search
	outcomeOurFault    = "our_fault"    // what we sent or our account is wrong: alarm
	outcomeNotSent     = "not_sent"     // no token or no connection
	outcomeBreakerOpen = "breaker_open" // not sent either: the gateway is known to be out
	outcomeInDoubt     = "in_doubt"
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
	// An alarm hears the first burst only over a zero.
	for call, answered := range answers() {
		for _, outcome := range append(answered, outcomeOurFault, outcomeNotSent, outcomeInDoubt) {
			h.WithLabelValues(call, outcome)
		}
	}
	h.WithLabelValues(callCreate, outcomeBreakerOpen)
	return h, nil
}

// answers are the outcomes of each call that the gateway has answered as it should.
func answers() map[string][]string {
	charge := func(more ...string) []string {
		return append(more, string(booking.ChargeCompleted), string(booking.ChargeRefused), string(booking.ChargeOpen), string(booking.ChargeUnknown))
	}
	return map[string][]string{
		callCreate:       {outcomeCreated},
		callExecute:      charge(string(booking.ChargeUnfinished)),
		callQuery:        charge(),
		callRefund:       {outcomeDone, outcomeNotDone},
		callRefundStatus: {outcomeDone, outcomeNotDone},
		callSearch:       {outcomeFound, outcomeNotFound},
	}
}

func newBreakerOpen(reg prometheus.Registerer) (prometheus.Gauge, error) {
	g := prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "holdfast_gateway_breaker_open",
		Help: "1 while no payment is created because the gateway was out; 0 from the first one that succeeds again.",
	})
	if err := reg.Register(g); err != nil {
		return nil, fmt.Errorf("register gateway metrics: %w", err)
	}
	return g, nil
}
