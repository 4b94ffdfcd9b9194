package stackcheck_test

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"holdfast/internal/stackcheck"
)

// drivers are the rooms that call AWS from an instance, by the service's prefix in a
// policy, with the files that only an installation runs.
func drivers() map[string]struct{ room, setup string } {
	return map[string]struct{ room, setup string }{
		"dynamodb": {"internal/store/dynamo", "table.go"},
		"sqs":      {"internal/queue/sqs", "define.go"},
		"s3":       {"internal/objstore/s3", ""},
		"ses":      {"internal/mailer/ses", ""},
	}
}

// others are permissions of those services without a call of that name, or the other way
// round, and why.
func others() map[string]string {
	return map[string]string{
		"dynamodb:DeleteItem": "called by purge alone, with an operator's credentials",
		"s3:ListBucket":       "granted so that an object that is not there is not an access denied",
		"ses:SendRawEmail":    "granted because SES asks for it where a mail is given whole",
	}
}

var (
	call      = regexp.MustCompile(`\bclient\.([A-Z][A-Za-z]+)\(`)
	paginator = regexp.MustCompile(`\.New(Query|Scan)Paginator\(`)
)

// called are the actions that the drivers' code needs.
func called() (map[string]bool, error) {
	all := map[string]bool{}
	for service, d := range drivers() {
		sources, err := filepath.Glob(filepath.Join(root, d.room, "*.go"))
		if err != nil {
			return nil, err
		}
		for _, path := range sources {
			if strings.HasSuffix(path, "_test.go") || filepath.Base(path) == d.setup {
				continue
			}
			text, err := os.ReadFile(path)
			if err != nil {
				return nil, err
			}
			for _, expression := range []*regexp.Regexp{call, paginator} {
				for _, m := range expression.FindAllStringSubmatch(string(text), -1) {
					if m[1] != "Options" { // the client's own
						all[service+":"+strings.TrimSuffix(m[1], "Batch")] = true
					}
				}
			}
		}
	}
	// Asked by define.go too, whose check every start runs.
	all["sqs:GetQueueAttributes"] = true
	return all, nil
}

// permissionProblems: an instance may do what its programs call, and no more.
func permissionProblems(d *stackcheck.Deployment) []string {
	want, err := called()
	if err != nil {
		return []string{err.Error()}
	}
	profile, err := only(d, "compute", "AWS::IAM::InstanceProfile")
	if err != nil {
		return []string{err.Error()}
	}
	id := reference.ReplaceAllString(stackcheck.Text(stackcheck.Get(profile.Properties, "Roles", 0)), "$1")
	role, ok := d.Stack("compute").Resources[id]
	if !ok {
		return []string{fmt.Sprintf("compute.yaml: the instances' role %q is not there", id)}
	}
	granted := map[string]bool{}
	for _, policy := range stackcheck.List(role.Properties["Policies"]) {
		for _, s := range stackcheck.List(stackcheck.Get(policy, "PolicyDocument", "Statement")) {
			for _, action := range stackcheck.List(stackcheck.Get(s, "Action")) {
				service, _, _ := strings.Cut(stackcheck.Text(action), ":")
				if _, ours := drivers()[service]; ours && stackcheck.Get(s, "Effect") == "Allow" {
					granted[stackcheck.Text(action)] = true
				}
			}
		}
	}
	var out []string
	for _, action := range slices.Sorted(maps.Keys(want)) {
		if !granted[action] && others()[action] == "" {
			out = append(out, fmt.Sprintf("compute.yaml %s: does not allow %s, which a program calls", id, action))
		}
	}
	for _, action := range slices.Sorted(maps.Keys(granted)) {
		if !want[action] && others()[action] == "" {
			out = append(out, fmt.Sprintf("compute.yaml %s: allows %s, which no program calls", id, action))
		}
	}
	return out
}
