package xla

import (
	"slices"

	"github.com/gomlx/gomlx/backends"
	"github.com/gomlx/gomlx/pkg/core/dtypes"
	gx "github.com/gomlx/gomlx/pkg/core/graph"
	"github.com/gomlx/gomlx/pkg/core/shapes"
	"github.com/x448/float16"

	"github.com/firstpassage/fpa/ops/graph"
	"github.com/firstpassage/fpa/quant"
	"github.com/firstpassage/fpa/runtime/cache"
)

// leastSlots is the smallest capacity of a cache.
const leastSlots = 256

// slots are K and V of B sequences on the device, as many slots for every head of
// every layer of each, with their levels and lows.
//
// Where the host can write to the device's memory it copies the rows of new keys to
// their slots; nothing else is touched. Elsewhere a program makes a new cache of
// the old one and the rows: gomlx does not say in its programs that an input may be
// overwritten.
type slots struct {
	e          *Engine
	lanes      int // B
	typ        dtypes.DType
	rounded    quant.DType // K and V were rounded to that
	audited    bool
	capacity   int
	key, value []*array // [layer], [B, Hkv, capacity, d] and [B, Hkv, capacity, dv]
	level, low *array   // [L, B, Hf, capacity]

	// Of an audit: levels of all slots, dropped keys included, [L, B, Hf, capacity], and
	// 1 for these and 0 for others, [L, B, Hkv, capacity].
	allLevel, dropped *array
}

// newSlots makes empty slots.
func (e *Engine) newSlots(lanes int, typ dtypes.DType, rounded quant.DType, audited bool, capacity int) (*slots, error) {
	k := &slots{e: e, lanes: lanes, typ: typ, rounded: rounded, audited: audited}
	if err := k.allocate(capacity); err != nil {
		return nil, err
	}
	if !e.memory.shared {
		none := make([][][]float32, len(k.key))
		for i := range none {
			none[i] = make([][]float32, lanes*e.model.KVHeads)
		}
		return k, k.fill(none, none)
	}
	return k, nil
}

// shapes are those of K and V of a layer.
func (k *slots) shapes(capacity int) (key, value shapes.Shape) {
	m := k.e.model
	return shapes.Make(k.typ, k.lanes, m.KVHeads, capacity, m.KeyDim), shapes.Make(k.typ, k.lanes, m.KVHeads, capacity, m.ValDim)
}

// allocate makes new arrays. Those of K and V are empty where the host can write to
// them, and elsewhere have no buffer yet, and never have a copy on the host.
func (k *slots) allocate(capacity int) (err error) {
	e, m := k.e, k.e.model
	k.capacity = capacity
	k.key, k.value = make([]*array, m.Blocks), make([]*array, m.Blocks)
	key, value := k.shapes(capacity)
	for i := range k.key {
		if !e.memory.shared {
			k.key[i], k.value[i] = &array{e: e, shape: key, axis: e.cut(byLane, key)}, &array{e: e, shape: value, axis: e.cut(byLane, value)}
			continue
		}
		if k.key[i], err = e.newArray(key, byLane); err != nil {
			return err
		}
		if k.value[i], err = e.newArray(value, byLane); err != nil {
			return err
		}
	}
	fields := shapes.Make(dtypes.Float32, m.Blocks, k.lanes, max(1, m.FieldHeads), capacity)
	if k.level, err = e.newArray(fields, byLayer); err != nil {
		return err
	}
	if k.low, err = e.newArray(fields, byLayer); err != nil || !k.audited {
		return err
	}
	if k.allLevel, err = e.newArray(fields, byLayer); err != nil {
		return err
	}
	k.dropped, err = e.newArray(shapes.Make(dtypes.Float32, m.Blocks, k.lanes, m.KVHeads, capacity), byLayer)
	return err
}

// bytes is what the slots take on the device.
func (k *slots) bytes() int64 {
	key, value := k.shapes(k.capacity)
	n := int64(len(k.key)) * int64(key.Memory()+value.Memory())
	if k.e.model.FieldHeads > 0 {
		n += 2 * int64(k.level.shape.Memory())
	}
	if k.audited {
		n += int64(k.allLevel.shape.Memory() + k.dropped.shape.Memory())
	}
	return n
}

// report adds to the statistics of one of so many sequences what it takes on the
// device.
func (k *slots) report(s *cache.Stats, sequences int) {
	s.BytesAllocated = k.bytes() / int64(sequences)
	s.Device = &cache.DeviceStats{Type: "f32", Slots: k.capacity}
	if k.typ == dtypes.Float16 {
		s.Device.Type = "f16"
	}
}

// free gives the device's memory back.
func (k *slots) free() {
	for _, list := range [][]*array{k.key, k.value, {k.level, k.low, k.allLevel, k.dropped}} {
		for _, a := range list {
			if a != nil {
				a.free()
			}
		}
	}
}

// buffers are K and V of each layer, in the order of chunkGraph.
func (k *slots) buffers() []backends.Buffer {
	var list []backends.Buffer
	for i := range k.key {
		list = append(list, k.key[i].buffer, k.value[i].buffer)
	}
	return list
}

// describe writes levels and lows as the books have them.
func (k *slots) describe(seqs []*sequence) {
	m := k.e.model
	heads := max(1, m.FieldHeads)
	for i := range m.Layers {
		for j, q := range seqs {
			at := (i*k.lanes + j) * heads * k.capacity
			level, low := k.level.floats()[at:], k.low.floats()[at:]
			if m.FieldHeads == 0 {
				// Nothing is ever dropped, so the slots in use are the first ones.
				for s := range k.capacity {
					level[s] = 0
					if s >= q.Len() {
						level[s] = posInf
					}
				}
				continue
			}
			groups := q.books.Groups(i)
			width := heads / len(groups) * k.capacity
			for g, group := range groups {
				group.Remote().Fields(level[g*width:(g+1)*width], low[g*width:(g+1)*width], k.capacity)
			}
			if k.audited {
				k.describeDropped(i, j, groups)
			}
		}
	}
}

// describeDropped writes what an audit needs of the groups of a layer.
func (k *slots) describeDropped(layer, lane int, groups []*cache.Group) {
	at := layer*k.lanes + lane
	level := k.allLevel.floats()[at*k.e.model.FieldHeads*k.capacity:]
	dropped := k.dropped.floats()[at*k.e.model.KVHeads*k.capacity:]
	width, heads := k.e.model.FieldHeads/len(groups)*k.capacity, k.e.model.KVHeads/len(groups)
	for g, group := range groups {
		first := dropped[g*heads*k.capacity:]
		group.Remote().Audited(level[g*width:(g+1)*width], first[:k.capacity], k.capacity)
		for h := 1; h < heads; h++ { // the key heads of a group drop the same keys
			copy(first[h*k.capacity:(h+1)*k.capacity], first)
		}
	}
}

// resize follows the books: the capacity is doubled until all slots in use fit, and
// halved once a quarter would do.
func (k *slots) resize(seqs []*sequence) error {
	used := 0
	for i := range k.key {
		for _, q := range seqs {
			for _, g := range q.books.Groups(i) {
				used = max(used, g.Remote().Slots())
			}
		}
	}
	capacity := k.capacity
	for capacity < used {
		capacity *= 2
	}
	for capacity > leastSlots && 4*used <= capacity {
		capacity /= 2
	}
	if capacity == k.capacity {
		return nil
	}
	old := *k
	defer old.free()
	if k.e.memory.shared {
		if err := k.allocate(capacity); err != nil {
			return err
		}
		for i := range k.key {
			if !slices.ContainsFunc(seqs, (*sequence).begun) {
				break // nothing is in the slots
			}
			copyRows(k.key[i], old.key[i])
			copyRows(k.value[i], old.value[i])
		}
		return nil
	}
	key := programKey{kind: resizeSlots, lanes: k.lanes / k.e.lanesOver(), slots: old.capacity, to: capacity, typ: k.typ}
	out, err := k.e.run(k.e.program(key, (*builder).resizeGraph), old.buffers()...)
	if err != nil {
		return err
	}
	if err := k.allocate(capacity); err != nil {
		return err
	}
	k.adopt(out)
	return nil
}

// adopt takes buffers in the order of chunkGraph for K and V.
func (k *slots) adopt(buffers []backends.Buffer) {
	for i := range k.key {
		for j, a := range []*array{k.key[i], k.value[i]} {
			a.free()
			a.buffer = buffers[2*i+j]
		}
	}
}

// resizeGraph is K and V of all layers with another number of slots.
func (b *builder) resizeGraph() {
	m, from, to := b.e.model, b.key.slots, b.key.to
	for i := range m.Layers {
		for j, width := range []int{m.KeyDim, m.ValDim} {
			x := b.input(layerName(i)+[]string{"K", "V"}[j], byLane, b.key.typ, b.key.lanes, m.KVHeads, from, width)
			if to < from {
				x = gx.SliceAxis(x, 2, gx.AxisRange(0, to))
			} else {
				more := gx.Zeros(b.g, shapes.Make(b.key.typ, b.key.lanes, m.KVHeads, to-from, width))
				x = gx.Concatenate([]*gx.Node{x, more}, 2)
			}
			b.output(x, byLane)
		}
	}
}

// copyRows copies the slots that two arrays [B, Hkv, S, width] have in common.
func copyRows(to, from *array) {
	d, f := to.shape.Dimensions, from.shape.Dimensions
	heads, n, width := d[0]*d[1], min(d[2], f[2]), d[3]
	dst, src := to.floats(), from.floats()
	for h := range heads {
		copy(dst[h*d[2]*width:(h*d[2]+n)*width], src[h*f[2]*width:])
	}
}

// write puts K and V of new tokens, buffers of [B, Hkv, size, width] in the order of
// chunkGraph, into their slots: at[layer][lane][group][size], -1 for a key that is not
// kept.
func (k *slots) write(fresh []backends.Buffer, at []int32, size int, buf *hostBuffers) error {
	m := k.e.model
	groups := len(at) / size / (m.Blocks * k.lanes)
	if !k.e.memory.shared {
		return k.writeThere(fresh, at, groups, size)
	}
	for i, from := range fresh {
		layer := i / 2
		to, copied := k.key[layer], &buf.key
		if i%2 == 1 {
			to, copied = k.value[layer], &buf.value
		}
		width := to.shape.Dimensions[3]
		rows, err := view(k.e, from, k.lanes*m.KVHeads*size*width, copied)
		if err != nil {
			return err
		}
		dst := to.floats()
		for h := range k.lanes * m.KVHeads { // the heads of all lanes
			slot := at[(layer*k.lanes*groups+h*groups/m.KVHeads)*size:]
			for t := range size {
				if s := int(slot[t]); s >= 0 {
					copy(dst[(h*k.capacity+s)*width:][:width], rows[(h*size+t)*width:])
				}
			}
		}
	}
	return nil
}

// writeThere is write where only a program can do it.
func (k *slots) writeThere(fresh []backends.Buffer, at []int32, groups, size int) error {
	e, m := k.e, k.e.model
	there := k.groups()
	numbers := make([]int32, 0, m.Blocks*k.lanes*there*size)
	for i := range m.Blocks * k.lanes {
		// Without a field all groups of the books hold the same keys.
		numbers = append(numbers, at[i*groups*size:(i*groups+there)*size]...)
	}
	shape := shapes.Make(dtypes.Int32, m.Blocks, k.lanes, there, size)
	in, err := e.put(numbers, shape, e.cut(byLayer, shape))
	if err != nil {
		return err
	}
	defer e.release(in)
	p := e.program(programKey{kind: writeSlots, lanes: k.lanes / e.lanesOver(), n: size, slots: k.capacity, typ: k.typ}, (*builder).writeGraph)
	out, err := e.run(p, slices.Concat(fresh, []backends.Buffer{in}, k.buffers())...)
	if err != nil {
		return err
	}
	k.adopt(out)
	return nil
}

// groups is the number of groups of heads that share their slots, as the operator
// sees it.
func (k *slots) groups() int { return min(k.e.model.KVHeads, max(1, k.e.model.FieldHeads)) }

// writeGraph is K and V of all layers with new rows.
//
// Inputs: K and V of the new tokens of each layer, [B, Hkv, N, d] and [B, Hkv, N, dv];
// their slots, [L, B, G, N] int32; K and V of each layer, in the order of chunkGraph.
func (b *builder) writeGraph() {
	m, lanes, n, s := b.e.model, b.key.lanes, b.key.n, b.key.slots
	fieldHeads := max(1, m.FieldHeads)
	var keys, values []*gx.Node
	for i := range m.Layers {
		keys = append(keys, b.input(layerName(i)+"new K", byLane, b.key.typ, lanes, m.KVHeads, n, m.KeyDim))
		values = append(values, b.input(layerName(i)+"new V", byLane, b.key.typ, lanes, m.KVHeads, n, m.ValDim))
	}
	at := b.input("slots", byLayer, dtypes.Int32, m.Blocks, lanes, min(m.KVHeads, fieldHeads), n)
	for i := range m.Layers {
		cache := graph.NewCache(b.g, b.key.typ, lanes, m.KVHeads, fieldHeads, s, m.KeyDim, m.ValDim)
		cache.Key = b.input(layerName(i)+"K", byLane, b.key.typ, lanes, m.KVHeads, s, m.KeyDim)
		cache.Value = b.input(layerName(i)+"V", byLane, b.key.typ, lanes, m.KVHeads, s, m.ValDim)
		fresh := graph.NewCache(b.g, b.key.typ, lanes, m.KVHeads, fieldHeads, n, m.KeyDim, m.ValDim)
		fresh.Key, fresh.Value = keys[i], values[i]
		next := cache.Write(fresh, gx.Squeeze(gx.SliceAxis(at, 0, gx.AxisElem(i)), 0))
		b.output(next.Key, byLane)
		b.output(next.Value, byLane)
	}
}

// host returns a function that finds K and V of a slot of a sequence in float32, and
// that may be called until the next chunk.
func (k *slots) host(lane int) (cache.Row, error) {
	m := k.e.model
	key, err := k.floats(k.key)
	if err != nil {
		return nil, err
	}
	value, err := k.floats(k.value)
	if err != nil {
		return nil, err
	}
	return func(layer, head, slot int) (_, _ []float32) {
		at := (lane*m.KVHeads+head)*k.capacity + slot
		return key[layer][at*m.KeyDim : (at+1)*m.KeyDim], value[layer][at*m.ValDim : (at+1)*m.ValDim]
	}, nil
}

// floats are arrays of K or V in float32, where they are or as a copy.
func (k *slots) floats(list []*array) ([][]float32, error) {
	out := make([][]float32, len(list))
	for i, a := range list {
		switch {
		case k.e.memory.shared:
			out[i] = a.floats()
			continue
		case k.typ == dtypes.Float32:
			out[i] = make([]float32, a.shape.Size())
			if err := take(k.e, a.buffer, out[i]); err != nil {
				return nil, err
			}
			continue
		}
		narrow := make([]float16.Float16, a.shape.Size())
		if err := take(k.e, a.buffer, narrow); err != nil {
			return nil, err
		}
		out[i] = make([]float32, len(narrow))
		for j, x := range narrow {
			out[i][j] = x.Float32()
		}
	}
	return out, nil
}

// fill puts rows [layer][head of all lanes], each with the slots that it has, into
// empty arrays.
func (k *slots) fill(key, value [][][]float32) error {
	for _, x := range []struct {
		to   []*array
		from [][][]float32
	}{{k.key, key}, {k.value, value}} {
		for i, a := range x.to {
			if !k.e.memory.shared {
				a.flat = a.makeFlat()
			}
			width := a.shape.Size() / len(x.from[i])
			for h, rows := range x.from[i] {
				switch flat := a.flat.(type) {
				case []float32:
					copy(flat[h*width:], rows)
				case []float16.Float16:
					for j, v := range rows {
						flat[h*width+j] = float16.Fromfloat32(v)
					}
				}
			}
			if _, err := a.send(); err != nil {
				return err
			}
			if !k.e.memory.shared {
				a.flat = nil
			}
		}
	}
	return nil
}
