package main

import (
	"fmt"

	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	. "github.com/mmcloughlin/avo/reg"
)

// Tiles of bfloat16 numbers, for the matrix unit: 16 rows of 64 bytes. A row
// holds 32 elements in pairs, element i beside element i+16, in the order that
// makes a pair of two registers of sixteen without moving anything across lanes.
const (
	tileRows  = 16
	tileBytes = 1024
	stepCols  = 32 // elements in a row of a tile
)

// limbs emits the splitting of numbers into bfloat16 limbs.
func (v isa) limbs() {
	v.splitRows(bf16, 1)
	v.splitRows(f16, 2)
	v.splitRows(f32, 2)
	v.splitRows(f32, 3)
	v.splitVectors()
}

// limbConstants are registers that splitting needs.
type limbConstants struct {
	half, upper, limit VecVirtual
}

func (v isa) limbConstants() limbConstants {
	return limbConstants{half: v.words(0x8000), upper: v.words(0xffff0000), limit: v.words(0x7f7f7fff)}
}

// limbsOf returns the limbs of x: the upper 16 bits of each are what counts. All
// but the last are rounded to nearest, half away from zero. Numbers so large
// that rounding would give infinity are cut, if large, so that the second limb is
// the larger for it. Of an infinity or a NaN the last limb is a NaN.
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

// splitRows emits the conversion of up to 16 rows of a matrix, stride bytes apart,
// to tiles: for each step of 32 columns one tile a limb.
func (v isa) splitRows(t element, limbs int) {
	v.text(fmt.Sprintf("splitRows%sTo%d", t.name, limbs), "(dst, w *byte, stride, rows, steps int)")
	Comment("Tiles of the limbs of rows.")
	dst, w := Load(Param("dst"), GP64()), Load(Param("w"), GP64())
	stride, steps := Load(Param("stride"), GP64()), Load(Param("steps"), GP64())
	c := v.limbConstants()
	step, row := label("step"), label("row")
	Label(step)
	from, to, left := GP64(), GP64(), Load(Param("rows"), GP64())
	MOVQ(w, from)
	MOVQ(dst, to)
	Label(row)
	var halves [2][]VecVirtual
	for i := range halves {
		m := Mem{Base: from, Disp: i * v.lanes * t.bytes}
		if limbs == 1 {
			x := v.reg()
			VPMOVZXWD(m, x)
			VPSLLD(U8(16), x, x)
			halves[i] = []VecVirtual{x}
			continue
		}
		halves[i] = v.limbsOf(c, v.load(t, m, nil), limbs, limbs == 3)
	}
	for i := range limbs {
		VMOVUPS(v.pair(c, halves[0][i], halves[1][i]), Mem{Base: to, Disp: i * tileBytes})
	}
	ADDQ(stride, from)
	ADDQ(U32(4*v.lanes), to)
	DECQ(left)
	JNZ(LabelRef(row))
	ADDQ(U32(stepCols*t.bytes), w)
	ADDQ(U32(limbs*tileBytes), dst)
	DECQ(steps)
	JNZ(LabelRef(step))
	end()
}

// splitVectors emits the conversion of 16 vectors, stride bytes apart, to tiles
// of three limbs: row i of a tile has elements i and i+16 of every vector.
func (v isa) splitVectors() {
	v.text("splitVectors", "(dst *byte, x *float32, stride, steps int)")
	Comment("Tiles of the limbs of vectors.")
	dst, x := Load(Param("dst"), GP64()), Load(Param("x"), GP64())
	stride, steps := Load(Param("stride"), GP64()), Load(Param("steps"), GP64())
	c := v.limbConstants()
	step, quad := label("step"), label("quad")
	const limbs = 3
	Label(step)
	left := GP64()
	MOVQ(U32(4), left)
	Label(quad)
	var columns [2][]VecVirtual
	for i := range columns {
		row := GP64()
		MOVQ(x, row)
		turned := make([]VecVirtual, transposeColumns(f32))
		for j := range v.lanes {
			v.fillLane(f32, turned, j, Mem{Base: row, Disp: i * v.bytes()})
			if j < v.lanes-1 {
				ADDQ(stride, row)
			}
		}
		columns[i] = turn(turned, VUNPCKLPS, VUNPCKHPS)
	}
	for j := range columns[0] {
		low, high := v.limbsOf(c, columns[0][j], limbs, true), v.limbsOf(c, columns[1][j], limbs, true)
		for i := range limbs {
			VMOVUPS(v.pair(c, low[i], high[i]), Mem{Base: dst, Disp: i*tileBytes + j*v.bytes()})
		}
	}
	ADDQ(U32(16), x)
	ADDQ(U32(4*v.bytes()), dst)
	DECQ(left)
	JNZ(LabelRef(quad))
	ADDQ(U32(stepCols*4-4*16), x)
	ADDQ(U32(limbs*tileBytes-4*4*v.bytes()), dst)
	DECQ(steps)
	JNZ(LabelRef(step))
	end()
}
