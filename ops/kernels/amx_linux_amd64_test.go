package kernels

import (
	"runtime"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/firstpassage/fpa/quant"
)

// TestTilesSignals multiplies while signals hit the thread, whose handlers run
// between any two instructions: the tiles must come back as they were.
func TestTilesSignals(t *testing.T) {
	needTiles(t)
	at(amx, func() {
		const rows, cols, n = 64, 512, 64
		r := newRand()
		w, _ := matrix(t, r, quant.F32, rows, cols)
		x, y, want := normals(r, n*cols), make([]float32, n*rows), make([]float32, n*rows)
		var in Input
		var s Scratch
		in.Set(x, cols, n, cols)
		in.Need(w)
		in.Prepare(0, n)
		MatMul(want, rows, w, &in, 0, rows, &s)

		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		process, thread := syscall.Getpid(), syscall.Gettid()
		var stop atomic.Bool
		var sent atomic.Int64
		done := make(chan struct{})
		go func() {
			defer close(done)
			for !stop.Load() {
				// The signal that the runtime preempts goroutines with.
				if _, _, e := syscall.RawSyscall(syscall.SYS_TGKILL, uintptr(process), uintptr(thread), uintptr(syscall.SIGURG)); e != 0 {
					return
				}
				sent.Add(1)
			}
		}()
		for start := time.Now(); time.Since(start) < 300*time.Millisecond; {
			MatMul(y, rows, w, &in, 0, rows, &s)
			for i := range y {
				if y[i] != want[i] {
					t.Fatalf("element %d is %v after %d signals, %v without", i, y[i], sent.Load(), want[i])
				}
			}
		}
		stop.Store(true)
		<-done
		t.Logf("%d signals", sent.Load())
		if sent.Load() == 0 {
			t.Error("no signal could be sent")
		}
	})
}
