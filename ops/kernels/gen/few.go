package main

import (
	"fmt"

	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	. "github.com/mmcloughlin/avo/reg"
)

// fewVectors is the largest number of vectors that fits the registers of few.
func (v isa) fewVectors() int {
	if v.wide {
		return 8
	}
	return 4
}

// few emits the product of rows of a type without blocks with n vectors:
//
//	y[t*ldy+r] = sum over c of w[r,c] * x[t*ldx+c]
//
// Every sum has a register of its own, whose lanes are added up at the end, so that
// its order depends on the number of columns alone. ldy, stride and ldx are in
// bytes; cols and rows are not 0.
func (v isa) few(t element, n int) {
	v.text(fmt.Sprintf("few%s%d", t.name, n), "(y *float32, ldy int, w *byte, stride int, x *float32, ldx, cols, rows int)")
	Comment("Rows times n vectors.")
	y, w, x := Load(Param("y"), GP64()), Load(Param("w"), GP64()), newVectorsAt(n)
	rows := Load(Param("rows"), GP64())
	whole, part := GP64(), GP64()
	Load(Param("cols"), part)
	MOVQ(part, whole)
	ANDQ(I32(-v.lanes), whole)
	ANDQ(I32(v.lanes-1), part)
	bytesOf(t, whole)
	last := v.newTail(part)
	v.clearBuffer(t, last)

	// So many rows side by side that their sums, weights, an element of a vector and
	// a mask have registers.
	side := 4
	if registers := 2 * v.lanes; n*side+side+2 > registers {
		side = 2
	}
	block := func(m int) {
		row := []Register{w}
		if m > 1 {
			stride := Load(Param("stride"), GP64())
			for i := 1; i < m; i++ {
				next := GP64()
				LEAQ(Mem{Base: row[i-1], Index: stride, Scale: 1}, next)
				row = append(row, next)
			}
		}
		sums := make([][]VecVirtual, m)
		for i := range sums {
			for range n {
				sums[i] = append(sums[i], v.zero())
			}
		}
		at := GP64()
		XORQ(at, at)
		step := func(part *tail) {
			var xs []VecVirtual
			if part != nil || n == 1 {
				for t := range n {
					xs = append(xs, v.load(f32, x.at(t, 0), part))
				}
			}
			if part == nil && n > 1 { // registers are for rows: there may be fewer of them
				weights := make([]VecVirtual, m)
				for i := range weights {
					weights[i] = v.load(t, Mem{Base: row[i], Index: at, Scale: 1}, nil)
				}
				for j := range n {
					xj := v.load(f32, x.at(j, 0), nil)
					for i := range weights {
						VFMADD231PS(xj, weights[i], sums[i][j])
					}
				}
				return
			}
			for i := range row {
				weights := v.load(t, Mem{Base: row[i], Index: at, Scale: 1}, part)
				for j := range n {
					VFMADD231PS(xs[j], weights, sums[i][j])
				}
			}
		}
		loop, rest, done := label("loop"), label("rest"), label("sum")
		Label(loop)
		CMPQ(at, whole)
		JGE(LabelRef(rest))
		if m > 1 {
			for i := range row {
				PREFETCHT0(Mem{Base: row[i], Index: at, Scale: 1, Disp: packedAhead})
			}
		}
		step(nil)
		ADDQ(U32(v.lanes*t.bytes), at)
		x.step(v.bytes())
		JMP(LabelRef(loop))
		Label(rest)
		TESTQ(part, part)
		JZ(LabelRef(done))
		step(last)
		Label(done)
		back := GP64() // to the beginning of the vectors
		MOVQ(whole, back)
		if t.bytes < 4 {
			SHLQ(U8(2/t.bytes), back)
		}
		SUBQ(back, x.first)
		if x.fifth != nil {
			SUBQ(back, x.fifth)
		}
		v.storeFew(sums, y, w)
	}
	loop, one, done := label("rows"), label("one"), label("done")
	Label(loop)
	CMPQ(rows, U32(side))
	JL(LabelRef(one))
	block(side)
	SUBQ(U32(side), rows)
	JMP(LabelRef(loop))
	Label(one)
	TESTQ(rows, rows)
	JZ(LabelRef(done))
	block(1)
	DECQ(rows)
	JMP(LabelRef(one))
	Label(done)
	end()
}

// storeFew adds up the lanes of sums, by row and vector, stores the results, and
// steps to the next rows.
func (v isa) storeFew(sums [][]VecVirtual, y, w Register) {
	out, m, n := GP64(), len(sums), len(sums[0])
	MOVQ(y, out)
	next := func() { ADDQ(Load(Param("ldy"), GP64()), out) }
	switch m {
	case 1:
		for t := range n {
			VMOVSS(v.sum4([]VecVirtual{sums[0][t]}), Mem{Base: out})
			if t < n-1 {
				next()
			}
		}
	case 2:
		for t := 0; t < n; t += 2 {
			u := min(t+1, n-1)
			sum := v.sum4([]VecVirtual{sums[0][t], sums[1][t], sums[0][u], sums[1][u]})
			VMOVLPS(sum, Mem{Base: out})
			if u > t {
				next()
				VMOVHPS(sum, Mem{Base: out})
			}
			if u < n-1 {
				next()
			}
		}
	default:
		for t := range n {
			VMOVUPS(v.sum4([]VecVirtual{sums[0][t], sums[1][t], sums[2][t], sums[3][t]}), Mem{Base: out})
			if t < n-1 {
				next()
			}
		}
	}
	stride := Load(Param("stride"), GP64())
	for range m {
		ADDQ(stride, w)
	}
	ADDQ(U32(4*m), y)
}
