package onnxgo

import (
	"fmt"
	"math"
	"slices"

	"github.com/gomlx/gomlx/pkg/core/dtypes"
	gx "github.com/gomlx/gomlx/pkg/core/graph"
	"github.com/gomlx/gomlx/pkg/core/shapes"

	"github.com/firstpassage/fpa/format/onnx"
)

// operator is one that is known here.
type operator struct {
	min, max int // number of inputs, the first min of which are needed; max < 0: any
	// live operators are not computed while the graph is built: they have nested
	// graphs, nothing to compute, or far larger values within than their results.
	live bool
	run  func(c *call) []*value
}

func (o operator) arity() string {
	switch {
	case o.max < 0:
		return fmt.Sprintf("%d or more", o.min)
	case o.max == o.min:
		return fmt.Sprint(o.min)
	}
	return fmt.Sprintf("%d to %d", o.min, o.max)
}

// operators are all that are known. Their meaning is that of
// https://onnx.ai/onnx/operators/.
var operators map[name]operator

func init() {
	operators = map[name]operator{
		{op: "Constant"}:        {run: constant, live: true},
		{op: "ConstantOfShape"}: {min: 1, max: 1, run: constantOfShape},
		{op: "If"}:              {min: 1, max: 1, run: ifElse, live: true},
		{op: "Loop"}:            {min: 0, max: -1, run: loop, live: true},
		{op: "Scan"}:            {min: 1, max: -1, run: scan, live: true},
		{op: "Shape"}:           {min: 1, max: 1, run: shapeOf, live: true},
		{op: "Size"}:            {min: 1, max: 1, run: sizeOf, live: true},
		{op: "Dropout"}:         {min: 1, max: 3, run: dropout, live: true},
		{op: "Identity"}:        {min: 1, max: 1, run: identity, live: true},
		{op: "Split"}:           {min: 1, max: 2, run: split},

		{op: "LayerNormalization"}:                 {min: 2, max: 3, run: layerNorm},
		{op: "Attention"}:                          {min: 3, max: 6, run: attention, live: true},
		{firstPassageDomain, firstPassageName, ""}: {min: 6, max: 10, run: firstPassage, live: true},
	}
	one := func(min, max int, f func(c *call) *gx.Node, names ...string) {
		for _, n := range names {
			operators[name{op: n}] = operator{min: min, max: max, run: func(c *call) []*value { return []*value{c.value(f(c))} }}
		}
	}
	unary := func(f func(x *gx.Node) *gx.Node, n string) {
		one(1, 1, func(c *call) *gx.Node { return f(c.x(0)) }, n)
	}
	for n, f := range map[string]func(x *gx.Node) *gx.Node{
		"Abs": gx.Abs, "Neg": gx.Neg, "Sign": gx.Sign, "Floor": gx.Floor, "Ceil": gx.Ceil, "Round": round,
		"Sqrt": gx.Sqrt, "Exp": gx.Exp, "Log": gx.Log, "Sin": gx.Sin, "Cos": gx.Cos, "Erf": gx.Erf,
		"Tanh": gx.Tanh, "Sigmoid": gx.Logistic, "Reciprocal": reciprocal, "Softplus": softplus,
		"Relu": relu, "Not": gx.LogicalNot, "IsNaN": gx.IsNaN,
		"Mish":     func(x *gx.Node) *gx.Node { return gx.Mul(x, gx.Tanh(softplus(x))) },
		"Softsign": func(x *gx.Node) *gx.Node { return gx.Div(x, gx.AddScalar(gx.Abs(x), 1.0)) },
	} {
		unary(f, n)
	}
	binary := func(f func(a, b *gx.Node) *gx.Node, names ...string) {
		one(2, 2, func(c *call) *gx.Node {
			x := together(c.x(0), c.x(1))
			return f(x[0], x[1])
		}, names...)
	}
	for n, f := range map[string]func(a, b *gx.Node) *gx.Node{
		"Add": gx.Add, "Sub": gx.Sub, "Mul": gx.Mul, "Div": gx.Div, "And": gx.LogicalAnd, "Or": gx.LogicalOr, "Xor": gx.LogicalXor,
		"Equal": gx.Equal, "Less": gx.LessThan, "LessOrEqual": gx.LessOrEqual, "Greater": gx.GreaterThan, "GreaterOrEqual": gx.GreaterOrEqual,
		"Pow":   func(a, b *gx.Node) *gx.Node { return gx.Pow(a, gx.ConvertDType(b, a.DType())) },
		"PRelu": func(x, slope *gx.Node) *gx.Node { return gx.Where(negative(x), gx.Mul(x, slope), x) },
	} {
		binary(f, n)
	}
	fold := func(f func(a, b *gx.Node) *gx.Node, n string) {
		one(1, -1, func(c *call) *gx.Node { return variadic(c, f) }, n)
	}
	fold(gx.Add, "Sum")
	fold(gx.Max, "Max")
	fold(gx.Min, "Min")
	one(1, -1, func(c *call) *gx.Node { return gx.DivScalar(variadic(c, gx.Add), len(c.in)) }, "Mean")

	one(1, 3, clip, "Clip")
	one(2, 2, mod, "Mod")
	one(1, 1, isInf, "IsInf")
	one(1, 1, leaky, "LeakyRelu")
	one(1, 1, elu, "Elu")
	one(1, 1, hardSigmoid, "HardSigmoid")
	one(1, 1, gelu, "Gelu")
	one(1, 1, castTo, "Cast")
	one(2, 2, func(c *call) *gx.Node { return cast(c.x(0), c.shape(1).DType) }, "CastLike")
	one(3, 3, where, "Where")
	one(2, 2, func(c *call) *gx.Node { return matMul(c.x(0), c.x(1)) }, "MatMul")
	one(2, 3, gemm, "Gemm")
	one(1, 1, softmax, "Softmax", "LogSoftmax")
	one(2, 3, rmsNorm, "RMSNormalization")
	one(5, 5, batchNorm, "BatchNormalization")
	one(2, 3, conv, "Conv")
	one(1, 1, pool, "MaxPool", "AveragePool")
	for _, n := range []string{"Conv", "MaxPool", "AveragePool"} {
		o := operators[name{op: n}]
		o.live = true
		operators[name{op: n}] = o
	}
	one(1, 1, globalPool, "GlobalAveragePool", "GlobalMaxPool")
	for n, f := range map[string]func(x *gx.Node, axes []int) *gx.Node{
		"ReduceSum":  func(x *gx.Node, axes []int) *gx.Node { return gx.ReduceSum(x, axes...) },
		"ReduceMean": func(x *gx.Node, axes []int) *gx.Node { return gx.ReduceMean(x, axes...) },
		"ReduceMax":  func(x *gx.Node, axes []int) *gx.Node { return gx.ReduceMax(x, axes...) },
		"ReduceMin":  func(x *gx.Node, axes []int) *gx.Node { return gx.ReduceMin(x, axes...) },
		"ReduceProd": func(x *gx.Node, axes []int) *gx.Node { return gx.ReduceMultiply(x, axes...) },
		"ReduceL1":   func(x *gx.Node, axes []int) *gx.Node { return gx.ReduceSum(gx.Abs(x), axes...) },
		"ReduceL2":   func(x *gx.Node, axes []int) *gx.Node { return gx.Sqrt(gx.ReduceSum(gx.Square(x), axes...)) },
		"ReduceSumSquare": func(x *gx.Node, axes []int) *gx.Node {
			return gx.ReduceSum(gx.Square(x), axes...)
		},
	} {
		one(1, 2, func(c *call) *gx.Node { return reduce(c, f) }, n)
	}
	one(1, 1, argMax, "ArgMax", "ArgMin")
	one(2, 2, cumSum, "CumSum")

	one(2, 2, reshape, "Reshape")
	one(1, 1, transpose, "Transpose")
	one(1, -1, concat, "Concat")
	one(1, 5, slice, "Slice")
	one(1, 2, squeeze, "Squeeze")
	one(1, 2, unsqueeze, "Unsqueeze")
	one(1, 1, flatten, "Flatten")
	one(2, 2, expand, "Expand")
	one(2, 2, tile, "Tile")
	one(1, 4, pad, "Pad")
	one(3, 3, rangeOf, "Range")
	one(1, 2, trilu, "Trilu")
	one(2, 2, gather, "Gather")
	one(2, 2, gatherElements, "GatherElements")
	one(2, 2, gatherND, "GatherND")
	one(3, 3, scatterElements, "ScatterElements")
	one(3, 3, oneHot, "OneHot")
}

// Constants.

func constant(c *call) []*value {
	if t, ok := attribute[*onnx.Tensor](c, "value"); ok {
		return []*value{c.constant(t)}
	}
	var t *onnx.Tensor
	if v, ok := attribute[float32](c, "value_float"); ok {
		t = onnx.FloatTensor("", []float32{v})
		t.Dims = nil
	} else if v, ok := attribute[[]float32](c, "value_floats"); ok {
		t = onnx.FloatTensor("", v)
	} else if v, ok := attribute[int64](c, "value_int"); ok {
		t = onnx.Int64Tensor("", []int64{v})
		t.Dims = nil
	} else if v, ok := attribute[[]int64](c, "value_ints"); ok {
		t = onnx.Int64Tensor("", v)
	} else {
		fail("a constant without value, value_float, value_floats, value_int or value_ints")
	}
	return []*value{c.constant(t)}
}

func constantOfShape(c *call) []*value {
	t, ok := attribute[*onnx.Tensor](c, "value")
	if !ok {
		t = onnx.FloatTensor("", []float32{0})
	}
	v := c.constant(t)
	if v.shape.Size() != 1 {
		fail("the value is %v, expected one element", v.shape)
	}
	dims := c.ints(0)
	checkDims(dims)
	return []*value{c.value(gx.BroadcastToDims(gx.Reshape(c.node(v)), dims...))}
}

// checkDims fails for dimensions that no tensor may have here.
func checkDims(dims []int) {
	size := 1
	for _, d := range dims {
		if d < 0 || d > 0 && size > maxElements/d {
			fail("the dimensions %v are no possible shape", dims)
		}
		size *= max(d, 1)
	}
}

func shapeOf(c *call) []*value {
	dims := c.shape(0).Dimensions
	bound := func(name string, otherwise int) int {
		v := c.integer(name, otherwise)
		if v < 0 {
			v += len(dims)
		}
		return min(max(v, 0), len(dims))
	}
	from, to := bound("start", 0), bound("end", len(dims))
	var out []int64
	for i := from; i < to; i++ {
		out = append(out, int64(dims[i]))
	}
	return []*value{c.constant(onnx.Int64Tensor("", out))}
}

func sizeOf(c *call) []*value {
	t := onnx.Int64Tensor("", []int64{int64(c.shape(0).Size())})
	t.Dims = nil
	return []*value{c.constant(t)}
}

func identity(c *call) []*value { return []*value{c.in[0]} }

// dropout is that of inference: nothing is dropped.
func dropout(c *call) []*value {
	if c.has(2) {
		if on, ok := knownBool(c.in[2]); on || !ok {
			fail("training_mode is not supported")
		}
	}
	out := []*value{c.in[0]}
	if c.wants(1) {
		out = append(out, c.value(spread(gx.Const(c.g, true), c.shape(0).Dimensions)))
	}
	return out
}

// Element by element.

func negative(x *gx.Node) *gx.Node   { return gx.LessThan(x, gx.ZerosLike(x)) }
func relu(x *gx.Node) *gx.Node       { return gx.Max(x, gx.ZerosLike(x)) }
func reciprocal(x *gx.Node) *gx.Node { return gx.Div(gx.OnesLike(x), x) }

// softplus is log(1 + exp(x)), without overflow.
func softplus(x *gx.Node) *gx.Node {
	return gx.Add(relu(x), gx.Log1P(gx.Exp(gx.Neg(gx.Abs(x)))))
}

// round goes to the even one of two integers that are equally near; gomlx's own
// does not on all backends.
func round(x *gx.Node) *gx.Node {
	down := gx.Floor(x)
	part := gx.Sub(x, down)
	half := gx.MulScalar(gx.OnesLike(x), 0.5)
	odd := gx.NotEqual(gx.MulScalar(gx.Floor(gx.MulScalar(down, 0.5)), 2.0), down)
	up := gx.LogicalOr(gx.GreaterThan(part, half), gx.LogicalAnd(gx.Equal(part, half), odd))
	// An infinity has no part after the point.
	return gx.Where(gx.IsFinite(x), gx.Where(up, gx.AddScalar(down, 1.0), down), x)
}

// variadic joins any number of inputs by a function of two.
func variadic(c *call, f func(a, b *gx.Node) *gx.Node) *gx.Node {
	var x []*gx.Node
	for i := range c.in {
		x = append(x, c.x(i))
	}
	x = together(x...)
	y := x[0]
	for _, n := range x[1:] {
		y = f(y, n)
	}
	return y
}

func clip(c *call) *gx.Node {
	x := c.x(0)
	bound := func(i int, name string, f func(a, b *gx.Node) *gx.Node) {
		var b *gx.Node
		if v, ok := attribute[float32](c, name); ok { // before opset 11
			b = gx.Scalar(c.g, x.DType(), v)
		} else if c.has(i) {
			b = c.x(i)
		} else {
			return
		}
		x = f(x, spread(b, x.Shape().Dimensions))
	}
	bound(1, "min", gx.Max)
	bound(2, "max", gx.Min)
	return x
}

func mod(c *call) *gx.Node {
	in := together(c.x(0), c.x(1))
	a, b := in[0], in[1]
	r := gx.Rem(a, b) // of the sign of a
	if c.integer("fmod", 0) == 1 {
		return r
	}
	if !a.DType().IsInt() {
		fail("floats need fmod = 1")
	}
	if a.DType().IsUnsigned() {
		return r
	}
	wrong := gx.LogicalAnd(gx.NotEqual(r, gx.ZerosLike(r)), gx.LogicalXor(negative(r), negative(b)))
	return gx.Where(wrong, gx.Add(r, b), r)
}

func isInf(c *call) *gx.Node {
	x := c.x(0)
	is := func(sign int) *gx.Node {
		return gx.Equal(x, spread(gx.Infinity(c.g, x.DType(), sign), x.Shape().Dimensions))
	}
	up, down := c.integer("detect_positive", 1) != 0, c.integer("detect_negative", 1) != 0
	switch {
	case up && down:
		return gx.LogicalOr(is(1), is(-1))
	case up:
		return is(1)
	case down:
		return is(-1)
	}
	return spread(gx.Const(c.g, false), x.Shape().Dimensions)
}

func leaky(c *call) *gx.Node {
	x := c.x(0)
	return gx.Where(negative(x), gx.MulScalar(x, c.float("alpha", 0.01)), x)
}

func elu(c *call) *gx.Node {
	x := c.x(0)
	below := gx.MulScalar(gx.Expm1(gx.Min(x, gx.ZerosLike(x))), c.float("alpha", 1))
	return gx.Where(negative(x), below, x)
}

func hardSigmoid(c *call) *gx.Node {
	y := gx.AddScalar(gx.MulScalar(c.x(0), c.float("alpha", 0.2)), c.float("beta", 0.5))
	return gx.Min(relu(y), gx.OnesLike(y))
}

func gelu(c *call) *gx.Node {
	x := c.x(0)
	half := gx.MulScalar(x, 0.5)
	switch how := c.text("approximate", "none"); how {
	case "none":
		return gx.Mul(half, gx.AddScalar(gx.Erf(gx.MulScalar(x, math.Sqrt2/2)), 1.0))
	case "tanh":
		cube := gx.MulScalar(gx.Mul(gx.Square(x), x), 0.044715)
		return gx.Mul(half, gx.AddScalar(gx.Tanh(gx.MulScalar(gx.Add(x, cube), math.Sqrt(2/math.Pi))), 1.0))
	default:
		fail("approximate is %q, expected none or tanh", how)
		return nil
	}
}

func castTo(c *call) *gx.Node {
	to, ok := attribute[int64](c, "to")
	if !ok {
		fail("attribute \"to\" is missing")
	}
	if to < 0 || to > math.MaxInt32 {
		fail("attribute to = %d is no element type", to)
	}
	return cast(c.x(0), c.dtype(onnx.DataType(to)))
}

func cast(x *gx.Node, to dtypes.DType) *gx.Node {
	if to == dtypes.Bool && x.DType() != dtypes.Bool {
		return gx.NotEqual(x, gx.ZerosLike(x))
	}
	return gx.ConvertDType(x, to)
}

func where(c *call) *gx.Node {
	x := together(c.x(0), c.x(1), c.x(2))
	return gx.Where(x[0], x[1], x[2])
}

// Matrices.

// matMul is the product of the last two axes, the others broadcast.
func matMul(a, b *gx.Node) *gx.Node {
	if a.Rank() == 0 || b.Rank() == 0 {
		fail("a product of %v and %v, expected matrices", a.Shape(), b.Shape())
	}
	x, y := a.Shape().Dimensions, b.Shape().Dimensions
	inner := y[max(len(y)-2, 0)]
	if x[len(x)-1] != inner {
		fail("a product of %v and %v: %d and %d differ", a.Shape(), b.Shape(), x[len(x)-1], inner)
	}
	if inner > 0 && !a.Shape().IsZeroSize() && !b.Shape().IsZeroSize() {
		return gx.MatMul(a, b)
	}
	// Sums over nothing, or nothing at all.
	dims := common(x[:max(len(x)-2, 0)], y[:max(len(y)-2, 0)])
	if len(x) > 1 {
		dims = append(dims, x[len(x)-2])
	}
	if len(y) > 1 {
		dims = append(dims, y[len(y)-1])
	}
	return gx.Zeros(a.Graph(), shapes.Make(a.DType(), dims...))
}

func gemm(c *call) *gx.Node {
	a, b := c.x(0), c.x(1)
	if a.Rank() != 2 || b.Rank() != 2 {
		fail("a product of %v and %v, expected matrices", a.Shape(), b.Shape())
	}
	turn := func(x *gx.Node, name string) *gx.Node {
		if c.integer(name, 0) != 0 {
			return gx.Transpose(x, 0, 1)
		}
		return x
	}
	y := matMul(turn(a, "transA"), turn(b, "transB"))
	if alpha := c.float("alpha", 1); alpha != 1 {
		y = gx.MulScalar(y, alpha)
	}
	if c.has(2) {
		bias := spread(c.x(2), y.Shape().Dimensions)
		if beta := c.float("beta", 1); beta != 1 {
			bias = gx.MulScalar(bias, beta)
		}
		y = gx.Add(y, bias)
	}
	return y
}

// Along axes.

func softmax(c *call) *gx.Node {
	x := c.x(0)
	f := gx.Softmax
	if c.n.OpType == "LogSoftmax" {
		f = gx.LogSoftmax
	}
	if x.Rank() == 0 || x.Shape().IsZeroSize() {
		fail("a softmax of %v", x.Shape())
	}
	if c.scope.opset() >= 13 {
		return f(x, axis(c.integer("axis", -1), x.Rank()))
	}
	// All axes from that one on count as one.
	a := axis(c.integer("axis", 1), x.Rank()+1)
	var axes []int
	for i := a; i < x.Rank(); i++ {
		axes = append(axes, i)
	}
	if len(axes) == 0 {
		return gx.OnesLike(x)
	}
	return f(x, axes...)
}

// reduceAxes are the axes of a reduction: an attribute, or since opset 13 or 18 an
// input. ok is false where nothing is to be reduced.
func reduceAxes(c *call) (axes []int, ok bool) {
	rank := c.shape(0).Rank()
	list := c.integers("axes")
	if c.has(1) {
		list = c.ints(1)
	}
	if len(list) > 0 {
		return axesOf(list, rank), true
	}
	for i := range rank {
		axes = append(axes, i)
	}
	return axes, c.integer("noop_with_empty_axes", 0) == 0
}

func reduce(c *call, f func(x *gx.Node, axes []int) *gx.Node) *gx.Node {
	x := c.x(0)
	axes, ok := reduceAxes(c)
	if !ok || len(axes) == 0 { // the sum of squares of each element is left
		return f(gx.InsertAxes(x, -1), []int{-1})
	}
	dims := slices.Clone(x.Shape().Dimensions)
	for _, a := range axes {
		if dims[a] == 0 && c.n.OpType != "ReduceSum" {
			fail("a reduction of %v over nothing", x.Shape())
		}
		dims[a] = 1
	}
	var y *gx.Node
	if x.Shape().IsZeroSize() {
		y = gx.Zeros(c.g, shapes.Make(x.DType(), dims...))
	} else {
		y = gx.Reshape(f(x, axes), dims...)
	}
	if c.integer("keepdims", 1) != 0 {
		return y
	}
	var left []int
	for i, d := range dims {
		if !slices.Contains(axes, i) {
			left = append(left, d)
		}
	}
	return gx.Reshape(y, left...)
}

func argMax(c *call) *gx.Node {
	c.refuse("select_last_index", 0)
	x := c.x(0)
	a := axis(c.integer("axis", 0), x.Rank())
	f := gx.ArgMax
	if c.n.OpType == "ArgMin" {
		f = gx.ArgMin
	}
	y := f(x, a, dtypes.Int64)
	if c.integer("keepdims", 1) != 0 {
		y = gx.InsertAxes(y, a)
	}
	return y
}

func cumSum(c *call) *gx.Node {
	x := c.x(0)
	list := c.ints(1)
	if len(list) != 1 {
		fail("the axis is %v, expected one number", c.shape(1))
	}
	a := axis(list[0], x.Rank())
	n := x.Shape().Dimensions[a]
	if n == 0 || x.Shape().IsZeroSize() {
		return x
	}
	turn := func(x *gx.Node) *gx.Node {
		if c.integer("reverse", 0) == 0 {
			return x
		}
		return pick(x, a, n-1, -1, n)
	}
	y := gx.CumSum(turn(x), a)
	if c.integer("exclusive", 0) != 0 {
		first := gx.ZerosLike(gx.SliceAxis(y, a, gx.AxisRange(0, 1)))
		y = first
		if n > 1 {
			y = gx.Concatenate([]*gx.Node{first, gx.SliceAxis(gx.CumSum(turn(x), a), a, gx.AxisRange(0, n-1))}, a)
		}
	}
	return turn(y)
}
