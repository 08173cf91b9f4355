// Package safetensors reads and writes the safetensors format, in which most
// published checkpoints are stored.
//
// A file is
//
//	8 bytes   n, the length of the header, little-endian
//	n bytes   the header: a JSON object, padded at its end with spaces
//	rest      the tensors' data, row-major, little-endian
//
// The header maps each tensor's name to
//
//	{"dtype": "F32", "shape": [2, 3], "data_offsets": [begin, end]}
//
// with offsets counted from the end of the header, and the name __metadata__,
// if present, to an object of strings. The data of all tensors together cover
// the rest of the file without hole, overlap or remainder. The format is
// specified at https://github.com/huggingface/safetensors#format; this package
// knows the element types of version 0.8 of that library.
//
// Nothing is promised about alignment: a tensor of 4-byte elements may start
// at any address.
//
// # Security
//
// Files are untrusted. [Open] and [Parse] accept a file only when the whole
// header is right, as the reference library does; where that library is lax
// (white space around the header, keys given twice in some places, a null for
// the metadata), this package follows the specification. Nothing is allocated
// that the file merely claims, every size is computed with overflow checks,
// and no view reaches outside the data. Every failure is a [format.FormatError] that names the
// tensor and the byte. The values in the data are not looked at. See package
// filemap for files that change while they are mapped.
package safetensors

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"

	"github.com/firstpassage/fpa/format"
	"github.com/firstpassage/fpa/format/internal/filemap"
	"github.com/firstpassage/fpa/format/internal/strictjson"
	"github.com/firstpassage/fpa/quant"
)

const (
	lengthBytes    = 8              // the header's length comes first
	maxHeaderBytes = 100_000_000    // of the reference library
	metadataKey    = "__metadata__" // the one key of the header that is no tensor
)

// dtypes lists the element types in the order by which the reference library
// sorts tensors when it writes: by size, the rest is its own.
var dtypes = []quant.DType{
	quant.Bool, quant.F4, quant.F6E2M3, quant.F6E3M2, quant.U8, quant.I8,
	quant.F8E5M2, quant.F8E4M3, quant.F8E8M0, quant.F8E4M3FNUZ, quant.F8E5M2FNUZ,
	quant.I16, quant.U16, quant.F16, quant.BF16, quant.I32, quant.U32, quant.F32,
	quant.C64, quant.F64, quant.I64, quant.U64,
}

// dtypeRank maps a type to its place in that order.
var dtypeRank = func() map[quant.DType]int {
	m := make(map[quant.DType]int, len(dtypes))
	for i, d := range dtypes {
		m[d] = i
	}
	return m
}()

// dtypeByName maps the name in a header to the type.
var dtypeByName = func() map[string]quant.DType {
	m := make(map[string]quant.DType, len(dtypes))
	for _, d := range dtypes {
		m[d.String()] = d
	}
	return m
}()

// Tensor is one tensor of a file.
type Tensor struct {
	Name   string
	DType  quant.DType
	Shape  format.Shape // outermost dimension first; empty for a scalar
	Data   []byte       // the elements; a view of the file, read-only
	Offset int64        // of Data in the file, in bytes

	// Source, for Write alone, writes the elements in place of Data, so that they
	// can be converted on the way.
	Source func(w io.Writer) error
}

// File is an open file.
type File struct {
	path     string
	size     int64
	mapped   *filemap.File // nil for Parse
	tensors  []Tensor
	byName   map[string]int // index in tensors
	metadata map[string]string
}

// Open maps the file at path and checks all of its header. Close it after
// the last use of a tensor's data.
func Open(path string) (*File, error) { return OpenLimits(path, format.Limits{}) }

// OpenLimits is Open with limits other than the default.
func OpenLimits(path string, lim format.Limits) (*File, error) {
	m, err := filemap.Open(path)
	if err != nil {
		return nil, err
	}
	f, err := Parse(m.Bytes(), lim)
	if err != nil {
		m.Close()
		return nil, format.WithPath(err, path)
	}
	f.path, f.mapped = path, m
	return f, nil
}

// Parse reads a file that is in memory. The tensors are views of data.
func Parse(data []byte, lim format.Limits) (*File, error) {
	lim = lim.WithDefaults()
	header, err := headerOf(data, lim)
	if err != nil {
		return nil, err
	}
	p := parser{lim: lim, json: strictjson.NewReader(header, lim.NestingDepth, math.MaxInt64)}
	if err := p.header(); err != nil {
		return nil, located(err, lengthBytes)
	}
	if err := trailingSpaces(header); err != nil {
		return nil, err
	}
	f := &File{size: int64(len(data)), metadata: p.metadata}
	if err := f.place(p.entries, data, lengthBytes+int64(len(header))); err != nil {
		return nil, err
	}
	return f, nil
}

// Tensors is every tensor, in the order of the data. The slice is the file's
// own.
func (f *File) Tensors() []Tensor { return f.tensors }

// Lookup finds a tensor by its name.
func (f *File) Lookup(name string) (Tensor, bool) {
	i, ok := f.byName[name]
	if !ok {
		return Tensor{}, false
	}
	return f.tensors[i], true
}

// Metadata is the header's __metadata__; nil when there is none.
func (f *File) Metadata() map[string]string { return f.metadata }

// Path is what the file was opened as; empty after Parse.
func (f *File) Path() string { return f.path }

// Size is the size of the file in bytes.
func (f *File) Size() int64 { return f.size }

// Close ends the mapping of an opened file. The data of its tensors must not
// be touched afterwards.
func (f *File) Close() error {
	if f.mapped == nil {
		return nil
	}
	return f.mapped.Close()
}

// fail makes a FormatError.
func fail(offset int64, where, msg string, args ...any) error {
	return &format.FormatError{Offset: offset, Where: where, Msg: fmt.Sprintf(msg, args...)}
}

// located turns a SyntaxError of a text that starts at base into a FormatError.
func located(err error, base int64) error {
	var syntax *strictjson.SyntaxError
	if errors.As(err, &syntax) {
		return fail(base+int64(syntax.Offset), "header", "%s", syntax.Msg)
	}
	return err
}

// headerOf cuts the header out of the file.
func headerOf(data []byte, lim format.Limits) ([]byte, error) {
	if len(data) < lengthBytes {
		return nil, fail(0, "header length", "the file has %d bytes, expected at least %d; it is empty, cut short or no safetensors file", len(data), lengthBytes)
	}
	n := binary.LittleEndian.Uint64(data)
	most := min(uint64(max(lim.HeaderBytes, 0)), maxHeaderBytes)
	if n > most {
		return nil, fail(0, "header length", "found %d, expected at most %d; this is probably no safetensors file", n, most)
	}
	if rest := uint64(len(data) - lengthBytes); n > rest {
		return nil, fail(0, "header length", "found %d, but only %d bytes follow; the file is cut short or no safetensors file", n, rest)
	}
	header := data[lengthBytes : lengthBytes+n]
	if n == 0 || header[0] != '{' {
		return nil, fail(lengthBytes, "header", "expected a JSON object starting with '{'")
	}
	return header, nil
}

// trailingSpaces fails when the header, known to be one JSON value between
// white space, ends in other white space than spaces.
func trailingSpaces(header []byte) error {
	text := bytes.TrimRight(header, " ")
	if last := len(text) - 1; text[last] != '}' {
		return fail(lengthBytes+int64(last), "header", "found %q after the JSON object, expected nothing but spaces", text[last])
	}
	return nil
}

// entry is one tensor as the header describes it.
type entry struct {
	name       string
	at         int64 // offset of the name in the file
	dtype      quant.DType
	shape      format.Shape
	begin, end int64
}

// fail makes the FormatError of a tensor.
func (e *entry) fail(offset int64, msg string, args ...any) error {
	return fail(offset, where(e.name), msg, args...)
}

// where names a tensor in an error.
func where(name string) string { return "tensor " + strconv.Quote(strictjson.Shorten(name)) }

// parser reads the JSON of a header.
type parser struct {
	lim      format.Limits
	json     *strictjson.Reader
	entries  []entry
	metadata map[string]string
}

// offset is that of the next JSON value, in the file.
func (p *parser) offset() int64 { return lengthBytes + int64(p.json.Offset()) }

// header reads all of it.
func (p *parser) header() error {
	err := p.json.Object(func(key string, at int) error {
		if key == metadataKey {
			return p.readMetadata()
		}
		if int64(len(p.entries)) >= p.lim.Tensors {
			return fail(lengthBytes+int64(at), "header", "more than %d tensors", p.lim.Tensors)
		}
		e := entry{name: key, at: lengthBytes + int64(at)}
		if err := p.readEntry(&e); err != nil {
			return err
		}
		p.entries = append(p.entries, e)
		return nil
	})
	if err != nil {
		return err
	}
	return p.json.End()
}

// readMetadata reads the object of strings.
func (p *parser) readMetadata() error {
	p.metadata = map[string]string{}
	return p.json.Object(func(key string, at int) error {
		where := func() string { return metadataKey + " " + strconv.Quote(strictjson.Shorten(key)) }
		if int64(len(p.metadata)) >= p.lim.KeyValues {
			return fail(lengthBytes+int64(at), where(), "more than %d entries", p.lim.KeyValues)
		}
		valueAt := p.offset()
		kind, err := p.json.Kind()
		if err != nil {
			return err
		}
		if kind != strictjson.String {
			return fail(valueAt, where(), "found %s, expected a string", kind)
		}
		value, err := p.json.String()
		if err != nil {
			return err
		}
		if int64(len(value)) > p.lim.StringBytes {
			return fail(valueAt, where(), "found %d bytes, expected at most %d", len(value), p.lim.StringBytes)
		}
		p.metadata[key] = value
		return nil
	})
}

// readEntry reads the description of one tensor. Keys beyond the three of
// the format are let pass, as the reference library does.
func (p *parser) readEntry(e *entry) error {
	var hasDType, hasShape, hasOffsets bool
	kind, err := p.json.Kind()
	if err != nil {
		return err
	}
	if kind != strictjson.Object {
		return e.fail(p.offset(), "found %s, expected an object with dtype, shape and data_offsets", kind)
	}
	err = p.json.Object(func(key string, _ int) error {
		switch key {
		case "dtype":
			hasDType = true
			return p.readDType(e)
		case "shape":
			hasShape = true
			shape, err := p.readInts(e, key)
			e.shape = shape
			return err
		case "data_offsets":
			hasOffsets = true
			at := p.offset()
			offsets, err := p.readInts(e, key)
			if err != nil {
				return err
			}
			if len(offsets) != 2 {
				return e.fail(at, "data_offsets has %d elements, expected 2: begin and end", len(offsets))
			}
			e.begin, e.end = offsets[0], offsets[1]
			return nil
		default:
			return p.json.SkipIgnored()
		}
	})
	if err != nil {
		return err
	}
	for _, field := range []struct {
		has  bool
		name string
	}{{hasDType, "dtype"}, {hasShape, "shape"}, {hasOffsets, "data_offsets"}} {
		if !field.has {
			return e.fail(e.at, "%s is missing", field.name)
		}
	}
	return nil
}

// readDType reads the name of an element type.
func (p *parser) readDType(e *entry) error {
	at := p.offset()
	kind, err := p.json.Kind()
	if err != nil {
		return err
	}
	if kind != strictjson.String {
		return e.fail(at, "dtype is %s, expected a string such as \"F32\"", kind)
	}
	name, err := p.json.String()
	if err != nil {
		return err
	}
	d, ok := dtypeByName[name]
	if !ok {
		return e.fail(at, "unknown dtype %q, expected one of %v", strictjson.Shorten(name), dtypes)
	}
	e.dtype = d
	return nil
}

// readInts reads the array what of e: integers from 0 to 2^63-1.
func (p *parser) readInts(e *entry, what string) ([]int64, error) {
	kind, err := p.json.Kind()
	if err != nil {
		return nil, err
	}
	if kind != strictjson.Array {
		return nil, e.fail(p.offset(), "%s is %s, expected an array of integers", what, kind)
	}
	ints := []int64{}
	err = p.json.Array(func(i int) error {
		at := p.offset()
		kind, err := p.json.Kind()
		if err != nil {
			return err
		}
		if kind != strictjson.Number {
			return e.fail(at, "%s[%d] is %s, expected an integer", what, i, kind)
		}
		text, err := p.json.Number()
		if err != nil {
			return err
		}
		n, err := strconv.ParseUint(text, 10, 63)
		if err != nil {
			return e.fail(at, "%s[%d] is %s, expected an integer from 0 to 2^63-1", what, i, strictjson.Shorten(text))
		}
		ints = append(ints, int64(n))
		return nil
	})
	return ints, err
}

// place checks the entries against each other and against the data, which
// starts at start, and makes the tensors.
func (f *File) place(entries []entry, data []byte, start int64) error {
	slices.SortFunc(entries, func(a, b entry) int {
		return cmp.Or(cmp.Compare(a.begin, b.begin), cmp.Compare(a.end, b.end), cmp.Compare(a.name, b.name))
	})
	f.tensors = make([]Tensor, 0, len(entries))
	f.byName = make(map[string]int, len(entries))
	size := int64(len(data)) - start
	var covered int64 // bytes of data that the entries so far cover
	for i := range entries {
		e := &entries[i]
		switch {
		case e.end < e.begin:
			return e.fail(e.at, "data_offsets [%d, %d] end before they begin", e.begin, e.end)
		case e.begin < covered:
			return e.fail(e.at, "data_offsets [%d, %d] overlap those of %s, which end at %d", e.begin, e.end, where(entries[i-1].name), covered)
		case e.begin > covered:
			return e.fail(e.at, "data_offsets [%d, %d] leave a hole: expected to begin at %d", e.begin, e.end, covered)
		case e.end > size:
			return e.fail(e.at, "data_offsets [%d, %d] reach beyond the %d bytes of data in the file; it is cut short", e.begin, e.end, size)
		}
		elements, err := e.shape.Elements()
		if err != nil {
			return e.fail(e.at, "%s", err)
		}
		bytes, err := e.dtype.Bytes(elements)
		if err != nil {
			return e.fail(e.at, "shape %v: %s", e.shape, err)
		}
		if bytes != e.end-e.begin {
			return e.fail(e.at, "data_offsets [%d, %d] are %d bytes, expected %d for %s of shape %v", e.begin, e.end, e.end-e.begin, bytes, e.dtype, e.shape)
		}
		covered = e.end
		from, to := start+e.begin, start+e.end
		f.byName[e.name] = len(f.tensors)
		f.tensors = append(f.tensors, Tensor{
			Name: e.name, DType: e.dtype, Shape: e.shape,
			Data: data[from:to:to], Offset: from,
		})
	}
	if covered != size {
		return fail(start+covered, "data", "%d bytes after the data of the last tensor, expected the end of the file", size-covered)
	}
	return nil
}
