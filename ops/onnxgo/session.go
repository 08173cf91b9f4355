package onnxgo

import (
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/gomlx/gomlx/backends"
	gx "github.com/gomlx/gomlx/pkg/core/graph"
	"github.com/gomlx/gomlx/pkg/core/tensors"
)

// maxCompiled is the number of sets of input shapes whose graphs are kept.
const maxCompiled = 16

// Session runs a program on one backend. It may be used by several goroutines at
// once.
//
// Each new set of input shapes is compiled, which takes far longer than a run;
// the latest few are kept. A text that grows by a token a call is therefore
// compiled at every call, unless its past is kept at a few lengths, filled up by
// slots whose level is +Inf.
type Session struct {
	program *Program
	backend backends.Backend
	weights []any // *tensors.Tensor, in the program's order

	mu       sync.Mutex
	compiled []*compiled // latest last
}

// compiled is a graph for inputs of certain shapes.
type compiled struct {
	key   string
	graph *gx.Graph                  // nil if no output depends on an input
	known map[string]*tensors.Tensor // outputs that are no part of the graph
	order []string                   // of the outputs that are
}

// NewSession loads the program's weights for a backend; nil stands for gomlx's
// pure-Go backend.
func NewSession(b backends.Backend, p *Program) (*Session, error) {
	if b == nil {
		var err error
		if b, err = folder(); err != nil {
			return nil, err
		}
	}
	s := &Session{program: p, backend: b}
	types := b.Capabilities().DTypes
	for _, t := range p.weights {
		dtype, err := typeOf(t.Type)
		if err != nil {
			return nil, err
		}
		w, err := tensorOf(t, substitute(types, dtype))
		if err != nil {
			return nil, fmt.Errorf("onnxgo: initializer %q: %w", t.Name, err)
		}
		s.weights = append(s.weights, w)
	}
	return s, nil
}

// Run computes the outputs for inputs under the names that the program has for
// them. Inputs and outputs may have no elements. On a backend without half
// precision, inputs and outputs that the model has in it are float32.
func (s *Session) Run(inputs map[string]*tensors.Tensor) (out map[string]*tensors.Tensor, err error) {
	defer func() {
		if r := recover(); r != nil {
			out, err = nil, fmt.Errorf("onnxgo: %w", asError(r))
		}
	}()
	names := make([]string, 0, len(inputs))
	for k, t := range inputs {
		if t == nil {
			return nil, fmt.Errorf("onnxgo: input %q is nil", k)
		}
		names = append(names, k)
	}
	slices.Sort(names)
	var key strings.Builder
	args := slices.Clone(s.weights)
	for _, k := range names {
		fmt.Fprintf(&key, "%q %v\n", k, inputs[k].Shape())
		if !inputs[k].Shape().IsZeroSize() {
			args = append(args, inputs[k])
		}
	}
	c := s.compile(key.String(), names, inputs)
	out = make(map[string]*tensors.Tensor)
	for k, t := range c.known {
		if out[k], err = t.LocalClone(); err != nil {
			return nil, err
		}
	}
	if c.graph == nil {
		return out, nil
	}
	for i, t := range c.graph.Run(args...) {
		out[c.order[i]] = t
	}
	return out, nil
}

// compile compiles the graph for inputs of those shapes, or finds it.
func (s *Session) compile(key string, names []string, inputs map[string]*tensors.Tensor) *compiled {
	s.mu.Lock()
	defer s.mu.Unlock()
	if i := slices.IndexFunc(s.compiled, func(c *compiled) bool { return c.key == key }); i >= 0 {
		c := s.compiled[i]
		s.compiled = append(slices.Delete(s.compiled, i, i+1), c)
		return c
	}
	g := gx.NewGraph(s.backend, "onnxgo")
	b := newBuilder(s.program, g)
	weights, given := make(map[string]*gx.Node), make(map[string]*value)
	for i, t := range s.program.weights {
		weights[t.Name] = gx.Parameter(g, "weight "+t.Name, s.weights[i].(*tensors.Tensor).Shape())
	}
	for _, k := range names {
		if shape := inputs[k].Shape(); shape.IsZeroSize() {
			given[k] = knownValue(tensors.FromShape(shape))
		} else {
			given[k] = b.value(gx.Parameter(g, "input "+k, shape))
		}
	}
	c := &compiled{key: key, known: make(map[string]*tensors.Tensor)}
	var out []*gx.Node
	for k, v := range b.call(given, weights) {
		if v.known != nil {
			c.known[k] = v.known
		} else {
			c.order, out = append(c.order, k), append(out, v.node)
		}
	}
	if len(out) > 0 {
		g.Compile(out...)
		c.graph = g
	}
	// An older graph may be running still; it ends with its last use.
	if len(s.compiled) == maxCompiled {
		s.compiled = slices.Delete(s.compiled, 0, 1)
	}
	s.compiled = append(s.compiled, c)
	return c
}
