package graph_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/gomlx/gomlx/backends"
	"github.com/gomlx/gomlx/pkg/core/dtypes"
	gx "github.com/gomlx/gomlx/pkg/core/graph"
	"github.com/gomlx/gomlx/pkg/core/tensors"

	"github.com/firstpassage/fpa/ops/graph"
	"github.com/firstpassage/fpa/ops/reference"
)

// shape is the size of a random problem.
type shape struct{ b, hq, hkv, hf, t, d, dv int }

func (s shape) String() string {
	return fmt.Sprintf("B%d Hq%d Hkv%d Hf%d T%d D%d Dv%d", s.b, s.hq, s.hkv, s.hf, s.t, s.d, s.dv)
}

func normals(rng *rand.Rand, n int, scale float64) []float64 {
	x := make([]float64, n)
	for i := range x {
		// What every type in use can hold exactly.
		x[i] = math.Round(64*scale*rng.NormFloat64()) / 64
	}
	return x
}

// random draws a problem: fields of one of several characters a head (steps,
// steps on a coarse grid with many ties, plateaus, a falling walk, noise),
// levels at, above and below them, and a share of skipped positions.
func random(rng *rand.Rand, s shape, interval reference.Interval, skip float64) reference.Operands {
	x := reference.Operands{
		Batch: s.b, QueryHeads: s.hq, KeyHeads: s.hkv, FieldHeads: s.hf, New: s.t, KeyDim: s.d, ValueDim: s.dv,
		Query: normals(rng, s.b*s.hq*s.t*s.d, 1), Key: normals(rng, s.b*s.hkv*s.t*s.d, 1),
		Value: normals(rng, s.b*s.hkv*s.t*s.dv, 1), Interval: interval,
	}
	step := func(scale float64) float64 { return normals(rng, 1, scale)[0] }
	for range s.b * s.hf {
		character, levels, field := rng.IntN(5), rng.IntN(4), 0.0
		for range s.t {
			switch character {
			case 0:
				field += step(1)
			case 1:
				field += float64(rng.IntN(3) - 1)
			case 2:
				if rng.IntN(6) == 0 {
					field += step(2)
				}
			case 3:
				field -= math.Abs(step(0.25))
			case 4:
				field = step(1)
			}
			level := field
			switch levels {
			case 1:
				level += step(1)
			case 2:
				level += float64(rng.IntN(3) - 1)
			case 3:
				level = step(1)
			}
			x.Field, x.Level = append(x.Field, field), append(x.Level, level)
		}
	}
	for i := range x.Level {
		if rng.Float64() < skip {
			x.Level[i], x.Field[i] = math.Inf(1), math.NaN()
		}
	}
	for range s.hf {
		x.Slope = append(x.Slope, []float64{0, 0.25, 1, 7}[rng.IntN(4)])
	}
	return x
}

// inputs are the operands as tensors, in the order of Attention's parameters.
func inputs(x reference.Operands, dtype, fieldType dtypes.DType) []*tensors.Tensor {
	return []*tensors.Tensor{
		tensor(dtype, x.Query, x.Batch, x.QueryHeads, x.New, x.KeyDim),
		tensor(dtype, x.Key, x.Batch, x.KeyHeads, x.New, x.KeyDim),
		tensor(dtype, x.Value, x.Batch, x.KeyHeads, x.New, x.ValueDim),
		tensor(fieldType, x.Field, x.Batch, x.FieldHeads, x.New),
		tensor(fieldType, x.Level, x.Batch, x.FieldHeads, x.New),
		tensor(fieldType, x.Slope, x.FieldHeads),
	}
}

func options(x reference.Operands) graph.Options {
	return graph.Options{Scale: x.Scale, Interval: graph.Interval(x.Interval.String())}
}

// near fails the test where got and want differ by more than limit, and returns
// by how much they do.
func near(t testing.TB, what string, got, want []float64, limit float64) float64 {
	t.Helper()
	if len(got) != len(want) {
		t.Fatalf("%s has %d elements, want %d", what, len(got), len(want))
	}
	worst := 0.0
	for i := range got {
		d := math.Abs(got[i] - want[i])
		if got[i] == want[i] { // infinities
			d = 0
		}
		if !(d <= limit) {
			t.Errorf("%s[%d] is %v, want %v within %g", what, i, got[i], want[i], limit)
			return d
		}
		worst = max(worst, d)
	}
	return worst
}

// shapes are those that the operator is tested on.
func shapes(rng *rand.Rand) []shape {
	list := []shape{
		{1, 1, 1, 1, 1, 1, 1},
		{1, 2, 1, 2, 2, 2, 3},
		{2, 4, 2, 1, 3, 2, 2},
		{1, 6, 2, 6, 17, 4, 3},
		{2, 4, 4, 2, 16, 3, 5},
		{1, 4, 2, 2, 33, 4, 4},
		{1, 3, 3, 3, 64, 2, 1},
	}
	for range 3 {
		hkv, per := 1+rng.IntN(3), 1+rng.IntN(2)
		hq := hkv * per
		list = append(list, shape{1 + rng.IntN(2), hq, hkv, []int{1, hkv, hq}[rng.IntN(3)], 1 + rng.IntN(24), 1 + rng.IntN(5), 1 + rng.IntN(5)})
	}
	return list
}

// The output and all gradients, against the float64 reference: with ties in
// the field, skipped positions, grouped heads and both intervals.
func TestAttention(t *testing.T) {
	onBackends(t, func(t *testing.T, b backends.Backend) {
		rng := rand.New(rand.NewPCG(1, 2))
		var worstOutput, worstGradient float64
		for n, s := range shapes(rng) {
			if b.Name() == "xla" && n%3 != 0 { // XLA takes a second or two to compile each
				continue
			}
			interval := reference.Interval(n / 2 % 2)
			x := random(rng, s, interval, []float64{0, 0.3}[n%2])
			if n%3 == 2 {
				x.Scale = 0.5
			}
			ref, err := reference.Parallel(x)
			if err != nil {
				t.Fatal(err)
			}
			weight := normals(rng, len(ref.Output), 1)
			g, err := reference.Backward(x, weight)
			if err != nil {
				t.Fatal(err)
			}
			in := append(inputs(x, dtypes.Float64, dtypes.Float64), tensor(dtypes.Float64, weight, s.b, s.hq, s.t, s.dv))
			out := run(t, b, func(in []*gx.Node) []*gx.Node {
				y := graph.Attention(in[0], in[1], in[2], in[3], in[4], in[5], options(x))
				return append([]*gx.Node{y}, gx.Gradient(gx.ReduceAllSum(gx.Mul(y, in[6])), in[:6]...)...)
			}, in...)
			what := fmt.Sprintf("%v %v: ", s, interval)
			worstOutput = max(worstOutput, near(t, what+"output", floats(t, out[0]), ref.Output, 1e-12))
			for i, want := range [][]float64{g.Query, g.Key, g.Value, g.Field, g.Level, g.Slope} {
				name := []string{"query", "key", "value", "field", "level", "slope"}[i]
				worstGradient = max(worstGradient, near(t, what+"gradient of "+name, floats(t, out[1+i]), want, 1e-11))
			}
		}
		t.Logf("largest difference: output %.2g, gradients %.2g", worstOutput, worstGradient)
	})
}
