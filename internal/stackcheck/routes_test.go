package stackcheck_test

import (
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/go-chi/chi/v5"
	"github.com/prometheus/client_golang/prometheus"

	"holdfast/internal/booking"
	"holdfast/internal/httpapi"
	"holdfast/internal/httpapi/web"
	"holdfast/internal/stackcheck"
)

// decision is what the edge does for a route: who answers, and how often an address may
// ask in five minutes. A route that is not here has nobody who decided.
type decision struct {
	balancer bool
	// least and most bound the limit of the rate rule that counts the route; 0 is none.
	least, most int
	// size has the firewall refuse a body over 8 KiB.
	size bool
}

func decisions() map[string]decision {
	return map[string]decision{
		"POST /book":            {balancer: true, least: 2000, most: 2000, size: true},
		"GET /payment/callback": {balancer: true, least: 100, most: 100},
		// SNS calls it from few addresses, for everybody's payments.
		"POST /payment/webhook": {balancer: true, least: 20000, most: 1 << 30},
		// Mobile carriers put whole neighbourhoods behind one address.
		"GET /booking/{token}": {balancer: true, least: 10000, most: 1 << 30},
		"GET /health":          {balancer: true, least: 10000, most: 1 << 30},
		"GET /":                {}, "HEAD /": {}, "GET /result": {}, "HEAD /result": {},
		"GET /status.json": {}, "HEAD /status.json": {},
	}
}

// routes are those of a server of these dependencies, as "METHOD /pattern".
func routes(pages *httpapi.Pages) ([]string, error) {
	rule, err := booking.NewCodeRule("^[A-Z0-9-]{4,32}$")
	if err != nil {
		return nil, err
	}
	s, err := httpapi.New(httpapi.Deps{
		Booker: struct{ httpapi.Booker }{}, Finder: struct{ httpapi.Finder }{}, Settler: struct{ httpapi.Settler }{},
		Viewer: struct{ httpapi.Viewer }{}, Sealer: struct{ httpapi.Sealer }{}, Background: struct{ httpapi.Background }{},
		Codes: rule, Webhook: http.NotFoundHandler(), Pages: pages, ResultURL: "/result", ReturnBudget: time.Second,
		Log: slog.New(slog.DiscardHandler), Registerer: prometheus.NewRegistry(),
	})
	if err != nil {
		return nil, err
	}
	var all []string
	err = chi.Walk(s.Routes(), func(method, route string, _ http.Handler, _ ...func(http.Handler) http.Handler) error {
		all = append(all, method+" "+route)
		return nil
	})
	slices.Sort(all)
	return all, err
}

// variablePart is a parameter in a route's pattern.
var variablePart = regexp.MustCompile(`\{[^}]+\}`)

// cachingDisabled is AWS's own cache policy of that name (CloudFront Developer Guide,
// "Use managed cache policies").
const cachingDisabled = "4135ea2d-6df8-44a3-9df3-4b5a84be39ad"

func routeProblems(d *stackcheck.Deployment) []string {
	everywhere, err := routes(&httpapi.Pages{Objects: struct{ httpapi.Objects }{}, Sales: struct{ httpapi.Sales }{}})
	if err != nil {
		return []string{err.Error()}
	}
	program, err := routes(nil)
	if err != nil {
		return []string{err.Error()}
	}
	distribution, err := only(d, "edge", "AWS::CloudFront::Distribution")
	if err != nil {
		return []string{err.Error()}
	}
	firewall, err := only(d, "edge", "AWS::WAFv2::WebACL")
	if err != nil {
		return []string{err.Error()}
	}
	config := stackcheck.Get(distribution.Properties, "DistributionConfig")
	var out []string
	decided := decisions()
	for _, route := range everywhere {
		want, ok := decided[route]
		if !ok {
			out = append(out, route+": a route without a decision here: which behaviour, which limit?")
			continue
		}
		if slices.Contains(program, route) != want.balancer {
			out = append(out, route+": decided for the wrong origin: what the program serves in production is the balancer's, the pages are the bucket's")
		}
		method, pattern, _ := strings.Cut(route, " ")
		sample := variablePart.ReplaceAllString(pattern, "abc")
		out = append(out, behaviourProblems(d, config, route, method, sample, want)...)
		out = append(out, firewallProblems(firewall.Properties, route, sample, want)...)
	}
	for _, route := range slices.Sorted(maps.Keys(decided)) {
		if !slices.Contains(everywhere, route) {
			out = append(out, route+": decided here, and the program has no such route")
		}
	}
	// What is for operators is nobody's behaviour.
	for _, inside := range []string{"/metrics", "/ready", "/debug/pprof/", "/admin/candidates", "/wall"} {
		if b := behaviour(config, inside); originOf(config, b).balancer {
			out = append(out, inside+": a behaviour leads it to the balancer")
		}
	}
	for _, name := range []string{"AWSManagedRulesAmazonIpReputationList", "AWSManagedRulesKnownBadInputsRuleSet"} {
		if !slices.ContainsFunc(stackcheck.List(firewall.Properties["Rules"]), func(rule any) bool {
			return stackcheck.Get(rule, "Statement", "ManagedRuleGroupStatement", "Name") == name && stackcheck.Get(rule, "OverrideAction", "None") != nil
		}) {
			out = append(out, "firewall: "+name+" is not among the rules, or refuses nothing")
		}
	}
	if got := stackcheck.Text(stackcheck.Get(config, "WebACLId")); got != stackcheck.Reference("edge", idOf(d, "edge", "AWS::WAFv2::WebACL"), "Arn") {
		out = append(out, "firewall: the distribution does not use it")
	}
	for _, h := range web.SecurityHeaders() {
		if h.Name == "Content-Security-Policy" && !sendsPolicy(d, h.Value) {
			out = append(out, "pages: no response headers policy sends the Content-Security-Policy that the pages of this release need: "+h.Value)
		}
	}
	return out
}

func sendsPolicy(d *stackcheck.Deployment, want string) bool {
	words := func(s string) string { return strings.Join(strings.Fields(s), " ") }
	for _, r := range d.Each("AWS::CloudFront::ResponseHeadersPolicy") {
		got := stackcheck.Get(r.Properties, "ResponseHeadersPolicyConfig", "SecurityHeadersConfig", "ContentSecurityPolicy", "ContentSecurityPolicy")
		if words(stackcheck.Text(got)) == words(want) {
			return true
		}
	}
	return false
}

// behaviour is the one that CloudFront takes for a path: the first that matches.
func behaviour(config any, at string) any {
	for _, b := range stackcheck.List(stackcheck.Get(config, "CacheBehaviors")) {
		pattern := stackcheck.Text(stackcheck.Get(b, "PathPattern"))
		if matches(pattern, at) {
			return b
		}
	}
	return stackcheck.Get(config, "DefaultCacheBehavior")
}

// matches is CloudFront's: a * is any text, slashes too.
func matches(pattern, at string) bool {
	parts := strings.Split(pattern, "*")
	for i, part := range parts {
		parts[i] = strings.ReplaceAll(regexp.QuoteMeta(part), `\?`, ".")
	}
	expression, err := regexp.Compile("^" + strings.Join(parts, ".*") + "$")
	return err == nil && expression.MatchString(at)
}

type origin struct{ balancer, bucket, secret bool }

func originOf(config, b any) origin {
	for _, o := range stackcheck.List(stackcheck.Get(config, "Origins")) {
		if stackcheck.Get(o, "Id") == stackcheck.Get(b, "TargetOriginId") {
			return origin{
				balancer: stackcheck.Get(o, "VpcOriginConfig") != nil,
				bucket:   stackcheck.Get(o, "S3OriginConfig") != nil && stackcheck.Get(o, "OriginAccessControlId") != nil,
				secret:   stackcheck.Get(o, "OriginCustomHeaders", 0, "HeaderValue") != nil,
			}
		}
	}
	return origin{}
}

func behaviourProblems(d *stackcheck.Deployment, config any, route, method, sample string, want decision) []string {
	var out []string
	b := behaviour(config, sample)
	name := stackcheck.Text(stackcheck.Get(b, "PathPattern"))
	if name == "" {
		name = "default"
	}
	bad := func(format string, args ...any) {
		out = append(out, fmt.Sprintf("%s, behaviour %s: ", route, name)+fmt.Sprintf(format, args...))
	}
	o := originOf(config, b)
	switch {
	case want.balancer && !o.balancer:
		bad("does not lead to the balancer's VPC origin")
	case want.balancer && !o.secret:
		bad("its origin is not sent the origin secret")
	case !want.balancer && !o.bucket:
		bad("does not lead to the bucket by origin access control")
	}
	if !slices.Contains(stackcheck.List(stackcheck.Get(b, "AllowedMethods")), any(method)) {
		bad("does not allow %s", method)
	}
	most := -1.0 // seconds that an answer may be kept; -1 is as long as it likes
	switch {
	case want.balancer:
		most = 0
	case sample == "/status.json":
		most = 1 // the document says max-age=1 itself
	case path.Ext(sample) == "":
		most = 60
	}
	if got := kept(d, b); most >= 0 && got > most {
		bad("keeps answers for up to %v s, want %v", got, most)
	}
	return out
}

// kept is how long a behaviour's answers may stay in the cache, in seconds.
func kept(d *stackcheck.Deployment, b any) float64 {
	const forEver = 1e9
	policy := stackcheck.Text(stackcheck.Get(b, "CachePolicyId"))
	if policy == cachingDisabled {
		return 0
	}
	for at, r := range d.Each("AWS::CloudFront::CachePolicy") {
		if policy == stackcheck.Reference("edge", at.ID, "") {
			if n, err := strconv.ParseFloat(stackcheck.Text(stackcheck.Get(r.Properties, "CachePolicyConfig", "MaxTTL")), 64); err == nil {
				return n
			}
		}
	}
	return forEver
}

func firewallProblems(p map[string]any, route, sample string, want decision) []string {
	limit, size := 0, false
	for _, rule := range stackcheck.List(p["Rules"]) {
		s := stackcheck.Get(rule, "Statement")
		if stackcheck.Get(rule, "Action", "Block") == nil {
			continue // a rule that only counts decides nothing
		}
		if rate := stackcheck.Get(s, "RateBasedStatement"); rate != nil && about(stackcheck.Get(rate, "ScopeDownStatement"), sample) {
			n, err := strconv.Atoi(stackcheck.Text(stackcheck.Get(rate, "Limit")))
			window := stackcheck.Text(stackcheck.Get(rate, "EvaluationWindowSec"))
			if err != nil || stackcheck.Get(rate, "AggregateKeyType") != "IP" || window != "" && window != "300" {
				return []string{fmt.Sprintf("%s: rule %s does not count by address over five minutes", route, stackcheck.Text(stackcheck.Get(rule, "Name")))}
			}
			if limit == 0 || n < limit {
				limit = n
			}
		}
		if constrains(s) && about(s, sample) {
			size = true
		}
	}
	var out []string
	if limit < want.least || limit > want.most {
		out = append(out, fmt.Sprintf("%s: an address may ask %d times in five minutes (0 is without a limit), want %d to %d", route, limit, want.least, want.most))
	}
	if size != want.size {
		out = append(out, fmt.Sprintf("%s: a rule refuses a body over 8 KiB: %v, want %v", route, size, want.size))
	}
	return out
}

// constrains tells whether a statement refuses bodies over the program's own limit, and
// those that are longer than the firewall reads.
func constrains(s any) bool {
	if c := stackcheck.Get(s, "SizeConstraintStatement"); c != nil {
		return stackcheck.Text(stackcheck.Get(c, "Size")) == "8192" && stackcheck.Get(c, "ComparisonOperator") == "GT" &&
			stackcheck.Get(c, "FieldToMatch", "Body", "OversizeHandling") == "MATCH"
	}
	return slices.ContainsFunc(stackcheck.List(stackcheck.Get(s, "AndStatement", "Statements")), constrains)
}

// about tells whether a statement can hold for a path. What is not about paths can hold
// for each.
func about(s any, at string) bool {
	if s == nil {
		return true
	}
	if m := stackcheck.Get(s, "ByteMatchStatement"); m != nil && stackcheck.Get(m, "FieldToMatch", "UriPath") != nil {
		text := stackcheck.Text(stackcheck.Get(m, "SearchString"))
		switch stackcheck.Get(m, "PositionalConstraint") {
		case "EXACTLY":
			return at == text
		case "STARTS_WITH":
			return strings.HasPrefix(at, text)
		}
		return strings.Contains(at, text)
	}
	if all := stackcheck.List(stackcheck.Get(s, "AndStatement", "Statements")); len(all) > 0 {
		return !slices.ContainsFunc(all, func(s any) bool { return !about(s, at) })
	}
	if all := stackcheck.List(stackcheck.Get(s, "OrStatement", "Statements")); len(all) > 0 {
		return slices.ContainsFunc(all, func(s any) bool { return about(s, at) })
	}
	if not := stackcheck.Get(s, "NotStatement", "Statement"); not != nil {
		return !about(not, at)
	}
	return true
}
