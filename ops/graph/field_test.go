package graph_test

import (
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

// kinds are all sources that there are.
func kinds() []graph.Source {
	var list []graph.Source
	for _, kind := range []graph.FieldKind{graph.WalkField, graph.DirectField} {
		for _, act := range []graph.Activation{graph.Identity, graph.Tanh, graph.LogSigmoid, graph.NegSoftplus} {
			for _, level := range []graph.LevelKind{graph.Tied, graph.Offset, graph.Relative, graph.Absolute} {
				if kind != graph.WalkField || level != graph.Absolute {
					list = append(list, graph.Source{Kind: kind, Activation: act, Level: level})
				}
			}
		}
	}
	return list
}

// sourceInputs are random operands of Evaluate: projection, offset (by the
// level's kind), from, skip.
func sourceInputs(rng *rand.Rand, s graph.Source, dtype dtypes.DType, b, h, n int) (in []*tensors.Tensor) {
	projection := normals(rng, b*h*n, 1)
	projection[0] = 0 // where the activations are easy to get wrong
	in = []*tensors.Tensor{
		tensor(dtype, projection, b, h, n), tensor(dtype, normals(rng, b*h*n, 1), b, h, n), tensor(dtypes.Float64, normals(rng, b*h, 3), b, h),
	}
	if s.Level == graph.Offset {
		in[1] = tensor(dtype, normals(rng, h, 1), h)
	}
	skip := make([]bool, b*n)
	for i := range skip {
		skip[i] = rng.IntN(4) == 0
	}
	return append(in, tensors.FromFlatDataAndDimensions(skip, b, n))
}

// evaluate is the graph of a source for operands as sourceInputs makes them.
func evaluate(s graph.Source, in []*gx.Node) (field, level, to *gx.Node) {
	offset, from := in[1], in[2]
	if s.Level == graph.Tied {
		offset = nil
	}
	if s.Kind == graph.DirectField {
		from = nil
	}
	return s.Evaluate(in[0], offset, from, in[3])
}

// Every kind of field and level against the reference, and its gradient against
// differences.
func TestSource(t *testing.T) {
	const b, h, n = 2, 2, 5
	rng := rand.New(rand.NewPCG(11, 12))
	for _, s := range kinds() {
		in := sourceInputs(rng, s, dtypes.Float64, b, h, n)
		weight := normals(rng, 2*b*h*n, 1)
		build := func(in []*gx.Node) (field, level, to, loss *gx.Node) {
			field, level, to = evaluate(s, in)
			if to == nil {
				to = gx.Zeros(field.Graph(), in[2].Shape())
			}
			finite := gx.Where(gx.IsFinite(level), level, gx.ZerosLike(level))
			loss = gx.ReduceAllSum(gx.Mul(gx.Const(field.Graph(), weight), gx.Concatenate([]*gx.Node{gx.Reshape(field, b*h*n), gx.Reshape(finite, b*h*n)}, 0)))
			return
		}
		out := run(t, goBackend(t), func(in []*gx.Node) []*gx.Node {
			field, level, to, loss := build(in)
			return append([]*gx.Node{field, level, to}, gx.Gradient(loss, in[:3]...)...)
		}, in...)

		// The reference projects its input itself: one weight of 1 a head.
		projection, offset, from := floats(t, in[0]), floats(t, in[1]), floats(t, in[2])
		skips := floats(t, in[3])
		for e := range b {
			for c := range h {
				ref := reference.FieldSource{
					Heads: 1, Width: 2, Kind: reference.FieldKind(s.Kind), Activation: reference.Activation(s.Activation),
					Level: reference.LevelKind(s.Level), Weight: []float64{1, 0},
				}
				x, skip := make([]float64, 2*n), make([]bool, n)
				at := (e*h + c) * n
				for i := range n {
					x[2*i], skip[i] = projection[at+i], skips[e*n+i] != 0
					if s.Level == graph.Relative || s.Level == graph.Absolute {
						x[2*i+1] = offset[at+i]
					}
				}
				switch s.Level {
				case graph.Offset:
					ref.LevelBias = offset[c : c+1]
				case graph.Relative, graph.Absolute:
					ref.LevelWeight = []float64{0, 1}
				}
				walk := []float64{from[e*h+c]}
				field, level, err := ref.Evaluate(x, walk, skip)
				if err != nil {
					t.Fatal(err)
				}
				got := floats(t, out[0])[at : at+n]
				for i := range n {
					if skip[i] { // what the field holds there is of no meaning
						field[i] = got[i]
					}
				}
				near(t, string(s.Kind+"/"+graph.FieldKind(s.Activation))+" field", got, field, 1e-14)
				near(t, string(s.Level)+" level", floats(t, out[1])[at:at+n], level, 1e-14)
				if s.Kind == graph.WalkField {
					near(t, "walk after the last position", floats(t, out[2])[e*h+c:][:1], walk, 1e-14)
				}
			}
		}

		value := compile(t, goBackend(t), func(in []*gx.Node) []*gx.Node {
			_, _, _, loss := build(in)
			return []*gx.Node{loss}
		})
		for o := range 3 {
			x := floats(t, in[o])
			if s.Level == graph.Tied && o == 1 || s.Kind == graph.DirectField && o == 2 {
				continue
			}
			want := make([]float64, len(x))
			for i := range x {
				const step = 1e-5
				moved := func(by float64) float64 {
					y := append([]float64{}, x...)
					y[i] += by
					args := append([]*tensors.Tensor{}, in...)
					args[o] = tensor(dtypes.Float64, y, in[o].Shape().Dimensions...)
					return floats(t, value(args...)[0])[0]
				}
				want[i] = (moved(step) - moved(-step)) / (2 * step)
			}
			near(t, string(s.Kind)+" gradient", floats(t, out[3+o]), want, 1e-8)
		}
	}
}

// In float32, and on every backend: one source a kind of each.
func TestSourceFloat32(t *testing.T) {
	onBackends(t, func(t *testing.T, b backends.Backend) {
		rng := rand.New(rand.NewPCG(13, 14))
		for _, s := range []graph.Source{
			{Kind: graph.WalkField, Activation: graph.LogSigmoid, Level: graph.Relative},
			{Kind: graph.DirectField, Activation: graph.NegSoftplus, Level: graph.Absolute},
		} {
			in := sourceInputs(rng, s, dtypes.Float32, 1, 2, 40)
			var of []*gx.Node
			build := func(dtype dtypes.DType) func(in []*gx.Node) []*gx.Node {
				return func(in []*gx.Node) []*gx.Node {
					in[0], in[1] = gx.ConvertDType(in[0], dtype), gx.ConvertDType(in[1], dtype)
					field, level, _ := evaluate(s, in)
					of = []*gx.Node{field, level}
					g := gx.Gradient(gx.ReduceAllSum(gx.Sin(field)), in[0])
					return []*gx.Node{field, level, g[0]}
				}
			}
			want := run(t, b, build(dtypes.Float64), in...)
			got := run(t, b, build(dtypes.Float32), in...)
			for i, x := range of {
				if x.DType() != dtypes.Float32 {
					t.Errorf("output %d is of type %v, want Float32", i, x.DType())
				}
			}
			for i := range got {
				near(t, string(s.Kind), floats(t, got[i]), floats(t, want[i]), 1e-5)
			}
		}
	})
}

// The walk does not lose what float32 would: many equal small steps far from 0.
func TestWalkPrecision(t *testing.T) {
	const n = 512
	steps := make([]float64, n)
	for i := range steps {
		steps[i] = -0.1
	}
	out := run(t, goBackend(t), func(in []*gx.Node) []*gx.Node {
		field, to := graph.Walk(in[0], in[1])
		return []*gx.Node{field, to}
	}, tensor(dtypes.Float32, steps, 1, 1, n), tensor(dtypes.Float64, []float64{-1e6}, 1, 1))
	want := -1e6 + n*float64(float32(-0.1))
	near(t, "the walk", floats(t, out[1]), []float64{want}, 1e-8)
	near(t, "the field", floats(t, out[0])[n-1:], []float64{float64(float32(want))}, 0)
	if math.Abs(floats(t, out[0])[0]+1e6+0.1) > 0.05 {
		t.Errorf("the field begins at %v", floats(t, out[0])[0])
	}
}
