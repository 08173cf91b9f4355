package gguf

import (
	"bytes"
	"errors"
	"io"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"sync"
	"testing"
	"testing/iotest"

	"github.com/firstpassage/fpa/format"
	"github.com/firstpassage/fpa/quant"
)

// memory is a file in memory.
type memory struct{ b []byte }

func (m *memory) WriteAt(b []byte, offset int64) (int, error) {
	if end := offset + int64(len(b)); end > int64(len(m.b)) {
		m.b = append(m.b, make([]byte, end-int64(len(m.b)))...)
	}
	return copy(m.b[offset:], b), nil
}

// encode writes a model again.
func encode(t testing.TB, f *File) []byte {
	t.Helper()
	var m memory
	w, err := NewWriter(&m, f.KV(), f.Tensors())
	if err != nil {
		t.Fatal(err)
	}
	for i := range f.Tensors() {
		if _, err := io.Copy(w.Tensor(i), f.TensorReader(i)); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Finish(); err != nil {
		t.Fatal(err)
	}
	return m.b
}

// content is the data that the tests give a tensor: bytes that depend on its
// name and on their place.
func content(t TensorInfo) []byte {
	b := make([]byte, t.Size)
	h := uint32(2166136261)
	for _, c := range []byte(t.Name) {
		h = (h ^ uint32(c)) * 16777619
	}
	for i := range b {
		h = h*1664525 + 1013904223
		b[i] = byte(h >> 24)
	}
	return b
}

// writeFile writes a model whose tensors hold content.
func writeFile(t *testing.T, path string, kv []KV, tensors []TensorInfo) {
	t.Helper()
	file, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	w, err := NewWriter(file, kv, tensors)
	if err != nil {
		t.Fatal(err)
	}
	for i, info := range w.Tensors() {
		if _, err := w.Tensor(i).Write(content(info)); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Finish(); err != nil {
		t.Fatal(err)
	}
}

// allKinds is metadata with every type and tensors with every element type.
func allKinds(t testing.TB) ([]KV, []TensorInfo) {
	t.Helper()
	nested, err := NestedArray([]Value{ValueOf([]int16{-1, 2}), ValueOf([]int16{})})
	if err != nil {
		t.Fatal(err)
	}
	kv := []KV{
		{KeyArchitecture, ValueOf("test")},
		{KeyQuantizationVersion, ValueOf(QuantizationVersion)},
		{"s.u8", ValueOf(uint8(255))},
		{"s.i8", ValueOf(int8(-128))},
		{"s.u16", ValueOf(uint16(65535))},
		{"s.i16", ValueOf(int16(-32768))},
		{"s.u32", ValueOf(uint32(math.MaxUint32))},
		{"s.i32", ValueOf(int32(math.MinInt32))},
		{"s.u64", ValueOf(uint64(math.MaxUint64))},
		{"s.i64", ValueOf(int64(math.MinInt64))},
		{"s.f32", ValueOf(float32(0.1))},
		{"s.f64", ValueOf(0.1)},
		{"s.true", ValueOf(true)},
		{"s.false", ValueOf(false)},
		{"s.str", ValueOf("grün 河 \x00 \"q\"\n")},
		{"a.u8", ValueOf([]uint8{0, 255})},
		{"a.i8", ValueOf([]int8{-128, 127})},
		{"a.u16", ValueOf([]uint16{1, 65535})},
		{"a.i16", ValueOf([]int16{-32768, 1})},
		{"a.u32", ValueOf([]uint32{1, math.MaxUint32})},
		{"a.i32", ValueOf([]int32{math.MinInt32, 1})},
		{"a.u64", ValueOf([]uint64{1, math.MaxUint64})},
		{"a.i64", ValueOf([]int64{math.MinInt64, 1})},
		{"a.f32", ValueOf([]float32{0.1, -0.25, 3e38})},
		{"a.f64", ValueOf([]float64{0.1, 1e300})},
		{"a.bool", ValueOf([]bool{true, false, true})},
		{"a.str", ValueOf([]string{"", "a", "ü 河", "line\nbreak"})},
		{"a.none", ValueOf([]string{})},
		{"a.nested", nested},
	}
	var tensors []TensorInfo
	for i := range typeInfos {
		if _, known := GGMLType(i).info(); !known {
			continue
		}
		length := typeInfos[i].length
		tensors = append(tensors, TensorInfo{
			Name:  "t." + typeInfos[i].name,
			Type:  GGMLType(i),
			DType: GGMLType(i).DType(),
			Shape: format.Shape{3, 2 * length},
		})
	}
	tensors = append(tensors,
		TensorInfo{Name: "d1", DType: quant.F32, Shape: format.Shape{5}},
		TensorInfo{Name: "d4", Type: GGMLF16, DType: quant.F16, Shape: format.Shape{2, 1, 3, 5}},
	)
	return kv, tensors
}

func TestWriteRead(t *testing.T) {
	for _, alignment := range []uint32{32, 8, 16, 64, 4096} {
		kv, tensors := allKinds(t)
		if alignment != DefaultAlignment {
			kv = append(kv, KV{KeyAlignment, ValueOf(alignment)})
		}
		path := filepath.Join(t.TempDir(), "model.gguf")
		writeFile(t, path, kv, tensors)
		f, err := Open(path)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		if f.Version() != Version || f.Alignment() != int64(alignment) {
			t.Errorf("version %d, alignment %d", f.Version(), f.Alignment())
		}
		if !reflect.DeepEqual(f.KV(), kv) {
			t.Errorf("the metadata read is\n%v\nexpected\n%v", f.KV(), kv)
		}
		for i, want := range tensors {
			got := f.Tensors()[i]
			if got.Name != want.Name || got.DType != want.DType || !got.Shape.Equal(want.Shape) || got.Offset%int64(alignment) != 0 {
				t.Errorf("tensor %+v, expected %+v", got, want)
			}
			if !bytes.Equal(f.Data(got), content(got)) {
				t.Errorf("tensor %s: other data", got.Name)
			}
		}
	}
}

// The order in which tensors are written, the size of the pieces and
// concurrency leave no trace in the file.
func TestDeterministic(t *testing.T) {
	kv, tensors := allKinds(t)
	path := filepath.Join(t.TempDir(), "a.gguf")
	writeFile(t, path, kv, tensors)
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}

	path = filepath.Join(t.TempDir(), "b.gguf")
	file, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	w, err := NewWriter(file, kv, tensors)
	if err != nil {
		t.Fatal(err)
	}
	if w.Size() != int64(len(want)) {
		t.Errorf("Size is %d, expected %d", w.Size(), len(want))
	}
	var wg sync.WaitGroup
	for i := len(tensors) - 1; i >= 0; i-- {
		wg.Go(func() {
			r := iotest.OneByteReader(bytes.NewReader(content(w.Tensors()[i])))
			if _, err := io.Copy(w.Tensor(i), r); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if err := w.Finish(); err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Error("the files differ")
	}
}

func TestNewWriterRefuses(t *testing.T) {
	good := TensorInfo{Name: "w", DType: quant.F32, Shape: format.Shape{2}}
	with := func(change func(*TensorInfo)) []TensorInfo {
		info := good
		change(&info)
		return []TensorInfo{info}
	}
	tests := []struct {
		name    string
		kv      []KV
		tensors []TensorInfo
		want    string
	}{
		{"empty key", []KV{{"", ValueOf("x")}}, nil, "key is empty"},
		{"key with a blank", []KV{{"a b", ValueOf("x")}}, nil, "ASCII"},
		{"no value", []KV{{"a", Value{}}}, nil, "no value"},
		{"key twice", []KV{{"a", ValueOf("x")}, {"a", ValueOf("x")}}, nil, "occurs twice"},
		{"alignment 48", []KV{{KeyAlignment, ValueOf(uint32(48))}}, nil, "is 48"},
		{"alignment i32", []KV{{KeyAlignment, ValueOf(int32(32))}}, nil, "has type i32"},
		{"name twice", nil, []TensorInfo{good, good}, "occurs twice"},
		{"name of 64 bytes", nil, with(func(i *TensorInfo) { i.Name = strings.Repeat("n", 64) }), "64 bytes"},
		{"no type", nil, with(func(i *TensorInfo) { i.DType = quant.Invalid }), "no element type"},
		{"unknown type", nil, with(func(i *TensorInfo) { i.DType = quant.Invalid; i.Type = 4 }), "no element type"},
		{"type that GGUF lacks", nil, with(func(i *TensorInfo) { i.DType = quant.F8E4M3 }), "no element type F8_E4M3"},
		{"5 dimensions", nil, with(func(i *TensorInfo) { i.Shape = format.Shape{1, 1, 1, 1, 1} }), "5 dimensions"},
		{"dimension 0", nil, with(func(i *TensorInfo) { i.Shape = format.Shape{2, 0} }), "below 1"},
		{"negative dimension", nil, with(func(i *TensorInfo) { i.Shape = format.Shape{-2, -2} }), "below 1"},
		{"overflow", nil, with(func(i *TensorInfo) { i.Shape = format.Shape{1 << 40, 1 << 40} }), "2^63"},
		{"row of 33", nil, with(func(i *TensorInfo) { i.DType = quant.Q8_0; i.Shape = format.Shape{33} }), "multiple of 32"},
		{"sum too large", nil, []TensorInfo{
			{Name: "a", DType: quant.I8, Shape: format.Shape{1 << 61}},
			{Name: "b", DType: quant.I8, Shape: format.Shape{1 << 61}},
			{Name: "c", DType: quant.I8, Shape: format.Shape{1 << 61}},
		}, "2^62"},
	}
	for _, test := range tests {
		var m memory
		_, err := NewWriter(&m, test.kv, test.tensors)
		if err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: %v, expected %q", test.name, err, test.want)
		}
		if len(m.b) != 0 {
			t.Errorf("%s: %d bytes were written before the refusal", test.name, len(m.b))
		}
	}
	if _, err := NestedArray([]Value{ValueOf("x")}); err == nil {
		t.Error("NestedArray of a string: no error")
	}
}

func TestTensorWriter(t *testing.T) {
	newWriter := func() (*memory, *Writer) {
		m := new(memory)
		w, err := NewWriter(m, nil, []TensorInfo{
			{Name: "a", DType: quant.I8, Shape: format.Shape{5}},
			{Name: "b", DType: quant.I8, Shape: format.Shape{32}},
		})
		if err != nil {
			t.Fatal(err)
		}
		return m, w
	}
	write := func(w io.Writer, n int) error {
		_, err := w.Write(make([]byte, n))
		return err
	}

	_, w := newWriter()
	if err := errors.Join(write(w.Tensor(0), 5), write(w.Tensor(1), 31)); err != nil {
		t.Fatal(err)
	}
	if err := w.Finish(); err == nil || !strings.Contains(err.Error(), `tensor "b": 31 bytes were written, expected 32`) {
		t.Errorf("one byte missing: %v", err)
	}
	if err := write(w.Tensor(1), 2); err == nil {
		t.Error("one byte too many: no error")
	}
	if err := write(w.Tensor(1), 1); err == nil {
		t.Error("Write after an error: no error")
	}
	if err := w.Finish(); err == nil {
		t.Error("Finish after an error: no error")
	}

	m, w := newWriter()
	if err := w.Finish(); err == nil || !strings.Contains(err.Error(), `"a"`) || !strings.Contains(err.Error(), `"b"`) {
		t.Errorf("both missing: %v", err)
	}
	if err := errors.Join(write(w.Tensor(0), 5), write(w.Tensor(0), 0), write(w.Tensor(1), 32), w.Finish()); err != nil {
		t.Error(err)
	}
	if int64(len(m.b)) != w.Size() {
		t.Errorf("%d bytes, expected %d", len(m.b), w.Size())
	}

	// A failing disk is reported by the write that met it, and by Finish.
	full := &fullDisk{limit: 64 + 40} // the header and part of the data
	w, err := NewWriter(full, nil, []TensorInfo{{Name: "a", DType: quant.I8, Shape: format.Shape{64}}})
	if err != nil {
		t.Fatal(err)
	}
	if err := write(w.Tensor(0), 64); !errors.Is(err, errFull) {
		t.Errorf("full disk: %v", err)
	}
	if err := w.Finish(); !errors.Is(err, errFull) {
		t.Errorf("Finish after a full disk: %v", err)
	}
	if _, err := NewWriter(&fullDisk{}, nil, nil); !errors.Is(err, errFull) {
		t.Errorf("header on a full disk: %v", err)
	}
}

// fullDisk fails beyond a limit.
type fullDisk struct{ limit int }

var errFull = errors.New("no space left")

func (d *fullDisk) WriteAt(b []byte, offset int64) (int, error) {
	if n := d.limit - int(offset); n < len(b) {
		return max(n, 0), errFull
	}
	return len(b), nil
}

func TestPatch(t *testing.T) {
	var m memory
	w, err := NewWriter(&m, []KV{
		{"before", ValueOf("x")},
		{KeyVerifiedMaxAbsError, ValueOf(float32(0))},
		{KeySourceSHA256, ValueOf(strings.Repeat("0", 64))},
		{"list", ValueOf([]float32{1, 2, 3})},
		{"numbers", ValueOf([]uint32{1, 2, 3})},
		{"after", ValueOf(uint8(7))},
	}, nil)
	if err != nil {
		t.Fatal(err)
	}
	sum := strings.Repeat("a1", 32)
	if err := errors.Join(w.Finish(), w.PatchFloat32(KeyVerifiedMaxAbsError, 0.5), w.PatchString(KeySourceSHA256, sum), w.PatchFloat32s("list", []float32{4, 5, 6})); err != nil {
		t.Fatal(err)
	}
	f, err := Read(bytes.NewReader(m.b), int64(len(m.b)), format.Limits{})
	if err != nil {
		t.Fatal(err)
	}
	want := []KV{{"before", ValueOf("x")}, {KeyVerifiedMaxAbsError, ValueOf(float32(0.5))}, {KeySourceSHA256, ValueOf(sum)},
		{"list", ValueOf([]float32{4, 5, 6})}, {"numbers", ValueOf([]uint32{1, 2, 3})}, {"after", ValueOf(uint8(7))}}
	if !reflect.DeepEqual(f.KV(), want) {
		t.Errorf("%v, expected %v", f.KV(), want)
	}
	for name, err := range map[string]error{
		"missing key":    w.PatchFloat32("none", 1),
		"f32 of a str":   w.PatchFloat32("before", 1),
		"str of an f32":  w.PatchString(KeyVerifiedMaxAbsError, "1234"),
		"other length":   w.PatchString("before", "xy"),
		"u8":             w.PatchFloat32("after", 1),
		"str of missing": w.PatchString("none", ""),
		"longer list":    w.PatchFloat32s("list", []float32{1, 2, 3, 4}),
		"list of u32":    w.PatchFloat32s("numbers", []float32{1, 2, 3}),
		"list of a str":  w.PatchFloat32s("before", []float32{1}),
		"missing list":   w.PatchFloat32s("none", nil),
	} {
		if err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

func TestPlanSplit(t *testing.T) {
	sizes := func(n ...int64) (tensors []TensorInfo) {
		for _, size := range n {
			tensors = append(tensors, TensorInfo{Size: size})
		}
		return tensors
	}
	tests := []struct {
		tensors []TensorInfo
		max     int64
		want    [][]int
	}{
		{nil, 100, [][]int{nil}},
		{sizes(10, 10, 10), 0, [][]int{{0, 1, 2}}},
		{sizes(10, 10, 10), 96, [][]int{{0, 1, 2}}}, // 32 bytes each with padding
		{sizes(10, 10, 10), 95, [][]int{{0, 1}, {2}}},
		{sizes(10, 10, 10), 1, [][]int{{0}, {1}, {2}}},
		{sizes(32, 320, 32, 32), 64, [][]int{{0}, {1}, {2, 3}}},
		{sizes(math.MaxInt64, math.MaxInt64, math.MaxInt64), math.MaxInt64, [][]int{{0}, {1}, {2}}},
	}
	for _, test := range tests {
		if got := PlanSplit(test.tensors, test.max); !reflect.DeepEqual(got, test.want) {
			t.Errorf("at most %d: %v, expected %v", test.max, got, test.want)
		}
	}
}

func TestSplitNames(t *testing.T) {
	if got := SplitName("dir/m", 2, 9); got != "dir/m-00003-of-00009.gguf" {
		t.Error(got)
	}
	stem, no, count, ok := ParseSplitName(filepath.Join("a-00001-of-00002", "m-00003-of-00009.gguf"))
	if !ok || stem != filepath.Join("a-00001-of-00002", "m") || no != 2 || count != 9 {
		t.Error(stem, no, count, ok)
	}
	for _, name := range []string{"m.gguf", "m-00000-of-00003.gguf", "m-00004-of-00003.gguf", "m-1-of-3.gguf", "m-00001-of-00003.bin", "m-00001-of-00003.gguf/x"} {
		if _, _, _, ok := ParseSplitName(name); ok {
			t.Errorf("%s: expected a refusal", name)
		}
	}
	for _, args := range [][3]int{{0, 0, 0}, {-1, 1, 0}, {1, 1, 0}, {0, 65536, 0}, {0, 1, -1}, {0, 1, math.MaxInt}} {
		if _, err := SplitKV(nil, args[0], args[1], args[2]); err == nil {
			t.Errorf("SplitKV of %v: no error", args)
		}
	}
	kv := []KV{{KeySplitNo, ValueOf(uint16(7))}, {"a", ValueOf("x")}, {KeyAlignment, ValueOf(uint32(64))}}
	got, err := SplitKV(kv, 1, 2, 5)
	want := []KV{{KeyAlignment, ValueOf(uint32(64))}, {KeySplitNo, ValueOf(uint16(1))}, {KeySplitCount, ValueOf(uint16(2))}, {KeySplitTensors, ValueOf(int32(5))}}
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("%v, %v, expected %v", got, err, want)
	}
	if got := WithoutSplit(kv); !reflect.DeepEqual(got, kv[1:]) {
		t.Errorf("WithoutSplit: %v", got)
	}
}
