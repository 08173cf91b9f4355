package quant

// Groups unpacks the small integers that the scales and offsets of a block of Q4_K or
// Q5_K are multiples of, a pair for each 32 elements.
func Groups(block []byte) (scales, offsets [8]byte) {
	for j := range scales {
		scales[j], offsets[j] = scaleMin(block[4:16], j)
	}
	return scales, offsets
}

// IntegersQ6K unpacks the integers of a block of Q6_K.
func IntegersQ6K(block []byte) (q [256]int8) {
	for g := range 16 {
		low, high, lowShift, highShift := groupQ6K(block, g)
		out := q[g*16:][:16]
		for i, b := range low {
			out[i] = int8(b>>lowShift&15|high[i]>>highShift&3<<4) - 32
		}
	}
	return q
}

// groupQ6K is where the integers of group g of sixteen elements of a block lie: bytes
// with their low four bits and their high two, shifted.
func groupQ6K(block []byte, g int) (low, high []byte, lowShift, highShift int) {
	half, k := g/8, g%8 // it is number k in its half
	low = block[half*64+k%4*16:][:16]
	high = block[128+half*32+k%2*16:][:16]
	return low, high, k / 4 * 4, k / 2 * 2
}
