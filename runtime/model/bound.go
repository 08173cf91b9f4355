package model

import (
	"math"
	"runtime"
	"sync"
	"sync/atomic"

	"github.com/firstpassage/fpa/quant"
)

// This file proves bounds on logits. What is proved, for every layer and query
// head:
//
//	|Scale * q·k| <= U
//
// for every residual stream, with q and k as an engine computes them in float32
// (any order of sums, weights used as they are stored) and k as the cache stores
// it.
//
// # Exact numbers
//
// With QK-norm a normalised head has length at most sqrt(d), so with the norms'
// weights wq and wk
//
//	|q·k| <= d max_i |wq_i wk_i|        without rotary embedding,
//	|q·k| <= d max|wq| max|wk|          with it, since it mixes dimensions.
//
// Without, q = P x + bq and k = R y + bk, where x and y are inputs that the block
// norm has brought to a length of at most r = sqrt(D), and P and R are the head's
// rows of the projections with column c multiplied by the norm's weight c. Then,
// |M| being the largest singular value of M,
//
//	|q·k| <= r² |P^T R| + r |P^T bk| + r |R^T bq| + |bq·bk|    without rotary embedding,
//	|q·k| <= (r |P| + |bq|) (r |R| + |bk|)                     with it.
//
// The first is never above the second. A key shift mixes two projections, or one
// and 0, with weights that sum to 1, and q·k is linear in k, so it reaches no
// further. The singular values come with proofs; see spectral.go.
//
// # Rounding
//
// Let u = 2^-24, and g(n) = nu/(1-nu), which bounds the relative error of n
// roundings in a row. The block norm's output has length at most
// sqrt(D) (1 + g(D+16)): its sum of squares is off by g(D), the rest is a few
// roundings of each element. Element i of a projection is off by at most g(D+64)
// times sum_c |W_ic| |h_c|, hence the vector by g(D+64) r |P|_F; the 64 pay for the
// bias, the shift, the rotary embedding (8u of the length), and for the scales of
// block types. The dot product of q and k is off by g(d+16) |q| |k|. Cached keys
// are off as keyRounding says. Numbers that underflow are off by 2^-149 each.
// Every such error is multiplied by the largest length of the other vector and
// added to the exact number.

// keyRounding says how an element k of a key whose largest element is m changes
// when it is cached: by at most relative |k| + largest m + absolute, unless it is
// beyond limit.
type keyRounding struct{ relative, largest, absolute, limit float64 }

// roundingOf is the rounding of a cache type. Half a unit of F16 is 2^-11 of a
// normal number and 2^-25 below; the operator's definition allows for 2^-10. Q8_0
// in a cache is one float32 scale, m/127, a head and key, and whole numbers from
// -127 to 127.
func roundingOf(cache quant.DType) (r keyRounding, ok bool) {
	switch cache {
	case quant.F32:
		return keyRounding{limit: longest}, true
	case quant.F16:
		return keyRounding{relative: 0x1p-10, absolute: 0x1p-25, limit: 65504}, true
	case quant.Q8_0:
		return keyRounding{largest: (1 + 0x1p-10) / 254, absolute: 0x1p-140, limit: longest}, true
	}
	return keyRounding{}, false
}

const (
	// longest is the largest length of a vector, and mostFloat the largest product of
	// two, for which the engines' float32 arithmetic certainly does not overflow, not
	// even where it multiplies by whole numbers to 127 and by Scale before it scales
	// down.
	longest   = 0x1p90
	mostFloat = 0x1p120
	// tiniest is twice what one operation on float32 can lose by underflow.
	tiniest = 0x1p-148
	// leastEps is the smallest epsilon of an RMS norm that keeps squares which
	// underflow from making the result too long.
	leastEps = 1e-30
)

// relativeError is g(n) of float32: the largest relative error of a product of n
// factors 1+e with |e| at most 2^-24; +Inf where there is no bound.
func relativeError(n int) float64 {
	x := float64(n) * 0x1p-24
	if x > 0.5 {
		return math.Inf(1)
	}
	return x / (1 - x)
}

// LogitBounds computes, for every layer and query head, a bound U on
// |Scale * q·k| over all inputs, for keys cached as F32, F16 or Q8_0, in the order
// of Config.LogitBound. The bound for F16 holds for F32 too, and is the one that
// files store. Heads are computed on all processors; a model of 110M parameters
// without QK-norm takes about half a second of one.
//
// It is nil when nothing is proved: for plain softmax, which needs no bound; for
// another cache type; for an RMS norm with an epsilon of 0; and for weights that are
// not finite, or so large that some input makes a key overflow the cache's type.
func (m *Model) LogitBounds(cache quant.DType) []float32 {
	rounding, ok := roundingOf(cache)
	if m.Field == FieldNone || !ok {
		return nil
	}
	bounds := make([]float32, m.Blocks*m.Heads)
	group := m.Heads / m.KVHeads
	var next atomic.Int64
	var workers sync.WaitGroup
	for range min(runtime.GOMAXPROCS(0), m.Blocks*m.KVHeads) {
		workers.Go(func() {
			for {
				i := int(next.Add(1)) - 1 // a key head of a layer
				if i >= m.Blocks*m.KVHeads {
					return
				}
				l, kv := &m.Layers[i/m.KVHeads], i%m.KVHeads
				out := bounds[i*group : (i+1)*group]
				if m.QKNorm != NormNone {
					m.normBounds(out, l, kv, rounding)
				} else {
					m.projectionBounds(out, l, kv, rounding)
				}
			}
		})
	}
	workers.Wait()
	for _, u := range bounds {
		if !(u <= math.MaxFloat32) {
			return nil
		}
	}
	return bounds
}

// normBounds sets the bounds of the query heads of one key head with QK-norm.
func (m *Model) normBounds(out []float32, l *Layer, kv int, rounding keyRounding) {
	d := m.KeyDim
	radius := math.Sqrt(float64(d)) * (1 + relativeError(d+16)) // of a normalised head
	radius *= 1 + relativeError(64)                             // its weight and rotation
	if !(m.QKNormEps >= leastEps) {
		radius = math.Inf(1)
	}
	side := func(weight []float32) vector {
		most := largestAbs(weight)
		return vector{length: radius * most, element: radius * most, err: math.Sqrt(float64(d)) * (1 + most) * tiniest}
	}
	wk := l.KNorm[kv*d : (kv+1)*d]
	k := side(wk)
	for i := range out {
		h := kv*len(out) + i
		wq := l.QNorm[h*d : (h+1)*d]
		q := side(wq)
		most := q.length * k.length
		if m.RopeDim == 0 {
			most = radius * radius * largestProduct(wq, wk)
		}
		out[i] = m.logitBound(most, most, q, k, rounding)
	}
}

// projectionBounds sets the bounds of the query heads of one key head without
// QK-norm.
func (m *Model) projectionBounds(out []float32, l *Layer, kv int, rounding keyRounding) {
	radius := math.Sqrt(float64(m.Hidden)) * (1 + relativeError(m.Hidden+16)) // of an input
	if !(m.NormEps >= leastEps) {
		radius = math.Inf(1)
	}
	rotary := m.RopeDim > 0
	k := project(l.K, l.AttnNorm, kv, m.KeyDim, !rotary)
	kLimits := k.limits(radius, rotary)
	for i := range out {
		q := project(l.Q, l.AttnNorm, kv*len(out)+i, m.KeyDim, !rotary)
		qLimits := q.limits(radius, rotary)
		sum := qLimits.length * kLimits.length
		most := sum
		if q.root != nil && sum <= mostFloat {
			most = min(most, largestForm(&q, &k, radius))
		}
		out[i] = m.logitBound(most, sum, qLimits, kLimits, rounding)
	}
}

// vector says how large a query or key can be: its length and its largest element,
// computed exactly, and how far the one that the engine computes lies from it.
type vector struct{ length, element, err float64 }

// logitBound is the bound on the scaled logit of a head, given one on q·k and one
// on the sum of |q_i k_i|, of exact q and k. It is +Inf when an input can make the
// arithmetic, or a key in the cache's type, overflow.
func (m *Model) logitBound(most, sum float64, q, k vector, rounding keyRounding) float32 {
	if !(q.length+q.err <= longest && k.length+k.err <= longest && k.element+k.err <= rounding.limit) {
		return float32(math.Inf(1))
	}
	kErr := k.err + math.Sqrt(float64(m.KeyDim))*(rounding.largest*(k.element+k.err)+rounding.absolute)
	moved := q.length*kErr + q.err*(k.length+kErr)
	relative := (1+rounding.relative)*(1+relativeError(m.KeyDim+16)) - 1
	if !(sum+moved <= mostFloat) {
		return float32(math.Inf(1))
	}
	u := most + moved + (sum+moved)*relative + float64(m.KeyDim)*tiniest
	return roundUp(math.Abs(float64(m.Scale))*u + tiniest)
}

// roundUp is the float32 at or above u, with room for the few float64 roundings
// that made u.
func roundUp(u float64) float32 {
	u *= 1 + 0x1p-40
	f := float32(u)
	if float64(f) < u {
		f = math.Nextafter32(f, float32(math.Inf(1)))
	}
	return f
}

func largestProduct(a, b []float32) float64 {
	most := 0.0
	for i := range a {
		most = max(most, math.Abs(float64(a[i])*float64(b[i])))
	}
	return most
}

func largestAbs(a []float32) float64 {
	most := 0.0
	for _, x := range a {
		most = max(most, math.Abs(float64(x)))
	}
	return most
}
