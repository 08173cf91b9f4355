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

	for _, t := range []blockType{q8, q4, q41, q5, q51} {
		v.decodeBlocks(t)
	}
	v.decodeSuper("decodeQ4K", "(dst *float32, qs *byte, scales, offsets *[8]float32)", false)
	v.decodeSuper("decodeQ5K", "(dst *float32, qs, high *byte, scales, offsets *[8]float32)", true)
	v.decodeQ6K()
	v.encodeQ8()
	v.roundSums()
	for _, t := range []element{f32, f16, bf16} {
		v.scan(t)
	}
}

// More predicates of VCMPPS.
const (
	unordered = 3 // either is a NaN
	notEqual  = 4 // or unordered
)

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

// decodeBlocks emits the decoder of a type of blocks of 32.
func (v isa) decodeBlocks(t blockType) {
	v.text("decode"+t.name, "(dst *float32, src *byte, blocks int)")
	Comment("Widens blocks of 32.")
	dst, src, blocks := Load(Param("dst"), GP64()), Load(Param("src"), GP64()), Load(Param("blocks"), GP64())
	constants := v.blockConstants(t)
	loop := label("block")
	Label(loop)
	d := v.widenHalf(Mem{Base: src})
	var offset VecVirtual
	if t.offset {
		offset = v.widenHalf(Mem{Base: src, Disp: 2})
	}
	v.integers(t, constants, src, func(k int, q VecVirtual) {
		VMULPS(d, q, q)
		if t.offset {
			VADDPS(offset, q, q)
		}
		VMOVUPS(q, Mem{Base: dst, Disp: 4 * k})
	})
	ADDQ(U32(t.bytes), src)
	ADDQ(U32(128), dst)
	DECQ(blocks)
	JNZ(LabelRef(loop))
	end()
}

// decodeSuper emits the decoder of one block of Q4_K, or of Q5_K, which has a
// fifth bit; see decodeQ4KGo and decodeQ5KGo.
func (v isa) decodeSuper(name, signature string, fifth bool) {
	v.text(name, signature)
	Comment("Widens a block of 256.")
	dst, qs := Load(Param("dst"), GP64()), Load(Param("qs"), GP64())
	scales, offsets := Load(Param("scales"), GP64()), Load(Param("offsets"), GP64())
	low := v.words(15)
	var high Register
	var sixteen VecVirtual
	if fifth {
		high, sixteen = Load(Param("high"), GP64()), v.words(16)
	}
	for pair := range 4 { // of groups, in the halves of the same bytes
		var scale, offset [2]VecVirtual
		for i := range scale {
			scale[i], offset[i] = YMM(), YMM()
			VBROADCASTSS(Mem{Base: scales, Disp: 4 * (2*pair + i)}, scale[i])
			VBROADCASTSS(Mem{Base: offsets, Disp: 4 * (2*pair + i)}, offset[i])
		}
		for k := 0; k < 32; k += 8 {
			packed, bits := YMM(), YMM()
			VPMOVZXBD(Mem{Base: qs, Disp: 32*pair + k}, packed)
			if fifth {
				VPMOVZXBD(Mem{Base: high, Disp: k}, bits)
			}
			for i := range scale {
				q := YMM()
				VPSRLD(U8(4*i), packed, q)
				VPAND(low, q, q)
				if fifth {
					bit := YMM()
					if shift := 4 - (2*pair + i); shift >= 0 {
						VPSLLD(U8(shift), bits, bit)
					} else {
						VPSRLD(U8(-shift), bits, bit)
					}
					VPAND(sixteen, bit, bit)
					VPOR(bit, q, q)
				}
				VCVTDQ2PS(q, q)
				VMULPS(scale[i], q, q)
				VSUBPS(offset[i], q, q)
				VMOVUPS(q, Mem{Base: dst, Disp: 4 * (64*pair + 32*i + k)})
			}
		}
	}
	end()
}

// decodeQ6K emits the decoder of one block; see decodeQ6KGo.
func (v isa) decodeQ6K() {
	v.text("decodeQ6K", "(dst *float32, low, high *byte, scales *[16]float32)")
	Comment("Widens a block of 256.")
	dst, low, high := Load(Param("dst"), GP64()), Load(Param("low"), GP64()), Load(Param("high"), GP64())
	scales := Load(Param("scales"), GP64())
	four, two, bias := v.words(15), v.words(3<<4), v.words(32)
	for half := range 2 {
		for k := 0; k < 32; k += 8 {
			var lows [2]VecVirtual // of elements 0 to 31, and 32 to 63
			for i := range lows {
				lows[i] = YMM()
				VPMOVZXBD(Mem{Base: low, Disp: 64*half + 32*i + k}, lows[i])
			}
			highs := YMM()
			VPMOVZXBD(Mem{Base: high, Disp: 32*half + k}, highs)
			for i := range 4 { // runs of 32 elements
				q, bits, scale := YMM(), YMM(), YMM()
				VPSRLD(U8(i/2*4), lows[i%2], q)
				VPAND(four, q, q)
				if shift := 4 - 2*i; shift >= 0 {
					VPSLLD(U8(shift), highs, bits)
				} else {
					VPSRLD(U8(-shift), highs, bits)
				}
				VPAND(two, bits, bits)
				VPOR(bits, q, q)
				VPSUBD(bias, q, q)
				VCVTDQ2PS(q, q)
				at := 128*half + 32*i + k
				VBROADCASTSS(Mem{Base: scales, Disp: 4 * (at / 16)}, scale)
				VMULPS(scale, q, q)
				VMOVUPS(q, Mem{Base: dst, Disp: 4 * at})
			}
		}
	}
	end()
}

// encodeQ8 emits the quantiser of Q8_0; see encodeQ8_0Go.
func (v isa) encodeQ8() {
	v.text("encodeQ8", "(dst *byte, src *float32, blocks int)")
	Comment("Rounds to blocks of a binary16 scale and 32 signed bytes.")
	dst, src, blocks := Load(Param("dst"), GP64()), Load(Param("src"), GP64()), Load(Param("blocks"), GP64())
	magnitude, infinity := v.words(math.MaxInt32), v.words(0x7f800000)
	// The number before a half: with it, unlike a half, a sum that has to be
	// rounded never reaches the next integer too early.
	half := v.words(math.Float32bits(0.5) - 1)
	top, one := v.words(math.Float32bits(127)), v.words(math.Float32bits(1))
	order := YMM() // packing works on halves: the places of the double words
	VPMOVZXBD(byteOrder, order)
	loop := label("block")
	Label(loop)
	largest := v.zero()
	var x [4]VecVirtual
	for i := range x {
		x[i] = YMM()
		VMOVUPS(Mem{Base: src, Disp: 32 * i}, x[i])
		a := YMM()
		VANDPS(magnitude, x[i], a)
		VMAXPS(largest, a, largest) // passes over a NaN
	}
	d := v.reduceMax(largest)
	VDIVPS(top.AsX(), d, d)
	h, inverse, bounded := XMM(), YMM(), XMM()
	VCVTPS2PH(U8(0), d, h)
	VPEXTRW(U8(0), h, Mem{Base: dst})
	VDIVPS(d, one.AsX(), d)
	VCMPPS(U8(notEqual), infinity.AsX(), d, bounded)
	VANDPS(bounded, d, d)
	VBROADCASTSS(d, inverse)
	for i := range x {
		VMULPS(inverse, x[i], x[i])
		away := YMM()
		VANDNPS(x[i], magnitude, away) // the sign
		VORPS(half, away, away)
		VADDPS(away, x[i], x[i])
		VCVTTPS2DQ(x[i], x[i])
	}
	VPACKSSDW(x[1], x[0], x[0])
	VPACKSSDW(x[3], x[2], x[2])
	VPACKSSWB(x[2], x[0], x[0])
	VPERMD(x[0], order, x[0])
	VMOVDQU(x[0], Mem{Base: dst, Disp: 2})
	ADDQ(U32(128), src)
	ADDQ(U32(34), dst)
	DECQ(blocks)
	JNZ(LabelRef(loop))
	end()
}

// roundSums emits the inner loop of the encoders of the K types; see roundSumsGo.
// n is a multiple of four. The sums are kept in four lanes.
func (v isa) roundSums() {
	v.text("roundSums", "(sums *[3]float64, q *int32, x *float64, n int, inverse, shift, top, bias float64)")
	Comment("Rounds x*inverse; sums of q, q*q and x*q.")
	sums, out, x := Load(Param("sums"), GP64()), Load(Param("q"), GP64()), Load(Param("x"), GP64())
	n := Load(Param("n"), GP64())
	doubles := func(param string) VecVirtual {
		// Straight from memory: Load would use an SSE instruction, which is slow
		// beside registers whose upper halves are in use.
		from, err := Param(param).Resolve()
		if err != nil {
			panic(err)
		}
		r := YMM()
		VBROADCASTSD(from.Addr, r)
		return r
	}
	inverse, shift, top, bias := doubles("inverse"), doubles("shift"), doubles("top"), doubles("bias")
	zero := v.zero()
	total := [3]VecVirtual{v.zero(), v.zero(), v.zero()}
	loop := label("four")
	Label(loop)
	xs, q, product := YMM(), YMM(), YMM()
	VMOVUPD(Mem{Base: x}, xs)
	VMULPD(inverse, xs, q)
	VADDPD(shift, q, q)
	VMAXPD(zero, q, q)
	VMINPD(top, q, q)
	VCVTTPD2DQY(q, q.AsX())
	VMOVDQU(q.AsX(), Mem{Base: out})
	VCVTDQ2PD(q.AsX(), q)
	VSUBPD(bias, q, q)
	VADDPD(q, total[0], total[0])
	VMULPD(q, q, product)
	VADDPD(product, total[1], total[1])
	VMULPD(xs, q, product)
	VADDPD(product, total[2], total[2])
	ADDQ(U32(32), x)
	ADDQ(U32(16), out)
	SUBQ(U32(4), n)
	JNZ(LabelRef(loop))
	for i, t := range total {
		high := XMM()
		VEXTRACTF128(U8(1), t, high)
		VADDPD(high, t.AsX(), t.AsX())
		VPERMILPD(U8(1), t.AsX(), high)
		VADDSD(high, t.AsX(), t.AsX())
		VMOVSD(t.AsX(), Mem{Base: sums, Disp: 8 * i})
	}
	end()
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
