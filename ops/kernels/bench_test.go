package kernels

import (
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
		{"Q4_K_768x768", quant.Q4_K, 768, 768},
	} {
		b.Run(test.name, func(b *testing.B) {
			r := newRand()
			w, _ := matrix(b, r, test.d, test.rows, test.cols)
			x, y := normals(r, test.cols), make([]float32, test.rows)
			var s Scratch
			eachLevelB(b, func(b *testing.B) {
				b.SetBytes(int64(len(w.Data)))
				for b.Loop() {
					MatMul(y, test.rows, w, x, test.cols, 1, 0, test.rows, &s)
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
					MatMul(y, test.rows, w, x, test.cols, n, 0, test.rows, &s)
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
