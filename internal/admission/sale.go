package admission

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"holdfast/internal/booking"
	"holdfast/scripts/lua"
)

// ErrExpired says that a change reached Redis only after its caller had given it
// up, so that it was not made.
var ErrExpired = errors.New("it came to Redis too late and was not made: run it again")

// ErrHasEpoch refuses to begin a rebuild, or a first sale, where there is a sale.
var ErrHasEpoch = errors.New("this ledger has an epoch; only an empty one is rebuilt")

var (
	candidatesScript = newScript("candidates", lua.Candidates)
	restoreScript    = newScript("restore", lua.Restore)
)

// change runs a script that changes the sale and, by Redis's clock, does so only
// before the time it gets as its first argument: a copy that a stall delivers
// later must not undo what was changed since. Its answer counts as call's does.
// A try that ends without a reply is waited out first, so that once change has
// returned nothing of it can happen any more; for that it overruns a caller's
// cancellation by less than a second. ErrExpired says that nothing was changed. The
// word "moved", that what stands is not what the caller was shown, comes back as
// "found" when that is this change's own doing, by a try whose answer was lost.
func (g *Gate) change(ctx context.Context, s *script, keys []string, args ...any) (answer, error) {
	ctx, cancel := bounded(ctx)
	defer cancel()
	var lost error // of a try that may have made the change
	for try := 1; ; try++ {
		a, err := g.changeOnce(ctx, s, keys, args)
		switch {
		case err == nil && a.word == "moved" && lost != nil && a.detail == "":
			return answer{}, fmt.Errorf("%s: %w", s.name, lost) // it was made, and then another's, or never
		case err == nil && a.word != "expired":
			if a.word == "moved" && lost != nil {
				a.word = "found"
			}
			if err := ledgerError(a); err != nil {
				return answer{}, err
			}
			if !a.acked {
				g.metrics.ackFailures.WithLabelValues(s.name).Inc()
				return answer{}, fmt.Errorf("%s: %w", s.name, booking.ErrNotAcknowledged)
			}
			return a, nil
		case err == nil && lost != nil:
			err = lost
		case err == nil:
			err = ErrExpired
		case mayBeUnderWay(err):
			lost = err
		}
		if try == tries || ctx.Err() != nil || !errors.Is(err, ErrExpired) && !retryable(err) {
			return answer{}, fmt.Errorf("%s: %w", s.name, err)
		}
	}
}

// changeOnce asks for Redis's time and sends the script with the time at which
// this try is over. What it learns of the clock is never ahead of it, so the
// script stops at or before the end that is waited for here.
func (g *Gate) changeOnce(ctx context.Context, s *script, keys []string, args []any) (answer, error) {
	at, err := g.rdb.Time(ctx).Result()
	if err != nil {
		return answer{}, fmt.Errorf("read the ledger's clock: %w", err)
	}
	now := time.Now()
	end := now.Add(readTimeout)
	if d, ok := ctx.Deadline(); ok && d.Before(end) {
		end = d
	}
	end = end.Add(-(waitTimeout + 50) * time.Millisecond) // its acknowledgement takes time too
	until := at.Add(end.Sub(now)).UnixMilli()
	a, err := travelOnce(ctx, &g.writes, s, keys, append([]any{g.offset().Milliseconds(), until}, args...))
	if mayBeUnderWay(err) {
		<-time.After(time.Until(end))
	}
	return a, err
}

// mayBeUnderWay tells an error after which the script may yet reach the server
// from the server's own and from a connection that was never made.
func mayBeUnderWay(err error) bool {
	var reply redis.Error
	var opErr *net.OpError
	return err != nil && !errors.As(err, &reply) && (!errors.As(err, &opErr) || opErr.Op != "dial")
}

// ApplySale puts a sale into force in one acknowledged script: counters are
// counted from the ledger's rows, a cap below them and the removal of a level
// with seats are refused. epoch, if not "", is written when there is none: give
// it only for a first sale that finds store and queue empty. It is refused while
// a rebuild has begun and not written its epoch. With checkOnly it says what it
// would do. Safe to repeat.
func (g *Gate) ApplySale(ctx context.Context, sale booking.Sale, epoch string, checkOnly bool) (booking.Applied, error) {
	mode := "apply"
	if checkOnly {
		mode = "check"
	}
	return g.applySale(ctx, sale, epoch, mode, "", nil)
}

// ApplySaleOver is ApplySale over a sale that an operator was shown: with another epoch
// or another sale in force it is refused with booking.ErrNotAsShown, in the step that
// would have made the change. Of the switch it wants nothing.
func (g *Gate) ApplySaleOver(ctx context.Context, shown booking.Shown, sale booking.Sale, checkOnly bool) (booking.Applied, error) {
	mode := "apply"
	if checkOnly {
		mode = "check"
	}
	return g.applySale(ctx, sale, "", mode, "", append([]any{shown.Epoch}, fields(shown)...))
}

// fields are the sale that was shown, as the scripts compare it.
func fields(shown booking.Shown) []any {
	list := make([]any, 0, 2*len(shown.Sale))
	for field, value := range shown.Sale {
		list = append(list, field, value)
	}
	return list
}

// SaleFields reads sale:config as it is stored, for booking.Shown; empty when there is
// none. Read it before what is shown: what changes in between is refused, then, and not
// taken for what was seen.
func (g *Gate) SaleFields(ctx context.Context) (map[string]string, error) {
	ctx, cancel := bounded(ctx)
	defer cancel()
	m, err := g.rdb.HGetAll(ctx, g.keys.config()).Result()
	if err != nil {
		return nil, fmt.Errorf("read the sale: %w", err)
	}
	return m, nil
}

func (g *Gate) applySale(ctx context.Context, sale booking.Sale, epoch, mode, token string, shown []any) (booking.Applied, error) {
	if err := sale.Validate(); err != nil {
		return booking.Applied{}, fmt.Errorf("sale: %w", err)
	}
	args := []any{epoch, mode, token, sale.Cap, sale.Currency, sale.Hold.Milliseconds(), sale.Name, sale.Title, len(sale.Levels)}
	for _, l := range sale.Levels {
		args = append(args, l.ID, l.Cap, int64(l.Fee), l.Name)
	}
	args = append(args, shown...)
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
		keys := append(append(g.keys.base(), g.keys.config(), g.keys.total(), g.keys.rebuild()), g.keys.levels(ids)...)
		a, err := g.change(ctx, applySaleScript, keys, args...)
		if err != nil {
			return booking.Applied{}, err
		}
		switch a.word {
		case "applied", "found", "fits":
			g.levels.Store(nil)
			return applied(a), nil
		case "below":
			return applied(a), fmt.Errorf("level %q: %w", a.detail, booking.ErrCapBelowAdmitted)
		case "removed":
			return booking.Applied{}, fmt.Errorf("level %q: %w", a.detail, booking.ErrLevelHasSeats)
		case "moved":
			return booking.Applied{}, fmt.Errorf("apply_sale: %w", booking.ErrNotAsShown)
		case "rebuilding":
			return booking.Applied{}, errors.New("apply_sale: a rebuild has begun and is not finished: run the rebuild")
		case "levels":
			continue
		default:
			return booking.Applied{}, rebuildError(applySaleScript, a)
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
	m, err := g.SaleFields(ctx)
	if err != nil {
		return booking.Sale{}, err
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
	s := booking.Sale{Name: m["name"], Title: m["title"], Currency: m["currency"], Cap: int(number("cap")), Hold: time.Duration(number("hold_ms")) * time.Millisecond}
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

// Open opens booking now and forgets a scheduled opening, however the switch stands.
// Like Close and OpenAt it is acknowledged or an error, and safe to repeat. Like OpenAt it is refused with
// booking.ErrAllowlistHalf while a load of the allowlist has changed half of it.
func (g *Gate) Open(ctx context.Context) error { return g.flip(ctx, "open", time.Time{}, nil) }

// OpenOver opens booking at that time, now if it is zero, over what an operator was
// shown: with another epoch, another sale in force or a switch that stands otherwise it
// is refused with booking.ErrNotAsShown, in the step that would have made the change.
// Else as Open.
func (g *Gate) OpenOver(ctx context.Context, shown booking.Shown, at time.Time) error {
	what, open, opensAt := "schedule", 0, int64(0)
	if at.IsZero() {
		what = "open"
	}
	if shown.Open {
		open = 1
	}
	if !shown.OpensAt.IsZero() {
		opensAt = shown.OpensAt.UnixMilli()
	}
	return g.flip(ctx, what, at, append([]any{shown.Epoch, open, opensAt}, fields(shown)...))
}

// Close closes booking and forgets a scheduled opening: once it has returned
// without an error, no request is admitted.
func (g *Gate) Close(ctx context.Context) error { return g.flip(ctx, "close", time.Time{}, nil) }

// OpenAt schedules the opening, by Redis's clock.
func (g *Gate) OpenAt(ctx context.Context, at time.Time) error {
	return g.flip(ctx, "schedule", at, nil)
}

func (g *Gate) flip(ctx context.Context, what string, at time.Time, shown []any) error {
	keys := append(g.keys.base(), g.keys.open(), g.keys.opensAt(), g.keys.changed(), g.keys.config())
	a, err := g.change(ctx, switchScript, keys, append([]any{what, at.UnixMilli()}, shown...)...)
	if err != nil {
		return err
	}
	switch a.word {
	case "switched", "found":
		return nil
	case "half_loaded":
		return fmt.Errorf("%s booking: %w", what, booking.ErrAllowlistHalf)
	case "moved":
		return fmt.Errorf("%s booking: %w", what, booking.ErrNotAsShown)
	}
	return fmt.Errorf("switch answered %q, which this program does not know", a.word)
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

// AddCandidates adds to the allowlist, all or nothing, acknowledged or an error.
// The caller sends a few hundred at a time, so that no call blocks Redis. Safe to
// repeat. It removes nobody, and makes a load that runs begin again: a whole list is
// put in force by BeginAllowlist and the steps after it.
func (g *Gate) AddCandidates(ctx context.Context, list []booking.Candidate) error {
	if len(list) == 0 {
		return nil
	}
	keys, args := append(g.keys.base(), g.keys.valid()), make([]any, 0, 2*len(list))
	for _, c := range list {
		keys = append(keys, g.keys.email(c.Code))
		args = append(args, c.Code, c.Email)
	}
	a, err := g.change(ctx, candidatesScript, keys, args...)
	if err != nil {
		return fmt.Errorf("add %d candidates: %w", len(list), err)
	}
	if a.word != "added" {
		return fmt.Errorf("candidates answered %q, which this program does not know", a.word)
	}
	return nil
}

// BeginRebuild clears a ledger that has no epoch of what an unfinished rebuild
// left there, and gives the token that the steps of this rebuild need. Any other
// rebuild is over with that: what it still sends, or a stall delivers late, is
// refused and changes nothing. An error for a ledger that has an epoch. Like the
// steps after it, it is acknowledged or an error.
func (g *Gate) BeginRebuild(ctx context.Context) (token string, err error) {
	before, err := g.UnfinishedRebuild(ctx)
	if err != nil {
		return "", err
	}
	token = rand.Text()
	return token, g.restore(ctx, "begun", token, nil, "begin", before)
}

// Restore puts rows into a ledger that a rebuild has begun: no script believes
// them before FinishRebuild has counted them and written the epoch. The caller
// sends a few hundred rows at a time. Safe to repeat with its token.
func (g *Gate) Restore(ctx context.Context, token string, rows []booking.RestoredRow) error {
	var keys []string
	args := []any{"rows", ""}
	for _, r := range rows {
		raw, err := json.Marshal(r.Row)
		if err != nil {
			return fmt.Errorf("restore row: %w", err)
		}
		byAttempt, err := json.Marshal(stash{V: 1, Code: r.Code, Payment: r.Payment.ID, URL: r.Payment.URL, Signature: r.Payment.Signature})
		if err != nil {
			return fmt.Errorf("restore stash: %w", err)
		}
		byPayment, err := json.Marshal(stash{V: 1, Code: r.Code, Attempt: r.Row.Attempt, URL: r.Payment.URL, Signature: r.Payment.Signature})
		if err != nil {
			return fmt.Errorf("restore stash: %w", err)
		}
		look := ""
		if !r.Look.IsZero() {
			look = strconv.FormatInt(r.Look.UnixMilli(), 10)
		}
		keys = append(keys, g.keys.attempt(r.Row.Attempt), g.keys.payment(r.Payment.ID))
		args = append(args, r.Code, raw, look, byAttempt, byPayment)
	}
	if err := g.restore(ctx, "restored", token, keys, args...); err != nil {
		return fmt.Errorf("restore %d rows: %w", len(rows), err)
	}
	return nil
}

// FinishRebuild is ApplySale as a rebuild's last step, and the only one that
// brings restored rows into force: with the epoch, which it writes if there is
// none. Until ForgetRebuild, UnfinishedRebuild still gives the token, so that what
// was not acknowledged can be repeated.
func (g *Gate) FinishRebuild(ctx context.Context, sale booking.Sale, epoch, token string) (booking.Applied, error) {
	return g.applySale(ctx, sale, epoch, "apply", token, nil)
}

// ForgetRebuild forgets the token of a rebuild whose last step is acknowledged.
// Safe to repeat; another's token, or one without an epoch, is left as it is.
func (g *Gate) ForgetRebuild(ctx context.Context, token string) error {
	return g.restore(ctx, "forgotten", token, nil, "forget", "")
}

// UnfinishedRebuild reads the token of the rebuild that has its turn: one that has
// not finished, or, if there is an epoch, has not heard that it has; "" when there
// is none.
func (g *Gate) UnfinishedRebuild(ctx context.Context) (token string, err error) {
	ctx, cancel := bounded(ctx)
	defer cancel()
	token, err = g.rdb.Get(ctx, g.keys.rebuild()).Result()
	if err != nil && !errors.Is(err, redis.Nil) {
		return "", fmt.Errorf("read whose turn it is to rebuild: %w", err)
	}
	return token, nil
}

func (g *Gate) restore(ctx context.Context, want, token string, keys []string, args ...any) error {
	keys = append(append(g.keys.base(), g.keys.rebuild()), keys...)
	a, err := g.change(ctx, restoreScript, keys, append([]any{token}, args...)...)
	if err != nil {
		return err
	}
	if a.word != want {
		return rebuildError(restoreScript, a)
	}
	return nil
}

// rebuildError is what a step of a rebuild hears that may not be made.
func rebuildError(s *script, a answer) error {
	switch a.word {
	case "not_lost":
		return fmt.Errorf("%s: %w", s.name, ErrHasEpoch)
	case "superseded":
		return fmt.Errorf("%s: another rebuild has begun since, or Redis was emptied again: nothing was changed", s.name)
	}
	return fmt.Errorf("%s answered %q, which this program does not know", s.name, a.word)
}

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
