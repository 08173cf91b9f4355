package kernels

import (
	"fmt"
	"math"
	"testing"

	"github.com/firstpassage/fpa/quant"
)

var int8Types = []quant.DType{quant.Q4_0, quant.Q4_1, quant.Q8_0}

// rounded is what the records of vector t stand for.
func (in *Input) rounded(t int) []float64 {
	blocks := in.cols / 32
	x := make([]float64, 0, in.cols)
	for b := range blocks {
		r := in.records[(t/packedVectors*blocks+b)*packedVectors+t%packedVectors]
		for _, q := range r.q {
			x = append(x, float64(r.scale)*float64(q))
		}
	}
	return x
}

// rounds makes an input ready for a matrix.
func rounds(x []float32, ld, n int, w Matrix) *Input {
	in := new(Input)
	in.Set(x, ld, n, w.Cols)
	in.Need(w)
	for t := 0; t < n; t += PrepareStep {
		in.Prepare(t, min(t+PrepareStep, n))
	}
	return in
}

// TestMatMulInt8 compares with float64 sums over the rounded vectors and the file's
// weights, packed and not, whole and with the rows split.
func TestMatMulInt8(t *testing.T) {
	eachInt8Level(t, func(t *testing.T) {
		r := newRand()
		var s Scratch
		for _, d := range int8Types {
			for _, cols := range []int{32, 96, 576} {
				for _, rows := range []int{1, 5, 16, 17, 70} {
					w, values := matrix(t, r, d, rows, cols)
					w.Int8 = true
					packed := packedOf(t, w, aligned(w.PackedBytes()))
					for _, n := range []int{1, 2, 3, 4, 5, 8, 9, 40} {
						if n == 40 && rows != 17 {
							continue
						}
						what := fmt.Sprintf("%s %dx%d, %d vectors", d, rows, cols, n)
						ldx, ldy := cols+r.IntN(3), rows+r.IntN(3)
						x, before := normals(r, (n-1)*ldx+cols), normals(r, (n-1)*ldy+rows)
						in := rounds(x, ldx, n, w)
						r0, r1 := 0, rows
						if r.IntN(2) == 0 {
							r0, r1 = rows/3, rows-rows/4
						}
						y, check := guarded(t, before)
						MatMul(y, ldy, packed, in, r0, r1, &s)
						check()
						for v := range n {
							xs := in.rounded(v)
							for i := range ldy {
								at := v*ldy + i
								if at >= len(y) {
									break
								}
								if i < r0 || i >= r1 {
									if y[at] != before[at] {
										t.Fatalf("%s: wrote row %d outside %d to %d", what, i, r0, r1)
									}
									continue
								}
								want, size := 0.0, 0.0
								for c, weight := range values[i*cols : (i+1)*cols] {
									want += float64(weight) * xs[c]
									size += math.Abs(float64(weight) * xs[c])
								}
								near(t, what, y[at], want, size, 4e-7)
							}
						}
						again := append([]float32(nil), before...)
						for r := r0; r < r1; {
							next := min(r+1+r%19, r1)
							MatMul(again, ldy, w, in, r, next, &s)
							r = next
						}
						for i, v := range again {
							if v != y[i] {
								t.Fatalf("%s: splitting the rows, or not packing, changes element %d", what, i)
							}
						}
					}
				}
			}
		}
	})
}

// TestInt8Levels: all instruction sets compute the same, but for how a product is
// rounded before it is added; and the largest integers fit.
func TestInt8Levels(t *testing.T) {
	const rows, cols, n = 16, 64, 8
	for _, d := range int8Types {
		for _, extreme := range []bool{false, true} {
			r := newRand()
			w, _ := matrix(t, r, d, rows, cols)
			w.Int8 = true
			x := normals(r, n*cols)
			if extreme {
				for at := 0; at < len(w.Data); at += d.BlockBytes() {
					integers := w.Data[at+2 : at+d.BlockBytes()]
					if d == quant.Q4_1 {
						integers = integers[2:]
					}
					for i := range integers {
						integers[i] = 0xff // 15, or
						if d == quant.Q8_0 {
							integers[i] = 0x80 // -128
						}
					}
				}
				for i := range x {
					x[i] = float32(i/cols%2*2 - 1)
				}
			}
			var want []float32
			eachInt8Level(t, func(t *testing.T) {
				var s Scratch
				y := make([]float32, n*rows)
				MatMul(y, rows, w, rounds(x, cols, n, w), 0, rows, &s)
				if want == nil {
					want = y
				}
				for i, v := range y {
					near(t, fmt.Sprintf("%s, element %d", d, i), v, float64(want[i]), 1+math.Abs(float64(want[i])), 1e-6)
				}
			})
		}
	}
}

// TestRoundVectors: bytes, scale and sums are those of a straightforward rounding, the
// same on every instruction set, and no element is off by more than half a step.
func TestRoundVectors(t *testing.T) {
	var want []record
	eachLevel(t, func(t *testing.T) {
		r := newRand()
		var all []record
		for _, size := range []float32{1, 1e-30, 1e30, 1e-33, 1e-44, 0} {
			x := normals(r, 32*9)
			for i := range x {
				x[i] *= size
			}
			for i := range 32 { // ties: the scale is 1
				x[i] = float32(i) - 15.5
			}
			x[0] = -127
			records := make([]record, 8*packedVectors+1)
			roundRecords(records, x)
			for b := range 9 {
				got := records[b*packedVectors]
				all = append(all, got)
				most, sum := 0.0, int32(0)
				for i, v := range x[32*b : 32*b+32] {
					most = max(most, math.Abs(float64(v)))
					sum += int32(got.q[i])
					if d := math.Abs(float64(v) - float64(got.scale)*float64(got.q[i])); !(d <= 0.5001*float64(got.scale) || most < leastRounded) {
						t.Fatalf("%v became %d times %v", v, got.q[i], got.scale)
					}
				}
				scale := float32(most) / 127
				if most < leastRounded {
					scale = 0
				}
				if got.scale != scale || got.negative != -sum || got.sum != scale*float32(sum) {
					t.Fatalf("block of %v: %+v", x[32*b:32*b+32], got)
				}
			}
			for i, got := range records {
				if i%packedVectors != 0 && got != (record{}) {
					t.Fatalf("wrote record %d", i)
				}
			}
			if all[len(all)-9].q[3] != -12 || all[len(all)-9].q[4] != -12 { // -12.5, -11.5
				t.Fatalf("ties became %v", all[len(all)-9].q)
			}
		}
		if want == nil {
			want = all
		}
		for i := range all {
			if all[i] != want[i] {
				t.Fatalf("record %d is %+v, in plain Go %+v", i, all[i], want[i])
			}
		}
	})
}

// TestInt8NotFinite: a NaN or an infinity in a vector makes its products neither
// finite nor wrong elsewhere.
func TestInt8NotFinite(t *testing.T) {
	eachInt8Level(t, func(t *testing.T) {
		r := newRand()
		var s Scratch
		for _, d := range int8Types {
			for _, bad := range []float32{nan, -nan, inf, negInf} {
				const rows, cols, n = 16, 64, 3
				w, _ := matrix(t, r, d, rows, cols)
				w.Int8 = true
				x := normals(r, n*cols)
				x[cols+37] = bad
				y := make([]float32, n*rows)
				MatMul(y, rows, w, rounds(x, cols, n, w), 0, rows, &s)
				for i, v := range y {
					if finite := math.Abs(float64(v)) <= math.MaxFloat32; finite == (i/rows == 1) {
						t.Fatalf("%s with %v: element %d of vector %d is %v", d, bad, i%rows, i/rows, v)
					}
				}
			}
		}
	})
}

// TestInt8OtherTypes: the switch changes nothing for types that it does not name.
func TestInt8OtherTypes(t *testing.T) {
	var s Scratch
	r := newRand()
	w, _ := matrix(t, r, quant.Q6_K, 4, 256)
	x, want, got := normals(r, 256), make([]float32, 4), make([]float32, 4)
	MatMul(want, 4, w, rounds(x, 256, 1, w), 0, 4, &s)
	w.Int8 = true
	MatMul(got, 4, w, rounds(x, 256, 1, w), 0, 4, &s)
	same(t, "element", got, want)
	if RoundsFor(quant.Q6_K) || !RoundsFor(quant.Q8_0) {
		t.Error("RoundsFor")
	}
}

func TestInt8NoAllocation(t *testing.T) {
	eachInt8Level(t, func(t *testing.T) {
		r := newRand()
		w, _ := matrix(t, r, quant.Q4_1, 32, 64)
		w.Int8 = true
		x, y := normals(r, 5*64), make([]float32, 5*32)
		var s Scratch
		var in Input
		if n := testing.AllocsPerRun(3, func() {
			in.Set(x, 64, 5, 64)
			in.Need(w)
			in.Prepare(0, 5)
			MatMul(y, 32, w, &in, 0, 32, &s)
		}); n != 0 {
			t.Errorf("%v allocations", n)
		}
	})
}

func BenchmarkInt8(b *testing.B) {
	for _, d := range int8Types {
		for _, n := range []int{1, 8, 512} {
			for _, int8 := range []bool{false, true} {
				b.Run(fmt.Sprintf("%s/%d/int8=%v", d, n, int8), func(b *testing.B) {
					r := newRand()
					const rows, cols = 1536, 576
					w, _ := matrix(b, r, d, rows, cols)
					w.Int8 = int8
					x, y := normals(r, n*cols), make([]float32, n*rows)
					if size := w.PackedBytes(); size > 0 {
						w = w.Pack(aligned(size))
						w.PackRows(0, rows)
					}
					var s Scratch
					var in Input
					b.SetBytes(2 * int64(n) * rows * cols)
					for b.Loop() {
						in.Set(x, cols, n, cols)
						in.Need(w)
						in.Prepare(0, n)
						MatMul(y, rows, w, &in, 0, rows, &s)
					}
				})
			}
		}
	}
}
