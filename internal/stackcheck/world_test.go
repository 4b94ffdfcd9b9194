package stackcheck_test

import (
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"holdfast/internal/stackcheck"
)

const (
	root    = "../.."
	stacks  = root + "/cloudformation"
	region  = "ap-south-1"
	account = "123456789012"
)

func readFile(t testing.TB, path ...string) []byte {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(append([]string{root}, path...)...))
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// sources are the templates as they are written, by name. The map is the caller's.
func sources(t testing.TB) map[string][]byte {
	t.Helper()
	all := map[string][]byte{}
	for _, name := range stackcheck.Order() {
		all[name] = readFile(t, "cloudformation", name+".yaml")
	}
	return all
}

func parse(t testing.TB, sources map[string][]byte) []*stackcheck.Template {
	t.Helper()
	var all []*stackcheck.Template
	for _, name := range stackcheck.Order() {
		tpl, err := stackcheck.Parse(name, sources[name])
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, tpl)
	}
	return all
}

// given are the values of parameters that have no default, the same in every template,
// and of some that an operator sets.
func given() map[string]string {
	return map[string]string{
		"ArtifactSha256":         strings.Repeat("0123456789abcdef", 4),
		"BalancerArn":            "arn:aws:elasticloadbalancing:" + region + ":" + account + ":loadbalancer/app/holdfast/0123456789abcdef",
		"BalancerDnsName":        "internal-holdfast-0123456789." + region + ".elb.amazonaws.com",
		"CloudFrontPrefixListId": "pl-0123456789abcdef0",
		"GatewayUrl":             "https://gateway.example.com/v1.2.0-beta",
		"MailFromAddress":        "no-reply@seats.example.org",
		"NotifyTopicArn":         "arn:aws:sns:ap-southeast-1:" + account + ":payments",
		"OriginSecret":           strings.Repeat("0123456789abcdef", 4),
		"PublicHost":             "seats.example.org",
		"Sale":                   "exam-2026",
		"SiteBucketDomainName":   "holdfast-site.s3." + region + ".amazonaws.com",
		"Version":                "v1.2.3",
	}
}

// deployments are the ways in which the stacks are meant to be made: as small as they
// are by default, for a launch with everything that can be asked for, and that with the
// engine that logs durably.
func deployments() map[string]map[string]string {
	launch := map[string]string{
		"Size": "launch", "AccessLogs": "yes", "AlarmEmail": "operators@seats.example.org", "FlowLogs": "ALL",
		"HostedZoneId": "Z0123456789ABCDEFGHIJ", "Zones": region + "b," + region + "c," + region + "a", "RunbookBase": "https://code.example.org/holdfast/",
	}
	durable := maps.Clone(launch)
	durable["EngineMode"], durable["RedisNode"], durable["Acks"] = "durable", "-0001-00", "0"
	return map[string]map[string]string{"small": {"Size": "small"}, "launch": launch, "durable launch": durable}
}

// settings gives every template those parameters that it has.
func settings(templates []*stackcheck.Template, chosen map[string]string) stackcheck.Settings {
	s := stackcheck.Settings{Region: region, Account: account, Parameters: map[string]map[string]string{}}
	values := given()
	maps.Copy(values, chosen)
	for _, t := range templates {
		s.Parameters[t.Name] = map[string]string{}
		for name := range t.Parameters() {
			value, ok := values[name]
			if name == "CertificateArn" {
				at := region
				if t.Name == "edge" {
					at = stackcheck.EdgeRegion
				}
				value, ok = "arn:aws:acm:"+at+":"+account+":certificate/00000000-0000-0000-0000-000000000000", true
			}
			if ok {
				s.Parameters[t.Name][name] = value
			}
		}
	}
	return s
}

func deploy(templates []*stackcheck.Template, chosen map[string]string) (*stackcheck.Deployment, error) {
	return stackcheck.Deploy(templates, settings(templates, chosen))
}
