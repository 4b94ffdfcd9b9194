package bench

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/redis/go-redis/v9"

	"holdfast/internal/admission"
	"holdfast/internal/booking"
	"holdfast/internal/redisproc"
)

// hotLevel is the level that everybody wants.
const hotLevel = "N1"

// ackWait is how long one WAIT takes at most, in ms, as in the Gate.
const ackWait = 200

// Keys of the alternatives on Redis: a counter, and a hash code -> record.
const (
	takenKey    = "{bench}:taken"
	bookingsKey = "{bench}:bookings"
	lockKey     = "{bench}:lock"
)

// redisWays starts a primary with one replica and makes the ways that use it.
func redisWays(ctx context.Context, clients int) (ways []*contender, about string, stop func(), err error) {
	pair, err := redisproc.StartPair(ctx, "", 1)
	if err != nil {
		return nil, "", nil, fmt.Errorf("start redis: %w", err)
	}
	// Every client its connection, one for who reads the counter, one to check.
	rdb := admission.NewClient(admission.ClientConfig{Addr: pair.Primary.Addr(), Pool: clients + 2})
	stop = func() {
		_ = rdb.Close() // the server goes next
		pair.Stop()
	}
	version, err := serverVersion(ctx, rdb)
	if err != nil {
		stop()
		return nil, "", nil, err
	}
	const counts = "; counts once WAIT has heard of the replica"
	r := redisSeller{rdb: rdb}
	return []*contender{
		{seller: &gateSeller{redisSeller: r}, name: OurScript,
			writes: "two counters, ledger row, next look, all gates in the same script" + counts},
		{seller: &watchSeller{r}, name: RedisWatch, writes: "counter and record in one MULTI" + counts},
		{seller: &lockSeller{r}, name: RedisLock, writes: "lock taken and deleted, counter, record" + counts},
		{seller: &incrDecrSeller{r}, name: RedisIncrDecr, writes: "counter, then record" + counts},
	}, version + ", one replica, nothing on disk, WAIT 1", stop, nil
}

// serverVersion is the server's name and version: Valkey tells also the version
// of Redis that it can stand in for.
func serverVersion(ctx context.Context, rdb *redis.Client) (string, error) {
	info, err := rdb.Info(ctx, "server").Result()
	if err != nil {
		return "", fmt.Errorf("read the version of redis: %w", err)
	}
	for _, name := range []string{"Valkey", "Redis"} {
		if _, rest, ok := strings.Cut(info, "\n"+strings.ToLower(name)+"_version:"); ok {
			version, _, _ := strings.Cut(rest, "\r")
			return name + " " + version, nil
		}
	}
	return "", errors.New("read the version of redis: INFO server does not tell it")
}

// redisSeller is what the ways on Redis share. All but ours know the cap without
// asking anybody.
type redisSeller struct {
	rdb   *redis.Client
	seats int
}

func (s *redisSeller) reset(ctx context.Context, seats int, _ []string) error {
	s.seats = seats
	return errors.Join(s.rdb.FlushAll(ctx).Err(), s.rdb.Set(ctx, takenKey, 0, 0).Err())
}

func (s *redisSeller) taken(ctx context.Context) (int, error) { return s.rdb.Get(ctx, takenKey).Int() }

func (s *redisSeller) sold(ctx context.Context) (int, error) {
	n, err := s.rdb.HLen(ctx, bookingsKey).Result()
	return int(n), err
}

// connection is a client's own connection: WAIT and WATCH count on it alone.
func (s *redisSeller) connection(ctx context.Context) (redisConn, error) {
	c := redisConn{s.rdb.Conn()}
	if err := c.Ping(ctx).Err(); err != nil {
		c.close(ctx)
		return redisConn{}, err
	}
	return c, nil
}

type redisConn struct{ *redis.Conn }

func (c redisConn) close(context.Context) { _ = c.Close() } // gives the connection back to the pool

// acknowledged waits until the replica has what this connection wrote.
func (c redisConn) acknowledged(ctx context.Context) (retries int, err error) {
	for {
		n, err := c.Do(ctx, "WAIT", 1, ackWait).Int()
		if err != nil || n >= 1 {
			return retries, err
		}
		retries++
	}
}

// record is what an alternative keeps of a sold seat.
func record() string {
	return `{"level":"` + hotLevel + `","attempt":"` + booking.NewAttemptSuffix(time.Now()) + `"}`
}

// gateSeller is our script behind admission.Gate, acknowledged.
type gateSeller struct {
	redisSeller
	gate *admission.Gate
}

func (s *gateSeller) reset(ctx context.Context, seats int, codes []string) error {
	if err := s.rdb.FlushAll(ctx).Err(); err != nil {
		return err
	}
	keys, err := admission.NewKeys(admission.DefaultPrefix)
	if err != nil {
		return err
	}
	s.gate, err = admission.New(s.rdb, admission.Options{
		Keys: keys, Acks: 1, Log: slog.New(slog.DiscardHandler), Registerer: prometheus.NewRegistry(),
	})
	if err != nil {
		return err
	}
	sale := booking.Sale{
		Name: "bench", Currency: "BDT", Cap: seats + 1, Hold: booking.DefaultHold, // the level fills, not the sale
		Levels: []booking.Level{{ID: hotLevel, Name: "N1", Cap: seats, Fee: 100}},
	}
	if _, err := s.gate.ApplySale(ctx, sale, booking.NewEpoch(time.Now()), false); err != nil {
		return err
	}
	candidates := make([]booking.Candidate, 0, 500)
	for i, code := range codes {
		candidates = append(candidates, booking.Candidate{Code: code, Email: mailOf(code)})
		if len(candidates) == cap(candidates) || i == len(codes)-1 {
			if err := s.gate.AddCandidates(ctx, candidates); err != nil {
				return err
			}
			candidates = candidates[:0]
		}
	}
	return s.gate.Open(ctx)
}

func mailOf(code string) string { return strings.ToLower(code) + "@example.org" }

func (s *gateSeller) taken(ctx context.Context) (int, error) {
	f, err := s.gate.ReadStatus(ctx)
	if err != nil {
		return 0, err
	}
	return f.Levels[0].Admitted, nil
}

func (s *gateSeller) sold(ctx context.Context) (int, error) {
	n, err := s.rdb.HLen(ctx, admission.DefaultPrefix+"adm:seen").Result()
	return int(n), err
}

func (s *gateSeller) buyer(context.Context) (buyer, error) { return gateBuyer{s.gate}, nil }

type gateBuyer struct{ gate *admission.Gate }

func (b gateBuyer) buy(ctx context.Context, code string) (bool, int, error) {
	r := booking.Request{Code: code, Email: mailOf(code), Level: hotLevel}
	for retries := 0; ; retries++ {
		_, err := b.gate.Admit(ctx, r, booking.NewAttemptSuffix(time.Now()), false)
		switch {
		case err == nil:
			return true, retries, nil
		case errors.Is(err, booking.ErrLevelFull):
			return false, retries, nil
		case !errors.Is(err, booking.ErrTryAgain):
			return false, retries, err
		}
		if err := pause(ctx, time.Millisecond); err != nil {
			return false, retries, err
		}
	}
}

func (gateBuyer) close(context.Context) {}

// watchSeller reads under WATCH and writes in MULTI, which fails when anybody
// has sold a seat meanwhile.
type watchSeller struct{ redisSeller }

func (s *watchSeller) buyer(ctx context.Context) (buyer, error) {
	c, err := s.connection(ctx)
	return watchBuyer{redisConn: c, seats: s.seats}, err
}

type watchBuyer struct {
	redisConn
	seats int
}

func (b watchBuyer) buy(ctx context.Context, code string) (bool, int, error) {
	for retries := 0; ; retries++ {
		// One round trip; the UNWATCH is for a request that found the level full.
		pipe := b.Pipeline()
		pipe.Do(ctx, "UNWATCH")
		pipe.Do(ctx, "WATCH", takenKey)
		get := pipe.Get(ctx, takenKey)
		if _, err := pipe.Exec(ctx); err != nil {
			return false, retries, err
		}
		taken, err := get.Int()
		if err != nil || taken >= b.seats {
			return false, retries, err
		}
		tx := b.TxPipeline()
		tx.Incr(ctx, takenKey)
		tx.HSetNX(ctx, bookingsKey, code, record())
		_, err = tx.Exec(ctx)
		if errors.Is(err, redis.TxFailedErr) {
			continue
		}
		if err != nil {
			return false, retries, err
		}
		more, err := b.acknowledged(ctx)
		return true, retries + more, err
	}
}

func (b watchBuyer) close(ctx context.Context) {
	_ = b.Do(ctx, "UNWATCH").Err() // the connection goes to somebody else
	b.redisConn.close(ctx)
}

// lockSeller reads, decides and writes under a lock.
type lockSeller struct{ redisSeller }

const (
	// lockFor is how long a lock lives whose owner has died. An owner that only
	// stalled this long would oversell; here nobody does, and buy would tell.
	lockFor = 10 * time.Second
	// lockAgain is how long a client waits that did not get the lock, on average.
	lockAgain = time.Millisecond
)

var errLockLost = errors.New("the lock expired while it was held")

// unlock deletes the lock if it is still the caller's.
const unlock = `if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end return 0`

func (s *lockSeller) reset(ctx context.Context, seats int, codes []string) error {
	return errors.Join(s.redisSeller.reset(ctx, seats, codes), s.rdb.ScriptLoad(ctx, unlock).Err())
}

func (s *lockSeller) buyer(ctx context.Context) (buyer, error) {
	c, err := s.connection(ctx)
	return lockBuyer{redisConn: c, seats: s.seats, unlock: redis.NewScript(unlock).Hash()}, err
}

type lockBuyer struct {
	redisConn
	seats  int
	unlock string // digest
}

func (b lockBuyer) buy(ctx context.Context, code string) (bool, int, error) {
	token := booking.NewAttemptSuffix(time.Now())
	for retries := 0; ; retries++ {
		// The read travels with the lock and is worth something only with it.
		pipe := b.Pipeline()
		lock := pipe.Do(ctx, "SET", lockKey, token, "NX", "PX", lockFor.Milliseconds())
		get := pipe.Get(ctx, takenKey)
		if _, err := pipe.Exec(ctx); err != nil && !errors.Is(err, redis.Nil) {
			return false, retries, err
		}
		if errors.Is(lock.Err(), redis.Nil) {
			if err := pause(ctx, rand.N(2*lockAgain)); err != nil {
				return false, retries, err
			}
			continue
		}
		taken, err := get.Int()
		if err := errors.Join(lock.Err(), err); err != nil {
			return false, retries, err
		}
		won := taken < b.seats
		pipe = b.Pipeline()
		if won {
			pipe.Set(ctx, takenKey, taken+1, 0)
			pipe.HSetNX(ctx, bookingsKey, code, record())
		}
		mine := pipe.EvalSha(ctx, b.unlock, []string{lockKey}, token)
		if _, err := pipe.Exec(ctx); err != nil {
			return false, retries, err
		}
		if n, err := mine.Int(); err != nil || n != 1 {
			return false, retries, errors.Join(errLockLost, err)
		}
		if !won {
			return false, retries, nil
		}
		more, err := b.acknowledged(ctx)
		return true, retries + more, err
	}
}

// incrDecrSeller counts first and takes it back when that was one too many: for
// that moment everybody sees more seats taken than there are.
type incrDecrSeller struct{ redisSeller }

func (s *incrDecrSeller) buyer(ctx context.Context) (buyer, error) {
	c, err := s.connection(ctx)
	return incrDecrBuyer{redisConn: c, seats: s.seats}, err
}

type incrDecrBuyer struct {
	redisConn
	seats int
}

func (b incrDecrBuyer) buy(ctx context.Context, code string) (bool, int, error) {
	taken, err := b.Incr(ctx, takenKey).Result()
	if err != nil {
		return false, 0, err
	}
	if taken > int64(b.seats) {
		return false, 0, b.Decr(ctx, takenKey).Err()
	}
	if err := b.HSetNX(ctx, bookingsKey, code, record()).Err(); err != nil {
		return false, 0, err
	}
	retries, err := b.acknowledged(ctx)
	return true, retries, err
}
