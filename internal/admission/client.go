package admission

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/logging"
	"github.com/redis/go-redis/v9/maintnotifications"
)

// ClientConfig is where Redis is and how to get in.
type ClientConfig struct {
	Addr     string // host:port of the primary
	Username string
	Password string
	TLS      *tls.Config // nil: plain TCP
	Pool     int         // connections at most
}

const (
	dialTimeout = time.Second
	readTimeout = time.Second // for a whole pipeline: its scripts, its WAIT and the server's slack in ending it
)

// NewClient makes the client a Gate needs; others may share it. Its own retries
// are off, because it would send a whole pipeline again and again within one
// call: the Gate repeats scripts itself, each time on another connection. A
// context's deadline bounds every call further. Connections that the server
// closed, or that lead to a server found not to be the primary, are not used
// again. It dials when a call needs it and never ahead: under TLS 1.3 a
// connection that was not yet used has session tickets waiting in its socket,
// which the health check takes for its end.
func NewClient(c ClientConfig) *redis.Client {
	members := new(cohorts)
	return redis.NewClient(&redis.Options{
		Addr:     c.Addr,
		Username: c.Username,
		Password: c.Password,
		Dialer: func(ctx context.Context, network, addr string) (net.Conn, error) {
			return c.dial(ctx, members, network, addr)
		},
		Limiter:                  members,
		Protocol:                 2, // without pushes: what is read ahead is the end of the connection
		PoolSize:                 c.Pool,
		PipelinePoolSize:         -1, // one pool, so that its size means what it says
		PoolTimeout:              300 * time.Millisecond,
		DialTimeout:              dialTimeout,
		DialerRetries:            1,
		ReadTimeout:              readTimeout,
		WriteTimeout:             500 * time.Millisecond,
		MaxRetries:               -1,
		ContextTimeoutEnabled:    true,
		ConnMaxIdleTime:          5 * time.Minute,
		ConnMaxLifetime:          10 * time.Minute,
		ConnMaxLifetimeJitter:    2 * time.Minute, // a pool filled in one second does not end in one
		DisableIdentity:          true,
		MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
	})
}

// Quiet has every Redis client of this process log nothing by itself: it writes a line
// for each dial that fails, past the process's log, and the call's error says the same.
// That is one setting for the whole process, so it is made where a process starts.
// Safe to repeat and for concurrent use.
func Quiet() { logging.Disable() }

// maxLag is how far a replica may lag, in seconds, and still be one of those
// that must acknowledge.
const maxLag = 10

// sight is what a new connection finds at the primary's address.
type sight struct {
	runID    string
	replicas int
}

// look asks over a connection of its own, so that it meets the primary of now:
// pooled connections may lead to one that was replaced. An error when the server
// there is not a primary.
func (g *Gate) look(ctx context.Context) (sight, error) {
	ctx, cancel := bounded(ctx)
	defer cancel()
	o := *g.rdb.Options()
	o.PoolSize, o.MaxRetries = 2, -1 // a pool of one dials again in the background
	rdb := redis.NewClient(&o)
	defer func() { _ = rdb.Close() }()
	pipe := rdb.Pipeline()
	server, replication := pipe.Info(ctx, "server"), pipe.Info(ctx, "replication")
	if _, err := pipe.Exec(ctx); err != nil {
		return sight{}, fmt.Errorf("read replication state: %w", err)
	}
	if !strings.Contains(replication.Val(), "role:master") {
		return sight{}, errors.New("read replication state: this server is not the primary")
	}
	var s sight
	for line := range strings.SplitSeq(server.Val(), "\n") {
		if id, ok := strings.CutPrefix(strings.TrimSpace(line), "run_id:"); ok {
			s.runID = id
		}
	}
	for line := range strings.SplitSeq(replication.Val(), "\n") {
		// slave0:ip=127.0.0.1,port=6380,state=online,offset=42,lag=0 and, on Valkey, ,type=replica
		if !strings.HasPrefix(line, "slave") || !strings.Contains(line, "state=online") {
			continue
		}
		if _, lag, ok := strings.Cut(strings.TrimSpace(line), ",lag="); ok {
			lag, _, _ = strings.Cut(lag, ",")
			if n, err := strconv.Atoi(lag); err == nil && n < maxLag {
				s.replicas++
			}
		}
	}
	return s, nil
}

// observe looks once: it counts the replicas, and when the primary is another
// than last time it retires the connections made before and tells the caller's
// OnPrimaryChanged.
func (g *Gate) observe(ctx context.Context) error {
	s, err := g.look(ctx)
	if err != nil {
		return err
	}
	g.unseen.Store(false)
	changed := false
	before := g.runID.Load()
	if s.runID != "" {
		before = g.runID.Swap(&s.runID)
		changed = before != nil && *before != s.runID
	}
	if changed {
		// First, so that no connection to the old primary is believed with the new
		// one's number of replicas, which may be smaller. It is said in between, where
		// a test looks.
		g.cohorts.retire()
		g.log.WarnContext(ctx, "the primary changed; connections made before are not used again", "run_id", s.runID, "before", *before)
	}
	g.healthy.Store(int64(s.replicas))
	if changed {
		g.onPrimaryChanged()
	}
	return nil
}

// ErrEviction says that this Redis would evict keys: it must never hold seats.
var ErrEviction = errors.New("redis may evict keys: set maxmemory-policy to noeviction")

// CheckEviction reads the eviction policy from INFO memory, since managed Redis
// forbids CONFIG. ErrEviction when it is not noeviction, which is fatal at start;
// any other error means unknown, which is "not ready".
func (g *Gate) CheckEviction(ctx context.Context) error {
	ctx, cancel := bounded(ctx)
	defer cancel()
	info, err := g.rdb.Info(ctx, "memory").Result()
	if err != nil {
		return fmt.Errorf("read eviction policy: %w", err)
	}
	for line := range strings.SplitSeq(info, "\n") {
		if policy, ok := strings.CutPrefix(strings.TrimSpace(line), "maxmemory_policy:"); ok {
			if policy != "noeviction" {
				return fmt.Errorf("maxmemory-policy is %s: %w", policy, ErrEviction)
			}
			return nil
		}
	}
	return errors.New("INFO memory does not tell the eviction policy")
}
