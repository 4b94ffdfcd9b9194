package admission

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/redis/go-redis/v9"
)

// Without a replica every WAIT would cost its whole time-out, and a pool would
// stall on it. After a short run of missing acknowledgements the breaker opens:
// what would take a seat is refused at once, every other answer stands, and a
// probe that writes a key of its own finds out when the replicas are back.
// Begin-pay, settle and release always try.
const (
	breakerRun     = 3                      // missing acknowledgements in a row open it
	probeEvery     = 250 * time.Millisecond // while it is open
	releasesRest   = time.Minute            // releases of held seats are put off this long after it closed
	lookEvery      = time.Second            // how old the count of replicas gets, and how late a new primary is noticed
	probeKeyLength = 10 * time.Second       // how long the probe's key lives
)

type breaker struct {
	now   func() time.Time
	gauge prometheus.Gauge

	open atomic.Bool // changed under mu; every request reads it

	mu     sync.Mutex
	run    int // missing acknowledgements in a row that open it
	missed int
	closed time.Time // when it last closed
}

// note counts an acknowledgement that came or did not.
func (b *breaker) note(acked bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if acked {
		b.missed = 0
		if b.open.Load() {
			b.closed = b.now()
			b.open.Store(false)
			b.gauge.Set(0)
		}
		return
	}
	if b.missed++; b.missed >= b.run && !b.open.Load() {
		b.open.Store(true)
		b.gauge.Set(1)
	}
}

func (b *breaker) isOpen() bool { return b.open.Load() }

// rests tells whether releases of held seats are put off.
func (b *breaker) rests() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.open.Load() || (!b.closed.IsZero() && b.now().Sub(b.closed) < releasesRest)
}

// ReleasesPutOff tells whether held seats must not be released now: replicas do
// not acknowledge, or only just do again, so payers may not have been able to pay.
func (g *Gate) ReleasesPutOff() bool { return g.breaker.rests() }

// Probe writes a key of its own and tells the breaker whether enough replicas
// acknowledged it.
func (g *Gate) Probe(ctx context.Context) error {
	ctx, cancel := bounded(ctx)
	defer cancel()
	conn := g.rdb.Conn()
	defer func() { _ = conn.Close() }() // gives the connection back to the pool
	acks := g.acks()
	pipe := conn.Pipeline()
	pipe.Set(ctx, g.keys.probe(), "1", probeKeyLength)
	wait := pipe.Do(ctx, "WAIT", acks, waitTimeout)
	if _, err := pipe.Exec(ctx); err != nil {
		return fmt.Errorf("probe the replicas: %w", err)
	}
	n, err := wait.Int64()
	if err != nil {
		return fmt.Errorf("probe the replicas: %w", err)
	}
	g.breaker.note(n >= int64(acks))
	return nil
}

// Watch looks at the primary once a second over a new connection: it keeps count
// of the replicas that must acknowledge, and when the primary is another it
// retires the connections made before and calls Options.OnPrimaryChanged. While
// the breaker is open it probes whether the replicas are back. It ends with the
// context, and returns nil.
func (g *Gate) Watch(ctx context.Context) error {
	probe, look := time.NewTicker(probeEvery), time.NewTicker(lookEvery)
	defer probe.Stop()
	defer look.Stop()
	g.watchOnce(ctx)
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-probe.C:
			if g.breaker.isOpen() {
				if err := g.Probe(ctx); err != nil && !errors.Is(err, context.Canceled) {
					g.log.WarnContext(ctx, "replicas cannot be asked", "error", err)
				}
			}
		case <-look.C:
			g.watchOnce(ctx)
		}
	}
}

func (g *Gate) watchOnce(ctx context.Context) {
	err := g.observe(ctx)
	var refusal redis.Error
	switch {
	case err == nil || ctx.Err() != nil:
	case errors.As(err, &refusal) && strings.HasPrefix(refusal.Error(), "section (server) is not supported"):
		// The in-process server of the local profile cannot say who it is.
	case g.unseen.CompareAndSwap(false, true):
		g.log.WarnContext(ctx, "the primary cannot be looked at; as many replicas as before must acknowledge", "error", err)
	}
}

// LearnReplicas counts the replicas that must acknowledge. With a fixed number it
// does nothing. Call it before serving: until then one acknowledgement counts.
func (g *Gate) LearnReplicas(ctx context.Context) error {
	if g.fixed != AcksAuto {
		return nil
	}
	return g.observe(ctx)
}
