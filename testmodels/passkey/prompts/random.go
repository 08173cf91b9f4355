package main

import (
	"crypto/sha512"
	"math/bits"
)

// random is random.Random of Python, so that a seed gives the prompts that the
// training code draws. It is the Mersenne Twister MT19937 (Matsumoto and Nishimura,
// 1998) with the seeding of Python's version 2 for texts.
type random struct {
	state [mtSize]uint32
	next  int
}

const (
	mtSize  = 624
	mtShift = 397
)

// newRandom is random.Random(seed).
func newRandom(seed string) *random {
	// The seed is the text and its SHA-512, read as one large number, whose 32-bit
	// words, the lowest first, are the key.
	sum := sha512.Sum512([]byte(seed))
	number := append([]byte(seed), sum[:]...)
	var key []uint32
	for end := len(number); end > 0; end -= 4 {
		word := uint32(0)
		for _, b := range number[max(end-4, 0):end] {
			word = word<<8 | uint32(b)
		}
		key = append(key, word)
	}
	for len(key) > 1 && key[len(key)-1] == 0 {
		key = key[:len(key)-1]
	}
	return newTwister(key)
}

// newTwister is init_by_array of the authors' code.
func newTwister(key []uint32) *random {
	r := &random{next: mtSize}
	s := &r.state
	s[0] = 19650218
	for i := 1; i < mtSize; i++ {
		s[i] = 1812433253*(s[i-1]^s[i-1]>>30) + uint32(i)
	}
	i, j := 1, 0
	step := func(factor, add uint32) {
		s[i] = (s[i] ^ (s[i-1]^s[i-1]>>30)*factor) + add
		if i++; i == mtSize {
			s[0], i = s[mtSize-1], 1
		}
	}
	for range max(mtSize, len(key)) {
		step(1664525, key[j]+uint32(j))
		j = (j + 1) % len(key)
	}
	for range mtSize - 1 {
		step(1566083941, -uint32(i))
	}
	s[0] = 1 << 31
	return r
}

// uint32 is the next 32 bits.
func (r *random) uint32() uint32 {
	if r.next == mtSize {
		s := &r.state
		for i := range s {
			y := s[i]&(1<<31) | s[(i+1)%mtSize]&(1<<31-1)
			s[i] = s[(i+mtShift)%mtSize] ^ y>>1 ^ -(y&1)&0x9908b0df
		}
		r.next = 0
	}
	y := r.state[r.next]
	r.next++
	y ^= y >> 11
	y ^= y << 7 & 0x9d2c5680
	y ^= y << 15 & 0xefc60000
	return y ^ y>>18
}

// float64 is random(): 53 bits in [0, 1).
func (r *random) float64() float64 {
	a, b := r.uint32()>>5, r.uint32()>>6
	return (float64(a)*(1<<26) + float64(b)) / (1 << 53)
}

// below is a whole number in [0, n), for n up to 2^31: numbers of as many bits as n
// has are drawn until one fits.
func (r *random) below(n int) int {
	for {
		if x := int(r.uint32() >> (32 - bits.Len(uint(n)))); x < n {
			return x
		}
	}
}

// choice is one of a list.
func (r *random) choice(list []string) string { return list[r.below(len(list))] }

// between is randint: a whole number from low to high, both included.
func (r *random) between(low, high int) int { return low + r.below(high-low+1) }

// sample draws n different ones of a list of up to 21.
func (r *random) sample(list []string, n int) []string {
	pool := append([]string(nil), list...)
	out := make([]string, n)
	for i := range out {
		last := len(pool) - i
		j := r.below(last)
		out[i], pool[j] = pool[j], pool[last-1]
	}
	return out
}
