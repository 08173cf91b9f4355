// Package quant describes the number types that weights are stored in, and
// converts rows of float32 to and from them.
//
// Plain types hold one element a block. Block types (Q8_0, Q4_K, ...) hold
// BlockLen elements of one row in BlockBytes bytes, in the byte layout of the
// GGUF file format, so that a mapped file is used in place.
//
// The formats: IEEE 754 for F16 to F64; bfloat16, the upper half of an F32; the
// 8-bit floats of https://www.opencompute.org/documents/ocp-8-bit-floating-point-specification-ofp8-revision-1-0-2023-12-01-pdf-1
// and their FNUZ relatives; the blocks of
// https://github.com/ggml-org/ggml/blob/master/docs/gguf.md as llama.cpp defines
// them, tested byte by byte against it.
//
// Conversions of whole slices use AVX2 where the processor has it and the
// environment variable FPA_CPU is not "generic"; the bits are the same.
//
// # Security
//
// Bytes may come from anywhere: every pattern decodes to some numbers, lengths
// that do not fit are errors, and nothing is allocated. NaN and infinity pass
// through; Scan finds them.
package quant

import (
	"fmt"
	"math"
)

// DType is the storage type of a tensor's elements.
type DType uint8

// The storage types. Float and integer types are little-endian.
const (
	Invalid DType = iota
	F64
	F32
	F16
	BF16
	F8E4M3     // 8-bit float, 4 exponent bits, no infinities ("fn")
	F8E5M2     // 8-bit float, 5 exponent bits
	F8E8M0     // 8-bit power of two (a scale)
	F8E4M3FNUZ // F8E4M3 without negative zero, bias 8
	F8E5M2FNUZ // F8E5M2 without negative zero, bias 16
	F6E2M3     // 6-bit float, four elements in three bytes
	F6E3M2     // 6-bit float, four elements in three bytes
	F4         // 4-bit float E2M1, two elements a byte
	C64        // complex of two F32
	I8
	I16
	I32
	I64
	U8
	U16
	U32
	U64
	Bool
	Q4_0
	Q4_1
	Q5_0
	Q5_1
	Q8_0
	Q2_K
	Q3_K
	Q4_K
	Q5_K
	Q6_K
	Q8_K
	IQ4_NL
	numDTypes
)

// info is the name and block shape of a type.
type info struct {
	name          string
	length, bytes int
}

var infos = [numDTypes]info{
	Invalid:    {"invalid", 1, 0},
	F64:        {"F64", 1, 8},
	F32:        {"F32", 1, 4},
	F16:        {"F16", 1, 2},
	BF16:       {"BF16", 1, 2},
	F8E4M3:     {"F8_E4M3", 1, 1},
	F8E5M2:     {"F8_E5M2", 1, 1},
	F8E8M0:     {"F8_E8M0", 1, 1},
	F8E4M3FNUZ: {"F8_E4M3FNUZ", 1, 1},
	F8E5M2FNUZ: {"F8_E5M2FNUZ", 1, 1},
	F6E2M3:     {"F6_E2M3", 4, 3},
	F6E3M2:     {"F6_E3M2", 4, 3},
	F4:         {"F4", 2, 1},
	C64:        {"C64", 1, 8},
	I8:         {"I8", 1, 1},
	I16:        {"I16", 1, 2},
	I32:        {"I32", 1, 4},
	I64:        {"I64", 1, 8},
	U8:         {"U8", 1, 1},
	U16:        {"U16", 1, 2},
	U32:        {"U32", 1, 4},
	U64:        {"U64", 1, 8},
	Bool:       {"BOOL", 1, 1},
	Q4_0:       {"Q4_0", 32, 18},
	Q4_1:       {"Q4_1", 32, 20},
	Q5_0:       {"Q5_0", 32, 22},
	Q5_1:       {"Q5_1", 32, 24},
	Q8_0:       {"Q8_0", 32, 34},
	Q2_K:       {"Q2_K", 256, 84},
	Q3_K:       {"Q3_K", 256, 110},
	Q4_K:       {"Q4_K", 256, 144},
	Q5_K:       {"Q5_K", 256, 176},
	Q6_K:       {"Q6_K", 256, 210},
	Q8_K:       {"Q8_K", 256, 292},
	IQ4_NL:     {"IQ4_NL", 32, 18},
}

// String is the type's name as safetensors and GGUF tools print it.
func (d DType) String() string {
	if d >= numDTypes {
		return fmt.Sprintf("DType(%d)", uint8(d))
	}
	return infos[d].name
}

// Valid reports whether d is one of the types above, Invalid excepted.
func (d DType) Valid() bool { return d > Invalid && d < numDTypes }

// BlockLen is the number of elements a block holds; 1 for plain types.
func (d DType) BlockLen() int {
	if d >= numDTypes {
		return 1
	}
	return infos[d].length
}

// BlockBytes is the number of bytes of a block; 0 for an invalid type.
func (d DType) BlockBytes() int {
	if d >= numDTypes {
		return 0
	}
	return infos[d].bytes
}

// Quantised reports whether d is a block type of GGUF.
func (d DType) Quantised() bool { return d >= Q4_0 && d < numDTypes }

// Bytes is the size of n elements. It fails when n is negative, no whole
// number of blocks, or too large for an int64.
func (d DType) Bytes(n int64) (int64, error) {
	if !d.Valid() {
		return 0, fmt.Errorf("%s has no size", d)
	}
	length, bytes := int64(infos[d].length), int64(infos[d].bytes)
	if n < 0 {
		return 0, fmt.Errorf("%d elements of %s", n, d)
	}
	if n%length != 0 {
		return 0, fmt.Errorf("%d elements of %s are no whole number of blocks of %d", n, d, length)
	}
	if n/length > math.MaxInt64/bytes {
		return 0, fmt.Errorf("%d elements of %s overflow", n, d)
	}
	return n / length * bytes, nil
}
