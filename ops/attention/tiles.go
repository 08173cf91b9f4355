package attention

import (
	"math"

	"github.com/firstpassage/fpa/ops/kernels"
)

// page is up to tileLen keys that lie one after the other.
type page[E Element] struct {
	key, value []E       // [n, D], [n, Dv]
	level, low []float32 // [n]; low at the end of the page's own positions
	loaded     bool      // keys and values are in the scratch memory
	length     float32   // of the longest key, negative while unknown
	values     []float32 // [n, Dv], those of skipped positions zero
}

// tiles attends from the queries of the unit, in tiles, to all keys up to each.
// Pages of keys are met from the latest to the earliest, the past ones last, so
// that the softmax has seen what is near, which weighs most, when it meets the dead.
func (u *part[E]) tiles() {
	s, n, d, dv := u.s, u.to-u.from, u.KeyDim, u.ValueDim
	field := u.fields(u.to)
	s.low = grow(s.low, u.to)
	s.least = grow(s.least, (u.to+tileLen-1)/tileLen)
	for i := range s.least {
		from, to := i*tileLen, min(u.to, (i+1)*tileLen)
		s.least[i] = suffixMinima(s.low[from:to], field[from:to], u.Inclusive)
	}
	s.query, s.norm = grow(s.query, n*d), grow(s.norm, n)
	u.typ.widen(s.query, u.queries(u.Query, d))
	kernels.Scale(s.query, u.scale)
	for i := range n {
		q := s.query[i*d : (i+1)*d]
		s.norm[i] = float32(math.Sqrt(float64(kernels.Dot(q, q))))
	}
	s.max, s.sum, s.top = grow(s.max, n), grow(s.sum, n), grow(s.top, tileLen)
	for i := range n {
		s.max[i], s.sum[i] = -posInf, 0
	}
	s.keys, s.values = grow(s.keys, d*tileLen), grow(s.values, dv*tileLen)
	s.row, s.zeros = grow(s.row, d), grow(s.zeros, dv*tileLen)
	clear(s.zeros)
	s.logits, s.tileLow = grow(s.logits, tileLen*tileLen), grow(s.tileLow, tileLen)
	out := u.out(n)
	clear(out)

	first := u.from / tileLen
	level := u.field(u.Level, u.New)
	key, value := u.keys(u.Key, u.New, d), u.keys(u.Value, u.New, dv)
	// between is, for each tile, the smallest field from the end of the page to
	// the tile's start.
	var between [maxTiles]float32
	for i := range between {
		between[i] = posInf
	}
	for j := len(s.least) - 1; j >= 0; j-- {
		from, to := j*tileLen, min(u.to, (j+1)*tileLen)
		p := page[E]{
			key: key[from*d : to*d], value: value[from*dv : to*dv],
			level: level[from:to], low: s.low[from:to], length: -1,
		}
		if j >= first {
			u.own(&p, j-first, out)
		}
		for i := max(0, j-first+1); i < len(s.least)-first; i++ {
			u.tile(&p, i, between[i], out)
			between[i] = min(between[i], s.least[j])
		}
	}
	pastKey, pastValue := u.keys(u.PastKey, u.Past, d), u.keys(u.PastValue, u.Past, dv)
	pastLevel, pastLow := u.field(u.PastLevel, u.Past), u.field(u.PastLow, u.Past)
	for from := 0; from < u.Past; from += tileLen {
		to := min(u.Past, from+tileLen)
		p := page[E]{
			key: pastKey[from*d : to*d], value: pastValue[from*dv : to*dv],
			level: pastLevel[from:to], low: pastLow[from:to], length: -1,
		}
		for i := range len(s.least) - first {
			u.tile(&p, i, between[i], out)
		}
	}
	for i := range n {
		if sum := s.sum[i]; sum > 0 {
			kernels.Scale(out[i*dv:(i+1)*dv], 1/sum)
		}
	}
	u.finish(out)
}

// rowsOf is the range of the unit's queries that tile i holds.
func (u *part[E]) rowsOf(i int) (from, to int) {
	return i * tileLen, min(u.to-u.from, (i+1)*tileLen)
}

// own attends from tile i to its own keys.
func (u *part[E]) own(p *page[E], i int, out []float32) {
	s, slope := u.s, u.Slope[u.fieldHead]
	u.load(p)
	from, to := u.rowsOf(i)
	n := to - from
	u.logits(from, n, n)
	low := s.tileLow[:n]
	for r := range n {
		row, field := s.logits[r*tileLen:r*tileLen+n], s.field[u.from+from+r]
		kernels.Penalise(row[:r], low[:r], p.level, field, slope)
		low[r] = u.penaliseSelf(&row[r], p.level[r], field, slope)
		s.top[r] = kernels.Max(row[:r+1])
		for j := r + 1; j < n; j++ {
			row[j] = -posInf
		}
	}
	u.weigh(from, n, n, out)
	dv := u.ValueDim
	y := out[from*dv : to*dv]
	if sum := kernels.Dot(p.values, s.zeros[:n*dv]); sum == 0 {
		kernels.MulAdd(y, dv, s.logits, tileLen, n, p.values, dv, n, dv, true)
		return
	}
	// A value is not finite: it must not reach the queries before it, whose
	// weights for it are 0.
	for r := range n {
		kernels.AccumulateF32(y[r*dv:(r+1)*dv], s.logits[r*tileLen:r*tileLen+n], p.values)
	}
}

// tile attends from tile i to a page of earlier keys. between is the smallest
// field from the end of the page's positions to the start of the tile.
func (u *part[E]) tile(p *page[E], i int, between float32, out []float32) {
	s, slope := u.s, u.Slope[u.fieldHead]
	from, to := u.rowsOf(i)
	n, used := to-from, len(p.level)
	field := s.field[u.from+from : u.from+to]
	low := s.tileLow[:used]
	copy(low, p.low)
	kernels.UpdateLow(low, between)
	if u.dead(p, low, field[0], from, to) {
		return
	}
	u.load(p)
	u.logits(from, n, used)
	kernels.PenaliseTile(s.logits, tileLen, n, low, p.level, field, slope, s.top)
	u.weigh(from, n, used, out)
	dv := u.ValueDim
	kernels.MulAdd(out[from*dv:to*dv], dv, s.logits, tileLen, n, p.values, dv, used, dv, true)
}

// underflow is a difference of logits at which [kernels.ExpSum] gives 0, with
// room for rounding: its results below 2^-126 = exp(-87.3) are 0.
const underflow = 88

// dead says whether a page has no key, or none that can have a weight above 0 for
// the queries from..to: the dot products are at most the product of the lengths,
// the penalty is least for the first query, and each query has met a logit so
// much larger that the exponential is 0 in float32.
func (u *part[E]) dead(p *page[E], low []float32, field float32, from, to int) bool {
	slope, least := u.Slope[u.fieldHead], posInf
	for j, l := range p.level {
		if l != posInf {
			least = min(least, penalty(slope, l, min(low[j], field)))
		}
	}
	switch {
	case least == 0:
		return false
	case least == posInf:
		return true
	}
	least *= 1 - 0x1p-20
	for _, m := range u.s.max[from:to] {
		if !(least > underflow-m) {
			return false
		}
	}
	if p.length < 0 {
		p.length = u.longest(p)
	}
	// A float32 sum of n products is off by less than n/2^23 of the lengths'
	// product; the lengths themselves are sums.
	length := p.length * (1 + float32(u.KeyDim+8)*0x1p-21)
	for r := from; r < to; r++ {
		if !(u.s.norm[r]*length-least < u.s.max[r]-underflow) {
			return false
		}
	}
	return true
}

// longest is the length of the longest key of a page; NaN if one is NaN.
func (u *part[E]) longest(p *page[E]) float32 {
	most, d := float32(0), u.KeyDim
	for j, l := range p.level {
		if l != posInf {
			u.typ.widen(u.s.row, p.key[j*d:(j+1)*d])
			most = max(most, kernels.Dot(u.s.row, u.s.row))
		}
	}
	return float32(math.Sqrt(float64(most)))
}

// load puts the keys of a page, as columns, and its values into the scratch memory.
func (u *part[E]) load(p *page[E]) {
	if p.loaded {
		return
	}
	p.loaded = true
	n, dv := len(p.level), u.ValueDim
	u.typ.transpose(u.s.keys, tileLen, p.key, n, u.KeyDim)
	p.values = float32s(p.value)
	skipped := false
	for _, l := range p.level {
		skipped = skipped || l == posInf
	}
	if p.values != nil && !skipped {
		return
	}
	p.values = u.s.values[:n*dv]
	u.typ.widen(p.values, p.value)
	for j, l := range p.level {
		if l == posInf { // may hold anything, and 0 times NaN is NaN
			clear(p.values[j*dv : (j+1)*dv])
		}
	}
}

// logits multiplies n queries of the unit with the keys of the loaded page.
func (u *part[E]) logits(from, n, used int) {
	kernels.MulAdd(u.s.logits, tileLen, u.s.query[from*u.KeyDim:], u.KeyDim, n, u.s.keys, tileLen, u.KeyDim, used, false)
}

// weigh turns the logits at hand of n queries, top being the largest of each, into
// weights relative to the largest logit so far, and adds them to the sums. Where
// a new one is the largest, what was summed before shrinks.
func (u *part[E]) weigh(from, n, used int, out []float32) {
	s, dv := u.s, u.ValueDim
	most, sum := s.max[from:from+n], s.sum[from:from+n]
	for r, top := range s.top[:n] {
		if top <= most[r] {
			continue
		}
		if most[r] != -posInf {
			shrink := float32(math.Exp(float64(most[r] - top)))
			sum[r] *= shrink
			kernels.Scale(out[(from+r)*dv:(from+r+1)*dv], shrink)
		}
		most[r] = top
	}
	kernels.ExpSumTile(s.logits, tileLen, n, used, most, sum)
}
