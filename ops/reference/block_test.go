package reference

import (
	"math"
	"math/cmplx"
	"math/rand/v2"
	"testing"
)

// checkNear fails the test where got and want differ by more than limit.
func checkNear(t *testing.T, what string, got, want []float64, limit float64) {
	t.Helper()
	if d := maxDiff(got, want); !(d <= limit) {
		t.Errorf("%s differs by %g: got %v, want %v", what, d, got, want)
	}
}

func TestLinear(t *testing.T) {
	got := Linear([]float64{1, 2, 3, 4}, []float64{1, 0, 0, 1, 10, 100}, []float64{0.5, 0, -1}, 2, 3)
	checkNear(t, "Linear", got, []float64{1.5, 2, 209, 3.5, 4, 429}, 0)
	got = Linear([]float64{1, 2}, []float64{3, 4}, nil, 2, 1)
	checkNear(t, "Linear without bias", got, []float64{11}, 0)
}

func TestNorms(t *testing.T) {
	// 3, 4: the mean square is 12.5.
	got := RMSNorm([]float64{3, 4, 0, 0}, []float64{1, 2}, 0)
	checkNear(t, "RMSNorm", got[:2], []float64{3 / math.Sqrt(12.5), 8 / math.Sqrt(12.5)}, 1e-15)
	got = RMSNorm([]float64{3, 4, 0, 0}, []float64{1, 2}, 3.5)
	checkNear(t, "RMSNorm with eps", got, []float64{0.75, 2, 0, 0}, 1e-15)
	// Two positions of two heads of two: each head has its own weight.
	got = HeadNorm([]float64{3, 4, 3, 4, 4, 3, -3, 4}, []float64{1, 2, 10, 20}, 2, 3.5)
	checkNear(t, "HeadNorm", got, []float64{0.75, 2, 7.5, 20, 1, 1.5, -7.5, 20}, 1e-14)
	// A shared weight is the same as one that repeats.
	rng := rand.New(rand.NewPCG(31, 32))
	x, w := normals(rng, 3*4*5, 1), normals(rng, 5, 1)
	repeated := append(append(append(append([]float64{}, w...), w...), w...), w...)
	checkNear(t, "shared norm", RMSNorm(x, w, 1e-5), HeadNorm(x, repeated, 4, 1e-5), 0)
}

// A pair of elements turns like a complex number.
func TestRotary(t *testing.T) {
	rng := rand.New(rand.NewPCG(33, 34))
	const heads, d, positions, start = 3, 10, 4, 1000
	for _, r := range []Rotary{{}, {Dim: 10, Base: 10000}, {Dim: 6, Base: 500000}, {Dim: 4, Base: 100, Factors: []float64{1, 8}}} {
		x := normals(rng, positions*heads*d, 1)
		got := append([]float64{}, x...)
		r.Apply(got, heads, d, start)
		want := append([]float64{}, x...)
		for row := range positions * heads {
			v := want[row*d : (row+1)*d]
			for i := range r.Dim / 2 {
				angle := math.Exp(-math.Log(r.Base) * float64(2*i) / float64(r.Dim))
				if r.Factors != nil {
					angle /= r.Factors[i]
				}
				z := complex(v[i], v[i+r.Dim/2]) * cmplx.Exp(complex(0, angle*float64(start+row/heads)))
				v[i], v[i+r.Dim/2] = real(z), imag(z)
			}
		}
		checkNear(t, "rotary", got, want, 1e-11)
	}
	// Dot products depend on the distance alone.
	r := Rotary{Dim: 8, Base: 10000}
	at := func(x []float64, position int) []float64 {
		y := append([]float64{}, x...)
		r.Apply(y, 1, 8, position)
		return y
	}
	q, k := normals(rng, 8, 1), normals(rng, 8, 1)
	if a, b := dot(at(q, 17), at(k, 5)), dot(at(q, 112), at(k, 100)); math.Abs(a-b) > 1e-12 {
		t.Errorf("the dot product at distance 12 is %v or %v", a, b)
	}
}

// Short waves stay, long ones are stretched by the factor, and those between
// follow the published blend of the two frequencies.
func TestLlama3Factors(t *testing.T) {
	const base, factor, low, high, context = 500000, 8, 1, 4, 8192
	factors := Llama3Factors(128, base, factor, low, high, context)
	if len(factors) != 64 || factors[0] != 1 || factors[63] != factor {
		t.Fatalf("%d factors from %v to %v, want 64 from 1 to 8", len(factors), factors[0], factors[63])
	}
	blended := 0
	for i, f := range factors {
		frequency := math.Pow(base, -float64(i)/64)
		wave := 2 * math.Pi / frequency
		if i > 0 && f < factors[i-1] {
			t.Errorf("factor %d is %v, below the one before, %v", i, f, factors[i-1])
		}
		if wave >= context/high && wave <= context/low {
			blended++
			smooth := (context/wave - low) / (high - low)
			want := (1-smooth)*frequency/factor + smooth*frequency
			if math.Abs(frequency/f-want) > 1e-15 {
				t.Errorf("frequency %d is %v, want %v", i, frequency/f, want)
			}
		}
	}
	if blended < 3 {
		t.Errorf("only %d frequencies are blended", blended)
	}
}

func TestActivations(t *testing.T) {
	// From the closed forms, evaluated with 40 digits.
	for _, c := range []struct {
		act  Activation
		z, y float64
	}{
		{Identity, -2.5, -2.5},
		{Tanh, 0.5, 0.46211715726000973},
		{LogSigmoid, 0, -math.Ln2},
		{LogSigmoid, 2, -0.1269280110429725},
		{LogSigmoid, -800, -800},
		{LogSigmoid, 40, -4.248354255291589e-18},
		{NegSoftplus, 2, -2.1269280110429727},
		{NegSoftplus, -40, -4.248354255291589e-18},
		{NegSoftplus, 800, -800},
		{Sigmoid, 2, 0.8807970779778823},
		{Sigmoid, -800, 0},
		{SiLU, 2, 1.7615941559557646},
		{SiLU, -2, -0.23840584404423537},
		{GELU, 1, 0.8413447460685429},
		{GELU, -1, -0.15865525393145707},
		{GELUTanh, 1, 0.8411919906082768},
		{ReLU, -3, 0},
		{ReLU, 3, 3},
	} {
		f, err := c.act.Func()
		if err != nil {
			t.Fatal(err)
		}
		if got := f(c.z); math.Abs(got-c.y) > 1e-15*math.Max(1, math.Abs(c.y)) && !(c.y != 0 && math.Abs(got/c.y-1) < 1e-14) {
			t.Errorf("%s(%v) = %v, want %v", c.act, c.z, got, c.y)
		}
	}
	if _, err := Activation("swish2").Func(); err == nil {
		t.Error("an unknown activation gives no error")
	}
}

func TestShift(t *testing.T) {
	// One head of two, gates 1/2, 1/2, then about 1 (all of the old).
	y := []float64{2, 4, 6, 8, 10, 12}
	previous := make([]float64, 2)
	got := Shift(y, []float64{0, 0, 100}, previous, nil)
	checkNear(t, "Shift", got, []float64{1, 2, 4, 6, 6, 8}, 1e-15)
	checkNear(t, "shift state", previous, []float64{10, 12}, 0)

	// Padding is passed over: real positions see the last real one.
	previous = make([]float64, 2)
	got = Shift(y, []float64{0, 0, 0}, previous, []bool{false, true, false})
	checkNear(t, "Shift over padding", got, []float64{1, 2, 6, 8, 6, 8}, 1e-15)

	// Any split gives the same; each head has a gate of its own.
	rng := rand.New(rand.NewPCG(35, 36))
	const heads, d, n = 3, 2, 9
	y, gate := normals(rng, n*heads*d, 1), normals(rng, n*heads, 1)
	whole := Shift(y, gate, make([]float64, heads*d), nil)
	for i := range n * heads * d {
		before := 0.0
		if i >= heads*d {
			before = y[i-heads*d]
		}
		a := 1 / (1 + math.Exp(-gate[i/d]))
		if math.Abs(whole[i]-(a*before+(1-a)*y[i])) > 1e-14 {
			t.Errorf("element %d is %v", i, whole[i])
		}
	}
	previous = make([]float64, heads*d)
	var parts []float64
	for _, cut := range [][2]int{{0, 4}, {4, 4}, {4, 5}, {5, 9}} {
		parts = append(parts, Shift(y[cut[0]*heads*d:cut[1]*heads*d], gate[cut[0]*heads:cut[1]*heads], previous, nil)...)
	}
	checkNear(t, "Shift in parts", parts, whole, 0)
}

func TestTransposes(t *testing.T) {
	x := []float64{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12} // [3, 2, 2]
	got := HeadsFirst(x, 2, 2)
	checkNear(t, "HeadsFirst", got, []float64{1, 2, 5, 6, 9, 10, 3, 4, 7, 8, 11, 12}, 0)
	checkNear(t, "PositionsFirst", PositionsFirst(got, 2, 2), x, 0)
}

func TestGate(t *testing.T) {
	sigmoid, err := Sigmoid.Func()
	if err != nil {
		t.Fatal(err)
	}
	got := Gate(sigmoid, []float64{0, math.Log(3)}, []float64{4, 8})
	checkNear(t, "Gate", got, []float64{2, 6}, 1e-14)
}
