package attention

import (
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/firstpassage/fpa/ops/kernels"
	"github.com/firstpassage/fpa/ops/reference"
	"github.com/firstpassage/fpa/quant"
)

// eachLevel runs a test of this process again on every lesser instruction set, in
// processes of their own.
func eachLevel(t *testing.T) {
	t.Helper()
	if os.Getenv("FPA_CPU") != "" {
		return
	}
	for _, level := range []string{"generic", "avx2"} {
		t.Run(level, func(t *testing.T) {
			cmd := exec.Command(os.Args[0], "-test.run=^"+strings.Split(t.Name(), "/")[0]+"$", fmt.Sprintf("-test.short=%v", testing.Short()))
			cmd.Env = append(os.Environ(), "FPA_CPU="+level)
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Fatalf("%v\n%s", err, out)
			}
		})
	}
}

// randomShape draws sizes: few and many queries, no past and a long one, every
// kind of grouped heads, widths that are no multiple of a vector.
func randomShape(r *rand.Rand) Shape {
	pick := func(n ...int) int { return n[r.IntN(len(n))] }
	s := Shape{
		Batch: pick(0, 1, 1, 1, 2, 3), KeyHeads: 1 + r.IntN(3),
		KeyDim: pick(1, 2, 3, 7, 8, 15, 16, 17, 31, 33, 40), ValueDim: pick(1, 2, 5, 8, 16, 19, 32, 37),
		New:  pick(0, 1, 1, 2, 3, 4, 5, 17, 63, 64, 65, 100+r.IntN(100)),
		Past: pick(0, 0, 1, 2, 13, 63, 64, 65, r.IntN(200), 300),
	}
	s.QueryHeads = s.KeyHeads * (1 + r.IntN(3))
	s.FieldHeads = pick(s.QueryHeads, s.KeyHeads, 1)
	if s.QueryHeads == 6 && r.IntN(3) == 0 {
		s.FieldHeads = 2 // neither key heads divide it nor it them, with 3
	}
	if r.IntN(50) == 0 {
		s.Batch, s.New, s.KeyDim, s.ValueDim = 1, spanLen+r.IntN(200), 5, 3
	}
	return s
}

// problem is a call and the same for package reference.
type problem[E Element] struct {
	Operands[E]
	want reference.Operands
}

// bits turns numbers into elements.
func bits[E Element](t testing.TB, x []float32) []E {
	var zero E
	y := fence[E](t, len(x))
	switch any(zero).(type) {
	case float32:
		copy(any(y).([]float32), x)
	case uint16:
		quant.EncodeF16(any(y).([]uint16), x)
	}
	return y
}

// numbers turns elements into numbers.
func numbers[E Element](x []E) []float64 {
	y := make([]float64, len(x))
	for i := range x {
		switch e := any(x[i]).(type) {
		case float32:
			y[i] = float64(e)
		case uint16:
			y[i] = float64(quant.F16ToF32(e))
		}
	}
	return y
}

// draw makes a problem. A share of the positions is skipped, with NaN where
// nothing may look. Fields and levels are multiples of 1/16, so that penalties are
// exact in float32.
func draw[E Element](t testing.TB, r *rand.Rand, s Shape, skip float64) problem[E] {
	normals := func(n int) []float32 {
		x := make([]float32, n)
		for i := range x {
			x[i] = float32(r.NormFloat64())
		}
		return x
	}
	step := func(x float64) float32 { return float32(math.Round(x*16) / 16) }
	nan := float32(math.NaN())
	p := problem[E]{Operands: Operands[E]{Shape: s, Inclusive: r.IntN(3) == 0}}
	if r.IntN(2) == 0 {
		p.Scale = float32(r.NormFloat64())
	}
	slope, kind := []float32{0, 0.25, 1, 7, 40}, r.IntN(4)
	for range s.FieldHeads {
		p.Slope = append(p.Slope, slope[r.IntN(len(slope))])
	}
	query := normals(s.Batch * s.QueryHeads * s.New * s.KeyDim)
	positions := func(n int, past bool) (key, value, level, other []float32) {
		key, value = normals(s.Batch*s.KeyHeads*n*s.KeyDim), normals(s.Batch*s.KeyHeads*n*s.ValueDim)
		level, other = make([]float32, s.Batch*s.FieldHeads*n), make([]float32, s.Batch*s.FieldHeads*n)
		for b := range s.Batch {
			skipped := make([]bool, n)
			for j := range skipped {
				skipped[j] = r.Float64() < skip
			}
			for f := range s.FieldHeads {
				at, field := (b*s.FieldHeads+f)*n, 0.0
				for j := range n {
					field += []float64{r.NormFloat64(), -r.ExpFloat64(), float64(r.IntN(3) - 1), 0}[kind]
					l := step(field)
					if r.IntN(2) == 0 {
						l = step(field + r.NormFloat64())
					}
					o := step(field)
					if past && r.IntN(8) == 0 {
						o = posInf
					} else if past {
						o = step(field - r.ExpFloat64()*3)
					}
					if skipped[j] {
						l, o = posInf, nan
					}
					level[at+j], other[at+j] = l, o
				}
			}
			for h := range s.KeyHeads {
				for j := range n {
					if skipped[j] {
						at := (b*s.KeyHeads+h)*n + j
						key[at*s.KeyDim], value[at*s.ValueDim] = nan, nan
					}
				}
			}
		}
		return key, value, level, other
	}
	key, value, level, field := positions(s.New, false)
	p.Query, p.Key, p.Value = bits[E](t, query), bits[E](t, key), bits[E](t, value)
	p.Level, p.Field = bits[float32](t, level), bits[float32](t, field)
	key, value, level, field = positions(s.Past, true)
	p.PastKey, p.PastValue = bits[E](t, key), bits[E](t, value)
	p.PastLevel, p.PastLow = bits[float32](t, level), bits[float32](t, field)

	p.want = reference.Operands{
		Batch: s.Batch, QueryHeads: s.QueryHeads, KeyHeads: s.KeyHeads, FieldHeads: s.FieldHeads,
		New: s.New, Past: s.Past, KeyDim: s.KeyDim, ValueDim: s.ValueDim, Scale: float64(p.Scale),
		Query: numbers(p.Query), Key: numbers(p.Key), Value: numbers(p.Value),
		Field: numbers(p.Field), Level: numbers(p.Level), Slope: numbers(p.Slope),
		PastKey: numbers(p.PastKey), PastValue: numbers(p.PastValue),
		PastLevel: numbers(p.PastLevel), PastLow: numbers(p.PastLow),
	}
	if p.Inclusive {
		p.want.Interval = reference.Inclusive
	}
	return p
}

// results are outputs of the sizes that a call wants, full of what no result is.
func results[E Element](t testing.TB, s Shape, slots int) Results[E] {
	r := Results[E]{
		Output:     fence[E](t, s.Batch*s.QueryHeads*s.New*s.ValueDim),
		PresentKey: fence[E](t, s.Batch*s.KeyHeads*slots*s.KeyDim), PresentValue: fence[E](t, s.Batch*s.KeyHeads*slots*s.ValueDim),
		PresentLevel: fence[float32](t, s.Batch*s.FieldHeads*slots), PresentLow: fence[float32](t, s.Batch*s.FieldHeads*slots),
	}
	for _, x := range [][]E{r.Output, r.PresentKey, r.PresentValue} {
		for i := range x {
			x[i] = 12345
		}
	}
	for _, x := range [][]float32{r.PresentLevel, r.PresentLow} {
		for i := range x {
			x[i] = 12345
		}
	}
	return r
}

var pool Pool

// run runs all units of a call, by several goroutines, in any order.
func run[E Element](t testing.TB, c *Call[E]) {
	t.Helper()
	slots, err := c.Plan()
	if err != nil {
		t.Fatal(err)
	}
	c.Results = results[E](t, c.Shape, slots)
	units := rand.Perm(c.Units())
	var wg sync.WaitGroup
	for n := range 3 {
		wg.Go(func() {
			s := pool.Get()
			defer pool.Put(s)
			for i := n; i < len(units); i += 3 {
				c.Run(units[i], s)
			}
		})
	}
	wg.Wait()
}

// same fails where got is not want, bit by bit but for NaN and infinities' sign.
func same(t testing.TB, name string, got, want []float64) {
	t.Helper()
	if len(got) != len(want) {
		t.Fatalf("%s has %d elements, expected %d", name, len(got), len(want))
	}
	for i := range got {
		if got[i] != want[i] && !(math.IsNaN(got[i]) && math.IsNaN(want[i])) {
			t.Fatalf("%s[%d] is %g, expected %g", name, i, got[i], want[i])
		}
	}
}

// near fails where an output is further from its value in float64 than rounding
// explains: 4e-5 for values that are normally distributed, and half a unit of f16.
func near[E Element](t testing.TB, got []E, want []float64) {
	t.Helper()
	unit := 0.0
	if float32s(got) == nil {
		unit = 0x1p-11
	}
	for i, g := range numbers(got) {
		if d := math.Abs(g - want[i]); !(d <= 4e-5+unit*math.Abs(want[i])) {
			t.Fatalf("output[%d] of %d is %g, expected %g", i, len(got), g, want[i])
		}
	}
}

func TestRandom(t *testing.T) {
	t.Logf("instruction set %s", kernels.Level())
	t.Run("F32", random[float32])
	t.Run("F16", random[uint16])
	eachLevel(t)
}

// random holds 500 random calls against float64, or 50 in short tests, such as those
// under the race detector.
func random[E Element](t *testing.T) {
	calls := 500
	if testing.Short() {
		calls = 50
	}
	for n := range calls {
		r := rand.New(rand.NewPCG(1, uint64(n)))
		s := randomShape(r)
		t.Run(fmt.Sprintf("%d %+v", n, s), func(t *testing.T) {
			p := draw[E](t, r, s, []float64{0, 0, 0.1, 0.5, 1}[r.IntN(5)])
			want, err := reference.Parallel(p.want)
			if err != nil {
				t.Fatal(err)
			}
			c := Call[E]{Operands: p.Operands}
			run(t, &c)
			near(t, c.Output, want.Output)
			same(t, "present_key", numbers(c.PresentKey), want.PresentKey)
			same(t, "present_value", numbers(c.PresentValue), want.PresentValue)
			same(t, "present_level", numbers(c.PresentLevel), want.PresentLevel)
			same(t, "present_low", numbers(c.PresentLow), want.PresentLow)
		})
	}
}

// TestLeftOut leaves out some of the results.
func TestLeftOut(t *testing.T) {
	r := rand.New(rand.NewPCG(2, 2))
	p := draw[float32](t, r, Shape{2, 4, 2, 4, 9, 70, 8, 8}, 0.1)
	whole := Call[float32]{Operands: p.Operands}
	run(t, &whole)
	c := Call[float32]{Operands: p.Operands}
	slots, err := c.Plan()
	if err != nil {
		t.Fatal(err)
	}
	c.Results = results[float32](t, c.Shape, slots)
	c.PresentKey, c.PresentLow = nil, nil
	for u := range c.Units() {
		c.Run(u, new(Scratch))
	}
	same(t, "output", numbers(c.Output), numbers(whole.Output))
	same(t, "present_value", numbers(c.PresentValue), numbers(whole.PresentValue))
	same(t, "present_level", numbers(c.PresentLevel), numbers(whole.PresentLevel))
}

// TestNotFinite: a value that is not finite reaches the queries from its position
// on, and none before.
func TestNotFinite(t *testing.T) {
	const n, at = 200, 97
	r := rand.New(rand.NewPCG(3, 3))
	for _, bad := range []float64{math.NaN(), math.Inf(1)} {
		p := draw[float32](t, r, Shape{1, 1, 1, 1, n, 0, 4, 3}, 0)
		p.Slope[0], p.want.Slope[0] = 0.25, 0.25
		p.Value[at*3], p.want.Value[at*3] = float32(bad), bad
		want, err := reference.Parallel(p.want)
		if err != nil {
			t.Fatal(err)
		}
		c := Call[float32]{Operands: p.Operands}
		run(t, &c)
		near(t, c.Output[:at*3], want.Output[:at*3])
		for i := at; i < n; i++ {
			if g := float64(c.Output[i*3]); !math.IsNaN(g) && !math.IsInf(g, 0) {
				t.Fatalf("value %g at %d: output %d is %g", bad, at, i, g)
			}
		}
	}
}

// falling is a problem whose field falls by half at every position, with slope and
// scale 1, so that keys are dead in float32 some 300 positions later.
func falling(t *testing.T, r *rand.Rand, s Shape, skip float64) problem[float32] {
	p := draw[float32](t, r, s, skip)
	p.Inclusive, p.want.Interval = false, reference.Exclusive
	p.Scale, p.want.Scale = 1, 1
	for h := range s.FieldHeads {
		p.Slope[h], p.want.Slope[h] = 1, 1
	}
	for j := range p.Level {
		if p.Level[j] != posInf {
			p.Field[j] = float32(-(j % s.New)) / 2
			p.Level[j] = p.Field[j]
			p.want.Field[j], p.want.Level[j] = float64(p.Field[j]), float64(p.Level[j])
		}
	}
	for j := range p.PastLevel {
		if p.PastLevel[j] != posInf {
			p.PastLevel[j], p.PastLow[j] = float32(r.IntN(3)), 0
			p.want.PastLevel[j], p.want.PastLow[j] = float64(p.PastLevel[j]), 0
		}
	}
	return p
}

// TestDeadTiles holds a call in which most tiles are dead against float64, and then
// makes the values of dead keys NaN: they are not looked at.
func TestDeadTiles(t *testing.T) {
	const n, d = 900, 16
	p := falling(t, rand.New(rand.NewPCG(4, 4)), Shape{1, 2, 1, 2, n, 300, d, d}, 0.05)
	want, err := reference.Parallel(p.want)
	if err != nil {
		t.Fatal(err)
	}
	c := Call[float32]{Operands: p.Operands}
	run(t, &c)
	near(t, c.Output, want.Output)
	for i := range p.PastValue {
		p.PastValue[i] = float32(math.NaN())
	}
	for i := range 256 * d {
		p.Value[i] = float32(math.NaN())
	}
	run(t, &c)
	for h := range 2 {
		near(t, c.Output[(h*n+700)*d:(h+1)*n*d], want.Output[(h*n+700)*d:(h+1)*n*d])
	}
}

// TestDropping feeds one sequence in pieces of several lengths, each call's present
// the next one's past, with keys dropped. Every output is held against float64
// without dropping, and the true weights of the dropped keys, in float64, against
// eps. The logits are bounded by the lengths of the queries and keys at hand.
func TestDropping(t *testing.T) {
	t.Run("F32", dropping[float32])
	t.Run("F16", dropping[uint16])
}

func dropping[E Element](t *testing.T) {
	for n, s := range []Shape{
		{1, 1, 1, 1, 600, 0, 8, 4}, {2, 4, 2, 4, 400, 0, 8, 8}, {2, 4, 2, 2, 400, 0, 8, 8},
		{1, 4, 4, 1, 400, 0, 8, 8}, {1, 6, 3, 2, 400, 0, 4, 4},
	} {
		for _, piece := range []int{1, 3, 50, 333} {
			for _, eps := range []float64{0x1p-25, 1e-3} {
				r := rand.New(rand.NewPCG(5, uint64(n)))
				p := draw[E](t, r, s, 0.1)
				p.Inclusive, p.want.Interval = false, reference.Exclusive
				p.Scale, p.want.Scale = 0.25, 0.25
				for f := range s.FieldHeads {
					p.Slope[f], p.want.Slope[f] = 1, 1
					if f == 1 && n == 1 {
						p.Slope[f], p.want.Slope[f] = 0, 0 // needs all its keys
					}
				}
				walk(r, &p)
				p.Threshold = thresholds(&p, eps)
				t.Run(fmt.Sprintf("%+v by %d, eps %g", s, piece, eps), func(t *testing.T) { chain(t, &p, piece, eps) })
			}
		}
	}
}

// walk replaces fields and levels by those of a walk that falls in the long run, with
// levels at and above the field.
func walk[E Element](r *rand.Rand, p *problem[E]) {
	for f := range p.Batch * p.FieldHeads {
		field := 0.0
		for t := range p.New {
			i := f*p.New + t
			field += math.Round(16*(r.NormFloat64()-0.4)) / 16
			if p.Level[i] != posInf {
				p.Field[i], p.Level[i] = float32(field), float32(field+float64(r.IntN(2)))
				p.want.Field[i], p.want.Level[i] = float64(p.Field[i]), float64(p.Level[i])
			}
		}
	}
}

// thresholds are those for the largest logit that there is.
func thresholds[E Element](p *problem[E], eps float64) []float64 {
	w, list := &p.want, []float64(nil)
	length := func(x []float64, row, d int) float64 {
		sum := 0.0
		for _, v := range x[row*d : (row+1)*d] {
			sum += v * v
		}
		return math.Sqrt(sum)
	}
	for h := range w.QueryHeads {
		bound := 0.0
		for b := range w.Batch {
			q, k := 0.0, 0.0
			for t := range w.New {
				q = max(q, length(w.Query, (b*w.QueryHeads+h)*w.New+t, w.KeyDim))
				kv := b*w.KeyHeads + h*w.KeyHeads/w.QueryHeads
				if l := length(w.Key, kv*w.New+t, w.KeyDim); l == l {
					k = max(k, l)
				}
			}
			bound = max(bound, w.Scale*q*k)
		}
		list = append(list, Threshold(bound, eps))
	}
	return list
}

// chain runs a problem in pieces.
func chain[E Element](t *testing.T, p *problem[E], piece int, eps float64) {
	want, err := reference.Parallel(p.want)
	if err != nil {
		t.Fatal(err)
	}
	s, most, d, dv := p.Shape, 0, p.KeyDim, p.ValueDim
	var c Call[E]
	var past Results[E]
	for from := 0; from < s.New; from += piece {
		to := min(s.New, from+piece)
		c.Operands = p.Operands
		c.New = to - from
		c.Query = cut(p.Query, s.New, d, from, to)
		c.Key, c.Value = cut(p.Key, s.New, d, from, to), cut(p.Value, s.New, dv, from, to)
		c.Field, c.Level = cut(p.Field, s.New, 1, from, to), cut(p.Level, s.New, 1, from, to)
		c.PastKey, c.PastValue, c.PastLevel, c.PastLow = past.PresentKey, past.PresentValue, past.PresentLevel, past.PresentLow
		c.Past = len(past.PresentLow) / (s.Batch * s.FieldHeads)
		run(t, &c)
		past = c.Results
		most = max(most, c.slots)
		for h := range s.Batch * s.QueryHeads {
			for i := from; i < to; i++ {
				for x := range dv {
					g, w := numbers(c.Output[(h*c.New+i-from)*dv+x:][:1])[0], want.Output[(h*s.New+i)*dv+x]
					unit := 4e-5 + 2*eps*4 // values below 4
					if float32s(c.Output) == nil {
						unit += 0x1p-11 * math.Abs(w)
					}
					if level(p, h, i) != posInf && !(math.Abs(g-w) <= unit) {
						t.Fatalf("head %d, position %d: %g, expected %g", h, i, g, w)
					}
				}
			}
		}
	}
	kept(t, p, &c, most)
	weights(t, p, &c, eps)
}

// level is the level of position i for query head h of the batch.
func level[E Element](p *problem[E], h, i int) float32 {
	b, f := h/p.QueryHeads, h%p.QueryHeads*p.FieldHeads/p.QueryHeads
	return p.Level[(b*p.FieldHeads+f)*p.New+i]
}

// cut takes positions from..to of a tensor of rows [any, n, width].
func cut[T any](x []T, n, width, from, to int) (y []T) {
	for at := 0; at < len(x); at += n * width {
		y = append(y, x[at+from*width:at+to*width]...)
	}
	return y
}

// kept checks the last present tensors: fewer slots than positions, heads with fewer
// keys ending in empty slots, and every slot one of the sequence, with its key, value
// and low.
func kept[E Element](t *testing.T, p *problem[E], c *Call[E], most int) {
	whole := Call[E]{Operands: p.Operands}
	whole.Threshold = nil
	run(t, &whole)
	softmax := false
	for _, s := range p.Slope {
		softmax = softmax || s == 0
	}
	if !softmax && most > p.New*3/4 {
		t.Errorf("up to %d slots for %d positions: hardly a key was dropped", most, p.New)
	}
	n, s := c.slots, c.Shape
	groups := gcd(s.KeyHeads, s.FieldHeads)
	for g := range s.Batch * groups {
		j := 0 // the position that the slot must be found at or after
		for i := range n {
			first := g * s.FieldHeads / groups
			same := func(j int) bool {
				for f := first; f < first+s.FieldHeads/groups; f++ {
					if c.PresentLevel[f*n+i] != whole.PresentLevel[f*p.New+j] || c.PresentLow[f*n+i] != whole.PresentLow[f*p.New+j] {
						return false
					}
				}
				for h := g * s.KeyHeads / groups; h < (g+1)*s.KeyHeads/groups; h++ {
					k, v := (h*n+i)*s.KeyDim, (h*n+i)*s.ValueDim
					if !slices.Equal(c.PresentKey[k:k+s.KeyDim], whole.PresentKey[(h*p.New+j)*s.KeyDim:][:s.KeyDim]) ||
						!slices.Equal(c.PresentValue[v:v+s.ValueDim], whole.PresentValue[(h*p.New+j)*s.ValueDim:][:s.ValueDim]) {
						return false
					}
				}
				return true
			}
			if c.PresentLevel[first*n+i] == posInf {
				for h := g * s.KeyHeads / groups; h < (g+1)*s.KeyHeads/groups; h++ {
					if k := numbers(c.PresentKey[(h*n+i)*s.KeyDim:][:1])[0]; k != 0 || c.PresentLow[first*n+i] != posInf {
						t.Fatalf("empty slot %d of group %d holds key %g and low %g", i, g, k, c.PresentLow[first*n+i])
					}
				}
				j = p.New
				continue
			}
			for j < p.New && !same(j) {
				j++
			}
			if j == p.New {
				t.Fatalf("slot %d of group %d is no position of the sequence, or out of order", i, g)
			}
			j++
		}
	}
}

// weights computes, in float64, the largest weight that dropped keys can have: that
// of the positions which the last present tensors lack, for the last query of each
// head.
func weights[E Element](t *testing.T, p *problem[E], c *Call[E], eps float64) {
	w := &p.want
	for h := range w.Batch * w.QueryHeads {
		b, i := h/w.QueryHeads, w.New-1
		f := b*w.FieldHeads + h%w.QueryHeads*w.FieldHeads/w.QueryHeads
		kv := b*w.KeyHeads + h%w.QueryHeads*w.KeyHeads/w.QueryHeads
		for i >= 0 && math.IsInf(w.Level[f*w.New+i], 1) {
			i--
		}
		here := map[[2]float32]int{} // slots by level and low
		for j := range c.slots {
			here[[2]float32{c.PresentLevel[f*c.slots+j], c.PresentLow[f*c.slots+j]}]++
		}
		low, all, gone := math.Inf(1), 0.0, 0.0
		for j := w.New - 1; j >= 0; j-- {
			l := w.Level[f*w.New+j]
			if math.IsInf(l, 1) {
				continue
			}
			dot := 0.0
			for x := range w.KeyDim {
				dot += w.Query[(h*w.New+i)*w.KeyDim+x] * w.Key[(kv*w.New+j)*w.KeyDim+x]
			}
			weight := math.Exp(w.Scale*dot - w.Slope[f%w.FieldHeads]*max(0, l-low))
			all += weight
			at := [2]float32{float32(l), float32(low)}
			if here[at] == 0 {
				gone += weight
			}
			here[at]--
			low = min(low, w.Field[f*w.New+j])
		}
		if gone > eps*all {
			t.Errorf("head %d: the dropped keys weigh %g of the last query, expected at most %g", h, gone/all, eps)
		}
	}
}

// TestAllocations: a call that was made before allocates nothing.
func TestAllocations(t *testing.T) {
	r := rand.New(rand.NewPCG(6, 6))
	for _, s := range []Shape{{1, 4, 2, 4, 1, 300, 16, 16}, {1, 4, 2, 4, 200, 100, 16, 16}} {
		p := draw[uint16](t, r, s, 0.1)
		p.Inclusive = false
		p.Threshold = []float64{40, 40, 40, 40}
		c := Call[uint16]{Operands: p.Operands}
		run(t, &c)
		outputs := c.Results
		if n := testing.AllocsPerRun(10, func() {
			if _, err := c.Plan(); err != nil {
				t.Fatal(err)
			}
			c.Results = outputs
			for u := range c.Units() {
				s := pool.Get()
				c.Run(u, s)
				pool.Put(s)
			}
		}); n != 0 {
			t.Errorf("%+v: %g allocations a call", s, n)
		}
	}
}

// TestEmpty: tensors without elements may claim any other size, which costs nothing.
func TestEmpty(t *testing.T) {
	for _, s := range []Shape{
		{1 << 40, 2, 1, 2, 0, 0, 8, 8}, {1, maxHeads, maxHeads, maxHeads, 0, 0, 1 << 40, 1 << 40}, {0, 2, 1, 2, 1 << 40, 1 << 40, 8, 8},
	} {
		for _, threshold := range [][]float64{nil, make([]float64, s.QueryHeads)} {
			c := Call[float32]{Operands: Operands[float32]{Shape: s, Threshold: threshold}}
			if _, err := c.Plan(); err != nil {
				t.Errorf("%+v: %v", s, err)
			}
			if n := c.Units(); n != 0 {
				t.Errorf("%+v: %d units", s, n)
			}
		}
	}
}

// TestRefused lists what has no meaning.
func TestRefused(t *testing.T) {
	good := Shape{1, 4, 2, 4, 1, 0, 8, 8}
	for _, tt := range []struct {
		name   string
		change func(*Call[float32])
	}{
		{"no key heads", func(c *Call[float32]) { c.KeyHeads = 0 }},
		{"negative batch", func(c *Call[float32]) { c.Batch = -1 }},
		{"no width", func(c *Call[float32]) { c.KeyDim = 0 }},
		{"too many heads", func(c *Call[float32]) { c.QueryHeads = maxHeads * 2 }},
		{"key heads do not divide", func(c *Call[float32]) { c.KeyHeads = 3 }},
		{"field heads do not divide", func(c *Call[float32]) { c.FieldHeads = 3 }},
		{"negative slope", func(c *Call[float32]) { c.Slope = []float32{1, 1, -1, 1} }},
		{"slope NaN", func(c *Call[float32]) { c.Slope = []float32{1, 1, float32(math.NaN()), 1} }},
		{"thresholds too few", func(c *Call[float32]) { c.Threshold = []float64{1} }},
		{"inclusive with thresholds", func(c *Call[float32]) { c.Inclusive, c.Threshold = true, []float64{1, 1, 1, 1} }},
	} {
		c := Call[float32]{Operands: draw[float32](t, rand.New(rand.NewPCG(7, 7)), good, 0).Operands}
		c.Inclusive = false
		if _, err := c.Plan(); err != nil {
			t.Fatal(err)
		}
		tt.change(&c)
		if _, err := c.Plan(); err == nil {
			t.Errorf("%s: no error", tt.name)
		}
	}
}
