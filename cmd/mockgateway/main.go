// Command mockgateway is the stand-in payment gateway as a program: the same
// handler that tests use, on an address, with its state in a folder.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"holdfast/internal/mockgateway"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	err := mockgateway.Run(ctx, os.Args[1:], os.Stderr)
	stop() // os.Exit would skip a defer
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
