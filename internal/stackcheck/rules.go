package stackcheck

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v4"
)

// Rule is one of the house's, for all templates together.
type Rule struct {
	// Name is a short noun, by which a report names it.
	Name string
	// Check tells what breaks it, one line for each place; nothing is well.
	Check func(*Deployment) []string
}

// Rules are the house's rules over evaluated templates. They hold for every set of
// parameters: check them with each that is meant.
func Rules() []Rule {
	return []Rule{
		{"public access", publicAccess},
		{"open policies", openPolicies},
		{"encryption at rest", encryptionAtRest},
		{"encryption in transit", encryptionInTransit},
		{"wildcards", wildcards},
		{"log retention", logRetention},
		{"snapshots of the ledger", ledgerSnapshots},
		{"kept data", keptData},
		{"late figures", lateFigures},
		{"tags", tags},
		{"exports", exports},
		{"imports", imports},
		{"exceptions for the linter", linterExceptions},
	}
}

// report collects what breaks a rule.
type report []string

func (r *report) add(at At, format string, args ...any) {
	*r = append(*r, at.String()+": "+fmt.Sprintf(format, args...))
}

// isTrue is what CloudFormation takes for true.
func isTrue(v any) bool { return Text(v) == "true" }

// isFalse wants it said: what is left out is not false but AWS's own default.
func isFalse(v any) bool { return Text(v) == "false" }

func publicAccess(d *Deployment) []string {
	var out report
	for at, r := range d.Each() {
		p := r.Properties
		switch r.Type {
		case "AWS::S3::Bucket":
			for _, block := range []string{"BlockPublicAcls", "BlockPublicPolicy", "IgnorePublicAcls", "RestrictPublicBuckets"} {
				if !isTrue(Get(p, "PublicAccessBlockConfiguration", block)) {
					out.add(at, "PublicAccessBlockConfiguration.%s is not true: the bucket could be made public", block)
				}
			}
			if p["AccessControl"] != nil || p["WebsiteConfiguration"] != nil {
				out.add(at, "has AccessControl or WebsiteConfiguration: what it holds goes out through CloudFront only")
			}
		case "AWS::ElasticLoadBalancingV2::LoadBalancer":
			if p["Scheme"] != "internal" {
				out.add(at, "Scheme is %q, want internal: without it the balancer has public addresses", Text(p["Scheme"]))
			}
		case "AWS::RDS::DBInstance":
			if !isFalse(p["PubliclyAccessible"]) {
				out.add(at, "PubliclyAccessible is not false")
			}
		case "AWS::EC2::Subnet":
			if isTrue(p["MapPublicIpOnLaunch"]) {
				out.add(at, "MapPublicIpOnLaunch is true: what starts there gets a public address")
			}
		case "AWS::EC2::EIP":
			if !ofGateway(d, at) {
				out.add(at, "a public address that no NAT gateway uses")
			}
		case "AWS::EC2::LaunchTemplate", "AWS::EC2::Instance":
			data := p
			if r.Type == "AWS::EC2::LaunchTemplate" {
				data, _ = p["LaunchTemplateData"].(map[string]any)
			}
			for _, face := range List(data["NetworkInterfaces"]) {
				if !isFalse(Get(face, "AssociatePublicIpAddress")) {
					out.add(at, "AssociatePublicIpAddress is not false: the instance may get a public address")
				}
			}
			if data["KeyName"] != nil {
				out.add(at, "has a key pair: instances are reached by Session Manager")
			}
		case "AWS::EC2::SecurityGroup":
			for _, rule := range List(p["SecurityGroupIngress"]) {
				out.openIngress(at, rule)
			}
			if p["SecurityGroupEgress"] == nil {
				out.add(at, "has no SecurityGroupEgress: without one everything may go out anywhere")
			}
		case "AWS::EC2::SecurityGroupIngress":
			out.openIngress(at, p)
		case "AWS::Lambda::Url":
			out.add(at, "a function with an address of its own")
		}
	}
	return out
}

func (r *report) openIngress(at At, rule any) {
	for _, from := range []string{"CidrIp", "CidrIpv6"} {
		if block := Text(Get(rule, from)); strings.HasSuffix(block, "/0") {
			r.add(at, "lets %s in: everybody", block)
		}
	}
}

// ofGateway tells whether a NAT gateway has the address, also one that a condition leaves
// out: the address is then held for it.
func ofGateway(d *Deployment, address At) bool {
	for _, body := range pairs(field(d.Stack(address.Template).Template.root, "Resources")) {
		allocation := field(field(body, "Properties"), "AllocationId")
		if kind := field(body, "Type"); kind == nil || kind.Value != "AWS::EC2::NatGateway" || allocation == nil {
			continue
		}
		if name, attribute := function(allocation); name == "GetAtt" && attribute.Value == address.ID+".AllocationId" {
			return true
		}
	}
	return false
}

func openPolicies(d *Deployment) []string {
	var out report
	for at, r := range d.Each() {
		for _, s := range statements(r.Properties) {
			everybody := Text(Get(s, "Principal")) == "*" || slices.Contains(List(Get(s, "Principal", "AWS")), any("*"))
			if everybody && Get(s, "Effect") == "Allow" && Get(s, "Condition") == nil {
				out.add(at, "a policy allows everybody without a Condition")
			}
			if Get(s, "Effect") == "Allow" && (Get(s, "NotAction") != nil || Get(s, "NotPrincipal") != nil || Get(s, "NotResource") != nil) {
				out.add(at, "a policy allows all but what it names: want what it needs")
			}
		}
		if r.Type == "AWS::Lambda::Permission" && Text(r.Properties["Principal"]) == "*" {
			out.add(at, "everybody may call the function")
		}
	}
	return out
}

// statements are those of every policy inside a value.
func statements(v any) []any {
	var all []any
	switch v := v.(type) {
	case map[string]any:
		if v["Effect"] != nil {
			return []any{v}
		}
		for _, name := range slices.Sorted(maps.Keys(v)) {
			all = append(all, statements(v[name])...)
		}
	case []any:
		for _, item := range v {
			all = append(all, statements(item)...)
		}
	case string:
		// Some services take a policy as a text.
		var policy map[string]any
		if strings.Contains(v, `"Effect"`) && json.Unmarshal([]byte(v), &policy) == nil {
			return statements(policy)
		}
	}
	return all
}

func encryptionAtRest(d *Deployment) []string {
	var out report
	for at, r := range d.Each() {
		p := r.Properties
		switch r.Type {
		case "AWS::S3::Bucket":
			algorithm := Get(p, "BucketEncryption", "ServerSideEncryptionConfiguration", 0, "ServerSideEncryptionByDefault", "SSEAlgorithm")
			if algorithm == nil {
				out.add(at, "BucketEncryption is missing")
			}
		case "AWS::DynamoDB::Table":
			if !isTrue(Get(p, "SSESpecification", "SSEEnabled")) {
				out.add(at, "SSESpecification.SSEEnabled is not true")
			}
		case "AWS::SQS::Queue":
			if p["KmsMasterKeyId"] == nil && !isTrue(p["SqsManagedSseEnabled"]) {
				out.add(at, "has neither KmsMasterKeyId nor SqsManagedSseEnabled")
			}
		case "AWS::SNS::Topic":
			if p["KmsMasterKeyId"] == nil {
				out.add(at, "has no KmsMasterKeyId")
			}
		case "AWS::ElastiCache::ReplicationGroup":
			if !isTrue(p["AtRestEncryptionEnabled"]) {
				out.add(at, "AtRestEncryptionEnabled is not true")
			}
		case "AWS::RDS::DBInstance":
			if !isTrue(p["StorageEncrypted"]) {
				out.add(at, "StorageEncrypted is not true")
			}
		case "AWS::EC2::LaunchTemplate":
			disks := List(Get(p, "LaunchTemplateData", "BlockDeviceMappings"))
			if len(disks) == 0 {
				out.add(at, "has no BlockDeviceMappings: the image's own disk may not be encrypted")
			}
			for _, disk := range disks {
				if !isTrue(Get(disk, "Ebs", "Encrypted")) {
					out.add(at, "the disk %s is not encrypted", Text(Get(disk, "DeviceName")))
				}
			}
		case "AWS::EC2::Volume":
			if !isTrue(p["Encrypted"]) {
				out.add(at, "is not encrypted")
			}
		}
	}
	return out
}

func encryptionInTransit(d *Deployment) []string {
	var out report
	for at, r := range d.Each() {
		p := r.Properties
		switch r.Type {
		case "AWS::S3::Bucket":
			if !refusesPlain(d, at, "AWS::S3::BucketPolicy", "Bucket") {
				out.add(at, "no bucket policy denies what comes without TLS (aws:SecureTransport)")
			}
		case "AWS::SQS::Queue":
			if !refusesPlain(d, at, "AWS::SQS::QueuePolicy", "Queues") {
				out.add(at, "no queue policy denies what comes without TLS (aws:SecureTransport)")
			}
		case "AWS::SNS::Topic":
			if !refusesPlain(d, at, "AWS::SNS::TopicPolicy", "Topics") {
				out.add(at, "no topic policy denies what comes without TLS (aws:SecureTransport)")
			}
		case "AWS::ElastiCache::ReplicationGroup":
			if mode := cmp.Or(Text(p["TransitEncryptionMode"]), "required"); !isTrue(p["TransitEncryptionEnabled"]) || mode != "required" {
				out.add(at, "TransitEncryptionEnabled is not true, or TransitEncryptionMode not required")
			}
		case "AWS::RDS::DBInstance":
			if !forcesTLS(d, at.Template, Text(p["DBParameterGroupName"])) {
				out.add(at, "its parameter group does not set rds.force_ssl to 1")
			}
		case "AWS::ElasticLoadBalancingV2::Listener":
			if p["Protocol"] != "HTTPS" {
				out.add(at, "listens for %s, want HTTPS", Text(p["Protocol"]))
			}
			if policy := Text(p["SslPolicy"]); !strings.HasPrefix(policy, "ELBSecurityPolicy-TLS13-1-") || strings.Contains(policy, "-1-0") || strings.Contains(policy, "-1-1") {
				out.add(at, "SslPolicy is %q, want one of ELBSecurityPolicy-TLS13 from TLS 1.2 on: the default knows TLS 1.0", policy)
			}
		case "AWS::CloudFront::VpcOrigin":
			if got := Text(Get(p, "VpcOriginEndpointConfig", "OriginProtocolPolicy")); got != "https-only" {
				out.add(at, "OriginProtocolPolicy is %q, want https-only", got)
			}
		case "AWS::CloudFront::Distribution":
			config := Get(p, "DistributionConfig")
			for _, b := range append(List(Get(config, "CacheBehaviors")), Get(config, "DefaultCacheBehavior")) {
				if got := Text(Get(b, "ViewerProtocolPolicy")); got != "https-only" && got != "redirect-to-https" {
					out.add(at, "behaviour %s: ViewerProtocolPolicy is %q, want https-only or redirect-to-https", cmp.Or(Text(Get(b, "PathPattern")), "default"), got)
				}
			}
			if got := Text(Get(config, "ViewerCertificate", "MinimumProtocolVersion")); got < "TLSv1.2_2021" {
				out.add(at, "MinimumProtocolVersion is %q, want TLSv1.2_2021 or later", got)
			}
			for _, origin := range List(Get(config, "Origins")) {
				if custom := Get(origin, "CustomOriginConfig"); custom != nil && Get(custom, "OriginProtocolPolicy") != "https-only" {
					out.add(at, "origin %s: OriginProtocolPolicy is not https-only", Text(Get(origin, "Id")))
				}
			}
		}
	}
	return out
}

// refusesPlain looks in a resource's policies for a denial of everything that comes
// without TLS.
func refusesPlain(d *Deployment, at At, policy, of string) bool {
	for where, r := range d.Each(policy) {
		if where.Template != at.Template || !slices.Contains(List(r.Properties[of]), any(Reference(at.Template, at.ID, ""))) {
			continue
		}
		for _, s := range statements(r.Properties["PolicyDocument"]) {
			everything := slices.ContainsFunc(List(Get(s, "Action")), func(v any) bool {
				return v == "*" || strings.HasSuffix(Text(v), ":*")
			})
			everybody := Text(Get(s, "Principal")) == "*" || Text(Get(s, "Principal", "AWS")) == "*"
			if Get(s, "Effect") == "Deny" && (everything || of == "Topics") && everybody && isFalse(Get(s, "Condition", "Bool", "aws:SecureTransport")) {
				return true
			}
		}
	}
	return false
}

func forcesTLS(d *Deployment, template, group string) bool {
	for at, r := range d.Each("AWS::RDS::DBParameterGroup") {
		if at.Template == template && group == Reference(template, at.ID, "") && Text(Get(r.Properties, "Parameters", "rds.force_ssl")) == "1" {
			return true
		}
	}
	return false
}

// wildcard begins the comment that gives the reason for one.
const wildcard = "Wildcard:"

// wildcards looks at the text of the templates, because the reason is a comment. A
// denial may be as wide as it likes.
func wildcards(d *Deployment) []string {
	var out []string
	for _, s := range d.Stacks {
		t := s.Template
		var walk func(n *yaml.Node)
		walk = func(n *yaml.Node) {
			if n.Kind == yaml.ScalarNode && strings.Contains(n.Value, `"Allow"`) && strings.Contains(n.Value, "*") && !t.explained(n.Line, wildcard) {
				out = append(out, fmt.Sprintf("%s.yaml line %d: a policy as a text has a * and no comment directly above that begins with \"# Wildcard:\" and says why", t.Name, n.Line))
			}
			if effect := field(n, "Effect"); effect != nil && effect.Value == "Allow" {
				for key, value := range pairs(n) {
					if key.Value == "Action" || key.Value == "Resource" {
						out = append(out, t.unexplainedStars(n, key, value)...)
					}
				}
			}
			for _, child := range n.Content {
				walk(child)
			}
		}
		walk(t.root)
	}
	return out
}

// unexplainedStars are those of a permission's actions or resources. The reason stands
// above the star, above the list that it is in, or above the permission.
func (t *Template) unexplainedStars(statement, key, value *yaml.Node) []string {
	if t.explained(key.Line, wildcard) || t.explained(firstLine(statement), wildcard) {
		return nil
	}
	var out []string
	var walk func(n *yaml.Node)
	walk = func(n *yaml.Node) {
		if n.Kind == yaml.ScalarNode && strings.Contains(n.Value, "*") && !t.explained(n.Line, wildcard) {
			out = append(out, fmt.Sprintf("%s.yaml line %d: %s has %s and no comment directly above that begins with \"# Wildcard:\" and says why", t.Name, n.Line, key.Value, n.Value))
		}
		for _, child := range n.Content {
			walk(child)
		}
	}
	walk(value)
	return out
}

func logRetention(d *Deployment) []string {
	var out report
	groups := map[string]bool{}
	for at, r := range d.Each("AWS::Logs::LogGroup") {
		if r.Properties["RetentionInDays"] == nil {
			out.add(at, "has no RetentionInDays: it would keep personal data for ever")
		}
		groups[Reference(at.Template, at.ID, "")] = true
		groups[Text(r.Properties["LogGroupName"])] = true
	}
	for at, r := range d.Each("AWS::Lambda::Function") {
		own := cmp.Or(Text(Get(r.Properties, "LoggingConfig", "LogGroup")), "/aws/lambda/"+Text(r.Properties["FunctionName"]))
		if !groups[own] {
			out.add(at, "its log group %s is not in the templates: Lambda would make one that is kept for ever", own)
		}
	}
	return out
}

// ledgerSnapshots: Redis comes back whole or empty, never as it was some time ago.
func ledgerSnapshots(d *Deployment) []string {
	var out report
	for at, r := range d.Each("AWS::ElastiCache::ReplicationGroup", "AWS::ElastiCache::CacheCluster", "AWS::ElastiCache::ServerlessCache") {
		if limit := Text(r.Properties["SnapshotRetentionLimit"]); limit != "0" {
			out.add(at, "SnapshotRetentionLimit is %q, want 0 and said: a snapshot could bring back an old ledger, without the seats sold since", limit)
		}
		for _, name := range []string{"SnapshotWindow", "SnapshotName", "SnapshotArns", "SnapshottingClusterId", "FinalSnapshotIdentifier"} {
			if r.Properties[name] != nil {
				out.add(at, "has %s: there are no snapshots of the ledger", name)
			}
		}
		if r.DeletionPolicy == "Snapshot" || r.UpdateReplacePolicy == "Snapshot" {
			out.add(at, "a policy of Snapshot: there are no snapshots of the ledger")
		}
	}
	return out
}

// kept is the DeletionPolicy of what stays when its stack goes. Retain alone also keeps it
// when a first creation that failed is rolled back, and its name is then taken when the
// stack is created again. UpdateReplacePolicy has no such value.
const kept = "RetainExceptOnCreate"

// dataPolicies are what a resource that holds data may say of its end; as a DeletionPolicy
// Retain is kept.
func dataPolicies() map[string][]string {
	return map[string][]string{
		"AWS::DynamoDB::Table":               {"Retain"},
		"AWS::S3::Bucket":                    {"Retain"},
		"AWS::KMS::Key":                      {"Retain"}, // what it encrypted is lost with it
		"AWS::SQS::Queue":                    {"Retain", "Delete"},
		"AWS::SecretsManager::Secret":        {"Retain", "Delete"},
		"AWS::RDS::DBInstance":               {"Snapshot", "Retain"},
		"AWS::ElastiCache::ReplicationGroup": {"Delete", "Retain"}, // see ledgerSnapshots
		"AWS::Logs::LogGroup":                {"Delete", "Retain"}, // its days are counted anyway
	}
}

func keptData(d *Deployment) []string {
	var out report
	allowed := dataPolicies()
	for at, r := range d.Each(slices.Collect(maps.Keys(allowed))...) {
		want := strings.Join(allowed[r.Type], " or ")
		if got := r.UpdateReplacePolicy; !slices.Contains(allowed[r.Type], got) {
			out.add(at, "UpdateReplacePolicy is %q, want %s: it holds data", got, want)
		}
		want = strings.ReplaceAll(want, "Retain", kept)
		if got := r.DeletionPolicy; !slices.Contains(strings.Split(want, " or "), got) {
			out.add(at, "DeletionPolicy is %q, want %s: it holds data", got, want)
		}
		switch r.Type {
		case "AWS::DynamoDB::Table":
			if !isTrue(r.Properties["DeletionProtectionEnabled"]) {
				out.add(at, "DeletionProtectionEnabled is not true")
			}
			if !isTrue(Get(r.Properties, "PointInTimeRecoverySpecification", "PointInTimeRecoveryEnabled")) {
				out.add(at, "point-in-time recovery is not on")
			}
		case "AWS::S3::Bucket":
			if Get(r.Properties, "VersioningConfiguration", "Status") != "Enabled" {
				out.add(at, "versioning is not Enabled: what is overwritten is lost")
			}
		}
	}
	return out
}

// latest is how late a figure may reach CloudWatch, in seconds, before an alarm may take
// it for missing.
const latest = 240

var (
	filled = regexp.MustCompile(`\bFILL\(`)
	epoch  = regexp.MustCompile(`\bEPOCH\((\w+)\)`)
)

// lateFigures: a figure that is late is none that is missing. FILL gives the minutes that
// have none yet a value, so an alarm on it waits until so many have it that no lateness
// explains them. EPOCH has a value where its metric has none, and arithmetic takes that
// metric for 0 there; IF leaves such minutes out.
func lateFigures(d *Deployment) []string {
	var out report
	for at, r := range d.Each("AWS::CloudWatch::Alarm") {
		period := 0
		for _, m := range List(r.Properties["Metrics"]) {
			period = max(period, number(Get(m, "MetricStat", "Period")), number(Get(m, "Period")))
		}
		datapoints := number(r.Properties["DatapointsToAlarm"])
		if datapoints == 0 {
			datapoints = number(r.Properties["EvaluationPeriods"])
		}
		for _, m := range List(r.Properties["Metrics"]) {
			expression := Text(Get(m, "Expression"))
			if filled.MatchString(expression) && datapoints*period < latest {
				out.add(at, "%s takes what is late for missing after %d s, want %d s at least", expression, datapoints*period, latest)
			}
			for _, e := range epoch.FindAllStringSubmatch(expression, -1) {
				if !strings.HasPrefix(expression, "IF("+e[1]+",") {
					out.add(at, "%s has a value where %s has none, want it within IF(%s, ...)", expression, e[1], e[1])
				}
			}
		}
	}
	return out
}

// number is a value that is a whole number, else 0.
func number(v any) int {
	n, _ := strconv.Atoi(Text(v)) // the linter refuses what is none
	return n
}

// Untaggable are the types in use here that take no tags.
func Untaggable() []string {
	return []string{
		"AWS::AutoScaling::LifecycleHook", "AWS::CloudFront::CachePolicy", "AWS::CloudFront::OriginAccessControl",
		"AWS::CloudFront::OriginRequestPolicy", "AWS::CloudFront::ResponseHeadersPolicy",
		"AWS::EC2::Route", "AWS::EC2::SecurityGroupEgress", "AWS::EC2::SecurityGroupIngress",
		"AWS::EC2::SubnetRouteTableAssociation", "AWS::EC2::VPCGatewayAttachment", "AWS::IAM::InstanceProfile",
		"AWS::IAM::Policy", "AWS::KMS::Alias", "AWS::Lambda::EventInvokeConfig", "AWS::Lambda::LayerVersion", "AWS::Lambda::Permission",
		"AWS::Logs::MetricFilter", "AWS::Logs::ResourcePolicy", "AWS::Route53::RecordSet", "AWS::S3::BucketPolicy",
		"AWS::SNS::Subscription", "AWS::SNS::TopicPolicy", "AWS::SQS::QueuePolicy",
		"AWS::SecretsManager::ResourcePolicy", "AWS::SecretsManager::SecretTargetAttachment",
		"AWS::WAFv2::LoggingConfiguration", "AWS::WAFv2::WebACLAssociation",
	}
}

func tags(d *Deployment) []string {
	var out report
	for at, r := range d.Each() {
		if slices.Contains(Untaggable(), r.Type) {
			continue
		}
		name, have := "Tags", map[string]string{}
		switch r.Type {
		case "AWS::Budgets::Budget":
			name = "ResourceTags"
		case "AWS::EC2::LaunchTemplate":
			name = "TagSpecifications"
		}
		for _, tag := range List(r.Properties[name]) {
			for _, tag := range append(List(Get(tag, "Tags")), tag) {
				have[Text(Get(tag, "Key"))] = Text(Get(tag, "Value"))
			}
		}
		if m, ok := r.Properties[name].(map[string]any); ok { // Parameter Store's
			for key, value := range m {
				have[key] = Text(value)
			}
		}
		if have["holdfast:deployment"] == "" {
			out.add(at, "%s has no holdfast:deployment", name)
		}
		if have["holdfast:part"] != at.Template {
			out.add(at, "%s has holdfast:part %q, want %s", name, have["holdfast:part"], at.Template)
		}
	}
	return out
}

// Exports are what each template exports, after the deployment's name and a colon; one
// that is not here exports nothing.
func Exports() map[string][]string {
	return map[string][]string{
		"network": {
			"VpcId", "PrivateSubnetIds", "BalancerSecurityGroupId", "InstanceSecurityGroupId", "RedisSecurityGroupId",
			"FunctionsSecurityGroupId", "DatabaseSecurityGroupId",
		},
		"data": {
			"KeyArn", "TableName", "TableArn", "TableStreamArn", "QueueName", "QueueArn", "DeadLetterQueueArn", "RedisAddress",
			"RedisId", "SiteBucket", "ArtifactBucket", "ApiSecretArn", "OperatorSecretArn", "LoaderSecretArn",
			"GatewaySecretArn", "OriginSecretArn",
		},
		"backoffice": {"DatabaseAddress", "DatabaseName", "DatabaseSecretArn", "DatabaseId"},
		"compute": {
			"BalancerArn", "BalancerFullName", "BalancerDnsName", "TargetGroupFullName", "FleetName", "ApiLogGroup",
			"WorkerLogGroup", "MetricsLogGroup",
		},
		"functions": {"SyncFunctionName", "ExpiryFunctionName", "SyncSourceId", "ExpirySourceId", "FailedChangesBucket"},
		"alarms":    {"Topic"},
	}
}

func exports(d *Deployment) []string {
	var out []string
	want := Exports()
	for _, s := range d.Stacks {
		name := s.Template.Name
		for export, value := range s.Exports {
			_, plain, ok := strings.Cut(export, ":")
			if !ok || !slices.Contains(want[name], plain) {
				out = append(out, fmt.Sprintf("%s.yaml: exports %s, which is not on the list of exports", name, export))
			}
			if value == "" {
				out = append(out, fmt.Sprintf("%s.yaml: exports %s without a value", name, export))
			}
		}
		for _, plain := range want[name] {
			if !slices.ContainsFunc(slices.Collect(maps.Keys(s.Exports)), func(e string) bool { return strings.HasSuffix(e, ":"+plain) }) {
				out = append(out, fmt.Sprintf("%s.yaml: does not export %s, which is on the list of exports", name, plain))
			}
		}
	}
	slices.Sort(out)
	return out
}

// imports: circles between stacks are Deploy's to refuse, by the order in which they are
// created.
func imports(d *Deployment) []string {
	var out []string
	if edge := d.Stack("edge"); edge != nil {
		for _, export := range slices.Sorted(maps.Keys(edge.Imports)) {
			out = append(out, fmt.Sprintf("edge.yaml: imports %s, and lives in a region where nothing is exported", export))
		}
	}
	return out
}

func linterExceptions(d *Deployment) []string {
	var out []string
	for _, s := range d.Stacks {
		t := s.Template
		var walk func(n *yaml.Node)
		walk = func(n *yaml.Node) {
			for key, value := range pairs(n) {
				if key.Value == "cfn-lint" && !t.explained(key.Line, "cfn-lint:") && !t.explained(firstLine(value), "cfn-lint:") {
					out = append(out, fmt.Sprintf("%s.yaml line %d: an exception for the linter without a comment above that begins with \"# cfn-lint:\" and says why", t.Name, key.Line))
				}
			}
			for _, child := range n.Content {
				walk(child)
			}
		}
		walk(t.root)
	}
	return out
}

func firstLine(n *yaml.Node) int {
	for key := range pairs(n) {
		return key.Line
	}
	return n.Line
}
