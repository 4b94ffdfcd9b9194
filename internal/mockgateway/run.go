package mockgateway

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"time"
)

// drain is how long calls in flight have when the program is told to stop.
const drain = 10 * time.Second

// Run serves a Gateway as a program until ctx ends, then stops accepting, lets
// calls in flight finish and closes the data folder. Its log, to stderr, says
// the address it listens on.
func Run(ctx context.Context, args []string, stderr io.Writer) error {
	flags := flag.NewFlagSet("mockgateway", flag.ContinueOnError)
	flags.SetOutput(stderr)
	addr := flags.String("addr", "127.0.0.1:8090", "address to listen on; the mock guards nothing, keep it private")
	data := flags.String("data", "", "folder for payments, tokens and grant counts; empty keeps them in memory")
	public := flags.String("public", "", "what addresses of payer's pages start with, such as https://pay.example; empty takes the host of the request")
	file := flags.String("settings", "", "file with settings to start with, as for PUT /mock/settings")
	switch err := flags.Parse(args); {
	case errors.Is(err, flag.ErrHelp):
		return nil
	case err != nil:
		return err
	case flags.NArg() > 0:
		return fmt.Errorf("mockgateway takes flags only, not %q", flags.Arg(0))
	}
	log := slog.New(slog.NewTextHandler(stderr, nil))

	var start Settings
	if *file != "" {
		b, err := os.ReadFile(*file)
		if err == nil {
			start, err = ParseSettings(b)
		}
		if err != nil {
			return fmt.Errorf("settings %s: %w", *file, err)
		}
	}
	g, err := New(Options{DataDir: *data, BaseURL: *public})
	if err != nil {
		return err
	}
	if err := g.SetSettings(start); err != nil {
		return errors.Join(err, g.Close())
	}
	ln, err := (&net.ListenConfig{}).Listen(ctx, "tcp", *addr)
	if err != nil {
		return errors.Join(fmt.Errorf("mock gateway: %w", err), g.Close())
	}
	srv := &http.Server{
		Handler:           g,
		ReadHeaderTimeout: 5 * time.Second,
		IdleTimeout:       2 * time.Minute,
		ErrorLog:          slog.NewLogLogger(log.Handler(), slog.LevelWarn),
	}
	srv.RegisterOnShutdown(g.HangUp)
	served := make(chan error, 1)
	go func() { served <- srv.Serve(ln) }()
	log.InfoContext(ctx, "mock gateway listening", "url", "http://"+ln.Addr().String()+BasePath, "data", *data)

	select {
	case err := <-served: // never nil, and not for being told to stop
		return errors.Join(fmt.Errorf("mock gateway: %w", err), g.Close())
	case <-ctx.Done():
	}
	stop, cancel := context.WithTimeout(context.WithoutCancel(ctx), drain)
	defer cancel()
	err = srv.Shutdown(stop)
	if err != nil {
		err = errors.Join(fmt.Errorf("mock gateway: stop: %w", err), srv.Close())
	}
	if serveErr := <-served; !errors.Is(serveErr, http.ErrServerClosed) {
		err = errors.Join(err, fmt.Errorf("mock gateway: %w", serveErr))
	}
	return errors.Join(err, g.Close())
}
