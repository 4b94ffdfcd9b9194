package stackcheck_test

import (
	"encoding/base64"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"holdfast/internal/stackcheck"
)

// one evaluates a template of that text.
func one(text string, in stackcheck.Inputs) (*stackcheck.Stack, error) {
	t, err := stackcheck.Parse("one", []byte(text))
	if err != nil {
		return nil, err
	}
	if in.Region == "" {
		in.Region, in.Account = region, account
	}
	return t.Resolve(in)
}

const everyFunction = `
Parameters:
  Deployment: {Type: String, Default: seats}
  Size: {Type: String, AllowedValues: [small, launch], Default: small}
  Zones: {Type: CommaDelimitedList, Default: 'a, b'}
  Image: {Type: 'AWS::SSM::Parameter::Value<AWS::EC2::Image::Id>', Default: /aws/image}
Mappings:
  Sizes:
    small: {Nodes: 2}
    launch: {Nodes: 3}
Conditions:
  Launch: !Equals [!Ref Size, launch]
  Small: !Not [!Condition Launch]
  Both: !And [!Condition Launch, !Condition Small]
  Either: !Or [!Condition Launch, Condition: Small]
Resources:
  Table:
    Type: AWS::DynamoDB::Table
    DeletionPolicy: Retain
    UpdateReplacePolicy: Retain
    Properties:
      TableName: !Sub '${Deployment}-x'
  Big:
    Type: AWS::EC2::EIP
    Condition: Launch
  All:
    Type: AWS::X::Y
    Properties:
      Ref: !Ref Table
      Image: !Ref Image
      Get: !GetAtt Table.Arn
      Long: {'Fn::GetAtt': [Table, Stream.Arn]}
      Name: !Ref AWS::StackName
      Where: !Sub 'arn:${AWS::Partition}:x:${AWS::Region}:${AWS::AccountId}:${Table}/${Table.Arn}/${!shell}'
      Own: !Sub ['${who}-${Size}', {who: !Ref Deployment}]
      Nodes: !FindInMap [Sizes, !Ref Size, Nodes]
      If: !If [Small, [1, !Ref AWS::NoValue, 2], !Ref Big]
      Gone: !If [Launch, x, !Ref AWS::NoValue]
      Both: !If [Both, 1, 2]
      Either: !If [Either, 1, 2]
      Join: !Join [',', !Ref Zones]
      Part: !Select [1, !Split [',', {'Fn::ImportValue': !Sub '${Deployment}:Subnets'}]]
      Block: !Select [1, !Cidr [10.20.0.0/16, 3, 12]]
      Zone: !Select [2, !GetAZs '']
      Text: !Base64 'a'
      Date: 2012-10-17
      Yes: true
      Policy: {Condition: {Bool: {'aws:SecureTransport': false}}}
Outputs:
  Name:
    Value: !Ref Table
    Export: {Name: !Sub '${Deployment}:Name'}
  Big: {Condition: Launch, Value: !Ref Big}
`

func TestResolve_EvaluatesAsCloudFormationDoes(t *testing.T) {
	t.Parallel()
	got, err := one(everyFunction, stackcheck.Inputs{Imports: map[string]string{"seats:Subnets": "one,two"}})
	if err != nil {
		t.Fatalf("Resolve: got %v, want nil", err)
	}
	want := map[string]any{
		"Ref": "⟨one:Table⟩", "Image": "⟨one:Image⟩", "Get": "⟨one:Table.Arn⟩", "Long": "⟨one:Table.Stream.Arn⟩",
		"Name": "seats-one", "Where": "arn:aws:x:ap-south-1:123456789012:⟨one:Table⟩/⟨one:Table.Arn⟩/${shell}",
		"Own": "seats-small", "Nodes": 2, "If": []any{1, 2}, "Both": 2, "Either": 1, "Join": "a,b", "Part": "two",
		"Block": "10.20.16.0/20", "Zone": "ap-south-1c", "Text": base64.StdEncoding.EncodeToString([]byte("a")),
		"Date": "2012-10-17", "Yes": true, "Policy": map[string]any{"Condition": map[string]any{"Bool": map[string]any{"aws:SecureTransport": false}}},
	}
	if diff := cmp.Diff(want, got.Resources["All"].Properties); diff != "" {
		t.Errorf("properties (-want +got):\n%s", diff)
	}
	if _, made := got.Resources["Big"]; made {
		t.Error("Big: got it made, want it left out by its condition")
	}
	if r := got.Resources["Table"]; r.DeletionPolicy != "Retain" || r.UpdateReplacePolicy != "Retain" || r.Type != "AWS::DynamoDB::Table" {
		t.Errorf("Table: got %+v, want its type and both policies", r)
	}
	if diff := cmp.Diff(map[string]string{"seats:Name": "⟨one:Table⟩"}, got.Exports); diff != "" {
		t.Errorf("exports (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(map[string]bool{"seats:Subnets": true}, got.Imports); diff != "" {
		t.Errorf("imports (-want +got):\n%s", diff)
	}
}

func TestResolve_WhatCloudFormationWouldRefuseIsAnError(t *testing.T) {
	t.Parallel()
	resource := func(value string) string {
		return "Resources:\n  A: {Type: T, Properties: {V: " + value + "}}\n"
	}
	for _, c := range []struct{ name, text, want string }{
		{"not YAML", "a: [", "read template one"},
		{"no mapping", "[]", "want a mapping with Resources"},
		{"no resources", "Outputs: {}", "want a mapping with Resources"},
		{"an anchor", "Resources: {A: &a {Type: T}}", "no anchors"},
		{"a key twice", "Resources:\n  A: {Type: T}\n  A: {Type: U}\n", "A"},
		{"no type", "Resources: {A: {Properties: {}}}", "A: want a Type"},
		{"a reference to nothing", resource("!Ref B"), "there is no B"},
		{"an attribute of nothing", resource("!GetAtt B.Arn"), "there is no B"},
		{"an attribute without a name", resource("!GetAtt A"), "want a resource and its attribute"},
		{"a text that names nothing", resource("!Sub '${B}'"), "there is no B"},
		{"an open text", resource("!Sub '${A'"), "not closed"},
		{"an import that nobody exports", resource("!ImportValue x"), "nobody exports x"},
		{"an unknown function", resource("!Transform x"), "not a function that is known here"},
		{"a function in the place of a name", resource("[!Sub 'a': b]"), "a function in the place of a name"},
		{"an unknown function of a list", resource("!Sum [1, 2]"), "known here"},
		{"an unknown condition", resource("!If [C, 1, 2]"), "there is no condition C"},
		{"a hole in a map", "Mappings: {M: {a: {b: 1}}}\n" + resource("!FindInMap [M, a, c]"), "there is no c"},
		{"too far in a list", resource("!Select [2, [a]]"), "there are not so many"},
		{"blocks that do not fit", resource("!Cidr [10.0.0.0/24, 3, 7]"), "do not fit"},
		{"a parameter without a value", "Parameters: {P: {Type: String}}\n" + resource("!Ref P"), "no value is given"},
		{"a value that is not allowed", "Parameters: {P: {Type: String, AllowedValues: [a], Default: b}}\n" + resource("x"), "want one of"},
		{"a value of another form", "Parameters: {P: {Type: String, AllowedPattern: '[a-z]+', Default: ab1}}\n" + resource("x"), "want [a-z]+"},
		{"a condition that asks for itself", "Conditions: {C: !Not [!Condition C]}\n" + resource("x"), "asks for itself"},
		{"a resource that is left out", "Conditions: {C: !Equals [a, b]}\nResources:\n  A: {Type: T, Condition: C}\n  B: {Type: T, Properties: {V: !Ref A}}\n", "not made with these parameters"},
		{"a list as a text", "Parameters: {P: {Type: CommaDelimitedList, Default: 'a,b'}}\n" + resource("!Sub '${P}'"), "a list and not a text"},
	} {
		if _, err := one(c.text, stackcheck.Inputs{}); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v, want an error with %q", c.name, err, c.want)
		}
	}
	if _, err := one(resource("x"), stackcheck.Inputs{Parameters: map[string]string{"P": "x"}}); err == nil || !strings.Contains(err.Error(), "no such parameter") {
		t.Errorf("a value for no parameter: got %v, want an error", err)
	}
}

func TestDeploy_HandsOnWhatStacksBeforeExport(t *testing.T) {
	t.Parallel()
	exporter := "Resources: {V: {Type: T}}\nOutputs: {V: {Value: !Ref V, Export: {Name: 'x:V'}}}\n"
	importer := "Resources: {W: {Type: T, Properties: {V: !ImportValue 'x:V'}}}\n"
	make := func(order ...string) (*stackcheck.Deployment, error) {
		var all []*stackcheck.Template
		for _, name := range order {
			text := map[string]string{"network": exporter, "data": importer, "edge": importer, "compute": exporter}[name]
			tpl, err := stackcheck.Parse(name, []byte(text))
			if err != nil {
				t.Fatal(err)
			}
			all = append(all, tpl)
		}
		return stackcheck.Deploy(all, stackcheck.Settings{Region: region, Account: account})
	}
	d, err := make("network", "data")
	if err != nil {
		t.Fatalf("in order: got %v, want nil", err)
	}
	if got := d.Stack("data").Resources["W"].Properties["V"]; got != "⟨network:V⟩" {
		t.Errorf("import: got %v, want what network exports", got)
	}
	for name, order := range map[string][]string{
		"too early": {"data", "network"}, "from another region": {"network", "edge"}, "twice": {"network", "compute"},
	} {
		if _, err := make(order...); err == nil {
			t.Errorf("%s: got no error, want one", name)
		}
	}
}
