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

// RunWorker is the whole worker process: settings from getenv, logs to stderr.
// It ends when ctx does, after the drain.
func RunWorker(ctx context.Context, getenv func(string) string, stderr io.Writer) (err error) {
	cfg, err := config.LoadWorker(getenv)
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
	d, err := OpenDrivers(ctx, cfg.Data)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, d.Close()) }()
	w, err := NewWorker(d, cfg.Drain, log, reg)
	if err != nil {
		return err
	}
	g, running := errgroup.WithContext(ctx)
	g.Go(func() error { return w.Run(running) })
	if admin != nil {
		s := NewServer(obs.Admin(reg, d.Store.Ping), log)
		s.WriteTimeout = 0 // a profile takes as long as it was asked to
		g.Go(func() error { return serve(s, admin) })
		g.Go(func() error { <-running.Done(); return s.Close() })
	}
	log.InfoContext(ctx, "working", "admin", cfg.AdminAddr)
	return g.Wait()
}
