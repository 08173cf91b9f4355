package quant

import (
	"fmt"
	"math"
)

// PartsLen is the run of elements that Parts gives one number for.
const PartsLen = 16

// HasOffset reports whether the numbers of a type are a multiple of a scale plus an
// offset: Q4_1, Q5_1, Q2_K, Q4_K and Q5_K.
func HasOffset(d DType) bool {
	switch d {
	case Q4_1, Q5_1, Q2_K, Q4_K, Q5_K:
		return true
	}
	return false
}

// Parts bounds, for a type that HasOffset and each run of PartsLen elements, the sum of
// the magnitudes of the two parts of an element: scale times the largest integer, and
// offset. An engine that sums the parts apart errs in proportion to these, which can be
// far larger than the elements. dst has an element a run, src is whole blocks.
func Parts(dst []float64, d DType, src []byte) error {
	if !HasOffset(d) {
		return fmt.Errorf("parts: type %s has no offsets", d)
	}
	if err := checkLengths("parts", d, len(dst)*PartsLen, len(src)); err != nil {
		return err
	}
	top := 15.0
	switch d {
	case Q5_1, Q5_K:
		top = 31
	case Q2_K:
		top = 3
	}
	part := func(scale, offset float32) float64 {
		return math.Abs(float64(scale)*top) + math.Abs(float64(offset))
	}
	length, bytes := infos[d].length, infos[d].bytes
	for ; len(src) > 0; dst, src = dst[length/PartsLen:], src[bytes:] {
		switch d {
		case Q4_1, Q5_1:
			p := part(f16At(src), f16At(src[2:]))
			dst[0], dst[1] = p, p
		case Q2_K:
			scale, offset := f16At(src[80:]), f16At(src[82:])
			for g, packed := range src[:16] {
				dst[g] = part(scale*float32(packed&15), offset*float32(packed>>4))
			}
		default:
			scales, offsets := groupScales(src)
			for g, scale := range scales {
				p := part(scale, offsets[g])
				dst[2*g], dst[2*g+1] = p, p
			}
		}
	}
	return nil
}
