package snshook

import (
	"bytes"
	"context"
	"crypto/rsa"
	"crypto/tls"
	"crypto/x509"
	_ "embed"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/singleflight"
)

const (
	// signer is the name that SNS's signing certificates carry, in every region of
	// this partition that is on by default.
	signer = "sns.amazonaws.com"

	maxFile     = 64 << 10 // bytes of a certificate file
	maxInFile   = 4        // certificates in one
	minKeyBits  = 2048
	maxCached   = 8              // SNS has one or two at a time
	maxAge      = 24 * time.Hour // a certificate that AWS has withdrawn counts no longer
	maxFetches  = 4              // at a time: anybody may name a certificate that is not cached
	fetchBudget = 5 * time.Second
)

// ErrNoCertificate is what a Fetch wraps when the host says that there is no such
// file, so that the message that named it is not genuine.
var ErrNoCertificate = errors.New("there is no such certificate")

// amazonIssuers are the public intermediates "Amazon RSA 2048 M01" to "M04", as
// crt.r2m01.amazontrust.com and its like serve them. They help from a leaf to a
// root; the root decides.
//
//go:embed amazon.pem
var amazonIssuers []byte

// certificateName takes the varying part out of a certificate's address: the only
// address that passes is spelled exactly as SNS spells it. There is nothing to
// parse, so there is nothing that two parsers could read in two ways.
func certificateName(host, address string) (string, bool) {
	rest, ok := strings.CutPrefix(address, "https://"+host)
	if !ok {
		return "", false
	}
	rest = strings.TrimPrefix(rest, ":443")
	rest, ok = strings.CutPrefix(rest, "/SimpleNotificationService-")
	if !ok {
		return "", false
	}
	name, ok := strings.CutSuffix(rest, ".pem")
	if !ok || name == "" || len(name) > 64 || strings.Trim(name, digits+"abcdefABCDEF") != "" {
		return "", false
	}
	return name, true
}

// certificates gets, checks and keeps signing certificates. Only those that passed
// are kept.
type certificates struct {
	host          string
	roots         *x509.CertPool
	intermediates *x509.CertPool
	get           func(ctx context.Context, url string) ([]byte, error)
	now           func() time.Time
	flights       singleflight.Group
	slots         chan struct{}

	mu    sync.Mutex
	known map[string]vouched
}

// vouched is the key of a certificate that passed, and when it does.
type vouched struct {
	key         *rsa.PublicKey
	from, until time.Time
}

func newCertificates(host string, c Config) (*certificates, error) {
	cs := &certificates{
		host: host, roots: c.Roots, intermediates: c.Intermediates, get: c.Fetch, now: c.Now,
		slots: make(chan struct{}, maxFetches), known: map[string]vouched{},
	}
	if cs.get == nil {
		cs.get = NewFetch(nil)
	}
	if cs.intermediates == nil {
		cs.intermediates = x509.NewCertPool()
		if !cs.intermediates.AppendCertsFromPEM(amazonIssuers) {
			return nil, errors.New("notifications: the issuers built in cannot be read")
		}
	}
	return cs, nil
}

// key is the public key of a certificate that passes now. Callers that want the
// same one at the same time share one fetch, which does not end with the caller
// that began it.
func (c *certificates) key(ctx context.Context, name string) (*rsa.PublicKey, error) {
	if key := c.cached(name); key != nil {
		return key, nil
	}
	done := c.flights.DoChan(name, func() (v any, err error) {
		// A panic on this goroutine would take the process along.
		defer func() {
			if p := recover(); p != nil {
				err = fmt.Errorf("signing certificate: panic: %v: %w", p, ErrUnavailable)
			}
		}()
		if key := c.cached(name); key != nil {
			return key, nil // a fetch ended between the look and this flight
		}
		return c.load(context.WithoutCancel(ctx), name)
	})
	select {
	case r := <-done:
		if r.Err != nil {
			return nil, r.Err
		}
		return r.Val.(*rsa.PublicKey), nil
	case <-ctx.Done():
		return nil, fmt.Errorf("signing certificate: %w: %w", ctx.Err(), ErrUnavailable)
	}
}

func (c *certificates) cached(name string) *rsa.PublicKey {
	now := c.now()
	c.mu.Lock()
	defer c.mu.Unlock()
	v, ok := c.known[name]
	if !ok || now.Before(v.from) || now.After(v.until) {
		return nil
	}
	return v.key
}

func (c *certificates) load(ctx context.Context, name string) (*rsa.PublicKey, error) {
	select {
	case c.slots <- struct{}{}:
		defer func() { <-c.slots }()
	default:
		return nil, fmt.Errorf("signing certificate: %d others are being fetched: %w", maxFetches, ErrUnavailable)
	}
	ctx, cancel := context.WithTimeout(ctx, fetchBudget)
	defer cancel()
	file, err := c.get(ctx, "https://"+c.host+"/SimpleNotificationService-"+name+".pem")
	if errors.Is(err, ErrNoCertificate) {
		return nil, fmt.Errorf("signing certificate: %w: %w", err, ErrForged)
	}
	if err != nil {
		return nil, fmt.Errorf("fetch signing certificate: %w: %w", err, ErrUnavailable)
	}
	v, err := c.vouch(file)
	if err != nil {
		return nil, err
	}
	c.keep(name, v)
	return v.key, nil
}

// keep makes room by dropping the one that ends first.
func (c *certificates) keep(name string, v vouched) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, there := c.known[name]; !there && len(c.known) >= maxCached {
		first := name
		for n, k := range c.known {
			if first == name || k.until.Before(c.known[first].until) {
				first = n
			}
		}
		delete(c.known, first)
	}
	c.known[name] = v
}

// vouch checks the file of a signing certificate: the leaf first, then, if the
// host sends them, its issuers.
func (c *certificates) vouch(file []byte) (vouched, error) {
	certs, err := readFile(file)
	if err != nil {
		// Our own host's words for a fault: another delivery may find it cured.
		return vouched{}, fmt.Errorf("signing certificate: %w: %w", err, ErrUnavailable)
	}
	leaf := certs[0]
	key, ok := leaf.PublicKey.(*rsa.PublicKey)
	switch {
	case leaf.IsCA:
		return vouched{}, fmt.Errorf("signing certificate is an authority's: %w", ErrForged)
	case !slices.Contains(leaf.DNSNames, signer) || (leaf.Subject.CommonName != "" && leaf.Subject.CommonName != signer):
		return vouched{}, fmt.Errorf("signing certificate is not for %s: %w", signer, ErrForged)
	case !ok || key.N.BitLen() < minKeyBits:
		return vouched{}, fmt.Errorf("signing certificate has no RSA key of %d bits: %w", minKeyBits, ErrForged)
	}
	now := c.now()
	intermediates := c.intermediates.Clone()
	for _, cert := range certs[1:] {
		intermediates.AddCert(cert)
	}
	chains, err := leaf.Verify(x509.VerifyOptions{
		DNSName: signer, Roots: c.roots, Intermediates: intermediates, CurrentTime: now,
		KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}, // what Amazon issues them for
	})
	var unknown x509.UnknownAuthorityError
	if errors.As(err, &unknown) {
		// The file is SNS's own, so it is we who do not know the issuer.
		return vouched{}, fmt.Errorf("signing certificate: issuer %.80q: %w: %w", leaf.Issuer.CommonName, err, ErrUnavailable)
	}
	if err != nil {
		return vouched{}, fmt.Errorf("signing certificate: %w: %w", err, ErrForged)
	}
	best := vouched{key: key}
	for _, chain := range chains {
		from, until := chain[0].NotBefore, now.Add(maxAge)
		for _, cert := range chain {
			if cert.NotBefore.After(from) {
				from = cert.NotBefore
			}
			if cert.NotAfter.Before(until) {
				until = cert.NotAfter
			}
		}
		if until.After(best.until) {
			best.from, best.until = from, until
		}
	}
	return best, nil
}

func readFile(file []byte) ([]*x509.Certificate, error) {
	if len(file) > maxFile {
		return nil, errors.New("file is too large")
	}
	var certs []*x509.Certificate
	for rest := bytes.TrimSpace(file); len(rest) > 0; rest = bytes.TrimSpace(rest) {
		block, next := pem.Decode(rest)
		if block == nil || block.Type != "CERTIFICATE" || len(certs) == maxInFile {
			return nil, errors.New("file is not a certificate in PEM")
		}
		cert, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil, errors.New("file is not a certificate in PEM")
		}
		certs, rest = append(certs, cert), next
	}
	if len(certs) == 0 {
		return nil, errors.New("file is empty")
	}
	return certs, nil
}

// NewFetch makes a Config.Fetch over HTTP: GET, no redirect followed, 64 KiB at
// most, an answer other than 200 is an error, 404 and 410 are ErrNoCertificate. With
// nil it uses a transport of its own, which heeds no proxy of the environment and
// keeps no connection.
func NewFetch(rt http.RoundTripper) func(ctx context.Context, url string) ([]byte, error) {
	if rt == nil {
		rt = &http.Transport{
			DialContext:            (&net.Dialer{Timeout: 3 * time.Second}).DialContext,
			TLSClientConfig:        &tls.Config{MinVersion: tls.VersionTLS12},
			TLSHandshakeTimeout:    3 * time.Second,
			ResponseHeaderTimeout:  3 * time.Second,
			MaxResponseHeaderBytes: maxFile,
			DisableKeepAlives:      true,
		}
	}
	hc := &http.Client{
		Transport:     rt,
		Timeout:       fetchBudget,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	return func(ctx context.Context, url string) ([]byte, error) {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
		if err != nil {
			return nil, err
		}
		resp, err := hc.Do(req)
		if err != nil {
			return nil, err
		}
		defer resp.Body.Close()
		switch resp.StatusCode {
		case http.StatusOK:
		case http.StatusNotFound, http.StatusGone:
			return nil, fmt.Errorf("HTTP %d: %w", resp.StatusCode, ErrNoCertificate)
		default:
			return nil, fmt.Errorf("HTTP %d", resp.StatusCode)
		}
		file, err := io.ReadAll(io.LimitReader(resp.Body, maxFile+1))
		if err != nil {
			return nil, err
		}
		if len(file) > maxFile {
			return nil, errors.New("file is too large")
		}
		return file, nil
	}
}
