package stackcheck

import (
	"encoding/base64"
	"errors"
	"fmt"
	"iter"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v4"
)

// Inputs are what a template is evaluated with.
type Inputs struct {
	// Parameters are those that differ from the template's defaults.
	Parameters map[string]string
	// Imports are the values that other stacks export, by the exports' names.
	Imports map[string]string
	// Region and Account are where the stack lives.
	Region, Account string
}

// Stack is a template, evaluated. Values are map[string]any, []any, string, bool, int
// and float64; a text may hold references.
type Stack struct {
	Template *Template
	// Resources are those that are made, by their logical ids.
	Resources map[string]Resource
	// Outputs are the values by the outputs' names, Exports by the exports'.
	Outputs, Exports map[string]string
	// Imports are the names of exports that were asked for.
	Imports map[string]bool
}

// Resource is one of a stack's.
type Resource struct {
	Type       string
	Properties map[string]any
	// DeletionPolicy and UpdateReplacePolicy are "" where the template has none, which
	// means Delete to CloudFormation, and for a database Snapshot.
	DeletionPolicy, UpdateReplacePolicy string
}

// Reference stands for what only a made resource knows: its id, or with a name its
// attribute. It is in brackets that no template has.
func Reference(template, id, attribute string) string {
	if attribute != "" {
		attribute = "." + attribute
	}
	return "⟨" + template + ":" + id + attribute + "⟩"
}

// noValue is AWS::NoValue: what holds it is not there.
type noValue struct{}

// Resolve evaluates the template. The error joins everything that is wrong.
func (t *Template) Resolve(in Inputs) (*Stack, error) {
	s := &Stack{
		Template: t, Resources: map[string]Resource{},
		Outputs: map[string]string{}, Exports: map[string]string{}, Imports: map[string]bool{},
	}
	e := &evaluation{stack: s, in: in, parameters: map[string]any{}, conditions: map[string]bool{}, types: t.Resources()}
	var errs []error
	bad := func(where string, err error) {
		if err != nil {
			errs = append(errs, fmt.Errorf("template %s: %s: %w", t.Name, where, err))
		}
	}
	bad("Parameters", e.readParameters())
	for name := range pairs(field(t.root, "Conditions")) {
		_, err := e.condition(name.Value)
		bad("condition "+name.Value, err)
	}
	for id, body := range pairs(field(t.root, "Resources")) {
		made, err := e.made(body)
		if err != nil || !made {
			bad(id.Value, err)
			continue
		}
		r := Resource{Type: e.types[id.Value]}
		if r.Type == "" {
			bad(id.Value, errors.New("want a Type"))
		}
		for policy, into := range map[string]*string{"DeletionPolicy": &r.DeletionPolicy, "UpdateReplacePolicy": &r.UpdateReplacePolicy} {
			if n := field(body, policy); n != nil {
				*into, err = e.text(n)
				bad(id.Value+"."+policy, err)
			}
		}
		r.Properties = map[string]any{}
		if n := field(body, "Properties"); n != nil {
			v, err := e.value(n)
			bad(id.Value, err)
			if m, ok := v.(map[string]any); ok {
				r.Properties = m
			}
		}
		s.Resources[id.Value] = r
	}
	for name, body := range pairs(field(t.root, "Outputs")) {
		made, err := e.made(body)
		if err != nil || !made {
			bad("output "+name.Value, err)
			continue
		}
		value, err := e.text(field(body, "Value"))
		bad("output "+name.Value, err)
		s.Outputs[name.Value] = value
		if n := field(field(body, "Export"), "Name"); n != nil {
			export, err := e.text(n)
			bad("output "+name.Value, err)
			s.Exports[export] = value
		}
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	return s, nil
}

type evaluation struct {
	stack      *Stack
	in         Inputs
	parameters map[string]any
	conditions map[string]bool
	types      map[string]string
	depth      int // of conditions that ask for conditions
}

func (e *evaluation) template() *Template { return e.stack.Template }

func (e *evaluation) readParameters() error {
	var errs []error
	known := map[string]bool{}
	for name, body := range pairs(field(e.template().root, "Parameters")) {
		known[name.Value] = true
		value, given := e.in.Parameters[name.Value]
		if !given {
			standard := field(body, "Default")
			if standard == nil {
				errs = append(errs, fmt.Errorf("%s: no value is given and it has no default", name.Value))
				continue
			}
			value = standard.Value
		}
		if allowed := field(body, "AllowedValues"); allowed != nil {
			var values []string
			for _, n := range allowed.Content {
				values = append(values, n.Value)
			}
			if !slices.Contains(values, value) {
				errs = append(errs, fmt.Errorf("%s: %q: want one of %q", name.Value, value, values))
			}
		}
		if pattern := field(body, "AllowedPattern"); pattern != nil {
			// As a whole, by the engine of Java: what both know is enough here.
			whole, err := regexp.Compile("^(?:" + pattern.Value + ")$")
			if err != nil || !whole.MatchString(value) {
				errs = append(errs, fmt.Errorf("%s: %q: want %s", name.Value, value, pattern.Value))
			}
		}
		kind := ""
		if n := field(body, "Type"); n != nil {
			kind = n.Value
		}
		switch {
		case strings.HasPrefix(kind, "AWS::SSM::Parameter::Value"):
			e.parameters[name.Value] = Reference(e.template().Name, name.Value, "")
		case kind == "CommaDelimitedList" || strings.HasPrefix(kind, "List<"):
			list := []any{}
			for part := range strings.SplitSeq(value, ",") {
				if part = strings.TrimSpace(part); part != "" {
					list = append(list, part)
				}
			}
			e.parameters[name.Value] = list
		default:
			e.parameters[name.Value] = value
		}
	}
	for name := range e.in.Parameters {
		if !known[name] {
			errs = append(errs, fmt.Errorf("%s: a value is given and there is no such parameter", name))
		}
	}
	return errors.Join(errs...)
}

// made tells whether a resource's or an output's condition holds.
func (e *evaluation) made(body *yaml.Node) (bool, error) {
	n := field(body, "Condition")
	if n == nil {
		return true, nil
	}
	return e.condition(n.Value)
}

func (e *evaluation) condition(name string) (bool, error) {
	if holds, ok := e.conditions[name]; ok {
		return holds, nil
	}
	n := field(field(e.template().root, "Conditions"), name)
	if n == nil {
		return false, fmt.Errorf("there is no condition %s", name)
	}
	const most = 20
	if e.depth++; e.depth > most {
		return false, fmt.Errorf("condition %s asks for itself", name)
	}
	defer func() { e.depth-- }()
	v, err := e.value(n)
	if err != nil {
		return false, err
	}
	holds, ok := v.(bool)
	if !ok {
		return false, fmt.Errorf("condition %s: got %v, want true or false", name, v)
	}
	e.conditions[name] = holds
	return holds, nil
}

// text evaluates to one text.
func (e *evaluation) text(n *yaml.Node) (string, error) {
	if n == nil {
		return "", errors.New("a value is missing")
	}
	v, err := e.value(n)
	if err != nil {
		return "", err
	}
	switch v := v.(type) {
	case map[string]any, []any, noValue, nil:
		return "", fmt.Errorf("line %d: got %v, want a text", n.Line, v)
	default:
		return Text(v), nil
	}
}

// Text is a value as CloudFormation writes it into a text.
func Text(v any) string {
	if v == nil {
		return ""
	}
	return fmt.Sprint(v)
}

func (e *evaluation) list(n *yaml.Node) ([]any, error) {
	v, err := e.value(n)
	if err != nil {
		return nil, err
	}
	list, ok := v.([]any)
	if !ok {
		return nil, fmt.Errorf("line %d: got %v, want a list", n.Line, v)
	}
	return list, nil
}

// function is the name of an intrinsic function and its argument, of a short form or a
// long one; "" is a plain value.
func function(n *yaml.Node) (name string, argument *yaml.Node) {
	if short, ok := strings.CutPrefix(n.Tag, "!"); ok && !strings.HasPrefix(short, "!") {
		bare := *n
		bare.Tag = ""
		if bare.Kind == yaml.ScalarNode {
			bare.Tag = "!!str"
		}
		return short, &bare
	}
	if n.Kind == yaml.MappingNode && len(n.Content) == 2 {
		if name, ok := strings.CutPrefix(n.Content[0].Value, "Fn::"); ok {
			return name, n.Content[1]
		}
		if n.Content[0].Value == "Ref" {
			return "Ref", n.Content[1]
		}
		// A policy's Condition is a mapping, one that is referred to is a name.
		if n.Content[0].Value == "Condition" && n.Content[1].Kind == yaml.ScalarNode {
			return "Condition", n.Content[1]
		}
	}
	return "", nil
}

func (e *evaluation) value(n *yaml.Node) (any, error) {
	if name, argument := function(n); name != "" {
		v, err := e.call(name, argument)
		if err != nil {
			return nil, fmt.Errorf("line %d: %s: %w", n.Line, name, err)
		}
		return v, nil
	}
	switch n.Kind {
	case yaml.ScalarNode:
		return scalar(n), nil
	case yaml.SequenceNode:
		list := []any{}
		for _, item := range n.Content {
			v, err := e.value(item)
			if err != nil {
				return nil, err
			}
			if _, none := v.(noValue); !none {
				list = append(list, v)
			}
		}
		return list, nil
	case yaml.MappingNode:
		m := map[string]any{}
		for key, item := range pairs(n) {
			v, err := e.value(item)
			if err != nil {
				return nil, err
			}
			if _, none := v.(noValue); !none {
				m[key.Value] = v
			}
		}
		return m, nil
	}
	return nil, fmt.Errorf("line %d: cannot be read", n.Line)
}

// scalar is a plain value. CloudFormation has no dates: 2012-10-17 is a text.
func scalar(n *yaml.Node) any {
	switch n.ShortTag() {
	case "!!bool":
		if v, err := strconv.ParseBool(n.Value); err == nil {
			return v
		}
	case "!!int":
		if v, err := strconv.Atoi(n.Value); err == nil {
			return v
		}
	case "!!float":
		if v, err := strconv.ParseFloat(n.Value, 64); err == nil {
			return v
		}
	case "!!null":
		return nil
	}
	return n.Value
}

func (e *evaluation) call(name string, n *yaml.Node) (any, error) {
	switch name {
	case "Ref":
		return e.ref(n.Value)
	case "Condition":
		return e.condition(n.Value)
	case "GetAtt":
		id, attribute, ok := strings.Cut(n.Value, ".")
		if n.Kind == yaml.SequenceNode && len(n.Content) == 2 {
			id, attribute, ok = n.Content[0].Value, n.Content[1].Value, true
		}
		if !ok {
			return nil, errors.New("want a resource and its attribute")
		}
		return e.attribute(id, attribute)
	case "Sub":
		return e.sub(n)
	case "ImportValue":
		export, err := e.text(n)
		if err != nil {
			return nil, err
		}
		e.stack.Imports[export] = true
		value, ok := e.in.Imports[export]
		if !ok {
			return nil, fmt.Errorf("nobody exports %s, or a stack that is created later or in another region", export)
		}
		return value, nil
	case "Base64":
		text, err := e.text(n)
		return base64.StdEncoding.EncodeToString([]byte(text)), err
	case "GetAZs":
		region, err := e.text(n)
		if region == "" {
			region = e.in.Region
		}
		return []any{region + "a", region + "b", region + "c"}, err
	case "Not":
		all, err := e.truths(n, 1)
		return err == nil && !all[0], err
	case "And":
		all, err := e.truths(n, 0)
		for _, holds := range all {
			if !holds {
				return false, err
			}
		}
		return true, err
	case "Or":
		all, err := e.truths(n, 0)
		for _, holds := range all {
			if holds {
				return true, err
			}
		}
		return false, err
	}
	if n.Kind != yaml.SequenceNode {
		return nil, errors.New("not a function that is known here, or not with a list")
	}
	return e.callList(name, n.Content)
}

func (e *evaluation) truths(n *yaml.Node, want int) ([]bool, error) {
	list, err := e.list(n)
	if err != nil {
		return nil, err
	}
	if want > 0 && len(list) != want {
		return nil, fmt.Errorf("got %d values, want %d", len(list), want)
	}
	var all []bool
	for _, v := range list {
		holds, ok := v.(bool)
		if !ok {
			return nil, fmt.Errorf("got %v, want true or false", v)
		}
		all = append(all, holds)
	}
	return all, nil
}

func (e *evaluation) callList(name string, args []*yaml.Node) (any, error) {
	arity := map[string]int{"If": 3, "Equals": 2, "FindInMap": 3, "Join": 2, "Split": 2, "Select": 2, "Cidr": 3}
	if want, ok := arity[name]; !ok || len(args) != want {
		return nil, fmt.Errorf("got %d arguments, want %d of a function that is known here", len(args), want)
	}
	switch name {
	case "If":
		holds, err := e.condition(args[0].Value)
		if err != nil {
			return nil, err
		}
		if holds {
			return e.value(args[1])
		}
		return e.value(args[2])
	case "Equals":
		left, err := e.value(args[0])
		if err != nil {
			return nil, err
		}
		right, err := e.value(args[1])
		return Text(left) == Text(right), err
	case "FindInMap":
		at := field(e.template().root, "Mappings")
		for _, arg := range args {
			key, err := e.text(arg)
			if err != nil {
				return nil, err
			}
			if at = field(at, key); at == nil {
				return nil, fmt.Errorf("there is no %s", key)
			}
		}
		return e.value(at)
	case "Join", "Split":
		separator, err := e.text(args[0])
		if err != nil {
			return nil, err
		}
		if name == "Join" {
			list, err := e.list(args[1])
			parts := make([]string, len(list))
			for i, v := range list {
				parts[i] = Text(v)
			}
			return strings.Join(parts, separator), err
		}
		text, err := e.text(args[1])
		list := []any{}
		for part := range strings.SplitSeq(text, separator) {
			list = append(list, part)
		}
		return list, err
	case "Select":
		index, err := e.number(args[0])
		if err != nil {
			return nil, err
		}
		list, err := e.list(args[1])
		if err != nil || index >= len(list) {
			return nil, errors.Join(err, fmt.Errorf("%d of %d: there are not so many", index, len(list)))
		}
		return list[index], nil
	default: // Cidr
		return e.cidr(args)
	}
}

func (e *evaluation) number(n *yaml.Node) (int, error) {
	text, err := e.text(n)
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(text)
}

// cidr cuts a block of IPv4 into that many, each of that many bits for hosts.
func (e *evaluation) cidr(args []*yaml.Node) (any, error) {
	text, err := e.text(args[0])
	if err != nil {
		return nil, err
	}
	block, err := netip.ParsePrefix(text)
	if err != nil || !block.Addr().Is4() {
		return nil, fmt.Errorf("%s: want a block of IPv4 addresses", text)
	}
	count, err := e.number(args[1])
	if err != nil {
		return nil, err
	}
	hosts, err := e.number(args[2])
	if err != nil || hosts < 1 || hosts > 32-block.Bits() {
		return nil, errors.Join(err, fmt.Errorf("%d bits for hosts do not fit into %s", hosts, block))
	}
	first := block.Masked().Addr().As4()
	start := uint64(first[0])<<24 | uint64(first[1])<<16 | uint64(first[2])<<8 | uint64(first[3])
	list := []any{}
	for i := range uint64(count) {
		at := start + i<<hosts
		addr := netip.AddrFrom4([4]byte{byte(at >> 24), byte(at >> 16), byte(at >> 8), byte(at)})
		if !block.Contains(addr) {
			return nil, fmt.Errorf("%d blocks do not fit into %s", count, block)
		}
		list = append(list, netip.PrefixFrom(addr, 32-hosts).String())
	}
	return list, nil
}

func (e *evaluation) ref(name string) (any, error) {
	switch name {
	case "AWS::NoValue":
		return noValue{}, nil
	case "AWS::Region":
		return e.in.Region, nil
	case "AWS::AccountId":
		return e.in.Account, nil
	case "AWS::Partition":
		return "aws", nil
	case "AWS::URLSuffix":
		return "amazonaws.com", nil
	case "AWS::StackName":
		return Text(e.parameters["Deployment"]) + "-" + e.template().Name, nil
	case "AWS::StackId":
		return Reference(e.template().Name, name, ""), nil
	}
	if v, ok := e.parameters[name]; ok {
		return v, nil
	}
	return e.attribute(name, "")
}

func (e *evaluation) attribute(id, attribute string) (any, error) {
	if _, ok := e.types[id]; !ok {
		return nil, fmt.Errorf("there is no %s", id)
	}
	made, err := e.made(field(field(e.template().root, "Resources"), id))
	if err != nil {
		return nil, err
	}
	if !made {
		return nil, fmt.Errorf("%s is not made with these parameters", id)
	}
	return Reference(e.template().Name, id, attribute), nil
}

func (e *evaluation) sub(n *yaml.Node) (any, error) {
	text, own := n.Value, map[string]any{}
	if n.Kind == yaml.SequenceNode {
		if len(n.Content) != 2 {
			return nil, errors.New("want a text and a mapping")
		}
		text = n.Content[0].Value
		for key, item := range pairs(n.Content[1]) {
			v, err := e.value(item)
			if err != nil {
				return nil, err
			}
			own[key.Value] = v
		}
	}
	var out strings.Builder
	for {
		before, rest, found := strings.Cut(text, "${")
		out.WriteString(before)
		if !found {
			return out.String(), nil
		}
		name, after, closed := strings.Cut(rest, "}")
		if !closed {
			return nil, errors.New("a ${ is not closed")
		}
		text = after
		if literal, ok := strings.CutPrefix(name, "!"); ok {
			out.WriteString("${" + literal + "}")
			continue
		}
		v, ok := own[name]
		if !ok {
			var err error
			if id, attribute, dotted := strings.Cut(name, "."); dotted {
				v, err = e.attribute(id, attribute)
			} else {
				v, err = e.ref(name)
			}
			if err != nil {
				return nil, err
			}
		}
		if _, isList := v.([]any); isList {
			return nil, fmt.Errorf("%s is a list and not a text", name)
		}
		out.WriteString(Text(v))
	}
}

// Settings are how a whole deployment is made.
type Settings struct {
	// Region and Account are where it lives; edge lives in EdgeRegion.
	Region, Account string
	// Parameters are those that differ from the defaults, by template.
	Parameters map[string]map[string]string
}

// Deployment is all stacks, evaluated one after the other.
type Deployment struct{ Stacks []*Stack }

// Deploy evaluates the templates in their order, each with what those before it export.
// A stack that imports what only a later one exports is an error, as it would be to
// CloudFormation.
func Deploy(templates []*Template, s Settings) (*Deployment, error) {
	d := &Deployment{}
	imports := map[string]map[string]string{}
	for _, t := range templates {
		region := s.Region
		if t.Name == "edge" {
			region = EdgeRegion
		}
		stack, err := t.Resolve(Inputs{
			Parameters: s.Parameters[t.Name], Imports: imports[region], Region: region, Account: s.Account,
		})
		if err != nil {
			return nil, err
		}
		if imports[region] == nil {
			imports[region] = map[string]string{}
		}
		for name, value := range stack.Exports {
			if _, taken := imports[region][name]; taken {
				return nil, fmt.Errorf("template %s: another stack exports %s too", t.Name, name)
			}
			imports[region][name] = value
		}
		d.Stacks = append(d.Stacks, stack)
	}
	return d, nil
}

// Stack is the one of that name, or nil.
func (d *Deployment) Stack(name string) *Stack {
	for _, s := range d.Stacks {
		if s.Template.Name == name {
			return s
		}
	}
	return nil
}

// Each gives every resource with its stack and logical id, of these types or, without,
// of all, in an order that stays.
func (d *Deployment) Each(types ...string) iter.Seq2[At, Resource] {
	return func(yield func(At, Resource) bool) {
		for _, s := range d.Stacks {
			for id := range pairs(field(s.Template.root, "Resources")) {
				r, made := s.Resources[id.Value]
				if !made || len(types) > 0 && !slices.Contains(types, r.Type) {
					continue
				}
				if !yield(At{s.Template.Name, id.Value}, r) {
					return
				}
			}
		}
	}
}

// At is where a resource stands.
type At struct{ Template, ID string }

// String is as in a report.
func (a At) String() string { return a.Template + ".yaml " + a.ID }

// Get walks to a value by names and indexes; nil is not there.
func Get(v any, path ...any) any {
	for _, step := range path {
		switch step := step.(type) {
		case string:
			m, _ := v.(map[string]any)
			v = m[step]
		case int:
			list, _ := v.([]any)
			if step >= len(list) {
				return nil
			}
			v = list[step]
		}
	}
	return v
}

// List is a value's items: a list's, or the value itself where a policy may leave the
// list out; nil has none.
func List(v any) []any {
	switch v := v.(type) {
	case nil:
		return nil
	case []any:
		return v
	}
	return []any{v}
}
