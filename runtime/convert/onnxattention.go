package convert

import (
	"fmt"
	"math"
	"slices"

	"github.com/firstpassage/fpa/format/onnx"
	"github.com/firstpassage/fpa/ops/onnxbody"
	"github.com/firstpassage/fpa/runtime/model"
)

// pieceLen is the number of positions of one call that the operator sees at
// once, where the field is a walk. The operator takes fields and levels in
// float32, on one zero; over more positions a walk gets so far from any zero that
// their rounding shows (the passkey model, whose slopes are near 10, is then off
// by 7e-4 at 2,048 positions, in pieces of 256 by 6e-5).
const pieceLen = 128

// attention is the attention of layer i for the heads of its queries, keys and
// values, each [B, heads, T, d], and its normalised input. It gives [B, Hq, T, dv].
func (g *onnxGraph) attention(i int, q, k, v, h onnx.Value) (onnx.Value, error) {
	in := onnxbody.Inputs{
		Query: q, Key: k, Value: v,
		PastKey: g.past(i, "key"), PastValue: g.past(i, "value"),
		PastLevel: g.past(i, "level"), PastLow: g.past(i, "low"),
	}
	names := []string{"", g.present(i, "key"), g.present(i, "value"), g.present(i, "level"), g.present(i, "low")}
	g.field(i, h, &in)
	if g.c.Field == model.FieldWalk {
		return g.walk(i, in, names)
	}
	in.Field = g.b.Op("Cast", in.Field, onnx.To(onnx.Float))
	in.Level = g.b.Op("Cast", in.Level, onnx.To(onnx.Float))
	out, err := g.operator(i, in, names)
	return out.Output, err
}

// operator writes the operator of layer i in the form that was asked for.
func (g *onnxGraph) operator(i int, in onnxbody.Inputs, names []string) (onnxbody.Outputs, error) {
	o := onnxbody.Options{Interval: string(g.c.Interval), Scale: g.c.Scale, Names: names}
	if g.bounds != nil {
		o.Cache, o.CacheEps = g.o.Cache, g.o.CacheEps
		o.LogitBound = g.bounds[i*g.c.Heads : (i+1)*g.c.Heads]
	}
	switch g.o.Op {
	case ONNXInline:
		return onnxbody.Inline(g.b, in, o)
	case ONNXAttention:
		return onnxbody.Attention(g.b, in, int64(g.c.Heads), int64(g.fieldHeads()), o)
	}
	return onnxbody.Node(g.b, in, o)
}

// field computes slope, field and level of layer i, the two [B, Hf, T] in
// float64, from its normalised input. A walk begins at its state.
func (g *onnxGraph) field(i int, h onnx.Value, in *onnxbody.Inputs) {
	b, c := g.b, g.c
	keep := onnx.None // [B, 1, T]
	if g.keep != onnx.None {
		keep = b.Op("Unsqueeze", g.keep, b.Int64s(1))
	}
	zero := b.Scalar(onnx.Double, 0)
	name := fmt.Sprintf("blk.%d.attn_", i)
	if c.Field == model.FieldNone {
		// Slope 0 is plain softmax; levels only say what is padded.
		in.Field = b.Op("Expand", zero, b.Op("Concat", g.batch, b.Int64s(1), g.length, onnx.IntAttr("axis", 0)))
		in.Slope = b.Floats(0)
	} else {
		in.Field = g.fieldActivation(g.headsFirst(h, name+"field"))
		if in.Slope = g.weight(name + "slope.weight"); in.Slope == onnx.None {
			in.Slope = b.Floats(slices.Repeat([]float32{1}, c.FieldHeads)...)
		}
	}
	if c.Field == model.FieldWalk {
		if keep != onnx.None {
			in.Field = b.Op("Where", keep, in.Field, zero)
		}
		start := b.Op("Unsqueeze", g.past(i, "field"), b.Int64s(2))
		in.Field = b.Op("Add", b.Op("CumSum", in.Field, b.Scalar(onnx.Int64, 2)), start)
	}
	in.Level = in.Field
	if c.Field != model.FieldNone {
		switch c.Level {
		case model.LevelOffset:
			offset := b.Op("Cast", g.weight(name+"level.bias"), onnx.To(onnx.Double))
			in.Level = b.Op("Add", in.Field, b.Op("Unsqueeze", offset, b.Int64s(1)))
		case model.LevelRelative:
			in.Level = b.Op("Add", in.Field, g.headsFirst(h, name+"level"))
		case model.LevelAbsolute:
			in.Level = g.headsFirst(h, name+"level")
		}
	}
	if keep != onnx.None {
		in.Level = b.Op("Where", keep, in.Level, b.Scalar(onnx.Double, math.Inf(1)))
	}
}

// headsFirst is a projection to one number a field head, as float64 [B, Hf, T].
// The matrix may be absent, then the bias, [Hf], counts everywhere.
func (g *onnxGraph) headsFirst(h onnx.Value, name string) onnx.Value {
	b, hf := g.b, int64(g.c.FieldHeads)
	var z onnx.Value // [B, T, Hf]
	switch {
	case g.weight(name+".weight") != onnx.None:
		z = g.shaped(g.linear(h, name), hf)
	case g.weight(name+".bias") != onnx.None:
		z = b.Op("Expand", g.weight(name+".bias"), b.Op("Concat", g.tokens, b.Int64s(hf), onnx.IntAttr("axis", 0)))
	default:
		z = b.Op("Expand", g.scalar(0), b.Op("Concat", g.tokens, b.Int64s(hf), onnx.IntAttr("axis", 0)))
	}
	return b.Op("Cast", g.transpose(z, 0, 2, 1), onnx.To(onnx.Double))
}

// fieldActivation applies the activation of a field, in float64.
func (g *onnxGraph) fieldActivation(z onnx.Value) onnx.Value {
	b := g.b
	softplus := func(z onnx.Value) onnx.Value { // max(z, 0) + log(1 + exp(-|z|))
		small := b.Op("Exp", b.Op("Neg", b.Op("Abs", z)))
		log := b.Op("Log", b.Op("Add", small, b.Scalar(onnx.Double, 1)))
		return b.Op("Add", b.Op("Max", z, b.Scalar(onnx.Double, 0)), log)
	}
	switch g.c.FieldActivation {
	case model.Tanh:
		return b.Op("Tanh", z)
	case model.LogSigmoid:
		return b.Op("Neg", softplus(b.Op("Neg", z)))
	case model.NegSoftplus:
		return b.Op("Neg", softplus(z))
	}
	return z
}

// nested runs f with another builder as the graph's.
func (g *onnxGraph) nested(b *onnx.Builder, f func() error) error {
	outer := g.b
	g.b = b
	defer func() { g.b = outer }()
	return f()
}

// walk runs the operator for a field that is a walk, in pieces of pieceLen
// positions. Up to so many at once, as in decoding, it is one call without a
// loop: what a loop carries is copied.
func (g *onnxGraph) walk(i int, in onnxbody.Inputs, names []string) (onnx.Value, error) {
	b := g.b
	if g.long == onnx.None {
		g.long = b.Op("Greater", b.Op("Squeeze", g.length), b.Scalar(onnx.Int64, pieceLen))
	}
	one := b.Sub("whole")
	err := g.nested(one, func() error {
		w, err := g.piece(i, in)
		w.output(one)
		return err
	})
	if err != nil {
		return onnx.None, err
	}
	many, err := g.pieces(i, in)
	if err != nil {
		return onnx.None, err
	}
	names[0] = b.Fresh("output")
	out := b.Ops(6, "If", g.long, onnx.Body("then_branch", many), onnx.Body("else_branch", one), onnx.As(names...))
	last := g.at(in.Field, b.Int64s(-1), b.Int64s(math.MaxInt64))
	b.Op("Squeeze", b.Op("Sub", last, out[5]), b.Int64s(2), onnx.As(g.present(i, "field")))
	return out[0], nil
}

// at takes positions from from to to of a value [B, heads, T, ...].
func (g *onnxGraph) at(v, from, to onnx.Value) onnx.Value {
	return g.b.Op("Slice", v, from, to, g.b.Int64s(2))
}

// walked is what the operator gives for a piece of a walk, and how far the zero of
// levels and lows has moved, [B, Hf, 1] float64.
type walked struct {
	onnxbody.Outputs
	moved onnx.Value
}

func (w *walked) output(b *onnx.Builder) {
	for i, v := range []onnx.Value{w.Output, w.PresentKey, w.PresentValue, w.PresentLevel, w.PresentLow, w.moved} {
		b.Output(v, carriedType(i))
	}
}

// carriedType is the type of the i-th of these values in a nested graph: the sizes
// are left to be inferred.
func carriedType(i int) *onnx.Type {
	if i == 5 {
		return onnx.TensorOf(onnx.Double, "", "", "")
	}
	if i > 2 {
		return onnx.TensorOf(onnx.Float, "", "", "")
	}
	return onnx.TensorOf(onnx.Float, "", "", "", "")
}

// piece runs the operator of layer i once. Its zero is the whole number in the middle of the
// piece's values, so that their rounding to float32 loses least; levels and lows
// of the past are moved there. Afterwards they move on to the whole number next to
// the last value. Moving by whole numbers loses nothing of float32 levels near the
// zero.
func (g *onnxGraph) piece(i int, in onnxbody.Inputs) (walked, error) {
	b := g.b
	span := b.Op("Add", g.reduce("ReduceMax", in.Field, 2), g.reduce("ReduceMin", in.Field, 2))
	middle := b.Op("Round", b.Op("Mul", span, b.Scalar(onnx.Double, 0.5))) // [B, Hf, 1]
	last := g.at(in.Field, b.Int64s(-1), b.Int64s(math.MaxInt64))
	end := b.Op("Round", last)
	float := func(v onnx.Value) onnx.Value { return b.Op("Cast", v, onnx.To(onnx.Float)) }
	in.Field, in.Level = float(b.Op("Sub", in.Field, middle)), float(b.Op("Sub", in.Level, middle))
	move := float(middle)
	in.PastLevel, in.PastLow = b.Op("Sub", in.PastLevel, move), b.Op("Sub", in.PastLow, move)
	out, err := g.operator(i, in, nil)
	move = float(b.Op("Sub", end, middle))
	out.PresentLevel, out.PresentLow = b.Op("Sub", out.PresentLevel, move), b.Op("Sub", out.PresentLow, move)
	return walked{out, end}, err
}

// pieces is the branch of layer i for long calls: a Loop that carries the states, the output
// so far and how far the zero has moved.
func (g *onnxGraph) pieces(i int, in onnxbody.Inputs) (*onnx.Builder, error) {
	c := g.c
	outer := g.b.Sub("pieces")
	length := outer.Int64s(pieceLen)
	count := outer.Op("Div", outer.Op("Add", g.length, outer.Int64s(pieceLen-1)), length)
	none := func(elem onnx.DataType, sizes ...int64) onnx.Value {
		shape := outer.Op("Concat", g.batch, outer.Int64s(sizes...), onnx.IntAttr("axis", 0))
		return outer.Op("Expand", outer.Scalar(elem, 0), shape)
	}
	output := none(onnx.Float, int64(c.Heads), 0, int64(c.ValDim))
	moved := none(onnx.Double, int64(c.FieldHeads), 1)

	b := outer.Sub("piece")
	n := b.Input(b.Fresh("n"), onnx.TensorOf(onnx.Int64))
	more := b.Input(b.Fresh("more"), onnx.TensorOf(onnx.Bool))
	now := in
	var y, zero onnx.Value
	for j, v := range []*onnx.Value{&y, &now.PastKey, &now.PastValue, &now.PastLevel, &now.PastLow, &zero} {
		*v = b.Input(b.Fresh("carried"), carriedType(j))
	}
	err := g.nested(b, func() error {
		from := b.Op("Mul", b.Op("Reshape", n, b.Int64s(1)), length)
		to := b.Op("Add", from, length)
		for _, v := range []*onnx.Value{&now.Query, &now.Key, &now.Value, &now.Field, &now.Level} {
			*v = g.at(*v, from, to)
		}
		now.Field, now.Level = b.Op("Sub", now.Field, zero), b.Op("Sub", now.Level, zero)
		w, err := g.piece(i, now)
		w.Output = b.Op("Concat", y, w.Output, onnx.IntAttr("axis", 2))
		w.moved = b.Op("Add", zero, w.moved)
		b.Output(b.Op("Identity", more), onnx.TensorOf(onnx.Bool))
		w.output(b)
		return err
	})
	if err != nil {
		return nil, err
	}
	out := outer.Ops(6, "Loop", outer.Op("Squeeze", count), outer.Scalar(onnx.Bool, 1),
		output, in.PastKey, in.PastValue, in.PastLevel, in.PastLow, moved, onnx.Body("body", b))
	for j, v := range out {
		outer.Output(v, carriedType(j))
	}
	return outer, nil
}
