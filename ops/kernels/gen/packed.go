package main

import (
	"fmt"

	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	. "github.com/mmcloughlin/avo/reg"
)

// packedType is a form of repacked matrices (see packed.go of package kernels):
// sixteen rows side by side, one in every lane of a register. A block of columns
// consists of parts that have a scale each (or one for either half byte), and a part
// of steps, the integers of one register: eight columns of half bytes, or four of bytes.
type packedType struct {
	name   string
	head   int  // bytes of a block's scales and offsets, of sixteen rows
	nibble bool // half bytes that index a table, else signed bytes
	offset bool // a number is added to every element, or for groups taken off
	groups bool // scales are small integers times binary16 numbers of the block
	parts  int  // of a block
	steps  int  // of a part
}

var packedTypes = []packedType{
	{name: "Nibbles", head: 32, nibble: true, parts: 1, steps: 4},
	{name: "NibblesOffset", head: 64, nibble: true, offset: true, parts: 1, steps: 4},
	{name: "Bytes", head: 32, parts: 1, steps: 8},
	{name: "NibblesGroups", head: 320, nibble: true, offset: true, groups: true, parts: 4, steps: 8},
	{name: "BytesGroups", head: 288, groups: true, parts: 16, steps: 4},
}

// columns is the number of columns of a part.
func (p packedType) columns() int {
	if p.nibble {
		return 8 * p.steps
	}
	return 4 * p.steps
}

// apart is the distance of the columns of two half bytes of a byte.
func (p packedType) apart() int { return 4 * p.steps }

// packedVectors is the largest number of vectors of a packed kernel.
const packedVectors = 8

// vectorsAt addresses element k of n vectors that lie ldx bytes apart.
type vectorsAt struct{ first, fifth, ld, ld3 Register }

func newVectorsAt(n int) *vectorsAt {
	v := &vectorsAt{first: Load(Param("x"), GP64())}
	if n > 1 {
		v.ld = Load(Param("ldx"), GP64())
	}
	if n > 3 {
		v.ld3 = GP64()
		LEAQ(Mem{Base: v.ld, Index: v.ld, Scale: 2}, v.ld3)
	}
	if n > 4 {
		v.fifth = GP64()
		LEAQ(Mem{Base: v.first, Index: v.ld, Scale: 4}, v.fifth)
	}
	return v
}

func (v *vectorsAt) at(t, k int) Mem {
	m := Mem{Base: v.first, Disp: 4 * k}
	if t > 3 {
		m.Base = v.fifth
	}
	switch t % 4 {
	case 1, 2:
		m.Index, m.Scale = v.ld, uint8(t%4)
	case 3:
		m.Index, m.Scale = v.ld3, 1
	}
	return m
}

// step moves on by some bytes.
func (v *vectorsAt) step(bytes int) {
	ADDQ(I32(bytes), v.first)
	if v.fifth != nil {
		ADDQ(I32(bytes), v.fifth)
	}
}

// packedScales are what makes numbers of the integers of a part.
type packedScales struct {
	p    packedType
	v    isa
	head Register
	// Of a type with groups: the block's numbers, and where those of the part are.
	d, dmin VecVirtual
	part    Register
}

// begin reads the numbers of a block.
func (s *packedScales) begin() {
	if !s.p.groups {
		return
	}
	s.d, s.part = s.v.reg(), GP64()
	VCVTPH2PS(Mem{Base: s.head}, s.d)
	at := 32
	if s.p.offset {
		s.dmin = s.v.reg()
		VCVTPH2PS(Mem{Base: s.head, Disp: 32}, s.dmin)
		at = 64
	}
	LEAQ(Mem{Base: s.head, Disp: at}, s.part)
}

// next goes on to the next part of the block.
func (s *packedScales) next() {
	switch {
	case s.p.groups && s.p.offset:
		ADDQ(U32(64), s.part)
	case s.p.groups:
		ADDQ(U32(16), s.part)
	}
}

// scale is that of a chain: of the low half bytes, 0, or the high ones, 1, which
// differ for groups alone.
func (s *packedScales) scale(chain int) VecVirtual {
	r := s.v.reg()
	switch {
	case !s.p.groups:
		VCVTPH2PS(Mem{Base: s.head}, r)
		return r
	case s.p.offset:
		VPMOVZXBD(Mem{Base: s.part, Disp: 16 * chain}, r)
	default:
		VPMOVSXBD(Mem{Base: s.part}, r)
	}
	VCVTDQ2PS(r, r)
	VMULPS(s.d, r, r)
	return r
}

// offset is that of a chain.
func (s *packedScales) offset(chain int) VecVirtual {
	r := s.v.reg()
	if !s.p.groups {
		VCVTPH2PS(Mem{Base: s.head, Disp: 32}, r)
		return r
	}
	VPMOVZXBD(Mem{Base: s.part, Disp: 32 + 16*chain}, r)
	VCVTDQ2PS(r, r)
	VMULPS(s.dmin, r, r)
	return r
}

// packed emits the product of groups of sixteen packed rows with n vectors:
//
//	y[t*ldy+16*g+i] = sum over parts of scale * sum of w*x, plus offset * sum of x
//
// for lane i of group g. Bit i of mask says whether lane i is stored, in all
// groups. w begins with the scales of all blocks of the first group, heads bytes,
// which its integers follow. sums has the sum of x of 32 columns b and vector t at
// 8*b+t, table the values of the sixteen half bytes; ldy and ldx are in bytes. The
// products of a part are added up in two registers whatever n is.
func (v isa) packed(p packedType, n int) {
	v.text(fmt.Sprintf("packed%s%d", p.name, n),
		"(y *float32, ldy int, w *byte, heads int, x *float32, ldx int, sums, table *float32, blocks, groups, mask int)")
	Comment("Sixteen rows in the lanes, times n vectors.")
	y, head, quants := Load(Param("y"), GP64()), Load(Param("w"), GP64()), GP64()
	x := newVectorsAt(n)
	var table VecVirtual
	if p.nibble {
		table = v.reg()
		from := Load(Param("table"), GP64())
		VMOVUPS(Mem{Base: from}, table)
	}
	groups, mask, lanes := Load(Param("groups"), GP64()), Load(Param("mask"), GP64()), K()
	KMOVW(mask.(GPVirtual).As32(), lanes)

	group, block, part := label("group"), label("block"), label("part")
	Label(group)
	Load(Param("heads"), quants)
	ADDQ(head, quants)
	totals := make([]VecVirtual, n)
	for t := range totals {
		totals[t] = v.zero()
	}
	blocks := Load(Param("blocks"), GP64())
	var sums Register
	if p.offset {
		sums = Load(Param("sums"), GP64())
	}
	Label(block)
	ahead := func(base Register, disp int) { PREFETCHT0(Mem{Base: base, Disp: packedAhead + disp}) }
	for line := 0; line < p.head; line += 64 {
		ahead(head, line)
	}
	scales := &packedScales{p: p, v: v, head: head}
	scales.begin()
	parts := GP64()
	if p.parts > 1 {
		MOVQ(U32(p.parts), parts)
		Label(part)
	}
	sum := make([][2]VecVirtual, n)
	for t := range sum {
		sum[t] = [2]VecVirtual{v.zero(), v.zero()}
	}
	multiply := func(w VecVirtual, k, chain int) {
		for t := range sum {
			VFMADD231PS_BCST(x.at(t, k), w, sum[t][chain])
		}
	}
	step := func(disp, k int) {
		ahead(quants, disp)
		if p.nibble {
			words := v.reg()
			VMOVDQU32(Mem{Base: quants, Disp: disp}, words)
			for i := range 8 { // half bytes 2j and 2j+1 are of columns j and j+apart
				w, index := v.reg(), words
				if i > 0 {
					VPSRLD(U8(4*i), words, w)
					index = w
				}
				VPERMPS(table, index, w) // looks at the lowest four bits of an index alone
				multiply(w, k+i/2+i%2*p.apart(), i%2)
			}
			return
		}
		for i := range 4 {
			w := v.reg()
			VPMOVSXBD(Mem{Base: quants, Disp: disp + 16*i}, w)
			VCVTDQ2PS(w, w)
			multiply(w, k+i, i%2)
		}
	}
	if n == 1 {
		for i := range p.steps {
			step(64*i, 4*i)
		}
		ADDQ(U32(64*p.steps), quants)
		x.step(4 * p.columns())
	} else {
		left, again := GP64(), label("step")
		MOVQ(U32(p.steps), left)
		Label(again)
		step(0, 0)
		x.step(16)
		ADDQ(U32(64), quants)
		DECQ(left)
		JNZ(LabelRef(again))
		if rest := p.columns() - 4*p.steps; rest > 0 {
			x.step(4 * rest)
		}
	}
	if p.groups && p.nibble {
		for chain := range 2 {
			scale := scales.scale(chain)
			for t := range sum {
				VFMADD231PS(scale, sum[t][chain], totals[t])
			}
			offset := scales.offset(chain)
			for t := range totals {
				VFNMADD231PS_BCST(Mem{Base: sums, Disp: 4*packedVectors*chain + 4*t}, offset, totals[t])
			}
		}
		ADDQ(U32(2*4*packedVectors), sums)
	} else {
		scale := scales.scale(0)
		for t := range sum {
			VADDPS(sum[t][1], sum[t][0], sum[t][0])
			VFMADD231PS(scale, sum[t][0], totals[t])
		}
		if p.offset {
			offset := scales.offset(0)
			for t := range totals {
				VFMADD231PS_BCST(Mem{Base: sums, Disp: 4 * t}, offset, totals[t])
			}
			ADDQ(U32(4*packedVectors), sums)
		}
	}
	if p.parts > 1 {
		scales.next()
		DECQ(parts)
		JNZ(LabelRef(part))
	}
	ADDQ(U32(p.head), head)
	DECQ(blocks)
	JNZ(LabelRef(block))

	out, ldy := GP64(), Load(Param("ldy"), GP64())
	MOVQ(y, out)
	for t := range totals {
		VMOVUPS(totals[t], lanes, Mem{Base: out})
		if t < n-1 {
			ADDQ(ldy, out)
		}
	}
	ADDQ(U32(64), y)
	MOVQ(quants, head)
	back := GP64()
	Load(Param("blocks"), back)
	IMUL3Q(I32(4*p.parts*p.columns()), back, back)
	SUBQ(back, x.first)
	if x.fifth != nil {
		SUBQ(back, x.fifth)
	}
	DECQ(groups)
	JNZ(LabelRef(group))
	end()
}

// widenPacked emits the way back of a group of packed rows to sixteen rows of float32
// numbers, stride bytes apart, for blocks one after the other. Products and sums are
// those of package quant.
func (v isa) widenPacked(p packedType) {
	v.text("widenPacked"+p.name, "(dst *float32, stride int, head, quants *byte, table *float32, blocks int)")
	Comment("Sixteen rows from the lanes.")
	dst, head, quants := Load(Param("dst"), GP64()), Load(Param("head"), GP64()), Load(Param("quants"), GP64())
	stride, blocks := Load(Param("stride"), GP64()), Load(Param("blocks"), GP64())
	var table VecVirtual
	if p.nibble {
		table = v.reg()
		from := Load(Param("table"), GP64())
		VMOVUPS(Mem{Base: from}, table)
	}
	block, part := label("block"), label("part")
	Label(block)
	scales := &packedScales{p: p, v: v, head: head}
	scales.begin()
	parts := GP64()
	if p.parts > 1 {
		MOVQ(U32(p.parts), parts)
		Label(part)
	}
	for first := 0; first < p.columns(); first += 16 {
		chain, from := 0, first // of low or high half bytes, from its column on
		if p.nibble {
			chain, from = first/p.apart(), first%p.apart()
		}
		scale := scales.scale(chain)
		var offset VecVirtual
		if p.offset {
			offset = scales.offset(chain)
		}
		columns := make([]VecVirtual, 16)
		for k := range columns {
			w := v.reg()
			if p.nibble {
				VMOVDQU32(Mem{Base: quants, Disp: (from + k) / 4 * 64}, w)
				if shift := k%4*8 + chain*4; shift > 0 {
					VPSRLD(U8(shift), w, w)
				}
				VPERMPS(table, w, w)
			} else {
				VPMOVSXBD(Mem{Base: quants, Disp: 16 * (from + k)}, w)
				VCVTDQ2PS(w, w)
			}
			VMULPS(scale, w, w)
			switch {
			case p.offset && p.groups:
				VSUBPS(offset, w, w)
			case p.offset:
				VADDPS(offset, w, w)
			}
			columns[k] = w
		}
		to := GP64()
		LEAQ(Mem{Base: dst, Disp: 4 * first}, to)
		for i, row := range v.transposed(columns) {
			VMOVUPS(row, Mem{Base: to})
			if i < 15 {
				ADDQ(stride, to)
			}
		}
	}
	ADDQ(U32(64*p.steps), quants)
	ADDQ(U32(4*p.columns()), dst)
	if p.parts > 1 {
		scales.next()
		DECQ(parts)
		JNZ(LabelRef(part))
	}
	ADDQ(U32(p.head), head)
	DECQ(blocks)
	JNZ(LabelRef(block))
	end()
}

// splitPairs emits the limbs of a vector for the matrix unit, in blocks of 32 columns:
// one row of 64 bytes of a tile of eight vectors for each limb, three tiles a block.
// It holds, for the first and for the second sixteen columns, pairs of columns: 0 with 2
// and 1 with 3 of every four, as half bytes give them.
func (v isa) splitPairs() {
	v.text("splitPacked", "(dst *byte, x *float32, blocks int)")
	Comment("Limbs of the pairs of a vector.")
	dst, x, blocks := Load(Param("dst"), GP64()), Load(Param("x"), GP64()), Load(Param("blocks"), GP64())
	c := v.limbConstants()
	const limbs, tile = 3, 64 * packedVectors
	loop := label("block")
	Label(loop)
	var parts [2][]VecVirtual
	for i := range parts {
		parts[i] = v.limbsOf(c, v.load(f32, Mem{Base: x, Disp: i * v.bytes()}, nil), limbs, true)
	}
	for i := range limbs {
		low, high := v.reg(), v.reg()
		VSHUFPS(U8(0b01_00_01_00), parts[1][i], parts[0][i], low)
		VSHUFPS(U8(0b11_10_11_10), parts[1][i], parts[0][i], high)
		VMOVUPS(v.pair(c, low, high), Mem{Base: dst, Disp: i * tile})
	}
	ADDQ(U32(limbs*tile), dst)
	ADDQ(U32(32*4), x)
	DECQ(blocks)
	JNZ(LabelRef(loop))
	end()
}

// transposed exchanges rows and columns of sixteen registers.
func (v isa) transposed(in []VecVirtual) []VecVirtual {
	// pairs combines registers that lie some places apart.
	pairs := func(in []VecVirtual, apart int, low, high func(a, b, out VecVirtual)) []VecVirtual {
		out := make([]VecVirtual, 16)
		for i := range in {
			if i&apart == 0 {
				a, b := in[i], in[i+apart]
				out[i], out[i+apart] = v.reg(), v.reg()
				low(a, b, out[i])
				high(a, b, out[i+apart])
			}
		}
		return out
	}
	lanes := func(imm uint8) func(a, b, out VecVirtual) {
		return func(a, b, out VecVirtual) { VSHUFF32X4(U8(imm), b, a, out) }
	}
	// Within each 128-bit lane single words, then pairs of words; then the lanes.
	in = pairs(in, 1, func(a, b, out VecVirtual) { VUNPCKLPS(b, a, out) }, func(a, b, out VecVirtual) { VUNPCKHPS(b, a, out) })
	in = pairs(in, 2, func(a, b, out VecVirtual) { VUNPCKLPD(b, a, out) }, func(a, b, out VecVirtual) { VUNPCKHPD(b, a, out) })
	in = pairs(in, 4, lanes(0b10_00_10_00), lanes(0b11_01_11_01))
	in = pairs(in, 8, lanes(0b10_00_10_00), lanes(0b11_01_11_01))
	// The first two steps have left the second and third row of every four exchanged.
	for i := 1; i < 16; i += 4 {
		in[i], in[i+1] = in[i+1], in[i]
	}
	return in
}

// packedAhead is how far in bytes beyond the data in use memory is asked for.
const packedAhead = 8192

// turnBytes emits the exchange, in blocks of 64 bytes one after the other, of
// sixteen rows of four bytes for four rows of sixteen.
func (v isa) turnBytes() {
	v.text("turnBytes", "(p *byte, count int)")
	Comment("Byte 4*i+j of 64 goes to 16*j+i.")
	p, count := Load(Param("p"), GP64()), Load(Param("count"), GP64())
	inLanes, across := v.reg(), v.reg()
	VBROADCASTI32X4(turnInLanes, inLanes)
	VPMOVZXBD(turnAcross, across)
	loop := label("block")
	Label(loop)
	r := v.reg()
	VMOVDQU32(Mem{Base: p}, r)
	VPSHUFB(inLanes, r, r)
	VPERMD(r, across, r)
	VMOVDQU32(r, Mem{Base: p})
	ADDQ(U32(64), p)
	DECQ(count)
	JNZ(LabelRef(loop))
	end()
}

var turnInLanes, turnAcross Mem

func defineTurns() {
	places := func(name string) Mem {
		m := GLOBL(name, RODATA|NOPTR)
		for i := range 16 {
			DATA(i, U8(i%4*4+i/4))
		}
		return m
	}
	turnInLanes, turnAcross = places("turnInLanes"), places("turnAcross")
}
