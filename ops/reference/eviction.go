package reference

import (
	"fmt"
	"math"
)

// Rounding says how far the elements of a cached key may lie from the key's own:
// element k of a key whose largest element is m by at most
//
//	Relative |k| + Largest m + Absolute
//
// The zero value is a cache that keeps float64.
type Rounding struct{ Relative, Largest, Absolute float64 }

// The roundings of caches. A float16 is off by half a unit, 2^-11 of the number,
// and by 2^-25 where it is subnormal; twice the first leaves room for the errors of
// float32 arithmetic. Q8 is one scale, m/127, a key, and whole numbers of at most
// 127.
var (
	RoundingF16 = Rounding{Relative: 0x1p-10, Absolute: 0x1p-25}
	RoundingQ8  = Rounding{Largest: (1 + 0x1p-10) / 254}
)

// moves returns how far q·k moves at most when a key of length k and d elements
// is rounded, for a query of length q and sum, a bound of the sum of |q_i k_i|.
func (r Rounding) moves(q, k, sum float64, d int) float64 {
	return r.Relative*sum + q*math.Sqrt(float64(d))*(r.Largest*k+r.Absolute)
}

// QKNormBound returns U, a bound of |scale * q·k| of one head over all inputs,
// where queries and keys are normalised to a root mean square of at most 1 and
// then multiplied by the weights queryNorm and keyNorm, [D] each.
//
// The normalised vectors have a length of at most sqrt(D). Without rotation,
// q·k is a sum over the same elements of both and is at most
// D * max_i |wq_i wk_i|, and so is the sum of |q_i k_i|. A rotary embedding moves
// elements between queries and keys but keeps lengths, which leaves
// D * max|wq| * max|wk|.
//
// The rounding of the cached keys is added. The result is rounded up to a float32,
// the type it is stored in. The weights must be as they are used, after any rounding
// or quantisation.
func QKNormBound(queryNorm, keyNorm []float64, scale float64, rotary bool, rounding Rounding) (float64, error) {
	d := len(queryNorm)
	if d != len(keyNorm) || d == 0 {
		return 0, fmt.Errorf("reference: query norm of %d weights and key norm of %d; want the width of a head twice", len(queryNorm), len(keyNorm))
	}
	maxQ, maxK, maxProduct := 0.0, 0.0, 0.0
	for i := range queryNorm {
		q, k := math.Abs(queryNorm[i]), math.Abs(keyNorm[i])
		maxQ, maxK, maxProduct = math.Max(maxQ, q), math.Max(maxK, k), math.Max(maxProduct, q*k)
	}
	if rotary {
		maxProduct = maxQ * maxK
	}
	bound, size := float64(d)*maxProduct, math.Sqrt(float64(d))
	bound += rounding.moves(size*maxQ, size*maxK, bound, d)
	return roundUp32(math.Abs(scale) * bound), nil
}

// roundUp32 returns a float32 that is not below u, with a step to spare for
// the roundings of the few products that made u.
func roundUp32(u float64) float64 {
	u = math.Nextafter(u*(1+0x1p-50), math.Inf(1))
	up := float32(u)
	if float64(up) < u {
		up = math.Nextafter32(up, float32(math.Inf(1)))
	}
	return float64(up)
}

// ProjectionBound returns U, a bound of |scale * q·k| of one head over all
// inputs, where queries and keys are not normalised themselves but projected
// from inputs that are: q = Wq x + bq, k = Wk x' + bk, with x a vector of root
// mean square at most 1 times the norm's weight. query and key are [d, D],
// norm is [D], the biases are [d] or nil.
//
// With P = Wq diag(norm) and R = Wk diag(norm), and |M| the largest singular value
// of M, q·k is at most
//
//	D |P^T R| + sqrt(D) (|P^T bk| + |R^T bq|) + |bq·bk|
//
// With a rotary embedding the product of the two vectors' lengths is what is left:
// (sqrt(D) |P| + |bq|) (sqrt(D) |R| + |bk|). A shift, which mixes two keys by
// weights that sum to 1, changes neither. The result is at most 0.3 % above
// these numbers for heads up to 256 wide. The sum of |q_i k_i|, which the rounding of
// the cached keys multiplies, is bounded by the product of the lengths alone. See
// [QKNormBound] for the rest.
func ProjectionBound(query, key, queryBias, keyBias, norm []float64, scale float64, rotary bool, rounding Rounding) (float64, error) {
	width := len(norm)
	if width == 0 || len(query) == 0 || len(query)%width != 0 || len(query) != len(key) {
		return 0, fmt.Errorf("reference: query projection of %d weights and key projection of %d for an input of %d; want both head width times input",
			len(query), len(key), width)
	}
	d := len(query) / width
	for _, bias := range [][]float64{queryBias, keyBias} {
		if bias != nil && len(bias) != d {
			return 0, fmt.Errorf("reference: projection bias of %d elements, want %d", len(bias), d)
		}
	}
	if queryBias == nil {
		queryBias = make([]float64, d)
	}
	if keyBias == nil {
		keyBias = make([]float64, d)
	}
	p, r := rows(append([]float64{}, query...), 0, d, width), rows(append([]float64{}, key...), 0, d, width)
	for i := range d {
		for c, w := range norm {
			p[i][c] *= w
			r[i][c] *= w
		}
	}
	inputs := math.Sqrt(float64(width))
	normP, normR := math.Sqrt(largestEigenvalue(gram(p))), math.Sqrt(largestEigenvalue(gram(r)))
	q, k := inputs*normP+math.Sqrt(dot(queryBias, queryBias)), inputs*normR+math.Sqrt(dot(keyBias, keyBias))
	bound := q * k
	if !rotary {
		// P^T = Q T^T with orthonormal columns in Q, so P^T R is as large as
		// T^T R. The last term covers the rounding errors of T.
		product := make([][]float64, d)
		t := lowerTriangle(p)
		for i := range product {
			product[i] = make([]float64, width)
			for k := range d {
				for c := range width {
					product[i][c] += t[k][i] * r[k][c]
				}
			}
		}
		form := float64(width) * (math.Sqrt(largestEigenvalue(gram(product))) + 1e-12*normP*normR)
		form += inputs * (transposedLength(p, keyBias) + transposedLength(r, queryBias))
		bound = math.Min(bound, form+math.Abs(dot(queryBias, keyBias)))
	}
	bound += rounding.moves(q, k, q*k, d)
	return roundUp32(math.Abs(scale) * bound), nil
}

// transposedLength returns the length of m^T v.
func transposedLength(m [][]float64, v []float64) float64 {
	out := make([]float64, len(m[0]))
	for i, row := range m {
		for c, x := range row {
			out[c] += v[i] * x
		}
	}
	return math.Sqrt(dot(out, out))
}

// gram returns m m^T.
func gram(m [][]float64) [][]float64 {
	g := make([][]float64, len(m))
	for i := range g {
		g[i] = make([]float64, len(m))
		for j := range g[i] {
			g[i][j] = dot(m[i], m[j])
		}
	}
	return g
}

// lowerTriangle returns T, [n, n], of m = T Q^T, where m is [n, D] and Q has
// orthonormal columns: Gram and Schmidt's method on the rows, done twice to
// keep them orthogonal in spite of rounding. Rows beyond the rank give zeros
// on the diagonal.
func lowerTriangle(m [][]float64) [][]float64 {
	t := make([][]float64, len(m))
	var q [][]float64
	for i, row := range m {
		t[i] = make([]float64, len(m))
		rest := append([]float64{}, row...)
		for range 2 {
			for k := range q {
				along := dot(rest, q[k])
				t[i][k] += along
				for c := range rest {
					rest[c] -= along * q[k][c]
				}
			}
		}
		length := math.Sqrt(dot(rest, rest))
		if length > 1e-13*math.Sqrt(dot(row, row)) {
			t[i][i] = length
			for c := range rest {
				rest[c] /= length
			}
		} else {
			clear(rest)
		}
		q = append(q, rest)
	}
	return t
}

// largestEigenvalue returns an upper bound of the largest eigenvalue of a
// symmetric matrix without negative eigenvalues. The trace of the n-th power
// is the sum of the n-th powers of all eigenvalues; its n-th root is too large
// by a factor of at most size^(1/n). m is used up.
func largestEigenvalue(m [][]float64) float64 {
	const doublings = 11 // n = 2048
	logScale, n := 0.0, 1.0
	for k := 0; ; k++ {
		trace := 0.0
		for i := range m {
			trace += m[i][i]
		}
		if trace == 0 {
			return 0
		}
		// m stands for the n-th power divided by exp(n logScale).
		logScale += math.Log(trace) / n
		if k == doublings {
			return math.Exp(logScale) * (1 + 1e-9)
		}
		for i := range m {
			for j := range m[i] {
				m[i][j] /= trace
			}
		}
		m = gram(m) // m is symmetric: this is its square
		n *= 2
	}
}

// Budget decides which keys of one query head may be removed so that all
// removed keys together weigh at most Eps in any later query's softmax.
//
// With logits bounded by Bound and the exclusive interval, a query sees itself
// at penalty 0, so the softmax denominator is at least exp(-Bound), and a key
// with penalty p weighs at most exp(2 Bound - p). The penalty of a key never
// falls, so this holds for every later query once it holds for one. Budget
// keeps the sum of these bounds of the removed keys.
//
// The n-th removal may take up to half of what is left of
//
//	C(n) = Eps (1 - 0.5 / (1 + ln(1 + n)))
//
// a share that never runs out; keys which die far beyond the threshold leave
// theirs to later ones. The threshold starts at 2 Bound + ln(4/Eps).
type Budget struct {
	Bound float64 // U, of |scale * q·k|
	Eps   float64 // the total weight that may be removed

	spent   float64
	removed int
}

// Spent returns the sum of the bounds of all removed keys; at most Eps.
func (b *Budget) Spent() float64 { return b.spent }

// Removed returns the number of removed keys.
func (b *Budget) Removed() int { return b.removed }

// allowance is what the next removal may cost: (C(n) - S) / 2.
func (b *Budget) allowance() float64 {
	ceiling := b.Eps * (1 - 0.5/(1+math.Log1p(float64(b.removed))))
	return (ceiling - b.spent) / 2
}

// Threshold returns the smallest penalty at which a key may be removed now.
func (b *Budget) Threshold() float64 { return 2*b.Bound - math.Log(b.allowance()) }

// Remove reports whether a key of this penalty may be removed now, and if so
// takes its bound from the budget.
func (b *Budget) Remove(penalty float64) bool {
	cost := math.Exp(2*b.Bound - penalty)
	if !(cost <= b.allowance()) {
		return false
	}
	b.spent += cost
	b.removed++
	return true
}
