package kernels

import (
	"fmt"

	"github.com/firstpassage/fpa/quant"
)

// Matrix is a row-major matrix in the layout of the file it comes from, used in
// place. Data may start at any address. Pack adds a second form.
type Matrix struct {
	Type       quant.DType
	Rows, Cols int
	Data       []byte

	// Int8 has vectors rounded to bytes, in blocks of 32, before they are multiplied
	// with the matrix: faster, and less exact. It changes nothing for types of which
	// RoundsFor is false. It is set before Pack.
	Int8 bool

	packed packed // see Pack
}

// RowBytes is the length of a row in bytes.
func (m Matrix) RowBytes() int {
	return m.Cols / m.Type.BlockLen() * m.Type.BlockBytes()
}

// Check reports whether MatMul can work with the matrix: a type it knows, rows
// of whole blocks, and as many bytes as rows and columns ask for. Matrices made
// from a file are checked once, when it is loaded.
func (m Matrix) Check() error {
	if !CanMultiply(m.Type) {
		return fmt.Errorf("matrix of type %s cannot be multiplied", m.Type)
	}
	if m.Rows < 0 || m.Cols < 0 {
		return fmt.Errorf("matrix of %d rows and %d columns", m.Rows, m.Cols)
	}
	row, err := m.Type.Bytes(int64(m.Cols))
	if err != nil {
		return fmt.Errorf("matrix row: %w", err)
	}
	if row > 0 && int64(len(m.Data))/row < int64(m.Rows) {
		return fmt.Errorf("matrix of %d rows of %d bytes has only %d bytes", m.Rows, row, len(m.Data))
	}
	return nil
}

// CanMultiply reports whether MatMul accepts matrices of the type: all that
// package quant decodes. F32, F16 and BF16 are read in place for fewer than ManyVectors
// vectors, Q8_0, Q4_0, Q4_1, Q5_0, Q5_1, Q4_K, Q5_K and Q6_K for up to FewVectors; other
// rows are widened first.
func CanMultiply(t quant.DType) bool { return quant.CanDecode(t) }

// Scratch is the working memory of one worker. The zero value is ready; it must
// not be used by two goroutines at a time.
type Scratch struct {
	rows []float32
	work []byte
}

// bytes returns room for n bytes, of any content.
func (s *Scratch) bytes(n int) []byte {
	if cap(s.work) < n {
		s.work = make([]byte, n)
	}
	return s.work[:n]
}

// floats returns room for n numbers, of any content.
func (s *Scratch) floats(n int) []float32 {
	if cap(s.rows) < n {
		s.rows = make([]float32, n)
	}
	return s.rows[:n]
}

// MatMul multiplies rows r0 to r1 of the matrix with the n vectors of an input:
//
//	y[t*ldy+r] = sum over c of w[r,c] * vector t[c]    0 <= t < n, r0 <= r < r1
//
// One vector is decoding, many are prefill; both compute in float32, or as exactly.
// An element of y depends on its row, its vector, and on whether n is at most
// [FewVectors], at least [ManyVectors], or between, where for F32, F16 and BF16 the
// first is no difference but on arm64; not on r0, r1 or its neighbours. For packed matrices r0 and r1
// are best multiples of 16. The matrix must pass Check, and the input have as many
// elements a vector as it has columns, and be prepared for it; see [Input].
func MatMul(y []float32, ldy int, w Matrix, in *Input, r0, r1 int, s *Scratch) {
	if in.n <= 0 || r0 >= r1 {
		return
	}
	if in.cols != w.Cols {
		panic(fmt.Sprintf("kernels: vectors of %d elements for a matrix of %d columns", in.cols, w.Cols))
	}
	if need := in.formsFor(w); in.forms&need != need {
		panic("kernels: MatMul of a matrix that the input was not prepared for")
	}
	if w.packed.form == nil {
		row := w.RowBytes()
		_ = w.Data[r0*row : r1*row]
	} else if r1 > w.Rows {
		panic(fmt.Sprintf("kernels: rows up to %d of a matrix of %d", r1, w.Rows))
	}
	_ = y[r0 : (in.n-1)*ldy+r1]
	if w.Cols == 0 {
		for t := range in.n {
			clear(y[t*ldy+r0 : t*ldy+r1])
		}
		return
	}
	if f := w.roundsTo(); f != nil {
		matMulInt8(y, ldy, w, f, in, r0, r1, s)
		return
	}
	if w.packed.form != nil && formsFor(w, in.n) == 0 {
		matMulPacked(y, ldy, w, in, r0, r1, s)
		return
	}
	matMul(y, ldy, w, in, r0, r1, s)
}

// FewVectors is the largest n for which MatMul multiplies quantised rows as they lie
// in the file one by one instead of widening them first, and packed rows without the
// matrix unit.
const FewVectors = 3

// ManyVectors is the least n for which MatMul multiplies in tiles, on the processor's
// matrix unit where it has one, whatever the type of the matrix.
const ManyVectors = 32

// decodeRows widens cols elements of m rows from row r and column c on, a row every
// stride elements of dst, which has room for whole rows (m*stride). A packed
// matrix is read in its packed form. c and cols are whole blocks.
func decodeRows(dst []float32, stride int, w Matrix, r, m, c, cols int) {
	if w.packed.form == nil {
		for i := range m {
			decodeRow(dst[i*stride:i*stride+cols], w, r+i, c)
		}
		return
	}
	for m > 0 {
		skip, n := r%packedRows, min(packedRows-r%packedRows, m)
		if n == packedRows {
			widenGroup(dst, stride, w, r/packedRows, c, cols)
		} else {
			var part [packedRows * 256]float32 // part of a group: the longest block, again and again
			for k := 0; k < cols; k += 256 {
				width := min(256, cols-k)
				widenGroup(part[:], 256, w, r/packedRows, c+k, width)
				for i := range n {
					copy(dst[i*stride+k:][:width], part[(skip+i)*256:])
				}
			}
		}
		r, m = r+n, m-n
		if m > 0 {
			dst = dst[n*stride:]
		}
	}
}

// decodeRow widens len(dst) elements of row r, from column c on, of a matrix
// that passed Check. dst and c are whole blocks.
func decodeRow(dst []float32, w Matrix, r, c int) {
	if w.packed.form != nil {
		decodeRows(dst, len(dst), w, r, 1, c, len(dst))
		return
	}
	length, bytes := w.Type.BlockLen(), w.Type.BlockBytes()
	at := r*w.RowBytes() + c/length*bytes
	if err := quant.Decode(dst, w.Type, w.Data[at:at+len(dst)/length*bytes]); err != nil {
		panic(err) // Check has not been called
	}
}

func matMulGo(y []float32, ldy int, w Matrix, in *Input, r0, r1 int, s *Scratch) {
	row := s.floats(w.Cols)
	for r := r0; r < r1; r++ {
		decodeRow(row, w, r, 0)
		for t := range in.n {
			y[t*ldy+r] = dotGo(row, in.vector(t))
		}
	}
}
