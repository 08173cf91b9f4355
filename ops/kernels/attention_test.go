package kernels

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/firstpassage/fpa/quant"
)

func TestMulAdd(t *testing.T) {
	widths := []int{1, 2, 3, 7, 8, 9, 15, 16, 17, 24, 31, 32, 33, 48, 63, 64, 65, 80, 96, 100, 128, 200}
	eachLevel(t, func(t *testing.T) {
		r := newRand()
		for _, width := range widths {
			for _, n := range []int{1, 2, 3, 4, 5, 6, 7, 11, 12, 13, 18, 31} {
				for _, k := range []int{1, 2, 5, 64, 67} {
					add := r.IntN(2) == 0
					ldy, ldx, ldw := width+r.IntN(3), k+r.IntN(3), width+r.IntN(3)
					x, w := normals(r, (n-1)*ldx+k), normals(r, (k-1)*ldw+width)
					before := normals(r, (n-1)*ldy+width)
					y, check := guarded(t, before)
					MulAdd(y, ldy, x, ldx, n, w, ldw, k, width, add)
					check()
					column := make([]float32, k)
					for v := range n {
						for i := range ldy {
							at := v*ldy + i
							if at >= len(y) {
								break
							}
							if i >= width {
								if y[at] != before[at] {
									t.Fatalf("%dx%dx%d: wrote column %d", n, k, width, i)
								}
								continue
							}
							for c := range column {
								column[c] = w[c*ldw+i]
							}
							want, size := dot64(x[v*ldx:v*ldx+k], column)
							if add {
								want += float64(before[at])
								size += math.Abs(float64(before[at]))
							}
							// One lane sums all k products.
							near(t, fmt.Sprintf("%dx%dx%d, element %d of %d", n, k, width, i, v), y[at], want, size, 6e-7)
						}
					}
				}
			}
		}
	})
}

// TestMulAddAlone: splitting rows or columns changes no bit.
func TestMulAddAlone(t *testing.T) {
	eachLevel(t, func(t *testing.T) {
		r := newRand()
		const n, k, width = 31, 50, 157
		x, w := normals(r, n*k), normals(r, k*width)
		all, parts := make([]float32, n*width), make([]float32, n*width)
		MulAdd(all, width, x, k, n, w, width, k, width, false)
		for range 200 {
			t0, r0 := r.IntN(n), r.IntN(width)
			m, wide := 1+r.IntN(n-t0), 1+r.IntN(width-r0)
			clear(parts)
			MulAdd(parts[t0*width+r0:], width, x[t0*k:], k, m, w[r0:], width, k, wide, false)
			for v := t0; v < t0+m; v++ {
				for i := r0; i < r0+wide; i++ {
					if parts[v*width+i] != all[v*width+i] {
						t.Fatalf("element %d of %d differs alone", i, v)
					}
				}
			}
		}
	})
}

func TestMulAddOfNothing(t *testing.T) {
	eachLevel(t, func(t *testing.T) {
		y := []float32{1, 2, 3}
		MulAdd(y, 3, nil, 0, 0, nil, 3, 4, 3, false)
		MulAdd(y, 3, nil, 0, 1, nil, 3, 4, 0, false)
		MulAdd(y, 3, nil, 0, 1, nil, 3, 0, 3, true)
		if y[0] != 1 || y[1] != 2 || y[2] != 3 {
			t.Errorf("nothing changed y to %v", y)
		}
		MulAdd(y, 3, nil, 0, 1, nil, 3, 0, 2, false)
		if y[0] != 0 || y[1] != 0 || y[2] != 3 {
			t.Errorf("sums of nothing: %v", y)
		}
	})
}

func TestTranspose(t *testing.T) {
	eachLevel(t, func(t *testing.T) {
		r := newRand()
		for _, rows := range []int{0, 1, 2, 3, 7, 8, 9, 15, 16, 17, 31, 33, 50, 63, 64} {
			for _, cols := range []int{0, 1, 3, 4, 5, 7, 8, 9, 12, 15, 16, 17, 23, 24, 33, 64, 80, 100, 128} {
				ld := rows + r.IntN(3)
				size := max(0, (cols-1)*ld+rows)
				if rows == 0 || cols == 0 {
					size = 0
				}
				values := normals(r, rows*cols)
				k16 := halves(values)
				rounded := make([]float32, len(values))
				quant.DecodeF16(rounded, k16)
				bytes, scales := signed(r, rows*cols), normals(r, rows)
				for _, test := range []struct {
					name string
					run  func(dst []float32)
					want func(j, c int) float32
				}{
					{"F16", func(dst []float32) { TransposeF16(dst, ld, k16, rows, cols) }, func(j, c int) float32 { return rounded[j*cols+c] }},
					{"F32", func(dst []float32) { TransposeF32(dst, ld, values, rows, cols) }, func(j, c int) float32 { return values[j*cols+c] }},
					{"Q8", func(dst []float32) { TransposeQ8(dst, ld, bytes, scales, rows, cols) }, func(j, c int) float32 { return scales[j] * float32(bytes[j*cols+c]) }},
				} {
					dst, check := guarded(t, make([]float32, size))
					for i := range dst {
						dst[i] = 77
					}
					test.run(dst)
					check()
					for i, got := range dst {
						want := float32(77)
						if j := i % ld; j < rows {
							want = test.want(j, i/ld)
						}
						if got != want {
							t.Fatalf("%s %dx%d: element %d is %v, want %v", test.name, rows, cols, i, got, want)
						}
					}
				}
			}
		}
	})
}

// TestPenaliseTile compares with Penalise row by row, which is compared with
// float64 elsewhere.
func TestPenaliseTile(t *testing.T) {
	special := []float32{0, 1, -1, 2.5, inf, negInf, math.MaxFloat32, -math.MaxFloat32, nan}
	eachLevel(t, func(t *testing.T) {
		r := newRand()
		for _, slots := range lengths[:23] {
			for _, n := range []int{0, 1, 2, 5, 64} {
				for _, slope := range []float32{0, 0.25, 3} {
					lds := slots + r.IntN(3)
					size := max(0, (n-1)*lds+slots)
					if slots == 0 || n == 0 {
						size = 0
					}
					logits, lows, levels, field := normals(r, size), normals(r, slots), normals(r, slots), normals(r, n)
					mix := func(x []float32) {
						for i := range x {
							if r.IntN(3) == 0 {
								x[i] = special[r.IntN(len(special))]
							}
						}
					}
					if r.IntN(2) == 0 {
						mix(lows)
						mix(levels)
					}
					if r.IntN(4) == 0 {
						mix(field)
					}
					if r.IntN(6) == 0 {
						for i := range levels {
							levels[i] = inf
						}
					}
					if size > 0 && r.IntN(4) == 0 {
						logits[r.IntN(size)] = nan
					}
					wantS, wantLow := append([]float32(nil), logits...), append([]float32(nil), lows...)
					wantMax, wantLeast := make([]float32, n), inf
					for v := range n {
						var row []float32
						if slots > 0 {
							row = wantS[v*lds : v*lds+slots]
						}
						if v == 0 { // a slot alone: the largest penalty is its penalty
							for j := range row {
								if levels[j] != inf {
									one, l := []float32{row[j]}, []float32{wantLow[j]}
									wantLeast = min(wantLeast, Penalise(one, l, levels[j:], field[0], slope))
								}
							}
						}
						Penalise(row, wantLow, levels, field[v], slope)
						wantMax[v] = Max(row)
					}
					s, checkS := guarded(t, logits)
					low, checkLow := guarded(t, lows)
					rowMax, checkMax := guarded(t, make([]float32, n))
					least := PenaliseTile(s, lds, n, low, levels, field, slope, rowMax)
					checkS()
					checkLow()
					checkMax()
					what := fmt.Sprintf("%d rows of %d slots, slope %v", n, slots, slope)
					same(t, what+": logit", s, wantS)
					if n > 0 {
						same(t, what+": low", low, wantLow)
						same(t, what+": least", []float32{least}, []float32{wantLeast})
					}
					same(t, what+": maximum", rowMax, wantMax)
				}
			}
		}
	})
}

// same fails unless the numbers are equal, NaNs included.
func same(t *testing.T, what string, got, want []float32) {
	t.Helper()
	for i := range want {
		if got[i] != want[i] && (got[i] == got[i] || want[i] == want[i]) {
			t.Fatalf("%s %d: got %v, want %v", what, i, got[i], want[i])
		}
	}
}

func TestExpSumTile(t *testing.T) {
	eachLevel(t, func(t *testing.T) {
		r := newRand()
		for _, width := range lengths[:23] {
			for _, n := range []int{0, 1, 2, 5, 17} {
				lds := width + r.IntN(3)
				size := max(0, (n-1)*lds+width)
				if width == 0 || n == 0 {
					size = 0
				}
				before, maxima, sums := normals(r, size), normals(r, n), normals(r, n)
				for i := range before {
					before[i] *= 10
					if r.IntN(4) == 0 {
						before[i] = negInf
					}
				}
				if n > 1 && width > 0 { // a row without keys
					maxima[1] = negInf
					for j := range width {
						before[lds+j] = negInf
					}
				}
				s, check := guarded(t, before)
				sum, checkSum := guarded(t, sums)
				ExpSumTile(s, lds, n, width, maxima, sum)
				check()
				checkSum()
				for i, got := range s {
					v := i / max(lds, 1)
					if i%max(lds, 1) >= width {
						same(t, "between rows", s[i:i+1], before[i:i+1])
						continue
					}
					want := 0.0
					if before[i] != negInf {
						want = math.Exp(float64(before[i] - maxima[v]))
					}
					near(t, "exp", got, want, want+0x1p-126, 2e-7)
				}
				for v := range n {
					want, size := float64(sums[v]), math.Abs(float64(sums[v]))
					if width > 0 {
						for _, e := range s[v*lds : v*lds+width] {
							want += float64(e)
							size += float64(e)
						}
					}
					near(t, "sum", sum[v], want, size, 1e-6)
					if n > 1 && v == 1 && sum[v] != sums[v] {
						t.Fatalf("a row without keys changed its sum")
					}
				}
			}
		}
		s, sum := []float32{1, nan, 2}, []float32{0}
		ExpSumTile(s, 3, 1, 3, []float32{2}, sum)
		if s[1] == s[1] || sum[0] == sum[0] {
			t.Errorf("a NaN is hidden: %v, sum %v", s, sum)
		}
	})
}

// signed returns random bytes, -128 included.
func signed(r *rand.Rand, n int) []int8 {
	q := make([]int8, n)
	for i := range q {
		q[i] = int8(r.IntN(256) - 128)
	}
	return q
}

func TestWidenQ8(t *testing.T) {
	eachLevel(t, func(t *testing.T) {
		r := newRand()
		for _, cols := range lengths[:23] {
			for _, rows := range []int{0, 1, 2, 5, 64} {
				q, scales := signed(r, rows*cols), normals(r, rows)
				dst, check := guarded(t, make([]float32, rows*cols))
				WidenQ8(dst, q, scales, rows, cols)
				check()
				for i, got := range dst {
					if want := scales[i/cols] * float32(q[i]); got != want {
						t.Fatalf("%dx%d: element %d is %v, want %v", rows, cols, i, got, want)
					}
				}
			}
		}
	})
}

func TestQuantizeQ8(t *testing.T) {
	eachLevel(t, func(t *testing.T) {
		r := newRand()
		for _, n := range lengths {
			for _, size := range []float32{1, 1e-30, 1e30, 2e-44} {
				x := normals(r, n)
				most := float32(0)
				for i := range x {
					x[i] *= size
					most = max(most, float32(math.Abs(float64(x[i]))))
				}
				const guard = 99
				all := make([]int8, n+20)
				for i := range all {
					all[i] = guard
				}
				scale := QuantizeQ8(all[:n+3], x)
				if scale != most/127 {
					t.Fatalf("%d of size %g: scale %v, want %v", n, size, scale, most/127)
				}
				for i, v := range all[n:] {
					if v != guard {
						t.Fatalf("%d: wrote outside, at %d", n, n+i)
					}
				}
				for i, q := range all[:n] {
					want := 0.0
					if scale != 0 {
						want = max(-127, min(math.RoundToEven(float64(x[i]/scale)), 127))
					}
					if float64(q) != want {
						t.Fatalf("%v / %v became %d, want %v", x[i], scale, q, want)
					}
				}
			}
			// Halves are ties; the scale is 1.
			ties, q := make([]float32, n), make([]int8, n)
			for i := range ties {
				ties[i] = float32(i%254) - 126.5
			}
			if n == 0 {
				continue
			}
			ties[n/2] = -127
			if scale := QuantizeQ8(q, ties); scale != 1 {
				t.Fatalf("scale %v, want 1", scale)
			}
			for i, v := range ties {
				if float64(q[i]) != math.RoundToEven(float64(v)) {
					t.Fatalf("%v became %d", v, q[i])
				}
			}
			for _, bad := range []float32{nan, -nan, inf, negInf} {
				ties[n/3] = bad
				if scale := QuantizeQ8(q, ties); scale*float32(q[0]) == 0 || scale <= math.MaxFloat32 {
					t.Fatalf("%v gives scale %v", bad, scale)
				}
			}
		}
		q := []int8{1, 2, 3}
		if scale := QuantizeQ8(q, make([]float32, 3)); scale != 0 || q[0] != 0 || q[1] != 0 || q[2] != 0 {
			t.Errorf("zeros became %v, scale %v", q, scale)
		}
	})
}

func TestKeyDotsQ8(t *testing.T) {
	eachLevel(t, func(t *testing.T) {
		r := newRand()
		for _, d := range []int{0, 1, 3, 7, 8, 15, 16, 24, 33, 64, 80, 100, 128, 257} {
			for _, n := range []int{0, 1, 2, 3, 4, 5, 7, 8, 9, 64, 65} {
				q, k, scales := normals(r, d), signed(r, n*d), normals(r, n)
				s, check := guarded(t, make([]float32, n))
				KeyDotsQ8(s, q, k, scales, d, 0.3)
				check()
				for j := range s {
					row := make([]float32, d)
					for c := range row {
						row[c] = float32(k[j*d+c])
					}
					want, size := dot64(q, row)
					by := float64(float32(0.3)) * float64(scales[j])
					near(t, fmt.Sprintf("key %d of %d, %d elements", j, n, d), s[j], want*by, size*math.Abs(by), sumTolerance)
				}
			}
		}
	})
}

func TestAccumulateQ8(t *testing.T) {
	eachLevel(t, func(t *testing.T) {
		r := newRand()
		for _, d := range []int{0, 1, 3, 7, 8, 15, 16, 24, 33, 64, 80, 96, 100, 128, 129, 257, 320} {
			for _, n := range []int{0, 1, 2, 5, 64, 65} {
				p, v, scales, before := normals(r, n), signed(r, n*d), normals(r, n), normals(r, d)
				for j := range p {
					if r.IntN(4) == 0 { // a free slot, with anything in it
						p[j], scales[j] = 0, nan
					}
				}
				y, check := guarded(t, before)
				AccumulateQ8(y, p, v, scales)
				check()
				for c := range y {
					want, size := float64(before[c]), math.Abs(float64(before[c]))
					for j, w := range p {
						if w != 0 {
							term := float64(w) * float64(scales[j]) * float64(v[j*d+c])
							want += term
							size += math.Abs(term)
						}
					}
					near(t, fmt.Sprintf("element %d of %d, %d values", c, d, n), y[c], want, size, 1e-6)
				}
			}
		}
	})
}
