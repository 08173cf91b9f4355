package onnx

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"

	"github.com/firstpassage/fpa/format"
	"github.com/firstpassage/fpa/quant"
)

// Tensor is a constant (TensorProto). Its elements are in one place: Strings
// for String, else Raw or Source, else the file that External names.
type Tensor struct {
	Name string
	Type DataType
	Dims []int64 // outermost first; empty for a scalar
	Doc  string

	// Raw is the elements, row-major and little-endian; elements of less than a
	// byte are packed from the low bits up. In a model that was opened it may be
	// a view of a mapped file: read-only, and gone after Close.
	Raw []byte

	// Source writes the bytes of Raw where Raw is nil: Bytes of them, no more
	// and no fewer. It is called once for each time that the model is written.
	Source func(w io.Writer) error

	Strings  []string
	Metadata []Prop

	// External is where a file that was read has the elements; nil for inside.
	// For writing it counts only when Raw and Source are nil: then the reference
	// is written as it is.
	External *External

	unknown []byte
}

// External is a place in another file.
type External struct {
	Location string // slash-separated path, relative to the model's folder
	Offset   int64  // in bytes
	Length   int64  // in bytes; negative when the file does not say
	Checksum string // SHA-1 of the file in hexadecimal; not verified
}

// Elements is the number of elements. It fails when a dimension is negative
// or the product overflows.
func (t *Tensor) Elements() (int64, error) { return format.Shape(t.Dims).Elements() }

// Bytes is the size of the elements in raw form. It fails for strings and for
// dimensions that are negative or overflow.
func (t *Tensor) Bytes() (int64, error) {
	n, err := t.Elements()
	if err != nil {
		return 0, err
	}
	return t.Type.Bytes(n)
}

// WriteTo writes the elements in raw form.
func (t *Tensor) WriteTo(w io.Writer) (int64, error) {
	size, err := t.Bytes()
	if err != nil {
		return 0, fmt.Errorf("onnx: %s: %w", tensorPlace(t.Name), err)
	}
	switch {
	case t.Raw != nil || size == 0:
		if int64(len(t.Raw)) != size {
			return 0, fmt.Errorf("onnx: %s: %d bytes of data, expected %d for %s of shape %v", tensorPlace(t.Name), len(t.Raw), size, t.Type, format.Shape(t.Dims))
		}
		n, err := w.Write(t.Raw)
		return int64(n), err
	case t.Source != nil:
		c := &exactWriter{w: w, left: size}
		err := t.Source(c)
		if c.err != nil {
			err = c.err // a source may hide it
		}
		if err == nil && c.left != 0 {
			err = fmt.Errorf("its source wrote %d bytes, expected %d for %s of shape %v", size-c.left, size, t.Type, format.Shape(t.Dims))
		}
		if err != nil {
			err = fmt.Errorf("onnx: %s: %w", tensorPlace(t.Name), err)
		}
		return size - c.left, err
	case t.External != nil:
		return 0, fmt.Errorf("onnx: %s: its data are in the file %q, which was not opened; open the model by its path", tensorPlace(t.Name), t.External.Location)
	}
	return 0, fmt.Errorf("onnx: %s: no data, expected %d bytes for %s of shape %v", tensorPlace(t.Name), size, t.Type, format.Shape(t.Dims))
}

// exactWriter fails once more than left bytes are written.
type exactWriter struct {
	w    io.Writer
	left int64
	err  error
}

func (c *exactWriter) Write(b []byte) (int, error) {
	if c.err != nil {
		return 0, c.err
	}
	if int64(len(b)) > c.left {
		c.err = fmt.Errorf("its source writes %d bytes more than its type and shape take", int64(len(b))-c.left)
		return 0, c.err
	}
	n, err := c.w.Write(b)
	c.left -= int64(n)
	c.err = err
	return n, err
}

// Data is the elements in raw form: Raw itself, or a new slice where they come
// from a source.
func (t *Tensor) Data() ([]byte, error) {
	if t.Raw != nil {
		size, err := t.Bytes()
		if err == nil && int64(len(t.Raw)) == size {
			return t.Raw, nil
		}
	}
	var b bytes.Buffer
	_, err := t.WriteTo(&b) // explains what is wrong with Raw as well
	return b.Bytes(), err
}

// Float32s is the elements as float32: exact for float types up to 32 bits
// and small integers, rounded for Double and large integers.
func (t *Tensor) Float32s() ([]float32, error) {
	q, ok := t.Type.Quant()
	if !ok || !quant.CanDecode(q) {
		return nil, &format.UnsupportedError{Offset: -1, Where: tensorPlace(t.Name), Msg: fmt.Sprintf("elements of type %s cannot be read as numbers here", t.Type)}
	}
	data, err := t.Data()
	if err != nil {
		return nil, err
	}
	n, err := t.Elements()
	if err != nil {
		return nil, err
	}
	out := make([]float32, n)
	return out, quant.Decode(out, q, data)
}

// Int64s is the elements of an Int32 or Int64 tensor, the types that shapes
// and axes have.
func (t *Tensor) Int64s() ([]int64, error) {
	if t.Type != Int64 && t.Type != Int32 {
		return nil, fmt.Errorf("onnx: %s: elements of type %s, expected INT64 or INT32", tensorPlace(t.Name), t.Type)
	}
	data, err := t.Data()
	if err != nil {
		return nil, err
	}
	if t.Type == Int32 {
		out := make([]int64, len(data)/4)
		for i := range out {
			out[i] = int64(int32(binary.LittleEndian.Uint32(data[4*i:])))
		}
		return out, nil
	}
	out := make([]int64, len(data)/8)
	for i := range out {
		out[i] = int64(binary.LittleEndian.Uint64(data[8*i:]))
	}
	return out, nil
}

// FloatTensor is a Float tensor of the values; without dims it has one dimension.
func FloatTensor(name string, values []float32, dims ...int64) *Tensor {
	raw := make([]byte, 0, 4*len(values))
	for _, v := range values {
		raw = binary.LittleEndian.AppendUint32(raw, math.Float32bits(v))
	}
	return &Tensor{Name: name, Type: Float, Dims: orLength(dims, len(values)), Raw: raw}
}

// Int64Tensor is an Int64 tensor of the values; without dims it has one dimension.
func Int64Tensor(name string, values []int64, dims ...int64) *Tensor {
	raw := make([]byte, 0, 8*len(values))
	for _, v := range values {
		raw = binary.LittleEndian.AppendUint64(raw, uint64(v))
	}
	return &Tensor{Name: name, Type: Int64, Dims: orLength(dims, len(values)), Raw: raw}
}

func orLength(dims []int64, n int) []int64 {
	if len(dims) == 0 {
		return []int64{int64(n)}
	}
	return dims
}

// ScalarTensor is a tensor without dimensions, of one of the float types F16, BF16,
// F32 and F64, an integer type of a byte or more, or Bool (0 or 1). It fails
// when the type is another or an integer cannot hold v exactly.
func ScalarTensor(name string, t DataType, v float64) (*Tensor, error) {
	raw, err := encodeScalar(t, v)
	if err != nil {
		return nil, fmt.Errorf("onnx: %s: %w", tensorPlace(name), err)
	}
	return &Tensor{Name: name, Type: t, Raw: raw}, nil
}

func encodeScalar(t DataType, v float64) ([]byte, error) {
	switch t {
	case Double:
		return binary.LittleEndian.AppendUint64(nil, math.Float64bits(v)), nil
	case Float:
		return binary.LittleEndian.AppendUint32(nil, math.Float32bits(float32(v))), nil
	case Float16, BFloat16:
		q, _ := t.Quant()
		raw := make([]byte, 2)
		return raw, quant.Encode(raw, q, []float32{float32(v)})
	case Int8, Int16, Int32, Int64, Uint8, Uint16, Uint32, Uint64, Bool:
	default:
		return nil, fmt.Errorf("no scalar of type %s can be made here", t)
	}
	if v != math.Trunc(v) || math.Abs(v) > 1<<53 {
		return nil, fmt.Errorf("%v is no integer that a float64 holds exactly", v)
	}
	i := int64(v)
	if info := dataTypes[t]; i < info.min || i > info.max {
		return nil, fmt.Errorf("%v does not fit %s", v, t)
	}
	size := dataTypes[t].bits / 8
	return binary.LittleEndian.AppendUint64(nil, uint64(i))[:size:size], nil
}

// convertElements is the number of elements that Convert has in hand at once;
// a multiple of every block length.
const convertElements = 1 << 14

// Convert is a Source that converts elements on the way: from src, stored as
// from, to the element type to. It works in small pieces, so that a mapped
// checkpoint is never held a second time.
func Convert(to DataType, src []byte, from quant.DType) (func(io.Writer) error, error) {
	q, ok := to.Quant()
	if ok && q == from {
		return func(w io.Writer) error { _, err := w.Write(src); return err }, nil
	}
	if !ok || !quant.CanEncode(q) || q.BlockLen() != 1 || !quant.CanDecode(from) {
		return nil, fmt.Errorf("onnx: elements of type %s cannot be converted to %s", from, to)
	}
	length, size := from.BlockLen(), from.BlockBytes()
	if len(src)%size != 0 {
		return nil, fmt.Errorf("onnx: %d bytes are no whole number of elements of %s", len(src), from)
	}
	step := convertElements / length * size
	return func(w io.Writer) error {
		buf := make([]byte, convertElements*q.BlockBytes())
		for rest := src; len(rest) > 0; {
			in := rest[:min(step, len(rest))]
			rest = rest[len(in):]
			n := len(in) / size * length
			out := buf[:n*q.BlockBytes()]
			if err := quant.Convert(out, q, in, from, n); err != nil {
				return err
			}
			if _, err := w.Write(out); err != nil {
				return err
			}
		}
		return nil
	}, nil
}

// checkData explains what is wrong with the place of a tensor's elements, for
// a tensor that is to be written; nil when nothing is.
func (t *Tensor) checkData() error {
	if !t.Type.Valid() {
		return fmt.Errorf("element type %s, expected one of the format's", t.Type)
	}
	n, err := t.Elements()
	if err != nil {
		return err
	}
	if t.Type == String {
		if int64(len(t.Strings)) != n {
			return fmt.Errorf("%d strings, expected %d for shape %v", len(t.Strings), n, format.Shape(t.Dims))
		}
		if t.Raw != nil || t.Source != nil || t.External != nil {
			return errors.New("a tensor of strings has its elements in Strings alone")
		}
		return nil
	}
	if len(t.Strings) != 0 {
		return fmt.Errorf("strings in a tensor of type %s", t.Type)
	}
	size, err := t.Type.Bytes(n)
	if err != nil {
		return err
	}
	switch {
	case t.Raw != nil && t.Source != nil:
		return errors.New("both Raw and Source are set, expected one")
	case t.Raw != nil && int64(len(t.Raw)) != size:
		return fmt.Errorf("%d bytes of data, expected %d for %s of shape %v", len(t.Raw), size, t.Type, format.Shape(t.Dims))
	case t.Raw == nil && t.Source == nil && t.External == nil && size != 0:
		return fmt.Errorf("no data, expected %d bytes for %s of shape %v", size, t.Type, format.Shape(t.Dims))
	}
	return nil
}
