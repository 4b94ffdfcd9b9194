package smoke_test

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"io"
	"log"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"holdfast/internal/app/local"
	"holdfast/internal/httpapi/web"
	"holdfast/internal/smoke"
	"holdfast/internal/testenv"
)

func TestMain(m *testing.M) {
	testenv.BeProgram(testenv.Programs{"local": local.Run})
	goleak.VerifyTestMain(m)
}

// The names under which everything is reached here.
const (
	site         = "https://seats.example.org"
	distribution = "d111111abcdef8.cloudfront.net"
	balancer     = "balancer.internal.example.org"
	listed       = "AB-100001" // on the demo's list
)

// deployed starts the local profile and gives its address, once it shows the sale.
func deployed(t *testing.T, args ...string) string {
	t.Helper()
	addr := testenv.FreeAddr(t)
	p := testenv.StartProgram(t, "local", append([]string{"-data", t.TempDir(), "-addr", addr}, args...), map[string]string{"PATH": t.TempDir()})
	p.Lines(t, 4)
	testenv.Eventually(t, func() error { // the first status.json is written behind the first line
		_, err := status(t.Context(), "http://"+addr)
		return err
	})
	return "http://" + addr
}

// flaw is what is wrong with an edge; each part that is nil is as it should be.
type flaw struct {
	answer      func(w http.ResponseWriter, r *http.Request) (done bool)
	response    func(resp *http.Response)
	certificate func(c *x509.Certificate)
	tls         func(c *tls.Config)
	plain       http.HandlerFunc // port 80
	bare        http.HandlerFunc // the CDN under its own name
	behind      http.HandlerFunc // the balancer
	dial        func(addr string) error
	options     func(o *smoke.Options)
}

// edge is a CDN and a closed balancer before a deployment.
type edge struct {
	smoke.Options
	requests, most atomic.Int64 // all, and at the same time
	now            atomic.Int64
	agents         chan string
}

func newEdge(t *testing.T, upstream string, f flaw) *edge {
	t.Helper()
	up, err := url.Parse(upstream)
	if err != nil {
		t.Fatal(err)
	}
	e := &edge{agents: make(chan string, 100)}
	roots, certificate := certificates(t, f.certificate)
	transport := &http.Transport{}
	proxy := &httputil.ReverseProxy{
		Transport: transport, ErrorLog: log.New(io.Discard, "", 0),
		Rewrite: func(p *httputil.ProxyRequest) {
			p.SetURL(up)
			p.Out.Header.Set("Accept-Encoding", "identity")
		},
		ModifyResponse: func(resp *http.Response) error {
			change(resp, func(b []byte) []byte { return bytes.ReplaceAll(b, []byte(upstream), []byte(site)) })
			resp.Header.Set("Location", strings.Replace(resp.Header.Get("Location"), upstream, site, 1))
			resp.Header.Set("Strict-Transport-Security", "max-age=63072000; includeSubDomains")
			resp.Header.Set("X-Amz-Cf-Pop", "DAC50-P1")
			resp.Header.Set("X-Cache", "Miss from cloudfront")
			if f.response != nil {
				f.response(resp)
			}
			return nil
		},
	}
	front := func(w http.ResponseWriter, r *http.Request) {
		e.requests.Add(1)
		e.most.Store(max(e.most.Load(), e.now.Add(1)))
		defer e.now.Add(-1)
		e.agents <- r.UserAgent()
		switch {
		case r.Host != "seats.example.org":
			or(f.bare, forbidden)(w, r)
		case f.answer == nil || !f.answer(w, r):
			proxy.ServeHTTP(w, r)
		}
	}
	config := &tls.Config{Certificates: []tls.Certificate{certificate}}
	if f.tls != nil {
		f.tls(config)
	}
	to := map[string]string{
		"seats.example.org:443": serve(t, front, config),
		"seats.example.org:80": serve(t, or(f.plain, func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, site+r.URL.Path, http.StatusMovedPermanently)
		}), nil),
		balancer + ":443": serve(t, or(f.behind, forbidden), config),
	}
	to[distribution+":443"] = to["seats.example.org:443"]
	t.Cleanup(transport.CloseIdleConnections)
	e.Options = smoke.Options{
		Target: site, Edge: true, Distribution: distribution, Balancer: balancer, Code: listed,
		PageHeaders: http.Header{}, Roots: roots, Timeout: 10 * time.Second,
		Dial: func(ctx context.Context, network, addr string) (net.Conn, error) {
			if f.dial != nil {
				if err := f.dial(addr); err != nil {
					return nil, err
				}
			}
			if to[addr] == "" {
				return nil, fmt.Errorf("dial %s: no such address here", addr)
			}
			return new(net.Dialer).DialContext(ctx, network, to[addr])
		},
	}
	for _, h := range web.SecurityHeaders() {
		e.PageHeaders.Set(h.Name, h.Value)
	}
	if f.options != nil {
		f.options(&e.Options)
	}
	return e
}

func or(h, otherwise http.HandlerFunc) http.HandlerFunc {
	if h != nil {
		return h
	}
	return otherwise
}

func forbidden(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusForbidden) }

func welcome(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "welcome") }

// serve gives the address of a server, with TLS if there is a configuration.
func serve(t *testing.T, h http.HandlerFunc, config *tls.Config) string {
	t.Helper()
	s := httptest.NewUnstartedServer(h)
	s.Config.ErrorLog = log.New(io.Discard, "", 0) // handshakes that are meant to go wrong
	if config == nil {
		s.Start()
	} else {
		s.TLS = config.Clone()
		s.StartTLS()
	}
	t.Cleanup(s.Close)
	return s.Listener.Addr().String()
}

// certificates makes an authority, and a certificate of its for all the names.
func certificates(t *testing.T, alter func(*x509.Certificate)) (*x509.CertPool, tls.Certificate) {
	t.Helper()
	now := time.Now()
	ca := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{Organization: []string{"Example Authority"}}, NotBefore: now.Add(-24 * time.Hour),
		NotAfter: now.Add(1000 * time.Hour), IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	leaf := &x509.Certificate{
		SerialNumber: big.NewInt(2), NotBefore: now.Add(-24 * time.Hour), NotAfter: now.Add(100*24*time.Hour + time.Hour),
		DNSNames: []string{"seats.example.org", distribution}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	ca.NotAfter = leaf.NotAfter.Add(time.Hour)
	if alter != nil {
		alter(leaf)
	}
	signer, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	top, err1 := x509.CreateCertificate(rand.Reader, ca, ca, signer.Public(), signer)
	parsed, err2 := x509.ParseCertificate(top)
	der, err3 := x509.CreateCertificate(rand.Reader, leaf, ca, key.Public(), signer)
	if err := errors.Join(err1, err2, err3); err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AddCert(parsed)
	return roots, tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}

// change rewrites the body of an answer.
func change(resp *http.Response, how func([]byte) []byte) {
	b, err := io.ReadAll(resp.Body)
	_ = resp.Body.Close()
	if err != nil {
		b = []byte(err.Error())
	}
	b = how(b)
	resp.Body, resp.ContentLength = io.NopCloser(bytes.NewReader(b)), int64(len(b))
	resp.Header.Set("Content-Length", fmt.Sprint(len(b)))
}
