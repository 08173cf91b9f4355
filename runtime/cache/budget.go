package cache

import (
	"cmp"
	"math"
	"math/bits"
	"slices"
)

// BudgetStats says what the mode Budget cost.
type BudgetStats struct {
	Bytes   int64 `json:"bytes"`   // the cache may hold, after as many tokens
	Dropped int   `json:"dropped"` // keys dropped that nothing proves dead, over all groups of heads
	// LargestWeight and MeanWeight are of the dropped keys, each taken for the
	// query at which it was dropped and the head that needed it most.
	LargestWeight float64 `json:"largest_weight"`
	MeanWeight    float64 `json:"mean_weight"`
}

// dropped counts the keys of a group that Budget dropped.
type dropped struct {
	keys         int
	largest, sum float64 // weights
}

func (b *BudgetStats) add(d dropped) {
	if d.keys == 0 {
		return
	}
	sum := b.MeanWeight*float64(b.Dropped) + d.sum
	b.Dropped += d.keys
	b.MeanWeight = sum / float64(b.Dropped)
	b.LargestWeight = max(b.LargestWeight, d.largest)
}

// fewestKeys is what a group may always keep, so that a share of a short context
// does not take from a model what it has just read. A page is larger anyway.
const fewestKeys = 16

// budgetBytes is the size that the cache may have after so many tokens.
func (c *Cache) budgetBytes(tokens int) int64 {
	if c.policy.Keep.Bytes > 0 {
		return c.policy.Keep.Bytes
	}
	all := float64(tokens) * float64(c.groups[0][0].slotBytes()) * float64(len(c.groups)*len(c.groups[0]))
	return int64(c.policy.Keep.Share * all)
}

// plan gives every group a limit, so that the cache stays within its size when n
// tokens more have come. Groups with a softmax head keep all their keys. The
// others share what is left evenly, but none gets more than it can fill: what it
// leaves goes to the others.
func (c *Cache) plan(n int) {
	keys := int(c.budgetBytes(c.tokens+n) / c.groups[0][0].slotBytes())
	c.caps = c.caps[:0]
	for _, layer := range c.groups {
		for _, g := range layer {
			if g.softmax() {
				keys -= g.live + n
			} else {
				c.caps = append(c.caps, g.live+n)
			}
		}
	}
	if len(c.caps) == 0 {
		return
	}
	// From the group that can fill least on, each takes its need or an even share.
	slices.Sort(c.caps)
	share := 0
	for i, need := range c.caps {
		left := len(c.caps) - i
		if share = max(fewestKeys, keys/left); need > share {
			break
		}
		keys -= need
	}
	for _, layer := range c.groups {
		for _, g := range layer {
			if !g.softmax() {
				g.limit = share
			}
		}
	}
}

// candidate is a key that may be dropped.
type candidate struct {
	fall float32 // slope * (level - low), the least of the field heads
	page int32
	slot int8
}

// trim drops the n keys that are penalised most: a key goes when no head of the
// group misses it much. Keys without a penalty go in the order in which the field
// would reach them; one that no field has passed yet goes last. weight is that of
// a key of page number i for the newest query.
func (g *Group) trim(n int, s *Scratch, weight func(p *page, i, slot int) float64) {
	c := s.candidates[:0]
	for i, p := range g.pages {
		for live := p.live; live != 0; live &= live - 1 {
			slot := bits.TrailingZeros64(live)
			fall := posInf
			for f, slope := range g.slope {
				at := f*PageSlots + slot
				fall = min(fall, slope*(p.level[at]-p.low[at]))
			}
			c = append(c, candidate{fall, int32(i), int8(slot)})
		}
	}
	s.candidates = c
	largest(c, n)
	for _, x := range c[:n] {
		i, slot := int(x.page), int(x.slot)
		g.dropped.count(weight(g.pages[i], i, slot))
		g.remove(i, slot)
	}
}

func (d *dropped) count(weight float64) {
	d.keys++
	d.sum += weight
	d.largest = max(d.largest, weight)
}

// weight is the weight of a key for the newest query, of the head that gives it
// most.
func (g *Group) weight(p *page, slot int, k *token, s *Scratch) float64 {
	most := 0.0
	s.scores = grow(s.scores, PageSlots)
	for h := range g.queryHeads {
		f := g.fieldHead(h)
		g.dots(s.scores[:slot+1], p, g.keyHead(h), k.query[h*g.keyDim:(h+1)*g.keyDim], g.scale)
		at := f*PageSlots + slot
		logit := s.scores[slot] - penalty(p.level[at], p.low[at], g.slope[f])
		most = max(most, math.Exp(float64(logit)-g.lse[h]))
	}
	return most
}

// largest moves the n candidates that fall most to the front, in linear time on
// average (Hoare's selection). Ties are broken by place, so that the result does
// not depend on the order.
func largest(c []candidate, n int) {
	lo, hi := 0, len(c)
	for hi-lo > 1 {
		pivot := c[lo+(hi-lo)/2]
		i, j := lo, hi-1
		for i <= j {
			for order(c[i], pivot) < 0 {
				i++
			}
			for order(c[j], pivot) > 0 {
				j--
			}
			if i <= j {
				c[i], c[j] = c[j], c[i]
				i++
				j--
			}
		}
		switch {
		case n <= j:
			hi = j + 1
		case n >= i:
			lo = i
		default:
			return
		}
	}
}

// order puts the larger fall first.
func order(a, b candidate) int {
	return cmp.Or(cmp.Compare(b.fall, a.fall), cmp.Compare(a.page, b.page), cmp.Compare(a.slot, b.slot))
}
