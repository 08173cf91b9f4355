package cpu

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/firstpassage/fpa/ops/kernels"
	"github.com/firstpassage/fpa/quant"
	"github.com/firstpassage/fpa/runtime/cache"
	"github.com/firstpassage/fpa/testmodels/modeltest"
	"golang.org/x/sys/unix"
)

// TestFileCutShort cuts a mapped file while a model runs from it: an error, no
// crash, on the caller's goroutine and on a worker's.
func TestFileCutShort(t *testing.T) {
	c := modeltest.Config()
	c.Hidden, c.FeedForward = 512, 1024 // enough work for all threads
	p := modeltest.Random(c, 1, true)
	m := build(t, p)
	big := m.Layers[0].FFNUp.W
	path := filepath.Join(t.TempDir(), "weights")
	if err := os.WriteFile(path, big.Data, 0o666); err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	mapped, err := unix.Mmap(int(f.Fd()), 0, len(big.Data), unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Munmap(mapped)
	m.Layers[0].FFNUp.W = kernels.Matrix{Type: quant.F32, Rows: big.Rows, Cols: big.Cols, Data: mapped}
	for _, threads := range []int{1, 3} {
		e, err := New(m, Options{Threads: threads, Copy: CopyNever})
		if err != nil {
			t.Fatal(err)
		}
		defer e.Close()
		s, err := e.NewSession(quant.F16, cache.Policy{Mode: cache.Off})
		if err != nil {
			t.Fatal(err)
		}
		none := func(int, []float32) error { return nil }
		if threads == 1 {
			if err := s.Feed([]int32{1, 2}, nil, none); err != nil {
				t.Fatal(err)
			}
			if err := os.Truncate(path, 4096); err != nil {
				t.Fatal(err)
			}
		}
		var fault *Fault
		if err := s.Feed([]int32{3, 4}, nil, none); !errors.As(err, &fault) {
			t.Errorf("%d threads: error %v, expected a fault", threads, err)
		}
	}
}
