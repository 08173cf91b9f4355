package onnxgo

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"

	"github.com/gomlx/gomlx/pkg/core/dtypes"
	gx "github.com/gomlx/gomlx/pkg/core/graph"
	"github.com/gomlx/gomlx/pkg/core/shapes"
	"github.com/gomlx/gomlx/pkg/core/tensors"

	"github.com/firstpassage/fpa/format"
	"github.com/firstpassage/fpa/format/onnx"
)

// Program is an ONNX model as a gomlx function.
type Program struct {
	model     *onnx.Model
	functions map[name]*onnx.Function
	inputs    []*onnx.ValueInfo
	weights   []*onnx.Tensor
}

// name is that of an operator or function.
type name struct{ domain, op, overload string }

func nameOf(n *onnx.Node) name { return name{plainDomain(n.Domain), n.OpType, n.Overload} }

// plainDomain is the domain in one spelling: that of the standard is empty.
func plainDomain(d string) string {
	if d == "ai.onnx" {
		return ""
	}
	return d
}

func (n name) String() string {
	if n.domain == "" {
		return n.op
	}
	return n.domain + "::" + n.op
}

// Convert makes a gomlx function of a model. It checks the model by the rules of
// [onnx.Check], and that every operator in it is known here; the error names
// all that are not. What depends on shapes is found when the function is built
// or run.
//
// The program keeps the model, which must stay as it is and, if it comes from a
// file, open.
func Convert(m *onnx.Model) (*Program, error) {
	if m == nil {
		return nil, fmt.Errorf("onnxgo: the model is nil")
	}
	if err := onnx.Check(m); err != nil {
		return nil, err
	}
	return newProgram(m)
}

// newProgram is Convert for a model that is checked, or that comes from onnx-go,
// which has no functions.
func newProgram(m *onnx.Model) (*Program, error) {
	p := &Program{model: m, functions: make(map[name]*onnx.Function)}
	for _, f := range m.Functions {
		p.functions[name{plainDomain(f.Domain), f.Name, f.Overload}] = f
	}
	if err := p.checkOperators(); err != nil {
		return nil, err
	}
	constants := make(map[string]bool)
	for _, t := range m.Graph.Initializers {
		constants[t.Name] = true
		if _, err := typeOf(t.Type); err != nil {
			return nil, unsupported("initializer %q: %v", t.Name, err)
		}
		if isWeight(t) {
			p.weights = append(p.weights, t)
		}
	}
	for _, v := range m.Graph.Inputs {
		if constants[v.Name] {
			continue
		}
		if v.Type != nil {
			if v.Type.Kind != onnx.TypeTensor {
				return nil, unsupported("input %q is no tensor", v.Name)
			}
			if _, err := typeOf(v.Type.Elem); err != nil {
				return nil, unsupported("input %q: %v", v.Name, err)
			}
		}
		p.inputs = append(p.inputs, v)
	}
	return p, nil
}

func unsupported(message string, args ...any) error {
	return &format.UnsupportedError{Offset: -1, Msg: "onnxgo: " + fmt.Sprintf(message, args...)}
}

// checkOperators looks for operators that are not known, in the graph and in the
// functions that it uses.
func (p *Program) checkOperators() error {
	unknown := make(map[string]bool)
	seen := make(map[*onnx.Function]bool)
	var check func(nodes []*onnx.Node) error
	graph := func(g *onnx.Graph) error {
		if len(g.SparseInitializers) > 0 {
			return unsupported("graph %q has sparse initializers; store them dense", g.Name)
		}
		return check(g.Nodes)
	}
	check = func(nodes []*onnx.Node) error {
		for _, n := range nodes {
			if _, ok := operators[nameOf(n)]; !ok {
				f := p.functions[nameOf(n)]
				if f == nil {
					unknown[nameOf(n).String()] = true
				} else if !seen[f] {
					seen[f] = true
					if err := check(f.Nodes); err != nil {
						return err
					}
				}
			}
			for _, a := range n.Attributes {
				for _, g := range a.Graphs() {
					if err := graph(g); err != nil {
						return err
					}
				}
			}
		}
		return nil
	}
	if err := graph(p.model.Graph); err != nil {
		return err
	}
	if len(unknown) > 0 {
		return unsupported("operators %s are not known here; docs/onnx-go.md lists those that are", strings.Join(slices.Sorted(maps.Keys(unknown)), ", "))
	}
	return nil
}

// isWeight tells initializers that are parameters of the function from those
// that are part of it: integers may be shapes, which must be known when it is
// built.
func isWeight(t *onnx.Tensor) bool {
	n, err := t.Elements()
	switch t.Type {
	case onnx.Float, onnx.Float16, onnx.BFloat16, onnx.Double:
		return err == nil && n > 1
	}
	return err == nil && n > maxKnown
}

// Inputs are the names of the inputs, in the model's order. Initializers that
// the model lists among its inputs, as old ones do, are none.
func (p *Program) Inputs() []string { return names(p.inputs) }

// Outputs are the names of the outputs, in the model's order.
func (p *Program) Outputs() []string { return names(p.model.Graph.Outputs) }

func names(values []*onnx.ValueInfo) []string {
	var out []string
	for _, v := range values {
		out = append(out, v.Name)
	}
	return out
}

// Weights makes tensors of the model's weights: its initializers of floats,
// and large ones of integers. They are new at each call, since a tensor of gomlx
// stays with one backend.
func (p *Program) Weights() (map[string]*tensors.Tensor, error) {
	out := make(map[string]*tensors.Tensor, len(p.weights))
	for _, t := range p.weights {
		dtype, err := typeOf(t.Type)
		if err != nil {
			return nil, err
		}
		if out[t.Name], err = tensorOf(t, dtype); err != nil {
			return nil, fmt.Errorf("onnxgo: initializer %q: %w", t.Name, err)
		}
	}
	return out, nil
}

// Call adds the model to the graph g. Each input must be there under its name,
// with the type that the model declares; the outputs are given in the same way.
// A weight may be given too, for instance as the value of a variable that is to
// be trained; one that is not becomes a constant of the graph.
//
// As gomlx's own functions do, it panics with an error when something does not
// fit; gomlx's executors return it.
func (p *Program) Call(g *gx.Graph, inputs, weights map[string]*gx.Node) map[string]*gx.Node {
	defer func() {
		if r := recover(); r != nil {
			panic(fmt.Errorf("onnxgo: %w", asError(r)))
		}
	}()
	b := newBuilder(p, g)
	given := make(map[string]*value, len(inputs))
	for k, n := range inputs {
		if n == nil {
			fail("input %q is nil", k)
		}
		given[k] = b.value(n)
	}
	out := make(map[string]*gx.Node)
	for k, v := range b.call(given, weights) {
		out[k] = b.node(v)
	}
	return out
}

// call evaluates the model's graph.
func (b *builder) call(inputs map[string]*value, weights map[string]*gx.Node) map[string]*value {
	p := b.program
	s := &scope{values: make(map[string]*value), opsets: p.model.Opsets}
	for _, v := range p.inputs {
		x := inputs[v.Name]
		if x == nil {
			fail("input %q is missing, expected %s", v.Name, strings.Join(p.Inputs(), ", "))
		}
		b.checkInput(v, x.shape)
		s.values[v.Name] = x
	}
	for k := range inputs {
		if !slices.ContainsFunc(p.inputs, func(v *onnx.ValueInfo) bool { return v.Name == k }) {
			fail("there is no input %q; the inputs are %s", k, strings.Join(p.Inputs(), ", "))
		}
	}
	for _, t := range p.model.Graph.Initializers {
		dtype := b.dtype(t.Type)
		if w := weights[t.Name]; w != nil && isWeight(t) {
			if got, want := w.Shape(), shapes.Make(dtype, dimsOf(t)...); !got.Equal(want) {
				fail("weight %q is %v, expected %v", t.Name, got, want)
			}
			s.values[t.Name] = b.value(w)
		} else {
			s.values[t.Name] = b.constant(t)
		}
	}
	b.run(s, p.model.Graph.Nodes)
	out := make(map[string]*value)
	for _, name := range p.Outputs() {
		out[name] = s.get(name)
	}
	return out
}

// checkInput compares an input with what the model says of it.
func (b *builder) checkInput(v *onnx.ValueInfo, got shapes.Shape) {
	if v.Type == nil {
		return
	}
	if want := b.dtype(v.Type.Elem); got.DType != want {
		fail("input %q is of type %v, expected %v", v.Name, got.DType, want)
	}
	if !v.Type.Ranked {
		return
	}
	fits := len(v.Type.Dims) == got.Rank()
	for i := 0; fits && i < got.Rank(); i++ {
		d := v.Type.Dims[i]
		fits = d.Param != "" || d.Size < 0 || d.Size == int64(got.Dimensions[i])
	}
	if !fits {
		var want []string
		for _, d := range v.Type.Dims {
			switch {
			case d.Param != "":
				want = append(want, d.Param)
			case d.Size < 0:
				want = append(want, "any")
			default:
				want = append(want, fmt.Sprint(d.Size))
			}
		}
		fail("input %q has the dimensions %v, expected [%s]", v.Name, got.Dimensions, strings.Join(want, " "))
	}
}

// elementTypes are the element types that both sides have.
var elementTypes = map[onnx.DataType]dtypes.DType{
	onnx.Float: dtypes.Float32, onnx.Double: dtypes.Float64, onnx.Float16: dtypes.Float16, onnx.BFloat16: dtypes.BFloat16,
	onnx.Int8: dtypes.Int8, onnx.Int16: dtypes.Int16, onnx.Int32: dtypes.Int32, onnx.Int64: dtypes.Int64,
	onnx.Uint8: dtypes.Uint8, onnx.Uint16: dtypes.Uint16, onnx.Uint32: dtypes.Uint32, onnx.Uint64: dtypes.Uint64,
	onnx.Bool: dtypes.Bool,
}

func typeOf(t onnx.DataType) (dtypes.DType, error) {
	d, ok := elementTypes[t]
	if !ok {
		return dtypes.InvalidDType, fmt.Errorf("gomlx has no elements of type %s", t)
	}
	return d, nil
}

func dimsOf(t *onnx.Tensor) []int {
	dims := make([]int, len(t.Dims))
	for i, d := range t.Dims {
		dims[i] = int(d)
	}
	return dims
}

// tensorOf copies an ONNX tensor. dtype is the type that belongs to its own, or
// Float32 for one of half precision.
func tensorOf(t *onnx.Tensor, dtype dtypes.DType) (*tensors.Tensor, error) {
	if n, err := t.Elements(); err != nil || n > math.MaxInt32 {
		return nil, fmt.Errorf("the shape %v is too large", t.Dims)
	}
	shape := shapes.Make(dtype, dimsOf(t)...)
	if dtype == dtypes.Float32 && t.Type != onnx.Float {
		values, err := t.Float32s()
		if err != nil {
			return nil, err
		}
		return tensors.FromFlatDataAndDimensions(values, shape.Dimensions...), nil
	}
	data, err := t.Data()
	if err != nil {
		return nil, err
	}
	if len(data) != int(shape.Memory()) {
		return nil, fmt.Errorf("%d bytes of data, expected %d for %v", len(data), shape.Memory(), shape)
	}
	out := tensors.FromShape(shape)
	if len(data) == 0 {
		return out, nil
	}
	if dtype == dtypes.Bool {
		// Go's bool has no third value.
		return out, tensors.MutableFlatData(out, func(flat []bool) {
			for i, v := range data {
				flat[i] = v != 0
			}
		})
	}
	return out, out.MutableBytes(func(to []byte) { copy(to, data) })
}
