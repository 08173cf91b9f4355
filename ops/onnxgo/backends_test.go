package onnxgo

import (
	"bytes"
	"maps"
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/gomlx/gomlx/backends"
	"github.com/gomlx/gomlx/pkg/core/dtypes"
	"github.com/gomlx/gomlx/pkg/core/tensors"

	"github.com/firstpassage/fpa/format/onnx"
	"github.com/firstpassage/fpa/ops/onnxbody"
	"github.com/firstpassage/fpa/ops/reference"
	"github.com/firstpassage/fpa/quant"
)

// others holds the backends that operators are run on beside the pure-Go one; a
// constructor skips the test where its backend is not at hand.
var others = map[string]func(t testing.TB) backends.Backend{}

// TestHalf runs the operator on queries, keys and values of half precision: on the
// pure-Go backend, which has none, in float32, and elsewhere as they are.
func TestHalf(t *testing.T) {
	all := maps.Clone(others)
	all["go"] = func(testing.TB) backends.Backend { return nil }
	for _, half := range []onnx.DataType{onnx.Float16, onnx.BFloat16} {
		b := onnx.NewGraph("main")
		q := b.Input("query", onnx.TensorOf(half, "B", "H", "T", "D"))
		weight, err := onnx.ScalarTensor("", half, 0.5)
		if err != nil {
			t.Fatal(err)
		}
		k := b.Op("Mul", q, b.Const(weight))
		field, level := b.Input("field", onnx.TensorOf(onnx.Float, "B", "H", "T")), b.Input("level", onnx.TensorOf(onnx.Float, "B", "H", "T"))
		slope := b.Input("slope", onnx.TensorOf(onnx.Float, "H"))
		out := b.Ops(2, "ai.firstpassage::FirstPassageAttention", q, k, q, field, level, slope)
		b.Output(out[0], onnx.TensorOf(half, "B", "H", "T", "D"))
		b.Output(out[1], onnx.TensorOf(half, "B", "H", "T", "D"))
		b.Output(b.Op("Cast", out[0], onnx.To(onnx.Float), onnx.As("y")), onnx.TensorOf(onnx.Float, "B", "H", "T", "D"))
		g, err := b.Graph()
		if err != nil {
			t.Fatal(err)
		}
		m := &onnx.Model{IRVersion: 8, Opsets: []onnx.Opset{{Version: 17}, {Domain: onnxbody.Domain, Version: 1}}, Graph: g}
		p, err := Convert(m)
		if err != nil {
			t.Fatal(err)
		}
		x := operands(rand.New(rand.NewPCG(5, 6)), sizes{b: 2, hq: 2, hkv: 2, hf: 2, t: 6, d: 4, dv: 4}, reference.Exclusive, 0.2)
		for i := range x.Query {
			x.Query[i] = math.Round(x.Query[i]*8) / 8 // exact in all types
		}
		x.Value = x.Query
		x.Key = make([]float64, len(x.Query))
		for i, v := range x.Query {
			x.Key[i] = v / 2
		}
		want, err := reference.Parallel(x)
		if err != nil {
			t.Fatal(err)
		}
		for name, open := range all {
			t.Run(name+" "+half.String(), func(t *testing.T) {
				s, err := NewSession(open(t), p)
				if err != nil {
					t.Fatal(err)
				}
				in := operandTensors(&x, false)
				delete(in, "key")
				delete(in, "value")
				asModel := substitute(s.backend.Capabilities().DTypes, elementTypes[half])
				if _, err := s.Run(in); asModel != dtypes.Float32 && err == nil {
					t.Error("float32 was taken for half precision")
				}
				in["query"] = halved(t, in["query"], half, asModel)
				out, err := s.Run(in)
				if err != nil {
					t.Fatal(err)
				}
				if got := out[names(m.Graph.Outputs)[1]].DType(); got != asModel {
					t.Errorf("keys come out as %v, want %v", got, asModel)
				}
				// 8 or 11 bits of each number.
				most := map[onnx.DataType]float64{onnx.Float16: 2e-3, onnx.BFloat16: 2e-2}[half]
				if d := farthest(elements(t, out["y"]), want.Output); !(d <= most) {
					t.Errorf("the output differs by %g", d)
				}
				y, err := toGorgonia(out[names(m.Graph.Outputs)[0]])
				if err != nil {
					t.Fatal(err)
				}
				z, err := fromGorgonia(y)
				if err != nil {
					t.Fatal(err)
				}
				if d := farthest(elements(t, z), elements(t, out["y"])); d != 0 {
					t.Errorf("as a tensor of Gorgonia the output differs by %g", d)
				}
			})
		}
	}
}

// halved is x in half precision, unless the backend computes in float32.
func halved(t *testing.T, x *tensors.Tensor, half onnx.DataType, asModel dtypes.DType) *tensors.Tensor {
	t.Helper()
	if asModel == dtypes.Float32 {
		return x
	}
	p := toPython(t, "", x)
	convert, err := onnx.Convert(half, p.Data, quant.F32)
	if err != nil {
		t.Fatal(err)
	}
	var raw bytes.Buffer
	if err := convert(&raw); err != nil {
		t.Fatal(err)
	}
	out, err := tensorOf(&onnx.Tensor{Type: half, Dims: p.Shape, Raw: raw.Bytes()}, asModel)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// TestOtherBackends runs one case of each operator on them, as graphs of inputs;
// compiling is what takes long there.
func TestOtherBackends(t *testing.T) {
	goldens := readGoldens(t)
	for name, open := range others {
		t.Run(name, func(t *testing.T) {
			b := open(t)
			seen := make(map[string]bool)
			for _, c := range operatorCases() {
				operator, _, _ := strings.Cut(c.name, " ")
				if seen[operator] {
					continue
				}
				seen[operator] = true
				m, given := c.model(t)
				p, err := Convert(m)
				if err != nil {
					t.Fatal(err)
				}
				s, err := NewSession(b, p)
				if err != nil {
					t.Fatal(err)
				}
				out, err := s.Run(given)
				if err != nil {
					t.Errorf("%s: %v", c.name, err)
					continue
				}
				for i, want := range goldens[c.name] {
					if d := asGolden(t, out[names(m.Graph.Outputs)[i]]).differs(want); d != "" {
						t.Errorf("%s: output %d: %s", c.name, i, d)
					}
				}
			}
		})
	}
}
