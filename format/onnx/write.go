package onnx

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"unicode/utf8"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/firstpassage/fpa/format"
	"github.com/firstpassage/fpa/format/atomicfile"
)

// Numbers of the fields of TensorProto that hold elements.
const (
	tensorFloats  = 4
	tensorInt32s  = 5
	tensorStrings = 6
	tensorInt64s  = 7
	tensorRaw     = 9
	tensorDoubles = 10
	tensorUint64s = 11
)

const (
	// externalAbove is the size of all data together from which they get a file
	// of their own unless the caller decides: well below the 2 GiB at which
	// protocol buffers end.
	externalAbove = 3 << 29 // 1.5 GiB

	// externalMin is the size from which a tensor goes to that file; shapes and
	// other small constants stay in the model, where every reader looks at them.
	externalMin = 1024

	// externalAlign is the alignment of tensors there, a page of memory, so that
	// runtimes can map them.
	externalAlign = 4096

	bufferBytes = 1 << 20
)

// ExternalData says where WriteFile puts the data of initializers.
type ExternalData int

// The places of data.
const (
	ExternalAuto   ExternalData = iota // in a file of their own above 1.5 GiB
	ExternalAlways                     // in a file of their own
	ExternalNever                      // in the model
)

// WriteOptions are the options of WriteFile. The zero value will do.
type WriteOptions struct {
	Force    bool // replace existing files
	External ExternalData
}

// DataPath is the path of the file that WriteFile puts the data of the model
// at path into when they do not go into the model itself.
func DataPath(path string) string { return path + ".data" }

// WriteFile checks the model and writes it to path. Where opt asks for it or
// size demands it, the data of initializers of 1 KiB or more go to the file
// DataPath(path).
//
// Files appear under their names only once both are complete and on disk, the
// data first. Without force WriteFile fails when either exists. (With force, a
// crash between the two renames leaves the new data beside the old model.)
func WriteFile(path string, m *Model, opt WriteOptions) error {
	if err := Check(m); err != nil {
		return format.WithPath(err, path)
	}
	places, dataSize, err := placeExternal(m, filepath.Base(DataPath(path)), opt.External)
	if err != nil {
		return err
	}
	var body wire
	if err := encodeModel(&body, m, places); err != nil {
		return err
	}
	if body.size() > maxProtoBytes {
		return fmt.Errorf("onnx: %s: the model would take %d bytes, protocol buffers end at %d; write its data to a file of their own", path, body.size(), int64(maxProtoBytes))
	}

	f, err := atomicfile.CreateAtomic(path, opt.Force)
	if err != nil {
		return err
	}
	defer f.Abort()
	var data *atomicfile.File
	if len(places) > 0 {
		if data, err = atomicfile.CreateAtomic(DataPath(path), opt.Force); err != nil {
			return err
		}
		defer data.Abort()
		if err := writeExternal(data, m, places, dataSize); err != nil {
			return err
		}
	}
	w := bufio.NewWriterSize(f, bufferBytes)
	if err := body.writeTo(w); err != nil {
		return err
	}
	if err := w.Flush(); err != nil {
		return err
	}
	if data == nil {
		return f.Commit()
	}
	_, err = os.Lstat(DataPath(path))
	fresh := errors.Is(err, os.ErrNotExist)
	if err := data.Commit(); err != nil {
		return err
	}
	if err := f.Commit(); err != nil {
		if fresh {
			os.Remove(DataPath(path)) // without its model it is of no use
		}
		return err
	}
	return nil
}

// Encode writes the model to w, all data inside. References to external files
// that were not opened are written as they are. Unlike WriteFile it does not
// check the graph, only what the wire format needs.
func Encode(w io.Writer, m *Model) error {
	var body wire
	if err := encodeModel(&body, m, nil); err != nil {
		return err
	}
	if body.size() > maxProtoBytes {
		return fmt.Errorf("onnx: the model would take %d bytes, protocol buffers end at %d; use WriteFile with external data", body.size(), int64(maxProtoBytes))
	}
	return body.writeTo(w)
}

// places maps initializers to their place in the data file.
type places map[*Tensor]*External

// placeExternal decides which initializers go to the file named location and
// where, and returns the file's size.
func placeExternal(m *Model, location string, mode ExternalData) (places, int64, error) {
	if mode == ExternalNever {
		return nil, 0, nil
	}
	type sized struct {
		t    *Tensor
		size int64
	}
	var list []sized
	var total int64
	err := eachInitializer(m, func(t *Tensor) error {
		if t.Type == String {
			return nil
		}
		size, err := t.Bytes()
		if err != nil {
			return fmt.Errorf("onnx: %s: %w", tensorPlace(t.Name), err)
		}
		if t.Raw == nil && t.Source == nil {
			return nil
		}
		if total > math.MaxInt64-size-externalAlign {
			return errors.New("onnx: the initializers together take more than 2^63 bytes")
		}
		total += size + externalAlign
		list = append(list, sized{t, size})
		return nil
	})
	if err != nil {
		return nil, 0, err
	}
	if mode == ExternalAuto && total-int64(len(list))*externalAlign <= externalAbove {
		return nil, 0, nil
	}
	out := places{}
	var offset int64
	for _, s := range list {
		if s.size < externalMin || out[s.t] != nil {
			continue
		}
		offset = (offset + externalAlign - 1) / externalAlign * externalAlign
		out[s.t] = &External{Location: location, Offset: offset, Length: s.size}
		offset += s.size
	}
	return out, offset, nil
}

// eachInitializer calls f for every initializer, those of nested graphs too.
func eachInitializer(m *Model, f func(*Tensor) error) error {
	return m.Walk(func(g *Graph, _ *[]*Node) error {
		if g == nil {
			return nil
		}
		for _, t := range g.Initializers {
			if err := f(t); err != nil {
				return err
			}
		}
		return nil
	})
}

// writeExternal writes the data file.
func writeExternal(f io.Writer, m *Model, at places, size int64) error {
	w := bufio.NewWriterSize(f, bufferBytes)
	var offset int64
	err := eachInitializer(m, func(t *Tensor) error {
		e := at[t]
		if e == nil || e.Offset < offset {
			return nil // inside the model, or written already
		}
		if _, err := w.Write(make([]byte, e.Offset-offset)); err != nil {
			return err
		}
		n, err := t.WriteTo(w)
		offset = e.Offset + n
		return err
	})
	if err == nil && offset != size {
		err = fmt.Errorf("onnx: %d bytes of data were written, expected %d", offset, size)
	}
	return errors.Join(err, w.Flush())
}

// wire is a message being made: its bytes, without those of tensors, which
// are only noted by their place. That keeps the data out of memory and gives
// the size of every enclosing message before a byte is written.
type wire struct {
	b       []byte
	splices []splice // in order of at
	extra   int64    // bytes of all splices
	err     error    // the first
}

// splice is the data of a tensor that belong at b[at:].
type splice struct {
	at     int
	tensor *Tensor
}

func (w *wire) size() int64 { return int64(len(w.b)) + w.extra }

func (w *wire) fail(err error) {
	if w.err == nil {
		w.err = err
	}
}

// writeTo writes the message with the data in their places.
func (w *wire) writeTo(out io.Writer) error {
	at := 0
	for _, s := range w.splices {
		if _, err := out.Write(w.b[at:s.at]); err != nil {
			return err
		}
		if _, err := s.tensor.WriteTo(out); err != nil {
			return err
		}
		at = s.at
	}
	_, err := out.Write(w.b[at:])
	return err
}

// varint writes an integer field, also when it is 0.
func (w *wire) varint(num protowire.Number, v int64) {
	w.b = protowire.AppendTag(w.b, num, protowire.VarintType)
	w.b = protowire.AppendVarint(w.b, uint64(v))
}

// int writes an integer field unless it is 0.
func (w *wire) int(num protowire.Number, v int64) {
	if v != 0 {
		w.varint(num, v)
	}
}

func (w *wire) float(num protowire.Number, v float32) {
	w.b = protowire.AppendTag(w.b, num, protowire.Fixed32Type)
	w.b = protowire.AppendFixed32(w.b, math.Float32bits(v))
}

// bytes writes a field of bytes, also when it is empty.
func (w *wire) bytes(num protowire.Number, v string) {
	w.b = protowire.AppendTag(w.b, num, protowire.BytesType)
	w.b = protowire.AppendString(w.b, v)
}

// text writes a field of text, also when it is empty.
func (w *wire) text(num protowire.Number, v string) {
	if !utf8.ValidString(v) {
		w.fail(fmt.Errorf("%s is not UTF-8", quote(v)))
	}
	w.bytes(num, v)
}

// string writes a field of text unless it is empty.
func (w *wire) string(num protowire.Number, v string) {
	if v != "" {
		w.text(num, v)
	}
}

// message writes a nested message that fill makes. where names it in errors.
func (w *wire) message(num protowire.Number, where string, fill func(*wire)) {
	if w.err != nil {
		return
	}
	var in wire
	fill(&in)
	if in.err != nil {
		if where != "" {
			in.err = fmt.Errorf("%s: %w", where, in.err)
		}
		w.fail(in.err)
		return
	}
	w.b = protowire.AppendTag(w.b, num, protowire.BytesType)
	w.b = protowire.AppendVarint(w.b, uint64(in.size()))
	for _, s := range in.splices {
		w.splices = append(w.splices, splice{len(w.b) + s.at, s.tensor})
	}
	w.b = append(w.b, in.b...)
	w.extra += in.extra
}

func (w *wire) props(num protowire.Number, props []Prop) {
	for _, p := range props {
		w.message(num, "metadata", func(w *wire) {
			w.text(1, p.Key)
			w.text(2, p.Value)
			w.b = append(w.b, p.unknown...)
		})
	}
}

func (w *wire) opsets(num protowire.Number, opsets []Opset) {
	for _, o := range opsets {
		w.message(num, "opset_import", func(w *wire) {
			w.text(1, o.Domain)
			w.varint(2, o.Version)
			w.b = append(w.b, o.unknown...)
		})
	}
}

// encodeModel appends the model; tensors in at become references.
func encodeModel(w *wire, m *Model, at places) error {
	w.int(1, m.IRVersion)
	w.string(2, m.ProducerName)
	w.string(3, m.ProducerVersion)
	w.string(4, m.Domain)
	w.int(5, m.ModelVersion)
	w.string(6, m.Doc)
	if m.Graph != nil {
		w.message(7, "", func(w *wire) { w.graph(m.Graph, at) })
	}
	w.opsets(8, m.Opsets)
	w.props(14, m.Metadata)
	for _, f := range m.Functions {
		w.message(25, functionPlace(f), func(w *wire) { w.function(f, at) })
	}
	w.b = append(w.b, m.unknown...)
	if w.err != nil {
		return fmt.Errorf("onnx: %w", w.err)
	}
	return nil
}

func (w *wire) graph(g *Graph, at places) {
	for i, n := range g.Nodes {
		w.message(1, nodePlace(n, i), func(w *wire) { w.node(n, at) })
	}
	w.string(2, g.Name)
	for _, t := range g.Initializers {
		w.message(5, tensorPlace(t.Name), func(w *wire) { w.tensor(t, at) })
	}
	w.string(10, g.Doc)
	w.values(11, g.Inputs)
	w.values(12, g.Outputs)
	w.values(13, g.ValueInfo)
	for _, s := range g.SparseInitializers {
		w.message(15, "sparse initializer", func(w *wire) { w.sparse(s, at) })
	}
	w.props(16, g.Metadata)
	w.b = append(w.b, g.unknown...)
}

func (w *wire) node(n *Node, at places) {
	for _, s := range n.Inputs {
		w.text(1, s)
	}
	for _, s := range n.Outputs {
		w.text(2, s)
	}
	w.string(3, n.Name)
	w.string(4, n.OpType)
	for _, a := range n.Attributes {
		w.message(5, attributePlace(a.Name), func(w *wire) { w.attribute(a, at) })
	}
	w.string(6, n.Doc)
	w.string(7, n.Domain)
	w.string(8, n.Overload)
	w.props(9, n.Metadata)
	w.b = append(w.b, n.unknown...)
}

func (w *wire) function(f *Function, at places) {
	w.string(1, f.Name)
	for _, s := range f.Inputs {
		w.text(4, s)
	}
	for _, s := range f.Outputs {
		w.text(5, s)
	}
	for _, s := range f.Attributes {
		w.text(6, s)
	}
	for i, n := range f.Nodes {
		w.message(7, nodePlace(n, i), func(w *wire) { w.node(n, at) })
	}
	w.string(8, f.Doc)
	w.opsets(9, f.Opsets)
	w.text(10, f.Domain) // checkers demand it, empty or not
	for _, a := range f.Defaults {
		w.message(11, attributePlace(a.Name), func(w *wire) { w.attribute(a, at) })
	}
	w.values(12, f.ValueInfo)
	w.string(13, f.Overload)
	w.props(14, f.Metadata)
	w.b = append(w.b, f.unknown...)
}

func (w *wire) attribute(a *Attribute, at places) {
	w.text(1, a.Name)
	if kind := kindOf(a.Value); kind != a.Kind && !(a.Ref != "" && a.Value == nil) {
		w.fail(fmt.Errorf("a value of Go type %T for an attribute of kind %s", a.Value, a.Kind))
		return
	}
	switch v := a.Value.(type) {
	case float32:
		w.float(2, v)
	case int64:
		w.varint(3, v)
	case string:
		w.bytes(4, v)
	case *Tensor:
		w.message(5, "", func(w *wire) { w.tensor(v, at) })
	case *Graph:
		w.message(6, "", func(w *wire) { w.graph(v, at) })
	case []float32:
		for _, x := range v {
			w.float(7, x)
		}
	case []int64:
		for _, x := range v {
			w.varint(8, x)
		}
	case []string:
		for _, x := range v {
			w.bytes(9, x)
		}
	case []*Tensor:
		for _, x := range v {
			w.message(10, "", func(w *wire) { w.tensor(x, at) })
		}
	case []*Graph:
		for _, x := range v {
			w.message(11, "", func(w *wire) { w.graph(x, at) })
		}
	case *SparseTensor:
		w.message(22, "", func(w *wire) { w.sparse(v, at) })
	case []*SparseTensor:
		for _, x := range v {
			w.message(23, "", func(w *wire) { w.sparse(x, at) })
		}
	case *Type:
		w.message(14, "", func(w *wire) { w.typ(v) })
	case []*Type:
		for _, x := range v {
			w.message(15, "", func(w *wire) { w.typ(x) })
		}
	}
	w.string(13, a.Doc)
	w.varint(20, int64(a.Kind))
	w.string(21, a.Ref)
	w.b = append(w.b, a.unknown...)
}

// kindOf is the kind of attribute that has values of this Go type.
func kindOf(v any) AttributeKind {
	switch v.(type) {
	case float32:
		return KindFloat
	case int64:
		return KindInt
	case string:
		return KindString
	case *Tensor:
		return KindTensor
	case *Graph:
		return KindGraph
	case []float32:
		return KindFloats
	case []int64:
		return KindInts
	case []string:
		return KindStrings
	case []*Tensor:
		return KindTensors
	case []*Graph:
		return KindGraphs
	case *SparseTensor:
		return KindSparseTensor
	case []*SparseTensor:
		return KindSparseTensors
	case *Type:
		return KindType
	case []*Type:
		return KindTypes
	}
	return KindUndefined
}

func (w *wire) tensor(t *Tensor, at places) {
	if err := t.checkData(); err != nil {
		w.fail(err)
		return
	}
	for _, d := range t.Dims {
		w.varint(1, d)
	}
	w.varint(2, int64(t.Type))
	for _, s := range t.Strings {
		w.bytes(tensorStrings, s)
	}
	w.string(8, t.Name)
	external := at[t]
	if external == nil && t.Raw == nil && t.Source == nil {
		external = t.External
	}
	if t.Type != String && external == nil {
		size, err := t.Bytes()
		if err != nil {
			w.fail(err)
			return
		}
		w.b = protowire.AppendTag(w.b, tensorRaw, protowire.BytesType)
		w.b = protowire.AppendVarint(w.b, uint64(size))
		w.splices = append(w.splices, splice{len(w.b), t})
		w.extra += size
	}
	w.string(12, t.Doc)
	if external != nil {
		entry := func(key, value string) {
			w.message(13, "external_data", func(w *wire) {
				w.text(1, key)
				w.text(2, value)
			})
		}
		entry("location", external.Location)
		entry("offset", strconv.FormatInt(external.Offset, 10))
		if external.Length >= 0 {
			entry("length", strconv.FormatInt(external.Length, 10))
		}
		if external.Checksum != "" {
			entry("checksum", external.Checksum)
		}
		w.varint(14, 1)
	}
	w.props(16, t.Metadata)
	w.b = append(w.b, t.unknown...)
}

func (w *wire) sparse(s *SparseTensor, at places) {
	if s.Values != nil {
		w.message(1, "values", func(w *wire) { w.tensor(s.Values, at) })
	}
	if s.Indices != nil {
		w.message(2, "indices", func(w *wire) { w.tensor(s.Indices, at) })
	}
	for _, d := range s.Dims {
		w.varint(3, d)
	}
	w.b = append(w.b, s.unknown...)
}

func (w *wire) values(num protowire.Number, values []*ValueInfo) {
	for _, v := range values {
		w.message(num, valuePlace(v.Name), func(w *wire) {
			w.text(1, v.Name)
			if v.Type != nil {
				w.message(2, "type", func(w *wire) { w.typ(v.Type) })
			}
			w.string(3, v.Doc)
			w.props(4, v.Metadata)
			w.b = append(w.b, v.unknown...)
		})
	}
}

func (w *wire) typ(t *Type) {
	switch t.Kind {
	case TypeUndefined:
	case TypeTensor, TypeSparseTensor:
		w.message(protowire.Number(t.Kind), "", func(w *wire) {
			w.int(1, int64(t.Elem))
			if t.Ranked {
				w.message(2, "shape", func(w *wire) {
					for _, d := range t.Dims {
						w.message(1, "", func(w *wire) { w.dim(d) })
					}
					w.b = append(w.b, t.shape...)
				})
			}
			w.b = append(w.b, t.inner...)
		})
	case TypeSequence, TypeOptional:
		w.message(protowire.Number(t.Kind), "", func(w *wire) {
			if t.Of != nil {
				w.message(1, "", func(w *wire) { w.typ(t.Of) })
			}
			w.b = append(w.b, t.inner...)
		})
	case TypeMap:
		w.message(protowire.Number(t.Kind), "", func(w *wire) {
			w.int(1, int64(t.Elem))
			if t.Of != nil {
				w.message(2, "", func(w *wire) { w.typ(t.Of) })
			}
			w.b = append(w.b, t.inner...)
		})
	case TypeOpaque:
		w.message(protowire.Number(t.Kind), "", func(w *wire) { w.b = append(w.b, t.inner...) })
	default:
		w.fail(fmt.Errorf("a type of kind %d, expected one of the format's", t.Kind))
	}
	w.string(6, t.Denotation)
	w.b = append(w.b, t.unknown...)
}

func (w *wire) dim(d Dim) {
	switch {
	case d.Param != "":
		w.text(2, d.Param)
	case d.Size >= 0:
		w.varint(1, d.Size)
	}
	w.string(3, d.Denotation)
	w.b = append(w.b, d.unknown...)
}

// The places of errors.

func nodePlace(n *Node, index int) string {
	op := n.OpType
	if n.Domain != "" {
		op = n.Domain + "::" + op
	}
	if n.Name == "" {
		return fmt.Sprintf("node %d (%s)", index, shorten(op))
	}
	return fmt.Sprintf("node %s (%s)", quote(n.Name), shorten(op))
}

func tensorPlace(name string) string    { return "tensor " + quote(name) }
func attributePlace(name string) string { return "attribute " + quote(name) }
func valuePlace(name string) string     { return "value " + quote(name) }
func functionPlace(f *Function) string {
	return "function " + quote(f.id().String())
}

// quote is a name of a file for a message, quoted and of bearable length.
func quote(s string) string { return strconv.Quote(shorten(s)) }

// shorten cuts a long name.
func shorten(s string) string {
	const most = 100
	if len(s) <= most {
		return s
	}
	return s[:most] + "..."
}
