package onnxgo

import (
	"bytes"
	"fmt"
	"maps"
	"reflect"
	"slices"

	"github.com/gomlx/gomlx/backends"
	"github.com/gomlx/gomlx/pkg/core/dtypes"
	"github.com/gomlx/gomlx/pkg/core/shapes"
	"github.com/gomlx/gomlx/pkg/core/tensors"
	goonnx "github.com/owulveryck/onnx-go"
	"github.com/owulveryck/onnx-go/backend"
	"gonum.org/v1/gonum/graph"
	"gonum.org/v1/gonum/graph/simple"
	"gorgonia.org/tensor"

	"github.com/firstpassage/fpa/format/onnx"
)

var _ backend.ComputationBackend = (*Backend)(nil)

// DefaultOpset is the version of the standard's operators that models of onnx-go
// are taken for, since its decoder does not pass on what the file says.
const DefaultOpset = 17

// Backend runs one model of onnx-go on gomlx: a backend.ComputationBackend.
//
//	b := onnxgo.New(nil)
//	m := goonnx.NewModel(b)
//	err := m.UnmarshalBinary(data) // or m, err := onnxgo.Decode(model, b)
//	err = m.SetInput(0, x)
//	err = b.Run()
//	out, err := m.GetOutputTensors()
//
// onnx-go's decoder panics on some files and loses the operator set, the domains
// of operators (FirstPassageAttention is taken for that of ai.firstpassage),
// functions, and dimensions that are open; it has no nested graphs and no half
// precision, and reads bools wrongly. [Decode] goes around all of this. Without
// it an input that is never set counts as zeros of its declared shape, if that
// is complete.
//
// A backend serves one model, and one goroutine at a time.
type Backend struct {
	// Opset is the version of the standard's operators; 0 stands for
	// DefaultOpset. Decode sets it. It matters to few: Softmax means another
	// thing before 13.
	Opset int64

	*simple.WeightedDirectedGraph // of values: from each output to the inputs of its node

	gomlx    backends.Backend
	nodes    []*node                 // by their IDs
	inputs   map[int64]map[int]*node // by the ID of an output, those of its node in order
	produced map[*node]bool
	ops      []*onnx.Node
	declared int         // values that are there before the first operator
	model    *onnx.Model // from Decode
	err      error       // of a method that cannot return one

	session *Session // for the inputs that were set when it was made
	order   []string // the names of these inputs
	outputs []*node
}

// New makes a backend that runs on b; nil stands for gomlx's pure-Go backend.
func New(b backends.Backend) *Backend {
	return &Backend{
		WeightedDirectedGraph: simple.NewWeightedDirectedGraph(0, 0), gomlx: b,
		inputs: make(map[int64]map[int]*node), produced: make(map[*node]bool),
	}
}

// node is a value of the model: a graph.Node, onnx.Namer and onnx.DataCarrier.
type node struct {
	b      *Backend
	id     int64
	name   string
	tensor tensor.Tensor
	given  bool // the tensor was set after the model was decoded
}

func (n *node) ID() int64                { return n.id }
func (n *node) SetName(name string)      { n.name = name }
func (n *node) GetName() string          { return n.name }
func (n *node) GetTensor() tensor.Tensor { return n.tensor }

// SetTensor is called by the decoder for constants and for the declared shapes of
// inputs, and later for inputs.
func (n *node) SetTensor(t tensor.Tensor) error {
	n.tensor = t
	if len(n.b.ops) > 0 {
		n.given = t != nil
	} else {
		n.b.session = nil
	}
	return nil
}

// NewNode makes a node with the next ID; onnx-go looks for the i-th input under
// the ID i, so that they start at 0.
func (b *Backend) NewNode() graph.Node { return &node{b: b, id: int64(len(b.nodes))} }

// AddNode adds a node that NewNode made. Another one is an error that Run
// returns.
func (b *Backend) AddNode(n graph.Node) {
	own, ok := n.(*node)
	if !ok || own.b != b || own.id != int64(len(b.nodes)) {
		b.keep(fmt.Errorf("onnxgo: a node of another graph, or one that is there already, is added"))
		return
	}
	b.nodes = append(b.nodes, own)
	if len(b.ops) == 0 {
		b.declared = len(b.nodes)
	}
	b.WeightedDirectedGraph.AddNode(n)
}

// keep keeps the first error.
func (b *Backend) keep(err error) {
	if b.err == nil {
		b.err = err
	}
}

// SetWeightedEdge says that the value the edge comes from is computed from the one
// it goes to, as input number Weight. The graph has one edge for two nodes, which
// loses an input that is used twice, so they are kept apart.
func (b *Backend) SetWeightedEdge(e graph.WeightedEdge) {
	output, ok := e.From().(*node)
	input, ok2 := e.To().(*node)
	if !ok || !ok2 || output == input {
		b.keep(fmt.Errorf("onnxgo: a value that is computed from itself, or of another graph"))
		return
	}
	if b.inputs[output.id] == nil {
		b.inputs[output.id] = make(map[int]*node)
	}
	b.inputs[output.id][int(e.Weight())] = input
	b.WeightedDirectedGraph.SetWeightedEdge(e)
}

// original is the attribute by which Decode marks a node with its place in the
// model.
const original = "onnxgo.node"

// ApplyOperation adds an operator that computes the outputs given.
func (b *Backend) ApplyOperation(o goonnx.Operation, outputs ...graph.Node) error {
	if b.err != nil {
		return b.err
	}
	var first *node
	n := &onnx.Node{OpType: o.Name}
	for _, out := range outputs {
		own, ok := out.(*node)
		if !ok || own.b != b {
			return fmt.Errorf("onnxgo: operator %s has an output of another graph", o.Name)
		}
		if own.name != "" && first == nil {
			first = own
		}
		n.Outputs = append(n.Outputs, own.name)
		b.produced[own] = own.name != ""
	}
	b.session = nil
	if b.model != nil {
		i, ok := o.Attributes[original].(int64)
		if !ok || i < 0 || i >= int64(len(b.model.Graph.Nodes)) {
			return fmt.Errorf("onnxgo: operator %s is not of the model that was decoded", o.Name)
		}
		b.ops = append(b.ops, b.model.Graph.Nodes[i])
		return nil
	}
	if o.Name == firstPassageName {
		n.Domain = firstPassageDomain
	}
	if _, ok := operators[nameOf(n)]; !ok {
		return &goonnx.ErrNotImplemented{Operator: o.Name, Message: "docs/onnx-go.md lists the operators that are"}
	}
	if first == nil {
		return fmt.Errorf("onnxgo: operator %s has no output", o.Name)
	}
	n.Name = first.name
	if o.Name != "Constant" { // which onnx-go gives an input of its own making
		in := b.inputs[first.id]
		for i := range len(in) {
			if in[i] == nil {
				return fmt.Errorf("onnxgo: operator %s has no input %d", o.Name, i)
			}
			n.Inputs = append(n.Inputs, in[i].name)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(o.Attributes)) {
		a, err := asAttribute(name, o.Attributes[name])
		if err != nil {
			return fmt.Errorf("onnxgo: operator %s: %w", o.Name, err)
		}
		n.Attributes = append(n.Attributes, a)
	}
	b.ops = append(b.ops, n)
	return nil
}

// asAttribute makes an attribute of what onnx-go has.
func asAttribute(name string, v any) (*onnx.Attribute, error) {
	switch v := v.(type) {
	case float32:
		return onnx.FloatAttr(name, v), nil
	case int64:
		return onnx.IntAttr(name, v), nil
	case string:
		return onnx.StringAttr(name, v), nil
	case []float32:
		return onnx.FloatsAttr(name, v...), nil
	case []int64:
		return onnx.IntsAttr(name, v...), nil
	case tensor.Tensor:
		t, err := asONNX("", v)
		if err != nil {
			return nil, fmt.Errorf("attribute %q: %w", name, err)
		}
		return onnx.TensorAttr(name, t), nil
	}
	return nil, fmt.Errorf("attribute %q is of type %T, which is not supported", name, v)
}

// Decode gives a model to onnx-go and to a new backend b. Unlike
// onnx.Model.UnmarshalBinary it keeps operator sets, domains, functions, nested
// graphs and all element types, so that the models that fpaconv writes run in
// every form, and refuses a model that is wrong or has unknown operators. Inputs
// have no declared shape for onnx-go then; all must be set, and the past of
// a decoder may be so with tensors without elements, such as
//
//	tensor.New(tensor.WithShape(1, 4, 0, 64), tensor.WithBacking([]float32{}))
//
// The backend keeps the model, as [Convert] does.
func Decode(m *onnx.Model, b *Backend) (decoded *goonnx.Model, err error) {
	defer func() {
		if r := recover(); r != nil {
			decoded, err = nil, fmt.Errorf("onnxgo: onnx-go: %w", asError(r))
		}
	}()
	if len(b.nodes) > 0 {
		return nil, fmt.Errorf("onnxgo: the backend has a model already; make a new one")
	}
	p, err := Convert(m)
	if err != nil {
		return nil, err
	}
	// What onnx-go sees is the bare topology.
	bare := &onnx.Graph{Name: m.Graph.Name}
	for _, name := range p.Inputs() {
		bare.Inputs = append(bare.Inputs, &onnx.ValueInfo{Name: name})
	}
	for _, name := range p.Outputs() {
		bare.Outputs = append(bare.Outputs, &onnx.ValueInfo{Name: name})
	}
	for i, n := range m.Graph.Nodes {
		bare.Nodes = append(bare.Nodes, &onnx.Node{
			Name: fmt.Sprintf("%s %d", original, i), OpType: n.OpType, Inputs: n.Inputs, Outputs: n.Outputs,
			Attributes: []*onnx.Attribute{onnx.IntAttr(original, int64(i))},
		})
	}
	var data bytes.Buffer
	if err := onnx.Encode(&data, &onnx.Model{IRVersion: m.IRVersion, Opsets: m.Opsets, Graph: bare}); err != nil {
		return nil, err
	}
	b.model, b.Opset = m, m.OpsetVersion("")
	decoded = goonnx.NewModel(b)
	if err := decoded.UnmarshalBinary(data.Bytes()); err != nil {
		return nil, err
	}
	return decoded, nil
}

// Zeros makes a tensor for an input, of its declared shape with sizes for the
// dimensions that have names, and none, 0, for the others: with the batch as the
// only size, what a decoder begins with as its past.
func Zeros(v *onnx.ValueInfo, sizes map[string]int) (tensor.Tensor, error) {
	if v.Type == nil || v.Type.Kind != onnx.TypeTensor || !v.Type.Ranked {
		return nil, fmt.Errorf("onnxgo: the model gives no shape for %q", v.Name)
	}
	elem, err := typeOf(v.Type.Elem)
	if err != nil {
		return nil, fmt.Errorf("onnxgo: %q: %w", v.Name, err)
	}
	size := 1
	var dims []int
	for _, d := range v.Type.Dims {
		n := int(max(d.Size, 0))
		if d.Param != "" {
			n = sizes[d.Param]
		}
		if n < 0 || n > 0 && size > maxElements/n {
			return nil, fmt.Errorf("onnxgo: %q: a dimension of %d is no possible shape here", v.Name, n)
		}
		size *= n
		dims = append(dims, n)
	}
	return toGorgonia(tensors.FromShape(shapes.Make(elem, dims...)))
}

// Run computes the outputs. The first run with a set of inputs, and one with
// inputs of other shapes, compiles the model.
func (b *Backend) Run() (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("onnxgo: %w", asError(r))
		}
	}()
	if b.err != nil {
		return b.err
	}
	if len(b.ops) == 0 {
		return fmt.Errorf("onnxgo: there is no operator to run; decode a model first")
	}
	for n, ok := range b.produced {
		if ok {
			n.tensor = nil
		}
	}
	constants, given, err := b.leaves()
	if err != nil {
		return err
	}
	in := make(map[string]*tensors.Tensor)
	var order []string
	for _, n := range given {
		order = append(order, n.name)
		if in[n.name], err = fromGorgonia(n.tensor); err != nil {
			return fmt.Errorf("onnxgo: input %q: %w", n.name, err)
		}
	}
	if b.session == nil || !slices.Equal(order, b.order) {
		if err := b.prepare(constants, given); err != nil {
			return err
		}
		b.order = order
	}
	out, err := b.session.Run(in)
	if err != nil {
		return err
	}
	for _, n := range b.outputs {
		if n.tensor, err = toGorgonia(out[n.name]); err != nil {
			return fmt.Errorf("onnxgo: output %q: %w", n.name, err)
		}
	}
	return nil
}

// leaves are the values that no operator computes: constants, and inputs that
// were set.
func (b *Backend) leaves() (constants, given []*node, err error) {
	if b.model != nil {
		for i, name := range inputNames(b.model) {
			n := b.nodes[i]
			if n.tensor == nil {
				return nil, nil, fmt.Errorf("onnxgo: input %d, %q, is not set", i, name)
			}
			given = append(given, n)
		}
		return nil, given, nil
	}
	used := b.used()
	for _, n := range b.nodes {
		switch {
		case b.produced[n] || !used[n.name]:
		case n.given:
			given = append(given, n)
		case n.tensor != nil:
			constants = append(constants, n)
		default:
			return nil, nil, fmt.Errorf("onnxgo: input %q is not set", n.name)
		}
	}
	return constants, given, nil
}

// used are the names of the values that operators take.
func (b *Backend) used() map[string]bool {
	used := make(map[string]bool)
	for _, n := range b.ops {
		for _, name := range n.Inputs {
			used[name] = name != ""
		}
	}
	return used
}

// inputNames are the inputs of a model that are no initializers.
func inputNames(m *onnx.Model) []string {
	var out []string
	for _, v := range m.Graph.Inputs {
		if m.Graph.Initializer(v.Name) == nil {
			out = append(out, v.Name)
		}
	}
	return out
}

// prepare makes the session for the operators, and finds the outputs: of a model
// that came through onnx-go alone the values that were declared before the first
// operator, and those that no operator uses.
func (b *Backend) prepare(constants, given []*node) error {
	b.session, b.outputs = nil, nil
	m := b.model
	if m == nil {
		m = &onnx.Model{Opsets: []onnx.Opset{{Version: b.Opset}}, Graph: &onnx.Graph{Nodes: b.ops}}
		if b.Opset == 0 {
			m.Opsets[0].Version = DefaultOpset
		}
		for _, n := range constants {
			t, err := asONNX(n.name, n.tensor)
			if err != nil {
				return fmt.Errorf("onnxgo: constant %q: %w", n.name, err)
			}
			m.Graph.Initializers = append(m.Graph.Initializers, t)
		}
		for _, n := range given {
			m.Graph.Inputs = append(m.Graph.Inputs, &onnx.ValueInfo{Name: n.name})
		}
		used := b.used()
		for _, n := range b.nodes {
			if b.produced[n] && (n.id < int64(b.declared) || !used[n.name]) {
				m.Graph.Outputs = append(m.Graph.Outputs, &onnx.ValueInfo{Name: n.name})
			}
		}
	}
	p, err := newProgram(m)
	if err != nil {
		return err
	}
	if b.session, err = NewSession(b.gomlx, p); err != nil {
		return err
	}
	for _, n := range b.nodes {
		if !slices.Contains(given, n) && slices.ContainsFunc(m.Graph.Outputs, func(v *onnx.ValueInfo) bool { return v.Name == n.name }) {
			b.outputs = append(b.outputs, n)
		}
	}
	return nil
}

// gorgoniaTypes are the element types that tensors have on both sides.
var gorgoniaTypes = map[tensor.Dtype]onnx.DataType{
	tensor.Float32: onnx.Float, tensor.Float64: onnx.Double, tensor.Bool: onnx.Bool,
	tensor.Int8: onnx.Int8, tensor.Int16: onnx.Int16, tensor.Int32: onnx.Int32, tensor.Int64: onnx.Int64,
	tensor.Uint8: onnx.Uint8, tensor.Uint16: onnx.Uint16, tensor.Uint32: onnx.Uint32, tensor.Uint64: onnx.Uint64,
}

// fromGorgonia copies a tensor of Gorgonia; its elements may lie in any order.
func fromGorgonia(t tensor.Tensor) (*tensors.Tensor, error) {
	elem, ok := gorgoniaTypes[t.Dtype()]
	if !ok {
		return nil, fmt.Errorf("elements of type %v are not supported", t.Dtype())
	}
	dims := slices.Clone([]int(t.Shape()))
	stride, rowMajor := 1, true
	strides := t.Strides()
	for i := len(dims) - 1; i >= 0; i-- {
		rowMajor = rowMajor && len(strides) == len(dims) && strides[i] == stride
		stride *= dims[i]
	}
	out := tensors.FromShape(shapes.Make(elementTypes[elem], dims...))
	if stride == 0 {
		return out, nil
	}
	data := reflect.ValueOf(t.Data())
	err := out.MutableFlatData(func(flat any) {
		to := reflect.ValueOf(flat)
		switch {
		case data.Kind() != reflect.Slice: // of one element
			to.Index(0).Set(data)
		case rowMajor && data.Len() >= stride:
			reflect.Copy(to, data)
		default:
			at := make([]int, len(dims))
			for i := range stride {
				for k, rest := len(dims)-1, i; k >= 0; k-- {
					at[k], rest = rest%dims[k], rest/dims[k]
				}
				v, err := t.At(at...)
				if err != nil {
					fail("%v", err)
				}
				to.Index(i).Set(reflect.ValueOf(v))
			}
		}
	})
	return out, err
}

// toGorgonia copies a tensor to one of Gorgonia. Half precision, which Gorgonia
// has not, becomes float32.
func toGorgonia(x *tensors.Tensor) (t tensor.Tensor, err error) {
	dims := x.Shape().Dimensions
	if d := x.DType(); d.IsFloat16() {
		elem := map[dtypes.DType]onnx.DataType{dtypes.Float16: onnx.Float16, dtypes.BFloat16: onnx.BFloat16}[d]
		var raw []byte
		if err := x.ConstBytes(func(data []byte) { raw = slices.Clone(data) }); err != nil {
			return nil, err
		}
		half := &onnx.Tensor{Type: elem, Raw: raw}
		for _, d := range dims {
			half.Dims = append(half.Dims, int64(d))
		}
		if x, err = tensorOf(half, dtypes.Float32); err != nil {
			return nil, err
		}
	}
	if x.Shape().IsZeroSize() {
		none := reflect.MakeSlice(reflect.SliceOf(x.DType().GoType()), 0, 0).Interface()
		return tensor.New(tensor.WithShape(dims...), tensor.WithBacking(none)), nil
	}
	accessed := x.ConstFlatData(func(flat any) {
		from := reflect.ValueOf(flat)
		if len(dims) == 0 {
			t = tensor.New(tensor.FromScalar(from.Index(0).Interface()))
			return
		}
		data := reflect.MakeSlice(from.Type(), from.Len(), from.Len())
		reflect.Copy(data, from)
		t = tensor.New(tensor.WithShape(dims...), tensor.WithBacking(data.Interface()))
	})
	return t, accessed
}

// asONNX copies a tensor of Gorgonia to one of ONNX.
func asONNX(name string, t tensor.Tensor) (*onnx.Tensor, error) {
	x, err := fromGorgonia(t)
	if err != nil {
		return nil, err
	}
	out := &onnx.Tensor{Name: name, Type: gorgoniaTypes[t.Dtype()], Raw: []byte{}}
	for _, d := range x.Shape().Dimensions {
		out.Dims = append(out.Dims, int64(d))
	}
	if x.Shape().IsZeroSize() {
		return out, nil
	}
	return out, x.ConstBytes(func(data []byte) { out.Raw = slices.Clone(data) })
}
