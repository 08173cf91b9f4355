package quant

import (
	"syscall"
	"testing"
	"unsafe"
)

// TestFence converts memory that ends with its data, as the last tensor of a
// mapped file may; a read or a write beyond kills the test.
func TestFence(t *testing.T) {
	page := syscall.Getpagesize()
	fenced := func(n int) []byte {
		size := (n+page-1)/page*page + page
		memory, err := syscall.Mmap(-1, 0, size, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_ANON|syscall.MAP_PRIVATE)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = syscall.Munmap(memory) })
		if err := syscall.Mprotect(memory[size-page:], syscall.PROT_NONE); err != nil {
			t.Fatal(err)
		}
		return memory[size-page-n : size-page]
	}
	for d := Invalid; d < numDTypes; d++ {
		if !CanDecode(d) {
			continue
		}
		for _, n := range []int{1, 15, 16, 17, 32, 33, 64, 256, 512} {
			if n%d.BlockLen() != 0 {
				continue
			}
			x := unsafe.Slice((*float32)(unsafe.Pointer(&fenced(4 * n)[0])), n)
			b := fenced(size(d, n))
			if err := Decode(x, d, b); err != nil {
				t.Fatal(err)
			}
			if _, err := Scan(d, b); err != nil {
				t.Fatal(err)
			}
			if CanEncode(d) {
				if err := Encode(b, d, x); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
}
