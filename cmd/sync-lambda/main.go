// Command sync-lambda is the sync function behind the booking table's stream, for Lambda's
// runtime provided.al2023. Its settings come from HOLDFAST_* variables; see
// internal/app/functions.
package main

import (
	"context"
	"fmt"
	"os"

	"github.com/aws/aws-lambda-go/lambda"

	"holdfast/internal/app/functions"
)

func main() {
	ctx := context.Background()
	h, err := functions.Sync(ctx, os.Getenv, os.Stdout)
	if err != nil {
		fmt.Fprintln(os.Stderr, "sync-lambda:", err)
		os.Exit(1)
	}
	// Without a goodbye PostgreSQL would keep the connection until it misses its peer.
	lambda.StartWithOptions(h.Handle, lambda.WithEnableSIGTERM(func() { _ = h.Close(ctx) }))
}
