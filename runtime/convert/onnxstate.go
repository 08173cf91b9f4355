package convert

import (
	"fmt"
	"math"

	"github.com/firstpassage/fpa/format/onnx"
	"github.com/firstpassage/fpa/ops/onnxbody"
	"github.com/firstpassage/fpa/runtime/model"
)

// The names of sizes that are known when the model runs, those that other
// exporters use.
const (
	batchSize   = "batch_size"
	newLength   = "sequence_length"
	pastLength  = "past_sequence_length"
	totalLength = "past_sequence_length + sequence_length"
)

// state is one tensor that a layer carries from call to call.
type state struct {
	name    string
	elem    onnx.DataType
	in, out []any // shapes
}

func past(i int, state string) string    { return fmt.Sprintf("past_key_values.%d.%s", i, state) }
func present(i int, state string) string { return fmt.Sprintf("present.%d.%s", i, state) }

// stateList lists the states of layer i as inputs and outputs of the graph. Where dead
// keys are dropped, each layer keeps another number of slots, and must say so: runtimes
// give one buffer to values whose sizes have the same name.
func (g *onnxGraph) stateList(i int) []state {
	c := g.c
	pastLength, totalLength := pastLength, totalLength
	if g.o.Cache != onnxbody.CacheOff {
		pastLength, totalLength = fmt.Sprintf("past_slots.%d", i), fmt.Sprintf("present_slots.%d", i)
	}
	slots := func(name string, heads int, widths ...any) state {
		dims := func(length string) []any { return append([]any{batchSize, heads, length}, widths...) }
		return state{name, onnx.Float, dims(pastLength), dims(totalLength)}
	}
	fixed := func(name string, elem onnx.DataType, dims ...any) state {
		dims = append([]any{batchSize}, dims...)
		return state{name, elem, dims, dims}
	}
	if g.o.Packed {
		width := packedWidth(c)
		return []state{slots("key", c.KVHeads, width), slots("value", c.KVHeads, width)}
	}
	list := []state{
		slots("key", c.KVHeads, c.KeyDim), slots("value", c.KVHeads, c.ValDim),
		slots("level", g.fieldHeads()), slots("low", g.fieldHeads()),
	}
	if c.Field == model.FieldWalk {
		list = append(list, fixed("field", onnx.Double, c.FieldHeads))
	}
	if c.KeyShift {
		list = append(list, fixed("key_shift", onnx.Float, c.KVHeads, 1, c.KeyDim))
	}
	if c.ValueShift {
		list = append(list, fixed("value_shift", onnx.Float, c.KVHeads, 1, c.ValDim))
	}
	return list
}

// fieldHeads is the number of field heads that the operator sees: without a
// field one, which only says what is padded.
func (g *onnxGraph) fieldHeads() int { return max(1, g.c.FieldHeads) }

// states declares the states of layer i as inputs and outputs.
func (g *onnxGraph) states(i int) {
	for _, s := range g.stateList(i) {
		g.pasts[past(i, s.name)] = g.b.Input(past(i, s.name), onnx.TensorOf(s.elem, s.in...))
		name := present(i, s.name)
		g.order = append(g.order, name)
		g.outputs[name] = onnx.TensorOf(s.elem, s.out...)
	}
}

// past is the state of layer i before the call.
func (g *onnxGraph) past(i int, state string) onnx.Value { return g.pasts[past(i, state)] }

// present is the name of the value that is the state of layer i after the call:
// that of the output, or one made up where the states are packed.
func (g *onnxGraph) present(i int, state string) string {
	name := present(i, state)
	if !g.o.Packed {
		return name
	}
	g.presents[name] = onnx.Value(g.b.Fresh(state))
	return string(g.presents[name])
}

// Packed states.
//
// Pipelines that know keys and values alone feed back nothing else. So the other
// states are channels behind those of the keys, all float32:
//
//	key  | level | low | field, high and low part | key_shift | value_shift | zeros
//
// Levels and lows are those of the field heads that the queries of a key head
// read, one after the other; where there is one field head, each key head has a
// copy. What belongs to a sequence, not to a slot, is in the last slot, and 0 in
// the others. The field is a float64 in two parts. Values are filled up with zeros
// to the width of the keys, since some pipelines have one width for both.

// channels are the widths of the parts of a packed key.
type channels struct {
	fields                            int64 // field heads of one key head
	key, slot, field, keyShift, value int64 // slot: level and low together
}

func packedChannels(c *model.Config) channels {
	ch := channels{fields: int64(max(1, c.FieldHeads/c.KVHeads)), key: int64(c.KeyDim)}
	ch.slot = 2 * ch.fields
	if c.Field == model.FieldWalk {
		ch.field = 2 * ch.fields
	}
	if c.KeyShift {
		ch.keyShift = int64(c.KeyDim)
	}
	if c.ValueShift {
		ch.value = int64(c.ValDim)
	}
	return ch
}

// packedWidth is the width of packed keys and values.
func packedWidth(c *model.Config) int {
	ch := packedChannels(c)
	return max(int(ch.key+ch.slot+ch.field+ch.keyShift+ch.value), c.ValDim)
}

// cut takes the channels from to to.
func (g *onnxGraph) cut(v onnx.Value, from, to int64) onnx.Value {
	return g.b.Op("Slice", v, g.b.Int64s(from), g.b.Int64s(to), g.b.Int64s(3))
}

// unpack takes the states of layer i out of the packed ones.
func (g *onnxGraph) unpack(i int) {
	b, c, ch := g.b, g.c, packedChannels(g.c)
	key, value := g.past(i, "key"), g.past(i, "value")
	set := func(state string, v onnx.Value) { g.pasts[past(i, state)] = v }
	at := int64(0)
	next := func(from onnx.Value, width int64) onnx.Value {
		at += width
		return g.cut(from, at-width, at)
	}
	set("value", g.cut(value, 0, int64(c.ValDim)))
	set("key", next(key, ch.key))
	set("level", g.fieldsFirst(next(key, ch.fields)))
	set("low", g.fieldsFirst(next(key, ch.fields)))

	// The last slot, zeros before the first call.
	start := b.Op("Expand", g.scalar(0), b.Op("Concat", g.batch, b.Int64s(int64(c.KVHeads), 1, int64(packedWidth(c))), onnx.IntAttr("axis", 0)))
	tail, end, slots := b.Int64s(-1), b.Int64s(math.MaxInt64), b.Int64s(2)
	last := b.Op("Slice", key, tail, end, slots)
	last = b.Op("Slice", b.Op("Concat", start, last, onnx.IntAttr("axis", 2)), tail, end, slots)
	if ch.field > 0 {
		double := func(v onnx.Value) onnx.Value {
			return b.Op("Squeeze", b.Op("Cast", g.fieldsFirst(v), onnx.To(onnx.Double)), b.Int64s(2))
		}
		high := double(next(last, ch.fields))
		set("field", b.Op("Add", high, double(next(last, ch.fields))))
	}
	if ch.keyShift > 0 {
		set("key_shift", next(last, ch.keyShift))
	}
	if ch.value > 0 {
		set("value_shift", next(last, ch.value))
	}
}

// fieldsFirst turns channels of key heads, [B, Hkv, L, fields], into [B, Hf, L].
func (g *onnxGraph) fieldsFirst(v onnx.Value) onnx.Value {
	b, hf := g.b, int64(g.fieldHeads())
	if int(hf) < g.c.KVHeads { // one for all: the first has it
		v = b.Op("Slice", v, b.Int64s(0), b.Int64s(1), b.Int64s(1))
	}
	v = g.transpose(v, 0, 1, 3, 2)
	// The length may be 0, which a size that is left open cannot be.
	shape := b.Op("Concat", g.batch, b.Int64s(hf), b.Op("Shape", v, onnx.IntAttr("start", 3)), onnx.IntAttr("axis", 0))
	return b.Op("Reshape", v, shape, onnx.IntAttr("allowzero", 1))
}

// channelsOf is the inverse of fieldsFirst; the length must not be 0.
func (g *onnxGraph) channelsOf(v onnx.Value) onnx.Value {
	b, hkv, fields := g.b, int64(g.c.KVHeads), packedChannels(g.c).fields
	if int64(g.fieldHeads()) < hkv {
		v = b.Op("Expand", v, b.Int64s(1, hkv, 1))
	}
	return g.transpose(b.Op("Reshape", v, b.Op("Concat", g.batch, b.Int64s(hkv, fields, -1), onnx.IntAttr("axis", 0))), 0, 1, 3, 2)
}

// pack makes the packed states of layer i of the others.
func (g *onnxGraph) pack(i int) {
	b, c, ch := g.b, g.c, packedChannels(g.c)
	get := func(state string) onnx.Value { return g.presents[present(i, state)] }
	width := int64(packedWidth(c))
	key, value := get("key"), get("value")
	slots := b.Op("Shape", key, onnx.IntAttr("start", 2), onnx.IntAttr("end", 3))
	pad := func(v, before onnx.Value, after int64, name ...string) onnx.Value {
		pads := b.Op("Concat", b.Int64s(0, 0), before, b.Int64s(0, 0, 0, 0, after), onnx.IntAttr("axis", 0))
		return b.Op("Pad", v, pads, g.scalar(0), onnx.As(name...))
	}
	none := b.Int64s(0)
	pad(value, none, width-int64(c.ValDim), present(i, "value"))

	parts := []onnx.Value{key, g.channelsOf(get("level")), g.channelsOf(get("low"))}
	used := ch.key + ch.slot
	var once []onnx.Value // [B, Hkv, 1, ...]
	if ch.field > 0 {
		field := b.Op("Unsqueeze", get("field"), b.Int64s(2))
		high := b.Op("Cast", field, onnx.To(onnx.Float))
		low := b.Op("Cast", b.Op("Sub", field, b.Op("Cast", high, onnx.To(onnx.Double))), onnx.To(onnx.Float))
		once = append(once, g.channelsOf(high), g.channelsOf(low))
		used += ch.field
	}
	if ch.keyShift > 0 {
		once = append(once, get("key_shift"))
		used += ch.keyShift
	}
	if ch.value > 0 {
		once = append(once, get("value_shift"))
		used += ch.value
	}
	if len(once) > 0 {
		last := b.Op("Concat", onnx.Inputs(once...), onnx.IntAttr("axis", 3))
		parts = append(parts, pad(last, b.Op("Sub", slots, b.Int64s(1)), 0))
	}
	packed := onnx.Inputs(parts...)
	if used == width {
		b.Op("Concat", packed, onnx.IntAttr("axis", 3), onnx.As(present(i, "key")))
		return
	}
	pad(b.Op("Concat", packed, onnx.IntAttr("axis", 3)), none, width-used, present(i, "key"))
}
