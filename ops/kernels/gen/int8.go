package main

import (
	"fmt"
	"math"

	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	. "github.com/mmcloughlin/avo/reg"
)

// int8Type is a form of packed matrices that is multiplied with bytes (see int8.go of
// package kernels): sixteen rows side by side, four columns of a row in a word.
type int8Type struct {
	name   string
	head   int  // bytes of a block's binary16 numbers, of sixteen rows
	nibble bool // 32 unsigned integers of four bits, else signed bytes
	bias   int  // log2 of what is taken off an integer, 0 for nothing
	offset bool // a second binary16 number is added to every element
}

var int8Types = []int8Type{
	{name: "Nibbles", head: 32, nibble: true, bias: 3},
	{name: "NibblesOffset", head: 64, nibble: true, offset: true},
	{name: "Words", head: 32},
}

// The places in a record of 32 rounded elements; records of a block of eight vectors
// lie side by side.
const (
	recordScale    = 32
	recordSum      = 36
	recordNegative = 40
	recordBytes    = 48
)

// int8Vectors is how many vectors a kernel takes at most: what the registers hold.
func (v isa) int8Vectors() int {
	if v.wide {
		return packedVectors
	}
	return packedVectors / 2
}

// int8Group emits the product of sixteen packed rows with n rounded vectors:
//
//	y[t*ldy+i] = sum over blocks of scale * x.scale * sum of w*x.q, plus offset * x.sum
//
// for lane i. w begins with the numbers of all blocks, heads bytes, which the integers
// follow; ldy is in bytes. The sums of integers are exact: in words of 32 bits with
// AVX-512 (VNNI); else products are added up in 16 bits, where eight pairs of
// 15*127*2 have room, or one of 128*127*2.
func (v isa) int8Group(p int8Type, n int) {
	v.text(fmt.Sprintf("int8%s%d", p.name, n), "(y *float32, ldy int, w *byte, heads int, x *byte, blocks int)")
	Comment("Sixteen rows in the lanes, times n vectors of bytes.")
	var mask, sign, ones VecVirtual
	switch {
	case p.nibble:
		mask = v.words(0x0f0f0f0f)
	case v.wide:
		sign = v.words(0x80808080)
	}
	if !v.wide {
		ones = v.words(0x00010001)
	}
	words := 8
	if p.nibble {
		words = 4
	}
	for part := range 16 / v.lanes { // of the lanes
		head, x, quants := Load(Param("w"), GP64()), Load(Param("x"), GP64()), GP64()
		Load(Param("heads"), quants)
		ADDQ(head, quants)
		totals := make([]VecVirtual, n)
		for t := range totals {
			totals[t] = v.zero()
		}
		blocks, block := Load(Param("blocks"), GP64()), label("block")
		Label(block)
		at := func(t, place int) Mem { return Mem{Base: x, Disp: recordBytes*t + place} }
		sums := make([]VecVirtual, n)
		for t := range sums {
			switch {
			case v.wide && p.offset:
				sums[t] = v.zero()
			case v.wide: // what the bias takes off; bytes are made unsigned by one
				sums[t] = v.reg()
				VPBROADCASTD(at(t, recordNegative), sums[t])
				VPSLLD(U8(v.int8Bias(p)), sums[t], sums[t])
			default:
				sums[t] = v.reg()
			}
		}
		for i := range words {
			w := v.reg()
			from := Mem{Base: quants, Disp: 64*i + v.bytes()*part}
			if n == 1 && part == 0 {
				PREFETCHT0(Mem{Base: quants, Disp: 64*i + packedAhead})
			}
			if v.wide {
				VMOVDQU32(from, w)
			} else {
				VMOVDQU(from, w)
			}
			if p.nibble {
				high := v.shifted(w, 4)
				v.int8Products(sums, v.and(w, mask), ones, func(t int) Mem { return at(t, 4*i) }, i == 0)
				v.int8Products(sums, v.and(high, mask), ones, func(t int) Mem { return at(t, 16+4*i) }, false)
				continue
			}
			if v.wide {
				VPXORD(sign, w, w)
				v.int8Products(sums, w, ones, func(t int) Mem { return at(t, 4*i) }, false)
				continue
			}
			size := v.reg()
			VPABSB(w, size)
			for t := range sums {
				x := v.reg()
				VPBROADCASTD(at(t, 4*i), x)
				VPSIGNB(w, x, x)
				VPMADDUBSW(x, size, x)
				VPMADDWD(ones, x, x)
				if i == 0 {
					VMOVDQU(x, sums[t])
				} else {
					VPADDD(x, sums[t], sums[t])
				}
			}
		}
		if !v.wide && p.nibble {
			for t := range sums {
				VPMADDWD(ones, sums[t], sums[t])
				if p.bias > 0 {
					x := v.reg()
					VPBROADCASTD(at(t, recordNegative), x)
					VPSLLD(U8(p.bias), x, x)
					VPADDD(x, sums[t], sums[t])
				}
			}
		}
		scale := v.reg()
		VCVTPH2PS(Mem{Base: head, Disp: 2 * v.lanes * part}, scale)
		for t := range sums {
			VCVTDQ2PS(sums[t], sums[t])
			both := v.reg()
			if v.wide {
				VMULPS_BCST(at(t, recordScale), scale, both)
			} else {
				VBROADCASTSS(at(t, recordScale), both)
				VMULPS(scale, both, both)
			}
			VFMADD231PS(both, sums[t], totals[t])
		}
		if p.offset {
			offset := v.reg()
			VCVTPH2PS(Mem{Base: head, Disp: 32 + 2*v.lanes*part}, offset)
			for t := range totals {
				if v.wide {
					VFMADD231PS_BCST(at(t, recordSum), offset, totals[t])
				} else {
					sum := v.reg()
					VBROADCASTSS(at(t, recordSum), sum)
					VFMADD231PS(sum, offset, totals[t])
				}
			}
		}
		ADDQ(U32(p.head), head)
		ADDQ(U32(64*words), quants)
		ADDQ(U32(packedVectors*recordBytes), x)
		DECQ(blocks)
		JNZ(LabelRef(block))
		y, ldy := Load(Param("y"), GP64()), Load(Param("ldy"), GP64())
		for t := range totals {
			VMOVUPS(totals[t], Mem{Base: y, Disp: v.bytes() * part})
			if t < n-1 {
				ADDQ(ldy, y)
			}
		}
	}
	end()
}

// int8Bias is log2 of what is taken off the integers as AVX-512 multiplies them.
func (v isa) int8Bias(p int8Type) int {
	if p.nibble {
		return p.bias
	}
	return 7
}

// int8Products adds the products of unsigned bytes w and the four bytes of every
// vector to the sums; first says that these hold nothing yet, with AVX2.
func (v isa) int8Products(sums []VecVirtual, w, ones VecVirtual, at func(t int) Mem, first bool) {
	for t := range sums {
		if v.wide {
			VPDPBUSD_BCST(at(t), w, sums[t])
			continue
		}
		x := v.reg()
		VPBROADCASTD(at(t), x)
		if first {
			VPMADDUBSW(x, w, sums[t])
			continue
		}
		VPMADDUBSW(x, w, x)
		VPADDW(x, sums[t], sums[t])
	}
}

// roundRecords emits the rounding of blocks of 32 elements to records, which lie
// those of eight vectors apart.
func (v isa) roundRecords() {
	v.text("roundRecords", "(records *byte, x *float32, blocks int)")
	Comment("Bytes, their scale, their sum.")
	to, x, blocks := Load(Param("records"), GP64()), Load(Param("x"), GP64()), Load(Param("blocks"), GP64())
	magnitude, order := v.words(math.MaxInt32), v.reg()
	VPMOVZXBD(recordOrder, order)
	top, least, largest := v.words(math.Float32bits(127)), v.words(math.Float32bits(0x1p-100)), v.words(math.Float32bits(math.MaxFloat32))
	loop := label("block")
	Label(loop)
	xs := make([]VecVirtual, 4)
	most := v.reg()
	for i := range xs { // magnitudes as integers: a NaN is above infinity
		xs[i] = v.reg()
		VMOVUPS(Mem{Base: x, Disp: 32 * i}, xs[i])
		if i == 0 {
			VPAND(magnitude, xs[i], most)
		} else {
			VPMAXSD(v.and(xs[i], magnitude), most, most)
		}
	}
	other := v.reg()
	VPERM2I128(U8(1), most, most, other)
	VPMAXSD(other, most, most)
	for _, places := range []uint8{0b01_00_11_10, 0b10_11_00_01} {
		VPSHUFD(U8(places), most, other)
		VPMAXSD(other, most, most)
	}
	scale, inverse, is := v.reg(), v.reg(), v.reg()
	VDIVPS(top, most, scale)
	VDIVPS(most, top, inverse)
	VCMPPS(U8(5), least, most, is) // not less, or NaN
	VANDPS(is, scale, scale)
	VANDPS(is, inverse, inverse)
	VCMPPS(U8(2), largest, most, is) // less or equal: finite
	VANDPS(is, inverse, inverse)
	total := v.reg()
	for i := range xs {
		VMULPS(inverse, xs[i], xs[i])
		VCVTPS2DQ(xs[i], xs[i])
		switch i {
		case 0:
		case 1:
			VPADDD(xs[1], xs[0], total)
		default:
			VPADDD(xs[i], total, total)
		}
	}
	VPACKSSDW(xs[1], xs[0], xs[0])
	VPACKSSDW(xs[3], xs[2], xs[2])
	VPACKSSWB(xs[2], xs[0], xs[0])
	VPERMD(xs[0], order, xs[0])
	VMOVDQU(xs[0], Mem{Base: to})
	VPERM2I128(U8(1), total, total, other)
	VPADDD(other, total, total)
	for _, places := range []uint8{0b01_00_11_10, 0b10_11_00_01} {
		VPSHUFD(U8(places), total, other)
		VPADDD(other, total, total)
	}
	negative, sum := v.zero(), v.reg()
	VPSUBD(total, negative, negative)
	VCVTDQ2PS(total, sum)
	VMULPS(scale, sum, sum)
	VMOVSS(scale.AsX(), Mem{Base: to, Disp: recordScale})
	VMOVSS(sum.AsX(), Mem{Base: to, Disp: recordSum})
	VMOVD(negative.AsX(), Mem{Base: to, Disp: recordNegative})
	ADDQ(U32(128), x)
	ADDQ(U32(packedVectors*recordBytes), to)
	DECQ(blocks)
	JNZ(LabelRef(loop))
	end()
}

// recordOrder puts words in order that three steps of packing have mixed.
var recordOrder Mem

func defineRecordOrder() {
	recordOrder = GLOBL("recordOrder", RODATA|NOPTR)
	for i := range 8 {
		DATA(i, U8(i%2*4+i/2))
	}
}

func int8Kernels() {
	defineRecordOrder()
	avx2.roundRecords()
	for _, v := range []isa{avx2, avx512} {
		for _, p := range int8Types {
			for n := 1; n <= v.int8Vectors(); n++ {
				v.int8Group(p, n)
			}
		}
	}
}
