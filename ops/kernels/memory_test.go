package kernels

import (
	"runtime"
	"sync"
	"testing"
)

// BenchmarkReadMemory measures how fast all threads together read memory that no
// cache holds: what limits decoding.
func BenchmarkReadMemory(b *testing.B) {
	const size = 1 << 28 // numbers: 1 GiB
	data := make([]float32, size)
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
}
