package seatctl

import (
	"context"
	"fmt"
	"net/http"
	"time"

	rulesfiles "holdfast/deploy/prometheus"
	"holdfast/internal/alarms"
	"holdfast/internal/app"
	"holdfast/internal/saleops"
)

// Here and not in internal/app: the processes that it watches do not link the engine
// that judges the rules.

// watchAlarms watches the metrics of the deployment's processes with these rules; nil
// when no setting says where the processes are. The caller ends it.
func watchAlarms(o *app.Operator, rules ...[]byte) (w *alarms.Watch, end func(), err error) {
	urls := o.MetricsURLs()
	if len(urls) == 0 {
		return nil, func() {}, nil
	}
	hc := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 1}}
	w, err = alarms.New(alarms.Options{
		Targets: urls, Rules: rules, Client: hc, Now: time.Now,
		Jobs: []alarms.Job{{Name: "api", Metric: "holdfast_admission_total"}, {Name: "worker", Metric: "holdfast_worker_records_total"}},
	})
	if err != nil {
		return nil, nil, err
	}
	return w, func() {
		_ = w.Close() // frees its engine only
		hc.CloseIdleConnections()
	}, nil
}

// fleetOf asks the processes of a deployment; nil when no setting says where they are.
func fleetOf(o *app.Operator) (fleet func(ctx context.Context) (saleops.FleetSight, error), end func(), err error) {
	w, end, err := watchAlarms(o, rulesfiles.Rules()...)
	if err != nil || w == nil {
		return nil, end, err
	}
	return func(ctx context.Context) (saleops.FleetSight, error) { return askFleet(ctx, w) }, end, nil
}

// askFleet is what the processes say by their metrics: one scrape, then what it gave.
func askFleet(ctx context.Context, w *alarms.Watch) (saleops.FleetSight, error) {
	var out saleops.FleetSight
	for _, t := range w.Scrape(ctx) {
		if t.Error != "" {
			out.Away = append(out.Away, fmt.Sprintf("%s does not answer: %s", t.URL, t.Error))
		}
	}
	sweep, ok, err := one(ctx, w, sweepQuery)
	if err != nil {
		return out, err
	}
	if ok && sweep > 0 {
		out.LastSweep = time.UnixMilli(int64(sweep * 1000))
	}
	workers, _, err := one(ctx, w, "count(count by (instance) (holdfast_worker_records_total))")
	out.Workers = int(workers)
	return out, err
}

// sweepQuery is when a reconciler last looked at every due row, Unix seconds; 0 while
// none has.
const sweepQuery = "max(holdfast_reconciler_last_success_timestamp_seconds)"

// one is the value of an expression that gives one at most; false when it gives none.
func one(ctx context.Context, w *alarms.Watch, expr string) (float64, bool, error) {
	list, err := w.Query(ctx, expr)
	if err != nil || len(list) == 0 {
		return 0, false, err
	}
	return list[0].Value, true, nil
}
