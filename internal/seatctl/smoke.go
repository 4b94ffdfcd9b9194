package seatctl

import (
	"cmp"
	"fmt"
	"net/http"
	"strings"
	"text/tabwriter"
	"time"

	"holdfast/internal/httpapi/web"
	"holdfast/internal/smoke"
)

type smokeCommand struct {
	Target       string        `help:"The deployment's public address: https://host, or http://127.0.0.1:port of a local one." required:"" placeholder:"URL"`
	Edge         *bool         `help:"Ask for what the CDN and a closed balancer add, too. Without either, for https and not for http." negatable:""`
	Distribution string        `help:"The CDN's own host name, which must answer 403 (DistributionDomainName of the stack edge)." placeholder:"HOST"`
	Balancer     string        `help:"The balancer's host name, which must answer 403 or not at all (BalancerDnsName of the stack compute)." placeholder:"HOST"`
	Code         string        `help:"A candidate on the list, who is asked for with an address that is nobody's, and so refused." placeholder:"CODE"`
	Timeout      time.Duration `help:"How long one answer may take." default:"12s" placeholder:"DURATION"`
	JSON         bool          `help:"Print one JSON document."`
}

// Help is kong's detailed help.
func (*smokeCommand) Help() string {
	return `After every deploy: asks the address from outside, with no settings and no credential,
for what a deployment must show. Certificate and TLS, the two pages and their headers,
status.json, /health, every refusal of /book, unknown bookings and payments, an unsigned
notification, methods and paths that are not there, metrics and profiles that must not be,
caches, clock; with the edge also the CDN's bare name and the balancer. Each check is
printed with what was seen, and what to do where it failed.

It changes nothing and takes no seat: each booking it sends is refused, or has the hidden
field filled in. It makes 30 requests at most, one after another, as user agent
` + smoke.UserAgent + `. No alarm hears of it; the API's log has
one warning of a notification that nobody signed.

Against http://127.0.0.1 TLS and the edge are left out, and it says so. Ask once more when
booking is open: only then an unknown code goes all the way to Redis.

Exit status: 0 nothing is wrong with what was asked; 1 a check failed; 2 it could not be
run, or nobody answers there.

Example:
  seatctl smoke --target https://seats.example.org --distribution d111111abcdef8.cloudfront.net`
}

// Run is the command.
func (c *smokeCommand) Run(s *session) error {
	o := smoke.Options{
		Target: strings.TrimRight(c.Target, "/"), Edge: strings.HasPrefix(c.Target, "https://"),
		Distribution: c.Distribution, Balancer: c.Balancer, Code: c.Code, Timeout: c.Timeout, PageHeaders: http.Header{},
	}
	if c.Edge != nil {
		o.Edge = *c.Edge
	}
	if c.Timeout <= 0 {
		return fmt.Errorf("--timeout %s: want more than 0", c.Timeout)
	}
	for _, h := range web.SecurityHeaders() {
		o.PageHeaders.Set(h.Name, h.Value)
	}
	fmt.Fprintf(s.stderr, "This asks %s up to %d questions; it changes nothing and takes no seat.\n", o.Target, smoke.Most)
	report, err := smoke.Run(s.ctx, o)
	if err != nil {
		return fmt.Errorf("smoke: %w", err)
	}
	if c.JSON {
		err = s.printJSON(report)
	} else {
		err = s.printSmoke(report)
	}
	if err == nil && report.Count(smoke.StateFailed) > 0 {
		err = wrong(nil)
	}
	return err
}

func (s *session) printSmoke(r smoke.Report) error {
	var b strings.Builder
	fmt.Fprintf(&b, "%s  version %s, %s, %d requests\n\n", r.Target, cmp.Or(r.Version, "not told"), r.At.Format(time.RFC3339), r.Requests)
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "CHECK\tRESULT\tSEEN")
	for _, c := range r.Checks {
		result := string(c.State)
		if c.State == smoke.StateFailed {
			result = "FAILED"
		}
		fmt.Fprintf(w, "%s\t%s\t%s\n", c.Name, result, c.Seen)
	}
	if err := w.Flush(); err != nil {
		return err
	}
	failed, left := r.Count(smoke.StateFailed), r.Count(smoke.StateLeftOut)
	fmt.Fprintf(&b, "\n%d ok, %d failed, %d left out\n", r.Count(smoke.StateOK), failed, left)
	for _, c := range r.Checks {
		if c.State == smoke.StateFailed {
			fmt.Fprintf(&b, "\n%s:\n  %s\n", c.Name, c.Next)
		}
	}
	_, err := fmt.Fprint(s.stdout, b.String())
	return err
}
