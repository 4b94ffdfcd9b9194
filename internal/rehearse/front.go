package rehearse

import (
	"context"
	"io"
	"net"
	"sync"
	"time"
)

// front gives a server that is replaced one address, as a managed Redis has. A connection
// goes to whoever stood behind it when it was made, and ends when another takes the place;
// one to nobody ends at once. Safe for concurrent use.
type front struct {
	ln   net.Listener
	work sync.WaitGroup

	mu    sync.Mutex
	to    string                // "" is nobody
	conns map[net.Conn]struct{} // both ends of each
}

// newFront is closed by its caller.
func newFront(to string) (*front, error) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	f := &front{ln: ln, to: to, conns: map[net.Conn]struct{}{}}
	f.work.Go(func() {
		for {
			client, err := ln.Accept()
			if err != nil {
				return // closed
			}
			f.work.Go(func() { f.serve(client) })
		}
	})
	return f, nil
}

func (f *front) addr() string { return f.ln.Addr().String() }

// lead has another stand behind the address.
func (f *front) lead(to string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.to = to
	for c := range f.conns {
		c.Close()
	}
}

// close returns when every connection is gone.
func (f *front) close() {
	f.ln.Close()
	f.lead("")
	f.work.Wait()
}

func (f *front) serve(client net.Conn) {
	defer client.Close()
	f.mu.Lock()
	to := f.to
	f.mu.Unlock()
	if to == "" {
		return
	}
	dialer := net.Dialer{Timeout: time.Second}
	server, err := dialer.DialContext(context.Background(), "tcp", to) // nobody's call: the time-out ends it
	if err != nil {
		return // the client sees what it would see of a server that is gone
	}
	defer server.Close()
	f.mu.Lock()
	if f.to != to {
		f.mu.Unlock()
		return
	}
	f.conns[client], f.conns[server] = struct{}{}, struct{}{}
	f.mu.Unlock()

	var requests sync.WaitGroup
	requests.Go(func() {
		defer server.Close()
		_, _ = io.Copy(server, client) // either end may go at any time
	})
	_, _ = io.Copy(client, server)
	client.Close()
	requests.Wait()
	f.mu.Lock()
	delete(f.conns, client)
	delete(f.conns, server)
	f.mu.Unlock()
}
