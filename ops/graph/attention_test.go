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

// problems are the sizes that the operator is tested on.
func problems(rng *rand.Rand) []shape {
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
		for n, s := range problems(rng) {
			if b.Name() == "xla" && n != 1 && n != 3 { // XLA takes a second or two to compile each
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

// Whatever type queries, keys and values have, the output differs from the
// float64 reference by the rounding of that type only, and the field is never
// rounded to it: it runs far beyond what half precision can hold.
func TestTypes(t *testing.T) {
	onBackends(t, func(t *testing.T, b backends.Backend) {
		rng := rand.New(rand.NewPCG(3, 4))
		types := map[dtypes.DType]float64{dtypes.Float32: 2e-6, dtypes.BFloat16: 1.0 / 64, dtypes.Float16: 1.0 / 512}
		if b.Name() != "xla" {
			delete(types, dtypes.Float16) // gomlx's Go backend has none
		}
		for dtype, limit := range types {
			x := random(rng, shape{2, 4, 2, 2, 9, 8, 6}, reference.Exclusive, 0.1)
			for i := range x.Field {
				x.Field[i] -= 70000
				x.Level[i] -= 70000
			}
			out := run(t, b, func(in []*gx.Node) []*gx.Node {
				for i := range 3 {
					in[i] = gx.ConvertDType(in[i], dtype)
				}
				y := graph.Attention(in[0], in[1], in[2], in[3], in[4], in[5], options(x))
				if y.DType() != dtype {
					t.Errorf("the output is of type %v, want %v", y.DType(), dtype)
				}
				g := gx.Gradient(gx.ReduceAllSum(gx.ConvertDType(y, dtypes.Float32)), in[3], in[4], in[5])
				wide := func(x *gx.Node) *gx.Node { return gx.ConvertDType(x, dtypes.Float32) }
				return []*gx.Node{wide(y), wide(in[0]), wide(in[1]), wide(in[2]), g[0], g[1], g[2]}
			}, inputs(x, dtypes.Float32, dtypes.Float32)...)
			x.Query, x.Key, x.Value = floats(t, out[1]), floats(t, out[2]), floats(t, out[3])
			ref, err := reference.Parallel(x)
			if err != nil {
				t.Fatal(err)
			}
			ones := make([]float64, len(ref.Output))
			for i := range ones {
				ones[i] = 1
			}
			g, err := reference.Backward(x, ones)
			if err != nil {
				t.Fatal(err)
			}
			rounded := near(t, dtype.String()+" output", floats(t, out[0]), ref.Output, limit)
			// The gradient that arrives is exact, so these are float32 all along.
			for i, want := range [][]float64{g.Field, g.Level, g.Slope} {
				near(t, fmt.Sprintf("%v gradient %d", dtype, i), floats(t, out[4+i]), want, 1e-4)
			}
			t.Logf("%v: output within %.2g", dtype, rounded)
		}
	})
}

// All gradients against differences of the output. Fields and levels differ by
// far more than a step, so that no kink is near.
func TestGradientDifferences(t *testing.T) {
	b := goBackend(t)
	rng := rand.New(rand.NewPCG(5, 6))
	worst := 0.0
	for n, s := range []shape{{1, 2, 1, 2, 6, 2, 2}, {1, 2, 2, 1, 7, 2, 1}, {2, 4, 2, 2, 4, 1, 2}} {
		interval := reference.Interval(n % 2)
		x := random(rng, s, interval, 0.15)
		perm := rng.Perm(2 * len(x.Field))
		for i := range x.Field {
			if !math.IsInf(x.Level[i], 1) {
				x.Field[i], x.Level[i] = float64(perm[2*i])/8, float64(perm[2*i+1])/8
			}
		}
		for i := range x.Slope {
			x.Slope[i] = 0.1 + rng.Float64()
		}
		weight := tensor(dtypes.Float64, normals(rng, s.b*s.hq*s.t*s.dv, 1), s.b, s.hq, s.t, s.dv)
		loss := func(in []*gx.Node) *gx.Node {
			y := graph.Attention(in[0], in[1], in[2], in[3], in[4], in[5], options(x))
			return gx.ReduceAllSum(gx.Mul(y, in[6]))
		}
		value := compile(t, b, func(in []*gx.Node) []*gx.Node { return []*gx.Node{loss(in)} })
		all := func() []*tensors.Tensor { return append(inputs(x, dtypes.Float64, dtypes.Float64), weight) }
		gradients := run(t, b, func(in []*gx.Node) []*gx.Node { return gx.Gradient(loss(in), in[:6]...) }, all()...)
		for o, operand := range [][]float64{x.Query, x.Key, x.Value, x.Field, x.Level, x.Slope} {
			got := floats(t, gradients[o])
			for i, at := range operand {
				const step = 1e-5
				want := 0.0
				if !math.IsNaN(at) && !math.IsInf(at, 1) {
					operand[i] = at + step
					up := floats(t, value(all()...)[0])[0]
					operand[i] = at - step
					down := floats(t, value(all()...)[0])[0]
					operand[i] = at
					want = (up - down) / (2 * step)
				}
				d := math.Abs(got[i] - want)
				worst = max(worst, d)
				if !(d <= 1e-8) {
					t.Errorf("%v %v: gradient %v of element %d of operand %d, differences give %v", s, interval, got[i], i, o, want)
				}
			}
		}
	}
	t.Logf("largest difference %.2g", worst)
}

// A tie hands the gradient of the minimum to the first position that attains
// it, and max(0, 0) has none.
func TestGradientTies(t *testing.T) {
	onBackends(t, func(t *testing.T, b backends.Backend) {
		x := reference.Operands{
			Batch: 1, QueryHeads: 1, KeyHeads: 1, FieldHeads: 1, New: 5, KeyDim: 1, ValueDim: 1,
			Query: make([]float64, 5), Key: make([]float64, 5), Value: []float64{1, 0, 0, 0, 0},
			Field: []float64{4, 3, 3, 4, 3}, Level: []float64{4, 3, 3, 4, 3}, Slope: []float64{1},
		}
		// The output at the last position is the weight of key 0, whose first
		// minimum is at position 1; keys 1 and 2 sit exactly at their minimum.
		out := run(t, b, func(in []*gx.Node) []*gx.Node {
			y := graph.Attention(in[0], in[1], in[2], in[3], in[4], in[5], graph.Options{})
			return gx.Gradient(gx.ReduceAllSum(gx.Mul(gx.Reshape(y, 5), in[6])), in[3])
		}, append(inputs(x, dtypes.Float64, dtypes.Float64), tensor(dtypes.Float64, []float64{0, 0, 0, 0, 1}, 5))...)
		got := floats(t, out[0])
		// w0 = e^-1 / (2 e^-1 + 3): keys 0 and 3 pay 1, the others nothing.
		e := math.Exp(-1)
		w := e / (2*e + 3)
		// d w0 / d low[4,0] = w0 (1 - w0), and of low[4,3] it is -w0 w3.
		near(t, "gradient of field", got, []float64{0, w * (1 - w), 0, 0, -w * w}, 1e-14)
	})
}

// The penalties by their definition.
func TestPenalties(t *testing.T) {
	rng := rand.New(rand.NewPCG(15, 16))
	for n := range 8 {
		interval := reference.Interval(n % 2)
		x := random(rng, shape{2, 3, 3, 3, 1 + rng.IntN(20), 1, 1}, interval, 0.2)
		want := make([]float64, x.Batch*x.FieldHeads*x.New*x.New)
		for f := range x.Batch * x.FieldHeads {
			field, level := x.Field[f*x.New:][:x.New], x.Level[f*x.New:][:x.New]
			for i := range x.New {
				for j := 0; j <= i; j++ {
					first := j + 1
					if interval == reference.Inclusive {
						first = j
					}
					low := math.Inf(1)
					for p := first; p <= i; p++ {
						if !math.IsInf(level[p], 1) {
							low = min(low, field[p])
						}
					}
					if !math.IsInf(level[j], 1) {
						want[(f*x.New+i)*x.New+j] = x.Slope[f%x.FieldHeads] * max(0, level[j]-low)
					}
				}
			}
		}
		out := run(t, goBackend(t), func(in []*gx.Node) []*gx.Node {
			return []*gx.Node{graph.Penalties(in[3], in[4], in[5], options(x).Interval)}
		}, inputs(x, dtypes.Float64, dtypes.Float64)...)
		near(t, "penalties", floats(t, out[0]), want, 1e-12)
	}
}

// softmaxRow is a plain softmax over logits, times value of width 1.
func softmaxRow(logits, value []float64) float64 {
	sum, out := 0.0, 0.0
	for j, l := range logits {
		sum += math.Exp(l)
		out += math.Exp(l) * value[j]
	}
	return out / sum
}

// The models that the operator contains, each by a formula of its own.
func TestSpecialCases(t *testing.T) {
	const n = 12
	rng := rand.New(rand.NewPCG(7, 8))
	query, key, value := normals(rng, n, 1), normals(rng, n, 1), normals(rng, n, 1)
	gate := normals(rng, n, 2)
	cumulative, falling, depth := make([]float64, n), make([]float64, n), make([]float64, n)
	for i := range n {
		if i > 0 {
			cumulative[i], depth[i] = cumulative[i-1], depth[i-1]
		}
		cumulative[i] -= math.Log1p(math.Exp(-gate[i]))
		falling[i] = -float64(i)
		depth[i] += []float64{1, 1, 1, -1, -1, 1, 1, -1, -1, -1, 1, 1}[i]
	}
	open := func(i, j int) bool { // is the scope that j opened or stands in still open at i
		for t := j + 1; t <= i; t++ {
			if depth[t] < depth[j] {
				return false
			}
		}
		return true
	}
	for _, c := range []struct {
		name         string
		field, slope []float64
		bias         func(i, j int) float64
	}{
		{"softmax", cumulative, []float64{0}, func(i, j int) float64 { return 0 }},
		{"softmax without a field", nil, nil, func(i, j int) float64 { return 0 }},
		{"FoX", cumulative, nil, func(i, j int) float64 { return cumulative[i] - cumulative[j] }},
		{"ALiBi", falling, []float64{0.25}, func(i, j int) float64 { return -0.25 * float64(i-j) }},
		{"stack", depth, []float64{1e6}, func(i, j int) float64 {
			if open(i, j) {
				return 0
			}
			return math.Inf(-1)
		}},
	} {
		want := make([]float64, n)
		for i := range n {
			logits := make([]float64, i+1)
			for j := range logits {
				logits[j] = query[i]*key[j] + c.bias(i, j)
			}
			want[i] = softmaxRow(logits, value)
		}
		t.Run(c.name, func(t *testing.T) {
			x := reference.Operands{
				Batch: 1, QueryHeads: 1, KeyHeads: 1, FieldHeads: 1, New: n, KeyDim: 1, ValueDim: 1,
				Query: query, Key: key, Value: value, Field: make([]float64, n), Level: make([]float64, n), Slope: []float64{0},
			}
			if c.field != nil {
				x.Field = c.field
			}
			if c.slope != nil {
				x.Slope = c.slope
			}
			out := run(t, goBackend(t), func(in []*gx.Node) []*gx.Node {
				var field, slope *gx.Node
				if c.field != nil {
					field = in[3]
				}
				if c.slope != nil {
					slope = in[5]
				}
				return []*gx.Node{graph.Attention(in[0], in[1], in[2], field, nil, slope, graph.Options{})}
			}, inputs(x, dtypes.Float64, dtypes.Float64)...)
			near(t, "output", floats(t, out[0]), want, 1e-14)
		})
	}
}

// Logits far beyond what the exponential can take, at keys that are seen and at
// keys that are not yet, overflow neither forward nor backward.
func TestLargeLogits(t *testing.T) {
	rng := rand.New(rand.NewPCG(17, 18))
	x := random(rng, shape{1, 2, 2, 2, 9, 3, 2}, reference.Exclusive, 0.2)
	x.Scale = 300
	ref, err := reference.Parallel(x)
	if err != nil {
		t.Fatal(err)
	}
	ones := make([]float64, len(ref.Output))
	for i := range ones {
		ones[i] = 1
	}
	g, err := reference.Backward(x, ones)
	if err != nil {
		t.Fatal(err)
	}
	out := run(t, goBackend(t), func(in []*gx.Node) []*gx.Node {
		y := graph.Attention(in[0], in[1], in[2], in[3], in[4], in[5], options(x))
		return append([]*gx.Node{y}, gx.Gradient(gx.ReduceAllSum(y), in[0], in[3])...)
	}, inputs(x, dtypes.Float32, dtypes.Float32)...)
	near(t, "output", floats(t, out[0]), ref.Output, 1e-3)
	near(t, "gradient of query", floats(t, out[1]), g.Query, 0.3)
	near(t, "gradient of field", floats(t, out[2]), g.Field, 1e-2)
}

// A sequence of padding alone gives zeros and no NaN, forward and backward, and
// so do penalties beyond the range of float32.
func TestNoKeys(t *testing.T) {
	onBackends(t, func(t *testing.T, b backends.Backend) {
		rng := rand.New(rand.NewPCG(9, 10))
		x := random(rng, shape{2, 2, 1, 2, 6, 3, 2}, reference.Exclusive, 0)
		for i := range 2 * 6 { // the first batch entry
			x.Level[i], x.Field[i] = math.Inf(1), math.NaN()
		}
		for i := range 6 {
			x.Field[2*6+i] = -1e37 * float64(i)
		}
		x.Slope = []float64{1e3, 1e3}
		ref, err := reference.Parallel(x)
		if err != nil {
			t.Fatal(err)
		}
		out := run(t, b, func(in []*gx.Node) []*gx.Node {
			y := graph.Attention(in[0], in[1], in[2], in[3], in[4], in[5], graph.Options{})
			return append([]*gx.Node{y}, gx.Gradient(gx.ReduceAllSum(y), in...)...)
		}, inputs(x, dtypes.Float32, dtypes.Float32)...)
		near(t, "output", floats(t, out[0]), ref.Output, 1e-6)
		for i, g := range out[1:] {
			for j, v := range floats(t, g) {
				if math.IsNaN(v) || math.IsInf(v, 0) {
					t.Errorf("element %d of the gradient of operand %d is %v", j, i, v)
				}
			}
		}
	})
}
