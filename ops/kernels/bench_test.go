package kernels

import (
	"fmt"
	"testing"

	"github.com/firstpassage/fpa/quant"
)

// Bytes a second count the weights, keys or values read; those of MatMul with
// many vectors count floating-point operations instead, one byte each.

func BenchmarkMatVec(b *testing.B) {
	for _, test := range []struct {
		name       string
		d          quant.DType
		rows, cols int
	}{
		{"F32_768x768", quant.F32, 768, 768},
		{"F16_768x768", quant.F16, 768, 768},
		{"F16_32000x768", quant.F16, 32000, 768},
		{"F16_16000x2048", quant.F16, 16000, 2048},
		{"F16_768x24", quant.F16, 768, 24},
		{"F16_768x96", quant.F16, 768, 96},
		{"BF16_768x768", quant.BF16, 768, 768},
		{"Q8_0_768x768", quant.Q8_0, 768, 768},
		{"Q8_0_32000x768", quant.Q8_0, 32000, 768},
		{"Q4_0_768x768", quant.Q4_0, 768, 768},
		{"Q4_1_768x768", quant.Q4_1, 768, 768},
		{"Q5_0_768x768", quant.Q5_0, 768, 768},
		{"Q4_1_100000x576", quant.Q4_1, 100000, 576},
		{"Q4_1_576x576", quant.Q4_1, 576, 576},
		{"Q4_1_576x1536", quant.Q4_1, 576, 1536},
		{"Q4_K_768x768", quant.Q4_K, 768, 768},
		{"Q5_K_768x768", quant.Q5_K, 768, 768},
		{"Q6_K_768x768", quant.Q6_K, 768, 768},
	} {
		b.Run(test.name, func(b *testing.B) {
			r := newRand()
			w, _ := matrix(b, r, test.d, test.rows, test.cols)
			x, y := normals(r, test.cols), make([]float32, test.rows)
			var s Scratch
			eachLevelB(b, func(b *testing.B) {
				b.SetBytes(int64(len(w.Data)))
				for b.Loop() {
					matMulOf(y, test.rows, w, x, test.cols, 1, 0, test.rows, &s)
				}
			})
		})
	}
}

func BenchmarkMatMul512(b *testing.B) {
	for _, test := range []struct {
		name       string
		d          quant.DType
		rows, cols int
	}{
		{"F16_768x768", quant.F16, 768, 768},
		{"F16_768x2048", quant.F16, 768, 2048},
		{"Q8_0_768x768", quant.Q8_0, 768, 768},
		{"F16_768x24", quant.F16, 768, 24},
		{"F16_768x96", quant.F16, 768, 96},
	} {
		b.Run(test.name, func(b *testing.B) {
			r := newRand()
			const n = 512
			w, _ := matrix(b, r, test.d, test.rows, test.cols)
			x, y := normals(r, n*test.cols), make([]float32, n*test.rows)
			var s Scratch
			eachLevelB(b, func(b *testing.B) {
				b.SetBytes(2 * n * int64(test.rows) * int64(test.cols))
				for b.Loop() {
					matMulOf(y, test.rows, w, x, test.cols, n, 0, test.rows, &s)
				}
			})
		})
	}
}

func BenchmarkAttention(b *testing.B) {
	r := newRand()
	const d, n = 64, 256
	k := halves(normals(r, n*d))
	q, p := normals(r, d), normals(r, n)
	b.Run("KeyDotsF16", func(b *testing.B) {
		eachLevelB(b, func(b *testing.B) {
			b.SetBytes(2 * n * d)
			for b.Loop() {
				KeyDotsF16(p, q, k, d, 0.125)
			}
		})
	})
	k8, scales := signed(r, n*d), normals(r, n)
	b.Run("KeyDotsQ8", func(b *testing.B) {
		eachLevelB(b, func(b *testing.B) {
			b.SetBytes(n * d)
			for b.Loop() {
				KeyDotsQ8(p, q, k8, scales, d, 0.125)
			}
		})
	})
	b.Run("AccumulateQ8", func(b *testing.B) {
		eachLevelB(b, func(b *testing.B) {
			b.SetBytes(n * d)
			for b.Loop() {
				AccumulateQ8(q, p, k8, scales)
			}
		})
	})
	b.Run("QuantizeQ8", func(b *testing.B) {
		x := normals(r, d)
		eachLevelB(b, func(b *testing.B) {
			b.SetBytes(4 * d)
			for b.Loop() {
				_ = QuantizeQ8(k8, x)
			}
		})
	})
	b.Run("AccumulateF16", func(b *testing.B) {
		eachLevelB(b, func(b *testing.B) {
			b.SetBytes(2 * n * d)
			for b.Loop() {
				AccumulateF16(q, p, k)
			}
		})
	})
}

func BenchmarkVector(b *testing.B) {
	r := newRand()
	const n = 2048
	x, z := normals(r, n), normals(r, n)
	for _, test := range []struct {
		name string
		run  func(y []float32)
	}{
		{"Dot", func(y []float32) { _ = Dot(x, y) }},
		{"Axpy", func(y []float32) { Axpy(y, 1e-9, x) }},
		{"RMSNorm", func(y []float32) { RMSNorm(y, x, z, 1e-5) }},
		{"Max", func(y []float32) { _ = Max(y) }},
		{"Penalise", func(y []float32) { _ = Penalise(y, x, z, 0.1, 0) }},
		{"ExpSum", func(y []float32) { copy(y, x); _ = ExpSum(y, 3) }},
		{"SiluMul", func(y []float32) { SiluMul(y, x, z) }},
		{"Gelu", func(y []float32) { copy(y, x); Activate(Gelu, y) }},
		{"GeluTanh", func(y []float32) { copy(y, x); Activate(GeluTanh, y) }},
		{"Tanh", func(y []float32) { copy(y, x); Activate(Tanh, y) }},
	} {
		b.Run(test.name, func(b *testing.B) {
			y := normals(r, n)
			eachLevelB(b, func(b *testing.B) {
				b.SetBytes(4 * n)
				for b.Loop() {
					test.run(y)
				}
			})
		})
	}
}

// BenchmarkMulAdd counts floating-point operations as bytes.
func BenchmarkMulAdd(b *testing.B) {
	for _, test := range []struct{ n, k, width int }{
		{64, 64, 64}, {64, 64, 128}, {64, 128, 64}, {64, 64, 80}, {64, 64, 16}, {64, 64, 32}, {1, 64, 64}, {512, 64, 64},
	} {
		b.Run(fmt.Sprintf("%dx%dx%d", test.n, test.k, test.width), func(b *testing.B) {
			r := newRand()
			x, w, y := normals(r, test.n*test.k), normals(r, test.k*test.width), make([]float32, test.n*test.width)
			eachLevelB(b, func(b *testing.B) {
				b.SetBytes(2 * int64(test.n) * int64(test.k) * int64(test.width))
				for b.Loop() {
					MulAdd(y, test.width, x, test.k, test.n, w, test.width, test.k, test.width, false)
				}
			})
		})
	}
}

// BenchmarkTile is blocked attention of 64 queries with a page of 64 keys, whole
// and in its parts. Bytes count the floating-point operations of the two
// products.
func BenchmarkTile(b *testing.B) {
	r := newRand()
	const d, slots = 64, 64
	k, v := halves(normals(r, slots*d)), halves(normals(r, slots*d))
	q, y := normals(r, slots*d), make([]float32, slots*d)
	kT, wide, s := make([]float32, slots*d), make([]float32, slots*d), make([]float32, slots*slots)
	low, level, field := normals(r, slots), normals(r, slots), normals(r, slots)
	maxima, sums := make([]float32, slots), make([]float32, slots)
	v8, scales := signed(r, slots*d), normals(r, slots)
	logits := func() { MulAdd(s, slots, q, d, slots, kT, slots, d, slots, false) }
	for _, part := range []struct {
		name string
		run  func()
	}{
		{"TransposeF16", func() { TransposeF16(kT, slots, k, slots, d) }},
		{"DecodeF16", func() { quant.DecodeF16(wide, v) }},
		{"TransposeQ8", func() { TransposeQ8(kT, slots, v8, scales, slots, d) }},
		{"WidenQ8", func() { WidenQ8(wide, v8, scales, slots, d) }},
		{"PenaliseTile", func() { _ = PenaliseTile(s, slots, slots, low, level, field, 0.25, maxima) }},
		{"ExpSumTile", func() { ExpSumTile(s, slots, slots, slots, maxima, sums) }},
		{"whole", func() {
			TransposeF16(kT, slots, k, slots, d)
			quant.DecodeF16(wide, v)
			logits()
			_ = PenaliseTile(s, slots, slots, low, level, field, 0.25, maxima)
			ExpSumTile(s, slots, slots, slots, maxima, sums)
			MulAdd(y, d, s, slots, slots, wide, d, slots, d, true)
		}},
	} {
		b.Run(part.name, func(b *testing.B) {
			eachLevelB(b, func(b *testing.B) {
				logits()
				_ = PenaliseTile(s, slots, slots, low, level, field, 0, maxima)
				clear(y)
				b.SetBytes(2 * 2 * slots * slots * d)
				for b.Loop() {
					part.run()
				}
			})
		})
	}
}
