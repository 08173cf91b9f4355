package quant

import (
	"fmt"
	"math"
)

// Stats describes the values of a tensor.
type Stats struct {
	Count int64   // elements
	Max   float32 // largest magnitude of a finite element
	NaN   int64   // elements that are not a number
	Inf   int64   // infinite elements
	Zero  int64   // elements that are zero, of either sign
}

// Merge adds what was found in another part of the same tensor.
func (s *Stats) Merge(t Stats) {
	s.Count += t.Count
	s.Max = max(s.Max, t.Max)
	s.NaN += t.NaN
	s.Inf += t.Inf
	s.Zero += t.Zero
}

// Scan reads elements stored as d once and describes them. src must hold a
// whole number of blocks.
func Scan(d DType, src []byte) (Stats, error) {
	if !CanDecode(d) {
		return Stats{}, fmt.Errorf("scan: type %s is not supported", d)
	}
	length, bytes := infos[d].length, infos[d].bytes
	if len(src)%bytes != 0 {
		return Stats{}, fmt.Errorf("scan: %d bytes are no whole number of %s blocks of %d bytes", len(src), d, bytes)
	}
	var s Stats
	done := scanBulk(&s, d, src)
	src = src[done:]
	var buf [chunk]float32
	for left := len(src) / bytes * length; left > 0; {
		n := min(left, chunk)
		in := size(d, n)
		codecs[d].decode(buf[:n], src[:in])
		scan(&s, buf[:n])
		src, left = src[in:], left-n
	}
	return s, nil
}

func scan(s *Stats, x []float32) {
	s.Count += int64(len(x))
	for _, v := range x {
		bits := math.Float32bits(v) &^ (1 << 31)
		switch {
		case bits > 0x7f800000:
			s.NaN++
		case bits == 0x7f800000:
			s.Inf++
		case bits == 0:
			s.Zero++
		default:
			s.Max = max(s.Max, math.Float32frombits(bits))
		}
	}
}

// Error is how far a stored tensor lies from the one it was made of.
type Error struct {
	Count  int64
	Max    float64 // largest absolute difference
	square float64 // sum of squared differences
	norm   float64 // sum of squares of the originals
}

// Add compares two runs of the same values, original and decoded. A pair that
// is equal (infinities too), or not a number on both sides, differs by 0. The
// slices have the same length.
func (e *Error) Add(want, got []float32) {
	got = got[:len(want)]
	for i, w := range want {
		e.norm += float64(w) * float64(w)
		if w == got[i] || w != w && got[i] != got[i] {
			continue
		}
		d := math.Abs(float64(w) - float64(got[i]))
		e.square += d * d
		if !(d <= e.Max) { // a NaN is the largest of all
			e.Max = d
		}
	}
	e.Count += int64(len(want))
}

// Merge adds what was found in another part of the same tensor.
func (e *Error) Merge(f Error) {
	e.Count += f.Count
	e.square += f.square
	e.norm += f.norm
	if !(f.Max <= e.Max) {
		e.Max = f.Max
	}
}

// RMSE is the root of the mean squared difference; 0 without elements.
func (e *Error) RMSE() float64 {
	if e.Count == 0 {
		return 0
	}
	return math.Sqrt(e.square / float64(e.Count))
}

// Relative is RMSE as a share of the root of the mean square of the originals: 0 when
// nothing differs, NaN when the originals are zeros or not finite, and the stored
// values are not the same.
func (e *Error) Relative() float64 {
	if e.square == 0 {
		return 0
	}
	r := math.Sqrt(e.square / e.norm)
	if math.IsInf(r, 1) || math.IsInf(e.norm, 1) {
		return math.NaN()
	}
	return r
}
