package gguf

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/firstpassage/fpa/format"
	"github.com/firstpassage/fpa/quant"
)

// bin is a file under construction.
type bin []byte

func (b bin) u8(n uint8) bin    { return append(b, n) }
func (b bin) u32(n uint32) bin  { return binary.LittleEndian.AppendUint32(b, n) }
func (b bin) u64(n uint64) bin  { return binary.LittleEndian.AppendUint64(b, n) }
func (b bin) str(s string) bin  { return append(b.u64(uint64(len(s))), s...) }
func (b bin) raw(s string) bin  { return append(b, s...) }
func (b bin) zeros(n int) bin   { return append(b, make([]byte, n)...) }
func (b bin) pad(align int) bin { return b.zeros((align - len(b)%align) % align) }

// head is a version 3 header.
func head(tensors, kv uint64) bin { return bin(magic).u32(3).u64(tensors).u64(kv) }

// kv begins an entry; its value follows.
func (b bin) kv(key string, t Type) bin { return b.str(key).u32(uint32(t)) }

// tensor is a whole tensor description; dims are innermost first.
func (b bin) tensor(name string, typ uint32, offset uint64, dims ...uint64) bin {
	b = b.str(name).u32(uint32(len(dims)))
	for _, d := range dims {
		b = b.u64(d)
	}
	return b.u32(typ).u64(offset)
}

// entry is a file of one entry and no tensors.
func entry(t Type, value bin) bin {
	return append(head(0, 1).kv("a.key", t), value...).pad(32)
}

// one is a file of one tensor with so many bytes of data.
func one(typ uint32, offset uint64, data int, dims ...uint64) bin {
	return head(1, 0).tensor("w", typ, offset, dims...).pad(32).zeros(data)
}

// aligned is a file with general.alignment of a type and value, one F32
// tensor of one element, and data padded to align.
func aligned(t Type, value bin, align int) bin {
	return append(head(1, 1).kv(KeyAlignment, t), value...).tensor("w", 0, 0, 1).pad(align).zeros(align)
}

// split is a file with the split.* entries given, each of its own type.
func splitFile(no uint16, count uint16, tensors int32) bin {
	return head(0, 3).
		kv(KeySplitNo, TypeUint16).raw(string([]byte{byte(no), byte(no >> 8)})).
		kv(KeySplitCount, TypeUint16).raw(string([]byte{byte(count), byte(count >> 8)})).
		kv(KeySplitTensors, TypeInt32).u32(uint32(tensors)).pad(32)
}

// malformed is one file that must be refused, with what the error must say.
type malformed struct {
	name        string
	file        bin
	want        string // in the error
	unsupported bool   // expected to be an UnsupportedError, not a FormatError
}

// malformedFiles are the cases of files that broke some reader somewhere.
func malformedFiles() []malformed {
	nested := head(0, 1).kv("a.key", TypeArray)
	for range 3000 {
		nested = nested.u32(uint32(TypeArray)).u64(1)
	}
	nested = nested.u32(uint32(TypeUint8)).u64(1).u8(7).pad(32)

	const max = math.MaxUint64
	name64 := strings.Repeat("n", 64)
	return []malformed{
		{"1 empty", bin{}, "empty", false},
		{"2 magic alone", bin(magic), "at byte 4", false},
		{"2 three bytes", bin("GGU"), "ends after 3 more bytes", false},
		{"3 FUGG", append(bin("FUGG"), head(0, 0)[4:]...), "not a GGUF file", false},
		{"3 GGML", append(bin("GGML"), head(0, 0)[4:]...), "not a GGUF file", false},
		{"3 lower case", append(bin("gguf"), head(0, 0)[4:]...), "not a GGUF file", false},
		{"4 version 0", bin(magic).u32(0).u64(0).u64(0), "version 0", false},
		{"5 version 1", bin(magic).u32(1).u64(0).u64(0), "version 1", true},
		{"6 version 4", bin(magic).u32(4).u64(0).u64(0), "version 4", true},
		{"7 big-endian", bin(magic).u32(0x03000000).u64(0).u64(0), "big-endian", true},
		{"7 cut after version", bin(magic).u32(3), "number of tensors", false},
		{"8 n_tensors 2^64-1", head(max, 0).zeros(64), "18446744073709551615 tensor descriptions", false},
		{"9 n_kv 2^64-1", head(0, max).zeros(64), "18446744073709551615 entries", false},
		{"10 n_kv beyond the file", head(0, 5).zeros(64), "5 entries", false},
		{"10 n_tensors beyond the file", head(3, 0).zeros(64), "3 tensor descriptions", false},
		{"11 key length 2^64-1", head(0, 1).u64(max).zeros(64), "18446744073709551615 bytes", false},
		{"11 key length 65536", head(0, 1).str(strings.Repeat("k", 65536)).u32(0).zeros(64), "65536 bytes", true},
		{"12 empty key", head(0, 1).kv("", TypeUint8).u8(1).pad(32), "key is empty", false},
		{"13 duplicate key", head(0, 2).kv("a.b", TypeUint8).u8(1).kv("a.b", TypeUint8).u8(2).pad(32), "a.b: the key occurs twice", false},
		{"14 key not UTF-8", head(0, 1).kv("a\xff", TypeUint8).u8(1).pad(32), "0xff", false},
		{"14 key not ASCII", head(0, 1).kv("ä", TypeUint8).u8(1).pad(32), "ASCII", false},
		{"14 key with NUL", head(0, 1).kv("a\x00b", TypeUint8).u8(1).pad(32), "ASCII", false},
		{"14 key with newline", head(0, 1).kv("a\nb", TypeUint8).u8(1).pad(32), "ASCII", false},
		{"15 value type 13", entry(13, bin{1, 2, 3, 4}), "value type 13", false},
		{"15 value type -1", entry(math.MaxUint32, bin{1, 2, 3, 4}), "value type 4294967295", false},
		{"16 string length beyond the file", entry(TypeString, bin{}.u64(100).raw("abc")), "length of 100 bytes", false},
		{"16 string length 2^30", entry(TypeString, bin{}.u64(1<<30).raw("abc")), "length of 1073741824 bytes", false},
		{"16 string length 2^64-1", entry(TypeString, bin{}.u64(max).raw("abc")), "length of 18446744073709551615", false},
		{"16 value cut", head(0, 1).kv("a.key", TypeUint64).u32(1), "a.key", false},
		{"17 array of 2^62 u32", entry(TypeArray, bin{}.u32(uint32(TypeUint32)).u64(1<<62).u32(1)), "4611686018427387904 elements of type u32", false},
		{"17 array of 2^61 u64", entry(TypeArray, bin{}.u32(uint32(TypeUint64)).u64(1<<61).u64(1)), "elements of type u64", false},
		{"17 array of 2^64-1 u8", entry(TypeArray, bin{}.u32(uint32(TypeUint8)).u64(max).u64(1)), "elements of type u8", false},
		{"17 array of 2^60 strings", entry(TypeArray, bin{}.u32(uint32(TypeString)).u64(1<<60).u64(1)), "elements of type str", false},
		{"17 array of 2^60 arrays", entry(TypeArray, bin{}.u32(uint32(TypeArray)).u64(1<<60).u64(1)), "elements of type array", false},
		{"17 array of 2^40 bools", entry(TypeArray, bin{}.u32(uint32(TypeBool)).u64(1<<40).u64(1)), "elements of type bool", false},
		{"18 nested 3000 deep", nested, "nested deeper than the limit of 64", true},
		{"19 array element type 13", entry(TypeArray, bin{}.u32(13).u64(1).u64(1)), "value type 13", false},
		{"20 bool 2", entry(TypeBool, bin{2}), "bool byte 2", false},
		{"20 bool 2 in an array", entry(TypeArray, bin{}.u32(uint32(TypeBool)).u64(3).raw("\x01\x00\x02")), "bool byte 2", false},
		{"21 alignment 0", aligned(TypeUint32, bin{}.u32(0), 32), "is 0, expected a power of two", false},
		{"22 alignment 13", aligned(TypeUint32, bin{}.u32(13), 32), "is 13", false},
		{"22 alignment 4", aligned(TypeUint32, bin{}.u32(4), 32), "is 4", false},
		{"23 alignment i32", aligned(TypeInt32, bin{}.u32(32), 32), "has type i32, expected u32", false},
		{"23 alignment u64", aligned(TypeUint64, bin{}.u64(32), 32), "has type u64, expected u32", false},
		{"23 alignment string", aligned(TypeString, bin{}.str("32"), 32), "has type str, expected u32", false},
		{"24 alignment 2^30", aligned(TypeUint32, bin{}.u32(1<<30), 32), "is 1073741824", false},
		{"24 alignment 2^31", aligned(TypeUint32, bin{}.u32(1<<31), 32), "is 2147483648", false},
		{"26 name of 64 bytes", head(1, 0).tensor(name64, 0, 0, 1).pad(32).zeros(32), "64 bytes, expected at most 63", false},
		{"26 name length 2^64-1", head(1, 0).u64(max).zeros(64), "18446744073709551615 bytes", false},
		{"26 empty name", head(1, 0).tensor("", 0, 0, 1).pad(32).zeros(32), "name is empty", false},
		{"26 name not UTF-8", head(1, 0).tensor("\xff", 0, 0, 1).pad(32).zeros(32), "not UTF-8", false},
		{"26 name with NUL", head(1, 0).tensor("a\x00", 0, 0, 1).pad(32).zeros(32), "NUL", false},
		{"27 duplicate name", head(2, 0).tensor("w", 0, 0, 1).tensor("w", 0, 32, 1).pad(32).zeros(64), `tensor "w": the tensor name occurs twice`, false},
		{"28 5 dimensions", one(0, 0, 32, 1, 1, 1, 1, 1), "5 dimensions", false},
		{"28 2^32-1 dimensions", head(1, 0).str("w").u32(math.MaxUint32).zeros(64), "4294967295 dimensions", false},
		{"29 dimension 2^63", one(0, 0, 32, 1<<63), "9223372036854775808", false},
		{"29 dimension -1", one(0, 0, 32, max), "18446744073709551615", false},
		{"30 dimension 0", one(0, 0, 0, 4, 0), "dimension 1 is 0", false},
		{"31 2^32 x 2^32 elements", one(0, 0, 32, 1<<32, 1<<32), "2^63", false},
		{"31 product wraps to 0", one(0, 0, 32, 1<<62, 4, 4), "2^63", false},
		{"32 2^62 F32", one(0, 0, 32, 1<<62), "2^62 bytes", false},
		{"32 2^60 F64", one(28, 0, 32, 1<<60), "bytes", false},
		{"33 2^64-16 bytes", one(0, 0, 32, 1<<62-4), "2^62 bytes", false},
		{"33 2^63-16 bytes", one(24, 0, 32, 1<<63-16), "2^62 bytes", false},
		{"34 two sizes that wrap", head(2, 0).tensor("a", 24, 0, 1<<61).tensor("b", 24, 1<<61, 1<<61).pad(32).zeros(64), "more than the file has room for", false},
		{"35 type 42", one(42, 0, 32, 1), "element type 42", true},
		{"35 type -1", one(math.MaxUint32, 0, 32, 1), "element type 4294967295", true},
		{"35 removed type 4", one(4, 0, 32, 1), "element type 4 ", true},
		{"35 removed type 5", one(5, 0, 32, 1), "element type 5 ", true},
		{"35 removed type 31", one(31, 0, 32, 1), "element type 31 ", true},
		{"36 row of 33 for Q8_0", one(8, 0, 96, 33), "rows have 33 elements, expected a multiple of 32", false},
		{"36 rows of 16 for Q8_0", one(8, 0, 96, 16, 2), "rows have 16 elements", false},
		{"36 row of 32 for Q4_K", one(12, 0, 160, 32), "multiple of 256", false},
		{"37 offset 2^64-1", one(0, max, 32, 1), "past the end", false},
		{"37 offset past the end", one(0, 4096, 32, 1), "past the end", false},
		{"37 misaligned offset", one(0, 4, 64, 1), "no multiple of the alignment 32", false},
		{"38 same offset", head(2, 0).tensor("a", 0, 0, 1).tensor("b", 0, 0, 1).pad(32).zeros(64), `tensor "b": offset 0 overlaps`, false},
		{"38 overlap", head(2, 0).tensor("a", 0, 0, 16).tensor("b", 0, 32, 1).pad(32).zeros(96), `tensor "b": offset 32 overlaps`, false},
		{"39 gap", head(2, 0).tensor("a", 0, 0, 1).tensor("b", 0, 64, 1).pad(32).zeros(96), `tensor "b": offset 64 leaves a gap`, false},
		{"39 reordered", head(2, 0).tensor("a", 0, 32, 1).tensor("b", 0, 0, 1).pad(32).zeros(64), `tensor "a": offset 32 leaves a gap`, false},
		{"39 does not start at 0", one(0, 32, 64, 1), "leaves a gap", false},
		{"40 last padding one short", one(0, 0, 31, 1), "append 1 zero bytes", false},
		{"40 data without padding", one(0, 0, 4, 1), "append 28 zero bytes", false},
		{"40 data one byte short", one(0, 0, 3, 1), "cut short", false},
		{"40 no data", one(0, 0, 0, 1), "cut short", false},
		{"40 no header padding", head(0, 1).kv("a.key", TypeUint8), "a.key", false},
		{"41 one byte after the data", one(0, 0, 33, 1), "1 bytes follow the last tensor", false},
		{"41 bytes after a header alone", head(0, 0).pad(32).zeros(32), "follow", false},
		{"52 split.count 0", splitFile(0, 0, 0), "split.count: is 0", false},
		{"52 split.no = split.count", splitFile(3, 3, 0), "split.no: is 3", false},
		{"52 negative split.tensors.count", splitFile(0, 2, -1), "split.tensors.count", false},
		{"52 split.count of type string", head(0, 1).kv(KeySplitCount, TypeString).str("2").pad(32), "split.count: has type str", false},
		{"52 split.no missing", head(0, 1).kv(KeySplitCount, TypeUint16).raw("\x02\x00").pad(32), "split.no: is missing", false},
	}
}

func TestMalformed(t *testing.T) {
	for _, test := range malformedFiles() {
		t.Run(test.name, func(t *testing.T) {
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			f, err := Read(bytes.NewReader(test.file), int64(len(test.file)), format.Limits{})
			runtime.ReadMemStats(&after)
			if err == nil {
				t.Fatalf("read as %d entries and %d tensors, expected an error", len(f.KV()), len(f.Tensors()))
			}
			checkError(t, err, test.want, test.unsupported)
			// The constant is the read buffer, twice over for the test itself.
			if used, most := after.TotalAlloc-before.TotalAlloc, uint64(1<<17+32*len(test.file)); used > most {
				t.Errorf("%d bytes were allocated for a file of %d, expected at most %d", used, len(test.file), most)
			}

			// The same from a file: the error names it.
			path := filepath.Join(t.TempDir(), "model.gguf")
			if err := os.WriteFile(path, test.file, 0o666); err != nil {
				t.Fatal(err)
			}
			_, err = Open(path)
			checkError(t, err, test.want, test.unsupported)
			if err != nil && !strings.HasPrefix(err.Error(), path+": ") {
				t.Errorf("the error does not begin with the file's name: %s", err)
			}
		})
	}
}

// checkError demands a FormatError or an UnsupportedError, in one line.
func checkError(t *testing.T, err error, want string, unsupported bool) {
	t.Helper()
	var f *format.FormatError
	var u *format.UnsupportedError
	switch {
	case err == nil:
		t.Error("no error")
	case unsupported && !errors.As(err, &u), !unsupported && !errors.As(err, &f):
		t.Errorf("error of type %T (%s), unsupported expected: %v", err, err, unsupported)
	case !strings.Contains(err.Error(), want):
		t.Errorf("the error is %q, expected it to contain %q", err, want)
	case strings.Contains(err.Error(), "\n"):
		t.Errorf("the error has several lines: %q", err)
	}
}

// Every prefix of a valid file is refused, and none makes the reader panic.
func TestTruncated(t *testing.T) {
	for _, name := range []string{"gguf_v3_all_kv", "gguf_align64", "gguf_quants_k"} {
		whole, err := os.ReadFile(filepath.Join("testdata", "valid", name, "model.gguf"))
		if err != nil {
			t.Fatal(err)
		}
		f, err := Read(bytes.NewReader(whole), int64(len(whole)), format.Limits{})
		if err != nil {
			t.Fatal(err)
		}
		padding := int(f.Tensors()[0].Offset - f.Alignment()) // it begins after this
		for n := range whole {
			_, err := Read(bytes.NewReader(whole[:n]), int64(n), format.Limits{})
			var f *format.FormatError
			if !errors.As(err, &f) {
				t.Errorf("%s cut to %d of %d bytes: %v, expected a FormatError", name, n, len(whole), err)
			}
			// The size may also be told wrongly.
			if _, err := Read(bytes.NewReader(whole[:n]), int64(len(whole)), format.Limits{}); err == nil && n <= padding {
				t.Errorf("%s cut to %d bytes while it is read: no error", name, n)
			}
		}
	}
}

// Every single byte of a small file is changed to some other values: the
// reader must not panic, and what it accepts must be writable again.
func TestMutated(t *testing.T) {
	for _, name := range []string{"gguf_v3_all_kv", "gguf_align64", "gguf_split3"} {
		paths, err := filepath.Glob(filepath.Join("testdata", "valid", name, "*.gguf"))
		if err != nil || len(paths) == 0 {
			t.Fatal(name, err)
		}
		whole, err := os.ReadFile(paths[0])
		if err != nil {
			t.Fatal(err)
		}
		for i := range whole {
			for _, x := range []byte{0, 1, 0x7f, 0x80, 0xff, whole[i] + 1, whole[i] - 1} {
				b := bytes.Clone(whole)
				b[i] = x
				checkStable(t, b)
			}
		}
	}
}

// checkStable reads b and, when that succeeds, writes it and reads that: the
// model must be the same, and its bytes too from there on.
func checkStable(t testing.TB, b []byte) {
	t.Helper()
	f, err := Read(bytes.NewReader(b), int64(len(b)), format.Limits{})
	if err != nil {
		var fe *format.FormatError
		var ue *format.UnsupportedError
		if !errors.As(err, &fe) && !errors.As(err, &ue) {
			t.Fatalf("error of type %T: %s", err, err)
		}
		return
	}
	again := encode(t, f)
	g, err := Read(bytes.NewReader(again), int64(len(again)), format.Limits{})
	if err != nil {
		t.Fatalf("a file this package wrote is refused: %s", err)
	}
	if len(g.KV()) != len(f.KV()) || len(g.Tensors()) != len(f.Tensors()) {
		t.Fatalf("%d entries and %d tensors became %d and %d", len(f.KV()), len(f.Tensors()), len(g.KV()), len(g.Tensors()))
	}
	for i, e := range f.KV() {
		// NaN is not equal to itself, so values are compared by their bytes.
		h := g.KV()[i]
		if h.Key != e.Key || h.Value.TypeName() != e.Value.TypeName() || !bytes.Equal(appendValue(nil, h.Value), appendValue(nil, e.Value)) {
			t.Fatalf("entry %d: %s %v became %s %v", i, e.Key, e.Value, h.Key, h.Value)
		}
	}
	for i, x := range f.Tensors() {
		y := g.Tensors()[i]
		if x.Name != y.Name || x.Type != y.Type || x.DType != y.DType || !x.Shape.Equal(y.Shape) || x.Size != y.Size {
			t.Fatalf("tensor %d: %+v became %+v", i, x, y)
		}
	}
	if third := encode(t, g); !bytes.Equal(third, again) {
		t.Fatal("the file changes when it is written a second time")
	}
}

// Valid, though other readers have stumbled over them.
func TestUnusualButValid(t *testing.T) {
	tests := []struct {
		name    string
		file    bin
		entries int
		tensors int
	}{
		{"header alone, without padding", head(0, 0), 0, 0},
		{"header alone, padded", head(0, 0).pad(32), 0, 0},
		{"25 alignment 8", aligned(TypeUint32, bin{}.u32(8), 8), 1, 1},
		{"25 alignment 16", aligned(TypeUint32, bin{}.u32(16), 16), 1, 1},
		{"25 alignment 64", aligned(TypeUint32, bin{}.u32(64), 64), 1, 1},
		{"25 alignment 65536", aligned(TypeUint32, bin{}.u32(65536), 65536), 1, 1},
		{"version 2", append(bin(magic).u32(2), one(0, 0, 32, 1)[8:]...), 0, 1},
		{"scalar", one(0, 0, 32), 0, 1},
		{"empty string and arrays", head(0, 3).kv("a", TypeString).str("").
			kv("b", TypeArray).u32(uint32(TypeString)).u64(0).
			kv("c", TypeArray).u32(uint32(TypeArray)).u64(0).pad(32), 3, 0},
		{"nested arrays", entry(TypeArray, bin{}.u32(uint32(TypeArray)).u64(2).
			u32(uint32(TypeUint8)).u64(2).raw("\x01\x02").
			u32(uint32(TypeString)).u64(1).str("x")), 1, 0},
		{"string that is not UTF-8", entry(TypeString, bin{}.str("\xff\xfe")), 1, 0},
		{"key of 65535 bytes", head(0, 1).kv(strings.Repeat("k", 65535), TypeUint8).u8(1).pad(32), 1, 0},
		{"name of 63 bytes", head(1, 0).tensor(strings.Repeat("n", 63), 0, 0, 1).pad(32).zeros(32), 0, 1},
		{"split of one part", splitFile(0, 1, 0), 3, 0},
	}
	for _, test := range tests {
		f, err := Read(bytes.NewReader(test.file), int64(len(test.file)), format.Limits{})
		if err != nil {
			t.Errorf("%s: %s", test.name, err)
			continue
		}
		if len(f.KV()) != test.entries || len(f.Tensors()) != test.tensors {
			t.Errorf("%s: %d entries, %d tensors, expected %d, %d", test.name, len(f.KV()), len(f.Tensors()), test.entries, test.tensors)
		}
		checkStable(t, test.file)
	}
}

func TestLimits(t *testing.T) {
	file := head(2, 2).
		kv("a", TypeArray).u32(uint32(TypeUint8)).u64(4).raw("abcd").
		kv("b", TypeArray).u32(uint32(TypeArray)).u64(1).u32(uint32(TypeString)).u64(1).str("12345").
		tensor("v", 0, 0, 1).tensor("w", 0, 32, 1).pad(32).zeros(64)
	header := int64(len(file)) - 64
	tests := []struct {
		name string
		lim  format.Limits
		ok   bool
	}{
		{"defaults", format.Limits{}, true},
		{"exactly enough", format.Limits{HeaderBytes: header, Tensors: 2, KeyValues: 2, StringBytes: 5, ArrayLength: 4, NestingDepth: 2}, true},
		{"header", format.Limits{HeaderBytes: header - 32}, false},
		{"tensors", format.Limits{Tensors: 1}, false},
		{"entries", format.Limits{KeyValues: 1}, false},
		{"string", format.Limits{StringBytes: 4}, false},
		{"array", format.Limits{ArrayLength: 3}, false},
		{"nesting", format.Limits{NestingDepth: 1}, false},
	}
	for _, test := range tests {
		_, err := Read(bytes.NewReader(file), int64(len(file)), test.lim)
		var u *format.UnsupportedError
		if test.ok && err != nil || !test.ok && (!errors.As(err, &u) || !strings.Contains(err.Error(), "limit")) {
			t.Errorf("%s: %v, expected success: %v", test.name, err, test.ok)
		}
	}
}

// failing is a reader that fails.
type failing struct{}

var errDisk = errors.New("disk on fire")

func (failing) ReadAt([]byte, int64) (int, error) { return 0, errDisk }

func TestReadErrors(t *testing.T) {
	if _, err := Read(failing{}, 100, format.Limits{}); !errors.Is(err, errDisk) {
		t.Errorf("%v, expected the reader's error", err)
	}
	for _, size := range []int64{-1, math.MinInt64, math.MaxInt64} {
		if _, err := Read(bytes.NewReader(nil), size, format.Limits{}); err == nil {
			t.Errorf("size %d: no error", size)
		}
	}
	// A huge file of which only the header can be had is fine.
	file := head(1, 0).tensor("w", 24, 0, 1<<61).pad(32)
	f, err := Read(bytes.NewReader(file), int64(len(file))+1<<61, format.Limits{})
	if err != nil {
		t.Fatal(err)
	}
	if got := f.Tensors()[0]; got.Size != 1<<61 || got.Offset != int64(len(file)) {
		t.Errorf("%+v", got)
	}
	if _, err := Open(filepath.Join(t.TempDir(), "missing.gguf")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("missing file: %v", err)
	}
	if _, err := Open(t.TempDir()); err == nil {
		t.Error("folder: no error")
	}
}

func FuzzReader(f *testing.F) {
	for _, test := range malformedFiles() {
		f.Add([]byte(test.file))
	}
	paths, err := filepath.Glob("testdata/valid/*/*.gguf")
	if err != nil || len(paths) == 0 {
		f.Fatal("no seeds", err)
	}
	for _, path := range paths {
		b, err := os.ReadFile(path)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) { checkStable(t, b) })
}

// splitModel writes a model of three parts with two tensors each and gives
// the path of the first.
func splitModel(t *testing.T, dir, stem, tensor string) string {
	t.Helper()
	for no := range 3 {
		var tensors []TensorInfo
		for i := range 2 {
			tensors = append(tensors, TensorInfo{Name: fmt.Sprintf("%s.%d", tensor, 2*no+i), DType: quant.F32, Shape: format.Shape{3}})
		}
		kv, err := SplitKV([]KV{{KeyArchitecture, ValueOf("test")}}, no, 3, 6)
		if err != nil {
			t.Fatal(err)
		}
		writeFile(t, filepath.Join(dir, SplitName(stem, no, 3)), kv, tensors)
	}
	return filepath.Join(dir, SplitName(stem, 0, 3))
}

func TestOpenSplit(t *testing.T) {
	dir := t.TempDir()
	first := splitModel(t, dir, "m", "w")
	part := func(no int) string { return filepath.Join(dir, SplitName("m", no, 3)) }

	f, err := Open(first)
	if err != nil {
		t.Fatal(err)
	}
	if s, ok := f.Split(); !ok || s != (Split{0, 3, 6}) || len(f.Paths()) != 3 || len(f.Tensors()) != 6 {
		t.Errorf("split %v %v, paths %v, %d tensors", s, ok, f.Paths(), len(f.Tensors()))
	}
	for i, info := range f.Tensors() {
		if info.File != i/2 || info.Name != fmt.Sprintf("w.%d", i) || !bytes.Equal(f.Data(info), content(info)) {
			t.Errorf("tensor %d: %+v, %x", i, info, f.Data(info))
		}
	}
	if err := f.Close(); err != nil {
		t.Error(err)
	}
	if f.Data(f.Tensors()[0]) != nil {
		t.Error("Data after Close is not nil")
	}

	// The parts may have other names when all are given.
	odd := filepath.Join(t.TempDir(), "odd")
	splitModel(t, dir, "m", "w")
	copyFile(t, part(1), odd)
	if f, err = OpenParts(first, odd, part(2)); err != nil {
		t.Error(err)
	} else {
		if len(f.Tensors()) != 6 || f.Paths()[1] != odd {
			t.Errorf("%d tensors, paths %v", len(f.Tensors()), f.Paths())
		}
		f.Close()
	}
	for _, paths := range [][]string{nil, {first}, {part(1), first, part(2)}, {first, part(2), odd}, {first, odd, odd}} {
		if f, err := OpenParts(paths...); err == nil {
			f.Close()
			t.Errorf("OpenParts(%v): no error", paths)
		}
	}

	// A path with ".." is the caller's; the parts are found beside the first.
	if err := os.Mkdir(filepath.Join(dir, "sub"), 0o777); err != nil {
		t.Fatal(err)
	}
	t.Chdir(filepath.Join(dir, "sub"))
	if f, err = Open(filepath.Join("..", SplitName("m", 0, 3))); err != nil {
		t.Error(err)
	} else {
		f.Close()
	}

	other := t.TempDir()
	splitModel(t, other, "m", "v")
	tests := []struct {
		name   string
		damage func(t *testing.T)
		open   string
		want   string
	}{
		{"opened at part 2", func(*testing.T) {}, part(1), "open the first part, " + first},
		{"part missing", func(t *testing.T) { remove(t, part(2)) }, first, "part 3 of 3 of the model is missing"},
		{"part renamed", func(t *testing.T) { move(t, part(0), filepath.Join(dir, "renamed.gguf")) }, filepath.Join(dir, "renamed.gguf"), "renamed-00001-of-00003.gguf"},
		{"parts exchanged", func(t *testing.T) { move(t, part(1), part(2)); splitPart(t, dir, 1, 2, 6, "w") }, first, "expected part 2 of 3"},
		{"part of another model, other total", func(t *testing.T) { splitPart(t, dir, 1, 1, 7, "w") }, first, "another model"},
		{"tensors twice", func(t *testing.T) { splitPart(t, dir, 1, 1, 6, "w") }, first, "the tensor is in an earlier part too"},
		{"total wrong", func(t *testing.T) {
			for no := range 3 {
				splitPart(t, dir, no, no, 9, fmt.Sprint("x", no))
			}
		}, first, "split.tensors.count: is 9"},
		{"other architecture", func(t *testing.T) {
			kv, _ := SplitKV(nil, 1, 3, 6)
			writeFile(t, part(1), append(kv, KV{KeyArchitecture, ValueOf("other")}), nil)
		}, first, `general.architecture: is "other", expected "test"`},
		{"part corrupt", func(t *testing.T) {
			if err := os.WriteFile(part(1), []byte("GGUF"), 0o666); err != nil {
				t.Fatal(err)
			}
		}, first, part(1) + ": at byte 4"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			splitModel(t, dir, "m", "w")
			test.damage(t)
			f, err := Open(test.open)
			if err == nil {
				f.Close()
				t.Fatal("no error")
			}
			if !strings.Contains(err.Error(), test.want) || !strings.Contains(err.Error(), dir) {
				t.Errorf("the error is %q, expected %q and a file's name", err, test.want)
			}
		})
	}
}

// splitPart writes the file of part no with entries that say part says.
func splitPart(t *testing.T, dir string, no, says, total int, tensor string) {
	t.Helper()
	kv, err := SplitKV([]KV{{KeyArchitecture, ValueOf("test")}}, says, 3, total)
	if err != nil {
		t.Fatal(err)
	}
	writeFile(t, filepath.Join(dir, SplitName("m", no, 3)), kv, []TensorInfo{{Name: tensor + ".0", DType: quant.F32, Shape: format.Shape{3}}})
}

func copyFile(t *testing.T, from, to string) {
	t.Helper()
	b, err := os.ReadFile(from)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(to, b, 0o666); err != nil {
		t.Fatal(err)
	}
}

func remove(t *testing.T, path string) {
	t.Helper()
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
}

func move(t *testing.T, from, to string) {
	t.Helper()
	if err := os.Rename(from, to); err != nil {
		t.Fatal(err)
	}
}
