package admission

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"holdfast/internal/booking"
)

// scanPage is about how many rows are read at a time.
const scanPage = 500

// What follows only reads, past the scripts, except Acknowledges: it is for checks
// that read the whole ledger, and nothing may rest on it. None of it looks at the
// epoch.

// Rows scans every row, in pages, in no promised order. A row that is there all
// the time is told; one that comes, goes or changes meanwhile may be told or
// not, and any may be told twice. A row that cannot be read comes with its Err,
// and the scan goes on; the scan's own error ends it.
func (g *Gate) Rows(ctx context.Context) iter.Seq2[booking.DueRow, error] {
	return func(yield func(booking.DueRow, error) bool) {
		var cursor uint64
		for {
			page, next, err := g.scan(ctx, cursor)
			if err != nil {
				yield(booking.DueRow{}, fmt.Errorf("scan rows: %w", err))
				return
			}
			for i := 0; i+1 < len(page); i += 2 {
				if !yield(dueRow(page[i], page[i+1]), nil) {
					return
				}
			}
			if cursor = next; cursor == 0 {
				return
			}
		}
	}
}

func (g *Gate) scan(ctx context.Context, cursor uint64) ([]string, uint64, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	return g.rdb.HScan(ctx, g.keys.seen(), cursor, "", scanPage).Result()
}

func dueRow(code, text string) booking.DueRow {
	d := booking.DueRow{Code: code}
	if err := json.Unmarshal([]byte(text), &d.Row); err != nil {
		d.Err = fmt.Errorf("row of a code: %w: %w", booking.ErrLedgerDamaged, err)
	}
	return d
}

// RowsOf reads the rows of these codes, at most a few hundred; a code without a
// row is not in the answer.
func (g *Gate) RowsOf(ctx context.Context, codes []string) (map[string]booking.DueRow, error) {
	rows := make(map[string]booking.DueRow, len(codes))
	if len(codes) == 0 {
		return rows, nil
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	values, err := g.rdb.HMGet(ctx, g.keys.seen(), codes...).Result()
	if err != nil {
		return nil, fmt.Errorf("read rows: %w", err)
	}
	for i, v := range values {
		if text, there := v.(string); there {
			rows[codes[i]] = dueRow(codes[i], text)
		}
	}
	return rows, nil
}

// Looks tells when the reconciler must look at the rows of these codes, at most
// a few hundred; a code that nobody will look at is not in the answer.
func (g *Gate) Looks(ctx context.Context, codes []string) (map[string]time.Time, error) {
	looks := make(map[string]time.Time, len(codes))
	if len(codes) == 0 {
		return looks, nil
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	cmds, err := g.rdb.Pipelined(ctx, func(p redis.Pipeliner) error {
		for _, code := range codes {
			p.ZScore(ctx, g.keys.due(), code)
		}
		return nil
	})
	if err != nil && !errors.Is(err, redis.Nil) {
		return nil, fmt.Errorf("read looks: %w", err)
	}
	for i, cmd := range cmds {
		score, err := cmd.(*redis.FloatCmd).Result()
		if errors.Is(err, redis.Nil) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("read looks: %w", err)
		}
		looks[codes[i]] = time.UnixMilli(int64(score)).UTC()
	}
	return looks, nil
}

// Count is what the ledger counts to, read in one transaction: how many rows it
// has and how many codes will be looked at, and the counters beside their caps.
// Of the figures only caps, names and admitted are set; -1 is a counter that is
// missing or no whole number.
func (g *Gate) Count(ctx context.Context) (rows, looks int, f booking.Figures, err error) {
	for fresh := range 2 {
		ids, err := g.levelIDs(ctx, fresh > 0)
		if err != nil {
			return 0, 0, f, err
		}
		rows, looks, f, err = g.count(ctx, ids)
		if !errors.Is(err, errOtherLevels) {
			return rows, looks, f, err
		}
	}
	return 0, 0, f, fmt.Errorf("count the ledger: %w: %w", booking.ErrLedgerDamaged, errOtherLevels)
}

var errOtherLevels = errors.New("the sale's levels or caps are not those that were read")

func (g *Gate) count(ctx context.Context, ids []string) (rows, looks int, f booking.Figures, err error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	p := g.rdb.TxPipeline()
	seen, due := p.HLen(ctx, g.keys.seen()), p.ZCard(ctx, g.keys.due())
	config, total := p.HGetAll(ctx, g.keys.config()), p.Get(ctx, g.keys.total())
	levels := make([]*redis.StringCmd, len(ids))
	for i, id := range ids {
		levels[i] = p.Get(ctx, g.keys.level(id))
	}
	if _, err := p.Exec(ctx); err != nil && !errors.Is(err, redis.Nil) {
		return 0, 0, f, fmt.Errorf("count the ledger: %w", err)
	}
	sale := config.Val()
	if !slices.Equal(strings.Split(sale["levels"], ","), ids) {
		return 0, 0, f, errOtherLevels
	}
	f.Total = counter(total)
	if f.Cap, err = strconv.Atoi(sale["cap"]); err != nil {
		return 0, 0, f, errOtherLevels
	}
	for i, id := range ids {
		limit, err := strconv.Atoi(sale["cap:"+id])
		if err != nil {
			return 0, 0, f, errOtherLevels
		}
		f.Levels = append(f.Levels, booking.LevelFigures{ID: id, Name: sale["name:"+id], Cap: limit, Admitted: counter(levels[i])})
	}
	return int(seen.Val()), int(due.Val()), f, nil
}

// counter reads a counter as the scripts do: -1 when it closes its level.
func counter(cmd *redis.StringCmd) int {
	n, err := strconv.Atoi(cmd.Val())
	if cmd.Err() != nil || err != nil || n < 0 {
		return -1
	}
	return n
}

// Acknowledges asks the replicas, by Probe, whether a write of now counts: nil, or
// booking.ErrNotAcknowledged, or why nobody knows. For those who are about to do
// what is better not done without them, and may not have heard of them for a while.
func (g *Gate) Acknowledges(ctx context.Context) error {
	if err := g.Probe(ctx); err != nil {
		return err
	}
	g.breaker.mu.Lock()
	defer g.breaker.mu.Unlock()
	if g.breaker.missed > 0 {
		return fmt.Errorf("probe the replicas: %w", booking.ErrNotAcknowledged)
	}
	return nil
}
