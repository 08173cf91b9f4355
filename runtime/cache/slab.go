package cache

import (
	"unsafe"

	"github.com/firstpassage/fpa/runtime/internal/largepage"
)

// slab is memory from which the keys and values of many pages are cut, so that the
// operating system can back it with large pages of its own: translating addresses
// takes a tenth of a token's time otherwise. A slab is freed when no page of it is left.
type slab struct{ rest []byte }

const (
	slabBytes = 8 << 20
	// A cache smaller than this takes its pages one by one.
	slabsFrom = 16 << 20
)

// cut takes n bytes, aligned to 64, or nil when there are not as many.
func (s *slab) cut(n int) []byte {
	n = (n + 63) &^ 63
	if n > len(s.rest) {
		return nil
	}
	b := s.rest[:n:n]
	s.rest = s.rest[n:]
	return b
}

// renew takes a new slab, which begins at a large page.
func (s *slab) renew() {
	b := make([]byte, slabBytes+largepage.Size)
	skip := -uintptr(unsafe.Pointer(&b[0])) & (largepage.Size - 1)
	s.rest = b[skip : skip+slabBytes]
	largepage.Advise(s.rest)
}

// numbers is n numbers cut from the slab, or apart from it when s is nil or they are
// too many.
func numbers[T uint16 | int8 | float32](s *slab, n int) []T {
	var zero T
	size := n * int(unsafe.Sizeof(zero))
	if s == nil || n == 0 || size > slabBytes {
		return make([]T, n)
	}
	b := s.cut(size)
	if b == nil {
		s.renew()
		b = s.cut(size)
	}
	return unsafe.Slice((*T)(unsafe.Pointer(&b[0])), n)
}
