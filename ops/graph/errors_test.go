package graph_test

import (
	"strings"
	"testing"

	"github.com/gomlx/gomlx/pkg/core/dtypes"
	gx "github.com/gomlx/gomlx/pkg/core/graph"
	"github.com/gomlx/gomlx/pkg/core/shapes"

	"github.com/firstpassage/fpa/ops/graph"
)

// Operands that do not fit together are refused with an error that says which
// and why, through gomlx's executor.
func TestRefuses(t *testing.T) {
	zeros := func(g *gx.Graph, dtype dtypes.DType, dims ...int) *gx.Node {
		return gx.Zeros(g, shapes.Make(dtype, dims...))
	}
	const f32, f64 = dtypes.Float32, dtypes.Float64
	// call builds Attention on good operands that change has had its way with.
	type operands struct {
		query, key, value, field, level, slope *gx.Node
		o                                      graph.Options
	}
	good := func(g *gx.Graph) *operands {
		return &operands{
			query: zeros(g, f32, 2, 4, 3, 5), key: zeros(g, f32, 2, 2, 3, 5), value: zeros(g, f32, 2, 2, 3, 6),
			field: zeros(g, f32, 2, 2, 3), level: zeros(g, f32, 2, 2, 3), slope: zeros(g, f32, 2),
		}
	}
	attention := func(change func(g *gx.Graph, x *operands)) func(g *gx.Graph) *gx.Node {
		return func(g *gx.Graph) *gx.Node {
			x := good(g)
			change(g, x)
			return graph.Attention(x.query, x.key, x.value, x.field, x.level, x.slope, x.o)
		}
	}
	cached := func(change func(g *gx.Graph, c *graph.Cache, x *operands, slots **gx.Node)) func(g *gx.Graph) *gx.Node {
		return func(g *gx.Graph) *gx.Node {
			x, c, slots := good(g), graph.NewCache(g, f32, 2, 2, 2, 7, 5, 6), zeros(g, dtypes.Int32, 2, 2, 3)
			change(g, &c, x, &slots)
			y, _ := c.Step(x.query, x.key, x.value, x.field, x.level, x.slope, slots, x.o)
			return y
		}
	}
	source := func(s graph.Source, offset []int) func(g *gx.Graph) *gx.Node {
		return func(g *gx.Graph) *gx.Node {
			var o *gx.Node
			if offset != nil {
				o = zeros(g, f32, offset...)
			}
			field, _, _ := s.Evaluate(zeros(g, f32, 2, 2, 3), o, nil, nil)
			return field
		}
	}
	for _, c := range []struct {
		name  string
		build func(g *gx.Graph) *gx.Node
		want  string // a part of the error; empty: none
	}{
		{"good operands", attention(func(g *gx.Graph, x *operands) {}), ""},
		{"no query", attention(func(g *gx.Graph, x *operands) { x.query = nil }), "query is nil"},
		{"flat query", attention(func(g *gx.Graph, x *operands) { x.query = zeros(g, f32, 2, 4, 3) }), "query is (Float32)[2 4 3], want [B, Hq, T, D]"},
		{"other head width", attention(func(g *gx.Graph, x *operands) { x.key = zeros(g, f32, 2, 2, 3, 4) }), "key is (Float32)[2 2 3 4], want [B, Hkv, T, D] = [2, any, 3, 5]"},
		{"more keys than values", attention(func(g *gx.Graph, x *operands) { x.value = zeros(g, f32, 2, 1, 3, 6) }), "value is"},
		{"key heads that do not divide", attention(func(g *gx.Graph, x *operands) {
			x.key, x.value = zeros(g, f32, 2, 3, 3, 5), zeros(g, f32, 2, 3, 3, 6)
		}), "4 query heads over 3 key heads"},
		{"whole numbers", attention(func(g *gx.Graph, x *operands) { x.query = zeros(g, dtypes.Int32, 2, 4, 3, 5) }), "want floats"},
		{"field heads that do not divide", attention(func(g *gx.Graph, x *operands) { x.field, x.level = zeros(g, f32, 2, 3, 3), nil }), "4 query heads over 3 field heads"},
		{"half precision field", attention(func(g *gx.Graph, x *operands) { x.field = zeros(g, dtypes.BFloat16, 2, 2, 3) }), "field is of type BFloat16, want Float32"},
		{"level of other heads", attention(func(g *gx.Graph, x *operands) { x.level = zeros(g, f32, 2, 1, 3) }), "level is"},
		{"slope of other heads", attention(func(g *gx.Graph, x *operands) { x.slope = zeros(g, f32, 4) }), "slope is (Float32)[4], want [Hf] = [2]"},
		{"slope without a field", attention(func(g *gx.Graph, x *operands) { x.field, x.level = nil, nil }), "without a field"},
		{"unknown interval", attention(func(g *gx.Graph, x *operands) { x.o.Interval = "closed" }), `unknown interval "closed"`},

		{"good cache", cached(func(g *gx.Graph, c *graph.Cache, x *operands, slots **gx.Node) {}), ""},
		{"cache of other heads", cached(func(g *gx.Graph, c *graph.Cache, x *operands, slots **gx.Node) {
			*c = graph.NewCache(g, f32, 2, 1, 2, 7, 5, 6)
		}), "Cache.Key is"},
		{"cache without lows", cached(func(g *gx.Graph, c *graph.Cache, x *operands, slots **gx.Node) { c.Low = nil }), "Cache.Low is nil"},
		{"cache of two types", cached(func(g *gx.Graph, c *graph.Cache, x *operands, slots **gx.Node) {
			c.Value = gx.ConvertDType(c.Value, f64)
		}), "want one float type"},
		{"cache without a field", cached(func(g *gx.Graph, c *graph.Cache, x *operands, slots **gx.Node) { x.field = nil }), "field is nil"},
		{"too few slots named", cached(func(g *gx.Graph, c *graph.Cache, x *operands, slots **gx.Node) {
			*slots = zeros(g, dtypes.Int32, 2, 2, 1)
		}), "slots is (Int32)[2 2 1], want [B, G, n] = [2, 2, 3]"},
		{"fractional slots", cached(func(g *gx.Graph, c *graph.Cache, x *operands, slots **gx.Node) {
			*slots = zeros(g, f32, 2, 2, 3)
		}), "want integers"},
		{"heads that share no slots", func(g *gx.Graph) *gx.Node { return graph.NewCache(g, f32, 1, 2, 3, 4, 5, 6).Key }, "want one to divide the other"},

		{"absolute level on a walk", source(graph.Source{Kind: graph.WalkField, Activation: graph.Tanh, Level: graph.Absolute}, []int{2, 2, 3}), "origin"},
		{"unknown field kind", source(graph.Source{Kind: "sum", Activation: graph.Tanh, Level: graph.Tied}, nil), `unknown field kind "sum"`},
		{"unknown level kind", source(graph.Source{Kind: graph.WalkField, Activation: graph.Tanh, Level: "high"}, nil), `unknown level kind "high"`},
		{"unknown activation", source(graph.Source{Kind: graph.WalkField, Activation: "relu", Level: graph.Tied}, nil), `unknown activation "relu"`},
		{"offset of a tied level", source(graph.Source{Kind: graph.WalkField, Activation: graph.Tanh, Level: graph.Tied}, []int{2}), "has none"},
		{"no offset", source(graph.Source{Kind: graph.WalkField, Activation: graph.Tanh, Level: graph.Offset}, nil), "offset is nil"},
		{"one offset of three", source(graph.Source{Kind: graph.DirectField, Activation: graph.Tanh, Level: graph.Absolute}, []int{2}), "offset is"},
	} {
		_, err := gx.ExecOnce(goBackend(t), c.build)
		switch {
		case c.want == "" && err != nil:
			t.Errorf("%s: %v", c.name, err)
		case c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), "graph: ")):
			t.Errorf("%s: error %v, want one with %q", c.name, err, c.want)
		}
	}
}
