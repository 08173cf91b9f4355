package onnxbody

import (
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"path/filepath"
	"testing"

	"github.com/x448/float16"

	"github.com/firstpassage/fpa/format"
	"github.com/firstpassage/fpa/format/onnx"
	"github.com/firstpassage/fpa/ops/reference"
	"github.com/firstpassage/fpa/testmodels/onnxtest"
)

// shape is the size of a problem.
type shape struct{ b, hq, hkv, hf, t, p, d, dv int }

func (s shape) String() string {
	return fmt.Sprintf("B%d Hq%d Hkv%d Hf%d T%d P%d D%d Dv%d", s.b, s.hq, s.hkv, s.hf, s.t, s.p, s.d, s.dv)
}

// shapes are edges of the block form, then random ones: lengths around whole
// blocks, one position with and without a past, every kind of grouped heads.
func shapes(rng *rand.Rand, random int) []shape {
	list := []shape{
		{1, 1, 1, 1, 1, 0, 1, 1},
		{2, 4, 4, 4, 1, 37, 8, 8},
		{1, 6, 2, 6, BlockLen - 1, 0, 4, 3},
		{1, 6, 2, 2, BlockLen, 5, 4, 3},
		{2, 6, 2, 1, BlockLen + 1, 0, 4, 5},
		{1, 2, 1, 1, 2 * BlockLen, 0, 8, 8},
		{1, 4, 2, 4, 3*BlockLen + 7, 70, 5, 6},
	}
	for range random {
		hkv := 1 + rng.IntN(3)
		hq := hkv * (1 + rng.IntN(3))
		list = append(list, shape{
			1 + rng.IntN(3), hq, hkv, []int{hq, hkv, 1}[rng.IntN(3)],
			1 + rng.IntN([]int{3, 20, 180}[rng.IntN(3)]), rng.IntN(2) * rng.IntN(90), 1 + rng.IntN(9), 1 + rng.IntN(9),
		})
	}
	return list
}

// problem draws operands whose numbers float32, or float16 where half is set for
// queries, keys and values, holds exactly. A share of the positions is skipped,
// with NaN where nothing may look.
func problem(rng *rand.Rand, s shape, o Options, half bool, skip float64) reference.Operands {
	round := func(x float64) float64 { return float64(float32(x)) }
	normals := func(n int) []float64 {
		v := make([]float64, n)
		for i := range v {
			v[i] = round(rng.NormFloat64())
			if half {
				v[i] = float64(float16.Fromfloat32(float32(v[i])).Float32())
			}
		}
		return v
	}
	x := reference.Operands{
		Batch: s.b, QueryHeads: s.hq, KeyHeads: s.hkv, FieldHeads: s.hf, New: s.t, Past: s.p, KeyDim: s.d, ValueDim: s.dv,
		Query: normals(s.b * s.hq * s.t * s.d), Key: normals(s.b * s.hkv * s.t * s.d), Value: normals(s.b * s.hkv * s.t * s.dv),
		PastKey: normals(s.b * s.hkv * s.p * s.d), PastValue: normals(s.b * s.hkv * s.p * s.dv),
		Scale: float64(o.Scale),
	}
	if o.Interval == Inclusive {
		x.Interval = reference.Inclusive
	}
	for range s.b * s.hf {
		f, kind := 0.0, rng.IntN(3)
		for range s.t {
			f += []float64{rng.NormFloat64(), float64(rng.IntN(3) - 1), -rng.ExpFloat64()}[kind]
			field, level := round(f), round(f)
			if rng.IntN(2) == 0 {
				level = round(f + rng.NormFloat64())
			}
			if rng.Float64() < skip {
				field, level = math.NaN(), math.Inf(1)
			}
			x.Field, x.Level = append(x.Field, field), append(x.Level, level)
		}
		for range s.p {
			low, level := round(rng.NormFloat64()), round(rng.NormFloat64())
			switch {
			case rng.Float64() < skip:
				low, level = math.NaN(), math.Inf(1)
			case rng.IntN(8) == 0:
				low = math.Inf(1)
			}
			x.PastLow, x.PastLevel = append(x.PastLow, low), append(x.PastLevel, level)
		}
	}
	for range s.hf {
		x.Slope = append(x.Slope, []float64{0, 0.25, 1, 7}[rng.IntN(4)])
	}
	return x
}

// feeds are the operands as tensors, in the order of InputNames.
func feeds(x *reference.Operands, half, past bool) []onnxtest.Tensor {
	i := func(v ...int) []int64 {
		var out []int64
		for _, n := range v {
			out = append(out, int64(n))
		}
		return out
	}
	b, hq, hkv, hf, t, p, d, dv := x.Batch, x.QueryHeads, x.KeyHeads, x.FieldHeads, x.New, x.Past, x.KeyDim, x.ValueDim
	list := []onnxtest.Tensor{
		tensor(InputNames[0], x.Query, half, i(b, hq, t, d)), tensor(InputNames[1], x.Key, half, i(b, hkv, t, d)),
		tensor(InputNames[2], x.Value, half, i(b, hkv, t, dv)), tensor(InputNames[3], x.Field, false, i(b, hf, t)),
		tensor(InputNames[4], x.Level, false, i(b, hf, t)), tensor(InputNames[5], x.Slope, false, i(hf)),
		tensor(InputNames[6], x.PastKey, half, i(b, hkv, p, d)), tensor(InputNames[7], x.PastValue, half, i(b, hkv, p, dv)),
		tensor(InputNames[8], x.PastLevel, false, i(b, hf, p)), tensor(InputNames[9], x.PastLow, false, i(b, hf, p)),
	}
	if !past {
		list = list[:6]
	}
	return list
}

func tensor(name string, v []float64, half bool, shape []int64) onnxtest.Tensor {
	if !half {
		f := make([]float32, len(v))
		for i, x := range v {
			f[i] = float32(x)
		}
		return onnxtest.Float32(name, f, shape...)
	}
	x := onnxtest.Tensor{Name: name, Type: "float16", Shape: shape}
	for _, e := range v {
		x.Data = binary.LittleEndian.AppendUint16(x.Data, float16.Fromfloat32(float32(e)).Bits())
	}
	return x
}

// floats are the elements of an output.
func floats(t *testing.T, x onnxtest.Tensor) []float64 {
	if x.Type != "float16" {
		return x.Floats(t)
	}
	var v []float64
	for i := 0; i < len(x.Data); i += 2 {
		v = append(v, float64(float16.Frombits(binary.LittleEndian.Uint16(x.Data[i:])).Float32()))
	}
	return v
}

// form is a way of writing the operator.
type form struct {
	name       string
	opset      int64
	past, half bool
	o          Options
	heads      [2]int64 // query and field heads; 0: any
	named      bool     // the outputs have the operator's names
}

// write writes a model of the operator alone.
func (f form) write(t *testing.T, dir string) string {
	t.Helper()
	b := onnx.NewGraph("operator")
	elem := onnx.Float
	if f.half {
		elem = onnx.Float16
	}
	hq, hf := any("Hq"), any("Hf")
	if f.heads[0] != 0 {
		hq, hf = f.heads[0], f.heads[1]
	}
	types := []*onnx.Type{
		onnx.TensorOf(elem, "B", hq, "T", "D"), onnx.TensorOf(elem, "B", "Hkv", "T", "D"), onnx.TensorOf(elem, "B", "Hkv", "T", "Dv"),
		onnx.TensorOf(onnx.Float, "B", hf, "T"), onnx.TensorOf(onnx.Float, "B", hf, "T"), onnx.TensorOf(onnx.Float, hf),
		onnx.TensorOf(elem, "B", "Hkv", "P", "D"), onnx.TensorOf(elem, "B", "Hkv", "P", "Dv"),
		onnx.TensorOf(onnx.Float, "B", hf, "P"), onnx.TensorOf(onnx.Float, "B", hf, "P"),
	}
	var in [10]onnx.Value
	for i, name := range InputNames {
		if f.past || i < 6 {
			in[i] = b.Input(name, types[i])
		}
	}
	inputs := Inputs{in[0], in[1], in[2], in[3], in[4], in[5], in[6], in[7], in[8], in[9]}
	m := &onnx.Model{IRVersion: 8, ProducerName: "test", Opsets: []onnx.Opset{{Version: f.opset}}}
	switch {
	case f.opset >= AttentionOpset:
		m.IRVersion = 11
	case f.opset >= defaultsOpset:
		m.IRVersion = 9
	}
	var out Outputs
	var err error
	if f.named {
		f.o.Names = OutputNames
	}
	switch f.name {
	case "function":
		m.Opsets = append(m.Opsets, onnx.Opset{Domain: Domain, Version: Version})
		fn, ferr := Function(f.opset, f.past, f.o)
		if ferr != nil {
			t.Fatal(ferr)
		}
		m.Functions = []*onnx.Function{fn}
		out, err = Node(b, inputs, f.o)
	case "inline":
		out, err = Inline(b, inputs, f.o)
	case "attention":
		out, err = Attention(b, inputs, f.heads[0], f.heads[1], f.o)
	}
	if err != nil {
		t.Fatal(err)
	}
	results := []*onnx.Type{
		onnx.TensorOf(elem, "B", hq, "T", "Dv"), onnx.TensorOf(elem, "B", "Hkv", "S", "D"), onnx.TensorOf(elem, "B", "Hkv", "S", "Dv"),
		onnx.TensorOf(onnx.Float, "B", hf, "S"), onnx.TensorOf(onnx.Float, "B", hf, "S"),
	}
	for i, v := range []onnx.Value{out.Output, out.PresentKey, out.PresentValue, out.PresentLevel, out.PresentLow} {
		b.Output(v, results[i])
	}
	if m.Graph, err = b.Graph(); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "model.onnx")
	if err := onnx.WriteFile(path, m, onnx.WriteOptions{}); err != nil {
		t.Fatal(err)
	}
	return path
}

// compare runs a problem and holds the outputs against float64. The tolerance is
// that of the output.
func compare(t *testing.T, s *onnxtest.Session, f form, x reference.Operands, tolerance float64) {
	t.Helper()
	size := shape{x.Batch, x.QueryHeads, x.KeyHeads, x.FieldHeads, x.New, x.Past, x.KeyDim, x.ValueDim}
	want, err := reference.Parallel(x)
	if err != nil {
		t.Fatal(err)
	}
	got, err := s.TryRun(t, feeds(&x, f.half, f.past))
	if err != nil {
		t.Fatalf("%v: %v", size, err)
	}
	for i, w := range [][]float64{want.Output, want.PresentKey, want.PresentValue, want.PresentLevel, want.PresentLow} {
		g, allowed := floats(t, got[i]), 0.0
		if i == 0 {
			allowed = tolerance
		}
		if len(g) != len(w) {
			t.Fatalf("%v: %s has %d elements, expected %d", size, OutputNames[i], len(g), len(w))
		}
		for j := range g {
			if d := math.Abs(g[j] - w[j]); !(d <= allowed) && g[j] != w[j] {
				t.Fatalf("%v: %s[%d] is %g, expected %g", size, OutputNames[i], j, g[j], w[j])
			}
		}
	}
}

// TestForms holds every form, in ONNX Runtime, against float64.
func TestForms(t *testing.T) {
	python := onnxtest.Start(t)
	forms := []form{
		{name: "function", opset: 17, past: true},
		{name: "function", opset: 17, past: false, o: Options{Interval: Inclusive, Scale: 0.3}},
		{name: "function", opset: 17, past: true, half: true},
		{name: "function", opset: 24, past: true, o: Options{Interval: Inclusive}},
		{name: "inline", opset: 17, past: true, o: Options{Scale: 0.3}},
		{name: "inline", opset: 17, past: false},
		{name: "inline", opset: 18, past: true, half: true, o: Options{Interval: Inclusive, Convert: true}},
		{name: "function", opset: 17, past: true, named: true},
		{name: "inline", opset: 17, past: true, named: true},
		{name: "inline", opset: 17, past: false, named: true},
		{name: "attention", opset: AttentionOpset, past: true, named: true, heads: [2]int64{4, 4}},
	}
	for _, heads := range [][2]int64{{1, 1}, {4, 2}, {6, 1}, {6, 6}} {
		for _, past := range []bool{true, false} {
			forms = append(forms, form{name: "attention", opset: AttentionOpset, past: past, heads: heads, o: Options{Scale: 0.3}})
		}
		forms = append(forms, form{name: "attention", opset: AttentionOpset, past: true, heads: heads, o: Options{Interval: Inclusive}})
	}
	for n, f := range forms {
		t.Run(fmt.Sprintf("%d %s opset %d past %v half %v %v", n, f.name, f.opset, f.past, f.half, f.o), func(t *testing.T) {
			path := f.write(t, t.TempDir())
			python.Check(t, path)
			s := python.Load(t, path, onnxtest.Runtime)
			rng := rand.New(rand.NewPCG(7, uint64(n)))
			tolerance := 2e-5
			if f.half {
				tolerance = 4e-3
			}
			for _, sh := range shapes(rng, 12) {
				if f.heads[0] != 0 {
					sh.hq, sh.hf = int(f.heads[0]), int(f.heads[1])
					sh.hkv = []int{1, sh.hq}[rng.IntN(2)]
				}
				if !f.past {
					sh.p = 0
				}
				for _, skip := range []float64{0, 0.2, 1} {
					x := problem(rng, sh, f.o, f.half, skip)
					compare(t, s, f, x, tolerance)
				}
			}
		})
	}
}

// TestReferenceEvaluator holds the forms against float64 in the evaluator that
// comes with the standard.
func TestReferenceEvaluator(t *testing.T) {
	python := onnxtest.Start(t)
	for n, f := range []form{
		{name: "function", opset: 17, past: true},
		{name: "function", opset: 17, past: false, o: Options{Interval: Inclusive, Scale: 0.3}},
		{name: "inline", opset: 21, past: true},
		{name: "attention", opset: AttentionOpset, past: true, heads: [2]int64{4, 4}},
	} {
		t.Run(fmt.Sprintf("%s opset %d past %v", f.name, f.opset, f.past), func(t *testing.T) {
			s := python.Load(t, f.write(t, t.TempDir()), onnxtest.Reference)
			rng := rand.New(rand.NewPCG(8, uint64(n)))
			for _, sh := range []shape{{2, 4, 2, 4, 1, 5, 3, 4}, {1, 4, 2, 4, 17, 0, 3, 4}, {2, 4, 4, 4, BlockLen + 6, 9, 3, 4}} {
				if !f.past {
					sh.p = 0
				}
				compare(t, s, f, problem(rng, sh, f.o, f.half, 0.2), 2e-5)
			}
		})
	}
}

// TestChunks feeds one sequence in pieces, the present of each the past of the
// next, and expects the result of the whole.
func TestChunks(t *testing.T) {
	python := onnxtest.Start(t)
	f := form{name: "function", opset: 17, past: true}
	s := python.Load(t, f.write(t, t.TempDir()), onnxtest.Runtime)
	rng := rand.New(rand.NewPCG(9, 9))
	sh := shape{b: 2, hq: 4, hkv: 2, hf: 2, t: 150, d: 6, dv: 5}
	x := problem(rng, sh, f.o, false, 0.1)
	want, err := reference.Parallel(x)
	if err != nil {
		t.Fatal(err)
	}
	for _, chunk := range []int{1, 7, 64, 100} {
		in := feeds(&x, false, true)
		past := in[6:]
		for from := 0; from < sh.t; from += chunk {
			to := min(from+chunk, sh.t)
			piece := []onnxtest.Tensor{}
			for _, v := range in[:5] {
				piece = append(piece, cut(v, from, to))
			}
			out := s.Run(t, append(append(piece, in[5]), past...))
			for h := range sh.b * sh.hq {
				got := out[0].Floats(t)[h*(to-from)*sh.dv : (h+1)*(to-from)*sh.dv]
				for i, g := range got {
					if w := want.Output[(h*sh.t+from)*sh.dv+i]; !(math.Abs(g-w) <= 2e-5) {
						t.Fatalf("chunks of %d: head %d, element %d from position %d: %g, expected %g", chunk, h, i, from, g, w)
					}
				}
			}
			past = nil
			for i, v := range out[1:] {
				v.Name = InputNames[6+i]
				past = append(past, v)
			}
		}
		for i, g := range past[3].Floats(t) {
			if w := want.PresentLow[i]; g != w {
				t.Fatalf("chunks of %d: present_low[%d] is %g, expected %g", chunk, i, g, w)
			}
		}
	}
}

// cut takes positions from to to of a float32 tensor, [B, H, T] or [B, H, T, D].
func cut(x onnxtest.Tensor, from, to int) onnxtest.Tensor {
	rows, length, width := int(x.Shape[0]*x.Shape[1]), int(x.Shape[2]), 4
	shape := append([]int64{}, x.Shape...)
	shape[2] = int64(to - from)
	if len(shape) == 4 {
		width *= int(shape[3])
	}
	var data []byte
	for r := range rows {
		data = append(data, x.Data[(r*length+from)*width:(r*length+to)*width]...)
	}
	return onnxtest.Tensor{Name: x.Name, Type: x.Type, Shape: shape, Data: data}
}

// TestDefaultScale leaves the attributes of the node out: the function's
// defaults count.
func TestDefaultScale(t *testing.T) {
	python := onnxtest.Start(t)
	f := form{name: "function", opset: defaultsOpset, past: true}
	dir := t.TempDir()
	path := f.write(t, dir)
	file, err := onnx.Open(path, format.Limits{})
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	for _, n := range file.Model.Graph.Nodes {
		n.Attributes = nil
	}
	bare := filepath.Join(dir, "bare.onnx")
	if err := onnx.WriteFile(bare, file.Model, onnx.WriteOptions{}); err != nil {
		t.Fatal(err)
	}
	s := python.Load(t, bare, onnxtest.Runtime)
	rng := rand.New(rand.NewPCG(10, 10))
	compare(t, s, f, problem(rng, shape{1, 2, 2, 2, 20, 3, 4, 4}, f.o, false, 0), 2e-5)
}

// TestRefused lists what has no meaning.
func TestRefused(t *testing.T) {
	b := onnx.NewGraph("g")
	x := b.Input("x", onnx.TensorOf(onnx.Float, "a"))
	all := Inputs{x, x, x, x, x, x, x, x, x, x}
	some := all
	some.PastLow = onnx.None
	for name, err := range map[string]error{
		"interval":    second(Inline(b, all, Options{Interval: "open"})),
		"scale":       second(Node(b, all, Options{Scale: float32(math.Inf(1))})),
		"half a past": second(Inline(b, some, Options{})),
		"no query":    second(Node(b, Inputs{}, Options{})),
		"opset":       second(Function(16, true, Options{})),
		"heads":       second(Attention(b, all, 3, 2, Options{})),
		"convert":     second(Attention(b, all, 2, 2, Options{Convert: true})),
	} {
		if err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}

func second[T any](_ T, err error) error { return err }
