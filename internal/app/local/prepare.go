package local

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
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

// loadCandidates puts the file's list in force, all of it or nothing.
func loadCandidates(ctx context.Context, ops *saleops.Ops, path string) (int, error) {
	var r io.Reader = bytes.NewReader(examples.Candidates)
	if path != "" {
		f, err := os.Open(path)
		if err != nil {
			return 0, fmt.Errorf("candidates file: %w", err)
		}
		defer func() { _ = f.Close() }() // only read
		r = f
	}
	list := salefile.NewReader(r, booking.DefaultCodeRule()).Checked(nil)
	did, err := ops.LoadAllowlist(ctx, list, saleops.AllowlistOptions{Who: "cmd/local"})
	if err != nil {
		return 0, fmt.Errorf("candidates file %s: %w", path, err)
	}
	return did.Rows, nil
}
