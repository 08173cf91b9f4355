package main

import (
	"math"

	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	. "github.com/mmcloughlin/avo/reg"
)

// conversions emits the bulk conversions of package quant, for AVX2 alone: they
// run at the speed of memory. n is a multiple of sixteen.
func conversions() {
	v := avx2

	v.text("encodeF16", "(dst *byte, src *float32, n int)")
	Comment("Rounds to binary16.")
	v.sixteens(2, 4, func(dst, src Register) {
		for half := range 2 {
			x := YMM()
			VMOVUPS(Mem{Base: src, Disp: 32 * half}, x)
			VCVTPS2PH(U8(0), x, Mem{Base: dst, Disp: 16 * half})
		}
	})
	v.text("encodeBF16", "(dst *byte, src *float32, n int)")
	Comment("Rounds to bfloat16.")
	bias, one, quiet := v.words(0x7fff), v.words(1), v.words(0x40)
	v.sixteens(2, 4, func(dst, src Register) {
		var parts [2]VecVirtual
		for half := range parts {
			x, r, nan, isNaN := YMM(), YMM(), YMM(), YMM()
			VMOVUPS(Mem{Base: src, Disp: 32 * half}, x)
			VCMPPS(U8(unordered), x, x, isNaN)
			VPSRLD(U8(16), x, nan)
			VPAND(one, nan, r)
			VPADDD(bias, r, r)
			VPADDD(x, r, r)
			VPSRLD(U8(16), r, r)
			VPOR(quiet, nan, nan)
			VBLENDVPS(isNaN, nan, r, r)
			parts[half] = r
		}
		VPACKUSDW(parts[1], parts[0], parts[0])
		VPERMQ(U8(0b11_01_10_00), parts[0], parts[0]) // packing works on halves
		VMOVDQU(parts[0], Mem{Base: dst})
	})
	for _, t := range []element{f16, bf16} {
		v.text("decode"+t.name, "(dst *float32, src *byte, n int)")
		Comment("Widens to float32.")
		v.sixteens(4, t.bytes, func(dst, src Register) {
			for half := range 2 {
				VMOVUPS(v.load(t, Mem{Base: src, Disp: 8 * t.bytes * half}, nil), Mem{Base: dst, Disp: 32 * half})
			}
		})
	}

	v.text("decodeQ8", "(dst *float32, src *byte, blocks int)")
	Comment("Widens blocks of a binary16 scale and 32 signed bytes.")
	dst, src, blocks := Load(Param("dst"), GP64()), Load(Param("src"), GP64()), Load(Param("blocks"), GP64())
	loop := label("block")
	Label(loop)
	d := YMM()
	VPBROADCASTW(Mem{Base: src}, d.AsX())
	VCVTPH2PS(d.AsX(), d)
	for k := 0; k < 32; k += 8 {
		q := YMM()
		VPMOVSXBD(Mem{Base: src, Disp: 2 + k}, q)
		VCVTDQ2PS(q, q)
		VMULPS(d, q, q)
		VMOVUPS(q, Mem{Base: dst, Disp: 4 * k})
	}
	ADDQ(U32(34), src)
	ADDQ(U32(128), dst)
	DECQ(blocks)
	JNZ(LabelRef(loop))
	end()

	for _, t := range []element{f32, f16, bf16} {
		v.scan(t)
	}
}

const unordered = 3 // predicate of VCMPPS: either is a NaN

// sixteens loops over sixteen elements a time and ends the function.
func (v isa) sixteens(dstBytes, srcBytes int, body func(dst, src Register)) {
	dst, src, n := Load(Param("dst"), GP64()), Load(Param("src"), GP64()), Load(Param("n"), GP64())
	loop := label("loop")
	Label(loop)
	body(dst, src)
	ADDQ(U32(16*dstBytes), dst)
	ADDQ(U32(16*srcBytes), src)
	SUBQ(U32(16), n)
	JNZ(LabelRef(loop))
	end()
}

// words returns a register with the same word in every lane.
func (v isa) words(w uint32) VecVirtual {
	g, r := GP32(), v.reg()
	MOVL(U32(w), g)
	VMOVD(g, r.AsX())
	VPBROADCASTD(r.AsX(), r)
	return r
}

// scan emits one pass over n elements, a multiple of sixteen and below 2^31. It
// stores four times eight lanes: the largest magnitude of a finite element, and
// the numbers of NaNs, infinities and zeros.
func (v isa) scan(t element) {
	v.text("scan"+t.name, "(out *[4][8]uint32, src *byte, n int)")
	Comment("Largest finite magnitude, NaNs, infinities, zeros; by lane.")
	out, src, n := Load(Param("out"), GP64()), Load(Param("src"), GP64()), Load(Param("n"), GP64())
	magnitude, infinity, zero := v.words(math.MaxInt32), v.words(0x7f800000), v.zero()
	most, nans, infinities, zeros := v.zero(), v.zero(), v.zero(), v.zero()
	loop := label("loop")
	Label(loop)
	for half := range 2 {
		x := v.load(t, Mem{Base: src, Disp: 8 * t.bytes * half}, nil)
		is := YMM()
		VPAND(magnitude, x, x)
		VPCMPEQD(zero, x, is)
		VPSUBD(is, zeros, zeros) // a hit is -1
		VPCMPEQD(infinity, x, is)
		VPSUBD(is, infinities, infinities)
		VPCMPGTD(infinity, x, is)
		VPSUBD(is, nans, nans)
		VPCMPGTD(x, infinity, is) // finite; as integers magnitudes keep their order
		VPAND(is, x, x)
		VPMAXSD(x, most, most)
	}
	ADDQ(U32(16*t.bytes), src)
	SUBQ(U32(16), n)
	JNZ(LabelRef(loop))
	for i, r := range []VecVirtual{most, nans, infinities, zeros} {
		VMOVDQU(r, Mem{Base: out, Disp: 32 * i})
	}
	end()
}
