package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"holdfast/internal/app"
	"holdfast/internal/app/cloud"
	"holdfast/internal/backoffice"
	"holdfast/internal/booking"
	"holdfast/internal/config"
	"holdfast/internal/obs"
	"holdfast/internal/salefile"
	"holdfast/internal/saleops"
)

// within bounds the whole set-up.
const within = 2 * time.Minute

// files are what the flags name.
type files struct {
	sale, candidates       string
	office, officePassword string
}

func run(ctx context.Context, args []string, getenv func(string) string, stderr io.Writer) error {
	var f files
	flags := flag.NewFlagSet("setup", flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.StringVar(&f.sale, "sale", "", "sale file")
	flags.StringVar(&f.candidates, "candidates", "", "candidates file")
	flags.StringVar(&f.office, "backoffice", "", "the back office's database, postgres://…, without its password")
	flags.StringVar(&f.officePassword, "backoffice-password", "", "file with that password")
	switch err := flags.Parse(args); {
	case errors.Is(err, flag.ErrHelp):
		return nil
	case err != nil:
		return err
	case f.sale == "" || f.candidates == "" || f.office == "" || flags.NArg() > 0:
		return errors.New("want -sale, -candidates and -backoffice, and nothing else")
	}
	cfg, err := config.LoadOperator(getenv)
	if err != nil {
		return fmt.Errorf("settings:\n%w", err)
	}
	gateway, err := config.LoadGateway(getenv)
	if err != nil {
		return fmt.Errorf("settings:\n%w", err)
	}
	log := obs.NewLogger(stderr, cfg.LogLevel)
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	if err := createResources(ctx, cfg); err != nil {
		return err
	}
	if err := createSchema(ctx, f); err != nil {
		return fmt.Errorf("back office: %w", err)
	}
	return openSale(ctx, cfg, gateway, f, log)
}

// createSchema brings the back office's database up to date.
func createSchema(ctx context.Context, f files) error {
	c, err := pgx.ParseConfig(f.office)
	if err != nil {
		return err
	}
	if f.officePassword != "" {
		password, err := os.ReadFile(f.officePassword)
		if err != nil {
			return err
		}
		c.Password = strings.TrimRight(string(password), "\r\n")
	}
	conn, err := pgx.ConnectConfig(ctx, c)
	if err != nil {
		return err
	}
	return errors.Join(backoffice.Migrate(ctx, conn), conn.Close(ctx))
}

// openSale has the sale in force, with its candidates, and opens it.
func openSale(ctx context.Context, cfg config.Operator, gateway config.Gateway, f files, log *slog.Logger) (err error) {
	o, err := app.OpenOperator(ctx, cloud.Open, cfg, &gateway, log)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, o.Close()) }()
	sale, err := readSale(f.sale)
	if err != nil {
		return err
	}
	started, err := o.Ops.Start(ctx, sale)
	if err != nil {
		return fmt.Errorf("sale %s: %w", sale.Name, err)
	}
	candidates, err := loadCandidates(ctx, o.Ops, f.candidates)
	if err != nil {
		return err
	}
	if err := o.Gate.Open(ctx); err != nil {
		return fmt.Errorf("open booking: %w", err)
	}
	log.InfoContext(ctx, "sale is open", "sale", sale.Name, "candidates", candidates, "paid", started.Paid, "held", started.Held)
	return nil
}

func readSale(path string) (booking.Sale, error) {
	file, err := os.Open(path)
	if err != nil {
		return booking.Sale{}, err
	}
	defer func() { _ = file.Close() }() // only read
	sale, err := salefile.Sale(file)
	if err != nil {
		return booking.Sale{}, fmt.Errorf("%s: %w", path, err)
	}
	return sale, nil
}

// loadCandidates puts the file's list in force, all of it or nothing; booking may be
// open from an earlier set-up.
func loadCandidates(ctx context.Context, ops *saleops.Ops, path string) (int, error) {
	file, err := os.Open(path)
	if err != nil {
		return 0, err
	}
	defer func() { _ = file.Close() }() // only read
	list := salefile.NewReader(file, booking.DefaultCodeRule()).Checked(nil)
	did, err := ops.LoadAllowlist(ctx, list, saleops.AllowlistOptions{WhileOpen: true, Who: "setup"})
	if err != nil {
		return 0, fmt.Errorf("%s: %w", path, err)
	}
	return did.Rows, nil
}
