package gguf

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"strconv"

	"github.com/firstpassage/fpa/format"
	"github.com/firstpassage/fpa/format/internal/filemap"
	"github.com/firstpassage/fpa/quant"
)

// File is a model read by Read or Open. Its methods may be used from several
// goroutines, Close excepted.
type File struct {
	version   uint32
	alignment int64
	kv        []KV
	keys      map[string]int // index into kv
	tensors   []TensorInfo
	names     map[string]int // index into tensors
	split     Split
	parts     []part
}

// part is one of the files of a model.
type part struct {
	path       string
	r          io.ReaderAt
	size       int64
	dataOffset int64
	mapped     *filemap.File // nil when the model came from Read
}

// Read reads the header of a single GGUF file of the given size and checks
// it, the place of every tensor in the file included. Tensor data stays
// unread; TensorReader gives access to it as long as r can be read.
//
// The error is a *format.FormatError, a *format.UnsupportedError, or what r
// returned.
//
// A part of a split model is read by itself here; Open follows the others.
func Read(r io.ReaderAt, size int64, lim format.Limits) (*File, error) {
	if size < 0 || size > 1<<62 {
		return nil, errorAt(-1, "", "a size of %d bytes, expected 0 to 2^62", size)
	}
	lim = lim.WithDefaults()
	d := &decoder{
		size: size,
		end:  min(size, lim.HeaderBytes),
		lim:  lim,
	}
	d.r = bufio.NewReaderSize(io.NewSectionReader(r, 0, d.end), int(min(d.end, 1<<16)))
	f, err := d.file()
	if err != nil {
		return nil, err
	}
	f.parts = []part{{r: r, size: size, dataOffset: d.dataOffset}}
	return f, nil
}

// decoder reads the header of one file.
type decoder struct {
	r          *bufio.Reader
	pos        int64 // offset of the next byte of r
	end        int64 // offset at which r ends: the file's size or the header limit
	size       int64 // of the file
	lim        format.Limits
	dataOffset int64
	scratch    [8]byte
	text       []byte // the last string read, to be used again
}

// errorAt is a FormatError at a byte offset.
func errorAt(offset int64, where, message string, args ...any) error {
	return &format.FormatError{Offset: offset, Where: where, Msg: fmt.Sprintf(message, args...)}
}

// unsupportedAt is an UnsupportedError at a byte offset.
func unsupportedAt(offset int64, where, message string, args ...any) error {
	return &format.UnsupportedError{Offset: offset, Where: where, Msg: fmt.Sprintf(message, args...)}
}

// need fails unless n units of at least size bytes each can still follow.
// It comes before every allocation.
func (d *decoder) need(n uint64, size int64, where, what string) error {
	rest := d.end - d.pos
	if n <= uint64(rest/size) {
		return nil
	}
	if d.end < d.size {
		return unsupportedAt(d.pos, where, "%s of at least %d bytes each: %d do not fit the header limit of %d bytes", what, size, n, d.end)
	}
	if n == 1 {
		return errorAt(d.pos, where, "the file ends after %d more bytes, expected %s of at least %d bytes", rest, what, size)
	}
	return errorAt(d.pos, where, "%d %s of at least %d bytes each do not fit the %d bytes left in the file", n, what, size, rest)
}

// bytes reads len(b) bytes. The caller has called need.
func (d *decoder) bytes(b []byte) error {
	n, err := io.ReadFull(d.r, b)
	d.pos += int64(n)
	return d.cut(d.pos, err)
}

// cut explains the end of a file that was said to be longer.
func (d *decoder) cut(offset int64, err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return errorAt(offset, "", "the file ends early, expected %d bytes: it was cut while being read", d.size)
	}
	return err
}

func (d *decoder) uint32(where, what string) (uint32, error) {
	if err := d.need(1, 4, where, what); err != nil {
		return 0, err
	}
	b := d.scratch[:4]
	err := d.bytes(b)
	return binary.LittleEndian.Uint32(b), err
}

func (d *decoder) uint64(where, what string) (uint64, error) {
	if err := d.need(1, 8, where, what); err != nil {
		return 0, err
	}
	b := d.scratch[:8]
	err := d.bytes(b)
	return binary.LittleEndian.Uint64(b), err
}

// string reads a length and so many bytes, at most limit.
func (d *decoder) string(limit int64, where, what string) (string, error) {
	start := d.pos
	n, err := d.uint64(where, what)
	if err != nil {
		return "", err
	}
	if rest := d.end - d.pos; n > uint64(rest) && d.end == d.size {
		return "", errorAt(start, where, "%s has a length of %d bytes, but %d are left in the file", what, n, rest)
	}
	if n > uint64(limit) {
		return "", unsupportedAt(start, where, "%s has a length of %d bytes, the limit is %d", what, n, limit)
	}
	if err := d.need(n, 1, where, what); err != nil {
		return "", err
	}
	if uint64(cap(d.text)) < n {
		d.text = make([]byte, n)
	}
	b := d.text[:n]
	if err := d.bytes(b); err != nil {
		return "", err
	}
	return string(b), nil
}

// file reads the whole header.
func (d *decoder) file() (*File, error) {
	f := &File{alignment: DefaultAlignment}
	var err error
	if f.version, err = d.version(); err != nil {
		return nil, err
	}
	countsAt := d.pos
	nTensors, err := d.uint64("", "the number of tensors")
	if err != nil {
		return nil, err
	}
	nKV, err := d.uint64("", "the number of metadata entries")
	if err != nil {
		return nil, err
	}
	// The counts first against the file, then against the limits, so that
	// nonsense is called nonsense.
	if err := d.need(nKV, minKVBytes, "number of metadata entries", "entries"); err != nil {
		return nil, err
	}
	if err := d.need(nTensors, minTensorBytes, "number of tensors", "tensor descriptions"); err != nil {
		return nil, err
	}
	if nKV > uint64(d.lim.KeyValues) {
		return nil, unsupportedAt(countsAt+8, "", "%d metadata entries, the limit is %d", nKV, d.lim.KeyValues)
	}
	if nTensors > uint64(d.lim.Tensors) {
		return nil, unsupportedAt(countsAt, "", "%d tensors, the limit is %d", nTensors, d.lim.Tensors)
	}

	f.kv = make([]KV, 0, nKV)
	f.keys = make(map[string]int, nKV)
	for range nKV {
		start := d.pos
		kv, err := d.entry()
		if err != nil {
			return nil, err
		}
		if _, dup := f.keys[kv.Key]; dup {
			return nil, errorAt(start, keyPlace(kv.Key), "the key occurs twice, expected once")
		}
		if kv.Key == KeyAlignment {
			if f.alignment, err = checkAlignment(kv.Value); err != nil {
				return nil, errorAt(start, keyPlace(kv.Key), "%s", err)
			}
		}
		f.keys[kv.Key] = len(f.kv)
		f.kv = append(f.kv, kv)
	}
	if err := f.readSplit(); err != nil {
		return nil, err
	}

	f.tensors = make([]TensorInfo, 0, nTensors)
	f.names = make(map[string]int, nTensors)
	var dataSize int64 // the running sum that each offset must equal
	for range nTensors {
		start := d.pos
		t, err := d.tensor(dataSize, f.alignment)
		if err != nil {
			return nil, err
		}
		if _, dup := f.names[t.Name]; dup {
			return nil, errorAt(start, tensorPlace(t.Name), "the tensor name occurs twice, expected once")
		}
		dataSize += pad(t.Size, f.alignment)
		f.names[t.Name] = len(f.tensors)
		f.tensors = append(f.tensors, t)
	}
	return f, d.data(f, dataSize)
}

// version reads the magic and the version.
func (d *decoder) version() (uint32, error) {
	if d.size == 0 {
		return 0, errorAt(0, "", "the file is empty, expected a GGUF file")
	}
	var b [4]byte
	if err := d.need(1, 4, "", "the magic"); err != nil {
		return 0, err
	}
	if err := d.bytes(b[:]); err != nil {
		return 0, err
	}
	if string(b[:]) != magic {
		return 0, errorAt(0, "", "the first four bytes are %q, expected %q: not a GGUF file", b, magic)
	}
	version, err := d.uint32("", "the version")
	if err != nil {
		return 0, err
	}
	switch {
	case version == 2 || version == 3:
		return version, nil
	case version == 0:
		return 0, errorAt(4, "", "version 0, expected 2 or 3")
	case version == 1:
		return 0, unsupportedAt(4, "", "version 1 of GGUF is not supported; convert the model again with a current converter")
	case version&0xffff == 0:
		return 0, unsupportedAt(4, "", "big-endian GGUF files are not supported; convert the file to little-endian, for example with gguf-convert-endian of the Python package gguf")
	}
	return 0, unsupportedAt(4, "", "version %d of GGUF is not supported, expected 2 or 3; a newer release of this program may read it", version)
}

// keyPlace and tensorPlace are the Where of an error.
func keyPlace(key string) string     { return "key " + abbreviate(key) }
func tensorPlace(name string) string { return "tensor " + strconv.Quote(abbreviate(name)) }

// entry reads one metadata entry.
func (d *decoder) entry() (KV, error) {
	start := d.pos
	key, err := d.string(maxKeyBytes, "", "a key")
	if err != nil {
		return KV{}, err
	}
	if err := checkKey(key); err != nil {
		return KV{}, errorAt(start, "", "%s", err)
	}
	where := keyPlace(key)
	t, err := d.valueType(where)
	if err != nil {
		return KV{}, err
	}
	v, err := d.value(t, where)
	return KV{key, v}, err
}

// valueType reads the type of a value or of an array's elements.
func (d *decoder) valueType(where string) (Type, error) {
	start := d.pos
	n, err := d.uint32(where, "a value type")
	if err != nil {
		return 0, err
	}
	if t := Type(n); t < numTypes {
		return t, nil
	}
	return 0, errorAt(start, where, "value type %d, expected 0 to %d", n, numTypes-1)
}

// value reads one value of type t.
func (d *decoder) value(t Type, where string) (Value, error) {
	if t == TypeArray {
		return d.array(1, where)
	}
	if t == TypeString {
		s, err := d.string(d.lim.StringBytes, where, "a string")
		return Value{s}, err
	}
	size := typeTable[t].size
	if err := d.need(1, size, where, "a value"); err != nil {
		return Value{}, err
	}
	start := d.pos
	b := d.scratch[:size]
	if err := d.bytes(b); err != nil {
		return Value{}, err
	}
	switch t {
	case TypeUint8:
		return Value{b[0]}, nil
	case TypeInt8:
		return Value{int8(b[0])}, nil
	case TypeBool:
		if b[0] > 1 {
			return Value{}, errorAt(start, where, "bool byte %d, expected 0 or 1", b[0])
		}
		return Value{b[0] == 1}, nil
	case TypeUint16:
		return Value{binary.LittleEndian.Uint16(b)}, nil
	case TypeInt16:
		return Value{int16(binary.LittleEndian.Uint16(b))}, nil
	case TypeUint32:
		return Value{binary.LittleEndian.Uint32(b)}, nil
	case TypeInt32:
		return Value{int32(binary.LittleEndian.Uint32(b))}, nil
	case TypeFloat32:
		return Value{math.Float32frombits(binary.LittleEndian.Uint32(b))}, nil
	case TypeUint64:
		return Value{binary.LittleEndian.Uint64(b)}, nil
	case TypeInt64:
		return Value{int64(binary.LittleEndian.Uint64(b))}, nil
	}
	return Value{math.Float64frombits(binary.LittleEndian.Uint64(b))}, nil
}

// array reads an array; depth is 1 for one that is not inside another.
func (d *decoder) array(depth int, where string) (Value, error) {
	start := d.pos
	if depth > d.lim.NestingDepth {
		return Value{}, unsupportedAt(start, where, "arrays are nested deeper than the limit of %d", d.lim.NestingDepth)
	}
	t, err := d.valueType(where)
	if err != nil {
		return Value{}, err
	}
	n, err := d.uint64(where, "the length of an array")
	if err != nil {
		return Value{}, err
	}
	if err := d.need(n, typeTable[t].size, where, "elements of type "+t.String()); err != nil {
		return Value{}, err
	}
	if n > uint64(d.lim.ArrayLength) {
		return Value{}, unsupportedAt(start, where, "array of %d elements, the limit is %d", n, d.lim.ArrayLength)
	}
	switch t {
	case TypeArray:
		a := make([]Value, n)
		for i := range a {
			if a[i], err = d.array(depth+1, where); err != nil {
				return Value{}, err
			}
		}
		return Value{a}, nil
	case TypeString:
		a := make([]string, n)
		for i := range a {
			if a[i], err = d.string(d.lim.StringBytes, where, "a string"); err != nil {
				return Value{}, err
			}
		}
		return Value{a}, nil
	case TypeBool:
		return d.bools(n, where)
	case TypeUint8:
		return numbers[uint8](d, n)
	case TypeInt8:
		return numbers[int8](d, n)
	case TypeUint16:
		return numbers[uint16](d, n)
	case TypeInt16:
		return numbers[int16](d, n)
	case TypeUint32:
		return numbers[uint32](d, n)
	case TypeInt32:
		return numbers[int32](d, n)
	case TypeFloat32:
		return numbers[float32](d, n)
	case TypeUint64:
		return numbers[uint64](d, n)
	case TypeInt64:
		return numbers[int64](d, n)
	}
	return numbers[float64](d, n)
}

// numbers reads n numbers of a fixed size; the caller has called need.
func numbers[T number](d *decoder, n uint64) (Value, error) {
	a := make([]T, n)
	start := d.pos
	if err := binary.Read(d.r, binary.LittleEndian, a); err != nil {
		return Value{}, d.cut(start, err)
	}
	d.pos = start + int64(binary.Size(a))
	return Value{a}, nil
}

// bools reads n bools; the caller has called need.
func (d *decoder) bools(n uint64, where string) (Value, error) {
	start := d.pos
	b := make([]byte, n)
	if err := d.bytes(b); err != nil {
		return Value{}, err
	}
	a := make([]bool, n)
	for i, x := range b {
		if x > 1 {
			return Value{}, errorAt(start+int64(i), where, "bool byte %d, expected 0 or 1", x)
		}
		a[i] = x == 1
	}
	return Value{a}, nil
}

// tensor reads one tensor description. Its offset must be expected, the
// padded sum of the sizes before it.
func (d *decoder) tensor(expected, alignment int64) (TensorInfo, error) {
	start := d.pos
	var t TensorInfo
	name, err := d.string(maxKeyBytes, "", "a tensor name")
	if err != nil {
		return t, err
	}
	if err := checkName(name); err != nil {
		return t, errorAt(start, "", "%s", err)
	}
	t.Name = name
	where := tensorPlace(name)

	start = d.pos
	dims, err := d.uint32(where, "the number of dimensions")
	if err != nil {
		return t, err
	}
	if dims > maxDims {
		return t, errorAt(start, where, "%d dimensions, expected at most %d", dims, maxDims)
	}
	t.Shape = make(format.Shape, dims)
	for i := range t.Shape {
		start := d.pos
		n, err := d.uint64(where, "a dimension")
		if err != nil {
			return t, err
		}
		if n == 0 || n > math.MaxInt64 {
			return t, errorAt(start, where, "dimension %d is %d, expected 1 to 2^63-1", i, n)
		}
		t.Shape[len(t.Shape)-1-i] = int64(n)
	}

	start = d.pos
	n, err := d.uint32(where, "the element type")
	if err != nil {
		return t, err
	}
	t.Type = GGMLType(n)
	if _, known := t.Type.info(); !known {
		return t, unsupportedAt(start, where, "element type %d is unknown or was removed from GGUF", n)
	}
	t.DType = t.Type.DType()
	if t.Size, err = t.Type.size(t.Shape); err != nil {
		return t, errorAt(start, where, "%s", err)
	}
	// Tensors that fit the file keep the running sum far from overflow.
	if t.Size > d.size-expected {
		return t, errorAt(start, where, "shape %v of type %s has %d bytes, more than the file has room for", t.Shape, t.Type, t.Size)
	}

	start = d.pos
	offset, err := d.uint64(where, "the offset")
	if err != nil {
		return t, err
	}
	switch {
	case offset == uint64(expected):
		t.Offset = expected // made absolute by data
		return t, nil
	case offset > uint64(d.size):
		return t, errorAt(start, where, "offset %d lies past the end of the file, expected %d", offset, expected)
	case offset%uint64(alignment) != 0:
		return t, errorAt(start, where, "offset %d is no multiple of the alignment %d, expected %d", offset, alignment, expected)
	case offset < uint64(expected):
		return t, errorAt(start, where, "offset %d overlaps the tensors before it, expected %d", offset, expected)
	}
	return t, errorAt(start, where, "offset %d leaves a gap after the tensors before it, expected %d: tensors must follow one another in the order they are described", offset, expected)
}

// data finds the start of the data, makes the tensors' offsets absolute, and
// checks that the data ends with the file.
func (d *decoder) data(f *File, dataSize int64) error {
	d.dataOffset = pad(d.pos, f.alignment)
	if len(f.tensors) == 0 && d.size >= d.pos && d.size <= d.dataOffset {
		// Without data some writers leave out the padding.
		return nil
	}
	end := d.dataOffset + dataSize
	if end > d.size {
		if n := len(f.tensors) - 1; n >= 0 && d.dataOffset+f.tensors[n].Offset+f.tensors[n].Size <= d.size {
			return errorAt(d.size, "", "the file has %d bytes, expected %d: the last tensor must be padded to a multiple of %d bytes; append %d zero bytes, or convert the model again",
				d.size, end, f.alignment, end-d.size)
		}
		return errorAt(d.size, "", "the file has %d bytes, expected %d: tensor data and its padding to %d bytes start at byte %d and take %d; the file was cut short, copy or convert it again",
			d.size, end, f.alignment, d.dataOffset, dataSize)
	}
	if end < d.size {
		return errorAt(end, "", "%d bytes follow the last tensor, expected the file to end here", d.size-end)
	}
	for i := range f.tensors {
		f.tensors[i].Offset += d.dataOffset
	}
	return nil
}

// Version is the file's version of the format: 2 or 3.
func (f *File) Version() uint32 { return f.version }

// Alignment is the alignment of tensor data in bytes; of the first part, in a
// split model.
func (f *File) Alignment() int64 { return f.alignment }

// KV is the metadata in the order of the file; of a split model that of the
// first part, its split.* entries included. The caller must not change it.
func (f *File) KV() []KV { return f.kv }

// Tensors describes the tensors in the order of the file, or of the parts.
// The caller must not change it.
func (f *File) Tensors() []TensorInfo { return f.tensors }

// Tensor describes the tensor of a name.
func (f *File) Tensor(name string) (t TensorInfo, ok bool) {
	i, ok := f.names[name]
	if !ok {
		return TensorInfo{}, false
	}
	return f.tensors[i], true
}

// TensorReader reads the data of tensor i of Tensors, without padding. It is
// nil when there is no such tensor.
func (f *File) TensorReader(i int) *io.SectionReader {
	if i < 0 || i >= len(f.tensors) {
		return nil
	}
	t := f.tensors[i]
	return io.NewSectionReader(f.parts[t.File].r, t.Offset, t.Size)
}

// Data is a view of a tensor's bytes, without padding, in the mapped file.
// It must not be written to, and not be used after Close. It is nil when the
// model did not come from Open, after Close, and when t does not lie in the
// model's files.
func (f *File) Data(t TensorInfo) []byte {
	if t.File < 0 || t.File >= len(f.parts) || f.parts[t.File].mapped == nil {
		return nil
	}
	b := f.parts[t.File].mapped.Bytes()
	if t.Offset < 0 || t.Size < 0 || t.Offset > int64(len(b)) || t.Size > int64(len(b))-t.Offset {
		return nil
	}
	return b[t.Offset : t.Offset+t.Size : t.Offset+t.Size]
}

// CheckTypes returns an UnsupportedError that names the first tensor whose
// element type package quant does not know. Such tensors can be listed and
// copied; a program that computes with them calls CheckTypes first.
func (f *File) CheckTypes() error {
	for _, t := range f.tensors {
		if t.DType == quant.Invalid {
			return &format.UnsupportedError{
				Path:   f.parts[t.File].path,
				Offset: -1,
				Where:  tensorPlace(t.Name),
				Msg:    fmt.Sprintf("element type %s (ggml type %d) is not supported; use a file quantised as Q8_0, Q4_K, Q6_K or another common type", t.Type, uint32(t.Type)),
			}
		}
	}
	return nil
}

// Paths are the model's files; empty strings when it came from Read.
func (f *File) Paths() []string {
	paths := make([]string, len(f.parts))
	for i, p := range f.parts {
		paths[i] = p.path
	}
	return paths
}

// Size is the number of bytes of the model's files together.
func (f *File) Size() int64 {
	var n int64
	for _, p := range f.parts {
		n += p.size
	}
	return n
}

// Close unmaps the files of Open. Views given out by Data must not be used
// after it.
func (f *File) Close() error {
	var errs []error
	for i := range f.parts {
		if m := f.parts[i].mapped; m != nil {
			errs = append(errs, m.Close())
			f.parts[i].mapped = nil
		}
	}
	return errors.Join(errs...)
}

// Release tells the system that data, of a tensor of an open file, will hardly be read
// again, so that it need not be kept in the process's memory; reading it stays
// possible. It does nothing for data that are not mapped.
func Release(data []byte) { filemap.Release(data) }
