package attention

import (
	"math"

	"github.com/firstpassage/fpa/ops/kernels"
)

// chunkLen is how many slots are read, and kept, before the next are: their keys
// fit the processor's nearest caches.
const chunkLen = 128

// rows attends from each query of the unit in turn to all keys up to it.
func (u *part[E]) rows() {
	n := u.to - u.from
	if n <= 0 {
		u.keep(0, all)
		return
	}
	s, p, d, dv := u.s, u.Past, u.KeyDim, u.ValueDim
	field, slope := u.fields(u.to), u.Slope[u.fieldHead]
	level, pastLevel := u.field(u.Level, u.New), u.field(u.PastLevel, p)
	key, pastKey := u.keys(u.Key, u.New, d), u.keys(u.PastKey, p, d)
	value, pastValue := u.keys(u.Value, u.New, dv), u.keys(u.PastValue, p, dv)
	s.low, s.pastLow = grow(s.low, u.to), grow(s.pastLow, p)
	before := suffixMinima(s.low[:u.from], field[:u.from], u.Inclusive)
	copy(s.pastLow, u.field(u.PastLow, p))
	kernels.UpdateLow(s.pastLow, before)

	s.query = grow(s.query, n*d)
	u.typ.widen(s.query, u.queries(u.Query, d))
	s.scores = grow(s.scores, p+u.to)
	out := u.out(n)
	for i := range n {
		t := u.from + i
		q, y, keys := s.query[i*d:(i+1)*d], out[i*dv:(i+1)*dv], s.scores[:p+t+1]
		for from := 0; from < p; from += chunkLen {
			to := min(p, from+chunkLen)
			u.typ.dots(keys[from:to], q, pastKey[from*d:to*d], d, u.scale)
			if i == 0 {
				u.keepKeys(from, to)
			}
		}
		u.typ.dots(keys[p:], q, key[:(t+1)*d], d, u.scale)
		kernels.Penalise(keys[:p], s.pastLow, pastLevel, field[t], slope)
		own := keys[p:]
		kernels.Penalise(own[:t], s.low, level, field[t], slope)
		s.low[t] = u.penaliseSelf(&own[t], level[t], field[t], slope)

		clear(y)
		top := kernels.Max(keys)
		sum := float32(0)
		if top != -posInf {
			sum = kernels.ExpSum(keys, top)
		}
		for from := 0; from < p; from += chunkLen {
			to := min(p, from+chunkLen)
			if top != -posInf {
				u.typ.accumulate(y, keys[from:to], pastValue[from*dv:to*dv])
			}
			if i == 0 {
				u.keepValues(from, to)
			}
		}
		if top != -posInf {
			u.typ.accumulate(y, own, value[:(t+1)*dv])
			kernels.Scale(y, 1/sum)
		}
	}
	u.keep(p, all)
	u.finish(out)
}

// penaliseSelf takes the penalty of a query's own key off its logit, and returns
// the low of the key.
func (u *part[E]) penaliseSelf(logit *float32, level, field, slope float32) (low float32) {
	low = posInf
	if u.Inclusive {
		low = field
	}
	if level == posInf {
		*logit = -posInf
	} else {
		*logit -= penalty(slope, level, low)
	}
	return low
}

// suffixMinima sets low[t] to the smallest field after t (inclusive: from t on),
// and returns the smallest of all.
func suffixMinima(low, field []float32, inclusive bool) float32 {
	least := posInf
	for t := len(field) - 1; t >= 0; t-- {
		before := least
		least = min(least, field[t])
		low[t] = before
		if inclusive {
			low[t] = least
		}
	}
	return least
}

// out is where the unit's n results are summed up: the output itself where it is
// float32.
func (u *part[E]) out(n int) []float32 {
	if y := float32s(u.queries(u.Output, u.ValueDim)); y != nil {
		return y
	}
	u.s.out = grow(u.s.out, n*u.ValueDim)
	return u.s.out
}

// finish stores the results where out is not the output itself.
func (u *part[E]) finish(out []float32) {
	y := u.queries(u.Output, u.ValueDim)
	if float32s(y) == nil {
		u.typ.narrow(y, out)
	}
}

// Threshold is the penalty from which a key is dead for a query head whose logits
// without penalty are at most bound in absolute value, where all dropped keys
// together may weigh eps. The package comment has the proof.
func Threshold(bound, eps float64) float64 {
	return 2*bound + math.Log(1<<20/eps)
}
