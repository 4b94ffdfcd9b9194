package lease

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"
)

// ErrLost says that the term is over: another process holds the key, or nobody
// does.
var ErrLost = errors.New("term is lost")

// acquire.lua: take the key for a token, if it is free or already the token's.
// KEYS[1] the lock        ARGV[1] token   ARGV[2] length in ms
// Clock: Redis's, for the expiry. Returns 1 taken, 0 another's.
var acquire = redis.NewScript(`
if redis.call('SET', KEYS[1], ARGV[1], 'NX', 'PX', ARGV[2]) then return 1 end
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
return redis.call('PEXPIRE', KEYS[1], ARGV[2])
`)

// renew.lua: let the key live for its whole length again, if it is the token's.
// KEYS[1] the lock        ARGV[1] token   ARGV[2] length in ms
// Clock: Redis's, for the expiry. Returns 1 renewed, 0 not the token's.
var renew = redis.NewScript(`
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
return redis.call('PEXPIRE', KEYS[1], ARGV[2])
`)

// release.lua: delete the key, if it is the token's.
// KEYS[1] the lock        ARGV[1] token
// Clock: none. Returns 1 deleted, 0 not the token's.
var release = redis.NewScript(`
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
return redis.call('DEL', KEYS[1])
`)

// Term is the time in which its owner may act as elected. The zero Term was
// never valid.
type Term struct {
	token string
	until time.Time
}

// newTerm counts trust from when the attempt began.
func newTerm(token string, began time.Time, length time.Duration) Term {
	return Term{token: token, until: began.Add(length - margin(length))}
}

// margin is the part of the length in which the key still stands and its owner
// no longer trusts it.
func margin(length time.Duration) time.Duration { return length / 5 }

// Valid tells whether the term is still trusted at that time. The end itself is
// outside.
func (t Term) Valid(now time.Time) bool { return now.Before(t.until) }

// Left is how long the term is still trusted; not positive when it is over.
func (t Term) Left(now time.Time) time.Duration { return t.until.Sub(now) }

// Lease is one lock of the fleet. Safe for concurrent use.
type Lease struct {
	rdb    *redis.Client
	key    string
	length time.Duration
	now    func() time.Time
}

// New makes the lease of a key. The length is how long the fleet may be without
// an elected process after one has died; at least a few round trips to Redis.
func New(rdb *redis.Client, key string, length time.Duration, now func() time.Time) *Lease {
	return &Lease{rdb: rdb, key: key, length: length, now: now}
}

// Acquire tries once to be elected. False without an error means that another
// process is. After an error the key may have been taken with a token that
// nobody knows; it then expires by itself.
func (l *Lease) Acquire(ctx context.Context) (Term, bool, error) {
	// One token for all of the client's own retries: a retry whose first reply
	// was lost finds its own key.
	token := rand.Text()
	began := l.now()
	n, err := acquire.Run(ctx, l.rdb, []string{l.key}, token, l.length.Milliseconds()).Int()
	switch {
	case err != nil:
		return Term{}, false, fmt.Errorf("acquire lease %s: %w", l.key, err)
	case n == 0:
		return Term{}, false, nil
	}
	return newTerm(token, began, l.length), true, nil
}

// Renew prolongs the term. ErrLost means that it is over, and nothing was
// changed. After any other error t is what it was: still trusted while it is
// valid, and Renew may be repeated.
func (l *Lease) Renew(ctx context.Context, t Term) (Term, error) {
	began := l.now()
	n, err := renew.Run(ctx, l.rdb, []string{l.key}, t.token, l.length.Milliseconds()).Int()
	switch {
	case err != nil:
		return t, fmt.Errorf("renew lease %s: %w", l.key, err)
	case n == 0:
		return Term{}, fmt.Errorf("renew lease %s: %w", l.key, ErrLost)
	}
	return newTerm(t.token, began, l.length), nil
}

// Release ends the term, so that another process can be elected at once. A term
// that is already lost is no error. Safe to repeat.
func (l *Lease) Release(ctx context.Context, t Term) error {
	if err := release.Run(ctx, l.rdb, []string{l.key}, t.token).Err(); err != nil {
		return fmt.Errorf("release lease %s: %w", l.key, err)
	}
	return nil
}
