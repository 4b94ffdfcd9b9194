package stackcheck_test

import (
	"fmt"
	"slices"
	"strings"

	"github.com/grafana/sobek"

	"holdfast/internal/stackcheck"
)

// guardProblems: the function at the edge lets nobody in by another name than the site's.
// It runs here in another engine than CloudFront's, which speaks the same language.
func guardProblems(d *stackcheck.Deployment) []string {
	edge := d.Stack("edge")
	guard, ok := edge.Resources["HostGuard"]
	if !ok || guard.Type != "AWS::CloudFront::Function" {
		return []string{"edge.yaml: there is no function HostGuard"}
	}
	var out []string
	code := stackcheck.Text(guard.Properties["FunctionCode"])
	const most = 10 << 10 // bytes, CloudFront's limit of a function
	if len(code) >= most {
		out = append(out, fmt.Sprintf("HostGuard: %d bytes, want less than %d", len(code), most))
	}
	public := given()["PublicHost"]
	for host, want := range map[string]string{
		public: "passes", strings.ToUpper(public): "passes", "d111111abcdef8.cloudfront.net": "403",
		public + ".example.com": "403", "www." + public: "403", public + ":8443": "403", "": "403",
	} {
		got, err := answer(code, host)
		if err != nil {
			return append(out, fmt.Sprintf("HostGuard: %v", err))
		}
		if got != want {
			out = append(out, fmt.Sprintf("HostGuard: the host %q: %s, want %s", host, got, want))
		}
	}
	distribution, err := only(d, "edge", "AWS::CloudFront::Distribution")
	if err != nil {
		return append(out, err.Error())
	}
	config := stackcheck.Get(distribution.Properties, "DistributionConfig")
	for _, b := range append(stackcheck.List(stackcheck.Get(config, "CacheBehaviors")), stackcheck.Get(config, "DefaultCacheBehavior")) {
		if !slices.ContainsFunc(stackcheck.List(stackcheck.Get(b, "FunctionAssociations")), func(a any) bool {
			return stackcheck.Get(a, "EventType") == "viewer-request" && stackcheck.Get(a, "FunctionARN") == stackcheck.Reference("edge", "HostGuard", "FunctionARN")
		}) {
			out = append(out, fmt.Sprintf("behaviour %q: HostGuard does not see its requests", stackcheck.Text(stackcheck.Get(b, "PathPattern"))))
		}
	}
	return out
}

// answer is what a function of CloudFront does with a request to a host; "" sends none.
func answer(code, host string) (string, error) {
	vm := sobek.New()
	if _, err := vm.RunString(code); err != nil {
		return "", err
	}
	handler, ok := sobek.AssertFunction(vm.Get("handler"))
	if !ok {
		return "", fmt.Errorf("it has no function handler")
	}
	headers := map[string]any{}
	if host != "" {
		headers["host"] = map[string]any{"value": host}
	}
	request := map[string]any{"method": "GET", "uri": "/book", "headers": headers}
	v, err := handler(sobek.Undefined(), vm.ToValue(map[string]any{"request": request}))
	if err != nil {
		return "", err
	}
	result, ok := v.Export().(map[string]any)
	switch {
	case !ok:
		return "", fmt.Errorf("the host %q: it gives back %v", host, v)
	case result["statusCode"] != nil:
		return fmt.Sprint(result["statusCode"]), nil
	case result["uri"] == "/book":
		return "passes", nil
	}
	return fmt.Sprint(result), nil
}

// originProblems: the balancer forwards what carries one of the two values of the origin
// secret, which the edge sends by the same name, and answers everything else with 403.
func originProblems(d *stackcheck.Deployment) []string {
	var out []string
	distribution, err := only(d, "edge", "AWS::CloudFront::Distribution")
	if err != nil {
		return []string{err.Error()}
	}
	var header string
	for _, o := range stackcheck.List(stackcheck.Get(distribution.Properties, "DistributionConfig", "Origins")) {
		for _, h := range stackcheck.List(stackcheck.Get(o, "OriginCustomHeaders")) {
			header = stackcheck.Text(stackcheck.Get(h, "HeaderName"))
		}
	}
	for at, r := range d.Each("AWS::ElasticLoadBalancingV2::Listener") {
		a := stackcheck.Get(r.Properties, "DefaultActions", 0)
		if stackcheck.Get(a, "Type") != "fixed-response" || stackcheck.Text(stackcheck.Get(a, "FixedResponseConfig", "StatusCode")) != "403" {
			out = append(out, fmt.Sprintf("%s: its default action is not a fixed 403", at))
		}
	}
	rules := 0
	for at, r := range d.Each("AWS::ElasticLoadBalancingV2::ListenerRule") {
		rules++
		var values []any
		for _, c := range stackcheck.List(r.Properties["Conditions"]) {
			if stackcheck.Get(c, "Field") == "http-header" && strings.EqualFold(stackcheck.Text(stackcheck.Get(c, "HttpHeaderConfig", "HttpHeaderName")), header) {
				values = stackcheck.List(stackcheck.Get(c, "HttpHeaderConfig", "Values"))
			}
		}
		for _, key := range []string{"current", "previous"} {
			want := "{{resolve:secretsmanager:" + exportedValue(d, "OriginSecretArn") + ":SecretString:" + key
			if !slices.ContainsFunc(values, func(v any) bool {
				rest, ok := strings.CutPrefix(stackcheck.Text(v), want)
				return ok && (rest == "}}" || strings.HasPrefix(rest, ":"))
			}) {
				out = append(out, fmt.Sprintf("%s: forwards, and does not ask for the key %s of the origin secret in the header %q", at, key, header))
			}
		}
	}
	if rules == 0 {
		out = append(out, "compute.yaml: no rule forwards anything")
	}
	return out
}
