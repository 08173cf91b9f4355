package onnx

import (
	"slices"
	"strings"
)

// maxCheckDepth bounds nested graphs in models made in memory; the reader's
// own limit is lower.
const maxCheckDepth = 100

// Check checks a model against the rules of the format that do not depend on
// single operators: every operator's domain has one opset import; each value
// is made once, before it is used, in its graph or one around it; outputs are
// made by their graph; names of initializers and attributes are unique;
// functions are declared once, call one another without recursion, and refer to
// attributes that they have; tensors fit their type and shape. It follows the
// reference checker (onnx.checker) where that is laxer than the text of the
// specification: inputs and initializers of a nested graph may hide outer names.
// It is laxer itself where runtimes are: that checker also wants a shape for
// every input and output of the model, and a node's attributes and number of
// inputs as the standard's operators have them.
//
// The error is a *format.FormatError that names the node, or a
// *format.UnsupportedError for a format version that is too new.
func Check(m *Model) error {
	if m.IRVersion < 1 {
		return errorAt(-1, "", "ir_version is %d, expected 1 to %d", m.IRVersion, MaxIRVersion)
	}
	if m.IRVersion > MaxIRVersion {
		return unsupportedAt(-1, "", "ir_version %d is newer than %d, the last that is known here; export the model for an older version", m.IRVersion, MaxIRVersion)
	}
	if m.Graph == nil {
		return errorAt(-1, "", "there is no graph")
	}
	if m.Graph.Name == "" {
		return errorAt(-1, "graph", "the name is empty, which checkers and runtimes refuse")
	}
	opsets, err := checkOpsets(m.Opsets)
	if err != nil {
		return err
	}
	if len(m.Functions) > 0 && m.IRVersion < 8 {
		return errorAt(-1, functionPlace(m.Functions[0]), "functions need ir_version 8 or later, found %d", m.IRVersion)
	}
	functions, err := checkFunctionIDs(m)
	if err != nil {
		return err
	}
	c := &checker{model: m, opsets: opsets}
	if err := c.graph(m.Graph, nil, 0); err != nil {
		return err
	}
	for _, f := range m.Functions {
		if err := checkFunction(m, f); err != nil {
			return within(err, functionPlace(f))
		}
	}
	return checkRecursion(m, functions)
}

// checkOpsets returns the versions by domain.
func checkOpsets(list []Opset) (map[string]int64, error) {
	if len(list) == 0 {
		return nil, errorAt(-1, "opset_import", "none, expected the version of each operator set in use")
	}
	out := map[string]int64{}
	for _, o := range list {
		domain := plainDomain(o.Domain)
		if _, twice := out[domain]; twice {
			return nil, errorAt(-1, "opset_import", "domain %s occurs twice, expected once", quote(o.Domain))
		}
		if o.Version < 1 || o.Version > 1<<31-1 {
			return nil, errorAt(-1, "opset_import", "version %d of domain %s, expected 1 or more", o.Version, quote(o.Domain))
		}
		out[domain] = o.Version
	}
	return out, nil
}

// plainDomain folds the two names of the standard's domain.
func plainDomain(domain string) string {
	if domain == "ai.onnx" {
		return ""
	}
	return domain
}

// functionID tells the functions of a model apart.
type functionID struct{ domain, name, overload string }

// String is the ID as domain::name, with the overload where there is one.
func (id functionID) String() string {
	s := id.domain + "::" + id.name
	if id.overload != "" {
		s += ":" + id.overload
	}
	return s
}

// id is the function's own ID.
func (f *Function) id() functionID { return functionID{plainDomain(f.Domain), f.Name, f.Overload} }

// callee is the ID of the function that a node calls, if it calls one.
func (n *Node) callee() functionID { return functionID{plainDomain(n.Domain), n.OpType, n.Overload} }

func checkFunctionIDs(m *Model) (map[functionID]*Function, error) {
	out := make(map[functionID]*Function, len(m.Functions))
	for _, f := range m.Functions {
		if f.Name == "" {
			return nil, errorAt(-1, "functions", "a function has no name")
		}
		if out[f.id()] != nil {
			return nil, errorAt(-1, functionPlace(f), "the function is declared twice, expected once")
		}
		out[f.id()] = f
	}
	return out, nil
}

// checker checks the graphs of a model or the body of a function.
type checker struct {
	model      *Model
	opsets     map[string]int64
	attributes map[string]bool // of the function; nil in the model's own graphs
}

// scope is the values that a graph and those around it have so far.
type scope struct {
	names map[string]bool
	outer *scope
}

func (s *scope) has(name string) bool {
	for ; s != nil; s = s.outer {
		if s.names[name] {
			return true
		}
	}
	return false
}

func (c *checker) graph(g *Graph, outer *scope, depth int) error {
	if depth > maxCheckDepth {
		return unsupportedAt(-1, "", "graphs nested deeper than %d", maxCheckDepth)
	}
	here := &scope{names: map[string]bool{}, outer: outer}
	for _, v := range g.Inputs {
		if v.Name == "" {
			return errorAt(-1, "inputs", "an input has no name")
		}
		if here.names[v.Name] {
			return errorAt(-1, "input "+quote(v.Name), "the name occurs twice among the inputs, expected once")
		}
		here.names[v.Name] = true
	}
	if g == c.model.Graph {
		for _, v := range slices.Concat(g.Inputs, g.Outputs) {
			if err := checkTyped(v); err != nil {
				return err
			}
		}
	}
	if err := c.initializers(g, here); err != nil {
		return err
	}
	if err := c.nodes(g.Nodes, here, depth); err != nil {
		return err
	}
	seen := map[string]bool{}
	for _, v := range g.Outputs {
		if !here.names[v.Name] {
			return errorAt(-1, "output "+quote(v.Name), "no node of the graph makes it, expected one")
		}
		if seen[v.Name] {
			return errorAt(-1, "output "+quote(v.Name), "the name occurs twice among the outputs, expected once")
		}
		seen[v.Name] = true
	}
	return checkValueInfo(g.ValueInfo)
}

// checkTyped fails unless an input or output of the model has a type.
func checkTyped(v *ValueInfo) error {
	if v.Type == nil || v.Type.Kind == TypeUndefined {
		return errorAt(-1, valuePlace(v.Name), "an input or output of the model has no type")
	}
	if v.Type.Kind == TypeTensor && !v.Type.Elem.Valid() {
		return errorAt(-1, valuePlace(v.Name), "element type %s, expected one of the format's", v.Type.Elem)
	}
	return nil
}

func checkValueInfo(list []*ValueInfo) error {
	seen := make(map[string]bool, len(list))
	for _, v := range list {
		if seen[v.Name] {
			return errorAt(-1, "value_info "+quote(v.Name), "the value is described twice, expected once")
		}
		seen[v.Name] = true
	}
	return nil
}

func (c *checker) initializers(g *Graph, here *scope) error {
	seen := make(map[string]bool, len(g.Initializers))
	tensors := slices.Clone(g.Initializers)
	for _, s := range g.SparseInitializers {
		if s.Values == nil || s.Indices == nil {
			return errorAt(-1, "sparse initializer", "values or indices are missing")
		}
		tensors = append(tensors, s.Values)
	}
	for _, t := range tensors {
		place := "initializer " + quote(t.Name)
		switch {
		case t.Name == "":
			return errorAt(-1, "initializers", "an initializer has no name")
		case seen[t.Name]:
			return errorAt(-1, place, "the name occurs twice among the initializers, expected once")
		case c.model.IRVersion < 4 && !here.names[t.Name]:
			return errorAt(-1, place, "it is no input of the graph, as ir_version %d demands (4 and later do not)", c.model.IRVersion)
		}
		if err := t.checkData(); err != nil {
			return errorAt(-1, place, "%v", err)
		}
		seen[t.Name] = true
		here.names[t.Name] = true
	}
	return nil
}

func (c *checker) nodes(nodes []*Node, here *scope, depth int) error {
	for i, n := range nodes {
		if err := c.node(n, here, depth); err != nil {
			return within(err, nodePlace(n, i))
		}
		for _, name := range n.Inputs {
			if name != "" && !here.has(name) {
				return within(unmade(name, nodes, i), nodePlace(n, i))
			}
		}
		for _, name := range n.Outputs {
			if name == "" {
				continue
			}
			if here.has(name) {
				return errorAt(-1, nodePlace(n, i), "output %s is the name of a value that exists already; each value must be made once", quote(name))
			}
			here.names[name] = true
		}
	}
	return nil
}

// unmade explains why a value that node i uses does not exist.
func unmade(name string, nodes []*Node, i int) error {
	for j := i; j < len(nodes); j++ {
		if slices.Contains(nodes[j].Outputs, name) {
			return errorAt(-1, "", "input %s is made by %s, which does not come before it; the nodes form a cycle or are not sorted", quote(name), nodePlace(nodes[j], j))
		}
	}
	return errorAt(-1, "", "nothing makes its input %s; expected an input, an initializer or an output of an earlier node", quote(name))
}

func (c *checker) node(n *Node, here *scope, depth int) error {
	if n.OpType == "" {
		return errorAt(-1, "", "no op_type, expected the name of an operator")
	}
	if len(n.Inputs) == 0 && len(n.Outputs) == 0 {
		return errorAt(-1, "", "the node has neither inputs nor outputs")
	}
	if _, ok := c.opsets[plainDomain(n.Domain)]; !ok {
		return errorAt(-1, "", "no opset_import for domain %s; add one with the version of its operators", quote(n.Domain))
	}
	seen := map[string]bool{}
	for _, a := range n.Attributes {
		if seen[a.Name] {
			return errorAt(-1, attributePlace(a.Name), "the attribute occurs twice, expected once")
		}
		seen[a.Name] = true
		if err := c.attribute(a, here, depth); err != nil {
			return within(err, attributePlace(a.Name))
		}
	}
	return nil
}

func (c *checker) attribute(a *Attribute, here *scope, depth int) error {
	if a.Name == "" {
		return errorAt(-1, "", "an attribute has no name")
	}
	if a.Ref != "" {
		switch {
		case c.attributes == nil:
			return errorAt(-1, "", "it refers to attribute %s of a function, but is in none", quote(a.Ref))
		case !c.attributes[a.Ref]:
			return errorAt(-1, "", "it refers to %s, which is no attribute of the function", quote(a.Ref))
		}
		return nil
	}
	if kindOf(a.Value) != a.Kind || a.Kind == KindUndefined {
		return errorAt(-1, "", "a value of Go type %T for an attribute of kind %s", a.Value, a.Kind)
	}
	var tensors []*Tensor
	switch v := a.Value.(type) {
	case *Tensor:
		tensors = []*Tensor{v}
	case []*Tensor:
		tensors = v
	}
	for _, t := range tensors {
		if err := t.checkData(); err != nil {
			return errorAt(-1, tensorPlace(t.Name), "%v", err)
		}
	}
	for _, g := range a.Graphs() {
		if g.Name == "" {
			return errorAt(-1, "graph", "the name is empty, which checkers and runtimes refuse")
		}
		if err := c.graph(g, here, depth+1); err != nil {
			return err
		}
	}
	return nil
}

func checkFunction(m *Model, f *Function) error {
	opsets, err := checkOpsets(f.Opsets)
	if err != nil {
		return err
	}
	c := &checker{model: m, opsets: opsets, attributes: map[string]bool{}}
	declare := func(name string) error {
		if name == "" || c.attributes[name] {
			return errorAt(-1, attributePlace(name), "the attribute is declared twice or has no name")
		}
		c.attributes[name] = true
		return nil
	}
	for _, name := range f.Attributes {
		if err := declare(name); err != nil {
			return err
		}
	}
	for _, a := range f.Defaults {
		if err := declare(a.Name); err != nil {
			return err
		}
		if a.Ref != "" {
			return errorAt(-1, attributePlace(a.Name), "a default cannot refer to an attribute")
		}
		if err := c.attribute(a, nil, 0); err != nil {
			return within(err, attributePlace(a.Name))
		}
	}
	here := &scope{names: map[string]bool{}}
	for _, name := range f.Inputs {
		if name == "" || here.names[name] {
			return errorAt(-1, "input "+quote(name), "the name is empty or occurs twice among the inputs")
		}
		here.names[name] = true
	}
	if err := c.nodes(f.Nodes, here, 0); err != nil {
		return err
	}
	seen := map[string]bool{}
	for _, name := range f.Outputs {
		if !here.names[name] || seen[name] {
			return errorAt(-1, "output "+quote(name), "no node makes it, or it occurs twice among the outputs")
		}
		seen[name] = true
	}
	return checkValueInfo(f.ValueInfo)
}

// checkRecursion fails when a function calls itself, directly or through
// others.
func checkRecursion(m *Model, functions map[functionID]*Function) error {
	// The calls of each function, those in nested graphs too.
	calls := make(map[*Function][]*Function, len(m.Functions))
	for _, f := range m.Functions {
		seen := map[*Function]bool{}
		_ = walk(nil, &f.Nodes, func(_ *Graph, nodes *[]*Node) error { // the function never fails
			for _, n := range *nodes {
				if callee := functions[n.callee()]; callee != nil && !seen[callee] {
					seen[callee] = true
					calls[f] = append(calls[f], callee)
				}
			}
			return nil
		})
	}
	// Depth first with a stack of its own: a long chain of calls is no reason
	// to recurse.
	const entered, done = 1, 2
	state := make(map[*Function]int, len(m.Functions))
	for _, start := range m.Functions {
		stack := []*Function{start}
		for len(stack) > 0 {
			f := stack[len(stack)-1]
			if state[f] != 0 { // all that it calls has been seen
				state[f] = done
				stack = stack[:len(stack)-1]
				continue
			}
			state[f] = entered
			for _, callee := range calls[f] {
				switch state[callee] {
				case entered:
					return errorAt(-1, functionPlace(f), "recursion, which is not allowed: %s calling %s", callChain(calls, callee, f), quote(callee.Name))
				case 0:
					stack = append(stack, callee)
				}
			}
		}
	}
	return nil
}

// callChain is the shortest chain of calls from one function to another, for
// a message.
func callChain(calls map[*Function][]*Function, from, to *Function) string {
	caller := map[*Function]*Function{from: nil}
	for queue := []*Function{from}; len(queue) > 0 && queue[0] != to; queue = queue[1:] {
		for _, callee := range calls[queue[0]] {
			if _, seen := caller[callee]; !seen {
				caller[callee] = queue[0]
				queue = append(queue, callee)
			}
		}
	}
	var names []string
	for f := to; f != nil; f = caller[f] {
		names = append(names, quote(f.Name))
	}
	slices.Reverse(names)
	const most = 8
	if len(names) > most {
		names = append(names[:most], "...")
	}
	return strings.Join(names, " calling ")
}
