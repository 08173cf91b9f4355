package quant

import "math"

// F16ToF32 widens an IEEE 754 binary16 number, which is exact. A NaN keeps its
// sign and payload and comes out quiet, as from the processor's instruction.
func F16ToF32(h uint16) float32 {
	sign := uint32(h&0x8000) << 16
	rest := uint32(h & 0x7fff)
	switch {
	case rest >= 0x7c00: // infinity or NaN
		if rest > 0x7c00 {
			rest |= 0x200
		}
		return math.Float32frombits(sign | 0x7f800000 | rest<<13)
	case rest >= 0x0400: // normal: only the exponent's bias differs, 127 - 15
		return math.Float32frombits(sign | (rest<<13 + (127-15)<<23))
	default: // subnormal or zero: a multiple of 2^-24
		return math.Float32frombits(sign | math.Float32bits(float32(rest)*0x1p-24))
	}
}

// F32ToF16 rounds to the nearest IEEE 754 binary16 number, ties to even.
// Magnitudes of 65520 and more become infinity. A NaN keeps its sign and the
// upper ten bits of its payload and comes out quiet, as from the processor's
// instruction.
func F32ToF16(f float32) uint16 {
	bits := math.Float32bits(f)
	sign := uint16(bits >> 16 & 0x8000)
	abs := bits & 0x7fffffff
	switch {
	case abs > 0x7f800000:
		return sign | 0x7e00 | uint16(abs>>13&0x3ff)
	case abs >= 0x477ff000: // 65520, half way to the first number too large
		return sign | 0x7c00
	case abs >= 0x38800000: // 2^-14 and more: a normal number
		// Adding half of the dropped 13 bits, less one, plus the last kept bit
		// rounds to nearest even; a carry runs into the exponent as it should.
		return sign | uint16((abs-(127-15)<<23+0xfff+abs>>13&1)>>13)
	default:
		// Below 2^-14 the spacing is 2^-24, which is that of float32 numbers
		// in [0.5, 1): adding 0.5 makes the addition round for us.
		sum := math.Float32frombits(abs) + 0.5
		return sign | uint16(math.Float32bits(sum)-0x3f000000)
	}
}

// BF16ToF32 widens a bfloat16 number, the upper half of a float32. It is
// exact; a NaN is kept bit by bit.
func BF16ToF32(b uint16) float32 { return math.Float32frombits(uint32(b) << 16) }

// F32ToBF16 rounds to the nearest bfloat16 number, ties to even. A NaN keeps
// its sign and upper payload and comes out quiet.
func F32ToBF16(f float32) uint16 {
	bits := math.Float32bits(f)
	if bits&0x7fffffff > 0x7f800000 {
		return uint16(bits>>16) | 0x40
	}
	return uint16((bits + 0x7fff + bits>>16&1) >> 16)
}
