// Package attention computes First Passage Attention over whole tensors with the
// kernels of ops/kernels: the operator FirstPassageAttention as ONNX has it, past
// and present slots included. Package ops/reference defines the operator.
//
// # How a call runs
//
// Fill in the operands of a [Call], ask [Call.Plan] how many slots the present
// tensors hold, give it the outputs, and run [Call.Run] once for each of
// [Call.Units] units, on any threads, each with a [Scratch] of its own. Units
// write to separate places and need nothing of each other, and a result does not
// depend on who runs them in which order. Once a Call and a Scratch have grown to
// the sizes in use, nothing is allocated.
//
// A unit of many queries attends by tiles of 64 queries by 64 keys, with the softmax
// kept running, so memory grows with the number of keys and not with its square. A
// tile whose penalties prove that every weight in it is 0 in float32 is left out,
// which changes no bit. A unit of few queries, as in decoding, takes one query at a
// time over all keys, and moves keys and values to the present tensors while they are
// in the processor's cache.
//
// # Dropping dead keys
//
// With thresholds ([Threshold]) a call keeps the live slots only. The penalty of a key
// never falls. Let U bound the absolute logit, without penalty, of a query head over
// all inputs. A query at a position that is not skipped sees its own key at
// penalty 0 (exclusive interval), so the softmax's denominator is at least exp(-U),
// and a key with penalty p weighs at most exp(2U-p) then and ever after. A key is
// dropped when
//
//	p >= 2U + ln(2^20/eps)
//
// for every query head that reads it: it then weighs at most eps/2^20, and all that
// are ever dropped of 2^20 positions weigh at most eps together. The rule needs no
// memory of what was dropped before, which the operator's state has no place for;
// against the ledger of runtime/cache, which has one, keys live longer by a fall of
// about ln(2^20/4) = 12.5 in the logits.
package attention

import (
	"fmt"
	"math"
)

// Element is the type of queries, keys and values: float32, or the bits of a
// binary16 number.
type Element interface{ float32 | uint16 }

// Shape is the size of a call.
type Shape struct {
	Batch      int // B
	QueryHeads int // Hq, a multiple of KeyHeads and of FieldHeads
	KeyHeads   int // Hkv
	FieldHeads int // Hf
	New        int // T, the new positions
	Past       int // P, the slots of earlier calls
	KeyDim     int // D
	ValueDim   int // Dv
}

// maxHeads bounds the number of heads. Heads cost time even where there is no
// position, so that a tensor without elements could claim any number of them.
const maxHeads = 1 << 16

// Check reports the first way in which the sizes do not fit together.
func (s Shape) Check() error {
	for _, n := range []struct {
		name            string
		value, min, max int
	}{
		{"batch", s.Batch, 0, math.MaxInt}, {"number of query heads", s.QueryHeads, 1, maxHeads},
		{"number of key heads", s.KeyHeads, 1, maxHeads}, {"number of field heads", s.FieldHeads, 1, maxHeads},
		{"number of new positions", s.New, 0, math.MaxInt / 2}, {"number of past slots", s.Past, 0, math.MaxInt / 2},
		{"width of keys", s.KeyDim, 1, math.MaxInt}, {"width of values", s.ValueDim, 1, math.MaxInt},
	} {
		if n.value < n.min || n.value > n.max {
			return fmt.Errorf("the %s is %d, expected %d to %d", n.name, n.value, n.min, n.max)
		}
	}
	if s.QueryHeads%s.KeyHeads != 0 {
		return fmt.Errorf("%d query heads over %d key heads, expected a multiple", s.QueryHeads, s.KeyHeads)
	}
	if s.QueryHeads%s.FieldHeads != 0 {
		return fmt.Errorf("%d query heads over %d field heads, expected a multiple", s.QueryHeads, s.FieldHeads)
	}
	return nil
}

// Operands are the inputs of a call. Tensors are row-major.
type Operands[E Element] struct {
	Shape
	Query []E       // [B, Hq, T, D]
	Key   []E       // [B, Hkv, T, D]
	Value []E       // [B, Hkv, T, Dv]
	Field []float32 // [B, Hf, T]; not read where the level is +Inf
	Level []float32 // [B, Hf, T]; +Inf marks a skipped position
	Slope []float32 // [Hf], each finite and >= 0

	PastKey   []E       // [B, Hkv, P, D]
	PastValue []E       // [B, Hkv, P, Dv]
	PastLevel []float32 // [B, Hf, P]; +Inf marks an empty slot
	PastLow   []float32 // [B, Hf, P]

	Scale     float32 // of the dot products; 0 stands for 1/sqrt(D)
	Inclusive bool    // low[i,j] is the minimum over j <= t <= i, not j < t <= i

	// Threshold is, for each query head, the penalty from which a key is dead; see
	// Threshold. Nil: every key is kept. Not with Inclusive.
	Threshold []float64
}

// Results are the outputs of a call, S being what Plan returned. Those of the
// present that are nil are left out.
type Results[E Element] struct {
	Output       []E       // [B, Hq, T, Dv]
	PresentKey   []E       // [B, Hkv, S, D]
	PresentValue []E       // [B, Hkv, S, Dv]
	PresentLevel []float32 // [B, Hf, S]
	PresentLow   []float32 // [B, Hf, S]; +Inf where the level is
}

// Call is one run of the operator. It may be used again for the next one.
type Call[E Element] struct {
	Operands[E]
	Results[E]

	slots  int // S
	blocks int // of queries, each spanLen positions but for the last
	scale  float32
	typ    *kernelsOf[E]
	drop   live
}

// The sizes of the block form.
const (
	tileLen  = 64                 // queries or keys of a tile
	maxTiles = 4                  // of queries that a unit takes at once, over the same keys
	spanLen  = maxTiles * tileLen // queries of a unit
	fewRows  = 4                  // queries below which tiles cost more than rows
)

// all is the end of a range of slots that has none.
const all = math.MaxInt

var posInf = float32(math.Inf(1))

// Plan checks the operands, decides which slots stay, and returns S, the number
// of slots of the present tensors: P+T, or with thresholds the number of live
// slots of the batch entry and head that has most.
func (c *Call[E]) Plan() (slots int, err error) {
	if err := c.check(); err != nil {
		return 0, err
	}
	c.typ = kernelsFor[E]()
	c.scale = c.Scale
	if c.scale == 0 {
		c.scale = float32(1 / math.Sqrt(float64(c.KeyDim)))
	}
	c.blocks = max(1, (c.New+spanLen-1)/spanLen)
	c.slots = c.Past + c.New
	if c.Threshold != nil {
		c.slots = c.planDrop()
	}
	return c.slots, nil
}

func (c *Call[E]) check() error {
	if err := c.Shape.Check(); err != nil {
		return err
	}
	for f, s := range c.Slope {
		if !(s >= 0 && s <= math.MaxFloat32) {
			return fmt.Errorf("slope[%d] is %g, expected a finite number that is not negative", f, s)
		}
	}
	if c.Threshold == nil {
		return nil
	}
	if len(c.Threshold) != c.QueryHeads {
		return fmt.Errorf("%d bounds of logits for %d query heads, expected one each", len(c.Threshold), c.QueryHeads)
	}
	if c.Inclusive {
		return errInclusive
	}
	return nil
}

var errInclusive = fmt.Errorf("keys cannot be dropped with the inclusive interval, in which a query may see its own key with a penalty")

// Units is the number of units of the call, after Plan.
func (c *Call[E]) Units() int {
	if c.New == 0 && c.slots == 0 {
		return 0
	}
	return c.Batch * c.QueryHeads * c.blocks
}

// Run runs a unit: a block of queries of one head, and a share of the present
// tensors.
func (c *Call[E]) Run(unit int, s *Scratch) {
	// Later blocks have more keys, so they come first.
	block := c.blocks - 1 - unit/(c.Batch*c.QueryHeads)
	u := part[E]{Call: c, s: s, from: block * spanLen, to: min(c.New, (block+1)*spanLen)}
	u.batch, u.head = unit%(c.Batch*c.QueryHeads)/c.QueryHeads, unit%c.QueryHeads
	perKey, perField := c.QueryHeads/c.KeyHeads, c.QueryHeads/c.FieldHeads
	u.keyHead, u.fieldHead = u.head/perKey, u.head/perField
	if u.head%perField == 0 && block == 0 {
		u.keepField()
	}
	// The queries that read a key head share the work of keeping its slots.
	share, shares := u.head%perKey*c.blocks+block, perKey*c.blocks
	u.keepFrom, u.keepTo = c.slots*share/shares, c.slots*(share+1)/shares
	if u.to-u.from < fewRows {
		u.rows()
	} else {
		u.keep(0, all)
		u.tiles()
	}
}

// part is a unit of a call.
type part[E Element] struct {
	*Call[E]
	s                *Scratch
	batch, head      int
	keyHead          int
	fieldHead        int
	from, to         int // the queries
	keepFrom, keepTo int // the present slots that it writes
}

// field is the part of a tensor [B, Hf, n] that belongs to the unit.
func (u *part[E]) field(x []float32, n int) []float32 {
	at := (u.batch*u.FieldHeads + u.fieldHead) * n
	return x[at : at+n : at+n]
}

// keys is the part of a tensor [B, Hkv, n, width] that belongs to the unit.
func (u *part[E]) keys(x []E, n, width int) []E {
	at := (u.batch*u.KeyHeads + u.keyHead) * n * width
	return x[at : at+n*width : at+n*width]
}

// queries is the part of a tensor [B, Hq, T, width] that belongs to the unit.
func (u *part[E]) queries(x []E, width int) []E {
	at := ((u.batch*u.QueryHeads+u.head)*u.New + u.from) * width
	return x[at : at+(u.to-u.from)*width]
}

// fields are the fields of positions below n, +Inf where a position is skipped, so
// that it enters no minimum.
func (u *part[E]) fields(n int) []float32 {
	field, level := u.field(u.Field, u.New), u.field(u.Level, u.New)
	u.s.field = grow(u.s.field, n)
	for t := range u.s.field {
		u.s.field[t] = field[t]
		if level[t] == posInf {
			u.s.field[t] = posInf
		}
	}
	return u.s.field
}

// penalty is what a key that is there loses of its logit.
func penalty(slope, level, low float32) float32 {
	if slope == 0 || !(level > low) {
		return 0
	}
	return slope * (level - low)
}
