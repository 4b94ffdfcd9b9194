package admission

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"holdfast/internal/booking"
)

// ApplySale puts a sale into force in one acknowledged script: counters are
// counted from the ledger's rows, a cap below them and the removal of a level
// with seats are refused. epoch, if not "", is written when there is none: give
// it only for a first sale that finds store and queue empty, and for a rebuild.
// With checkOnly it says what it would do. Safe to repeat.
func (g *Gate) ApplySale(ctx context.Context, sale booking.Sale, epoch string, checkOnly bool) (booking.Applied, error) {
	if err := sale.Validate(); err != nil {
		return booking.Applied{}, fmt.Errorf("sale: %w", err)
	}
	mode := "apply"
	if checkOnly {
		mode = "check"
	}
	args := []any{epoch, mode, sale.Cap, sale.Currency, sale.Hold.Milliseconds(), sale.Name, len(sale.Levels)}
	for _, l := range sale.Levels {
		args = append(args, l.ID, l.Cap, int64(l.Fee), l.Name)
	}
	for range tries {
		old, err := g.levelIDs(ctx, true)
		if err != nil && !errors.Is(err, booking.ErrLedgerUnknown) {
			return booking.Applied{}, err
		}
		ids := sale.LevelIDs()
		for _, id := range old {
			if _, kept := sale.Level(id); !kept {
				ids = append(ids, id)
			}
		}
		keys := append(append(g.keys.base(), g.keys.config(), g.keys.total()), g.keys.levels(ids)...)
		a, err := g.call(ctx, applySaleScript, keys, args...)
		if err != nil {
			return booking.Applied{}, err
		}
		switch a.word {
		case "applied", "fits":
			g.levels.Store(nil)
			return applied(a), nil
		case "below":
			return applied(a), fmt.Errorf("level %q: %w", a.detail, booking.ErrCapBelowAdmitted)
		case "removed":
			return booking.Applied{}, fmt.Errorf("level %q: %w", a.detail, booking.ErrLevelHasSeats)
		case "levels":
			continue
		default:
			return booking.Applied{}, fmt.Errorf("apply_sale answered %q, which this program does not know", a.word)
		}
	}
	return booking.Applied{}, errors.New("apply_sale: the sale was changed by someone else at the same time; run it again")
}

func applied(a answer) booking.Applied {
	out := booking.Applied{Admitted: map[string]int{}}
	if len(a.rest) < 2 {
		return out
	}
	out.Epoch, _ = a.rest[0].(string)
	total, _ := a.rest[1].(int64)
	out.Total = int(total)
	for i := 2; i+1 < len(a.rest); i += 2 {
		id, _ := a.rest[i].(string)
		n, _ := a.rest[i+1].(int64)
		out.Admitted[id] = int(n)
	}
	return out
}

// Sale reads the sale as it runs; booking.ErrNotFound when none was applied.
func (g *Gate) Sale(ctx context.Context) (booking.Sale, error) {
	ctx, cancel := bounded(ctx)
	defer cancel()
	m, err := g.rdb.HGetAll(ctx, g.keys.config()).Result()
	if err != nil {
		return booking.Sale{}, fmt.Errorf("read the sale: %w", err)
	}
	if len(m) == 0 {
		return booking.Sale{}, booking.ErrNotFound
	}
	var errs []error
	number := func(field string) int64 {
		v, err := strconv.ParseInt(m[field], 10, 64)
		if err != nil {
			errs = append(errs, fmt.Errorf("%s is %q", field, m[field]))
		}
		return v
	}
	s := booking.Sale{Name: m["name"], Currency: m["currency"], Cap: int(number("cap")), Hold: time.Duration(number("hold_ms")) * time.Millisecond}
	for id := range strings.SplitSeq(m["levels"], ",") {
		s.Levels = append(s.Levels, booking.Level{
			ID: id, Name: m["name:"+id], Cap: int(number("cap:" + id)), Fee: booking.Money(number("fee:" + id)),
		})
	}
	if err := errors.Join(append(errs, s.Validate())...); err != nil {
		return booking.Sale{}, fmt.Errorf("sale:config: %w: %w", booking.ErrLedgerDamaged, err)
	}
	return s, nil
}

// Open opens booking now and forgets a scheduled opening. Like Close and OpenAt
// it is acknowledged or an error, and safe to repeat.
func (g *Gate) Open(ctx context.Context) error { return g.flip(ctx, "open", time.Time{}) }

// Close closes booking and forgets a scheduled opening: once it has returned
// without an error, no request is admitted.
func (g *Gate) Close(ctx context.Context) error { return g.flip(ctx, "close", time.Time{}) }

// OpenAt schedules the opening, by Redis's clock.
func (g *Gate) OpenAt(ctx context.Context, at time.Time) error { return g.flip(ctx, "schedule", at) }

func (g *Gate) flip(ctx context.Context, what string, at time.Time) error {
	a, err := g.call(ctx, switchScript, append(g.keys.base(), g.keys.open(), g.keys.opensAt()), what, at.UnixMilli())
	if err != nil {
		return err
	}
	if a.word != "switched" {
		return fmt.Errorf("switch answered %q, which this program does not know", a.word)
	}
	return nil
}

// Epoch reads the sale's identity; booking.ErrLedgerUnknown when there is none.
func (g *Gate) Epoch(ctx context.Context) (string, error) {
	ctx, cancel := bounded(ctx)
	defer cancel()
	epoch, err := g.rdb.Get(ctx, g.keys.epoch()).Result()
	if errors.Is(err, redis.Nil) {
		return "", booking.ErrLedgerUnknown
	}
	if err != nil {
		return "", fmt.Errorf("read epoch: %w", err)
	}
	return epoch, nil
}

// AddCandidates adds to the allowlist, acknowledged or an error. The caller sends
// a few hundred at a time, so that no command blocks Redis. Safe to repeat.
func (g *Gate) AddCandidates(ctx context.Context, list []booking.Candidate) error {
	if len(list) == 0 {
		return nil
	}
	codes := make([]any, len(list))
	conn := g.rdb.Conn()
	defer func() { _ = conn.Close() }() // gives the connection back to the pool
	pipe := conn.Pipeline()
	for i, c := range list {
		codes[i] = c.Code
		pipe.Set(ctx, g.keys.email(c.Code), c.Email, 0)
	}
	pipe.SAdd(ctx, g.keys.valid(), codes...)
	// SADD of members that are there writes nothing, SET always does.
	wait := g.waitIn(ctx, pipe)
	if _, err := pipe.Exec(ctx); err != nil {
		return fmt.Errorf("add %d candidates: %w", len(list), err)
	}
	if !wait() {
		return fmt.Errorf("add %d candidates: %w", len(list), booking.ErrNotAcknowledged)
	}
	return nil
}

// waitIn puts a WAIT at the end of a pipeline; the returned function tells, once
// it was executed, whether enough replicas acknowledged.
func (g *Gate) waitIn(ctx context.Context, pipe redis.Pipeliner) func() bool {
	acks := g.acks()
	if acks == 0 {
		return func() bool { return true }
	}
	wait := redis.NewIntCmd(ctx, "WAIT", acks, waitTimeout)
	_ = pipe.Process(ctx, wait)
	return func() bool { return wait.Err() == nil && wait.Val() >= int64(acks) }
}

// Restore writes rows into a ledger that has no epoch yet, so that no script
// believes them before ApplySale has counted them and written the epoch. With
// fresh it first removes what an interrupted rebuild left. The caller sends a
// few hundred rows at a time.
func (g *Gate) Restore(ctx context.Context, rows []booking.RestoredRow, fresh bool) error {
	switch _, err := g.Epoch(ctx); {
	case err == nil:
		return errors.New("restore rows: this ledger has an epoch; only an empty one is rebuilt")
	case !errors.Is(err, booking.ErrLedgerUnknown):
		return err
	}
	conn := g.rdb.Conn()
	defer func() { _ = conn.Close() }() // gives the connection back to the pool
	pipe := conn.Pipeline()
	if fresh {
		pipe.Del(ctx, g.keys.seen(), g.keys.due())
	}
	for _, r := range rows {
		raw, err := json.Marshal(r.Row)
		if err != nil {
			return fmt.Errorf("restore row: %w", err)
		}
		pipe.HSet(ctx, g.keys.seen(), r.Code, raw)
		if !r.Look.IsZero() {
			pipe.ZAdd(ctx, g.keys.due(), redis.Z{Score: float64(r.Look.UnixMilli()), Member: r.Code})
		}
		byAttempt, err := json.Marshal(stash{V: 1, Code: r.Code, Payment: r.Payment.ID, URL: r.Payment.URL, Signature: r.Payment.Signature})
		if err != nil {
			return fmt.Errorf("restore stash: %w", err)
		}
		byPayment, err := json.Marshal(stash{V: 1, Code: r.Code, Attempt: r.Row.Attempt, URL: r.Payment.URL, Signature: r.Payment.Signature})
		if err != nil {
			return fmt.Errorf("restore stash: %w", err)
		}
		pipe.Set(ctx, g.keys.attempt(r.Row.Attempt), byAttempt, stashTTL)
		pipe.Set(ctx, g.keys.payment(r.Payment.ID), byPayment, stashTTL)
	}
	if pipe.Len() == 0 {
		return nil
	}
	wait := g.waitIn(ctx, pipe)
	if _, err := pipe.Exec(ctx); err != nil {
		return fmt.Errorf("restore %d rows: %w", len(rows), err)
	}
	if len(rows) > 0 && !wait() {
		return fmt.Errorf("restore %d rows: %w", len(rows), booking.ErrNotAcknowledged)
	}
	return nil
}

// stashTTL is how long the stash lives, as in the scripts.
const stashTTL = 48 * time.Hour

// ClaimStatus gives the figures to publish, and the right to publish them, to
// one caller of the fleet: at most once per throttle, at once when booking
// opened or closed or a level filled or freed; booking.ErrNothingToPublish
// otherwise. A claim that is not confirmed by Published falls to another caller
// after the throttle.
func (g *Gate) ClaimStatus(ctx context.Context, throttle time.Duration) (booking.Figures, error) {
	return g.snapshot(ctx, "claim", throttle)
}

// ReadStatus gives the figures without claiming anything.
func (g *Gate) ReadStatus(ctx context.Context) (booking.Figures, error) {
	f, err := g.snapshot(ctx, "read", 0)
	if errors.Is(err, booking.ErrNothingToPublish) {
		return f, nil
	}
	return f, err
}

func (g *Gate) snapshot(ctx context.Context, mode string, throttle time.Duration) (booking.Figures, error) {
	for fresh := range 2 {
		ids, err := g.levelIDs(ctx, fresh > 0)
		if err != nil {
			return booking.Figures{}, err
		}
		keys := append(g.keys.base(), g.keys.config(), g.keys.open(), g.keys.opensAt(), g.keys.total(),
			g.keys.version(), g.keys.published(), g.keys.throttle())
		keys = append(keys, g.keys.levels(ids)...)
		a, err := g.read(ctx, snapshotScript, keys, append([]any{throttle.Milliseconds(), mode}, anys(ids)...)...)
		if err != nil {
			return booking.Figures{}, err
		}
		if a.word == "levels" {
			continue
		}
		f, err := figures(a)
		if err == nil && a.word == "current" {
			err = booking.ErrNothingToPublish
		}
		return f, err
	}
	return booking.Figures{}, fmt.Errorf("sale:config has no caps or levels: %w", booking.ErrLedgerDamaged)
}

func figures(a answer) (booking.Figures, error) {
	if len(a.rest) < 6 || len(a.rest)%4 != 2 {
		return booking.Figures{}, fmt.Errorf("snapshot answered %d values", len(a.rest))
	}
	number := func(i int) int { n, _ := a.rest[i].(int64); return int(n) }
	text := func(i int) string { s, _ := a.rest[i].(string); return s }
	version, err := strconv.ParseInt(a.detail, 10, 64)
	if err != nil {
		return booking.Figures{}, fmt.Errorf("snapshot version %q: %w", a.detail, err)
	}
	f := booking.Figures{
		Version: version, At: a.now.UTC(), Open: number(0) == 1, Reason: text(2),
		Cap: number(3), Total: number(4), Fingerprint: text(5),
	}
	if at := number(1); at > 0 {
		f.OpensAt = time.UnixMilli(int64(at)).UTC()
	}
	for i := 6; i < len(a.rest); i += 4 {
		f.Levels = append(f.Levels, booking.LevelFigures{ID: text(i), Name: text(i + 1), Cap: number(i + 2), Admitted: number(i + 3)})
	}
	return f, nil
}

// Published confirms that the figures are where people read them. Safe to
// repeat; an older version changes nothing.
func (g *Gate) Published(ctx context.Context, f booking.Figures) error {
	_, err := g.read(ctx, publishedScript, append(g.keys.base(), g.keys.published()), f.Version, f.Fingerprint)
	return err
}
