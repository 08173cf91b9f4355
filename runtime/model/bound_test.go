package model_test

import (
	"encoding/binary"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/firstpassage/fpa/ops/kernels"
	"github.com/firstpassage/fpa/ops/reference"
	"github.com/firstpassage/fpa/quant"
	"github.com/firstpassage/fpa/runtime/model"
	"github.com/firstpassage/fpa/testmodels/modeltest"
)

// prober computes one logit of one head as the engine does: float32 kernels,
// weights as they are stored, keys as they are cached.
type prober struct {
	m           *model.Model
	layer, head int
	cache       quant.DType
	ref         *reference.Decoder // of the same weights
}

func (p *prober) keyHead() int { return p.head * p.m.KVHeads / p.m.Heads }

// project is row head h of a projection of the normalised x, with its bias.
func (p *prober) project(l model.Linear, h int, x []float32) []float32 {
	m, d := p.m, p.m.KeyDim
	in := make([]float32, m.Hidden)
	kernels.RMSNorm(in, x, m.Layers[p.layer].AttnNorm, m.NormEps)
	y := make([]float32, l.W.Rows)
	multiply(y, l.W, in, h*d, (h+1)*d)
	y = y[h*d : (h+1)*d]
	if l.Bias != nil {
		kernels.Add(y, l.Bias[h*d:(h+1)*d])
	}
	return y
}

// multiply sets rows r0 to r1 of y = W x.
func multiply(y []float32, w kernels.Matrix, x []float32, r0, r1 int) {
	var in kernels.Input
	in.Set(x, w.Cols, 1, w.Cols)
	in.Need(w)
	in.Prepare(0, 1)
	var s kernels.Scratch
	kernels.MatMul(y, w.Rows, w, &in, r0, r1, &s)
}

// finish applies QK-norm and rotary embedding.
func (p *prober) finish(x, norm []float32, h, position int) {
	m, d := p.m, p.m.KeyDim
	if norm != nil {
		kernels.RMSNorm(x, x, norm[h*d:(h+1)*d], m.QKNormEps)
	}
	half := m.RopeDim / 2
	for i, f := range m.InvFreq {
		sin64, cos64 := math.Sincos(float64(position) * f)
		sin, cos := float32(sin64), float32(cos64)
		a, b := x[i], x[i+half]
		x[i], x[i+half] = a*cos-b*sin, b*cos+a*sin
	}
}

// logit is |Scale q·k| of a query from x at a position and a key from y at 0, whose
// predecessor was before.
func (p *prober) logit(x, y, before []float32, position int) float64 {
	m, d := p.m, p.m.KeyDim
	l, kv := &m.Layers[p.layer], p.keyHead()
	q, k := p.project(l.Q, p.head, x), p.project(l.K, kv, y)
	if m.KeyShift {
		last := make([]float32, d)
		if before != nil {
			last = p.project(l.K, kv, before)
		}
		in, mix := make([]float32, m.Hidden), make([]float32, m.KVHeads)
		kernels.RMSNorm(in, y, l.AttnNorm, m.NormEps)
		multiply(mix, l.KShift.W, in, 0, m.KVHeads)
		a := float32(1 / (1 + math.Exp(-float64(mix[kv]))))
		for c := range k {
			k[c] = a*last[c] + (1-a)*k[c]
		}
	}
	p.finish(q, l.QNorm, p.head, position)
	p.finish(k, l.KNorm, kv, 0)
	var s [1]float32
	switch p.cache {
	case quant.F32:
		kernels.KeyDotsF32(s[:], q, k, d, m.Scale)
	case quant.F16:
		half := make([]uint16, d)
		quant.EncodeF16(half, k)
		kernels.KeyDotsF16(s[:], q, half, d, m.Scale)
	case quant.Q8_0:
		bytes := make([]int8, d)
		scale := kernels.QuantizeQ8(bytes, k)
		kernels.KeyDotsQ8(s[:], q, bytes, []float32{scale}, d, m.Scale)
	}
	return math.Abs(float64(s[0]))
}

// climb searches for the largest logit that inputs can reach: alternately the best
// key for the query and the best query for the key, in float64, for several
// distances. Then it is computed as the engine does. With QK-norm it aims at single
// elements of query and key.
func (p *prober) climb(rng *rand.Rand) float64 {
	m, d, n := p.m, p.m.KeyDim, p.m.Hidden
	l, rotary := &p.ref.Weights.Layers[p.layer], p.ref.Config.Rotary
	side := func(w, bias []float64, h int) (rows, b []float64) {
		rows, b = append([]float64{}, w[h*d*n:(h+1)*d*n]...), make([]float64, d)
		for i := range rows {
			rows[i] *= l.AttnNorm[i%n]
		}
		if bias != nil {
			copy(b, bias[h*d:])
		}
		return rows, b
	}
	wq, bq := side(l.Query, l.QueryBias, p.head)
	wk, bk := side(l.Key, l.KeyBias, p.keyHead())
	best := 0.0
	try := func(x, y []float64, position int) {
		a, b := narrow(x), narrow(y)
		best = max(best, p.logit(a, b, b, position))
	}
	if l.QueryNorm != nil {
		xs, ys := make([][]float64, d), make([][]float64, d)
		for i := range d {
			xs[i], ys[i] = solve(wq, bq, i, n), solve(wk, bk, i, n)
		}
		for i := range d {
			for j := range d {
				for _, position := range []int{0, 1, 3, 7, 20, 50} {
					if i == j || position > 0 && m.RopeDim > 0 {
						try(xs[i], ys[j], position)
					}
				}
			}
		}
		return best
	}
	positions := []int{0}
	if m.RopeDim > 0 {
		positions = []int{0, 1, 2, 3, 5, 8, 13, 21, 34, 55, 89}
	}
	for _, position := range positions {
		x := normals(rng, n)
		var y []float64
		for range 100 {
			q := linear(wq, x, bq)
			rotary.Apply(q, 1, d, position)
			y = back(wk, q, n)
			k := linear(wk, y, bk)
			rotary.Apply(k, 1, d, -position)
			x = back(wq, k, n)
		}
		try(x, y, position)
	}
	return best
}

func normals(rng *rand.Rand, n int) []float64 {
	v := make([]float64, n)
	for i := range v {
		v[i] = rng.NormFloat64()
	}
	return v
}

func narrow(v []float64) []float32 {
	out := make([]float32, len(v))
	for i, x := range v {
		out[i] = float32(x)
	}
	return out
}

// linear is w x + b for an x of root mean square 1 in the direction given.
func linear(w, x, b []float64) []float64 {
	return reference.Linear(reference.RMSNorm(x, slices.Repeat([]float64{1}, len(x)), 1e-12), w, b, len(x), len(b))
}

// back is the direction of w^T v, scaled so that no epsilon is felt.
func back(w, v []float64, n int) []float64 {
	out := make([]float64, n)
	size := 0.0
	for i, x := range v {
		for c := range out {
			out[c] += x * w[i*n+c]
		}
	}
	for _, x := range out {
		size = max(size, math.Abs(x))
	}
	for c := range out {
		out[c] *= 1e3 / max(size, 1e-300)
	}
	return out
}

// solve is an input for which all but element i of w x + b is next to 0, found by
// projecting on one equation after the other.
func solve(w, b []float64, i, n int) []float64 {
	x := make([]float64, n)
	for range 400 {
		for r := range b {
			row := w[r*n : (r+1)*n]
			want, got, size := -b[r], 0.0, 0.0
			if r == i {
				want += 100
			}
			for c, v := range row {
				got += v * x[c]
				size += v * v
			}
			for c, v := range row {
				x[c] += (want - got) / size * v
			}
		}
	}
	return x
}

// boundCase is a kind of model, and what share of its bounds can be reached.
type boundCase struct {
	change  func(*model.Config)
	biases  bool
	weights quant.DType // of queries and keys
	share   float64
}

var boundCases = map[string]boundCase{
	"QK-norm":              {func(*model.Config) {}, false, quant.F32, 0.99},
	"QK-norm, bias":        {func(*model.Config) {}, true, quant.F32, 0.9},
	"QK-norm, rope":        {func(c *model.Config) { c.RopeDim, c.RopeBase = 10, 100 }, false, quant.F32, 0.9},
	"QK-norm shared":       {func(c *model.Config) { c.QKNorm = model.NormShared }, false, quant.F16, 0.99},
	"product":              {plain, false, quant.F32, 0.95},
	"product, bias":        {plain, true, quant.F32, 0.85},
	"grouped, shift":       {func(c *model.Config) { plain(c); c.KVHeads, c.FieldHeads, c.KeyShift = 2, 2, true }, false, quant.F32, 0.95},
	"one key head":         {func(c *model.Config) { plain(c); c.KVHeads, c.FieldHeads = 1, 1 }, true, quant.F16, 0.8},
	"bf16":                 {plain, false, quant.BF16, 0.98},
	"q8_0":                 {plain, false, quant.Q8_0, 0.98},
	"q4_1":                 {plain, false, quant.Q4_1, 0.98},
	"rope":                 {func(c *model.Config) { plain(c); c.RopeDim, c.RopeBase = 10, 100 }, false, quant.F32, 0.7},
	"rope in part, bias":   {func(c *model.Config) { plain(c); c.RopeDim, c.RopeBase = 4, 100 }, true, quant.Q8_0, 0.6},
	"input narrower":       {func(c *model.Config) { plain(c); c.Hidden = 6 }, false, quant.F32, 0.95},
	"wider than one block": {func(c *model.Config) { plain(c); c.Hidden, c.KeyDim = 256, 70 }, false, quant.Q4_K, 0.98},
}

func plain(c *model.Config) { c.QKNorm, c.Hidden, c.Scale = model.NormNone, 64, -0.3 }

// boundModel makes a random model of a case. The norms of inputs differ by up to ten
// times between columns.
func boundModel(t *testing.T, b boundCase, seed uint64) *model.Model {
	t.Helper()
	c := modeltest.Config()
	b.change(&c)
	p := modeltest.Random(c, seed, true)
	rng := rand.New(rand.NewPCG(seed, 7))
	kept := p.Tensors[:0]
	for _, x := range p.Tensors {
		query := strings.Contains(x.Name, "attn_q.") || strings.Contains(x.Name, "attn_k.")
		if query && strings.HasSuffix(x.Name, ".bias") && !b.biases {
			continue
		}
		if strings.HasSuffix(x.Name, "attn_norm.weight") {
			for i := range len(x.Data) / 4 {
				putF32(x.Data, i, float32(math.Exp(rng.Float64()*2.3)))
			}
		}
		if query && strings.HasSuffix(x.Name, ".weight") {
			x = as(t, x, b.weights)
		}
		kept = append(kept, x)
	}
	m, err := model.Build(c, kept)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func putF32(data []byte, i int, v float32) {
	binary.LittleEndian.PutUint32(data[4*i:], math.Float32bits(v))
}

// as converts a tensor of F32.
func as(t *testing.T, x model.Tensor, to quant.DType) model.Tensor {
	t.Helper()
	values := make([]float32, len(x.Data)/4)
	if err := quant.Decode(values, quant.F32, x.Data); err != nil {
		t.Fatal(err)
	}
	size, err := to.Bytes(int64(len(values)))
	if err != nil {
		t.Fatal(err)
	}
	x.DType, x.Data = to, make([]byte, size)
	if !quant.CanEncode(to) { // any bytes are a block; small scales keep the numbers small
		rng := rand.New(rand.NewPCG(1, 9))
		for i := range x.Data {
			x.Data[i] = byte(rng.Uint32())
		}
		for i := 0; i < len(x.Data); i += to.BlockBytes() {
			binary.LittleEndian.PutUint16(x.Data[i:], quant.F32ToF16(1e-3))
			binary.LittleEndian.PutUint16(x.Data[i+2:], quant.F32ToF16(7e-3))
		}
		return x
	}
	if err := quant.Encode(x.Data, to, values); err != nil {
		t.Fatal(err)
	}
	return x
}

var cacheTypes = []quant.DType{quant.F32, quant.F16, quant.Q8_0}

// TestLogitBounds searches for inputs that come near the bounds: none may exceed
// them in the engine's own arithmetic, and where no rotary embedding forbids it the
// best must come close.
func TestLogitBounds(t *testing.T) {
	for name, b := range boundCases {
		t.Run(name, func(t *testing.T) {
			rng := rand.New(rand.NewPCG(41, 42))
			m := boundModel(t, b, 3)
			ref := modeltest.Reference(m)
			for _, cache := range cacheTypes {
				bounds := m.LogitBounds(cache)
				if len(bounds) != m.Blocks*m.Heads {
					t.Fatalf("%d bounds, expected %d", len(bounds), m.Blocks*m.Heads)
				}
				least, most := 2.0, 0.0
				for i, u := range bounds {
					p := prober{m, i / m.Heads, i % m.Heads, cache, ref}
					reached := p.climb(rng)
					for range 60 {
						x, y, z := narrow(normals(rng, m.Hidden)), narrow(normals(rng, m.Hidden)), narrow(normals(rng, m.Hidden))
						if rng.IntN(3) == 0 { // a spike
							y[rng.IntN(m.Hidden)] = 1e6
						}
						reached = max(reached, p.logit(x, y, z, rng.IntN(100)))
					}
					least, most = min(least, reached/float64(u)), max(most, reached/float64(u))
				}
				t.Logf("cache %s: the largest logit found is %.4f to %.4f of the bound", cache, least, most)
				share := b.share
				if cache == quant.Q8_0 {
					share -= 0.04
				}
				if !(most <= 1) || least < share {
					t.Errorf("cache %s: reached %.5f to %.5f of the bounds, expected %.2f to 1", cache, least, most, share)
				}
			}
		})
	}
}

// TestLogitBoundsReference compares with the bounds of the oracle, which finds
// singular values another way, and with F32 for less rounding than F16.
func TestLogitBoundsReference(t *testing.T) {
	for name, b := range boundCases {
		for _, seed := range []uint64{1, 5} {
			m := boundModel(t, b, seed)
			ref := modeltest.Reference(m)
			for cache, rounding := range map[quant.DType]reference.Rounding{
				quant.F32: {}, quant.F16: reference.RoundingF16, quant.Q8_0: reference.RoundingQ8,
			} {
				for i, u := range m.LogitBounds(cache) {
					p := prober{m, i / m.Heads, i % m.Heads, cache, ref}
					l, d, kv := &ref.Weights.Layers[p.layer], m.KeyDim, p.keyHead()
					head := func(v []float64, h, n int) []float64 {
						if v == nil {
							return nil
						}
						return v[h*n : (h+1)*n]
					}
					var want float64
					var err error
					if l.QueryNorm != nil {
						want, err = reference.QKNormBound(head(l.QueryNorm, p.head, d), head(l.KeyNorm, kv, d), float64(m.Scale), m.RopeDim > 0, rounding)
					} else {
						want, err = reference.ProjectionBound(head(l.Query, p.head, d*m.Hidden), head(l.Key, kv, d*m.Hidden),
							head(l.QueryBias, p.head, d), head(l.KeyBias, kv, d), l.AttnNorm, float64(m.Scale), m.RopeDim > 0, rounding)
					}
					if err != nil {
						t.Fatal(err)
					}
					// The oracle is up to 0.3 % above the exact number; the engine's
					// float32 arithmetic, and a tighter largest element, are ours.
					if share := float64(u) / want; share < 0.996 && cache != quant.Q8_0 || share < 0.97 || share > 1.02 {
						t.Errorf("%s, cache %s, layer %d, head %d: %g, the oracle says %g", name, cache, p.layer, p.head, u, want)
					}
				}
			}
		}
	}
}

// TestLogitBoundsExtremes takes weights that are no good for a model: all zero, of
// lesser rank, with equal rows, tiny and huge.
func TestLogitBoundsExtremes(t *testing.T) {
	rng := rand.New(rand.NewPCG(43, 44))
	scaled := func(q, k float64) func(i, n int, query bool, v float32) float32 {
		return func(_, _ int, query bool, v float32) float32 {
			if query {
				return float32(float64(v) * q)
			}
			return float32(float64(v) * k)
		}
	}
	for name, c := range map[string]struct {
		change func(i, n int, query bool, v float32) float32 // element i of rows of n
		proved []quant.DType
	}{
		"zero":         {func(int, int, bool, float32) float32 { return 0 }, cacheTypes},
		"zero queries": {func(_, _ int, query bool, v float32) float32 { return map[bool]float32{false: v}[query] }, cacheTypes},
		"same rows":    {func(i, n int, _ bool, _ float32) float32 { return float32(i%n) - 20 }, cacheTypes},
		"one element":  {func(i, _ int, _ bool, v float32) float32 { return map[bool]float32{true: v}[i == 3] }, cacheTypes},
		"one column":   {func(i, n int, _ bool, v float32) float32 { return map[bool]float32{true: v}[i%n == 5] }, cacheTypes},
		"tiny":         {scaled(1e-20, 1e-20), cacheTypes},
		"subnormal":    {scaled(1, 1e-41), cacheTypes},
		"half keys":    {scaled(1, 1e-7), cacheTypes}, // subnormal in F16
		"vanishing":    {scaled(1e-44, 1e-44), cacheTypes},
		"huge":         {scaled(1e15, 1e15), []quant.DType{quant.F32, quant.Q8_0}},
		"huge queries": {scaled(1e15, 1), cacheTypes},
		"beyond F16":   {scaled(1, 1e5), []quant.DType{quant.F32, quant.Q8_0}},
		"beyond all":   {scaled(1e20, 1e20), nil},
		"not a number": {func(int, int, bool, float32) float32 { return float32(math.NaN()) }, nil},
		"infinite keys": {func(_, _ int, query bool, v float32) float32 {
			return map[bool]float32{true: v, false: float32(math.Inf(-1))}[query]
		}, nil},
	} {
		for _, rope := range []int{0, 10} {
			m := boundModel(t, boundCase{func(c *model.Config) {
				plain(c)
				if c.RopeDim = rope; rope > 0 {
					c.RopeBase = 100
				}
			}, false, quant.F32, 0}, 4)
			for i := range m.Layers {
				for _, w := range []*kernels.Matrix{&m.Layers[i].Q.W, &m.Layers[i].K.W} {
					for j := range len(w.Data) / 4 {
						v := math.Float32frombits(binary.LittleEndian.Uint32(w.Data[4*j:]))
						putF32(w.Data, j, c.change(j, w.Cols, w == &m.Layers[i].Q.W, v))
					}
				}
			}
			ref := modeltest.Reference(m)
			for _, cache := range cacheTypes {
				bounds := m.LogitBounds(cache)
				proved := false
				for _, x := range c.proved {
					proved = proved || x == cache
				}
				if (bounds != nil) != proved {
					t.Errorf("%s, cache %s: bounds %v, expected some: %v", name, cache, bounds, proved)
				}
				for i, u := range bounds {
					p := prober{m, i / m.Heads, i % m.Heads, cache, ref}
					reached := p.climb(rng)
					for range 20 {
						reached = max(reached, p.logit(narrow(normals(rng, m.Hidden)), narrow(normals(rng, m.Hidden)), nil, rng.IntN(50)))
					}
					if !(reached <= float64(u)) {
						t.Errorf("%s, rope %d, cache %s, head %d: reached %g, the bound is %g", name, rope, cache, i, reached, u)
					}
				}
			}
		}
	}
}

// TestNoLogitBounds has no bound where there is no proof.
func TestNoLogitBounds(t *testing.T) {
	for name, change := range map[string]func(*model.Config){
		"softmax":          func(c *model.Config) { plain(c); c.Field, c.FieldHeads = model.FieldNone, 0 },
		"epsilon 0":        func(c *model.Config) { plain(c); c.NormEps = 0 },
		"epsilon 0 of q,k": func(c *model.Config) { c.QKNormEps = 0 },
	} {
		m := boundModel(t, boundCase{change, true, quant.F32, 0}, 1)
		if b := m.LogitBounds(quant.F16); b != nil {
			t.Errorf("%s: %v", name, b)
		}
	}
	if b := boundModel(t, boundCases["product"], 1).LogitBounds(quant.Q4_0); b != nil {
		t.Errorf("cache of Q4_0: %v", b)
	}
}

// TestWideHead takes the norm of all elements for a head that is too wide for more.
func TestWideHead(t *testing.T) {
	m := boundModel(t, boundCase{func(c *model.Config) {
		plain(c)
		c.Hidden, c.KeyDim, c.Heads, c.KVHeads, c.FieldHeads, c.Blocks = 6, 1100, 1, 1, 1, 1
	}, true, quant.F32, 0}, 1)
	u := float64(m.LogitBounds(quant.F16)[0])
	p := prober{m, 0, 0, quant.F16, modeltest.Reference(m)}
	if reached := p.climb(rand.New(rand.NewPCG(45, 46))); !(reached <= u) || reached < 0.01*u {
		t.Errorf("reached %g, the bound is %g", reached, u)
	}
}

// BenchmarkLogitBounds has the attention of a decoder of 110M parameters.
func BenchmarkLogitBounds(b *testing.B) {
	c := modeltest.Config()
	plain(&c)
	c.Hidden, c.Blocks, c.Heads, c.KVHeads, c.FieldHeads, c.KeyDim, c.ValDim = 768, 12, 12, 12, 12, 64, 1
	m, err := model.Build(c, modeltest.Random(c, 1, true).Tensors)
	if err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		m.LogitBounds(quant.F16)
	}
}
