package paygate

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"strings"
	"sync/atomic"
	"time"

	"holdfast/internal/booking"
)

// maxBody is far more than any answer of the gateway; a longer one is no answer.
const maxBody = 64 << 10

// NewHTTPClient is a client fit for the gateway: it keeps as many connections
// as calls may be in flight, since each handshake costs the payer time, and it
// speaks TLS 1.2 or later. It has no time-out of its own: every call has one.
func NewHTTPClient(inFlight int) *http.Client {
	t := http.DefaultTransport.(*http.Transport).Clone()
	t.MaxIdleConns = inFlight
	t.MaxIdleConnsPerHost = inFlight
	t.IdleConnTimeout = 30 * time.Second
	// A dial outlives the call that began it; without this, those to a silent
	// address would pile up.
	t.DialContext = (&net.Dialer{Timeout: 5 * time.Second}).DialContext
	t.TLSHandshakeTimeout = 5 * time.Second
	t.TLSClientConfig = &tls.Config{MinVersion: tls.VersionTLS12}
	// Over HTTP/2 every call shares one connection: one that has died in silence
	// must be found out, or all calls would hang on it for minutes.
	t.HTTP2 = &http.HTTP2Config{SendPingTimeout: 3 * time.Second, PingTimeout: 3 * time.Second}
	return &http.Client{Transport: t}
}

// wire is one place to post JSON to.
type wire struct {
	base string
	hc   *http.Client
}

func newWire(baseURL string, hc *http.Client) (wire, error) {
	u, err := url.Parse(baseURL)
	switch {
	case hc == nil:
		return wire{}, errors.New("payment gateway: no HTTP client")
	case err != nil || (u.Scheme != "https" && u.Scheme != "http") || u.Host == "" || u.User != nil || u.RawQuery != "" || u.Fragment != "":
		return wire{}, errors.New("payment gateway: base URL must be http(s)://host/path, without user, query or fragment")
	}
	own := *hc
	own.Jar = nil
	// A redirect would carry the token elsewhere; a 3xx is no answer.
	own.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	return wire{base: strings.TrimRight(baseURL, "/"), hc: &own}, nil
}

// post sends one request and reads the whole answer: its status, whatever it is,
// and its body. An error wraps booking.ErrNotSent when no connection was had, so
// that nothing of the request left, and booking.ErrInDoubt otherwise.
func (w wire) post(ctx context.Context, path string, header http.Header, in any) (int, []byte, error) {
	payload, err := json.Marshal(in)
	if err != nil {
		return 0, nil, fmt.Errorf("%w: %w", booking.ErrNotSent, err)
	}
	if err := ctx.Err(); err != nil {
		return 0, nil, fmt.Errorf("%w: %w", booking.ErrNotSent, err)
	}
	// Both must be seen to say "not sent": a transport that reports nothing
	// proves nothing.
	var asked, connected atomic.Bool
	ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{
		GetConn: func(string) { asked.Store(true) },
		GotConn: func(httptrace.GotConnInfo) { connected.Store(true) },
	})
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, w.base+path, bytes.NewReader(payload))
	if err != nil {
		return 0, nil, fmt.Errorf("%w: %w", booking.ErrNotSent, err)
	}
	req.Header = header
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Accept", "application/json")

	resp, err := w.hc.Do(req)
	if err != nil {
		var ue *url.Error
		if errors.As(err, &ue) {
			err = ue.Err
		}
		if asked.Load() && !connected.Load() {
			return 0, nil, fmt.Errorf("%w: %w", booking.ErrNotSent, err)
		}
		return 0, nil, fmt.Errorf("%w: %w", booking.ErrInDoubt, err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxBody+1))
	switch {
	case err != nil:
		return 0, nil, fmt.Errorf("%w: body: %w", booking.ErrInDoubt, err)
	case len(body) > maxBody:
		return 0, nil, fmt.Errorf("%w: body is over %d bytes", booking.ErrInDoubt, maxBody)
	}
	return resp.StatusCode, body, nil
}
