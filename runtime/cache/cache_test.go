package cache

import (
	"fmt"
	"math"
	"math/bits"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/firstpassage/fpa/ops/kernels"
	"github.com/firstpassage/fpa/ops/reference"
	"github.com/firstpassage/fpa/quant"
)

// sequence is a random stretch of tokens for one layer: fields that wander and
// come back, so that keys die, and levels above and below them.
type sequence struct {
	shape Shape
	x     Tokens
	bound []float32
}

func newSequence(s Shape, tokens int, seed uint64) *sequence {
	rng := rand.New(rand.NewPCG(seed, 0))
	vector := func(n int) []float32 {
		v := make([]float32, n)
		for i := range v {
			v[i] = float32(2*rng.Float64() - 1)
		}
		return v
	}
	s.Layers, s.Scale, s.Slope = 1, float32(1/math.Sqrt(float64(s.KeyDim))), nil
	x := Tokens{
		N:     tokens,
		Query: vector(tokens * s.QueryHeads * s.KeyDim), Key: vector(tokens * s.KeyHeads * s.KeyDim),
		Value: vector(tokens * s.KeyHeads * s.ValueDim),
		Moved: make([]float32, tokens*s.FieldHeads), Out: make([]float32, tokens*s.QueryHeads*s.ValueDim),
	}
	walk := make([]float64, s.FieldHeads)
	for range tokens {
		for h := range walk {
			walk[h] += 2*rng.Float64() - 1 - 0.3*float64(1+h%3)
			x.Field = append(x.Field, float32(walk[h]))
			x.Level = append(x.Level, float32(walk[h]+8*rng.Float64()-2))
			x.Low = append(x.Low, posInf)
		}
	}
	for range s.FieldHeads {
		s.Slope = append(s.Slope, float32(1+3*rng.Float64()))
	}
	q := &sequence{shape: s, x: x}
	for range s.QueryHeads {
		q.bound = append(q.bound, float32(s.KeyDim)*s.Scale*(1+0x1p-5)) // every element is below 1
	}
	return q
}

// cut is the stretch of n tokens from t on.
func (q *sequence) cut(t, n int) Tokens {
	s, x := q.shape, q.x
	part := func(v []float32, width int) []float32 { return slices.Clone(v[t*width : (t+n)*width]) }
	return Tokens{
		N: n, Query: part(x.Query, s.QueryHeads*s.KeyDim), Key: part(x.Key, s.KeyHeads*s.KeyDim), Value: part(x.Value, s.KeyHeads*s.ValueDim),
		Field: part(x.Field, s.FieldHeads), Level: part(x.Level, s.FieldHeads), Low: part(x.Low, s.FieldHeads), Moved: part(x.Moved, s.FieldHeads),
		Out: part(x.Out, s.QueryHeads*s.ValueDim),
	}
}

// feed runs the sequence through a cache in chunks and returns the outputs,
// [token, query head*ValueDim]. after is called when a chunk is in.
func (q *sequence) feed(t testing.TB, c *Cache, chunk int, after func(tokens int)) []float32 {
	t.Helper()
	var out []float32
	var scratch Scratch
	for at := 0; at < q.x.N; at += chunk {
		x := q.cut(at, min(chunk, q.x.N-at))
		c.Begin(x.N)
		for _, g := range c.Groups(0) {
			g.Feed(&x, &scratch)
			checkSlots(t, g)
		}
		c.Advance(x.N)
		out = append(out, x.Out...)
		if after != nil {
			after(at + x.N)
		}
	}
	return out
}

// checkSlots holds the group's books against its slots.
func checkSlots(t testing.TB, g *Group) {
	t.Helper()
	live := 0
	for i, p := range g.pages {
		live += bits.OnesCount64(p.live)
		for f := range g.fieldHeads {
			for slot := range p.used() {
				if empty := p.level[f*PageSlots+slot] == posInf; empty == (p.live>>slot&1 == 1) {
					t.Fatalf("page %d, slot %d: empty %v, but the bits are %x", i, slot, empty, p.live)
				}
			}
		}
		if i < g.hint && p.live != ^uint64(0) {
			t.Fatalf("page %d has an empty slot, but the search begins at %d", i, g.hint)
		}
	}
	if live != g.live {
		t.Fatalf("%d live keys counted as %d", live, g.live)
	}
	if n := len(g.pages); n > 0 && (g.pages[n-1].live == 0 || g.empty() >= 3*PageSlots) {
		t.Fatalf("%d keys in %d pages, %d in the last", g.live, n, bits.OnesCount64(g.pages[n-1].live))
	}
}

// rounded is a tensor of keys or values as the cache holds it.
func rounded(typ quant.DType, v []float32, width int) []float64 {
	var out []float64
	for at := 0; at < len(v); at += width {
		row := slices.Clone(v[at : at+width])
		switch typ {
		case quant.F16:
			for i, x := range row {
				row[i] = quant.F16ToF32(quant.F32ToF16(x))
			}
		case quant.Q8_0:
			q := make([]int8, width)
			scale := kernels.QuantizeQ8(q, row)
			for i := range row {
				row[i] = scale * float32(q[i])
			}
		}
		for _, x := range row {
			out = append(out, float64(x))
		}
	}
	return out
}

func wide(v []float32) []float64 {
	out := make([]float64, len(v))
	for i, x := range v {
		out[i] = float64(x)
	}
	return out
}

// oracle is the operator by its definition in float64, on keys and values as
// the cache rounds them.
func (q *sequence) oracle(t testing.TB) []float64 {
	t.Helper()
	s, x := q.shape, q.x
	o := reference.Operands{
		Batch: 1, QueryHeads: s.QueryHeads, KeyHeads: s.KeyHeads, FieldHeads: s.FieldHeads, New: x.N, KeyDim: s.KeyDim, ValueDim: s.ValueDim,
		Query: reference.HeadsFirst(wide(x.Query), s.QueryHeads, s.KeyDim),
		Key:   reference.HeadsFirst(rounded(s.Type, x.Key, s.KeyDim), s.KeyHeads, s.KeyDim),
		Value: reference.HeadsFirst(rounded(s.Type, x.Value, s.ValueDim), s.KeyHeads, s.ValueDim),
		Field: reference.HeadsFirst(wide(x.Field), s.FieldHeads, 1), Level: reference.HeadsFirst(wide(x.Level), s.FieldHeads, 1),
		Slope: wide(s.Slope), Scale: float64(s.Scale),
	}
	if x.Low[0] != posInf {
		o.Interval = reference.Inclusive
	}
	r, err := reference.Parallel(o)
	if err != nil {
		t.Fatal(err)
	}
	return reference.PositionsFirst(r.Output, s.QueryHeads, s.ValueDim)
}

// inclusive makes every key's own field part of its low.
func (q *sequence) inclusive() *sequence {
	q.x.Low = slices.Clone(q.x.Field)
	return q
}

// worst is the largest difference of an output.
func worst[A, B float32 | float64](got []A, want []B) float64 {
	if len(got) != len(want) {
		return math.Inf(1)
	}
	most := 0.0
	for i := range got {
		if d := math.Abs(float64(got[i]) - float64(want[i])); !(d <= most) {
			most = d
		}
	}
	return most
}

func newCache(t testing.TB, s Shape, p Policy) *Cache {
	t.Helper()
	c, err := New(s, p)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// shapes are all ways in which heads can share keys and fields.
func shapes() []Shape {
	var out []Shape
	for _, h := range [][3]int{{1, 1, 1}, {4, 4, 4}, {4, 2, 4}, {4, 2, 2}, {4, 2, 1}, {4, 1, 4}, {6, 3, 1}} {
		for _, typ := range []quant.DType{quant.F16, quant.F32, quant.Q8_0} {
			out = append(out, Shape{QueryHeads: h[0], KeyHeads: h[1], FieldHeads: h[2], KeyDim: 10, ValueDim: 6, Type: typ})
		}
	}
	return out
}

// chunks are ways to cut a sequence: token by token, in blocks of every kind.
var chunks = []int{1, 3, 7, 64, 100, 400}

// TestModes compares every safe mode with the definition: off to rounding, exact
// and bounded within what they promise, and both must really drop keys.
func TestModes(t *testing.T) {
	const tokens = 400
	for _, s := range shapes() {
		q := newSequence(s, tokens, 5)
		s := q.shape
		want := q.oracle(t)
		for _, p := range []Policy{{Mode: Off}, {Mode: Exact}, {Mode: Bounded, Eps: 1e-3}, {Mode: Measured, Eps: 1e-3}} {
			for _, chunk := range chunks {
				t.Run(fmt.Sprintf("%d-%d-%d %v %s by %d", s.QueryHeads, s.KeyHeads, s.FieldHeads, s.Type, p.Mode, chunk), func(t *testing.T) {
					p.Bound = q.bound
					c := newCache(t, s, p)
					got := q.feed(t, c, chunk, nil)
					// A removed weight of eps moves the output by at most 2 eps max|v|.
					eps := map[Mode]float64{Exact: ExactEps, Bounded: p.Eps, Measured: p.Eps}[p.Mode]
					if d, allowed := worst(got, want), 2*eps+2e-6; !(d <= allowed) {
						t.Errorf("outputs differ by %g, allowed are %g", d, allowed)
					}
					st := c.Stats()
					if dropped := st.Kept < 1; dropped != (p.Mode != Off) {
						t.Errorf("kept %g", st.Kept)
					}
					if want := int64(tokens) * slotBytesAll(s); st.BytesUncompressed != want {
						t.Errorf("an uncompressed cache has %d bytes, expected %d", st.BytesUncompressed, want)
					}
				})
			}
		}
	}
}

// slotBytesAll is what one token takes by the definition: K and V of each key
// head, level and low of each field head.
func slotBytesAll(s Shape) int64 {
	head := map[quant.DType]int{quant.F16: 2 * 16, quant.F32: 4 * 16, quant.Q8_0: 16 + 8}[s.Type]
	return int64(head*s.KeyHeads + 8*s.FieldHeads)
}

// TestInclusive holds the inclusive interval, whose queries may see themselves
// with a penalty, against the definition.
func TestInclusive(t *testing.T) {
	for _, s := range shapes() {
		q := newSequence(s, 200, 8).inclusive()
		want := q.oracle(t)
		for _, chunk := range chunks {
			c := newCache(t, q.shape, Policy{Mode: Exact, Bound: q.bound, SelfPenalised: true})
			if d := worst(q.feed(t, c, chunk, nil), want); d > 2e-6 {
				t.Errorf("%+v by %d: outputs differ by %g", q.shape, chunk, d)
			}
			if st := c.Stats(); st.Kept != 1 || st.Evictable {
				t.Errorf("kept %g, evictable %v: nothing is proved here", st.Kept, st.Evictable)
			}
		}
	}
}

// TestLedgerAgainstReference holds the rule against the oracle's, one head.
func TestLedgerAgainstReference(t *testing.T) {
	rng := rand.New(rand.NewPCG(9, 9))
	const eps, bound = 1e-3, 3.0
	l := newLedger(eps, []float32{bound})
	b := reference.Budget{Bound: bound, Eps: eps}
	p := &page{level: make([]float32, PageSlots), low: make([]float32, PageSlots)}
	removed := 0
	for range 20000 {
		penalty := float32(10 + 15*rng.Float64())
		p.level[3] = penalty // low 0: the fall is the penalty, exactly
		got, want := l.remove(p, 3, []float32{1}), b.Remove(float64(penalty)*(1-0x1p-22))
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

// TestMeasuredBound follows the bounds of the mode Measured: the product of the
// largest lengths seen, with what rounding the keys can add, which drop keys as a
// proved bound of the same size does.
func TestMeasuredBound(t *testing.T) {
	for typ, least := range map[quant.DType]float64{quant.F32: 1, quant.F16: 1 + 0x1p-11, quant.Q8_0: 1 + math.Sqrt(8)/254} {
		q := newSequence(Shape{QueryHeads: 4, KeyHeads: 2, FieldHeads: 2, KeyDim: 8, ValueDim: 4, Type: typ}, 500, 6)
		c := newCache(t, q.shape, Policy{Mode: Measured, Eps: 1e-3})
		q.feed(t, c, 50, nil)
		s := q.shape
		for i, g := range c.Groups(0) {
			for h := range 2 {
				query, key := 0.0, 0.0
				for at := range q.x.N {
					query = max(query, length(q.x.Query[(at*4+2*i+h)*s.KeyDim:][:s.KeyDim]))
					key = max(key, length(q.x.Key[(at*2+i)*s.KeyDim:][:s.KeyDim]))
				}
				if got, want := g.ledger.bound[h], least*float64(s.Scale)*query*key; got < want || got > want*1.001 {
					t.Errorf("%s, group %d, head %d: bound %g, expected a little more than %g", typ, i, h, got, want)
				}
			}
		}
		// By Cauchy and Schwarz no bound on elements below 1 is smaller than twice that.
		proved := newCache(t, q.shape, Policy{Mode: Bounded, Eps: 1e-3, Bound: q.bound})
		q.feed(t, proved, 50, nil)
		if a, b := c.Stats().Kept, proved.Stats().Kept; a > b || a == 1 {
			t.Errorf("%s: kept %g, by the proved bound %g", typ, a, b)
		}
	}
}

// TestDeadAt expects the penalty beyond which exp(2U - p), the most that a key can
// weigh, is below the smallest float32: by the largest bound of the heads that share a
// field, and nowhere where nothing is proved.
func TestDeadAt(t *testing.T) {
	p := Policy{Bound: []float32{9, 3, 5, 1, 2}}
	for f, u := range []float64{5, 2} {
		at := float64(p.deadAt(1, 4, 2, f))
		if w := math.Exp(2*u - at); w > math.SmallestNonzeroFloat32 || at > 2*u+104.001 {
			t.Errorf("field head %d: %g, where a key weighs up to %g", f, at, w)
		}
	}
	p.SelfPenalised = true
	if at := p.deadAt(1, 4, 2, 0); at != posInf {
		t.Errorf("%g where a query may see itself with a penalty", at)
	}
	if at := (Policy{}).deadAt(0, 1, 1, 0); at != posInf {
		t.Errorf("%g without a bound", at)
	}
}

// TestBudgetWeight lets the budget drop one key and computes by the definition what it
// weighed for the newest query.
func TestBudgetWeight(t *testing.T) {
	const tokens, dim = fewestKeys + 1, 4
	for _, chunk := range []int{1, tokens} {
		q := newSequence(Shape{QueryHeads: 1, KeyHeads: 1, FieldHeads: 1, KeyDim: dim, ValueDim: 2, Type: quant.F32}, tokens, 9)
		c := newCache(t, q.shape, Policy{Mode: Budget, Keep: Keep{Bytes: 1}})
		q.feed(t, c, chunk, nil)
		here := map[float32]bool{} // a key is known by its first element
		p := c.Groups(0)[0].pages[0]
		for slot := range PageSlots {
			if p.live>>slot&1 == 1 {
				here[p.k32[slot*dim]] = true
			}
		}
		total, gone := 0.0, 0.0
		query := q.x.Query[(tokens-1)*dim:]
		for j := range tokens {
			low := math.Inf(1)
			for i := j + 1; i < tokens; i++ {
				low = min(low, float64(q.x.Field[i]))
			}
			dot := 0.0
			for d := range dim {
				dot += float64(query[d]) * float64(q.x.Key[j*dim+d])
			}
			w := math.Exp(dot*float64(q.shape.Scale) - float64(q.shape.Slope[0])*max(0, float64(q.x.Level[j])-low))
			total += w
			if !here[q.x.Key[j*dim]] {
				gone += w
			}
		}
		b := c.Stats().Budget
		if want := gone / total; b.Dropped != 1 || want == 0 || math.Abs(b.LargestWeight/want-1) > 1e-4 || b.MeanWeight != b.LargestWeight {
			t.Errorf("by %d: %+v, expected one key of weight %g", chunk, b, want)
		}
	}
}

// TestRemovedWeight computes, by the definition in float64 and over all keys ever
// fed, how much weight the keys that are gone would have had for every later
// query. It must stay within eps, keys must be gone, and the audit must say the
// same.
func TestRemovedWeight(t *testing.T) {
	q := newSequence(Shape{QueryHeads: 2, KeyHeads: 1, FieldHeads: 2, KeyDim: 4, ValueDim: 4, Type: quant.F32}, 300, 11)
	s := q.shape
	for _, eps := range []float64{1e-1, 1e-3, ExactEps} {
		for _, chunk := range []int{1, 40} {
			audited := newCache(t, s, Policy{Mode: Bounded, Eps: eps, Bound: q.bound, Audit: true})
			plain := newCache(t, s, Policy{Mode: Bounded, Eps: eps, Bound: q.bound})
			c := audited
			if chunk > 1 {
				c = plain
			}
			most := 0.0
			here := map[float32]bool{} // a key is known by its first element
			look := func(i int) {
				clear(here)
				for _, p := range c.Groups(0)[0].pages {
					for slot := range PageSlots {
						if p.live>>slot&1 == 1 {
							here[p.k32[slot*s.KeyDim]] = true
						}
					}
				}
				for h := range s.QueryHeads {
					total, gone := 0.0, 0.0
					for j := 0; j <= i; j++ {
						low := math.Inf(1)
						for m := j + 1; m <= i; m++ {
							low = min(low, float64(q.x.Field[m*2+h]))
						}
						dot := 0.0
						for d := range s.KeyDim {
							dot += float64(q.x.Query[(i*2+h)*s.KeyDim+d]) * float64(q.x.Key[j*s.KeyDim+d])
						}
						w := math.Exp(dot*float64(s.Scale) - float64(s.Slope[h])*max(0, float64(q.x.Level[j*2+h])-low))
						total += w
						if !here[q.x.Key[j*s.KeyDim]] {
							gone += w
						}
					}
					most = max(most, gone/total)
				}
			}
			q.feed(t, c, chunk, func(tokens int) { look(tokens - 1) })
			if most > eps || most == 0 {
				t.Errorf("by %d: removed keys weigh %g, allowed are %g and more than 0", chunk, most, eps)
			}
			st := c.Stats()
			if st.Kept > 0.5 {
				t.Errorf("eps %g: %g of the keys are kept; the test drops too few", eps, st.Kept)
			}
			if chunk > 1 {
				continue
			}
			// A key is dropped after its last query, which look still counts.
			if a := st.Audit; a.LargestWeight > most*(1+1e-5) || a.LargestWeight < most/100 || a.Removed+st.Live[0][0] != 300 {
				t.Errorf("the audit says %+v, expected a weight of %g; %d live", a, most, st.Live[0][0])
			}
			q.feed(t, plain, chunk, nil)
			if !slices.Equal(plain.Stats().Live[0], st.Live[0]) {
				t.Errorf("the audit changes what is kept: %v, without it %v", st.Live, plain.Stats().Live)
			}
		}
	}
}

// TestSoftmaxHead keeps every key of a head whose slope is 0, and of a cache
// without fields.
func TestSoftmaxHead(t *testing.T) {
	for _, chunk := range chunks {
		q := newSequence(Shape{QueryHeads: 2, KeyHeads: 2, FieldHeads: 2, KeyDim: 4, ValueDim: 4, Type: quant.F16}, 200, 3)
		q.shape.Slope[1] = 0
		c := newCache(t, q.shape, Policy{Mode: Exact, Bound: q.bound})
		if d := worst(q.feed(t, c, chunk, nil), q.oracle(t)); d > 2e-6 {
			t.Errorf("by %d: outputs differ by %g", chunk, d)
		}
		if live := c.Stats().Live[0]; live[1] != 200 || live[0] > 100 {
			t.Errorf("by %d: live keys %v, expected few in the first head and 200 in the second", chunk, live)
		}

		none := newSequence(Shape{QueryHeads: 4, KeyHeads: 2, KeyDim: 4, ValueDim: 4, Type: quant.F16}, 150, 3)
		flat := newSequence(Shape{QueryHeads: 4, KeyHeads: 2, FieldHeads: 1, KeyDim: 4, ValueDim: 4, Type: quant.F16}, 150, 3)
		flat.x.Query, flat.x.Key, flat.x.Value = none.x.Query, none.x.Key, none.x.Value
		flat.shape.Slope[0] = 0
		c = newCache(t, none.shape, Policy{Mode: Exact})
		if d := worst(none.feed(t, c, chunk, nil), flat.oracle(t)); d > 2e-6 {
			t.Errorf("by %d, no field: outputs differ by %g", chunk, d)
		}
	}
}

// TestAuditOfSoftmax audits caches with softmax heads and without fields, which
// lose nothing.
func TestAuditOfSoftmax(t *testing.T) {
	for _, fields := range []int{2, 0} {
		q := newSequence(Shape{QueryHeads: 2, KeyHeads: 2, FieldHeads: fields, KeyDim: 4, ValueDim: 4, Type: quant.F32}, 100, 3)
		if fields > 0 {
			q.shape.Slope[0] = 0
		}
		for _, mode := range []Mode{Off, Exact} {
			c := newCache(t, q.shape, Policy{Mode: mode, Bound: q.bound, Audit: true})
			want := q.feed(t, newCache(t, q.shape, Policy{Mode: Off}), 30, nil)
			if d := worst(q.feed(t, c, 30, nil), want); d > 2e-6 {
				t.Errorf("%d fields, %s: outputs differ by %g", fields, mode, d)
			}
			s := c.Stats()
			if gone := 200 - s.Live[0][0] - s.Live[0][1]; s.Live[0][0] != 100 || s.Audit.Removed != gone || (mode == Exact && fields > 0) != (gone > 0) {
				t.Errorf("%d fields, %s: %v live, audit %+v", fields, mode, s.Live[0], s.Audit)
			}
		}
	}
}

// TestPagesComeBack lets nearly all keys of a long stretch die at once: their
// pages must be given back and their slots used again.
func TestPagesComeBack(t *testing.T) {
	q := newSequence(Shape{QueryHeads: 1, KeyHeads: 1, FieldHeads: 1, KeyDim: 4, ValueDim: 4, Type: quant.F16}, 3000, 1)
	q.shape.Slope[0] = 1
	clear(q.x.Field)
	clear(q.x.Level)
	for i := range q.x.N {
		if i%100 == 7 {
			q.x.Level[i] = -1000 // these live on
		}
	}
	q.x.Field[2000] = -500
	want := q.oracle(t)
	for _, chunk := range []int{1, 100, 512} {
		c := newCache(t, q.shape, Policy{Mode: Exact, Bound: q.bound})
		if d := worst(q.feed(t, c, chunk, nil), want); d > 1e-5 {
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
		if st := c.Stats(); st.BytesPeak < 1500*g.slotBytes() || st.BytesLive != 1020*g.slotBytes() {
			t.Errorf("live %d, peak %d bytes", st.BytesLive, st.BytesPeak)
		}
	}
}

// TestMovingBase moves the zero of the fields in the middle and expects no change.
func TestMovingBase(t *testing.T) {
	q := newSequence(Shape{QueryHeads: 2, KeyHeads: 2, FieldHeads: 2, KeyDim: 4, ValueDim: 4, Type: quant.F32}, 120, 2)
	for i := range q.x.Field { // multiples of 2^-8 stay exact when shifted
		q.x.Field[i] = float32(math.Round(float64(q.x.Field[i])*256) / 256)
		q.x.Level[i] = float32(math.Round(float64(q.x.Level[i])*256) / 256)
	}
	moved := &sequence{shape: q.shape, x: q.cut(0, q.x.N), bound: q.bound}
	for i := range moved.x.Field {
		if i/2 >= 60 {
			moved.x.Field[i] -= 37
			moved.x.Level[i] -= 37
		}
	}
	moved.x.Moved[60*2], moved.x.Moved[60*2+1] = 37, 37
	for _, chunk := range chunks {
		want := q.feed(t, newCache(t, q.shape, Policy{Mode: Exact, Bound: q.bound}), chunk, nil)
		got := moved.feed(t, newCache(t, q.shape, Policy{Mode: Exact, Bound: q.bound}), chunk, nil)
		// Where blocks end differs, and with it the order of sums.
		allowed := 1e-6
		if chunk < fewTokens {
			allowed = 0
		}
		if d := worst(got, want); !(d <= allowed) {
			t.Errorf("by %d: outputs differ by %g", chunk, d)
		}
	}
}

// TestDeadPages lets pages die as a whole. Without eviction they stay, but nothing
// may look at them, and the result may not change by a bit.
func TestDeadPages(t *testing.T) {
	q := newSequence(Shape{QueryHeads: 2, KeyHeads: 1, FieldHeads: 2, KeyDim: 8, ValueDim: 8, Type: quant.F16}, 1000, 4)
	for i := range q.x.Field {
		q.x.Field[i] = -float32(i/2) * 3 // a fall of 1,000 in 333 tokens
		q.x.Level[i] = q.x.Field[i]
	}
	for _, chunk := range []int{1, 300} {
		plain, skipping := newCache(t, q.shape, Policy{Mode: Off}), newCache(t, q.shape, Policy{Mode: Off, Bound: q.bound})
		want, got := q.feed(t, plain, chunk, nil), q.feed(t, skipping, chunk, nil)
		if !slices.Equal(want, got) {
			t.Errorf("by %d: outputs differ by %g", chunk, worst(got, want))
		}
		dead := 0
		for _, p := range skipping.Groups(0)[0].pages {
			for f, d := range p.dead {
				if d {
					dead++
					clear(p.k16) // must not be read
					_ = f
				}
			}
		}
		if st := skipping.Stats(); dead < 20 || st.Kept != 1 {
			t.Errorf("by %d: %d dead pages of heads, kept %g", chunk, dead, st.Kept)
		}
		for _, p := range plain.Groups(0)[0].pages {
			if p.dead[0] || p.dead[1] {
				t.Error("a page is dead without a bound")
			}
		}
	}
}

// TestBudget holds the cache to a share and to a number of bytes, at every chunk.
func TestBudget(t *testing.T) {
	for _, s := range shapes() {
		q := newSequence(s, 500, 21)
		for i := range q.x.Field {
			q.x.Level[i] = q.x.Field[i] - 3 // penalties come late: the budget has to choose
		}
		full := int64(q.x.N) * slotBytesAll(q.shape)
		for _, keep := range []Keep{{Share: 0.3}, {Share: 1}, {Bytes: full / 5}} {
			for _, chunk := range []int{1, 50, 500} {
				c := newCache(t, q.shape, Policy{Mode: Budget, Keep: keep})
				q.feed(t, c, chunk, func(tokens int) {
					st := c.Stats()
					if limit := max(st.Budget.Bytes, fewestKeys*slotBytesAll(q.shape)); st.BytesLive > limit {
						t.Fatalf("%+v, %+v, after %d tokens: %d bytes live, the budget is %d", q.shape, keep, tokens, st.BytesLive, limit)
					}
				})
				st := c.Stats()
				all := st.Budget.Dropped
				for _, n := range st.Live[0] {
					all += n
				}
				if all != q.x.N*len(st.Live[0]) {
					t.Errorf("%+v: %d keys live or dropped, expected %d", keep, all, q.x.N)
				}
				// What is left is used.
				if slack := int64(len(st.Live[0])) * slotBytesAll(q.shape); st.BytesLive+slack < min(st.Budget.Bytes, full) {
					t.Errorf("%+v: %d bytes live of %d", keep, st.BytesLive, st.Budget.Bytes)
				}
				if b := st.Budget; keep.Share != 1 && !(b.MeanWeight > 0 && b.LargestWeight >= b.MeanWeight && b.LargestWeight <= 1) {
					t.Errorf("%+v: weights %+v", keep, b)
				}
				if keep.Share == 1 && st.Kept != 1 {
					t.Errorf("kept %g of a budget of everything", st.Kept)
				}
			}
		}
	}
}

// TestBudgetOrder knows which keys must stay: those that the field has not passed.
func TestBudgetOrder(t *testing.T) {
	q := newSequence(Shape{QueryHeads: 1, KeyHeads: 1, FieldHeads: 1, KeyDim: 2, ValueDim: 2, Type: quant.F32}, 400, 2)
	q.shape.Slope[0] = 0.01
	for i := range q.x.Field {
		q.x.Field[i], q.x.Level[i] = -float32(i%5), 100
		if i%20 == 3 {
			q.x.Level[i] = -50
		}
		q.x.Key[2*i] = float32(i) // its name
		q.x.Key[2*i+1], q.x.Query[2*i], q.x.Query[2*i+1] = 0, 0, 0
	}
	for _, chunk := range []int{1, 64} {
		c := newCache(t, q.shape, Policy{Mode: Budget, Keep: Keep{Bytes: 24 * (4*4 + 8)}})
		q.feed(t, c, chunk, nil)
		kept := map[int]bool{}
		for _, p := range c.Groups(0)[0].pages {
			for slot := range PageSlots {
				if p.live>>slot&1 == 1 {
					kept[int(p.k32[2*slot])] = true
				}
			}
		}
		for i := 3; i < 400; i += 20 {
			if !kept[i] {
				t.Errorf("by %d: key %d is gone", chunk, i)
			}
		}
		if len(kept) != 24 || !kept[399] {
			t.Errorf("by %d: %d keys, the newest %v", chunk, len(kept), kept[399])
		}
	}
}

// TestFairShares gives what one group does not need to the others, and nothing of
// a softmax head's keys.
func TestFairShares(t *testing.T) {
	q := newSequence(Shape{QueryHeads: 4, KeyHeads: 4, FieldHeads: 4, KeyDim: 4, ValueDim: 4, Type: quant.F32}, 400, 5)
	q.shape.Slope = []float32{0, 1, 1, 1}
	for i := range q.x.Field {
		q.x.Level[i] = -1e6
		if i%4 == 1 && i/4 > 10 {
			q.x.Field[i], q.x.Level[i] = 0, 1000 // dies at once
		}
	}
	c := newCache(t, q.shape, Policy{Mode: Budget, Keep: Keep{Share: 0.5}, Bound: q.bound})
	q.feed(t, c, 25, nil)
	st := c.Stats()
	if st.BytesLive > st.Budget.Bytes {
		t.Errorf("%d bytes live, the budget is %d", st.BytesLive, st.Budget.Bytes)
	}
	live := st.Live[0]
	// 800 keys in all: 400 of softmax, about 10 of the head that lets them die, and
	// what is left in two halves.
	if live[0] != 400 || live[1] > 40 || live[2] < 170 || live[3] != live[2] {
		t.Errorf("live keys %v", live)
	}
}

// TestGroupsAreIndependent runs the groups in other orders, as threads do, so that
// they get other pages out of the pool. No bit may change.
func TestGroupsAreIndependent(t *testing.T) {
	q := newSequence(Shape{QueryHeads: 4, KeyHeads: 4, FieldHeads: 4, KeyDim: 4, ValueDim: 4, Type: quant.F16}, 3000, 12)
	for i := range q.x.Field {
		// Half of the keys die at once, the others all together now and then.
		q.x.Field[i] = -float32(400 * (i / 4 / (300 + 40*(i%4))))
		q.x.Level[i] = q.x.Field[i] + float32(100*(i/4%2))
	}
	for _, chunk := range []int{1, 30, 200} {
		var want []float32
		for order := range 4 {
			c := newCache(t, q.shape, Policy{Mode: Exact, Bound: q.bound})
			var scratch [4]Scratch
			var got []float32
			for at := 0; at < q.x.N; at += chunk {
				x := q.cut(at, min(chunk, q.x.N-at))
				c.Begin(x.N)
				for i := range 4 {
					g := (i*3 + order + at*order) % 4
					c.Groups(0)[g].Feed(&x, &scratch[(g+order)%4])
				}
				c.Advance(x.N)
				got = append(got, x.Out...)
				for _, n := range c.Stats().Live[0] {
					got = append(got, float32(n))
				}
			}
			if want == nil {
				want = got
			}
			if !slices.Equal(got, want) {
				t.Errorf("by %d, order %d: outputs differ by %g", chunk, order, worst(got, want))
			}
		}
	}
}

// TestMinima compares with a search over all.
func TestMinima(t *testing.T) {
	rng := rand.New(rand.NewPCG(7, 7))
	for range 200 {
		var m minima
		var all []float64
		for step := 1; step < 60; step++ {
			x := float64(rng.IntN(20))
			m.push(step, x)
			all = append(all, x) // all[step-1]
			for since := range step + 1 {
				want := math.Inf(1)
				for _, v := range all[since:] {
					want = min(want, v)
				}
				if got := m.since(since); got != want {
					t.Fatalf("since %d of %v: %g, expected %g", since, all, got, want)
				}
			}
		}
	}
}

// TestLongestMinima feeds fields that rise for ever, of which every one is a
// minimum: the list of them must not grow with the context.
func TestLongestMinima(t *testing.T) {
	q := newSequence(Shape{QueryHeads: 1, KeyHeads: 1, FieldHeads: 1, KeyDim: 2, ValueDim: 2, Type: quant.F32}, 5000, 2)
	for i := range q.x.Field {
		q.x.Field[i] = float32(i)
		q.x.Level[i] = q.x.Field[i] + 1000 // dies at once
	}
	q.shape.Slope[0] = 1
	for _, chunk := range []int{1, 64} {
		c := newCache(t, q.shape, Policy{Mode: Exact, Bound: q.bound})
		most := 0
		q.feed(t, c, chunk, func(int) { most = max(most, c.Groups(0)[0].clock.longest()) })
		if live := c.Stats().Live[0][0]; live > 100 || most > PageSlots+100 {
			t.Errorf("by %d: %d keys, %d minima", chunk, live, most)
		}
	}
}

// TestLargest compares the selection with sorting.
func TestLargest(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 3))
	for range 2000 {
		c := make([]candidate, 1+rng.IntN(40))
		for i := range c {
			c[i] = candidate{fall: float32(rng.IntN(8)), page: int32(i / 5), slot: int8(i % 5)}
		}
		rng.Shuffle(len(c), func(i, j int) { c[i], c[j] = c[j], c[i] })
		want := slices.SortedFunc(slices.Values(c), order)
		n := rng.IntN(len(c) + 1)
		largest(c, n)
		got := slices.SortedFunc(slices.Values(c[:n]), order)
		if !slices.Equal(got, want[:n]) {
			t.Fatalf("the %d largest are %v, expected %v", n, got, want[:n])
		}
	}
}

// TestSteadyState expects that nothing is allocated once a cache has its size.
func TestSteadyState(t *testing.T) {
	for _, chunk := range []int{1, 64} {
		for _, p := range []Policy{{Mode: Exact}, {Mode: Measured, Eps: 1e-3}, {Mode: Budget, Keep: Keep{Bytes: 100_000}}} {
			q := newSequence(Shape{QueryHeads: 4, KeyHeads: 2, FieldHeads: 4, KeyDim: 16, ValueDim: 16, Type: quant.F16}, 64, 5)
			for i := range q.x.Field { // falls far within the sequence, and moves its base
				q.x.Field[i] = -float32(i / 4)
				q.x.Level[i] = q.x.Field[i]
			}
			for h := range 4 {
				q.x.Moved[h] = -64
			}
			p.Bound = q.bound
			c := newCache(t, q.shape, p)
			var scratch Scratch
			var x Tokens
			step := func() {
				for at := 0; at < q.x.N; at += chunk {
					c.Begin(chunk)
					for _, g := range c.Groups(0) {
						g.Feed(&x, &scratch)
					}
					c.Advance(chunk)
				}
			}
			x = q.cut(0, chunk)
			for range 50 {
				step()
			}
			if n := testing.AllocsPerRun(20, step); n > 0 {
				t.Errorf("%s by %d: %g allocations", p.Mode, chunk, n)
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
	good := Shape{Layers: 1, QueryHeads: 4, KeyHeads: 2, FieldHeads: 2, KeyDim: 4, ValueDim: 4, Type: quant.F16, Slope: []float32{1, 1}}
	for name, change := range map[string]func(*Shape, *Policy){
		"type":         func(s *Shape, _ *Policy) { s.Type = quant.I8 },
		"layers":       func(s *Shape, _ *Policy) { s.Layers = 0 },
		"groups":       func(s *Shape, _ *Policy) { s.KeyHeads = 3 },
		"field heads":  func(s *Shape, _ *Policy) { s.FieldHeads = 3 },
		"mode":         func(_ *Shape, p *Policy) { p.Mode = "some" },
		"eps":          func(_ *Shape, p *Policy) { *p = Policy{Mode: Bounded, Eps: math.NaN()} },
		"eps 0":        func(_ *Shape, p *Policy) { *p = Policy{Mode: Bounded} },
		"slopes":       func(s *Shape, _ *Policy) { s.Slope = nil },
		"share":        func(_ *Shape, p *Policy) { *p = Policy{Mode: Budget, Keep: Keep{Share: 1.5}} },
		"no share":     func(_ *Shape, p *Policy) { *p = Policy{Mode: Budget} },
		"bytes":        func(_ *Shape, p *Policy) { *p = Policy{Mode: Budget, Keep: Keep{Bytes: -1, Share: 0.5}} },
		"measured":     func(_ *Shape, p *Policy) { *p = Policy{Mode: Measured, Eps: 1} },
		"bound length": func(_ *Shape, p *Policy) { p.Bound = []float32{1} },
	} {
		s, p := good, Policy{Mode: Exact}
		if _, err := New(s, p); err != nil {
			t.Fatal(err)
		}
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
	const tokens, every = 65536, 4096
	s := Shape{Layers: 1, QueryHeads: 2, KeyHeads: 2, FieldHeads: 2, KeyDim: 4, ValueDim: 4, Type: quant.F32, Scale: 0.5, Slope: []float32{1, 1}}
	for _, p := range []Policy{{Mode: Off}, {Mode: Off, Bound: []float32{2.01, 2.01}}, {Mode: Exact, Bound: []float32{2.01, 2.01}}} {
		rng := rand.New(rand.NewPCG(6, 6))
		c := newCache(t, s, p)
		walk := NewWalk(2)
		var sums [][2]float64 // the fields, in float64
		var keys, values []float32
		var sum [2]float64
		var scratch Scratch
		vector := func() []float32 {
			v := make([]float32, every*8)
			for i := range v {
				v[i] = 2*rng.Float32() - 1
			}
			return v
		}
		for first := 0; first < tokens; first += every {
			x := Tokens{N: every, Query: vector(), Key: vector(), Value: vector(), Out: make([]float32, every*8)}
			keys, values = append(keys, x.Key...), append(values, x.Value...)
			for range every {
				for h := range 2 {
					inc := -math.Log1p(math.Exp(rng.NormFloat64() - 10)) // log sigmoid of about 10
					if h == 0 {
						inc = -math.Log1p(math.Exp(rng.NormFloat64() + 1.9))
					}
					sum[h] += inc
					field, moved := walk.Step(h, inc)
					x.Field, x.Moved = append(x.Field, float32(field)), append(x.Moved, moved)
					x.Level, x.Low = append(x.Level, float32(field)), append(x.Low, posInf)
				}
				sums = append(sums, sum)
			}
			for _, g := range c.Groups(0) {
				g.Feed(&x, &scratch)
			}
			c.Advance(every)
			for h := range 2 {
				var out [4]float64
				total := 0.0
				i := len(sums) - 1
				for j := 0; j <= i; j++ {
					dot := 0.0
					for d := 4 * h; d < 4*h+4; d++ {
						dot += float64(x.Query[(every-1)*8+d]) * float64(keys[8*j+d])
					}
					w := math.Exp(0.5*dot + sums[i][h] - sums[j][h])
					total += w
					for d := range out {
						out[d] += w * float64(values[8*j+4*h+d])
					}
				}
				for d := range out {
					if diff := math.Abs(out[d]/total - float64(x.Out[(every-1)*8+4*h+d])); !(diff < 5e-6) {
						t.Errorf("cache %s, head %d, token %d: the output is off by %g", p.Mode, h, i, diff)
					}
				}
			}
			if p.Mode == Off && p.Bound == nil && first >= 3*every {
				break // quadratic: long enough
			}
		}
		if st := c.Stats(); p.Mode == Exact && st.Live[0][0] > 100 {
			t.Errorf("%d keys of the head that forgets are live", st.Live[0][0])
		}
	}
}
