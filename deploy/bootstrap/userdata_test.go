package bootstrap_test

import (
	"regexp"
	"strings"
	"testing"

	"go.yaml.in/yaml/v4"
)

const template = "../../cloudformation/compute.yaml"

// userData is the template's user data as CloudFormation would write it: a variable is
// what values says, else its parameter's default, else "<its name>".
func userData(t *testing.T, values map[string]string) string {
	t.Helper()
	var doc struct {
		Parameters map[string]struct {
			Default string `yaml:"Default"`
		} `yaml:"Parameters"`
		Resources struct {
			LaunchTemplate struct {
				Properties struct {
					LaunchTemplateData struct {
						UserData struct {
							Base64 struct {
								Sub []yaml.Node `yaml:"Fn::Sub"`
							} `yaml:"Fn::Base64"`
						} `yaml:"UserData"`
					} `yaml:"LaunchTemplateData"`
				} `yaml:"Properties"`
			} `yaml:"LaunchTemplate"`
		} `yaml:"Resources"`
	}
	if err := yaml.Unmarshal([]byte(mustRead(t, template)), &doc); err != nil {
		t.Fatal(err)
	}
	sub := doc.Resources.LaunchTemplate.Properties.LaunchTemplateData.UserData.Base64.Sub
	if len(sub) != 2 {
		t.Fatalf("user data: got %d parts, want a text and its variables", len(sub))
	}
	var text string
	variables := map[string]yaml.Node{}
	if err := sub[0].Decode(&text); err != nil {
		t.Fatal(err)
	}
	if err := sub[1].Decode(&variables); err != nil {
		t.Fatal(err)
	}
	return regexp.MustCompile(`\$\{([^}]*)\}`).ReplaceAllStringFunc(text, func(found string) string {
		name := found[2 : len(found)-1]
		if literal, ok := strings.CutPrefix(name, "!"); ok {
			return "${" + literal + "}"
		}
		if value, ok := values[name]; ok {
			return value
		}
		if p, ok := doc.Parameters[name]; ok {
			return p.Default
		}
		_, variable := variables[name]
		if !variable && name != "TargetGroup" && name != "BootstrapLogs" && !strings.HasPrefix(name, "AWS::") {
			t.Errorf("user data: ${%s} is no parameter, no variable and no resource", name)
		}
		return "<" + name + ">"
	})
}
