package onnxgo

import (
	"math"
	"slices"

	"github.com/gomlx/gomlx/pkg/core/dtypes"
	gx "github.com/gomlx/gomlx/pkg/core/graph"
	"github.com/gomlx/gomlx/pkg/core/shapes"
)

// resize is gx.Reshape with the sizes compared first.
func resize(x *gx.Node, dims []int) *gx.Node {
	checkDims(dims)
	if got, want := x.Shape().Size(), shapes.Make(x.DType(), dims...).Size(); got != want {
		fail("%v has %d elements, the dimensions %v take %d", x.Shape(), got, dims, want)
	}
	return gx.Reshape(x, dims...)
}

func reshape(c *call) *gx.Node {
	x := c.x(0)
	dims, old := c.ints(1), x.Shape().Dimensions
	any, rest := -1, 1
	for i := range dims {
		switch {
		case dims[i] == 0 && c.integer("allowzero", 0) == 0:
			if i >= len(old) {
				fail("dimension %d of %v is to be kept", i, x.Shape())
			}
			dims[i] = old[i]
		case dims[i] == -1 && any < 0:
			any = i
			continue
		case dims[i] < 0:
			fail("the new shape is %v", dims)
		}
		if dims[i] > 0 && rest > maxElements/dims[i] {
			fail("the new shape is %v", dims)
		}
		rest *= dims[i]
	}
	if any >= 0 {
		dims[any] = 0
		if rest > 0 {
			dims[any] = x.Shape().Size() / rest
		}
	}
	return resize(x, dims)
}

func transpose(c *call) *gx.Node {
	x := c.x(0)
	perm := c.integers("perm")
	if perm == nil {
		for i := range x.Rank() {
			perm = append(perm, x.Rank()-1-i)
		}
	}
	return permute(x, perm)
}

func permute(x *gx.Node, perm []int) *gx.Node {
	perm = axesOf(perm, x.Rank())
	if len(perm) != x.Rank() {
		fail("%v is transposed by %v", x.Shape(), perm)
	}
	if len(perm) < 2 {
		return x
	}
	return gx.TransposeAllAxes(x, perm...)
}

// moveAxis moves an axis to another place.
func moveAxis(x *gx.Node, from, to int) *gx.Node {
	var perm []int
	for i := range x.Rank() {
		if i != from {
			perm = append(perm, i)
		}
	}
	return permute(x, slices.Insert(perm, to, from))
}

func concat(c *call) *gx.Node {
	a, ok := attribute[int64](c, "axis")
	if !ok {
		a = 1 // before opset 4
	}
	var x []*gx.Node
	for i := range c.in {
		x = append(x, c.x(i))
	}
	return join(x, axis(int(a), x[0].Rank()))
}

// join joins values along an axis. Those without elements are left out.
func join(x []*gx.Node, a int) *gx.Node {
	dims := slices.Clone(x[0].Shape().Dimensions)
	dims[a] = 0
	var some []*gx.Node
	for _, n := range x {
		d := slices.Clone(n.Shape().Dimensions)
		if len(d) != len(dims) || n.DType() != x[0].DType() {
			fail("%v and %v are joined along axis %d", x[0].Shape(), n.Shape(), a)
		}
		dims[a] += d[a]
		d[a] = dims[a]
		if !slices.Equal(d, dims) {
			fail("%v and %v are joined along axis %d", x[0].Shape(), n.Shape(), a)
		}
		if !n.Shape().IsZeroSize() {
			some = append(some, n)
		}
	}
	switch len(some) {
	case 0:
		return gx.Zeros(x[0].Graph(), shapes.Make(x[0].DType(), dims...))
	case 1:
		return some[0]
	}
	return gx.Concatenate(some, a)
}

// pick takes n elements along an axis: first, first+step, ...
func pick(x *gx.Node, a, first, step, n int) *gx.Node {
	if step > 0 {
		last := min(first+step*(n-1)+1, x.Shape().Dimensions[a])
		if n == 0 {
			last = first
		}
		return gx.SliceAxis(x, a, gx.AxisRange(first, last).Stride(step))
	}
	at := gx.Iota(x.Graph(), shapes.Make(dtypes.Int64, n), 0)
	at = gx.AddScalar(gx.MulScalar(at, step), first)
	return take(x, at, a)
}

func slice(c *call) *gx.Node {
	x := c.x(0)
	var starts, ends, axes, steps []int
	if c.has(1) {
		starts, ends = c.ints(1), c.ints(2)
		if c.has(3) {
			axes = c.ints(3)
		}
		if c.has(4) {
			steps = c.ints(4)
		}
	} else { // before opset 10
		starts, ends, axes = c.integers("starts"), c.integers("ends"), c.integers("axes")
	}
	if axes == nil {
		for i := range starts {
			axes = append(axes, i)
		}
	}
	axes = axesOf(axes, x.Rank())
	if steps == nil {
		steps = slices.Repeat([]int{1}, len(starts))
	}
	if len(ends) != len(starts) || len(axes) != len(starts) || len(steps) != len(starts) {
		fail("%d starts, %d ends, %d axes and %d steps", len(starts), len(ends), len(axes), len(steps))
	}
	for i, a := range axes {
		size, step := x.Shape().Dimensions[a], steps[i]
		if step == 0 || step < -math.MaxInt32 {
			fail("step %d", step)
		}
		low, high := 0, size // of what a bound may be
		if step < 0 {
			low, high = -1, size-1
		}
		bound := func(b int) int {
			if b < 0 {
				b = max(b, -size-1) + size
			}
			return min(max(b, low), high)
		}
		from, to := bound(starts[i]), bound(ends[i])
		n := 0
		if step > 0 {
			step = min(step, max(size, 1))
			n = max((to-from+step-1)/step, 0)
		} else {
			n = max((from-to-step-1)/-step, 0)
		}
		switch {
		case size == 0 || n == size && step == 1:
		case n == 0:
			x = gx.SliceAxis(x, a, gx.AxisRange(0, 0))
		default:
			x = pick(x, a, from, step, n)
		}
	}
	return x
}

// listed is a list of integers, which is an input or, in older operator sets, an
// attribute; nil where there is neither.
func (c *call) listed(i int, name string) []int {
	if c.has(i) {
		return c.ints(i)
	}
	return c.integers(name)
}

func squeeze(c *call) *gx.Node {
	x := c.x(0)
	dims := x.Shape().Dimensions
	axes := axesOf(c.listed(1, "axes"), len(dims))
	none := len(axes) == 0
	var left []int
	for i, d := range dims {
		switch {
		case slices.Contains(axes, i) && d != 1:
			fail("axis %d of %v is not 1", i, x.Shape())
		case slices.Contains(axes, i) || none && d == 1:
		default:
			left = append(left, d)
		}
	}
	return gx.Reshape(x, left...)
}

func unsqueeze(c *call) *gx.Node {
	x := c.x(0)
	list := c.listed(1, "axes")
	axes := axesOf(list, x.Rank()+len(list))
	slices.Sort(axes)
	dims := slices.Clone(x.Shape().Dimensions)
	for _, a := range axes {
		dims = slices.Insert(dims, a, 1)
	}
	return gx.Reshape(x, dims...)
}

func flatten(c *call) *gx.Node {
	x := c.x(0)
	a := axis(c.integer("axis", 1), x.Rank()+1)
	rows, columns := 1, 1
	for i, d := range x.Shape().Dimensions {
		if i < a {
			rows *= d
		} else {
			columns *= d
		}
	}
	return gx.Reshape(x, rows, columns)
}

func expand(c *call) *gx.Node {
	dims := c.ints(1)
	checkDims(dims)
	x := c.x(0)
	to := common(x.Shape().Dimensions, dims)
	checkDims(to)
	return spread(x, to)
}

func tile(c *call) *gx.Node {
	x, repeats := c.x(0), c.ints(1)
	dims := x.Shape().Dimensions
	if len(repeats) != len(dims) {
		fail("%d repeats for %v", len(repeats), x.Shape())
	}
	var apart, spreadTo, to []int
	for i, r := range repeats {
		if r < 0 || r > maxElements {
			fail("repeats %v", repeats)
		}
		apart, spreadTo, to = append(apart, 1, dims[i]), append(spreadTo, r, dims[i]), append(to, r*dims[i])
	}
	checkDims(to)
	return gx.Reshape(gx.BroadcastToDims(gx.Reshape(x, apart...), spreadTo...), to...)
}

// pad writes the new rows of each axis before and after it; not every backend
// has a padding of its own.
func pad(c *call) *gx.Node {
	x := c.x(0)
	rank := x.Rank()
	pads := c.listed(1, "pads")
	axes := []int{}
	if c.has(3) {
		axes = axesOf(c.ints(3), rank)
	} else {
		for i := range rank {
			axes = append(axes, i)
		}
	}
	if len(pads) != 2*len(axes) {
		fail("%d pads for %d axes", len(pads), len(axes))
	}
	fill := gx.ScalarZero(c.g, x.DType())
	if c.has(2) {
		fill = gx.ConvertDType(gx.Reshape(c.x(2)), x.DType())
	} else if v, ok := attribute[float32](c, "value"); ok { // before opset 11
		fill = gx.Scalar(c.g, x.DType(), v)
	}
	mode := c.text("mode", "constant")
	for i, a := range axes {
		before, after := pads[i], pads[len(axes)+i]
		size := x.Shape().Dimensions[a]
		if max(before, after) > maxElements || min(before, after) < -size || size+min(before, 0)+min(after, 0) < 0 {
			fail("pads %d and %d for axis %d of %v", before, after, a, x.Shape())
		}
		if before < 0 || after < 0 {
			x = gx.SliceAxis(x, a, gx.AxisRange(max(-before, 0), size-max(-after, 0)))
			before, after, size = max(before, 0), max(after, 0), x.Shape().Dimensions[a]
		}
		edge := func(n int, end bool) *gx.Node {
			dims := slices.Clone(x.Shape().Dimensions)
			dims[a] = n
			checkDims(dims)
			if n == 0 || mode == "constant" {
				return gx.BroadcastToDims(fill, dims...)
			}
			if size == 0 || mode == "reflect" && n >= size {
				fail("mode %s cannot add %d to %d", mode, n, size)
			}
			switch at := 0; mode {
			case "edge":
				if end {
					at = size - 1
				}
				return gx.BroadcastToDims(gx.SliceAxis(x, a, gx.AxisElem(at)), dims...)
			case "reflect":
				if end {
					return pick(x, a, size-2, -1, n)
				}
				return pick(x, a, n, -1, n)
			}
			fail("mode %q, expected constant, edge or reflect", mode)
			return nil
		}
		x = join([]*gx.Node{edge(before, false), x, edge(after, true)}, a)
	}
	return x
}

func rangeOf(c *call) *gx.Node {
	var v [3]float64
	for i := range v {
		if c.in[i].known == nil || c.shape(i).Size() != 1 {
			fail("input %d (%s) depends on values that are known only when the model runs; gomlx needs shapes before", i, c.n.Inputs[i])
		}
		err := c.in[i].known.ConstFlatData(func(flat any) {
			switch f := flat.(type) {
			case []float32:
				v[i] = float64(f[0])
			case []float64:
				v[i] = f[0]
			case []int64:
				v[i] = float64(f[0])
			case []int32:
				v[i] = float64(f[0])
			default:
				fail("a range of %v is not supported", c.shape(i).DType)
			}
		})
		if err != nil {
			fail("%v", err)
		}
	}
	n := math.Max(math.Ceil((v[1]-v[0])/v[2]), 0)
	if !(n <= maxElements) {
		fail("a range from %v to %v in steps of %v", v[0], v[1], v[2])
	}
	at := gx.Iota(c.g, shapes.Make(c.shape(0).DType, int(n)), 0)
	dims := []int{int(n)}
	return gx.Add(gx.Mul(at, spread(gx.Reshape(c.x(2)), dims)), spread(gx.Reshape(c.x(0)), dims))
}

func trilu(c *call) *gx.Node {
	x := c.x(0)
	k := 0
	if c.has(1) {
		list := c.ints(1)
		if len(list) != 1 {
			fail("k is %v, expected one number", c.shape(1))
		}
		k = min(max(list[0], -maxElements), maxElements)
	}
	if x.Rank() < 2 {
		fail("%v has no triangle", x.Shape())
	}
	dims := x.Shape().Dimensions
	at := shapes.Make(dtypes.Int64, dims[len(dims)-2:]...)
	above := gx.Sub(gx.Iota(c.g, at, 1), gx.Iota(c.g, at, 0)) // how far right of the diagonal
	bound := spread(gx.Scalar(c.g, dtypes.Int64, k), at.Dimensions)
	keep := gx.LessOrEqual(above, bound)
	if c.integer("upper", 1) != 0 {
		keep = gx.GreaterOrEqual(above, bound)
	}
	return gx.Where(spread(keep, dims), x, gx.ZerosLike(x))
}

// positive makes indices from the end into indices from the start.
func positive(at *gx.Node, size int) *gx.Node {
	return gx.Where(negative(at), gx.AddScalar(at, size), at)
}

// take gives the elements of x along an axis that at, of any shape, names; the
// axis is replaced by the axes of at.
func take(x, at *gx.Node, a int) *gx.Node {
	d, o := x.Shape().Dimensions, at.Shape().Dimensions
	if x.Shape().IsZeroSize() || at.Shape().IsZeroSize() {
		if d[a] == 0 && !at.Shape().IsZeroSize() {
			fail("elements are taken from %v", x.Shape())
		}
		return gx.Zeros(x.Graph(), shapes.Make(x.DType(), slices.Concat(d[:a], o, d[a+1:])...))
	}
	y := gx.Gather(moveAxis(x, a, 0), gx.InsertAxes(at, -1)) // [o..., d without a]
	var perm []int
	for i := range a {
		perm = append(perm, len(o)+i)
	}
	for i := range o {
		perm = append(perm, i)
	}
	for i := len(o) + a; i < y.Rank(); i++ {
		perm = append(perm, i)
	}
	return permute(y, perm)
}

// checkIndices fails for known indices outside of size. What a backend makes of
// others is its own affair: most take the nearest that there is.
func (c *call) checkIndices(i, size int) {
	if c.in[i].known == nil {
		return
	}
	for _, at := range c.ints(i) {
		if at < -size || at >= size {
			fail("index %d, expected one of %d", at, size)
		}
	}
}

func gather(c *call) *gx.Node {
	x := c.x(0)
	a := axis(c.integer("axis", 0), x.Rank())
	size := x.Shape().Dimensions[a]
	c.checkIndices(1, size)
	return take(x, positive(c.x(1), size), a)
}

// coordinates are the full indices, [dims of at..., rank], of elements that at
// places along one axis.
func coordinates(at *gx.Node, a int) *gx.Node {
	var all []*gx.Node
	for i := range at.Rank() {
		n := at
		if i != a {
			n = gx.Iota(at.Graph(), at.Shape(), i)
		}
		all = append(all, gx.InsertAxes(n, -1))
	}
	return join(all, at.Rank())
}

func gatherElements(c *call) *gx.Node {
	x, at := c.x(0), c.x(1)
	a := axis(c.integer("axis", 0), x.Rank())
	c.checkElements(a)
	c.checkIndices(1, x.Shape().Dimensions[a])
	if at.Shape().IsZeroSize() {
		return gx.Zeros(c.g, shapes.Make(x.DType(), at.Shape().Dimensions...))
	}
	return gx.Gather(x, coordinates(positive(at, x.Shape().Dimensions[a]), a))
}

// checkElements compares the shapes of data and of indices into it.
func (c *call) checkElements(a int) {
	d, o := c.shape(0).Dimensions, c.shape(1).Dimensions
	fits := len(d) == len(o)
	for i := 0; fits && i < len(d); i++ {
		fits = i == a && (d[i] > 0 || o[i] == 0) || o[i] <= d[i]
	}
	if !fits {
		fail("indices %v into %v", c.shape(1), c.shape(0))
	}
}

func scatterElements(c *call) *gx.Node {
	if r := c.text("reduction", "none"); r != "none" {
		fail("reduction %q is not supported, only none", r)
	}
	x, at, updates := c.x(0), c.x(1), c.x(2)
	a := axis(c.integer("axis", 0), x.Rank())
	c.checkElements(a)
	c.checkIndices(1, x.Shape().Dimensions[a])
	if !slices.Equal(at.Shape().Dimensions, updates.Shape().Dimensions) {
		fail("indices %v and updates %v", at.Shape(), updates.Shape())
	}
	if at.Shape().IsZeroSize() {
		return x
	}
	to := coordinates(positive(at, x.Shape().Dimensions[a]), a)
	// Where an element is named twice, the standard leaves open what it becomes.
	none := gx.ZerosLike(x)
	hit := gx.ScatterSum(none, to, gx.OnesLike(updates), false, false)
	return gx.Where(gx.NotEqual(hit, none), gx.ScatterSum(none, to, updates, false, false), x)
}

func gatherND(c *call) *gx.Node {
	x, at := c.x(0), c.x(1)
	batch := c.integer("batch_dims", 0)
	d, o := x.Shape().Dimensions, at.Shape().Dimensions
	k := 0
	if len(o) > 0 {
		k = o[len(o)-1]
	}
	if batch < 0 || batch >= len(o) || k < 1 || batch+k > len(d) || !slices.Equal(d[:batch], o[:batch]) {
		fail("indices %v into %v with batch_dims %d", at.Shape(), x.Shape(), batch)
	}
	dims := slices.Concat(o[:len(o)-1], d[batch+k:])
	if at.Shape().IsZeroSize() || x.Shape().IsZeroSize() {
		if slices.Contains(d[batch:batch+k], 0) && !at.Shape().IsZeroSize() {
			fail("elements are taken from %v", x.Shape())
		}
		return gx.Zeros(c.g, shapes.Make(x.DType(), dims...))
	}
	last := len(o) - 1
	one := shapes.Make(at.DType(), append(slices.Clone(o[:last]), 1)...)
	var parts []*gx.Node
	for i := range batch {
		parts = append(parts, gx.Iota(c.g, one, i))
	}
	for i := range k {
		parts = append(parts, positive(gx.SliceAxis(at, last, gx.AxisRange(i, i+1)), d[batch+i]))
	}
	return gx.Gather(x, join(parts, last))
}

func oneHot(c *call) *gx.Node {
	depth := c.ints(1)
	if len(depth) != 1 || depth[0] < 0 || depth[0] > maxElements || c.shape(2).Size() != 2 {
		fail("depth %v and values %v", depth, c.shape(2))
	}
	at := c.x(0)
	a := axis(c.integer("axis", -1), at.Rank()+1)
	dims := slices.Insert(slices.Clone(at.Shape().Dimensions), a, depth[0])
	checkDims(dims)
	at = spread(gx.InsertAxes(cast(positive(at, depth[0]), dtypes.Int64), a), dims)
	on := gx.Equal(at, gx.Iota(c.g, shapes.Make(dtypes.Int64, dims...), a))
	v := c.x(2)
	value := func(i int) *gx.Node { return spread(gx.Reshape(gx.SliceAxis(v, 0, gx.AxisRange(i, i+1))), dims) }
	return gx.Where(on, value(1), value(0))
}

func split(c *call) []*value {
	x := c.x(0)
	a := axis(c.integer("axis", 0), x.Rank())
	size := x.Shape().Dimensions[a]
	sizes := c.listed(1, "split")
	if sizes == nil {
		// In equal parts, the last of which may be smaller.
		n := c.integer("num_outputs", len(c.n.Outputs))
		if n < 1 || n > size || n > len(c.n.Outputs) {
			fail("%d is split into %d", size, n)
		}
		part := (size + n - 1) / n
		for rest := size; rest > 0; rest -= part {
			sizes = append(sizes, min(part, rest))
		}
	}
	var out []*value
	at := 0
	for _, n := range sizes {
		if n < 0 || n > size-at {
			fail("%d is split into %v", size, sizes)
		}
		out = append(out, c.value(pick(x, a, at, 1, n)))
		at += n
	}
	if at != size {
		fail("%d is split into %v", size, sizes)
	}
	return out
}
