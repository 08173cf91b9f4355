package attention

import (
	"sync"

	"github.com/firstpassage/fpa/ops/kernels"
	"github.com/firstpassage/fpa/quant"
)

// Scratch is the working memory of one thread at a time.
type Scratch struct {
	field []float32 // [T], as fields
	low   []float32 // [T], of new keys
	query []float32 // [queries of the unit, D], times the scale where tiles are used

	// Of tiles.
	norm     []float32 // [queries], lengths of the scaled queries
	max, sum []float32 // [queries], of the softmax so far
	top      []float32 // [tileLen], the largest logit of each query in a tile
	least    []float32 // [blocks of 64 new positions], the smallest field
	keys     []float32 // [D, tileLen], of a page
	values   []float32 // [tileLen, Dv]
	row      []float32 // [D], one key
	logits   []float32 // [tileLen, tileLen]
	tileLow  []float32 // [tileLen]
	zeros    []float32 // [tileLen, Dv]
	out      []float32 // [queries, Dv], where the output is not float32

	// Of rows.
	scores  []float32 // [P+T]
	pastLow []float32 // [P]
}

// grow returns v with n elements, of any values.
func grow(v []float32, n int) []float32 {
	if cap(v) < n {
		v = make([]float32, n+n/4)
	}
	return v[:n]
}

// Pool is a free list of working memory. It is never emptied by the garbage
// collector, so that calls allocate nothing once it has grown to the number of
// threads at work.
type Pool struct {
	mu   sync.Mutex
	free []*Scratch
}

// Get returns working memory for one thread.
func (p *Pool) Get() *Scratch {
	p.mu.Lock()
	defer p.mu.Unlock()
	if n := len(p.free); n > 0 {
		s := p.free[n-1]
		p.free = p.free[:n-1]
		return s
	}
	return new(Scratch)
}

// Put gives it back.
func (p *Pool) Put(s *Scratch) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.free = append(p.free, s)
}

// kernelsOf are the kernels for an element type.
type kernelsOf[E Element] struct {
	dots       func(s, q []float32, k []E, d int, scale float32)
	accumulate func(y, p []float32, v []E)
	transpose  func(dst []float32, ld int, src []E, rows, cols int)
	widen      func(dst []float32, src []E)
	narrow     func(dst []E, src []float32)
}

var (
	kernels32 = kernelsOf[float32]{
		kernels.KeyDotsF32, kernels.AccumulateF32, kernels.TransposeF32,
		func(dst, src []float32) { copy(dst, src) },
		func(dst, src []float32) { copy(dst, src) },
	}
	kernels16 = kernelsOf[uint16]{
		kernels.KeyDotsF16, kernels.AccumulateF16, kernels.TransposeF16,
		quant.DecodeF16, quant.EncodeF16,
	}
)

func kernelsFor[E Element]() *kernelsOf[E] {
	var zero E
	if _, is32 := any(zero).(float32); is32 {
		return any(&kernels32).(*kernelsOf[E])
	}
	return any(&kernels16).(*kernelsOf[E])
}

// float32s is x where it holds float32 numbers, nil else.
func float32s[E Element](x []E) []float32 {
	y, _ := any(x).([]float32)
	return y
}
