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
		for i := range superLen {
			scale, offset := float32(d*float32(scales[i/16]&15)), float32(dmin*float32(scales[i/16]>>4))
			q := qs[i/128*32+i%32] >> (i % 128 / 32 * 2) & 3
			dst[i] = float32(scale*float32(q)) - offset
		}
	}
}

// decodeQ3K: 32 bytes of high bits (a clear bit means minus 4), 64 bytes of two
// bits laid out as in Q2_K, twelve bytes of sixteen 6-bit scales offset by 32,
// d.
func decodeQ3K(dst []float32, src []byte) {
	for ; len(dst) > 0; dst, src = dst[superLen:], src[110:] {
		high, qs, packed, d := src[:32], src[32:96], src[96:108], f16At(src[108:])
		var scales [16]float32
		for i := range scales {
			low4 := packed[i%8] >> (i / 8 * 4) & 15
			high2 := packed[8+i%4] >> (i / 4 * 2) & 3
			scales[i] = d * float32(int(low4|high2<<4)-32)
		}
		for i := range superLen {
			q := int(qs[i/128*32+i%32] >> (i % 128 / 32 * 2) & 3)
			if high[i%32]>>(i/32)&1 == 0 {
				q -= 4
			}
			dst[i] = scales[i/16] * float32(q)
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

// decodeQ4K: d, dmin, twelve bytes of scales, 128 bytes of four-bit integers;
// each run of 32 bytes holds 32 elements in the low halves, the next 32 in the
// high halves.
func decodeQ4K(dst []float32, src []byte) {
	for ; len(dst) > 0; dst, src = dst[superLen:], src[144:] {
		d, dmin, packed, qs := f16At(src), f16At(src[2:]), src[4:16], src[16:144]
		for j := range 8 {
			s, m := scaleMin(packed, j)
			scale, offset := d*float32(s), dmin*float32(m)
			for i, q := range qs[j/2*32:][:32] {
				dst[j*32+i] = float32(scale*float32(q>>(j%2*4)&15)) - offset
			}
		}
	}
}

// decodeQ5K: as Q4_K, with 32 bytes of fifth bits before the integers: bit j of
// byte i belongs to element i of group j.
func decodeQ5K(dst []float32, src []byte) {
	for ; len(dst) > 0; dst, src = dst[superLen:], src[176:] {
		d, dmin, packed, high, qs := f16At(src), f16At(src[2:]), src[4:16], src[16:48], src[48:176]
		for j := range 8 {
			s, m := scaleMin(packed, j)
			scale, offset := d*float32(s), dmin*float32(m)
			for i, q := range qs[j/2*32:][:32] {
				v := q>>(j%2*4)&15 | high[i]>>j&1<<4
				dst[j*32+i] = float32(scale*float32(v)) - offset
			}
		}
	}
}

// decodeQ6K: 128 bytes of low four bits, 64 bytes of high two bits, sixteen
// signed scales, d; integers are offset by 32. Each half of 128 elements uses
// 64 low bytes (low halves first) and 32 high bytes (lowest bits first).
func decodeQ6K(dst []float32, src []byte) {
	for ; len(dst) > 0; dst, src = dst[superLen:], src[210:] {
		low, high, scales, d := src[:128], src[128:192], src[192:208], f16At(src[208:])
		for i := range superLen {
			half, k := i/128, i%128
			q := low[half*64+k%64]>>(k/64*4)&15 | high[half*32+k%32]>>(k/32*2)&3<<4
			dst[i] = float32(d*float32(int8(scales[i/16]))) * float32(int(q)-32)
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
