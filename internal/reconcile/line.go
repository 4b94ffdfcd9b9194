package reconcile

import (
	"context"
	"log/slog"
	"maps"
	"slices"
	"time"
)

// Work is what the elected runner does after a sweep.
type Work struct {
	// Name is the message of its log line, such as "refund sweep".
	Name string
	// Do does it and counts what it did, by action; it ends with ctx. The error says
	// why it could not go on; the next call does.
	Do func(ctx context.Context) (map[string]int, error)
}

// line writes the one line of a job of the runner that has ended: what it was, how
// long it took, what it did, and why it did not come to its end.
func (r *Reconciler) line(ctx context.Context, what string, began time.Time, did map[string]int, err error, more ...slog.Attr) {
	outcome, level := "done", slog.LevelInfo
	switch {
	case err != nil && ctx.Err() != nil:
		outcome = "stopped" // by the process's end, or another runner's term
	case err != nil:
		outcome, level = "failed", slog.LevelError
	}
	attrs := append([]slog.Attr{
		slog.String("outcome", outcome), slog.Duration("took", time.Since(began)), figures("did", did),
	}, more...)
	if err != nil {
		attrs = append(attrs, slog.Any("error", err))
	}
	r.Log.LogAttrs(ctx, level, what, attrs...) //nolint:sloglint // the name of the job, a constant where the job is
}

// figures are a count of each kind, in a fixed order, without those that are 0.
func figures[K ~string](name string, count map[K]int) slog.Attr {
	var attrs []any
	for _, kind := range slices.Sorted(maps.Keys(count)) {
		if n := count[kind]; n != 0 {
			attrs = append(attrs, slog.Int(string(kind), n))
		}
	}
	return slog.Group(name, attrs...)
}
