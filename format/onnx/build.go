package onnx

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strings"
)

// Value is the name of a value while a graph is being built.
type Value string

// None stands for an optional input that is left out.
const None Value = ""

// Arg is what Builder.Op takes: a Value (an input), an *Attribute, or a list
// of names by As.
type Arg interface{ add(*call) }

// call is a node being made.
type call struct {
	node  *Node
	names []string // of the outputs, where the caller gives them
}

func (v Value) add(c *call)      { c.node.Inputs = append(c.node.Inputs, string(v)) }
func (a *Attribute) add(c *call) { c.node.Attributes = append(c.node.Attributes, a) }

type outputNames []string

func (n outputNames) add(c *call) { c.names = append(c.names, n...) }

// As names the outputs of an operation; without it they get names of their
// own. An empty name leaves an optional output out.
func As(names ...string) Arg { return outputNames(names) }

// Inputs is several inputs as one Arg.
func Inputs(values ...Value) Arg { return inputs(values) }

type inputs []Value

func (in inputs) add(c *call) {
	for _, v := range in {
		v.add(c)
	}
}

// Attributes of operations.

// FloatAttr is an attribute of one float.
func FloatAttr(name string, v float32) *Attribute {
	return &Attribute{Name: name, Kind: KindFloat, Value: v}
}

// IntAttr is an attribute of one integer.
func IntAttr(name string, v int64) *Attribute { return &Attribute{Name: name, Kind: KindInt, Value: v} }

// IntsAttr is an attribute of integers.
func IntsAttr(name string, v ...int64) *Attribute {
	return &Attribute{Name: name, Kind: KindInts, Value: v}
}

// FloatsAttr is an attribute of floats.
func FloatsAttr(name string, v ...float32) *Attribute {
	return &Attribute{Name: name, Kind: KindFloats, Value: v}
}

// StringAttr is an attribute of one string.
func StringAttr(name, v string) *Attribute { return &Attribute{Name: name, Kind: KindString, Value: v} }

// TensorAttr is an attribute of one tensor.
func TensorAttr(name string, t *Tensor) *Attribute {
	return &Attribute{Name: name, Kind: KindTensor, Value: t}
}

// To is the attribute "to" of Cast.
func To(t DataType) *Attribute { return IntAttr("to", int64(t)) }

// Ref is an attribute whose value is that of attribute of of the function
// around it.
func Ref(name, of string, kind AttributeKind) *Attribute {
	return &Attribute{Name: name, Kind: kind, Ref: of}
}

// Body is an attribute of a graph: the body of Scan, Loop or If.
func Body(name string, b *Builder) *Attribute {
	return &Attribute{Name: name, Kind: KindGraph, Value: b.graph}
}

// Builder makes a graph or a function one operation at a time:
//
//	b := onnx.NewGraph("main")
//	x := b.Input("x", onnx.TensorOf(onnx.Float, "n"))
//	y := b.Op("Softmax", x, onnx.IntAttr("axis", -1))
//
// Every value gets a name of its own: the operator's and a number, after the
// present scope. Names that the caller chooses (Input, Initializer, As) stay as
// they are. A mistake, such as a name used twice, is kept and returned by Graph
// or Function.
//
// Sub makes the body of a control-flow operator. It may use the values of the
// builder that it comes from, also those made after it as long as its node
// comes after them.
type Builder struct {
	graph     *Graph
	fn        *Function // of NewFunction; its body is collected in graph
	shared    *shared
	outer     *Builder
	prefix    string
	constants []constant
}

// shared is what the builders of one graph have in common.
type shared struct {
	names  map[string]bool
	counts map[string]int // next number of each name made up
	err    error          // the first mistake
	inFunc bool           // constants are nodes: a function has no initializers
}

// constant is one that was made already.
type constant struct {
	tensor *Tensor
	value  Value
}

// NewGraph starts a graph.
func NewGraph(name string) *Builder {
	return &Builder{
		graph:  &Graph{Name: name},
		shared: &shared{names: map[string]bool{}, counts: map[string]int{}},
	}
}

// NewFunction starts a function of the model. Its inputs and outputs have no
// types, its constants become nodes.
func NewFunction(domain, name string) *Builder {
	b := NewGraph(name)
	b.fn = &Function{Domain: domain, Name: name}
	b.shared.inFunc = true
	return b
}

// Sub starts a graph nested in this one.
func (b *Builder) Sub(name string) *Builder {
	return &Builder{graph: &Graph{Name: name}, shared: b.shared, outer: b, prefix: b.prefix}
}

func (b *Builder) fail(format string, args ...any) {
	if b.shared.err == nil {
		b.shared.err = fmt.Errorf("onnx: graph %s: %w", quote(b.graph.Name), fmt.Errorf(format, args...))
	}
}

// Err is the first mistake so far.
func (b *Builder) Err() error { return b.shared.err }

// Scope puts "name/" before the names made up until the function that it
// returns is called:
//
//	defer b.Scope("layer.0")()
func (b *Builder) Scope(name string) func() {
	old := b.prefix
	b.prefix += name + "/"
	return func() { b.prefix = old }
}

// claim takes a name for a value.
func (b *Builder) claim(name string) Value {
	if b.shared.names[name] {
		b.fail("two values have the name %s, expected one", quote(name))
	}
	b.shared.names[name] = true
	return Value(name)
}

// fresh makes a name up.
func (b *Builder) fresh(op string) string {
	stem := b.prefix + op
	for {
		n := b.shared.counts[stem]
		b.shared.counts[stem]++
		if name := fmt.Sprintf("%s_%d", stem, n); !b.shared.names[name] {
			return name
		}
	}
}

// Input declares an input. Type may be nil in a nested graph or a function,
// and is not kept in the latter.
func (b *Builder) Input(name string, t *Type) Value {
	v := b.claim(name)
	if b.fn != nil {
		b.fn.Inputs = append(b.fn.Inputs, name)
	} else {
		b.graph.Inputs = append(b.graph.Inputs, &ValueInfo{Name: name, Type: t})
	}
	return v
}

// Fresh is a name that no value has yet, for the inputs of nested graphs,
// whose names nobody sees.
func (b *Builder) Fresh(stem string) string { return b.fresh(stem) }

// Output makes a value an output, under its own name. Type may be nil as for
// Input.
func (b *Builder) Output(v Value, t *Type) {
	if b.fn != nil {
		b.fn.Outputs = append(b.fn.Outputs, string(v))
		return
	}
	b.graph.Outputs = append(b.graph.Outputs, &ValueInfo{Name: string(v), Type: t})
}

// Describe notes the type of a value between inputs and outputs.
func (b *Builder) Describe(v Value, t *Type) {
	info := &ValueInfo{Name: string(v), Type: t}
	if b.fn != nil {
		b.fn.ValueInfo = append(b.fn.ValueInfo, info)
		return
	}
	b.graph.ValueInfo = append(b.graph.ValueInfo, info)
}

// Initializer adds a tensor under its own name. Functions have none; see
// Const.
func (b *Builder) Initializer(t *Tensor) Value {
	if b.shared.inFunc {
		b.fail("tensor %s: a function has no initializers", quote(t.Name))
		return Value(t.Name)
	}
	b.graph.Initializers = append(b.graph.Initializers, t)
	return b.claim(t.Name)
}

// Const adds a small tensor, whose name does not matter, or gives the value of
// an equal one that this builder or one around it has already.
func (b *Builder) Const(t *Tensor) Value {
	for outer := b; outer != nil; outer = outer.outer {
		for _, c := range outer.constants {
			if sameConstant(c.tensor, t) {
				return c.value
			}
		}
	}
	named := *t
	named.Name = b.fresh("const")
	var v Value
	if b.shared.inFunc {
		named.Name = ""
		v = b.Op("Constant", TensorAttr("value", &named))
	} else {
		v = b.Initializer(&named)
	}
	b.constants = append(b.constants, constant{&named, v})
	return v
}

func sameConstant(a, b *Tensor) bool {
	return a.Type == b.Type && slices.Equal(a.Dims, b.Dims) && a.Source == nil && b.Source == nil &&
		a.External == nil && b.External == nil && bytes.Equal(a.Raw, b.Raw) && slices.Equal(a.Strings, b.Strings)
}

// Scalar is a constant without dimensions, made by ScalarTensor.
func (b *Builder) Scalar(t DataType, v float64) Value {
	tensor, err := ScalarTensor("", t, v)
	if err != nil {
		b.fail("%w", err)
		return None
	}
	return b.Const(tensor)
}

// Int64s is a one-dimensional constant, such as axes or a shape.
func (b *Builder) Int64s(values ...int64) Value { return b.Const(Int64Tensor("", values)) }

// Floats is a one-dimensional Float constant.
func (b *Builder) Floats(values ...float32) Value { return b.Const(FloatTensor("", values)) }

// Op adds a node with one output and gives that. The operator is a name of
// the standard, or domain::name. Inputs and attributes follow in any order.
func (b *Builder) Op(op string, args ...Arg) Value {
	return b.Ops(1, op, args...)[0]
}

// Ops is Op for a node with n outputs. With As fewer names than n may be
// given; the rest are made up.
func (b *Builder) Ops(n int, op string, args ...Arg) []Value {
	c := call{node: &Node{OpType: op}}
	if domain, name, ok := strings.Cut(op, "::"); ok {
		c.node.Domain, c.node.OpType = domain, name
	}
	for _, a := range args {
		a.add(&c)
	}
	if len(c.names) > n {
		b.fail("%s: %d names for %d outputs", op, len(c.names), n)
		n = max(n, len(c.names))
	}
	// Trailing inputs that are left out need no place.
	for len(c.node.Inputs) > 0 && c.node.Inputs[len(c.node.Inputs)-1] == "" {
		c.node.Inputs = c.node.Inputs[:len(c.node.Inputs)-1]
	}
	out := make([]Value, n)
	for i := range out {
		switch {
		case i >= len(c.names):
			out[i] = b.claim(b.fresh(c.node.OpType))
		case c.names[i] != "":
			out[i] = b.claim(c.names[i])
		}
		c.node.Outputs = append(c.node.Outputs, string(out[i]))
	}
	// A node is called like its first output, which is unique.
	c.node.Name = string(out[0])
	b.graph.Nodes = append(b.graph.Nodes, c.node)
	return out
}

// Graph is the graph made so far, or the first mistake. The builder of a
// nested graph has no Graph: Body takes it.
func (b *Builder) Graph() (*Graph, error) {
	if b.fn != nil || b.outer != nil {
		return nil, errors.New("onnx: Graph of a builder that makes a function or a nested graph")
	}
	return b.graph, b.shared.err
}

// Function is the function made so far, with the operator sets that its body
// uses, or the first mistake. Attributes are declared by Attribute and Default.
func (b *Builder) Function(opsets ...Opset) (*Function, error) {
	if b.fn == nil {
		return nil, errors.New("onnx: Function of a builder that makes a graph")
	}
	f := *b.fn
	f.Nodes = b.graph.Nodes
	f.Opsets = opsets
	return &f, b.shared.err
}

// Attribute declares an attribute of a function that has no default.
func (b *Builder) Attribute(name string) {
	if b.fn == nil {
		b.fail("attribute %s: only a function declares attributes", quote(name))
		return
	}
	b.fn.Attributes = append(b.fn.Attributes, name)
}

// Default declares an attribute of a function with its default. ONNX Runtime
// follows defaults; the reference evaluator of the Python package does not, so a
// call that gives every attribute runs in more places.
func (b *Builder) Default(a *Attribute) {
	if b.fn == nil {
		b.fail("attribute %s: only a function declares attributes", quote(a.Name))
		return
	}
	b.fn.Defaults = append(b.fn.Defaults, a)
}
