package convert

import (
	"fmt"
	"math"

	"github.com/firstpassage/fpa/format/onnx"
	"github.com/firstpassage/fpa/ops/onnxbody"
	"github.com/firstpassage/fpa/runtime/model"
)

// Ways of writing the operator FirstPassageAttention in an ONNX model; see
// package onnxbody.
const (
	ONNXFunction  = "function"  // a node, and a function of the model that defines it
	ONNXInline    = "inline"    // standard operators in place
	ONNXCustom    = "custom"    // the node alone
	ONNXAttention = "attention" // around the standard's Attention
)

// ONNXOps are the ways in the order in which help lists them.
var ONNXOps = []string{ONNXFunction, ONNXInline, ONNXCustom, ONNXAttention}

// onnxGraph builds the decoder as an ONNX graph. Comments give shapes: B batch,
// T new positions, P slots of the past, D, Hq, Hkv, Hf, dk, dv, F and V as in
// model.Layer. The residual stream is kept as [B*T, D], so that projections are
// Gemm with the matrices as they are stored, [out, in].
type onnxGraph struct {
	b       *onnx.Builder
	c       *model.Config
	o       *ONNXOptions
	bounds  []float32               // on the logits, of every layer and query head; nil where keys are not dropped
	weights map[string]*onnx.Tensor // by GGUF name
	stored  map[string]onnx.Value   // those in the graph already, in their own type
	wide    map[string]onnx.Value   // as float32

	batch, length onnx.Value            // [1]
	tokens        onnx.Value            // [2], B and T
	shapes        map[string]onnx.Value // [B, T, ...]
	keep          onnx.Value            // [B, T] bool, false where padded; None without a mask
	before        onnx.Value            // [B, T, 1], where the last real position before each is in state and new positions joined
	last          onnx.Value            // [B, 1, 1], the same for after the last position
	cos, sin      onnx.Value            // [B, 1, T, RopeDim/2]
	long          onnx.Value            // bool, whether T is above pieceLen

	pasts    map[string]onnx.Value // the states before the call, by their names as inputs
	presents map[string]onnx.Value // and after it, where they are packed
	outputs  map[string]*onnx.Type // the states that are outputs
	order    []string              // of these
}

// onnxModel makes the graph, and the model around it.
func onnxModel(c *model.Config, o *ONNXOptions, bounds []float32, weights map[string]*onnx.Tensor) (*onnx.Model, error) {
	g := &onnxGraph{
		b: onnx.NewGraph("decoder"), c: c, o: o, bounds: bounds, weights: weights,
		stored: make(map[string]onnx.Value), wide: make(map[string]onnx.Value), shapes: make(map[string]onnx.Value),
		pasts: make(map[string]onnx.Value), presents: make(map[string]onnx.Value), outputs: make(map[string]*onnx.Type),
	}
	if err := g.decoder(); err != nil {
		return nil, err
	}
	m := &onnx.Model{
		IRVersion: irVersion(o.Opset), ProducerName: "fpaconv", ProducerVersion: o.Version,
		Opsets: []onnx.Opset{{Version: o.Opset}},
	}
	if o.Op == ONNXFunction || o.Op == ONNXCustom {
		m.Opsets = append(m.Opsets, onnx.Opset{Domain: onnxbody.Domain, Version: onnxbody.Version})
	}
	if o.Op == ONNXFunction {
		f, err := onnxbody.Function(o.Opset, true, onnxbody.Options{Interval: string(c.Interval), Scale: c.Scale})
		if err != nil {
			return nil, err
		}
		m.Functions = []*onnx.Function{f}
	}
	var err error
	m.Graph, err = g.b.Graph()
	return m, err
}

// irVersion is the version of the format that came with an operator set, so that
// runtimes of that time read the file.
func irVersion(opset int64) int64 {
	switch {
	case opset < 19:
		return 8
	case opset < 21:
		return 9
	case opset < 23:
		return 10
	case opset < 24:
		return 11
	case opset < 25:
		return 12
	}
	return 13
}

// decoder builds everything.
func (g *onnxGraph) decoder() error {
	b, c := g.b, g.c
	ids := b.Input("input_ids", onnx.TensorOf(onnx.Int64, batchSize, newLength))
	g.tokens = b.Op("Shape", ids)
	g.batch = b.Op("Shape", ids, onnx.IntAttr("start", 0), onnx.IntAttr("end", 1))
	g.length = b.Op("Shape", ids, onnx.IntAttr("start", 1), onnx.IntAttr("end", 2))
	if !g.o.NoMask {
		g.mask(b.Input("attention_mask", onnx.TensorOf(onnx.Int64, batchSize, "mask_length")))
	}
	if c.RopeDim > 0 || g.o.Packed { // without a rotary embedding only for pipelines that insist on it
		positions := b.Input("position_ids", onnx.TensorOf(onnx.Int64, batchSize, newLength))
		if c.RopeDim > 0 {
			g.rotations(positions)
		}
	}
	if (c.KeyShift || c.ValueShift) && g.keep != onnx.None {
		g.lookBack()
	}

	for i := range c.Blocks {
		g.states(i)
	}

	const embed = "token_embd.weight"
	x := g.widen(b.Op("Gather", g.store(embed), ids), embed)
	x = b.Op("Reshape", x, b.Int64s(-1, int64(c.Hidden)))
	for i := range c.Blocks {
		if err := g.layer(i, &x); err != nil {
			return err
		}
	}
	g.logits(x)
	// The order of the outputs is that of the inputs before them.
	for _, name := range g.order {
		b.Output(onnx.Value(name), g.outputs[name])
	}
	return nil
}

// Weights.

// store puts a weight into the graph in its own type; None where the model has
// none.
func (g *onnxGraph) store(name string) onnx.Value {
	v, ok := g.stored[name]
	if t := g.weights[name]; !ok && t != nil {
		v = g.b.Initializer(t)
		g.stored[name] = v
	}
	return v
}

// widen casts a value that has a weight's type to float32.
func (g *onnxGraph) widen(v onnx.Value, weight string) onnx.Value {
	if g.weights[weight].Type == onnx.Float {
		return v
	}
	return g.b.Op("Cast", v, onnx.To(onnx.Float))
}

// weight is a weight as float32; None where the model has none.
func (g *onnxGraph) weight(name string) onnx.Value {
	v, ok := g.wide[name]
	if !ok && g.weights[name] != nil {
		v = g.widen(g.store(name), name)
		g.wide[name] = v
	}
	return v
}

// linear is x W' + bias for x [B*T, in] and W [out, in].
func (g *onnxGraph) linear(x onnx.Value, name string) onnx.Value {
	return g.b.Op("Gemm", x, g.weight(name+".weight"), g.weight(name+".bias"), onnx.IntAttr("transB", 1))
}

// shaped turns [B*T, n] into [B, T, sizes...].
func (g *onnxGraph) shaped(x onnx.Value, sizes ...int64) onnx.Value {
	key := fmt.Sprint(sizes)
	shape, ok := g.shapes[key]
	if !ok {
		shape = g.b.Op("Concat", g.tokens, g.b.Int64s(sizes...), onnx.IntAttr("axis", 0))
		g.shapes[key] = shape
	}
	return g.b.Op("Reshape", x, shape)
}

func (g *onnxGraph) scalar(v float64) onnx.Value { return g.b.Scalar(onnx.Float, v) }

func (g *onnxGraph) transpose(x onnx.Value, perm ...int64) onnx.Value {
	return g.b.Op("Transpose", x, onnx.IntsAttr("perm", perm...))
}

// reduce is one of the reductions whose axes became an input with opset 18.
func (g *onnxGraph) reduce(op string, x onnx.Value, axis int64) onnx.Value {
	if g.o.Opset < 18 {
		return g.b.Op(op, x, onnx.IntsAttr("axes", axis))
	}
	return g.b.Op(op, x, g.b.Int64s(axis))
}

// rms is x / sqrt(mean(x^2) + eps) * weight along the last axis, in the pattern
// that runtimes know and fuse.
func (g *onnxGraph) rms(x, weight onnx.Value, eps float32) onnx.Value {
	b := g.b
	square := b.Op("Pow", x, g.scalar(2))
	root := b.Op("Sqrt", b.Op("Add", g.reduce("ReduceMean", square, -1), g.scalar(float64(eps))))
	return b.Op("Mul", b.Op("Div", x, root), weight)
}

// activation applies a feed-forward or gate activation.
func (g *onnxGraph) activation(a model.Activation, x onnx.Value) onnx.Value {
	b := g.b
	half := func(z onnx.Value) onnx.Value { // x (1 + z) / 2
		return b.Op("Mul", b.Op("Mul", x, b.Op("Add", z, g.scalar(1))), g.scalar(0.5))
	}
	switch a {
	case model.Sigmoid:
		return b.Op("Sigmoid", x)
	case model.Relu:
		return b.Op("Relu", x)
	case model.Gelu:
		return half(b.Op("Erf", b.Op("Div", x, g.scalar(math.Sqrt2))))
	case model.GeluTanh:
		cube := b.Op("Mul", b.Op("Mul", b.Op("Mul", x, x), x), g.scalar(0.044715))
		return half(b.Op("Tanh", b.Op("Mul", b.Op("Add", x, cube), g.scalar(math.Sqrt(2/math.Pi)))))
	}
	return b.Op("Mul", x, b.Op("Sigmoid", x))
}

// Inputs beside the ids.

// mask takes the last T columns of attention_mask, [B, at least T].
func (g *onnxGraph) mask(mask onnx.Value) {
	b := g.b
	recent := b.Op("Slice", mask, b.Op("Neg", g.length), b.Int64s(math.MaxInt64), b.Int64s(1))
	g.keep = b.Op("Cast", recent, onnx.To(onnx.Bool))
}

// rotations computes the turns of the rotary embedding. Angles are float64: in
// float32 those of far positions are off by more than the model notices.
func (g *onnxGraph) rotations(positions onnx.Value) {
	b, c := g.b, g.c
	frequencies := make([]float64, c.RopeDim/2)
	for i := range frequencies {
		frequencies[i] = math.Pow(c.RopeBase, -2*float64(i)/float64(c.RopeDim))
	}
	turn := b.Const(float64Tensor(frequencies))
	if factors := g.weight("rope_freqs.weight"); factors != onnx.None {
		turn = b.Op("Div", turn, b.Op("Cast", factors, onnx.To(onnx.Double)))
	}
	at := b.Op("Cast", b.Op("Unsqueeze", positions, b.Int64s(1, 3)), onnx.To(onnx.Double))
	angle := b.Op("Mul", at, turn) // [B, 1, T, RopeDim/2]
	// Whole turns go before the rounding to float32.
	circle := b.Scalar(onnx.Double, 2*math.Pi)
	whole := b.Op("Mul", b.Op("Floor", b.Op("Div", angle, circle)), circle)
	angle = b.Op("Cast", b.Op("Sub", angle, whole), onnx.To(onnx.Float))
	g.cos, g.sin = b.Op("Cos", angle), b.Op("Sin", angle)
}

// rotate turns the first RopeDim elements of each head of x, [B, H, T, dk];
// element i goes with i + RopeDim/2.
func (g *onnxGraph) rotate(x onnx.Value) onnx.Value {
	b, dim := g.b, int64(g.c.RopeDim)
	part := func(from, to int64) onnx.Value {
		return b.Op("Slice", x, b.Int64s(from), b.Int64s(to), b.Int64s(-1))
	}
	p, q := part(0, dim/2), part(dim/2, dim)
	parts := onnx.Inputs(
		b.Op("Sub", b.Op("Mul", p, g.cos), b.Op("Mul", q, g.sin)),
		b.Op("Add", b.Op("Mul", q, g.cos), b.Op("Mul", p, g.sin)))
	if dim == int64(g.c.KeyDim) {
		return b.Op("Concat", parts, onnx.IntAttr("axis", -1))
	}
	return b.Op("Concat", parts, part(dim, math.MaxInt64), onnx.IntAttr("axis", -1))
}

// lookBack computes, for the shifts under a mask, where the last real position
// before each one is, counting the state as position 0 and the first new one as
// 1: a table of the positions by their rank among the real ones, looked up at the
// number of real ones before.
func (g *onnxGraph) lookBack() {
	b := g.b
	one := b.Scalar(onnx.Int64, 1)
	axis := b.Scalar(onnx.Int64, 1)
	real := b.Op("Cast", g.keep, onnx.To(onnx.Int64))
	rank := b.Op("CumSum", real, axis) // [B, T], of a real position its own rank from 1
	count := b.Op("Sub", rank, real)
	// Padding writes into a column of its own at the end.
	aside := b.Op("Add", g.length, b.Int64s(1))
	column := b.Op("Where", g.keep, rank, aside)
	size := b.Op("Concat", g.batch, b.Op("Add", g.length, b.Int64s(2)), onnx.IntAttr("axis", 0))
	table := b.Op("Expand", b.Scalar(onnx.Int64, 0), size)
	positions := b.Op("Range", one, b.Op("Add", b.Op("Squeeze", g.length), one), one)
	table = b.Op("ScatterElements", table, column, b.Op("Expand", positions, g.tokens), onnx.IntAttr("axis", 1))
	lookUp := func(rank onnx.Value) onnx.Value {
		at := b.Op("GatherElements", table, rank, onnx.IntAttr("axis", 1))
		return b.Op("Unsqueeze", at, b.Int64s(2))
	}
	g.before = lookUp(count)
	g.last = lookUp(b.Op("ReduceSum", real, b.Int64s(1)))
}

// Layers.

// layer adds block i to x, [B*T, D].
func (g *onnxGraph) layer(i int, x *onnx.Value) error {
	defer g.b.Scope(fmt.Sprintf("layer.%d", i))()
	b, c := g.b, g.c
	at := func(name string) string { return fmt.Sprintf("blk.%d.%s", i, name) }
	if g.o.Packed {
		g.unpack(i)
	}
	hq, hkv, dk, dv := int64(c.Heads), int64(c.KVHeads), int64(c.KeyDim), int64(c.ValDim)

	h := g.rms(*x, g.weight(at("attn_norm.weight")), c.NormEps)
	q := g.shaped(g.linear(h, at("attn_q")), hq, dk)
	k := g.shaped(g.linear(h, at("attn_k")), hkv, dk)
	v := g.shaped(g.linear(h, at("attn_v")), hkv, dv)
	if c.KeyShift {
		k = g.shift(i, "key_shift", k, h, at("attn_k_shift"))
	}
	if c.ValueShift {
		v = g.shift(i, "value_shift", v, h, at("attn_v_shift"))
	}
	if c.QKNorm != model.NormNone {
		q = g.rms(q, g.weight(at("attn_q_norm.weight")), c.QKNormEps)
		k = g.rms(k, g.weight(at("attn_k_norm.weight")), c.QKNormEps)
	}
	q, k, v = g.transpose(q, 0, 2, 1, 3), g.transpose(k, 0, 2, 1, 3), g.transpose(v, 0, 2, 1, 3)
	if c.RopeDim > 0 {
		q, k = g.rotate(q), g.rotate(k)
	}
	y, err := g.attention(i, q, k, v, h) // [B, Hq, T, dv]
	if err != nil {
		return err
	}
	if g.o.Packed {
		g.pack(i)
	}

	y = g.transpose(y, 0, 2, 1, 3)
	if c.OutputNorm {
		weight := b.Op("Reshape", g.weight(at("attn_output_norm.weight")), b.Int64s(hq, dv))
		y = g.rms(y, weight, c.NormEps)
	}
	y = b.Op("Reshape", y, b.Int64s(-1, hq*dv))
	if c.OutputGate != model.GateNone {
		y = b.Op("Mul", g.activation(c.OutputGate, g.linear(h, at("attn_gate"))), y)
	}
	*x = b.Op("Add", *x, g.linear(y, at("attn_output")))

	h = g.rms(*x, g.weight(at("ffn_norm.weight")), c.NormEps)
	gate := g.activation(c.Activation, g.linear(h, at("ffn_gate")))
	h = b.Op("Mul", gate, g.linear(h, at("ffn_up")))
	*x = b.Op("Add", *x, g.linear(h, at("ffn_down")))
	return nil
}

// shift mixes each projected key or value, y [B, T, Hkv, d], with that of the
// real position before it, and carries the last one as a state [B, Hkv, 1, d].
func (g *onnxGraph) shift(i int, state string, y, h onnx.Value, name string) onnx.Value {
	b := g.b
	before := g.transpose(g.past(i, state), 0, 2, 1, 3)
	all := b.Op("Concat", before, y, onnx.IntAttr("axis", 1)) // [B, 1+T, Hkv, d]
	var last onnx.Value
	if g.keep == onnx.None {
		one, end := b.Int64s(1), b.Int64s(math.MaxInt64)
		before = b.Op("Slice", all, b.Int64s(0), g.length, one)
		last = b.Op("Slice", all, g.length, end, one)
	} else {
		row := onnx.IntAttr("batch_dims", 1)
		before = b.Op("GatherND", all, g.before, row)
		last = b.Op("GatherND", all, g.last, row)
	}
	b.Op("Transpose", last, onnx.IntsAttr("perm", 0, 2, 1, 3), onnx.As(g.present(i, state)))
	mix := b.Op("Sigmoid", g.shaped(g.linear(h, name), int64(g.c.KVHeads), 1))
	return b.Op("Add", y, b.Op("Mul", mix, b.Op("Sub", before, y)))
}

// logits gives the logits of all positions, or of the last real one.
func (g *onnxGraph) logits(x onnx.Value) {
	b, c := g.b, g.c
	positions := any(newLength)
	shape := g.tokens
	if g.o.LastLogits {
		positions = 1
		x = g.lastRow(x)
		shape = b.Op("Concat", g.batch, b.Int64s(1), onnx.IntAttr("axis", 0))
	}
	x = g.rms(x, g.weight("output_norm.weight"), c.NormEps)
	output := "output.weight"
	if g.weights[output] == nil { // tied
		output = "token_embd.weight"
	}
	y := b.Op("Gemm", x, g.weight(output), onnx.IntAttr("transB", 1))
	shape = b.Op("Concat", shape, b.Int64s(int64(c.VocabSize)), onnx.IntAttr("axis", 0))
	b.Output(b.Op("Reshape", y, shape, onnx.As("logits")), onnx.TensorOf(onnx.Float, batchSize, positions, c.VocabSize))
}

// lastRow is the row of the last real position of each sequence, [B, D].
func (g *onnxGraph) lastRow(x onnx.Value) onnx.Value {
	b := g.b
	x = g.shaped(x, int64(g.c.Hidden))
	if g.keep == onnx.None {
		x = b.Op("Slice", x, b.Int64s(-1), b.Int64s(math.MaxInt64), b.Int64s(1))
		return b.Op("Squeeze", x, b.Int64s(1))
	}
	one := b.Scalar(onnx.Int64, 1)
	places := b.Op("Range", one, b.Op("Add", b.Op("Squeeze", g.length), one), one)
	places = b.Op("Where", g.keep, places, b.Scalar(onnx.Int64, 0))
	last := b.Op("ArgMax", places, onnx.IntAttr("axis", 1), onnx.IntAttr("keepdims", 1)) // [B, 1]
	return b.Op("GatherND", x, last, onnx.IntAttr("batch_dims", 1))
}
