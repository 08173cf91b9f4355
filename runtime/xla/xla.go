// Package xla runs a model as a gomlx graph: by XLA on a processor or a GPU, or,
// to check the graph without any plugin, by gomlx's own pure-Go backend.
//
// It is an engine.Engine like package cpu and agrees with it to the rounding of
// float32. The decoder is one graph, compiled for each pair of a chunk size and a
// cache capacity that comes up; both are rounded up to a few sizes, so that the
// number of compilations of a run of any length is small. Weights are uploaded
// once. K and V stay on the device, in slots that the host gives out and takes
// back: what the graph needs to know of them, and all that eviction looks at, are
// the level and the low of each slot, which package cache keeps by the same code as
// for the CPU engine.
//
// The field of a walk is summed in float64 in the graph. The host gets field and
// level of the chunk in float64, so that no precision is lost to where a chunk is
// cut, and moves their base by whole numbers.
//
// On a processor weights are widened to float32 when they are loaded, since XLA
// would widen a whole matrix of half precision in every call. Elsewhere F16 and
// BF16 matrices stay as they are, and quantised ones become F16. Options.Packed keeps
// some quantised types packed.
//
// Sessions that are fed together share a pass (FeedBatch). Several devices share one
// model, by its heads, or the sequences of a pass, see Options and mesh.go.
//
// gomlx reports errors by panicking; every call into it goes through try, which
// returns them.
package xla

import (
	"errors"
	"fmt"
	"math"
	"runtime"
	"runtime/debug"

	"github.com/gomlx/gomlx/backends"
	"github.com/gomlx/gomlx/backends/simplego"
	"github.com/gomlx/gomlx/pkg/core/dtypes"

	"github.com/firstpassage/fpa/quant"
	"github.com/firstpassage/fpa/runtime/model"
)

// Options configure an engine.
type Options struct {
	Chunk int // tokens fed at a time in prefill, at most 512; 0: 512

	// TensorParallel is the number of devices that the model is split over, each with
	// a share of the heads, of their cache and of the columns of the matrices.
	// DataParallel is the number of devices that share the sequences of a batch, each
	// with the whole model. 0 is 1; one of the two must be 1.
	TensorParallel, DataParallel int

	// Packed keeps quantised matrices (of the types Q8_0, Q4_0 and Q4_1, on one device)
	// as they are, and unpacks them in each use: less memory and less to read, more to
	// compute. Without it they are widened once.
	Packed bool
}

// DefaultChunk is the number of tokens that prefill feeds at a time.
const DefaultChunk = 512

// Engine runs one model; it is an engine.Engine and an engine.Batcher. One pass runs
// at a time, of one session or of several.
type Engine struct {
	model    *model.Model
	backend  backends.Backend
	memory   memory
	mesh     *mesh // nil: one device
	chunk    int
	packed   bool
	weights  map[string]*array
	programs map[programKey]*program
	stats    Stats
	bound    map[quant.DType][]float32
	closed   bool
}

// Stats says what an engine did besides running.
type Stats struct {
	Compilations   int
	CompileSeconds float64
	WeightBytes    int64 // on the device; on each device, of a model that is split
}

// memory says what is special about a device's.
type memory struct {
	shared bool // the host can write to it
	half   bool // numbers of half precision are computed with as they are
}

// newEngine uploads a model to a backend, which the engine then owns.
func newEngine(m *model.Model, b backends.Backend, mem memory, o Options) (*Engine, error) {
	if o.Chunk == 0 {
		o.Chunk = DefaultChunk
	}
	if o.Chunk < 1 {
		b.Finalize()
		return nil, fmt.Errorf("a batch of %d tokens, expected at least 1", o.Chunk)
	}
	devices, err := newMesh(m, b, o)
	if err != nil {
		b.Finalize()
		return nil, err
	}
	e := &Engine{
		mesh:  devices,
		model: m, backend: b, memory: mem, chunk: min(o.Chunk, DefaultChunk), packed: o.Packed,
		weights: make(map[string]*array), programs: make(map[programKey]*program), bound: make(map[quant.DType][]float32),
	}
	if err := try(e.upload); err != nil {
		e.Close()
		return nil, err
	}
	return e, nil
}

// Threads is the number of threads that the engine uses on the processor, which XLA
// decides by itself.
func (e *Engine) Threads() int {
	if !e.memory.half && !e.pureGo() { // which only processors are slow at
		return runtime.NumCPU()
	}
	return 1
}

// pureGo says whether the engine runs on gomlx's pure-Go backend.
func (e *Engine) pureGo() bool {
	_, ok := e.backend.(*simplego.Backend)
	return ok
}

// Description names the backend and its devices.
func (e *Engine) Description() string { return e.backend.Description() }

// Stats says what the engine did so far.
func (e *Engine) Stats() Stats { return e.stats }

// Close ends the engine and frees what it has on the device.
func (e *Engine) Close() {
	if e.closed {
		return
	}
	e.closed = true
	// Nothing can be done about an error here.
	_ = try(func() error {
		for _, p := range e.programs {
			p.graph.Finalize()
		}
		for _, w := range e.weights {
			w.free()
		}
		e.backend.Finalize()
		return nil
	})
}

// try runs f and returns a panic of gomlx in it as an error. Weights are read from
// a mapped file; a memory fault there becomes an error too.
func try(f func() error) (err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		switch r := recover().(type) {
		case nil:
		case interface{ Addr() uintptr }:
			err = fmt.Errorf("the model file could not be read at address %#x: it was changed or cut short while it was in use; load it again", r.Addr())
		case error:
			err = fmt.Errorf("gomlx: %w", r)
		default:
			err = fmt.Errorf("gomlx: %v", r)
		}
	}()
	return f()
}

// cacheType checks that K and V can be of a type, and says how they are stored:
// on a processor in float32, whatever they are rounded to.
func (e *Engine) cacheType(t quant.DType) (dtypes.DType, error) {
	if t == quant.F16 && e.pureGo() {
		return dtypes.InvalidDType, errors.New("cache type f16 is not supported by gomlx's Go backend, which cannot round to it; use f32 (--cache-type f32)")
	}
	switch {
	case t == quant.F32, t == quant.Q8_0, t == quant.F16 && !e.memory.half:
		return dtypes.Float32, nil
	case t == quant.F16:
		return dtypes.Float16, nil
	}
	return dtypes.InvalidDType, fmt.Errorf("cache type %s is not supported by this engine, expected f16, q8_0 or f32", t)
}

var posInf = float32(math.Inf(1))
