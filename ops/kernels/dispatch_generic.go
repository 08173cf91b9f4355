//go:build !amd64 && !arm64

package kernels

import "unsafe"

// current is the level in use: there is no assembly for this processor yet.
const current = generic

var levelNames = [...]string{"generic"}

func dot(a, b []float32) float32                  { return dotGo(a, b) }
func axpy(y []float32, a float32, x []float32)    { axpyGo(y, a, x) }
func add(y, x []float32)                          { addGo(y, x) }
func mul(y, x []float32)                          { mulGo(y, x) }
func scale(y []float32, a float32)                { scaleGo(y, a) }
func scaleMul(y, x, w []float32, a float32)       { scaleMulGo(y, x, w, a) }
func addConst(x []float32, a float32)             { addConstGo(x, a) }
func maximum(x []float32) float32                 { return maximumGo(x) }
func expSum(s []float32, m float32) float32       { return expSumGo(s, m) }
func activate(kind Activation, y []float32)       { activateGo(kind, y) }
func updateLow(low []float32, field float32)      { updateLowGo(low, field) }
func keyDotsF32(s, q, k []float32, scale float32) { keyDotsF32Go(s, q, k, scale) }
func accumulateF16(y, p []float32, v []uint16)    { accumulateF16Go(y, p, v) }
func accumulateF32(y, p, v []float32)             { accumulateF32Go(y, p, v) }

func keyDotsF16(s, q []float32, k []uint16, scale float32) { keyDotsF16Go(s, q, k, scale) }

func penalise(s, low, level []float32, field, slope float32) float32 {
	return penaliseGo(s, low, level, field, slope)
}

func matMul(y []float32, ldy int, w Matrix, in *Input, r0, r1 int, s *Scratch) {
	matMulGo(y, ldy, w, in, r0, r1, s)
}

func mulAdd(y []float32, ldy int, x []float32, ldx, n int, w []float32, ldw, k, width int, add bool) {
	mulAddGo(y, ldy, x, ldx, n, w, ldw, k, width, add)
}

func transposeF16(dst []float32, ld int, src []uint16, rows, cols int) {
	transposeF16Go(dst, ld, src, rows, cols)
}

func transposeF32(dst []float32, ld int, src []float32, rows, cols int) {
	transposeF32Go(dst, ld, src, rows, cols)
}

func transposeQ8(dst []float32, ld int, src []int8, scales []float32, rows, cols int) {
	transposeQ8Go(dst, ld, src, scales, rows, cols)
}

func penaliseTile(s []float32, lds, n int, low, level, field []float32, slope float32, rowMax []float32) float32 {
	return penaliseTileGo(s, lds, n, low, level, field, slope, rowMax)
}

func expSumTile(s []float32, lds, n, width int, max, sum []float32) {
	expSumTileGo(s, lds, n, width, max, sum)
}

func widenQ8(dst []float32, src []int8, scales []float32, rows, cols int) {
	widenQ8Go(dst, src, scales, rows, cols)
}

func magnitude(x []float32) float32                  { return magnitudeGo(x) }
func roundQ8(dst []int8, x []float32, scale float32) { roundQ8Go(dst, x, scale) }

func keyDotsQ8(s, q []float32, k []int8, scales []float32, scale float32) {
	keyDotsQ8Go(s, q, k, scales, scale)
}

func accumulateQ8(y, p []float32, v []int8, scales []float32) { accumulateQ8Go(y, p, v, scales) }

func prefetchBytes(unsafe.Pointer, int) {}

func pause() {}
