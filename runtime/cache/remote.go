package cache

import (
	"math/bits"
	"slices"
)

// This file is for engines whose keys and values lie elsewhere, in the memory of
// a device. The cache then keeps the books: which slots hold keys, their levels
// and lows, and which of them may go. A slot of a group has a number, and the
// device keeps K and V of a key at that number until the key is dropped. What the
// modes Measured and Budget and an audit need to know of queries and keys, the
// device tells; see Fresh.
//
// A chunk of tokens is taken in as the same stretches as in a local cache, with the
// same rule after each, so both keep the same keys. There are two differences. On the
// device a key that dies inside a chunk is attended to until the end of the chunk.
// And the mode Budget drops keys beyond the limit at the end of a chunk alone.

// NewRemote makes the books of an empty cache whose K and V lie elsewhere. Of its
// groups only the methods of Remote are of use. It fails when the shape or the
// policy is not valid.
func NewRemote(s Shape, p Policy) (*Cache, error) { return makeCache(s, p, true) }

// Remote are the books of one group.
type Remote struct{ g *Group }

// Remote is the group's books, of a cache that NewRemote made.
func (g *Group) Remote() Remote { return Remote{g} }

// Slots is one more than the highest number of a slot that is occupied, rounded up
// to pages.
func (r Remote) Slots() int { return len(r.g.pages) * PageSlots }

// Fields writes the levels and lows of the slots below n to level and low,
// [field heads of the group][n]. Empty slots have the level +Inf, and so have those of
// dropped keys that an audit follows.
func (r Remote) Fields(level, low []float32, n int) { r.fields(level, low, n, false) }

// Audited writes the levels of the slots below n to level, [field heads of the
// group][n], dropped keys included, and to dropped, [n], 1 for these and 0 for others.
func (r Remote) Audited(level, dropped []float32, n int) {
	r.fields(level, nil, n, true)
	clear(dropped[:n])
	for i, p := range r.g.pages {
		for s := range p.used() {
			dropped[i*PageSlots+s] = float32(p.aside >> s & 1)
		}
	}
}

func (r Remote) fields(level, low []float32, n int, aside bool) {
	g := r.g
	for f := range g.fieldHeads {
		level := level[f*n : (f+1)*n]
		for i, p := range g.pages {
			from := level[i*PageSlots : (i+1)*PageSlots]
			used := p.used()
			pageLevel, pageLow := p.fields(f, used)
			copy(from, pageLevel)
			if low != nil {
				copy(low[f*n+i*PageSlots:], pageLow)
			}
			for s := range PageSlots {
				if s >= used || !aside && p.aside>>s&1 == 1 {
					from[s] = posInf
				}
			}
		}
		for s := len(g.pages) * PageSlots; s < n; s++ {
			level[s] = posInf
		}
	}
}

// Fresh is what the device says of N new tokens of a group, and where their keys
// go. Rows are Stride apart. Fields and levels are relative to the bases before the
// tokens.
type Fresh struct {
	N, Stride    int
	Field, Level []float64 // [field heads][Stride]
	Moved        []float32 // [N][MovedStride], of it the field heads first: how far the base moves before the token
	MovedStride  int
	Inclusive    bool // the interval of lows

	Query, Key []float32 // of the mode Measured: lengths of queries and keys, [query heads][Stride] and [key heads][Stride]
	// Weight is of the mode Budget: what every slot and every new token weighs for the
	// last one, of the head that gives it most, [slots+Stride].
	Weight []float32
	// Removed is of an audit, [query heads]: the largest share of a softmax that dropped
	// keys would have had.
	Removed []float32

	Slots []int32 // [N], set by Take

	base  []float64 // [field heads], of now, relative to that before the chunk
	least []float32 // [field heads], smallest field of a stretch
}

// Take takes new tokens in and drops keys by the policy. It sets x.Slots[t] to the
// slot that is to hold the key of token t, or to -1 where that key is not needed any
// more.
func (r Remote) Take(x *Fresh) {
	g := r.g
	if g.audit != nil {
		for _, share := range x.Removed {
			g.audit.largest = max(g.audit.largest, float64(share))
		}
	}
	for t := range x.N {
		x.Slots[t] = -1
	}
	moved := func(t int) []float32 { return x.Moved[t*x.MovedStride:][:g.fieldHeads] }
	x.base, x.least = append(x.base[:0], make([]float64, g.fieldHeads)...), grow(x.least, g.fieldHeads)
	for t := 0; t < x.N; {
		n := stretch(min(PageSlots, x.N-t), func(i int) []float32 { return moved(t + i) })
		if n < fewTokens {
			n = 1
		}
		for f, by := range moved(t) {
			x.base[f] += float64(by)
		}
		g.clock.move(moved(t))
		r.take(x, t, n)
		t += n
		g.dropDead()
		r.forget(x)
		g.tidy(x)
	}
	if n := g.excess(); n > 0 {
		slots := len(x.Weight) - x.Stride
		g.trim(n, &Scratch{}, func(_ *page, i, slot int) float64 {
			at := i*PageSlots + slot
			if t := slices.Index(x.Slots[:x.N], int32(at)); t >= 0 {
				at = slots + t
			}
			return float64(x.Weight[at])
		})
		r.forget(x)
		g.tidy(x)
	}
}

// take adds n tokens from t on, over which no base moves.
func (r Remote) take(x *Fresh, t, n int) {
	g := r.g
	field := func(f, i int) float32 { return float32(x.Field[f*x.Stride+t+i] - x.base[f]) }
	for f := range x.least {
		x.least[f] = posInf
		for i := range n {
			x.least[f] = min(x.least[f], field(f, i))
		}
	}
	g.clock.pass(n, x.least)
	for _, p := range g.pages {
		g.lower(p)
	}
	for i := range n {
		p, slot := g.take()
		x.Slots[t+i] = int32(g.hint*PageSlots + slot)
		if g.positions {
			p.position[slot] = int32(g.clock.step - n + i)
		}
	}
	// The low of a key is the smallest field after it.
	for f := range g.fieldHeads {
		later := posInf
		for i := n - 1; i >= 0; i-- {
			low := later
			later = min(later, field(f, i))
			if x.Inclusive {
				low = later
			}
			slot := int(x.Slots[t+i])
			p, at := g.pages[slot/PageSlots], f*PageSlots+slot%PageSlots
			p.level[at], p.low[at] = float32(x.Level[f*x.Stride+t+i]-x.base[f]), low
			p.worst[f] = max(p.worst[f], penalty(p.level[at], low, g.slope[f]))
		}
	}
	if g.norms == nil {
		return
	}
	for i := range n {
		for h := range g.norms.query {
			g.norms.query[h] = max(g.norms.query[h], float64(x.Query[h*x.Stride+t+i]))
		}
		for h := range g.norms.key {
			g.norms.key[h] = max(g.norms.key[h], float64(x.Key[h*x.Stride+t+i]))
		}
	}
}

// forget marks the tokens whose slot has been emptied.
func (r Remote) forget(x *Fresh) {
	for t, s := range x.Slots[:x.N] {
		if s >= 0 && r.g.pages[s/PageSlots].occupied()>>(s%PageSlots)&1 == 0 {
			x.Slots[t] = -1
		}
	}
}

// unwritten says whether all keys of a page are new, so that they can be moved.
func (x *Fresh) unwritten(i int, p *page) bool {
	for live := p.live; live != 0; live &= live - 1 {
		if !slices.Contains(x.Slots[:x.N], int32(i*PageSlots+bits.TrailingZeros64(live))) {
			return false
		}
	}
	return p.aside == 0
}

// move notes that a new key goes to another slot.
func (x *Fresh) move(from, to int) {
	x.Slots[slices.Index(x.Slots[:x.N], int32(from))] = int32(to)
}
