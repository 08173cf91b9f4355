package kernels

import (
	"os"
	"unsafe"

	"golang.org/x/sys/cpu"

	"github.com/firstpassage/fpa/quant"
)

//go:generate sh -c "cd gen && go run . -pkg kernels -out ../kernels_amd64.s -stubs ../stubs_amd64.go"

// The levels above generic.
const (
	avx2 level = iota + 1
	avx512
	amx // bfloat16 tiles, for MatMul of many vectors
)

var levelNames = [...]string{"generic", "avx2", "avx512", "amx"}

// current is the level in use. Tests change it.
var current = parseLevel(os.Getenv("FPA_CPU"), detect())

// detect asks for the best level; package cpu checks that the operating system
// saves the registers, too.
func detect() level {
	x := &cpu.X86
	switch {
	case !(x.HasAVX2 && x.HasFMA && x.HasF16C):
		return generic
	case !(x.HasAVX512F && x.HasAVX512BW && x.HasAVX512DQ && x.HasAVX512VL):
		return avx2
	case !hasTiles():
		return avx512
	}
	return amx
}

// The assembly takes addresses and counts. It is never called for nothing at
// all, so that &x[0] exists, and reads only what lies within the slices.

func dot(a, b []float32) float32 {
	if current == generic || len(a) == 0 {
		return dotGo(a, b)
	}
	var sum float32
	rowsF32(&sum, unsafe.Pointer(&a[0]), 0, b, 1, 1, 0)
	return sum
}

func axpy(y []float32, a float32, x []float32) {
	switch {
	case current == generic || len(y) == 0:
		axpyGo(y, a, x)
	case current == avx2:
		axpyAVX2(&y[0], &x[0], a, len(y))
	default:
		axpyAVX512(&y[0], &x[0], a, len(y))
	}
}

func add(y, x []float32) {
	switch {
	case current == generic || len(y) == 0:
		addGo(y, x)
	case current == avx2:
		addAVX2(&y[0], &x[0], len(y))
	default:
		addAVX512(&y[0], &x[0], len(y))
	}
}

func mul(y, x []float32) {
	switch {
	case current == generic || len(y) == 0:
		mulGo(y, x)
	case current == avx2:
		mulAVX2(&y[0], &x[0], len(y))
	default:
		mulAVX512(&y[0], &x[0], len(y))
	}
}

func scale(y []float32, a float32) {
	switch {
	case current == generic || len(y) == 0:
		scaleGo(y, a)
	case current == avx2:
		scaleAVX2(&y[0], a, len(y))
	default:
		scaleAVX512(&y[0], a, len(y))
	}
}

func scaleMul(y, x, w []float32, a float32) {
	switch {
	case current == generic || len(y) == 0:
		scaleMulGo(y, x, w, a)
	case current == avx2:
		scaleMulAVX2(&y[0], &x[0], &w[0], a, len(y))
	default:
		scaleMulAVX512(&y[0], &x[0], &w[0], a, len(y))
	}
}

func addConst(x []float32, a float32) {
	switch {
	case current == generic || len(x) == 0:
		addConstGo(x, a)
	case current == avx2:
		addConstAVX2(&x[0], a, len(x))
	default:
		addConstAVX512(&x[0], a, len(x))
	}
}

func maximum(x []float32) float32 {
	switch {
	case current == generic || len(x) == 0:
		return maximumGo(x)
	case current == avx2:
		return maximumAVX2(&x[0], len(x))
	default:
		return maximumAVX512(&x[0], len(x))
	}
}

func expSum(s []float32, m float32) float32 {
	switch {
	case current == generic || len(s) == 0:
		return expSumGo(s, m)
	case current == avx2:
		return expSumAVX2(&s[0], m, len(s))
	default:
		return expSumAVX512(&s[0], m, len(s))
	}
}

func updateLow(low []float32, field float32) {
	switch {
	case current == generic || len(low) == 0:
		updateLowGo(low, field)
	case current == avx2:
		updateLowAVX2(&low[0], field, len(low))
	default:
		updateLowAVX512(&low[0], field, len(low))
	}
}

func penalise(s, low, level []float32, field, slope float32) float32 {
	switch {
	case current == generic || len(s) == 0:
		return penaliseGo(s, low, level, field, slope)
	case current == avx2:
		return penaliseAVX2(&s[0], &low[0], &level[0], field, slope, len(s))
	default:
		return penaliseAVX512(&s[0], &low[0], &level[0], field, slope, len(s))
	}
}

func activate(kind Activation, y []float32) {
	if current == generic || len(y) == 0 {
		activateGo(kind, y)
		return
	}
	p, n, wide := &y[0], len(y), current >= avx512
	switch {
	case kind == Silu && wide:
		siluAVX512(p, n)
	case kind == Silu:
		siluAVX2(p, n)
	case kind == Sigmoid && wide:
		sigmoidAVX512(p, n)
	case kind == Sigmoid:
		sigmoidAVX2(p, n)
	case kind == Gelu && wide:
		geluAVX512(p, n)
	case kind == Gelu:
		geluAVX2(p, n)
	case kind == GeluTanh && wide:
		geluTanhAVX512(p, n)
	case kind == GeluTanh:
		geluTanhAVX2(p, n)
	case kind == Relu && wide:
		reluAVX512(p, n)
	case kind == Relu:
		reluAVX2(p, n)
	case kind == Tanh && wide:
		tanhAVX512(p, n)
	case kind == Tanh:
		tanhAVX2(p, n)
	}
}

func keyDotsF16(s, q []float32, k []uint16, scale float32) {
	if current == generic || len(s) == 0 || len(q) == 0 {
		keyDotsF16Go(s, q, k, scale)
		return
	}
	gemv(quant.F16, &s[0], unsafe.Pointer(&k[0]), 2*len(q), q, len(s), scale, keysAhead)
}

func keyDotsF32(s, q, k []float32, scale float32) {
	if current == generic || len(s) == 0 || len(q) == 0 {
		keyDotsF32Go(s, q, k, scale)
		return
	}
	rowsF32(&s[0], unsafe.Pointer(&k[0]), 4*len(q), q, len(s), scale, keysAhead)
}

func accumulateF16(y, p []float32, v []uint16) {
	switch {
	case current == generic || len(y) == 0 || len(p) == 0:
		accumulateF16Go(y, p, v)
	case current == avx2:
		accumulateF16AVX2(&y[0], &p[0], (*byte)(unsafe.Pointer(&v[0])), len(y), len(p))
	default:
		accumulateF16AVX512(&y[0], &p[0], (*byte)(unsafe.Pointer(&v[0])), len(y), len(p))
	}
}

func accumulateF32(y, p, v []float32) {
	switch {
	case current == generic || len(y) == 0 || len(p) == 0:
		accumulateF32Go(y, p, v)
	case current == avx2:
		accumulateF32AVX2(&y[0], &p[0], (*byte)(unsafe.Pointer(&v[0])), len(y), len(p))
	default:
		accumulateF32AVX512(&y[0], &p[0], (*byte)(unsafe.Pointer(&v[0])), len(y), len(p))
	}
}

func prefetchBytes(p unsafe.Pointer, n int) { prefetch((*byte)(p), (n+63)/64) }

// How far in bytes beyond the data in use memory is asked for: weights are read
// from one end to the other, and from memory; keys lie in pieces of a few kilobytes.
const (
	weightsAhead = 8192
	keysAhead    = 2048
)

// hasRows reports whether gemv reads the type in place.
func hasRows(t quant.DType) bool {
	switch t {
	case quant.F32, quant.F16, quant.BF16, quant.Q8_0, quant.Q4_0, quant.Q4_1, quant.Q5_0, quant.Q5_1, quant.Q4_K, quant.Q5_K, quant.Q6_K:
		return true
	}
	return false
}

// gemv sets y[r] = scale * row r of w times x, for rows stride bytes apart. A
// scale other than 1 is for the types without blocks.
func gemv(t quant.DType, y *float32, w unsafe.Pointer, stride int, x []float32, rows int, scale float32, ahead int) {
	p, cols, wide := (*byte)(w), len(x), current >= avx512
	switch {
	case t == quant.F16 && wide:
		gemvF16AVX512(y, p, stride, &x[0], cols, rows, scale, ahead)
	case t == quant.F16:
		gemvF16AVX2(y, p, stride, &x[0], cols, rows, scale, ahead)
	case t == quant.BF16 && wide:
		gemvBF16AVX512(y, p, stride, &x[0], cols, rows, scale, ahead)
	case t == quant.BF16:
		gemvBF16AVX2(y, p, stride, &x[0], cols, rows, scale, ahead)
	case t == quant.Q8_0 && wide:
		gemvQ8AVX512(y, p, stride, &x[0], cols/32, rows, ahead)
	case t == quant.Q8_0:
		gemvQ8AVX2(y, p, stride, &x[0], cols/32, rows, ahead)
	case t == quant.Q4_0 && wide:
		gemvQ4AVX512(y, p, stride, &x[0], cols/32, rows, ahead)
	case t == quant.Q4_0:
		gemvQ4AVX2(y, p, stride, &x[0], cols/32, rows, ahead)
	case t == quant.Q4_1 && wide:
		gemvQ41AVX512(y, p, stride, &x[0], cols/32, rows, ahead)
	case t == quant.Q4_1:
		gemvQ41AVX2(y, p, stride, &x[0], cols/32, rows, ahead)
	case t == quant.Q5_0 && wide:
		gemvQ5AVX512(y, p, stride, &x[0], cols/32, rows, ahead)
	case t == quant.Q5_0:
		gemvQ5AVX2(y, p, stride, &x[0], cols/32, rows, ahead)
	case t == quant.Q5_1 && wide:
		gemvQ51AVX512(y, p, stride, &x[0], cols/32, rows, ahead)
	case t == quant.Q5_1:
		gemvQ51AVX2(y, p, stride, &x[0], cols/32, rows, ahead)
	case t == quant.Q4_K && wide:
		gemvQ4KAVX512(y, p, stride, &x[0], cols/256, rows, ahead)
	case t == quant.Q4_K:
		gemvQ4KAVX2(y, p, stride, &x[0], cols/256, rows, ahead)
	case t == quant.Q5_K && wide:
		gemvQ5KAVX512(y, p, stride, &x[0], cols/256, rows, ahead)
	case t == quant.Q5_K:
		gemvQ5KAVX2(y, p, stride, &x[0], cols/256, rows, ahead)
	case t == quant.Q6_K && wide:
		gemvQ6KAVX512(y, p, stride, &x[0], cols/256, rows, ahead)
	case t == quant.Q6_K:
		gemvQ6KAVX2(y, p, stride, &x[0], cols/256, rows, ahead)
	default:
		rowsF32(y, w, stride, x, rows, scale, ahead)
	}
}

func rowsF32(y *float32, w unsafe.Pointer, stride int, x []float32, rows int, scale float32, ahead int) {
	if current >= avx512 {
		gemvF32AVX512(y, (*byte)(w), stride, &x[0], len(x), rows, scale, ahead)
	} else {
		gemvF32AVX2(y, (*byte)(w), stride, &x[0], len(x), rows, scale, ahead)
	}
}

// formsFor is what MatMul of the matrix and n vectors reads beside the vectors.
func formsFor(w Matrix, n int) forms {
	if current != amx || n < ManyVectors {
		return 0
	}
	if isScaled(w) && w.packed.form.offset {
		return formLimbs | formSums
	}
	return formLimbs
}

func matMul(y []float32, ldy int, w Matrix, in *Input, r0, r1 int, s *Scratch) {
	switch {
	case current == generic:
		matMulGo(y, ldy, w, in, r0, r1, s)
	case in.forms&formLimbs != 0:
		matMulTiles(y, ldy, w, in, r0, r1, s)
	case in.n < ManyVectors && fewKernelsOf(w.Type) != nil:
		matMulRows(fewKernelsOf(w.Type), y, ldy, w, in, r0, r1)
	case in.n <= FewVectors:
		matMulFew(y, ldy, w, in, r0, r1, s)
	default:
		matMulTiled(y, ldy, w, in, r0, r1, s)
	}
}

// matMulFew multiplies rows of blocks one vector after the other, so many rows at a
// time that the next vector finds them in the cache.
func matMulFew(y []float32, ldy int, w Matrix, in *Input, r0, r1 int, s *Scratch) {
	inPlace, row := hasRows(w.Type), w.RowBytes()
	rows := r1 - r0
	if in.n > 1 || !inPlace {
		rows = 4
	}
	for r := r0; r < r1; r += rows {
		m := min(rows, r1-r)
		t, data, stride := w.Type, unsafe.Pointer(&w.Data[r*row]), row
		if !inPlace {
			block := s.floats(rows * w.Cols)
			for i := range m {
				decodeRow(block[i*w.Cols:(i+1)*w.Cols], w, r+i, 0)
			}
			t, data, stride = quant.F32, unsafe.Pointer(&block[0]), 4*w.Cols
		}
		for v := range in.n {
			gemv(t, &y[v*ldy+r], data, stride, in.vector(v), m, 1, weightsAhead)
		}
	}
}

const (
	tileRows  = 4    // rows in a tile
	blockCols = 1024 // columns at a time, so that a tile's vectors stay in the first-level cache
	blockRows = 64   // rows widened at a time, so that they stay in the second-level cache
	maxTokens = 6    // vectors in the largest tile
)

// matMulTiled widens a block of the matrix at a time to float32 and multiplies
// it with all vectors in tiles of four rows by a few vectors.
func matMulTiled(y []float32, ldy int, w Matrix, in *Input, r0, r1 int, s *Scratch) {
	tokens := maxTokens
	if current == avx2 {
		tokens = 3
	}
	// Rows at the same place of a page would compete for the cache.
	const padding = 16
	for c := 0; c < w.Cols; c += blockCols {
		cols, more := min(blockCols, w.Cols-c), c
		stride := (cols+15)&^15 + padding
		block := s.floats(blockRows * stride)
		for r := r0; r < r1; r += blockRows {
			m := min(blockRows, r1-r)
			for i := range m {
				decodeRow(block[i*stride:i*stride+cols], w, r+i, c)
				clear(block[i*stride+cols : (i+1)*stride])
			}
			whole := m &^ (tileRows - 1)
			if m > whole {
				clear(block[m*stride : (whole+tileRows)*stride])
			}
			for v := 0; v < in.n; v += tokens {
				k := min(tokens, in.n-v)
				xs := &in.x[v*in.ld+c]
				if whole > 0 {
					tile(k, &y[v*ldy+r], ldy, &block[0], stride, xs, in.ld, cols, whole/tileRows, more)
				}
				if m > whole {
					// The last rows are fewer than a tile has.
					var last [maxTokens * tileRows]float32
					out := func(i int) []float32 { return y[(v+i)*ldy+r+whole : (v+i)*ldy+r+m] }
					for i := range k {
						copy(last[i*tileRows:], out(i))
					}
					tile(k, &last[0], tileRows, &block[whole*stride], stride, xs, in.ld, cols, 1, more)
					for i := range k {
						copy(out(i), last[i*tileRows:])
					}
				}
			}
		}
	}
}

// tile multiplies groups of four widened rows with k vectors, and adds to y
// where more is not 0.
func tile(k int, y *float32, ldy int, w *float32, ldw int, x *float32, ldx, cols, groups, more int) {
	ldy, ldw, ldx = 4*ldy, 4*ldw, 4*ldx
	if current == avx2 {
		switch k {
		case 1:
			tile1AVX2(y, ldy, w, ldw, x, ldx, cols, groups, more)
		case 2:
			tile2AVX2(y, ldy, w, ldw, x, ldx, cols, groups, more)
		default:
			tile3AVX2(y, ldy, w, ldw, x, ldx, cols, groups, more)
		}
		return
	}
	switch k {
	case 1:
		tile1AVX512(y, ldy, w, ldw, x, ldx, cols, groups, more)
	case 2:
		tile2AVX512(y, ldy, w, ldw, x, ldx, cols, groups, more)
	case 3:
		tile3AVX512(y, ldy, w, ldw, x, ldx, cols, groups, more)
	case 4:
		tile4AVX512(y, ldy, w, ldw, x, ldx, cols, groups, more)
	case 5:
		tile5AVX512(y, ldy, w, ldw, x, ldx, cols, groups, more)
	default:
		tile6AVX512(y, ldy, w, ldw, x, ldx, cols, groups, more)
	}
}

func mulAdd(y []float32, ldy int, x []float32, ldx, n int, w []float32, ldw, k, width int, add bool) {
	more := 0
	if add {
		more = 1
	}
	switch current {
	case generic:
		mulAddGo(y, ldy, x, ldx, n, w, ldw, k, width, add)
	case avx2:
		mulAddAVX2(&y[0], 4*ldy, &x[0], 4*ldx, n, &w[0], 4*ldw, k, width, more)
	default:
		mulAddAVX512(&y[0], 4*ldy, &x[0], 4*ldx, n, &w[0], 4*ldw, k, width, more)
	}
}

// The least columns that the assembly of the transpositions takes.
const (
	turnedF32    = 4
	turnedNarrow = 8
)

func transposeF16(dst []float32, ld int, src []uint16, rows, cols int) {
	p := (*byte)(unsafe.Pointer(&src[0]))
	switch {
	case current == generic || cols < turnedNarrow:
		transposeF16Go(dst, ld, src, rows, cols)
	case current == avx2:
		transposeF16AVX2(&dst[0], 4*ld, p, rows, cols)
	default:
		transposeF16AVX512(&dst[0], 4*ld, p, rows, cols)
	}
}

func transposeF32(dst []float32, ld int, src []float32, rows, cols int) {
	p := (*byte)(unsafe.Pointer(&src[0]))
	switch {
	case current == generic || cols < turnedF32:
		transposeF32Go(dst, ld, src, rows, cols)
	case current == avx2:
		transposeF32AVX2(&dst[0], 4*ld, p, rows, cols)
	default:
		transposeF32AVX512(&dst[0], 4*ld, p, rows, cols)
	}
}

func transposeQ8(dst []float32, ld int, src []int8, scales []float32, rows, cols int) {
	p := (*byte)(unsafe.Pointer(&src[0]))
	switch {
	case current == generic || cols < turnedNarrow:
		transposeQ8Go(dst, ld, src, scales, rows, cols)
	case current == avx2:
		transposeI8AVX2(&dst[0], 4*ld, p, &scales[0], rows, cols)
	default:
		transposeI8AVX512(&dst[0], 4*ld, p, &scales[0], rows, cols)
	}
}

func penaliseTile(s []float32, lds, n int, low, level, field []float32, slope float32, rowMax []float32) float32 {
	switch current {
	case generic:
		return penaliseTileGo(s, lds, n, low, level, field, slope, rowMax)
	case avx2:
		return penaliseTileAVX2(&s[0], 4*lds, n, &low[0], &level[0], &field[0], slope, &rowMax[0], len(low))
	default:
		return penaliseTileAVX512(&s[0], 4*lds, n, &low[0], &level[0], &field[0], slope, &rowMax[0], len(low))
	}
}

func expSumTile(s []float32, lds, n, width int, max, sum []float32) {
	switch current {
	case generic:
		expSumTileGo(s, lds, n, width, max, sum)
	case avx2:
		expSumTileAVX2(&s[0], 4*lds, n, width, &max[0], &sum[0])
	default:
		expSumTileAVX512(&s[0], 4*lds, n, width, &max[0], &sum[0])
	}
}

func widenQ8(dst []float32, src []int8, scales []float32, rows, cols int) {
	p := (*byte)(unsafe.Pointer(&src[0]))
	switch {
	case current >= avx512 && cols >= 16:
		widenQ8AVX512(&dst[0], p, &scales[0], rows, cols)
	case current != generic && cols >= 8:
		widenQ8AVX2(&dst[0], p, &scales[0], rows, cols)
	default:
		widenQ8Go(dst, src, scales, rows, cols)
	}
}

func magnitude(x []float32) float32 {
	switch {
	case current == generic || len(x) == 0:
		return magnitudeGo(x)
	case current == avx2:
		return magnitudeAVX2(&x[0], len(x))
	default:
		return magnitudeAVX512(&x[0], len(x))
	}
}

func roundQ8(dst []int8, x []float32, scale float32) {
	whole := 0
	if current != generic {
		whole = len(x) &^ 15
	}
	if whole > 0 {
		p := (*byte)(unsafe.Pointer(&dst[0]))
		if current == avx2 {
			roundQ8AVX2(p, &x[0], scale, whole)
		} else {
			roundQ8AVX512(p, &x[0], scale, whole)
		}
	}
	roundQ8Go(dst[whole:], x[whole:], scale)
}

func keyDotsQ8(s, q []float32, k []int8, scales []float32, scale float32) {
	if current == generic || len(s) == 0 || len(q) == 0 {
		keyDotsQ8Go(s, q, k, scales, scale)
		return
	}
	p, d := (*byte)(unsafe.Pointer(&k[0])), len(q)
	if current == avx2 {
		gemvI8AVX2(&s[0], p, d, &q[0], d, len(s), scale, keysAhead)
	} else {
		gemvI8AVX512(&s[0], p, d, &q[0], d, len(s), scale, keysAhead)
	}
	mul(s, scales)
}

func accumulateQ8(y, p []float32, v []int8, scales []float32) {
	switch {
	case current == generic || len(y) == 0 || len(p) == 0:
		accumulateQ8Go(y, p, v, scales)
	case current == avx2:
		accumulateI8AVX2(&y[0], &p[0], (*byte)(unsafe.Pointer(&v[0])), &scales[0], len(y), len(p))
	default:
		accumulateI8AVX512(&y[0], &p[0], (*byte)(unsafe.Pointer(&v[0])), &scales[0], len(y), len(p))
	}
}
