package kernels

import (
	"syscall"
	"testing"
	"unsafe"

	"github.com/firstpassage/fpa/quant"
)

// fenced allocates bytes that end where readable memory ends, as the last
// tensor of a mapped file may.
func fenced(t *testing.T, n int) []byte {
	t.Helper()
	page := syscall.Getpagesize()
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

// fencedOf is fenced for numbers.
func fencedOf[T any](t *testing.T, n int) []T {
	var zero T
	if n == 0 {
		return nil
	}
	return unsafe.Slice((*T)(unsafe.Pointer(&fenced(t, n*int(unsafe.Sizeof(zero)))[0])), n)
}

// TestFence runs every kernel on memory that ends with its data; a read or a
// write beyond kills the test.
func TestFence(t *testing.T) {
	eachLevel(t, func(t *testing.T) {
		var s Scratch
		for _, n := range []int{1, 3, 8, 13, 16, 24, 31, 32, 33, 64, 75} {
			x, y, z := fencedOf[float32](t, n), fencedOf[float32](t, n), fencedOf[float32](t, n)
			_ = Dot(x, y)
			Axpy(y, 2, x)
			Add(y, x)
			Mul(y, x)
			Scale(y, 2)
			Sub(y, 2)
			_ = Max(y)
			RMSNorm(y, x, z, 1e-5)
			Softmax(y)
			_ = Penalise(y, x, z, 0, 1)
			UpdateLow(y, 0)
			for kind := Silu; kind <= Tanh; kind++ {
				Activate(kind, y)
				GatedMul(kind, y, x, z)
			}
			for _, rows := range []int{1, 7, 13, 20} {
				square, maxima := fencedOf[float32](t, rows*n), fencedOf[float32](t, rows)
				for _, k := range []int{1, 5} {
					MulAdd(square, n, fencedOf[float32](t, rows*k), k, rows, fencedOf[float32](t, k*n), n, k, n, true)
				}
				_ = PenaliseTile(square, n, rows, y, x, fencedOf[float32](t, rows), 1, maxima)
				ExpSumTile(square, n, rows, n, maxima, fencedOf[float32](t, rows))
				TransposeF16(square, rows, fencedOf[uint16](t, rows*n), rows, n)
				TransposeF32(square, rows, fencedOf[float32](t, rows*n), rows, n)
				TransposeQ8(square, rows, fencedOf[int8](t, rows*n), fencedOf[float32](t, rows), rows, n)
			}
			for _, rows := range []int{1, 4, 7} {
				p := fencedOf[float32](t, rows)
				for i := range p {
					p[i] = 1
				}
				k16, k32 := fencedOf[uint16](t, rows*n), fencedOf[float32](t, rows*n)
				AccumulateF16(y, p, k16)
				AccumulateF32(y, p, k32)
				KeyDotsF16(p, x, k16, n, 1)
				KeyDotsF32(p, x, k32, n, 1)
				k8, scales := fencedOf[int8](t, rows*n), fencedOf[float32](t, rows)
				AccumulateQ8(y, p, k8, scales)
				KeyDotsQ8(p, x, k8, scales, n, 1)
				WidenQ8(k32, k8, scales, rows, n)
				_ = QuantizeQ8(k8[(rows-1)*n:], y)
				for _, d := range []quant.DType{quant.F32, quant.F16, quant.BF16, quant.Q8_0, quant.Q4_0, quant.Q4_1, quant.Q5_0, quant.Q5_1, quant.Q4_K, quant.Q5_K, quant.Q6_K} {
					if n%d.BlockLen() != 0 {
						continue
					}
					w := Matrix{Type: d, Rows: rows, Cols: n, Data: fenced(t, rows*n/d.BlockLen()*d.BlockBytes())}
					for _, vectors := range []int{1, 2, 4, 7, 35} {
						xs, ys := fencedOf[float32](t, vectors*n), fencedOf[float32](t, vectors*rows)
						matMulOf(ys, rows, w, xs, n, vectors, 0, rows, &s)
					}
				}
			}
		}
	})
}

// TestFencePacked runs packed matrices on such memory. Data is fenced when rows are
// packed, and gone when they are multiplied.
func TestFencePacked(t *testing.T) {
	eachLevel(t, func(t *testing.T) {
		for _, d := range packedTypes {
			for _, rows := range []int{1, 16, 23, 48} {
				const cols = 256
				w := Matrix{Type: d, Rows: rows, Cols: cols, Data: fenced(t, rows*cols/d.BlockLen()*d.BlockBytes())}
				room := (w.PackedBytes() + 63) &^ 63 // so that it begins where it must
				if room == 0 {
					continue
				}
				p := packedOf(t, w, fenced(t, room))
				p.Data = p.Data[:0]
				for n := 1; n <= packedVectors+1; n++ {
					var in Input
					in.Set(fencedOf[float32](t, n*cols), cols, n, cols)
					in.Need(p)
					in.Prepare(0, n)
					y := fencedOf[float32](t, n*rows)
					MatMul(y, rows, p, &in, 0, rows, new(Scratch))
				}
			}
		}
	})
}
