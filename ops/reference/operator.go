// Package reference is the float64 oracle of First Passage Attention: the
// attention operator in three forms, and every piece of a decoder block around
// it, written as plain loops that follow the definition.
//
// It is made to be read and to be compared with, not to be fast: the CPU
// kernels, the graph forms and the runtime are all tested against it.
//
// # The operator
//
// Per batch entry and head, over positions 0..T-1:
//
//	logit[i,j] = scale * q[i]·k[j] - slope * max(0, level[j] - low[i,j])    j <= i
//	low[i,j]   = min of field[t] over j < t <= i   (+inf when j = i)
//	y[i]       = sum_j softmax_j(logit[i,:]) v[j]
//
// A position whose level is +inf is skipped: it is no key and its field enters
// no minimum. A query without any key gives zeros. Query head h reads key head
// h*KeyHeads/QueryHeads and field head h*FieldHeads/QueryHeads.
//
// [Parallel] is the definition, [Recurrent] the form a decoder with a cache
// runs, [Block] the form that prefill kernels run. All three give the same
// result up to rounding.
//
// All tensors are flat, row-major slices; the shape stands in each field's
// comment.
package reference

import (
	"fmt"
	"math"
)

// Interval says where the stretch of positions begins over which the low of a
// key is taken.
type Interval uint8

const (
	// Exclusive takes the minimum over j < t <= i; the key's own field does
	// not count.
	Exclusive Interval = iota
	// Inclusive takes the minimum over j <= t <= i. It differs from Exclusive
	// only for keys whose level lies above the field at their own position.
	Inclusive
)

// String returns the name used in files: "exclusive" or "inclusive".
func (v Interval) String() string {
	switch v {
	case Exclusive:
		return "exclusive"
	case Inclusive:
		return "inclusive"
	}
	return fmt.Sprintf("Interval(%d)", uint8(v))
}

// Operands are the inputs of the operator: T new positions, and optionally the
// P slots that earlier calls returned.
type Operands struct {
	Batch      int // B
	QueryHeads int // Hq, a multiple of KeyHeads and of FieldHeads
	KeyHeads   int // Hkv
	FieldHeads int // Hf
	New        int // T, the new positions
	Past       int // P, the slots of earlier calls
	KeyDim     int // D, the width of queries and keys
	ValueDim   int // Dv, the width of values

	Query []float64 // [B, Hq, T, D]
	Key   []float64 // [B, Hkv, T, D]
	Value []float64 // [B, Hkv, T, Dv]
	Field []float64 // [B, Hf, T]; ignored where the level is +inf
	Level []float64 // [B, Hf, T]; +inf marks a skipped position
	Slope []float64 // [Hf], each finite and >= 0

	// Scale multiplies the dot products. 0 stands for 1/sqrt(D).
	Scale    float64
	Interval Interval

	// The slots of earlier calls, in any order. Level +inf marks an empty
	// slot. Low is the minimum of the field from the slot's position (as
	// Interval says) to the last position before this call, +inf where that
	// stretch is empty.
	PastKey   []float64 // [B, Hkv, P, D]
	PastValue []float64 // [B, Hkv, P, Dv]
	PastLevel []float64 // [B, Hf, P]
	PastLow   []float64 // [B, Hf, P]
}

// Result holds the outputs of the operator. The present slots are the past
// ones followed by the new positions, in this order.
type Result struct {
	Output []float64 // [B, Hq, T, Dv]

	PresentKey   []float64 // [B, Hkv, P+T, D]
	PresentValue []float64 // [B, Hkv, P+T, Dv]
	PresentLevel []float64 // [B, Hf, P+T]
	// PresentLow is only meaningful where the level is not +inf; a skipped
	// slot has low +inf here.
	PresentLow []float64 // [B, Hf, P+T]
}

// Check reports the first way in which the operands do not fit together.
func (x *Operands) Check() error {
	for _, d := range []struct {
		name       string
		value, min int
	}{
		{"Batch", x.Batch, 0}, {"QueryHeads", x.QueryHeads, 1}, {"KeyHeads", x.KeyHeads, 1},
		{"FieldHeads", x.FieldHeads, 1}, {"New", x.New, 0}, {"Past", x.Past, 0},
		{"KeyDim", x.KeyDim, 1}, {"ValueDim", x.ValueDim, 1},
	} {
		if d.value < d.min {
			return fmt.Errorf("reference: %s is %d, want at least %d", d.name, d.value, d.min)
		}
	}
	if x.QueryHeads%x.KeyHeads != 0 || x.QueryHeads%x.FieldHeads != 0 {
		return fmt.Errorf("reference: %d query heads over %d key heads and %d field heads; want both to divide the query heads",
			x.QueryHeads, x.KeyHeads, x.FieldHeads)
	}
	if x.Interval > Inclusive {
		return fmt.Errorf("reference: unknown interval %v", x.Interval)
	}
	b, t, p := x.Batch, x.New, x.Past
	for _, s := range []struct {
		name      string
		got, want int
	}{
		{"Query", len(x.Query), b * x.QueryHeads * t * x.KeyDim},
		{"Key", len(x.Key), b * x.KeyHeads * t * x.KeyDim},
		{"Value", len(x.Value), b * x.KeyHeads * t * x.ValueDim},
		{"Field", len(x.Field), b * x.FieldHeads * t},
		{"Level", len(x.Level), b * x.FieldHeads * t},
		{"Slope", len(x.Slope), x.FieldHeads},
		{"PastKey", len(x.PastKey), b * x.KeyHeads * p * x.KeyDim},
		{"PastValue", len(x.PastValue), b * x.KeyHeads * p * x.ValueDim},
		{"PastLevel", len(x.PastLevel), b * x.FieldHeads * p},
		{"PastLow", len(x.PastLow), b * x.FieldHeads * p},
	} {
		if s.got != s.want {
			return fmt.Errorf("reference: %s has %d elements, its shape wants %d", s.name, s.got, s.want)
		}
	}
	for h, s := range x.Slope {
		if !(s >= 0) || math.IsInf(s, 1) {
			return fmt.Errorf("reference: Slope[%d] is %v, want a finite number >= 0", h, s)
		}
	}
	// A NaN or -inf would make every later logit of its head NaN.
	usable := func(name string, level, other []float64) error {
		for i, l := range level {
			if skipped(l) {
				continue
			}
			if math.IsNaN(l) || math.IsInf(l, -1) || math.IsNaN(other[i]) || math.IsInf(other[i], -1) {
				return fmt.Errorf("reference: element %d of %s is level %v, %v; neither may be NaN or -inf", i, name, l, other[i])
			}
		}
		return nil
	}
	if err := usable("Level, Field", x.Level, x.Field); err != nil {
		return err
	}
	return usable("PastLevel, PastLow", x.PastLevel, x.PastLow)
}

// scale returns the factor of the dot products.
func (x *Operands) scale() float64 {
	if x.Scale == 0 {
		return 1 / math.Sqrt(float64(x.KeyDim))
	}
	return x.Scale
}

// head is what one query head of one batch entry works on.
type head struct {
	query, key, value [][]float64 // [T][D], [T][D], [T][Dv]
	field, level      []float64   // [T]
	pastKey           [][]float64 // [P][D]
	pastValue         [][]float64 // [P][Dv]
	pastLevel         []float64   // [P]
	pastLow           []float64   // [P]
	slope, scale      float64
	interval          Interval
	output            [][]float64 // [T][Dv]
}

// head returns views of the tensors for query head h of batch entry b; output
// is the operator's output, [B, Hq, T, Dv].
func (x *Operands) head(b, h int, output []float64) head {
	kv := b*x.KeyHeads + h*x.KeyHeads/x.QueryHeads
	fieldHead := h * x.FieldHeads / x.QueryHeads
	f := b*x.FieldHeads + fieldHead
	q := b*x.QueryHeads + h
	return head{
		query:     rows(x.Query, q, x.New, x.KeyDim),
		key:       rows(x.Key, kv, x.New, x.KeyDim),
		value:     rows(x.Value, kv, x.New, x.ValueDim),
		field:     x.Field[f*x.New : (f+1)*x.New],
		level:     x.Level[f*x.New : (f+1)*x.New],
		pastKey:   rows(x.PastKey, kv, x.Past, x.KeyDim),
		pastValue: rows(x.PastValue, kv, x.Past, x.ValueDim),
		pastLevel: x.PastLevel[f*x.Past : (f+1)*x.Past],
		pastLow:   x.PastLow[f*x.Past : (f+1)*x.Past],
		slope:     x.Slope[fieldHead],
		scale:     x.scale(),
		interval:  x.Interval,
		output:    rows(output, q, x.New, x.ValueDim),
	}
}

// rows returns the n rows of width dim of the index-th matrix in x.
func rows(x []float64, index, n, dim int) [][]float64 {
	out := make([][]float64, n)
	for t := range out {
		at := (index*n + t) * dim
		out[t] = x[at : at+dim : at+dim]
	}
	return out
}

// skipped reports whether a level says that its position is no key.
func skipped(level float64) bool { return math.IsInf(level, 1) }

// penalty is slope * max(0, level - low). The level must not be +inf.
func penalty(slope, level, low float64) float64 {
	if slope == 0 || low >= level { // low is +inf while nothing has been crossed
		return 0
	}
	return slope * (level - low)
}

func dot(a, b []float64) float64 {
	sum := 0.0
	for i := range a {
		sum += a[i] * b[i]
	}
	return sum
}

// Parallel computes the operator by its definition, one full row of logits at
// a time.
func Parallel(x Operands) (Result, error) {
	if err := x.Check(); err != nil {
		return Result{}, err
	}
	r := x.present()
	r.Output = make([]float64, x.Batch*x.QueryHeads*x.New*x.ValueDim)
	for b := range x.Batch {
		for h := range x.QueryHeads {
			hd := x.head(b, h, r.Output)
			values := append(append([][]float64{}, hd.pastValue...), hd.value...)
			for i := range x.New {
				weightedSum(hd.output[i], softmax(hd.logits(i)), values)
			}
		}
	}
	return r, nil
}

// logits returns the logits of the query at new position i over all P past
// slots and the new positions 0..i; -inf where there is no key.
func (hd *head) logits(i int) []float64 {
	p := len(hd.pastLevel)
	logits := make([]float64, p+i+1)
	low := math.Inf(1)
	// Walking back from i, low is the minimum over a stretch that grows by one
	// position a step.
	for j := i; j >= 0; j-- {
		if skipped(hd.level[j]) {
			logits[p+j] = math.Inf(-1)
			continue
		}
		if hd.interval == Inclusive {
			low = math.Min(low, hd.field[j])
		}
		logits[p+j] = hd.scale*dot(hd.query[i], hd.key[j]) - penalty(hd.slope, hd.level[j], low)
		if hd.interval == Exclusive {
			low = math.Min(low, hd.field[j])
		}
	}
	for j := range hd.pastLevel {
		if skipped(hd.pastLevel[j]) {
			logits[j] = math.Inf(-1)
			continue
		}
		logits[j] = hd.scale*dot(hd.query[i], hd.pastKey[j]) - penalty(hd.slope, hd.pastLevel[j], math.Min(hd.pastLow[j], low))
	}
	return logits
}

// softmax returns exp(logits) divided by its sum; all zeros where no logit is
// above -inf.
func softmax(logits []float64) []float64 {
	weights := make([]float64, len(logits))
	largest := math.Inf(-1)
	for _, l := range logits {
		largest = math.Max(largest, l)
	}
	if math.IsInf(largest, -1) {
		return weights
	}
	sum := 0.0
	for j, l := range logits {
		weights[j] = math.Exp(l - largest)
		sum += weights[j]
	}
	for j := range weights {
		weights[j] /= sum
	}
	return weights
}

// weightedSum sets out to sum_j weights[j] rows[j]. A row of weight 0 is not
// read: an empty slot may hold anything.
func weightedSum(out, weights []float64, rows [][]float64) {
	clear(out)
	for j, w := range weights {
		if w == 0 {
			continue
		}
		for c := range out {
			out[c] += w * rows[j][c]
		}
	}
}

// present returns the present slots by definition: past then new, with the
// lows carried to the last new position.
func (x *Operands) present() Result {
	join := func(heads, dim int, past, new []float64) []float64 {
		var out []float64
		for m := range x.Batch * heads {
			out = append(out, past[m*x.Past*dim:(m+1)*x.Past*dim]...)
			out = append(out, new[m*x.New*dim:(m+1)*x.New*dim]...)
		}
		return out
	}
	r := Result{
		PresentKey:   join(x.KeyHeads, x.KeyDim, x.PastKey, x.Key),
		PresentValue: join(x.KeyHeads, x.ValueDim, x.PastValue, x.Value),
		PresentLevel: join(x.FieldHeads, 1, x.PastLevel, x.Level),
		PresentLow:   join(x.FieldHeads, 1, x.PastLow, make([]float64, len(x.Level))),
	}
	slots := x.Past + x.New
	for f := range x.Batch * x.FieldHeads {
		level := r.PresentLevel[f*slots : (f+1)*slots]
		low := r.PresentLow[f*slots : (f+1)*slots]
		field := x.Field[f*x.New : (f+1)*x.New]
		min := math.Inf(1) // of the field after the position at hand
		for j := slots - 1; j >= 0; j-- {
			switch {
			case skipped(level[j]):
				low[j] = math.Inf(1)
			case j < x.Past:
				low[j] = math.Min(low[j], min)
			default:
				before := min
				min = math.Min(min, field[j-x.Past])
				low[j] = before
				if x.Interval == Inclusive {
					low[j] = min
				}
			}
		}
	}
	return r
}
