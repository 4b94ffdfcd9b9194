package stackcheck_test

import (
	"strings"
	"testing"

	"holdfast/internal/stackcheck"
)

// broken asks the rule of that name about a deployment.
func broken(t testing.TB, rule string, d *stackcheck.Deployment) []string {
	t.Helper()
	for _, r := range stackcheck.Rules() {
		if r.Name == rule {
			return r.Check(d)
		}
	}
	t.Fatalf("there is no rule %q", rule)
	return nil
}

// resource is a template with one resource A.
func resource(kind, properties string) string {
	return "Resources:\n  A:\n    Type: AWS::" + kind + "\n    Properties: " + properties + "\n"
}

// alarmOn is a template with an alarm A on an expression over a metric.
func alarmOn(period, expression, periods string) string {
	return resource("CloudWatch::Alarm", "{"+periods+", Metrics: [{Id: m, MetricStat: {Period: "+period+"}}, {Id: e, Expression: '"+expression+"'}]}")
}

const (
	blocked = "PublicAccessBlockConfiguration: {BlockPublicAcls: true, BlockPublicPolicy: true, IgnorePublicAcls: true, RestrictPublicBuckets: true}"
	plain   = "PolicyDocument: {Statement: [{Effect: Deny, Principal: '*', Action: 'x:*', Resource: '*', Condition: {Bool: {'aws:SecureTransport': false}}}]}"
	modern  = "Protocol: HTTPS, SslPolicy: ELBSecurityPolicy-TLS13-1-2-2021-06"
)

// Each line is a template with what its rule must say of it, or "" for nothing.
func TestRules_SayWhatIsWrongAndNothingElse(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ rule, name, text, want string }{
		{"public access", "blocked bucket", resource("S3::Bucket", "{"+blocked+"}"), ""},
		{"public access", "bucket", resource("S3::Bucket", "{}"), "BlockPublicPolicy is not true"},
		{"public access", "bucket with a hole", resource("S3::Bucket", "{"+strings.Replace(blocked, "IgnorePublicAcls: true", "IgnorePublicAcls: false", 1)+"}"), "IgnorePublicAcls"},
		{"public access", "website", resource("S3::Bucket", "{"+blocked+", WebsiteConfiguration: {}}"), "CloudFront only"},
		{"public access", "internal balancer", resource("ElasticLoadBalancingV2::LoadBalancer", "{Scheme: internal}"), ""},
		{"public access", "balancer", resource("ElasticLoadBalancingV2::LoadBalancer", "{}"), "want internal"},
		{"public access", "private database", resource("RDS::DBInstance", "{PubliclyAccessible: false}"), ""},
		{"public access", "database", resource("RDS::DBInstance", "{}"), "PubliclyAccessible"},
		{"public access", "subnet", resource("EC2::Subnet", "{MapPublicIpOnLaunch: true}"), "MapPublicIpOnLaunch"},
		{"public access", "address", resource("EC2::EIP", "{}"), "no NAT gateway"},
		{"public access", "a gateway's address", resource("EC2::EIP", "{}") + "  B: {Type: AWS::EC2::NatGateway, Properties: {AllocationId: !GetAtt A.AllocationId}}\n", ""},
		{"public access", "the address of a gateway that is not made", resource("EC2::EIP", "{}") + "  B: {Type: AWS::EC2::NatGateway, Condition: No, Properties: {AllocationId: !GetAtt A.AllocationId}}\nConditions: {No: !Equals [a, b]}\n", ""},
		{"public access", "the address beside a gateway's", resource("EC2::EIP", "{}") + "  B: {Type: AWS::EC2::NatGateway, Properties: {AllocationId: !GetAtt C.AllocationId}}\n  C: {Type: AWS::EC2::EIP}\n", "A: a public address that no NAT gateway"},
		{"public access", "instance", resource("EC2::LaunchTemplate", "{LaunchTemplateData: {NetworkInterfaces: [{DeviceIndex: 0}]}}"), "AssociatePublicIpAddress"},
		{"public access", "instance with a key", resource("EC2::LaunchTemplate", "{LaunchTemplateData: {KeyName: k}}"), "Session Manager"},
		{"public access", "private instance", resource("EC2::LaunchTemplate", "{LaunchTemplateData: {NetworkInterfaces: [{AssociatePublicIpAddress: false}]}}"), ""},
		{"public access", "open group", resource("EC2::SecurityGroup", "{SecurityGroupEgress: [], SecurityGroupIngress: [{CidrIp: 0.0.0.0/0}]}"), "lets 0.0.0.0/0 in"},
		{"public access", "group that lets all out", resource("EC2::SecurityGroup", "{}"), "SecurityGroupEgress"},
		{"public access", "open rule", resource("EC2::SecurityGroupIngress", "{CidrIpv6: '::/0'}"), "lets ::/0 in"},
		{"public access", "rule", resource("EC2::SecurityGroupIngress", "{CidrIp: 10.0.0.0/8}"), ""},
		{"public access", "function's address", resource("Lambda::Url", "{}"), "address of its own"},

		{"open policies", "everybody", resource("S3::BucketPolicy", "{PolicyDocument: {Statement: {Effect: Allow, Principal: {AWS: '*'}, Action: a, Resource: b}}}"), "allows everybody"},
		{"open policies", "everybody of this account", resource("S3::BucketPolicy", "{PolicyDocument: {Statement: {Effect: Allow, Principal: '*', Action: a, Resource: b, Condition: {}}}}"), ""},
		{"open policies", "all but", resource("IAM::Policy", "{PolicyDocument: {Statement: [{Effect: Allow, NotAction: a, Resource: b}]}}"), "all but what it names"},
		{"open policies", "open function", resource("Lambda::Permission", "{Principal: '*'}"), "may call the function"},

		{"encryption at rest", "bucket", resource("S3::Bucket", "{}"), "BucketEncryption"},
		{"encryption at rest", "encrypted bucket", resource("S3::Bucket", "{BucketEncryption: {ServerSideEncryptionConfiguration: [{ServerSideEncryptionByDefault: {SSEAlgorithm: aws:kms}}]}}"), ""},
		{"encryption at rest", "table", resource("DynamoDB::Table", "{SSESpecification: {SSEEnabled: false}}"), "SSEEnabled"},
		{"encryption at rest", "queue", resource("SQS::Queue", "{}"), "KmsMasterKeyId"},
		{"encryption at rest", "queue with SQS's key", resource("SQS::Queue", "{SqsManagedSseEnabled: true}"), ""},
		{"encryption at rest", "topic", resource("SNS::Topic", "{}"), "KmsMasterKeyId"},
		{"encryption at rest", "seats", resource("ElastiCache::ReplicationGroup", "{}"), "AtRestEncryptionEnabled"},
		{"encryption at rest", "database", resource("RDS::DBInstance", "{}"), "StorageEncrypted"},
		{"encryption at rest", "instance without a disk", resource("EC2::LaunchTemplate", "{LaunchTemplateData: {}}"), "BlockDeviceMappings"},
		{"encryption at rest", "instance with a plain disk", resource("EC2::LaunchTemplate", "{LaunchTemplateData: {BlockDeviceMappings: [{DeviceName: /dev/xvda, Ebs: {}}]}}"), "/dev/xvda is not encrypted"},
		{"encryption at rest", "disk", resource("EC2::Volume", "{}"), "not encrypted"},

		{"encryption in transit", "bucket", resource("S3::Bucket", "{}"), "aws:SecureTransport"},
		{"encryption in transit", "bucket by TLS", resource("S3::Bucket", "{}") + "  B: {Type: AWS::S3::BucketPolicy, Properties: {Bucket: !Ref A, " + plain + "}}\n", ""},
		{"encryption in transit", "bucket with another's policy", resource("S3::Bucket", "{}") + "  B: {Type: AWS::S3::BucketPolicy, Properties: {Bucket: other, " + plain + "}}\n", "aws:SecureTransport"},
		{"encryption in transit", "queue", resource("SQS::Queue", "{}"), "aws:SecureTransport"},
		{"encryption in transit", "topic", resource("SNS::Topic", "{}"), "aws:SecureTransport"},
		{"encryption in transit", "seats", resource("ElastiCache::ReplicationGroup", "{TransitEncryptionEnabled: true, TransitEncryptionMode: preferred}"), "TransitEncryptionMode"},
		{"encryption in transit", "seats by TLS", resource("ElastiCache::ReplicationGroup", "{TransitEncryptionEnabled: true}"), ""},
		{"encryption in transit", "database", resource("RDS::DBInstance", "{}"), "rds.force_ssl"},
		{"encryption in transit", "database by TLS", resource("RDS::DBInstance", "{DBParameterGroupName: !Ref B}") + "  B: {Type: AWS::RDS::DBParameterGroup, Properties: {Parameters: {rds.force_ssl: 1}}}\n", ""},
		{"encryption in transit", "listener", resource("ElasticLoadBalancingV2::Listener", "{Protocol: HTTP}"), "want HTTPS"},
		{"encryption in transit", "old listener", resource("ElasticLoadBalancingV2::Listener", "{Protocol: HTTPS}"), "SslPolicy"},
		{"encryption in transit", "modern listener", resource("ElasticLoadBalancingV2::Listener", "{"+modern+"}"), ""},
		{"encryption in transit", "origin", resource("CloudFront::VpcOrigin", "{VpcOriginEndpointConfig: {OriginProtocolPolicy: match-viewer}}"), "want https-only"},
		{"encryption in transit", "distribution", resource("CloudFront::Distribution", "{DistributionConfig: {DefaultCacheBehavior: {ViewerProtocolPolicy: allow-all}, ViewerCertificate: {MinimumProtocolVersion: TLSv1.2_2021}}}"), "behaviour default"},
		{"encryption in transit", "old distribution", resource("CloudFront::Distribution", "{DistributionConfig: {DefaultCacheBehavior: {ViewerProtocolPolicy: https-only}, ViewerCertificate: {MinimumProtocolVersion: TLSv1.1_2016}}}"), "MinimumProtocolVersion"},

		{"wildcards", "unexplained", "Resources:\n  A:\n    Type: AWS::IAM::Policy\n    Properties:\n      S:\n        - Effect: Allow\n          Action: a:b\n          Resource: '*'\n", "line 8: Resource has *"},
		{"wildcards", "explained", "Resources:\n  A:\n    Type: AWS::IAM::Policy\n    Properties:\n      S:\n        - Effect: Allow\n          Action: a:b\n          # Wildcard: the call takes no resource.\n          Resource: '*'\n", ""},
		{"wildcards", "explained above the permission", "Resources:\n  A:\n    Type: AWS::IAM::Policy\n    Properties:\n      S:\n        # Wildcard: both calls take no resource.\n        - Effect: Allow\n          Action: [a:b, a:c]\n          Resource: '*'\n        - Effect: Allow\n          Action: a:d\n          Resource: x/*\n", "line 12"},
		{"wildcards", "explained in two lines", "Resources:\n  A:\n    Type: AWS::IAM::Policy\n    Properties:\n      S:\n        - Effect: Allow\n          Action: a:b\n          # Wildcard: the call\n          # takes no resource.\n          Resource: '*'\n", ""},
		{"wildcards", "without a reason", "Resources:\n  A:\n    Type: AWS::IAM::Policy\n    Properties:\n      S:\n        - Effect: Allow\n          Action: a:b\n          # Wildcard:\n          Resource: '*'\n", "line 9"},
		{"wildcards", "in a list", "Resources:\n  A:\n    Type: AWS::IAM::Policy\n    Properties:\n      S:\n        - Effect: Allow\n          # Wildcard: is of the action.\n          Action: 'a:*'\n          Resource:\n            - x\n            - !Sub '${A}/*'\n", "line 11"},
		{"wildcards", "denied", "Resources:\n  A:\n    Type: AWS::IAM::Policy\n    Properties:\n      S: [{Effect: Deny, Action: '*', Resource: '*'}]\n", ""},

		{"wildcards", "as a text", "Resources:\n  A:\n    Type: AWS::Logs::ResourcePolicy\n    Properties:\n      PolicyDocument: '{\"Effect\": \"Allow\", \"Action\": \"a:*\"}'\n", "line 5: a policy as a text"},
		{"open policies", "as a text", resource("X::Y", `{PolicyDocument: '{"Statement": [{"Effect": "Allow", "Principal": "*"}]}'}`), "allows everybody"},

		{"log retention", "for ever", resource("Logs::LogGroup", "{}"), "RetentionInDays"},
		{"log retention", "a month", resource("Logs::LogGroup", "{RetentionInDays: 30}"), ""},
		{"log retention", "function", resource("Lambda::Function", "{FunctionName: f}"), "/aws/lambda/f is not in the templates"},
		{"log retention", "function with its group", resource("Lambda::Function", "{FunctionName: f}") + "  B: {Type: AWS::Logs::LogGroup, Properties: {LogGroupName: /aws/lambda/f, RetentionInDays: 1}}\n", ""},
		{"log retention", "function with another group", resource("Lambda::Function", "{LoggingConfig: {LogGroup: !Ref B}}") + "  B: {Type: AWS::Logs::LogGroup, Properties: {RetentionInDays: 1}}\n", ""},

		{"snapshots of the ledger", "on", resource("ElastiCache::ReplicationGroup", "{SnapshotRetentionLimit: 7}"), "want 0"},
		{"snapshots of the ledger", "not said", resource("ElastiCache::ReplicationGroup", "{}"), "want 0"},
		{"snapshots of the ledger", "window", resource("ElastiCache::ReplicationGroup", "{SnapshotRetentionLimit: 0, SnapshotWindow: x}"), "SnapshotWindow"},
		{"snapshots of the ledger", "last", "Resources: {A: {Type: AWS::ElastiCache::ReplicationGroup, DeletionPolicy: Snapshot, Properties: {SnapshotRetentionLimit: 0}}}", "policy of Snapshot"},
		{"snapshots of the ledger", "off", resource("ElastiCache::ReplicationGroup", "{SnapshotRetentionLimit: 0}"), ""},

		{"kept data", "key", resource("KMS::Key", "{}"), "DeletionPolicy is \"\", want RetainExceptOnCreate"},
		{"kept data", "key that is in the way of a second creation", "Resources: {A: {Type: AWS::KMS::Key, DeletionPolicy: Retain, UpdateReplacePolicy: Retain}}", "DeletionPolicy is \"Retain\", want RetainExceptOnCreate"},
		{"kept data", "key whose replacement CloudFormation does not know", "Resources: {A: {Type: AWS::KMS::Key, DeletionPolicy: RetainExceptOnCreate, UpdateReplacePolicy: RetainExceptOnCreate}}", "UpdateReplacePolicy is \"RetainExceptOnCreate\", want Retain"},
		{"kept data", "kept key", "Resources: {A: {Type: AWS::KMS::Key, DeletionPolicy: RetainExceptOnCreate, UpdateReplacePolicy: Retain}}", ""},
		{"kept data", "bucket", "Resources: {A: {Type: AWS::S3::Bucket, DeletionPolicy: RetainExceptOnCreate, UpdateReplacePolicy: Retain}}", "versioning"},
		{"kept data", "replaced key", "Resources: {A: {Type: AWS::KMS::Key, DeletionPolicy: RetainExceptOnCreate, UpdateReplacePolicy: Delete}}", "UpdateReplacePolicy is \"Delete\""},
		{"kept data", "database", "Resources: {A: {Type: AWS::RDS::DBInstance, DeletionPolicy: Delete, UpdateReplacePolicy: Snapshot}}", "want Snapshot or RetainExceptOnCreate"},
		{"kept data", "table", "Resources: {A: {Type: AWS::DynamoDB::Table, DeletionPolicy: RetainExceptOnCreate, UpdateReplacePolicy: Retain, Properties: {DeletionProtectionEnabled: true}}}", "point-in-time recovery"},

		{"late figures", "filled", alarmOn("60", "FILL(m, 0)", "EvaluationPeriods: 2"), "after 120 s, want 240 s"},
		{"late figures", "filled for long", alarmOn("300", "FILL(m, 0)", "EvaluationPeriods: 1"), ""},
		{"late figures", "filled, some of many", alarmOn("60", "MIN(FILL(METRICS(), 0))", "EvaluationPeriods: 5, DatapointsToAlarm: 3"), "after 180 s"},
		{"late figures", "filled, most of many", alarmOn("60", "MIN(FILL(METRICS(), 0))", "EvaluationPeriods: 5, DatapointsToAlarm: 4"), ""},
		{"late figures", "age", alarmOn("60", "EPOCH(m) - m", "EvaluationPeriods: 5"), "within IF(m, ...)"},
		{"late figures", "age where another is", alarmOn("60", "IF(n, EPOCH(m) - m)", "EvaluationPeriods: 5"), "within IF(m, ...)"},
		{"late figures", "age of what is there", alarmOn("60", "IF(m, EPOCH(m) - m)", "EvaluationPeriods: 2"), ""},

		{"tags", "none", resource("SQS::Queue", "{}"), "holdfast:deployment"},
		{"tags", "both", resource("SQS::Queue", "{Tags: [{Key: holdfast:deployment, Value: x}, {Key: holdfast:part, Value: one}]}"), ""},
		{"tags", "another part", resource("SQS::Queue", "{Tags: [{Key: holdfast:deployment, Value: x}, {Key: holdfast:part, Value: two}]}"), "want one"},
		{"tags", "a parameter's", resource("SSM::Parameter", "{Tags: {'holdfast:deployment': x, 'holdfast:part': one}}"), ""},
		{"tags", "a launch template's", resource("EC2::LaunchTemplate", "{TagSpecifications: [{ResourceType: launch-template, Tags: [{Key: holdfast:deployment, Value: x}, {Key: holdfast:part, Value: one}]}]}"), ""},
		{"tags", "a budget's", resource("Budgets::Budget", "{ResourceTags: [{Key: holdfast:deployment, Value: x}, {Key: holdfast:part, Value: one}]}"), ""},
		{"tags", "not taggable", resource("EC2::Route", "{}"), ""},

		{"exports", "not on the list", resource("X::Y", "{}") + "Outputs: {A: {Value: x, Export: {Name: 'holdfast:A'}}}", "not on the list"},
		{"exports", "none", resource("X::Y", "{}"), ""},

		{"exceptions for the linter", "unexplained", "Resources:\n  A:\n    Type: AWS::X::Y\n    Metadata:\n      cfn-lint:\n        config: {}\n", "line 5"},
		{"exceptions for the linter", "explained", "Resources:\n  A:\n    Type: AWS::X::Y\n    Metadata:\n      # cfn-lint: the schema is older than the property.\n      cfn-lint:\n        config: {}\n", ""},
	} {
		s, err := one(c.text, stackcheck.Inputs{})
		if err != nil {
			t.Errorf("%s, %s: %v", c.rule, c.name, err)
			continue
		}
		got := broken(t, c.rule, &stackcheck.Deployment{Stacks: []*stackcheck.Stack{s}})
		if c.want == "" && len(got) > 0 {
			t.Errorf("%s, %s: got %q, want nothing", c.rule, c.name, got)
		}
		if c.want != "" && !strings.Contains(strings.Join(got, "\n"), c.want) {
			t.Errorf("%s, %s: got %q, want %q in it", c.rule, c.name, got, c.want)
		}
	}
}

func TestRules_ExportsOfTheListAreMissedAndEdgeImportsNothing(t *testing.T) {
	t.Parallel()
	backoffice, err := stackcheck.Parse("backoffice", []byte(resource("X::Y", "{}")))
	if err != nil {
		t.Fatal(err)
	}
	edge, err := stackcheck.Parse("edge", []byte(resource("X::Y", "{V: !ImportValue 'holdfast:V'}")))
	if err != nil {
		t.Fatal(err)
	}
	var d stackcheck.Deployment
	for _, tpl := range []*stackcheck.Template{backoffice, edge} {
		s, err := tpl.Resolve(stackcheck.Inputs{Imports: map[string]string{"holdfast:V": "x"}})
		if err != nil {
			t.Fatal(err)
		}
		d.Stacks = append(d.Stacks, s)
	}
	if got := strings.Join(broken(t, "exports", &d), "\n"); !strings.Contains(got, "does not export DatabaseAddress") {
		t.Errorf("exports: got %q, want what is missing", got)
	}
	if got := strings.Join(broken(t, "imports", &d), "\n"); !strings.Contains(got, "edge.yaml: imports holdfast:V") {
		t.Errorf("imports: got %q, want edge's named", got)
	}
}

func TestTemplates_KeepTheRules(t *testing.T) {
	t.Parallel()
	templates := parse(t, sources(t))
	for name, chosen := range deployments() {
		d, err := deploy(templates, chosen)
		if err != nil {
			t.Errorf("%s: got %v, want it evaluated", name, err)
			continue
		}
		for _, rule := range stackcheck.Rules() {
			for _, problem := range rule.Check(d) {
				t.Errorf("%s: %s: %s", name, rule.Name, problem)
			}
		}
	}
}
