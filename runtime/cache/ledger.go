package cache

import "math"

// ledger keeps, for each query head of a group, how much weight the removed
// keys can have had, and says which key may go.
//
// A key with penalty p has weight at most exp(2U-p) for this and every later
// query: its logit is at most U-p, the query's own key has at least -U, and p
// never falls. With S spent on n removed keys, a key may go when
//
//	exp(2U-p) <= (C(n)-S)/2,   C(n) = eps (1 - 0.5/(1+ln(1+n)))
//
// so that S stays below C(n), and below eps, for ever, and the threshold stays
// near 2U + ln(4/eps) however many keys are removed.
type ledger struct {
	eps       float64
	bound     []float64 // U of each query head
	spent     []float64 // S
	removed   float64   // n, the same for all heads of the group
	threshold []float32 // [field head], no key with a smaller penalty can go
}

func newLedger(eps float64, bound []float32) *ledger {
	l := &ledger{eps: eps, bound: make([]float64, len(bound)), spent: make([]float64, len(bound))}
	for i, u := range bound {
		l.bound[i] = float64(u)
	}
	return l
}

// raise lifts the bound of a query head to u, which was measured. What is gone was
// charged by what was known then: the rule promises nothing to later queries
// anyway, and a budget that a longer query overdraws would let no key go again.
func (l *ledger) raise(head int, u float64) {
	l.bound[head] = max(l.bound[head], u)
}

// share is the largest weight that the next removed key of a head may have.
func (l *ledger) share(head int) float64 {
	c := l.eps * (1 - 0.5/(1+math.Log1p(l.removed)))
	return (c - l.spent[head]) / 2
}

// prepare sets the threshold of each field head: the largest over its query
// heads of 2U - ln(share), lowered a little, since the penalties it is compared
// with are float32.
func (l *ledger) prepare(fieldHeads int) {
	if len(l.threshold) < fieldHeads {
		l.threshold = make([]float32, fieldHeads)
	}
	for f := range fieldHeads {
		l.threshold[f] = 0
	}
	for h := range l.bound {
		f := h * fieldHeads / len(l.bound)
		t := 2*l.bound[h] - math.Log(l.share(h))
		l.threshold[f] = max(l.threshold[f], float32(t*(1-1e-6)))
	}
}

// remove says whether the key at slot s may go, and charges it if so.
func (l *ledger) remove(p *page, s int, slope []float32) bool {
	fieldHeads := len(slope)
	for h := range l.bound {
		if l.weight(p, s, slope, h, fieldHeads) > l.share(h) {
			return false
		}
	}
	for h := range l.bound {
		l.spent[h] += l.weight(p, s, slope, h, fieldHeads)
	}
	l.removed++
	return true
}

// weight bounds the weight of a key for query head h. Level and low are rounded
// to float32; the fall between them is lowered by what that can amount to.
func (l *ledger) weight(p *page, s int, slope []float32, h, fieldHeads int) float64 {
	f := h * fieldHeads / len(l.bound)
	level, low := float64(p.level[f*PageSlots+s]), float64(p.low[f*PageSlots+s])
	fall := level - low - (math.Abs(level)+math.Abs(low))*0x1p-22
	if !(fall > 0) { // also a low of +Inf: no field has passed yet
		return math.Exp(2 * l.bound[h])
	}
	return math.Exp(2*l.bound[h] - float64(slope[f])*fall)
}
