package stackcheck_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	gocmp "github.com/google/go-cmp/cmp"

	"holdfast/internal/stackcheck"
)

// redisProblems: Redis evicts nothing, everybody has a user of their own, the user that
// every Redis has is off, and nobody may empty it or see another's keys.
func redisProblems(d *stackcheck.Deployment) []string {
	var out []string
	for at, r := range d.Each("AWS::ElastiCache::ParameterGroup") {
		if got := stackcheck.Text(stackcheck.Get(r.Properties, "Properties", "maxmemory-policy")); got != "noeviction" {
			out = append(out, fmt.Sprintf("%s: maxmemory-policy is %q, want noeviction: an evicted row is a seat sold twice", at, got))
		}
	}
	users := map[string][]string{} // their rules, those in the brackets of a selector left out
	for at, r := range d.Each("AWS::ElastiCache::User") {
		access := stackcheck.Text(r.Properties["AccessString"])
		plain, _, _ := strings.Cut(access, "(")
		users[stackcheck.Text(r.Properties["UserName"])] = strings.Fields(plain)
		for _, rule := range strings.Fields(strings.NewReplacer("(", " ", ")", " ").Replace(access)) {
			if slices.Contains([]string{"~*", "allkeys", "&*", "allchannels", "+@all", "allcommands", "nopass", "+@dangerous", "+@admin"}, rule) {
				out = append(out, fmt.Sprintf("%s: AccessString has %s", at, rule))
			}
			for _, command := range []string{"flushall", "flushdb", "config", "keys", "acl", "debug", "shutdown", "replicaof", "swapdb"} {
				if rule == "+"+command {
					out = append(out, fmt.Sprintf("%s: AccessString has %s, which no program calls", at, rule))
				}
			}
		}
		if isOff := slices.Contains(users[stackcheck.Text(r.Properties["UserName"])], "off"); isOff != (r.Properties["UserName"] == "default") {
			out = append(out, fmt.Sprintf("%s: off is %v: the user default is off and nobody else is", at, isOff))
		}
		if stackcheck.Text(r.Properties["NoPasswordRequired"]) == "true" {
			out = append(out, fmt.Sprintf("%s: needs no password", at))
		}
	}
	for _, name := range []string{"default", "api", "operator", "loader"} {
		if users[name] == nil {
			out = append(out, "data.yaml: Redis has no user "+name)
		}
	}
	for _, rule := range users["loader"] {
		// It marks its own writes, and waits for them to be acknowledged.
		own := strings.HasPrefix(rule, "~{sale}:candidate") || rule == "~{sale}:adm:mark" || rule == "~{sale}:adm:probe"
		if strings.HasPrefix(rule, "~") && !own {
			out = append(out, fmt.Sprintf("data.yaml: the user loader may write %s, which is not the allowlist", rule))
		}
	}
	written, err := files(d)
	if err != nil {
		return append(out, err.Error())
	}
	for _, path := range slices.Sorted(maps.Keys(written)) {
		if name, ok := written[path]["HOLDFAST_REDIS_USERNAME"]; ok && users[name] == nil {
			out = append(out, fmt.Sprintf("%s: HOLDFAST_REDIS_USERNAME is %s, and Redis has no such user", path, name))
		}
	}
	return out
}

// secretProblems: the secrets have the keys that references name.
func secretProblems(d *stackcheck.Deployment) []string {
	var out []string
	for export, want := range secretKeys() {
		arn := exportedValue(d, export)
		id := reference.ReplaceAllString(arn, "$1")
		secret, ok := d.Stack("data").Resources[id]
		if !ok {
			if export != "DatabaseSecretArn" { // RDS makes that one, with these keys
				out = append(out, fmt.Sprintf("data.yaml: %s exports %q, which is no secret of the stack", export, arn))
			}
			continue
		}
		text := stackcheck.Text(secret.Properties["SecretString"])
		generated := stackcheck.Get(secret.Properties, "GenerateSecretString")
		if text == "" {
			text = stackcheck.Text(stackcheck.Get(generated, "SecretStringTemplate"))
		}
		if text == "" && generated == nil {
			// It is filled by hand, by what the description says.
			said := stackcheck.Text(secret.Properties["Description"])
			for _, key := range want {
				if !strings.Contains(said, key) {
					out = append(out, fmt.Sprintf("data.yaml %s: it is filled by hand, and its description does not name the key %s", id, key))
				}
			}
			continue
		}
		var object map[string]string
		if err := json.Unmarshal([]byte(text), &object); err != nil {
			out = append(out, fmt.Sprintf("data.yaml %s: no JSON object of texts: %v", id, err))
			continue
		}
		if key := stackcheck.Text(stackcheck.Get(generated, "GenerateStringKey")); key != "" {
			object[key] = "generated"
		}
		if diff := gocmp.Diff(slices.Sorted(slices.Values(want)), slices.Sorted(maps.Keys(object))); diff != "" {
			out = append(out, fmt.Sprintf("data.yaml %s: its keys (-wanted +got):\n%s", id, diff))
		}
	}
	return out
}
