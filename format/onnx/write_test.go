package onnx

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/firstpassage/fpa/format"
	"github.com/firstpassage/fpa/quant"
)

// withTensors is a model of these initializers.
func withTensors(tensors ...*Tensor) *Model {
	return &Model{IRVersion: 8, Opsets: []Opset{{Version: 17}}, Graph: &Graph{Name: "g", Initializers: tensors}}
}

// zeros is a source of n bytes in small pieces.
func zeros(n int64) func(io.Writer) error {
	return func(w io.Writer) error {
		buf := make([]byte, 1<<16)
		for n := n; n > 0; {
			k, err := w.Write(buf[:min(n, int64(len(buf)))])
			if err != nil {
				return err
			}
			n -= int64(k)
		}
		return nil
	}
}

// TestStreaming writes 256 MiB, which must not pass through memory at once.
func TestStreaming(t *testing.T) {
	const size = 256 << 20
	m := withTensors(&Tensor{Name: "w", Type: Float16, Dims: []int64{size / 2}, Source: zeros(size)})
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	var n countingWriter
	if err := Encode(&n, m); err != nil {
		t.Fatal(err)
	}
	runtime.ReadMemStats(&after)
	if n < size || n > size+1000 {
		t.Errorf("%d bytes written", n)
	}
	if got := after.TotalAlloc - before.TotalAlloc; got > 1<<20 {
		t.Errorf("%d bytes allocated to write %d", got, n)
	}
}

type countingWriter int64

func (c *countingWriter) Write(b []byte) (int, error) {
	*c += countingWriter(len(b))
	return len(b), nil
}

// TestExternalLayout checks where data go: from which size, aligned, in order,
// with zeros between, the same bytes every time.
func TestExternalLayout(t *testing.T) {
	tensor := func(name string, n int) *Tensor {
		return &Tensor{Name: name, Type: Uint8, Dims: []int64{int64(n)}, Raw: bytes.Repeat([]byte(name[:1]), n)}
	}
	nested := &Graph{Name: "body", Initializers: []*Tensor{tensor("nested", 2000)}, Outputs: []*ValueInfo{{Name: "nested"}}}
	m := withTensors(tensor("a", 5000), tensor("small", externalMin-1), tensor("b", externalMin), tensor("c", 0))
	m.Graph.Nodes = []*Node{{OpType: "If", Inputs: []string{"a"}, Outputs: []string{"y"}, Attributes: []*Attribute{{Name: "then_branch", Kind: KindGraph, Value: nested}}}}
	dir := t.TempDir()
	path := filepath.Join(dir, "m.onnx")
	if err := WriteFile(path, m, WriteOptions{External: ExternalAlways}); err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(DataPath(path))
	if err != nil {
		t.Fatal(err)
	}
	want := slices.Concat(bytes.Repeat([]byte("a"), 5000), make([]byte, 8192-5000), bytes.Repeat([]byte("b"), externalMin), make([]byte, 4096-externalMin), bytes.Repeat([]byte("n"), 2000))
	if !bytes.Equal(data, want) {
		t.Errorf("the data file has %d bytes and not those expected (%d)", len(data), len(want))
	}
	f, err := Open(path, format.Limits{})
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for name, offset := range map[string]int64{"a": 0, "b": 8192, "small": -1, "c": -1} {
		e := f.Model.Graph.Initializer(name).External
		if (e == nil) != (offset < 0) || e != nil && (e.Offset != offset || e.Location != "m.onnx.data") {
			t.Errorf("%s: %+v, expected offset %d", name, e, offset)
		}
	}
	if got := parsed(t, dumpModel(f.Model)); !reflect.DeepEqual(got, parsed(t, dumpModel(m))) {
		t.Error("the model differs after writing and reading")
	}

	// Again, from what was read, over the files that it is mapped from.
	model, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if runtime.GOOS == "windows" {
		return // a mapped file cannot be replaced there
	}
	if err := WriteFile(path, f.Model, WriteOptions{External: ExternalAlways, Force: true}); err != nil {
		t.Fatal(err)
	}
	model2, _ := os.ReadFile(path)
	data2, _ := os.ReadFile(DataPath(path))
	if !bytes.Equal(model, model2) || !bytes.Equal(data, data2) {
		t.Error("the files differ when they are written again")
	}
}

func TestExternalChoice(t *testing.T) {
	big := func(n int64) *Model {
		return withTensors(&Tensor{Name: "w", Type: Float, Dims: []int64{n / 4}, Source: zeros(n)})
	}
	for _, tt := range []struct {
		size  int64
		mode  ExternalData
		count int
	}{
		{externalAbove, ExternalAuto, 0},
		{externalAbove + 4, ExternalAuto, 1},
		{externalAbove + 4, ExternalNever, 0},
		{1 << 40, ExternalAuto, 1},
		{externalMin, ExternalAlways, 1},
		{externalMin - 4, ExternalAlways, 0},
	} {
		places, size, err := placeExternal(big(tt.size), "d", tt.mode)
		if err != nil || len(places) != tt.count || size != int64(tt.count)*tt.size {
			t.Errorf("%d bytes, mode %d: %d places, %d bytes, %v", tt.size, tt.mode, len(places), size, err)
		}
	}

	dir := t.TempDir()
	err := WriteFile(filepath.Join(dir, "m.onnx"), big(1<<31), WriteOptions{External: ExternalNever})
	if err == nil || !strings.Contains(err.Error(), "file of their own") {
		t.Errorf("more than 2 GiB inside: %v", err)
	}
	if err := Encode(io.Discard, big(1<<31)); err == nil || !strings.Contains(err.Error(), "external data") {
		t.Errorf("more than 2 GiB inside: %v", err)
	}
	noFiles(t, dir)
}

// noFiles fails when the folder has any.
func noFiles(t *testing.T, dir string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) != 0 {
		t.Errorf("left behind: %v %v", entries, err)
	}
}

// TestNothingHalfWritten: a failure leaves no file, and files that exist stay.
func TestNothingHalfWritten(t *testing.T) {
	broken := errors.New("the checkpoint is gone")
	sources := map[string]func(io.Writer) error{
		"is gone":                func(w io.Writer) error { _, _ = w.Write(make([]byte, 100)); return broken },
		"wrote 4095 bytes":       zeros(4095),
		"1 bytes more than":      zeros(4097),
		"61440 bytes more than ": func(w io.Writer) error { _, _ = w.Write(make([]byte, 1<<16)); return nil },
	}
	for want, source := range sources {
		for _, mode := range []ExternalData{ExternalNever, ExternalAlways} {
			dir := t.TempDir()
			m := withTensors(&Tensor{Name: "w", Type: Uint8, Dims: []int64{4096}, Source: source})
			err := WriteFile(filepath.Join(dir, "m.onnx"), m, WriteOptions{External: mode})
			if err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), `tensor "w"`) {
				t.Errorf("%v, expected an error with %q", err, want)
			}
			noFiles(t, dir)
		}
	}

	for _, taken := range []string{"m.onnx", "m.onnx.data"} {
		dir := t.TempDir()
		path := filepath.Join(dir, "m.onnx")
		old := filepath.Join(dir, taken)
		if err := os.WriteFile(old, []byte("old"), 0o600); err != nil {
			t.Fatal(err)
		}
		m := withTensors(&Tensor{Name: "w", Type: Uint8, Dims: []int64{4096}, Source: zeros(4096)})
		if err := WriteFile(path, m, WriteOptions{External: ExternalAlways}); !errors.Is(err, fs.ErrExist) {
			t.Errorf("%s exists: %v", taken, err)
		}
		entries, _ := os.ReadDir(dir)
		if got, _ := os.ReadFile(old); string(got) != "old" || len(entries) != 1 {
			t.Errorf("%s exists: now %q, %v", taken, got, entries)
		}
		if err := WriteFile(path, m, WriteOptions{External: ExternalAlways, Force: true}); err != nil {
			t.Error(err)
		}
	}
}

func TestWriteRefuses(t *testing.T) {
	good := func() *Tensor { return &Tensor{Name: "w", Type: Float, Dims: []int64{1}, Raw: make([]byte, 4)} }
	node := func(a *Attribute) *Model {
		m := withTensors(good())
		m.Graph.Nodes = []*Node{{OpType: "Op", Inputs: []string{"w"}, Outputs: []string{"y"}, Attributes: []*Attribute{a}}}
		return m
	}
	change := func(f func(*Tensor)) *Model {
		x := good()
		f(x)
		return withTensors(x)
	}
	for want, m := range map[string]*Model{
		"5 bytes of data":    change(func(x *Tensor) { x.Raw = make([]byte, 5) }),
		"negative":           change(func(x *Tensor) { x.Dims = []int64{-1} }),
		"no data":            change(func(x *Tensor) { x.Raw = nil }),
		"both Raw":           change(func(x *Tensor) { x.Source = zeros(4) }),
		"element type":       change(func(x *Tensor) { x.Type = 77 }),
		"strings in":         change(func(x *Tensor) { x.Strings = []string{"a"} }),
		"0 strings":          change(func(x *Tensor) { x.Type = String }),
		"in Strings alone":   change(func(x *Tensor) { x.Type, x.Strings = String, []string{"a"} }),
		"not UTF-8":          change(func(x *Tensor) { x.Doc = "\xff" }),
		"kind INT":           node(&Attribute{Name: "a", Kind: KindInt, Value: 1}),
		"kind FLOAT":         node(&Attribute{Name: "a", Kind: KindFloat}),
		"a type of kind 3":   node(&Attribute{Name: "a", Kind: KindType, Value: &Type{Kind: 3}}),
		`attribute "tensor"`: node(TensorAttr("tensor", &Tensor{Type: Float, Raw: make([]byte, 3)})),
	} {
		if err := Encode(io.Discard, m); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, expected an error with %q", err, want)
		}
	}
	path := filepath.Join(t.TempDir(), "m")
	if err := WriteFile(path, &Model{}, WriteOptions{}); err == nil || !strings.Contains(err.Error(), path) {
		t.Errorf("an empty model: %v, expected an error with the path", err)
	}
}

func TestDataTypes(t *testing.T) {
	for d := Undefined; d < 40; d++ {
		q, ok := d.Quant()
		back, known := DataTypeOf(q)
		if ok != known || ok && back != d {
			t.Errorf("%s: %s and back %s", d, q, back)
		}
		if !d.Valid() || d == String {
			if _, err := d.Bytes(1); err == nil {
				t.Errorf("%s has a size", d)
			}
			continue
		}
		// A whole number of blocks takes the same bytes in both packages.
		if size, err := d.Bytes(64); ok {
			want, _ := q.Bytes(64)
			if err != nil || size != want {
				t.Errorf("%s: 64 elements take %d bytes, in package quant %d", d, size, want)
			}
		}
		for _, n := range []int64{-1, math.MaxInt64} {
			if _, err := d.Bytes(n); n < 0 && err == nil || n > 0 && d.bits() > 8 && err == nil {
				t.Errorf("%s: %d elements have a size", d, n)
			}
		}
	}
	for n, want := range map[int64]int64{0: 0, 1: 1, 2: 1, 3: 2} {
		if got, err := Int4.Bytes(n); got != want || err != nil {
			t.Errorf("%d elements of INT4: %d bytes, %v", n, got, err)
		}
	}
}

func (d DataType) bits() int64 { return dataTypes[d].bits }

func TestScalarTensor(t *testing.T) {
	for _, tt := range []struct {
		t    DataType
		v    float64
		want []byte // nil for an error
	}{
		{Float, -1.5, []byte{0, 0, 0xc0, 0xbf}},
		{Float, math.Inf(1), []byte{0, 0, 0x80, 0x7f}},
		{Double, 1, binary.LittleEndian.AppendUint64(nil, math.Float64bits(1))},
		{Float16, 1, []byte{0, 0x3c}},
		{BFloat16, 1, []byte{0x80, 0x3f}},
		{Int64, -2, []byte{0xfe, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff}},
		{Int8, -128, []byte{0x80}},
		{Uint8, 255, []byte{255}},
		{Bool, 1, []byte{1}},
		{Int32, 7, []byte{7, 0, 0, 0}},
		{Bool, 2, nil},
		{Uint8, 256, nil},
		{Uint32, -1, nil},
		{Int64, 0.5, nil},
		{Int64, 1 << 60, nil},
		{Int64, math.NaN(), nil},
		{String, 1, nil},
		{Int4, 1, nil},
	} {
		got, err := ScalarTensor("s", tt.t, tt.v)
		if (err != nil) != (tt.want == nil) || err == nil && !bytes.Equal(got.Raw, tt.want) {
			t.Errorf("%v as %s: %v, %v, expected % x", tt.v, tt.t, got, err, tt.want)
		}
	}
}

// TestConvert compares the pieces with a conversion in one go.
func TestConvert(t *testing.T) {
	const n = 3*convertElements + 96
	values := make([]float32, n)
	for i := range values {
		values[i] = float32(i%701)/64 - 5
	}
	for _, from := range []quant.DType{quant.F32, quant.F16, quant.BF16, quant.Q8_0, quant.Q4_0} {
		size, err := from.Bytes(n)
		if err != nil {
			t.Fatal(err)
		}
		src := make([]byte, size)
		if err := quant.Encode(src, from, values); err != nil {
			t.Fatal(err)
		}
		for _, to := range []DataType{Float, Float16, BFloat16} {
			source, err := Convert(to, src, from)
			if err != nil {
				t.Fatal(err)
			}
			q, _ := to.Quant()
			want := make([]byte, n*q.BlockBytes())
			if err := quant.Convert(want, q, src, from, n); err != nil {
				t.Fatal(err)
			}
			x := &Tensor{Name: "w", Type: to, Dims: []int64{n}, Source: source}
			for range 2 { // a source may be asked again
				if got, err := x.Data(); err != nil || !bytes.Equal(got, want) {
					t.Errorf("%s to %s: other bytes, %v", from, to, err)
				}
			}
		}
	}
	for _, tt := range []struct {
		to   DataType
		from quant.DType
		size int
	}{{Int4, quant.F32, 4}, {Complex128, quant.F32, 4}, {Float, quant.Invalid, 4}, {Float16, quant.F32, 5}, {Float, quant.Q8_0, 33}} {
		if _, err := Convert(tt.to, make([]byte, tt.size), tt.from); err == nil {
			t.Errorf("%s to %s, %d bytes: no error", tt.from, tt.to, tt.size)
		}
	}
}

func TestTensorAccess(t *testing.T) {
	if v, err := Int64Tensor("x", []int64{1, -2, 3, 4}, 2, 2).Int64s(); err != nil || !slices.Equal(v, []int64{1, -2, 3, 4}) {
		t.Errorf("%v, %v", v, err)
	}
	if v, err := (&Tensor{Type: Int32, Dims: []int64{2}, Raw: []byte{1, 0, 0, 0, 0xff, 0xff, 0xff, 0xff}}).Int64s(); err != nil || !slices.Equal(v, []int64{1, -1}) {
		t.Errorf("%v, %v", v, err)
	}
	if v, err := FloatTensor("x", []float32{1, 2.5}).Float32s(); err != nil || !slices.Equal(v, []float32{1, 2.5}) {
		t.Errorf("%v, %v", v, err)
	}
	for name, x := range map[string]*Tensor{
		"strings":        {Type: String, Dims: []int64{1}, Strings: []string{"a"}},
		"short":          {Type: Float, Dims: []int64{2}, Raw: make([]byte, 4)},
		"no data":        {Type: Float, Dims: []int64{2}},
		"not opened":     {Type: Float, Dims: []int64{2}, External: &External{Location: "w", Length: -1}},
		"negative":       {Type: Float, Dims: []int64{-2}, Raw: make([]byte, 8)},
		"complex":        {Type: Complex128, Dims: []int64{1}, Raw: make([]byte, 16)},
		"half, for ints": {Type: Float16, Dims: []int64{1}, Raw: make([]byte, 3)},
	} {
		if v, err := x.Float32s(); err == nil {
			t.Errorf("%s: %v", name, v)
		}
		if v, err := x.Int64s(); err == nil {
			t.Errorf("%s: %v", name, v)
		}
	}
}

func TestModelLookups(t *testing.T) {
	f := &Function{Domain: "ai.onnx", Name: "F"}
	m := &Model{Opsets: []Opset{{Domain: "ai.onnx", Version: 17}, {Domain: "d", Version: 3}}, Metadata: []Prop{{Key: "k", Value: "v"}}, Functions: []*Function{{Domain: "d", Name: "F"}, f}}
	if m.Called(&Node{OpType: "F"}) != f || m.Called(&Node{OpType: "F", Overload: "o"}) != nil || m.Called(&Node{OpType: "F", Domain: "e"}) != nil {
		t.Error("a node calls another function")
	}
	for domain, want := range map[string]int64{"": 17, "ai.onnx": 17, "d": 3, "e": 0} {
		if got := m.OpsetVersion(domain); got != want {
			t.Errorf("opset of %q: %d, expected %d", domain, got, want)
		}
	}
	if v, ok := m.Property("k"); v != "v" || !ok {
		t.Errorf("%q, %v", v, ok)
	}
	if v, ok := m.Property("l"); v != "" || ok {
		t.Errorf("%q, %v", v, ok)
	}
	n := &Node{Attributes: []*Attribute{IntAttr("a", 1)}}
	if n.Attribute("a") != n.Attributes[0] || n.Attribute("b") != nil {
		t.Error("another attribute")
	}
	if s := AttributeKind(99).String() + KindTypes.String(); s != "AttributeKind(99)TYPE_PROTOS" {
		t.Error(s)
	}
}
