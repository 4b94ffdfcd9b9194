package rehearse

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"sync"
	"time"
)

// wire asks one server over kept connections, of which each is its user's alone while it
// waits for an answer. The client of net/http hands a request from goroutine to goroutine
// four times; on a machine that the crowd shares with what it measures that was a quarter
// of all processor time, and each of the four waited for a processor, which is no time of
// the server's. Safe for concurrent use; close it.
type wire struct {
	dial  func(ctx context.Context, network, addr string) (net.Conn, error)
	host  string // as the requests name it
	addr  string
	tls   *tls.Config   // nil: plain
	slots chan struct{} // one a connection in use

	mu   sync.Mutex
	idle []*line // used last comes last
	shut bool
}

// line is a connection.
type line struct {
	net.Conn
	tcp  net.Conn // below it
	in   *bufio.Reader
	out  []byte // a request's bytes, kept for the next
	used time.Time
}

// lineIdle is shorter than a server keeps a connection, so that it never closes one that
// we are about to use.
const lineIdle = 15 * time.Second

var (
	errAnswerTooLong = errors.New("answer is longer than anything that is read here")
	errInterim       = errors.New("interim answer that was not asked for")
)

// newWire is of the server at base, with so many connections at most.
func newWire(base *url.URL, most int, dial func(ctx context.Context, network, addr string) (net.Conn, error)) *wire {
	w := &wire{dial: dial, host: base.Host, addr: base.Host, slots: make(chan struct{}, most)}
	port := "80"
	if base.Scheme == "https" {
		w.tls = &tls.Config{ServerName: base.Hostname(), MinVersion: tls.VersionTLS12}
		port = "443"
	}
	if base.Port() == "" {
		w.addr = net.JoinHostPort(base.Hostname(), port)
	}
	return w
}

// get asks once for something that may be asked for again; status is 0 when no answer came
// in time. A kept connection that the server has closed meanwhile is replaced by a new one,
// once. The body is in buf.
func (w *wire) get(ctx context.Context, target *url.URL, h http.Header, within time.Duration, buf *[]byte) reply {
	return w.do(ctx, question{http.MethodGet, target, h, nil}, within, buf)
}

// post sends once, and never again behind our back: whether it was heard, on a connection
// that broke, nobody knows. Else it is get.
func (w *wire) post(ctx context.Context, target *url.URL, h http.Header, body []byte, within time.Duration, buf *[]byte) reply {
	return w.do(ctx, question{http.MethodPost, target, h, body}, within, buf)
}

// question is a request; a GET has no body.
type question struct {
	method string
	target *url.URL
	header http.Header
	body   []byte
}

func (w *wire) do(ctx context.Context, q question, within time.Duration, buf *[]byte) reply {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	select {
	case w.slots <- struct{}{}:
	case <-ctx.Done():
		return reply{}
	}
	defer func() { <-w.slots }()
	for l := w.take(); l != nil; l = w.take() {
		if q.method != http.MethodGet && !quiet(l.tcp) {
			l.Close() // the server has left it while nobody used it
			continue
		}
		r, begun, err := w.ask(ctx, l, q, buf)
		if err == nil || begun || ctx.Err() != nil || q.method != http.MethodGet {
			return r
		}
		break
	}
	l, err := w.open(ctx)
	if err != nil {
		return reply{}
	}
	r, _, _ := w.ask(ctx, l, q, buf) // r says it
	return r
}

// ask sends a request and reads its answer, and keeps the connection or closes it; begun
// is whether some of the answer came.
func (w *wire) ask(ctx context.Context, l *line, q question, buf *[]byte) (_ reply, begun bool, err error) {
	keep := false
	// Whoever stops waiting breaks the connection, which nobody can use afterwards.
	stopped := context.AfterFunc(ctx, func() { l.Close() })
	defer func() {
		if !stopped() || !keep {
			l.Close()
			return
		}
		w.keep(l)
	}()
	l.out = q.append(l.out[:0], w.host)
	if _, err := l.Write(l.out); err != nil {
		return reply{}, false, err
	}
	if _, err := l.in.Peek(1); err != nil {
		return reply{}, false, err
	}
	resp, err := http.ReadResponse(l.in, nil) //nolint:bodyclose // it is read to its end, or the connection is closed: to close it would read on
	if err != nil {
		return reply{}, true, err
	}
	if resp.StatusCode < http.StatusOK { // nothing here asks for one; the answer would be the next one's
		return reply{}, true, errInterim
	}
	body, err := readAll(resp.Body, *buf)
	if err != nil {
		return reply{}, true, err
	}
	*buf, keep = body, !resp.Close && l.in.Buffered() == 0
	return reply{status: resp.StatusCode, header: resp.Header, body: body}, true, nil
}

// append adds the request as it is on the wire. Header values are ours, without line ends.
func (q question) append(b []byte, host string) []byte {
	b = append(append(append(b, q.method...), ' '), q.target.RequestURI()...)
	b = append(append(append(b, " HTTP/1.1\r\nHost: "...), host...), "\r\n"...)
	for name, values := range q.header {
		for _, v := range values {
			b = append(append(append(append(b, name...), ": "...), v...), "\r\n"...)
		}
	}
	if q.method != http.MethodGet {
		b = append(strconv.AppendInt(append(b, "Content-Length: "...), int64(len(q.body)), 10), "\r\n"...)
	}
	return append(append(b, "\r\n"...), q.body...)
}

// readAll reads to the end into the room of b.
func readAll(from io.Reader, b []byte) ([]byte, error) {
	b = b[:0]
	for {
		if len(b) == cap(b) {
			b = slices.Grow(b, 2048)
		}
		n, err := from.Read(b[len(b):cap(b)])
		b = b[:len(b)+n]
		switch {
		case errors.Is(err, io.EOF):
			return b, nil
		case err != nil:
			return nil, err
		case len(b) > 1<<20:
			return nil, errAnswerTooLong
		}
	}
}

func (w *wire) open(ctx context.Context) (*line, error) {
	conn, err := w.dial(ctx, "tcp", w.addr)
	if err != nil {
		return nil, err
	}
	tcp := conn
	if w.tls != nil {
		secure := tls.Client(conn, w.tls)
		if err := secure.HandshakeContext(ctx); err != nil {
			conn.Close()
			return nil, err
		}
		conn = secure
	}
	return &line{Conn: conn, tcp: tcp, in: bufio.NewReader(conn)}, nil
}

// take is the connection that was used last, unless it has been idle for too long; so
// have all others then.
func (w *wire) take() *line {
	w.mu.Lock()
	defer w.mu.Unlock()
	n := len(w.idle)
	if n == 0 {
		return nil
	}
	l := w.idle[n-1]
	if time.Since(l.used) > lineIdle {
		w.drop()
		return nil
	}
	w.idle = w.idle[:n-1]
	return l
}

func (w *wire) keep(l *line) {
	l.used = time.Now()
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.shut {
		l.Close()
		return
	}
	w.idle = append(w.idle, l)
}

// drop closes what is kept; the lock is held.
func (w *wire) drop() {
	for _, l := range w.idle {
		l.Close()
	}
	w.idle = nil
}

// close ends all connections but those in use, which end with their answers.
func (w *wire) close() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.shut = true
	w.drop()
}
