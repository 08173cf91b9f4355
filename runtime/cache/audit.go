package cache

import "math"

// AuditStats says what the dropped keys would have weighed.
type AuditStats struct {
	Removed int `json:"removed"` // keys dropped, summed over the groups of heads
	// LargestWeight is the largest share of a softmax that the dropped keys of a
	// head would have had together, over all queries since they were dropped.
	LargestWeight float64 `json:"largest_weight"`
	// LargestLogitDifference is that of any logit from a run that drops nothing.
	// It is measured by the engine's Auditor.
	LargestLogitDifference float64 `json:"largest_logit_difference"`
	Positions              int     `json:"positions"` // whose logits were compared
}

// audit keeps the dropped keys of a group and follows their penalties.
type audit struct {
	store
	largest float64
	values  []float32 // a sum of values that nobody needs
}

func newAudit(keys *store) *audit {
	return &audit{store: store{layout: keys.layout, pool: keys.pool, clock: keys.clock}, values: make([]float32, keys.valueDim)}
}

// adopt copies a key that is about to be dropped.
func (a *audit) adopt(p *page, slot int) {
	a.clock.settle(p)
	to, t := a.take()
	a.copySlot(to, t, p, slot)
}

// look adds up what the dropped keys weigh for a query of head h, given the
// largest logit and the sum of weights of the keys that are there.
func (a *audit) look(g *Group, h int, q []float32, top, sum float32, s *Scratch) {
	if a.live == 0 {
		return
	}
	deadTop, deadSum := g.attend(a.pages, 0, len(a.pages), h, a.values, q, s)
	if deadTop == -posInf {
		return
	}
	dead := float64(deadSum) * math.Exp(float64(deadTop)-float64(top))
	a.largest = max(a.largest, dead/(float64(sum)+dead))
}
