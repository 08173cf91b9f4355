package reference

import "math"

// Linear returns W x + b for each of the rows of x, [T, in]; weight is
// [out, in], bias [out] or nil. The result is [T, out].
func Linear(x, weight, bias []float64, in, out int) []float64 {
	t := len(x) / in
	y := make([]float64, t*out)
	for i := range t {
		for o := range out {
			y[i*out+o] = project(weight, bias, o, x[i*in:(i+1)*in])
		}
	}
	return y
}

// RMSNorm returns x / sqrt(mean(x²) + eps) * weight over each group of
// len(weight) elements: rows of the residual stream, or with a weight of one
// head's width, heads that share a weight.
func RMSNorm(x, weight []float64, eps float64) []float64 {
	return HeadNorm(x, weight, 1, eps)
}

// HeadNorm is [RMSNorm] over each head of each position: x is
// [T, heads, d], weight [heads, d].
func HeadNorm(x, weight []float64, heads int, eps float64) []float64 {
	d := len(weight) / heads
	y := make([]float64, len(x))
	for from := 0; from < len(x); from += d {
		group := x[from : from+d]
		scale := 1 / math.Sqrt(dot(group, group)/float64(d)+eps)
		w := weight[from%len(weight):]
		for c, v := range group {
			y[from+c] = v * scale * w[c]
		}
	}
	return y
}

// Rotary is the rotary position embedding in half-split order: within the
// first Dim elements of a head, element i turns together with element
// i + Dim/2, by position * Base^(-2i/Dim) / Factors[i]. The elements from Dim
// on stay as they are. The zero value turns nothing.
type Rotary struct {
	Dim     int       // even, at most the head's width
	Base    float64   // theta
	Factors []float64 // [Dim/2], or nil for all ones
}

// Angles returns the turn per position of each pair, [Dim/2], in radians.
func (r Rotary) Angles() []float64 {
	angles := make([]float64, r.Dim/2)
	for i := range angles {
		angles[i] = math.Pow(r.Base, -2*float64(i)/float64(r.Dim))
		if r.Factors != nil {
			angles[i] /= r.Factors[i]
		}
	}
	return angles
}

// Apply turns x, [T, heads, d], in place; its first row stands at position
// start.
func (r Rotary) Apply(x []float64, heads, d, start int) {
	half := r.Dim / 2
	angles := r.Angles()
	for row := range len(x) / d {
		position := float64(start + row/heads)
		head := x[row*d : (row+1)*d]
		for i, angle := range angles {
			sin, cos := math.Sincos(position * angle)
			a, b := head[i], head[i+half]
			head[i] = a*cos - b*sin
			head[i+half] = b*cos + a*sin
		}
	}
}

// Llama3Factors returns the divisors of the rotary frequencies that Llama 3.1
// uses for long contexts: 1 for waves shorter than context/high, factor for
// waves longer than context/low, and between the two a blend that is linear in
// the frequency. See "rope_type: llama3" in the Hugging Face configuration.
func Llama3Factors(dim int, base, factor, low, high, context float64) []float64 {
	factors := make([]float64, dim/2)
	for i, angle := range (Rotary{Dim: dim, Base: base}).Angles() {
		wave := 2 * math.Pi / angle
		switch {
		case wave < context/high:
			factors[i] = 1
		case wave > context/low:
			factors[i] = factor
		default:
			smooth := (context/wave - low) / (high - low)
			factors[i] = 1 / ((1-smooth)/factor + smooth)
		}
	}
	return factors
}

// Shift mixes each projected key or value with the one before it, as the
// forgetting transformer does:
//
//	out[t] = a[t] y[t-1] + (1-a[t]) y[t],   a[t] = sigmoid(gate[t])
//
// for y, [T, heads, d], and gate, [T, heads]. previous, [heads, d], is read as
// y[-1] (zeros at the start of a sequence, which makes the first result
// (1-a) y and not y) and left at the last unshifted y. skip is nil, or marks
// padding, [T]: those rows are copied, and the rows after them see the last
// real one.
func Shift(y, gate, previous []float64, skip []bool) []float64 {
	out := make([]float64, len(y))
	width := len(previous)
	for t := range len(y) / width {
		row := y[t*width : (t+1)*width]
		if skip != nil && skip[t] {
			copy(out[t*width:], row)
			continue
		}
		heads := len(gate) * width / len(y)
		d := width / heads
		for c, v := range row {
			a := sigmoid(gate[t*heads+c/d])
			out[t*width+c] = a*previous[c] + (1-a)*v
		}
		copy(previous, row)
	}
	return out
}

// Gate returns act(gate) * x element by element: the output gate, and the
// inner product of a gated feed-forward layer.
func Gate(act func(float64) float64, gate, x []float64) []float64 {
	y := make([]float64, len(x))
	for i := range x {
		y[i] = act(gate[i]) * x[i]
	}
	return y
}

// HeadsFirst turns [T, heads, d] into [heads, T, d], the operator's order.
func HeadsFirst(x []float64, heads, d int) []float64 {
	return transposed(x, len(x)/(heads*d), heads, d)
}

// PositionsFirst turns [heads, T, d] into [T, heads, d].
func PositionsFirst(x []float64, heads, d int) []float64 {
	return transposed(x, heads, len(x)/(heads*d), d)
}

// transposed turns [a, b, d] into [b, a, d].
func transposed(x []float64, a, b, d int) []float64 {
	y := make([]float64, len(x))
	for i := range a {
		for j := range b {
			copy(y[(j*a+i)*d:(j*a+i+1)*d], x[(i*b+j)*d:(i*b+j+1)*d])
		}
	}
	return y
}
