package cache

import (
	"github.com/firstpassage/fpa/ops/kernels"
	"github.com/firstpassage/fpa/quant"
)

// Page holds PageSlots keys of a group. Exactly one of the F16 and F32 slices
// is set, by the cache's type. A slot whose level is +Inf is empty.
type Page struct {
	K16, V16   []uint16  // [key head][slot][dim], F16
	K32, V32   []float32 // [key head][slot][dim], F32
	Level, Low []float32 // [field head][slot]
}

// Group is the cache of heads whose keys live and die together.
type Group struct {
	KeyHeads, FieldHeads, QueryHeads int // heads of this group; FieldHeads may be 0
	keyDim, valueDim                 int
	half                             bool // K and V are F16

	pages []*Page
	used  int   // slots [0,used) were filled at some time since the last release
	free  []int // empty slots below used
	live  int

	pool   *pool
	ledger *ledger // nil: nothing is dropped

	worst []float32 // [field head][page], the largest penalty of the page seen by the last Attend
}

func newGroup(s Shape, pages *pool) *Group {
	n := s.groupCount()
	return &Group{
		KeyHeads: s.KeyHeads / n, FieldHeads: s.FieldHeads / n, QueryHeads: s.QueryHeads / n,
		keyDim: s.KeyDim, valueDim: s.ValueDim, half: s.Type == quant.F16, pool: pages,
	}
}

// slotBytes is the size of one key of the group: K, V, level and low.
func (g *Group) slotBytes() int64 {
	elem := int64(4)
	if g.half {
		elem = 2
	}
	return elem*int64(g.KeyHeads)*int64(g.keyDim+g.valueDim) + 8*int64(g.FieldHeads)
}

// Live is the number of keys held.
func (g *Group) Live() int { return g.live }

// Slots is the number of slots that Attend looks at, empty ones included.
func (g *Group) Slots() int { return g.used }

// Step takes in the field at a new position, one value a field head: the low of
// every key held falls to it. Call it before Append for the same position.
func (g *Group) Step(field []float32) {
	for f, x := range field {
		g.eachRun(func(p *Page, n int) { kernels.UpdateLow(p.Low[f*PageSlots:f*PageSlots+n], x) })
	}
}

// Shift subtracts a number from the level and low of every key of a field head,
// when the zero that its field is measured from moves. An empty slot stays empty.
func (g *Group) Shift(f int, by float32) {
	g.eachRun(func(p *Page, n int) {
		kernels.Sub(p.Level[f*PageSlots:f*PageSlots+n], by)
		kernels.Sub(p.Low[f*PageSlots:f*PageSlots+n], by)
	})
}

// eachRun calls f for each page with the number of its slots in use.
func (g *Group) eachRun(f func(p *Page, n int)) {
	for i, p := range g.pages {
		f(p, min(PageSlots, g.used-i*PageSlots))
	}
}

// Append stores a key: k [key head][KeyDim], v [key head][ValueDim], level and
// low [field head]. They are rounded to the cache's type here, and read back
// from it by Attend, so the result does not depend on how tokens are chunked.
// low is +Inf for the exclusive interval and the field for the inclusive one.
func (g *Group) Append(k, v, level, low []float32) {
	slot := g.takeSlot()
	p, s := g.pages[slot/PageSlots], slot%PageSlots
	dk, dv := g.keyDim, g.valueDim
	for h := range g.KeyHeads {
		ko, vo := (h*PageSlots+s)*dk, (h*PageSlots+s)*dv
		if g.half {
			quant.EncodeF16(p.K16[ko:ko+dk], k[h*dk:(h+1)*dk])
			quant.EncodeF16(p.V16[vo:vo+dv], v[h*dv:(h+1)*dv])
		} else {
			copy(p.K32[ko:ko+dk], k[h*dk:(h+1)*dk])
			copy(p.V32[vo:vo+dv], v[h*dv:(h+1)*dv])
		}
	}
	for f := range g.FieldHeads {
		p.Level[f*PageSlots+s] = level[f]
		p.Low[f*PageSlots+s] = low[f]
	}
	g.live++
}

// takeSlot is an empty slot: one that was freed, or the next new one.
func (g *Group) takeSlot() int {
	if n := len(g.free); n > 0 {
		slot := g.free[n-1]
		g.free = g.free[:n-1]
		return slot
	}
	if g.used == len(g.pages)*PageSlots {
		g.pages = append(g.pages, g.pool.get(g.KeyHeads, g.FieldHeads))
	}
	g.used++
	return g.used - 1
}

// Attend computes the output of query head h of the group for the newest
// position: y [ValueDim] = sum over keys of softmax(scale*q.k - slope*penalty) v.
// q is [KeyDim]; scores is scratch of at least Slots() elements.
func (g *Group) Attend(h int, y, q []float32, scale, slope float32, scores []float32) {
	kh := h * g.KeyHeads / g.QueryHeads
	f := h * g.FieldHeads / g.QueryHeads
	dk, dv := g.keyDim, g.valueDim
	if need := g.FieldHeads * len(g.pages); len(g.worst) < need {
		g.worst = make([]float32, need, 2*need)
	}
	scores = scores[:g.used]
	for i, p := range g.pages {
		s := scores[i*PageSlots : min((i+1)*PageSlots, g.used)]
		if g.half {
			kernels.KeyDotsF16(s, q, p.K16[kh*PageSlots*dk:(kh+1)*PageSlots*dk], dk, scale)
		} else {
			kernels.KeyDotsF32(s, q, p.K32[kh*PageSlots*dk:(kh+1)*PageSlots*dk], dk, scale)
		}
		if g.FieldHeads > 0 {
			// Step has already lowered the lows to this position's field.
			run := p.Low[f*PageSlots : f*PageSlots+len(s)]
			g.worst[f*len(g.pages)+i] = kernels.Penalise(s, run, p.Level[f*PageSlots:f*PageSlots+len(s)], posInf, slope)
		}
	}
	clear(y)
	top := kernels.Max(scores)
	if top == -posInf {
		return // no key at all
	}
	sum := kernels.ExpSum(scores, top)
	for i, p := range g.pages {
		s := scores[i*PageSlots : min((i+1)*PageSlots, g.used)]
		if g.half {
			kernels.AccumulateF16(y, s, p.V16[kh*PageSlots*dv:(kh+1)*PageSlots*dv])
		} else {
			kernels.AccumulateF32(y, s, p.V32[kh*PageSlots*dv:(kh+1)*PageSlots*dv])
		}
	}
	kernels.Scale(y, 1/sum)
}

// Evict drops the keys that the ledger proves dead for every later query. slope
// is [field head]. Call it after Attend of every query head of the group.
func (g *Group) Evict(slope []float32) {
	if g.ledger == nil {
		return
	}
	g.ledger.prepare(g.FieldHeads)
	for i, p := range g.pages {
		if !g.mayHoldDead(i) {
			continue
		}
		for s := range min(PageSlots, g.used-i*PageSlots) {
			if p.Level[s] != posInf && g.ledger.remove(p, s, slope) {
				g.drop(p, i*PageSlots+s)
			}
		}
		g.ledger.prepare(g.FieldHeads)
	}
	for len(g.free) >= 2*PageSlots {
		g.releasePage()
	}
}

// mayHoldDead says whether the largest penalties of a page reach the threshold
// of every field head, without which no key of it can be removed.
func (g *Group) mayHoldDead(page int) bool {
	for f := range g.FieldHeads {
		if g.worst[f*len(g.pages)+page] < g.ledger.threshold[f] {
			return false
		}
	}
	return true
}

// drop empties a slot.
func (g *Group) drop(p *Page, slot int) {
	for f := range g.FieldHeads {
		p.Level[f*PageSlots+slot%PageSlots] = posInf
	}
	g.free = append(g.free, slot)
	g.live--
}

// releasePage moves the keys of the last page into empty slots of the others
// and gives the page back. There are at least two pages' worth of empty slots,
// so a page is moved only after as many keys died as it holds.
func (g *Group) releasePage() {
	last := len(g.pages) - 1
	first := last * PageSlots
	holes := g.free[:0]
	for _, slot := range g.free {
		if slot < first {
			holes = append(holes, slot)
		}
	}
	for s := range g.used - first {
		if g.pages[last].Level[s] != posInf {
			g.move(first+s, holes[len(holes)-1])
			holes = holes[:len(holes)-1]
		}
	}
	g.free = holes
	g.pool.put(g.pages[last])
	g.pages = g.pages[:last]
	g.used = first
}

// move copies a key from one slot to another.
func (g *Group) move(from, to int) {
	p, s := g.pages[from/PageSlots], from%PageSlots
	q, t := g.pages[to/PageSlots], to%PageSlots
	for h := range g.KeyHeads {
		if g.half {
			copyVector(q.K16, p.K16, h*PageSlots+t, h*PageSlots+s, g.keyDim)
			copyVector(q.V16, p.V16, h*PageSlots+t, h*PageSlots+s, g.valueDim)
		} else {
			copyVector(q.K32, p.K32, h*PageSlots+t, h*PageSlots+s, g.keyDim)
			copyVector(q.V32, p.V32, h*PageSlots+t, h*PageSlots+s, g.valueDim)
		}
	}
	for f := range g.FieldHeads {
		q.Level[f*PageSlots+t] = p.Level[f*PageSlots+s]
		q.Low[f*PageSlots+t] = p.Low[f*PageSlots+s]
	}
}

func copyVector[T uint16 | float32](dst, src []T, to, from, dim int) {
	copy(dst[to*dim:(to+1)*dim], src[from*dim:(from+1)*dim])
}
