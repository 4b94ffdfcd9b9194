// Command setup prepares the middle profile of docker-compose.yml: it creates queues,
// table and bucket in the AWS emulator and the back office's schema, has the sale in
// force, loads its candidates and opens booking. It is for emulators only: production's
// resources are CloudFormation's, and its sale is the operator's.
//
// Safe to repeat: what is there stays as it is, and a Redis that was lost gets its seats
// back from the store.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	err := run(ctx, os.Args[1:], os.Getenv, os.Stderr)
	stop() // os.Exit would skip a defer
	if err != nil {
		fmt.Fprintln(os.Stderr, "setup:", err)
		os.Exit(1)
	}
}
