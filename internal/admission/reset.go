package admission

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"holdfast/internal/booking"
	"holdfast/scripts/lua"
)

var (
	resetScript = newScript("reset", lua.Reset)
	purgeScript = newScript("purge", lua.Purge)
)

// What refuses the end of a sale; nothing was changed then. Each is booking.ErrNotEnded.
const (
	// ErrStillOpen: booking is open, or an opening is scheduled.
	ErrStillOpen = endRefusal("booking is open, or an opening is scheduled: close it first")
	// ErrUnderWay: a rebuild or a load of the allowlist has begun and is not finished.
	ErrUnderWay = endRefusal("a rebuild or a load of the allowlist is under way or half done: finish it first")
	// ErrMoved: the ledger is not as it was seen.
	ErrMoved = endRefusal("the ledger has changed since it was looked at: run it again")
)

// endRefusal is a reason not to end a sale.
type endRefusal string

func (e endRefusal) Error() string { return string(e) }

// Is tells that it is booking.ErrNotEnded.
func (e endRefusal) Is(target error) bool { return target == booking.ErrNotEnded }

// Reset ends the sale of epoch and begins one of next on the same ledger, in one
// acknowledged step: every row, every look and every count is gone, booking is
// closed. Sale, allowlist, late decisions, notifications and the version of
// status.json stay. seen is how many rows its caller has seen, every one of them
// paid: since a paid row is never left, as many are those very rows. ErrStillOpen,
// ErrUnderWay and ErrMoved refuse it; booking.ErrLedgerUnknown when there is no
// epoch. After booking.ErrNotAcknowledged it may have been made. Safe to repeat
// with the same epochs.
func (g *Gate) Reset(ctx context.Context, epoch, next string, seen int) error {
	if epoch == "" || next <= epoch {
		return fmt.Errorf("reset: epoch %q cannot follow %q", next, epoch)
	}
	for range tries {
		ids, err := g.levelIDs(ctx, true)
		if err != nil {
			return err
		}
		keys := append(append(g.keys.base(), g.keys.open(), g.keys.opensAt(), g.keys.config(), g.keys.rebuild(),
			g.keys.load(), g.keys.changed(), g.keys.total()), g.keys.levels(ids)...)
		a, err := g.change(ctx, resetScript, keys, append([]any{epoch, next, seen}, anys(ids)...)...)
		if err != nil {
			return notMade(err)
		}
		switch a.word {
		case "reset":
			return nil
		case "levels":
			continue
		default:
			return endError(resetScript, a)
		}
	}
	return fmt.Errorf("reset: the sale's levels were changed meanwhile: %w", ErrMoved)
}

// notMade is booking.ErrNotEnded, too, where a step came too late and was not made.
func notMade(err error) error {
	if errors.Is(err, ErrExpired) {
		return fmt.Errorf("%w: %w", booking.ErrNotEnded, err)
	}
	return err
}

// endError is what a script that ends a sale answers when it may not.
func endError(s *script, a answer) error {
	switch a.word {
	case "open":
		return fmt.Errorf("%s: %w", s.name, ErrStillOpen)
	case "rebuilding", "loading":
		return fmt.Errorf("%s: %w", s.name, ErrUnderWay)
	case "rows":
		return fmt.Errorf("%s: there are %s seats: %w", s.name, a.detail, ErrMoved)
	case "other":
		return fmt.Errorf("%s: another sale has begun, epoch %s: %w", s.name, a.detail, ErrMoved)
	}
	return fmt.Errorf("%s answered %q, which this program does not know", s.name, a.word)
}

// Ending reads what stands against the end of the sale. Nothing may rest on it: the
// scripts look again.
func (g *Gate) Ending(ctx context.Context) (booking.Ending, error) {
	ctx, cancel := bounded(ctx)
	defer cancel()
	now, err := g.Now(ctx)
	if err != nil {
		return booking.Ending{}, err
	}
	p := g.rdb.TxPipeline()
	open, at := p.Get(ctx, g.keys.open()), p.Get(ctx, g.keys.opensAt())
	rebuild, changed := p.Exists(ctx, g.keys.rebuild()), p.Exists(ctx, g.keys.changed())
	lease, valid := p.HGet(ctx, g.keys.load(), "until"), p.SCard(ctx, g.keys.valid())
	if _, err := p.Exec(ctx); err != nil && !errors.Is(err, redis.Nil) {
		return booking.Ending{}, fmt.Errorf("read whether the sale may end: %w", err)
	}
	until, _ := strconv.ParseInt(lease.Val(), 10, 64) // none is 0
	e := booking.Ending{
		Open:       open.Val() == "1",
		UnderWay:   rebuild.Val()+changed.Val() > 0 || until > now.UnixMilli(),
		Candidates: int(valid.Val()),
	}
	if ms, err := strconv.ParseInt(at.Val(), 10, 64); err == nil && errors.Is(open.Err(), redis.Nil) {
		e.OpensAt = time.UnixMilli(ms).UTC()
	}
	return e, nil
}

// purgeChunk is how many keys are deleted at a time, so that no command blocks Redis.
const purgeChunk = 500

// CountPersonal counts them by a scan, and changes nothing. A key that comes or goes
// meanwhile may be counted or not.
func (g *Gate) CountPersonal(ctx context.Context) (booking.PersonalKeys, error) {
	return g.personal(ctx, func(keys []string) (int, error) {
		n, err := g.rdb.Exists(ctx, keys...).Result()
		return int(n), err
	})
}

// PurgePersonal deletes them, in acknowledged steps of a few hundred: the allowlist,
// what loads of it have left, every e-mail on file and every stash. Meanwhile it has
// the turn to load the allowlist, whose lease of 30 s each step renews, so that no list
// is put in force whose e-mails then go. It is refused with ErrStillOpen, with
// ErrUnderWay, also when the turn is another's or was lost, and, while the ledger of
// epoch has seats or is another one, with ErrMoved. What was deleted before an error
// stays so: repeat it.
func (g *Gate) PurgePersonal(ctx context.Context, epoch string) (p booking.PersonalKeys, err error) {
	token := rand.Text()
	turn, err := g.BeginAllowlist(ctx, token, "a purge")
	switch {
	case err != nil:
		g.leavePurge(ctx, token) // it may have been taken
		return p, fmt.Errorf("purge: %w", err)
	case turn.Token != token:
		return p, fmt.Errorf("purge: by %s since %s: %w", turn.Who, turn.Since.Format(time.RFC3339), ErrUnderWay)
	}
	k := g.keys
	p, err = g.personal(ctx, func(keys []string) (int, error) {
		all := append(append(k.base(), k.open(), k.opensAt(), k.load(), k.changed(), k.rebuild()), keys...)
		a, err := g.change(ctx, purgeScript, all, epoch, token, loadLease.Milliseconds())
		if err != nil {
			return 0, notMade(err)
		}
		if a.word != "purged" {
			return 0, endError(purgeScript, a)
		}
		n, err := strconv.Atoi(a.detail)
		if err != nil {
			return 0, fmt.Errorf("purge answered %q, want a number", a.detail)
		}
		return n, nil
	})
	if err == nil {
		// With all lists gone, nothing of a load is left to be seen to.
		_, err = g.loadStep(ctx, allowlistTurnScript, token, nil, "ended", "end")
	}
	if err != nil {
		g.leavePurge(ctx, token)
	}
	return p, err
}

// leavePurge gives the turn up when a purge breaks off; where that fails it lapses.
func (g *Gate) leavePurge(ctx context.Context, token string) {
	ctx, cancel := bounded(context.WithoutCancel(ctx))
	defer cancel()
	if err := g.LeaveAllowlist(ctx, token); err != nil && !errors.Is(err, booking.ErrAllowlistTurn) {
		g.log.WarnContext(ctx, "the turn to load the allowlist could not be given back; it lapses by itself", "error", err)
	}
}

// personal hands the keys to do, a few hundred at a time, and adds up what it says.
func (g *Gate) personal(ctx context.Context, do func(keys []string) (int, error)) (p booking.PersonalKeys, err error) {
	if p.Lists, err = do(g.keys.lists()); err != nil {
		return p, err
	}
	for _, kind := range []struct {
		prefix string
		n      *int
	}{{g.keys.email(""), &p.Emails}, {g.keys.hold(), &p.Stashes}} {
		if err := g.scanKeys(ctx, kind.prefix, func(keys []string) error {
			n, err := do(keys)
			*kind.n += n
			return err
		}); err != nil {
			return p, err
		}
	}
	return p, nil
}

// scanKeys goes over every key with the prefix; a page has each of its keys once.
func (g *Gate) scanKeys(ctx context.Context, prefix string, do func(keys []string) error) error {
	pattern := globQuote.Replace(prefix) + "*"
	for cursor := uint64(0); ; {
		call, cancel := context.WithTimeout(ctx, callTimeout)
		keys, next, err := g.rdb.Scan(call, cursor, pattern, purgeChunk).Result()
		cancel()
		if err != nil {
			return fmt.Errorf("scan keys: %w", err)
		}
		for len(keys) > 0 { // a page may be longer than was asked for
			n := min(len(keys), purgeChunk)
			if err := do(keys[:n]); err != nil {
				return err
			}
			keys = keys[n:]
		}
		if cursor = next; cursor == 0 {
			return nil
		}
	}
}

// globQuote takes a pattern's special characters as they are.
var globQuote = strings.NewReplacer(`\`, `\\`, `*`, `\*`, `?`, `\?`, `[`, `\[`, `]`, `\]`)
