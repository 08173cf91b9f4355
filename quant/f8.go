package quant

import "math"

// The 8-bit floats, as tables of all 256 values. E4M3 and E5M2 are those of the
// Open Compute Project's "8-bit Floating Point Specification (OFP8)", E8M0 that
// of its "Microscaling Formats (MX)", the FNUZ pair has no negative zero (its
// code is the only NaN), no infinities, and a bias one larger.
var (
	tableE4M3     = tableF8(3, 7, func(code byte) bool { return code&0x7f == 0x7f }, false)
	tableE5M2     = tableF8(2, 15, func(code byte) bool { return code&0x7f > 0x7c }, true)
	tableE4M3FNUZ = tableF8(3, 8, func(code byte) bool { return code == 0x80 }, false)
	tableE5M2FNUZ = tableF8(2, 16, func(code byte) bool { return code == 0x80 }, false)
	tableE8M0     = func() (t [256]float32) {
		for i := range 255 {
			t[i] = float32(math.Ldexp(1, i-127))
		}
		t[255] = float32(math.NaN())
		return t
	}()
)

// tableF8 lists the values of a float of one sign bit, 7-mantissa exponent bits
// and mantissa bits.
func tableF8(mantissa, bias int, nan func(byte) bool, infinity bool) (t [256]float32) {
	for i := range t {
		exponent := i & 0x7f >> mantissa
		fraction := i & (1<<mantissa - 1)
		var v float64
		switch {
		case nan(byte(i)):
			v = math.NaN()
		case infinity && exponent == 0x7f>>mantissa:
			v = math.Inf(1)
		case exponent == 0:
			v = math.Ldexp(float64(fraction), 1-bias-mantissa)
		default:
			v = math.Ldexp(float64(fraction+1<<mantissa), exponent-bias-mantissa)
		}
		if i >= 0x80 {
			v = -v
		}
		t[i] = float32(v)
	}
	return t
}

func decodeTable(dst []float32, src []byte, table *[256]float32) {
	for i := range dst {
		dst[i] = table[src[i]]
	}
}
