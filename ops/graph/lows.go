package graph

import (
	"math/bits"

	"github.com/gomlx/gomlx/pkg/core/dtypes"
	gx "github.com/gomlx/gomlx/pkg/core/graph"
)

// lows returns low[i,j], the minimum of field over j < t <= i (over
// j <= t <= i if inclusive), +inf where that stretch is empty: [B, H, T, T] of
// field, [B, H, T].
//
// A minimum over any stretch is the smaller one of the minima of two windows
// that overlap, each as long as a power of two. That takes one row of T numbers
// for each power, and a choice for each (i, j) that does not depend on the
// data: XLA makes one loop of it and of what follows.
//
// The gradient of a minimum goes to the first position that attains it.
func lows(field *gx.Node, inclusive bool) *gx.Node {
	g, dims := field.Graph(), square(field)
	values := gx.StopGradient(field)

	// How long the stretch is, and the windows that begin and end with it.
	length := gx.Sub(position(g, dims, 2), position(g, dims, 3))
	starts, ends := values, values
	if inclusive {
		length = gx.AddScalar(length, 1)
	} else {
		starts = shift(starts, 1)
	}
	low := infinity(values, dims...)
	for k := range bits.Len(uint(dims[2])) {
		window := 1 << k
		if k > 0 {
			starts = gx.Min(starts, shift(starts, window/2))
			ends = gx.Min(ends, shift(ends, -window/2))
		}
		both := gx.Min(rowsOf(ends, dims), columnsOf(starts, dims))
		low = gx.Where(gx.GreaterOrEqual(length, gx.Scalar(g, dtypes.Int32, window)), both, low)
	}
	return withGradient(low, func(v *gx.Node) []*gx.Node {
		return []*gx.Node{lowsGradient(values, v, inclusive)}
	}, field)
}

// lowsGradient takes the gradient v of low[i,j], [B, H, T, T], to that of field,
// [B, H, T].
//
// Let b be the nearest position before t whose field is not above that of t,
// and a the nearest after it whose field is below. Then t is the first minimum
// of just those stretches that begin after b, so that t is in them and b is
// not, and end before a. So the gradient of field[t] is the sum of v over a
// rectangle. Along the keys it is a difference of running sums, which are
// short of cancellation since the gradients of one query's logits sum to 0;
// along the queries it is summed as it is.
func lowsGradient(field, v *gx.Node, inclusive bool) *gx.Node {
	g, dims := v.Graph(), v.Shape().Dimensions
	heads, t := dims[0]*dims[1], dims[2]
	row, column := position(g, dims, 2), position(g, dims, 3)
	here, there := rowsOf(field, dims), columnsOf(field, dims)
	none := gx.BroadcastToDims(gx.Scalar(g, dtypes.Int32, -1), dims...)
	end := gx.BroadcastToDims(gx.Scalar(g, dtypes.Int32, t), dims...)
	before := gx.ReduceMax(gx.Where(gx.LogicalAnd(gx.LessThan(column, row), gx.LessOrEqual(there, here)), column, none), 3)
	after := gx.ReduceMin(gx.Where(gx.LogicalAnd(gx.GreaterThan(column, row), gx.LessThan(there, here)), column, end), 3)

	// Running sums over the keys, as rows: sums[j] holds those of keys below
	// j, for each query.
	sums := gx.CumSum(gx.Transpose(v, 2, 3), 2)
	nothing := gx.BroadcastToDims(gx.Scalar(g, v.DType(), 0), dims[0], dims[1], 1, t)
	sums = gx.Concatenate([]*gx.Node{nothing, sums}, 2) // [B, H, T+1, T]

	var first, last *gx.Node // the first key of the rectangle of t; sums up to the last
	if inclusive {
		first = gx.AddScalar(before, 1)
		last = gx.SliceAxis(sums, 2, gx.AxisRangeToEnd(1))
	} else {
		first = gx.MaxScalar(before, 0)
		last = gx.SliceAxis(sums, 2, gx.AxisRangeFromStart(t))
	}
	at := gx.Add(gx.Reshape(first, heads, t, 1), gx.MulScalar(position(g, []int{heads, t, 1}, 0), t+1))
	rest := gx.Reshape(gx.Gather(gx.Reshape(sums, heads*(t+1), t), at), dims...)

	queries := gx.LogicalAnd(gx.GreaterOrEqual(column, row), gx.LessThan(column, rowsOf(after, dims)))
	return gx.ReduceSum(gx.Where(queries, gx.Sub(last, rest), gx.ZerosLike(v)), 3)
}

// square returns the dimensions [B, H, T, T] for x, [B, H, T].
func square(x *gx.Node) []int {
	d := x.Shape().Dimensions
	return []int{d[0], d[1], d[2], d[2]}
}

// rowsOf spreads x, [B, H, T], to dims, [B, H, T, S]: row i holds x[i].
func rowsOf(x *gx.Node, dims []int) *gx.Node {
	return gx.BroadcastToDims(gx.InsertAxes(x, 3), dims...)
}

// columnsOf spreads x, [B, H, S], to dims, [B, H, T, S]: column j holds x[j].
func columnsOf(x *gx.Node, dims []int) *gx.Node {
	return gx.BroadcastToDims(gx.InsertAxes(x, 2), dims...)
}

// shift returns y[t] = x[t+n] along the last axis, +inf beyond the ends.
func shift(x *gx.Node, n int) *gx.Node {
	dims := append([]int{}, x.Shape().Dimensions...)
	axis := len(dims) - 1
	size := dims[axis]
	dims[axis] = min(max(n, -n), size)
	gap := infinity(x, dims...)
	switch {
	case dims[axis] == size:
		return gap
	case n > 0:
		return gx.Concatenate([]*gx.Node{gx.SliceAxis(x, axis, gx.AxisRangeToEnd(n)), gap}, axis)
	default:
		return gx.Concatenate([]*gx.Node{gap, gx.SliceAxis(x, axis, gx.AxisRangeFromStart(size+n))}, axis)
	}
}

// runningMin returns the minimum of x over all positions up to each, along the
// last axis. It has no gradient.
func runningMin(x *gx.Node) *gx.Node {
	x = gx.StopGradient(x)
	dims := x.Shape().Dimensions
	for n := 1; n < dims[len(dims)-1]; n *= 2 {
		x = gx.Min(x, shift(x, -n))
	}
	return x
}
