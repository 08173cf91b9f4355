package reference

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
)

// loss is the scalar whose gradient the tests take: sum of output * weight.
func loss(t *testing.T, x Operands, weight []float64) float64 {
	t.Helper()
	r, err := Parallel(x)
	if err != nil {
		t.Fatal(err)
	}
	return dot(r.Output, weight)
}

func TestBackwardAgainstDifferences(t *testing.T) {
	rng := rand.New(rand.NewPCG(61, 62))
	worst := 0.0
	for n := range 24 {
		s := shape{1 + n%2, 4, []int{1, 2, 4}[n%3], []int{4, 1, 2}[n%3], 1 + rng.IntN(14), 0, 3, 2}
		interval := Interval(n / 2 % 2)
		x := randomOperands(rng, s, interval, []float64{0, 0.25}[n%2])
		// Keep away from kinks: all fields and levels differ, by far more than
		// a step.
		used := map[float64]bool{0: true}
		for _, m := range [][]float64{x.Field, x.Level} {
			for i := range m {
				for !math.IsInf(m[i], 1) && !math.IsNaN(m[i]) {
					if m[i] = math.Round(200*rng.NormFloat64()) / 100; !used[m[i]] {
						used[m[i]] = true
						break
					}
				}
			}
		}
		for i := range x.Slope {
			x.Slope[i] = 0.5 + rng.Float64()
		}
		weight := normals(rng, s.b*s.hq*s.t*s.dv, 1)
		g, err := Backward(x, weight)
		if err != nil {
			t.Fatal(err)
		}
		const step = 1e-5
		for _, o := range []struct {
			name          string
			operand, grad []float64
		}{
			{"query", x.Query, g.Query}, {"key", x.Key, g.Key}, {"value", x.Value, g.Value},
			{"field", x.Field, g.Field}, {"level", x.Level, g.Level}, {"slope", x.Slope, g.Slope},
		} {
			for i, at := range o.operand {
				if math.IsNaN(at) || math.IsInf(at, 1) {
					if o.grad[i] != 0 {
						t.Errorf("%v: gradient %v at the skipped element %d of %s", s, o.grad[i], i, o.name)
					}
					continue
				}
				o.operand[i] = at + step
				up := loss(t, x, weight)
				o.operand[i] = at - step
				down := loss(t, x, weight)
				o.operand[i] = at
				want := (up - down) / (2 * step)
				diff := math.Abs(o.grad[i] - want)
				worst = math.Max(worst, diff)
				if !(diff <= 1e-8) {
					t.Errorf("%v %v: gradient of %s[%d] is %v, differences give %v", s, interval, o.name, i, o.grad[i], want)
				}
			}
		}
	}
	t.Logf("largest difference %.2g", worst)
}

// With ties, the gradient of a minimum goes to the first position that attains
// it: compared with the argmin searched for each pair.
func TestBackwardTies(t *testing.T) {
	rng := rand.New(rand.NewPCG(63, 64))
	ties := 0
	for n := range 60 {
		size := 1 + rng.IntN(40)
		hd := head{field: make([]float64, size), level: make([]float64, size), interval: Interval(n % 2)}
		for i := range hd.field {
			hd.field[i] = float64(rng.IntN(4))
			if rng.IntN(5) == 0 {
				hd.field[i], hd.level[i] = math.NaN(), math.Inf(1)
			}
		}
		dLow := make([][]float64, size)
		want := make([]float64, size)
		for i := range dLow {
			dLow[i] = make([]float64, i+1)
			for j := 0; j <= i; j++ {
				first := j + 1
				if hd.interval == Inclusive {
					first = j
				}
				arg := -1
				for p := first; p <= i; p++ {
					if skipped(hd.level[p]) {
						continue
					}
					if arg >= 0 && hd.field[p] == hd.field[arg] {
						ties++
					}
					if arg < 0 || hd.field[p] < hd.field[arg] {
						arg = p
					}
				}
				// Skipped keys and empty stretches have no gradient.
				if arg >= 0 && !skipped(hd.level[j]) {
					dLow[i][j] = float64(rng.IntN(100))
					want[arg] += dLow[i][j]
				}
			}
		}
		got := make([]float64, size)
		hd.backwardLow(dLow, got)
		checkNear(t, fmt.Sprintf("size %d, %v", size, hd.interval), got, want, 0)
	}
	if ties < 1000 {
		t.Errorf("only %d ties", ties)
	}
}

func TestBackwardRefuses(t *testing.T) {
	rng := rand.New(rand.NewPCG(65, 66))
	x := randomOperands(rng, shape{1, 1, 1, 1, 3, 2, 2, 2}, Exclusive, 0)
	if _, err := Backward(x, make([]float64, 6)); err == nil {
		t.Error("past slots give no error")
	}
	x = randomOperands(rng, shape{1, 1, 1, 1, 3, 0, 2, 2}, Exclusive, 0)
	if _, err := Backward(x, make([]float64, 5)); err == nil {
		t.Error("a short dOutput gives no error")
	}
}
