package kernels

import (
	"encoding/binary"
	"fmt"
	"math"

	"github.com/firstpassage/fpa/quant"
)

// A matrix of quantised weights can carry a second form, made at load by [Matrix.Pack],
// which multiplies a few vectors faster than the file's: sixteen rows lie side by
// side, so that every lane of a register works on a row of its own and needs no
// sum across lanes, and scales are read sixteen at a time.
//
// Rows come in groups of sixteen, the last one filled up with zeros. A group holds
// first, for every block of the file's type, the scales and offsets of the sixteen
// rows, filled up to 64 bytes; then, for every block, the integers. For each of the
// rows next to each other these are
//
//	Q4_0, IQ4_NL  d                                    four words
//	Q4_1          d, m                                 four words
//	Q8_0          d                                    32 bytes, by column
//	Q4_K          d, dmin, and for every 64 columns    32 words
//	              two scales and two offsets, bytes
//	Q6_K          d, and for every 16 columns a byte   256 bytes, by column
//
// where d, m and dmin are binary16, and word i holds bytes 4i to 4i+3 of the row's
// block as they are in the file: half bytes 2j and 2j+1 belong to columns 4i+j and
// 4i+j+16, or in Q4_K, of 64 columns, 4i+j+32. Integers of Q6_K are bytes here, more than
// in the file; putting six bits together takes longer than reading eight. To be
// multiplied with bytes, Q8_0 stays eight words (see int8.go).

const (
	packedRows  = 16  // rows of a group
	packedSlack = 512 // bytes behind the last group, a block of integers that may be read
)

// packedForm describes how a type is packed.
type packedForm struct {
	kernel  packedKernel
	columns int // of a block
	block   int // bytes of a block in the file
	head    int // bytes of the scales and offsets of a block of a group
	words   int // of 32 bits that the integers of a block of a row fill
	bytes   bool
	offset  bool
	table   *[16]float32 // of half bytes
	narrow  *[32]uint16  // the same as bfloat16, twice over

	// fill writes the block of a row, in lane i, to the scales and offsets h and the
	// integers q of a block of a group; bytes by fours, to be turned later.
	fill func(h, q []byte, i int, block []byte)
}

// packedKernel is a family of kernels of package gen.
type packedKernel uint8

const (
	packedNibbles packedKernel = iota
	packedNibblesOffset
	packedBytes
	packedNibblesGroups
	packedBytesGroups
	packedWords // for vectors of bytes alone
)

// twice returns levels, small integers, as bfloat16, twice over.
func twice(levels *[16]float32) *[32]uint16 {
	var t [32]uint16
	for i := range t {
		t[i] = uint16(math.Float32bits(levels[i%16]) >> 16)
	}
	return &t
}

var (
	levelsPlain  = [16]float32{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}
	levelsSigned = [16]float32{-8, -7, -6, -5, -4, -3, -2, -1, 0, 1, 2, 3, 4, 5, 6, 7}
	levelsIQ4NL  = [16]float32{-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113} // as in package quant
)

var packedForms = map[quant.DType]*packedForm{
	quant.Q4_0: {
		kernel: packedNibbles, columns: 32, block: 18, head: 32, words: 4, table: &levelsSigned, narrow: twice(&levelsSigned), fill: fillScaled,
	},
	quant.IQ4_NL: {
		kernel: packedNibbles, columns: 32, block: 18, head: 32, words: 4, table: &levelsIQ4NL, narrow: twice(&levelsIQ4NL), fill: fillScaled,
	},
	quant.Q4_1: {
		kernel: packedNibblesOffset, columns: 32, block: 20, head: 64, words: 4, offset: true, table: &levelsPlain, narrow: twice(&levelsPlain),
		fill: func(h, q []byte, i int, block []byte) {
			fillHalf(h, i, block)
			fillHalf(h[32:], i, block[2:])
			fillWords(q, i, block[4:])
		},
	},
	quant.Q8_0: {
		kernel: packedBytes, columns: 32, block: 34, head: 32, words: 8, bytes: true, fill: fillScaled,
	},
	quant.Q4_K: {
		kernel: packedNibblesGroups, columns: 256, block: 144, head: 320, words: 32, offset: true, table: &levelsPlain, narrow: twice(&levelsPlain),
		fill: func(h, q []byte, i int, block []byte) {
			fillHalf(h, i, block)
			fillHalf(h[32:], i, block[2:])
			scales, offsets := quant.Groups(block)
			for g := range scales {
				h[64+g/2*64+g%2*16+i], h[64+g/2*64+32+g%2*16+i] = scales[g], offsets[g]
			}
			fillWords(q, i, block[16:])
		},
	},
	quant.Q6_K: {
		kernel: packedBytesGroups, columns: 256, block: 210, head: 288, words: 64, bytes: true,
		fill: func(h, q []byte, i int, block []byte) {
			fillHalf(h, i, block[208:])
			for g, s := range block[192:208] {
				h[32+16*g+i] = s
			}
			var integers [256]byte
			quant.IntegersQ6K(integers[:], block)
			fillWords(q, i, integers[:])
		},
	},
}

// fillScaled is fill of a scale and integers.
func fillScaled(h, q []byte, i int, block []byte) {
	fillHalf(h, i, block)
	fillWords(q, i, block[2:])
}

// fillHalf writes a binary16 number to lane i.
func fillHalf(h []byte, i int, number []byte) { h[2*i], h[2*i+1] = number[0], number[1] }

// fillWords writes words of integers to lane i.
func fillWords(q []byte, i int, words []byte) {
	for q = q[4*i:]; len(words) >= 4; words = words[4:] {
		binary.NativeEndian.PutUint32(q, binary.NativeEndian.Uint32(words))
		q = q[min(64, len(q)):]
	}
}

// forms is what the kernels read of n vectors, beside or instead of them.
func (f *packedForm) forms(n int) (needed forms) {
	if f.offset {
		needed |= formSums
	}
	if f.packedTiles(n) {
		needed |= formPairs
	}
	return needed
}

// packed is the second form of a matrix.
type packed struct {
	form *packedForm
	data []byte
}

// groupBytes is the size of the heads, and of all, of a group.
func (f *packedForm) groupBytes(cols int) (heads, all int) {
	blocks := cols / f.columns
	heads = (blocks*f.head + 63) &^ 63
	return heads, heads + blocks*f.words*4*packedRows
}

// packsTo is the packed form that Pack fills, or nil.
func (m Matrix) packsTo() *packedForm {
	if f := m.roundsTo(); f != nil {
		return f
	}
	if !canPack() {
		return nil
	}
	return packedForms[m.Type]
}

// PackedBytes is the room that Pack needs, or 0 where there is no packed form of the
// type that is faster on this processor.
func (m Matrix) PackedBytes() int {
	f := m.packsTo()
	if f == nil || m.Rows == 0 || m.Cols == 0 {
		return 0
	}
	_, all := f.groupBytes(m.Cols)
	return (m.Rows+packedRows-1)/packedRows*all + packedSlack
}

// Pack returns the matrix with room for its packed form in buf, which has at least
// PackedBytes bytes and begins at a multiple of 64. PackRows fills it; until all
// rows are filled the result must not be multiplied. The matrix has passed Check.
func (m Matrix) Pack(buf []byte) Matrix {
	n := m.PackedBytes()
	if n == 0 {
		panic(fmt.Sprintf("kernels: no packed form of %s", m.Type))
	}
	m.packed = packed{form: m.packsTo(), data: buf[:n:n]}
	return m
}

// PackRows fills the packed form of rows r0 to r1, read from Data. r0 is a multiple
// of 16, and r1 as well or the number of rows. Different rows may be packed by
// several workers at a time.
func (m Matrix) PackRows(r0, r1 int) {
	_, all := m.packed.form.groupBytes(m.Cols)
	for r := r0; r < r1; r += packedRows {
		group := r / packedRows
		m.packGroup(m.packed.form, m.packed.data[group*all:][:all], group)
	}
}

// packGroup fills to with the packed form of a group of rows, read from Data.
func (m Matrix) packGroup(f *packedForm, to []byte, group int) {
	heads, _ := f.groupBytes(m.Cols)
	r, row, quants := group*packedRows, m.RowBytes(), f.words*4*packedRows
	n := min(packedRows, m.Rows-r)
	if n < packedRows {
		clear(to)
	}
	for b := range m.Cols / f.columns {
		h, q := to[b*f.head:][:f.head], to[heads+b*quants:][:quants]
		for i := range n {
			f.fill(h, q, i, m.Data[(r+i)*row+b*f.block:][:f.block])
		}
	}
	if f.bytes {
		turnBytes(to[heads:])
	}
}

// sumsLen is the length of the sums of all vectors, of whole groups of them.
func (in *Input) sumsLen() int {
	n := in.n
	if n >= ManyVectors {
		n = (n + ManyVectors - 1) / ManyVectors * ManyVectors
	}
	return (n + packedVectors - 1) / packedVectors * packedVectors * (in.cols / 32)
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
