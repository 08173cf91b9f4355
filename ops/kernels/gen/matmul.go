package main

import (
	"fmt"

	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	. "github.com/mmcloughlin/avo/reg"
)

// gemv emits y[r] = scale * sum over c of w[r,c]*x[c]. Four rows run side by
// side, each with two registers of sums; the last rows run alone with the same
// order of additions. stride is the distance of rows in bytes. Four rows also
// ask the cache for what lies ahead bytes further on.
func (v isa) gemv(t element) {
	v.text("gemv"+t.name, "(y *float32, w *byte, stride int, x *float32, cols, rows int, scale float32, ahead int)")
	Comment("y[r] = scale * sum of w[r,c]*x[c]")
	y, w, x := Load(Param("y"), GP64()), Load(Param("w"), GP64()), Load(Param("x"), GP64())
	rows := Load(Param("rows"), GP64())
	scale := XMM()
	Load(Param("scale"), scale)
	VBROADCASTSS(scale, scale)

	// Offsets within a row, in bytes: where pairs of registers end, and where
	// the tail begins.
	pairs, whole, part := GP64(), GP64(), GP64()
	Load(Param("cols"), part)
	MOVQ(part, pairs)
	ANDQ(I32(-2*v.lanes), pairs)
	MOVQ(part, whole)
	ANDQ(I32(-v.lanes), whole)
	ANDQ(I32(v.lanes-1), part)
	bytesOf(t, pairs)
	bytesOf(t, whole)
	last := v.newTail(part)
	v.clearBuffer(t, last)

	block := func(n int) {
		// Registers are scarce: what is seldom needed is loaded where it is.
		row := []Register{w}
		stride := Load(Param("stride"), GP64())
		for i := 1; i < n; i++ {
			next := GP64()
			LEAQ(Mem{Base: row[i-1], Index: stride, Scale: 1}, next)
			row = append(row, next)
		}
		sums := make([][2]VecVirtual, n)
		for i := range sums {
			sums[i] = [2]VecVirtual{v.zero(), v.zero()}
		}
		at := GP64()
		XORQ(at, at)
		xAt := func(vector int) Mem {
			return Mem{Base: x, Index: at, Scale: uint8(4 / t.bytes), Disp: vector * v.bytes()}
		}
		rowAt := func(i, vector int) Mem {
			return Mem{Base: row[i], Index: at, Scale: 1, Disp: vector * v.lanes * t.bytes}
		}
		step := func(part *tail, half int, vector int) {
			xs := v.load(f32, xAt(vector), part)
			for i := range sums {
				VFMADD231PS(v.load(t, rowAt(i, vector), part), xs, sums[i][half])
			}
		}
		loop, single, rest, done := label("pair"), label("single"), label("rest"), label("sum")
		Label(loop)
		CMPQ(at, pairs)
		JGE(LabelRef(single))
		if n > 1 {
			further := GP64()
			Load(Param("ahead"), further)
			ADDQ(at, further)
			for i := range row {
				PREFETCHT0(Mem{Base: row[i], Index: further, Scale: 1})
			}
		}
		step(nil, 0, 0)
		step(nil, 1, 1)
		ADDQ(U32(2*v.lanes*t.bytes), at)
		JMP(LabelRef(loop))
		Label(single)
		CMPQ(at, whole)
		JGE(LabelRef(rest))
		step(nil, 0, 0)
		ADDQ(U32(v.lanes*t.bytes), at)
		Label(rest)
		TESTQ(part, part)
		JZ(LabelRef(done))
		step(last, 1, 0)
		Label(done)
		folded := make([]VecVirtual, n)
		for i := range sums {
			VADDPS(sums[i][1], sums[i][0], sums[i][0])
			folded[i] = sums[i][0]
		}
		finishRows(v, folded, scale, y, w)
	}
	forRows(rows, block)
	end()
}

// finishRows stores the sums of one or four rows, times scale where there is
// one, and steps to the next.
func finishRows(v isa, sums []VecVirtual, scale VecVirtual, y, w Register) {
	stride := Load(Param("stride"), GP64())
	sum := v.sum4(sums)
	if scale != nil {
		VMULPS(scale, sum, sum)
	}
	if len(sums) == 4 {
		VMOVUPS(sum, Mem{Base: y})
		LEAQ(Mem{Base: w, Index: stride, Scale: 4}, w)
	} else {
		VMOVSS(sum, Mem{Base: y})
		ADDQ(stride, w)
	}
	ADDQ(U32(4*len(sums)), y)
}

// forRows runs block by fours, then by ones.
func forRows(rows Register, block func(n int)) {
	four, one, done := label("four"), label("one"), label("done")
	Label(four)
	CMPQ(rows, U32(4))
	JL(LabelRef(one))
	block(4)
	SUBQ(U32(4), rows)
	JMP(LabelRef(four))
	Label(one)
	TESTQ(rows, rows)
	JZ(LabelRef(done))
	block(1)
	DECQ(rows)
	JMP(LabelRef(one))
	Label(done)
}

// gemvBlocks is gemv for block types. The products of a block are summed before
// the scale multiplies them; the offset multiplies the sum of the vector.
func (v isa) gemvBlocks(t blockType) {
	v.text("gemv"+t.name, "(y *float32, w *byte, stride int, x *float32, blocks, rows int, ahead int)")
	Comment("y[r] = sum over blocks of scale * sum of w[r,c]*x[c]")
	y, w, x := Load(Param("y"), GP64()), Load(Param("w"), GP64()), Load(Param("x"), GP64())
	rows, ahead, blocks := Load(Param("rows"), GP64()), Load(Param("ahead"), GP64()), Load(Param("blocks"), GP64())
	constants := v.blockConstants(t)
	block := func(n int) {
		row := make([]Register, n)
		stride := Load(Param("stride"), GP64())
		for i := range row {
			row[i] = GP64()
			if i == 0 {
				MOVQ(w, row[i])
			} else {
				LEAQ(Mem{Base: row[i-1], Index: stride, Scale: 1}, row[i])
			}
		}
		sums := make([]VecVirtual, n)
		for i := range sums {
			sums[i] = v.zero()
		}
		at, left := GP64(), GP64()
		MOVQ(x, at)
		MOVQ(blocks, left)
		loop := label("block")
		Label(loop)
		xAt := func(k int) Mem { return Mem{Base: at, Disp: 4 * k} }
		var total VecVirtual
		if t.offset {
			total = v.load(f32, xAt(0), nil)
			for k := v.lanes; k < 32; k += v.lanes {
				VADDPS(xAt(k), total, total)
			}
		}
		for i := range row {
			if n > 1 {
				PREFETCHT0(Mem{Base: row[i], Index: ahead, Scale: 1})
			}
			inner := v.reg()
			v.integers(t, constants, row[i], func(k int, q VecVirtual) {
				if k == 0 {
					VMULPS(xAt(k), q, inner)
				} else {
					VFMADD231PS(xAt(k), q, inner)
				}
			})
			VFMADD231PS(v.widenHalf(Mem{Base: row[i]}), inner, sums[i])
			if t.offset {
				VFMADD231PS(v.widenHalf(Mem{Base: row[i], Disp: 2}), total, sums[i])
			}
			ADDQ(U32(t.bytes), row[i])
		}
		ADDQ(U32(32*4), at)
		DECQ(left)
		JNZ(LabelRef(loop))
		finishRows(v, sums, nil, y, w)
	}
	forRows(rows, block)
	end()
}

// tile emits the inner block of MatMul for many vectors: groups of four rows
// times a fixed number of vectors, every sum in a register of its own.
//
//	y[t*ldy+4*g+i] = sum over c of w[(4*g+i)*ldw+c] * x[t*ldx+c]
//
// or, with more not 0, += instead. w is padded with zeros to a whole number of registers; x is not. ldw, ldx and
// ldy are in bytes.
func (v isa) tile(tokens int) {
	v.text(fmt.Sprintf("tile%d", tokens), "(y *float32, ldy int, w *float32, ldw int, x *float32, ldx, cols, groups, more int)")
	Comment("Four rows times a few vectors.")
	y, w, x := Load(Param("y"), GP64()), Load(Param("w"), GP64()), Load(Param("x"), GP64())
	ldw, ldx := Load(Param("ldw"), GP64()), Load(Param("ldx"), GP64())
	ldw3, ldx3, ldx5 := GP64(), GP64(), GP64()
	LEAQ(Mem{Base: ldw, Index: ldw, Scale: 2}, ldw3)
	LEAQ(Mem{Base: ldx, Index: ldx, Scale: 2}, ldx3)
	LEAQ(Mem{Base: ldx, Index: ldx, Scale: 4}, ldx5)
	groups := Load(Param("groups"), GP64())
	stepped := func(base, ld, ld3, ld5 Register, i int) Mem {
		switch i {
		case 0:
			return Mem{Base: base}
		case 3:
			return Mem{Base: base, Index: ld3, Scale: 1}
		case 5:
			return Mem{Base: base, Index: ld5, Scale: 1}
		}
		return Mem{Base: base, Index: ld, Scale: uint8(i)}
	}

	group, loop, rest, done := label("group"), label("vector"), label("rest"), label("store")
	Label(group)
	sums := make([][4]VecVirtual, tokens)
	for t := range sums {
		for i := range sums[t] {
			sums[t][i] = v.zero()
		}
	}
	multiply := func(xs []VecVirtual) {
		for i := range 4 {
			row := v.load(f32, stepped(w, ldw, ldw3, nil, i), nil)
			for t := range sums {
				VFMADD231PS(xs[t], row, sums[t][i])
			}
		}
		ADDQ(U32(v.bytes()), w)
	}
	loadX := func(part *tail) []VecVirtual {
		xs := make([]VecVirtual, tokens)
		for t := range xs {
			xs[t] = v.load(f32, stepped(x, ldx, ldx3, ldx5, t), part)
		}
		return xs
	}
	wStart, xStart, cols := GP64(), GP64(), GP64()
	MOVQ(w, wStart)
	MOVQ(x, xStart)
	Load(Param("cols"), cols)
	Label(loop)
	CMPQ(cols, U32(v.lanes))
	JL(LabelRef(rest))
	multiply(loadX(nil))
	ADDQ(U32(v.bytes()), x)
	SUBQ(U32(v.lanes), cols)
	JMP(LabelRef(loop))
	Label(rest)
	TESTQ(cols, cols)
	JZ(LabelRef(done))
	multiply(loadX(v.newTail(cols)))
	Label(done)
	out, ldy, more := GP64(), GP64(), GP64()
	MOVQ(y, out)
	Load(Param("ldy"), ldy)
	Load(Param("more"), more)
	for t := range sums {
		sum := v.sum4(sums[t][:])
		first := label("first")
		TESTQ(more, more)
		JZ(LabelRef(first))
		VADDPS(Mem{Base: out}, sum, sum)
		Label(first)
		VMOVUPS(sum, Mem{Base: out})
		if t < tokens-1 {
			ADDQ(ldy, out)
		}
	}
	ADDQ(U32(16), y)
	LEAQ(Mem{Base: wStart, Index: ldw, Scale: 4}, w)
	MOVQ(xStart, x)
	DECQ(groups)
	JNZ(LabelRef(group))
	end()
}

// accumulate emits y[c] += sum over j of p[j]*v[j,c], for rows of n elements
// one after the other. A strip of columns stays in registers while j runs; a
// row whose p is zero is not read. Rows of bytes have a scale each, which
// multiplies p.
func (v isa) accumulate(t element) {
	if t == i8 {
		v.text("accumulate"+t.name, "(y, p *float32, v *byte, scales *float32, n, count int)")
		Comment("y[c] += sum of p[j]*scales[j]*v[j,c]")
	} else {
		v.text("accumulate"+t.name, "(y, p *float32, v *byte, n, count int)")
		Comment("y[c] += sum of p[j]*v[j,c]")
	}
	y, values := Load(Param("y"), GP64()), Load(Param("v"), GP64())
	n := Load(Param("n"), GP64())
	stride := GP64()
	MOVQ(n, stride)
	bytesOf(t, stride)
	strip := func(vectors int, part *tail) {
		sums := make([]VecVirtual, vectors)
		for i := range sums {
			sums[i] = v.load(f32, Mem{Base: y, Disp: i * v.bytes()}, part)
		}
		p, left, at, bits := GP64(), GP64(), GP64(), GP32()
		Load(Param("p"), p)
		Load(Param("count"), left)
		MOVQ(values, at)
		var scales Register
		if t == i8 {
			scales = Load(Param("scales"), GP64())
		}
		loop, next := label("row"), label("next")
		Label(loop)
		MOVL(Mem{Base: p}, bits)
		ADDL(bits, bits) // drops the sign
		JZ(LabelRef(next))
		weight := v.reg()
		VBROADCASTSS(Mem{Base: p}, weight)
		if t == i8 {
			scale := v.reg()
			VBROADCASTSS(Mem{Base: scales}, scale)
			VMULPS(scale, weight, weight)
		}
		for i := range sums {
			VFMADD231PS(v.load(t, Mem{Base: at, Disp: i * v.lanes * t.bytes}, part), weight, sums[i])
		}
		Label(next)
		ADDQ(U32(4), p)
		if t == i8 {
			ADDQ(U32(4), scales)
		}
		ADDQ(stride, at)
		DECQ(left)
		JNZ(LabelRef(loop))
		for i := range sums {
			v.store(sums[i], Mem{Base: y, Disp: i * v.bytes()}, part)
		}
		if part == nil {
			ADDQ(U32(vectors*v.bytes()), y)
			ADDQ(U32(vectors*v.lanes*t.bytes), values)
		}
	}
	for _, vectors := range []int{8, 4, 2, 1} {
		loop, done := label("strip"), label("narrower")
		Label(loop)
		CMPQ(n, U32(vectors*v.lanes))
		JL(LabelRef(done))
		strip(vectors, nil)
		SUBQ(U32(vectors*v.lanes), n)
		JMP(LabelRef(loop))
		Label(done)
	}
	done := label("done")
	TESTQ(n, n)
	JZ(LabelRef(done))
	part := v.newTail(n)
	v.clearBuffer(t, part)
	strip(1, part)
	Label(done)
	end()
}

// prefetch emits a request for lines of 64 bytes one after the other.
func prefetch() {
	TEXT("prefetch", NOSPLIT, "func(p *byte, lines int)")
	Pragma("noescape")
	Comment("Ask the cache for lines of 64 bytes.")
	p, lines := Load(Param("p"), GP64()), Load(Param("lines"), GP64())
	loop := label("line")
	Label(loop)
	PREFETCHT0(Mem{Base: p})
	ADDQ(U32(64), p)
	DECQ(lines)
	JNZ(LabelRef(loop))
	RET()
}

// pause emits the hint that a loop waits for another processor.
func pause() {
	TEXT("pause", NOSPLIT, "func()")
	Comment("Tell the processor that a loop waits.")
	PAUSE()
	RET()
}
