package kernels

import (
	"fmt"
	"math"
	"testing"
	"unsafe"

	"github.com/firstpassage/fpa/quant"
)

// packedTypes are the types with a packed form.
var packedTypes = []quant.DType{quant.Q4_0, quant.Q4_1, quant.IQ4_NL, quant.Q8_0, quant.Q4_K, quant.Q6_K}

// packedOf packs a matrix into memory that ends with it, and scribbles over its data,
// which must not be read again.
func packedOf(t testing.TB, w Matrix, buf []byte) Matrix {
	t.Helper()
	for i := range buf {
		buf[i] = 0xff
	}
	p := w.Pack(buf)
	for r := 0; r < w.Rows; r += packedRows {
		p.PackRows(r, min(r+packedRows, w.Rows))
	}
	p.Data = make([]byte, len(w.Data))
	return p
}

// aligned is memory at a multiple of 64.
func aligned(n int) []byte {
	b := make([]byte, n+64)
	skip := -uintptr(unsafe.Pointer(&b[0])) & 63
	return b[skip : int(skip)+n]
}

// TestPacked compares packed matrices with float64, for all numbers of vectors and
// odd numbers of rows, and expects the same bits whatever rows and vectors are
// multiplied together, on the matrix unit or not.
func TestPacked(t *testing.T) {
	eachLevel(t, func(t *testing.T) {
		r := newRand()
		for _, d := range packedTypes {
			if !canPack() {
				if n := (Matrix{Type: d, Rows: 16, Cols: 256}).PackedBytes(); n != 0 {
					t.Errorf("%s can be packed into %d bytes", d, n)
				}
				continue
			}
			for _, rows := range []int{1, 15, 16, 17, 37, 64} {
				for _, cols := range []int{256, 512, 768} {
					const most = 2*packedVectors + 3
					w, wide := matrix(t, r, d, rows, cols)
					p := packedOf(t, w, aligned(w.PackedBytes()))
					ldx, ldy := cols+3, rows+2
					x := normals(r, most*ldx)
					one := make([]float32, most*rows)
					for n := 1; n <= most; n++ {
						y, check := guarded(t, make([]float32, (n-1)*ldy+rows))
						var in Input
						in.Set(x, ldx, n, cols)
						in.Need(p)
						in.Prepare(0, n)
						MatMul(y, ldy, p, &in, 0, rows, new(Scratch))
						check()
						for v := range n {
							for i := range rows {
								got := y[v*ldy+i]
								if tiles := p.packed.form.packedTiles; v == n-1 || tiles(n) != tiles(n-1) {
									one[v*rows+i] = got
									want, size := dot64(wide[i*cols:(i+1)*cols], x[v*ldx:v*ldx+cols])
									near(t, fmt.Sprintf("%s %dx%d, vector %d of %d, row %d", d, rows, cols, v, n, i), got, want, size, sumTolerance)
								} else if one[v*rows+i] != got {
									t.Fatalf("%s %dx%d: row %d of vector %d depends on the number of vectors, %d", d, rows, cols, i, v, n)
								}
							}
						}
						again, check := guarded(t, make([]float32, len(y)))
						for at := 0; at < rows; {
							next := min(rows, at+1+r.IntN(40))
							MatMul(again, ldy, p, &in, at, next, new(Scratch))
							at = next
						}
						check()
						for i := range y {
							if again[i] != y[i] {
								t.Fatalf("%s %dx%d: element %d depends on how rows are split", d, rows, cols, i)
							}
						}
					}
				}
			}
		}
	})
}

// TestPackedSpecial: what is not finite in a vector or a scale comes out in all that
// depends on it and nowhere else.
func TestPackedSpecial(t *testing.T) {
	eachLevel(t, func(t *testing.T) {
		if !canPack() {
			return
		}
		r := newRand()
		const rows, cols, n = 20, 512, 3
		for _, d := range packedTypes {
			w, _ := matrix(t, r, d, rows, cols)
			const bad = 17
			at := bad*w.RowBytes() + d.BlockBytes() // of the second block
			if d == quant.Q6_K {
				at += 208
			}
			w.Data[at], w.Data[at+1] = 0x00, 0x7e // NaN
			p := packedOf(t, w, aligned(w.PackedBytes()))
			x := normals(r, n*cols)
			x[cols+100] = inf
			y := make([]float32, n*rows)
			var in Input
			in.Set(x, cols, n, cols)
			in.Need(p)
			in.Prepare(0, n)
			MatMul(y, rows, p, &in, 0, rows, new(Scratch))
			for i, v := range y {
				finite := !math.IsNaN(float64(v)) && !math.IsInf(float64(v), 0)
				if want := i%rows != bad && i/rows != 1; finite != want {
					t.Errorf("%s: row %d, vector %d: %v", d, i%rows, i/rows, v)
				}
			}
		}
	})
}

// TestDecodeRows expects the numbers of package quant, to the bit, from any rows and
// columns of packed matrices and of others.
func TestDecodeRows(t *testing.T) {
	eachLevel(t, func(t *testing.T) {
		r := newRand()
		const rows, cols, stride = 53, 768, 800
		for _, d := range append([]quant.DType{quant.F16, quant.Q5_K}, packedTypes...) {
			w, wide := matrix(t, r, d, rows, cols)
			if w.PackedBytes() > 0 {
				w = packedOf(t, w, aligned(w.PackedBytes()))
			}
			for range 200 {
				length := d.BlockLen()
				first, c := r.IntN(rows), r.IntN(cols/length)*length
				m, n := 1+r.IntN(rows-first), (1+r.IntN((cols-c)/length))*length
				got := make([]float32, m*stride)
				decodeRows(got, stride, w, first, m, c, n)
				for i := range m {
					want := wide[(first+i)*cols+c:][:n]
					for k, v := range got[i*stride:][:n] {
						if v != want[k] {
							t.Fatalf("%s: row %d, column %d of %d rows and %d columns: %v, want %v", d, first+i, c+k, m, n, v, want[k])
						}
					}
				}
			}
		}
	})
}
