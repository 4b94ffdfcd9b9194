package admission

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"holdfast/internal/booking"
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

// LoadUnfinished tells of a load of the allowlist that has its turn, or that has died
// and left something: whose it is, since and until when, whether its list is in force,
// and whether e-mails of it are still to be changed. With neither it is the zero value;
// figures are not read.
func (g *Gate) LoadUnfinished(ctx context.Context) (booking.AllowlistLoad, error) {
	ctx, cancel := bounded(ctx)
	defer cancel()
	p := g.rdb.TxPipeline()
	fields := p.HMGet(ctx, g.keys.load(), "token", "who", "since", "until", "phase", "of", "of_since")
	left := p.Exists(ctx, g.keys.next(), g.keys.nextEmail(), g.keys.old(), g.keys.changed())
	half := p.Exists(ctx, g.keys.changed())
	if _, err := p.Exec(ctx); err != nil {
		return booking.AllowlistLoad{}, fmt.Errorf("look for a load of the allowlist: %w", err)
	}
	text := func(i int) string { t, _ := fields.Val()[i].(string); return t }
	at := func(i int) time.Time {
		ms, err := strconv.ParseInt(text(i), 10, 64)
		if err != nil || ms <= 0 {
			return time.Time{}
		}
		return time.UnixMilli(ms).UTC()
	}
	return booking.AllowlistLoad{
		Token: text(0), Who: text(1), Since: at(2), Until: at(3), Swapped: text(4) == "swapped", Of: text(5), OfSince: at(6),
		Left: left.Val() > 0, Half: half.Val() > 0,
	}, nil
}
