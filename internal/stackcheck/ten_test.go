package stackcheck_test

import (
	"bytes"
	"strings"
	"testing"

	"holdfast/internal/stackcheck"
)

// damage is one thing that somebody may do to a template.
type damage struct {
	name, template string
	// old becomes new, where it stands first; it must stand there.
	old, new string
	// finds is the rule or comparison that is meant for it, and says is what it says then.
	finds, says string
}

// damages are what `make check-cloud` must not let pass.
func damages() []damage {
	return []damage{
		{"a bucket can be made public", "functions", "BlockPublicPolicy: true", "BlockPublicPolicy: false", "public access", "BlockPublicPolicy is not true"},
		{"the balancer is public", "compute", "Scheme: internal\n", "Scheme: internet-facing\n", "public access", "want internal"},
		{"the database is public", "backoffice", "PubliclyAccessible: false", "PubliclyAccessible: true", "public access", "PubliclyAccessible"},
		{"everybody reaches the balancer", "network", "SourcePrefixListId: !Ref CloudFrontPrefixListId", "CidrIp: 0.0.0.0/0", "public access", "lets 0.0.0.0/0 in"},
		{"the table is not encrypted", "data", "SSEEnabled: true", "SSEEnabled: false", "encryption at rest", "SSEEnabled is not true"},
		{"Redis takes plain connections", "data", "TransitEncryptionEnabled: true", "TransitEncryptionEnabled: false", "encryption in transit", "TransitEncryptionEnabled is not true"},
		{"the edge talks plainly to the balancer", "edge", "OriginProtocolPolicy: https-only", "OriginProtocolPolicy: match-viewer", "encryption in transit", "want https-only"},
		{"a wildcard without a reason", "network", "# Wildcard: the call lists", "# The call lists", "wildcards", "Resource has *"},
		{"a log is kept for ever", "functions", "      RetentionInDays: !Ref LogRetention\n", "", "log retention", "has no RetentionInDays"},
		{"Redis is saved every day", "data", "SnapshotRetentionLimit: 0", "SnapshotRetentionLimit: 1", "snapshots of the ledger", "an old ledger"},
		{"the database goes with its stack", "backoffice", "DeletionPolicy: Snapshot", "DeletionPolicy: Delete", "kept data", `DeletionPolicy is "Delete"`},
		{"a table that is in the way of its second creation", "data", "  Table:\n    Type: AWS::DynamoDB::Table\n    DeletionPolicy: RetainExceptOnCreate", "  Table:\n    Type: AWS::DynamoDB::Table\n    DeletionPolicy: Retain", "kept data", `DeletionPolicy is "Retain"`},
		{"an age of what is late", "alarms", "'IF(last, EPOCH(last) + PERIOD(last) - last)'", "'EPOCH(last) + PERIOD(last) - last'", "late figures", "has a value where last has none"},
		{"late figures taken for missing", "alarms", "Expression: 'MIN([apis, workers])'}\n      ComparisonOperator: LessThanThreshold\n      Threshold: 1\n      EvaluationPeriods: 5\n      DatapointsToAlarm: 4", "Expression: 'MIN([apis, workers])'}\n      ComparisonOperator: LessThanThreshold\n      Threshold: 1\n      EvaluationPeriods: 2", "late figures", "InstanceDown: FILL(api, 0) takes what is late for missing after 120 s"},
		{"a tag of another part", "compute", "Value: compute}", "Value: network}", "tags", "want compute"},
		{"an export is gone", "compute", "Export: {Name: !Sub '${Deployment}:WorkerLogGroup'}", "Export: {Name: !Sub '${Deployment}:WorkerLogs'}", "exports", "does not export WorkerLogGroup"},

		{"an index is renamed", "data", "IndexName: by_payment", "IndexName: by_payments", "the booking table", "by_payments"},
		{"TTL goes by another attribute", "data", "AttributeName: ttl", "AttributeName: expires", "the booking table", "expires"},
		{"the queue is slow", "data", "FifoThroughputLimit: perMessageGroupId", "FifoThroughputLimit: perQueue", "the queues", `want "perMessageGroupId"`},
		{"a setting is renamed", "compute", "HOLDFAST_LINGER=", "HOLDFAST_LINGERS=", "the processes' settings", "HOLDFAST_LINGERS: the program reads no such variable"},
		{"a required setting is gone", "compute", "HOLDFAST_PUBLIC_URL=https://${PublicHost}", "# no name", "the processes' settings", "HOLDFAST_PUBLIC_URL: required"},
		{"a secret stands in the user data", "compute", "HOLDFAST_SEAL_KEY_REF=secretsmanager:${ApiSecret}#seal_key", "HOLDFAST_SEAL_KEY=00", "the processes' settings", "a secret stands here"},
		{"a secret's key is another", "compute", "#seal_key", "#sealkey", "the processes' settings", `has no key "sealkey"`},
		{"a function's setting is renamed", "functions", "HOLDFAST_SALE:", "HOLDFAST_SALES:", "the functions' settings", "HOLDFAST_SALES: the program reads no such variable"},
		{"failures of a function count as success", "functions", "      FunctionResponseTypes: [ReportBatchItemFailures]\n", "", "the functions' stream", "ReportBatchItemFailures"},
		{"the balancer is slow to see an end", "compute", "HealthCheckIntervalSeconds: 5", "HealthCheckIntervalSeconds: 10", "the end of an instance", "want less than HOLDFAST_LINGER"},
		{"a balancer that cuts off at once", "compute", "deregistration_delay.timeout_seconds, Value: '30'", "deregistration_delay.timeout_seconds, Value: '5'", "the end of an instance", "deregistration_delay"},
		{"another unit", "compute", "HOLDFAST_DATA=/var/lib/holdfast", "HOLDFAST_DATA=holdfast-cron.service", "the units and their logs", "holdfast-cron.service"},
		{"a log group of another name", "compute", "/holdfast/${Deployment}/worker'", "/holdfast/${Deployment}/workers'", "the units and their logs", "writes to /holdfast/holdfast/worker, and no stack"},

		{"a route without a behaviour", "edge", "PathPattern: /booking/*", "PathPattern: /bookings/*", "the routes", "GET /booking/{token}, behaviour default: does not lead to the balancer"},
		{"a form cannot be posted", "edge", "AllowedMethods: [GET, HEAD, OPTIONS, PUT, POST, PATCH, DELETE]", "AllowedMethods: [GET, HEAD]", "the routes", "POST /book, behaviour /book: does not allow POST"},
		{"a rule of the firewall is gone", "edge", "SearchString: /payment/callback", "SearchString: /payment/return", "the routes", "GET /payment/callback: an address may ask 0 times"},
		{"bookings of any size", "edge", "OversizeHandling: MATCH", "OversizeHandling: CONTINUE", "the routes", "POST /book: a rule refuses a body over 8 KiB: false"},
		{"a status that is a minute old", "edge", "MaxTTL: 1\n", "MaxTTL: 60\n", "the routes", "GET /status.json, behaviour /status.json: keeps answers for up to 60 s"},
		{"the bare name of the distribution", "edge", "if (host && host", "if (true || host", "the host guard", `the host "d111111abcdef8.cloudfront.net": passes`},
		{"a behaviour that nobody guards", "edge", "            FunctionAssociations:\n              - {EventType: viewer-request", "            FunctionAssociations:\n              - {EventType: viewer-response", "the host guard", `behaviour "/book": HostGuard does not see`},
		{"Redis evicts", "data", "maxmemory-policy: noeviction", "maxmemory-policy: allkeys-lru", "Redis and its users", "want noeviction"},
		{"a user without a password", "data", "AccessString: off resetkeys", "AccessString: on resetkeys", "Redis and its users", "the user default is off"},
		{"a user that may do anything", "data", "on resetkeys resetchannels -@all ~{sale}:* ~token:*", "on resetchannels +@all ~{sale}:* ~token:*", "Redis and its users", "AccessString has +@all"},
		{"a loader that opens the sale", "data", "%R~{sale}:booking:open ", "~{sale}:booking:open ", "Redis and its users", "may write ~{sale}:booking:open"},
		{"a secret without a key", "data", `{"seal_key":`, `{"sealing":`, "the secrets", "its keys"},
		{"a release that can be overwritten", "data", "Condition: {'Null': {'s3:if-none-match': 'true'}}", "Condition: {'Null': {'s3:if-match': 'true'}}", "the buckets", "releases/* may be overwritten"},
		{"exports that stay for ever", "data", "            Prefix: exports/\n            ExpirationInDays: 30\n            NoncurrentVersionExpiration: {NoncurrentDays: 1}", "            Prefix: exports/\n            ExpirationInDays: 30", "the buckets", "exports/ has no end, old versions included"},
		{"an absent page that is forbidden", "data", "Action: s3:ListBucket", "Action: s3:ListBucketVersions", "the buckets", "CloudFront may not s3:ListBucket"},
		{"an empty path that lists the bucket", "edge", "        DefaultRootObject: index.html\n", "", "the buckets", "no DefaultRootObject"},
		{"a call that is not allowed", "compute", "                  - dynamodb:GetItem\n", "", "the permissions", "does not allow dynamodb:GetItem"},
		{"more than a program calls", "compute", "- dynamodb:Scan\n", "- dynamodb:Scan\n                  - dynamodb:DeleteTable\n", "the permissions", "allows dynamodb:DeleteTable, which no program calls"},
		{"a balancer that lets everybody in", "compute", ":SecretString:previous", ":SecretString:current", "the origin secret", "the key previous"},
		{"a page whose script does not run", "edge", "script-src 'sha256-", "script-src 'sha256-x", "the routes", "Content-Security-Policy"},

		{"an alarm without a runbook", "alarms", "docs/runbooks/queue-unread.md", "docs/runbooks/nothing.md", "the alarms", "names no runbook that there is"},
		{"an alarm that nobody hears", "alarms", "AlarmActions: [!Ref Topic]", "AlarmActions: []", "the alarms", "nobody would hear it"},
		{"an alarm on a metric that there is not", "alarms", "holdfast_queue_depth", "holdfast_queue_length", "the alarms", "no process exports holdfast_queue_length"},
		{"a figure of the machines that nobody ships", "alarms", "MetricName: disk_used_percent", "MetricName: mem_used_percent", "the alarms", "agent.json does not ship mem_used_percent"},
		{"what a function gave up on is not heard", "alarms", "${Deployment}:ExpirySourceId", "${Deployment}:SyncSourceId", "the alarms", "ExpirySource: no alarm hears its OnFailureDestinationDeliveredEventCount"},
		{"an alert without an alarm", "alarms", "'${Deployment}-LedgerMismatch'", "'${Deployment}-LedgerDiffers'", "the alarms", "no alarm for the alert LedgerMismatch"},
	}
}

func TestTemplates_DamageIsFound(t *testing.T) {
	t.Parallel()
	checks := map[string]func(*stackcheck.Deployment) []string{}
	for _, r := range stackcheck.Rules() {
		checks[r.Name] = r.Check
	}
	for _, c := range comparisons() {
		checks[c.name] = c.check
	}
	whole := sources(t)
	harmless, err := deploy(parse(t, whole), deployments()["launch"])
	if err != nil {
		t.Fatalf("undamaged: %v", err)
	}
	for _, x := range damages() {
		t.Run(x.name, func(t *testing.T) {
			t.Parallel()
			check := checks[x.finds]
			if before := strings.Join(check(harmless), "\n"); strings.Contains(before, x.says) {
				t.Errorf("undamaged: %s: got %q, want nothing of %q", x.finds, before, x.says)
			}
			if !bytes.Contains(whole[x.template], []byte(x.old)) {
				t.Fatalf("%s.yaml has no %q any more: damage it in another place", x.template, x.old)
			}
			damaged := sources(t)
			damaged[x.template] = bytes.Replace(damaged[x.template], []byte(x.old), []byte(x.new), 1)
			d, err := deploy(parse(t, damaged), deployments()["launch"])
			if err != nil {
				t.Fatalf("damaged: got %v, want it evaluated", err)
			}
			if got := strings.Join(check(d), "\n"); !strings.Contains(got, x.says) {
				t.Errorf("%s: got %q, want %q in it", x.finds, got, x.says)
			}
		})
	}
}

func TestTemplates_CirclesAndLostImportsAreFound(t *testing.T) {
	t.Parallel()
	for name, x := range map[string]damage{
		"a circle":      {template: "network", old: "CidrBlock: !Ref VpcCidr", new: "CidrBlock: {'Fn::ImportValue': !Sub '${Deployment}:TableName'}", says: "nobody exports holdfast:TableName"},
		"a lost import": {template: "compute", old: "${Deployment}:RedisAddress", new: "${Deployment}:RedisHost", says: "nobody exports holdfast:RedisHost"},
	} {
		damaged := sources(t)
		if !bytes.Contains(damaged[x.template], []byte(x.old)) {
			t.Fatalf("%s.yaml has no %q any more: damage it in another place", x.template, x.old)
		}
		damaged[x.template] = bytes.Replace(damaged[x.template], []byte(x.old), []byte(x.new), 1)
		if _, err := deploy(parse(t, damaged), deployments()["small"]); err == nil || !strings.Contains(err.Error(), x.says) {
			t.Errorf("%s: got %v, want an error with %q", name, err, x.says)
		}
	}
}
