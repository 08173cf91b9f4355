package kernels

import (
	"unsafe"

	"github.com/firstpassage/fpa/quant"
)

//go:generate sh -c "cd gen && go run . -for limbs -pkg kernels -out ../limbs_amd64.s -stubs ../limbs_stubs_amd64.go"

// This file multiplies many vectors on the matrix unit (AMX), which multiplies
// tiles of 16 by 32 bfloat16 numbers and adds up in float32.
//
// A float32 number of 24 bits is the sum of three bfloat16 numbers of 8 bits, its
// limbs: x = x0 + x1 + x2, each at most 2^-8 of the one before. Products of limbs
// are exact, so a product of two numbers costs as many of them as matter:
//
//	1 limb:  BF16                   x2 w0 + x1 w0 + x0 w0
//	2 limbs: F16, Q4_0, Q5_0        x2 w0 + x1 w0 + x1 w1 + x0 w1 + x0 w0
//	3 limbs: F32 and all others     x0 w2 + x0 w1 + x1 w1 + x1 w0 + x2 w0 + x0 w0
//
// What is left out is at most 2^-24 (x2 w1) of the product for two limbs, twice
// that for three (x1 w2 and x2 w1), and 2^-32 more: as much as the rounding of a
// float32 product. Sums are rounded once a limb and 32 columns, the products among
// those in between; the error of a sum of 2048 is twice that of the float32 kernel,
// which has sixteen sums (TestTilesError).
//
// The unit takes numbers below 2^-126 for 0, limbs too: elements of vectors and
// matrices below 2^-102 lose bits, by at most 2^-126. Near the largest number the
// first limb is cut instead of rounded to infinity. Where a number is infinite or a
// NaN, the result is too, if not always the same one.

//go:noescape
func tileProduct1(c *float32, a *byte, aBlock int, b *byte, bBlock, steps, groups, more int)

//go:noescape
func tileProduct2(c *float32, a *byte, aBlock int, b *byte, bBlock, steps, groups, more int)

//go:noescape
func tileProduct3(c *float32, a *byte, aBlock int, b *byte, bBlock, steps, groups, more int)

const (
	tileSide    = 16   // rows, or vectors, of a tile
	tileCols    = 32   // elements of a row of a tile
	tileBytes   = 1024 // of a tile
	vectorLimbs = 3

	// tileProduct multiplies panels of rows by groups of vectors.
	panelRows    = 2 * tileSide
	groupVectors = 2 * tileSide
	groupSums    = panelRows * groupVectors

	blockSteps  = 8  // tiles of a row at a time, so that a panel stays in the first-level cache
	blockGroups = 16 // groups of vectors at a time, whose tiles stay in the second-level cache
	blockPanels = 12 // panels at a time, whose sums stay there
)

// weightLimbs is the number of limbs that hold every number of the type.
func weightLimbs(t quant.DType) int {
	switch t {
	case quant.BF16:
		return 1
	case quant.F16, quant.Q4_0, quant.Q5_0: // 11 bits; times integers of 4 or 5
		return 2
	}
	return 3
}

// tileSteps is the number of tiles side by side that hold so many columns.
func tileSteps(cols int) int { return (cols + tileCols - 1) / tileCols }

// pointer is the address of the first byte.
func pointer[T any](x []T) *byte { return (*byte)(unsafe.Pointer(&x[0])) }

// growLimbs makes room for the limbs of the vectors, which begin where a line of
// the cache does.
func (in *Input) growLimbs() {
	const line = 64
	groups := (in.n + groupVectors - 1) / groupVectors
	size := 2 * groups * tileSteps(in.cols) * vectorLimbs * tileBytes
	if cap(in.limbs) < size {
		all := make([]byte, size+line)
		in.limbs = all[-uintptr(unsafe.Pointer(&all[0]))%line:]
	}
	in.limbs = in.limbs[:size]
}

// splitVectors fills in limbs, in tiles of 16 vectors, for vectors t0 to t1.
func (in *Input) splitVectors(t0, t1 int) {
	steps, whole := tileSteps(in.cols), in.cols/tileCols
	for t := t0; t < t1; t += tileSide {
		dst := in.limbs[t/tileSide*steps*vectorLimbs*tileBytes:]
		first := 0
		if in.n-t >= tileSide && whole > 0 {
			splitVectorsAVX512(&dst[0], &in.x[t*in.ld], 4*in.ld, whole)
			first = whole
		}
		// The last columns, or all of too few vectors, with zeros beside them.
		for k := first; k < steps; k++ {
			var part [tileSide * tileCols]float32
			for i := range min(tileSide, in.n-t) {
				copy(part[i*tileCols:(i+1)*tileCols], in.vector(t + i)[k*tileCols:])
			}
			splitVectorsAVX512(&dst[k*vectorLimbs*tileBytes], &part[0], 4*tileCols, 1)
		}
	}
}

// splitRows writes the tiles of rows r to r+m of the matrix, m at most 16, and of
// steps times 32 columns from column c on. widened has room for so many numbers.
func splitRows(dst []byte, w Matrix, r, m, c, steps int, widened []float32) {
	cols, limbs := min(steps*tileCols, w.Cols-c), weightLimbs(w.Type)
	whole := cols / tileCols
	switch w.Type {
	case quant.F32, quant.F16, quant.BF16:
	default:
		if cols < steps*tileCols {
			clear(widened)
		}
		decodeRows(widened, steps*tileCols, w, r, m, c, cols)
		splitTiles(dst, quant.F32, limbs, pointer(widened), 4*steps*tileCols, m, steps)
		return
	}
	size := w.Type.BlockBytes()
	at := func(i, c int) int { return ((r+i)*w.Cols + c) * size }
	if whole > 0 {
		splitTiles(dst, w.Type, limbs, &w.Data[at(0, c)], w.RowBytes(), m, whole)
	}
	if whole < steps {
		var part [tileSide * tileCols * 4]byte
		for i := range m {
			copy(part[i*tileCols*size:], w.Data[at(i, c+whole*tileCols):at(i, c+cols)])
		}
		splitTiles(dst[whole*limbs*tileBytes:], w.Type, limbs, &part[0], tileCols*size, m, 1)
	}
}

// splitTiles writes the tiles of m rows of type t, stride bytes apart.
func splitTiles(dst []byte, t quant.DType, limbs int, w *byte, stride, m, steps int) {
	switch {
	case t == quant.BF16:
		splitRowsBF16To1AVX512(&dst[0], w, stride, m, steps)
	case t == quant.F16:
		splitRowsF16To2AVX512(&dst[0], w, stride, m, steps)
	case limbs == 2:
		splitRowsF32To2AVX512(&dst[0], w, stride, m, steps)
	default:
		splitRowsF32To3AVX512(&dst[0], w, stride, m, steps)
	}
}

// matMulTiles is matMul on the matrix unit: a block of the columns of a panel of
// rows is split once, and multiplied with many groups of vectors.
func matMulTiles(y []float32, ldy int, w Matrix, in *Input, r0, r1 int, s *Scratch) {
	limbs, steps := weightLimbs(w.Type), tileSteps(w.Cols)
	groups := (in.n + groupVectors - 1) / groupVectors
	panels := (r1 - r0 + panelRows - 1) / panelRows
	sums, widened, panel := s.tiles(min(blockPanels, panels)*min(blockGroups, groups), min(blockSteps, steps), limbs)
	for g := 0; g < groups; g += blockGroups {
		gs := min(blockGroups, groups-g)
		for p := 0; p < panels; p += blockPanels {
			ps := min(blockPanels, panels-p)
			for k := 0; k < steps; k += blockSteps {
				ks := min(blockSteps, steps-k)
				half := ks * limbs * tileBytes
				vectors := &in.limbs[(2*g*steps+k)*vectorLimbs*tileBytes]
				for i := range ps {
					r := r0 + (p+i)*panelRows
					m := min(panelRows, r1-r)
					splitRows(panel, w, r, min(tileSide, m), k*tileCols, ks, widened)
					if m > tileSide {
						splitRows(panel[half:], w, r+tileSide, m-tileSide, k*tileCols, ks, widened)
					}
					tileProduct(limbs, &sums[i*gs*groupSums], &panel[0], half, vectors, steps*vectorLimbs*tileBytes, ks, gs, k)
				}
			}
			for i := range ps {
				r := r0 + (p+i)*panelRows
				for j := range gs {
					t := (g + j) * groupVectors
					unpack(y[t*ldy+r:], ldy, sums[(i*gs+j)*groupSums:], min(panelRows, r1-r), min(groupVectors, in.n-t))
				}
			}
		}
	}
}

// tiles returns room for the sums of so many groups, for 16 rows of so many steps
// as float32 numbers, and for a panel of their limbs.
func (s *Scratch) tiles(groups, steps, limbs int) (sums, widened []float32, panel []byte) {
	const line = 16 // numbers
	rows := tileSide * steps * tileCols
	all := s.floats(groups*groupSums + rows + limbs*rows + line)
	misplaced := int(uintptr(unsafe.Pointer(&all[0]))/4) % line
	all = all[(line-misplaced)%line:]
	sums, all = all[:groups*groupSums], all[groups*groupSums:]
	widened, all = all[:rows], all[rows:]
	return sums, widened, unsafe.Slice(pointer(all), 4*limbs*rows)
}

// tileProduct multiplies a panel of split rows with groups of split vectors:
//
//	c[g][r][v] (+)= sum over steps of row r times vector v of group g
//
// Sums are added to with more not 0, else set. Either half of the panel is an array
// of tiles [step][limb]; so is that of 16 vectors, of which a group has two. aBlock
// and bBlock are the bytes from one to the next.
func tileProduct(limbs int, c *float32, a *byte, aBlock int, b *byte, bBlock, steps, groups, more int) {
	switch limbs {
	case 1:
		tileProduct1(c, a, aBlock, b, bBlock, steps, groups, more)
	case 2:
		tileProduct2(c, a, aBlock, b, bBlock, steps, groups, more)
	default:
		tileProduct3(c, a, aBlock, b, bBlock, steps, groups, more)
	}
}

// unpack sets y[v*ldy+r] to the sum of row r and vector v of a group, for m rows
// and n vectors.
func unpack(y []float32, ldy int, sums []float32, m, n int) {
	if n == groupVectors {
		transposeF32AVX512(&y[0], 4*ldy, pointer(sums), m, groupVectors)
		return
	}
	var turned [groupSums]float32
	transposeF32AVX512(&turned[0], 4*panelRows, pointer(sums), m, groupVectors)
	for v := range n {
		copy(y[v*ldy:], turned[v*panelRows:v*panelRows+m])
	}
}
