// Package model describes a decoder with First Passage Attention: its
// configuration, the tensors it is made of, and how both are read from a GGUF
// file or from a checkpoint.
//
// There is one description of the block, Config.Tensors, and one set of tensor
// names, those of the GGUF file. A checkpoint is read by giving its tensors
// these names, so that the engines, the converter and the verification all see
// the same Model whatever it came from.
package model

import (
	"fmt"
	"math"

	"github.com/firstpassage/fpa/format"
)

// FieldKind says how the scalar field of a head is made from the projected
// increments.
type FieldKind string

// The field kinds.
const (
	FieldWalk   FieldKind = "walk"   // field[t] = field[t-1] + inc[t]
	FieldDirect FieldKind = "direct" // field[t] = inc[t]
	FieldNone   FieldKind = "none"   // no field: plain softmax
)

// LevelKind says where the level of a key comes from.
type LevelKind string

// The level kinds.
const (
	LevelTied     LevelKind = "tied"     // level[t] = field[t]
	LevelOffset   LevelKind = "offset"   // level[t] = field[t] + one constant a head
	LevelRelative LevelKind = "relative" // level[t] = field[t] + W x[t] + b
	LevelAbsolute LevelKind = "absolute" // level[t] = W x[t] + b, direct fields only
)

// Activation names a scalar function. The first four are for fields, the
// others for the feed-forward block and the output gate.
type Activation string

// The activations.
const (
	Identity    Activation = "identity"
	Tanh        Activation = "tanh"
	LogSigmoid  Activation = "log_sigmoid"
	NegSoftplus Activation = "neg_softplus"

	Silu     Activation = "silu"
	Sigmoid  Activation = "sigmoid"
	Gelu     Activation = "gelu" // the erf form
	GeluTanh Activation = "gelu_tanh"
	Relu     Activation = "relu"
)

// Field is the activation of a field as a function of float64; Identity for a name
// that is none of a field's.
func (a Activation) Field() func(float64) float64 {
	softplus := func(x float64) float64 { return max(x, 0) + math.Log1p(math.Exp(-math.Abs(x))) }
	switch a {
	case Tanh:
		return math.Tanh
	case LogSigmoid:
		return func(x float64) float64 { return -softplus(-x) }
	case NegSoftplus:
		return func(x float64) float64 { return -softplus(x) }
	}
	return func(x float64) float64 { return x }
}

// NormKind says which weights the RMS norm of queries and keys has.
type NormKind string

// The kinds of query and key norm.
const (
	NormNone   NormKind = "none"
	NormHead   NormKind = "head"   // one weight vector a head
	NormShared NormKind = "shared" // one weight vector for all heads
)

// GateNone is the output gate of a block that has none; Sigmoid and Silu are
// the others.
const GateNone Activation = "none"

// Interval says which positions the running minimum of a key covers.
type Interval string

// The intervals, for key j and query i.
const (
	Exclusive Interval = "exclusive" // j < t <= i
	Inclusive Interval = "inclusive" // j <= t <= i
)

// Config is the configuration of a decoder.
type Config struct {
	VocabSize     int
	ContextLength int // the training length; no limit unless there is RoPE
	Hidden        int // width of the residual stream
	Blocks        int // layers
	FeedForward   int

	Heads   int // query heads
	KVHeads int // key and value heads; divides Heads
	KeyDim  int // width of a query or key head
	ValDim  int // width of a value head

	NormEps float32
	Scale   float32 // of the logits; 1/sqrt(KeyDim) unless the model says otherwise

	Field           FieldKind
	FieldActivation Activation
	FieldHeads      int // Heads, KVHeads or 1; 0 without field
	Level           LevelKind
	Interval        Interval

	QKNorm    NormKind
	QKNormEps float32

	OutputGate Activation // GateNone, Sigmoid or Silu
	OutputNorm bool       // RMS norm a head before the gate
	KeyShift   bool
	ValueShift bool

	Activation Activation // of the feed-forward gate

	RopeDim  int // rotated dimensions of a head; 0: no rotary embedding
	RopeBase float64

	// LogitBound[layer*Heads+head] bounds |Scale*q.k| over all inputs, the U of
	// the eviction rule. Nil where there is no proof.
	LogitBound []float32
}

// maxDim bounds every size of a configuration, so that products of two fit an
// int64 with room to spare.
const maxDim = 1 << 28

// Validate checks that the sizes are positive and fit each other and that every
// name is known. The errors are FormatErrors without a path, or
// UnsupportedErrors for a combination that has no meaning.
func (c *Config) Validate() error {
	for _, f := range []struct {
		name  string
		value int
	}{
		{"vocab_size", c.VocabSize}, {"context_length", c.ContextLength}, {"embedding_length", c.Hidden},
		{"block_count", c.Blocks}, {"feed_forward_length", c.FeedForward}, {"head_count", c.Heads},
		{"head_count_kv", c.KVHeads}, {"key_length", c.KeyDim}, {"value_length", c.ValDim},
	} {
		if f.value < 1 || f.value > maxDim {
			return bad(f.name, "is %d, expected 1 to %d", f.value, maxDim)
		}
	}
	if c.Heads%c.KVHeads != 0 {
		return bad("head_count_kv", "%d key heads do not divide %d query heads", c.KVHeads, c.Heads)
	}
	if !(c.NormEps >= 0 && c.NormEps < 1) {
		return bad("layer_norm_rms_epsilon", "is %g, expected 0 to 1", c.NormEps)
	}
	if !(math.Abs(float64(c.Scale)) < 1e6) {
		return bad("attention.scale", "is %g, expected a finite number", c.Scale)
	}
	if err := c.validateField(); err != nil {
		return err
	}
	if err := oneOf("attention.qk_norm", c.QKNorm, NormNone, NormHead, NormShared); err != nil {
		return err
	}
	if c.QKNorm != NormNone && !(c.QKNormEps >= 0 && c.QKNormEps < 1) {
		return bad("attention.qk_norm_epsilon", "is %g, expected 0 to 1", c.QKNormEps)
	}
	if err := oneOf("attention.output_gate", c.OutputGate, GateNone, Sigmoid, Silu); err != nil {
		return err
	}
	if err := oneOf("feed_forward.activation", c.Activation, Silu, Sigmoid, Gelu, GeluTanh, Relu); err != nil {
		return err
	}
	if c.RopeDim < 0 || c.RopeDim > c.KeyDim || c.RopeDim%2 != 0 {
		return bad("rope.dimension_count", "is %d, expected an even number up to the head size %d", c.RopeDim, c.KeyDim)
	}
	if c.RopeDim > 0 && !(c.RopeBase > 0 && c.RopeBase < 1e12) {
		return bad("rope.freq_base", "is %g, expected a positive number", c.RopeBase)
	}
	if c.LogitBound != nil {
		if len(c.LogitBound) != c.Blocks*c.Heads {
			return bad("attention.logit_bound", "has %d entries, expected block_count x head_count = %d", len(c.LogitBound), c.Blocks*c.Heads)
		}
		for i, u := range c.LogitBound {
			if !(u >= 0 && u <= math.MaxFloat32) {
				return bad("attention.logit_bound", "entry %d is %g, expected a finite number of at least 0", i, u)
			}
		}
	}
	return nil
}

func (c *Config) validateField() error {
	if err := oneOf("attention.field.kind", c.Field, FieldWalk, FieldDirect, FieldNone); err != nil {
		return err
	}
	if err := oneOf("attention.interval", c.Interval, Exclusive, Inclusive); err != nil {
		return err
	}
	if c.Field == FieldNone {
		if c.FieldHeads != 0 {
			return bad("attention.field.head_count", "is %d, expected 0 without a field", c.FieldHeads)
		}
		return nil
	}
	if err := oneOf("attention.field.activation", c.FieldActivation, Identity, Tanh, LogSigmoid, NegSoftplus); err != nil {
		return err
	}
	if err := oneOf("attention.level.kind", c.Level, LevelTied, LevelOffset, LevelRelative, LevelAbsolute); err != nil {
		return err
	}
	if c.Level == LevelAbsolute && c.Field == FieldWalk {
		return &format.UnsupportedError{Offset: -1, Where: "attention.level.kind",
			Msg: "an absolute level has no meaning on a walk (it would depend on the origin of the walk); use relative, or a direct field"}
	}
	if h := c.FieldHeads; h != c.Heads && h != c.KVHeads && h != 1 {
		return bad("attention.field.head_count", "is %d, expected head_count %d, head_count_kv %d or 1", h, c.Heads, c.KVHeads)
	}
	return nil
}

// Evictable says whether the safe eviction rule holds for this model.
func (c *Config) Evictable() bool { return c.KeepsAll() == "" }

// KeepsAll says why no key of this model can be proved dead; empty when keys can.
// The rule needs a query that sees itself without penalty, and a proved bound on the
// logits, which Model.LogitBounds has for all but odd weights.
func (c *Config) KeepsAll() string {
	switch {
	case c.Field == FieldNone:
		return "its heads are plain softmax"
	case c.SelfPenalised():
		return "with the inclusive interval a query may see itself with a penalty"
	case c.LogitBound == nil:
		return "no bound on its logits is proved: a norm has an epsilon of 0, or its weights are so large that a key may overflow"
	}
	return ""
}

// SelfPenalised says whether a query may see its own key with a penalty, so that
// the rule of safe eviction does not hold.
func (c *Config) SelfPenalised() bool {
	return c.Field != FieldNone && c.Interval == Inclusive && c.Level != LevelTied
}

func bad(where, msg string, args ...any) error {
	return &format.FormatError{Offset: -1, Where: where, Msg: fmt.Sprintf(msg, args...)}
}

// oneOf checks that a name of the file is one that this program knows.
func oneOf[T ~string](where string, got T, known ...T) error {
	for _, k := range known {
		if got == k {
			return nil
		}
	}
	return &format.UnsupportedError{Offset: -1, Where: where, Msg: fmt.Sprintf("%q is not known, expected one of %v", got, known)}
}
