package kernels

import (
	"math"

	"github.com/firstpassage/fpa/quant"
)

func MulAdd(y []float32, ldy int, x []float32, ldx, n int, w []float32, ldw, k, width int, add bool) {
	for t := range n {
		row := y[t*ldy : t*ldy+width]
		if !add {
			clear(row)
		}
		for c := range k {
			a := x[t*ldx+c]
			wr := w[c*ldw : c*ldw+width]
			for r := range row {
				row[r] += a * wr[r]
			}
		}
	}
}
func TransposeF16(dst []float32, ld int, src []uint16, rows, cols int) {
	for j := range rows {
		for c := range cols {
			dst[c*ld+j] = quant.F16ToF32(src[j*cols+c])
		}
	}
}
func TransposeF32(dst []float32, ld int, src []float32, rows, cols int) {
	for j := range rows {
		for c := range cols {
			dst[c*ld+j] = src[j*cols+c]
		}
	}
}
func TransposeQ8(dst []float32, ld int, src []int8, scales []float32, rows, cols int) {
	for j := range rows {
		for c := range cols {
			dst[c*ld+j] = scales[j] * float32(src[j*cols+c])
		}
	}
}
func WidenQ8(dst []float32, src []int8, scales []float32, rows, cols int) {
	for j := range rows {
		for c := range cols {
			dst[j*cols+c] = scales[j] * float32(src[j*cols+c])
		}
	}
}
func KeyDotsQ8(s, q []float32, k []int8, scales []float32, d int, scale float32) {
	for j := range s {
		sum := float32(0)
		for c := range d {
			sum += q[c] * float32(k[j*d+c])
		}
		s[j] = scale * scales[j] * sum
	}
}
func AccumulateQ8(y, p []float32, v []int8, scales []float32) {
	for j, w := range p {
		if w == 0 {
			continue
		}
		for c := range y {
			y[c] += w * scales[j] * float32(v[j*len(y)+c])
		}
	}
}
func QuantizeQ8(dst []int8, x []float32) float32 {
	m := float32(0)
	for _, v := range x {
		m = max(m, float32(math.Abs(float64(v))))
	}
	if m == 0 {
		clear(dst)
		return 0
	}
	s := m / 127
	for i, v := range x {
		dst[i] = int8(math.RoundToEven(float64(v) / float64(s)))
	}
	return s
}
func PenaliseTile(s []float32, lds, n int, low, level []float32, field []float32, slope float32, rowMax []float32) (least float32) {
	for t := range n {
		row := s[t*lds : t*lds+len(low)]
		Penalise(row, low, level, field[t], slope)
		rowMax[t] = Max(row)
	}
	return 0
}
func ExpSumTile(s []float32, lds, n, width int, max, sum []float32) {
	for t := range n {
		row := s[t*lds : t*lds+width]
		if math.IsInf(float64(max[t]), -1) {
			clear(row)
			continue
		}
		sum[t] += ExpSum(row, max[t])
	}
}
