package app

import (
	"context"
	"errors"
	"iter"
	"net/http"

	"holdfast/internal/adminapi"
	"holdfast/internal/booking"
	"holdfast/internal/obs"
	"holdfast/internal/saleops"
)

// admin is what the admin listener serves: the process's inside, the operators' screen,
// and the back office's way in.
func (a *API) admin() http.Handler {
	mux := obs.Admin(a.reg, a.Ready)
	mux.Handle("GET /wall", a.wall.Page())
	mux.Handle("GET /wall.json", a.wall.Figures())
	mux.Handle("/admin/candidates", adminapi.NewCandidates(adminapi.Deps{
		Token: a.cfg.AdminToken.Reveal(), Codes: a.codes, Journal: a.Drivers.Store, Now: a.now, Log: a.log,
		Loader: allowlistLoader{&saleops.Ops{Ledger: a.Gate, Store: a.Drivers.Store, Queue: a.Drivers.Queue, Log: a.log}},
	}))
	return mux
}

// allowlistLoader is the loader as the back office meets it.
type allowlistLoader struct{ ops *saleops.Ops }

var _ adminapi.Loader = allowlistLoader{}

// Load is LoadAllowlist or its dry run.
func (l allowlistLoader) Load(ctx context.Context, list iter.Seq2[booking.Candidate, error], o adminapi.Options) (adminapi.Report, error) {
	load := l.ops.LoadAllowlist
	if o.DryRun {
		load = l.ops.DryRunAllowlist
	}
	r, err := load(ctx, list, saleops.AllowlistOptions{WhileOpen: o.WhileOpen, AllowRemovals: o.AllowRemovals, Who: "the back office"})
	for slug, refusal := range map[string]error{
		"booking_open": saleops.ErrBookingOpen, "load_running": saleops.ErrLoadRunning, "removals": saleops.ErrRemovals,
		"too_many_changes": booking.ErrAllowlistMany, "no_sale": booking.ErrLedgerUnknown,
		"load_unfinished": saleops.ErrLoadUnfinished,
	} {
		if errors.Is(err, refusal) {
			err = &adminapi.Refusal{Slug: slug, Err: err}
			break
		}
	}
	return adminapi.Report{
		Rows: r.Rows, Added: r.Added, Removed: r.Removed, Changed: r.Changed, Unchanged: r.Unchanged,
		LiveRemoved: r.LiveRemoved, LiveAttempts: r.LiveAttempts, Kept: r.Kept,
		Finished: r.Finished, FinishedOf: r.FinishedOf, FinishedSince: r.FinishedSince, Applied: r.Applied,
	}, err
}
