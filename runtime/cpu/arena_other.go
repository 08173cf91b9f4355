//go:build !linux

package cpu

import "unsafe"

// arena is memory for the engine's own form of the weights.
type arena struct{ bytes []byte }

// newArena takes memory for n bytes that begins at a multiple of 64.
func newArena(n int) (*arena, error) {
	b := make([]byte, n+64)
	skip := int(-uintptr(unsafe.Pointer(&b[0])) & 63)
	return &arena{b[skip : skip+n]}, nil
}

// largePageMemory is 0: nothing is known of large pages.
func largePageMemory() int { return 0 }

// free leaves the memory to the garbage collector.
func (a *arena) free() { a.bytes = nil }
