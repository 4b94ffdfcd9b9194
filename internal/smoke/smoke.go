// Package smoke asks a deployment from outside, as a stranger would, for what it must
// show after every deploy: TLS, the two pages, status.json, the refusals of every path,
// and that nothing else answers. It holds no key and no credential.
//
// It changes nothing and takes no seat: a booking that it sends is one that is refused,
// or has the hidden field filled in. What it leaves behind is counters and log lines, one
// of them of a notification that nobody signed. It asks one question at a time, no more
// than Most, under a name of its own.
//
// Fail mode: closed. What did not answer has failed, and what was not asked is said.
// Clock: the one given; it is held against the deployment's own, which is a check too.
package smoke

import (
	"cmp"
	"context"
	"crypto/rand"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"
)

const (
	// Most is how many requests a run makes at most.
	Most = 30
	// DefaultTimeout is more than the longest answer may take, which is the return of a
	// payer with its 8 s.
	DefaultTimeout = 12 * time.Second
	// UserAgent is what the deployment's logs know a run by.
	UserAgent = "holdfast-smoke/1 (seatctl smoke)"
)

// State is what came of a check.
type State string

// The states; only StateFailed is bad news.
const (
	StateOK      State = "ok"
	StateFailed  State = "failed"
	StateLeftOut State = "left out"
)

// Check is one thing that a deployment must show.
type Check struct {
	Name  string `json:"name"`
	State State  `json:"state"`
	// Seen is what was seen, or why it was not asked.
	Seen string `json:"seen"`
	// Next is what to do about a check that failed.
	Next string `json:"next,omitempty"`
}

// Report is what a run saw.
type Report struct {
	Target string    `json:"target"`
	At     time.Time `json:"at"`
	// Version is the deployment's own word; "" when it does not say.
	Version  string  `json:"version,omitempty"`
	Requests int     `json:"requests"`
	Checks   []Check `json:"checks"`
}

// Count is how many checks ended in that state.
func (r Report) Count(s State) int {
	n := 0
	for _, c := range r.Checks {
		if c.State == s {
			n++
		}
	}
	return n
}

// Options say what is asked, and of whom.
type Options struct {
	// Target is https://host, or http:// on this machine, and nothing behind it.
	Target string
	// Edge asks for what a CDN, its firewall and a closed balancer add; https only.
	Edge bool
	// Distribution is the CDN's own host name; "" leaves its check out.
	Distribution string
	// Balancer is the load balancer's host name; "" leaves its check out.
	Balancer string
	// Code is a candidate on the list, who is asked for with an address that nobody can
	// have; "" leaves the check out.
	Code string
	// PageHeaders are what both pages must go out with.
	PageHeaders http.Header
	// Timeout bounds one request. Default DefaultTimeout.
	Timeout time.Duration
	// Now judges certificates and the deployment's clock. Nil: time.Now.
	Now func() time.Time
	// Dial opens every connection. Nil: a net.Dialer.
	Dial func(ctx context.Context, network, addr string) (net.Conn, error)
	// Roots are trusted to vouch for certificates. Nil: the system's.
	Roots *x509.CertPool
}

// Run asks and reports. An error means that there is no report: the options are wrong,
// nobody answers there at all, or ctx has ended. Safe to repeat.
func Run(ctx context.Context, o Options) (Report, error) {
	r, err := newRun(o)
	if err != nil {
		return Report{}, err
	}
	defer r.transport.CloseIdleConnections()
	for _, c := range r.checks() {
		seen, err := r.make(ctx, c)
		if ctx.Err() != nil {
			return Report{}, ctx.Err()
		}
		var unreachable *unreachableError
		if errors.As(err, &unreachable) {
			return Report{}, err
		}
		r.report.Checks = append(r.report.Checks, told(c, seen, err))
	}
	return r.report, nil
}

func (r *run) make(ctx context.Context, c check) (string, error) {
	if why := cmp.Or(c.without, r.stopped); why != "" {
		return "", leftOut(why)
	}
	return c.look(ctx)
}

func told(c check, seen string, err error) Check {
	var left leftOut
	switch {
	case err == nil:
		return Check{Name: c.name, State: StateOK, Seen: seen}
	case errors.As(err, &left):
		return Check{Name: c.name, State: StateLeftOut, Seen: string(left)}
	}
	return Check{Name: c.name, State: StateFailed, Seen: err.Error(), Next: c.next}
}

// leftOut is why a check was not made.
type leftOut string

func (l leftOut) Error() string { return string(l) }

// unreachableError is the first question of all without an answer.
type unreachableError struct {
	host string
	err  error
}

func (e *unreachableError) Error() string {
	return fmt.Sprintf("nobody answers at %s: %v: look at the name in DNS, and whether anything is deployed there", e.host, e.err)
}

func (e *unreachableError) Unwrap() error { return e.err }

// check is one thing to look at. look gives what was seen, or an error that has what was
// wanted in it, too.
type check struct {
	name string
	// without is why it is left out; "" when it is not.
	without string
	next    string
	look    func(ctx context.Context) (seen string, err error)
}

// run is one run.
type run struct {
	o         Options
	target    *url.URL
	transport *http.Transport
	client    *http.Client
	report    Report
	// stopped is why nothing more is asked; "" while it is.
	stopped string
	// nonce is nobody's code and nobody's path.
	nonce string

	status  document // what status.json said; its zero value when it was not read
	served  []answer // of the API, that nobody may store
	pages   []answer
	foreign []string // headers of AWS that reached us
}

func newRun(o Options) (*run, error) {
	u, err := url.Parse(o.Target)
	if err != nil || u.Hostname() == "" || u.Scheme != "http" && u.Scheme != "https" || strings.TrimRight(o.Target, "/") != u.Scheme+"://"+u.Host {
		return nil, fmt.Errorf("target %q: want https://host, and nothing behind it", o.Target)
	}
	if u.Scheme == "http" {
		if !loopback(u.Hostname()) {
			return nil, fmt.Errorf("target %q: want https://: plain http is for this machine only", o.Target)
		}
		if o.Edge || o.Distribution != "" || o.Balancer != "" {
			return nil, fmt.Errorf("target %q: it has no edge: leave the edge, the distribution and the balancer out, or name the https:// address", o.Target)
		}
	}
	for _, host := range []string{o.Distribution, o.Balancer} {
		if strings.ContainsAny(host, "/:@?#") {
			return nil, fmt.Errorf("host %q: want a bare host name", host)
		}
	}
	if o.Timeout == 0 {
		o.Timeout = DefaultTimeout
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Dial == nil {
		o.Dial = new(net.Dialer).DialContext
	}
	u.Path = ""
	r := &run{o: o, target: u, nonce: rand.Text()}
	r.report = Report{Target: u.String(), At: o.Now().UTC()}
	r.transport = r.newTransport()
	r.client = r.newClient(r.transport)
	return r, nil
}

func loopback(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

func (r *run) secure() bool { return r.target.Scheme == "https" }
