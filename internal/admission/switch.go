package admission

import (
	"context"
	"fmt"
)

// What follows only reads, and nothing may rest on it: it is what an operator wants to
// know before booking is opened.

// AllowlistSize is how many candidates are on the allowlist.
func (g *Gate) AllowlistSize(ctx context.Context) (int, error) {
	ctx, cancel := bounded(ctx)
	defer cancel()
	n, err := g.rdb.SCard(ctx, g.keys.valid()).Result()
	if err != nil {
		return 0, fmt.Errorf("count the allowlist: %w", err)
	}
	return int(n), nil
}

// Elected tells whether some process holds the reconciler's lock now. That it sweeps,
// too, only its own metrics say.
func (g *Gate) Elected(ctx context.Context) (bool, error) {
	ctx, cancel := bounded(ctx)
	defer cancel()
	n, err := g.rdb.Exists(ctx, g.keys.Lock()).Result()
	if err != nil {
		return false, fmt.Errorf("look for the reconciler's lock: %w", err)
	}
	return n > 0, nil
}

// LoadUnfinished tells whether a load of the allowlist has its turn, or one that has
// died has left something that the next load finishes.
func (g *Gate) LoadUnfinished(ctx context.Context) (bool, error) {
	ctx, cancel := bounded(ctx)
	defer cancel()
	n, err := g.rdb.Exists(ctx, g.keys.load(), g.keys.next(), g.keys.old(), g.keys.changed()).Result()
	if err != nil {
		return false, fmt.Errorf("look for a load of the allowlist: %w", err)
	}
	return n > 0, nil
}
