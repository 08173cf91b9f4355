package cache

import (
	"math"
	"math/bits"

	"github.com/firstpassage/fpa/ops/kernels"
	"github.com/firstpassage/fpa/quant"
)

// Group is the cache of heads whose keys live and die together.
type Group struct {
	store      // the keys that attention reads
	queryHeads int
	first      struct{ query, key, field int } // the group's first heads in its layer
	heads      struct{ query, key, field int } // heads of the whole layer

	scale  float32
	slope  []float32 // [field head]
	deadAt []float32 // [field head], a penalty from which a key weighs nothing in float32

	ledger  *ledger // nil: no key is dropped safely
	norms   *norms  // of the mode Measured
	limit   int     // of the mode Budget: keys to keep at most; 0: no limit
	dropped dropped // of the mode Budget
	audit   *audit  // nil: dropped keys are gone

	lse []float64 // [query head], log of the softmax's denominator for the newest token
}

func newGroup(s Shape, p Policy, pages *pool, layer, index int) *Group {
	n := s.groupCount()
	g := &Group{scale: s.Scale, queryHeads: s.QueryHeads / n}
	g.store = store{layout: pages.layout, pool: pages, clock: newClock(pages.layout.fieldHeads)}
	g.heads.query, g.heads.key, g.heads.field = s.QueryHeads, s.KeyHeads, s.FieldHeads
	g.first.query, g.first.key, g.first.field = index*g.queryHeads, index*g.keyHeads, index*g.fieldHeads
	g.slope = s.Slope[layer*s.FieldHeads+g.first.field:][:g.fieldHeads]
	g.lse = make([]float64, g.queryHeads)
	bound := layer*s.QueryHeads + g.first.query
	for f := range g.fieldHeads {
		g.deadAt = append(g.deadAt, p.deadAt(bound, g.queryHeads, g.fieldHeads, f))
	}
	if p.Audit {
		g.audit = newAudit(&g.store)
	}
	if g.softmax() {
		return g
	}
	g.ledger = p.newLedger(bound, g.queryHeads)
	if p.Mode == Measured && g.ledger != nil {
		g.norms = &norms{query: make([]float64, g.queryHeads), key: make([]float64, g.keyHeads)}
	}
	return g
}

// softmax says whether some head of the group is plain softmax, which needs every
// key for ever.
func (g *Group) softmax() bool {
	for _, s := range g.slope {
		if s == 0 {
			return true
		}
	}
	return g.fieldHeads == 0
}

// fieldHead is the field head of query head h of the group.
func (g *Group) fieldHead(h int) int { return h * g.fieldHeads / g.queryHeads }

// keyHead is the key head of query head h of the group.
func (g *Group) keyHead(h int) int { return h * g.keyHeads / g.queryHeads }

// Live is the number of keys held.
func (g *Group) Live() int { return g.live }

// Tokens is what a layer computed for n new tokens, one after the other, and
// where the result of attention goes. Fields and levels are relative to a base
// that may move before a token; see Walk.
type Tokens struct {
	N            int
	Query        []float32 // [N, QueryHeads*KeyDim]
	Key, Value   []float32 // [N, KeyHeads*KeyDim], [N, KeyHeads*ValueDim]
	Field, Level []float32 // [N, FieldHeads]
	Low          []float32 // [N, FieldHeads], of the key itself: +Inf, or its field for the inclusive interval
	Moved        []float32 // [N, FieldHeads], how far the base moved before the token
	Out          []float32 // [N, QueryHeads*ValueDim]
}

// token is what belongs to a group of one token.
type token struct {
	query, key, value        []float32
	field, level, low, moved []float32
	out                      []float32
}

func (g *Group) token(x *Tokens, t int) token {
	row := func(v []float32, heads, first, n, width int) []float32 {
		at := (t*heads + first) * width
		return v[at : at+n*width]
	}
	field := func(v []float32) []float32 { return row(v, g.heads.field, g.first.field, g.fieldHeads, 1) }
	return token{
		query: row(x.Query, g.heads.query, g.first.query, g.queryHeads, g.keyDim),
		key:   row(x.Key, g.heads.key, g.first.key, g.keyHeads, g.keyDim),
		value: row(x.Value, g.heads.key, g.first.key, g.keyHeads, g.valueDim),
		field: field(x.Field), level: field(x.Level), low: field(x.Low), moved: field(x.Moved),
		out: row(x.Out, g.heads.query, g.first.query, g.queryHeads, g.valueDim),
	}
}

// stretch is the number of tokens, at most most, over which no base moves after
// the first; moved(i) is how far they move before token i.
func stretch(most int, moved func(i int) []float32) int {
	n := 1
	for n < most {
		for _, by := range moved(n) {
			if by != 0 {
				return n
			}
		}
		n++
	}
	return n
}

// add appends the key of the token at a position.
func (g *Group) add(k *token, position int) {
	p, slot := g.take()
	g.put(p, slot, k.key, k.value)
	if g.positions {
		p.position[slot] = int32(position)
	}
	for f := range g.fieldHeads {
		p.level[f*PageSlots+slot], p.low[f*PageSlots+slot] = k.level[f], k.low[f]
		p.worst[f] = max(p.worst[f], penalty(k.level[f], k.low[f], g.slope[f]))
	}
	if g.norms != nil {
		g.norms.see(g, k)
	}
}

// attend sets y to the sum of the values of all keys of pages from to to-1, weighted
// by exp(logit - top), for query head h, and returns top, the largest logit, and the
// sum of weights. Without a key y is zero and top is -Inf. Pages that are dead are
// not looked at.
func (g *Group) attend(pages []*page, from, to, h int, y, q []float32, s *Scratch) (top, sum float32) {
	kh, f := g.keyHead(h), g.fieldHead(h)
	n := 0
	s.scores = grow(s.scores, (to-from)*PageSlots)
	s.pages = s.pages[:0]
	for i := from; i < to; i++ {
		p := pages[i]
		used := p.used()
		if used == 0 || g.fieldHeads > 0 && p.dead[f] {
			continue
		}
		if i+1 < len(pages) {
			g.foreseeKeys(pages[i+1], kh, f)
		}
		run := s.scores[n : n+used]
		g.dots(run, p, kh, q, g.scale)
		if g.fieldHeads > 0 {
			g.clock.rebase(p, f, used)
			level, low := p.fields(f, used)
			p.worst[f] = kernels.Penalise(run, low, level, g.clock.since(f, p.step[f]), g.slope[f])
			p.step[f] = g.clock.step
			if p.worst[f] >= g.deadAt[f] {
				p.dead[f] = g.allDead(p, f, used)
			}
		}
		n += used
		s.pages = append(s.pages, i)
	}
	clear(y)
	if len(s.pages) > 0 {
		g.foreseeValues(pages[s.pages[0]], kh)
	}
	scores := s.scores[:n]
	top = kernels.Max(scores)
	if top == -posInf {
		return top, 0
	}
	sum = kernels.ExpSum(scores, top)
	for n, i := range s.pages {
		if n+1 < len(s.pages) {
			g.foreseeValues(pages[s.pages[n+1]], kh)
		}
		p := pages[i]
		used := p.used()
		g.accumulate(y, p, kh, scores[:used])
		scores = scores[used:]
	}
	return top, sum
}

// allDead says whether every key of a page is dead to float32 for field head f. It
// looks first at the one that was not the last time.
func (g *Group) allDead(p *page, f, used int) bool {
	level, low := p.fields(f, used)
	at := g.deadAt[f]
	alive := func(slot int) bool { return level[slot] != posInf && penalty(level[slot], low[slot], g.slope[f]) < at }
	if slot := int(p.alive[f]); slot < used && alive(slot) {
		return false
	}
	for slot := range used {
		if alive(slot) {
			p.alive[f] = uint8(slot)
			return false
		}
	}
	return true
}

// penalty is what a key loses of its logit.
func penalty(level, low, slope float32) float32 {
	return slope * max(0, min(level-low, math.MaxFloat32))
}

// evict drops the keys that the ledger proves dead for every later query, then
// those beyond the group's share of the memory, and gives pages back. k is the
// newest token.
func (g *Group) evict(k *token, s *Scratch) {
	g.dropDead()
	if n := g.excess(); n > 0 {
		g.trim(n, s, func(p *page, _, slot int) float64 { return g.weight(p, slot, k, s) })
	}
	g.tidy(nil)
}

// dropDead drops the keys that the ledger proves dead for every later query.
func (g *Group) dropDead() {
	if g.ledger == nil {
		return
	}
	if g.norms != nil {
		g.norms.raise(g)
	}
	g.ledger.prepare(g.fieldHeads)
	for i, p := range g.pages {
		if p.live != 0 && g.mayHoldDead(p) {
			g.evictPage(i, p)
		}
	}
}

// excess is the number of keys beyond the group's share of the memory.
func (g *Group) excess() int {
	if g.limit == 0 {
		return 0
	}
	return max(0, g.live-g.limit)
}

// tidy gives pages back, and forgets minima that have become too many. Of a remote
// cache x are the tokens that are being taken in.
func (g *Group) tidy(x *Fresh) {
	g.shrink(x)
	if n := len(g.clock.low); n > 0 && g.clock.longest() > PageSlots+g.live {
		g.settle()
		if g.audit != nil {
			g.audit.settle()
		}
		g.clock.forget()
	}
}

// evictPage drops the dead keys of page i.
func (g *Group) evictPage(i int, p *page) {
	for live := p.live; live != 0; live &= live - 1 {
		slot := bits.TrailingZeros64(live)
		if g.ledger.remove(p, slot, g.slope) {
			g.remove(i, slot)
		}
	}
	g.ledger.prepare(g.fieldHeads)
}

// mayHoldDead says whether the largest penalties of a page reach the threshold
// of every field head, without which no key of it can be removed.
func (g *Group) mayHoldDead(p *page) bool {
	for f := range g.fieldHeads {
		if p.worst[f] < g.ledger.threshold[f] {
			return false
		}
	}
	return true
}

// remove drops a key; an audit keeps it aside, where it is if that is elsewhere.
func (g *Group) remove(i, slot int) {
	switch {
	case g.audit == nil:
	case g.remote:
		g.pages[i].aside |= 1 << slot
		g.aside++
	default:
		g.audit.adopt(g.pages[i], slot)
	}
	g.drop(i, slot)
}

// Scratch is the working memory of one goroutine.
type Scratch struct {
	scores     []float32 // logits of one query
	pages      []int     // pages whose logits they are
	tile       tile
	feed       Feed // of Group.Feed
	candidates []candidate
}

func grow(v []float32, n int) []float32 {
	if cap(v) < n {
		v = make([]float32, n+n/4)
	}
	return v[:n]
}

// norms are the largest lengths of queries and keys seen so far, from which the
// mode Measured takes its bounds.
type norms struct {
	query, key []float64 // [query head], [key head]
}

func (n *norms) see(g *Group, k *token) {
	for h := range n.query {
		n.query[h] = max(n.query[h], length(k.query[h*g.keyDim:(h+1)*g.keyDim]))
	}
	for h := range n.key {
		n.key[h] = max(n.key[h], length(k.key[h*g.keyDim:(h+1)*g.keyDim]))
	}
}

// raise lifts the ledger's bounds to what was seen.
func (n *norms) raise(g *Group) {
	for h, q := range n.query {
		u := math.Abs(float64(g.scale)) * q * n.key[g.keyHead(h)]
		g.ledger.raise(h, u*(1+rounding(g.typ, g.keyDim)))
	}
}

// length is in single precision, as engines with a device of their own have it.
func length(x []float32) float64 { return float64(float32(math.Sqrt(float64(kernels.Dot(x, x))))) }

// rounding is how much longer a key can get by being rounded to the cache's type
// (half a unit in the last place, or half a step of max|k|/127 in each element),
// and the arithmetic with it, relative to its length.
func rounding(t quant.DType, dim int) float64 {
	switch t {
	case quant.F16:
		return 0x1p-10
	case quant.Q8_0:
		return math.Sqrt(float64(dim))/254 + 1e-5
	}
	return 1e-5
}
