// Command api serves bookings: the HTTP edge with the reconciler inside. Its
// settings come from HOLDFAST_* variables; see internal/config.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"holdfast/internal/app"
	"holdfast/internal/app/cloud"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	err := app.RunAPI(ctx, cloud.Platform(), os.Getenv, os.Stderr)
	stop() // os.Exit would skip a defer
	os.Exit(app.ExitCode("api", err, os.Stderr))
}
