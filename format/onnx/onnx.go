// Package onnx reads, checks, builds and writes ONNX models, the format that
// ONNX Runtime and most other inference programs take.
//
// An ONNX file is one protocol buffer message, ModelProto, in the schema
// https://github.com/onnx/onnx/blob/main/onnx/onnx.proto (IR version 14 here);
// what a valid graph is stands in https://github.com/onnx/onnx/blob/main/docs/IR.md.
// The types of this package follow that schema with Go's names. The wire
// format is read and written directly, without generated code: the stock
// bindings register global names and cannot live in one program twice.
//
// # Reading
//
//	f, err := onnx.Open("model.onnx", format.Limits{})
//	defer f.Close()
//	err = f.Check() // the rules of graphs: names, order, opsets, functions
//	w := f.Model.Graph.Initializer("wte")
//	values, err := w.Float32s()
//
// [Open] maps the file, so the data of tensors are views of it that are valid
// until Close; everything else is copied. Tensors whose data lie in an external
// file are views of that file. Fields that the schema has and this package does
// not name (training_info, quantization_annotation, device configurations),
// and fields unknown to both, are kept and written again, at the end of their
// message.
//
// # Building and writing
//
//	b := onnx.NewGraph("main")
//	x := b.Input("x", onnx.TensorOf(onnx.Float, "batch", 4))
//	w := b.Initializer(&onnx.Tensor{Name: "w", Type: onnx.Float, Dims: []int64{4, 2}, Source: stream})
//	y := b.Op("Softmax", b.Op("MatMul", x, w), onnx.IntAttr("axis", -1), onnx.As("y"))
//	b.Output(y, onnx.TensorOf(onnx.Float, "batch", 2))
//	g, err := b.Graph()
//	m := &onnx.Model{IRVersion: 8, Opsets: []onnx.Opset{{Version: 17}}, Graph: g}
//	err = onnx.WriteFile("model.onnx", m, onnx.WriteOptions{})
//
// See [Builder] for sub-graphs and functions. [WriteFile] checks the model,
// computes every size, then streams: the data of a tensor come from a slice
// ([Tensor].Raw, perhaps a mapped file) or from a function ([Tensor].Source,
// which may convert on the way), and are never held a second time. Large models
// get their data in a second file beside the first. The same model gives the
// same bytes.
//
// # Security
//
// Files are untrusted. [Open] and [Parse] bound nesting, counts and sizes
// before they allocate, compute sizes with overflow checks, and compare the
// data of every tensor with its type and shape. A field that must occur once and
// occurs twice is refused, so that no two readers see different models. External
// data must lie in the model's own folder: the path is resolved below it by
// [os.Root], only regular files with a single name are opened, and offset and
// length are checked against file and shape. Memory is bounded by a small
// multiple of the file's size plus the limits. The failures are
// [format.FormatError] and [format.UnsupportedError] with the byte offset and
// the node or tensor concerned. [Check] adds the rules of graphs; a model that
// passes it can be walked without further tests of names, order or recursion.
// Operators and their attributes are not looked at.
package onnx

import "fmt"

// MaxIRVersion is the newest version of the format that this package knows.
const MaxIRVersion = 14

// IRVersionFor is the version of the format in the first release of ONNX that
// had this version of the standard's operators (and 8 at least, for functions).
// It fails for operators newer than those known here.
//
// Source: https://github.com/onnx/onnx/blob/main/docs/Versioning.md.
func IRVersionFor(opset int64) (int64, error) {
	// The first opset of each version from 9 on.
	first := [...]int64{19, 21, 23, 24, 25, 28}
	const last = 28
	if opset < 1 || opset > last {
		return 0, fmt.Errorf("onnx: opset %d, expected 1 to %d", opset, last)
	}
	version := int64(8)
	for _, f := range first {
		if opset >= f {
			version++
		}
	}
	return version, nil
}

// maxProtoBytes is the size above which protocol buffer libraries refuse a
// message: lengths are counted in an int32.
const maxProtoBytes = 1<<31 - 1

// Model is a whole file (ModelProto).
type Model struct {
	IRVersion       int64 // of the format; functions need 8 or later
	ProducerName    string
	ProducerVersion string
	Domain          string // reverse-DNS name space of the model itself
	ModelVersion    int64
	Doc             string
	Opsets          []Opset // the operator sets that the graph uses
	Metadata        []Prop  // in the order of the file
	Graph           *Graph
	Functions       []*Function

	unknown []byte
}

// Called is the function of the model that a node calls, or nil.
func (m *Model) Called(n *Node) *Function {
	for _, f := range m.Functions {
		if f.id() == n.callee() {
			return f
		}
	}
	return nil
}

// OpsetVersion is the version of an operator set that the model imports, 0
// when it does not.
func (m *Model) OpsetVersion(domain string) int64 {
	for _, o := range m.Opsets {
		if plainDomain(o.Domain) == plainDomain(domain) {
			return o.Version
		}
	}
	return 0
}

// Property is the metadata entry of that key, and whether there is one.
func (m *Model) Property(key string) (string, bool) {
	for _, p := range m.Metadata {
		if p.Key == key {
			return p.Value, true
		}
	}
	return "", false
}

// Walk calls f for the main graph, every function and every graph nested in
// their nodes, outer ones first. For a function g is nil. nodes is the list of
// the graph or function itself, which f may change; nested graphs are those of
// the list that it leaves. Walk stops at the first error. The model must have
// passed Check, or come from this package's reader: nesting is followed without
// bound.
func (m *Model) Walk(f func(g *Graph, nodes *[]*Node) error) error {
	if m.Graph != nil {
		if err := walk(m.Graph, &m.Graph.Nodes, f); err != nil {
			return err
		}
	}
	for _, fn := range m.Functions {
		if err := walk(nil, &fn.Nodes, f); err != nil {
			return err
		}
	}
	return nil
}

func walk(g *Graph, nodes *[]*Node, f func(*Graph, *[]*Node) error) error {
	if err := f(g, nodes); err != nil {
		return err
	}
	for _, n := range *nodes {
		for _, a := range n.Attributes {
			for _, sub := range a.Graphs() {
				if err := walk(sub, &sub.Nodes, f); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// Opset is an operator set and its version (OperatorSetIdProto). The domain of
// the standard's operators is "", also written "ai.onnx".
type Opset struct {
	Domain  string
	Version int64

	unknown string
}

// Prop is an entry of metadata (StringStringEntryProto).
type Prop struct {
	Key, Value string

	unknown string
}

// Graph is a graph, or the body of a control-flow operator (GraphProto).
type Graph struct {
	Name               string
	Nodes              []*Node // each after those whose outputs it uses
	Initializers       []*Tensor
	SparseInitializers []*SparseTensor // named by their Values
	Doc                string
	Inputs             []*ValueInfo
	Outputs            []*ValueInfo
	ValueInfo          []*ValueInfo // types of values between
	Metadata           []Prop

	unknown []byte
}

// Initializer is the initializer of that name, or nil.
func (g *Graph) Initializer(name string) *Tensor {
	for _, t := range g.Initializers {
		if t.Name == name {
			return t
		}
	}
	return nil
}

// Node is a call of an operator or of a function (NodeProto). An empty name
// among the inputs or outputs stands for one that is left out.
type Node struct {
	Inputs     []string
	Outputs    []string
	Name       string
	OpType     string
	Domain     string
	Overload   string // of a function of the model
	Attributes []*Attribute
	Doc        string
	Metadata   []Prop

	unknown []byte
}

// Attribute is the attribute of that name, or nil.
func (n *Node) Attribute(name string) *Attribute {
	for _, a := range n.Attributes {
		if a.Name == name {
			return a
		}
	}
	return nil
}

// Function is an operator that the model defines by standard ones
// (FunctionProto).
type Function struct {
	Name       string
	Inputs     []string
	Outputs    []string
	Attributes []string     // attributes without default
	Defaults   []*Attribute // attributes with their default; of version 9 of the format
	Nodes      []*Node
	Doc        string
	Opsets     []Opset // the operator sets that the body uses
	Domain     string
	Overload   string       // of version 10 of the format, like ValueInfo
	ValueInfo  []*ValueInfo // types of values in the body
	Metadata   []Prop

	unknown []byte
}

// AttributeKind is the type of an attribute's value.
type AttributeKind int32

// The kinds of attributes and the Go type of their Value.
const (
	KindUndefined     AttributeKind = 0
	KindFloat         AttributeKind = 1  // float32
	KindInt           AttributeKind = 2  // int64
	KindString        AttributeKind = 3  // string, of any bytes
	KindTensor        AttributeKind = 4  // *Tensor
	KindGraph         AttributeKind = 5  // *Graph
	KindFloats        AttributeKind = 6  // []float32
	KindInts          AttributeKind = 7  // []int64
	KindStrings       AttributeKind = 8  // []string
	KindTensors       AttributeKind = 9  // []*Tensor
	KindGraphs        AttributeKind = 10 // []*Graph
	KindSparseTensor  AttributeKind = 11 // *SparseTensor
	KindSparseTensors AttributeKind = 12 // []*SparseTensor
	KindType          AttributeKind = 13 // *Type
	KindTypes         AttributeKind = 14 // []*Type
)

// String is the kind's name in the schema.
func (k AttributeKind) String() string {
	names := [...]string{"UNDEFINED", "FLOAT", "INT", "STRING", "TENSOR", "GRAPH", "FLOATS", "INTS", "STRINGS", "TENSORS", "GRAPHS", "SPARSE_TENSOR", "SPARSE_TENSORS", "TYPE_PROTO", "TYPE_PROTOS"}
	if k < 0 || int(k) >= len(names) {
		return fmt.Sprintf("AttributeKind(%d)", int32(k))
	}
	return names[k]
}

// Attribute is a named constant of a node (AttributeProto).
type Attribute struct {
	Name  string
	Kind  AttributeKind
	Value any    // of the type that Kind names; nil when Ref is set
	Ref   string // in the body of a function: the attribute of the call to use
	Doc   string

	unknown []byte
}

// Graphs lists the graphs that an attribute holds: none for most.
func (a *Attribute) Graphs() []*Graph {
	switch v := a.Value.(type) {
	case *Graph:
		return []*Graph{v}
	case []*Graph:
		return v
	}
	return nil
}

// SparseTensor is a tensor stored by its non-zero elements
// (SparseTensorProto).
type SparseTensor struct {
	Values  *Tensor // [non-zero elements]
	Indices *Tensor // [non-zero elements] linear, or [non-zero elements, rank]
	Dims    []int64

	unknown []byte
}

// ValueInfo describes a value (ValueInfoProto).
type ValueInfo struct {
	Name     string
	Type     *Type // nil when the file does not say
	Doc      string
	Metadata []Prop

	unknown []byte
}

// TypeKind tells the types of values apart.
type TypeKind int32

// The kinds of types, numbered like the fields of TypeProto.
const (
	TypeUndefined    TypeKind = 0
	TypeTensor       TypeKind = 1
	TypeSequence     TypeKind = 4
	TypeMap          TypeKind = 5
	TypeOpaque       TypeKind = 7 // its description is kept, not read
	TypeSparseTensor TypeKind = 8
	TypeOptional     TypeKind = 9
)

// Type is the type of a value (TypeProto).
type Type struct {
	Kind       TypeKind
	Elem       DataType // element of a tensor or sparse tensor; key of a map
	Of         *Type    // element of a sequence or optional; value of a map
	Dims       []Dim    // of a tensor, outermost first; of use when Ranked
	Ranked     bool     // the file gives the number of dimensions
	Denotation string

	unknown []byte // of the TypeProto
	inner   []byte // of the message for its kind; all of an opaque type
	shape   []byte // of the TensorShapeProto
}

// Dim is one dimension of a value. Param names a size that is known at run
// time only; equal names mean equal sizes. Where Param is empty, Size is the
// size, negative for any.
type Dim struct {
	Size       int64
	Param      string
	Denotation string

	unknown string
}

// TensorOf is the type of a tensor. Each dimension is an int or int64 (its
// size, negative for any), a string (a name; "" for any) or a Dim; anything
// else panics. Without dimensions it is a scalar.
func TensorOf(elem DataType, dims ...any) *Type {
	t := &Type{Kind: TypeTensor, Elem: elem, Ranked: true}
	for _, d := range dims {
		switch d := d.(type) {
		case int:
			t.Dims = append(t.Dims, Dim{Size: int64(d)})
		case int64:
			t.Dims = append(t.Dims, Dim{Size: d})
		case string:
			if d == "" {
				t.Dims = append(t.Dims, Dim{Size: -1})
			} else {
				t.Dims = append(t.Dims, Dim{Param: d})
			}
		case Dim:
			t.Dims = append(t.Dims, d)
		default:
			panic("onnx: a dimension is an int, int64, string or Dim")
		}
	}
	return t
}
