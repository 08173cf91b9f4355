//go:build !amd64

package kernels

import "unsafe"

// What only amd64 has assembly for.

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
