package main

import (
	"fmt"

	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	. "github.com/mmcloughlin/avo/reg"
)

// Tiles of bfloat16 numbers, for the matrix unit (see package kernels, amx_amd64.go):
// 16 rows of 64 bytes. The 32 elements of a vector, or of a row of a matrix, are 16
// pairs, element i beside element i+16, which is the order that makes pairs of two
// registers without moving anything across lanes. A tile of vectors has a vector in
// every row; one of a matrix has a pair in every row, and a row of the matrix in
// every column.
const (
	limbTile = 1024 // bytes of a tile
	limbCols = 32   // elements of a vector in a tile
)

// limbs emits the making of tiles.
func (v isa) limbs() {
	v.splitVectors()
	v.splitRows(bf16, 1)
	v.splitRows(f16, 2)
	for limbs := 1; limbs <= 3; limbs++ {
		v.splitRows(f32, limbs)
	}
	for _, p := range packedTypes {
		if !p.groups {
			v.splitPacked(p)
		}
	}
}

// limbConstants are registers that splitting needs.
type limbConstants struct {
	half, upper, limit VecVirtual
}

func (v isa) limbConstants() limbConstants {
	return limbConstants{half: v.words(0x8000), upper: v.words(0xffff0000), limit: v.words(0x7f7f7fff)}
}

// limbsOf returns the limbs of x: the upper 16 bits of each are what counts. All
// but the last are rounded to nearest, half away from zero. Numbers so large that
// rounding would give infinity are cut, if large, so that the second limb is the
// larger for it. Of an infinity or a NaN the last limb is a NaN.
func (v isa) limbsOf(c limbConstants, x VecVirtual, limbs int, large bool) []VecVirtual {
	var parts []VecVirtual
	for len(parts) < limbs-1 {
		from := x
		if large && len(parts) == 0 {
			from = v.reg()
			VRANGEPS(U8(0b0010), c.limit, x, from) // the smaller magnitude, with the sign of x
		}
		part, rest := v.reg(), v.reg()
		VPADDD(c.half, from, part)
		VPANDD(c.upper, part, part)
		VSUBPS(part, x, rest)
		parts, x = append(parts, part), rest
	}
	return append(parts, x)
}

// pair returns the upper halves of low, each below that of high.
func (v isa) pair(c limbConstants, low, high VecVirtual) VecVirtual {
	r := v.shifted(low, 16)
	VPTERNLOGD(U8(0xf8), c.upper, high, r) // r | high & upper
	return r
}

// splitVectors emits the tiles of up to 16 vectors, stride bytes apart: for each
// step of 32 elements one a limb.
func (v isa) splitVectors() {
	v.text("splitVectors", "(dst *byte, x *float32, stride, vectors, steps int)")
	Comment("Tiles of the limbs of vectors.")
	const limbs = 3
	dst, x := Load(Param("dst"), GP64()), Load(Param("x"), GP64())
	stride, steps := Load(Param("stride"), GP64()), Load(Param("steps"), GP64())
	c := v.limbConstants()
	step, vector := label("step"), label("vector")
	Label(step)
	from, to, left := GP64(), GP64(), Load(Param("vectors"), GP64())
	MOVQ(x, from)
	MOVQ(dst, to)
	Label(vector)
	var halves [2][]VecVirtual
	for i := range halves {
		halves[i] = v.limbsOf(c, v.load(f32, Mem{Base: from, Disp: i * v.bytes()}, nil), limbs, true)
	}
	for i := range limbs {
		VMOVUPS(v.pair(c, halves[0][i], halves[1][i]), Mem{Base: to, Disp: i * limbTile})
	}
	ADDQ(stride, from)
	ADDQ(U32(v.bytes()), to)
	DECQ(left)
	JNZ(LabelRef(vector))
	ADDQ(U32(limbCols*4), x)
	ADDQ(U32(limbs*limbTile), dst)
	DECQ(steps)
	JNZ(LabelRef(step))
	end()
}

// splitRows emits the tiles of 16 rows of a matrix, stride bytes apart: for each
// step of 32 columns one a limb. Narrow types hold no number so large that rounding
// would overflow.
func (v isa) splitRows(t element, limbs int) {
	v.text(fmt.Sprintf("splitRows%sTo%d", t.name, limbs), "(dst, w *byte, stride, steps int)")
	Comment("Tiles of the limbs of rows.")
	dst, w := Load(Param("dst"), GP64()), Load(Param("w"), GP64())
	stride, steps := Load(Param("stride"), GP64()), Load(Param("steps"), GP64())
	c := v.limbConstants()
	layout := t
	if t == bf16 {
		layout = f16 // the same as far as it is moved only
	}
	group := transposeColumns(layout)
	step, next := label("step"), label("columns")
	Label(step)
	left := GP64()
	MOVQ(U32(16/group), left)
	Label(next)
	// The elements 0 to 15, then those that go above them.
	for i := range 2 {
		row := GP64()
		MOVQ(w, row)
		columns := make([]VecVirtual, group)
		for j := range v.lanes {
			v.fillLane(layout, columns, j, Mem{Base: row, Disp: i * 16 * t.bytes})
			if j < v.lanes-1 {
				ADDQ(stride, row)
			}
		}
		if t == f32 {
			columns = turn(columns, VUNPCKLPS, VUNPCKHPS)
		} else {
			columns = turn(columns, VPUNPCKLWD, VPUNPCKHWD)
		}
		for j, x := range columns {
			wide := x
			if t != f32 {
				wide = v.reg()
			}
			switch t {
			case f16:
				VCVTPH2PS(x, wide)
			case bf16:
				VPMOVZXWD(x, wide)
				VPSLLD(U8(16), wide, wide)
			}
			for l, part := range v.limbsOf(c, wide, limbs, t == f32) {
				to := Mem{Base: dst, Disp: l*limbTile + j*v.bytes()}
				r := v.reg()
				if i == 0 {
					VPSRLD(U8(16), part, r)
				} else {
					VMOVUPS(to, r)
					VPTERNLOGD(U8(0xf8), c.upper, part, r) // r | part & upper
				}
				VMOVUPS(r, to)
			}
		}
	}
	ADDQ(U32(group*t.bytes), w)
	ADDQ(U32(group*v.bytes()), dst)
	DECQ(left)
	JNZ(LabelRef(next))
	ADDQ(U32((limbCols-16)*t.bytes), w)
	ADDQ(U32(limbs*limbTile-16*v.bytes()), dst)
	DECQ(steps)
	JNZ(LabelRef(step))
	end()
}

// splitPacked emits the tiles of the integers of a group of 16 packed rows, a block
// of 32 columns each, and widens their scales, and offsets 128 bytes further on, to
// float32 numbers, every 256 bytes.
func (v isa) splitPacked(p packedType) {
	signature := "(dst *byte, scales *float32, head, quants *byte, blocks int)"
	if p.nibble {
		signature = "(dst *byte, scales *float32, head, quants *byte, table *float32, blocks int)"
	}
	v.text("splitPacked"+p.name, signature)
	Comment("Tiles of the integers of packed rows, and their scales.")
	dst, scales := Load(Param("dst"), GP64()), Load(Param("scales"), GP64())
	head, quants := Load(Param("head"), GP64()), Load(Param("quants"), GP64())
	blocks := Load(Param("blocks"), GP64())
	var low, high, upper, table VecVirtual
	if p.nibble {
		low, high, table = v.words(15), v.words(15<<16), v.reg()
		VMOVUPS(Mem{Base: Load(Param("table"), GP64())}, table)
		VPSRLD(U8(16), table, table)
		VPMOVDW(table, table.AsY())
	} else {
		upper = v.words(0xffff0000)
	}
	block := label("block")
	Label(block)
	for i := range p.head / 32 {
		x := v.reg()
		VCVTPH2PS(Mem{Base: head, Disp: 32 * i}, x)
		VMOVUPS(x, Mem{Base: scales, Disp: 128 * i})
	}
	for j := range 16 {
		to := Mem{Base: dst, Disp: j * v.bytes()}
		if !p.nibble {
			var halves [2]VecVirtual
			for i := range halves {
				halves[i] = v.reg()
				VPMOVSXBD(Mem{Base: quants, Disp: 16 * (16*i + j)}, halves[i])
				VCVTDQ2PS(halves[i], halves[i])
			}
			VMOVUPS(v.pair(limbConstants{upper: upper}, halves[0], halves[1]), to)
			continue
		}
		word := v.reg()
		VMOVUPS(Mem{Base: quants, Disp: j / 4 * v.bytes()}, word)
		at := 8 * (j % 4) // of the two half bytes in the word
		index := v.and(v.shifted(word, at), low)
		VPTERNLOGD(U8(0xf8), high, v.shifted(word, at-12), index) // index | shifted & high
		VPERMW(table, index, index)
		VMOVUPS(index, to)
	}
	size := 4 * v.bytes()
	if !p.nibble {
		size = 32 * 16
	}
	ADDQ(U32(p.head), head)
	ADDQ(U32(size), quants)
	ADDQ(U32(256), scales)
	ADDQ(U32(limbTile), dst)
	DECQ(blocks)
	JNZ(LabelRef(block))
	end()
}
