package kernels

import (
	"math"
	"unsafe"
)

// This file holds the kernels of blocked attention, in which a tile of queries
// meets a page of keys, with the softmax kept running from page to page:
//
//	keys turned to [d][slots] (TransposeF16, …)        logits = MulAdd(queries, keys)
//	the penalty and the maximum of each row            PenaliseTile
//	weights and their sums                             ExpSumTile
//	values widened to [slots][d] (quant.DecodeF16, …)  y = MulAdd(weights, values)

// MulAdd multiplies n rows of x with the matrix w of k rows:
//
//	y[t*ldy+r] = sum over c < k of x[t*ldx+c] * w[c*ldw+r]    t < n, r < width
//
// or, with add, adds the sum to y. Every sum is taken in the order of c, and in
// full before it is added, whatever n, width and the other elements are. All of
// w counts: a NaN makes one even times 0. y must not overlap x or w.
func MulAdd(y []float32, ldy int, x []float32, ldx, n int, w []float32, ldw, k, width int, add bool) {
	if n <= 0 || width <= 0 {
		return
	}
	y = y[:(n-1)*ldy+width]
	if k <= 0 {
		for t := 0; t < n && !add; t++ {
			clear(y[t*ldy : t*ldy+width])
		}
		return
	}
	mulAdd(y, ldy, x[:(n-1)*ldx+k], ldx, n, w[:(k-1)*ldw+width], ldw, k, width, add)
}

// TransposeF16 turns rows of cols binary16 numbers, one after the other, into
// columns, widened: dst[c*ld+j] = src[j*cols+c]. ld is at least rows.
func TransposeF16(dst []float32, ld int, src []uint16, rows, cols int) {
	if rows > 0 && cols > 0 {
		transposeF16(dst[:(cols-1)*ld+rows], ld, src[:rows*cols], rows, cols)
	}
}

// TransposeF32 is TransposeF16 for float32 numbers.
func TransposeF32(dst []float32, ld int, src []float32, rows, cols int) {
	if rows > 0 && cols > 0 {
		transposeF32(dst[:(cols-1)*ld+rows], ld, src[:rows*cols], rows, cols)
	}
}

// TransposeQ8 is TransposeF16 for bytes with a scale for each row:
// dst[c*ld+j] = scales[j] * src[j*cols+c].
func TransposeQ8(dst []float32, ld int, src []int8, scales []float32, rows, cols int) {
	if rows > 0 && cols > 0 {
		transposeQ8(dst[:(cols-1)*ld+rows], ld, src[:rows*cols], scales[:rows], rows, cols)
	}
}

// PenaliseTile does for n rows of logits, row t at s[t*lds], what [Penalise] does
// for one: in the order of t, it moves the lows to field[t] and takes the penalty
// off row t. Slots are as many as low has; level is at least as long. It sets
// rowMax[t] to the largest logit left in row t (-Inf for none; NaNs are passed
// over), and returns the least penalty of a slot that is not empty at the first
// row, +Inf without one: since penalties only grow, it bounds the whole tile.
func PenaliseTile(s []float32, lds, n int, low, level []float32, field []float32, slope float32, rowMax []float32) (least float32) {
	for t := range n {
		rowMax[t] = float32(math.Inf(-1))
	}
	if n <= 0 || len(low) == 0 {
		return float32(math.Inf(1))
	}
	return penaliseTile(s[:(n-1)*lds+len(low)], lds, n, low, level[:len(low)], field[:n], slope, rowMax[:n])
}

// ExpSumTile does for n rows of width logits, row t at s[t*lds], what [ExpSum]
// does for one: it replaces row t by exp(s-max[t]) and adds its sum to sum[t]. A
// row whose max is -Inf, which has no key, becomes zeros.
func ExpSumTile(s []float32, lds, n, width int, max, sum []float32) {
	if n > 0 && width > 0 {
		expSumTile(s[:(n-1)*lds+width], lds, n, width, max[:n], sum[:n])
	}
}

// WidenQ8 widens rows of cols bytes with a scale for each row:
// dst[j*cols+c] = scales[j] * src[j*cols+c].
func WidenQ8(dst []float32, src []int8, scales []float32, rows, cols int) {
	if rows > 0 && cols > 0 {
		widenQ8(dst[:rows*cols], src[:rows*cols], scales[:rows], rows, cols)
	}
}

// QuantizeQ8 rounds x to bytes and returns their scale, max|x|/127 in float32:
// dst[i] is x[i]/scale rounded to the nearest integer, ties to the even one,
// within +-127. dst is at least as long as x. If x is zero, or so small that the
// scale is, scale and bytes are 0. If it holds a NaN or an infinity, the scale is
// one of these and the bytes are 0, so that the product is NaN.
func QuantizeQ8(dst []int8, x []float32) (scale float32) {
	dst = dst[:len(x)]
	scale = magnitude(x) / 127
	if scale == 0 || !(scale <= math.MaxFloat32) {
		clear(dst)
		return scale
	}
	roundQ8(dst, x, scale)
	return scale
}

// KeyDotsQ8 is [KeyDotsF16] for keys stored as bytes with a scale each:
// s[j] = scale * scales[j] * q·k[j*d:(j+1)*d]. The query stays float32.
func KeyDotsQ8(s, q []float32, k []int8, scales []float32, d int, scale float32) {
	keyDotsQ8(s, q[:d], k[:len(s)*d], scales[:len(s)], scale)
}

// AccumulateQ8 is [AccumulateF16] for values stored as bytes with a scale each:
// it adds the sum over j of p[j] * scales[j] * v[j*len(y):(j+1)*len(y)] to y. A
// value whose p is 0 is not read.
func AccumulateQ8(y, p []float32, v []int8, scales []float32) {
	accumulateQ8(y, p, v[:len(p)*len(y)], scales[:len(p)])
}

// Prefetch asks the processor's cache for x, where it can: pages of keys and values
// lie apart, so nothing else foresees that the next one is wanted.
func Prefetch[T uint16 | int8 | float32](x []T) {
	if len(x) > 0 {
		prefetchBytes(unsafe.Pointer(&x[0]), len(x)*int(unsafe.Sizeof(x[0])))
	}
}
