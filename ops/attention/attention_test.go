package attention

import (
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"os/exec"
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
			cmd := exec.Command(os.Args[0], "-test.run=^"+strings.Split(t.Name(), "/")[0]+"$")
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

// random holds 500 random calls against float64.
func random[E Element](t *testing.T) {
	for n := range 500 {
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
