package quant

import (
	"math"
	"math/rand/v2"
	"testing"
)

// TestParts: on random blocks no element is larger than its parts, and some come near;
// a block whose parts cancel has large parts all the same.
func TestParts(t *testing.T) {
	r := rand.New(rand.NewPCG(31, 32))
	for d := Invalid; d < numDTypes; d++ {
		if !HasOffset(d) {
			if err := Parts(make([]float64, 16), d, make([]byte, size(d, 256))); err == nil {
				t.Errorf("%s has no offsets, but parts", d)
			}
			continue
		}
		x := make([]float32, 64*superLen)
		for i := range x {
			x[i] = float32(r.NormFloat64() - 0.5)
		}
		var src []byte
		if CanEncode(d) {
			src = encodeAll(t, d, x)
		} else {
			src = make([]byte, size(d, len(x)))
			for i := range src {
				src[i] = byte(r.IntN(64)) // no NaN
			}
		}
		parts := make([]float64, len(x)/PartsLen)
		if err := Parts(parts, d, src); err != nil {
			t.Fatal(err)
		}
		nearest := 0.0
		for i, v := range decodeAll(t, d, src) {
			share := math.Abs(float64(v)) / parts[i/PartsLen]
			if share > 1+1e-6 {
				t.Fatalf("%s: element %d is %g, its parts %g", d, i, v, parts[i/PartsLen])
			}
			nearest = max(nearest, share)
		}
		if nearest < 0.4 {
			t.Errorf("%s: no element is larger than %.2f of its parts", d, nearest)
		}
		if err := Parts(parts[1:], d, src); err == nil {
			t.Errorf("%s: parts of another length", d)
		}
	}
	// d = 2, m = -30, every integer 15: all elements are 0.
	block := make([]byte, 20)
	putF16(block, 2)
	putF16(block[2:], -30)
	for i := range block[4:] {
		block[4+i] = 0xff
	}
	parts := make([]float64, 2)
	if err := Parts(parts, Q4_1, block); err != nil || parts[0] != 60 || parts[1] != 60 {
		t.Errorf("parts %v, %v, expected 60", parts, err)
	}
}
