package reference

import "math"

// Slot is one cached key: what a decoder keeps of a past position. Nothing in
// it tells the position.
type Slot struct {
	Key, Value []float64
	Level, Low float64
}

// Stream is the cached form of the operator for one query head: it takes one
// token after the other. The order of the slots has no meaning.
type Stream struct {
	Slope    float64
	Scale    float64 // as it is used; 0 has no special meaning here
	Interval Interval
	Slots    []Slot
}

// Append takes in one token: the lows of all slots fall to its field, and its
// key becomes a slot of its own. A token of level +inf is skipped and changes
// nothing.
func (s *Stream) Append(key, value []float64, field, level float64) {
	if skipped(level) {
		return
	}
	for j := range s.Slots {
		s.Slots[j].Low = math.Min(s.Slots[j].Low, field)
	}
	low := math.Inf(1)
	if s.Interval == Inclusive {
		low = field
	}
	s.Slots = append(s.Slots, Slot{Key: key, Value: value, Level: level, Low: low})
}

// Remove frees a slot; the last slot takes its place.
func (s *Stream) Remove(slot int) {
	last := len(s.Slots) - 1
	s.Slots[slot] = s.Slots[last]
	s.Slots = s.Slots[:last]
}

// Penalty returns the penalty of a slot as of the last token.
func (s *Stream) Penalty(slot int) float64 {
	return penalty(s.Slope, s.Slots[slot].Level, s.Slots[slot].Low)
}

// Weights returns the softmax weights of the slots for a query at the position
// of the last token.
func (s *Stream) Weights(query []float64) []float64 {
	logits := make([]float64, len(s.Slots))
	for j, slot := range s.Slots {
		logits[j] = s.Scale*dot(query, slot.Key) - s.Penalty(j)
	}
	return softmax(logits)
}

// Attend returns the output for a query at the position of the last token, of
// width dim; zeros when there is no slot.
func (s *Stream) Attend(query []float64, dim int) []float64 {
	out := make([]float64, dim)
	values := make([][]float64, len(s.Slots))
	for j, slot := range s.Slots {
		values[j] = slot.Value
	}
	weightedSum(out, s.Weights(query), values)
	return out
}

// Recurrent computes the operator one token at a time through a [Stream] for
// each query head. Empty slots and skipped positions never enter a stream.
func Recurrent(x Operands) (Result, error) {
	if err := x.Check(); err != nil {
		return Result{}, err
	}
	r := x.present()
	for i := range r.PresentLow {
		r.PresentLow[i] = math.Inf(1) // filled from the streams below
	}
	r.Output = make([]float64, x.Batch*x.QueryHeads*x.New*x.ValueDim)
	slots := x.Past + x.New
	for b := range x.Batch {
		for h := range x.QueryHeads {
			hd := x.head(b, h, r.Output)
			s := Stream{Slope: hd.slope, Scale: hd.scale, Interval: hd.interval}
			var origin []int // the present slot of each slot of the stream
			for j := range x.Past {
				if !skipped(hd.pastLevel[j]) {
					s.Slots = append(s.Slots, Slot{hd.pastKey[j], hd.pastValue[j], hd.pastLevel[j], hd.pastLow[j]})
					origin = append(origin, j)
				}
			}
			for i := range x.New {
				s.Append(hd.key[i], hd.value[i], hd.field[i], hd.level[i])
				if !skipped(hd.level[i]) {
					origin = append(origin, x.Past+i)
				}
				copy(hd.output[i], s.Attend(hd.query[i], x.ValueDim))
			}
			f := b*x.FieldHeads + h*x.FieldHeads/x.QueryHeads
			for j, slot := range s.Slots {
				r.PresentLow[f*slots+origin[j]] = slot.Low
			}
		}
	}
	return r, nil
}
