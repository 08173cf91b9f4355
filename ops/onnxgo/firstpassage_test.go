package onnxgo

import (
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/gomlx/gomlx/pkg/core/tensors"

	"github.com/firstpassage/fpa/format/onnx"
	"github.com/firstpassage/fpa/ops/onnxbody"
	"github.com/firstpassage/fpa/ops/reference"
)

// sizes are those of a call of the operator.
type sizes struct{ b, hq, hkv, hf, t, p, d, dv int }

// operands draws a call: walks as fields, a share of positions and slots skipped.
func operands(rng *rand.Rand, s sizes, interval reference.Interval, skip float64) reference.Operands {
	normals := func(n int) []float64 {
		v := make([]float64, n)
		for i := range v {
			v[i] = float64(float32(rng.NormFloat64()))
		}
		return v
	}
	x := reference.Operands{
		Batch: s.b, QueryHeads: s.hq, KeyHeads: s.hkv, FieldHeads: s.hf, New: s.t, Past: s.p, KeyDim: s.d, ValueDim: s.dv,
		Query: normals(s.b * s.hq * s.t * s.d), Key: normals(s.b * s.hkv * s.t * s.d), Value: normals(s.b * s.hkv * s.t * s.dv),
		PastKey: normals(s.b * s.hkv * s.p * s.d), PastValue: normals(s.b * s.hkv * s.p * s.dv),
		PastLevel: normals(s.b * s.hf * s.p), PastLow: normals(s.b * s.hf * s.p),
		Level: normals(s.b * s.hf * s.t), Field: normals(s.b * s.hf * s.t), Interval: interval,
	}
	for i := range x.Field {
		if i%s.t > 0 {
			x.Field[i] = float64(float32(x.Field[i] + x.Field[i-1]))
		}
		x.Level[i] = float64(float32(x.Level[i] + x.Field[i]))
	}
	for _, level := range [][]float64{x.Level, x.PastLevel} {
		for i := range level {
			if rng.Float64() < skip {
				level[i] = math.Inf(1)
			}
		}
	}
	for range s.hf {
		x.Slope = append(x.Slope, []float64{0, 0.25, 1, 7}[rng.IntN(4)])
	}
	return x
}

// firstPassageModel is a model of one call, with the operator as a node, as a
// node with a function, or as standard operators.
func firstPassageModel(t testing.TB, form string, past bool, o onnxbody.Options) *onnx.Model {
	t.Helper()
	b := onnx.NewGraph("main")
	dims := [][]any{
		{"B", "Hq", "T", "D"}, {"B", "Hkv", "T", "D"}, {"B", "Hkv", "T", "Dv"}, {"B", "Hf", "T"}, {"B", "Hf", "T"}, {"Hf"},
		{"B", "Hkv", "P", "D"}, {"B", "Hkv", "P", "Dv"}, {"B", "Hf", "P"}, {"B", "Hf", "P"},
	}
	var v [10]onnx.Value
	for i, name := range onnxbody.InputNames {
		if i < 6 || past {
			v[i] = b.Input(name, onnx.TensorOf(onnx.Float, dims[i]...))
		}
	}
	in := onnxbody.Inputs{Query: v[0], Key: v[1], Value: v[2], Field: v[3], Level: v[4], Slope: v[5], PastKey: v[6], PastValue: v[7], PastLevel: v[8], PastLow: v[9]}
	o.Names = onnxbody.OutputNames
	m := &onnx.Model{IRVersion: 8, Opsets: []onnx.Opset{{Version: 17}, {Domain: onnxbody.Domain, Version: onnxbody.Version}}}
	write := onnxbody.Node
	if form == "inline" {
		write = onnxbody.Inline
	}
	out, err := write(b, in, o)
	if err != nil {
		t.Fatal(err)
	}
	if form == "function" {
		f, err := onnxbody.Function(17, past, o)
		if err != nil {
			t.Fatal(err)
		}
		m.Functions = []*onnx.Function{f}
	}
	b.Output(out.Output, onnx.TensorOf(onnx.Float, "B", "Hq", "T", "Dv"))
	b.Output(out.PresentKey, onnx.TensorOf(onnx.Float, "B", "Hkv", "S", "D"))
	b.Output(out.PresentValue, onnx.TensorOf(onnx.Float, "B", "Hkv", "S", "Dv"))
	b.Output(out.PresentLevel, onnx.TensorOf(onnx.Float, "B", "Hf", "S"))
	b.Output(out.PresentLow, onnx.TensorOf(onnx.Float, "B", "Hf", "S"))
	if m.Graph, err = b.Graph(); err != nil {
		t.Fatal(err)
	}
	return m
}

func floats32(v []float64, dims ...int) *tensors.Tensor {
	f := make([]float32, len(v))
	for i, x := range v {
		f[i] = float32(x)
	}
	return tensors.FromFlatDataAndDimensions(f, dims...)
}

// operandTensors are the operands by the names of the inputs.
func operandTensors(x *reference.Operands, past bool) map[string]*tensors.Tensor {
	b, hq, hkv, hf, t, p, d, dv := x.Batch, x.QueryHeads, x.KeyHeads, x.FieldHeads, x.New, x.Past, x.KeyDim, x.ValueDim
	in := map[string]*tensors.Tensor{
		"query": floats32(x.Query, b, hq, t, d), "key": floats32(x.Key, b, hkv, t, d), "value": floats32(x.Value, b, hkv, t, dv),
		"field": floats32(x.Field, b, hf, t), "level": floats32(x.Level, b, hf, t), "slope": floats32(x.Slope, hf),
	}
	if past {
		in["past_key"], in["past_value"] = floats32(x.PastKey, b, hkv, p, d), floats32(x.PastValue, b, hkv, p, dv)
		in["past_level"], in["past_low"] = floats32(x.PastLevel, b, hf, p), floats32(x.PastLow, b, hf, p)
	}
	return in
}

// elements are those of a float tensor.
func elements(t testing.TB, x *tensors.Tensor) []float64 {
	t.Helper()
	var out []float64
	if x.Shape().IsZeroSize() {
		return out
	}
	err := x.ConstFlatData(func(flat any) {
		switch f := flat.(type) {
		case []float32:
			for _, v := range f {
				out = append(out, float64(v))
			}
		case []float64:
			out = append(out, f...)
		default:
			t.Fatalf("%v", x.Shape())
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// farthest is the largest difference, +Inf where infinities or lengths differ.
func farthest(got, want []float64) float64 {
	if len(got) != len(want) {
		return math.Inf(1)
	}
	worst := 0.0
	for i := range got {
		if d := math.Abs(got[i] - want[i]); got[i] != want[i] && !(d <= worst) {
			worst = max(d, 0)
			if d != d {
				return math.Inf(1)
			}
		}
	}
	return worst
}

// TestFirstPassage holds the operator against the float64 reference: as node,
// with a function beside it, and as the body in standard operators, which is
// converted like any other part of a model.
func TestFirstPassage(t *testing.T) {
	rng := rand.New(rand.NewPCG(7, 7))
	for i, s := range []sizes{
		{1, 1, 1, 1, 1, 0, 1, 1}, {2, 4, 2, 4, 9, 0, 5, 3}, {2, 4, 2, 1, 1, 7, 4, 4}, {1, 6, 2, 2, 12, 5, 3, 6},
		{2, 6, 3, 6, 30, 20, 8, 8}, {1, 2, 2, 2, 70, 3, 4, 4}, {3, 4, 1, 2, 5, 1, 2, 3},
	} {
		for _, form := range []string{"node", "function", "inline"} {
			for _, past := range []bool{true, false} {
				if !past && s.p > 0 || form == "inline" && s.t > 50 && testing.Short() {
					continue
				}
				t.Run(fmt.Sprintf("%v %s past %v", s, form, past), func(t *testing.T) {
					o := onnxbody.Options{Scale: []float32{0, 0.3}[i%2]}
					interval := reference.Exclusive
					if i%3 == 1 {
						o.Interval, interval = onnxbody.Inclusive, reference.Inclusive
					}
					x := operands(rng, s, interval, []float64{0, 0.2, 0.6}[rng.IntN(3)])
					x.Scale = float64(o.Scale)
					want, err := reference.Parallel(x)
					if err != nil {
						t.Fatal(err)
					}
					out := runModel(t, firstPassageModel(t, form, past, o), operandTensors(&x, past))
					for _, c := range []struct {
						name string
						want []float64
						most float64
					}{
						{"output", want.Output, 3e-6}, {"present_key", want.PresentKey, 0}, {"present_value", want.PresentValue, 0},
						{"present_level", want.PresentLevel, 0}, {"present_low", want.PresentLow, 0},
					} {
						if d := farthest(elements(t, out[c.name]), c.want); !(d <= c.most) {
							t.Errorf("%s differs by %g", c.name, d)
						}
					}
				})
			}
		}
	}
}

// Operands that do not fit are refused with the node and the reason.
func TestFirstPassageRefuses(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for _, c := range []struct {
		change func(in map[string]*tensors.Tensor)
		want   string
	}{
		{func(in map[string]*tensors.Tensor) { in["query"] = wave(1, 2, 4, 5) }, `node "output" (ai.firstpassage::FirstPassageAttention)`},
		{func(in map[string]*tensors.Tensor) { in["slope"] = wave(2) }, "slope is"},
		{func(in map[string]*tensors.Tensor) { in["field"] = wave(1, 1, 5) }, "want [B, Hf, T]"},
		{func(in map[string]*tensors.Tensor) { in["field"] = tensors.FromValue([][][]float64{{{1, 2, 3, 4}}}) }, "type"},
		{func(in map[string]*tensors.Tensor) { in["past_key"] = wave(1, 1, 0, 3) }, "Cache.Value"},
		{func(in map[string]*tensors.Tensor) { in["past_low"] = wave(1, 1, 1) }, "Low"},
		{func(in map[string]*tensors.Tensor) { in["level"] = wave(1, 1) }, "dimensions"},
		{func(in map[string]*tensors.Tensor) { delete(in, "past_low") }, `"past_low" is missing`},
		{func(in map[string]*tensors.Tensor) { in["more"] = wave(1) }, `no input "more"`},
		{func(in map[string]*tensors.Tensor) { in["query"] = nil }, `"query" is nil`},
	} {
		x := operands(rng, sizes{1, 2, 1, 1, 4, 2, 3, 3}, reference.Exclusive, 0)
		p, err := Convert(firstPassageModel(t, "node", true, onnxbody.Options{}))
		if err != nil {
			t.Fatal(err)
		}
		s, err := NewSession(nil, p)
		if err != nil {
			t.Fatal(err)
		}
		in := operandTensors(&x, true)
		if _, err := s.Run(in); err != nil {
			t.Fatal(err)
		}
		c.change(in)
		if _, err := s.Run(in); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%v, want an error with %q", err, c.want)
		}
	}
}
