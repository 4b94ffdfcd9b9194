// Command seatctl is the operator's tool: it audits a sale, and rebuilds a seat
// ledger that was lost. Its settings come from HOLDFAST_* variables, or with
// --data from the folder of a local run.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"holdfast/internal/app/cloud"
	"holdfast/internal/seatctl"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	// The first signal ends the command, which says how far it came; with the next the
	// system ends the process at once.
	context.AfterFunc(ctx, stop)
	code := seatctl.Run(ctx, cloud.Platform(), os.Args[1:], os.Getenv, os.Stdin, os.Stdout, os.Stderr)
	stop() // os.Exit would skip a defer
	os.Exit(code)
}
