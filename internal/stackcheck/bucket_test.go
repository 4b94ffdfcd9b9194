package stackcheck_test

import (
	"fmt"
	"slices"

	"holdfast/internal/stackcheck"
)

// bucketProblems: CloudFront hears of what is absent in the site's bucket, and lists nothing;
// a release is written once, and what is beside the releases ends.
func bucketProblems(d *stackcheck.Deployment) []string {
	var out []string
	listed, once := false, false
	for at, r := range d.Each("AWS::S3::BucketPolicy") {
		if at.Template != "data" {
			continue
		}
		for _, s := range stackcheck.List(stackcheck.Get(r.Properties, "PolicyDocument", "Statement")) {
			does := func(effect, action, resource string) bool {
				return stackcheck.Get(s, "Effect") == effect && slices.Contains(stackcheck.List(stackcheck.Get(s, "Action")), any(action)) && stackcheck.Text(stackcheck.Get(s, "Resource")) == resource
			}
			listed = listed || does("Allow", "s3:ListBucket", stackcheck.Reference("data", "SiteBucket", "Arn")) &&
				stackcheck.Get(s, "Principal", "Service") == "cloudfront.amazonaws.com"
			once = once || does("Deny", "s3:PutObject", stackcheck.Reference("data", "ArtifactBucket", "Arn")+"/releases/*") &&
				stackcheck.Get(s, "Principal") == "*" && stackcheck.Text(stackcheck.Get(s, "Condition", "Null", "s3:if-none-match")) == "true"
		}
	}
	if !listed {
		out = append(out, "data.yaml: CloudFront may not s3:ListBucket the site's bucket: S3 answers 403 to a path that is not there")
	}
	if !once {
		out = append(out, "data.yaml: releases/* may be overwritten")
	}
	distribution, err := only(d, "edge", "AWS::CloudFront::Distribution")
	if err != nil {
		return append(out, err.Error())
	}
	if stackcheck.Text(stackcheck.Get(distribution.Properties, "DistributionConfig", "DefaultRootObject")) == "" {
		out = append(out, "edge.yaml: no DefaultRootObject: an empty path would list the bucket")
	}
	rules := stackcheck.List(stackcheck.Get(d.Stack("data").Resources["ArtifactBucket"].Properties, "LifecycleConfiguration", "Rules"))
	for _, folder := range []string{"reviews/", "exports/"} {
		if !slices.ContainsFunc(rules, func(r any) bool {
			return stackcheck.Get(r, "Prefix") == folder && stackcheck.Get(r, "Status") == "Enabled" &&
				stackcheck.Get(r, "ExpirationInDays") != nil && stackcheck.Get(r, "NoncurrentVersionExpiration", "NoncurrentDays") != nil
		}) {
			out = append(out, fmt.Sprintf("data.yaml: %s has no end, old versions included", folder))
		}
	}
	return out
}
