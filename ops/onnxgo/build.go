package onnxgo

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"sync"

	"github.com/gomlx/gomlx/backends"
	"github.com/gomlx/gomlx/backends/simplego"
	"github.com/gomlx/gomlx/pkg/core/dtypes"
	gx "github.com/gomlx/gomlx/pkg/core/graph"
	"github.com/gomlx/gomlx/pkg/core/shapes"
	"github.com/gomlx/gomlx/pkg/core/tensors"

	"github.com/firstpassage/fpa/format/onnx"
)

// Bounds on what a model can ask for while its graph is built.
const (
	maxKnown    = 1 << 16 // elements of a value that is computed then
	maxElements = 1<<31 - 1
	maxSteps    = 1 << 18 // nodes and nested graphs, with loops and functions unrolled
)

// value is a value of the model. Where it follows from shapes and constants
// alone it is known, which is what shapes and loops are made of; else it is a
// node of the graph. A value without elements is always known, so that no backend
// sees one.
type value struct {
	shape shapes.Shape
	node  *gx.Node
	known *tensors.Tensor
}

func knownValue(t *tensors.Tensor) *value { return &value{shape: t.Shape(), known: t} }

// builder builds the graph of one call.
type builder struct {
	program *Program
	g       *gx.Graph
	types   map[dtypes.DType]bool // that the backend has
	nodes   map[*value]*gx.Node   // of values that are known
	steps   *int
}

func newBuilder(p *Program, g *gx.Graph) *builder {
	return &builder{program: p, g: g, types: g.Backend().Capabilities().DTypes, nodes: make(map[*value]*gx.Node), steps: new(int)}
}

// fail panics with an error.
func fail(message string, args ...any) {
	panic(fmt.Errorf(message, args...))
}

// nodeError is an error that knows its node already.
type nodeError struct {
	node string
	err  error
}

func (e *nodeError) Error() string { return e.node + ": " + e.err.Error() }
func (e *nodeError) Unwrap() error { return e.err }

// asError makes an error of what was recovered.
func asError(r any) error {
	if err, ok := r.(error); ok {
		return err
	}
	return fmt.Errorf("%v", r)
}

// substitute is the type that the backend computes in where it has not the one
// asked for: float32 for half precision.
func substitute(types map[dtypes.DType]bool, d dtypes.DType) dtypes.DType {
	if !types[d] && (d == dtypes.Float16 || d == dtypes.BFloat16) {
		return dtypes.Float32
	}
	return d
}

func (b *builder) dtype(t onnx.DataType) dtypes.DType {
	d, err := typeOf(t)
	if err != nil {
		fail("%v", err)
	}
	return substitute(b.types, d)
}

// value is the value of a node.
func (b *builder) value(n *gx.Node) *value {
	s := n.Shape()
	size := 1
	for _, d := range s.Dimensions {
		if d > 0 && size > maxElements/d {
			fail("a value of the dimensions %v is too large", s.Dimensions)
		}
		size *= max(d, 1)
	}
	if s.IsZeroSize() {
		return knownValue(tensors.FromShape(s))
	}
	return &value{shape: s, node: n}
}

// node is the node of a value.
func (b *builder) node(v *value) *gx.Node {
	if v.node != nil {
		return v.node
	}
	n := b.nodes[v]
	if n == nil {
		if v.shape.IsZeroSize() {
			n = gx.Zeros(b.g, v.shape)
		} else {
			n = gx.ConstTensor(b.g, v.known)
		}
		b.nodes[v] = n
	}
	return n
}

// constant is the value of a tensor of the model.
func (b *builder) constant(t *onnx.Tensor) *value {
	x, err := tensorOf(t, b.dtype(t.Type))
	if err != nil {
		fail("tensor %q: %v", t.Name, err)
	}
	return knownValue(x)
}

// scope holds the values of a graph or function and, by outer, those around it.
type scope struct {
	outer      *scope
	values     map[string]*value
	attributes map[string]*onnx.Attribute // of the call, in a function
	opsets     []onnx.Opset
}

// get is the value of that name, nil for the empty one.
func (s *scope) get(name string) *value {
	if name == "" {
		return nil
	}
	for ; s != nil; s = s.outer {
		if v := s.values[name]; v != nil {
			return v
		}
	}
	fail("there is no value %q", name)
	return nil
}

// opset is the version of the standard's operators.
func (s *scope) opset() int64 {
	for _, o := range s.opsets {
		if plainDomain(o.Domain) == "" {
			return o.Version
		}
	}
	return math.MaxInt64
}

// run evaluates nodes in order.
func (b *builder) run(s *scope, nodes []*onnx.Node) {
	for _, n := range nodes {
		var in []*value
		for _, name := range n.Inputs {
			in = append(in, s.get(name))
		}
		out := b.apply(s, n, in)
		for i, name := range n.Outputs {
			switch {
			case name == "":
			case i >= len(out) || out[i] == nil:
				fail("node %q (%v): there is no output %d here, which the model uses as %q", n.Name, nameOf(n), i, name)
			default:
				s.values[name] = out[i]
			}
		}
	}
}

// apply evaluates one node.
func (b *builder) apply(s *scope, n *onnx.Node, in []*value) (out []*value) {
	defer func() {
		if r := recover(); r != nil {
			err := asError(r)
			if _, ok := errors.AsType[*nodeError](err); !ok {
				err = &nodeError{fmt.Sprintf("node %q (%v)", n.Name, nameOf(n)), err}
			}
			panic(err)
		}
	}()
	b.step()
	o, ok := operators[nameOf(n)]
	if !ok {
		return b.function(s, n, b.program.functions[nameOf(n)], in)
	}
	c := &call{builder: b, scope: s, n: n, in: in}
	given := len(in)
	for given > 0 && in[given-1] == nil {
		given--
	}
	if given < o.min || o.max >= 0 && given > o.max {
		fail("%d inputs, expected %s", given, o.arity())
	}
	for i := range o.min {
		if in[i] == nil {
			fail("input %d is left out", i)
		}
	}
	if !o.live {
		if out := c.fold(o); out != nil {
			return out
		}
	}
	return o.run(c)
}

// step counts what a model makes the builder do.
func (b *builder) step() {
	if *b.steps++; *b.steps > maxSteps {
		fail("more than %d nodes with all loops and functions unrolled", maxSteps)
	}
}

// function evaluates the body of a function of the model.
func (b *builder) function(s *scope, n *onnx.Node, f *onnx.Function, in []*value) []*value {
	inner := &scope{values: make(map[string]*value), attributes: make(map[string]*onnx.Attribute), opsets: f.Opsets}
	for i, name := range f.Inputs {
		if i < len(in) && in[i] != nil {
			inner.values[name] = in[i]
		}
	}
	for _, a := range f.Defaults {
		inner.attributes[a.Name] = a
	}
	for _, a := range n.Attributes {
		if a = s.attribute(a); a != nil {
			inner.attributes[a.Name] = a
		}
	}
	b.run(inner, f.Nodes)
	var out []*value
	for _, name := range f.Outputs {
		out = append(out, inner.get(name))
	}
	return out
}

// attribute follows the reference of an attribute to one of the call; nil where
// the call does not give it.
func (s *scope) attribute(a *onnx.Attribute) *onnx.Attribute {
	if a.Ref == "" {
		return a
	}
	for ; s != nil; s = s.outer {
		if s.attributes != nil {
			of := s.attributes[a.Ref]
			if of == nil {
				return nil
			}
			renamed := *of
			renamed.Name = a.Name
			return &renamed
		}
	}
	return nil
}

// graph evaluates a nested graph with the inputs given.
func (b *builder) graph(s *scope, g *onnx.Graph, in []*value) []*value {
	if len(in) != len(g.Inputs) {
		fail("graph %q has %d inputs, expected %d", g.Name, len(g.Inputs), len(in))
	}
	b.step()
	inner := &scope{outer: s, values: make(map[string]*value), opsets: s.opsets}
	for i, v := range g.Inputs {
		inner.values[v.Name] = in[i]
	}
	for _, t := range g.Initializers {
		inner.values[t.Name] = b.constant(t)
	}
	b.run(inner, g.Nodes)
	var out []*value
	for _, v := range g.Outputs {
		out = append(out, inner.get(v.Name))
	}
	return out
}

// folder is the backend that computes what is known while a graph is built. Its
// operators run one after the other: in parallel mode an error of one ends the
// process.
var folder = sync.OnceValues(func() (backends.Backend, error) { return simplego.New("ops_sequential") })

// fold evaluates a node now, if all its inputs are known; nil where that
// cannot be, or where the result is large.
func (c *call) fold(o operator) (out []*value) {
	size := 0
	for _, v := range c.in {
		if v != nil {
			if v.known == nil {
				return nil
			}
			size += v.shape.Size()
		}
	}
	if size > maxKnown {
		return nil
	}
	backend, err := folder()
	if err != nil {
		return nil
	}
	// What fails here is built into the graph, whose error then says why.
	defer func() {
		if recover() != nil {
			out = nil
		}
	}()
	b := *c.builder
	b.g, b.nodes = gx.NewGraph(backend, c.n.OpType), make(map[*value]*gx.Node)
	defer b.g.Finalize()
	folded := *c
	folded.builder = &b
	out = o.run(&folded)
	var todo []*value
	var nodes []*gx.Node
	size = 0
	for _, v := range out {
		if v != nil && v.known == nil {
			size += v.shape.Size()
			todo, nodes = append(todo, v), append(nodes, v.node)
		}
	}
	if size > maxKnown {
		return nil
	}
	if len(todo) == 0 {
		return out
	}
	b.g.Compile(nodes...)
	for i, t := range b.g.Run() {
		*todo[i] = *knownValue(t)
	}
	return out
}

// call is one node with its inputs.
type call struct {
	*builder
	scope *scope
	n     *onnx.Node
	in    []*value // nil: left out
}

func (c *call) has(i int) bool { return i < len(c.in) && c.in[i] != nil }

// x is input i as a node.
func (c *call) x(i int) *gx.Node {
	if !c.has(i) {
		fail("input %d is missing", i)
	}
	return c.node(c.in[i])
}

// wants reports whether the model uses output i.
func (c *call) wants(i int) bool { return i < len(c.n.Outputs) && c.n.Outputs[i] != "" }

// shape is the shape of input i.
func (c *call) shape(i int) shapes.Shape {
	if !c.has(i) {
		fail("input %d is missing", i)
	}
	return c.in[i].shape
}

// ints is input i, which must be known and an integer.
func (c *call) ints(i int) []int {
	if !c.has(i) {
		fail("input %d is missing", i)
	}
	return c.knownInts(c.in[i], fmt.Sprintf("input %d (%s)", i, c.n.Inputs[i]))
}

func (c *call) knownInts(v *value, what string) []int {
	if v.known == nil {
		fail("%s depends on values that are known only when the model runs; gomlx needs shapes before", what)
	}
	if v.shape.IsZeroSize() {
		return nil
	}
	var out []int
	err := v.known.ConstFlatData(func(flat any) {
		switch f := flat.(type) {
		case []int64:
			for _, x := range f {
				out = append(out, int(x))
			}
		case []int32:
			for _, x := range f {
				out = append(out, int(x))
			}
		default:
			fail("%s is of type %v, expected integers", what, v.shape.DType)
		}
	})
	if err != nil {
		fail("%s: %v", what, err)
	}
	return out
}

// knownBool is a condition; ok is false where it is not known.
func knownBool(v *value) (is, ok bool) {
	if v.shape.DType != dtypes.Bool || v.shape.Size() != 1 {
		fail("the condition is %v, expected one bool", v.shape)
	}
	if v.known == nil {
		return false, false
	}
	tensors.MustConstFlatData(v.known, func(flat []bool) { is = flat[0] })
	return is, true
}

// Attributes.

func attribute[T any](c *call, name string) (value T, ok bool) {
	a := c.n.Attribute(name)
	if a != nil {
		a = c.scope.attribute(a)
	}
	if a == nil {
		return value, false
	}
	value, ok = a.Value.(T)
	if !ok {
		fail("attribute %q is of kind %v, which is not the one that the operator takes", name, a.Kind)
	}
	return value, true
}

func (c *call) integer(name string, otherwise int) int {
	v, ok := attribute[int64](c, name)
	if !ok {
		return otherwise
	}
	return int(v)
}

func (c *call) float(name string, otherwise float64) float64 {
	v, ok := attribute[float32](c, name)
	if !ok {
		return otherwise
	}
	return float64(v)
}

func (c *call) text(name, otherwise string) string {
	v, ok := attribute[string](c, name)
	if !ok {
		return otherwise
	}
	return v
}

// integers is an attribute of integers; nil where it is absent.
func (c *call) integers(name string) []int {
	v, _ := attribute[[]int64](c, name)
	var out []int
	for _, x := range v {
		out = append(out, int(x))
	}
	return out
}

// refuse fails when an attribute has another value than the one that is
// supported.
func (c *call) refuse(name string, supported int) {
	if v := c.integer(name, supported); v != supported {
		fail("attribute %s = %d is not supported, only %d", name, v, supported)
	}
}

// Shapes.

// axis makes an axis of a value of that rank positive.
func axis(a, rank int) int {
	if a < -rank || a >= rank {
		fail("axis %d, expected one of %d dimensions", a, rank)
	}
	if a < 0 {
		return a + rank
	}
	return a
}

// axesOf makes axes positive. Each must occur once.
func axesOf(list []int, rank int) []int {
	var out []int
	for _, a := range list {
		a = axis(a, rank)
		if slices.Contains(out, a) {
			fail("axis %d occurs twice", a)
		}
		out = append(out, a)
	}
	return out
}

// common is the shape that values of those dimensions are broadcast to.
func common(dims ...[]int) []int {
	rank := 0
	for _, d := range dims {
		rank = max(rank, len(d))
	}
	out := slices.Repeat([]int{1}, rank)
	for _, d := range dims {
		for i, n := range d {
			o := &out[rank-len(d)+i]
			switch {
			case *o == 1:
				*o = n
			case n != 1 && n != *o:
				fail("the dimensions %v do not fit together", dims)
			}
		}
	}
	return out
}

// spread broadcasts x to dims.
func spread(x *gx.Node, dims []int) *gx.Node {
	if slices.Equal(x.Shape().Dimensions, dims) {
		return x
	}
	if x.Rank() < len(dims) {
		x = gx.ExpandLeftToRank(x, len(dims))
	}
	return gx.BroadcastToDims(x, dims...)
}

// together broadcasts values to their common shape.
func together(x ...*gx.Node) []*gx.Node {
	var dims [][]int
	for _, n := range x {
		dims = append(dims, n.Shape().Dimensions)
	}
	to := common(dims...)
	var out []*gx.Node
	for _, n := range x {
		out = append(out, spread(n, to))
	}
	return out
}
