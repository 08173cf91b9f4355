package onnxgo

import (
	"math"
	"slices"

	"github.com/gomlx/gomlx/backends"
	"github.com/gomlx/gomlx/pkg/core/dtypes"
	gx "github.com/gomlx/gomlx/pkg/core/graph"
	"github.com/gomlx/gomlx/pkg/core/shapes"
	"github.com/gomlx/gomlx/pkg/core/tensors/images"

	"github.com/firstpassage/fpa/ops/graph"
)

// Normalisation.

// from lists the axes from one on.
func from(a, rank int) []int {
	var axes []int
	for i := axis(a, rank); i < rank; i++ {
		axes = append(axes, i)
	}
	return axes
}

// mean is the mean along axes, which stay as 1.
func mean(x *gx.Node, axes []int) *gx.Node {
	dims := slices.Clone(x.Shape().Dimensions)
	for _, a := range axes {
		if dims[a] == 0 {
			fail("a mean of nothing, of %v", x.Shape())
		}
		dims[a] = 1
	}
	return gx.Reshape(gx.ReduceMean(x, axes...), dims...)
}

// wideFloat is x in float32 if it is of half precision.
func wideFloat(x *gx.Node) *gx.Node {
	if x.DType().IsFloat16() {
		return gx.ConvertDType(x, dtypes.Float32)
	}
	return x
}

func mul(a, b *gx.Node) *gx.Node {
	x := together(a, b)
	return gx.Mul(x[0], x[1])
}

func add(a, b *gx.Node) *gx.Node {
	x := together(a, b)
	return gx.Add(x[0], x[1])
}

func layerNorm(c *call) []*value {
	in := c.x(0)
	x := wideFloat(in)
	axes := from(c.integer("axis", -1), x.Rank())
	m := mean(x, axes)
	x = gx.Sub(x, m)
	inverse := gx.Rsqrt(gx.AddScalar(mean(gx.Square(x), axes), c.float("epsilon", 1e-5)))
	y := mul(gx.ConvertDType(gx.Mul(x, inverse), in.DType()), c.x(1))
	if c.has(2) {
		y = add(y, c.x(2))
	}
	return []*value{c.value(y), c.value(m), c.value(inverse)}
}

func rmsNorm(c *call) *gx.Node {
	in := c.x(0)
	x := wideFloat(in)
	axes := from(c.integer("axis", -1), x.Rank())
	x = gx.Mul(x, gx.Rsqrt(gx.AddScalar(mean(gx.Square(x), axes), c.float("epsilon", 1e-5))))
	return mul(gx.ConvertDType(x, in.DType()), c.x(1))
}

func batchNorm(c *call) *gx.Node {
	c.refuse("training_mode", 0)
	x := c.x(0)
	if x.Rank() < 2 {
		fail("%v has no channels", x.Shape())
	}
	dims := slices.Repeat([]int{1}, x.Rank())
	dims[1] = x.Shape().Dimensions[1]
	channels := func(i int) *gx.Node { return gx.ConvertDType(resize(c.x(i), dims), x.DType()) }
	scale := gx.Mul(channels(1), gx.Rsqrt(gx.AddScalar(channels(4), c.float("epsilon", 1e-5))))
	return gx.Add(gx.Mul(gx.Sub(x, channels(3)), scale), channels(2))
}

// Windows.

// window is what convolutions and pools have in common, a number an axis.
type window struct {
	kernel, strides, dilations []int
	pads                       [][2]int
}

// setting is an attribute with a number for each of n axes.
func (c *call) setting(name string, n, otherwise int) []int {
	list := c.integers(name)
	if list == nil {
		return slices.Repeat([]int{otherwise}, n)
	}
	if len(list) != n {
		fail("attribute %q has %d numbers, expected %d", name, len(list), n)
	}
	for _, v := range list {
		if v < 0 || v > math.MaxInt32 {
			fail("attribute %q is %v", name, list)
		}
	}
	return list
}

// newWindow reads the attributes for an input of those sizes. ceil adds to the
// padding at the ends what fills up the last window.
func (c *call) newWindow(sizes, kernel []int) window {
	n := len(sizes)
	w := window{kernel: kernel, strides: c.setting("strides", n, 1), dilations: c.setting("dilations", n, 1), pads: make([][2]int, n)}
	pads := c.setting("pads", 2*n, 0)
	auto := c.text("auto_pad", "NOTSET")
	for i := range n {
		if kernel[i] < 1 || w.strides[i] < 1 || w.dilations[i] < 1 || w.dilations[i] > maxElements/kernel[i] {
			fail("kernel %v, strides %v and dilations %v", kernel, w.strides, w.dilations)
		}
		reach := w.dilations[i]*(kernel[i]-1) + 1
		switch auto {
		case "NOTSET":
			w.pads[i] = [2]int{pads[i], pads[n+i]}
		case "VALID":
		case "SAME_UPPER", "SAME_LOWER":
			outputs := (sizes[i] + w.strides[i] - 1) / w.strides[i]
			all := max((outputs-1)*w.strides[i]+reach-sizes[i], 0)
			w.pads[i] = [2]int{all / 2, all - all/2}
			if auto == "SAME_LOWER" {
				w.pads[i] = [2]int{all - all/2, all / 2}
			}
		default:
			fail("auto_pad is %q", auto)
		}
		room := sizes[i] + w.pads[i][0] + w.pads[i][1] - reach
		if room < 0 || sizes[i] == 0 {
			fail("a window of %d in %d", reach, sizes[i]+w.pads[i][0]+w.pads[i][1])
		}
	}
	return w
}

func conv(c *call) *gx.Node {
	x, k := c.x(0), c.x(1)
	rank := x.Rank()
	if rank < 3 || k.Rank() != rank {
		fail("a convolution of %v with %v, expected [N, C, ...] and [M, C/group, ...]", x.Shape(), k.Shape())
	}
	d, kd := x.Shape().Dimensions, k.Shape().Dimensions
	group := c.integer("group", 1)
	if group < 1 || kd[1]*group != d[1] || kd[0]%group != 0 || x.Shape().IsZeroSize() || k.Shape().IsZeroSize() {
		fail("a convolution of %v with %v in %d groups", x.Shape(), k.Shape(), group)
	}
	w := c.newWindow(d[2:], kd[2:])
	var spatial []int
	for i := 2; i < rank; i++ {
		spatial = append(spatial, i)
	}
	axes := backends.ConvolveAxesConfig{
		InputBatch: 0, InputChannels: 1, InputSpatial: spatial,
		KernelOutputChannels: 0, KernelInputChannels: 1, KernelSpatial: spatial,
		OutputBatch: 0, OutputChannels: 1, OutputSpatial: spatial,
	}
	y := gx.ConvGeneral(x, k, axes, w.strides, w.pads, nil, w.dilations, group, 1)
	if c.has(2) {
		dims := slices.Repeat([]int{1}, rank)
		dims[1] = kd[0]
		y = gx.Add(y, resize(c.x(2), dims))
	}
	return y
}

// pool is MaxPool, its first output, or AveragePool.
func pool(c *call) *gx.Node {
	if c.wants(1) {
		fail("the output Indices is not supported")
	}
	c.refuse("storage_order", 0)
	x := c.x(0)
	if x.Rank() < 3 || x.Shape().IsZeroSize() {
		fail("a pool of %v, expected [N, C, ...]", x.Shape())
	}
	sizes := x.Shape().Dimensions[2:]
	kernel := c.setting("kernel_shape", len(sizes), 0)
	w := c.newWindow(sizes, kernel)
	if slices.Max(w.dilations) > 1 {
		fail("dilations %v are not supported, only 1", w.dilations)
	}
	maximum := c.n.OpType == "MaxPool"
	whole := slices.Clone(w.pads)
	if c.integer("ceil_mode", 0) != 0 {
		// The last window may begin in the input or before, and end beyond.
		for i := range w.pads {
			room := sizes[i] + w.pads[i][0] + w.pads[i][1] - kernel[i]
			more := (w.strides[i] - room%w.strides[i]) % w.strides[i]
			if last := (room + more) / w.strides[i] * w.strides[i]; more > 0 && last < sizes[i]+w.pads[i][0] {
				w.pads[i][1] += more
			}
		}
	}
	sum := func(x *gx.Node, pads [][2]int) *gx.Node {
		return gx.SumPool(x).ChannelsAxis(images.ChannelsFirst).WindowPerAxis(kernel...).StridePerAxis(w.strides...).PaddingPerDim(pads).Done()
	}
	if maximum {
		return gx.MaxPool(x).ChannelsAxis(images.ChannelsFirst).WindowPerAxis(kernel...).StridePerAxis(w.strides...).PaddingPerDim(w.pads).Done()
	}
	// Each sum is divided by the elements that count in it: those of the input, or
	// with count_include_pad those of its padding too.
	ones := gx.OnesLike(x)
	rest := w.pads
	if c.integer("count_include_pad", 0) != 0 {
		for i, p := range whole {
			d := slices.Clone(ones.Shape().Dimensions)
			side := func(n int) *gx.Node {
				d[2+i] = n
				return gx.Ones(c.g, shapes.Make(x.DType(), d...))
			}
			ones = join([]*gx.Node{side(p[0]), ones, side(p[1])}, 2+i)
		}
		rest = make([][2]int, len(whole))
		for i := range rest {
			rest[i][1] = w.pads[i][1] - whole[i][1]
		}
	}
	return gx.Div(sum(x, w.pads), sum(ones, rest))
}

func globalPool(c *call) *gx.Node {
	x := c.x(0)
	if x.Rank() < 3 || x.Shape().IsZeroSize() {
		fail("a pool of %v, expected [N, C, ...]", x.Shape())
	}
	axes := from(2, x.Rank())
	if c.n.OpType == "GlobalAveragePool" {
		return mean(x, axes)
	}
	dims := slices.Repeat([]int{1}, x.Rank())
	copy(dims, x.Shape().Dimensions[:2])
	return gx.Reshape(gx.ReduceMax(x, axes...), dims...)
}

// Attention.

// attention is the standard's operator of that name, without its fourth output.
func attention(c *call) []*value {
	if c.wants(3) {
		fail("the output qk_matmul_output is not supported")
	}
	heads := func(i int, name string) *gx.Node { // [B, heads, T, D]
		x := c.x(i)
		switch x.Rank() {
		case 4:
			return x
		case 3:
			d, n := x.Shape().Dimensions, c.integer(name, 0)
			if n < 1 || d[2]%n != 0 {
				fail("%v in %d heads (%s)", x.Shape(), n, name)
			}
			return permute(gx.Reshape(x, d[0], d[1], n, d[2]/n), []int{0, 2, 1, 3})
		}
		fail("input %d is %v, expected 3 or 4 dimensions", i, x.Shape())
		return nil
	}
	q, k, v := heads(0, "q_num_heads"), heads(1, "kv_num_heads"), heads(2, "kv_num_heads")
	past := 0
	if c.has(4) != c.has(5) {
		fail("one of past_key and past_value is missing")
	}
	if c.has(4) {
		if c.shape(4).Rank() != 4 {
			fail("past_key is %v, expected 4 dimensions", c.shape(4))
		}
		past = c.shape(4).Dimensions[2]
		k, v = join([]*gx.Node{c.x(4), k}, 2), join([]*gx.Node{c.x(5), v}, 2)
	}
	present := []*gx.Node{k, v}
	qd, kd, vd := q.Shape().Dimensions, k.Shape().Dimensions, v.Shape().Dimensions
	b, hq, t, s := qd[0], qd[1], qd[2], kd[2]
	hkv := kd[1]
	if kd[0] != b || vd[0] != b || vd[1] != hkv || vd[2] != s || kd[3] != qd[3] || hkv < 1 || hq%hkv != 0 || s == 0 || q.Shape().IsZeroSize() {
		fail("queries %v, keys %v and values %v do not fit together", q.Shape(), k.Shape(), v.Shape())
	}
	q, k, v = wideFloat(q), wideFloat(k), wideFloat(v)

	scores := gx.MatMul(gx.Reshape(q, b, hkv, hq/hkv*t, qd[3]), gx.Transpose(k, 2, 3))
	scores = gx.Reshape(gx.MulScalar(scores, c.float("scale", 1/math.Sqrt(float64(qd[3])))), b, hq, t, s)
	dims := scores.Shape().Dimensions
	// The order of softcap and mask is that of opset 24; without a cap it does not
	// matter.
	if cap := c.float("softcap", 0); cap != 0 {
		scores = gx.MulScalar(gx.Tanh(gx.DivScalar(scores, cap)), cap)
	}
	lowest := spread(gx.Infinity(c.g, scores.DType(), -1), dims)
	if c.has(3) {
		mask := c.x(3)
		if r := mask.Rank(); r < 2 || mask.Shape().Dimensions[r-1] != s {
			fail("attn_mask is %v, expected %d columns", mask.Shape(), s)
		}
		if mask = spread(mask, common(mask.Shape().Dimensions, dims)); mask.DType() == dtypes.Bool {
			scores = gx.Where(mask, scores, lowest)
		} else {
			scores = gx.Add(scores, gx.ConvertDType(mask, scores.DType()))
		}
	}
	if c.integer("is_causal", 0) != 0 {
		at := shapes.Make(dtypes.Int32, t, s)
		seen := gx.LessOrEqual(gx.Iota(c.g, at, 1), gx.AddScalar(gx.Iota(c.g, at, 0), past))
		scores = gx.Where(spread(seen, dims), scores, lowest)
	}
	y := gx.MatMul(gx.Reshape(gx.Softmax(scores, 3), b, hkv, hq/hkv*t, s), v)
	y = gx.ConvertDType(gx.Reshape(y, b, hq, t, vd[3]), c.shape(0).DType)
	if c.shape(0).Rank() == 3 {
		y = gx.Reshape(permute(y, []int{0, 2, 1, 3}), b, t, hq*vd[3])
	}
	return []*value{c.value(y), c.value(present[0]), c.value(present[1])}
}

// The operator of this project.
const (
	firstPassageDomain = "ai.firstpassage"
	firstPassageName   = "FirstPassageAttention"
)

// firstPassage maps the operator to package graph; a function body that a model
// may have for it is not looked at. Slots of the past come out first, with their
// lows as of the last new position, and the new positions behind them.
func firstPassage(c *call) []*value {
	o := graph.Options{Scale: c.float("scale", 0), Interval: graph.Interval(c.text("interval", ""))}
	q, k, v, field, level, slope := c.x(0), c.x(1), c.x(2), c.x(3), c.x(4), c.x(5)
	given := 0
	for i := 6; i < 10; i++ {
		if c.has(i) {
			given++
		}
	}
	if given != 0 && given != 4 {
		fail("%d of the four past inputs, expected all or none", given)
	}
	for i, n := range []*gx.Node{q, k, v, field, level} {
		if want := 4 - i/3; n.Rank() != want {
			fail("input %d is %v, expected %d dimensions", i, n.Shape(), want)
		}
		if n.Shape().IsZeroSize() {
			fail("input %d is %v, expected one position or more", i, n.Shape())
		}
	}
	kd, fd := k.Shape().Dimensions, field.Shape().Dimensions
	var past graph.Cache
	hasPast := given == 4
	if hasPast {
		past = graph.Cache{Key: c.x(6), Value: c.x(7), Level: c.x(8), Low: c.x(9)}
		if l := past.Level.Shape(); l.IsZeroSize() { // nothing yet
			if k := past.Key.Shape(); l.Rank() != 3 || l.Dimensions[2] != 0 || k.Rank() != 4 || k.Dimensions[2] != 0 {
				fail("past_key %v and past_level %v do not fit together", k, l)
			}
			hasPast = false
		}
	}
	if !hasPast {
		if !c.wants(1) && !c.wants(2) && !c.wants(3) && !c.wants(4) {
			return []*value{c.value(graph.Attention(q, k, v, field, level, slope, o))}
		}
		past = graph.NewCache(c.g, k.DType(), kd[0], kd[1], fd[1], 1, kd[3], v.Shape().Dimensions[3])
	}
	y, next, fresh := past.Attend(q, k, v, field, level, slope, o)
	empty := spread(gx.Infinity(c.g, level.DType(), 1), fresh.Level.Shape().Dimensions)
	fresh.Low = gx.Where(gx.Equal(fresh.Level, empty), empty, fresh.Low)
	if !hasPast {
		return []*value{c.value(y), c.value(fresh.Key), c.value(fresh.Value), c.value(fresh.Level), c.value(fresh.Low)}
	}
	empty = spread(gx.Infinity(c.g, level.DType(), 1), next.Level.Shape().Dimensions)
	next.Low = gx.Where(gx.Equal(next.Level, empty), empty, next.Low)
	both := func(a, b *gx.Node) *value { return c.value(join([]*gx.Node{a, b}, 2)) }
	return []*value{c.value(y), both(next.Key, fresh.Key), both(next.Value, fresh.Value), both(next.Level, fresh.Level), both(next.Low, fresh.Low)}
}
