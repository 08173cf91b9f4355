package xla

import (
	"fmt"
	"math"
	"slices"

	"github.com/gomlx/gomlx/backends"
	"github.com/gomlx/gomlx/pkg/core/dtypes"
	gx "github.com/gomlx/gomlx/pkg/core/graph"
	"github.com/gomlx/gomlx/pkg/core/shapes"

	"github.com/firstpassage/fpa/ops/graph"
	"github.com/firstpassage/fpa/runtime/cache"
	"github.com/firstpassage/fpa/runtime/internal/finite"
	"github.com/firstpassage/fpa/runtime/model"
)

// watch says what a program of a chunk puts out for the policy of the cache, beside
// what the next chunk needs; see cache.Fresh.
type watch struct {
	lengths bool // of queries and keys, [L, B, H, N] and [L, B, Hkv, N]
	weights bool // of all slots and new keys for the last token, [L, B, groups, S+N]
	dropped bool // the largest share of dropped keys, [L, B, H]
}

// watchOf is what a policy asks for. Where nothing can be dropped there is nothing to
// see.
func watchOf(m *model.Model, p cache.Policy) watch {
	if m.FieldHeads == 0 {
		return watch{}
	}
	return watch{lengths: p.Mode == cache.Measured, weights: p.Mode == cache.Budget, dropped: p.Audit}
}

// needsCache says whether the slots are looked at, even when all are empty.
func (w watch) needsCache() bool { return w.weights || w.dropped }

// groupCount is the number of groups of heads of a layer whose keys live and die
// together, of a model with a field.
func groupCount(m *model.Model) int { return min(m.KVHeads, m.FieldHeads) }

// seen is what the layers of a graph collect.
type seen struct {
	sums           []*gx.Node    // [B], of squares of all that attention reads; not finite if any of it is not
	queries, keys  []*gx.Node    // lengths, [B, H, N] and [B, Hkv, N]
	newest, shares []*gx.Node    // [B, groups, S+N] and [B, H]
	reads          [5][]*gx.Node // of inspectChunk: q, k, v, field and level

	// Of the layer at hand, of an audit: the level of all slots, dropped keys included,
	// [B, Hf, S], and 1 for these and 0 for others, [B, Hkv, S].
	allLevel, dropped *gx.Node
}

// attended is what a layer's attention is given: q [B, H, N, d] and k [B, Hkv, N, d],
// v [B, Hkv, N, dv] before they are rounded, field and level [B, Hf, N] in float32, and
// the slope, [Hf], nil without a field.
type attended struct{ q, k, v, field, level, slope *gx.Node }

// look notes what attention reads, and what else is asked for: slots are those of the
// cache as they were, after and fresh what Attend made of them and of the new keys.
func (c *chunk) look(x attended, slots, after, fresh graph.Cache, o graph.Options) {
	if c.e.model.FieldHeads > 0 {
		for _, f := range []*gx.Node{x.field, x.level} {
			dims := f.Shape().Dimensions
			c.sums = append(c.sums, sum(gx.Where(gx.BroadcastToDims(gx.InsertAxes(c.skip, 1), dims...), gx.ZerosLike(f), f)))
		}
	}
	if c.builder.key.kind == inspectChunk {
		all := []*gx.Node{x.q, x.k, x.v, x.field, x.level}
		if c.e.model.FieldHeads == 0 {
			all = all[:3]
		}
		for i, n := range all {
			c.reads[i] = append(c.reads[i], n)
		}
	}
	if c.builder.key.watch.lengths {
		length := func(n *gx.Node) *gx.Node { return gx.Sqrt(gx.ReduceSum(gx.Square(n), -1)) }
		c.queries, c.keys = append(c.queries, length(x.q)), append(c.keys, length(x.k))
	}
	if c.builder.key.watch.weights {
		c.weigh(x, after, fresh)
	}
	if c.builder.key.watch.dropped {
		c.audit(x, slots, o)
	}
}

// sum is the sum of squares of x, [B, ..], of each sequence, [B].
func sum(x *gx.Node) *gx.Node {
	axes := make([]int, x.Rank()-1)
	for i := range axes {
		axes[i] = i + 1
	}
	return gx.ReduceSum(gx.Square(gx.ConvertDType(x, dtypes.Float32)), axes...)
}

// weigh adds the weights of all slots, whose lows are those of the last token, and of
// the new keys, for the last query.
func (c *chunk) weigh(x attended, slots, fresh graph.Cache) {
	m, lanes := c.e.model, c.builder.key.lanes
	q := gx.Reshape(gx.TransposeAllAxes(x.q, 0, 2, 1, 3), c.rows(), m.Heads, m.KeyDim)
	q = gx.Reshape(gx.Gather(q, c.last), lanes, m.KVHeads, m.Heads/m.KVHeads, m.KeyDim)
	var logits []*gx.Node
	for _, keys := range []graph.Cache{slots, fresh} {
		n := keys.Level.Shape().Dimensions[2]
		scores := gx.DotGeneral(q, []int{3}, []int{0, 1}, gx.ConvertDType(keys.Key, dtypes.Float32), []int{3}, []int{0, 1})
		scores = gx.MulScalar(gx.Reshape(scores, lanes, m.FieldHeads, m.Heads/m.FieldHeads, n), float64(m.Scale))
		perQuery := func(x *gx.Node) *gx.Node {
			return gx.BroadcastToDims(gx.InsertAxes(x, 2), lanes, m.FieldHeads, m.Heads/m.FieldHeads, n)
		}
		none := gx.Infinity(c.g, dtypes.Float32, 1)
		scores = gx.Sub(scores, perQuery(keys.Penalty(x.slope)))
		scores = gx.Where(perQuery(gx.Equal(keys.Level, none)), gx.BroadcastToDims(gx.Neg(none), scores.Shape().Dimensions...), scores)
		logits = append(logits, gx.Reshape(scores, lanes, m.Heads, n))
	}
	weights := gx.Softmax(gx.Concatenate(logits, 2), 2)
	groups := groupCount(m)
	weights = gx.Reshape(weights, lanes, groups, m.Heads/groups, -1)
	c.newest = append(c.newest, gx.ReduceMax(weights, 2))
}

// audit adds what dropped keys would have had of the softmax: attention with the value 1
// for them and 0 for others.
func (c *chunk) audit(x attended, slots graph.Cache, o graph.Options) {
	lanes, n := c.builder.key.lanes, c.builder.key.n
	slots.Level, slots.Value = c.allLevel, gx.ConvertDType(gx.InsertAxes(c.dropped, -1), slots.Key.DType())
	none := gx.Zeros(c.g, shapes.Make(slots.Key.DType(), lanes, c.e.model.KVHeads, n, 1))
	share, _, _ := slots.Attend(x.q, c.key, none, x.field, x.level, x.slope, o)
	share = gx.Squeeze(share, -1)
	share = gx.Where(gx.BroadcastToDims(gx.InsertAxes(c.skip, 1), share.Shape().Dimensions...), gx.ZerosLike(share), share)
	c.shares = append(c.shares, gx.ReduceMax(share, 2))
}

// outputWatched puts out what was seen: the sum of what attention reads of each
// sequence, [B], and what the key's watch names.
func (c *chunk) outputWatched() {
	c.output(gx.ReduceSum(gx.Stack(c.sums, 0), 0), byRow)
	for _, list := range [][]*gx.Node{c.queries, c.keys, c.newest, c.shares} {
		if list != nil {
			c.output(gx.Stack(list, 0), byLayer)
		}
	}
}

// outputInspected puts out q, k and v of all layers before rounding, [L, B, heads, N,
// width], and with a field that and level, [L, B, Hf, N].
func (c *chunk) outputInspected() {
	for _, list := range c.reads {
		if list != nil {
			c.output(gx.Stack(list, 0), byLayer)
		}
	}
}

// watchBuffers hold what a device says of a chunk where the host cannot look at it.
type watchBuffers struct {
	sum, query, key, weight, removed []float32
}

// watched is what the device said of a chunk; see watch.
type watched struct{ query, key, weight, removed []float32 }

// readWatched reads the outputs of chunk.outputWatched, after the sum.
func (s *lanes) readWatched(out []backends.Buffer, key programKey) (w watched, err error) {
	m, n, size := s.e.model, s.e.model.Blocks*len(s.seqs), key.n
	for _, x := range []struct {
		asked bool
		to    *[]float32
		buf   *[]float32
		size  int
	}{
		{s.watch.lengths, &w.query, &s.watchBuf.query, n * m.Heads * size},
		{s.watch.lengths, &w.key, &s.watchBuf.key, n * m.KVHeads * size},
		{s.watch.weights, &w.weight, &s.watchBuf.weight, n * groupCount(m) * (key.slots + size)},
		{s.watch.dropped, &w.removed, &s.watchBuf.removed, n * m.Heads},
	} {
		if !x.asked {
			continue
		}
		if *x.to, err = view(s.e, out[0], x.size, x.buf); err != nil {
			return w, err
		}
		out = out[1:]
	}
	return w, nil
}

// describe sets what is of group g of a layer of sequence j, the layer having groups
// groups.
func (w watched) describe(x *cache.Fresh, m *model.Model, layer, lane, lanes, g, groups int) {
	at := (layer*lanes+lane)*groups + g
	part := func(all []float32) []float32 {
		n := len(all) / (m.Blocks * lanes * groups)
		return all[at*n : (at+1)*n]
	}
	x.Query, x.Key, x.Weight, x.Removed = part(w.query), part(w.key), part(w.weight), part(w.removed)
}

// checkInputs fails when attention has read a number that it cannot work with, given
// the sums of them all, [B]; in is what the chunk's program was given. What a softmax makes of
// such a number can look like a result.
func (s *lanes) checkInputs(sum backends.Buffer, key programKey, in []backends.Buffer, ids [][]int32) error {
	e := s.e
	total, err := view(e, sum, len(s.seqs), &s.watchBuf.sum)
	if err != nil || !slices.ContainsFunc(total, func(x float32) bool { return !(x <= math.MaxFloat32) }) {
		return err
	}
	// Which number it was is not worth an output of every call.
	key.kind = inspectChunk
	out, err := e.run(e.program(key, (*builder).chunkGraph), in...)
	if err != nil {
		return err
	}
	defer e.release(out...)
	m, n := e.model, e.model.Blocks*len(s.seqs)*key.n
	widths := []int{m.Heads * m.KeyDim, m.KVHeads * m.KeyDim, m.KVHeads * m.ValDim, m.FieldHeads, m.FieldHeads}
	var all [][]float32
	for i, b := range out {
		x := make([]float32, n*widths[i])
		if err := take(e, b, x); err != nil {
			return err
		}
		all = append(all, x)
	}
	return s.findBad(all, key.n, ids)
}

// findBad is the error of the first of the outputs of inspectChunk that is not
// finite or too large for the cache; nil if it was their sum alone that overflowed.
func (s *lanes) findBad(all [][]float32, size int, ids [][]int32) error {
	m := s.e.model
	names := []string{"query", "key", "value", "field", "level"}
	for layer := range m.Layers {
		for j, q := range s.seqs {
			for i, x := range all {
				most := math.MaxFloat32
				if i == 1 || i == 2 {
					most = finite.MostKey(s.keys.rounded)
				}
				heads := []int{m.Heads, m.KVHeads, m.KVHeads, m.FieldHeads, m.FieldHeads}[i]
				width := len(x) / (m.Blocks * len(s.seqs) * heads * size)
				own := x[(layer*len(s.seqs)+j)*heads*size*width:]
				for t := range ids[j] {
					for h := range heads {
						for _, v := range own[(h*size+t)*width : (h*size+t+1)*width] {
							if math.Abs(float64(v)) <= most {
								continue
							}
							err := finite.Input(layer, names[i], q.Len()+t, v)
							if len(s.seqs) > 1 {
								err = fmt.Errorf("sequence %d: %w", j, err)
							}
							return err
						}
					}
				}
			}
		}
	}
	return nil
}
