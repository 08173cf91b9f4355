package cache

import (
	"math"

	"github.com/firstpassage/fpa/ops/kernels"
)

// Feed is the way of new tokens into a group: each of them attends to the keys
// before it and its own, and keys are dropped by the policy. It goes stretch by
// stretch, a stretch being one token, or up to a page of them as a block, and the
// attention of a stretch is cut into tasks that may run on several goroutines:
//
//	f.Reset(g, x)
//	for tasks := f.Open(); tasks > 0; tasks = f.Open() {
//		f.Run(0, tasks, scratch) // or piece by piece, side by side
//		f.Close(scratch)
//	}
//
// What a task computes depends neither on who runs it nor on which others run with
// it, and Close adds up in a fixed order. The zero value is ready for Reset; its
// memory grows once to what its groups need.
type Feed struct {
	g *Group
	x *Tokens
	t int // the first token of the stretch
	n int // its tokens; 0 before the first stretch

	token    token // of a stretch of one
	partials []partial
	values   []float32 // [part-1][query head][ValueDim], of all parts but the first
	block    block
}

// partial is the softmax of one query head over a part of the pages: the largest
// logit, and the sum of exp(logit - top).
type partial struct{ top, sum float32 }

// fewTokens is the number of tokens below which a block costs more than its
// tokens one by one.
const fewTokens = 4

// partPages is the number of pages that one task of a single token looks at, in
// every head of the group: a quarter of a megabyte of keys and values in F16 and
// heads of 64, which takes longer than it takes to start the task, and stays in the
// processor's cache from one query head to the next. It decides the order in which
// sums are taken, so it depends on nothing.
const partPages = 16

// Reset begins with the first token of x.
func (f *Feed) Reset(g *Group, x *Tokens) { f.g, f.x, f.t, f.n = g, x, 0, 0 }

// Open takes in the next stretch and returns the number of its tasks, 0 when no
// token is left. The stretch before must be closed.
func (f *Feed) Open() (tasks int) {
	f.t += f.n
	if f.t == f.x.N {
		f.n = 0
		return 0
	}
	g := f.g
	f.n = 1
	if g.audit == nil {
		f.n = stretch(min(PageSlots, f.x.N-f.t), func(i int) []float32 { return g.token(f.x, f.t+i).moved })
	}
	if f.n >= fewTokens {
		f.openBlock()
		return g.queryHeads
	}
	f.n = 1
	f.token = g.token(f.x, f.t)
	g.clock.move(f.token.moved)
	g.clock.pass(1, f.token.field)
	g.add(&f.token, g.clock.step-1)
	parts := (len(g.pages) + partPages - 1) / partPages
	if need := parts * g.queryHeads; cap(f.partials) < need {
		f.partials = make([]partial, need+need/4)
	}
	f.partials = f.partials[:parts*g.queryHeads]
	f.values = grow(f.values, (parts-1)*g.queryHeads*g.valueDim)
	return parts
}

// Run does the tasks from to to-1 of the stretch. Tasks may be done at the same time
// by several goroutines, each with its own scratch memory.
func (f *Feed) Run(from, to int, s *Scratch) {
	if f.n > 1 {
		f.runBlock(from, to, &s.tile)
		return
	}
	g := f.g
	for part := from; part < to; part++ {
		first, end := part*partPages, min((part+1)*partPages, len(g.pages))
		for h := range g.queryHeads {
			p := &f.partials[part*g.queryHeads+h]
			p.top, p.sum = g.attend(g.pages, first, end, h, f.part(part, h), f.query(h), s)
		}
	}
}

// query is the query of head h of a single token.
func (f *Feed) query(h int) []float32 { return f.token.query[h*f.g.keyDim : (h+1)*f.g.keyDim] }

// part is where a part's sum of values goes for query head h.
func (f *Feed) part(part, h int) []float32 {
	g := f.g
	if part == 0 {
		return f.token.out[h*g.valueDim : (h+1)*g.valueDim]
	}
	at := ((part-1)*g.queryHeads + h) * g.valueDim
	return f.values[at : at+g.valueDim]
}

// Close ends a stretch all of whose tasks are done.
func (f *Feed) Close(s *Scratch) {
	if f.n > 1 {
		f.closeBlock(s)
		return
	}
	g := f.g
	for h := range g.queryHeads {
		y := f.part(0, h)
		top, sum := f.join(h, y)
		if g.audit != nil {
			g.audit.look(g, h, f.query(h), top, sum, s)
		}
		if sum > 0 {
			kernels.Scale(y, 1/sum)
		}
		g.lse[h] = float64(top) + math.Log(float64(sum))
	}
	g.evict(&f.token, s)
}

// join makes one softmax of the parts of query head h, part by part.
func (f *Feed) join(h int, y []float32) (top, sum float32) {
	heads := f.g.queryHeads
	first := f.partials[h]
	if len(f.partials) == heads {
		return first.top, first.sum
	}
	top = first.top
	for i := heads + h; i < len(f.partials); i += heads {
		top = max(top, f.partials[i].top)
	}
	if top == -posInf {
		return top, 0 // all values are zero
	}
	weight := func(p partial) float32 { return float32(math.Exp(float64(p.top) - float64(top))) }
	w := weight(first)
	kernels.Scale(y, w)
	sum = w * first.sum
	for i := heads + h; i < len(f.partials); i += heads {
		w := weight(f.partials[i])
		kernels.Axpy(y, w, f.part(i/heads, h))
		sum += w * f.partials[i].sum
	}
	return top, sum
}

// Splits reports whether taking in n tokens takes so long that several goroutines
// may share the tasks.
func (g *Group) Splits(n int) bool {
	return len(g.pages) > partPages || n >= PageSlots && g.queryHeads > 1
}

// Feed takes new tokens in, all tasks one after the other on the calling goroutine.
func (g *Group) Feed(x *Tokens, s *Scratch) {
	f := &s.feed
	f.Reset(g, x)
	for tasks := f.Open(); tasks > 0; tasks = f.Open() {
		f.Run(0, tasks, s)
		f.Close(s)
	}
}
