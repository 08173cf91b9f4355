// Package cpu is the embedded engine: it runs a model on the processor with the
// kernels of ops/kernels, on weights used where they lie in the mapped file, or, if
// they are quantised, repacked in memory.
//
// Activations and accumulation are float32, K and V are rounded to the cache's
// type. Work is split over rows of matrices and groups of heads, never inside a
// sum, so the logits do not depend on the number of threads.
package cpu

import (
	"fmt"
	"runtime"

	"github.com/firstpassage/fpa/ops/kernels"
	"github.com/firstpassage/fpa/runtime/cache"
	"github.com/firstpassage/fpa/runtime/model"

	"github.com/firstpassage/fpa/quant"
)

// Options configure an engine.
type Options struct {
	Threads int // 0: one a processor
	Chunk   int // tokens fed at a time in prefill; 0: 512

	// NoRepack leaves quantised weights in the mapped file alone. Otherwise the
	// engine copies them to memory of its own in an order that it reads faster. The
	// results of the two differ in their last bits.
	NoRepack bool

	// Int8 rounds activations to 8 bits, in blocks of 32, before they are multiplied
	// with weights of the types that kernels.RoundsFor names: faster, and less exact.
	Int8 bool

	// Copy says whether the other matrices are copied to the engine's memory, too.
	Copy Copying
}

// Copying says which weights are copied instead of used where they are mapped. On Linux
// copies lie in large pages, whose addresses take less work to find: as fast on a good
// day, twice as fast where the memory below a virtual machine is in small pieces.
type Copying uint8

// The ways.
const (
	CopyIfSmall Copying = iota // where there are large pages and much more memory than that; see worthCopying
	CopyNever
	CopyAlways
)

// DefaultChunk is the number of tokens that prefill feeds at a time.
const DefaultChunk = 512

// Engine runs one model; it is an engine.Engine and an engine.Batcher. Its sessions
// share its workers and the memory of its pass, so one batch runs at a time.
type Engine struct {
	model   *model.Model
	pool    *pool
	chunk   int
	workers []*worker // [thread]
	pass    pass
	feeding bool                  // a batch is under way
	field   func(float64) float64 // the activation of fields
	memory  *arena                // of repacked weights; nil: none, or those of another engine
	bound   map[quant.DType][]float32
	int8    bool
}

// worker is the working memory of one thread.
type worker struct {
	matrix    kernels.Scratch
	attention cache.Scratch
}

// New makes an engine for a model. The model's tensors must stay mapped until
// Close. It fails when the options are out of range.
func New(m *model.Model, o Options) (*Engine, error) {
	if o.Threads == 0 {
		o.Threads = runtime.GOMAXPROCS(0)
	}
	if o.Chunk == 0 {
		o.Chunk = DefaultChunk
	}
	if o.Threads < 1 || o.Threads > 1024 {
		return nil, fmt.Errorf("%d threads, expected 1 to 1024", o.Threads)
	}
	if o.Chunk < 1 || o.Chunk > 1<<16 {
		return nil, fmt.Errorf("a batch of %d tokens, expected 1 to %d", o.Chunk, 1<<16)
	}
	if o.Int8 {
		m = rounding(m)
	}
	e := newEngine(m, o)
	var err error
	if e.model, e.memory, err = loaded(m, e.pool, !o.NoRepack, o.Copy); err != nil {
		e.Close()
		return nil, err
	}
	return e, nil
}

func newEngine(m *model.Model, o Options) *Engine {
	e := &Engine{
		model: m, pool: newPool(o.Threads), chunk: o.Chunk, field: m.FieldActivation.Field(), bound: make(map[quant.DType][]float32), int8: o.Int8,
	}
	for range o.Threads {
		e.workers = append(e.workers, new(worker))
	}
	e.pass.e = e
	return e
}

// Share makes another engine for the same model, with workers of its own and the
// weights of e, which must be closed after it.
func (e *Engine) Share(threads int) *Engine {
	return newEngine(e.model, Options{Threads: threads, Chunk: e.chunk, Int8: e.int8})
}

// Threads is the number of threads that the engine uses.
func (e *Engine) Threads() int { return e.pool.size() }

// logitBound is the proved bound of the model's logits with a cache of type t, nil
// where there is none. A file carries that of F16, which holds for F32 too.
func (e *Engine) logitBound(t quant.DType) []float32 {
	if _, done := e.bound[t]; !done {
		bound := e.model.LogitBound
		if bound == nil || t == quant.Q8_0 {
			bound = e.model.LogitBounds(t)
		}
		if e.int8 {
			bound = append([]float32(nil), bound...)
			for i := range bound {
				bound[i] *= roundedLogit
			}
		}
		e.bound[t] = bound
	}
	return e.bound[t]
}

// roundedLogit is by how much a logit may exceed its bound when the vectors that the
// query and the key are projected from are rounded. In steps of the rounding, the
// largest of 32 elements is 127, and stays; the others, of some magnitude a, may each
// grow by half a step. The square of the length, of which there is one in a logit, then
// grows by (127^2 + 31 (a+1/2)^2) / (127^2 + 31 a^2), which is at most 1.0222.
const roundedLogit = 1.0225

// Close ends the engine's workers and gives back its memory.
func (e *Engine) Close() {
	e.pool.close()
	if e.memory != nil {
		e.memory.free()
		e.memory = nil
	}
}

// CacheShape is the geometry of the cache of a model, with K and V of type t.
func CacheShape(m *model.Model, t quant.DType) cache.Shape {
	s := cache.Shape{
		Layers: m.Blocks, QueryHeads: m.Heads, KeyHeads: m.KVHeads, FieldHeads: m.FieldHeads,
		KeyDim: m.KeyDim, ValueDim: m.ValDim, Type: t, Scale: m.Scale,
	}
	for i := range m.Layers {
		s.Slope = append(s.Slope, m.Layers[i].Slope...)
	}
	return s
}
