// Command local runs all of Holdfast in one process on a laptop: page, API,
// worker, reconciler and a mock payment gateway, with a demo sale loaded.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"holdfast/internal/app"
	"holdfast/internal/app/local"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	err := local.Run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop() // os.Exit would skip a defer
	os.Exit(app.ExitCode("local", err, os.Stderr))
}
