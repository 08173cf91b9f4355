// Package onnxbody writes the operator FirstPassageAttention, version 1 of the
// domain ai.firstpassage, in ONNX: as a node, and as a body of standard
// operators that means the same. Package ops/reference defines the operator.
//
// There is one source of the body. [Function] makes it a function of the model,
// [Inline] puts it into a graph, [Attention] is a second, shorter form around
// the standard's own Attention operator (opset 23), and [Node] is the node
// alone.
//
// # Form of the body
//
// ONNX has no cumulative minimum. The body takes queries in blocks of
// [BlockLen]: a Scan of at most BlockLen steps, over all blocks at once, gives
// the lows within each block and the minimum of the field from the block's
// start to each query. A Loop over the blocks carries the low of every key
// before the block, from which the low for each query is one Min:
//
//	low[i,j] = min(low[j] at the block's start, min of field from there to i)
//
// Each block attends with its own matrices, so memory grows with the number of
// keys, not with its square, and keys after the block are not looked at. Up to
// BlockLen positions at once, as in decoding, there is no Loop, nor a copy of
// keys and values but the one that appends. docs/onnx.md has the measurements
// behind this.
//
// Skipped positions weigh nothing, but 0 times NaN is NaN: their keys and
// values must be finite. A query without any key gives zeros.
package onnxbody

import (
	"fmt"
	"math"

	"github.com/firstpassage/fpa/format/onnx"
)

// The operator's names in a model.
const (
	Domain  = "ai.firstpassage"
	Name    = "FirstPassageAttention"
	Version = 1 // of the domain's operator set
)

// Names of the operator's inputs and outputs, in order. The last four inputs
// are optional together.
var (
	InputNames  = []string{"query", "key", "value", "field", "level", "slope", "past_key", "past_value", "past_level", "past_low"}
	OutputNames = []string{"output", "present_key", "present_value", "present_level", "present_low"}
)

// Intervals, the values of the attribute "interval".
const (
	Exclusive = "exclusive" // the low of key j for query i is over j < t <= i
	Inclusive = "inclusive" // over j <= t <= i
)

// The values of the attribute "cache", which says what dead keys may weigh that the
// present tensors leave out: nothing that float32 shows, or a given amount.
const (
	CacheOff     = "off"
	CacheExact   = "exact"
	CacheBounded = "bounded"
)

// BlockLen is the number of queries that the body takes at a time.
const BlockLen = 64

// The operator sets that the body can be written for. From 17 on the operators
// in it mean the same; Attention is in the standard since 23.
const (
	MinOpset       = 17
	AttentionOpset = 23
)

// defaultsOpset is the first operator set that came with a version of the format
// in which attributes of functions can have defaults.
const defaultsOpset = 19

// Options say which operator is meant.
type Options struct {
	Interval string  // Exclusive or Inclusive; empty: Exclusive
	Scale    float32 // of the logits; 0: 1/sqrt of the keys' width

	// Convert casts queries, keys and values to float32 before, and the output
	// back after, for models where they have another type. A function always
	// does, which costs nothing where they are float32.
	Convert bool

	// Dropping of dead keys, by implementations that can: Node writes it into the
	// node, and nothing else looks at it. The standard operators of a body keep every
	// slot.
	Cache      string    // CacheOff, CacheExact or CacheBounded; empty: CacheOff
	CacheEps   float32   // of CacheBounded: what the dropped keys may weigh together
	LogitBound []float32 // for each query head a bound of |Scale * q·k|; not with CacheOff

	// Names are the names of the outputs, in the order of OutputNames; where they
	// end or are empty, names are made up. Giving a name later, by Identity, may
	// cost a copy of all keys.
	Names []string
}

// name is the name of the i-th output in b.
func (o *Options) name(b *onnx.Builder, i int) string {
	if i < len(o.Names) && o.Names[i] != "" {
		return o.Names[i]
	}
	return b.Fresh(OutputNames[i])
}

func (o *Options) check() error {
	switch o.Interval {
	case "":
		o.Interval = Exclusive
	case Exclusive, Inclusive:
	default:
		return fmt.Errorf("onnxbody: interval %q, expected %q or %q", o.Interval, Exclusive, Inclusive)
	}
	if s := float64(o.Scale); math.IsNaN(s) || math.IsInf(s, 0) {
		return fmt.Errorf("onnxbody: scale %g, expected a finite number", s)
	}
	switch o.Cache {
	case "":
		o.Cache = CacheOff
	case CacheOff, CacheExact, CacheBounded:
	default:
		return fmt.Errorf("onnxbody: cache %q, expected %q, %q or %q", o.Cache, CacheOff, CacheExact, CacheBounded)
	}
	if o.Cache == CacheOff {
		return nil
	}
	if o.Interval != Exclusive {
		return fmt.Errorf("onnxbody: cache %q with the interval %q, in which no key can be dropped safely", o.Cache, o.Interval)
	}
	if o.Cache == CacheBounded && !(o.CacheEps > 0 && o.CacheEps < 1) {
		return fmt.Errorf("onnxbody: dropped keys may weigh %g, expected a number above 0 and below 1", o.CacheEps)
	}
	if len(o.LogitBound) == 0 {
		return fmt.Errorf("onnxbody: cache %q without bounds of the logits", o.Cache)
	}
	return nil
}

// Inputs are the operator's inputs, with the shapes that package ops/reference
// gives. The four of the past are all there or all None.
type Inputs struct {
	Query, Key, Value                      onnx.Value
	Field, Level, Slope                    onnx.Value
	PastKey, PastValue, PastLevel, PastLow onnx.Value
}

func (in *Inputs) check() error {
	for _, v := range []onnx.Value{in.Query, in.Key, in.Value, in.Field, in.Level, in.Slope} {
		if v == onnx.None {
			return fmt.Errorf("onnxbody: an input is missing, expected the first six always")
		}
	}
	past := 0
	for _, v := range in.past() {
		if v != onnx.None {
			past++
		}
	}
	if past != 0 && past != 4 {
		return fmt.Errorf("onnxbody: %d of the four past inputs, expected all or none", past)
	}
	return nil
}

func (in *Inputs) past() []onnx.Value {
	return []onnx.Value{in.PastKey, in.PastValue, in.PastLevel, in.PastLow}
}

func (in *Inputs) hasPast() bool { return in.PastKey != onnx.None }

// Outputs are the operator's outputs.
type Outputs struct {
	Output                                             onnx.Value
	PresentKey, PresentValue, PresentLevel, PresentLow onnx.Value
}

// Node puts the operator's node into a graph. Scale and interval are written out,
// also where they have their defaults: not every runtime knows the defaults of
// a function's attributes. What says which keys to drop is there only where keys
// may be dropped.
func Node(b *onnx.Builder, in Inputs, o Options) (Outputs, error) {
	if err := errors2(o.check(), in.check()); err != nil {
		return Outputs{}, err
	}
	var names []string
	for i := range OutputNames {
		names = append(names, o.name(b, i))
	}
	args := []onnx.Arg{
		onnx.As(names...), in.Query, in.Key, in.Value, in.Field, in.Level, in.Slope, onnx.Inputs(in.past()...),
		onnx.FloatAttr("scale", o.Scale), onnx.StringAttr("interval", o.Interval),
	}
	if o.Cache != CacheOff {
		args = append(args, onnx.StringAttr("cache", o.Cache), onnx.FloatsAttr("logit_bound", o.LogitBound...))
	}
	if o.Cache == CacheBounded {
		args = append(args, onnx.FloatAttr("cache_eps", o.CacheEps))
	}
	out := b.Ops(5, Domain+"::"+Name, args...)
	return Outputs{out[0], out[1], out[2], out[3], out[4]}, b.Err()
}

// Function is the operator as a function of a model, for an operator set from
// MinOpset on. The attribute "scale" is read from the node, with 0 standing for
// 1/sqrt of the keys' width. The body does not look at the attribute "interval",
// since strings cannot be compared in all of these operator sets: it is for
// nodes whose interval is o's. Below opset 19, whose models come in a version of
// the format without defaults, nodes must give both attributes, as Node does.
//
// With past, the function takes all ten inputs, else the first six. A body
// cannot tell an input that is left out from one that is there, so a model uses
// one of the two for all its nodes, and gives an empty past (of length 0) where
// there is none yet.
func Function(opset int64, past bool, o Options) (*onnx.Function, error) {
	if err := o.check(); err != nil {
		return nil, err
	}
	if opset < MinOpset {
		return nil, fmt.Errorf("onnxbody: opset %d, expected %d or later", opset, MinOpset)
	}
	b := onnx.NewFunction(Domain, Name)
	names := InputNames
	if !past {
		names = names[:6]
	}
	var values [10]onnx.Value
	for i, n := range names {
		values[i] = b.Input(n, nil)
	}
	if opset < defaultsOpset {
		b.Attribute("scale")
		b.Attribute("interval")
	} else {
		b.Default(onnx.FloatAttr("scale", o.Scale))
		b.Default(onnx.StringAttr("interval", o.Interval))
	}
	o.Convert, o.Names = true, OutputNames
	w := newWriter(b, Inputs{
		values[0], values[1], values[2], values[3], values[4], values[5],
		values[6], values[7], values[8], values[9],
	}, o)
	given := b.Op("Constant", onnx.Ref("value_float", "scale", onnx.KindFloat))
	w.scale = b.Op("Where", b.Op("Equal", given, w.zero), w.defaultScale(), given)
	out := w.body()
	for _, v := range []onnx.Value{out.Output, out.PresentKey, out.PresentValue, out.PresentLevel, out.PresentLow} {
		b.Output(v, nil)
	}
	return b.Function(onnx.Opset{Version: opset})
}

// Inline puts the body into a graph whose standard operator set is MinOpset or
// later.
func Inline(b *onnx.Builder, in Inputs, o Options) (Outputs, error) {
	if err := errors2(o.check(), in.check()); err != nil {
		return Outputs{}, err
	}
	w := newWriter(b, in, o)
	w.constantScale()
	return w.body(), b.Err()
}

// Attention puts the operator into a graph as the penalty in standard operators
// and the Attention operator of the standard, which adds it to its scores; for
// operator sets from AttentionOpset on. The penalty is a matrix of all queries
// by all keys. queryHeads and fieldHeads are the numbers of heads. All inputs must
// be float32.
func Attention(b *onnx.Builder, in Inputs, queryHeads, fieldHeads int64, o Options) (Outputs, error) {
	if err := errors2(o.check(), in.check()); err != nil {
		return Outputs{}, err
	}
	if fieldHeads < 1 || queryHeads%fieldHeads != 0 {
		return Outputs{}, fmt.Errorf("onnxbody: %d query heads over %d field heads, expected a divisor", queryHeads, fieldHeads)
	}
	if o.Convert {
		return Outputs{}, fmt.Errorf("onnxbody: the form attention takes float32 alone")
	}
	return newWriter(b, in, o).attention(queryHeads, fieldHeads), b.Err()
}

// errors2 is the first of two errors.
func errors2(a, b error) error {
	if a != nil {
		return a
	}
	return b
}
