package onnx

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/firstpassage/fpa/format"
	"github.com/firstpassage/fpa/format/internal/filemap"
)

// File is an open model.
type File struct {
	Model *Model

	path   string
	mapped []*filemap.File // the model, then its external files
	paths  []string        // theirs
}

// Open maps the model at path and its external data, and reads it. Close it
// after the last use of a tensor's data. The error is a *format.FormatError, a
// *format.UnsupportedError, or that of a file that cannot be opened.
//
// Of lim, HeaderBytes bounds the memory for all of the model but the data of
// tensors; Tensors the number of tensors, of nodes, of attributes and of
// described values, each over the whole file; KeyValues the metadata entries of
// one message; StringBytes one string; ArrayLength the elements of one
// attribute; NestingDepth the messages that lie in one another, which are three
// for each nested graph.
func Open(path string, lim format.Limits) (*File, error) {
	m, err := filemap.Open(path)
	if err != nil {
		return nil, err
	}
	f := &File{path: path, mapped: []*filemap.File{m}, paths: []string{path}}
	f.Model, err = Parse(m.Bytes(), lim)
	if err == nil {
		err = f.openExternal()
	}
	if err != nil {
		f.Close()
		return nil, format.WithPath(err, path)
	}
	return f, nil
}

// Check is Check of the model, with the file's path in the error.
func (f *File) Check() error { return format.WithPath(Check(f.Model), f.path) }

// Paths are the paths of the model's files: its own, then those of external data.
func (f *File) Paths() []string { return slices.Clone(f.paths) }

// Size is the size of the model's files together, in bytes.
func (f *File) Size() int64 {
	var n int64
	for _, m := range f.mapped {
		n += m.Size()
	}
	return n
}

// Close ends the mappings. The data of tensors must not be used afterwards.
func (f *File) Close() error {
	var err error
	for _, m := range f.mapped {
		err = errors.Join(err, m.Close())
	}
	f.mapped = nil
	return err
}

// Parse reads a model from data, of which it keeps views. External data are
// not opened: their tensors have External alone. The limits are those of Open.
func Parse(data []byte, lim format.Limits) (*Model, error) {
	if len(data) == 0 {
		return nil, errorAt(0, "", "the file is empty, expected an ONNX model")
	}
	if len(data) > maxProtoBytes {
		return nil, unsupportedAt(-1, "", "%d bytes, but protocol buffers end at %d; store the model with external data", len(data), int64(maxProtoBytes))
	}
	d := &decoder{lim: lim.WithDefaults()}
	m, err := d.model(span{data, 0})
	if err != nil {
		return nil, err
	}
	if m.Graph == nil {
		return nil, errorAt(-1, "", "there is no graph, expected an ONNX model")
	}
	return m, nil
}

// errorAt is a FormatError at a byte offset.
func errorAt(offset int64, where, message string, args ...any) error {
	return &format.FormatError{Offset: offset, Where: where, Msg: fmt.Sprintf(message, args...)}
}

// unsupportedAt is an UnsupportedError at a byte offset.
func unsupportedAt(offset int64, where, message string, args ...any) error {
	return &format.UnsupportedError{Offset: offset, Where: where, Msg: fmt.Sprintf(message, args...)}
}

// within puts an outer place before the place of an error.
func within(err error, outer string) error {
	if f, ok := errors.AsType[*format.FormatError](err); ok {
		f.Where = joinPlace(outer, f.Where)
	}
	if u, ok := errors.AsType[*format.UnsupportedError](err); ok {
		u.Where = joinPlace(outer, u.Where)
	}
	return err
}

func joinPlace(outer, inner string) string {
	switch {
	case outer == "":
		return inner
	case inner == "":
		return outer
	}
	return outer + ": " + inner
}

// Limits.HeaderBytes bounds memory, so it counts for each string and message
// roughly what it takes beside its bytes: an empty one takes two bytes in a file.
const (
	stringHeader  = 16
	messageHeader = 128
)

// besideData is what Limits.HeaderBytes counts, for messages.
const besideData = "bytes beside tensor data (names, nodes, metadata; counted as they lie in memory)"

// decoder reads one model.
type decoder struct {
	lim   format.Limits
	depth int   // messages around the present one
	bytes int64 // read so far, tensor data excepted

	tensors, nodes, attributes, values int64
}

// span is the bytes of a message and their offset in the file.
type span struct {
	b   []byte
	off int64
}

// field is one field of a message.
type field struct {
	num protowire.Number
	typ protowire.Type
	v   uint64 // of a varint or fixed field
	b   []byte // of a field of bytes
	off int64  // of the field in the file
	at  int64  // of b, or the end of the field
	raw []byte // all of the field, with its tag
}

// fields calls f for each field of a message. Fields below 64 other than
// those in many may occur once. f says whether it knows the field; others are
// appended to unknown.
func (d *decoder) fields(m span, many uint64, unknown *[]byte, f func(field) (bool, error)) error {
	if d.depth >= d.lim.NestingDepth {
		return unsupportedAt(m.off, "", "nested deeper than the limit of %d messages", d.lim.NestingDepth)
	}
	d.depth++
	defer func() { d.depth-- }()
	if err := d.count(&d.bytes, messageHeader, d.lim.HeaderBytes, m.off, besideData); err != nil {
		return err
	}
	var seen uint64
	b, off := m.b, m.off
	for len(b) > 0 {
		fl, n, err := nextField(b, off)
		if err != nil {
			return err
		}
		known, err := f(fl)
		if err != nil {
			return err
		}
		switch {
		case !known:
			if err := d.count(&d.bytes, int64(n), d.lim.HeaderBytes, off, besideData); err != nil {
				return err
			}
			*unknown = append(*unknown, fl.raw...)
		case fl.num < 64:
			bit := uint64(1) << fl.num
			if seen&bit != 0 && many&bit == 0 {
				return errorAt(off, "", "field %d of the message occurs twice, expected once", fl.num)
			}
			seen |= bit
		}
		b, off = b[n:], off+int64(n)
	}
	return nil
}

// nextField splits the first field off b, which lies at off, and returns its
// size.
func nextField(b []byte, off int64) (field, int, error) {
	num, typ, tag := protowire.ConsumeTag(b)
	if tag < 0 {
		return field{}, 0, errorAt(off, "", "no tag of a protocol buffer field (%v): the file is damaged or no ONNX model", protowire.ParseError(tag))
	}
	if num > protowire.MaxValidNumber {
		return field{}, 0, errorAt(off, "", "field number %d, expected at most %d: the file is damaged or no ONNX model", num, protowire.MaxValidNumber)
	}
	f := field{num: num, typ: typ, off: off}
	rest := b[tag:]
	var n int
	switch typ {
	case protowire.VarintType:
		f.v, n = protowire.ConsumeVarint(rest)
	case protowire.Fixed32Type:
		var v uint32
		v, n = protowire.ConsumeFixed32(rest)
		f.v = uint64(v)
	case protowire.Fixed64Type:
		f.v, n = protowire.ConsumeFixed64(rest)
	case protowire.BytesType:
		length, prefix := protowire.ConsumeVarint(rest)
		switch {
		case prefix < 0:
			n = prefix
		case length > uint64(len(rest)-prefix):
			return f, 0, errorAt(off, "", "field %d has a length of %d bytes, but %d are left in its message", num, length, len(rest)-prefix)
		default:
			n = prefix + int(length)
			f.b = rest[prefix:n:n]
		}
	default:
		return f, 0, errorAt(off, "", "field %d has wire type %d, expected one that ONNX uses: the file is damaged or no ONNX model", num, typ)
	}
	if n < 0 {
		return f, 0, errorAt(off, "", "the value of field %d cannot be read (%v): the file is damaged or cut short", num, protowire.ParseError(n))
	}
	f.raw = b[: tag+n : tag+n]
	f.at = off + int64(tag+n-len(f.b))
	return f, tag + n, nil
}

// many is the set of fields that may be repeated.
func many(nums ...int) uint64 {
	var set uint64
	for _, n := range nums {
		set |= 1 << n
	}
	return set
}

// count adds to a counter and fails when it exceeds its limit.
func (d *decoder) count(counter *int64, n, limit, off int64, what string) error {
	*counter += n
	if *counter > limit {
		return unsupportedAt(off, "", "more than %d %s, which is the limit", limit, what)
	}
	return nil
}

// The readers of single fields. Each says that it knows the field.

func wrongType(f field, name string) (bool, error) {
	return true, errorAt(f.off, "", "%s (field %d) has wire type %d, expected another", name, f.num, f.typ)
}

func (d *decoder) message(f field, name string, read func(span) error) (bool, error) {
	if f.typ != protowire.BytesType {
		return wrongType(f, name)
	}
	return true, read(span{f.b, f.at})
}

func (d *decoder) raw(f field, name string, dst *string) (bool, error) {
	if f.typ != protowire.BytesType {
		return wrongType(f, name)
	}
	if int64(len(f.b)) > d.lim.StringBytes {
		return true, unsupportedAt(f.off, "", "%s has %d bytes, the limit is %d", name, len(f.b), d.lim.StringBytes)
	}
	*dst = string(f.b)
	return true, d.count(&d.bytes, int64(len(f.raw))+stringHeader, d.lim.HeaderBytes, f.off, besideData)
}

func (d *decoder) text(f field, name string, dst *string) (bool, error) {
	if _, err := d.raw(f, name, dst); err != nil {
		return true, err
	}
	if !utf8.ValidString(*dst) {
		return true, errorAt(f.off, "", "%s %s is not UTF-8", name, quote(*dst))
	}
	return true, nil
}

func (d *decoder) texts(f field, name string, dst *[]string) (bool, error) {
	var s string
	_, err := d.text(f, name, &s)
	*dst = append(*dst, s)
	return true, err
}

func (d *decoder) int(f field, name string, dst *int64) (bool, error) {
	if f.typ != protowire.VarintType {
		return wrongType(f, name)
	}
	*dst = int64(f.v)
	return true, nil
}

func (d *decoder) enum(f field, name string, dst *int32) (bool, error) {
	if f.typ != protowire.VarintType {
		return wrongType(f, name)
	}
	if v := int64(f.v); v < 0 || v > math.MaxInt32 {
		return true, errorAt(f.off, "", "%s is %d, expected 0 to %d", name, v, math.MaxInt32)
	}
	*dst = int32(f.v)
	return true, nil
}

// ints reads a repeated integer, one at a time or packed.
func (d *decoder) ints(f field, name string, dst *[]int64) (bool, error) {
	switch f.typ {
	case protowire.VarintType:
		*dst = append(*dst, int64(f.v))
	case protowire.BytesType:
		for b := f.b; len(b) > 0; {
			v, n := protowire.ConsumeVarint(b)
			if n < 0 {
				return true, errorAt(f.at+int64(len(f.b)-len(b)), "", "%s: no integer (%v)", name, protowire.ParseError(n))
			}
			if *dst = append(*dst, int64(v)); int64(len(*dst)) > d.lim.ArrayLength {
				break
			}
			b = b[n:]
		}
	default:
		return wrongType(f, name)
	}
	return true, d.array(len(*dst), f, name)
}

// floats reads a repeated float, one at a time or packed.
func (d *decoder) floats(f field, name string, dst *[]float32) (bool, error) {
	switch f.typ {
	case protowire.Fixed32Type:
		*dst = append(*dst, math.Float32frombits(uint32(f.v)))
	case protowire.BytesType:
		if len(f.b)%4 != 0 {
			return true, errorAt(f.at, "", "%s has %d bytes, expected a multiple of 4", name, len(f.b))
		}
		for b := f.b; len(b) > 0; b = b[4:] {
			*dst = append(*dst, math.Float32frombits(binary.LittleEndian.Uint32(b)))
		}
	default:
		return wrongType(f, name)
	}
	return true, d.array(len(*dst), f, name)
}

// array bounds an array that has n elements now that f is part of it.
func (d *decoder) array(n int, f field, name string) error {
	if int64(n) > d.lim.ArrayLength {
		return unsupportedAt(f.off, "", "%s has more than %d elements, which is the limit", name, d.lim.ArrayLength)
	}
	return d.count(&d.bytes, int64(len(f.raw)), d.lim.HeaderBytes, f.off, besideData)
}

func (d *decoder) props(f field, name string, dst *[]Prop) (bool, error) {
	return d.message(f, name, func(m span) error {
		var p Prop
		var unknown []byte
		err := d.fields(m, 0, &unknown, func(f field) (bool, error) {
			switch f.num {
			case 1:
				return d.text(f, "key", &p.Key)
			case 2:
				return d.text(f, "value", &p.Value)
			}
			return false, nil
		})
		if err != nil {
			return within(err, name)
		}
		p.unknown = string(unknown)
		*dst = append(*dst, p)
		if int64(len(*dst)) > d.lim.KeyValues {
			return unsupportedAt(m.off, "", "more than %d entries of %s, which is the limit", d.lim.KeyValues, name)
		}
		return nil
	})
}

func (d *decoder) opsets(f field, dst *[]Opset) (bool, error) {
	return d.message(f, "opset_import", func(m span) error {
		var o Opset
		var unknown []byte
		err := d.fields(m, 0, &unknown, func(f field) (bool, error) {
			switch f.num {
			case 1:
				return d.text(f, "domain", &o.Domain)
			case 2:
				return d.int(f, "version", &o.Version)
			}
			return false, nil
		})
		if err != nil {
			return within(err, "opset_import")
		}
		o.unknown = string(unknown)
		*dst = append(*dst, o)
		if int64(len(*dst)) > d.lim.KeyValues {
			return unsupportedAt(m.off, "", "more than %d opset imports, which is the limit", d.lim.KeyValues)
		}
		return nil
	})
}

// The readers of messages.

func (d *decoder) model(m span) (*Model, error) {
	out := &Model{}
	err := d.fields(m, many(8, 14, 25), &out.unknown, func(f field) (bool, error) {
		switch f.num {
		case 1:
			return d.int(f, "ir_version", &out.IRVersion)
		case 2:
			return d.text(f, "producer_name", &out.ProducerName)
		case 3:
			return d.text(f, "producer_version", &out.ProducerVersion)
		case 4:
			return d.text(f, "domain", &out.Domain)
		case 5:
			return d.int(f, "model_version", &out.ModelVersion)
		case 6:
			return d.text(f, "doc_string", &out.Doc)
		case 7:
			return d.message(f, "graph", func(m span) (err error) { out.Graph, err = d.graph(m); return err })
		case 8:
			return d.opsets(f, &out.Opsets)
		case 14:
			return d.props(f, "metadata_props", &out.Metadata)
		case 25:
			return d.message(f, "functions", func(m span) error {
				fn, err := d.function(m)
				out.Functions = append(out.Functions, fn)
				return err
			})
		}
		return false, nil
	})
	return out, err
}

func (d *decoder) graph(m span) (*Graph, error) {
	g := &Graph{}
	err := d.fields(m, many(1, 5, 11, 12, 13, 15, 16), &g.unknown, func(f field) (bool, error) {
		switch f.num {
		case 1:
			return d.node(f, &g.Nodes)
		case 2:
			return d.text(f, "name", &g.Name)
		case 5:
			return d.tensor(f, "initializer", func(t *Tensor) { g.Initializers = append(g.Initializers, t) })
		case 10:
			return d.text(f, "doc_string", &g.Doc)
		case 11:
			return d.value(f, "input", &g.Inputs)
		case 12:
			return d.value(f, "output", &g.Outputs)
		case 13:
			return d.value(f, "value_info", &g.ValueInfo)
		case 15:
			return d.sparse(f, "sparse_initializer", func(s *SparseTensor) { g.SparseInitializers = append(g.SparseInitializers, s) })
		case 16:
			return d.props(f, "metadata_props", &g.Metadata)
		}
		return false, nil
	})
	return g, err
}

func (d *decoder) node(f field, dst *[]*Node) (bool, error) {
	return d.message(f, "node", func(m span) error {
		if err := d.count(&d.nodes, 1, d.lim.Tensors, m.off, "nodes"); err != nil {
			return err
		}
		n := &Node{}
		err := d.fields(m, many(1, 2, 5, 9), &n.unknown, func(f field) (bool, error) {
			switch f.num {
			case 1:
				return d.texts(f, "input", &n.Inputs)
			case 2:
				return d.texts(f, "output", &n.Outputs)
			case 3:
				return d.text(f, "name", &n.Name)
			case 4:
				return d.text(f, "op_type", &n.OpType)
			case 5:
				return d.attribute(f, &n.Attributes)
			case 6:
				return d.text(f, "doc_string", &n.Doc)
			case 7:
				return d.text(f, "domain", &n.Domain)
			case 8:
				return d.text(f, "overload", &n.Overload)
			case 9:
				return d.props(f, "metadata_props", &n.Metadata)
			}
			return false, nil
		})
		if err == nil && n.OpType == "" {
			err = errorAt(m.off, "", "no op_type, expected the name of an operator")
		}
		if err != nil {
			return within(err, nodePlace(n, len(*dst)))
		}
		*dst = append(*dst, n)
		return nil
	})
}

func (d *decoder) function(m span) (*Function, error) {
	fn := &Function{}
	if err := d.count(&d.nodes, 1, d.lim.Tensors, m.off, "nodes"); err != nil {
		return nil, err
	}
	err := d.fields(m, many(4, 5, 6, 7, 9, 11, 12, 14), &fn.unknown, func(f field) (bool, error) {
		switch f.num {
		case 1:
			return d.text(f, "name", &fn.Name)
		case 4:
			return d.texts(f, "input", &fn.Inputs)
		case 5:
			return d.texts(f, "output", &fn.Outputs)
		case 6:
			return d.texts(f, "attribute", &fn.Attributes)
		case 7:
			return d.node(f, &fn.Nodes)
		case 8:
			return d.text(f, "doc_string", &fn.Doc)
		case 9:
			return d.opsets(f, &fn.Opsets)
		case 10:
			return d.text(f, "domain", &fn.Domain)
		case 11:
			return d.attribute(f, &fn.Defaults)
		case 12:
			return d.value(f, "value_info", &fn.ValueInfo)
		case 13:
			return d.text(f, "overload", &fn.Overload)
		case 14:
			return d.props(f, "metadata_props", &fn.Metadata)
		}
		return false, nil
	})
	if err == nil && fn.Name == "" {
		err = errorAt(m.off, "", "the name is empty")
	}
	return fn, within(err, functionPlace(fn))
}

// attributeFields names the value's field and its kind, by number.
var attributeFields = map[protowire.Number]struct {
	name string
	kind AttributeKind
}{
	2: {"f", KindFloat}, 3: {"i", KindInt}, 4: {"s", KindString}, 5: {"t", KindTensor}, 6: {"g", KindGraph},
	7: {"floats", KindFloats}, 8: {"ints", KindInts}, 9: {"strings", KindStrings}, 10: {"tensors", KindTensors},
	11: {"graphs", KindGraphs}, 14: {"tp", KindType}, 15: {"type_protos", KindTypes},
	22: {"sparse_tensor", KindSparseTensor}, 23: {"sparse_tensors", KindSparseTensors},
}

func (d *decoder) attribute(f field, dst *[]*Attribute) (bool, error) {
	return d.message(f, "attribute", func(m span) error {
		if err := d.count(&d.attributes, 1, d.lim.Tensors, m.off, "attributes"); err != nil {
			return err
		}
		a := &Attribute{}
		kind := KindUndefined // of the value's field
		typed := false        // the file gives the type
		err := d.fields(m, many(7, 8, 9, 10, 11, 15, 23), &a.unknown, func(f field) (bool, error) {
			switch f.num {
			case 1:
				return d.text(f, "name", &a.Name)
			case 13:
				return d.text(f, "doc_string", &a.Doc)
			case 20:
				typed = true
				return d.enum(f, "type", (*int32)(&a.Kind))
			case 21:
				return d.text(f, "ref_attr_name", &a.Ref)
			}
			info, isValue := attributeFields[f.num]
			if !isValue {
				return false, nil
			}
			if kind != KindUndefined && kind != info.kind {
				return true, errorAt(f.off, "", "more than one kind of value, expected one")
			}
			kind = info.kind
			return d.attributeValue(f, info.name, a)
		})
		if err == nil {
			err = a.finish(kind, typed, m.off)
		}
		if err != nil {
			return within(err, attributePlace(a.Name))
		}
		*dst = append(*dst, a)
		return nil
	})
}

// attributeValue reads a field with the value of an attribute, or a part of it.
func (d *decoder) attributeValue(f field, name string, a *Attribute) (bool, error) {
	switch f.num {
	case 2:
		if f.typ != protowire.Fixed32Type {
			return wrongType(f, name)
		}
		a.Value = math.Float32frombits(uint32(f.v))
		return true, nil
	case 3:
		var v int64
		_, err := d.int(f, name, &v)
		a.Value = v
		return true, err
	case 4:
		var v string
		_, err := d.raw(f, name, &v)
		a.Value = v
		return true, err
	case 5:
		return d.tensor(f, name, func(t *Tensor) { a.Value = t })
	case 6:
		return d.message(f, name, func(m span) error {
			g, err := d.graph(m)
			a.Value = g
			return err
		})
	case 7:
		v, _ := a.Value.([]float32)
		_, err := d.floats(f, name, &v)
		a.Value = v
		return true, err
	case 8:
		v, _ := a.Value.([]int64)
		_, err := d.ints(f, name, &v)
		a.Value = v
		return true, err
	case 9:
		var s string
		_, err := d.raw(f, name, &s)
		v, _ := a.Value.([]string)
		a.Value = append(v, s)
		return true, err
	case 10:
		return d.tensor(f, name, func(t *Tensor) {
			v, _ := a.Value.([]*Tensor)
			a.Value = append(v, t)
		})
	case 11:
		return d.message(f, name, func(m span) error {
			g, err := d.graph(m)
			v, _ := a.Value.([]*Graph)
			a.Value = append(v, g)
			return err
		})
	case 14:
		return d.typ(f, name, func(t *Type) { a.Value = t })
	case 15:
		return d.typ(f, name, func(t *Type) {
			v, _ := a.Value.([]*Type)
			a.Value = append(v, t)
		})
	case 22:
		return d.sparse(f, name, func(s *SparseTensor) { a.Value = s })
	}
	return d.sparse(f, name, func(s *SparseTensor) {
		v, _ := a.Value.([]*SparseTensor)
		a.Value = append(v, s)
	})
}

// finish brings the kind and the value of an attribute together; kind is that
// of the field the value came in, if one did.
func (a *Attribute) finish(kind AttributeKind, typed bool, off int64) error {
	switch {
	case !typed: // files of the format's first version
		a.Kind = kind
	case kind != KindUndefined && a.Kind != kind:
		return errorAt(off, "", "the type is %s, but the value is of type %s", a.Kind, kind)
	case a.Kind < 0 || a.Kind > KindTypes:
		return unsupportedAt(off, "", "attribute type %d is not known here", int32(a.Kind))
	}
	if a.Ref != "" {
		if kind != KindUndefined {
			return errorAt(off, "", "both a value and a reference to attribute %s of the function, expected one", quote(a.Ref))
		}
		return nil
	}
	if kind != KindUndefined {
		if v, ok := a.Value.([]float32); ok && v == nil {
			a.Value = []float32{}
		}
		if v, ok := a.Value.([]int64); ok && v == nil {
			a.Value = []int64{}
		}
		return nil
	}
	// Writers may leave zeros and empty lists out.
	switch a.Kind {
	case KindFloat:
		a.Value = float32(0)
	case KindInt:
		a.Value = int64(0)
	case KindString:
		a.Value = ""
	case KindFloats:
		a.Value = []float32{}
	case KindInts:
		a.Value = []int64{}
	case KindStrings:
		a.Value = []string{}
	case KindTensors:
		a.Value = []*Tensor{}
	case KindGraphs:
		a.Value = []*Graph{}
	case KindSparseTensors:
		a.Value = []*SparseTensor{}
	case KindTypes:
		a.Value = []*Type{}
	default:
		return errorAt(off, "", "there is no value")
	}
	return nil
}

func (d *decoder) sparse(f field, name string, add func(*SparseTensor)) (bool, error) {
	return d.message(f, name, func(m span) error {
		s := &SparseTensor{}
		err := d.fields(m, many(3), &s.unknown, func(f field) (bool, error) {
			switch f.num {
			case 1:
				return d.tensor(f, "values", func(t *Tensor) { s.Values = t })
			case 2:
				return d.tensor(f, "indices", func(t *Tensor) { s.Indices = t })
			case 3:
				return d.ints(f, "dims", &s.Dims)
			}
			return false, nil
		})
		if err == nil && (s.Values == nil || s.Indices == nil) {
			err = errorAt(m.off, "", "values or indices are missing")
		}
		if err == nil {
			if _, bad := format.Shape(s.Dims).Elements(); bad != nil {
				err = errorAt(m.off, "", "%v", bad)
			}
		}
		if err != nil {
			return within(err, name)
		}
		add(s)
		return nil
	})
}

func (d *decoder) value(f field, name string, dst *[]*ValueInfo) (bool, error) {
	return d.message(f, name, func(m span) error {
		if err := d.count(&d.values, 1, d.lim.Tensors, m.off, "described values"); err != nil {
			return err
		}
		v := &ValueInfo{}
		err := d.fields(m, many(4), &v.unknown, func(f field) (bool, error) {
			switch f.num {
			case 1:
				return d.text(f, "name", &v.Name)
			case 2:
				return d.typ(f, "type", func(t *Type) { v.Type = t })
			case 3:
				return d.text(f, "doc_string", &v.Doc)
			case 4:
				return d.props(f, "metadata_props", &v.Metadata)
			}
			return false, nil
		})
		if err == nil && v.Name == "" {
			err = errorAt(m.off, "", "the name is empty")
		}
		if err != nil {
			return within(err, fmt.Sprintf("%s %s", name, quote(v.Name)))
		}
		*dst = append(*dst, v)
		return nil
	})
}

func (d *decoder) typ(f field, name string, add func(*Type)) (bool, error) {
	return d.message(f, name, func(m span) error {
		t := &Type{}
		if err := d.count(&d.values, 1, d.lim.Tensors, m.off, "described values"); err != nil {
			return err
		}
		err := d.fields(m, 0, &t.unknown, func(f field) (bool, error) {
			switch kind := TypeKind(f.num); kind {
			case 6:
				return d.text(f, "denotation", &t.Denotation)
			case TypeTensor, TypeSparseTensor, TypeSequence, TypeOptional, TypeMap, TypeOpaque:
				if t.Kind != TypeUndefined {
					return true, errorAt(f.off, "", "more than one kind of type, expected one")
				}
				t.Kind = kind
				return d.message(f, "type", func(m span) error { return d.typeOfKind(m, t) })
			}
			return false, nil
		})
		if err != nil {
			return within(err, name)
		}
		add(t)
		return nil
	})
}

// typeOfKind reads the message of t's kind.
func (d *decoder) typeOfKind(m span, t *Type) error {
	return d.fields(m, 0, &t.inner, func(f field) (bool, error) {
		switch {
		case t.Kind == TypeOpaque:
			return false, nil
		case f.num == 1 && (t.Kind == TypeSequence || t.Kind == TypeOptional), f.num == 2 && t.Kind == TypeMap:
			return d.typ(f, "elem_type", func(of *Type) { t.Of = of })
		case f.num == 1:
			return d.enum(f, "elem_type", (*int32)(&t.Elem))
		case f.num == 2 && (t.Kind == TypeTensor || t.Kind == TypeSparseTensor):
			return d.message(f, "shape", func(m span) error {
				t.Ranked = true
				return d.fields(m, many(1), &t.shape, func(f field) (bool, error) {
					if f.num != 1 {
						return false, nil
					}
					return d.dim(f, &t.Dims)
				})
			})
		}
		return false, nil
	})
}

func (d *decoder) dim(f field, dst *[]Dim) (bool, error) {
	return d.message(f, "dim", func(m span) error {
		dim := Dim{Size: -1}
		sized := false
		var unknown []byte
		err := d.fields(m, 0, &unknown, func(f field) (bool, error) {
			switch f.num {
			case 1:
				sized = true
				return d.int(f, "dim_value", &dim.Size)
			case 2:
				return d.text(f, "dim_param", &dim.Param)
			case 3:
				return d.text(f, "denotation", &dim.Denotation)
			}
			return false, nil
		})
		switch {
		case err != nil:
			return err
		case sized && dim.Param != "":
			return errorAt(m.off, "", "dimension %d has both a size and a name, expected one", len(*dst))
		case dim.Size < -1:
			return errorAt(m.off, "", "dimension %d is %d, expected 0 or more", len(*dst), dim.Size)
		case dim.Param != "":
			dim.Size = 0
		}
		dim.unknown = string(unknown)
		*dst = append(*dst, dim)
		return nil
	})
}

// elements is what a TensorProto says about its elements.
type elements struct {
	field  protowire.Number // the one they came in; 0 for none
	off    int64            // of the field
	packed []byte           // of a typed field, all parts together
	raw    []byte
	strs   []string
	places []Prop // external_data
	loc    int32  // data_location
}

func (d *decoder) tensor(f field, name string, add func(*Tensor)) (bool, error) {
	return d.message(f, name, func(m span) error {
		if err := d.count(&d.tensors, 1, d.lim.Tensors, m.off, "tensors"); err != nil {
			return err
		}
		t := &Tensor{}
		var e elements
		err := d.fields(m, many(1, 4, 5, 6, 7, 10, 11, 13, 16), &t.unknown, func(f field) (bool, error) {
			switch f.num {
			case 1:
				return d.ints(f, "dims", &t.Dims)
			case 2:
				return d.enum(f, "data_type", (*int32)(&t.Type))
			case 3:
				return true, unsupportedAt(f.off, "", "the tensor is a segment of a larger one, which no program writes")
			case 8:
				return d.text(f, "name", &t.Name)
			case 12:
				return d.text(f, "doc_string", &t.Doc)
			case 13:
				return d.props(f, "external_data", &e.places)
			case 14:
				return d.enum(f, "data_location", &e.loc)
			case 16:
				return d.props(f, "metadata_props", &t.Metadata)
			case tensorFloats, tensorInt32s, tensorStrings, tensorInt64s, tensorRaw, tensorDoubles, tensorUint64s:
				return true, d.elements(f, &e)
			}
			return false, nil
		})
		if err == nil {
			err = t.finish(&e, m.off)
		}
		if err != nil {
			return within(err, tensorPlace(t.Name))
		}
		add(t)
		return nil
	})
}

// elements notes a field with elements of a tensor.
func (d *decoder) elements(f field, e *elements) error {
	if f.typ == protowire.BytesType && len(f.b) == 0 && f.num != tensorStrings {
		return nil // an empty field says nothing
	}
	if e.field != 0 && e.field != f.num {
		return errorAt(f.off, "", "elements in two fields, %d and %d, expected one", e.field, f.num)
	}
	if e.field == 0 {
		e.field, e.off = f.num, f.at
	}
	switch {
	case f.num == tensorStrings:
		var s string
		_, err := d.raw(f, "string_data", &s)
		e.strs = append(e.strs, s)
		return err
	case f.num == tensorRaw && f.typ == protowire.BytesType:
		e.raw = f.b
		return nil
	case f.typ == protowire.BytesType && e.packed == nil:
		e.packed = f.b
		return nil
	case f.typ == protowire.BytesType:
		e.packed = append(e.packed, f.b...) // f.b has no room, so this copies
		return nil
	case f.num == tensorFloats && f.typ == protowire.Fixed32Type:
		e.packed = binary.LittleEndian.AppendUint32(e.packed, uint32(f.v))
		return nil
	case f.num == tensorDoubles && f.typ == protowire.Fixed64Type:
		e.packed = binary.LittleEndian.AppendUint64(e.packed, f.v)
		return nil
	case f.typ == protowire.VarintType && (f.num == tensorInt32s || f.num == tensorInt64s || f.num == tensorUint64s):
		e.packed = protowire.AppendVarint(e.packed, f.v)
		return nil
	}
	_, err := wrongType(f, "the data")
	return err
}

// finish checks the elements of a tensor against its type and shape.
func (t *Tensor) finish(e *elements, off int64) error {
	if !t.Type.Valid() {
		if t.Type > Undefined {
			return unsupportedAt(off, "", "element type %d is not known here", int32(t.Type))
		}
		return errorAt(off, "", "there is no element type")
	}
	n, err := t.Elements()
	if err != nil {
		return errorAt(off, "", "%v", err)
	}
	if e.loc > 1 {
		return unsupportedAt(off, "", "data_location %d is not known here, expected 0 or 1", e.loc)
	}
	if t.Type == String {
		if e.loc == 1 || (e.field != 0 && e.field != tensorStrings) {
			return errorAt(off, "", "elements of type STRING must lie in string_data")
		}
		if int64(len(e.strs)) != n {
			return errorAt(off, "", "%d strings, expected %d for shape %v", len(e.strs), n, format.Shape(t.Dims))
		}
		t.Strings = e.strs
		return nil
	}
	size, err := t.Type.Bytes(n)
	if err != nil {
		return errorAt(off, "", "%v", err)
	}
	switch {
	case e.loc == 1 && e.field != 0:
		return errorAt(e.off, "", "the data are said to be external, but there are some inside too")
	case e.loc == 1:
		t.External, err = parseExternal(e.places, size)
		if err != nil {
			return errorAt(off, "", "%v", err)
		}
		return nil
	case e.field == 0 && size == 0:
		t.Raw = []byte{}
		return nil
	case e.field == 0:
		return errorAt(off, "", "no data, expected %d bytes for %s of shape %v", size, t.Type, format.Shape(t.Dims))
	case e.field == tensorRaw:
		if int64(len(e.raw)) != size {
			return errorAt(e.off, "", "raw_data has %d bytes, expected %d for %s of shape %v", len(e.raw), size, t.Type, format.Shape(t.Dims))
		}
		if t.Type == Bool {
			for i, b := range e.raw {
				if b > 1 {
					return errorAt(e.off+int64(i), "", "bool byte %d, expected 0 or 1", b)
				}
			}
		}
		t.Raw = e.raw
		return nil
	}
	return t.typedData(e, n)
}

// typedData checks elements that lie in a field of their own type and makes a
// Source of them: stored as varints they may be far smaller than in raw form,
// so they are widened only when somebody wants them.
func (t *Tensor) typedData(e *elements, n int64) error {
	info := dataTypes[t.Type]
	if info.field != int(e.field) {
		if info.field == 0 {
			return unsupportedAt(e.off, "", "elements of type %s outside raw_data", t.Type)
		}
		return errorAt(e.off, "", "elements of type %s in field %d, expected field %d or raw_data", t.Type, e.field, info.field)
	}
	packed := e.packed
	if e.field == tensorFloats || e.field == tensorDoubles {
		size, _ := t.Type.Bytes(n) // the caller has computed it
		if int64(len(packed)) != size {
			return errorAt(e.off, "", "%d bytes of elements, expected %d for %s of shape %v", len(packed), size, t.Type, format.Shape(t.Dims))
		}
		t.Raw = packed // already in raw form
		return nil
	}
	width := int(info.bits+7) / 8
	want := n
	if info.bits < 8 { // an entry holds a whole byte
		want, _ = t.Type.Bytes(n)
	}
	var got int64
	for b := packed; len(b) > 0; got++ {
		v, size := protowire.ConsumeVarint(b)
		if size < 0 {
			return errorAt(e.off, "", "element %d is no integer (%v)", got, protowire.ParseError(size))
		}
		i := int64(v)
		if e.field == tensorInt32s {
			i = int64(int32(v)) // the field's own type, as every reader takes it
		}
		if t.Type != Uint64 && (i < info.min || i > info.max) {
			return errorAt(e.off, "", "element %d is %d, which does not fit %s", got, i, t.Type)
		}
		b = b[size:]
	}
	if got != want {
		return errorAt(e.off, "", "%d entries, expected %d for %s of shape %v", got, want, t.Type, format.Shape(t.Dims))
	}
	t.Source = func(w io.Writer) error {
		buf := make([]byte, 0, 1<<12)
		for b := packed; len(b) > 0; {
			v, size := protowire.ConsumeVarint(b)
			b = b[size:]
			buf = binary.LittleEndian.AppendUint64(buf, v)
			buf = buf[:len(buf)-8+width]
			if len(buf)+8 > cap(buf) || len(b) == 0 {
				if _, err := w.Write(buf); err != nil {
					return err
				}
				buf = buf[:0]
			}
		}
		return nil
	}
	return nil
}

// parseExternal reads the entries of external_data; size is that of the
// elements.
func parseExternal(entries []Prop, size int64) (*External, error) {
	e := &External{Length: -1}
	seen := map[string]bool{}
	for _, p := range entries {
		if seen[p.Key] {
			return nil, fmt.Errorf("external data: the key %s occurs twice", quote(p.Key))
		}
		seen[p.Key] = true
		var err error
		switch p.Key {
		case "location":
			e.Location = p.Value
		case "offset":
			e.Offset, err = strconv.ParseInt(p.Value, 10, 64)
		case "length":
			e.Length, err = strconv.ParseInt(p.Value, 10, 64)
			if err == nil && e.Length != size {
				err = fmt.Errorf("expected %d for its type and shape", size)
			}
		case "checksum":
			e.Checksum = p.Value
		}
		if err != nil {
			return nil, fmt.Errorf("external data: %s %s: %v", p.Key, quote(p.Value), err)
		}
	}
	if e.Offset < 0 || e.Offset > math.MaxInt64-size {
		return nil, fmt.Errorf("external data: offset %d, expected 0 or more", e.Offset)
	}
	if why := badLocation(e.Location); why != "" {
		return nil, fmt.Errorf("external data: location %s %s; put the file into the model's folder and name it relative to that", quote(e.Location), why)
	}
	return e, nil
}

// badLocation says why a location of external data is refused; empty when it
// is not.
func badLocation(location string) string {
	switch {
	case location == "":
		return "is empty"
	case strings.ContainsAny(location, "\\\x00"):
		return "holds a backslash or NUL"
	case path.IsAbs(location):
		return "is absolute"
	case slices.Contains(strings.Split(location, "/"), ".."):
		return "leads out of a folder by \"..\""
	case !filepath.IsLocal(filepath.FromSlash(location)):
		return "is no path of a file in a folder"
	}
	return ""
}
