package quant

import (
	"encoding/binary"
	"math"
)

// This file holds the K types: blocks of 256 elements split into groups of 16
// or 32, whose small integer scales are themselves multiples of one or two
// binary16 numbers of the block. Q2_K, Q4_K and Q5_K also have an offset a
// group, subtracted.

const superLen = 256

// decodeQ2K: 16 bytes of scale (low half) and offset (high half) of groups of
// 16, 64 bytes of two-bit integers, d, dmin. Each run of 32 bytes holds four
// times 32 elements, from the lowest bits up.
func decodeQ2K(dst []float32, src []byte) {
	for ; len(dst) > 0; dst, src = dst[superLen:], src[84:] {
		scales, qs := src[:16], src[16:80]
		d, dmin := f16At(src[80:]), f16At(src[82:])
		for g, packed := range scales {
			scale, offset := d*float32(packed&15), dmin*float32(packed>>4)
			out, shift := dst[g*16:][:16], g%8/2*2
			for i, q := range qs[g/8*32+g%2*16:][:16] {
				out[i] = float32(scale*float32(q>>shift&3)) - offset
			}
		}
	}
}

// decodeQ3K: 32 bytes of high bits (a clear bit means minus 4), 64 bytes of two
// bits laid out as in Q2_K, twelve bytes of sixteen 6-bit scales offset by 32,
// d.
func decodeQ3K(dst []float32, src []byte) {
	for ; len(dst) > 0; dst, src = dst[superLen:], src[110:] {
		high, qs, packed, d := src[:32], src[32:96], src[96:108], f16At(src[108:])
		for g := range 16 {
			low4 := packed[g%8] >> (g / 8 * 4) & 15
			high2 := packed[8+g%4] >> (g / 4 * 2) & 3
			scale := d * float32(int(low4|high2<<4)-32)
			out, shift, bit := dst[g*16:][:16], g%8/2*2, g/2
			high := high[g%2*16:][:16]
			for i, q := range qs[g/8*32+g%2*16:][:16] {
				out[i] = scale * float32(int(q>>shift&3)+int(high[i]>>bit&1)<<2-4)
			}
		}
	}
}

// scaleMin unpacks scale and offset of group j (of eight) from the twelve bytes
// that Q4_K and Q5_K share: six bits each, the last four groups with their
// upper two bits in the spare bits of the first eight bytes.
func scaleMin(packed []byte, j int) (scale, offset byte) {
	if j < 4 {
		return packed[j] & 63, packed[j+4] & 63
	}
	return packed[j+4]&15 | packed[j-4]>>6<<4, packed[j+4]>>4 | packed[j]>>6<<4
}

// groupScales unpacks the scales and offsets of a block of Q4_K or Q5_K.
func groupScales(src []byte) (scales, offsets [8]float32) {
	d, dmin, packed := f16At(src), f16At(src[2:]), src[4:16]
	for j := range scales {
		s, m := scaleMin(packed, j)
		scales[j], offsets[j] = d*float32(s), dmin*float32(m)
	}
	return scales, offsets
}

// decodeQ4KGo: d, dmin, twelve bytes of scales, 128 bytes of four-bit integers;
// each run of 32 bytes holds 32 elements in the low halves, the next 32 in the
// high halves.
func decodeQ4KGo(dst []float32, src []byte) {
	for ; len(dst) > 0; dst, src = dst[superLen:], src[144:] {
		scales, offsets := groupScales(src)
		for j, scale := range scales {
			offset, shift, out := offsets[j], j%2*4, dst[j*32:][:32]
			for i, q := range src[16+j/2*32:][:32] {
				out[i] = float32(scale*float32(q>>shift&15)) - offset
			}
		}
	}
}

// decodeQ5KGo: as Q4_K, with 32 bytes of fifth bits before the integers: bit j
// of byte i belongs to element i of group j.
func decodeQ5KGo(dst []float32, src []byte) {
	for ; len(dst) > 0; dst, src = dst[superLen:], src[176:] {
		scales, offsets := groupScales(src)
		high := src[16:48]
		for j, scale := range scales {
			offset, shift, out := offsets[j], j%2*4, dst[j*32:][:32]
			for i, q := range src[48+j/2*32:][:32] {
				out[i] = float32(scale*float32(q>>shift&15|high[i]>>j&1<<4)) - offset
			}
		}
	}
}

// q6Scales unpacks the scales of a block of Q6_K.
func q6Scales(src []byte) (scales [16]float32) {
	d := f16At(src[208:])
	for g, s := range src[192:208] {
		scales[g] = d * float32(int8(s))
	}
	return scales
}

// decodeQ6KGo: 128 bytes of low four bits, 64 bytes of high two bits, sixteen
// signed scales, d; integers are offset by 32. Each half of 128 elements uses
// 64 low bytes (low halves first) and 32 high bytes (lowest bits first).
func decodeQ6KGo(dst []float32, src []byte) {
	for ; len(dst) > 0; dst, src = dst[superLen:], src[210:] {
		for g, scale := range q6Scales(src) {
			low, high, lowShift, highShift := groupQ6K(src, g)
			out := dst[g*16:][:16]
			for i, q := range low {
				out[i] = scale * float32(int(q>>lowShift&15|high[i]>>highShift&3<<4)-32)
			}
		}
	}
}

// decodeQ8K: a float32 scale, 256 signed bytes, and sums of groups that only
// integer dot products use.
func decodeQ8K(dst []float32, src []byte) {
	for ; len(dst) > 0; dst, src = dst[superLen:], src[292:] {
		d := math.Float32frombits(binary.LittleEndian.Uint32(src))
		for j, q := range src[4:260] {
			dst[j] = d * float32(int8(q))
		}
	}
}
