package quant

import "encoding/binary"

// This file holds the bulk conversions in plain Go: what the assembly does, and
// the ends of slices that it leaves.

// EncodeF16 rounds src to binary16 numbers, as F32ToF16 does. The slices have
// the same length.
func EncodeF16(dst []uint16, src []float32) {
	dst = dst[:len(src)]
	done := encodeF16Words(dst, src)
	for i, v := range src[done:] {
		dst[done+i] = F32ToF16(v)
	}
}

// DecodeF16 widens binary16 numbers. The slices have the same length.
func DecodeF16(dst []float32, src []uint16) {
	dst = dst[:len(src)]
	done := decodeF16Words(dst, src)
	for i, v := range src[done:] {
		dst[done+i] = F16ToF32(v)
	}
}

func decodeF16Go(dst []float32, src []byte) {
	for i := range dst {
		dst[i] = F16ToF32(binary.LittleEndian.Uint16(src[2*i:]))
	}
}

func encodeF16Go(dst []byte, src []float32) {
	for i, v := range src {
		binary.LittleEndian.PutUint16(dst[2*i:], F32ToF16(v))
	}
}

func decodeBF16Go(dst []float32, src []byte) {
	for i := range dst {
		dst[i] = BF16ToF32(binary.LittleEndian.Uint16(src[2*i:]))
	}
}

func encodeBF16Go(dst []byte, src []float32) {
	for i, v := range src {
		binary.LittleEndian.PutUint16(dst[2*i:], F32ToBF16(v))
	}
}
