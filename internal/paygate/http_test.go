package paygate_test

import (
	"context"
	"crypto/x509"
	"io"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"

	"holdfast/internal/booking"
	"holdfast/internal/paygate"
	"holdfast/internal/testenv"
)

// Over HTTP/2 all calls share a connection. When it dies without a word, as when
// a firewall forgets it, the calls on it are in doubt, and later ones must not
// hang on it too.
func TestHTTPClient_ConnectionDeadInSilenceIsGivenUp(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("waits six seconds for a connection to be given up")
	}
	var over2 atomic.Bool
	srv := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		over2.Store(r.ProtoMajor == 2)
		_, _ = io.WriteString(w, completed(nil))
	}))
	srv.EnableHTTP2 = true
	srv.StartTLS()
	t.Cleanup(srv.Close)
	network := testenv.Proxy(t, srv.Listener.Addr().String())
	hc := httpClient(t)
	transport := hc.Transport.(*http.Transport)
	transport.TLSClientConfig.RootCAs = x509.NewCertPool()
	transport.TLSClientConfig.RootCAs.AddCert(srv.Certificate())
	b := newBench(t, "https://"+network.Addr(), hc, func(c *paygate.Config) { c.QueryTimeout = time.Second })

	if _, err := b.client.Query(t.Context(), "TR1"); err != nil || !over2.Load() {
		t.Fatalf("Query: %v, HTTP/2 %v; want an answer over HTTP/2", err, over2.Load())
	}
	network.DropReplies()
	_, err := b.client.Query(t.Context(), "TR1")
	wantErr(t, "Query on the dead connection", err, booking.ErrInDoubt)
	network.Forward() // for connections to come
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	for {
		if _, err = b.client.Query(ctx, "TR1"); err == nil {
			return
		}
		if ctx.Err() != nil {
			t.Fatalf("Query twenty seconds after its connection died: %v", err)
		}
	}
}
