package cache

import "sync"

// pool keeps pages that groups gave back. All groups of a cache have the same
// numbers of heads, so any page fits any group.
type pool struct {
	keyDim, valueDim int
	half             bool

	mu   sync.Mutex
	free []*Page
}

// maxFree is the number of empty pages kept for reuse; the rest goes back to
// the memory allocator.
const maxFree = 64

func (p *pool) get(keyHeads, fieldHeads int) *Page {
	p.mu.Lock()
	defer p.mu.Unlock()
	if n := len(p.free); n > 0 {
		page := p.free[n-1]
		p.free = p.free[:n-1]
		return page
	}
	page := &Page{
		Level: make([]float32, fieldHeads*PageSlots),
		Low:   make([]float32, fieldHeads*PageSlots),
	}
	nk, nv := keyHeads*PageSlots*p.keyDim, keyHeads*PageSlots*p.valueDim
	if p.half {
		page.K16, page.V16 = make([]uint16, nk), make([]uint16, nv)
	} else {
		page.K32, page.V32 = make([]float32, nk), make([]float32, nv)
	}
	return page
}

func (p *pool) put(page *Page) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.free) < maxFree {
		p.free = append(p.free, page)
	}
}
