package cache

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/firstpassage/fpa/ops/reference"
	"github.com/firstpassage/fpa/quant"
)

// sequence is a random stretch of tokens for one group of heads: fields that
// wander and come back, so that keys die, and levels above and below them.
type sequence struct {
	shape        Shape
	q, k, v      [][]float32 // [token][heads*dim]
	field, level [][]float32 // [token][field head]
	slope        []float32
	bound        []float32
}

func newSequence(s Shape, tokens int, seed uint64) *sequence {
	rng := rand.New(rand.NewPCG(seed, 0))
	x := &sequence{shape: s}
	vector := func(n int, scale float64) []float32 {
		v := make([]float32, n)
		for i := range v {
			v[i] = float32(scale * (2*rng.Float64() - 1))
		}
		return v
	}
	walk := make([]float64, s.FieldHeads)
	for range tokens {
		x.q = append(x.q, vector(s.QueryHeads*s.KeyDim, 1))
		x.k = append(x.k, vector(s.KeyHeads*s.KeyDim, 1))
		x.v = append(x.v, vector(s.KeyHeads*s.ValueDim, 1))
		field, level := make([]float32, s.FieldHeads), make([]float32, s.FieldHeads)
		for h := range walk {
			walk[h] += 2*rng.Float64() - 1 - 0.3*float64(1+h%3)
			field[h] = float32(walk[h])
			level[h] = float32(walk[h] + 8*rng.Float64() - 2)
		}
		x.field, x.level = append(x.field, field), append(x.level, level)
	}
	for range s.FieldHeads {
		x.slope = append(x.slope, float32(1+3*rng.Float64()))
	}
	for range s.Layers * s.QueryHeads {
		x.bound = append(x.bound, float32(s.KeyDim)*scaleOf(s)*(1+0x1p-10)) // every element is below 1
	}
	return x
}

func scaleOf(s Shape) float32 { return float32(1 / math.Sqrt(float64(s.KeyDim))) }

// feed runs the sequence through layer 0 of a cache and returns the outputs,
// [token][query head*ValueDim].
func (x *sequence) feed(t *testing.T, c *Cache) [][]float32 {
	t.Helper()
	return x.feedEach(t, c, func(int) {})
}

// feedEach calls after for each token once the cache has taken it.
func (x *sequence) feedEach(t *testing.T, c *Cache, after func(token int)) [][]float32 {
	t.Helper()
	s := x.shape
	scores := make([]float32, len(x.q)+PageSlots)
	var out [][]float32
	for i := range x.q {
		y := make([]float32, s.QueryHeads*s.ValueDim)
		for n, g := range c.Groups(0) {
			f, kh, qh := n*g.FieldHeads, n*g.KeyHeads, n*g.QueryHeads
			low := make([]float32, g.FieldHeads)
			for j := range low {
				low[j] = posInf
			}
			g.Step(x.field[i][f : f+g.FieldHeads])
			g.Append(x.k[i][kh*s.KeyDim:(kh+g.KeyHeads)*s.KeyDim], x.v[i][kh*s.ValueDim:(kh+g.KeyHeads)*s.ValueDim], x.level[i][f:f+g.FieldHeads], low)
			for h := range g.QueryHeads {
				slope := float32(0)
				if g.FieldHeads > 0 {
					slope = x.slope[f+h*g.FieldHeads/g.QueryHeads]
				}
				at := (qh + h)
				g.Attend(h, y[at*s.ValueDim:(at+1)*s.ValueDim], x.q[i][at*s.KeyDim:(at+1)*s.KeyDim], scaleOf(s), slope, scores)
			}
			g.Evict(x.slope[f : f+g.FieldHeads])
			checkSlots(t, g)
		}
		c.Advance(1)
		after(i)
		out = append(out, y)
	}
	return out
}

// checkSlots holds the group's books against its slots.
func checkSlots(t *testing.T, g *Group) {
	t.Helper()
	if g.FieldHeads == 0 {
		return
	}
	live := 0
	free := make(map[int]bool)
	for _, slot := range g.free {
		free[slot] = true
	}
	for slot := range g.used {
		empty := g.pages[slot/PageSlots].Level[slot%PageSlots] == posInf
		if !empty {
			live++
		}
		if empty != free[slot] {
			t.Fatalf("slot %d: empty %v, free %v", slot, empty, free[slot])
		}
	}
	if live != g.live || len(free) != len(g.free) || len(g.pages) != (g.used+PageSlots-1)/PageSlots {
		t.Fatalf("%d live keys counted as %d; %d free slots, %d different; %d slots in %d pages", live, g.live, len(g.free), len(free), g.used, len(g.pages))
	}
}

// oracle is the operator by its definition in float64, on keys and values as
// the cache rounds them.
func (x *sequence) oracle(t *testing.T) []float64 {
	t.Helper()
	s, n := x.shape, len(x.q)
	round := func(v float32) float64 {
		if s.Type == quant.F16 {
			return float64(quant.F16ToF32(quant.F32ToF16(v)))
		}
		return float64(v)
	}
	first := func(rows [][]float32, heads int, f func(float32) float64) []float64 {
		flat := make([]float64, 0, n*len(rows[0]))
		for _, r := range rows {
			for _, v := range r {
				flat = append(flat, f(v))
			}
		}
		return reference.HeadsFirst(flat, heads, len(rows[0])/heads)
	}
	plain := func(v float32) float64 { return float64(v) }
	o := reference.Operands{
		Batch: 1, QueryHeads: s.QueryHeads, KeyHeads: s.KeyHeads, FieldHeads: s.FieldHeads, New: n, KeyDim: s.KeyDim, ValueDim: s.ValueDim,
		Query: first(x.q, s.QueryHeads, plain), Key: first(x.k, s.KeyHeads, round), Value: first(x.v, s.KeyHeads, round),
		Field: first(x.field, s.FieldHeads, plain), Level: first(x.level, s.FieldHeads, plain), Scale: float64(scaleOf(s)),
	}
	for _, v := range x.slope {
		o.Slope = append(o.Slope, float64(v))
	}
	r, err := reference.Parallel(o)
	if err != nil {
		t.Fatal(err)
	}
	return reference.PositionsFirst(r.Output, s.QueryHeads, s.ValueDim)
}

// worst is the largest difference of an output.
func worst(got [][]float32, want []float64) float64 {
	most, i := 0.0, 0
	for _, row := range got {
		for _, v := range row {
			if d := math.Abs(float64(v) - want[i]); !(d <= most) {
				most = d
			}
			i++
		}
	}
	return most
}

// shapes are all ways in which heads can share keys and fields.
func shapes() []Shape {
	var out []Shape
	for _, h := range [][3]int{{1, 1, 1}, {4, 4, 4}, {4, 2, 4}, {4, 2, 2}, {4, 2, 1}, {4, 1, 4}, {6, 3, 1}} {
		for _, typ := range []quant.DType{quant.F16, quant.F32} {
			out = append(out, Shape{Layers: 1, QueryHeads: h[0], KeyHeads: h[1], FieldHeads: h[2], KeyDim: 10, ValueDim: 6, Type: typ})
		}
	}
	return out
}

// TestModes compares every mode with the definition: off to rounding, exact and
// bounded within what they promise, and both must really drop keys.
func TestModes(t *testing.T) {
	const tokens = 400
	for _, s := range shapes() {
		x := newSequence(s, tokens, 5)
		want := x.oracle(t)
		for _, p := range []Policy{{Mode: Off}, {Mode: Exact}, {Mode: Bounded, Eps: 1e-3}} {
			t.Run(fmt.Sprintf("%d-%d-%d %v %s", s.QueryHeads, s.KeyHeads, s.FieldHeads, s.Type, p.Mode), func(t *testing.T) {
				p.Bound = x.bound
				c, err := New(s, p)
				if err != nil {
					t.Fatal(err)
				}
				got := x.feed(t, c)
				// A removed weight of eps moves the output by at most 2 eps max|v|.
				if d, allowed := worst(got, want), 2*p.eps()+2e-6; !(d <= allowed) {
					t.Errorf("outputs differ by %g, allowed are %g", d, allowed)
				}
				st := c.Stats()
				if dropped := st.Kept < 1; dropped != (p.Mode != Off) {
					t.Errorf("kept %g", st.Kept)
				}
				if st.BytesUncompressed != int64(tokens)*s.slotBytesAll() {
					t.Errorf("an uncompressed cache has %d bytes, expected %d", st.BytesUncompressed, int64(tokens)*s.slotBytesAll())
				}
			})
		}
	}
}

// slotBytesAll is what one token takes by the definition: K and V of each key
// head, level and low of each field head.
func (s Shape) slotBytesAll() int64 {
	elem := map[quant.DType]int64{quant.F16: 2, quant.F32: 4}[s.Type]
	return int64(s.Layers) * (elem*int64(s.KeyHeads*(s.KeyDim+s.ValueDim)) + 8*int64(s.FieldHeads))
}

// TestLedgerAgainstReference holds the rule against the oracle's, one head.
func TestLedgerAgainstReference(t *testing.T) {
	rng := rand.New(rand.NewPCG(9, 9))
	const eps, bound = 1e-3, 3.0
	l := newLedger(eps, []float32{bound})
	b := reference.Budget{Bound: bound, Eps: eps}
	page := &Page{Level: make([]float32, PageSlots), Low: make([]float32, PageSlots)}
	removed := 0
	for range 20000 {
		penalty := float32(10 + 15*rng.Float64())
		page.Level[3] = penalty // low 0: the fall is the penalty, exactly
		got, want := l.remove(page, 3, []float32{1}), b.Remove(float64(penalty)*(1-0x1p-22))
		if got != want {
			t.Fatalf("after %d removals a key of penalty %g: removed %v, the reference says %v", removed, penalty, got, want)
		}
		if got {
			removed++
		}
	}
	if removed == 0 || removed == 20000 || l.spent[0] > eps {
		t.Errorf("%d keys removed, %g of %g spent", removed, l.spent[0], eps)
	}
}

// TestRemovedWeight computes, by the definition in float64 and over all keys ever
// fed, how much weight the keys that are gone would have had for every later
// query. It must stay within eps, and keys must be gone.
func TestRemovedWeight(t *testing.T) {
	s := Shape{Layers: 1, QueryHeads: 2, KeyHeads: 1, FieldHeads: 2, KeyDim: 4, ValueDim: 4, Type: quant.F32}
	x := newSequence(s, 300, 11)
	for _, eps := range []float64{1e-1, 1e-3, ExactEps} {
		c, err := New(s, Policy{Mode: Bounded, Eps: eps, Bound: x.bound})
		if err != nil {
			t.Fatal(err)
		}
		most := 0.0
		x.feedEach(t, c, func(i int) {
			here := make(map[float32]bool) // a key is known by its first element
			for _, p := range c.Groups(0)[0].pages {
				for slot, l := range p.Level[:PageSlots] {
					if l != posInf {
						here[p.K32[slot*s.KeyDim]] = true
					}
				}
			}
			for h := range s.QueryHeads {
				total, gone := 0.0, 0.0
				for j := 0; j <= i; j++ {
					low := math.Inf(1)
					for m := j + 1; m <= i; m++ {
						low = min(low, float64(x.field[m][h]))
					}
					dot := 0.0
					for d := range s.KeyDim {
						dot += float64(x.q[i][h*s.KeyDim+d]) * float64(x.k[j][d])
					}
					w := math.Exp(dot*float64(scaleOf(s)) - float64(x.slope[h])*max(0, float64(x.level[j][h])-low))
					total += w
					if !here[x.k[j][0]] {
						gone += w
					}
				}
				most = max(most, gone/total)
			}
		})
		if most > eps || most == 0 {
			t.Errorf("removed keys weigh %g, allowed are %g and more than 0", most, eps)
		}
		if kept := c.Stats().Kept; kept > 0.5 {
			t.Errorf("eps %g: %g of the keys are kept; the test drops too few", eps, kept)
		}
	}
}

// TestSoftmaxHead keeps every key of a head whose slope is 0, and of a cache
// without fields.
func TestSoftmaxHead(t *testing.T) {
	s := Shape{Layers: 1, QueryHeads: 2, KeyHeads: 2, FieldHeads: 2, KeyDim: 4, ValueDim: 4, Type: quant.F16}
	x := newSequence(s, 200, 3)
	x.slope[1] = 0
	c, err := New(s, Policy{Mode: Exact, Bound: x.bound})
	if err != nil {
		t.Fatal(err)
	}
	got := x.feed(t, c)
	if d := worst(got, x.oracle(t)); d > 2e-6 {
		t.Errorf("outputs differ by %g", d)
	}
	live := c.Stats().Live[0]
	if live[1] != 200 || live[0] > 100 {
		t.Errorf("live keys %v, expected few in the first head and 200 in the second", live)
	}
}

// TestPagesComeBack lets nearly all keys of a long stretch die at once: their
// pages must be given back and their slots used again.
func TestPagesComeBack(t *testing.T) {
	s := Shape{Layers: 1, QueryHeads: 1, KeyHeads: 1, FieldHeads: 1, KeyDim: 4, ValueDim: 4, Type: quant.F16}
	x := newSequence(s, 3000, 1)
	x.slope[0] = 1
	for i := range x.field {
		x.field[i][0], x.level[i][0] = 0, 0
		if i%100 == 7 {
			x.level[i][0] = -1000 // these live on
		}
		if i == 2000 {
			x.field[i][0] = -500
		}
	}
	c, err := New(s, Policy{Mode: Exact, Bound: x.bound})
	if err != nil {
		t.Fatal(err)
	}
	want := x.oracle(t)
	if d := worst(x.feed(t, c), want); d > 1e-5 {
		t.Errorf("outputs differ by %g", d)
	}
	g := c.Groups(0)[0]
	// 20 survivors of the first 2,000, the key at 2,000 itself, and all after it.
	if g.Live() != 20+1000 {
		t.Errorf("%d keys live, expected 1020", g.Live())
	}
	if most := (1020 + 3*PageSlots) / PageSlots; len(g.pages) > most {
		t.Errorf("%d pages held, expected at most %d", len(g.pages), most)
	}
	if st := c.Stats(); st.BytesPeak < 2000*g.slotBytes() || st.BytesLive != 1020*g.slotBytes() {
		t.Errorf("live %d, peak %d bytes", st.BytesLive, st.BytesPeak)
	}
}

// TestShift moves the zero of the fields in the middle and expects no change.
func TestShift(t *testing.T) {
	s := Shape{Layers: 1, QueryHeads: 2, KeyHeads: 2, FieldHeads: 2, KeyDim: 4, ValueDim: 4, Type: quant.F32}
	x := newSequence(s, 120, 2)
	for i := range x.field { // multiples of 2^-8 stay exact when shifted
		for h := range x.field[i] {
			x.field[i][h] = float32(math.Round(float64(x.field[i][h])*256) / 256)
			x.level[i][h] = float32(math.Round(float64(x.level[i][h])*256) / 256)
		}
	}
	run := func(shiftAt int) [][]float32 {
		y := *x
		y.field, y.level = nil, nil
		for i := range x.field {
			f, l := append([]float32(nil), x.field[i]...), append([]float32(nil), x.level[i]...)
			if i >= shiftAt {
				for h := range f {
					f[h], l[h] = f[h]-37, l[h]-37
				}
			}
			y.field, y.level = append(y.field, f), append(y.level, l)
		}
		c, err := New(s, Policy{Mode: Exact, Bound: x.bound})
		if err != nil {
			t.Fatal(err)
		}
		first, second := y, y
		first.q, first.k, first.v = y.q[:shiftAt], y.k[:shiftAt], y.v[:shiftAt]
		out := first.feed(t, c)
		for _, g := range c.Groups(0) {
			g.Shift(0, 37)
		}
		second.q, second.k, second.v, second.field, second.level = y.q[shiftAt:], y.k[shiftAt:], y.v[shiftAt:], y.field[shiftAt:], y.level[shiftAt:]
		return append(out, second.feed(t, c)...)
	}
	a, b := run(60), x
	c, err := New(s, Policy{Mode: Exact, Bound: x.bound})
	if err != nil {
		t.Fatal(err)
	}
	want := b.feed(t, c)
	for i := range want {
		for j := range want[i] {
			if want[i][j] != a[i][j] {
				t.Fatalf("token %d: %g, without the shift %g", i, a[i][j], want[i][j])
			}
		}
	}
}

// TestWalkDrift feeds a million tokens: what leaves the walk, put back on its
// base, must stay within float32 rounding of a number below 64 of the exact sum.
func TestWalkDrift(t *testing.T) {
	for _, drift := range []float64{0, -0.7, -2.1, 0.03} {
		rng := rand.New(rand.NewPCG(4, 4))
		w := NewWalk(1)
		base, sum, carry := 0.0, 0.0, 0.0
		level, levelAt := float32(0), 0.0 // a key's level from the first token on
		for i := range 1_000_000 {
			inc := math.Tanh(rng.NormFloat64()) + drift
			y := inc - carry // compensated sum, the oracle
			s := sum + y
			carry = (s - sum) - y
			sum = s
			field, moved := w.Step(0, inc)
			base += float64(moved)
			level -= moved
			if i == 0 {
				level, levelAt = float32(field), sum
			}
			if moved != float32(math.Trunc(float64(moved))) {
				t.Fatalf("token %d: the base moves by %g, no whole number", i, moved)
			}
			if math.Abs(field) > baseDistance+3 {
				t.Fatalf("token %d: the field is %g from its base", i, field)
			}
			if d := math.Abs(float64(float32(field)) + base - sum); d > 4e-6 {
				t.Fatalf("token %d: off by %g", i, d)
			}
		}
		// The old level is at most one rounding of its size off.
		if d, allowed := math.Abs(float64(level)+base-levelAt), math.Abs(base)*0x1p-22+4e-6; d > allowed {
			t.Errorf("drift %g: the level of the first token is off by %g, allowed are %g", drift, d, allowed)
		}
	}
}

func TestRefusals(t *testing.T) {
	good := Shape{Layers: 1, QueryHeads: 4, KeyHeads: 2, FieldHeads: 2, KeyDim: 4, ValueDim: 4, Type: quant.F16}
	for name, change := range map[string]func(*Shape, *Policy){
		"type":         func(s *Shape, _ *Policy) { s.Type = quant.I8 },
		"layers":       func(s *Shape, _ *Policy) { s.Layers = 0 },
		"groups":       func(s *Shape, _ *Policy) { s.KeyHeads = 3 },
		"field heads":  func(s *Shape, _ *Policy) { s.FieldHeads = 3 },
		"mode":         func(_ *Shape, p *Policy) { p.Mode = "some" },
		"eps":          func(_ *Shape, p *Policy) { *p = Policy{Mode: Bounded, Eps: math.NaN()} },
		"eps 0":        func(_ *Shape, p *Policy) { *p = Policy{Mode: Bounded} },
		"bound length": func(_ *Shape, p *Policy) { p.Bound = []float32{1} },
	} {
		s, p := good, Policy{Mode: Exact}
		change(&s, &p)
		if _, err := New(s, p); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

// TestRunawayGates feeds 65,536 tokens of forgetting heads whose fields run away:
// one falls by 2 a token, to -134,000, one hardly at all. At sampled positions the
// output must be that of float64 over all keys.
func TestRunawayGates(t *testing.T) {
	const tokens, every = 65536, 4093
	s := Shape{Layers: 1, QueryHeads: 2, KeyHeads: 2, FieldHeads: 2, KeyDim: 4, ValueDim: 4, Type: quant.F32}
	rng := rand.New(rand.NewPCG(6, 6))
	for _, p := range []Policy{{Mode: Off}, {Mode: Exact, Bound: []float32{2.01, 2.01}}} {
		c, err := New(s, p)
		if err != nil {
			t.Fatal(err)
		}
		walk := NewWalk(2)
		sums := make([][2]float64, tokens) // the fields, in float64
		keys, values := make([][]float32, tokens), make([][]float32, tokens)
		scores := make([]float32, tokens+PageSlots)
		var sum [2]float64
		for i := range tokens {
			q := make([]float32, 8)
			keys[i], values[i] = make([]float32, 8), make([]float32, 8)
			for j := range q {
				q[j], keys[i][j], values[i][j] = 2*rng.Float32()-1, 2*rng.Float32()-1, 2*rng.Float32()-1
			}
			y := make([]float32, 8)
			for h, g := range c.Groups(0) {
				inc := -math.Log1p(math.Exp(rng.NormFloat64() - 10)) // log sigmoid of about 10
				if h == 0 {
					inc = -math.Log1p(math.Exp(rng.NormFloat64() + 1.9))
				}
				sum[h] += inc
				field, moved := walk.Step(h, inc)
				if moved != 0 {
					g.Shift(0, moved)
				}
				f := []float32{float32(field)}
				g.Step(f)
				g.Append(keys[i][4*h:4*h+4], values[i][4*h:4*h+4], f, []float32{posInf})
				if p.Mode == Exact && h == 0 || i%every == every-1 {
					g.Attend(0, y[4*h:4*h+4], q[4*h:4*h+4], 0.5, 1, scores)
					g.Evict([]float32{1})
				}
			}
			sums[i] = sum
			c.Advance(1)
			if i%every != every-1 {
				continue
			}
			for h := range 2 {
				var out [4]float64
				total := 0.0
				for j := 0; j <= i; j++ {
					dot := 0.0
					for d := 4 * h; d < 4*h+4; d++ {
						dot += float64(q[d]) * float64(keys[j][d])
					}
					w := math.Exp(0.5*dot + sums[i][h] - sums[j][h])
					total += w
					for d := range out {
						out[d] += w * float64(values[j][4*h+d])
					}
				}
				for d := range out {
					if diff := math.Abs(out[d]/total - float64(y[4*h+d])); !(diff < 5e-6) {
						t.Errorf("cache %s, head %d, token %d: the output is off by %g", p.Mode, h, i, diff)
					}
				}
			}
		}
		if st := c.Stats(); p.Mode == Exact && st.Live[0][0] > 100 {
			t.Errorf("%d keys of the head that forgets are live", st.Live[0][0])
		}
	}
}
