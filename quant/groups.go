package quant

import "encoding/binary"

// Groups unpacks the small integers that the scales and offsets of a block of Q4_K or
// Q5_K are multiples of, a pair for each 32 elements.
func Groups(block []byte) (scales, offsets [8]byte) {
	for j := range scales {
		scales[j], offsets[j] = scaleMin(block[4:16], j)
	}
	return scales, offsets
}

// IntegersQ6K unpacks the 256 integers of a block of Q6_K, signed bytes.
func IntegersQ6K(dst, block []byte) {
	for g := range 16 {
		low, high, lowShift, highShift := groupQ6K(block, g)
		out := dst[g*16:][:16]
		for i := 0; i < 16; i += 4 { // four at a time, none of which reaches its neighbour
			q := binary.LittleEndian.Uint32(low[i:]) >> lowShift & 0x0f0f0f0f
			q |= binary.LittleEndian.Uint32(high[i:]) >> highShift & 0x03030303 << 4
			negative := ^q & 0x20202020 // those below 32, which is taken off
			binary.LittleEndian.PutUint32(out[i:], q&0x1f1f1f1f|negative*7)
		}
	}
}

// groupQ6K is where the integers of group g of sixteen elements of a block lie: bytes
// with their low four bits and their high two, shifted.
func groupQ6K(block []byte, g int) (low, high []byte, lowShift, highShift int) {
	half, k := g/8, g%8 // it is number k in its half
	low = block[half*64+k%4*16:][:16]
	high = block[128+half*32+k%2*16:][:16]
	return low, high, k / 4 * 4, k / 2 * 2
}
