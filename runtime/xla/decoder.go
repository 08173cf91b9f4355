package xla

import (
	"math"

	"github.com/gomlx/gomlx/pkg/core/dtypes"
	gx "github.com/gomlx/gomlx/pkg/core/graph"
	"github.com/gomlx/gomlx/pkg/core/shapes"

	"github.com/firstpassage/fpa/ops/graph"
	"github.com/firstpassage/fpa/quant"
	"github.com/firstpassage/fpa/runtime/model"
)

// chunkGraph is the whole decoder for up to N new tokens of each of B sequences over
// caches of S slots a head, none at all if S is 0. Rows beyond a sequence's number of tokens are padding:
// they are skipped as keys, and what comes out for them means nothing. L is the
// number of layers, Hf at least 1.
//
// Inputs, in order:
//
//	tokens          [B] int32, how many there are, at least 0
//	x               [B*N, D], their embeddings
//	cos, sin        [B*N, RopeDim/2] each, only with RoPE
//	from            [L, B, Hf] float64, the walks before them, relative to their base
//	last K, last V  [L, B, Hkv*d], [L, B, Hkv*dv], only those that the model shifts
//	level, low      [L, B, Hf, S], of the slots, if there are any
//	level, dropped  [L, B, Hf, S], [L, B, Hkv, S], only of an audit; see seen
//	K and V         of each layer, [B, Hkv, S, d] and [B, Hkv, S, dv]
//
// Outputs: the logits of each sequence's last token, [B, V]; the residual stream
// [B*N, D]; of each layer K and V of the new tokens, [B, Hkv, N, d] and [B, Hkv, N, dv],
// as the cache stores them; field and level [L, B, Hf, N] float64, relative to the same base;
// the last K and V anew; and the outputs of look.
func (b *builder) chunkGraph() {
	m := b.e.model
	lanes, n, s := b.key.lanes, b.key.n, b.key.slots
	fieldHeads := max(1, m.FieldHeads)
	c := &chunk{builder: b}
	tokens := b.input("tokens", byRow, dtypes.Int32, lanes)
	x := b.input("x", byRow, dtypes.Float32, lanes*n, m.Hidden)
	if half := m.RopeDim / 2; half > 0 {
		c.cos = b.input("cos", byRow, dtypes.Float32, lanes*n, half)
		c.sin = b.input("sin", byRow, dtypes.Float32, lanes*n, half)
	}
	from := b.input("from", byLayer, dtypes.Float64, m.Blocks, lanes, fieldHeads)
	var lastK, lastV *gx.Node
	if m.KeyShift {
		lastK = b.input("last K", byLayer, dtypes.Float32, m.Blocks, lanes, m.KVHeads*m.KeyDim)
	}
	if m.ValueShift {
		lastV = b.input("last V", byLayer, dtypes.Float32, m.Blocks, lanes, m.KVHeads*m.ValDim)
	}
	var level, low, allLevel, dropped *gx.Node
	if s > 0 {
		level = b.input("level", byLayer, dtypes.Float32, m.Blocks, lanes, fieldHeads, s)
		low = b.input("low", byLayer, dtypes.Float32, m.Blocks, lanes, fieldHeads, s)
	}
	if b.key.watch.dropped {
		allLevel = b.input("level of all", byLayer, dtypes.Float32, m.Blocks, lanes, fieldHeads, s)
		dropped = b.input("dropped", byLayer, dtypes.Float32, m.Blocks, lanes, m.KVHeads, s)
	}

	position := gx.Iota(b.g, shapes.Make(dtypes.Int32, lanes, n), 1)
	c.skip = gx.GreaterOrEqual(position, gx.BroadcastToDims(gx.InsertAxes(tokens, 1), lanes, n))
	c.none = gx.Equal(tokens, gx.ZerosLike(tokens))
	first := gx.MulScalar(gx.Iota(b.g, shapes.Make(dtypes.Int32, lanes), 0), n)
	c.last = gx.InsertAxes(gx.Add(first, gx.MaxScalar(gx.AddScalar(tokens, -1), 0)), 1)

	var keys, values, fields, levels, lastKs, lastVs []*gx.Node
	for i := range m.Layers {
		c.i, c.at = i, layerName(i)
		layer := func(x *gx.Node) *gx.Node {
			if x == nil {
				return nil
			}
			return gx.Squeeze(gx.SliceAxis(x, 0, gx.AxisElem(i)), 0)
		}
		c.from, c.lastK, c.lastV = layer(from), layer(lastK), layer(lastV)
		c.allLevel, c.dropped = layer(allLevel), layer(dropped)
		cache := graph.Cache{Level: layer(level), Low: layer(low)}
		if s > 0 {
			cache.Key = b.input(c.at+"K", byLane, b.key.typ, lanes, m.KVHeads, s, m.KeyDim)
			cache.Value = b.input(c.at+"V", byLane, b.key.typ, lanes, m.KVHeads, s, m.ValDim)
		}
		x = gx.Add(x, c.attention(x, cache))
		x = gx.Add(x, c.feedForward(x))
		keys, values = append(keys, c.key), append(values, c.value)
		fields, levels = append(fields, c.field), append(levels, c.level)
		if m.KeyShift {
			lastKs = append(lastKs, c.lastK)
		}
		if m.ValueShift {
			lastVs = append(lastVs, c.lastV)
		}
	}
	if b.key.kind == inspectChunk {
		c.outputInspected()
		return
	}
	b.output(c.logits(gx.Gather(x, c.last)), byLane)
	b.output(x, byRow)
	for i := range keys {
		b.output(keys[i], byLane)
		b.output(values[i], byLane)
	}
	for _, list := range [][]*gx.Node{fields, levels, lastKs, lastVs} {
		if list != nil {
			b.output(gx.Stack(list, 0), byLayer)
		}
	}
	c.outputWatched()
}

// chunk is what the layers of one graph share, and what one of them hands on.
type chunk struct {
	*builder
	cos, sin *gx.Node // [B*N, RopeDim/2]
	skip     *gx.Node // [B, N] bool, padding
	last     *gx.Node // [B, 1] int32, rows of the last tokens, or the first where there is none
	none     *gx.Node // [B] bool, that there is none

	i            int
	at           string   // prefix of the layer's weights
	from         *gx.Node // [B, Hf]
	lastK, lastV *gx.Node // [B, Hkv*d], before the layer of the token before the chunk, after it of the last
	key, value   *gx.Node // [B, Hkv, N, d]
	field, level *gx.Node // [B, Hf, N] float64

	seen
}

// attention is the attention part of a layer, in the order that package cpu
// describes: projection, shift, QK-norm, RoPE, field and level, attention, output
// norm, output gate, output projection.
func (c *chunk) attention(x *gx.Node, cache graph.Cache) *gx.Node {
	m, rows := c.e.model, c.rows()
	h := c.rmsNorm(x, c.at+nameAttnNorm, float64(m.NormEps))
	columns := c.project(h, c.at+nameProject)
	q := columns(m.Heads * m.KeyDim)
	k := columns(m.KVHeads * m.KeyDim)
	v := columns(m.KVHeads * m.ValDim)
	var gate *gx.Node
	if m.OutputGate != model.GateNone {
		gate = columns(m.Heads * m.ValDim)
	}
	small := columns
	if c.e.weights[c.at+nameSmall] != nil {
		small = c.project(h, c.at+nameSmall)
	}
	if m.KeyShift {
		k, c.lastK = c.shift(k, small(m.KVHeads), c.lastK)
	}
	if m.ValueShift {
		v, c.lastV = c.shift(v, small(m.KVHeads), c.lastV)
	}
	q = c.rotate(c.heads(q, m.Heads), nameQNorm)
	k = c.rotate(c.heads(k, m.KVHeads), nameKNorm)
	v = c.heads(v, m.KVHeads)
	slope := c.fields(small)

	if m.Scale == 0 {
		q = gx.MulScalar(q, 0) // the operator takes a scale of 0 for its default
	}
	o := graph.Options{Scale: float64(m.Scale), Interval: graph.Interval(m.Interval)}
	in := attended{q: q, k: k, v: v, slope: slope}
	if slope != nil {
		in.field, in.level = gx.ConvertDType(c.field, dtypes.Float32), gx.ConvertDType(c.level, dtypes.Float32)
	}
	c.key, c.value = c.rounded(k), c.rounded(v)
	c.sums = append(c.sums, sum(q), sum(c.key), sum(c.value))
	var out *gx.Node
	var after, fresh graph.Cache
	if cache.Key == nil {
		out = graph.Attention(in.q, c.key, c.value, in.field, in.level, slope, o)
	} else {
		out, after, fresh = cache.Attend(in.q, c.key, c.value, in.field, in.level, slope, o)
	}
	c.look(in, cache, after, fresh, o)
	out = gx.Reshape(gx.TransposeAllAxes(out, 0, 2, 1, 3), rows, m.Heads, m.ValDim)
	if m.OutputNorm {
		out = c.rmsNorm(out, c.at+nameOutputNorm, float64(m.NormEps))
	}
	out = gx.Reshape(out, rows, m.Heads*m.ValDim)
	if gate != nil {
		out = gx.Mul(activate(m.OutputGate, gate), out)
	}
	return c.linear(out, c.at+nameO)
}

// rows is the number of rows of the chunk, B*N.
func (c *chunk) rows() int { return c.builder.key.lanes * c.builder.key.n }

// split hands out the columns of x from the left.
func split(x *gx.Node) func(width int) *gx.Node {
	at := 0
	return func(width int) *gx.Node {
		at += width
		return gx.SliceAxis(x, 1, gx.AxisRange(at-width, at))
	}
}

// heads turns [B*N, heads*d] into [B, heads, N, d].
func (c *chunk) heads(x *gx.Node, heads int) *gx.Node {
	x = gx.Reshape(x, c.builder.key.lanes, c.builder.key.n, heads, -1)
	return gx.TransposeAllAxes(x, 0, 2, 1, 3)
}

// rounded is K or V as the cache stores it.
func (c *chunk) rounded(x *gx.Node) *gx.Node {
	switch c.builder.key.round {
	case quant.F16:
		x = gx.ConvertDType(x, dtypes.Float16)
	case quant.Q8_0:
		x = quantised(x)
	}
	return gx.ConvertDType(x, c.builder.key.typ)
}

// quantised rounds the rows of x, [.., d], to bytes with a scale each, as
// kernels.QuantizeQ8 does, and returns what these mean.
func quantised(x *gx.Node) *gx.Node {
	scale := gx.DivScalar(gx.ReduceAndKeep(gx.Abs(x), gx.ReduceMax, -1), 127)
	scale = gx.BroadcastToDims(scale, x.Shape().Dimensions...)
	zero := gx.Equal(scale, gx.ZerosLike(scale))
	return gx.Mul(gx.Round(gx.Div(x, gx.Where(zero, gx.OnesLike(scale), scale))), scale)
}

// rmsNorm normalises along the last axis; the weight has the dimensions of x but
// the first.
func (c *chunk) rmsNorm(x *gx.Node, weight string, eps float64) *gx.Node {
	return normalised(x, gx.InsertAxes(c.weight(weight), 0), eps)
}

// normalised is x / rms(x) * weight along the last axis; weight broadcasts to x.
func normalised(x, weight *gx.Node, eps float64) *gx.Node {
	mean := gx.ReduceAndKeep(gx.Square(x), gx.ReduceMean, -1)
	x = gx.Mul(x, gx.Rsqrt(gx.AddScalar(mean, eps)))
	return gx.Mul(x, gx.BroadcastToDims(weight, x.Shape().Dimensions...))
}

// shift mixes each head's projection [B*N, heads*d] with that of the token before,
// y_t = a x_{t-1} + (1-a) x_t with a = sigmoid(mix_t). It returns the unshifted
// projections of the last tokens too, [B, heads*d].
func (c *chunk) shift(x, mix, last *gx.Node) (y, newLast *gx.Node) {
	lanes, n := c.builder.key.lanes, c.builder.key.n
	rows, heads, width := c.rows(), c.e.model.KVHeads, x.Shape().Dimensions[1]
	before := gx.InsertAxes(last, 1)
	if n > 1 {
		early := gx.SliceAxis(gx.Reshape(x, lanes, n, width), 1, gx.AxisRange(0, n-1))
		before = gx.Concatenate([]*gx.Node{before, early}, 1)
	}
	dims := []int{rows, heads, width / heads}
	a := gx.BroadcastToDims(gx.InsertAxes(gx.Logistic(mix), 2), dims...)
	now := gx.Reshape(x, dims...)
	y = gx.Add(gx.Mul(a, gx.Reshape(before, dims...)), gx.Mul(gx.OneMinus(a), now))
	newLast = gx.Where(gx.BroadcastToDims(gx.InsertAxes(c.none, 1), lanes, width), last, gx.Gather(x, c.last))
	return gx.Reshape(y, rows, width), newLast
}

// rotate applies the norm and the rotary embedding to heads [B, H, N, d]. Rotary pairs
// are half-split: dimension i turns with i + RopeDim/2.
func (c *chunk) rotate(x *gx.Node, norm string) *gx.Node {
	m := c.e.model
	if m.QKNorm != model.NormNone {
		x = normalised(x, gx.InsertAxes(c.weight(c.at+norm), 0, 1), float64(m.QKNormEps))
	}
	half := m.RopeDim / 2
	if half == 0 {
		return x
	}
	a, b := gx.SliceAxis(x, 3, gx.AxisRange(0, half)), gx.SliceAxis(x, 3, gx.AxisRange(half, 2*half))
	everyHead := func(x *gx.Node) *gx.Node {
		x = gx.Reshape(x, c.builder.key.lanes, 1, c.builder.key.n, half)
		return gx.BroadcastToDims(x, a.Shape().Dimensions...)
	}
	cos, sin := everyHead(c.cos), everyHead(c.sin)
	parts := []*gx.Node{
		gx.Sub(gx.Mul(a, cos), gx.Mul(b, sin)),
		gx.Add(gx.Mul(b, cos), gx.Mul(a, sin)),
	}
	if 2*half < m.KeyDim {
		parts = append(parts, gx.SliceAxis(x, 3, gx.AxisRange(2*half, m.KeyDim)))
	}
	return gx.Concatenate(parts, 3)
}

// fields sets field and level of the chunk and returns the slope, [Hf]. Those of a
// model without a field are 0, and the slope is nil.
func (c *chunk) fields(small func(int) *gx.Node) (slope *gx.Node) {
	m, lanes, n := c.e.model, c.builder.key.lanes, c.builder.key.n
	if m.FieldHeads == 0 {
		c.field = gx.Zeros(c.g, shapes.Make(dtypes.Float64, lanes, 1, n))
		c.level = c.field
		return nil
	}
	column := func() *gx.Node { // [B, Hf, N] float64
		x := gx.Reshape(small(m.FieldHeads), lanes, n, m.FieldHeads)
		return gx.ConvertDType(gx.Transpose(x, 1, 2), dtypes.Float64)
	}
	projection := column()
	var offset, from *gx.Node
	switch m.Level {
	case model.LevelOffset:
		offset = c.weight(c.at + nameOffset)
	case model.LevelRelative, model.LevelAbsolute:
		offset = column()
	}
	if m.Field == model.FieldWalk {
		from = c.from
	}
	source := graph.Source{
		Kind: graph.FieldKind(m.Field), Activation: graph.Activation(m.FieldActivation), Level: graph.LevelKind(m.Level),
	}
	c.field, c.level, _ = source.Evaluate(projection, offset, from, c.skip)
	return c.weight(c.at + nameSlope)
}

// feedForward is the feed-forward part of a layer.
func (c *chunk) feedForward(x *gx.Node) *gx.Node {
	m := c.e.model
	columns := c.project(c.rmsNorm(x, c.at+nameFFNNorm, float64(m.NormEps)), c.at+nameFFNIn)
	gate := activate(m.Activation, columns(m.FeedForward))
	return c.linear(gx.Mul(gate, columns(m.FeedForward)), c.at+nameFFNOut)
}

// activate is the activation of the feed-forward block and of the output gate.
func activate(a model.Activation, x *gx.Node) *gx.Node {
	switch a {
	case model.Sigmoid:
		return gx.Logistic(x)
	case model.Gelu:
		return gx.Mul(gx.MulScalar(x, 0.5), gx.OnePlus(gx.Erf(gx.MulScalar(x, 1/math.Sqrt2))))
	case model.GeluTanh:
		inner := gx.Mul(x, gx.OnePlus(gx.MulScalar(gx.Square(x), 0.044715)))
		return gx.Mul(gx.MulScalar(x, 0.5), gx.OnePlus(gx.Tanh(gx.MulScalar(inner, math.Sqrt(2/math.Pi)))))
	case model.Relu:
		return gx.MaxScalar(x, 0)
	}
	return gx.Mul(x, gx.Logistic(x))
}

// outputGraph is the logits [R, V] of R rows of the residual stream [B*N, D].
//
// Inputs: the stream, and the numbers of the rows, [R, 1] int32.
func (b *builder) outputGraph() {
	m := b.e.model
	c := &chunk{builder: b}
	x := b.input("x", byRow, dtypes.Float32, b.key.lanes*b.key.n, m.Hidden)
	rows := b.input("rows", onAll, dtypes.Int32, b.key.slots, 1)
	b.output(c.logits(gx.Gather(x, rows)), byVocab)
}

// logits are those of rows of the residual stream.
func (c *chunk) logits(x *gx.Node) *gx.Node {
	return c.linear(c.rmsNorm(x, nameFinalNorm, float64(c.e.model.NormEps)), nameOutput)
}
