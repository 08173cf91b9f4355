package onnxedit

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/firstpassage/fpa/format/onnx"
	"github.com/firstpassage/fpa/ops/onnxbody"
)

// Forms of the operator in a model; see package onnxbody.
const (
	Function  = "function"  // a node, and a function of the model that defines it
	Inline    = "inline"    // standard operators in place
	Custom    = "custom"    // the node alone
	Attention = "attention" // around the standard's Attention
)

// Forms are the forms in the order in which help lists them.
var Forms = []string{Function, Inline, Custom, Attention}

// Options say what Inject does.
type Options struct {
	Form string // one of Forms; empty: Function

	// Placeholders are operators, as domain::name, whose nodes stand for the
	// operator beside those of its own name. Nodes are the names of nodes that
	// do, whatever their operator. All of them have the operator's inputs and
	// outputs, in its order, and of its attributes those that are not left out.
	Placeholders []string
	Nodes        []string

	// Patterns are parts of the graph to replace first.
	Patterns []Pattern
}

// Result says what Inject did.
type Result struct {
	Form     string        `json:"form"`
	Replaced []Replacement `json:"replaced"`
	Notes    []Finding     `json:"notes"`
}

// Replacement is one place where the operator now is.
type Replacement struct {
	Place   string         `json:"place"`
	Was     string         `json:"was"`               // operator of the node before, or "pattern"
	Removed map[string]int `json:"removed,omitempty"` // nodes of a pattern that went, by operator
}

// Inject writes the operator into a model, which is changed in place. It fails when
// something that the options name is not there, when what is known of types and
// shapes does not suit the operator, and when the result is no model by onnx.Check;
// then the model may be left half changed.
//
// Nodes of the operator that are in the model already are written anew, too, so
// Inject also changes one form into another (from one of the forms with a node).
func Inject(m *onnx.Model, o Options) (*Result, error) {
	if o.Form == "" {
		o.Form = Function
	}
	if !slices.Contains(Forms, o.Form) {
		return nil, fmt.Errorf("the operator cannot be written as %q, expected one of %s", o.Form, strings.Join(Forms, ", "))
	}
	if m.Graph == nil {
		return nil, errors.New("the model has no graph")
	}
	e := &editor{model: m, o: o, result: &Result{Form: o.Form, Replaced: []Replacement{}, Notes: []Finding{}}}
	if err := e.run(); err != nil {
		return nil, err
	}
	return e.result, onnx.Check(m)
}

// editor changes one model.
type editor struct {
	model    *onnx.Model
	o        Options
	result   *Result
	names    map[string]bool // of all values, everywhere in the model
	patterns map[*onnx.Node]*Replacement
	prefixes int
}

// target is a node that becomes the operator.
type target struct {
	s     *scope
	node  *onnx.Node
	place string
	in    [10]string
	info  Node
}

func (t *target) past() bool { return t.in[6] != "" }

func (e *editor) run() error {
	before := e.inUse()
	e.collectNames()
	e.patterns = map[*onnx.Node]*Replacement{}
	for i := range e.o.Patterns {
		if err := e.cut(&e.o.Patterns[i]); err != nil {
			return err
		}
	}
	targets, err := e.targets()
	if err != nil {
		return err
	}
	if len(targets) == 0 {
		return fmt.Errorf("the model has no node of %s%s; name what stands for it by --placeholder, --nodes or --pattern", operator, others(e.model))
	}
	if err := e.write(targets); err != nil {
		return err
	}
	e.tidy(before)
	return nil
}

// collectNames notes every name of a value.
func (e *editor) collectNames() {
	e.names = map[string]bool{}
	visit(e.model, func(s *scope) error { //nolint:errcheck // the function never fails
		for name := range s.values {
			e.names[name] = true
		}
		for _, n := range *s.nodes {
			for _, name := range slices.Concat(n.Inputs, n.Outputs) {
				e.names[name] = true
			}
		}
		return nil
	})
}

// fresh is a name that no value has yet.
func (e *editor) fresh(stem string) string {
	name := stem
	for i := 1; e.names[name]; i++ {
		name = fmt.Sprintf("%s_%d", stem, i)
	}
	e.names[name] = true
	return name
}

// prefix is the beginning of names of new values; no value has one that begins so.
func (e *editor) prefix() string {
next:
	for {
		p := fmt.Sprintf("firstpassage_%d/", e.prefixes)
		e.prefixes++
		for name := range e.names {
			if strings.HasPrefix(name, p) {
				continue next
			}
		}
		return p
	}
}

// targets finds the nodes and checks them.
func (e *editor) targets() ([]*target, error) {
	var list []*target
	byName := map[string]int{}
	err := visit(e.model, func(s *scope) error {
		for i, n := range *s.nodes {
			named := slices.Contains(e.o.Nodes, n.Name) && n.Name != ""
			if named {
				byName[n.Name]++
			}
			if named || isOperator(n) || slices.Contains(e.o.Placeholders, fullName(n)) {
				list = append(list, &target{s: s, node: n, place: s.place(n, i)})
			}
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	for _, name := range e.o.Nodes {
		switch byName[name] {
		case 0:
			return nil, fmt.Errorf("the model has no node named %s%s", quote(name), e.valueHint(name))
		case 1:
		default:
			return nil, fmt.Errorf("%d nodes are named %s, expected one", byName[name], quote(name))
		}
	}
	for _, p := range e.o.Placeholders {
		if !slices.ContainsFunc(list, func(t *target) bool { return fullName(t.node) == p }) {
			return nil, fmt.Errorf("the model has no node of %s%s", quote(p), others(e.model))
		}
	}
	var problems []string
	for _, t := range list {
		r := Replacement{Place: t.place, Was: fullName(t.node)}
		if p := e.patterns[t.node]; p != nil {
			r = *p
		}
		e.result.Replaced = append(e.result.Replaced, r)
		t.node.Domain, t.node.OpType, t.node.Overload = onnxbody.Domain, onnxbody.Name, ""
		problems = append(problems, e.check(t)...)
	}
	if len(problems) > 0 {
		return nil, errors.New(strings.Join(problems, "\n"))
	}
	return list, nil
}

// valueHint explains the name of a value given for a node's.
func (e *editor) valueHint(name string) string {
	var hint string
	visit(e.model, func(s *scope) error { //nolint:errcheck // the function never fails
		for i, n := range *s.nodes {
			if slices.Contains(n.Outputs, name) {
				hint = "; it is a value, made by " + s.place(n, i)
			}
		}
		return nil
	})
	return hint
}

// check checks a node as the operator's, apart from what Inject sets right, and
// returns what is wrong.
func (e *editor) check(t *target) []string {
	r := &Report{}
	c := &checker{model: e.model, report: r}
	var err error
	if t.in, err = inputsOf(t.node); err != nil {
		c.problem(t.place, "", "%v", err)
	}
	if len(t.node.Outputs) == 0 || len(t.node.Outputs) > len(onnxbody.OutputNames) {
		c.problem(t.place, "", "%d outputs, expected 1 to %d: %s", len(t.node.Outputs), len(onnxbody.OutputNames), strings.Join(onnxbody.OutputNames, ", "))
	}
	t.info.Interval = onnxbody.Exclusive
	c.attributes(t.s, t.node, t.place, &t.info)
	for _, a := range t.node.Attributes {
		if a.Ref != "" && e.o.Form != Custom {
			c.problem(t.place, "", "attribute %s is that of the function around it, whose value is not known here; give a value", quote(a.Name))
		}
	}
	if err == nil {
		c.shapes(t.s, t.node, t.in, t.place)
	}
	var out []string
	for _, f := range r.Problems {
		out = append(out, f.String())
	}
	return out
}

// standardOpset is the version of the standard's operators in a target's scope.
func (e *editor) standardOpset(t *target) (int64, error) {
	v := opsetOf(*t.s.opsets, "")
	if v == 0 {
		v = opsetOf(e.model.Opsets, "")
	}
	least := int64(onnxbody.MinOpset)
	if e.o.Form == Attention {
		least = onnxbody.AttentionOpset
	}
	if v < least {
		return 0, fmt.Errorf("%s: the operator set of the standard is %d, the form %s needs %d or later; export the model with a later one or raise it by onnx.version_converter", t.place, v, e.o.Form, least)
	}
	return v, nil
}

// write gives the targets their form.
func (e *editor) write(targets []*target) error {
	// The function, if there is one, is written anew or of no more use.
	e.model.Functions = slices.DeleteFunc(e.model.Functions, func(f *onnx.Function) bool {
		return f.Domain == onnxbody.Domain && f.Name == onnxbody.Name
	})
	switch e.o.Form {
	case Function:
		return e.writeFunction(targets)
	case Custom:
		for _, t := range targets {
			e.writeNode(t)
		}
		return nil
	}
	for _, t := range targets {
		if err := e.writeInline(t); err != nil {
			return err
		}
	}
	return nil
}

// writeNode makes a target a node with both attributes.
func (e *editor) writeNode(t *target) {
	n := t.node
	n.Inputs = n.Inputs[:0]
	for _, name := range t.in {
		if name != "" {
			n.Inputs = append(n.Inputs, name)
		}
	}
	// Tools that infer shapes expect all outputs of a function; an empty name is one
	// that is not wanted.
	for e.o.Form == Function && len(n.Outputs) < len(onnxbody.OutputNames) {
		n.Outputs = append(n.Outputs, "")
	}
	if n.Attribute("scale") == nil {
		n.Attributes = append(n.Attributes, onnx.FloatAttr("scale", 0))
	}
	if n.Attribute("interval") == nil {
		n.Attributes = append(n.Attributes, onnx.StringAttr("interval", onnxbody.Exclusive))
	}
	importOpset(t.s.opsets, onnxbody.Domain, onnxbody.Version)
	importOpset(&e.model.Opsets, onnxbody.Domain, onnxbody.Version)
}

// importOpset sets the version of a domain.
func importOpset(list *[]onnx.Opset, domain string, version int64) {
	for i := range *list {
		if o := &(*list)[i]; o.Domain == domain {
			o.Version = version
			return
		}
	}
	*list = append(*list, onnx.Opset{Domain: domain, Version: version})
}

// writeFunction makes the targets nodes and adds the function.
func (e *editor) writeFunction(targets []*target) error {
	opset := opsetOf(e.model.Opsets, "")
	past := slices.ContainsFunc(targets, (*target).past)
	first := targets[0]
	for _, t := range targets {
		v, err := e.standardOpset(t)
		if err != nil {
			return err
		}
		opset = max(opset, v) // without one of its own, the model is functions only
		if t.info.Interval != first.info.Interval {
			return fmt.Errorf("%s has the interval %q, %s %q; a function can have one of them, use --onnx-op inline", first.place, first.info.Interval, t.place, t.info.Interval)
		}
		if past && !t.past() {
			e.emptyPast(t)
		}
		e.writeNode(t)
	}
	f, err := onnxbody.Function(opset, past, onnxbody.Options{Interval: first.info.Interval})
	if err != nil {
		return err
	}
	e.model.Functions = append(e.model.Functions, f)
	need, err := onnx.IRVersionFor(opset)
	if err != nil {
		return err
	}
	e.model.IRVersion = max(e.model.IRVersion, need)
	return nil
}

// emptyPast gives a node without a past one of length 0: a function cannot see that
// an input is left out.
func (e *editor) emptyPast(t *target) {
	p := e.prefix()
	b := onnx.NewFunction("", "past")
	defer b.Scope(strings.TrimSuffix(p, "/"))()
	zero, axis := b.Int64s(0), b.Int64s(2)
	for i, from := range []int{1, 2, 4, 4} {
		t.in[6+i] = string(b.Op("Slice", onnx.Value(t.in[from]), zero, zero, axis))
	}
	f, _ := b.Function() // without names that the caller chose, it cannot fail
	e.insert(t, f.Nodes)
}

// insert puts nodes before a target.
func (e *editor) insert(t *target, nodes []*onnx.Node) {
	i := slices.Index(*t.s.nodes, t.node)
	*t.s.nodes = slices.Insert(*t.s.nodes, i, nodes...)
	importStandard(t.s, e.model)
}

// importStandard gives a function that has none the model's version of the standard's
// operators.
func importStandard(s *scope, m *onnx.Model) {
	if opsetOf(*s.opsets, "") == 0 {
		*s.opsets = append(*s.opsets, onnx.Opset{Version: opsetOf(m.Opsets, "")})
	}
}

// writeInline puts standard operators in a target's place.
func (e *editor) writeInline(t *target) error {
	if _, err := e.standardOpset(t); err != nil {
		return err
	}
	// A function's builder keeps constants as nodes, which fit everywhere.
	b := onnx.NewFunction("", "inline")
	defer b.Scope(strings.TrimSuffix(e.prefix(), "/"))()
	var v [10]onnx.Value
	for i, name := range t.in {
		v[i] = onnx.Value(name)
	}
	in := onnxbody.Inputs{
		Query: v[0], Key: v[1], Value: v[2], Field: v[3], Level: v[4], Slope: v[5],
		PastKey: v[6], PastValue: v[7], PastLevel: v[8], PastLow: v[9],
	}
	query := t.s.value(t.in[0])
	o := onnxbody.Options{
		Interval: t.info.Interval, Scale: t.info.Scale, Convert: query.elem != onnx.Float, Names: t.node.Outputs,
	}
	var err error
	if e.o.Form == Inline {
		_, err = onnxbody.Inline(b, in, o)
	} else {
		field := t.s.value(t.in[3])
		var hq, hf int64
		known := query.elem == onnx.Float && len(query.dims) == 4 && len(field.dims) == 3
		if known {
			var okQ, okF bool
			hq, okQ = sizeOf(query.dims[1])
			hf, okF = sizeOf(field.dims[1])
			known = okQ && okF
		}
		if !known {
			return fmt.Errorf("%s: the form attention needs float32 and known numbers of heads, but the query %s is %s and the field %s is %s; run onnx.shape_inference first, or use --onnx-op function",
				t.place, quote(t.in[0]), typeString(query), quote(t.in[3]), typeString(field))
		}
		_, err = onnxbody.Attention(b, in, hq, hf, o)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", t.place, err)
	}
	f, err := b.Function()
	if err != nil {
		return fmt.Errorf("%s: %w", t.place, err)
	}
	e.insert(t, f.Nodes)
	*t.s.nodes = slices.DeleteFunc(*t.s.nodes, func(n *onnx.Node) bool { return n == t.node })
	// What becomes of outputs that nothing uses is no loss.
	fresh := make(map[*onnx.Node]bool, len(f.Nodes))
	for _, n := range f.Nodes {
		fresh[n] = true
	}
	prune(t.s, fresh)
	return nil
}

// used is what a model's graph reaches.
type used struct {
	functions map[*onnx.Function]bool
	domains   map[string]bool
}

// inUse finds the functions and domains in use.
func (e *editor) inUse() used {
	u := used{map[*onnx.Function]bool{}, map[string]bool{}}
	called := map[functionID]*onnx.Function{}
	for _, f := range e.model.Functions {
		called[functionID{plainDomain(f.Domain), f.Name, f.Overload}] = f
	}
	var follow func(s *scope) error
	var pending []*onnx.Function
	follow = func(s *scope) error {
		for _, n := range *s.nodes {
			u.domains[plainDomain(n.Domain)] = true
			if f := called[functionID{plainDomain(n.Domain), n.OpType, n.Overload}]; f != nil && !u.functions[f] {
				u.functions[f] = true
				pending = append(pending, f)
			}
		}
		return nil
	}
	main := &scope{graph: e.model.Graph, nodes: &e.model.Graph.Nodes, opsets: &e.model.Opsets}
	main.visit(follow) //nolint:errcheck // the function never fails
	for len(pending) > 0 {
		f := pending[len(pending)-1]
		pending = pending[:len(pending)-1]
		s := &scope{function: f, nodes: &f.Nodes, opsets: &f.Opsets}
		s.visit(follow) //nolint:errcheck // the function never fails
	}
	return u
}

// tidy removes what was in use before and no longer is: functions, imports of
// operator sets.
func (e *editor) tidy(before used) {
	after := e.inUse()
	m := e.model
	m.Functions = slices.DeleteFunc(m.Functions, func(f *onnx.Function) bool {
		return before.functions[f] && !after.functions[f]
	})
	m.Opsets = slices.DeleteFunc(m.Opsets, func(o onnx.Opset) bool {
		d := plainDomain(o.Domain)
		return d != "" && before.domains[d] && !after.domains[d]
	})
}
