package cache

import "math"

// Walk is the running field of some heads, free of drift: the sum is kept in
// float64, and what leaves it is float32 relative to a base that only ever
// moves by whole numbers. Subtracting a whole number from a float32 level that
// came from near the base is exact, so levels and lows of a million tokens ago
// still compare as they did (a plain float32 walk is off by 0.1 by then).
type Walk struct {
	sum, base []float64 // [head]
}

// NewWalk starts a walk of so many heads at 0.
func NewWalk(heads int) *Walk {
	return &Walk{sum: make([]float64, heads), base: make([]float64, heads)}
}

// baseDistance is how far the sum may be from the base. A float32 below 64 has
// steps of at most 2^-18, half the smallest difference that matters.
const baseDistance = 64

// Step adds an increment to the walk of head h. It returns the new field
// relative to the base, in float64 so that a level can be added before the one
// rounding, and by how much the base moved: subtract that from the level and
// low of every key of the head first.
func (w *Walk) Step(h int, increment float64) (field float64, moved float32) {
	moved = w.settle(h, w.sum[h]+increment)
	return w.From(h), moved
}

// settle sets the sum of a head and moves its base after it.
func (w *Walk) settle(h int, sum float64) (moved float32) {
	w.sum[h] = sum
	if d := w.From(h); math.Abs(d) > baseDistance {
		moved = float32(math.Round(d))
		w.base[h] += float64(moved)
	}
	return moved
}

// From is the sum of head h relative to its base.
func (w *Walk) From(h int) float64 { return w.sum[h] - w.base[h] }

// Reach sets the walk of head h to where it has come in several steps, relative to
// its base. It returns by how much the base moved; what Step says of it holds.
func (w *Walk) Reach(h int, field float64) (moved float32) {
	return w.settle(h, w.base[h]+field)
}
