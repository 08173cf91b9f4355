package main

import (
	"fmt"

	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	. "github.com/mmcloughlin/avo/reg"
)

// packedType is a form of repacked matrices (see packed.go of package kernels):
// sixteen rows side by side, one in every lane of a register.
type packedType struct {
	name   string
	head   int  // bytes of a block's binary16 numbers, of sixteen rows
	nibble bool // four bits an integer that index a table, else signed bytes
	offset bool // a second binary16 number is added to every element
}

var packedTypes = []packedType{
	{name: "Nibbles", head: 32, nibble: true},
	{name: "NibblesOffset", head: 64, nibble: true, offset: true},
	{name: "Bytes", head: 32},
}

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

// packed emits the product of groups of sixteen packed rows with n vectors:
//
//	y[t*ldy+16*g+i] = sum over blocks of scale * sum of w*x, plus offset * sum of x
//
// for lane i of group g. Bit i of mask says whether lane i is stored, in all
// groups. w begins with the numbers of all blocks of the first group, heads bytes,
// which its integers follow. sums has the sum of x of block b and vector t at
// 8*b+t, table the values of the sixteen integers; ldy and ldx are in bytes. The
// products of a block are added up in two registers whatever n is.
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

	group, block := label("group"), label("block")
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
	sum := make([][2]VecVirtual, n)
	for t := range sum {
		sum[t] = [2]VecVirtual{v.zero(), v.zero()}
	}
	multiply := func(w VecVirtual, k, chain int) {
		for t := range sum {
			VFMADD231PS_BCST(x.at(t, k), w, sum[t][chain])
		}
	}
	ahead := func(base Register, disp int) { PREFETCHT0(Mem{Base: base, Disp: packedAhead + disp}) }
	ahead(head, 0)
	// A step has the elements of a double word of every row: eight or four.
	steps, bytes := 8, 64
	if p.nibble {
		steps = 4
	}
	step := func(disp, k int) {
		ahead(quants, disp)
		if p.nibble {
			words := v.reg()
			VMOVDQU32(Mem{Base: quants, Disp: disp}, words)
			for i := range 8 { // half bytes 2j and 2j+1 are of columns j and j+16
				w, index := v.reg(), words
				if i > 0 {
					VPSRLD(U8(4*i), words, w)
					index = w
				}
				VPERMPS(table, index, w) // looks at the lowest four bits of an index alone
				multiply(w, k+i/2+i%2*16, i%2)
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
		for i := range steps {
			step(bytes*i, 4*i)
		}
		x.step(4 * 32)
		ADDQ(U32(bytes*steps), quants)
	} else {
		left, again := GP64(), label("step")
		MOVQ(U32(steps), left)
		Label(again)
		step(0, 0)
		x.step(16)
		ADDQ(U32(bytes), quants)
		DECQ(left)
		JNZ(LabelRef(again))
		if p.nibble {
			x.step(64)
		}
	}
	scale := v.reg()
	VCVTPH2PS(Mem{Base: head}, scale)
	for t := range sum {
		VADDPS(sum[t][1], sum[t][0], sum[t][0])
		VFMADD231PS(scale, sum[t][0], totals[t])
	}
	if p.offset {
		offset := v.reg()
		VCVTPH2PS(Mem{Base: head, Disp: 32}, offset)
		for t := range totals {
			VFMADD231PS_BCST(Mem{Base: sums, Disp: 4 * t}, offset, totals[t])
		}
		ADDQ(U32(4*packedVectors), sums)
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
	SHLQ(U8(7), back)
	SUBQ(back, x.first)
	if x.fifth != nil {
		SUBQ(back, x.fifth)
	}
	DECQ(groups)
	JNZ(LabelRef(group))
	end()
}

// widenPacked emits the way back of a group of packed rows to sixteen rows of float32
// numbers, stride bytes apart, for blocks of 32 columns one after the other. Products
// and sums are those of package quant.
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
	block := label("block")
	Label(block)
	scale, offset := v.reg(), v.reg()
	VCVTPH2PS(Mem{Base: head}, scale)
	if p.offset {
		VCVTPH2PS(Mem{Base: head, Disp: 32}, offset)
	}
	for half := range 2 {
		columns := make([]VecVirtual, 16)
		for k := range columns {
			w := v.reg()
			if p.nibble {
				VMOVDQU32(Mem{Base: quants, Disp: k / 4 * 64}, w)
				if shift := k%4*8 + half*4; shift > 0 {
					VPSRLD(U8(shift), w, w)
				}
				VPERMPS(table, w, w)
			} else {
				VPMOVSXBD(Mem{Base: quants, Disp: 256*half + 16*k}, w)
				VCVTDQ2PS(w, w)
			}
			VMULPS(scale, w, w)
			if p.offset {
				VADDPS(offset, w, w)
			}
			columns[k] = w
		}
		to := GP64()
		LEAQ(Mem{Base: dst, Disp: 64 * half}, to)
		for i, row := range v.transposed(columns) {
			VMOVUPS(row, Mem{Base: to})
			if i < 15 {
				ADDQ(stride, to)
			}
		}
	}
	ADDQ(U32(p.head), head)
	bytes := 512
	if p.nibble {
		bytes = 256
	}
	ADDQ(U32(bytes), quants)
	ADDQ(U32(128), dst)
	DECQ(blocks)
	JNZ(LabelRef(block))
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
