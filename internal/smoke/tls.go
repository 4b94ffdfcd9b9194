package smoke

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"strings"
	"time"
)

const (
	// leastDays is when a certificate that nobody has renewed needs a person: those who
	// renew by themselves have tried for weeks by then.
	leastDays = 14
	// leastHSTS is how long a browser must remember that it speaks TLS here: half a year.
	leastHSTS = 182 * 24 * time.Hour
)

// tlsConfig trusts Options.Roots at Options.Now; name "" is that of the address.
func (r *run) tlsConfig(name string) *tls.Config {
	return &tls.Config{ServerName: name, RootCAs: r.o.Roots, Time: r.o.Now, MinVersion: tls.VersionTLS12}
}

// handshake opens and ends a connection to the target.
func (r *run) handshake(ctx context.Context, least, most uint16) (tls.ConnectionState, error) {
	ctx, cancel := context.WithTimeout(ctx, r.o.Timeout)
	defer cancel()
	host, port := r.target.Hostname(), r.target.Port()
	if port == "" {
		port = "443"
	}
	conn, err := r.o.Dial(ctx, "tcp", net.JoinHostPort(host, port))
	if err != nil {
		return tls.ConnectionState{}, &unreachableError{r.target.Host, err}
	}
	defer conn.Close()
	cfg := r.tlsConfig(host)
	cfg.MinVersion, cfg.MaxVersion = least, most
	c := tls.Client(conn, cfg)
	err = c.HandshakeContext(ctx)
	return c.ConnectionState(), err
}

// certificate is the first question of an https target. When it goes wrong nothing
// more is asked: no browser would.
func (r *run) certificate(ctx context.Context) (string, error) {
	state, err := r.handshake(ctx, tls.VersionTLS12, 0)
	if err != nil {
		r.stopped = "no browser comes past the certificate"
		return "", err
	}
	leaf := state.PeerCertificates[0]
	days := int(leaf.NotAfter.Sub(r.o.Now()).Hours() / 24)
	seen := fmt.Sprintf("%s, good until %s, %d days; of %s", tls.VersionName(state.Version), leaf.NotAfter.UTC().Format(time.DateOnly), days, issuer(leaf.Issuer.Organization, leaf.Issuer.CommonName))
	if days < leastDays {
		return "", fmt.Errorf("%s: want %d days at least", seen, leastDays)
	}
	return seen, nil
}

func issuer(organization []string, name string) string {
	if len(organization) > 0 {
		return organization[0]
	}
	return name
}

func (r *run) oldTLS(ctx context.Context) (string, error) {
	state, err := r.handshake(ctx, tls.VersionTLS10, tls.VersionTLS11)
	var unreachable *unreachableError
	switch {
	case errors.As(err, &unreachable):
		return "", errors.New(unreachable.Error()) // it answered a moment ago: a check that failed
	case err == nil:
		return "", fmt.Errorf("got a connection with %s, want none under TLS 1.2", tls.VersionName(state.Version))
	case errors.Is(err, context.DeadlineExceeded):
		return "", fmt.Errorf("TLS 1.1: got no answer, want a refusal: %w", err)
	}
	return "TLS 1.1 is refused", nil
}

// redirect asks as somebody who types the name.
func (r *run) redirect(ctx context.Context) (string, error) {
	plain := "http://" + r.target.Hostname() + "/"
	a, err := r.askAt(ctx, r.client, http.MethodGet, plain, "", "")
	if err != nil {
		return "", err
	}
	if err := a.want(http.StatusMovedPermanently, http.StatusPermanentRedirect, http.StatusFound, http.StatusTemporaryRedirect); err != nil {
		return "", fmt.Errorf("%s: %w", plain, err)
	}
	to := a.header.Get("Location")
	if to != r.target.String() && !strings.HasPrefix(to, r.target.String()+"/") {
		return "", fmt.Errorf("%s: got %d to %q, want to %s", plain, a.status, to, r.target)
	}
	return fmt.Sprintf("%s: %d to %s", plain, a.status, to), nil
}

// hsts looks at the pages that were read.
func (r *run) hsts(context.Context) (string, error) {
	if len(r.pages) == 0 {
		return "", errors.New("no page was read")
	}
	for _, a := range r.pages {
		policy := a.header.Get("Strict-Transport-Security")
		if age := maxAge(policy); age < leastHSTS {
			return "", fmt.Errorf("%s: got Strict-Transport-Security %q, want max-age=%.0f at least", a.asked, policy, leastHSTS.Seconds())
		}
	}
	return r.pages[0].header.Get("Strict-Transport-Security"), nil
}

// maxAge is the max-age of a header's directives; negative when there is none.
func maxAge(header string) time.Duration {
	for d := range strings.FieldsFuncSeq(header, func(c rune) bool { return c == ',' || c == ';' }) {
		name, value, _ := strings.Cut(strings.TrimSpace(d), "=")
		if n, err := strconv.Atoi(strings.Trim(value, `"`)); strings.EqualFold(name, "max-age") && err == nil {
			return time.Duration(n) * time.Second
		}
	}
	return -1
}

// distribution asks the CDN under its own name, under which nobody is to book.
func (r *run) distribution(ctx context.Context) (string, error) {
	a, err := r.askAt(ctx, r.client, http.MethodGet, "https://"+r.o.Distribution+"/health", "", "")
	if err != nil {
		return "", err
	}
	if err := a.want(http.StatusForbidden); err != nil {
		return "", fmt.Errorf("%s: %w", r.o.Distribution, err)
	}
	return r.o.Distribution + " answers 403", nil
}

// balancer asks it past the CDN, without the origin's secret. Not to reach it is as good
// as to be refused, and better.
func (r *run) balancer(ctx context.Context) (string, error) {
	t := r.newTransport()
	defer t.CloseIdleConnections()
	t.DialContext = func(ctx context.Context, network, _ string) (net.Conn, error) {
		// Sooner than the whole request, so that who is not there is told from who hangs.
		ctx, cancel := context.WithTimeout(ctx, r.o.Timeout/2)
		defer cancel()
		return r.o.Dial(ctx, network, net.JoinHostPort(r.o.Balancer, "443"))
	}
	t.TLSClientConfig = r.tlsConfig(r.target.Hostname())
	// Nothing secret is sent and nothing that comes back is trusted: whoever it says that
	// it is, it must refuse.
	t.TLSClientConfig.InsecureSkipVerify = true
	a, err := r.askAt(ctx, r.newClient(t), http.MethodGet, r.target.String()+"/health", "", "")
	var name *net.DNSError
	var dial *net.OpError
	switch {
	case errors.As(err, &name):
		return "", fmt.Errorf("%s: %w, want the balancer's name", r.o.Balancer, err)
	case errors.As(err, &dial) && dial.Op == "dial":
		return r.o.Balancer + " cannot be reached from here", nil
	case err != nil:
		return "", err
	}
	if err := a.want(http.StatusForbidden); err != nil {
		return "", fmt.Errorf("%s: %w", r.o.Balancer, err)
	}
	return r.o.Balancer + " answers 403", nil
}
