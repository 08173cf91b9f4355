package main

import (
	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	. "github.com/mmcloughlin/avo/reg"
)

// superType is a type of blocks of 256 elements (see package quant).
type superType struct {
	name  string
	bytes int // of a block
	fifth bool
}

var (
	q4K = superType{name: "Q4K", bytes: 144}
	q5K = superType{name: "Q5K", bytes: 176, fifth: true}
	q6K = superType{name: "Q6K", bytes: 210}
)

// superConstants are registers that reading a block needs.
type superConstants struct {
	low       VecVirtual // the low four bits of every byte
	top, bias VecVirtual
}

func (v isa) superConstants(t superType) (c superConstants) {
	c.low = v.words(0x0f0f0f0f)
	switch {
	case t == q6K:
		c.top, c.bias = v.words(3<<4), v.words(32)
	case t.fifth:
		c.top = v.words(16)
	}
	return c
}

// or sets a to the bits that a or b has.
func (v isa) or(a, b VecVirtual) {
	if v.wide {
		VPORD(b, a, a)
	} else {
		VPOR(b, a, a)
	}
}

// shifted is x shifted to the right, or to the left for a negative count.
func (v isa) shifted(x VecVirtual, right int) VecVirtual {
	r := v.reg()
	if right >= 0 {
		VPSRLD(U8(right), x, r)
	} else {
		VPSLLD(U8(-right), x, r)
	}
	return r
}

// groupSums returns a YMM register with the sums of eight groups of 32 floats at m.
func (v isa) groupSums(base Register) VecVirtual {
	var quads [2]VecVirtual
	for i := range quads {
		var pairs [2]VecVirtual
		for j := range pairs {
			var sums [2]VecVirtual
			for k := range sums {
				at := 128 * (4*i + 2*j + k)
				sums[k] = YMM()
				VMOVUPS(Mem{Base: base, Disp: at}, sums[k])
				for d := 32; d < 128; d += 32 {
					VADDPS(Mem{Base: base, Disp: at + d}, sums[k], sums[k])
				}
			}
			pairSums(sums[0], sums[1], sums[0])
			pairs[j] = sums[0]
		}
		pairSums(pairs[0], pairs[1], pairs[0])
		high := v.upperHalf(pairs[0])
		quads[i] = pairs[0]
		VADDPS(high, quads[i].AsX(), quads[i].AsX())
	}
	if v.wide {
		VINSERTF32X4(U8(1), quads[1].AsX(), quads[0], quads[0])
	} else {
		VINSERTF128(U8(1), quads[1].AsX(), quads[0], quads[0])
	}
	return quads[0]
}

// groupScales unpacks the scales and offsets of the block of Q4_K or Q5_K at base, as
// scaleMin of package quant does for one. The scales go into memory, from where they
// are broadcast; total are the sums of x by group, and what the offsets take off is
// taken off sum.
func (v isa) groupScales(c superConstants, base Register, scales Mem, total, sum VecVirtual) {
	six, top := v.words(0x3f3f3f3f), v.words(0x30303030) // made anew: registers are scarce
	var words [3]VecVirtual                              // four bytes each: of scales, of offsets, of both
	for i := range words {
		words[i] = v.reg()
		VMOVD(Mem{Base: base, Disp: 4 + 4*i}, words[i].AsX())
	}
	for i := range 2 {
		first := v.and(words[i], six)
		last := v.and(v.shifted(words[i], 2), top)
		both := words[2]
		if i == 1 {
			both = v.shifted(both, 4)
		}
		v.or(last, v.and(both, c.low))
		VPUNPCKLDQ(last.AsX(), first.AsX(), first.AsX())
		eight := first.AsY()
		VPMOVZXBD(first.AsX(), eight)
		VCVTDQ2PS(eight, eight)
		VMULPS(v.widenHalf(Mem{Base: base, Disp: 2 * i}).AsY(), eight, eight)
		if i == 0 {
			VMOVUPS(eight, scales)
		} else {
			// The upper half of a wide register is zero.
			v.subtractProduct(first, total, sum)
		}
	}
}

// subtractProduct takes a*b, eight floats each, off the register sum.
func (v isa) subtractProduct(a, b, sum VecVirtual) {
	if v.wide {
		VFNMADD231PS(a.AsZ(), b.AsZ(), sum)
	} else {
		VFNMADD231PS(a.AsY(), b.AsY(), sum)
	}
}

// scaled adds inner times the scale of a group to sum.
func (v isa) scaled(scales Mem, group int, inner, sum VecVirtual) {
	scale := v.reg()
	VBROADCASTSS(scales.Offset(4*group), scale)
	VFMADD231PS(scale, inner, sum)
}

// affineProducts adds scale times the sum of q*x to sum, for the groups of a block of
// Q4_K or Q5_K.
func (v isa) affineProducts(t superType, c superConstants, base, x Register, scales Mem, sum VecVirtual) {
	at := 16
	if t.fifth {
		at += 32
	}
	for pair := range 4 { // of groups, in the halves of the same bytes
		var inner [2]VecVirtual
		for k := 0; k < 32; k += v.lanes {
			packed := v.reg()
			VPMOVZXBD(Mem{Base: base, Disp: at + 32*pair + k}, packed)
			var bits VecVirtual
			if t.fifth {
				bits = v.reg()
				VPMOVZXBD(Mem{Base: base, Disp: 16 + k}, bits)
			}
			for i := range inner {
				var q VecVirtual
				if i == 0 {
					q = v.and(packed, c.low)
				} else {
					q = v.shifted(packed, 4)
				}
				if t.fifth {
					v.or(q, v.and(v.shifted(bits, 2*pair+i-4), c.top))
				}
				VCVTDQ2PS(q, q)
				from := Mem{Base: x, Disp: 4 * (64*pair + 32*i + k)}
				if k == 0 {
					inner[i] = v.reg()
					VMULPS(from, q, inner[i])
				} else {
					VFMADD231PS(from, q, inner[i])
				}
			}
		}
		for i := range inner {
			v.scaled(scales, 2*pair+i, inner[i], sum)
		}
	}
}

// signedScales unpacks the scales of the block of Q6_K at base.
func (v isa) signedScales(base Register, scales Mem) {
	d := v.widenHalf(Mem{Base: base, Disp: 208})
	for k := 0; k < 16; k += v.lanes {
		s := v.reg()
		VPMOVSXBD(Mem{Base: base, Disp: 192 + k}, s)
		VCVTDQ2PS(s, s)
		VMULPS(d, s, s)
		VMOVUPS(s, scales.Offset(4*k))
	}
}

// signedProducts adds scale times the sum of q*x to sum, for the groups of a block of
// Q6_K.
func (v isa) signedProducts(c superConstants, base, x Register, scales Mem, sum VecVirtual) {
	for half := range 2 {
		for k := 0; k < 32; k += 16 {
			for run := range 4 { // of 32 elements
				inner := v.reg()
				for j := k; j < k+16; j += v.lanes {
					low, high := v.reg(), v.reg()
					VPMOVZXBD(Mem{Base: base, Disp: 64*half + run%2*32 + j}, low)
					VPMOVZXBD(Mem{Base: base, Disp: 128 + 32*half + j}, high)
					var q VecVirtual
					if run < 2 {
						q = v.and(low, c.low)
					} else {
						q = v.shifted(low, 4)
					}
					v.or(q, v.and(v.shifted(high, 2*run-4), c.top))
					VPSUBD(c.bias, q, q)
					VCVTDQ2PS(q, q)
					from := Mem{Base: x, Disp: 4 * (128*half + 32*run + j)}
					if j == k {
						VMULPS(from, q, inner)
					} else {
						VFMADD231PS(from, q, inner)
					}
				}
				v.scaled(scales, 8*half+2*run+k/16, inner, sum)
			}
		}
	}
}

// gemvSuper is gemv for types of blocks of 256.
func (v isa) gemvSuper(t superType) {
	v.text("gemv"+t.name, "(y *float32, w *byte, stride int, x *float32, blocks, rows int, ahead int)")
	Comment("y[r] = sum over groups of scale * sum of w[r,c]*x[c]")
	scales := AllocLocal(4 * 16)
	y, w, x := Load(Param("y"), GP64()), Load(Param("w"), GP64()), Load(Param("x"), GP64())
	rows, ahead, blocks := Load(Param("rows"), GP64()), Load(Param("ahead"), GP64()), Load(Param("blocks"), GP64())
	c := v.superConstants(t)
	forRows(rows, func(n int) {
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
		var total VecVirtual
		if t != q6K {
			total = v.groupSums(at)
		}
		for i := range row {
			if n > 1 {
				for line := 0; line < t.bytes; line += 64 {
					PREFETCHT0(Mem{Base: row[i], Index: ahead, Scale: 1, Disp: line})
				}
			}
			if t == q6K {
				v.signedScales(row[i], scales)
				v.signedProducts(c, row[i], at, scales, sums[i])
			} else {
				v.groupScales(c, row[i], scales, total, sums[i])
				v.affineProducts(t, c, row[i], at, scales, sums[i])
			}
			ADDQ(U32(t.bytes), row[i])
		}
		ADDQ(U32(256*4), at)
		DECQ(left)
		JNZ(LabelRef(loop))
		finishRows(v, sums, nil, y, w)
	})
	end()
}
