package graph

import (
	"github.com/gomlx/gomlx/pkg/core/dtypes"
	gx "github.com/gomlx/gomlx/pkg/core/graph"
	"github.com/gomlx/gomlx/pkg/core/shapes"
)

// Cache is the state of one attention layer that decodes: S slots a head, each
// empty or holding one key. Nothing in a slot tells its position, and the order
// of the slots has no meaning, so a slot that has become free is used again and
// nothing is ever moved. S is fixed in a compiled graph.
//
// The heads fall into min(Hkv, Hf) groups of key heads and field heads that
// belong together; of these two one must divide the other. The heads of a group
// keep the same positions, each in the same slot.
//
// There is no promise of a gradient through a cache.
type Cache struct {
	Key   *gx.Node // [B, Hkv, S, D]
	Value *gx.Node // [B, Hkv, S, Dv], of the keys' type
	// Level is +inf for an empty slot.
	Level *gx.Node // [B, Hf, S], float32
	// Low is the minimum of the field since the key was written, +inf where
	// that stretch is still empty.
	Low *gx.Node // [B, Hf, S], float32
}

// slots returns S.
func (c Cache) slots() int { return c.Level.Shape().Dimensions[2] }

// groups returns the number of groups of heads that share their slots.
func (c Cache) groups() int {
	return min(c.Key.Shape().Dimensions[1], c.Level.Shape().Dimensions[1])
}

// check panics unless the parts of a cache fit together.
func (c Cache) check() {
	want("Cache.Key", c.Key, "[B, Hkv, S, D]", -1, -1, -1, -1)
	k := c.Key.Shape().Dimensions
	want("Cache.Value", c.Value, "[B, Hkv, S, Dv]", k[0], k[1], k[2], -1)
	want("Cache.Level", c.Level, "[B, Hf, S]", k[0], -1, k[2])
	hf := c.Level.Shape().Dimensions[1]
	want("Cache.Low", c.Low, "[B, Hf, S]", k[0], hf, k[2])
	if !c.Key.DType().IsFloat() || c.Key.DType() != c.Value.DType() {
		fail("Cache.Key and Cache.Value are of types %v and %v; want one float type", c.Key.DType(), c.Value.DType())
	}
	if hf < 1 || k[1] < 1 || max(hf, k[1])%min(hf, k[1]) != 0 {
		fail("a cache of %d key heads and %d field heads; want one to divide the other", k[1], hf)
	}
}

// Step takes in n new positions: they attend to the slots and to one another as
// far as they are earlier, and are then written to slots. It returns their
// output, [B, Hq, n, Dv], and the cache after them.
//
// The operands are those of [Attention] with T = n, and a field is needed.
// slots, [B, G, n] int32 for the G groups of heads, says where each position is
// kept; -1 (or any number that is no slot) keeps it nowhere, which is right for
// skipped positions. The numbers of one group differ, but for these. [Cache.Place]
// finds slots that are free.
//
// New keys and values are rounded to the cache's type before they are used, so
// that the result does not depend on how a sequence is cut into calls.
func (c Cache) Step(query, key, value, field, level, slope, slots *gx.Node, o Options) (output *gx.Node, next Cache) {
	if field == nil {
		fail("field is nil, want [B, Hf, n]: a cache keeps levels and lows")
	}
	output, next, fresh := c.Attend(query, key, value, field, level, slope, o)
	return output, next.Write(fresh, slots)
}

// Attend is [Cache.Step] without the writing: it returns the output, the cache
// with the lows of its slots as of the last new position, and the new positions
// as a cache of n slots. It is for those who write keys and values to their
// slots themselves, where a backend would copy the whole cache.
//
// Without a field, level and slope being nil too, it is softmax attention: of the
// cache, whose Hf is 1 then, only the emptiness of slots is looked at, the cache comes
// back as it was, and fresh has no levels and lows.
func (c Cache) Attend(query, key, value, field, level, slope *gx.Node, o Options) (output *gx.Node, next, fresh Cache) {
	c.check()
	if level == nil {
		level = field
	}
	for _, x := range []*gx.Node{query, key, value} {
		if x == nil {
			fail("query, key or value is nil")
		}
	}
	fresh.Key, fresh.Value = gx.ConvertDType(key, c.Key.DType()), gx.ConvertDType(value, c.Key.DType())
	x := newOperands(query, fresh.Key, fresh.Value, field, level, slope, o)
	k, v := key.Shape().Dimensions, value.Shape().Dimensions
	want("Cache.Key", c.Key, "[B, Hkv, S, D]", x.batch, x.keyHeads, -1, k[3])
	want("Cache.Value", c.Value, "[B, Hkv, S, Dv]", x.batch, x.keyHeads, -1, v[3])
	want("Cache.Level", c.Level, "[B, Hf, S]", x.batch, x.fieldHeads, -1)

	t := computeType(query)
	dims := []int{x.batch, x.fieldHeads, x.size, c.slots()}
	past, pastLow := wide("Cache.Level", c.Level, t), wide("Cache.Low", c.Low, t)
	empty := isInf(past)
	if field == nil {
		output = x.softmax(
			part{x.scores(gx.ConvertDType(c.Key, t)), x.perQuery(x.columns(gx.LogicalNot(empty))), gx.ConvertDType(c.Value, t)},
			part{x.scores(x.key), x.causal(), x.value})
		return output, c, fresh
	}
	past = gx.Where(empty, gx.ZerosLike(past), past)
	since := runningMin(x.field) // of the new positions up to each
	low := gx.Min(columnsOf(pastLow, dims), rowsOf(since, dims))
	newLow := lows(x.field, x.inclusive)
	output = x.softmax(
		part{
			scores: gx.Sub(x.scores(gx.ConvertDType(c.Key, t)), x.perQuery(x.penalty(past, low))),
			mask:   x.perQuery(x.columns(gx.LogicalNot(empty))),
			value:  gx.ConvertDType(c.Value, t),
		},
		part{
			scores: gx.Sub(x.scores(x.key), x.perQuery(x.penalty(x.level, newLow))),
			mask:   gx.LogicalAnd(x.causal(), x.perQuery(x.columns(gx.LogicalNot(x.skip)))),
			value:  x.value,
		})

	next = c
	last := func(low *gx.Node, like *gx.Node) *gx.Node {
		row := gx.SliceAxis(low, 2, gx.AxisElem(x.size-1))
		return gx.ConvertDType(gx.Reshape(row, x.batch, x.fieldHeads, -1), like.DType())
	}
	next.Low = last(low, c.Low)
	fresh.Level = gx.ConvertDType(level, c.Level.DType())
	fresh.Low = last(newLow, c.Low)
	return output, next, fresh
}

// Write returns the cache with the n slots of fresh written to the slots named,
// see [Cache.Step].
func (c Cache) Write(fresh Cache, slots *gx.Node) Cache {
	c.check()
	fresh.check()
	b, g, n, s := c.Key.Shape().Dimensions[0], c.groups(), fresh.slots(), c.slots()
	want("slots", slots, "[B, G, n]", b, g, n)
	if !slots.DType().IsInt() {
		fail("slots are of type %v, want integers", slots.DType())
	}
	slots = gx.ConvertDType(slots, dtypes.Int32)
	// Which of the new positions goes to a slot, -1 for none.
	dims := []int{b, g, n, s}
	nodes := slots.Graph()
	hit := gx.Equal(position(nodes, dims, 3), rowsOf(slots, dims))
	none := gx.BroadcastToDims(gx.Scalar(nodes, dtypes.Int32, -1), dims...)
	from := gx.ReduceMax(gx.Where(hit, position(nodes, dims, 2), none), 2) // [B, G, S]

	// put returns old, [B, H, S] or [B, H, S, D], with rows of fresh in it.
	put := func(old, fresh *gx.Node) *gx.Node {
		shape := old.Shape().Dimensions
		if f := fresh.Shape().Dimensions; f[1] != shape[1] || len(shape) == 4 && f[3] != shape[3] || fresh.DType() != old.DType() {
			fail("%v is written to a cache of %v", fresh.Shape(), old.Shape())
		}
		h := shape[1]
		at := gx.Reshape(gx.BroadcastToDims(gx.InsertAxes(from, 2), b, g, h/g, s), b*h, s, 1)
		var rows *gx.Node
		if n == 1 {
			// Where devices share the heads, they would exchange rows to gather them.
			rows = gx.BroadcastToDims(fresh, shape...)
		} else {
			row := gx.Add(gx.MaxScalar(at, 0), gx.MulScalar(position(nodes, []int{b * h, s, 1}, 0), n))
			width := old.Shape().Size() / (b * h * s)
			rows = gx.Reshape(gx.Gather(gx.Reshape(fresh, b*h*n, width), row), shape...)
		}
		written := gx.Reshape(gx.GreaterOrEqual(at, gx.ZerosLike(at)), shape[:3]...)
		return gx.Where(written, rows, old)
	}
	return Cache{
		Key: put(c.Key, fresh.Key), Value: put(c.Value, fresh.Value),
		Level: put(c.Level, fresh.Level), Low: put(c.Low, fresh.Low),
	}
}

// Penalty returns what is taken off the logit of each slot's key,
// slope * max(0, level - low), [B, Hf, S]; 0 for empty slots. It never falls
// while later positions are taken in.
func (c Cache) Penalty(slope *gx.Node) *gx.Node {
	c.check()
	hf := c.Level.Shape().Dimensions[1]
	want("slope", slope, "[Hf]", hf)
	empty := isInf(c.Level)
	fall := positive(gx.Sub(c.Level, c.Low))
	fall = gx.Where(empty, gx.ZerosLike(fall), fall)
	return gx.Mul(gx.Reshape(gx.ConvertDType(slope, fall.DType()), 1, hf, 1), fall)
}

// Free tells which slots of each group, [B, G, S] bool, may be written to: in
// every field head of the group the slot is empty or its penalty is at least
// threshold, [Hf] or [B, Hf].
//
// A slot written to again, or dropped, weighs nothing from then on. What was
// lost is bounded when the threshold is 2U + ln(N/eps): with U a bound on
// |scale * q·k|, all N keys given up together weigh at most eps in any later
// query. (Of the inclusive interval that holds only where a query does not see
// itself with a penalty.)
func (c Cache) Free(slope, threshold *gx.Node) *gx.Node {
	penalty := c.Penalty(slope)
	dims := penalty.Shape().Dimensions
	if threshold != nil && threshold.Rank() == 1 {
		want("threshold", threshold, "[Hf]", dims[1])
		threshold = gx.BroadcastToDims(gx.InsertAxes(threshold, 0), dims[0], dims[1])
	}
	want("threshold", threshold, "[B, Hf]", dims[0], dims[1])
	threshold = gx.BroadcastToDims(gx.InsertAxes(gx.ConvertDType(threshold, penalty.DType()), 2), dims...)
	dead := gx.LogicalOr(isInf(c.Level), gx.GreaterOrEqual(penalty, threshold))
	g := c.groups()
	return gx.ReduceLogicalAnd(gx.Reshape(dead, dims[0], g, dims[1]/g, dims[2]), 2)
}

// Drop returns the cache with the slots that free, [B, G, S], names made empty.
// Without it, a key whose slot is free goes on being attended to until the slot
// is written to.
func (c Cache) Drop(free *gx.Node) Cache {
	c.check()
	dims := c.Level.Shape().Dimensions
	g := c.groups()
	want("free", free, "[B, G, S]", dims[0], g, dims[2])
	free = gx.BroadcastToDims(gx.InsertAxes(free, 2), dims[0], g, dims[1]/g, dims[2])
	c.Level = gx.Where(gx.Reshape(free, dims...), infinity(c.Level, dims...), c.Level)
	return c
}

// Place returns where the new positions of [Cache.Step] may be kept,
// [B, G, n] int32: the k-th position of a group that is not skipped gets its
// k-th free slot. free is [B, G, S] bool, see [Cache.Free]; level, [B, Hf, n],
// is that of the new positions. A position that is skipped in every field head
// of its group, or that finds no slot left, gets -1: such a cache is to be grown
// first, by as many slots as are missing.
func (c Cache) Place(free, level *gx.Node) *gx.Node {
	c.check()
	dims := c.Level.Shape().Dimensions
	b, hf, s, g := dims[0], dims[1], dims[2], c.groups()
	want("free", free, "[B, G, S]", b, g, s)
	want("level", level, "[B, Hf, n]", b, hf, -1)
	n := level.Shape().Dimensions[2]
	kept := gx.LogicalNot(gx.ReduceLogicalAnd(gx.Reshape(isInf(level), b, g, hf/g, n), 2)) // [B, G, n]
	count := func(x *gx.Node) *gx.Node { return gx.CumSum(gx.ConvertDType(x, dtypes.Int32), 2) }
	dims = []int{b, g, n, s}
	fits := gx.Equal(rowsOf(count(kept), dims), columnsOf(count(free), dims))
	fits = gx.LogicalAnd(fits, gx.LogicalAnd(rowsOf(kept, dims), columnsOf(free, dims)))
	none := gx.BroadcastToDims(gx.Scalar(free.Graph(), dtypes.Int32, -1), dims...)
	return gx.ReduceMax(gx.Where(fits, position(free.Graph(), dims, 3), none), 3)
}

// NewCache returns a cache of empty slots for keys and values of the given
// type.
func NewCache(g *gx.Graph, dtype dtypes.DType, batch, keyHeads, fieldHeads, slots, keyDim, valueDim int) Cache {
	zeros := func(dims ...int) *gx.Node { return gx.Zeros(g, shapes.Make(dtype, dims...)) }
	empty := gx.BroadcastToDims(gx.Infinity(g, dtypes.Float32, 1), batch, fieldHeads, slots)
	c := Cache{
		Key: zeros(batch, keyHeads, slots, keyDim), Value: zeros(batch, keyHeads, slots, valueDim),
		Level: empty, Low: empty,
	}
	c.check()
	return c
}

// Grow returns the cache with more empty slots after those it has.
func (c Cache) Grow(more int) Cache {
	c.check()
	k, v, l := c.Key.Shape().Dimensions, c.Value.Shape().Dimensions, c.Level.Shape().Dimensions
	e := NewCache(c.Key.Graph(), c.Key.DType(), k[0], k[1], l[1], more, k[3], v[3])
	join := func(a, b *gx.Node) *gx.Node {
		return gx.Concatenate([]*gx.Node{a, gx.ConvertDType(b, a.DType())}, 2)
	}
	return Cache{Key: join(c.Key, e.Key), Value: join(c.Value, e.Value), Level: join(c.Level, e.Level), Low: join(c.Low, e.Low)}
}

// Rebase moves the zero of levels and lows to the whole number next to walk,
// [B, Hf] float64, the running value of the field's walk, and returns with the
// cache what is left of walk. A move by whole numbers is exact near the walk;
// done at every call, it keeps a walk of any length as accurate as a short one.
func (c Cache) Rebase(walk *gx.Node) (Cache, *gx.Node) {
	c.check()
	l := c.Level.Shape().Dimensions
	want("walk", walk, "[B, Hf]", l[0], l[1])
	base := gx.Round(walk)
	move := func(x *gx.Node) *gx.Node { return gx.Sub(x, gx.InsertAxes(gx.ConvertDType(base, x.DType()), 2)) }
	c.Level, c.Low = move(c.Level), move(c.Low)
	return c, gx.Sub(walk, base)
}
