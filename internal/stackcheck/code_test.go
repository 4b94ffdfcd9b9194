package stackcheck_test

import (
	"cmp"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"
	gocmp "github.com/google/go-cmp/cmp"

	"holdfast/internal/app/functions"
	"holdfast/internal/config"
	"holdfast/internal/queue/sqs"
	"holdfast/internal/stackcheck"
	"holdfast/internal/store/dynamo"
)

// comparison is of the templates with the programs: what differs, one line each.
type comparison struct {
	name  string
	check func(*stackcheck.Deployment) []string
}

// comparisons are all of them; ten_test.go damages the templates and asks them again.
func comparisons() []comparison {
	return []comparison{
		{"the booking table", tableProblems},
		{"the queues", queueProblems},
		{"the processes' settings", settingProblems},
		{"the functions' settings", functionProblems},
		{"the functions' stream", streamProblems},
		{"the end of an instance", drainProblems},
		{"the routes", routeProblems},
		{"the host guard", guardProblems},
		{"the origin secret", originProblems},
		{"the permissions", permissionProblems},
		{"Redis and its users", redisProblems},
		{"the secrets", secretProblems},
		{"the buckets", bucketProblems},
		{"the alarms", alarmProblems},
		{"the units and their logs", unitProblems},
	}
}

func TestTemplates_AreWhatTheProgramsExpect(t *testing.T) {
	t.Parallel()
	templates := parse(t, sources(t))
	for name, chosen := range deployments() {
		d, err := deploy(templates, chosen)
		if err != nil {
			t.Errorf("%s: got %v, want it evaluated", name, err)
			continue
		}
		for _, c := range comparisons() {
			for _, problem := range c.check(d) {
				t.Errorf("%s: %s: %s", name, c.name, problem)
			}
		}
	}
}

// only is the one resource of a type in a stack.
func only(d *stackcheck.Deployment, stack, kind string) (stackcheck.Resource, error) {
	var found []stackcheck.Resource
	for at, r := range d.Each(kind) {
		if at.Template == stack {
			found = append(found, r)
		}
	}
	if len(found) != 1 {
		return stackcheck.Resource{}, fmt.Errorf("%s.yaml: got %d of %s, want 1", stack, len(found), kind)
	}
	return found[0], nil
}

// table is what makes a table the one that internal/store/dynamo works on.
type table struct {
	Attributes, Keys []string
	Indexes          map[string][]string
	Billing, Stream  string
	Protected        bool
	TTL              string
	Recoverable      bool
}

func tableProblems(d *stackcheck.Deployment) []string {
	r, err := only(d, "data", "AWS::DynamoDB::Table")
	if err != nil {
		return []string{err.Error()}
	}
	p := r.Properties
	keys := func(v any) []string {
		var all []string
		for _, k := range stackcheck.List(v) {
			all = append(all, stackcheck.Text(stackcheck.Get(k, "AttributeName"))+" "+stackcheck.Text(stackcheck.Get(k, "KeyType")))
		}
		return all
	}
	got := table{
		Keys: keys(p["KeySchema"]), Indexes: map[string][]string{}, Billing: stackcheck.Text(p["BillingMode"]),
		Stream:    stackcheck.Text(stackcheck.Get(p, "StreamSpecification", "StreamViewType")),
		Protected: stackcheck.Text(p["DeletionProtectionEnabled"]) == "true",
	}
	for _, a := range stackcheck.List(p["AttributeDefinitions"]) {
		got.Attributes = append(got.Attributes, stackcheck.Text(stackcheck.Get(a, "AttributeName"))+" "+stackcheck.Text(stackcheck.Get(a, "AttributeType")))
	}
	slices.Sort(got.Attributes)
	for _, kind := range []string{"Global", "Local"} {
		for _, index := range stackcheck.List(p[kind+"SecondaryIndexes"]) {
			got.Indexes[kind+" "+stackcheck.Text(stackcheck.Get(index, "IndexName"))] = append(
				keys(stackcheck.Get(index, "KeySchema")), stackcheck.Text(stackcheck.Get(index, "Projection", "ProjectionType")))
		}
	}
	if stackcheck.Text(stackcheck.Get(p, "TimeToLiveSpecification", "Enabled")) == "true" {
		got.TTL = stackcheck.Text(stackcheck.Get(p, "TimeToLiveSpecification", "AttributeName"))
	}
	got.Recoverable = stackcheck.Text(stackcheck.Get(p, "PointInTimeRecoverySpecification", "PointInTimeRecoveryEnabled")) == "true"

	var out []string
	if diff := gocmp.Diff(wantedTable(), got); diff != "" {
		out = append(out, "internal/store/dynamo defines it otherwise (-code +data.yaml):\n"+diff)
	}
	if stack := d.Stack("data"); stack.Exports[exported(d, "TableName")] != stackcheck.Reference("data", idOf(d, "data", "AWS::DynamoDB::Table"), "") {
		out = append(out, "TableName does not export the table")
	}
	warm := func(v any) string {
		return stackcheck.Text(stackcheck.Get(v, "WarmThroughput", "ReadUnitsPerSecond")) + "/" + stackcheck.Text(stackcheck.Get(v, "WarmThroughput", "WriteUnitsPerSecond"))
	}
	for _, index := range stackcheck.List(p["GlobalSecondaryIndexes"]) {
		if warm(index) != warm(p) {
			out = append(out, fmt.Sprintf("WarmThroughput: the index is warmed for %s and the table for %s reads/writes a second: the colder one throttles both", warm(index), warm(p)))
		}
	}
	return out
}

func wantedTable() table {
	in := dynamo.Table("any")
	keys := func(schema []types.KeySchemaElement) []string {
		var all []string
		for _, k := range schema {
			all = append(all, aws.ToString(k.AttributeName)+" "+string(k.KeyType))
		}
		return all
	}
	want := table{
		Keys: keys(in.KeySchema), Indexes: map[string][]string{}, Billing: string(in.BillingMode),
		Stream:    string(in.StreamSpecification.StreamViewType),
		Protected: aws.ToBool(in.DeletionProtectionEnabled),
		// dynamo.Create switches these on, after the creation.
		TTL: dynamo.TTLAttribute, Recoverable: true,
	}
	for _, a := range in.AttributeDefinitions {
		want.Attributes = append(want.Attributes, aws.ToString(a.AttributeName)+" "+string(a.AttributeType))
	}
	slices.Sort(want.Attributes)
	for _, index := range in.GlobalSecondaryIndexes {
		want.Indexes["Global "+aws.ToString(index.IndexName)] = append(keys(index.KeySchema), string(index.Projection.ProjectionType))
	}
	for _, index := range in.LocalSecondaryIndexes {
		want.Indexes["Local "+aws.ToString(index.IndexName)] = append(keys(index.KeySchema), string(index.Projection.ProjectionType))
	}
	return want
}

func idOf(d *stackcheck.Deployment, stack, kind string) string {
	for at := range d.Each(kind) {
		if at.Template == stack {
			return at.ID
		}
	}
	return ""
}

// exported is an export's full name.
func exported(d *stackcheck.Deployment, plain string) string {
	for _, s := range d.Stacks {
		for name := range s.Exports {
			if strings.HasSuffix(name, ":"+plain) {
				return name
			}
		}
	}
	return ""
}

// exportedValue is what a stack exports under a name of the list.
func exportedValue(d *stackcheck.Deployment, plain string) string {
	for _, s := range d.Stacks {
		if v := s.Exports[exported(d, plain)]; v != "" {
			return v
		}
	}
	return ""
}

func queueProblems(d *stackcheck.Deployment) []string {
	var out []string
	main, dead := sqs.Names(exportedValue(d, "QueueName"))
	byName, ids := map[string]map[string]any{}, map[string]string{}
	for at, r := range d.Each("AWS::SQS::Queue") {
		name := stackcheck.Text(r.Properties["QueueName"])
		byName[name], ids[name] = r.Properties, at.ID
	}
	deadARN := stackcheck.Reference("data", ids[dead], "Arn")
	for name, attributes := range map[string]map[string]string{main: sqs.Attributes(deadARN), dead: sqs.DeadAttributes()} {
		p, ok := byName[name]
		if !ok {
			out = append(out, fmt.Sprintf("there is no queue %s: QueueName is what Holdfast adds .fifo and -dead.fifo to", name))
			continue
		}
		for _, attribute := range slices.Sorted(maps.Keys(attributes)) {
			want, got := attributes[attribute], stackcheck.Text(p[attribute])
			if attribute == "RedrivePolicy" {
				got = fmt.Sprintf(`{"deadLetterTargetArn":%q,"maxReceiveCount":%s}`,
					stackcheck.Text(stackcheck.Get(p[attribute], "deadLetterTargetArn")), stackcheck.Text(stackcheck.Get(p[attribute], "maxReceiveCount")))
			}
			if got == "" { // SQS's own
				got = map[string]string{"FifoQueue": "false", "ContentBasedDeduplication": "false", "ReceiveMessageWaitTimeSeconds": "0"}[attribute]
			}
			if got != want {
				out = append(out, fmt.Sprintf("%s: %s is %q, want %q as in internal/queue/sqs", name, attribute, got, want))
			}
		}
	}
	return out
}

// variable is one setting of a program.
type variable struct{ secret, required bool }

// prefix stands before the name of every variable.
const prefix = "HOLDFAST_"

// variablesOf are the settings of a program by the variables' names.
func variablesOf(settings reflect.Type) map[string]variable {
	all := map[string]variable{}
	for f := range settings.Fields() {
		if f.Anonymous {
			maps.Copy(all, variablesOf(f.Type))
			continue
		}
		name, options, _ := strings.Cut(f.Tag.Get("env"), ",")
		all[prefix+name] = variable{f.Type == reflect.TypeFor[config.Secret](), strings.Contains(options, "required")}
	}
	return all
}

// process is one whose settings stand in a file that the instances' user data writes.
type process struct {
	path    string
	known   map[string]variable
	load    func(getenv func(string) string) error
	example string
}

func processes() []process {
	operator := variablesOf(reflect.TypeFor[config.Operator]())
	maps.Copy(operator, variablesOf(reflect.TypeFor[config.Gateway]()))
	return []process{
		{"/etc/holdfast/api.env", variablesOf(reflect.TypeFor[config.API]()), func(g func(string) string) error {
			_, err := config.LoadAPI(g)
			return err
		}, "api.env.example"},
		{"/etc/holdfast/worker.env", variablesOf(reflect.TypeFor[config.Worker]()), func(g func(string) string) error {
			_, err := config.LoadWorker(g)
			return err
		}, "worker.env.example"},
		{"/etc/holdfast/operator/" + config.EnvFile, operator, func(g func(string) string) error {
			_, err := config.LoadOperator(g)
			_, errGateway := config.LoadGateway(g)
			return errors.Join(err, errGateway)
		}, ""},
	}
}

// heredoc is a file that a shell script writes, with its path.
var heredoc = regexp.MustCompile(`(?ms)^\s*cat >(\S+) <<'END'\n(.*?)^\s*END$`)

// userData is what an instance runs at its first start.
func userData(d *stackcheck.Deployment) (string, error) {
	r, err := only(d, "compute", "AWS::EC2::LaunchTemplate")
	if err != nil {
		return "", err
	}
	text, err := base64.StdEncoding.DecodeString(stackcheck.Text(stackcheck.Get(r.Properties, "LaunchTemplateData", "UserData")))
	if err != nil {
		return "", fmt.Errorf("compute.yaml: UserData: %w", err)
	}
	return string(text), nil
}

// files are those that the user data writes, by path.
func files(d *stackcheck.Deployment) (map[string]map[string]string, error) {
	script, err := userData(d)
	if err != nil {
		return nil, err
	}
	all := map[string]map[string]string{}
	for _, m := range heredoc.FindAllStringSubmatch(script, -1) {
		env := map[string]string{}
		for line := range strings.Lines(m[2]) {
			line = strings.TrimSpace(line)
			if line == "" || strings.HasPrefix(line, "#") {
				continue
			}
			name, value, ok := strings.Cut(line, "=")
			if _, twice := env[name]; !ok || twice {
				return nil, fmt.Errorf("compute.yaml: %s: %s: want NAME=value, once", m[1], name)
			}
			env[name] = value
		}
		all[m[1]] = env
	}
	return all, nil
}

func settingProblems(d *stackcheck.Deployment) []string {
	written, err := files(d)
	if err != nil {
		return []string{err.Error()}
	}
	var out []string
	script, err := userData(d)
	const most = 16 << 10 // bytes, EC2's limit before it is encoded
	if err != nil || len(script) >= most {
		out = append(out, fmt.Sprintf("UserData: %d bytes (%v), want less than %d", len(script), err, most))
	}
	for _, p := range processes() {
		env, ok := written[p.path]
		if !ok {
			out = append(out, fmt.Sprintf("UserData does not write %s in the form cat >%s <<'END'", p.path, p.path))
			continue
		}
		for _, problem := range environmentProblems(d, env, p.known, p.load) {
			out = append(out, p.path+": "+problem)
		}
		if p.example == "" {
			continue
		}
		for _, name := range exampleNames(p.example) {
			if _, ok := env[name]; !ok {
				out = append(out, fmt.Sprintf("%s: %s is not set, and deploy/env/%s sets it", p.path, name, p.example))
			}
		}
	}
	return out
}

// exampleNames are the variables that an example of settings sets.
func exampleNames(file string) []string {
	text, err := os.ReadFile(filepath.Join(root, "deploy/env", file))
	if err != nil {
		return []string{err.Error()}
	}
	var names []string
	for line := range strings.Lines(string(text)) {
		if name, _, ok := strings.Cut(line, "="); ok && !strings.HasPrefix(name, "#") {
			names = append(names, name)
		}
	}
	return names
}

// environmentProblems: every variable is one that the program reads, every secret is a
// reference to a key that its secret has, and with the secrets in their places the
// program starts.
func environmentProblems(d *stackcheck.Deployment, env map[string]string, known map[string]variable, load func(func(string) string) error) []string {
	var out []string
	values := map[string]string{}
	for _, name := range slices.Sorted(maps.Keys(env)) {
		value := env[name]
		plain, isRef := strings.CutSuffix(name, "_REF")
		v, ok := known[plain]
		switch {
		case !ok:
			out = append(out, name+": the program reads no such variable")
		case v.secret && !isRef:
			out = append(out, name+": a secret stands here; want "+name+"_REF")
		case isRef && !v.secret:
			out = append(out, name+": is no secret and cannot be a reference")
		case isRef && value != "":
			if err := refersTo(d, value); err != nil {
				out = append(out, fmt.Sprintf("%s: %v", name, err))
			}
			values[plain] = strings.Repeat("0123456789abcdef", 4) // good for a key and for a token
		default:
			values[name] = reference.ReplaceAllString(value, "made-$1")
		}
	}
	if err := load(func(name string) string { return values[name] }); err != nil {
		out = append(out, "does not load: "+err.Error())
	}
	return out
}

// reference is what only a made resource knows, see stackcheck.Reference.
var reference = regexp.MustCompile(`⟨[a-z]+:([A-Za-z0-9]+)[^⟩]*⟩`)

// secretKeys are the keys of the secrets' JSON objects, by what exports their ARNs.
func secretKeys() map[string][]string {
	return map[string][]string{
		"ApiSecretArn":      {"seal_key", "redis_password", "admin_token"},
		"OperatorSecretArn": {"redis_password"},
		"LoaderSecretArn":   {"redis_password"},
		"GatewaySecretArn":  {"app_key", "app_secret", "username", "password"},
		"OriginSecretArn":   {"current", "previous"},
		"DatabaseSecretArn": {"username", "password"},
	}
}

func refersTo(d *stackcheck.Deployment, value string) error {
	service, rest, _ := strings.Cut(value, ":")
	arn, key, _ := strings.Cut(rest, "#")
	if service != "secretsmanager" {
		return fmt.Errorf("%q: want secretsmanager:<ARN>#<key>", value)
	}
	for export, keys := range secretKeys() {
		if exportedValue(d, export) == arn {
			if !slices.Contains(keys, key) {
				return fmt.Errorf("%s has no key %q, it has %q", export, key, keys)
			}
			return nil
		}
	}
	return fmt.Errorf("%s: no stack exports this secret", arn)
}

func functionProblems(d *stackcheck.Deployment) []string {
	var out []string
	for archive, f := range map[string]struct {
		known map[string]variable
		load  func(func(string) string) error
	}{
		"sync-lambda.zip": {variablesOf(reflect.TypeFor[functions.SyncSettings]()), func(g func(string) string) error {
			_, err := functions.LoadSync(g)
			return err
		}},
		"expiry-lambda.zip": {variablesOf(reflect.TypeFor[functions.ExpirySettings]()), func(g func(string) string) error {
			_, err := functions.LoadExpiry(g)
			return err
		}},
	} {
		_, p, err := functionOf(d, archive)
		if err != nil {
			out = append(out, err.Error())
			continue
		}
		env := map[string]string{}
		for name, value := range stackcheck.Get(p, "Environment", "Variables").(map[string]any) {
			if strings.HasPrefix(name, prefix) {
				env[name] = stackcheck.Text(value)
			} else if !slices.Contains([]string{"GOMEMLIMIT", "GOGC", "TZ"}, name) {
				out = append(out, fmt.Sprintf("%s: %s: neither Holdfast nor the Go runtime reads it", archive, name))
			}
		}
		for _, problem := range environmentProblems(d, env, f.known, f.load) {
			out = append(out, archive+": "+problem)
		}
		for property, want := range map[string]string{"Handler": "bootstrap", "Runtime": "provided.al2023"} {
			if got := stackcheck.Text(p[property]); got != want {
				out = append(out, fmt.Sprintf("%s: %s is %q, want %s: a Go program is its own runtime", archive, property, got, want))
			}
		}
		if got := stackcheck.Text(stackcheck.Get(p, "Architectures", 0)); got != "arm64" {
			out = append(out, fmt.Sprintf("%s: Architectures is %q, want arm64, which it is built for", archive, got))
		}
	}
	return out
}

// functionOf is the function that runs an archive of the release.
func functionOf(d *stackcheck.Deployment, archive string) (id string, p map[string]any, err error) {
	for at, r := range d.Each("AWS::Lambda::Function") {
		if strings.HasSuffix(stackcheck.Text(stackcheck.Get(r.Properties, "Code", "S3Key")), "/"+archive) {
			if _, ok := stackcheck.Get(r.Properties, "Environment", "Variables").(map[string]any); !ok {
				return "", nil, fmt.Errorf("functions.yaml: %s has no environment", at.ID)
			}
			return at.ID, r.Properties, nil
		}
	}
	return "", nil, fmt.Errorf("functions.yaml: no function runs releases/<version>/%s", archive)
}

// streamProblems: functions.Handler says what of the event source it rests on.
func streamProblems(d *stackcheck.Deployment) []string {
	var out []string
	sources := map[string]map[string]any{}
	for _, r := range d.Each("AWS::Lambda::EventSourceMapping") {
		sources[stackcheck.Text(r.Properties["FunctionName"])] = r.Properties
	}
	for _, archive := range []string{"sync-lambda.zip", "expiry-lambda.zip"} {
		id, f, err := functionOf(d, archive)
		if err != nil {
			continue // functionProblems says so
		}
		var p map[string]any
		for _, name := range []string{stackcheck.Reference("functions", id, ""), stackcheck.Reference("functions", id, "Arn"), stackcheck.Text(f["FunctionName"])} {
			if sources[name] != nil {
				p = sources[name]
			}
		}
		if p == nil {
			out = append(out, archive+": nothing calls the function")
			continue
		}
		number := func(name string) int {
			n, err := strconv.Atoi(stackcheck.Text(p[name]))
			if err != nil {
				return -1
			}
			return n
		}
		if stackcheck.Text(p["EventSourceArn"]) != exportedValue(d, "TableStreamArn") {
			out = append(out, archive+": EventSourceArn is not the table's stream")
		}
		if !slices.Contains(stackcheck.List(p["FunctionResponseTypes"]), any("ReportBatchItemFailures")) {
			out = append(out, archive+": FunctionResponseTypes has no ReportBatchItemFailures: a failure that is reported would count as success")
		}
		if stackcheck.Text(p["BisectBatchOnFunctionError"]) != "true" {
			out = append(out, archive+": BisectBatchOnFunctionError is not true: a bad change would take its batch with it")
		}
		if n := number("MaximumRetryAttempts"); n < 1 {
			out = append(out, fmt.Sprintf("%s: MaximumRetryAttempts is %d, want a bound: without one a bad change stops its shard for a day", archive, n))
		}
		if n := number("MaximumRecordAgeInSeconds"); n < 60 {
			out = append(out, fmt.Sprintf("%s: MaximumRecordAgeInSeconds is %d, want a bound", archive, n))
		}
		if got := stackcheck.Text(stackcheck.Get(p, "DestinationConfig", "OnFailure", "Destination")); exportedValue(d, "FailedChangesBucket") == "" || !strings.Contains(got, strings.TrimSuffix(exportedValue(d, "FailedChangesBucket"), "⟩")) {
			out = append(out, fmt.Sprintf("%s: OnFailure goes to %q, want the bucket of failed changes, which keeps whole records", archive, got))
		}
		for _, filter := range stackcheck.List(stackcheck.Get(p, "FilterCriteria", "Filters")) {
			if pattern := stackcheck.Text(stackcheck.Get(filter, "Pattern")); !json.Valid([]byte(pattern)) {
				out = append(out, fmt.Sprintf("%s: the filter %s is no JSON", archive, pattern))
			}
		}
	}
	return out
}

// drainProblems: an instance that ends has been given up by the balancer before it
// closes, and what it has in hand is done.
func drainProblems(d *stackcheck.Deployment) []string {
	written, err := files(d)
	if err != nil {
		return []string{err.Error()}
	}
	env := maps.Clone(written["/etc/holdfast/api.env"])
	// What is required and says nothing of times.
	for name, v := range variablesOf(reflect.TypeFor[config.API]()) {
		if v.secret && v.required {
			env[name] = strings.Repeat("0123456789abcdef", 4)
		}
	}
	api, err := config.LoadAPI(func(name string) string { return reference.ReplaceAllString(env[name], "made-$1") })
	if err != nil {
		return nil // settingProblems says so
	}
	group, err := only(d, "compute", "AWS::ElasticLoadBalancingV2::TargetGroup")
	if err != nil {
		return []string{err.Error()}
	}
	p := group.Properties
	number := func(v any) int {
		n, err := strconv.Atoi(stackcheck.Text(v))
		if err != nil {
			return 0
		}
		return n
	}
	var out []string
	seen := time.Duration(number(p["HealthCheckIntervalSeconds"])*number(p["UnhealthyThresholdCount"])) * time.Second
	if seen <= 0 || seen >= api.Linger {
		out = append(out, fmt.Sprintf("health check: the balancer sees an end after %s (interval times threshold), want less than HOLDFAST_LINGER, %s", seen, api.Linger))
	}
	if got := stackcheck.Text(p["HealthCheckPath"]); got != "/health" {
		out = append(out, fmt.Sprintf("health check: asks for %q, want /health, which touches no dependency", got))
	}
	if _, port, _ := strings.Cut(api.Addr, ":"); stackcheck.Text(p["Port"]) != port {
		out = append(out, fmt.Sprintf("targets: port %s, want %s of HOLDFAST_ADDR", stackcheck.Text(p["Port"]), port))
	}
	attributes := map[string]string{}
	for _, a := range stackcheck.List(p["TargetGroupAttributes"]) {
		attributes[stackcheck.Text(stackcheck.Get(a, "Key"))] = stackcheck.Text(stackcheck.Get(a, "Value"))
	}
	delay := time.Duration(number(attributes["deregistration_delay.timeout_seconds"])) * time.Second
	if delay <= api.RequestBudget || delay > api.Linger+api.Drain {
		out = append(out, fmt.Sprintf("deregistration_delay.timeout_seconds: %s, want more than a request takes (%s) and no more than the process has (%s)", delay, api.RequestBudget, api.Linger+api.Drain))
	}
	if got := attributes["load_balancing.algorithm.type"]; got != "least_outstanding_requests" {
		out = append(out, fmt.Sprintf("load_balancing.algorithm.type: %q, want least_outstanding_requests", got))
	}
	return out
}

var (
	// unit is the name of one of our units in a text, of a template's with its instance.
	unit = regexp.MustCompile(`holdfast-[a-z-]+(@[a-z-]*)?\.service`)
	// agentGroup is a log group that the agent writes to; the installation fills the name in.
	agentGroup = regexp.MustCompile(`"log_group_name": *"([^"]+)"`)
)

// unitProblems: what the templates and the installation call by name is there.
func unitProblems(d *stackcheck.Deployment) []string {
	script, err := userData(d)
	if err != nil {
		return []string{err.Error()}
	}
	there := map[string]bool{}
	for _, folder := range []string{"deploy/systemd", "deploy/cloudwatch"} {
		units, err := filepath.Glob(filepath.Join(root, folder, "*.service"))
		if err != nil {
			return []string{err.Error()}
		}
		for _, path := range units {
			there[filepath.Base(path)] = true
		}
	}
	texts := map[string]string{"compute.yaml, UserData": script}
	for _, file := range []string{"deploy/bootstrap/install", "deploy/cloudwatch/agent.json"} {
		if text, err := os.ReadFile(filepath.Join(root, file)); err == nil {
			texts[file] = string(text)
		}
	}
	var out []string
	for where, text := range texts {
		for _, name := range unit.FindAllString(text, -1) {
			if before, _, isInstance := strings.Cut(name, "@"); isInstance {
				name = before + "@.service"
			}
			if !there[name] {
				out = append(out, fmt.Sprintf("%s: %s: there is no such unit", where, name))
			}
		}
	}
	groups := map[string]bool{}
	for _, r := range d.Each("AWS::Logs::LogGroup") {
		groups[stackcheck.Text(r.Properties["LogGroupName"])] = true
	}
	for _, m := range agentGroup.FindAllStringSubmatch(texts["deploy/cloudwatch/agent.json"], -1) {
		if name := strings.ReplaceAll(m[1], "@DEPLOYMENT@", "holdfast"); !groups[name] {
			out = append(out, fmt.Sprintf("deploy/cloudwatch/agent.json: writes to %s, and no stack makes this log group", name))
		}
	}
	written, err := files(d)
	if err != nil {
		return append(out, err.Error())
	}
	for _, p := range processes() {
		if p.example == "" {
			continue
		}
		program := strings.TrimSuffix(filepath.Base(p.path), ".env")
		text, err := os.ReadFile(filepath.Join(root, "deploy/systemd/holdfast-"+program+".service"))
		if err != nil {
			out = append(out, err.Error())
			continue
		}
		if !strings.Contains(string(text), "\nEnvironmentFile="+p.path+"\n") || written[p.path] == nil {
			out = append(out, fmt.Sprintf("holdfast-%s.service does not read %s, which the user data writes", program, p.path))
		}
	}
	slices.SortFunc(out, cmp.Compare[string])
	return out
}
