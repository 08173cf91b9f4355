package onnxgo

import (
	"bytes"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/gomlx/gomlx/pkg/core/tensors"
	goonnx "github.com/owulveryck/onnx-go"
	"gorgonia.org/tensor"

	"github.com/firstpassage/fpa/format/onnx"
	"github.com/firstpassage/fpa/ops/onnxbody"
	"github.com/firstpassage/fpa/ops/reference"
)

// unmarshal gives a model to onnx-go as its users do.
func unmarshal(t testing.TB, m *onnx.Model, b *Backend) (*goonnx.Model, error) {
	t.Helper()
	var data bytes.Buffer
	if err := onnx.Encode(&data, m); err != nil {
		t.Fatal(err)
	}
	decoded := goonnx.NewModel(b)
	return decoded, decoded.UnmarshalBinary(data.Bytes())
}

// runDecoded sets the inputs in the model's order, and runs it.
func runDecoded(m *onnx.Model, decoded *goonnx.Model, b *Backend, in map[string]*tensors.Tensor) ([]tensor.Tensor, error) {
	for i, name := range inputNames(m) {
		x, err := toGorgonia(in[name])
		if err != nil {
			return nil, err
		}
		if err := decoded.SetInput(i, x); err != nil {
			return nil, err
		}
	}
	if err := b.Run(); err != nil {
		return nil, err
	}
	return decoded.GetOutputTensors()
}

// TestBackend runs the operators through onnx-go: through Decode all, through
// onnx-go's own decoder those that it can read.
func TestBackend(t *testing.T) {
	goldens := readGoldens(t)
	// Why onnx-go alone cannot read a case.
	unread := map[string]string{
		"If known": "GRAPH not handled", "If unknown": "GRAPH not handled", "Loop": "Unable to decode data" /* a bool */, "Scan": "GRAPH not handled",
		"Reshape scalar": "No data found",
	}
	for _, c := range operatorCases() {
		t.Run(c.name, func(t *testing.T) {
			m, given := c.model(t)
			check := func(how string, decoded *goonnx.Model, b *Backend) {
				t.Helper()
				out, err := runDecoded(m, decoded, b, given)
				if err != nil {
					t.Fatalf("%s: %v", how, err)
				}
				want := goldens[c.name]
				if len(want) == 0 || len(out) != len(want) {
					t.Fatalf("%s: %d outputs, want %d", how, len(out), len(want))
				}
				for i := range want {
					if out[i] == nil {
						t.Fatalf("%s: output %d is nil", how, i)
					}
					x, err := fromGorgonia(out[i])
					if err != nil {
						t.Fatal(err)
					}
					if d := asGolden(t, x).differs(want[i]); d != "" {
						t.Errorf("%s: output %d: %s", how, i, d)
					}
				}
			}
			b := New(nil)
			decoded, err := Decode(m, b)
			if err != nil {
				t.Fatal(err)
			}
			check("Decode", decoded, b)

			b = New(nil)
			b.Opset = m.OpsetVersion("")
			decoded, err = unmarshal(t, m, b)
			if why := unread[c.name]; why != "" {
				if err == nil || !strings.Contains(err.Error(), why) {
					t.Errorf("%v, want an error with %q", err, why)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			check("UnmarshalBinary", decoded, b)
		})
	}
}

// TestBackendFirstPassage runs the operator through onnx-go, with and without
// its own decoder, twice with inputs of different lengths.
func TestBackendFirstPassage(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	for _, form := range []string{"node", "function", "inline"} {
		m := firstPassageModel(t, form, true, onnxbody.Options{})
		run := func(how string, decoded *goonnx.Model, b *Backend) {
			t.Helper()
			for _, s := range []sizes{{2, 4, 2, 4, 5, 3, 4, 3}, {2, 4, 2, 2, 7, 0, 4, 3}} {
				x := operands(rng, s, reference.Exclusive, 0.2)
				want, err := reference.Parallel(x)
				if err != nil {
					t.Fatal(err)
				}
				out, err := runDecoded(m, decoded, b, operandTensors(&x, true))
				if err != nil {
					t.Fatalf("%s, %s, %v: %v", form, how, s, err)
				}
				for i, want := range [][]float64{want.Output, want.PresentKey, want.PresentValue, want.PresentLevel, want.PresentLow} {
					y, err := fromGorgonia(out[i])
					if err != nil {
						t.Fatal(err)
					}
					if d := farthest(elements(t, y), want); !(d <= 3e-6) {
						t.Errorf("%s, %s, %v: output %d differs by %g", form, how, s, i, d)
					}
				}
			}
		}
		b := New(nil)
		decoded, err := Decode(m, b)
		if err != nil {
			t.Fatal(err)
		}
		run("Decode", decoded, b)
		if form == "inline" {
			continue // has nested graphs
		}
		b = New(nil)
		if decoded, err = unmarshal(t, m, b); err != nil {
			t.Fatal(err)
		}
		run("UnmarshalBinary", decoded, b)
	}
}

// One value may be several inputs of a node, whose edges then are between the same
// two nodes; an input that is left out has no name.
func TestBackendSameInput(t *testing.T) {
	b := onnx.NewGraph("main")
	x := b.Input("x", onnx.TensorOf(onnx.Float, 1, 1, 3, 2))
	field, slope := b.Input("field", onnx.TensorOf(onnx.Float, 1, 1, 3)), b.Input("slope", onnx.TensorOf(onnx.Float, 1))
	y := b.Op("ai.firstpassage::FirstPassageAttention", x, x, x, field, field, slope)
	z := b.Op("Clip", b.Op("Sub", b.Op("Mul", x, x), x), onnx.None, b.Scalar(onnx.Float, 1))
	b.Output(y, onnx.TensorOf(onnx.Float, 1, 1, 3, 2))
	b.Output(z, onnx.TensorOf(onnx.Float, 1, 1, 3, 2))
	g, err := b.Graph()
	if err != nil {
		t.Fatal(err)
	}
	m := &onnx.Model{IRVersion: 8, Opsets: []onnx.Opset{{Version: 17}, {Domain: onnxbody.Domain, Version: 1}}, Graph: g}
	flat := []float64{1, -1, 0.5, 2, -0.25, 1.5}
	want, err := reference.Parallel(reference.Operands{
		Batch: 1, QueryHeads: 1, KeyHeads: 1, FieldHeads: 1, New: 3, KeyDim: 2, ValueDim: 2,
		Query: flat, Key: flat, Value: flat, Field: []float64{0, 1, -1}, Level: []float64{0, 1, -1}, Slope: []float64{1},
	})
	if err != nil {
		t.Fatal(err)
	}
	in := map[string]*tensors.Tensor{"x": floats32(flat, 1, 1, 3, 2), "field": floats32([]float64{0, 1, -1}, 1, 1, 3), "slope": floats32([]float64{1}, 1)}
	backend := New(nil)
	decoded, err := unmarshal(t, m, backend)
	if err != nil {
		t.Fatal(err)
	}
	out, err := runDecoded(m, decoded, backend, in)
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range [][]float64{want.Output, {0, 1, -0.25, 1, 0.3125, 0.75}} {
		got, err := fromGorgonia(out[i])
		if err != nil {
			t.Fatal(err)
		}
		if d := farthest(elements(t, got), want); !(d <= 1e-6) {
			t.Errorf("output %d differs by %g", i, d)
		}
	}
}

// The trained model and what else fpaconv writes have nested graphs, which
// onnx-go's decoder alone refuses with an error.
func TestBackendErrors(t *testing.T) {
	mlp, _ := op("MatMul", in(wave(2, 3), wave(3, 4))).model(t)
	t.Run("unset", func(t *testing.T) {
		b := New(nil)
		decoded, err := Decode(mlp, b)
		if err != nil {
			t.Fatal(err)
		}
		x, _ := toGorgonia(wave(2, 3))
		if err := decoded.SetInput(0, x); err != nil {
			t.Fatal(err)
		}
		if err := b.Run(); err == nil || !strings.Contains(err.Error(), `input 1, "b", is not set`) {
			t.Errorf("%v", err)
		}
		wrong, _ := toGorgonia(wave(4, 4))
		if err := decoded.SetInput(1, wrong); err != nil {
			t.Fatal(err)
		}
		if err := b.Run(); err == nil || !strings.Contains(err.Error(), `input "b" has the dimensions [4 4], expected [3 4]`) {
			t.Errorf("%v", err)
		}
		if _, err := Decode(mlp, b); err == nil {
			t.Error("a backend took two models")
		}
	})
	t.Run("shapes", func(t *testing.T) {
		b := New(nil)
		decoded, err := unmarshal(t, mlp, b)
		if err != nil {
			t.Fatal(err)
		}
		out, err := runDecoded(mlp, decoded, b, map[string]*tensors.Tensor{"a": wave(2, 3), "b": wave(4, 4)})
		if err == nil || !strings.Contains(err.Error(), "3 and 4 differ") {
			t.Errorf("%v, %v", out, err)
		}
	})
	t.Run("operator", func(t *testing.T) {
		g := onnx.NewGraph("main")
		x := g.Input("x", onnx.TensorOf(onnx.Float, 1))
		g.Output(g.Op("Bernoulli", x), onnx.TensorOf(onnx.Float, 1))
		graph, err := g.Graph()
		if err != nil {
			t.Fatal(err)
		}
		m := &onnx.Model{IRVersion: 8, Opsets: []onnx.Opset{{Version: 17}}, Graph: graph}
		if _, err := Decode(m, New(nil)); err == nil || !strings.Contains(err.Error(), "Bernoulli") {
			t.Errorf("%v", err)
		}
		if _, err := unmarshal(t, m, New(nil)); err == nil || !strings.Contains(err.Error(), "Bernoulli") {
			t.Errorf("%v", err)
		}
	})
	t.Run("empty", func(t *testing.T) {
		if err := New(nil).Run(); err == nil {
			t.Error("no error")
		}
		b := New(nil)
		b.AddNode(New(nil).NewNode())
		b.AddNode(b.NewNode())
		if err := b.Run(); err == nil {
			t.Error("no error")
		}
	})
}

// Tensors of Gorgonia that are views of others are read in their order.
func TestGorgoniaViews(t *testing.T) {
	d := tensor.New(tensor.WithShape(2, 3), tensor.WithBacking([]float32{0, 1, 2, 3, 4, 5}))
	if err := d.T(); err != nil {
		t.Fatal(err)
	}
	column, err := tensor.New(tensor.WithShape(2, 3), tensor.WithBacking([]float32{0, 1, 2, 3, 4, 5})).Slice(nil, columns{1, 3})
	if err != nil {
		t.Fatal(err)
	}
	// Gorgonia takes what AsFortran is given for rows and turns it over.
	byColumn := tensor.New(tensor.WithShape(2, 3), tensor.AsFortran([]float32{0, 1, 2, 3, 4, 5}))
	for _, c := range []struct {
		t     tensor.Tensor
		shape []int
		want  []float64
	}{
		{d, []int{3, 2}, []float64{0, 3, 1, 4, 2, 5}}, {column, []int{2, 2}, []float64{1, 2, 4, 5}},
		{byColumn, []int{2, 3}, []float64{0, 1, 2, 3, 4, 5}}, {tensor.New(tensor.FromScalar(7.5)), []int{}, []float64{7.5}},
	} {
		x, err := fromGorgonia(c.t)
		if err != nil {
			t.Fatal(err)
		}
		if got := elements(t, x); !slices.Equal(got, c.want) || !slices.Equal(x.Shape().Dimensions, c.shape) {
			t.Errorf("%v %v, want %v %v", x.Shape(), got, c.shape, c.want)
		}
	}
}

// columns is a range of columns.
type columns struct{ from, to int }

func (c columns) Start() int { return c.from }
func (c columns) End() int   { return c.to }
func (c columns) Step() int  { return 1 }
