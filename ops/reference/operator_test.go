package reference

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
)

// agreement is how far two ways of summing may differ.
const agreement = 1e-12

// shape is the size of a random problem.
type shape struct {
	b, hq, hkv, hf, t, p, d, dv int
}

func (s shape) String() string {
	return fmt.Sprintf("B%d Hq%d Hkv%d Hf%d T%d P%d D%d Dv%d", s.b, s.hq, s.hkv, s.hf, s.t, s.p, s.d, s.dv)
}

// randomField draws a field of one of several characters: steps of any size,
// steps on a coarse grid (ties), long plateaus, a non-increasing walk, white
// noise; and levels at, above and below it.
func randomField(rng *rand.Rand, n int) (field, level []float64) {
	field, level = make([]float64, n), make([]float64, n)
	character, levels := rng.IntN(5), rng.IntN(4)
	x := 0.0
	for t := range n {
		switch character {
		case 0:
			x += rng.NormFloat64()
		case 1:
			x += float64(rng.IntN(3) - 1)
		case 2:
			if rng.IntN(12) == 0 {
				x += 2 * rng.NormFloat64()
			}
		case 3:
			x -= rng.ExpFloat64() / 4
		case 4:
			x = rng.NormFloat64()
		}
		field[t] = x
		switch levels {
		case 0:
			level[t] = x
		case 1:
			level[t] = x + rng.NormFloat64()
		case 2:
			level[t] = x + float64(rng.IntN(3)-1)
		case 3:
			level[t] = rng.NormFloat64()
		}
	}
	return field, level
}

// randomOperands draws a problem in which a share of the positions and slots
// is skipped. Skipped positions hold NaN wherever nothing may read them.
func randomOperands(rng *rand.Rand, s shape, interval Interval, skip float64) Operands {
	x := Operands{
		Batch: s.b, QueryHeads: s.hq, KeyHeads: s.hkv, FieldHeads: s.hf, New: s.t, Past: s.p, KeyDim: s.d, ValueDim: s.dv,
		Query:     normals(rng, s.b*s.hq*s.t*s.d, 1),
		Key:       normals(rng, s.b*s.hkv*s.t*s.d, 1),
		Value:     normals(rng, s.b*s.hkv*s.t*s.dv, 1),
		PastKey:   normals(rng, s.b*s.hkv*s.p*s.d, 1),
		PastValue: normals(rng, s.b*s.hkv*s.p*s.dv, 1),
		Interval:  interval,
	}
	for range s.b * s.hf {
		field, level := randomField(rng, s.t)
		x.Field = append(x.Field, field...)
		x.Level = append(x.Level, level...)
		low, level := randomField(rng, s.p)
		x.PastLow = append(x.PastLow, low...)
		x.PastLevel = append(x.PastLevel, level...)
	}
	for range s.hf {
		x.Slope = append(x.Slope, []float64{0, 0.3, 1, 7}[rng.IntN(4)])
	}
	for i := range x.Level {
		if rng.Float64() < skip {
			x.Level[i], x.Field[i] = math.Inf(1), math.NaN()
		}
	}
	for i := range x.PastLevel {
		switch {
		case rng.Float64() < skip:
			x.PastLevel[i], x.PastLow[i] = math.Inf(1), math.NaN()
		case rng.IntN(8) == 0:
			x.PastLow[i] = math.Inf(1)
		}
	}
	return x
}

// literal computes the operator straight from its formula, with a minimum
// taken anew for each pair and a softmax without tricks.
func literal(x Operands) (output []float64) {
	scale := x.Scale
	if scale == 0 {
		scale = math.Pow(float64(x.KeyDim), -0.5)
	}
	for b := range x.Batch {
		for h := range x.QueryHeads {
			kh, fh := h/(x.QueryHeads/x.KeyHeads), h/(x.QueryHeads/x.FieldHeads)
			field := func(t int) float64 { return x.Field[(b*x.FieldHeads+fh)*x.New+t] }
			level := func(t int) float64 { return x.Level[(b*x.FieldHeads+fh)*x.New+t] }
			for i := range x.New {
				out := make([]float64, x.ValueDim)
				sum := 0.0
				term := func(key, value []float64, level, low float64) {
					qk := 0.0
					for c := range x.KeyDim {
						qk += x.Query[((b*x.QueryHeads+h)*x.New+i)*x.KeyDim+c] * key[c]
					}
					w := math.Exp(scale*qk - x.Slope[fh]*math.Max(0, level-low))
					sum += w
					for c := range out {
						out[c] += w * value[c]
					}
				}
				for s := range x.Past {
					l := x.PastLevel[(b*x.FieldHeads+fh)*x.Past+s]
					if math.IsInf(l, 1) {
						continue
					}
					low := x.PastLow[(b*x.FieldHeads+fh)*x.Past+s]
					for t := 0; t <= i; t++ {
						if !math.IsInf(level(t), 1) {
							low = math.Min(low, field(t))
						}
					}
					at := (b*x.KeyHeads+kh)*x.Past + s
					term(x.PastKey[at*x.KeyDim:], x.PastValue[at*x.ValueDim:], l, low)
				}
				for j := 0; j <= i; j++ {
					if math.IsInf(level(j), 1) {
						continue
					}
					low := math.Inf(1)
					first := j + 1
					if x.Interval == Inclusive {
						first = j
					}
					for t := first; t <= i; t++ {
						if !math.IsInf(level(t), 1) {
							low = math.Min(low, field(t))
						}
					}
					at := (b*x.KeyHeads+kh)*x.New + j
					term(x.Key[at*x.KeyDim:], x.Value[at*x.ValueDim:], level(j), low)
				}
				for c := range out {
					if sum > 0 {
						out[c] /= sum
					}
				}
				output = append(output, out...)
			}
		}
	}
	return output
}

// sameResult compares outputs and present slots; keys, values and the lows of
// skipped slots have no meaning and are left out.
func sameResult(t *testing.T, what string, got, want Result) {
	t.Helper()
	if d := maxDiff(got.Output, want.Output); !(d <= agreement) {
		t.Errorf("%s: outputs differ by %g", what, d)
	}
	if maxDiff(got.PresentKey, want.PresentKey) != 0 || maxDiff(got.PresentValue, want.PresentValue) != 0 ||
		maxDiff(got.PresentLevel, want.PresentLevel) != 0 {
		t.Errorf("%s: present keys, values or levels differ", what)
	}
	if maxDiff(got.PresentLow, want.PresentLow) != 0 {
		t.Errorf("%s: present lows differ", what)
	}
}

// mustRun fails the test on an error.
func mustRun(t *testing.T) func(r Result, err error) Result {
	return func(r Result, err error) Result {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
}

func block(x Operands, size int) (Result, error) {
	r, _, err := Block(x, BlockOptions{Size: size})
	return r, err
}

func TestFormsAgree(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	run := mustRun(t)
	shapes := []shape{
		{1, 1, 1, 1, 0, 0, 1, 1}, {0, 1, 1, 1, 3, 2, 1, 1}, {1, 2, 1, 1, 0, 5, 3, 2},
		{1, 1, 1, 1, 1, 0, 1, 1}, {2, 1, 1, 1, 1, 4, 4, 3}, {1, 1, 1, 1, 2, 0, 2, 5},
		{1, 1, 1, 1, 64, 0, 8, 8}, {1, 2, 1, 2, 65, 31, 3, 7}, {1, 1, 1, 1, 300, 17, 4, 4},
	}
	for _, hkv := range []int{1, 2, 3, 4, 6, 12} {
		for _, hf := range []int{1, 2, 3, 4, 6, 12} {
			shapes = append(shapes, shape{1, 12, hkv, hf, 1 + rng.IntN(20), rng.IntN(8), 3, 2})
		}
	}
	for range 60 {
		shapes = append(shapes, shape{1 + rng.IntN(2), 2, 1 + rng.IntN(2), 1 + rng.IntN(2), rng.IntN(50), rng.IntN(30), 1 + rng.IntN(6), 1 + rng.IntN(6)})
	}
	largest := 0.0
	for n, s := range shapes {
		for _, interval := range []Interval{Exclusive, Inclusive} {
			x := randomOperands(rng, s, interval, []float64{0, 0.2, 0.7, 1}[n%4])
			want := run(Parallel(x))
			d := maxDiff(want.Output, literal(x))
			largest = math.Max(largest, d)
			if !(d <= agreement) {
				t.Errorf("%v %v: Parallel and the formula differ by %g", s, interval, d)
			}
			sameResult(t, fmt.Sprintf("%v %v recurrent", s, interval), run(Recurrent(x)), want)
			for _, size := range []int{1, 2, 3, 7, 16, 64, 1000} {
				sameResult(t, fmt.Sprintf("%v %v block %d", s, interval, size), run(block(x, size)), want)
			}
		}
	}
	t.Logf("largest difference to the formula %.2g", largest)
}

// slice returns the new positions [from, to) of x, on top of the past that r
// left.
func slice(x Operands, from, to int, r Result, past int) Operands {
	cut := func(m []float64, heads, dim int) []float64 {
		var out []float64
		for h := range x.Batch * heads {
			out = append(out, m[(h*x.New+from)*dim:(h*x.New+to)*dim]...)
		}
		return out
	}
	y := x
	y.New, y.Past = to-from, past
	y.Query = cut(x.Query, x.QueryHeads, x.KeyDim)
	y.Key = cut(x.Key, x.KeyHeads, x.KeyDim)
	y.Value = cut(x.Value, x.KeyHeads, x.ValueDim)
	y.Field = cut(x.Field, x.FieldHeads, 1)
	y.Level = cut(x.Level, x.FieldHeads, 1)
	y.PastKey, y.PastValue, y.PastLevel, y.PastLow = r.PresentKey, r.PresentValue, r.PresentLevel, r.PresentLow
	return y
}

func TestAnySplitIntoCalls(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	run := mustRun(t)
	for n := range 60 {
		s := shape{1 + rng.IntN(2), 4, 1 << rng.IntN(3), 1 << rng.IntN(3), 1 + rng.IntN(40), rng.IntN(9), 3, 2}
		x := randomOperands(rng, s, Interval(n%2), 0.2)
		want := run(Parallel(x))
		last := Result{PresentKey: x.PastKey, PresentValue: x.PastValue, PresentLevel: x.PastLevel, PresentLow: x.PastLow}
		past := x.Past
		got := make([]float64, len(want.Output))
		for from := 0; from < x.New; {
			to := from + rng.IntN(x.New-from+1) // an empty call now and then
			part := slice(x, from, to, last, past)
			switch rng.IntN(3) {
			case 0:
				last = run(Parallel(part))
			case 1:
				last = run(Recurrent(part))
			case 2:
				last = run(block(part, 1+rng.IntN(9)))
			}
			for m := range x.Batch * x.QueryHeads {
				copy(got[(m*x.New+from)*x.ValueDim:], last.Output[m*part.New*x.ValueDim:(m+1)*part.New*x.ValueDim])
			}
			past += part.New
			from = to
		}
		last.Output = got
		sameResult(t, fmt.Sprint(s), last, want)
	}
}

// The order of slots has no meaning, an empty slot may stand anywhere, and a
// freed slot may be used again.
func TestSlotOrder(t *testing.T) {
	rng := rand.New(rand.NewPCG(5, 6))
	run := mustRun(t)
	for n := range 40 {
		s := shape{1, 4, 2, 1 + n%2, 1 + rng.IntN(12), 1 + rng.IntN(20), 3, 2}
		x := randomOperands(rng, s, Interval(n%2), 0.1)
		want := run(Parallel(x))

		// Each slot moves to its place in perm; the places left over are empty
		// and hold rubbish.
		room := x.Past + rng.IntN(4)
		perm := rng.Perm(room)[:x.Past]
		spread := func(m []float64, heads, dim int, rubbish float64) []float64 {
			out := make([]float64, x.Batch*heads*room*dim)
			for i := range out {
				out[i] = rubbish
			}
			for h := range x.Batch * heads {
				for from, to := range perm {
					copy(out[(h*room+to)*dim:], m[(h*x.Past+from)*dim:(h*x.Past+from+1)*dim])
				}
			}
			return out
		}
		y := x
		y.Past = room
		y.PastKey = spread(x.PastKey, x.KeyHeads, x.KeyDim, math.NaN())
		y.PastValue = spread(x.PastValue, x.KeyHeads, x.ValueDim, math.NaN())
		y.PastLevel = spread(x.PastLevel, x.FieldHeads, 1, math.Inf(1))
		y.PastLow = spread(x.PastLow, x.FieldHeads, 1, math.NaN())
		for name, r := range map[string]Result{"parallel": run(Parallel(y)), "recurrent": run(Recurrent(y)), "block": run(block(y, 4))} {
			if d := maxDiff(r.Output, want.Output); !(d <= agreement) {
				t.Errorf("%v %s: outputs differ by %g", s, name, d)
			}
		}
	}

	// A stream that loses a key and takes the next one into its slot gives
	// what a stream gives that never saw the key, but for the field.
	a := Stream{Slope: 1, Scale: 1}
	b := Stream{Slope: 1, Scale: 1}
	field, level := randomField(rng, 30)
	for i := range field {
		k, v, q := normals(rng, 3, 1), normals(rng, 2, 1), normals(rng, 3, 1)
		a.Append(k, v, field[i], level[i])
		b.Append(k, v, field[i], level[i])
		if i%3 == 2 {
			key := a.Slots[i%len(a.Slots)].Key
			a.Remove(i % len(a.Slots))
			for j := range b.Slots { // the same key, kept in order
				if &b.Slots[j].Key[0] == &key[0] {
					b.Slots = append(b.Slots[:j:j], b.Slots[j+1:]...)
					break
				}
			}
		}
		if d := maxDiff(a.Attend(q, 2), b.Attend(q, 2)); !(d <= agreement) || len(a.Slots) != len(b.Slots) {
			t.Fatalf("token %d: outputs differ by %g with %d and %d slots", i, d, len(a.Slots), len(b.Slots))
		}
	}
}

// Moving the origin of field, levels and lows by a whole number changes
// nothing: this is what lets a walk be re-based.
func TestOrigin(t *testing.T) {
	rng := rand.New(rand.NewPCG(7, 8))
	run := mustRun(t)
	for n := range 20 {
		x := randomOperands(rng, shape{1, 2, 1, 2, 20, 10, 3, 2}, Interval(n%2), 0.1)
		want := run(Parallel(x)).Output
		base := float64(rng.IntN(200) - 100)
		for _, m := range [][]float64{x.Field, x.Level, x.PastLevel, x.PastLow} {
			for i := range m {
				m[i] -= base
			}
		}
		if d := maxDiff(run(Parallel(x)).Output, want); !(d <= 1e-11) {
			t.Errorf("origin moved by %g: outputs differ by %g", base, d)
		}
	}
}

// biased is softmax attention with an additive bias, the common form that the
// special cases are compared with.
func biased(q, k, v [][]float64, bias func(i, j int) float64) (out []float64) {
	scale := 1 / math.Sqrt(float64(len(q[0])))
	for i := range q {
		y := make([]float64, len(v[0]))
		sum := 0.0
		for j := 0; j <= i; j++ {
			s := 0.0
			for c := range q[i] {
				s += q[i][c] * k[j][c]
			}
			w := math.Exp(scale*s + bias(i, j))
			sum += w
			for c := range y {
				y[c] += w * v[j][c]
			}
		}
		for c := range y {
			out = append(out, y[c]/sum)
		}
	}
	return out
}

func TestSpecialCases(t *testing.T) {
	rng := rand.New(rand.NewPCG(9, 10))
	const n, d, dv = 120, 8, 5
	base := randomOperands(rng, shape{1, 1, 1, 1, n, 0, d, dv}, Exclusive, 0)
	q, k, v := rows(base.Query, 0, n, d), rows(base.Key, 0, n, d), rows(base.Value, 0, n, dv)

	logForget := make([]float64, n) // log sigmoid of random gates
	for i := range logForget {
		logForget[i] = -math.Log(1 + math.Exp(-3*rng.NormFloat64()))
	}
	// Nested scopes: +1 opens one, -1 closes it; never below the ground. The
	// steps are those of the walk between scopes 1, so a large slope kills all
	// that the minimum has passed.
	depth := make([]float64, n)
	x := 0
	for i := range depth {
		if x == 0 || rng.IntN(2) == 0 {
			x++
		} else {
			x--
		}
		depth[i] = float64(x)
	}
	cumulative := make([]float64, n)
	alibi := make([]float64, n)
	sum := 0.0
	for i := range cumulative {
		sum += logForget[i]
		cumulative[i] = sum
		alibi[i] = -float64(i)
	}
	const m = 0.125

	for _, c := range []struct {
		name  string
		field []float64
		slope float64
		bias  func(i, j int) float64
	}{
		{"softmax", base.Field, 0, func(i, j int) float64 { return 0 }},
		{"forgetting attention", cumulative, 1, func(i, j int) float64 {
			sum := 0.0
			for t := j + 1; t <= i; t++ {
				sum += logForget[t]
			}
			return sum
		}},
		{"ALiBi", alibi, m, func(i, j int) float64 { return -m * float64(i-j) }},
		{"stack", depth, 1e4, func(i, j int) float64 {
			// A key lives while the walk has not come below it.
			for t := j + 1; t <= i; t++ {
				if depth[t] < depth[j] {
					return math.Inf(-1)
				}
			}
			return 0
		}},
	} {
		x := base
		x.Field, x.Level, x.Slope = c.field, c.field, []float64{c.slope}
		if c.slope == 0 {
			x.Level = base.Level // anything will do
		}
		want := biased(q, k, v, c.bias)
		run := mustRun(t)
		for name, r := range map[string]Result{"parallel": run(Parallel(x)), "recurrent": run(Recurrent(x)), "block": run(block(x, 16))} {
			if d := maxDiff(r.Output, want); !(d <= agreement) {
				t.Errorf("%s, %s: differs by %g", c.name, name, d)
			}
		}
	}
}

// The two intervals differ only for keys whose level lies above the field at
// their own position.
func TestIntervalsDiffer(t *testing.T) {
	rng := rand.New(rand.NewPCG(11, 12))
	run := mustRun(t)
	x := randomOperands(rng, shape{1, 1, 1, 1, 40, 0, 3, 2}, Exclusive, 0)
	x.Slope[0] = 1
	for i := range x.Level {
		x.Level[i] = x.Field[i] - rng.ExpFloat64()
	}
	y := x
	y.Interval = Inclusive
	if d := maxDiff(run(Parallel(x)).Output, run(Parallel(y)).Output); d != 0 {
		t.Errorf("levels below the field: outputs differ by %g", d)
	}
	x.Level[0] = x.Field[0] + 100
	for i := 1; i < len(x.Field); i++ {
		x.Field[i] = x.Field[0] + 100 + float64(i)
		x.Level[i] = x.Field[i]
	}
	y = x
	y.Interval = Inclusive
	if d := maxDiff(run(Parallel(x)).Output, run(Parallel(y)).Output); d < 1e-3 {
		t.Errorf("a key above its own field: outputs differ by only %g", d)
	}
}

func TestBlockSkipsDeadPairs(t *testing.T) {
	rng := rand.New(rand.NewPCG(13, 14))
	x := randomOperands(rng, shape{1, 2, 1, 1, 200, 0, 4, 3}, Exclusive, 0.1)
	for i, sum := 0, 0.0; i < 200; i++ {
		sum -= 12 * rng.Float64()
		x.Field[i] = sum
		if !math.IsInf(x.Level[i], 1) {
			x.Level[i] = sum
		}
	}
	x.Slope[0] = 1
	u := 0.0 // the largest |logit| without penalty
	for h := range 2 {
		for _, q := range rows(x.Query, h, 200, 4) {
			for _, k := range rows(x.Key, 0, 200, 4) {
				u = math.Max(u, math.Abs(x.scale()*dot(q, k)))
			}
		}
	}
	want, err := Parallel(x)
	if err != nil {
		t.Fatal(err)
	}
	largestValue := 0.0
	for _, v := range x.Value {
		largestValue = math.Max(largestValue, math.Abs(v))
	}
	for _, c := range []struct{ threshold, limit float64 }{
		{2*u + 746, agreement},
		{2*u + math.Log(200/1e-3), 2 * 1e-3 * largestValue},
	} {
		got, stats, err := Block(x, BlockOptions{Size: 16, Dead: []float64{c.threshold, c.threshold}})
		if err != nil {
			t.Fatal(err)
		}
		if d := maxDiff(got.Output, want.Output); !(d <= c.limit) {
			t.Errorf("threshold %g: outputs differ by %g, limit %g", c.threshold, d, c.limit)
		}
		if stats.Pairs != 2*13*14/2 || stats.Skipped == 0 || stats.Skipped > stats.Pairs-2*13 {
			t.Errorf("threshold %g: %d of %d pairs skipped", c.threshold, stats.Skipped, stats.Pairs)
		}
	}
	_, stats, err := Block(x, BlockOptions{Size: 16, Dead: []float64{1e9, 1e9}})
	if err != nil || stats.Skipped != 0 {
		t.Errorf("with a threshold out of reach %d pairs are skipped (%v)", stats.Skipped, err)
	}
}

// Penalties beyond the range of float64 weigh nothing, and a slope of 0 makes
// them nothing.
func TestHugePenalties(t *testing.T) {
	run := mustRun(t)
	x := Operands{
		Batch: 1, QueryHeads: 2, KeyHeads: 1, FieldHeads: 2, New: 3, KeyDim: 1, ValueDim: 1,
		Query: make([]float64, 6), Key: make([]float64, 3), Value: []float64{3, 6, 9},
		Field: []float64{1e308, -1e308, -1e308, 1e308, -1e308, -1e308}, Slope: []float64{0, 1},
	}
	x.Level = x.Field
	want := []float64{3, 4.5, 6, 3, 6, 7.5}
	for name, r := range map[string]Result{"parallel": run(Parallel(x)), "recurrent": run(Recurrent(x)), "block": run(block(x, 1)), "one block": run(block(x, 8))} {
		checkNear(t, name, r.Output, want, agreement)
	}
}

// FuzzFormsAgree looks for a size, interval or share of skipped positions for
// which the three forms differ.
func FuzzFormsAgree(f *testing.F) {
	f.Add(uint64(1), uint8(5), uint8(3), uint8(2), false, uint8(0))
	f.Add(uint64(2), uint8(0), uint8(0), uint8(1), true, uint8(50))
	f.Add(uint64(3), uint8(33), uint8(9), uint8(8), true, uint8(255))
	f.Fuzz(func(t *testing.T, seed uint64, size, past, width uint8, inclusive bool, skip uint8) {
		rng := rand.New(rand.NewPCG(seed, 1))
		interval := Exclusive
		if inclusive {
			interval = Inclusive
		}
		run := mustRun(t)
		x := randomOperands(rng, shape{1, 2, 1 + int(seed%2), 1 + int(seed/2%2), int(size % 64), int(past % 64), 2, 3}, interval, float64(skip)/255)
		want := run(Parallel(x))
		if d := maxDiff(want.Output, literal(x)); !(d <= agreement) {
			t.Errorf("Parallel and the formula differ by %g", d)
		}
		sameResult(t, "recurrent", run(Recurrent(x)), want)
		sameResult(t, "block", run(block(x, 1+int(width))), want)
	})
}

func TestBadOperands(t *testing.T) {
	rng := rand.New(rand.NewPCG(15, 16))
	for name, spoil := range map[string]func(x *Operands){
		"heads":         func(x *Operands) { x.KeyHeads = 3 },
		"field heads":   func(x *Operands) { x.FieldHeads = 0 },
		"negative":      func(x *Operands) { x.New = -1 },
		"short query":   func(x *Operands) { x.Query = x.Query[1:] },
		"no past":       func(x *Operands) { x.PastLow = nil },
		"slope":         func(x *Operands) { x.Slope[0] = -1 },
		"slope NaN":     func(x *Operands) { x.Slope[0] = math.NaN() },
		"field NaN":     func(x *Operands) { x.Field[2] = math.NaN() },
		"level -inf":    func(x *Operands) { x.Level[2] = math.Inf(-1) },
		"past low -inf": func(x *Operands) { x.PastLow[1] = math.Inf(-1) },
		"interval":      func(x *Operands) { x.Interval = 2 },
	} {
		x := randomOperands(rng, shape{1, 4, 2, 2, 5, 3, 2, 2}, Exclusive, 0)
		spoil(&x)
		if _, err := Parallel(x); err == nil {
			t.Errorf("%s: Parallel gives no error", name)
		}
		if _, err := Recurrent(x); err == nil {
			t.Errorf("%s: Recurrent gives no error", name)
		}
		if _, err := block(x, 4); err == nil {
			t.Errorf("%s: Block gives no error", name)
		}
	}
	x := randomOperands(rng, shape{1, 4, 2, 2, 5, 3, 2, 2}, Exclusive, 0)
	if _, err := block(x, 0); err == nil {
		t.Error("block size 0 gives no error")
	}
	if _, _, err := Block(x, BlockOptions{Size: 4, Dead: []float64{1}}); err == nil {
		t.Error("one threshold for four heads gives no error")
	}
}
