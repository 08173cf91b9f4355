package reference

import (
	"fmt"
	"math"
)

// FieldKind says how the increments of the field become the field.
type FieldKind string

// The kinds of field, by the names that files use.
const (
	Walk    FieldKind = "walk"   // field[t] = field[t-1] + inc[t], from 0
	Direct  FieldKind = "direct" // field[t] = inc[t]
	NoField FieldKind = "none"   // plain softmax attention
)

// LevelKind says where the level of a key comes from.
type LevelKind string

// The kinds of level, by the names that files use.
const (
	Tied     LevelKind = "tied"     // level[t] = field[t]
	Offset   LevelKind = "offset"   // level[t] = field[t] + one constant a head
	Relative LevelKind = "relative" // level[t] = field[t] + W x[t] + b
	// Absolute is level[t] = W x[t] + b. It needs a Direct field: on a walk it
	// would change its meaning with the walk's origin.
	Absolute LevelKind = "absolute"
)

// Activation is the name of a scalar function, as files spell it.
type Activation string

// The activations: the first four for the increments of a field, the others
// for the gates of a block.
const (
	Identity    Activation = "identity"
	Tanh        Activation = "tanh"
	LogSigmoid  Activation = "log_sigmoid"  // -log(1 + exp(-z)): forgetting attention
	NegSoftplus Activation = "neg_softplus" // -log(1 + exp(z))

	Sigmoid  Activation = "sigmoid"
	SiLU     Activation = "silu"      // z sigmoid(z)
	GELU     Activation = "gelu"      // z (1 + erf(z/sqrt(2))) / 2
	GELUTanh Activation = "gelu_tanh" // its approximation by tanh
	ReLU     Activation = "relu"
)

// Func returns the function, or an error that names the unknown activation.
func (a Activation) Func() (func(float64) float64, error) {
	switch a {
	case Identity:
		return func(z float64) float64 { return z }, nil
	case Tanh:
		return math.Tanh, nil
	case LogSigmoid:
		return func(z float64) float64 { return -softplus(-z) }, nil
	case NegSoftplus:
		return func(z float64) float64 { return -softplus(z) }, nil
	case Sigmoid:
		return sigmoid, nil
	case SiLU:
		return func(z float64) float64 { return z * sigmoid(z) }, nil
	case GELU:
		return func(z float64) float64 { return 0.5 * z * (1 + math.Erf(z/math.Sqrt2)) }, nil
	case GELUTanh:
		return func(z float64) float64 {
			return 0.5 * z * (1 + math.Tanh(math.Sqrt(2/math.Pi)*(z+0.044715*z*z*z)))
		}, nil
	case ReLU:
		return func(z float64) float64 { return math.Max(z, 0) }, nil
	}
	return nil, fmt.Errorf("reference: unknown activation %q", string(a))
}

// sigmoid is 1 / (1 + exp(-z)), written so that nothing overflows.
func sigmoid(z float64) float64 {
	if z < 0 {
		e := math.Exp(z)
		return e / (1 + e)
	}
	return 1 / (1 + math.Exp(-z))
}

// softplus is log(1 + exp(z)), accurate at both ends.
func softplus(z float64) float64 {
	return math.Max(z, 0) + math.Log1p(math.Exp(-math.Abs(z)))
}

// FieldSource computes field and level from the normalised input of a block.
type FieldSource struct {
	Heads      int // Hf
	Width      int // D, of the input
	Kind       FieldKind
	Activation Activation
	Level      LevelKind

	Weight []float64 // [Hf, D]; nil stands for zeros (constant gates)
	Bias   []float64 // [Hf]; nil stands for zeros

	LevelWeight []float64 // [Hf, D]; kinds relative and absolute
	LevelBias   []float64 // [Hf]; also the constant of kind offset; nil stands for zeros
}

// checkKinds reports the first of the settings that is unknown or does not fit
// the others. Of kind NoField, nothing else is looked at.
func checkKinds(kind FieldKind, act Activation, level LevelKind) error {
	switch kind {
	case Walk, Direct:
	case NoField:
		return nil
	default:
		return fmt.Errorf("reference: unknown field kind %q", string(kind))
	}
	switch level {
	case Tied, Offset, Relative:
	case Absolute:
		if kind == Walk {
			return fmt.Errorf("reference: level kind %q on a field of kind %q: the level would depend on the walk's origin; want a %q field or a %q level",
				Absolute, Walk, Direct, Relative)
		}
	default:
		return fmt.Errorf("reference: unknown level kind %q", string(level))
	}
	switch act {
	case Identity, Tanh, LogSigmoid, NegSoftplus:
		return nil
	}
	return fmt.Errorf("reference: activation %q is none of a field's", string(act))
}

// Check reports the first way in which the source is unusable.
func (s *FieldSource) Check() error {
	if err := checkKinds(s.Kind, s.Activation, s.Level); err != nil || s.Kind == NoField {
		return err
	}
	needsWeight := s.Level == Relative || s.Level == Absolute
	allowsBias := s.Level != Tied
	hd := s.Heads * s.Width
	for _, w := range []struct {
		name    string
		got     []float64
		want    int
		present bool // must it, may it be there
		allowed bool
	}{
		{"field weight", s.Weight, hd, false, true},
		{"field bias", s.Bias, s.Heads, false, true},
		{"level weight", s.LevelWeight, hd, needsWeight, needsWeight},
		{"level bias", s.LevelBias, s.Heads, false, allowsBias},
	} {
		switch {
		case w.got == nil && w.present:
			return fmt.Errorf("reference: %s is missing; level kind %q wants it", w.name, string(s.Level))
		case w.got != nil && !w.allowed:
			return fmt.Errorf("reference: %s is given; level kind %q has none", w.name, string(s.Level))
		case w.got != nil && len(w.got) != w.want:
			return fmt.Errorf("reference: %s has %d elements, want %d", w.name, len(w.got), w.want)
		}
	}
	return nil
}

// Evaluate returns field and level, [Hf, T], for the inputs x, [T, D].
//
// walk, [Hf], is the running value of each head's walk: it is read as the
// field before the first position and left at the field of the last, so that
// a sequence may be split over calls. skip is nil, or marks the positions that
// are padding, [T]: their increment is 0 and their level +inf.
func (s *FieldSource) Evaluate(x []float64, walk []float64, skip []bool) (field, level []float64, err error) {
	if err := s.Check(); err != nil {
		return nil, nil, err
	}
	if s.Kind == NoField {
		return nil, nil, fmt.Errorf("reference: field kind %q has no field to evaluate", NoField)
	}
	if s.Width < 1 || len(x)%s.Width != 0 {
		return nil, nil, fmt.Errorf("reference: input of %d elements is not made of rows of %d", len(x), s.Width)
	}
	t := len(x) / s.Width
	if len(walk) != s.Heads {
		return nil, nil, fmt.Errorf("reference: %d running values for %d field heads", len(walk), s.Heads)
	}
	if skip != nil && len(skip) != t {
		return nil, nil, fmt.Errorf("reference: %d skip marks for %d positions", len(skip), t)
	}
	act, err := s.Activation.Func()
	if err != nil {
		return nil, nil, err
	}
	field = make([]float64, s.Heads*t)
	level = make([]float64, s.Heads*t)
	for h := range s.Heads {
		for i := range t {
			at := h*t + i
			row := x[i*s.Width : (i+1)*s.Width]
			if skip != nil && skip[i] {
				if s.Kind == Walk {
					field[at] = walk[h]
				}
				level[at] = math.Inf(1)
				continue
			}
			field[at] = act(project(s.Weight, s.Bias, h, row))
			if s.Kind == Walk {
				walk[h] += field[at]
				field[at] = walk[h]
			}
			// Tied and offset levels have no weight, tied ones no bias either.
			level[at] = project(s.LevelWeight, s.LevelBias, h, row)
			if s.Level != Absolute {
				level[at] += field[at]
			}
		}
	}
	return field, level, nil
}

// project returns row h of W x + b; a nil weight or bias counts as zeros.
func project(weight, bias []float64, h int, x []float64) float64 {
	sum := 0.0
	if weight != nil {
		sum = dot(weight[h*len(x):(h+1)*len(x)], x)
	}
	if bias != nil {
		sum += bias[h]
	}
	return sum
}
