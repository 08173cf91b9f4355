package reference

import (
	"fmt"
	"math"
)

// Gradients holds the derivatives of a scalar loss with respect to the
// operands, each of its operand's shape. At skipped positions the derivatives
// of key, value, field and level are zero.
type Gradients struct {
	Query, Key, Value, Field, Level, Slope []float64
}

// Backward returns the gradients of a loss whose derivative with respect to
// the operator's output is dOutput, [B, Hq, T, Dv]. There may be no past.
//
// The minimum passes its gradient to the first position that attains it, and
// max(0, z) passes none at z = 0. Both are choices where the loss has a kink.
func Backward(x Operands, dOutput []float64) (Gradients, error) {
	if err := x.Check(); err != nil {
		return Gradients{}, err
	}
	if x.Past != 0 {
		return Gradients{}, fmt.Errorf("reference: gradient with %d past slots; want a whole sequence in one call", x.Past)
	}
	if want := x.Batch * x.QueryHeads * x.New * x.ValueDim; len(dOutput) != want {
		return Gradients{}, fmt.Errorf("reference: dOutput has %d elements, the output %d", len(dOutput), want)
	}
	g := Gradients{
		Query: make([]float64, len(x.Query)), Key: make([]float64, len(x.Key)), Value: make([]float64, len(x.Value)),
		Field: make([]float64, len(x.Field)), Level: make([]float64, len(x.Level)), Slope: make([]float64, len(x.Slope)),
	}
	for b := range x.Batch {
		for h := range x.QueryHeads {
			hd := x.head(b, h, dOutput)
			kv := b*x.KeyHeads + h*x.KeyHeads/x.QueryHeads
			fieldHead := h * x.FieldHeads / x.QueryHeads
			f := b*x.FieldHeads + fieldHead
			hd.backward(
				rows(g.Query, b*x.QueryHeads+h, x.New, x.KeyDim), rows(g.Key, kv, x.New, x.KeyDim), rows(g.Value, kv, x.New, x.ValueDim),
				g.Field[f*x.New:(f+1)*x.New], g.Level[f*x.New:(f+1)*x.New], &g.Slope[fieldHead])
		}
	}
	return g, nil
}

// backward adds the gradients of one head, whose output rows hold dOutput.
func (hd *head) backward(dQuery, dKey, dValue [][]float64, dField, dLevel []float64, dSlope *float64) {
	t := len(hd.field)
	low := hd.lows()
	dLow := make([][]float64, t) // d loss / d low[i,j], j <= i
	for i := range t {
		dOut := hd.output[i]
		weights := softmax(hd.logits(i))
		// d logit_j = w_j (dOut·v_j - sum_k w_k dOut·v_k)
		dWeight := make([]float64, i+1)
		mean := 0.0
		for j, w := range weights {
			if !skipped(hd.level[j]) {
				dWeight[j] = dot(dOut, hd.value[j])
				mean += w * dWeight[j]
			}
		}
		dLow[i] = make([]float64, i+1)
		for j, w := range weights {
			if skipped(hd.level[j]) {
				continue
			}
			dLogit := w * (dWeight[j] - mean)
			for c := range dOut {
				dValue[j][c] += w * dOut[c]
			}
			for c := range dQuery[i] {
				dQuery[i][c] += hd.scale * dLogit * hd.key[j][c]
				dKey[j][c] += hd.scale * dLogit * hd.query[i][c]
			}
			if above := hd.level[j] - low[i][j]; above > 0 {
				dLow[i][j] = hd.slope * dLogit
				dLevel[j] -= hd.slope * dLogit
				*dSlope -= above * dLogit
			}
		}
	}
	hd.backwardLow(dLow, dField)
}

// lows returns low[i,j] for j <= i.
func (hd *head) lows() [][]float64 {
	low := make([][]float64, len(hd.field))
	for i := range low {
		low[i] = make([]float64, i+1)
		min := math.Inf(1)
		for j := i; j >= 0; j-- {
			before := min
			min = math.Min(min, hd.entering(j))
			low[i][j] = before
			if hd.interval == Inclusive {
				low[i][j] = min
			}
		}
	}
	return low
}

// backwardLow adds to dField what dLow, the gradient of low[i,j], gives it, in
// O(T²) and without a table of the positions of the minima. dLow is used up.
//
// Let p be the nearest position before i whose field is not above that of i.
// For keys whose stretch holds p, the first minimum lies at or before p, so
// low[i,j] is low[p,j]; for the others it is field[i]. Taking i from the last
// to the first hands every gradient back to its place.
func (hd *head) backwardLow(dLow [][]float64, dField []float64) {
	for i := len(dLow) - 1; i >= 0; i-- {
		if skipped(hd.level[i]) {
			// i enters no minimum: its row is the one before it.
			if i > 0 {
				add(dLow[i-1], dLow[i][:i])
			}
			continue
		}
		p := i - 1
		for p >= 0 && (skipped(hd.level[p]) || hd.field[p] > hd.field[i]) {
			p--
		}
		// The first key whose stretch begins after p.
		first := max(p, 0)
		if hd.interval == Inclusive {
			first = p + 1
		}
		for j := first; j <= i; j++ {
			dField[i] += dLow[i][j]
		}
		if p >= 0 {
			add(dLow[p][:first], dLow[i][:first])
		}
	}
}
