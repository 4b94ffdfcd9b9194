package lease

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"
)

// releaseWithin bounds the last call of a term.
const releaseWithin = 2 * time.Second

// Keep runs fn whenever this process is elected, until ctx ends or fn returns
// of its own accord. The context of fn ends when the term is lost; Keep waits
// for fn to return, then stands for election again. It returns nil when ctx has
// ended, else what fn returned.
func (l *Lease) Keep(ctx context.Context, log *slog.Logger, fn func(ctx context.Context) error) error {
	log = log.With("lease", l.key)
	for ctx.Err() == nil {
		term, elected, err := l.Acquire(ctx)
		if err != nil && ctx.Err() == nil {
			log.WarnContext(ctx, "election: redis did not answer", "error", err)
		}
		if elected {
			log.InfoContext(ctx, "election: elected")
			lost, err := l.serve(ctx, log, term, fn)
			if ctx.Err() == nil && !lost {
				return err
			}
			log.InfoContext(ctx, "election: term over", "lost", lost, "result", err)
		}
		pause(ctx, l.length/3)
	}
	return nil
}

// serve runs fn for one term and tells whether the term was lost before fn had
// ended.
func (l *Lease) serve(ctx context.Context, log *slog.Logger, term Term, fn func(context.Context) error) (lost bool, err error) {
	termCtx, end := context.WithCancelCause(ctx)
	var renewing sync.WaitGroup
	renewing.Go(func() { l.renewing(termCtx, end, log, term) })
	err = fn(termCtx)
	lost = errors.Is(context.Cause(termCtx), ErrLost)
	end(nil)
	renewing.Wait()
	l.releaseAfter(ctx, log, term)
	return lost, err
}

// renewing prolongs the term until ctx ends, and ends ctx with ErrLost when the
// term does.
func (l *Lease) renewing(ctx context.Context, end context.CancelCauseFunc, log *slog.Logger, term Term) {
	// Beside the loop, which may be waiting for Redis when trust runs out.
	watchdog := time.AfterFunc(term.Left(l.now()), func() { end(ErrLost) })
	defer watchdog.Stop()
	tick := time.NewTicker(l.length / 3)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		renewed, err := l.Renew(ctx, term)
		switch {
		case err == nil:
			term = renewed
			watchdog.Reset(term.Left(l.now()))
		case errors.Is(err, ErrLost):
			end(ErrLost)
		case ctx.Err() == nil:
			log.WarnContext(ctx, "election: term not renewed", "error", err)
		}
	}
}

// releaseAfter gives the term back. The caller's context may have ended, and
// the next process would then wait for the key to expire.
func (l *Lease) releaseAfter(ctx context.Context, log *slog.Logger, term Term) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), releaseWithin)
	defer cancel()
	if err := l.Release(ctx, term); err != nil {
		log.WarnContext(ctx, "election: term not released; it expires by itself", "error", err)
	}
}

func pause(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}
