package reference

import (
	"fmt"
	"math"
)

// QKNormBound returns U, a bound of |scale * q·k| of one head over all inputs,
// where queries and keys are normalised to a root mean square of at most 1 and
// then multiplied by the weights queryNorm and keyNorm, [D] each.
//
// The normalised vectors have a length of at most sqrt(D). Without rotation,
// q·k is a sum over the same elements of both and is at most
// D * max_i |wq_i wk_i|. A rotary embedding moves elements between queries and
// keys but keeps lengths, which leaves D * max|wq| * max|wk|.
//
// rounding is the largest relative error of an element of the cached keys: 0
// for float32, 2^-10 for float16 (twice its half unit, so that small errors of
// the arithmetic are covered too). Keys that underflow in the cache's type
// only shrink. The result is rounded up to a float32, the type it is stored
// in. The weights must be as they are used, after any rounding or
// quantisation.
func QKNormBound(queryNorm, keyNorm []float64, scale float64, rotary bool, rounding float64) (float64, error) {
	if len(queryNorm) != len(keyNorm) || len(queryNorm) == 0 {
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
	u := math.Abs(scale) * float64(len(queryNorm)) * maxProduct * (1 + rounding)
	// One step up makes good for the roundings of the products above.
	u = math.Nextafter(u*(1+0x1p-50), math.Inf(1))
	up := float32(u)
	if float64(up) < u {
		up = math.Nextafter32(up, float32(math.Inf(1)))
	}
	return float64(up), nil
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
