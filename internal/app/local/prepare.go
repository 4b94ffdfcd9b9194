package local

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"log/slog"
	"os"

	"holdfast/examples"
	"holdfast/internal/app"
	"holdfast/internal/booking"
	queue "holdfast/internal/queue/sqlite"
	"holdfast/internal/record"
	"holdfast/internal/salefile"
	"holdfast/internal/saleops"
)

// prepare makes the empty Redis the sale's seat ledger: it drains the queue,
// applies the sale for the first time or rebuilds the seats from the store, loads
// the candidates and opens.
func prepare(ctx context.Context, s settings, api *app.API, worker *record.Worker, token string, log *slog.Logger) error {
	if state, err := os.ReadFile(token); err == nil {
		if err := api.Token.Import(ctx, state); err != nil {
			return fmt.Errorf("gateway token in %s: %w", token, err)
		}
	} else if !errors.Is(err, os.ErrNotExist) {
		return err
	}
	sale, err := readSale(s.sale)
	if err != nil {
		return err
	}
	// This process alone has the folder, so nobody is at work on what a killed one
	// had in hand.
	if q, ok := api.Drivers.Queue.(*queue.Queue); !ok {
		return fmt.Errorf("queue is a %T: the local profile has its own, in the data folder", api.Drivers.Queue)
	} else if err := q.Recover(ctx); err != nil {
		return err
	}
	// A dead letter may be a seat; one that really cannot be read stops the rebuild.
	if _, err := api.Drivers.Queue.Redrive(ctx); err != nil {
		return err
	}
	drained, err := worker.Drain(ctx)
	if err != nil {
		return err
	}
	ops := &saleops.Ops{Ledger: api.Gate, Store: api.Drivers.Store, Queue: api.Drivers.Queue, Gateway: api.Gateway, Log: log}
	started, err := ops.Start(ctx, sale)
	if err != nil {
		return err
	}
	n, err := loadCandidates(ctx, ops, s.candidates)
	if err != nil {
		return err
	}
	if !s.closed {
		if err := api.Gate.Open(ctx); err != nil {
			return fmt.Errorf("open booking: %w", err)
		}
	}
	log.InfoContext(ctx, "sale is in force", "sale", sale.Name, "epoch", started.Epoch, "open", !s.closed,
		"candidates", n, "drained", drained, "paid", started.Paid, "held", started.Held, "released", started.Released)
	return nil
}

func readSale(path string) (booking.Sale, error) {
	if path == "" {
		return salefile.Sale(bytes.NewReader(examples.Sale))
	}
	f, err := os.Open(path)
	if err != nil {
		return booking.Sale{}, fmt.Errorf("sale file: %w", err)
	}
	defer func() { _ = f.Close() }() // only read
	sale, err := salefile.Sale(f)
	if err != nil {
		return booking.Sale{}, fmt.Errorf("sale file %s: %w", path, err)
	}
	return sale, nil
}

// maxTold is how many wrong lines of a candidates file are told.
const maxTold = 20

// loadCandidates checks the whole file first, so that a wrong one loads nothing.
func loadCandidates(ctx context.Context, ops *saleops.Ops, path string) (int, error) {
	each := func(use func(list iter.Seq2[salefile.Candidate, error]) error) error {
		var r io.Reader = bytes.NewReader(examples.Candidates)
		if path != "" {
			f, err := os.Open(path)
			if err != nil {
				return fmt.Errorf("candidates file: %w", err)
			}
			defer func() { _ = f.Close() }() // only read
			r = f
		}
		return use(salefile.Candidates(r, booking.DefaultCodeRule()))
	}
	if err := each(func(list iter.Seq2[salefile.Candidate, error]) error {
		var errs []error
		for _, err := range list {
			if err != nil && len(errs) < maxTold {
				errs = append(errs, err)
			}
		}
		return errors.Join(errs...)
	}); err != nil {
		return 0, fmt.Errorf("candidates file %s: nothing was loaded:\n%w", path, err)
	}
	n := 0
	err := each(func(list iter.Seq2[salefile.Candidate, error]) (err error) {
		n, err = ops.LoadCandidates(ctx, func(yield func(booking.Candidate, error) bool) {
			for c, err := range list {
				if !yield(booking.Candidate{Code: c.Code, Email: c.Email}, err) {
					return
				}
			}
		})
		return err
	})
	return n, err
}
