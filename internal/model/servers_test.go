package model_test

import (
	"context"
	"errors"
	"maps"
	"net"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/alicebob/miniredis/v2/server"
	"github.com/redis/go-redis/v9"

	"holdfast/internal/admission"
	"holdfast/internal/redisproc"
	"holdfast/internal/testenv"
)

// servers is the Redis of one sequence after the other.
type servers interface {
	client() *redis.Client
	// acks is admission.Options.Acks.
	acks() int
	// reset empties everything and mends what is broken.
	reset(ctx context.Context) error
	// cut takes the replicas away: nothing is acknowledged any more.
	cut(ctx context.Context) error
	// heal brings them back; what was written meanwhile stays.
	heal(ctx context.Context) error
	// failover makes a replica the primary; what was written since it was cut off
	// is gone.
	failover(ctx context.Context) error
	// full has every write refused, or not any more, as a server without memory does.
	full(ctx context.Context, on bool) error
	// empty loses everything, replicas included.
	empty(ctx context.Context) error

	// What a reader sees; a missing key is empty.
	text(ctx context.Context, key string) (string, error)
	hash(ctx context.Context, key string) (map[string]string, error)
	scores(ctx context.Context, key string) (map[string]float64, error)
	forget(ctx context.Context, keys ...string) error
}

// line stands in the client's way to the server.
type line struct {
	// addr is the primary's, wherever the client thinks it is; "" leaves it.
	addr atomic.Value
	// waits, if not nil, answers WAIT in the server's place.
	waits func(wanted int64) int64
	// swaps are digests and sources of scripts and what is sent instead.
	swaps map[string]string
}

func (l *line) DialHook(next redis.DialHook) redis.DialHook { return next }

// dial goes to the primary. It is the options' dialer and no hook, because the
// gate makes clients of its own with them.
func (l *line) dial(next redis.DialHook) redis.DialHook {
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		if a, _ := l.addr.Load().(string); a != "" {
			addr = a
		}
		return next(ctx, network, addr)
	}
}

func (l *line) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if l.answered(cmd) {
			return nil
		}
		l.swap(cmd)
		return next(ctx, cmd)
	}
}

func (l *line) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		sent := make([]redis.Cmder, 0, len(cmds))
		for _, cmd := range cmds {
			if l.answered(cmd) {
				continue
			}
			l.swap(cmd)
			sent = append(sent, cmd)
		}
		if len(sent) == 0 {
			return nil
		}
		return next(ctx, sent)
	}
}

func (l *line) answered(cmd redis.Cmder) bool {
	if l.waits == nil || !strings.EqualFold(cmd.Name(), "wait") {
		return false
	}
	var wanted int64
	switch n := cmd.Args()[1].(type) {
	case int:
		wanted = int64(n)
	case int64:
		wanted = n
	}
	switch cmd := cmd.(type) {
	case *redis.IntCmd:
		cmd.SetVal(l.waits(wanted))
	case *redis.Cmd:
		cmd.SetVal(l.waits(wanted))
	default:
		return false
	}
	return true
}

func (l *line) swap(cmd redis.Cmder) {
	if name := strings.ToLower(cmd.Name()); len(l.swaps) == 0 || (name != "eval" && name != "evalsha") {
		return
	}
	if text, ok := cmd.Args()[1].(string); ok {
		if other, ok := l.swaps[text]; ok {
			cmd.Args()[1] = other
		}
	}
}

// poolSize is how many connections a client has; few are at work at a time.
const poolSize = 4

func newClient(t testing.TB, addr string, l *line) *redis.Client {
	t.Helper()
	rdb := admission.NewClient(admission.ClientConfig{Addr: addr, Pool: poolSize})
	rdb.Options().Dialer = l.dial(rdb.Options().Dialer)
	rdb.AddHook(l)
	t.Cleanup(func() { _ = rdb.Close() })
	return rdb
}

// inProcess is a Redis inside the test with a replica that is simulated: while
// it is there it has everything, cut off it keeps what it had.
type inProcess struct {
	mini    *miniredis.Miniredis
	rdb     *redis.Client
	away    atomic.Bool
	brim    atomic.Bool    // it refuses writes
	lies    atomic.Bool    // it says that the replica has what it has not
	replica map[string]any // what it had when it was cut off
}

// newInProcess runs scripts with the swaps of line.
func newInProcess(t testing.TB, swaps map[string]string) *inProcess {
	t.Helper()
	s := &inProcess{mini: miniredis.NewMiniRedis()}
	if err := s.mini.Start(); err != nil {
		t.Fatalf("start in-process redis: %v", err)
	}
	t.Cleanup(s.mini.Close)
	writes := map[string]bool{"SET": true, "HSET": true, "INCR": true, "ZADD": true, "DECR": true, "HDEL": true, "ZREM": true, "DEL": true}
	s.mini.Server().SetPreHook(func(c *server.Peer, cmd string, _ ...string) bool {
		refused := s.brim.Load() && writes[strings.ToUpper(cmd)]
		if refused {
			c.WriteError("OOM command not allowed when used memory > 'maxmemory'.")
		}
		return refused
	})
	s.rdb = newClient(t, s.mini.Addr(), &line{swaps: swaps, waits: func(wanted int64) int64 {
		if s.away.Load() && !s.lies.Load() {
			return 0
		}
		return wanted
	}})
	return s
}

func (s *inProcess) client() *redis.Client { return s.rdb }
func (s *inProcess) acks() int             { return 1 }

func (s *inProcess) reset(context.Context) error {
	s.away.Store(false)
	s.mini.FlushAll()
	return nil
}

func (s *inProcess) cut(context.Context) error {
	s.away.Store(true)
	s.replica = map[string]any{}
	for _, key := range s.mini.Keys() {
		switch s.mini.Type(key) {
		case "string":
			s.replica[key], _ = s.mini.Get(key)
		case "hash":
			s.replica[key] = s.fields(key)
		case "zset":
			scores, _ := s.mini.SortedSet(key) // the server's own map
			s.replica[key] = maps.Clone(scores)
		case "set":
			s.replica[key], _ = s.mini.Members(key)
		}
	}
	return nil
}

func (s *inProcess) heal(context.Context) error {
	s.away.Store(false)
	return nil
}

func (s *inProcess) failover(context.Context) error {
	if !s.away.Swap(false) {
		return nil // the replica has everything
	}
	s.mini.FlushAll()
	for key, value := range s.replica {
		switch v := value.(type) {
		case string:
			if err := s.mini.Set(key, v); err != nil {
				return err
			}
		case map[string]string:
			for field, text := range v {
				s.mini.HSet(key, field, text)
			}
		case map[string]float64:
			for member, score := range v {
				if _, err := s.mini.ZAdd(key, score, member); err != nil {
					return err
				}
			}
		case []string:
			if _, err := s.mini.SAdd(key, v...); err != nil {
				return err
			}
		}
	}
	return nil
}

func (s *inProcess) full(_ context.Context, on bool) error {
	s.brim.Store(on)
	return nil
}

func (s *inProcess) empty(context.Context) error {
	s.mini.FlushAll()
	return nil
}

func (s *inProcess) text(_ context.Context, key string) (string, error) {
	v, _ := s.mini.Get(key) // the only error is that there is none
	return v, nil
}

func (s *inProcess) hash(_ context.Context, key string) (map[string]string, error) {
	return s.fields(key), nil
}

func (s *inProcess) fields(key string) map[string]string {
	fields, _ := s.mini.HKeys(key)
	out := make(map[string]string, len(fields))
	for _, f := range fields {
		out[f] = s.mini.HGet(key, f)
	}
	return out
}

func (s *inProcess) scores(_ context.Context, key string) (map[string]float64, error) {
	v, _ := s.mini.SortedSet(key)
	return v, nil
}

func (s *inProcess) forget(_ context.Context, keys ...string) error {
	for _, k := range keys {
		s.mini.Del(k)
	}
	return nil
}

// replicated is a real primary with two replicas.
type replicated struct {
	t       testing.TB
	line    *line
	rdb     *redis.Client
	primary *redisproc.Server
	others  []*redisproc.Server
	away    bool
}

func newReplicated(t testing.TB) *replicated {
	t.Helper()
	pair := testenv.Replicated(t, 2)
	s := &replicated{t: t, line: &line{}, primary: pair.Primary, others: pair.Replicas}
	s.line.addr.Store(pair.Primary.Addr())
	s.rdb = newClient(t, pair.Primary.Addr(), s.line)
	return s
}

func (s *replicated) client() *redis.Client { return s.rdb }
func (s *replicated) acks() int             { return admission.AcksAuto }

func (s *replicated) reset(ctx context.Context) error {
	if err := s.heal(ctx); err != nil {
		return err
	}
	return s.empty(ctx)
}

func (s *replicated) cut(ctx context.Context) error {
	s.away = true
	for _, r := range s.others {
		if err := r.Promote(ctx); err != nil {
			return err
		}
	}
	return nil
}

func (s *replicated) heal(ctx context.Context) error {
	if !s.away {
		return nil
	}
	s.away = false
	for _, r := range s.others {
		if err := r.Follow(ctx, s.primary.Addr()); err != nil {
			return err
		}
	}
	return nil
}

func (s *replicated) failover(ctx context.Context) error {
	s.primary.Kill()
	next := s.others[0]
	if err := next.Promote(ctx); err != nil {
		return err
	}
	for _, r := range s.others[1:] {
		if err := r.Follow(ctx, next.Addr()); err != nil {
			return err
		}
	}
	fresh, err := redisproc.Start(ctx, redisproc.Options{Dir: s.t.TempDir(), ReplicaOf: next.Addr()})
	if err != nil {
		return err
	}
	s.t.Cleanup(fresh.Stop)
	s.primary, s.others, s.away = next, append(slices.Clone(s.others[1:]), fresh), false
	s.line.addr.Store(next.Addr())
	return s.awaitAnswers(ctx)
}

// awaitAnswers returns when no connection of the pool leads to the old primary.
func (s *replicated) awaitAnswers(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	for {
		var errs []error
		conns := make([]*redis.Conn, poolSize) // all of them at once
		for i := range conns {
			conns[i] = s.rdb.Conn()
			errs = append(errs, conns[i].Ping(ctx).Err())
		}
		for _, c := range conns {
			_ = c.Close() // a broken one leaves the pool
		}
		if err := errors.Join(errs...); err == nil || ctx.Err() != nil {
			return err
		}
	}
}

func (s *replicated) full(ctx context.Context, on bool) error {
	limit := "0" // none
	if on {
		limit = "1"
	}
	return s.rdb.ConfigSet(ctx, "maxmemory", limit).Err()
}

func (s *replicated) empty(ctx context.Context) error { return s.rdb.FlushAll(ctx).Err() }

func (s *replicated) text(ctx context.Context, key string) (string, error) {
	v, err := s.rdb.Get(ctx, key).Result()
	if errors.Is(err, redis.Nil) {
		return "", nil
	}
	return v, err
}

func (s *replicated) hash(ctx context.Context, key string) (map[string]string, error) {
	return s.rdb.HGetAll(ctx, key).Result()
}

func (s *replicated) scores(ctx context.Context, key string) (map[string]float64, error) {
	all, err := s.rdb.ZRangeWithScores(ctx, key, 0, -1).Result()
	out := make(map[string]float64, len(all))
	for _, z := range all {
		member, _ := z.Member.(string)
		out[member] = z.Score
	}
	return out, err
}

func (s *replicated) forget(ctx context.Context, keys ...string) error {
	return s.rdb.Del(ctx, keys...).Err()
}
