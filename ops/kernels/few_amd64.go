package kernels

import (
	"unsafe"

	"github.com/firstpassage/fpa/quant"
)

//go:generate sh -c "cd gen && go run . -for few -pkg kernels -out ../few_amd64.s -stubs ../few_stubs_amd64.go"

// fewKernel multiplies rows with a number of vectors; ldy, stride and ldx are in bytes.
type fewKernel func(y *float32, ldy int, w *byte, stride int, x *float32, ldx, cols, rows int)

// The kernels by type and number of vectors, less one.
var (
	fewKernels2 = map[quant.DType][]fewKernel{
		quant.F32:  {fewF321AVX2, fewF322AVX2, fewF323AVX2, fewF324AVX2},
		quant.F16:  {fewF161AVX2, fewF162AVX2, fewF163AVX2, fewF164AVX2},
		quant.BF16: {fewBF161AVX2, fewBF162AVX2, fewBF163AVX2, fewBF164AVX2},
	}
	fewKernels512 = map[quant.DType][]fewKernel{
		quant.F32:  {fewF321AVX512, fewF322AVX512, fewF323AVX512, fewF324AVX512, fewF325AVX512, fewF326AVX512, fewF327AVX512, fewF328AVX512},
		quant.F16:  {fewF161AVX512, fewF162AVX512, fewF163AVX512, fewF164AVX512, fewF165AVX512, fewF166AVX512, fewF167AVX512, fewF168AVX512},
		quant.BF16: {fewBF161AVX512, fewBF162AVX512, fewBF163AVX512, fewBF164AVX512, fewBF165AVX512, fewBF166AVX512, fewBF167AVX512, fewBF168AVX512},
	}
)

// fewKernelsOf are the kernels for a type, nil where there are none.
func fewKernelsOf(t quant.DType) []fewKernel {
	switch {
	case current >= avx512:
		return fewKernels512[t]
	case current == avx2:
		return fewKernels2[t]
	}
	return nil
}

// fewBlock is the bytes of rows that stay in the cache while vectors are multiplied
// with them, some at a time.
const fewBlock = 1 << 18

// matMulRows multiplies rows of a type without blocks, read in place. An element
// depends on its row and vector alone, not on how many there are.
func matMulRows(kernels []fewKernel, y []float32, ldy int, w Matrix, in *Input, r0, r1 int) {
	row := w.RowBytes()
	step := r1 - r0
	if in.n > len(kernels) {
		step = min(step, max(4, fewBlock/row&^3))
	}
	for r := r0; r < r1; r += step {
		m := min(step, r1-r)
		for t := 0; t < in.n; t += len(kernels) {
			n := min(len(kernels), in.n-t)
			kernels[n-1](&y[t*ldy+r], 4*ldy, (*byte)(unsafe.Pointer(&w.Data[r*row])), row, &in.x[t*in.ld], 4*in.ld, w.Cols, m)
		}
	}
}
