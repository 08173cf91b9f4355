package model

import "math"

// boundSlack enlarges a proved bound: the cache rounds a key to F16 (relative
// error 2^-11 of each element, 2^-10 with room), and the norms and products are
// computed in float32.
const boundSlack = 1 + 0x1p-10 + 1e-5

// LogitBounds computes, for every layer and query head, a bound U on
// |Scale * q.k| over all inputs, in the order of Config.LogitBound; nil when the
// model offers no proof. With RMS norm a normalised head has length at most
// sqrt(d), so with the norms' weights wq and wk
//
//	|q.k| <= d max_i |wq_i wk_i|        without rotary embedding,
//	|q.k| <= d max|wq| max|wk|          with it, since it mixes dimensions.
func (m *Model) LogitBounds() []float32 {
	if m.Field == FieldNone || m.QKNorm == NormNone {
		return nil
	}
	d := m.KeyDim
	bounds := make([]float32, 0, m.Blocks*m.Heads)
	for i := range m.Layers {
		l := &m.Layers[i]
		for h := range m.Heads {
			kv := h * m.KVHeads / m.Heads
			wq, wk := l.QNorm[h*d:(h+1)*d], l.KNorm[kv*d:(kv+1)*d]
			largest := largestProduct(wq, wk)
			if m.RopeDim > 0 {
				largest = largestAbs(wq) * largestAbs(wk)
			}
			u := math.Abs(float64(m.Scale)) * float64(d) * largest * boundSlack
			bounds = append(bounds, math.Nextafter32(float32(u), float32(math.Inf(1))))
		}
	}
	return bounds
}

func largestProduct(a, b []float32) float64 {
	most := 0.0
	for i := range a {
		most = max(most, math.Abs(float64(a[i])*float64(b[i])))
	}
	return most
}

func largestAbs(a []float32) float64 {
	most := 0.0
	for _, x := range a {
		most = max(most, math.Abs(float64(x)))
	}
	return most
}
