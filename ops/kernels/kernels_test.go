package kernels

import (
	"fmt"
	"math"
	"math/rand/v2"
	"runtime"
	"slices"
	"testing"

	"github.com/firstpassage/fpa/quant"
)

var (
	inf    = float32(math.Inf(1))
	negInf = float32(math.Inf(-1))
	nan    = float32(math.NaN())
)

// lengths are the shapes of vectors: nothing, one, around every register width
// and unrolling, and something longer.
var lengths = []int{0, 1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 23, 24, 31, 32, 33, 47, 48, 63, 64, 65, 96, 100, 127, 128, 129, 192, 255, 257, 1000}

func newRand() *rand.Rand { return rand.New(rand.NewPCG(11, 12)) }

func normals(r *rand.Rand, n int) []float32 {
	x := make([]float32, n)
	for i := range x {
		x[i] = float32(r.NormFloat64())
	}
	return x
}

// guarded returns a copy of x inside a larger array whose other elements must
// not change, and a function that checks them.
func guarded(t *testing.T, x []float32) ([]float32, func()) {
	t.Helper()
	const guard, border = float32(-12345.5), 20
	all := make([]float32, len(x)+2*border)
	for i := range all {
		all[i] = guard
	}
	copy(all[border:], x)
	return all[border : border+len(x) : border+len(x)], func() {
		t.Helper()
		for i, v := range all {
			if (i < border || i >= border+len(x)) && v != guard {
				t.Fatalf("length %d: wrote outside, at %d", len(x), i-border)
			}
		}
	}
}

// near fails unless got is within tolerance of want, relative to size.
func near(t *testing.T, what string, got float32, want, size, tolerance float64) {
	t.Helper()
	if math.Float64bits(want) == math.Float64bits(float64(got)) || math.IsNaN(want) && got != got {
		return
	}
	if d := math.Abs(float64(got) - want); !(d <= tolerance*size) {
		t.Fatalf("%s: got %v, want %v (off by %.3g, allowed %.3g)", what, got, want, d, tolerance*size)
	}
}

// dot64 is the sum of products and of their magnitudes.
func dot64(a, b []float32) (sum, size float64) {
	for i, v := range a {
		p := float64(v) * float64(b[i])
		sum += p
		size += math.Abs(p)
	}
	return sum, size
}

const sumTolerance = 3e-7 // of the sum of magnitudes

func TestDot(t *testing.T) {
	eachLevel(t, func(t *testing.T) {
		r := newRand()
		for _, n := range lengths {
			a, b := normals(r, n), normals(r, n+1)
			want, size := dot64(a, b)
			near(t, fmt.Sprint("Dot of ", n), Dot(a, b), want, size, sumTolerance)
		}
	})
}

// TestElementwise compares every function of one element with its formula in
// float64.
func TestElementwise(t *testing.T) {
	const a = -0.37
	tests := []struct {
		name string
		run  func(y, x []float32)
		want func(y, x float64) float64
	}{
		{"Axpy", func(y, x []float32) { Axpy(y, a, x) }, func(y, x float64) float64 { return y + float64(float32(a))*x }},
		{"Add", Add, func(y, x float64) float64 { return y + x }},
		{"Mul", Mul, func(y, x float64) float64 { return y * x }},
		{"Scale", func(y, _ []float32) { Scale(y, a) }, func(y, _ float64) float64 { return y * float64(float32(a)) }},
		{"Sub", func(y, _ []float32) { Sub(y, 3) }, func(y, _ float64) float64 { return y - 3 }},
		{"UpdateLow", func(y, _ []float32) { UpdateLow(y, a) }, func(y, _ float64) float64 { return min(y, float64(float32(a))) }},
		{"SiluMul", func(y, x []float32) { SiluMul(y, y, x) }, func(y, x float64) float64 { return y / (1 + math.Exp(-y)) * x }},
		{"GatedMul Sigmoid", func(y, x []float32) { GatedMul(Sigmoid, y, x, y) }, func(y, x float64) float64 { return y / (1 + math.Exp(-x)) }},
		{"GatedMul Relu", func(y, x []float32) { GatedMul(Relu, y, y, x) }, func(y, x float64) float64 { return max(0, y) * x }},
	}
	eachLevel(t, func(t *testing.T) {
		r := newRand()
		for _, test := range tests {
			for _, n := range lengths {
				x, before := normals(r, n+3), normals(r, n)
				y, check := guarded(t, before)
				test.run(y, x)
				check()
				for i, got := range y {
					want := test.want(float64(before[i]), float64(x[i]))
					size := math.Abs(want) + math.Abs(float64(before[i]))
					near(t, fmt.Sprintf("%s of %d, element %d", test.name, n, i), got, want, size, 4e-7)
				}
			}
		}
	})
}

func TestSubKeepsInfinity(t *testing.T) {
	eachLevel(t, func(t *testing.T) {
		x := []float32{inf, negInf, 5}
		Sub(x, 2)
		if x[0] != inf || x[1] != negInf || x[2] != 3 {
			t.Error(x)
		}
	})
}

func TestMax(t *testing.T) {
	eachLevel(t, func(t *testing.T) {
		r := newRand()
		for _, n := range lengths {
			x := normals(r, n)
			for range min(n, 20) { // the largest at every place
				i := r.IntN(n)
				x[i] = 10
				if got := Max(x); got != 10 {
					t.Fatalf("Max of %d with 10 at %d is %v", n, i, got)
				}
				x[i] = -x[i]
			}
			for i := range x {
				x[i] = -1 - float32(i)
			}
			want := negInf
			if n > 0 {
				want = -1
				x[n/2] = nan
				if n/2 == 0 {
					want = -2
					if n == 1 {
						want = negInf
					}
				}
			}
			if got := Max(x); got != want {
				t.Fatalf("Max of %d negatives and a NaN is %v, want %v", n, got, want)
			}
		}
	})
}

func TestRMSNorm(t *testing.T) {
	eachLevel(t, func(t *testing.T) {
		r := newRand()
		for _, n := range lengths {
			for _, weighted := range []bool{false, true} {
				x := normals(r, n)
				var w []float32
				if weighted {
					w = normals(r, n)
				}
				square, _ := dot64(x, x)
				inverse := 1 / math.Sqrt(square/float64(n)+1e-5)
				apart, check := guarded(t, make([]float32, n))
				RMSNorm(apart, x, w, 1e-5)
				check()
				same, check := guarded(t, x)
				RMSNorm(same, same, w, 1e-5)
				check()
				for i := range x {
					want := float64(x[i]) * inverse
					if weighted {
						want *= float64(w[i])
					}
					near(t, "RMSNorm", apart[i], want, math.Abs(want), 1e-6)
					if same[i] != apart[i] {
						t.Fatalf("RMSNorm in place differs at %d of %d", i, n)
					}
				}
			}
		}
		zeros := make([]float32, 40)
		RMSNorm(zeros, zeros, nil, 1e-6)
		for _, v := range zeros {
			if v != 0 {
				t.Fatalf("norm of zeros: %v", zeros)
			}
		}
		large := slices.Repeat([]float32{1e30, -1e30}, 20) // whose squares overflow
		RMSNorm(large, large, nil, 1e-6)
		for i, v := range large {
			near(t, "RMSNorm of large numbers", v, float64(1-i%2*2), 1, 1e-6)
		}
	})
}

// TestExpSum measures the error of the exponential over its whole range.
func TestExpSum(t *testing.T) {
	eachLevel(t, func(t *testing.T) {
		var worst float64
		x := make([]float32, 1000)
		for start := -88.0; start < 89; start++ {
			for i := range x {
				x[i] = float32(start + float64(i)/1000)
			}
			e := append([]float32(nil), x...)
			sum := ExpSum(e, 0)
			var want float64
			for i, v := range x {
				w := math.Exp(float64(v))
				switch {
				case w < 0x1p-126*(1-1e-5):
					if e[i] != 0 {
						t.Fatalf("exp(%v) is %v, want 0", v, e[i])
					}
					continue
				case w < 0x1p-126*(1+1e-5):
					continue
				case w > math.MaxFloat32:
					if e[i] != inf {
						t.Fatalf("exp(%v) is %v, want +Inf", v, e[i])
					}
				default:
					worst = max(worst, math.Abs(float64(e[i])-w)/w)
				}
				want += float64(e[i])
			}
			if want < math.MaxFloat32 {
				near(t, "sum", sum, want, want, 2e-6)
			}
		}
		t.Logf("largest relative error %.3g", worst)
		if worst > 2e-7 {
			t.Errorf("largest relative error of exp is %.3g", worst)
		}
		for _, n := range lengths {
			s, check := guarded(t, normals(newRand(), n))
			before := append([]float32(nil), s...)
			sum := ExpSum(s, 1.5)
			check()
			var want float64
			for i, v := range before {
				w := math.Exp(float64(v - 1.5))
				near(t, "exp", s[i], w, w, 2e-7)
				want += w
			}
			near(t, "sum", sum, want, want, 1e-6)
		}
		special := []float32{negInf, inf, nan, 0, -1000, 1000}
		if sum := ExpSum(special, 0); sum == sum {
			t.Errorf("sum over a NaN is %v", sum)
		}
		if special[0] != 0 || special[1] != inf || special[2] == special[2] || special[3] != 1 || special[4] != 0 || special[5] != inf {
			t.Errorf("special values: %v", special)
		}
	})
}

func TestSoftmax(t *testing.T) {
	eachLevel(t, func(t *testing.T) {
		r := newRand()
		for _, n := range lengths {
			x := normals(r, n)
			for i := range x {
				x[i] = 1000 + 10*x[i]
				if r.IntN(3) == 0 {
					x[i] = negInf
				}
			}
			top, sum := math.Inf(-1), 0.0
			for _, v := range x {
				top = max(top, float64(v))
			}
			for _, v := range x {
				sum += math.Exp(float64(v) - top)
			}
			y, check := guarded(t, x)
			Softmax(y)
			check()
			for i, got := range y {
				want := 0.0
				if x[i] != negInf {
					want = math.Exp(float64(x[i])-top) / sum
				}
				near(t, "Softmax", got, want, want+1e-30, 2e-6)
			}
		}
		x := []float32{negInf, negInf, negInf}
		Softmax(x)
		if x[0] != 0 || x[1] != 0 || x[2] != 0 {
			t.Errorf("Softmax of nothing: %v", x)
		}
		x = []float32{1, nan, 2}
		Softmax(x)
		if x[0] == x[0] || x[1] == x[1] {
			t.Errorf("Softmax hides a NaN: %v", x)
		}
	})
}

func TestActivate(t *testing.T) {
	sigmoid := func(x float64) float64 { return 1 / (1 + math.Exp(-x)) }
	tests := []struct {
		name     string
		kind     Activation
		want     func(x float64) float64
		relative bool
	}{
		{"Silu", Silu, func(x float64) float64 { return x * sigmoid(x) }, true},
		{"Sigmoid", Sigmoid, sigmoid, true},
		{"Gelu", Gelu, func(x float64) float64 { return 0.5 * x * math.Erfc(-x/math.Sqrt2) }, false},
		{"GeluTanh", GeluTanh, func(x float64) float64 {
			return 0.5 * x * (1 + math.Tanh(math.Sqrt(2/math.Pi)*(x+0.044715*x*x*x)))
		}, false},
		{"Relu", Relu, func(x float64) float64 { return max(0, x) }, true},
		{"Tanh", Tanh, math.Tanh, true},
	}
	eachLevel(t, func(t *testing.T) {
		r := newRand()
		for _, test := range tests {
			worst := 0.0
			for _, n := range append(lengths, 20000) {
				x := normals(r, n)
				for i := range x {
					x[i] *= []float32{1e-4, 0.3, 1, 5, 20}[r.IntN(5)]
				}
				y, check := guarded(t, x)
				Activate(test.kind, y)
				check()
				for i, got := range y {
					want := test.want(float64(x[i]))
					size := math.Abs(want)
					if !test.relative {
						size = max(size, math.Abs(float64(x[i])))
					}
					if size > 0 {
						worst = max(worst, math.Abs(float64(got)-want)/size)
					}
				}
			}
			t.Logf("%s: largest relative error %.3g", test.name, worst)
			if worst > 4e-7 {
				t.Errorf("%s: largest relative error %.3g", test.name, worst)
			}
			ends := []float32{-1000, 1000, 0, nan}
			Activate(test.kind, ends)
			for i, x := range []float64{-1000, 1000, 0} {
				near(t, test.name, ends[i], test.want(x)+0, 1, 1e-6)
			}
			if ends[3] == ends[3] {
				t.Errorf("%s of NaN is %v", test.name, ends[3])
			}
		}
	})
}

func TestPenalise(t *testing.T) {
	special := []float32{0, 1, -1, 2.5, inf, negInf, math.MaxFloat32, -math.MaxFloat32}
	eachLevel(t, func(t *testing.T) {
		r := newRand()
		for _, n := range lengths {
			for _, slope := range []float32{0, 0.25, 3} {
				logits, lows, levels := normals(r, n), normals(r, n), normals(r, n)
				for i := range lows {
					if r.IntN(3) == 0 {
						lows[i] = special[r.IntN(len(special))]
					}
					if r.IntN(3) == 0 {
						levels[i] = special[r.IntN(len(special))]
					}
				}
				field := float32(r.NormFloat64())
				s, checkS := guarded(t, logits)
				low, checkLow := guarded(t, lows)
				largest := Penalise(s, low, levels, field, slope)
				checkS()
				checkLow()
				var wantLargest float64
				for j := range s {
					wantLow := min(float64(lows[j]), float64(field))
					if float64(low[j]) != wantLow {
						t.Fatalf("low %v with field %v became %v", lows[j], field, low[j])
					}
					if levels[j] == inf {
						if s[j] != negInf {
							t.Fatalf("an empty slot has logit %v", s[j])
						}
						continue
					}
					penalty, d := 0.0, float64(levels[j])-wantLow
					if slope != 0 && d > 0 {
						penalty = float64(slope) * d
					}
					if slope != 0 && max(d, penalty) > math.MaxFloat32 {
						// The difference is cut at the largest number.
						if s[j] > -math.MaxFloat32/5 {
							t.Fatalf("penalty %g left logit %v", penalty, s[j])
						}
						wantLargest = math.Inf(1)
						continue
					}
					wantLargest = max(wantLargest, penalty)
					near(t, "penalised logit", s[j], float64(logits[j])-penalty, math.Abs(float64(logits[j]))+penalty, 3e-7)
				}
				if math.IsInf(wantLargest, 1) {
					if largest < math.MaxFloat32/5 {
						t.Fatalf("largest penalty %v", largest)
					}
				} else {
					near(t, "largest penalty", largest, wantLargest, wantLargest, 3e-7)
				}
			}
		}
		// Nothing but empty slots, with lows and fields that would make NaNs.
		s, low, level := []float32{1, 2}, []float32{inf, negInf}, []float32{inf, inf}
		if got := Penalise(s, low, level, inf, 1); got != 0 || s[0] != negInf || s[1] != negInf || low[0] != inf || low[1] != negInf {
			t.Errorf("empty slots: %v %v %v", got, s, low)
		}
	})
}

func halves(x []float32) []uint16 {
	h := make([]uint16, len(x))
	quant.EncodeF16(h, x)
	return h
}

func TestKeyDots(t *testing.T) {
	eachLevel(t, func(t *testing.T) {
		r := newRand()
		for _, d := range []int{0, 1, 3, 8, 15, 16, 24, 33, 64, 80, 100, 128, 257} {
			for _, n := range []int{0, 1, 2, 3, 4, 5, 7, 8, 9, 64, 65} {
				q, keys := normals(r, d), normals(r, n*d)
				k16 := halves(keys)
				rounded := make([]float32, len(keys))
				quant.DecodeF16(rounded, k16)
				s, check := guarded(t, make([]float32, n))
				s32, check32 := guarded(t, make([]float32, n))
				KeyDotsF16(s, q, k16, d, 0.3)
				KeyDotsF32(s32, q, rounded, d, 0.3)
				check()
				check32()
				for j := range s {
					want, size := dot64(q, rounded[j*d:(j+1)*d])
					what := fmt.Sprintf("key %d of %d, %d elements", j, n, d)
					near(t, what, s[j], want*float64(float32(0.3)), 0.3*size, sumTolerance)
					near(t, what, s32[j], want*float64(float32(0.3)), 0.3*size, sumTolerance)
				}
			}
		}
	})
}

func TestAccumulate(t *testing.T) {
	eachLevel(t, func(t *testing.T) {
		r := newRand()
		for _, d := range []int{0, 1, 3, 8, 15, 16, 24, 33, 64, 80, 96, 100, 128, 129, 257, 320} {
			for _, n := range []int{0, 1, 2, 5, 64, 65} {
				p, values, before := normals(r, n), normals(r, n*d), normals(r, d)
				v16 := halves(values)
				rounded := make([]float32, len(values))
				quant.DecodeF16(rounded, v16)
				for j := range p {
					if r.IntN(4) == 0 { // a free slot, with anything in it
						p[j] = 0
						for c := range d {
							v16[j*d+c], rounded[j*d+c] = 0x7e00, nan
						}
					}
				}
				y, check := guarded(t, before)
				y32, check32 := guarded(t, before)
				AccumulateF16(y, p, v16)
				AccumulateF32(y32, p, rounded)
				check()
				check32()
				for c := range y {
					want, size := float64(before[c]), math.Abs(float64(before[c]))
					for j, w := range p {
						if w != 0 {
							want += float64(w) * float64(rounded[j*d+c])
							size += math.Abs(float64(w) * float64(rounded[j*d+c]))
						}
					}
					what := fmt.Sprintf("element %d of %d, %d values", c, d, n)
					near(t, what, y[c], want, size, 1e-6)
					near(t, what, y32[c], want, size, 1e-6)
				}
			}
		}
	})
}

// matrix makes a matrix of random numbers at an odd address, and its values.
func matrix(t testing.TB, r *rand.Rand, d quant.DType, rows, cols int) (Matrix, []float32) {
	t.Helper()
	x := normals(r, rows*cols)
	size, err := d.Bytes(int64(len(x)))
	if err != nil {
		t.Fatal(err)
	}
	data := make([]byte, size+1)[1:]
	if quant.CanEncode(d) {
		if err := quant.Encode(data, d, x); err != nil {
			t.Fatal(err)
		}
	} else {
		for i := range data {
			data[i] = byte(r.IntN(16)) // small exponents: scales far from infinity
		}
	}
	if err := quant.Decode(x, d, data); err != nil {
		t.Fatal(err)
	}
	m := Matrix{Type: d, Rows: rows, Cols: cols, Data: data}
	if err := m.Check(); err != nil {
		t.Fatal(err)
	}
	return m, x
}

// matMulOf is MatMul of n vectors, ldx apart in x.
func matMulOf(y []float32, ldy int, w Matrix, x []float32, ldx, n, r0, r1 int, s *Scratch) {
	var in Input
	in.Set(x, ldx, n, w.Cols)
	in.Need(w)
	in.Prepare(0, n)
	MatMul(y, ldy, w, &in, r0, r1, s)
}

// TestMatMul compares with float64, for every type and many shapes, and checks
// that nothing outside the rows asked for is written and that splitting the
// rows changes no bit.
func TestMatMul(t *testing.T) {
	types := []struct {
		d    quant.DType
		cols []int
	}{
		{quant.F32, []int{0, 1, 7, 16, 24, 33, 96, 192, 257}},
		{quant.F16, []int{0, 1, 7, 8, 16, 24, 33, 50, 96, 192, 257, 1024, 1025, 2100}},
		{quant.BF16, []int{0, 1, 7, 16, 24, 33, 96, 257}},
		{quant.Q8_0, []int{32, 96, 192, 256, 1056}},
		{quant.Q4_0, []int{32, 96, 256}},
		{quant.Q4_1, []int{32, 96, 256}},
		{quant.Q5_0, []int{32, 96, 256}},
		{quant.Q5_1, []int{32, 64, 288}},
		{quant.Q4_K, []int{256, 512, 1280}},
		{quant.Q5_K, []int{256, 768}},
		{quant.Q6_K, []int{256, 768}},
		{quant.Q2_K, []int{256}},
		{quant.F64, []int{3, 16}},
		{quant.I8, []int{5}},
	}
	eachLevel(t, func(t *testing.T) {
		r := newRand()
		var s Scratch
		for _, test := range types {
			for _, cols := range test.cols {
				for _, rows := range []int{1, 3, 4, 5, 9, 70} {
					w, values := matrix(t, r, test.d, rows, cols)
					for _, n := range []int{1, 2, 3, 4, 5, 6, 7, 11, 13, 32, 33, 70} {
						if rows == 70 && n > 7 && n != 33 {
							continue
						}
						what := fmt.Sprintf("%s %dx%d, %d vectors", test.d, rows, cols, n)
						ldx, ldy := cols+r.IntN(3), rows+r.IntN(3)
						x := normals(r, (n-1)*ldx+cols)
						before := normals(r, (n-1)*ldy+rows)
						r0, r1 := 0, rows
						if r.IntN(2) == 0 {
							r0, r1 = rows/3, rows-rows/4
						}
						y, check := guarded(t, before)
						matMulOf(y, ldy, w, x, ldx, n, r0, r1, &s)
						check()
						for v := range n {
							for i := range ldy {
								at := v*ldy + i
								if at >= len(y) {
									continue
								}
								if i < r0 || i >= r1 {
									if y[at] != before[at] {
										t.Fatalf("%s: wrote row %d outside %d to %d", what, i, r0, r1)
									}
									continue
								}
								want, size := dot64(values[i*cols:(i+1)*cols], x[v*ldx:])
								near(t, what, y[at], want, size, sumTolerance)
							}
						}
						again := append([]float32(nil), before...)
						for r := r0; r < r1; {
							next := min(r+1+r%6, r1)
							matMulOf(again, ldy, w, x, ldx, n, r, next, &s)
							r = next
						}
						for i, v := range again {
							if v != y[i] {
								t.Fatalf("%s: splitting the rows changes element %d", what, i)
							}
						}
					}
				}
			}
		}
	})
}

// TestMatMulAlone: a vector gives the same bits whatever stands beside it, while
// their number stays few, some or many.
func TestMatMulAlone(t *testing.T) {
	eachLevel(t, func(t *testing.T) {
		r := newRand()
		var s Scratch
		const rows, n = 9, 99
		least, inPlace := 1, ManyVectors-1 // vectors that rows without blocks are multiplied with in one way
		if runtime.GOARCH == "arm64" {
			least, inPlace = FewVectors+1, FewVectors
		}
		for _, test := range []struct {
			d    quant.DType
			cols int
			some []struct{ some, all int }
		}{
			{quant.F32, 100, []struct{ some, all int }{{1, inPlace}, {least + 1, ManyVectors - 1}, {ManyVectors, n}}},
			{quant.F16, 100, []struct{ some, all int }{{1, inPlace}, {least + 4, ManyVectors - 1}, {ManyVectors, n}}},
			{quant.BF16, 33, []struct{ some, all int }{{1, inPlace}, {least + 6, ManyVectors - 1}}},
			{quant.Q8_0, 96, []struct{ some, all int }{{1, FewVectors}, {FewVectors + 1, ManyVectors - 1}, {ManyVectors, n}}},
		} {
			w, _ := matrix(t, r, test.d, rows, test.cols)
			x := normals(r, n*test.cols)
			all, some := make([]float32, n*rows), make([]float32, n*rows)
			for _, number := range test.some {
				matMulOf(all, rows, w, x, test.cols, number.all, 0, rows, &s)
				for from := 0; from+number.some <= number.all; from++ {
					matMulOf(some, rows, w, x[from*test.cols:], test.cols, number.some, 0, rows, &s)
					for i := range number.some * rows {
						if some[i] != all[from*rows+i] {
							t.Fatalf("%s: vector %d of %d differs among %d", test.d, from+i/rows, number.all, number.some)
						}
					}
				}
			}
		}
	})
}

// TestMatMulUnprepared: a matrix that the input does not fit, or was not prepared
// for, is refused rather than multiplied wrongly.
func TestMatMulUnprepared(t *testing.T) {
	eachLevel(t, func(t *testing.T) {
		refused := func(w Matrix, in *Input) (refused bool) {
			defer func() { refused = recover() != nil }()
			MatMul(make([]float32, in.n*w.Rows), w.Rows, w, in, 0, w.Rows, new(Scratch))
			return
		}
		r := newRand()
		const cols = 64
		w, _ := matrix(t, r, quant.F16, 4, cols)
		narrow, _ := matrix(t, r, quant.F16, 4, cols/2)
		for _, n := range []int{1, FewVectors + 1, ManyVectors} {
			var in Input
			in.Set(normals(r, n*cols), cols, n, cols)
			if got := refused(w, &in); got != (formsFor(w, n) != 0) {
				t.Errorf("%d vectors without Need: refused is %v", n, got)
			}
			in.Need(w)
			if in.Derives() != (formsFor(w, n) != 0) {
				t.Errorf("%d vectors: Derives is %v", n, in.Derives())
			}
			in.Prepare(0, n)
			if refused(w, &in) || !refused(narrow, &in) {
				t.Errorf("%d vectors: refused %v, and %v for a matrix of other columns", n, refused(w, &in), refused(narrow, &in))
			}
		}
	})
}

func TestMatMulReadsOnlyItsRows(t *testing.T) {
	eachLevel(t, func(t *testing.T) {
		// The column beyond the last is a NaN in every row and vector.
		var s Scratch
		r := newRand()
		const rows, cols, n = 5, 27, 40
		w, values := matrix(t, r, quant.F32, rows, cols)
		x := normals(r, n*(cols+1))
		for v := range n {
			x[v*(cols+1)+cols] = nan
		}
		y := make([]float32, n*rows)
		for _, k := range []int{1, 8, n} {
			matMulOf(y, rows, w, x, cols+1, k, 0, rows, &s)
			for i := range k * rows {
				want, size := dot64(values[i%rows*cols:(i%rows+1)*cols], x[i/rows*(cols+1):])
				near(t, "beside NaNs", y[i], want, size, sumTolerance)
			}
		}
	})
}

func TestCheck(t *testing.T) {
	for _, m := range []Matrix{
		{Type: quant.C64, Rows: 1, Cols: 1, Data: make([]byte, 8)},
		{Type: quant.F16, Rows: -1, Cols: 1},
		{Type: quant.F16, Rows: 1, Cols: -1},
		{Type: quant.Q8_0, Rows: 1, Cols: 33, Data: make([]byte, 100)},
		{Type: quant.F16, Rows: 3, Cols: 5, Data: make([]byte, 29)},
		{Type: quant.F64, Rows: math.MaxInt / 2, Cols: math.MaxInt / 2, Data: make([]byte, 29)},
	} {
		if m.Check() == nil {
			t.Errorf("%s %dx%d with %d bytes passed", m.Type, m.Rows, m.Cols, len(m.Data))
		}
	}
	if err := (Matrix{Type: quant.F16, Rows: 3, Cols: 5, Data: make([]byte, 30)}).Check(); err != nil {
		t.Error(err)
	}
}

func TestNoAllocation(t *testing.T) {
	eachLevel(t, func(t *testing.T) {
		r := newRand()
		var s Scratch
		var in Input
		x, y, k, k8 := normals(r, 40*64), normals(r, 40*64), halves(normals(r, 64*64)), signed(r, 40*64)
		var ws []Matrix
		for _, d := range []quant.DType{quant.F32, quant.F16, quant.Q8_0, quant.Q4_0} {
			w, _ := matrix(t, r, d, 10, 64)
			ws = append(ws, w)
		}
		allocations := testing.AllocsPerRun(3, func() {
			for _, w := range ws {
				for _, n := range []int{1, 8, 40} {
					in.Set(x, 64, n, 64)
					in.Need(w)
					in.Prepare(0, n)
					MatMul(y, 10, w, &in, 0, 10, &s)
				}
			}
			_ = Dot(x, y)
			RMSNorm(y, x, x, 1e-5)
			GatedMul(Tanh, y, x, x)
			KeyDotsF16(y[:64], x[:64], k, 64, 1)
			AccumulateF16(y[:64], x[:64], k)
			_ = Penalise(y, x, x, 0, 1)
			Softmax(y)
			MulAdd(y, 8, x, 64, 8, x, 8, 16, 8, true)
			TransposeF16(y, 8, k, 8, 64)
			_ = PenaliseTile(y, 64, 8, x[:64], x, x, 1, x[64:])
			ExpSumTile(y, 64, 8, 64, x, x[8:])
			_ = QuantizeQ8(k8, x)
			WidenQ8(y, k8, x, 8, 64)
			KeyDotsQ8(y[:8], x, k8, x, 64, 1)
			AccumulateQ8(y[:64], x[:8], k8, x)
		})
		if allocations != 0 {
			t.Errorf("%v allocations", allocations)
		}
	})
}
