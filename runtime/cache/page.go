package cache

import (
	"math/bits"
	"sync"

	"github.com/firstpassage/fpa/ops/kernels"
	"github.com/firstpassage/fpa/quant"
)

// layout is the geometry of a page.
type layout struct {
	keyHeads, fieldHeads int // heads of a group
	keyDim, valueDim     int
	typ                  quant.DType
	remote               bool // K and V lie elsewhere
	positions            bool // slots know the position of their keys
}

// page holds PageSlots keys of a group. Of K and V exactly one kind of slice is
// set, by the cache's type. A slot that is not occupied has the level +Inf.
type page struct {
	live  uint64 // bit s: slot s holds a key
	aside uint64 // bit s: slot s holds a dropped key, of a remote cache that is audited

	k16, v16       []uint16  // [key head][slot][dim], F16
	k32, v32       []float32 // [key head][slot][dim], F32
	k8, v8         []int8    // [key head][slot][dim], Q8_0, with
	kScale, vScale []float32 // [key head][slot]

	level, low []float32 // [field head][slot], relative to base
	position   []int32   // [slot], of the key's token; nil unless the policy asks for it

	base  []float64 // [field head], what level and low are relative to
	step  []int     // [field head], low takes in all fields up to this step
	worst []float32 // [field head], no key had a larger penalty when the page was last read
	dead  []bool    // [field head], every key is dead to float32 from here on
	alive []uint8   // [field head], the first slot to look at for one that is not
}

// slotBytes is the size of one key of a group: K, V, level and low.
func (l layout) slotBytes() int64 {
	n := int64(l.keyHeads) * int64(l.keyDim+l.valueDim)
	switch l.typ {
	case quant.F16:
		n *= 2
	case quant.Q8_0:
		n += 8 * int64(l.keyHeads) // two scales
	default:
		n *= 4
	}
	return n + 8*int64(l.fieldHeads)
}

// newPage makes a page, with its keys and values cut from a slab unless that is nil.
func (l layout) newPage(from *slab) *page {
	p := &page{
		level: make([]float32, l.fieldHeads*PageSlots),
		low:   make([]float32, l.fieldHeads*PageSlots),
		base:  make([]float64, l.fieldHeads),
		step:  make([]int, l.fieldHeads),
		worst: make([]float32, l.fieldHeads),
		dead:  make([]bool, l.fieldHeads),
		alive: make([]uint8, l.fieldHeads),
	}
	if l.positions {
		p.position = make([]int32, PageSlots)
	}
	if l.remote {
		return p
	}
	nk, nv := l.keyHeads*PageSlots*l.keyDim, l.keyHeads*PageSlots*l.valueDim
	switch l.typ {
	case quant.F16:
		p.k16, p.v16 = numbers[uint16](from, nk), numbers[uint16](from, nv)
	case quant.Q8_0:
		p.k8, p.v8 = numbers[int8](from, nk), numbers[int8](from, nv)
		p.kScale, p.vScale = make([]float32, l.keyHeads*PageSlots), make([]float32, l.keyHeads*PageSlots)
	default:
		p.k32, p.v32 = numbers[float32](from, nk), numbers[float32](from, nv)
	}
	return p
}

// occupied are the slots that no new key can take.
func (p *page) occupied() uint64 { return p.live | p.aside }

// used is the number of slots up to the last occupied one.
func (p *page) used() int { return bits.Len64(p.occupied()) }

// fields are the levels and lows of the first n slots of a field head.
func (p *page) fields(f, n int) (level, low []float32) {
	return p.level[f*PageSlots : f*PageSlots+n], p.low[f*PageSlots : f*PageSlots+n]
}

// put rounds a key to the cache's type and stores it: k [key head][KeyDim],
// v [key head][ValueDim].
func (l layout) put(p *page, slot int, k, v []float32) {
	dk, dv := l.keyDim, l.valueDim
	for h := range l.keyHeads {
		s := h*PageSlots + slot
		k, v := k[h*dk:(h+1)*dk], v[h*dv:(h+1)*dv]
		switch l.typ {
		case quant.F16:
			quant.EncodeF16(p.k16[s*dk:(s+1)*dk], k)
			quant.EncodeF16(p.v16[s*dv:(s+1)*dv], v)
		case quant.Q8_0:
			p.kScale[s] = kernels.QuantizeQ8(p.k8[s*dk:(s+1)*dk], k)
			p.vScale[s] = kernels.QuantizeQ8(p.v8[s*dv:(s+1)*dv], v)
		default:
			copy(p.k32[s*dk:], k)
			copy(p.v32[s*dv:], v)
		}
	}
}

// dots sets s to scale * q·k for the first slots of key head h.
func (l layout) dots(s []float32, p *page, h int, q []float32, scale float32) {
	from, to := h*PageSlots*l.keyDim, (h+1)*PageSlots*l.keyDim
	switch l.typ {
	case quant.F16:
		kernels.KeyDotsF16(s, q, p.k16[from:to], l.keyDim, scale)
	case quant.Q8_0:
		kernels.KeyDotsQ8(s, q, p.k8[from:to], p.kScale[h*PageSlots:(h+1)*PageSlots], l.keyDim, scale)
	default:
		kernels.KeyDotsF32(s, q, p.k32[from:to], l.keyDim, scale)
	}
}

// accumulate adds weights times values of key head h to y.
func (l layout) accumulate(y []float32, p *page, h int, weights []float32) {
	from, to := h*PageSlots*l.valueDim, (h+1)*PageSlots*l.valueDim
	switch l.typ {
	case quant.F16:
		kernels.AccumulateF16(y, weights, p.v16[from:to])
	case quant.Q8_0:
		kernels.AccumulateQ8(y, weights, p.v8[from:to], p.vScale[h*PageSlots:(h+1)*PageSlots])
	default:
		kernels.AccumulateF32(y, weights, p.v32[from:to])
	}
}

// foreseenBytes is how much of the next page's keys is asked for: from there on
// the kernel looks ahead by itself.
const foreseenBytes = 2048

// foreseeKeys asks the processor's cache for the beginning of the keys of head h,
// and for the levels and lows of field head f.
func (l layout) foreseeKeys(p *page, h, f int) {
	if l.fieldHeads > 0 {
		level, low := p.fields(f, PageSlots)
		kernels.Prefetch(level)
		kernels.Prefetch(low)
	}
	at, n := h*PageSlots*l.keyDim, PageSlots*l.keyDim
	switch l.typ {
	case quant.F16:
		kernels.Prefetch(p.k16[at : at+min(n, foreseenBytes/2)])
	case quant.Q8_0:
		kernels.Prefetch(p.k8[at : at+min(n, foreseenBytes)])
	default:
		kernels.Prefetch(p.k32[at : at+min(n, foreseenBytes/4)])
	}
}

// foreseeValues asks the processor's cache for the values of head h.
func (l layout) foreseeValues(p *page, h int) {
	from, to := h*PageSlots*l.valueDim, (h+1)*PageSlots*l.valueDim
	switch l.typ {
	case quant.F16:
		kernels.Prefetch(p.v16[from:to])
	case quant.Q8_0:
		kernels.Prefetch(p.v8[from:to])
	default:
		kernels.Prefetch(p.v32[from:to])
	}
}

// widenKeys writes the first n keys of head h to dst as columns,
// [KeyDim][PageSlots].
func (l layout) widenKeys(dst []float32, p *page, h, n int) {
	at := h * PageSlots * l.keyDim
	switch l.typ {
	case quant.F16:
		kernels.TransposeF16(dst, PageSlots, p.k16[at:], n, l.keyDim)
	case quant.Q8_0:
		kernels.TransposeQ8(dst, PageSlots, p.k8[at:], p.kScale[h*PageSlots:], n, l.keyDim)
	default:
		kernels.TransposeF32(dst, PageSlots, p.k32[at:], n, l.keyDim)
	}
}

// widenValues is the first n values of head h as rows [n][ValueDim], in dst or
// where they lie.
func (l layout) widenValues(dst []float32, p *page, h, n int) []float32 {
	at, size := h*PageSlots*l.valueDim, n*l.valueDim
	dst = dst[:size]
	switch l.typ {
	case quant.F16:
		quant.DecodeF16(dst, p.v16[at:at+size])
	case quant.Q8_0:
		kernels.WidenQ8(dst, p.v8[at:], p.vScale[h*PageSlots:], n, l.valueDim)
	default:
		return p.v32[at : at+size]
	}
	return dst
}

// copySlot copies K and V, level and low of a key from one page to another. The
// levels and lows must be relative to the same base.
func (l layout) copySlot(to *page, t int, from *page, s int) {
	for h := range l.keyHeads {
		t, s := h*PageSlots+t, h*PageSlots+s
		switch {
		case l.remote:
		case l.typ == quant.F16:
			copyVector(to.k16, from.k16, t, s, l.keyDim)
			copyVector(to.v16, from.v16, t, s, l.valueDim)
		case l.typ == quant.Q8_0:
			copyVector(to.k8, from.k8, t, s, l.keyDim)
			copyVector(to.v8, from.v8, t, s, l.valueDim)
			to.kScale[t], to.vScale[t] = from.kScale[s], from.vScale[s]
		default:
			copyVector(to.k32, from.k32, t, s, l.keyDim)
			copyVector(to.v32, from.v32, t, s, l.valueDim)
		}
	}
	for f := range l.fieldHeads {
		to.level[f*PageSlots+t] = from.level[f*PageSlots+s]
		to.low[f*PageSlots+t] = from.low[f*PageSlots+s]
	}
	if l.positions {
		to.position[t] = from.position[s]
	}
}

func copyVector[T uint16 | float32 | int8](dst, src []T, to, from, dim int) {
	copy(dst[to*dim:(to+1)*dim], src[from*dim:(from+1)*dim])
}

// pool keeps pages that groups gave back; any page fits any group of the cache.
type pool struct {
	layout layout

	mu   sync.Mutex
	free []*page
	made int64 // bytes of all pages made so far
	slab slab
}

// maxFree is the number of empty pages kept for reuse; the rest goes back to
// the memory allocator.
const maxFree = 64

func (p *pool) get() *page {
	p.mu.Lock()
	defer p.mu.Unlock()
	if n := len(p.free); n > 0 {
		page := p.free[n-1]
		p.free = p.free[:n-1]
		return page
	}
	p.made += PageSlots * p.layout.slotBytes()
	if p.made < slabsFrom {
		return p.layout.newPage(nil)
	}
	return p.layout.newPage(&p.slab)
}

func (p *pool) put(page *page) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.free) < maxFree {
		p.free = append(p.free, page)
	}
}
