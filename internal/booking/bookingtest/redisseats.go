package bookingtest

import (
	"context"
	"encoding/json"
	"fmt"
	"testing"

	"github.com/redis/go-redis/v9"

	"holdfast/internal/booking"
)

// Status reads the counters and the caps; admission.Gate does.
type Status interface {
	ReadStatus(ctx context.Context) (booking.Figures, error)
}

// RedisSeats reads the ledger's keys past its scripts, so that the check does not
// rest on what it checks. Only ReadStatus is the ledger's own.
type RedisSeats struct {
	Status
	rdb    redis.Cmdable
	prefix string
}

var _ Seats = RedisSeats{}

// NewRedisSeats reads the sale whose keys have that prefix.
func NewRedisSeats(rdb redis.Cmdable, prefix string, status Status) RedisSeats {
	return RedisSeats{Status: status, rdb: rdb, prefix: prefix}
}

// Rows is every row of adm:seen; one that cannot be read is an error.
func (s RedisSeats) Rows(ctx context.Context) (map[string]booking.Row, error) {
	raw, err := s.rdb.HGetAll(ctx, s.prefix+"adm:seen").Result()
	if err != nil {
		return nil, err
	}
	rows := make(map[string]booking.Row, len(raw))
	for code, text := range raw {
		var row booking.Row
		if err := json.Unmarshal([]byte(text), &row); err != nil {
			return nil, fmt.Errorf("row of %s: %w", code, err)
		}
		rows[code] = row
	}
	return rows, nil
}

// Looks is all of adm:due.
func (s RedisSeats) Looks(ctx context.Context) (map[string]int64, error) {
	all, err := s.rdb.ZRangeWithScores(ctx, s.prefix+"adm:due", 0, -1).Result()
	if err != nil {
		return nil, err
	}
	looks := make(map[string]int64, len(all))
	for _, z := range all {
		code, _ := z.Member.(string)
		looks[code] = int64(z.Score)
	}
	return looks, nil
}

// Lose takes the booking's seat out of the ledger, counters and all, as a Redis does
// that has lost time.
func (s RedisSeats) Lose(t testing.TB, b Booking) {
	t.Helper()
	_, err := s.rdb.TxPipelined(t.Context(), func(p redis.Pipeliner) error {
		p.HDel(t.Context(), s.prefix+"adm:seen", b.Code)
		p.ZRem(t.Context(), s.prefix+"adm:due", b.Code)
		p.Decr(t.Context(), s.prefix+"adm:total")
		p.Decr(t.Context(), s.prefix+"adm:level:"+b.Record.Level)
		return nil
	})
	if err != nil {
		t.Fatalf("lose the seat of %s: %v", b.Code, err)
	}
}
