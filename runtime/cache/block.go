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
// nothing larger than a block by a page is ever held.

// blockScratch is the working memory of a block of n tokens; H is the number of
// query heads of the group.
type blockScratch struct {
	query    []float32 // [H][n, KeyDim], times the scale
	max, sum []float32 // [H][n], of the softmax so far
	top      []float32 // [n], the largest logit of a page
	keys     []float32 // [KeyDim, PageSlots], of a page
	values   []float32 // [PageSlots, ValueDim]
	logits   []float32 // [n, PageSlots]
	field    []float32 // [field head][n]
	least    []float32 // [field head], smallest field of the block
	low      []float32 // [field head][PageSlots], of the block's own keys
	tileLow  []float32 // [PageSlots], of a page while the queries pass over it
	none     []float32 // [PageSlots] zeros: level, low and field of heads without any
	own      *page     // the block's own keys
}

func (b *blockScratch) resize(g *Group, n int) {
	b.query = grow(b.query, g.queryHeads*n*g.keyDim)
	b.max, b.sum = grow(b.max, g.queryHeads*n), grow(b.sum, g.queryHeads*n)
	b.top = grow(b.top, n)
	b.keys, b.values = grow(b.keys, g.keyDim*PageSlots), grow(b.values, g.valueDim*PageSlots)
	b.logits = grow(b.logits, PageSlots*PageSlots)
	b.field, b.least = grow(b.field, g.fieldHeads*n), grow(b.least, g.fieldHeads)
	b.low, b.tileLow = grow(b.low, g.fieldHeads*PageSlots), grow(b.tileLow, PageSlots)
	b.none = grow(b.none, PageSlots)
	if b.own == nil {
		b.own = g.newPage(nil)
	}
}

// block takes in n tokens from t on, over which no base moves after the first.
func (g *Group) block(x *Tokens, t, n int, s *Scratch) {
	b := &s.block
	b.resize(g, n)
	g.clock.move(g.token(x, t).moved)
	for i := range n {
		k := g.token(x, t+i)
		for h := range g.queryHeads {
			to := b.query[(h*n+i)*g.keyDim : (h*n+i+1)*g.keyDim]
			copy(to, k.query[h*g.keyDim:])
			kernels.Scale(to, g.scale)
		}
		for f, v := range k.field {
			b.field[f*n+i] = v
		}
		for f := range g.fieldHeads {
			b.own.level[f*PageSlots+i] = k.level[f]
		}
		g.put(b.own, i, k.key, k.value)
		clear(k.out)
	}
	for f := range g.fieldHeads {
		b.least[f] = slices.Min(b.field[f*n : (f+1)*n])
	}
	for i := range b.max {
		b.max[i], b.sum[i] = -posInf, 0
	}
	g.ownKeys(x, t, n, b)
	for _, p := range g.pages {
		g.page(x, t, n, p, b)
	}
	g.clock.pass(n, b.least)
	for _, p := range g.pages {
		g.lower(p)
	}
	for h := range g.queryHeads {
		for i := range n {
			if sum := b.sum[h*n+i]; sum > 0 {
				kernels.Scale(g.out(x, t+i, h), 1/sum)
			}
		}
		g.lse[h] = float64(b.max[h*n+n-1]) + math.Log(float64(b.sum[h*n+n-1]))
	}
	for i := range n {
		k := g.token(x, t+i)
		for f := range g.fieldHeads {
			k.low[f] = b.low[f*PageSlots+i]
		}
		g.add(&k, g.clock.step-n+i)
	}
	last := g.token(x, t+n-1)
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

// ownKeys attends from the block to its own keys.
func (g *Group) ownKeys(x *Tokens, t, n int, b *blockScratch) {
	for kh := range g.keyHeads {
		g.widenKeys(b.keys, b.own, kh, n)
		values := g.widenValues(b.values, b.own, kh, n)
		for h := range g.queryHeads {
			if g.keyHead(h) != kh {
				continue
			}
			logits := b.logits[:n*PageSlots]
			kernels.MulAdd(logits, PageSlots, b.query[h*n*g.keyDim:], g.keyDim, n, b.keys, PageSlots, g.keyDim, n, false)
			for i := range n {
				row := logits[i*PageSlots : i*PageSlots+n]
				g.penaliseOwn(x, t, i, n, h, row, b)
				b.top[i] = kernels.Max(row[:i+1])
				for j := i + 1; j < n; j++ {
					row[j] = -posInf
				}
			}
			g.accumulateBlock(x, t, n, n, h, values, b)
		}
	}
}

// penaliseOwn takes the penalties off the logits of query i of the block with
// the block's own keys up to it, and keeps their lows.
func (g *Group) penaliseOwn(x *Tokens, t, i, n, h int, row []float32, b *blockScratch) {
	if g.fieldHeads == 0 {
		return
	}
	f := g.fieldHead(h)
	level, low := b.own.level[f*PageSlots:], b.low[f*PageSlots:]
	kernels.Penalise(row[:i], low[:i], level[:i], b.field[f*n+i], g.slope[f])
	low[i] = g.token(x, t+i).low[f]
	row[i] -= penalty(level[i], low[i], g.slope[f])
}

// page attends from the block to the keys of a page.
func (g *Group) page(x *Tokens, t, n int, p *page, b *blockScratch) {
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
	level, low, slope := b.none[:used], b.none[:used], float32(0)
	field := b.none[:n]
	for kh := range g.keyHeads {
		var values []float32 // widened when the first head asks for them
		for h := range g.queryHeads {
			f := g.fieldHead(h)
			if g.keyHead(h) != kh || g.fieldHeads > 0 && p.dead[f] {
				continue
			}
			if values == nil {
				g.widenKeys(b.keys, p, kh, used)
				values = g.widenValues(b.values, p, kh, used)
			}
			if g.fieldHeads > 0 {
				level, low = p.fields(f, used)
				field, slope = b.field[f*n:(f+1)*n], g.slope[f]
			}
			kernels.MulAdd(b.logits, PageSlots, b.query[h*n*g.keyDim:], g.keyDim, n, b.keys, PageSlots, g.keyDim, used, false)
			running := b.tileLow[:used]
			copy(running, low)
			kernels.PenaliseTile(b.logits, PageSlots, n, running, level, field, slope, b.top)
			g.accumulateBlock(x, t, n, used, h, values, b)
		}
	}
}

// accumulateBlock adds the values of used keys to the outputs of head h, weighted
// by exp(logit - max) of the logits at hand, b.top being the largest of each row.
func (g *Group) accumulateBlock(x *Tokens, t, n, used, h int, values []float32, b *blockScratch) {
	most, sum := b.max[h*n:(h+1)*n], b.sum[h*n:(h+1)*n]
	for i, top := range b.top[:n] {
		if top <= most[i] {
			continue
		}
		if most[i] != -posInf {
			shrink := float32(math.Exp(float64(most[i] - top)))
			sum[i] *= shrink
			kernels.Scale(g.out(x, t+i, h), shrink)
		}
		most[i] = top
	}
	kernels.ExpSumTile(b.logits, PageSlots, n, used, most, sum)
	at := (t*g.heads.query + g.first.query + h) * g.valueDim
	kernels.MulAdd(x.Out[at:], g.heads.query*g.valueDim, b.logits, PageSlots, n, values, g.valueDim, used, g.valueDim, true)
}
