package quant

import (
	"encoding/binary"
	"math"
)

// This file holds the block types of 32 elements. Q4_0, Q5_0 and Q8_0 store a
// scale d and integers, value = d * integer; Q4_1 and Q5_1 also an offset m,
// value = d * integer + m. d and m are binary16. Four-bit integers lie in
// sixteen bytes: element j in the low half of byte j, element j+16 in the high
// half; the fifth bit of element j is bit j of a 32-bit word.
//
// Products are written float32(a*b) where a sum follows, so that no compiler
// fuses the two and every machine gives the same bits.

const blockLen = 32

func f16At(b []byte) float32 { return F16ToF32(binary.LittleEndian.Uint16(b)) }

func putF16(b []byte, v float32) { binary.LittleEndian.PutUint16(b, F32ToF16(v)) }

func decodeQ8_0Go(dst []float32, src []byte) {
	for ; len(dst) > 0; dst, src = dst[blockLen:], src[34:] {
		d := f16At(src)
		for j, q := range src[2:34] {
			dst[j] = d * float32(int8(q))
		}
	}
}

// encodeQ8_0Go rounds to the nearest integer, halves away from zero. A NaN
// counts for nothing in the scale and becomes -128.
func encodeQ8_0Go(dst []byte, src []float32) {
	for ; len(src) > 0; dst, src = dst[34:], src[blockLen:] {
		var largest float32
		for _, v := range src[:blockLen] {
			if a := abs(v); a > largest {
				largest = a
			}
		}
		d := largest / 127
		inverse := inverse(d)
		putF16(dst, d)
		for j, v := range src[:blockLen] {
			x := float64(v * inverse) // adding a half is exact in float64
			dst[2+j] = byte(int8(truncate(x+math.Copysign(0.5, x), -128, 127)))
		}
	}
}

func decodeQ4_0Go(dst []float32, src []byte) {
	for ; len(dst) > 0; dst, src = dst[blockLen:], src[18:] {
		d := f16At(src)
		for j, q := range src[2:18] {
			dst[j] = d * float32(int(q&15)-8)
			dst[j+16] = d * float32(int(q>>4)-8)
		}
	}
}

func decodeQ4_1Go(dst []float32, src []byte) {
	for ; len(dst) > 0; dst, src = dst[blockLen:], src[20:] {
		d, m := f16At(src), f16At(src[2:])
		for j, q := range src[4:20] {
			dst[j] = float32(d*float32(q&15)) + m
			dst[j+16] = float32(d*float32(q>>4)) + m
		}
	}
}

func decodeQ5_0Go(dst []float32, src []byte) {
	for ; len(dst) > 0; dst, src = dst[blockLen:], src[22:] {
		d, high := f16At(src), binary.LittleEndian.Uint32(src[2:])
		for j, q := range src[6:22] {
			dst[j] = d * float32(int(q&15)+int(high>>j&1)<<4-16)
			dst[j+16] = d * float32(int(q>>4)+int(high>>(j+16)&1)<<4-16)
		}
	}
}

func decodeQ5_1Go(dst []float32, src []byte) {
	for ; len(dst) > 0; dst, src = dst[blockLen:], src[24:] {
		d, m, high := f16At(src), f16At(src[2:]), binary.LittleEndian.Uint32(src[4:])
		for j, q := range src[8:24] {
			dst[j] = float32(d*float32(int(q&15)+int(high>>j&1)<<4)) + m
			dst[j+16] = float32(d*float32(int(q>>4)+int(high>>(j+16)&1)<<4)) + m
		}
	}
}

func encodeQ4_0(dst []byte, src []float32) {
	for ; len(src) > 0; dst, src = dst[18:], src[blockLen:] {
		var q [blockLen]byte
		putF16(dst, symmetric(&q, src[:blockLen], 8))
		packLow(dst[2:18], &q)
	}
}

func encodeQ5_0(dst []byte, src []float32) {
	for ; len(src) > 0; dst, src = dst[22:], src[blockLen:] {
		var q [blockLen]byte
		putF16(dst, symmetric(&q, src[:blockLen], 16))
		binary.LittleEndian.PutUint32(dst[2:], fifthBits(&q))
		packLow(dst[6:22], &q)
	}
}

func encodeQ4_1(dst []byte, src []float32) {
	for ; len(src) > 0; dst, src = dst[20:], src[blockLen:] {
		var q [blockLen]byte
		d, m := affine(&q, src[:blockLen], 15)
		putF16(dst, d)
		putF16(dst[2:], m)
		packLow(dst[4:20], &q)
	}
}

func encodeQ5_1(dst []byte, src []float32) {
	for ; len(src) > 0; dst, src = dst[24:], src[blockLen:] {
		var q [blockLen]byte
		d, m := affine(&q, src[:blockLen], 31)
		putF16(dst, d)
		putF16(dst[2:], m)
		binary.LittleEndian.PutUint32(dst[4:], fifthBits(&q))
		packLow(dst[8:24], &q)
	}
}

// symmetric maps the element of largest magnitude to -half, the one end that
// the integers -half..half-1 reach, and returns the scale. Integers are stored
// with half added.
func symmetric(q *[blockLen]byte, src []float32, half float32) float32 {
	var extreme float32
	for _, v := range src {
		if abs(v) > abs(extreme) {
			extreme = v
		}
	}
	d := extreme / -half
	inverse := inverse(d)
	for j, v := range src {
		q[j] = byte(truncate(float32(v*inverse)+(half+0.5), 0, 2*half-1))
	}
	return d
}

// affine spreads the range of src over 0..top and returns scale and offset.
func affine(q *[blockLen]byte, src []float32, top float32) (d, m float32) {
	low, high := src[0], src[0]
	for _, v := range src {
		low, high = min(low, v), max(high, v)
	}
	d = (high - low) / top
	inverse := inverse(d)
	for j, v := range src {
		q[j] = byte(truncate(float32((v-low)*inverse)+0.5, 0, top))
	}
	return d, low
}

func packLow(dst []byte, q *[blockLen]byte) {
	for j := range dst {
		dst[j] = q[j]&15 | q[j+16]<<4
	}
}

func fifthBits(q *[blockLen]byte) (bits uint32) {
	for j, v := range q {
		bits |= uint32(v>>4&1) << j
	}
	return bits
}

func abs(v float32) float32 { return math.Float32frombits(math.Float32bits(v) &^ (1 << 31)) }

// inverse is 1/d, and 0 where that overflows, as for a block of zeros.
func inverse(d float32) float32 {
	if r := 1 / d; abs(r) <= math.MaxFloat32 {
		return r
	}
	return 0
}

// truncate drops the fraction and keeps the result within [low, high]. A NaN,
// which no block of integers can hold, becomes low.
func truncate[T float32 | float64](v, low, high T) int {
	switch {
	case v >= high:
		return int(high)
	case v >= low:
		return int(v)
	default:
		return int(low)
	}
}

// levelsIQ4NL are the sixteen levels of IQ4_NL, denser around zero.
var levelsIQ4NL = [16]float32{-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113}

func decodeIQ4NL(dst []float32, src []byte) {
	for ; len(dst) > 0; dst, src = dst[blockLen:], src[18:] {
		d := f16At(src)
		for j, q := range src[2:18] {
			dst[j] = d * levelsIQ4NL[q&15]
			dst[j+16] = d * levelsIQ4NL[q>>4]
		}
	}
}
