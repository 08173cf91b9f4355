package attention

import (
	"syscall"
	"testing"
	"unsafe"
)

// fence allocates n elements that end where readable memory ends, so that a read
// or a write beyond them kills the test.
func fence[T any](t testing.TB, n int) []T {
	t.Helper()
	var zero T
	size, page := n*int(unsafe.Sizeof(zero)), syscall.Getpagesize()
	if size == 0 {
		return []T{}
	}
	whole := (size+page-1)/page*page + page
	memory, err := syscall.Mmap(-1, 0, whole, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_ANON|syscall.MAP_PRIVATE)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = syscall.Munmap(memory) })
	if err := syscall.Mprotect(memory[whole-page:], syscall.PROT_NONE); err != nil {
		t.Fatal(err)
	}
	return unsafe.Slice((*T)(unsafe.Pointer(&memory[whole-page-size])), n)
}
