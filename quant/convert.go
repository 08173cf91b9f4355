package quant

import (
	"encoding/binary"
	"fmt"
	"math"
	"unsafe"
)

// littleEndian tells whether numbers in memory look as they do in files.
var littleEndian = binary.NativeEndian.Uint16([]byte{1, 0}) == 1

// A codec decodes and encodes whole blocks of one type. Both functions are
// given slices whose lengths agree.
type codec struct {
	decode func(dst []float32, src []byte)
	encode func(dst []byte, src []float32)
}

var codecs = [numDTypes]codec{
	F64:        {decode: decodeF64},
	F32:        {decodeF32, encodeF32},
	F16:        {decodeF16, encodeF16},
	BF16:       {decodeBF16, encodeBF16},
	F8E4M3:     {decode: func(dst []float32, src []byte) { decodeTable(dst, src, &tableE4M3) }},
	F8E5M2:     {decode: func(dst []float32, src []byte) { decodeTable(dst, src, &tableE5M2) }},
	F8E8M0:     {decode: func(dst []float32, src []byte) { decodeTable(dst, src, &tableE8M0) }},
	F8E4M3FNUZ: {decode: func(dst []float32, src []byte) { decodeTable(dst, src, &tableE4M3FNUZ) }},
	F8E5M2FNUZ: {decode: func(dst []float32, src []byte) { decodeTable(dst, src, &tableE5M2FNUZ) }},
	I8:         {decode: decodeI8},
	I16:        {decode: decodeI16},
	I32:        {decode: decodeI32},
	I64:        {decode: decodeI64},
	U8:         {decode: decodeU8},
	U16:        {decode: decodeU16},
	U32:        {decode: decodeU32},
	U64:        {decode: decodeU64},
	Bool:       {decode: decodeBool},
	Q4_0:       {decodeQ4_0, encodeQ4_0},
	Q4_1:       {decodeQ4_1, encodeQ4_1},
	Q5_0:       {decodeQ5_0, encodeQ5_0},
	Q5_1:       {decodeQ5_1, encodeQ5_1},
	Q8_0:       {decodeQ8_0, encodeQ8_0},
	Q2_K:       {decode: decodeQ2K},
	Q3_K:       {decode: decodeQ3K},
	Q4_K:       {decodeQ4K, encodeQ4K},
	Q5_K:       {decodeQ5K, encodeQ5K},
	Q6_K:       {decodeQ6K, encodeQ6K},
	Q8_K:       {decode: decodeQ8K},
	IQ4_NL:     {decode: decodeIQ4NL},
}

// CanDecode reports whether Decode reads the type.
func CanDecode(d DType) bool { return d < numDTypes && codecs[d].decode != nil }

// CanEncode reports whether Encode writes the type.
func CanEncode(d DType) bool { return d < numDTypes && codecs[d].encode != nil }

// Decode widens the elements in src, stored as d, to float32. F64 and integers
// too wide for a float32 are rounded once; everything else is exact up to the
// single multiplication or addition that the block formats define in float32.
// A Bool is 0 or 1. src must be exactly d.Bytes(len(dst)) long and may start at
// any address.
func Decode(dst []float32, d DType, src []byte) error {
	if !CanDecode(d) {
		return fmt.Errorf("decode: type %s is not supported", d)
	}
	if err := checkLengths("decode", d, len(dst), len(src)); err != nil {
		return err
	}
	codecs[d].decode(dst, src)
	return nil
}

// Encode stores the values of src as d, each rounded to nearest, ties to even;
// blocks of 32 are rounded as the reference quantiser of GGUF does, byte by byte.
// Q4_K, Q5_K and Q6_K, whose bytes no rule fixes, are searched for the least sum of
// squared errors; NaN and infinity become finite numbers there. The bytes are the
// same on every machine. dst must be exactly d.Bytes(len(src)) long.
func Encode(dst []byte, d DType, src []float32) error {
	if !CanEncode(d) {
		return fmt.Errorf("encode: type %s is not supported", d)
	}
	if err := checkLengths("encode", d, len(src), len(dst)); err != nil {
		return err
	}
	codecs[d].encode(dst, src)
	return nil
}

// Convert re-encodes n elements from one type to another through float32.
func Convert(dst []byte, to DType, src []byte, from DType, n int) error {
	if !CanDecode(from) {
		return fmt.Errorf("convert: cannot read type %s", from)
	}
	if !CanEncode(to) {
		return fmt.Errorf("convert: cannot write type %s", to)
	}
	if err := checkLengths("convert", from, n, len(src)); err != nil {
		return err
	}
	if err := checkLengths("convert", to, n, len(dst)); err != nil {
		return err
	}
	var buf [chunk]float32
	for n > 0 {
		m := min(n, chunk)
		in, out := size(from, m), size(to, m)
		codecs[from].decode(buf[:m], src[:in])
		codecs[to].encode(dst[:out], buf[:m])
		src, dst, n = src[in:], dst[out:], n-m
	}
	return nil
}

// chunk is how many elements pass through a buffer on the stack at a time: a
// multiple of every block length, small enough for the first-level cache.
const chunk = 1024

// size is the bytes of n elements, a whole number of blocks.
func size(d DType, n int) int { return n / infos[d].length * infos[d].bytes }

func checkLengths(what string, d DType, elements, bytes int) error {
	want, err := d.Bytes(int64(elements))
	if err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	if int64(bytes) != want {
		return fmt.Errorf("%s: %d elements of %s take %d bytes, the slice has %d", what, elements, d, want, bytes)
	}
	return nil
}

func decodeF64(dst []float32, src []byte) {
	for i := range dst {
		dst[i] = float32(math.Float64frombits(binary.LittleEndian.Uint64(src[8*i:])))
	}
}

func decodeF32(dst []float32, src []byte) {
	if littleEndian && len(dst) > 0 {
		copy(unsafe.Slice((*byte)(unsafe.Pointer(&dst[0])), 4*len(dst)), src)
		return
	}
	for i := range dst {
		dst[i] = math.Float32frombits(binary.LittleEndian.Uint32(src[4*i:]))
	}
}

func encodeF32(dst []byte, src []float32) {
	if littleEndian && len(src) > 0 {
		copy(dst, unsafe.Slice((*byte)(unsafe.Pointer(&src[0])), 4*len(src)))
		return
	}
	for i, v := range src {
		binary.LittleEndian.PutUint32(dst[4*i:], math.Float32bits(v))
	}
}

func decodeI8(dst []float32, src []byte) {
	for i := range dst {
		dst[i] = float32(int8(src[i]))
	}
}

func decodeI16(dst []float32, src []byte) {
	for i := range dst {
		dst[i] = float32(int16(binary.LittleEndian.Uint16(src[2*i:])))
	}
}

func decodeI32(dst []float32, src []byte) {
	for i := range dst {
		dst[i] = float32(int32(binary.LittleEndian.Uint32(src[4*i:])))
	}
}

func decodeI64(dst []float32, src []byte) {
	for i := range dst {
		dst[i] = float32(int64(binary.LittleEndian.Uint64(src[8*i:])))
	}
}

func decodeU8(dst []float32, src []byte) {
	for i := range dst {
		dst[i] = float32(src[i])
	}
}

func decodeU16(dst []float32, src []byte) {
	for i := range dst {
		dst[i] = float32(binary.LittleEndian.Uint16(src[2*i:]))
	}
}

func decodeU32(dst []float32, src []byte) {
	for i := range dst {
		dst[i] = float32(binary.LittleEndian.Uint32(src[4*i:]))
	}
}

func decodeU64(dst []float32, src []byte) {
	for i := range dst {
		dst[i] = float32(binary.LittleEndian.Uint64(src[8*i:]))
	}
}

func decodeBool(dst []float32, src []byte) {
	for i := range dst {
		dst[i] = 0
		if src[i] != 0 {
			dst[i] = 1
		}
	}
}
