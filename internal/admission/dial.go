package admission

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/redis/go-redis/v9"
)

// cohorts tells the connections of a client that were made before its primary
// was replaced from those made since. A refusal only reads, so a server that was
// demoted or cut off would go on refusing from what it had, and its connections
// never break.
//
// The same ends connections whose other end is gone without a word, behind a firewall
// that has forgotten them: each would hold up whoever takes it until the read times out,
// one after the other. Two time-outs with no answer between them, and all are made anew.
//
// It travels as the client's redis.Limiter, which hears the result of every
// command whoever sent it, and where a Gate on the same client finds it.
type cohorts struct {
	current  atomic.Int64
	silences atomic.Int64 // since the last answer
	retired  atomic.Int64 // for silence, Unix ns
}

const (
	silencesMost = 2
	// retireEvery bounds how often a server that is only slow is dialled anew.
	retireEvery = 5 * time.Second
)

// retire has every connection made so far closed instead of handed out again.
// Calls in flight on them go on. Safe to repeat.
func (c *cohorts) retire() { c.current.Add(1) }

// Allow never refuses a command.
func (c *cohorts) Allow() error { return nil }

// ReportResult hears the result of a command, or of the first of a pipeline.
func (c *cohorts) ReportResult(err error) {
	switch {
	case err == nil:
		c.silences.Store(0)
	case notPrimary(err):
		c.retire()
	case timedOut(err) && c.silences.Add(1) >= silencesMost:
		now, last := time.Now().UnixNano(), c.retired.Load()
		if now-last >= int64(retireEvery) && c.retired.CompareAndSwap(last, now) {
			c.silences.Store(0)
			c.retire()
		}
	}
}

// timedOut tells a connection that was there and did not answer in time.
func timedOut(err error) bool {
	var op *net.OpError
	return errors.Is(err, os.ErrDeadlineExceeded) && errors.As(err, &op) && op.Op == "read"
}

// notPrimary tells whether a reply says that its server is not the primary, or
// was demoted while the call waited there.
func notPrimary(err error) bool {
	var redisErr redis.Error
	if !errors.As(err, &redisErr) {
		return false
	}
	text := redisErr.Error()
	return strings.HasPrefix(text, "READONLY ") || strings.HasPrefix(text, "MASTERDOWN ") ||
		strings.HasPrefix(text, "UNBLOCKED ") || strings.HasPrefix(text, "ERR WAIT cannot be used with ")
}

// conn is a connection whose end is noticed before it is handed out: go-redis
// peeks into the socket of a syscall.Conn, which *tls.Conn is not.
type conn struct {
	net.Conn
	socket  syscall.Conn
	cohort  int64
	cohorts *cohorts
}

var errRetired = errors.New("this connection was made before the primary was replaced, or fell silent")

// SyscallConn gives the health check the socket under TLS, and an error when the
// connection is retired.
func (c *conn) SyscallConn() (syscall.RawConn, error) {
	if c.cohort != c.cohorts.current.Load() {
		return nil, errRetired
	}
	return c.socket.SyscallConn()
}

// dial makes one connection of the client, TLS handshake included, within
// dialTimeout. Certificates are checked against the host's name.
func (c ClientConfig) dial(ctx context.Context, members *cohorts, network, addr string) (net.Conn, error) {
	cohort := members.current.Load() // before the name is resolved: it may be the old primary's
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	var d net.Dialer
	raw, err := d.DialContext(ctx, network, addr)
	if err != nil {
		return nil, err
	}
	socket, ok := raw.(syscall.Conn)
	if !ok {
		return nil, errors.Join(fmt.Errorf("dial %s: a %T has no socket", addr, raw), raw.Close())
	}
	made := &conn{Conn: raw, socket: socket, cohort: cohort, cohorts: members}
	if c.TLS == nil {
		return made, nil
	}
	settings := c.TLS.Clone()
	settings.MinVersion = max(settings.MinVersion, tls.VersionTLS12)
	if settings.ServerName == "" {
		host, _, err := net.SplitHostPort(addr)
		if err != nil {
			return nil, errors.Join(err, raw.Close())
		}
		settings.ServerName = host
	}
	secure := tls.Client(raw, settings)
	if err := secure.HandshakeContext(ctx); err != nil {
		if ctx.Err() != nil {
			err = os.ErrDeadlineExceeded // the dial's time is over, which may not be the caller's
		}
		_ = raw.Close() // the handshake's error says why
		return nil, &net.OpError{Op: "dial", Net: network, Addr: raw.RemoteAddr(), Err: fmt.Errorf("TLS handshake: %w", err)}
	}
	made.Conn = secure
	return made, nil
}
