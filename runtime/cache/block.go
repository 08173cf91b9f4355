package cache

import (
	"math"
	"slices"

	"github.com/firstpassage/fpa/ops/kernels"
)

// This file attends from a block of up to PageSlots new tokens at once. The
// keys before the block are met page by page: with p the smallest field of the
// block up to query i, the low of a key is min(low at the start, p), so the
// penalty of a page needs a running minimum alone; only the block's own keys
// need one of two indices. Logits of a page are one matrix product, and so are
// the weighted values; the softmax runs along (its maximum and sum so far), so
// nothing larger than a block by a page is ever held. A task is one query head.

// block is what all tasks of a block of n tokens share; H is the number of query
// heads of the group.
type block struct {
	query    []float32 // [H][n, KeyDim], times the scale
	max, sum []float32 // [H][n], of the softmax so far
	field    []float32 // [field head][n]
	least    []float32 // [field head], smallest field of the block
	own      *page     // the block's own keys, with
	layout   layout    // their geometry
}

// tile is the working memory of a task.
type tile struct {
	top    []float32 // [n], the largest logit of a page
	keys   []float32 // [KeyDim, PageSlots], of a page
	values []float32 // [PageSlots, ValueDim]
	logits []float32 // [n, PageSlots]
	low    []float32 // [PageSlots], of a page while the queries pass over it
	none   []float32 // [PageSlots] zeros: level, low and field of heads without any
}

// openBlock takes in the n tokens of the stretch, over which no base moves after
// the first, but for adding their keys.
func (f *Feed) openBlock() {
	g, x, b, n := f.g, f.x, &f.block, f.n
	b.query = grow(b.query, g.queryHeads*n*g.keyDim)
	b.max, b.sum = grow(b.max, g.queryHeads*n), grow(b.sum, g.queryHeads*n)
	b.field, b.least = grow(b.field, g.fieldHeads*n), grow(b.least, g.fieldHeads)
	if b.own == nil || b.layout != g.layout {
		b.own, b.layout = g.newPage(nil), g.layout
	}
	g.clock.move(g.token(x, f.t).moved)
	for i := range n {
		k := g.token(x, f.t+i)
		for h := range g.queryHeads {
			to := b.query[(h*n+i)*g.keyDim : (h*n+i+1)*g.keyDim]
			copy(to, k.query[h*g.keyDim:])
			kernels.Scale(to, g.scale)
		}
		for h, v := range k.field {
			b.field[h*n+i] = v
			b.own.level[h*PageSlots+i], b.own.low[h*PageSlots+i] = k.level[h], k.low[h]
		}
		g.put(b.own, i, k.key, k.value)
		clear(k.out)
	}
	for h := range g.fieldHeads {
		b.least[h] = slices.Min(b.field[h*n : (h+1)*n])
	}
	for i := range b.max {
		b.max[i], b.sum[i] = -posInf, 0
	}
	for _, p := range g.pages {
		g.look(p)
	}
}

// look brings the lows of a page up to date before a block, and finds out whether
// it is dead.
func (g *Group) look(p *page) {
	used := p.used()
	if used == 0 {
		return
	}
	for f := range g.fieldHeads {
		if p.dead[f] {
			continue
		}
		g.clock.lower(p, f, used)
		if g.deadAt[f] != posInf {
			// The first query of the block has the smallest penalties.
			p.dead[f] = g.allDead(p, f, used)
		}
	}
}

// runBlock attends from the block in query heads from to to-1. Those of one key
// head share the work of widening keys and values.
func (f *Feed) runBlock(from, to int, s *tile) {
	g := f.g
	s.top, s.low, s.none = grow(s.top, PageSlots), grow(s.low, PageSlots), grow(s.none, PageSlots)
	s.keys, s.values = grow(s.keys, g.keyDim*PageSlots), grow(s.values, g.valueDim*PageSlots)
	s.logits = grow(s.logits, PageSlots*PageSlots)
	for from < to {
		kh, end := g.keyHead(from), from+1
		for end < to && g.keyHead(end) == kh {
			end++
		}
		g.widenKeys(s.keys, f.block.own, kh, f.n)
		values := g.widenValues(s.values, f.block.own, kh, f.n)
		for h := from; h < end; h++ {
			f.ownKeys(h, values, s)
		}
		for _, p := range g.pages {
			f.page(p, kh, from, end, s)
		}
		from = end
	}
}

// closeBlock adds the block's keys.
func (f *Feed) closeBlock(s *Scratch) {
	g, x, b, n := f.g, f.x, &f.block, f.n
	g.clock.pass(n, b.least)
	for _, p := range g.pages {
		g.lower(p)
	}
	for h := range g.queryHeads {
		for i := range n {
			if sum := b.sum[h*n+i]; sum > 0 {
				kernels.Scale(g.out(x, f.t+i, h), 1/sum)
			}
		}
		g.lse[h] = float64(b.max[h*n+n-1]) + math.Log(float64(b.sum[h*n+n-1]))
	}
	for h := range g.fieldHeads {
		since := posInf // the smallest field after token i
		for i := n - 1; i >= 0; i-- {
			low := &x.Low[(f.t+i)*g.heads.field+g.first.field+h]
			*low = min(*low, since)
			since = min(since, b.field[h*n+i])
		}
	}
	for i := range n {
		k := g.token(x, f.t+i)
		g.add(&k, g.clock.step-n+i)
	}
	last := g.token(x, f.t+n-1)
	g.evict(&last, s)
}

// out is the result of query head h for a token.
func (g *Group) out(x *Tokens, t, h int) []float32 {
	at := (t*g.heads.query + g.first.query + h) * g.valueDim
	return x.Out[at : at+g.valueDim]
}

// lower brings the lows of a page up to date after a block, with its largest
// penalties.
func (g *Group) lower(p *page) {
	used := p.used()
	for f := range g.fieldHeads {
		if p.dead[f] {
			continue
		}
		g.clock.lower(p, f, used)
		level, low := p.fields(f, used)
		p.worst[f] = largestPenalty(level, low, g.slope[f])
	}
}

// largestPenalty is the largest penalty of a key, 0 without a key.
func largestPenalty(level, low []float32, slope float32) float32 {
	most := float32(0)
	for j, l := range level {
		if l != posInf {
			most = max(most, penalty(l, low[j], slope))
		}
	}
	return most
}

// ownKeys attends from the block to its own keys in query head h.
func (f *Feed) ownKeys(h int, values []float32, s *tile) {
	g, b, n := f.g, &f.block, f.n
	logits := s.logits[:n*PageSlots]
	kernels.MulAdd(logits, PageSlots, b.query[h*n*g.keyDim:], g.keyDim, n, s.keys, PageSlots, g.keyDim, n, false)
	for i := range n {
		row := logits[i*PageSlots : i*PageSlots+n]
		f.penaliseOwn(i, h, row, s)
		s.top[i] = kernels.Max(row[:i+1])
		for j := i + 1; j < n; j++ {
			row[j] = -posInf
		}
	}
	f.accumulate(n, h, values, s)
}

// penaliseOwn takes the penalties off the logits of query i of the block with the
// block's own keys up to it, whose lows it keeps in s.low from query to query.
func (f *Feed) penaliseOwn(i, h int, row []float32, s *tile) {
	g, b := f.g, &f.block
	if g.fieldHeads == 0 {
		return
	}
	fh := g.fieldHead(h)
	level, low := b.own.level[fh*PageSlots:], b.own.low[fh*PageSlots:]
	kernels.Penalise(row[:i], s.low[:i], level[:i], b.field[fh*f.n+i], g.slope[fh])
	s.low[i] = low[i]
	row[i] -= penalty(level[i], low[i], g.slope[fh])
}

// page attends from the block to the keys of a page, in query heads from to to-1,
// which are of key head kh.
func (f *Feed) page(p *page, kh, from, to int, s *tile) {
	g, b, n := f.g, &f.block, f.n
	used := p.used()
	if used == 0 {
		return
	}
	level, low, slope := s.none[:used], s.none[:used], float32(0)
	field := s.none[:n]
	var values []float32 // widened when the first head asks for them
	for h := from; h < to; h++ {
		fh := g.fieldHead(h)
		if g.fieldHeads > 0 && p.dead[fh] {
			continue
		}
		if values == nil {
			g.widenKeys(s.keys, p, kh, used)
			values = g.widenValues(s.values, p, kh, used)
		}
		if g.fieldHeads > 0 {
			level, low = p.fields(fh, used)
			field, slope = b.field[fh*n:(fh+1)*n], g.slope[fh]
		}
		kernels.MulAdd(s.logits, PageSlots, b.query[h*n*g.keyDim:], g.keyDim, n, s.keys, PageSlots, g.keyDim, used, false)
		running := s.low[:used]
		copy(running, low)
		kernels.PenaliseTile(s.logits, PageSlots, n, running, level, field, slope, s.top)
		f.accumulate(used, h, values, s)
	}
}

// accumulate adds the values of used keys to the outputs of head h, weighted by
// exp(logit - max) of the logits at hand, s.top being the largest of each row.
func (f *Feed) accumulate(used, h int, values []float32, s *tile) {
	g, x, n := f.g, f.x, f.n
	most, sum := f.block.max[h*n:(h+1)*n], f.block.sum[h*n:(h+1)*n]
	for i, top := range s.top[:n] {
		if top <= most[i] {
			continue
		}
		if most[i] != -posInf {
			shrink := float32(math.Exp(float64(most[i] - top)))
			sum[i] *= shrink
			kernels.Scale(g.out(x, f.t+i, h), shrink)
		}
		most[i] = top
	}
	kernels.ExpSumTile(s.logits, PageSlots, n, used, most, sum)
	at := (f.t*g.heads.query + g.first.query + h) * g.valueDim
	kernels.MulAdd(x.Out[at:], g.heads.query*g.valueDim, s.logits, PageSlots, n, values, g.valueDim, used, g.valueDim, true)
}
