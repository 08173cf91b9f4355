package graph_test

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/gomlx/gomlx/backends"
	"github.com/gomlx/gomlx/pkg/core/dtypes"
	gx "github.com/gomlx/gomlx/pkg/core/graph"
	"github.com/gomlx/gomlx/pkg/core/tensors"

	"github.com/firstpassage/fpa/ops/graph"
	"github.com/firstpassage/fpa/ops/reference"
)

// benchmark times a graph on each backend, without its compilation; a large one
// not on gomlx's Go backend.
func benchmark(b *testing.B, name string, large bool, build func(in []*gx.Node) []*gx.Node, in func() []*tensors.Tensor) {
	open := map[string]func(testing.TB) backends.Backend{"go": goBackend}
	for name, f := range others {
		open[name] = f
	}
	for backend, f := range open {
		if backend == "go" && large { // its windows take cubic time
			continue
		}
		b.Run(name+"/"+backend, func(b *testing.B) {
			step, args := compile(b, f(b), build), in()
			step(args...)
			for b.Loop() {
				for _, o := range step(args...) {
					o.MustFinalizeAll()
				}
			}
		})
	}
}

// BenchmarkAttention compares the operator with softmax attention written with
// the same operators, forward and with all gradients.
func BenchmarkAttention(b *testing.B) {
	for _, size := range []int{64, 512} {
		x := random(rand.New(rand.NewPCG(31, 32)), shape{1, 12, 12, 12, size, 64, 64}, reference.Exclusive, 0)
		in := func() []*tensors.Tensor { return inputs(x, dtypes.Float32, dtypes.Float32) }
		for name, build := range map[string]func(in []*gx.Node) *gx.Node{
			"softmax": func(in []*gx.Node) *gx.Node {
				return graph.Attention(in[0], in[1], in[2], nil, nil, nil, graph.Options{})
			},
			"fpa": func(in []*gx.Node) *gx.Node {
				return graph.Attention(in[0], in[1], in[2], in[3], in[4], in[5], graph.Options{})
			},
		} {
			benchmark(b, fmt.Sprintf("T%d/%s/forward", size, name), size > 64, func(in []*gx.Node) []*gx.Node { return []*gx.Node{build(in)} }, in)
			benchmark(b, fmt.Sprintf("T%d/%s/gradient", size, name), size > 64, func(in []*gx.Node) []*gx.Node {
				return gx.Gradient(gx.ReduceAllSum(gx.Square(build(in))), in...)
			}, in)
		}
	}
}

// BenchmarkDecode times one token against a cache, with the keys and values
// left where they are and with the cache written anew.
func BenchmarkDecode(b *testing.B) {
	for _, slots := range []int{256, 2048} {
		rng := rand.New(rand.NewPCG(33, 34))
		x := random(rng, shape{1, 12, 12, 12, 1, 64, 64}, reference.Exclusive, 0)
		in := func() []*tensors.Tensor {
			past := random(rng, shape{1, 12, 12, 12, slots, 64, 64}, reference.Exclusive, 0)
			p := inputs(past, dtypes.Float32, dtypes.Float32)
			args := []*tensors.Tensor{p[1], p[2], p[4], p[3]}
			return append(append(args, inputs(x, dtypes.Float32, dtypes.Float32)...), tensor(dtypes.Int32, make([]float64, 12), 1, 12, 1))
		}
		benchmark(b, fmt.Sprintf("S%d/Attend", slots), false, func(in []*gx.Node) []*gx.Node {
			out, next, fresh := cacheOf(in).Attend(in[4], in[5], in[6], in[7], in[8], in[9], graph.Options{})
			return append([]*gx.Node{out, next.Low}, nodesOf(fresh)...)
		}, in)
		benchmark(b, fmt.Sprintf("S%d/Step", slots), false, func(in []*gx.Node) []*gx.Node {
			out, next := cacheOf(in).Step(in[4], in[5], in[6], in[7], in[8], in[9], in[10], graph.Options{})
			return append([]*gx.Node{out}, nodesOf(next)...)
		}, in)
	}
}
