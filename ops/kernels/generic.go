package kernels

import (
	"math"

	"github.com/firstpassage/fpa/quant"
)

// This file holds every kernel in plain Go, the meaning of the assembly. Sums
// use four lanes, which the processor runs side by side.

func dotGo(a, b []float32) float32 {
	b = b[:len(a)]
	var s0, s1, s2, s3 float32
	for len(a) >= 4 && len(b) >= 4 {
		s0 += a[0] * b[0]
		s1 += a[1] * b[1]
		s2 += a[2] * b[2]
		s3 += a[3] * b[3]
		a, b = a[4:], b[4:]
	}
	for i, v := range a {
		s0 += v * b[i]
	}
	return (s0 + s2) + (s1 + s3)
}

func axpyGo(y []float32, a float32, x []float32) {
	x = x[:len(y)]
	for i := range y {
		y[i] += a * x[i]
	}
}

func addGo(y, x []float32) {
	x = x[:len(y)]
	for i := range y {
		y[i] += x[i]
	}
}

func mulGo(y, x []float32) {
	x = x[:len(y)]
	for i := range y {
		y[i] *= x[i]
	}
}

func scaleGo(y []float32, a float32) {
	for i := range y {
		y[i] *= a
	}
}

// scaleMulGo sets y = a*x*w.
func scaleMulGo(y, x, w []float32, a float32) {
	x, w = x[:len(y)], w[:len(y)]
	for i := range y {
		y[i] = a * x[i] * w[i]
	}
}

func addConstGo(x []float32, a float32) {
	for i := range x {
		x[i] += a
	}
}

func maximumGo(x []float32) float32 {
	m := float32(math.Inf(-1))
	for _, v := range x {
		if v > m {
			m = v
		}
	}
	return m
}

func updateLowGo(low []float32, field float32) {
	for i, v := range low {
		if field < v {
			low[i] = field
		}
	}
}

func penaliseGo(s, low, level []float32, field, slope float32) (largest float32) {
	low, level = low[:len(s)], level[:len(s)]
	for j := range s {
		if field < low[j] {
			low[j] = field
		}
		if level[j] > math.MaxFloat32 { // +Inf, an empty slot
			s[j] = float32(math.Inf(-1))
			continue
		}
		// A difference beyond the largest number is cut, lest slope 0 times
		// infinity become NaN.
		if d := min(level[j]-low[j], math.MaxFloat32); d > 0 {
			penalty := float32(slope * d) // rounded, lest it be fused with the subtraction
			s[j] -= penalty
			largest = max(largest, penalty)
		}
	}
	return largest
}

func keyDotsF16Go(s, q []float32, k []uint16, scale float32) {
	d := len(q)
	for j := range s {
		row := k[j*d : (j+1)*d]
		var s0, s1 float32
		i := 0
		for ; i+1 < d; i += 2 {
			s0 += q[i] * quant.F16ToF32(row[i])
			s1 += q[i+1] * quant.F16ToF32(row[i+1])
		}
		if i < d {
			s0 += q[i] * quant.F16ToF32(row[i])
		}
		s[j] = scale * (s0 + s1)
	}
}

func keyDotsF32Go(s, q, k []float32, scale float32) {
	d := len(q)
	for j := range s {
		s[j] = scale * dotGo(q, k[j*d:(j+1)*d])
	}
}

func accumulateF16Go(y, p []float32, v []uint16) {
	n := len(y)
	for j, w := range p {
		if w == 0 {
			continue
		}
		row := v[j*n : (j+1)*n]
		for c := range y {
			y[c] += w * quant.F16ToF32(row[c])
		}
	}
}

func accumulateF32Go(y, p, v []float32) {
	n := len(y)
	for j, w := range p {
		if w != 0 {
			axpyGo(y, w, v[j*n:(j+1)*n])
		}
	}
}

// The exponential: n = round(x/ln 2), r = x - n ln 2 in two parts, the first of
// which has so few bits that n times it is exact, then a polynomial for exp(r)
// with |r| <= ln(2)/2, then 2^n. The coefficients are the minimax ones for
// (exp(r)-1-r)/r^2 in float32 (Cephes, expf).
const (
	expLow  = -87.33654 // below it the result is less than 2^-126
	expHigh = 88.72284  // above it the result is infinite
	log2e   = 1.44269504088896341
	ln2High = 0.693359375
	ln2Low  = -2.12194440e-4
	expC0   = 1.9875691500e-4
	expC1   = 1.3981999507e-3
	expC2   = 8.3334519073e-3
	expC3   = 4.1665795894e-2
	expC4   = 1.6666665459e-1
	expC5   = 5.0000001201e-1
)

func expGo(x float32) float32 {
	switch {
	case x < expLow:
		return 0
	case x > expHigh:
		return float32(math.Inf(1))
	case x != x:
		return x
	}
	const magic = 1.5 * (1 << 23) // adding it rounds to a whole number
	n := float32(x*log2e) + magic - magic
	r := x - float32(n*ln2High)
	r -= n * ln2Low
	p := float32(expC0)
	p = p*r + expC1
	p = p*r + expC2
	p = p*r + expC3
	p = p*r + expC4
	p = p*r + expC5
	p = p*r*r + r + 1
	// Two factors, because 2^128 is no float32.
	half := int32(n) >> 1
	return p * power(half) * power(int32(n)-half)
}

// power is 2^n for -126 <= n <= 127.
func power(n int32) float32 { return math.Float32frombits(uint32(n+127) << 23) }

func expSumGo(s []float32, m float32) float32 {
	var sum float32
	for j, v := range s {
		e := expGo(v - m)
		s[j] = e
		sum += e
	}
	return sum
}

func activateGo(kind Activation, y []float32) {
	switch kind {
	case Silu:
		for i, x := range y {
			y[i] = x / (1 + expGo(-x))
		}
	case Sigmoid:
		for i, x := range y {
			y[i] = 1 / (1 + expGo(-x))
		}
	case Gelu:
		for i, x := range y {
			y[i] = float32(0.5 * float64(x) * math.Erfc(-float64(x)/math.Sqrt2))
		}
	case GeluTanh:
		// (1 + tanh(u))/2 is the sigmoid of 2u.
		for i, x := range y {
			y[i] = x / (1 + expGo(x*(geluA+geluB*(x*x))))
		}
	case Relu:
		for i, x := range y {
			if x < 0 {
				y[i] = 0
			}
		}
	case Tanh:
		for i, x := range y {
			y[i] = tanhGo(x)
		}
	}
}

// -2 sqrt(2/pi) and -2 sqrt(2/pi) 0.044715, for GeluTanh.
const (
	geluA = -1.5957691216057308
	geluB = -0.0713548162726009
)

// tanhGo uses an odd polynomial near 0, where 1 - exp(-2x) would cancel
// (coefficients: Cephes, tanhf).
func tanhGo(x float32) float32 {
	a := float32(math.Abs(float64(x)))
	if a < tanhSmall {
		z := x * x
		p := float32(tanhC0)
		p = p*z + tanhC1
		p = p*z + tanhC2
		p = p*z + tanhC3
		p = p*z + tanhC4
		return p*z*x + x
	}
	return float32(math.Copysign(float64(1-2/(expGo(2*a)+1)), float64(x)))
}

const (
	tanhSmall = 0.625
	tanhC0    = -5.70498872745e-3
	tanhC1    = 2.06390887954e-2
	tanhC2    = -5.37397155531e-2
	tanhC3    = 1.33314422036e-1
	tanhC4    = -3.33332819422e-1
)

func mulAddGo(y []float32, ldy int, x []float32, ldx, n int, w []float32, ldw, k, width int, add bool) {
	for t := range n {
		row, xs := y[t*ldy:t*ldy+width], x[t*ldx:t*ldx+k]
		r := 0
		for ; r+4 <= width; r += 4 {
			var s0, s1, s2, s3 float32
			for c, v := range xs {
				ws := w[c*ldw+r : c*ldw+r+4 : c*ldw+r+4]
				s0 += v * ws[0]
				s1 += v * ws[1]
				s2 += v * ws[2]
				s3 += v * ws[3]
			}
			out := row[r : r+4 : r+4]
			if add {
				s0, s1, s2, s3 = out[0]+s0, out[1]+s1, out[2]+s2, out[3]+s3
			}
			out[0], out[1], out[2], out[3] = s0, s1, s2, s3
		}
		for ; r < width; r++ {
			var s float32
			for c, v := range xs {
				s += v * w[c*ldw+r]
			}
			if add {
				s = row[r] + s
			}
			row[r] = s
		}
	}
}

func transposeF16Go(dst []float32, ld int, src []uint16, rows, cols int) {
	for j := range rows {
		for c, v := range src[j*cols : (j+1)*cols] {
			dst[c*ld+j] = quant.F16ToF32(v)
		}
	}
}

func transposeF32Go(dst []float32, ld int, src []float32, rows, cols int) {
	for j := range rows {
		for c, v := range src[j*cols : (j+1)*cols] {
			dst[c*ld+j] = v
		}
	}
}

func transposeQ8Go(dst []float32, ld int, src []int8, scales []float32, rows, cols int) {
	for j, scale := range scales[:rows] {
		for c, v := range src[j*cols : (j+1)*cols] {
			dst[c*ld+j] = scale * float32(v)
		}
	}
}

func penaliseTileGo(s []float32, lds, n int, low, level, field []float32, slope float32, rowMax []float32) (least float32) {
	least = float32(math.Inf(1))
	for j, l := range level[:len(low)] {
		if l <= math.MaxFloat32 || l != l {
			penalty := float32(0)
			if d := min(l-min(low[j], field[0]), math.MaxFloat32); d > 0 {
				penalty = slope * d
			}
			least = min(least, penalty)
		}
	}
	for t := range n {
		row := s[t*lds : t*lds+len(low)]
		penalise(row, low, level, field[t], slope)
		rowMax[t] = maximum(row)
	}
	return least
}

func expSumTileGo(s []float32, lds, n, width int, max, sum []float32) {
	for t := range n {
		m := max[t]
		if m < -math.MaxFloat32 { // less infinity, a logit of -Inf stays what it is
			m = float32(math.Inf(1))
		}
		sum[t] += expSum(s[t*lds:t*lds+width], m)
	}
}

func widenQ8Go(dst []float32, src []int8, scales []float32, rows, cols int) {
	for j, scale := range scales[:rows] {
		row := dst[j*cols : (j+1)*cols]
		for c, v := range src[j*cols : (j+1)*cols] {
			row[c] = scale * float32(v)
		}
	}
}

// magnitudeGo compares magnitudes as integers: a NaN is above infinity.
func magnitudeGo(x []float32) float32 {
	var most uint32
	for _, v := range x {
		most = max(most, math.Float32bits(v)&math.MaxInt32)
	}
	return math.Float32frombits(most)
}

func roundQ8Go(dst []int8, x []float32, scale float32) {
	for i, v := range x {
		dst[i] = int8(math.RoundToEven(float64(max(-127, min(v/scale, 127)))))
	}
}

func keyDotsQ8Go(s, q []float32, k []int8, scales []float32, scale float32) {
	d := len(q)
	for j := range s {
		row := k[j*d : (j+1)*d]
		var s0, s1 float32
		i := 0
		for ; i+1 < d; i += 2 {
			s0 += q[i] * float32(row[i])
			s1 += q[i+1] * float32(row[i+1])
		}
		if i < d {
			s0 += q[i] * float32(row[i])
		}
		s[j] = scale * (s0 + s1) * scales[j]
	}
}

func accumulateQ8Go(y, p []float32, v []int8, scales []float32) {
	n := len(y)
	for j, w := range p {
		if w == 0 {
			continue
		}
		w *= scales[j]
		for c, q := range v[j*n : (j+1)*n] {
			y[c] += w * float32(q)
		}
	}
}
