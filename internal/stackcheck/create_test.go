package stackcheck_test

import (
	"archive/zip"
	"bytes"
	"encoding/json"
	"encoding/xml"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	awssqs "github.com/aws/aws-sdk-go-v2/service/sqs"
	gocmp "github.com/google/go-cmp/cmp"

	"holdfast/internal/queue/sqs"
	"holdfast/internal/stackcheck"
	"holdfast/internal/store/dynamo"
	"holdfast/internal/store/storetest"
	"holdfast/internal/testenv"
)

// refused are resources that the emulator cannot make as they are written here, and why.
// They are taken out before their stack is made, and references to them become texts.
func refused() map[string]string {
	return map[string]string{
		"network.BalancerFromCloudFront": "it knows no prefix list as a source",
		"edge.Address":                   "its zone is the operator's and not in a stack",
		"edge.AddressV6":                 "its zone is the operator's and not in a stack",
	}
}

// dropped are properties that the emulator cannot read, by type and name, and why.
func dropped() map[string]string {
	return map[string]string{
		"AWS::KMS::Key Tags":                        "it wants KMS's own names in them, TagKey and TagValue",
		"AWS::RDS::DBInstance DBParameterGroupName": "a reference to a group is no text to it",
	}
}

// unknown are attributes that the emulator does not know of resources that it makes;
// references to them become texts.
func unknown() []string {
	return []string{
		"AWS::ElasticLoadBalancingV2::LoadBalancer LoadBalancerFullName",
		"AWS::ElasticLoadBalancingV2::TargetGroup TargetGroupFullName",
		"AWS::RDS::DBInstance MasterUserSecret.SecretArn",
	}
}

// emulator is an AWS that makes stacks.
type emulator struct {
	endpoint string
	way      *http.Client
}

func newEmulator(t *testing.T) *emulator {
	t.Helper()
	server := testenv.AWS(t)
	way := &http.Transport{}
	t.Cleanup(way.CloseIdleConnections)
	return &emulator{endpoint: server.Endpoint, way: &http.Client{Transport: way, Timeout: time.Minute}}
}

// ask calls CloudFormation, by its query protocol, and reads the answer.
func (e *emulator) ask(t *testing.T, region, action string, params url.Values, into any) error {
	t.Helper()
	params.Set("Action", action)
	params.Set("Version", "2010-05-15")
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, e.endpoint+"/", strings.NewReader(params.Encode()))
	if err != nil {
		return err
	}
	r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	// It tells service and region by this; it checks no signature.
	r.Header.Set("Authorization", "AWS4-HMAC-SHA256 Credential=test/20260101/"+region+"/cloudformation/aws4_request, SignedHeaders=host, Signature=none")
	answer, err := e.way.Do(r)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	body, err := io.ReadAll(answer.Body)
	if err != nil {
		return err
	}
	if answer.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: %s: %.2000s", action, answer.Status, body)
	}
	if into == nil {
		return nil
	}
	return xml.Unmarshal(body, into)
}

// certificate asks for one and gives its ARN; the emulator issues it at once.
func (e *emulator) certificate(t *testing.T, region string) string {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, e.endpoint+"/", strings.NewReader(`{"DomainName":"seats.example.org"}`))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Content-Type", "application/x-amz-json-1.1")
	r.Header.Set("X-Amz-Target", "CertificateManager.RequestCertificate")
	r.Header.Set("Authorization", "AWS4-HMAC-SHA256 Credential=test/20260101/"+region+"/acm/aws4_request, SignedHeaders=host, Signature=none")
	answer, err := e.way.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	var made struct{ CertificateArn string }
	if err := json.NewDecoder(answer.Body).Decode(&made); err != nil || made.CertificateArn == "" {
		t.Fatalf("ask for a certificate: got %s, %v, want an ARN", answer.Status, err)
	}
	return made.CertificateArn
}

// exports are what the stacks of a region export.
func (e *emulator) exports(t *testing.T, region string) map[string]string {
	t.Helper()
	var answer struct {
		Exports []struct{ Name, Value string } `xml:"ListExportsResult>Exports>member"`
	}
	if err := e.ask(t, region, "ListExports", url.Values{}, &answer); err != nil {
		t.Fatal(err)
	}
	all := map[string]string{}
	for _, x := range answer.Exports {
		all[x.Name] = x.Value
	}
	return all
}

// made are the logical ids that a stack has made.
func (e *emulator) made(t *testing.T, region, stack string) map[string]bool {
	t.Helper()
	var answer struct {
		IDs []string `xml:"DescribeStackResourcesResult>StackResources>member>LogicalResourceId"`
	}
	if err := e.ask(t, region, "DescribeStackResources", url.Values{"StackName": {stack}}, &answer); err != nil {
		t.Fatal(err)
	}
	all := map[string]bool{}
	for _, id := range answer.IDs {
		all[id] = true
	}
	return all
}

// whole is a reference with nothing around it.
var (
	whole  = regexp.MustCompile(`^⟨[a-z]+:([A-Za-z0-9]+)\.?([^⟩]*)⟩$`)
	inside = regexp.MustCompile(`⟨[a-z]+:([A-Za-z0-9]+)\.?([^⟩]*)⟩`)
)

// body is an evaluated stack as a template again: conditions, mappings and imports are
// worked off, references between its resources are left to the emulator.
func body(t *testing.T, s *stackcheck.Stack, makes map[string]bool) string {
	t.Helper()
	out := func(id string) bool { return refused()[s.Template.Name+"."+id] != "" }
	there := func(id, attribute string) bool {
		kind := s.Resources[id].Type
		return makes[kind] && !out(id) && !slices.Contains(unknown(), kind+" "+attribute)
	}
	stands := func(id, attribute string) string {
		if strings.HasSuffix(attribute, "Arn") || strings.HasSuffix(id, "Secret") {
			return "arn:aws:emulated:" + region + ":" + account + ":" + id
		}
		if strings.Contains(id, "Image") {
			return "ami-12c6146b" // one that the emulator brings along
		}
		return "emulated-" + strings.ToLower(id)
	}
	var back func(v any) any
	back = func(v any) any {
		switch v := v.(type) {
		case map[string]any:
			m := map[string]any{}
			for name, item := range v {
				m[name] = back(item)
			}
			return m
		case []any:
			list := []any{}
			for _, item := range v {
				list = append(list, back(item))
			}
			return list
		case string:
			if m := whole.FindStringSubmatch(v); m != nil && there(m[1], m[2]) {
				if m[2] == "" {
					return map[string]any{"Ref": m[1]}
				}
				return map[string]any{"Fn::GetAtt": []any{m[1], m[2]}}
			}
			// A text with references is joined: the emulator's Fn::Sub reads quotes in it.
			parts, at := []any{}, 0
			for _, m := range inside.FindAllStringSubmatchIndex(v, -1) {
				id, attribute := v[m[2]:m[3]], v[m[4]:m[5]]
				parts = append(parts, v[at:m[0]])
				switch {
				case !there(id, attribute):
					parts = append(parts, stands(id, attribute))
				case attribute == "":
					parts = append(parts, map[string]any{"Ref": id})
				default:
					parts = append(parts, map[string]any{"Fn::GetAtt": []any{id, attribute}})
				}
				at = m[1]
			}
			if len(parts) == 0 {
				return v
			}
			return map[string]any{"Fn::Join": []any{"", append(parts, v[at:])}}
		}
		return v
	}
	resources, outputs := map[string]any{}, map[string]any{}
	for id, r := range s.Resources {
		if !out(id) {
			properties := maps.Clone(r.Properties)
			for name := range properties {
				if dropped()[r.Type+" "+name] != "" {
					delete(properties, name)
				}
			}
			resources[id] = map[string]any{"Type": r.Type, "Properties": back(properties)}
		}
	}
	for name, value := range s.Exports {
		outputs[strings.ReplaceAll(name[strings.Index(name, ":")+1:], "-", "")] = map[string]any{
			"Value": back(value), "Export": map[string]any{"Name": name},
		}
	}
	text, err := json.Marshal(map[string]any{"AWSTemplateFormatVersion": "2010-09-09", "Resources": resources, "Outputs": outputs})
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// The outcome for every type is held in testdata/created.txt: "created" is there
// afterwards, "accepted" is taken by the emulator and not made, "linted" was taken out.
func TestStacks_AreMadeInTheEmulatorAsFarAsItKnowsThem(t *testing.T) {
	t.Parallel()
	want := map[string]string{}
	makes := map[string]bool{}
	for line := range strings.Lines(string(readFile(t, "internal/stackcheck/testdata/created.txt"))) {
		if outcome, kind, ok := strings.Cut(strings.TrimSpace(line), " "); ok && !strings.HasPrefix(line, "#") {
			want[kind] = outcome
			makes[kind] = outcome == "created"
		}
	}
	templates := parse(t, sources(t))
	got, left := map[string]string{}, map[string]bool{}
	for _, size := range []string{"small", "launch"} {
		e := newEmulator(t)
		for _, tpl := range templates {
			at := region
			if tpl.Name == "edge" {
				at = stackcheck.EdgeRegion
			}
			imports := e.exports(t, at)
			parameters := settings(templates, deployments()[size]).Parameters[tpl.Name]
			if _, ok := parameters["CertificateArn"]; ok {
				parameters["CertificateArn"] = e.certificate(t, at)
			}
			s, err := tpl.Resolve(stackcheck.Inputs{Parameters: parameters, Imports: imports, Region: at, Account: account})
			if err != nil {
				t.Fatalf("%s: %v", size, err)
			}
			if tpl.Name == "functions" {
				e.release(t, imports["holdfast:ArtifactBucket"], s)
			}
			name := "holdfast-" + tpl.Name
			err = e.ask(t, at, "CreateStack", url.Values{"StackName": {name}, "TemplateBody": {body(t, s, makes)}}, nil)
			if err != nil {
				t.Fatalf("%s: create %s: %v", size, name, err)
			}
			made := e.made(t, at, name)
			for id, r := range s.Resources {
				if refused()[tpl.Name+"."+id] != "" {
					left[tpl.Name+"."+id] = true
					if got[r.Type] == "" {
						got[r.Type] = "linted"
					}
					continue
				}
				outcome := "accepted"
				if made[id] {
					outcome = "created"
				}
				if before := got[r.Type]; before != "" && before != "linted" && before != outcome {
					t.Errorf("%s: %s.%s: got it %s, want it %s as others of %s", size, tpl.Name, id, outcome, before, r.Type)
				}
				got[r.Type] = outcome
			}
		}
		t.Run(size, func(t *testing.T) { e.look(t) })
	}
	if diff := gocmp.Diff(want, got); diff != "" {
		var lines []string
		for kind, outcome := range got {
			lines = append(lines, outcome+" "+kind)
		}
		slices.Sort(lines)
		t.Errorf("outcome of each type (-testdata/created.txt +got):\n%s\nall that was got:\n%s", diff, strings.Join(lines, "\n"))
	}
	for id := range refused() {
		if !left[id] {
			t.Errorf("%s: taken out and in no template: take it off the list", id)
		}
	}
}

// release puts an archive of nothing under each name that a function's code has.
func (e *emulator) release(t *testing.T, bucket string, s *stackcheck.Stack) {
	t.Helper()
	var archive bytes.Buffer
	z := zip.NewWriter(&archive)
	if _, err := z.Create("bootstrap"); err != nil {
		t.Fatal(err)
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	client := s3.New(s3.Options{
		Region: region, BaseEndpoint: &e.endpoint, HTTPClient: e.way, UsePathStyle: true,
		Credentials: credentials.NewStaticCredentialsProvider("test", "test", ""),
	})
	for id, r := range s.Resources {
		for _, part := range []string{"Code", "Content"} {
			key := stackcheck.Text(stackcheck.Get(r.Properties, part, "S3Key"))
			if key == "" {
				continue
			}
			_, err := client.PutObject(t.Context(), &s3.PutObjectInput{Bucket: &bucket, Key: &key, Body: bytes.NewReader(archive.Bytes())})
			if err != nil {
				t.Fatalf("put the code of %s: %v", id, err)
			}
		}
	}
}

// look finds what was made by the SDK, and uses it as the programs do.
func (e *emulator) look(t *testing.T) {
	exports := e.exports(t, region)
	keys := credentials.NewStaticCredentialsProvider("test", "test", "")

	t.Run("table", func(t *testing.T) {
		client := dynamodb.New(dynamodb.Options{Region: region, BaseEndpoint: &e.endpoint, HTTPClient: e.way, Credentials: keys})
		name := exports["holdfast:TableName"]
		out, err := client.DescribeTable(t.Context(), &dynamodb.DescribeTableInput{TableName: &name})
		if err != nil {
			t.Fatalf("describe %s: %v", name, err)
		}
		definition := dynamo.Table(name)
		indexes := func(names []string) []string { slices.Sort(names); return names }
		var want, got []string
		for _, i := range definition.GlobalSecondaryIndexes {
			want = append(want, aws.ToString(i.IndexName))
		}
		for _, i := range definition.LocalSecondaryIndexes {
			want = append(want, aws.ToString(i.IndexName))
		}
		for _, i := range out.Table.GlobalSecondaryIndexes {
			got = append(got, aws.ToString(i.IndexName))
		}
		for _, i := range out.Table.LocalSecondaryIndexes {
			got = append(got, aws.ToString(i.IndexName))
		}
		if diff := gocmp.Diff(indexes(want), indexes(got)); diff != "" {
			t.Errorf("indexes (-code +made):\n%s", diff)
		}
		if s := out.Table.StreamSpecification; s == nil || s.StreamViewType != types.StreamViewTypeNewAndOldImages {
			t.Errorf("stream: got %+v, want new and old images", s)
		}
		store, rec := dynamo.New(client, name), storetest.Held()
		if _, created, err := store.PutHeld(t.Context(), rec); err != nil || !created {
			t.Fatalf("PutHeld: got created %v, %v, want true", created, err)
		}
		if found, err := store.RecordByPayment(t.Context(), rec.PaymentID); err != nil || found.Attempt != rec.Attempt {
			t.Errorf("RecordByPayment: got %s, %v, want %s by the index", found.Attempt, err, rec.Attempt)
		}
		// These two ask the local indexes.
		if found, err := store.RefundsOf(t.Context(), rec.CandidateHash, rec.Attempt); err != nil || len(found) != 0 {
			t.Errorf("RefundsOf: got %v, %v, want none", found, err)
		}
		for n, err := range store.OpenNotifications(t.Context()) {
			t.Errorf("OpenNotifications: got %v, %v, want none", n, err)
		}
	})

	t.Run("queue", func(t *testing.T) {
		client := awssqs.New(awssqs.Options{Region: region, BaseEndpoint: &e.endpoint, HTTPClient: e.way, Credentials: keys})
		// Open compares every attribute of both queues.
		q, err := sqs.Open(t.Context(), client, exports["holdfast:QueueName"])
		if err != nil {
			t.Fatalf("open: got %v, want the queues as they are defined", err)
		}
		if err := q.Send(t.Context(), "ab12", "id-1", []byte("{}")); err != nil {
			t.Fatalf("send: %v", err)
		}
		got, err := q.Receive(t.Context(), 10, time.Second)
		if err != nil || len(got) != 1 || string(got[0].Body) != "{}" {
			t.Errorf("receive: got %+v, %v, want what was sent", got, err)
		}
	})

	t.Run("buckets", func(t *testing.T) {
		client := s3.New(s3.Options{Region: region, BaseEndpoint: &e.endpoint, HTTPClient: e.way, UsePathStyle: true, Credentials: keys})
		for _, export := range []string{"SiteBucket", "ArtifactBucket", "FailedChangesBucket"} {
			name := exports["holdfast:"+export]
			if _, err := client.HeadBucket(t.Context(), &s3.HeadBucketInput{Bucket: &name}); err != nil {
				t.Errorf("%s: got %v, want a bucket %q", export, err, name)
			}
			out, err := client.GetBucketEncryption(t.Context(), &s3.GetBucketEncryptionInput{Bucket: &name})
			if err != nil || len(out.ServerSideEncryptionConfiguration.Rules) != 1 {
				t.Errorf("%s: got %v, want it encrypted", export, err)
			}
		}
	})
}
