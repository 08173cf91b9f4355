package kernels

import (
	"encoding/binary"
	"fmt"

	"github.com/firstpassage/fpa/quant"
)

// A matrix of quantised weights can carry a second form, made at load by [Matrix.Pack],
// which multiplies a few vectors faster than the file's: sixteen rows lie side by
// side, so that every lane of a register works on a row of its own and needs no
// sum across lanes, and scales are read sixteen at a time.
//
// Rows come in groups of sixteen, the last one filled up with zeros. A group holds
// first, for every block of 32 columns, the sixteen scales, and the sixteen offsets
// of a type that has them, all binary16, filled up to 64 bytes; then, for every block,
//
//   - four-bit types: four times sixteen words, of which word i of row r holds the
//     bytes 4i to 4i+3 of the row's block as they are in the file, so that half bytes
//     2j and 2j+1 belong to columns 4i+j and 4i+j+16;
//   - Q8_0: 32 columns of sixteen bytes.

const packedRows = 16 // rows of a group

// packedForm describes how a type is packed.
type packedForm struct {
	kernel  packedKernel
	block   int // bytes of a block in the file
	integer int // where its integers begin
	table   *[16]float32
}

// packedKernel is a family of kernels of package gen.
type packedKernel uint8

const (
	packedNibbles packedKernel = iota
	packedNibblesOffset
	packedBytes
)

// head is the bytes of the scales and offsets of a block of a group.
func (f *packedForm) head() int {
	if f.kernel == packedNibblesOffset {
		return 2 * 2 * packedRows
	}
	return 2 * packedRows
}

// forms is what the kernels read beside the vectors.
func (f *packedForm) forms() forms {
	if f.kernel == packedNibblesOffset {
		return formSums
	}
	return 0
}

// words is the number of 32-bit words that the integers of a block of a row fill.
func (f *packedForm) words() int { return (f.block - f.integer) / 4 }

var (
	levelsPlain  = [16]float32{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}
	levelsSigned = [16]float32{-8, -7, -6, -5, -4, -3, -2, -1, 0, 1, 2, 3, 4, 5, 6, 7}
	levelsIQ4NL  = [16]float32{-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113} // as in package quant
)

var packedForms = map[quant.DType]*packedForm{
	quant.Q4_0:   {packedNibbles, 18, 2, &levelsSigned},
	quant.IQ4_NL: {packedNibbles, 18, 2, &levelsIQ4NL},
	quant.Q4_1:   {packedNibblesOffset, 20, 4, &levelsPlain},
	quant.Q8_0:   {packedBytes, 34, 2, nil},
}

// packed is the second form of a matrix.
type packed struct {
	form *packedForm
	data []byte
}

// groupBytes is the size of the heads, and of all, of a group.
func (f *packedForm) groupBytes(cols int) (heads, all int) {
	blocks := cols / 32
	heads = (blocks*f.head() + 63) &^ 63
	return heads, heads + blocks*f.words()*4*packedRows
}

// PackedBytes is the room that Pack needs, or 0 where there is no packed form of the
// type that is faster on this processor.
func (m Matrix) PackedBytes() int {
	f := packedForms[m.Type]
	if f == nil || !canPack() || m.Rows == 0 || m.Cols == 0 {
		return 0
	}
	_, all := f.groupBytes(m.Cols)
	return (m.Rows + packedRows - 1) / packedRows * all
}

// Pack returns the matrix with room for its packed form in buf, which has at least
// PackedBytes bytes and begins at a multiple of 64. PackRows fills it; until all
// rows are filled the result must not be multiplied. The matrix has passed Check.
func (m Matrix) Pack(buf []byte) Matrix {
	n := m.PackedBytes()
	if n == 0 {
		panic(fmt.Sprintf("kernels: no packed form of %s", m.Type))
	}
	m.packed = packed{form: packedForms[m.Type], data: buf[:n:n]}
	return m
}

// PackRows fills the packed form of rows r0 to r1, read from Data. r0 is a multiple
// of 16, and r1 as well or the number of rows. Different rows may be packed by
// several workers at a time.
func (m Matrix) PackRows(r0, r1 int) {
	f, blocks := m.packed.form, m.Cols/32
	heads, all := f.groupBytes(m.Cols)
	row, words, head := m.RowBytes(), f.words(), f.head()
	for r := r0; r < r1; r += packedRows {
		to := m.packed.data[r/packedRows*all:][:all]
		n := min(packedRows, m.Rows-r)
		if n < packedRows {
			clear(to)
		}
		for b := range blocks {
			h := to[b*head:][:head]
			q := to[heads+b*words*4*packedRows:][:words*4*packedRows]
			for lane := range n {
				from := m.Data[(r+lane)*row+b*f.block:][:f.block]
				copy(h[2*lane:], from[:2])
				if f.kernel == packedNibblesOffset {
					copy(h[2*packedRows+2*lane:], from[2:4])
				}
				from = from[f.integer:]
				for i := range words {
					binary.NativeEndian.PutUint32(q[64*i+4*lane:], binary.NativeEndian.Uint32(from[4*i:]))
				}
			}
		}
		if f.kernel == packedBytes {
			turnBytes(to[heads:])
		}
	}
}

// sumsLen is the length of the sums of all vectors.
func (in *Input) sumsLen() int {
	return (in.n + packedVectors - 1) / packedVectors * packedVectors * (in.cols / 32)
}

// sumBlocks fills the derived form that offsets multiply: the sums of the blocks of
// 32 elements. That of block b of vector t lies at (t/8*blocks+b)*8 + t%8.
func (in *Input) sumBlocks(t0, t1 int) {
	blocks := in.cols / 32
	for t := t0; t < t1; t++ {
		x := in.vector(t)
		to := in.sums[t/packedVectors*blocks*packedVectors+t%packedVectors:]
		for b := range blocks {
			var s0, s1, s2, s3 float32
			for block := x[32*b : 32*b+32]; len(block) >= 4; block = block[4:] {
				s0 += block[0]
				s1 += block[1]
				s2 += block[2]
				s3 += block[3]
			}
			to[b*packedVectors] = (s0 + s2) + (s1 + s3)
		}
	}
}

// packedVectors is the largest number of vectors of a packed kernel.
const packedVectors = 8
