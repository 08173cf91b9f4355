package graph_test

import (
	"fmt"
	"math/rand/v2"

	"github.com/gomlx/gomlx/backends"
	_ "github.com/gomlx/gomlx/backends/simplego" // or .../backends/default, with XLA
	gx "github.com/gomlx/gomlx/pkg/core/graph"
	"github.com/gomlx/gomlx/pkg/core/shapes"
	"github.com/gomlx/gomlx/pkg/core/tensors"
	"github.com/gomlx/gomlx/pkg/ml/context"
	"github.com/gomlx/gomlx/pkg/ml/layers"
	"github.com/gomlx/gomlx/pkg/ml/train"
	"github.com/gomlx/gomlx/pkg/ml/train/losses"
	"github.com/gomlx/gomlx/pkg/ml/train/optimizers"

	"github.com/firstpassage/fpa/ops/graph"
)

// layer is attention without positions: what a head sees of the past is for its
// field to say. x is [B, T, width], and so is the result.
func layer(ctx *context.Context, x *gx.Node, heads, dim int) *gx.Node {
	dims := x.Shape().Dimensions
	split := func(name string) *gx.Node { // [B, heads, T, dim]
		return gx.Transpose(layers.Dense(ctx.In(name), x, false, heads, dim), 1, 2)
	}
	scalar := func(name string) *gx.Node { // [B, heads, T]
		return gx.Transpose(layers.Dense(ctx.In(name), x, true, heads), 1, 2)
	}
	walk := graph.Source{Kind: graph.WalkField, Activation: graph.Tanh, Level: graph.Relative}
	field, level, _ := walk.Evaluate(scalar("field"), scalar("level"), nil, nil)
	// Positive whatever is learned, and 1 at the start.
	slope := gx.Exp(ctx.VariableWithShape("log_slope", shapes.Make(x.DType(), heads)).ValueGraph(x.Graph()))
	y := graph.Attention(split("query"), split("key"), split("value"), field, level, slope, graph.Options{})
	y = gx.Reshape(gx.Transpose(y, 1, 2), dims[0], dims[1], heads*dim)
	return layers.Dense(ctx.In("output"), y, false, dims[2])
}

// One head learns to answer with the latest marked value: a mark is where its
// field falls, so that the keys before it die.
func ExampleAttention() {
	backend, err := backends.NewWithConfig("go:ops_sequential") // its parallel mode may wait for ever
	if err != nil {
		fmt.Println(err)
		return
	}
	model := func(ctx *context.Context, _ any, in []*gx.Node) []*gx.Node {
		y := layer(ctx.In("attention"), in[0], 1, 8)
		return []*gx.Node{layers.Dense(ctx.In("answer"), y, true, 1)}
	}
	ctx := context.New()
	ctx.SetRNGStateFromSeed(1)
	trainer := train.NewTrainer(backend, ctx, model, losses.MeanSquaredError, optimizers.Adam().LearningRate(0.02).Done(), nil, nil)

	rng := rand.New(rand.NewPCG(1, 1))
	var first, last float32
	for step := range 60 {
		x, y := make([][][]float32, 16), make([][][]float32, 16)
		for b := range x {
			var latest float32
			for t := range 12 {
				value, mark := float32(rng.NormFloat64()), float32(0)
				if t == 0 || rng.IntN(3) == 0 {
					latest, mark = value, 1
				}
				x[b] = append(x[b], []float32{value, mark, value * mark})
				y[b] = append(y[b], []float32{latest})
			}
		}
		metrics, err := trainer.TrainStep(nil, []*tensors.Tensor{tensors.FromValue(x)}, []*tensors.Tensor{tensors.FromValue(y)})
		if err != nil {
			fmt.Println(err)
			return
		}
		last = tensors.ToScalar[float32](metrics[0])
		if step == 0 {
			first = last
		}
	}
	fmt.Println("the loss fell to less than half:", last < first/2)
	// Output:
	// the loss fell to less than half: true
}
