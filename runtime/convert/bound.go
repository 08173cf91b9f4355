package convert

import (
	"fmt"
	"math"
	"slices"

	"github.com/firstpassage/fpa/ops/kernels"
	"github.com/firstpassage/fpa/quant"
	"github.com/firstpassage/fpa/runtime/cache"
	"github.com/firstpassage/fpa/runtime/model"
)

// BoundSummary says what the bounds U on a model's logits are worth: how large a
// penalty a key needs before it can be dropped, and how long that takes.
//
// In the mode exact the first key of a head goes at a penalty of 2U + ln(4/2^-25).
// How many tokens that takes depends on the text. The number given is for a field
// that falls all the time as it does on average: on a walk by the mean of
// max(0, -act(w x + b)) a token, where the rises of a signed walk are left out and x
// is an input of independent normal elements, which makes w x normal with variance
// |w|² (w times the block norm's weight). A level of its own is taken one standard
// deviation up. So a trained model may need more tokens or fewer; where the number
// is beyond the training length, little is dropped, if anything. A direct field
// does not sum up: there a key goes at once, or never, if the largest fall over all
// inputs is not enough.
type BoundSummary struct {
	From     string  `json:"from"`     // FromQKNorm or FromWeights
	Smallest float32 `json:"smallest"` // U
	Median   float32 `json:"median"`
	Largest  float32 `json:"largest"`
	// ExactPenalty is the penalty at which a key of the median head can go.
	ExactPenalty float64 `json:"exact_penalty"`
	// Groups is the number of groups of heads whose keys live and die together, all
	// layers taken together; OutOfReach those that need more tokens than the training
	// length; and TokensToDrop the tokens that the median group needs, absent when it
	// can drop none.
	Groups       int      `json:"groups"`
	OutOfReach   int      `json:"groups_out_of_reach"`
	TokensToDrop *float64 `json:"tokens_to_drop,omitempty"`
	// ContextLength is the training length.
	ContextLength int `json:"context_length"`
}

// Where bounds come from.
const (
	FromQKNorm  = "qk_norm"
	FromWeights = "weights" // of the projections
)

// SummariseBounds sums up the bounds in m.LogitBound; nil when keys of m cannot be
// dropped at all.
func SummariseBounds(m *model.Model) *BoundSummary {
	if !m.Evictable() {
		return nil
	}
	u := slices.Sorted(slices.Values(m.LogitBound))
	s := &BoundSummary{
		From: FromWeights, Smallest: u[0], Median: u[len(u)/2], Largest: u[len(u)-1],
		ExactPenalty: exactPenalty(u[len(u)/2]), ContextLength: m.ContextLength,
	}
	if m.QKNorm != model.NormNone {
		s.From = FromQKNorm
	}
	groups := min(m.FieldHeads, m.KVHeads)
	var tokens []float64
	for i := range m.Layers {
		for g := range groups {
			most := 0.0
			for h := g * m.Heads / groups; h < (g+1)*m.Heads/groups; h++ {
				need := exactPenalty(m.LogitBound[i*m.Heads+h])
				most = max(most, tokensToFall(m, &m.Layers[i], h*m.FieldHeads/m.Heads, need))
			}
			tokens = append(tokens, most)
			if most > float64(m.ContextLength) {
				s.OutOfReach++
			}
		}
	}
	slices.Sort(tokens)
	s.Groups = len(tokens)
	if n := math.Ceil(tokens[len(tokens)/2]); !math.IsInf(n, 1) {
		s.TokensToDrop = &n
	}
	return s
}

func exactPenalty(u float32) float64 { return 2*float64(u) + math.Log(4/cache.ExactEps) }

// tokensToFall is how many tokens a key of a field head needs to a penalty; see
// BoundSummary. It is +Inf when it never gets there.
func tokensToFall(m *model.Model, l *model.Layer, h int, penalty float64) float64 {
	fall := penalty / float64(l.Slope[h]) // +Inf for a slope of 0
	mean, deviation := increment(m, l, l.Field, h)
	var lift, liftDeviation float64 // of a level above the field
	switch m.Level {
	case model.LevelOffset:
		lift = float64(l.Level.Bias[h])
	case model.LevelRelative, model.LevelAbsolute:
		lift, liftDeviation = increment(m, l, l.Level, h)
	}
	act := m.FieldActivation.Field()
	if m.Field == model.FieldDirect {
		// No input is further than sqrt(D) standard deviations from the mean.
		far := math.Sqrt(float64(m.Hidden))
		most := lift + far*liftDeviation - act(mean-far*deviation)
		if m.Level != model.LevelAbsolute {
			most += act(mean + far*deviation)
		}
		if most < fall {
			return math.Inf(1)
		}
		return 1
	}
	if fall -= max(0, lift+liftDeviation); fall <= 0 {
		return 1
	}
	average, weights := 0.0, 0.0
	for z := -4.0; z <= 4; z += 1.0 / 16 {
		w := math.Exp(-z * z / 2)
		average += w * max(0, -act(mean+z*deviation))
		weights += w
	}
	return max(1, fall/(average/weights))
}

// increment is the mean and the standard deviation of row h of a field or level
// projection over inputs of independent elements.
func increment(m *model.Model, l *model.Layer, p model.Linear, h int) (mean, deviation float64) {
	mean = float64(p.Bias[h])
	if !p.Present() {
		return mean, 0
	}
	row := make([]float32, m.Hidden)
	bytes := p.W.RowBytes()
	if quant.Decode(row, p.W.Type, p.W.Data[h*bytes:(h+1)*bytes]) != nil {
		return mean, 0 // model.Build has checked type and size
	}
	kernels.Mul(row, l.AttnNorm)
	sum := 0.0
	for _, w := range row {
		sum += float64(w) * float64(w)
	}
	return mean, math.Sqrt(sum)
}

// String says it in two lines or three.
func (s *BoundSummary) String() string {
	from := "the projections' weights"
	if s.From == FromQKNorm {
		from = "the QK-norm's weights"
	}
	text := fmt.Sprintf("|logit| is at most U = %.4g to %.4g, median %.4g, as proved from %s\n", s.Smallest, s.Largest, s.Median, from)
	text += fmt.Sprintf("cache mode exact drops a key at a penalty of 2U + %.1f: %.4g in the median head, ", exactPenalty(0), s.ExactPenalty)
	if s.TokensToDrop == nil {
		return text + "out of reach of its field: the cache will drop few keys, if any"
	}
	text += fmt.Sprintf("some %s tokens of average fall", twoDigits(*s.TokensToDrop))
	if s.OutOfReach > 0 {
		text += fmt.Sprintf("\nout of reach within the training length of %d tokens: %d of %d groups of heads, which will drop few keys, if any",
			s.ContextLength, s.OutOfReach, s.Groups)
	}
	return text
}

// twoDigits is a whole number rounded to two digits.
func twoDigits(x float64) string {
	if x > 1e12 {
		return fmt.Sprintf("%.0e", x)
	}
	unit := math.Pow(10, max(0, math.Floor(math.Log10(x))-1))
	return fmt.Sprintf("%.0f", math.Round(x/unit)*unit)
}
