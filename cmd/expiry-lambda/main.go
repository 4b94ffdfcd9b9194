// Command expiry-lambda is the expiry function behind the booking table's stream, for Lambda's
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
	h, err := functions.Expiry(ctx, os.Getenv, os.Stdout)
	if err != nil {
		fmt.Fprintln(os.Stderr, "expiry-lambda:", err)
		os.Exit(1)
	}
	lambda.Start(h.Handle)
}
