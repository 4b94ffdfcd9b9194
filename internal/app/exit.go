package app

import (
	"context"
	"errors"
	"fmt"
	"io"
)

// ExitCode tells a process's end to its caller: 0 when it ended as it was told,
// else 1, with the reason on stderr.
func ExitCode(name string, err error, stderr io.Writer) int {
	if err == nil || errors.Is(err, context.Canceled) {
		return 0
	}
	_, _ = fmt.Fprintf(stderr, "%s: %v\n", name, err)
	return 1
}
