package testenv

import (
	"context"
	"io"
	"net"
	"sync"
	"testing"
	"time"
)

// FaultyProxy is a TCP proxy whose network can be made to fail. Its methods act
// at once on open connections and on later ones; the last one called counts.
// Safe for concurrent use.
type FaultyProxy struct {
	listener net.Listener
	work     sync.WaitGroup

	mu       sync.Mutex
	upstream string
	fault    fault
	delay    time.Duration
	changed  chan struct{} // closed at the next change of fault; wakes a delayed reply
	conns    map[*link]struct{}
	closed   bool
}

type fault int

const (
	faultNone fault = iota
	faultDelay
	faultCut
	faultDropReplies
)

// link is one client's connection and its counterpart upstream.
type link struct {
	client, server net.Conn
	// deaf is set once a reply was dropped: the client would take any later
	// reply for an earlier one, so this connection never gets another.
	deaf bool
}

func (l *link) close() {
	l.client.Close()
	l.server.Close()
}

// Proxy starts a proxy in front of upstream, forwarding until told otherwise.
// It ends with the test.
func Proxy(t testing.TB, upstream string) *FaultyProxy {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatalf("listen for the proxy: %v", err)
	}
	p := &FaultyProxy{
		upstream: upstream, listener: l,
		changed: make(chan struct{}), conns: map[*link]struct{}{},
	}
	ctx := t.Context()
	p.work.Go(func() { p.accept(ctx) })
	t.Cleanup(p.close)
	return p
}

// Addr is where clients connect.
func (p *FaultyProxy) Addr() string { return p.listener.Addr().String() }

// Forward passes everything on.
func (p *FaultyProxy) Forward() { p.set(faultNone, 0) }

// Delay passes requests on at once and holds every reply back for d.
func (p *FaultyProxy) Delay(d time.Duration) { p.set(faultDelay, d) }

// Cut closes all connections and every new one.
func (p *FaultyProxy) Cut() { p.set(faultCut, 0) }

// DropReplies passes requests on and throws the replies away: the server has
// done it and the client never hears. A connection that lost a reply stays deaf
// after Forward; clients must open another.
func (p *FaultyProxy) DropReplies() { p.set(faultDropReplies, 0) }

// Retarget leads new connections to another upstream. Open ones stay where they
// are, as after a change in DNS; Reset ends them.
func (p *FaultyProxy) Retarget(upstream string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.upstream = upstream
}

// Reset closes the connections that are open. Later ones are served as before.
func (p *FaultyProxy) Reset() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for l := range p.conns {
		l.close()
	}
}

func (p *FaultyProxy) set(f fault, delay time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.fault, p.delay = f, delay
	close(p.changed)
	p.changed = make(chan struct{})
	if f == faultCut {
		for l := range p.conns {
			l.close()
		}
	}
}

func (p *FaultyProxy) close() {
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()
	p.listener.Close()
	p.Cut()
	p.work.Wait()
}

func (p *FaultyProxy) accept(ctx context.Context) {
	for {
		client, err := p.listener.Accept()
		if err != nil {
			return // closed with the test
		}
		p.work.Go(func() { p.serve(ctx, client) })
	}
}

func (p *FaultyProxy) serve(ctx context.Context, client net.Conn) {
	defer client.Close()
	p.mu.Lock()
	upstream := p.upstream
	p.mu.Unlock()
	d := net.Dialer{Timeout: time.Second}
	server, err := d.DialContext(ctx, "tcp", upstream)
	if err != nil {
		return // the client sees what it would see of a server that is gone
	}
	defer server.Close()
	l := &link{client: client, server: server}
	if !p.add(l) {
		return
	}
	defer p.remove(l)

	var requests sync.WaitGroup
	requests.Go(func() {
		defer l.close()
		_, _ = io.Copy(server, client) // either end may go at any time
	})
	p.replies(l)
	l.close()
	requests.Wait()
}

// add registers a connection unless the network is cut.
func (p *FaultyProxy) add(l *link) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed || p.fault == faultCut {
		return false
	}
	p.conns[l] = struct{}{}
	return true
}

func (p *FaultyProxy) remove(l *link) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.conns, l)
}

// replies carries what the server says, under the fault of the moment it was
// said.
func (p *FaultyProxy) replies(l *link) {
	buf := make([]byte, 32<<10)
	for {
		n, err := l.server.Read(buf)
		if n > 0 && p.pass(l) {
			if _, err := l.client.Write(buf[:n]); err != nil {
				return
			}
		}
		if err != nil {
			return
		}
	}
}

// pass waits if replies are delayed and tells whether this one goes on.
func (p *FaultyProxy) pass(l *link) bool {
	p.mu.Lock()
	if p.fault == faultDropReplies {
		l.deaf = true
	}
	fault, delay, changed := p.fault, p.delay, p.changed
	deaf := l.deaf
	p.mu.Unlock()
	if deaf {
		return false
	}
	if fault == faultDelay {
		timer := time.NewTimer(delay)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-changed:
		}
	}
	return true
}
