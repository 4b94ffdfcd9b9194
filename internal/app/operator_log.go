package app

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"holdfast/internal/config"
)

// Log is the operator's log of this deployment.
func (o *Operator) Log() OperatorLog { return o.api.Drivers.Store }

// Who is the operator, as the platform of this deployment's drivers knows them; an
// error when nobody can be named, and then nothing may be changed. getenv is the
// process's own environment.
func (o *Operator) Who(ctx context.Context, p Platform, getenv func(string) string) (string, error) {
	if p.Identity == nil {
		return "", errors.New("who runs this: this platform knows nobody")
	}
	return p.Identity(ctx, getenv, Needs{Data: o.api.cfg.Data, Drivers: o.api.cfg.Drivers})
}

// OpenLog reaches the operator's log alone, which is in the booking store: it can be
// read while Redis and the queue cannot. As OpenOperator it makes no store of its own.
// The caller closes it.
func OpenLog(ctx context.Context, open Opener, cfg config.Operator) (_ OperatorLog, closeLog func() error, err error) {
	if cfg.Store == "sqlite" {
		if _, err := os.Stat(filepath.Join(cfg.Data, storeFile)); err != nil {
			return nil, nil, fmt.Errorf("booking store: %w: is %s the deployment's data folder", err, cfg.Data)
		}
	}
	needs := Needs{Data: cfg.Data, Drivers: cfg.Drivers}
	needs.Queue = "" // not wanted
	d, err := open(ctx, needs)
	if err != nil {
		return nil, nil, err
	}
	return d.Store, d.Close, nil
}
