package kernels

import (
	"runtime"
	"sync"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

// BenchmarkReadMemory measures how fast all threads together read memory that no
// cache holds, which is what limits decoding: in large pages, as the CPU engine keeps
// weights, and in the usual ones, as those of a mapped file.
func BenchmarkReadMemory(b *testing.B) {
	for _, pages := range []struct {
		name   string
		advice int
	}{{"large pages", unix.MADV_HUGEPAGE}, {"small pages", unix.MADV_NOHUGEPAGE}} {
		b.Run(pages.name, func(b *testing.B) {
			const size = 1 << 28 // numbers: 1 GiB
			memory, err := unix.Mmap(-1, 0, 4*size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
			if err != nil {
				b.Fatal(err)
			}
			defer unix.Munmap(memory)
			if err := unix.Madvise(memory, pages.advice); err != nil {
				b.Skipf("the system does not let pages be chosen: %v", err)
			}
			data := unsafe.Slice((*float32)(unsafe.Pointer(&memory[0])), size)
			for i := range data {
				data[i] = float32(i)
			}
			threads := runtime.GOMAXPROCS(0)
			b.SetBytes(4 * size)
			for b.Loop() {
				var wait sync.WaitGroup
				for t := range threads {
					wait.Go(func() { Max(data[t*size/threads : (t+1)*size/threads]) })
				}
				wait.Wait()
			}
		})
	}
}
