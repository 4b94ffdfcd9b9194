package app

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"time"

	"holdfast/internal/admission"
	"holdfast/internal/booking"
	"holdfast/internal/config"
	"holdfast/internal/obs"
	"holdfast/internal/saleops"
	"holdfast/internal/statuspage"
)

// Operator is a running deployment as its operator reaches it.
type Operator struct {
	Ops  *saleops.Ops
	Gate *admission.Gate
	// Status reads status.json as it is published.
	Status func(ctx context.Context) ([]byte, error)

	api     *API
	metrics []string // where the processes give theirs
}

const (
	// An operator's commands create and execute nothing; the gateway's client wants
	// to know how long it might take.
	operatorCreate  = 5 * time.Second
	operatorExecute = 30 * time.Second
	statusTimeout   = 5 * time.Second
	statusMost      = 1 << 20
)

// OpenOperator reaches the deployment that the settings name, with drivers of open;
// gateway may be nil for commands that do not ask it. It makes no store of its own:
// a folder without one is the wrong folder. The caller closes it.
func OpenOperator(ctx context.Context, open Opener, cfg config.Operator, gateway *config.Gateway, log *slog.Logger) (_ *Operator, err error) {
	if cfg.Store == "sqlite" {
		if _, err := os.Stat(filepath.Join(cfg.Data, storeFile)); err != nil {
			return nil, fmt.Errorf("booking store: %w: is %s the deployment's data folder", err, cfg.Data)
		}
	}
	a := &API{cfg: config.API{
		CodePattern: cfg.CodePattern,
		Process:     cfg.Process, Redis: cfg.Redis, Drivers: cfg.Drivers,
		Budgets: config.Budgets{CreateBudget: operatorCreate, ExecuteTimeout: operatorExecute},
	}, log: log, reg: obs.NewRegistry()}
	defer func() {
		if err != nil {
			err = errors.Join(err, a.Close())
		}
	}()
	if err := a.openLedger(ctx); err != nil {
		return nil, err
	}
	needs := Needs{Data: cfg.Data, Drivers: cfg.Drivers}
	if cfg.StatusURL == "" {
		needs.Published = cfg.Published
	}
	if a.Drivers, err = open(ctx, needs); err != nil {
		return nil, err
	}
	a.closers = append(a.closers, a.Drivers.Close)
	o := &Operator{Gate: a.Gate, api: a, metrics: cfg.MetricsURLs}
	o.Ops = &saleops.Ops{Ledger: a.Gate, Store: a.Drivers.Store, Queue: a.Drivers.Queue, Log: log}
	if gateway != nil {
		a.cfg.Gateway = *gateway
		if err := a.openGateway(); err != nil {
			return nil, err
		}
		o.Ops.Gateway = a.Gateway
	}
	if cfg.StatusURL != "" {
		o.Status = func(ctx context.Context) ([]byte, error) { return getStatus(ctx, cfg.StatusURL) }
		return o, nil
	}
	o.Status = func(ctx context.Context) ([]byte, error) {
		body, _, err := a.Drivers.Objects.Get(ctx, statuspage.Key)
		return body, err
	}
	return o, nil
}

// Close closes what OpenOperator opened. Safe to repeat.
func (o *Operator) Close() error { return o.api.Close() }

func getStatus(ctx context.Context, url string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, statusTimeout)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, fmt.Errorf("get status.json: %w", err)
	}
	hc := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := hc.Do(r)
	if err != nil {
		return nil, fmt.Errorf("get status.json: %w", err)
	}
	defer func() { _ = resp.Body.Close() }() // only read
	switch resp.StatusCode {
	case http.StatusOK:
	case http.StatusNotFound:
		return nil, fmt.Errorf("get status.json: %w", booking.ErrNotFound)
	default:
		return nil, fmt.Errorf("get status.json: %s answers %s", url, resp.Status)
	}
	body, err := io.ReadAll(io.LimitReader(resp.Body, statusMost))
	if err != nil {
		return nil, fmt.Errorf("get status.json: %w", err)
	}
	return body, nil
}
