package kernels

import (
	"math"
	"os"
	"unsafe"

	"github.com/firstpassage/fpa/quant"
)

// neon is Advanced SIMD, which every arm64 processor has.
const neon level = 1

var levelNames = [...]string{"generic", "neon"}

// current is the level in use. Tests change it.
var current = parseLevel(os.Getenv("FPA_CPU"), detect())

func detect() level { return neon }

// The assembly takes addresses and counts. It is never called for nothing at
// all, so that &x[0] exists, and reads only what lies within the slices. Functions
// of one element take fours; plain Go does the rest.

//go:noescape
func gemvF32NEON(y *float32, w *byte, stride int, x *float32, cols, rows int, scale float32)

//go:noescape
func gemvF16NEON(y *float32, w *byte, stride int, x *float32, cols, rows int, scale float32)

//go:noescape
func tileNEON(y *float32, ldy int, w *float32, ldw int, x *float32, ldx, cols, more int)

//go:noescape
func accumulateF32NEON(y, p *float32, v *byte, n, count int)

//go:noescape
func accumulateF16NEON(y, p *float32, v *byte, n, count int)

//go:noescape
func mulAddNEON(y *float32, ldy int, x *float32, ldx, n int, w *float32, ldw, k, width, add int)

//go:noescape
func axpyNEON(y, x *float32, a float32, n int)

//go:noescape
func addNEON(y, x *float32, n int)

//go:noescape
func mulNEON(y, x *float32, n int)

//go:noescape
func scaleNEON(y *float32, a float32, n int)

//go:noescape
func scaleMulNEON(y, x, w *float32, a float32, n int)

//go:noescape
func addConstNEON(x *float32, a float32, n int)

//go:noescape
func maximumNEON(x *float32, n int) float32

//go:noescape
func updateLowNEON(low *float32, field float32, n int)

//go:noescape
func penaliseNEON(s, low, level *float32, field, slope float32, n int) float32

//go:noescape
func expSumNEON(s *float32, max float32, n int) float32

//go:noescape
func sigmoidNEON(y *float32, n int)

//go:noescape
func siluNEON(y *float32, n int)

// expConstants are the registers that the assembly's exponential needs.
var expConstants = func() (c [15][4]float32) {
	for i, v := range []float32{
		expLow, expHigh, log2e, ln2High, ln2Low, expC0, expC1, expC2, expC3, expC4, expC5,
		1, math.Float32frombits(127), float32(math.Inf(1)), 0,
	} {
		c[i] = [4]float32{v, v, v, v}
	}
	return c
}()

// fours is how many of n elements the assembly takes.
func fours(n int) int {
	if current == generic {
		return 0
	}
	return n &^ 3
}

func dot(a, b []float32) float32 {
	if current == generic || len(a) == 0 {
		return dotGo(a, b)
	}
	var sum float32
	gemvF32NEON(&sum, (*byte)(unsafe.Pointer(&a[0])), 0, &b[0], len(a), 1, 1)
	return sum
}

func axpy(y []float32, a float32, x []float32) {
	n := fours(len(y))
	if n > 0 {
		axpyNEON(&y[0], &x[0], a, n)
	}
	axpyGo(y[n:], a, x[n:])
}

func add(y, x []float32) {
	n := fours(len(y))
	if n > 0 {
		addNEON(&y[0], &x[0], n)
	}
	addGo(y[n:], x[n:])
}

func mul(y, x []float32) {
	n := fours(len(y))
	if n > 0 {
		mulNEON(&y[0], &x[0], n)
	}
	mulGo(y[n:], x[n:])
}

func scale(y []float32, a float32) {
	n := fours(len(y))
	if n > 0 {
		scaleNEON(&y[0], a, n)
	}
	scaleGo(y[n:], a)
}

func scaleMul(y, x, w []float32, a float32) {
	n := fours(len(y))
	if n > 0 {
		scaleMulNEON(&y[0], &x[0], &w[0], a, n)
	}
	scaleMulGo(y[n:], x[n:], w[n:], a)
}

func addConst(x []float32, a float32) {
	n := fours(len(x))
	if n > 0 {
		addConstNEON(&x[0], a, n)
	}
	addConstGo(x[n:], a)
}

func maximum(x []float32) float32 {
	n := fours(len(x))
	most := maximumGo(x[n:])
	if n > 0 {
		most = max(most, maximumNEON(&x[0], n))
	}
	return most
}

func expSum(s []float32, m float32) float32 {
	n := fours(len(s))
	sum := expSumGo(s[n:], m)
	if n > 0 {
		sum += expSumNEON(&s[0], m, n)
	}
	return sum
}

func updateLow(low []float32, field float32) {
	n := fours(len(low))
	if n > 0 {
		updateLowNEON(&low[0], field, n)
	}
	updateLowGo(low[n:], field)
}

func penalise(s, low, level []float32, field, slope float32) float32 {
	n := fours(len(s))
	largest := penaliseGo(s[n:], low[n:], level[n:], field, slope)
	if n > 0 {
		largest = max(largest, penaliseNEON(&s[0], &low[0], &level[0], field, slope, n))
	}
	return largest
}

func activate(kind Activation, y []float32) {
	n := fours(len(y))
	switch {
	case n > 0 && kind == Silu:
		siluNEON(&y[0], n)
	case n > 0 && kind == Sigmoid:
		sigmoidNEON(&y[0], n)
	default:
		n = 0
	}
	activateGo(kind, y[n:])
}

func keyDotsF16(s, q []float32, k []uint16, scale float32) {
	if current == generic || len(s) == 0 || len(q) == 0 {
		keyDotsF16Go(s, q, k, scale)
		return
	}
	gemvF16NEON(&s[0], (*byte)(unsafe.Pointer(&k[0])), 2*len(q), &q[0], len(q), len(s), scale)
}

func keyDotsF32(s, q, k []float32, scale float32) {
	if current == generic || len(s) == 0 || len(q) == 0 {
		keyDotsF32Go(s, q, k, scale)
		return
	}
	gemvF32NEON(&s[0], (*byte)(unsafe.Pointer(&k[0])), 4*len(q), &q[0], len(q), len(s), scale)
}

func accumulateF16(y, p []float32, v []uint16) {
	if current == generic || len(y) == 0 || len(p) == 0 {
		accumulateF16Go(y, p, v)
		return
	}
	accumulateF16NEON(&y[0], &p[0], (*byte)(unsafe.Pointer(&v[0])), len(y), len(p))
}

func accumulateF32(y, p, v []float32) {
	if current == generic || len(y) == 0 || len(p) == 0 {
		accumulateF32Go(y, p, v)
		return
	}
	accumulateF32NEON(&y[0], &p[0], (*byte)(unsafe.Pointer(&v[0])), len(y), len(p))
}

func mulAdd(y []float32, ldy int, x []float32, ldx, n int, w []float32, ldw, k, width int, add bool) {
	if current == generic {
		mulAddGo(y, ldy, x, ldx, n, w, ldw, k, width, add)
		return
	}
	more := 0
	if add {
		more = 1
	}
	mulAddNEON(&y[0], 4*ldy, &x[0], 4*ldx, n, &w[0], 4*ldw, k, width, more)
}

const (
	tileRows    = 4    // rows in a tile
	tileVectors = 4    // vectors in a tile
	blockCols   = 1024 // columns at a time, so that a tile's vectors stay in the first-level cache
)

func matMul(y []float32, ldy int, w Matrix, in *Input, r0, r1 int, s *Scratch) {
	switch {
	case current == generic:
		matMulGo(y, ldy, w, in, r0, r1, s)
	case in.n <= FewVectors:
		matMulFew(y, ldy, w, in, r0, r1, s)
	default:
		matMulTiled(y, ldy, w, in, r0, r1, s)
	}
}

// matMulFew multiplies four rows at a time, so that the next vector finds them in
// the cache; F32 and F16 in place, others widened.
func matMulFew(y []float32, ldy int, w Matrix, in *Input, r0, r1 int, s *Scratch) {
	row, inPlace := w.RowBytes(), w.Type == quant.F32 || w.Type == quant.F16
	rows := r1 - r0
	if in.n > 1 || !inPlace {
		rows = tileRows
	}
	for r := r0; r < r1; r += rows {
		m := min(rows, r1-r)
		if w.Type == quant.F16 {
			for v := range in.n {
				gemvF16NEON(&y[v*ldy+r], &w.Data[r*row], row, &in.x[v*in.ld], w.Cols, m, 1)
			}
			continue
		}
		data, stride := &w.Data[r*row], row
		if !inPlace {
			block := s.floats(tileRows * w.Cols)
			for i := range m {
				decodeRow(block[i*w.Cols:(i+1)*w.Cols], w, r+i, 0)
			}
			data, stride = (*byte)(unsafe.Pointer(&block[0])), 4*w.Cols
		}
		for v := range in.n {
			gemvF32NEON(&y[v*ldy+r], data, stride, &in.x[v*in.ld], w.Cols, m, 1)
		}
	}
}

// matMulTiled widens four rows of a block of columns at a time and multiplies them
// with all vectors in tiles of four by four.
func matMulTiled(y []float32, ldy int, w Matrix, in *Input, r0, r1 int, s *Scratch) {
	for c := 0; c < w.Cols; c += blockCols {
		cols := min(blockCols, w.Cols-c)
		wide := (cols + 3) &^ 3
		buffer := s.floats((tileRows + tileVectors) * wide)
		block, last := buffer[:tileRows*wide], buffer[tileRows*wide:]
		more := min(c, 1)
		for r := r0; r < r1; r += tileRows {
			m := min(tileRows, r1-r)
			for i := range m {
				decodeRow(block[i*wide:i*wide+cols], w, r+i, c)
				clear(block[i*wide+cols : (i+1)*wide])
			}
			clear(block[m*wide:])
			for v := 0; v < in.n; v += tileVectors {
				k := min(tileVectors, in.n-v)
				xs, stride := in.x[v*in.ld+c:], in.ld
				if k < tileVectors || wide > cols {
					// Too few vectors, or a rest of columns: they are copied, with zeros.
					clear(last)
					for i := range k {
						copy(last[i*wide:i*wide+cols], xs[i*in.ld:])
					}
					xs, stride = last, wide
				}
				if k == tileVectors && m == tileRows {
					tileNEON(&y[v*ldy+r], 4*ldy, &block[0], 4*wide, &xs[0], 4*stride, wide, more)
					continue
				}
				var out [tileVectors * tileRows]float32
				for i := range k {
					copy(out[i*tileRows:], y[(v+i)*ldy+r:(v+i)*ldy+r+m])
				}
				tileNEON(&out[0], 4*tileRows, &block[0], 4*wide, &xs[0], 4*stride, wide, more)
				for i := range k {
					copy(y[(v+i)*ldy+r:(v+i)*ldy+r+m], out[i*tileRows:])
				}
			}
		}
	}
}

func pause()
