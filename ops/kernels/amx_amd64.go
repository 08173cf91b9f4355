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
//	3 limbs: F32 and all others     x0 w2 + x2 w0 + x1 w0 + x1 w1 + x0 w1 + x0 w0
//
// The order is one for all, so that limbs of 0 change nothing: the same numbers give
// the same sums in whatever type they are stored.
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
func tileProduct1(c *float32, a *byte, aBlock int, b *byte, bBlock, steps, panels, more int, ahead ahead)

//go:noescape
func tileProduct2(c *float32, a *byte, aBlock int, b *byte, bBlock, steps, panels, more int, ahead ahead)

//go:noescape
func tileProduct3(c *float32, a *byte, aBlock int, b *byte, bBlock, steps, panels, more int, ahead ahead)

const (
	tileSide    = 16   // rows, or vectors, of a tile
	tileCols    = 32   // elements of a row of a tile
	tileBytes   = 1024 // of a tile
	vectorLimbs = 3

	// A panel of rows and a group of vectors are what tileProduct multiplies.
	panelRows    = 2 * tileSide
	groupVectors = 2 * tileSide
	groupSums    = panelRows * groupVectors

	blockSteps  = 4  // tiles of a row at a time, so that a panel and a group stay in the first-level cache
	blockPanels = 12 // panels at a time, whose tiles stay in the second-level cache
	blockGroups = 16 // groups at a time: the more, the less often rows are split
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
	block := max(blockSteps, w.Type.BlockLen()/tileCols)
	groups := (in.n + groupVectors - 1) / groupVectors
	panels := (r1 - r0 + panelRows - 1) / panelRows
	sums, widened, rows := s.tiles(min(blockGroups, groups), min(blockPanels, panels), min(block, steps), limbs)
	for g := 0; g < groups; g += blockGroups {
		gs := min(blockGroups, groups-g)
		for p := 0; p < panels; p += blockPanels {
			ps := min(blockPanels, panels-p)
			for k := 0; k < steps; k += block {
				ks := min(block, steps-k)
				half := ks * limbs * tileBytes
				for i := range 2 * ps {
					r := r0 + p*panelRows + i*tileSide
					if r < r1 {
						splitRows(rows[i*half:], w, r, min(tileSide, r1-r), k*tileCols, ks, widened)
					}
				}
				for j := range gs {
					t := (g + j) * groupVectors
					out, last := y[t*ldy+r0+p*panelRows:], k+ks == steps
					var next ahead
					switch {
					case last:
						next = ahead{pointer(out), min(groupVectors, in.n-t), 4 * ldy, 4 * panelRows / 64, 4 * panelRows}
					case w.packed.form == nil:
						// As many rows at a time as bring all groups through all panels.
						m := (panelRows + gs - 1) / gs
						next = nextColumns(w, r0+p*panelRows+j*ps*m, m, (k+ks)*tileCols, block)
					}
					vectors := &in.limbs[(2*(g+j)*steps+k)*vectorLimbs*tileBytes]
					group := sums[j*ps*groupSums:]
					tileProduct(limbs, &group[0], &rows[0], half, vectors, steps*vectorLimbs*tileBytes, ks, ps, k, next)
					for i := 0; i < ps && last; i++ {
						r := r0 + (p+i)*panelRows
						unpack(out[i*panelRows:], ldy, group[i*groupSums:], min(panelRows, r1-r), min(groupVectors, in.n-t))
					}
				}
			}
		}
	}
}

// ahead is memory that a product asks the cache for while it computes: for every
// panel lines of 64 bytes of some rows, those of the next panel next bytes further
// on. It may reach beyond what exists.
type ahead struct {
	at                        *byte
	rows, stride, lines, next int
}

// nextColumns is a block of columns from column c on, of m rows a panel from row r
// on.
func nextColumns(w Matrix, r, m, c, block int) ahead {
	if r >= w.Rows {
		return ahead{}
	}
	length, size, stride := w.Type.BlockLen(), w.Type.BlockBytes(), w.RowBytes()
	bytes := min(block*tileCols, w.Cols-c) / length * size
	return ahead{&w.Data[r*stride+c/length*size], m, stride, (bytes + 63) / 64, m * stride}
}

// tiles returns room for the sums of panels of rows by groups of vectors, for 16
// rows of so many steps as float32 numbers, and for the limbs of the panels.
func (s *Scratch) tiles(groups, panels, steps, limbs int) (sums, widened []float32, split []byte) {
	const line = 16 // numbers
	row := steps * tileCols
	all := s.floats(groups*panels*groupSums + tileSide*row + panels*panelRows*row*limbs/2 + line)
	misplaced := int(uintptr(unsafe.Pointer(&all[0]))/4) % line
	all = all[(line-misplaced)%line:]
	sums, all = all[:groups*panels*groupSums], all[groups*panels*groupSums:]
	widened, all = all[:tileSide*row], all[tileSide*row:]
	return sums, widened, unsafe.Slice(pointer(all), panels*panelRows*row*limbs*2)
}

// tileProduct multiplies panels of split rows with a group of split vectors:
//
//	c[p][r][v] (+)= sum over steps of row r of panel p times vector v
//
// Sums are added to with more not 0, else set. Either half of a panel is an array
// of tiles [step][limb], one after the other; so are the halves of the group. aBlock
// and bBlock are the bytes from one half to the next.
func tileProduct(limbs int, c *float32, a *byte, aBlock int, b *byte, bBlock, steps, panels, more int, ahead ahead) {
	switch limbs {
	case 1:
		tileProduct1(c, a, aBlock, b, bBlock, steps, panels, more, ahead)
	case 2:
		tileProduct2(c, a, aBlock, b, bBlock, steps, panels, more, ahead)
	default:
		tileProduct3(c, a, aBlock, b, bBlock, steps, panels, more, ahead)
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
