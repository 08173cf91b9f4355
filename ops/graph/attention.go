// Package graph is First Passage Attention in gomlx graph operations: for
// models written with gomlx, to train and to run, on any of its backends.
//
// # The operator
//
// Per batch entry and head, over positions 0..T-1:
//
//	logit[i,j] = scale * q[i]·k[j] - slope * max(0, level[j] - low[i,j])    j <= i
//	low[i,j]   = min of field[t] over j < t <= i   (+inf when j = i)
//	y[i]       = sum_j softmax_j(logit[i,:]) v[j]
//
// Each key fades by how far the field has fallen below the key's level since it
// was written: by the extremum of the path, not by its length. A position
// whose level is +inf is skipped: it is no key and its field enters no
// minimum. A query without any key gives zeros. The package reference of this
// module holds the definition in loops; what is here is tested against it.
//
// [Attention] takes a whole sequence at once and is differentiable. [Cache]
// holds a number of slots, each a key with its value, level and low so far, for
// decoding one token or a chunk of tokens after the other; a slot whose key can
// no longer matter may be used again. [Source] makes field and level from the
// projections of a block's input.
//
// Special cases: slope 0, or no field at all, is softmax attention. The running
// sum of log sigmoid(f) as field, with level = field and slope 1, is forgetting
// attention (FoX). The field -t with level = field is ALiBi.
//
// # Shapes and types
//
// B is the batch, Hq, Hkv and Hf the query, key and field heads, T the
// positions, D and Dv the widths of keys and values. Hkv and Hf divide Hq; query
// head h reads key head h*Hkv/Hq and field head h*Hf/Hq.
//
// Queries, keys and values may be of any float type that the backend has.
// Fields, levels and slopes are float32: half precision fails on a running sum
// after a few hundred positions. Scores, penalties and the softmax are computed
// in float32 too. If the queries are float64, so is everything else.
//
// What the keys and values of skipped positions and empty slots hold has no
// influence, but it must be finite.
//
// # Errors
//
// As gomlx's own operators do, the functions panic with an error when their
// operands do not fit together; gomlx's executors return it as an error.
package graph

import (
	"fmt"
	"math"

	"github.com/gomlx/gomlx/pkg/core/dtypes"
	gx "github.com/gomlx/gomlx/pkg/core/graph"
	"github.com/gomlx/gomlx/pkg/core/shapes"
)

// Interval says where the stretch of positions begins over which the low of a
// key is taken. The empty string stands for Exclusive.
type Interval string

// The intervals, by the names that files use.
const (
	// Exclusive takes the minimum over j < t <= i; the key's own field does
	// not count.
	Exclusive Interval = "exclusive"
	// Inclusive takes the minimum over j <= t <= i. It differs from Exclusive
	// only for keys whose level lies above the field at their own position.
	Inclusive Interval = "inclusive"
)

// inclusive panics on an unknown interval.
func (v Interval) inclusive() bool {
	switch v {
	case "", Exclusive:
		return false
	case Inclusive:
		return true
	}
	fail("unknown interval %q, want %q or %q", string(v), Exclusive, Inclusive)
	return false
}

// Options are the settings of the operator. The zero value is usable.
type Options struct {
	// Scale multiplies the dot products. 0 stands for 1/sqrt(D).
	Scale    float64
	Interval Interval
}

// Attention returns the operator's output, [B, Hq, T, Dv], of the queries'
// type. All positions of a query see all earlier ones and themselves.
//
//	query   [B, Hq, T, D]
//	key     [B, Hkv, T, D]
//	value   [B, Hkv, T, Dv]
//	field   [B, Hf, T]; nil for softmax attention, then level and slope are nil
//	level   [B, Hf, T], +inf marks a skipped position; nil for level = field
//	slope   [Hf], each finite and >= 0; nil for 1
//
// It is differentiable with respect to all of them. The gradient of a minimum
// goes to the first position that attains it, and max(0, z) has none at z = 0.
//
// A backend may need several matrices of [B, Hq, T, T] for it, and of
// [B, Hf, T, T] for the gradient of field. Sequences too long for that are run
// through a [Cache] in chunks.
func Attention(query, key, value, field, level, slope *gx.Node, o Options) *gx.Node {
	x := newOperands(query, key, value, field, level, slope, o)
	mask := x.causal()
	scores := x.scores(x.key)
	if x.field != nil {
		scores = gx.Sub(scores, x.perQuery(x.penalty(x.level, lows(x.field, x.inclusive))))
		mask = gx.LogicalAnd(mask, x.perQuery(x.columns(gx.LogicalNot(x.skip))))
	}
	return x.softmax(part{scores, mask, x.value})
}

// Penalties returns slope * max(0, level[j] - low[i,j]), [B, Hf, T, T], for
// operands as those of [Attention]: what each key j has lost in the eyes of each
// query i. It is 0 for keys that are skipped or after the query. It is for
// losses that ask for keys to die, and XLA computes it only once for both.
func Penalties(field, level, slope *gx.Node, interval Interval) *gx.Node {
	want("field", field, "[B, Hf, T]", -1, -1, -1)
	d := field.Shape().Dimensions
	x := &operands{batch: d[0], queryHeads: d[1], size: d[2], inclusive: interval.inclusive()}
	x.setField(field, level, slope, computeType(field))
	p := x.penalty(x.level, lows(x.field, x.inclusive))
	return gx.Where(x.columns(x.skip), gx.ZerosLike(p), p)
}

// operands are the checked operands of one call, in the type that it computes
// in.
type operands struct {
	batch, queryHeads, keyHeads, fieldHeads, size int

	query, key, value *gx.Node // [B, Hkv, Hq/Hkv*T, D] and scaled, [B, Hkv, T, D], [B, Hkv, T, Dv]
	field             *gx.Node // [B, Hf, T], +inf where skipped; nil: no field
	level             *gx.Node // [B, Hf, T], 0 where skipped
	skip              *gx.Node // [B, Hf, T], bool
	slope             *gx.Node // [1, Hf, 1, 1]
	inclusive         bool
	output            dtypes.DType
}

// fail panics with an error, as gomlx's operators do.
func fail(format string, args ...any) {
	panic(fmt.Errorf("graph: "+format, args...))
}

// want panics unless x has the dimensions, named by the letters in shape. A
// dimension below 0 may be anything.
func want(name string, x *gx.Node, shape string, dims ...int) {
	if x == nil {
		fail("%s is nil, want %s", name, shape)
	}
	got := x.Shape().Dimensions
	fits := len(got) == len(dims)
	for i := 0; fits && i < len(dims); i++ {
		fits = dims[i] < 0 || got[i] == dims[i]
	}
	if !fits {
		fail("%s is %v, want %s = %s", name, x.Shape(), shape, dimensions(dims))
	}
}

// dimensions prints a shape; unknown ones as they may be anything.
func dimensions(dims []int) string {
	s := "["
	for i, d := range dims {
		if i > 0 {
			s += ", "
		}
		if d < 0 {
			s += "any"
		} else {
			s += fmt.Sprint(d)
		}
	}
	return s + "]"
}

// wide converts a field, level or slope to the type that is computed in.
func wide(name string, x *gx.Node, to dtypes.DType) *gx.Node {
	if t := x.DType(); t != dtypes.Float32 && t != dtypes.Float64 {
		fail("%s is of type %v, want Float32: half precision does not hold a field", name, t)
	}
	return gx.ConvertDType(x, to)
}

// computeType is what scores and penalties are computed in.
func computeType(query *gx.Node) dtypes.DType {
	if query.DType() == dtypes.Float64 {
		return dtypes.Float64
	}
	return dtypes.Float32
}

// newOperands checks the operands of [Attention] or of new positions that are
// attended to beside a cache.
func newOperands(query, key, value, field, level, slope *gx.Node, o Options) *operands {
	want("query", query, "[B, Hq, T, D]", -1, -1, -1, -1)
	q := query.Shape().Dimensions
	want("key", key, "[B, Hkv, T, D]", q[0], -1, q[2], q[3])
	k := key.Shape().Dimensions
	want("value", value, "[B, Hkv, T, Dv]", q[0], k[1], q[2], -1)
	for _, x := range []*gx.Node{query, key, value} {
		if !x.DType().IsFloat() {
			fail("query, key and value are of types %v, %v, %v; want floats", query.DType(), key.DType(), value.DType())
		}
	}
	x := &operands{batch: q[0], queryHeads: q[1], keyHeads: k[1], fieldHeads: 1, size: q[2], output: query.DType()}
	if x.size < 1 || k[1] < 1 || q[1]%k[1] != 0 {
		fail("%d query heads over %d key heads, %d positions; want a divisor, and at least one position", q[1], k[1], x.size)
	}
	x.inclusive = o.Interval.inclusive()
	if o.Scale == 0 {
		o.Scale = 1 / math.Sqrt(float64(q[3]))
	}
	t := computeType(query)
	x.query = gx.Reshape(gx.MulScalar(gx.ConvertDType(query, t), o.Scale), q[0], k[1], q[1]/k[1]*q[2], q[3])
	x.key, x.value = gx.ConvertDType(key, t), gx.ConvertDType(value, t)
	if field == nil {
		if level != nil || slope != nil {
			fail("level or slope without a field")
		}
		return x
	}
	x.setField(field, level, slope, t)
	return x
}

// setField checks and sets field, level and slope, of x's batch, query heads
// and positions, in the type t.
func (x *operands) setField(field, level, slope *gx.Node, t dtypes.DType) {
	want("field", field, "[B, Hf, T]", x.batch, -1, x.size)
	x.fieldHeads = field.Shape().Dimensions[1]
	if x.fieldHeads < 1 || x.queryHeads%x.fieldHeads != 0 {
		fail("%d query heads over %d field heads, want a divisor", x.queryHeads, x.fieldHeads)
	}
	if level == nil {
		level = field
	}
	want("level", level, "[B, Hf, T]", x.batch, x.fieldHeads, x.size)
	x.field, x.level = wide("field", field, t), wide("level", level, t)
	x.skip = isInf(x.level)
	x.level = gx.Where(x.skip, gx.ZerosLike(x.level), x.level)
	x.field = gx.Where(x.skip, infinity(x.field, x.field.Shape().Dimensions...), x.field)
	if slope == nil {
		slope = gx.Ones(field.Graph(), shapes.Make(t, x.fieldHeads))
	}
	want("slope", slope, "[Hf]", x.fieldHeads)
	x.slope = gx.Reshape(wide("slope", slope, t), 1, x.fieldHeads, 1, 1)
}

// isInf tells where x is +inf.
func isInf(x *gx.Node) *gx.Node {
	return gx.Equal(x, gx.Infinity(x.Graph(), x.DType(), 1))
}

// infinity is +inf in x's type.
func infinity(x *gx.Node, dims ...int) *gx.Node {
	return gx.BroadcastToDims(gx.Infinity(x.Graph(), x.DType(), 1), dims...)
}

// position counts along an axis of a shape.
func position(g *gx.Graph, dims []int, axis int) *gx.Node {
	return gx.Iota(g, shapes.Make(dtypes.Int32, dims...), axis)
}

// causal tells which new positions j a query i sees: j <= i, in the shape of
// the scores, [B, Hf, Hq/Hf, T, T].
func (x *operands) causal() *gx.Node {
	dims := []int{x.batch, x.fieldHeads, x.queryHeads / x.fieldHeads, x.size, x.size}
	g := x.query.Graph()
	return gx.LessOrEqual(position(g, dims, 4), position(g, dims, 3))
}

// scores returns scale * q·k for the keys, [B, Hkv, S, D], in the shape
// [B, Hf, Hq/Hf, T, S].
func (x *operands) scores(key *gx.Node) *gx.Node {
	return gx.Reshape(product(x.query, key, true), x.batch, x.fieldHeads, x.queryHeads/x.fieldHeads, x.size, -1)
}

// columns repeats what each key has, [B, Hf, S], for each query:
// [B, Hf, T, S].
func (x *operands) columns(perKey *gx.Node) *gx.Node {
	dims := perKey.Shape().Dimensions
	return gx.BroadcastToDims(gx.InsertAxes(perKey, 2), dims[0], dims[1], x.size, dims[2])
}

// perQuery repeats what a field head has, [B, Hf, T, S], for each of its query
// heads, in the shape of the scores.
func (x *operands) perQuery(perField *gx.Node) *gx.Node {
	dims := perField.Shape().Dimensions
	return gx.BroadcastToDims(gx.InsertAxes(perField, 2), dims[0], dims[1], x.queryHeads/x.fieldHeads, dims[2], dims[3])
}

// penalty returns slope * max(0, level - low), [B, Hf, T, S], for keys of
// finite level, [B, Hf, S].
func (x *operands) penalty(level, low *gx.Node) *gx.Node {
	return gx.Mul(x.slope, positive(gx.Sub(x.columns(level), low)))
}

// positive is max(0, z), with the derivative 0 at z = 0.
func positive(z *gx.Node) *gx.Node {
	zero := gx.ZerosLike(z)
	return gx.Where(gx.GreaterThan(z, zero), z, zero)
}

// part is a set of keys that is attended to.
type part struct {
	scores *gx.Node // [B, Hf, Hq/Hf, T, S]
	mask   *gx.Node // of the same shape, bool: what may be seen
	value  *gx.Node // [B, Hkv, S, Dv]
}

// softmax returns the output for the keys of all parts together,
// [B, Hq, T, Dv].
func (x *operands) softmax(parts ...part) *gx.Node {
	// What is masked becomes -inf before the exponential, so that neither the
	// weight nor its derivative can overflow.
	var largest *gx.Node // [B, Hf, Hq/Hf, T, 1]
	for i := range parts {
		p := &parts[i]
		p.scores = gx.Where(p.mask, p.scores, gx.Neg(infinity(p.scores, p.scores.Shape().Dimensions...)))
		m := gx.ReduceAndKeep(gx.StopGradient(p.scores), gx.ReduceMax, -1)
		if largest == nil {
			largest = m
		} else {
			largest = gx.Max(largest, m)
		}
	}
	largest = gx.Where(gx.IsFinite(largest), largest, gx.ZerosLike(largest)) // -inf: no key at all
	var total, sum *gx.Node
	for _, p := range parts {
		weights := gx.Exp(gx.Sub(p.scores, largest))
		t := gx.ReduceAndKeep(weights, gx.ReduceSum, -1)
		weights = gx.Reshape(weights, x.batch, x.keyHeads, x.queryHeads/x.keyHeads*x.size, -1)
		s := product(weights, p.value, false)
		if total == nil {
			total, sum = t, s
		} else {
			total, sum = gx.Add(total, t), gx.Add(sum, s)
		}
	}
	total = gx.Where(gx.Equal(total, gx.ZerosLike(total)), gx.OnesLike(total), total)
	sum = gx.Reshape(sum, x.batch, x.queryHeads, x.size, -1)
	return gx.ConvertDType(gx.Div(sum, gx.Reshape(total, x.batch, x.queryHeads, x.size, 1)), x.output)
}
