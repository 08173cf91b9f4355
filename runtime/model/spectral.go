package model

import (
	"math"
	"math/rand/v2"

	"github.com/firstpassage/fpa/quant"
)

// This file bounds singular values from above, with proofs that hold in spite of
// the rounding of float64: what is returned is never below the true value, and above
// it by less than a hundredth, for most matrices by one part in ten thousand.
//
// Of a head's matrix P [d, D] only G = P P^T is needed, since |P|² is the largest
// eigenvalue of G. Computed, an element of G is off by at most g(D) |P_i| |P_j|,
// so G by g(D) trace(G), where g(n) is about n 2^-53.
//
// The largest eigenvalue of G is below mu when mu I - G is positive definite. That
// a Cholesky decomposition of a matrix A succeeds in floating point proves that A + E
// is, with |E| at most g(d+1)/(1-g(d+1)) trace(A) (Demmel; see Higham, Accuracy
// and Stability of Numerical Algorithms, section 10.1). So some mu just above a power
// iteration's estimate is tried, and a larger one while that fails.
//
// For the product, a root U of G is taken: U^T U >= P P^T in the order of symmetric
// matrices. It is the Cholesky factor of G + t I, where t exceeds the errors of G
// and of the decomposition. With V a root for R, the monotony of eigenvalues in that
// order gives, once for each of the two,
//
//	|P^T R|² = largest eigenvalue of (P P^T)(R R^T) <= |U V^T|²
//
// and for a vector b, |P^T b| <= |U b|.

// widestGram is the widest head for which G is computed. Beyond, the norm is that
// of all elements (Frobenius), which is never too small.
const widestGram = 1024

// ulp is twice the relative error of one float64 operation, so that sums of errors
// need no second thought.
const ulp = 0x1p-52

// projection is what the bound needs of one head's map x -> P x + b.
type projection struct {
	root    []float64 // [d, d], upper triangular; nil unless asked for, or too wide
	bias    []float64 // [d]
	norm    float64   // bounds |P|
	row     float64   // bounds the length of any row of P
	all     float64   // bounds the length of all elements of P, as the engine sees them
	biasLen float64   // bounds |b|
	biasMax float64   // its largest element
	lost    float64   // bounds what one element of the result can lose by underflow
	width   int       // D
}

// project measures head h of a projection whose input was multiplied by norm [D].
// The matrix is decoded row by row, and one head at a time is held as float64.
func project(l Linear, norm []float32, h, d int, root bool) projection {
	n := l.W.Cols
	p := projection{bias: make([]float64, d), width: n}
	if l.Bias != nil {
		for i, b := range l.Bias[h*d : (h+1)*d] {
			p.bias[i] = float64(b)
			p.biasMax = max(p.biasMax, math.Abs(float64(b)))
		}
	}
	p.biasLen = length(p.bias)

	held := 1 // rows
	if d <= widestGram {
		held = d
	}
	row, x := make([]float32, n), make([]float64, held*n)
	var largestWeight, squares, engineSquares float64
	for i := range d {
		bytes := l.W.RowBytes()
		at := (h*d + i) * bytes
		if quant.Decode(row, l.W.Type, l.W.Data[at:at+bytes]) != nil {
			p.norm = math.Inf(1) // Build has checked type and size
			return p
		}
		to := x[i%held*n:][:n]
		for c, w := range row {
			to[c] = float64(w) * float64(norm[c]) // exact: 24 bits times 24
		}
		s := dot(to, to)
		squares += s
		p.row = max(p.row, s)
		largestWeight = max(largestWeight, largestAbs(row))
		if quant.HasOffset(l.W.Type) {
			s = offsetSquares(l.W.Data[at:at+bytes], l.W.Type, norm)
		}
		engineSquares += s
	}
	up := 1 + ulp*float64(n+d+8)
	p.row = math.Sqrt(p.row) * up
	p.all = math.Sqrt(engineSquares) * up
	p.norm = math.Sqrt(squares) * up
	p.lost = float64(n) * tiniest * (1 + largestWeight) * (1 + largestAbs(norm))
	if held == d && p.norm <= longest {
		g := gram(x, d, n)
		slack := ulp * float64(n+8) * trace(g, d)
		p.norm = min(p.norm, math.Sqrt(largestEigenvalue(g, d)+slack)*up)
		if root {
			p.root = rootOf(g, d, n)
		}
	}
	return p
}

// offsetSquares is the sum of squares of a row of a type that is a multiple of a scale
// plus an offset. The engine may sum the two apart, each larger than the number itself,
// so every number counts as much as the two together can in its part of a block.
func offsetSquares(row []byte, t quant.DType, norm []float32) (sum float64) {
	parts := make([]float64, len(norm)/quant.PartsLen)
	if quant.Parts(parts, t, row) != nil {
		return math.Inf(1) // not for such a type, whose blocks are whole
	}
	for i, most := range parts {
		for _, w := range norm[i*quant.PartsLen:][:quant.PartsLen] {
			x := most * float64(w)
			sum += x * x
		}
	}
	return sum
}

// limits says how large the result can be for an input no longer than radius, and
// how far the engine's may lie from it.
func (p *projection) limits(radius float64, rotary bool) vector {
	d := float64(len(p.bias))
	v := vector{
		length:  radius*p.norm + p.biasLen,
		element: radius*p.row + p.biasMax,
		err:     relativeError(p.width+64)*(radius*p.all+p.biasLen) + math.Sqrt(d)*p.lost,
	}
	if rotary { // an element is made of two
		v.element *= math.Sqrt2
	}
	v.element = min(v.element, v.length)
	return v
}

// largestForm bounds |(P x + bq)·(R y + bk)| over x and y no longer than radius.
func largestForm(p, r *projection, radius float64) float64 {
	d := len(p.bias)
	t := make([]float64, d*d) // U V^T, of two upper triangles
	for i := range d {
		for j := range d {
			first := max(i, j)
			t[i*d+j] = dot(p.root[i*d+first:(i+1)*d], r.root[j*d+first:(j+1)*d])
		}
	}
	g := gram(t, d, d)
	loss := ulp * float64(d+8)
	form := radius * radius * math.Sqrt(largestEigenvalue(g, d)+loss*trace(g, d))
	if p.biasLen > 0 || r.biasLen > 0 {
		form += radius*(length(times(p.root, r.bias))+length(times(r.root, p.bias))) + math.Abs(dot(p.bias, r.bias))
	}
	// The last term covers the errors of t, and of the products with the biases.
	return form + loss*(radius*length(p.root)+p.biasLen)*(radius*length(r.root)+r.biasLen)
}

// gram is x x^T, [d, d], of x [d, n].
func gram(x []float64, d, n int) []float64 {
	g := make([]float64, d*d)
	for i := range d {
		a := x[i*n : (i+1)*n]
		j := 0
		for ; j+4 <= i+1; j += 4 {
			four := x[j*n : (j+4)*n]
			b0, b1, b2, b3 := four[:n], four[n:][:n], four[2*n:][:n], four[3*n:][:n]
			var s0, s1, s2, s3 float64
			for c, v := range a {
				s0 += v * b0[c]
				s1 += v * b1[c]
				s2 += v * b2[c]
				s3 += v * b3[c]
			}
			g[i*d+j], g[i*d+j+1], g[i*d+j+2], g[i*d+j+3] = s0, s1, s2, s3
		}
		for ; j <= i; j++ {
			g[i*d+j] = dot(a, x[j*n:(j+1)*n])
		}
		for j := range i {
			g[j*d+i] = g[i*d+j]
		}
	}
	return g
}

func dot(a, b []float64) float64 {
	b = b[:len(a)]
	var s0, s1, s2, s3 float64
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
	return (s0 + s1) + (s2 + s3)
}

// length bounds the length of v.
func length(v []float64) float64 { return math.Sqrt(dot(v, v)) * (1 + ulp*float64(len(v)+8)) }

// times is m v, for m [d, d].
func times(m, v []float64) []float64 {
	out := make([]float64, len(v))
	for i := range out {
		out[i] = dot(m[i*len(v):(i+1)*len(v)], v)
	}
	return out
}

// trace is the sum of the diagonal of g [d, d].
func trace(g []float64, d int) (sum float64) {
	for i := range d {
		sum += g[i*d+i]
	}
	return sum
}

// rootOf is an upper triangular U [d, d] with U^T U >= P P^T for the P [d, n]
// whose computed P P^T is g.
func rootOf(g []float64, d, n int) []float64 {
	t := trace(g, d)
	u := make([]float64, d*d)
	if t == 0 {
		return u
	}
	l := make([]float64, d*d)
	for shift := ulp * float64(n+d+16) * t; ; shift *= 16 {
		copy(l, g)
		for i := range d {
			l[i*d+i] += shift
		}
		if cholesky(l, d) {
			break
		}
	}
	for i := range d {
		for j := i; j < d; j++ {
			u[i*d+j] = l[j*d+i]
		}
	}
	return u
}

// largestEigenvalue bounds the largest eigenvalue of g [d, d], symmetric with
// finite elements and no negative eigenvalue.
func largestEigenvalue(g []float64, d int) float64 {
	low := estimate(g, d)
	if low == 0 {
		return 0 // the largest diagonal element is 0, so all of g is
	}
	a := make([]float64, d*d)
	for step := 0x1p-14; ; step *= 2 { // ends at the latest when low (1+step) is above the trace
		mu := low * (1 + step)
		for i := range d {
			for j := range i {
				a[i*d+j] = -g[i*d+j]
			}
			a[i*d+i] = mu - g[i*d+i]
		}
		if cholesky(a, d) {
			return mu * (1 + ulp*float64(d)*float64(d+8))
		}
	}
}

// estimate is a number near the largest eigenvalue of g, and not below its largest
// diagonal element: a Rayleigh quotient after steps of power iteration from a fixed
// random vector.
func estimate(g []float64, d int) float64 {
	low := 0.0
	for i := range d {
		low = max(low, g[i*d+i])
	}
	rng := rand.New(rand.NewPCG(1, 2))
	v := make([]float64, d)
	for i := range v {
		v[i] = rng.NormFloat64()
	}
	const steps = 64
	for range steps {
		largest := 0.0
		for _, x := range v {
			largest = max(largest, math.Abs(x))
		}
		if largest == 0 {
			break
		}
		for i := range v {
			v[i] /= largest // not its length, which underflows where this does not
		}
		w := times(g, v)
		low = max(low, dot(v, w)/dot(v, v))
		v = w
	}
	return low
}

// cholesky replaces the lower triangle of a [d, d] by L with L L^T = a, and reports
// whether that succeeded: whether every pivot is positive.
func cholesky(a []float64, d int) bool {
	for i := range d {
		row := a[i*d : (i+1)*d]
		for j := range i {
			other := a[j*d : (j+1)*d]
			row[j] = (row[j] - dot(row[:j], other[:j])) / other[j]
		}
		pivot := row[i] - dot(row[:i], row[:i])
		if !(pivot > 0) {
			return false
		}
		row[i] = math.Sqrt(pivot)
	}
	return true
}
