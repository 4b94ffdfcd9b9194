package admission

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"holdfast/internal/booking"
	"holdfast/scripts/lua"
)

var (
	lateScript    = newScript("late", lua.Late)
	noticesScript = newScript("notices", lua.Notices)
)

// Late decides, once for each transaction, what becomes of completed money that is
// no plain payment of its seat: rec's attempt gets a seat, paid, if one is free
// and its candidate has none, or the money goes back. Money of another kind than
// booking.MoneyLate always goes back. The decision is acknowledged, and repeated
// it is the first one's.
func (g *Gate) Late(ctx context.Context, rec booking.Record, transaction string, kind booking.MoneyKind) (booking.Decision, error) {
	if transaction == "" {
		return booking.Decision{}, fmt.Errorf("late: money without a transaction id: %w", booking.ErrInDoubt)
	}
	keys := append(g.keys.base(), g.keys.total(), g.keys.level(rec.Level), g.keys.config(), g.keys.late())
	a, err := g.call(ctx, lateScript, keys, rec.Code, rec.Attempt, rec.PaymentID, transaction,
		rec.Level, int64(rec.Amount), rec.Currency, string(kind))
	if err != nil {
		return booking.Decision{}, err
	}
	if len(a.rest) != 1 {
		return booking.Decision{}, fmt.Errorf("late answered %d values after the clock, want one", len(a.rest))
	}
	at, err := milliseconds(a.rest[0])
	if err != nil {
		return booking.Decision{}, fmt.Errorf("late: %w", err)
	}
	d := booking.Decision{At: time.UnixMilli(at).UTC()}
	switch a.word {
	case "refund":
		d.Reason = a.detail
	case "paid":
		d.Paid = true
		if d.Row, err = a.row(); err != nil {
			return booking.Decision{}, err
		}
	default:
		return booking.Decision{}, fmt.Errorf("late answered %q, which this program does not know", a.word)
	}
	return d, nil
}

func milliseconds(v any) (int64, error) {
	switch n := v.(type) {
	case int64:
		return n, nil
	case string:
		return strconv.ParseInt(n, 10, 64)
	}
	return 0, fmt.Errorf("a time came as %T", v)
}

// NoticeLater has a notification worked on when that time has passed. It is an
// index of what the store holds: no decision rests on it, so it is not acknowledged,
// and the cross-check finds what a failover forgot.
// Safe to repeat; booking.ErrLedgerUnknown on an empty Redis.
func (g *Gate) NoticeLater(ctx context.Context, id string, in time.Duration) error {
	_, err := g.notices(ctx, "later", id, in.Milliseconds())
	return err
}

// NoticeDone has a notification not worked on any more. Safe to repeat.
func (g *Gate) NoticeDone(ctx context.Context, id string) error {
	_, err := g.notices(ctx, "done", id)
	return err
}

// DueNotices are the ids of notifications to work on now, oldest first.
func (g *Gate) DueNotices(ctx context.Context, limit int) ([]string, error) {
	a, err := g.notices(ctx, "due", limit)
	if err != nil {
		return nil, err
	}
	ids := make([]string, 0, len(a.rest))
	for _, v := range a.rest {
		id, ok := v.(string)
		if !ok {
			return nil, fmt.Errorf("notices answered a %T among its ids", v)
		}
		ids = append(ids, id)
	}
	return ids, nil
}

func (g *Gate) notices(ctx context.Context, args ...any) (answer, error) {
	return g.read(ctx, noticesScript, append(g.keys.base(), g.keys.notices()), args...)
}
