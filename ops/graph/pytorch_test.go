package graph_test

import (
	"encoding/json"
	"fmt"
	"os"
	"testing"

	"github.com/gomlx/gomlx/pkg/core/dtypes"
	gx "github.com/gomlx/gomlx/pkg/core/graph"

	"github.com/firstpassage/fpa/ops/graph"
	"github.com/firstpassage/fpa/ops/reference"
)

// Outputs and gradients against those of the PyTorch code that trains the test
// models (testdata/pytorch.py), with and without ties in the field.
func TestPyTorch(t *testing.T) {
	data, err := os.ReadFile("testdata/pytorch.json")
	if err != nil {
		t.Fatal(err)
	}
	var cases []struct {
		Shape                                  []int // B, H, T, D
		Scale                                  float64
		Query, Key, Value, Field, Level, Slope []float64
		Weight, Output                         []float64
		Gradient                               map[string][]float64
	}
	if err := json.Unmarshal(data, &cases); err != nil {
		t.Fatal(err)
	}
	if len(cases) == 0 {
		t.Fatal("testdata/pytorch.json has no case")
	}
	worst := 0.0
	for n, c := range cases {
		h, size := c.Shape[1], c.Shape[3]
		x := reference.Operands{
			Batch: c.Shape[0], QueryHeads: h, KeyHeads: h, FieldHeads: h, New: c.Shape[2], KeyDim: size, ValueDim: size,
			Query: c.Query, Key: c.Key, Value: c.Value, Field: c.Field, Level: c.Level, Slope: c.Slope, Scale: c.Scale,
		}
		in := append(inputs(x, dtypes.Float64, dtypes.Float64), tensor(dtypes.Float64, c.Weight, c.Shape...))
		out := run(t, goBackend(t), func(in []*gx.Node) []*gx.Node {
			y := graph.Attention(in[0], in[1], in[2], in[3], in[4], in[5], options(x))
			return append([]*gx.Node{y}, gx.Gradient(gx.ReduceAllSum(gx.Mul(y, in[6])), in[:6]...)...)
		}, in...)
		worst = max(worst, near(t, fmt.Sprintf("case %d output", n), floats(t, out[0]), c.Output, 1e-13))
		for i, name := range []string{"query", "key", "value", "field", "level", "slope"} {
			worst = max(worst, near(t, fmt.Sprintf("case %d gradient of %s", n, name), floats(t, out[1+i]), c.Gradient[name], 1e-12))
		}
	}
	t.Logf("largest difference %.2g", worst)
}
