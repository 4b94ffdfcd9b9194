package admission

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
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

// NewClient makes the client a Gate needs. Its own retries are off, because it
// would send a whole pipeline again on the same broken connection: the Gate
// repeats scripts itself, each time on another one. Its read time-out exceeds
// script, WAIT and the server's slack in ending a WAIT; a context's deadline
// bounds it further.
func NewClient(c ClientConfig) *redis.Client {
	return redis.NewClient(&redis.Options{
		Addr:                     c.Addr,
		Username:                 c.Username,
		Password:                 c.Password,
		TLSConfig:                c.TLS,
		Protocol:                 2,
		PoolSize:                 c.Pool,
		MinIdleConns:             min(8, c.Pool),
		PipelinePoolSize:         -1, // one pool, so that its size means what it says
		PoolTimeout:              300 * time.Millisecond,
		DialTimeout:              time.Second,
		DialerRetries:            1,
		ReadTimeout:              time.Second,
		WriteTimeout:             500 * time.Millisecond,
		MaxRetries:               -1,
		ContextTimeoutEnabled:    true,
		ConnMaxIdleTime:          5 * time.Minute,
		ConnMaxLifetime:          10 * time.Minute,
		DisableIdentity:          true,
		MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
	})
}

// maxLag is how far a replica may lag, in seconds, and still be one of those
// that must acknowledge.
const maxLag = 10

func (g *Gate) countReplicas(ctx context.Context) (int, error) {
	ctx, cancel := bounded(ctx)
	defer cancel()
	info, err := g.rdb.Info(ctx, "replication").Result()
	if err != nil {
		return 0, fmt.Errorf("read replication state: %w", err)
	}
	if !strings.Contains(info, "role:master") {
		return 0, errors.New("read replication state: this server is not the primary")
	}
	n := 0
	for line := range strings.SplitSeq(info, "\n") {
		// slave0:ip=127.0.0.1,port=6380,state=online,offset=42,lag=0
		if !strings.HasPrefix(line, "slave") || !strings.Contains(line, "state=online") {
			continue
		}
		if _, lag, ok := strings.Cut(strings.TrimSpace(line), "lag="); ok {
			if s, err := strconv.Atoi(lag); err == nil && s < maxLag {
				n++
			}
		}
	}
	return n, nil
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
