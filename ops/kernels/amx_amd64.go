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
//	1 limb:  BF16, integers         x2 w0 + x1 w0 + x0 w0
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
// Packed matrices of blocks of 32 columns are multiplied as the integers that they
// hold, a block at a time; the sum of a block, exact but for the rounding of its
// additions, is then multiplied by the scale.
//
// The unit takes numbers below 2^-126 for 0, limbs too: elements of vectors and
// matrices below 2^-102 lose bits, by at most 2^-126. Near the largest number the
// first limb is cut instead of rounded to infinity. Where a number is infinite or a
// NaN, the result is too, if not always the same one.

const (
	tileSide    = 16   // rows of a matrix, or vectors, in a tile
	tileCols    = 32   // elements of each
	tileBytes   = 1024 // of a tile
	vectorLimbs = 3

	// A panel of rows and a group of vectors are what is multiplied at a time.
	panelRows    = 2 * tileSide
	groupVectors = 2 * tileSide
	groupSums    = panelRows * groupVectors

	blockSteps  = 4  // tiles side by side at a time, so that a group stays in the first-level cache
	blockPanels = 12 // panels at a time, whose tiles stay in the second-level cache
	blockGroups = 16 // groups at a time: the more, the less often rows are split

	scaleFloats = 2 * panelRows // scales, and offsets, of a panel and a step
)

// weightLimbs is the number of limbs that hold every number of the matrix, or its
// integers if it is scaled.
func weightLimbs(w Matrix) int {
	switch {
	case w.Type == quant.BF16 || isScaled(w):
		return 1
	case w.Type == quant.F16 || w.Type == quant.Q4_0 || w.Type == quant.Q5_0: // 11 bits; times integers of 4 or 5
		return 2
	}
	return 3
}

// isScaled reports whether integers are multiplied first and then scaled.
func isScaled(w Matrix) bool {
	return w.packed.form != nil && w.packed.form.columns == tileCols
}

// tileSteps is the number of tiles side by side that hold so many columns.
func tileSteps(cols int) int { return (cols + tileCols - 1) / tileCols }

// pointer is the address of the first byte.
func pointer[T any](x []T) *byte { return (*byte)(unsafe.Pointer(&x[0])) }

// alignedBytes makes n bytes that begin where a line of the cache does.
func alignedBytes(n int) []byte {
	const line = 64
	all := make([]byte, n+line)
	return all[-uintptr(unsafe.Pointer(&all[0]))%line:][:n:n]
}

// growLimbs makes room for the limbs of the vectors.
func (in *Input) growLimbs() {
	groups := (in.n + groupVectors - 1) / groupVectors
	size := 2 * groups * tileSteps(in.cols) * vectorLimbs * tileBytes
	if cap(in.limbs) < size {
		in.limbs = alignedBytes(size)
	}
	in.limbs = in.limbs[:size]
}

// splitVectors fills in limbs for vectors t0 to t1: tiles [vectors by 16][step][limb].
func (in *Input) splitVectors(t0, t1 int) {
	steps, whole := tileSteps(in.cols), in.cols/tileCols
	for t := t0; t < t1; t += tileSide {
		dst, n := in.limbs[t/tileSide*steps*vectorLimbs*tileBytes:], min(tileSide, in.n-t)
		if whole > 0 {
			splitVectorsAVX512(&dst[0], &in.x[t*in.ld], 4*in.ld, n, whole)
		}
		if whole < steps { // the last columns, with zeros beside them
			var part [tileSide * tileCols]float32
			for i := range n {
				copy(part[i*tileCols:(i+1)*tileCols], in.vector(t + i)[whole*tileCols:])
			}
			splitVectorsAVX512(&dst[whole*vectorLimbs*tileBytes], &part[0], 4*tileCols, n, 1)
		}
	}
}

// tileScratch is working memory of matMulTiles.
type tileScratch struct {
	sums    []float32 // [group][panel][vector][row]
	part    []float32 // [vector][row], a step of a scaled product
	scales  []float32 // [panel][step][scaleFloats]
	widened []float32 // [row][column], of half a panel
	rows    []byte    // tiles [panel by halves][step][limb]
}

func (s *Scratch) tiles(groups, panels, steps, limbs int, scaled bool) tileScratch {
	const line = 16 // numbers
	half := tileSide * steps * tileCols
	sizes := [...]int{groups * panels * groupSums, groupSums, 0, half, panels * half * limbs}
	if scaled {
		sizes[2] = panels * steps * scaleFloats
	}
	all := s.floats(sizes[0] + sizes[1] + sizes[2] + sizes[3] + sizes[4] + line)
	misplaced := int(uintptr(unsafe.Pointer(&all[0]))/4) % line
	all = all[(line-misplaced)%line:]
	var parts [len(sizes)][]float32
	for i, n := range sizes {
		parts[i], all = all[:n:n], all[n:]
	}
	return tileScratch{parts[0], parts[1], parts[2], parts[3], unsafe.Slice(pointer(parts[4]), 4*sizes[4])}
}

// split writes the tiles of steps times 32 columns from column c on of 16 rows from
// row r on, or fewer at the end of the matrix, and their scales.
func (s *tileScratch) split(dst []byte, scales []float32, w Matrix, r, c, steps int) {
	m, cols, limbs := min(tileSide, w.Rows-r), min(steps*tileCols, w.Cols-c), weightLimbs(w)
	stride := w.RowBytes()
	switch {
	case isScaled(w):
		f := w.packed.form
		heads, all := f.groupBytes(w.Cols)
		data := w.packed.data[r/packedRows*all:]
		head, quants := &data[c/tileCols*f.head], &data[heads+c/tileCols*f.words*4*packedRows]
		switch f.kernel {
		case packedNibbles:
			splitPackedNibblesAVX512(&dst[0], &scales[0], head, quants, &f.table[0], steps)
		case packedNibblesOffset:
			splitPackedNibblesOffsetAVX512(&dst[0], &scales[0], head, quants, &f.table[0], steps)
		default:
			splitPackedBytesAVX512(&dst[0], &scales[0], head, quants, steps)
		}
		return
	case m == tileSide && cols == steps*tileCols && w.Type == quant.F16:
		splitRowsF16To2AVX512(&dst[0], &w.Data[r*stride+2*c], stride, steps)
		return
	case m == tileSide && cols == steps*tileCols && w.Type == quant.BF16:
		splitRowsBF16To1AVX512(&dst[0], &w.Data[r*stride+2*c], stride, steps)
		return
	}
	if cols < steps*tileCols {
		clear(s.widened)
	}
	decodeRows(s.widened, steps*tileCols, w, r, m, c, cols)
	stride = 4 * steps * tileCols
	switch limbs {
	case 1:
		splitRowsF32To1AVX512(&dst[0], pointer(s.widened), stride, steps)
	case 2:
		splitRowsF32To2AVX512(&dst[0], pointer(s.widened), stride, steps)
	default:
		splitRowsF32To3AVX512(&dst[0], pointer(s.widened), stride, steps)
	}
}

// product is what a kernel multiplies: panels of rows with a group of vectors.
//
//	c[panel][v][r] (+)= sum over steps of row r of the panel times vector v
//
// Halves of panels, of tiles [step][limb], lie one after the other; vectorsHalf is
// the bytes from one half of the group to the other. Sums are added to with more not
// 0, else set.
type product struct {
	c                   *float32
	rows                *byte
	rowsHalf            int
	vectors             *byte
	vectorsHalf         int
	steps, panels, more int
	ahead               ahead
	scales, sums, part  *float32 // of scaled products; sums of 32 elements as Input has them
	octet               int      // bytes between the sums of eight vectors and those of the next
}

// ahead is memory that a product asks the cache for while it computes: for every
// panel lines of 64 bytes of some rows, those of the next panel next bytes further
// on. It may reach beyond what exists.
type ahead struct {
	at                        *byte
	rows, stride, lines, next int
}

// The kernels by the limbs of the rows, and those of integers with scales, and with
// scales and offsets.

//go:noescape
func tileProduct1(at product)

//go:noescape
func tileProduct2(at product)

//go:noescape
func tileProduct3(at product)

//go:noescape
func tileScaled(at product)

//go:noescape
func tileShifted(at product)

func multiplyTiles(w Matrix, at product) {
	switch {
	case isScaled(w) && w.packed.form.offset:
		tileShifted(at)
	case isScaled(w):
		tileScaled(at)
	case weightLimbs(w) == 1:
		tileProduct1(at)
	case weightLimbs(w) == 2:
		tileProduct2(at)
	default:
		tileProduct3(at)
	}
}

// matMulTiles is matMul on the matrix unit: a block of the columns of some panels of
// rows is split once, and multiplied with many groups of vectors.
func matMulTiles(y []float32, ldy int, w Matrix, in *Input, r0, r1 int, s *Scratch) {
	limbs, steps := weightLimbs(w), tileSteps(w.Cols)
	block := max(blockSteps, w.Type.BlockLen()/tileCols)
	groups := (in.n + groupVectors - 1) / groupVectors
	start := r0
	if w.packed.form != nil {
		start -= r0 % packedRows
	}
	panels := (r1 - start + panelRows - 1) / panelRows
	mem := s.tiles(min(blockGroups, groups), min(blockPanels, panels), min(block, steps), limbs, isScaled(w))
	at := product{vectorsHalf: steps * vectorLimbs * tileBytes, part: &mem.part[0], octet: 4 * packedVectors * (w.Cols / tileCols)}
	for g := 0; g < groups; g += blockGroups {
		gs := min(blockGroups, groups-g)
		for p := start; p < r1; p += blockPanels * panelRows {
			at.panels = min(blockPanels, (r1-p+panelRows-1)/panelRows)
			for k := 0; k < steps; k += block {
				at.steps, at.more = min(block, steps-k), k
				at.rows, at.rowsHalf = &mem.rows[0], at.steps*limbs*tileBytes
				for i := range 2 * at.panels {
					if r := p + i*tileSide; r < r1 {
						var scales []float32
						if isScaled(w) {
							at.scales = &mem.scales[0]
							scales = mem.scales[i/2*at.steps*scaleFloats+i%2*tileSide:]
						}
						mem.split(mem.rows[i*at.rowsHalf:], scales, w, r, k*tileCols, at.steps)
					}
				}
				last := k+at.steps == steps
				for j := range gs {
					t := (g + j) * groupVectors
					n := min(groupVectors, in.n-t)
					switch {
					case last:
						at.ahead = ahead{pointer(y[t*ldy+max(p, r0):]), n, 4 * ldy, 4 * panelRows / 64, 4 * panelRows}
					case w.packed.form == nil:
						// As many rows at a time as bring all groups through all panels.
						m := (panelRows + gs - 1) / gs
						at.ahead = nextColumns(w, p+j*at.panels*m, m, k+at.steps, block)
					}
					at.vectors = &in.limbs[(2*(g+j)*steps+k)*vectorLimbs*tileBytes]
					if at.scales != nil && w.packed.form.offset {
						at.sums = &in.sums[t*(w.Cols/tileCols)+k*packedVectors]
					}
					sums := mem.sums
					if block < steps {
						sums = sums[j*at.panels*groupSums:]
					}
					at.c = &sums[0]
					multiplyTiles(w, at)
					for i := 0; i < at.panels && last; i++ {
						from, to := max(r0, p+i*panelRows), min(r1, p+(i+1)*panelRows)
						for v := range n {
							copy(y[(t+v)*ldy+from:(t+v)*ldy+to], sums[i*groupSums+v*panelRows+from-p-i*panelRows:])
						}
					}
				}
			}
		}
	}
}

// nextColumns is block tiles of columns from tile k on, of m rows a panel from row r
// on.
func nextColumns(w Matrix, r, m, k, block int) ahead {
	if r >= w.Rows {
		return ahead{}
	}
	length, size, stride := w.Type.BlockLen(), w.Type.BlockBytes(), w.RowBytes()
	c := k * tileCols
	bytes := min(block*tileCols, w.Cols-c) / length * size
	return ahead{&w.Data[r*stride+c/length*size], m, stride, (bytes + 63) / 64, m * stride}
}
