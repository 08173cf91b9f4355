package onnxgo

import (
	"bytes"
	"math"
	"testing"

	gx "github.com/gomlx/gomlx/pkg/core/graph"
	"github.com/gomlx/gomlx/pkg/core/tensors"
	"github.com/gomlx/gomlx/pkg/ml/context"
	gomlxonnx "github.com/gomlx/onnx-gomlx/onnx"
	goonnx "github.com/owulveryck/onnx-go"

	"github.com/firstpassage/fpa/format"
	"github.com/firstpassage/fpa/format/onnx"
)

// TestTogether reads one file by this module's format/onnx, onnx-go and
// onnx-gomlx in one program, whose protocol buffer schemas have the same names:
// with two stock bindings it would not start. All three give the same numbers.
func TestTogether(t *testing.T) {
	b := onnx.NewGraph("main")
	x := b.Input("x", onnx.TensorOf(onnx.Float, 2, 6))
	w := func(name string, dims ...int) onnx.Value {
		x := toPython(t, name, wave(dims...))
		return b.Initializer(&onnx.Tensor{Name: name, Type: onnx.Float, Dims: x.Shape, Raw: x.Data})
	}
	h := b.Op("Gemm", x, w("w1", 6, 8), w("b1", 8))
	h = b.Op("Add", b.Op("Tanh", h), b.Op("Relu", h))
	h = b.Op("MatMul", h, w("w2", 8, 4))
	h = b.Op("Div", h, b.Op("Sqrt", b.Op("ReduceMean", b.Op("Mul", h, h), onnx.IntsAttr("axes", -1))))
	y := b.Op("Softmax", b.Op("Transpose", h, onnx.IntsAttr("perm", 1, 0)), onnx.IntAttr("axis", 1), onnx.As("y"))
	b.Output(y, onnx.TensorOf(onnx.Float, 4, 2))
	g, err := b.Graph()
	if err != nil {
		t.Fatal(err)
	}
	var data bytes.Buffer
	if err := onnx.Encode(&data, &onnx.Model{IRVersion: 8, Opsets: []onnx.Opset{{Version: 17}}, Graph: g}); err != nil {
		t.Fatal(err)
	}
	in := wave(2, 6)

	m, err := onnx.Parse(data.Bytes(), format.Limits{})
	if err != nil {
		t.Fatal(err)
	}
	want := elements(t, runModel(t, m, map[string]*tensors.Tensor{"x": in})["y"])
	sum := 0.0
	for _, v := range want {
		sum += v
	}
	if math.Abs(sum-4) > 1e-5 {
		t.Errorf("the rows of a softmax sum to %v", sum)
	}

	backend := New(nil)
	decoded := goonnx.NewModel(backend)
	if err := decoded.UnmarshalBinary(data.Bytes()); err != nil {
		t.Fatal(err)
	}
	out, err := runDecoded(m, decoded, backend, map[string]*tensors.Tensor{"x": in})
	if err != nil {
		t.Fatal(err)
	}
	got, err := fromGorgonia(out[0])
	if err != nil {
		t.Fatal(err)
	}
	if d := farthest(elements(t, got), want); d != 0 {
		t.Errorf("onnx-go: an output differs by %g", d)
	}

	other, err := gomlxonnx.Parse(data.Bytes())
	if err != nil {
		t.Fatal(err)
	}
	ctx := context.New()
	if err := other.VariablesToContext(ctx); err != nil {
		t.Fatal(err)
	}
	go1, err := folder()
	if err != nil {
		t.Fatal(err)
	}
	result, err := context.ExecOnce(go1, ctx, func(ctx *context.Context, x *gx.Node) *gx.Node {
		return other.CallGraph(ctx, x.Graph(), map[string]*gx.Node{"x": x})[0]
	}, in)
	if err != nil {
		t.Fatal(err)
	}
	if d := farthest(elements(t, result), want); !(d <= 1e-6) {
		t.Errorf("onnx-gomlx: an output differs by %g", d)
	}
}
