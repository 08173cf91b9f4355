package onnxbody

import (
	"math"

	"github.com/firstpassage/fpa/format/onnx"
)

// hidden is the penalty of a pair that must not be seen: large enough that its
// weight is 0 beside any real one, finite so that a row of nothing else gives no
// NaN.
const hidden = 1e30

// writer writes the body. Its comments give shapes: B batch, Hq, Hkv and Hf
// heads, T new positions, P slots of the past, S = P + T, D and Dv the widths of
// keys and values, C positions in a block, N blocks, L keys up to a block's end.
// Values with a name of one or two letters are sizes, tensors of one element.
type writer struct {
	b  *onnx.Builder
	in Inputs
	o  Options

	zero, inf, hidden              onnx.Value // float32 scalars
	scale                          onnx.Value // scalar
	batch, hkv, hf, d, dv, p, s, t onnx.Value // sizes, [1]
	presentKey, presentValue       onnx.Value // [B, Hkv, S, D], [B, Hkv, S, Dv], as the inputs are
	presentLevel                   onnx.Value // [B, Hf, S]
	query, keys, values            onnx.Value // float32; the query is multiplied with the scale
	slope                          onnx.Value // [Hf, 1]
	skipNew, skip                  onnx.Value // [B, Hf, T], [B, Hf, S], bool
	field                          onnx.Value // [B, Hf, T], +inf where skipped
	level                          onnx.Value // [B, Hf, S], 0 where skipped
}

func newWriter(b *onnx.Builder, in Inputs, o Options) *writer {
	w := &writer{b: b, in: in, o: o}
	w.zero = b.Scalar(onnx.Float, 0)
	w.inf = b.Scalar(onnx.Float, math.Inf(1))
	w.hidden = b.Scalar(onnx.Float, hidden)
	w.d = w.size(in.Query, 3)
	return w
}

// constantScale takes the scale from the options.
func (w *writer) constantScale() {
	if w.o.Scale != 0 {
		w.scale = w.b.Scalar(onnx.Float, float64(w.o.Scale))
	} else {
		w.scale = w.defaultScale()
	}
}

// defaultScale is 1/sqrt(D), of shape [1].
func (w *writer) defaultScale() onnx.Value {
	return w.b.Op("Reciprocal", w.b.Op("Sqrt", w.b.Op("Cast", w.d, onnx.To(onnx.Float))))
}

// Short forms.

func (w *writer) ints(v ...int64) onnx.Value { return w.b.Int64s(v...) }

// end is a bound of Slice that takes all there is.
func (w *writer) end() onnx.Value { return w.ints(math.MaxInt64) }

func (w *writer) size(v onnx.Value, axis int64) onnx.Value {
	return w.b.Op("Shape", v, onnx.IntAttr("start", axis), onnx.IntAttr("end", axis+1))
}

func unsqueeze(b *onnx.Builder, v onnx.Value, axis int64) onnx.Value {
	return b.Op("Unsqueeze", v, b.Int64s(axis))
}

func slice(b *onnx.Builder, v, from, to onnx.Value, axis int64) onnx.Value {
	return b.Op("Slice", v, from, to, b.Int64s(axis))
}

func join(b *onnx.Builder, axis int64, v ...onnx.Value) onnx.Value {
	return b.Op("Concat", onnx.Inputs(v...), onnx.IntAttr("axis", axis))
}

// reshape gives v the shape that the sizes make.
func reshape(b *onnx.Builder, v onnx.Value, sizes ...onnx.Value) onnx.Value {
	return b.Op("Reshape", v, join(b, 0, sizes...))
}

func transpose(b *onnx.Builder, v onnx.Value, perm ...int64) onnx.Value {
	return b.Op("Transpose", v, onnx.IntsAttr("perm", perm...))
}

func isSkipped(b *onnx.Builder, level onnx.Value) onnx.Value {
	return b.Op("IsInf", level, onnx.IntAttr("detect_negative", 0))
}

// ranked is the type of a value inside a nested graph: its sizes follow from the
// graph around it, the number of dimensions must be there for a Scan.
func ranked(t onnx.DataType, rank int) *onnx.Type {
	typ := onnx.TensorOf(t)
	for range rank {
		typ.Dims = append(typ.Dims, onnx.Dim{Size: -1})
	}
	return typ
}

// as names the i-th output.
func (w *writer) as(i int) onnx.Arg { return onnx.As(w.o.name(w.b, i)) }

// append is past and new along the positions, as the i-th output.
func (w *writer) append(i int, past, new onnx.Value) onnx.Value {
	if w.in.hasPast() {
		return w.b.Op("Concat", past, new, onnx.IntAttr("axis", 2), w.as(i))
	}
	return w.b.Op("Identity", new, w.as(i))
}

// low is the output present_low; low may hold anything where a position is
// skipped.
func (w *writer) low(low onnx.Value) onnx.Value {
	return w.b.Op("Where", w.skip, w.inf, low, w.as(4))
}

// prepare computes what both forms need. Without a past, levels and lows are
// those of the new positions alone.
func (w *writer) prepare() {
	b, in := w.b, w.in
	w.batch, w.t = w.size(in.Query, 0), w.size(in.Query, 2)
	w.hf = w.size(in.Field, 1)
	w.presentLevel = w.append(3, in.PastLevel, in.Level)
	w.p = w.ints(0)
	if in.hasPast() {
		w.p = w.size(in.PastLevel, 2)
	}
	w.s = w.size(w.presentLevel, 2)
	w.slope = unsqueeze(b, in.Slope, 1)
	w.skipNew = isSkipped(b, in.Level)
	w.skip = isSkipped(b, w.presentLevel)
	w.field = b.Op("Where", w.skipNew, w.inf, in.Field)
	w.level = b.Op("Where", w.skip, w.zero, w.presentLevel)
}

// appendKeys appends the new keys and values, and converts what is read to
// float32.
func (w *writer) appendKeys() {
	b, in := w.b, w.in
	w.presentKey = w.append(1, in.PastKey, in.Key)
	w.presentValue = w.append(2, in.PastValue, in.Value)
	w.query, w.keys, w.values = in.Query, w.presentKey, w.presentValue
	if w.o.Convert {
		for _, v := range []*onnx.Value{&w.query, &w.keys, &w.values} {
			*v = b.Op("CastLike", *v, w.zero)
		}
	}
	w.query = b.Op("Mul", w.query, w.scale)
}

// finish sets the output of queries without any key to 0 and gives it its type.
// y is [B, Hf, Hq/Hf, T, Dv].
func (w *writer) finish(y onnx.Value) onnx.Value {
	b := w.b
	count := func(skip onnx.Value) onnx.Value {
		return b.Op("Cast", b.Op("Not", skip), onnx.To(onnx.Float))
	}
	keys := b.Op("CumSum", count(w.skipNew), b.Scalar(onnx.Int64, 2)) // [B, Hf, T]
	if w.in.hasPast() {
		past := count(isSkipped(b, w.in.PastLevel))
		keys = b.Op("Add", keys, b.Op("ReduceSum", past, w.ints(2)))
	}
	some := reshape(b, b.Op("Greater", keys, w.zero), w.batch, w.hf, w.ints(1), w.t, w.ints(1))
	y = b.Op("Where", some, y, w.zero)
	sizes := join(b, 0, w.batch, w.size(w.in.Query, 1), w.t, w.dv)
	if !w.o.Convert {
		return b.Op("Reshape", y, sizes, w.as(0))
	}
	return b.Op("CastLike", b.Op("Reshape", y, sizes), w.in.Query, w.as(0))
}

// body writes the operator in blocks.
func (w *writer) body() Outputs {
	b := w.b
	w.prepare()
	w.appendKeys()
	w.hkv, w.dv = w.size(w.in.Key, 1), w.size(w.in.Value, 3)
	d := w.diagonal()

	// The branches of an If see everything of the graph around them.
	low0 := w.in.PastLow
	if !w.in.hasPast() {
		low0 = b.Op("Expand", w.inf, join(b, 0, w.batch, w.hf, w.ints(0)))
	}
	one, many := w.single(d, low0), w.loop(d, low0)
	single := b.Op("Equal", d.trips, b.Scalar(onnx.Int64, 1))
	out := b.Ops(2, "If", single, onnx.Body("then_branch", one), onnx.Body("else_branch", many))
	low, y := out[0], out[1]
	return Outputs{
		Output: w.finish(y), PresentKey: w.presentKey, PresentValue: w.presentValue,
		PresentLevel: w.presentLevel, PresentLow: w.low(low),
	}
}

// diagonal holds the lows and penalties between positions of one block.
type diagonal struct {
	c, n       onnx.Value // C and N, [1]
	trips      onnx.Value // N, scalar
	length     onnx.Value // N*C, [1]
	padding    onnx.Value // N*C - T, [1]
	prefix     onnx.Value // [B, Hf, N, C, 1], the least field from the block's start to a position
	penalty    onnx.Value // [B, Hf, N, C, C]
	prefixLast onnx.Value // [B, Hf, N, 1], prefix at the block's end
	lowLast    onnx.Value // [B, Hf, N, C], the low of the block's keys at its end
}

// diagonal cuts the new positions into blocks, the last one filled up with
// skipped positions, and runs a Scan over the positions of all blocks at once.
// Its state has a column for each key of the block, and before them one for
// everything before the block.
func (w *writer) diagonal() *diagonal {
	b := w.b
	one := w.ints(1)
	var d diagonal
	d.c = b.Op("Max", b.Op("Min", w.t, w.ints(BlockLen)), one)
	d.n = b.Op("Div", b.Op("Add", b.Op("Sub", w.t, one), d.c), d.c)
	d.trips = b.Op("Squeeze", d.n)
	d.length = b.Op("Mul", d.n, d.c)
	d.padding = b.Op("Sub", d.length, w.t)
	pads := join(b, 0, w.ints(0, 0, 0, 0, 0), d.padding)
	blocks := func(v, fill onnx.Value) onnx.Value {
		return reshape(b, b.Op("Pad", v, pads, fill), w.batch, w.hf, d.n, d.c)
	}
	field := blocks(w.field, w.inf)
	level := blocks(b.Op("Where", w.skipNew, w.zero, w.in.Level), w.zero)
	skip := blocks(b.Op("Where", w.skipNew, w.hidden, w.zero), w.hidden)

	// Position t lowers the columns up to lowers[t]: column j+1 is key j, and the
	// interval says whether the key's own position counts.
	zero, step := b.Scalar(onnx.Int64, 0), b.Scalar(onnx.Int64, 1)
	c, c1 := b.Op("Squeeze", d.c), b.Op("Squeeze", b.Op("Add", d.c, one))
	columns := b.Op("Range", zero, c1, step)  // [C+1]
	positions := b.Op("Range", zero, c, step) // [C]
	lowers := positions
	if w.o.Interval == Inclusive {
		lowers = b.Op("Range", step, c1, step)
	}
	start := b.Op("Expand", w.inf, join(b, 0, w.batch, w.hf, d.n, b.Op("Add", d.c, one)))

	scan := b.Sub("lows")
	low := scan.Input(scan.Fresh("low"), ranked(onnx.Float, 4))     // [B, Hf, N, C+1]
	now := scan.Input(scan.Fresh("field"), ranked(onnx.Float, 3))   // [B, Hf, N]
	last := scan.Input(scan.Fresh("lowers"), ranked(onnx.Int64, 0)) // scalar
	lowered := scan.Op("LessOrEqual", columns, last)
	low = scan.Op("Min", low, scan.Op("Where", lowered, unsqueeze(scan, now, -1), w.inf))
	scan.Output(low, ranked(onnx.Float, 4))
	scan.Output(scan.Op("Identity", low), ranked(onnx.Float, 4))
	// The scanned axis is the first: not every runtime takes another.
	out := b.Ops(2, "Scan", start, transpose(b, field, 3, 0, 1, 2), lowers,
		onnx.IntAttr("num_scan_inputs", 2), onnx.Body("body", scan))
	end, lows := out[0], transpose(b, out[1], 1, 2, 3, 0, 4) // [B, Hf, N, C, C+1]

	prefix := slice(b, lows, w.ints(0), one, 4)
	d.prefix = b.Op("Min", prefix, w.hidden) // +inf times a slope of 0 would be NaN
	fall := b.Op("Relu", b.Op("Sub", unsqueeze(b, level, 3), slice(b, lows, one, w.end(), 4)))
	penalty := b.Op("Mul", fall, b.Op("Unsqueeze", w.slope, w.ints(1, 2)))
	penalty = b.Op("Max", penalty, unsqueeze(b, skip, 3))
	seen := b.Op("LessOrEqual", positions, unsqueeze(b, positions, 1))
	d.penalty = b.Op("Where", seen, penalty, w.hidden)
	d.prefixLast = slice(b, end, w.ints(0), one, 3)
	d.lowLast = slice(b, end, one, w.end(), 3)
	return &d
}

// block is what attend needs of one block.
type block struct {
	query        onnx.Value // [B, Hq, C, D]
	keys, values onnx.Value // [B, Hkv, L, D], [B, Hkv, L, Dv]
	level, low   onnx.Value // [B, Hf, L-C], of the keys before the block, at its start
	skip         onnx.Value // the same
	prefix       onnx.Value // [B, Hf, C, 1]
	penalty      onnx.Value // [B, Hf, C, C] or fewer columns
	prefixLast   onnx.Value // [B, Hf, 1]
	lowLast      onnx.Value // [B, Hf, C] or fewer
	c, l         onnx.Value // sizes
}

// attend gives the output of a block, [B, Hf, Hq/Hf, C, Dv], and the lows of all
// keys at its end, [B, Hf, L].
func (w *writer) attend(b *onnx.Builder, k block) (y, low onnx.Value) {
	// The fall of an earlier key is the larger of that at the block's start and
	// that since. Both are multiplied by the slope first, the one that is a
	// matrix by itself.
	before := b.Op("Mul", b.Op("Relu", b.Op("Sub", k.level, k.low)), w.slope)
	before = b.Op("Where", k.skip, w.hidden, before)
	since := b.Op("Sub", unsqueeze(b, k.level, 2), k.prefix)
	since = b.Op("Mul", since, unsqueeze(b, w.slope, 1))
	penalty := join(b, 3, b.Op("Max", since, unsqueeze(b, before, 2)), k.penalty) // [B, Hf, C, L]

	// Query heads of one key head are rows of one matrix, so keys are not repeated.
	any := w.ints(-1)
	query := reshape(b, k.query, w.batch, w.hkv, any, w.d)
	scores := b.Op("MatMul", query, transpose(b, k.keys, 0, 1, 3, 2))
	logits := b.Op("Sub", reshape(b, scores, w.batch, w.hf, any, k.c, k.l), unsqueeze(b, penalty, 2))
	weights := b.Op("Softmax", logits, onnx.IntAttr("axis", -1))
	y = b.Op("MatMul", reshape(b, weights, w.batch, w.hkv, any, k.l), k.values)
	y = reshape(b, y, w.batch, w.hf, any, k.c, w.dv)
	return y, join(b, 2, b.Op("Min", k.low, k.prefixLast), k.lowLast)
}

// single is the branch for one block: nothing is cut.
func (w *writer) single(d *diagonal, low0 onnx.Value) *onnx.Builder {
	b := w.b.Sub("one_block")
	squeeze := func(v onnx.Value) onnx.Value { return b.Op("Squeeze", v, b.Int64s(2)) }
	k := block{
		query: w.query, keys: w.keys, values: w.values, low: low0,
		prefix: squeeze(d.prefix), penalty: squeeze(d.penalty), prefixLast: squeeze(d.prefixLast), lowLast: squeeze(d.lowLast),
		c: w.t, l: w.s,
	}
	k.level = slice(b, w.level, b.Int64s(0), w.p, 2)
	k.skip = slice(b, w.skip, b.Int64s(0), w.p, 2)
	y, low := w.attend(b, k)
	b.Output(low, ranked(onnx.Float, 3))
	b.Output(y, ranked(onnx.Float, 5))
	return b
}

// loop is the branch for several blocks.
func (w *writer) loop(d *diagonal, low0 onnx.Value) *onnx.Builder {
	outer := w.b.Sub("blocks")
	pads := join(outer, 0, outer.Int64s(0, 0, 0, 0, 0, 0), d.padding, outer.Int64s(0))
	query := outer.Op("Pad", w.query, pads, w.zero)

	b := outer.Sub("block")
	n := b.Input(b.Fresh("n"), ranked(onnx.Int64, 0))
	more := b.Input(b.Fresh("more"), ranked(onnx.Bool, 0))
	low := b.Input(b.Fresh("low"), ranked(onnx.Float, 3)) // [B, Hf, L-C]
	zero := b.Int64s(0)
	first := b.Op("Mul", b.Op("Reshape", n, b.Int64s(1)), d.c)
	last := b.Op("Add", first, d.c)
	from := b.Op("Add", w.p, first)
	to := b.Op("Min", b.Op("Add", w.p, last), w.s)
	columns := b.Op("Sub", to, from) // below C in the last block
	nth := func(v onnx.Value) onnx.Value { return b.Op("Gather", v, n, onnx.IntAttr("axis", 2)) }
	y, low := w.attend(b, block{
		query: slice(b, query, first, last, 2),
		keys:  slice(b, w.keys, zero, to, 2), values: slice(b, w.values, zero, to, 2),
		level: slice(b, w.level, zero, from, 2), low: low, skip: slice(b, w.skip, zero, from, 2),
		prefix: nth(d.prefix), penalty: slice(b, nth(d.penalty), zero, columns, 3),
		prefixLast: nth(d.prefixLast), lowLast: slice(b, nth(d.lowLast), zero, columns, 2),
		c: d.c, l: to,
	})
	b.Output(b.Op("Identity", more), ranked(onnx.Bool, 0))
	b.Output(low, ranked(onnx.Float, 3))
	b.Output(y, ranked(onnx.Float, 5))

	yes, _ := onnx.ScalarTensor("", onnx.Bool, 1)
	out := outer.Ops(2, "Loop", d.trips, outer.Const(yes), low0, onnx.Body("body", b))
	// Some runtimes stack what the iterations give, others join it; the reshape
	// makes both the same.
	any := outer.Int64s(-1)
	ys := reshape(outer, out[1], d.n, w.batch, w.hf, any, d.c, w.dv)
	ys = reshape(outer, transpose(outer, ys, 1, 2, 3, 0, 4, 5), w.batch, w.hf, any, d.length, w.dv)
	outer.Output(out[0], ranked(onnx.Float, 3))
	outer.Output(slice(outer, ys, outer.Int64s(0), w.t, 3), ranked(onnx.Float, 5))
	return outer
}

// attention writes the form around the standard's operator: a Scan over the new
// positions gives one row of the mask a step.
func (w *writer) attention(queryHeads, fieldHeads int64) Outputs {
	b := w.b
	w.prepare()
	w.dv = w.size(w.in.Value, 3)
	zero, step := b.Scalar(onnx.Int64, 0), b.Scalar(onnx.Int64, 1)
	p, s := b.Op("Squeeze", w.p, w.ints(0)), b.Op("Squeeze", w.s)
	columns := b.Op("Range", zero, s, step) // [S]
	positions := b.Op("Range", p, s, step)  // [T]
	start := b.Op("Expand", w.inf, b.Op("Shape", w.in.Level))
	if w.in.hasPast() {
		start = join(b, 2, w.in.PastLow, start)
	}
	slope := b.Op("Neg", w.slope)
	hide := b.Scalar(onnx.Float, -hidden)

	scan := b.Sub("rows")
	low := scan.Input(scan.Fresh("low"), ranked(onnx.Float, 3))     // [B, Hf, S]
	now := scan.Input(scan.Fresh("field"), ranked(onnx.Float, 2))   // [B, Hf]
	at := scan.Input(scan.Fresh("position"), ranked(onnx.Int64, 0)) // scalar
	lowers := "Less"
	if w.o.Interval == Inclusive {
		lowers = "LessOrEqual"
	}
	low = scan.Op("Min", low, scan.Op("Where", scan.Op(lowers, columns, at), unsqueeze(scan, now, -1), w.inf))
	row := scan.Op("Mul", scan.Op("Relu", scan.Op("Sub", w.level, low)), slope)
	unseen := scan.Op("Or", w.skip, scan.Op("Greater", columns, at))
	scan.Output(low, ranked(onnx.Float, 3))
	scan.Output(scan.Op("Where", unseen, hide, row), ranked(onnx.Float, 3))
	out := b.Ops(2, "Scan", start, transpose(b, w.field, 2, 0, 1), positions,
		onnx.IntAttr("num_scan_inputs", 2), onnx.Body("body", scan))
	mask := transpose(b, out[1], 1, 2, 0, 3) // [B, Hf, T, S]
	if fieldHeads != queryHeads && fieldHeads != 1 {
		repeat := w.ints(queryHeads / fieldHeads)
		mask = b.Op("Expand", unsqueeze(b, mask, 2), join(b, 0, w.ints(1, 1), repeat, w.ints(1, 1)))
		mask = reshape(b, mask, w.batch, w.ints(queryHeads), w.t, w.s)
	}

	args := []onnx.Arg{w.in.Query, w.in.Key, w.in.Value, mask, onnx.IntAttr("is_causal", 0)}
	if w.o.Scale != 0 {
		args = append(args, onnx.FloatAttr("scale", w.o.Scale))
	}
	r := Outputs{PresentLevel: w.presentLevel, PresentLow: w.low(out[0])}
	var y onnx.Value
	if w.in.hasPast() {
		args = append(args, w.in.PastKey, w.in.PastValue, onnx.As(b.Fresh("y"), w.o.name(b, 1), w.o.name(b, 2)))
		out := b.Ops(3, "Attention", args...)
		y, r.PresentKey, r.PresentValue = out[0], out[1], out[2]
	} else {
		y = b.Op("Attention", args...)
		r.PresentKey, r.PresentValue = w.append(1, "", w.in.Key), w.append(2, "", w.in.Value)
	}
	r.Output = w.finish(reshape(b, y, w.batch, w.hf, w.ints(-1), w.t, w.dv))
	return r
}
