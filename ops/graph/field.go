package graph

import (
	"github.com/gomlx/gomlx/pkg/core/dtypes"
	gx "github.com/gomlx/gomlx/pkg/core/graph"
)

// FieldKind says how the increments of the field become the field.
type FieldKind string

// The kinds of field, by the names that files use.
const (
	WalkField   FieldKind = "walk"   // field[t] = field[t-1] + inc[t], from 0
	DirectField FieldKind = "direct" // field[t] = inc[t]
)

// LevelKind says where the level of a key comes from.
type LevelKind string

// The kinds of level, by the names that files use.
const (
	Tied     LevelKind = "tied"     // level[t] = field[t]
	Offset   LevelKind = "offset"   // level[t] = field[t] + one constant a head
	Relative LevelKind = "relative" // level[t] = field[t] + a projection of the input at t
	// Absolute is level[t] = a projection of the input at t. It needs a
	// DirectField: on a walk it would change its meaning with the walk's
	// origin.
	Absolute LevelKind = "absolute"
)

// Activation is the name of the scalar function that makes an increment of the
// field.
type Activation string

// The activations, by the names that files use.
const (
	Identity    Activation = "identity"
	Tanh        Activation = "tanh"
	LogSigmoid  Activation = "log_sigmoid"  // -log(1 + exp(-z)): forgetting attention
	NegSoftplus Activation = "neg_softplus" // -log(1 + exp(z))
)

// Apply returns the function of z, element by element, in z's type.
func (a Activation) Apply(z *gx.Node) *gx.Node {
	switch a {
	case Identity:
		return z
	case Tanh:
		return gx.Tanh(z)
	case LogSigmoid:
		// Written so that nothing overflows, with the derivative sigmoid(-z).
		value := gx.Sub(gx.MinScalar(z, 0.0), gx.Log1p(gx.Exp(gx.Neg(gx.Abs(z)))))
		return withGradient(value, func(v *gx.Node) []*gx.Node {
			return []*gx.Node{gx.Mul(v, gx.Logistic(gx.Neg(z)))}
		}, z)
	case NegSoftplus:
		return LogSigmoid.Apply(gx.Neg(z))
	}
	fail("unknown activation %q, want %q, %q, %q or %q", string(a), Identity, Tanh, LogSigmoid, NegSoftplus)
	return nil
}

// Walk returns the running sum of increments, [B, Hf, T], in float32 (float64
// of float64), and its value at the last position, [B, Hf], in float64. from is
// the value before the first position, of the same kind; nil stands for 0.
//
// The sum is taken in float64 whatever the increments are: in float32 it is off
// by 2e-4 after 300 steps and by 0.1 after a million.
func Walk(increments, from *gx.Node) (field, to *gx.Node) {
	want("increments", increments, "[B, Hf, T]", -1, -1, -1)
	dims := increments.Shape().Dimensions
	x := gx.ConvertDType(increments, dtypes.Float64)
	sums := withGradient(gx.CumSum(x, 2), func(v *gx.Node) []*gx.Node {
		// The sum from each position to the last. gomlx's own rule for this
		// wants an operator that its Go backend has not.
		ahead := [][2]int{{}, {}, {0, dims[2] - 1}}
		return []*gx.Node{gx.SumPool(v).FullShape().WindowPerAxis(1, 1, dims[2]).PaddingPerDim(ahead).Strides(1).Done()}
	}, x)
	if from != nil {
		want("from", from, "[B, Hf]", dims[0], dims[1])
		if from.DType() != dtypes.Float64 {
			fail("from is of type %v, want Float64", from.DType())
		}
		sums = gx.Add(sums, gx.InsertAxes(from, 2))
	}
	to = gx.Reshape(gx.SliceAxis(sums, 2, gx.AxisElem(dims[2]-1)), dims[0], dims[1])
	return gx.ConvertDType(sums, computeType(increments)), to
}

// Source makes field and level from projections of a block's input.
type Source struct {
	Kind       FieldKind
	Activation Activation
	Level      LevelKind
}

// check panics on settings that are unknown or do not fit together.
func (s Source) check() {
	switch s.Kind {
	case WalkField, DirectField:
	default:
		fail("unknown field kind %q, want %q or %q", string(s.Kind), WalkField, DirectField)
	}
	switch s.Level {
	case Tied, Offset, Relative:
	case Absolute:
		if s.Kind == WalkField {
			fail("level kind %q on a field of kind %q: the level would depend on the walk's origin; want a %q field or a %q level",
				Absolute, WalkField, DirectField, Relative)
		}
	default:
		fail("unknown level kind %q, want %q, %q, %q or %q", string(s.Level), Tied, Offset, Relative, Absolute)
	}
}

// Evaluate returns field and level, [B, Hf, T], float32 (float64 of a float64
// projection).
//
//	projection   [B, Hf, T], W x + b: what the activation makes the increments of
//	offset       nil for Tied, [Hf] for Offset, [B, Hf, T] for Relative and Absolute
//	from         [B, Hf] float64, the walk before the first position; nil for 0
//	skip         [B, T] bool, true where a position is padding: its increment is
//	             0 and its level +inf; nil if none is
//
// to, [B, Hf] float64, is the walk at the last position, the next call's from,
// and nil for a DirectField.
func (s Source) Evaluate(projection, offset, from, skip *gx.Node) (field, level, to *gx.Node) {
	s.check()
	want("projection", projection, "[B, Hf, T]", -1, -1, -1)
	dims := projection.Shape().Dimensions
	t := computeType(projection)
	field = s.Activation.Apply(gx.ConvertDType(projection, t))
	if skip != nil {
		want("skip", skip, "[B, T]", dims[0], dims[2])
		if skip.DType() != dtypes.Bool {
			fail("skip is of type %v, want Bool", skip.DType())
		}
		skip = gx.BroadcastToDims(gx.InsertAxes(skip, 1), dims...)
		field = gx.Where(skip, gx.ZerosLike(field), field)
	}
	switch {
	case s.Kind == WalkField:
		field, to = Walk(field, from)
	case from != nil:
		fail("a field of kind %q starts from nothing, want nil", DirectField)
	}
	switch s.Level {
	case Tied:
		if offset != nil {
			fail("an offset is given; level kind %q has none", Tied)
		}
		level = field
	case Offset:
		want("offset", offset, "[Hf]", dims[1])
		level = gx.Add(field, gx.Reshape(gx.ConvertDType(offset, t), 1, dims[1], 1))
	default:
		want("offset", offset, "[B, Hf, T]", dims...)
		level = gx.ConvertDType(offset, t)
		if s.Level == Relative {
			level = gx.Add(field, level)
		}
	}
	if skip != nil {
		level = gx.Where(skip, infinity(level, dims...), level)
	}
	return field, level, to
}
