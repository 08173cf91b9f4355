package kernels

import (
	"encoding/binary"
	"math"

	"github.com/firstpassage/fpa/quant"
)

// Vectors are rounded to bytes, in blocks of 32 with a scale each, for matrices whose
// Int8 is set and that are made of integers in blocks of 32 as well: the products of a
// block are then sums of integers, which are exact, and
//
//	y[r] = sum over blocks of scale(w) * scale(x) * sum of w*x (integers)
//
// with, for types with an offset, the offset times the rounded block's sum. The error
// that this adds is that of x: up to half of max|x|/127 an element.
//
// The kernels read the packed form, in which the bytes of Q8_0 stay in words of four
// columns (see packedForm); of a matrix that is not packed, group after group is packed
// on the way.

// int8Forms are the packed forms that are multiplied with bytes.
var int8Forms = map[quant.DType]*packedForm{
	quant.Q4_0: packedForms[quant.Q4_0],
	quant.Q4_1: packedForms[quant.Q4_1],
	quant.Q8_0: {kernel: packedWords, columns: 32, block: 34, head: 32, words: 8, fill: fillScaled},
}

// RoundsFor reports whether vectors can be rounded to bytes for matrices of the type.
func RoundsFor(t quant.DType) bool { return int8Forms[t] != nil }

// record is a block of 32 rounded elements. The one of block b of vector t is number
// (t/8*blocks+b)*8 + t%8. The layout is that of the assembly.
type record struct {
	q        [32]int8 // at most 127 in magnitude
	scale    float32
	sum      float32 // of q, times scale
	negative int32   // minus the sum of q
	_        int32
}

// roundsTo is the form in which the matrix is multiplied with rounded vectors, or nil.
func (m Matrix) roundsTo() *packedForm {
	if !m.Int8 {
		return nil
	}
	return int8Forms[m.Type]
}

func (in *Input) growRecords() {
	need := (in.n + packedVectors - 1) / packedVectors * packedVectors * (in.cols / 32)
	if cap(in.records) < need {
		in.records = make([]record, need)
	}
	in.records = in.records[:need]
}

// roundVectors fills the records of vectors t0 to t1.
func (in *Input) roundVectors(t0, t1 int) {
	blocks := in.cols / 32
	if blocks == 0 {
		return
	}
	for t := t0; t < t1; t++ {
		roundRecords(in.records[t/packedVectors*blocks*packedVectors+t%packedVectors:], in.vector(t))
	}
}

// leastRounded is the magnitude below which a block is rounded to zeros: 127 over it would
// come near infinity.
const leastRounded = 0x1p-100

// roundRecordsGo rounds x to every eighth of the records. A block with a NaN or an
// infinity gets a scale that is one of these, and any bytes.
func roundRecordsGo(to []record, x []float32) {
	for b := 0; len(x) > 0; b, x = b+packedVectors, x[32:] {
		r, most := &to[b], magnitudeGo(x[:32])
		r.scale = most / 127
		inverse := 127 / most
		switch {
		case most < leastRounded:
			r.scale, inverse = 0, 0
		case !(most <= math.MaxFloat32):
			inverse = 0
		}
		sum := int32(0)
		for i, v := range x[:32] {
			r.q[i] = 0
			if inverse != 0 {
				r.q[i] = int8(math.RoundToEven(float64(v * inverse)))
			}
			sum += int32(r.q[i])
		}
		r.sum, r.negative = r.scale*float32(sum), -sum
	}
}

// matMulInt8 is MatMul with rounded vectors.
func matMulInt8(y []float32, ldy int, w Matrix, f *packedForm, in *Input, r0, r1 int, s *Scratch) {
	heads, all := f.groupBytes(w.Cols)
	blocks := w.Cols / 32
	for r := r0; r < r1; {
		group, lane := r/packedRows, r%packedRows
		rows := min(packedRows-lane, r1-r)
		var data []byte
		if w.packed.form == f {
			data = w.packed.data[group*all:][:all]
		} else {
			data = s.bytes(all)
			w.packGroup(f, data, group)
		}
		for t := 0; t < in.n; t += packedVectors {
			n := min(packedVectors, in.n-t)
			records := in.records[t*blocks:][:packedVectors*blocks]
			if rows == packedRows {
				int8Group(f, n, y[t*ldy+r:(t+n-1)*ldy+r+packedRows], ldy, data, heads, records)
				continue
			}
			var out [packedVectors * packedRows]float32
			int8Group(f, n, out[:], packedRows, data, heads, records)
			for i := range n {
				copy(y[(t+i)*ldy+r:][:rows], out[i*packedRows+lane:])
			}
		}
		r += rows
	}
}

// int8GroupGo multiplies a packed group, whose scales and offsets fill heads bytes,
// with the first n of every eight records.
func int8GroupGo(f *packedForm, n int, y []float32, ldy int, data []byte, heads int, records []record) {
	head, words := f.head, f.words
	half := func(at int) float32 { return quant.F16ToF32(binary.LittleEndian.Uint16(data[at:])) }
	for t := range n {
		out := y[t*ldy:][:packedRows]
		clear(out)
		for b := range len(records) / packedVectors {
			x := &records[b*packedVectors+t]
			for lane := range out {
				sum := int32(0)
				for i := range words {
					word := data[heads+(b*words+i)*4*packedRows+4*lane:][:4]
					for j, v := range word {
						switch k := 4*i + j; f.kernel {
						case packedWords:
							sum += int32(int8(v)) * int32(x.q[k])
						default:
							sum += int32(v&15)*int32(x.q[k]) + int32(v>>4)*int32(x.q[k+16])
						}
					}
				}
				if f.kernel == packedNibbles {
					sum += 8 * x.negative
				}
				out[lane] += float32(half(b*head+2*lane)*x.scale) * float32(sum)
				if f.kernel == packedNibblesOffset {
					out[lane] += half(b*head+2*packedRows+2*lane) * x.sum
				}
			}
		}
	}
}
