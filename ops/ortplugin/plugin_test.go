package main

import (
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/firstpassage/fpa/format/onnx"
	"github.com/firstpassage/fpa/ops/attention"
	"github.com/firstpassage/fpa/ops/onnxbody"
	"github.com/firstpassage/fpa/ops/reference"
	"github.com/firstpassage/fpa/quant"
	"github.com/firstpassage/fpa/testmodels/onnxtest"
)

// model is a model of the operator alone.
type model struct {
	half, past bool
	outputs    int // the first so many; 0: all
	function   bool
	options    onnxbody.Options
	attributes []*onnx.Attribute // of the node, beside scale and interval
	types      []onnx.DataType   // of the inputs, instead of the right ones
}

// write writes the model to a file.
func (m model) write(t *testing.T) string {
	t.Helper()
	b := onnx.NewGraph("operator")
	elem := onnx.Float
	if m.half {
		elem = onnx.Float16
	}
	n := len(inputs)
	if !m.past {
		n = required
	}
	var in [len(inputs)]onnx.Value
	for i, x := range inputs[:n] {
		typ := elem
		if slices.Contains(x.dims, "Hf") {
			typ = onnx.Float
		}
		if m.types != nil {
			typ = m.types[i]
		}
		var dims []any
		for _, d := range x.dims {
			dims = append(dims, d)
		}
		in[i] = b.Input(x.name, onnx.TensorOf(typ, dims...))
	}
	m.options.Names = onnxbody.OutputNames
	out, err := onnxbody.Node(b, onnxbody.Inputs{
		Query: in[0], Key: in[1], Value: in[2], Field: in[3], Level: in[4], Slope: in[5],
		PastKey: in[6], PastValue: in[7], PastLevel: in[8], PastLow: in[9],
	}, m.options)
	if err != nil {
		t.Fatal(err)
	}
	types := []*onnx.Type{
		onnx.TensorOf(elem, "B", "Hq", "T", "Dv"), onnx.TensorOf(elem, "B", "Hkv", "S", "D"), onnx.TensorOf(elem, "B", "Hkv", "S", "Dv"),
		onnx.TensorOf(onnx.Float, "B", "Hf", "S"), onnx.TensorOf(onnx.Float, "B", "Hf", "S"),
	}
	values := []onnx.Value{out.Output, out.PresentKey, out.PresentValue, out.PresentLevel, out.PresentLow}
	if m.outputs > 0 {
		values = values[:m.outputs]
	}
	for i, v := range values {
		b.Output(v, types[i])
	}
	file := &onnx.Model{
		IRVersion: 8, ProducerName: "test",
		Opsets: []onnx.Opset{{Version: 17}, {Domain: onnxbody.Domain, Version: onnxbody.Version}},
	}
	if m.function {
		f, err := onnxbody.Function(17, m.past, m.options)
		if err != nil {
			t.Fatal(err)
		}
		file.Functions = []*onnx.Function{f}
	}
	if file.Graph, err = b.Graph(); err != nil {
		t.Fatal(err)
	}
	node := file.Graph.Nodes[len(file.Graph.Nodes)-1]
	for len(node.Outputs) > len(values) {
		node.Outputs = node.Outputs[:len(node.Outputs)-1]
	}
	for _, a := range m.attributes {
		node.Attributes = slices.DeleteFunc(node.Attributes, func(b *onnx.Attribute) bool { return a.Name == b.Name })
	}
	node.Attributes = append(node.Attributes, m.attributes...)
	path := filepath.Join(t.TempDir(), "model.onnx")
	if err := onnx.WriteFile(path, file, onnx.WriteOptions{}); err != nil {
		t.Fatal(err)
	}
	return path
}

// draw makes the inputs of a call, and the same for package reference. Levels lie at
// and above the field, and a share of the positions is skipped, with NaN where nothing
// may look.
func draw(r *rand.Rand, m model, s attention.Shape, skip float64) ([]onnxtest.Tensor, reference.Operands) {
	w := reference.Operands{
		Batch: s.Batch, QueryHeads: s.QueryHeads, KeyHeads: s.KeyHeads, FieldHeads: s.FieldHeads,
		New: s.New, Past: s.Past, KeyDim: s.KeyDim, ValueDim: s.ValueDim, Scale: float64(m.options.Scale),
	}
	if m.options.Interval == onnxbody.Inclusive {
		w.Interval = reference.Inclusive
	}
	size := map[string]int{
		"B": s.Batch, "Hq": s.QueryHeads, "Hkv": s.KeyHeads, "Hf": s.FieldHeads,
		"T": s.New, "P": s.Past, "D": s.KeyDim, "Dv": s.ValueDim,
	}
	skipped := map[string][]bool{}
	for _, length := range []string{"T", "P"} {
		for range size[length] {
			skipped[length] = append(skipped[length], r.Float64() < skip)
		}
	}
	var list []onnxtest.Tensor
	field := map[string][]float32{}
	for i, to := range []*[]float64{
		&w.Query, &w.Key, &w.Value, &w.Field, &w.Level, &w.Slope, &w.PastKey, &w.PastValue, &w.PastLevel, &w.PastLow,
	} {
		x := &inputs[i]
		n, shape := 1, []int64(nil)
		for _, d := range x.dims {
			n *= size[d]
			shape = append(shape, int64(size[d]))
		}
		v := make([]float32, n)
		for j := range v {
			v[j] = float32(r.NormFloat64())
		}
		switch x.name {
		case "slope":
			for j := range v {
				v[j] = []float32{0, 0.5, 1, 4}[r.IntN(4)]
			}
		case "field", "past_level":
			for j := range v {
				if j%shapeLast(shape) > 0 {
					v[j] += v[j-1]
				}
			}
			field[x.name] = v
		case "level":
			for j := range v {
				v[j] = field["field"][j] + max(0, v[j])
			}
		case "past_low":
			for j := range v {
				v[j] = field["past_level"][j] - max(0, v[j]) - max(0, -v[j])*20
			}
		}
		if len(x.dims) > 1 && x.name != "query" {
			rest := 1
			if len(x.dims) == 4 {
				rest = int(shape[3])
			}
			for j := range v {
				if at := j / rest % int(shape[2]); skipped[x.dims[2]][at] {
					v[j] = float32(math.NaN())
					if x.name == "level" || x.name == "past_level" {
						v[j] = float32(math.Inf(1))
					}
				}
			}
		}
		tensor := onnxtest.Float32(x.name, v, shape...)
		if m.half && !slices.Contains(x.dims, "Hf") {
			tensor = half(x.name, v, shape)
		}
		*to = floats(tensor)
		if m.past || i < required {
			list = append(list, tensor)
		}
	}
	return list, w
}

// shapeLast is the last dimension, at least 1.
func shapeLast(shape []int64) int { return max(1, int(shape[len(shape)-1])) }

func half(name string, v []float32, shape []int64) onnxtest.Tensor {
	x := onnxtest.Tensor{Name: name, Type: "float16", Shape: shape, Data: make([]byte, 2*len(v))}
	if err := quant.Encode(x.Data, quant.F16, v); err != nil {
		panic(err)
	}
	return x
}

// floats are the elements of a tensor.
func floats(x onnxtest.Tensor) []float64 {
	typ, width := quant.F32, 4
	if x.Type == "float16" {
		typ, width = quant.F16, 2
	}
	narrow := make([]float32, len(x.Data)/width)
	if err := quant.Decode(narrow, typ, x.Data); err != nil {
		panic(err)
	}
	wide := make([]float64, len(narrow))
	for i, v := range narrow {
		wide[i] = float64(v)
	}
	return wide
}

// compare holds the outputs of a call against float64.
func compare(t *testing.T, m model, got []onnxtest.Tensor, w *reference.Operands) {
	t.Helper()
	want, err := reference.Parallel(*w)
	if err != nil {
		t.Fatal(err)
	}
	unit := 0.0
	if m.half {
		unit = 0x1p-11
	}
	for i, g := range got {
		x := [][]float64{want.Output, want.PresentKey, want.PresentValue, want.PresentLevel, want.PresentLow}[i]
		y := floats(g)
		if len(x) != len(y) {
			t.Fatalf("%s has %d elements, expected %d", onnxbody.OutputNames[i], len(y), len(x))
		}
		for j := range y {
			allowed := 0.0
			if i == 0 {
				allowed = 1e-4 + unit*math.Abs(x[j])
			}
			if !(math.Abs(y[j]-x[j]) <= allowed) && y[j] != x[j] && !(math.IsNaN(x[j]) && math.IsNaN(y[j])) {
				t.Fatalf("%s[%d] is %g, expected %g", onnxbody.OutputNames[i], j, y[j], x[j])
			}
		}
	}
}

// TestOnnxRuntime holds the plugin in ONNX Runtime, called from Python, against
// float64.
func TestOnnxRuntime(t *testing.T) { random(t, onnxtest.Start(t, onnxtest.Plugin(t))) }

// TestAddressSanitizer is TestOnnxRuntime with a plugin that watches its own use of
// memory, assembly left out. A fault ends the Python process.
func TestAddressSanitizer(t *testing.T) {
	if os.Getenv("FPA_LONG_TESTS") != "1" {
		t.Skip("long: set FPA_LONG_TESTS=1")
	}
	plugin, preload := onnxtest.Plugin(t, "-asan"), []string(nil)
	// C++'s library, too, which the sanitizer must find when it begins.
	for _, name := range []string{"libasan.so", "libstdc++.so.6"} {
		out, err := exec.Command("gcc", "-print-file-name="+name).Output()
		if err != nil {
			t.Skipf("no gcc that knows where %s is: %v", name, err)
		}
		preload = append(preload, strings.TrimSpace(string(out)))
	}
	t.Setenv("LD_PRELOAD", strings.Join(preload, " "))
	t.Setenv("ASAN_OPTIONS", "detect_leaks=0") // of Python
	random(t, onnxtest.Start(t, plugin))
}

// random runs random calls.
func random(t *testing.T, engine *onnxtest.Python) {
	for n, m := range []model{
		{past: true},
		{past: true, half: true},
		{past: false, options: onnxbody.Options{Interval: onnxbody.Inclusive, Scale: 0.3}},
		{past: false, half: true, outputs: 1},
		{past: true, function: true, options: onnxbody.Options{Interval: onnxbody.Inclusive}},
		{past: true, outputs: 3},
	} {
		t.Run(fmt.Sprintf("%d %+v", n, m), func(t *testing.T) {
			s := engine.Load(t, m.write(t), onnxtest.Runtime)
			r := rand.New(rand.NewPCG(1, uint64(n)))
			for range 60 {
				pick := func(n ...int) int { return n[r.IntN(len(n))] }
				x := attention.Shape{
					Batch: pick(0, 1, 2, 3), KeyHeads: 1 + r.IntN(3), New: pick(0, 1, 2, 5, 63, 64, 65, 130),
					KeyDim: pick(1, 7, 16, 33), ValueDim: pick(1, 8, 19),
				}
				if m.past {
					x.Past = pick(0, 1, 13, 64, 200)
				}
				x.QueryHeads = x.KeyHeads * (1 + r.IntN(3))
				x.FieldHeads = pick(x.QueryHeads, x.KeyHeads, 1)
				in, w := draw(r, m, x, []float64{0, 0.1, 1}[r.IntN(3)])
				out, err := s.TryRun(t, in)
				if err != nil {
					t.Fatalf("%+v: %v", x, err)
				}
				compare(t, m, out, &w)
			}
		})
	}
}

// TestDropping runs a sequence in pieces, the first and third by the plugin with keys
// dropped, the second and fourth by the function body of standard operators, which
// drops none: each goes on from the other's slots. The result is that of float64
// without dropping.
func TestDropping(t *testing.T) {
	const positions, piece, heads, d = 400, 100, 4, 8
	for _, halfType := range []bool{false, true} {
		m := model{past: true, half: halfType, function: true, attributes: []*onnx.Attribute{
			onnx.StringAttr("cache", "bounded"), onnx.FloatAttr("cache_eps", 1e-4), onnx.FloatsAttr("logit_bound", 4, 4, 4, 4),
		}}
		path := m.write(t)
		drops := onnxtest.Start(t, onnxtest.Plugin(t)).Load(t, path, onnxtest.Runtime)
		keeps := onnxtest.Start(t).Load(t, path, onnxtest.Runtime)

		r := rand.New(rand.NewPCG(2, 2))
		in, w := draw(r, m, attention.Shape{Batch: 2, QueryHeads: heads, KeyHeads: 2, FieldHeads: heads, New: positions, KeyDim: d, ValueDim: d}, 0)
		w.Scale = 0
		for _, x := range []*[]float64{&w.Query, &w.Key} { // logits below 4 in absolute value
			for i := range *x {
				(*x)[i] = max(-1.1, min(1.1, (*x)[i]))
			}
		}
		for i := range w.Field { // falling by half at every position
			w.Field[i] = -float64(i%positions) / 2
			w.Level[i] = w.Field[i]
		}
		for i := range w.Slope {
			w.Slope[i] = 1
		}
		for i, x := range [][]float64{w.Query, w.Key, w.Value, w.Field, w.Level, w.Slope} {
			narrow := make([]float32, len(x))
			for j := range x {
				narrow[j] = float32(x[j])
			}
			shape := in[i].Shape
			if in[i] = onnxtest.Float32(in[i].Name, narrow, shape...); halfType && i < 3 {
				in[i] = half(in[i].Name, narrow, shape)
				copy(x, floats(in[i]))
			}
		}
		want, err := reference.Parallel(w)
		if err != nil {
			t.Fatal(err)
		}
		past, slots := in[required:], []int64(nil)
		for n := range positions / piece {
			s := drops
			if n%2 == 1 {
				s = keeps
			}
			var feed []onnxtest.Tensor
			for _, x := range in[:5] {
				feed = append(feed, cut(x, n*piece, (n+1)*piece))
			}
			out := s.Run(t, append(append(feed, in[5]), past...))
			got := floats(out[0])
			for h := range 2 * heads {
				for i := range piece * d {
					g, w := got[h*piece*d+i], want.Output[(h*positions+n*piece)*d+i]
					if !(math.Abs(g-w) <= 2e-3*(1+math.Abs(w))) {
						t.Fatalf("half %v, piece %d, head %d, element %d: %g, expected %g", halfType, n, h, i, g, w)
					}
				}
			}
			past = nil
			for i, x := range out[1:] {
				x.Name = inputs[required+i].name
				past = append(past, x)
			}
			slots = append(slots, past[0].Shape[2])
		}
		// A key is dead when the field has fallen by 8 + ln(2^20/1e-4) = 31.1, 63 positions on.
		if want := []int64{63, 163, 63, 163}; !slices.Equal(slots, want) {
			t.Errorf("half %v: %d slots after the pieces, expected %d", halfType, slots, want)
		}
	}
}

// cut takes positions from..to of a tensor [B, H, T] or [B, H, T, D].
func cut(x onnxtest.Tensor, from, to int) onnxtest.Tensor {
	shape := slices.Clone(x.Shape)
	n := int(shape[2])
	row := len(x.Data) / int(shape[0]*shape[1]) / n
	shape[2] = int64(to - from)
	y := onnxtest.Tensor{Name: x.Name, Type: x.Type, Shape: shape}
	for at := 0; at < len(x.Data); at += n * row {
		y.Data = append(y.Data, x.Data[at+from*row:at+to*row]...)
	}
	return y
}

// TestStatus: what does not fit is an error in Python, and the session goes on.
func TestStatus(t *testing.T) {
	engine := onnxtest.Start(t, onnxtest.Plugin(t))
	m := model{past: true}
	s := engine.Load(t, m.write(t), onnxtest.Runtime)
	good := attention.Shape{Batch: 2, QueryHeads: 4, KeyHeads: 2, FieldHeads: 4, New: 3, Past: 5, KeyDim: 8, ValueDim: 6}
	r := rand.New(rand.NewPCG(3, 3))
	for i, x := range inputs {
		for axis := range x.dims {
			in, w := draw(r, m, good, 0)
			for _, n := range []int64{0, 1 << 40} { // of no elements, so that sizes can be anything
				shape := slices.Clone(in[i].Shape)
				shape[axis] = n
				if n > 0 {
					shape[(axis+1)%len(shape)] = 0
				}
				bad := slices.Clone(in)
				bad[i] = onnxtest.Tensor{Name: x.name, Type: "float32", Shape: shape}
				if len(shape) == 1 && n > 0 {
					continue
				}
				if _, err := s.TryRun(t, bad); err == nil || !strings.Contains(err.Error(), "FirstPassageAttention: ") {
					t.Errorf("%s of shape %d: error %v, expected one of the operator", x.name, shape, err)
				}
			}
			out, err := s.TryRun(t, in)
			if err != nil {
				t.Fatalf("after an error: %v", err)
			}
			compare(t, m, out, &w)
		}
	}
	in, _ := draw(r, m, good, 0)
	in[5] = onnxtest.Float32("slope", []float32{1, 1, -1, 1}, 4)
	if _, err := s.TryRun(t, in); err == nil || !strings.Contains(err.Error(), "slope[2] is -1") {
		t.Errorf("a negative slope: %v", err)
	}
}

// TestRefusedModels: nodes that the plugin cannot run are errors when the model is
// loaded.
func TestRefusedModels(t *testing.T) {
	engine := onnxtest.Start(t, onnxtest.Plugin(t))
	float, double := onnx.Float, onnx.Double
	for _, tt := range []struct {
		name string
		m    model
		err  string // a part of it
	}{
		{"scale of another type", model{attributes: []*onnx.Attribute{onnx.IntAttr("scale", 1)}}, "scale has a wrong type, expected a float"},
		{"eps of another type", model{attributes: []*onnx.Attribute{onnx.StringAttr("cache_eps", "1e-3")}}, "cache_eps has a wrong type"},
		{"cache of another type", model{attributes: []*onnx.Attribute{onnx.FloatAttr("cache", 1)}}, "cache has a wrong type"},
		{"a cache that is not known", model{attributes: []*onnx.Attribute{onnx.StringAttr("cache", strings.Repeat("x", 100))}}, "cache is"},
		{"no bounds", model{attributes: []*onnx.Attribute{onnx.StringAttr("cache", "exact")}}, "logit_bound"},
		{"bounds of another type", model{attributes: []*onnx.Attribute{onnx.StringAttr("cache", "exact"), onnx.FloatAttr("logit_bound", 1)}}, "logit_bound"},
		{"doubles", model{types: []onnx.DataType{double, double, double, float, float, float}}, "double"},
		{"a field in double", model{types: []onnx.DataType{float, float, float, double, double, float}}, "double"},
		{"mixed types", model{types: []onnx.DataType{float, onnx.Float16, float, float, float, float}}, "no kernel def matches"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			_, err := engine.TryLoad(t, tt.m.write(t), onnxtest.Runtime)
			if err == nil || !strings.Contains(err.Error(), tt.err) {
				t.Errorf("error %v, expected one with %q", err, tt.err)
			}
		})
	}
}

// TestThreads runs testdata/threads.py: sessions and threads side by side, sessions
// that come and go, memory that stays.
func TestThreads(t *testing.T) {
	onnxtest.Start(t) // or skip
	drops := model{past: true, attributes: []*onnx.Attribute{
		onnx.StringAttr("cache", "exact"), onnx.FloatsAttr("logit_bound", 1, 1, 1, 1),
	}}
	cmd := exec.Command(python(), filepath.Join("testdata", "threads.py"), onnxtest.Plugin(t),
		model{past: true}.write(t), model{past: true, half: true}.write(t), drops.write(t))
	out, err := cmd.CombinedOutput()
	t.Logf("%s", out)
	if err != nil {
		t.Fatal(err)
	}
}

func python() string {
	if p := os.Getenv("FPA_PYTHON"); p != "" {
		return p
	}
	return "python3"
}

// TestC loads the plugin from C, with the library of ONNX Runtime that the Python
// package has.
func TestC(t *testing.T) {
	onnxtest.Start(t) // or skip
	out, err := exec.Command(python(), "-c", "import os, onnxruntime; print(os.path.dirname(onnxruntime.__file__))").Output()
	if err != nil {
		t.Fatal(err)
	}
	found, err := filepath.Glob(filepath.Join(strings.TrimSpace(string(out)), "capi", "libonnxruntime.so.*"))
	if err != nil || len(found) == 0 {
		t.Skip("the Python package onnxruntime has no libonnxruntime.so here")
	}
	program := compile(t, "load.c", "-ldl")
	text, err := exec.Command(program, found[0], onnxtest.Plugin(t), model{}.write(t)).CombinedOutput()
	t.Logf("%s", text)
	if err != nil {
		t.Fatal(err)
	}
	if want := "key has shape [1 1 1 3], expected [B, Hkv, T, D] with D = 2 as in query"; !strings.Contains(string(text), want) {
		t.Errorf("no error with %q", want)
	}
}
