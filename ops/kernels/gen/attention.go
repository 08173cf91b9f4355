package main

import (
	"math"

	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	. "github.com/mmcloughlin/avo/reg"
)

// attention emits the kernels for tiles of queries and pages of keys.
func (v isa) attention() {
	v.mulAdd()
	for _, t := range []element{f32, f16, i8} {
		v.transpose(t)
	}
	v.widenQ8()
	v.magnitude()
	v.roundQ8()
	v.penaliseTile()
	v.expSumTile()
}

// mulAdd emits y[t,r] = sum over c of x[t,c]*w[c,r], or += with add not 0.
// Strips of columns stay in registers, one for every sum, while c runs; ldy, ldx
// and ldw are in bytes.
func (v isa) mulAdd() {
	v.text("mulAdd", "(y *float32, ldy int, x *float32, ldx, n int, w *float32, ldw, k, width, add int)")
	Comment("y[t,r] (+)= sum of x[t,c]*w[c,r]")
	y, w, width := Load(Param("y"), GP64()), Load(Param("w"), GP64()), Load(Param("width"), GP64())
	ldx, ldx3, ldx5 := Load(Param("ldx"), GP64()), GP64(), GP64()
	LEAQ(Mem{Base: ldx, Index: ldx, Scale: 2}, ldx3)
	LEAQ(Mem{Base: ldx, Index: ldx, Scale: 4}, ldx5)

	tile := func(tokens, vectors int, part *tail, xs, ys Register) {
		sums := make([][]VecVirtual, tokens)
		for t := range sums {
			for range vectors {
				sums[t] = append(sums[t], v.zero())
			}
		}
		row, ldw, left := GP64(), Load(Param("ldw"), GP64()), Load(Param("k"), GP64())
		MOVQ(w, row)
		at := []Register{GP64()} // of six tokens each
		MOVQ(xs, at[0])
		if tokens > 6 {
			at = append(at, GP64())
			LEAQ(Mem{Base: xs, Index: ldx3, Scale: 2}, at[1])
		}
		loop := label("column")
		Label(loop)
		ws := make([]VecVirtual, vectors)
		for i := range ws {
			ws[i] = v.load(f32, Mem{Base: row, Disp: i * v.bytes()}, part)
		}
		for t := range sums {
			m := Mem{Base: at[t/6]}
			switch i := t % 6; i {
			case 0:
			case 3:
				m.Index, m.Scale = ldx3, 1
			case 5:
				m.Index, m.Scale = ldx5, 1
			default:
				m.Index, m.Scale = ldx, uint8(i)
			}
			x := v.reg()
			VBROADCASTSS(m, x)
			for i := range ws {
				VFMADD231PS(ws[i], x, sums[t][i])
			}
		}
		ADDQ(ldw, row)
		for _, a := range at {
			ADDQ(U32(4), a)
		}
		DECQ(left)
		JNZ(LabelRef(loop))

		ldy, add := Load(Param("ldy"), GP64()), Load(Param("add"), GP64())
		for t := range sums {
			store := label("store")
			TESTQ(add, add)
			JZ(LabelRef(store))
			for i, sum := range sums[t] {
				VADDPS(v.load(f32, Mem{Base: ys, Disp: i * v.bytes()}, part), sum, sum)
			}
			Label(store)
			for i, sum := range sums[t] {
				v.store(sum, Mem{Base: ys, Disp: i * v.bytes()}, part)
			}
			ADDQ(ldy, ys)
		}
		switch tokens {
		case 12, 6:
			LEAQ(Mem{Base: xs, Index: ldx3, Scale: uint8(tokens / 3)}, xs)
		default:
			LEAQ(Mem{Base: xs, Index: ldx, Scale: uint8(tokens)}, xs)
		}
	}
	strip := func(vectors int, part *tail) {
		tiles := []int{6, 4, 2, 1}
		if vectors*6 <= v.tileTokens*2 { // few sums a token: more tokens
			tiles = []int{12, 4, 1}
		}
		xs, ys, left := Load(Param("x"), GP64()), GP64(), Load(Param("n"), GP64())
		MOVQ(y, ys)
		for _, tokens := range tiles {
			loop, fewer := label("tokens"), label("fewer")
			Label(loop)
			CMPQ(left, U32(tokens))
			JL(LabelRef(fewer))
			tile(tokens, vectors, part, xs, ys)
			SUBQ(U32(tokens), left)
			JMP(LabelRef(loop))
			Label(fewer)
		}
	}
	widths := []int{2, 1}
	if v.wide {
		widths = []int{4, 2, 1}
	}
	for _, vectors := range widths {
		loop, narrower := label("strip"), label("narrower")
		Label(loop)
		CMPQ(width, U32(vectors*v.lanes))
		JL(LabelRef(narrower))
		strip(vectors, nil)
		ADDQ(U32(vectors*v.bytes()), y)
		ADDQ(U32(vectors*v.bytes()), w)
		SUBQ(U32(vectors*v.lanes), width)
		JMP(LabelRef(loop))
		Label(narrower)
	}
	done := label("done")
	TESTQ(width, width)
	JZ(LabelRef(done))
	strip(1, v.newTail(width))
	Label(done)
	end()
}

// transpose emits dst[c*ld+j] = src[j*cols+c], widened, and for bytes times
// scales[j]. A register's worth of rows, and four or eight columns, turn at a
// time: each 128-bit lane holds as many rows as columns. The last columns are
// done with columns before them, again, and the last rows by reading the very
// last more than once. ld is in bytes; there are at least so many columns.
func (v isa) transpose(t element) {
	scaled, signature := t == i8, "(dst *float32, ld int, src *byte, rows, cols int)"
	if scaled {
		signature = "(dst *float32, ld int, src *byte, scales *float32, rows, cols int)"
	}
	v.text("transpose"+t.name, signature)
	Comment("dst[c,j] = src[j,c]")
	dst, ld, src := Load(Param("dst"), GP64()), Load(Param("ld"), GP64()), Load(Param("src"), GP64())
	rows, stride := Load(Param("rows"), GP64()), Load(Param("cols"), GP64())
	bytesOf(t, stride)
	var scales Register
	if scaled {
		scales = Load(Param("scales"), GP64())
	}
	group := transposeColumns(t)

	block := func(part *tail) {
		var scale VecVirtual
		if scaled {
			scale = v.load(f32, Mem{Base: scales}, part)
		}
		at, out, left := GP64(), GP64(), Load(Param("cols"), GP64())
		MOVQ(src, at)
		MOVQ(dst, out)
		loop, done := label("columns"), label("done")
		Label(loop)
		row := GP64()
		MOVQ(at, row)
		turned := make([]VecVirtual, group)
		for j := range v.lanes {
			v.fillLane(t, turned, j, Mem{Base: row})
			switch {
			case j == v.lanes-1:
			case part == nil:
				ADDQ(stride, row)
			default: // stay where there is no further row
				step := GP64()
				XORQ(step, step)
				CMPQ(part.count, U32(j+1))
				CMOVQGT(stride, step)
				ADDQ(step, row)
			}
		}
		if t == f32 {
			turned = turn(turned, VUNPCKLPS, VUNPCKHPS)
		} else {
			turned = turn(turned, VPUNPCKLWD, VPUNPCKHWD)
		}
		to := GP64()
		MOVQ(out, to)
		for _, x := range turned {
			switch t {
			case f16:
				r := v.reg()
				VCVTPH2PS(x, r)
				x = r
			case i8:
				r := v.reg()
				VPMOVSXWD(x, r)
				VCVTDQ2PS(r, r)
				VMULPS(scale, r, r)
				x = r
			}
			v.store(x, Mem{Base: to}, part)
			ADDQ(ld, to)
		}
		SUBQ(U32(group), left)
		JLE(LabelRef(done))
		step, whole := GP64(), GP64()
		MOVQ(U32(group), whole)
		MOVQ(left, step)
		CMPQ(left, whole)
		CMOVQGT(whole, step)
		CMOVQLT(whole, left)
		LEAQ(Mem{Base: at, Index: step, Scale: uint8(t.bytes)}, at)
		IMULQ(ld, step)
		ADDQ(step, out)
		JMP(LabelRef(loop))
		Label(done)
	}
	loop, rest, done := label("rows"), label("rest"), label("end")
	Label(loop)
	CMPQ(rows, U32(v.lanes))
	JL(LabelRef(rest))
	block(nil)
	further := GP64()
	IMUL3Q(U32(v.lanes), stride, further)
	ADDQ(further, src)
	ADDQ(U32(v.bytes()), dst)
	if scaled {
		ADDQ(U32(v.bytes()), scales)
	}
	SUBQ(U32(v.lanes), rows)
	JMP(LabelRef(loop))
	Label(rest)
	TESTQ(rows, rows)
	JZ(LabelRef(done))
	block(v.newTail(rows))
	Label(done)
	end()
}

// transposeColumns is how many columns transpose turns at a time: 128 bits of
// them, bytes having been widened to 16.
func transposeColumns(t element) int {
	if t == f32 {
		return 4
	}
	return 8
}

// fillLane reads a row's columns into its 128-bit lane: rows that follow each
// other go to registers that follow each other, then to the next lane.
func (v isa) fillLane(t element, regs []VecVirtual, row int, m Mem) {
	i, lane := row%len(regs), row/len(regs)
	if lane == 0 {
		switch {
		case t == f32:
			regs[i] = v.reg()
		case v.wide: // half as wide as what it becomes
			regs[i] = YMM()
		default:
			regs[i] = XMM()
		}
	}
	var from Op = m
	switch {
	case t == i8 && lane == 0:
		VPMOVSXBW(m, regs[i].AsX())
		return
	case t == i8:
		x := XMM()
		VPMOVSXBW(m, x)
		from = x
	case lane == 0:
		VMOVUPS(m, regs[i].AsX())
		return
	}
	if v.wide {
		VINSERTF32X4(U8(lane), from, regs[i], regs[i])
	} else {
		VINSERTF128(U8(lane), from, regs[i], regs[i])
	}
}

// turn transposes n registers of n elements each (in every 128-bit lane), given
// the instructions that interleave the lower and the upper halves of two. A step
// interleaves each register with the one n/2 further on; log2(n) such steps, and
// the registers have become their columns.
func turn(r []VecVirtual, low, high func(...Op)) []VecVirtual {
	for n := len(r); n > 1; n /= 2 {
		half, next := len(r)/2, make([]VecVirtual, 0, len(r))
		for i, a := range r[:half] {
			b := r[half+i]
			l, h := sameSize(a), sameSize(a)
			low(b, a, l)
			high(b, a, h)
			next = append(next, l, h)
		}
		r = next
	}
	return r
}

// sameSize returns a new register as wide as r.
func sameSize(r VecVirtual) VecVirtual {
	switch r.Size() {
	case 16:
		return XMM()
	case 32:
		return YMM()
	default:
		return ZMM()
	}
}

// widenQ8 emits dst[j,c] = scales[j]*src[j,c], for rows of at least a register's
// worth of columns one after the other; the last columns of a row are done with
// columns before them, again.
func (v isa) widenQ8() {
	v.text("widenQ8", "(dst *float32, src *byte, scales *float32, rows, cols int)")
	Comment("dst[j,c] = scales[j]*src[j,c]")
	dst, src, scales := Load(Param("dst"), GP64()), Load(Param("src"), GP64()), Load(Param("scales"), GP64())
	rows, cols := Load(Param("rows"), GP64()), Load(Param("cols"), GP64())
	row, loop, last, next := label("row"), label("columns"), label("last"), label("next")
	Label(row)
	scale, left := v.reg(), GP64()
	VBROADCASTSS(Mem{Base: scales}, scale)
	MOVQ(cols, left)
	put := func() {
		q := v.load(i8, Mem{Base: src}, nil)
		VMULPS(scale, q, q)
		VMOVUPS(q, Mem{Base: dst})
		ADDQ(U32(v.lanes), src)
		ADDQ(U32(v.bytes()), dst)
	}
	Label(loop)
	CMPQ(left, U32(v.lanes))
	JL(LabelRef(last))
	put()
	SUBQ(U32(v.lanes), left)
	JMP(LabelRef(loop))
	Label(last)
	TESTQ(left, left)
	JZ(LabelRef(next))
	SUBQ(U32(v.lanes), left)
	ADDQ(left, src)
	LEAQ(Mem{Base: dst, Index: left, Scale: 4}, dst)
	put()
	Label(next)
	ADDQ(U32(4), scales)
	DECQ(rows)
	JNZ(LabelRef(row))
	end()
}

// magnitude emits the largest magnitude of n numbers, compared as integers: a
// NaN is above infinity.
func (v isa) magnitude() {
	v.text("magnitude", "(x *float32, n int) float32")
	Comment("The largest |x|, or a NaN.")
	most, sign := v.zero(), v.words(math.MaxInt32)
	v.each([]string{"x"}, func(at map[string]Mem, part *tail) {
		x := v.and(v.load(f32, at["x"], part), sign)
		VPMAXSD(most, x, most)
	})
	y := most
	if v.wide {
		y = YMM()
		VEXTRACTF64X4(U8(1), most, y)
		VPMAXSD(most.AsY(), y, y)
	}
	x, other := v.upperHalf(y), XMM()
	VPMAXSD(y.AsX(), x, x)
	VPSHUFD(U8(0b01_00_11_10), x, other)
	VPMAXSD(other, x, x)
	VPSHUFD(U8(0b10_11_00_01), x, other)
	VPMAXSD(other, x, x)
	Store(x, ReturnIndex(0))
	end()
}

// roundQ8 emits dst = x/scale rounded to the nearest integer, ties to the even
// one, within +-127. n is a multiple of sixteen.
func (v isa) roundQ8() {
	v.text("roundQ8", "(dst *byte, src *float32, scale float32, n int)")
	Comment("dst = round(src/scale) within +-127")
	scale := v.broadcast("scale")
	top, bottom := v.words(math.Float32bits(127)), v.words(math.Float32bits(-127))
	v.sixteens(1, 4, func(dst, src Register) {
		var q [2]VecVirtual
		for i := range 16 / v.lanes {
			q[i] = v.load(f32, Mem{Base: src, Disp: i * v.bytes()}, nil)
			VDIVPS(scale, q[i], q[i])
			VMINPS(top, q[i], q[i])
			VMAXPS(bottom, q[i], q[i])
			VCVTPS2DQ(q[i], q[i])
		}
		if v.wide {
			VPMOVSDB(q[0], Mem{Base: dst})
			return
		}
		VPACKSSDW(q[1], q[0], q[0])
		VPERMQ(U8(0b11_01_10_00), q[0], q[0]) // packing works on halves
		x := v.upperHalf(q[0])
		VPACKSSWB(x, q[0].AsX(), x)
		VMOVDQU(x, Mem{Base: dst})
	})
}

// penalty returns slope*max(0, level-low); see penaliseGo for its limits.
func (v isa) penalty(low, level, slope VecVirtual) VecVirtual {
	p := v.reg()
	VSUBPS(low, level, p)
	VMAXPS(constants["zero"], p, p) // a NaN becomes 0
	VMINPS(constants["largest"], p, p)
	VMULPS(slope, p, p)
	return p
}

// penaliseTile emits PenaliseTile: a strip of slots keeps its lows and levels in
// registers while the rows pass. rowMax holds the maxima so far; lds is in bytes.
func (v isa) penaliseTile() {
	v.text("penaliseTile", "(s *float32, lds, n int, low, level, field *float32, slope float32, rowMax *float32, count int) float32")
	Comment("penalise for n rows, the maximum of each row, and the least penalty of the first")
	s, lds := Load(Param("s"), GP64()), Load(Param("lds"), GP64())
	lowAt, levelAt, count := Load(Param("low"), GP64()), Load(Param("level"), GP64()), Load(Param("count"), GP64())
	slope := v.broadcast("slope")
	least := v.reg()
	VMOVUPS(constants["infinity"], least)

	strip := func(vectors int, part *tail) {
		lows, levels := make([]VecVirtual, vectors), make([]VecVirtual, vectors)
		field, fieldAt := v.reg(), Load(Param("field"), GP64())
		VBROADCASTSS(Mem{Base: fieldAt}, field)
		for i := range lows {
			lows[i] = v.load(f32, Mem{Base: lowAt, Disp: i * v.bytes()}, part)
			levels[i] = v.load(f32, Mem{Base: levelAt, Disp: i * v.bytes()}, part)
			if part != nil { // lanes beyond the last slot count as empty
				infinity := v.reg()
				VMOVUPS(constants["infinity"], infinity)
				v.keep(levels[i], infinity, part)
			}
			first := v.reg()
			VMINPS(lows[i], field, first)
			first = v.penalty(first, levels[i], slope)
			v.blendWhere(first, constants["infinity"], equal, levels[i], "infinity")
			VMINPS(least, first, least)
		}
		row, left, maxAt := GP64(), Load(Param("n"), GP64()), Load(Param("rowMax"), GP64())
		MOVQ(s, row)
		loop := label("row")
		Label(loop)
		VBROADCASTSS(Mem{Base: fieldAt}, field)
		most := v.reg()
		VMOVUPS(constants["negInfinity"], most)
		for i, low := range lows {
			m := Mem{Base: row, Disp: i * v.bytes()}
			VMINPS(low, field, low)
			p, x := v.penalty(low, levels[i], slope), v.load(f32, m, part)
			VSUBPS(p, x, x)
			v.blendWhere(x, constants["negInfinity"], equal, levels[i], "infinity")
			v.store(x, m, part)
			VMAXPS(most, x, most)
		}
		x := v.reduceMax(most)
		VMAXSS(Mem{Base: maxAt}, x, x)
		VMOVSS(x, Mem{Base: maxAt})
		ADDQ(lds, row)
		ADDQ(U32(4), fieldAt)
		ADDQ(U32(4), maxAt)
		DECQ(left)
		JNZ(LabelRef(loop))
		for i, low := range lows {
			v.store(low, Mem{Base: lowAt, Disp: i * v.bytes()}, part)
		}
		if part == nil {
			for _, at := range []Register{s, lowAt, levelAt} {
				ADDQ(U32(vectors*v.bytes()), at)
			}
			SUBQ(U32(vectors*v.lanes), count)
		}
	}
	v.holding([]string{"zero", "largest", "infinity", "negInfinity"}, func() {
		for _, vectors := range []int{4, 1} {
			loop, narrower := label("strip"), label("narrower")
			Label(loop)
			CMPQ(count, U32(vectors*v.lanes))
			JL(LabelRef(narrower))
			strip(vectors, nil)
			JMP(LabelRef(loop))
			Label(narrower)
		}
		done := label("done")
		TESTQ(count, count)
		JZ(LabelRef(done))
		strip(1, v.newTail(count))
		Label(done)
	})
	least = v.xor(least, "signBit")
	x := v.reduceMax(least)
	VXORPS(constants["signBit"], x, x)
	Store(x, ReturnIndex(0))
	end()
}

// expSumTile emits ExpSumTile. lds is in bytes.
func (v isa) expSumTile() {
	v.text("expSumTile", "(s *float32, lds, n, width int, max, sum *float32)")
	Comment("s[t] = exp(s[t]-max[t]); sum[t] += their sum")
	s, n := Load(Param("s"), GP64()), Load(Param("n"), GP64())
	maxAt, sumAt := Load(Param("max"), GP64()), Load(Param("sum"), GP64())
	rest := Load(Param("width"), GP64())
	ANDQ(I32(v.lanes-1), rest)
	last := v.newTail(rest)
	v.holding(expConstants, func() { v.expSumRows(s, n, maxAt, sumAt, rest, last) })
	end()
}

// expSumRows is the body of expSumTile; last is the tail of rest logits.
func (v isa) expSumRows(s, n, maxAt, sumAt, rest Register, last *tail) {
	row, loop, beyond, done := label("row"), label("loop"), label("rest"), label("sum")
	Label(row)
	max, sum := v.reg(), v.zero()
	VBROADCASTSS(Mem{Base: maxAt}, max)
	// Less infinity, a logit of -Inf stays what it is.
	v.blendWhere(max, constants["infinity"], equal, max, "negInfinity")
	at, left := GP64(), Load(Param("width"), GP64())
	MOVQ(s, at)
	exp := func(part *tail) {
		x, none := v.load(f32, Mem{Base: at}, part), v.zero()
		VSUBPS(max, x, x)
		e := v.exp(x)
		v.keep(e, none, part)
		v.store(e, Mem{Base: at}, part)
		VADDPS(e, sum, sum)
	}
	Label(loop)
	CMPQ(left, U32(v.lanes))
	JL(LabelRef(beyond))
	exp(nil)
	ADDQ(U32(v.bytes()), at)
	SUBQ(U32(v.lanes), left)
	JMP(LabelRef(loop))
	Label(beyond)
	TESTQ(rest, rest)
	JZ(LabelRef(done))
	exp(last)
	Label(done)
	x := v.sum4([]VecVirtual{sum})
	VADDSS(Mem{Base: sumAt}, x, x)
	VMOVSS(x, Mem{Base: sumAt})
	lds := Load(Param("lds"), GP64())
	ADDQ(lds, s)
	ADDQ(U32(4), maxAt)
	ADDQ(U32(4), sumAt)
	DECQ(n)
	JNZ(LabelRef(row))
}
