package app

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"

	"holdfast/internal/config"
	"holdfast/internal/obs"
	"holdfast/internal/record"
)

// NewWorker wires the queue's consumer over opened drivers.
func NewWorker(d *Drivers, drain time.Duration, log *slog.Logger, reg prometheus.Registerer) (*record.Worker, error) {
	return record.New(record.Deps{Queue: d.Queue, Store: d.Store, Log: log, Reg: reg, Now: time.Now, DrainBudget: drain})
}

// RunWorker is the whole worker process on that platform: settings from getenv, logs
// to stderr. When ctx ends it stops receiving, finishes what is in hand within the
// drain, gives the rest back to the queue, and ends; its metrics are served until
// then.
func RunWorker(ctx context.Context, p Platform, getenv func(string) string, stderr io.Writer) (err error) {
	Quiet()
	values, err := p.Settings(ctx, getenv, config.Variables[config.Worker]())
	if err != nil {
		return err
	}
	cfg, err := config.LoadWorker(values)
	if err != nil {
		return fmt.Errorf("settings:\n%w", err)
	}
	log, reg := obs.NewLogger(stderr, cfg.LogLevel), obs.NewRegistry()
	admin, err := listen(ctx, cfg.AdminAddr)
	if err != nil {
		return err
	}
	if admin != nil {
		defer func() { _ = admin.Close() }()
	}
	d, err := p.Open(ctx, Needs{Data: cfg.Data, Drivers: cfg.Drivers})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, d.Close()) }()
	w, err := NewWorker(d, cfg.Drain, log, reg)
	if err != nil {
		return err
	}
	g, running := errgroup.WithContext(ctx)
	end := func() error { return nil }
	if admin != nil {
		s := NewServer(obs.Admin(reg, func(ctx context.Context) error {
			return missing(ctx, []check{{"booking store", d.Store.Ping}, {"queue", asked(d.Queue)}})
		}), log)
		s.WriteTimeout = 0 // a profile takes as long as it was asked to
		g.Go(func() error { return serve(s, admin) })
		end = s.Close
	}
	g.Go(func() error { return errors.Join(w.Run(running), end()) })
	log.InfoContext(ctx, "working", "version", obs.Version(), "admin", cfg.AdminAddr)
	if err := tellStarted(ctx, getenv); err != nil {
		log.WarnContext(ctx, "the service manager does not know that this process has started, and may end it", "error", err)
	}
	return g.Wait()
}
