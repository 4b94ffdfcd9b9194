// Package stackcheck reads the CloudFormation templates and holds them to the house's
// rules: nothing is public, everything is encrypted, nothing that holds data goes with
// its stack, no old ledger can come back, no alarm takes a late figure for a missing one,
// every permission that is wide says why. Its tests compare the templates with the
// programs besides.
//
// A template is evaluated as CloudFormation does, for given parameters and for what
// other stacks export: conditions, mappings and functions. What only a made resource
// knows (its ARN, its address) stays a reference in its place, see Reference. Nothing
// is asked of AWS.
//
// Fail mode: closed. A template that cannot be read or evaluated is an error, and so is
// a function that is not known here. No clock.
package stackcheck

import (
	"errors"
	"fmt"
	"iter"
	"os"
	"path/filepath"
	"strings"

	"go.yaml.in/yaml/v4"
)

// Order is the names of the templates in the order in which their stacks are created.
func Order() []string {
	return []string{"network", "data", "backoffice", "compute", "functions", "edge", "alarms"}
}

// EdgeRegion is where the stack named edge must live: certificates and filters of
// CloudFront are taken from there only.
const EdgeRegion = "us-east-1"

// Template is a stack's template as it is written. It is not changed after Parse.
type Template struct {
	// Name is the file's, without .yaml.
	Name string

	root  *yaml.Node
	lines []string
}

// Parse reads a template. The error names the template and, where there is one, the
// line.
func Parse(name string, source []byte) (*Template, error) {
	var document yaml.Node
	if err := yaml.Unmarshal(source, &document); err != nil {
		return nil, fmt.Errorf("read template %s: %w", name, err)
	}
	if document.Kind != yaml.DocumentNode || len(document.Content) != 1 || document.Content[0].Kind != yaml.MappingNode {
		return nil, fmt.Errorf("read template %s: want a mapping with Resources", name)
	}
	t := &Template{Name: name, root: document.Content[0], lines: strings.Split(string(source), "\n")}
	if err := t.plain(t.root); err != nil {
		return nil, fmt.Errorf("read template %s: %w", name, err)
	}
	if r := field(t.root, "Resources"); r == nil || r.Kind != yaml.MappingNode {
		return nil, fmt.Errorf("read template %s: want a mapping with Resources", name)
	}
	return t, nil
}

// ReadDir reads the templates of Order from a folder. One that is missing is an error.
func ReadDir(dir string) ([]*Template, error) {
	var all []*Template
	var errs []error
	for _, name := range Order() {
		source, err := os.ReadFile(filepath.Join(dir, name+".yaml"))
		if err != nil {
			errs = append(errs, fmt.Errorf("read template %s: %w", name, err))
			continue
		}
		t, err := Parse(name, source)
		errs = append(errs, err)
		all = append(all, t)
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	return all, nil
}

// plain refuses what CloudFormation does not read: anchors, and a key that is there
// twice, of which the second would win unseen.
func (t *Template) plain(n *yaml.Node) error {
	if n.Kind == yaml.AliasNode || n.Anchor != "" {
		return fmt.Errorf("line %d: CloudFormation knows no anchors", n.Line)
	}
	seen := map[string]bool{}
	for i, child := range n.Content {
		if n.Kind == yaml.MappingNode && i%2 == 0 {
			if seen[child.Value] {
				return fmt.Errorf("line %d: the key %s is there twice", child.Line, child.Value)
			}
			seen[child.Value] = true
			if name, _ := function(child); name != "" {
				return fmt.Errorf("line %d: !%s is a function in the place of a name", child.Line, name)
			}
		}
		if err := t.plain(child); err != nil {
			return err
		}
	}
	return nil
}

// Resources are the logical ids with their types, also of those that a condition leaves
// out.
func (t *Template) Resources() map[string]string {
	all := map[string]string{}
	for id, body := range pairs(field(t.root, "Resources")) {
		if kind := field(body, "Type"); kind != nil {
			all[id.Value] = kind.Value
		}
	}
	return all
}

// Parameters are the names with their defaults; one without a default has none here.
func (t *Template) Parameters() map[string]*string {
	all := map[string]*string{}
	for name, body := range pairs(field(t.root, "Parameters")) {
		all[name.Value] = nil
		if standard := field(body, "Default"); standard != nil {
			all[name.Value] = &standard.Value
		}
	}
	return all
}

// field is a mapping's value, or nil.
func field(n *yaml.Node, name string) *yaml.Node {
	for key, value := range pairs(n) {
		if key.Value == name {
			return value
		}
	}
	return nil
}

// pairs are a mapping's keys and values in their order; of anything else there are none.
func pairs(n *yaml.Node) iter.Seq2[*yaml.Node, *yaml.Node] {
	return func(yield func(key, value *yaml.Node) bool) {
		if n == nil || n.Kind != yaml.MappingNode {
			return
		}
		for i := 0; i+1 < len(n.Content); i += 2 {
			if !yield(n.Content[i], n.Content[i+1]) {
				return
			}
		}
	}
}

// explained tells whether the comment directly above a line has a line of its own that
// begins with these words and goes on.
func (t *Template) explained(line int, words string) bool {
	for i := line - 2; i >= 0 && i < len(t.lines); i-- {
		comment, ok := strings.CutPrefix(strings.TrimSpace(t.lines[i]), "#")
		if !ok {
			return false
		}
		if why, ok := strings.CutPrefix(strings.TrimSpace(comment), words); ok {
			return strings.TrimSpace(why) != ""
		}
	}
	return false
}
