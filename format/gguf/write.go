package gguf

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"sync"

	"github.com/firstpassage/fpa/format"
	"github.com/firstpassage/fpa/quant"
)

// Writer writes one GGUF file of version 3: the header at once, then the data
// of each tensor, in any order and concurrently. The same input gives the
// same bytes.
type Writer struct {
	w         io.WriterAt
	alignment int64
	tensors   []TensorInfo
	data      []*TensorWriter
	size      int64
	values    map[string]writtenValue
}

// writtenValue is where a value that can be patched lies in the file.
type writtenValue struct {
	offset int64 // of an f32 or array, or of the first byte of a string
	value  Value
}

// NewWriter checks the metadata and the tensors, writes the header to w at
// offset 0, and returns a Writer for the data.
//
// kv and tensors are written in the order given. The alignment is the entry
// general.alignment of kv, or 32 when there is none. The caller provides what
// the specification demands: general.architecture, and
// general.quantization_version as soon as one tensor is quantised.
//
// Of a TensorInfo Name, DType and Shape are used. When DType is quant.Invalid,
// Type is used, if it is one that package quant does not know: that copies
// the tensors of a file which cannot be decoded here.
//
// w should be empty; a *os.File or an atomicfile.File will do.
func NewWriter(w io.WriterAt, kv []KV, tensors []TensorInfo) (*Writer, error) {
	wr := &Writer{
		w:         w,
		alignment: DefaultAlignment,
		values:    make(map[string]writtenValue),
	}
	header := append([]byte(magic), 0, 0, 0, 0)
	binary.LittleEndian.PutUint32(header[4:], Version)
	header = binary.LittleEndian.AppendUint64(header, uint64(len(tensors)))
	header = binary.LittleEndian.AppendUint64(header, uint64(len(kv)))

	keys := make(map[string]bool, len(kv))
	for _, e := range kv {
		if err := checkKey(e.Key); err != nil {
			return nil, err
		}
		if keys[e.Key] {
			return nil, fmt.Errorf("key %q occurs twice", e.Key)
		}
		keys[e.Key] = true
		if e.Key == KeyAlignment {
			var err error
			if wr.alignment, err = checkAlignment(e.Value); err != nil {
				return nil, fmt.Errorf("key %s %w", e.Key, err)
			}
		}
		t, ok := e.Value.Type()
		if !ok {
			return nil, fmt.Errorf("key %q has no value", e.Key)
		}
		header = appendString(header, e.Key)
		header = binary.LittleEndian.AppendUint32(header, uint32(t))
		switch t {
		case TypeFloat32, TypeArray:
			wr.values[e.Key] = writtenValue{int64(len(header)), e.Value}
		case TypeString: // the length comes first and stays
			wr.values[e.Key] = writtenValue{int64(len(header)) + 8, e.Value}
		}
		header = appendValue(header, e.Value)
	}

	names := make(map[string]bool, len(tensors))
	var offset int64 // of the next tensor, from the start of the data
	for _, t := range tensors {
		t, err := checkTensor(t)
		if err != nil {
			return nil, err
		}
		if names[t.Name] {
			return nil, fmt.Errorf("tensor name %q occurs twice", t.Name)
		}
		names[t.Name] = true
		header = appendString(header, t.Name)
		header = binary.LittleEndian.AppendUint32(header, uint32(len(t.Shape)))
		for i := len(t.Shape) - 1; i >= 0; i-- {
			header = binary.LittleEndian.AppendUint64(header, uint64(t.Shape[i]))
		}
		header = binary.LittleEndian.AppendUint32(header, uint32(t.Type))
		header = binary.LittleEndian.AppendUint64(header, uint64(offset))
		t.Offset = offset
		wr.tensors = append(wr.tensors, t)
		padded := pad(t.Size, wr.alignment)
		if padded > 1<<62-offset {
			return nil, fmt.Errorf("tensor %q: the tensors so far take more than 2^62 bytes", t.Name)
		}
		offset += padded
	}
	dataOffset := pad(int64(len(header)), wr.alignment)
	header = append(header, make([]byte, dataOffset-int64(len(header)))...)
	wr.size = dataOffset + offset

	wr.data = make([]*TensorWriter, len(tensors))
	for i := range wr.tensors {
		wr.tensors[i].Offset += dataOffset
		wr.data[i] = &TensorWriter{
			w:       w,
			info:    wr.tensors[i],
			padding: pad(wr.tensors[i].Size, wr.alignment) - wr.tensors[i].Size,
		}
	}
	if _, err := w.WriteAt(header, 0); err != nil {
		return nil, err
	}
	return wr, nil
}

// checkTensor checks what the caller of NewWriter says about a tensor and
// fills in the rest.
func checkTensor(t TensorInfo) (TensorInfo, error) {
	if err := checkName(t.Name); err != nil {
		return t, err
	}
	if t.DType == quant.Invalid {
		if _, known := t.Type.info(); !known || t.Type.DType() != quant.Invalid {
			return t, fmt.Errorf("tensor %q has no element type", t.Name)
		}
	} else {
		var ok bool
		if t.Type, ok = TypeOf(t.DType); !ok {
			return t, &format.UnsupportedError{Offset: -1, Where: tensorPlace(t.Name), Msg: fmt.Sprintf("GGUF has no element type %s; convert the tensor to F32 or another type first", t.DType)}
		}
	}
	if len(t.Shape) > maxDims {
		return t, &format.UnsupportedError{Offset: -1, Where: tensorPlace(t.Name), Msg: fmt.Sprintf("%d dimensions, GGUF has at most %d", len(t.Shape), maxDims)}
	}
	size, err := t.Type.size(t.Shape)
	if err != nil {
		return t, fmt.Errorf("tensor %q: %w", t.Name, err)
	}
	t.Shape = append(format.Shape(nil), t.Shape...)
	t.Size = size
	t.File = 0
	return t, nil
}

// appendString appends a string as the format has it.
func appendString(b []byte, s string) []byte {
	b = binary.LittleEndian.AppendUint64(b, uint64(len(s)))
	return append(b, s...)
}

// appendValue appends a value without its type, which must not be invalid.
func appendValue(b []byte, v Value) []byte {
	le := binary.LittleEndian
	switch x := v.v.(type) {
	case uint8:
		return append(b, x)
	case int8:
		return append(b, uint8(x))
	case bool:
		return appendBool(b, x)
	case uint16:
		return le.AppendUint16(b, x)
	case int16:
		return le.AppendUint16(b, uint16(x))
	case uint32:
		return le.AppendUint32(b, x)
	case int32:
		return le.AppendUint32(b, uint32(x))
	case uint64:
		return le.AppendUint64(b, x)
	case int64:
		return le.AppendUint64(b, uint64(x))
	case float32:
		return le.AppendUint32(b, math.Float32bits(x))
	case float64:
		return le.AppendUint64(b, math.Float64bits(x))
	case string:
		return appendString(b, x)
	}

	elem, _ := v.Elem()
	n, _ := v.Len()
	b = le.AppendUint32(b, uint32(elem))
	b = le.AppendUint64(b, uint64(n))
	switch a := v.v.(type) {
	case []uint8:
		return append(b, a...)
	case []int8:
		for _, x := range a {
			b = append(b, uint8(x))
		}
	case []bool:
		for _, x := range a {
			b = appendBool(b, x)
		}
	case []uint16:
		for _, x := range a {
			b = le.AppendUint16(b, x)
		}
	case []int16:
		for _, x := range a {
			b = le.AppendUint16(b, uint16(x))
		}
	case []uint32:
		for _, x := range a {
			b = le.AppendUint32(b, x)
		}
	case []int32:
		for _, x := range a {
			b = le.AppendUint32(b, uint32(x))
		}
	case []uint64:
		for _, x := range a {
			b = le.AppendUint64(b, x)
		}
	case []int64:
		for _, x := range a {
			b = le.AppendUint64(b, uint64(x))
		}
	case []float32:
		for _, x := range a {
			b = le.AppendUint32(b, math.Float32bits(x))
		}
	case []float64:
		for _, x := range a {
			b = le.AppendUint64(b, math.Float64bits(x))
		}
	case []string:
		for _, x := range a {
			b = appendString(b, x)
		}
	case []Value:
		for _, x := range a {
			b = appendValue(b, x)
		}
	}
	return b
}

func appendBool(b []byte, x bool) []byte {
	if x {
		return append(b, 1)
	}
	return append(b, 0)
}

// Size is the size of the complete file in bytes.
func (w *Writer) Size() int64 { return w.size }

// Tensors describes the tensors with every field filled in. The caller must
// not change it.
func (w *Writer) Tensors() []TensorInfo { return w.tensors }

// Tensor is the writer for the data of tensor i; each call gives the same
// one. It panics when there is no tensor i, like an index out of range.
func (w *Writer) Tensor(i int) *TensorWriter { return w.data[i] }

// PatchFloat32 changes the value of a key that was written with type f32, in
// place. It may be called at any time, after Finish too.
func (w *Writer) PatchFloat32(key string, x float32) error {
	return w.patch(key, ValueOf(x), binary.LittleEndian.AppendUint32(nil, math.Float32bits(x)))
}

// PatchFloat32s changes the value of a key that was written as an array of as many
// f32, in place. It may be called at any time, after Finish too.
func (w *Writer) PatchFloat32s(key string, x []float32) error {
	if old, ok := w.values[key].value.Len(); ok && old != len(x) {
		return fmt.Errorf("key %s: an array of %d elements cannot be replaced by one of %d", key, old, len(x))
	}
	return w.patch(key, ValueOf(x), appendValue(nil, ValueOf(x)))
}

// PatchString changes the value of a key that was written as a string of the
// same length in bytes, in place. It may be called at any time, after Finish
// too.
func (w *Writer) PatchString(key, s string) error {
	if old, ok := w.values[key].value.Str(); ok && len(old) != len(s) {
		return fmt.Errorf("key %s: a string of %d bytes cannot be replaced by one of %d", key, len(old), len(s))
	}
	return w.patch(key, ValueOf(s), []byte(s))
}

// patch overwrites the value of key by b, the encoding of v.
func (w *Writer) patch(key string, v Value, b []byte) error {
	old, ok := w.values[key]
	if !ok {
		return fmt.Errorf("key %s: the header has no such string, f32 or array to change", key)
	}
	if old.value.TypeName() != v.TypeName() {
		return fmt.Errorf("key %s: has type %s and cannot be changed to %s", key, old.value.TypeName(), v.TypeName())
	}
	_, err := w.w.WriteAt(b, old.offset)
	return err
}

// Finish checks that every tensor was written whole. It writes nothing and
// leaves the underlying file open.
func (w *Writer) Finish() error {
	var errs []error
	for _, t := range w.data {
		errs = append(errs, t.complete())
	}
	return errors.Join(errs...)
}

// TensorWriter writes the data of one tensor from its start to its end, in
// pieces of any size. The padding follows by itself.
type TensorWriter struct {
	w       io.WriterAt
	info    TensorInfo
	padding int64

	mu      sync.Mutex
	written int64
	err     error // of the first write that failed
}

// Write appends b to the tensor's data. It fails, writing nothing, when that
// would exceed the tensor's size. After an error every Write fails.
func (t *TensorWriter) Write(b []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.err != nil {
		return 0, t.err
	}
	if int64(len(b)) > t.info.Size-t.written {
		t.err = fmt.Errorf("tensor %q: %d bytes after the %d already written, expected %d in all", t.info.Name, len(b), t.written, t.info.Size)
		return 0, t.err
	}
	n, err := t.w.WriteAt(b, t.info.Offset+t.written)
	t.written += int64(n)
	if err == nil && t.written == t.info.Size && t.padding > 0 {
		_, err = t.w.WriteAt(make([]byte, t.padding), t.info.Offset+t.info.Size)
		t.padding = 0
	}
	t.err = err
	return n, err
}

// complete reports why the tensor is not whole.
func (t *TensorWriter) complete() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.err != nil {
		return t.err
	}
	if t.written != t.info.Size {
		return fmt.Errorf("tensor %q: %d bytes were written, expected %d", t.info.Name, t.written, t.info.Size)
	}
	return nil
}
