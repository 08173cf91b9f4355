package quant

import (
	"math/rand/v2"
	"testing"
)

// TestGroups makes numbers of the unpacked integers and compares them with Decode.
func TestGroups(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 100 {
		block := make([]byte, Q6_K.BlockBytes())
		for i := range block {
			block[i] = byte(r.Uint32())
		}
		block[208], block[209] = 0, 0x3c // 1
		want := make([]float32, 256)
		if err := Decode(want, Q6_K, block); err != nil {
			t.Fatal(err)
		}
		got := make([]byte, 256)
		IntegersQ6K(got, block)
		for i, w := range want {
			if v := float32(int8(got[i])) * float32(int8(block[192+i/16])); v != w {
				t.Fatalf("Q6_K, element %d: %v, want %v", i, v, w)
			}
		}
		block = block[:Q4_K.BlockBytes()]
		block[0], block[1], block[2], block[3] = 0, 0x3c, 0, 0x3c
		if err := Decode(want, Q4_K, block); err != nil {
			t.Fatal(err)
		}
		scales, offsets := Groups(block)
		for i, w := range want {
			q := block[16+i/64*32+i%32] >> (i / 32 % 2 * 4) & 15
			if v := float32(scales[i/32])*float32(q) - float32(offsets[i/32]); v != w {
				t.Fatalf("Q4_K, element %d: %v, want %v", i, v, w)
			}
		}
	}
}
