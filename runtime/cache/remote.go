package cache

import (
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/firstpassage/fpa/quant"
)

// This file is for engines whose keys and values lie elsewhere, in the memory of
// a device. The cache then keeps the books: which slots hold keys, their levels
// and lows, and which of them may go. A slot of a group has a number, and the
// device keeps K and V of a key at that number until the key is dropped.

// NewRemote makes the books of an empty cache whose K and V lie elsewhere. Of its
// groups only the methods of Remote are of use. It fails when the shape or the
// policy is not valid, for types other than F16 and F32, and for the modes Measured and Budget and an audit, which
// need to see K.
func NewRemote(s Shape, p Policy) (*Cache, error) {
	if p.Mode == Measured || p.Mode == Budget {
		return nil, fmt.Errorf("cache mode %s needs keys that the processor can read, and this engine keeps them on its device; expected off, exact or bounded", p.Mode)
	}
	if p.Audit {
		return nil, errors.New("an audit of the cache needs keys that the processor can read, and this engine keeps them on its device")
	}
	if s.Type != quant.F16 && s.Type != quant.F32 {
		return nil, fmt.Errorf("cache type %s is not supported by this engine, expected f16 or f32", s.Type)
	}
	return makeCache(s, p, true)
}

// Remote are the books of one group.
type Remote struct{ g *Group }

// Remote is the group's books, of a cache that NewRemote made.
func (g *Group) Remote() Remote { return Remote{g} }

// Slots is one more than the highest number of a slot that holds a key, rounded
// up to pages.
func (r Remote) Slots() int { return len(r.g.pages) * PageSlots }

// Fields writes the levels and lows of the slots below n to level and low,
// [field heads of the group][n]. Empty slots have the level +Inf.
func (r Remote) Fields(level, low []float32, n int) {
	g := r.g
	for f := range g.fieldHeads {
		level, low := level[f*n:(f+1)*n], low[f*n:(f+1)*n]
		for i, p := range g.pages {
			from := level[i*PageSlots:]
			used := p.used()
			pageLevel, pageLow := p.fields(f, used)
			copy(from, pageLevel)
			copy(low[i*PageSlots:], pageLow)
			for s := used; s < PageSlots; s++ {
				from[s] = posInf
			}
		}
		for s := len(g.pages) * PageSlots; s < n; s++ {
			level[s] = posInf
		}
	}
}

// Fresh is what the field of a group did over N new tokens, relative to the bases
// before them, and where their keys go. Rows of Field and Level are Stride apart.
type Fresh struct {
	N, Stride    int
	Field, Level []float64 // [field heads of the group][Stride]
	Moved        []float32 // [field heads of the group], how far the bases move after the tokens
	Inclusive    bool      // the interval of lows
	Slots        []int32   // [N], set by Take
}

// Take takes new tokens in and drops keys by the policy. It sets x.Slots[t] to the
// slot that is to hold the key of token t, or to -1 where that key was dropped.
func (r Remote) Take(x *Fresh) {
	g := r.g
	for f := range g.fieldHeads {
		least := slices.Min(x.Field[f*x.Stride : f*x.Stride+x.N])
		g.clock.low[f].push(g.clock.step+x.N, g.clock.base[f]+least)
	}
	g.clock.step += x.N
	g.clock.move(x.Moved)
	for _, p := range g.pages {
		g.lower(p)
	}
	r.add(x)
	g.evict(nil, nil)
	for t, s := range x.Slots[:x.N] {
		if page := int(s) / PageSlots; page >= len(g.pages) || g.pages[page].live>>(s%PageSlots)&1 == 0 {
			x.Slots[t] = -1
		}
	}
}

// add gives each new key a slot, its level, and the smallest field after it as
// its low.
func (r Remote) add(x *Fresh) {
	g := r.g
	for t := range x.N {
		_, slot := g.take()
		x.Slots[t] = int32(g.hint*PageSlots + slot)
	}
	for f := range g.fieldHeads {
		field, level, by := x.Field[f*x.Stride:], x.Level[f*x.Stride:], float64(x.Moved[f])
		least := math.Inf(1)
		for t := x.N - 1; t >= 0; t-- {
			low := least
			least = min(least, field[t])
			if x.Inclusive {
				low = least
			}
			slot := int(x.Slots[t])
			p, at := g.pages[slot/PageSlots], f*PageSlots+slot%PageSlots
			p.level[at], p.low[at] = float32(level[t]-by), float32(low-by)
			p.worst[f] = max(p.worst[f], penalty(p.level[at], p.low[at], g.slope[f]))
		}
	}
}
