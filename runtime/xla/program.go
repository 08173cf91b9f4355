package xla

import (
	"fmt"
	"time"

	"github.com/gomlx/gomlx/backends"
	"github.com/gomlx/gomlx/pkg/core/dtypes"
	gx "github.com/gomlx/gomlx/pkg/core/graph"
	"github.com/gomlx/gomlx/pkg/core/shapes"

	"github.com/firstpassage/fpa/quant"
)

// programKind says what a compiled graph does.
type programKind int

const (
	decodeChunk  programKind = iota // new tokens through all layers
	inspectChunk                    // the same, and what attention is given comes out
	outputRows                      // logits of some tokens of a chunk
	writeSlots                      // keys and values of a chunk to their slots
	resizeSlots                     // a cache of another capacity
)

func (k programKind) String() string {
	return [...]string{"chunk", "inspection", "output", "write", "resize"}[k]
}

// programKey tells programs apart.
type programKey struct {
	kind  programKind
	lanes int          // sequences
	n     int          // tokens of each
	slots int          // capacity of the cache, or rows of outputRows
	to    int          // capacity after resizeSlots
	typ   dtypes.DType // of the cache
	round quant.DType  // K and V are rounded to that
	watch watch
}

// program is a compiled graph and the weights among its inputs.
type program struct {
	graph   *gx.Graph
	inputs  []backends.Buffer // weights in their places, nil for an input of a call
	donate  []bool
	outputs []pieces // of a mesh, without their buffers
}

// builder makes a program.
type builder struct {
	e       *Engine
	g       *gx.Graph
	key     programKey
	inputs  []backends.Buffer
	weights map[string]*gx.Node
	out     []*gx.Node
	outAxes []axes
}

// program returns a compiled graph, compiling it when it is wanted first.
func (e *Engine) program(key programKey, build func(b *builder)) *program {
	if p := e.programs[key]; p != nil {
		return p
	}
	start := time.Now()
	g := gx.NewGraph(e.backend, fmt.Sprintf("%s of %d times %d, %d slots", key.kind, key.lanes, key.n, key.slots))
	b := &builder{e: e, g: g, key: key, weights: make(map[string]*gx.Node)}
	e.mesh.begin(g)
	build(b)
	outputs := e.mesh.compile(b)
	p := &program{graph: g, inputs: b.inputs, donate: make([]bool, len(b.inputs)), outputs: outputs}
	e.programs[key] = p
	e.stats.Compilations++
	e.stats.CompileSeconds += time.Since(start).Seconds()
	return p
}

// run runs a program on the inputs of a call, in the order in which it declared
// them. The caller owns the outputs.
func (e *Engine) run(p *program, in ...backends.Buffer) ([]backends.Buffer, error) {
	all := append([]backends.Buffer(nil), p.inputs...)
	for i, b := range all {
		if b == nil {
			all[i], in = in[0], in[1:]
		}
	}
	if e.mesh != nil {
		return e.mesh.run(e, p, all)
	}
	var out []backends.Buffer
	for _, t := range p.graph.RunWithBuffers(all, p.donate, 0) {
		b, err := t.DonateBuffer(e.backend, 0)
		if err != nil {
			return nil, err
		}
		out = append(out, b)
	}
	return out, nil
}

// input declares an input of a call, and what its axes are.
func (b *builder) input(name string, a axes, dtype dtypes.DType, dims ...int) *gx.Node {
	b.inputs = append(b.inputs, nil)
	shape := shapes.Make(dtype, dims...)
	return b.parameter(name, b.e.cut(a, shape), shape)
}

// output declares an output, and what its axes are.
func (b *builder) output(x *gx.Node, a axes) {
	b.out, b.outAxes = append(b.out, x), append(b.outAxes, a)
}

// weight is a weight as an input, nil when the model has none of that name.
func (b *builder) weight(name string) *gx.Node {
	if x := b.weights[name]; x != nil {
		return x
	}
	w := b.e.weights[name]
	if w == nil {
		return nil
	}
	b.inputs = append(b.inputs, w.buffer)
	x := b.parameter(name, w.axis, w.shape)
	b.weights[name] = x
	return x
}

// linear is x W^T + bias for x [N, in], in float32.
func (b *builder) linear(x *gx.Node, name string) *gx.Node {
	w := b.weight(name)
	if w == nil {
		w = b.unpack(name)
	}
	y := gx.DotGeneral(gx.ConvertDType(x, w.DType()), []int{1}, nil, w, []int{1}, nil)
	y = gx.ConvertDType(y, dtypes.Float32)
	if bias := b.weight(name + bias); bias != nil {
		y = gx.Add(y, gx.BroadcastToDims(gx.InsertAxes(bias, 0), y.Shape().Dimensions...))
	}
	return y
}

// take copies an output to the host.
func take[T any](e *Engine, b backends.Buffer, to []T) error {
	return e.get(b, to)
}

// view is an output as the host sees it, in the device's own memory where it can,
// or else in buf.
func view[T any](e *Engine, b backends.Buffer, n int, buf *[]T) ([]T, error) {
	if e.memory.shared {
		flat, err := e.backend.BufferData(b)
		if err != nil {
			return nil, err
		}
		return flat.([]T), nil
	}
	if cap(*buf) < n {
		*buf = make([]T, n)
	}
	return (*buf)[:n], e.get(b, (*buf)[:n])
}

// release frees outputs.
func (e *Engine) release(buffers ...backends.Buffer) {
	for _, b := range buffers {
		if p, ok := b.(*pieces); ok {
			e.release(p.on...)
		} else if b != nil {
			_ = e.backend.BufferFinalize(b) // of no consequence: it is gone either way
		}
	}
}
