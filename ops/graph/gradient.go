package graph

import (
	"github.com/gomlx/gomlx/pkg/core/dtypes"
	gx "github.com/gomlx/gomlx/pkg/core/graph"
	"github.com/gomlx/gomlx/pkg/core/shapes"
)

// withGradient returns value, and lets vjp turn the gradient v that arrives at
// it into those of the inputs, each of its input's shape. The graph behind value
// plays no part in the gradient.
//
// gomlx lets the gradient be set of nodes that hand on their only input. So the
// result is such a node, which keeps what vjp makes of v, and each input passes
// through one, which picks its part. The two are joined by a choice that never
// takes the input: gomlx goes backwards from the later node to the earlier one,
// and a compiler removes the choice.
func withGradient(value *gx.Node, vjp func(v *gx.Node) []*gx.Node, inputs ...*gx.Node) *gx.Node {
	g, dtype := value.Graph(), value.DType()
	value = gx.StopGradient(value)
	never := gx.Const(g, false)
	var gradients []*gx.Node
	for i, x := range inputs {
		x = gx.IdentityWithCustomGradient(x, func(_, _ *gx.Node) *gx.Node { return gradients[i] })
		first := gx.Gather(gx.Reshape(x, x.Shape().Size()), gx.Zeros(g, shapes.Make(dtypes.Int32, 1)))
		first = gx.ConvertDType(gx.Reshape(first), dtype)
		value = gx.Add(value, gx.Where(never, first, gx.ScalarZero(g, dtype)))
	}
	return gx.IdentityWithCustomGradient(value, func(_, v *gx.Node) *gx.Node {
		gradients = vjp(v)
		return v
	})
}

// product returns the matrix products of a, [B, H, M, K], and b, [B, H, K, N],
// or if transposed, [B, H, N, K]. gomlx's own gradient of it multiplies element
// by element and sums, over all of [B, H, M, N, K].
func product(a, b *gx.Node, transposed bool) *gx.Node {
	axis := 2
	if transposed {
		axis = 3
	}
	y := contract(gx.StopGradient(a), 3, gx.StopGradient(b), axis)
	return withGradient(y, func(v *gx.Node) []*gx.Node {
		if transposed {
			return []*gx.Node{contract(v, 3, b, 2), contract(v, 2, a, 2)}
		}
		return []*gx.Node{contract(v, 3, b, 3), contract(a, 2, v, 2)}
	}, a, b)
}

// contract sums the products of a and b, [B, H, ., .], along one axis of each.
func contract(a *gx.Node, axisA int, b *gx.Node, axisB int) *gx.Node {
	return gx.DotGeneral(a, []int{axisA}, []int{0, 1}, b, []int{axisB}, []int{0, 1})
}
