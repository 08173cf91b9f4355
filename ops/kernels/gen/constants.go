package main

import (
	"maps"
	"math"

	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
)

var (
	laneMasks Mem // eight words of ones, eight of zeros
	byteOrder Mem // 0, 4, 1, 5, 2, 6, 3, 7
	laneOrder Mem // 0 to 15
	wordMasks Mem // for AVX-512: word i has its i lowest bits set

	// constants holds each constant sixteen times over, a whole register; or a
	// register, within holding.
	constants = make(map[string]Op)
)

// numbers are the constants of the kernels; the plain Go of package kernels has
// them with their sources.
var numbers = map[string]float32{
	"log2e":     1.44269504088896341,
	"ln2High":   0.693359375,
	"ln2Low":    -2.12194440e-4,
	"expLow":    -87.33654,
	"expHigh":   89, // clamped here, the result overflows by itself
	"expC0":     1.9875691500e-4,
	"expC1":     1.3981999507e-3,
	"expC2":     8.3334519073e-3,
	"expC3":     4.1665795894e-2,
	"expC4":     1.6666665459e-1,
	"expC5":     5.0000001201e-1,
	"zero":      0,
	"one":       1,
	"two":       2,
	"geluA":     -1.5957691216057308,
	"geluB":     -0.0713548162726009,
	"tanhSmall": 0.625,
	"tanhC0":    -5.70498872745e-3,
	"tanhC1":    2.06390887954e-2,
	"tanhC2":    -5.37397155531e-2,
	"tanhC3":    1.33314422036e-1,
	"tanhC4":    -3.33332819422e-1,
	"half":      0.5,
	"negHalf":   -0.5,
	"erfScale":  0.3275911 * math.Sqrt2 / 2,
	"erfC0":     1.061405429,
	"erfC1":     -1.453152027,
	"erfC2":     1.421413741,
	"erfC3":     -0.284496736,
	"erfC4":     0.254829592,
	"largest":   math.MaxFloat32,
}

func defineMasks() {
	laneMasks = GLOBL("laneMasks", RODATA|NOPTR)
	for i := range 16 {
		word := U32(0)
		if i < 8 {
			word = math.MaxUint32
		}
		DATA(4*i, word)
	}
}

func defineWordMasks() {
	wordMasks = GLOBL("wordMasks", RODATA|NOPTR)
	for i := range 16 {
		DATA(2*i, U16(1<<i-1))
	}
}

func defineByteOrder() {
	byteOrder = GLOBL("byteOrder", RODATA|NOPTR)
	for i, v := range []uint8{0, 4, 1, 5, 2, 6, 3, 7} {
		DATA(i, U8(v))
	}
}

func defineLaneOrder() {
	laneOrder = GLOBL("laneOrder", RODATA|NOPTR)
	for i := range 16 {
		DATA(i, U8(i))
	}
}

func defineConstants() {
	defineMasks()
	defineLaneOrder()
	defineWordMasks()
	words := map[string]uint32{
		"signBit":     1 << 31,
		"bias":        127,
		"infinity":    math.Float32bits(float32(math.Inf(1))),
		"negInfinity": math.Float32bits(float32(math.Inf(-1))),
	}
	for name, v := range numbers {
		words[name] = math.Float32bits(v)
	}
	for _, name := range sortedKeys(words) {
		m := GLOBL(name, RODATA|NOPTR)
		for i := range 16 {
			DATA(4*i, U32(words[name]))
		}
		constants[name] = m
	}
}

// expConstants are the constants that exp uses.
var expConstants = []string{
	"expLow", "expHigh", "log2e", "ln2High", "ln2Low", "expC0", "expC1", "expC2", "expC3", "expC4", "expC5", "one",
}

// holding has AVX-512 keep constants in registers while body is emitted. The
// linker aligns data to 32 bytes, so that half of its loads of 64 would straddle
// two cache lines. AVX2 has no registers to spare, and no need.
func (v isa) holding(names []string, body func()) {
	if v.wide {
		inMemory := maps.Clone(constants)
		defer func() { constants = inMemory }()
		for _, name := range names {
			r := v.reg()
			VBROADCASTSS(inMemory[name], r)
			constants[name] = r
		}
	}
	body()
}
