package safetensors

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"maps"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/firstpassage/fpa/format"
	"github.com/firstpassage/fpa/quant"
)

// file is a safetensors file of a header and data.
func file(header, data string) []byte {
	b := binary.LittleEndian.AppendUint64(nil, uint64(len(header)))
	return append(append(b, header...), data...)
}

// withLength is a file that claims another header length.
func withLength(n uint64, rest string) []byte {
	return append(binary.LittleEndian.AppendUint64(nil, n), rest...)
}

// one is the header of a single tensor "w".
func one(dtype, shape, offsets string) string {
	return `{"w":{"dtype":"` + dtype + `","shape":` + shape + `,"data_offsets":` + offsets + `}}`
}

// two is the header of the F32 vectors "a" and "b" of two elements each.
func two(offsetsA, offsetsB string) string {
	return `{"a":{"dtype":"F32","shape":[2],"data_offsets":` + offsetsA +
		`},"b":{"dtype":"F32","shape":[2],"data_offsets":` + offsetsB + `}}`
}

const (
	four    = "\x00\x00\x80\x3f" // 1 as F32
	eight   = four + four
	sixteen = eight + eight
)

// bad is a file that must be refused.
type bad struct {
	name   string
	data   []byte
	offset int64  // of the error; 0 is not compared
	msg    string // a part of the error's text
	lax    bool   // the reference library takes the file
}

// malformed has every way known to us in which such files have gone wrong.
var malformed = []bad{
	{name: "empty file", data: nil, msg: "the file has 0 bytes, expected at least 8"},
	{name: "seven bytes", data: []byte("1234567"), msg: "the file has 7 bytes"},
	{name: "length only", data: withLength(0, ""), offset: 8, msg: "expected a JSON object"},
	{name: "length 2^64-1", data: withLength(math.MaxUint64, "{}"), msg: "found 18446744073709551615, expected at most 100000000"},
	{name: "length wraps by 8", data: withLength(math.MaxUint64-7, "{}"), msg: "expected at most"},
	{name: "length 2^63", data: withLength(1<<63, "{}"), msg: "expected at most"},
	{name: "length over 100 MB", data: withLength(100_000_001, "{}"), msg: "found 100000001, expected at most 100000000"},
	{name: "length over the file", data: withLength(3, "{}"), msg: "found 3, but only 2 bytes follow"},
	{name: "not UTF-8 in a name", data: file("{\"\xff\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[0,4]}}", four), offset: 10, msg: "byte 0xff in a string is not UTF-8"},
	{name: "not UTF-8 between", data: file("{\xff}", ""), offset: 9, msg: "byte 0xff, which is not UTF-8"},
	{name: "open brace only", data: file("{", ""), offset: 9, msg: "the end of the text"},
	{name: "no header", data: file("", eight), offset: 8, msg: "expected a JSON object"},
	{name: "array", data: file("[]", ""), offset: 8, msg: "expected a JSON object"},
	{name: "null", data: file("null", ""), offset: 8, msg: "expected a JSON object"},
	{name: "white space before", data: file(" {}", ""), offset: 8, msg: "starting with '{'", lax: true},
	{name: "newline after", data: file("{}\n ", ""), offset: 10, msg: `found '\n' after the JSON object`, lax: true},
	{name: "zero bytes after", data: file("{}\x00", ""), offset: 10, msg: "after the end of the JSON value"},
	{name: "second object after", data: file("{}{}", ""), offset: 10, msg: "after the end of the JSON value"},
	{name: "comma after the last", data: file(`{"__metadata__":{},}`, ""), offset: 27, msg: "key in quotes"},
	{name: "tensor twice", data: file(`{"w":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"w":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}}`, eight),
		offset: 8 + 54, msg: `key "w" is given twice`},
	{name: "tensor twice, escaped", data: file(`{"w":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"\u0077":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}`, four),
		offset: 8 + 54, msg: `key "w" is given twice`, lax: true},
	{name: "metadata twice", data: file(`{"__metadata__":{},"__metadata__":{}}`, ""), offset: 8 + 19, msg: "given twice"},
	{name: "metadata key twice", data: file(`{"__metadata__":{"a":"1","a":"2"}}`, ""), offset: 8 + 25, msg: "given twice", lax: true},
	{name: "dtype twice", data: file(`{"w":{"dtype":"F32","dtype":"I32","shape":[1],"data_offsets":[0,4]}}`, four), offset: 28, msg: "given twice"},
	{name: "half a surrogate pair", data: file(`{"__metadata__":{"\ud800":"1"}}`, ""), offset: 26, msg: "half a surrogate pair"},
	{name: "tensor is an array", data: file(`{"w":[]}`, ""), offset: 13, msg: "found an array, expected an object"},
	{name: "tensor is null", data: file(`{"w":null}`, ""), offset: 13, msg: "found null, expected an object"},
	{name: "no dtype", data: file(`{"w":{"shape":[1],"data_offsets":[0,4]}}`, four), offset: 9, msg: "dtype is missing"},
	{name: "no shape", data: file(`{"w":{"dtype":"F32","data_offsets":[0,4]}}`, four), offset: 9, msg: "shape is missing"},
	{name: "no offsets", data: file(`{"w":{"dtype":"F32","shape":[1]}}`, four), offset: 9, msg: "data_offsets is missing"},
	{name: "end before begin", data: file(one("F32", "[1]", "[4,0]"), four), offset: 9, msg: "end before they begin"},
	{name: "negative offset", data: file(one("F32", "[1]", "[-4,0]"), four), msg: "data_offsets[0] is -4, expected an integer from 0"},
	{name: "minus zero", data: file(one("F32", "[1]", "[-0,4]"), four), msg: "data_offsets[0] is -0"},
	{name: "float offset", data: file(one("F32", "[1]", "[0,4.0]"), four), msg: "data_offsets[1] is 4.0, expected an integer"},
	{name: "exponent offset", data: file(one("F32", "[1]", "[0,4e0]"), four), msg: "data_offsets[1] is 4e0, expected an integer"},
	{name: "string offset", data: file(one("F32", "[1]", `[0,"4"]`), four), msg: "data_offsets[1] is a string, expected an integer"},
	{name: "one offset", data: file(one("F32", "[1]", "[4]"), four), msg: "data_offsets has 1 elements, expected 2"},
	{name: "three offsets", data: file(one("F32", "[1]", "[0,4,4]"), four), msg: "data_offsets has 3 elements, expected 2"},
	{name: "offsets no array", data: file(one("F32", "[1]", `{"0":0,"1":4}`), four), msg: "data_offsets is an object, expected an array"},
	{name: "offset 2^64", data: file(one("F32", "[1]", "[0,18446744073709551616]"), four), msg: "expected an integer from 0 to 2^63-1"},
	{name: "offset 2^63-1", data: file(one("F32", "[1]", "[0,9223372036854775807]"), four), offset: 9, msg: "reach beyond the 4 bytes"},
	{name: "both offsets 2^63-1", data: file(one("F32", "[0]", "[9223372036854775807,9223372036854775807]"), ""), offset: 9, msg: "leave a hole"},
	{name: "same place", data: file(two("[0,8]", "[0,8]"), eight), msg: `overlap those of tensor "a", which end at 8`},
	{name: "overlap", data: file(two("[0,8]", "[4,12]"), sixteen), msg: "overlap those of"},
	{name: "inside", data: file(`{"a":{"dtype":"F32","shape":[4],"data_offsets":[0,16]},"b":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}}`, sixteen), msg: "overlap those of"},
	{name: "hole at the start", data: file(one("F32", "[1]", "[4,8]"), eight), offset: 9, msg: "leave a hole: expected to begin at 0"},
	{name: "hole between", data: file(two("[0,8]", "[12,20]"), sixteen+four), msg: "leave a hole: expected to begin at 8"},
	{name: "bytes after the data", data: file(one("F32", "[1]", "[0,4]"), four+"PK"), offset: 8 + 54 + 4, msg: "2 bytes after the data of the last tensor"},
	{name: "data without tensors", data: file("{}", "x"), offset: 10, msg: "1 bytes after the data"},
	{name: "data one byte short", data: file(one("F32", "[1]", "[0,4]"), four[:3]), offset: 9, msg: "reach beyond the 3 bytes of data"},
	{name: "no data", data: file(one("F32", "[1]", "[0,4]"), ""), offset: 9, msg: "reach beyond the 0 bytes"},
	{name: "shape too large", data: file(one("F32", "[3]", "[0,8]"), eight), offset: 9, msg: "are 8 bytes, expected 12 for F32 of shape [3]"},
	{name: "shape too small", data: file(one("F32", "[1]", "[0,8]"), eight), offset: 9, msg: "are 8 bytes, expected 4 for F32 of shape [1]"},
	{name: "scalar of eight bytes", data: file(one("F32", "[]", "[0,8]"), eight), offset: 9, msg: "expected 4 for F32 of shape []"},
	{name: "shape product overflows", data: file(one("F32", "[4294967296,4294967296]", "[0,0]"), ""), offset: 9, msg: "more than 2^63-1 elements"},
	{name: "shape product wraps to 1", data: file(one("U8", "[274177,67280421310721]", "[0,1]"), "x"), offset: 9, msg: "more than 2^63-1 elements"},
	{name: "size overflows", data: file(one("F32", "[4611686018427387904]", "[0,0]"), ""), offset: 9, msg: "overflow"},
	{name: "dimension 2^64", data: file(one("F32", "[18446744073709551616]", "[0,0]"), ""), msg: "shape[0] is 18446744073709551616, expected an integer"},
	{name: "negative dimension", data: file(one("F32", "[-1]", "[0,4]"), four), msg: "shape[0] is -1"},
	{name: "two negative dimensions", data: file(one("F32", "[-1,-1]", "[0,4]"), four), msg: "shape[0] is -1"},
	{name: "float dimension", data: file(one("F32", "[1.0]", "[0,4]"), four), msg: "shape[0] is 1.0"},
	{name: "shape is a number", data: file(one("F32", "1", "[0,4]"), four), msg: "shape is a number, expected an array"},
	{name: "shape null", data: file(one("F32", "null", "[0,4]"), four), msg: "shape is null, expected an array"},
	{name: "unknown dtype", data: file(one("F31", "[1]", "[0,4]"), four), offset: 8 + 14, msg: `unknown dtype "F31", expected one of`},
	{name: "lower-case dtype", data: file(one("f32", "[1]", "[0,4]"), four), offset: 8 + 14, msg: `unknown dtype "f32"`},
	{name: "GGUF dtype", data: file(one("Q8_0", "[32]", "[0,34]"), strings.Repeat("x", 34)), offset: 8 + 14, msg: `unknown dtype "Q8_0"`},
	{name: "dtype is a number", data: file(`{"w":{"dtype":0,"shape":[],"data_offsets":[0,4]}}`, four), offset: 8 + 14, msg: "dtype is a number, expected a string"},
	{name: "F4 of odd count", data: file(one("F4", "[3]", "[0,2]"), "xx"), offset: 9, msg: "no whole number of blocks of 2"},
	{name: "F6 of two elements", data: file(one("F6_E2M3", "[2]", "[0,2]"), "xx"), offset: 9, msg: "no whole number of blocks of 4"},
	{name: "deep array", data: file(`{"w":{"x":`+strings.Repeat("[", 100_000), ""), msg: "nested more than 64 deep"},
	{name: "deep object", data: file(strings.Repeat(`{"w":`, 100_000), ""), msg: "nested more than 64 deep"},
	{name: "metadata is a list", data: file(`{"__metadata__":[]}`, ""), offset: 8 + 16, msg: "found an array, expected an object"},
	{name: "metadata number", data: file(`{"__metadata__":{"a":1}}`, ""), offset: 8 + 21, msg: `__metadata__ "a": found a number, expected a string`},
	{name: "metadata object", data: file(`{"__metadata__":{"a":{"b":"c"}}}`, ""), offset: 8 + 21, msg: "found an object, expected a string"},
	{name: "metadata null value", data: file(`{"__metadata__":{"a":null}}`, ""), offset: 8 + 21, msg: "found null, expected a string"},
	{name: "metadata null", data: file(`{"__metadata__":null}`, ""), offset: 8 + 16, msg: "found null, expected an object", lax: true},
	{name: "GGUF file", data: []byte("GGUF\x03\x00\x00\x00\x00\x00\x00\x00"), msg: "this is probably no safetensors file"},
	{name: "zip file", data: []byte("PK\x03\x04\x00\x00\x08\x08\x00\x00\x00\x00"), msg: "this is probably no safetensors file"},
}

func TestMalformed(t *testing.T) {
	for _, test := range malformed {
		t.Run(test.name, func(t *testing.T) {
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			f, err := Parse(test.data, format.Limits{})
			runtime.ReadMemStats(&after)
			if err == nil {
				t.Fatalf("accepted: %+v", f.Tensors())
			}
			var fe *format.FormatError
			if !errors.As(err, &fe) {
				t.Fatalf("%v, expected a FormatError", err)
			}
			if test.offset != 0 && test.offset != fe.Offset {
				t.Errorf("%v: expected it at byte %d", err, test.offset)
			}
			if fe.Offset < 0 || fe.Offset > int64(len(test.data)) || fe.Where == "" {
				t.Errorf("%v: no place in a file of %d bytes", err, len(test.data))
			}
			if !strings.Contains(err.Error(), test.msg) {
				t.Errorf("%v: expected %q", err, test.msg)
			}
			if spent, most := after.TotalAlloc-before.TotalAlloc, uint64(16*len(test.data)+64<<10); spent > most {
				t.Errorf("allocated %d bytes for a file of %d", spent, len(test.data))
			}
		})
	}
}

// What is unusual but right.
func TestValid(t *testing.T) {
	for _, test := range []struct {
		name, header, data string
		tensors            int
	}{
		{"no tensors", `{}`, "", 0},
		{"no tensors, padded", `{}      `, "", 0},
		{"metadata only", `{"__metadata__":{"":""}}`, "", 0},
		{"data start unaligned", one("F32", "[2]", "[0,8]") + " ", eight, 1},
		{"zero-size tensor", one("F32", "[0]", "[0,0]"), "", 1},
		{"zero-size, huge other dimension", one("F32", "[9223372036854775807,0]", "[0,0]"), "", 1},
		{"scalar", one("F32", "[]", "[0,4]"), four, 1},
		{"empty name", `{"":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}`, four, 1},
		{"white space inside", "{ \"w\" :\n{\t\"shape\":[ 1 ],\r\"data_offsets\":[0, 4], \"dtype\":\"F32\"} }", four, 1},
		{"unknown key", `{"w":{"dtype":"F32","shape":[1],"data_offsets":[0,4],"x":{"a":[1,{}]}}}`, four, 1},
		{"zero-size between", `{"b":{"dtype":"F32","shape":[1],"data_offsets":[4,8]},"z":{"dtype":"F32","shape":[0],"data_offsets":[4,4]},"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}`, eight, 3},
		{"F4", one("F4", "[2,3]", "[0,3]"), "xxx", 1},
		{"F6", one("F6_E3M2", "[2,2]", "[0,3]"), "xxx", 1},
	} {
		f, err := Parse(file(test.header, test.data), format.Limits{})
		if err != nil {
			t.Errorf("%s: %v", test.name, err)
			continue
		}
		if len(f.Tensors()) != test.tensors {
			t.Errorf("%s: %d tensors, expected %d", test.name, len(f.Tensors()), test.tensors)
		}
	}
}

func TestLimits(t *testing.T) {
	data := file(two("[0,8]", "[8,16]"), sixteen)
	meta := file(`{"__metadata__":{"a":"xxxx","b":"y"}}`, "")
	for _, test := range []struct {
		data []byte
		lim  format.Limits
		msg  string
	}{
		{data, format.Limits{Tensors: 1}, "more than 1 tensors"},
		{data, format.Limits{HeaderBytes: 10}, "expected at most 10"},
		{data, format.Limits{NestingDepth: 2}, "nested more than 2 deep"},
		{meta, format.Limits{KeyValues: 1}, "more than 1 entries"},
		{meta, format.Limits{StringBytes: 3}, "found 4 bytes, expected at most 3"},
	} {
		if _, err := Parse(test.data, test.lim); err == nil || !strings.Contains(err.Error(), test.msg) {
			t.Errorf("%+v: %v, expected %q", test.lim, err, test.msg)
		}
	}
	// A limit above the format's own does not lift that one.
	long := withLength(maxHeaderBytes+1, "{}")
	if _, err := Parse(long, format.Limits{HeaderBytes: math.MaxInt64}); err == nil || !strings.Contains(err.Error(), "expected at most 100000000") {
		t.Errorf("header of 100,000,001 bytes: %v", err)
	}
}

// expected is the description of a golden file.
type expected struct {
	Open     string
	Metadata map[string]string `json:"expect_metadata"`
	Tensors  map[string]struct {
		DType  string
		Shape  format.Shape
		SHA256 string `json:"sha256_f32le"`
	}
}

// valueHash is the SHA-256 of the tensor's values as little-endian float32,
// with every NaN as 0x7fc00000.
func valueHash(t *testing.T, tensor Tensor) string {
	t.Helper()
	n, err := tensor.Shape.Elements()
	if err != nil {
		t.Fatal(err)
	}
	values := make([]float32, n)
	if err := quant.Decode(values, tensor.DType, tensor.Data); err != nil {
		t.Fatalf("%s: %v", tensor.Name, err)
	}
	h := sha256.New()
	for _, v := range values {
		bits := math.Float32bits(v)
		if v != v {
			bits = 0x7fc00000
		}
		h.Write(binary.LittleEndian.AppendUint32(nil, bits))
	}
	return hex.EncodeToString(h.Sum(nil))
}

// Files written by other programs, and the values that those read from them.
func TestGolden(t *testing.T) {
	paths, err := filepath.Glob("testdata/*/expected.json")
	if err != nil || len(paths) < 7 {
		t.Fatalf("goldens: %v, %v", paths, err)
	}
	for _, path := range paths {
		t.Run(filepath.Base(filepath.Dir(path)), func(t *testing.T) {
			text, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			var want expected
			if err := json.Unmarshal(text, &want); err != nil {
				t.Fatal(err)
			}
			name := filepath.Join(filepath.Dir(path), want.Open)
			f, err := Open(name)
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			raw, err := os.ReadFile(name)
			if err != nil {
				t.Fatal(err)
			}
			if f.Path() != name || f.Size() != int64(len(raw)) || len(f.Tensors()) != len(want.Tensors) {
				t.Errorf("path %q, size %d, %d tensors; expected %q, %d, %d", f.Path(), f.Size(), len(f.Tensors()), name, len(raw), len(want.Tensors))
			}
			for name, w := range want.Tensors {
				got, ok := f.Lookup(name)
				if !ok {
					t.Errorf("%s is missing", name)
					continue
				}
				if got.Name != name || got.DType.String() != w.DType || !got.Shape.Equal(w.Shape) {
					t.Errorf("%s: got %q, %v %v, expected %s %v", name, got.Name, got.DType, got.Shape, w.DType, w.Shape)
				}
				if !bytes.Equal(got.Data, raw[got.Offset:got.Offset+int64(len(got.Data))]) {
					t.Errorf("%s: the data are not those at offset %d", name, got.Offset)
				}
				if hash := valueHash(t, got); hash != w.SHA256 {
					t.Errorf("%s: values have hash %s, expected %s", name, hash, w.SHA256)
				}
			}
			for i, next := int64(0), int64(0); i < int64(len(f.Tensors())); i++ {
				if at := f.Tensors()[i].Offset; at < next {
					t.Errorf("tensor %d is at %d, after one at %d", i, at, next)
				} else {
					next = at
				}
			}
			if want.Metadata != nil && !maps.Equal(f.Metadata(), want.Metadata) {
				t.Errorf("metadata %q, expected %q", f.Metadata(), want.Metadata)
			}
			if _, ok := f.Lookup("no such tensor"); ok {
				t.Error("a tensor that is not there was found")
			}
		})
	}
}

func TestOpenErrors(t *testing.T) {
	dir := t.TempDir()
	if _, err := Open(filepath.Join(dir, "missing.safetensors")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("missing file: %v", err)
	}
	path := filepath.Join(dir, "bad.safetensors")
	if err := os.WriteFile(path, file("{", ""), 0o600); err != nil {
		t.Fatal(err)
	}
	_, err := Open(path)
	if err == nil || !strings.HasPrefix(err.Error(), path+": at byte 9: header: ") {
		t.Errorf("bad file: %v, expected path and byte", err)
	}
}

// random is a set of tensors of every type, drawn with a seed.
func random(rng *rand.Rand) ([]Tensor, map[string]string) {
	text := func() string {
		var b strings.Builder
		for range rng.IntN(12) {
			b.WriteRune([]rune{'a', 'Z', '.', '"', '\\', '/', '\b', '\f', '\n', '\r', '\t', 0, 0x1f, 0x7f, 'é', '河', '😀', '\u2028', '<'}[rng.IntN(19)])
		}
		return b.String()
	}
	var tensors []Tensor
	names := map[string]bool{}
	for range rng.IntN(2 * len(dtypes)) {
		d := dtypes[rng.IntN(len(dtypes))]
		shape := format.Shape{}
		for range rng.IntN(4) {
			shape = append(shape, int64(rng.IntN(5)))
		}
		if d.BlockLen() > 1 {
			shape = append(shape, int64(d.BlockLen()*rng.IntN(4)))
		}
		n, _ := shape.Elements()
		size, _ := d.Bytes(n)
		data := make([]byte, size)
		for i := range data {
			data[i] = byte(rng.Uint32())
		}
		if name := text(); !names[name] {
			names[name] = true
			tensors = append(tensors, Tensor{Name: name, DType: d, Shape: shape, Data: data})
		}
	}
	if rng.IntN(3) == 0 {
		return tensors, nil
	}
	metadata := map[string]string{}
	for range rng.IntN(4) {
		metadata[text()] = text()
	}
	return tensors, metadata
}

// sameTensors compares the tensors that were written with a file.
func sameTensors(t *testing.T, f *File, tensors []Tensor, metadata map[string]string) {
	t.Helper()
	if len(f.Tensors()) != len(tensors) {
		t.Fatalf("%d tensors, expected %d", len(f.Tensors()), len(tensors))
	}
	for _, want := range tensors {
		got, ok := f.Lookup(want.Name)
		if !ok || got.DType != want.DType || !got.Shape.Equal(want.Shape) || !bytes.Equal(got.Data, want.Data) {
			t.Fatalf("tensor %q: got %+v (%v), expected %+v", want.Name, got, ok, want)
		}
	}
	if (f.Metadata() == nil) != (metadata == nil) || !maps.Equal(f.Metadata(), metadata) {
		t.Fatalf("metadata %q, expected %q", f.Metadata(), metadata)
	}
}

func TestWriteRoundTrip(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	for range 300 {
		tensors, metadata := random(rng)
		var first, second bytes.Buffer
		if err := Write(&first, tensors, metadata); err != nil {
			t.Fatal(err)
		}
		f, err := Parse(first.Bytes(), format.Limits{})
		if err != nil {
			t.Fatalf("%v in %q", err, first.Bytes())
		}
		sameTensors(t, f, tensors, metadata)
		for _, tensor := range f.Tensors() {
			if size := int64(tensor.DType.BlockBytes()); tensor.DType.BlockLen() == 1 && tensor.Offset%size != 0 {
				t.Errorf("%s %v at byte %d is not aligned", tensor.Name, tensor.DType, tensor.Offset)
			}
		}
		rng.Shuffle(len(tensors), func(i, j int) { tensors[i], tensors[j] = tensors[j], tensors[i] })
		if err := Write(&second, tensors, metadata); err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(first.Bytes(), second.Bytes()) {
			t.Fatal("the bytes depend on the order of the tensors")
		}
	}
}

func TestWriteBytes(t *testing.T) {
	var b bytes.Buffer
	err := Write(&b, []Tensor{
		{Name: "bb", DType: quant.U8, Shape: format.Shape{3}, Data: []byte("xyz")},
		{Name: "c", DType: quant.F32, Shape: format.Shape{}, Data: []byte(four)},
		{Name: "a", DType: quant.F32, Shape: format.Shape{1, 1}, Data: []byte(four)},
	}, map[string]string{"k\n": "\x01", "a": ""})
	if err != nil {
		t.Fatal(err)
	}
	want := file(`{"__metadata__":{"a":"","k\n":"\u0001"},`+
		`"a":{"dtype":"F32","shape":[1,1],"data_offsets":[0,4]},`+
		`"c":{"dtype":"F32","shape":[],"data_offsets":[4,8]},`+
		`"bb":{"dtype":"U8","shape":[3],"data_offsets":[8,11]}}       `, eight+"xyz")
	if !bytes.Equal(b.Bytes(), want) {
		t.Errorf("wrote    %q\nexpected %q", b.Bytes(), want)
	}
}

func TestWriteRefuses(t *testing.T) {
	ok := Tensor{Name: "w", DType: quant.F32, Shape: format.Shape{1}, Data: []byte(four)}
	with := func(change func(*Tensor)) []Tensor {
		bad := ok
		change(&bad)
		return []Tensor{bad}
	}
	for _, test := range []struct {
		tensors  []Tensor
		metadata map[string]string
		msg      string
	}{
		{[]Tensor{ok, ok}, nil, `tensor "w": the name is given twice`},
		{with(func(t *Tensor) { t.Name = "__metadata__" }), nil, "reserved"},
		{with(func(t *Tensor) { t.Name = "\xff" }), nil, "not UTF-8"},
		{with(func(t *Tensor) { t.DType = quant.Q8_0 }), nil, "no type Q8_0"},
		{with(func(t *Tensor) { t.DType = quant.Invalid }), nil, "no type invalid"},
		{with(func(t *Tensor) { t.Shape = format.Shape{2} }), nil, "4 bytes of data, expected 8"},
		{with(func(t *Tensor) { t.Shape = format.Shape{-1} }), nil, "negative dimension"},
		{with(func(t *Tensor) { t.Shape = format.Shape{1 << 40, 1 << 40} }), nil, "more than 2^63-1 elements"},
		{with(func(t *Tensor) { t.DType, t.Shape = quant.F4, format.Shape{7} }), nil, "blocks of 2"},
		{[]Tensor{ok}, map[string]string{"a": "\xff"}, `metadata "a" is not UTF-8`},
		{[]Tensor{ok}, map[string]string{"a": strings.Repeat("x", maxHeaderBytes)}, "readers accept at most 100000000"},
	} {
		var b bytes.Buffer
		err := Write(&b, test.tensors, test.metadata)
		if err == nil || !strings.Contains(err.Error(), test.msg) {
			t.Errorf("%v, expected %q", err, test.msg)
		}
		if b.Len() > 0 {
			t.Errorf("%s: wrote %d bytes before it failed", test.msg, b.Len())
		}
	}
}

// TestWriteSource has elements that are made while they are written.
func TestWriteSource(t *testing.T) {
	plain := []Tensor{
		{Name: "a", DType: quant.F32, Shape: format.Shape{1}, Data: []byte(four)},
		{Name: "b", DType: quant.U8, Shape: format.Shape{3}, Data: []byte("xyz")},
	}
	from := func(pieces ...string) []Tensor {
		made := slices.Clone(plain)
		made[1].Data = nil
		made[1].Source = func(w io.Writer) error {
			for _, p := range pieces {
				if _, err := io.WriteString(w, p); err != nil {
					return err
				}
			}
			return nil
		}
		return made
	}
	var want, got bytes.Buffer
	if err := Write(&want, plain, nil); err != nil {
		t.Fatal(err)
	}
	if err := Write(&got, from("x", "yz"), nil); err != nil || !bytes.Equal(got.Bytes(), want.Bytes()) {
		t.Errorf("%v, wrote %q, expected %q", err, got.Bytes(), want.Bytes())
	}
	for _, pieces := range [][]string{nil, {"xy"}, {"xy", "za"}} {
		if err := Write(io.Discard, from(pieces...), nil); err == nil || !strings.Contains(err.Error(), "expected 3 for U8 of shape [3]") {
			t.Errorf("source %q: error %v", pieces, err)
		}
	}
}

// A write that fails leaves the file that was there, and nothing else.
func TestWriteFile(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "x.safetensors")
	tensors := []Tensor{{Name: "w", DType: quant.F32, Shape: format.Shape{1}, Data: []byte(four)}}
	metadata := map[string]string{"format": "pt"}
	if err := WriteFile(path, true, tensors, metadata); err != nil {
		t.Fatal(err)
	}
	bad := []Tensor{{Name: "w", DType: quant.F32, Shape: format.Shape{2}, Data: []byte(four)}}
	if err := WriteFile(path, true, bad, nil); err == nil {
		t.Error("wrote a tensor whose data do not fit its shape")
	}
	f, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	sameTensors(t, f, tensors, metadata)
	if err := f.Close(); err != nil {
		t.Error(err)
	}
	if err := WriteFile(path, true, nil, nil); err != nil { // replaces
		t.Fatal(err)
	}
	if f, err = Open(path); err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	sameTensors(t, f, nil, nil)
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) != 1 {
		t.Errorf("%d files are left (%v), expected 1", len(entries), err)
	}
	if err := WriteFile(filepath.Join(dir, "missing", "x"), true, nil, nil); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("folder missing: %v", err)
	}
}

// FuzzReader: no input makes the reader panic or reach outside of it, and
// what it accepts is unchanged by writing and reading it again.
func FuzzReader(f *testing.F) {
	for _, test := range malformed {
		if len(test.data) < 1000 {
			f.Add(test.data)
		}
	}
	paths, _ := filepath.Glob("testdata/*/*.safetensors")
	for _, path := range paths {
		data, err := os.ReadFile(path)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		first, err := Parse(data, format.Limits{})
		if err != nil {
			var fe *format.FormatError
			if !errors.As(err, &fe) || fe.Offset < 0 || fe.Offset > int64(len(data)) {
				t.Fatalf("%#v, expected a FormatError within the file", err)
			}
			return
		}
		var b bytes.Buffer
		if err := Write(&b, first.Tensors(), first.Metadata()); err != nil {
			t.Fatalf("what was read cannot be written: %v", err)
		}
		second, err := Parse(b.Bytes(), format.Limits{})
		if err != nil {
			t.Fatalf("what was written cannot be read: %v", err)
		}
		sameTensors(t, second, first.Tensors(), first.Metadata())
	})
}
