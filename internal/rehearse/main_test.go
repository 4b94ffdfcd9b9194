package rehearse_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"testing"

	"go.uber.org/goleak"

	"holdfast/internal/rehearse"
)

// TestMain makes this program a part of a stage when a stage has started it as one,
// which is what seatctl does.
func TestMain(m *testing.M) {
	if len(os.Args) > 2 && os.Args[1] == "rehearse-part" {
		ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
		err := bePart(ctx, os.Args[2], os.Args[3:])
		stop()
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	if dir := os.Getenv(orphansDir); dir != "" {
		os.Exit(beOrphaned(dir))
	}
	goleak.VerifyTestMain(m)
}

// bePart knows two parts besides, which do not end as they should.
func bePart(ctx context.Context, name string, args []string) error {
	switch name {
	case "deaf":
		fmt.Fprintln(os.Stderr, "ready")
		<-make(chan struct{})
	case "failing":
		fmt.Fprintln(os.Stderr, "ready")
		<-ctx.Done()
		return errors.New("not drained")
	}
	return rehearse.Part(ctx, name, args, os.Getenv, os.Stdout, os.Stderr)
}
