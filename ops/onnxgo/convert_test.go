package onnxgo

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"strings"
	"sync"
	"testing"

	"github.com/gomlx/gomlx/pkg/core/dtypes"
	gx "github.com/gomlx/gomlx/pkg/core/graph"
	"github.com/gomlx/gomlx/pkg/core/shapes"
	"github.com/gomlx/gomlx/pkg/core/tensors"

	"github.com/firstpassage/fpa/format"
	"github.com/firstpassage/fpa/format/onnx"
	"github.com/firstpassage/fpa/ops/onnxbody"
)

// built makes a model of what build adds to a graph; what it returns is the
// output.
func built(t testing.TB, build func(b *onnx.Builder) onnx.Value) *onnx.Model {
	t.Helper()
	b := onnx.NewGraph("main")
	b.Output(b.Op("Identity", build(b), onnx.As("y")), &onnx.Type{Kind: onnx.TypeTensor, Elem: onnx.Float})
	g, err := b.Graph()
	if err != nil {
		t.Fatal(err)
	}
	return &onnx.Model{IRVersion: 9, Opsets: []onnx.Opset{{Version: 20}, {Domain: "com.example", Version: 1}}, Graph: g}
}

// What cannot be converted or run is refused with the place and the reason.
func TestErrors(t *testing.T) {
	x := func(b *onnx.Builder) onnx.Value { return b.Input("x", onnx.TensorOf(onnx.Float, "n", 3)) }
	for _, c := range []struct {
		build func(b *onnx.Builder) onnx.Value
		want  string
	}{
		{func(b *onnx.Builder) onnx.Value { return b.Op("com.example::Bernoulli", b.Op("NonZero", x(b))) }, "operators NonZero, com.example::Bernoulli are not known"},
		{func(b *onnx.Builder) onnx.Value { return b.Op("Add", b.Input("s", onnx.TensorOf(onnx.String)), x(b)) }, `input "s": gomlx has no elements of type STRING`},
		{func(b *onnx.Builder) onnx.Value { return b.Op("Add", x(b)) }, `node "Add_0" (Add): 1 inputs, expected 2`},
		{func(b *onnx.Builder) onnx.Value { return b.Op("Add", x(b), onnx.None) }, "1 inputs, expected 2"},
		{func(b *onnx.Builder) onnx.Value { v := x(b); return b.Op("Clip", onnx.None, v) }, "input 0 is left out"},
		{func(b *onnx.Builder) onnx.Value { return b.Op("Add", x(b), b.Floats(1, 2)) }, "do not fit together"},
		{func(b *onnx.Builder) onnx.Value { return b.Op("Add", x(b), b.Int64s(1)) }, "Add"},
		{func(b *onnx.Builder) onnx.Value { return b.Op("MatMul", x(b), b.Scalar(onnx.Float, 1)) }, "expected matrices"},
		{func(b *onnx.Builder) onnx.Value { v := x(b); return b.Op("MatMul", v, v) }, "3 and 2 differ"},
		{func(b *onnx.Builder) onnx.Value {
			v := x(b)
			return b.Op("Reshape", v, b.Op("Cast", b.Op("ReduceSum", v, b.Int64s(1)), onnx.To(onnx.Int64)))
		}, "known only when the model runs"},
		{func(b *onnx.Builder) onnx.Value { return b.Op("Reshape", x(b), b.Int64s(5)) }, "6 elements"},
		{func(b *onnx.Builder) onnx.Value { return b.Op("Reshape", x(b), b.Int64s(math.MaxInt64, 4)) }, "the new shape is"},
		{func(b *onnx.Builder) onnx.Value { return b.Op("Expand", x(b), b.Int64s(1<<40, 1, 1)) }, "no possible shape"},
		{func(b *onnx.Builder) onnx.Value { return b.Op("Expand", x(b), b.Int64s(1<<20, 1<<20, 1)) }, "no possible shape"},
		{func(b *onnx.Builder) onnx.Value { return b.Op("Expand", x(b), b.Int64s(1<<30, 1, 1)) }, "no possible shape"},
		{func(b *onnx.Builder) onnx.Value { return b.Op("ConstantOfShape", b.Int64s(-1)) }, "no possible shape"},
		{func(b *onnx.Builder) onnx.Value { return b.Op("Tile", x(b), b.Int64s(math.MaxInt64, 1)) }, "repeats"},
		{func(b *onnx.Builder) onnx.Value { return b.Op("Pad", x(b), b.Int64s(0, math.MaxInt64, 0, 0)) }, "pads"},
		{func(b *onnx.Builder) onnx.Value { return b.Op("Transpose", x(b), onnx.IntsAttr("perm", 0, 0)) }, "axis 0 occurs twice"},
		{func(b *onnx.Builder) onnx.Value { return b.Op("Transpose", x(b), onnx.IntsAttr("perm", 0)) }, "transposed by"},
		{func(b *onnx.Builder) onnx.Value { return b.Op("Transpose", x(b), onnx.IntAttr("perm", 0)) }, `attribute "perm" is of kind INT`},
		{func(b *onnx.Builder) onnx.Value { return b.Op("Softmax", x(b), onnx.IntAttr("axis", 2)) }, "axis 2, expected one of 2 dimensions"},
		{func(b *onnx.Builder) onnx.Value { return b.Op("Gather", x(b), b.Int64s(2)) }, "index 2, expected one of 2"},
		{func(b *onnx.Builder) onnx.Value { return b.Op("Cast", x(b), onnx.To(onnx.String)) }, "STRING"},
		{func(b *onnx.Builder) onnx.Value {
			return b.Op("Range", b.Scalar(onnx.Float, 0), b.Scalar(onnx.Float, 1), b.Scalar(onnx.Float, 0))
		}, "a range"},
		{func(b *onnx.Builder) onnx.Value { v := x(b); return b.Op("Conv", v, v) }, "a convolution of"},
		{func(b *onnx.Builder) onnx.Value {
			body := b.Sub("body")
			body.Input("n", onnx.TensorOf(onnx.Int64))
			more := body.Input("more", onnx.TensorOf(onnx.Bool))
			v := body.Input("v", onnx.TensorOf(onnx.Float))
			body.Output(body.Op("Identity", more), nil)
			body.Output(body.Op("Neg", v), nil)
			return b.Op("Loop", onnx.None, b.Scalar(onnx.Bool, 1), x(b), onnx.Body("body", body))
		}, "unrolled"},
		{func(b *onnx.Builder) onnx.Value {
			// 2^62 iterations of nothing.
			outer, v := b.Sub("outer"), x(b)
			outer.Input("n", onnx.TensorOf(onnx.Int64))
			outer.Output(outer.Input("more", onnx.TensorOf(onnx.Bool)), nil)
			state := outer.Input("state", onnx.TensorOf(onnx.Float))
			inner := outer.Sub("inner")
			inner.Input("n2", onnx.TensorOf(onnx.Int64))
			inner.Output(inner.Input("more2", onnx.TensorOf(onnx.Bool)), nil)
			inner.Output(inner.Input("state2", onnx.TensorOf(onnx.Float)), nil)
			outer.Output(outer.Op("Loop", outer.Scalar(onnx.Int64, 1<<31), onnx.None, state, onnx.Body("body", inner)), nil)
			return b.Op("Loop", b.Scalar(onnx.Int64, 1<<31), onnx.None, v, onnx.Body("body", outer))
		}, "unrolled"},
		{func(b *onnx.Builder) onnx.Value {
			return b.Op("Split", b.Op("Expand", b.Op("Slice", x(b), b.Int64s(0, 0), b.Int64s(1, 1)), b.Int64s(1<<10, 1<<20)), onnx.IntAttr("num_outputs", 1<<20), onnx.IntAttr("axis", 1))
		}, "is split into"},
		{func(b *onnx.Builder) onnx.Value { return b.Op("MaxPool", x(b), onnx.IntsAttr("kernel_shape", 1)) }, "a pool of"},
		{func(b *onnx.Builder) onnx.Value { return b.Op("Div", b.Int64s(1), b.Int64s(0)) }, "divide by zero"},
	} {
		err := func() error {
			b := onnx.NewGraph("main")
			v := c.build(b)
			b.Output(b.Op("Identity", v, onnx.As("y")), onnx.TensorOf(onnx.Float))
			g, err := b.Graph()
			if err != nil {
				return err
			}
			p, err := Convert(&onnx.Model{IRVersion: 9, Opsets: []onnx.Opset{{Version: 20}, {Domain: "com.example", Version: 1}}, Graph: g})
			if err != nil {
				return err
			}
			s, err := NewSession(nil, p)
			if err != nil {
				return err
			}
			in := make(map[string]*tensors.Tensor)
			for _, name := range p.Inputs() {
				in[name] = wave(2, 3)
			}
			_, err = s.Run(in)
			return err
		}()
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%v, want an error with %q", err, c.want)
		}
	}
	if _, err := Convert(nil); err == nil {
		t.Error("a nil model was converted")
	}
	_, err := Convert(built(t, func(b *onnx.Builder) onnx.Value { return b.Op("NonZero", x(b)) }))
	if _, ok := errors.AsType[*format.UnsupportedError](err); !ok {
		t.Errorf("%T, want a format.UnsupportedError", err)
	}
}

// A function of the model is expanded, with its attributes and their defaults,
// inside another one too.
func TestFunctions(t *testing.T) {
	f := onnx.NewFunction("com.example", "Scaled")
	x := f.Input("x", nil)
	f.Default(onnx.FloatAttr("scale", 3))
	f.Output(f.Op("Mul", x, f.Op("Constant", onnx.Ref("value_float", "scale", onnx.KindFloat))), nil)
	scaled, err := f.Function(onnx.Opset{Version: 20})
	if err != nil {
		t.Fatal(err)
	}
	f = onnx.NewFunction("com.example", "Twice")
	x = f.Input("x", nil)
	f.Attribute("by")
	f.Output(f.Op("com.example::Scaled", f.Op("com.example::Scaled", x, onnx.Ref("scale", "by", onnx.KindFloat))), nil)
	twice, err := f.Function(onnx.Opset{Version: 20}, onnx.Opset{Domain: "com.example", Version: 1})
	if err != nil {
		t.Fatal(err)
	}
	m := built(t, func(b *onnx.Builder) onnx.Value {
		return b.Op("com.example::Twice", b.Input("x", onnx.TensorOf(onnx.Float)), onnx.FloatAttr("by", 5))
	})
	m.Functions = []*onnx.Function{scaled, twice}
	got := elements(t, runModel(t, m, map[string]*tensors.Tensor{"x": tensors.FromScalar(float32(2))})["y"])
	if fmt.Sprint(got) != "[30]" {
		t.Errorf("%v, want 2 * 5 * 3", got)
	}
}

// Values without elements pass through, and do not reach the backend.
func TestEmpty(t *testing.T) {
	m := built(t, func(b *onnx.Builder) onnx.Value {
		x := b.Input("x", onnx.TensorOf(onnx.Float, "n", 3))
		y := b.Op("Concat", b.Op("Relu", b.Op("Add", x, b.Floats(1, 2, 3))), b.Op("Constant", onnx.TensorAttr("value", onnx.FloatTensor("", []float32{7, 8, 9}, 1, 3))), onnx.IntAttr("axis", 0))
		y = b.Op("Add", y, b.Op("ReduceSum", b.Op("Transpose", x), b.Int64s(1), onnx.IntAttr("keepdims", 0)))
		// A product over nothing is 0.
		return b.Op("Add", y, b.Op("MatMul", b.Op("Transpose", x), x))
	})
	m.Graph.Nodes[len(m.Graph.Nodes)-2].Name = "last"
	out := runModel(t, m, map[string]*tensors.Tensor{"x": tensors.FromShape(shapes.Make(dtypes.Float32, 0, 3))})
	if got := out["y"]; fmt.Sprint(elements(t, got)) != "[7 8 9 7 8 9 7 8 9]" {
		t.Errorf("%v", got)
	}
	m = built(t, func(b *onnx.Builder) onnx.Value { return b.Op("Relu", b.Input("x", onnx.TensorOf(onnx.Float, "n", 3))) })
	out = runModel(t, m, map[string]*tensors.Tensor{"x": tensors.FromShape(shapes.Make(dtypes.Float32, 0, 3))})
	if got := out["y"].Shape(); got.String() != "(Float32)[0 3]" {
		t.Errorf("%v, want an output without elements", got)
	}
}

// A session is for several goroutines, and keeps the graphs of several shapes.
func TestSessionConcurrent(t *testing.T) {
	m := built(t, func(b *onnx.Builder) onnx.Value {
		x := b.Input("x", onnx.TensorOf(onnx.Float, "n", 3))
		return b.Op("ReduceSum", b.Op("MatMul", x, b.Initializer(onnx.FloatTensor("w", []float32{1, 2, 3}, 3, 1))), onnx.IntAttr("keepdims", 0))
	})
	p, err := Convert(m)
	if err != nil {
		t.Fatal(err)
	}
	s, err := NewSession(nil, p)
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			for k := range 3 * maxCompiled {
				n := 1 + (i+k)%(maxCompiled+3)
				out, err := s.Run(map[string]*tensors.Tensor{"x": tensors.FromScalarAndDimensions(float32(1), n, 3)})
				if err != nil {
					t.Error(err)
					return
				}
				if got := tensors.ToScalar[float32](out["y"]); got != float32(6*n) {
					t.Errorf("%v, want %d", got, 6*n)
				}
			}
		})
	}
	wg.Wait()
	if len(s.compiled) > maxCompiled {
		t.Errorf("%d graphs are kept, at most %d are to be", len(s.compiled), maxCompiled)
	}
}

// In a graph of one's own a model has gradients with respect to its inputs and
// weights, through the operator too.
func TestCallGradient(t *testing.T) {
	m := built(t, func(b *onnx.Builder) onnx.Value {
		x := b.Input("x", onnx.TensorOf(onnx.Float, 1, 1, 4, 2))
		q := b.Op("MatMul", x, b.Initializer(onnx.FloatTensor("w", []float32{1, 0.5, -0.5, 2}, 2, 2)))
		field := b.Op("Gather", q, b.Scalar(onnx.Int64, 0), onnx.IntAttr("axis", 3))
		y := b.Op("ai.firstpassage::FirstPassageAttention", q, x, x, field, field, b.Floats(1))
		return b.Op("ReduceSum", b.Op("Mul", y, y), onnx.IntAttr("keepdims", 0))
	})
	m.Opsets = append(m.Opsets, onnx.Opset{Domain: onnxbody.Domain, Version: 1})
	p, err := Convert(m)
	if err != nil {
		t.Fatal(err)
	}
	weights, err := p.Weights()
	if err != nil {
		t.Fatal(err)
	}
	b, err := folder()
	if err != nil {
		t.Fatal(err)
	}
	e, err := gx.NewExec(b, func(x, w *gx.Node) []*gx.Node {
		y := p.Call(x.Graph(), map[string]*gx.Node{"x": x}, map[string]*gx.Node{"w": w})["y"]
		return append([]*gx.Node{y}, gx.Gradient(y, x, w)...)
	})
	if err != nil {
		t.Fatal(err)
	}
	at := func(x, w []float64) []float64 {
		t.Helper()
		out, err := e.Exec(floats32(x, 1, 1, 4, 2), floats32(w, 2, 2))
		if err != nil {
			t.Fatal(err)
		}
		return append(elements(t, out[0]), append(elements(t, out[1]), elements(t, out[2])...)...)
	}
	x, w := []float64{0.5, -1, 1.25, 0.75, -0.5, 1, 0.25, -0.75}, elements(t, weights["w"])
	all := append(append([]float64{}, x...), w...)
	gradient := at(x, w)[1:]
	const h = 1e-2
	for i := range all {
		moved := append([]float64{}, all...)
		moved[i] += h
		up := at(moved[:8], moved[8:])[0]
		moved[i] -= 2 * h
		down := at(moved[:8], moved[8:])[0]
		if d := math.Abs((up-down)/(2*h) - gradient[i]); !(d <= 5e-3*max(1, math.Abs(gradient[i]))) {
			t.Errorf("derivative %d is %g, differences give %g", i, gradient[i], (up-down)/(2*h))
		}
	}
	// An error of the model is the executor's.
	if _, err := gx.ExecOnce(b, func(x *gx.Node) *gx.Node { return p.Call(x.Graph(), map[string]*gx.Node{"z": x}, nil)["y"] }, wave(1, 1, 4, 2)); err == nil || !strings.Contains(err.Error(), `onnxgo: input "x" is missing`) {
		t.Errorf("%v", err)
	}
	if _, err := gx.ExecOnce(b, func(x *gx.Node) *gx.Node {
		return p.Call(x.Graph(), map[string]*gx.Node{"x": x}, map[string]*gx.Node{"w": x})["y"]
	}, wave(1, 1, 4, 2)); err == nil || !strings.Contains(err.Error(), `weight "w" is`) {
		t.Errorf("%v", err)
	}
}

// FuzzConvert converts any file, builds the graph for inputs of small shapes, and
// expects values or errors.
func FuzzConvert(f *testing.F) {
	add := func(m *onnx.Model) {
		var data bytes.Buffer
		if err := onnx.Encode(&data, m); err != nil {
			f.Fatal(err)
		}
		f.Add(data.Bytes())
	}
	for _, c := range operatorCases() {
		m, _ := c.model(f)
		add(m)
	}
	for _, form := range []string{"node", "function", "inline"} {
		add(firstPassageModel(f, form, true, onnxbody.Options{}))
	}
	limits := format.Limits{HeaderBytes: 1 << 20, Tensors: 1 << 10}
	f.Fuzz(func(t *testing.T, data []byte) {
		m, err := onnx.Parse(data, limits)
		if err != nil {
			return
		}
		p, err := Convert(m)
		if err != nil {
			return
		}
		backend, err := folder()
		if err != nil {
			t.Fatal(err)
		}
		g := gx.NewGraph(backend, "fuzz")
		defer g.Finalize()
		in := make(map[string]*gx.Node)
		for i, v := range p.inputs {
			shape := shapes.Make(dtypes.Float32)
			if v.Type != nil {
				if shape.DType, err = typeOf(v.Type.Elem); err != nil || !backend.Capabilities().DTypes[shape.DType] {
					return
				}
				for k, d := range v.Type.Dims {
					size := int(d.Size)
					if d.Param != "" || size < 0 || size > 4 {
						size = 1 + (i+k)%3
					}
					shape.Dimensions = append(shape.Dimensions, size)
				}
			}
			in[v.Name] = gx.Parameter(g, v.Name, shape)
		}
		defer func() {
			if r := recover(); r != nil {
				err, ok := r.(error)
				if !ok || !strings.HasPrefix(err.Error(), "onnxgo: ") {
					panic(r)
				}
			}
		}()
		p.Call(g, in, nil)
	})
}
