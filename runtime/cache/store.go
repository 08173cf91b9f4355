package cache

import (
	"math/bits"
	"slices"
)

// store holds keys in pages. A new key takes the lowest empty slot, so the pages
// at the end run empty by themselves and are given back.
type store struct {
	layout
	pool  *pool
	clock *clock
	pages []*page
	live  int // keys held
	aside int // dropped keys that keep their slots for an audit
	hint  int // no page before it has an empty slot
}

// empty is the number of empty slots.
func (s *store) empty() int { return len(s.pages)*PageSlots - s.live - s.aside }

// take finds an empty slot and brings its page up to date, so that the key put
// there sees only the fields to come.
func (s *store) take() (p *page, slot int) {
	for s.hint < len(s.pages) && s.pages[s.hint].occupied() == ^uint64(0) {
		s.hint++
	}
	if s.hint == len(s.pages) {
		s.pages = append(s.pages, s.pool.get())
	}
	p = s.pages[s.hint]
	if p.live == 0 {
		clear(p.worst) // of other keys
	}
	s.clock.settle(p)
	clear(p.dead)
	slot = bits.TrailingZeros64(^p.occupied())
	p.live |= 1 << slot
	s.live++
	return p, slot
}

// void marks a slot as empty.
func (s *store) void(p *page, slot int) {
	for f := range s.fieldHeads {
		p.level[f*PageSlots+slot] = posInf
	}
}

// drop removes the key in a slot of page i, and empties the slot unless an audit
// goes on looking at it.
func (s *store) drop(i, slot int) {
	p := s.pages[i]
	if p.aside>>slot&1 == 0 {
		s.void(p, slot)
	}
	p.live &^= 1 << slot
	s.live--
	s.hint = min(s.hint, i)
}

// shrink gives pages back: those at the end that are empty, and, while two pages'
// worth of slots is empty, the last one after its keys were moved. So a key is
// moved only after many others died, and, where keys lie elsewhere, only while it
// is in x: as long as it is not written to its slot.
func (s *store) shrink(x *Fresh) {
	for len(s.pages) > 0 {
		last := len(s.pages) - 1
		p := s.pages[last]
		if p.occupied() != 0 {
			if s.empty() < 2*PageSlots || s.remote && !x.unwritten(last, p) {
				return
			}
			s.moveAway(last, x)
		}
		s.pages[last] = nil
		s.pages = s.pages[:last]
		s.hint = min(s.hint, last)
		s.pool.put(p)
	}
}

// moveAway moves the keys of the last page into empty slots of the others.
func (s *store) moveAway(last int, x *Fresh) {
	p := s.pages[last]
	s.clock.settle(p)
	for live := p.live; live != 0; live &= live - 1 {
		slot := bits.TrailingZeros64(live)
		to, t := s.take() // a page before, which has a slot
		s.copySlot(to, t, p, slot)
		if x != nil {
			x.move(last*PageSlots+slot, s.hint*PageSlots+t)
		}
		for f, w := range p.worst {
			to.worst[f] = max(to.worst[f], w)
		}
		p.live &^= 1 << slot
		s.live--
	}
}

// settle brings every page up to date and forgets the fields until now.
func (s *store) settle() {
	for _, p := range s.pages {
		s.clock.settle(p)
	}
}

// kept are the positions of the keys held, ascending.
func (s *store) kept() []int {
	list := make([]int, 0, s.live)
	for _, p := range s.pages {
		for live := p.live; live != 0; live &= live - 1 {
			list = append(list, int(p.position[bits.TrailingZeros64(live)]))
		}
	}
	slices.Sort(list)
	return list
}
